// MLA on Hopper: 576 dims of K, the first 512 of which are V, and tiles of 64 packed rows (tokens x heads) by steps of 64 keys. One block a
// multiprocessor; of its twelve warps four bring data (wgmma_mla_producer.cuh) and eight, two warpgroups, compute (wgmma_mla_steps.cuh).
// A tile's sums are 64 x 512 numbers, half of all registers: so each group sums all rows over half of V's dims, and both want every step's
// weights. Steps are taken in pairs s, s + 1, one in each of two slots, and scored by a group each, that of slot s % 2 first:
//   keys   | wait empty[s] | boxes or rows of K -> full[s] |        two warps, as far ahead as slots are free, each slot by halves of dims
//   first  | full[s] | S = Q K^T | softmax -> weights, 32 keys at a time -> passed[s] | O += P V, P in registers | empty[s] |
//          | passed[s + 1] | O += P V, P in shared memory | empty[s + 1] | the next pair ...
//   second | full[s + 1] | S = Q K^T | passed[s] | O += P V, P in shared memory | softmax meanwhile -> passed[s + 1] | empty[s] |
//          | O += P V, P in registers | empty[s + 1] |
// So the second's scores fill the time of the first's softmax and the values of s that of the second's, while a step's values are summed by
// both groups in the order of steps, which is what makes one base for each row enough: who raises it says so together with the weights.
// The first does not score the next pair ahead: its keys must land where the values of this one are (Q takes as much room as a slot).
// docs/kernels.md has what bounds a step.
#pragma once

#include "attention/wgmma_mla_producer.cuh"
#include "attention/wgmma_mla_steps.cuh"
#include "attention/wgmma_mla_widen.cuh"

namespace girih::attention {

/// Of this block: where a token is several tiles, the plan has a line of units for each of them, cut alike, and neighbours take those of
/// one place. They ask for the same keys at the same time, which then come from L2 once.
template <Config c>
__device__ __forceinline__ UnitItems gang_items(const Args& p) {
  constexpr int kGang = MlaShape<c>::kGang;
  const i32 block = ptx::block_idx();
  const i32 places = ptx::num_blocks() / kGang;
  return unit_items(p, places * kGang == ptx::num_blocks() ? block % kGang * places + block / kGang : block);
}

template <Config c, class Variant>
__device__ __forceinline__ void run_wgmma_mla(const Args& p) {
  using Shape = MlaShape<c>;
  static_assert(Shape::kSharedBytes <= c.shared_bytes);
  u8* s_memory = ptx::shared_memory();
  if (ptx::thread_idx() == 0) MlaMemory<c>{s_memory}.init();
  begin_list(p);
  prefetch_plan(p);
  ptx::sync_block();
  if (ptx::warp_idx() >= Shape::kWarps) {
    ptx::lower_registers<Shape::kBringingRegisters>();
    if constexpr (Shape::kWidens) {
      MlaWidener<c>(p, s_memory).run(gang_items<c>(p));
    } else {
      MlaProducer<c>(p, s_memory).run(gang_items<c>(p));
    }
  } else {
    ptx::raise_registers<Shape::kComputingRegisters>();
    const typename Variant::Params params = Variant::load_params(p);
    MlaSteps<c, Variant>(p, params, s_memory).run(gang_items<c>(p));
    write_empty_rows<c, Variant, typename Shape::Team>(p, params);
  }
  end_list(p);
}

}  // namespace girih::attention
