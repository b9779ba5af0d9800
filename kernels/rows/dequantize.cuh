// Codes times their scales: a thread takes eight elements, which share a scale whatever shares one, several times at once so that their
// loads are under way together.
#pragma once

#include "ptx/launch.cuh"
#include "ptx/thread.cuh"
#include "rows/elements.cuh"

namespace girih::rows {

using abi::PartConfig;
using abi::Scaling;

template <PartConfig kC>
struct Dequantizer {
  using X = Storage<kC.x>;
  using Out = Storage<kC.out>;
  static constexpr int kCount = 8;
  static constexpr bool kPacked = kSame<X, e2m1x2>;
  static constexpr int kWords = kPacked ? 1 : 2 * static_cast<int>(sizeof(X));
  static constexpr int kBlock = kC.x == Elem::nvfp4 ? 16 : (kC.x == Elem::mxfp4 || kC.scaling == Scaling::mx ? 32 : 128);

  struct Piece {
    u32 words[kWords];
    float scale;
    i64 row;
    int head, d;
    bool valid;
  };

  const abi::RowsParams& p;
  const abi::RowPart& part;

  __device__ __forceinline__ float scale_of(i64 row, int head, int d) const {
    if constexpr (kC.scaling == Scaling::none) return 1.0F;
    const int block = d / kBlock;
    const u8* at = part.scales;
    if constexpr (kC.scaling == Scaling::row) {
      at += row * part.scale_row_stride + head * part.scale_head_stride;
    } else if constexpr (kC.scaling == Scaling::tile) {
      at += row / 128 * part.scale_row_stride + block * part.scale_block_stride;
    } else if constexpr (kC.scaling == Scaling::block || kC.scaling == Scaling::mx) {
      at += part.swizzled_columns > 0 ? abi::swizzled_offset(row, block, part.swizzled_columns)
                                      : row * part.scale_row_stride + head * part.scale_head_stride + block * part.scale_block_stride;
    }
    if constexpr (kC.x == Elem::nvfp4) {
      return to_f32(e4m3{*at}) * part.global_scale;
    } else if constexpr (kC.x == Elem::mxfp4 || kC.scaling == Scaling::mx) {
      return e8m0_to_f32(*at) * part.global_scale;
    } else {
      return *reinterpret_cast<const float*>(at) * part.global_scale;
    }
  }

  static constexpr u32 kPieces = (kC.dim + kCount - 1) / kCount;

  __device__ __forceinline__ Piece load(u32 index, u32 count) const {
    Piece piece{};
    piece.valid = index < count;
    if (!piece.valid) return piece;
    const u32 whole = index / kPieces;
    piece.d = static_cast<int>(index - whole * kPieces) * kCount;
    const u32 heads = static_cast<u32>(part.heads);
    const u32 row = heads == 1 ? whole : whole / heads;
    piece.row = row;
    piece.head = static_cast<int>(whole - row * heads);
    const u8* source = part.x.data + piece.row * part.x.row_stride + piece.head * part.x.head_stride;
    if constexpr (kC.aligned) {
      const u32* words = reinterpret_cast<const u32*>(source + (kPacked ? piece.d / 2 : piece.d * static_cast<int>(sizeof(X))));
      if constexpr (kWords == 1) {
        piece.words[0] = words[0];
      } else {
#pragma unroll
        for (int i = 0; i < kWords / 2; ++i) {
          const Vec8 pair = reinterpret_cast<const Vec8*>(words)[i];
          piece.words[2 * i] = pair.x[0];
          piece.words[2 * i + 1] = pair.x[1];
        }
      }
    } else if constexpr (kPacked) {
      const int bytes = (min(kCount, kC.dim - piece.d) + 1) / 2;
      for (int i = 0; i < bytes; ++i) piece.words[0] |= static_cast<u32>(source[piece.d / 2 + i]) << (8 * i);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (piece.d + i >= kC.dim) break;
        const u8* at = source + (piece.d + i) * part.x.dim_stride;
        if constexpr (sizeof(X) == 1) {
          piece.words[i / 4] |= static_cast<u32>(*at) << (8 * (i % 4));
        } else if constexpr (sizeof(X) == 2) {
          piece.words[i / 2] |= static_cast<u32>(*reinterpret_cast<const u16*>(at)) << (16 * (i % 2));
        } else {
          piece.words[i] = *reinterpret_cast<const u32*>(at);
        }
      }
    }
    piece.scale = scale_of(piece.row, piece.head, piece.d);
    return piece;
  }

  __device__ __forceinline__ void store(const Piece& piece) const {
    if (!piece.valid) return;
    float x[kCount];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      float y[kPerWord<X>];
      unpack<X>(y, piece.words[w]);
#pragma unroll
      for (int i = 0; i < kPerWord<X>; ++i) x[w * kPerWord<X> + i] = kC.scaling == Scaling::none ? y[i] : y[i] * piece.scale;
    }
    u8* out = part.out.data + piece.row * part.out.row_stride + piece.head * part.out.head_stride + piece.d * part.out.dim_stride;
    if constexpr (kC.aligned) {
      store_vector<Out, kCount>(out, x);
    } else {
      scatter<Out, kCount>(out, part.out.dim_stride, kC.dim - piece.d, x);
    }
  }

  __device__ __forceinline__ void run() const {
    const u32 count = static_cast<u32>(p.rows) * static_cast<u32>(part.heads) * kPieces;
    const u32 threads = static_cast<u32>(ptx::num_threads());
    const u32 first = static_cast<u32>(ptx::block_idx()) * threads * kC.vectors + static_cast<u32>(ptx::thread_idx());
    Piece pieces[kC.vectors];
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) pieces[v] = load(first + static_cast<u32>(v) * threads, count);
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) store(pieces[v]);
  }
};

template <PartConfig kC>
__device__ __forceinline__ void dequantize(const abi::RowsParams& p) {
  ptx::wait_for_previous_grid();
  ptx::start_next_grid();
  const Dequantizer<kC> dequantizer{p, p.parts[0]};
  dequantizer.run();
}

}  // namespace girih::rows
