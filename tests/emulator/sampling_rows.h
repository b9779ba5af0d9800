// What the tests of sampling's kernels under the emulator share: the CPU to compare with, rows of any type and of every kind that has a way
// of its own, filters in all combinations.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/convert.cuh"
#include "core/math.cuh"
#include "girih/context.h"
#include "girih/sampling.h"

namespace girih::emulator {

inline const Context& cpu() {
  static const Context context(ContextOptions{.device = {}, .num_workers = 1});
  return context;
}

template <typename T>
constexpr DType kType = kSame<T, float> ? DType::f32
                        : kSame<T, f16> ? DType::f16
                                        : DType::bf16;

template <typename T>
struct Rows {
  std::int64_t rows, vocab, row_stride, stride;
  std::vector<T> memory;
  Rows(std::int64_t r, std::int64_t v, std::int64_t gap = 0, std::int64_t step = 1)
      : rows(r), vocab(v), row_stride(v * step + gap), stride(step), memory(static_cast<std::size_t>(r * row_stride)) {}
  void set(std::int64_t r, std::int64_t i, float x) { memory[static_cast<std::size_t>(r * row_stride + i * stride)] = from_f32<T>(x); }
  float get(std::int64_t r, std::int64_t i) const { return to_f32(memory[static_cast<std::size_t>(r * row_stride + i * stride)]); }
  TensorView view() { return TensorView(memory.data(), kType<T>, {rows, vocab}, {row_stride, stride}); }
};

/// Plain, all equal, two values, a peak, a heavy tail, mostly -inf, NaN and zeros, infinities, nothing; as the tenth, far from zero with a
/// sorted end.
template <typename T, std::int64_t kKinds>
Rows<T> odd_rows(std::int64_t vocab, unsigned seed, std::int64_t gap = 0, std::int64_t step = 1) {
  static_assert(kKinds == 9 || kKinds == 10);
  Rows<T> rows(kKinds, vocab, gap, step);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < vocab; ++i) {
    rows.set(0, i, 2 * normal(random));
    rows.set(1, i, 0.5F);
    rows.set(2, i, random() % 3 == 0 ? 1.0F : -1.0F);
    rows.set(3, i, i == vocab / 2 ? 20.0F : normal(random));
    rows.set(4, i, std::exp(3 * normal(random)));
    rows.set(5, i, random() % 100 == 0 ? normal(random) : -kInfinity);
    rows.set(6, i, random() % 50 == 0 ? NAN : random() % 2 == 0 ? 0.0F : -0.0F);
    rows.set(7, i, random() % 2000 == 0 ? kInfinity : normal(random));
    rows.set(8, i, -kInfinity);
    if (kKinds > 9) rows.set(9, i, i > vocab - 100 ? 25.0F : 20.0F + normal(random));
  }
  return rows;
}

/// Rows of any spread, place, grain and length from 20,480 on, with some large entries.
inline Rows<float> rows_of_any_spread(std::int64_t count, int turn, std::mt19937& random, std::normal_distribution<float>& normal) {
  const std::int64_t vocab = 20480 + random() % 40000;
  const float spread = std::exp(normal(random)), middle = turn % 3 == 0 ? 0.0F : 20 * normal(random), grain = turn % 4 == 0 ? 0.05F : 0.0F;
  Rows<float> rows(count, vocab, random() % 4);
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t i = 0; i < vocab; ++i) {
      const float x = spread * normal(random) + middle;
      rows.set(r, i, grain > 0 ? std::round(x / grain) * grain : x);
    }
    for (std::int64_t i = 0; i < 8 * r; ++i)
      rows.set(r, static_cast<std::int64_t>(random()) % vocab, middle + 5 * spread + std::fabs(normal(random)));
  }
  return rows;
}

template <typename T>
Rows<T> as_probs(Rows<T> rows) {
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    const auto weight = [&](std::int64_t i) { return std::exp(std::min(static_cast<double>(rows.get(r, i)), 30.0)); };
    double sum = 0;
    for (std::int64_t i = 0; i < rows.vocab; ++i) sum += std::isnan(weight(i)) ? 0 : weight(i);
    for (std::int64_t i = 0; i < rows.vocab; ++i) rows.set(r, i, static_cast<float>(weight(i) / (sum > 0 ? sum : 1)));
  }
  return rows;
}

inline bool near(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= 3e-6F * (1 + std::fabs(b)); }

struct Filters {
  std::int64_t top_k;
  float top_p, min_p;
  bool joint;
};
inline constexpr Filters kFilters[] = {{0, 1, 0, false},        {1, 1, 0, false},       {50, 1, 0, false},        {3000, 1, 0, false},
                                       {0, 0.9F, 0, false},     {0, 0.3F, 0, false},    {0, 1, 0.1F, false},      {40, 0.8F, 0, false},
                                       {40, 0.8F, 0, true},     {5000, 0.6F, 0, false}, {5000, 0.6F, 0.2F, true}, {0, 0, 0, false},
                                       {0, 0.99F, 0.01F, false}};

/// A call with the filters, the `number`-th of its test; its other arguments differ from call to call.
template <typename T, bool kProbs>
SampleArgs args_of(Rows<T>& rows, const Filters& f, std::int64_t number) {
  SampleArgs args;
  args.input = rows.view();
  args.top_k = f.top_k;
  args.top_p = f.top_p;
  args.min_p = f.min_p;
  args.order = f.joint ? FilterOrder::joint : FilterOrder::top_k_first;
  args.temperature = kProbs ? 1.0F : number % 3 == 2 ? 0.6F : 1.0F;
  args.random = {.seed = 3, .offset = number};
  return args;
}
inline testing::Message describe(const Filters& f, std::int64_t vocab, int cluster, bool probs) {
  return testing::Message() << "vocab " << vocab << " cluster " << cluster << " k " << f.top_k << " p " << f.top_p << " min_p " << f.min_p
                            << (f.joint ? " joint" : "") << (probs ? " probs" : " logits");
}

}  // namespace girih::emulator
