// V for products of 8-bit floats, which take both operands with their inner index, here keys, along the rows: one warp reads each step's V
// as it was brought (a row a key) and writes a row of up to 128 keys for each dim. ldmatrix transposes pairs of bytes, two dims of a key
// each; one permutation of bytes then puts the keys of a dim side by side, and stmatrix writes them. Two orders are chosen so that no byte
// has to cross lanes:
//   keys: place 16 a + 4 p + 2 b + j of 32 is key 16 a + 8 b + 2 p + j, as the lanes have weights (two neighbouring keys of each 8);
//   dims: row 8 b + g of 16 is dim 2 g + b, so that eight rows of one stmatrix lie in eight banks, and a lane's sums are the dims
//         4 p .. 4 p + 3 of each 16.
// Places past the step's keys become zeros: their weights are, but 0 times NaN is not.
#pragma once

#include "attention/config.cuh"
#include "attention/problem.cuh"
#include "attention/wgmma_shape.cuh"
#include "core/types.cuh"
#include "ptx/convert.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/thread.cuh"
#include "ptx/tma.cuh"

namespace girih::attention {

/// Which of keys `key` and `key` + 1 exist, as bytes of a register of two keys by two dims.
__device__ __forceinline__ u32 existing_pair(int key, int num_keys) {
  return (key < num_keys ? 0xffffU : 0U) | (key + 1 < num_keys ? 0xffff0000U : 0U);
}

/// One step, of `num_keys` keys.
template <Config c, class Variant, bool kWhole>
__device__ __forceinline__ void transpose_step(const u8* s_brought, u8* s_values, int num_keys) {
  using Shape = WgmmaShape<c, Variant>;
  constexpr int kKeysAtOnce = 32;
  constexpr int kChunks = c.head_dim_vo / 16;
  constexpr int kAhead = kChunks % 4 == 0 ? 4 : 3;  // loads under way: a load alone takes longer than all else that is done with it
  static_assert(kChunks % kAhead == 0);
  const int lane = ptx::lane_idx();
  // ldmatrix: this lane gives the row of key `lane` of 32. stmatrix: of matrix lane / 8 the row lane % 8.
  const int row = lane / 8 % 2 * 8 + lane % 8;
  const ptx::SharedPointer s_key = ptx::opaque(s_brought + stack_offset(lane, 0));
  u32 keys[kAhead][4];  // 8 i + 2 p and the next, by dims 2 g and 2 g + 1 of 16
  const auto load = [&](int first, int chunk) {
    ptx::ldmatrix_x4_trans(keys[chunk % kAhead], (s_key + (first * kStackRow + chunk / 8 * Shape::kStack)) ^ (chunk % 8 * 16));
  };
#pragma unroll
  for (int chunk = 0; chunk < kAhead; ++chunk) load(0, chunk);
#pragma unroll 1
  for (int first = 0; first < Shape::kStepKeys; first += kKeysAtOnce) {
    const ptx::SharedPointer s_dim = ptx::opaque(s_values + stack_offset(row, first / 16 + lane / 16));
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      u32(&own)[4] = keys[chunk % kAhead];
      if constexpr (!kWhole) {
#pragma unroll
        for (int i = 0; i < 4; ++i) own[i] &= existing_pair(first + 8 * i + lane % 4 * 2, num_keys);
      }
      u32 dims[4];  // 2 g, 2 g + 1 over the first 16 places; then over the next
#pragma unroll
      for (int i = 0; i < 4; ++i) dims[i] = ptx::permute_bytes(own[i / 2 * 2], own[i / 2 * 2 + 1], i % 2 == 0 ? 0x6420U : 0x7531U);
      if (chunk + kAhead < kChunks) {
        load(first, chunk + kAhead);
      } else if (first + kKeysAtOnce < Shape::kStepKeys) {
        load(first + kKeysAtOnce, chunk + kAhead - kChunks);
      }
      ptx::stmatrix_x4(s_dim + chunk * 16 * kStackRow, dims);
    }
  }
}

/// The warp that lays V out anew.
template <Config c, class Variant>
__device__ __forceinline__ void transpose_values(UnitItems items, u8* s_memory) {
  using Shape = WgmmaShape<c, Variant>;
  const WgmmaBarriers<Shape> barriers(s_memory);
  u32 step = 0;  // of the block's
#pragma unroll 1
  for (const abi::WorkItem* item = items.begin; item != items.end; ++item) {
    if (item->row_count == 0) continue;
    const int end = item->kv_end;
#pragma unroll 1
    for (int begin = item->kv_begin; begin < end; begin += Shape::kStepKeys) {
      const int from = stage_of<Shape::kStages>(step);
      const int to = stage_of<Shape::kValueStages>(step);
      const u8* s_brought = s_memory + Shape::kBroughtValuesAt + from * Shape::kBroughtValueStage;
      u8* s_values = s_memory + Shape::kValuesAt + to * Shape::kValueStage;
      ptx::mbarrier_wait(barriers.brought_full(0, from), parity_of<Shape::kStages>(step));
      ptx::mbarrier_wait(barriers.value_empty(to), parity_of<Shape::kValueStages>(step) ^ 1U);
      if (end - begin >= Shape::kStepKeys) {
        transpose_step<c, Variant, true>(s_brought, s_values, Shape::kStepKeys);
      } else {
        transpose_step<c, Variant, false>(s_brought, s_values, end - begin);
      }
      ptx::fence_async_proxy();
      ptx::sync_warp();
      if (ptx::lane_idx() == 0) {
        ptx::mbarrier_arrive(barriers.brought_empty(0, from));
        ptx::mbarrier_arrive(barriers.value_full(to));
      }
      ++step;
    }
  }
}

}  // namespace girih::attention
