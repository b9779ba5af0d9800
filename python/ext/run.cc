// Attention: schedule, plan, device plan and workspace in one object, whose run() is one call into C++ with no look-up in Python where
// its tensors are PyTorch's. What the library checks is not checked again; added here are the facts that its structs do not carry (heads
// and dims of a store, devices).
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/schedule.h"
#include "expr.h"
#include "girih/error.h"
#include "girih/page.h"
#include "outputs.h"
#include "plan.h"

namespace girih::python {
namespace {

constexpr std::size_t kWorkspaceAlign = 64;

/// The library's names for what Python callers call otherwise.
std::string renamed(std::string text) {
  constexpr std::string_view kOp = "attention.run: ";
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"o ", "out "}, {"o.", "out."}, {"segments[", "kv["}, {"segments ", "kv "}};
  if (!text.starts_with(kOp)) return text;
  for (const auto& [from, to] : kNames) {
    if (!std::string_view(text).substr(kOp.size()).starts_with(from)) continue;
    text.replace(kOp.size(), from.size(), to);
    break;
  }
  // What an output shares memory with.
  static constexpr std::pair<std::string_view, std::string_view> kShared[] = {{" with o;", " with out;"}, {" with segments[", " with kv["}};
  for (const auto& [from, to] : kShared) {
    if (const std::size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
  }
  return text;
}

/// The stores of a run with what keeps them alive.
struct Segments {
  std::vector<SegmentData> data{};
  nb::object owners{};

  void add(const Store& store, std::span<const std::int32_t> kv_indices, std::span<const std::int64_t> page_pos, const AttentionSpec& spec,
           Device device) {
    check_store(store, spec, device, data.empty() ? std::string("kv") : fmt::format("kv[{}]", data.size()));
    SegmentData& segment = data.emplace_back(SegmentData{store.store, kv_indices, page_pos});
    // With one head a scale per tensor and one per head are the same array.
    if (spec.num_kv_heads != 1) return;
    const auto adapt = [](KvPlane& plane, ScaleGranularity wanted) {
      if (plane.scales.granularity == ScaleGranularity::tensor && wanted == ScaleGranularity::head) plane.scales.granularity = wanted;
    };
    adapt(segment.store.k, spec.k_scale);
    adapt(segment.store.k_rope, spec.k_scale);
    adapt(segment.store.v, spec.v_scale);
  }
};

bool add_one(Segments& out, nb::handle item, const AttentionSpec& spec, Device device) {
  const StoreSegment* segment = nullptr;
  if (nb::try_cast<const StoreSegment*>(item, segment) && segment != nullptr) {
    out.add(*segment->store, segment->kv_indices.view(), segment->page_pos.view(), spec, device);
    return true;
  }
  const Store* store = nullptr;
  if (!nb::try_cast<const Store*>(item, store) || store == nullptr) return false;
  out.add(*store, {}, {}, spec, device);
  return true;
}

void add_all(Segments& out, nb::handle kv, const AttentionSpec& spec, Device device) {
  if (add_one(out, kv, spec, device)) return;
  if (PySequence_Check(kv.ptr()) == 0) throw nb::type_error("kv: must be a SegmentData, a KvStore, or a sequence of them");
  // A sequence may make its items as it is read, and another thread may change it while the GIL is released.
  const nb::tuple items(nb::borrow(kv));
  out.owners = items;
  for (const nb::handle item : items) {
    if (!add_one(out, item, spec, device))
      throw nb::type_error(fmt::format("kv[{}]: must be a SegmentData or a KvStore", out.data.size()).c_str());
  }
}

struct RunArguments {
  nb::handle q, kv, kv_indices, page_pos, q_rope, out, lse, o_scale, params, stream;
};

class Attention {
 public:
  Attention(const AttentionSpec& spec, const AttentionLimits& limits, nb::object context, const ScheduleOptions& options,
            nb::object workspace)
      : context_object_(std::move(context)),
        context_(&context_of(context_object_)),
        schedule_(make_schedule(spec, limits, options)),
        plan_(schedule_) {
    if (on_cuda()) device_plan_.emplace(*context_, schedule_);
    if (!workspace.is_none()) take_workspace(workspace);
  }

  const Schedule& schedule() const { return schedule_; }
  nb::object context() const { return context_object_; }
  const DevicePlan* device_plan() const { return device_plan_ ? &*device_plan_ : nullptr; }

  const PlanInfo& update(nb::handle qo_indptr, const BatchArguments& arguments, nb::handle stream) {
    const Use use(in_use_, "Attention");
    const PlanInfo& info = update_plan(plan_, qo_indptr, arguments);
    upload(stream);
    return info;
  }

  const PlanInfo& load(const nb::bytes& blob, nb::handle stream) {
    const Use use(in_use_, "Attention");
    const PlanInfo& info = load_plan(plan_, blob);
    upload(stream);
    return info;
  }

  nb::bytes blob() const {
    const Use use(in_use_, "Attention");
    return blob_of(plan_);
  }

  PlanInfo info() const {
    const Use use(in_use_, "Attention");
    return plan_.info();
  }

  nb::object run(const RunArguments& a) {
    const Use use(in_use_, "Attention");
    const AttentionSpec& spec = schedule_.spec();
    const Device device = schedule_.state().device;
    const Array q = array(a.q, "q");
    if (q.view.device != device) bad_value("q", fmt::format("is on {}; this attention is for {}", name(q.view.device), name(device)));
    const Array q_rope = optional_array(a.q_rope, "q_rope");
    Segments segments;
    DeviceIndices<std::int32_t> kv_indices;
    DeviceIndices<std::int64_t> page_pos;
    if (a.kv_indices.is_none() && a.page_pos.is_none()) {
      add_all(segments, a.kv, spec, device);
    } else {
      const Store* store = nullptr;
      if (!nb::try_cast<const Store*>(a.kv, store) || store == nullptr)
        throw nb::type_error("kv: must be a KvStore where kv_indices or page_pos are given beside it");
      kv_indices = DeviceIndices<std::int32_t>(a.kv_indices, "kv_indices", device);
      page_pos = DeviceIndices<std::int64_t>(a.page_pos, "page_pos", device);
      segments.add(*store, kv_indices.view(), page_pos.view(), spec, device);
    }
    const Array o_scale = optional_array(a.o_scale, "o_scale");
    const ParamValues params(a.params, schedule_.state().program.params);
    const bool wants_lse = spec.lse != LseKind::none;
    if (!wants_lse && !a.lse.is_none()) bad_value("lse", "is given, but the spec asks for none (lse=\"none\")");
    if (q.view.rank != 3) bad_value("q", fmt::format("has {} dimensions; must have 3: [tokens, heads, dim]", q.view.rank));
    const std::int64_t rows = q.view.shape[0];
    Output out = output(a.out, q, spec.o_dtype, {rows, spec.num_qo_heads, spec.head_dim_vo}, "out");
    Output lse = wants_lse ? output(a.lse, q, DType::f32, {rows, spec.num_qo_heads}, "lse") : Output{};
    AttentionArgs args;
    args.q = q.view;
    args.q_rope = q_rope.view;
    args.segments = segments.data;
    args.params = params.values();
    args.o = out.view;
    args.lse = lse.view;
    args.o_scale = o_scale.view;
    args.stream = stream(a.stream, q);
    args.workspace = workspace(q, args.stream);
    args.device_plan = device_plan();
    call(args);
    if (!wants_lse) return std::move(out.object);
    return nb::make_tuple(std::move(out.object), std::move(lse.object));
  }

  void append(const Store& store, nb::handle kv_indices, nb::handle k_, nb::handle v_, nb::handle k_rope_, std::int64_t segment,
              nb::handle stream_) {
    const Use use(in_use_, "Attention");
    const Device device = context_->device();
    if (!device_plan_)
      throw Error(Code::unsupported,
                  "append_planned: works on CUDA, where a captured graph appends what is planned; on the CPU use append()");
    const Array k = array(k_, "k");
    const Array v = optional_array(v_, "v");
    const Array k_rope = optional_array(k_rope_, "k_rope");
    check_store(store, schedule_.spec(), device, "store");
    check_appended(store, k.view, k_rope.view, v.view);
    const DeviceIndices<std::int32_t> ids(kv_indices, "kv_indices", device);
    void* on = stream(stream_, k);
    const nb::gil_scoped_release released;
    girih::append(*context_, *device_plan_, store.store, ids.view(), k.view, k_rope.view, v.view, segment, on);
  }

 private:
  bool on_cuda() const { return context_->device().kind == DeviceKind::cuda; }

  Schedule make_schedule(const AttentionSpec& spec, const AttentionLimits& limits, const ScheduleOptions& options) const {
    const nb::gil_scoped_release released;
    return girih::schedule(*context_, spec, limits, options);
  }

  void upload(nb::handle stream) {
    if (!device_plan_) {
      if (!stream.is_none()) bad_value("stream", "is given, but this attention is for the CPU");
      return;
    }
    void* on = stream_for(stream, context_->device());
    const nb::gil_scoped_release released;
    device_plan_->upload(plan_, on);
  }

  void call(const AttentionArgs& args) const {
    const nb::gil_scoped_release released;
    try {
      girih::run(*context_, schedule_, plan_, args);
    } catch (const Error& error) {
      throw Error(error.code(), renamed(error.what()));
    }
  }

  void take_workspace(nb::handle object) {
    Array given = array(object, "workspace", Access::write);
    const Device device = context_->device();
    if (given.view.device != device) bad_value("workspace", fmt::format("is on {}; must be on {}", name(given.view.device), name(device)));
    if (!is_dense(given.view)) bad_value("workspace", "must be contiguous");
    const std::int64_t size = bytes(given.view.dtype, given.view.numel());
    void* data = given.view.data;
    auto space = static_cast<std::size_t>(size);
    if (data == nullptr || std::align(kWorkspaceAlign, 0, data, space) == nullptr) space = 0;
    const std::int64_t needed = schedule_.workspace_bytes();
    if (static_cast<std::int64_t>(space) < needed)
      bad_value("workspace", fmt::format("has {} bytes from the first multiple of 64 on; this schedule needs {}", space, needed));
    workspace_ = {static_cast<std::byte*>(data), space};
    workspace_owner_ = std::move(given.owner);
    fixed_ = true;
  }

  /// On the CPU memory of our own, grown to what the plan needs; on CUDA an array of q's library, made once for the worst plan.
  std::span<std::byte> workspace(const Array& q, void* stream) {
    if (fixed_) return workspace_;
    if (!on_cuda()) {
      const auto needed = static_cast<std::size_t>(plan_.info().workspace_bytes);
      if (workspace_.size() < needed) {
        memory_.reset(new (std::align_val_t{kWorkspaceAlign}) std::byte[needed]);
        workspace_ = {memory_.get(), needed};
      }
      return workspace_;
    }
    if (!workspace_owner_.is_valid()) {
      Output made = new_array(q, DType::u8, {std::max<std::int64_t>(schedule_.workspace_bytes(), kWorkspaceAlign)}, "workspace");
      workspace_ = {static_cast<std::byte*>(made.view.data), static_cast<std::size_t>(made.view.shape[0])};
      workspace_owner_ = std::move(made.object);
      streams_.assign(1, q.stream.value_or(nullptr));
    }
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) record_stream(stream);
    return workspace_;
  }

  /// Tells torch's allocator that another stream works on the workspace, so that its memory is not reused under that work.
  void record_stream(void* stream) {
    const nb::object cuda = nb::module_::import_("torch").attr("cuda");
    const nb::object external = cuda.attr("ExternalStream")(reinterpret_cast<std::uintptr_t>(stream), context_->device().index);
    workspace_owner_.attr("record_stream")(external);
    streams_.push_back(stream);
  }

  struct Free {
    void operator()(std::byte* memory) const { operator delete[](memory, std::align_val_t{kWorkspaceAlign}); }
  };

  nb::object context_object_;
  const Context* context_;
  Schedule schedule_;
  Plan plan_;
  std::optional<DevicePlan> device_plan_{};
  std::unique_ptr<std::byte[], Free> memory_{};
  std::span<std::byte> workspace_{};
  nb::object workspace_owner_{};
  std::vector<void*> streams_{};  // that the workspace's allocator knows of
  bool fixed_ = false;
  mutable bool in_use_ = false;
};

}  // namespace

const DevicePlan& device_plan_of(nb::handle object, std::string_view op) {
  const PyDevicePlan* plan = nullptr;
  if (nb::try_cast<const PyDevicePlan*>(object, plan) && plan != nullptr) return plan->plan;
  const Attention* attention = nullptr;
  if (!nb::try_cast<const Attention*>(object, attention) || attention == nullptr)
    throw nb::type_error("plan: must be a girih.Attention or a girih.DevicePlan");
  if (attention->device_plan() == nullptr)
    throw Error(Code::unsupported, std::string(op) +
                                       ": works on CUDA, where a captured graph appends what is planned; on the CPU append "
                                       "by a batch of host arrays");
  return *attention->device_plan();
}

void bind_attention_run(nb::module_& m) {
  nb::class_<Attention>(
      m, "Attention",
      "Attention for one spec: schedules once, plan() each step, run() each layer. Owns the plan, on CUDA its copy on the\n"
      "device, and the workspace. One thread at a time (a second is refused); its context too serves one thread at a time.")
      .def(
          "__init__",
          [](Attention* self, const AttentionSpec& spec, const AttentionLimits& limits, const nb::object& context,
             const nb::object& device_, int num_units, int num_sms, std::string family, const nb::object& workspace) {
            new (self) Attention(spec, limits, context_object(context, device(device_)),
                                 {.num_units = num_units, .num_sms = num_sms, .family = std::move(family)}, workspace);
          },
          nb::arg("spec"), nb::arg("limits"), nb::kw_only(), nb::arg("context") = nb::none(), nb::arg("device") = "cpu",
          nb::arg("num_units") = 0, nb::arg("num_sms") = 0, nb::arg("family") = "", nb::arg("workspace") = nb::none(),
          nb::sig("def __init__(self, spec: AttentionSpec, limits: AttentionLimits, *, context: Context | None = None, "
                  "device: girih._typing.DeviceLike = 'cpu', num_units: int = 0, num_sms: int = 0, family: str = '', "
                  "workspace: girih._typing.ArrayLike | None = None) -> None"),
          "context: what to run on; None: default_context(device).\n"
          "num_units: CPU: what a plan is balanced over; 0 = the context's workers.\n"
          "num_sms: CUDA: multiprocessors to use; 0 = all.\n"
          "family: CUDA: \"floor\" or \"mma\"; \"\" = the fastest that takes the spec.\n"
          "workspace: contiguous memory on the device, at least schedule.workspace_bytes from its first multiple of 64 on; None: on the "
          "CPU\n"
          "  grown by plans, on CUDA allocated by torch at the first run().\n\n"
          "Raises ValueError or NotImplementedError naming the field of the spec or limits that does not fit. On CUDA compiles or loads "
          "kernels.")
      .def(
          "plan",
          [](Attention& self, const nb::object& qo_indptr, const nb::object& segments, const nb::object& kv_len, const nb::object& q_pos,
             const nb::object& q_rope_pos, const nb::object& params, const nb::object& stream) {
            return self.update(qo_indptr, {segments, kv_len, q_pos, q_rope_pos, params}, stream);
          },
          nb::arg("qo_indptr"), nb::arg("segments"), nb::kw_only(), nb::arg("kv_len") = nb::none(), nb::arg("q_pos") = nb::none(),
          nb::arg("q_rope_pos") = nb::none(), nb::arg("params") = nb::none(), nb::arg("stream") = nb::none(),
          nb::sig("def plan(self, qo_indptr: girih._typing.IndicesLike, segments: Segment | collections.abc.Sequence[Segment], *, "
                  "kv_len: girih._typing.IndicesLike | None = None, q_pos: girih._typing.IndicesLike | None = None, "
                  "q_rope_pos: girih._typing.IndicesLike | None = None, params: girih._typing.Params | None = None, "
                  "stream: girih._typing.StreamLike | None = None) -> PlanInfo"),
          "Plans one step's batch; on CUDA also queues its copy to the device. All arrays are host memory (int32, int64 or sequences of "
          "ints),\n"
          "read before this returns.\n\n"
          "qo_indptr: [num_requests + 1]; request r owns query rows [qo_indptr[r], qo_indptr[r+1]).\n"
          "segments: the levels of the batch, each request's keys in order.\n"
          "kv_len: [num_requests] logical KV length; None: the keys of the segments that cover the request.\n"
          "q_pos: [num_requests] position of the first query row; None: kv_len - q_len (bottom-right).\n"
          "q_rope_pos: [num_requests] RoPE position of the first query row; None: q_pos.\n"
          "params: {name: number or host array} for the variant's plan-time parameters.\n"
          "stream: CUDA: None = torch's current stream where torch works on CUDA, else the default stream.\n\n"
          "Raises ValueError naming the entry that breaks a rule, before the former plan is changed.")
      .def(
          "run",
          [](Attention& self, nb::handle q, nb::handle kv, nb::handle kv_indices, nb::handle page_pos, nb::handle q_rope, nb::handle out,
             nb::handle lse, nb::handle o_scale, nb::handle params, nb::handle stream) {
            return self.run({q, kv, kv_indices, page_pos, q_rope, out, lse, o_scale, params, stream});
          },
          nb::arg("q"), nb::arg("kv"), nb::kw_only(), nb::arg("kv_indices") = nb::none(), nb::arg("page_pos") = nb::none(),
          nb::arg("q_rope") = nb::none(), nb::arg("out") = nb::none(), nb::arg("lse") = nb::none(), nb::arg("o_scale") = nb::none(),
          nb::arg("params") = nb::none(), nb::arg("stream") = nb::none(),
          nb::sig(
              "def run(self, q: girih._typing.ArrayLike, kv: SegmentData | KvStore | collections.abc.Sequence[SegmentData | KvStore], *, "
              "kv_indices: girih._typing.IndicesLike | None = None, page_pos: girih._typing.IndicesLike | None = None, "
              "q_rope: girih._typing.ArrayLike | None = None, out: girih._typing.ArrayLike | None = None, "
              "lse: girih._typing.ArrayLike | None = None, o_scale: girih._typing.ArrayLike | None = None, "
              "params: girih._typing.Params | None = None, stream: girih._typing.StreamLike | None = None) -> typing.Any"),
          "Computes the planned batch for one layer. On CUDA queues work on the stream, waits for nothing, and can be captured in a graph\n"
          "(after one run outside, which allocates the workspace).\n\n"
          "q: [num_tokens, num_qo_heads, head_dim_qk - head_dim_rope], last dimension dense, of the spec's q_dtype.\n"
          "kv: one store or SegmentData per planned segment.\n"
          "kv_indices, page_pos: beside a single KvStore, as SegmentData has them.\n"
          "q_rope: [num_tokens, num_qo_heads, head_dim_rope] where the spec has it.\n"
          "out: [num_tokens, num_qo_heads, head_dim_vo] of o_dtype; lse: f32 [num_tokens, num_qo_heads]. None: made by q's library "
          "(torch,\n"
          "  NumPy). A row that sees no key gets 0 and -inf.\n"
          "o_scale: where o_dtype is e4m3 or e5m2: one f32 on q's device, > 0; out holds the codes nearest to value / o_scale, saturated. "
          "None: 1.\n"
          "params: {name: number or array on the device} for the variant's run-time parameters.\n"
          "stream: CUDA: None = the current stream of q's library, else the default stream.\n\n"
          "Returns out, or (out, lse) where spec.lse is not \"none\". Raises ValueError before anything is written.")
      .def(
          "load", [](Attention& self, const nb::bytes& blob, const nb::object& stream) { return self.load(blob, stream); }, nb::arg("blob"),
          nb::kw_only(), nb::arg("stream") = nb::none(),
          nb::sig("def load(self, blob: bytes, *, stream: girih._typing.StreamLike | None = None) -> PlanInfo"),
          "Takes over the blob() of an Attention with an equal schedule (another process, another rank) in place of plan().")
      .def(
          "blob", [](const Attention& self) { return self.blob(); }, "The planned work list as bytes, for load() elsewhere.")
      .def_prop_ro("schedule", [](const Attention& self) { return self.schedule(); })
      .def_prop_ro("plan_info", [](const Attention& self) { return self.info(); })
      .def_prop_ro(
          "spec", [](const Attention& self) { return self.schedule().spec(); }, "with defaults filled in")
      .def_prop_ro("limits", [](const Attention& self) { return self.schedule().limits(); })
      .def_prop_ro("context", &Attention::context, nb::sig("def context(self) -> Context"))
      .def("__repr__", [](const Attention& self) { return "Attention(" + self.schedule().key() + ")"; });
  m.def(
      "append_planned",
      [](Attention& attention, const Store& store, nb::handle k, nb::handle v, nb::handle kv_indices, nb::handle k_rope,
         std::int64_t segment, nb::handle stream) { attention.append(store, kv_indices, k, v, k_rope, segment, stream); },
      nb::arg("attention"), nb::arg("store"), nb::arg("k"), nb::arg("v") = nb::none(), nb::kw_only(), nb::arg("kv_indices") = nb::none(),
      nb::arg("k_rope") = nb::none(), nb::arg("segment") = 0, nb::arg("stream") = nb::none(),
      nb::sig(
          "def append_planned(attention: Attention, store: KvStore, k: girih._typing.ArrayLike, v: girih._typing.ArrayLike | None = None, "
          "*, kv_indices: girih._typing.IndicesLike | None = None, k_rope: girih._typing.ArrayLike | None = None, segment: int = 0, "
          "stream: girih._typing.StreamLike | None = None) -> None"),
      "Appends for the batch that `attention` has planned, on CUDA: row i of k and v belongs to query token i, and the query tokens of a "
      "group\n"
      "are the last keys of its list in `segment` (not written where a list is shorter). Reads nothing but device memory, so a captured "
      "graph\n"
      "appends whatever is planned before a replay. Two tokens may not go to the same place, which is not checked.\n\n"
      "k, k_rope, v: [tokens, heads, dim] f32, f16 or bf16 on the device; kv_indices: the segment's int32 page ids there.\n\n"
      "Raises NotImplementedError on the CPU (use append()), ValueError naming what does not fit.");
}

}  // namespace girih::python
