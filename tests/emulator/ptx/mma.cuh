// Twin of kernels/ptx/mma.cuh: layouts as there, computed by the last lane to come (tests/emulator/warp.cc).
#pragma once

#include "core/types.cuh"
#include "emulator/emulator.h"
#include "ptx/memory.cuh"

namespace girih::ptx {

inline void ldmatrix_x4(u32 (&r)[4], SharedPointer row, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::load_matrices({r, row.place}, false, {"ldmatrix_x4", file, line});
}
inline void ldmatrix_x4_trans(u32 (&r)[4], SharedPointer row, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::load_matrices({r, row.place}, true, {"ldmatrix_x4_trans", file, line});
}

inline u32 transpose_8x8(u32 matrix, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::transpose_matrix(matrix, {"transpose_8x8", file, line});
  return matrix;
}

template <typename T>
inline void mma_16x8x16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], const char* file = __builtin_FILE(),
                        int line = __builtin_LINE()) {
  static_assert(kSame<T, f16> || (kSame<T, bf16> && emulator::kArch >= 800));
  emulator::multiply_matrices({c, a, b}, kSame<T, f16> ? emulator::MmaType::f16 : emulator::MmaType::bf16, {"mma_16x8x16", file, line});
}

template <int kArch = emulator::kArch>  // so that the assertion is that of who calls it
inline void mma_16x8x32_e4m3(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
  static_assert(kArch >= 890);
  emulator::multiply_matrices({c, a, b}, emulator::MmaType::e4m3, {"mma_16x8x32_e4m3", file, line});
}

}  // namespace girih::ptx
