// See cpu_kernels.h: everything but activations and stores of codes, which have files of their own. Conversions follow base/numeric.h, code
// for code; sums run over lanes, so that their last bits depend on the target.
#include "rows/cpu_kernels.h"

#include "cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rows/cpu_kernels.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "rows/cpu_elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace girih::rows {
namespace HWY_NAMESPACE {

using abi::Elem;

template <class L>
float load_as(const std::byte* source, std::int64_t n, float* out) {
  VF a = hn::Zero(df), b = hn::Zero(df);
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const VF x = L::load(source + i * L::kBytes);
    const VF y = L::load(source + (i + kLanes) * L::kBytes);
    a = hn::MulAdd(x, x, a);
    b = hn::MulAdd(y, y, b);
    hn::StoreU(x, df, out + i);
    hn::StoreU(y, df, out + i + kLanes);
  }
  for (; i < n; i += kLanes) {
    const VF x = load_part<L>(source, i, n);
    a = hn::MulAdd(x, x, a);
    hn::StoreU(x, df, out + i);
  }
  return hn::GetLane(hn::SumOfLanes(df, hn::Add(a, b)));
}

/// Codes of two to a byte, as e2m1 values; no sum.
float load_e2m1(const std::byte* source, std::int64_t n, float* out) {
  // A vector of codes from 16 bytes of them: in each lane first its byte, then its nibble at the top.
  alignas(64) std::uint8_t bytes[32 * 4];
  alignas(64) std::uint32_t shifts[kLanes];
  for (int b = 0; b < 32 * 4; ++b) bytes[b] = static_cast<std::uint8_t>(b / 8);
  for (int k = 0; k < kLanes; ++k) shifts[k] = k % 2 == 0 ? 28 : 24;
  const hn::RebindToUnsigned<DF> du;
  const auto places = hn::Load(du, shifts);
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const VU8 all = hn::LoadDup128(du8, reinterpret_cast<const std::uint8_t*>(source + i / 2));
    for (int v = 0; v < 32; v += kLanes) {
      const auto code = hn::Shl(hn::BitCast(du, hn::TableLookupBytes(all, hn::Load(du8, bytes + 4 * v))), places);
      hn::StoreU(E2m1::number_of(hn::BitCast(di, code)), df, out + i + v);
    }
  }
  for (; i < n; i += kLanes) {
    alignas(64) std::byte rest[kLanes] = {};
    const std::int64_t left = n - i < kLanes ? n - i : kLanes;
    __builtin_memcpy(rest, source + i / 2, static_cast<std::size_t>((left + 1) / 2));
    if (left % 2 != 0) rest[left / 2] &= std::byte{0x0f};
    hn::StoreU(E2m1::load(rest), df, out + i);
  }
  return 0;
}

template <class L>
void squares_as(const std::byte* x, std::int64_t heads, std::int64_t dim, float* sums) {
  for (std::int64_t h = 0; h < heads; ++h, x += dim * L::kBytes) {
    VF four[4] = {hn::Zero(df), hn::Zero(df), hn::Zero(df), hn::Zero(df)};  // an addition waits for the one before
    std::int64_t i = 0;
    for (; i + 4 * kLanes <= dim; i += 4 * kLanes) {
      for (int k = 0; k < 4; k += 2) {
        const std::byte* p = x + (i + k * kLanes) * L::kBytes;
        VF y, z;
        if constexpr (L::kWoven) {
          L::load_both(p, y, z);
        } else {
          y = L::load(p);
          z = L::load(p + kLanes * L::kBytes);
        }
        four[k] = hn::MulAdd(y, y, four[k]);
        four[k + 1] = hn::MulAdd(z, z, four[k + 1]);
      }
    }
    for (; i < dim; i += kLanes) {
      const VF y = load_part<L>(x, i, dim);
      four[0] = hn::MulAdd(y, y, four[0]);
    }
    sums[h] = hn::GetLane(hn::SumOfLanes(df, hn::Add(hn::Add(four[0], four[1]), hn::Add(four[2], four[3]))));
  }
}

void squares(Elem type, const void* x, std::int64_t heads, std::int64_t dim, float* sums) {
  const auto* p = static_cast<const std::byte*>(x);
  type == Elem::f32 ? squares_as<F32>(p, heads, dim, sums) : squares_as<Bf16>(p, heads, dim, sums);
}

float load(Elem type, const void* source, std::int64_t n, float* out) {
  const auto* p = static_cast<const std::byte*>(source);
  switch (type) {
    case Elem::f32: return load_as<F32>(p, n, out);
    case Elem::f16: return load_as<F16>(p, n, out);
    case Elem::bf16: return load_as<Bf16>(p, n, out);
    case Elem::e4m3: return load_as<E4m3>(p, n, out);
    case Elem::e5m2: return load_as<E5m2>(p, n, out);
    case Elem::i8: return load_as<I8>(p, n, out);
    default: return load_e2m1(p, n, out);
  }
}

template <class T>
float load_sum_as(const std::byte* x, const std::byte* residual, std::int64_t n, float* out, std::byte* sum) {
  VF squares = hn::Zero(df);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const VF y = hn::Add(load_part<T>(x, i, n), load_part<T>(residual, i, n));
    squares = hn::MulAdd(y, y, squares);
    hn::StoreU(y, df, out + i);
    if (sum != nullptr) store_part<T>(y, sum, i, n);
  }
  return hn::GetLane(hn::SumOfLanes(df, squares));
}

float load_sum(Elem type, const void* x, const void* residual, std::int64_t n, float* out, void* sum) {
  const auto* a = static_cast<const std::byte*>(x);
  const auto* b = static_cast<const std::byte*>(residual);
  auto* s = static_cast<std::byte*>(sum);
  switch (type) {
    case Elem::f32: return load_sum_as<F32>(a, b, n, out, s);
    case Elem::f16: return load_sum_as<F16>(a, b, n, out, s);
    default: return load_sum_as<Bf16>(a, b, n, out, s);
  }
}

float centre(float* x, std::int64_t n) {
  VF sums[4], mean = hn::Zero(df);
  const auto clear = [&]() HWY_ATTR {
    for (VF& s : sums) s = hn::Zero(df);
  };
  const auto total = [&](float rest) HWY_ATTR {
    return hn::GetLane(hn::SumOfLanes(df, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])))) + rest;
  };
  clear();
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) sums[k] = hn::Add(sums[k], hn::LoadU(df, x + i + k * kLanes));
  }
  for (; i < n; i += kLanes) sums[0] = hn::Add(sums[0], load_part<F32>(reinterpret_cast<const std::byte*>(x), i, n));
  mean = hn::Set(df, total(0) / static_cast<float>(n));
  clear();
  const auto step = [&](std::int64_t j, VF& squares) HWY_ATTR {
    const VF y = hn::Sub(hn::LoadU(df, x + j), mean);
    squares = hn::MulAdd(y, y, squares);
    hn::StoreU(y, df, x + j);
  };
  for (i = 0; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) step(i + k * kLanes, sums[k]);
  }
  for (; i + kLanes <= n; i += kLanes) step(i, sums[0]);
  float rest = 0;
  for (; i < n; ++i) {
    x[i] -= hn::GetLane(mean);
    rest += x[i] * x[i];
  }
  return total(rest);
}

/// Of head `h`: x * factor * weight + bias, a vector at a time.
template <class L, bool kBias>
struct ScaledHead {
  const std::byte* x;
  const float* weight;
  const float* bias;
  float factor;
  std::int64_t dim;

  HWY_INLINE ScaledHead(const std::byte* row, const Scales& s, std::int64_t h)
      : x(row + h * s.dim * L::kBytes),
        weight(s.weight + h * s.weight_stride),
        bias(kBias ? s.bias + h * s.weight_stride : nullptr),
        factor(s.factors[h]),
        dim(s.dim) {}
  HWY_INLINE VF of(VF y, std::int64_t i) const {
    y = hn::Mul(hn::Mul(y, hn::Set(df, factor)), hn::LoadU(df, weight + i));
    if constexpr (kBias) y = hn::Add(y, hn::LoadU(df, bias + i));
    return y;
  }
  HWY_INLINE VF whole(std::int64_t i) const { return of(L::load(x + i * L::kBytes), i); }
  HWY_INLINE VF part(std::int64_t i) const { return of(load_part<L>(x, i, dim), i); }
};

template <class L, class T, bool kBias>
void scale_store_as(const std::byte* x, const Scales& s, std::byte* out, bool stream, const void* ahead) {
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const ScaledHead<L, kBias> head(x, s, h);
    std::byte* to = out + h * s.dim * T::kBytes;
    const auto value = [&](std::int64_t j) HWY_ATTR { return head.whole(j); };
    std::int64_t i = 0;
    for (; i + kLine <= s.dim; i += kLine) {
      bring_near(ahead, h * s.dim + i, kLine);
      store_line<T>(value, to, i, stream);
    }
    for (; i < s.dim; i += kLanes) store_part<T>(head.part(i), to, i, s.dim);
  }
}

template <class L>
void scale_store_of(Elem type, const std::byte* x, const Scales& s, std::byte* out, bool stream, const void* ahead) {
  const bool bias = s.bias != nullptr;
  switch (type) {
    case Elem::f32:
      return bias ? scale_store_as<L, F32, true>(x, s, out, stream, ahead) : scale_store_as<L, F32, false>(x, s, out, stream, ahead);
    case Elem::f16:
      return bias ? scale_store_as<L, F16, true>(x, s, out, stream, ahead) : scale_store_as<L, F16, false>(x, s, out, stream, ahead);
    default:
      return bias ? scale_store_as<L, Bf16, true>(x, s, out, stream, ahead) : scale_store_as<L, Bf16, false>(x, s, out, stream, ahead);
  }
}

void scale_store(Elem from, Elem type, const void* x, const Scales& s, void* out, bool stream, const void* ahead) {
  const auto* p = static_cast<const std::byte*>(x);
  auto* o = static_cast<std::byte*>(out);
  const std::int64_t bytes = s.dim * (type == Elem::f32 ? 4 : 2);  // of a head: every one must begin a line
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0 && (s.heads == 1 || bytes % 64 == 0);
  from == Elem::f32 ? scale_store_of<F32>(type, p, s, o, stream, ahead) : scale_store_of<Bf16>(type, p, s, o, stream, ahead);
}

/// The largest magnitude, as an integer: infinity and NaN are above all finite ones.
template <class L, bool kBias>
VI scale_largest_as(const std::byte* x, const Scales& s, float* out) {
  const ScaledHead<L, kBias> head(x, s, 0);
  VI most = hn::Zero(di);
  const auto keep = [&](VF y, std::int64_t i) HWY_ATTR {
    hn::StoreU(y, df, out + i);
    most = hn::Max(most, hn::BitCast(di, hn::Abs(y)));
  };
  std::int64_t i = 0;
  for (; i + kLanes <= s.dim; i += kLanes) keep(head.whole(i), i);
  if (i < s.dim) keep(hn::IfThenElseZero(hn::FirstN(df, static_cast<std::size_t>(s.dim - i)), head.part(i)), i);
  return most;
}

float scale_largest(Elem from, const void* x, const Scales& s, float* out) {
  const auto* p = static_cast<const std::byte*>(x);
  const bool bias = s.bias != nullptr;
  VI most = from == Elem::f32 ? (bias ? scale_largest_as<F32, true>(p, s, out) : scale_largest_as<F32, false>(p, s, out))
                              : (bias ? scale_largest_as<Bf16, true>(p, s, out) : scale_largest_as<Bf16, false>(p, s, out));
  const VI infinity = hn::Set(di, 0x7f800000);
  if (!hn::AllTrue(di, hn::Lt(most, infinity))) {
    most = hn::Zero(di);
    for (std::int64_t i = 0; i < s.dim; i += kLanes) {
      const VI magnitude = hn::BitCast(di, hn::Abs(hn::LoadU(df, out + i)));
      most = hn::Max(most, hn::IfThenElseZero(hn::Lt(magnitude, infinity), magnitude));
    }
  }
  return hn::GetLane(hn::MaxOfLanes(df, hn::BitCast(df, most)));
}

/// One pass over two rows: the next one is brought in while the one before it is scaled and stored, so that memory is never idle. Without a
/// residual rows are read once more from the cache, in their own type, and no buffers are needed.
template <class T, bool kResidual>
float norm_step_as(const NormStep& s, std::int64_t n) {
  const auto* next = static_cast<const std::byte*>(s.next);
  const auto* residual = static_cast<const std::byte*>(s.residual);
  const auto* source = static_cast<const std::byte*>(s.source);
  auto* sum = static_cast<std::byte*>(s.sum);
  auto* out = static_cast<std::byte*>(s.out);
  const bool stream = s.stream && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
  const VF f = hn::Set(df, s.factor);
  VF squares = hn::Zero(df);
  const auto bring = [&](std::int64_t i) HWY_ATTR {
    VF y = load_part<T>(next, i, n);
    if constexpr (kResidual) {
      y = hn::Add(y, load_part<T>(residual, i, n));
      if (sum != nullptr) store_part<T>(y, sum, i, n);
    }
    squares = hn::MulAdd(y, y, squares);
    return y;
  };
  const auto value = [&](std::int64_t i, VF brought) HWY_ATTR {
    VF x;
    if constexpr (kResidual) {
      hn::StoreU(brought, df, s.next_row + i);
      x = hn::LoadU(df, s.row + i);
    } else {
      x = load_part<T>(source, i, n);
    }
    return hn::Mul(hn::Mul(x, f), hn::LoadU(df, s.weight + i));
  };
  const auto step = [&](std::int64_t i) HWY_ATTR { return value(i, bring(i)); };
  std::int64_t i = 0;
  for (; i + kLine <= n; i += kLine) store_line<T>(step, out, i, stream);
  for (; i < n; i += kLanes) store_part<T>(step(i), out, i, n);
  return hn::GetLane(hn::SumOfLanes(df, squares));
}

float norm_step(Elem type, const NormStep& step, std::int64_t n) {
  const bool residual = step.residual != nullptr;
  switch (type) {
    case Elem::f32: return residual ? norm_step_as<F32, true>(step, n) : norm_step_as<F32, false>(step, n);
    case Elem::f16: return residual ? norm_step_as<F16, true>(step, n) : norm_step_as<F16, false>(step, n);
    default: return residual ? norm_step_as<Bf16, true>(step, n) : norm_step_as<Bf16, false>(step, n);
  }
}

/// Pairs that lie side by side: x cos + (neighbour) (-sin or sin), the two factors laid out once for all heads.
void rotate_neighbours(float* x, std::int64_t heads, std::int64_t stride, std::int64_t pairs, const float* cos, const float* sin) {
  constexpr std::int64_t kPairs = 64;
  alignas(64) float factors[2 * kPairs + kLanes], turned[2 * kPairs + kLanes];
  for (std::int64_t first = 0; first < pairs; first += kPairs) {
    const std::int64_t count = pairs - first < kPairs ? pairs - first : kPairs;
    for (std::int64_t i = 0; i < count; ++i) {
      factors[2 * i] = factors[2 * i + 1] = cos[first + i];
      turned[2 * i] = -sin[first + i];
      turned[2 * i + 1] = sin[first + i];
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      auto* y = reinterpret_cast<std::byte*>(x + h * stride + 2 * first);
      for (std::int64_t i = 0; i < 2 * count; i += kLanes) {
        const VF v = load_part<F32>(y, i, 2 * count);
        const VF other = hn::Mul(hn::Shuffle2301(v), hn::LoadU(df, turned + i));
        store_part<F32>(hn::MulAdd(v, hn::LoadU(df, factors + i), other), y, i, 2 * count);
      }
    }
  }
}

void rotate(abi::Rotation rotation, float* x, std::int64_t heads, std::int64_t stride, std::int64_t pairs, const float* cos,
            const float* sin) {
  if (rotation == abi::Rotation::interleaved) return rotate_neighbours(x, heads, stride, pairs, cos, sin);
  for (std::int64_t h = 0; h < heads; ++h) {
    float* y = x + h * stride;
    float* z = y + pairs;
    std::int64_t i = 0;
    for (; i + kLanes <= pairs; i += kLanes) {
      const VF a = hn::LoadU(df, y + i), b = hn::LoadU(df, z + i), c = hn::LoadU(df, cos + i), s = hn::LoadU(df, sin + i);
      hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), df, y + i);
      hn::StoreU(hn::Add(hn::Mul(a, s), hn::Mul(b, c)), df, z + i);
    }
    for (; i < pairs; ++i) {
      const float a = y[i], b = z[i];
      y[i] = a * cos[i] - b * sin[i];
      z[i] = a * sin[i] + b * cos[i];
    }
  }
}

void pack_bits(const std::uint8_t* bytes, std::int64_t n, bool big, std::uint8_t* out) {
  std::int64_t i = 0;
  // Eight bytes at once: each becomes 0 or 1, and a product gathers the eight bits in its top byte.
  const std::uint64_t gather = big ? 0x8040201008040201U : 0x0102040810204080U;
  for (; i + 8 <= n; i += 8) {
    std::uint64_t word;
    __builtin_memcpy(&word, bytes + i, 8);
    word |= word >> 4;
    word |= word >> 2;
    word |= word >> 1;
    out[i / 8] = static_cast<std::uint8_t>(((word & 0x0101010101010101U) * gather) >> 56);
  }
  if (i == n) return;
  unsigned last = 0;
  for (std::int64_t j = i; j < n; ++j) last |= (bytes[j] != 0 ? 1U : 0U) << (big ? 7 - (j - i) : j - i);
  out[i / 8] = static_cast<std::uint8_t>(last);
}

void flush() { hwy::FlushStream(); }

void set_rows(Kernels& k) {
  k.load = load;
  k.squares = squares;
  k.load_sum = load_sum;
  k.centre = centre;
  k.scale_largest = scale_largest;
  k.scale_store = scale_store;
  k.norm_step = norm_step;
  k.rotate = rotate;
  k.pack_bits = pack_bits;
  k.flush = flush;
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace girih::rows {

void fill_rows(CpuTarget target, Kernels& k) {
#if GIRIH_HAVE_AVX3
  if (target == CpuTarget::avx3 || target == CpuTarget::avx3_bf16) return N_AVX3::set_rows(k);
#endif
#if GIRIH_HAVE_AVX2
  if (target == CpuTarget::avx2) return N_AVX2::set_rows(k);
#endif
#if GIRIH_HAVE_NEON
  if (target == CpuTarget::neon) return N_NEON::set_rows(k);
#endif
  N_EMU128::set_rows(k);
}

Kernels kernels(CpuTarget target) {
  Kernels k{};
  fill_rows(target, k);
  fill_activations(target, k);
  fill_codes(target, k);
  return k;
}

}  // namespace girih::rows
#endif
