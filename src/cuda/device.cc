// What owns things of the driver (driver.h): the primary context of a device, the current device of a scope, device and pinned memory.
#include <utility>

#include "cuda/driver.h"

namespace girih::cuda {

DeviceContext::DeviceContext(std::shared_ptr<const Driver> driver, int device)
    : driver_(std::move(driver)), device_(device), info_(driver_->device_info(device)), handle_(driver_->retain_primary(device)) {}

DeviceContext::~DeviceContext() { driver_->release_primary(device_); }

CurrentDevice::CurrentDevice(const DeviceContext& context) : driver_(nullptr) {
  const Driver& driver = context.driver();
  if (driver.current_context() == context.handle()) return;
  driver.push_context(context.handle());
  driver_ = &driver;
}

CurrentDevice::~CurrentDevice() {
  if (driver_ != nullptr) driver_->pop_context();
}

DeviceBuffer::DeviceBuffer(std::shared_ptr<const DeviceContext> context, std::int64_t bytes) : context_(std::move(context)), bytes_(bytes) {
  if (bytes == 0) return;
  const CurrentDevice current(*context_);
  pointer_ = context_->driver().allocate(bytes);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(pointer_, other.pointer_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (pointer_ == 0) return;
  // Freeing needs the context, which is alive: it is retained. A failure to switch would leak, which beats a throw from here.
  try {
    const CurrentDevice current(*context_);
    context_->driver().release(pointer_);
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

PinnedBuffer::PinnedBuffer(std::shared_ptr<const DeviceContext> context, std::int64_t bytes) : context_(std::move(context)), bytes_(bytes) {
  if (bytes == 0) return;
  const CurrentDevice current(*context_);
  data_ = static_cast<std::byte*>(context_->driver().allocate_host(bytes));
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ == nullptr) return;
  try {
    const CurrentDevice current(*context_);
    context_->driver().release_host(data_);
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

}  // namespace girih::cuda
