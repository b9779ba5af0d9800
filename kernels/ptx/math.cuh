// Approximations of one instruction. Errors are those of the PTX ISA; the emulator's twins compute the rounded exact value. All flush
// subnormal inputs and results to zero. core/math.cuh gives them the names that kernels use.
#pragma once

#include "core/types.cuh"

namespace girih::ptx {

/// 2^x: relative error <= 2^-22; 2^-inf = 0, 2^inf = inf.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// log2(x): absolute error <= 2^-22 for x in (0.5, 2), relative error <= 2^-22 elsewhere; log2(0) = -inf, of negatives NaN.
__device__ __forceinline__ float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// 1 / x: relative error <= 2^-23; 1 / +-0 = +-inf.
__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// 1 / sqrt(x): relative error <= 2^-22.9; of 0 inf, of negatives NaN.
__device__ __forceinline__ float rsqrt(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// sqrt(x), correctly rounded, subnormals kept.
__device__ __forceinline__ float sqrt_rn(float x) {
  float y;
  asm("sqrt.rn.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// tanh(x): relative error <= 2^-11.
__device__ __forceinline__ float tanh_fast(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// a b + c, rounded once.
__device__ __forceinline__ float fma(float a, float b, float c) {
  float y;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
  return y;
}
/// The smaller of two; NaN if one is.
__device__ __forceinline__ float min_or_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a < b || a != a ? a : b;
#endif
}
/// The larger of two; NaN where one is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a > b || a != a ? a : b;
#endif
}
/// The larger of two; of a NaN and a number, the number.
__device__ __forceinline__ float max_number(float a, float b) {
  float y;
  asm("max.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
/// The smaller of two; of a NaN and a number, the number.
__device__ __forceinline__ float min_number(float a, float b) {
  float y;
  asm("min.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
/// a + b of numbers >= 0, rounded down.
__device__ __forceinline__ float add_toward_zero(float a, float b) {
  float y;
  asm("add.rz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
/// a * b + c >= 0, rounded down; subnormal results are not flushed.
__device__ __forceinline__ float fma_toward_zero(float a, float b, float c) {
  float y;
  asm("fma.rz.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
  return y;
}
/// The larger of a and |b|; NaN where one is.
__device__ __forceinline__ float max_magnitude(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float y;
  asm("{.reg .f32 m; abs.f32 m, %2; max.NaN.f32 %0, %1, m;}" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  const float magnitude = __uint_as_float(__float_as_uint(b) & 0x7fffffffU);
  return a != a ? a : (a > magnitude ? a : magnitude);
#endif
}
/// The smaller of |x| and a number; NaN where x is.
__device__ __forceinline__ float limit_magnitude(float x, float limit) {
#if __CUDA_ARCH__ >= 800
  float y;
  asm("{.reg .f32 m; abs.f32 m, %1; min.NaN.f32 %0, m, %2;}" : "=f"(y) : "f"(x), "f"(limit));
  return y;
#else
  const float magnitude = __uint_as_float(__float_as_uint(x) & 0x7fffffffU);
  return magnitude > limit ? limit : magnitude;
#endif
}

}  // namespace girih::ptx
