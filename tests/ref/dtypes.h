// Number formats from their definitions: sign, exponent and mantissa fields, bias, special codes. Independent of the library's
// conversions. Encoding searches the nearest code (ties to the even one), which needs nothing but `decode` because the positive codes
// of every format here ascend with their values.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "girih/tensor.h"

namespace girih::ref {

/// What the codes with an all-ones exponent mean.
enum class Special : std::uint8_t { ieee, one_nan, none };

struct Format {
  int exponent_bits, mantissa_bits, bias;
  Special special;
};

/// The float format of `t`; e2m1 for both 4-bit types (their scales are separate data).
inline Format format_of(DType t) {
  switch (t) {
    case DType::f16: return {5, 10, 15, Special::ieee};
    case DType::bf16: return {8, 7, 127, Special::ieee};
    case DType::e4m3: return {4, 3, 7, Special::one_nan};
    case DType::e5m2: return {5, 2, 15, Special::ieee};
    case DType::nvfp4:
    case DType::mxfp4: return {2, 1, 1, Special::none};
    default: return {8, 23, 127, Special::ieee};
  }
}

inline double decode(const Format& f, std::uint32_t code) {
  const std::uint32_t mantissa = code & ((1U << f.mantissa_bits) - 1);
  const int exponent = static_cast<int>((code >> f.mantissa_bits) & ((1U << f.exponent_bits) - 1));
  const double sign = ((code >> (f.mantissa_bits + f.exponent_bits)) & 1U) ? -1.0 : 1.0;
  const bool top = exponent == (1 << f.exponent_bits) - 1;
  if (top && f.special == Special::ieee) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (top && f.special == Special::one_nan && mantissa == (1U << f.mantissa_bits) - 1) return std::numeric_limits<double>::quiet_NaN();
  const double fraction = std::ldexp(static_cast<double>(mantissa), -f.mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - f.bias);
  return sign * std::ldexp(1.0 + fraction, exponent - f.bias);
}

/// The value of one element's code (4-bit types: an e2m1 nibble).
inline double decode(DType t, std::uint32_t code) {
  if (t == DType::i8) return static_cast<double>(static_cast<std::int8_t>(code));
  return decode(format_of(t), code);
}

/// e8m0 of OCP MX: 2^(code - 127), 255 is NaN.
inline double decode_e8m0(std::uint32_t code) {
  return code == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, static_cast<int>(code) - 127);
}

/// The largest finite value.
inline double largest(DType t) {
  switch (t) {
    case DType::i8: return 127;
    case DType::e4m3: return 448;
    case DType::nvfp4:
    case DType::mxfp4: return 6;
    default: {
      const Format f = format_of(t);
      return std::ldexp(2.0 - std::ldexp(1.0, -f.mantissa_bits), (1 << f.exponent_bits) - 2 - f.bias);
    }
  }
}

/// The nearest code, ties to even. Beyond the range: infinity in f32, f16 and bf16, the largest value in the narrower types. NaN: the
/// quiet NaN where the type has one, else 0.
inline std::uint32_t encode(DType t, double x) {
  if (t == DType::i8) {
    if (std::isnan(x)) return 0;
    return static_cast<std::uint8_t>(static_cast<std::int8_t>(std::fmax(-128, std::fmin(127, std::nearbyint(x)))));
  }
  if (t == DType::f32) return std::bit_cast<std::uint32_t>(static_cast<float>(x));
  const Format f = format_of(t);
  const int magnitude_bits = f.exponent_bits + f.mantissa_bits;
  const std::uint32_t sign = std::signbit(x) ? 1U << magnitude_bits : 0;
  if (std::isnan(x)) {
    if (f.special == Special::none) return 0;
    if (f.special == Special::one_nan) return (1U << magnitude_bits) - 1;
    return (((1U << f.exponent_bits) - 1) << f.mantissa_bits) | (1U << (f.mantissa_bits - 1));
  }
  const double a = std::fabs(x);
  std::uint32_t top = (1U << magnitude_bits) - 1;  // the code of the largest finite value
  if (f.special == Special::ieee) top = (((1U << f.exponent_bits) - 1) << f.mantissa_bits) - 1;
  if (f.special == Special::one_nan) top -= 1;
  if (a >= decode(f, top)) {
    const double half_step = (decode(f, top) - decode(f, top - 1)) / 2;
    const bool to_infinity = (t == DType::f16 || t == DType::bf16) && a >= decode(f, top) + half_step;
    return sign | (top + (to_infinity ? 1 : 0));
  }
  std::uint32_t low = 0;  // decode(low) <= a < decode(high)
  std::uint32_t high = top;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (decode(f, middle) <= a ? low : high) = middle;
  }
  const double below = a - decode(f, low);
  const double above = decode(f, high) - a;
  if (below != above) return sign | (below < above ? low : high);
  return sign | ((low & 1U) ? high : low);
}

/// Elements that share a scale: 16 (nvfp4), 32 (mxfp4), else 0.
inline int block_size(DType t) { return t == DType::nvfp4 ? 16 : t == DType::mxfp4 ? 32 : 0; }

/// Writes the code of element `i` of a row that starts at `row`, elements `byte_stride` apart (4-bit: packed, low nibble first).
inline void store_code(std::byte* row, DType t, std::int64_t i, std::int64_t byte_stride, std::uint32_t code) {
  if (bits(t) == 4) {
    std::uint8_t& b = reinterpret_cast<std::uint8_t&>(row[i / 2]);
    b = static_cast<std::uint8_t>((i % 2) ? (b & 0x0fU) | (code << 4) : (b & 0xf0U) | (code & 0x0fU));
    return;
  }
  std::memcpy(row + i * byte_stride, &code, static_cast<std::size_t>(bits(t) / 8));  // little-endian
}

inline std::uint32_t load_code(const std::byte* row, DType t, std::int64_t i, std::int64_t byte_stride) {
  if (bits(t) == 4) return (static_cast<std::uint32_t>(row[i / 2]) >> ((i % 2) * 4)) & 15U;
  std::uint32_t code = 0;
  std::memcpy(&code, row + i * byte_stride, static_cast<std::size_t>(bits(t) / 8));
  return code;
}

}  // namespace girih::ref
