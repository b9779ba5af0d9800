// Who a thread is, and how threads of a block wait for and talk to each other. Blocks and grids are one-dimensional.
#pragma once

#include "core/types.cuh"

namespace girih::ptx {

constexpr int kWarp = 32;
constexpr u32 kAllLanes = 0xffffffffU;

__device__ __forceinline__ int thread_idx() { return static_cast<int>(threadIdx.x); }
__device__ __forceinline__ int block_idx() { return static_cast<int>(blockIdx.x); }
__device__ __forceinline__ int num_threads() { return static_cast<int>(blockDim.x); }
__device__ __forceinline__ int num_blocks() { return static_cast<int>(gridDim.x); }
__device__ __forceinline__ int lane_idx() { return static_cast<int>(threadIdx.x % kWarp); }
/// Uniform over the warp, and known to the compiler to be so.
__device__ __forceinline__ int warp_idx() { return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0); }

/// All threads of the block.
__device__ __forceinline__ void sync_block() { __syncthreads(); }
__device__ __forceinline__ void sync_warp() { __syncwarp(); }
/// `threads` threads (a multiple of 32) that name the same barrier 1..15.
__device__ __forceinline__ void sync_named(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// The same for `threads` of which these do not wait.
__device__ __forceinline__ void arrive_named(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Registers of this warpgroup's threads from here on, a multiple of 8: all four warps, the block within what it was launched with (sm_90a).
template <int kCount>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
/// T: float, int, u32. All lanes of the warp take part.
template <typename T>
__device__ __forceinline__ T shuffle(T value, int lane) {
  return __shfl_sync(kAllLanes, value, lane);
}
template <typename T>
__device__ __forceinline__ T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(kAllLanes, value, mask);
}
__device__ __forceinline__ bool any(bool value) { return __any_sync(kAllLanes, value) != 0; }
__device__ __forceinline__ bool all(bool value) { return __all_sync(kAllLanes, value) != 0; }
__device__ __forceinline__ u32 ballot(bool value) { return __ballot_sync(kAllLanes, value); }
__device__ __forceinline__ int popcount(u32 value) { return __popc(value); }
__device__ __forceinline__ int leading_zeros(u32 value) { return __clz(static_cast<int>(value)); }  // 32 of 0
/// The sum over the lanes of the warp, modulo 2^32, and the largest.
__device__ __forceinline__ u32 sum_warp(u32 value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kAllLanes, value);
#else
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
#endif
}
__device__ __forceinline__ u32 max_warp(u32 value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kAllLanes, value);
#else
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value = max(value, shuffle_xor(value, mask));
  return value;
#endif
}

// Clusters: blocks that see each other's shared memory. Before sm_90 every block is a cluster of its own.
__device__ __forceinline__ int cluster_size() {
#if __CUDA_ARCH__ >= 900
  u32 size;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
  return static_cast<int>(size);
#else
  return 1;
#endif
}
/// This block's number in its cluster.
__device__ __forceinline__ int cluster_rank() {
#if __CUDA_ARCH__ >= 900
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
#else
  return 0;
#endif
}
/// All threads of the cluster; orders their accesses to each other's shared memory.
__device__ __forceinline__ void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();  // the instruction wants whole warps
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
/// Where block `rank` of the cluster has what this block has at s_pointer.
template <typename T>
__device__ __forceinline__ T* in_block(T* s_pointer, int rank) {
#if __CUDA_ARCH__ >= 900
  u64 mapped;
  asm("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(reinterpret_cast<u64>(s_pointer)), "r"(static_cast<u32>(rank)));
  return reinterpret_cast<T*>(mapped);
#else
  return s_pointer;
#endif
}

/// The block's dynamic shared memory, 1024-byte aligned.
__device__ __forceinline__ u8* shared_memory() {
  extern __shared__ __align__(1024) u8 s_dynamic[];
  return s_dynamic;
}

}  // namespace girih::ptx
