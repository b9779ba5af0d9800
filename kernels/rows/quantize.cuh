// How scales of quantised data are chosen, for every kernel that writes such: src/base/scales.h states the rules, bit for bit these.
#pragma once

#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/types.cuh"

namespace girih {

constexpr float kMaxF32 = __builtin_bit_cast(float, 0x7f7fffffU);

/// |x| where it is finite, else 0, as bits: magnitudes of f32 order as integers.
__device__ __forceinline__ u32 finite_magnitude(float x) {
  const u32 b = bits_of(x) & 0x7fffffffU;
  return b < 0x7f800000U ? b : 0U;
}

/// A scale: its code where scales are codes, what is stored where they are f32, and what codes are relative to (`global` included).
struct ChosenScale {
  u32 code;
  float stored;
  float scale;
};

/// Of a row or block whose scale is f32: `most` / `largest`, 1 where that is 0 or underflows.
__device__ __forceinline__ ChosenScale f32_scale(float most, float largest, float global) {
  float stored = min(most / largest / global, kMaxF32);
  if (!(stored * global > 0.0F)) stored = 1.0F;
  return {0, stored, stored * global};
}
/// Of 16 e2m1 codes: e4m3, 0 where the block is.
__device__ __forceinline__ ChosenScale nvfp4_scale(float most, float global) {
  const e4m3 rounded = from_f32<e4m3>(most / 6.0F / global);
  return {rounded.bits, 0.0F, to_f32(rounded) * global};
}
/// Of 32 codes whose type's largest power of two is 2^`exponent`: e8m0 (OCP MX 1.0, 6.3), 2^0 where the block is 0.
__device__ __forceinline__ ChosenScale mx_scale(float most, int exponent, float global) {
  const float relative = min(most / global, kMaxF32);
  const u32 code = exponent_to_e8m0(relative > 0.0F ? exponent_of(relative) - exponent : 0);
  return {code, 0.0F, e8m0_to_f32(code) * global};
}

/// The largest finite magnitude of x. `kZeroNan`: a NaN becomes 0, which is its code.
template <bool kZeroNan, int kCount>
__device__ __forceinline__ float largest_finite(float (&x)[kCount]) {
  float most = 0.0F;
#pragma unroll
  for (int i = 0; i < kCount; ++i) most = ptx::max_magnitude(most, x[i]);
  if (most < kInfinity) return most;
  most = 0.0F;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    most = max(most, float_of(finite_magnitude(x[i])));
    if (kZeroNan && x[i] != x[i]) x[i] = 0.0F;
  }
  return most;
}

/// Quotients by one number, to be rounded to codes: correctly rounded from 2^-40 up to 2^17; beyond, on the right side of the smallest and
/// largest codes; signs and NaN stay. A reciprocal and two corrections, since a division of its own for each element would cost more time
/// than memory takes.
struct Divisor {
  float divisor, inverse, factor;

  __device__ __forceinline__ explicit Divisor(float by) {
    // Where neither the reciprocal nor a remainder is subnormal; else both sides of the division are brought there.
    factor = by >= 0x1p-60F && by <= 0x1p60F ? 1.0F : (by < 1.0F ? 0x1p100F : 0x1p-100F);
    divisor = by * factor;
    inverse = rcp_approx(divisor);
    inverse = ptx::fma(ptx::fma(-inverse, divisor, 1.0F), inverse, inverse);
  }
  template <int kCount>
  __device__ __forceinline__ void divide(float (&x)[kCount]) const {
    if (factor != 1.0F) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] *= factor;
    }
    const float limit = divisor * 0x1p17F;  // an infinity has no remainder
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float y = ptx::limit_magnitude(x[i], limit);
      float quotient = y * inverse;
      quotient = ptx::fma(ptx::fma(-quotient, divisor, y), inverse, quotient);
      quotient = ptx::fma(ptx::fma(-quotient, divisor, y), inverse, quotient);
      x[i] = copy_sign(quotient, x[i]);
    }
  }
};

}  // namespace girih
