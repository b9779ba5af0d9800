// The sampling kernels compile, as the library generates them, without spills: all of them for one architecture, the widest for every one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "jit/compiler.h"
#include "jit/nvrtc.h"
#include "jit_kernels.h"
#include "sampling/sampling_cuda.h"

namespace girih::sampling {
namespace {

std::vector<SamplingKernel> all_kernels(std::int64_t shared_limit) {
  std::vector<SamplingKernel> all;
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const KernelKind kind : {KernelKind::softmax, KernelKind::top_p_renorm, KernelKind::top_k_renorm, KernelKind::top_k_mask,
                                  KernelKind::top_k, KernelKind::speculative})
      all.push_back(sampling_kernel(kind, type, false, false, false, shared_limit));
    for (const bool masked : {false, true}) {
      all.push_back(sampling_kernel(KernelKind::sample, type, true, false, masked, shared_limit));
      for (const bool edits : {false, true}) all.push_back(sampling_kernel(KernelKind::sample, type, false, edits, masked, shared_limit));
    }
  }
  return all;
}

void expect_compiles(const jit::Nvrtc& nvrtc, const SamplingKernel& kernel, const std::string& target) {
  const jit::Cubin cubin = jit::compile(nvrtc, jit::make_recipe({.name = kernel.name, .source = kernel.source, .target = target}));
  EXPECT_EQ(0, cubin.resources.spill_loads + cubin.resources.spill_stores) << kernel.name << ' ' << target;
  EXPECT_LE(cubin.resources.registers, 128) << kernel.name << ' ' << target;
  if (std::getenv("SHOW")) std::printf("%s %s registers %d\n", kernel.name.c_str(), target.c_str(), cubin.resources.registers);
}

TEST(JitSampling, EveryKernelForHopper) {
  const auto nvrtc = jit::Nvrtc::load({.path = jit::test_nvrtc(), .virtual_environment = {}});
  for (const SamplingKernel& kernel : all_kernels(cuda::example_device(90).shared_per_block)) expect_compiles(*nvrtc, kernel, "sm_90a");
}

TEST(JitSampling, TheWidestForEveryArchitecture) {
  const auto nvrtc = jit::Nvrtc::load({.path = jit::test_nvrtc(), .virtual_environment = {}});
  for (const int arch : cuda::example_archs()) {
    const std::int64_t limit = cuda::example_device(arch).shared_per_block;
    const SamplingKernel sample = sampling_kernel(KernelKind::sample, DType::bf16, false, true, true, limit);
    const SamplingKernel top_k = sampling_kernel(KernelKind::top_k, DType::f32, false, false, false, limit);
    for (const SamplingKernel& kernel : {sample, top_k}) {
      EXPECT_LE(kernel.shared_bytes, limit);
      expect_compiles(*nvrtc, kernel, cuda::nvrtc_arch(arch));
    }
  }
}

}  // namespace
}  // namespace girih::sampling
