// Sums and searches of a block, in integers only, so that no order of threads can be seen in a result.
#pragma once

#include "core/types.cuh"
#include "ptx/memory.cuh"
#include "ptx/thread.cuh"

namespace girih::sampling {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / ptx::kWarp;
constexpr int kChunkBytes = 16;  // that a lane takes at a time

/// All threads that share a row: of the cluster.
__device__ __forceinline__ void sync_row() {
  if (ptx::cluster_size() == 1) {
    ptx::sync_block();
  } else {
    ptx::sync_cluster();
  }
}

__device__ __forceinline__ u64 shuffle(u64 value, int lane) {
  const u32 low = ptx::shuffle(static_cast<u32>(value), lane);
  const u32 high = ptx::shuffle(static_cast<u32>(value >> 32), lane);
  return static_cast<u64>(high) << 32 | low;
}

/// Modulo 2^64, by sums of 26 bits.
__device__ __forceinline__ u64 warp_sum(u64 value) {
  constexpr u32 kMask = (1U << 26) - 1U;
  const u64 low = ptx::sum_warp(static_cast<u32>(value) & kMask);
  const u64 middle = ptx::sum_warp(static_cast<u32>(value >> 26) & kMask);
  const u64 high = ptx::sum_warp(static_cast<u32>(value >> 52));
  return low + (middle << 26) + (high << 52);
}
__device__ __forceinline__ u64 warp_max(u64 value) {
  const u32 high = ptx::max_warp(static_cast<u32>(value >> 32));
  const u32 low = ptx::max_warp(static_cast<u32>(value >> 32) == high ? static_cast<u32>(value) : 0);
  return static_cast<u64>(high) << 32 | low;
}

/// kWarps numbers at the start of the block's shared memory.
__device__ __forceinline__ u64* block_scratch() { return reinterpret_cast<u64*>(ptx::shared_memory()); }

/// Of all threads, to all threads.
__device__ __attribute__((noinline)) inline u64 block_sum(u64 value) {
  u64* s_scratch = block_scratch();
  value = warp_sum(value);
  ptx::sync_block();
  if (ptx::lane_idx() == 0) s_scratch[ptx::thread_idx() / ptx::kWarp] = value;
  ptx::sync_block();
  u64 sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += s_scratch[w];
  return sum;
}
__device__ __attribute__((noinline)) inline u64 block_max(u64 value) {
  u64* s_scratch = block_scratch();
  value = warp_max(value);
  ptx::sync_block();
  if (ptx::lane_idx() == 0) s_scratch[ptx::thread_idx() / ptx::kWarp] = value;
  ptx::sync_block();
  u64 most = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = max(most, s_scratch[w]);
  return most;
}

/// The sum over the threads before this one, and over all.
struct Scan {
  u64 before;
  u64 total;
};
__device__ __attribute__((noinline)) inline Scan block_scan(u64 value) {
  u64* s_scratch = block_scratch();
  u64 inclusive = value;
#pragma unroll
  for (int distance = 1; distance < ptx::kWarp; distance *= 2) {
    const u64 other = shuffle(inclusive, max(ptx::lane_idx() - distance, 0));
    if (ptx::lane_idx() >= distance) inclusive += other;
  }
  ptx::sync_block();
  if (ptx::lane_idx() == ptx::kWarp - 1) s_scratch[ptx::thread_idx() / ptx::kWarp] = inclusive;
  ptx::sync_block();
  Scan scan{0, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w == ptx::thread_idx() / ptx::kWarp) scan.before = scan.total;
    scan.total += s_scratch[w];
  }
  scan.before += inclusive - value;
  return scan;
}

/// A sum of 64 bits in two words of shared memory: an addition carries when its low word wraps, which one addition sees.
__device__ __forceinline__ void add_shared(u32* s_pair, u64 value) {
  const u32 low = static_cast<u32>(value);
  const u32 old = ptx::atomic_add_shared(s_pair, low);
  const u32 high = static_cast<u32>(value >> 32) + (old + low < old ? 1U : 0U);
  if (high != 0) ptx::atomic_add_shared(s_pair + 1, high);
}
__device__ __forceinline__ u64 read_pair(const u32* s_pair) { return static_cast<u64>(s_pair[1]) << 32 | s_pair[0]; }

}  // namespace girih::sampling
