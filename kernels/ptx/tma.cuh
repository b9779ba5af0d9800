// The copy engine (TMA): boxes of a tensor of up to four dims into shared memory, asynchronously, by one thread each. A box is described by
// a map (src/abi/tensor_map.h) that lies in the kernel's parameters; elements outside the tensor arrive as zeros and count as bytes. sm_90
// on.
#pragma once

#include "abi/tensor_map.h"
#include "core/types.cuh"
#include "ptx/memory.cuh"

namespace girih::ptx {

/// Copies the box at (x0, x1, x2, x3), innermost dim first, to s_destination (a multiple of 1024); its bytes count as arrived at the
/// barrier.
__device__ __forceinline__ void tma_load(u8* s_destination, const abi::TensorMap* map, i32 x0, i32 x1, i32 x2, i32 x3, u64* s_barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
                   shared_address(s_destination)),
               "l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(shared_address(s_barrier))
               : "memory");
}
/// Asks for a box to come to L2.
__device__ __forceinline__ void tma_prefetch(const abi::TensorMap* map, i32 x0, i32 x1, i32 x2, i32 x3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(x3)
               : "memory");
}
/// Asks for the map itself.
__device__ __forceinline__ void tma_prefetch_map(const abi::TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// This thread's writes to shared memory by ordinary means come before what the copy engine and wgmma do after a barrier.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace girih::ptx
