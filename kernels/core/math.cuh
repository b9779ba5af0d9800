// Functions of f32 by name. Two kinds: *_approx are one or a few instructions with the error in their comment; the others keep to what
// docs/numerics.md promises of hooks (exp 2 ulp, log 3, tanh 4, sigmoid 4), by the formulas of src/variant/math-inl.h. Nothing here depends
// on fast-math flags, and sums may be contracted to fused multiply-adds without harm.
#pragma once

#include "core/convert.cuh"
#include "core/types.cuh"
#include "ptx/math.cuh"

namespace girih {

// ---------------------------------------------------------------------------------------------------------------- approximations

/// 2^x: relative error <= 2^-22; results below 2^-126 are 0 (exactly 0 for -inf), exactly 1 at 0.
__device__ __forceinline__ float exp2_approx(float x) { return ptx::ex2(x); }
/// log2(x): absolute error <= 2^-22 for x in (0.5, 2), relative <= 2^-22 elsewhere; 0 and subnormals give -inf.
__device__ __forceinline__ float log2_approx(float x) { return ptx::lg2(x); }
/// 1 / x: relative error <= 2^-23; a result or argument below 2^-126 is 0.
__device__ __forceinline__ float rcp_approx(float x) { return ptx::rcp(x); }
/// 1 / sqrt(x): relative error <= 2^-22.9.
__device__ __forceinline__ float rsqrt_approx(float x) { return ptx::rsqrt(x); }
/// tanh(x) = 1 - 2 / (2^(2 x log2 e) + 1): absolute error <= 2^-21, so a poor relative one near 0; right at infinities, NaN stays.
__device__ __forceinline__ float tanh_approx(float x) { return ptx::fma(-2.0F, ptx::rcp(ptx::ex2(x * (2.0F * kLog2E)) + 1.0F), 1.0F); }
/// y = 1 / (2^x + 1) four at a time: absolute error <= 2^-20.8. They share a reciprocal, so a NaN makes all of them NaN.
__device__ __forceinline__ void logistic_approx(const float (&x)[4], float (&y)[4]) {
  float d[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = exp2_approx(ptx::min_or_nan(x[i], 30.0F)) + 1.0F;  // the product of four is finite
  const float low = d[0] * d[1];
  const float high = d[2] * d[3];
  const float all = ptx::rcp(low * high);
  const float of_low = all * high;
  const float of_high = all * low;
  y[0] = of_low * d[1];
  y[1] = of_low * d[0];
  y[2] = of_high * d[3];
  y[3] = of_high * d[2];
}
/// tanh(x) of one instruction: relative error <= 2^-11. For 16-bit consumers only.
__device__ __forceinline__ float tanh_fast(float x) { return ptx::tanh_fast(x); }

// ---------------------------------------------------------------------------------------------------------------- functions

__device__ __forceinline__ float abs(float x) { return float_of(bits_of(x) & 0x7fffffffU); }
__device__ __forceinline__ float copy_sign(float magnitude, float sign) {
  return float_of((bits_of(magnitude) & 0x7fffffffU) | (bits_of(sign) & 0x80000000U));
}
/// Correctly rounded.
__device__ __forceinline__ float sqrt(float x) { return ptx::sqrt_rn(x); }
/// 2 roundings.
__device__ __forceinline__ float rsqrt(float x) { return 1.0F / ptx::sqrt_rn(x); }

namespace math_detail {

/// x = n * ln 2 + r with |r| <= ln 2 / 2; `expm1_r` is e^r - 1.
struct ExpParts {
  i32 n;
  float expm1_r;
};

constexpr float kRounder = 12582912.0F;   // 1.5 * 2^23: adding it rounds to an integer, the sum's last bit being worth 1
constexpr float kLn2High = 0.693359375F;  // 10 bits: n * kLn2High is exact
constexpr float kLn2Low = -2.12194440e-4F;

/// e^r - 1 for |r| <= ln 2 / 2, relative error below 2.5e-8 before rounding.
__device__ __forceinline__ float expm1_reduced(float r) {
  const float q = 0.5F + r * (0.166665733F + r * (0.0416665487F + r * (0.00836377405F + r * 0.00139269268F)));
  return r + r * r * q;
}

/// For |x| below 2^20; a NaN x gives a NaN expm1_r and any n.
__device__ __forceinline__ ExpParts exp_parts(float x) {
  const float shifted = x * kLog2E + kRounder;
  const float n = shifted - kRounder;
  return {static_cast<i32>(bits_of(shifted) - bits_of(kRounder)), expm1_reduced((x - n * kLn2High) - n * kLn2Low)};
}

/// 2^n for n in [-127, 127] (-127 gives 0).
__device__ __forceinline__ float power_of_two(i32 n) { return float_of((static_cast<u32>(n) + 127U) << 23); }

/// x with its magnitude at most `limit`; NaN stays.
__device__ __forceinline__ float clamp_magnitude(float x, float limit) { return abs(x) > limit ? copy_sign(limit, x) : x; }

/// (1 + expm1_r) * 2^n in two steps: 2^n itself may be subnormal or too large.
__device__ __forceinline__ float assemble(ExpParts parts) {
  const i32 half = parts.n >> 1;
  return (1.0F + parts.expm1_r) * power_of_two(half) * power_of_two(parts.n - half);
}

}  // namespace math_detail

/// e^x: 2 ulp, subnormal results within one step.
__device__ __forceinline__ float exp(float x) {
  return math_detail::assemble(math_detail::exp_parts(math_detail::clamp_magnitude(x, 104.0F)));
}

/// 2^x: 2 ulp, subnormal results within one step.
__device__ __forceinline__ float exp2(float x) {
  const float clamped = math_detail::clamp_magnitude(x, 152.0F);
  const float shifted = clamped + math_detail::kRounder;
  const float r = (clamped - (shifted - math_detail::kRounder)) * kLn2;
  return math_detail::assemble({static_cast<i32>(bits_of(shifted) - bits_of(math_detail::kRounder)), math_detail::expm1_reduced(r)});
}

/// tanh(x): 4 ulp. (e^2a - 1) / (e^2a + 1) with e^2a - 1 = 2^n (e^r - 1) + (2^n - 1): no cancellation as a >= 0.
__device__ __forceinline__ float tanh(float x) {
  const math_detail::ExpParts parts = math_detail::exp_parts(2.0F * math_detail::clamp_magnitude(abs(x), 10.0F));
  const float scale = math_detail::power_of_two(parts.n);
  const float expm1 = scale * parts.expm1_r + (scale - 1.0F);
  return copy_sign(expm1 / (expm1 + 2.0F), x);
}

/// 1 / (1 + e^-x): 4 ulp, by e^-|x|, which cannot overflow.
__device__ __forceinline__ float sigmoid(float x) {
  const float e = exp(-abs(x));
  return ((bits_of(x) >> 31) != 0 ? e : 1.0F) / (1.0F + e);
}

/// ln x: 3 ulp. x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1).
__device__ __forceinline__ float log(float x) {
  const bool subnormal = x < 1.17549435e-38F;
  const u32 b = bits_of(subnormal ? x * 8388608.0F : x);
  const i32 e = static_cast<i32>(b - 0x3f3504f3U) >> 23;  // the exponent counts from sqrt(1/2)
  const float m = float_of(b - (static_cast<u32>(e) << 23));
  const float n = static_cast<float>(e) - (subnormal ? 23.0F : 0.0F);
  const float f = m - 1.0F;
  const float s = f / (m + 1.0F);
  const float z = s * s;
  const float p = z * (0.666666865F + z * (0.399883181F + z * 0.296006918F));
  float result = n * math_detail::kLn2High + (f - (s * (f - p) - n * math_detail::kLn2Low));
  result = x == kInfinity ? x : result;
  result = x == 0.0F ? -kInfinity : result;
  result = x < 0.0F ? float_of(0x7fc00000U) : result;
  return x != x ? x : result;
}
/// log2(x): 4 ulp away from 1; near 1 an absolute error of 2^-24 |x - 1|.
__device__ __forceinline__ float log2(float x) { return log(x) * kLog2E; }

}  // namespace girih
