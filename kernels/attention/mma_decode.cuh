// Decode with tensor cores: up to 16 packed rows (query tokens x the heads of a KV head) against many keys, bound by memory. The rows are
// one operand kept in registers; each warp streams its own 16 keys of every step of 64 through its own rows of the ring, with its own
// softmax state, so that the loop has no barrier of the block. The warps' states meet in shared memory where a tile (or chunk) ends.
// The ring goes on over items: while a tile ends, the next one's keys are coming.
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

template <Config c>
struct DecodeShape {
  static constexpr int kWarps = c.threads / ptx::kWarp;
  static constexpr int kHalfRows = 8;  // rows that meet at a time
  static constexpr int kExchangeStride = round_up(c.head_dim_vo, 32);
  // Shared memory: the ring, every warp's half of its sums, every warp's (m, l) of each row, a word for arrive().
  static constexpr int kExchangeAt = StreamShape<c>::kRingBytes;
  static constexpr int kStatesAt = kExchangeAt + kWarps * kHalfRows * kExchangeStride * 4;
  static constexpr int kLastAt = kStatesAt + kWarps * 16 * 8;
  static constexpr int kSharedBytes = kLastAt + 16;
  static_assert(StreamShape<c>::kRows == 16 && c.tile_rows <= 16);
};

template <Config c, class Variant>
class Decode {
 public:
  using Stream = StreamShape<c>;
  using Shape = DecodeShape<c>;
  using T = Storage<c.q_type>;
  using Keys = KeyFragments<c.k_type, c.q_type, Stream::kKeyBytes>;
  using Values = ValueFragments<c.v_type, c.q_type, Stream::kValueBytes>;
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
        prefetch_merges(p_, *item);
        begin_item(*item);
        open = true;
        range = step_range<Variant>(p_, *item);
        begin = item->kv_begin;
      }
      const int first = begin + warp_ * Stream::kRows;
      const bool has_keys = works && first < range.end;  // else all of this warp's keys lie past the end
      float s[2][4] = {};
      const u8* s_rows = s_memory_;
      if (works) s_rows = wait_for_rows<typename Stream::KeyRows>();
      if (has_keys) scores(s_rows, s);
      if constexpr (!c.v_is_k) {
        if (works) leave_slot();
        stream.issue_keys();
      }
      if (has_keys) weigh_scores(*item, range, begin, first, s);
      if (!c.v_is_k && works) s_rows = wait_for_rows<typename Stream::ValueRows>();
      if (has_keys) add_values(s_rows, s);
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

  __device__ __forceinline__ void begin_item(const abi::WorkItem& item) {
    if (is_first(item)) load_query_fragments<c, Keys>(p_, item, q_);
    described_ = described_ && !is_first(item);
    if constexpr (kLogitsRead<Variant>) describe(item);
    factor_ = ScoreFactor<c, Variant>::make(p_, p_.segments[item.segment], item.kv_head);
  }

  __device__ __forceinline__ void clear() { clear_sums(state_, o_); }

  __device__ __forceinline__ void describe(const abi::WorkItem& item) {
    if (described_) return;
    described_ = true;
    describe_fragment_rows<c, Variant>(p_, params_, item, 0, mask_rows_, logits_rows_);
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

  __device__ __forceinline__ void scores(const u8* s_rows, float (&s)[2][4]) const {
    const auto rows = key_rows_.in(s_rows);
#pragma unroll
    for (int load = 0; load < Keys::kSteps / Keys::kStepsPerLoad; ++load) {
      u32 b[Keys::kStepsPerLoad][2][2];
      Keys::load(rows, own_scales<Stream::kKeyScaleBytes>(), 0, load, b);
#pragma unroll
      for (int i = 0; i < Keys::kStepsPerLoad; ++i) {
        ptx::mma_16x8x16<T>(s[0], q_[load * Keys::kStepsPerLoad + i], b[i][0]);
        ptx::mma_16x8x16<T>(s[1], q_[load * Keys::kStepsPerLoad + i], b[i][1]);
      }
    }
    if constexpr (Stream::kKeyScales) scale_keys(own_scales<Stream::kKeyScaleBytes>(), s);
  }

  /// Scales of this warp's keys in the slot at work.
  template <int kBytes>
  __device__ __forceinline__ const u8* own_scales() const {
    return KeyStream<c>::scales(s_memory_, slot_) + warp_ * Stream::kRows * kBytes;
  }

  /// Raw scores become weights; what has been summed is brought to the new maximum.
  __device__ __forceinline__ void weigh_scores(const abi::WorkItem& item, const StepRange& range, int begin, int first, float (&s)[2][4]) {
    if constexpr (Variant::kHasLogits) {
      const FragmentKeys columns = {range.positions, first, range.end};
#pragma unroll
      for (int half = 0; half < 2; ++half) apply_logits<Variant>(params_, logits_rows_[half], half, columns, factor_.raw, s);
    } else if (factor_.negative()) {
      negate(s);
    }
    if (Variant::kHasMask && !range.all_visible(begin, Stream::kStepKeys)) {
      describe(item);
      const FragmentKeys columns = {key_list(p_, item), first, range.end};
#pragma unroll
      for (int half = 0; half < 2; ++half) hide_masked<Variant>(params_, mask_rows_[half], half, columns, s);
    }
    if (range.end - first < Stream::kRows) hide_past_end<Variant>(s, range.end - first);
    if constexpr (Variant::kSoftmax) {
      const float tops[2] = {top_of_row(s, 0), top_of_row(s, 1)};
      float correction[2];
      if (raise_maxima(state_, tops, factor_.to_base2, correction)) correct_sums(correction, o_);
      weigh(state_, s[0], factor_.to_base2);
      weigh(state_, s[1], factor_.to_base2);
    }
  }

  __device__ __forceinline__ void add_values(const u8* s_rows, float (&s)[2][4]) {
    if constexpr (Stream::kValueScales) scale_keys(own_scales<Stream::kValueScaleBytes>(), s);
    u32 weights[4];
    pack_weights<T>(s[0], s[1], weights);
    const auto rows = value_rows_.in(s_rows);
#pragma unroll
    for (int load = 0; load < kValueLoads; ++load) {
      u32 b[Values::kTilesPerLoad][2];
      Values::load(rows, own_scales<Stream::kValueScaleBytes>(), 0, load, b);
#pragma unroll
      for (int i = 0; i < Values::kTilesPerLoad; ++i) ptx::mma_16x8x16<T>(o_[load * Values::kTilesPerLoad + i], weights, b[i]);
    }
  }

  // -------------------------------------------------------------------------------------------------------------- the end of a tile

  __device__ __forceinline__ float* states() const { return reinterpret_cast<float*>(s_memory_ + Shape::kStatesAt); }
  /// Where dim `dim` of row `row` (0..7) of warp `warp`'s sums goes: eight dims stay together, rows lie in different banks.
  __device__ __forceinline__ float* exchange(int warp, int row, int dim) const {
    float* s_sums = reinterpret_cast<float*>(s_memory_ + Shape::kExchangeAt);
    return s_sums + (warp * Shape::kHalfRows + row) * Shape::kExchangeStride + (dim ^ (row & 3) * 8);
  }

  /// A row's state over all warps.
  __device__ __forceinline__ RowState joint_state(int row) const {
    RowState joint = empty_state();
    const float* s_states = states() + 2 * row;
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) joint.m = ptx::max_number(joint.m, s_states[w * 32]);
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) joint.l += s_states[w * 32 + 1] * exp2_approx(s_states[w * 32] - base_of(joint.m));
    return joint;
  }

  /// All warps' states become one, which is written (or folded into the tile's chunks so far).
  __device__ __forceinline__ void end_tile(const abi::WorkItem& item) {
    const int group = lane_ / 4;
    const int pair = lane_ % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float l = sum_of_row(state_.l[half]);
      if (pair == 0) {
        float* s_state = states() + warp_ * 32 + 2 * (group + 8 * half);
        s_state[0] = state_.m[half];
        s_state[1] = l;
      }
    }
    ptx::sync_block();
    const float value_factor = common_scale<c.v_scale>(value_plane<c>(p_.segments[item.segment]), item.kv_head);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (8 * half >= item.row_count) break;
      float own = 1.0F;
      if constexpr (Variant::kSoftmax) own = exp2_approx(state_.m[half] - base_of(joint_state(group + 8 * half).m));
#pragma unroll
      for (int run = 0; run < kSumTiles / Values::kTilesPerRun; ++run) {
        float x[Values::kRun];
        Values::take_run(o_, run, half, x);
#pragma unroll
        for (int i = 0; i < Values::kRun; ++i) x[i] *= own;
        const int dim = Values::run_dim(run, pair);
        if (dim < c.head_dim_vo) store_floats(exchange(warp_, group, dim), x);
      }
      ptx::sync_block();
#pragma unroll 1
      for (int row = warp_; row < min(8, item.row_count - 8 * half); row += Shape::kWarps) {
        end_tile_row<c, Variant>(p_, params_, item, 8 * half + row, joint_state(8 * half + row), value_factor, warp_dims(),
                                 [&](int dim, float(&x)[4]) { sum_warps(row, dim, x); });
      }
      ptx::sync_block();
    }
    if (is_last(item)) {
      if (item.part_row >= 0) arrive<c, Variant>(p_, params_, item, word());
        // Nothing of this tile is needed any more; said here, it takes no registers during the merge.
#pragma unroll
      for (int s = 0; s < Keys::kSteps; ++s) q_[s][0] = q_[s][1] = q_[s][2] = q_[s][3] = 0;
    }
    clear();
  }

  __device__ __forceinline__ void sum_warps(int row, int dim, float (&x)[4]) const {
    load_floats(exchange(0, row, dim), x);
#pragma unroll
    for (int w = 1; w < Shape::kWarps; ++w) {
      float more[4];
      load_floats(exchange(w, row, dim), more);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] += more[i];
    }
  }

  const Args& p_;
  const typename Variant::Params& params_;
  u8* s_memory_;
  int warp_, lane_;
  tile::LaneRows<Stream::kKeyBytes> key_rows_;
  tile::LaneRows<Stream::kValueBytes> value_rows_;
  int slot_ = 0;

  u32 q_[Keys::kSteps][4];
  float o_[kSumTiles][4];
  FragmentState state_;
  ScoreFactor<c, Variant> factor_{};
  bool described_ = false;
  typename Variant::MaskRow mask_rows_[2];
  typename Variant::LogitsRow logits_rows_[2];
};

template <Config c, class Variant>
__device__ __forceinline__ void run_decode(const Args& p) {
  static_assert(DecodeShape<c>::kSharedBytes <= c.shared_bytes);
  ptx::wait_for_previous_grid();
  prefetch_plan(p);
  const typename Variant::Params params = Variant::load_params(p);
  Decode<c, Variant> decode(p, params, ptx::shared_memory());
  UnitItems items = unit_items(p);
  const bool free_units = has_free_units(p);
#pragma unroll 1
  do {
    decode.run(items);
  } while (free_units && take_unit<c>(p, decode.word(), items));
  write_empty_rows<c, Variant>(p, params);
  ptx::start_next_grid();
}

}  // namespace girih::attention
