// The CUDA backend: kernels compiled and loaded when a schedule is made, launched by run(). The lists of both tile classes are parallel
// branches: the small one runs on the device plan's own stream, forked from the caller's and joined to it; or, where a block of each kernel
// fits a multiprocessor, the second kernel starts beside the first on the caller's (abi::ListOrder). A capture records either.
#include "attention/cuda_run.h"

#include <algorithm>
#include <vector>

#include "attention/cuda_state.h"
#include "attention/device_plan.h"
#include "base/error.h"
#include "cuda/runtime.h"

namespace girih::attention {
namespace {

constexpr const char* kOp = "attention.run";

cuda::Launch launch_of(const ScheduleState& s, int tile_class, cuda::Stream stream) {
  const CudaKernel& kernel = s.cuda->kernels.classes[tile_class];
  return {.function = s.cuda->functions[static_cast<std::size_t>(tile_class)],
          .num_blocks = class_blocks(s, tile_class),
          .num_threads = kernel.num_threads,
          .shared_bytes = kernel.shared_bytes,
          .stream = stream};
}

/// Whether a list does anything. In a graph every list may, once another plan is uploaded.
bool has_work(const abi::PlanHeader& header, const PlanView& view, int tile_class) {
  const int begin = header.class_unit_begin[tile_class];
  const int end = header.class_unit_begin[tile_class + 1];
  if (view.unit_begin[static_cast<std::size_t>(begin)] < view.unit_begin[static_cast<std::size_t>(end)]) return true;
  return tile_class == kSmall && header.num_empty_merges > 0;
}

/// K and V that are not much more than the L2 cache holds should be the first to leave it: else they push out what others have written
/// there, which has to go to memory in the same moment that they come from it. Where they are more, all of that happens anyway, leaving
/// first costs 3 %, and requests that share pages without saying so would read them from memory again.
bool leaves_l2(const ScheduleState& s, const abi::PlanHeader& header) {
  constexpr std::int64_t kCaches = 2;
  const std::int64_t cost_bytes = s.cuda->kernels.classes[kSmall].cost_bytes;
  return cost_bytes > 0 && header.total_cost <= kCaches * s.cuda->device.l2_bytes / cost_bytes;
}

}  // namespace

std::shared_ptr<const ScheduleState> load_cuda_state(const Context& context, const AttentionSpec& spec, const AttentionLimits& limits,
                                                     const ScheduleOptions& options) {
  cuda::Runtime& runtime = context.cuda();
  std::shared_ptr<ScheduleState> state = make_cuda_state(runtime.device->info(), context.device().index, spec, limits, options);
  std::vector<jit::KernelSource> sources;
  std::vector<std::int64_t> shared_bytes;
  std::vector<std::size_t> classes;
  for (int c = 0; c < kNumClasses; ++c) {
    if (class_units(*state, c) == 0) continue;
    const CudaKernel& kernel = state->cuda->kernels.classes[c];
    sources.push_back({.name = kernel.name, .source = kernel.source, .target = ""});
    shared_bytes.push_back(kernel.shared_bytes);
    classes.push_back(static_cast<std::size_t>(c));
  }
  const std::vector<const jit::Kernel*> kernels = runtime.load(sources, shared_bytes);
  auto loaded = std::make_shared<CudaState>(*state->cuda);
  loaded->loader = runtime.loader;
  for (std::size_t i = 0; i < kernels.size(); ++i) loaded->functions[classes[i]] = kernels[i]->function;
  state->cuda = std::move(loaded);
  return state;
}

void run_cuda(const Context& context, const ScheduleState& s, const PlanState& plan, const AttentionArgs& args) {
  if (args.device_plan == nullptr) fail(Code::invalid_argument, kOp, "device_plan is not given; on a CUDA device upload the plan first");
  const DevicePlanState& on_device = args.device_plan->state();
  const CheckedArgs checked = check_args(s, plan, args);
  check_uploaded(on_device, s, plan);
  abi::AttentionParams params = cuda_params(s, checked);
  params.plan = reinterpret_cast<const abi::PlanHeader*>(on_device.blob.data());
  params.next_unit = static_cast<std::int32_t*>(on_device.counters.data());
  params.counters = params.next_unit + kNumClasses;

  const cuda::DeviceContext& device = *context.cuda().device;
  const cuda::CurrentDevice current(device);
  const cuda::Driver& driver = device.driver();
  const cuda::Stream stream = args.stream;
  const bool capturing = driver.is_capturing(stream);
  for (std::size_t i = 0; i < abi::kMaxMappedSegments; ++i) {
    if (params.segments[i].box_tokens == 0) continue;
    for (abi::TensorMap& map : params.kv_maps[i]) on_device.maps.encode(driver, map);
  }
  params.plan_bytes =
      static_cast<std::int32_t>(std::min<std::int64_t>(capturing ? on_device.blob.bytes() : plan.view.header->blob_bytes, INT32_MAX));
  params.leaves_l2 = leaves_l2(s, *plan.view.header) ? 1 : 0;
  if (capturing) note_captured(on_device, args);
  bool small = class_units(s, kSmall) > 0;
  bool large = class_units(s, kLarge) > 0;
  if (!capturing) {
    small = small && has_work(*plan.view.header, plan.view, kSmall);
    large = large && has_work(*plan.view.header, plan.view, kLarge);
  }
  const bool both = small && large;
  const bool in_order = both && s.cuda->kernels.classes[kLarge].shares_sms;
  const bool forks = both && !in_order;
  if (forks) {
    driver.record(on_device.fork, stream);
    driver.wait(on_device.side_stream, on_device.fork);
  }
  if (large) {
    set_class(s, checked, kLarge, params);
    params.order = in_order ? abi::ListOrder::kFirst : abi::ListOrder::kAlone;
    driver.launch(launch_of(s, kLarge, stream), &params);
  }
  if (small) {
    set_class(s, checked, kSmall, params);
    params.order = in_order ? abi::ListOrder::kSecond : abi::ListOrder::kAlone;
    cuda::Launch launch = launch_of(s, kSmall, forks ? on_device.side_stream : stream);
    launch.dependent = in_order;
    driver.launch(launch, &params);
  }
  if (forks) {
    driver.record(on_device.join, on_device.side_stream);
    driver.wait(stream, on_device.join);
  }
}

void run_cuda_once(const Context& context, const Schedule& schedule, const Plan& plan, AttentionArgs args) {
  const cuda::Runtime& runtime = context.cuda();
  DevicePlan on_device(context, schedule);
  on_device.upload(plan);
  const cuda::DeviceBuffer workspace(runtime.device, std::max<std::int64_t>(schedule.workspace_bytes(), 64));
  args.workspace = {static_cast<std::byte*>(workspace.data()), static_cast<std::size_t>(workspace.bytes())};
  args.device_plan = &on_device;
  run(context, schedule, plan, args);
  const cuda::CurrentDevice current(*runtime.device);
  runtime.device->driver().synchronize(nullptr);
}

}  // namespace girih::attention
