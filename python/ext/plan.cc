// Schedule, Plan, DevicePlan: the steps that Attention goes through, for callers who want them apart (several contexts, several copies of a
// plan on one device, plans that travel between processes).
#include "plan.h"

#include <fmt/format.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "attention/schedule.h"
#include "expr.h"

namespace girih::python {
namespace {

/// The Segments of a batch, kept alive: a sequence may make them as it is read, and another thread may change it meanwhile.
struct SegmentList {
  explicit SegmentList(nb::handle object) {
    const PySegment* segment = nullptr;
    if (nb::try_cast<const PySegment*>(object, segment) && segment != nullptr) {
      owners = nb::borrow(object);
      segments.push_back(segment->segment);
      return;
    }
    if (PySequence_Check(object.ptr()) == 0) throw nb::type_error("segments: must be a Segment or a sequence of them");
    const nb::tuple items(nb::borrow(object));
    owners = items;
    for (const nb::handle item : items) {
      if (!nb::try_cast<const PySegment*>(item, segment) || segment == nullptr)
        throw nb::type_error(fmt::format("segments[{}]: must be a Segment", segments.size()).c_str());
      segments.push_back(segment->segment);
    }
  }

  std::vector<KvSegment> segments{};
  nb::object owners{};
};

void bind_schedule(nb::module_& m) {
  nb::class_<Schedule>(m, "Schedule", "What is chosen once for a spec: kernels, tiles, workspace. Immutable; may be shared by threads.")
      .def_prop_ro(
          "spec", [](const Schedule& s) { return s.spec(); }, "with defaults filled in")
      .def_prop_ro("limits", [](const Schedule& s) { return s.limits(); })
      .def_prop_ro(
          "key", [](const Schedule& s) { return s.key(); }, "names the kernel in logs, caches and benchmark rows")
      .def_prop_ro("num_units", &Schedule::num_units, "CPU workers or CTAs that a plan is balanced over")
      .def_prop_ro("workspace_bytes", &Schedule::workspace_bytes, "for the worst batch within the limits")
      .def_prop_ro(
          "workspace_layout",
          [](const Schedule& s) {
            std::vector<std::tuple<std::string, std::int64_t, std::int64_t>> out;
            for (const WorkspaceRegion& region : s.workspace_layout()) out.emplace_back(region.name, region.offset, region.size);
            return out;
          },
          "(name, offset, size) of each region, in bytes")
      .def("__repr__", [](const Schedule& s) { return "Schedule(" + s.key() + ")"; });
  m.def(
      "schedule",
      [](const AttentionSpec& spec, const AttentionLimits& limits, const nb::object& given, const nb::object& device_, int num_units,
         int num_sms, std::string family) {
        const nb::object object = context_object(given, device(device_));
        const Context& context = context_of(object);
        const ScheduleOptions options{.num_units = num_units, .num_sms = num_sms, .family = std::move(family)};
        const nb::gil_scoped_release released;
        return schedule(context, spec, limits, options);
      },
      nb::arg("spec"), nb::arg("limits"), nb::kw_only(), nb::arg("context") = nb::none(), nb::arg("device") = "cpu",
      nb::arg("num_units") = 0, nb::arg("num_sms") = 0, nb::arg("family") = "",
      nb::sig("def schedule(spec: AttentionSpec, limits: AttentionLimits, *, context: Context | None = None, "
              "device: girih._typing.DeviceLike = 'cpu', num_units: int = 0, num_sms: int = 0, family: str = '') -> Schedule"),
      "Checks the spec and freezes every choice; on CUDA compiles or loads the kernels. Arguments and errors as Attention's.");
}

void bind_plan_info(nb::module_& m) {
  nb::class_<PlanInfo>(m, "PlanInfo", "Facts of a planned batch.")
      .def_ro("num_items", &PlanInfo::num_items, "work items")
      .def_ro("num_merges", &PlanInfo::num_merges, "row ranges that are merged from parts")
      .def_ro("workspace_bytes", &PlanInfo::workspace_bytes, "used of the schedule's")
      .def_ro("blob_bytes", &PlanInfo::blob_bytes, "of the work list")
      .def_ro("max_unit_cost", &PlanInfo::max_unit_cost, "planner's cost units")
      .def_ro("total_cost", &PlanInfo::total_cost)
      .def_ro("max_piece_cost", &PlanInfo::max_piece_cost, "largest piece that cannot be cut")
      .def_ro("visible_pairs", &PlanInfo::visible_pairs, "(row, key) pairs in the kept tiles, per query head")
      .def("__repr__", [](const PlanInfo& i) {
        return fmt::format("PlanInfo(num_items={}, num_merges={}, workspace_bytes={}, blob_bytes={}, visible_pairs={})", i.num_items,
                           i.num_merges, i.workspace_bytes, i.blob_bytes, i.visible_pairs);
      });
}

}  // namespace

nb::bytes blob_of(const Plan& plan) {
  const std::span<const std::byte> blob = plan.blob();
  return nb::bytes(blob.data(), blob.size());
}

const PlanInfo& load_plan(Plan& plan, const nb::bytes& blob) {
  const std::span data(static_cast<const std::byte*>(blob.data()), blob.size());
  const nb::gil_scoped_release released;
  return plan.load(data);
}

const PlanInfo& update_plan(Plan& plan, nb::handle qo_indptr, const BatchArguments& a) {
  const IndexArray rows(qo_indptr, "qo_indptr");
  const IndexArray kv_len(a.kv_len, "kv_len");
  const IndexArray q_pos(a.q_pos, "q_pos");
  const IndexArray q_rope_pos(a.q_rope_pos, "q_rope_pos");
  const SegmentList list(a.segments);
  const ParamValues params(a.params, plan.schedule().state().program.params);
  const Batch batch{.qo_indptr = rows.view(),
                    .segments = list.segments,
                    .kv_len = kv_len.view(),
                    .q_pos = q_pos.view(),
                    .q_rope_pos = q_rope_pos.view(),
                    .params = params.values()};
  const nb::gil_scoped_release released;
  return plan.update(batch);
}

void* stream_for(nb::handle given, Device device) {
  Array nothing;
  if (given.is_none() && device.kind == DeviceKind::cuda) {
    const nb::object torch = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
    if (torch.is_valid() && nb::cast<bool>(torch.attr("cuda").attr("is_initialized")()))
      nothing.stream =
          reinterpret_cast<void*>(nb::cast<std::uintptr_t>(torch.attr("cuda").attr("current_stream")(device.index).attr("cuda_stream")));
  }
  return stream(given, nothing);
}

void bind_plan(nb::module_& m) {
  bind_schedule(m);
  bind_plan_info(m);
  nb::class_<PyPlan>(m, "Plan", "The work list of one batch. Reuses its memory from step to step. One thread at a time.")
      .def(
          "__init__", [](PyPlan* self, const Schedule& schedule) { new (self) PyPlan{.plan = Plan(schedule)}; }, nb::arg("schedule"))
      .def(
          "update",
          [](PyPlan& self, const nb::object& qo_indptr, const nb::object& segments, const nb::object& kv_len, const nb::object& q_pos,
             const nb::object& q_rope_pos, const nb::object& params) {
            const Use use(self.in_use, "Plan");
            return update_plan(self.plan, qo_indptr, {segments, kv_len, q_pos, q_rope_pos, params});
          },
          nb::arg("qo_indptr"), nb::arg("segments"), nb::kw_only(), nb::arg("kv_len") = nb::none(), nb::arg("q_pos") = nb::none(),
          nb::arg("q_rope_pos") = nb::none(), nb::arg("params") = nb::none(),
          nb::sig("def update(self, qo_indptr: girih._typing.IndicesLike, segments: Segment | collections.abc.Sequence[Segment], *, "
                  "kv_len: girih._typing.IndicesLike | None = None, q_pos: girih._typing.IndicesLike | None = None, "
                  "q_rope_pos: girih._typing.IndicesLike | None = None, params: girih._typing.Params | None = None) -> PlanInfo"),
          "Plans a batch; arguments and errors as Attention.plan().")
      .def(
          "load",
          [](PyPlan& self, const nb::bytes& blob) {
            const Use use(self.in_use, "Plan");
            return load_plan(self.plan, blob);
          },
          nb::arg("blob"),
          "Takes over the blob() of a plan with an equal schedule, made elsewhere. Every index in it is checked; raises ValueError.")
      .def(
          "blob",
          [](const PyPlan& self) {
            const Use use(self.in_use, "Plan");
            return blob_of(self.plan);
          },
          "The work list as bytes.")
      .def_prop_ro("info",
                   [](const PyPlan& self) {
                     const Use use(self.in_use, "Plan");
                     return self.plan.info();
                   })
      .def_prop_ro("schedule", [](const PyPlan& self) { return self.plan.schedule(); });

  nb::class_<PyDevicePlan>(
      m, "DevicePlan",
      "A plan on its CUDA device: memory of fixed size and address for any plan of one schedule. Runs with one DevicePlan may\n"
      "not overlap; use two for that. It must live as long as CUDA graphs that were captured with it. One thread at a time.")
      .def(
          "__init__",
          [](PyDevicePlan* self, const Context& context, const Schedule& schedule) {
            const nb::gil_scoped_release released;
            new (self) PyDevicePlan{.plan = DevicePlan(context, schedule)};
          },
          nb::arg("context"), nb::arg("schedule"), nb::keep_alive<1, 2>())
      .def(
          "upload",
          [](PyDevicePlan& self, const PyPlan& plan, const nb::object& given) {
            const Use use(self.in_use, "DevicePlan");
            const Use use_plan(plan.in_use, "Plan");
            void* on = stream_for(given, plan.plan.schedule().state().device);
            const nb::gil_scoped_release released;
            self.plan.upload(plan.plan, on);
          },
          nb::arg("plan"), nb::kw_only(), nb::arg("stream") = nb::none(),
          nb::sig("def upload(self, plan: Plan, *, stream: girih._typing.StreamLike | None = None) -> None"),
          "Copies the plan's batch to the device, ordered by `stream`. `plan` may be updated as soon as this returns.")
      .def(
          "stage",
          [](PyDevicePlan& self, const PyPlan& plan) {
            const Use use(self.in_use, "DevicePlan");
            const Use use_plan(plan.in_use, "Plan");
            const nb::gil_scoped_release released;
            self.plan.stage(plan.plan);
          },
          nb::arg("plan"), "Makes the next replays of a CUDA graph with a captured upload() read this plan.")
      .def_prop_ro(
          "capacity_bytes", [](const PyDevicePlan& self) { return self.plan.capacity_bytes(); }, "of the device's copy");
}

}  // namespace girih::python
