// Whether what a call writes shares memory with what it reads. Attention computes rows from other rows' keys and in tiles, so that its
// outputs need memory of their own.
#pragma once

#include <cstdint>
#include <string_view>

#include "kv_store.h"

namespace girih::python {

/// Rows at equal distances; `begin` and `end` are the bytes that one row takes, from its place on.
struct Region {
  const std::byte* data = nullptr;
  std::int64_t rows = 0, row_stride = 0, begin = 0, end = 0;
};

Region region_of(const TensorView& t);
/// Of a plane of a store: its pages, or the tokens of a ragged one.
Region region_of(const KvStore& store, const KvPlane& plane, const PlaneDims& dims);

/// False where bytes may be shared. Columns of one wider array, whose rows lie between each other, are apart.
bool apart(const Region& a, const Region& b);

/// Throws ValueError where two elements of `t` are the same memory, as in an expanded array.
void check_unfolded(const TensorView& t, std::string_view name);

}  // namespace girih::python
