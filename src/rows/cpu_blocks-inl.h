// Codes of 8 and 4 bits, and the scales of blocks: chosen by the rules of base/scales.h, a vector of blocks at a time. A quotient is two
// corrections of a product with the scale's reciprocal, which is as exact as a division and a sixth of its time.
#if defined(GIRIH_ROWS_CPU_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_ROWS_CPU_BLOCKS_INL_H_
#undef GIRIH_ROWS_CPU_BLOCKS_INL_H_
#else
#define GIRIH_ROWS_CPU_BLOCKS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "abi/rows_params.h"
#include "hwy/highway.h"
#include "rows/cpu_elements-inl.h"
#include "rows/cpu_largest-inl.h"

HWY_BEFORE_NAMESPACE();
namespace girih::rows {
namespace HWY_NAMESPACE {

using abi::Elem;

/// A vector of a row's codes from `i` on; of two to a byte an odd end leaves its high nibble 0.
template <class T>
HWY_INLINE void store_codes(VF x, std::byte* out, std::int64_t i, std::int64_t n) {
  if constexpr (T::kBytes != 0) {
    store_part<T>(x, out, i, n);
  } else {
    std::byte rest[kLanes / 2];
    const std::int64_t count = n - i < kLanes ? n - i : kLanes;
    T::store(x, reinterpret_cast<std::uint8_t*>(rest));
    if (count % 2 != 0) rest[count / 2] &= std::byte{0x0f};
    __builtin_memcpy(out + i / 2, rest, static_cast<std::size_t>((count + 1) / 2));
  }
}

/// Scales of `count` blocks, by the rules of base/scales.h: stored ones to `scales`, what codes are relative to over `most`.
void choose_nvfp4(float* most, std::int64_t count, float global, std::byte* scales) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    std::byte codes[kLanes];
    E4m3::store(hn::Div(hn::Div(hn::LoadU(df, most + i), hn::Set(df, 6.0F)), hn::Set(df, global)), codes);
    hn::StoreU(hn::Mul(E4m3::load(codes), hn::Set(df, global)), df, most + i);
    __builtin_memcpy(scales + i, codes, static_cast<std::size_t>(count - i < kLanes ? count - i : kLanes));
  }
}
void choose_mx(float* most, std::int64_t count, int exponent, float global, std::byte* scales) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const VF relative = hn::Min(hn::Div(hn::LoadU(df, most + i), hn::Set(df, global)), hn::Set(df, 0x1.fffffep127F));
    // Below the smallest normal number the exponent field is 0, and the code is 0 whatever the exponent.
    const VI field = hn::Sub(hn::ShiftRight<23>(hn::BitCast(di, relative)), hn::Set(di, exponent));
    const VI bounded = hn::Max(hn::Min(field, hn::Set(di, 254)), hn::Zero(di));
    const VI code = hn::IfThenElse(hn::RebindMask(di, hn::Gt(relative, hn::Zero(df))), bounded, hn::Set(di, 127));
    const VF power = hn::BitCast(df, hn::IfThenElse(hn::Eq(code, hn::Zero(di)), hn::Set(di, 0x00400000), hn::ShiftLeft<23>(code)));
    hn::StoreU(hn::Mul(power, hn::Set(df, global)), df, most + i);
    const hn::Rebind<std::uint8_t, DF> d8;
    std::uint8_t codes[kLanes];
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes);
    __builtin_memcpy(scales + i, codes, static_cast<std::size_t>(count - i < kLanes ? count - i : kLanes));
  }
}
void choose_f32(float* most, std::int64_t count, float largest_code, float global, std::byte* scales) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const VF g = hn::Set(df, global);
    VF stored = hn::Min(hn::Div(hn::Div(hn::LoadU(df, most + i), hn::Set(df, largest_code)), g), hn::Set(df, 0x1.fffffep127F));
    stored = hn::IfThenElse(hn::Gt(hn::Mul(stored, g), hn::Zero(df)), stored, hn::Set(df, 1.0F));
    hn::StoreU(hn::Mul(stored, g), df, most + i);
    store_part<F32>(stored, scales, i, count);
  }
}

/// What codes of a row are relative to: a number for each 2^shift elements, or one for all.
struct Divisors {
  static constexpr int kOne = 62;
  const float* divisors;
  const float* inverses;
  int shift;
  bool exact;  // quotients by `quotient` are
};

/// 1 / x to `inverses`, NaN of 0, so that `encode` leaves these blocks to encode_rest; whether all x are 0 or such that neither quotients
/// that matter nor their remainders are subnormal.
bool invert(const float* x, std::int64_t count, float* inverses) {
  bool all = true;
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const VF v = hn::LoadU(df, x + i);
    const auto usable = hn::And(hn::Ge(v, hn::Set(df, 0x1p-60F)), hn::Le(v, hn::Set(df, 0x1p60F)));
    all = all && hn::AllTrue(df, hn::Or(usable, hn::Eq(v, hn::Zero(df))));
    hn::StoreU(hn::IfThenElse(usable, hn::Div(hn::Set(df, 1.0F), v), hn::Set(df, __builtin_nanf(""))), df, inverses + i);
  }
  return all;
}

/// x / divisor rounded to nearest, given the rounded 1 / divisor: a product and two fused steps (Markstein).
HWY_INLINE VF quotient(VF x, VF divisor, [[maybe_unused]] VF inverse) {
#if HWY_NATIVE_FMA
  const VF close = hn::Mul(x, inverse);
  return hn::MulAdd(hn::NegMulAdd(close, divisor, x), inverse, close);
#else
  return hn::Div(x, divisor);
#endif
}

/// Numbers of a pair's elements: from i on, one for each 2^shift. kHalves: one for each 16 elements, where a pair has 32.
template <class L, bool kHalves>
HWY_INLINE void of_pair(const float* numbers, std::int64_t i, int shift, VF& a, VF& b) {
  if constexpr (kHalves && 2 * kLanes > 16) {
    const VF low = hn::Set(df, numbers[i >> 4]), high = hn::Set(df, numbers[(i >> 4) + 1]);
    a = L::kWoven ? hn::ConcatUpperLower(df, high, low) : low;
    b = L::kWoven ? a : high;
  } else {
    a = b = hn::Set(df, numbers[i >> shift]);
  }
}

/// Bytes whose pairs are woven (pair_of), in the elements' order.
HWY_INLINE VU8 unweave(VU8 x) {
  if constexpr (kLanes == 4) {
    alignas(16) static constexpr std::uint8_t kOrder[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
    return hn::TableLookupBytes(x, hn::LoadDup128(du8, kOrder));
  } else {
    alignas(16) static constexpr std::uint8_t kOrder[16] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
    const VU8 halves = hn::TableLookupBytes(x, hn::LoadDup128(du8, kOrder));
    if constexpr (kLanes == 8) return halves;
    const hn::Repartition<std::uint64_t, DF> du64;
    alignas(64) static constexpr std::uint64_t kHalvesOrder[8] = {0, 2, 1, 3, 4, 6, 5, 7};
    return hn::BitCast(du8, hn::TableLookupLanes(hn::BitCast(du64, halves), hn::SetTableIndices(du64, kHalvesOrder)));
  }
}

/// Codes of 4 kLanes elements from i on, a byte each; the magnitudes that were rounded are added to `total`.
template <class L, class T, bool kHalves>
HWY_INLINE VU8 encode_bytes(const std::byte* source, std::int64_t i, const Divisors& by, VF& total) {
  const auto pair = [&](std::int64_t j) HWY_ATTR {
    Pair x = L::load_pair(source + j * L::kBytes);
    VF divisor_a, divisor_b, inverse_a, inverse_b;
    of_pair<L, kHalves>(by.divisors, j, by.shift, divisor_a, divisor_b);
    of_pair<L, kHalves>(by.inverses, j, by.shift, inverse_a, inverse_b);
    x.a = quotient(x.a, divisor_a, inverse_a);
    x.b = quotient(x.b, divisor_b, inverse_b);
    total = hn::Add(total, hn::Add(x.a, x.b));
    return hn::BitCast(du8, T::weave(x));
  };
  const VU8 low = pair(i), high = pair(i + 2 * kLanes);
  const VU8 codes = hn::ConcatEven(du8, high, low);
  return L::kWoven ? codes : unweave(codes);
}

/// The same for any numbers, elements [i, n): infinities and NaN, and divisors that have no inverse. In blocks x / 0 is 0.
template <class L, class T>
HWY_NOINLINE void encode_rest(const std::byte* source, std::int64_t i, std::int64_t n, const Divisors& by, std::byte* out) {
  for (; i < n; i += kLanes) {
    const VF divisor = hn::Set(df, by.divisors[i >> by.shift]);
    VF x = hn::Div(load_part<L>(source, i, n), divisor);
    if (by.shift != Divisors::kOne) x = hn::IfThenElseZero(hn::Gt(divisor, hn::Zero(df)), x);
    store_codes<T>(x, out, i, n);
  }
}

template <class L, class T, bool kHalves>
void encode(const std::byte* source, std::int64_t n, const Divisors& by, std::byte* out, bool stream, const void* ahead) {
  constexpr int kCodes = (T::kBytes == 0 ? 8 : 4) * kLanes;
  std::int64_t i = 0;
  const std::int64_t whole = by.exact ? n - kCodes : -1;
  for (; i <= whole; i += kCodes) {
    bring_near(ahead, i, kCodes);
    VF total = hn::Zero(df);
    VU8 codes = encode_bytes<L, T, kHalves>(source, i, by, total);
    if constexpr (T::kBytes == 0) {
      const auto nibbles = [&](VU8 x) HWY_ATTR {
        const VU16 pairs = hn::BitCast(du16, x);
        return hn::BitCast(du8, hn::Or(pairs, hn::ShiftRight<4>(pairs)));
      };
      const VU8 high = nibbles(encode_bytes<L, T, kHalves>(source, i + 4 * kLanes, by, total));
      codes = hn::ConcatEven(du8, high, nibbles(codes));
    }
    put_vector(du8, codes, out + (T::kBytes == 0 ? i / 2 : i), stream);
    if (!hn::AllTrue(df, hn::Lt(total, hn::Set(df, 0x1p100F)))) encode_rest<L, T>(source, i, i + kCodes, by, out);
  }
  encode_rest<L, T>(source, i, n, by, out);
}

/// Relative to `divisors`, one a block of 2^shift; their inverses go behind them.
template <class L, class T, bool kHalves = false>
void encode_blocks(const std::byte* source, std::int64_t n, float* divisors, int shift, std::byte* out, bool stream, const void* ahead) {
  const std::int64_t count = ((n - 1) >> shift) + 1;
  float* inverses = divisors + (count + kLanes - 1) / kLanes * kLanes;
  const bool exact = invert(divisors, count, inverses);
  encode<L, T, kHalves>(source, n, {divisors, inverses, shift, exact}, out, stream, ahead);
}

/// Rows of f16 are widened in pieces of a multiple of every block: two types of sources are enough to compile for.
inline constexpr std::int64_t kWidened = 2048;
template <class F>
HWY_INLINE void widened(const std::byte* source, std::int64_t n, const F& each) {
  alignas(64) float row[kWidened + kLanes];
  for (std::int64_t i = 0; i < n; i += kWidened) {
    const std::int64_t count = n - i < kWidened ? n - i : kWidened;
    for (std::int64_t j = 0; j < count; j += kLanes) hn::StoreU(load_part<F16>(source, i + j, i + count), df, row + j);
    each(i, reinterpret_cast<const std::byte*>(row), count);
  }
}

template <class L>
void store_divided_of(Elem type, const std::byte* x, std::int64_t n, float* divisors, std::byte* out, bool stream, const void* ahead) {
  switch (type) {
    case Elem::e4m3: return encode_blocks<L, E4m3>(x, n, divisors, 7, out, stream, ahead);
    case Elem::e5m2: return encode_blocks<L, E5m2>(x, n, divisors, 7, out, stream, ahead);
    default: return encode_blocks<L, I8>(x, n, divisors, 7, out, stream, ahead);
  }
}

template <class L>
void store_blocks_of(Elem type, abi::Scaling scaling, const std::byte* x, std::int64_t n, float global, std::byte* out, std::byte* scales,
                     float* scratch, bool stream, const void* ahead) {
  if (type == Elem::nvfp4) {
    largest_of_blocks<L, 16>(x, n, scratch);
    choose_nvfp4(scratch, (n + 15) / 16, global, scales);
    return encode_blocks<L, E2m1, true>(x, n, scratch, 4, out, stream, ahead);
  }
  if (type == Elem::mxfp4 || scaling == abi::Scaling::mx) {
    largest_of_blocks<L, 32>(x, n, scratch);
    choose_mx(scratch, (n + 31) / 32, type == Elem::e4m3 ? 8 : (type == Elem::e5m2 ? 15 : 2), global, scales);
    if (type == Elem::mxfp4) return encode_blocks<L, E2m1>(x, n, scratch, 5, out, stream, ahead);
    return type == Elem::e4m3 ? encode_blocks<L, E4m3>(x, n, scratch, 5, out, stream, ahead)
                              : encode_blocks<L, E5m2>(x, n, scratch, 5, out, stream, ahead);
  }
  largest_of_blocks<L, 128>(x, n, scratch);
  choose_f32(scratch, (n + 127) / 128, type == Elem::e4m3 ? 448.0F : (type == Elem::e5m2 ? 57344.0F : 127.0F), global, scales);
  store_divided_of<L>(type, x, n, scratch, out, stream, ahead);
}

void store_blocks(Elem from, Elem type, abi::Scaling scaling, const void* x, std::int64_t n, float global, void* out, void* scales,
                  float* scratch, bool stream, const void* ahead) {
  const auto* p = static_cast<const std::byte*>(x);
  auto* o = static_cast<std::byte*>(out);
  auto* s = static_cast<std::byte*>(scales);
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  if (from == Elem::f32) return store_blocks_of<F32>(type, scaling, p, n, global, o, s, scratch, stream, ahead);
  if (from == Elem::bf16) return store_blocks_of<Bf16>(type, scaling, p, n, global, o, s, scratch, stream, ahead);
  const bool four_bits = type == Elem::nvfp4 || type == Elem::mxfp4;
  const int scale_of = type == Elem::nvfp4 ? 16 : 32;  // elements a byte of scales: of 128 they are f32
  widened(p, n, [&](std::int64_t i, const std::byte* row, std::int64_t count) HWY_ATTR {
    store_blocks_of<F32>(type, scaling, row, count, global, o + (four_bits ? i / 2 : i), s + i / scale_of, scratch, stream, nullptr);
  });
}

void store_divided(Elem from, Elem type, const void* x, std::int64_t n, float* divisors, void* out, bool stream, const void* ahead) {
  const auto* p = static_cast<const std::byte*>(x);
  auto* o = static_cast<std::byte*>(out);
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  if (from == Elem::f32) return store_divided_of<F32>(type, p, n, divisors, o, stream, ahead);
  if (from == Elem::bf16) return store_divided_of<Bf16>(type, p, n, divisors, o, stream, ahead);
  alignas(64) float some[2 * kWidened / 128 + 2 * kLanes] = {};
  widened(p, n, [&](std::int64_t i, const std::byte* row, std::int64_t count) HWY_ATTR {
    for (std::int64_t b = 0; b < (count + 127) / 128; ++b) some[b] = divisors[i / 128 + b];
    store_divided_of<F32>(type, row, count, some, o + i, stream, nullptr);
  });
}

/// Divides where there is something to divide by: x / 1 is x, but NaN payloads and time are saved.
template <class L, class T>
void store_as(const std::byte* source, std::int64_t n, float scale, std::byte* out, bool stream) {
  const VF divisor = hn::Set(df, scale);
  const bool one = scale == 1.0F;
  const auto value = [&](std::int64_t i) HWY_ATTR {
    const VF y = L::load(source + i * L::kBytes);
    return one ? y : hn::Div(y, divisor);
  };
  std::int64_t i = 0;
  for (; i + kLine <= n; i += kLine) store_line<T>(value, out, i, stream);
  for (; i < n; i += kLanes) {
    const VF y = load_part<L>(source, i, n);
    store_part<T>(one ? y : hn::Div(y, divisor), out, i, n);
  }
}

template <class L>
void store_of(Elem type, const std::byte* x, std::int64_t n, float scale, std::byte* out, bool stream, const void* ahead) {
  float divisor[kLanes] = {}, inverse[kLanes];
  divisor[0] = scale;
  const Divisors by{divisor, inverse, Divisors::kOne, scale != 0 && invert(divisor, 1, inverse)};
  switch (type) {
    case Elem::f32: return store_as<L, F32>(x, n, scale, out, stream);
    case Elem::f16: return store_as<L, F16>(x, n, scale, out, stream);
    case Elem::bf16: return store_as<L, Bf16>(x, n, scale, out, stream);
    case Elem::e4m3: return encode<L, E4m3, false>(x, n, by, out, stream, ahead);
    case Elem::e5m2: return encode<L, E5m2, false>(x, n, by, out, stream, ahead);
    case Elem::i8: return encode<L, I8, false>(x, n, by, out, stream, ahead);
    default: return encode<L, E2m1, false>(x, n, by, out, stream, ahead);
  }
}

void store(Elem from, Elem type, const void* x, std::int64_t n, float scale, void* out, bool stream, const void* ahead) {
  const auto* p = static_cast<const std::byte*>(x);
  auto* o = static_cast<std::byte*>(out);
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  if (from == Elem::f32) return store_of<F32>(type, p, n, scale, o, stream, ahead);
  if (from == Elem::bf16) return store_of<Bf16>(type, p, n, scale, o, stream, ahead);
  const int bits =
      type == Elem::f32 ? 32 : (type == Elem::f16 || type == Elem::bf16 ? 16 : (type == Elem::nvfp4 || type == Elem::mxfp4 ? 4 : 8));
  widened(p, n, [&](std::int64_t i, const std::byte* row, std::int64_t count) HWY_ATTR {
    store_of<F32>(type, row, count, scale, o + i * bits / 8, stream, nullptr);
  });
}

template <class T>
void scale_blocks_as(const float* x, std::int64_t n, const float* scales, std::int64_t block, std::byte* out, bool stream) {
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(block));
  const auto value = [&](std::int64_t j) HWY_ATTR { return hn::Mul(hn::LoadU(df, x + j), hn::Set(df, scales[j >> shift])); };
  std::int64_t i = 0;
  for (; i + kLine <= n; i += kLine) store_line<T>(value, out, i, stream);
  for (; i < n; i += kLanes) store_part<T>(value(i), out, i, n);
}

void scale_blocks(Elem type, const float* x, std::int64_t n, const float* scales, std::int64_t block, void* out, bool stream) {
  auto* o = static_cast<std::byte*>(out);
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  switch (type) {
    case Elem::f32: return scale_blocks_as<F32>(x, n, scales, block, o, stream);
    case Elem::f16: return scale_blocks_as<F16>(x, n, scales, block, o, stream);
    default: return scale_blocks_as<Bf16>(x, n, scales, block, o, stream);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::rows
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ROWS_CPU_BLOCKS_INL_H_
