#include "device.h"

#include "girih/error.h"

namespace girih::cuda_test {

namespace {

thread_local Gpu* of_this_thread = nullptr;

Gpu make_gpu(int ordinal) {
  Gpu found;
  try {
    found.context = std::make_unique<Context>(ContextOptions{.device = {DeviceKind::cuda, ordinal}});
  } catch (const Error& error) {
    if (error.code() != Code::unsupported) throw;
    found.reason = std::string("no GPU: ") + error.what();
  }
  return found;
}

}  // namespace

Gpu& gpu() {
  static Gpu first = make_gpu(0);
  return of_this_thread != nullptr ? *of_this_thread : first;
}

OnDevice::OnDevice(int ordinal) : gpu_(make_gpu(ordinal)) { of_this_thread = &gpu_; }

OnDevice::~OnDevice() { of_this_thread = nullptr; }

const void* DeviceMemory::add_block(const void* host, std::int64_t bytes) {
  const auto* begin = static_cast<const std::byte*>(host);
  if (bytes == 0) return nullptr;
  const auto found = blocks_.find(begin);
  if (found == blocks_.end()) {
    // As aligned as the host's: memory of odd addresses is one of the things tested.
    Block block{bytes, cuda::DeviceBuffer(gpu().context->cuda().device, bytes)};
    const cuda::CurrentDevice current(*gpu().context->cuda().device);
    gpu().driver().copy_to_device(block.memory.pointer(), host, bytes, nullptr);
    gpu().driver().synchronize(nullptr);
    blocks_.emplace(begin, std::move(block));
  }
  return translate(host);
}

const void* DeviceMemory::translate(const void* host) const {
  if (host == nullptr) return nullptr;
  auto next = blocks_.upper_bound(static_cast<const std::byte*>(host));
  if (next == blocks_.begin()) throw std::logic_error("host memory that was not added");
  --next;
  const std::int64_t offset = static_cast<const std::byte*>(host) - next->first;
  if (offset > next->second.bytes) throw std::logic_error("host memory that was not added");
  return static_cast<const std::byte*>(next->second.memory.data()) + offset;
}

void DeviceMemory::fetch(void* host, std::int64_t bytes) const {
  if (bytes == 0) return;
  const cuda::CurrentDevice current(*gpu().context->cuda().device);
  gpu().driver().copy_to_host(host, reinterpret_cast<cuda::Pointer>(translate(host)), bytes, nullptr);
  gpu().driver().synchronize(nullptr);
}

DeviceProblem::DeviceProblem(const cases::Problem& p) : out_(p) {
  const Device device = gpu().context->device();
  const auto move = [&](TensorView view, const std::vector<std::byte>& bytes) {
    if (view.rank == 0) return view;
    memory_.add(bytes.data(), std::ssize(bytes));
    view.data = memory_.at(view.data);
    view.device = device;
    return view;
  };
  q_ = move(p.q, p.q_data);
  q_rope_ = move(p.q_rope, p.q_rope_data);
  for (const cases::SegmentMemory& m : p.memory) {
    memory_.add(m.data.data(), std::ssize(m.data));
    memory_.add(m.scales.data(), std::ssize(m.scales));
    SegmentData data = m.run;
    for (KvPlane* plane : {&data.store.k, &data.store.k_rope, &data.store.v}) {
      plane->data = memory_.at(plane->data);
      if (plane->scales.data != nullptr) plane->scales.data = memory_.at(plane->scales.data);
    }
    const auto n = data.kv_indices.size();
    data.kv_indices = {memory_.add(data.kv_indices.data(), static_cast<std::int64_t>(n) * 4), n};
    const auto pages = data.page_pos.size();
    data.page_pos = {memory_.add(data.page_pos.data(), static_cast<std::int64_t>(pages) * 8), pages};
    segments_.push_back(data);
  }
  for (ParamValue value : p.run_params) {
    if (value.array.rank != 0) {
      value.array.data = memory_.add(static_cast<const std::byte*>(value.array.data), bytes(value.array.dtype, value.array.numel()));
      value.array.device = device;
    }
    params_.push_back(value);
  }
  const auto [o_bytes, lse_bytes] = out_.memory();
  memory_.add(o_bytes.data(), std::ssize(o_bytes));
  memory_.add(lse_bytes.data(), std::ssize(lse_bytes));
  o_ = out_.o;
  o_.data = memory_.at(o_.data);
  o_.device = device;
  if (out_.o_scale.rank != 0) {
    o_scale_ = out_.o_scale;
    o_scale_.data = memory_.add(static_cast<const std::byte*>(o_scale_.data), 4);
    o_scale_.device = device;
  }
  if (out_.lse.rank == 0) return;
  lse_ = out_.lse;
  lse_.data = memory_.at(lse_.data);
  lse_.device = device;
}

void DeviceProblem::clear_outputs() {
  const cuda::CurrentDevice current(*gpu().context->cuda().device);
  for (const std::span<std::byte> bytes : out_.memory()) {
    if (!bytes.empty()) gpu().driver().fill(reinterpret_cast<cuda::Pointer>(memory_.at(bytes.data())), 0xff, std::ssize(bytes), nullptr);
  }
  gpu().driver().synchronize(nullptr);
}

cases::Outputs& DeviceProblem::outputs() {
  const cuda::CurrentDevice current(*gpu().context->cuda().device);
  gpu().driver().synchronize_context();
  for (const std::span<std::byte> bytes : out_.memory()) memory_.fetch(bytes.data(), std::ssize(bytes));
  return out_;
}

AttentionArgs DeviceProblem::args(const DevicePlan& plan, std::span<std::byte> workspace, cuda::Stream stream) const {
  return {.q = q_,
          .q_rope = q_rope_,
          .segments = segments_,
          .params = params_,
          .o = o_,
          .lse = lse_,
          .o_scale = o_scale_,
          .workspace = workspace,
          .stream = stream,
          .device_plan = &plan};
}

DeviceWorkspace::DeviceWorkspace(std::int64_t bytes, std::uint8_t pattern)
    : bytes_(bytes), memory_(gpu().context->cuda().device, std::max<std::int64_t>(bytes, 64)) {
  const cuda::CurrentDevice current(*gpu().context->cuda().device);
  gpu().driver().fill(memory_.pointer(), pattern, memory_.bytes(), nullptr);
  gpu().driver().synchronize(nullptr);
}

cases::Outputs execute(const cases::Problem& p, const ScheduleOptions& options, std::uint8_t workspace_pattern) {
  return execute(p, girih::schedule(*gpu().context, p.c.spec, p.limits, options), workspace_pattern);
}

cases::Outputs execute(const cases::Problem& p, const Schedule& schedule, std::uint8_t workspace_pattern) {
  Context& context = *gpu().context;
  Plan plan(schedule);
  plan.update(p.batch);
  DevicePlan on_device(context, schedule);
  on_device.upload(plan);
  const DeviceWorkspace workspace(schedule.workspace_bytes(), workspace_pattern);
  DeviceProblem problem(p);
  run(context, schedule, plan, problem.args(on_device, workspace.span()));
  cases::Outputs out = std::move(problem.outputs());
  for (int c = 0; c < attention::kNumClasses; ++c) {
    const bool runs = attention::class_units(schedule.state(), c) > 0;
    const attention::CudaKernel& kernel = schedule.state().cuda->kernels.classes[c];
    const std::string& family = kernel.family;
    out.bf16_weights = out.bf16_weights || (runs && family != "floor");
    if (runs) cases::note_byte_products(p, family, kernel.source, out);
  }
  return out;
}

}  // namespace girih::cuda_test
