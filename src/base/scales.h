// How the scales of quantised data are chosen from the largest finite |x|, M, of what shares them. Codes are taken relative to the scale
// as stored, global factor included: what a reader multiplies by. kernels/rows/quantize.cuh does the same on a GPU, bit for bit.
//   f32 scales                M / largest code / global (448, 57344, 127); 1 where that is 0 or underflows
//   nvfp4, blocks of 16       e4m3(M / 6 / global); a block of zeros takes 0
//   mx, blocks of 32          2^(floor(log2(M / global)) - e) (OCP MX 1.0, 6.3), e the exponent of the code's largest power of two: e2m1 2,
//                             e4m3 8, e5m2 15; a block of zeros takes 2^0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/numeric.h"

namespace girih {

struct ChosenScale {
  std::uint8_t code = 0;  // where scales are codes
  float stored = 0;       // where they are f32
  float scale = 0;        // what codes are relative to; 0: all codes are 0
};

inline constexpr float kMaxF32 = std::bit_cast<float>(0x7f7fffffU);

inline ChosenScale f32_scale(float most, float largest_code, float global) {
  float stored = std::min(most / largest_code / global, kMaxF32);
  if (!(stored * global > 0)) stored = 1.0F;
  return {0, stored, stored * global};
}
inline ChosenScale nvfp4_scale(float most, float global) {
  const std::uint8_t code = encode_e4m3(most / kMaxE2m1 / global);
  return {code, 0, decode_e4m3(code) * global};
}
inline ChosenScale mx_scale(float most, int exponent, float global) {
  const float relative = std::min(most / global, kMaxF32);
  const std::uint8_t code = e8m0_from_exponent(relative > 0 ? floor_log2(relative) - exponent : 0);
  return {code, 0, decode_e8m0(code) * global};
}
/// floor(log2) of the largest code.
constexpr int largest_exponent(DType t) { return t == DType::e4m3 ? 8 : (t == DType::e5m2 ? 15 : 2); }

}  // namespace girih
