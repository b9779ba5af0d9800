// The C ABI on a CUDA device, against a fake driver (fake_cuda/fake_driver.h): a warm-up that is stopped, plans on the device, runs and
// appends that are launched with the caller's pointers. Launches are only recorded; NVRTC compiles the kernels.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "abi/attention_params.h"
#include "fake_cuda/loaded.h"
#include "girih/girih_c.h"

namespace {

constexpr int kQoHeads = 2, kKvHeads = 1, kDim = 64, kPageSize = 16;

struct Launch {
  std::string name;
  const void* q = nullptr;  // of attention
};
std::vector<Launch>& launches() {
  static std::vector<Launch> all;
  return all;
}

void* prepare(const girih::fake_cuda::LaunchCall& call) {
  Launch launch{call.name};
  if (launch.name.rfind("attention_", 0) == 0) launch.q = static_cast<const girih::abi::AttentionParams*>(call.params)->q.data;
  launches().push_back(launch);
  return nullptr;
}
void execute(void*) {}

#define ASSERT_OK(call) ASSERT_EQ(call, GIRIH_OK) << girih_last_error()

class CApiCuda : public testing::Test {
 protected:
  void SetUp() override {
    const girih::fake_cuda::Hooks hooks{prepare, execute};
    girih::fake_cuda::set_hooks(hooks);
    launches().clear();
    girih_jit_options jit;
    girih_context_options options;
    ASSERT_OK(girih_jit_options_init(&jit, sizeof jit));
    ASSERT_OK(girih_context_options_init(&options, sizeof options));
    jit.cache_dir = "";
    options.device = {GIRIH_CUDA, 0};
    options.jit = &jit;
    ASSERT_OK(girih_context_create(&options, &context_));
    ASSERT_OK(girih_attention_spec_init(&spec_, sizeof spec_));
    spec_.num_qo_heads = kQoHeads;
    spec_.num_kv_heads = kKvHeads;
    spec_.head_dim_qk = kDim;
  }
  void TearDown() override { girih_context_destroy(context_); }

  /// Device memory that is never followed.
  static girih_tensor tensor(std::uintptr_t address, std::vector<std::int64_t> shape) {
    girih_tensor t{};
    EXPECT_EQ(
        girih_tensor_dense(&t, reinterpret_cast<void*>(address), GIRIH_BF16, {GIRIH_CUDA, 0}, static_cast<int>(shape.size()), shape.data()),
        GIRIH_OK);
    return t;
  }

  girih_context* context_ = nullptr;
  girih_attention_spec spec_{};
};

TEST_F(CApiCuda, AWarmupStopsWhenItsCallbackSaysSo) {
  int calls = 0;
  const auto stop = [](void* user, const girih_warmup_progress* progress) -> std::int32_t {
    ++*static_cast<int*>(user);
    return progress->done == 0 && progress->total > 0 ? 1 : 0;
  };
  EXPECT_EQ(girih_warmup(context_, &spec_, 1, stop, &calls), GIRIH_CANCELLED);
  EXPECT_NE(std::string(girih_last_error()).find("progress asked to stop after 0 of"), std::string::npos) << girih_last_error();
  EXPECT_EQ(calls, 1);
}

TEST_F(CApiCuda, PlansRunAndAppendOnTheDevice) {
  girih_attention_limits limits;
  ASSERT_OK(girih_attention_limits_init(&limits, sizeof limits));
  limits.max_tokens = limits.max_requests = 4;
  limits.max_kv_len = 256;
  limits.max_qo_len = 1;
  girih_schedule_options fixed;
  ASSERT_OK(girih_schedule_options_init(&fixed, sizeof fixed));
  fixed.family = "floor";
  girih_schedule* schedule = nullptr;
  ASSERT_OK(girih_schedule_create(context_, &spec_, &limits, &fixed, &schedule));
  girih_plan* plan = nullptr;
  ASSERT_OK(girih_plan_create(schedule, &plan));
  girih_device_plan* on_device = nullptr;
  ASSERT_OK(girih_device_plan_create(context_, schedule, &on_device));

  const std::vector<std::int32_t> qo_indptr{0, 1, 2}, kv_indptr{0, 3, 4}, kv_len{40, 16};
  girih_kv_segment segment;
  girih_batch batch;
  ASSERT_OK(girih_kv_segment_init(&segment, sizeof segment));
  ASSERT_OK(girih_batch_init(&batch, sizeof batch));
  segment.kv_indptr = {.data = kv_indptr.data(), .size = 3, .bits = 32, .reserved = 0};
  segment.kv_len = {.data = kv_len.data(), .size = 2, .bits = 32, .reserved = 0};
  batch.qo_indptr = {.data = qo_indptr.data(), .size = 3, .bits = 32, .reserved = 0};
  batch.segments = &segment;
  batch.num_segments = 1;
  girih_plan_info info;
  ASSERT_OK(girih_plan_info_init(&info, sizeof info));
  ASSERT_OK(girih_plan_update(plan, &batch, &info));
  std::int64_t capacity = 0;
  ASSERT_OK(girih_device_plan_get_capacity_bytes(on_device, &capacity));
  EXPECT_GE(capacity, info.blob_bytes);

  const girih_tensor pages = tensor(0x300000000, {8, kPageSize, kKvHeads, kDim});
  girih_segment_data data;
  girih_attention_args args;
  ASSERT_OK(girih_segment_data_init(&data, sizeof data));
  ASSERT_OK(girih_attention_args_init(&args, sizeof args));
  ASSERT_OK(girih_paged_kv_store(&pages, &pages, GIRIH_NHD, &data.store));
  data.kv_indices = reinterpret_cast<const std::int32_t*>(0x400000000);
  data.num_kv_indices = 4;
  girih_schedule_info needs;
  ASSERT_OK(girih_schedule_info_init(&needs, sizeof needs));
  ASSERT_OK(girih_schedule_get_info(schedule, &needs));
  args.q = tensor(0x100000000, {2, kQoHeads, kDim});
  args.o = tensor(0x200000000, {2, kQoHeads, kDim});
  args.segments = &data;
  args.num_segments = 1;
  args.workspace = reinterpret_cast<void*>(0x500000000);
  args.workspace_bytes = needs.workspace_bytes;
  EXPECT_EQ(girih_run(context_, schedule, plan, &args), GIRIH_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(girih_last_error(), "device_plan"), nullptr) << girih_last_error();
  args.device_plan = on_device;
  EXPECT_EQ(girih_run(context_, schedule, plan, &args), GIRIH_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(girih_last_error(), "upload() it first"), nullptr) << girih_last_error();
  ASSERT_OK(girih_device_plan_upload(on_device, plan, nullptr));
  EXPECT_TRUE(launches().empty());
  ASSERT_OK(girih_run(context_, schedule, plan, &args));
  ASSERT_EQ(launches().size(), 1U);
  EXPECT_EQ(launches()[0].name.rfind("attention_", 0), 0U) << launches()[0].name;
  EXPECT_EQ(launches()[0].q, args.q.data);

  const girih_tensor new_rows = tensor(0x600000000, {2, kKvHeads, kDim});
  ASSERT_OK(girih_append_planned(context_, on_device, &data.store, data.kv_indices, data.num_kv_indices, &new_rows, nullptr, &new_rows, 0,
                                 nullptr));
  ASSERT_EQ(launches().size(), 2U);
  EXPECT_EQ(launches()[1].name.rfind("rows_", 0), 0U) << launches()[1].name;
  EXPECT_EQ(girih_append_planned(context_, on_device, &data.store, data.kv_indices, data.num_kv_indices, &new_rows, nullptr, &new_rows, 1,
                                 nullptr),
            GIRIH_INVALID_ARGUMENT);
  EXPECT_EQ(girih_device_plan_stage(on_device, plan), GIRIH_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(girih_last_error(), "no upload of this device plan was captured"), nullptr) << girih_last_error();
  girih_device_plan_destroy(on_device);
  girih_plan_destroy(plan);
  girih_schedule_destroy(schedule);
}

}  // namespace
