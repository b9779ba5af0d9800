// The sampling kernels compile, as the library generates them: each kind for one architecture, the widest for every one. They save
// registers around calls of functions, which the compiler counts as spills, so these are not asked for; registers and shared memory are.
// ctest: timeout=600
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "jit/compiler.h"
#include "jit/nvrtc.h"
#include "jit_kernels.h"
#include "sampling/sampling_cuda.h"

namespace girih::sampling {
namespace {

void expect_compiles(const jit::Nvrtc& nvrtc, const SamplingKernel& kernel, int arch) {
  const jit::Cubin cubin =
      jit::compile(nvrtc, jit::make_recipe({.name = kernel.name, .source = kernel.source, .target = cuda::nvrtc_arch(arch)}));
  EXPECT_GT(cubin.resources.registers, 0) << kernel.name << ' ' << arch;
  EXPECT_LE(cubin.resources.registers, 128) << kernel.name << ' ' << arch;
  EXPECT_LE(kernel.shared_bytes, cuda::example_device(arch).shared_per_block) << kernel.name << ' ' << arch;
}

TEST(JitSampling, EveryKindForHopper) {
  const auto nvrtc = jit::Nvrtc::load({.path = jit::test_nvrtc(), .virtual_environment = {}});
  const std::int64_t limit = cuda::example_device(90).shared_per_block;
  for (const KernelKind kind : {KernelKind::softmax, KernelKind::top_p_renorm, KernelKind::top_k_renorm, KernelKind::top_k_mask,
                                KernelKind::top_k, KernelKind::speculative})
    expect_compiles(*nvrtc, sampling_kernel(kind, DType::f16, limit), 90);
  expect_compiles(*nvrtc, sampling_kernel(KernelKind::sample, DType::bf16, limit, {.probs = true, .masked = true, .top_p = true}), 90);
  expect_compiles(*nvrtc, sampling_kernel(KernelKind::sample, DType::f32, limit, {.edits = true, .top_k = true}), 90);
}

TEST(JitSampling, RowsThatStay) {
  const auto nvrtc = jit::Nvrtc::load({.path = jit::test_nvrtc(), .virtual_environment = {}});
  const SampleTraits all{.probs = false, .edits = true, .masked = true, .top_k = true, .top_p = true, .first = false};
  for (const int arch : cuda::example_archs()) {
    const cuda::DeviceInfo info = cuda::example_device(arch);
    if (resident_shape(info, KernelKind::sample, DType::f32, all, 4, 1000).cluster == 0) continue;
    expect_compiles(*nvrtc, resident_kernel(KernelKind::sample, DType::f32, all), arch);
  }
  expect_compiles(*nvrtc, resident_kernel(KernelKind::sample, DType::bf16, {.probs = true, .masked = true}), 90);
  for (const KernelKind kind :
       {KernelKind::softmax, KernelKind::top_p_renorm, KernelKind::top_k_renorm, KernelKind::top_k_mask, KernelKind::top_k})
    expect_compiles(*nvrtc, resident_kernel(kind, DType::f16), 90);
}

TEST(JitSampling, FewPasses) {
  const auto nvrtc = jit::Nvrtc::load({.path = jit::test_nvrtc(), .virtual_environment = {}});
  for (const int arch : {90, 100}) {
    const std::int64_t limit = cuda::example_device(arch).shared_per_block;
    const auto expect = [&](KernelKind kind, SampleTraits traits) {
      traits.few = true;
      expect_compiles(*nvrtc, sampling_kernel(kind, DType::f32, limit, traits), arch);
    };
    expect(KernelKind::sample, {.edits = true, .top_k = true, .top_p = true});
    if (arch != 90) continue;
    expect(KernelKind::sample, {.probs = true, .top_k = true});
    expect(KernelKind::sample, {.probs = true, .top_p = true});
    expect(KernelKind::sample, {.edits = true, .top_p = true});
    expect(KernelKind::sample, {.edits = true});
    expect(KernelKind::sample, {.min_p = true});
    for (const KernelKind kind : {KernelKind::top_k, KernelKind::top_k_renorm, KernelKind::top_k_mask, KernelKind::top_p_renorm})
      expect(kind, {});
  }
}

TEST(JitSampling, TheWidestForEveryArchitecture) {
  const auto nvrtc = jit::Nvrtc::load({.path = jit::test_nvrtc(), .virtual_environment = {}});
  for (const int arch : cuda::example_archs()) {
    const std::int64_t limit = cuda::example_device(arch).shared_per_block;
    expect_compiles(*nvrtc, sampling_kernel(KernelKind::top_k, DType::f32, limit), arch);
    const SampleTraits all{.probs = false, .edits = true, .masked = true, .top_k = true, .top_p = true, .first = true};
    if (arch <= 90) expect_compiles(*nvrtc, sampling_kernel(KernelKind::sample, DType::bf16, limit, all), arch);
  }
}

}  // namespace
}  // namespace girih::sampling
