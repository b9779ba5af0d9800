// What a Context on a CUDA device has beside its options: the device's primary context, the JIT and the kernels loaded so far.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/env.h"
#include "cuda/driver.h"
#include "cuda/upload_ring.h"
#include "jit/jit.h"
#include "jit/kernel.h"

namespace girih::cuda {

struct Runtime {
  /// Throws unsupported where there is no driver, invalid_argument where there is no such device.
  Runtime(int device_index, JitOptions options, const LogFn& log);

  /// Compiles in parallel what is not in a cache, and loads. The references stay valid as long as the loader.
  std::vector<const jit::Kernel*> load(std::span<const jit::KernelSource> sources, std::span<const std::int64_t> shared_bytes);

  /// A kernel and its dynamic shared memory, found by its name alone after the first call, which may not be made while `stream` is
  /// captured: loading allocates.
  const jit::Kernel& kernel(std::string_view op, const std::string& name, const std::string& source, Stream stream,
                            std::int64_t shared_bytes = 0);

  /// The same kernel where it has been called for; else null.
  const jit::Kernel* find(const std::string& name) const;

  std::shared_ptr<const DeviceContext> device;
  std::shared_ptr<jit::Jit> jit;
  std::shared_ptr<jit::KernelLoader> loader;  // schedules keep it, too: their kernels live in it
  SamplingChoice sampling = SamplingChoice::measured;
  UploadRing uploads;
  std::map<std::string, const jit::Kernel*> by_name;
};

}  // namespace girih::cuda
