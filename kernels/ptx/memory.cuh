// Loads with cache hints, asynchronous copies into shared memory, and what orders memory between blocks.
#pragma once

#include "core/types.cuh"

namespace girih::ptx {

__device__ __forceinline__ u32 shared_address(const void* s_pointer) { return static_cast<u32>(__cvta_generic_to_shared(s_pointer)); }

/// A place in shared memory as instructions take it: what is added to one that is opaque becomes part of the instruction.
struct SharedPointer {
  u32 address;
  SharedPointer() = default;
  __device__ __forceinline__ explicit SharedPointer(u32 at) : address(at) {}
  __device__ __forceinline__ SharedPointer(const void* s_pointer) : address(shared_address(s_pointer)) {}
  __device__ __forceinline__ SharedPointer operator+(int bytes) const { return SharedPointer(address + static_cast<u32>(bytes)); }
  __device__ __forceinline__ SharedPointer operator^(int bits) const { return SharedPointer(address ^ static_cast<u32>(bits)); }
};
/// The address as descriptors hold it.
__device__ __forceinline__ u32 shared_word(SharedPointer pointer) { return pointer.address; }
/// Keeps the place in a register: the compiler neither works it out again at each use nor keeps sums with it in registers of their own.
__device__ __forceinline__ SharedPointer opaque(SharedPointer pointer) {
  asm volatile("" : "+r"(pointer.address));
  return pointer;
}
/// Keeps the compiler from working out ahead, and keeping in registers, what depends on the value.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// 16 bytes that are read once by this kernel and written by no one meanwhile: bypass L1.
__device__ __forceinline__ Vec16 load_stream(const void* g_source) {
  Vec16 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
               : "l"(g_source));
  return v;
}

/// Brings the line of an address near, into L2; nothing waits for it.
__device__ __forceinline__ void prefetch_l2(const void* g_address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(g_address)); }

/// The same into L1, where loads of this multiprocessor find it.
__device__ __forceinline__ void prefetch_l1(const void* g_address) { asm volatile("prefetch.global.L1 [%0];" ::"l"(g_address)); }

/// Copies 16 bytes (both addresses 16-byte aligned) to shared memory, or writes zeros where !valid (nothing is read then). Lands after
/// cp_async_wait and a barrier. Before sm_80 the copy is done at once.
__device__ __forceinline__ void cp_async_16(void* s_destination, const void* g_source, bool valid) {
#if __CUDA_ARCH__ >= 800
  const u32 size = valid ? 16U : 0U;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(s_destination)), "l"(g_source), "r"(size)
               : "memory");
#else
  Vec16 v{};
  if (valid) v = *static_cast<const Vec16*>(g_source);
  *static_cast<Vec16*>(s_destination) = v;
#endif
}
/// The same, always valid; sm_80 on.
__device__ __forceinline__ void cp_async_16(SharedPointer destination, const void* g_source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(destination.address), "l"(g_source) : "memory");
}
/// How long copies stay in L2: as usual, or so that they are the first to leave it.
__device__ __forceinline__ u64 l2_policy(bool leaves_first) {
#if __CUDA_ARCH__ >= 800
  u64 first;
  u64 usual;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(usual));
  return leaves_first ? first : usual;
#else
  return 0;
#endif
}
/// cp_async_16 with a policy.
__device__ __forceinline__ void cp_async_16(void* s_destination, const void* g_source, bool valid, u64 policy) {
#if __CUDA_ARCH__ >= 800
  const u32 size = valid ? 16U : 0U;
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(shared_address(s_destination)),
               "l"(g_source), "r"(size), "l"(policy)
               : "memory");
#else
  cp_async_16(s_destination, g_source, valid);
#endif
}
/// The same for 4 bytes.
__device__ __forceinline__ void cp_async_4(void* s_destination, const void* g_source, bool valid) {
#if __CUDA_ARCH__ >= 800
  const u32 size = valid ? 4U : 0U;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(s_destination)), "l"(g_source), "r"(size) : "memory");
#else
  *static_cast<u32*>(s_destination) = valid ? *static_cast<const u32*>(g_source) : 0U;
#endif
}
/// Closes a group of this thread's copies.
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Waits until at most `kPending` of this thread's latest groups are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

/// Relaxed, device scope; returns the old value.
__device__ __forceinline__ int atomic_add(int* g_counter, int value) { return atomicAdd(g_counter, value); }
/// The same, and what this thread has written or has seen (of its block, before a barrier) is visible to whoever sees the new value so;
/// it sees what those before it have written.
__device__ __forceinline__ int atomic_add_ordered(int* g_counter, int value) {
  int old;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;" : "=r"(old) : "l"(g_counter), "r"(value) : "memory");
  return old;
}
/// Shared memory, of any block of the cluster; relaxed, returns the old value.
__device__ __forceinline__ u32 atomic_add_shared(u32* s_counter, u32 value) { return atomicAdd(s_counter, value); }
/// The larger one stays.
__device__ __forceinline__ void atomic_max_shared(u32* s_most, u32 value) { atomicMax(s_most, value); }

}  // namespace girih::ptx
