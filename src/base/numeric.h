// Number formats: conversions between f32 and every element type a KV cache or a tensor may hold, one scalar at a time.
// Portable and constexpr: this is the definition that vector code elsewhere must agree with, and simple enough for compilers to
// vectorise: both sides of a case are computed and one is selected. Encoding rounds to nearest, ties to even. One idea serves all small
// floats: above the format's smallest normal the f32 bits are shifted with the exponent rebiased (a carry out of the mantissa moves into
// the exponent by itself); below it, adding a power of two whose last place is the format's smallest subnormal makes the f32 adder round.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "girih/tensor.h"

namespace girih {

namespace numeric_detail {

inline constexpr std::uint32_t kAbsMask = 0x7fffffffU;
inline constexpr std::uint32_t kInfBits = 0x7f800000U;

/// if_true or if_false by masks: compilers turn a ?: with float arithmetic on one side into a branch and then do not vectorise.
constexpr std::uint32_t select_bits(bool condition, std::uint32_t if_true, std::uint32_t if_false) {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (if_true & mask) | (if_false & ~mask);
}

/// Rounds |x| (f32 bits without sign, not NaN) to a float of kExp exponent and kMan mantissa bits, as if exponents had no upper end:
/// the caller compares the code with its format's largest.
template <int kExp, int kMan>
constexpr std::uint32_t round_magnitude(std::uint32_t abs_bits) {
  constexpr int kBias = (1 << (kExp - 1)) - 1;
  constexpr int kShift = 23 - kMan;
  constexpr std::uint32_t kMinNormal = static_cast<std::uint32_t>(127 + 1 - kBias) << 23;
  constexpr std::uint32_t kMagicBits = static_cast<std::uint32_t>(127 + 24 - kBias - kMan) << 23;
  const std::uint32_t small = abs_bits < kMinNormal ? abs_bits : kMinNormal;
  const float shifted = std::bit_cast<float>(small) + std::bit_cast<float>(kMagicBits);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - kMagicBits;
  const std::uint32_t rebiased = abs_bits - (static_cast<std::uint32_t>(127 - kBias) << 23);
  const std::uint32_t normal = (rebiased + ((1U << (kShift - 1)) - 1) + ((rebiased >> kShift) & 1U)) >> kShift;
  return select_bits(abs_bits < kMinNormal, subnormal, normal);
}

/// The value of a code without sign of such a format; the top exponent is an ordinary one.
template <int kExp, int kMan>
constexpr float expand_magnitude(std::uint32_t code) {
  constexpr int kBias = (1 << (kExp - 1)) - 1;
  constexpr std::uint32_t kMinSubnormal = static_cast<std::uint32_t>(127 + 1 - kBias - kMan) << 23;
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(code)) * std::bit_cast<float>(kMinSubnormal);
  const std::uint32_t normal = (code << (23 - kMan)) + (static_cast<std::uint32_t>(127 - kBias) << 23);
  return std::bit_cast<float>(select_bits(code < (1U << kMan), std::bit_cast<std::uint32_t>(subnormal), normal));
}

constexpr float with_sign(float magnitude, std::uint32_t sign_bit) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign_bit);
}

}  // namespace numeric_detail

// ---------------------------------------------------------------------------------------------------------------- 16-bit

constexpr float decode_bf16(std::uint16_t code) { return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16); }

/// Overflow becomes infinity; NaN keeps its sign and upper payload and becomes quiet.
constexpr std::uint16_t encode_bf16(float x) {
  const std::uint32_t b = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (b + 0x7fffU + ((b >> 16) & 1U)) >> 16;
  const std::uint32_t nan = (b >> 16) | 0x0040U;
  return static_cast<std::uint16_t>((b & numeric_detail::kAbsMask) > numeric_detail::kInfBits ? nan : rounded);
}

constexpr float decode_f16(std::uint16_t code) {
  const std::uint32_t magnitude = code & 0x7fffU;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x8000U) << 16;
  const std::uint32_t quiet = magnitude > 0x7c00U ? 0x00400000U : 0U;
  const std::uint32_t special = numeric_detail::kInfBits | quiet | ((magnitude & 0x3ffU) << 13);
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(numeric_detail::expand_magnitude<5, 10>(magnitude));
  return std::bit_cast<float>(sign | numeric_detail::select_bits(magnitude >= 0x7c00U, special, finite));
}

/// Overflow becomes infinity; NaN keeps its sign and upper payload and becomes quiet.
constexpr std::uint16_t encode_f16(float x) {
  const std::uint32_t b = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = b & numeric_detail::kAbsMask;
  const std::uint32_t sign = (b >> 16) & 0x8000U;
  const std::uint32_t nan = 0x7e00U | ((magnitude >> 13) & 0x1ffU);
  const std::uint32_t rounded = numeric_detail::round_magnitude<5, 10>(magnitude);
  const std::uint32_t number = rounded < 0x7c00U ? rounded : 0x7c00U;
  return static_cast<std::uint16_t>(sign | numeric_detail::select_bits(magnitude > numeric_detail::kInfBits, nan, number));
}

// ---------------------------------------------------------------------------------------------------------------- 8-bit

inline constexpr float kMaxE4m3 = 448.0F;
inline constexpr float kMaxE5m2 = 57344.0F;
inline constexpr float kMaxI8 = 127.0F;
inline constexpr float kMaxE2m1 = 6.0F;

/// e4m3fn (OCP OFP8): no infinity, the two codes 0x7f and 0xff are NaN, largest value 448.
constexpr float decode_e4m3(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fU;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80U) << 24;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(numeric_detail::expand_magnitude<4, 3>(magnitude));
  return std::bit_cast<float>(sign | numeric_detail::select_bits(magnitude == 0x7fU, 0x7fc00000U, finite));
}

/// Overflow and infinity saturate to +-448; NaN keeps its sign.
constexpr std::uint8_t encode_e4m3(float x) {
  const std::uint32_t b = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = b & numeric_detail::kAbsMask;
  const std::uint32_t sign = (b >> 24) & 0x80U;
  const std::uint32_t rounded = numeric_detail::round_magnitude<4, 3>(magnitude);
  const std::uint32_t number = rounded < 0x7eU ? rounded : 0x7eU;
  return static_cast<std::uint8_t>(sign | numeric_detail::select_bits(magnitude > numeric_detail::kInfBits, 0x7fU, number));
}

/// e5m2 (OCP OFP8): the upper half of an f16, with infinity and NaN.
constexpr float decode_e5m2(std::uint8_t code) { return decode_f16(static_cast<std::uint16_t>(code << 8)); }

/// Overflow and infinity saturate to +-57344 (a cache must not gain infinities by being written); NaN keeps its sign, code 0x7f.
constexpr std::uint8_t encode_e5m2(float x) {
  const std::uint32_t b = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = b & numeric_detail::kAbsMask;
  const std::uint32_t sign = (b >> 24) & 0x80U;
  const std::uint32_t rounded = numeric_detail::round_magnitude<5, 2>(magnitude);
  const std::uint32_t number = rounded < 0x7bU ? rounded : 0x7bU;
  return static_cast<std::uint8_t>(sign | numeric_detail::select_bits(magnitude > numeric_detail::kInfBits, 0x7fU, number));
}

constexpr float decode_i8(std::uint8_t code) { return static_cast<float>(static_cast<std::int8_t>(code)); }

/// Saturates to +-127 (-128 is never written, so that the range is symmetric); NaN becomes 0.
constexpr std::uint8_t encode_i8(float x) {
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: its last place is 1, so the adder rounds to an integer
  constexpr std::uint32_t kMaxBits = std::bit_cast<std::uint32_t>(kMaxI8);
  const std::uint32_t b = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = b & numeric_detail::kAbsMask;
  const float clamped = numeric_detail::with_sign(std::bit_cast<float>(magnitude < kMaxBits ? magnitude : kMaxBits), b & 0x80000000U);
  const std::uint32_t number = std::bit_cast<std::uint32_t>(clamped + kMagic) - std::bit_cast<std::uint32_t>(kMagic);
  return static_cast<std::uint8_t>(numeric_detail::select_bits(magnitude > numeric_detail::kInfBits, 0U, number));
}

// ---------------------------------------------------------------------------------------------------------------- 4-bit, scales

/// e2m1 (OCP MX 1.0): codes 0..7 are 0 0.5 1 1.5 2 3 4 6, bit 3 the sign; only the low nibble of `code` counts.
constexpr float decode_e2m1(std::uint8_t code) {
  return numeric_detail::with_sign(numeric_detail::expand_magnitude<2, 1>(code & 0x7U), static_cast<std::uint32_t>(code & 0x8U) << 28);
}

/// Saturates to +-6; NaN becomes 0 (the format has none).
constexpr std::uint8_t encode_e2m1(float x) {
  const std::uint32_t b = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = b & numeric_detail::kAbsMask;
  const std::uint32_t rounded = numeric_detail::round_magnitude<2, 1>(magnitude);
  const std::uint32_t number = ((b >> 28) & 0x8U) | (rounded < 0x7U ? rounded : 0x7U);
  return static_cast<std::uint8_t>(numeric_detail::select_bits(magnitude > numeric_detail::kInfBits, 0U, number));
}

/// e8m0 (OCP MX 1.0): 2^(code - 127), 255 = NaN. Code 0 is the f32 subnormal 2^-127.
constexpr float decode_e8m0(std::uint8_t code) {
  if (code == 255) return std::bit_cast<float>(0x7fc00000U);
  return std::bit_cast<float>(code == 0 ? 0x00400000U : static_cast<std::uint32_t>(code) << 23);
}

/// The code of 2^exponent, the exponent clamped to [-127, 127].
constexpr std::uint8_t e8m0_from_exponent(int exponent) {
  return static_cast<std::uint8_t>((exponent < -127 ? -127 : (exponent > 127 ? 127 : exponent)) + 127);
}

/// floor(log2(x)) of a positive finite x, subnormals included.
constexpr int floor_log2(float x) {
  const std::uint32_t b = std::bit_cast<std::uint32_t>(x) & numeric_detail::kAbsMask;
  return b >= 0x00800000U ? static_cast<int>(b >> 23) - 127 : static_cast<int>(std::bit_width(b)) - 150;
}

// ---------------------------------------------------------------------------------------------------------------- by type

/// A type's code, decoder and encoder at compile time, for inner loops. The 4-bit types' Code holds one element (low nibble).
template <DType kType>
struct Format;

template <>
struct Format<DType::f32> {
  using Code = std::uint32_t;
  static constexpr float decode(Code c) { return std::bit_cast<float>(c); }
  static constexpr Code encode(float x) { return std::bit_cast<Code>(x); }
};
template <>
struct Format<DType::f16> {
  using Code = std::uint16_t;
  static constexpr float decode(Code c) { return decode_f16(c); }
  static constexpr Code encode(float x) { return encode_f16(x); }
};
template <>
struct Format<DType::bf16> {
  using Code = std::uint16_t;
  static constexpr float decode(Code c) { return decode_bf16(c); }
  static constexpr Code encode(float x) { return encode_bf16(x); }
};
template <>
struct Format<DType::e4m3> {
  using Code = std::uint8_t;
  static constexpr float decode(Code c) { return decode_e4m3(c); }
  static constexpr Code encode(float x) { return encode_e4m3(x); }
};
template <>
struct Format<DType::e5m2> {
  using Code = std::uint8_t;
  static constexpr float decode(Code c) { return decode_e5m2(c); }
  static constexpr Code encode(float x) { return encode_e5m2(x); }
};
template <>
struct Format<DType::i8> {
  using Code = std::uint8_t;
  static constexpr float decode(Code c) { return decode_i8(c); }
  static constexpr Code encode(float x) { return encode_i8(x); }
};

template <>
struct Format<DType::nvfp4> {
  using Code = std::uint8_t;
  static constexpr float decode(Code c) { return decode_e2m1(c); }
  static constexpr Code encode(float x) { return encode_e2m1(x); }
};
template <>
struct Format<DType::mxfp4> : Format<DType::nvfp4> {};

/// Whether `t` is a floating or quantised type that the functions below take: all but i32, i64, u8.
constexpr bool is_numeric(DType t) { return t != DType::i32 && t != DType::i64 && t != DType::u8; }
/// Elements that share one block scale: 16 (nvfp4), 32 (mxfp4), 0 for other types.
constexpr int scale_block(DType t) { return t == DType::nvfp4 ? 16 : (t == DType::mxfp4 ? 32 : 0); }

/// Calls f.operator()<kType>() with the run-time type made a compile-time one, for types with is_numeric().
template <typename F>
constexpr decltype(auto) with_format(DType t, F&& f) {
  switch (t) {
    case DType::f32: return f.template operator()<DType::f32>();
    case DType::f16: return f.template operator()<DType::f16>();
    case DType::bf16: return f.template operator()<DType::bf16>();
    case DType::e4m3: return f.template operator()<DType::e4m3>();
    case DType::e5m2: return f.template operator()<DType::e5m2>();
    case DType::i8: return f.template operator()<DType::i8>();
    case DType::nvfp4: return f.template operator()<DType::nvfp4>();
    case DType::mxfp4: return f.template operator()<DType::mxfp4>();
    default: bug("type {} has no number format", static_cast<int>(t));
  }
}

/// The value of one element's code (without scales).
constexpr float decode(DType t, std::uint32_t code) {
  return with_format(t, [code]<DType kType>() { return Format<kType>::decode(static_cast<typename Format<kType>::Code>(code)); });
}
/// The code of the value nearest to x.
constexpr std::uint32_t encode(DType t, float x) {
  return with_format(t, [x]<DType kType>() -> std::uint32_t { return Format<kType>::encode(x); });
}

/// The largest finite value of a type that saturates when written, e.g. 448 for e4m3; f32's own maximum etc. for the others.
constexpr float largest(DType t) {
  switch (t) {
    case DType::e4m3: return kMaxE4m3;
    case DType::e5m2: return kMaxE5m2;
    case DType::i8: return kMaxI8;
    case DType::nvfp4:
    case DType::mxfp4: return kMaxE2m1;
    case DType::f16: return 65504.0F;
    case DType::bf16: return decode_bf16(0x7f7f);
    default: return std::bit_cast<float>(0x7f7fffffU);
  }
}

/// Element `index` of dense elements at `row`, which need not be aligned; scales are not applied. 4-bit: the even element is in the
/// low nibble.
template <DType kType>
float load_element(const void* row, std::int64_t index) {
  typename Format<kType>::Code code;
  const auto* base = static_cast<const unsigned char*>(row);
  if constexpr (bits(kType) == 4) {
    code = static_cast<std::uint8_t>((base[index >> 1] >> ((index & 1) * 4)) & 0xf);
  } else {
    std::memcpy(&code, base + index * static_cast<std::int64_t>(sizeof(code)), sizeof(code));
  }
  return Format<kType>::decode(code);
}

/// Rounds x into element `index`; of a 4-bit pair the other nibble is kept.
template <DType kType>
void store_element(void* row, std::int64_t index, float x) {
  const typename Format<kType>::Code code = Format<kType>::encode(x);
  auto* base = static_cast<unsigned char*>(row);
  if constexpr (bits(kType) == 4) {
    const int shift = static_cast<int>(index & 1) * 4;
    base[index >> 1] = static_cast<unsigned char>((base[index >> 1] & (0xf0 >> shift)) | (code << shift));
  } else {
    std::memcpy(base + index * static_cast<std::int64_t>(sizeof(code)), &code, sizeof(code));
  }
}

inline float load_element(DType t, const void* row, std::int64_t index) {
  return with_format(t, [=]<DType kType>() { return load_element<kType>(row, index); });
}
inline void store_element(DType t, void* row, std::int64_t index, float x) {
  with_format(t, [=]<DType kType>() { store_element<kType>(row, index, x); });
}

}  // namespace girih
