// RoPE frequencies (Su et al. 2021, Eq. 15) with linear scaling and the Llama-3.1 rule, and the tables of rope.h.
#include "attention/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace girih::attention {
namespace {

/// Llama 3.1: wavelengths above old_context / low_freq_factor are stretched by `factor`, those below old_context / high_freq_factor stay,
/// the ones between are blended.
double llama31_frequency(double frequency, const Rope::Llama31& rule) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < rule.old_context_len / rule.high_freq_factor) return frequency;
  if (wavelength > rule.old_context_len / rule.low_freq_factor) return frequency / rule.factor;
  const double smooth = (rule.old_context_len / wavelength - rule.low_freq_factor) / (rule.high_freq_factor - rule.low_freq_factor);
  return (1 - smooth) * frequency / rule.factor + smooth * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const Rope& rope, int head_dim) {
  const int dim = rope.rotary_dim == 0 ? head_dim - rope.rotary_begin : rope.rotary_dim;
  std::vector<double> frequencies;
  for (int i = 0; i < dim / 2; ++i) {
    const double frequency = std::pow(rope.theta, -2.0 * i / dim) / rope.scale;
    frequencies.push_back(rope.llama31 ? llama31_frequency(frequency, *rope.llama31) : frequency);
  }
  return frequencies;
}

RopeTable::RopeTable(const Rope& rope, int head_dim, std::int64_t max_position) : begin_(rope.rotary_begin), interleave_(rope.interleave) {
  constexpr std::int64_t kMaxHigh = 8192;  // 2M positions; 4 MiB of table at 64 pairs
  frequencies_ = rope_frequencies(rope, head_dim);
  num_pairs_ = static_cast<int>(frequencies_.size());
  num_high_ = std::min((max_position >> kLowBits) + 1, kMaxHigh);
  const std::size_t row = 2 * static_cast<std::size_t>(num_pairs_);
  low_.resize((std::size_t{1} << kLowBits) * row);
  high_.resize(static_cast<std::size_t>(num_high_) * row);
  const auto fill = [&](std::vector<float>& table, std::int64_t step) {
    for (std::size_t r = 0; r * row < table.size(); ++r) {
      float* cos = table.data() + r * row;
      exact_angles(static_cast<std::int64_t>(r) * step, cos, cos + num_pairs_);
    }
  };
  fill(low_, 1);
  fill(high_, std::int64_t{1} << kLowBits);
}

void RopeTable::exact_angles(std::int64_t position, float* cos, float* sin) const {
  for (int i = 0; i < num_pairs_; ++i) {
    const double angle = static_cast<double>(position) * frequencies_[static_cast<std::size_t>(i)];
    cos[i] = static_cast<float>(std::cos(angle));
    sin[i] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace girih::attention
