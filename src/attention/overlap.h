// Whether what a run writes shares memory with what it reads. Rows of the outputs are computed from other rows' keys and values, in tiles
// and in no order, so outputs need memory of their own. Nothing is read: places and strides decide, on a CPU and on a GPU alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "girih/attention.h"

namespace girih::attention {

/// Rows at equal distances; [begin, end) are the bytes that one row takes, from its place on. Wide, so that no strides overflow.
struct Region {
  __extension__ using Wide = __int128;
  const std::byte* data = nullptr;
  std::int64_t rows = 0;
  Wide row_stride = 0, begin = 0, end = 0;
};

Region region_of(const TensorView& t);
Region region_of(const void* data, std::int64_t bytes);
/// Of a plane of a store: its pages, or the tokens of a ragged one, with `heads` x `dim` elements a token.
Region region_of(const KvStore& store, const KvPlane& plane, std::int64_t heads, std::int64_t dim);
Region region_of_scales(const KvStore& store, const KvPlane& plane, std::int64_t heads, std::int64_t dim);

/// False where bytes may be shared. Columns of one wider array, whose rows lie between each other, are apart.
bool apart(const Region& a, const Region& b);

/// Throws invalid_argument where an output's elements share memory with each other, with another output, or with anything that the run
/// reads or works in. The arguments have been checked otherwise.
void check_outputs_apart(const AttentionSpec& spec, const AttentionArgs& args);

}  // namespace girih::attention
