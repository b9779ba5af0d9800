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

/// Rows of K or Q by one warp: 32 of them, of which each lane has the place of one (null: zeros), from byte `from` on, into stacks of 64
/// dims.
template <int kStacks>
__device__ __forceinline__ void copy_mla_rows(u8* s_rows, int stack_bytes, const u8* g_row, int from = 0) {
  const int lane = ptx::lane_idx();
  const u8* next = shuffle_pointer(g_row, lane / 8);
#pragma unroll
  for (int first = 0; first < ptx::kWarp; first += 4) {
    const int row = first + lane / 8;
    const u8* source = next;
    if (first + 4 < ptx::kWarp) next = shuffle_pointer(g_row, row + 4);
    u8* s_chunk = s_rows + mla_offset(row, lane % 8);
#pragma unroll
    for (int i = 0; i < kStacks; ++i) {
      ptx::cp_async_16(s_chunk + i * stack_bytes, source + from + i * 128 + lane % 8 * 16, source != nullptr);
    }
  }
}
/// The same element by element, each lane its own row's dims [begin, end).
__device__ __forceinline__ void gather_mla_row(u8* s_rows, int stack_bytes, const u8* g_row, i64 dim_stride, int begin, int end) {
#pragma unroll 1
  for (int dim = begin; dim < end; ++dim) {
    u8* s_chunk = s_rows + dim / 64 * stack_bytes + mla_offset(ptx::lane_idx(), dim % 64 / 8);
    reinterpret_cast<u16*>(s_chunk)[dim % 8] = g_row != nullptr ? *reinterpret_cast<const u16*>(g_row + dim * dim_stride) : u16{0};
  }
}

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
      u8* s_rows = slot() + first * Shape::kRow;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        wait_for_slot(half);
        u64* s_full = s_.full(step_, half);
        if (lane_ == 0) {
          ptx::mbarrier_arrive_expect(s_full, static_cast<u32>(boxes * box * Shape::stacks_of(half) * Shape::kRow));
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

  /// A lane looks up a key's place, whose page has been asked for before; then eight lanes copy 128 bytes of a row at a time, or each its
  /// own row by single elements. The copies land while the next step's are issued: who reads them orders them before its products.
  __device__ __forceinline__ void bring_rows(const abi::WorkItem& item, const abi::SegmentArg& segment, i64 table_begin) {
    const bool whole = copies_whole_chunks<c.k_type>(segment.k, 2 * c.head_dim_first()) &&
                       (!kTwo || copies_whole_chunks<c.k_type>(segment.k_rope, 2 * c.head_dim_rope));
    const int end = item.kv_end;
    int key = item.kv_begin + warp_ * ptx::kWarp + lane_;
    i32 page = key < end ? page_of(segment, table_begin, key) : 0;
#pragma unroll 1
    for (int begin = item.kv_begin; begin < end; begin += Shape::kRows) {
      const u8* g_row = nullptr;
      const u8* g_late = nullptr;
      if (key < end) {
        const i64 at = slot_of(segment, table_begin, key);
        g_row = key_address(segment.k, page, at, item.kv_head);
        g_late = kTwo ? key_address(segment.k_rope, page, at, item.kv_head) : g_row + kFirstBytes;
      }
      key += Shape::kRows;
      if (key < end) page = page_of(segment, table_begin, key);
      u8* s_rows = slot() + warp_ * ptx::kWarp * Shape::kRow;
      u8* s_late = s_rows + Shape::kValueStacks * Shape::kStack;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        wait_for_slot(half);
        if (whole) {
          copy_mla_rows<Shape::kGroupStacks>(s_rows + half * Shape::kGroupStacks * Shape::kStack, Shape::kStack, g_row,
                                             half * 2 * Shape::kGroupDims);
          if (half == 1) copy_mla_rows<1>(s_late, Shape::kStack, g_late);
        } else {
          gather_mla_row(s_rows, Shape::kStack, g_row, segment.k.dim_stride, half * Shape::kGroupDims,
                         half == 0 ? Shape::kGroupDims : c.head_dim_first());
          if (kTwo && half == 1) gather_mla_row(s_late, Shape::kStack, g_late, segment.k_rope.dim_stride, 0, c.head_dim_rope);
        }
        ptx::mbarrier_arrive_after_copies(s_.full(step_, half));
        ptx::sync_warp();
        if (lane_ == 0) ptx::mbarrier_arrive(s_.full(step_, half));
      }
      if (Shape::kGang > 1 && whole && key < end) {
        const i64 next_at = slot_of(segment, table_begin, key);
        const u8* g_next = key_address(segment.k, page, next_at, item.kv_head);
#pragma unroll
        for (int i = 0; i < Shape::kValueStacks / Shape::kGang; ++i) ptx::prefetch_l2(g_next + (i * Shape::kGang + gang_member()) * 128);
        const u8* g_next_late = kTwo ? key_address(segment.k_rope, page, next_at, item.kv_head) : g_next + kFirstBytes;
        if (gang_member() == 0) ptx::prefetch_l2(g_next_late);
      }
      ++step_;
    }
  }

  /// This warp's rows of a tile's Q, of which those past the tile's last one are zeros.
  __device__ __forceinline__ void bring_query(const abi::WorkItem& item) {
    static_assert(Shape::kRows == Shape::kQueryWarps * ptx::kWarp);
    const int first = (warp_ - Shape::kKeyWarps) * ptx::kWarp;
    const int row = first + lane_;
    const RowPlace place = place_row<c>(item.row_begin + min(row, item.row_count - 1), item.kv_head);
    const u8* g_row = row < item.row_count ? row_address(p_.q, place.token, place.q_head) : nullptr;
    u8* s_rows = s_.s_memory + Shape::kQueryAt + first * Shape::kRow;
    ptx::mbarrier_wait(s_.query_empty(), (step_ & 1U) ^ 1U);
    ++step_;
    if (rows_aligned(p_.q, 16)) {
      copy_mla_rows<Shape::kValueStacks>(s_rows, Shape::kStack, g_row);
    } else {
      gather_mla_row(s_rows, Shape::kStack, g_row, 2, 0, Shape::kFirstDims);
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
