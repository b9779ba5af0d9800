// Attention by mma.sync tensor cores: the family's entry. V of more than 256 dims that is a view of K (MLA) is taken by mma_wide.cuh, else
// tiles of up to 16 rows by mma_decode.cuh and larger ones by mma_prefill.cuh.
#pragma once

#include "attention/mma_decode.cuh"
#include "attention/mma_prefill.cuh"
#include "attention/mma_wide.cuh"

namespace girih::attention {

template <Config c, class Variant>
__device__ __forceinline__ void run_mma(const Args& p) {
  if constexpr (c.is_wide()) {
    run_wide<c, Variant>(p);
  } else if constexpr (c.tile_rows <= 16) {
    run_decode<c, Variant>(p);
  } else {
    run_prefill<c, Variant>(p);
  }
}

/// Dynamic shared memory of a block.
template <Config c, class Variant>
__device__ constexpr int shared_bytes() {
  if constexpr (c.is_wide()) {
    return WideShape<c>::kSharedBytes;
  } else if constexpr (c.tile_rows <= 16) {
    return DecodeShape<c>::kSharedBytes;
  } else {
    return PrefillShape<c, Variant>::kSharedBytes;
  }
}

}  // namespace girih::attention
