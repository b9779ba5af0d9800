// The row operators: norms, activations, rotary positions, quantisation and writes to the paged cache are one pipeline over rows, with the
// stages that a PartConfig asks for: load (a sum with a residual, or an activation) -> normalise -> rotate -> quantise -> store.
// A row's threads hold it in registers, 16 bytes of source each and vector, so that it is read once and written once whatever is done to
// it; the next row's loads are under way while one is worked on. Rows of up to 32 threads share a warp and talk by shuffles, longer ones
// take the whole block. Rows without a stage that must see all of them are cut into pieces where they are longer than their threads hold.
#pragma once

#include "page/places.cuh"
#include "ptx/launch.cuh"
#include "ptx/thread.cuh"
#include "rows/activation.cuh"
#include "rows/elements.cuh"
#include "rows/quantize.cuh"

namespace girih::rows {

using abi::Norm;
using abi::PartConfig;
using abi::Rotation;
using abi::Scaling;

/// Shared memory: two sets of a number for each warp, then the rows of rotations.
constexpr int kReduceFloats = 64;

template <PartConfig kC>
struct Pipeline {
  using X = Storage<kC.x>;
  using W = Storage<kC.weight>;
  using Out = Storage<kC.out>;
  static constexpr int kVec = 16 / static_cast<int>(sizeof(X));
  static constexpr int kLen = kVec * kC.vectors;    // elements of a thread
  static constexpr int kPiece = kLen * kC.threads;  // elements of a row's threads
  static constexpr int kPieces = (kC.dim + kPiece - 1) / kPiece;
  static constexpr bool kWholeBlock = kC.threads > ptx::kWarp;
  static constexpr bool kActivates = kC.act != Act::none;
  static constexpr bool kTwoOperands = kC.residual || kActivates;
  static constexpr bool kExact = sizeof(X) == 4;
  static constexpr bool kMasked = kPieces * kPiece != kC.dim;
  static constexpr int kBlock = kC.out == Elem::nvfp4 ? 16 : (kC.out == Elem::mxfp4 || kC.scaling == Scaling::mx ? 32 : 128);
  static_assert(kPieces == 1 || (kC.norm == Norm::none && kC.rotation == Rotation::none && kC.scaling != Scaling::row));

  /// Which row, and where it belongs.
  struct Where {
    i64 row;
    i64 position;
    abi::TokenPlace place;
    int head;
    int begin;   // of the piece
    bool valid;  // false: no such row; everything is done to zeros and nothing stored
  };
  /// What was loaded of a row that is on its way.
  struct Raw {
    Vec16 first[kC.vectors];
    Vec16 second[kTwoOperands ? kC.vectors : 1];
  };

  const abi::RowsParams& p;
  const abi::RowPart& part;
  float* s_reduce;
  float* s_row;  // of this row's threads
  int thread;    // of the row's
  int& parity;   // which of the two sets is next; parts go on where others have stopped

  __device__ __forceinline__ int dim_of(int vector) const { return (vector * kC.threads + thread) * kVec; }

  __device__ __forceinline__ Vec16 load(const u8* row, i64 dim_stride, int d, int dim) const {
    if (kC.aligned) return d < dim ? *reinterpret_cast<const Vec16*>(row + static_cast<i64>(d) * sizeof(X)) : Vec16{};
    return gather<X>(row + d * dim_stride, dim_stride, dim - d);
  }

  __device__ __forceinline__ Where load_row(i64 index, i64 count, Raw& raw) const {
    Where in{};
    in.valid = index < count;
    const i64 at = in.valid ? index : 0;
    const i64 whole = kPieces == 1 ? at : at / kPieces;
    in.begin = kPieces == 1 ? 0 : static_cast<int>(at - whole * kPieces) * kPiece;
    in.row = part.heads == 1 ? whole : static_cast<i64>(static_cast<u32>(whole) / static_cast<u32>(part.heads));
    in.head = part.heads == 1 ? 0 : static_cast<int>(whole - in.row * part.heads);
    const i64 offset = in.row * part.x.row_stride + in.head * part.x.head_stride;
    const i64 second_offset = in.row * part.second.row_stride + in.head * part.second.head_stride;
    const int dim = in.valid ? kC.dim : 0;
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) {
      const int d = in.begin + dim_of(v);
      if constexpr (kC.interleaved) {
        raw.first[v] = load(part.x.data + offset, part.x.dim_stride, 2 * d, 2 * dim);
        raw.second[v] = load(part.x.data + offset, part.x.dim_stride, 2 * d + kVec, 2 * dim);
      } else {
        raw.first[v] = load(part.x.data + offset, part.x.dim_stride, d, dim);
        if constexpr (kTwoOperands) raw.second[v] = load(part.second.data + second_offset, part.second.dim_stride, d, dim);
      }
    }
    if constexpr (kC.paged) {
      const page::PlannedKey key = page::key_of(p, in.row);
      in.place = key.place;
      in.position = key.position;
      in.valid = in.valid && key.place.token >= 0;
    }
    if constexpr (kC.rotation != Rotation::none) {
      if (p.positions != nullptr || p.indptr != nullptr) {
        in.position = page::position_of(p, in.row);
      } else if constexpr (!kC.paged) {
        in.position = page::planned_key(p, in.row).position;
      }
      // Outside of the table: nothing sensible can be computed, and nothing outside may be read.
      in.position = min(max(in.position, i64{0}), p.num_positions - 1);
    }
    return in;
  }

  /// Both operands become the elements that everything after works on.
  __device__ __forceinline__ void combine(const Raw& raw, float (&x)[kLen]) const {
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) {
      if constexpr (kC.interleaved) {
        float pairs[2 * kVec];
        widen_vector<X>(pairs, 0, raw.first[v]);
        widen_vector<X>(pairs, kVec, raw.second[v]);
#pragma unroll
        for (int e = 0; e < kVec; ++e) x[v * kVec + e] = activate<kC.act, kExact>(pairs[2 * e], pairs[2 * e + 1], part.alpha, part.limit);
      } else {
        widen_vector<X>(x, v * kVec, raw.first[v]);
        if constexpr (kTwoOperands) {
          float second[kVec];
          widen_vector<X>(second, 0, raw.second[v]);
#pragma unroll
          for (int e = 0; e < kVec; ++e) {
            float& y = x[v * kVec + e];
            y = kC.residual ? y + second[e] : activate<kC.act, kExact>(y, second[e], part.alpha, part.limit);
          }
        }
      }
    }
  }

  __device__ __forceinline__ float sum_of_warp(float value) const {
    constexpr int kLanes = kWholeBlock ? ptx::kWarp : kC.threads;
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) value += ptx::shuffle_xor(value, mask);
    return value;
  }
  __device__ __forceinline__ u32 largest_of_warp(u32 value, int lanes) const {
#pragma unroll
    for (int mask = ptx::kWarp / 2; mask > 0; mask /= 2)
      if (mask < lanes) value = max(value, ptx::shuffle_xor(value, mask));
    return value;
  }

  /// Each warp's number, known to all threads of the row; two sets take turns, so that one barrier is enough.
  template <typename Combine>
  __device__ __forceinline__ float of_all_warps(float value, Combine combine) {
    float* s_set = s_reduce + parity * 32;
    parity ^= 1;
    if (ptx::lane_idx() == 0) s_set[thread / ptx::kWarp] = value;
    ptx::sync_block();
    float all = s_set[0];
#pragma unroll
    for (int w = 1; w < kC.threads / ptx::kWarp; ++w) all = combine(all, s_set[w]);
    return all;
  }
  __device__ __forceinline__ float sum_of_row(float value) {
    value = sum_of_warp(value);
    if constexpr (kWholeBlock) value = of_all_warps(value, [](float a, float b) { return a + b; });
    return value;
  }
  __device__ __forceinline__ float largest_of_row(u32 magnitude) {
    magnitude = largest_of_warp(magnitude, kWholeBlock ? ptx::kWarp : kC.threads);
    float value = float_of(magnitude);
    if constexpr (kWholeBlock) value = of_all_warps(value, [](float a, float b) { return max(a, b); });
    return value;
  }

  __device__ __forceinline__ void normalise(const Where& in, float (&x)[kLen]) {
    constexpr float kShare = 1.0F / static_cast<float>(kC.dim);
    if constexpr (kC.norm == Norm::layer) {
      float sum = 0.0F;
#pragma unroll
      for (int i = 0; i < kLen; ++i) sum += x[i];
      const float mean = sum_of_row(sum) * kShare;
#pragma unroll
      for (int i = 0; i < kLen; ++i) x[i] = !kMasked || dim_of(i / kVec) + i % kVec < kC.dim ? x[i] - mean : 0.0F;
    }
    float squares = 0.0F;
#pragma unroll
    for (int i = 0; i < kLen; ++i) squares += x[i] * x[i];
    const float factor = rsqrt(sum_of_row(squares) * kShare + part.eps);
    const u8* weight = part.weight + in.head * part.weight_head_stride;
    const u8* bias = part.bias + in.head * part.weight_head_stride;
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) {
      const int d = dim_of(v);
      if (kMasked && d >= kC.dim) break;
      float w[kVec], b[kVec];
      if constexpr (kC.has_weight) load_dense<W>(w, weight, d, kC.dim, kC.aligned);
      if constexpr (kC.has_bias) load_dense<W>(b, bias, d, kC.dim, kC.aligned);
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        float& y = x[v * kVec + e];
        y *= factor;
        if constexpr (kC.has_weight) y *= w[e] + part.weight_offset;
        if constexpr (kC.has_bias) y += b[e];
      }
    }
  }

  __device__ __forceinline__ void sync_row() const {
    if constexpr (kWholeBlock) {
      ptx::sync_block();
    } else {
      ptx::sync_warp();
    }
  }

  /// Element d of the rotated part is pair d mod rotary / 2 (half) or d / 2 (interleaved).
  __device__ __forceinline__ void rotate(const Where& in, float (&x)[kLen]) {
    constexpr int kHalf = kC.rotary / 2;
    const float* cos = p.cos_sin + in.position * p.cos_sin_stride;
    const float* sin = cos + kHalf;
    if constexpr (kC.rotation == Rotation::half) {
#pragma unroll
      for (int i = 0; i < kLen; ++i) s_row[dim_of(i / kVec) + i % kVec] = x[i];
      sync_row();
    }
    // Whole vectors of pairs: the table is read as vectors, too.
    constexpr bool kPairs =
        kC.aligned && kC.rotation == Rotation::interleaved && kC.rotary_begin % kVec == 0 && kC.rotary % (2 * kVec) == 0;
    constexpr bool kVectors = kC.aligned && kC.rotation == Rotation::half && kC.rotary_begin % kVec == 0 && kHalf % kVec == 0;
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) {
      const int d = dim_of(v) - kC.rotary_begin;
      if constexpr (kVectors) {
        if (d < 0 || d >= kC.rotary) continue;
        const bool upper = d >= kHalf;
        const int pair = upper ? d - kHalf : d;
        const float* partner = s_row + kC.rotary_begin + (upper ? pair : pair + kHalf);
        float c[kVec], s[kVec];
        load_dense<float>(c, reinterpret_cast<const u8*>(cos), pair, kHalf, true);
        load_dense<float>(s, reinterpret_cast<const u8*>(sin), pair, kHalf, true);
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
          float& y = x[v * kVec + e];
          y = y * c[e] + (upper ? partner[e] : -partner[e]) * s[e];
        }
      } else if constexpr (kPairs) {
        if (d < 0 || d >= kC.rotary) continue;
        float c[kVec / 2], s[kVec / 2];
        load_dense<float>(c, reinterpret_cast<const u8*>(cos), d / 2, kHalf, true);
        load_dense<float>(s, reinterpret_cast<const u8*>(sin), d / 2, kHalf, true);
#pragma unroll
        for (int e = 0; e < kVec / 2; ++e) {
          float& a = x[v * kVec + 2 * e];
          float& b = x[v * kVec + 2 * e + 1];
          const float turned = a * c[e] - b * s[e];
          b = a * s[e] + b * c[e];
          a = turned;
        }
      } else {
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
          const int i = d + e;
          if (i < 0 || i >= kC.rotary) continue;
          float& y = x[v * kVec + e];
          if constexpr (kC.rotation == Rotation::half) {
            const int pair = i >= kHalf ? i - kHalf : i;
            const float partner = s_row[kC.rotary_begin + (i >= kHalf ? pair : pair + kHalf)];
            y = y * cos[pair] + (i >= kHalf ? partner : -partner) * sin[pair];
          } else if (i % 2 == 0) {
            // rotary_begin is even, so that a pair never lies in two vectors.
            float& z = x[v * kVec + e + 1];
            const float a = y;
            y = a * cos[i / 2] - z * sin[i / 2];
            z = a * sin[i / 2] + z * cos[i / 2];
          }
        }
      }
    }
    if constexpr (kC.rotation == Rotation::half) sync_row();
  }

  __device__ __forceinline__ u8* scales_of(const Where& in) const {
    i64 offset = in.row * part.scale_row_stride;
    if constexpr (kC.paged) offset = in.place.page * part.scale_page_stride + in.place.token * part.scale_row_stride;
    return part.scales + offset + in.head * part.scale_head_stride;
  }

  /// The scale of block `block` of the row.
  __device__ __forceinline__ u8* block_scale(const Where& in, int block) const {
    if (part.swizzled_columns > 0) return part.scales + abi::swizzled_offset(in.row, block, part.swizzled_columns);
    return scales_of(in) + block * part.scale_block_stride;
  }

  /// Divides by scales, which are stored where they are computed: what is left are codes to be rounded.
  __device__ __forceinline__ void quantize(const Where& in, float (&x)[kLen]) {
    constexpr bool kCodes = kC.out != Elem::f32 && kC.out != Elem::f16 && kC.out != Elem::bf16;
    if constexpr (kCodes && kC.scaling == Scaling::row) {
      u32 most = 0;
#pragma unroll
      for (int i = 0; i < kLen; ++i) most = max(most, finite_magnitude(x[i]));
      const ChosenScale chosen = f32_scale(largest_of_row(most), kLargest<Out>, part.global_scale);
      if (thread == 0 && in.valid) *reinterpret_cast<float*>(scales_of(in)) = chosen.stored;
#pragma unroll
      for (int i = 0; i < kLen; ++i) x[i] = x[i] / chosen.scale;
    } else if constexpr (kCodes && (kC.scaling == Scaling::tensor || kC.scaling == Scaling::head)) {
      const i64 offset = kC.scaling == Scaling::head ? in.head * part.scale_head_stride : 0;
      const float scale = *reinterpret_cast<const float*>(part.scales + offset) * part.global_scale;
#pragma unroll
      for (int i = 0; i < kLen; ++i) x[i] = x[i] / scale;
    } else if constexpr (kCodes) {
      constexpr int kLanes = kBlock / kVec;  // neighbours that hold one block
      static_assert(kLanes <= kC.threads && kLanes >= 1);
#pragma unroll
      for (int v = 0; v < kC.vectors; ++v) {
        u32 most = 0;
#pragma unroll
        for (int e = 0; e < kVec; ++e) most = max(most, finite_magnitude(x[v * kVec + e]));
        most = largest_of_warp(most, kLanes);
        ChosenScale chosen;
        if constexpr (kC.scaling == Scaling::block && (kC.out != Elem::nvfp4 && kC.out != Elem::mxfp4)) {
          chosen = f32_scale(float_of(most), kLargest<Out>, part.global_scale);
        } else if constexpr (kC.out == Elem::nvfp4) {
          chosen = nvfp4_scale(float_of(most), part.global_scale);
        } else {
          chosen = mx_scale(float_of(most), largest_exponent(kC.out), part.global_scale);
        }
        const int d = in.begin + dim_of(v);
        if (in.valid && d % kBlock == 0 && d < kC.dim) {
          u8* at = block_scale(in, d / kBlock);
          if constexpr (kC.scaling == Scaling::block && (kC.out != Elem::nvfp4 && kC.out != Elem::mxfp4)) {
            *reinterpret_cast<float*>(at) = chosen.stored;
          } else {
            *at = static_cast<u8>(chosen.code);
          }
        }
#pragma unroll
        for (int e = 0; e < kVec; ++e) x[v * kVec + e] = chosen.scale > 0.0F ? x[v * kVec + e] / chosen.scale : 0.0F;
      }
    }
  }

  template <typename T>
  __device__ __forceinline__ void store(u8* row, i64 dim_stride, int begin, const float (&x)[kLen]) const {
    constexpr int kBits = kSame<T, e2m1x2> ? 4 : 8 * static_cast<int>(sizeof(T));
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) {
      const int d = begin + dim_of(v);
      if (kMasked && d >= kC.dim) break;
      if constexpr (kC.aligned) {
        store_vector<T, kVec>(row + static_cast<i64>(d) * kBits / 8, &x[v * kVec]);
      } else {
        scatter<T, kVec>(row + (kBits == 4 ? d / 2 : d * dim_stride), dim_stride, kC.dim - d, &x[v * kVec]);
      }
    }
  }

  __device__ __forceinline__ void work(const Where& in, float (&x)[kLen]) {
    if constexpr (kC.residual) {
      if (in.valid && part.residual_out.data != nullptr) {
        const abi::RowTensor& t = part.residual_out;
        store<X>(t.data + in.row * t.row_stride + in.head * t.head_stride, t.dim_stride, in.begin, x);
      }
    }
    if constexpr (kC.norm != Norm::none) normalise(in, x);
    if constexpr (kC.rotation != Rotation::none) rotate(in, x);
    if constexpr (kC.scaling != Scaling::none) quantize(in, x);
    if (!in.valid) return;
    const abi::RowTensor& t = part.out;
    i64 offset = in.row * t.row_stride;
    if constexpr (kC.paged) offset = in.place.page * part.page_stride + in.place.token * t.row_stride;
    store<Out>(t.data + offset + in.head * t.head_stride, t.dim_stride, in.begin, x);
  }

  /// Rows `item` groups, item + num_blocks groups, ... of the part. Where it is: the block's index among those of all parts.
  __device__ __forceinline__ void run(i64 first_item) {
    constexpr bool kShared = !kWholeBlock;
    const int groups = kShared ? ptx::num_threads() / kC.threads : 1;
    const int group = kShared ? ptx::thread_idx() / kC.threads : 0;
    const i64 count = p.rows * part.heads * kPieces;
    const i64 items = ceil_div(count, static_cast<i64>(groups));
    const i64 step = ptx::num_blocks();
    i64 item = first_item;
    if (item >= items) return;
    Raw raw;
    Where where = load_row(item * groups + group, count, raw);
    while (true) {
      float x[kLen];
      combine(raw, x);
      const Where current = where;
      item += step;
      const bool more = item < items;
      if (more) where = load_row(item * groups + group, count, raw);
      work(current, x);
      if (!more) return;
    }
  }
};

/// Blocks that part `kC` of so many rows and heads gives work to.
template <PartConfig kC>
__device__ __forceinline__ i64 items_of(const abi::RowsParams& p, const abi::RowPart& part) {
  const int groups = kC.threads > ptx::kWarp ? 1 : ptx::num_threads() / kC.threads;
  return ceil_div(p.rows * part.heads * Pipeline<kC>::kPieces, static_cast<i64>(groups));
}

/// All parts, one after another: a block begins each at the index that follows the blocks of the part before, so that short parts share
/// the device.
template <PartConfig... kParts>
__device__ __forceinline__ void run(const abi::RowsParams& p) {
  ptx::wait_for_previous_grid();
  ptx::start_next_grid();
  float* s_reduce = reinterpret_cast<float*>(ptx::shared_memory());
  i64 before = 0;
  int index = 0;
  int parity = 0;
  const auto run_part = [&]<PartConfig kC>() {
    using Part = Pipeline<kC>;
    const abi::RowPart& part = p.parts[index++];
    const int row_thread = kC.threads > ptx::kWarp ? ptx::thread_idx() : ptx::thread_idx() % kC.threads;
    const int group = kC.threads > ptx::kWarp ? 0 : ptx::thread_idx() / kC.threads;
    Part pipeline{p, part, s_reduce, s_reduce + kReduceFloats + group * Part::kPiece, row_thread, parity};
    const i64 blocks = ptx::num_blocks();
    const i64 shift = before % blocks;
    i64 first = ptx::block_idx() - shift;
    if (first < 0) first += blocks;
    pipeline.run(first);
    before += items_of<kC>(p, part);
  };
  (run_part.template operator()<kParts>(), ...);
}

}  // namespace girih::rows
