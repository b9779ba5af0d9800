// The KV store read one element at a time, straight from its description: an address, a code, a scale. Also the nearest code of a value
// by search over all codes. For tests that write a cache, or read one.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/numeric.h"
#include "girih/attention.h"

namespace girih::ref {

/// Address of [page, token, head] in a plane or in its scales. Ragged: `page` is the index of the request's first token.
template <typename Strides>
const unsigned char* row_address(const KvStore& store, const Strides& strides, std::int64_t page, std::int64_t token, std::int64_t head) {
  const bool endless = store.page_size == kEndlessPage;
  const std::int64_t place =
      endless ? (page + token) * strides.token_byte_stride : page * strides.page_byte_stride + token * strides.token_byte_stride;
  return static_cast<const unsigned char*>(strides.data) + place + head * strides.head_byte_stride;
}

/// The factor that multiplies the code of element `dim`.
inline double scale_of(const KvStore& store, const KvPlane& plane, std::int64_t page, std::int64_t token, std::int64_t head,
                       std::int64_t dim) {
  const KvScales& scales = plane.scales;
  const double global = static_cast<double>(scales.global_scale);
  const auto* base = static_cast<const unsigned char*>(scales.data);
  switch (scales.granularity) {
    case ScaleGranularity::none: return 1.0;
    case ScaleGranularity::tensor: return global * static_cast<double>(load_element(DType::f32, base, 0));
    case ScaleGranularity::head: return global * static_cast<double>(load_element(DType::f32, base + head * scales.head_byte_stride, 0));
    case ScaleGranularity::token_head:
      return global * static_cast<double>(load_element(DType::f32, row_address(store, scales, page, token, head), 0));
    case ScaleGranularity::token_group:
      return global * static_cast<double>(load_element(DType::f32, row_address(store, scales, page, token, head), dim / kScaleGroup));
    case ScaleGranularity::block: break;
  }
  const std::uint8_t code = row_address(store, scales, page, token, head)[dim / (plane.dtype == DType::nvfp4 ? 16 : 32)];
  return global * static_cast<double>(plane.dtype == DType::nvfp4 ? decode_e4m3(code) : decode_e8m0(code));
}

/// The code's value without its scale.
inline double code_value(const KvStore& store, const KvPlane& plane, std::int64_t page, std::int64_t token, std::int64_t head,
                         std::int64_t dim) {
  const unsigned char* row = row_address(store, plane, page, token, head);
  if (plane.dim_byte_stride != 0) return static_cast<double>(load_element(plane.dtype, row + dim * plane.dim_byte_stride, 0));
  return static_cast<double>(load_element(plane.dtype, row, dim));
}

/// Element [page, token, head, dim] as attention must see it.
inline double read_element(const KvStore& store, const KvPlane& plane, std::int64_t page, std::int64_t token, std::int64_t head,
                           std::int64_t dim) {
  return code_value(store, plane, page, token, head, dim) * scale_of(store, plane, page, token, head, dim);
}

/// The value of the code of type `t` (8 or 4 bits) nearest to x, found by looking at every code; ties go to the even code.
inline double nearest_value(DType t, double x) {
  std::uint32_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (std::uint32_t code = 0; code < (1U << bits(t)); ++code) {
    if (t == DType::i8 && code == 0x80) continue;  // -128 is not used
    const double value = static_cast<double>(girih::decode(t, code));
    if (!std::isfinite(value)) continue;
    const double distance = std::fabs(value - x);
    if (distance < best_distance || (distance == best_distance && (code & 1U) == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<double>(girih::decode(t, best));
}

}  // namespace girih::ref
