// Top-p by one pass (kernels/sampling/nucleus.cuh) under the emulator: the CPU's tokens, for rows of every kind and clusters of one and
// several blocks; and that the rows it is for are done that way.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/sampling_rows.h"
#include "girih/sampling.h"
#include "sampling/check.h"
#include "sampling/sample.cuh"

namespace girih {
namespace {

using emulator::as_probs;
using emulator::cpu;
using emulator::launch;
using emulator::Rows;
using sampling::Nucleus;

constexpr sampling::Config kConfig{12288, 16384, 4, 2048, true};
constexpr int kSlots = 7;

template <bool kProbs, bool kEdits>
void any_way(abi::SampleParams p) {
  sampling::run_sample<kConfig, float, sampling::Traits{kProbs, kEdits, false, false, true, false, true}>(p, kSlots);
}
template <bool kProbs, bool kEdits>
void plain_any_way(abi::SampleParams p) {
  sampling::run_sample<kConfig, float, sampling::Traits{kProbs, kEdits, false, false, false, false, true}>(p, kSlots);
}
/// Token -1: the row is not for this way.
template <bool kProbs, bool kEdits>
void this_way(abi::SampleParams p) {
  const i64 r = ptx::block_idx() / ptx::cluster_size();
  if (ptx::thread_idx() == 0 && ptx::cluster_rank() == 0) p.tokens.set(r, 0, -1);
  sampling::sync_row();
  Nucleus<kProbs, kEdits> row(p.input.data + r * p.input.row_stride, p.vocab, p.temperature.at(r));
  if (p.top_p.at(r) < 1.0F) {
    row.run(p, r, p.top_p.at(r));
  } else {
    row.run_plain(p, r);
  }
}

std::vector<std::int32_t> run(void (*kernel)(abi::SampleParams), SampleArgs args, int cluster, std::uint64_t seed) {
  const std::int64_t rows = args.input.shape[0];
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows), -7);
  std::vector<std::uint8_t> valid(static_cast<std::size_t>(rows), 9);
  std::vector<float> logprobs(static_cast<std::size_t>(rows), 7), want_logprobs(logprobs);
  std::vector<std::int32_t> want(tokens);
  std::vector<std::uint8_t> want_valid(valid);
  args.tokens = TensorView(want.data(), DType::i32, {rows});
  args.valid = TensorView(want_valid.data(), DType::u8, {rows});
  args.logprobs = TensorView(want_logprobs.data(), DType::f32, {rows});
  sample(cpu(), args);
  args.tokens.data = tokens.data();
  args.valid.data = valid.data();
  args.logprobs.data = logprobs.data();
  launch(kernel, sampling::check_sample(cpu(), args),
         {.num_blocks = static_cast<int>(rows) * cluster,
          .num_threads = sampling::kThreads,
          .shared_bytes = sampling::Layout<kConfig, float, true>::kSlots + kSlots * kConfig.tile_bytes,
          .seed = seed,
          .cluster_size = cluster});
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    if (tokens[r] == -1) continue;
    EXPECT_EQ(want[r], tokens[r]) << "row " << r << " cluster " << cluster;
    EXPECT_EQ(want_valid[r], valid[r]) << "row " << r << " cluster " << cluster;
    EXPECT_TRUE(emulator::near(want_logprobs[r], logprobs[r])) << "row " << r << ": " << logprobs[r] << ", want " << want_logprobs[r];
  }
  return tokens;
}

TEST(SamplingNucleus, EveryKindOfRow) {
  std::uint64_t seed = 0;
  for (const std::int64_t vocab : {30001, 70003}) {
    Rows<float> logits = emulator::odd_rows<float, 10>(vocab, static_cast<unsigned>(vocab), vocab % 2);
    Rows<float> probs = as_probs(logits);
    probs.set(7, vocab / 3, INFINITY);
    probs.set(6, 5, 0.3F);
    SampleArgs args;
    for (const float top_p : {0.0F, 0.3F, 0.9F, 0.999F}) {
      for (const int cluster : {vocab < 50000 ? 1 : 8, 2}) {
        args.top_p = top_p;
        args.random = {.seed = 3, .offset = static_cast<std::int64_t>(seed)};
        args.logprob_kind = seed % 2 == 0 ? LogprobKind::filtered : LogprobKind::processed;
        args.kind = SampleInput::probs;
        args.input = probs.view();
        run(any_way<true, false>, args, cluster, seed++);
        args.kind = SampleInput::logits;
        args.input = logits.view();
        args.temperature = 0.7F;
        run(any_way<false, false>, args, cluster, seed++);
        if (top_p == 0.9F) {
          args.top_p = 1.0F;
          run(plain_any_way<false, false>, args, cluster, seed);
          args.temperature = 1.0F;
          args.kind = SampleInput::probs;
          args.input = probs.view();
          run(plain_any_way<true, false>, args, cluster, seed);
        }
        args.temperature = 1.0F;
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

/// Rows that sampling meets: Gaussian logits, a few tokens with nearly all, one with all, a long tail, most of them nothing, all nearly or
/// quite the same, two values, a few dozen; not a multiple of a chunk long, so that rows lie at every address.
TEST(SamplingNucleus, UsualRowsTakeOnePass) {
  constexpr std::int64_t kVocab = 50002, kRows = 9;
  Rows<float> rows(kRows, kVocab);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < kVocab; ++i) {
    const float x = normal(random);
    rows.set(0, i, x);
    rows.set(1, i, 3.5F * x);
    rows.set(2, i, i == 801 ? 30.0F : x);
    rows.set(3, i, std::fabs(x) < 0.2F ? 5 * x : std::copysign(1 / (0.3F + std::fabs(x)), x) * 4);
    rows.set(4, i, random() % 100 == 0 ? x : -kInfinity);
    rows.set(5, i, 0.1F * static_cast<float>(random() % 4096) / 4096);
    rows.set(6, i, 0.5F);
    rows.set(7, i, random() % 3 == 0 ? 1.0F : -1.0F);
    rows.set(8, i, std::round(x * 8) / 8);
  }
  Rows<float> probs = as_probs(rows);
  SampleArgs args;
  for (const float top_p : {0.5F, 0.9F, 0.97F, 1.0F}) {
    for (std::int64_t step = 0; step < 6; ++step) {
      args.top_p = top_p;
      args.random = {.seed = 11, .offset = step};
      args.kind = step < 3 ? SampleInput::probs : SampleInput::logits;
      args.input = step < 3 ? probs.view() : rows.view();
      args.temperature = step == 4 ? 0.8F : 1.0F;
      const auto kernel = step < 3 ? this_way<true, false> : this_way<false, false>;
      const std::vector<std::int32_t> tokens = run(kernel, args, step % 3 == 2 ? 2 : 1, step % 3 == 1 ? 4 : 0);
      for (std::size_t r = 0; r < tokens.size(); ++r) EXPECT_NE(-1, tokens[r]) << "row " << r << ", top-p " << top_p << " step " << step;
    }
  }
}

/// Rows of any spread, place and grain, with some large entries: whichever way blocks go, they agree, and come to the CPU's token.
TEST(SamplingNucleus, RandomRows) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int turn = 0; turn < 16; ++turn) {
    Rows<float> rows = emulator::rows_of_any_spread(3, turn, random, normal);
    Rows<float> probs = as_probs(rows);
    SampleArgs args;
    args.top_p = 1.0F - std::exp(-0.3F - 6 * std::fabs(normal(random)));
    args.random = {.seed = turn, .offset = 1};
    const int cluster = 1 << turn % 4;
    args.kind = SampleInput::probs;
    args.input = probs.view();
    run(this_way<true, false>, args, cluster, random() % 3);
    args.kind = SampleInput::logits;
    args.input = rows.view();
    args.temperature = 0.5F + 0.1F * static_cast<float>(random() % 10);
    run(this_way<false, false>, args, cluster, random() % 3);
    if (testing::Test::HasFailure()) FAIL() << "turn " << turn;
  }
}

/// Edits move the largest entries, which have the mass: each row has some that become the largest, and some that were.
TEST(SamplingNucleus, BiasAndPenalties) {
  constexpr std::int64_t kVocab = 33333, kRows = 5;
  Rows<float> rows(kRows, kVocab, 1);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t i = 0; i < kVocab; ++i) rows.set(r, i, (r == 3 ? 4.0F : 1.0F) * normal(random) + (r == 1 ? 0.2F : 0.0F));
  }
  rows.set(2, 100, 40.0F);
  std::vector<std::int32_t> indptr{0}, tokens, counts, bias_indptr{0}, bias_tokens;
  std::vector<float> bias;
  for (std::int32_t r = 0; r < kRows; ++r) {
    for (std::int32_t i = 0; i < 40 * r; ++i) {
      bias_tokens.push_back((i * 797 + r) % kVocab);
      bias.push_back(i % 5 == 0 ? -kInfinity : i % 7 == 0 ? 5.0F : 0.25F * static_cast<float>(i % 9));
    }
    for (std::int32_t i = 0; i < (r == 4 ? 600 : 90 * r); ++i) {
      tokens.push_back((i * 397 + 100) % kVocab);
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
  for (std::int64_t step = 0; step < 4; ++step) {
    args.top_p = step < 2 ? 0.9F : 0.6F;
    args.random = {.seed = 5, .offset = step};
    const int cluster = step % 2 == 1 ? 2 : 1;
    const std::vector<std::int32_t> got = run(this_way<false, true>, args, cluster, step == 3 ? 6 : 0);
    for (std::size_t r = 0; r < 4; ++r) EXPECT_NE(-1, got[r]) << "row " << r << " step " << step;
    EXPECT_EQ(-1, got[4]) << "more edits than there is room for";
    run(any_way<false, true>, args, cluster, 0);
    args.top_p = 1.0F;
    run(plain_any_way<false, true>, args, cluster, 0);
  }
}

void renorm_kernel(abi::SampleParams p) { sampling::run_rows<kConfig, float, sampling::RowKind::top_p_renorm, true>(p, kSlots); }
/// As if nothing else could write the row.
void renorm_this_way(abi::SampleParams p) {
  const i64 r = ptx::block_idx() / ptx::cluster_size();
  u8* out = p.out.data + r * p.out.row_stride;
  const auto write = [&](int position, const float(&y)[4]) {
    sampling::write_chunk<float, false>(p, out, position, y, [](int) { return 0.0F; });
  };
  Nucleus<true, false>(p.input.data + r * p.input.row_stride, p.vocab, 1.0F).renorm(p.top_p.at(r), write);
}
void check_renorm(void (*kernel)(abi::SampleParams), Rows<float> probs, int cluster, float top_p, std::int64_t gap, std::uint64_t seed) {
  const std::int64_t stride = probs.vocab + gap;
  std::vector<float> want(static_cast<std::size_t>(probs.rows * stride), 7), got(want);
  const auto view = [&](std::vector<float>& out) { return TensorView(out.data(), DType::f32, {probs.rows, probs.vocab}, {stride, 1}); };
  top_p_renorm_probs(cpu(), probs.view(), top_p, view(want));
  abi::SampleParams p = sampling::check_rows(cpu(), {"test", "input", probs.view(), view(got), false, false, nullptr});
  p.top_p.value = top_p;
  launch(kernel, p,
         {.num_blocks = static_cast<int>(probs.rows) * cluster,
          .num_threads = sampling::kThreads,
          .shared_bytes = sampling::Layout<kConfig, float, false>::kSlots + kSlots * kConfig.tile_bytes,
          .seed = seed,
          .cluster_size = cluster});
  for (std::size_t i = 0; i < want.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(want[i]), std::bit_cast<std::uint32_t>(got[i]))
        << "row " << i / static_cast<std::size_t>(stride) << " entry " << i % static_cast<std::size_t>(stride) << ": " << got[i]
        << ", want " << want[i];
}

/// Plain rows, ties all over the row, few ties, a peak, zeros; at any address, to rows that lie alike and otherwise.
TEST(SamplingNucleus, Renorm) {
  constexpr std::int64_t kVocab = 33334, kRows = 5;
  Rows<float> rows(kRows, kVocab);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < kVocab; ++i) {
    const float x = normal(random);
    rows.set(0, i, x);
    rows.set(1, i, 0.5F);
    rows.set(2, i, random() % 3 == 0 ? 1.0F : -1.0F);
    rows.set(3, i, std::round(x * 8) / 8);
    rows.set(4, i, random() % 100 == 0 ? x : -kInfinity);
  }
  const Rows<float> probs = as_probs(rows);
  check_renorm(renorm_this_way, probs, 1, 0.9F, 0, 0);
  check_renorm(renorm_this_way, probs, 2, 0.5F, 2, 4);
  check_renorm(renorm_kernel, probs, 2, 0.97F, 1, 0);
  check_renorm(renorm_kernel, as_probs(emulator::odd_rows<float, 10>(30001, 5)), 2, 0.8F, 0, 3);
}

}  // namespace
}  // namespace girih
