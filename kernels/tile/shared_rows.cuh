// Rows of a tile in shared memory, placed so that ldmatrix meets no bank twice: the same 16-byte chunk of eight consecutive rows lies in
// eight different groups of four banks. Rows whose chunks are a multiple of 8 get there by an exclusive or with the row's number and waste
// nothing; others are spread by padding a row to an odd number of chunks.
#pragma once

#include "core/types.cuh"
#include "ptx/memory.cuh"

namespace girih::tile {

constexpr int kChunkBytes = 16;

/// kRowBytes: a multiple of 16. Row 0 must lie at a multiple of 128.
template <int kRowBytes>
struct SharedRows {
  static_assert(kRowBytes % kChunkBytes == 0);
  static constexpr int kChunks = kRowBytes / kChunkBytes;
  static constexpr bool kSwizzled = kChunks % 8 == 0;
  static constexpr int kStride = (kSwizzled ? kChunks : kChunks | 1) * kChunkBytes;

  /// Bytes of `rows` rows (a multiple of 8).
  static __device__ constexpr int bytes(int rows) { return rows * kStride; }
  /// Where chunk `chunk` of row `row` lies.
  static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * kStride + (kSwizzled ? chunk ^ (row & 7) : chunk) * kChunkBytes;
  }
};

/// One lane's addresses for ldmatrix: chunk `lane_chunk + 2 i` of row `lane_row + 8 n`, i and n known to the compiler.
template <int kRowBytes>
struct LaneRows {
  using Rows = SharedRows<kRowBytes>;
  int base;

  /// lane_chunk is 0 or 1 (for at() with an even chunk pair, up to 3).
  __device__ __forceinline__ LaneRows(int lane_row, int lane_chunk)
      : base(ptx::opaque(lane_row * Rows::kStride + (Rows::kSwizzled ? lane_chunk ^ (lane_row & 7) : lane_chunk) * kChunkBytes)) {}

  /// The addresses in the rows at s_rows: what depends on the lane, and of the exclusive or the four that differ. All else is part of the
  /// instructions. Left to itself the compiler keeps every sum in a register of its own, and these kernels have none to spare.
  struct Tile {
    ptx::SharedPointer places[Rows::kSwizzled ? 4 : 1];

    __device__ __forceinline__ ptx::SharedPointer at(int row8, int chunk_pair) const {
      const int chunk = 2 * chunk_pair;
      const int rows = row8 * 8 * Rows::kStride;
      if constexpr (Rows::kSwizzled) return places[chunk_pair & 3] + ((chunk >> 3) * 8 * kChunkBytes + rows);
      return places[0] + (chunk * kChunkBytes + rows);
    }
  };
  /// The same in one register, the exclusive or part of each use.
  struct Place {
    ptx::SharedPointer first;

    __device__ __forceinline__ ptx::SharedPointer at(int row8, int chunk_pair) const {
      const int chunk = 2 * chunk_pair;
      const int rows = row8 * 8 * Rows::kStride;
      if constexpr (!Rows::kSwizzled) return first + (chunk * kChunkBytes + rows);
      return (first ^ (chunk & 7) * kChunkBytes) + ((chunk >> 3) * 8 * kChunkBytes + rows);
    }
  };
  /// Pairs are counted from first_pair on.
  __device__ __forceinline__ Tile in(const u8* s_rows, int first_pair = 0) const {
    Tile tile;
    // s_rows is a multiple of 128, so the exclusive or may come after the sum.
    const ptx::SharedPointer first = ptx::SharedPointer(s_rows) + base;
#pragma unroll
    for (int i = 0; i < (Rows::kSwizzled ? 4 : 1); ++i) tile.places[i] = ptx::opaque(place(first, first_pair + i));
    return tile;
  }
  /// s_rows: at a multiple of 128; first_pair: of the power of two that counts the pairs.
  __device__ __forceinline__ Place place_in(const u8* s_rows, int first_pair) const {
    return {ptx::opaque(place(ptx::SharedPointer(s_rows) + base, first_pair))};
  }

  static __device__ __forceinline__ ptx::SharedPointer place(ptx::SharedPointer first, int pair) {
    if constexpr (!Rows::kSwizzled) return first + pair * 2 * kChunkBytes;
    return (first ^ (pair & 3) * 2 * kChunkBytes) + (pair >> 2) * 8 * kChunkBytes;
  }
};

}  // namespace girih::tile
