// The row operators: norms, activations, rotary positions, quantisation and writes to the paged cache are one pipeline over rows, with the
// stages that a PartConfig asks for: load (a sum with a residual, or an activation) -> normalise -> rotate -> quantise -> store.
// A row's threads hold it in registers, 16 bytes of source each and vector, so that it is read once and written once whatever is done to
// it. Rows of up to 32 threads share a warp and talk by shuffles, longer ones take the whole block. Rows without a stage that must see all
// of them are cut into pieces where they are longer than their threads hold. Several heads of a row are loaded together. Each block works
// once: blocks that go round and load ahead were 5 % slower, since what they hold limits how many there are.
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
  static constexpr int kRound = kVec * kC.threads;  // elements between a thread's vectors
  static constexpr bool kPartners = abi::holds_partners(kC);
  /// Whole vectors of pairs.
  static constexpr bool kPairs =
      kC.aligned && kC.rotation == Rotation::interleaved && kC.rotary_begin % kVec == 0 && kC.rotary % (2 * kVec) == 0;
  static constexpr int kAngles = kPartners ? kC.rotary / 2 / kC.threads : (kPairs ? kLen / 2 : 1);
  /// Nothing is done to the elements: they are stored bit for bit.
  static constexpr bool kCopies =
      kC.x == kC.out && !kTwoOperands && kC.norm == Norm::none && kC.rotation == Rotation::none && kC.scaling == Scaling::none;
  static constexpr bool kQuantizes = kC.scaling != Scaling::none && bits_of_elem(kC.out) <= 8;
  static constexpr bool kNorms = kC.norm != Norm::none;
  /// Weights and biases stay in registers, as they are stored.
  static constexpr bool kKeepsWeights = kNorms && kC.aligned && !kC.head_weights;
  static constexpr int kWeightWords = kVec * static_cast<int>(sizeof(W)) / 4;
  static constexpr int kBlock = kC.out == Elem::nvfp4 ? 16 : (kC.out == Elem::mxfp4 || kC.scaling == Scaling::mx ? 32 : 128);
  static_assert(kPieces == 1 || (kC.norm == Norm::none && kC.rotation == Rotation::none && kC.scaling != Scaling::row));

  /// Which row, and where it belongs.
  struct Where {
    i64 row;
    i64 position;
    abi::TokenPlace place;
    int head;    // the first of kC.heads
    int begin;   // of the piece
    bool valid;  // false: no such row; everything is done to zeros and nothing stored
  };
  /// What was loaded of a row that is on its way.
  struct Raw {
    Vec16 first[kC.heads][kC.vectors];
    Vec16 second[kC.heads][kTwoOperands ? kC.vectors : 1];
  };
  /// Cosines and sines of what a thread rotates.
  struct Angles {
    float cos[kAngles], sin[kAngles];
  };
  struct Weights {
    u32 weight[kKeepsWeights && kC.has_weight ? kC.vectors : 1][kWeightWords];
    u32 bias[kKeepsWeights && kC.has_bias ? kC.vectors : 1][kWeightWords];
  };

  const abi::RowsParams& p;
  const abi::RowPart& part;
  float* s_reduce;
  float* s_row;  // of this row's threads
  int thread;    // of the row's
  int set = 0;   // of numbers that is free

  __device__ __forceinline__ int dim_of(int vector) const { return (vector * kC.threads + thread) * kVec; }

  __device__ __forceinline__ Vec16 load(const u8* row, i64 dim_stride, int d, int dim) const {
    if (kC.aligned) return d < dim ? *reinterpret_cast<const Vec16*>(row + static_cast<i64>(d) * sizeof(X)) : Vec16{};
    return gather<X>(row + d * dim_stride, dim_stride, dim - d);
  }

  __device__ __forceinline__ void load_head(Raw& raw, int h, const u8* x, const u8* second, int begin, int dim) const {
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) {
      const int d = begin + dim_of(v);
      if constexpr (kC.interleaved) {
        raw.first[h][v] = load(x, part.x.dim_stride, 2 * d, 2 * dim);
        raw.second[h][v] = load(x, part.x.dim_stride, 2 * d + kVec, 2 * dim);
      } else {
        raw.first[h][v] = load(x, part.x.dim_stride, d, dim);
        if constexpr (kTwoOperands) raw.second[h][v] = load(second, part.second.dim_stride, d, dim);
      }
    }
  }

  /// Item `index` of `count`: a piece of a row, or some heads of it.
  __device__ __forceinline__ Where load_row(u32 index, u32 count, Raw& raw) const {
    Where in{};
    in.valid = kWholeBlock || index < count;
    const u32 at = in.valid ? index : 0U;
    const u32 whole = kPieces == 1 ? at : at / kPieces;
    in.begin = kPieces == 1 ? 0 : static_cast<int>(at - whole * kPieces) * kPiece;
    const u32 shares = static_cast<u32>(part.heads) / kC.heads;
    const u32 row = shares == 1 ? whole : whole / shares;
    in.row = row;
    in.head = static_cast<int>(whole - row * shares) * kC.heads;
    const int dim = in.valid ? kC.dim : 0;
    const u8* x = part.x.data + in.row * part.x.row_stride + in.head * part.x.head_stride;
    const u8* second = part.second.data + in.row * part.second.row_stride + in.head * part.second.head_stride;
#pragma unroll
    for (int h = 0; h < kC.heads; ++h) {
      load_head(raw, h, x, second, in.begin, dim);
      x += part.x.head_stride;
      second += part.second.head_stride;
    }
    if constexpr (kC.listed) {
      in.place = page::listed_place(p, in.row);
      in.valid = in.valid && in.place.token >= 0;
    } else if constexpr (kC.paged) {
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

  __device__ __forceinline__ void load_angles(const Where& in, Angles& angles) const {
    constexpr int kHalf = kC.rotary / 2;
    const u8* cos = reinterpret_cast<const u8*>(p.cos_sin + in.position * p.cos_sin_stride);
    const u8* sin = cos + kHalf * static_cast<int>(sizeof(float));
    if constexpr (kPartners) {
#pragma unroll
      for (int v = 0; v < kAngles / kVec; ++v) {
        float c[kVec], s[kVec];
        load_dense<float>(c, cos, dim_of(v), kHalf, kC.aligned);
        load_dense<float>(s, sin, dim_of(v), kHalf, kC.aligned);
#pragma unroll
        for (int e = 0; e < kVec; ++e) {
          angles.cos[v * kVec + e] = c[e];
          angles.sin[v * kVec + e] = s[e];
        }
      }
    } else if constexpr (kPairs) {
#pragma unroll
      for (int v = 0; v < kC.vectors; ++v) {
        const int d = dim_of(v) - kC.rotary_begin;
        if (d < 0 || d >= kC.rotary) continue;
        float c[kVec / 2], s[kVec / 2];
        load_dense<float>(c, cos, d / 2, kHalf, true);
        load_dense<float>(s, sin, d / 2, kHalf, true);
#pragma unroll
        for (int e = 0; e < kVec / 2; ++e) {
          angles.cos[v * kVec / 2 + e] = c[e];
          angles.sin[v * kVec / 2 + e] = s[e];
        }
      }
    }
  }

  __device__ __forceinline__ void load_weights(Weights& weights) const {
    if constexpr (kKeepsWeights) {
#pragma unroll
      for (int v = 0; v < kC.vectors; ++v) {
        const int d = dim_of(v);
        if (kMasked && d >= kC.dim) break;
        if constexpr (kC.has_weight) load_words(weights.weight[v], part.weight + d * static_cast<int>(sizeof(W)));
        if constexpr (kC.has_bias) load_words(weights.bias[v], part.bias + d * static_cast<int>(sizeof(W)));
      }
    }
  }

  /// Both operands become the elements that everything after works on.
  __device__ __forceinline__ void combine(const Raw& raw, int h, float (&x)[kLen]) const {
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) {
      if constexpr (kC.interleaved) {
        float pairs[2 * kVec];
        widen_vector<X>(pairs, 0, raw.first[h][v]);
        widen_vector<X>(pairs, kVec, raw.second[h][v]);
#pragma unroll
        for (int e = 0; e < kVec; ++e) x[v * kVec + e] = activate<kC.act, kExact>(pairs[2 * e], pairs[2 * e + 1], part.alpha, part.limit);
      } else {
        widen_vector<X>(x, v * kVec, raw.first[h][v]);
        if constexpr (kTwoOperands) {
          float second[kVec];
          widen_vector<X>(second, 0, raw.second[h][v]);
#pragma unroll
          for (int e = 0; e < kVec; ++e) {
            float& y = x[v * kVec + e];
            y = kC.residual ? y + second[e] : activate<kC.act, kExact>(y, second[e], part.alpha, part.limit);
          }
        }
      }
    }
  }

  /// Lanes of a warp that hold one row.
  static constexpr int kLanes = kWholeBlock ? ptx::kWarp : kC.threads;

  __device__ __forceinline__ float sum_of_warp(float value) const {
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) value += ptx::shuffle_xor(value, mask);
    return value;
  }
  template <int kCount>
  __device__ __forceinline__ float largest_of_lanes(float value) const {
#pragma unroll
    for (int mask = kCount / 2; mask > 0; mask /= 2) value = ptx::max_magnitude(value, ptx::shuffle_xor(value, mask));
    return value;
  }

  /// Each warp's number, known to all threads of the row. One barrier is enough, since the sets take turns: whoever writes to one again has
  /// met those who read it at the barrier of the other.
  template <typename Combine>
  __device__ __forceinline__ float of_all_warps(float value, Combine combine) {
    float* s_set = s_reduce + set;
    set ^= ptx::kWarp;
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
  __device__ __forceinline__ float largest_of_row(float value) {
    value = largest_of_lanes<kLanes>(value);
    if constexpr (kWholeBlock) value = of_all_warps(value, [](float a, float b) { return max(a, b); });
    return value;
  }

  /// 1 / sqrt(x). For 16-bit types by an approximation of one instruction, which takes no subnormal numbers: small ones are scaled.
  __device__ __forceinline__ float root_factor(float x) const {
    if constexpr (kExact) return rsqrt(x);
    const bool small = x < 0x1p-60F;
    return rsqrt_approx(small ? x * 0x1p64F : x) * (small ? 0x1p32F : 1.0F);
  }

  __device__ __forceinline__ void normalise(const Where& in, const Weights& weights, float (&x)[kLen]) {
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
    const float factor = root_factor(sum_of_row(squares) * kShare + part.eps);
    const u8* weight = part.weight + in.head * part.weight_head_stride;
    const u8* bias = part.bias + in.head * part.weight_head_stride;
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) {
      const int d = dim_of(v);
      if (kMasked && d >= kC.dim) break;
      float w[kVec], b[kVec];
      if constexpr (kKeepsWeights) {
        if constexpr (kC.has_weight) widen_words<W>(w, weights.weight[v]);
        if constexpr (kC.has_bias) widen_words<W>(b, weights.bias[v]);
      } else {
        if constexpr (kC.has_weight) load_dense<W>(w, weight, d, kC.dim, kC.aligned);
        if constexpr (kC.has_bias) load_dense<W>(b, bias, d, kC.dim, kC.aligned);
      }
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
  __device__ __forceinline__ void rotate(const Where& in, const Angles& angles, float (&x)[kLen]) {
    const auto turn = [](float& a, float& b, float cos, float sin) {
      const float turned = a * cos - b * sin;
      b = a * sin + b * cos;
      a = turned;
    };
    if constexpr (kPartners) {
      constexpr int kFirst = kC.rotary_begin / kC.threads;
#pragma unroll
      for (int i = 0; i < kAngles; ++i) turn(x[kFirst + i], x[kFirst + kAngles + i], angles.cos[i], angles.sin[i]);
    } else if constexpr (kPairs) {
#pragma unroll
      for (int v = 0; v < kC.vectors; ++v) {
        const int d = dim_of(v) - kC.rotary_begin;
        if (d < 0 || d >= kC.rotary) continue;
#pragma unroll
        for (int i = v * kVec / 2; i < (v + 1) * kVec / 2; ++i) turn(x[2 * i], x[2 * i + 1], angles.cos[i], angles.sin[i]);
      }
    } else {
      rotate_elements(p.cos_sin + in.position * p.cos_sin_stride, x);
    }
  }

  /// The same wherever pairs lie.
  __device__ __forceinline__ void rotate_elements(const float* cos, float (&x)[kLen]) {
    constexpr int kHalf = kC.rotary / 2;
    const float* sin = cos + kHalf;
    if constexpr (kC.rotation == Rotation::half) {
#pragma unroll
      for (int i = 0; i < kLen; ++i) s_row[dim_of(i / kVec) + i % kVec] = x[i];
      sync_row();
    }
#pragma unroll
    for (int i = 0; i < kLen; ++i) {
      const int d = dim_of(i / kVec) + i % kVec - kC.rotary_begin;
      if (d < 0 || d >= kC.rotary) continue;
      if constexpr (kC.rotation == Rotation::half) {
        const int pair = d >= kHalf ? d - kHalf : d;
        const float partner = s_row[kC.rotary_begin + (d >= kHalf ? pair : pair + kHalf)];
        x[i] = x[i] * cos[pair] + (d >= kHalf ? partner : -partner) * sin[pair];
      } else if (i % 2 == 0) {
        // rotary_begin is even, so that a pair never lies in two vectors.
        const float a = x[i];
        x[i] = a * cos[d / 2] - x[i + 1] * sin[d / 2];
        x[i + 1] = a * sin[d / 2] + x[i + 1] * cos[d / 2];
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

  /// Stores a vector of the row's elements from `d` on.
  template <typename T>
  __device__ __forceinline__ void store_piece(u8* row, i64 dim_stride, int d, const float* x) const {
    constexpr int kBits = kSame<T, e2m1x2> ? 4 : 8 * static_cast<int>(sizeof(T));
    if constexpr (kC.aligned) {
      store_vector<T, kVec>(row + static_cast<i64>(d) * kBits / 8, x);
    } else {
      scatter<T, kVec>(row + (kBits == 4 ? d / 2 : d * dim_stride), dim_stride, kC.dim - d, x);
    }
  }

  template <typename T>
  __device__ __forceinline__ void store(u8* row, i64 dim_stride, int begin, const float (&x)[kLen]) const {
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) {
      const int d = begin + dim_of(v);
      if (kMasked && d >= kC.dim) break;
      store_piece<T>(row, dim_stride, d, &x[v * kVec]);
    }
  }

  /// What the row's codes are relative to, stored where it is computed here.
  __device__ __forceinline__ float row_scale(const Where& in, float (&x)[kLen]) {
    if constexpr (kC.scaling == Scaling::row) {
      const ChosenScale chosen = f32_scale(largest_of_row(largest_finite<false>(x)), kLargest<Out>, part.global_scale);
      if (thread == 0 && in.valid) *reinterpret_cast<float*>(scales_of(in)) = chosen.stored;
      return chosen.scale;
    } else {
      const i64 offset = kC.scaling == Scaling::head ? in.head * part.scale_head_stride : 0;
      return *reinterpret_cast<const float*>(part.scales + offset) * part.global_scale;
    }
  }

  /// Codes of a block that neighbours hold, and its scale.
  __device__ __forceinline__ void quantize_block(const Where& in, int d, float (&x)[kVec]) {
    constexpr int kNeighbours = kBlock / kVec;
    static_assert(kNeighbours <= kC.threads && kNeighbours >= 1);
    constexpr bool kFloatScale = kC.scaling == Scaling::block && kC.out != Elem::nvfp4 && kC.out != Elem::mxfp4;
    const float most = largest_of_lanes<kNeighbours>(largest_finite<kSame<Out, e2m1x2>>(x));
    ChosenScale chosen;
    if constexpr (kFloatScale) {
      chosen = f32_scale(most, kLargest<Out>, part.global_scale);
    } else if constexpr (kC.out == Elem::nvfp4) {
      chosen = nvfp4_scale(most, part.global_scale);
    } else {
      chosen = mx_scale(most, largest_exponent(kC.out), part.global_scale);
    }
    if (in.valid && d % kBlock == 0 && d < kC.dim) {
      u8* at = block_scale(in, d / kBlock);
      if constexpr (kFloatScale) {
        *reinterpret_cast<float*>(at) = chosen.stored;
      } else {
        *at = static_cast<u8>(chosen.code);
      }
    }
    if (chosen.scale > 0.0F) {
      Divisor(chosen.scale).divide(x);
    } else {
#pragma unroll
      for (int e = 0; e < kVec; ++e) x[e] = 0.0F;
    }
  }

  /// A vector at a time, so that little waits in registers.
  __device__ __forceinline__ void store_codes(const Where& in, float (&x)[kLen], u8* out) {
    constexpr bool kOneScale = kC.scaling == Scaling::row || kC.scaling == Scaling::tensor || kC.scaling == Scaling::head;
    const Divisor divisor(kOneScale ? row_scale(in, x) : 1.0F);
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) {
      const int d = in.begin + dim_of(v);
      float y[kVec];
#pragma unroll
      for (int e = 0; e < kVec; ++e) y[e] = x[v * kVec + e];
      if constexpr (kOneScale) {
        divisor.divide(y);
      } else {
        quantize_block(in, d, y);
      }
      if (in.valid && (!kMasked || d < kC.dim)) store_piece<Out>(out, part.out.dim_stride, d, y);
    }
  }

  __device__ __forceinline__ u8* out_of(const Where& in) const {
    const abi::RowTensor& t = part.out;
    i64 offset = in.row * t.row_stride;
    if constexpr (kC.paged) offset = in.place.page * part.page_stride + in.place.token * t.row_stride;
    return t.data + offset + in.head * t.head_stride;
  }

  __device__ __forceinline__ void copy(const Where& in, const Vec16 (&x)[kC.vectors], u8* out) const {
    if (!in.valid) return;
#pragma unroll
    for (int v = 0; v < kC.vectors; ++v) {
      const int d = in.begin + dim_of(v);
      if (kMasked && d >= kC.dim) break;
      if constexpr (kC.aligned) {
        *reinterpret_cast<Vec16*>(out + static_cast<i64>(d) * sizeof(X)) = x[v];
      } else {
        scatter_bits<X>(out + d * part.out.dim_stride, part.out.dim_stride, kC.dim - d, x[v]);
      }
    }
  }

  __device__ __forceinline__ void work(const Where& in, const Weights& weights, const Angles& angles, float (&x)[kLen], u8* out) {
    if constexpr (kC.residual) {
      if (in.valid && part.residual_out.data != nullptr) {
        const abi::RowTensor& t = part.residual_out;
        store<X>(t.data + in.row * t.row_stride + in.head * t.head_stride, t.dim_stride, in.begin, x);
      }
    }
    if constexpr (kNorms) normalise(in, weights, x);
    if constexpr (kC.rotation != Rotation::none) rotate(in, angles, x);
    if constexpr (kQuantizes) {
      store_codes(in, x, out);
    } else if (in.valid) {
      store<Out>(out, part.out.dim_stride, in.begin, x);
    }
  }

  /// What block `block` of the part's has to do.
  __device__ __forceinline__ void run(u32 block) {
    const u32 groups = kWholeBlock ? 1U : static_cast<u32>(ptx::num_threads()) / kC.threads;
    const u32 group = kWholeBlock ? 0U : static_cast<u32>(ptx::thread_idx()) / kC.threads;
    const u32 count = static_cast<u32>(p.rows) * (static_cast<u32>(part.heads) / kC.heads) * kPieces;
    Raw raw;
    Weights weights{};
    Angles angles{};
    Where where = load_row(block * groups + group, count, raw);
    load_weights(weights);
    if constexpr (kC.rotation != Rotation::none) load_angles(where, angles);
    u8* out = out_of(where);
#pragma unroll
    for (int h = 0; h < kC.heads; ++h) {
      if constexpr (kCopies) {
        copy(where, raw.first[h], out);
      } else {
        float x[kLen];
        combine(raw, h, x);
        work(where, weights, angles, x, out);
      }
      ++where.head;
      out += part.out.head_stride;
    }
  }
};

/// Parts of one configuration, which share their code.
struct Parts {
  PartConfig config;
  int count;
};

/// All parts, one after another in the order of blocks.
template <Parts... kAll>
__device__ __forceinline__ void run(const abi::RowsParams& p) {
  ptx::wait_for_previous_grid();
  ptx::start_next_grid();
  float* s_reduce = reinterpret_cast<float*>(ptx::shared_memory());
  int block = ptx::block_idx();  // from the next part's first on; -1: done
  int next = 0;
  const auto run_some = [&]<Parts kSome>() {
    constexpr PartConfig kC = kSome.config;
    using Part = Pipeline<kC>;
    int index = next;
    next += kSome.count;
    if (block < 0) return;
    if constexpr (sizeof...(kAll) > 1 || kSome.count > 1) {
      while (index < next && block >= p.parts[index].num_blocks) block -= p.parts[index++].num_blocks;
      if (index == next) return;
    }
    const u32 thread = static_cast<u32>(ptx::thread_idx());
    const u32 group = kC.threads > ptx::kWarp ? 0U : thread / kC.threads;
    const u32 row_thread = kC.threads > ptx::kWarp ? thread : thread % kC.threads;
    Part pipeline{p, p.parts[index], s_reduce, s_reduce + kReduceFloats + group * Part::kPiece, static_cast<int>(row_thread)};
    pipeline.run(static_cast<u32>(block));
    block = -1;
  };
  (run_some.template operator()<kAll>(), ...);
}

}  // namespace girih::rows
