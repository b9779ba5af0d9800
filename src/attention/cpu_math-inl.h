// Vector pieces of the CPU attention kernels: element types as loads that widen to f32, exp2, and sums of four accumulators at once.
#if defined(GIRIH_ATTENTION_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_ATTENTION_CPU_MATH_INL_H_
#undef GIRIH_ATTENTION_CPU_MATH_INL_H_
#else
#define GIRIH_ATTENTION_CPU_MATH_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "cpu/f16-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace girih::attention {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using DI = hn::RebindToSigned<DF>;
inline constexpr DF df;
inline constexpr DI di;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
inline constexpr float kNegInf = -__builtin_inff();
inline constexpr float kLog2e = 1.44269504088896340736F;
inline constexpr float kLn2 = 0.69314718055994530942F;

// Element types that a vector load widens: `load` reads kLanes consecutive elements.
struct LoadF32 {
  static constexpr int kBytes = 4;
  static HWY_INLINE VF load(const std::byte* p) { return hn::LoadU(df, reinterpret_cast<const float*>(p)); }
};
struct LoadBf16 {
  static constexpr int kBytes = 2;
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<std::uint16_t, DF> d16;
    const hn::RebindToUnsigned<DF> du;
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)))));
  }
};
struct LoadF16 {
  static constexpr int kBytes = 2;
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<std::uint16_t, DF> d16;
    return cpu::HWY_NAMESPACE::widen_f16(df, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)));
  }
};
struct LoadI8 {
  static constexpr int kBytes = 1;
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<std::int8_t, DF> d8;
    return hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(p))));
  }
};
// fp8 by way of f16, whose conversion is one instruction and exact for subnormals. e5m2 is the upper half of an f16. An e4m3 code put
// below the sign with an exponent bit to spare is an f16 2^8 too small, and its NaN (magnitude 0x7f) would read 1.875: above all others.
struct LoadE5m2 {
  static constexpr int kBytes = 1;
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<std::uint8_t, DF> d8;
    const hn::Rebind<std::uint16_t, DF> d16;
    const auto code = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(p)));
    return cpu::HWY_NAMESPACE::widen_f16(df, hn::ShiftLeft<8>(code));
  }
};
struct LoadE4m3 {
  static constexpr int kBytes = 1;
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<std::int8_t, DF> d8;
    const hn::Rebind<std::int16_t, DF> d16;
    const hn::Rebind<hwy::float16_t, DF> dh;
    const auto code = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(p)));
    const auto half = hn::And(hn::ShiftLeft<7>(code), hn::Set(d16, static_cast<std::int16_t>(0xbfff)));
    const VF small = hn::PromoteTo(df, hn::BitCast(dh, half));
    const VF nan = hn::Set(df, __builtin_nanf(""));
    return hn::IfThenElse(hn::Gt(hn::Abs(small), hn::Set(df, 1.8F)), nan, hn::Mul(small, hn::Set(df, 256.0F)));
  }
};

/// The greater one; NaN if x is. (x86 takes the second operand then, NEON a NaN; emulated vectors promise nothing.)
HWY_INLINE VF at_least(VF limit, VF x) {
#if HWY_TARGET == HWY_EMU128
  return hn::IfThenElse(hn::Lt(x, limit), limit, x);
#else
  return hn::Max(limit, x);
#endif
}

/// 2^x. Relative error below 2.5e-7; 0 below 2^-126 (subnormal results are flushed); NaN stays NaN; x must not exceed 127. Several vectors
/// step by step together: one after another, their chains of dependent operations would fill the window in which a core finds work.
template <int kVectors>
HWY_INLINE void exp2_each(VF (&x)[kVectors]) {
  // Adding 1.5 x 2^23 rounds to a whole number, which then stands in the low bits. NaN is never converted to an integer: that is undefined
  // in plain C++ (EMU128).
  const VF magic = hn::Set(df, 0x1.8p23F);
  VF shifted[kVectors];
  VF f2[kVectors];
  VF p[kVectors];
  for (int i = 0; i < kVectors; ++i) x[i] = at_least(hn::Set(df, -127.0F), x[i]);
  for (int i = 0; i < kVectors; ++i) shifted[i] = hn::Add(x[i], magic);
  for (int i = 0; i < kVectors; ++i) x[i] = hn::Sub(x[i], hn::Sub(shifted[i], magic));
  // 1 + f p(f), p minimax for (2^f - 1) / f on [-1/2, 1/2], summed in pairs, which makes the chain shorter.
  for (int i = 0; i < kVectors; ++i) f2[i] = hn::Mul(x[i], x[i]);
  for (int i = 0; i < kVectors; ++i) {
    const VF p45 = hn::MulAdd(hn::Set(df, 1.33907353e-3F), x[i], hn::Set(df, 9.61823761e-3F));
    p[i] = hn::MulAdd(hn::Set(df, 1.54035122e-4F), f2[i], p45);
  }
  for (int i = 0; i < kVectors; ++i) {
    const VF p23 = hn::MulAdd(hn::Set(df, 5.55035733e-2F), x[i], hn::Set(df, 0.240226492F));
    p[i] = hn::MulAdd(p[i], f2[i], p23);
  }
  for (int i = 0; i < kVectors; ++i) {
    const VF p01 = hn::MulAdd(hn::Set(df, 0.693147182F), x[i], hn::Set(df, 1.0F));
    p[i] = hn::MulAdd(p[i], f2[i], p01);
  }
  for (int i = 0; i < kVectors; ++i) {
    const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::BitCast(di, shifted[i]), hn::Set(di, 127)));
    x[i] = hn::Mul(p[i], hn::BitCast(df, exponent));
  }
}

HWY_INLINE VF exp2(VF x) {
  VF one[1] = {x};
  exp2_each(one);
  return one[0];
}

/// One value through the same arithmetic as the vector form (bits equal).
HWY_INLINE float exp2_scalar(float x) { return hn::GetLane(exp2(hn::Set(df, x))); }

/// Writes the sums of four vectors to out[0..3].
HWY_INLINE void store_four_sums(VF a, VF b, VF c, VF d, float* out) {
  const hn::RepartitionToWide<hn::RebindToUnsigned<DF>> dw;
  const VF ab = hn::Add(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b));
  const VF cd = hn::Add(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d));
  const auto wide_ab = hn::BitCast(dw, ab);
  const auto wide_cd = hn::BitCast(dw, cd);
  const VF sums =
      hn::Add(hn::BitCast(df, hn::InterleaveLower(dw, wide_ab, wide_cd)), hn::BitCast(df, hn::InterleaveUpper(dw, wide_ab, wide_cd)));
  if constexpr (kLanes == 16) {
    const hn::Half<DF> d8;
    const hn::Half<decltype(d8)> d4;
    const auto eight = hn::Add(hn::LowerHalf(d8, sums), hn::UpperHalf(d8, sums));
    hn::StoreU(hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight)), d4, out);
  } else if constexpr (kLanes == 8) {
    const hn::Half<DF> d4;
    hn::StoreU(hn::Add(hn::LowerHalf(d4, sums), hn::UpperHalf(d4, sums)), d4, out);
  } else {
    hn::StoreU(sums, df, out);
  }
}

HWY_INLINE float sum_lanes(VF v) { return hn::GetLane(hn::SumOfLanes(df, v)); }
/// Not hn::MaxOfLanes: on emulated vectors Highway 1.0.3 starts that from the lowest finite value, so that all -inf gives -3.4e38.
HWY_INLINE float max_lanes(VF v) {
#if HWY_TARGET == HWY_EMU128
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, df, lanes);
  float top = lanes[0];
  for (int i = 1; i < kLanes; ++i) top = lanes[i] > top ? lanes[i] : top;
  return top;
#else
  return hn::GetLane(hn::MaxOfLanes(df, v));
#endif
}

/// Lanes [0, kLanes) of bytes that are 0 or 1, as a mask.
HWY_INLINE hn::Mask<DF> load_byte_mask(const std::uint8_t* p) {
  const hn::Rebind<std::uint8_t, DF> d8;
  const auto wide = hn::PromoteTo(di, hn::LoadU(d8, p));
  return hn::RebindMask(df, hn::Ne(wide, hn::Zero(di)));
}

HWY_INLINE int min_int(int a, int b) { return a < b ? a : b; }

}  // namespace HWY_NAMESPACE
}  // namespace girih::attention
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ATTENTION_CPU_MATH_INL_H_
