// MLA as it is served, for kernels that take it apart from the other layouts.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "cases/attention.h"

namespace girih::cases {

/// MLA of one to 128 heads: one to four queries a request, which see keys up to their own; pages that the copy engine takes and pages that
/// it does not; keys for one step or for several blocks.
inline std::vector<AttentionCase> mla_cases() {
  std::vector<AttentionCase> all;
  const auto add = [&all](std::int64_t heads, std::int64_t page_size, const Lengths& lengths, bool two_tensors = false) {
    AttentionCase c = make_case(fmt::format("mla_heads{}_page{}{}", heads, page_size, two_tensors ? "_two" : ""),
                                make_spec(static_cast<int>(heads), 1, 576, 512), lengths, Layout::nhd, page_size);
    c.spec.v_is_k = true;
    c.spec.head_dim_rope = two_tensors ? 64 : 0;
    c.spec.sm_scale = 1 / std::sqrt(192.0);
    all.push_back(std::move(c));
  };
  const Lengths appends{"", {1, 4, 2, 3, 1, 1}, {700, 4, 65, 128, 1, 0}};
  for (const std::int64_t page_size : {1, 16, 64}) {
    add(1, page_size, appends);
    add(16, page_size, appends);
    add(16, page_size, appends, true);
    add(128, page_size, {"", {2, 1, 4}, {150, 260, 70}});
  }
  // Logits that grow from step to step, by more than a row's base is left behind.
  add(16, 16, {"", {3, 1}, {300, 400}});
  all.back().name = "mla_rising";
  all.back().edit = [](const Site& s, double x) {
    return s.plane == Plane::k && s.dim < 64 ? x * static_cast<double>(1 + s.index / 40 * 2) : x;
  };
  // Keys behind their queries that are not masked.
  add(16, 16, {"", {1, 4, 2, 20}, {100, 30, 200, 90}});
  all.back().name = "mla_unmasked";
  all.back().segments[0].masked = false;
  all.back().q_pos = {5, -3, 60, 64};
  // A list of tokens for each query row, in no order, as sparse attention selects them; of a table with a fixed number of places a row,
  // too, whose unused ones hold no slot.
  for (const bool strided : {false, true}) {
    add(strided ? 128 : 16, 1, {"", {5, 1, 3}, {}});
    AttentionCase& sparse = all.back();
    sparse.name = strided ? "mla_sparse_strided" : "mla_sparse";
    sparse.kv_len = {200, 50, 300};
    SegmentCase& s = sparse.segments[0];
    s.strided_table = strided;
    for (std::int64_t row = 0; row <= 9; ++row) s.qo_indptr.push_back(row);
    for (std::int64_t row = 0; row < 9; ++row) {
      s.kv_len.push_back(row * 37 % 150);
      for (std::int64_t j = 0; j < s.kv_len.back(); ++j) s.page_pos.push_back(j * 11 % 173 + row);
    }
  }
  return all;
}

}  // namespace girih::cases
