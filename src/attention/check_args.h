// The arguments of run(), checked against the plan: one set of rules for all backends. Where data lies on a GPU its values cannot be read
// here; what the CPU checks of them (page ids) is then the caller's promise, as girih/attention.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/plan.h"
#include "attention/schedule.h"
#include "girih/attention.h"

namespace girih::attention {

/// Rows of a tensor [tokens, heads, dim] with byte strides.
struct RowsView {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::byte* at(std::int64_t token, std::int64_t head) const { return data + token * token_stride + head * head_stride; }
};

struct CheckedArgs {
  RowsView q, q_rope, o, lse;
  const float* o_scale = nullptr;  // null: 1
  std::span<const SegmentData> segments;
  variant::ParamTable params{};  // the plan's and the call's
  std::byte* workspace = nullptr;
  WorkspaceOffsets at;  // into workspace
};

/// Throws before anything is written.
CheckedArgs check_args(const ScheduleState& schedule, const PlanState& plan, const AttentionArgs& args);

}  // namespace girih::attention
