// MLA's bringing warps on Hopper (wgmma_mla.cuh): two bring every step's keys, running ahead of the others as far as the slots allow and
// over the borders of tiles; two bring each tile's Q, but for its last dims.
// Keys come by the copy engine where the segment has maps: boxes of `box_tokens` keys, which lie in one page, by 64 dims, one or two a
// thread; the page ids of the next step are asked for before the wait. Others (pages of few tokens, odd strides) are copied row by row, 32
// of a step's rows by each warp. Boxes past the item's keys are not asked for: what lies there is hidden from scores, and those who sum
// values clear it.
#pragma once

#include "attention/key_stream.cuh"
#include "attention/output.cuh"
#include "attention/wgmma_mla_shape.cuh"
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"

namespace girih::attention {

template <Config c>
class MlaProducer {
 public:
  using Shape = MlaShape<c>;
  static constexpr bool kTwo = c.head_dim_rope > 0;  // tensors
  static constexpr int kFirstBytes = 2 * Shape::kFirstDims;

  __device__ __forceinline__ MlaProducer(const Args& p, u8* s_memory)
      : p_(p), s_{s_memory}, lane_(ptx::lane_idx()), warp_(ptx::warp_idx() - Shape::kWarps) {}

  __device__ __forceinline__ void run(UnitItems items) {
#pragma unroll 1
    for (const abi::WorkItem* item = items.begin; item != items.end; ++item) {
      if (item->row_count == 0) continue;
      if (warp_ >= Shape::kKeyWarps) {
        if (is_first(*item)) bring_query(*item);
        continue;
      }
      if (item->kv_begin >= item->kv_end) continue;
      const abi::SegmentArg& segment = p_.segments[item->segment];
      const i64 table_begin = blob_array<abi::KvRow>(p_, p_.plan->kv_rows)[item->kv_row].table_begin;
      if (segment.box_tokens > 0) {
        bring_boxes(*item, segment, table_begin);
      } else {
        bring_rows(*item, segment, table_begin);
      }
    }
  }

 private:
  __device__ __forceinline__ void wait_for_slot(int half) const { ptx::mbarrier_wait(s_.empty(step_, half), s_.parity(step_) ^ 1U); }
  /// A gang's next keys are asked to come to L2 meanwhile, so that a slot, once it is free, waits for L2 alone: its members, who want the
  /// same ones, ask for a part of the stacks each. Where memory is what a block waits for, that costs more than it gains.
  static __device__ __forceinline__ int gang_member() { return ptx::block_idx() % Shape::kGang; }
  __device__ __forceinline__ u8* slot() const { return s_.s_memory + s_.slot_at(step_); }

  /// Of the step's boxes, of which there are eight at most, a warp brings four, lane i stack i / 4 of box i % 4, and those of stack 0 the
  /// last, too. So the dims that scores begin with are asked for first.
  __device__ __forceinline__ void bring_boxes(const abi::WorkItem& item, const abi::SegmentArg& segment, i64 table_begin) {
    constexpr int kWarpBoxes = ptx::kWarp / Shape::kValueStacks;
    static_assert(Shape::kRows / 8 == Shape::kKeyWarps * kWarpBoxes);
    const abi::TensorMap* map = &p_.kv_maps[item.segment][0];
    const int box = segment.box_tokens;
    const int end = item.kv_end;
    const int stack = lane_ / kWarpBoxes;
    const int first = (warp_ * kWarpBoxes + lane_ % kWarpBoxes) * box;  // of the step's keys
    int key = item.kv_begin + first;                                    // of this thread's box
    bool exists = first < Shape::kRows && key < end;
    i32 page = exists ? page_of(segment, table_begin, key) : 0;
#pragma unroll 1
    for (int begin = item.kv_begin; begin < end; begin += Shape::kRows) {
      const i32 own_page = page;
      const bool own = exists;
      const auto at = static_cast<i32>(slot_of(segment, table_begin, key));
      key += Shape::kRows;
      exists = exists && key < end;
      if (exists) page = page_of(segment, table_begin, key);
      const int boxes = ptx::popcount(ptx::ballot(own)) / Shape::kValueStacks;
      u8* s_rows = slot() + first * kStackRow;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        wait_for_slot(half);
        u64* s_full = s_.full(step_, half);
        if (lane_ == 0) {
          ptx::mbarrier_arrive_expect(s_full, static_cast<u32>(boxes * box * Shape::stacks_of(half) * kStackRow));
          ptx::mbarrier_arrive_many(s_full, ptx::kWarp);
        }
        if (own && stack / Shape::kGroupStacks == half) {
          ptx::tma_load(s_rows + stack * Shape::kStack, map, stack * Shape::kStackDims, item.kv_head, at, own_page, s_full);
        }
        if (half == 1 && own && stack == 0) {
          ptx::tma_load(s_rows + Shape::kValueStacks * Shape::kStack, map + (kTwo ? 1 : 0), kTwo ? 0 : Shape::kFirstDims, item.kv_head, at,
                        own_page, s_full);
        }
        ptx::sync_warp();
      }
      if (Shape::kGang > 1 && exists && stack % Shape::kGang == gang_member()) {
        const auto next_at = static_cast<i32>(slot_of(segment, table_begin, key));
        ptx::tma_prefetch(map, stack * Shape::kStackDims, item.kv_head, next_at, page);
        if (stack < Shape::kGang) {
          ptx::tma_prefetch(map + (kTwo ? 1 : 0), kTwo ? 0 : Shape::kFirstDims, item.kv_head, next_at, page);
        }
      }
      ptx::sync_warp();
      ++step_;
    }
  }

  /// Where the step's keys lie is worked out before the wait, a lane a key, whose page has been asked for a step earlier; then eight lanes
  /// copy 128 bytes of a row at a time, or each its own row by single elements. The copies land while the next step's are issued: who
  /// reads them orders them before its products. Past the end the last key is taken.
  __device__ __forceinline__ void bring_rows(const abi::WorkItem& item, const abi::SegmentArg& segment, i64 table_begin) {
    const bool whole = copies_whole_chunks<c.k_type>(segment.k, 2 * c.head_dim_first()) &&
                       (!kTwo || copies_whole_chunks<c.k_type>(segment.k_rope, 2 * c.head_dim_rope));
    const int end = item.kv_end;
    const u8** s_places = s_.places() + warp_ * ptx::kWarp;
    int key = item.kv_begin + warp_ * ptx::kWarp + lane_;
    i32 page = page_of(segment, table_begin, min(key, end - 1));
#pragma unroll 1
    for (int begin = item.kv_begin; begin < end; begin += Shape::kRows) {
      const int rows = min(end - begin - warp_ * ptx::kWarp, ptx::kWarp);  // of this warp's
      const i64 at = slot_of(segment, table_begin, min(key, end - 1));
      const u8* g_row = key_address(segment.k, page, at, item.kv_head);
      const u8* g_late = kTwo ? key_address(segment.k_rope, page, at, item.kv_head) : g_row + kFirstBytes;
      s_places[lane_] = g_row;
      if (Shape::kGang > 1 && whole) {
#pragma unroll
        for (int i = 0; i < Shape::kValueStacks / Shape::kGang; ++i) ptx::prefetch_l2(g_row + (i * Shape::kGang + gang_member()) * 128);
        if (gang_member() == 0) ptx::prefetch_l2(g_late);
      }
      ptx::sync_warp();
      key += Shape::kRows;
      if (begin + Shape::kRows < end) page = page_of(segment, table_begin, min(key, end - 1));
      u8* s_rows = slot() + warp_ * ptx::kWarp * kStackRow;
      u8* s_late = s_rows + Shape::kValueStacks * Shape::kStack;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        wait_for_slot(half);
        if (whole) {
          constexpr int kHalfBytes = 2 * Shape::kGroupDims;
          if (half == 0) {
            copy_placed_rows<kHalfBytes, Shape::kGroupStacks, Shape::kStack>(s_rows, s_places, rows);
          } else {
            constexpr int kStacks = kTwo ? Shape::kGroupStacks : Shape::stacks_of(1);  // the last one, too, if it is in the same rows
            copy_placed_rows<kStacks * kStackRow, kStacks, Shape::kStack>(s_rows + Shape::kGroupStacks * Shape::kStack, s_places, rows,
                                                                          kHalfBytes);
            if (kTwo && rows > 0) copy_own_rows<1, Shape::kStack>(s_late, g_late);
          }
        } else {
          gather_own_row<Shape::kStack>(s_rows, g_row, segment.k.dim_stride, half * Shape::kGroupDims,
                                        half == 0 ? Shape::kGroupDims : c.head_dim_first());
          if (kTwo && half == 1) gather_own_row<Shape::kStack>(s_late, g_late, segment.k_rope.dim_stride, 0, c.head_dim_rope);
        }
        ptx::mbarrier_arrive_after_copies(s_.full(step_, half));
        ptx::sync_warp();
        if (lane_ == 0) ptx::mbarrier_arrive(s_.full(step_, half));
      }
      ++step_;
    }
  }

  /// This warp's rows of a tile's Q, of which those past the tile's last one are that one.
  __device__ __forceinline__ void bring_query(const abi::WorkItem& item) {
    static_assert(Shape::kRows == Shape::kQueryWarps * ptx::kWarp);
    const int first = (warp_ - Shape::kKeyWarps) * ptx::kWarp;
    const RowPlace place = place_row<c>(item.row_begin + min(first + lane_, item.row_count - 1), item.kv_head);
    const u8* g_row = row_address(p_.q, place.token, place.q_head);
    u8* s_rows = s_.s_memory + Shape::kQueryAt + first * kStackRow;
    ptx::mbarrier_wait(s_.query_empty(), (step_ & 1U) ^ 1U);
    ++step_;
    if (rows_aligned(p_.q, 16)) {
      copy_own_rows<Shape::kValueStacks, Shape::kStack>(s_rows, g_row);
    } else {
      gather_own_row<Shape::kStack>(s_rows, g_row, 2, 0, Shape::kFirstDims);
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    ptx::fence_async_proxy();
    s_.arrive(s_.query_full());
  }

  const Args& p_;
  MlaMemory<c> s_;
  int lane_, warp_;
  u32 step_ = 0;  // of the block's, or for those that bring Q its tile: the next
};

}  // namespace girih::attention
