// girih.info(), girih.warmup(): what the library found on this machine, and kernels made ready before they are needed.
#include "info/info.h"

#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "attention.h"
#include "bind.h"
#include "girih/capabilities.h"

namespace girih::python {
namespace {

nb::list names_of(const std::vector<DType>& types) {
  nb::list out;
  for (const DType t : types) out.append(std::string(name(t)));
  return out;
}

nb::dict driver_dict(const DriverFacts& driver) {
  nb::dict out;
  if (driver.missing.empty()) {
    out["cuda"] = driver.cuda;
  } else {
    out["missing"] = driver.missing;
  }
  nb::list gpus;
  for (const cuda::DeviceInfo& gpu : driver.gpus) {
    nb::dict facts;
    facts["name"] = gpu.name;
    facts["arch"] = gpu.arch;
    facts["sms"] = gpu.num_sms;
    facts["shared_per_block"] = gpu.shared_per_block;
    facts["shared_per_sm"] = gpu.shared_per_sm;
    facts["l2_bytes"] = gpu.l2_bytes;
    facts["memory_bytes"] = gpu.memory_bytes;
    gpus.append(facts);
  }
  out["gpus"] = gpus;
  return out;
}

nb::dict nvrtc_dict(const NvrtcFacts& nvrtc) {
  nb::dict out;
  if (!nvrtc.missing.empty()) {
    out["missing"] = nvrtc.missing;
    return out;
  }
  out["version"] = nvrtc.version;
  out["path"] = nvrtc.path;
  out["archs"] = nb::cast(nvrtc.archs);
  return out;
}

nb::dict cache_dict(const CacheFacts& cache) {
  nb::dict out;
  out["dir"] = cache.dir;
  out["kernels"] = cache.kernels;
  out["faulty"] = cache.faulty;
  out["bytes"] = cache.bytes;
  if (!cache.fault.empty()) out["fault"] = cache.fault;
  return out;
}

nb::list packs_list(const std::vector<PackFacts>& packs) {
  nb::list out;
  for (const PackFacts& pack : packs) {
    nb::dict facts;
    facts["dir"] = pack.dir;
    facts["kernels"] = pack.kernels;
    if (pack.fault.empty()) {
      facts["nvrtc"] = pack.nvrtc;
    } else {
      facts["fault"] = pack.fault;
    }
    facts["usable"] = pack.usable;
    out.append(facts);
  }
  return out;
}

nb::list attention_list(const std::vector<AttentionCapability>& families) {
  nb::list out;
  for (const AttentionCapability& row : families) {
    nb::dict facts;
    facts["family"] = row.family;
    facts["max_head_dim"] = row.max_head_dim;
    facts["kv_dtypes"] = names_of(row.kv_dtypes);
    facts["features"] = nb::cast(row.features);
    out.append(facts);
  }
  return out;
}

nb::list operators_list() {
  nb::list out;
  for (const OperatorCapability& row : operator_capabilities()) {
    nb::dict facts;
    facts["op"] = std::string(row.op);
    facts["cpu"] = row.cpu;
    facts["cuda"] = row.cuda;
    facts["reads"] = std::string(row.reads);
    facts["writes"] = std::string(row.writes);
    out.append(facts);
  }
  return out;
}

nb::list environment_list(const std::vector<EnvVariable>& variables) {
  nb::list out;
  for (const EnvVariable& variable : variables) {
    nb::dict facts;
    facts["name"] = std::string(variable.name);
    facts["value"] = variable.value ? nb::cast(*variable.value) : nb::object(nb::none());
    facts["meaning"] = std::string(variable.meaning);
    out.append(facts);
  }
  return out;
}

nb::dict info() {
  Facts facts;
  {
    const nb::gil_scoped_release released;
    facts = collect_facts();
  }
  nb::dict cpu;
  cpu["model"] = facts.cpu.model;
  cpu["cpus"] = facts.cpu.num_cpus;
  cpu["features"] = nb::cast(facts.cpu.features);
  nb::list targets;
  for (const CpuTarget target : facts.targets) targets.append(std::string(name(target)));
  nb::dict kernels;
  kernels["policy"] = std::string(name(facts.policy));
  kernels["bundle"] = facts.bundle;
  kernels["texts"] = facts.num_texts;
  nb::dict out;
  out["version"] = facts.version;
  out["cpu"] = cpu;
  out["targets"] = targets;
  out["target"] = std::string(name(facts.target));
  out["workers"] = facts.workers;
  out["attention"] = attention_list(facts.attention);
  out["operators"] = operators_list();
  out["driver"] = driver_dict(facts.driver);
  out["nvrtc"] = nvrtc_dict(facts.nvrtc);
  out["kernels"] = kernels;
  out["cache"] = cache_dict(facts.cache);
  out["packs"] = packs_list(facts.packs);
  out["environment"] = environment_list(facts.environment);
  return out;
}

/// `progress` is called with the GIL taken, from whichever thread finished a kernel; what it raises ends the warm-up and is raised here.
void warm_up(const Context& context, const std::vector<AttentionSpec>& specs, const nb::object& progress) {
  WarmupFn call;
  if (!progress.is_none()) {
    const nb::object* callback = &progress;
    call = [callback](const WarmupProgress& p) {
      const nb::gil_scoped_acquire gil;
      const std::string origin = p.name.empty() ? std::string() : std::string(name(p.origin));
      (*callback)(p.done, p.total, nb::str(p.name.data(), p.name.size()), nb::str(p.target.data(), p.target.size()), origin, p.seconds);
    };
  }
  const nb::gil_scoped_release released;
  warmup(context, specs, call);
}

}  // namespace

void bind_info(nb::module_& m) {
  m.def("info", info, nb::sig("def info() -> dict[str, typing.Any]"),
        "What the library found and chose on this machine, as `girih info --json` prints it: version, cpu, targets, workers, attention\n"
        "families, driver and GPUs, NVRTC, kernel policy, cache, packs, environment variables. What is missing has its reason under "
        "\"missing\".");
  m.def("warmup", warm_up, nb::arg("context"), nb::arg("specs"), nb::arg("progress") = nb::none(),
        nb::sig("def warmup(context: Context, specs: collections.abc.Sequence[AttentionSpec], "
                "progress: collections.abc.Callable[[int, int, str, str, str, float], object] | None = None) -> None"),
        "See girih.warmup().");
}

}  // namespace girih::python
