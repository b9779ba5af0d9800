// What the two computing warpgroups of MLA on Hopper do (wgmma_mla.cuh): each sums P V of all 64 rows over half of V's dims; the scores of
// a step, its softmax and weights are one group's, which passes the weights on through shared memory and has them in registers itself.
// Both know each row's base: who raises one tells the other, together with the step's weights.
#pragma once

#include "attention/fragment_softmax.cuh"
#include "attention/merge.cuh"
#include "attention/query_fragments.cuh"
#include "attention/tile_rows.cuh"
#include "attention/wgmma_mla_shape.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma_forms.cuh"

namespace girih::attention {

template <Config c, class Variant>
class MlaSteps {
 public:
  using Shape = MlaShape<c>;
  using T = Storage<c.q_type>;
  using Team = typename Shape::Team;
  static constexpr int kKeyTiles = Shape::kRows / 8;
  static constexpr int kHalfTiles = kKeyTiles / 2;
  static constexpr int kHalfSteps = kKeyTiles / 4;  // of 16 keys
  static constexpr int kSumTiles = Shape::kGroupDims / 8;
  static constexpr int kLateSteps = Shape::kStackDims / 16;  // of a product's inner dim, with Q in registers

  __device__ __forceinline__ MlaSteps(const Args& p, const typename Variant::Params& params, u8* s_memory)
      : p_(p), params_(params), s_{s_memory}, lane_(ptx::lane_idx()), warp_(ptx::warp_idx()) {}

  __device__ __forceinline__ void run(UnitItems items) {
#pragma unroll 1
    for (const abi::WorkItem* item = items.begin; item != items.end; ++item) {
      if (item->row_count == 0) continue;
      if (is_first(*item)) {
        prefetch_merges<c>(p_, *item);
        load_query(*item);
      }
      if (is_first(*item) || is_chunk(*item)) clear_sums(state_, o_);
      const StepRange range = step_range<Variant>(p_, *item);
      const bool copied = !Shape::kWidens && p_.segments[item->segment].box_tokens == 0;
      // Rows that warps copy come too late for scores to be asked for ahead of the other group's step: such steps are taken one by one.
      bool leads = false;  // a pair, whose second step is to follow
#pragma unroll 1
      for (int begin = item->kv_begin; begin < range.end; begin += Shape::kRows) {
        if (static_cast<int>(s_.slot(step_)) == group()) {
          score(*item, range, begin, copied);
          leads = true;
        } else if (leads || copied || range.end - begin <= Shape::kRows) {
          follow(range.end - begin, copied);
          leads = false;
        } else {
          begin += Shape::kRows;
          follow_and_score(*item, range, begin, copied);
          ++step_;
        }
        ++step_;
        holds_ = true;
      }
      if (is_last(*item) || is_chunk(*item)) end_item(*item);
    }
  }

 private:
  __device__ __forceinline__ int group() const { return warp_ / Shape::kGroupWarps; }
  /// First of this warp's rows of the tile.
  __device__ __forceinline__ int first_row() const { return 16 * (warp_ % Shape::kGroupWarps); }

  /// The slot of an item's last step is kept until now: where a tile ends, its rows are staged there.
  __device__ __forceinline__ void release_slot() {
    if (holds_) release(step_ - 1);
    holds_ = false;
  }
  __device__ __forceinline__ void release(u32 step) const { s_.arrive(s_.empty(step, group())); }

  /// Q's last dims; the first ones are on their way through shared memory.
  __device__ __forceinline__ void load_query(const abi::WorkItem& item) {
    const bool two = c.head_dim_rope > 0;
    const abi::RowsArg& rows = two ? p_.q_rope : p_.q;
    const bool aligned = rows_aligned(rows, 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row() + 8 * half + lane_ / 4;
      const RowPlace place = place_row<c>(item.row_begin + min(row, item.row_count - 1), item.kv_head);
      const u8* g_row = row_address(rows, place.token, place.q_head) + (two ? 0 : 2 * Shape::kFirstDims) + 4 * (lane_ % 4);
#pragma unroll
      for (int i = 0; i < kLateSteps; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) late_query_[i][2 * j + half] = row < item.row_count ? load_pair(g_row + 32 * i + 16 * j, aligned) : 0;
      }
    }
    request_ = -1;
    ptx::mbarrier_wait(s_.query_full(), tile_ & 1U);
    if (Shape::kWidens) ptx::fence_async_proxy();
    ++tile_;
  }

  // ---------------------------------------------------------------------------------------------------------------- steps

  /// A step of this group's: its scores become weights, which join this group's sums and are passed on, 32 keys at a time: the products of
  /// the first ones are under way while the others' weights are worked out.
  __device__ __forceinline__ void score(const abi::WorkItem& item, const StepRange& range, int begin, bool copied) {
    float s[kKeyTiles][4];
    release_slot();
    issue_scores(step_, copied, s);
    ptx::wgmma_wait<0>();

    const ScoreFactor<c, Variant> factor = factor_of(item);
    float corrections[2] = {1.0F, 1.0F};
    const bool raised = find_bases(item, range, begin, factor, s, corrections);
    u32 weights[kKeyTiles / 2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      weigh_half(half, factor, s, weights);
      if (half == 0) pass_bases(step_, raised, corrections);
      pass_weights(step_, half, weights);
      if (half == 0) {
        if (raised) correct_sums(corrections, o_);
        if (range.end - begin < Shape::kRows) clear_values(step_, range.end - begin);
      }
      ptx::wgmma_fence();
#pragma unroll
      for (int i = half * kHalfSteps; i < (half + 1) * kHalfSteps; ++i) ptx::wgmma_registers<T>(o_, weights[i], own_values(step_, i), true);
      ptx::wgmma_commit();
    }
    ptx::wgmma_wait<0>();
  }

  /// A step of the other group's, whose keys are `num_keys`.
  __device__ __forceinline__ void follow(int num_keys, bool copied) {
    release_slot();
    take_bases();
    if (copied) ptx::fence_async_proxy();
    if (num_keys < Shape::kRows) clear_values(step_, num_keys);
    issue_followed();
    ptx::wgmma_wait<0>();
  }

  /// A whole step of the other group's, and behind it one of this group's: whose scores are asked for first, so that they fill the time in
  /// which the other makes weights, as its products and this one's fill that of the weights made here.
  __device__ __forceinline__ void follow_and_score(const abi::WorkItem& item, const StepRange& range, int begin, bool copied) {
    float s[kKeyTiles][4];
    const u32 own = step_ + 1;
    release_slot();
    issue_scores(own, copied, s);
    take_bases();
    issue_followed();
    ptx::wgmma_wait<1>();

    const ScoreFactor<c, Variant> factor = factor_of(item);
    float corrections[2] = {1.0F, 1.0F};
    const bool raised = find_bases(item, range, begin, factor, s, corrections);
    pass_bases(own, raised, corrections);
    u32 weights[kKeyTiles / 2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      weigh_half(half, factor, s, weights);
      pass_weights(own, half, weights);
    }
    ptx::wgmma_wait<0>();
    release(step_);
    if (raised) correct_sums(corrections, o_);
    if (range.end - begin < Shape::kRows) clear_values(own, range.end - begin);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kKeyTiles / 2; ++i) ptx::wgmma_registers<T>(o_, weights[i], own_values(own, i), true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }

  /// Keys of Q's type have no scales.
  __device__ __forceinline__ ScoreFactor<c, Variant> factor_of(const abi::WorkItem& item) const {
    if constexpr (!Shape::kWidens) return ScoreFactor<c, Variant>::make(p_, p_.segments[0], 0);
    return ScoreFactor<c, Variant>::make(p_, p_.segments[item.segment], item.kv_head);
  }

  /// Masks a step's scores, and raises bases where one is too far above; whether one was, and what it makes of the sums so far.
  __device__ __forceinline__ bool find_bases(const abi::WorkItem& item, const StepRange& range, int begin,
                                             const ScoreFactor<c, Variant>& factor, float (&s)[kKeyTiles][4], float (&corrections)[2]) {
    if (factor.negative()) negate(s);
    if (begin < range.full_begin || begin + Shape::kRows > range.full_end) hide(item, range, begin, s);
    if (!ptx::any(exceeds_base(state_, s, factor.to_base2, kSlack<c.q_type>))) return false;
    const float tops[2] = {top_of_row(s, 0), top_of_row(s, 1)};
    return raise_maxima(state_, tops, factor.to_base2, corrections);
  }
  __device__ __forceinline__ void weigh_half(int half, const ScoreFactor<c, Variant>& factor, float (&s)[kKeyTiles][4],
                                             u32 (&weights)[kKeyTiles / 2][4]) {
#pragma unroll
    for (int n = half * kHalfTiles; n < (half + 1) * kHalfTiles; ++n) weigh(state_, s[n], factor.to_base2);
#pragma unroll
    for (int i = half * kHalfSteps; i < (half + 1) * kHalfSteps; ++i) pack_weights<T>(s[2 * i], s[2 * i + 1], weights[i]);
  }

  /// Waits for the other group's first weights of step_, and for its part of V, which is long since there: those have seen it.
  __device__ __forceinline__ void take_bases() {
    ptx::mbarrier_wait(s_.passed(step_, 0), s_.parity(step_));
    ptx::mbarrier_wait(s_.full(step_, group()), s_.parity(step_));
    if (s_.raised(step_)[warp_ % Shape::kGroupWarps] == 0) return;
    const int row = first_row() + lane_ / 4;
    const float corrections[2] = {s_.corrections(step_)[row], s_.corrections(step_)[row + 8]};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state_.m[half] = s_.bases(step_)[row + 8 * half];
      state_.l[half] *= corrections[half];
    }
    correct_sums(corrections, o_);
  }
  /// The products of step_'s passed weights.
  __device__ __forceinline__ void issue_followed() {
    const u64 weights = ptx::rows_along_mn(s_.s_memory + s_.weights_at(step_));
    ptx::wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half == 1) ptx::mbarrier_wait(s_.passed(step_, 1), s_.parity(step_));
#pragma unroll
      for (int i = half * kHalfSteps; i < (half + 1) * kHalfSteps; ++i) {
        ptx::wgmma_shared_k<T>(o_, weights + static_cast<u32>(2 * i), own_values(step_, i), true);
      }
    }
    ptx::wgmma_commit();
  }

  /// The step's part of V whose sums are this group's.
  __device__ __forceinline__ u8* own_stacks(u32 step) const {
    return s_.s_memory + s_.slot_at(step) + group() * Shape::kGroupStacks * Shape::kStack;
  }
  /// Its keys [16 i, + 16) as B.
  __device__ __forceinline__ u64 own_values(u32 step, int i) const {
    return ptx::rows_along_k(own_stacks(step), Shape::kStack) + static_cast<u32>(i * (16 * kStackRow >> 4));
  }

  __device__ __forceinline__ void issue_scores(u32 step, bool copied, float (&s)[kKeyTiles][4]) const {
    const u64 query = ptx::rows_along_mn(s_.s_memory + Shape::kQueryAt);
    const u64 keys = ptx::rows_along_mn(s_.s_memory + s_.slot_at(step));
    ptx::mbarrier_wait(s_.full(step, 0), s_.parity(step));
    if (copied) ptx::fence_async_proxy();
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < Shape::kFirstDims / 16; ++i) {
      if (i == Shape::kGroupDims / 16) {
        ptx::mbarrier_wait(s_.full(step, 1), s_.parity(step));
        if (copied) ptx::fence_async_proxy();
      }
      const auto at = static_cast<u32>(i / 4 * (Shape::kStack >> 4) + i % 4 * 2);
      ptx::wgmma_shared<T>(s, query + at, keys + at, i > 0);
    }
    const u64 late = keys + static_cast<u32>(Shape::kValueStacks * (Shape::kStack >> 4));
#pragma unroll
    for (int i = 0; i < kLateSteps; ++i) ptx::wgmma_registers_mn<T>(s, late_query_[i], late + static_cast<u32>(2 * i), true);
    ptx::wgmma_commit();
  }

  /// For the other group.
  __device__ __forceinline__ void pass_bases(u32 step, bool raised, const float (&corrections)[2]) const {
    const int row = first_row() + lane_ / 4;
    if (raised && lane_ % 4 == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        s_.corrections(step)[row + 8 * half] = corrections[half];
        s_.bases(step)[row + 8 * half] = state_.m[half];
      }
    }
    if (lane_ == 0) s_.raised(step)[warp_ % Shape::kGroupWarps] = raised ? 1 : 0;
  }
  /// Half of the keys' weights as A of the other group's products: rows of 64 keys.
  __device__ __forceinline__ void pass_weights(u32 step, int half, const u32 (&weights)[kKeyTiles / 2][4]) const {
    u8* s_rows = s_.s_memory + s_.weights_at(step);
    const int first = stack_offset(first_row() + lane_ / 4, 0) + lane_ % 4 * 4;
#pragma unroll
    for (int i = half * kHalfSteps; i < (half + 1) * kHalfSteps; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = (first ^ (2 * i + j / 2) * 16) + j % 2 * 8 * kStackRow;
        *reinterpret_cast<u32*>(s_rows + at) = weights[i][j];
      }
    }
    ptx::fence_async_proxy();
    s_.arrive(s_.passed(step, half));
  }

  /// Rows of V past the step's keys become zeros: their weights are, but 0 times NaN is not. Each group its own dims, since it waits for
  /// its own writes only.
  __device__ __forceinline__ void clear_values(u32 step, int num_keys) const {
    if constexpr (Shape::kWidens) return;  // they are
    constexpr int kThreads = Shape::kGroupWarps * ptx::kWarp;
    u8* s_values = own_stacks(step);
#pragma unroll 1
    for (int i = num_keys * 8 + ptx::thread_idx() % kThreads; i < Shape::kRows * 8; i += kThreads) {
#pragma unroll
      for (int stack = 0; stack < Shape::kGroupStacks; ++stack) {
        *reinterpret_cast<Vec16*>(s_values + stack * Shape::kStack + i * 16) = Vec16{};
      }
    }
    ptx::fence_async_proxy();
    ptx::sync_named(Shape::kGroupBarrier + group(), kThreads);
  }

  __device__ __forceinline__ void hide(const abi::WorkItem& item, const StepRange& range, int begin, float (&s)[kKeyTiles][4]) {
    if constexpr (!Variant::kHasMask) {
      hide_past_end<Variant>(s, range.end - begin);
    } else {
      const KeyList list = key_list(p_, item);
      const bool proven = range.all_visible(begin, Shape::kRows);
      // A lane evaluates the mask of row lane % 16 over one of the two words of keys.
      const auto row = mask_row(item);
      u32 visible;
      if (list.page_positions) {
        const u32 low = visible_keys<Variant>(params_, row, {list, begin, range.end}, proven);
        const u32 high = visible_keys<Variant>(params_, row, {list, begin + 32, range.end}, proven);
        visible = lane_ < 16 ? low : high;
      } else {
        visible = visible_keys<Variant>(params_, row, {list, begin + lane_ / 16 * 32, range.end}, proven);
      }
#pragma unroll
      for (int word = 0; word < 2; ++word) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 own = ptx::shuffle(visible, word * 16 + 8 * half + lane_ / 4) >> fragment_key(0, 0);
#pragma unroll
          for (int n = 0; n < 4; ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              float& score = s[4 * word + n][2 * half + j];
              score = (own & (1U << (8 * n + j))) != 0 ? score : kHidden<Variant>;
            }
          }
        }
      }
    }
  }
  /// Of row lane % 16 of the warp's: worked out anew in each step that has a mask, but for the request, as registers are dear.
  __device__ __forceinline__ typename Variant::MaskRow mask_row(const abi::WorkItem& item) {
    const auto* requests = blob_array<abi::RequestInfo>(p_, p_.plan->requests);
    const RowPlace place = place_row<c>(item.row_begin + min(first_row() + lane_ % 16, item.row_count - 1), item.kv_head);
    if (request_ < 0) request_ = find_request(requests, p_.plan->num_requests, place.token);
    return Variant::mask_row(params_, describe_row(requests[request_], request_, place, item.kv_head));
  }

  // ---------------------------------------------------------------------------------------------------------------- a tile's end

  __device__ __forceinline__ void end_item(const abi::WorkItem& item) {
    if (is_last(item)) s_.arrive(s_.query_empty());
    float l[2];
    share_sums(l);
    end_tile(item, l);
    if (holds_) ptx::fence_async_proxy();
    release_slot();
    if (is_last(item) && item.part_row >= 0) arrive<c, Variant, Team>(p_, params_, item, s_.last());
  }
  /// Both groups' weights of the lane's rows.
  __device__ __forceinline__ void share_sums(float (&l)[2]) {
    const int row = first_row() + lane_ / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      l[half] = sum_of_row(state_.l[half]);
      if (lane_ % 4 == 0) s_.sums(ends_, group())[row + 8 * half] = l[half];
    }
    Team::sync();  // and all have left the slot
#pragma unroll
    for (int half = 0; half < 2; ++half) l[half] += s_.sums(ends_, 1 - group())[row + 8 * half];
    ++ends_;
  }

  /// Eight of a warp's sixteen rows at a time, four neighbouring lanes a row. A tile that has met no step since its sums were clear has no
  /// slot to stage them in; they are zeros.
  __device__ __forceinline__ void end_tile(const abi::WorkItem& item, const float (&l)[2]) {
    const int lane = ptx::opaque(lane_);
    const int first_dim = group() * Shape::kGroupDims;
    const bool chunk = c.batch_invariant && is_chunk(item);
    if (!chunk && first_row() >= item.row_count) return;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      if (holds_) stage(half);
      ptx::sync_warp();
      const int row = first_row() + 8 * half + lane / 4;
      float value_factor = 1.0F;  // looked up each time: registers are dear
      if (Shape::kWidens) value_factor = common_scale<c.v_scale>(p_.segments[ptx::opaque(item.segment)].k, item.kv_head);
      const RowState state = {half == 0 ? state_.m[0] : state_.m[1], half == 0 ? l[0] : l[1]};
      const auto load = [&](int dim, float(&x)[4]) {
        x[0] = x[1] = x[2] = x[3] = 0.0F;
        if (holds_) load_floats(staged(lane / 4, dim - first_dim), x);
      };
      if (chunk) {
        LaneDims dims = {.first = first_dim + 4 * (lane % 4), .step = 16, .leads = group() == 0 && lane % 4 == 0};
        dims.end = first_dim + Shape::kGroupDims;
        dims.exists = row < item.row_count;
        end_tile_row<c, Variant, Team>(p_, params_, item, min(row, item.row_count - 1), state, value_factor, dims, load);
      } else if (row < item.row_count) {
        const auto writer = RowWriter<c, Variant>::make(p_, params_, item, row, state, value_factor);
#pragma unroll 1
        for (int dim = first_dim + 8 * (lane % 4); dim < first_dim + Shape::kGroupDims; dim += 32) {
          float low[4], high[4];
          load(dim, low);
          load(dim + 4, high);
          writer.write(dim, {low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]});
        }
        if (group() == 0 && lane % 4 == 0) writer.write_state();
      }
      ptx::sync_warp();
    }
  }
  /// Where dims `dim`, + 1, + 2, + 3 of this group's go of row `row` (0..7) of the warp's: each warp has a stack of its group's part of the
  /// slot. Rows are shifted against each other, so that neither those who lay them down nor those who take them meet in a bank.
  __device__ __forceinline__ float* staged(int row, int dim) const {
    u8* s_own = own_stacks(step_ - 1) + warp_ % Shape::kGroupWarps * Shape::kStack;
    return reinterpret_cast<float*>(s_own) + row * Shape::kGroupDims + (dim ^ (row & 3) * 8 ^ (row & 1) * 4);
  }
  __device__ __forceinline__ void stage(int half) const {
    static_assert(8 * Shape::kGroupDims * 4 == Shape::kStack);
    const int lane = Shape::kWidens ? ptx::opaque(lane_) : lane_;  // there are no registers there for both halves' places
#pragma unroll
    for (int n = 0; n < kSumTiles; ++n) {
      const float x[2] = {half == 0 ? o_[n][0] : o_[n][2], half == 0 ? o_[n][1] : o_[n][3]};
      store_floats(staged(lane / 4, 8 * n + 2 * (lane % 4)), x);
    }
  }

  const Args& p_;
  const typename Variant::Params& params_;
  MlaMemory<c> s_;
  int lane_, warp_;
  u32 step_ = 0, tile_ = 0;  // of the block's: the next
  u32 ends_ = 0;             // of tiles and chunks
  bool holds_ = false;       // the slot of the step before

  float o_[kSumTiles][4];
  FragmentState state_;  // l: of this group's steps
  u32 late_query_[kLateSteps][4];
  i32 request_ = -1;  // of row lane % 16; -1: not known yet
};

}  // namespace girih::attention
