// See cpu.h.
#include "cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sampling/cpu_kernels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "cpu/f16-inl.h"
#include "sampling/cpu.h"

HWY_BEFORE_NAMESPACE();
namespace girih::sampling {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using D64 = hn::RepartitionToWide<DU>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
using V64 = hn::Vec<D64>;
inline constexpr DF df;
inline constexpr DU du;
inline constexpr DI di;
inline constexpr D64 d64;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
static_assert(kRowPadding % kLanes == 0);
inline constexpr float kMinusInf = -__builtin_inff();

/// a b + c, rounded once on every target: emulated vectors would round twice.
HWY_INLINE VF fused(VF a, VF b, VF c) {
#if HWY_TARGET == HWY_EMU128
  HWY_ALIGN float x[kLanes], y[kLanes], z[kLanes];
  hn::Store(a, df, x);
  hn::Store(b, df, y);
  hn::Store(c, df, z);
  for (int i = 0; i < kLanes; ++i) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
  return hn::Load(df, z);
#else
  return hn::MulAdd(a, b, c);
#endif
}

/// 2^((x - max) scale): below 2^-125 0. The steps are those of kernels/sampling/weight.cuh, rounding for rounding.
HWY_INLINE VF logit_weight(VF x, const Weighting& w) {
  const VF max = hn::Set(df, w.max);
  const VF scale = hn::Set(df, w.scale);
  const VF magic = hn::Set(df, 0x1.8p23F);
  const VF d = hn::IfThenZeroElse(hn::Eq(x, max), hn::Sub(x, max));
  const VF shifted = fused(d, scale, magic);
  const auto small = hn::Lt(shifted, hn::Set(df, 0x1.8p23F - 125.0F));
  const VF safe = hn::IfThenElse(small, magic, shifted);
  const VF f = hn::IfThenZeroElse(small, fused(d, scale, hn::Neg(hn::Sub(safe, magic))));
  // 1 + f p(f), p minimax for (2^f - 1) / f on [-1/2, 1/2].
  const VF f2 = hn::Mul(f, f);
  VF p = fused(hn::Set(df, 1.54035122e-4F), f2, fused(hn::Set(df, 1.33907353e-3F), f, hn::Set(df, 9.61823761e-3F)));
  p = fused(p, f2, fused(hn::Set(df, 5.55035733e-2F), f, hn::Set(df, 0.240226492F)));
  p = fused(p, f2, fused(hn::Set(df, 0.693147182F), f, hn::Set(df, 1.0F)));
  const auto exponent = hn::ShiftLeft<23>(hn::Sub(hn::BitCast(di, safe), hn::BitCast(di, magic)));
  const VF weight = hn::BitCast(df, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(small, weight);
}

HWY_INLINE VF weight_of(VF x, const Weighting& w) {
  if (w.max == __builtin_inff()) return hn::IfThenElseZero(hn::Eq(x, hn::Set(df, w.max)), hn::Set(df, 1.0F));
  if (w.probs) return hn::IfThenElseZero(hn::Gt(x, hn::Zero(df)), x);
  return logit_weight(x, w);
}

struct Masses {
  V64 low, high;
};
HWY_INLINE Masses masses_of(VF weight, int reference) {
  const VU bits = hn::BitCast(du, weight);
  const VU field = hn::ShiftRight<23>(bits);
  const auto subnormal = hn::Eq(field, hn::Zero(du));
  const VU fraction = hn::And(bits, hn::Set(du, 0x7fffffU));
  const VU mantissa = hn::IfThenElse(subnormal, fraction, hn::Or(fraction, hn::Set(du, 0x800000U)));
  const VU exponent = hn::IfThenElse(subnormal, hn::Set(du, 1U), field);
  const VU shift = hn::Min(hn::Sub(hn::Set(du, static_cast<std::uint32_t>(reference)), exponent), hn::Set(du, 63U));
  const hn::Half<DU> dh;
  constexpr int kUp = abi::kMassBits - 23;
  return {hn::Shr(hn::ShiftLeft<kUp>(hn::PromoteTo(d64, hn::LowerHalf(dh, mantissa))), hn::PromoteTo(d64, hn::LowerHalf(dh, shift))),
          hn::Shr(hn::ShiftLeft<kUp>(hn::PromoteTo(d64, hn::UpperHalf(dh, mantissa))), hn::PromoteTo(d64, hn::UpperHalf(dh, shift)))};
}

struct LoadF32 {
  using Element = float;
  static HWY_INLINE VF load(const Element* p) { return hn::LoadU(df, p); }
};
struct LoadBf16 {
  using Element = std::uint16_t;
  static HWY_INLINE VF load(const Element* p) {
    const hn::Rebind<std::uint16_t, DF> d16;
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, p))));
  }
};
struct LoadF16 {
  using Element = std::uint16_t;
  static HWY_INLINE VF load(const Element* p) {
    const hn::Rebind<std::uint16_t, DF> d16;
    return cpu::HWY_NAMESPACE::widen_f16(df, hn::LoadU(d16, p));
  }
};

template <typename Load>
bool load_as(const typename Load::Element* source, std::int64_t n, bool probs, float* x) {
  const VF minus_inf = hn::Set(df, kMinusInf);
  const VF zero = hn::Zero(df);
  VU nan = hn::Zero(du);
  const auto step = [&](VF v) HWY_ATTR {
    nan = hn::Or(nan, hn::BitCast(du, hn::VecFromMask(df, hn::IsNaN(v))));
    if (probs) return hn::IfThenElse(hn::Gt(v, zero), v, minus_inf);
    return hn::IfThenElse(hn::IsNaN(v), minus_inf, hn::IfThenZeroElse(hn::Eq(v, zero), v));
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(step(Load::load(source + i)), df, x + i);
  if (i < n) {
    typename Load::Element rest[kLanes] = {};
    for (std::int64_t j = i; j < n; ++j) rest[j - i] = source[j];
    hn::StoreU(step(Load::load(rest)), df, x + i);
  }
  for (i = n; i % kRowPadding != 0; ++i) x[i] = kMinusInf;
  return !hn::AllTrue(du, hn::Eq(nan, hn::Zero(du)));
}

bool load(const void* source, DType type, std::int64_t n, bool probs, float* x) {
  if (type == DType::bf16) return load_as<LoadBf16>(static_cast<const std::uint16_t*>(source), n, probs, x);
  if (type == DType::f16) return load_as<LoadF16>(static_cast<const std::uint16_t*>(source), n, probs, x);
  return load_as<LoadF32>(static_cast<const float*>(source), n, probs, x);
}

void mask(const std::uint32_t* words, std::int64_t n, float* x) {
  for (std::int64_t i = 0; i < n; i += 32) {
    const std::uint32_t word = words[i / 32];
    if (word == 0xffffffffU) continue;
    const std::int64_t end = i + 32 < n ? i + 32 : n;
    for (std::int64_t j = i; j < end; ++j) {
      if ((word >> (j - i) & 1U) == 0) x[j] = kMinusInf;
    }
  }
}

float row_max(const float* x, std::int64_t n) {
  VF top = hn::Set(df, kMinusInf);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const VF v = hn::LoadU(df, x + i);
    top = hn::IfThenElse(hn::Gt(v, top), v, top);
  }
  HWY_ALIGN float lanes[kLanes];
  hn::Store(top, df, lanes);
  float result = lanes[0];
  for (int i = 1; i < kLanes; ++i) result = lanes[i] > result ? lanes[i] : result;
  return result;
}

std::uint64_t sum(const float* x, std::int64_t n, const Weighting& w, std::uint64_t* chunks) {
  std::uint64_t total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const std::int64_t end = begin + kChunk < n ? begin + kChunk : n;
    V64 low = hn::Zero(d64), high = hn::Zero(d64);
    for (std::int64_t i = begin; i < end; i += kLanes) {
      const Masses m = masses_of(weight_of(hn::LoadU(df, x + i), w), w.reference);
      low = hn::Add(low, m.low);
      high = hn::Add(high, m.high);
    }
    HWY_ALIGN std::uint64_t lanes[kLanes / 2];
    hn::Store(hn::Add(low, high), d64, lanes);
    std::uint64_t chunk = 0;
    for (int i = 0; i < kLanes / 2; ++i) chunk += lanes[i];
    if (chunks != nullptr) chunks[begin / kChunk] = chunk;
    total += chunk;
  }
  return total;
}

void masses(const float* x, std::int64_t n, const Weighting& w, std::uint64_t* out) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const Masses m = masses_of(weight_of(hn::LoadU(df, x + i), w), w.reference);
    hn::StoreU(m.low, d64, out + i);
    hn::StoreU(m.high, d64, out + i + kLanes / 2);
  }
}

void divide(const float* x, std::int64_t n, const Weighting& w, float divisor, float* out) {
  const VF by = hn::Set(df, divisor);
  for (std::int64_t i = 0; i < n; i += kLanes) hn::StoreU(hn::Div(weight_of(hn::LoadU(df, x + i), w), by), df, out + i);
}

std::int64_t gather(const float* x, std::int64_t n, float pivot, std::int32_t* indices) {
  const VF least = hn::Set(df, pivot);
  std::int64_t count = 0;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto found = hn::Ge(hn::LoadU(df, x + i), least);
    if (hn::AllFalse(df, found)) continue;
    count += static_cast<std::int64_t>(
        hn::CompressStore(hn::Iota(di, static_cast<std::int32_t>(i)), hn::RebindMask(di, found), di, indices + count));
  }
  for (; i < n; ++i) {
    if (x[i] >= pivot) indices[count++] = static_cast<std::int32_t>(i);
  }
  return count;
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::sampling
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace girih::sampling {

const CpuKernels& cpu_kernels(CpuTarget target) {
#if GIRIH_HAVE_AVX3
  static constexpr CpuKernels kAvx3 = {N_AVX3::load,   N_AVX3::mask,   N_AVX3::row_max, N_AVX3::sum,
                                       N_AVX3::masses, N_AVX3::divide, N_AVX3::gather};
  if (target == CpuTarget::avx3 || target == CpuTarget::avx3_bf16) return kAvx3;
#endif
#if GIRIH_HAVE_AVX2
  static constexpr CpuKernels kAvx2 = {N_AVX2::load,   N_AVX2::mask,   N_AVX2::row_max, N_AVX2::sum,
                                       N_AVX2::masses, N_AVX2::divide, N_AVX2::gather};
  if (target == CpuTarget::avx2) return kAvx2;
#endif
#if GIRIH_HAVE_NEON
  static constexpr CpuKernels kNeon = {N_NEON::load,   N_NEON::mask,   N_NEON::row_max, N_NEON::sum,
                                       N_NEON::masses, N_NEON::divide, N_NEON::gather};
  if (target == CpuTarget::neon) return kNeon;
#endif
  static constexpr CpuKernels kScalar = {N_EMU128::load,   N_EMU128::mask,   N_EMU128::row_max, N_EMU128::sum,
                                         N_EMU128::masses, N_EMU128::divide, N_EMU128::gather};
  (void)target;
  return kScalar;
}

}  // namespace girih::sampling
#endif  // HWY_ONCE
