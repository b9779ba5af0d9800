// plan(): a batch becomes a blob of balanced work items (abi/attention_plan.h). Host only, integers only, no device code.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "abi/attention_plan.h"
#include "attention/schedule.h"
#include "variant/interval.h"

namespace girih::attention {

/// Typed views into a blob. Valid while the blob lives.
struct PlanView {
  const abi::PlanHeader* header = nullptr;
  std::span<const std::int32_t> unit_begin;
  std::span<const abi::WorkItem> items;
  std::span<const abi::MergeItem> merges;
  std::span<const abi::MergePart> merge_parts;
  std::span<const abi::RequestInfo> requests;
  std::span<const abi::SegmentInfo> segments;
  std::span<const abi::KvRow> kv_rows;
  std::span<const abi::PlanParam> params;
  std::span<const std::byte> param_data;
};

/// Reads a blob made by plan() for `schedule`. Checks every field and index, so that running it can touch nothing outside the arrays
/// that run() checks; throws invalid_argument naming the field.
PlanView read_blob(const ScheduleState& schedule, std::span<const std::byte> blob);

struct Planner;  // scratch that is kept from batch to batch (plan.cc)

struct PlanState {
  explicit PlanState(std::shared_ptr<const ScheduleState> schedule);
  ~PlanState();
  std::shared_ptr<const ScheduleState> schedule_state;
  Schedule schedule;
  std::vector<std::byte> blob;  // over-allocated so that the data starts 64-byte aligned
  PlanView view;                // into blob
  PlanInfo info;
  std::uint64_t num_updates = 0;  // with this object's address: which batch it holds
  variant::ParamTable params{};   // plan-time parameters, pointing into blob
  std::unique_ptr<Planner> planner;
};

/// Plans `batch` into `plan`, strong exception guarantee.
void make_plan(PlanState& plan, const Batch& batch);

}  // namespace girih::attention
