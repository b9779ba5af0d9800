// Parameters of the cache operators' and the merge's kernels, by value. Host and NVRTC compile it. All strides are bytes.
#pragma once

#include <cstdint>

#include "abi/attention_params.h"
#include "abi/attention_plan.h"

namespace girih::abi {

/// Where a new token goes: place `token` of page `page` (ragged stores: page 0, token of the store).
struct TokenPlace {
  std::int64_t page;
  std::int64_t token;
};

/// Where every new row goes, as arrays on the device say it: a place of the store, or a position in a request's list of pages.
struct AppendTable {
  const unsigned char* slots;          // [rows] page * page_size + place, or null: the next three and kv_indices
  const unsigned char* batch_indices;  // [rows] request; below 0: nowhere
  const unsigned char* positions;      // [rows] index in the request's list
  const unsigned char* kv_indptr;      // [num_requests + 1]
  std::int64_t num_requests;
  std::int64_t num_pages;    // of the store; ragged: its tokens
  std::int64_t num_entries;  // of kv_indices
  std::int32_t wide;         // bit i: the i-th of the arrays above is int64, not int32
};

/// What of a page is copied: chunks of adjacent bytes in up to three loops.
struct CopyShape {
  unsigned char* data;
  std::int64_t page_stride;
  std::int64_t chunk;
  std::int64_t extent[3];
  std::int64_t stride[3];
};
struct PagePair {
  std::int32_t source;
  std::int32_t destination;
};
/// What a block copies at once.
inline constexpr std::int64_t kCopySliceBytes = 32768;
struct CopyParams {
  CopyShape shapes[6];  // data and scales of three planes
  const PagePair* pairs;
  std::int64_t num_pairs;
  std::int64_t slices;  // of the longest page
  std::int32_t num_shapes;
};

/// States to merge: value [row, state, head, dim], LSE [row, state, head].
struct StatesArg {
  const unsigned char* v;
  const unsigned char* s;
  std::int64_t v_row_stride, v_state_stride, v_head_stride, v_dim_stride;
  std::int64_t s_row_stride, s_state_stride, s_head_stride;
};
struct MergeParams {
  StatesArg states[2];
  unsigned char* v_out;
  unsigned char* s_out;
  std::int64_t v_row_stride, v_head_stride, v_dim_stride;
  std::int64_t s_row_stride, s_head_stride;
  const std::int64_t* indptr;  // [rows + 1] or null. Given: row i merges states [indptr[i], indptr[i + 1]) of row 0
  std::int64_t rows;
  std::int64_t num_states;  // of states[0], without indptr
  std::int32_t heads;
  std::int32_t dim;
  std::int32_t pair;  // 1: one state of states[0] and one of states[1] (merge_state)
  std::int32_t base2;
};

}  // namespace girih::abi
