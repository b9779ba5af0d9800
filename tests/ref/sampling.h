// Sampling from its formulas, in double and by sorting. Logits are processed in f32, as specified; all after that is double. Where a cut or
// a draw lies so near to a boundary that f32 weights may fall on the other side of it, the reference says so.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace girih::ref {

/// Philox 4x32-10, written from the paper: 4 words for a counter and a key.
struct Philox {
  std::uint32_t word[4];
};
inline Philox philox(const std::uint32_t (&counter)[4], const std::uint32_t (&key)[2]) {
  std::uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
  std::uint32_t k[2] = {key[0], key[1]};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ULL * c[0], b = 0xCD9E8D57ULL * c[2];
    const std::uint32_t next[4] = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(b),
                                   static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(a)};
    std::copy(next, next + 4, c);
    k[0] += 0x9E3779B9U;
    k[1] += 0xBB67AE85U;
  }
  return {{c[0], c[1], c[2], c[3]}};
}
/// The uniform number in [0, 1) of a row.
inline double uniform(std::uint64_t seed, std::uint64_t offset, std::uint32_t row, std::uint32_t purpose) {
  const Philox p = philox({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32), row, purpose},
                          {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return std::ldexp(static_cast<double>(p.word[1]), -32) + std::ldexp(static_cast<double>(p.word[0]), -64);
}

struct Filter {
  std::int64_t top_k = 0;
  double top_p = 1, min_p = 0;
  bool joint = false;
};

/// A row: probabilities of all entries (0 for those without mass), the order of those with a value above -inf, and how many pass filters.
struct SamplingRow {
  std::vector<double> probability;
  std::vector<std::int64_t> order;
  std::int64_t num_kept = 0;
  bool sure = true;  // of num_kept
};

constexpr double kNearBoundary = 4e-6;  // relative, of masses: weights are f32

/// `values` in f32: logits (NaN already -inf), or probabilities where `probs`.
inline SamplingRow sampling_row(const std::vector<float>& values, bool probs, double temperature, const Filter& filter) {
  SamplingRow row;
  const auto n = static_cast<std::int64_t>(values.size());
  const auto at = [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; };
  const auto has_value = [&](float x) { return probs ? x > 0 : x > -std::numeric_limits<float>::infinity(); };
  for (std::int64_t i = 0; i < n; ++i) {
    if (has_value(at(i))) row.order.push_back(i);
  }
  std::stable_sort(row.order.begin(), row.order.end(), [&](std::int64_t a, std::int64_t b) { return at(a) > at(b); });
  row.probability.assign(values.size(), 0);
  if (row.order.empty()) return row;
  const float top = at(row.order.front());
  double total = 0;
  for (const std::int64_t i : row.order) {
    double& weight = row.probability[static_cast<std::size_t>(i)];
    if (std::isinf(top)) {
      weight = at(i) == top ? 1 : 0;
    } else if (probs) {
      weight = static_cast<double>(at(i));
    } else {
      weight = std::exp((static_cast<double>(at(i)) - static_cast<double>(top)) / temperature);
    }
    total += weight;
  }
  for (double& weight : row.probability) weight /= total;

  row.num_kept = static_cast<std::int64_t>(row.order.size());
  if (filter.top_k > 0) row.num_kept = std::min(row.num_kept, filter.top_k);
  const auto mass_of_first = [&](std::int64_t count) {
    double mass = 0;
    for (std::int64_t i = 0; i < count; ++i) mass += row.probability[static_cast<std::size_t>(row.order[static_cast<std::size_t>(i)])];
    return mass;
  };
  if (filter.top_p < 1) {
    const double need = filter.top_p * (filter.joint ? 1.0 : mass_of_first(row.num_kept));
    std::int64_t count = 0;
    double mass = 0;
    while (count < row.num_kept && (count == 0 || mass < need)) {
      mass += row.probability[static_cast<std::size_t>(row.order[static_cast<std::size_t>(count++)])];
      if (std::fabs(mass - need) < kNearBoundary * (need + 1e-3) && mass != need) row.sure = false;
    }
    row.num_kept = count;
  }
  if (filter.min_p > 0) {
    const double least = filter.min_p * row.probability[static_cast<std::size_t>(row.order[0])];
    std::int64_t count = 0;
    while (count < row.num_kept) {
      const double x = row.probability[static_cast<std::size_t>(row.order[static_cast<std::size_t>(count)])];
      if (count > 0 && std::fabs(x - least) < kNearBoundary * least && x != least) row.sure = false;
      if (count > 0 && x < least) break;
      ++count;
    }
    row.num_kept = count;
  }
  return row;
}

/// What `u` in [0, 1) draws: the first token by index whose cumulated probability among what is kept exceeds u. -1: too near to a boundary.
inline std::int64_t draw(const SamplingRow& row, double u) {
  if (!row.sure) return -1;
  std::vector<std::int64_t> kept(row.order.begin(), row.order.begin() + row.num_kept);
  std::sort(kept.begin(), kept.end());
  double total = 0;
  for (const std::int64_t i : kept) total += row.probability[static_cast<std::size_t>(i)];
  double sum = 0;
  for (const std::int64_t i : kept) {
    const double before = sum;
    sum += row.probability[static_cast<std::size_t>(i)];
    if (std::fabs(sum - u * total) < kNearBoundary * total && sum < total * (1 - 1e-12)) return -1;
    if (sum > u * total && sum > before) return i;
  }
  for (auto i = kept.rbegin(); i != kept.rend(); ++i) {
    if (row.probability[static_cast<std::size_t>(*i)] > 0) return *i;
  }
  return -1;
}

}  // namespace girih::ref
