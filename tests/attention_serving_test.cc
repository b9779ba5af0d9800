// Every case that the benchmark times, at 1/32 of its lengths, against the reference: what is quoted as fast is also right.
// ctest: shards=2
#include "cases/attention.h"
#include "cases/check.h"
#include "cases/serving.h"
#include "tools/attention_data.h"

namespace girih::cases {
namespace {

constexpr double kScale = 1.0 / 32;

/// The serving case with the test's memory: its named variant's arrays become parameters, its shared prefix a segment.
AttentionCase checked_case(const ServingCase& c) {
  const tools::OwnedBatch owned = tools::make_batch(c);
  AttentionCase checked = make_case(c.name, owned.spec, {"", c.qo_lens, c.kv_lens}, Layout::nhd, kServingPageSize);
  for (const ParamValue& p : owned.variant.plan_params) checked.params.push_back({std::string(p.name), ParamTime::plan, owned.variant.i32});
  for (const ParamValue& p : owned.variant.run_params) {
    checked.params.push_back({std::string(p.name), ParamTime::run, p.name == "sinks" ? owned.variant.sinks : owned.variant.f32});
  }
  if (c.cascade) {
    for (std::int64_t& n : checked.segments[0].kv_len) n -= c.shared_prefix;
    SegmentCase shared = checked.segments[0];
    shared.qo_indptr = {0, owned.num_tokens()};
    shared.kv_len = {c.shared_prefix};
    checked.segments.insert(checked.segments.begin(), shared);
  }
  return checked;
}

class ServingCases : public testing::TestWithParam<ServingCase> {};
TEST_P(ServingCases, MatchesReference) { check(checked_case(GetParam())); }

/// What the benchmark hands to run(), which is other memory than a test's: a cascade and the flat batch over the same keys agree.
TEST(ServingData, CascadeEqualsFlat) {
  std::vector<std::vector<std::byte>> outputs;
  for (const ServingCase& c : serving_cases(kScale)) {
    if (c.shared_prefix == 0) continue;
    const tools::AttentionData data(c);
    const Context& context = context_for(CpuTarget::best, 2);
    const Schedule schedule = girih::schedule(context, data.batch().spec, data.batch().limits());
    Plan plan(schedule);
    const tools::BatchView view = data.batch().view();
    plan.update(view.batch);
    Workspace workspace(schedule.workspace_bytes(), kNanPattern);
    AttentionArgs args = data.args();
    args.workspace = workspace.span();
    run(context, schedule, plan, args);
    const auto* o = static_cast<const std::byte*>(args.o.data);
    outputs.emplace_back(o, o + bytes(args.o.dtype, args.o.shape[0] * args.o.shape[1] * args.o.shape[2]));
  }
  ASSERT_EQ(outputs.size(), 2U);
  ASSERT_EQ(outputs[0].size(), outputs[1].size());
  for (std::size_t i = 0; i < outputs[0].size() / 2; ++i) {
    const double flat = ref::decode(DType::bf16, ref::load_code(outputs[0].data(), DType::bf16, static_cast<std::int64_t>(i), 2));
    const double cascade = ref::decode(DType::bf16, ref::load_code(outputs[1].data(), DType::bf16, static_cast<std::int64_t>(i), 2));
    ASSERT_NEAR(cascade, flat, 0.02 * std::fabs(flat) + 1e-3) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Serving, ServingCases, testing::ValuesIn(serving_cases(kScale)),
                         [](const testing::TestParamInfo<ServingCase>& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace girih::cases
