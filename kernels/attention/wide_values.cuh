// MLA's value warps (mma_wide.cuh): P V of a step, each by its share of V's dims, and the end of a tile; of few rows they bring the keys.
#pragma once

#include "attention/fragment_softmax.cuh"
#include "attention/merge.cuh"
#include "attention/tile_rows.cuh"
#include "attention/wide_parts.cuh"

namespace girih::attention {

template <Config c, class Variant>
class WideValues {
 public:
  using Shape = WideShape<c>;
  using Stream = StreamShape<c>;
  using T = Storage<c.q_type>;
  using Values = typename Shape::Values;
  using Team = BlockWarps<Shape::kScoreWarps, c.warps_values, 2>;
  static constexpr bool kBrings = Shape::kValuesBring;
  static constexpr u32 kTurns = 2 * Shape::kBuffers - 1;
  static constexpr int kRowTiles = Shape::kRowTiles;
  static constexpr int kSumTiles = Shape::kWarpDims / 8;
  static constexpr int kLoads = kSumTiles / Values::kTilesPerLoad;

  __device__ __forceinline__ WideValues(const Args& p, const typename Variant::Params& params, u8* s_memory)
      : p_(p), params_(params), s_{s_memory}, lane_(ptx::lane_idx()), first_dim_(Team::warp_idx() * Shape::kWarpDims) {}

  __device__ __forceinline__ void run(UnitItems items) {
    if constexpr (kBrings) {
      KeyStream<c> stream(p_, items, s_.s_memory, Team::warp_idx());
      int slot = Stream::kSlots - 1;  // of the empty step
      run(items, 1 + Shape::kLead, [&] {
        const bool brings = stream.has_step();
        stream.issue_keys();
        if (brings) {
          ptx::mbarrier_arrive_after_copies(s_.landed(slot));
          s_.arrive(s_.landed(slot));  // what could not be copied asynchronously
        }
        slot = slot + 1 == Stream::kSlots ? 0 : slot + 1;
      });
      return;
    }
    clear();
#pragma unroll 1
    for (const abi::WorkItem* item = items.begin; item != items.end; ++item) {
      if (item->row_count == 0) continue;
#pragma unroll 1
      for (int left = num_steps(*item); left > 0; --left) step();
      end_item(*item);
    }
  }

 private:
  /// As in WideScores.
  template <class BringKeys>
  __device__ __forceinline__ void run(UnitItems items, int lead, const BringKeys& bring_keys) {
    const abi::WorkItem* item = items.begin;
    bool open = false;
    int left = 0;  // steps of the item
    clear();
#pragma unroll 1
    while (true) {
      const bool works = lead == 0;
#pragma unroll 1
      while (works && left <= 0) {
        if (open) end_item(*item++);
        while (item != items.end && item->row_count == 0) ++item;
        if (item == items.end) return;
        open = true;
        left = num_steps(*item);
      }
      if (works) Team::sync();  // all have left the slot of the step before
      bring_keys();
      if (works) {
        step();
        --left;
      } else {
        --lead;
      }
    }
  }
  static __device__ __forceinline__ int num_steps(const abi::WorkItem& item) {
    return ceil_div(item.kv_end - item.kv_begin, Stream::kStepKeys);
  }

  __device__ __forceinline__ void step() {
    wait_for_turn();
    if constexpr (Variant::kSoftmax) correct();
    add_values();
    end_turn();
    slot_at_ = slot_at() + Stream::kSlotBytes == Stream::kScalesAt ? slot_at_ & kTurns : slot_at_ + Stream::kSlotBytes;
  }

  __device__ __forceinline__ void end_item(const abi::WorkItem& item) {
    if (!is_last(item) && !is_chunk(item)) return;
    wait_for_turn();
    end_tile(item);
    end_turn();
    if (is_last(item) && item.part_row >= 0) {
      arrive<c, Variant, Team>(p_, params_, item, reinterpret_cast<u32*>(s_.s_memory + Shape::kLastAt));
    }
    clear();  // said here, the sums take no registers during the merge
  }

  __device__ __forceinline__ u32 buffer() const { return slot_at_ % Shape::kBuffers; }
  __device__ __forceinline__ void wait_for_turn() const { ptx::mbarrier_wait(s_.full(buffer()), (slot_at_ & kTurns) / Shape::kBuffers); }
  __device__ __forceinline__ void end_turn() {
    s_.arrive(s_.done(buffer()));
    slot_at_ = slot_at() | ((slot_at_ + 1) & kTurns);
  }
  __device__ __forceinline__ u32 slot_at() const { return slot_at_ & ~kTurns; }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kSumTiles; ++n) o_[t][n][0] = o_[t][n][1] = o_[t][n][2] = o_[t][n][3] = 0.0F;
    }
  }

  /// What has been summed follows the rows' bases.
  __device__ __forceinline__ void correct() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      if (s_.raised(buffer())[t] == 0) continue;
      const float* s_correction = s_.corrections(buffer()) + 16 * t + lane_ / 4;
      const float correction[2] = {s_correction[0], s_correction[8]};
      correct_sums(correction, o_[t]);
    }
  }

  __device__ __forceinline__ void add_values() {
    const auto rows = Values::lane_rows(ptx::opaque(lane_));
#pragma unroll 1
    for (int pair = 0; pair < Shape::kStepPairs; ++pair) {
      const auto values = rows.place_in(s_.s_memory + slot_at(), first_dim_ * bits(c.v_type) / 256);
      u32 a[kRowTiles][4];
      if constexpr (Stream::kGroupScales) {
        take_scaled_weights(pair, a);
      } else {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          const Vec16 v = *s_.weights(buffer(), t, pair);
#pragma unroll
          for (int i = 0; i < 4; ++i) a[t][i] = v.x[i];
        }
      }
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        u32 b[Values::kTilesPerLoad][2];
        Values::load(values, nullptr, 2 * pair, load, b);
#pragma unroll
        for (int n = 0; n < Values::kTilesPerLoad; ++n) {
#pragma unroll
          for (int t = 0; t < kRowTiles; ++t) ptx::mma_16x8x16<T>(o_[t][load * Values::kTilesPerLoad + n], a[t], b[n]);
        }
      }
    }
  }

  /// Weights of keys [16 pair, + 16) times the scales that this warp's dims of them have.
  __device__ __forceinline__ void take_scaled_weights(int pair, u32 (&a)[kRowTiles][4]) const {
    const u8* s_scales = KeyStream<c>::scales(s_.s_memory, static_cast<int>(slot_at()) / Stream::kSlotBytes) +
                         first_dim_ / kScaleGroup * 4 + (16 * pair + lane_ % 4 * 2) * Stream::kKeyScaleBytes;
    float scale[2][2];  // of keys 2 (lane % 4) + 8 i + j
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) scale[i][j] = *reinterpret_cast<const float*>(s_scales + (8 * i + j) * Stream::kKeyScaleBytes);
    }
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      float x[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_floats(reinterpret_cast<const float*>(s_.weights(buffer(), t, pair, i)), x[i]);
#pragma unroll
        for (int j = 0; j < 4; ++j) x[i][j] *= scale[i][j % 2];
      }
      pack_weights<T>(x[0], x[1], a[t]);
    }
  }

  /// Where this warp's dim `dim` of row `row` (0..7) goes: the slot that the tile's last step has left.
  __device__ __forceinline__ float* staged(int row, int dim) const {
    const u32 left_at = slot_at() == 0 ? Stream::kScalesAt - Stream::kSlotBytes : slot_at() - Stream::kSlotBytes;
    float* s_own = reinterpret_cast<float*>(s_.s_memory + left_at) + 8 * first_dim_;
    return s_own + row * Shape::kWarpDims + (dim ^ (row & 3) * 8);
  }
  __device__ __forceinline__ void stage(const float (&o)[kSumTiles][4], int half, int lane) const {
#pragma unroll
    for (int run = 0; run < kSumTiles / Values::kTilesPerRun; ++run) {
      float x[Values::kRun];
      Values::take_run(o, run, half, x);
      store_floats(staged(lane / 4, Values::run_dim(run, lane % 4)), x);
    }
  }

  /// Eight rows at a time; each warp writes its dims.
  __device__ __forceinline__ void end_tile(const abi::WorkItem& item) {
    const abi::PlaneArg& plane = value_plane<c>(p_.segments[item.segment]);
    const float value_factor = Stream::kGroupScales ? plane.global_scale : common_scale<c.v_scale>(plane, item.kv_head);
    // Worked out here: the loop over steps has no registers for it.
    const int lane = ptx::opaque(lane_);
    const int first_dim = ptx::opaque(first_dim_);
    LaneDims dims = {.first = first_dim + 4 * (lane % 4), .step = 16, .leads = first_dim == 0 && lane % 4 == 0};
    dims.end = first_dim + Shape::kWarpDims;
    Team::sync();  // all have left the slot
#pragma unroll 1
    for (int row8 = 0; 8 * row8 < item.row_count; ++row8) {
#pragma unroll
      for (int i = 0; i < 2 * kRowTiles; ++i) {
        if (i == row8) stage(o_[i / 2], i % 2, lane);
      }
      ptx::sync_warp();
      const int row = 8 * row8 + lane / 4;
      dims.exists = row < item.row_count;
      RowState state = {s_.bases()[row], 0.0F};
#pragma unroll
      for (int w = 0; w < Shape::kSharers; ++w) state.l += s_.sums()[w * c.tile_rows + row];
      end_tile_row<c, Variant, Team>(p_, params_, item, min(row, item.row_count - 1), state, value_factor, dims,
                                     [&](int dim, float(&x)[4]) { load_floats(staged(lane / 4, dim - first_dim), x); });
      ptx::sync_warp();
    }
  }

  const Args& p_;
  const typename Variant::Params& params_;
  WideMemory<c> s_;
  int lane_, first_dim_;
  u32 slot_at_ = 0;  // where the slot at work lies, and in the lowest bits (kTurns) the turn's number. Registers are dear.
  float o_[kRowTiles][kSumTiles][4];
};

}  // namespace girih::attention
