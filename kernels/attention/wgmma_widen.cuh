// Keys of 8 bits beside Q of 16: four warps turn each step's codes of K and V, as they were brought, into tiles of Q's type, in which every
// code is exact; two warps K, two V, each half of the step's rows. Scales stay out: they are those of a head.
// Rows of V past the step's keys become zeros: their weights are, but 0 times NaN is not.
#pragma once

#include "attention/config.cuh"
#include "attention/output.cuh"
#include "attention/problem.cuh"
#include "attention/wgmma_shape.cuh"
#include "core/convert.cuh"
#include "core/types.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/thread.cuh"
#include "ptx/tma.cuh"

namespace girih::attention {

/// Rows [first, end) of a step; those from `num_keys` on become zeros. A lane takes 16 codes at a time to two chunks of the same row; of
/// lanes that write rows of 128 bytes side by side every second begins with the second chunk, so that eight lanes write to eight banks.
template <Type kCode, typename T, int kDims, int kStack>
__device__ __forceinline__ void widen_rows(const u8* s_brought, u8* s_tile, int first, int end, int num_keys) {
  constexpr int kChunks = kDims / 16;
#pragma unroll 2
  for (int i = first * kChunks + ptx::lane_idx(); i < end * kChunks; i += ptx::kWarp) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    Vec16 codes = *reinterpret_cast<const Vec16*>(s_brought + chunk / 8 * kStack + stack_offset(row, chunk % 8));
    if (row >= num_keys) codes = Vec16{};
    Vec16 wide[2];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      u32 pairs[2];
      widen<T, Storage<kCode>>(pairs, codes.x[j]);
      wide[j / 2].x[j % 2 * 2] = pairs[0];
      wide[j / 2].x[j % 2 * 2 + 1] = pairs[1];
    }
    u8* s_row = s_tile + chunk / 4 * kStack;
    const int second = chunk / 4 % 2;
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      const bool high = (turn ^ second) != 0;
      Vec16 out;
#pragma unroll
      for (int j = 0; j < 4; ++j) out.x[j] = high ? wide[1].x[j] : wide[0].x[j];
      *reinterpret_cast<Vec16*>(s_row + stack_offset(row, chunk % 4 * 2 + (high ? 1 : 0))) = out;
    }
  }
}

/// Widening warp `part`: of K the first kWideners, then of V.
template <Config c, class Variant>
__device__ __forceinline__ void widen_keys(UnitItems items, int part, u8* s_memory) {
  using Shape = WgmmaShape<c, Variant>;
  using T = Storage<c.q_type>;
  static_assert(Shape::kKeyStages == Shape::kValueStages && Shape::kStepKeys % kWideners == 0);
  constexpr int kRows = Shape::kStepKeys / kWideners;
  const WgmmaBarriers<Shape> barriers(s_memory);
  const bool is_value = part >= kWideners;
  const int ring = is_value ? 0 : 1;
  const int first = part % kWideners * kRows;
  u32 step = 0;  // of the block's
#pragma unroll 1
  for (const abi::WorkItem* item = items.begin; item != items.end; ++item) {
    if (item->row_count == 0) continue;
    const int end = item->kv_end;
#pragma unroll 1
    for (int begin = item->kv_begin; begin < end; begin += Shape::kStepKeys) {
      const int from = stage_of<Shape::kStages>(step);
      const int to = stage_of<Shape::kKeyStages>(step);
      ptx::mbarrier_wait(barriers.brought_full(ring, from), parity_of<Shape::kStages>(step));
      ptx::mbarrier_wait(is_value ? barriers.value_empty(to) : barriers.key_empty(to), parity_of<Shape::kKeyStages>(step) ^ 1U);
      if (is_value) {
        widen_rows<c.v_type, T, c.head_dim_vo, Shape::kStack>(s_memory + Shape::kBroughtValuesAt + from * Shape::kBroughtValueStage,
                                                              s_memory + Shape::kValuesAt + to * Shape::kValueStage, first, first + kRows,
                                                              end - begin);
      } else {
        widen_rows<c.k_type, T, c.head_dim_qk, Shape::kStack>(s_memory + Shape::kBroughtKeysAt + from * Shape::kBroughtKeyStage,
                                                              s_memory + Shape::kKeysAt + to * Shape::kKeyStage, first, first + kRows,
                                                              end - begin);
      }
      ptx::fence_async_proxy();
      ptx::sync_warp();
      if (ptx::lane_idx() == 0) {
        ptx::mbarrier_arrive(barriers.brought_empty(ring, from));
        ptx::mbarrier_arrive(is_value ? barriers.value_full(to) : barriers.key_full(to));
      }
      ++step;
    }
  }
}

}  // namespace girih::attention
