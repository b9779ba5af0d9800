// What a row's order begins with, listed in one pass (kernels/sampling/shortlist.cuh), under the emulator: the CPU's bits for rows of every
// kind, clusters of one and several blocks, and all that is done with such a list; and that the rows it is for are done that way.
// ctest: shards=2
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/sampling_rows.h"
#include "girih/sampling.h"
#include "sampling/check.h"
#include "sampling/sample.cuh"
#include "sampling/sampling_cuda.h"
#include "sampling/top_k.cuh"

namespace girih {
namespace {

using emulator::as_probs;
using emulator::cpu;
using emulator::launch;
using emulator::Rows;
using sampling::RowKind;
using sampling::Traits;

constexpr sampling::Config kConfig{12288, 16384, 4, 2048, true};
constexpr int kSlots = 6;

template <bool kProbs, bool kEdits>
emulator::LaunchOptions options(std::int64_t rows, int cluster, std::uint64_t seed) {
  return {.num_blocks = static_cast<int>(rows) * cluster,
          .num_threads = sampling::kThreads,
          .shared_bytes = sampling::Layout<kConfig, float, kEdits>::kSlots + (kSlots - (kEdits ? 1 : 0)) * kConfig.tile_bytes,
          .seed = seed,
          .cluster_size = cluster};
}

template <bool kProbs, bool kEdits, bool kTopK, bool kTopP>
void sample_kernel(abi::SampleParams p) {
  sampling::run_sample<kConfig, float, Traits{kProbs, kEdits, false, kTopK, kTopP, false, true, !kTopK && !kTopP}>(
      p, kSlots - (kEdits ? 1 : 0));
}
template <bool kProbs, bool kEdits>
auto kernel_for(const abi::SampleParams& p) -> void (*)(abi::SampleParams) {
  const sampling::SampleTraits t = sampling::traits_of(p);
  if (t.top_k && t.top_p) return sample_kernel<kProbs, kEdits, true, true>;
  if (t.top_k) return sample_kernel<kProbs, kEdits, true, false>;
  if (t.top_p) return sample_kernel<kProbs, kEdits, false, true>;
  return sample_kernel<kProbs, kEdits, false, false>;
}

/// Token 1 where the row's list is made, -1 where it is left to other ways.
template <bool kProbs, bool kEdits, bool kByCount>
void lists(abi::SampleParams p) {
  const i64 r = ptx::block_idx() / ptx::cluster_size();
  const u8* row = p.input.data + r * p.input.row_stride;
  sampling::RowRun<kConfig, float, kProbs, kEdits, false> run(row, p.input.stride, p.vocab, kSlots - (kEdits ? 1 : 0));
  run.reader.edit(p, r);
  const bool listed = run.template shortlist<kByCount>(row, p.temperature.at(r), static_cast<u64>(p.top_k.at(r)), p.min_p.at(r), &p, r);
  sampling::sync_row();
  if (ptx::cluster_rank() == 0 && ptx::thread_idx() == 0) p.tokens.set(r, 0, listed ? 1 : -1);
}

/// What a call writes: tokens, valid and log-probabilities.
struct Results {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> valid;
  std::vector<float> logprobs;
  explicit Results(std::size_t rows) : tokens(rows, -7), valid(rows, 9), logprobs(rows, 7) {}
  void give(SampleArgs& args, bool with_logprobs) {
    const auto rows = std::ssize(tokens);
    args.tokens = TensorView(tokens.data(), DType::i32, {rows});
    args.valid = TensorView(valid.data(), DType::u8, {rows});
    args.logprobs = with_logprobs ? TensorView(logprobs.data(), DType::f32, {rows}) : TensorView{};
  }
};

template <bool kProbs, bool kEdits = false>
void check(SampleArgs args, int cluster, std::uint64_t seed, bool with_logprobs = true) {
  args.kind = kProbs ? SampleInput::probs : SampleInput::logits;
  const std::int64_t rows = args.input.shape[0];
  Results want(static_cast<std::size_t>(rows)), got(want);
  want.give(args, with_logprobs);
  sample(cpu(), args);
  got.give(args, with_logprobs);
  const abi::SampleParams p = sampling::check_sample(cpu(), args);
  launch(kernel_for<kProbs, kEdits>(p), p, options<kProbs, kEdits>(rows, cluster, seed));
  ASSERT_EQ(want.tokens, got.tokens);
  ASSERT_EQ(want.valid, got.valid);
  for (std::size_t i = 0; i < want.logprobs.size(); ++i)
    ASSERT_TRUE(emulator::near(want.logprobs[i], got.logprobs[i])) << i << ": " << got.logprobs[i] << ", want " << want.logprobs[i];
}

template <bool kProbs, bool kEdits, bool kByCount>
std::vector<std::int32_t> listed(SampleArgs args, int cluster, std::uint64_t seed) {
  args.kind = kProbs ? SampleInput::probs : SampleInput::logits;
  Results got(static_cast<std::size_t>(args.input.shape[0]));
  got.give(args, false);
  launch(lists<kProbs, kEdits, kByCount>, sampling::check_sample(cpu(), args), options<kProbs, kEdits>(args.input.shape[0], cluster, seed));
  return got.tokens;
}

TEST(SamplingShortlist, EveryKindOfRow) {
  std::uint64_t number = 0;
  for (const std::int64_t vocab : {30001, 70003}) {
    Rows<float> logits = emulator::odd_rows<float, 10>(vocab, static_cast<unsigned>(vocab), vocab % 2);
    Rows<float> probs = as_probs(logits);
    probs.set(7, vocab / 3, INFINITY);
    probs.set(6, 5, 0.3F);
    probs.set(0, 77, -1.0F);
    for (const emulator::Filters& f : emulator::kFilters) {
      for (const int cluster : {vocab < 50000 ? 1 : 8, 2}) {
        SampleArgs args = emulator::args_of<float, true>(probs, f, static_cast<std::int64_t>(number));
        args.logprob_kind = number % 3 == 0 ? LogprobKind::processed : LogprobKind::filtered;
        SCOPED_TRACE(emulator::describe(f, vocab, cluster, number % 2 == 0));
        if (number % 2 == 0) {
          check<true>(args, cluster, number % 4 == 0 ? number + 1 : 0);
        } else {
          args.input = logits.view();
          args.temperature = number % 3 == 2 ? 0.6F : 1.0F;
          check<false>(args, cluster, number % 5 == 0 ? number : 0);
        }
        ++number;
        if (testing::Test::HasFatalFailure()) return;
      }
      ++number;
    }
  }
}

/// Gaussian logits, steep ones, a few tokens with nearly all, a long tail, most of them nothing, uniform with ties, of few digits.
TEST(SamplingShortlist, UsualRowsTakeOnePass) {
  constexpr std::int64_t kVocab = 100002, kRows = 7;
  Rows<float> rows(kRows, kVocab);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < kVocab; ++i) {
    const float x = normal(random);
    rows.set(0, i, x);
    rows.set(1, i, 3.5F * x);
    rows.set(2, i, i % 20001 == 801 ? 30.0F : x);
    rows.set(3, i, std::fabs(x) < 0.2F ? 5 * x : std::copysign(1 / (0.3F + std::fabs(x)), x) * 4);
    rows.set(4, i, random() % 100 == 0 ? x : -kInfinity);
    rows.set(5, i, 0.1F * static_cast<float>(random() % 4096) / 4096);
    rows.set(6, i, std::round(x * 64) / 64);
  }
  Rows<float> probs = as_probs(rows);
  SampleArgs args;
  const auto expect_all = [&](const std::vector<std::int32_t>& tokens, std::size_t but) {
    for (std::size_t r = 0; r < tokens.size(); ++r)
      EXPECT_TRUE(tokens[r] == 1 || r == but) << "row " << r << ", k " << args.top_k.value << ", min-p " << args.min_p.value;
  };
  for (const std::int64_t k : {1, 50, 2048}) {
    args.top_k = k;
    args.input = probs.view();
    expect_all(listed<true, false, true>(args, k == 50 ? 2 : 1, 0), 99);
    args.input = rows.view();
    expect_all(listed<false, false, true>(args, 2, k == 50 ? 3 : 0), 99);
  }
  args.top_k = 0;
  for (const float min_p : {0.1F, 0.5F}) {
    args.min_p = min_p;
    args.input = probs.view();
    expect_all(listed<true, false, false>(args, 1, 0), 5);  // all weigh alike there
    args.input = rows.view();
    expect_all(listed<false, false, false>(args, 2, 0), 5);
  }
}

/// With min-p entries are listed by the largest so far: of the first row they are too many, in the second each warp soon has a larger one
/// than the sample, which takes every 20th group of 16 entries.
TEST(SamplingShortlist, MinPRisesWithTheLargest) {
  constexpr std::int64_t kVocab = 204800, kRows = 2;
  Rows<float> rows(kRows, kVocab);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < kVocab; ++i) {
    for (std::int64_t r = 0; r < kRows; ++r) rows.set(r, i, std::min(normal(random), 3.0F));
    if (i < 8192 && i % 512 == 165) rows.set(1, i, 4.0F);
  }
  Rows<float> probs = as_probs(rows);
  SampleArgs args;
  args.logprob_kind = LogprobKind::filtered;
  args.min_p = 0.2F;
  args.input = probs.view();
  EXPECT_EQ((std::vector<std::int32_t>{-1, 1}), (listed<true, false, false>(args, 1, 0)));
  check<true>(args, 1, 3);
  args.input = rows.view();
  EXPECT_EQ((std::vector<std::int32_t>{-1, 1}), (listed<false, false, false>(args, 1, 0)));
  check<false>(args, 2, 0);
}

/// The largest comes last, and is infinite; and parts of it that are 1 and more.
TEST(SamplingShortlist, MinPOfAnything) {
  constexpr std::int64_t kVocab = 40001, kRows = 3;
  Rows<float> rows(kRows, kVocab);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < kVocab; ++i) {
    for (std::int64_t r = 0; r < kRows; ++r) rows.set(r, i, normal(random));
  }
  rows.set(0, kVocab - 3, kInfinity);
  rows.set(1, kVocab - 9, 7.0F);
  rows.set(2, 500, -kInfinity);
  Rows<float> probs = as_probs(rows);
  probs.set(0, kVocab - 3, kInfinity);
  SampleArgs args;
  args.logprob_kind = LogprobKind::filtered;
  for (const float min_p : {1e-30F, 1e-6F, 0.3F, 0.9999F, 1.0F}) {
    args.min_p = min_p;
    args.temperature = 1.0F;
    args.input = probs.view();
    check<true>(args, 2, 3);
    args.input = rows.view();
    args.temperature = 0.3F;
    check<false>(args, 1, 0);
  }
}

/// Equal entries that are too many to be listed: the first of them are found by pieces, in any block, and beside larger ones.
TEST(SamplingShortlist, TiesTakeOnePass) {
  constexpr std::int64_t kVocab = 70002, kRows = 5;
  Rows<float> rows(kRows, kVocab);
  std::mt19937 random(9);
  for (std::int64_t i = 0; i < kVocab; ++i) {
    rows.set(0, i, 0.5F);
    rows.set(1, i, random() % 3 == 0 ? 1.0F : -1.0F);
    rows.set(2, i, i < kVocab / 2 ? -2.0F : i % 2000 == 0 ? 3.0F : 0.0F);
    rows.set(3, i, i % 3 == 0 ? 0.0F : -0.0F);
    rows.set(4, i, static_cast<float>(i % 5));
  }
  Rows<float> probs = as_probs(rows);
  SampleArgs args;
  args.logprob_kind = LogprobKind::filtered;
  for (const std::int64_t k : {1, 40, 1500}) {
    args.top_k = k;
    args.random = {.seed = 5, .offset = k};
    const int cluster = k == 40 ? 4 : k == 1 ? 1 : 2;
    args.top_p = 1.0F;
    args.input = rows.view();
    for (const std::int32_t done : listed<false, false, true>(args, cluster, 0)) EXPECT_EQ(1, done) << k;
    args.top_p = k == 40 ? 0.7F : 1.0F;
    check<false>(args, cluster, static_cast<std::uint64_t>(k));
    args.input = probs.view();
    check<true>(args, cluster, 0);
  }
}

/// Rows of any spread, place and grain, with some large entries.
TEST(SamplingShortlist, RandomRows) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int turn = 0; turn < 16; ++turn) {
    Rows<float> rows = emulator::rows_of_any_spread(3, turn, random, normal);
    Rows<float> probs = as_probs(rows);
    SampleArgs args;
    args.top_k = turn % 5 == 4 ? 0 : 1 + static_cast<std::int64_t>(random() % (turn % 2 == 0 ? 3000 : 60));
    if (turn % 3 == 1 && args.top_k.value > 0) args.top_p = 1.0F - std::exp(-0.3F - 6 * std::fabs(normal(random)));
    if (turn % 4 == 3 || turn % 5 == 4) args.min_p = std::exp(-1.0F - 3 * std::fabs(normal(random)));
    args.logprob_kind = turn % 6 == 1 ? LogprobKind::processed : LogprobKind::filtered;
    args.order = turn % 3 == 1 && turn % 2 == 0 ? FilterOrder::joint : FilterOrder::top_k_first;
    args.random = {.seed = turn, .offset = 1};
    const int cluster = 1 << turn % 4;
    args.input = probs.view();
    check<true>(args, cluster, random() % 3);
    args.input = rows.view();
    args.temperature = 0.5F + 0.1F * static_cast<float>(random() % 10);
    check<false>(args, cluster, random() % 3);
    if (testing::Test::HasFailure()) FAIL() << "turn " << turn;
  }
}

/// Edits move the largest entries: each row has some that become the largest, some that were, tokens that are in both lists, and NaN.
TEST(SamplingShortlist, BiasAndPenalties) {
  constexpr std::int64_t kVocab = 33333, kRows = 5;
  Rows<float> rows(kRows, kVocab, 1);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t i = 0; i < kVocab; ++i) rows.set(r, i, (r == 3 ? 4.0F : 1.0F) * normal(random) + (r == 1 ? 0.2F : 0.0F));
  }
  rows.set(2, 100, 40.0F);
  rows.set(3, 398 + 100, NAN);
  std::vector<std::int32_t> indptr{0}, tokens, counts, bias_indptr{0}, bias_tokens;
  std::vector<float> bias;
  for (std::int32_t r = 0; r < kRows; ++r) {
    for (std::int32_t i = 0; i < 40 * r; ++i) {
      bias_tokens.push_back(i * 199 + 100 + i % 2);
      bias.push_back(i % 5 == 0 ? -kInfinity : i % 7 == 0 ? 5.0F : 0.25F * static_cast<float>(i % 9));
    }
    for (std::int32_t i = 0; i < (r == 4 ? 600 : 90 * r); ++i) {
      tokens.push_back(i < 80 ? i * 398 + 100 : i * 54 + 1);
      counts.push_back(i % 4);
    }
    bias_indptr.push_back(static_cast<std::int32_t>(bias.size()));
    indptr.push_back(static_cast<std::int32_t>(tokens.size()));
  }
  const auto vector = [](auto& v, DType type) { return TensorView(v.data(), type, {std::ssize(v)}); };
  SampleArgs args;
  args.input = rows.view();
  args.bias_tokens = {vector(bias_indptr, DType::i32), vector(bias_tokens, DType::i32)};
  args.bias = vector(bias, DType::f32);
  args.history = {vector(indptr, DType::i32), vector(tokens, DType::i32)};
  args.history_counts = vector(counts, DType::i32);
  args.repetition_penalty = 1.3F;
  args.frequency_penalty = 0.2F;
  args.presence_penalty = 0.1F;
  args.temperature = 0.8F;
  args.logprob_kind = LogprobKind::filtered;
  for (std::int64_t step = 0; step < 8; ++step) {
    args.top_k = step == 6 ? 0 : step % 2 == 0 ? 50 : 300;
    args.top_p = step == 6 || step < 3 ? 1.0F : 0.9F;
    args.min_p = step == 6 || step == 2 ? 0.2F : 0.0F;
    args.random = {.seed = 5, .offset = step};
    const int cluster = step % 2 == 1 ? 2 : 1;
    SCOPED_TRACE(step);
    check<false, true>(args, cluster, step % 3 == 2 ? 6 : 0);
    if (step != 0) continue;
    const std::vector<std::int32_t> got = listed<false, true, true>(args, cluster, 0);
    for (std::size_t r = 0; r < kRows; ++r) EXPECT_EQ(r == 4 ? -1 : 1, got[r]) << "row " << r;  // row 4 has too many in both lists
  }
}

void top_k_kernel(abi::TopKParams p) { sampling::run_top_k<kConfig, float, true>(p, kSlots); }
void check_top_k(std::int64_t vocab, std::int64_t k, bool sorted, int cluster) {
  SCOPED_TRACE(testing::Message() << "vocab " << vocab << " k " << k << " sorted " << sorted << " cluster " << cluster);
  constexpr std::int64_t kRows = 10;
  Rows<float> rows = emulator::odd_rows<float, kRows>(vocab, static_cast<unsigned>(k), 1);
  std::vector<std::int64_t> want(static_cast<std::size_t>(kRows * k)), got(want);
  std::vector<float> want_values(want.size()), got_values(want.size());
  std::vector<std::int32_t> starts(kRows), lengths(kRows);
  for (std::size_t r = 0; r < kRows; ++r) {
    starts[r] = static_cast<std::int32_t>(r % 3) * 1001;
    lengths[r] = r == 2 ? 0 : (static_cast<std::int32_t>(vocab) - starts[r]) / (r == 4 ? 3 : 1);
  }
  TopKArgs args;
  args.input = rows.view();
  args.k = k;
  args.sorted = sorted;
  args.row_starts = TensorView(starts.data(), DType::i32, {kRows});
  args.row_lengths = TensorView(lengths.data(), DType::i32, {kRows});
  args.indices = TensorView(want.data(), DType::i64, {kRows, k});
  args.values = TensorView(want_values.data(), DType::f32, {kRows, k});
  top_k(cpu(), args);
  args.indices.data = got.data();
  args.values.data = got_values.data();
  launch(top_k_kernel, sampling::check_top_k(cpu(), args), options<false, false>(kRows, cluster, 0));
  for (std::size_t i = 0; i < want.size(); ++i)
    ASSERT_EQ(want[i], got[i]) << "row " << i / static_cast<std::size_t>(k) << " place " << i % static_cast<std::size_t>(k);
  ASSERT_EQ(0, std::memcmp(want_values.data(), got_values.data(), want.size() * sizeof(float)));
}
TEST(SamplingShortlist, TopKIsTheCpus) {
  check_top_k(30000, 50, true, 2);
  check_top_k(60001, 50, false, 1);
  check_top_k(90000, 2048, true, 4);
  check_top_k(40000, 4096, false, 1);
}

template <RowKind kKind>
void rows_kernel(abi::SampleParams p) {
  sampling::run_rows<kConfig, float, kKind, true>(p, kSlots);
}
template <RowKind kKind>
void check_rows(Rows<float> rows, int cluster, std::int64_t top_k) {
  std::vector<float> want(rows.memory.size(), 7), got(want);
  const auto view = [&](std::vector<float>& out) { return TensorView(out.data(), DType::f32, {rows.rows, rows.vocab}); };
  if (kKind == RowKind::top_k_renorm) top_k_renorm_probs(cpu(), rows.view(), top_k, view(want));
  if (kKind == RowKind::top_k_mask) top_k_mask_logits(cpu(), rows.view(), top_k, view(want));
  abi::SampleParams p =
      sampling::check_rows(cpu(), {"test", "input", rows.view(), view(got), false, kKind == RowKind::top_k_mask, nullptr});
  p.top_k.value = top_k;
  launch(rows_kernel<kKind>, p, options<false, false>(rows.rows, cluster, 0));
  ASSERT_EQ(0, std::memcmp(want.data(), got.data(), want.size() * sizeof(float)));
}
TEST(SamplingShortlist, RowsForRowsAreTheCpusBits) {
  check_rows<RowKind::top_k_renorm>(as_probs(emulator::odd_rows<float, 10>(30000, 6)), 2, 30);
  check_rows<RowKind::top_k_mask>(emulator::odd_rows<float, 10>(30000, 7), 1, 300);
}

/// Few passes where a kernel can: by default where measured, else as the environment says.
TEST(SamplingShortlist, Choice) {
  using sampling::FewPassesCall;
  using sampling::KernelKind;
  const std::int64_t shared = cuda::example_device(90).shared_per_block;
  const auto ways = [&](const FewPassesCall& call) {
    return (sampling::takes_few_passes(call, shared, SamplingChoice::measured) ? 1 : 0) +
           (sampling::takes_few_passes(call, shared, SamplingChoice::few) ? 2 : 0) +
           (sampling::takes_few_passes(call, shared, SamplingChoice::passes) ? 4 : 0);
  };
  EXPECT_EQ(3, ways({.traits = {.top_p = true}, .vocab = 100000}));
  EXPECT_EQ(0, ways({.traits = {.top_p = true}, .min_p = true, .vocab = 100000}));
  EXPECT_EQ(0, ways({.traits = {.top_p = true}, .vocab = 20000}));
  EXPECT_EQ(2, ways({.traits = {.top_k = true}, .vocab = 100000}));
  EXPECT_EQ(2, ways({.traits = {.edits = true, .top_k = true, .top_p = true}, .vocab = 100000}));
  EXPECT_EQ(2, ways({.traits = {}, .min_p = true, .vocab = 100000}));
  EXPECT_EQ(2, ways({.traits = {}, .vocab = 100000}));
  EXPECT_EQ(0, ways({.traits = {.first = true}, .vocab = 100000}));
  EXPECT_EQ(0, ways({.traits = {.masked = true, .top_k = true}, .vocab = 100000}));
  EXPECT_EQ(0, ways({.type = DType::bf16, .traits = {.top_k = true}, .vocab = 100000}));
  EXPECT_EQ(2, ways({.kind = KernelKind::top_k, .traits = {}, .vocab = 100000}));
  EXPECT_EQ(2, ways({.kind = KernelKind::top_p_renorm, .traits = {}, .vocab = 100000}));
  EXPECT_EQ(0, ways({.kind = KernelKind::softmax, .traits = {}, .vocab = 100000}));
  EXPECT_FALSE(sampling::takes_few_passes({.traits = {.top_p = true}, .vocab = 100000}, cuda::example_device(80).shared_per_block,
                                          SamplingChoice::few));
}

}  // namespace
}  // namespace girih
