// Prefill with tensor cores (FlashAttention-2, arXiv 2307.08691): a tile of packed query rows in shared memory, each warp its own rows of
// it, and all of them the same keys, 64 at a time. Scores and weights stay in registers. One barrier a tile of the ring: it says that the
// tile has landed and that the one before it is free, which is then refilled; so kSlots - 1 tiles are under way.
// A warp has 32 rows (two operands) where registers allow: then a fragment of K or V serves two products, without which shared memory,
// not the tensor cores, would be the limit. Where a tile has rows for half of the warps only, two warps share them, each with half of the
// keys of a step; their states meet where the tile ends.
#pragma once

#include "attention/config.cuh"
#include "attention/fragment_softmax.cuh"
#include "attention/fragments.cuh"
#include "attention/key_stream.cuh"
#include "attention/merge.cuh"
#include "attention/output.cuh"
#include "attention/problem.cuh"
#include "attention/query_fragments.cuh"
#include "attention/state.cuh"
#include "attention/tile_rows.cuh"
#include "ptx/launch.cuh"

namespace girih::attention {

/// The kernel keeps what hooks ask of query rows.
template <class Variant>
constexpr bool kKeepsRows = Variant::kHasMask || kLogitsRead<Variant>;

template <Config c, class Variant>
struct PrefillShape {
  using Keys = KeyFragments<c.k_type, c.q_type, StreamShape<c>::kKeyBytes>;
  static constexpr int kWarps = c.threads / ptx::kWarp;
  static constexpr int kWarpRows = c.tile_rows / kWarps;
  static constexpr int kRowTiles = kWarpRows / 16;
  using QueryRows = tile::SharedRows<Keys::kSteps * 32>;
  // Shared memory: the ring, Q, what hooks know of its rows, a word for arrive().
  static constexpr int kQueryAt = StreamShape<c>::kRingBytes;
  static constexpr int kRowsAt = kQueryAt + QueryRows::bytes(c.tile_rows);
  static constexpr int kLastAt = kRowsAt + (kKeepsRows<Variant> ? c.tile_rows * static_cast<int>(sizeof(RowVars)) : 0);
  static constexpr int kSharedBytes = kLastAt + 16;
  static constexpr int kStagedStride = round_up(c.head_dim_vo, 32);
  static_assert(8 * kStagedStride * 4 <= kWarpRows * QueryRows::kStride);
  static_assert(kWarpRows % 16 == 0 && c.threads >= c.tile_rows);
};

template <Config c, class Variant>
class Prefill {
 public:
  using Stream = StreamShape<c>;
  using Shape = PrefillShape<c, Variant>;
  using T = Storage<c.q_type>;
  using Keys = typename Shape::Keys;
  using Values = ValueFragments<c.v_type, c.q_type, Stream::kValueBytes>;
  static constexpr int kValueLoads = (c.head_dim_vo + 8 * Values::kTilesPerLoad - 1) / (8 * Values::kTilesPerLoad);
  static constexpr int kSumTiles = kValueLoads * Values::kTilesPerLoad;
  static constexpr int kKeyTiles = 4;  // of scores at once
  static constexpr int kRowTiles = Shape::kRowTiles;

  __device__ __forceinline__ Prefill(const Args& p, const typename Variant::Params& params, u8* s_memory)
      : p_(p),
        params_(params),
        s_memory_(s_memory),
        warp_(ptx::warp_idx()),
        lane_(ptx::lane_idx()),
        query_rows_(lane_ & 15, lane_ >> 4),
        key_rows_(Keys::lane_rows()),
        value_rows_(Values::lane_rows()) {}

  __device__ __forceinline__ void run(UnitItems items) {
    KeyStream<c> stream(p_, items, s_memory_);
#pragma unroll 1
    for (int i = 0; i < kRingSteps; ++i) issue_step(stream);  // the first is empty
#pragma unroll 1
    for (const abi::WorkItem* at = items.begin; at != items.end; ++at) {
      const abi::WorkItem& item = *at;
      if (item.row_count == 0) continue;
      prefetch_merges(p_, item);
      begin_item(item);
      const StepRange range = step_range<Variant>(p_, item);
      // Keys at positions of their own are rare: they share the code of the hidden ones.
      const bool in_order = (!Variant::kLogitsPos || !range.positions.page_positions) && (!kAdditive || factor_.invertible());
      int begin = item.kv_begin;
#pragma unroll 1
      while (true) {
#pragma unroll 1
        for (; in_order && begin >= range.full_begin && begin + Stream::kStepKeys <= range.full_end; begin += Stream::kStepKeys) {
          step<false>(item, range, begin, stream);
        }
        if (begin >= range.end) break;
        step<true>(item, range, begin, stream);
        begin += Stream::kStepKeys;
      }
      if (is_last(item) || is_chunk(item)) end_tile(item);
    }
  }

 private:
  static constexpr int kRingSteps = Stream::kSlots / Stream::kTilesPerStep;
  static_assert(kRingSteps >= 2 && Stream::kStepKeys % (8 * kKeyTiles) == 0);
  static constexpr int kPartKeys = 8 * kKeyTiles;
  static_assert(kPartKeys == ptx::kWarp, "a word has the mask of a part");
  static constexpr bool kFixed = kFixedMaximum<c, Variant>;
  /// A logit's summands besides the score begin the products' sums; scales of single keys would scale them, too.
  static constexpr bool kAdditive = Variant::kLogitsAdditive && !Stream::kKeyScales;
  /// Q has the sign of the factor of scores.
  static constexpr bool kNegates = !Variant::kHasLogits || kAdditive;
  static constexpr bool kMayShare = !c.batch_invariant && Stream::kStepKeys >= 2 * kPartKeys && Shape::kWarps % 2 == 0;

  static __device__ __forceinline__ void issue_step(KeyStream<c>& stream) {
    stream.issue_keys();
    if constexpr (!c.v_is_k) stream.issue_values();
  }

  /// Keys of a step, kPartKeys at a time: the scores of more at once leave no registers to overlap their work with.
  template <bool kHides>
  __device__ __forceinline__ void step(const abi::WorkItem& item, const StepRange& range, int begin, KeyStream<c>& stream) {
    ptx::cp_async_wait<(kRingSteps - 2) * Stream::kTilesPerStep>();
    ptx::sync_block();  // the step has landed for all warps, and the one before it is free
    const int slot = stream.oldest_slot();
    issue_step(stream);
    const u8* s_keys = s_memory_ + slot * Stream::kSlotBytes;
    const u8* s_values = c.v_is_k ? s_keys : s_keys + Stream::kSlotBytes;
    const u8* s_key_scales = KeyStream<c>::scales(s_memory_, slot);
    const u8* s_value_scales = c.v_is_k ? s_key_scales : s_key_scales + Stream::kSlotScaleBytes;
#pragma unroll 1
    for (int part = first_part_; part < Stream::kStepKeys && (!kHides || begin + part < range.end); part += part_step_) {
      add_keys<kHides>(item, range, begin + part, s_keys + part * Stream::KeyRows::kStride, s_values + part * Stream::ValueRows::kStride,
                       s_key_scales + part * Stream::kKeyScaleBytes, s_value_scales + part * Stream::kValueScaleBytes);
    }
  }

  /// kPartKeys keys from key `first` on join the rows' states. Steps without hidden keys have code of their own: where the ways of a branch
  /// that changes scores meet, registers are moved about.
  template <bool kHides>
  __device__ __forceinline__ void add_keys(const abi::WorkItem& item, const StepRange& range, int first, const u8* s_keys,
                                           const u8* s_values, const u8* s_key_scales, const u8* s_value_scales) {
    float s[kRowTiles][kKeyTiles][4];
    const FragmentKeys keys = {range.positions, first, range.end};
    u32 visible = ptx::kAllLanes;  // keys of the row that has the lane's number; asked for before the products, which take longer
    if constexpr (kHides && Variant::kHasMask) {
      const KeyList list = kKeepsPositions<Variant> ? range.positions : key_list(p_, item);
      visible = visible_keys<Variant>(params_, mask_row(lane_ % Shape::kWarpRows), {list, first, range.end});
    }
    clear_scores<kHides>(keys, s);
    add_products(s_keys, s_key_scales, s);
    if constexpr (Stream::kKeyScales) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) scale_keys(s_key_scales, s[t]);
    }
    if constexpr (kHides || !kFixed) finish_scores<kHides>(keys, visible, s);
    add_values<kHides>(keys, s_values, s_value_scales, s);
  }

  __device__ __forceinline__ void begin_item(const abi::WorkItem& item) {
    factor_ = ScoreFactor<c, Variant>::make(p_, p_.segments[item.segment], item.kv_head);
    if (is_first(item) || is_chunk(item)) {
      share_rows(item);
      load_rows(item);
      clear();
    }
  }

  /// Which rows are this warp's, and which part of a step's keys.
  __device__ __forceinline__ void share_rows(const abi::WorkItem& item) {
    shared_ = kMayShare && item.row_count <= c.tile_rows / 2;
    first_row_ = (shared_ ? warp_ / 2 : warp_) * Shape::kWarpRows;
    first_part_ = shared_ ? warp_ % 2 * kPartKeys : 0;
    part_step_ = shared_ ? 2 * kPartKeys : kPartKeys;
    if (first_row_ >= item.row_count) first_part_ = Stream::kStepKeys;  // none of this warp's rows exist
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      clear_sums(state_[t], o_[t]);
      if constexpr (kFixed) state_[t].m[0] = state_[t].m[1] = kMaximum<Variant>;
    }
  }

  /// What weights are relative to.
  __device__ __forceinline__ float base(int t, int half) const { return kFixed ? kMaximum<Variant> : base_of(state_[t].m[half]); }

  /// Q and what hooks ask of its rows, for a new tile.
  __device__ __forceinline__ void load_rows(const abi::WorkItem& item) {
    ptx::sync_block();  // the last tile's rows are no longer read
    load_query_tile<c, Keys, typename Shape::QueryRows>(p_, item, kNegates && factor_.negative(), s_memory_ + Shape::kQueryAt);
    if constexpr (kKeepsRows<Variant>) describe_tile_rows<c, Variant>(p_, params_, item, s_memory_ + Shape::kRowsAt);
    ptx::sync_block();
  }

  /// What scores begin with.
  template <bool kHides>
  __device__ __forceinline__ void clear_scores(const FragmentKeys& keys, float (&s)[kRowTiles][kKeyTiles][4]) const {
    if constexpr (kAdditive && !kHides) {
      begin_scores<Variant>(params_, logits_row(lane_ % Shape::kWarpRows), keys, abs(factor_.raw), factor_.inverse(), s);
    } else {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int j = 0; j < 4; ++j) s[t][n][j] = 0.0F;
        }
      }
    }
  }

  __device__ __forceinline__ void add_products(const u8* s_keys, const u8* s_scales, float (&s)[kRowTiles][kKeyTiles][4]) const {
    const u8* s_query = s_memory_ + Shape::kQueryAt + first_row_ * Shape::QueryRows::kStride;
    // Fragments are asked for one round of products ahead (where registers allow): the latency of shared memory is that of five products.
    const auto query = query_rows_.in(s_query);
    const auto keys = key_rows_.in(s_keys);
    constexpr int kLoads = Keys::kSteps / Keys::kStepsPerLoad;
    constexpr int kAhead = Keys::kStepsPerLoad == 1 ? 1 : 0;
    u32 a[kAhead + 1][Keys::kStepsPerLoad][kRowTiles][4];
    u32 b[kAhead + 1][kKeyTiles / 2][Keys::kStepsPerLoad][2][2];
    const auto load_fragments = [&](int load) {
      const int to = load % (kAhead + 1);
#pragma unroll
      for (int i = 0; i < Keys::kStepsPerLoad; ++i) {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) ptx::ldmatrix_x4(a[to][i][t], query.at(2 * t, load * Keys::kStepsPerLoad + i));
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) Keys::load(keys, s_scales, n, load, b[to][n / 2]);
    };
    if constexpr (kAhead > 0) load_fragments(0);
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int from = load % (kAhead + 1);
      if (load + kAhead < kLoads) load_fragments(load + kAhead);
#pragma unroll
      for (int i = 0; i < Keys::kStepsPerLoad; ++i) {
#pragma unroll
        for (int n = 0; n < kKeyTiles; n += 2) {
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) {
            ptx::mma_16x8x16<T>(s[t][n], a[from][i][t], b[from][n / 2][i][0]);
            ptx::mma_16x8x16<T>(s[t][n + 1], a[from][i][t], b[from][n / 2][i][1]);
          }
        }
      }
    }
  }

  /// What brings scores, as finish_scores leaves them, to base-2 units.
  template <bool kHides>
  __device__ __forceinline__ float to_base2() const {
    return kAdditive && !kHides ? factor_.additive_to_base2() : factor_.to_base2;
  }

  /// Hooks and masks; then the maxima, and what has been summed is brought to them.
  template <bool kHides>
  __device__ __forceinline__ void finish_scores(const FragmentKeys& keys, u32 visible, float (&s)[kRowTiles][kKeyTiles][4]) {
    if constexpr (Variant::kHasLogits && (kHides || !kAdditive)) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          apply_logits<Variant, kHides>(params_, logits_row(t, half), half, keys, kNegates ? abs(factor_.raw) : factor_.raw, s[t]);
        }
      }
    }
    if constexpr (kHides) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        if constexpr (Variant::kHasMask) {
#pragma unroll
          for (int half = 0; half < 2; ++half) hide<Variant>(ptx::shuffle(visible, 16 * t + 8 * half + lane_ / 4), half, s[t]);
        } else {
          hide_past_end<Variant>(s[t], keys.end - keys.first);
        }
      }
    }
    if constexpr (Variant::kSoftmax && !kFixed) {
      const float factor = to_base2<kHides>();
      bool exceeds = false;
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) exceeds = exceeds_base(state_[t], s[t], factor, kSlack<c.q_type>) || exceeds;
      if (ptx::any(exceeds)) {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          const float tops[2] = {top_of_row(s[t], 0), top_of_row(s[t], 1)};
          float correction[2];
          if (raise_maxima(state_[t], tops, factor, correction)) correct_sums(correction, o_[t]);
        }
      }
    }
  }

  /// Of a row of this warp.
  __device__ __forceinline__ const u8* kept_row(int row) const { return s_memory_ + Shape::kRowsAt + (first_row_ + row) * sizeof(RowVars); }
  __device__ __forceinline__ typename Variant::MaskRow mask_row(int row) const {
    if constexpr (kKeepsHooks<Variant>) {
      return reinterpret_cast<const HookRow<Variant>*>(kept_row(row))->mask;
    } else {
      return Variant::mask_row(params_, *reinterpret_cast<const RowVars*>(kept_row(row)));
    }
  }
  __device__ __forceinline__ typename Variant::LogitsRow logits_row(int row) const {
    if constexpr (!kLogitsRead<Variant>) return {};
    if constexpr (kKeepsHooks<Variant>) {
      return reinterpret_cast<const HookRow<Variant>*>(kept_row(row))->logits;
    } else {
      return Variant::logits_row(params_, *reinterpret_cast<const RowVars*>(kept_row(row)));
    }
  }
  __device__ __forceinline__ typename Variant::LogitsRow logits_row(int t, int half) const {
    return logits_row(16 * t + 8 * half + lane_ / 4);
  }
  __device__ __forceinline__ auto logits_steps(const FragmentKeys& keys, int t) const {
    return LogitsSteps<Variant>{{logits_step<Variant>(params_, logits_row(t, 0), keys, factor_.raw),
                                 logits_step<Variant>(params_, logits_row(t, 1), keys, factor_.raw)}};
  }

  /// Scores become weights, 16 keys at a time, so that their exponentials run beside the products of the 16 before; where nothing is hidden
  /// and no maximum is needed, the logits hook does, too.
  template <bool kHides>
  __device__ __forceinline__ void add_values(const FragmentKeys& keys, const u8* s_values, const u8* s_scales,
                                             float (&s)[kRowTiles][kKeyTiles][4]) {
    const auto values = value_rows_.in(s_values);
    constexpr int kLoads = kKeyTiles / 2 * kValueLoads;  // of 16 keys by kTilesPerLoad * 8 dims
    constexpr int kAhead = min(2, kLoads - 1);
    u32 b[kAhead + 1][Values::kTilesPerLoad][2];
    const auto load_fragments = [&](int load) {
      Values::load(values, s_scales, load / kValueLoads * 2, load % kValueLoads, b[load % (kAhead + 1)]);
    };
#pragma unroll
    for (int load = 0; load < kAhead; ++load) load_fragments(load);
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      u32 a[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        if constexpr (kFixed && !kHides) {
          weigh_products<Variant>(params_, logits_steps(keys, t), n, state_[t], s[t][n]);
          weigh_products<Variant>(params_, logits_steps(keys, t), n + 1, state_[t], s[t][n + 1]);
        } else if constexpr (Variant::kSoftmax) {
          const float bases[2] = {base(t, 0), base(t, 1)};
          weigh(bases, state_[t].l, s[t][n], to_base2<kHides>());
          weigh(bases, state_[t].l, s[t][n + 1], to_base2<kHides>());
        }
        if constexpr (Stream::kValueScales) {
          scale_keys(s_scales, n, s[t][n]);
          scale_keys(s_scales, n + 1, s[t][n + 1]);
        }
        pack_weights<T>(s[t][n], s[t][n + 1], a[t]);
      }
#pragma unroll
      for (int i = 0; i < kValueLoads; ++i) {
        const int load = n / 2 * kValueLoads + i;
        if (load + kAhead < kLoads) load_fragments(load + kAhead);
#pragma unroll
        for (int j = 0; j < Values::kTilesPerLoad; ++j) {
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) {
            ptx::mma_16x8x16<T>(o_[t][i * Values::kTilesPerLoad + j], a[t], b[load % (kAhead + 1)][j]);
          }
        }
      }
    }
  }

  /// Every eight rows are laid out in this warp's rows of Q (which have served), so that four lanes write a row in whole sectors.
  __device__ __forceinline__ void end_tile(const abi::WorkItem& item) {
    const float value_factor = common_scale<c.v_scale>(value_plane<c>(p_.segments[item.segment]), item.kv_head);
    if (shared_) join_halves();
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      if (shared_ && warp_ % 2 != 0) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float l = sum_of_row(state_[t].l[half]);
        ptx::sync_warp();
#pragma unroll
        for (int run = 0; run < kSumTiles / Values::kTilesPerRun; ++run) {
          float x[Values::kRun];
          Values::take_run(o_[t], run, half, x);
          const int dim = Values::run_dim(run, lane_ % 4);
          if (dim < c.head_dim_vo) store_floats(staged(lane_ / 4, dim), x);
        }
        ptx::sync_warp();
        const int row = first_row_ + 16 * t + 8 * half + lane_ / 4;
        const RowState state = {kFixed ? (l == 0.0F ? -kInfinity : kMaximum<Variant>) : state_[t].m[half], l};
        end_tile_row<c, Variant>(p_, params_, item, min(row, item.row_count - 1), state, value_factor, quad_dims(row < item.row_count),
                                 [&](int dim, float(&x)[4]) { load_floats(staged(lane_ / 4, dim), x); });
      }
    }
    if (is_last(item) && item.part_row >= 0) arrive<c, Variant>(p_, params_, item, reinterpret_cast<u32*>(s_memory_ + Shape::kLastAt));
  }

  /// What the second of two warps that share rows has seen joins the first one's state. A lane's sums lie at the same places in both; they
  /// go through the two warps' rows of Q, as many at a time as fit there.
  __device__ __forceinline__ void join_halves() {
    constexpr int kBytes = 2 * Shape::kWarpRows * Shape::QueryRows::kStride;
    constexpr int kAtOnce = min(kSumTiles, kBytes / (ptx::kWarp * 16));
    static_assert(kAtOnce >= 1 && kBytes >= ptx::kWarp * 16);
    Vec16* s_lane = reinterpret_cast<Vec16*>(s_memory_ + Shape::kQueryAt + warp_ / 2 * kBytes) + lane_;
    const bool gives = warp_ % 2 != 0;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      FragmentState& state = state_[t];
      ptx::sync_block();  // Q, or what has been exchanged, is no longer read
      if (gives) *s_lane = {bits_of(state.m[0]), bits_of(state.m[1]), bits_of(state.l[0]), bits_of(state.l[1])};
      ptx::sync_block();
      float factor[2] = {1.0F, 1.0F};  // of what is taken
      if (!gives) {
        const Vec16 other = *s_lane;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float l = float_of(other.x[2 + half]);
          if constexpr (Variant::kSoftmax) {
            const float m = float_of(other.x[half]);
            const float raised = ptx::max_number(state.m[half], m);
            const float own = exp2_approx(state.m[half] - base_of(raised));
            factor[half] = exp2_approx(m - base_of(raised));
            state.m[half] = raised;
            state.l[half] *= own;
            l *= factor[half];
#pragma unroll
            for (int n = 0; n < kSumTiles; ++n) {
              o_[t][n][2 * half] *= own;
              o_[t][n][2 * half + 1] *= own;
            }
          }
          state.l[half] += l;
        }
      }
#pragma unroll
      for (int begin = 0; begin < kSumTiles; begin += kAtOnce) {
        ptx::sync_block();
#pragma unroll
        for (int n = begin; n < min(begin + kAtOnce, kSumTiles); ++n) {
          if (gives) store_floats(reinterpret_cast<float*>(s_lane + (n - begin) * ptx::kWarp), o_[t][n]);
        }
        ptx::sync_block();
#pragma unroll
        for (int n = begin; n < min(begin + kAtOnce, kSumTiles); ++n) {
          if (gives) continue;
          float x[4];
          load_floats(reinterpret_cast<const float*>(s_lane + (n - begin) * ptx::kWarp), x);
#pragma unroll
          for (int j = 0; j < 4; ++j) o_[t][n][j] = ptx::fma(x[j], factor[j / 2], o_[t][n][j]);
        }
      }
    }
    ptx::sync_block();
  }

  /// Where dim `dim` of row `row` (0..7) goes: eight dims stay together, rows lie in different banks.
  __device__ __forceinline__ float* staged(int row, int dim) const {
    float* s_rows = reinterpret_cast<float*>(s_memory_ + Shape::kQueryAt + warp_ * Shape::kWarpRows * Shape::QueryRows::kStride);
    return s_rows + row * Shape::kStagedStride + (dim ^ (row & 3) * 8);
  }

  const Args& p_;
  const typename Variant::Params& params_;
  u8* s_memory_;
  int warp_, lane_;
  bool shared_ = false;  // two warps have the tile's rows together
  int first_row_ = 0, first_part_ = 0, part_step_ = kPartKeys;
  tile::LaneRows<Keys::kSteps * 32> query_rows_;
  tile::LaneRows<Stream::kKeyBytes> key_rows_;
  tile::LaneRows<Stream::kValueBytes> value_rows_;

  float o_[kRowTiles][kSumTiles][4];
  FragmentState state_[kRowTiles];
  ScoreFactor<c, Variant> factor_{};
};

template <Config c, class Variant>
__device__ __forceinline__ void run_prefill(const Args& p) {
  static_assert(PrefillShape<c, Variant>::kSharedBytes <= c.shared_bytes);
  ptx::wait_for_previous_grid();
  prefetch_plan(p);
  const typename Variant::Params params = Variant::load_params(p);
  Prefill<c, Variant> prefill(p, params, ptx::shared_memory());
  prefill.run(unit_items(p));
  write_empty_rows<c, Variant>(p, params);
  ptx::start_next_grid();
}

}  // namespace girih::attention
