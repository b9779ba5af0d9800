// C ABI: attention over any KV-cache layout: schedule once, plan each step, run each layer (girih/attention.h; docs/layouts.md draws how
// each concept of the field becomes segments).
//
// Elements of the arrays `segments` and `specs` have struct_size each, all the same: it is also the distance from one to the next.
#pragma once

#include "girih/c/base.h"
#include "girih/c/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------------------------------------------------------- KV store

/// Unquantised types take NONE; e4m3, e5m2 and i8 one of TENSOR, HEAD, TOKEN_HEAD, TOKEN_GROUP; nvfp4 and mxfp4 BLOCK.
typedef int32_t girih_scale_granularity;
enum {
  GIRIH_SCALE_NONE = 0,
  GIRIH_SCALE_TENSOR = 1,
  GIRIH_SCALE_HEAD = 2,
  GIRIH_SCALE_TOKEN_HEAD = 3,
  GIRIH_SCALE_BLOCK = 4,
  GIRIH_SCALE_TOKEN_GROUP = 5,  ///< 128 dims of a token and head share one; planes have a multiple of them
};

/// Scales of one plane: value = code * scale * global_scale. Strides in bytes.
typedef struct girih_kv_scales {
  /// f32: [1] | [num_kv_heads] | [page, token, head]; block: e4m3 (nvfp4) or e8m0 (mxfp4) [page, token, head, ceil(dim / block)];
  /// token_group: f32 [page, token, head, dim / 128]. The last dimension is dense.
  const void* data;
  int64_t page_byte_stride;   ///< token_head, token_group and block
  int64_t token_byte_stride;  ///< token_head, token_group and block
  int64_t head_byte_stride;   ///< head, token_head, token_group and block
  girih_scale_granularity granularity;
  float global_scale;  ///< nvfp4's tensor scale; multiplies every scale of any granularity. 0 (of a zeroed struct) = 1
} girih_kv_scales;

/// One plane (K, the RoPE part of K, or V): where element [page, token, head, dim] lives. Strides in bytes.
typedef struct girih_kv_plane {
  const void* data;
  int64_t page_byte_stride;
  int64_t token_byte_stride;
  int64_t head_byte_stride;
  int64_t dim_byte_stride;  ///< 0 = dense elements; otherwise bytes between elements; not for 4-bit
  girih_kv_scales scales;
  girih_dtype dtype;
  int32_t has_partial_page;  ///< 1: the last page's memory may end before its page_size tokens
} girih_kv_plane;

/// `page_size` of a ragged store: each request has one endless page; a page id is then the index of its first token.
enum { GIRIH_ENDLESS_PAGE = 0 };

/// Keys and values of one layer.
typedef struct girih_kv_store {
  int64_t page_size;      ///< tokens a page, any >= 1, or GIRIH_ENDLESS_PAGE
  int64_t num_pages;      ///< page ids are in [0, num_pages); ragged: number of tokens
  girih_kv_plane k;       ///< dims [0, head_dim_qk - head_dim_rope)
  girih_kv_plane k_rope;  ///< the other dims, where the spec has head_dim_rope > 0
  girih_kv_plane v;       ///< unused where the spec has v_is_k
} girih_kv_store;

typedef int32_t girih_kv_layout;
enum {
  GIRIH_NHD = 0,  ///< [page, token, head, dim]
  GIRIH_HND = 1,  ///< [page, head, token, dim]
};
/// Paged K and V as 4-D tensors [num_pages, page_size, heads, dim] (NHD) or [num_pages, heads, page_size, dim] (HND), any strides.
GIRIH_API girih_status girih_paged_kv_store(const girih_tensor* k, const girih_tensor* v, girih_kv_layout layout, girih_kv_store* out);
/// Paged K and V in one 5-D tensor [num_pages, 2, page_size, heads, dim] (NHD) or [num_pages, 2, heads, page_size, dim] (HND).
GIRIH_API girih_status girih_paged_kv_store_from_one(const girih_tensor* kv, girih_kv_layout layout, girih_kv_store* out);
/// Ragged K and V as 3-D tensors [num_tokens, heads, dim] (NHD) or [heads, num_tokens, dim] (HND), any strides.
GIRIH_API girih_status girih_ragged_kv_store(const girih_tensor* k, const girih_tensor* v, girih_kv_layout layout, girih_kv_store* out);
/// MLA's fp8 tokens as DeepSeek-V3.2 caches them: bytes [num_pages, page_size, B] or [num_pages, page_size, 1, B] of an 8-bit type, B =
/// latent_dim + latent_dim / 128 * 4 + rope_dim * 2 (512 and 64: 656): e4m3 codes of the latent, an f32 scale for each 128 of them, then
/// the RoPE part as bf16. For specs of k_dtype e4m3, k_scale TOKEN_GROUP, k_rope_dtype_plus_one 1 + GIRIH_BF16 and v_is_k.
GIRIH_API girih_status girih_mla_token_kv_store(const girih_tensor* tokens, int32_t latent_dim, int32_t rope_dim, girih_kv_store* out);
/// The same memory as pages of one token, which lists of tokens need: page id = page * page_size + slot. Pages must adjoin.
GIRIH_API girih_status girih_single_token_pages(const girih_kv_store* store, girih_kv_store* out);
/// K and V [num_tokens, heads, dim] seen as pages of `page_size` tokens: the store of girih_block_sparse.
GIRIH_API girih_status girih_block_sparse_kv_store(const girih_tensor* k, const girih_tensor* v, int64_t page_size, girih_kv_layout layout,
                                                   girih_kv_store* out);

// ---------------------------------------------------------------------------------------------------------------- schedule

typedef int32_t girih_lse_kind;
enum { GIRIH_LSE_NONE = 0, GIRIH_LSE_NATURAL = 1, GIRIH_LSE_BASE2 = 2 };

/// What is asked: everything that selects and shapes a kernel.
typedef struct girih_attention_spec {
  uint64_t struct_size;
  int32_t num_qo_heads;  ///< any multiple of num_kv_heads
  int32_t num_kv_heads;
  int32_t head_dim_qk;    ///< 1..1024
  int32_t head_dim_vo;    ///< 0 = head_dim_qk; 1..1024
  int32_t head_dim_rope;  ///< > 0: Q and K come in two tensors, the second holds the last head_dim_rope dims (MLA)
  girih_dtype q_dtype;    ///< f32, f16, bf16; CUDA also e4m3
  girih_dtype k_dtype;    ///< f32, f16, bf16, e4m3, e5m2, i8, nvfp4, mxfp4
  girih_dtype v_dtype;
  girih_dtype o_dtype;  ///< f32, f16, bf16; e4m3, e5m2 with a scale at run time
  girih_scale_granularity k_scale;
  girih_scale_granularity v_scale;
  int32_t v_is_k;   ///< V is a view of K's first head_dim_vo dims (MLA): the store is read once
  double sm_scale;  ///< 0 = 1 / sqrt(head_dim_qk)
  girih_lse_kind lse;
  int32_t partial_state;    ///< the result is to be merged elsewhere: leaves out the sink and the output transform
  int32_t batch_invariant;  ///< a row's bits depend on its own request only
  /// Of K's second tensor (head_dim_rope > 0): 0 = k_dtype, with scales of its own if quantised; else 1 + GIRIH_F32, GIRIH_F16 or
  /// GIRIH_BF16, beside any K.
  int32_t k_rope_dtype_plus_one;
  const girih_variant* variant;  ///< NULL = none: softmax over all keys
} girih_attention_spec;
GIRIH_API girih_status girih_attention_spec_init(girih_attention_spec* out, uint64_t struct_size);

/// The largest batch that a schedule must serve.
typedef struct girih_attention_limits {
  uint64_t struct_size;
  int64_t max_tokens;  ///< rows of the query tensor
  int64_t max_requests;
  int64_t max_segments;
  int64_t max_groups;       ///< query groups over all segments; 0 = max_requests * max_segments
  int64_t max_kv_len;       ///< keys of one group in one segment
  int64_t max_param_bytes;  ///< plan-time parameters
  int64_t max_qo_len;       ///< query rows of one request, and of one group; 0 = max_tokens
  int64_t max_items;        ///< work items of a plan, which size a GPU's copy of it; 0 = by itself
} girih_attention_limits;
GIRIH_API girih_status girih_attention_limits_init(girih_attention_limits* out, uint64_t struct_size);

/// Tuning that a caller may fix; zeros take the table's choice.
typedef struct girih_schedule_options {
  uint64_t struct_size;
  int32_t num_units;   ///< CPU: what a plan is balanced over; 0 = the context's workers
  int32_t num_sms;     ///< CUDA: multiprocessors to use; 0 = all
  const char* family;  ///< CUDA: "floor", "mma", "wgmma"; NULL or "" = the fastest that takes the spec
} girih_schedule_options;
GIRIH_API girih_status girih_schedule_options_init(girih_schedule_options* out, uint64_t struct_size);

/// Immutable; may be shared between threads.
typedef struct girih_schedule girih_schedule;
/// `options` may be NULL. Errors: invalid_argument, unsupported; on CUDA also those of compiling kernels.
GIRIH_API girih_status girih_schedule_create(const girih_context* context, const girih_attention_spec* spec,
                                             const girih_attention_limits* limits, const girih_schedule_options* options,
                                             girih_schedule** out);
GIRIH_API void girih_schedule_destroy(girih_schedule* schedule);

typedef struct girih_schedule_info {
  uint64_t struct_size;
  const char* key;          ///< names the kernel in logs, caches and benchmark rows; lives as long as the schedule
  int64_t workspace_bytes;  ///< for the worst batch within the limits
  int64_t num_regions;      ///< of the workspace
  int32_t num_units;        ///< CPU workers or CTAs that a plan is balanced over
  int32_t reserved;
} girih_schedule_info;
GIRIH_API girih_status girih_schedule_info_init(girih_schedule_info* out, uint64_t struct_size);
GIRIH_API girih_status girih_schedule_get_info(const girih_schedule* schedule, girih_schedule_info* info);
/// The spec and limits with defaults filled in. spec->variant lives as long as the schedule and is not to be destroyed.
GIRIH_API girih_status girih_schedule_get_spec(const girih_schedule* schedule, girih_attention_spec* spec);
GIRIH_API girih_status girih_schedule_get_limits(const girih_schedule* schedule, girih_attention_limits* limits);

/// A buffer within the workspace.
typedef struct girih_workspace_region {
  const char* name;  ///< lives as long as the schedule
  int64_t offset;    ///< bytes
  int64_t size;      ///< bytes
} girih_workspace_region;
GIRIH_API girih_status girih_schedule_get_region(const girih_schedule* schedule, int64_t index, girih_workspace_region* region);

typedef struct girih_warmup_progress {
  uint64_t struct_size;
  int64_t done;  ///< of `total`; the first call has 0
  int64_t total;
  const char* name;    ///< the kernel that is ready; "" in the first call
  const char* target;  ///< what it was compiled for, e.g. sm_90a
  double seconds;      ///< it took
  int32_t origin;      ///< where it was found: GIRIH_KERNEL_*
  int32_t reserved;
} girih_warmup_progress;
enum { GIRIH_KERNEL_COMPILED = 0, GIRIH_KERNEL_CACHE = 1, GIRIH_KERNEL_PACK = 2 };
/// Called from one thread at a time, not always the caller's. Not 0 ends the warm-up with GIRIH_CANCELLED.
typedef int32_t (*girih_warmup_fn)(void* user, const girih_warmup_progress* progress);
/// CUDA: compiles the kernels that schedules of specs [num_specs] need, or finds them. On the CPU there is nothing to do. `progress` may be
/// NULL.
GIRIH_API girih_status girih_warmup(const girih_context* context, const girih_attention_spec* specs, int64_t num_specs,
                                    girih_warmup_fn progress, void* user);

// ---------------------------------------------------------------------------------------------------------------- plan

/// Groups of query rows, each with its run of pages.
typedef struct girih_kv_segment {
  uint64_t struct_size;
  girih_indices qo_indptr;  ///< [num_groups + 1]; not given: the groups are the requests of the batch
  int64_t page_size;        ///< as the store's
  /// CSR: [num_table_heads, num_groups + 1] offsets into kv_indices. Ragged: token offsets.
  girih_indices kv_indptr;
  int64_t table_stride;       ///< strided table in place of kv_indptr (vLLM's block_tables): row r starts at entry r * table_stride
  girih_indices kv_len;       ///< [num_table_heads, num_groups] keys. Ragged: optional, else the extents of kv_indptr
  girih_indices kv_pos;       ///< [num_groups] logical position of the group's first key; not given: after the preceding segments' keys
  girih_indices page_pos;     ///< one per table entry: logical position of the page's first key; excludes kv_pos. Also given to girih_run
  girih_indices kv_rope_pos;  ///< [num_groups] RoPE position of the first key; not given: its logical position
  int32_t num_table_heads;    ///< 1: all KV heads share pages; num_kv_heads: each head has its own table rows, ordered [head, group]
  int32_t masked;             ///< 0: every key of the segment is visible to every row of its group
} girih_kv_segment;
GIRIH_API girih_status girih_kv_segment_init(girih_kv_segment* out, uint64_t struct_size);

/// One step's work. All arrays are host memory.
typedef struct girih_batch {
  uint64_t struct_size;
  girih_indices qo_indptr;  ///< [num_requests + 1]; request r owns query rows [qo_indptr[r], qo_indptr[r+1])
  const girih_kv_segment* segments;
  int64_t num_segments;
  girih_indices kv_len;             ///< [num_requests] logical KV length; not given: keys over the segments that cover the request
  girih_indices q_pos;              ///< [num_requests] position of the first query row; not given: kv_len - q_len (bottom-right)
  girih_indices q_rope_pos;         ///< [num_requests] RoPE position of the first query row; not given: q_pos
  const girih_param_value* params;  ///< values of plan-time parameters
  int64_t num_params;
} girih_batch;
GIRIH_API girih_status girih_batch_init(girih_batch* out, uint64_t struct_size);

typedef struct girih_plan_info {
  uint64_t struct_size;
  int64_t num_items;
  int64_t num_merges;       ///< merged row ranges
  int64_t workspace_bytes;  ///< used of the schedule's
  int64_t blob_bytes;
  int64_t max_unit_cost;  ///< planner's cost units
  int64_t total_cost;
  int64_t max_piece_cost;  ///< largest piece that cannot be cut
  int64_t visible_pairs;   ///< (row, key) pairs in the kept tiles, per query head
} girih_plan_info;
GIRIH_API girih_status girih_plan_info_init(girih_plan_info* out, uint64_t struct_size);

/// The work list of one batch. Reuses its memory from step to step. One thread at a time.
typedef struct girih_plan girih_plan;
/// The plan keeps what it needs of the schedule: the handle may be destroyed before the plan.
GIRIH_API girih_status girih_plan_create(const girih_schedule* schedule, girih_plan** out);
GIRIH_API void girih_plan_destroy(girih_plan* plan);
/// Plans `batch`; a failure leaves the plan as it was. `info` may be NULL.
GIRIH_API girih_status girih_plan_update(girih_plan* plan, const girih_batch* batch, girih_plan_info* info);
/// Takes over a blob made by another process with an equal schedule; every index in it is checked. `info` may be NULL.
GIRIH_API girih_status girih_plan_load(girih_plan* plan, const void* blob, int64_t bytes, girih_plan_info* info);
GIRIH_API girih_status girih_plan_get_info(const girih_plan* plan, girih_plan_info* info);
/// The plan as bytes, valid until the plan is changed; 0 bytes before the first update.
GIRIH_API girih_status girih_plan_get_blob(const girih_plan* plan, const void** blob, int64_t* bytes);

/// A plan on its CUDA device (class DevicePlan in girih/attention.h has the rules of streams and graphs). Errors: invalid_argument for
/// CPUs.
typedef struct girih_device_plan girih_device_plan;
GIRIH_API girih_status girih_device_plan_create(const girih_context* context, const girih_schedule* schedule, girih_device_plan** out);
GIRIH_API void girih_device_plan_destroy(girih_device_plan* device_plan);
/// Copies the plan's batch to the device, on `stream` (a CUstream or cudaStream_t; NULL = the default stream).
GIRIH_API girih_status girih_device_plan_upload(girih_device_plan* device_plan, const girih_plan* plan, void* stream);
/// Makes the next replays of a graph with a captured upload read this plan.
GIRIH_API girih_status girih_device_plan_stage(girih_device_plan* device_plan, const girih_plan* plan);
GIRIH_API girih_status girih_device_plan_get_capacity_bytes(const girih_device_plan* device_plan, int64_t* out);

// ---------------------------------------------------------------------------------------------------------------- run

/// Data of one segment at run time.
typedef struct girih_segment_data {
  uint64_t struct_size;
  girih_kv_store store;
  const int32_t* kv_indices;  ///< page ids; NULL with 0 for a ragged store
  int64_t num_kv_indices;
  const int64_t* page_pos;  ///< where the segment was planned with page_pos
  int64_t num_page_pos;
} girih_segment_data;
GIRIH_API girih_status girih_segment_data_init(girih_segment_data* out, uint64_t struct_size);

typedef struct girih_attention_args {
  uint64_t struct_size;
  girih_tensor q;                      ///< [num_tokens, num_qo_heads, head_dim_qk (- head_dim_rope)], last dim dense
  girih_tensor q_rope;                 ///< [num_tokens, num_qo_heads, head_dim_rope] where the spec has it
  const girih_segment_data* segments;  ///< as planned
  int64_t num_segments;
  const girih_param_value* params;  ///< values of run-time parameters
  int64_t num_params;
  girih_tensor o;                        ///< [num_tokens, num_qo_heads, head_dim_vo], last dim dense; every element is written
  girih_tensor lse;                      ///< f32 [num_tokens, num_qo_heads] where the spec asks for it
  void* workspace;                       ///< 64-byte aligned
  int64_t workspace_bytes;               ///< CPU: >= the plan info's; CUDA: >= the schedule info's
  void* stream;                          ///< CUDA: a CUstream or cudaStream_t; NULL = the default stream
  const girih_device_plan* device_plan;  ///< CUDA: holds `plan`
  /// O of e4m3 or e5m2: f32 [1], > 0 and finite, as its inverse; O holds the codes nearest to value / o_scale, saturated. Rank 0: 1.
  girih_tensor o_scale;
} girih_attention_args;
GIRIH_API girih_status girih_attention_args_init(girih_attention_args* out, uint64_t struct_size);

/// Computes O (and LSE). Allocates nothing (up to 8 segments). Checks all before anything is written. On a CUDA device
/// every pointer is device memory, work is queued on args->stream and nothing is waited for.
GIRIH_API girih_status girih_run(const girih_context* context, const girih_schedule* schedule, const girih_plan* plan,
                                 const girih_attention_args* args);
/// One request, ragged K and V [kv_len, num_kv_heads, dim], Q [qo_len, num_qo_heads, dim]; plans and allocates at each call; head counts,
/// dims and types come from the tensors. `lse` may be NULL. On a CUDA device it waits for the result.
GIRIH_API girih_status girih_single_attention(const girih_context* context, const girih_attention_spec* spec, const girih_tensor* q,
                                              const girih_tensor* k, const girih_tensor* v, const girih_tensor* o, const girih_tensor* lse,
                                              const girih_param_value* params, int64_t num_params);
/// Lengths from FlashInfer's page table, (pages - 1) * page_size + last_page_len, into kv_len [capacity >= requests].
GIRIH_API girih_status girih_kv_len_from_last_page(const girih_indices* kv_indptr, const girih_indices* last_page_len, int64_t page_size,
                                                   int64_t* kv_len, int64_t capacity);

// ---------------------------------------------------------------------------------------------------------------- block sparse

/// A block-sparse pattern turned into a segment, with the arrays that the segment points to.
typedef struct girih_block_sparse girih_block_sparse;
/// BSR over [num_rows, num_cols] scores with blocks of block_rows x block_cols: `indptr` [num_block_rows + 1] and `indices` (ascending
/// within a row); for patterns per KV head both are [num_heads, ...] with absolute offsets.
GIRIH_API girih_status girih_block_sparse_create(int64_t num_rows, int64_t num_cols, int64_t block_rows, int64_t block_cols,
                                                 const girih_indices* indptr, const girih_indices* indices, int32_t num_heads,
                                                 girih_block_sparse** out);
/// Blocks of any sizes: `block_mask` [num_heads, row sizes, column sizes] row-major, not 0 = attended, of `mask_bytes` bytes.
GIRIH_API girih_status girih_block_sparse_create_variable(const girih_indices* row_sizes, const girih_indices* col_sizes,
                                                          const uint8_t* block_mask, int64_t mask_bytes, int32_t num_heads,
                                                          girih_block_sparse** out);
GIRIH_API void girih_block_sparse_destroy(girih_block_sparse* block_sparse);
/// The segment to plan with. Its arrays live as long as the handle.
GIRIH_API girih_status girih_block_sparse_get_segment(const girih_block_sparse* block_sparse, girih_kv_segment* segment);
/// What a run needs beside the store: sets kv_indices and page_pos of `data` and leaves the rest.
GIRIH_API girih_status girih_block_sparse_get_data(const girih_block_sparse* block_sparse, girih_segment_data* data);

// ---------------------------------------------------------------------------------------------------------------- merge

/// Merges two attention states. v: [n, heads, dim] f32, f16 or bf16; s: f32 [n, heads], natural log or base 2 (base2 = 1). Outputs may
/// alias inputs. Empty states are (0, -inf).
GIRIH_API girih_status girih_merge_state(const girih_context* context, const girih_tensor* v_a, const girih_tensor* s_a,
                                         const girih_tensor* v_b, const girih_tensor* s_b, const girih_tensor* v_out,
                                         const girih_tensor* s_out, int32_t base2, void* stream);
/// v: [n, num_states, heads, dim], s: [n, num_states, heads] -> [n, heads, dim], [n, heads].
GIRIH_API girih_status girih_merge_states(const girih_context* context, const girih_tensor* v, const girih_tensor* s,
                                          const girih_tensor* v_out, const girih_tensor* s_out, int32_t base2, void* stream);
/// Row i merges states [indptr[i], indptr[i+1]) of v [total, heads, dim], s [total, heads].
GIRIH_API girih_status girih_merge_states_varlen(const girih_context* context, const girih_tensor* v, const girih_tensor* s,
                                                 const girih_indices* indptr, const girih_tensor* v_out, const girih_tensor* s_out,
                                                 int32_t base2, void* stream);

// ---------------------------------------------------------------------------------------------------------------- capabilities

/// What a kernel family's attention does: rows of one table, which validation reads too.
typedef struct girih_capabilities girih_capabilities;
typedef struct girih_attention_capability {
  uint64_t struct_size;
  const char* family;  ///< "cpu", "floor", "mma", "wgmma". All pointers live as long as the table
  const girih_dtype* q_dtypes;
  const girih_dtype* o_dtypes;
  const girih_dtype* kv_dtypes;
  const char* const* features;  ///< "paged", "cascade", "rope", ...
  int64_t num_q_dtypes;
  int64_t num_o_dtypes;
  int64_t num_kv_dtypes;
  int64_t num_features;
  girih_device_kind device;
  int32_t max_head_dim;
} girih_attention_capability;
GIRIH_API girih_status girih_attention_capability_init(girih_attention_capability* out, uint64_t struct_size);
GIRIH_API girih_status girih_capabilities_create(girih_capabilities** out);
GIRIH_API void girih_capabilities_destroy(girih_capabilities* capabilities);
GIRIH_API girih_status girih_capabilities_get_size(const girih_capabilities* capabilities, int64_t* out);
GIRIH_API girih_status girih_capabilities_get(const girih_capabilities* capabilities, int64_t index, girih_attention_capability* out);

#ifdef __cplusplus
}
#endif
