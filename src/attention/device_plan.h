// A plan on its device: the blob's copy that kernels read, the merge counters that they keep, the pinned memory that uploads go through.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/kv_maps.h"
#include "attention/plan.h"
#include "attention/schedule.h"
#include "cuda/driver.h"
#include "girih/attention.h"

namespace girih::attention {

/// What a captured graph was given beside the plan: it limits the plans that may follow.
struct CapturedArgs {
  std::int64_t num_tokens = INT64_MAX;
  std::vector<std::int64_t> page_size, num_entries, num_pages;  // by segment
  std::vector<bool> page_pos;
  /// So that run() allocates nothing.
  void reserve(std::size_t segments) {
    for (auto* list : {&page_size, &num_entries, &num_pages}) list->reserve(segments);
    page_pos.reserve(segments);
  }
};

struct DevicePlanState {
  DevicePlanState(const Context& context, std::shared_ptr<const ScheduleState> schedule);
  ~DevicePlanState();
  DevicePlanState(const DevicePlanState&) = delete;
  DevicePlanState& operator=(const DevicePlanState&) = delete;

  static constexpr std::size_t kSlots = 4;  // uploads under way before the host has to wait
  struct Slot {
    cuda::PinnedBuffer memory;
    cuda::Event copied = nullptr;
    bool used = false;
  };

  std::shared_ptr<const ScheduleState> schedule;
  std::shared_ptr<const cuda::DeviceContext> device;
  cuda::DeviceBuffer blob;      // [max_blob_bytes]
  cuda::DeviceBuffer counters;  // int32 [kNumClasses + max_merges], zero between runs
  std::array<Slot, kSlots> slots;
  std::size_t next_slot = 0;
  cuda::PinnedBuffer staging;  // of captured uploads
  bool staged = false;         // an upload has been captured
  cuda::Stream side_stream = nullptr;
  cuda::Event fork = nullptr;
  cuda::Event join = nullptr;
  const PlanState* uploaded = nullptr;  // whose batch the device has, or will have in stream order
  std::uint64_t uploaded_batch = 0;
  mutable CapturedArgs captured;
  mutable EncodedMaps maps;
};

/// Throws unless the plan's batch is what was uploaded last.
void check_uploaded(const DevicePlanState& on_device, const ScheduleState& schedule, const PlanState& plan);
/// Remembers the arguments that a capture freezes.
void note_captured(const DevicePlanState& on_device, const AttentionArgs& args);

}  // namespace girih::attention
