// Rotary angles without tables of positions: an angle is kept in 2^-64 turns, so that position times frequency is one wrapping integer
// product, exact for any position, and only the remainder within an eighth of a turn becomes f32. Cosines and sines are within 1.2e-7.
#pragma once

#include "core/types.cuh"

namespace girih::attention {

struct Rotation {
  float cos, sin;
};

/// Of an angle of `turns` * 2^-64 turns.
__device__ __forceinline__ Rotation rotation(u64 turns) {
  const u32 quarter = static_cast<u32>((turns + (u64{1} << 61)) >> 62);
  const i32 rest = static_cast<i32>(static_cast<u32>(turns >> 32) - (quarter << 30));  // 2^-32 turns, within +-2^29
  const float x = static_cast<float>(rest) * 1.46291807926715968e-9F;                  // 2 pi / 2^32
  const float z = x * x;
  // Taylor: the terms left out are below 2.5e-8 for |x| <= pi / 4.
  const float sin =
      x +
      x * (z * (-1.66666666666666667e-1F + z * (8.33333333333333333e-3F + z * (-1.98412698412698413e-4F + z * 2.75573192239858907e-6F))));
  const float cos = 1.0F + z * (-0.5F + z * (4.16666666666666667e-2F + z * (-1.38888888888888889e-3F + z * 2.48015873015873016e-5F)));
  const bool swap = (quarter & 1U) != 0;
  const float a = swap ? sin : cos;
  const float b = swap ? cos : sin;
  return {.cos = quarter == 1 || quarter == 2 ? -a : a, .sin = quarter >= 2 ? -b : b};
}

/// Elements of pair i of a head.
template <class Variant>
struct RopePair {
  static __device__ constexpr int first(int i) { return Variant::kRopeBegin + (Variant::kRopeInterleave ? 2 * i : i); }
  static __device__ constexpr int second(int i) { return first(i) + (Variant::kRopeInterleave ? 1 : Variant::kRopePairs); }
};

/// Rotates the pair (x, y) = elements (first(i), second(i)) by its angle at `position`.
template <class Variant>
__device__ __forceinline__ void rotate_pair(int i, i64 position, float& x, float& y) {
  const Rotation r = rotation(Variant::rope_turns(i) * static_cast<u64>(position));
  const float a = x;
  x = a * r.cos - y * r.sin;
  y = a * r.sin + y * r.cos;
}

}  // namespace girih::attention
