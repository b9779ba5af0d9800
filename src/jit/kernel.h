// Kernels on a device: cubins from the Jit, loaded once each and kept until the loader goes. One loader per Context and device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cuda/driver.h"
#include "jit/jit.h"

namespace girih::jit {

/// A kernel ready to be launched: Driver::launch({.function = kernel.function, ...}, &params).
struct Kernel {
  std::string name;
  cuda::Function function = nullptr;
  cuda::FunctionInfo info;
  std::int64_t shared_bytes = 0;  // dynamic shared memory that it may be launched with
};

class KernelLoader {
 public:
  KernelLoader(std::shared_ptr<Jit> jit, std::shared_ptr<const cuda::DeviceContext> device);
  ~KernelLoader();
  KernelLoader(const KernelLoader&) = delete;
  KernelLoader& operator=(const KernelLoader&) = delete;

  Jit& jit() { return *jit_; }
  const cuda::DeviceContext& device() const { return *device_; }
  /// Compiles (or finds) and loads. `shared_bytes`: dynamic shared memory of its launches. The reference stays valid as long as the
  /// loader. Throws what Jit::compile() does; unsupported, naming the limit, where the device has less shared memory. Not for hot paths.
  const Kernel& load(const KernelSource& source, std::int64_t shared_bytes);

 private:
  struct Loaded {
    Kernel kernel;
    cuda::Module module = nullptr;
  };
  std::shared_ptr<Jit> jit_;
  std::shared_ptr<const cuda::DeviceContext> device_;
  std::map<std::string, Loaded> loaded_;  // by key of the cubin
};

}  // namespace girih::jit
