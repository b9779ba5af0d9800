// The row operators from their formulas, one row at a time in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "girih/activation.h"

namespace girih::ref {

using Values = std::vector<double>;

inline Values rms_norm(Values x, const Values& weight, double eps) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  for (std::size_t d = 0; d < x.size(); ++d) x[d] *= factor * weight[d];
  return x;
}

inline Values layer_norm(Values x, const Values& weight, const Values& bias, double eps) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, variance = 0;
  for (const double v : x) mean += v / n;
  for (const double v : x) variance += (v - mean) * (v - mean) / n;
  for (std::size_t d = 0; d < x.size(); ++d) x[d] = (x[d] - mean) / std::sqrt(variance + eps) * weight[d] + bias[d];
  return x;
}

inline double activate(Activation a, double gate, double up, double alpha, double limit) {
  switch (a) {
    case Activation::silu: return gate / (1 + std::exp(-gate)) * up;
    case Activation::gelu: return gate * 0.5 * std::erfc(-gate / std::numbers::sqrt2) * up;
    case Activation::gelu_tanh: {
      const double inner = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
      return gate * 0.5 * (1 + std::tanh(inner)) * up;
    }
    case Activation::swigluoai: {
      const double g = gate > limit ? limit : gate;
      const double u = up > limit ? limit : (up < -limit ? -limit : up);
      return g / (1 + std::exp(-alpha * g)) * (u + 1);
    }
    case Activation::multiply: break;
  }
  return gate * up;
}

/// Rotates the pairs of x [2 pairs]: elements (i, i + pairs), or (2 i, 2 i + 1).
inline void rotate(double* x, const std::vector<double>& angles, bool interleaved) {
  const std::size_t pairs = angles.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    double& a = x[interleaved ? 2 * i : i];
    double& b = x[interleaved ? 2 * i + 1 : i + pairs];
    const double u = a * std::cos(angles[i]) - b * std::sin(angles[i]);
    b = a * std::sin(angles[i]) + b * std::cos(angles[i]);
    a = u;
  }
}

}  // namespace girih::ref
