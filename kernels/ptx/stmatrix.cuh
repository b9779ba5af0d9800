// Matrices from registers to shared memory (sm_90 on), as ldmatrix (mma.cuh) reads them.
#pragma once

#include "core/types.cuh"
#include "ptx/memory.cuh"

namespace girih::ptx {

/// Four 8x8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i (16 bytes, aligned), and r[i] holds of matrix
/// i row lane / 4, columns 2 (lane % 4) and the next.
__device__ __forceinline__ void stmatrix_x4(SharedPointer row, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row.address), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}

}  // namespace girih::ptx
