// Context and what is known of this machine. A log callback is called with the GIL taken.
#include "girih/context.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "names.h"

namespace girih::python {
namespace {

constexpr EnumNames<6> kTargets = {"best", "scalar", "avx2", "avx3", "avx3_bf16", "neon"};
constexpr EnumNames<3> kPolicies = {"allow", "deny", "pack_only"};
constexpr EnumNames<3> kLevels = {"debug", "info", "warning"};

LogFn log_to(nb::object callback) {
  if (callback.is_none()) return {};
  if (PyCallable_Check(callback.ptr()) == 0) throw nb::type_error("log: must be callable as log(level, text), or None");
  // The last copy may go in a thread that does not hold the GIL.
  std::shared_ptr<nb::object> shared(new nb::object(std::move(callback)), [](nb::object* last) {
    const nb::gil_scoped_acquire gil;
    delete last;
  });
  return [shared](LogLevel level, std::string_view text) {
    const nb::gil_scoped_acquire gil;
    try {
      (*shared)(name_in(kLevels, level), nb::str(text.data(), text.size()));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable(*shared);  // what is logged goes on
    }
  };
}

}  // namespace

// The module's function is found anew each time: a reference kept here would keep contexts alive past the interpreter's end.
nb::object context_object(nb::handle given, Device device) {
  if (!given.is_none()) return nb::borrow(given);
  static PyObject* module_name = PyUnicode_InternFromString("girih._context");
  static PyObject* function_name = PyUnicode_InternFromString("default_context");
  static PyObject* cpu = PyUnicode_InternFromString("cpu");
  nb::object module = nb::steal(PyImport_GetModule(module_name));
  if (!module.is_valid()) module = nb::module_::import_("girih._context");
  const nb::object text = device == Device{} ? nb::borrow(cpu) : nb::object(nb::str(name(device).c_str()));
  PyObject* arguments[] = {module.ptr(), text.ptr()};
  PyObject* found = PyObject_VectorcallMethod(function_name, arguments, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (found == nullptr) nb::raise_python_error();
  return nb::steal(found);
}

const Context& context_of(nb::handle object) {
  const Context* context = nullptr;
  if (!nb::try_cast<const Context*>(object, context) || context == nullptr) throw nb::type_error("context: must be a girih.Context");
  return *context;
}

void bind_context(nb::module_& m) {
  nb::class_<Context>(
      m, "Context",
      "What operators run on and with: a device, worker threads, how kernels are compiled, where messages go.\n\n"
      "One context serves one thread at a time (runs on it do not overlap); make one per thread, or let default_context() do it.\n"
      "Survives fork().")
      .def(
          "__init__",
          [](Context* self, const nb::object& device_, int num_workers, std::vector<int> cpus, const std::string& target, nb::object log,
             const std::optional<std::string>& jit, std::optional<std::string> nvrtc, std::optional<std::string> cache_dir,
             std::optional<std::vector<std::string>> packs, std::vector<std::string> nvrtc_options, int max_threads) {
            ContextOptions options{.device = device(device_),
                                   .num_workers = num_workers,
                                   .cpus = std::move(cpus),
                                   .target = enum_of<CpuTarget>(kTargets, target, "target"),
                                   .log = log_to(std::move(log)),
                                   .jit = {.nvrtc = std::move(nvrtc),
                                           .cache_dir = std::move(cache_dir),
                                           .packs = std::move(packs),
                                           .nvrtc_options = std::move(nvrtc_options),
                                           .max_threads = max_threads}};
            if (jit) options.jit.policy = enum_of<JitPolicy>(kPolicies, *jit, "jit");
            const nb::gil_scoped_release released;
            new (self) Context(std::move(options));
          },
          nb::arg("device") = "cpu", nb::kw_only(), nb::arg("num_workers") = 0, nb::arg("cpus") = std::vector<int>{},
          nb::arg("target") = "best", nb::arg("log") = nb::none(), nb::arg("jit") = nb::none(), nb::arg("nvrtc") = nb::none(),
          nb::arg("cache_dir") = nb::none(), nb::arg("packs") = nb::none(), nb::arg("nvrtc_options") = std::vector<std::string>{},
          nb::arg("max_threads") = 0,
          "device: \"cpu\", \"cuda\", \"cuda:1\" or a torch.device.\n"
          "num_workers: CPU worker threads including the caller; 0 = the CPUs this process may use.\n"
          "cpus: CPUs that workers are bound to (Linux); worker w to cpus[w % len(cpus)], the caller to none.\n"
          "target: SIMD instruction set: best, scalar, avx2, avx3, avx3_bf16 or neon.\n"
          "log: called as log(level, text) with level debug, info or warning; what it raises goes to sys.unraisablehook.\n"
          "jit: allow (compile what packs and cache lack), deny (packs and cache only) or pack_only; None: GIRIH_JIT, else allow.\n"
          "nvrtc: NVRTC's file or a directory that holds it; None: searched for.\n"
          "cache_dir: of compiled kernels; \"\" = none on disk; None: ~/.cache/girih.\n"
          "packs: directories of prebuilt kernels.\n"
          "nvrtc_options: more options for all kernels.\n"
          "max_threads: of a warm-up; 0 = one per CPU, as far as memory allows.\n\n"
          "Raises ValueError for unknown names, NotImplementedError for a target or device that this machine lacks.")
      .def_prop_ro(
          "device", [](const Context& self) { return name(self.device()); }, "\"cpu\", \"cuda:0\"")
      .def_prop_ro("num_workers", &Context::num_workers, "CPU worker threads including the caller")
      .def_prop_ro(
          "target", [](const Context& self) { return std::string(name(self.cpu_target())); }, "the SIMD instruction set chosen")
      .def("__repr__", [](const Context& self) {
        return "Context(device=\"" + name(self.device()) + "\", num_workers=" + std::to_string(self.num_workers()) + ", target=\"" +
               std::string(name(self.cpu_target())) + "\")";
      });

  nb::class_<CpuInfo>(m, "CpuInfo", "Facts of the CPU.")
      .def_ro("model", &CpuInfo::model)
      .def_ro("num_cpus", &CpuInfo::num_cpus, "CPUs that this process may use")
      .def_ro("features", &CpuInfo::features, "\"avx2\", \"fma\", \"avx512f\", ...");
  m.def("cpu_info", &cpu_info, "Facts of the CPU, as `girih info` prints them.");
  m.def(
      "available_cpu_targets",
      [] {
        std::vector<std::string> names;
        for (const CpuTarget target : available_cpu_targets()) names.emplace_back(name(target));
        return names;
      },
      "SIMD instruction sets compiled in that this CPU can run, widest first.");
}

}  // namespace girih::python
