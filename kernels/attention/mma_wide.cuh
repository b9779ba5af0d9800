// MLA with tensor cores: V is the first dims of K, up to 512 of them, and a query token's heads are the rows. Neither a row's query nor its
// sums fit a warp's registers beside the other, and a byte of shared memory is read as often as there are warps that want it. So warps have
// parts: the first ones take scores and pass weights on (wide_scores.cuh); the others sum P V, each all rows by its share of V's dims, so
// that V is read once (wide_values.cuh). Barriers in shared memory hold the two together for each turn, which is a step or a tile's end, so
// that the next tile begins while this one's rows are written.
//   Up to 16 rows, bound by memory: score warps hold Q and share the keys of a step; value warps have less to do and bring the keys.
//   More rows, bound by the tensor cores: two score warps share 32 rows and divide the dims; they bring the keys. A step's values are
//   summed once the next step's scores are through, whose softmax and copies leave the tensor cores to it.
#pragma once

#include "attention/wide_scores.cuh"
#include "attention/wide_values.cuh"

namespace girih::attention {

template <Config c, class Variant>
__device__ __forceinline__ void run_wide(const Args& p) {
  static_assert(WideShape<c>::kSharedBytes <= c.shared_bytes);
  begin_list(p);
  prefetch_plan(p);
  const typename Variant::Params params = Variant::load_params(p);
  u8* s_memory = ptx::shared_memory();
  WideMemory<c>{s_memory}.init();
  if (ptx::warp_idx() < WideShape<c>::kScoreWarps) {
    WideScores<c, Variant>(p, params, s_memory).run(unit_items(p));
  } else {
    WideValues<c, Variant> values(p, params, s_memory);
    values.run(unit_items(p));
    write_empty_rows<c, Variant, typename WideValues<c, Variant>::Team>(p, params);
  }
  end_list(p);
}

}  // namespace girih::attention
