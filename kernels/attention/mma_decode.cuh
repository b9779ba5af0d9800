// Decode with tensor cores: up to 16 packed rows (query tokens x the heads of a KV head) against many keys, bound by memory. The rows are
// the columns of both products (K Q^T and V^T P^T), eight to an operand, and the second eight cost nothing where a tile has none. Q stays
// in registers; each warp streams its own keys of every step (16 of 64, or 32 of 128) through its own rows of the ring, with its own
// softmax state, so that the loop has no barrier of the block. The warps' states meet in shared memory where a tile (or chunk) ends. The
// ring goes on over items: while a tile ends, the next one's keys are coming.
#pragma once

#include "attention/column_scores.cuh"
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

namespace girih::attention {

template <Config c>
struct DecodeShape {
  static constexpr int kWarps = c.threads / ptx::kWarp;
  static constexpr int kHalfRows = 8;  // rows that meet at a time
  static constexpr int kHalves = ceil_div(c.tile_rows, kHalfRows);
  static constexpr int kExchangeStride = round_up(c.head_dim_vo, 32);
  // Shared memory: the ring, every warp's half of its sums, every warp's (m, l) of each row, a word for arrive().
  static constexpr int kExchangeAt = StreamShape<c>::kRingBytes;
  static constexpr int kStatesAt = kExchangeAt + kWarps * kHalfRows * kExchangeStride * 4;
  static constexpr int kLastAt = kStatesAt + kWarps * 16 * 8;
  static constexpr int kSharedBytes = kLastAt + 16;
  static_assert(StreamShape<c>::kRows % 16 == 0 && c.tile_rows <= 16);
};

template <Config c, class Variant>
class Decode {
 public:
  using Stream = StreamShape<c>;
  using Shape = DecodeShape<c>;
  using ValueOperand = Storage<kValueOperand<c, Variant>>;
  using Keys = KeyFragments<c.k_type, kKeyOperand<c>, Stream::kKeyBytes>;
  using Values = ValueFragments<c.v_type, kValueOperand<c, Variant>, Stream::kValueBytes>;
  static constexpr int kGroups = Stream::kRows / 16;  // of 16 keys
  static constexpr int kMaxHalves = Shape::kHalves;
  static constexpr int kShift = kWeightShift<c, Variant>;
  static constexpr bool kScalesValues = Stream::kValueScales && kShift > 0;
  // With V a view of K the tile's last dims are not V's.
  static constexpr int kValueTiles = round_up(c.head_dim_vo, 4 * Values::kRun) / 8;
  static constexpr int kValueLoads = (kValueTiles + Values::kTilesPerLoad - 1) / Values::kTilesPerLoad;
  static constexpr int kSumTiles = kValueLoads * Values::kTilesPerLoad;

  __device__ __forceinline__ Decode(const Args& p, const typename Variant::Params& params, u8* s_memory)
      : p_(p),
        params_(params),
        s_memory_(s_memory),
        warp_(ptx::warp_idx()),
        lane_(ptx::lane_idx()),
        key_rows_(Keys::lane_rows()),
        value_rows_(Values::lane_rows()) {}

  /// One loop for the ring's first fill and for the work, so that the copies' code is there once.
  __device__ __forceinline__ void run(UnitItems items) {
    KeyStream<c> stream(p_, items, s_memory_);
    slot_ = 0;
    clear();
    constexpr int kLead = Stream::kSlots / Stream::kTilesPerStep;  // steps that are under way before the first is worked on
    int lead = kLead + 1;
    const abi::WorkItem* item = items.begin;
    bool open = false;  // `item` has begun
    StepRange range{};
    int begin = 0;
#pragma unroll 1
    while (true) {
      const bool works = lead == 0;
#pragma unroll 1
      while (works && begin >= range.end) {  // an item may have no keys
        if (open) end_item(*item++);
        while (item != items.end && item->row_count == 0) ++item;
        if (item == items.end) return;
        prefetch_merges<c>(p_, *item);
        begin_item(*item);
        open = true;
        range = step_range<Variant>(p_, *item);
        begin = item->kv_begin;
      }
      const int first = begin + warp_ * Stream::kRows;
      const bool has_keys = works && first < range.end;  // else all of this warp's keys lie past the end
      float s[kGroups][2][4];
      const u8* s_rows = s_memory_;
      if (works) s_rows = wait_for_rows<typename Stream::KeyRows>();
      if (has_keys) in_halves([&](auto halves) { scores<halves.kCount>(s_rows, s); });
      if constexpr (!c.v_is_k) {
        if (works) leave_slot();
        stream.issue_keys();
      }
      if (has_keys) in_halves([&](auto halves) { weigh_scores<halves.kCount>(*item, range, begin, first, s); });
      stream.ask_pages();
      if (!c.v_is_k && works) s_rows = wait_for_rows<typename Stream::ValueRows>();
      if (has_keys) in_halves([&](auto halves) { add_values<halves.kCount>(s_rows, s); });
      if (works) leave_slot();
      if constexpr (c.v_is_k) {
        stream.issue_keys();
      } else {
        stream.issue_values();
      }
      if (works) {
        begin += Stream::kStepKeys;
      } else {
        --lead;
      }
    }
  }

  /// For words of the whole block.
  __device__ __forceinline__ u32* word() const { return reinterpret_cast<u32*>(s_memory_ + Shape::kLastAt); }

 private:
  __device__ __forceinline__ void end_item(const abi::WorkItem& item) {
    if (is_last(item) || is_chunk(item)) end_tile(item);
  }

  template <int kHalves>
  struct Halves {
    static constexpr int kCount = kHalves;
  };
  /// `work` for the halves of eight rows that the tile has.
  template <class Work>
  __device__ __forceinline__ void in_halves(const Work& work) {
    if (kMaxHalves == 2 && wide_) {
      work(Halves<kMaxHalves>{});
    } else {
      work(Halves<1>{});
    }
  }

  __device__ __forceinline__ void begin_item(const abi::WorkItem& item) {
    if (is_first(item)) {
      wide_ = item.row_count > 8;
      load_query_fragments<c, Keys>(p_, item, q_);
      if constexpr (kScalesQuery<c>) {
        float inverse[kMaxHalves];  // of rows group and group + 8
        scale_query_fragments<c>(q_, inverse);
#pragma unroll
        for (int i = 0; i < 2 * kMaxHalves; ++i) inverse_[i / 2][i % 2] = ptx::shuffle(inverse[i / 2], 4 * (2 * (lane_ % 4) + i % 2));
      }
    }
    described_ = described_ && !is_first(item);
    if constexpr (kLogitsRead<Variant>) describe(item);
    factor_ = ScoreFactor<c, Variant>::make(p_, p_.segments[item.segment], item.kv_head);
    if constexpr (kScalesQuery<c>) {
#pragma unroll
      for (int i = 0; i < 2 * kMaxHalves; ++i) row_factors_[i / 2][i % 2] = factor_.of_row(inverse_[i / 2][i % 2]);
    }
  }

  __device__ __forceinline__ void clear() {
    value_scale_ = {};
#pragma unroll
    for (int h = 0; h < kMaxHalves; ++h) {
      state_[h] = empty_columns<kShift>();
#pragma unroll
      for (int n = 0; n < kSumTiles / 2; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) o_[h][n][j] = 0.0F;
      }
    }
  }

  __device__ __forceinline__ void describe(const abi::WorkItem& item) {
    if (described_) return;
    described_ = true;
#pragma unroll
    for (int h = 0; h < kMaxHalves; ++h) {
      describe_two_rows<c, Variant>(p_, params_, item, 8 * h + 2 * (lane_ % 4), 1, mask_rows_[h], logits_rows_[h]);
    }
  }

  /// What raw products of row 2 pair + r of half h are multiplied by: for the logits hook, or to base-2 units.
  __device__ __forceinline__ float raw_factor(int h, int r) const { return kScalesQuery<c> ? row_factors_[h][r] : factor_.raw; }
  __device__ __forceinline__ float base2_factor(int h, int r) const {
    if constexpr (!ScoreFactor<c, Variant>::kOfProducts) return 1.0F;  // logits are in base-2 units
    return kScalesQuery<c> ? row_factors_[h][r] : factor_.to_base2;
  }

  /// This warp's keys in the slot at work, once they have landed.
  template <class Rows>
  __device__ __forceinline__ const u8* wait_for_rows() {
    ptx::cp_async_wait<Stream::kSlots - 1>();
    ptx::sync_warp();
    return s_memory_ + slot_ * Stream::kSlotBytes + warp_ * Stream::kRows * Rows::kStride;
  }
  __device__ __forceinline__ void leave_slot() {
    ptx::sync_warp();
    slot_ = slot_ + 1 == Stream::kSlots ? 0 : slot_ + 1;
  }

  template <int kHalves>
  __device__ __forceinline__ void scores(const u8* s_rows, float (&s)[kGroups][2][4]) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) s[g][h][0] = s[g][h][1] = s[g][h][2] = s[g][h][3] = 0.0F;
    }
    // One chain of products would wait for itself; more groups are more chains.
    constexpr bool kTwoSums = kGroups == 1 && kHalves == 1;
    float more[4] = {};
    const auto rows = key_rows_.in(s_rows);
#pragma unroll
    for (int load = 0; load < Keys::kSteps / Keys::kStepsPerLoad; ++load) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        u32 keys[Keys::kStepsPerLoad][2][2];
        Keys::load(rows, own_scales<Stream::kKeyScaleBytes>(), 2 * g, load, keys);
#pragma unroll
        for (int i = 0; i < Keys::kStepsPerLoad; ++i) {
          const u32 a[4] = {keys[i][0][0], keys[i][1][0], keys[i][0][1], keys[i][1][1]};
#pragma unroll
          for (int h = 0; h < kHalves; ++h) {
            const auto& q = q_[load * Keys::kStepsPerLoad + i];
            const u32 b[2] = {q[h], q[kMaxHalves + h]};
            const bool second = kTwoSums && (load * Keys::kStepsPerLoad + i) % 2 != 0;
            Keys::multiply(second ? more : s[g][h], a, b);
          }
        }
      }
    }
    if constexpr (kTwoSums) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[0][0][j] += more[j];
    }
    if constexpr (Stream::kKeyScales) scale_columns<kHalves>(own_scales<Stream::kKeyScaleBytes>(), 1.0F, s);
  }

  /// Scales of this warp's keys in the slot at work.
  template <int kBytes>
  __device__ __forceinline__ const u8* own_scales() const {
    return KeyStream<c>::scales(s_memory_, slot_) + warp_ * Stream::kRows * kBytes;
  }

  /// Raw scores become weights; what has been summed is brought to the new maximum.
  template <int kHalves>
  __device__ __forceinline__ void weigh_scores(const abi::WorkItem& item, const StepRange& range, int begin, int first,
                                               float (&s)[kGroups][2][4]) {
    if constexpr (Variant::kHasLogits) {
      const FragmentKeys columns = {range.positions, first, range.end};
#pragma unroll
      for (int i = 0; i < 2 * kHalves; ++i) {
        apply_logits_to_column<Variant>(params_, logits_rows_[i / 2][i % 2], i / 2, i % 2, columns, raw_factor(i / 2, i % 2), s);
      }
    } else if (factor_.negative()) {
      negate_columns<kHalves>(s);
    }
    if (Variant::kHasMask && !range.all_visible(begin, Stream::kStepKeys)) {
      describe(item);
      const FragmentKeys columns = {key_list(p_, item), first, range.end};
#pragma unroll
      for (int i = 0; i < 2 * kHalves; ++i) hide_masked_column<Variant>(params_, mask_rows_[i / 2][i % 2], i / 2, i % 2, columns, s);
    }
    if (range.end - first < Stream::kRows) hide_columns_past_end<Variant, kHalves>(s, range.end - first);
    if constexpr (Variant::kSoftmax) {
      raise_maxima<kHalves>(s);
#pragma unroll
      for (int i = 0; i < 2 * kHalves; ++i) weigh_column(state_[i / 2], i % 2, base2_factor(i / 2, i % 2), i / 2, s);
    }
  }

  /// Nearly always no score exceeds its row's maximum, which each lane sees of its own scores.
  template <int kHalves>
  __device__ __forceinline__ void raise_maxima(const float (&s)[kGroups][2][4]) {
    float tops[kMaxHalves][2];
    bool higher = false;
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) {
      float& top = tops[i / 2][i % 2];
      top = top_of_column(s, i / 2, i % 2) * base2_factor(i / 2, i % 2);
      higher = higher || top > state_[i / 2].m[i % 2];
    }
    if (!ptx::any(higher)) return;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const float correction0 = raise_column<kShift>(state_[h], 0, tops[h][0]);
      correct_columns(h, correction0, raise_column<kShift>(state_[h], 1, tops[h][1]));
    }
  }

  /// The sums of the lane's two rows of half h.
  __device__ __forceinline__ void correct_columns(int h, float correction0, float correction1) {
#pragma unroll
    for (int n = 0; n < kSumTiles / 2; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o_[h][n][j] *= j % 2 == 0 ? correction0 : correction1;
    }
  }

  template <int kHalves>
  __device__ __forceinline__ void add_values(const u8* s_rows, float (&s)[kGroups][2][4]) {
    if constexpr (Stream::kValueScales) {
      const u8* s_scales = own_scales<Stream::kValueScaleBytes>();
      if constexpr (kScalesValues) {
        const float correction = value_scale_.raise(largest_scale_of_columns<kGroups>(s_scales));
        if (correction != 1.0F) {
#pragma unroll
          for (int h = 0; h < kHalves; ++h) correct_columns(h, correction, correction);
        }
      }
      scale_columns<kHalves>(s_scales, kScalesValues ? value_scale_.inverse : 1.0F, s);
    }
    u32 weights[kGroups][kHalves][2];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) pack_columns<ValueOperand>(s[g][h], weights[g][h]);
    }
    const auto rows = value_rows_.in(s_rows);
#pragma unroll
    for (int load = 0; load < kValueLoads; ++load) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        u32 values[Values::kTilesPerLoad][2];
        Values::load(rows, own_scales<Stream::kValueScaleBytes>(), 2 * g, load, values);
#pragma unroll
        for (int i = 0; i < Values::kTilesPerLoad; i += 2) {
          const u32 a[4] = {values[i][0], values[i + 1][0], values[i][1], values[i + 1][1]};
#pragma unroll
          for (int h = 0; h < kHalves; ++h) {
            ptx::mma_16x8x16<ValueOperand>(o_[h][(load * Values::kTilesPerLoad + i) / 2], a, weights[g][h]);
          }
        }
      }
    }
  }

  // -------------------------------------------------------------------------------------------------------------- the end of a tile

  __device__ __forceinline__ float* states() const { return reinterpret_cast<float*>(s_memory_ + Shape::kStatesAt); }
  /// Where dim `dim` of row `row` (0..7) of warp `warp`'s sums goes: eight dims stay together, every second row lies in other banks.
  __device__ __forceinline__ float* exchange(int warp, int row, int dim) const {
    float* s_sums = reinterpret_cast<float*>(s_memory_ + Shape::kExchangeAt);
    return s_sums + (warp * Shape::kHalfRows + row) * Shape::kExchangeStride + (dim ^ (row & 6) * 4);
  }

  /// What each warp's sums of a row count for in those of all.
  struct Shares {
    RowState joint = empty_state();
    float of_warp[Shape::kWarps];
  };
  __device__ __forceinline__ Shares shares_of(int row) const {
    constexpr float kUnshift = 1.0F / static_cast<float>(1 << kShift);
    Shares shares;
    float own[Shape::kWarps][2];
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) {
      load_floats(states() + w * 32 + 2 * row, own[w]);
      shares.joint.m = ptx::max_number(shares.joint.m, own[w][0]);
    }
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) {
      shares.of_warp[w] = Variant::kSoftmax ? exp2_approx(own[w][0] - base_of(shares.joint.m)) * kUnshift : 1.0F;
      shares.joint.l = ptx::fma(own[w][1], shares.of_warp[w], shares.joint.l);
    }
    return shares;
  }

  /// All warps' states become one, which is written (or folded into the tile's chunks so far).
  __device__ __forceinline__ void end_tile(const abi::WorkItem& item) {
    const int group = lane_ / 4;
    const int pair = lane_ % 4;
#pragma unroll
    for (int i = 0; i < 2 * kMaxHalves; ++i) {
      const float l = sum_of_column(state_[i / 2].l[i % 2]);
      if (group == 0) {
        float* s_state = states() + warp_ * 32 + 2 * (8 * (i / 2) + 2 * pair + i % 2);
        s_state[0] = state_[i / 2].m[i % 2];
        s_state[1] = l;
      }
    }
    const float value_factor = common_scale<c.v_scale>(value_plane<c>(p_.segments[item.segment]), item.kv_head);
#pragma unroll
    for (int half = 0; half < kMaxHalves; ++half) {
      if (8 * half >= item.row_count) break;
      if (half > 0) ptx::sync_block();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int run = 0; run < kSumTiles / Values::kTilesPerRun; ++run) {
          float x[Values::kTilesPerRun];
#pragma unroll
          for (int i = 0; i < Values::kTilesPerRun; ++i) {
            const int tile = run * Values::kTilesPerRun + i;
            x[i] = o_[half][tile / 2][tile % 2 * 2 + r];
            if constexpr (kScalesValues) x[i] *= value_scale_.unit;
          }
          const int dim = Values::column_dim(run, group);
          if (dim < c.head_dim_vo) store_floats(exchange(warp_, 2 * pair + r, dim), x);
        }
      }
      ptx::sync_block();
#pragma unroll 1
      for (int row = warp_; row < min(8, item.row_count - 8 * half); row += Shape::kWarps) {
        const Shares shares = shares_of(8 * half + row);
        end_tile_row<c, Variant>(p_, params_, item, 8 * half + row, shares.joint, value_factor, warp_dims(),
                                 [&](int dim, float(&x)[4]) { sum_warps(row, dim, shares, x); });
      }
    }
    if (is_last(item) && item.part_row >= 0) {
      arrive<c, Variant>(p_, params_, item, word());
    } else {
      ptx::sync_block();  // what the rows were read from may be written again
    }
    if (is_last(item)) {
      // Nothing of this tile is needed any more; said here, it takes no registers during the merge.
#pragma unroll
      for (int s = 0; s < Keys::kSteps; ++s) {
#pragma unroll
        for (u32& two : q_[s]) two = 0;
      }
    }
    clear();
  }

  __device__ __forceinline__ void sum_warps(int row, int dim, const Shares& shares, float (&x)[4]) const {
    x[0] = x[1] = x[2] = x[3] = 0.0F;
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) {
      float more[4];
      load_floats(exchange(w, row, dim), more);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = ptx::fma(more[i], shares.of_warp[w], x[i]);
    }
  }

  const Args& p_;
  const typename Variant::Params& params_;
  u8* s_memory_;
  int warp_, lane_;
  tile::LaneRows<Stream::kKeyBytes> key_rows_;
  tile::LaneRows<Stream::kValueBytes> value_rows_;
  int slot_ = 0;

  u32 q_[Keys::kSteps][2 * kMaxHalves];
  float o_[kMaxHalves][kSumTiles / 2][4];  // a value tile of 16 dims by the rows of a half
  ColumnState state_[kMaxHalves];
  ValueScale value_scale_;  // with kScalesValues
  ScoreFactor<c, Variant> factor_{};
  float inverse_[kMaxHalves][2], row_factors_[kMaxHalves][2];  // with kScalesQuery
  bool wide_ = false;                                          // the tile has rows in its second half
  bool described_ = false;
  typename Variant::MaskRow mask_rows_[kMaxHalves][2];
  typename Variant::LogitsRow logits_rows_[kMaxHalves][2];
};

template <Config c, class Variant>
__device__ __forceinline__ void run_decode(const Args& p) {
  static_assert(DecodeShape<c>::kSharedBytes <= c.shared_bytes);
  begin_list(p);
  UnitItems items = unit_items(p);  // the first link of the chain is under way while others are asked for
  prefetch_plan(p);
  const typename Variant::Params params = Variant::load_params(p);
  Decode<c, Variant> decode(p, params, ptx::shared_memory());
  const bool free_units = has_free_units(p);
#pragma unroll 1
  do {
    decode.run(items);
  } while (free_units && take_unit<c>(p, decode.word(), items));
  write_empty_rows<c, Variant>(p, params);
  end_list(p);
}

}  // namespace girih::attention
