// Tensor-core products of one warp, and the loads that bring operands from shared memory into their fragments.
// Fragment layouts (PTX ISA, "Matrix Fragments for mma.m16n8k16"): with group = lane / 4 and pair = lane % 4,
//   A 16x16: a[0] row group, a[1] row group + 8, columns 2 pair, +1; a[2], a[3] the same rows, columns 2 pair + 8, +9
//   B 16x8:  b[0] rows 2 pair, +1, b[1] rows 2 pair + 8, +9, column group
//   C 16x8:  c[0], c[1] row group, columns 2 pair, +1; c[2], c[3] row group + 8
// Of 8-bit elements A is 16x32 and B 32x8: four of them are where a pair is.
#pragma once

#include "core/types.cuh"
#include "ptx/memory.cuh"

namespace girih::ptx {

/// Four 8x8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i (16 bytes, aligned), r[i] receives of matrix
/// i row lane / 4, columns 2 (lane % 4) and the next.
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], SharedPointer row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row.address)
               : "memory");
}
/// The same, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], SharedPointer row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row.address)
               : "memory");
}

/// A matrix that lies in the lanes as ldmatrix_x4 leaves one, transposed.
__device__ __forceinline__ u32 transpose_8x8(u32 matrix) {
  u32 transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(matrix));
  return transposed;
}

/// c += A B, T = f16 or bf16 (bf16 from sm_80 on), f32 sums.
template <typename T>
__device__ __forceinline__ void mma_16x8x16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]);

template <>
__device__ __forceinline__ void mma_16x8x16<f16>(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}

template <>
__device__ __forceinline__ void mma_16x8x16<bf16>(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// The same of e4m3 (from sm_89 on), 32 inner elements at a time. Hardware keeps fewer bits of the sums than f32 has (docs/numerics.md).
__device__ __forceinline__ void mma_16x8x32_e4m3(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if __CUDA_ARCH__ >= 890
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

}  // namespace girih::ptx
