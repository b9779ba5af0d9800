// The largest finite magnitudes of rows and of blocks. Neighbours are compared across vectors, so that a vector of maxima takes no
// reductions within lanes; rows of 16 bits are compared as integers of 16 bits.
#if defined(GIRIH_ROWS_CPU_LARGEST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_ROWS_CPU_LARGEST_INL_H_
#undef GIRIH_ROWS_CPU_LARGEST_INL_H_
#else
#define GIRIH_ROWS_CPU_LARGEST_INL_H_
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

HWY_INLINE VI finite_magnitude(VF x) {
  const VI magnitude = hn::BitCast(di, hn::Abs(x));
  return hn::IfThenElseZero(hn::Lt(magnitude, hn::Set(di, 0x7f800000)), magnitude);
}

/// Magnitudes of elements of a type as integers, as many as a vector holds: their order is that of the numbers, infinities and NaN being
/// last. `finite` makes 0 of these.
template <class L>
struct Magnitudes {
  using D = hn::RebindToSigned<DF>;
  static constexpr std::int32_t kInfinity = 0x7f800000;
  static constexpr std::int32_t kMagnitude = 0x7fffffff;
};
template <int kInf>
struct HalfMagnitudes {
  using D = hn::Repartition<std::int16_t, DF>;
  static constexpr std::int16_t kInfinity = kInf;
  static constexpr std::int16_t kMagnitude = 0x7fff;
};
template <>
struct Magnitudes<F16> : HalfMagnitudes<0x7c00> {};
template <>
struct Magnitudes<Bf16> : HalfMagnitudes<0x7f80> {};
template <class L>
using Magnitude = hn::Vec<typename Magnitudes<L>::D>;
template <class L>
inline constexpr int kMagnitudes = static_cast<int>(hn::MaxLanes(typename Magnitudes<L>::D()));

template <class L>
HWY_INLINE Magnitude<L> load_magnitudes(const std::byte* p) {
  const typename Magnitudes<L>::D d;
  return hn::And(hn::LoadU(d, reinterpret_cast<const hn::TFromD<decltype(d)>*>(p)), hn::Set(d, Magnitudes<L>::kMagnitude));
}
template <class L>
HWY_INLINE Magnitude<L> finite(Magnitude<L> x) {
  return hn::IfThenElseZero(hn::Lt(x, hn::Set(typename Magnitudes<L>::D(), Magnitudes<L>::kInfinity)), x);
}

/// The largest of kVectors vectors that lie side by side, lane by lane.
template <class L, int kVectors, bool kFinite>
HWY_INLINE Magnitude<L> largest_of_vectors(const std::byte* p) {
  const auto load = [&](int v) HWY_ATTR {
    const Magnitude<L> x = load_magnitudes<L>(p + v * kMagnitudes<L> * L::kBytes);
    return kFinite ? finite<L>(x) : x;
  };
  Magnitude<L> most = load(0);
  for (int v = 1; v < kVectors; ++v) most = hn::Max(most, load(v));
  return most;
}

/// Of kCount runs of kVectors vectors: each lane of 32 bits has the largest, of elements at its even and its odd places, of kCount lanes of
/// the runs' maxima that lie side by side.
template <class L, int kCount, int kVectors, bool kFinite>
HWY_INLINE Magnitude<L> largest_of_neighbours(const std::byte* p) {
  if constexpr (kCount == 1) {
    return largest_of_vectors<L, kVectors, kFinite>(p);
  } else {
    const typename Magnitudes<L>::D d;
    const VI low = hn::BitCast(di, largest_of_neighbours<L, kCount / 2, kVectors, kFinite>(p));
    const VI high =
        hn::BitCast(di, largest_of_neighbours<L, kCount / 2, kVectors, kFinite>(p + kCount / 2 * kVectors * kMagnitudes<L> * L::kBytes));
    return hn::Max(hn::BitCast(d, hn::ConcatEven(di, high, low)), hn::BitCast(d, hn::ConcatOdd(di, high, low)));
  }
}

/// The largest magnitude of each of kLanes blocks, infinities and NaN as infinities or NaN of L but for kFinite.
template <class L, int kBlock, bool kFinite>
HWY_INLINE VF largest_of_whole_blocks(const std::byte* p) {
  constexpr int kVectors = kBlock <= kMagnitudes<L> ? 1 : kBlock / kMagnitudes<L>;
  constexpr int kCount = kBlock * kLanes / (kVectors * kMagnitudes<L>);
  const VI most = hn::BitCast(di, largest_of_neighbours<L, kCount, kVectors, kFinite>(p));
  if constexpr (L::kBytes == 2) {
    const VI code = hn::Max(hn::And(most, hn::Set(di, 0xffff)), hn::ShiftRight<16>(most));  // not negative
    alignas(64) std::uint16_t codes[kLanes];
    const hn::Rebind<std::uint16_t, DF> d16;
    hn::StoreU(hn::DemoteTo(d16, code), d16, codes);
    return L::load(reinterpret_cast<const std::byte*>(codes));
  } else {
    return hn::BitCast(df, most);
  }
}

/// The largest finite magnitude of a row.
template <class L>
float largest_as(const std::byte* source, std::int64_t n) {
  const typename Magnitudes<L>::D d;
  constexpr int kStep = kMagnitudes<L>;
  auto a = hn::Zero(d), b = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * kStep <= n; i += 2 * kStep) {
    a = hn::Max(a, finite<L>(load_magnitudes<L>(source + i * L::kBytes)));
    b = hn::Max(b, finite<L>(load_magnitudes<L>(source + (i + kStep) * L::kBytes)));
  }
  alignas(64) std::byte most[kStep * L::kBytes];
  hn::StoreU(hn::Max(a, b), d, reinterpret_cast<hn::TFromD<decltype(d)>*>(most));
  VI all = hn::BitCast(di, L::load(most));
  if constexpr (L::kBytes == 2) all = hn::Max(all, hn::BitCast(di, L::load(most + kLanes * L::kBytes)));
  for (; i < n; i += kLanes) all = hn::Max(all, finite_magnitude(load_part<L>(source, i, n)));
  return hn::GetLane(hn::MaxOfLanes(df, hn::BitCast(df, all)));
}

/// The largest finite magnitude of each block; elements from n on do not count. A vector of zeros follows the last.
template <class L, int kBlock>
void largest_of_blocks(const std::byte* source, std::int64_t n, float* most) {
  std::int64_t first = 0;
  for (; first + kBlock * kLanes <= n; first += kBlock * kLanes) {
    const std::byte* p = source + first * L::kBytes;
    VF largest = largest_of_whole_blocks<L, kBlock, false>(p);
    if (!hn::AllTrue(df, hn::Lt(largest, hn::Set(df, __builtin_inff())))) largest = largest_of_whole_blocks<L, kBlock, true>(p);
    hn::StoreU(largest, df, most + first / kBlock);
  }
  for (; first < n; first += kBlock)
    most[first / kBlock] = largest_as<L>(source + first * L::kBytes, n - first < kBlock ? n - first : kBlock);
  hn::StoreU(hn::Zero(df), df, most + (n + kBlock - 1) / kBlock);
}

template <class L>
void raise_largest_of(const std::byte* x, std::int64_t n, float* most) {
  constexpr std::int64_t kPiece = 2048;
  alignas(64) float largest[kPiece / 128 + kLanes];
  for (std::int64_t i = 0; i < n; i += kPiece) {
    const std::int64_t count = n - i < kPiece ? n - i : kPiece;
    largest_of_blocks<L, 128>(x + i * L::kBytes, count, largest);
    for (std::int64_t b = 0; b < (count + 127) / 128; ++b) {
      if (largest[b] > most[i / 128 + b]) most[i / 128 + b] = largest[b];
    }
  }
}

void raise_largest(Elem from, const void* x, std::int64_t n, float* most) {
  const auto* p = static_cast<const std::byte*>(x);
  switch (from) {
    case Elem::f32: return raise_largest_of<F32>(p, n, most);
    case Elem::f16: return raise_largest_of<F16>(p, n, most);
    default: return raise_largest_of<Bf16>(p, n, most);
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

}  // namespace HWY_NAMESPACE
}  // namespace girih::rows
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ROWS_CPU_LARGEST_INL_H_
