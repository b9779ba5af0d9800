// Plans as Python objects: what keeps a batch's arguments alive while it is planned, with the GIL released.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "attention.h"

namespace girih::python {

/// An object that serves one thread at a time, used by one: a second one is told, instead of reading what the first one writes while the
/// GIL is released. The flag is guarded by the GIL.
class Use {
 public:
  Use(bool& in_use, const char* what) : in_use_(in_use) {
    if (in_use) throw std::runtime_error(std::string("this ") + what + " is in use by another thread; give each thread its own");
    in_use = true;
  }
  ~Use() { in_use_ = false; }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  bool& in_use_;
};

struct PyPlan {
  Plan plan;
  mutable bool in_use = false;
};

struct PyDevicePlan {
  DevicePlan plan;
  bool in_use = false;
};

/// The arguments of plan() that are common to Plan.update() and Attention.plan().
struct BatchArguments {
  nb::handle segments, kv_len, q_pos, q_rope_pos, params;
};

/// Plans the batch; the GIL is released meanwhile.
const PlanInfo& update_plan(Plan& plan, nb::handle qo_indptr, const BatchArguments& arguments);
/// Takes over a blob likewise.
const PlanInfo& load_plan(Plan& plan, const nb::bytes& blob);
nb::bytes blob_of(const Plan& plan);

/// The device's copy of the plan that `object`, a DevicePlan or an Attention, holds. Throws NotImplementedError for one on the CPU and
/// TypeError for anything else; `op` is who asks.
const DevicePlan& device_plan_of(nb::handle object, std::string_view op);

/// The stream on which a call without arrays works: the one given, else PyTorch's current one where torch is loaded, else the default.
void* stream_for(nb::handle given, Device device);

}  // namespace girih::python
