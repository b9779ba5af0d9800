// Plans as Python objects: what keeps a batch's arguments alive while it is planned, with the GIL released.
#pragma once

#include <vector>

#include "attention.h"

namespace girih::python {

/// The arguments of plan() that are common to Plan.update() and Attention.plan().
struct BatchArguments {
  nb::handle segments, kv_len, q_pos, q_rope_pos, params;
};

/// Plans the batch; the GIL is released meanwhile.
const PlanInfo& update_plan(Plan& plan, nb::handle qo_indptr, const BatchArguments& arguments);

/// The device's copy of the plan that `object`, a DevicePlan or an Attention, holds. Throws NotImplementedError for one on the CPU and
/// TypeError for anything else; `op` is who asks.
const DevicePlan& device_plan_of(nb::handle object, std::string_view op);

/// The stream on which a call without arrays works: the one given, else PyTorch's current one where torch is loaded, else the default.
void* stream_for(nb::handle given, Device device);

}  // namespace girih::python
