// Rotary angles for any position without a table as long as the context: position = hi * 256 + lo, and the two tabulated rotations are
// multiplied as complex numbers. Tables are made in double, so the error at position 1M is that of one f32 product (about 1e-7).
#pragma once

#include <cstdint>
#include <vector>

#include "girih/variant.h"

namespace girih::attention {

/// Radians a position of each pair.
std::vector<double> rope_frequencies(const Rope& rope, int head_dim);

class RopeTable {
 public:
  /// Covers positions 0..max_position quickly; others are computed on the spot.
  RopeTable(const Rope& rope, int head_dim, std::int64_t max_position);

  int begin() const { return begin_; }
  int num_pairs() const { return num_pairs_; }
  bool interleave() const { return interleave_; }

  /// cos and sin [num_pairs] of the angles at `position`.
  void angles(std::int64_t position, float* cos, float* sin) const {
    const std::int64_t hi = position >> kLowBits;
    if (position < 0 || hi >= num_high_) return exact_angles(position, cos, sin);
    const std::size_t n = static_cast<std::size_t>(num_pairs_);
    const float* a = high_.data() + static_cast<std::size_t>(hi) * 2 * n;
    const float* b = low_.data() + static_cast<std::size_t>(position & ((1 << kLowBits) - 1)) * 2 * n;
    for (std::size_t i = 0; i < n; ++i) {
      cos[i] = a[i] * b[i] - a[n + i] * b[n + i];
      sin[i] = a[i] * b[n + i] + a[n + i] * b[i];
    }
  }

  /// Rotates x [head_dim] in place by the angles at one position.
  void rotate(const float* cos, const float* sin, float* x) const {
    float* first = x + begin_;
    const int step = interleave_ ? 2 : 1;
    float* second = interleave_ ? first + 1 : first + num_pairs_;
    for (int i = 0; i < num_pairs_; ++i) {
      const float a = first[i * step];
      const float b = second[i * step];
      first[i * step] = a * cos[i] - b * sin[i];
      second[i * step] = a * sin[i] + b * cos[i];
    }
  }

 private:
  static constexpr int kLowBits = 8;
  void exact_angles(std::int64_t position, float* cos, float* sin) const;

  int begin_ = 0;
  int num_pairs_ = 0;
  bool interleave_ = false;
  std::int64_t num_high_ = 0;
  std::vector<double> frequencies_;  // [num_pairs] radians a position
  std::vector<float> low_, high_;    // [256], [num_high]: cos [num_pairs], sin [num_pairs]
};

}  // namespace girih::attention
