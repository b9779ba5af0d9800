// Scores of one warp as mma leaves them, on their way to weights: bounds, masks and hooks, then the running maximum and sum. A lane holds,
// for each tile of 16 rows by 8 keys, two rows (group, group + 8) by two keys (2 pair, + 1); four neighbouring lanes share a row.
// Sums stay apart in those four lanes until the tile ends. Maxima are in base-2 units, as in state.cuh.
#pragma once

#include "attention/config.cuh"
#include "attention/fragments.cuh"
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

/// Positions are asked for in most steps: by hooks of the logits, and by masks of which nothing is proven.
template <class Variant>
constexpr bool kKeepsPositions = Variant::kLogitsPos || Variant::kMaskAtRun;

/// What the steps of an item need of it all the time. Other variants look positions up where they are needed.
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
  if constexpr (kKeepsPositions<Variant>) range.positions = key_list(p, item);
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

/// The mask over the 32 keys from `first` on, of which those from `end` on do not exist, for a row of the lane's own: bit i, key first + i
/// is visible. All lanes of the warp together. `proven`: the plan says that all are (StepRange::all_visible), whatever the mask would say
/// of them: so it is in segments that are not masked.
template <class Variant>
__device__ __forceinline__ u32 visible_keys(const typename Variant::Params& params, const typename Variant::MaskRow& row,
                                            const FragmentKeys& keys, bool proven) {
  const u32 exist = low_bits(keys.end - keys.first);
  const u32 shown = proven ? ptx::kAllLanes : 0U;  // no branch: fp8's kernels would spill for it
  if (!keys.list.page_positions) return exist & (shown | Variant::mask_word(params, row, keys.list.kv_pos + keys.first));
  const i64 own = keys.position(ptx::lane_idx());
  u32 visible = 0;
#pragma unroll 1
  for (int i = 0; i < ptx::kWarp; ++i) visible |= (Variant::mask(params, row, of_lane(own, i)) ? 1U : 0U) << i;
  return exist & (shown | visible);
}

/// Hides keys that `visible` does not have from one of the lane's rows.
template <class Variant, int kKeyTiles>
__device__ __forceinline__ void hide(u32 visible, int half, float (&s)[kKeyTiles][4]) {
  const u32 own = visible >> fragment_key(0, 0);
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float& score = s[n][2 * half + j];
      score = (own & (1U << (8 * n + j))) != 0 ? score : kHidden<Variant>;
    }
  }
}

/// What the logits hook needs for one of the lane's rows over a step's keys, which have consecutive positions.
template <class Variant>
__device__ __forceinline__ auto logits_step(const typename Variant::Params& params, const typename Variant::LogitsRow& row,
                                            const FragmentKeys& keys, float factor) {
  return Variant::logits_step(params, row, factor, keys.list.kv_pos + keys.first + fragment_key(0, 0));
}
/// The logit of a raw product in base-2 units, without softmax the weight; `column` as in fragment_key, less the lane's first one.
template <class Variant, class Step>
__device__ __forceinline__ float logit_of(const typename Variant::Params& params, const Step& step, float raw, int column) {
  const float core = Variant::logits_core(params, step, raw, column);
  if constexpr (!Variant::kLogitsScaled) return core;
  if constexpr (Variant::kLogitsScaled) return ptx::fma(core, step.scale, step.offset);
}

/// Logits that are the score plus a multiple of the column and a number are summed by the products themselves: these begin with the sum of
/// the rest over `factor`, of which `inverse` is the reciprocal. `row`: of the warp's rows the one that has the lane's number; what the
/// rows need is worked out once by a lane each and passed on.
template <class Variant, int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void begin_scores(const typename Variant::Params& params, const typename Variant::LogitsRow& row,
                                             const FragmentKeys& keys, float factor, float inverse, float (&s)[kRowTiles][kKeyTiles][4]) {
  const auto own = Variant::logits_step(params, row, factor, keys.list.kv_pos + keys.first);
  const float own_slope = own.slope * inverse;
  const float own_base = own.base * inverse;
  const float first = static_cast<float>(fragment_key(0, 0));
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int lane = 16 * t + 8 * half + ptx::lane_idx() / 4;
      const float slope = ptx::shuffle(own_slope, lane);
      const float base = ptx::fma(slope, first, ptx::shuffle(own_base, lane));
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) s[t][n][2 * half + j] = ptx::fma(slope, static_cast<float>(8 * n + j), base);
      }
    }
  }
}

/// The logits hook over one of the lane's rows: raw products become logits in base-2 units (without softmax, weights). `kAnyPositions`:
/// keys may lie at positions of their own.
template <class Variant, bool kAnyPositions = true, int kKeyTiles>
__device__ __forceinline__ void apply_logits(const typename Variant::Params& params, const typename Variant::LogitsRow& row, int half,
                                             const FragmentKeys& keys, float factor, float (&s)[kKeyTiles][4]) {
  if (kAnyPositions && Variant::kLogitsPos && keys.list.page_positions) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = s[n][2 * half + j];
        score = Variant::logits(params, row, score * factor, keys.position(fragment_key(n, j)));
        if constexpr (Variant::kSoftmax) score *= kLog2E;
      }
    }
  } else {
    const auto step = logits_step<Variant>(params, row, keys, factor);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = s[n][2 * half + j];
        score = logit_of<Variant>(params, step, score, 8 * n + j);
      }
    }
  }
}

/// The same of a logistic function's hook (Variant::kLogitsLogistic) where all keys are seen and positions are consecutive: four scores
/// share a reciprocal.
template <class Variant, int kKeyTiles>
__device__ __forceinline__ void apply_shared_logistic(const typename Variant::Params& params, const typename Variant::LogitsRow& row,
                                                      int half, const FragmentKeys& keys, float factor, float (&s)[kKeyTiles][4]) {
  const auto step = logits_step<Variant>(params, row, keys, factor);
#pragma unroll
  for (int n = 0; n < kKeyTiles; n += 2) {
    float x[4];
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = Variant::logits_argument(params, step, s[n + i / 2][2 * half + i % 2], 8 * (n + i / 2) + i % 2);
    logistic_approx(x, y);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& score = s[n + i / 2][2 * half + i % 2];
      score = y[i];
      if constexpr (Variant::kLogitsScaled) score = ptx::fma(y[i], step.scale, step.offset);
    }
  }
}

/// What a lane knows of its two rows of a 16-row tile.
struct FragmentState {
  float m[2] = {-kInfinity, -kInfinity};
  float l[2] = {0.0F, 0.0F};  // this lane's share
};

/// Of one of the lane's rows, what this lane holds. kChains: so many maxima grow side by side, where few warps hide each other's latency.
template <int kChains = 1, int kKeyTiles>
__device__ __forceinline__ float top_of_lane(const float (&s)[kKeyTiles][4], int half) {
  float tops[kChains];
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
    const float top = ptx::max_number(s[n][2 * half], s[n][2 * half + 1]);
    tops[n % kChains] = n < kChains ? top : ptx::max_number(tops[n % kChains], top);
  }
#pragma unroll
  for (int i = kChains / 2; i > 0; i /= 2) {
#pragma unroll
    for (int j = 0; j < i; ++j) tops[j] = ptx::max_number(tops[j], tops[j + i]);
  }
  return tops[0];
}
/// The largest score of one of the lane's rows, over the four lanes that share it.
template <int kChains = 1, int kKeyTiles>
__device__ __forceinline__ float top_of_row(const float (&s)[kKeyTiles][4], int half) {
  float top = top_of_lane<kChains>(s, half);
  top = ptx::max_number(top, ptx::shuffle_xor(top, 1));
  return ptx::max_number(top, ptx::shuffle_xor(top, 2));
}

/// A row's base need not be its maximum: as long as scores are at most 2^kSlack times above it, weights stay small enough for their type
/// and lose nothing, since all is relative. So it is raised (and what has been summed corrected) a few times a tile only, even where logits
/// grow from key to key (ALiBi).
template <Type t>
constexpr float kSlack = t == Type::bf16 ? 24.0F : 8.0F;
/// Whether a score of this lane is too far above its row's base. kShift: see raise_maxima.
template <int kShift = 0, int kChains = 1, int kKeyTiles>
__device__ __forceinline__ bool exceeds_base(const FragmentState& state, const float (&s)[kKeyTiles][4], float factor, float slack) {
  // -inf above -inf is NaN, which is not above.
  const float above0 = ptx::fma(top_of_lane<kChains>(s, 0), factor, -state.m[0]);
  const float above1 = ptx::fma(top_of_lane<kChains>(s, 1), factor, -state.m[1]);
  return ptx::max_number(above0, above1) > slack + kShift;
}

/// How far above the largest score a raised maximum is put where scores are expected to go on rising (kLogitsAdditive): f32's range has the
/// room, and sums are corrected less often.
template <class Variant, Type t>
constexpr float kLookahead = Variant::kLogitsAdditive&& t == Type::bf16 ? 64.0F : 0.0F;

/// Raises the maxima to `tops`, which `factor` > 0 brings to base-2 units, and the sums with them. `correction`: the factor of all that has
/// been summed so far; true where some lane's is not 1. kShift: maxima are kept lowered by it, so that weights are up to 2^kShift, and up
/// to 2^(kShift + kSlack) in the end.
template <int kShift = 0>
__device__ __forceinline__ bool raise_maxima(FragmentState& state, const float (&tops)[2], float factor, float (&correction)[2],
                                             float lookahead = 0.0F) {
  bool changed = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float raised = ptx::max_number(state.m[half], tops[half] * factor + (lookahead - kShift));
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

/// Scores of one key tile become weights relative to `base`, which join the sums.
__device__ __forceinline__ void weigh(const float (&base)[2], float (&l)[2], float (&s)[4], float factor) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    s[j] = exp2_approx(ptx::fma(s[j], factor, -base[j / 2]));
    l[j / 2] += s[j];
  }
}
__device__ __forceinline__ void weigh(FragmentState& state, float (&s)[4], float factor) {
  const float base[2] = {base_of(state.m[0]), base_of(state.m[1])};
  weigh(base, state.l, s, factor);
}

/// Where logits are bounded, weights may be taken relative to a constant in place of the row's maximum: if within [2^-120, 2^30] they
/// neither vanish nor, summed over all keys, overflow, and a floating-point product does not care about the scale. That holds up to a bound
/// of 75 (a soft cap of 50 has 72.2). Weights of 16 bits must have f32's range.
template <Config c, class Variant>
constexpr bool kFixedMaximum =
    Variant::kSoftmax&& Variant::kHasLogits&& kValueOperand<c, Variant> == Type::bf16&& Variant::kLogitsBound <= 75.0F;
/// The constant: the bound itself, or less if the least weight would be below 2^-120.
template <class Variant>
constexpr float kMaximum = min(Variant::kLogitsBound, 120.0F - Variant::kLogitsBound);

template <class Variant>
struct LogitsSteps {
  typename Variant::LogitsStep half[2];
};
/// Raw products of key tiles `n` and `n` + 1 become weights relative to kMaximum, which join the sums.
template <class Variant>
__device__ __forceinline__ void weigh_products(const typename Variant::Params& params, const LogitsSteps<Variant>& steps, int n,
                                               FragmentState& state, float (&low)[4], float (&high)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const typename Variant::LogitsStep& step = steps.half[half];
    float x[4] = {low[2 * half], low[2 * half + 1], high[2 * half], high[2 * half + 1]};
    if constexpr (Variant::kLogitsLogistic) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = Variant::logits_argument(params, step, x[i], 8 * n + 8 * (i / 2) + i % 2);
      float y[4];
      logistic_approx(x, y);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = y[i];
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = Variant::logits_core(params, step, x[i], 8 * n + 8 * (i / 2) + i % 2);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Variant::kLogitsScaled) {
        x[i] = ptx::fma(x[i], step.scale, step.offset - kMaximum<Variant>);
      } else {
        x[i] -= kMaximum<Variant>;
      }
      x[i] = exp2_approx(x[i]);
      state.l[half] += x[i];
    }
    low[2 * half] = x[0];
    low[2 * half + 1] = x[1];
    high[2 * half] = x[2];
    high[2 * half + 1] = x[3];
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

/// The factor that brings raw products to base-2 units, without its sign; see negative().
template <Config c, class Variant>
struct ScoreFactor {
  float raw = 0.0F;       // to natural units, where the logits hook wants them; else to base-2 units
  float to_base2 = 1.0F;  // of what raise_maxima and weigh are given: > 0, so that maxima may be taken before it; logits need none

  static __device__ __forceinline__ ScoreFactor make(const Args& p, const abi::SegmentArg& segment, i32 kv_head) {
    const float raw = p.score_factor * common_scale<c.k_scale>(segment.k, kv_head);
    if constexpr (!kOfProducts) return {raw, 1.0F};
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
  /// For kLogitsAdditive, where scores are summed with the rest of a logit: what brings that to base-2 units, and raw's reciprocal. Both
  /// without raw's sign: scores have changed theirs.
  __device__ __forceinline__ float additive_to_base2() const { return abs(raw) * kLog2E; }
  __device__ __forceinline__ float inverse() const { return 1.0F / abs(raw); }
  __device__ __forceinline__ bool invertible() const { return abs(raw) >= 0x1p-60F; }

  /// Whether scores must change their sign before they meet to_base2.
  __device__ __forceinline__ bool negative() const { return raw < 0.0F; }
};

}  // namespace girih::attention
