// See upload_ring.h.
#include "cuda/upload_ring.h"

#include <cstring>

#include "base/math.h"

namespace girih::cuda {

const void* UploadRing::upload(std::span<const std::byte> bytes, Stream stream) {
  const Driver& driver = device_->driver();
  slot_ = (slot_ + 1) % slots_.size();
  Slot& slot = slots_[slot_];
  if (slot.done == nullptr) slot.done = driver.create_event();
  if (slot.used) driver.synchronize_event(slot.done);
  if (slot.host.bytes() < std::ssize(bytes)) {
    const std::int64_t size = round_up(2 * std::ssize(bytes), 4096);
    slot.host = PinnedBuffer(device_, size);
    slot.memory = DeviceBuffer(device_, size);
  }
  if (bytes.empty()) return slot.memory.data();
  std::memcpy(slot.host.data(), bytes.data(), bytes.size());
  driver.copy_to_device(slot.memory.pointer(), slot.host.data(), std::ssize(bytes), stream);
  return slot.memory.data();
}

void UploadRing::launched(Stream stream) {
  device_->driver().record(slots_[slot_].done, stream);
  slots_[slot_].used = true;
}

UploadRing::~UploadRing() {
  try {
    const CurrentDevice current(*device_);
    for (Slot& slot : slots_) {
      if (slot.used) device_->driver().synchronize_event(slot.done);
      if (slot.done != nullptr) device_->driver().destroy_event(slot.done);
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): the process is ending, and the driver went first
  }
}

}  // namespace girih::cuda
