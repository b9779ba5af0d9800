// kernels/core/convert.cuh and math.cuh, and the division of rows/quantize.cuh, under the emulator: every code of every format, and
// encoding over all f32 that can matter, must agree with src/base/numeric.h; functions keep the errors that their comments state. For sm_75
// as well, which converts by bit operations.
// ctest: emulated-arch=75
#include "emulator/emulator.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "base/numeric.h"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "rows/quantize.cuh"

namespace girih {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Equal bits, any NaN for a NaN.
bool same(float a, float b) { return (std::isnan(a) && std::isnan(b)) || bits_of(a) == bits_of(b); }

template <typename T>
float value_of(u32 code);
template <>
float value_of<f16>(u32 code) {
  return decode_f16(static_cast<u16>(code));
}
template <>
float value_of<bf16>(u32 code) {
  return decode_bf16(static_cast<u16>(code));
}
template <>
float value_of<e4m3>(u32 code) {
  return decode_e4m3(static_cast<u8>(code));
}
template <>
float value_of<e5m2>(u32 code) {
  return decode_e5m2(static_cast<u8>(code));
}
template <>
float value_of<i8>(u32 code) {
  return decode_i8(static_cast<u8>(code));
}

TEST(EmulatorConvert, EveryCodeHasItsValue) {
  for (u32 code = 0; code < 0x10000; ++code) {
    ASSERT_TRUE(same(to_f32(f16{static_cast<u16>(code)}), value_of<f16>(code))) << code;
    ASSERT_TRUE(same(to_f32(bf16{static_cast<u16>(code)}), value_of<bf16>(code))) << code;
  }
  for (u32 code = 0; code < 0x100; ++code) {
    const float wanted = value_of<e4m3>(code);
    ASSERT_TRUE(same(to_f32(e4m3{static_cast<u8>(code)}), wanted)) << code;
    ASSERT_TRUE(same(to_f32(e5m2{static_cast<u8>(code)}), value_of<e5m2>(code))) << code;
    ASSERT_TRUE(same(to_f32(static_cast<i8>(code)), value_of<i8>(code))) << code;
    ASSERT_TRUE(same(e2m1_to_f32(code), decode_e2m1(static_cast<u8>(code)))) << code;
    ASSERT_TRUE(same(e8m0_to_f32(code), decode_e8m0(static_cast<u8>(code)))) << code;
    ASSERT_TRUE(same(low_of<bf16>(e8m0_to_bf16_pair(code)), decode_e8m0(static_cast<u8>(code)))) << code;
    ASSERT_TRUE(same(high_of<bf16>(e8m0_to_bf16_pair(code)), decode_e8m0(static_cast<u8>(code)))) << code;
    ASSERT_TRUE(same(low_of<bf16>(e4m3_to_pair<bf16>(code)), wanted) && same(high_of<f16>(e4m3_to_pair<f16>(code)), wanted)) << code;
  }
}

/// `code` in byte `place` of a word of other codes.
u32 word_with(u32 code, int place) { return (0x7e01fe9cU & ~(0xffU << (8 * place))) | code << (8 * place); }

template <typename T, typename Code>
void check_widen() {
  for (u32 code = 0; code < 0x100; ++code) {
    for (int place = 0; place < 4; ++place) {
      const u32 word = word_with(code, place);
      u32 pairs[2];
      widen<T, Code>(pairs, word);
      float x[4];
      unpack<Code>(x, word);
      for (int i = 0; i < 4; ++i) {
        const float wanted = value_of<Code>((word >> (8 * i)) & 0xffU);
        const float got = i % 2 == 0 ? low_of<T>(pairs[i / 2]) : high_of<T>(pairs[i / 2]);
        ASSERT_TRUE(same(got, wanted)) << code << " at " << place << ": " << got << " for " << wanted;
        ASSERT_TRUE(same(x[i], wanted)) << code << " at " << place << ": " << x[i] << " for " << wanted;
      }
    }
  }
}

TEST(EmulatorConvert, WordsOfEightBitCodesWidenExactly) {
  check_widen<f16, e4m3>();
  check_widen<f16, e5m2>();
  check_widen<f16, i8>();
  check_widen<bf16, e4m3>();
  check_widen<bf16, e5m2>();
  check_widen<bf16, i8>();
  // What chips without the instruction do.
  for (u32 code = 0; code < 0x100; ++code) {
    const u32 word = code | (0xffU - code) << 8 | 0x7f80U << 16;
    const u32 low = convert_detail::e4m3_tops_to_f16(convert_detail::spread_low(word));
    const u32 high = convert_detail::e4m3_tops_to_f16(convert_detail::spread_high(word));
    ASSERT_TRUE(same(low_of<f16>(low), value_of<e4m3>(code))) << code;
    ASSERT_TRUE(same(high_of<f16>(low), value_of<e4m3>(0xffU - code))) << code;
    ASSERT_TRUE(same(low_of<f16>(high), -0.0F) && std::isnan(high_of<f16>(high)));
  }
}

TEST(EmulatorConvert, WordsOfFourBitCodesWidenExactly) {
  for (u32 byte = 0; byte < 0x100; ++byte) {
    for (int place = 0; place < 4; ++place) {
      const u32 word = word_with(byte, place);
      u32 half[4];
      u32 brain[4];
      float x[8];
      widen_e2m1<f16>(half, word);
      widen_e2m1<bf16>(brain, word);
      unpack<e2m1x2>(x, word);
      for (int i = 0; i < 8; ++i) {
        const float wanted = decode_e2m1(static_cast<u8>(word >> (4 * i)));
        ASSERT_TRUE(same(i % 2 == 0 ? low_of<f16>(half[i / 2]) : high_of<f16>(half[i / 2]), wanted)) << byte << ' ' << i;
        ASSERT_TRUE(same(i % 2 == 0 ? low_of<bf16>(brain[i / 2]) : high_of<bf16>(brain[i / 2]), wanted)) << byte << ' ' << i;
        ASSERT_TRUE(same(x[i], wanted)) << byte << ' ' << i;
      }
    }
  }
}

TEST(EmulatorConvert, ScalesMultiplyFourBitPairsExactly) {
  for (u32 scale = 0; scale < 0x100; ++scale) {
    u32 half[4];
    u32 brain[4];
    widen_e2m1<f16>(half, 0x76543210U);
    widen_e2m1<bf16>(brain, 0x76543210U);
    for (int i = 0; i < 4; ++i) {
      const float wanted = decode_e2m1(static_cast<u8>(2 * i + 1)) * value_of<e4m3>(scale);
      ASSERT_TRUE(same(high_of<f16>(mul_pair<f16>(half[i], e4m3_to_pair<f16>(scale))), wanted)) << scale << ' ' << i;
      ASSERT_TRUE(same(high_of<bf16>(mul_pair<bf16>(brain[i], e4m3_to_pair<bf16>(scale))), wanted)) << scale << ' ' << i;
      const float power = decode_e2m1(static_cast<u8>(2 * i + 1)) * decode_e8m0(static_cast<u8>(scale));
      if (std::isfinite(power) && std::fabs(power) >= 0x1p-126F) {
        ASSERT_TRUE(same(high_of<bf16>(mul_pair<bf16>(brain[i], e8m0_to_bf16_pair(scale))), power)) << scale << ' ' << i;
      }
    }
  }
}

TEST(EmulatorConvert, WideWordsUnpack) {
  float one[1];
  unpack<float>(one, bits_of(1.25F));
  EXPECT_EQ(one[0], 1.25F);
  float two[2];
  unpack<f16>(two, 0xbc003e00U);
  EXPECT_EQ(two[0], 1.5F);
  EXPECT_EQ(two[1], -1.0F);
  unpack<bf16>(two, 0xbf803fc0U);
  EXPECT_EQ(two[0], 1.5F);
  EXPECT_EQ(two[1], -1.0F);
}

/// All f32 up to what rounding can tell apart: every upper 20 bits (no format keeps more than the upper 19, and one decides ties), with the
/// rest zero, one and all ones.
template <typename Check>
void for_all_floats(const Check& check) {
  for (u32 top = 0; top < (1U << 20); ++top) {
    for (const u32 rest : {0U, 1U, 0xfffU}) check(float_of(top << 12 | rest));
  }
}

TEST(EmulatorConvert, SixteenBitEncodingIsToTheNearest) {
  for_all_floats([](float x) {
    const u32 half = pack<f16>(x, -x);
    const u32 brain = pack<bf16>(x, -x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(low_of<f16>(half)) && std::isnan(high_of<f16>(half)));
      ASSERT_TRUE(std::isnan(low_of<bf16>(brain)) && std::isnan(high_of<bf16>(brain)));
    } else {
      ASSERT_EQ(half, encode_f16(x) | static_cast<u32>(encode_f16(-x)) << 16) << x;
      ASSERT_EQ(brain, encode_bf16(x) | static_cast<u32>(encode_bf16(-x)) << 16) << x;
    }
    ASSERT_EQ(from_f32<f16>(x).bits, half & 0xffffU);
    ASSERT_EQ(from_f32<bf16>(x).bits, brain & 0xffffU);
  });
}

TEST(EmulatorConvert, EightAndFourBitEncodingGivesTheSameCodes) {
  for_all_floats([](float x) {
    const u32 wanted_e4m3 = encode_e4m3(x);
    const u32 wanted_e5m2 = encode_e5m2(x);
    ASSERT_EQ(from_f32<e4m3>(x).bits, wanted_e4m3) << x;
    ASSERT_EQ(convert_detail::encode_e4m3(x), wanted_e4m3) << x;
    ASSERT_EQ(from_f32<e5m2>(x).bits, wanted_e5m2) << x;
    ASSERT_EQ(convert_detail::encode_e5m2(x), wanted_e5m2) << x;
    ASSERT_EQ(static_cast<u8>(from_f32<i8>(x)), encode_i8(x)) << x;
    ASSERT_EQ(e2m1_from_f32(x), encode_e2m1(x)) << x;
  });
}

TEST(EmulatorConvert, WordsOfCodesArePacked) {
  const float x[] = {-1.7F, 600.0F, float_of(0xff800001U), 0.3F};
  const auto word = [&x](auto encode) {
    return static_cast<u32>(encode(x[0])) | static_cast<u32>(encode(x[1])) << 8 | static_cast<u32>(encode(x[2])) << 16 |
           static_cast<u32>(encode(x[3])) << 24;
  };
  EXPECT_EQ(pack_codes<e4m3>(x[0], x[1], x[2], x[3]), word(girih::encode_e4m3));
  EXPECT_EQ(pack_codes<e5m2>(x[0], x[1], x[2], x[3]), word(girih::encode_e5m2));
  EXPECT_EQ(pack_codes<i8>(x[0], x[1], x[2], x[3]), word(girih::encode_i8));
}

TEST(EmulatorConvert, ScalesAreChosenAsByTheHost) {
  for (int e = -300; e <= 300; ++e) ASSERT_EQ(exponent_to_e8m0(e), e8m0_from_exponent(e));
  for (u32 top = 1; top < 0x7f800; ++top) {
    const float x = float_of(top << 12 | 0x123U);
    ASSERT_EQ(exponent_of(x), floor_log2(x)) << x;
  }
  for (u32 b = 1; b < 0x800000; b += 977) ASSERT_EQ(exponent_of(float_of(b)), floor_log2(float_of(b))) << b;
  EXPECT_EQ(kLargest<e4m3>, largest(DType::e4m3));
  EXPECT_EQ(kLargest<e5m2>, largest(DType::e5m2));
  EXPECT_EQ(kLargest<i8>, largest(DType::i8));
  EXPECT_EQ(kLargest<e2m1x2>, largest(DType::nvfp4));
}

// ---------------------------------------------------------------------------------------------------------------- functions

/// |a - exact| in units of the last place of the f32 nearest to `exact`; subnormals count steps of 2^-149.
double ulps(float a, double exact) {
  const double magnitude = std::max(std::fabs(exact), 0x1p-126);
  return std::fabs(static_cast<double>(a) - exact) / std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

template <typename Function, typename Exact>
void check_function(const char* name, double bound, const Function& function, const Exact& exact) {
  for (std::uint64_t b = 0; b < (1ULL << 32); b += 4099) {
    const float x = float_of(static_cast<u32>(b));
    const double wanted = exact(static_cast<double>(x));
    const float got = function(x);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(got)) << name << ' ' << x;
    } else if (std::fabs(wanted) > std::numeric_limits<float>::max()) {
      ASSERT_TRUE(got == (wanted > 0 ? kInf : -kInf) || ulps(got, wanted) <= bound) << name << ' ' << x;
    } else {
      ASSERT_LE(ulps(got, wanted), bound) << name << ' ' << x << " gave " << got << " for " << wanted;
    }
  }
}

TEST(EmulatorMath, FunctionsKeepTheirErrors) {
  check_function(
      "exp", 2, [](float x) { return girih::exp(x); }, [](double x) { return std::exp(x); });
  check_function(
      "exp2", 2, [](float x) { return girih::exp2(x); }, [](double x) { return std::exp2(x); });
  check_function(
      "tanh", 4, [](float x) { return girih::tanh(x); }, [](double x) { return std::tanh(x); });
  check_function(
      "sigmoid", 4, [](float x) { return girih::sigmoid(x); }, [](double x) { return 1 / (1 + std::exp(-x)); });
  check_function(
      "log", 3, [](float x) { return girih::log(x); }, [](double x) { return std::log(x); });
  check_function(
      "log2", 4, [](float x) { return girih::log2(x); }, [](double x) { return std::log2(x); });
  check_function(
      "sqrt", 0.5, [](float x) { return girih::sqrt(x); }, [](double x) { return std::sqrt(x); });
  check_function(
      "rsqrt", 1.5, [](float x) { return girih::rsqrt(x); }, [](double x) { return 1 / std::sqrt(x); });
}

TEST(EmulatorMath, LimitsAreThoseOfC) {
  EXPECT_EQ(girih::exp(kInf), kInf);
  EXPECT_EQ(girih::exp(-kInf), 0.0F);
  EXPECT_EQ(girih::exp2(-kInf), 0.0F);
  EXPECT_EQ(girih::exp2(kInf), kInf);
  EXPECT_EQ(girih::exp2(0.0F), 1.0F);
  EXPECT_EQ(girih::log(0.0F), -kInf);
  EXPECT_EQ(girih::log2(8.0F), 3.0F);
  EXPECT_EQ(girih::tanh(-kInf), -1.0F);
  EXPECT_TRUE(std::signbit(girih::tanh(-0.0F)));
  EXPECT_EQ(girih::sigmoid(-kInf), 0.0F);
  EXPECT_EQ(exp2_approx(-kInf), 0.0F);
  EXPECT_EQ(exp2_approx(0.0F), 1.0F);
  EXPECT_EQ(exp2_approx(-130.0F), 0.0F);
  EXPECT_EQ(tanh_approx(kInf), 1.0F);
  EXPECT_EQ(tanh_approx(-kInf), -1.0F);
  EXPECT_TRUE(std::isnan(tanh_approx(std::nanf(""))));
  float y[4];
  logistic_approx({-kInf, kInf, 0.0F, -kInf}, y);
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_NEAR(y[1], 0.0F, 0x1p-29F);
  EXPECT_EQ(y[2], 0.5F);
  logistic_approx({0.0F, 0.0F, std::nanf(""), 0.0F}, y);
  EXPECT_TRUE(std::isnan(y[2]));
}

TEST(EmulatorMath, ApproximationsKeepTheirErrors) {
  for (int i = -400000; i <= 400000; ++i) {
    const float x = static_cast<float>(i) * 3.1e-5F;
    ASSERT_NEAR(tanh_approx(x), std::tanh(static_cast<double>(x)), 0x1p-21) << x;
    float y[4];
    logistic_approx({x, 7.0F, 10.0F * x, -x}, y);
    ASSERT_NEAR(y[0], 1.0 / (1.0 + std::exp2(static_cast<double>(x))), 0x1.2p-21) << x;
    ASSERT_NEAR(y[3], 1.0 / (1.0 + std::exp2(-static_cast<double>(x))), 0x1.2p-21) << x;
    ASSERT_NEAR(tanh_fast(x), std::tanh(static_cast<double>(x)), 0x1p-11) << x;
    ASSERT_NEAR(exp2_approx(x) / std::exp2(static_cast<double>(x)), 1.0, 0x1p-22) << x;
    if (x <= 0) continue;
    const double log = std::log2(static_cast<double>(x));
    ASSERT_NEAR(log2_approx(x), log, 0x1p-22 * std::max(1.0, std::fabs(log))) << x;
    ASSERT_NEAR(rcp_approx(x) * static_cast<double>(x), 1.0, 0x1p-23) << x;
    ASSERT_NEAR(rsqrt_approx(x) * std::sqrt(static_cast<double>(x)), 1.0, std::exp2(-22.9)) << x;
  }
}

/// Quotients whose codes are what an IEEE division gives: at random, next to what lies between two codes, and where numbers end.
TEST(EmulatorConvert, DivisionsForCodesAreExact) {
  std::mt19937_64 random(1);
  const auto any = [&random] { return float_of(static_cast<u32>(random())); };
  for (int i = 0; i < 2000000; ++i) {
    float divisor = abs(any());
    if (!(divisor > 0.0F) || divisor == kInf) continue;
    // Of each four: anything; what a scale leaves; next to quotients of few bits; a number of 8 bits.
    float x = any();
    if (i % 4 == 1) x = divisor * std::normal_distribution<float>(0.0F, 100.0F)(random);
    if (i % 4 == 2) x = float_of(bits_of(divisor * static_cast<float>(static_cast<int>(random() % 1024) - 512) / 16.0F) + random() % 3 - 1);
    if (i % 4 == 3) x = float_of(bits_of(divisor * std::normal_distribution<float>()(random)) & 0xffff0000U);
    float got[1] = {x};
    Divisor(divisor).divide(got);
    const float wanted = x / divisor;
    if (abs(wanted) >= 0x1p-40F && abs(wanted) < 0x1p17F) {
      ASSERT_EQ(bits_of(got[0]), bits_of(wanted)) << x << " / " << divisor;
    } else if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(got[0])) << x << " / " << divisor;
    } else {
      ASSERT_EQ(std::signbit(got[0]), std::signbit(wanted)) << x << " / " << divisor;
      ASSERT_TRUE(abs(wanted) < 1.0F ? abs(got[0]) < 0x1p-39F : abs(got[0]) >= 0x1p16F) << x << " / " << divisor << ": " << got[0];
    }
  }
}

TEST(EmulatorConvert, LargestFiniteLeavesOutWhatIsNot) {
  float x[4] = {-3.0F, NAN, 2.0F, -kInf};
  EXPECT_EQ(largest_finite<false>(x), 3.0F);
  EXPECT_TRUE(std::isnan(x[1]));
  EXPECT_EQ(largest_finite<true>(x), 3.0F);
  EXPECT_EQ(x[1], 0.0F);
  EXPECT_EQ(x[3], -kInf);
}

}  // namespace
}  // namespace girih
