// What schedule() freezes: the normalised spec, its compiled variant, tiles and costs, and the workspace for the worst batch.
// Where classes are separate (CUDA: a kernel each) a plan is two lists, each balanced over its own units; the CPU's workers take both.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/tune.h"
#include "girih/attention.h"
#include "variant/program.h"

namespace girih::attention {

class RopeTable;
struct CudaState;

/// Byte offsets of the workspace's regions. Partial states: o f32 [rows, part_stride], then m and l f32 [rows, 2] (m is the running
/// maximum in base-2 units, l the sum of exp2(s - m); without softmax only o counts).
struct WorkspaceOffsets {
  std::int64_t part_o = 0;
  std::int64_t part_ml = 0;
  std::int64_t unit_scratch = 0;  // CPU: [scratch_slots, unit_scratch_bytes]
  // CUDA, batch_invariant: the fold so far of the tile at work, o [units of the class, tile rows, part_stride], then m and l.
  std::array<std::int64_t, kNumClasses> chunk_o{};
  std::array<std::int64_t, kNumClasses> chunk_ml{};
  std::int64_t total = 0;
};

struct ScheduleState {
  Device device{};
  AttentionSpec spec;      // defaults filled in
  AttentionLimits limits;  // defaults filled in
  std::string key;
  std::uint64_t hash = 0;         // of key, limits, tune and units: a plan's blob carries it
  int num_units = 0;              // of both classes
  bool separate_classes = false;  // units [0, num_small_units) take tiles of class kSmall only, the others kLarge only
  int num_small_units = 0;        // where classes are separate; a class without units cannot occur
  int group = 1;                  // num_qo_heads / num_kv_heads
  int part_stride = 0;            // floats a row of part_o, a multiple of 16
  Tune tune;
  variant::Program program;
  std::int64_t max_part_rows = 0;  // for the worst batch within the limits, as are the next three; set_bounds() fills them
  std::int64_t max_items = 0;
  std::int64_t max_merges = 0;
  std::int64_t max_blob_bytes = 0;
  std::int64_t unit_scratch_bytes = 0;  // a worker's; a multiple of 64
  int scratch_slots = 0;                // workers that run at once: min(num_units, the context's workers)
  CpuTarget cpu_target = CpuTarget::scalar;
  bool bf16_dot = false;                  // products through AVX512-BF16 (cpu_bf16.h)
  bool byte_lookup = false;               // and small tiles over 8-bit data likewise: AVX512-VBMI is there
  std::shared_ptr<const RopeTable> rope;  // CPU backend, where the variant has RoPE
  std::shared_ptr<const CudaState> cuda;  // CUDA backend: kernels (cuda_state.h)
  std::vector<WorkspaceRegion> layout;
  std::int64_t workspace_bytes = 0;
};

/// The class whose list holds tiles of `tile_class`, and its units.
inline int list_of(const ScheduleState& state, int tile_class) { return state.separate_classes ? tile_class : kSmall; }
inline int class_unit_begin(const ScheduleState& state, int c) {
  if (c == kSmall) return 0;
  return c == kLarge && state.separate_classes ? state.num_small_units : state.num_units;
}
inline int class_units(const ScheduleState& state, int c) { return class_unit_begin(state, c + 1) - class_unit_begin(state, c); }

/// Fills max_part_rows, max_items, max_merges and max_blob_bytes from everything else (plan_bounds.cc).
void set_bounds(ScheduleState& state);

/// The workspace for `part_rows` rows of partial state: the one place that lays it out, for the worst case and for a plan alike.
WorkspaceOffsets lay_out_workspace(const ScheduleState& state, std::int64_t part_rows);

}  // namespace girih::attention
