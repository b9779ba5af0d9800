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
/// Parts whose loads are under way together. More where products take all registers, and the compiler keeps too few for those.
template <Config c>
constexpr int kMergeAhead = c.producers > 0 || (c.tile_rows > 16 && !c.is_wide()) ? 4 : 8;
/// Kernels whose registers are all in use have none for what would be worked out ahead of a merge, or kept from one to the next as it is
/// not always set: MLA's value warps, and decode with two halves of rows.
template <Config c>
constexpr bool kRegistersDear = c.is_wide() || (c.tile_rows > 8 && c.tile_rows <= 16);

__device__ __forceinline__ RowState load_part_state(const Args& p, i64 part) {
  float ml[2];
  load_floats(p.part_ml + 2 * part, ml);
  return {ml[0], ml[1]};
}

/// One row's dims [slice * kMergeSlice, ...) by one warp, as a left fold.
template <Config c, class Variant>
__device__ __forceinline__ void fold_parts(const Args& p, const typename Variant::Params& params, const abi::MergeItem& merge,
                                           const abi::MergePart* parts, int row, int slice) {
  const int dim = slice * kMergeSlice + ptx::lane_idx() * kMergeDims;
  const bool has_dims = dim < c.head_dim_vo;
  RowState state = empty_state();
  float o[kMergeDims] = {};
  for (int begin = 0; begin < merge.part_count; begin += kMergeAhead<c>) {
    float next[kMergeAhead<c>][kMergeDims];
    RowState next_state[kMergeAhead<c>];
#pragma unroll
    for (int i = 0; i < kMergeAhead<c>; ++i) {
      if constexpr (kRegistersDear<c>) next[i][0] = next[i][1] = next[i][2] = next[i][3] = 0.0F;
      next_state[i] = empty_state();
      if (begin + i >= merge.part_count) continue;
      const i64 part = static_cast<i64>(parts[begin + i].part_row) + row;
      if (has_dims) load_floats(p.part_o + part * c.part_stride() + dim, next[i]);
      if constexpr (Variant::kSoftmax) next_state[i] = {p.part_ml[2 * part], p.part_ml[2 * part + 1]};
    }
#pragma unroll
    for (int i = 0; i < kMergeAhead<c>; ++i) {
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

/// A merge, and where its first parts lie: those of a lane.
struct PartRows {
  static constexpr int kSets = 2;
  abi::MergeItem merge;
  const abi::MergePart* parts;
  i32 own[kSets];  // of parts lane, lane + 32

  static __device__ __forceinline__ PartRows load(const Args& p, i32 idx) {
    PartRows rows;
    rows.merge = blob_array<abi::MergeItem>(p, p.plan->merges)[idx];
    rows.parts = blob_array<abi::MergePart>(p, p.plan->merge_parts) + rows.merge.part_begin;
#pragma unroll
    for (int i = 0; i < kSets; ++i) {
      const int part = ptx::lane_idx() + i * ptx::kWarp;
      rows.own[i] = part < rows.merge.part_count ? rows.parts[part].part_row : 0;
    }
    return rows;
  }
};

/// The same where no chunks have to give equal bits: the maximum first, then every part's weight, a lane a part; so that the values are a
/// plain sum in part order, whose loads wait for nothing but the places of the parts.
template <Config c, class Variant>
__device__ __forceinline__ void sum_parts(const Args& p, const typename Variant::Params& params, const PartRows& from, int row, int slice) {
  // Parts whose values are under way together: one loop brings them, since instructions come from memory, too.
  constexpr int kAhead = c.tile_rows <= 8 ? 2 * kMergeAhead<c> : kMergeAhead<c>;
  constexpr int kWindow = PartRows::kSets * ptx::kWarp;  // parts that the lanes know of
  const int lane = kRegistersDear<c> ? ptx::opaque(ptx::lane_idx()) : ptx::lane_idx();
  const int dim = slice * kMergeSlice + lane * kMergeDims;
  const bool has_dims = dim < c.head_dim_vo;
  const int count = from.merge.part_count;
  i32 own[PartRows::kSets];
  RowState own_state[PartRows::kSets];
  const auto take_window = [&](int begin) {
#pragma unroll
    for (int i = 0; i < PartRows::kSets; ++i) {
      const int part = begin + lane + i * ptx::kWarp;
      own[i] = begin == 0 ? from.own[i] : part < count ? from.parts[part].part_row : 0;
      own_state[i] = part < count ? load_part_state(p, static_cast<i64>(own[i]) + row) : empty_state();
    }
  };
  RowState state = empty_state();
  float weight[PartRows::kSets];
  float o[kMergeDims] = {};
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kWindow) {
    take_window(begin);
    const int end = min(kWindow, count - begin);
#pragma unroll 1
    for (int first = 0; first < end; first += kAhead) {
      float next[kAhead][kMergeDims];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if constexpr (kRegistersDear<c> || c.tile_rows > 16) next[i][0] = next[i][1] = next[i][2] = next[i][3] = 0.0F;
        const i32 part_row = ptx::shuffle(first + i < ptx::kWarp ? own[0] : own[1], (first + i) % ptx::kWarp);
        if (first + i < end && has_dims) load_floats(p.part_o + (static_cast<i64>(part_row) + row) * c.part_stride() + dim, next[i]);
      }
      if (first == 0) {  // while those are coming
        if (begin == 0) {
          state.m = ptx::max_number(own_state[0].m, own_state[1].m);
          // Rare, and two at a time by hand: left to itself, the assembler makes sixteen of each turn, 260 instructions in every kernel.
#pragma unroll 1
          for (int i = lane + kWindow; i < count; i += 2 * ptx::kWarp) {
            float tops[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const int part = i + j * ptx::kWarp;
              tops[j] = part < count ? load_part_state(p, static_cast<i64>(from.parts[part].part_row) + row).m : -kInfinity;
            }
            state.m = ptx::max_number(state.m, ptx::max_number(tops[0], tops[1]));
          }
#pragma unroll
          for (int mask = ptx::kWarp / 2; mask > 0; mask /= 2) state.m = ptx::max_number(state.m, ptx::shuffle_xor(state.m, mask));
        }
#pragma unroll
        for (int i = 0; i < PartRows::kSets; ++i) {
          weight[i] = exp2_approx(own_state[i].m - base_of(state.m));  // 0 where there is no such part
          state.l = ptx::fma(own_state[i].l, weight[i], state.l);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const float part_weight = ptx::shuffle(first + i < ptx::kWarp ? weight[0] : weight[1], (first + i) % ptx::kWarp);
        if (first + i >= end || !has_dims) continue;
#pragma unroll
        for (int d = 0; d < kMergeDims; ++d) o[d] = ptx::fma(next[i][d], part_weight, o[d]);
      }
    }
  }
#pragma unroll
  for (int mask = ptx::kWarp / 2; mask > 0; mask /= 2) state.l += ptx::shuffle_xor(state.l, mask);
  const auto writer = RowWriter<c, Variant>::final_row(p, params, from.merge.row_begin + row, from.merge.kv_head, state, 1.0F);
  if (has_dims) writer.write(dim, o);
  if (dim == 0) writer.write_state();
}

/// The same of all rows of a merge of up to 32 parts by one warp, four rows at a time, with the same bits: eight lanes have a row, each
/// every eighth of its parts' states.
template <Config c, class Variant>
__device__ __forceinline__ void sum_rows(const Args& p, const typename Variant::Params& params, const PartRows& from) {
  constexpr int kRowLanes = 8;
  constexpr int kRows = ptx::kWarp / kRowLanes;
  constexpr int kSlice = kRowLanes * kMergeDims;
  constexpr int kSlices = c.head_dim_vo / kSlice;
  constexpr int kAhead = max(1, 16 / kSlices);  // parts whose values are under way together
  constexpr int kSets = ptx::kWarp / kRowLanes;
  const int lane = ptx::lane_idx();
  const int own = lane % kRowLanes;
  const int count = from.merge.part_count;
#pragma unroll 1
  for (int first = 0; first < from.merge.row_count; first += kRows) {
    const bool exists = first + lane / kRowLanes < from.merge.row_count;
    const int row = min(first + lane / kRowLanes, from.merge.row_count - 1);
    RowState states[kSets];  // of parts own + 8 i
#pragma unroll
    for (int i = 0; i < kSets; ++i) {
      const i32 part_row = ptx::shuffle(from.own[0], own + i * kRowLanes);
      states[i] = own + i * kRowLanes < count ? load_part_state(p, static_cast<i64>(part_row) + row) : empty_state();
    }
    RowState state = empty_state();
    float weight[kSets];
    float o[kSlices][kMergeDims] = {};
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kAhead) {
      float next[kAhead][kSlices][kMergeDims] = {};
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const i32 part_row = ptx::shuffle(from.own[0], (begin + i) % ptx::kWarp);
        if (begin + i >= count) continue;
        const float* g_row = p.part_o + (static_cast<i64>(part_row) + row) * c.part_stride() + own * kMergeDims;
#pragma unroll
        for (int s = 0; s < kSlices; ++s) load_floats(g_row + s * kSlice, next[i][s]);
      }
      if (begin == 0) {  // while those are coming
        state.m = ptx::max_number(ptx::max_number(states[0].m, states[1].m), ptx::max_number(states[2].m, states[3].m));
#pragma unroll
        for (int mask = kRowLanes / 2; mask > 0; mask /= 2) state.m = ptx::max_number(state.m, ptx::shuffle_xor(state.m, mask));
        float sums[kSets];
#pragma unroll
        for (int i = 0; i < kSets; ++i) {
          weight[i] = exp2_approx(states[i].m - base_of(state.m));
          sums[i] = ptx::fma(states[i].l, weight[i], 0.0F);
        }
        // In the order in which sum_parts() halves a warp.
        state.l = (sums[0] + sums[2]) + (sums[1] + sums[3]);
#pragma unroll
        for (int mask = kRowLanes / 2; mask > 0; mask /= 2) state.l += ptx::shuffle_xor(state.l, mask);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int set = (begin + i) / kRowLanes;
        const float given = set < 2 ? (set == 0 ? weight[0] : weight[1]) : (set == 2 ? weight[2] : weight[3]);
        const float part_weight = ptx::shuffle(given, lane / kRowLanes * kRowLanes + (begin + i) % kRowLanes);
        if (begin + i >= count) continue;
#pragma unroll
        for (int s = 0; s < kSlices; ++s) {
#pragma unroll
          for (int d = 0; d < kMergeDims; ++d) o[s][d] = ptx::fma(next[i][s][d], part_weight, o[s][d]);
        }
      }
    }
    const auto writer = RowWriter<c, Variant>::final_row(p, params, from.merge.row_begin + row, from.merge.kv_head, state, 1.0F);
    if (!exists) continue;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) writer.write(s * kSlice + own * kMergeDims, o[s]);
    if (own == 0) writer.write_state();
  }
}

/// Warps that end tiles together: kNumWarps from kFirst on, by a barrier of their own.
template <int kFirst, int kNumWarps, int kBarrier>
struct BlockWarps {
  static constexpr int kWarps = kNumWarps;
  static __device__ __forceinline__ int warp_idx() { return ptx::warp_idx() - kFirst; }
  static __device__ __forceinline__ bool leads() { return warp_idx() == 0; }
  static __device__ __forceinline__ void sync() { ptx::sync_named(kBarrier, kWarps * ptx::kWarp); }
};
inline constexpr int kWorkersBarrier = 5;
/// All threads of the block that compute.
template <Config c>
__device__ __forceinline__ void sync_workers() {
  if constexpr (c.producers == 0) {
    ptx::sync_block();
  } else {
    ptx::sync_named(kWorkersBarrier, c.workers());
  }
}
/// All of those.
template <Config c>
struct Workers {
  static constexpr int kWarps = c.workers() / ptx::kWarp;
  static __device__ __forceinline__ int warp_idx() { return ptx::warp_idx(); }
  static __device__ __forceinline__ bool leads() { return ptx::thread_idx() < ptx::kWarp; }
  static __device__ __forceinline__ void sync() { sync_workers<c>(); }
};

/// All rows of a merge by the team's warps.
template <Config c, class Variant, class Team>
__device__ __forceinline__ void merge_rows(const Args& p, const typename Variant::Params& params, const PartRows& from) {
  constexpr int kSlices = ceil_div(c.head_dim_vo, kMergeSlice);
  for (int i = Team::warp_idx(); i < from.merge.row_count * kSlices; i += Team::kWarps) {
    if constexpr (c.batch_invariant || !Variant::kSoftmax) {
      fold_parts<c, Variant>(p, params, from.merge, from.parts, i / kSlices, i % kSlices);
    } else {
      sum_parts<c, Variant>(p, params, from, i / kSlices, i % kSlices);
    }
  }
}

/// Whether a warp takes whole merges where there are several at once.
template <Config c, class Variant>
constexpr bool kTakesWhole = c.producers > 0 && !c.batch_invariant && Variant::kSoftmax && c.head_dim_vo % 32 == 0 && c.head_dim_vo <= 256;

/// Called by the whole team once all rows of a part have been written by it; `s_last`: one word of shared memory, two
/// with kTakesWhole. Performs the merges that this part completes.
template <Config c, class Variant, class Team = Workers<c>>
__device__ __forceinline__ void arrive(const Args& p, const typename Variant::Params& params, const abi::WorkItem& item, u32* s_last) {
  const auto* merges = blob_array<abi::MergeItem>(p, p.plan->merges);
  // Asked for now, so that it is there once the counter answers.
  constexpr bool kAhead = c.tile_rows <= 16;  // else registers are dear
  PartRows first;
  if constexpr (kAhead) first = PartRows::load(p, item.merge_begin);
  Team::sync();
  for (int begin = 0; begin < item.merge_count; begin += ptx::kWarp) {
    if (Team::leads()) {
      // The barrier has gathered the block's writes, and the atomic operation passes them on; another one spreads what it has seen.
      const int lane = ptx::lane_idx();
      const i32 idx = item.merge_begin + begin + lane;
      bool last = false;
      bool fits = false;
      if (begin + lane < item.merge_count) {
        const i32 part_count = merges[idx].part_count;
        last = ptx::atomic_add_ordered(p.counters + idx, 1) == part_count - 1;
        if (last) p.counters[idx] = 0;
        fits = last && part_count <= ptx::kWarp;
      }
      const u32 mask = ptx::ballot(last);
      if (lane == 0) *s_last = mask;
      if constexpr (kTakesWhole<c, Variant>) {
        const u32 whole = ptx::ballot(fits);
        if (lane == 0) s_last[1] = (whole & (whole - 1)) != 0 ? whole : 0;
      }
    }
    Team::sync();
    u32 mask = *s_last;
    if constexpr (kTakesWhole<c, Variant>) {
      // Merges of a level that requests share are many, each of few rows: a warp takes some of them, and others others.
      const u32 whole = s_last[1];
      mask &= ~whole;
      int turn = Team::warp_idx();
#pragma unroll 1
      for (int i = 0; i < ptx::kWarp && (whole >> i) != 0; ++i) {
        if (((whole >> i) & 1U) == 0 || turn++ % Team::kWarps != 0) continue;
        sum_rows<c, Variant>(p, params, PartRows::load(p, item.merge_begin + begin + i));
      }
    }
    for (int i = 0; i < ptx::kWarp && (mask >> i) != 0; ++i) {
      if (((mask >> i) & 1U) != 0)
        merge_rows<c, Variant, Team>(p, params, kAhead && begin + i == 0 ? first : PartRows::load(p, item.merge_begin + begin + i));
    }
    Team::sync();  // s_last may be written again
  }
}

/// Rows that see no key, shared out over the blocks of the class-0 kernel; called by a team of every block of it.
template <Config c, class Variant, class Team = Workers<c>>
__device__ __forceinline__ void write_empty_rows(const Args& p, const typename Variant::Params& params) {
  if constexpr (c.tile_class == 0) {
    const auto* merges = blob_array<abi::MergeItem>(p, p.plan->merges);
    for (int i = ptx::block_idx(); i < p.plan->num_empty_merges; i += ptx::num_blocks()) {
      constexpr float kZeros[kMergeDims] = {};
      const abi::MergeItem merge = merges[i];
#pragma unroll 1
      for (i32 row = Team::warp_idx(); row < merge.row_count; row += Team::kWarps) {
        const auto writer = RowWriter<c, Variant>::final_row(p, params, merge.row_begin + row, merge.kv_head, empty_state(), 1.0F);
        for (int dim = ptx::lane_idx() * kMergeDims; dim < c.head_dim_vo; dim += kMergeSlice) writer.write(dim, kZeros);
        if (ptx::lane_idx() == 0) writer.write_state();
      }
    }
  }
}

}  // namespace girih::attention
