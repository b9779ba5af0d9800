// Built-in and own variants, RoPE, transforms, sinks, LSE kinds and partial states against the reference. Built-ins are compared with
// hand-written twins of their rules, not with their own graphs.
// ctest: shards=2
#include "cases/attention.h"
#include "cases/check.h"

namespace girih::cases {
namespace {

class AttentionCases : public testing::TestWithParam<AttentionCase> {};
TEST_P(AttentionCases, MatchesReference) { check(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Variants, AttentionCases, testing::ValuesIn(variant_cases()),
                         [](const testing::TestParamInfo<AttentionCase>& info) { return info.param.name; });

}  // namespace
}  // namespace girih::cases
