// MLA with tensor cores: V is the first dims of K, up to 512 of them, and a query token's heads are the rows. Neither a row's query nor its
// sums fit a warp's registers beside the other, and each byte of shared memory is read as often as there are warps that want it. So warps
// have parts: the first ones take the scores, each of 16 rows (and, where the tile has fewer rows than warps, its share of the keys), hold
// Q, and pass weights on; the others take P V, each all rows by its share of V's dims, so that V is read once. The scores of a step are
// taken while the step before is summed; two barriers in shared memory hold the two together, and a tile's end is a turn of theirs like a
// step, so that the next tile's scores begin while its rows are written.
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
#include "ptx/mbarrier.cuh"

namespace girih::attention {

template <Config c>
struct WideShape {
  using Stream = StreamShape<c>;
  using Keys = KeyFragments<c.k_type, c.q_type, Stream::kKeyBytes>;
  using Values = ValueFragments<c.v_type, c.q_type, Stream::kValueBytes>;
  static constexpr int kScoreWarps = c.threads / ptx::kWarp - c.warps_values;
  static constexpr int kGroups = c.warps_rows;                 // score warps of different rows
  static constexpr int kSplit = kGroups > 1 ? 2 : 1;           // whose products are of all their rows, each by its part of the dims
  static constexpr int kSharers = kScoreWarps / kGroups;       // and of the same rows
  static constexpr int kWarpKeys = Stream::kStepKeys / kSharers;
  static constexpr int kRowTiles = c.tile_rows / 16;
  static constexpr int kStepPairs = Stream::kStepKeys / 16;    // of key tiles: an operand's keys
  static constexpr int kWarpDims = c.head_dim_vo / c.warps_values;
  using QueryRows = tile::SharedRows<Keys::kSteps * 32>;
  // One group is bound by memory: its value warps bring the keys, and weights have two places. Their warps have room for Q; of more
  // groups, only for its first steps.
  static constexpr bool kValuesBring = kGroups == 1;
  static constexpr int kBuffers = 2;
  // Steps under way before the first is worked on.
  static constexpr int kLead = kValuesBring ? Stream::kSlots - 1 : Stream::kSlots - 2;
  static constexpr int kHeldSteps = kGroups == 1 ? Keys::kSteps : 6;
  static constexpr int kWeightBytes = c.tile_rows * Stream::kStepKeys * 2;
  // Shared memory: the ring, Q, the step's weights as operands, room for products that warps exchange, what weights bring to the sums so far and whether they do, maxima of each
  // sharer's keys, a tile's (m) and each sharer's (l), the two barriers, a word for arrive().
  static constexpr int kQueryAt = Stream::kRingBytes;
  static constexpr int kWeightsAt = kQueryAt + (kGroups == 1 ? 0 : QueryRows::bytes(c.tile_rows));
  static constexpr int kCorrectionsAt = kWeightsAt + kBuffers * kWeightBytes;
  static constexpr int kRaisedAt = kCorrectionsAt + kBuffers * c.tile_rows * 4;
  static constexpr int kTopsAt = kRaisedAt + kBuffers * 16;
  static constexpr int kBasesAt = kTopsAt + kBuffers * kSharers * c.tile_rows * 4;
  static constexpr int kSumsAt = kBasesAt + c.tile_rows * 4;
  static constexpr int kBarriersAt = kSumsAt + kSharers * c.tile_rows * 4;
  static constexpr int kLastAt = kBarriersAt + round_up(8 * (2 * kBuffers + Stream::kSlots), 16);
  static constexpr int kSharedBytes = kLastAt + 16;
  static constexpr int kStagedBytes = 8 * kWarpDims * 4;  // of a value warp: its dims of eight rows, where a tile ends
  static_assert(bits(c.k_type) >= 8 && c.v_is_k && c.tile_rows == 16 * kGroups && kWarpKeys % 16 == 0 && kGroups <= 4);
  static_assert(kGroups % kSplit == 0 && (kSplit == 1 || kSharers == 1));
  static_assert(kWarpDims * bits(c.v_type) / 8 % 64 == 0);
  static_assert(c.warps_values * kStagedBytes <= Stream::kSlotBytes && kLead > 0);
};

/// What the parts share.
template <Config c>
struct WideMemory {
  using Shape = WideShape<c>;
  u8* s_memory;

  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(s_memory + at); }
  /// This lane's A operand of rows [16 tile, + 16) by keys [16 pair, + 16).
  __device__ __forceinline__ Vec16* weights(u32 buffer, int tile, int pair) const {
    u8* s_weights = s_memory + Shape::kWeightsAt + buffer * Shape::kWeightBytes;
    return reinterpret_cast<Vec16*>(s_weights) + (tile * Shape::kStepPairs + pair) * ptx::kWarp + ptx::lane_idx();
  }
  /// Four products of each lane of row tile `tile`, key tile n, on their way to that tile's warp: in a slot, among the rows that this warp
  /// brings there next.
  __device__ __forceinline__ float* products(int slot, int tile, int n) const {
    using Stream = typename Shape::Stream;
    static_assert(Shape::kSplit == 1 || Stream::kRows * Stream::KeyRows::kStride >= Stream::kStepKeys * 64);
    u8* s_rows = s_memory + slot * Stream::kSlotBytes + tile * Stream::kRows * Stream::KeyRows::kStride;
    return reinterpret_cast<float*>(s_rows) + (n * ptx::kWarp + ptx::lane_idx()) * 4;
  }
  __device__ __forceinline__ float* corrections(u32 buffer) const { return floats(Shape::kCorrectionsAt) + buffer * c.tile_rows; }
  __device__ __forceinline__ u32* raised(u32 buffer) const { return reinterpret_cast<u32*>(s_memory + Shape::kRaisedAt) + buffer * 4; }
  __device__ __forceinline__ float* tops(u32 buffer) const { return floats(Shape::kTopsAt) + buffer * Shape::kSharers * c.tile_rows; }
  __device__ __forceinline__ float* bases() const { return floats(Shape::kBasesAt); }
  __device__ __forceinline__ float* sums() const { return floats(Shape::kSumsAt); }
  /// A turn (a step, or a tile's end) is there for the value warps; they are done with it; keys have landed in a slot (kValuesBring).
  __device__ __forceinline__ u64* full(u32 buffer) const { return reinterpret_cast<u64*>(s_memory + Shape::kBarriersAt) + buffer; }
  __device__ __forceinline__ u64* done(u32 buffer) const { return full(Shape::kBuffers) + buffer; }
  __device__ __forceinline__ u64* landed(int slot) const { return full(2 * Shape::kBuffers) + slot; }

  __device__ __forceinline__ void init() const {
    if (ptx::thread_idx() == 0) {
#pragma unroll
      for (int i = 0; i < Shape::kBuffers; ++i) {
        ptx::mbarrier_init(full(i), Shape::kScoreWarps);
        ptx::mbarrier_init(done(i), c.warps_values);
      }
#pragma unroll 1
      for (int i = 0; i < (Shape::kValuesBring ? Shape::Stream::kSlots : 0); ++i) {
        ptx::mbarrier_init(landed(i), c.warps_values * (ptx::kWarp + 1));
      }
    }
    ptx::sync_block();
  }
  static __device__ __forceinline__ void arrive(u64* s_barrier) {
    ptx::sync_warp();
    if (ptx::lane_idx() == 0) ptx::mbarrier_arrive(s_barrier);
  }
};

// ------------------------------------------------------------------------------------------------------------------ scores

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
  /// One loop for the ring's first fill and for the work, so that the copies' code is there once. `lead`: the empty step, and those that are
  /// under way before the first is worked on.
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
      bring_keys();
      if (!works) {
        --lead;
        continue;
      }
      if (has_rows) weigh_scores(*item, range, begin, s);
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
  /// The turns so far are there for the value warps. With many rows both products need the tensor cores, and what a warp does between its
  /// scores leaves them idle: so a step is passed on only after the next one's scores.
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

  /// Raw products of this warp's rows and keys; split: over its part of the dims, and `other` those of the other warp's rows. Sums over every
  /// kApart-th step of 16 dims are kept apart: a product waits for the one before.
  __device__ __forceinline__ void scores(float (&s)[kKeyTiles][4], float (&other)[kKeyTiles][4]) const {
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
      u32 a[4];
      pack_weights<T>(s[n], s[n + 1], a);
      *s_.weights(buffer(), group_, (sharer_ * kKeyTiles + n) / 2) = Vec16{a[0], a[1], a[2], a[3]};
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
  bool described_ = false;
  typename Variant::MaskRow mask_rows_[2];
  typename Variant::LogitsRow logits_rows_[2];
};

// ------------------------------------------------------------------------------------------------------------------ values

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
      : p_(p),
        params_(params),
        s_{s_memory},
        lane_(ptx::lane_idx()),
        first_dim_(Team::warp_idx() * Shape::kWarpDims) {}

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
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        const Vec16 v = *s_.weights(buffer(), t, pair);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[t][i] = v.x[i];
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
    const float value_factor = common_scale<c.v_scale>(value_plane<c>(p_.segments[item.segment]), item.kv_head);
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

template <Config c, class Variant>
__device__ __forceinline__ void run_wide(const Args& p) {
  static_assert(WideShape<c>::kSharedBytes <= c.shared_bytes);
  ptx::wait_for_previous_grid();
  prefetch_plan(p);
  const typename Variant::Params params = Variant::load_params(p);
  u8* s_memory = ptx::shared_memory();
  WideMemory<c>{s_memory}.init();
  if (ptx::warp_idx() < WideShape<c>::kScoreWarps) {
    WideScores<c, Variant>(p, params, s_memory).run(unit_items(p));
  } else {
    WideValues<c, Variant> values(p, params, s_memory);
    values.run(unit_items(p));
    write_empty_rows<c, Variant, typename WideValues<c, Variant>::Team>(p, params);
  }
  ptx::start_next_grid();
}

}  // namespace girih::attention
