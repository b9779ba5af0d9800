// Attention by mma.sync tensor cores: the family's entry. Tiles of up to 16 rows are decode (mma_decode.cuh), others prefill
// (mma_prefill.cuh).
#pragma once

#include "attention/mma_decode.cuh"
#include "attention/mma_prefill.cuh"

namespace girih::attention {

template <Config c, class Variant>
__device__ __forceinline__ void run_mma(const Args& p) {
  if constexpr (c.tile_rows <= 16) {
    run_decode<c, Variant>(p);
  } else {
    run_prefill<c, Variant>(p);
  }
}

/// Dynamic shared memory of a block.
template <Config c, class Variant>
__device__ constexpr int shared_bytes() {
  if constexpr (c.tile_rows <= 16) {
    return DecodeShape<c>::kSharedBytes;
  } else {
    return PrefillShape<c, Variant>::kSharedBytes;
  }
}

}  // namespace girih::attention
