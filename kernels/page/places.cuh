// Where a new token goes and which position it has: given for each row, or from an attention plan, whose query tokens are the last keys of
// their groups. With a plan nothing but device memory decides, so that a captured graph follows whatever batch is uploaded.
#pragma once

#include "abi/page_params.h"
#include "core/math.cuh"
#include "core/types.cuh"

namespace girih::page {

struct PlannedKey {
  abi::TokenPlace place;  // token < 0: nowhere
  i64 position;           // for rotation
};

/// The first of `count` groups whose end(i) is beyond `row`: ends are ascending.
template <typename End>
__device__ __forceinline__ i64 group_of(i64 count, i64 row, End end) {
  i64 low = 0;
  i64 high = count;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (end(middle) <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Where the plan's query token `row` lies as a key; nowhere where its group has fewer keys than query rows before it, or none.
template <typename P>
__device__ __forceinline__ PlannedKey planned_key(const P& p, i64 row) {
  const u8* blob = reinterpret_cast<const u8*>(p.plan);
  const abi::SegmentInfo& segment = reinterpret_cast<const abi::SegmentInfo*>(blob + p.plan->segments.offset)[p.segment];
  const abi::KvRow* rows = reinterpret_cast<const abi::KvRow*>(blob + p.plan->kv_rows.offset) + segment.kv_row_begin;
  // Groups of one length are found at once: each step of a search would wait for memory.
  const float share = static_cast<float>(segment.num_groups) * rcp_approx(static_cast<float>(p.plan->num_tokens));
  i64 group = min(static_cast<i64>((static_cast<float>(row) + 0.5F) * share), segment.num_groups - 1);
  if (group < 0 || rows[group].q_begin > row || rows[group].q_end <= row)
    group = group_of(segment.num_groups, row, [rows](i64 i) { return rows[i].q_end; });
  if (group == segment.num_groups || rows[group].q_begin > row) return {{0, -1}, 0};
  const i64 key = rows[group].kv_len - (rows[group].q_end - row);
  if (key < 0) return {{0, -1}, 0};
  const i64 position = rows[group].kv_rope_pos + key;
  if (p.page_size.divisor == 0) return {{0, rows[group].table_begin + key}, position};
  const u32 index = static_cast<u32>((static_cast<u64>(static_cast<u32>(key)) * p.page_size.magic) >> p.page_size.shift);
  return {{p.kv_indices[rows[group].table_begin + index], key - static_cast<i64>(index) * p.page_size.divisor}, position};
}

template <typename P>
__device__ __forceinline__ PlannedKey key_of(const P& p, i64 row) {
  return p.places != nullptr ? PlannedKey{p.places[row], 0} : planned_key(p, row);
}

__device__ __forceinline__ i64 index_at(const u8* indices, i64 byte_offset, bool is_64) {
  return is_64 ? *reinterpret_cast<const i64*>(indices + byte_offset) : *reinterpret_cast<const i32*>(indices + byte_offset);
}

/// positions[row], or by requests: offsets[i] + row - indptr[i].
template <typename P>
__device__ __forceinline__ i64 position_of(const P& p, i64 row) {
  const bool is_64 = p.positions_64 != 0;
  const i64 size = is_64 ? 8 : 4;
  if (p.positions != nullptr) return index_at(p.positions, row * p.position_stride, is_64);
  const i64 request = group_of(p.requests, row, [&](i64 i) { return index_at(p.indptr, (i + 1) * size, is_64); });
  if (request >= p.requests) return 0;
  return index_at(p.offsets, request * size, is_64) + row - index_at(p.indptr, request * size, is_64);
}

}  // namespace girih::page
