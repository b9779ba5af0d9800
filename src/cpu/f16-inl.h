// f16 codes as f32 vectors, for every SIMD file: Highway's own conversion on emulated vectors makes numbers of infinities and NaN.
#if defined(GIRIH_CPU_F16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_CPU_F16_INL_H_
#undef GIRIH_CPU_F16_INL_H_
#else
#define GIRIH_CPU_F16_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace girih::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// `codes`: one of 16 bits for each lane of D.
template <class D>
HWY_INLINE hn::Vec<D> widen_f16(D df, hn::Vec<hn::Rebind<std::uint16_t, D>> codes) {
#if HWY_TARGET == HWY_EMU128
  const hn::RebindToSigned<D> di;
  const auto code = hn::PromoteTo(di, codes);
  const auto magnitude = hn::And(code, hn::Set(di, 0x7fff));
  const auto bits = hn::ShiftLeft<13>(magnitude);
  const auto finite = hn::BitCast(di, hn::Mul(hn::BitCast(df, bits), hn::Set(df, 0x1p112F)));
  const auto special = hn::Or(bits, hn::Set(di, 0x7f800000));
  const auto value = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7bff)), special, finite);
  return hn::BitCast(df, hn::Or(value, hn::ShiftLeft<16>(hn::And(code, hn::Set(di, 0x8000)))));
#else
  const hn::Rebind<hwy::float16_t, D> dh;
  return hn::PromoteTo(df, hn::BitCast(dh, codes));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::cpu
HWY_AFTER_NAMESPACE();
#endif
