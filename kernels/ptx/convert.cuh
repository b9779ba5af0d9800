// Conversions between number formats that the hardware does in one instruction. core/convert.cuh builds the API on them and on bit
// operations where a chip lacks the instruction. Pairs are u32, the element with the lower index in the low half.
#pragma once

#include "core/types.cuh"

namespace girih::ptx {

/// Whether e4m3_word_to_f16 and f32_pair_to_e4m3, _e5m2 exist here.
#if __CUDA_ARCH__ >= 890
constexpr bool kConvertsFp8 = true;
#else
constexpr bool kConvertsFp8 = false;
#endif
/// Whether mul_bf16x2 is one instruction.
#if __CUDA_ARCH__ >= 800
constexpr bool kMultipliesBf16 = true;
#else
constexpr bool kMultipliesBf16 = false;
#endif

/// Byte i of the result is byte (selector >> 4 i) & 7 of b:a (0..3 are a's).
__device__ __forceinline__ u32 permute_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

/// Exact; a NaN becomes some quiet NaN.
__device__ __forceinline__ float f16_to_f32(u32 low_half) {
  float x;
  asm("{.reg .f16 h; mov.b16 h, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "h"(static_cast<u16>(low_half)));
  return x;
}
/// To nearest even, overflow to infinity; every NaN becomes 0x7fff.
__device__ __forceinline__ u32 f32_pair_to_f16(float low, float high) {
#if __CUDA_ARCH__ >= 800
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  u32 pair;
  asm("{.reg .f16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h};}" : "=r"(pair) : "f"(low), "f"(high));
  return pair;
#endif
}
/// To nearest even, overflow to infinity; every NaN becomes 0x7fff.
__device__ __forceinline__ u32 f32_pair_to_bf16(float low, float high) {
#if __CUDA_ARCH__ >= 800
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  u32 l = __float_as_uint(low);
  u32 h = __float_as_uint(high);
  l = low != low ? 0x7fff0000U : l + 0x7fffU + ((l >> 16) & 1U);
  h = high != high ? 0x7fff0000U : h + 0x7fffU + ((h >> 16) & 1U);
  return permute_bytes(l, h, 0x7632U);
#endif
}

/// Products of halves, each rounded once (to nearest even, subnormals kept).
__device__ __forceinline__ u32 mul_f16x2(u32 a, u32 b) {
  u32 product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
__device__ __forceinline__ u32 mul_bf16x2(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 800
  u32 product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000U));  // + -0 keeps the sign of zeros
  return product;
#else
  return f32_pair_to_bf16(__uint_as_float(a << 16) * __uint_as_float(b << 16),
                          __uint_as_float(a & 0xffff0000U) * __uint_as_float(b & 0xffff0000U));
#endif
}
/// Sums of halves, each rounded once.
__device__ __forceinline__ u32 add_f16x2(u32 a, u32 b) {
  u32 sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}

/// Four e4m3 codes of a word to two pairs; exact; NaN becomes 0x7fff. The instruction takes either half of a register. kConvertsFp8 only.
__device__ __forceinline__ void e4m3_word_to_f16(u32 (&pairs)[2], u32 codes) {
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
      : "=r"(pairs[0]), "=r"(pairs[1])
      : "r"(codes));
}
/// Two codes in the low 16 bits: to nearest even, saturating (infinities too); NaN becomes 0x7f, its sign is lost. kConvertsFp8 only.
__device__ __forceinline__ u32 f32_pair_to_e4m3(float low, float high) {
  u16 codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
__device__ __forceinline__ u32 f32_pair_to_e5m2(float low, float high) {
  u16 codes;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}

}  // namespace girih::ptx
