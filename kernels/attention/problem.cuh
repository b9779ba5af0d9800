// The problem as a kernel sees it: a block's items from the plan's blob, what is known of a packed query row, and where keys and values
// lie. Addresses are 64-bit: page ids and slots are widened before they meet a stride.
// Nothing here depends on how a family holds its data; each thread asks for the rows and keys that it needs.
#pragma once

#include "abi/attention_params.h"
#include "attention/config.cuh"
#include "core/convert.cuh"
#include "core/types.cuh"
#include "ptx/launch.cuh"
#include "ptx/memory.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

using Args = abi::AttentionParams;

template <typename T>
__device__ __forceinline__ const T* blob_array(const Args& p, const abi::BlobArray& array) {
  return reinterpret_cast<const T*>(reinterpret_cast<const u8*>(p.plan) + array.offset);
}

// ---------------------------------------------------------------------------------------------------------------- launches

/// Before anything is read that another kernel may have written.
__device__ __forceinline__ void begin_list(const Args& p) {
  if (p.order != abi::ListOrder::kSecond) ptx::wait_for_previous_grid();
  if (p.order == abi::ListOrder::kFirst) ptx::start_next_grid();
}
/// After all else. Of the second list one block waits for the first: the others leave their places to those that have none yet.
__device__ __forceinline__ void end_list(const Args& p) {
  if (p.order == abi::ListOrder::kSecond && ptx::block_idx() == ptx::num_blocks() - 1) ptx::wait_for_previous_grid();
}

// ------------------------------------------------------------------------------------------------------------------ items

struct UnitItems {
  const abi::WorkItem* begin;
  const abi::WorkItem* end;
};

/// The arrays unit_begin and items are at fixed places in the blob.
constexpr i64 kUnitBeginAt = (static_cast<i64>(sizeof(abi::PlanHeader)) + 63) / 64 * 64;
__device__ __forceinline__ const abi::WorkItem* all_items(const Args& p) {
  const u8* blob = reinterpret_cast<const u8*>(p.plan);
  return reinterpret_cast<const abi::WorkItem*>(blob + kUnitBeginAt + (4 * (static_cast<i64>(p.num_units) + 1) + 63) / 64 * 64);
}

__device__ __forceinline__ const i32* unit_begins(const Args& p) {
  return reinterpret_cast<const i32*>(reinterpret_cast<const u8*>(p.plan) + kUnitBeginAt);
}
/// Items of the class' unit `idx`. Items with row_count 0 are padding.
__device__ __forceinline__ UnitItems unit_items(const Args& p, i32 idx) {
  const i32* begin = unit_begins(p) + p.first_unit + idx;
  return {all_items(p) + begin[0], all_items(p) + begin[1]};
}
/// Of this block's unit.
__device__ __forceinline__ UnitItems unit_items(const Args& p) { return unit_items(p, ptx::block_idx()); }

/// Whether the plan leaves units to whoever is free: blocks do not run equally fast.
__device__ __forceinline__ bool has_free_units(const Args& p) {
  const i32* begin = unit_begins(p) + p.first_unit;
  return p.class_units > ptx::num_blocks() && begin[ptx::num_blocks()] != begin[p.class_units];
}
/// One of those for a block that has ended its unit, if any is left: called by the whole block; `s_word` is a word of shared memory. The
/// last block to ask resets the count for the next launch.
template <Config c>
__device__ __forceinline__ bool take_unit(const Args& p, u32* s_word, UnitItems& items) {
  const i32 free_units = p.class_units - ptx::num_blocks();
  ptx::sync_block();
  if (ptx::thread_idx() == 0) {
    i32* next = p.next_unit + c.tile_class;
    const i32 idx = ptx::atomic_add(next, 1);
    if (idx == free_units + ptx::num_blocks() - 1) *next = 0;
    *s_word = static_cast<u32>(idx);
  }
  ptx::sync_block();
  const i32 idx = static_cast<i32>(*s_word);
  if (idx >= free_units) return false;
  items = unit_items(p, ptx::num_blocks() + idx);
  return true;
}

__device__ __forceinline__ bool is_first(const abi::WorkItem& item) { return (item.flags & abi::WorkItem::kFirst) != 0; }
__device__ __forceinline__ bool is_last(const abi::WorkItem& item) { return (item.flags & abi::WorkItem::kLast) != 0; }
__device__ __forceinline__ bool is_chunk(const abi::WorkItem& item) { return (item.flags & abi::WorkItem::kChunk) != 0; }

/// Whether keys [begin, end) of the item need no mask code.
__device__ __forceinline__ bool all_visible(const abi::WorkItem& item, int begin, int end) {
  return begin >= item.full_begin && end <= item.full_end;
}

// ------------------------------------------------------------------------------------------------------------------ rows

/// What hooks may ask of a query row.
struct RowVars {
  i64 q_pos, q_idx, q_len, kv_len, q_row;
  i64 q_rope_pos;
  i32 request, q_head, kv_head;
};

/// Token and query head of packed row `row`: known without the blob.
struct RowPlace {
  i32 token;
  i32 q_head;
};
template <Config c>
__device__ __forceinline__ RowPlace place_row(i32 row, i32 kv_head) {
  return {row / c.group, kv_head * c.group + row % c.group};
}

/// The last request that begins at or before `token`: log2(requests) dependent loads.
__device__ __forceinline__ i32 find_request(const abi::RequestInfo* requests, i32 num_requests, i64 token) {
  i32 low = 0;
  i32 high = num_requests;
#pragma unroll 1
  while (high - low > 1) {
    const i32 middle = low + (high - low) / 2;
    if (requests[middle].q_begin <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The same for a token that all lanes of a warp ask for together: log33(requests) dependent loads.
__device__ __forceinline__ i32 find_request_warp(const abi::RequestInfo* requests, i32 num_requests, i64 token) {
  i32 low = 0;
  i32 high = num_requests;
  while (high - low > 1) {
    const i32 step = (high - low + ptx::kWarp) / (ptx::kWarp + 1);
    const i32 probe = low + (ptx::lane_idx() + 1) * step;
    const bool before = probe < high && requests[probe].q_begin <= token;
    // Begins are ascending, so the lanes that hold are the first ones.
    const u32 holds = ptx::ballot(before);
    const i32 num_before = holds == ptx::kAllLanes ? ptx::kWarp : static_cast<i32>(bits_of(static_cast<float>(holds + 1)) >> 23) - 127;
    low += num_before * step;
    high = min(high, low + step);
  }
  return low;
}

__device__ __forceinline__ RowVars describe_row(const abi::RequestInfo& request, i32 request_idx, RowPlace place, i32 kv_head) {
  const i64 q_idx = place.token - request.q_begin;
  return {.q_pos = request.q_pos + q_idx,
          .q_idx = q_idx,
          .q_len = request.q_len,
          .kv_len = request.kv_len,
          .q_row = place.token,
          .q_rope_pos = request.q_rope_pos + q_idx,
          .request = request_idx,
          .q_head = place.q_head,
          .kv_head = kv_head};
}

/// Everything about packed row `row` of a KV head.
template <Config c>
__device__ __forceinline__ RowVars describe_row(const Args& p, i32 row, i32 kv_head) {
  const auto* requests = blob_array<abi::RequestInfo>(p, p.plan->requests);
  const RowPlace place = place_row<c>(row, kv_head);
  const i32 request = find_request(requests, p.plan->num_requests, place.token);
  return describe_row(requests[request], request, place, kv_head);
}

/// Where a row of Q, Q's RoPE part or O begins.
__device__ __forceinline__ u8* row_address(const abi::RowsArg& rows, i64 token, i64 head) {
  return rows.data + token * rows.token_stride + head * rows.head_stride;
}

// ------------------------------------------------------------------------------------------------------------------ keys

__device__ __forceinline__ u32 divide(u32 n, const abi::FastDivider& by) {
  return static_cast<u32>((static_cast<u64>(n) * by.magic) >> by.shift);
}

/// Where a key lies: entry of the page table and slot within that page. Ragged: entry 0, the slot is the token.
struct KeySlot {
  i64 entry;
  i64 slot;
};

/// Where key `key` of the row list at `table_begin` lies, for those who look pages up apart from slots: its page's id (ragged stores are
/// one page, 0), and its slot there.
__device__ __forceinline__ i32 page_of(const abi::SegmentArg& segment, i64 table_begin, i32 key) {
  if (segment.page_size.divisor == 0) return 0;
  return segment.kv_indices[table_begin + divide(static_cast<u32>(key), segment.page_size)];
}
__device__ __forceinline__ i64 slot_of(const abi::SegmentArg& segment, i64 table_begin, i32 key) {
  if (segment.page_size.divisor == 0) return table_begin + key;
  const u32 at = static_cast<u32>(key);
  return static_cast<i64>(at - divide(at, segment.page_size) * segment.page_size.divisor);
}

/// The keys of an item's row list for one KV head.
struct KeyList {
  const abi::SegmentArg* segment;
  i64 table_begin;
  i64 kv_pos;
  i64 rope_shift;  // RoPE position minus logical position
  i32 kv_head;
  bool page_positions;

  __device__ __forceinline__ bool endless() const { return segment->page_size.divisor == 0; }

  __device__ __forceinline__ KeySlot slot_of(i32 key) const {
    if (endless()) return {0, table_begin + key};
    const u32 index = divide(static_cast<u32>(key), segment->page_size);
    return {table_begin + index, static_cast<i64>(static_cast<u32>(key) - index * segment->page_size.divisor)};
  }
  /// Page id of an entry: the one dependent load on the way to a key. Ragged stores are one page, 0.
  __device__ __forceinline__ i64 page_of(i64 entry) const { return endless() ? 0 : static_cast<i64>(segment->kv_indices[entry]); }

  /// Logical position.
  __device__ __forceinline__ i64 position(i32 key, KeySlot at) const {
    return page_positions ? segment->page_pos[at.entry] + at.slot : kv_pos + key;
  }
};

__device__ __forceinline__ KeyList key_list(const Args& p, const abi::WorkItem& item) {
  const abi::KvRow& row = blob_array<abi::KvRow>(p, p.plan->kv_rows)[item.kv_row];
  const abi::SegmentArg* segment = &p.segments[item.segment];
  // A replay's plan may do without the positions that the capture was given.
  const bool page_positions =
      segment->page_pos != nullptr && blob_array<abi::SegmentInfo>(p, p.plan->segments)[item.segment].has_page_pos != 0;
  return {.segment = segment,
          .table_begin = row.table_begin,
          .kv_pos = row.kv_pos,
          .rope_shift = row.kv_rope_pos - row.kv_pos,
          .kv_head = item.kv_head,
          .page_positions = page_positions};
}

/// First element of a key's row in a plane.
__device__ __forceinline__ const u8* key_address(const abi::PlaneArg& plane, i64 page, i64 slot, i32 head) {
  return plane.data + page * plane.page_stride + slot * plane.token_stride + head * plane.head_stride;
}

/// The plane that V is read from.
template <Config c>
__device__ __forceinline__ const abi::PlaneArg& value_plane(const abi::SegmentArg& segment) {
  return c.v_is_k ? segment.k : segment.v;
}

// ------------------------------------------------------------------------------------------------------------------ scales

/// The scale common to all rows of a head; 1 where scales are finer or absent.
template <Scale scale>
__device__ __forceinline__ float head_scale(const abi::PlaneArg& plane, i32 head) {
  if constexpr (scale == Scale::tensor) return *reinterpret_cast<const float*>(plane.scales) * plane.global_scale;
  if constexpr (scale == Scale::head) {
    return *reinterpret_cast<const float*>(plane.scales + head * plane.scale_head_stride) * plane.global_scale;
  }
  return 1.0F;
}

/// Where a key's scales begin: one f32 (token_head), or one byte a block.
__device__ __forceinline__ const u8* scale_address(const abi::PlaneArg& plane, i64 page, i64 slot, i32 head) {
  return plane.scales + page * plane.scale_page_stride + slot * plane.scale_token_stride + head * plane.scale_head_stride;
}
/// A key's scale; 1 where scales are coarser, finer or absent.
template <Scale scale>
__device__ __forceinline__ float token_scale(const abi::PlaneArg& plane, i64 page, i64 slot, i32 head) {
  if constexpr (scale == Scale::token_head) {
    return *reinterpret_cast<const float*>(scale_address(plane, page, slot, head)) * plane.global_scale;
  }
  return 1.0F;
}

}  // namespace girih::attention
