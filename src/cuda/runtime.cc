// See runtime.h.
#include "cuda/runtime.h"

#include <utility>

#include "base/error.h"

namespace girih::cuda {
namespace {

std::shared_ptr<const DeviceContext> open_device(int index) {
  std::shared_ptr<const Driver> driver = Driver::load();
  if (index < 0 || index >= driver->num_devices()) {
    fail(Code::invalid_argument, "context", "device.index={}; this machine has {} CUDA devices, counted from 0", index,
         driver->num_devices());
  }
  return std::make_shared<const DeviceContext>(std::move(driver), index);
}

}  // namespace

Runtime::Runtime(int device_index, JitOptions options, const LogFn& log)
    : device(open_device(device_index)),
      jit(std::make_shared<jit::Jit>(std::move(options), nvrtc_arch(device->info().arch), log)),
      loader(std::make_shared<jit::KernelLoader>(jit, device)),
      uploads(device) {}

const jit::Kernel& Runtime::kernel(std::string_view op, const std::string& name, const std::string& source, Stream stream,
                                   std::int64_t shared_bytes) {
  const jit::Kernel*& found = by_name[name];
  if (found != nullptr) return *found;
  {
    const CurrentDevice current(*device);
    if (device->driver().is_capturing(stream))
      fail(Code::invalid_argument, op, "stream is being captured and the kernel {} is not loaded yet; make such a call before the capture",
           name);
  }
  found = &loader->load({.name = name, .source = source, .target = ""}, shared_bytes);
  return *found;
}

const jit::Kernel* Runtime::find(const std::string& name) const {
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

std::vector<const jit::Kernel*> Runtime::load(std::span<const jit::KernelSource> sources, std::span<const std::int64_t> shared_bytes) {
  jit->warmup(sources);
  std::vector<const jit::Kernel*> kernels;
  for (std::size_t i = 0; i < sources.size(); ++i) kernels.push_back(&loader->load(sources[i], shared_bytes[i]));
  return kernels;
}

}  // namespace girih::cuda
