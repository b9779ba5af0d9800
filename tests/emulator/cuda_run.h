// One attention batch on the emulated GPU: the library's own schedule, plan and launch parameters for it, then both classes' kernels. What
// a GPU would have in device memory is ordinary memory here, poisoned where it may hold anything.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "attention/check_args.h"
#include "attention/cuda_state.h"
#include "attention/plan.h"
#include "cases/problem.h"
#include "emulator/cases.h"
#include "emulator/emulator.h"
#include "emulator/kernels.h"

namespace girih::emulator {

inline constexpr Device kEmulated{DeviceKind::cuda, 0};

inline constexpr int kSm = kArch / 10;

/// Kernels by class; null for a class that the schedule has no units for.
using Entries = std::array<void (*)(abi::AttentionParams), attention::kNumClasses>;

inline std::shared_ptr<const attention::ScheduleState> make_schedule(const cases::Problem& p, std::string_view family,
                                                                     int num_sms = kEmulatedSms) {
  const FamilyOfChip of = family_of_chip(family, kSm);
  return attention::make_cuda_state(emulated_device(of.arch, num_sms), kEmulated.index, p.c.spec, p.limits,
                                    {.family = std::string(of.family)});
}

/// Null where a kernel is not built in.
inline const EmulatedKernel* find_kernel(const attention::CudaKernel& kernel) {
  static const std::map<std::uint64_t, const EmulatedKernel*> kByHash = [] {
    std::map<std::uint64_t, const EmulatedKernel*> map;
    for (const EmulatedKernel& k : emulated_kernels()) map.emplace(k.source_hash, &k);
    return map;
  }();
  const auto found = kByHash.find(source_hash(kernel.source));
  return found == kByHash.end() ? nullptr : found->second;
}

inline Entries entries_of(const attention::ScheduleState& state) {
  Entries entries{};
  for (std::size_t c = 0; c < entries.size(); ++c) {
    const EmulatedKernel* kernel = find_kernel(state.cuda->kernels.classes[c]);
    if (kernel == nullptr) throw std::runtime_error("no kernel " + state.cuda->kernels.classes[c].name);
    entries[c] = kernel->entry;
  }
  return entries;
}

/// Bytes 0xff, aligned as device memory is.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::int64_t size) : size_(static_cast<std::size_t>(size + 63) / 64 * 64) {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, std::max<std::size_t>(size_, 64))));
    std::memset(data_.get(), 0xff, size_);
  }
  std::span<std::byte> bytes() { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte, Free> data_;
};

inline TensorView on_device(TensorView t) {
  t.device = kEmulated;
  return t;
}

/// Where a run finds what the device plan and the caller have there.
struct RunMemory {
  const abi::PlanHeader* plan;
  std::span<std::int32_t> counters;  // of units, then of merges
  std::span<std::byte> workspace;
};

struct RunOrder {
  std::uint64_t seed = 0;       // LaunchOptions::seed
  bool large_first = false;     // which list's kernel goes first
  std::int64_t output_gap = 5;  // elements between rows of the outputs
};

/// Runs the batch that `plan` holds.
inline cases::Outputs run_planned(const cases::Problem& p, const Plan& plan, const Entries& entries, const RunMemory& memory,
                                  const RunOrder& order) {
  const attention::ScheduleState& state = *plan.state().schedule_state;
  cases::Outputs out(p, order.output_gap);
  std::vector<ParamValue> params_on_device = p.run_params;
  for (ParamValue& value : params_on_device) value.array = on_device(value.array);
  const AttentionArgs args{.q = on_device(p.q),
                           .q_rope = on_device(p.q_rope),
                           .segments = p.segment_data,
                           .params = params_on_device,
                           .o = on_device(out.o),
                           .lse = on_device(out.lse),
                           .o_scale = on_device(out.o_scale),
                           .workspace = memory.workspace};
  const attention::CheckedArgs checked = attention::check_args(state, plan.state(), args);
  abi::AttentionParams params = attention::cuda_params(state, checked);
  params.plan = memory.plan;
  params.next_unit = memory.counters.data();
  params.counters = memory.counters.data() + attention::kNumClasses;
  params.plan_bytes = static_cast<std::int32_t>(plan.blob().size());
  for (int i = 0; i < attention::kNumClasses; ++i) {
    const int c = order.large_first ? attention::kNumClasses - 1 - i : i;
    if (attention::class_units(state, c) == 0) continue;
    const attention::CudaKernel& kernel = state.cuda->kernels.classes[static_cast<std::size_t>(c)];
    out.bf16_weights = out.bf16_weights || kernel.family != "floor";
    cases::note_byte_products(p, kernel.family, kernel.source, out);
    attention::set_class(state, checked, c, params);
    launch(entries[static_cast<std::size_t>(c)], params,
           {.num_blocks = attention::class_blocks(state, c),
            .num_threads = kernel.num_threads,
            .shared_bytes = kernel.shared_bytes,
            .seed = order.seed});
  }
  for (const std::int32_t counter : memory.counters) EXPECT_EQ(counter, 0) << "a merge was not performed";
  return out;
}

/// Plans the problem's batch and runs it, in the workspace given.
inline cases::Outputs run_emulated(const cases::Problem& p, const std::shared_ptr<const attention::ScheduleState>& state,
                                   const Entries& entries, std::uint64_t seed, std::span<std::byte> workspace) {
  Plan plan{Schedule(state)};
  plan.update(p.batch);
  const auto* header = reinterpret_cast<const abi::PlanHeader*>(plan.blob().data());
  std::vector<std::int32_t> counters(static_cast<std::size_t>(attention::kNumClasses + header->merges.count));
  return run_planned(p, plan, entries, {header, counters, workspace}, {.seed = seed});
}

/// In a workspace of NaN.
inline cases::Outputs run_emulated(const cases::Problem& p, const std::shared_ptr<const attention::ScheduleState>& state,
                                   const Entries& entries, std::uint64_t seed) {
  DeviceMemory workspace(state->workspace_bytes);
  return run_emulated(p, state, entries, seed, workspace.bytes());
}

inline cases::Outputs run_family(const cases::Problem& p, const std::string& family) {
  const auto state = make_schedule(p, family);
  return run_emulated(p, state, entries_of(*state), 0);
}

}  // namespace girih::emulator
