// warmup(): the kernels of specs, compiled or found before a schedule asks for them. Both tile classes, whatever a schedule's limits will
// be.
#include <vector>

#include "attention/cuda.h"
#include "attention/spec.h"
#include "cuda/runtime.h"
#include "girih/attention.h"

namespace girih {
namespace attention {

CudaKernels cuda_kernels_of(const AttentionSpec& spec, const cuda::DeviceInfo& device, std::string_view family) {
  const variant::Program program = variant::compile(spec.variant);
  return choose_cuda_kernels(normalise(spec, program, DeviceKind::cuda), program, device, family);
}

}  // namespace attention

void warmup(const Context& context, std::span<const AttentionSpec> specs, const WarmupFn& progress) {
  if (context.device().kind == DeviceKind::cpu) {
    if (progress) progress({});
    return;
  }
  std::vector<jit::KernelSource> sources;
  for (const AttentionSpec& spec : specs) {
    for (const attention::CudaKernel& kernel : attention::cuda_kernels_of(spec, context.cuda().device->info()).classes) {
      sources.push_back({.name = kernel.name, .source = kernel.source, .target = ""});
    }
  }
  context.cuda().jit->warmup(sources, progress);
}

}  // namespace girih
