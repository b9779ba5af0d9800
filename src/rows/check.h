// Checks of the row operators' arguments, and arguments as the core takes them. Every message names the argument, the value and the rule.
#pragma once

#include <string_view>

#include "girih/quantize.h"
#include "rows/rows.h"

namespace girih::rows {

/// The shape that all tensors of a part share.
struct RowShape {
  std::int64_t rows = 0;
  std::int64_t heads = 1;
  std::int64_t dim = 0;
  bool has_heads = false;  // rank 3
};

struct Checker {
  std::string_view op;
  Device device;
  bool tiles = false;  // scales of tiles are possible

  /// [rows, dim] or [rows, heads, dim] within the limits.
  RowShape shape(std::string_view name, const TensorView& t) const;
  /// A tensor of that shape on the device; its elements are one of f32, f16, bf16.
  abi::RowTensor source(std::string_view name, const TensorView& t, const RowShape& shape) const;
  /// The same for any type, and places that do not overlap.
  abi::RowTensor output(std::string_view name, const TensorView& t, const RowShape& shape) const;
  /// Dense [dim] or [heads, dim], f32 or `type`; its stride between heads in bytes.
  std::int64_t weight(std::string_view name, const TensorView& t, const RowShape& shape, DType type) const;
  /// The same for quantised codes and other types that are read.
  abi::RowTensor codes(std::string_view name, const TensorView& t, const RowShape& shape) const;
  /// Output type and scales of a part. `given`: scales of any granularity are inputs (dequantisation), `out` what they belong to.
  void quantization(const Quantization& q, const TensorView& out, const RowShape& shape, Launch::Part part, bool given = false) const;
  /// What is written may share memory with what is read only where an element's place is its own.
  void overlap(std::string_view written_name, const abi::RowTensor& written, abi::Elem written_type, std::string_view read_name,
               const abi::RowTensor& read, abi::Elem read_type, const RowShape& shape, std::int64_t read_dim) const;
};

}  // namespace girih::rows
