// DevicePlan: uploads go through a ring of pinned buffers, each with an event that says when its copy is done, so that upload() waits for
// nothing unless four are under way. A captured upload copies from one buffer at a fixed address, which stage() fills before each replay.
#include "attention/device_plan.h"

#include <algorithm>
#include <cstring>

#include "abi/attention_params.h"
#include "base/error.h"
#include "cuda/runtime.h"

namespace girih {
namespace attention {
namespace {

constexpr const char* kOp = "attention.upload";

/// A replayed graph has the tensors of its capture: plans that need more would read beyond them.
void check_captured(const CapturedArgs& captured, const PlanView& view) {
  if (captured.num_tokens == INT64_MAX) return;
  const abi::PlanHeader& header = *view.header;
  if (header.num_tokens > captured.num_tokens) {
    fail(Code::invalid_argument, kOp, "plan has {} tokens; a graph was captured with tensors of {}", header.num_tokens,
         captured.num_tokens);
  }
  if (std::ssize(view.segments) > std::ssize(captured.page_size)) {
    fail(Code::invalid_argument, kOp, "plan has {} segments; a graph was captured with {}", view.segments.size(),
         captured.page_size.size());
  }
  for (std::size_t i = 0; i < view.segments.size(); ++i) {
    const abi::SegmentInfo& segment = view.segments[i];
    if (segment.page_size != captured.page_size[i]) {
      fail(Code::invalid_argument, kOp, "plan: segments[{}].page_size={}; a graph was captured with {}", i, segment.page_size,
           captured.page_size[i]);
    }
    if (segment.num_entries > captured.num_entries[i]) {
      fail(Code::invalid_argument, kOp, "plan: segments[{}] reads {} table entries; a graph was captured with {}", i, segment.num_entries,
           captured.num_entries[i]);
    }
    if (segment.has_page_pos != 0 && !captured.page_pos[i])
      fail(Code::invalid_argument, kOp, "plan: segments[{}] was planned with page_pos; a graph was captured without", i);
    if (segment.page_size != kEndlessPage) continue;
    const auto rows = view.kv_rows.subspan(static_cast<std::size_t>(segment.kv_row_begin),
                                           static_cast<std::size_t>(segment.num_groups * segment.num_table_heads));
    for (const abi::KvRow& row : rows) {
      if (row.kv_len > 0 && row.table_begin + row.kv_len > captured.num_pages[i]) {
        fail(Code::invalid_argument, kOp, "plan: segments[{}] reads tokens up to {}; a graph was captured with {}", i,
             row.table_begin + row.kv_len, captured.num_pages[i]);
      }
    }
  }
}

/// The blob of a plan that fits the device plan.
std::span<const std::byte> checked_blob(const DevicePlanState& s, const PlanState& plan) {
  if (plan.view.header == nullptr) fail(Code::invalid_argument, kOp, "plan holds no batch yet; call update() first");
  if (plan.view.header->schedule_hash != s.schedule->hash) fail(Code::invalid_argument, kOp, "plan was made for another schedule");
  check_captured(s.captured, plan.view);
  return {reinterpret_cast<const std::byte*>(plan.view.header), static_cast<std::size_t>(plan.view.header->blob_bytes)};
}

}  // namespace

DevicePlanState::DevicePlanState(const Context& context, std::shared_ptr<const ScheduleState> state)
    : schedule(std::move(state)), device(context.cuda().device) {
  const cuda::CurrentDevice current(*device);
  const cuda::Driver& driver = device->driver();
  blob = cuda::DeviceBuffer(device, schedule->max_blob_bytes);
  counters = cuda::DeviceBuffer(device, (kNumClasses + schedule->max_merges) * 4);
  driver.fill(counters.pointer(), 0, counters.bytes(), nullptr);
  driver.synchronize(nullptr);
  staging = cuda::PinnedBuffer(device, schedule->max_blob_bytes);  // now: nothing may be allocated while a stream is capturing
  side_stream = driver.create_stream();
  fork = driver.create_event();
  join = driver.create_event();
  captured.reserve(abi::kMaxCudaSegments);
  for (Slot& slot : slots) {
    slot.memory = cuda::PinnedBuffer(device, schedule->max_blob_bytes);
    slot.copied = driver.create_event();
  }
}

DevicePlanState::~DevicePlanState() {
  try {
    const cuda::CurrentDevice current(*device);
    const cuda::Driver& driver = device->driver();
    if (side_stream != nullptr) driver.destroy(side_stream);
    if (fork != nullptr) driver.destroy_event(fork);
    if (join != nullptr) driver.destroy_event(join);
    for (Slot& slot : slots) {
      if (slot.copied != nullptr) driver.destroy_event(slot.copied);
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): the process is ending, and the driver went first
  }
}

void check_uploaded(const DevicePlanState& on_device, const ScheduleState& schedule, const PlanState& plan) {
  if (on_device.schedule->hash != schedule.hash || on_device.device->device() != schedule.device.index)
    fail(Code::invalid_argument, "attention.run", "device_plan was made for another schedule");
  if (on_device.uploaded != &plan || on_device.uploaded_batch != plan.num_updates)
    fail(Code::invalid_argument, "attention.run", "device_plan holds another batch than plan; upload() it first");
}

void note_captured(const DevicePlanState& on_device, const AttentionArgs& args) {
  CapturedArgs& c = on_device.captured;
  c.num_tokens = std::min({c.num_tokens, args.q.shape[0], args.o.shape[0], args.lse.rank != 0 ? args.lse.shape[0] : INT64_MAX});
  const std::size_t known = c.page_size.size();
  for (std::size_t i = 0; i < args.segments.size(); ++i) {
    const SegmentData& data = args.segments[i];
    if (i >= known) {
      c.page_size.push_back(data.store.page_size);
      c.num_entries.push_back(std::ssize(data.kv_indices));
      c.num_pages.push_back(data.store.num_pages);
      c.page_pos.push_back(!data.page_pos.empty());
      continue;
    }
    c.num_entries[i] = std::min<std::int64_t>(c.num_entries[i], std::ssize(data.kv_indices));
    c.num_pages[i] = std::min(c.num_pages[i], data.store.num_pages);
    c.page_pos[i] = c.page_pos[i] && !data.page_pos.empty();
  }
}

}  // namespace attention

using attention::DevicePlanState;

DevicePlan::DevicePlan(const Context& context, const Schedule& schedule) {
  const attention::ScheduleState& state = schedule.state();
  if (state.device.kind != DeviceKind::cuda || context.device() != state.device) {
    fail(Code::invalid_argument, attention::kOp, "context.device={} and the schedule is for {}; both must be one CUDA device",
         name(context.device()), name(state.device));
  }
  state_ = std::make_unique<DevicePlanState>(context, schedule.shared_state());
}
DevicePlan::~DevicePlan() = default;
DevicePlan::DevicePlan(DevicePlan&&) noexcept = default;
DevicePlan& DevicePlan::operator=(DevicePlan&&) noexcept = default;

void DevicePlan::upload(const Plan& plan, void* stream) {
  DevicePlanState& s = *state_;
  const std::span<const std::byte> blob = attention::checked_blob(s, plan.state());
  const cuda::CurrentDevice current(*s.device);
  const cuda::Driver& driver = s.device->driver();
  if (driver.is_capturing(stream)) {
    s.staged = true;
    std::memcpy(s.staging.data(), blob.data(), blob.size());
    driver.copy_to_device(s.blob.pointer(), s.staging.data(), s.schedule->max_blob_bytes, stream);
  } else {
    DevicePlanState::Slot& slot = s.slots[s.next_slot];
    if (slot.used && !driver.is_done(slot.copied)) driver.synchronize_event(slot.copied);
    std::memcpy(slot.memory.data(), blob.data(), blob.size());
    driver.copy_to_device(s.blob.pointer(), slot.memory.data(), std::ssize(blob), stream);
    driver.record(slot.copied, stream);
    slot.used = true;
    s.next_slot = (s.next_slot + 1) % DevicePlanState::kSlots;
  }
  s.uploaded = &plan.state();
  s.uploaded_batch = plan.state().num_updates;
}

void DevicePlan::stage(const Plan& plan) {
  DevicePlanState& s = *state_;
  if (!s.staged) fail(Code::invalid_argument, attention::kOp, "no upload of this device plan was captured; use upload()");
  const std::span<const std::byte> blob = attention::checked_blob(s, plan.state());
  std::memcpy(s.staging.data(), blob.data(), blob.size());
  s.uploaded = &plan.state();
  s.uploaded_batch = plan.state().num_updates;
}

std::int64_t DevicePlan::capacity_bytes() const { return state_->schedule->max_blob_bytes; }

}  // namespace girih
