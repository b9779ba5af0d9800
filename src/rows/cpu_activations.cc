// The activations of cpu_kernels.h, compiled once for each SIMD target.
#include "rows/cpu_kernels.h"

#include "cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rows/cpu_activations.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "rows/cpu_activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace girih::rows {
namespace HWY_NAMESPACE {

void set_activations(Kernels& k) { k.activate = activate; }

}  // namespace HWY_NAMESPACE
}  // namespace girih::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace girih::rows {

void fill_activations(CpuTarget target, Kernels& k) {
#if GIRIH_HAVE_AVX3
  if (target == CpuTarget::avx3 || target == CpuTarget::avx3_bf16) return N_AVX3::set_activations(k);
#endif
#if GIRIH_HAVE_AVX2
  if (target == CpuTarget::avx2) return N_AVX2::set_activations(k);
#endif
#if GIRIH_HAVE_NEON
  if (target == CpuTarget::neon) return N_NEON::set_activations(k);
#endif
  N_EMU128::set_activations(k);
}

}  // namespace girih::rows
#endif
