// Every attention case on the GPU against the reference, by the family that the table chooses and by the floor; inputs that broke others
// (cases/regressions.h) by all families on tensor cores. All kernels are compiled first, in parallel; afterwards a case takes milliseconds.
#include <algorithm>
#include <cstdio>
#include <set>

#include "cases/cuda_only.h"
#include "cases/mla.h"
#include "cases/regressions.h"
#include "cases/serving.h"
#include "device.h"
#include "emulator/cases.h"
#include "girih/error.h"

namespace girih::cuda_test {
namespace {

using cases::AttentionCase;
using cases::Problem;

std::vector<AttentionCase> all_cases() {
  std::vector<AttentionCase> all;
  for (auto list : {cases::layout_cases(), cases::segment_cases(), cases::dtype_cases(), cases::token_group_cases(), cases::variant_cases(),
                    cases::cuda_only_cases(), cases::widened_key_cases(), cases::mla_cases(), cases::code_output_cases()}) {
    for (AttentionCase& c : list) all.push_back(std::move(c));
  }
  return all;
}

constexpr std::array<const char*, 3> kFamilies{"", "mma", "floor"};

struct CaseRun {
  const char* family;
  AttentionCase c;
  bool as_cascade = false;  // by limits for which Hopper has a kernel of its own
};
void PrintTo(const CaseRun& run, std::ostream* out) { *out << run.c.name << ' ' << run.family; }

/// Whether Hopper's own family takes a spec only where it is asked for.
bool takes_if_asked(const AttentionSpec& spec) {
  try {
    attention::cuda_kernels_of(spec, cuda::example_device(90), "wgmma");
    return true;
  } catch (const Error& error) {
    if (error.code() != Code::unsupported) throw;
    return false;
  }
}

/// The case by the table's choice; by "mma" where that is not the choice everywhere; by "wgmma" where it is taken only if asked for; by
/// "floor" if that is asked for.
void add_runs(const AttentionCase& c, bool floor, std::vector<CaseRun>& all) {
  const std::vector<attention::CudaKernel> on_hopper = attention::cuda_kernels_of(c.spec, cuda::example_device(90));
  const bool has_more = std::any_of(on_hopper.begin(), on_hopper.end(), [](const auto& kernel) { return kernel.family == "wgmma"; });
  for (const char* family : kFamilies) {
    if (family == std::string_view("mma") && !has_more) continue;
    if (family == std::string_view("floor") && !floor) continue;
    all.push_back({family, c});
  }
  if (!has_more && takes_if_asked(c.spec)) all.push_back({"wgmma", c});
  const bool has_cascades = std::any_of(on_hopper.begin(), on_hopper.end(), [](const auto& kernel) { return kernel.shares_sms; });
  if (has_cascades && emulator::max_rows(c) <= attention::kCascadeRows) all.push_back({"", c, true});
}

std::vector<CaseRun> all_runs() {
  std::vector<CaseRun> all;
  for (const AttentionCase& c : all_cases()) add_runs(c, true, all);
  for (const AttentionCase& c : cases::regression_cases()) add_runs(c, false, all);
  for (const AttentionCase& c : cases::fp8_query_cases()) {
    for (const char* family : {"wgmma", "mma", "floor"}) all.push_back({family, c});
  }
  return all;
}

std::string name_of(const CaseRun& run) {
  return run.c.name + "_" + (*run.family == '\0' ? "chosen" : run.family) + (run.as_cascade ? "_as_cascade" : "");
}

void set_limits(const CaseRun& run, Problem& p) {
  if (run.as_cascade) emulator::allow_cascades(p.limits, p.spec.num_qo_heads / p.spec.num_kv_heads);
}

bool has_family(const CaseRun& run) { return run.family != std::string_view("wgmma") || gpu().context->cuda().device->info().arch == 90; }

/// Compiles the kernels of the cases that will run, so that the time of tests is that of running.
class WarmUp : public testing::Environment {
 public:
  void SetUp() override {
    if (gpu().context == nullptr) return;
    std::set<std::string> chosen;  // by --gtest_filter and shard
    const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
    for (int s = 0; s < tests.total_test_suite_count(); ++s) {
      const testing::TestSuite& suite = *tests.GetTestSuite(s);
      for (int t = 0; t < suite.total_test_count(); ++t) {
        const std::string test = suite.GetTestInfo(t)->name();
        if (suite.GetTestInfo(t)->should_run()) chosen.insert(test.substr(test.find('/') + 1));
      }
    }
    cuda::Runtime& runtime = gpu().context->cuda();
    std::set<std::string> seen;
    std::vector<jit::KernelSource> sources;
    for (const CaseRun& run : all_runs()) {
      if (!chosen.contains(name_of(run)) || !has_family(run)) continue;
      Problem p(run.c);
      set_limits(run, p);
      const auto state =
          attention::make_cuda_state(runtime.device->info(), 0, p.c.spec, p.limits, {.num_units = 0, .num_sms = 0, .family = run.family});
      for (int k = 0; k < attention::kNumClasses; ++k) {
        const attention::CudaKernel& kernel = state->cuda->kernels.classes[k];
        if (attention::class_units(*state, k) > 0 && seen.insert(kernel.source).second)
          sources.push_back({.name = kernel.name, .source = kernel.source, .target = ""});
      }
    }
    try {
      runtime.jit->warmup(sources);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the test of that kernel will say what is wrong
    }
  }
};
const testing::Environment* const kWarmUp = testing::AddGlobalTestEnvironment(new WarmUp);

class AttentionCuda : public testing::TestWithParam<CaseRun> {};

TEST_P(AttentionCuda, MatchesReference) {
  GIRIH_NEEDS_GPU();
  if (!has_family(GetParam())) GTEST_SKIP() << "needs sm_90";
  Problem p(GetParam().c);
  set_limits(GetParam(), p);
  const bool rounds = cases::rounds_keys(GetParam().family, p.spec);
  EXPECT_TRUE(cases::matches(p, cases::reference(p, rounds), execute(p, {.num_units = 0, .num_sms = 0, .family = GetParam().family})));
}

INSTANTIATE_TEST_SUITE_P(Cases, AttentionCuda, testing::ValuesIn(all_runs()), [](const auto& info) { return name_of(info.param); });

/// The kernels of older chips as PTX, which the driver assembles for this one: without cp.async and with products in f16 only (sm_75),
/// without Hopper's instructions (sm_80), with products of 8-bit floats by a warp (sm_89).
class OlderChips : public testing::TestWithParam<int> {};

/// A schedule as that of a chip of `arch`, with this device's multiprocessors.
Schedule schedule_of(int arch, const Problem& p) {
  const Context& context = *gpu().context;
  cuda::Runtime& runtime = context.cuda();
  cuda::DeviceInfo older = cuda::example_device(arch);
  older.num_sms = runtime.device->info().num_sms;
  const auto state = attention::make_cuda_state(older, context.device().index, p.c.spec, p.limits);
  auto loaded = std::make_shared<attention::CudaState>(*state->cuda);
  loaded->loader = runtime.loader;
  for (int c = 0; c < attention::kNumClasses; ++c) {
    if (attention::class_units(*state, c) == 0) continue;
    const attention::CudaKernel& kernel = state->cuda->kernels.classes[c];
    const jit::KernelSource source{.name = kernel.name, .source = kernel.source, .target = fmt::format("compute_{}", arch)};
    loaded->functions[static_cast<std::size_t>(c)] = runtime.load({&source, 1}, {&kernel.shared_bytes, 1}).front()->function;
  }
  state->cuda = std::move(loaded);
  return Schedule(state);
}

TEST_P(OlderChips, KernelsMatchTheReference) {
  GIRIH_NEEDS_GPU();
  constexpr std::array<std::string_view, 9> kCases{"nhd_mixed",         "dim128_mixed",       "mla_one_decode_ps1",
                                                   "kv_e4m3_head_nhd",  "kv_nvfp4_block_nhd", "custom_mask_run_mixed",
                                                   "soft_cap_30_mixed", "rope_mixed",         "fp8_paged"};
  std::set<std::string_view> run_cases;
  std::vector<AttentionCase> all = all_cases();
  for (const AttentionCase& c : cases::fp8_query_cases()) all.push_back(c);
  for (const AttentionCase& given : all) {
    if (std::find(kCases.begin(), kCases.end(), given.name) == kCases.end()) continue;
    const AttentionCase c = emulator::on_arch(given, GetParam());
    const Problem p(c);
    cases::Outputs out = execute(p, schedule_of(GetParam(), p), 0xff);
    EXPECT_TRUE(cases::matches(p, cases::reference(p), out)) << c.name;
    run_cases.insert(*std::find(kCases.begin(), kCases.end(), given.name));
  }
  EXPECT_EQ(run_cases.size(), kCases.size());
}

INSTANTIATE_TEST_SUITE_P(Ptx, OlderChips, testing::Values(75, 80, 89),
                         [](const auto& info) { return fmt::format("compute_{}", info.param); });

/// Bits do not depend on what cannot matter.
TEST(AttentionCudaInvariance, RepeatPlacementWorkspaceAndUnusedMemory) {
  GIRIH_NEEDS_GPU();
  for (const char* family : kFamilies) {
    for (const std::string_view l : {"mixed", "single_decode", "prefill"}) {
      SCOPED_TRACE(fmt::format("{} {}", family, l));
      const ScheduleOptions options{.num_units = 0, .num_sms = 0, .family = family};
      const AttentionCase c = cases::make_case("invariance", cases::make_spec(8, 2, 128), cases::lengths(l));
      const Problem p(c);
      const auto bits = execute(p, options).all_bits();
      for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(bits, execute(p, options).all_bits()) << "repeat " << repeat;
      EXPECT_EQ(bits, execute(p, options, 0).all_bits()) << "workspace of zeros";
      const Problem moved(c, {.poison = std::byte{0xff}, .placement = 99});
      EXPECT_EQ(bits, execute(moved, options).all_bits()) << "other pages";
      const Problem zeros(c, {.poison = std::byte{0}, .placement = 1});
      EXPECT_EQ(bits, execute(zeros, options).all_bits()) << "unused memory of zeros";
    }
  }
}

/// batch_invariant: a request's rows have the same bits alone and in company, on all multiprocessors or on few.
TEST(AttentionCudaInvariance, BatchInvariantRowsHaveTheSameBitsEverywhere) {
  GIRIH_NEEDS_GPU();
  const std::vector<std::int64_t> q = {1, 4, 1, 60, 2, 1};
  const std::vector<std::int64_t> kv = {9000, 90, 3, 130, 5000, 2048};
  const auto batch_of = [&](const std::vector<std::int64_t>& ids) {
    cases::Lengths l{"batch", {}, {}};
    for (const std::int64_t id : ids) {
      l.q.push_back(q[static_cast<std::size_t>(id)]);
      l.kv.push_back(kv[static_cast<std::size_t>(id)]);
    }
    AttentionCase c = cases::make_case("batch", cases::make_spec(8, 2, 128), l);
    c.spec.batch_invariant = true;
    c.data_id = ids;
    return c;
  };
  const std::vector<std::vector<std::int64_t>> batches{{0}, {1}, {2}, {3}, {4}, {5}, {0, 1, 2, 3, 4, 5}, {4, 2, 0, 5, 3, 1}, {3, 3, 0}};
  for (const char* family : kFamilies) {
    std::array<std::vector<std::vector<std::byte>>, 6> seen;
    for (const std::vector<std::int64_t>& ids : batches) {
      const Problem p(batch_of(ids));
      for (const int sms : {0, 3}) {
        const cases::Outputs out = execute(p, {.num_units = 0, .num_sms = sms, .family = family});
        for (std::size_t r = 0; r < ids.size(); ++r) {
          std::vector<std::vector<std::byte>> rows;
          for (std::int64_t t = p.qo_indptr[r]; t < p.qo_indptr[r + 1]; ++t) rows.push_back(out.row_bits(t));
          auto& known = seen[static_cast<std::size_t>(ids[r])];
          if (known.empty()) known = rows;
          EXPECT_EQ(known, rows) << family << ": request " << ids[r] << " in a batch of " << ids.size() << ", " << sms << " SMs";
        }
      }
    }
  }
}

}  // namespace
}  // namespace girih::cuda_test
