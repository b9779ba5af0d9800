// MLA's score warps (mma_wide.cuh): Q K^T of a step, hooks and softmax, and weights for the value warps; of many rows they bring the keys.
#pragma once

#include "attention/fragment_softmax.cuh"
#include "attention/merge.cuh"
#include "attention/query_fragments.cuh"
#include "attention/wide_parts.cuh"

namespace girih::attention {

template <Config c, class Variant>
class WideScores {
 public:
  using Shape = WideShape<c>;
  using Stream = StreamShape<c>;
  using T = Storage<c.q_type>;
  using Keys = typename Shape::Keys;
  static constexpr int kKeyTiles = Shape::kWarpKeys / 8;
  static constexpr int kSplit = Shape::kSplit;
  static constexpr int kAllLoads = Keys::kSteps / Keys::kStepsPerLoad;
  static constexpr int kLoads = (kAllLoads + kSplit - 1) / kSplit;  // of one part of the dims
  static constexpr int kSteps = kLoads * Keys::kStepsPerLoad;
  static constexpr int kHeldSteps = Shape::kHeldSteps;
  static constexpr bool kBrings = !Shape::kValuesBring;
  static constexpr u32 kBuffers = Shape::kBuffers;

  __device__ __forceinline__ WideScores(const Args& p, const typename Variant::Params& params, u8* s_memory)
      : p_(p),
        params_(params),
        s_{s_memory},
        lane_(ptx::lane_idx()),
        group_(ptx::warp_idx() / Shape::kSharers),
        part_(group_ % kSplit),
        sharer_(ptx::warp_idx() % Shape::kSharers),
        query_rows_(lane_ & 15, lane_ >> 4),
        key_rows_(Keys::lane_rows()) {}

  __device__ __forceinline__ void run(UnitItems items) {
    if constexpr (kBrings) {
      KeyStream<c> stream(p_, items, s_.s_memory);
      run(items, 1 + Shape::kLead, [&] { stream.issue_keys(); });
    } else {
      run(items, 0, [] {});
    }
  }

 private:
  /// One loop for the ring's first fill and for the work, so that the copies' code is there once. `lead`: the empty step, and those that
  /// are under way before the first is worked on.
  template <class BringKeys>
  __device__ __forceinline__ void run(UnitItems items, int lead, const BringKeys& bring_keys) {
    const abi::WorkItem* item = items.begin;
    bool open = false;      // `item` has begun
    bool has_rows = false;  // of this warp's
    StepRange range{};
    int begin = 0;
#pragma unroll 1
    while (true) {
      const bool works = !kBrings || lead == 0;
#pragma unroll 1
      while (works && begin >= range.end) {  // an item may have no keys
        if (open) end_item(*item++);
        while (item != items.end && item->row_count == 0) ++item;
        if (item == items.end) return;
        prefetch_merges<c>(p_, *item);
        begin_item(*item);
        open = true;
        has_rows = first_product_row() < item->row_count;
        range = step_range<Variant>(p_, *item);
        begin = item->kv_begin;
      }
      float s[kKeyTiles][4];
      if (works) {
        wait_for_keys();
        float other[kKeyTiles][4];
        if (has_rows) scores(s, other);
        if constexpr (kBrings) pass_on();
        wait_for_turn(turn_ - kBuffers);  // whose place this one takes
        if (has_rows) exchange(s, other);
      }
      if (works && has_rows) weigh_scores(*item, range, begin, s);
      bring_keys();
      if (!works) {
        --lead;
        continue;
      }
      ++turn_;
      if constexpr (!kBrings) pass_on();
      if (++slot_ == Stream::kSlots) {
        slot_ = 0;
        landed_parity_ ^= 1;
      }
      begin += Stream::kStepKeys;
    }
  }

  __device__ __forceinline__ int first_row() const { return group_ * 16; }
  __device__ __forceinline__ int first_product_row() const { return (group_ - part_) * 16; }
  static __device__ __forceinline__ void sync_scores() { ptx::sync_named(1, Shape::kScoreWarps * ptx::kWarp); }

  __device__ __forceinline__ u32 buffer() const { return turn_ % kBuffers; }
  /// The value warps are done with a turn.
  __device__ __forceinline__ void wait_for_turn(u32 turn) const { ptx::mbarrier_wait(s_.done(turn % kBuffers), turn / kBuffers & 1); }
  /// The turn before is there for the value warps, if it has not been passed on: of many rows, only after the next step's scores.
  __device__ __forceinline__ void pass_on() {
    if (passed_ == turn_) return;
    s_.arrive(s_.full(passed_ % kBuffers));
    ++passed_;
  }
  __device__ __forceinline__ void wait_for_keys() const {
    if constexpr (kBrings) {
      ptx::cp_async_wait<Shape::kLead - 1>();
      sync_scores();
    } else {
      ptx::mbarrier_wait(s_.landed(slot_), landed_parity_);
    }
  }

  __device__ __forceinline__ void begin_item(const abi::WorkItem& item) {
    if (is_first(item)) load_query_rows(item);
    if (is_first(item) || is_chunk(item)) state_ = {};
    described_ = described_ && !is_first(item);
    if constexpr (kLogitsRead<Variant>) describe(item);
    factor_ = ScoreFactor<c, Variant>::make(p_, p_.segments[item.segment], item.kv_head);
    if constexpr (Stream::kGroupScales) group_factor_ = p_.segments[item.segment].k.global_scale;
  }
  /// The last tile's Q is no longer read: its last step has been summed.
  __device__ __forceinline__ void load_query_rows(const abi::WorkItem& item) {
    if constexpr (Shape::kGroups == 1) {
      u32 q[kHeldSteps][4];
      load_query_fragments<c, Keys>(p_, item, q);
#pragma unroll
      for (int i = 0; i < kHeldSteps; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) q_[i][0][j] = q[i][j];
      }
    } else {
      constexpr int kThreads = Shape::kScoreWarps * ptx::kWarp;
      u8* s_query = s_.s_memory + Shape::kQueryAt;
      load_query<c, Keys, typename Shape::QueryRows, c.tile_rows, kThreads>(p_, item, 0, ptx::thread_idx(), false, s_query);
      sync_scores();
      const auto query = query_rows_.in(s_query + first_product_row() * Shape::QueryRows::kStride, part_ * kSteps);
#pragma unroll
      for (int i = 0; i < kHeldSteps; ++i) {
#pragma unroll
        for (int t = 0; t < kSplit; ++t) ptx::ldmatrix_x4(q_[i][t], query.at(2 * t, i));
      }
    }
  }
  /// A tile's end: its states are a turn of their own.
  __device__ __forceinline__ void end_item(const abi::WorkItem& item) {
    if (!is_last(item) && !is_chunk(item)) return;
    pass_on();
    wait_for_turn(turn_ - 1);  // and so the tile before's states have been read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row() + 8 * half + lane_ / 4;
      const float l = sum_of_row(state_.l[half]);
      if (lane_ % 4 == 0) {
        if (sharer_ == 0) s_.bases()[row] = state_.m[half];
        s_.sums()[sharer_ * c.tile_rows + row] = l;
      }
    }
    ++turn_;
    pass_on();
  }

  __device__ __forceinline__ void describe(const abi::WorkItem& item) {
    if (described_) return;
    described_ = true;
    describe_fragment_rows<c, Variant>(p_, params_, item, first_row(), mask_rows_, logits_rows_);
  }

  /// Raw products of this warp's rows and keys; split: over its part of the dims, and `other` those of the other warp's rows. Sums over
  /// every kApart-th step of 16 dims are kept apart: a product waits for the one before.
  __device__ __forceinline__ void scores(float (&s)[kKeyTiles][4], float (&other)[kKeyTiles][4]) const {
    if constexpr (!Stream::kGroupScales) {
      plain_scores(s, other);
    } else if constexpr (kSplit == 1) {
      grouped_scores<0>(s, other);
    } else if (part_ == 0) {
      grouped_scores<0>(s, other);
    } else {
      grouped_scores<1>(s, other);
    }
  }
  __device__ __forceinline__ void plain_scores(float (&s)[kKeyTiles][4], float (&other)[kKeyTiles][4]) const {
    constexpr int kApart = max(1, 8 / (kKeyTiles * kSplit));
    constexpr int kAhead = 2;
    constexpr int kPairs = kKeyTiles / 2;
    float sums[kApart][kSplit][kKeyTiles][4] = {};
    u32 b[kAhead + 1][kPairs][Keys::kStepsPerLoad][2][2];
    u32 a[2][kSplit][4];
    const u8* s_keys = s_.s_memory + slot_ * Stream::kSlotBytes + sharer_ * Shape::kWarpKeys * Stream::KeyRows::kStride;
    const auto keys = key_rows_.in(s_keys, part_ * kLoads);
    const auto query = query_rows_.in(s_.s_memory + Shape::kQueryAt + first_product_row() * Shape::QueryRows::kStride, part_ * kSteps);
    // An odd number of loads leaves the last part one less.
    const auto exists = [&](int load) { return kLoads * kSplit == kAllLoads || load + 1 < kLoads || part_ == 0; };
    const auto load_keys = [&](int load) {
      if (!exists(load)) return;
#pragma unroll
      for (int n = 0; n < kPairs; ++n) Keys::load(keys, nullptr, 2 * n, load, b[load % (kAhead + 1)][n]);
    };
#pragma unroll
    for (int load = 0; load < kAhead; ++load) load_keys(load);
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      if (load + kAhead < kLoads) load_keys(load + kAhead);
      if (!exists(load)) break;
#pragma unroll
      for (int i = 0; i < Keys::kStepsPerLoad; ++i) {
        const int step = load * Keys::kStepsPerLoad + i;
        if (step + 1 >= kHeldSteps && step + 1 < kSteps) {
#pragma unroll
          for (int t = 0; t < kSplit; ++t) ptx::ldmatrix_x4(a[(step + 1) % 2][t], query.at(2 * t, step + 1));
        }
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int t = 0; t < kSplit; ++t) {
            const u32(*q)[4] = step < kHeldSteps ? q_[step] + t : a[step % 2] + t;
            ptx::mma_16x8x16<T>(sums[step % kApart][t][n], *q, b[load % (kAhead + 1)][n / 2][i][n % 2]);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[n][j] = kSplit > 1 && part_ == 1 ? sums[0][kSplit - 1][n][j] : sums[0][0][n][j];
#pragma unroll
        for (int i = 1; i < kApart; ++i) s[n][j] += sums[i][0][n][j];
      }
    }
    if constexpr (kSplit > 1) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) other[n][j] = part_ == 1 ? sums[0][0][n][j] : sums[0][1][n][j];
      }
    }
  }
  /// K whose codes have scales by groups of dims: a group's products are summed apart and join the others times the key's scale, so that
  /// neither is rounded before. kPart: of the dims, where two warps share them; the first has codes only.
  template <int kPart>
  __device__ __forceinline__ void grouped_scores(float (&s)[kKeyTiles][4], float (&other)[kKeyTiles][4]) const {
    constexpr bool kHasRope = kSplit == 1 || kPart == 1;
    constexpr int kFirstLoad = kPart * kLoads;
    constexpr int kCodeLoads = kHasRope ? Keys::kCodeLoads - kFirstLoad : kLoads;
    constexpr int kPartLoads = kCodeLoads + (kHasRope ? Keys::kRopeLoads : 0);
    constexpr int kPartSteps = kCodeLoads + kPartLoads;
    constexpr int kPairs = kKeyTiles / 2;
    static_assert(kSplit == 1 || kLoads <= Keys::kCodeLoads);
    float total[kSplit][kKeyTiles][4] = {};
    float sums[kSplit][kKeyTiles][4] = {};  // one each: more, which would wait for each other less, are spilled
    u32 codes[2][kPairs][2][2][2];
    u32 rope[2][kPairs][1][2][2];
    u32 a[2][kSplit][4];
    const u8* s_keys = s_.s_memory + slot_ * Stream::kSlotBytes + sharer_ * Shape::kWarpKeys * Stream::KeyRows::kStride;
    const u8* s_scales = KeyStream<c>::scales(s_.s_memory, slot_) + sharer_ * Shape::kWarpKeys * Stream::kKeyScaleBytes;
    const auto keys = key_rows_.in(s_keys, kFirstLoad);
    const auto query = query_rows_.in(s_.s_memory + Shape::kQueryAt + first_product_row() * Shape::QueryRows::kStride, kPart * kSteps);
    const auto load_keys = [&](int load) {
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        if (load < kCodeLoads) {
          Keys::Codes::load(keys, nullptr, 2 * n, load, codes[load % 2][n]);
        } else {
          Keys::RopePart::load(keys, nullptr, 2 * n, load, rope[load % 2][n]);
        }
      }
    };
    const auto load_query = [&](int step) {
      if (step < kHeldSteps || step >= kPartSteps) return;
#pragma unroll
      for (int t = 0; t < kSplit; ++t) ptx::ldmatrix_x4(a[step % 2][t], query.at(2 * t, step));
    };
    const auto multiply = [&](int step, int n, const u32(&b)[2]) {
#pragma unroll
      for (int t = 0; t < kSplit; ++t) {
        const u32(*q)[4] = step < kHeldSteps ? q_[step] + t : a[step % 2] + t;
        ptx::mma_16x8x16<T>(sums[t][n], *q, b);
      }
    };
    // What has been summed since the last time joins the rest; `group`: whose codes it was, or -1.
    const auto join = [&](int group) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        float scale[2] = {1.0F, 1.0F};
        if (group >= 0) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const u8* s_key = s_scales + fragment_key(n, i) * Stream::kKeyScaleBytes;
            scale[i] = reinterpret_cast<const float*>(s_key)[group] * group_factor_;
          }
        }
#pragma unroll
        for (int t = 0; t < kSplit; ++t) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            total[t][n][j] = ptx::fma(sums[t][n][j], scale[j % 2], total[t][n][j]);
            sums[t][n][j] = 0.0F;
          }
        }
      }
    };
    load_keys(0);
    load_query(0);
#pragma unroll
    for (int load = 0; load < kPartLoads; ++load) {
      const bool is_code = load < kCodeLoads;
      const int first_step = is_code ? 2 * load : kCodeLoads + load;
      if (load + 1 < kPartLoads) load_keys(load + 1);
#pragma unroll
      for (int i = 0; i < (is_code ? 2 : 1); ++i) {
        load_query(first_step + i + 1);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          if (is_code) {
            multiply(first_step + i, n, codes[load % 2][n / 2][i][n % 2]);
          } else {
            multiply(first_step + i, n, rope[load % 2][n / 2][0][n % 2]);
          }
        }
      }
      const int done = kFirstLoad + load + 1;  // loads of codes
      if (is_code && (done % Keys::kLoadsPerGroup == 0 || load + 1 == kCodeLoads)) join((done - 1) / Keys::kLoadsPerGroup);
    }
    if constexpr (kHasRope && Keys::kRopeLoads > 0) join(-1);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[n][j] = total[kPart][n][j];
        if constexpr (kSplit > 1) other[n][j] = total[1 - kPart][n][j];
      }
    }
  }
  /// The other warp gets the products of its rows, and the other part of the dims joins: in the slot that is filled next.
  __device__ __forceinline__ void exchange(float (&s)[kKeyTiles][4], const float (&other)[kKeyTiles][4]) const {
    if constexpr (kSplit == 1) return;
    const int slot = slot_ < 2 ? slot_ + Stream::kSlots - 2 : slot_ - 2;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) store_floats(s_.products(slot, group_ ^ 1, n), other[n]);
    ptx::sync_named(3 + group_ / 2, 2 * ptx::kWarp);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      float joins[4];
      load_floats(s_.products(slot, group_, n), joins);
#pragma unroll
      for (int j = 0; j < 4; ++j) s[n][j] += joins[j];
    }
    ptx::sync_warp();
  }

  /// Scores become weights, for the value warps to take up.
  __device__ __forceinline__ void weigh_scores(const abi::WorkItem& item, const StepRange& range, int begin, float (&s)[kKeyTiles][4]) {
    const u8* s_scales = KeyStream<c>::scales(s_.s_memory, slot_) + sharer_ * Shape::kWarpKeys * Stream::kKeyScaleBytes;
    if constexpr (Stream::kKeyScales) scale_keys(s_scales, s);
    mask_scores(item, range, begin, s);
    if constexpr (Variant::kSoftmax) {
      raise_base(s);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) weigh(state_, s[n], factor_.to_base2);
    }
    if constexpr (Stream::kValueScales) scale_keys(s_scales, s);
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      const int pair = (sharer_ * kKeyTiles + n) / 2;
      if constexpr (Stream::kGroupScales) {
        store_floats(reinterpret_cast<float*>(s_.weights(buffer(), group_, pair, 0)), s[n]);
        store_floats(reinterpret_cast<float*>(s_.weights(buffer(), group_, pair, 1)), s[n + 1]);
      } else {
        u32 a[4];
        pack_weights<T>(s[n], s[n + 1], a);
        *s_.weights(buffer(), group_, pair) = Vec16{a[0], a[1], a[2], a[3]};
      }
    }
  }

  __device__ __forceinline__ void mask_scores(const abi::WorkItem& item, const StepRange& range, int begin, float (&s)[kKeyTiles][4]) {
    const int first = begin + sharer_ * Shape::kWarpKeys;
    if constexpr (Variant::kHasLogits) {
      const FragmentKeys columns = {range.positions, first, range.end};
#pragma unroll
      for (int half = 0; half < 2; ++half) apply_logits<Variant>(params_, logits_rows_[half], half, columns, factor_.raw, s);
    } else if (factor_.negative()) {
      negate(s);
    }
    if (Variant::kHasMask && !range.all_visible(begin, Stream::kStepKeys)) {
      describe(item);
      const KeyList list = key_list(p_, item);
      const FragmentKeys columns = {list, first, range.end};
#pragma unroll
      for (int half = 0; half < 2; ++half) hide_masked<Variant>(params_, mask_rows_[half], half, columns, s);
    }
    if (range.end - begin < Stream::kStepKeys) hide_past_end<Variant>(s, range.end - first);
  }

  /// Raises the rows' bases where a score of any sharer's is too far above; the value warps are told what that brings to their sums.
  __device__ __forceinline__ void raise_base(const float (&s)[kKeyTiles][4]) {
    constexpr float kMost = Stream::kValueScales ? 0.0F : kSlack<c.q_type>;
    float tops[2];
    bool exceeds = false;
    if constexpr (Shape::kSharers == 1) {
      exceeds = ptx::any(exceeds_base(state_, s, factor_.to_base2, kMost));
      if (exceeds) {
        tops[0] = top_of_row(s, 0);
        tops[1] = top_of_row(s, 1);
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float top = top_of_row(s, half);
        if (lane_ % 4 == 0) s_.tops(buffer())[sharer_ * c.tile_rows + first_row() + 8 * half + lane_ / 4] = top;
      }
      sync_scores();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* s_top = s_.tops(buffer()) + first_row() + 8 * half + lane_ / 4;
        tops[half] = s_top[0];
#pragma unroll
        for (int w = 1; w < Shape::kSharers; ++w) tops[half] = ptx::max_number(tops[half], s_top[w * c.tile_rows]);
        exceeds = exceeds || tops[half] * factor_.to_base2 > state_.m[half] + kMost;
      }
      exceeds = ptx::any(exceeds);
    }
    float corrections[2];
    const bool raised = exceeds && raise_maxima(state_, tops, factor_.to_base2, corrections);
    if (sharer_ != 0) return;
    if (raised && lane_ % 4 == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) s_.corrections(buffer())[first_row() + 8 * half + lane_ / 4] = corrections[half];
    }
    if (lane_ == 0) s_.raised(buffer())[group_] = raised ? 1 : 0;
  }

  const Args& p_;
  const typename Variant::Params& params_;
  WideMemory<c> s_;
  int lane_, group_, part_, sharer_;
  tile::LaneRows<Keys::kSteps * 32> query_rows_;
  tile::LaneRows<Stream::kKeyBytes> key_rows_;
  u32 turn_ = 0, passed_ = 0;  // the turn at work, and the first that has not been passed on
  int slot_ = 0;
  u32 landed_parity_ = 0;

  u32 q_[kHeldSteps][kSplit][4];
  FragmentState state_;
  ScoreFactor<c, Variant> factor_{};
  float group_factor_ = 1.0F;  // of scales of groups
  bool described_ = false;
  typename Variant::MaskRow mask_rows_[2];
  typename Variant::LogitsRow logits_rows_[2];
};

}  // namespace girih::attention
