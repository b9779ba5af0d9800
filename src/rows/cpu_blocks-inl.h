// Codes of 4 bits, and codes of blocks with their scales: chosen by the rules of base/scales.h, a vector of blocks at a time.
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

HWY_INLINE VI finite_magnitude(VF x) {
  const VI magnitude = hn::BitCast(di, hn::Abs(x));
  return hn::IfThenElseZero(hn::Lt(magnitude, hn::Set(di, 0x7f800000)), magnitude);
}

/// Magnitudes of elements of a type as integers, as many as a vector holds: their order is that of the numbers. Infinities and NaN are 0.
template <class L>
struct Magnitudes {
  using D = hn::RebindToSigned<DF>;
  static HWY_INLINE hn::Vec<D> load(const std::byte* p) { return finite_magnitude(L::load(p)); }
};
template <class L, int kInfinity>
struct HalfMagnitudes {
  using D = hn::Repartition<std::int16_t, DF>;
  static HWY_INLINE hn::Vec<D> load(const std::byte* p) {
    const D d;
    const auto magnitude = hn::And(hn::LoadU(d, reinterpret_cast<const std::int16_t*>(p)), hn::Set(d, 0x7fff));
    return hn::IfThenElseZero(hn::Lt(magnitude, hn::Set(d, kInfinity)), magnitude);
  }
};
template <>
struct Magnitudes<F16> : HalfMagnitudes<F16, 0x7c00> {};
template <>
struct Magnitudes<Bf16> : HalfMagnitudes<Bf16, 0x7f80> {};

/// The largest of kCount neighbours each, from kCount vectors.
template <class L, int kCount>
HWY_INLINE hn::Vec<typename Magnitudes<L>::D> largest_of_neighbours(const std::byte* p) {
  if constexpr (kCount == 1) {
    return Magnitudes<L>::load(p);
  } else {
    const typename Magnitudes<L>::D d;
    const auto low = largest_of_neighbours<L, kCount / 2>(p);
    const auto high =
        largest_of_neighbours<L, kCount / 2>(p + kCount / 2 * static_cast<std::int64_t>(hn::MaxLanes(d) * sizeof(hn::TFromD<decltype(d)>)));
    return hn::Max(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
  }
}

/// The largest finite magnitude of each of kLanes blocks of 16 or 32.
template <class L, int kBlock>
HWY_INLINE VF largest_of_whole_blocks(const std::byte* p) {
  if constexpr (L::kBytes == 2) {
    const VI pairs = hn::BitCast(di, largest_of_neighbours<L, kBlock / 2>(p));  // not negative
    const VI code = hn::Max(hn::And(pairs, hn::Set(di, 0xffff)), hn::ShiftRight<16>(pairs));
    alignas(64) std::uint16_t codes[kLanes];
    const hn::Rebind<std::uint16_t, DF> d16;
    hn::StoreU(hn::DemoteTo(d16, code), d16, codes);
    return L::load(reinterpret_cast<const std::byte*>(codes));
  } else {
    return hn::BitCast(df, largest_of_neighbours<L, kBlock>(p));
  }
}

/// The largest finite magnitude of a row.
template <class L>
float largest_as(const std::byte* source, std::int64_t n) {
  using M = Magnitudes<L>;
  const typename M::D d;
  constexpr int kStep = static_cast<int>(hn::MaxLanes(typename M::D()));
  auto a = hn::Zero(d), b = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * kStep <= n; i += 2 * kStep) {
    a = hn::Max(a, M::load(source + i * L::kBytes));
    b = hn::Max(b, M::load(source + (i + kStep) * L::kBytes));
  }
  alignas(64) std::byte most[kStep * L::kBytes];
  hn::StoreU(hn::Max(a, b), d, reinterpret_cast<hn::TFromD<decltype(d)>*>(most));
  VI all = hn::BitCast(di, L::load(most));
  if constexpr (L::kBytes == 2) all = hn::Max(all, hn::BitCast(di, L::load(most + kLanes * L::kBytes)));
  for (; i < n; i += kLanes) all = hn::Max(all, finite_magnitude(load_part<L>(source, i, n)));
  return hn::GetLane(hn::MaxOfLanes(df, hn::BitCast(df, all)));
}

/// The largest finite magnitude of each block; elements from n on do not count. `most` has room for whole vectors.
template <class L, int kBlock>
void largest_of_blocks(const std::byte* source, std::int64_t n, float* most) {
  std::int64_t first = 0;
  if constexpr (kBlock <= 32) {
    for (; first + kBlock * kLanes <= n; first += kBlock * kLanes)
      hn::StoreU(largest_of_whole_blocks<L, kBlock>(source + first * L::kBytes), df, most + first / kBlock);
  }
  for (; first < n; first += kBlock)
    most[first / kBlock] = largest_as<L>(source + first * L::kBytes, n - first < kBlock ? n - first : kBlock);
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

/// Codes relative to their block's scale; 0 where that is 0.
template <class L, class T, int kBlock>
void encode_blocks(const std::byte* source, std::int64_t n, const float* scales, std::byte* out, bool stream, const void* ahead) {
  const auto divided = [&](std::int64_t i, VF x) HWY_ATTR {
    const VF scale = hn::Set(df, scales[i / kBlock]);
    return hn::IfThenElseZero(hn::Gt(scale, hn::Zero(df)), hn::Div(x, scale));
  };
  const auto value = [&](std::int64_t i) HWY_ATTR { return divided(i, L::load(source + i * L::kBytes)); };
  std::int64_t i = 0;
  for (; i + kLine<T> <= n; i += kLine<T>) {
    bring_near<T>(ahead, i);
    store_line<T>(value, out, i, stream);
  }
  for (; i < n; i += kLanes) store_codes<T>(divided(i, load_part<L>(source, i, n)), out, i, n);
}

template <class L>
void store_blocks_of(Elem type, abi::Scaling scaling, const std::byte* x, std::int64_t n, float global, std::byte* out, std::byte* scales,
                     float* scratch, bool stream, const void* ahead) {
  if (type == Elem::nvfp4) {
    largest_of_blocks<L, 16>(x, n, scratch);
    choose_nvfp4(scratch, (n + 15) / 16, global, scales);
    return encode_blocks<L, E2m1, 16>(x, n, scratch, out, stream, ahead);
  }
  if (type == Elem::mxfp4 || scaling == abi::Scaling::mx) {
    largest_of_blocks<L, 32>(x, n, scratch);
    choose_mx(scratch, (n + 31) / 32, type == Elem::e4m3 ? 8 : (type == Elem::e5m2 ? 15 : 2), global, scales);
    if (type == Elem::mxfp4) return encode_blocks<L, E2m1, 32>(x, n, scratch, out, stream, ahead);
    return type == Elem::e4m3 ? encode_blocks<L, E4m3, 32>(x, n, scratch, out, stream, ahead)
                              : encode_blocks<L, E5m2, 32>(x, n, scratch, out, stream, ahead);
  }
  largest_of_blocks<L, 128>(x, n, scratch);
  choose_f32(scratch, (n + 127) / 128, type == Elem::e4m3 ? 448.0F : (type == Elem::e5m2 ? 57344.0F : 127.0F), global, scales);
  if (type == Elem::e4m3) return encode_blocks<L, E4m3, 128>(x, n, scratch, out, stream, ahead);
  if (type == Elem::e5m2) return encode_blocks<L, E5m2, 128>(x, n, scratch, out, stream, ahead);
  encode_blocks<L, I8, 128>(x, n, scratch, out, stream, ahead);
}

void store_blocks(Elem from, Elem type, abi::Scaling scaling, const void* x, std::int64_t n, float global, void* out, void* scales,
                  float* scratch, bool stream, const void* ahead) {
  const auto* p = static_cast<const std::byte*>(x);
  auto* o = static_cast<std::byte*>(out);
  auto* s = static_cast<std::byte*>(scales);
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  switch (from) {
    case Elem::f32: return store_blocks_of<F32>(type, scaling, p, n, global, o, s, scratch, stream, ahead);
    case Elem::f16: return store_blocks_of<F16>(type, scaling, p, n, global, o, s, scratch, stream, ahead);
    default: return store_blocks_of<Bf16>(type, scaling, p, n, global, o, s, scratch, stream, ahead);
  }
}

float largest(Elem from, const void* x, std::int64_t n) {
  const auto* p = static_cast<const std::byte*>(x);
  switch (from) {
    case Elem::f32: return largest_as<F32>(p, n);
    case Elem::f16: return largest_as<F16>(p, n);
    default: return largest_as<Bf16>(p, n);
  }
}

/// Divides where there is something to divide by: x / 1 is x, but NaN payloads and time are saved.
template <class L, class T>
void store_as(const std::byte* source, std::int64_t n, float scale, std::byte* out, bool stream, const void* ahead) {
  const VF divisor = hn::Set(df, scale);
  const bool one = scale == 1.0F;
  const auto value = [&](std::int64_t i) HWY_ATTR {
    const VF y = L::load(source + i * L::kBytes);
    return one ? y : hn::Div(y, divisor);
  };
  std::int64_t i = 0;
  for (; i + kLine<T> <= n; i += kLine<T>) {
    bring_near<T>(ahead, i);
    store_line<T>(value, out, i, stream);
  }
  for (; i < n; i += kLanes) {
    const VF y = load_part<L>(source, i, n);
    store_codes<T>(one ? y : hn::Div(y, divisor), out, i, n);
  }
}

template <class L>
void store_of(Elem type, const std::byte* x, std::int64_t n, float scale, std::byte* out, bool stream, const void* ahead) {
  switch (type) {
    case Elem::f32: return store_as<L, F32>(x, n, scale, out, stream, ahead);
    case Elem::f16: return store_as<L, F16>(x, n, scale, out, stream, ahead);
    case Elem::bf16: return store_as<L, Bf16>(x, n, scale, out, stream, ahead);
    case Elem::e4m3: return store_as<L, E4m3>(x, n, scale, out, stream, ahead);
    case Elem::e5m2: return store_as<L, E5m2>(x, n, scale, out, stream, ahead);
    case Elem::i8: return store_as<L, I8>(x, n, scale, out, stream, ahead);
    default: return store_as<L, E2m1>(x, n, scale, out, stream, ahead);
  }
}

void store(Elem from, Elem type, const void* x, std::int64_t n, float scale, void* out, bool stream, const void* ahead) {
  const auto* p = static_cast<const std::byte*>(x);
  auto* o = static_cast<std::byte*>(out);
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  switch (from) {
    case Elem::f32: return store_of<F32>(type, p, n, scale, o, stream, ahead);
    case Elem::f16: return store_of<F16>(type, p, n, scale, o, stream, ahead);
    default: return store_of<Bf16>(type, p, n, scale, o, stream, ahead);
  }
}

template <class T>
void scale_blocks_as(const float* x, std::int64_t n, const float* scales, std::int64_t block, std::byte* out, bool stream) {
  const int shift = __builtin_ctzll(static_cast<unsigned long long>(block));
  const auto value = [&](std::int64_t j) HWY_ATTR { return hn::Mul(hn::LoadU(df, x + j), hn::Set(df, scales[j >> shift])); };
  std::int64_t i = 0;
  for (; i + kLine<T> <= n; i += kLine<T>) store_line<T>(value, out, i, stream);
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
