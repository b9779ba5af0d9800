// MLA with tensor cores: V is the first dims of K, up to 512 of them, and a query token's heads are the rows. Neither a row's sums nor its
// query fit a warp's registers, so the warps of a block share rows: `warps_rows` groups of warps take 16 or 32 rows each, and the warps of
// a group divide the keys for Q K^T and then V's dims for P V. Row maxima and weights go from one to the other through shared memory.
// A tile of K is read once from memory and serves both products.
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
struct WideShape {
  using Stream = StreamShape<c>;
  using Keys = KeyFragments<c.k_type, c.q_type, Stream::kKeyBytes>;
  static constexpr int kGroups = c.warps_rows;
  static constexpr int kSharers = c.threads / ptx::kWarp / kGroups;  // warps of a group
  static constexpr int kGroupRows = c.tile_rows / kGroups;
  static constexpr int kRowTiles = kGroupRows / 16;
  static constexpr int kWarpKeys = Stream::kStepKeys / kSharers;
  static constexpr int kWarpDims = c.head_dim_vo / kSharers;
  using QueryRows = tile::SharedRows<Keys::kSteps * 32>;
  using WeightRows = tile::SharedRows<Stream::kStepKeys * 2>;
  // Shared memory: the ring, Q (at a tile's end: its sums), weights, each sharer's maximum (then sum) of each row, a word for arrive().
  static constexpr int kQueryAt = Stream::kRingBytes;
  static constexpr int kWeightsAt = kQueryAt + QueryRows::bytes(c.tile_rows);
  static constexpr int kTopsAt = kWeightsAt + WeightRows::bytes(c.tile_rows);
  static constexpr int kLastAt = kTopsAt + kSharers * c.tile_rows * 4;
  static constexpr int kSharedBytes = kLastAt + 16;
  static_assert(bits(c.k_type) >= 8 && c.v_is_k && kGroupRows % 16 == 0 && kWarpKeys % 8 == 0 && kWarpDims * bits(c.v_type) / 8 % 128 == 0);
  static_assert(kGroups * 8 * c.head_dim_vo * 4 <= QueryRows::bytes(c.tile_rows));
};

template <Config c, class Variant>
class Wide {
 public:
  using Shape = WideShape<c>;
  using Stream = StreamShape<c>;
  using T = Storage<c.q_type>;
  using Keys = typename Shape::Keys;
  using EightKeys = EightKeyFragments<Stream::kKeyBytes>;
  using Values = ValueFragments<c.v_type, c.q_type, Stream::kValueBytes>;
  static constexpr int kRowTiles = Shape::kRowTiles;
  static constexpr int kKeyTiles = Shape::kWarpKeys / 8;
  static constexpr int kSumTiles = Shape::kWarpDims / 8;
  static constexpr int kValueLoads = kSumTiles / Values::kTilesPerLoad;
  static constexpr bool kEight = kKeyTiles == 1;  // 8 keys a warp

  __device__ __forceinline__ Wide(const Args& p, const typename Variant::Params& params, u8* s_memory)
      : p_(p),
        params_(params),
        s_memory_(s_memory),
        lane_(ptx::lane_idx()),
        group_(ptx::warp_idx() / Shape::kSharers),
        sharer_(ptx::warp_idx() % Shape::kSharers),
        query_rows_(lane_ & 15, lane_ >> 4),
        weight_rows_(lane_ & 15, lane_ >> 4),
        key_rows_(kEight ? EightKeys::lane_rows() : Keys::lane_rows()),
        value_rows_(Values::lane_rows()) {}

  __device__ __forceinline__ void run(UnitItems items) {
    KeyStream<c> stream(p_, items, s_memory_);
    constexpr int kLead = Stream::kSlots - 1;  // tiles that are under way before the first is worked on
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
      const u8* s_tile = s_memory_;
      if (works) s_tile = wait_for_tile();
      stream.issue_keys();
      if (!works) {
        --lead;
        continue;
      }
      if (first_row() < item->row_count) step(*item, range, begin, s_tile);  // else none of the group's rows exist
      begin += Stream::kStepKeys;
    }
  }

 private:
  __device__ __forceinline__ int first_row() const { return group_ * Shape::kGroupRows; }
  /// All warps of the group.
  __device__ __forceinline__ void sync_group() const {
    if constexpr (Shape::kGroups == 1) {
      ptx::sync_block();
    } else {
      ptx::sync_named(1 + group_, Shape::kSharers * ptx::kWarp);
    }
  }

  __device__ __forceinline__ void begin_item(const abi::WorkItem& item) {
    if (is_first(item) || is_chunk(item)) {
      ptx::sync_block();  // the last tile's rows are no longer read
      load_query_tile<c, Keys, typename Shape::QueryRows>(p_, item, false, s_memory_ + Shape::kQueryAt);
      ptx::sync_block();
      clear();
    }
    described_ = described_ && !is_first(item);
    if constexpr (kLogitsRead<Variant>) describe(item);
    factor_ = ScoreFactor<c, Variant>::make(p_, p_.segments[item.segment], item.kv_head);
  }
  __device__ __forceinline__ void end_item(const abi::WorkItem& item) {
    if (is_last(item) || is_chunk(item)) end_tile(item);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) clear_sums(state_[t], o_[t]);
  }

  __device__ __forceinline__ void describe(const abi::WorkItem& item) {
    if (described_) return;
    described_ = true;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      describe_fragment_rows<c, Variant>(p_, params_, item, first_row() + 16 * t, mask_rows_[t], logits_rows_[t]);
    }
  }

  /// The slot at work, once it has landed for all warps; the one before it is free then, and so are the weights of the step before.
  __device__ __forceinline__ const u8* wait_for_tile() {
    ptx::cp_async_wait<Stream::kSlots - 2>();
    ptx::sync_block();
    const u8* s_tile = s_memory_ + slot_ * Stream::kSlotBytes;
    s_scales_ = KeyStream<c>::scales(s_memory_, slot_) + sharer_ * Shape::kWarpKeys * Stream::kKeyScaleBytes;
    slot_ = slot_ + 1 == Stream::kSlots ? 0 : slot_ + 1;
    return s_tile;
  }

  __device__ __forceinline__ void step(const abi::WorkItem& item, const StepRange& range, int begin, const u8* s_tile) {
    float s[kRowTiles][kKeyTiles][4] = {};
    scores(s_tile + sharer_ * Shape::kWarpKeys * Stream::KeyRows::kStride, s);
    if constexpr (Stream::kKeyScales) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) scale_keys(s_scales_, s[t]);
    }
    mask_scores(item, range, begin, s);
    if constexpr (Variant::kSoftmax) share_maxima(s);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      if constexpr (Variant::kSoftmax) {
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) weigh(state_[t], s[t][n], factor_.to_base2);
      }
      if constexpr (Stream::kValueScales) scale_keys(s_scales_, s[t]);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        u8* s_weights = s_memory_ + Shape::kWeightsAt + lane_ % 4 * 4;
        const int row = first_row() + 16 * t + lane_ / 4;
        const int chunk = sharer_ * kKeyTiles + n;
        *reinterpret_cast<u32*>(s_weights + Shape::WeightRows::offset(row, chunk)) = pack<T>(s[t][n][0], s[t][n][1]);
        *reinterpret_cast<u32*>(s_weights + Shape::WeightRows::offset(row + 8, chunk)) = pack<T>(s[t][n][2], s[t][n][3]);
      }
    }
    sync_group();
    add_values(s_tile + sharer_ * (Shape::kWarpDims * bits(c.v_type) / 8));
  }

  __device__ __forceinline__ void scores(const u8* s_keys, float (&s)[kRowTiles][kKeyTiles][4]) const {
    const u8* s_query = s_memory_ + Shape::kQueryAt + first_row() * Shape::QueryRows::kStride;
    constexpr int kStepsPerLoad = kEight ? 2 : Keys::kStepsPerLoad;
    const auto query = query_rows_.in(s_query);
    const auto keys = key_rows_.in(s_keys);
#pragma unroll
    for (int load = 0; load < Keys::kSteps / kStepsPerLoad; ++load) {
      u32 a[kStepsPerLoad][kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kStepsPerLoad; ++i) {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) ptx::ldmatrix_x4(a[i][t], query.at(2 * t, load * kStepsPerLoad + i));
      }
      if constexpr (kEight) {
        static_assert(bits(c.k_type) == 16);
        u32 b[2][2];
        EightKeys::load(keys, load, b);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) ptx::mma_16x8x16<T>(s[t][0], a[i][t], b[i]);
        }
      } else {
#pragma unroll
        for (int n = 0; n < kKeyTiles; n += 2) {
          u32 b[Keys::kStepsPerLoad][2][2];
          Keys::load(keys, s_scales_, n, load, b);
#pragma unroll
          for (int i = 0; i < kStepsPerLoad; ++i) {
#pragma unroll
            for (int t = 0; t < kRowTiles; ++t) {
              ptx::mma_16x8x16<T>(s[t][n], a[i][t], b[i][0]);
              ptx::mma_16x8x16<T>(s[t][n + 1], a[i][t], b[i][1]);
            }
          }
        }
      }
    }
  }

  __device__ __forceinline__ void mask_scores(const abi::WorkItem& item, const StepRange& range, int begin,
                                              float (&s)[kRowTiles][kKeyTiles][4]) {
    const int first = begin + sharer_ * Shape::kWarpKeys;
    if constexpr (Variant::kHasLogits) {
      const FragmentKeys columns = {range.positions, first, range.end};
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) apply_logits<Variant>(params_, logits_rows_[t][half], half, columns, factor_.raw, s[t]);
      }
    } else if (factor_.negative()) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) negate(s[t]);
    }
    if (Variant::kHasMask && !range.all_visible(begin, Stream::kStepKeys)) {
      describe(item);
      const KeyList list = key_list(p_, item);
      const FragmentKeys columns = {list, first, range.end};
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) hide_masked<Variant>(params_, mask_rows_[t][half], half, columns, s[t]);
      }
    }
    if (range.end - begin < Stream::kStepKeys) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) hide_past_end<Variant>(s[t], range.end - first);
    }
  }

  __device__ __forceinline__ float* tops() const { return reinterpret_cast<float*>(s_memory_ + Shape::kTopsAt); }

  /// The group's maxima over all its keys; what has been summed follows.
  __device__ __forceinline__ void share_maxima(const float (&s)[kRowTiles][kKeyTiles][4]) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float top = top_of_row(s[t], half);
        if (lane_ % 4 == 0) tops()[sharer_ * c.tile_rows + first_row() + 16 * t + 8 * half + lane_ / 4] = top;
      }
    }
    sync_group();
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      float joint[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* s_top = tops() + first_row() + 16 * t + 8 * half + lane_ / 4;
        joint[half] = s_top[0];
#pragma unroll
        for (int w = 1; w < Shape::kSharers; ++w) joint[half] = ptx::max_number(joint[half], s_top[w * c.tile_rows]);
      }
      float correction[2];
      if (raise_maxima(state_[t], joint, factor_.to_base2, correction)) correct_sums(correction, o_[t]);
    }
  }

  __device__ __forceinline__ void add_values(const u8* s_values) {
    const u8* s_weights = s_memory_ + Shape::kWeightsAt + first_row() * Shape::WeightRows::kStride;
    const auto weights = weight_rows_.in(s_weights);
    const auto values = value_rows_.in(s_values);
#pragma unroll
    for (int k = 0; k < Stream::kStepKeys / 16; ++k) {
      u32 a[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) ptx::ldmatrix_x4(a[t], weights.at(2 * t, k));
#pragma unroll
      for (int load = 0; load < kValueLoads; ++load) {
        u32 b[Values::kTilesPerLoad][2];
        Values::load(values, s_scales_, 2 * k, load, b);
#pragma unroll
        for (int i = 0; i < Values::kTilesPerLoad; ++i) {
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) ptx::mma_16x8x16<T>(o_[t][load * Values::kTilesPerLoad + i], a[t], b[i]);
        }
      }
    }
  }

  /// Where dim `dim` of row `row` (0..7) of the group goes.
  __device__ __forceinline__ float* staged(int row, int dim) const {
    float* s_rows = reinterpret_cast<float*>(s_memory_ + Shape::kQueryAt);
    return s_rows + (group_ * 8 + row) * c.head_dim_vo + (dim ^ (row & 3) * 8);
  }

  /// Eight rows of each group at a time are laid out whole in Q's place, and written by the group's warps.
  __device__ __forceinline__ void end_tile(const abi::WorkItem& item) {
    const float value_factor = common_scale<c.v_scale>(value_plane<c>(p_.segments[item.segment]), item.kv_head);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int begin = first_row() + 16 * t + 8 * half;
        ptx::sync_block();  // Q and the rows before are no longer read
        const float l = sum_of_row(state_[t].l[half]);
        if (lane_ % 4 == 0) tops()[sharer_ * c.tile_rows + begin + lane_ / 4] = l;
#pragma unroll
        for (int run = 0; run < kSumTiles / Values::kTilesPerRun; ++run) {
          float x[Values::kRun];
          Values::take_run(o_[t], run, half, x);
          store_floats(staged(lane_ / 4, sharer_ * Shape::kWarpDims + Values::run_dim(run, lane_ % 4)), x);
        }
        ptx::sync_block();
#pragma unroll 1
        for (int row = sharer_; row < min(8, item.row_count - begin); row += Shape::kSharers) {
          RowState state = {ptx::shuffle(state_[t].m[half], 4 * row), 0.0F};
#pragma unroll
          for (int w = 0; w < Shape::kSharers; ++w) state.l += tops()[w * c.tile_rows + begin + row];
          end_tile_row<c, Variant>(p_, params_, item, begin + row, state, value_factor, warp_dims(),
                                   [&](int dim, float(&x)[4]) { load_floats(staged(row, dim), x); });
        }
      }
    }
    if (is_last(item) && item.part_row >= 0) arrive<c, Variant>(p_, params_, item, reinterpret_cast<u32*>(s_memory_ + Shape::kLastAt));
  }

  const Args& p_;
  const typename Variant::Params& params_;
  u8* s_memory_;
  int lane_, group_, sharer_;
  tile::LaneRows<Keys::kSteps * 32> query_rows_;
  tile::LaneRows<Stream::kStepKeys * 2> weight_rows_;
  tile::LaneRows<Stream::kKeyBytes> key_rows_;
  tile::LaneRows<Stream::kValueBytes> value_rows_;
  int slot_ = 0;
  const u8* s_scales_ = nullptr;  // of this warp's keys in the slot at work

  float o_[kRowTiles][kSumTiles][4];
  FragmentState state_[kRowTiles];
  ScoreFactor<c, Variant> factor_{};
  bool described_ = false;
  typename Variant::MaskRow mask_rows_[kRowTiles][2];
  typename Variant::LogitsRow logits_rows_[kRowTiles][2];
};

template <Config c, class Variant>
__device__ __forceinline__ void run_wide(const Args& p) {
  static_assert(WideShape<c>::kSharedBytes <= c.shared_bytes);
  ptx::wait_for_previous_grid();
  prefetch_plan(p);
  const typename Variant::Params params = Variant::load_params(p);
  Wide<c, Variant> wide(p, params, ptx::shared_memory());
  wide.run(unit_items(p));
  write_empty_rows<c, Variant>(p, params);
  ptx::start_next_grid();
}

}  // namespace girih::attention
