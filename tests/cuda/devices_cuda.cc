// Several threads, each with a context of its own, on all GPUs of the machine at once (on one GPU they share it); and tensors of another
// device than the schedule's.
#include <thread>

#include "device.h"
#include "girih/error.h"

namespace girih::cuda_test {
namespace {

using cases::Problem;

/// What one thread does: plans, uploads and runs batches on a stream of its own, again and again.
std::string run_batches(const std::vector<std::unique_ptr<Problem>>& problems, const std::vector<std::vector<ref::RowResult>>& expected,
                        int ordinal) {
  const OnDevice on_device(ordinal);
  Context& context = *gpu().context;
  const cuda::CurrentDevice current(*context.cuda().device);
  const cuda::Stream stream = gpu().driver().create_stream();
  const AttentionLimits limits{.max_tokens = 512, .max_requests = 16, .max_kv_len = 2048};
  const Schedule schedule = girih::schedule(context, problems[0]->c.spec, limits);
  Plan plan(schedule);
  DevicePlan device_plan(context, schedule);
  const DeviceWorkspace workspace(schedule.workspace_bytes(), 0xff);
  std::string wrong;
  for (int repeat = 0; repeat < 8; ++repeat) {
    for (std::size_t i = 0; i < problems.size(); ++i) {
      DeviceProblem on_gpu(*problems[i]);
      plan.update(problems[i]->batch);
      device_plan.upload(plan, stream);
      run(context, schedule, plan, on_gpu.args(device_plan, workspace.span(), stream));
      gpu().driver().synchronize(stream);
      cases::Outputs& out = on_gpu.outputs();
      out.bf16_weights = true;
      const testing::AssertionResult same = cases::matches(*problems[i], expected[i], out);
      if (!same && wrong.empty()) wrong = fmt::format("repeat {} batch {}: {}", repeat, i, same.message());
    }
  }
  gpu().driver().destroy(stream);
  return wrong;
}

TEST(Devices, ThreadsOnAllDevicesAtOnce) {
  GIRIH_NEEDS_GPU();
  const int num_devices = gpu().driver().num_devices();
  std::vector<std::unique_ptr<Problem>> problems;
  std::vector<std::vector<ref::RowResult>> expected;
  for (const std::string_view lengths : {"decode", "mixed", "prefill"}) {
    problems.push_back(std::make_unique<Problem>(cases::make_case("devices", cases::make_spec(8, 2, 128), cases::lengths(lengths))));
    expected.push_back(cases::reference(*problems.back()));
  }
  std::vector<std::string> wrong(static_cast<std::size_t>(std::max(4, 2 * num_devices)));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      try {
        wrong[t] = run_batches(problems, expected, static_cast<int>(t) % num_devices);
      } catch (const std::exception& error) {
        wrong[t] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < wrong.size(); ++t) EXPECT_EQ(wrong[t], "") << "thread " << t << " of " << num_devices << " devices";
}

TEST(Devices, TensorsOfAnotherDeviceAreRefused) {
  GIRIH_NEEDS_GPU();
  if (gpu().driver().num_devices() < 2) GTEST_SKIP() << "one GPU only";
  const Problem p(cases::make_case("devices", cases::make_spec(8, 2, 128), cases::lengths("decode")));
  const Schedule schedule = girih::schedule(*gpu().context, p.c.spec, p.limits);
  Plan plan(schedule);
  plan.update(p.batch);
  DevicePlan on_first(*gpu().context, schedule);
  on_first.upload(plan);
  const DeviceWorkspace workspace(schedule.workspace_bytes(), 0xff);
  DeviceProblem here(p);
  const OnDevice second(1);
  const DeviceProblem elsewhere(p);
  const auto refused = [&](auto call, std::string_view text) {
    try {
      call();
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string_view(error.what()).find(text), std::string_view::npos) << error.what();
    }
  };
  Context first(ContextOptions{.device = {DeviceKind::cuda, 0}});
  refused([&] { run(first, schedule, plan, elsewhere.args(on_first, workspace.span())); }, "device=cuda:1; the schedule is for cuda:0");
  refused([&] { run(*gpu().context, schedule, plan, here.args(on_first, workspace.span())); },
          "context.device=cuda:1; the schedule is for cuda:0");
}

}  // namespace
}  // namespace girih::cuda_test
