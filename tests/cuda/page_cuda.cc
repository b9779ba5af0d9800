// The cache operators and merges on the GPU against the CPU backend on the same data; append, upload and run as one graph; and pages beyond
// 2^31 elements and 2^32 bytes of a pool.
#include <cmath>
#include <random>

#include "device.h"
#include "girih/error.h"
#include "girih/page.h"

namespace girih::cuda_test {
namespace {

const Context& cpu() {
  static const Context context(ContextOptions{.device = {}, .num_workers = 1});
  return context;
}

constexpr std::int64_t kPages = 40, kPageSize = 16, kHeads = 8;

std::vector<std::byte> random_rows(DType type, std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(static_cast<std::size_t>(bytes(type, n)));
  for (std::int64_t i = 0; i < n; ++i)
    ref::store_code(out.data(), type, i, bits(type) / 8, ref::encode(type, std::normal_distribution<double>()(random)));
  return out;
}

/// A plane of [page, token, head, dim] and its scales.
struct PlaneMemory {
  PlaneMemory(DType type, ScaleGranularity granularity, std::int64_t dim) {
    plane.dtype = type;
    plane.head_byte_stride = bytes(type, dim);
    plane.token_byte_stride = plane.head_byte_stride * kHeads;
    plane.page_byte_stride = plane.token_byte_stride * kPageSize;
    data.assign(static_cast<std::size_t>(plane.page_byte_stride * kPages), std::byte{0xff});
    plane.scales.granularity = granularity;
    if (granularity == ScaleGranularity::none) return;
    const std::int64_t item = granularity == ScaleGranularity::block ? (dim + 15) / 16 : 4;
    plane.scales.head_byte_stride = item;
    plane.scales.token_byte_stride = item * kHeads;
    plane.scales.page_byte_stride = plane.scales.token_byte_stride * kPageSize;
    scales.assign(static_cast<std::size_t>(plane.scales.page_byte_stride * kPages), std::byte{0});
    for (std::size_t h = 0; h < static_cast<std::size_t>(kHeads) && granularity != ScaleGranularity::block; ++h) {
      const float scale = 0.02F * static_cast<float>(h + 1);
      std::memcpy(scales.data() + 4 * h, &scale, 4);
    }
  }
  KvPlane view(void* at, void* scales_at) const {
    KvPlane p = plane;
    p.data = at;
    if (!scales.empty()) p.scales.data = scales_at;
    return p;
  }
  KvPlane plane{};
  std::vector<std::byte> data, scales;
};

struct Target {
  DType type;
  ScaleGranularity granularity;
};

TEST(PageCuda, AppendWritesTheBytesOfTheCpu) {
  GIRIH_NEEDS_GPU();
  Context& context = *gpu().context;
  const std::vector<std::int64_t> append_indptr{0, 1, 1, 70, 75}, kv_len{33, 10, 100, 5}, kv_indptr{0, 3, 4, 11, 12};
  const std::vector<std::int32_t> kv_indices{31, 2, 17, 5, 39, 0, 1, 8, 33, 21, 12, 30};
  AppendBatch batch;
  batch.append_indptr = append_indptr;
  batch.kv_len = kv_len;
  batch.kv_indices = kv_indices;
  batch.kv_indptr = kv_indptr;
  const Target targets[] = {
      {DType::f32, ScaleGranularity::none},        {DType::f16, ScaleGranularity::none},        {DType::bf16, ScaleGranularity::none},
      {DType::e4m3, ScaleGranularity::tensor},     {DType::e4m3, ScaleGranularity::head},       {DType::e4m3, ScaleGranularity::token_head},
      {DType::e5m2, ScaleGranularity::head},       {DType::e5m2, ScaleGranularity::token_head}, {DType::i8, ScaleGranularity::tensor},
      {DType::i8, ScaleGranularity::token_head},   {DType::nvfp4, ScaleGranularity::block},     {DType::mxfp4, ScaleGranularity::block},
      {DType::e4m3, ScaleGranularity::token_group}};
  for (const DType source : {DType::bf16, DType::f32}) {
    for (const Target& target : targets) {
      for (const std::int64_t dim : {128, 40}) {
        if (target.granularity == ScaleGranularity::token_group && dim % kScaleGroup != 0) continue;
        SCOPED_TRACE(fmt::format("{} to {} scale {} dim {}", name(source), name(target.type), static_cast<int>(target.granularity), dim));
        const std::vector<std::byte> k = random_rows(source, 75 * kHeads * dim, 1);
        PlaneMemory want(target.type, target.granularity, dim);
        PlaneMemory got = want;
        KvStore store;
        store.page_size = kPageSize;
        store.num_pages = kPages;
        DeviceMemory memory;
        store.k = got.view(memory.add(got.data.data(), std::ssize(got.data)), memory.add(got.scales.data(), std::ssize(got.scales)));
        TensorView rows(const_cast<std::byte*>(memory.add(k.data(), std::ssize(k))), source, {75, kHeads, dim}, context.device());
        append(context, store, batch, rows, {}, {});
        memory.fetch(got.data.data(), std::ssize(got.data));
        if (!got.scales.empty()) memory.fetch(got.scales.data(), std::ssize(got.scales));
        store.k = want.view(want.data.data(), want.scales.data());
        append(cpu(), store, batch, TensorView(const_cast<std::byte*>(k.data()), source, {75, kHeads, dim}), {}, {});
        EXPECT_TRUE(want.data == got.data);
        EXPECT_TRUE(want.scales == got.scales);
      }
    }
  }
}

TEST(PageCuda, CopyPagesCopiesWhatTheCpuCopies) {
  GIRIH_NEEDS_GPU();
  for (const Target& target : {Target{DType::bf16, ScaleGranularity::none}, Target{DType::i8, ScaleGranularity::token_head},
                               Target{DType::nvfp4, ScaleGranularity::block}}) {
    PlaneMemory want(target.type, target.granularity, 72);
    std::mt19937_64 random(3);
    for (auto* all : {&want.data, &want.scales}) {
      for (std::byte& b : *all) b = static_cast<std::byte>(random());
    }
    PlaneMemory got = want;
    KvStore store;
    store.page_size = kPageSize;
    store.num_pages = kPages;
    const std::vector<PageCopy> copies{{0, 39}, {7, 1}, {7, 2}, {20, 20}, {38, 3}};
    DeviceMemory memory;
    store.k = got.view(memory.add(got.data.data(), std::ssize(got.data)), memory.add(got.scales.data(), std::ssize(got.scales)));
    copy_pages(*gpu().context, store, kHeads, 72, 0, 0, copies);
    memory.fetch(got.data.data(), std::ssize(got.data));
    if (!got.scales.empty()) memory.fetch(got.scales.data(), std::ssize(got.scales));
    store.k = want.view(want.data.data(), want.scales.data());
    copy_pages(cpu(), store, kHeads, 72, 0, 0, copies);
    EXPECT_TRUE(want.data == got.data) << name(target.type);
    EXPECT_TRUE(want.scales == got.scales) << name(target.type);
  }
}

/// Heads and dims by which libraries have sized blocks of 1536 or 2048 threads, odd ones, and every form of merge.
TEST(MergeCuda, MergesAreThoseOfTheCpu) {
  GIRIH_NEEDS_GPU();
  Context& context = *gpu().context;
  const Device device = context.device();
  for (const std::int64_t heads : {1, 65, 96, 97, 128, 200}) {
    for (const std::int64_t dim : {128, 256, 33}) {
      constexpr std::int64_t kRows = 7, kStates = 4;
      std::mt19937_64 random(static_cast<std::uint64_t>(heads * 1000 + dim));
      std::vector<float> v(static_cast<std::size_t>(kRows * kStates * heads * dim)), s(static_cast<std::size_t>(kRows * kStates * heads));
      for (float& x : v) x = std::normal_distribution<float>()(random);
      for (float& x : s) x = random() % 4 == 0 ? -INFINITY : random() % 9 == 0 ? -1e30F : std::normal_distribution<float>()(random);
      std::vector<float> v_want(static_cast<std::size_t>(kRows * heads * dim)), s_want(static_cast<std::size_t>(kRows * heads));
      std::vector<float> v_got(v_want.size(), NAN), s_got(s_want.size(), NAN);
      DeviceMemory memory;
      float* g_v = memory.add(v.data(), std::ssize(v) * 4);
      float* g_s = memory.add(s.data(), std::ssize(s) * 4);
      float* g_v_out = memory.add(v_got.data(), std::ssize(v_got) * 4);
      float* g_s_out = memory.add(s_got.data(), std::ssize(s_got) * 4);
      const TensorView v_out(g_v_out, DType::f32, {kRows, heads, dim}, device), s_out(g_s_out, DType::f32, {kRows, heads}, device);
      const TensorView v_cpu(v_want.data(), DType::f32, {kRows, heads, dim}), s_cpu(s_want.data(), DType::f32, {kRows, heads});
      const auto compare = [&](const char* what) {
        memory.fetch(v_got.data(), std::ssize(v_got) * 4);
        memory.fetch(s_got.data(), std::ssize(s_got) * 4);
        const auto near = [](float a, float b) { return a == b || std::fabs(a - b) <= 2e-6F * (1 + std::fabs(b)); };
        for (std::size_t i = 0; i < v_want.size(); ++i)
          ASSERT_TRUE(near(v_got[i], v_want[i])) << what << ' ' << heads << ' ' << dim << ' ' << i;
        for (std::size_t i = 0; i < s_want.size(); ++i)
          ASSERT_TRUE(near(s_got[i], s_want[i])) << what << ' ' << heads << ' ' << dim << ' ' << i;
      };
      merge_states(context, TensorView(g_v, DType::f32, {kRows, kStates, heads, dim}, device),
                   TensorView(g_s, DType::f32, {kRows, kStates, heads}, device), v_out, s_out);
      merge_states(cpu(), TensorView(v.data(), DType::f32, {kRows, kStates, heads, dim}),
                   TensorView(s.data(), DType::f32, {kRows, kStates, heads}), v_cpu, s_cpu);
      compare("merge_states");
      const std::vector<std::int64_t> indptr{0, 0, 3, 4, 10, 11, 20, 28};
      merge_states_varlen(context, TensorView(g_v, DType::f32, {kRows * kStates, heads, dim}, device),
                          TensorView(g_s, DType::f32, {kRows * kStates, heads}, device), indptr, v_out, s_out, true);
      merge_states_varlen(cpu(), TensorView(v.data(), DType::f32, {kRows * kStates, heads, dim}),
                          TensorView(s.data(), DType::f32, {kRows * kStates, heads}), indptr, v_cpu, s_cpu, true);
      compare("merge_states_varlen");
      merge_state(context, TensorView(g_v, DType::f32, {kRows, heads, dim}, device), TensorView(g_s, DType::f32, {kRows, heads}, device),
                  v_out, s_out, v_out, s_out);
      merge_state(cpu(), TensorView(v.data(), DType::f32, {kRows, heads, dim}), TensorView(s.data(), DType::f32, {kRows, heads}), v_cpu,
                  s_cpu, v_cpu, s_cpu);
      compare("merge_state in place");
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

/// Upload, append and run as one graph: the keys that are attended are those that the same replay has appended.
TEST(PageCuda, UploadAppendRunIsOneGraph) {
  GIRIH_NEEDS_GPU();
  Context& context = *gpu().context;
  const cuda::CurrentDevice current(*context.cuda().device);
  const cuda::Driver& driver = gpu().driver();
  const Device device = context.device();
  constexpr std::int64_t kDim = 64, kTokens = 24;
  AttentionSpec spec = cases::make_spec(static_cast<int>(kHeads), static_cast<int>(kHeads), kDim);
  const AttentionLimits limits{.max_tokens = kTokens, .max_requests = 4, .max_kv_len = 128};
  const Schedule schedule = girih::schedule(context, spec, limits);
  Plan plan(schedule);
  DevicePlan on_device(context, schedule);
  const DeviceWorkspace workspace(schedule.workspace_bytes(), 0xff);
  const std::vector<std::int32_t> kv_indices{3, 9, 1, 0, 14, 22, 7, 8};
  std::vector<std::byte> rows = random_rows(DType::bf16, kTokens * kHeads * kDim, 7);
  PlaneMemory k(DType::bf16, ScaleGranularity::none, kDim), v(DType::bf16, ScaleGranularity::none, kDim);
  k.data = random_rows(DType::bf16, std::ssize(k.data) / 2, 8);
  v.data = random_rows(DType::bf16, std::ssize(v.data) / 2, 9);
  std::vector<float> o(static_cast<std::size_t>(kTokens * kHeads * kDim)), lse(static_cast<std::size_t>(kTokens * kHeads));
  DeviceMemory memory;
  const TensorView new_rows(memory.add(rows.data(), std::ssize(rows)), DType::bf16, {kTokens, kHeads, kDim}, device);
  SegmentData data;
  data.store.page_size = kPageSize;
  data.store.num_pages = kPages;
  data.store.k = k.view(memory.add(k.data.data(), std::ssize(k.data)), nullptr);
  data.store.v = v.view(memory.add(v.data.data(), std::ssize(v.data)), nullptr);
  data.kv_indices = {memory.add(kv_indices.data(), std::ssize(kv_indices) * 4), kv_indices.size()};
  const TensorView o_view(memory.add(o.data(), std::ssize(o) * 4), DType::f32, {kTokens, kHeads, kDim}, device);
  const TensorView lse_view(memory.add(lse.data(), std::ssize(lse) * 4), DType::f32, {kTokens, kHeads}, device);
  const cuda::Stream stream = driver.create_stream();
  const AttentionArgs args{.q = new_rows,
                           .q_rope = {},
                           .segments = {&data, 1},
                           .params = {},
                           .o = o_view,
                           .lse = lse_view,
                           .workspace = workspace.span(),
                           .stream = stream,
                           .device_plan = &on_device};
  struct Step {
    std::vector<std::int64_t> qo_indptr, kv_len, kv_indptr;
  };
  const std::vector<Step> steps{{{0, 1}, {20}, {0, 2}}, {{0, 1, 6}, {21, 40}, {0, 2, 5}}, {{0, 20, 21, 24}, {20, 33, 3}, {0, 2, 5, 6}}};
  const auto update = [&](Plan& p, const Step& step) {
    KvSegment segment;
    segment.page_size = kPageSize;
    segment.kv_indptr = step.kv_indptr;
    segment.kv_len = step.kv_len;
    p.update({.qo_indptr = step.qo_indptr, .segments = {&segment, 1}});
  };
  update(plan, steps[0]);
  on_device.upload(plan, stream);
  append(context, on_device, data.store, data.kv_indices, new_rows, {}, new_rows, 0, stream);  // loads the kernel; writes what step 0 will
  driver.synchronize(stream);
  driver.begin_capture(stream);
  on_device.upload(plan, stream);
  append(context, on_device, data.store, data.kv_indices, new_rows, {}, new_rows, 0, stream);
  run(context, schedule, plan, args);
  const cuda::Graph graph = driver.end_capture(stream);
  const cuda::GraphExec exec = driver.instantiate(graph);
  driver.destroy_graph(graph);

  // The CPU does the same step by step.
  const Schedule host_schedule = girih::schedule(cpu(), spec, limits);
  Plan host_plan(host_schedule);
  cases::Workspace host_workspace(host_schedule.workspace_bytes(), cases::kNanPattern);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    update(plan, steps[i]);
    on_device.stage(plan);
    driver.launch_graph(exec, stream);
    driver.synchronize(stream);
    memory.fetch(o.data(), std::ssize(o) * 4);
    const std::int64_t tokens = steps[i].qo_indptr.back();
    KvStore store = data.store;
    store.k = k.view(k.data.data(), nullptr);
    store.v = v.view(v.data.data(), nullptr);
    AppendBatch batch;
    batch.append_indptr = steps[i].qo_indptr;
    batch.kv_len = steps[i].kv_len;
    batch.kv_indices = kv_indices;
    batch.kv_indptr = steps[i].kv_indptr;
    const TensorView host_rows(rows.data(), DType::bf16, {tokens, kHeads, kDim});
    append(cpu(), store, batch, host_rows, {}, host_rows);
    update(host_plan, steps[i]);
    std::vector<float> want(static_cast<std::size_t>(tokens * kHeads * kDim)), want_lse(static_cast<std::size_t>(tokens * kHeads));
    const SegmentData host_data{.store = store, .kv_indices = kv_indices, .page_pos = {}};
    run(cpu(), host_schedule, host_plan,
        {.q = host_rows,
         .q_rope = {},
         .segments = {&host_data, 1},
         .params = {},
         .o = TensorView(want.data(), DType::f32, {tokens, kHeads, kDim}),
         .lse = TensorView(want_lse.data(), DType::f32, {tokens, kHeads}),
         .workspace = host_workspace.span()});
    for (std::size_t j = 0; j < want.size(); ++j) ASSERT_NEAR(o[j], want[j], 0.02) << "step " << i << " element " << j;
  }
  driver.destroy_graph_exec(exec);
  driver.destroy(stream);
}

/// The same keys on low pages and on pages beyond 2^31 elements and 2^32 bytes: the same bits. Other strides: emulated_memory_test.cc.
TEST(AddressCuda, C01_PagesBeyondThirtyTwoBits) {
  GIRIH_NEEDS_GPU();
  Context& context = *gpu().context;
  constexpr std::int64_t kFarPages = 270000, kPageTokens = 32, kLatent = 512;
  constexpr std::int64_t kPageBytes = kPageTokens * kLatent * 2;  // 16384 elements: 2^31 at page 131072, 2^32 at 262144
  cuda::DeviceBuffer pool;
  try {
    pool = cuda::DeviceBuffer(context.cuda().device, kFarPages * kPageBytes);
  } catch (const Error& error) {
    if (error.code() != Code::out_of_memory) throw;
    GTEST_SKIP() << "no GPU memory for a pool of 9 GB";
  }
  AttentionSpec spec = cases::make_spec(8, 1, kLatent);
  spec.v_is_k = true;
  const std::int64_t kv_len = 5 * kPageTokens - 3;
  const std::vector<std::byte> keys = random_rows(DType::bf16, 5 * kPageTokens * kLatent, 1);
  const std::vector<std::byte> q = random_rows(DType::bf16, 8 * kLatent, 2);
  std::vector<std::vector<std::byte>> results;
  for (const char* family : {"", "floor"}) {
    const Schedule schedule = girih::schedule(context, spec, {.max_tokens = 1, .max_requests = 1, .max_kv_len = 512},
                                              {.num_units = 0, .num_sms = 0, .family = family});
    Plan plan(schedule);
    const std::vector<std::int64_t> qo_indptr{0, 1}, kv_indptr{0, 5}, lens{kv_len};
    KvSegment segment;
    segment.page_size = kPageTokens;
    segment.kv_indptr = kv_indptr;
    segment.kv_len = lens;
    plan.update({.qo_indptr = qo_indptr, .segments = {&segment, 1}});
    DevicePlan on_device(context, schedule);
    on_device.upload(plan);
    const DeviceWorkspace workspace(schedule.workspace_bytes(), 0xff);
    results.clear();
    for (const std::vector<std::int32_t>& pages :
         {std::vector<std::int32_t>{0, 1, 2, 3, 4}, {131071, 131072, 131073, 131074, 140000}, {262143, 262144, 262145, 269998, 269999}}) {
      const cuda::CurrentDevice current(*context.cuda().device);
      for (std::size_t i = 0; i < pages.size(); ++i) {
        gpu().driver().copy_to_device(pool.pointer() + static_cast<cuda::Pointer>(pages[i] * kPageBytes), keys.data() + i * kPageBytes,
                                      kPageBytes, nullptr);
      }
      gpu().driver().synchronize(nullptr);
      DeviceMemory memory;
      SegmentData data;
      data.store.page_size = kPageTokens;
      data.store.num_pages = kFarPages;
      data.store.k.data = pool.data();
      data.store.k.page_byte_stride = kPageBytes;
      data.store.k.token_byte_stride = kLatent * 2;
      data.store.k.head_byte_stride = kLatent * 2;
      data.kv_indices = {memory.add(pages.data(), std::ssize(pages) * 4), pages.size()};
      std::vector<std::byte> o(8 * kLatent * 4), lse(8 * 4);
      const Device device = context.device();
      run(context, schedule, plan,
          {.q = TensorView(memory.add(q.data(), std::ssize(q)), DType::bf16, {1, 8, kLatent}, device),
           .q_rope = {},
           .segments = {&data, 1},
           .params = {},
           .o = TensorView(memory.add(o.data(), std::ssize(o)), DType::f32, {1, 8, kLatent}, device),
           .lse = TensorView(memory.add(lse.data(), std::ssize(lse)), DType::f32, {1, 8}, device),
           .workspace = workspace.span(),
           .stream = nullptr,
           .device_plan = &on_device});
      memory.fetch(o.data(), std::ssize(o));
      results.push_back(o);
    }
    EXPECT_TRUE(results[0] == results[1]) << family << ": pages beyond 2^31 elements";
    EXPECT_TRUE(results[0] == results[2]) << family << ": pages beyond 2^32 elements";
    EXPECT_NE(results[0], std::vector<std::byte>(results[0].size()));
  }
}

}  // namespace
}  // namespace girih::cuda_test
