// Conversions between storage types, f32 and packed pairs of 16-bit types. src/base/numeric.h is the definition: decoding is exact, and
// encoding gives its codes (to nearest even; f16 and bf16 overflow to infinity; e4m3, e5m2, i8, e2m1 saturate). The one freedom: which NaN
// a NaN becomes in f32, f16 and bf16. Pairs are u32, the element with the lower index in the low half. 8- and 4-bit codes become 16-bit
// floats by one idea: the magnitude's bits are moved under the wider format's exponent, where they mean the value times a power of two
// (subnormals included), and one packed product by its inverse, exact, puts that right.
#pragma once

#include "core/types.cuh"
#include "ptx/convert.cuh"

namespace girih {

/// Tag of the 4-bit codes: two to a byte, the even element in the low nibble.
struct e2m1x2 {
  u8 bits;
};

/// The largest finite value of a code: what a row's or block's largest |x| is mapped to when its scale is computed.
template <typename Code>
constexpr float kLargest = 0.0F;
template <>
constexpr float kLargest<e4m3> = 448.0F;
template <>
constexpr float kLargest<e5m2> = 57344.0F;
template <>
constexpr float kLargest<i8> = 127.0F;
template <>
constexpr float kLargest<e2m1x2> = 6.0F;

__device__ __forceinline__ u32 bits_of(float x) { return __builtin_bit_cast(u32, x); }
__device__ __forceinline__ float float_of(u32 bits) { return __builtin_bit_cast(float, bits); }

// ---------------------------------------------------------------------------------------------------------------- one element -> f32

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(f16 x) { return ptx::f16_to_f32(x.bits); }
__device__ __forceinline__ float to_f32(bf16 x) { return float_of(static_cast<u32>(x.bits) << 16); }
__device__ __forceinline__ float to_f32(e4m3 x) {
  const u32 code = x.bits;
  const float magnitude = float_of((code & 0x7fU) << 20) * 0x1p120F;
  return float_of(bits_of((code & 0x7fU) == 0x7fU ? float_of(0x7fc00000U) : magnitude) | (code & 0x80U) << 24);
}
__device__ __forceinline__ float to_f32(e5m2 x) { return ptx::f16_to_f32(static_cast<u32>(x.bits) << 8); }
__device__ __forceinline__ float to_f32(i8 x) { return static_cast<float>(x); }
/// The low nibble of `code`.
__device__ __forceinline__ float e2m1_to_f32(u32 code) {
  return float_of(bits_of(float_of((code & 7U) << 22) * 0x1p126F) | (code & 8U) << 28);
}
/// 2^(code - 127), 255 = NaN; code 0 is the subnormal 2^-127.
__device__ __forceinline__ float e8m0_to_f32(u32 code) {
  return float_of(code == 255 ? 0x7fc00000U : (code == 0 ? 0x00400000U : code << 23));
}

// ---------------------------------------------------------------------------------------------------------------- f32 -> one element

namespace convert_detail {

/// Rounds |x| (f32 bits without sign, not NaN) to a float of kExp exponent and kMan mantissa bits, as if exponents had no upper end.
template <int kExp, int kMan>
__device__ __forceinline__ u32 round_magnitude(u32 magnitude) {
  constexpr int kBias = (1 << (kExp - 1)) - 1;
  constexpr int kShift = 23 - kMan;
  constexpr u32 kMinNormal = static_cast<u32>(127 + 1 - kBias) << 23;
  constexpr u32 kMagic = static_cast<u32>(127 + 24 - kBias - kMan) << 23;  // its last place is the smallest subnormal: the adder rounds
  const u32 subnormal = bits_of(float_of(magnitude) + float_of(kMagic)) - kMagic;
  const u32 rebiased = magnitude - (static_cast<u32>(127 - kBias) << 23);
  const u32 normal = (rebiased + ((1U << (kShift - 1)) - 1U) + ((rebiased >> kShift) & 1U)) >> kShift;
  return magnitude < kMinNormal ? subnormal : normal;
}

/// The code of x in a saturating 8-bit float whose largest finite code is kMax; NaN is 0x7f with x's sign.
template <int kExp, int kMan, u32 kMax>
__device__ __forceinline__ u8 encode_fp8(float x) {
  const u32 magnitude = bits_of(x) & 0x7fffffffU;
  const u32 number = min(round_magnitude<kExp, kMan>(magnitude), kMax);
  return static_cast<u8>((bits_of(x) >> 24 & 0x80U) | (magnitude > 0x7f800000U ? 0x7fU : number));
}
__device__ __forceinline__ u8 encode_e4m3(float x) { return encode_fp8<4, 3, 0x7eU>(x); }
__device__ __forceinline__ u8 encode_e5m2(float x) { return encode_fp8<5, 2, 0x7bU>(x); }

/// The signs of values at the signs of their codes: what the instructions lose of NaNs.
__device__ __forceinline__ u32 fp8_sign(float x) { return bits_of(x) >> 24 & 0x80U; }
__device__ __forceinline__ u32 fp8_signs(float x0, float x1, float x2, float x3) {
  const u32 low = ptx::permute_bytes(bits_of(x0), bits_of(x1), 0x0073U);
  return ptx::permute_bytes(low, ptx::permute_bytes(bits_of(x2), bits_of(x3), 0x0073U), 0x5410U) & 0x80808080U;
}

}  // namespace convert_detail

/// from_f32<T>(x): T = float, f16, bf16, e4m3, e5m2, i8.
template <typename T>
__device__ __forceinline__ T from_f32(float x);

template <>
__device__ __forceinline__ float from_f32<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ f16 from_f32<f16>(float x) {
  return f16{static_cast<u16>(ptx::f32_pair_to_f16(x, 0.0F))};
}
template <>
__device__ __forceinline__ bf16 from_f32<bf16>(float x) {
  return bf16{static_cast<u16>(ptx::f32_pair_to_bf16(x, 0.0F))};
}
template <>
__device__ __forceinline__ e4m3 from_f32<e4m3>(float x) {
  if constexpr (ptx::kConvertsFp8) {
    return e4m3{static_cast<u8>(ptx::f32_pair_to_e4m3(x, 0.0F) | convert_detail::fp8_sign(x))};
  } else {
    return e4m3{convert_detail::encode_e4m3(x)};
  }
}
template <>
__device__ __forceinline__ e5m2 from_f32<e5m2>(float x) {
  if constexpr (ptx::kConvertsFp8) {
    return e5m2{static_cast<u8>(ptx::f32_pair_to_e5m2(x, 0.0F) | convert_detail::fp8_sign(x))};
  } else {
    return e5m2{convert_detail::encode_e5m2(x)};
  }
}
/// Saturates to +-127; NaN becomes 0.
template <>
__device__ __forceinline__ i8 from_f32<i8>(float x) {
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: its last place is 1, so the adder rounds to an integer
  const u32 magnitude = bits_of(x) & 0x7fffffffU;
  const float clamped = float_of(min(magnitude, 0x42fe0000U) | (bits_of(x) & 0x80000000U));
  return static_cast<i8>(magnitude > 0x7f800000U ? 0U : bits_of(clamped + kMagic) - bits_of(kMagic));
}
/// The nibble nearest to a number. Saturates to +-6.
__device__ __forceinline__ u32 e2m1_from_number(float x) {
  const u32 magnitude = min(bits_of(x) & 0x7fffffffU, 0x40c00000U);
  // The adder rounds to the code's last place, which the larger summand has: steps of 1/2 below 2, of 1 below 4, of 2 beyond.
  const u32 exponent = max(magnitude, 0x3f800000U) & 0x7f800000U;
  const u32 rounder = exponent + 0x0b400000U;
  const u32 steps = bits_of(float_of(magnitude) + float_of(rounder)) - rounder;
  return steps + (exponent >> 22) - 254U + (bits_of(x) >> 28 & 8U);
}
/// The nibble nearest to x; NaN becomes 0.
__device__ __forceinline__ u32 e2m1_from_f32(float x) { return x != x ? 0U : e2m1_from_number(x); }
/// The e8m0 code of 2^exponent, the exponent clamped to [-127, 127].
__device__ __forceinline__ u32 exponent_to_e8m0(int exponent) { return static_cast<u32>(min(max(exponent, -127), 127) + 127); }
/// floor(log2(x)) of a positive finite x, subnormals included.
__device__ __forceinline__ int exponent_of(float x) {
  const u32 b = bits_of(x) & 0x7fffffffU;
  return b >= 0x00800000U ? static_cast<int>(b >> 23) - 127 : static_cast<int>(bits_of(float_of(b) * 0x1p24F) >> 23) - 127 - 24;
}

// ---------------------------------------------------------------------------------------------------------------- pairs of f16 or bf16

/// pack<T>(low, high), T = f16 or bf16: both rounded to nearest even.
template <typename T>
__device__ __forceinline__ u32 pack(float low, float high);
template <>
__device__ __forceinline__ u32 pack<f16>(float low, float high) {
  return ptx::f32_pair_to_f16(low, high);
}
template <>
__device__ __forceinline__ u32 pack<bf16>(float low, float high) {
  return ptx::f32_pair_to_bf16(low, high);
}

/// The halves of a pair as f32.
template <typename T>
__device__ __forceinline__ float low_of(u32 pair);
template <>
__device__ __forceinline__ float low_of<f16>(u32 pair) {
  return ptx::f16_to_f32(pair & 0xffffU);
}
template <>
__device__ __forceinline__ float low_of<bf16>(u32 pair) {
  return float_of(pair << 16);
}
template <typename T>
__device__ __forceinline__ float high_of(u32 pair);
template <>
__device__ __forceinline__ float high_of<f16>(u32 pair) {
  return ptx::f16_to_f32(pair >> 16);
}
template <>
__device__ __forceinline__ float high_of<bf16>(u32 pair) {
  return float_of(pair & 0xffff0000U);
}

/// Half by half a * b, rounded once.
template <typename T>
__device__ __forceinline__ u32 mul_pair(u32 a, u32 b);
template <>
__device__ __forceinline__ u32 mul_pair<f16>(u32 a, u32 b) {
  return ptx::mul_f16x2(a, b);
}
template <>
__device__ __forceinline__ u32 mul_pair<bf16>(u32 a, u32 b) {
  return ptx::mul_bf16x2(a, b);
}

// ---------------------------------------------------------------------------------------------------------------- 8 bit -> pairs

namespace convert_detail {

/// Codes 0, 1 of a word of four at the tops of the halves of a pair; and codes 2, 3.
__device__ __forceinline__ u32 spread_low(u32 codes) { return ptx::permute_bytes(codes, 0U, 0x1404U); }
__device__ __forceinline__ u32 spread_high(u32 codes) { return ptx::permute_bytes(codes, 0U, 0x3424U); }

/// e4m3 codes at the tops of halves. The NaN code would become 480: the bits of its exponent that are missing are those of no other code.
__device__ __forceinline__ u32 e4m3_tops_to_f16(u32 tops) {
  const u32 magnitude = (tops & 0x7f007f00U) >> 1;
  const u32 nan = (magnitude + 0x00800080U) & 0x40004000U;
  return ptx::mul_f16x2(magnitude | (tops & 0x80008000U), 0x5c005c00U) | nan >> 1;
}
__device__ __forceinline__ u32 e4m3_tops_to_bf16(u32 tops) {
  const u32 magnitude = (tops & 0x7f007f00U) >> 4;
  const u32 nan = (magnitude + 0x00100010U) & 0x08000800U;
  return ptx::mul_bf16x2(magnitude | (tops & 0x80008000U), 0x7b807b80U) | (nan * 8U - (nan >> 1));
}
/// Likewise; the codes of infinity and NaN have the top exponent.
__device__ __forceinline__ u32 e5m2_tops_to_bf16(u32 tops) {
  const u32 magnitude = (tops & 0x7f007f00U) >> 3;
  const u32 special = (magnitude + 0x00800080U) & 0x10001000U;
  return ptx::mul_bf16x2(magnitude | (tops & 0x80008000U), 0x77807780U) | (special * 4U - (special >> 1));
}

}  // namespace convert_detail

/// Four codes of one word (element 0 in the lowest byte) as two pairs of T = f16 or bf16; Code = e4m3, e5m2 or i8. Exact.
template <typename T, typename Code>
struct Widen;

template <>
struct Widen<f16, e4m3> {
  static __device__ __forceinline__ void apply(u32 (&pairs)[2], u32 codes) {
    if constexpr (ptx::kConvertsFp8) {
      ptx::e4m3_word_to_f16(pairs, codes);
    } else {
      pairs[0] = convert_detail::e4m3_tops_to_f16(convert_detail::spread_low(codes));
      pairs[1] = convert_detail::e4m3_tops_to_f16(convert_detail::spread_high(codes));
    }
  }
};
template <>
struct Widen<bf16, e4m3> {
  static __device__ __forceinline__ void apply(u32 (&pairs)[2], u32 codes) {
    pairs[0] = convert_detail::e4m3_tops_to_bf16(convert_detail::spread_low(codes));
    pairs[1] = convert_detail::e4m3_tops_to_bf16(convert_detail::spread_high(codes));
  }
};
template <>
struct Widen<f16, e5m2> {
  static __device__ __forceinline__ void apply(u32 (&pairs)[2], u32 codes) {
    pairs[0] = convert_detail::spread_low(codes);
    pairs[1] = convert_detail::spread_high(codes);
  }
};
template <>
struct Widen<bf16, e5m2> {
  static __device__ __forceinline__ void apply(u32 (&pairs)[2], u32 codes) {
    pairs[0] = convert_detail::e5m2_tops_to_bf16(convert_detail::spread_low(codes));
    pairs[1] = convert_detail::e5m2_tops_to_bf16(convert_detail::spread_high(codes));
  }
};
/// 1024 + (code + 128) is an f16 whose lowest byte is code + 128.
template <>
struct Widen<f16, i8> {
  static __device__ __forceinline__ void apply(u32 (&pairs)[2], u32 codes) {
    const u32 shifted = codes ^ 0x80808080U;
    pairs[0] = ptx::add_f16x2(ptx::permute_bytes(shifted, 0x64646464U, 0x4140U), 0xe480e480U);
    pairs[1] = ptx::add_f16x2(ptx::permute_bytes(shifted, 0x64646464U, 0x4342U), 0xe480e480U);
  }
};
/// 2^23 + (code + 128) likewise; an integer of 8 bits leaves the lower half of an f32 zero.
template <>
struct Widen<bf16, i8> {
  static __device__ __forceinline__ void apply(u32 (&pairs)[2], u32 codes) {
    const u32 shifted = codes ^ 0x80808080U;
    constexpr float kOffset = 8388608.0F + 128.0F;
    const float x0 = float_of(ptx::permute_bytes(shifted, 0x4b000000U, 0x7650U)) - kOffset;
    const float x1 = float_of(ptx::permute_bytes(shifted, 0x4b000000U, 0x7651U)) - kOffset;
    const float x2 = float_of(ptx::permute_bytes(shifted, 0x4b000000U, 0x7652U)) - kOffset;
    const float x3 = float_of(ptx::permute_bytes(shifted, 0x4b000000U, 0x7653U)) - kOffset;
    pairs[0] = ptx::permute_bytes(bits_of(x0), bits_of(x1), 0x7632U);
    pairs[1] = ptx::permute_bytes(bits_of(x2), bits_of(x3), 0x7632U);
  }
};

/// widen<T, Code>(pairs, codes): see Widen.
template <typename T, typename Code>
__device__ __forceinline__ void widen(u32 (&pairs)[2], u32 codes) {
  Widen<T, Code>::apply(pairs, codes);
}

/// Two e2m1 codes, in the low nibbles of the halves, as a pair of T = f16 or bf16; without their scales. Exact.
template <typename T>
__device__ __forceinline__ u32 widen_e2m1_pair(u32 spread) {
  const u32 sign = (spread & 0x00080008U) << 12;
  const u32 magnitude = spread & 0x00070007U;
  if constexpr (kSame<T, f16>) {
    return ptx::mul_f16x2(magnitude << 9 | sign, 0x74007400U);
  } else {
    return ptx::mul_bf16x2(magnitude << 6 | sign, 0x7e807e80U);
  }
}

/// Eight e2m1 codes (element 0 in the lowest nibble) as four pairs of T = f16 or bf16; without their scales. Exact. A product with an e4m3
/// scale has at most 6 significant bits, so mul_pair by such a scale (nvfp4) is exact in both types; by an e8m0 scale (mxfp4) it is exact
/// in bf16 where the result is normal and finite, and overflows f16 from scale 2^14 on.
template <typename T>
__device__ __forceinline__ void widen_e2m1(u32 (&pairs)[4], u32 codes) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u32 byte = codes >> (8 * i);
    pairs[i] = widen_e2m1_pair<T>((byte & 0xfU) | (byte & 0xf0U) << 12);
  }
}

/// An e8m0 scale in both halves of a pair of bf16.
__device__ __forceinline__ u32 e8m0_to_bf16_pair(u32 code) {
  const u32 half = code == 255 ? 0x7fc0U : (code == 0 ? 0x0040U : code << 7);
  return half | half << 16;
}
/// An e4m3 scale in both halves of a pair of T.
template <typename T>
__device__ __forceinline__ u32 e4m3_to_pair(u32 code) {
  u32 pairs[2];
  widen<T, e4m3>(pairs, (code & 0xffU) * 0x0101U);
  return pairs[0];
}

// ---------------------------------------------------------------------------------------------------------------- words -> f32

/// The elements of one word as f32: T = float 1, f16 or bf16 2, e4m3, e5m2 or i8 4, e2m1x2 8 (without their scales).
template <typename T>
constexpr int kPerWord = kSame<T, e2m1x2> ? 8 : 4 / static_cast<int>(sizeof(T));

template <typename T>
__device__ __forceinline__ void unpack(float (&x)[kPerWord<T>], u32 word) {
  if constexpr (kSame<T, float>) {
    x[0] = float_of(word);
  } else if constexpr (sizeof(T) == 2) {
    x[0] = low_of<T>(word);
    x[1] = high_of<T>(word);
  } else if constexpr (kSame<T, e2m1x2>) {
    u32 pairs[4];
    widen_e2m1<f16>(pairs, word);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = low_of<f16>(pairs[i]);
      x[2 * i + 1] = high_of<f16>(pairs[i]);
    }
  } else {
    u32 pairs[2];
    widen<f16, T>(pairs, word);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      x[2 * i] = low_of<f16>(pairs[i]);
      x[2 * i + 1] = high_of<f16>(pairs[i]);
    }
  }
}

/// Four values as codes of one word, Code = e4m3, e5m2 or i8.
template <typename Code>
__device__ __forceinline__ u32 pack_codes(float x0, float x1, float x2, float x3) {
  if constexpr (kSame<Code, i8>) {
    const auto byte = [](float x) { return static_cast<u32>(static_cast<u8>(from_f32<i8>(x))); };
    return byte(x0) | byte(x1) << 8 | byte(x2) << 16 | byte(x3) << 24;
  } else if constexpr (!ptx::kConvertsFp8) {
    const auto byte = [](float x) { return static_cast<u32>(from_f32<Code>(x).bits); };
    return byte(x0) | byte(x1) << 8 | byte(x2) << 16 | byte(x3) << 24;
  } else {
    const u32 signs = convert_detail::fp8_signs(x0, x1, x2, x3);
    if constexpr (kSame<Code, e4m3>) {
      return ptx::f32_pair_to_e4m3(x0, x1) | ptx::f32_pair_to_e4m3(x2, x3) << 16 | signs;
    } else {
      return ptx::f32_pair_to_e5m2(x0, x1) | ptx::f32_pair_to_e5m2(x2, x3) << 16 | signs;
    }
  }
}

}  // namespace girih
