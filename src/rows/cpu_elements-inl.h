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
#include "hwy/cache_control.h"
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

/// Codes of floats of kExp exponent and kMan mantissa bits, for x >= 0, in the low 16 bits of each lane; bits above are arbitrary. A power
/// of two whose last place is that of x in the format (at least that of its subnormals) is added, so that the adder rounds and the sum's
/// last bits are x in those places; the exponent field moved down makes the code of them. The factor's own last bits cancel the bias.
/// Beyond the largest code they go on counting, up to 2^(127 - 23).
template <int kExp, int kMan>
HWY_INLINE VI round_magnitude(VF x) {
  constexpr int kBias = (1 << (kExp - 1)) - 1;
  constexpr int kShift = 23 - kMan;
  constexpr int kLowest = 127 + 1 - kBias;
  constexpr int kCancel = -((kLowest + kShift) << kMan) & 0xffff;
  static_assert(kCancel % 2 == 0 && kCancel + (2 << kMan) < (1 << kShift));  // even: ties stay ties
  const VI exponent = hn::Max(hn::And(hn::BitCast(di, x), hn::Set(di, 0x7f800000)), hn::Set(di, kLowest << 23));
  const VF factor = hn::BitCast(df, hn::Set(di, ((127 + kShift) << 23) + kCancel));
  const VI sum = hn::BitCast(di, hn::MulAdd(hn::BitCast(df, exponent), factor, x));  // the product is exact
  return hn::Add(sum, hn::ShiftRight<kShift>(sum));
}

/// A small float without its sign, as round_magnitude leaves it. kMax: the f32 bits of the largest code's value, kNan: of the value whose
/// code NaN takes, were it a number.
template <int kExp, int kMan, int kMax, int kNan>
HWY_INLINE VI encode_magnitude(VF x) {
  const VI magnitude = hn::And(hn::BitCast(di, x), hn::Set(di, 0x7fffffff));
  const VI bounded = hn::Min(magnitude, hn::Set(di, kMax));
  return round_magnitude<kExp, kMan>(hn::BitCast(df, hn::IfThenElse(hn::RebindMask(di, hn::IsNaN(x)), hn::Set(di, kNan), bounded)));
}

/// The code in the low bits of each lane, those above are 0; the sign goes to bit kSign.
template <int kSign>
HWY_INLINE VI with_sign(VI magnitude, VF x) {
  const VI sign = hn::And(hn::ShiftRight<31 - kSign>(hn::BitCast(di, x)), hn::Set(di, 1 << kSign));
  return hn::Or(hn::And(magnitude, hn::Set(di, (1 << kSign) - 1)), sign);
}

using DU16 = hn::Repartition<std::uint16_t, DF>;
using DU8 = hn::Repartition<std::uint8_t, DF>;
using VU16 = hn::Vec<DU16>;
using VU8 = hn::Vec<DU8>;
inline constexpr DU16 du16;
inline constexpr DU8 du8;

/// The low halves of the lanes of two vectors, in turns.
HWY_INLINE VU16 weave(VI a, VI b) { return hn::BitCast(du16, hn::OrAnd(hn::ShiftLeft<16>(b), a, hn::Set(di, 0xffff))); }
/// The high halves.
HWY_INLINE VU16 weave_high(VF a, VF b) {
  const hn::RebindToUnsigned<DF> du;
  return hn::BitCast(du16, hn::OrAnd(hn::ShiftRight<16>(hn::BitCast(du, a)), hn::BitCast(du, b), hn::Set(du, 0xffff0000U)));
}
/// Codes of two vectors of magnitudes in turns, the largest being kMost, with the signs of `signs` (the top bits) in bit kSign.
template <int kExp, int kMan, int kMost, int kSign>
HWY_INLINE VU16 weave_codes(VF a, VF b, VU16 signs) {
  const VU16 codes = weave(round_magnitude<kExp, kMan>(a), round_magnitude<kExp, kMan>(b));
  return hn::OrAnd(hn::Min(codes, hn::Set(du16, kMost)), hn::ShiftRight<15 - kSign>(signs), hn::Set(du16, 1 << kSign));
}

/// Magnitudes of 2 kLanes elements that lie side by side, in two vectors, and their signs as the top bits of lanes of 16 bits, a's and b's
/// in turns. Of a type that is `kWoven` the vectors have the even and the odd elements, of others one half after the other.
struct Pair {
  VF a, b;
  VU16 signs;
};
HWY_INLINE Pair pair_of(VF a, VF b) { return {hn::Abs(a), hn::Abs(b), weave_high(a, b)}; }

struct F32 {
  static constexpr int kBytes = 4;
  static constexpr bool kWoven = false;
  static HWY_INLINE VF load(const std::byte* p) { return hn::LoadU(df, reinterpret_cast<const float*>(p)); }
  static HWY_INLINE void store(VF x, std::byte* p) { hn::StoreU(x, df, reinterpret_cast<float*>(p)); }
  static HWY_INLINE Pair load_pair(const std::byte* p) { return pair_of(load(p), load(p + kLanes * kBytes)); }
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
  static constexpr bool kWoven = true;
  static HWY_INLINE Pair load_pair(const std::byte* p) {
    const VU16 codes = hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(p));
    const VI magnitudes = hn::BitCast(di, hn::And(codes, hn::Set(du16, 0x7fff)));
    return {hn::BitCast(df, hn::ShiftLeft<16>(magnitudes)), hn::BitCast(df, hn::And(magnitudes, hn::Set(di, 0x7fff0000))), codes};
  }
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<std::uint16_t, DF> d16;
    const hn::RebindToUnsigned<DF> du;
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)))));
  }
  /// 2 kLanes elements: the even and the odd ones.
  static HWY_INLINE void load_both(const std::byte* p, VF& even, VF& odd) {
    const VI codes = hn::BitCast(di, hn::LoadU(du16, reinterpret_cast<const std::uint16_t*>(p)));
    even = hn::BitCast(df, hn::ShiftLeft<16>(codes));
    odd = hn::BitCast(df, hn::And(codes, hn::Set(di, -0x10000)));
  }
  /// The code in the upper half of each lane. NaN must have their last bits 0, as those have that come of bf16 numbers.
  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> rounded_number(VF x) {
    const hn::RebindToUnsigned<DF> du;
    const auto bits = hn::BitCast(du, x);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
    return hn::Add(hn::Add(bits, hn::Set(du, 0x7fffU)), odd);
  }
  /// Of any NaN.
  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> rounded(VF x) {
    const hn::RebindToUnsigned<DF> du;
    return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Or(hn::BitCast(du, x), hn::Set(du, 0x400000U)), rounded_number(x));
  }
  /// What load_both has read, and any vectors worked out from such.
  static HWY_INLINE VU16 weave_both(VF even, VF odd) {
    return weave_high(hn::BitCast(df, rounded_number(even)), hn::BitCast(df, rounded_number(odd)));
  }
  static HWY_INLINE VU16 join_numbers(VF x, VF y) {
    return hn::ConcatOdd(du16, hn::BitCast(du16, rounded_number(y)), hn::BitCast(du16, rounded_number(x)));
  }
  static HWY_INLINE V16 encode(VF x) {
    const auto code = hn::ShiftRight<16>(rounded(x));
#if HWY_TARGET == HWY_AVX3
    return hn::TruncateTo(hn::Rebind<std::uint16_t, DF>(), code);  // a third of what saturating takes
#else
    return hn::DemoteTo(hn::Rebind<std::uint16_t, DF>(), hn::BitCast(di, code));
#endif
  }
  static HWY_INLINE VU16 join(VF x, VF y) { return hn::ConcatOdd(du16, hn::BitCast(du16, rounded(y)), hn::BitCast(du16, rounded(x))); }
};

struct F16 : Half<F16> {
  static constexpr bool kWoven = false;
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<std::uint16_t, DF> d16;
    return cpu::HWY_NAMESPACE::widen_f16(df, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)));
  }
  static HWY_INLINE V16 encode(VF x) {
#if HWY_TARGET == HWY_EMU128
    return hn::DemoteTo(hn::Rebind<std::uint16_t, DF>(), with_sign<15>(encode_magnitude<5, 10, 0x47800000, 0x47c00000>(x), x));
#else
    return hn::BitCast(hn::Rebind<std::uint16_t, DF>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), x));
#endif
  }
  static HWY_INLINE VU16 join(VF x, VF y) { return hn::Combine(du16, encode(y), encode(x)); }
};

/// A type of 8 bits, from the code in the low byte of each lane; `weave` has those of a pair of finite numbers in the low bytes of lanes of
/// 16 bits.
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
  static HWY_INLINE VI encode(VF x) { return with_sign<7>(encode_magnitude<5, 2, 0x47600000, 0x47e00000>(x), x); }
  static HWY_INLINE VU16 weave(const Pair& x) { return weave_codes<5, 2, 0x7b, 7>(x.a, x.b, x.signs); }
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
  static HWY_INLINE VI encode(VF x) { return with_sign<7>(encode_magnitude<4, 3, 0x43e00000, 0x43f00000>(x), x); }
  static HWY_INLINE VU16 weave(const Pair& x) { return weave_codes<4, 3, 0x7e, 7>(x.a, x.b, x.signs); }
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
    const VI number = hn::BitCast(di, hn::Add(hn::BitCast(df, clamped), magic));
    return hn::And(hn::IfThenElseZero(hn::Lt(magnitude, hn::Set(di, 0x7f800001)), number), hn::Set(di, 0xff));
  }
  static HWY_INLINE VU16 weave(const Pair& x) {
    const hn::RebindToSigned<DU16> di16;
    const auto number = [&](VF y) HWY_ATTR { return hn::BitCast(di, hn::Add(hn::Min(y, hn::Set(df, 127.0F)), hn::Set(df, 0x1p23F))); };
    const VU16 sign = hn::BitCast(du16, hn::ShiftRight<15>(hn::BitCast(di16, x.signs)));
    return hn::Sub(hn::Xor(HWY_NAMESPACE::weave(number(x.a), number(x.b)), sign), sign);
  }
};
/// Two codes to a byte, the even element in the low nibble.
struct E2m1 {
  static constexpr int kBytes = 0;
  using D16 = hn::Simd<std::uint16_t, kLanes / 2, 0>;
  using D8 = hn::Rebind<std::uint8_t, D16>;
  using D8Wide = hn::Simd<std::uint8_t, kLanes, 0>;
  static HWY_INLINE VF number(VF x) { return hn::IfThenElseZero(hn::Eq(x, x), x); }
  static HWY_INLINE VI encode(VF x) {
    const VF y = number(x);
    const VI magnitude = hn::And(hn::BitCast(di, y), hn::Set(di, 0x7fffffff));
    return with_sign<3>(round_magnitude<2, 1>(hn::BitCast(df, hn::Min(magnitude, hn::Set(di, 0x40c00000)))), y);
  }
  static HWY_INLINE VU16 weave(const Pair& x) { return weave_codes<2, 1, 7, 3>(x.a, x.b, x.signs); }
  /// Of codes in the top bits of lanes; bits below are arbitrary.
  static HWY_INLINE VF number_of(VI code) {
    // As a float's exponent and mantissa from 1 on, with 0.5 and 0.75 in place of 0 and 0.5. (A subnormal factor takes 150 cycles.)
    const VI bits = hn::ShiftRight<6>(hn::And(code, hn::Set(di, 0x70000000)));
    const VF from_half = hn::BitCast(df, hn::Add(bits, hn::Set(di, 0x3f000000)));
    const VF magnitude = hn::Min(from_half, hn::MulSub(from_half, hn::Set(df, 2.0F), hn::Set(df, 1.0F)));
    return hn::BitCast(df, hn::OrAnd(hn::BitCast(di, magnitude), code, hn::Set(di, INT32_MIN)));
  }
  /// kLanes / 2 bytes.
  static HWY_INLINE VF load(const std::byte* p) {
    const D16 d16;
    const auto pair = hn::PromoteTo(d16, hn::LoadU(D8(), reinterpret_cast<const std::uint8_t*>(p)));
    const auto nibbles = hn::Or(hn::And(pair, hn::Set(d16, 0x0f)), hn::ShiftLeft<4>(hn::And(pair, hn::Set(d16, 0xf0))));
    return number_of(hn::ShiftLeft<28>(hn::PromoteTo(di, hn::BitCast(D8Wide(), nibbles))));
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

/// Elements that store_line stores at once.
inline constexpr int kLine = 2 * kLanes;

/// While the codes of `count` elements from i on are stored: asks for as many 16-bit elements of `ahead` (null: nothing), which is read
/// next. Where rows are gone through twice, memory would be idle the second time.
HWY_INLINE void bring_near(const void* ahead, std::int64_t i, int count) {
  if (ahead == nullptr) return;
  for (int b = 0; b < 2 * count; b += 64) hwy::Prefetch(static_cast<const std::byte*>(ahead) + 2 * i + b);
}

template <class D>
HWY_INLINE void put_vector(D d, hn::Vec<D> v, std::byte* out, bool stream) {
  auto* to = reinterpret_cast<hn::TFromD<D>*>(out);
  if (stream) {
    hn::Stream(v, d, to);
  } else {
    hn::StoreU(v, d, to);
  }
}

/// Stores the vectors value(i) and value(i + kLanes) as elements of 32 or 16 bits.
template <class T, class F>
HWY_INLINE void store_line(const F& value, std::byte* out, std::int64_t i, bool stream) {
  const auto put = [&](auto d, auto v, std::int64_t offset) HWY_ATTR { put_vector(d, v, out + offset, stream); };
  if constexpr (T::kBytes == 4) {
    const VF a = value(i), b = value(i + kLanes);
    put(df, a, 4 * i);
    put(df, b, 4 * (i + kLanes));
  } else {
    const VF a = value(i), b = value(i + kLanes);
    put(du16, T::join(a, b), 2 * i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::rows
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ROWS_CPU_ELEMENTS_INL_H_
