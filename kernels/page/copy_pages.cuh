// copy_pages(): whole pages within a store. A block takes one page of one plane (or of its scales): chunks of adjacent bytes in up to three
// loops, so that the bytes between them, which may belong to other layers or planes, are not touched.
#pragma once

#include "abi/page_params.h"
#include "core/types.cuh"
#include "ptx/thread.cuh"

namespace girih::page {

/// Copies the page in pieces of T.
template <typename T>
__device__ __forceinline__ void copy_page(const abi::CopyShape& shape, u8* to, const u8* from) {
  const i64 pieces = shape.chunk / static_cast<i64>(sizeof(T));
  const i64 total = shape.extent[0] * shape.extent[1] * shape.extent[2] * pieces;
  for (i64 i = ptx::thread_idx(); i < total; i += ptx::num_threads()) {
    const i64 row = i / pieces;
    const i64 outer = row / shape.extent[2];
    const i64 at = outer / shape.extent[1] * shape.stride[0] + outer % shape.extent[1] * shape.stride[1] +
                   row % shape.extent[2] * shape.stride[2] + i % pieces * static_cast<i64>(sizeof(T));
    *reinterpret_cast<T*>(to + at) = *reinterpret_cast<const T*>(from + at);
  }
}

__device__ __forceinline__ void run_copy_pages(const abi::CopyParams& p) {
  for (i64 i = ptx::block_idx(); i < p.num_pairs * p.num_shapes; i += ptx::num_blocks()) {
    const abi::CopyShape& shape = p.shapes[i % p.num_shapes];
    const abi::PagePair pair = p.pairs[i / p.num_shapes];
    if (pair.source == pair.destination) continue;
    u8* to = shape.data + pair.destination * shape.page_stride;
    const u8* from = shape.data + pair.source * shape.page_stride;
    const i64 strides = shape.stride[0] | shape.stride[1] | shape.stride[2] | shape.chunk;
    if ((reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from) | static_cast<u64>(strides)) % 16 == 0) {
      copy_page<Vec16>(shape, to, from);
    } else {
      copy_page<u8>(shape, to, from);
    }
  }
}

}  // namespace girih::page
