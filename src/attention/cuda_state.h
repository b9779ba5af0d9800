// What a schedule for a CUDA device holds beside ScheduleState, and the parameters of its launches. All of it but loading works without a
// driver: schedules for a GPU that is not here serve `girih compile`, packs and the tests that emulate kernels.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "abi/attention_params.h"
#include "attention/check_args.h"
#include "attention/cuda.h"
#include "attention/schedule.h"
#include "cuda/driver.h"

namespace girih::attention {

struct CudaState {
  cuda::DeviceInfo device;
  CudaKernels kernels;
  // Loaded onto the device; null without a driver, and for a class that cannot occur.
  std::array<cuda::Function, kNumClasses> functions{};
  std::shared_ptr<const void> loader;  // that owns them: a schedule may outlive the context that made it
};

/// Blocks of a class' launch.
inline int class_blocks(const ScheduleState& s, int tile_class) {
  return class_units(s, tile_class) / s.cuda->kernels.classes[tile_class].unit_turns;
}

/// A schedule for `device`, made of its description alone; functions stay null.
std::shared_ptr<ScheduleState> make_cuda_state(const cuda::DeviceInfo& device, int device_index, const AttentionSpec& spec,
                                               const AttentionLimits& limits, const ScheduleOptions& options = {});

/// Maps of keys and values are neutral ones (abi::TensorBox): run() has them encoded.
/// Everything of a launch's parameters but plan and counters, which lie where the plan was uploaded to. For the first class that has
/// units; set_class() turns it into another's.
abi::AttentionParams cuda_params(const ScheduleState& schedule, const CheckedArgs& args);
void set_class(const ScheduleState& schedule, const CheckedArgs& args, int tile_class, abi::AttentionParams& params);

/// n / divisor for 0 <= n < 2^31; divisor 0 (an endless page) gives zeros.
abi::FastDivider fast_divider(std::int64_t divisor);

}  // namespace girih::attention
