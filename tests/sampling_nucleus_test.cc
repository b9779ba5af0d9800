// Top-p by one pass (kernels/sampling/nucleus.cuh) under the emulator: the CPU's tokens, for rows of every kind and clusters of one and
// several blocks; and that the rows it is for are done that way.
#include <gtest/gtest.h>

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

constexpr sampling::Config kConfig{12288, 16384, 4, 2048};
constexpr int kSlots = 7;

void any_way(abi::SampleParams p) {
  sampling::run_sample<kConfig, float, sampling::Traits{true, false, false, false, true, false}>(p, kSlots);
}
/// Token -1: the row is not for this way.
void this_way(abi::SampleParams p) {
  const i64 r = ptx::block_idx() / ptx::cluster_size();
  if (ptx::thread_idx() == 0 && ptx::cluster_rank() == 0) p.tokens.set(r, 0, -1);
  sampling::sync_row();
  Nucleus(p.input.data + r * p.input.row_stride, p.vocab).run(p, r, p.top_p.at(r));
}

std::vector<std::int32_t> run(void (*kernel)(abi::SampleParams), SampleArgs args, int cluster, std::uint64_t seed) {
  const std::int64_t rows = args.input.shape[0];
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows), -7);
  std::vector<std::uint8_t> valid(static_cast<std::size_t>(rows), 9);
  std::vector<float> logprobs(static_cast<std::size_t>(rows), 7), want_logprobs(logprobs);
  std::vector<std::int32_t> want(tokens);
  std::vector<std::uint8_t> want_valid(valid);
  args.kind = SampleInput::probs;
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
          .shared_bytes = sampling::Layout<kConfig, float, false>::kSlots + kSlots * kConfig.tile_bytes,
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
  for (const std::int64_t vocab : {12000, 30001, 70003}) {
    Rows<float> rows = as_probs(emulator::odd_rows<float, 10>(vocab, static_cast<unsigned>(vocab), vocab % 2));
    rows.set(7, vocab / 3, INFINITY);
    rows.set(6, 5, 0.3F);
    SampleArgs args;
    args.input = rows.view();
    for (const float top_p : {0.0F, 0.3F, 0.9F, 0.999F}) {
      for (const int cluster : {1, 2, 8}) {
        args.top_p = top_p;
        args.random = {.seed = 3, .offset = static_cast<std::int64_t>(seed)};
        args.logprob_kind = seed % 2 == 0 ? LogprobKind::filtered : LogprobKind::processed;
        run(any_way, args, cluster, seed++);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

/// Rows that sampling meets: Gaussian logits, a few tokens with nearly all, one with all, a long tail, most of them nothing; not a
/// multiple of a chunk long, so that rows lie at every address.
TEST(SamplingNucleus, UsualRowsTakeOnePass) {
  constexpr std::int64_t kVocab = 50002, kRows = 6;
  Rows<float> rows(kRows, kVocab);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < kVocab; ++i) {
    const float x = normal(random);
    rows.set(0, i, x);
    rows.set(1, i, 3.5F * x);
    rows.set(2, i, i == 777 ? 30.0F : x);
    rows.set(3, i, std::fabs(x) < 0.2F ? 5 * x : std::copysign(1 / (0.3F + std::fabs(x)), x) * 4);
    rows.set(4, i, random() % 100 == 0 ? x : -kInfinity);
    rows.set(5, i, 0.1F * static_cast<float>(random() % 4096) / 4096);
  }
  rows = as_probs(rows);
  SampleArgs args;
  args.input = rows.view();
  for (const float top_p : {0.5F, 0.9F, 0.97F}) {
    for (std::int64_t step = 0; step < 3; ++step) {
      args.top_p = top_p;
      args.random = {.seed = 11, .offset = step};
      const std::vector<std::int32_t> tokens = run(this_way, args, step == 2 ? 2 : 1, step == 1 ? 4 : 0);
      for (std::size_t r = 0; r < tokens.size(); ++r) EXPECT_NE(-1, tokens[r]) << "row " << r << ", top-p " << top_p;
    }
  }
}

}  // namespace
}  // namespace girih
