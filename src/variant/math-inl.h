// f32 functions for the lane loops of evaluate.cc: branch-free, so that a loop over them becomes vector code on every target. Errors are
// against the exact value over all finite f32 (variant_evaluate_test checks them): exp 2 ulp, log 3, tanh 4, sigmoid 4. Results in the
// subnormal range may be off by one subnormal step. NaN gives NaN; limits, zeros and overflow are those of C.

#if defined(GIRIH_VARIANT_MATH_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_VARIANT_MATH_INL
#undef GIRIH_VARIANT_MATH_INL
#else
#define GIRIH_VARIANT_MATH_INL
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace girih::variant {
namespace HWY_NAMESPACE {

/// x = n * ln 2 + r with |r| <= ln 2 / 2; `expm1_r` is e^r - 1.
struct ExpParts {
  std::int32_t n;
  float expm1_r;
};

/// For |x| below 2^20; a NaN x gives a NaN expm1_r and any n. The nearest integer comes from adding 1.5 * 2^23: the sum's last bit is
/// worth 1.
HWY_INLINE HWY_ATTR ExpParts exp_parts(float x) {
  constexpr float kMagic = 12582912.0F;
  constexpr float kLn2High = 0.693359375F;  // 10 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  const float shifted = x * 1.44269504F + kMagic;
  const float n = shifted - kMagic;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  // (e^r - 1 - r) / r^2 interpolated at Chebyshev nodes: relative error of e^r - 1 below 2.5e-8.
  const float q = 0.5F + r * (0.166665733F + r * (0.0416665487F + r * (0.00836377405F + r * 0.00139269268F)));
  return {__builtin_bit_cast(std::int32_t, shifted) - __builtin_bit_cast(std::int32_t, kMagic), r + r * r * q};
}

/// 2^n for n in [-127, 127] (-127 gives 0); wraps otherwise.
HWY_INLINE HWY_ATTR float power_of_two(std::int32_t n) { return __builtin_bit_cast(float, (static_cast<std::uint32_t>(n) + 127U) << 23); }

/// x with its magnitude at most `limit`; NaN stays. On the bits: an ordered comparison of floats may raise a flag, for which g++ keeps a
/// branch and does not vectorise the loop.
HWY_INLINE HWY_ATTR float clamp_magnitude(float x, float limit) {
  const auto bits = __builtin_bit_cast(std::int32_t, x);
  const auto limit_bits = __builtin_bit_cast(std::int32_t, limit);
  const std::int32_t magnitude = bits & 0x7fffffff;
  const std::int32_t smaller = magnitude > limit_bits ? limit_bits : magnitude;
  return __builtin_bit_cast(float, (bits & INT32_MIN) | (magnitude > 0x7f800000 ? magnitude : smaller));
}

HWY_INLINE HWY_ATTR float exp_f32(float x) {
  const ExpParts parts = exp_parts(clamp_magnitude(x, 104.0F));  // beyond it the result is 0 or inf
  const std::int32_t half = parts.n >> 1;                        // in two steps: 2^n itself may be subnormal or too large
  return (1.0F + parts.expm1_r) * power_of_two(half) * power_of_two(parts.n - half);
}

/// tanh of several vectors in place. (e^2a - 1) / (e^2a + 1), with e^2a = 2^n 2^f and e^2a - 1 = 2^n (2^f - 1) + (2^n - 1): no cancellation
/// as a >= 0, so one formula serves all magnitudes. In vectors, which need half the instructions that a compiler makes of the plain form,
/// and step by step together, so that a core finds work in several chains of dependent operations: soft caps are nothing but this.
template <int kVectors, class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE void tanh_each(D d, V (&x)[kVectors]) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<D> di;
  const auto number = [d](float value) HWY_ATTR { return hn::Set(d, value); };
  const V largest = number(10.0F);           // tanh(10) rounds to 1
  const V log2_scale = number(2.88539008F);  // 2 / ln 2
  const V magic = number(12582912.0F);       // adding 1.5 * 2^23 rounds to a whole number, which then stands in the low bits
  V a[kVectors];
  V scale[kVectors];  // 2^n
  V f[kVectors];
  V f2[kVectors];
  V p[kVectors];
  for (int i = 0; i < kVectors; ++i) {
#if HWY_TARGET == HWY_EMU128
    a[i] = hn::Abs(x[i]);
    a[i] = hn::IfThenElse(hn::Lt(largest, a[i]), largest, a[i]);
#else
    a[i] = hn::Min(largest, hn::Abs(x[i]));  // in this order NaN stays
#endif
  }
  for (int i = 0; i < kVectors; ++i) scale[i] = hn::MulAdd(a[i], log2_scale, magic);
  for (int i = 0; i < kVectors; ++i) f[i] = hn::MulSub(a[i], log2_scale, hn::Sub(scale[i], magic));
  for (int i = 0; i < kVectors; ++i) {
    f2[i] = hn::Mul(f[i], f[i]);
    scale[i] = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::BitCast(di, scale[i]), hn::Set(di, 127))));
  }
  // (2^f - 1) / f, minimax on [-1/2, 1/2] with a relative error below 1.1e-8, summed in pairs, which makes the chain shorter.
  for (int i = 0; i < kVectors; ++i) {
    const V p23 = hn::MulAdd(number(9.61823761e-3F), f[i], number(5.55035733e-2F));
    const V p45 = hn::MulAdd(number(1.54035122e-4F), f[i], number(1.33907353e-3F));
    p[i] = hn::MulAdd(p45, f2[i], p23);
  }
  for (int i = 0; i < kVectors; ++i) {
    const V p01 = hn::MulAdd(number(0.240226492F), f[i], number(0.693147182F));
    p[i] = hn::MulAdd(p[i], f2[i], p01);
  }
  for (int i = 0; i < kVectors; ++i) p[i] = hn::MulAdd(p[i], hn::Mul(scale[i], f[i]), hn::Sub(scale[i], number(1.0F)));  // e^2a - 1
  for (int i = 0; i < kVectors; ++i) x[i] = hn::CopySign(hn::Div(p[i], hn::Add(p[i], number(2.0F))), x[i]);
}

/// By e^-|x|, which cannot overflow: 1 / (1 + e) or e / (1 + e).
HWY_INLINE HWY_ATTR float sigmoid_f32(float x) {
  const float e = exp_f32(-__builtin_fabsf(x));
  return (__builtin_bit_cast(std::int32_t, x) < 0 ? e : 1.0F) / (1.0F + e);
}

/// x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1).
HWY_INLINE HWY_ATTR float log_f32(float x) {
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kInfinity = __builtin_inff();
  const bool subnormal = x < 1.17549435e-38F;
  const float scaled = subnormal ? x * 8388608.0F : x;
  const std::int32_t bits = __builtin_bit_cast(std::int32_t, scaled);
  // 0x3f3504f3 is sqrt(1/2): subtracting it makes the exponent field count from there.
  const auto e = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits) - 0x3f3504f3U) >> 23;
  const float m = __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) - (static_cast<std::uint32_t>(e) << 23));
  const float n = static_cast<float>(e) - (subnormal ? 23.0F : 0.0F);
  const float f = m - 1.0F;
  const float s = f / (m + 1.0F);
  const float z = s * s;
  // (2 atanh(s) - 2 s) / s^3 interpolated at Chebyshev nodes: relative error of the whole below 3e-9. 2 s = f - s f keeps f exact.
  const float p = z * (0.666666865F + z * (0.399883181F + z * 0.296006918F));
  float result = n * kLn2High + (f - (s * (f - p) - n * kLn2Low));
  result = x > 3.40282347e38F ? x : result;  // +inf
  result = x == 0.0F ? -kInfinity : result;
  const float nan = __builtin_nanf("");
  result = x < 0.0F ? nan : result;
  return x != x ? x : result;
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::variant
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_VARIANT_MATH_INL
