// The stores of cpu_kernels.h and the scales that belong to them, compiled once for each SIMD target.
#include "rows/cpu_kernels.h"

#include "cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rows/cpu_codes.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "rows/cpu_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace girih::rows {
namespace HWY_NAMESPACE {

void set_codes(Kernels& k) {
  k.largest = largest;
  k.store = store;
  k.store_blocks = store_blocks;
  k.raise_largest = raise_largest;
  k.store_divided = store_divided;
  k.scale_blocks = scale_blocks;
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace girih::rows {

void fill_codes(CpuTarget target, Kernels& k) {
#if GIRIH_HAVE_AVX3
  if (target == CpuTarget::avx3 || target == CpuTarget::avx3_bf16) return N_AVX3::set_codes(k);
#endif
#if GIRIH_HAVE_AVX2
  if (target == CpuTarget::avx2) return N_AVX2::set_codes(k);
#endif
#if GIRIH_HAVE_NEON
  if (target == CpuTarget::neon) return N_NEON::set_codes(k);
#endif
  N_EMU128::set_codes(k);
}

}  // namespace girih::rows
#endif
