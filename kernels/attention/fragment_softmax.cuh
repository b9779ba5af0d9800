// Scores of one warp as mma leaves them, on their way to weights: bounds, masks and hooks, then the running maximum and sum. A lane holds,
// for each tile of 16 rows by 8 keys, two rows (group, group + 8) by two keys (2 pair, + 1); four neighbouring lanes share a row.
// Sums stay apart in those four lanes until the tile ends. Maxima are in base-2 units, as in state.cuh.
#pragma once

#include "attention/config.cuh"
#include "attention/problem.cuh"
#include "attention/state.cuh"
#include "attention/variant.cuh"
#include "core/convert.cuh"
#include "core/math.cuh"
#include "ptx/math.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

/// Column of value `j` of key tile `n` within the step's keys.
__device__ __forceinline__ int fragment_key(int n, int j) { return 8 * n + 2 * (ptx::lane_idx() % 4) + (j & 1); }

/// What a hidden key's score becomes.
template <class Variant>
constexpr float kHidden = Variant::kSoftmax ? -kInfinity : 0.0F;

/// What the steps of an item need of it all the time. Positions are looked up where they are needed; hooks of the logits need them always.
struct StepRange {
  i32 end;         // keys
  i32 full_begin;  // no mask code within [full_begin, full_end)
  i32 full_end;
  KeyList positions;

  __device__ __forceinline__ bool all_visible(int begin, int keys) const {
    return begin >= full_begin && min(begin + keys, end) <= full_end;
  }
};
template <class Variant>
__device__ __forceinline__ StepRange step_range(const Args& p, const abi::WorkItem& item) {
  StepRange range = {.end = item.kv_end, .full_begin = item.full_begin, .full_end = item.full_end, .positions = {}};
  if constexpr (Variant::kLogitsPos) range.positions = key_list(p, item);
  return range;
}

/// The keys of a score fragment: key `first` + fragment_key(), those from `end` on do not exist.
struct FragmentKeys {
  const KeyList& list;
  i32 first;
  i32 end;

  /// Logical position; of a key past the end any.
  __device__ __forceinline__ i64 position(int column) const {
    const i32 key = first + column;
    if (!list.page_positions) return list.kv_pos + key;
    return key < end ? list.position(key, list.slot_of(key)) : 0;
  }
};

template <int kKeyTiles>
__device__ __forceinline__ void negate(float (&s)[kKeyTiles][4]) {
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[n][j] = -s[n][j];
  }
}

/// Key tile `n` times the scales of its keys (token_head), which lie at s_scales, and `factor`.
__device__ __forceinline__ void scale_keys(const u8* s_scales, int n, float factor, float (&s)[4]) {
  float scale[2];
  load_floats(reinterpret_cast<const float*>(s_scales) + fragment_key(n, 0), scale);
#pragma unroll
  for (int j = 0; j < 4; ++j) s[j] *= scale[j & 1] * factor;
}
template <int kKeyTiles>
__device__ __forceinline__ void scale_keys(const u8* s_scales, float (&s)[kKeyTiles][4]) {
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) scale_keys(s_scales, n, 1.0F, s[n]);
}
/// The largest magnitude of the scales of this lane's keys.
template <int kKeyTiles>
__device__ __forceinline__ float largest_scale_of_keys(const u8* s_scales) {
  float largest = 0.0F;
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
    float scale[2];
    load_floats(reinterpret_cast<const float*>(s_scales) + fragment_key(n, 0), scale);
    largest = ptx::max_number(largest, ptx::max_number(abs(scale[0]), abs(scale[1])));
  }
  return largest;
}

/// The part of a plane's scales that is common to a head's keys and stays out of the products.
template <Scale scale>
__device__ __forceinline__ float common_scale(const abi::PlaneArg& plane, i32 kv_head) {
  if constexpr (scale == Scale::token_head || scale == Scale::block) return plane.global_scale;
  return head_scale<scale>(plane, kv_head);
}

/// Hides keys past the end.
template <class Variant, int kKeyTiles>
__device__ __forceinline__ void hide_past_end(float (&s)[kKeyTiles][4], int num_keys) {
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[n][j] = fragment_key(n, j) < num_keys ? s[n][j] : kHidden<Variant>;
  }
}

/// Hides what the mask hides from one of the lane's rows (half 0: row group, 1: row group + 8). The loop over keys is not unrolled: the
/// printed mask may be long, and few steps need it.
template <class Variant, int kKeyTiles>
__device__ __forceinline__ void hide_masked(const typename Variant::Params& params, const typename Variant::MaskRow& row, int half,
                                            const FragmentKeys& keys, float (&s)[kKeyTiles][4]) {
  u32 visible = 0;
#pragma unroll 1
  for (int i = 0; i < 2 * kKeyTiles; ++i) {
    const u32 sees = Variant::mask(params, row, keys.position(fragment_key(i / 2, i % 2))) ? 1U : 0U;
    visible |= sees << i;
  }
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float& score = s[n][2 * half + j];
      score = ((visible >> (2 * n + j)) & 1U) != 0 ? score : kHidden<Variant>;
    }
  }
}

/// The logits hook over one of the lane's rows: raw products become logits.
template <class Variant, int kKeyTiles>
__device__ __forceinline__ void apply_logits(const typename Variant::Params& params, const typename Variant::LogitsRow& row, int half,
                                             const FragmentKeys& keys, float factor, float (&s)[kKeyTiles][4]) {
  const auto apply = [&](const auto& position) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = s[n][2 * half + j];
        score = Variant::logits(params, row, score * factor, position(n, j));
      }
    }
  };
  // The branch is out of the loop: adjacent keys need one addition each.
  if constexpr (!Variant::kLogitsPos) {
    apply([](int, int) { return i64{0}; });
  } else if (keys.list.page_positions) {
    apply([&](int n, int j) { return keys.position(fragment_key(n, j)); });
  } else {
    const i64 first = keys.list.kv_pos + keys.first + fragment_key(0, 0);
    apply([&](int n, int j) { return first + (8 * n + j); });
  }
}

/// What a lane knows of its two rows of a 16-row tile.
struct FragmentState {
  float m[2] = {-kInfinity, -kInfinity};
  float l[2] = {0.0F, 0.0F};  // this lane's share
};

/// Of one of the lane's rows, what this lane holds.
template <int kKeyTiles>
__device__ __forceinline__ float top_of_lane(const float (&s)[kKeyTiles][4], int half) {
  float top = ptx::max_number(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
  for (int n = 1; n < kKeyTiles; ++n) top = ptx::max_number(top, ptx::max_number(s[n][2 * half], s[n][2 * half + 1]));
  return top;
}
/// The largest score of one of the lane's rows, over the four lanes that share it.
template <int kKeyTiles>
__device__ __forceinline__ float top_of_row(const float (&s)[kKeyTiles][4], int half) {
  float top = top_of_lane(s, half);
  top = ptx::max_number(top, ptx::shuffle_xor(top, 1));
  return ptx::max_number(top, ptx::shuffle_xor(top, 2));
}

/// A row's base need not be its maximum: as long as scores are at most 2^kSlack times above it, weights stay small enough for f16 and lose
/// nothing, since all is relative. So it is raised (and what has been summed corrected) a few times a tile only.
constexpr float kSlack = 8.0F;
/// Whether a score of this lane is too far above its row's base. kShift: see raise_maxima.
template <int kShift = 0, int kKeyTiles>
__device__ __forceinline__ bool exceeds_base(const FragmentState& state, const float (&s)[kKeyTiles][4], float factor) {
  constexpr float kRoom = kSlack + kShift;
  return top_of_lane(s, 0) * factor > state.m[0] + kRoom || top_of_lane(s, 1) * factor > state.m[1] + kRoom;
}

/// Raises the maxima to `tops`, which `factor` > 0 brings to base-2 units, and the sums with them. `correction`: the factor of all that has
/// been summed so far; true where some lane's is not 1. kShift: maxima are kept lowered by it, so that weights are up to 2^kShift, and up to
/// 2^(kShift + kSlack) in the end.
template <int kShift = 0>
__device__ __forceinline__ bool raise_maxima(FragmentState& state, const float (&tops)[2], float factor, float (&correction)[2]) {
  bool changed = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float raised = ptx::max_number(state.m[half], tops[half] * factor - kShift);
    changed = changed || raised != state.m[half];
    correction[half] = exp2_approx(state.m[half] - base_of(raised));
    state.m[half] = raised;
    state.l[half] *= correction[half];
  }
  return ptx::any(changed);
}

/// Nothing has been seen yet.
template <int kTiles>
__device__ __forceinline__ void clear_sums(FragmentState& state, float (&o)[kTiles][4]) {
  state = {};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) o[n][j] = 0.0F;
  }
}

/// Sums of one 16-row tile to the new maxima.
template <int kTiles>
__device__ __forceinline__ void correct_sums(const float (&correction)[2], float (&o)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) o[n][j] *= correction[j / 2];
  }
}

/// Scores of one key tile become weights, which join the sums.
__device__ __forceinline__ void weigh(FragmentState& state, float (&s)[4], float factor) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    s[j] = exp2_approx(ptx::fma(s[j], factor, -base_of(state.m[j / 2])));
    state.l[j / 2] += s[j];
  }
}

/// The shares of the four lanes of a row, added.
__device__ __forceinline__ float sum_of_row(float share) {
  share += ptx::shuffle_xor(share, 1);
  return share + ptx::shuffle_xor(share, 2);
}

/// Weights of two neighbouring key tiles as the A operand of 16 keys.
template <typename T>
__device__ __forceinline__ void pack_weights(const float (&low)[4], const float (&high)[4], u32 (&a)[4]) {
  a[0] = pack<T>(low[0], low[1]);
  a[1] = pack<T>(low[2], low[3]);
  a[2] = pack<T>(high[0], high[1]);
  a[3] = pack<T>(high[2], high[3]);
}

/// The unit of a warp's sums where weights carry scales of V's keys (token_head) and must fit f16: a power of two that no scale so far
/// exceeds. The scales are multiplied by its inverse.
struct ValueScale {
  float unit = 0x1p-126F;
  float inverse = 0x1p126F;

  /// `largest`: of this lane's next scales, magnitudes. Returns the factor of all that has been summed so far, the same for all lanes.
  __device__ __forceinline__ float raise(float largest) {
    if (!ptx::any(largest > unit)) return 1.0F;
#pragma unroll
    for (int lanes = 1; lanes < ptx::kWarp; lanes *= 2) largest = ptx::max_number(largest, ptx::shuffle_xor(largest, lanes));
    const u32 power = min((bits_of(largest) + 0x007fffffU) & 0x7f800000U, bits_of(0x1p126F));
    const float correction = unit * float_of(bits_of(0x1p127F) - power);
    unit = float_of(power);
    inverse = float_of(bits_of(0x1p127F) - power);
    return correction;
  }
};

/// The factor that brings raw products to base-2 units, without its sign; see signed_factor.
template <Config c, class Variant>
struct ScoreFactor {
  float raw;       // to natural units, where the logits hook wants them; else to base-2 units
  float to_base2;  // of what raise_maxima and weigh are given: > 0, so that maxima may be taken before it

  static __device__ __forceinline__ ScoreFactor make(const Args& p, const abi::SegmentArg& segment, i32 kv_head) {
    const float raw = p.score_factor * common_scale<c.k_scale>(segment.k, kv_head);
    if constexpr (!kOfProducts) return {raw, kLog2E};
    const float magnitude = abs(raw);
    return {raw, magnitude < 0x1p-126F ? 0x1p-126F : magnitude};  // 0 would make NaN of a hidden key's -inf
  }
  /// Whether raw products meet to_base2 themselves.
  static constexpr bool kOfProducts = !Variant::kHasLogits && Variant::kSoftmax;
  /// The factor (to_base2 with kOfProducts, else raw) for products that must be multiplied by `inverse`, a power of two, besides.
  __device__ __forceinline__ float of_row(float inverse) const {
    if constexpr (!kOfProducts) return raw * inverse;
    const float magnitude = abs(raw) * inverse;
    return magnitude < 0x1p-126F ? 0x1p-126F : (magnitude < 0x1.fffffep127F ? magnitude : 0x1.fffffep127F);
  }
  /// Whether scores must change their sign before they meet to_base2.
  __device__ __forceinline__ bool negative() const { return raw < 0.0F; }
};

}  // namespace girih::attention
