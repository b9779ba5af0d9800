// See kernel.h. A cubin's first load makes the driver allocate and may wait for the device, so kernels are loaded when a schedule is made.
#include "jit/kernel.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace girih::jit {

KernelLoader::KernelLoader(std::shared_ptr<Jit> jit, std::shared_ptr<const cuda::DeviceContext> device)
    : jit_(std::move(jit)), device_(std::move(device)) {}

KernelLoader::~KernelLoader() {
  try {
    const cuda::CurrentDevice current(*device_);
    for (const auto& [key, loaded] : loaded_) device_->driver().unload(loaded.module);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the process is ending, and the driver went first
  }
}

const Kernel& KernelLoader::load(const KernelSource& source, std::int64_t shared_bytes) {
  const std::int64_t limit = device_->info().shared_per_block;
  if (shared_bytes < 0 || shared_bytes > limit) {
    fail(Code::unsupported, "jit", "kernel {} needs {} bytes of shared memory a block; {} has {}", source.name, shared_bytes,
         device_->info().name, limit);
  }
  const std::shared_ptr<const Cubin> cubin = jit_->compile(source);
  const cuda::CurrentDevice current(*device_);
  const cuda::Driver& driver = device_->driver();
  Loaded& loaded = loaded_[cubin->key];
  Kernel& kernel = loaded.kernel;
  if (kernel.function == nullptr) {
    if (loaded.module == nullptr) {
      // An image of a newer major version than the driver's is what usually fails here.
      const std::string what =
          fmt::format("kernel {} for {} (by NVRTC {}, key {}) on {} with a driver for CUDA {}.{}", cubin->name, cubin->target,
                      cubin->nvrtc_version, cubin->key, device_->info().name, driver.version() / 1000, driver.version() % 1000 / 10);
      loaded.module = driver.load_module(cubin->image.data(), what);
    }
    kernel.name = cubin->name;
    kernel.function = driver.function(loaded.module, cubin->name);
    kernel.info = driver.function_info(kernel.function);
  }
  if (shared_bytes > kernel.shared_bytes) {
    driver.set_max_dynamic_shared(kernel.function, shared_bytes);
    kernel.shared_bytes = shared_bytes;
  }
  return kernel;
}

}  // namespace girih::jit
