// Twin of kernels/ptx/convert.cuh: what the instructions give, by src/base/numeric.h. Two differences to it are kept: every NaN becomes
// the canonical one, and 8-bit codes lose a NaN's sign.
#pragma once

#include "core/types.cuh"
#include "emulator/emulator.h"

namespace girih::ptx {

constexpr bool kConvertsFp8 = emulator::kArch >= 890;
constexpr bool kMultipliesBf16 = emulator::kArch >= 800;

inline u32 permute_bytes(u32 a, u32 b, u32 selector) {
  const u64 bytes = static_cast<u64>(b) << 32 | a;
  u32 result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<u32>(bytes >> (8 * ((selector >> (4 * i)) & 7U)) & 0xffU) << (8 * i);
  return result;
}

inline float f16_to_f32(u32 low_half) { return emulator::f16_value(low_half & 0xffffU); }
inline u32 f32_pair_to_f16(float low, float high) {
  const auto code = [](float x) { return x != x ? 0x7fffU : static_cast<u32>(emulator::f16_code(x)); };
  return code(low) | code(high) << 16;
}
inline u32 f32_pair_to_bf16(float low, float high) {
  const auto code = [](float x) { return x != x ? 0x7fffU : static_cast<u32>(emulator::bf16_code(x)); };
  return code(low) | code(high) << 16;
}

/// f32 has more than twice the bits of f16 and bf16 and two more, so that rounding to it first changes nothing.
inline u32 mul_f16x2(u32 a, u32 b) { return f32_pair_to_f16(f16_to_f32(a) * f16_to_f32(b), f16_to_f32(a >> 16) * f16_to_f32(b >> 16)); }
inline u32 mul_bf16x2(u32 a, u32 b) {
  const auto value = [](u32 bits) { return __builtin_bit_cast(float, bits); };
  return f32_pair_to_bf16(value(a << 16) * value(b << 16), value(a & 0xffff0000U) * value(b & 0xffff0000U));
}
inline u32 add_f16x2(u32 a, u32 b) { return f32_pair_to_f16(f16_to_f32(a) + f16_to_f32(b), f16_to_f32(a >> 16) + f16_to_f32(b >> 16)); }

/// Chips that lack an instruction must not come to it.
inline void needs_fp8_conversions(const char* name) {
  if (!kConvertsFp8) emulator::misuse("there is no such instruction here", {name, "", 0});
}
inline void e4m3_word_to_f16(u32 (&pairs)[2], u32 codes) {
  needs_fp8_conversions("e4m3_word_to_f16");
  for (int i = 0; i < 2; ++i) {
    pairs[i] = f32_pair_to_f16(emulator::e4m3_value(codes >> (16 * i) & 0xffU), emulator::e4m3_value(codes >> (16 * i + 8) & 0xffU));
  }
}
inline u32 f32_pair_to_e4m3(float low, float high) {
  needs_fp8_conversions("f32_pair_to_e4m3");
  const auto code = [](float x) { return x != x ? 0x7fU : static_cast<u32>(emulator::e4m3_code(x)); };
  return code(low) | code(high) << 8;
}
inline u32 f32_pair_to_e5m2(float low, float high) {
  needs_fp8_conversions("f32_pair_to_e5m2");
  const auto code = [](float x) { return x != x ? 0x7fU : static_cast<u32>(emulator::e5m2_code(x)); };
  return code(low) | code(high) << 8;
}

}  // namespace girih::ptx
