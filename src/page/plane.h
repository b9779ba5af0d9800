// A plane of the KV store as the cache operators write it: the checks that append and copy_pages share, and addresses.
// All strides are bytes and all products 64-bit; a page id is widened before it is multiplied.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/numeric.h"
#include "girih/attention.h"

namespace girih::page {

inline constexpr std::int64_t kMaxDim = 1024;  // as attention's head_dim

/// Throws unless `plane` (called `what` in messages) describes memory for [pages, page_size, heads, dim] with the scales its type needs.
/// Strides of extents above 1 must not be zero; values of scales are not read.
void check_plane(std::string_view op, std::string_view what, const KvStore& store, const KvPlane& plane, std::int64_t heads,
                 std::int64_t dim);

/// Throws unless elements of the plane and its scales lie where a GPU takes them (cuda/alignment.h). Page strides count where `has_pages`.
/// Messages call it `what`, or "segments[segment].store.`what`" where that is not negative.
void check_plane_aligned(std::string_view op, std::string_view what, const KvPlane& plane, bool has_pages, std::int64_t segment = -1);

/// Throws unless page_size >= 1 (or kEndlessPage) and num_pages >= 0.
void check_pages(std::string_view op, const KvStore& store);

/// Bytes between the elements of a row; 4-bit types have none.
inline std::int64_t dim_byte_stride(const KvPlane& plane) {
  return plane.dim_byte_stride != 0 ? plane.dim_byte_stride : bits(plane.dtype) / 8;
}

inline bool dense_row(const KvPlane& plane) { return bits(plane.dtype) == 4 || dim_byte_stride(plane) == bits(plane.dtype) / 8; }

/// Block scales of a row of `dim` elements.
inline std::int64_t num_blocks(DType t, std::int64_t dim) {
  const int block = scale_block(t);
  return (dim + block - 1) / block;
}

/// Whether every token and head has scales of its own, which append computes.
inline bool is_computed(ScaleGranularity g) {
  return g == ScaleGranularity::token_head || g == ScaleGranularity::block || g == ScaleGranularity::token_group;
}
/// Bytes of the scales of one token and head (other granularities: of a scale).
inline std::int64_t token_scale_bytes(const KvPlane& plane, std::int64_t dim) {
  constexpr std::int64_t kScale = sizeof(float);
  switch (plane.scales.granularity) {
    case ScaleGranularity::block: return num_blocks(plane.dtype, dim);
    case ScaleGranularity::token_group: return dim / kScaleGroup * kScale;
    default: return kScale;
  }
}

/// Address of [page, token, head 0] in a plane or its scales (both have data and byte strides). Appending and copying write: the store's
/// pointers are const because attention only reads.
template <typename Strides>
char* token_address(const Strides& strides, std::int64_t page, std::int64_t token) {
  return static_cast<char*>(const_cast<void*>(strides.data)) + page * strides.page_byte_stride + token * strides.token_byte_stride;
}

}  // namespace girih::page
