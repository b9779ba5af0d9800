// MLA on Hopper.
#pragma once

#include "attention/wgmma_mla_producer.cuh"
#include "attention/wgmma_mla_steps.cuh"
#include "ptx/launch.cuh"

namespace girih::attention {

template <Config c, class Variant>
__device__ __forceinline__ void run_wgmma_mla(const Args& p) {
  using Shape = MlaShape<c>;
  static_assert(Shape::kSharedBytes <= c.shared_bytes);
  u8* s_memory = ptx::shared_memory();
  if (ptx::thread_idx() == 0) MlaMemory<c>{s_memory}.init();
  ptx::wait_for_previous_grid();
  prefetch_plan(p);
  ptx::sync_block();
  // Registers of a block are 64 Ki, 168 a thread: what bringing warps give up, the others take.
  if (ptx::warp_idx() >= Shape::kWarps) {
    ptx::lower_registers<40>();
    MlaProducer<c>(p, s_memory).run(unit_items(p));
  } else {
    ptx::raise_registers<232>();
    const typename Variant::Params params = Variant::load_params(p);
    MlaSteps<c, Variant>(p, params, s_memory).run(unit_items(p));
    write_empty_rows<c, Variant, typename Shape::Team>(p, params);
  }
  ptx::start_next_grid();
}

}  // namespace girih::attention
