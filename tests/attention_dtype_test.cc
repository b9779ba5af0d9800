// Every Q, O and KV type and scale granularity against the reference on the decoded values.
// ctest: shards=2
#include "cases/attention.h"
#include "cases/check.h"

namespace girih::cases {
namespace {

class AttentionCases : public testing::TestWithParam<AttentionCase> {};
TEST_P(AttentionCases, MatchesReference) { check(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Types, AttentionCases, testing::ValuesIn(dtype_cases()),
                         [](const testing::TestParamInfo<AttentionCase>& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(CodeOutputs, AttentionCases, testing::ValuesIn(code_output_cases()),
                         [](const testing::TestParamInfo<AttentionCase>& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(TokenGroups, AttentionCases, testing::ValuesIn(token_group_cases()),
                         [](const testing::TestParamInfo<AttentionCase>& info) { return info.param.name; });

AttentionCase token_group_case(std::string_view name) {
  for (AttentionCase& c : token_group_cases()) {
    if (c.name == name) return c;
  }
  throw std::logic_error("no such case");
}

/// A NaN among the scales of a key makes NaN of the rows that see it, and changes no bit of the others.
TEST(TokenGroups, NanScalesReachOnlyTheRowsThatSeeThem) {
  const AttentionCase plain = token_group_case("mla_tokens_lists");
  AttentionCase with_nan = plain;
  with_nan.edit_scale = [](const Site& s, double drawn) {
    return s.group % 2 == 1 && s.index == 20 && s.dim / kScaleGroup == 1 ? std::numeric_limits<double>::quiet_NaN() : drawn;
  };
  const Problem p(plain);
  const Problem q(with_nan);
  for (CpuTarget target : available_cpu_targets()) {
    const Outputs want = execute(p, context_for(target, 1));
    const Outputs got = execute(q, context_for(target, 1));
    int num_nan = 0;
    for (std::int64_t row = 0; row < p.num_tokens(); ++row) {
      const bool sees = row % 2 == 1 && p.group_kv_len(0, 0, row) > 20;
      if (!sees) {
        ASSERT_EQ(got.row_bits(row), want.row_bits(row)) << row;
        continue;
      }
      ++num_nan;
      for (std::int64_t head = 0; head < 16; ++head) ASSERT_TRUE(std::isnan(got.lse_at(row, head)) && std::isnan(got.o_at(row, head, 300)));
    }
    EXPECT_GE(num_nan, 3);
  }
}

/// Of V, only the dims that share the scale.
TEST(TokenGroups, NanScalesOfValuesReachOnlyTheirDims) {
  AttentionCase plain = make_case("values", make_spec(4, 2, 40, 384), {"", {1, 20}, {50, 70}});
  plain.spec.variant.mask = {};
  set_kv(plain.spec, DType::bf16, ScaleGranularity::none, DType::e4m3, ScaleGranularity::token_group);
  AttentionCase with_nan = plain;
  with_nan.edit_scale = [](const Site& s, double drawn) {
    return s.index == 20 && s.dim / kScaleGroup == 1 ? std::numeric_limits<double>::quiet_NaN() : drawn;
  };
  const Problem p(plain);
  const Problem q(with_nan);
  for (CpuTarget target : available_cpu_targets()) {
    const Outputs want = execute(p, context_for(target, 2));
    const Outputs got = execute(q, context_for(target, 2));
    for (std::int64_t row = 0; row < p.num_tokens(); ++row) {
      for (std::int64_t head = 0; head < 4; ++head) {
        ASSERT_EQ(got.lse_at(row, head), want.lse_at(row, head));
        for (std::int64_t d = 0; d < 384; ++d) {
          const bool shares = d / kScaleGroup == 1;
          ASSERT_TRUE(shares ? std::isnan(got.o_at(row, head, d)) : got.o_at(row, head, d) == want.o_at(row, head, d)) << row << " " << d;
        }
      }
    }
  }
}

}  // namespace
}  // namespace girih::cases
