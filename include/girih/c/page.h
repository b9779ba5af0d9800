// C ABI: the paged KV cache beside attention (girih/page.h): append new tokens, copy pages, positions of appended tokens.
#pragma once

#include "girih/c/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Where appended tokens go: request r's new tokens are rows [append_indptr[r], append_indptr[r+1]) of the K and V given and take the last
/// places of its kv_len.
typedef struct girih_append_batch {
  uint64_t struct_size;
  girih_indices append_indptr;  ///< [num_requests + 1]
  girih_indices kv_len;         ///< [num_requests], after the append
  const int32_t* kv_indices;    ///< [num_kv_indices] page ids, host memory
  int64_t num_kv_indices;
  girih_indices kv_indptr;  ///< CSR [num_requests + 1], or
  int64_t table_stride;     ///< a strided table
} girih_append_batch;
GIRIH_API girih_status girih_append_batch_init(girih_append_batch* out, uint64_t struct_size);

/// Writes k [n, num_kv_heads, dim_k], k_rope [n, num_kv_heads, dim_rope] and v [n, num_kv_heads, dim_v] (either of these may be NULL) of
/// type f32, f16 or bf16 into the pages of `store`, quantising as girih/page.h says. Checks all before anything is written.
GIRIH_API girih_status girih_append(const girih_context* context, const girih_kv_store* store, const girih_append_batch* batch,
                                    const girih_tensor* k, const girih_tensor* k_rope, const girih_tensor* v, void* stream);
/// The same for the batch that `device_plan` holds: row i of K and V belongs to query token i, and the query tokens of a group are the last
/// keys of its list in `segment`. CUDA only; kv_indices [num_kv_indices]: the segment's page ids on the device. May be captured.
GIRIH_API girih_status girih_append_planned(const girih_context* context, const girih_device_plan* device_plan, const girih_kv_store* store,
                                            const int32_t* kv_indices, int64_t num_kv_indices, const girih_tensor* k,
                                            const girih_tensor* k_rope, const girih_tensor* v, int64_t segment, void* stream);
/// The same for rows whose places are arrays where the store is: `slots`, or the four others (NULL: not given); see AppendTable of page.h.
GIRIH_API girih_status girih_append_by_table(const girih_context* context, const girih_kv_store* store, const girih_tensor* slots,
                                             const girih_tensor* batch_indices, const girih_tensor* positions,
                                             const girih_tensor* kv_indptr, const girih_tensor* kv_indices, const girih_tensor* k,
                                             const girih_tensor* k_rope, const girih_tensor* v, void* stream);

typedef struct girih_page_copy {
  int32_t source;
  int32_t destination;
} girih_page_copy;
/// Copies whole pages within a store (all planes and scales); a destination may not be a source or destination of another copy.
GIRIH_API girih_status girih_copy_pages(const girih_context* context, const girih_kv_store* store, int32_t num_kv_heads, int32_t dim_k,
                                        int32_t dim_rope, int32_t dim_v, const girih_page_copy* copies, int64_t num_copies, void* stream);

/// For every appended token its request and its position, into arrays with room for `capacity` >= the last entry of append_indptr.
GIRIH_API girih_status girih_append_positions(const girih_indices* append_indptr, const girih_indices* kv_len, int32_t* batch_indices,
                                              int64_t* positions, int64_t capacity);

#ifdef __cplusplus
}
#endif
