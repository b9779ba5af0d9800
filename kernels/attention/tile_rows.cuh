// The end of one row of a tile by one warp: its values, brought from wherever a family keeps them, become the final O and LSE, a part, or
// join the tile's chunks so far.
#pragma once

#include "attention/config.cuh"
#include "attention/output.cuh"
#include "attention/problem.cuh"
#include "attention/state.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

/// Row `row` of the tile that `item` ends (or, chunk by chunk, continues). load(dim, x) gives its unnormalised values of dims
/// [dim, dim + 4), V's common scale left out. All lanes of a warp.
template <Config c, class Variant, class Load>
__device__ __forceinline__ void end_tile_row(const Args& p, const typename Variant::Params& params, const abi::WorkItem& item, int row,
                                             RowState state, float value_factor, const Load& load) {
  const int lane = ptx::lane_idx();
  if constexpr (c.batch_invariant) {
    if (is_chunk(item)) {
      const auto chunk = ChunkRow<c, Variant::kSoftmax>::begin(p, row, state, is_first(item));
      ptx::sync_warp();  // all lanes have read the state so far
      if (lane == 0) chunk.write_state(state);
      const auto writer = RowWriter<c, Variant>::make(p, params, item, row, state, 1.0F);
#pragma unroll 1
      for (int dim = 4 * lane; dim < c.head_dim_vo; dim += 4 * ptx::kWarp) {
        float x[4];
        load(dim, x);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] *= value_factor;
        chunk.fold_values(dim, x);
        if (is_last(item)) writer.write(dim, x);
      }
      if (is_last(item) && lane == 0) writer.write_state();
      return;
    }
  }
  const auto writer = RowWriter<c, Variant>::make(p, params, item, row, state, value_factor);
#pragma unroll 1
  for (int dim = 4 * lane; dim < c.head_dim_vo; dim += 4 * ptx::kWarp) {
    float x[4];
    load(dim, x);
    writer.write(dim, x);
  }
  if (lane == 0) writer.write_state();
}

}  // namespace girih::attention
