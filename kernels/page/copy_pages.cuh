// copy_pages(): whole pages within a store. A block takes a slice of one page of one plane (or of its scales): chunks of adjacent bytes in up
// to three loops, so that the bytes between them, which may belong to other layers or planes, are not touched.
#pragma once

#include "abi/page_params.h"
#include "core/types.cuh"
#include "ptx/launch.cuh"
#include "ptx/thread.cuh"

namespace girih::page {

/// Copies pieces [begin, end) of T of the page, `kAtOnce` of a thread together so that their loads are under way at the same time.
template <typename T, typename Index>
__device__ __forceinline__ void copy_slice(const abi::CopyShape& shape, u8* to, const u8* from, Index begin, Index end) {
  constexpr int kAtOnce = 4;
  const Index pieces = static_cast<Index>(shape.chunk / static_cast<i64>(sizeof(T)));
  const Index extent1 = static_cast<Index>(shape.extent[1]);
  const Index extent2 = static_cast<Index>(shape.extent[2]);
  const Index step = static_cast<Index>(ptx::num_threads());
  const auto offset_of = [&](Index i) {
    const Index row = i / pieces;
    const Index outer = row / extent2;
    return static_cast<i64>(outer / extent1) * shape.stride[0] + static_cast<i64>(outer % extent1) * shape.stride[1] +
           static_cast<i64>(row % extent2) * shape.stride[2] + static_cast<i64>(i % pieces) * static_cast<i64>(sizeof(T));
  };
  for (Index first = begin + static_cast<Index>(ptx::thread_idx()); first < end; first += kAtOnce * step) {
    i64 at[kAtOnce];
    T item[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const Index i = first + static_cast<Index>(j) * step;
      at[j] = i < end ? offset_of(i) : -1;
      if (i < end) item[j] = *reinterpret_cast<const T*>(from + at[j]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (at[j] >= 0) *reinterpret_cast<T*>(to + at[j]) = item[j];
  }
}

template <typename T>
__device__ __forceinline__ void copy_slice(const abi::CopyShape& shape, u8* to, const u8* from, i64 slice) {
  const i64 total = shape.extent[0] * shape.extent[1] * shape.extent[2] * (shape.chunk / static_cast<i64>(sizeof(T)));
  const i64 share = abi::kCopySliceBytes / static_cast<i64>(sizeof(T));
  const i64 begin = slice * share;
  const i64 end = min(total, begin + share);
  if (begin >= total) return;
  if (total < (i64{1} << 31)) {
    copy_slice<T, u32>(shape, to, from, static_cast<u32>(begin), static_cast<u32>(end));
  } else {
    copy_slice<T, i64>(shape, to, from, begin, end);
  }
}

__device__ __forceinline__ void run_copy_pages(const abi::CopyParams& p) {
  ptx::wait_for_previous_grid();
  ptx::start_next_grid();
  for (i64 i = ptx::block_idx(); i < p.num_pairs * p.num_shapes * p.slices; i += ptx::num_blocks()) {
    const i64 page = i / p.slices;
    const abi::CopyShape& shape = p.shapes[page % p.num_shapes];
    const abi::PagePair pair = p.pairs[page / p.num_shapes];
    if (pair.source == pair.destination) continue;
    u8* to = shape.data + pair.destination * shape.page_stride;
    const u8* from = shape.data + pair.source * shape.page_stride;
    const i64 strides = shape.stride[0] | shape.stride[1] | shape.stride[2] | shape.chunk;
    if ((reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from) | static_cast<u64>(strides)) % 16 == 0) {
      copy_slice<Vec16>(shape, to, from, i % p.slices);
    } else {
      copy_slice<u8>(shape, to, from, i % p.slices);
    }
  }
}

}  // namespace girih::page
