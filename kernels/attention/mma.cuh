// Attention by mma.sync tensor cores: the family's entry. A class of few rows is decode (mma_decode.cuh), one of many prefill
// (mma_prefill.cuh).
#pragma once

#include "attention/mma_decode.cuh"

namespace girih::attention {

template <Config c, class Variant>
__device__ __forceinline__ void run_mma(const Args& p) {
  run_decode<c, Variant>(p);
}

/// Dynamic shared memory of a block.
template <Config c, class Variant>
__device__ constexpr int shared_bytes() {
  return DecodeShape<c>::kSharedBytes;
}

}  // namespace girih::attention
