// The CPU backend's seam: what run() resolves once (CpuRun) and the functions that each SIMD target provides (CpuKernels).
// cpu.cc picks a target and spreads units over workers; cpu_kernels.cc compiles cpu_*-inl.h once per target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attention/check_args.h"
#include "attention/plan.h"
#include "attention/rope.h"
#include "attention/schedule.h"
#include "girih/attention.h"

namespace girih::attention {

/// Everything an item needs, resolved and validated by run(); read only while workers run.
struct CpuRun {
  const ScheduleState* schedule = nullptr;
  const PlanView* plan = nullptr;
  std::span<const SegmentData> segments;
  RowsView q, q_rope, o, lse;
  float o_factor = 1;  // of codes: what values are multiplied by
  variant::ParamTable params{};
  float* part_o = nullptr;       // [part_rows, part_stride]
  float* part_ml = nullptr;      // [part_rows, 2]
  std::byte* scratch = nullptr;  // [scratch_slots, unit_scratch_bytes]
};

/// Byte offsets into a worker's scratch. One layout for both tile classes.
struct ScratchOffsets {
  std::int64_t q, o, chunk_o, state, scores, probs, k, v, v_pairs, corr, key_info, row_info;
  std::int64_t visible, token_visible, sees_all, mask_tile, logits_tile, eval, total;
};

inline constexpr std::int64_t kKeyInfoBytes = 8 * 8;  // page, slot, two addresses, two positions, two scales (padded) of one key

/// Geometry that the scratch layout and the kernels share.
struct CpuShape {
  int dqk = 0, dvo = 0;
  int ldk = 0;       // floats of a staged K row (dqk rounded up to 16)
  int ldv = 0;       // floats of a staged V row and of an O row (dvo rounded up to 16)
  int max_rows = 0;  // rows of the largest tile, rounded up to 16
  int kv_block = 0;
};
CpuShape cpu_shape(const ScheduleState& schedule);
ScratchOffsets cpu_scratch(const ScheduleState& schedule);

struct CpuKernels {
  /// Runs all items of a unit. `scratch`: unit_scratch_bytes, 64-byte aligned.
  void (*run_unit)(const CpuRun& run, int unit, std::byte* scratch);
  /// Merges rows [begin, end) of the concatenation of all merge items' rows.
  void (*run_merges)(const CpuRun& run, std::int64_t begin, std::int64_t end, std::byte* scratch);
};
/// The table of a target; never null for one in available_cpu_targets().
const CpuKernels* cpu_kernels(CpuTarget target);

/// Fills what the CPU backend keeps in a schedule: target, scratch, RoPE table.
void prepare_cpu(ScheduleState& state, const Context& context);

/// All units, then all merges, on the context's workers.
void run_cpu(const Context& context, const CpuRun& run);

}  // namespace girih::attention
