// Quantisation by tiles of 128 rows x 128 elements that share an f32 scale: a block holds a tile in registers, so that it is
// read once.
#pragma once

#include "core/math.cuh"
#include "ptx/launch.cuh"
#include "ptx/thread.cuh"
#include "rows/elements.cuh"
#include "rows/quantize.cuh"

namespace girih::rows {

using abi::PartConfig;

template <PartConfig kC>
__device__ __forceinline__ void quantize_tiles(const abi::RowsParams& p) {
  using X = Storage<kC.x>;
  using Out = Storage<kC.out>;
  constexpr int kTile = 128;
  constexpr int kVec = 16 / static_cast<int>(sizeof(X));
  constexpr int kLanes = kTile / kVec;              // threads of a row
  constexpr int kRowsAtOnce = kC.threads / kLanes;  // of the block
  static_assert(kC.vectors * kRowsAtOnce == kTile);
  constexpr int kColumns = (kC.dim + kTile - 1) / kTile;
  ptx::wait_for_previous_grid();
  ptx::start_next_grid();
  const abi::RowPart& part = p.parts[0];
  float* s_most = reinterpret_cast<float*>(ptx::shared_memory());
  const int lane = ptx::thread_idx() % kLanes;
  const i64 tile_row = ptx::block_idx() / kColumns;
  const int column = ptx::block_idx() % kColumns;
  const int d = column * kTile + lane * kVec;
  const i64 first = tile_row * kTile + ptx::thread_idx() / kLanes;
  Vec16 raw[kC.vectors];
#pragma unroll
  for (int v = 0; v < kC.vectors; ++v) {
    const i64 row = first + v * kRowsAtOnce;
    const int left = row < p.rows ? kC.dim - d : 0;
    const u8* source = part.x.data + row * part.x.row_stride + d * part.x.dim_stride;
    raw[v] = kC.aligned ? (left > 0 ? *reinterpret_cast<const Vec16*>(source) : Vec16{}) : gather<X>(source, part.x.dim_stride, left);
  }
  float most = 0.0F;
#pragma unroll
  for (int v = 0; v < kC.vectors; ++v) {
    float x[kVec];
    widen_vector<X>(x, 0, raw[v]);
    most = max(most, largest_finite<false>(x));
  }
#pragma unroll
  for (int mask = ptx::kWarp / 2; mask > 0; mask /= 2) most = ptx::max_magnitude(most, ptx::shuffle_xor(most, mask));
  if (ptx::lane_idx() == 0) s_most[ptx::thread_idx() / ptx::kWarp] = most;
  ptx::sync_block();
  float all = s_most[0];
#pragma unroll
  for (int w = 1; w < kC.threads / ptx::kWarp; ++w) all = max(all, s_most[w]);
  const ChosenScale chosen = f32_scale(all, kLargest<Out>, part.global_scale);
  const Divisor divisor(chosen.scale);
  if (ptx::thread_idx() == 0)
    *reinterpret_cast<float*>(part.scales + tile_row * part.scale_row_stride + column * part.scale_block_stride) = chosen.stored;
#pragma unroll
  for (int v = 0; v < kC.vectors; ++v) {
    const i64 row = first + v * kRowsAtOnce;
    if (row >= p.rows || d >= kC.dim) continue;
    float x[kVec];
    widen_vector<X>(x, 0, raw[v]);
    divisor.divide(x);
    u8* out = part.out.data + row * part.out.row_stride + d * part.out.dim_stride;
    if constexpr (kC.aligned) {
      store_vector<Out, kVec>(out, x);
    } else {
      scatter<Out, kVec>(out, part.out.dim_stride, kC.dim - d, x);
    }
  }
}

}  // namespace girih::rows
