// The kernels of rows that stay in shared memory, under the emulator, against the CPU backend: the same bits but for logarithms. Clusters
// of one and several blocks, with and without a sample; rows whose cuts the sample misses, and ones with many ties.
// ctest: shards=2
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/sampling_rows.h"
#include "girih/sampling.h"
#include "sampling/check.h"
#include "sampling/resident_rows.cuh"
#include "sampling/sampling_cuda.h"

namespace girih {
namespace {

using emulator::as_probs;
using emulator::cpu;
using emulator::kType;
using emulator::launch;
using emulator::near;
using emulator::Rows;
using sampling::RowKind;
using sampling::Traits;

constexpr std::int64_t kKinds = 10;

template <typename T>
Rows<T> odd_rows(std::int64_t vocab, unsigned seed, std::int64_t gap = 0, std::int64_t step = 1) {
  return emulator::odd_rows<T, kKinds>(vocab, seed, gap, step);
}

template <typename T, Traits kTraits>
void sample_kernel(abi::SampleParams p) {
  sampling::run_resident_sample<T, kTraits>(p);
}
/// The kernel that the library would make for the call.
template <typename T, bool kProbs, bool kEdits, bool kMasked>
auto kernel_for(const abi::SampleParams& p) -> void (*)(abi::SampleParams) {
  const sampling::SampleTraits t = sampling::traits_of(p);
  if (t.top_k && t.top_p) return sample_kernel<T, Traits{kProbs, kEdits, kMasked, true, true, false, false}>;
  if (t.top_k) return sample_kernel<T, Traits{kProbs, kEdits, kMasked, true, false, false, false}>;
  if (t.top_p) return sample_kernel<T, Traits{kProbs, kEdits, kMasked, false, true, false, false}>;
  return sample_kernel<T, Traits{kProbs, kEdits, kMasked, false, false, false, false}>;
}

emulator::LaunchOptions options(std::int64_t rows, std::int64_t vocab, std::int64_t item, int cluster, std::uint64_t seed = 0) {
  const std::int64_t groups = (vocab * item + 16 + 511) / 512;
  return {.num_blocks = static_cast<int>(rows) * cluster,
          .num_threads = sampling::kThreads,
          .shared_bytes = sampling::kResidentFixed + (groups + cluster - 1) / cluster * 512,
          .seed = seed,
          .cluster_size = cluster};
}

template <typename T, bool kProbs, bool kEdits = false, bool kMasked = false>
void check_sample(SampleArgs args, int cluster, std::uint64_t seed) {
  const auto rows = static_cast<std::size_t>(args.indices.rank != 0 ? args.indices.shape[0] : args.input.shape[0]);
  args.kind = kProbs ? SampleInput::probs : SampleInput::logits;
  std::vector<std::int32_t> want(rows, -7), got(want);
  std::vector<std::uint8_t> want_valid(rows, 9), got_valid(want_valid);
  std::vector<float> want_log(rows, 7), got_log(want_log);
  const auto give = [&](auto& tokens, auto& valid, auto& logs) {
    args.tokens = TensorView(tokens.data(), DType::i32, {std::ssize(tokens)});
    args.valid = TensorView(valid.data(), DType::u8, {std::ssize(tokens)});
    args.logprobs = seed % 2 == 0 ? TensorView(logs.data(), DType::f32, {std::ssize(tokens)}) : TensorView{};
  };
  give(want, want_valid, want_log);
  sample(cpu(), args);
  give(got, got_valid, got_log);
  const abi::SampleParams p = sampling::check_sample(cpu(), args);
  launch(kernel_for<T, kProbs, kEdits, kMasked>(p), p, options(static_cast<std::int64_t>(rows), p.vocab, sizeof(T), cluster, seed));
  ASSERT_EQ(want, got);
  ASSERT_EQ(want_valid, got_valid);
  for (std::size_t i = 0; i < rows; ++i) ASSERT_TRUE(near(want_log[i], got_log[i])) << i << ": " << got_log[i] << ", want " << want_log[i];
}

template <typename T, bool kProbs>
void check_filters(std::int64_t vocab, int cluster, std::int64_t gap = 0, std::int64_t step = 1) {
  Rows<T> rows = odd_rows<T>(vocab, static_cast<unsigned>(vocab), gap, step);
  if (kProbs) rows = as_probs(rows);
  std::uint64_t number = 0;
  for (const emulator::Filters& f : emulator::kFilters) {
    SampleArgs args = emulator::args_of<T, kProbs>(rows, f, static_cast<std::int64_t>(number));
    args.logprob_kind = number % 4 == 0 ? LogprobKind::filtered : LogprobKind::processed;
    SCOPED_TRACE(emulator::describe(f, vocab, cluster, kProbs));
    check_sample<T, kProbs>(args, cluster, number++);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(SamplingResident, TinyRows) {
  for (const std::int64_t vocab : {1, 2, 5, 31, 33}) {
    check_filters<float, false>(vocab, 1, 1);
    check_filters<bf16, true>(vocab, 2, 3);
  }
}
TEST(SamplingResident, OneBlock) { check_filters<float, false>(20013, 1); }
TEST(SamplingResident, Probabilities) { check_filters<float, true>(30001, 4); }
TEST(SamplingResident, Halves) { check_filters<f16, false>(40000, 2); }
TEST(SamplingResident, HalvesOfProbabilities) { check_filters<bf16, true>(24001, 2, 1); }
TEST(SamplingResident, AnyStride) { check_filters<bf16, false>(17001, 1, 1, 2); }
TEST(SamplingResident, LargestCluster) { check_filters<float, false>(24000, 8); }
TEST(SamplingResident, WithoutASample) { check_filters<float, true>(9001, 4, 3); }

TEST(SamplingResident, BiasPenaltiesMaskAndIndices) {
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
    for (std::size_t i = 0; i < r * 500; ++i) {
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
  Rows<float> rows(5, kVocab, 3);
  Rows<bf16> halves(5, kVocab, 3);
  for (std::int64_t r = 0; r < 5; ++r) {
    for (std::int64_t i = 0; i < kVocab; ++i) {
      const float x = random() % 1000 == 0 ? NAN : std::normal_distribution<float>(0, 2)(random);
      rows.set(r, i, x);
      halves.set(r, i, x);
    }
  }
  SampleArgs args;
  args.indices = vector(indices, DType::i32);
  args.temperature = vector(temperature, DType::f32);
  args.top_k = vector(top_k, DType::i64);
  args.top_p = vector(top_p, DType::f32);
  args.random.seed = vector(seeds, DType::i64);
  args.allowed = TensorView(allowed.data(), DType::i32, {kRows, (kVocab + 31) / 32});
  for (const int cluster : {1, 2, 8}) {
    args.random.offset = cluster;
    args.input = halves.view();
    check_sample<bf16, false, false, true>(args, cluster, 2);
    args.input = rows.view();
    check_sample<float, false, false, true>(args, cluster, 4);
  }
  args.bias_tokens = {vector(bias_indptr, DType::i32), vector(bias_tokens, DType::i32)};
  args.bias = vector(bias, DType::f32);
  args.history = {vector(indptr, DType::i32), vector(tokens, DType::i32)};
  args.history_counts = vector(counts, DType::i32);
  args.repetition_penalty = vector(repetition, DType::f32);
  args.frequency_penalty = vector(frequency, DType::f32);
  args.presence_penalty = vector(presence, DType::f32);
  for (const int cluster : {1, 4}) {
    args.random.offset = 10 + cluster;
    check_sample<float, false, true, true>(args, cluster, 6);
  }
  args.allowed = {};
  check_sample<float, false, true, false>(args, 2, 8);
}

template <typename T, RowKind kKind>
void rows_kernel(abi::SampleParams p) {
  sampling::run_resident_rows<T, kKind>(p);
}

template <typename T, RowKind kKind>
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
  launch(rows_kernel<T, kKind>, p, options(rows.rows, rows.vocab, sizeof(T), cluster));
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    for (std::int64_t i = 0; i < rows.vocab; ++i) {
      const std::size_t at = static_cast<std::size_t>((r * stride + i) * item);
      ASSERT_EQ(0, std::memcmp(want.data() + at, got.data() + at, static_cast<std::size_t>(item)))
          << "row " << r << " entry " << i << " in " << rows.get(r, i);
    }
  }
  ASSERT_EQ(want, got);
}

TEST(SamplingResident, RowsForRowsAreTheCpusBits) {
  for (const std::int64_t vocab : {1, 37, 18000}) {
    const int cluster = vocab > 1000 ? 4 : 1;
    for (const std::int64_t gap : {0, 1}) {
      check_rows<float, RowKind::softmax>(odd_rows<float>(vocab, 4), cluster, 0.7F, 1, 0, gap);
      check_rows<float, RowKind::softmax>(odd_rows<float>(vocab, 4, 1), 2, 0.02F, 1, 0, gap);
      check_rows<bf16, RowKind::softmax>(odd_rows<bf16>(vocab, 4), cluster, 1.3F, 1, 0, gap);
      check_rows<bf16, RowKind::softmax>(odd_rows<bf16>(vocab, 4), 1, 0, 1, 0, gap);
      check_rows<float, RowKind::top_p_renorm>(as_probs(odd_rows<float>(vocab, 5)), cluster, 1, 0.8F, 0, gap);
      check_rows<float, RowKind::top_p_renorm>(odd_rows<float>(vocab, 5), 1, 1, 1, 0, gap);
      check_rows<float, RowKind::top_p_renorm>(odd_rows<float>(vocab, 5), 1, 1, 0.7F, 0, gap);
      check_rows<f16, RowKind::top_k_renorm>(as_probs(odd_rows<f16>(vocab, 6)), cluster, 1, 1, 30, gap);
      check_rows<float, RowKind::top_k_mask>(odd_rows<float>(vocab, 7), cluster, 1, 1, 3000, gap);
      check_rows<bf16, RowKind::top_k_mask>(odd_rows<bf16>(vocab, 7), 1, 1, 1, 5, gap);
    }
  }
}

TEST(SamplingResident, SoftmaxInPlace) {
  Rows<float> rows = odd_rows<float>(30000, 4);
  Rows<float> want = rows;
  softmax(cpu(), rows.view(), 1.0F, want.view());
  abi::SampleParams p = sampling::check_rows(cpu(), {"test", "input", rows.view(), rows.view(), false, false, nullptr});
  launch(rows_kernel<float, RowKind::softmax>, p, options(kKinds, 30000, 4, 2));
  EXPECT_EQ(0, std::memcmp(want.memory.data(), rows.memory.data(), want.memory.size() * 4));
}

template <typename T>
void top_k_kernel(abi::TopKParams p) {
  sampling::run_resident_top_k<T>(p);
}
template <typename T>
void check_top_k(std::int64_t vocab, std::int64_t k, bool sorted, int cluster) {
  SCOPED_TRACE(testing::Message() << "vocab " << vocab << " k " << k << " sorted " << sorted << " cluster " << cluster);
  Rows<T> rows = odd_rows<T>(vocab, static_cast<unsigned>(k), 1);
  constexpr auto kRows = static_cast<std::size_t>(kKinds);
  std::vector<std::int64_t> want(kRows * static_cast<std::size_t>(k)), got(want);
  std::vector<T> want_values(want.size()), got_values(want.size());
  std::vector<std::int32_t> starts(kRows), lengths(kRows), offsets(kRows);
  for (std::size_t r = 0; r < kRows; ++r) {
    starts[r] = static_cast<std::int32_t>(vocab) * static_cast<std::int32_t>(r % 3) / 7;
    lengths[r] = r == 2 ? 0 : (static_cast<std::int32_t>(vocab) - starts[r]) * (r % 4 == 1 ? 1 : 2) / 2;
    offsets[r] = 100 * static_cast<std::int32_t>(r);
  }
  TopKArgs args;
  args.input = rows.view();
  args.k = k;
  args.sorted = sorted;
  args.row_starts = TensorView(starts.data(), DType::i32, {kKinds});
  args.row_lengths = TensorView(lengths.data(), DType::i32, {kKinds});
  args.index_offsets = TensorView(offsets.data(), DType::i32, {kKinds});
  args.indices = TensorView(want.data(), DType::i64, {kKinds, k});
  args.values = TensorView(want_values.data(), kType<T>, {kKinds, k});
  top_k(cpu(), args);
  args.indices.data = got.data();
  args.values.data = got_values.data();
  launch(top_k_kernel<T>, sampling::check_top_k(cpu(), args), options(kKinds, vocab, sizeof(T), cluster));
  for (std::size_t i = 0; i < want.size(); ++i)
    ASSERT_EQ(want[i], got[i]) << "row " << i / static_cast<std::size_t>(k) << " place " << i % static_cast<std::size_t>(k);
  ASSERT_EQ(0, std::memcmp(want_values.data(), got_values.data(), want.size() * sizeof(T)));
}

TEST(SamplingResident, TopKIsTheCpus) {
  check_top_k<float>(3, 5, true, 1);
  check_top_k<float>(900, 1000, false, 1);
  check_top_k<float>(20000, 50, true, 2);
  check_top_k<float>(20000, 50, false, 4);
  check_top_k<bf16>(20000, 700, false, 1);
  check_top_k<float>(30000, 1024, true, 4);
  check_top_k<f16>(30000, 129, true, 2);
}

TEST(SamplingResident, ShapesHoldTheirRows) {
  const cuda::DeviceInfo info = cuda::example_device(90);
  using sampling::KernelKind;
  for (const std::int64_t vocab : {1, 4096, 128256, 200000}) {
    for (const std::int64_t rows : {1, 16, 128, 4096}) {
      for (const DType type : {DType::f32, DType::bf16}) {
        const sampling::ResidentShape shape = sampling::resident_shape(info, KernelKind::softmax, type, {}, rows, vocab);
        ASSERT_GT(shape.cluster, 0) << vocab;
        EXPECT_LE(2 * (shape.shared_bytes + 1024), info.shared_per_sm) << vocab;
        EXPECT_GE((shape.shared_bytes - sampling::kResidentFixed) * shape.cluster, vocab * (type == DType::f32 ? 4 : 2)) << vocab;
      }
    }
  }
  EXPECT_EQ(0, sampling::resident_shape(info, KernelKind::softmax, DType::f32, {}, 1, 1000000).cluster);
  EXPECT_EQ(8, sampling::resident_shape(info, KernelKind::sample, DType::f32, {.top_p = true}, 16, 128256).cluster);
  EXPECT_EQ(0, sampling::resident_shape(info, KernelKind::sample, DType::f32, {.top_p = true}, 128, 128256).cluster);
  EXPECT_EQ(0, sampling::resident_shape(info, KernelKind::top_k, DType::f32, {}, 1, 1000, 2048).cluster);
  EXPECT_EQ(0, sampling::resident_shape(info, KernelKind::sample, DType::bf16, {.edits = true}, 1, 1000).cluster);
  EXPECT_EQ(0, sampling::resident_shape(cuda::example_device(80), KernelKind::softmax, DType::f32, {}, 1, 1000).cluster);
}

}  // namespace
}  // namespace girih
