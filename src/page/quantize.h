// Writes one row (the dims of one token and head) into the cache: converted, scaled and, where the plane says so, with its scale computed.
#pragma once

#include <cstdint>

#include "girih/attention.h"

namespace girih::page {

/// How the rows of one plane are written. Chosen once per call of append.
struct RowWriter {
  /// Elements of the source row -> f32. Null: f32 that is used in place.
  void (*load)(const char* source, std::int64_t byte_stride, std::int64_t dim, float* out) = nullptr;
  /// f32 -> codes at `out`. `scale` multiplies codes; for computed scales it is the global scale and `scale_out` their place.
  void (*store)(const float* row, std::int64_t dim, float scale, char* out, std::int64_t byte_stride, char* scale_out) = nullptr;
  /// Same type on both sides: elements are moved as they are and neither of the above is used.
  void (*move)(const char* source, std::int64_t source_byte_stride, std::int64_t dim, char* out, std::int64_t byte_stride) = nullptr;
};

/// The writer from `source` (f32, f16, bf16) to `target`, whose scales are `scale`; `in_place` = source rows are aligned and their
/// elements adjacent.
RowWriter row_writer(DType source, bool in_place, DType target, ScaleGranularity scale);

}  // namespace girih::page
