// Prefill with tensor cores (FlashAttention-2, arXiv 2307.08691): a tile of packed query rows in shared memory, each warp its own rows of
// it, and all of them the same keys, 64 at a time. Scores and weights stay in registers.
// No barrier of the block stands between products. The warps take turns at bringing the keys of a step into the ring, two steps ahead, and
// two barriers in shared memory belong to each step of the ring: `full` (its copies have landed) and `empty` (all warps are through with
// it). A warp has 32 rows (two operands) where registers allow: then a fragment of K or V serves two products, without which shared memory,
// not the tensor cores, would be the limit. Where a tile has rows for half or a quarter of the warps only, two or four share the same
// rows, each with its own part of the keys; their states meet where the tile ends.
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
#include "ptx/mbarrier.cuh"

namespace girih::attention {

/// The kernel keeps what hooks ask of query rows.
template <class Variant>
constexpr bool kKeepsRows = Variant::kHasMask || kLogitsRead<Variant>;

template <Config c, class Variant>
struct PrefillShape {
  using Stream = StreamShape<c>;
  using Keys = KeyFragments<c.k_type, kKeyOperand<c>, Stream::kKeyBytes>;
  static constexpr int kWarps = c.threads / ptx::kWarp;
  static constexpr int kWarpRows = c.tile_rows / kWarps;
  static constexpr int kRowTiles = kWarpRows / 16;
  static constexpr int kRingSteps = Stream::kSlots / Stream::kTilesPerStep;
  using QueryRows = tile::SharedRows<Keys::kSteps * 32>;
  static constexpr int kStagedStride = round_up(c.head_dim_vo, 32);
  static constexpr int kWarpQueryBytes =
      max(QueryRows::bytes(kWarpRows), 8 * kStagedStride * 4);  // sums are staged there, eight rows at a time
  static constexpr int kWarpRowBytes = kKeepsRows<Variant> ? kWarpRows * static_cast<int>(sizeof(RowVars)) : 0;
  // Shared memory: the ring, every warp's Q, the inverse scales of its rows, what hooks know of them, the ring's barriers, a word for
  // arrive().
  static constexpr int kQueryAt = Stream::kRingBytes;
  static constexpr int kInverseAt = kQueryAt + kWarps * kWarpQueryBytes;
  static constexpr int kRowsAt = kInverseAt + (kScalesQuery<c> ? c.tile_rows * 4 : 0);
  static constexpr int kBarriersAt = kRowsAt + kWarps * kWarpRowBytes;
  static constexpr int kLastAt = kBarriersAt + kRingSteps * 16;
  static constexpr int kSharedBytes = kLastAt + 16;
  static_assert(kRingSteps >= 2);
  static_assert(kWarpRows == 16 || kWarpRows == 32);
};

template <Config c, class Variant>
class Prefill {
 public:
  using Stream = StreamShape<c>;
  using Shape = PrefillShape<c, Variant>;
  using ValueOperand = Storage<kValueOperand<c, Variant>>;
  using Keys = typename Shape::Keys;
  using Values = ValueFragments<c.v_type, kValueOperand<c, Variant>, Stream::kValueBytes>;
  static constexpr int kValueLoads = (c.head_dim_vo + 8 * Values::kTilesPerLoad - 1) / (8 * Values::kTilesPerLoad);
  static constexpr int kSumTiles = kValueLoads * Values::kTilesPerLoad;
  static constexpr int kKeyTiles = 4;  // of scores at once
  static constexpr int kRowTiles = Shape::kRowTiles;
  static constexpr float kWeightSlack = kSlack<kValueOperand<c, Variant>>;
  static constexpr int kShift = kWeightShift<c, Variant> > 0 ? kWeightShift<c, Variant> - static_cast<int>(kWeightSlack) : 0;
  static constexpr float kUnshift = 1.0F / static_cast<float>(1 << kShift);
  static constexpr bool kScalesValues = Stream::kValueScales && kShift > 0;

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
    if (ptx::thread_idx() == 0) {
#pragma unroll 1
      for (int i = 0; i < Shape::kRingSteps; ++i) {
        ptx::mbarrier_init(full(i), ptx::kWarp + 1);
        ptx::mbarrier_init(empty(i), Shape::kWarps);
      }
    }
    ptx::sync_block();
    // One loop for the ring's first fill and for the work, so that the copies' code is there once.
    KeyStream<c> stream(p_, items, s_memory_);
    int lead = kAhead + 2;  // the first step is an empty one; -1: `item` has begun
    const abi::WorkItem* item = items.begin;
    StepRange range{};
    int begin = 0;
#pragma unroll 1
    while (true) {
      refill(stream, lead == kAhead + 2);
      if (lead > 0) {
        --lead;
        if (lead > 0) continue;
      }
#pragma unroll 1
      while (begin >= range.end) {  // an item may have no keys
        if (lead < 0) {
          if (is_last(*item) || is_chunk(*item)) end_tile(*item, item + 1 != items.end ? item + 1 : nullptr);
          ++item;
        }
        while (item != items.end && item->row_count == 0) ++item;
        if (item == items.end) return;
        prefetch_merges<c>(p_, *item);
        begin_item(*item);
        if (item + 1 != items.end) prefetch_query_rows<c, Shape::kWarpRows>(p_, item[1], warp_ * Shape::kWarpRows);
        lead = -1;
        range = step_range<Variant>(p_, *item);
        begin = item->kv_begin;
      }
      step(*item, range, begin);
      begin += Stream::kStepKeys;
    }
  }

 private:
  static constexpr int kPartKeys = 8 * kKeyTiles;
  static_assert(Stream::kStepKeys % kPartKeys == 0);
  static constexpr int kStepParts = Stream::kStepKeys / kPartKeys;
  static constexpr int kMaxSharers = c.batch_invariant ? 1 : min(2 * kStepParts, Shape::kWarps);
  static_assert(kPartKeys == ptx::kWarp, "a word has the mask of a part");
  static constexpr bool kFixed = kFixedMaximum<c, Variant>;
  /// A logit's summands besides the score begin the products' sums; scales of single keys or rows would scale them, too, and beside large
  /// ones sums of 8-bit products would keep few bits of the score.
  static constexpr bool kAdditive = Variant::kLogitsAdditive && !Stream::kKeyScales && !kScalesQuery<c> && !c.byte_products;
  /// Q has the sign of the factor of scores.
  static constexpr bool kNegates = !Variant::kHasLogits || kAdditive;

  __device__ __forceinline__ u64* full(int step) const { return reinterpret_cast<u64*>(s_memory_ + Shape::kBarriersAt) + 2 * step; }
  __device__ __forceinline__ u64* empty(int step) const { return full(step) + 1; }

  /// Steps that are under way while one is worked on. Two less than the ring has room for lets warps be a step apart.
  static constexpr int kAhead = Shape::kRingSteps > 2 ? Shape::kRingSteps - 2 : 1;
  static_assert((Shape::kWarps & (Shape::kWarps - 1)) == 0);

  /// Brings the keys of the next step into the ring, if it is this warp's turn and there is one. The first step is an empty one, and all
  /// warps'.
  __device__ __forceinline__ void refill(KeyStream<c>& stream, bool first) {
    const int idx = refilled_++;
    if (!first && ((idx & (Shape::kWarps - 1)) != warp_ || !stream.has_step())) return;
    const int step = idx % Shape::kRingSteps;
    if (!first) ptx::mbarrier_wait(empty(step), static_cast<u32>(idx / Shape::kRingSteps + 1) & 1U);  // the first turn finds it empty
    stream.issue_step(step * Stream::kTilesPerStep, first);
    if (first) return;
    ptx::mbarrier_arrive_after_copies(full(step));
    ptx::sync_warp();
    if (lane_ == 0) ptx::mbarrier_arrive(full(step));  // what could not be copied asynchronously
  }
  static __device__ __forceinline__ void advance(int& step, u32& parity) {
    ++step;
    if (step == Shape::kRingSteps) {
      step = 0;
      parity ^= 1U;
    }
  }

  /// The keys of a step, kPartKeys at a time: the scores of more at once leave no registers to overlap their work with. Steps without
  /// hidden keys have code of their own: where the ways of a branch that changes scores meet, registers are moved about.
  __device__ __forceinline__ void step(const abi::WorkItem& item, const StepRange& range, int begin) {
    const int slot = step_ * Stream::kTilesPerStep;
    const u8* s_keys = s_memory_ + slot * Stream::kSlotBytes;
    const u8* s_values = c.v_is_k ? s_keys : s_keys + Stream::kSlotBytes;
    const u8* s_key_scales = KeyStream<c>::scales(s_memory_, slot);
    const u8* s_value_scales = c.v_is_k ? s_key_scales : s_key_scales + Stream::kSlotScaleBytes;
    // Parts are dealt out to those who share the rows.
    const int first_part = share_ < 0 ? Stream::kStepKeys : ((share_ - begin / kPartKeys) & (sharers_ - 1)) * kPartKeys;
    ptx::mbarrier_wait(full(step_), parity_);
    // Keys at positions of their own are rare: they share the code of the hidden ones.
    const bool in_order = (!Variant::kLogitsPos || !range.positions.page_positions) && (!kAdditive || factor_.invertible());
    const bool all_visible = in_order && begin >= range.full_begin && begin + Stream::kStepKeys <= range.full_end;
#pragma unroll 1
    for (int part = first_part; part < Stream::kStepKeys; part += sharers_ * kPartKeys) {
      const u8* s_part_keys = s_keys + part * Stream::KeyRows::kStride;
      const u8* s_part_values = s_values + part * Stream::ValueRows::kStride;
      const u8* s_part_key_scales = s_key_scales + part * Stream::kKeyScaleBytes;
      const u8* s_part_value_scales = s_value_scales + part * Stream::kValueScaleBytes;
      const FragmentKeys keys = {range.positions, begin + part, range.end};
      u32 visible = ptx::kAllLanes;  // keys of the row that has the lane's number
      if (!all_visible) {
        visible = part_visible(item, keys, range.all_visible(begin, Stream::kStepKeys));
        if (!ptx::any(visible != 0)) continue;
      }
      if (all_visible || (in_order && ptx::all(visible == ptx::kAllLanes))) {
        add_keys<false>(keys, visible, s_part_keys, s_part_values, s_part_key_scales, s_part_value_scales);
      } else {
        add_keys<true>(keys, visible, s_part_keys, s_part_values, s_part_key_scales, s_part_value_scales);
      }
    }
    ptx::sync_warp();
    if (lane_ == 0) ptx::mbarrier_arrive(empty(step_));
    advance(step_, parity_);
  }

  /// Which keys of a part the row sees that has the lane's number. `proven`: all that exist.
  __device__ __forceinline__ u32 part_visible(const abi::WorkItem& item, const FragmentKeys& keys, bool proven) const {
    if constexpr (!Variant::kHasMask) return low_bits(keys.end - keys.first);
    if constexpr (Variant::kHasMask) {
      const KeyList list = kKeepsPositions<Variant> ? keys.list : key_list(p_, item);
      return visible_keys<Variant>(params_, mask_row(lane_ % Shape::kWarpRows), {list, keys.first, keys.end}, proven);
    }
  }

  /// kPartKeys keys join the rows' states.
  template <bool kHides>
  __device__ __forceinline__ void add_keys(const FragmentKeys& keys, u32 visible, const u8* s_keys, const u8* s_values,
                                           const u8* s_key_scales, const u8* s_value_scales) {
    float s[kRowTiles][kKeyTiles][4];
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
      share_rows(item.row_count);
      load_rows(item);
      clear();
    }
  }

  /// How many warps have the same rows of a tile.
  static __device__ __forceinline__ int sharers_of(int rows) {
    int sharers = 1;
#pragma unroll
    while (sharers < kMaxSharers && rows * sharers <= c.tile_rows / 2) sharers *= 2;
    return sharers;
  }
  /// Which rows are this warp's, and which parts of their keys.
  __device__ __forceinline__ void share_rows(int rows) {
    sharers_ = sharers_of(rows);
    first_row_ = warp_ / sharers_ * Shape::kWarpRows;
    share_ = first_row_ < rows ? warp_ % sharers_ : -1;  // none of its rows exist
  }

  __device__ __forceinline__ void clear() {
    value_scale_ = {};
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      clear_sums(state_[t], o_[t]);
      state_[t].m[0] = state_[t].m[1] = kFixed ? kMaximum<Variant> : kLowest;
    }
  }
  __device__ __forceinline__ void correct_all_sums(float correction) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) correct_sums({correction, correction}, o_[t]);
  }

  /// What weights are relative to.
  __device__ __forceinline__ float base(int t, int half) const { return kFixed ? kMaximum<Variant> : state_[t].m[half]; }
  /// The maximum of a row of which nothing has been seen: finite, so that it can be subtracted from hidden scores.
  static constexpr float kLowest = -0x1.fffffep127F;

  __device__ __forceinline__ float* own_inverse() const {
    return reinterpret_cast<float*>(s_memory_ + Shape::kInverseAt) + warp_ * Shape::kWarpRows;
  }
  __device__ __forceinline__ u8* own_query() const { return s_memory_ + Shape::kQueryAt + warp_ * Shape::kWarpQueryBytes; }

  /// This warp's rows of Q, and what hooks ask of them, for a new tile.
  __device__ __forceinline__ void load_rows(const abi::WorkItem& item) {
    if (asked_) {
      asked_ = false;
      ptx::cp_async_wait<0>();
    } else {
      ptx::sync_warp();  // the last tile's rows are no longer read
      load_query_rows<c, Keys, typename Shape::QueryRows, Shape::kWarpRows>(p_, item, first_row_, kNegates && factor_.negative(),
                                                                            own_query());
    }
    if constexpr (kScalesQuery<c>) {
      ptx::sync_warp();
      scale_query_rows<c, typename Shape::QueryRows, Shape::kWarpRows>(own_query(), own_inverse());
    }
    if constexpr (kKeepsRows<Variant>) {
      describe_rows<c, Variant, Shape::kWarpRows>(p_, params_, item, first_row_, s_memory_ + Shape::kRowsAt + warp_ * Shape::kWarpRowBytes);
    }
    ptx::sync_warp();
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
    // Fragments are asked for one round of products ahead (where registers allow): the latency of shared memory is that of five products.
    const auto query = query_rows_.in(own_query());
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
            Keys::multiply(s[t][n], a[from][i][t], b[from][n / 2][i][0]);
            Keys::multiply(s[t][n + 1], a[from][i][t], b[from][n / 2][i][1]);
          }
        }
      }
    }
    if constexpr (kScalesQuery<c>) unscale(s);
  }

  /// Products of rows that were multiplied by a power of two.
  __device__ __forceinline__ void unscale(float (&s)[kRowTiles][kKeyTiles][4]) const {
    const float* s_inverse = own_inverse() + lane_ / 4;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float inverse = s_inverse[16 * t + 8 * half];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          s[t][n][2 * half] *= inverse;
          s[t][n][2 * half + 1] *= inverse;
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
      for (int t = 0; t < kRowTiles; ++t) exceeds |= exceeds_base<kShift>(state_[t], s[t], factor, kWeightSlack);
      if (ptx::any(exceeds)) {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          const float tops[2] = {top_of_row(s[t], 0), top_of_row(s[t], 1)};
          float correction[2];
          if (raise_maxima<kShift>(state_[t], tops, factor, correction, kLookahead<Variant, kValueOperand<c, Variant>>)) {
            correct_sums(correction, o_[t]);
          }
        }
      }
    }
  }

  /// Of a row of this warp.
  __device__ __forceinline__ const u8* kept_row(int row) const {
    return s_memory_ + Shape::kRowsAt + warp_ * Shape::kWarpRowBytes + row * sizeof(RowVars);
  }
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
    if constexpr (kScalesValues) {
      const float correction = value_scale_.raise(largest_scale_of_keys<kKeyTiles>(s_scales));
      if (correction != 1.0F) correct_all_sums(correction);
    }
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
          weigh_products<Variant>(params_, logits_steps(keys, t), n, state_[t], s[t][n], s[t][n + 1]);
        } else if constexpr (Variant::kSoftmax) {
          const float bases[2] = {base(t, 0), base(t, 1)};
          weigh(bases, state_[t].l, s[t][n], to_base2<kHides>());
          weigh(bases, state_[t].l, s[t][n + 1], to_base2<kHides>());
        }
        if constexpr (Stream::kValueScales) {
          scale_keys(s_scales, n, kScalesValues ? value_scale_.inverse : 1.0F, s[t][n]);
          scale_keys(s_scales, n + 1, kScalesValues ? value_scale_.inverse : 1.0F, s[t][n + 1]);
        }
        pack_weights<ValueOperand>(s[t][n], s[t][n + 1], a[t]);
      }
#pragma unroll
      for (int i = 0; i < kValueLoads; ++i) {
        const int load = n / 2 * kValueLoads + i;
        if (load + kAhead < kLoads) load_fragments(load + kAhead);
#pragma unroll
        for (int j = 0; j < Values::kTilesPerLoad; ++j) {
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) {
            ptx::mma_16x8x16<ValueOperand>(o_[t][i * Values::kTilesPerLoad + j], a[t], b[load % (kAhead + 1)][j]);
          }
        }
      }
    }
  }

  /// Every eight rows are laid out in this warp's rows of Q (which have served), so that four lanes write a row in whole sectors. Final
  /// rows of 16-bit types can do without; then those of the next tile (null: there is none) are copied meanwhile.
  __device__ __forceinline__ void end_tile(const abi::WorkItem& item, const abi::WorkItem* next) {
    join_sharers();  // may change the unit of sums
    const float value_factor = common_scale<c.v_scale>(value_plane<c>(p_.segments[item.segment]), item.kv_head) * kUnshift *
                               (kScalesValues ? value_scale_.unit : 1.0F);
    if constexpr (kWritesPairs) {
      if (item.part_row < 0 && sharers_ == 1 && rows_aligned(p_.o, 16)) {
        if (next != nullptr) copy_rows_of(*next);
        write_pairs(item, value_factor);
        return;
      }
    }
    if (share_ == 0) {
#pragma unroll 1
      for (int eight = 0; eight < 2 * kRowTiles; ++eight) {
        RowState state{};
        ptx::sync_warp();
#pragma unroll
        for (int i = 0; i < 2 * kRowTiles; ++i) {
          if (i != eight) continue;
          state = end_state(i / 2, i % 2);
#pragma unroll
          for (int run = 0; run < kSumTiles / Values::kTilesPerRun; ++run) {
            float x[Values::kRun];
            Values::take_run(o_[i / 2], run, i % 2, x);
            const int dim = Values::run_dim(run, lane_ % 4);
            if (dim < c.head_dim_vo) store_floats(staged(lane_ / 4, dim), x);
          }
        }
        ptx::sync_warp();
        const int row = first_row_ + 8 * eight + lane_ / 4;
        end_tile_row<c, Variant>(p_, params_, item, min(row, item.row_count - 1), state, value_factor, quad_dims(row < item.row_count),
                                 [&](int dim, float(&x)[4]) { load_floats(staged(lane_ / 4, dim), x); });
      }
    }
    if (is_last(item) && item.part_row >= 0) arrive<c, Variant>(p_, params_, item, reinterpret_cast<u32*>(s_memory_ + Shape::kLastAt));
  }

  /// Of one of the lane's rows, its sum complete.
  __device__ __forceinline__ RowState end_state(int t, int half) const {
    const float l = sum_of_row(state_[t].l[half]) * kUnshift;
    const bool empty = kFixed ? l == 0.0F : state_[t].m[half] == kLowest;
    return {empty ? -kInfinity : kFixed ? kMaximum<Variant> : state_[t].m[half] + kShift, l};
  }

  static constexpr bool kWritesPairs =
      Values::kRun == 2 && bits(c.o_type) == 16 && c.head_dim_vo % 16 == 0 && !c.batch_invariant && !RowWriter<c, Variant>::kHooked;

  /// Starts copies of this warp's rows of a tile.
  __device__ __forceinline__ void copy_rows_of(const abi::WorkItem& item) {
    if (!kQueryInOrder<c> || item.row_count == 0 || !is_first(item) || !rows_aligned(p_.q, 16)) return;
    if (kNegates && ScoreFactor<c, Variant>::make(p_, p_.segments[item.segment], item.kv_head).negative()) return;
    ptx::sync_warp();  // the last tile's rows are no longer read
    copy_query_rows<c, typename Shape::QueryRows, Shape::kWarpRows>(p_, item, warp_ / sharers_of(item.row_count) * Shape::kWarpRows,
                                                                    own_query());
    asked_ = true;
  }

  /// Writes final rows: neighbouring lanes exchange a column tile each, so that each has four neighbouring dims and four lanes a sector.
  __device__ __forceinline__ void write_pairs(const abi::WorkItem& item, float value_factor) {
    using T = Storage<c.o_type>;
    const bool odd = (lane_ & 1) != 0;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row_ + 16 * t + 8 * half + lane_ / 4;
        const auto writer = RowWriter<c, Variant>::final_row(p_, params_, item.row_begin + min(row, item.row_count - 1), item.kv_head,
                                                             end_state(t, half), value_factor);
        u8* g_o = writer.g_o + (odd ? 16 + 4 * (lane_ % 4 - 1) : 4 * (lane_ % 4));
#pragma unroll
        for (int n = 0; n < c.head_dim_vo / 8; n += 2) {
          const u32 low = pack<T>(writer.finish(o_[t][n][2 * half]), writer.finish(o_[t][n][2 * half + 1]));
          const u32 high = pack<T>(writer.finish(o_[t][n + 1][2 * half]), writer.finish(o_[t][n + 1][2 * half + 1]));
          const u32 other = ptx::shuffle_xor(odd ? low : high, 1);
          const Vec8 both = odd ? Vec8{other, high} : Vec8{low, other};
          if (row < item.row_count) *reinterpret_cast<Vec8*>(g_o + 16 * n) = both;
        }
        if (lane_ % 4 == 0 && row < item.row_count) writer.write_state();
      }
    }
  }

  /// What warps that share rows have seen comes together in the first of them: half of them give their state to the other half until one
  /// is left. A lane's sums lie at the same places in all; they go through the giver's rows of Q, as many at a time as fit there.
  __device__ __forceinline__ void join_sharers() {
    if constexpr (kMaxSharers == 1) return;
#pragma unroll 1
    for (int apart = sharers_ / 2; apart > 0; apart /= 2) {
      const int share = warp_ % sharers_;
      const bool gives = share >= apart && share < 2 * apart;
      const bool takes = share < apart;
      Vec16* s_lane = reinterpret_cast<Vec16*>(own_query() + (takes ? apart * Shape::kWarpQueryBytes : 0)) + lane_;
      if constexpr (kScalesValues) {  // they have come to units of their own
        float* s_units = reinterpret_cast<float*>(s_lane - lane_);
        ptx::sync_block();
        if (lane_ == 0 && (gives || takes)) s_units[gives ? 1 : 0] = value_scale_.unit;
        ptx::sync_block();
        if (gives || takes) {
          float units[2];
          load_floats(s_units, units);
          correct_all_sums(value_scale_.raise(ptx::max_number(units[0], units[1])));
        }
      }
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) join_rows(gives, takes, s_lane, state_[t], o_[t]);
    }
  }
  __device__ __forceinline__ void join_rows(bool gives, bool takes, Vec16* s_lane, FragmentState& state, float (&o)[kSumTiles][4]) {
    constexpr int kAtOnce = min(kSumTiles, Shape::kWarpQueryBytes / (ptx::kWarp * 16));
    static_assert(kAtOnce >= 1);
    ptx::sync_block();  // Q, or what has been given before, is no longer read
    if (gives) *s_lane = {bits_of(state.m[0]), bits_of(state.m[1]), bits_of(state.l[0]), bits_of(state.l[1])};
    ptx::sync_block();
    float factor[2] = {1.0F, 1.0F};  // of what is taken
    if (takes) {
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
            o[n][2 * half] *= own;
            o[n][2 * half + 1] *= own;
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
        if (gives) store_floats(reinterpret_cast<float*>(s_lane + (n - begin) * ptx::kWarp), o[n]);
      }
      ptx::sync_block();
#pragma unroll
      for (int n = begin; n < min(begin + kAtOnce, kSumTiles); ++n) {
        if (!takes) continue;
        float x[4];
        load_floats(reinterpret_cast<const float*>(s_lane + (n - begin) * ptx::kWarp), x);
#pragma unroll
        for (int j = 0; j < 4; ++j) o[n][j] = ptx::fma(x[j], factor[j / 2], o[n][j]);
      }
    }
    ptx::sync_block();
  }

  /// Where dim `dim` of row `row` (0..7) goes: eight dims stay together, rows lie in different banks.
  __device__ __forceinline__ float* staged(int row, int dim) const {
    return reinterpret_cast<float*>(own_query()) + row * Shape::kStagedStride + (dim ^ (row & 3) * 8);
  }

  const Args& p_;
  const typename Variant::Params& params_;
  u8* s_memory_;
  int warp_, lane_;
  // The tile's rows: the first of this warp's, how many warps have them, and which of them this one is.
  int first_row_ = 0, sharers_ = 1, share_ = 0;
  bool asked_ = false;  // the next tile's rows of Q are on their way
  // The ring's step at work and the parity of its turn; how many steps have been brought, by all warps.
  int step_ = 0, refilled_ = -1;
  u32 parity_ = 0;
  tile::LaneRows<Keys::kSteps * 32> query_rows_;
  tile::LaneRows<Stream::kKeyBytes> key_rows_;
  tile::LaneRows<Stream::kValueBytes> value_rows_;

  float o_[kRowTiles][kSumTiles][4];
  FragmentState state_[kRowTiles];
  ValueScale value_scale_;  // with kScalesValues
  ScoreFactor<c, Variant> factor_{};
};

template <Config c, class Variant>
__device__ __forceinline__ void run_prefill(const Args& p) {
  static_assert(PrefillShape<c, Variant>::kSharedBytes <= c.shared_bytes);
  begin_list(p);
  prefetch_plan(p);
  const typename Variant::Params params = Variant::load_params(p);
  Prefill<c, Variant> prefill(p, params, ptx::shared_memory());
  prefill.run(unit_items(p));
  write_empty_rows<c, Variant>(p, params);
  end_list(p);
}

}  // namespace girih::attention
