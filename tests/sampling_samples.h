// What the sampling tests share: rows of any type with gaps, draws of one row many times, and chains of drafts, the chi-square of
// counts.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/numeric.h"
#include "girih/sampling.h"

namespace girih::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline const float kNan = std::numeric_limits<float>::quiet_NaN();

inline Context& context(CpuTarget target = CpuTarget::best, int workers = 2) {
  static std::map<std::pair<CpuTarget, int>, Context> all;
  const auto key = std::pair(target, workers);
  if (!all.contains(key)) all.emplace(key, Context({.device = {}, .num_workers = workers, .target = target, .log = {}}));
  return all.at(key);
}

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Rows of any type, with gaps if wanted.
struct Rows {
  DType type;
  std::int64_t rows, vocab, row_stride, stride;
  std::vector<unsigned char> memory;
  Rows(DType t, std::int64_t r, std::int64_t v, std::int64_t step = 1, std::int64_t gap = 0)
      : type(t), rows(r), vocab(v), row_stride(v * step + gap), stride(step) {
    memory.assign(static_cast<std::size_t>(bytes(t, rows * row_stride + 1)), 0xff);
  }
  void set(std::int64_t r, std::int64_t i, float x) { store_element(type, memory.data(), r * row_stride + i * stride, x); }
  float get(std::int64_t r, std::int64_t i) const { return load_element(type, memory.data(), r * row_stride + i * stride); }
  TensorView view() { return TensorView(memory.data(), type, {rows, vocab}, {row_stride, stride}); }
  std::vector<float> row(std::int64_t r) const {
    std::vector<float> out;
    for (std::int64_t i = 0; i < vocab; ++i) out.push_back(get(r, i));
    return out;
  }
};

template <typename T>
TensorView vector_view(std::vector<T>& v) {
  const DType type = std::is_same_v<T, float> ? DType::f32 : sizeof(T) == 8 ? DType::i64 : sizeof(T) == 4 ? DType::i32 : DType::u8;
  return TensorView(v.data(), type, {std::ssize(v)});
}
template <typename T>
TensorView matrix_view(std::vector<T>& v, std::int64_t columns) {
  TensorView t = vector_view(v);
  return TensorView(t.data, t.dtype, {std::ssize(v) / columns, columns});
}

inline Rows random_rows(DType type, std::int64_t rows, std::int64_t vocab, unsigned seed, float spread = 3, std::int64_t step = 1,
                        std::int64_t gap = 0) {
  Rows out(type, rows, vocab, step, gap);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < vocab; ++i) out.set(r, i, normal(random));
  }
  return out;
}
inline Rows random_probs(DType type, std::int64_t rows, std::int64_t vocab, unsigned seed, float spread = 2) {
  Rows out = random_rows(type, rows, vocab, seed, spread);
  for (std::int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(out.get(r, i)));
    for (std::int64_t i = 0; i < vocab; ++i) out.set(r, i, static_cast<float>(std::exp(static_cast<double>(out.get(r, i))) / sum));
  }
  return out;
}

inline std::vector<std::int32_t> draw_tokens(SampleArgs args, std::int64_t rows, Context& on = context()) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows), -7);
  args.tokens = vector_view(tokens);
  sample(on, args);
  return tokens;
}

/// One row as many rows: the way to draw often from one distribution.
inline SampleArgs repeated(Rows& one, std::int64_t times, std::vector<std::int32_t>& indices) {
  indices.assign(static_cast<std::size_t>(times), 0);
  SampleArgs args;
  args.input = one.view();
  args.indices = vector_view(indices);
  return args;
}

/// A batch of chains.
struct Chains {
  std::int64_t batch, n, vocab;
  std::vector<float> draft, target;
  std::vector<std::int32_t> tokens;
  SpeculativeArgs args;
  std::vector<std::int32_t> out, accepted;
  Chains(std::int64_t b, std::int64_t drafts, std::int64_t v) : batch(b), n(drafts), vocab(v) {
    draft.resize(static_cast<std::size_t>(b * n * v));
    target.resize(static_cast<std::size_t>(b * (n + 1) * v));
    tokens.resize(static_cast<std::size_t>(b * n));
    out.assign(static_cast<std::size_t>(b * (n + 1)), -7);
    accepted.assign(static_cast<std::size_t>(b), -7);
  }
  void run(bool with_draft = true) {
    if (with_draft) args.draft_probs = TensorView(draft.data(), DType::f32, {batch, n, vocab});
    args.target_probs = TensorView(target.data(), DType::f32, {batch, n + 1, vocab});
    args.draft_tokens = TensorView(tokens.data(), DType::i32, {batch, n});
    args.tokens = TensorView(out.data(), DType::i32, {batch, n + 1});
    args.accepted = vector_view(accepted);
    chain_speculative_sample(context(), args);
  }
};

/// Chi-square of draws from one row against its probabilities; tokens outside must not come.
inline void expect_distribution(const std::vector<std::int64_t>& counts, const std::vector<double>& probability, const std::string& what) {
  std::int64_t total = 0;
  for (const std::int64_t c : counts) total += c;
  double chi = 0;
  int degrees = -1;
  double rare = 0, rare_expected = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probability[i] * static_cast<double>(total);
    if (probability[i] == 0) {
      ASSERT_EQ(0, counts[i]) << what << ": token " << i << " has no mass";
      continue;
    }
    if (expected < 8) {
      rare += static_cast<double>(counts[i]);
      rare_expected += expected;
      continue;
    }
    chi += std::pow(static_cast<double>(counts[i]) - expected, 2) / expected;
    ++degrees;
  }
  if (rare_expected > 0) {
    chi += std::pow(rare - rare_expected, 2) / rare_expected;
    ++degrees;
  }
  // Wilson-Hilferty: z of the chi-square.
  if (degrees <= 0) return;
  const double z = (std::cbrt(chi / degrees) - (1 - 2.0 / (9 * degrees))) / std::sqrt(2.0 / (9 * degrees));
  EXPECT_LT(z, 4.5) << what << ": chi-square " << chi << " of " << degrees;
}

}  // namespace girih::testing
