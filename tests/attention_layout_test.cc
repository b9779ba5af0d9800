// Layouts, shapes and segments against the reference: paged and ragged stores of all strides, page sizes, head dims, GQA groups, empty
// batches, cascades, page selections, token lists, MLA.
// ctest: shards=2
#include "cases/attention.h"
#include "cases/check.h"

namespace girih::cases {
namespace {

class AttentionCases : public testing::TestWithParam<AttentionCase> {};
TEST_P(AttentionCases, MatchesReference) { check(GetParam()); }

std::string case_name(const testing::TestParamInfo<AttentionCase>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Layout, AttentionCases, testing::ValuesIn(layout_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Segments, AttentionCases, testing::ValuesIn(segment_cases()), case_name);

}  // namespace
}  // namespace girih::cases
