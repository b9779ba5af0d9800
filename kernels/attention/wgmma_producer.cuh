// What the producing warps of the wgmma family do: one warp brings every step's K into its ring, another V, two bring each tile's Q; each
// runs ahead of the consumers as far as its ring allows. Where V is laid out anew, one warp does that and one brings Q; where K and V are
// widened, four warps more do that.
// K and V come by the copy engine where the segment has a map: boxes of `box_tokens` keys, which lie in one page, by 128 bytes of dims, one
// lane for each place of a box in the step; the page ids of the next step are asked for before the wait. Boxes past the item's keys are not
// asked for: what lies there is hidden from scores, and whoever reads such rows of V clears them.
// Stores that the copy engine cannot take (pages of few tokens, odd strides) are copied by the warp, row by row: where a step's rows lie is
// worked out before the wait and kept in shared memory, so that a stage, once it is free, waits for copies alone.
#pragma once

#include "attention/config.cuh"
#include "attention/key_stream.cuh"
#include "attention/problem.cuh"
#include "attention/wgmma_rows.cuh"
#include "attention/wgmma_shape.cuh"
#include "attention/wgmma_transpose.cuh"
#include "attention/wgmma_widen.cuh"
#include "core/types.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/thread.cuh"
#include "ptx/tma.cuh"

namespace girih::attention {

/// Elements as they lie, of one byte or two.
template <int kBytes>
struct ElementBits {
  using T = u16;
};
template <>
struct ElementBits<1> {
  using T = u8;
};

inline constexpr int kBoxWidth = kStackRow / 2;  // maps have elements of two bytes

/// `rows` rows of kRow bytes by one warp, of which every lane has the place of one (null: zeros), into kStacks stacks: a multiple of
/// 4 kTurns rows. Several turns at once wait for each other less, and hold more addresses.
template <int kRow, int kStacks, int kStackBytes, int kTurns>
__device__ __forceinline__ void copy_rows(u8* s_rows, const u8* g_row, int rows) {
  constexpr int kAtOnce = ptx::kWarp / 8;
  const int row = ptx::lane_idx() / 8;
  const int chunk = ptx::lane_idx() % 8;
#pragma unroll 1
  for (int first = 0; first < rows; first += kAtOnce * kTurns) {  // the same for all lanes
    const u8* sources[kTurns];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) sources[turn] = shuffle_pointer(g_row, first + row + kAtOnce * turn);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      u8* s_chunk = s_rows + stack_offset(first + row + kAtOnce * turn, chunk);
#pragma unroll
      for (int i = 0; i < kStacks; ++i) {
        const int at = i * kStackRow + 16 * chunk;
        if (at < kRow) ptx::cp_async_16(s_chunk + i * kStackBytes, sources[turn] + at, sources[turn] != nullptr);
      }
    }
  }
}

/// The warp that brings K, or V.
template <Config c, class Variant, bool kIsValue>
class KeyProducer {
 public:
  using Shape = WgmmaShape<c, Variant>;
  static constexpr int kStacks = kIsValue ? Shape::kBroughtValueStacks : Shape::kBroughtKeyStacks;
  static constexpr int kStage = kIsValue ? Shape::kBroughtValueStage : Shape::kBroughtKeyStage;
  static constexpr bool kIsReshaped = kIsValue ? Shape::kTransposes || Shape::kWidens : Shape::kWidens;
  static constexpr int kRing = kIsValue ? 0 : 1;  // of those that are
  static constexpr int kDims = kIsValue ? c.head_dim_vo : c.head_dim_qk;
  static constexpr int kRow = kDims * Shape::kStored;  // bytes
  static constexpr Type kType = kIsValue ? c.v_type : c.k_type;

  __device__ __forceinline__ KeyProducer(const Args& p, u8* s_memory)
      : p_(p),
        s_ring_(s_memory + (kIsValue ? Shape::kBroughtValuesAt : Shape::kBroughtKeysAt)),
        s_places_(reinterpret_cast<const u8**>(s_memory + Shape::kPlacesAt) + (kIsValue ? Shape::kPlaces : 0)),
        barriers_(s_memory),
        lane_(ptx::lane_idx()) {}

  __device__ __forceinline__ void run(UnitItems items) {
#pragma unroll 1
    for (const abi::WorkItem* item = items.begin; item != items.end; ++item) {
      if (item->row_count == 0 || item->kv_begin >= item->kv_end) continue;
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
  __device__ __forceinline__ int stage() const { return stage_of<Shape::kStages>(step_); }
  __device__ __forceinline__ u64* full() const {
    if constexpr (kIsReshaped) return barriers_.brought_full(kRing, stage());
    return kIsValue ? barriers_.value_full(stage()) : barriers_.key_full(stage());
  }
  __device__ __forceinline__ u64* empty() const {
    if constexpr (kIsReshaped) return barriers_.brought_empty(kRing, stage());
    return kIsValue ? barriers_.value_empty(stage()) : barriers_.key_empty(stage());
  }
  __device__ __forceinline__ const abi::PlaneArg& plane(const abi::SegmentArg& segment) const { return kIsValue ? segment.v : segment.k; }

  __device__ __forceinline__ void bring_boxes(const abi::WorkItem& item, const abi::SegmentArg& segment, i64 table_begin) {
    const abi::TensorMap* map = &p_.kv_maps[item.segment][kIsValue ? 1 : 0];
    const int box = segment.box_tokens;
    const int end = item.kv_end;
    const int head = item.kv_head;
    int key = item.kv_begin + lane_ * box;  // of this lane's box
    bool exists = lane_ * box < Shape::kStepKeys && key < end;
    i32 page = exists ? page_of(segment, table_begin, key) : 0;
#pragma unroll 1
    for (int begin = item.kv_begin; begin < end; begin += Shape::kStepKeys) {
      const i32 own_page = page;
      const bool own = exists;
      const auto slot = static_cast<i32>(slot_of(segment, table_begin, key));
      key += Shape::kStepKeys;
      exists = exists && key < end;
      if (exists) page = page_of(segment, table_begin, key);
      const int boxes = (min(Shape::kStepKeys, end - begin) + box - 1) / box;
      ptx::mbarrier_wait(empty(), parity_of<Shape::kStages>(step_) ^ 1U);
      if (lane_ == 0) {
        ptx::mbarrier_arrive_expect(full(), static_cast<u32>(boxes * box * kStacks * kStackRow));
        ptx::mbarrier_arrive_many(full(), kFullArrivals - 1);
      }
      if (own) {
        u8* s_rows = s_ring_ + stage() * kStage + lane_ * box * kStackRow;
#pragma unroll
        for (int i = 0; i < kStacks; ++i) ptx::tma_load(s_rows + i * Shape::kStack, map, i * kBoxWidth, head, slot, own_page, full());
      }
      ptx::sync_warp();
      ++step_;
    }
  }

  /// Where the step's keys lie is looked up before the wait, a lane a key; then eight lanes copy a row, or each its own by single elements.
  /// The copies land while the next step's are issued: consumers order them before their products. Past the end the last key is taken.
  __device__ __forceinline__ void bring_rows(const abi::WorkItem& item, const abi::SegmentArg& segment, i64 table_begin) {
    const abi::PlaneArg& from = plane(segment);
    const bool whole = copies_whole_chunks<kType>(from, kRow);
    const int end = item.kv_end;
    const int head = item.kv_head;
#pragma unroll 1
    for (int begin = item.kv_begin; begin < end; begin += Shape::kStepKeys) {
      const int rows = min(Shape::kStepKeys, end - begin);
#pragma unroll 2
      for (int row = lane_; row < Shape::kPlaces; row += ptx::kWarp) {
        const int key = min(begin + row, end - 1);
        s_places_[row] = key_address(from, page_of(segment, table_begin, key), slot_of(segment, table_begin, key), head);
      }
      ptx::sync_warp();
      ptx::mbarrier_wait(empty(), parity_of<Shape::kStages>(step_) ^ 1U);
      u8* s_rows = s_ring_ + stage() * kStage;
      if (whole) {
        copy_placed_rows<kRow, kStacks, Shape::kStack>(s_rows, s_places_, rows);
        ptx::mbarrier_arrive_after_copies(full());
      } else {
#pragma unroll 1
        for (int row = lane_; row < rows; row += ptx::kWarp) gather_row(s_rows, row, from.dim_stride);
        ptx::mbarrier_arrive(full());
      }
      ptx::sync_warp();  // all lanes have read the places
      if (lane_ == 0) ptx::mbarrier_arrive(full());
      ++step_;
    }
  }
  __device__ __forceinline__ void gather_row(u8* s_rows, int row, i64 dim_stride) const {
    using Bits = typename ElementBits<Shape::kStored>::T;
    constexpr int kOfChunk = 16 / Shape::kStored;
    const u8* g_row = s_places_[row];
#pragma unroll 1
    for (int dim = 0; dim < kDims; ++dim) {
      u8* s_chunk = s_rows + dim / (8 * kOfChunk) * Shape::kStack + stack_offset(row, dim / kOfChunk);
      reinterpret_cast<Bits*>(s_chunk)[dim % kOfChunk] = *reinterpret_cast<const Bits*>(g_row + dim * dim_stride);
    }
  }

  const Args& p_;
  u8* s_ring_;
  const u8** s_places_;  // of a step's rows
  WgmmaBarriers<Shape> barriers_;
  int lane_;
  u32 step_ = 0;  // of the block's
};

/// The request of row `row` of the item's tile, or of its last one.
template <Config c>
__device__ __forceinline__ i32 request_of(const Args& p, const abi::WorkItem& item, int row) {
  const auto* requests = blob_array<abi::RequestInfo>(p, p.plan->requests);
  return find_request_warp(requests, p.plan->num_requests, (item.row_begin + min(row, item.row_count - 1)) / c.group);
}

/// Rows [first_row, first_row + rows) of the item's tile, the first of them of `request`, as hooks see them, by one warp; those past the
/// tile's last one are that one.
template <Config c>
__device__ __forceinline__ void describe_rows(const Args& p, const abi::WorkItem& item, i32 request, int first_row, int rows, u8* s_rows) {
  const auto* requests = blob_array<abi::RequestInfo>(p, p.plan->requests);
  const int last_row = item.row_count - 1;
#pragma unroll 1
  for (int row = ptx::lane_idx(); row < rows; row += ptx::kWarp) {
    const RowPlace place = place_row<c>(item.row_begin + min(first_row + row, last_row), item.kv_head);
#pragma unroll 1
    while (place.token >= requests[request].q_begin + requests[request].q_len) ++request;
    reinterpret_cast<RowVars*>(s_rows)[row] = describe_row(requests[request], request, place, item.kv_head);
  }
}

/// The warps that bring Q, `part` of Shape::kQueryWarps of a tile's rows each. Rows past the tile's last one are zeros.
template <Config c, class Variant>
__device__ __forceinline__ void produce_query(const Args& p, UnitItems items, int part, u8* s_memory) {
  using Shape = WgmmaShape<c, Variant>;
  using Bits = typename ElementBits<Shape::kElement>::T;
  constexpr int kRows = c.tile_rows / Shape::kQueryWarps;
  constexpr int kOfChunk = 16 / Shape::kElement;
  const WgmmaBarriers<Shape> barriers(s_memory);
  const int lane = ptx::lane_idx();
  const bool whole = rows_aligned(p.q, 16);
  u32 parity = 1;
#pragma unroll 1
  for (const abi::WorkItem* item = items.begin; item != items.end; ++item) {
    if (item->row_count == 0 || !is_first(*item)) continue;
    // While the tile before is at work.
    i32 request = 0;
    if constexpr (kKeepsHookRows<Variant>) request = request_of<c>(p, *item, part * kRows);
#pragma unroll 1
    for (int row = part * kRows; row < (part + 1) * kRows; row += ptx::kWarp) prefetch_query_rows<c, ptx::kWarp>(p, *item, row);
    ptx::mbarrier_wait(barriers.query_empty(part % Shape::kQueryPlaces), parity);
    parity ^= 1U;
#pragma unroll 1
    for (int first = part * kRows; first < (part + 1) * kRows; first += ptx::kWarp) {
      const int row = first + lane;
      const RowPlace place = place_row<c>(item->row_begin + row, item->kv_head);
      const u8* g_row = row < item->row_count ? row_address(p.q, place.token, place.q_head) : nullptr;
      u8* s_rows = s_memory + Shape::kQueryAt + first * kStackRow;
      if (whole) {
        copy_rows<c.head_dim_qk * Shape::kElement, Shape::kKeyStacks, Shape::kQueryStack, 2>(s_rows, g_row, ptx::kWarp);
      } else {
#pragma unroll 1
        for (int dim = 0; dim < c.head_dim_qk; ++dim) {
          u8* s_chunk = s_rows + dim / (8 * kOfChunk) * Shape::kQueryStack + stack_offset(lane, dim / kOfChunk);
          reinterpret_cast<Bits*>(s_chunk)[dim % kOfChunk] = g_row != nullptr ? reinterpret_cast<const Bits*>(g_row)[dim] : Bits{0};
        }
      }
    }
    ptx::cp_async_commit();
    if constexpr (kKeepsHookRows<Variant>) {
      u8* s_rows = s_memory + Shape::kRowsAt + part * kRows * static_cast<int>(sizeof(RowVars));
      describe_rows<c>(p, *item, request, part * kRows, kRows, s_rows);
    }
    ptx::cp_async_wait<0>();
    ptx::fence_async_proxy();
    ptx::sync_warp();
    if (lane == 0) ptx::mbarrier_arrive(barriers.query_full(part % Shape::kQueryPlaces));
  }
}

/// Producing warp `role`.
template <Config c, class Variant>
__device__ __forceinline__ void produce(const Args& p, UnitItems items, int role, u8* s_memory) {
  if (role == 0) {
    KeyProducer<c, Variant, false>(p, s_memory).run(items);
  } else if (role == 1) {
    KeyProducer<c, Variant, true>(p, s_memory).run(items);
  } else if (WgmmaShape<c, Variant>::kTransposes && role == 3) {
    if constexpr (WgmmaShape<c, Variant>::kTransposes) transpose_values<c, Variant>(items, s_memory);
  } else if (WgmmaShape<c, Variant>::kWidens && role >= kGroupWarps) {
    if constexpr (WgmmaShape<c, Variant>::kWidens) widen_keys<c, Variant>(items, role - kGroupWarps, s_memory);
  } else {
    produce_query<c, Variant>(p, items, role - 2, s_memory);
  }
}

}  // namespace girih::attention
