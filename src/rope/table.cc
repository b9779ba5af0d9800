// Tables of cosines and sines: frequencies with the scalings that models use, in double.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "attention/rope.h"
#include "base/error.h"
#include "girih/rope.h"

namespace girih {
namespace {

constexpr std::string_view kOp = "rope_cos_sin";

void check(const RopeTable& t) {
  if (t.rotary_dim < 2 || t.rotary_dim % 2 != 0 || t.rotary_dim > 1 << 17)
    fail(Code::invalid_argument, kOp, "rotary_dim={}; must be even and in 2..131072", t.rotary_dim);
  const auto positive = [](std::string_view what, double value) {
    if (!(value > 0) || !std::isfinite(value)) fail(Code::invalid_argument, kOp, "{}={}; must be finite and > 0", what, value);
  };
  positive("theta", t.theta);
  positive("linear", t.linear);
  positive("ntk", t.ntk);
  const int scalings = (t.linear != 1) + t.llama31.has_value() + t.yarn.has_value() + (t.ntk != 1);
  if (scalings > 1) fail(Code::invalid_argument, kOp, "{} of linear, llama31, yarn and ntk are given; use one", scalings);
  if (t.ntk != 1 && t.rotary_dim == 2)
    fail(Code::invalid_argument, kOp, "ntk={} with rotary_dim=2; its exponent divides by rotary_dim - 2", t.ntk);
  if (t.llama31) {
    positive("llama31.factor", t.llama31->factor);
    positive("llama31.low_freq_factor", t.llama31->low_freq_factor);
    positive("llama31.old_context_len", t.llama31->old_context_len);
    if (!(t.llama31->high_freq_factor > t.llama31->low_freq_factor))
      fail(Code::invalid_argument, kOp, "llama31.high_freq_factor={}; must be > low_freq_factor={}", t.llama31->high_freq_factor,
           t.llama31->low_freq_factor);
  }
  if (t.yarn) {
    positive("yarn.factor", t.yarn->factor);
    positive("yarn.original_context_len", t.yarn->original_context_len);
    positive("yarn.beta_slow", t.yarn->beta_slow);
    if (!(t.yarn->beta_fast > t.yarn->beta_slow))
      fail(Code::invalid_argument, kOp, "yarn.beta_fast={}; must be > beta_slow={}", t.yarn->beta_fast, t.yarn->beta_slow);
    if (!(t.yarn->attention_factor >= 0) || !std::isfinite(t.yarn->attention_factor))
      fail(Code::invalid_argument, kOp, "yarn.attention_factor={}; must be finite and >= 0", t.yarn->attention_factor);
    if (!(t.theta > 1)) fail(Code::invalid_argument, kOp, "theta={} with yarn; must be > 1", t.theta);
  }
}

/// The (fractional) pair that turns `turns` times within the original context.
double pair_of(const RopeTable& t, double turns) {
  return t.rotary_dim * std::log(t.yarn->original_context_len / (turns * 2 * std::numbers::pi)) / (2 * std::log(t.theta));
}

}  // namespace

std::vector<double> rope_frequencies(const RopeTable& table) {
  check(table);
  const double dim = table.rotary_dim;
  Rope plain;
  plain.theta = table.ntk == 1 ? table.theta : table.theta * std::pow(table.ntk, dim / (dim - 2));
  plain.scale = table.linear;
  plain.rotary_dim = table.rotary_dim;
  plain.llama31 = table.llama31;
  std::vector<double> frequencies = attention::rope_frequencies(plain, table.rotary_dim);
  if (!table.yarn) return frequencies;
  double low = pair_of(table, table.yarn->beta_fast);
  double high = pair_of(table, table.yarn->beta_slow);
  if (table.yarn->whole_pairs) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double slowed = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= 1 - slowed + slowed / table.yarn->factor;
  }
  return frequencies;
}

std::vector<float> rope_cos_sin(const RopeTable& table, std::int64_t num_positions) {
  const std::vector<double> frequencies = rope_frequencies(table);
  if (num_positions < 1 || num_positions > (std::int64_t{1} << 40) / table.rotary_dim)
    fail(Code::invalid_argument, kOp, "num_positions={}; must be >= 1 and make a table below 2^40 elements", num_positions);
  double amplitude = 1;
  if (table.yarn) {
    amplitude = table.yarn->attention_factor;
    if (amplitude == 0) amplitude = table.yarn->factor <= 1 ? 1 : 0.1 * std::log(table.yarn->factor) + 1;
  }
  std::vector<float> out;
  try {
    out.resize(static_cast<std::size_t>(num_positions * table.rotary_dim));
  } catch (const std::exception&) {
    fail(Code::out_of_memory, kOp, "num_positions={}: no memory for a table of {} elements", num_positions,
         num_positions * table.rotary_dim);
  }
  const std::size_t pairs = frequencies.size();
  for (std::int64_t position = 0; position < num_positions; ++position) {
    float* row = out.data() + position * table.rotary_dim;
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(position) * frequencies[i];
      row[i] = static_cast<float>(amplitude * std::cos(angle));
      row[pairs + i] = static_cast<float>(amplitude * std::sin(angle));
    }
  }
  return out;
}

}  // namespace girih
