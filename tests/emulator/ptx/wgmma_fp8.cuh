// Twin of kernels/ptx/wgmma_fp8.cuh, computed as those of wgmma.cuh are.
#pragma once

#include "core/types.cuh"
#include "emulator/emulator.h"
#include "ptx/wgmma.cuh"

namespace girih::ptx {

template <int kTiles>
inline void wgmma_shared_e4m3(float (&c)[kTiles][4], u64 a, u64 b, bool accumulate, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  emulator::issue_product({&c[0][0], nullptr, a, b, accumulate}, kTiles, emulator::MmaType::e4m3, {"wgmma_shared_e4m3", file, line});
}
template <int kTiles>
inline void wgmma_registers_e4m3(float (&c)[kTiles][4], const u32 (&a)[4], u64 b, bool accumulate, const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
  emulator::issue_product({&c[0][0], &a[0], 0, b, accumulate}, kTiles, emulator::MmaType::e4m3, {"wgmma_registers_e4m3", file, line});
}

}  // namespace girih::ptx
