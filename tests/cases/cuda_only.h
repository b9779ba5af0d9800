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

}  // namespace cuda_only

inline std::vector<AttentionCase> cuda_only_cases() {
  return {cuda_only::text_case("cuda_text_mixed", lengths("mixed")), cuda_only::text_case("cuda_text_prefill", lengths("prefill")),
          cuda_only::page_positions_case(), cuda_only::far_positions_case(), cuda_only::capped_empty_case()};
}

}  // namespace girih::cases
