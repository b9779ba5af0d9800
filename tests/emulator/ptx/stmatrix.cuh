// Twin of kernels/ptx/stmatrix.cuh.
#pragma once

#include "core/types.cuh"
#include "emulator/emulator.h"
#include "ptx/memory.cuh"

namespace girih::ptx {

inline void stmatrix_x4(SharedPointer row, const u32 (&r)[4], const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  static_assert(emulator::kArch >= 900);
  emulator::store_matrices({r, const_cast<u8*>(row.place)}, {"stmatrix_x4", file, line});
}

}  // namespace girih::ptx
