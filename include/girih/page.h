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
  Indices append_indptr{};                 ///< [num_requests + 1]
  Indices kv_len{};                        ///< [num_requests], after the append
  std::span<const std::int32_t> kv_indices{};
  Indices kv_indptr{};                     ///< CSR [num_requests + 1], or
  std::int64_t table_stride = 0;           ///< a strided table
};

/// Writes k [n, num_kv_heads, dim_k], k_rope [n, num_kv_heads, dim_rope] (rank 0 = none) and v [n, num_kv_heads, dim_v] (rank 0 = none,
/// MLA) of type f32, f16 or bf16 into the pages of `store`, whose planes and scales must be writable memory. Quantised planes:
/// tensor and head scales are inputs (value / scale is rounded to nearest even and saturated); token_head and block scales are computed
/// from the data (max |x| / largest code; mxfp4: the OCP power-of-two rule) and written beside it. NaN stays NaN where the type has it,
/// else becomes 0. Throws before anything is written.
void append(const Context& context, const KvStore& store, const AppendBatch& batch, const TensorView& k, const TensorView& k_rope,
            const TensorView& v);

struct PageCopy {
  std::int32_t source = 0;
  std::int32_t destination = 0;
};
/// Copies whole pages within a store (all planes and scales), in order; a destination may not be a source or destination of another copy.
void copy_pages(const Context& context, const KvStore& store, int num_kv_heads, int dim_k, int dim_rope, int dim_v,
                std::span<const PageCopy> copies);

/// For every appended token its request and its position: arrays of append_indptr.back() entries.
struct AppendPositions {
  std::vector<std::int32_t> batch_indices;
  std::vector<std::int64_t> positions;
};
AppendPositions append_positions(Indices append_indptr, Indices kv_len);

}  // namespace girih
