// Prefill on Hopper (FlashAttention-3, arXiv 2407.08608): one block a multiprocessor, whose warps have roles (wgmma_shape.cuh). Producers
// keep the rings of K and V full; each consuming warpgroup has 64 query rows, their sums O in registers, and sees every step of keys. Of a
// consumer's step: the products S = Q K^T of this step and O += P V of the step before are issued together; while the latter run, S becomes
// weights P, which stay in registers as the operand of the next step's O += P V. The two warpgroups take turns at issuing, so that one
// computes weights while the other's products have the tensor cores. Only the tile's end waits for everything, and by then the producers
// are at the next tile.
// With Q, K and V of 8 bits both products are of such: weights become e4m3, four neighbouring ones of which a lane has in the order in
// which V's keys are laid out (wgmma_transpose.cuh); they are taken times 2^kShift, so that more of them are above the type's least
// numbers. 2^x then takes as long as the products: the sums of P V, apart from O, are waited for before weights are made, so that all else
// is done in the time of 2^x, and the turn is passed only there.
#pragma once

#include "attention/config.cuh"
#include "attention/fragment_softmax.cuh"
#include "attention/key_stream.cuh"
#include "attention/merge.cuh"
#include "attention/output.cuh"
#include "attention/problem.cuh"
#include "attention/query_fragments.cuh"
#include "attention/state.cuh"
#include "attention/wgmma_producer.cuh"
#include "attention/wgmma_shape.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_fp8.cuh"

namespace girih::attention {

// Named barriers of the block (workers' own is kWorkersBarrier).
inline constexpr int kTurnBarrier = 1;                     // + warpgroup: whose turn it is
inline constexpr int kGroupBarrier = kWorkersBarrier + 1;  // + warpgroup

/// Weights of four neighbouring key tiles as the A operand of 32 keys, in the order of wgmma_transpose.cuh.
__device__ __forceinline__ void pack_weights_e4m3(const float (&s0)[4], const float (&s1)[4], const float (&s2)[4], const float (&s3)[4],
                                                  u32 (&a)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    a[half] = ptx::f32_pair_to_e4m3(s0[2 * half], s0[2 * half + 1]) | ptx::f32_pair_to_e4m3(s1[2 * half], s1[2 * half + 1]) << 16;
    a[2 + half] = ptx::f32_pair_to_e4m3(s2[2 * half], s2[2 * half + 1]) | ptx::f32_pair_to_e4m3(s3[2 * half], s3[2 * half + 1]) << 16;
  }
}

template <Config c, class Variant>
class WgmmaPrefill {
 public:
  using Shape = WgmmaShape<c, Variant>;
  using T = Storage<c.q_type>;
  static constexpr int kKeyTiles = c.kv_block / 8;
  static constexpr int kSumTiles = c.head_dim_vo / 8;
  static constexpr bool kFp8 = Shape::kTransposes;
  static constexpr bool kScaled = c.k_scale != Scale::none;                          // K and V have scales that their heads share
  static constexpr int kValueProducts = c.kv_block * Shape::kElement / kProductRow;  // of a step, in P V
  static constexpr int kWords = (c.kv_block + 31) / 32;                              // of masks
  static constexpr bool kFixed = kFixedMaximum<c, Variant>;
  // e4m3 ends at 448: 2^(kShift + kWeightSlack) must not exceed it.
  static constexpr int kShift = kFp8 ? 6 : 0;
  static constexpr float kUnshift = 1.0F / static_cast<float>(1 << kShift);
  static constexpr float kWeightSlack = kFp8 ? 2.75F : kSlack<c.q_type>;
  static constexpr bool kWritesPairs = !kFp8 && bits(c.o_type) == 16 && !RowWriter<c, Variant>::kHooked;
  // Sums of 8-bit products keep few bits: those of a step are added to O in f32, a part of its dims at a time where registers are short.
  static constexpr bool kInParts = kFp8 && (c.head_dim_vo > 128 || c.batch_invariant || Variant::kHasLogits);
  static constexpr int kParts = kInParts ? c.head_dim_vo / 64 : 1;
  static constexpr int kPartTiles = kSumTiles / kParts;
  static constexpr int kChains = kFp8 ? 4 : 1;
  static constexpr int kRun = kFp8 ? 4 : 8;  // neighbouring dims of a row that a lane writes at a time
  static constexpr int kGroups = c.workers() / (kGroupWarps * ptx::kWarp);
  static constexpr bool kTakesTurns = kGroups > 1;
  static constexpr int kTurnThreads = 2 * kGroupWarps * ptx::kWarp;  // whose turn it was, and whose it is

  __device__ __forceinline__ WgmmaPrefill(const Args& p, const typename Variant::Params& params, u8* s_memory)
      : p_(p),
        params_(params),
        s_memory_(s_memory),
        barriers_(s_memory),
        warp_(ptx::warp_idx()),
        lane_(ptx::lane_idx()),
        query_(ptx::rows_along_mn(s_memory + Shape::kQueryAt + group() * kGroupRows * kStackRow)),
        keys_(ptx::rows_along_mn(s_memory + Shape::kKeysAt)),
        values_(kFp8 ? ptx::rows_along_mn(s_memory + Shape::kValuesAt) : ptx::rows_along_k(s_memory + Shape::kValuesAt, Shape::kStack)) {}

  __device__ __forceinline__ void run(UnitItems items) {
    if (kTakesTurns && group() == kGroups - 1) ptx::arrive_named(kTurnBarrier, kTurnThreads);
#pragma unroll 1
    for (int i = 0; i < p_.num_segments; ++i) modes_ |= p_.segments[i].box_tokens == 0 ? kOrdersCopies : 0;
    u32 query_parity = 0;
#pragma unroll 1
    for (const abi::WorkItem* item = items.begin; item != items.end; ++item) {
      if (item->row_count == 0) continue;
      ptx::prefetch_l1(item + 1);
      if (is_first(*item)) {
        prefetch_merges<c>(p_, *item);
        ptx::mbarrier_wait(barriers_.query_full(query_place()), query_parity);
        query_parity ^= 1U;
        keep_hooks();
      }
      if (is_first(*item) || is_chunk(*item)) clear();
      modes_ = (modes_ & kOrdersCopies) | (item->row_count > kGroupRows ? kTurns : 0) | (item->row_count > 2 * kGroupRows ? kAllTurn : 0);
      if (item->row_count > group() * kGroupRows) {
        add_item(*item);
      } else {
        pass_item(*item);
      }
      if (is_last(*item) || is_chunk(*item)) {
        add_pending();
        end_tile(*item);
      }
    }
    if (kTakesTurns && group() == 0) ptx::sync_named(kTurnBarrier, kTurnThreads);
  }

 private:
  // In one register.
  static constexpr int kTurns = 1;         // two warpgroups or more have rows of the tile
  static constexpr int kOrdersCopies = 2;  // some keys come by the producers' own copies
  static constexpr int kAllTurn = 4;       // three have

  __device__ __forceinline__ int group() const { return warp_ / kGroupWarps; }
  /// Where this warpgroup's rows of Q come and go.
  __device__ __forceinline__ int query_place() const { return group() % Shape::kQueryPlaces; }
  __device__ __forceinline__ int key_stage() const { return stage_of<Shape::kKeyStages>(step_); }
  __device__ __forceinline__ static int value_stage(u32 step) { return stage_of<Shape::kValueStages>(step); }
  /// First of this warp's rows of the tile.
  __device__ __forceinline__ int first_row() const { return 16 * warp_; }
  /// All lanes have read what the barrier guards.
  __device__ __forceinline__ void release(u64* s_barrier) const {
    ptx::sync_warp();
    if (lane_ == 0) ptx::mbarrier_arrive(s_barrier);
  }
  __device__ __forceinline__ u8* own_rows() const { return s_memory_ + Shape::kRowsAt + first_row() * static_cast<int>(sizeof(RowVars)); }

  /// What hooks ask of this warp's rows, for a new tile: the rows themselves have come with Q.
  __device__ __forceinline__ void keep_hooks() const {
    if constexpr (kKeepsHookRows<Variant> && kKeepsHooks<Variant>) {
      if (lane_ < 16) {
        u8* s_row = own_rows() + lane_ * static_cast<int>(sizeof(RowVars));
        const RowVars row = *reinterpret_cast<const RowVars*>(s_row);
        *reinterpret_cast<HookRow<Variant>*>(s_row) = {Variant::mask_row(params_, row), Variant::logits_row(params_, row)};
      }
      ptx::sync_warp();
    }
  }
  __device__ __forceinline__ void clear() {
    clear_sums(state_, o_);
    if constexpr (kFixed) state_.m[0] = state_.m[1] = kMaximum<Variant>;
  }

  __device__ __forceinline__ void add_item(const abi::WorkItem& item) {
    if constexpr (kScaled) factor_ = ScoreFactor<c, Variant>::make(p_, p_.segments[item.segment], item.kv_head);
    const StepRange range = step_range<Variant>(p_, item);
    int begin = item.kv_begin;
    const int last = is_last(item) ? range.end - c.kv_block : range.end;  // from here on Q is no longer needed
    if (begin >= range.end && is_last(item)) release(barriers_.query_empty(query_place()));
    if (pending_ == 0 && begin < range.end) {
      step<true>(item, range, begin, last);
      begin += c.kv_block;
    }
#pragma unroll 1
    for (; begin < range.end; begin += c.kv_block) step<false>(item, range, begin, last);
  }
  /// None of the tile's rows are this warpgroup's: the steps go by.
  __device__ __forceinline__ void pass_item(const abi::WorkItem& item) {
#pragma unroll 1
    for (int begin = item.kv_begin; begin < item.kv_end; begin += c.kv_block) {
      ptx::mbarrier_wait(barriers_.key_full(key_stage()), parity_of<Shape::kKeyStages>(step_));
      release(barriers_.key_empty(key_stage()));
      ptx::mbarrier_wait(barriers_.value_full(value_stage(step_)), parity_of<Shape::kValueStages>(step_));
      release(barriers_.value_empty(value_stage(step_)));
      ++step_;
    }
    if (is_last(item)) release(barriers_.query_empty(query_place()));
  }

  /// Of those that have rows of the tile.
  __device__ __forceinline__ int next_group() const {
    if constexpr (kGroups < 3) return 1 - group();
    return group() < ((modes_ & kAllTurn) != 0 ? 2 : 1) ? group() + 1 : 0;
  }
  __device__ __forceinline__ void pass_turn() const {
    if (kTakesTurns && (modes_ & kTurns) != 0) ptx::arrive_named(kTurnBarrier + next_group(), kTurnThreads);
  }
  /// The step's keys join the state but for P V, which is left pending. kFirst: nothing is pending.
  template <bool kFirst>
  __device__ __forceinline__ void step(const abi::WorkItem& item, const StepRange& range, int begin, int last) {
    float s[kKeyTiles][4];
    ptx::mbarrier_wait(barriers_.key_full(key_stage()), parity_of<Shape::kKeyStages>(step_));
    if constexpr (!kFirst && !kFp8) wait_for_values();
    if ((modes_ & kOrdersCopies) != 0) ptx::fence_async_proxy();
    if (kTakesTurns && (modes_ & kTurns) != 0) ptx::sync_named(kTurnBarrier + group(), kTurnThreads);
    ptx::wgmma_fence();
    issue_scores(s);
    float sums[kPartTiles][4];  // of the pending step, with kFp8
    if constexpr (!kFirst && !kFp8) issue_values();
    if constexpr (!kFirst && kFp8) {
      wait_for_values();
      issue_part(0, sums);
    }
    if constexpr (!kFp8) pass_turn();
    ptx::wgmma_wait<kFirst ? 0 : 1>();
    release(barriers_.key_empty(key_stage()));
    float correction[2] = {1.0F, 1.0F};
    // 16-bit keys have no scales.
    const ScoreFactor<c, Variant> factor = kScaled ? factor_ : ScoreFactor<c, Variant>::make(p_, p_.segments[0], 0);
    const bool corrects = finish_scores(item, range, begin, factor, s, correction);
    if constexpr (kFp8) pass_turn();
    if (begin >= last) release(barriers_.query_empty(query_place()));
    const float bases[2] = {base(0), base(1)};
    if constexpr (kFp8) {
      if constexpr (!kFirst) {
#pragma unroll
        for (int part = 1; part < kParts; ++part) next_part(part, sums);
        finish_values();
      }
      // In one go, so that all else fills the time that 2^x takes.
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        weigh(bases, state_.l, s[n], factor.to_base2);
        if (!kFirst && n < kPartTiles) add_tile(kParts - 1, n, sums);
        if (n % 4 == 3) pack_weights_e4m3(s[n - 3], s[n - 2], s[n - 1], s[n], weights_[n / 4]);
      }
#pragma unroll
      for (int n = kKeyTiles; !kFirst && n < kPartTiles; ++n) add_tile(kParts - 1, n, sums);
      correction_[0] = correction[0];
      correction_[1] = correction[1];
    } else {
      if constexpr (Variant::kSoftmax) {
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) weigh(bases, state_.l, s[n], factor.to_base2);
      }
      if constexpr (!kFirst) {
        finish_values();
        if (corrects) correct_sums(correction, o_);
      }
#pragma unroll
      for (int i = 0; i < kValueProducts; ++i) pack_weights<T>(s[2 * i], s[2 * i + 1], weights_[i]);
    }
    pending_ = min(c.kv_block, range.end - begin);
    ++step_;
  }

  __device__ __forceinline__ void issue_scores(float (&s)[kKeyTiles][4]) const {
    const u64 keys = keys_ + static_cast<u32>(key_stage() * (Shape::kKeyStage >> 4));
#pragma unroll
    for (int i = 0; i < c.head_dim_qk * Shape::kElement / kProductRow; ++i) {
      constexpr int kSteps = kStackRow / kProductRow;
      const u64 query = query_ + static_cast<u32>(i / kSteps * (Shape::kQueryStack >> 4) + i % kSteps * 2);
      const u64 key = keys + static_cast<u32>(i / kSteps * (Shape::kStack >> 4) + i % kSteps * 2);
      if constexpr (kFp8) {
        ptx::wgmma_shared_e4m3(s, query, key, i > 0);
      } else {
        ptx::wgmma_shared<T>(s, query, key, i > 0);
      }
    }
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void issue_values() {
    const u64 values = values_ + static_cast<u32>(value_stage(step_ - 1) * (Shape::kValueStage >> 4));
#pragma unroll
    for (int i = 0; i < kValueProducts; ++i) {
      ptx::wgmma_registers<T>(o_, weights_[i], values + static_cast<u32>(i * (16 * kStackRow >> 4)), true);
    }
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void issue_part(int part, float (&sums)[kPartTiles][4]) {
    const u64 values =
        values_ + static_cast<u32>(value_stage(step_ - 1) * (Shape::kValueStage >> 4) + part * kPartTiles * (8 * kStackRow >> 4));
#pragma unroll
    for (int i = 0; i < kValueProducts; ++i) {
      ptx::wgmma_registers_e4m3(sums, weights_[i], values + static_cast<u32>(i * (kProductRow >> 4)), i > 0);
    }
    ptx::wgmma_commit();
  }
  /// O is as the weights were before the pending step; its own sums are as they have been since.
  __device__ __forceinline__ void add_tile(int part, int n, const float (&sums)[kPartTiles][4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float& o = o_[part * kPartTiles + n][j];
      o = ptx::fma(o, correction_[j / 2], sums[n][j]);
    }
  }
  __device__ __forceinline__ void add_part(int part, const float (&sums)[kPartTiles][4]) {
#pragma unroll
    for (int n = 0; n < kPartTiles; ++n) add_tile(part, n, sums);
  }
  __device__ __forceinline__ void next_part(int part, float (&sums)[kPartTiles][4]) {
    ptx::wgmma_wait<0>();
    add_part(part - 1, sums);
    ptx::wgmma_fence();
    issue_part(part, sums);
  }
  /// V of the pending step, the one before step_.
  __device__ __forceinline__ void wait_for_values() const {
    ptx::mbarrier_wait(barriers_.value_full(value_stage(step_ - 1)), parity_of<Shape::kValueStages>(step_ - 1));
    if (!Shape::kTransposes && !Shape::kWidens && pending_ < c.kv_block) clear_values();
  }
  /// The pending products are done.
  __device__ __forceinline__ void finish_values() {
    ptx::wgmma_wait<0>();
    release(barriers_.value_empty(value_stage(step_ - 1)));
  }
  __device__ __forceinline__ void add_pending() {
    if (pending_ == 0) return;
    wait_for_values();
    if ((modes_ & kOrdersCopies) != 0) ptx::fence_async_proxy();
    ptx::wgmma_fence();
    if constexpr (kFp8) {
      float sums[kPartTiles][4];
      issue_part(0, sums);
#pragma unroll
      for (int part = 1; part < kParts; ++part) next_part(part, sums);
      finish_values();
      add_part(kParts - 1, sums);
    } else {
      issue_values();
      finish_values();
    }
    pending_ = 0;
  }
  /// Rows of V past the step's keys become zeros: their weights are, but 0 times NaN is not. Each warpgroup for itself, since it waits for
  /// its own writes only.
  __device__ __forceinline__ void clear_values() const {
    u8* s_values = s_memory_ + Shape::kValuesAt + value_stage(step_ - 1) * Shape::kValueStage;
    const int thread = ptx::thread_idx() % (kGroupWarps * ptx::kWarp);
    const int chunks = (c.kv_block - pending_) * 8;
#pragma unroll 1
    for (int i = thread; i < chunks; i += kGroupWarps * ptx::kWarp) {
#pragma unroll
      for (int stack = 0; stack < Shape::kValueStacks; ++stack) {
        *reinterpret_cast<Vec16*>(s_values + stack * Shape::kStack + pending_ * kStackRow + i * 16) = Vec16{};
      }
    }
    ptx::fence_async_proxy();
    ptx::sync_named(kGroupBarrier + group(), kGroupWarps * ptx::kWarp);
  }

  /// What weights are relative to.
  __device__ __forceinline__ float base(int half) const { return kFixed ? kMaximum<Variant> : base_of(state_.m[half]); }

  /// Hooks and masks, then the maxima; true where `correction` must be applied to the sums.
  __device__ __forceinline__ bool finish_scores(const abi::WorkItem& item, const StepRange& range, int begin,
                                                const ScoreFactor<c, Variant>& factor, float (&s)[kKeyTiles][4], float (&correction)[2]) {
    const FragmentKeys keys = {range.positions, begin, range.end};
    if constexpr (Variant::kHasLogits) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto row = logits_row(8 * half + lane_ / 4);
        if constexpr (Variant::kLogitsLogistic) {
          if (!keys.list.page_positions && begin >= range.full_begin && begin + c.kv_block <= range.full_end) {
            apply_shared_logistic<Variant>(params_, row, half, keys, factor.raw, s);
            continue;
          }
        }
        apply_logits<Variant>(params_, row, half, keys, factor.raw, s);
      }
    } else {
      if (factor.negative()) [[unlikely]]
        negate(s);
    }
    if (begin < range.full_begin || begin + c.kv_block > range.full_end) [[unlikely]]
      hide(item, range, begin, s);
    if constexpr (Variant::kSoftmax && !kFixed) {
      if (ptx::any(exceeds_base<kShift, kChains>(state_, s, factor.to_base2, kWeightSlack))) {
        const float tops[2] = {top_of_row<kChains>(s, 0), top_of_row<kChains>(s, 1)};
        return raise_maxima<kShift>(state_, tops, factor.to_base2, correction);
      }
    }
    return false;
  }

  __device__ __forceinline__ void hide(const abi::WorkItem& item, const StepRange& range, int begin, float (&s)[kKeyTiles][4]) const {
    if constexpr (!Variant::kHasMask) {
      hide_past_end<Variant>(s, range.end - begin);
    } else {
      const KeyList list = kKeepsPositions<Variant> ? range.positions : key_list(p_, item);
      const bool proven = range.all_visible(begin, c.kv_block);
      // A lane evaluates the mask of row lane % 16 over every other word of keys.
      u32 visible[(kWords + 1) / 2];
      const auto row = mask_row(lane_ % 16);
#pragma unroll
      for (int i = 0; i < (kWords + 1) / 2; ++i) {
        const int first = begin + 64 * i;
        if (list.page_positions) {
          const u32 low = visible_keys<Variant>(params_, row, {list, first, range.end}, proven);
          const u32 high = visible_keys<Variant>(params_, row, {list, first + 32, range.end}, proven);
          visible[i] = lane_ < 16 ? low : high;
        } else {
          visible[i] = visible_keys<Variant>(params_, row, {list, first + lane_ / 16 * 32, range.end}, proven);
        }
      }
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 own = ptx::shuffle(visible[word / 2], word % 2 * 16 + 8 * half + lane_ / 4) >> fragment_key(0, 0);
#pragma unroll
          for (int n = 4 * word; n < min(4 * word + 4, kKeyTiles); ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              float& score = s[n][2 * half + j];
              score = (own & (1U << (8 * (n % 4) + j))) != 0 ? score : kHidden<Variant>;
            }
          }
        }
      }
    }
  }

  __device__ __forceinline__ typename Variant::MaskRow mask_row(int row) const {
    const u8* kept = own_rows() + row * sizeof(RowVars);
    if constexpr (kKeepsHooks<Variant>) return reinterpret_cast<const HookRow<Variant>*>(kept)->mask;
    if constexpr (!kKeepsHooks<Variant>) return Variant::mask_row(params_, *reinterpret_cast<const RowVars*>(kept));
  }
  __device__ __forceinline__ typename Variant::LogitsRow logits_row(int row) const {
    const u8* kept = own_rows() + row * sizeof(RowVars);
    if constexpr (!kLogitsRead<Variant>) return {};
    if constexpr (kLogitsRead<Variant> && kKeepsHooks<Variant>) return reinterpret_cast<const HookRow<Variant>*>(kept)->logits;
    if constexpr (kLogitsRead<Variant> && !kKeepsHooks<Variant>)
      return Variant::logits_row(params_, *reinterpret_cast<const RowVars*>(kept));
  }

  // ---------------------------------------------------------------------------------------------------------------- a tile's end

  __device__ __forceinline__ void end_tile(const abi::WorkItem& item) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float l = sum_of_row(state_.l[half]) * kUnshift;
      const float top = kShift == 0 ? state_.m[half] : state_.m[half] + kShift;
      end_row(item, half, {kFixed ? (l == 0.0F ? -kInfinity : kMaximum<Variant>) : top, l});
    }
    if (is_last(item) && item.part_row >= 0) arrive<c, Variant>(p_, params_, item, reinterpret_cast<u32*>(s_memory_ + Shape::kLastAt));
  }

  /// One of the lane's rows, kRun neighbouring dims at a time.
  __device__ __forceinline__ void end_row(const abi::WorkItem& item, int half, RowState state) {
    const int row = first_row() + 8 * half + lane_ / 4;
    const bool exists = row < item.row_count;
    const int kept = min(row, item.row_count - 1);
    const bool leads = exists && lane_ % 4 == 0;
    const int dim = lane_ % 4 * kRun;
    const float value_factor = kScaled ? common_scale<c.v_scale>(p_.segments[item.segment].v, item.kv_head) * kUnshift : 1.0F;
    if constexpr (c.batch_invariant) {
      if (is_chunk(item)) {
        const auto chunk = ChunkRow<c, Variant::kSoftmax>::begin(p_, kept, state, is_first(item));
        ptx::sync_warp();  // all lanes have read the state so far
        if (leads) chunk.write_state(state);
        const auto writer = RowWriter<c, Variant>::make(p_, params_, item, kept, state, 1.0F);
#pragma unroll
        for (int n = 0; n < kSumTiles; n += kRun / 2) {
          float x[kRun];
          take_dims(n, half, x);
          if (!exists) continue;
          if constexpr (kScaled) {
#pragma unroll
            for (int i = 0; i < kRun; ++i) x[i] *= value_factor;
          }
          chunk.fold_values(8 * n + dim, x);
          if (is_last(item)) writer.write(8 * n + dim, x);
        }
        if (is_last(item) && leads) writer.write_state();
        return;
      }
    }
    const auto writer = RowWriter<c, Variant>::make(p_, params_, item, kept, state, value_factor);
    if (leads) writer.write_state();
    if constexpr (kWritesPairs) {
      write_pairs(writer, half, exists, value_factor);
    } else {
#pragma unroll
      for (int n = 0; n < kSumTiles; n += kRun / 2) {
        float x[kRun];
        take_dims(n, half, x);
        if (exists) writer.write(8 * n + dim, x);
      }
    }
  }

  /// As the sums lie. A part: four lanes write a sector. A final row: two exchange pairs of two tiles, so that each writes four dims.
  __device__ __forceinline__ void write_pairs(const RowWriter<c, Variant>& writer, int half, bool exists, float value_factor) const {
    if (ptx::any(writer.g_part != nullptr)) {  // said so that the compiler sees all lanes go one way
      if (!exists) return;
      float* g_pair = writer.g_part + lane_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < kSumTiles; ++n) {
        const float scale = c.v_scale != Scale::none ? value_factor : 1.0F;
        store_floats(g_pair + 8 * n, {o_[n][2 * half] * scale, o_[n][2 * half + 1] * scale});
      }
      return;
    }
    const bool odd = lane_ % 2 != 0;
    u8* g_four = writer.g_o + (odd ? 16 : 0) + lane_ % 4 / 2 * 8;
#pragma unroll
    for (int n = 0; n < kSumTiles; n += 2) {
      u32 own[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        own[i] = pack<Storage<c.o_type>>(writer.finish(o_[n + i][2 * half]), writer.finish(o_[n + i][2 * half + 1]));
      }
      const u32 got = ptx::shuffle_xor(odd ? own[0] : own[1], 1);
      if (!exists) continue;
      const u32 low = odd ? got : own[0];
      const u32 high = odd ? own[1] : got;
      if (writer.aligned) {
        *reinterpret_cast<Vec8*>(g_four + 16 * n) = Vec8{low, high};
      } else {
        auto* g_dims = reinterpret_cast<u16*>(g_four + 16 * n);
        g_dims[0] = static_cast<u16>(low);
        g_dims[1] = static_cast<u16>(low >> 16);
        g_dims[2] = static_cast<u16>(high);
        g_dims[3] = static_cast<u16>(high >> 16);
      }
    }
  }

  /// Of 16 bits: the eight dims of column tile n + lane % 4 of a row, of which each of its lanes has two.
  __device__ __forceinline__ void take_dims(int n, int half, float (&x)[8]) const {
    const int own = lane_ % 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float v[4] = {o_[n][2 * half + j], o_[n + 1][2 * half + j], o_[n + 2][2 * half + j], o_[n + 3][2 * half + j]};
      float got[4];  // from lane own ^ turn
#pragma unroll
      for (int turn = 0; turn < 4; ++turn) {
        const int to = own ^ turn;
        const float given = to < 2 ? (to == 0 ? v[0] : v[1]) : (to == 2 ? v[2] : v[3]);
        got[turn] = turn == 0 ? given : ptx::shuffle_xor(given, turn);
      }
#pragma unroll
      for (int from = 0; from < 4; ++from) {
        const int turn = own ^ from;
        x[2 * from + j] = turn < 2 ? (turn == 0 ? got[0] : got[1]) : (turn == 2 ? got[2] : got[3]);
      }
    }
  }

  /// Of 8 bits: the dims 4 (lane % 4) .. + 3 of column tiles n and n + 1, as wgmma_transpose.cuh has them.
  __device__ __forceinline__ void take_dims(int n, int half, float (&x)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = o_[n + i % 2][2 * half + i / 2];
  }

  const Args& p_;
  const typename Variant::Params& params_;
  u8* s_memory_;
  WgmmaBarriers<Shape> barriers_;
  int warp_, lane_;
  u64 query_, keys_, values_;  // descriptors, of the rings' first stages
  u32 step_ = 0;               // of the block's: the next

  float o_[kSumTiles][4];
  FragmentState state_;
  float correction_[2];             // of the step before, with kFp8: not applied to O yet
  u32 weights_[kValueProducts][4];  // P of the step before,
  int pending_ = 0;                 // of so many keys; 0: none
  ScoreFactor<c, Variant> factor_;  // of the item, with kScaled
  int modes_ = 0;
};

template <Config c, class Variant>
__device__ __forceinline__ void run_wgmma(const Args& p) {
  using Shape = WgmmaShape<c, Variant>;
  static_assert(Shape::kSharedBytes <= c.shared_bytes);
  u8* s_memory = ptx::shared_memory();
  if (ptx::thread_idx() == 0) WgmmaBarriers<Shape>(s_memory).init();
  begin_list(p);
  prefetch_plan(p);
  ptx::sync_block();
  const int role = ptx::warp_idx() - Shape::kWarps;
  // Registers of a block are 64 Ki: what producers give up, consumers take.
  if (role >= 0) {
    ptx::lower_registers<Shape::kProducerRegisters>();
    produce<c, Variant>(p, unit_items(p), role, s_memory);
  } else {
    ptx::raise_registers<Shape::kConsumerRegisters>();
    const typename Variant::Params params = Variant::load_params(p);
    WgmmaPrefill<c, Variant>(p, params, s_memory).run(unit_items(p));
  }
  end_list(p);
}

}  // namespace girih::attention
