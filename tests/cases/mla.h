// MLA as it is served, for kernels that take it apart from the other layouts.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "cases/attention.h"

namespace girih::cases {

/// K of 8 bits beside Q of 16, which kernels may widen: scales of all, of a head and of groups, K in one tensor and two, pages and lists of
/// tokens, rows that cannot be taken 16 bytes at a time, levels, scores that rise, batch invariance.
inline std::vector<AttentionCase> mla8_cases() {
  using G = ScaleGranularity;
  std::vector<AttentionCase> all;
  const auto add = [&all](std::string name, int heads, DType k, G scale, const Lengths& lengths, std::int64_t page_size,
                          Layout layout = Layout::nhd) -> AttentionCase& {
    all.push_back(make_case("mla8_" + std::move(name), make_spec(heads, 1, 576, 512), lengths, layout, page_size));
    AttentionSpec& spec = all.back().spec;
    set_kv(spec, k, scale, k, scale);
    spec.v_is_k = true;
    spec.sm_scale = 1 / std::sqrt(192.0);
    if (scale == G::token_group) {
      spec.head_dim_rope = 64;
      spec.k_rope_dtype = DType::bf16;
    }
    return all.back();
  };
  const Lengths appends{"", {1, 4, 2, 3, 1, 1}, {700, 4, 65, 128, 1, 0}};
  for (const std::int64_t page_size : {1, 16, 64}) add(fmt::format("page{}", page_size), 16, DType::e4m3, G::tensor, appends, page_size);
  add("padded", 16, DType::e4m3, G::tensor, appends, 16, Layout::padded);
  add("rising", 16, DType::e4m3, G::tensor, {"", {3, 1}, {300, 400}}, 16).edit = [](const Site& s, double x) {
    return s.plane == Plane::k && s.dim < 64 ? x * static_cast<double>(1 + s.index / 40 * 2) : x;
  };
  AttentionCase& levels = add("levels", 16, DType::e4m3, G::tensor, {"", {1, 12, 3}, {30, 70, 4}}, 16);
  SegmentCase shared = levels.segments[0];
  shared.qo_indptr = {0, 16};
  shared.kv_len = {192};
  levels.segments.insert(levels.segments.begin(), shared);
  for (const Layout layout : {Layout::nhd, Layout::padded}) {
    AttentionSpec& two =
        add(layout == Layout::nhd ? "two_f16_i8" : "two_f16_i8_padded", 16, DType::i8, G::head, {"", {2, 1}, {90, 200}}, 16, layout).spec;
    two.q_dtype = DType::f16;
    two.head_dim_rope = 64;
  }
  add("tokens_padded", 16, DType::e4m3, G::token_group, {"", {1, 4}, {150, 70}}, 16, Layout::padded);
  add("tokens_invariant", 4, DType::e4m3, G::token_group, {"", {4, 2}, {2500, 60}}, 64, Layout::tokens).spec.batch_invariant = true;
  for (const G scale : {G::tensor, G::token_group}) {
    AttentionCase& lists = add(scale == G::tensor ? "heads128_lists" : "heads128_tokens_lists", 128, DType::e4m3, scale,
                               {"", {3, 1, 2}, {}}, 1, scale == G::tensor ? Layout::nhd : Layout::tokens);
    lists.kv_len = {200, 50, 300};
    SegmentCase& s = lists.segments[0];
    s.strided_table = true;
    s.masked = false;
    for (std::int64_t row = 0; row <= 6; ++row) s.qo_indptr.push_back(row);
    for (std::int64_t row = 0; row < 6; ++row) s.kv_len.push_back(row * 53 % 211);
  }
  return all;
}

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
  for (AttentionCase& c : mla8_cases()) all.push_back(std::move(c));
  return all;
}

}  // namespace girih::cases
