// Twin of kernels/ptx/tma.cuh: a map holds an abi::TensorBox. Boxes land when a thread waits for them and not before.
#pragma once

#include "abi/tensor_map.h"
#include "core/types.cuh"
#include "emulator/emulator.h"

namespace girih::ptx {

inline void tma_load(u8* s_destination, const abi::TensorMap* map, i32 x0, i32 x1, i32 x2, i32 x3, u64* s_barrier,
                     const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::issue_box(s_destination, map, {x0, x1, x2, x3}, s_barrier, {"tma_load", file, line});
}
inline void tma_prefetch(const abi::TensorMap*, i32, i32, i32, i32) {}
inline void tma_prefetch_map(const abi::TensorMap*) {}
inline void fence_async_proxy() {}

}  // namespace girih::ptx
