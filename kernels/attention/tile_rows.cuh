// The end of one row of a tile by one warp: its values, brought from wherever a family keeps them, become the final O and LSE, a part, or
// join the tile's chunks so far.
#pragma once

#include "attention/config.cuh"
#include "attention/output.cuh"
#include "attention/problem.cuh"
#include "attention/state.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

/// Which of a row's dims a lane writes: four at a time, and one lane of the row its state.
struct LaneDims {
  int first, step;
  bool leads;
  bool exists = true;  // false: the lane's row lies past the tile's last one; it takes part and writes nothing
  int end = 1 << 30;   // dims from there on are others'
};
/// Those who write a row together: here one warp.
struct OneWarp {
  static __device__ __forceinline__ void sync() { ptx::sync_warp(); }
};
/// All lanes of a warp write one row.
__device__ __forceinline__ LaneDims warp_dims() { return {4 * ptx::lane_idx(), 4 * ptx::kWarp, ptx::lane_idx() == 0}; }
/// Four neighbouring lanes write one row, and a warp eight: the chain of loads that a row's end begins with is followed for all at once.
__device__ __forceinline__ LaneDims quad_dims(bool exists) { return {ptx::lane_idx() % 4 * 4, 16, ptx::lane_idx() % 4 == 0, exists}; }

/// Row `row` of the tile that `item` ends (or, chunk by chunk, continues). load(dim, x) gives its unnormalised values of dims
/// [dim, dim + 4), V's common scale left out. Called by all who write the row together.
template <Config c, class Variant, class Team = OneWarp, class Load>
__device__ __forceinline__ void end_tile_row(const Args& p, const typename Variant::Params& params, const abi::WorkItem& item, int row,
                                             RowState state, float value_factor, LaneDims lane, const Load& load) {
  if constexpr (c.batch_invariant) {
    if (is_chunk(item)) {
      const auto chunk = ChunkRow<c, Variant::kSoftmax>::begin(p, row, state, is_first(item));
      Team::sync();  // all have read the state so far
      if (!lane.exists) return;
      if (lane.leads) chunk.write_state(state);
      const auto writer = RowWriter<c, Variant>::make(p, params, item, row, state, 1.0F);
#pragma unroll 1
      for (int dim = lane.first; dim < min(c.head_dim_vo, lane.end); dim += lane.step) {
        float x[4];
        load(dim, x);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] *= value_factor;
        chunk.fold_values(dim, x);
        if (is_last(item)) writer.write(dim, x);
      }
      if (is_last(item) && lane.leads) writer.write_state();
      return;
    }
  }
  if (!lane.exists) return;
  const auto writer = RowWriter<c, Variant>::make(p, params, item, row, state, value_factor);
#pragma unroll 1
  for (int dim = lane.first; dim < min(c.head_dim_vo, lane.end); dim += lane.step) {
    float x[4];
    load(dim, x);
    writer.write(dim, x);
  }
  if (lane.leads) writer.write_state();
}

}  // namespace girih::attention
