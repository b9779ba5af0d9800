// Barriers in shared memory that count arrivals (PTX mbarrier): a phase ends when all have arrived, and the next begins at once. Who waits
// names the phase by its parity, so one who runs ahead by less than two phases needs to know no more. Before sm_80 the count is kept in
// software: the low word of arrivals so far, the high word of those that a phase takes.
#pragma once

#include "core/types.cuh"
#include "ptx/memory.cuh"

namespace girih::ptx {

/// By one thread, before a barrier of the block.
__device__ __forceinline__ void mbarrier_init(u64* s_barrier, u32 arrivals) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(s_barrier)), "r"(arrivals) : "memory");
#else
  *s_barrier = static_cast<u64>(arrivals) << 32;
#endif
}

/// This thread's earlier writes and reads are done for those who wait.
__device__ __forceinline__ void mbarrier_arrive(u64* s_barrier) {
#if __CUDA_ARCH__ >= 800
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_address(s_barrier)) : "memory");
#else
  __threadfence_block();
  atomicAdd(reinterpret_cast<u32*>(s_barrier), 1U);
#endif
}
/// The same once all of this thread's earlier cp_async copies have landed; does not wait for them.
__device__ __forceinline__ void mbarrier_arrive_after_copies(u64* s_barrier) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(s_barrier)) : "memory");
#else
  mbarrier_arrive(s_barrier);
#endif
}

/// As `count` arrivals (sm_90 on).
__device__ __forceinline__ void mbarrier_arrive_many(u64* s_barrier, u32 count) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0], %1;\n}" ::"r"(shared_address(s_barrier)), "r"(count)
               : "memory");
}
/// As one, and the phase does not end before the copy engine has brought so many bytes more (sm_90 on).
__device__ __forceinline__ void mbarrier_arrive_expect(u64* s_barrier, u32 bytes) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(shared_address(s_barrier)), "r"(bytes)
               : "memory");
}
/// Barriers made by this thread are known to the copy engine.
__device__ __forceinline__ void mbarrier_fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Waits for the end of the phase of this parity: the one at work or the one before it.
__device__ __forceinline__ void mbarrier_wait(u64* s_barrier, u32 parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra WAIT;\n}" ::"r"(
                   shared_address(s_barrier)),
               "r"(parity)
               : "memory");
#elif __CUDA_ARCH__ >= 800
  asm volatile("{\n.reg .pred done;\nWAIT:\nmbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n@!done bra WAIT;\n}" ::"r"(
                   shared_address(s_barrier)),
               "r"(parity)
               : "memory");
#else
  const u32 arrivals = static_cast<u32>(*s_barrier >> 32);
  while ((*reinterpret_cast<volatile u32*>(s_barrier) / arrivals & 1U) == parity) {}
  __threadfence_block();
#endif
}

}  // namespace girih::ptx
