// Rows of the wgmma family's tiles, which are stacks of rows of 128 bytes (64 dims of 16 bits, 128 of 8), swizzled as wgmma and the copy
// engine have them; and how a warp copies such rows where the copy engine does not.
#pragma once

#include "attention/key_stream.cuh"
#include "core/types.cuh"
#include "ptx/memory.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

inline constexpr int kStackRow = 128;   // bytes
inline constexpr int kCopiedRows = 16;  // at a time, by a warp

/// Bytes from a stack's beginning to 16-byte chunk `chunk` of row `row`.
__device__ __forceinline__ int stack_offset(int row, int chunk) { return row * kStackRow + ((chunk ^ row) & 7) * 16; }

/// kRow bytes of rows, of places that lie in shared memory, into kStacks stacks, by one warp: kCopiedRows at a time, that many rounded up.
/// s_rows: where a multiple of 8 rows of the first stack begins; from: the first byte of each row.
template <int kRow, int kStacks, int kStackBytes>
__device__ __forceinline__ void copy_placed_rows(u8* s_rows, const u8* const* s_places, int rows, int from = 0) {
  const int row = ptx::lane_idx() / 8;
  const int chunk = ptx::lane_idx() % 8;
  ptx::SharedPointer s_chunk = ptx::opaque(ptx::SharedPointer(s_rows + stack_offset(row, chunk)));
  s_places += row;
#pragma unroll 1
  for (int first = 0; first < rows; first += kCopiedRows) {
    const u8* g_rows[kCopiedRows / 4];
#pragma unroll
    for (int turn = 0; turn < kCopiedRows / 4; ++turn) g_rows[turn] = s_places[4 * turn];
#pragma unroll
    for (int turn = 0; turn < kCopiedRows / 4; ++turn) {
      // Four rows further a chunk's number differs in its third bit.
      const ptx::SharedPointer s_turn = (turn % 2 == 0 ? s_chunk : s_chunk ^ 64) + 4 * turn * kStackRow;
#pragma unroll
      for (int i = 0; i < kStacks; ++i) {
        const int at = i * kStackRow + 16 * chunk;
        if (at < kRow) ptx::cp_async_16(s_turn + i * kStackBytes, g_rows[turn] + from + at);
      }
    }
    s_chunk = s_chunk + kCopiedRows * kStackRow;
    s_places += kCopiedRows;
  }
}

/// kRows rows of 16 bits by one warp, of which lane i has the place of row i % kRows, into stacks of 64 dims. s_rows: where a multiple of 8
/// rows of the first stack begins.
template <int kStacks, int kStackBytes, int kRows = ptx::kWarp>
__device__ __forceinline__ void copy_own_rows(u8* s_rows, const u8* g_row) {
  const int lane = ptx::opaque(ptx::lane_idx());  // what follows from it is worked out anew each time: registers are dear
  const int row = lane / 8;
  const int chunk = lane % 8;
  const ptx::SharedPointer s_chunk = ptx::opaque(ptx::SharedPointer(s_rows + stack_offset(row, chunk)));
  const u8* next = shuffle_pointer(g_row, row);
#pragma unroll
  for (int first = 0; first < kRows; first += 4) {
    const u8* source = next + 16 * chunk;
    if (first + 4 < kRows) next = shuffle_pointer(g_row, first + 4 + row);
    // Four rows further a chunk's number differs in its third bit.
    const ptx::SharedPointer s_turn = (first % 8 == 0 ? s_chunk : s_chunk ^ 64) + first * kStackRow;
#pragma unroll
    for (int i = 0; i < kStacks; ++i) ptx::cp_async_16(s_turn + i * kStackBytes, source + i * kStackRow);
  }
}
/// The same of 32 rows element by element, each lane its own row's dims [begin, end).
template <int kStackBytes>
__device__ __forceinline__ void gather_own_row(u8* s_rows, const u8* g_row, i64 dim_stride, int begin, int end) {
#pragma unroll 1
  for (int dim = begin; dim < end; ++dim) {
    u8* s_chunk = s_rows + dim / 64 * kStackBytes + stack_offset(ptx::lane_idx(), dim % 64 / 8);
    reinterpret_cast<u16*>(s_chunk)[dim % 8] = *reinterpret_cast<const u16*>(g_row + dim * dim_stride);
  }
}

}  // namespace girih::attention
