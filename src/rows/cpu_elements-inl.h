// Element types of rows as vectors: `load` widens kLanes consecutive elements to f32, `store` rounds as base/numeric.h does.
#if defined(GIRIH_ROWS_CPU_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_ROWS_CPU_ELEMENTS_INL_H_
#undef GIRIH_ROWS_CPU_ELEMENTS_INL_H_
#else
#define GIRIH_ROWS_CPU_ELEMENTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "cpu/f16-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace girih::rows {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;
inline constexpr DF df;
inline constexpr DI di;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));

/// Rounds magnitudes (f32 bits without sign) to a float of kExp exponent and kMan mantissa bits, as if exponents had no upper end. Below
/// the smallest normal value the adder rounds: the sum's last place is the format's smallest subnormal.
template <int kExp, int kMan>
HWY_INLINE VI round_magnitude(VI magnitude) {
  constexpr int kBias = (1 << (kExp - 1)) - 1;
  constexpr int kShift = 23 - kMan;
  const VI min_normal = hn::Set(di, (127 + 1 - kBias) << 23);
  const VI magic = hn::Set(di, (127 + 24 - kBias - kMan) << 23);
  const VF shifted = hn::Add(hn::BitCast(df, hn::Min(magnitude, min_normal)), hn::BitCast(df, magic));
  const VI subnormal = hn::Sub(hn::BitCast(di, shifted), magic);
  const VI rebiased = hn::Sub(magnitude, hn::Set(di, (127 - kBias) << 23));
  const VI odd = hn::And(hn::ShiftRight<kShift>(rebiased), hn::Set(di, 1));
  const VI normal = hn::ShiftRight<kShift>(hn::Add(hn::Add(rebiased, hn::Set(di, (1 << (kShift - 1)) - 1)), odd));
  return hn::IfThenElse(hn::Lt(magnitude, min_normal), subnormal, normal);
}

/// The code in the low bits of each lane: kMax is the largest finite one, kNan what NaN becomes, the sign goes to bit kSign.
template <int kExp, int kMan, int kMax, int kNan, int kSign>
HWY_INLINE VI encode_float(VF x) {
  const VI bits = hn::BitCast(di, x);
  const VI magnitude = hn::And(bits, hn::Set(di, 0x7fffffff));
  const VI number = hn::Min(round_magnitude<kExp, kMan>(magnitude), hn::Set(di, kMax));
  const VI sign = hn::And(hn::ShiftRight<31 - kSign>(bits), hn::Set(di, 1 << kSign));
  if constexpr (kNan == 0) {
    return hn::IfThenElseZero(hn::Lt(magnitude, hn::Set(di, 0x7f800001)), hn::Or(number, sign));
  } else {
    return hn::Or(hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7f800000)), hn::Set(di, kNan), number), sign);
  }
}

struct F32 {
  static constexpr int kBytes = 4;
  static HWY_INLINE VF load(const std::byte* p) { return hn::LoadU(df, reinterpret_cast<const float*>(p)); }
  static HWY_INLINE void store(VF x, std::byte* p) { hn::StoreU(x, df, reinterpret_cast<float*>(p)); }
  static HWY_INLINE void stream(VF x, std::byte* p) { hn::Stream(x, df, reinterpret_cast<float*>(p)); }
};

/// A type of 16 bits, from the code in the low half of each lane.
template <class Self>
struct Half {
  static constexpr int kBytes = 2;
  static HWY_INLINE void store(VF x, std::byte* p) {
    const hn::Rebind<std::uint16_t, DF> d16;
    hn::StoreU(Self::encode(x), d16, reinterpret_cast<std::uint16_t*>(p));
  }
};
using V16 = hn::Vec<hn::Rebind<std::uint16_t, DF>>;

struct Bf16 : Half<Bf16> {
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<std::uint16_t, DF> d16;
    const hn::RebindToUnsigned<DF> du;
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)))));
  }
  static HWY_INLINE V16 encode(VF x) {
    const hn::RebindToUnsigned<DF> du;
    const auto bits = hn::BitCast(du, x);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffU)), odd));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40U));
    const auto code = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
#if HWY_TARGET == HWY_AVX3
    return hn::TruncateTo(hn::Rebind<std::uint16_t, DF>(), code);  // a third of what saturating takes
#else
    return hn::DemoteTo(hn::Rebind<std::uint16_t, DF>(), hn::BitCast(di, code));
#endif
  }
};

struct F16 : Half<F16> {
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<std::uint16_t, DF> d16;
    return cpu::HWY_NAMESPACE::widen_f16(df, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)));
  }
  static HWY_INLINE V16 encode(VF x) {
#if HWY_TARGET == HWY_EMU128
    const VI code = encode_float<5, 10, 0x7c00, 0x7e00, 15>(x);
    return hn::DemoteTo(hn::Rebind<std::uint16_t, DF>(), code);
#else
    return hn::BitCast(hn::Rebind<std::uint16_t, DF>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), x));
#endif
  }
};

/// A type of 8 bits, from the code in the low byte of each lane.
template <class Self>
struct Byte {
  static constexpr int kBytes = 1;
  static HWY_INLINE void store(VF x, std::byte* p) {
    const hn::Rebind<std::uint8_t, DF> d8;
    hn::StoreU(hn::DemoteTo(d8, Self::encode(x)), d8, reinterpret_cast<std::uint8_t*>(p));
  }
};

/// By way of f16: e5m2 is its upper half. An e4m3 code put below the sign with an exponent bit to spare is an f16 2^8 too small, whose NaN
/// would read 1.875: above all others.
struct E5m2 : Byte<E5m2> {
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<std::uint8_t, DF> d8;
    const hn::Rebind<std::uint16_t, DF> d16;
    return cpu::HWY_NAMESPACE::widen_f16(df, hn::ShiftLeft<8>(hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(p)))));
  }
  static HWY_INLINE VI encode(VF x) { return encode_float<5, 2, 0x7b, 0x7f, 7>(x); }
};
struct E4m3 : Byte<E4m3> {
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
  static HWY_INLINE VI encode(VF x) { return encode_float<4, 3, 0x7e, 0x7f, 7>(x); }
};
struct I8 : Byte<I8> {
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<std::int8_t, DF> d8;
    return hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(p))));
  }
  static HWY_INLINE VI encode(VF x) {
    const VI bits = hn::BitCast(di, x);
    const VI magnitude = hn::And(bits, hn::Set(di, 0x7fffffff));
    const VF magic = hn::Set(df, 12582912.0F);  // 1.5 * 2^23: its last place is 1
    const VI clamped = hn::Or(hn::Min(magnitude, hn::BitCast(di, hn::Set(df, 127.0F))), hn::And(bits, hn::Set(di, INT32_MIN)));
    const VI number = hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(df, clamped), magic)), hn::BitCast(di, magic));
    return hn::And(hn::IfThenElseZero(hn::Lt(magnitude, hn::Set(di, 0x7f800001)), number), hn::Set(di, 0xff));
  }
};
/// Two codes to a byte, the even element in the low nibble.
struct E2m1 {
  static constexpr int kBytes = 0;
  using D16 = hn::Simd<std::uint16_t, kLanes / 2, 0>;
  using D8 = hn::Rebind<std::uint8_t, D16>;
  using D8Wide = hn::Simd<std::uint8_t, kLanes, 0>;
  static HWY_INLINE VI encode(VF x) { return encode_float<2, 1, 0x7, 0, 3>(x); }
  /// kLanes / 2 bytes.
  static HWY_INLINE VF load(const std::byte* p) {
    const D16 d16;
    const auto pair = hn::PromoteTo(d16, hn::LoadU(D8(), reinterpret_cast<const std::uint8_t*>(p)));
    const auto nibbles = hn::Or(hn::And(pair, hn::Set(d16, 0x0f)), hn::ShiftLeft<4>(hn::And(pair, hn::Set(d16, 0xf0))));
    const VI code = hn::PromoteTo(di, hn::BitCast(D8Wide(), nibbles));
    const VF magnitude = hn::Mul(hn::BitCast(df, hn::ShiftLeft<22>(hn::And(code, hn::Set(di, 7)))), hn::Set(df, 0x1p126F));
    return hn::BitCast(df, hn::Or(hn::BitCast(di, magnitude), hn::ShiftLeft<28>(hn::And(code, hn::Set(di, 8)))));
  }
  static HWY_INLINE void store(VF x, std::uint8_t* p) {
    const D16 d16;
    const auto pairs = hn::BitCast(d16, hn::DemoteTo(D8Wide(), encode(x)));
    const auto bytes = hn::Or(hn::And(pairs, hn::Set(d16, 0x0f)), hn::And(hn::ShiftRight<4>(pairs), hn::Set(d16, 0xf0)));
    hn::StoreU(hn::DemoteTo(D8(), hn::BitCast(hn::RebindToSigned<D16>(), bytes)), D8(), p);
  }
};

/// A vector of a row's elements from `i` on; those from n on are zeros.
template <class L>
HWY_INLINE VF load_part(const std::byte* source, std::int64_t i, std::int64_t n) {
  if (i + kLanes <= n) return L::load(source + i * L::kBytes);
  alignas(64) std::byte rest[kLanes * 4] = {};
  __builtin_memcpy(rest, source + i * L::kBytes, static_cast<std::size_t>((n - i) * L::kBytes));
  return L::load(rest);
}

/// Stores a vector of a row's elements from `i` on, or as many as are left of `n`.
template <class T>
HWY_INLINE void store_part(VF x, std::byte* out, std::int64_t i, std::int64_t n) {
  if (i + kLanes <= n) return T::store(x, out + i * T::kBytes);
  alignas(64) std::byte rest[kLanes * 4];
  T::store(x, rest);
  __builtin_memcpy(out + i * T::kBytes, rest, static_cast<std::size_t>((n - i) * T::kBytes));
}

/// Stores two whole vectors. Past the caches only whole lines are fast: two 16-bit vectors are one.
template <class T>
HWY_INLINE void store_two(VF a, VF b, std::byte* out, std::int64_t i, bool stream) {
  if constexpr (T::kBytes == 2) {
    if (stream) {
      const hn::Repartition<std::uint16_t, DF> whole;
      hn::Stream(hn::Combine(whole, T::encode(b), T::encode(a)), whole, reinterpret_cast<std::uint16_t*>(out) + i);
      return;
    }
  } else if constexpr (T::kBytes == 4) {
    if (stream) {
      T::stream(a, out + i * T::kBytes);
      T::stream(b, out + (i + kLanes) * T::kBytes);
      return;
    }
  }
  T::store(a, out + i * T::kBytes);
  T::store(b, out + (i + kLanes) * T::kBytes);
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::rows
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ROWS_CPU_ELEMENTS_INL_H_
