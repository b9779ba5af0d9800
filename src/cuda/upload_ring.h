// Small host arrays on their way to kernels of one launch (places of new tokens, pairs of pages): pinned memory and its device copy, in
// a ring, so that neither is reused before the launch that reads it is done.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "cuda/driver.h"

namespace girih::cuda {

class UploadRing {
 public:
  explicit UploadRing(std::shared_ptr<const DeviceContext> device) : device_(std::move(device)) {}
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  /// Queues the copy of `bytes` on `stream` and returns the device's address of them. The device's context must be current. Allocates where
  /// more bytes are asked for than ever before; waits where all slots are under way.
  const void* upload(std::span<const std::byte> bytes, Stream stream);
  /// What reads the last upload has been queued on `stream`.
  void launched(Stream stream);

 private:
  struct Slot {
    PinnedBuffer host;
    DeviceBuffer memory;
    Event done = nullptr;
    bool used = false;
  };
  std::shared_ptr<const DeviceContext> device_;
  std::array<Slot, 8> slots_;
  std::size_t slot_ = 0;
};

}  // namespace girih::cuda
