// Attention cases for the CUDA backend alone: hooks with CUDA text (cuda_code), which the CPU refuses, and what its kernels do in ways of
// their own with the hooks of scores (positions beyond f32's integers, keys at positions of their own, rows without a maximum).
#pragma once

#include "cases/attention.h"

namespace girih::cases {

namespace cuda_only {

inline std::int64_t in(const std::vector<std::int64_t>& values, std::int64_t i) {
  return i >= 0 && i < static_cast<std::int64_t>(values.size()) ? values[static_cast<std::size_t>(i)] : 0;
}

/// Text in logits and mask, the mask between bounds that the planner proves; every kind of argument.
inline AttentionCase text_case(std::string name, const Lengths& l) {
  using variant::Var;
  AttentionCase c = make_case(std::move(name), make_spec(6, 2, 64), l);
  const std::vector<float> slopes{0.25F, 0.5F, 0.125F, 1.0F, 0.0F};  // a head without one: 0
  std::vector<std::int64_t> groups;
  for (std::int64_t i = 0; i < 170; ++i) groups.push_back(i / 7 % 3);
  const std::vector<std::uint8_t> flags = random_bits(8 * 40, 5);
  c.params = {{"slopes", ParamTime::run, slopes},
              {"level", ParamTime::run, 2.0},
              {"groups", ParamTime::plan, groups},
              {"flags", ParamTime::run, flags}};
  c.spec.variant.logits =
      cuda_code(ExprType::number,
                "// a penalty that grows ever more slowly\n"
                "const float distance = static_cast<float>(abs_distance);\n"
                "if (abs_distance == 0) { return score; }\n"
                "return score - slopes[q_head] * log(level + distance);",
                {score(), q_head(), scalar("level"), ArrayParam("slopes", DType::f32), CudaArg("abs_distance", abs(q_pos() - kv_pos()))});
  const Expr text = cuda_code(ExprType::boolean, "return groups[q_pos] == groups[kv_pos] || flags[q_pos + 2 * kv_pos];",
                              {q_pos(), kv_pos(), ArrayParam("groups", DType::i64, ParamTime::plan), BitsParam("flags")}, "mask.cu");
  c.spec.variant.mask = variants::causal() & ((q_pos() - kv_pos() < 3) | text);
  c.logits = [slopes](double s, const ref::Vars& v) {
    const std::int64_t distance = std::abs(v.i(Var::q_pos) - v.i(Var::kv_pos));
    const auto head = static_cast<std::size_t>(v.i(Var::q_head));
    if (distance == 0) return s;
    return s - (head < slopes.size() ? static_cast<double>(slopes[head]) : 0.0) * std::log(2.0 + static_cast<double>(distance));
  };
  c.mask = [groups, flags](const ref::Vars& v) {
    const std::int64_t q = v.i(Var::q_pos);
    const std::int64_t kv = v.i(Var::kv_pos);
    const std::int64_t bit = q + 2 * kv;
    const bool flag = bit >= 0 && bit < 8 * std::ssize(flags) && ((flags[static_cast<std::size_t>(bit / 8)] >> (bit % 8)) & 1) != 0;
    return kv <= q && (q - kv < 3 || in(groups, q) == in(groups, kv) || flag);
  };
  return c;
}

/// Logits that read positions, over pages with positions of their own that come in any order.
inline AttentionCase page_positions_case() {
  AttentionCase c = make_case("alibi_page_positions", make_spec(6, 2, 64), {"", {1, 50}, {}}, Layout::nhd, 8);
  c.params = {{"alibi_slopes", ParamTime::run, variants::alibi_slopes(6)}};
  c.spec.variant.logits = variants::alibi();
  SegmentCase& s = c.segments[0];
  s.kv_len = {90, 200};
  for (const std::int64_t len : s.kv_len) {
    const std::int64_t pages = (len + 7) / 8;
    for (std::int64_t i = 0; i < pages; ++i) s.page_pos.push_back((i * 5 % pages) * 16);
  }
  c.kv_len = {400, 700};
  return c;
}

/// Positions beyond the integers that f32 has all of.
inline AttentionCase far_positions_case() {
  AttentionCase c = make_case("alibi_far_positions", make_spec(6, 2, 64), {"", {3, 60}, {40, 90}});
  c.params = {{"alibi_slopes", ParamTime::run, variants::alibi_slopes(6)}};
  c.spec.variant.logits = variants::alibi();
  c.segments[0].kv_pos = {(std::int64_t{1} << 33) + 1, (std::int64_t{1} << 25) + 3};
  c.q_pos = {(std::int64_t{1} << 33) + 39, (std::int64_t{1} << 25) + 33};
  c.kv_len = {(std::int64_t{1} << 33) + 100, (std::int64_t{1} << 25) + 100};
  return c;
}

/// Bounded logits where rows, or all keys of a part, see nothing.
inline AttentionCase capped_empty_case() {
  AttentionCase c = make_case("soft_cap_no_keys", make_spec(6, 2, 64), {"", {60, 3, 1}, {7, 1, 2}});
  c.spec.variant.logits = variants::soft_cap(30.0F);
  return c;
}

/// Pages of so few tokens that large tiles' keys are copied by rows, over several steps.
inline AttentionCase small_page_case(std::int64_t page_size, const AttentionSpec& spec, Layout layout) {
  return make_case(fmt::format("small_pages_of_{}", page_size), spec, {"", {150, 3, 70}, {333, 400, 70}}, layout, page_size);
}

}  // namespace cuda_only

/// Keys of 8 bits beside 16-bit Q in tiles of many rows, which kernels may widen: every width of rows, pages that boxes bring and those
/// that are copied by rows, K and V of two types, masks, hooks, cascade levels and batch invariance.
inline std::vector<AttentionCase> widened_key_cases() {
  using G = ScaleGranularity;
  std::vector<AttentionCase> cases;
  const auto add = [&cases](std::string name, AttentionSpec spec, DType k, DType v, const Lengths& l, Layout layout,
                            std::int64_t page_size = 16) -> AttentionCase& {
    set_kv(spec, k, G::head, v, G::tensor);
    cases.push_back(make_case("kv8_" + std::move(name), spec, l, layout, page_size));
    return cases.back();
  };
  const Lengths mixed = lengths("mixed");
  const Lengths prefill{"", {150, 0, 70}, {333, 5, 70}};
  const AttentionSpec d128 = make_spec(6, 2, 128);
  AttentionSpec half = d128;
  half.q_dtype = DType::f16;
  add("paged", d128, DType::e4m3, DType::e4m3, prefill, Layout::nhd);
  add("ragged", d128, DType::e4m3, DType::e4m3, prefill, Layout::ragged);
  add("page_of_5", d128, DType::e4m3, DType::e4m3, mixed, Layout::nhd, 5);
  add("token_contiguous_v", d128, DType::e4m3, DType::e4m3, mixed, Layout::token_contiguous_v);
  add("f16_e4m3_e5m2", half, DType::e4m3, DType::e5m2, prefill, Layout::hnd, 24);
  add("f16_i8", half, DType::i8, DType::i8, mixed, Layout::nhd);
  add("i8_e4m3", d128, DType::i8, DType::e4m3, mixed, Layout::padded);
  for (const auto& [qk, vo] : {std::pair{96, 96}, {192, 128}, {112, 192}})
    add(fmt::format("dim{}x{}", qk, vo), make_spec(4, 2, qk, vo), DType::e4m3, DType::e4m3, mixed, Layout::nhd);
  add("full", d128, DType::e5m2, DType::e5m2, prefill, Layout::ragged).spec.variant.mask = {};
  add("soft_cap", d128, DType::e4m3, DType::e4m3, mixed, Layout::nhd).spec.variant.logits = variants::soft_cap(30.0F);
  AttentionCase& sum = add("sigmoid", d128, DType::e4m3, DType::e4m3, mixed, Layout::nhd);
  sum.spec.lse = LseKind::none;
  sum.spec.variant.softmax = false;
  sum.spec.variant.logits = variants::sigmoid_logits(-1.0F);
  add("invariant", make_spec(4, 2, 64), DType::e4m3, DType::e4m3, {"", {60, 3}, {4200, 2100}}, Layout::nhd).spec.batch_invariant = true;
  AttentionCase& levels = add("cascade", d128, DType::e4m3, DType::e4m3, {"", {1, 12, 30}, {30, 12, 40}}, Layout::nhd);
  SegmentCase shared = levels.segments[0];
  shared.qo_indptr = {0, 43};
  shared.kv_len = {192};
  levels.segments.insert(levels.segments.begin(), shared);
  return cases;
}

/// Q, K and V of e4m3: every width of rows that kernels have, pages that boxes bring and those that are copied by rows, keys at any stride,
/// ragged keys, masks, hooks, cascade levels and batch invariance. Q's scale is part of sm_scale.
inline std::vector<AttentionCase> fp8_query_cases() {
  using G = ScaleGranularity;
  std::vector<AttentionCase> cases;
  const auto add = [&cases](std::string name, AttentionSpec spec, const Lengths& l, Layout layout, std::int64_t page_size = 16,
                            G scale = G::head) -> AttentionCase& {
    spec.q_dtype = DType::e4m3;
    spec.sm_scale = 1 / (30 * std::sqrt(static_cast<double>(spec.head_dim_qk)));
    set_kv(spec, DType::e4m3, scale, DType::e4m3, scale);
    cases.push_back(make_case("fp8_" + std::move(name), spec, l, layout, page_size));
    return cases.back();
  };
  const Lengths mixed = lengths("mixed");
  const Lengths prefill{"", {150, 0, 70}, {333, 5, 70}};
  const AttentionSpec d128 = make_spec(6, 2, 128);
  add("paged", d128, prefill, Layout::nhd);
  add("ragged", d128, prefill, Layout::ragged);
  add("hnd", d128, mixed, Layout::hnd, 64);
  add("page_of_5", d128, mixed, Layout::nhd, 5);
  add("page_of_24", d128, mixed, Layout::nhd, 24);
  add("strides_of_one", d128, mixed, Layout::padded);
  add("token_contiguous_v", d128, mixed, Layout::token_contiguous_v);
  add("tensor_scales", make_spec(4, 1, 128), mixed, Layout::nhd, 16, G::tensor).spec.o_dtype = DType::bf16;
  for (const auto& [qk, vo] : {std::pair{64, 64}, {96, 96}, {192, 128}, {256, 256}, {128, 192}})
    add(fmt::format("dim{}x{}", qk, vo), make_spec(4, 2, qk, vo), mixed, Layout::nhd);
  add("full", d128, prefill, Layout::ragged).spec.variant.mask = {};
  add("window", d128, prefill, Layout::nhd).spec.variant.mask = variants::window(40, 3);
  add("soft_cap", d128, mixed, Layout::nhd).spec.variant.logits = variants::soft_cap(30.0F);
  add("negative_scale", d128, mixed, Layout::nhd).spec.sm_scale *= -1;
  AttentionCase& sinks = add("sinks", d128, mixed, Layout::nhd);
  sinks.spec.variant.sink = variants::sinks();
  sinks.params = {{"sinks", ParamTime::run, std::vector<float>{0.5F, -1.0F, 2.0F, 0.0F, 1.0F, -3.0F}}};
  add("invariant", make_spec(4, 2, 64), {"", {60, 3}, {4200, 2100}}, Layout::nhd).spec.batch_invariant = true;
  AttentionCase& levels = add("cascade", d128, {"", {1, 12, 30}, {30, 12, 40}}, Layout::nhd);
  SegmentCase shared = levels.segments[0];
  shared.qo_indptr = {0, 43};
  shared.kv_len = {192};
  levels.segments.insert(levels.segments.begin(), shared);
  // Equal weights and values and many keys: a sum that loses all bits below 2^-13 of itself would hardly grow in the end.
  AttentionCase& many = add("many_keys", make_spec(2, 1, 64), {"", {12}, {12000}}, Layout::nhd);
  many.edit = [](const Site& site, double x) { return site.plane == Plane::q ? 0 : site.plane == Plane::v ? 1.9 : x; };
  // Rows whose scores rise from key to key and far apart: maxima are raised again and again, and weights vanish.
  AttentionCase& rising = add("rising_scores", d128, {"", {140}, {400}}, Layout::nhd);
  rising.spec.variant.mask = {};
  rising.spec.variant.logits = score() + 0.05 * kv_pos();
  // So far that what is added to the score is a hundred times as large: the score keeps its bits.
  AttentionCase& far = cases.emplace_back(rising);
  far.name = "fp8_rising_scores_far";
  far.q_len = {16};
  far.segments[0].kv_len = {2500};
  return cases;
}

inline std::vector<AttentionCase> cuda_only_cases() {
  return {cuda_only::text_case("cuda_text_mixed", lengths("mixed")),
          cuda_only::text_case("cuda_text_prefill", lengths("prefill")),
          cuda_only::page_positions_case(),
          cuda_only::far_positions_case(),
          cuda_only::capped_empty_case(),
          cuda_only::small_page_case(1, make_spec(2, 1, 128), Layout::nhd),
          cuda_only::small_page_case(5, make_spec(6, 2, 64), Layout::nhd),
          cuda_only::small_page_case(12, make_spec(4, 2, 192, 128), Layout::hnd)};
}

}  // namespace girih::cases
