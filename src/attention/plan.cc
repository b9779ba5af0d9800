// plan(): runs the steps of planner.h, writes the blob into a second buffer and swaps it in, so that a batch that is refused changes
// nothing. Items come first, at a place that only the schedule decides, and are written straight into the blob.
#include "attention/plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "attention/planner.h"
#include "base/error.h"
#include "base/math.h"

namespace girih {
namespace attention {
namespace {

constexpr std::int64_t kAlign = 64;

std::byte* aligned(std::vector<std::byte>& memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (round_up(static_cast<std::int64_t>(address), kAlign) - static_cast<std::int64_t>(address));
}

/// Grows `memory` to hold `size` aligned bytes, keeping the first `keep`. Half as much again, so that growing batches settle.
void reserve_blob(std::vector<std::byte>& memory, std::int64_t size, std::int64_t keep) {
  if (std::ssize(memory) >= size + kAlign) return;
  std::vector<std::byte> larger(static_cast<std::size_t>(size + size / 2 + kAlign));
  if (keep > 0) std::memcpy(aligned(larger), aligned(memory), static_cast<std::size_t>(keep));
  memory.swap(larger);
}

/// Copies an array in and clears the gap before it: equal batches give equal bytes.
template <typename T>
void write_array(std::byte* blob, const abi::BlobArray& array, const T* from, std::int64_t& written) {
  std::memset(blob + written, 0, static_cast<std::size_t>(array.offset - written));
  if (array.count > 0 && from != nullptr) std::memcpy(blob + array.offset, from, static_cast<std::size_t>(array.count) * sizeof(T));
  written = array.offset + array.count * static_cast<std::int64_t>(sizeof(T));
}

/// Where each plan-time parameter goes in param_data; returns its bytes.
std::int64_t place_params(const ScheduleState& schedule, const variant::ParamTable& table,
                          std::array<abi::PlanParam, variant::Program::kMaxParams>& out) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < schedule.program.params.size(); ++i) {
    const variant::ParamInfo& info = schedule.program.params[i];
    out[i] = {end, 0};
    if (info.time != ParamTime::plan) continue;
    out[i].size = info.kind == variant::ParamInfo::Kind::scalar ? 1 : table[i].size;
    end = round_up(end + param_bytes(info, out[i].size), kAlign);
    if (end > schedule.limits.max_param_bytes) {
      fail(Code::invalid_argument, kPlanOp, "params \"{}\" brings plan-time parameters to {} bytes; the schedule's max_param_bytes is {}",
           info.name, end, schedule.limits.max_param_bytes);
    }
  }
  return end;
}

void write_params(const ScheduleState& schedule, const variant::ParamTable& table,
                  const std::array<abi::PlanParam, variant::Program::kMaxParams>& places, std::byte* data, std::int64_t size) {
  std::memset(data, 0, static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < schedule.program.params.size(); ++i) {
    const variant::ParamInfo& info = schedule.program.params[i];
    if (info.time != ParamTime::plan) continue;
    std::byte* to = data + places[i].offset;
    if (info.kind != variant::ParamInfo::Kind::scalar) {
      if (places[i].size > 0) std::memcpy(to, table[i].data, static_cast<std::size_t>(param_bytes(info, places[i].size)));
    } else if (info.dtype == DType::i64) {
      std::memcpy(to, &table[i].integer, 8);
    } else {
      const double number = table[i].number;
      std::memcpy(to, &number, 8);
    }
  }
}

PlanInfo info_of(const ScheduleState& schedule, const abi::PlanHeader& header) {
  return {.num_items = header.items.count,
          .num_merges = header.merges.count,
          .workspace_bytes = lay_out_workspace(schedule, header.part_rows).total,
          .blob_bytes = header.blob_bytes,
          .max_unit_cost = header.max_unit_cost,
          .total_cost = header.total_cost,
          .max_piece_cost = header.max_piece_cost,
          .visible_pairs = header.visible_pairs};
}

/// Makes planner.next_blob the plan's. Nothing here throws.
void swap_in(PlanState& plan, const PlanInfo& info) noexcept {
  plan.blob.swap(plan.planner->next_blob);
  plan.view = view_blob(aligned(plan.blob));
  plan.params = blob_params(*plan.schedule_state, plan.view);
  plan.info = info;
  ++plan.num_updates;
}

/// Rows may be in several tiles, or in none.
bool needs_regions(const Batch& batch) { return batch.segments.size() != 1 || !batch.segments[0].qo_indptr.empty(); }

}  // namespace

std::int64_t param_bytes(const variant::ParamInfo& info, std::int64_t size) {
  switch (info.kind) {
    case variant::ParamInfo::Kind::scalar: return 8;
    case variant::ParamInfo::Kind::bits: return ceil_div(size, 8);
    default: return bytes(info.dtype, size);
  }
}

abi::PlanHeader lay_out_blob(const ScheduleState& schedule, const BlobCounts& counts) {
  std::int64_t end = 0;
  const auto add = [&end](std::int64_t count, std::size_t size) {
    const abi::BlobArray array{round_up(end, kAlign), count};
    end = array.offset + count * static_cast<std::int64_t>(size);
    return array;
  };
  abi::PlanHeader header{};
  add(1, sizeof(abi::PlanHeader));
  header.unit_begin = add(std::int64_t{schedule.num_units} + 1, sizeof(std::int32_t));
  header.items = add(counts.items, sizeof(abi::WorkItem));
  header.requests = add(counts.requests, sizeof(abi::RequestInfo));
  header.segments = add(counts.segments, sizeof(abi::SegmentInfo));
  header.kv_rows = add(counts.kv_rows, sizeof(abi::KvRow));
  header.params = add(std::ssize(schedule.program.params), sizeof(abi::PlanParam));
  header.param_data = add(counts.param_bytes, 1);
  header.merges = add(counts.merges, sizeof(abi::MergeItem));
  header.merge_parts = add(counts.merge_parts, sizeof(abi::MergePart));
  header.blob_bytes = end;
  return header;
}

Planner::Planner(const ScheduleState& schedule) : mask(schedule.program) {}

PlanState::PlanState(std::shared_ptr<const ScheduleState> state)
    : schedule_state(std::move(state)), schedule(schedule_state), planner(std::make_unique<Planner>(*schedule_state)) {}

PlanState::~PlanState() = default;

void make_plan(PlanState& plan, const Batch& batch) {
  const ScheduleState& schedule = *plan.schedule_state;
  Planner& p = *plan.planner;
  read_batch(p, schedule, batch);
  std::array<abi::PlanParam, variant::Program::kMaxParams> params{};
  const std::int64_t param_size = place_params(schedule, p.params, params);
  lay_tiles(p, schedule, batch);
  p.regions.clear();
  p.gang = 1;
  if (needs_regions(batch))
    find_regions(p, schedule);
  else
    part_gangs(p, schedule);
  const std::int64_t most_items = max_emitted_items(p, schedule);
  if (most_items > schedule.max_items) {
    fail(Code::invalid_argument, kPlanOp,
         "the batch needs {} work items; the schedule's limits.max_items is {}: raise it, or plan fewer rows", most_items,
         schedule.max_items);
  }

  lay_merges(p, schedule);
  BlobCounts counts{.items = most_items};
  abi::PlanHeader header = lay_out_blob(schedule, counts);
  reserve_blob(p.next_blob, header.blob_bytes, 0);
  counts.items = emit_items(p, schedule, reinterpret_cast<abi::WorkItem*>(aligned(p.next_blob) + header.items.offset));
  fill_region_merges(p, schedule);
  if (p.part_rows > schedule.max_part_rows) bug("plan uses {} part rows, more than the bound {}", p.part_rows, schedule.max_part_rows);
  counts = {.items = counts.items,
            .requests = std::ssize(p.requests),
            .segments = std::ssize(p.segments),
            .kv_rows = std::ssize(p.kv_rows),
            .param_bytes = param_size,
            .merges = std::ssize(p.merges),
            .merge_parts = std::ssize(p.merge_parts)};
  header = lay_out_blob(schedule, counts);
  if (header.blob_bytes > schedule.max_blob_bytes || counts.merges > schedule.max_merges) {
    bug("plan has {} bytes and {} merges, more than the bounds {} and {}", header.blob_bytes, counts.merges, schedule.max_blob_bytes,
        schedule.max_merges);
  }
  reserve_blob(p.next_blob, header.blob_bytes, header.requests.offset);
  std::byte* blob = aligned(p.next_blob);

  header.magic = abi::kPlanMagic;
  header.version = abi::kPlanVersion;
  header.schedule_hash = schedule.hash;
  header.num_tokens = p.num_tokens;
  header.num_requests = static_cast<std::int32_t>(p.requests.size());
  header.num_segments = static_cast<std::int32_t>(p.segments.size());
  header.num_units = schedule.num_units;
  header.batch_invariant = schedule.spec.batch_invariant ? 1 : 0;
  for (int c = 0; c <= kNumClasses; ++c) header.class_unit_begin[c] = class_unit_begin(schedule, c);
  header.num_empty_merges = static_cast<std::int32_t>(p.num_empty_merges);
  header.part_rows = p.part_rows;
  for (const std::int64_t cost : p.unit_costs) {
    header.max_unit_cost = std::max(header.max_unit_cost, cost);
    header.total_cost += cost;
  }
  header.max_piece_cost = *std::max_element(std::begin(p.max_piece_cost), std::end(p.max_piece_cost));
  header.visible_pairs = p.pairs / schedule.spec.num_qo_heads;

  std::int64_t written = sizeof header;
  std::memcpy(blob, &header, sizeof header);
  write_array(blob, header.unit_begin, p.unit_begin.data(), written);
  write_array<abi::WorkItem>(blob, header.items, nullptr, written);
  write_array(blob, header.requests, p.requests.data(), written);
  write_array(blob, header.segments, p.segments.data(), written);
  write_array(blob, header.kv_rows, p.kv_rows.data(), written);
  write_array(blob, header.params, params.data(), written);
  write_array<std::byte>(blob, header.param_data, nullptr, written);
  write_params(schedule, p.params, params, blob + header.param_data.offset, param_size);
  write_array(blob, header.merges, p.merges.data(), written);
  write_array(blob, header.merge_parts, p.merge_parts.data(), written);
  swap_in(plan, info_of(schedule, header));
}

}  // namespace attention

using attention::PlanState;

Plan::Plan(const Schedule& schedule) : state_(std::make_unique<PlanState>(schedule.shared_state())) {}
Plan::~Plan() = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;

const PlanInfo& Plan::update(const Batch& batch) {
  attention::make_plan(*state_, batch);
  return state_->info;
}

const PlanInfo& Plan::load(std::span<const std::byte> blob) {
  // Checked where it will be read, so that a caller's buffer needs no alignment and cannot change under the checks.
  std::vector<std::byte>& next = state_->planner->next_blob;
  attention::reserve_blob(next, std::ssize(blob), 0);
  std::byte* copy = attention::aligned(next);
  if (!blob.empty()) std::memcpy(copy, blob.data(), blob.size());
  const attention::PlanView view = attention::read_blob(*state_->schedule_state, {copy, blob.size()});
  attention::swap_in(*state_, attention::info_of(*state_->schedule_state, *view.header));
  return state_->info;
}

const PlanInfo& Plan::info() const { return state_->info; }
std::span<const std::byte> Plan::blob() const {
  if (state_->view.header == nullptr) return {};
  return {reinterpret_cast<const std::byte*>(state_->view.header), static_cast<std::size_t>(state_->view.header->blob_bytes)};
}
const Schedule& Plan::schedule() const { return state_->schedule; }

}  // namespace girih
