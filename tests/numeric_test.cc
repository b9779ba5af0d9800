// Number formats, exhaustively: every code decodes to the value its format's definition gives (computed here in double with ldexp), and
// every value encodes to the code that a search over all codes finds nearest, ties going to the even code.
#include "base/numeric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace girih {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

/// The IEEE-style definition: sign, exponent, mantissa.
double defined_value(std::uint32_t code, int exp_bits, int man_bits) {
  const int bias = (1 << (exp_bits - 1)) - 1;
  const int sign = static_cast<int>(code >> (exp_bits + man_bits)) & 1;
  const int exponent = static_cast<int>(code >> man_bits) & ((1 << exp_bits) - 1);
  const int mantissa = static_cast<int>(code) & ((1 << man_bits) - 1);
  const double value =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - man_bits) : std::ldexp(mantissa + (1 << man_bits), exponent - bias - man_bits);
  return sign != 0 ? -value : value;
}

bool same_value(float a, double b) { return static_cast<double>(a) == b && std::signbit(a) == std::signbit(b); }

struct SmallFloat {
  DType type;
  int exp_bits, man_bits;
  std::uint32_t max_code;  // largest finite, without sign
  bool overflow_is_inf;
};
const SmallFloat kFormats[] = {{DType::f16, 5, 10, 0x7bff, true}, {DType::bf16, 8, 7, 0x7f7f, true}, {DType::e4m3, 4, 3, 0x7e, false},
                               {DType::e5m2, 5, 2, 0x7b, false},  {DType::nvfp4, 2, 1, 7, false},    {DType::mxfp4, 2, 1, 7, false}};

/// The code nearest to |x| by bisection over the values of all finite codes, in exact double arithmetic; ties go to the even code.
std::uint32_t nearest_magnitude(const SmallFloat& f, double x) {
  std::uint32_t lo = 0, hi = f.max_code;
  if (x >= defined_value(hi, f.exp_bits, f.man_bits)) {
    const double half_step = (defined_value(hi, f.exp_bits, f.man_bits) - defined_value(hi - 1, f.exp_bits, f.man_bits)) / 2;
    // IEEE: what would round to the next exponent's value overflows. The largest code is odd in f16 and bf16, so the tie overflows.
    return f.overflow_is_inf && x >= defined_value(hi, f.exp_bits, f.man_bits) + half_step ? hi + 1 : hi;
  }
  while (hi - lo > 1) {
    const std::uint32_t mid = (lo + hi) / 2;
    (defined_value(mid, f.exp_bits, f.man_bits) <= x ? lo : hi) = mid;
  }
  const double below = x - defined_value(lo, f.exp_bits, f.man_bits);
  const double above = defined_value(hi, f.exp_bits, f.man_bits) - x;
  if (below != above) return below < above ? lo : hi;
  return (lo & 1U) == 0 ? lo : hi;
}

std::uint32_t expected_code(const SmallFloat& f, float x) {
  const std::uint32_t sign = std::signbit(x) ? 1U << (f.exp_bits + f.man_bits) : 0U;
  return sign | nearest_magnitude(f, std::fabs(static_cast<double>(x)));
}

TEST(Numeric, EveryCodeDecodesToItsDefinition) {
  for (const SmallFloat& f : kFormats) {
    const int width = 1 + f.exp_bits + f.man_bits;
    for (std::uint32_t code = 0; code < (1U << width); ++code) {
      const std::uint32_t magnitude = code & ((1U << (width - 1)) - 1);
      const float got = decode(f.type, code);
      const bool negative = (code >> (width - 1)) != 0;
      if (magnitude <= f.max_code) {
        ASSERT_TRUE(same_value(got, defined_value(code, f.exp_bits, f.man_bits))) << name(f.type) << " code " << code << " gave " << got;
      } else if (f.type != DType::e4m3 && magnitude == f.max_code + 1) {
        ASSERT_EQ(got, negative ? -kInf : kInf) << name(f.type) << " code " << code;
      } else {
        ASSERT_TRUE(std::isnan(got)) << name(f.type) << " code " << code;
        ASSERT_EQ(std::signbit(got), negative) << name(f.type) << " code " << code;
      }
    }
  }
}

TEST(Numeric, EveryCodeSurvivesTheRoundTrip) {
  for (const SmallFloat& f : kFormats) {
    const int width = 1 + f.exp_bits + f.man_bits;
    for (std::uint32_t code = 0; code < (1U << width); ++code) {
      const std::uint32_t magnitude = code & ((1U << (width - 1)) - 1);
      const std::uint32_t again = encode(f.type, decode(f.type, code));
      if (magnitude <= f.max_code || (f.overflow_is_inf && magnitude == f.max_code + 1)) {
        ASSERT_EQ(again, code) << name(f.type);
      } else if (f.type == DType::e5m2 && magnitude == 0x7c) {
        ASSERT_EQ(again, (code & 0x80U) | 0x7bU) << "infinity saturates";
      } else {
        ASSERT_TRUE(std::isnan(decode(f.type, again))) << name(f.type) << " code " << code;
        ASSERT_EQ(again >> (width - 1), code >> (width - 1)) << "NaN keeps its sign";
      }
    }
  }
}

TEST(Numeric, MidpointsAndTheirNeighboursRoundToNearestEven) {
  for (const SmallFloat& f : kFormats) {
    for (std::uint32_t code = 0; code <= f.max_code; ++code) {
      const double a = defined_value(code, f.exp_bits, f.man_bits);
      const double b =
          code < f.max_code ? defined_value(code + 1, f.exp_bits, f.man_bits) : 2 * a - defined_value(code - 1, f.exp_bits, f.man_bits);
      const float middle = static_cast<float>((a + b) / 2);
      if (static_cast<double>(middle) != (a + b) / 2) continue;  // bf16's topmost midpoint excepted, all are f32 values
      for (const float x : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, kInf)}) {
        ASSERT_EQ(encode(f.type, x), expected_code(f, x)) << name(f.type) << ' ' << x;
        ASSERT_EQ(encode(f.type, -x), expected_code(f, -x)) << name(f.type) << ' ' << -x;
      }
    }
  }
}

TEST(Numeric, RandomBitPatternsEncodeToTheNearestCode) {
  std::mt19937 random(20260101);
  for (const SmallFloat& f : kFormats) {
    for (int i = 0; i < 200000; ++i) {
      float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      if (i % 2 == 1)
        x = std::ldexp(std::bit_cast<float>(static_cast<std::uint32_t>(random() & 0x807fffffU) | 0x3f800000U),
                       static_cast<int>(random() % 48) - 30);
      if (std::isnan(x) || std::isinf(x)) continue;
      ASSERT_EQ(encode(f.type, x), expected_code(f, x)) << name(f.type) << ' ' << x;
    }
  }
}

TEST(Numeric, SpecialValuesEncode) {
  EXPECT_EQ(encode_f16(kInf), 0x7c00);
  EXPECT_EQ(encode_f16(-kInf), 0xfc00);
  EXPECT_EQ(encode_f16(65504.0F), 0x7bff);
  EXPECT_EQ(encode_f16(65519.996F), 0x7bff);
  EXPECT_EQ(encode_f16(65520.0F), 0x7c00);
  EXPECT_EQ(encode_f16(std::ldexp(1.0F, -24)), 0x0001);
  EXPECT_EQ(encode_f16(std::ldexp(1.0F, -25)), 0x0000);
  EXPECT_EQ(encode_f16(-0.0F), 0x8000);
  EXPECT_EQ(encode_bf16(kInf), 0x7f80);
  EXPECT_EQ(encode_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(encode_bf16(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(encode_e4m3(kInf), 0x7e);
  EXPECT_EQ(encode_e4m3(-1e30F), 0xfe);
  EXPECT_EQ(encode_e4m3(kNan) & 0x7f, 0x7f);
  EXPECT_EQ(encode_e5m2(kInf), 0x7b);
  EXPECT_EQ(encode_e5m2(-1e30F), 0xfb);
  EXPECT_EQ(encode_e5m2(kNan) & 0x7f, 0x7f);
  EXPECT_EQ(encode_e2m1(kNan), 0);
  EXPECT_EQ(encode_e2m1(-kInf), 0xf);
  EXPECT_EQ(encode_i8(kNan), 0);
}

TEST(Numeric, NanStaysNanAndBecomesQuiet) {
  for (const std::uint32_t bits : {0x7f800001U, 0x7fc00000U, 0xff800001U, 0xffffffffU, 0x7fbfffffU}) {
    const float x = std::bit_cast<float>(bits);
    EXPECT_TRUE((encode_bf16(x) & 0x7fff) > 0x7f80 && (encode_bf16(x) & 0x0040) != 0) << bits;
    EXPECT_TRUE((encode_f16(x) & 0x7fff) > 0x7c00 && (encode_f16(x) & 0x0200) != 0) << bits;
    EXPECT_EQ(encode_bf16(x) >> 15, bits >> 31);
    EXPECT_EQ(encode_f16(x) >> 15, bits >> 31);
  }
  for (std::uint32_t code = 0x7c01; code < 0x8000; ++code) {
    ASSERT_NE(std::bit_cast<std::uint32_t>(decode_f16(static_cast<std::uint16_t>(code))) & 0x00400000U, 0U) << code;
  }
}

TEST(Numeric, I8RoundsHalfToEvenAndSaturates) {
  for (int code = 0; code < 256; ++code) {
    const int value = code < 128 ? code : code - 256;
    ASSERT_EQ(decode_i8(static_cast<std::uint8_t>(code)), static_cast<float>(value));
  }
  for (int i = -1100; i <= 1100; ++i) {
    const float x = static_cast<float>(i) / 8.0F;
    const double expected = std::clamp(std::nearbyint(static_cast<double>(x)), -127.0, 127.0);
    ASSERT_EQ(decode_i8(encode_i8(x)), expected) << x;
  }
  EXPECT_EQ(decode_i8(encode_i8(0.49999997F)), 0.0F);
  EXPECT_EQ(decode_i8(encode_i8(kInf)), 127.0F);
  EXPECT_EQ(decode_i8(encode_i8(-kInf)), -127.0F);
  EXPECT_EQ(decode_i8(encode_i8(3e38F)), 127.0F);
  EXPECT_EQ(decode_i8(encode_i8(-128.0F)), -127.0F);
}

TEST(Numeric, E2m1IsTheListedTable) {
  const float values[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) {
    EXPECT_EQ(decode_e2m1(static_cast<std::uint8_t>(code)), values[code]);
    EXPECT_EQ(decode_e2m1(static_cast<std::uint8_t>(code | 8)), -values[code]);
    EXPECT_EQ(decode_e2m1(static_cast<std::uint8_t>(code | 0xf0)), values[code]) << "only the low nibble counts";
  }
  EXPECT_EQ(encode_e2m1(0.25F), 0);  // ties to the even code
  EXPECT_EQ(encode_e2m1(0.75F), 2);
  EXPECT_EQ(encode_e2m1(2.5F), 4);
  EXPECT_EQ(encode_e2m1(5.0F), 6);
  EXPECT_EQ(encode_e2m1(5.01F), 7);
}

TEST(Numeric, E8m0IsAPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    ASSERT_EQ(static_cast<double>(decode_e8m0(static_cast<std::uint8_t>(code))), std::ldexp(1.0, code - 127)) << code;
    ASSERT_EQ(e8m0_from_exponent(code - 127), code);
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
  EXPECT_EQ(e8m0_from_exponent(-500), 0);
  EXPECT_EQ(e8m0_from_exponent(500), 254);
  for (int e = -149; e <= 127; ++e) {
    ASSERT_EQ(floor_log2(std::ldexp(1.0F, e)), e);
    if (e > -126) {
      ASSERT_EQ(floor_log2(std::nextafter(std::ldexp(1.0F, e), 0.0F)), e - 1);
    }
  }
}

TEST(Numeric, ElementsAreStoredAndLoadedAtAnyAlignment) {
  for (const DType t : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::i8, DType::nvfp4, DType::mxfp4}) {
    std::vector<unsigned char> memory(4 * 33 + 8, 0xaa);
    unsigned char* row = memory.data() + 1;
    for (int i = 0; i < 33; ++i) store_element(t, row, i, static_cast<float>(i % 5 - 2));
    for (int i = 0; i < 33; ++i) ASSERT_EQ(load_element(t, row, i), static_cast<float>(i % 5 - 2)) << name(t) << ' ' << i;
    ASSERT_EQ(memory[0], 0xaa);
    for (std::size_t i = 1 + static_cast<std::size_t>(bytes(t, 33)); i < memory.size(); ++i) ASSERT_EQ(memory[i], 0xaa) << name(t);
    if (bits(t) == 4) {
      ASSERT_EQ(memory[17] >> 4, 0xa) << "the nibble past an odd end is kept";
    }
  }
}

TEST(Numeric, ConversionsAreConstantExpressions) {
  static_assert(decode_f16(encode_f16(1.5F)) == 1.5F);
  static_assert(decode_bf16(encode_bf16(1.5F)) == 1.5F);
  static_assert(decode_e4m3(encode_e4m3(500.0F)) == 448.0F);
  static_assert(decode_e5m2(encode_e5m2(1e9F)) == 57344.0F);
  static_assert(decode_e2m1(encode_e2m1(-7.0F)) == -6.0F);
  static_assert(decode_i8(encode_i8(2.5F)) == 2.0F);
  static_assert(decode(DType::e4m3, encode(DType::e4m3, 0.875F)) == 0.875F);
  SUCCEED();
}

TEST(Numeric, TypesWithoutANumberFormatAreRefused) {
  const std::int64_t value = 1;
  EXPECT_THROW(load_element(DType::i64, &value, 0), Error);
}

}  // namespace
}  // namespace girih
