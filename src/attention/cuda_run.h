// The CUDA backend as schedule() and run() call it.
#pragma once

#include <memory>

#include "attention/plan.h"
#include "attention/schedule.h"
#include "girih/attention.h"

namespace girih::attention {

/// Chooses, compiles and loads the kernels.
std::shared_ptr<const ScheduleState> load_cuda_state(const Context& context, const AttentionSpec& spec, const AttentionLimits& limits,
                                                     const ScheduleOptions& options);

/// Checks and launches; allocates and waits for nothing.
void run_cuda(const Context& context, const ScheduleState& schedule, const PlanState& plan, const AttentionArgs& args);

/// Uploads the plan, runs it on the default stream with memory of its own, and waits.
void run_cuda_once(const Context& context, const Schedule& schedule, const Plan& plan, AttentionArgs args);

}  // namespace girih::attention
