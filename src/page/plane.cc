// What a plane of the KV store must satisfy before anything is written to it. Every message names the plane, the value and the rule.
#include "page/plane.h"

#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "cuda/alignment.h"

namespace girih::page {
namespace {

std::string_view name_of(ScaleGranularity g) {
  switch (g) {
    case ScaleGranularity::none: return "none";
    case ScaleGranularity::tensor: return "tensor";
    case ScaleGranularity::head: return "head";
    case ScaleGranularity::token_head: return "token_head";
    case ScaleGranularity::block: return "block";
    case ScaleGranularity::token_group: return "token_group";
  }
  return "invalid";
}

/// Axes with more than one place must not fold them into one: writes would collide.
void check_stride(std::string_view op, std::string_view what, std::string_view axis, std::int64_t extent, std::int64_t stride,
                  std::int64_t smallest) {
  if (extent <= 1 || std::llabs(stride) >= smallest) return;
  fail(Code::invalid_argument, op, "{}.{}_byte_stride={} with {} {}s of {} bytes or more; places must not overlap", what, axis, stride,
       extent, axis, smallest);
}

void check_scales(std::string_view op, std::string_view what, const KvStore& store, const KvPlane& plane, std::int64_t heads,
                  std::int64_t dim) {
  const KvScales& scales = plane.scales;
  const ScaleGranularity g = scales.granularity;
  const bool eight_bit = bits(plane.dtype) == 8;
  const bool four_bit = bits(plane.dtype) == 4;
  const bool fits = eight_bit
                        ? g == ScaleGranularity::tensor || g == ScaleGranularity::head || (is_computed(g) && g != ScaleGranularity::block)
                    : four_bit ? g == ScaleGranularity::block
                               : g == ScaleGranularity::none;
  if (!fits) {
    fail(Code::invalid_argument, op, "{}.scales.granularity={} with dtype {}; must be {}", what, name_of(g), name(plane.dtype),
         eight_bit ? "tensor, head, token_head or token_group" : (four_bit ? "block" : "none"));
  }
  if (g == ScaleGranularity::none) {
    if (scales.global_scale != 1.0F) {
      fail(Code::invalid_argument, op, "{}.scales.global_scale={} with granularity none; must be 1 for unquantised types", what,
           scales.global_scale);
    }
    return;
  }
  if (!std::isfinite(scales.global_scale) || !(scales.global_scale > 0)) {
    fail(Code::invalid_argument, op, "{}.scales.global_scale={}; must be finite and > 0", what, scales.global_scale);
  }
  if (scales.data == nullptr) {
    fail(Code::invalid_argument, op, "{}.scales.data is null; {} with granularity {} needs scales", what, name(plane.dtype), name_of(g));
  }
  if (g == ScaleGranularity::token_group && dim % kScaleGroup != 0) {
    fail(Code::invalid_argument, op, "{} has {} dims with scales.granularity=token_group; must be a multiple of the {} that share a scale",
         what, dim, kScaleGroup);
  }
  if (g == ScaleGranularity::tensor) return;
  const std::int64_t size = token_scale_bytes(plane, dim);
  check_stride(op, what, "scales.head", heads, scales.head_byte_stride, size);
  if (g == ScaleGranularity::head) return;
  const bool endless = store.page_size == kEndlessPage;
  check_stride(op, what, "scales.token", endless ? store.num_pages : store.page_size, scales.token_byte_stride, size);
  if (!endless) check_stride(op, what, "scales.page", store.num_pages, scales.page_byte_stride, size);
}

}  // namespace

void check_pages(std::string_view op, const KvStore& store) {
  if (store.page_size < 1 && store.page_size != kEndlessPage) {
    fail(Code::invalid_argument, op, "store.page_size={}; must be >= 1, or kEndlessPage for a ragged store", store.page_size);
  }
  if (store.num_pages < 0) fail(Code::invalid_argument, op, "store.num_pages={}; must be >= 0", store.num_pages);
}

void check_plane(std::string_view op, std::string_view what, const KvStore& store, const KvPlane& plane, std::int64_t heads,
                 std::int64_t dim) {
  if (!is_numeric(plane.dtype)) {
    fail(Code::invalid_argument, op, "{}.dtype={}; must be f32, f16, bf16, e4m3, e5m2, i8, nvfp4 or mxfp4", what, name(plane.dtype));
  }
  if (dim < 1 || dim > kMaxDim) fail(Code::invalid_argument, op, "{} has {} dims; must be 1..{}", what, dim, kMaxDim);
  if (plane.data == nullptr) fail(Code::invalid_argument, op, "{}.data is null; the plane is written and must be memory", what);
  if (bits(plane.dtype) == 4 && plane.dim_byte_stride != 0) {
    fail(Code::invalid_argument, op, "{}.dim_byte_stride={} with dtype {}; 4-bit rows are dense, use 0", what, plane.dim_byte_stride,
         name(plane.dtype));
  }
  check_scales(op, what, store, plane, heads, dim);
  const std::int64_t element = bytes(plane.dtype, 1);
  if (plane.dim_byte_stride != 0) check_stride(op, what, "dim", dim, plane.dim_byte_stride, element);
  // Rows that are dense must not overlap; where dims are strided (a token-contiguous V), other axes may step within them.
  const std::int64_t row = dense_row(plane) ? bytes(plane.dtype, dim) : element;
  const bool endless = store.page_size == kEndlessPage;
  check_stride(op, what, "head", heads, plane.head_byte_stride, row);
  check_stride(op, what, "token", endless ? store.num_pages : store.page_size, plane.token_byte_stride, row);
  if (!endless) check_stride(op, what, "page", store.num_pages, plane.page_byte_stride, row);
}

void check_plane_aligned(std::string_view op, std::string_view what, const KvPlane& plane, bool has_pages, std::int64_t segment) {
  const auto fail_part = [&](const char* part, const void* data, DType dtype) {
    const std::string prefix = segment < 0 ? std::string() : fmt::format("segments[{}].store.", segment);
    cuda::fail_unaligned(op, fmt::format("{}{}{}", prefix, what, part), data, dtype);
  };
  if (!cuda::is_aligned(plane.data, plane.dtype,
                        {has_pages ? plane.page_byte_stride : 0, plane.token_byte_stride, plane.head_byte_stride, plane.dim_byte_stride})) {
    fail_part("", plane.data, plane.dtype);
  }
  const KvScales& scales = plane.scales;
  const ScaleGranularity g = scales.granularity;
  if (g == ScaleGranularity::none || g == ScaleGranularity::block) return;  // a block's scale is a byte
  const bool by_token = is_computed(g);
  if (!cuda::is_aligned(scales.data, DType::f32,
                        {by_token && has_pages ? scales.page_byte_stride : 0, by_token ? scales.token_byte_stride : 0,
                         g == ScaleGranularity::tensor ? 0 : scales.head_byte_stride})) {
    fail_part(".scales", scales.data, DType::f32);
  }
}

}  // namespace girih::page
