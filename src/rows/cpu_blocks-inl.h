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

/// Two codes to a byte; an odd end leaves its high nibble 0.
HWY_INLINE void store_e2m1_part(VF x, std::int64_t i, std::int64_t n, std::uint8_t* out) {
  if (i + kLanes <= n) return E2m1::store(x, out + i / 2);
  std::uint8_t rest[kLanes / 2];
  E2m1::store(x, rest);
  const std::int64_t count = n - i;
  if (count % 2 != 0) rest[count / 2] &= 0x0f;
  __builtin_memcpy(out + i / 2, rest, static_cast<std::size_t>((count + 1) / 2));
}

void store_e2m1(const float* x, std::int64_t n, float scale, std::uint8_t* out) {
  const VF divisor = hn::Set(df, scale);
  for (std::int64_t i = 0; i < n; i += kLanes) store_e2m1_part(hn::Div(hn::LoadU(df, x + i), divisor), i, n, out);
}

/// The largest finite magnitude of each block; elements from n on do not count.
template <int kBlock>
void largest_of_blocks(const float* x, std::int64_t n, float* most) {
  const auto infinity = hn::Set(di, 0x7f800000);
  for (std::int64_t first = 0; first < n; first += kBlock) {
    auto largest = hn::Zero(di);
    for (std::int64_t i = first; i < first + kBlock && i < n; i += kLanes) {
      const auto magnitude = hn::BitCast(di, hn::Abs(load_part<F32>(reinterpret_cast<const std::byte*>(x), i, n)));
      largest = hn::Max(largest, hn::IfThenElseZero(hn::Lt(magnitude, infinity), magnitude));
    }
    *most++ = hn::GetLane(hn::MaxOfLanes(df, hn::BitCast(df, largest)));
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

/// Codes relative to their block's scale; 0 where that is 0.
template <class T, int kBlock>
void encode_blocks(const float* x, std::int64_t n, const float* scales, std::byte* out) {
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const VF scale = hn::Set(df, scales[first / kBlock]);
    const auto some = hn::Gt(scale, hn::Zero(df));
    for (std::int64_t i = first; i < first + kBlock && i < n; i += kLanes) {
      const VF y = hn::IfThenElseZero(some, hn::Div(hn::LoadU(df, x + i), scale));
      if constexpr (T::kBytes == 0) {
        store_e2m1_part(y, i, n, reinterpret_cast<std::uint8_t*>(out));
      } else {
        store_part<T>(y, out, i, n);
      }
    }
  }
}

void store_blocks(Elem type, abi::Scaling scaling, const float* x, std::int64_t n, float global, void* out, void* scales, float* scratch) {
  auto* o = static_cast<std::byte*>(out);
  auto* s = static_cast<std::byte*>(scales);
  const bool mx = scaling == abi::Scaling::mx;
  if (type == Elem::nvfp4) {
    largest_of_blocks<16>(x, n, scratch);
    choose_nvfp4(scratch, (n + 15) / 16, global, s);
    return encode_blocks<E2m1, 16>(x, n, scratch, o);
  }
  if (type == Elem::mxfp4 || mx) {
    largest_of_blocks<32>(x, n, scratch);
    choose_mx(scratch, (n + 31) / 32, type == Elem::e4m3 ? 8 : (type == Elem::e5m2 ? 15 : 2), global, s);
    if (type == Elem::mxfp4) return encode_blocks<E2m1, 32>(x, n, scratch, o);
    return type == Elem::e4m3 ? encode_blocks<E4m3, 32>(x, n, scratch, o) : encode_blocks<E5m2, 32>(x, n, scratch, o);
  }
  largest_of_blocks<128>(x, n, scratch);
  choose_f32(scratch, (n + 127) / 128, type == Elem::e4m3 ? 448.0F : (type == Elem::e5m2 ? 57344.0F : 127.0F), global, s);
  if (type == Elem::e4m3) return encode_blocks<E4m3, 128>(x, n, scratch, o);
  if (type == Elem::e5m2) return encode_blocks<E5m2, 128>(x, n, scratch, o);
  encode_blocks<I8, 128>(x, n, scratch, o);
}

template <class T>
void scale_blocks_as(const float* x, std::int64_t n, const float* scales, std::int64_t block, std::byte* out, bool stream) {
  for (std::int64_t first = 0; first < n; first += block) {
    const VF scale = hn::Set(df, scales[first / block]);
    const std::int64_t end = first + block < n ? first + block : n;
    std::int64_t i = first;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes)
      store_two<T>(hn::Mul(hn::LoadU(df, x + i), scale), hn::Mul(hn::LoadU(df, x + i + kLanes), scale), out, i,
                   stream && block % (2 * kLanes) == 0);
    for (; i < end; i += kLanes) store_part<T>(hn::Mul(hn::LoadU(df, x + i), scale), out, i, end);
  }
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
