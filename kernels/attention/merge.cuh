// Merging the parts of split rows, inside the attention kernel: whoever brings the last part of a merge takes all of them in part order, so
// that the bits do not depend on who came last (batch_invariant: as a left fold, which gives the bits of folding chunk by chunk). Also rows
// that see no key (merges without parts).
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

/// One row's dims [slice * kMergeSlice, ...) by one warp, as a left fold.
template <Config c, class Variant>
__device__ __forceinline__ void fold_parts(const Args& p, const typename Variant::Params& params, const abi::MergeItem& merge,
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

/// The same where no chunks have to give equal bits: the maximum first, then every part's weight, a lane a part; so that the values are a
/// plain sum in part order, whose loads wait for nothing but the weights.
template <Config c, class Variant>
__device__ __forceinline__ void sum_parts(const Args& p, const typename Variant::Params& params, const abi::MergeItem& merge,
                                          const abi::MergePart* parts, int row, int slice) {
  const int lane = ptx::lane_idx();
  const int dim = slice * kMergeSlice + lane * kMergeDims;
  const bool has_dims = dim < c.head_dim_vo;
  RowState state = empty_state();
  for (int i = lane; i < merge.part_count; i += ptx::kWarp) {
    state.m = ptx::max_number(state.m, p.part_ml[2 * (static_cast<i64>(parts[i].part_row) + row)]);
  }
#pragma unroll
  for (int mask = ptx::kWarp / 2; mask > 0; mask /= 2) state.m = ptx::max_number(state.m, ptx::shuffle_xor(state.m, mask));
  float o[kMergeDims] = {};
  for (int begin = 0; begin < merge.part_count; begin += ptx::kWarp) {
    i32 own_row = 0;
    float weight = 0.0F;
    if (begin + lane < merge.part_count) {
      own_row = parts[begin + lane].part_row;
      const i64 part = static_cast<i64>(own_row) + row;
      weight = exp2_approx(p.part_ml[2 * part] - base_of(state.m));
      state.l = ptx::fma(p.part_ml[2 * part + 1], weight, state.l);
    }
    const int count = min(ptx::kWarp, merge.part_count - begin);
    for (int first = 0; first < count; first += kMergeAhead) {
      float next[kMergeAhead][kMergeDims];
#pragma unroll
      for (int i = 0; i < kMergeAhead; ++i) {
        const i64 part = static_cast<i64>(ptx::shuffle(own_row, (first + i) % ptx::kWarp)) + row;
        if (first + i < count && has_dims) load_floats(p.part_o + part * c.part_stride() + dim, next[i]);
      }
#pragma unroll
      for (int i = 0; i < kMergeAhead; ++i) {
        const float part_weight = ptx::shuffle(weight, (first + i) % ptx::kWarp);
        if (first + i >= count || !has_dims) continue;
#pragma unroll
        for (int d = 0; d < kMergeDims; ++d) o[d] = ptx::fma(next[i][d], part_weight, o[d]);
      }
    }
  }
#pragma unroll
  for (int mask = ptx::kWarp / 2; mask > 0; mask /= 2) state.l += ptx::shuffle_xor(state.l, mask);
  const auto writer = RowWriter<c, Variant>::final_row(p, params, merge.row_begin + row, merge.kv_head, state, 1.0F);
  if (has_dims) writer.write(dim, o);
  if (dim == 0) writer.write_state();
}

template <Config c, class Variant>
__device__ __forceinline__ void merge_row(const Args& p, const typename Variant::Params& params, const abi::MergeItem& merge,
                                          const abi::MergePart* parts, int row, int slice) {
  if constexpr (c.batch_invariant || !Variant::kSoftmax) {
    fold_parts<c, Variant>(p, params, merge, parts, row, slice);
  } else {
    sum_parts<c, Variant>(p, params, merge, parts, row, slice);
  }
}

/// All rows of a merge by the block's warps.
template <Config c, class Variant>
__device__ __forceinline__ void merge_rows(const Args& p, const typename Variant::Params& params, const abi::MergeItem& merge,
                                           const abi::MergePart* parts) {
  constexpr int kSlices = ceil_div(c.head_dim_vo, kMergeSlice);
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
      constexpr float kZeros[kMergeDims] = {};
      const abi::MergeItem merge = merges[i];
      for (i32 row = ptx::warp_idx(); row < merge.row_count; row += c.threads / ptx::kWarp) {
        const auto writer = RowWriter<c, Variant>::final_row(p, params, merge.row_begin + row, merge.kv_head, empty_state(), 1.0F);
        for (int dim = ptx::lane_idx() * kMergeDims; dim < c.head_dim_vo; dim += kMergeSlice) writer.write(dim, kZeros);
        if (ptx::lane_idx() == 0) writer.write_state();
      }
    }
  }
}

}  // namespace girih::attention
