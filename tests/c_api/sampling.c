// Sampling through the C ABI: what is certain (argmax, filters that leave one token, biases, masks) and what follows from a formula.
#include "check.h"

enum { kRows = 3, kVocab = 40 };

static float logits[kRows * kVocab];

static double probability(int row, int token, double temperature) {
  double sum = 0;
  for (int i = 0; i < kVocab; ++i) sum += exp(logits[row * kVocab + i] / temperature);
  return exp(logits[row * kVocab + token] / temperature) / sum;
}

static int rank_of(int row, int token) {
  int rank = 0;
  for (int i = 0; i < kVocab; ++i) {
    const float a = logits[row * kVocab + i], b = logits[row * kVocab + token];
    rank += a > b || (a == b && i < token);
  }
  return rank;
}

static void chain(girih_context* context) {
  int32_t tokens[kRows], best[kRows] = {0}, top[kRows * 2];
  float logprobs[kRows], top_logprobs[kRows * 2], temperatures[kRows] = {1, 0, 2};
  uint8_t valid[kRows];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kVocab; ++t) best[r] = rank_of(r, t) == 0 ? t : best[r];
  }
  girih_sample_args args;
  OK(girih_sample_args_init(&args, sizeof args));
  CHECK(args.temperature.value == 1 && args.top_p.value == 1 && args.repetition_penalty.value == 1 && args.min_p.value == 0);
  args.input = dense(logits, GIRIH_F32, 2, kRows, kVocab, 0, 0);
  args.tokens = dense(tokens, GIRIH_I32, 1, kRows, 0, 0, 0);
  args.valid = dense(valid, GIRIH_U8, 1, kRows, 0, 0, 0);
  args.logprobs = dense(logprobs, GIRIH_F32, 1, kRows, 0, 0, 0);
  args.top_tokens = dense(top, GIRIH_I32, 2, kRows, 2, 0, 0);
  args.top_logprobs = dense(top_logprobs, GIRIH_F32, 2, kRows, 2, 0, 0);
  args.top_k.value = 1;
  args.random.seed.value = 7;
  OK(girih_sample(context, &args));
  for (int r = 0; r < kRows; ++r) {
    CHECK(tokens[r] == best[r] && valid[r] == 1 && top[2 * r] == best[r] && rank_of(r, top[2 * r + 1]) == 1);
    NEAR(logprobs[r], log(probability(r, best[r], 1)), 1e-5);
    NEAR(top_logprobs[2 * r + 1], log(probability(r, top[2 * r + 1], 1)), 1e-5);
  }
  // A tensor of temperatures; draws that repeat for the same offset and stay within the first 3.
  args.temperature.rows = dense(temperatures, GIRIH_F32, 1, kRows, 0, 0, 0);
  args.top_k.value = 3;
  int moved = 0;
  for (int64_t step = 0; step < 20; ++step) {
    int32_t first[kRows];
    args.random.offset.value = step;
    OK(girih_sample(context, &args));
    memcpy(first, tokens, sizeof first);
    OK(girih_sample(context, &args));
    CHECK(memcmp(first, tokens, sizeof first) == 0);
    CHECK(rank_of(0, tokens[0]) < 3 && tokens[1] == best[1] && rank_of(2, tokens[2]) < 3);
    NEAR(logprobs[2], log(probability(2, tokens[2], 2)), 1e-5);
    moved += tokens[0] != best[0];
  }
  CHECK(moved > 0);
  // The best token of row 0 forbidden by a bias; that of row 2 by a mask; row 1 penalised from positive to below the second.
  const int32_t bias_indptr[] = {0, 1, 1, 1}, history_indptr[] = {0, 0, 1, 1};
  float bias[] = {-INFINITY};
  int32_t allowed[kRows * 2];
  memset(allowed, 0xFF, sizeof allowed);
  allowed[2 * 2 + best[2] / 32] &= (int32_t) ~(1u << (best[2] % 32));
  memset(&args.temperature.rows, 0, sizeof args.temperature.rows);
  args.top_k.value = 1;
  args.bias_tokens.indptr = dense((void*)bias_indptr, GIRIH_I32, 1, kRows + 1, 0, 0, 0);
  args.bias_tokens.tokens = dense(&best[0], GIRIH_I32, 1, 1, 0, 0, 0);
  args.bias = dense(bias, GIRIH_F32, 1, 1, 0, 0, 0);
  args.history.indptr = dense((void*)history_indptr, GIRIH_I32, 1, kRows + 1, 0, 0, 0);
  args.history.tokens = dense(&best[1], GIRIH_I32, 1, 1, 0, 0, 0);
  args.repetition_penalty.value = 1000;
  args.allowed = dense(allowed, GIRIH_I32, 2, kRows, 2, 0, 0);
  OK(girih_sample(context, &args));
  for (int r = 0; r < kRows; ++r) CHECK(rank_of(r, tokens[r]) == 1);

  args.order = 2;
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_sample: args.order=2", girih_sample(context, &args));
  args.order = GIRIH_JOINT;
  args.temperature.value = -1;
  FAILS(GIRIH_INVALID_ARGUMENT, "sample: temperature=-1", girih_sample(context, &args));
  FAILS(GIRIH_INVALID_ARGUMENT, "args is NULL", girih_sample(context, NULL));
}

static void distributions(girih_context* context) {
  static float probs[kRows * kVocab], out[kRows * kVocab];
  const girih_tensor in = dense(logits, GIRIH_F32, 2, kRows, kVocab, 0, 0), p = dense(probs, GIRIH_F32, 2, kRows, kVocab, 0, 0);
  const girih_tensor result = dense(out, GIRIH_F32, 2, kRows, kVocab, 0, 0);
  girih_row_float number;
  girih_row_int k;
  memset(&number, 0, sizeof number);
  memset(&k, 0, sizeof k);
  number.value = 0.7F;
  OK(girih_softmax(context, &in, &number, &p, NULL));
  for (int i = 0; i < kRows * kVocab; ++i) NEAR(probs[i], probability(i / kVocab, i % kVocab, 0.7F), 1e-6);
  FAILS(GIRIH_INVALID_ARGUMENT, "temperature is NULL", girih_softmax(context, &in, NULL, &p, NULL));
  k.value = 5;
  OK(girih_top_k_mask_logits(context, &in, &k, &result, NULL));
  for (int i = 0; i < kRows * kVocab; ++i) CHECK(out[i] == (rank_of(i / kVocab, i % kVocab) < 5 ? logits[i] : -INFINITY));
  OK(girih_top_k_renorm_probs(context, &p, &k, &result, NULL));
  for (int r = 0; r < kRows; ++r) {
    double kept = 0;
    for (int t = 0; t < kVocab; ++t) kept += rank_of(r, t) < 5 ? probs[r * kVocab + t] : 0;
    for (int t = 0; t < kVocab; ++t) NEAR(out[r * kVocab + t], rank_of(r, t) < 5 ? probs[r * kVocab + t] / kept : 0, 1e-6);
  }
  FAILS(GIRIH_INVALID_ARGUMENT, "top_k is NULL", girih_top_k_renorm_probs(context, &p, NULL, &result, NULL));
  number.value = 0.5F;
  OK(girih_top_p_renorm_probs(context, &p, &number, &result, NULL));
  for (int r = 0; r < kRows; ++r) {
    double sum = 0;
    for (int t = 0; t < kVocab; ++t) sum += out[r * kVocab + t];
    NEAR(sum, 1, 1e-5);
    for (int t = 0; t < kVocab; ++t) {
      double before = 0;  // the mass of what comes first in the order
      for (int i = 0; i < kVocab; ++i) before += rank_of(r, i) < rank_of(r, t) ? probs[r * kVocab + i] : 0;
      CHECK((out[r * kVocab + t] > 0) == (before < 0.5));
    }
  }
}

static void selection(girih_context* context) {
  float values[kRows * 4];
  int64_t indices[kRows * 4];
  girih_top_k_args args;
  OK(girih_top_k_args_init(&args, sizeof args));
  CHECK(args.page_size == 1);
  args.input = dense(logits, GIRIH_F32, 2, kRows, kVocab, 0, 0);
  args.k = 4;
  args.sorted = 1;
  args.values = dense(values, GIRIH_F32, 2, kRows, 4, 0, 0);
  args.indices = dense(indices, GIRIH_I64, 2, kRows, 4, 0, 0);
  OK(girih_top_k(context, &args));
  for (int i = 0; i < kRows * 4; ++i) {
    CHECK(rank_of(i / 4, (int)indices[i]) == i % 4 && values[i] == logits[i / 4 * kVocab + indices[i]]);
  }
  // Places through a page table of pages of 8, of a row that has 3 entries.
  const int32_t table[kRows * 5] = {9, 8, 7, 6, 5, 1, 2, 3, 4, 0, 10, 11, 12, 13, 14}, lengths[kRows] = {kVocab, 3, kVocab};
  int64_t places[kRows * 4];
  memcpy(places, indices, sizeof places);
  args.page_table = dense((void*)table, GIRIH_I32, 2, kRows, 5, 0, 0);
  args.page_size = 8;
  args.row_lengths = dense((void*)lengths, GIRIH_I32, 1, kRows, 0, 0, 0);
  OK(girih_top_k(context, &args));
  for (int i = 0; i < 4; ++i) CHECK(indices[i] == table[places[i] / 8] * 8 + places[i] % 8);
  CHECK(indices[4 + 2] >= 8 && indices[4 + 2] < 11 && indices[4 + 3] == -1 && values[4 + 3] == -INFINITY);
  args.k = 0;
  FAILS(GIRIH_INVALID_ARGUMENT, "k=0", girih_top_k(context, &args));
}

static void speculation(girih_context* context) {
  enum { kDrafts = 2 };
  static float target[kRows * (kDrafts + 1) * kVocab];
  int32_t drafts[kRows * kDrafts], tokens[kRows * (kDrafts + 1)], accepted[kRows];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i <= kDrafts; ++i) target[(r * (kDrafts + 1) + i) * kVocab + 10 * r + i] = 1;  // certain of 10 r + i
    for (int i = 0; i < kDrafts; ++i) drafts[r * kDrafts + i] = 10 * r + i + (i == r ? 5 : 0);     // wrong at place r
  }
  girih_speculative_args args;
  for (int greedy = 0; greedy < 2; ++greedy) {
    OK(girih_speculative_args_init(&args, sizeof args));
    args.draft_tokens = dense(drafts, GIRIH_I32, 2, kRows, kDrafts, 0, 0);
    args.target_probs = dense(target, GIRIH_F32, 3, kRows, kDrafts + 1, kVocab, 0);
    args.tokens = dense(tokens, GIRIH_I32, 2, kRows, kDrafts + 1, 0, 0);
    args.accepted = dense(accepted, GIRIH_I32, 1, kRows, 0, 0, 0);
    args.greedy = greedy;
    OK(girih_chain_speculative_sample(context, &args));
    for (int r = 0; r < kRows; ++r) {
      CHECK(accepted[r] == (r < kDrafts ? r : kDrafts));
      for (int i = 0; i <= kDrafts; ++i) CHECK(tokens[r * (kDrafts + 1) + i] == (i <= r ? 10 * r + i : -1));
    }
  }
  args.greedy = 3;
  FAILS(GIRIH_INVALID_ARGUMENT, "args.greedy=3", girih_chain_speculative_sample(context, &args));
}

void test_sampling(girih_context* context) {
  fill(logits, COUNT(logits), 31);
  for (int i = 0; i < COUNT(logits); ++i) logits[i] = logits[i] * 3 + 4;
  chain(context);
  distributions(context);
  selection(context);
  speculation(context);
}
