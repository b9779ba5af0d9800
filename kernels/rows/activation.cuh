// Activations of a gate, times the other operand. By formula: an infinity times 0 is NaN, as with any library that multiplies.
// `kExact`: by the functions of core/math.cuh, for f32; else by one-instruction approximations, whose relative error of 2^-20 or so (more
// only where the result is below 2^-30 of its argument) is far below a 16-bit type's.
#pragma once

#include "abi/rows_params.h"
#include "core/math.cuh"

namespace girih::rows {

using abi::Act;

/// 1 / (1 + e^-x)
template <bool kExact>
__device__ __forceinline__ float logistic(float x) {
  if constexpr (kExact) {
    return sigmoid(x);
  } else {
    return rcp_approx(1.0F + exp2_approx(-kLog2E * x));
  }
}

/// The normal distribution's Phi(x) = erfc(-x / sqrt 2) / 2. erfc(z) = e^(-z z) t P(t), t = 1 / (1 + 0.3 z), z >= 0: P is interpolated at
/// Chebyshev nodes with a relative error of 6e-8.
template <bool kExact>
__device__ __forceinline__ float normal_cdf(float x) {
  const float z = abs(x) * 0.707106781F;
  const float divisor = 1.0F + 0.3F * z;
  const float t = kExact ? 1.0F / divisor : rcp_approx(divisor);
  const float u = t * 3.11111116F - 2.11111116F;
  float p = -1.37610205e-5F;
  p = p * u - 7.70050638e-05F;
  p = p * u + 0.000135011672F;
  p = p * u + 0.0030565735F;
  p = p * u + 0.0172207995F;
  p = p * u + 0.061054123F;
  p = p * u + 0.156989941F;
  p = p * u + 0.306079107F;
  p = p * u + 0.455555201F;
  const float tail = 0.5F * t * p * (kExact ? exp(-z * z) : exp2_approx(-kLog2E * z * z));
  return (bits_of(x) >> 31) != 0 ? tail : 1.0F - tail;
}

template <Act kAct, bool kExact>
__device__ __forceinline__ float activate(float gate, float up, float alpha, float limit) {
  if constexpr (kAct == Act::silu) {
    return gate * logistic<kExact>(gate) * up;
  } else if constexpr (kAct == Act::gelu) {
    return gate * normal_cdf<kExact>(gate) * up;
  } else if constexpr (kAct == Act::gelu_tanh) {
    // 0.5 (1 + tanh u) = 1 / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
    return gate * logistic<kExact>(1.59576912F * gate * (1.0F + 0.044715F * gate * gate)) * up;
  } else if constexpr (kAct == Act::swigluoai) {
    const float g = gate > limit ? limit : gate;  // in this form NaN stays
    const float u = up > limit ? limit : (up < -limit ? -limit : up);
    return g * logistic<kExact>(alpha * g) * (u + 1.0F);
  } else {
    return gate * up;
  }
}

}  // namespace girih::rows
