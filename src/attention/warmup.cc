// warmup(): the kernels of specs, compiled or found before a schedule asks for them. All of a spec, whatever a schedule's limits will be.
#include <vector>

#include "attention/cuda.h"
#include "cuda/runtime.h"
#include "girih/attention.h"

namespace girih {

void warmup(const Context& context, std::span<const AttentionSpec> specs, const WarmupFn& progress) {
  if (context.device().kind == DeviceKind::cpu) {
    if (progress) progress({});
    return;
  }
  std::vector<jit::KernelSource> sources;
  for (const AttentionSpec& spec : specs) {
    for (const attention::CudaKernel& kernel : attention::cuda_kernels_of(spec, context.cuda().device->info())) {
      sources.push_back({.name = kernel.name, .source = kernel.source, .target = "", .weight = kernel.tile_rows});
    }
  }
  context.cuda().jit->warmup(sources, progress);
}

}  // namespace girih
