// Scores of one warp in decode, where keys are the rows of mma and query rows its columns: eight rows cost half of the products that
// sixteen would. A lane holds, of each 16 keys by 8 query rows, two keys (group, group + 8) by two rows (2 pair, + 1), values j = 0..3 in
// this order: key by j / 2, row by j % 2. The eight lanes of a pair share its rows. Up to 16 query rows are two halves; s[keys /
// 16][half][j].
#pragma once

#include "attention/config.cuh"
#include "attention/fragment_softmax.cuh"
#include "attention/problem.cuh"
#include "attention/state.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

/// Key of this lane's value `j` of the 16 keys `g`, within the warp's keys of a step.
__device__ __forceinline__ int column_key(int g, int j) { return 16 * g + ptx::lane_idx() / 4 + 8 * (j / 2); }

template <int kHalves, int kGroups>
__device__ __forceinline__ void negate_columns(float (&s)[kGroups][2][4]) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[g][h][j] = -s[g][h][j];
    }
  }
}

/// Times the scales of the keys (token_head), which lie at s_scales, and `factor`.
template <int kHalves, int kGroups>
__device__ __forceinline__ void scale_columns(const u8* s_scales, float factor, float (&s)[kGroups][2][4]) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const float scale = reinterpret_cast<const float*>(s_scales)[column_key(g, j)] * factor;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        s[g][h][j] *= scale;
        s[g][h][j + 1] *= scale;
      }
    }
  }
}

/// The largest magnitude of this lane's keys' scales.
template <int kGroups>
__device__ __forceinline__ float largest_scale_of_columns(const u8* s_scales) {
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < 2 * kGroups; ++i) {
    largest = ptx::max_number(largest, abs(reinterpret_cast<const float*>(s_scales)[column_key(i / 2, i % 2 * 2)]));
  }
  return largest;
}

/// Hides keys past the end.
template <class Variant, int kHalves, int kGroups>
__device__ __forceinline__ void hide_columns_past_end(float (&s)[kGroups][2][4], int num_keys) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[g][h][j] = column_key(g, j) < num_keys ? s[g][h][j] : kHidden<Variant>;
    }
  }
}

/// Hides what the mask hides from row 2 pair + r of half h. The loop over keys is not unrolled: the printed mask may be long, and few steps
/// need it.
template <class Variant, int kGroups>
__device__ __forceinline__ void hide_masked_column(const typename Variant::Params& params, const typename Variant::MaskRow& row, int h,
                                                   int r, const FragmentKeys& keys, float (&s)[kGroups][2][4]) {
  u32 visible = 0;
#pragma unroll 1
  for (int i = 0; i < 2 * kGroups; ++i) {
    const u32 sees = Variant::mask(params, row, keys.position(8 * i + ptx::lane_idx() / 4)) ? 1U : 0U;
    visible |= sees << i;
  }
#pragma unroll
  for (int i = 0; i < 2 * kGroups; ++i) {
    float& score = s[i / 2][h][i % 2 * 2 + r];
    score = ((visible >> i) & 1U) != 0 ? score : kHidden<Variant>;
  }
}

/// The logits hook over row 2 pair + r of half h: raw products become logits in base-2 units (without softmax, weights).
template <class Variant, int kGroups>
__device__ __forceinline__ void apply_logits_to_column(const typename Variant::Params& params, const typename Variant::LogitsRow& row,
                                                       int h, int r, const FragmentKeys& keys, float factor, float (&s)[kGroups][2][4]) {
  if (Variant::kLogitsPos && keys.list.page_positions) {
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) {
      float& score = s[i / 2][h][i % 2 * 2 + r];
      score = Variant::logits(params, row, score * factor, keys.position(8 * i + ptx::lane_idx() / 4));
      if constexpr (Variant::kSoftmax) score *= kLog2E;
    }
  } else {
    const auto step = Variant::logits_step(params, row, factor, keys.list.kv_pos + keys.first + ptx::lane_idx() / 4);
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) {
      float& score = s[i / 2][h][i % 2 * 2 + r];
      score = logit_of<Variant>(params, step, score, 8 * i);
    }
  }
}

/// What a lane knows of its two rows of a half.
struct ColumnState {
  float m[2];
  float l[2];     // this lane's share
  float base[2];  // joins a key's score before 2^x: kShift - m
};
template <int kShift>
__device__ __forceinline__ ColumnState empty_columns() {
  return {{-kInfinity, -kInfinity}, {0.0F, 0.0F}, {kShift, kShift}};
}

/// The largest of this lane's scores of row 2 pair + r of half h.
template <int kGroups>
__device__ __forceinline__ float top_of_column(const float (&s)[kGroups][2][4], int h, int r) {
  float top = ptx::max_number(s[0][h][r], s[0][h][2 + r]);
#pragma unroll
  for (int g = 1; g < kGroups; ++g) top = ptx::max_number(top, ptx::max_number(s[g][h][r], s[g][h][2 + r]));
  return top;
}

/// Raises a row's maximum to `top` (base-2 units) of any lane that shares it; returns the factor of all that has been summed so far.
template <int kShift>
__device__ __forceinline__ float raise_column(ColumnState& state, int r, float top) {
#pragma unroll
  for (int lanes = 4; lanes < ptx::kWarp; lanes *= 2) top = ptx::max_number(top, ptx::shuffle_xor(top, lanes));
  const float raised = ptx::max_number(state.m[r], top);
  const float correction = exp2_approx(state.m[r] - base_of(raised));
  state.m[r] = raised;
  state.l[r] *= correction;
  state.base[r] = kShift - base_of(raised);
  return correction;
}

/// Scores of row r become weights, which join its sum.
template <int kGroups>
__device__ __forceinline__ void weigh_column(ColumnState& state, int r, float factor, int h, float (&s)[kGroups][2][4]) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int j = r; j < 4; j += 2) {
      s[g][h][j] = exp2_approx(ptx::fma(s[g][h][j], factor, state.base[r]));
      state.l[r] += s[g][h][j];
    }
  }
}

/// The shares of the eight lanes of a row, added.
__device__ __forceinline__ float sum_of_column(float share) {
#pragma unroll
  for (int lanes = 4; lanes < ptx::kWarp; lanes *= 2) share += ptx::shuffle_xor(share, lanes);
  return share;
}

/// Weights of 16 keys by 8 rows as the B operand: keys become the inner index.
template <typename T>
__device__ __forceinline__ void pack_columns(const float (&s)[4], u32 (&b)[2]) {
  b[0] = ptx::transpose_8x8(pack<T>(s[0], s[1]));
  b[1] = ptx::transpose_8x8(pack<T>(s[2], s[3]));
}

}  // namespace girih::attention
