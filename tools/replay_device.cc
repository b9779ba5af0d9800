// See replay_device.h.
#include "tools/replay_device.h"

#include <algorithm>
#include <utility>

#include "cuda/runtime.h"

namespace girih::tools {
namespace {

/// Bytes of the dense tensors of the replay.
std::int64_t size_of(const TensorView& t) { return bytes(t.dtype, t.numel()); }

std::int64_t scale_bytes(const KvStore& store, const KvScales& scales) {
  switch (scales.granularity) {
    case ScaleGranularity::none: return 0;
    case ScaleGranularity::tensor: return 4;
    default: return scales.page_byte_stride * store.num_pages;
  }
}

}  // namespace

ReplayDevice::ReplayDevice(const Context& context, const LayerPool& pool, int num_layers, std::int64_t workspace_bytes,
                           std::span<const float> sinks)
    : context_(context),
      driver_(context.cuda().device->driver()),
      current_(*context.cuda().device),
      workspace_(context.cuda().device, std::max<std::int64_t>(workspace_bytes, 64)),
      num_sinks_(std::ssize(sinks)) {
  for (int layer = 0; layer < num_layers; ++layer) {
    Pool& twin = pools_.emplace_back();
    twin.store = pool.store();
    make_plane(pool.store().k, twin.store.k, twin.k, twin.k_scales, pool.store());
    if (pool.store().v.data != nullptr) make_plane(pool.store().v, twin.store.v, twin.v, twin.v_scales, pool.store());
  }
  if (!sinks.empty()) {
    sinks_ = cuda::DeviceBuffer(context.cuda().device, std::ssize(sinks) * 4);
    driver_.copy_to_device(sinks_.pointer(), sinks.data(), std::ssize(sinks) * 4, nullptr);
  }
  wait();
}

ReplayDevice::~ReplayDevice() {
  for (cuda::Event event : marks_) driver_.destroy_event(event);
}

void ReplayDevice::mark() {
  if (num_marks_ == marks_.size()) marks_.push_back(driver_.create_event(true));
  driver_.record(marks_[num_marks_++], nullptr);
}

void ReplayDevice::make_plane(const KvPlane& host, KvPlane& plane, cuda::DeviceBuffer& data, cuda::DeviceBuffer& scales,
                              const KvStore& store) {
  const std::int64_t size = host.page_byte_stride * store.num_pages;
  data = cuda::DeviceBuffer(context_.cuda().device, size);
  driver_.fill(data.pointer(), 0, size, nullptr);
  plane.data = data.data();
  const std::int64_t scale_size = scale_bytes(store, host.scales);
  if (scale_size == 0) return;
  scales = cuda::DeviceBuffer(context_.cuda().device, scale_size);
  driver_.copy_to_device(scales.pointer(), host.scales.data, scale_size, nullptr);
  plane.scales.data = scales.data();
}

void ReplayDevice::wait() { driver_.synchronize(nullptr); }

void ReplayDevice::upload(std::size_t kind, const Plan& plan) { plans_[kind].upload(plan); }

void ReplayDevice::set_tables(std::span<const std::span<const std::int32_t>> tables, std::span<const std::int32_t> slots) {
  std::vector<std::int32_t> all;
  for (const auto& table : tables) all.insert(all.end(), table.begin(), table.end());
  all.insert(all.end(), slots.begin(), slots.end());
  const std::int64_t size = std::max<std::int64_t>(std::ssize(all) * 4, 4);
  if (tables_.bytes() < size) tables_ = cuda::DeviceBuffer(context_.cuda().device, 2 * size);
  driver_.copy_to_device(tables_.pointer(), all.data(), std::ssize(all) * 4, nullptr);
  wait();
  segment_tables_.clear();
  const auto* at = static_cast<const std::int32_t*>(tables_.data());
  for (const auto& table : tables) {
    segment_tables_.emplace_back(at, table.size());
    at += table.size();
  }
  slots_ = TensorView(const_cast<std::int32_t*>(at), DType::i32, {std::ssize(slots)}, context_.device());
}

cuda::DeviceBuffer& ReplayDevice::memory_of(const TensorView& host) {
  const auto found = std::find_if(twins_.begin(), twins_.end(), [&](const Twin& twin) { return twin.host == host.data; });
  Twin& twin = found != twins_.end() ? *found : twins_.emplace_back(Twin{host.data, {}});
  const std::int64_t size = std::max<std::int64_t>(size_of(host), 64);
  if (twin.memory.bytes() < size) twin.memory = cuda::DeviceBuffer(context_.cuda().device, 2 * size);
  return twin.memory;
}

TensorView ReplayDevice::twin(const TensorView& host) {
  if (host.rank == 0) return host;
  TensorView device = host;
  device.data = memory_of(host).data();
  device.device = context_.device();
  return device;
}

void ReplayDevice::put(const TensorView& host) {
  if (host.rank == 0) return;
  driver_.copy_to_device(memory_of(host).pointer(), host.data, size_of(host), nullptr);
  wait();
}

void ReplayDevice::poison(const TensorView& host) {
  driver_.fill(memory_of(host).pointer(), 0xFF, size_of(host), nullptr);
  wait();
}

void ReplayDevice::fetch(const TensorView& host) {
  driver_.copy_to_host(host.data, memory_of(host).pointer(), size_of(host), nullptr);
  wait();
}

void ReplayDevice::fetch_pool(int layer, const LayerPool& pool) {
  const Pool& twin = pools_[static_cast<std::size_t>(layer)];
  const auto plane = [&](const KvPlane& host, const cuda::DeviceBuffer& data, const cuda::DeviceBuffer& scales) {
    driver_.copy_to_host(const_cast<void*>(host.data), data.pointer(), data.bytes(), nullptr);
    if (scales.bytes() > 0) driver_.copy_to_host(const_cast<void*>(host.scales.data), scales.pointer(), scales.bytes(), nullptr);
  };
  plane(pool.store().k, twin.k, twin.k_scales);
  if (pool.store().v.data != nullptr) plane(pool.store().v, twin.v, twin.v_scales);
  wait();
}

void ReplayDevice::warm_up(const TensorView& k, const TensorView& v) {
  const std::vector<std::int32_t> slot{0};
  set_tables({}, slot);
  append(0, k, v);
  wait();
  take_seconds();
}

void ReplayDevice::append(int layer, const TensorView& k, const TensorView& v) {
  if (num_marks_ == 0) mark();
  girih::append(context_, pools_[static_cast<std::size_t>(layer)].store, AppendTable{.slots = slots_}, twin(k), {}, twin(v));
  mark();
}

void ReplayDevice::attend(int layer, std::size_t kind, const Schedule& schedule, const Plan& plan, AttentionArgs args) {
  std::vector<SegmentData> segments(args.segments.begin(), args.segments.end());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    segments[i].store = pools_[static_cast<std::size_t>(layer)].store;
    segments[i].kv_indices = segment_tables_[i];
  }
  args.segments = segments;
  args.q = twin(args.q);
  args.o = twin(args.o);
  args.lse = twin(args.lse);
  ParamValue sinks{.name = "sinks"};
  sinks.array = TensorView(sinks_.data(), DType::f32, {num_sinks_}, context_.device());
  args.params = num_sinks_ > 0 ? std::span<const ParamValue>(&sinks, 1) : std::span<const ParamValue>();
  args.workspace = {static_cast<std::byte*>(workspace_.data()), static_cast<std::size_t>(workspace_.bytes())};
  args.device_plan = &plans_[kind];
  girih::run(context_, schedule, plan, args);
  mark();
}

ReplayDevice::Seconds ReplayDevice::take_seconds() {
  Seconds seconds;
  for (std::size_t i = 1; i < num_marks_; ++i) {
    (i % 2 == 1 ? seconds.append : seconds.attend) += driver_.elapsed_seconds(marks_[i - 1], marks_[i]);
  }
  num_marks_ = 0;
  return seconds;
}

}  // namespace girih::tools
