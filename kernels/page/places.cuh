// Where a new token goes and which position it has: given for each row, from arrays on the device, or from an attention plan, whose query
// tokens are the last keys of their groups. With the last two nothing but device memory decides, so that a captured graph follows it.
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

/// key / page_size, for keys below 2^31.
__device__ __forceinline__ u32 page_index(const abi::FastDivider& page_size, i64 key) {
  return static_cast<u32>((static_cast<u64>(static_cast<u32>(key)) * page_size.magic) >> page_size.shift);
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
  const u32 index = page_index(p.page_size, key);
  return {{p.kv_indices[rows[group].table_begin + index], key - static_cast<i64>(index) * p.page_size.divisor}, position};
}

__device__ __forceinline__ i64 index_at(const u8* indices, i64 byte_offset, bool is_64) {
  return is_64 ? *reinterpret_cast<const i64*>(indices + byte_offset) : *reinterpret_cast<const i32*>(indices + byte_offset);
}

constexpr abi::TokenPlace kNowhere = {0, -1};

/// Entry i of array `which` of the table.
__device__ __forceinline__ i64 entry(const abi::AppendTable& t, const u8* indices, int which, i64 i) {
  const bool is_64 = (t.wide >> which & 1) != 0;
  return index_at(indices, i * (is_64 ? 8 : 4), is_64);
}

/// Place `token` of a store without pages, or of page `page`: nowhere outside of it.
__device__ __forceinline__ abi::TokenPlace in_store(const abi::AppendTable& t, bool paged, i64 page, i64 token) {
  const i64 counted = paged ? page : token;
  return counted >= 0 && counted < t.num_pages ? abi::TokenPlace{page, token} : kNowhere;
}

/// Where a table puts `row`: nowhere for what lies in no list.
template <typename P>
__device__ __forceinline__ abi::TokenPlace listed_place(const P& p, i64 row) {
  const abi::AppendTable& t = p.table;
  const i64 page_size = p.page_size.divisor;
  const bool paged = page_size != 0;
  const bool by_slots = t.slots != nullptr;
  const i64 key = by_slots ? entry(t, t.slots, 0, row) : entry(t, t.positions, 2, row);
  if (key < 0 || (paged && key > 0x7fffffff)) return kNowhere;
  i64 page = paged ? page_index(p.page_size, key) : 0;
  const i64 token = key - page * page_size;
  if (by_slots) return in_store(t, paged, page, token);
  const i64 request = entry(t, t.batch_indices, 1, row);
  if (request < 0 || request >= t.num_requests) return kNowhere;
  const i64 begin = entry(t, t.kv_indptr, 3, request);
  const i64 extent = entry(t, t.kv_indptr, 3, request + 1) - begin;
  if (!paged) return key < extent ? in_store(t, false, 0, begin + key) : kNowhere;
  page += begin;
  if (page - begin >= extent || begin < 0 || page >= t.num_entries) return kNowhere;
  return in_store(t, true, p.kv_indices[page], token);
}

template <typename P>
__device__ __forceinline__ PlannedKey key_of(const P& p, i64 row) {
  if (p.places != nullptr) return {p.places[row], 0};
  return planned_key(p, row);
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
