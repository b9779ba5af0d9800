// `girih bench attention --backend cuda`: each case is captured in a CUDA graph; before each replay a buffer larger than the L2 cache is
// overwritten, so that KV comes from memory, as in a model with other layers between; a time is that between two events around a replay.
// Ceilings: gpu_ceilings.h.
#include <fmt/format.h>

#include <memory>

#include "attention/cuda_state.h"
#include "base/error.h"
#include "cuda/runtime.h"
#include "tests/cases/serving_gpu.h"
#include "tools/attention_data.h"
#include "tools/bench.h"
#include "tools/gpu_ceilings.h"
#include "tools/gpu_timer.h"
#include "tools/plan_report.h"

namespace girih::tools {
namespace {

using cases::ServingCase;

/// Device memory of a case, and run()'s arguments that point into it.
class DeviceData {
 public:
  DeviceData(const Context& context, const AttentionData& data) : context_(context), args_(data.args()) {
    const Device device = context.device();
    for (const std::span<const std::byte> block : data.blocks()) copy(block.data(), std::ssize(block));
    for (TensorView* tensor : {&args_.q, &args_.q_rope, &args_.o}) {
      if (tensor->data == nullptr) continue;
      tensor->data = at(tensor->data);
      tensor->device = device;
    }
    for (SegmentData segment : args_.segments) {
      for (KvPlane* plane : {&segment.store.k, &segment.store.k_rope, &segment.store.v}) {
        if (plane->data == nullptr) continue;
        plane->data = at(plane->data);
        if (plane->scales.data != nullptr) plane->scales.data = at(plane->scales.data);
      }
      if (!segment.kv_indices.empty()) {
        copy(segment.kv_indices.data(), std::ssize(segment.kv_indices) * 4);
        segment.kv_indices = {static_cast<const std::int32_t*>(at(segment.kv_indices.data())), segment.kv_indices.size()};
      }
      segments_.push_back(segment);
    }
    for (ParamValue value : args_.params) {
      if (value.array.rank != 0) {
        copy(value.array.data, bytes(value.array.dtype, value.array.numel()));
        value.array.data = at(value.array.data);
        value.array.device = device;
      }
      params_.push_back(value);
    }
    args_.segments = segments_;
    args_.params = params_;
  }
  const AttentionArgs& args() const { return args_; }

 private:
  struct Block {
    const std::byte* host;
    std::int64_t bytes;
    cuda::DeviceBuffer memory;
  };
  void copy(const void* host, std::int64_t bytes) {
    cuda::Runtime& runtime = context_.cuda();
    const cuda::CurrentDevice current(*runtime.device);
    blocks_.push_back({static_cast<const std::byte*>(host), bytes, cuda::DeviceBuffer(runtime.device, bytes)});
    runtime.device->driver().copy_to_device(blocks_.back().memory.pointer(), host, bytes, nullptr);
    runtime.device->driver().synchronize(nullptr);
  }
  void* at(const void* host) const {
    for (const Block& block : blocks_) {
      const std::int64_t offset = static_cast<const std::byte*>(host) - block.host;
      if (offset >= 0 && offset < block.bytes) return static_cast<std::byte*>(block.memory.data()) + offset;
    }
    bug("benchmark data that was not copied");
  }

  const Context& context_;
  AttentionArgs args_;
  std::vector<Block> blocks_;
  std::vector<SegmentData> segments_;
  std::vector<ParamValue> params_;
};

class CudaBench {
 public:
  CudaBench(const BenchOptions& options, const Context& context)
      : context_(context),
        driver_(context.cuda().device->driver()),
        family_(options.family),
        repeats_(options.repeats > 0 ? options.repeats : 25),
        timer_(context) {}

  BenchRow measure(const ServingCase& c, const MachineCeilings& ceilings) {
    const AttentionData host_data(c);
    const DeviceData data(context_, host_data);
    const jit::JitStats before = context_.cuda().jit->stats();
    const BenchClock::time_point start = BenchClock::now();
    const Schedule schedule = girih::schedule(context_, host_data.batch().spec, host_data.batch().limits(),
                                              {.num_units = 0, .num_sms = 0, .family = family_.empty() ? c.family : family_});
    const double schedule_seconds = seconds_since(start);
    const jit::JitStats after = context_.cuda().jit->stats();

    Plan plan(schedule);
    DevicePlan on_device(context_, schedule);
    const cuda::DeviceBuffer workspace(context_.cuda().device, std::max<std::int64_t>(schedule.workspace_bytes(), 64));
    AttentionArgs args = data.args();
    args.workspace = {static_cast<std::byte*>(workspace.data()), static_cast<std::size_t>(workspace.bytes())};
    args.stream = timer_.stream();
    args.device_plan = &on_device;
    const std::vector<double> plan_times = time_plans(host_data.batch(), plan, on_device);
    run(context_, schedule, plan, args);
    driver_.synchronize(timer_.stream());

    BenchRow row{.op = "attention", .name = c.name, .backend = "cuda", .bytes = useful_bytes(c), .flops = useful_flops(c), .extra = {}};
    const std::vector<double> times = timer_.replays([&] { run(context_, schedule, plan, args); }, repeats_);
    row.seconds = median(times);
    const double peak = ceilings.bf16_flops > 0 ? row.flops / ceilings.bf16_flops : 0;
    row.roofline_fraction = std::max(peak, row.bytes / ceilings.read_bytes_per_second) / row.seconds;
    row.plan_seconds = plan_times[0];
    row.host_seconds = timer_.host([&] { run(context_, schedule, plan, args); });
    row.extra["upload_seconds"] = plan_times[1];
    row.extra["schedule_seconds"] = schedule_seconds;
    row.extra["kernels_compiled"] = after.compiled - before.compiled;
    row.extra["compile_seconds"] = after.compile_seconds - before.compile_seconds;
    row.extra["seconds_low"] = *std::min_element(times.begin(), times.end());
    row.extra["repeats"] = times.size();
    row.extra["num_items"] = plan.info().num_items;
    const auto lists = list_balances(schedule.state(), plan.state().view);
    for (int k = 0; k < attention::kNumClasses; ++k) {
      const ListBalance& list = lists[static_cast<std::size_t>(k)];
      if (!list.empty) row.extra["balance"][std::string(list_name({lists[0].num_units, lists[1].num_units}, k))] = list.largest;
    }
    row.extra["blob_bytes"] = plan.info().blob_bytes;
    row.extra["workspace_bytes"] = schedule.workspace_bytes();
    row.extra["kernel"] = schedule.key();
    for (int k = 0; k < attention::kNumClasses; ++k) {
      if (attention::class_units(schedule.state(), k) > 0)
        row.extra["families"].push_back(schedule.state().cuda->kernels.classes[k].family);
    }
    return row;
  }

 private:
  /// Seconds of plan() and of upload(), medians.
  std::vector<double> time_plans(const OwnedBatch& batch, Plan& plan, DevicePlan& on_device) {
    std::vector<double> plans, uploads;
    for (int i = 0; i < 20; ++i) {
      const BatchView view = batch.view();
      const BenchClock::time_point start = BenchClock::now();
      plan.update(view.batch);
      plans.push_back(seconds_since(start));
      const BenchClock::time_point between = BenchClock::now();
      on_device.upload(plan, timer_.stream());
      uploads.push_back(seconds_since(between));
      driver_.synchronize(timer_.stream());
    }
    return {median(plans), median(uploads)};
  }

  const Context& context_;
  const cuda::Driver& driver_;
  std::string family_;
  int repeats_;
  GpuTimer timer_;
};

}  // namespace

std::vector<std::string> gpu_attention_case_names() {
  std::vector<std::string> names;
  for (const ServingCase& c : cases::gpu_serving_cases()) names.push_back(c.name);
  return names;
}

BenchResult bench_attention_cuda(const BenchOptions& options) {
  if (options.workers != 0 || !options.cpus.empty() || options.target != "best")
    fail(Code::invalid_argument, "--backend", "cuda takes no --workers, --cpus or --target");
  const std::vector<std::string> chosen = choose_cases(options, gpu_attention_case_names());
  ContextOptions context_options;
  context_options.device = {DeviceKind::cuda, 0};
  const Context context(context_options);
  CudaBench bench(options, context);
  BenchResult result;
  const cuda::DeviceInfo& info = context.cuda().device->info();
  result.machine = machine_facts(info.name, info.num_sms);
  result.ceilings = measure_gpu_ceilings(context);
  fmt::print(options.table, "{}, sm_{}, {} SMs\nceilings: read {:.0f} GB/s, mma.sync f16 {:.0f} TFLOP/s\n\n", info.name, info.arch,
             info.num_sms, result.ceilings.read_bytes_per_second / 1e9, result.ceilings.bf16_flops / 1e12);
  fmt::print(options.table, "{:<34} {:>10} {:>8} {:>9} {:>9} {:>8} {:>9} {:>8} {:>8}  {}\n", "case", "us", "GB/s", "TFLOP/s", "roofline",
             "plan us", "upload us", "host us", "jit ms", "families");
  for (const ServingCase& c : cases::gpu_serving_cases()) {
    if (std::find(chosen.begin(), chosen.end(), c.name) == chosen.end()) continue;
    try {
      const BenchRow row = bench.measure(c, result.ceilings);
      fmt::print(options.table, "{:<34} {:>10.2f} {:>8.0f} {:>9.1f} {:>7.1f} % {:>8.1f} {:>9.1f} {:>8.1f} {:>8.0f}  {}\n", row.name,
                 row.seconds * 1e6, row.bytes / row.seconds / 1e9, row.flops / row.seconds / 1e12, row.roofline_fraction * 100,
                 row.plan_seconds * 1e6, row.extra["upload_seconds"].get<double>() * 1e6, row.host_seconds * 1e6,
                 row.extra["schedule_seconds"].get<double>() * 1e3, row.extra["families"].dump());
      std::fflush(options.table);
      result.rows.push_back(row);
    } catch (const Error& error) {  // one case that cannot run does not lose the others
      fmt::print(options.table, "{:<34} failed: {}\n", c.name, error.what());
      result.exit_code = kRuntimeError;
    }
  }
  return result;
}

}  // namespace girih::tools
