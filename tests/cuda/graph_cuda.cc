// Captured graphs: one graph replayed with many plans of other sizes, by eager and by captured uploads; and the rules of DevicePlan.
#include <random>

#include "device.h"
#include "girih/error.h"

namespace girih::cuda_test {
namespace {

using cases::AttentionCase;
using cases::Problem;

/// Captures what `body` queues on `stream`.
template <typename Body>
cuda::GraphExec capture(cuda::Stream stream, Body body) {
  const cuda::Driver& driver = gpu().driver();
  driver.begin_capture(stream);
  body();
  const cuda::Graph graph = driver.end_capture(stream);
  const cuda::GraphExec exec = driver.instantiate(graph);
  driver.destroy_graph(graph);
  return exec;
}

/// A problem whose pool and tensors are those of its largest batch, and batches of its first requests with other lengths.
struct Family {
  explicit Family(std::uint64_t seed, bool decode) : engine(seed), decode_only(decode) {}

  /// Lengths within the first batch's, so that the same memory serves: what is planned is a prefix of each request.
  PlanInfo update(Plan& plan, const Problem& p, std::vector<std::int64_t>& q_len, std::vector<std::int64_t>& kv_len) {
    const std::size_t most = p.c.q_len.size();
    const std::size_t n = 1 + engine() % most;
    q_len.clear();
    kv_len.clear();
    std::vector<std::int64_t> qo_indptr = {0};
    std::vector<std::int64_t> kv_indptr = {0};
    for (std::size_t r = 0; r < n; ++r) {
      q_len.push_back(decode_only ? 1 : 1 + static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(p.c.q_len[r])));
      kv_len.push_back(static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(p.c.segments[0].kv_len[r] + 1)));
      qo_indptr.push_back(qo_indptr.back() + q_len.back());
    }
    KvSegment segment = p.segments[0];
    segment.kv_len = kv_len;
    std::vector<std::int64_t> indptr(p.memory[0].kv_indptr.begin(), p.memory[0].kv_indptr.begin() + static_cast<std::ptrdiff_t>(n) + 1);
    segment.kv_indptr = indptr;
    return plan.update({.qo_indptr = qo_indptr, .segments = {&segment, 1}});
  }

  std::mt19937_64 engine;
  bool decode_only;
};

/// The same batch computed without a graph.
std::vector<std::vector<std::byte>> eager_bits(const Schedule& schedule, const Plan& plan, DeviceProblem& out) {
  Context& context = *gpu().context;
  DevicePlan on_device(context, schedule);
  on_device.upload(plan);
  const DeviceWorkspace workspace(schedule.workspace_bytes(), 0xff);
  out.clear_outputs();
  run(context, schedule, plan, out.args(on_device, workspace.span()));
  return out.outputs().all_bits();
}

void check_replays(bool decode, bool captured_upload, std::string_view family) {
  Context& context = *gpu().context;
  const cuda::CurrentDevice current(*context.cuda().device);
  const cuda::Driver& driver = gpu().driver();
  cases::Lengths l{"graph", {}, {}};
  for (int r = 0; r < 12; ++r) {
    l.q.push_back(decode ? 1 : 1 + (r * 37) % 90);
    l.kv.push_back(1 + (r * 997) % 3000);
  }
  const Problem p(cases::make_case("graph", cases::make_spec(8, 2, 128), l));
  AttentionLimits limits = p.limits;
  if (decode) limits.max_qo_len = 1;
  const Schedule schedule = girih::schedule(context, p.c.spec, limits, {.num_units = 0, .num_sms = 0, .family = std::string(family)});
  Plan plan(schedule);
  DevicePlan on_device(context, schedule);
  const DeviceWorkspace workspace(schedule.workspace_bytes(), 0xff);
  DeviceProblem problem(p);
  DeviceProblem eager(p);
  plan.update(p.batch);
  const cuda::Stream stream = driver.create_stream();
  if (!captured_upload) on_device.upload(plan, stream);
  driver.synchronize(stream);
  const cuda::GraphExec graph = capture(stream, [&] {
    if (captured_upload) on_device.upload(plan, stream);
    run(context, schedule, plan, problem.args(on_device, workspace.span(), stream));
  });
  driver.launch_graph(graph, stream);
  driver.synchronize(stream);
  cases::Outputs& first = problem.outputs();
  first.bf16_weights = true;
  EXPECT_TRUE(cases::matches(p, cases::reference(p), first));
  Family batches(decode ? 3 : 4, decode);
  std::vector<std::int64_t> q_len, kv_len;
  for (int i = 0; i < 30; ++i) {
    batches.update(plan, p, q_len, kv_len);
    problem.clear_outputs();
    if (captured_upload)
      on_device.stage(plan);
    else
      on_device.upload(plan, stream);
    driver.launch_graph(graph, stream);
    driver.synchronize(stream);
    const auto got = problem.outputs().all_bits();
    EXPECT_EQ(got, eager_bits(schedule, plan, eager)) << "replay " << i << " of " << q_len.size() << " requests";
    if (testing::Test::HasFailure()) break;
  }
  driver.destroy_graph_exec(graph);
  driver.destroy(stream);
}

TEST(Graph, OneGraphServesManyDecodeBatches) {
  GIRIH_NEEDS_GPU();
  for (const char* family : {"", "floor"}) check_replays(true, false, family);
}

TEST(Graph, OneGraphServesManyMixedBatches) {
  GIRIH_NEEDS_GPU();
  for (const char* family : {"", "floor"}) check_replays(false, false, family);
}

TEST(Graph, CapturedUploadsReadWhatWasStaged) {
  GIRIH_NEEDS_GPU();
  check_replays(true, true, "");
  check_replays(false, true, "");
}

TEST(Single, OneCallForOneRequest) {
  GIRIH_NEEDS_GPU();
  const Problem p(cases::make_case("single", cases::make_spec(8, 2, 128), cases::lengths("single_prefill"), cases::Layout::ragged));
  const DevicePlan unused(*gpu().context, girih::schedule(*gpu().context, p.c.spec, p.limits));
  DeviceProblem problem(p);
  const AttentionArgs args = problem.args(unused, {});
  const KvStore& store = args.segments[0].store;
  const auto tensor = [&](const KvPlane& plane) {
    return TensorView(const_cast<void*>(plane.data), plane.dtype, {store.num_pages, 2, 128},
                      {plane.token_byte_stride / 2, plane.head_byte_stride / 2, 1}, gpu().context->device());
  };
  single_attention(*gpu().context, p.c.spec, args.q, tensor(store.k), tensor(store.v), args.o, args.lse);
  problem.outputs().bf16_weights = true;
  EXPECT_TRUE(cases::matches(p, cases::reference(p), problem.outputs()));
}

/// Plans in flight without a wait between them, each with its own output.
TEST(Graph, PlansInFlightKeepTheirBatches) {
  GIRIH_NEEDS_GPU();
  Context& context = *gpu().context;
  const cuda::CurrentDevice current(*context.cuda().device);
  std::vector<std::unique_ptr<Problem>> problems;
  std::vector<std::unique_ptr<DeviceProblem>> on_gpu;
  for (int i = 0; i < 12; ++i) {
    cases::Lengths l{"flight", {}, {}};
    for (int r = 0; r <= i; ++r) {
      l.q.push_back(1);
      l.kv.push_back(1 + (r * 131 + i * 17) % 400);
    }
    problems.push_back(std::make_unique<Problem>(cases::make_case("flight", cases::make_spec(8, 2, 128), l)));
    on_gpu.push_back(std::make_unique<DeviceProblem>(*problems.back()));
  }
  const AttentionLimits limits{.max_tokens = 16, .max_requests = 16, .max_kv_len = 512};
  const Schedule schedule = girih::schedule(context, problems[0]->c.spec, limits);
  Plan plan(schedule);
  DevicePlan device_plan(context, schedule);
  const DeviceWorkspace workspace(schedule.workspace_bytes(), 0xff);
  const cuda::Stream stream = gpu().driver().create_stream();
  for (std::size_t i = 0; i < problems.size(); ++i) {
    plan.update(problems[i]->batch);
    device_plan.upload(plan, stream);
    run(context, schedule, plan, on_gpu[i]->args(device_plan, workspace.span(), stream));
  }
  gpu().driver().synchronize(stream);
  for (std::size_t i = 0; i < problems.size(); ++i) {
    cases::Outputs& out = on_gpu[i]->outputs();
    out.bf16_weights = true;
    EXPECT_TRUE(cases::matches(*problems[i], cases::reference(*problems[i]), out)) << i;
  }
  gpu().driver().destroy(stream);
}

template <typename Call>
void expect_refused(Call call, std::string_view text) {
  try {
    call();
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    EXPECT_NE(std::string_view(error.what()).find(text), std::string_view::npos) << error.what();
  }
}

TEST(DevicePlanRules, RefusesWhatWouldReadTheWrongPlace) {
  GIRIH_NEEDS_GPU();
  Context& context = *gpu().context;
  const cuda::CurrentDevice current(*context.cuda().device);
  const Problem p(cases::make_case("rules", cases::make_spec(4, 2, 64), cases::lengths("decode")));
  AttentionLimits limits = p.limits;
  limits.max_tokens = limits.max_requests = limits.max_groups = 64;
  const Schedule schedule = girih::schedule(context, p.c.spec, limits);
  Plan plan(schedule);
  DevicePlan on_device(context, schedule);
  expect_refused([&] { on_device.upload(plan); }, "plan holds no batch yet");
  expect_refused([&] { on_device.stage(plan); }, "no upload of this device plan was captured");
  plan.update(p.batch);
  const DeviceWorkspace workspace(schedule.workspace_bytes(), 0xff);
  DeviceProblem problem(p);
  AttentionArgs args = problem.args(on_device, workspace.span());
  expect_refused([&] { run(context, schedule, plan, args); }, "device_plan holds another batch");
  on_device.upload(plan);
  args.device_plan = nullptr;
  expect_refused([&] { run(context, schedule, plan, args); }, "device_plan is not given");
  args.device_plan = &on_device;
  args.q.device = Device{};
  expect_refused([&] { run(context, schedule, plan, args); }, "q.device=cpu; the schedule is for cuda:0");
  args = problem.args(on_device, workspace.span());
  plan.update(p.batch);
  expect_refused([&] { run(context, schedule, plan, args); }, "device_plan holds another batch");
  on_device.upload(plan);
  run(context, schedule, plan, args);
  problem.outputs().bf16_weights = true;
  EXPECT_TRUE(cases::matches(p, cases::reference(p), problem.outputs()));

  // A plan that needs more than the capture's tensors have.
  const cuda::Stream stream = gpu().driver().create_stream();
  const cuda::GraphExec graph = capture(stream, [&] { run(context, schedule, plan, problem.args(on_device, workspace.span(), stream)); });
  const Problem larger(
      cases::make_case("larger", cases::make_spec(4, 2, 64), cases::Lengths{"", {1, 1, 1, 1, 1, 1, 1}, {1, 2, 3, 4, 5, 6, 7}}));
  plan.update(larger.batch);
  expect_refused([&] { on_device.upload(plan, stream); }, "plan has 7 tokens; a graph was captured with tensors of 6");
  gpu().driver().destroy_graph_exec(graph);
  gpu().driver().destroy(stream);
}

}  // namespace
}  // namespace girih::cuda_test
