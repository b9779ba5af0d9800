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

}  // namespace
}  // namespace girih::cases
