// merge_state(), merge_states() and their variable-length form: attention states (o, lse) from elsewhere become one. A warp takes one row
// and head: the maximum of the LSEs, then the sum of weights, then the values with weights that sum to 1 (src/attention/merge.cc has the
// rules: a state of weight 0 is skipped whatever its values hold, one that is alone with a weight is copied bit by bit, lse = +inf takes
// all weight, a NaN lse makes the row NaN). All inputs of an element are read before it is written, the LSE last by one lane after the
// warp has read all of them: outputs may alias inputs.
#pragma once

#include "abi/page_params.h"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "core/types.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

/// One row and head of the inputs.
struct MergeCell {
  const abi::MergeParams* p;
  i64 row, head, first, count;

  __device__ __forceinline__ const abi::StatesArg& states(i64 i) const { return p->states[p->pair != 0 ? i : 0]; }
  __device__ __forceinline__ i64 state(i64 i) const { return p->pair != 0 ? 0 : first + i; }
  __device__ __forceinline__ i64 source_row() const { return p->indptr != nullptr ? 0 : row; }
  __device__ __forceinline__ float lse(i64 i) const {
    const abi::StatesArg& a = states(i);
    return *reinterpret_cast<const float*>(a.s + source_row() * a.s_row_stride + state(i) * a.s_state_stride + head * a.s_head_stride);
  }
  __device__ __forceinline__ const u8* value(i64 i, int dim) const {
    const abi::StatesArg& a = states(i);
    return a.v + source_row() * a.v_row_stride + state(i) * a.v_state_stride + head * a.v_head_stride + dim * a.v_dim_stride;
  }
  __device__ __forceinline__ float weight(float s, float top) const {
    if (s == top) return 1.0F;  // also where both are +inf
    return p->base2 != 0 ? exp2(s - top) : exp(s - top);
  }
};

/// A: type of states[0], B: of states[1] (merge_state only), Out: of the result.
template <typename A, typename B, typename Out>
__device__ __forceinline__ void merge_cell(const MergeCell& cell) {
  const abi::MergeParams& p = *cell.p;
  const auto load = [&](i64 i, int dim) {
    const u8* at = cell.value(i, dim);
    return p.pair != 0 && i == 1 ? to_f32(*reinterpret_cast<const B*>(at)) : to_f32(*reinterpret_cast<const A*>(at));
  };
  u8* v_out = p.v_out + cell.row * p.v_row_stride + cell.head * p.v_head_stride;
  float* s_out = reinterpret_cast<float*>(p.s_out + cell.row * p.s_row_stride + cell.head * p.s_head_stride);
  float top = -kInfinity;
  bool nan = false;
  for (i64 i = 0; i < cell.count; ++i) {
    const float s = cell.lse(i);
    nan = nan || s != s;
    top = s > top ? s : top;
  }
  float total = 0.0F;
  i64 contributing = 0;
  i64 last = 0;
  for (i64 i = 0; i < cell.count && !nan && top != -kInfinity; ++i) {
    const float weight = cell.weight(cell.lse(i), top);
    total += weight;
    if (weight > 0.0F) {
      ++contributing;
      last = i;
    }
  }
  for (int d = ptx::lane_idx(); d < p.dim; d += ptx::kWarp) {
    Out* out = reinterpret_cast<Out*>(v_out + d * p.v_dim_stride);
    if (contributing == 0) {
      *out = from_f32<Out>(nan ? float_of(0x7fc00000U) : 0.0F);
    } else if (contributing == 1) {
      const u8* from = cell.value(last, d);
      const bool second = p.pair != 0 && last == 1;
      if (second ? kSame<B, Out> : kSame<A, Out>) {
        *out = *reinterpret_cast<const Out*>(from);
      } else {
        *out = from_f32<Out>(load(last, d));
      }
    } else {
      float sum = 0.0F;
      for (i64 i = 0; i < cell.count; ++i) {
        const float weight = cell.weight(cell.lse(i), top) / total;
        if (weight > 0.0F) sum += weight * load(i, d);
      }
      *out = from_f32<Out>(sum);
    }
  }
  ptx::sync_warp();
  if (ptx::lane_idx() != 0) return;
  if (contributing <= 1 || top == kInfinity) {
    *s_out = nan ? float_of(0x7fc00000U) : top;
  } else {
    *s_out = top + (p.base2 != 0 ? log2(total) : log(total));
  }
}

template <typename A, typename B, typename Out>
__device__ __forceinline__ void run_merge_states(const abi::MergeParams& p) {
  const int warps = ptx::num_threads() / ptx::kWarp;
  const i64 step = static_cast<i64>(ptx::num_blocks()) * warps;
  for (i64 i = static_cast<i64>(ptx::block_idx()) * warps + ptx::warp_idx(); i < p.rows * p.heads; i += step) {
    MergeCell cell = {&p, i / p.heads, i % p.heads, 0, p.pair != 0 ? 2 : p.num_states};
    if (p.indptr != nullptr) {
      cell.first = p.indptr[cell.row];
      cell.count = p.indptr[cell.row + 1] - cell.first;
    }
    merge_cell<A, B, Out>(cell);
  }
}

}  // namespace girih::attention
