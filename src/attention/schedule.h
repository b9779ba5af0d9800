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

class RopeTable;

/// Byte offsets of the workspace's regions. Partial states: o f32 [rows, part_stride], then m and l f32 [rows, 2] (m is the running
/// maximum in base-2 units, l the sum of exp2(s - m); without softmax only o counts).
struct WorkspaceOffsets {
  std::int64_t part_o = 0;
  std::int64_t part_ml = 0;
  std::int64_t unit_scratch = 0;  // [scratch_slots, unit_scratch_bytes]
  std::int64_t total = 0;
};

struct ScheduleState {
  AttentionSpec spec;      // defaults filled in
  AttentionLimits limits;  // defaults filled in
  std::string key;
  std::uint64_t hash = 0;  // of key, limits, tune and units: a plan's blob carries it
  int num_units = 0;
  int group = 1;        // num_qo_heads / num_kv_heads
  int part_stride = 0;  // floats a row of part_o, a multiple of 16
  Tune tune;
  variant::Program program;
  std::int64_t max_part_rows = 0;       // for the worst batch within the limits
  std::int64_t unit_scratch_bytes = 0;  // a worker's; a multiple of 64
  int scratch_slots = 0;                // workers that run at once: min(num_units, the context's workers)
  CpuTarget cpu_target = CpuTarget::scalar;
  bool bf16_dot = false;                  // products through AVX512-BF16 (cpu_bf16.h)
  bool byte_lookup = false;               // and small tiles over 8-bit data likewise: AVX512-VBMI is there
  std::shared_ptr<const RopeTable> rope;  // CPU backend, where the variant has RoPE
  std::vector<WorkspaceRegion> layout;
  std::int64_t workspace_bytes = 0;
};

/// The workspace for `part_rows` rows of partial state: the one place that lays it out, for the worst case and for a plan alike.
WorkspaceOffsets lay_out_workspace(const ScheduleState& state, std::int64_t part_rows);

}  // namespace girih::attention
