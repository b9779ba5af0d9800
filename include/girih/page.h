// The paged KV cache beside attention: append new tokens (quantising as they are written), copy pages, and positions of appended tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "girih/attention.h"

namespace girih {

/// Where appended tokens go: request r's new tokens are rows [append_indptr[r], append_indptr[r+1]) of the K and V given and take the
/// last places of its kv_len (the length *after* the append, as in FlashInfer).
struct AppendBatch {
  Indices append_indptr{};  ///< [num_requests + 1]
  Indices kv_len{};         ///< [num_requests], after the append
  std::span<const std::int32_t> kv_indices{};
  Indices kv_indptr{};            ///< CSR [num_requests + 1], or
  std::int64_t table_stride = 0;  ///< a strided table
};

/// Writes k [n, num_kv_heads, dim_k], k_rope [n, num_kv_heads, dim_rope] (rank 0 = none) and v [n, num_kv_heads, dim_v] (rank 0 = none,
/// MLA) of type f32, f16 or bf16, any strides, into the pages of `store`, whose planes and scales must be writable memory. n may exceed
/// append_indptr's last entry (padding rows are not read). A ragged store takes kv_indptr (or table_stride) as token offsets. Two tokens
/// may not go to the same place. Throws before anything is written.
///
/// What is stored is nearest(x / scale), ties to even, saturated; scale includes the plane's global_scale, as for readers:
///   f32 f16 bf16              x itself (same type: the same bits); overflow becomes infinity
///   tensor, head              scales are inputs, finite and > 0
///   token_head                stored scale = M / 448 (e4m3), M / 57344 (e5m2), M / 127 (i8), divided by global_scale
///   token_group               the same of each 128 dims
///   nvfp4 (block of 16)       stored scale = e4m3(M / 6 / global_scale)
///   mxfp4 (block of 32)       stored scale = 2^(floor(log2(M / global_scale)) - 2) (OCP MX 1.0)
/// M is the largest finite |x| of the row or block. Where M is 0 the codes are 0 and the scale is 1 (token_head, token_group, mxfp4) or 0
/// (nvfp4).
/// Infinities become the largest code of quantised types; NaN stays NaN in e4m3 and e5m2 and becomes 0 in i8 and 4-bit types. A 4-bit row
/// of odd dim leaves its last high nibble 0.
/// On a CUDA device K, V and the store are device memory with elements at multiples of their size, the batch's arrays are host memory; work
/// is queued on `stream`, and the scales that are inputs cannot be checked. Cannot be captured: use the next function.
void append(const Context& context, const KvStore& store, const AppendBatch& batch, const TensorView& k, const TensorView& k_rope,
            const TensorView& v, void* stream = nullptr);

/// The same for the batch that `plan` holds: row i of K and V belongs to query token i, and the query tokens of a group are the last keys
/// of its list in `segment` (not written where a list is shorter). CUDA only; reads nothing but device memory, so a captured graph appends
/// whatever is uploaded (once a call outside of a capture has loaded the kernel). kv_indices: the segment's page ids on the device. Two
/// tokens may not go to the same place, which is not checked.
void append(const Context& context, const DevicePlan& plan, const KvStore& store, std::span<const std::int32_t> kv_indices,
            const TensorView& k, const TensorView& k_rope, const TensorView& v, std::int64_t segment = 0, void* stream = nullptr);

/// Where every new row goes, in arrays where the store is (int32 or int64, dense, of one entry a row): its place in the store, or its
/// request and its position in that request's list of pages. A row of slot or request below 0 goes nowhere.
struct AppendTable {
  TensorView slots{};          ///< [n] page id * page_size + place (CUDA: < 2^31; ragged: token of the store), or the four below
  TensorView batch_indices{};  ///< [n] request
  TensorView positions{};      ///< [n] index of the token in its request's list
  TensorView kv_indptr{};      ///< [num_requests + 1] into kv_indices (ragged: token offsets)
  TensorView kv_indices{};     ///< int32 page ids; none for a ragged store
};

/// The same for rows [0, n) of K and V by a table. On a CUDA device no index is read on the host: nothing waits, and a captured graph
/// appends whatever the arrays hold. What lies outside of a list or of the store is not written there, and refused on the CPU, as are two
/// tokens that go to one place, which on the device must not be.
void append(const Context& context, const KvStore& store, const AppendTable& table, const TensorView& k, const TensorView& k_rope,
            const TensorView& v, void* stream = nullptr);

struct PageCopy {
  std::int32_t source = 0;
  std::int32_t destination = 0;
};
/// Copies whole pages within a store (all planes and scales), in order; a destination may not be a source or destination of another copy.
/// On a CUDA device queued on `stream`; `copies` is host memory.
void copy_pages(const Context& context, const KvStore& store, int num_kv_heads, int dim_k, int dim_rope, int dim_v,
                std::span<const PageCopy> copies, void* stream = nullptr);

/// For every appended token its request and its position: arrays of append_indptr.back() entries.
struct AppendPositions {
  std::vector<std::int32_t> batch_indices;
  std::vector<std::int64_t> positions;
};
AppendPositions append_positions(Indices append_indptr, Indices kv_len);

}  // namespace girih
