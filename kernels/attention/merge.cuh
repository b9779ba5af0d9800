// Merging the parts of split rows, inside the attention kernel: whoever brings the last part of a merge folds all of them, left to right in
// part order, so that the bits do not depend on who came last. Also rows that see no key (merges without parts).
// A counter returns to 0 as its merge is taken, so that the next launch (a graph's replay, too) finds it as this one did.
#pragma once

#include "attention/config.cuh"
#include "attention/output.cuh"
#include "attention/problem.cuh"
#include "attention/state.cuh"
#include "ptx/memory.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

inline constexpr int kMergeDims = 4;                         // of a lane
inline constexpr int kMergeSlice = kMergeDims * ptx::kWarp;  // of a warp
inline constexpr int kMergeAhead = 8;                        // parts whose loads are under way together

/// One row's dims [slice * kMergeSlice, ...) by one warp.
template <Config c, class Variant>
__device__ __forceinline__ void merge_row(const Args& p, const typename Variant::Params& params, const abi::MergeItem& merge,
                                          const abi::MergePart* parts, int row, int slice) {
  const int dim = slice * kMergeSlice + ptx::lane_idx() * kMergeDims;
  const bool has_dims = dim < c.head_dim_vo;
  RowState state = empty_state();
  float o[kMergeDims] = {};
  for (int begin = 0; begin < merge.part_count; begin += kMergeAhead) {
    float next[kMergeAhead][kMergeDims];
    RowState next_state[kMergeAhead];
#pragma unroll
    for (int i = 0; i < kMergeAhead; ++i) {
      next_state[i] = empty_state();
      if (begin + i >= merge.part_count) continue;
      const i64 part = static_cast<i64>(parts[begin + i].part_row) + row;
      if (has_dims) load_floats(p.part_o + part * c.part_stride() + dim, next[i]);
      if constexpr (Variant::kSoftmax) next_state[i] = {p.part_ml[2 * part], p.part_ml[2 * part + 1]};
    }
#pragma unroll
    for (int i = 0; i < kMergeAhead; ++i) {
      if (begin + i >= merge.part_count) break;
      Fold fold = begin + i == 0 ? take_fold() : sum_fold();
      if constexpr (Variant::kSoftmax) fold = fold_state(state, next_state[i]);
#pragma unroll
      for (int d = 0; d < kMergeDims; ++d) o[d] = fold_value(fold, o[d], next[i][d]);
    }
  }
  const auto writer = RowWriter<c, Variant>::final_row(p, params, merge.row_begin + row, merge.kv_head, state, 1.0F);
  if (has_dims) writer.write(dim, o);
  if (dim == 0) writer.write_state();
}

/// Slices of a row.
template <Config c>
__device__ constexpr int merge_slices() {
  return ceil_div(c.head_dim_vo, kMergeSlice);
}

/// All rows of a merge by the block's warps.
template <Config c, class Variant>
__device__ __forceinline__ void merge_rows(const Args& p, const typename Variant::Params& params, const abi::MergeItem& merge,
                                           const abi::MergePart* parts) {
  constexpr int kSlices = merge_slices<c>();
  for (int i = ptx::warp_idx(); i < merge.row_count * kSlices; i += c.threads / ptx::kWarp) {
    merge_row<c, Variant>(p, params, merge, parts, i / kSlices, i % kSlices);
  }
}

/// Called by the whole block once all rows of a part have been written; `s_last`: one word of shared memory. Performs the merges that this
/// part completes.
template <Config c, class Variant>
__device__ __forceinline__ void arrive(const Args& p, const typename Variant::Params& params, const abi::WorkItem& item, u32* s_last) {
  const auto* merges = blob_array<abi::MergeItem>(p, p.plan->merges);
  const auto* parts = blob_array<abi::MergePart>(p, p.plan->merge_parts);
  ptx::sync_block();
  for (int begin = 0; begin < item.merge_count; begin += ptx::kWarp) {
    if (ptx::thread_idx() < ptx::kWarp) {
      // The barrier has gathered the block's writes; this fence passes them on, and the second one lets others' be seen.
      const int lane = ptx::lane_idx();
      const i32 idx = item.merge_begin + begin + lane;
      bool last = false;
      ptx::fence_device();
      if (begin + lane < item.merge_count && ptx::atomic_add(p.counters + idx, 1) == merges[idx].part_count - 1) {
        last = true;
        p.counters[idx] = 0;
      }
      ptx::fence_device();
      const u32 mask = ptx::ballot(last);
      if (lane == 0) *s_last = mask;
    }
    ptx::sync_block();
    const u32 mask = *s_last;
    for (int i = 0; i < ptx::kWarp && (mask >> i) != 0; ++i) {
      if (((mask >> i) & 1U) == 0) continue;
      const abi::MergeItem merge = merges[item.merge_begin + begin + i];
      merge_rows<c, Variant>(p, params, merge, parts + merge.part_begin);
    }
    ptx::sync_block();  // s_last may be written again
  }
}

/// Rows that see no key, shared out over the blocks of the class-0 kernel; called by every block of it.
template <Config c, class Variant>
__device__ __forceinline__ void write_empty_rows(const Args& p, const typename Variant::Params& params) {
  if constexpr (c.tile_class == 0) {
    const auto* merges = blob_array<abi::MergeItem>(p, p.plan->merges);
    for (int i = ptx::block_idx(); i < p.plan->num_empty_merges; i += ptx::num_blocks()) {
      constexpr int kSlices = merge_slices<c>();
      constexpr float kZeros[kMergeDims] = {};
      const abi::MergeItem merge = merges[i];
      for (int j = ptx::thread_idx(); j < merge.row_count * kSlices * ptx::kWarp; j += c.threads) {
        const int dim = j % (kSlices * ptx::kWarp) * kMergeDims;
        if (dim >= c.head_dim_vo) continue;
        const i32 row = merge.row_begin + j / (kSlices * ptx::kWarp);
        const auto writer = RowWriter<c, Variant>::final_row(p, params, row, merge.kv_head, empty_state(), 1.0F);
        writer.write(dim, kZeros);
        if (dim == 0) writer.write_state();
      }
    }
  }
}

}  // namespace girih::attention
