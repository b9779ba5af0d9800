// What schedule() freezes: the normalised spec, its compiled variant, tiles and costs, and the workspace for the worst batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/tune.h"
#include "girih/attention.h"
#include "variant/program.h"

namespace girih::attention {

/// Byte offsets of the workspace's regions. Partial states: o f32 [rows, part_stride], then m and l f32 [rows, 2] (m is the running
/// maximum in base-2 units, l the sum of exp2(s - m); without softmax only o counts).
struct WorkspaceOffsets {
  std::int64_t part_o = 0;
  std::int64_t part_ml = 0;
  std::int64_t unit_scratch = 0;   // [num_units, unit_scratch_bytes]
  std::int64_t total = 0;
};

struct ScheduleState {
  AttentionSpec spec;              // defaults filled in
  AttentionLimits limits;          // defaults filled in
  std::string key;
  std::uint64_t hash = 0;          // of key, limits, tune and units: a plan's blob carries it
  int num_units = 0;
  int group = 1;                   // num_qo_heads / num_kv_heads
  int part_stride = 0;             // floats a row of part_o, a multiple of 16
  Tune tune;
  variant::Program program;
  std::int64_t max_part_rows = 0;  // for the worst batch within the limits
  std::int64_t unit_scratch_bytes = 0;
  CpuTarget cpu_target = CpuTarget::scalar;
  std::shared_ptr<const void> backend;   // what the backend prepared (CPU: RoPE tables)
  std::vector<WorkspaceRegion> layout;
  std::int64_t workspace_bytes = 0;
};

/// The workspace for `part_rows` rows of partial state: the one place that lays it out, for the worst case and for a plan alike.
WorkspaceOffsets lay_out_workspace(const ScheduleState& state, std::int64_t part_rows);

}  // namespace girih::attention
