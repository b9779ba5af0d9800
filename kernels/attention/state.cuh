// Attention states. A row's state is (m, l, o): the running maximum in base-2 units, the sum of exp2(s - m), and the unnormalised output.
// Empty is (-inf, 0, 0). The fold is the only way two states meet, in a tile (batch-invariant chunks) and in the merge of parts alike, so
// both give the same bits. Without softmax a state is only o, and the fold a sum.
#pragma once

#include "attention/config.cuh"
#include "attention/problem.cuh"
#include "core/math.cuh"
#include "ptx/math.cuh"

namespace girih::attention {

struct RowState {
  float m;
  float l;
};
__device__ constexpr RowState empty_state() { return {-kInfinity, 0.0F}; }

/// Not where every score was NaN: that l is NaN.
__device__ __forceinline__ bool is_empty(RowState s) { return s.m == -kInfinity && s.l == 0.0F; }

/// What scores are taken relative to: m, or 0 where nothing has been seen, so that hidden scores (-inf) give weight 0 and not NaN.
__device__ __forceinline__ float base_of(float m) { return m == -kInfinity ? 0.0F : m; }

/// Raises m to the largest score of a block; returns the factor of l and o so far. A NaN `top` leaves m: the NaN enters through l.
__device__ __forceinline__ float raise_maximum(float& m, float top) {
  const float raised = top > m ? top : m;
  const float correction = exp2_approx(m - base_of(raised));
  m = raised;
  return correction;
}

/// How o and o2 of two states combine.
struct Fold {
  float keep, add;
  bool leave;  // the second state is empty: o stays, bit for bit
  bool take;   // the first state is empty: o2 as it is
};

__device__ constexpr Fold take_fold() { return {.keep = 0.0F, .add = 1.0F, .leave = false, .take = true}; }
/// Without softmax.
__device__ constexpr Fold sum_fold() { return {.keep = 1.0F, .add = 1.0F, .leave = false, .take = false}; }

/// s := s + s2.
__device__ __forceinline__ Fold fold_state(RowState& s, RowState s2) {
  if (is_empty(s2)) return {.keep = 1.0F, .add = 0.0F, .leave = true, .take = false};
  if (is_empty(s)) {
    s = s2;
    return take_fold();
  }
  const float top = s2.m > s.m ? s2.m : s.m;
  const Fold fold = {.keep = exp2_approx(s.m - top), .add = exp2_approx(s2.m - top), .leave = false, .take = false};
  s.l = ptx::fma(s2.l, fold.add, s.l * fold.keep);
  s.m = top;
  return fold;
}

__device__ __forceinline__ float fold_value(const Fold& fold, float o, float o2) {
  const float both = ptx::fma(o2, fold.add, o * fold.keep);
  return fold.leave ? o : fold.take ? o2 : both;
}

// ------------------------------------------------------------------------------------------------------------------ f32 rows in memory

/// kN (1, 2 or a multiple of 4) floats at a place aligned to them.
template <int kN>
__device__ __forceinline__ void load_floats(const float* source, float (&x)[kN]) {
  if constexpr (kN % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kN; i += 4) {
      const Vec16 v = *reinterpret_cast<const Vec16*>(source + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i + j] = float_of(v.x[j]);
    }
  } else if constexpr (kN == 2) {
    const Vec8 v = *reinterpret_cast<const Vec8*>(source);
    x[0] = float_of(v.x[0]);
    x[1] = float_of(v.x[1]);
  } else {
    x[0] = *source;
  }
}
template <int kN>
__device__ __forceinline__ void store_floats(float* target, const float (&x)[kN]) {
  if constexpr (kN % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kN; i += 4) {
      *reinterpret_cast<Vec16*>(target + i) = Vec16{bits_of(x[i]), bits_of(x[i + 1]), bits_of(x[i + 2]), bits_of(x[i + 3])};
    }
  } else if constexpr (kN == 2) {
    *reinterpret_cast<Vec8*>(target) = Vec8{bits_of(x[0]), bits_of(x[1])};
  } else {
    *target = x[0];
  }
}

// ------------------------------------------------------------------------------------------------------------------ chunks

/// The fold so far of a tile that is reduced chunk by chunk (batch_invariant). It lies in memory (the unit's rows stay in L2), so that a
/// family's registers hold one chunk only. The thread that writes a value must be the one that reads it back.
template <Config c, bool kSoftmax>
struct ChunkRow {
  float* g_o;
  float* g_ml;
  Fold fold;

  /// Row `row` of the tile; folds what came before into `state`, the chunk's. `first`: nothing came before. Every thread that holds values
  /// of the row calls it; then, after a barrier among them, one calls write_state().
  static __device__ __forceinline__ ChunkRow begin(const Args& p, int row, RowState& state, bool first) {
    const i64 at = static_cast<i64>(ptx::block_idx()) * c.tile_rows + row;
    ChunkRow chunk = {p.chunk_o + at * c.part_stride(), p.chunk_ml + 2 * at, take_fold()};
    if (first) return chunk;
    if constexpr (kSoftmax) {
      RowState folded = {chunk.g_ml[0], chunk.g_ml[1]};
      chunk.fold = fold_state(folded, state);
      state = folded;
    } else {
      chunk.fold = sum_fold();
    }
    return chunk;
  }
  __device__ __forceinline__ void write_state(RowState state) const {
    g_ml[0] = state.m;
    g_ml[1] = state.l;
  }
  /// o := fold so far + o, and becomes the fold so far.
  template <int kN>
  __device__ __forceinline__ void fold_values(int dim, float (&o)[kN]) const {
    if (!fold.take) {
      float before[kN];
      load_floats(g_o + dim, before);
#pragma unroll
      for (int i = 0; i < kN; ++i) o[i] = fold_value(fold, before[i], o[i]);
    }
    store_floats(g_o + dim, o);
  }
};

}  // namespace girih::attention
