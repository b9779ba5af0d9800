// Fixes the set of SIMD targets that Highway compiles: EMU128, AVX2 and AVX3 on x86, EMU128 and NEON on 64-bit Arm, whatever flags,
// compiler or Highway version (1.0.3 and later) are used. Our own table chooses among them at run time, so no symbol of libhwy is needed.
//
// Include it before any Highway header. A SIMD source `src/part/file.cc` looks like this:
//
//   #include "cpu/targets.h"
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "part/file.cc"      // found by the include path src/
//   #include "hwy/foreach_target.h"                // compiles this file once more for each target but the static one
//   #include "hwy/highway.h"
//   #include "variant/evaluate-inl.h"              // any -inl.h: after highway.h
//
//   HWY_BEFORE_NAMESPACE();                        // opens the target's attribute pragma; plain includes stay outside it
//   namespace girih::part {
//   namespace HWY_NAMESPACE {                      // N_EMU128, N_AVX2, N_AVX3 or N_NEON
//   void f(...) { ... }
//   }  // namespace HWY_NAMESPACE
//   }  // namespace girih::part
//   HWY_AFTER_NAMESPACE();
//
//   #if HWY_ONCE                                   // once, after all targets
//   namespace girih::part {
//   Table table(CpuTarget target) {
//   #if GIRIH_HAVE_AVX3
//     if (target == CpuTarget::avx3) return {.f = N_AVX3::f};
//   #endif
//     ...
//     return {.f = N_EMU128::f};                   // always there
//   }
//   }  // namespace girih::part
//   #endif
//
// Three rules keep a binary safe on old CPUs and free of libhwy: code between BEFORE and AFTER instantiates no template and calls no inline
// function of the standard library that may be emitted out of line (the linker would keep one target's copy for all); HWY_EXPORT,
// HWY_DYNAMIC_DISPATCH, HWY_ASSERT, HWY_DASSERT and hwy::SupportedTargets are not used; lambdas carry HWY_ATTR (a pragma does not reach
// them in g++).
#pragma once

#ifdef HWY_HIGHWAY_INCLUDED
#error "include cpu/targets.h before hwy/highway.h"
#endif

// All attainable targets and not only those better than the compiler's baseline: EMU128 is tested everywhere and runs on anything.
#define HWY_COMPILE_ALL_ATTAINABLE

// Highway 1.0.3 takes SCALAR for EMU128 with g++ before 12.3 for fear of gcc bug 106322, a miscompiled 16-bit high multiplication
// (MulHigh). That operation is not used here.
#define HWY_BROKEN_EMU128 0

// Bits, not names: older versions lack the names of newer targets. x86 keeps AVX3 (8) and AVX2 (9) of bits 0..14, Arm NEON (28) of bits
// 15..29, the others none but EMU128 (61).
#define HWY_DISABLED_TARGETS (((1LL << 30) - 1) & ~((1LL << 8) | (1LL << 9) | (1LL << 28)))

#include "hwy/detect_targets.h"

#define GIRIH_HAVE_AVX3 ((HWY_TARGETS & HWY_AVX3) != 0)
#define GIRIH_HAVE_AVX2 ((HWY_TARGETS & HWY_AVX2) != 0)
#define GIRIH_HAVE_NEON ((HWY_TARGETS & HWY_NEON) != 0)

#if (HWY_TARGETS & HWY_EMU128) == 0
#error "the EMU128 target is missing: was Highway configured elsewhere?"
#endif
