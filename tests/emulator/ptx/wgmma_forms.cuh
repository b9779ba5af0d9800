// Twin of kernels/ptx/wgmma_forms.cuh.
#pragma once

#include "ptx/wgmma.cuh"

namespace girih::ptx {

template <typename T>
inline void wgmma_registers_mn(float (&c)[8][4], const u32 (&a)[4], u64 b, bool accumulate, const char* file = __builtin_FILE(),
                               int line = __builtin_LINE()) {
  emulator::issue_product({&c[0][0], &a[0], 0, b, accumulate, true}, 8, kGroupType<T>, {"wgmma_registers_mn", file, line});
}
template <typename T>
inline void wgmma_shared_k(float (&c)[32][4], u64 a, u64 b, bool accumulate, const char* file = __builtin_FILE(),
                           int line = __builtin_LINE()) {
  emulator::issue_product({&c[0][0], nullptr, a, b, accumulate, true}, 32, kGroupType<T>, {"wgmma_shared_k", file, line});
}

}  // namespace girih::ptx
