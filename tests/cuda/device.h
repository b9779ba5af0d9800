// What tests on a GPU need: a context (or the reason why there is none), and a problem whose memory lies on the device. Host memory is the
// model: every block is copied as it is, poison and margins included, and pointers into it are translated.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attention/cuda_state.h"
#include "cases/attention.h"
#include "cases/check.h"
#include "cuda/runtime.h"

namespace girih::cuda_test {

/// A context of a CUDA device; null where there is none, and `reason` says why.
struct Gpu {
  std::unique_ptr<Context> context;
  std::string reason;

  const cuda::Driver& driver() const { return context->cuda().device->driver(); }
};
/// Device 0's for the whole process, or that of the calling thread's OnDevice.
Gpu& gpu();

/// While it lives, gpu() in this thread is a context of its own on device `ordinal`.
class OnDevice {
 public:
  explicit OnDevice(int ordinal);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  Gpu gpu_;
};

/// Skips the test where there is no GPU.
#define GIRIH_NEEDS_GPU() \
  if (::girih::cuda_test::gpu().context == nullptr) GTEST_SKIP() << ::girih::cuda_test::gpu().reason

/// Device copies of blocks of host memory.
class DeviceMemory {
 public:
  /// The device's address of host memory; copies the block on first sight. Addresses inside a block that is known are translated.
  template <typename T>
  T* add(const T* host, std::int64_t bytes) {
    return static_cast<T*>(const_cast<void*>(add_block(host, bytes)));
  }
  template <typename T>
  T* at(const T* host) const {
    return static_cast<T*>(const_cast<void*>(translate(host)));
  }
  /// Copies a block back over the host's.
  void fetch(void* host, std::int64_t bytes) const;

 private:
  struct Block {
    std::int64_t bytes;
    cuda::DeviceBuffer memory;
  };
  const void* add_block(const void* host, std::int64_t bytes);
  const void* translate(const void* host) const;
  std::map<const std::byte*, Block> blocks_;  // by first byte
};

/// A problem and its outputs on the device.
class DeviceProblem {
 public:
  explicit DeviceProblem(const cases::Problem& p);
  DeviceProblem(const DeviceProblem&) = delete;
  DeviceProblem& operator=(const DeviceProblem&) = delete;

  /// Poisons the outputs again.
  void clear_outputs();
  /// What the device has computed. Its views point into itself: refer to it, or move it.
  cases::Outputs& outputs();
  AttentionArgs args(const DevicePlan& plan, std::span<std::byte> workspace, cuda::Stream stream = nullptr) const;

 private:
  cases::Outputs out_;
  DeviceMemory memory_;
  TensorView q_{}, q_rope_{}, o_{}, lse_{}, o_scale_{};
  std::vector<SegmentData> segments_;
  std::vector<ParamValue> params_;
};

/// 64-byte aligned device memory filled with one byte.
class DeviceWorkspace {
 public:
  DeviceWorkspace(std::int64_t bytes, std::uint8_t pattern);
  std::span<std::byte> span() const { return {static_cast<std::byte*>(memory_.data()), static_cast<std::size_t>(bytes_)}; }

 private:
  std::int64_t bytes_;
  cuda::DeviceBuffer memory_;
};

/// Plan, upload, run, fetch.
cases::Outputs execute(const cases::Problem& p, const Schedule& schedule, std::uint8_t workspace_pattern);
/// The same with a schedule of its own.
cases::Outputs execute(const cases::Problem& p, const ScheduleOptions& options = {}, std::uint8_t workspace_pattern = 0xff);

}  // namespace girih::cuda_test
