// See overlap.h.
#include "overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

namespace girih::python {
namespace {

/// Widens a row by an axis of `extent` places.
void extend(Region& region, std::int64_t extent, std::int64_t byte_stride) {
  const std::int64_t reach = (extent - 1) * byte_stride;
  (reach < 0 ? region.begin : region.end) += reach;
}

/// All rows as one.
Region whole(Region region) {
  extend(region, region.rows, region.row_stride);
  region.rows = 1;
  return region;
}

/// Whether rows of the one lie between those of the other.
bool between(const Region& a, const Region& b, std::int64_t distance) {
  const std::int64_t stride = std::abs(a.rows > 1 ? a.row_stride : b.row_stride);
  const bool same_stride = (a.rows == 1 || std::abs(a.row_stride) == stride) && (b.rows == 1 || std::abs(b.row_stride) == stride);
  if (!same_stride || stride == 0) return false;
  std::int64_t shift = (distance + b.begin - a.begin) % stride;
  if (shift < 0) shift += stride;
  return shift >= a.end - a.begin && shift + (b.end - b.begin) <= stride;
}

}  // namespace

Region region_of(const TensorView& t) {
  if (t.numel() == 0) return {};
  const std::int64_t size = bytes(t.dtype, 1);
  Region region{.data = static_cast<const std::byte*>(t.data), .rows = 1, .end = size};
  if (t.rank > 0) {
    region.rows = t.shape[0];
    region.row_stride = t.strides[0] * size;
  }
  for (int i = 1; i < t.rank; ++i) extend(region, t.shape[i], t.strides[i] * size);
  return region;
}

Region region_of(const KvStore& store, const KvPlane& plane, const PlaneDims& dims) {
  const bool ragged = store.page_size == kEndlessPage;
  if (!dims.given || store.num_pages == 0 || dims.heads == 0 || dims.dim == 0) return {};
  Region region{.data = static_cast<const std::byte*>(plane.data),
                .rows = store.num_pages,
                .row_stride = ragged ? plane.token_byte_stride : plane.page_byte_stride};
  region.end = plane.dim_byte_stride == 0 ? bytes(plane.dtype, dims.dim) : bytes(plane.dtype, 1);
  if (plane.dim_byte_stride != 0) extend(region, dims.dim, plane.dim_byte_stride);
  extend(region, dims.heads, plane.head_byte_stride);
  if (!ragged) extend(region, store.page_size, plane.token_byte_stride);
  return region;
}

bool apart(const Region& a, const Region& b) {
  if (a.rows == 0 || b.rows == 0) return true;
  const Region whole_a = whole(a);
  const Region whole_b = whole(b);
  const std::int64_t distance = reinterpret_cast<std::intptr_t>(b.data) - reinterpret_cast<std::intptr_t>(a.data);
  if (distance + whole_b.end <= whole_a.begin || distance + whole_b.begin >= whole_a.end) return true;
  return between(a, b, distance) || between(whole_a, b, distance) || between(a, whole_b, distance);
}

void check_unfolded(const TensorView& t, std::string_view name) {
  if (t.numel() == 0) return;
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // stride, extent
  for (int i = 0; i < t.rank; ++i)
    if (t.shape[i] > 1) axes.emplace_back(std::abs(t.strides[i]), t.shape[i]);
  std::sort(axes.begin(), axes.end());
  std::int64_t taken = 1;
  for (const auto& [stride, extent] : axes) {
    if (stride < taken) bad_value(name, "has elements that share memory; an output needs a place for each: give a contiguous array");
    taken += (extent - 1) * stride;
  }
}

}  // namespace girih::python
