// The host side of the CUDA backend against a fake driver (fake_cuda/fake_driver.h): what is uploaded, launched, captured and refused.
// Kernels are compiled by NVRTC; attention launches are only recorded (the emulator's tests run them), the cache operators', merges' and
// sampling's are run.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>

#include "attention/cuda_state.h"
#include "attention/merge_states.cuh"
#include "cuda/runtime.h"
#include "emulator/emulator.h"
#include "fake_cuda/emulated.h"
#include "girih/attention.h"
#include "girih/error.h"
#include "girih/page.h"
#include "girih/sampling.h"
#include "page/copy_pages.cuh"
#include "rows/pipeline.cuh"
#include "sampling/resident_rows.cuh"

namespace girih {
namespace {

using fake_cuda::count;
using fake_cuda::emulate;
using fake_cuda::fake;
using fake_cuda::keep;

// ---------------------------------------------------------------------------------------------------------------- the fake

struct AttentionLaunch {
  std::string name;
  int num_blocks, num_threads;
  bool dependent;
  abi::AttentionParams params;
  std::vector<std::byte> blob;  // as the kernel would have read it
};

std::vector<AttentionLaunch>& launches() {
  static std::vector<AttentionLaunch> all;
  return all;
}

constexpr int kQoHeads = 4, kKvHeads = 2, kDim = 64;

/// As the library shapes a plane of these heads and dims.
constexpr abi::PartConfig append_part(abi::Elem out, abi::Scaling scaling) {
  return {.x = abi::Elem::bf16,
          .weight = abi::Elem::bf16,
          .out = out,
          .dim = kDim,
          .threads = kDim / 8,
          .heads = kKvHeads,
          .aligned = true,
          .paged = true,
          .scaling = scaling};
}
void append_bf16(abi::RowsParams p) {
  constexpr abi::PartConfig kPart = append_part(abi::Elem::bf16, abi::Scaling::none);
  rows::run<rows::Parts{kPart, 2}>(p);
}
void append_e4m3(abi::RowsParams p) { rows::run<rows::Parts{append_part(abi::Elem::e4m3, abi::Scaling::row), 1}>(p); }
void copy(abi::CopyParams p) { page::run_copy_pages(p); }
void merge(abi::MergeParams p) { attention::run_merge_states<float, float, float>(p); }

/// sample() of 2 x 40,000 logits with top-k and top-p, and softmax of them, which stay in shared memory; with the first tokens of the order
/// rows pass by, and the sizes are those that the library chooses for this much shared memory.
constexpr sampling::Config kSamplingConfig{12288, 16384, 4, 2048};
constexpr std::int64_t kSamplingFixed = sampling::Layout<kSamplingConfig, float, false>::kSlots;
int num_sampling_slots = 0;
void sample_first(abi::SampleParams p) {
  sampling::run_sample<kSamplingConfig, float, sampling::Traits{false, false, false, true, true, true, false}>(p, num_sampling_slots);
}
void sample_top_k_top_p(abi::SampleParams p) {
  sampling::run_resident_sample<float, sampling::Traits{false, false, false, true, true, false, false}>(p);
}
void softmax_f32(abi::SampleParams p) { sampling::run_resident_rows<float, sampling::RowKind::softmax>(p); }
int last_cluster_size = 0;

void* prepare(const fake_cuda::LaunchCall& call) {
  const std::string name = call.name;
  if (name.starts_with("rows_bf16_bf16_2h_paged_64_8x1")) return keep(emulate(call, append_bf16));
  if (name.starts_with("rows_bf16_e4m3_row_2h_paged_64_8x1")) return keep(emulate(call, append_e4m3));
  if (name == "copy_pages") return keep(emulate(call, copy));
  if (name == "merge_states_f32_f32_f32") return keep(emulate(call, merge));
  num_sampling_slots = static_cast<int>((call.shared_bytes - kSamplingFixed) / kSamplingConfig.tile_bytes);
  last_cluster_size = call.cluster_size;
  if (name == "sample_f32_logits_top_k_top_p_first") return keep(emulate(call, sample_first));
  if (name == "sample_f32_logits_top_k_top_p_resident") return keep(emulate(call, sample_top_k_top_p));
  if (name == "softmax_f32_resident") return keep(emulate(call, softmax_f32));
  EXPECT_EQ(name.rfind("attention_", 0), 0U) << name;
  AttentionLaunch launch{name, call.num_blocks, call.num_threads, call.dependent, *static_cast<const abi::AttentionParams*>(call.params),
                         {}};
  return keep([launch] {
    AttentionLaunch done = launch;
    const auto* bytes = reinterpret_cast<const std::byte*>(done.params.plan);
    done.blob.assign(bytes, bytes + done.params.plan->blob_bytes);
    launches().push_back(std::move(done));
  });
}

class CudaHost : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    fake_cuda::set_emulated_hooks(prepare);
    JitOptions jit;
    jit.cache_dir = "";
    context_ = std::make_unique<Context>(ContextOptions{.device = {DeviceKind::cuda, 0}, .jit = jit});
  }
  static void TearDownTestSuite() { context_.reset(); }
  void SetUp() override { launches().clear(); }
  void TearDown() override {
    for (void* stream : streams_) fake<int (*)(void*)>("cuStreamDestroy_v2")(stream);
    streams_.clear();
  }

  /// Lives until the test's end.
  static void* begin_stream() {
    void* stream = nullptr;
    EXPECT_EQ(0, fake<int (*)(void**, unsigned)>("cuStreamCreate")(&stream, 0));
    streams_.push_back(stream);
    return stream;
  }
  static void synchronize() { fake<int (*)()>("cuCtxSynchronize")(); }

  static inline std::unique_ptr<Context> context_;
  static inline std::vector<void*> streams_;
};

// ---------------------------------------------------------------------------------------------------------------- a problem

AttentionSpec spec_of() {
  AttentionSpec spec;
  spec.num_qo_heads = kQoHeads;
  spec.num_kv_heads = kKvHeads;
  spec.head_dim_qk = kDim;
  spec.lse = LseKind::natural;
  spec.variant.mask = variants::causal();
  return spec;
}

/// A batch over one segment of pages of 16. Pointers are never followed: kernels are only recorded.
struct Lens {
  std::vector<std::int64_t> qo_indptr{0}, kv_indptr{0}, kv_len;
  KvSegment segment{};
  Lens(const std::vector<std::int64_t>& q, const std::vector<std::int64_t>& kv) {
    for (std::size_t r = 0; r < q.size(); ++r) {
      qo_indptr.push_back(qo_indptr.back() + q[r]);
      kv_indptr.push_back(kv_indptr.back() + (kv[r] + 15) / 16);
    }
    kv_len = kv;
  }
  Batch batch() {
    segment.kv_indptr = kv_indptr;
    segment.kv_len = kv_len;
    return {.qo_indptr = qo_indptr, .segments = {&segment, 1}};
  }
};

std::byte* address(std::uintptr_t n) { return reinterpret_cast<std::byte*>(n); }

struct Args {
  Args(const Schedule& schedule, const DevicePlan& plan, std::int64_t tokens, void* stream) {
    const Device device{DeviceKind::cuda, 0};
    data.store.num_pages = 1000;
    for (KvPlane* plane : {&data.store.k, &data.store.v}) {
      plane->data = address(0x300000000);
      plane->page_byte_stride = 16 * kKvHeads * kDim * 2;
      plane->token_byte_stride = kKvHeads * kDim * 2;
      plane->head_byte_stride = kDim * 2;
    }
    data.kv_indices = {reinterpret_cast<const std::int32_t*>(0x400000000), 64};
    args.q = TensorView(address(0x100000000), DType::bf16, {tokens, kQoHeads, kDim}, device);
    args.o = TensorView(address(0x200000000), DType::bf16, {tokens, kQoHeads, kDim}, device);
    args.lse = TensorView(address(0x210000000), DType::f32, {tokens, kQoHeads}, device);
    args.segments = {&data, 1};
    args.workspace = {address(0x500000000), static_cast<std::size_t>(schedule.workspace_bytes())};
    args.stream = stream;
    args.device_plan = &plan;
  }
  SegmentData data;
  AttentionArgs args;
};

constexpr AttentionLimits kLimits{.max_tokens = 64, .max_requests = 16, .max_kv_len = 512};

bool same(const std::vector<std::byte>& a, std::span<const std::byte> b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

TEST_F(CudaHost, RunLaunchesTheListsThatHaveWorkOnTheUploadedPlan) {
  const Schedule schedule = girih::schedule(*context_, spec_of(), kLimits);
  EXPECT_EQ(schedule.num_units() % 6, 0);  // multiprocessors of the fake
  Plan plan(schedule);
  DevicePlan on_device(*context_, schedule);
  void* stream = begin_stream();
  const auto run_batch = [&](Lens lens) {
    launches().clear();
    plan.update(lens.batch());
    on_device.upload(plan, stream);
    const Args args(schedule, on_device, lens.qo_indptr.back(), stream);
    run(*context_, schedule, plan, args.args);
    EXPECT_TRUE(launches().empty()) << "something waited";
    synchronize();
    for (const AttentionLaunch& launch : launches()) EXPECT_TRUE(same(launch.blob, plan.blob()));
  };
  run_batch({{1, 1}, {100, 20}});
  ASSERT_EQ(launches().size(), 1U);
  EXPECT_NE(launches()[0].name.find("_decode"), std::string::npos);
  const auto& header = *reinterpret_cast<const abi::PlanHeader*>(plan.blob().data());
  EXPECT_EQ(launches()[0].num_blocks, attention::class_blocks(schedule.state(), attention::kSmall));
  EXPECT_EQ(launches()[0].params.class_units, header.class_unit_begin[1]);
  EXPECT_EQ(launches()[0].params.plan_bytes, header.blob_bytes);
  EXPECT_EQ(launches()[0].params.first_unit, 0);
  EXPECT_EQ(launches()[0].params.num_units, schedule.num_units());
  run_batch({{50}, {300}});
  ASSERT_EQ(launches().size(), 1U);
  EXPECT_NE(launches()[0].name.find("_prefill"), std::string::npos);
  EXPECT_EQ(launches()[0].params.first_unit, header.class_unit_begin[1]);
  EXPECT_EQ(launches()[0].params.order, abi::ListOrder::kAlone);
  EXPECT_FALSE(launches()[0].dependent);
  run_batch({{1, 50}, {80, 300}});
  EXPECT_EQ(launches().size(), 2U);
  for (const AttentionLaunch& launch : launches()) {
    EXPECT_EQ(launch.params.order, abi::ListOrder::kAlone);
    EXPECT_FALSE(launch.dependent);
  }
  run_batch({{}, {}});
  EXPECT_TRUE(launches().empty());
}

/// The second kernel of a cascade may start beside the first, and ends after it.
TEST_F(CudaHost, CascadesRunTheirListsAtOnce) {
  AttentionLimits limits = kLimits;
  limits.max_segments = 2;
  limits.max_qo_len = attention::kCascadeRows / (kQoHeads / kKvHeads);
  limits.max_tokens = limits.max_qo_len;
  const Schedule schedule = girih::schedule(*context_, spec_of(), limits);
  Plan plan(schedule);
  DevicePlan on_device(*context_, schedule);
  void* stream = begin_stream();
  launches().clear();
  Lens lens({1, 50}, {80, 300});
  plan.update(lens.batch());
  on_device.upload(plan, stream);
  run(*context_, schedule, plan, Args(schedule, on_device, 51, stream).args);
  synchronize();
  ASSERT_EQ(launches().size(), 2U);
  EXPECT_NE(launches()[0].name.find("_cascade"), std::string::npos);
  EXPECT_EQ(launches()[0].params.order, abi::ListOrder::kFirst);
  EXPECT_FALSE(launches()[0].dependent);
  EXPECT_NE(launches()[1].name.find("_decode"), std::string::npos);
  EXPECT_EQ(launches()[1].params.order, abi::ListOrder::kSecond);
  EXPECT_TRUE(launches()[1].dependent);
}

/// Whatever the limits: kernels for few rows are among those of a spec.
TEST_F(CudaHost, AfterAWarmUpSchedulesCompileNothing) {
  JitOptions jit;
  jit.cache_dir = "";
  const Context context(ContextOptions{.device = {DeviceKind::cuda, 0}, .jit = jit});
  const AttentionSpec spec = spec_of();
  std::vector<std::string> names;
  warmup(context, {&spec, 1}, [&](const WarmupProgress& progress) {
    if (!progress.name.empty()) names.emplace_back(progress.name);
  });
  const auto compiled = [&] { return context.cuda().jit->stats().compiled; };
  const std::int64_t after_warmup = compiled();
  EXPECT_EQ(static_cast<std::int64_t>(names.size()), after_warmup);
  EXPECT_EQ(names.size(), attention::cuda_kernels_of(spec, context.cuda().device->info()).size());
  AttentionLimits limits = kLimits;
  girih::schedule(context, spec, limits);
  limits.max_qo_len = 1;
  girih::schedule(context, spec, limits);
  EXPECT_EQ(compiled(), after_warmup);
}

TEST_F(CudaHost, ADecodeScheduleHasOneKernel) {
  AttentionLimits limits = kLimits;
  limits.max_qo_len = 1;
  const Schedule decode = girih::schedule(*context_, spec_of(), limits);
  EXPECT_LT(decode.num_units(), girih::schedule(*context_, spec_of(), kLimits).num_units());
  EXPECT_LT(attention::class_blocks(decode.state(), attention::kSmall), 6 * 4);
  const Schedule three = girih::schedule(*context_, spec_of(), limits, {.num_units = 0, .num_sms = 3, .family = "floor"});
  EXPECT_EQ(three.num_units() * 2,
            girih::schedule(*context_, spec_of(), limits, {.num_units = 0, .num_sms = 0, .family = "floor"}).num_units());
}

TEST_F(CudaHost, AStepAllocatesNothingAndWaitsForNothing) {
  const Schedule schedule = girih::schedule(*context_, spec_of(), kLimits);
  Plan plan(schedule);
  DevicePlan on_device(*context_, schedule);
  void* stream = begin_stream();
  Lens lens({1, 40}, {500, 300});
  const std::int64_t allocations = count("fake_cuda_num_allocations");
  const std::int64_t waits = count("fake_cuda_num_waits");
  for (int step = 0; step < 3; ++step) {
    plan.update(lens.batch());
    on_device.upload(plan, stream);
    const Args args(schedule, on_device, 41, stream);
    for (int layer = 0; layer < 5; ++layer) run(*context_, schedule, plan, args.args);
  }
  EXPECT_EQ(count("fake_cuda_num_allocations"), allocations);
  EXPECT_EQ(count("fake_cuda_num_waits"), waits);
  EXPECT_GT(count("fake_cuda_num_queued"), 0);
  synchronize();
  EXPECT_EQ(launches().size(), 30U);
}

TEST_F(CudaHost, SingleAttentionUploadsRunsAndWaits) {
  const Device device = context_->device();
  const TensorView q(address(0x100000000), DType::bf16, {70, kQoHeads, kDim}, device),
      k(address(0x300000000), DType::bf16, {90, kKvHeads, kDim}, device);
  const TensorView o(address(0x200000000), DType::bf16, {70, kQoHeads, kDim}, device),
      lse(address(0x210000000), DType::f32, {70, kQoHeads}, device);
  single_attention(*context_, spec_of(), q, k, k, o, lse);
  EXPECT_EQ(count("fake_cuda_num_queued"), 0);
  ASSERT_EQ(launches().size(), 1U);
  EXPECT_EQ(launches()[0].params.segments[0].page_size.divisor, 0U);
  EXPECT_EQ(launches()[0].params.q.token_stride, kQoHeads * kDim * 2);
}

/// Uploads in flight keep their batches: pinned memory is not written again before its copy is done.
TEST_F(CudaHost, UploadsInFlightKeepTheirBatches) {
  const Schedule schedule = girih::schedule(*context_, spec_of(), kLimits);
  Plan plan(schedule);
  DevicePlan on_device(*context_, schedule);
  void* stream = begin_stream();
  std::vector<std::vector<std::byte>> blobs;
  for (std::int64_t step = 0; step < 13; ++step) {
    Lens lens(std::vector<std::int64_t>(static_cast<std::size_t>(1 + step % 7), 1),
              std::vector<std::int64_t>(static_cast<std::size_t>(1 + step % 7), 30 + step));
    plan.update(lens.batch());
    on_device.upload(plan, stream);
    blobs.emplace_back(plan.blob().begin(), plan.blob().end());
    const Args args(schedule, on_device, lens.qo_indptr.back(), stream);
    run(*context_, schedule, plan, args.args);
  }
  synchronize();
  ASSERT_EQ(launches().size(), blobs.size());
  for (std::size_t i = 0; i < blobs.size(); ++i) EXPECT_TRUE(same(blobs[i], launches()[i].blob)) << i;
}

struct Driver {
  int (*begin)(void*, int) = fake<int (*)(void*, int)>("cuStreamBeginCapture_v2");
  int (*end)(void*, void**) = fake<int (*)(void*, void**)>("cuStreamEndCapture");
  int (*launch)(void*, void*) = fake<int (*)(void*, void*)>("cuGraphLaunch");
  int (*destroy)(void*) = fake<int (*)(void*)>("cuGraphDestroy");
};

TEST_F(CudaHost, AGraphRunsBothListsOnWhateverIsUploaded) {
  const Driver driver;
  for (const bool captured_upload : {false, true}) {
    const Schedule schedule = girih::schedule(*context_, spec_of(), kLimits);
    Plan plan(schedule);
    DevicePlan on_device(*context_, schedule);
    void* stream = begin_stream();
    Lens first({1}, {5});
    plan.update(first.batch());
    if (!captured_upload) on_device.upload(plan, stream);
    const Args args(schedule, on_device, 64, stream);
    ASSERT_EQ(0, driver.begin(stream, 1));
    if (captured_upload) on_device.upload(plan, stream);
    run(*context_, schedule, plan, args.args);
    void* graph = nullptr;
    ASSERT_EQ(0, driver.end(stream, &graph));
    for (std::int64_t step = 0; step < 5; ++step) {
      Lens lens({1, 1 + 3 * step, 1}, {100 + step, 60 + step, 3});
      plan.update(lens.batch());
      if (captured_upload)
        on_device.stage(plan);
      else
        on_device.upload(plan, stream);
      launches().clear();
      ASSERT_EQ(0, driver.launch(graph, stream));
      synchronize();
      ASSERT_EQ(launches().size(), 2U);
      for (const AttentionLaunch& launch : launches()) EXPECT_TRUE(same(launch.blob, plan.blob())) << step;
    }
    driver.destroy(graph);
  }
}

template <typename Call>
void expect_refused(Call call, std::string_view text) {
  try {
    call();
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find(text), std::string_view::npos) << error.what();
  }
}

TEST_F(CudaHost, RulesOfRunAndUpload) {
  const Schedule schedule = girih::schedule(*context_, spec_of(), kLimits);
  AttentionLimits other_limits = kLimits;
  other_limits.max_tokens = 65;
  const Schedule other = girih::schedule(*context_, spec_of(), other_limits);
  Plan plan(schedule);
  Plan other_plan(other);
  DevicePlan on_device(*context_, schedule);
  Lens lens({1, 2}, {40, 50});
  expect_refused([&] { on_device.upload(plan); }, "attention.upload: plan holds no batch yet");
  expect_refused([&] { on_device.stage(plan); }, "no upload of this device plan was captured");
  plan.update(lens.batch());
  other_plan.update(lens.batch());
  expect_refused([&] { on_device.upload(other_plan); }, "plan was made for another schedule");
  const Args good(schedule, on_device, 3, nullptr);
  expect_refused([&] { run(*context_, schedule, plan, good.args); }, "device_plan holds another batch than plan");
  on_device.upload(plan);
  run(*context_, schedule, plan, good.args);

  const auto refused = [&](const std::function<void(Args&)>& spoil, std::string_view text) {
    Args args(schedule, on_device, 3, nullptr);
    spoil(args);
    expect_refused([&] { run(*context_, schedule, plan, args.args); }, text);
  };
  refused([](Args& a) { a.args.device_plan = nullptr; }, "device_plan is not given");
  refused([](Args& a) { a.args.q.device = Device{}; }, "q.device=cpu; the schedule is for cuda:0");
  refused([](Args& a) { a.args.o.device.index = 1; }, "o.device=cuda:1; the schedule is for cuda:0");
  refused([](Args& a) { a.args.lse.device = Device{}; }, "lse.device=cpu");
  refused([](Args& a) { a.args.q.shape[0] = 2; }, "q has rank 3 and shape [2, 4, 64]");
  refused([](Args& a) { a.args.workspace = a.args.workspace.first(64); }, "workspace has 64 bytes");
  refused([](Args& a) { a.data.kv_indices = a.data.kv_indices.first(2); }, "kv_indices has 2 entries; the plan reads 7");
  refused([](Args& a) { a.data.store.k.data = nullptr; }, "store.k.data is null");
  refused([](Args& a) { a.args.q.data = address(0x100000001); }, "q.data=0x100000001 and its byte strides must be multiples of 2");
  refused([](Args& a) { a.args.lse.data = address(0x210000002); }, "lse.data=0x210000002 and its byte strides must be multiples of 4");
  refused([](Args& a) { a.data.store.k.data = address(0x300000001); }, "segments[0].store.k.data=0x300000001 and its byte strides");
  refused([](Args& a) { a.data.store.v.token_byte_stride += 1; }, "segments[0].store.v.data=0x300000000 and its byte strides");
  refused([](Args& a) { a.data.store.k.page_byte_stride += 1; }, "segments[0].store.k.data=0x300000000 and its byte strides");
  plan.update(lens.batch());
  refused([](Args&) {}, "device_plan holds another batch than plan");

  const Context cpu(ContextOptions{.device = {}, .num_workers = 1});
  expect_refused([&] { run(cpu, schedule, plan, good.args); }, "context.device=cpu; the schedule is for cuda:0");
  expect_refused([&] { DevicePlan(cpu, schedule); }, "both must be one CUDA device");
  const Schedule on_cpu = girih::schedule(cpu, spec_of(), kLimits);
  expect_refused([&] { DevicePlan(*context_, on_cpu); }, "both must be one CUDA device");
  Plan cpu_plan(on_cpu);
  cpu_plan.update(lens.batch());
  expect_refused([&] { run(cpu, on_cpu, cpu_plan, good.args); }, "device_plan is given; the schedule is for the CPU");
  AttentionArgs streamed = good.args;
  streamed.device_plan = nullptr;
  streamed.stream = address(0x10);
  expect_refused([&] { run(cpu, on_cpu, cpu_plan, streamed); }, "stream is given; the schedule is for the CPU");

  expect_refused([&] { girih::schedule(*context_, spec_of(), kLimits, {.num_units = 3, .num_sms = 0, .family = ""}); },
                 "options.num_units=3");
  expect_refused([&] { girih::schedule(*context_, spec_of(), kLimits, {.num_units = 0, .num_sms = 7, .family = ""}); },
                 "options.num_sms=7");
  expect_refused([&] { girih::schedule(*context_, spec_of(), kLimits, {.num_units = 0, .num_sms = 0, .family = "none"}); },
                 "family=\"none\" is unknown");
  expect_refused([&] { girih::schedule(cpu, spec_of(), kLimits, {.num_units = 0, .num_sms = 2, .family = ""}); },
                 "options.num_sms=2 with a CPU context");
  expect_refused([&] { girih::schedule(cpu, spec_of(), kLimits, {.num_units = 0, .num_sms = 0, .family = "mma"}); }, "whose only family");
  expect_refused([] { Context(ContextOptions{.device = {DeviceKind::cuda, 1}}); }, "device.index=1; this machine has 1 CUDA devices");
  expect_refused(
      [] {
        Context(ContextOptions{.device = {DeviceKind::cuda, 0}, .num_workers = 2});
      },
      "num_workers, cpus and target are for CPU");
}

TEST_F(CudaHost, PlansThatNeedMoreThanTheCaptureHasAreRefused) {
  const Driver driver;
  const Schedule schedule = girih::schedule(*context_, spec_of(), kLimits);
  Plan plan(schedule);
  DevicePlan on_device(*context_, schedule);
  void* stream = begin_stream();
  Lens lens({1, 2}, {40, 50});
  plan.update(lens.batch());
  on_device.upload(plan, stream);
  const Args args(schedule, on_device, 5, stream);
  ASSERT_EQ(0, driver.begin(stream, 1));
  run(*context_, schedule, plan, args.args);
  void* graph = nullptr;
  ASSERT_EQ(0, driver.end(stream, &graph));
  const auto refused = [&](Lens next, std::string_view text) {
    plan.update(next.batch());
    expect_refused([&] { on_device.upload(plan, stream); }, text);
  };
  refused({{1, 2, 3}, {40, 50, 60}}, "plan has 6 tokens; a graph was captured with tensors of 5");
  refused({{1, 1, 1}, {500, 500, 500}}, "reads 96 table entries; a graph was captured with 64");
  Lens ragged({1, 1}, {4, 4});
  ragged.segment.page_size = 8;
  refused(ragged, "page_size=8; a graph was captured with 16");
  Lens fits({1, 1, 2, 1}, {40, 50, 60, 70});
  plan.update(fits.batch());
  on_device.upload(plan, stream);
  driver.destroy(graph);
}

// ---------------------------------------------------------------------------------------------------------------- cache, merges

/// Device memory that the test can look into.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes, std::byte{0xff}) {}
  void* data() { return bytes_.data(); }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

KvStore store_of(void* k, void* v, DType type) {
  KvStore store;
  store.page_size = 4;
  store.num_pages = 8;
  for (KvPlane* plane : {&store.k, &store.v}) {
    plane->dtype = type;
    plane->head_byte_stride = bytes(type, kDim);
    plane->token_byte_stride = plane->head_byte_stride * kKvHeads;
    plane->page_byte_stride = plane->token_byte_stride * 4;
  }
  store.k.data = k;
  store.v.data = v;
  return store;
}

struct NewRows {
  std::vector<std::uint16_t> k, v;
  explicit NewRows(std::int64_t rows) : k(static_cast<std::size_t>(rows * kKvHeads * kDim)), v(k.size()) {
    std::mt19937_64 random(3);
    for (auto* all : {&k, &v}) {
      for (std::uint16_t& x : *all) x = from_f32<bf16>(std::normal_distribution<float>()(random)).bits;
    }
  }
};
TensorView view(std::vector<std::uint16_t>& data, Device device) {
  return TensorView(data.data(), DType::bf16, {static_cast<std::int64_t>(data.size()) / (kKvHeads * kDim), kKvHeads, kDim}, device);
}

TEST_F(CudaHost, AppendWritesWhatTheCpuWrites) {
  const Context cpu(ContextOptions{.device = {}, .num_workers = 1});
  const std::vector<std::int64_t> append_indptr{0, 1, 6}, kv_len{6, 9}, kv_indptr{0, 2, 5};
  const std::vector<std::int32_t> kv_indices{4, 1, 0, 6, 2};
  AppendBatch batch;
  batch.append_indptr = append_indptr;
  batch.kv_len = kv_len;
  batch.kv_indices = kv_indices;
  batch.kv_indptr = kv_indptr;
  NewRows rows(6);
  const std::size_t size = 8 * 4 * kKvHeads * kDim * 2;
  Memory k(size), v(size), k_want(size), v_want(size);
  append(cpu, store_of(k_want.data(), v_want.data(), DType::bf16), batch, view(rows.k, {}), {}, view(rows.v, {}));
  void* stream = begin_stream();
  const Device device = context_->device();
  append(*context_, store_of(k.data(), v.data(), DType::bf16), batch, view(rows.k, device), {}, view(rows.v, device), stream);
  synchronize();
  EXPECT_EQ(k.bytes(), k_want.bytes());
  EXPECT_EQ(v.bytes(), v_want.bytes());

  // By a plan of the same lengths.
  const Schedule schedule = girih::schedule(*context_, spec_of(), kLimits);
  Plan plan(schedule);
  DevicePlan on_device(*context_, schedule);
  Memory k2(size), v2(size);
  const KvStore store = store_of(k2.data(), v2.data(), DType::bf16);
  const auto append_planned = [&] {
    append(*context_, on_device, store, kv_indices, view(rows.k, device), {}, view(rows.v, device), 0, stream);
  };
  expect_refused(append_planned, "append: plan holds no batch yet");
  KvSegment segment;
  segment.page_size = 4;
  segment.kv_indptr = kv_indptr;
  segment.kv_len = kv_len;
  plan.update({.qo_indptr = append_indptr, .segments = {&segment, 1}});
  on_device.upload(plan, stream);
  append_planned();
  synchronize();
  EXPECT_EQ(k2.bytes(), k_want.bytes());
  EXPECT_EQ(v2.bytes(), v_want.bytes());

  // A capture cannot load kernels, and a batch of host arrays would be frozen in it.
  const Driver driver;
  void* graph = nullptr;
  ASSERT_EQ(0, driver.begin(stream, 1));
  append_planned();
  expect_refused([&] { append(*context_, store, batch, view(rows.k, device), {}, view(rows.v, device), stream); }, "would be frozen");
  expect_refused(
      [&] {
        append(*context_, on_device, KvStore{.page_size = 4, .num_pages = 8, .k = store.k}, kv_indices, view(rows.k, device), {}, {}, 0,
               stream);
      },
      "is not loaded yet; make such a call before the capture");
  ASSERT_EQ(0, driver.end(stream, &graph));
  std::fill(k2.bytes().begin(), k2.bytes().end(), std::byte{0xff});
  ASSERT_EQ(0, driver.launch(graph, stream));
  synchronize();
  EXPECT_EQ(k2.bytes(), k_want.bytes());
  driver.destroy(graph);

  // Quantised, with scales that the kernel computes.
  Memory codes(size), codes_want(size), scales(8 * 4 * kKvHeads * 4), scales_want(8 * 4 * kKvHeads * 4);
  const auto quantised = [](Memory& data, Memory& scale) {
    KvStore s = store_of(data.data(), nullptr, DType::e4m3);
    s.v = KvPlane{};
    s.k.scales = {.granularity = ScaleGranularity::token_head,
                  .data = scale.data(),
                  .page_byte_stride = 4 * kKvHeads * 4,
                  .token_byte_stride = kKvHeads * 4,
                  .head_byte_stride = 4};
    return s;
  };
  append(cpu, quantised(codes_want, scales_want), batch, view(rows.k, {}), {}, {});
  append(*context_, quantised(codes, scales), batch, view(rows.k, device), {}, {}, stream);
  synchronize();
  EXPECT_EQ(codes.bytes(), codes_want.bytes());
  EXPECT_EQ(scales.bytes(), scales_want.bytes());

  expect_refused([&] { append(*context_, store, batch, view(rows.k, {}), {}, view(rows.v, device)); },
                 "k.device=cpu; the context is for cuda:0");
  expect_refused([&] { append(cpu, store, batch, view(rows.k, {}), {}, view(rows.v, {}), stream); },
                 "stream is given; the context is for the CPU");
}

/// A GPU would fault on what a CPU reads: refused before anything is queued.
TEST_F(CudaHost, AppendRefusesElementsOffTheirAlignment) {
  const std::vector<std::int64_t> append_indptr{0, 1}, kv_len{1}, kv_indptr{0, 1};
  const std::vector<std::int32_t> kv_indices{4};
  AppendBatch batch;
  batch.append_indptr = append_indptr;
  batch.kv_len = kv_len;
  batch.kv_indices = kv_indices;
  batch.kv_indptr = kv_indptr;
  const Device device = context_->device();
  struct Given {
    KvStore store = store_of(address(0x1000), address(0x2000), DType::bf16);
    TensorView k, v;
  };
  const Schedule schedule = girih::schedule(*context_, spec_of(), kLimits);
  Plan plan(schedule);
  DevicePlan on_device(*context_, schedule);
  KvSegment segment;
  segment.page_size = 4;
  segment.kv_indptr = kv_indptr;
  segment.kv_len = kv_len;
  plan.update({.qo_indptr = append_indptr, .segments = {&segment, 1}});
  on_device.upload(plan);
  const auto refused = [&](const std::function<void(Given&)>& spoil, std::string_view text) {
    Given g;
    g.k = g.v = TensorView(address(0x3000), DType::bf16, {1, kKvHeads, kDim}, device);
    spoil(g);
    expect_refused([&] { append(*context_, g.store, batch, g.k, {}, g.v); }, text);
    expect_refused([&] { append(*context_, on_device, g.store, kv_indices, g.k, {}, g.v); }, text);
  };
  refused([](Given& g) { g.k.data = address(0x3001); },
          "append: k.data=0x3001 and its byte strides must be multiples of 2, the bytes of bf16");
  refused([](Given& g) { g.v.data = address(0x3001); }, "append: v.data=0x3001 and its byte strides");
  refused([](Given& g) { g.store.k.data = address(0x1001); }, "append: store.k.data=0x1001 and its byte strides");
  refused([](Given& g) { g.store.v.token_byte_stride += 1; }, "append: store.v.data=0x2000 and its byte strides");
  refused([](Given& g) { g.store.v.page_byte_stride += 1; }, "append: store.v.data=0x2000 and its byte strides");
  const auto quantise = [](Given& g, ScaleGranularity granularity, std::int64_t data, std::int64_t head_stride, std::int64_t token_stride) {
    g.store.k.dtype = DType::e4m3;
    g.store.k.scales = {.granularity = granularity,
                        .data = address(static_cast<std::uintptr_t>(data)),
                        .page_byte_stride = 4 * token_stride,
                        .token_byte_stride = token_stride,
                        .head_byte_stride = head_stride};
  };
  refused([&](Given& g) { quantise(g, ScaleGranularity::tensor, 0x4002, 0, 0); },
          "append: store.k.scales.data=0x4002 and its byte strides");
  refused([&](Given& g) { quantise(g, ScaleGranularity::head, 0x4000, 6, 0); }, "append: store.k.scales.data=0x4000 and its byte strides");
  refused([&](Given& g) { quantise(g, ScaleGranularity::token_head, 0x4000, 4, 10); }, "append: store.k.scales.data=0x4000 and its");
  EXPECT_EQ(count("fake_cuda_num_queued"), 1) << "the upload";
  synchronize();
}

TEST_F(CudaHost, CopyPagesCopies) {
  const std::size_t size = 8 * 4 * kKvHeads * kDim * 2;
  Memory k(size), v(size);
  std::mt19937_64 random(5);
  for (auto* memory : {&k, &v}) {
    for (std::byte& b : memory->bytes()) b = static_cast<std::byte>(random());
  }
  Memory k_want = k, v_want = v;
  const std::vector<PageCopy> copies{{1, 5}, {2, 0}, {2, 7}};
  const Context cpu(ContextOptions{.device = {}, .num_workers = 1});
  copy_pages(cpu, store_of(k_want.data(), v_want.data(), DType::bf16), kKvHeads, kDim, 0, kDim, copies);
  copy_pages(*context_, store_of(k.data(), v.data(), DType::bf16), kKvHeads, kDim, 0, kDim, copies, begin_stream());
  synchronize();
  EXPECT_EQ(k.bytes(), k_want.bytes());
  EXPECT_EQ(v.bytes(), v_want.bytes());
}

/// Pages are copied as bytes, wherever they lie.
TEST_F(CudaHost, CopyPagesCopiesFromOddAddresses) {
  const std::size_t size = 8 * 4 * kKvHeads * kDim * 2;
  Memory k(size + 1), v(size + 1);
  std::mt19937_64 random(5);
  for (auto* memory : {&k, &v}) {
    for (std::byte& b : memory->bytes()) b = static_cast<std::byte>(random());
  }
  Memory k_want = k, v_want = v;
  const auto odd = [](Memory& memory) { return memory.bytes().data() + 1; };
  const std::vector<PageCopy> copies{{1, 5}, {2, 0}};
  const Context cpu(ContextOptions{.device = {}, .num_workers = 1});
  copy_pages(cpu, store_of(odd(k_want), odd(v_want), DType::bf16), kKvHeads, kDim, 0, kDim, copies);
  copy_pages(*context_, store_of(odd(k), odd(v), DType::bf16), kKvHeads, kDim, 0, kDim, copies, begin_stream());
  synchronize();
  EXPECT_EQ(k.bytes(), k_want.bytes());
  EXPECT_EQ(v.bytes(), v_want.bytes());
}

TEST_F(CudaHost, MergesMerge) {
  constexpr std::int64_t kRows = 5, kStates = 3;
  const Context cpu(ContextOptions{.device = {}, .num_workers = 1});
  const Device device = context_->device();
  std::mt19937_64 random(6);
  std::vector<float> v(kRows * kStates * kQoHeads * kDim), s(kRows * kStates * kQoHeads);
  for (float& x : v) x = std::normal_distribution<float>()(random);
  for (float& x : s) x = random() % 5 == 0 ? -INFINITY : std::normal_distribution<float>()(random);
  std::vector<float> v_want(kRows * kQoHeads * kDim), s_want(kRows * kQoHeads), v_got(v_want.size()), s_got(s_want.size());
  const auto values = [&](std::vector<float>& data, Device d) { return TensorView(data.data(), DType::f32, {kRows, kQoHeads, kDim}, d); };
  const auto lses = [&](std::vector<float>& data, Device d) { return TensorView(data.data(), DType::f32, {kRows, kQoHeads}, d); };
  const auto compare = [&](const char* what) {
    synchronize();
    for (std::size_t i = 0; i < v_want.size(); ++i) ASSERT_NEAR(v_got[i], v_want[i], 2e-6 * (1 + std::fabs(v_want[i]))) << what;
    for (std::size_t i = 0; i < s_want.size(); ++i) {
      if (std::isinf(s_want[i])) {
        ASSERT_EQ(s_got[i], s_want[i]) << what;
      } else {
        ASSERT_NEAR(s_got[i], s_want[i], 2e-6 * (1 + std::fabs(s_want[i]))) << what;
      }
    }
  };
  const auto states = [&](Device d) { return TensorView(v.data(), DType::f32, {kRows, kStates, kQoHeads, kDim}, d); };
  const auto state_lses = [&](Device d) { return TensorView(s.data(), DType::f32, {kRows, kStates, kQoHeads}, d); };
  merge_states(cpu, states({}), state_lses({}), values(v_want, {}), lses(s_want, {}));
  merge_states(*context_, states(device), state_lses(device), values(v_got, device), lses(s_got, device), false, begin_stream());
  compare("merge_states");

  const std::vector<std::int64_t> indptr{0, 0, 4, 5, 9, 15};
  const auto all = [&](Device d) { return TensorView(v.data(), DType::f32, {kRows * kStates, kQoHeads, kDim}, d); };
  const auto all_lses = [&](Device d) { return TensorView(s.data(), DType::f32, {kRows * kStates, kQoHeads}, d); };
  merge_states_varlen(cpu, all({}), all_lses({}), indptr, values(v_want, {}), lses(s_want, {}), true);
  merge_states_varlen(*context_, all(device), all_lses(device), indptr, values(v_got, device), lses(s_got, device), true);
  compare("merge_states_varlen");

  merge_state(cpu, values(v, {}), lses(s, {}), values(v_want, {}), lses(s_want, {}), values(v_want, {}), lses(s_want, {}));
  merge_state(*context_, values(v, device), lses(s, device), values(v_got, device), lses(s_got, device), values(v_got, device),
              lses(s_got, device));
  compare("merge_state in place");
  TensorView shifted = values(v, device);
  shifted.data = v.data() + kDim;
  expect_refused(
      [&] {
        merge_state(*context_, values(v, device), lses(s, device), values(v_got, device), lses(s_got, device), shifted,
                    lses(s_got, device));
      },
      "v_out overlaps an input");

  // A GPU would fault on what a CPU reads.
  const auto refused = [&](int spoiled, std::string_view text) {
    TensorView tensors[] = {values(v, device), lses(s, device),       values(v, device),
                            lses(s, device),   values(v_got, device), lses(s_got, device)};
    tensors[spoiled].data = static_cast<std::byte*>(tensors[spoiled].data) + 2;
    expect_refused([&] { merge_state(*context_, tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], tensors[5]); }, text);
  };
  refused(0, "merge_state: v_a.data=");
  refused(1, "merge_state: s_a.data=");
  refused(2, "merge_state: v_b.data=");
  refused(3, "merge_state: s_b.data=");
  refused(4, "merge_state: v_out.data=");
  refused(5, "and its byte strides must be multiples of 4, the bytes of f32, on a GPU");
  const auto off = [](TensorView t) {
    t.data = static_cast<std::byte*>(t.data) + 1;
    return t;
  };
  expect_refused([&] { merge_states(*context_, off(states(device)), state_lses(device), values(v_got, device), lses(s_got, device)); },
                 "merge_states: v.data=");
  expect_refused(
      [&] { merge_states_varlen(*context_, all(device), off(all_lses(device)), indptr, values(v_got, device), lses(s_got, device)); },
      "merge_states_varlen: s.data=");
}

TEST_F(CudaHost, SamplingLaunchesAClusterARow) {
  constexpr std::int64_t kRows = 2, kVocab = 40000;
  const Context cpu(ContextOptions{.device = {}, .num_workers = 1});
  const Device device = context_->device();
  std::mt19937_64 random(8);
  std::vector<float> logits(kRows * kVocab), want_soft(logits.size()), soft(logits.size());
  for (float& x : logits) x = std::normal_distribution<float>()(random);
  std::vector<std::int32_t> want(kRows), got(kRows, -1);
  std::vector<std::int64_t> offset{0};
  const auto args = [&](std::vector<std::int32_t>& tokens, Device d, void* stream) {
    SampleArgs a;
    a.input = TensorView(logits.data(), DType::f32, {kRows, kVocab}, d);
    a.top_k = 300;
    a.top_p = 0.9F;
    a.random = {.seed = 3, .offset = TensorView(offset.data(), DType::i64, {1}, d)};
    a.tokens = TensorView(tokens.data(), DType::i32, {kRows}, d);
    a.stream = stream;
    return a;
  };
  void* stream = begin_stream();
  fake<int (*)(void*, int)>("cuStreamBeginCapture_v2")(stream, 2);
  expect_refused([&] { sample(*context_, args(got, device, stream)); }, "sample: stream is being captured and the kernel sample_f32");
  void* graph = nullptr;
  fake<int (*)(void*, void**)>("cuStreamEndCapture")(stream, &graph);
  fake<int (*)(void*)>("cuGraphDestroy")(graph);
  for (offset[0] = 0; offset[0] < 3; ++offset[0]) {
    sample(cpu, args(want, {}, nullptr));
    sample(*context_, args(got, device, stream));
    EXPECT_EQ(4, last_cluster_size);  // of few multiprocessors
    synchronize();
    EXPECT_EQ(want, got);
  }
  std::vector<std::int32_t> first(kRows * 3), want_first(first);
  std::vector<float> logs(first.size()), want_logs(logs);
  const auto with_first = [&](SampleArgs a, std::vector<std::int32_t>& tokens, std::vector<float>& x, Device d) {
    a.top_tokens = TensorView(tokens.data(), DType::i32, {kRows, 3}, d);
    a.top_logprobs = TensorView(x.data(), DType::f32, {kRows, 3}, d);
    return a;
  };
  sample(cpu, with_first(args(want, {}, nullptr), want_first, want_logs, {}));
  sample(*context_, with_first(args(got, device, stream), first, logs, device));
  EXPECT_EQ(2, last_cluster_size);
  synchronize();
  EXPECT_EQ(want, got);
  EXPECT_EQ(want_first, first);
  const auto rows = [&](std::vector<float>& data, Device d) { return TensorView(data.data(), DType::f32, {kRows, kVocab}, d); };
  softmax(cpu, rows(logits, {}), 0.5F, rows(want_soft, {}));
  softmax(*context_, rows(logits, device), 0.5F, rows(soft, device), stream);
  synchronize();
  EXPECT_EQ(0, std::memcmp(want_soft.data(), soft.data(), soft.size() * 4));
  expect_refused([&] { sample(*context_, args(got, {}, stream)); }, "input.device=cpu; the context is for cuda:0");
}

TEST(CudaHostEnd, EverythingIsGivenBack) { EXPECT_EQ(count("fake_cuda_num_alive"), 0); }

}  // namespace
}  // namespace girih
