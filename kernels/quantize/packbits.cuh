// Bits of bytes that are not zero, eight to a byte; a thread makes one byte.
#pragma once

#include "abi/rows_params.h"
#include "core/types.cuh"
#include "ptx/launch.cuh"
#include "ptx/thread.cuh"

namespace girih::quantize {

__device__ __forceinline__ void pack_bits(const abi::PackBitsParams& p) {
  ptx::wait_for_previous_grid();
  ptx::start_next_grid();
  const i64 step = static_cast<i64>(ptx::num_blocks()) * ptx::num_threads();
  for (i64 i = static_cast<i64>(ptx::block_idx()) * ptx::num_threads() + ptx::thread_idx(); i < p.num_bytes; i += step) {
    // The segment whose bytes i is among; one without offsets.
    i64 segment = 0;
    if (p.out_indptr != nullptr) {
      i64 high = p.num_segments;
      while (segment + 1 < high) {
        const i64 middle = (segment + high) / 2;
        if (p.out_indptr[middle] <= i) {
          segment = middle;
        } else {
          high = middle;
        }
      }
    }
    const i64 first = p.out_indptr != nullptr ? p.indptr[segment] + (i - p.out_indptr[segment]) * 8 : i * 8;
    const i64 end = p.out_indptr != nullptr ? p.indptr[segment + 1] : p.num_bits;
    u32 byte = 0;
    if (first + 8 <= end && reinterpret_cast<u64>(p.x + first) % 8 == 0) {
      const Vec8 words = *reinterpret_cast<const Vec8*>(p.x + first);
#pragma unroll
      for (int b = 0; b < 8; ++b) byte |= (words.x[b / 4] >> (8 * (b % 4)) & 0xffU) != 0 ? 1U << (p.big != 0 ? 7 - b : b) : 0U;
    } else {
      for (int b = 0; b < 8 && first + b < end; ++b) byte |= p.x[first + b] != 0 ? 1U << (p.big != 0 ? 7 - b : b) : 0U;
    }
    p.out[i] = static_cast<u8>(byte);
  }
}

}  // namespace girih::quantize
