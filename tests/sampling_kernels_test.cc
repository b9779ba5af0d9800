// The sampling kernels under the emulator, against the CPU backend: the same bits but for logarithms. Clusters of one and several blocks,
// lists large and small, so that every way to a cut is taken: sampled brackets, histograms, ties over many tiles.
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
#include "sampling/speculative.cuh"
#include "sampling/top_k.cuh"

namespace girih {
namespace {

using emulator::as_probs;
using emulator::cpu;
using emulator::kType;
using emulator::launch;
using emulator::near;
using emulator::Rows;
using sampling::Config;
using sampling::RowKind;

constexpr Config kSmall{1024, 8192, 2, 1024};
constexpr Config kLarge{8192, 16384, 4, 2048};
constexpr int kSlots = 7;

template <typename T>
Rows<T> odd_rows(std::int64_t vocab, unsigned seed, std::int64_t gap = 0, std::int64_t step = 1) {
  return emulator::odd_rows<T, 9>(vocab, seed, gap, step);
}

/// What sample() writes.
struct Results {
  std::vector<std::int32_t> tokens, top;
  std::vector<std::uint8_t> valid;
  std::vector<float> logprobs, top_logprobs;
  explicit Results(std::size_t rows, std::size_t n = 5)
      : tokens(rows, -7), top(rows * n, -7), valid(rows, 9), logprobs(rows, 7), top_logprobs(rows * n, 7) {}
  void give(SampleArgs& args, bool with_logprobs) {
    const auto rows = std::ssize(tokens);
    args.tokens = TensorView(tokens.data(), DType::i32, {rows});
    args.valid = TensorView(valid.data(), DType::u8, {rows});
    if (!with_logprobs) return;
    args.logprobs = TensorView(logprobs.data(), DType::f32, {rows});
    args.top_tokens = TensorView(top.data(), DType::i32, {rows, std::ssize(top) / rows});
    args.top_logprobs = TensorView(top_logprobs.data(), DType::f32, {rows, std::ssize(top) / rows});
  }
};

template <Config kConfig, typename T, sampling::Traits kTraits>
void sample_kernel(abi::SampleParams p) {
  sampling::run_sample<kConfig, T, kTraits>(p, kSlots);
}
/// The kernel that the library would make for the call.
template <Config kConfig, typename T, bool kProbs, bool kEdits, bool kMasked>
auto kernel_for(const abi::SampleParams& p) -> void (*)(abi::SampleParams) {
  const sampling::SampleTraits t = sampling::traits_of(p);
  using sampling::Traits;
  if (t.first) return sample_kernel<kConfig, T, Traits{kProbs, kEdits, kMasked, true, true, true, false}>;
  if (t.top_k && t.top_p) return sample_kernel<kConfig, T, Traits{kProbs, kEdits, kMasked, true, true, false, false}>;
  if (t.top_k) return sample_kernel<kConfig, T, Traits{kProbs, kEdits, kMasked, true, false, false, false}>;
  if (t.top_p) return sample_kernel<kConfig, T, Traits{kProbs, kEdits, kMasked, false, true, false, false}>;
  return sample_kernel<kConfig, T, Traits{kProbs, kEdits, kMasked, false, false, false, false}>;
}
template <Config kConfig, typename T, RowKind kKind>
void rows_kernel(abi::SampleParams p) {
  sampling::run_rows<kConfig, T, kKind, false>(p, kSlots);
}
template <Config kConfig, typename T>
void top_k_kernel(abi::TopKParams p) {
  sampling::run_top_k<kConfig, T, false>(p, kSlots);
}
template <Config kConfig, typename T>
void speculative_kernel(abi::SpeculativeParams p) {
  sampling::run_speculative<kConfig, T>(p, kSlots);
}

template <Config kConfig, typename T, bool kEdits>
emulator::LaunchOptions options(std::int64_t rows, int cluster, std::uint64_t seed) {
  return {.num_blocks = static_cast<int>(rows) * cluster,
          .num_threads = sampling::kThreads,
          .shared_bytes = sampling::Layout<kConfig, T, kEdits>::kSlots + kSlots * kConfig.tile_bytes,
          .seed = seed,
          .cluster_size = cluster};
}

template <Config kConfig, typename T, bool kProbs, bool kEdits = false, bool kMasked = false>
void check_sample(SampleArgs args, int cluster, bool with_logprobs = false, std::uint64_t seed = 0) {
  const std::int64_t rows = args.indices.rank != 0 ? args.indices.shape[0] : args.input.shape[0];
  args.kind = kProbs ? SampleInput::probs : SampleInput::logits;
  Results want(static_cast<std::size_t>(rows)), got(static_cast<std::size_t>(rows));
  want.give(args, with_logprobs);
  sample(cpu(), args);
  got.give(args, with_logprobs);
  const abi::SampleParams p = sampling::check_sample(cpu(), args);
  launch(kernel_for<kConfig, T, kProbs, kEdits, kMasked>(p), p, options<kConfig, T, kEdits>(rows, cluster, seed));
  ASSERT_EQ(want.valid, got.valid);
  ASSERT_EQ(want.tokens, got.tokens);
  if (!with_logprobs) return;
  ASSERT_EQ(want.top, got.top);
  for (std::size_t i = 0; i < want.logprobs.size(); ++i)
    ASSERT_TRUE(near(want.logprobs[i], got.logprobs[i])) << i << ": " << got.logprobs[i] << ", want " << want.logprobs[i];
  for (std::size_t i = 0; i < want.top_logprobs.size(); ++i)
    ASSERT_TRUE(near(want.top_logprobs[i], got.top_logprobs[i])) << i << ": " << got.top_logprobs[i] << ", want " << want.top_logprobs[i];
}

template <Config kConfig, typename T, bool kProbs>
void check_filters(std::int64_t vocab, int cluster, std::int64_t gap, std::int64_t step, bool with_logprobs) {
  Rows<T> rows = odd_rows<T>(vocab, static_cast<unsigned>(vocab), gap, step);
  if (kProbs) rows = as_probs(rows);
  std::int64_t number = 0;
  for (const emulator::Filters& f : emulator::kFilters) {
    SampleArgs args = emulator::args_of<T, kProbs>(rows, f, number++);
    args.logprob_kind = number % 2 == 0 ? LogprobKind::filtered : LogprobKind::processed;
    SCOPED_TRACE(emulator::describe(f, vocab, cluster, kProbs));
    check_sample<kConfig, T, kProbs>(args, cluster, with_logprobs, number % 4 == 1 ? 5 : 0);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(SamplingKernels, TinyRows) {
  for (const std::int64_t vocab : {1, 2, 5, 31, 33}) {
    check_filters<kSmall, float, false>(vocab, 1, 1, 1, true);
    check_filters<kSmall, bf16, true>(vocab, 1, 3, 1, true);
  }
}
TEST(SamplingKernels, OneBlockOfManyTiles) { check_filters<kSmall, float, false>(21013, 1, 0, 1, false); }
TEST(SamplingKernels, OneBlockOfManyTilesWithLogprobs) { check_filters<kSmall, float, false>(13001, 1, 2, 1, true); }
TEST(SamplingKernels, ClusterOfProbabilities) { check_filters<kSmall, float, true>(30001, 4, 0, 1, false); }
TEST(SamplingKernels, ClusterOfHalves) { check_filters<kLarge, f16, false>(40000, 2, 0, 1, true); }
TEST(SamplingKernels, LargeListAndAnyStride) { check_filters<kLarge, bf16, true>(9001, 1, 1, 2, false); }
TEST(SamplingKernels, MoreBlocksThanTiles) { check_filters<kLarge, float, false>(6000, 8, 0, 1, true); }

TEST(SamplingKernels, BiasPenaltiesMaskAndIndices) {
  constexpr std::int64_t kVocab = 9005, kRows = 6;
  std::mt19937 random(2);
  std::vector<std::int32_t> indices{3, 0, 0, 2, 1, 4}, indptr{0}, tokens, counts, bias_indptr{0}, bias_tokens;
  std::vector<float> bias, repetition, frequency, presence, temperature{1, 0.5F, 0, 2, 1e-6F, 0.9F}, top_p{1, 0.9F, 1, 0.5F, 1, 0.95F};
  std::vector<std::int64_t> top_k{0, 50, 1, 0, 7, 2000}, seeds{5, 6, 7, 8, 9, 10};
  std::vector<std::int32_t> allowed(static_cast<std::size_t>(kRows * ((kVocab + 31) / 32)));
  for (std::int32_t& word : allowed) word = static_cast<std::int32_t>(random() | random());
  for (std::size_t r = 0; r < kRows; ++r) {
    std::vector<std::int32_t> all(kVocab);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    std::shuffle(all.begin(), all.end(), random);
    for (std::size_t i = 0; i < r * 20; ++i) {
      bias_tokens.push_back(all[i]);
      bias.push_back(i % 7 == 0 ? -kInfinity : static_cast<float>(random() % 100) / 20);
    }
    std::shuffle(all.begin(), all.end(), random);
    for (std::size_t i = 0; i < r * 500; ++i) {  // more than a thread keeps in registers
      tokens.push_back(all[i]);
      counts.push_back(static_cast<std::int32_t>(random() % 4));
    }
    bias_indptr.push_back(static_cast<std::int32_t>(bias.size()));
    indptr.push_back(static_cast<std::int32_t>(tokens.size()));
    repetition.push_back(1 + 0.1F * static_cast<float>(r));
    frequency.push_back(0.3F * static_cast<float>(r) - 0.5F);
    presence.push_back(0.7F - 0.2F * static_cast<float>(r));
  }
  const auto vector = [](auto& v, DType type) { return TensorView(v.data(), type, {std::ssize(v)}); };
  const auto check = [&]<typename T, bool kMasked>(int cluster) {
    Rows<T> rows(5, kVocab, 3);
    for (std::int64_t r = 0; r < 5; ++r) {
      for (std::int64_t i = 0; i < kVocab; ++i) rows.set(r, i, std::normal_distribution<float>(0, 2)(random));
    }
    SampleArgs args;
    args.input = rows.view();
    args.indices = vector(indices, DType::i32);
    args.bias_tokens = {vector(bias_indptr, DType::i32), vector(bias_tokens, DType::i32)};
    args.bias = vector(bias, DType::f32);
    args.history = {vector(indptr, DType::i32), vector(tokens, DType::i32)};
    args.history_counts = vector(counts, DType::i32);
    args.repetition_penalty = vector(repetition, DType::f32);
    args.frequency_penalty = vector(frequency, DType::f32);
    args.presence_penalty = vector(presence, DType::f32);
    args.temperature = vector(temperature, DType::f32);
    args.top_k = vector(top_k, DType::i64);
    args.top_p = vector(top_p, DType::f32);
    args.random.seed = vector(seeds, DType::i64);
    if (kMasked) args.allowed = TensorView(allowed.data(), DType::i32, {kRows, (kVocab + 31) / 32});
    for (std::int64_t step = 0; step < 3; ++step) {
      args.random.offset = step;
      check_sample<kSmall, T, false, true, kMasked>(args, cluster, step == 2, step == 1 ? 3 : 0);
    }
    args.bias_tokens = args.history = {};
    args.bias = args.history_counts = {};
    if (kMasked) check_sample<kSmall, T, false, false, kMasked>(args, cluster, true);
  };
  check.operator()<float, true>(1);
  check.operator()<bf16, true>(2);
  check.operator()<f16, false>(3);
}

/// What a CUDA device cannot check does no harm.
TEST(SamplingKernels, WildListsIndicesAndParametersAreRead) {
  Rows<float> rows = odd_rows<float>(500, 1);
  std::vector<std::int32_t> tokens(3, -7), indptr{0, 3, 2, 9000}, list{-5, 500, 1 << 30, 7}, indices{0, -1, 99};
  std::vector<float> temperature{NAN, 1, -3}, top_p{NAN, -1, 2};
  SampleArgs args;
  args.input = TensorView(rows.memory.data(), DType::f32, {3, 500});
  args.tokens = TensorView(tokens.data(), DType::i32, {3});
  abi::SampleParams p = sampling::check_sample(cpu(), args);
  p.history.indptr = {.rows = indptr.data(), .stride = 1, .value = 0, .is_64 = 0};
  p.history.tokens = list.data();
  p.history.n = 4;
  p.repetition.value = 1.5F;
  p.indices = {.rows = indices.data(), .stride = 1, .value = 0, .is_64 = 0};
  p.temperature = {.rows = temperature.data(), .stride = 1, .value = 0};
  p.top_p = {.rows = top_p.data(), .stride = 1, .value = 0};
  p.input.num_rows = 3;
  launch(kernel_for<kSmall, float, false, true, false>(p), p, options<kSmall, float, true>(3, 1, 0));
  EXPECT_TRUE(tokens[0] >= 0 && tokens[0] < 500);
  EXPECT_EQ(0, tokens[1]);
  EXPECT_EQ(0, tokens[2]);
}

template <Config kConfig, typename T, RowKind kKind>
void check_rows(Rows<T> rows, int cluster, float temperature, float top_p, std::int64_t top_k, std::int64_t out_gap) {
  constexpr bool kMask = kKind == RowKind::top_k_mask;
  const std::int64_t item = kMask ? static_cast<std::int64_t>(sizeof(T)) : 4;
  const std::int64_t stride = rows.vocab + out_gap;
  std::vector<unsigned char> want(static_cast<std::size_t>(rows.rows * stride * item), 0xa5);
  std::vector<unsigned char> got = want;
  const TensorView want_view(want.data(), kMask ? kType<T> : DType::f32, {rows.rows, rows.vocab}, {stride, 1});
  TensorView got_view = want_view;
  got_view.data = got.data();
  const TensorView in = rows.view();
  if (kKind == RowKind::softmax) softmax(cpu(), in, temperature, want_view);
  if (kKind == RowKind::top_p_renorm) top_p_renorm_probs(cpu(), in, top_p, want_view);
  if (kKind == RowKind::top_k_renorm) top_k_renorm_probs(cpu(), in, top_k, want_view);
  if (kKind == RowKind::top_k_mask) top_k_mask_logits(cpu(), in, top_k, want_view);
  abi::SampleParams p = sampling::check_rows(cpu(), {"test", "input", in, got_view, false, kMask, nullptr});
  p.temperature.value = temperature;
  p.top_p.value = top_p;
  p.top_k.value = top_k;
  launch(rows_kernel<kConfig, T, kKind>, p, options<kConfig, T, false>(rows.rows, cluster, 0));
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    for (std::int64_t i = 0; i < rows.vocab; ++i) {
      const std::size_t at = static_cast<std::size_t>((r * stride + i) * item);
      ASSERT_EQ(0, std::memcmp(want.data() + at, got.data() + at, static_cast<std::size_t>(item)))
          << "row " << r << " entry " << i << " in " << rows.get(r, i);
    }
  }
  ASSERT_EQ(want, got);
}

TEST(SamplingKernels, RowsForRowsAreTheCpusBits) {
  for (const std::int64_t vocab : {1, 37, 12000}) {
    const int cluster = vocab > 1000 ? 2 : 1;
    for (const std::int64_t gap : {0, 1}) {
      check_rows<kSmall, float, RowKind::softmax>(odd_rows<float>(vocab, 4), cluster, 0.7F, 1, 0, gap);
      check_rows<kSmall, bf16, RowKind::softmax>(odd_rows<bf16>(vocab, 4), 1, 0, 1, 0, gap);
      check_rows<kSmall, float, RowKind::top_p_renorm>(as_probs(odd_rows<float>(vocab, 5)), cluster, 1, 0.8F, 0, gap);
      check_rows<kSmall, float, RowKind::top_p_renorm>(odd_rows<float>(vocab, 5), 1, 1, 1, 0, gap);
      check_rows<kSmall, f16, RowKind::top_k_renorm>(as_probs(odd_rows<f16>(vocab, 6)), cluster, 1, 1, 30, gap);
      check_rows<kSmall, float, RowKind::top_k_mask>(odd_rows<float>(vocab, 7), cluster, 1, 1, 3000, gap);
      check_rows<kSmall, bf16, RowKind::top_k_mask>(odd_rows<bf16>(vocab, 7), 1, 1, 1, 5, gap);
    }
  }
}

TEST(SamplingKernels, SoftmaxInPlace) {
  Rows<float> rows = odd_rows<float>(30000, 4);
  Rows<float> want = rows;
  softmax(cpu(), rows.view(), 1.0F, want.view());
  abi::SampleParams p = sampling::check_rows(cpu(), {"test", "input", rows.view(), rows.view(), false, false, nullptr});
  launch(rows_kernel<kSmall, float, RowKind::softmax>, p, options<kSmall, float, false>(9, 2, 0));
  EXPECT_EQ(0, std::memcmp(want.memory.data(), rows.memory.data(), want.memory.size() * 4));
}

template <Config kConfig, typename T>
void check_top_k(std::int64_t vocab, std::int64_t k, bool sorted, int cluster) {
  SCOPED_TRACE(testing::Message() << "vocab " << vocab << " k " << k << " sorted " << sorted << " cluster " << cluster);
  Rows<T> rows = odd_rows<T>(vocab, static_cast<unsigned>(k), 1);
  std::vector<std::int64_t> want(static_cast<std::size_t>(9 * k)), got(want);
  std::vector<T> want_values(want.size()), got_values(want.size());
  std::vector<std::int32_t> starts(9), lengths(9), offsets(9);
  for (std::size_t r = 0; r < 9; ++r) {
    starts[r] = static_cast<std::int32_t>(vocab) * static_cast<std::int32_t>(r % 3) / 7;
    lengths[r] = r == 2 ? 0 : (static_cast<std::int32_t>(vocab) - starts[r]) * (r % 4 == 1 ? 1 : 2) / 2;
    offsets[r] = 100 * static_cast<std::int32_t>(r);
  }
  TopKArgs args;
  args.input = rows.view();
  args.k = k;
  args.sorted = sorted;
  args.row_starts = TensorView(starts.data(), DType::i32, {9});
  args.row_lengths = TensorView(lengths.data(), DType::i32, {9});
  args.index_offsets = TensorView(offsets.data(), DType::i32, {9});
  args.indices = TensorView(want.data(), DType::i64, {9, k});
  args.values = TensorView(want_values.data(), kType<T>, {9, k});
  top_k(cpu(), args);
  args.indices.data = got.data();
  args.values.data = got_values.data();
  launch(top_k_kernel<kConfig, T>, sampling::check_top_k(cpu(), args), options<kConfig, T, false>(9, cluster, 0));
  for (std::size_t i = 0; i < want.size(); ++i)
    ASSERT_EQ(want[i], got[i]) << "row " << i / static_cast<std::size_t>(k) << " place " << i % static_cast<std::size_t>(k);
  ASSERT_EQ(0, std::memcmp(want_values.data(), got_values.data(), want.size() * sizeof(T)));
}

TEST(SamplingKernels, TopKIsTheCpus) {
  check_top_k<kSmall, float>(3, 5, true, 1);
  check_top_k<kSmall, float>(900, 1000, false, 1);
  check_top_k<kSmall, float>(20000, 50, true, 2);
  check_top_k<kSmall, bf16>(20000, 700, false, 1);
  check_top_k<kLarge, float>(30000, 4096, true, 4);
  check_top_k<kLarge, f16>(30000, 2048, false, 1);
}

TEST(SamplingKernels, SpeculativeChainsAreTheCpus) {
  constexpr std::int64_t kBatch = 6, kN = 3, kVocab = 5001;
  for (const int kind : {0, 1, 2, 3}) {  // drafts with probabilities, equal ones, certain, greedy
    Rows<float> target(kBatch * (kN + 1), kVocab), draft(kBatch * kN, kVocab);
    std::mt19937 random(static_cast<unsigned>(kind));
    for (Rows<float>* rows : {&target, &draft}) {
      for (std::int64_t r = 0; r < rows->rows; ++r) {
        for (std::int64_t i = 0; i < kVocab; ++i) rows->set(r, i, 3 * std::normal_distribution<float>()(random));
      }
      *rows = as_probs(*rows);
    }
    std::vector<std::int32_t> tokens(kBatch * kN), lengths{3, 0, 2, 3, 1, 3}, want(kBatch * (kN + 1)), got(want), want_accepted(kBatch),
        got_accepted(kBatch);
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t i = 0; i < kN; ++i) {
        if (kind == 1) {
          for (std::int64_t v = 0; v < kVocab; ++v) draft.set(b * kN + i, v, target.get(b * (kN + 1) + i, v));
        }
        std::int64_t best = 0;
        for (std::int64_t v = 0; v < kVocab; ++v) best = draft.get(b * kN + i, v) > draft.get(b * kN + i, best) ? v : best;
        if (kind >= 2 && random() % 4 != 0) {
          best = 0;
          for (std::int64_t v = 0; v < kVocab; ++v) best = target.get(b * (kN + 1) + i, v) > target.get(b * (kN + 1) + i, best) ? v : best;
        }
        tokens[static_cast<std::size_t>(b * kN + i)] = static_cast<std::int32_t>(best);
      }
    }
    SpeculativeArgs args;
    if (kind < 2) args.draft_probs = TensorView(draft.memory.data(), DType::f32, {kBatch, kN, kVocab});
    args.target_probs = TensorView(target.memory.data(), DType::f32, {kBatch, kN + 1, kVocab});
    args.draft_tokens = TensorView(tokens.data(), DType::i32, {kBatch, kN});
    args.draft_lengths = TensorView(lengths.data(), DType::i32, {kBatch});
    args.greedy = kind == 3;
    for (std::int64_t step = 0; step < 3; ++step) {
      args.random = {.seed = 11, .offset = step};
      args.tokens = TensorView(want.data(), DType::i32, {kBatch, kN + 1});
      args.accepted = TensorView(want_accepted.data(), DType::i32, {kBatch});
      chain_speculative_sample(cpu(), args);
      args.tokens.data = got.data();
      args.accepted.data = got_accepted.data();
      launch(speculative_kernel<kSmall, float>, sampling::check_speculative(cpu(), args),
             options<kSmall, float, false>(kBatch, step == 1 ? 2 : 1, 0));
      ASSERT_EQ(want, got) << kind;
      ASSERT_EQ(want_accepted, got_accepted) << kind;
    }
  }
}

}  // namespace
}  // namespace girih
