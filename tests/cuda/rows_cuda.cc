// The row operators on the GPU: every case of cases/rows.h and rope.h against the reference; rotation and append by a plan as one graph.
#include "cases/rope.h"
#include "cases/rows.h"
#include "device.h"

namespace girih::cuda_test {
namespace {

/// Runs a problem whose tensors are on the device meanwhile.
template <typename Problem>
void run_on_gpu(Problem& p, const std::function<void(Problem&)>& run) {
  DeviceMemory memory;
  std::vector<std::pair<cases::RowsTensor*, void*>> homes;
  for (cases::RowsTensor* t : p.tensors()) {
    std::byte* host = t->aligned();
    auto* on_device = memory.add(host, t->size());
    homes.emplace_back(t, t->view.data);
    t->view.data = on_device + (static_cast<std::byte*>(t->view.data) - host);
    t->view.device = gpu().context->device();
  }
  run(p);
  for (const auto& [t, home] : homes) {
    memory.fetch(t->aligned(), t->size());
    t->view.data = home;
  }
}

class RowsCudaCases : public testing::TestWithParam<cases::RowsCase> {};
TEST_P(RowsCudaCases, MatchTheReference) {
  GIRIH_NEEDS_GPU();
  cases::RowsProblem p(GetParam());
  run_on_gpu<cases::RowsProblem>(p, [](cases::RowsProblem& q) { q.run(*gpu().context); });
  EXPECT_TRUE(p.matches());
}
INSTANTIATE_TEST_SUITE_P(Rows, RowsCudaCases, testing::ValuesIn(cases::rows_cases()), [](const auto& info) { return info.param.name; });

class RopeCudaCases : public testing::TestWithParam<cases::RopeCase> {};
TEST_P(RopeCudaCases, MatchTheReference) {
  GIRIH_NEEDS_GPU();
  cases::RopeProblem p(GetParam());
  run_on_gpu<cases::RopeProblem>(p, [](cases::RopeProblem& q) { q.run(*gpu().context); });
  EXPECT_TRUE(p.matches());
}
INSTANTIATE_TEST_SUITE_P(Rope, RopeCudaCases, testing::ValuesIn(cases::rope_cases()), [](const auto& info) { return info.param.name; });

/// Many rows: persistent blocks that go round, and as many as leave some without work.
TEST(RowsCuda, ManyRows) {
  GIRIH_NEEDS_GPU();
  for (const std::int64_t rows : {131, 5003}) {
    for (cases::RowsCase c : {cases::RowsCase{.name = "rms", .dim = 4096, .residual = true, .residual_out = true},
                              cases::RowsCase{.name = "silu", .op = cases::RowsOp::activate, .dim = 1536},
                              cases::RowsCase{.name = "token", .out = DType::e4m3, .dim = 2880, .scale = QuantScale::token}}) {
      c.rows = rows / (c.dim / 512);
      cases::RowsProblem p(c);
      run_on_gpu<cases::RowsProblem>(p, [](cases::RowsProblem& q) { q.run(*gpu().context); });
      EXPECT_TRUE(p.matches()) << rows;
    }
  }
}

/// Upload, rotate and append as one graph.
TEST(RowsCuda, RopeAppendByPlanIsCaptured) {
  GIRIH_NEEDS_GPU();
  Context& context = *gpu().context;
  const cuda::CurrentDevice current(*context.cuda().device);
  const cuda::Driver& driver = gpu().driver();
  cases::RopeProblem p({.name = "append_bf16", .append = true});
  AttentionSpec spec = cases::make_spec(static_cast<int>(p.c.q_heads), static_cast<int>(p.c.k_heads), static_cast<int>(p.c.dim));
  const Schedule schedule = girih::schedule(context, spec, {.max_tokens = p.c.rows, .max_requests = 3, .max_kv_len = 64});
  Plan plan(schedule);
  DevicePlan on_device(context, schedule);
  KvSegment segment;
  segment.page_size = p.c.page_size;
  const auto update = [&](const std::vector<std::int64_t>& indptr, const std::vector<std::int64_t>& len,
                          const std::vector<std::int64_t>& pages) {
    segment.kv_indptr = pages;
    segment.kv_len = len;
    plan.update({.qo_indptr = indptr, .segments = {&segment, 1}});
  };
  DeviceMemory pages;
  const std::int32_t* g_pages = pages.add(p.batch.kv_indices.data(), std::ssize(p.batch.kv_indices) * 4);
  run_on_gpu<cases::RopeProblem>(p, [&](cases::RopeProblem& q) {
    const cuda::Stream stream = driver.create_stream();
    const std::span<const std::int32_t> indices(g_pages, q.batch.kv_indices.size());
    const KvStore store = q.store();
    const RopeAppendArgs args = q.append_args();
    update(q.batch.append_indptr, q.batch.kv_len, q.batch.kv_indptr);
    on_device.upload(plan, stream);
    driver.synchronize(stream);
    rope_append(context, on_device, store, indices, args, 0, stream);  // loads the kernel
    driver.synchronize(stream);
    driver.begin_capture(stream);
    on_device.upload(plan, stream);
    rope_append(context, on_device, store, indices, args, 0, stream);
    const cuda::Graph graph = driver.end_capture(stream);
    const cuda::GraphExec exec = driver.instantiate(graph);
    driver.destroy_graph(graph);
    on_device.stage(plan);
    driver.launch_graph(exec, stream);
    driver.synchronize(stream);
    driver.destroy_graph_exec(exec);
    driver.destroy(stream);
  });
  EXPECT_TRUE(p.matches());
}

}  // namespace
}  // namespace girih::cuda_test
