// `girih info`: what the library found and chose on this machine. What is missing is reported with its reason, and is no failure.
#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "cuda/driver.h"
#include "girih/attention.h"
#include "girih/capabilities.h"
#include "girih/context.h"
#include "girih/error.h"
#include "girih/version.h"
#include "jit/cache.h"
#include "jit/jit.h"
#include "jit/pack.h"
#include "jit/sources.h"
#include "tools/cli.h"

namespace girih::tools {
namespace {

using Json = nlohmann::ordered_json;

Json driver_info() {
  try {
    const std::shared_ptr<const cuda::Driver> driver = cuda::Driver::load();
    Json gpus = Json::array();
    for (int device = 0; device < driver->num_devices(); ++device) {
      const cuda::DeviceInfo gpu = driver->device_info(device);
      gpus.push_back({{"name", gpu.name},
                      {"arch", gpu.arch},
                      {"sms", gpu.num_sms},
                      {"shared_per_block", gpu.shared_per_block},
                      {"shared_per_sm", gpu.shared_per_sm},
                      {"l2_bytes", gpu.l2_bytes},
                      {"memory_bytes", gpu.memory_bytes}});
    }
    return {{"cuda", fmt::format("{}.{}", driver->version() / 1000, driver->version() % 1000 / 10)}, {"gpus", gpus}};
  } catch (const Error& error) {
    return {{"missing", error.what()}, {"gpus", Json::array()}};
  }
}

Json nvrtc_info(const JitOptions& options) {
  try {
    const std::shared_ptr<const jit::Nvrtc> nvrtc = jit::Nvrtc::load({*options.nvrtc, virtual_environment()});
    return {{"version", nvrtc->version()}, {"path", nvrtc->path()}, {"archs", nvrtc->archs()}};
  } catch (const Error& error) {
    return {{"missing", error.what()}};
  }
}

Json cache_info(const JitOptions& options) {
  Json info = {{"dir", *options.cache_dir}, {"kernels", 0}, {"faulty", 0}, {"bytes", 0}};
  if (options.cache_dir->empty()) return info;
  try {
    std::int64_t kernels = 0;
    std::int64_t bytes = 0;
    std::int64_t faulty = 0;
    for (const jit::CacheItem& item : jit::list_cache(*options.cache_dir)) {
      kernels += item.entry ? 1 : 0;
      faulty += item.entry ? 0 : 1;
      bytes += item.bytes;
    }
    info.update({{"kernels", kernels}, {"faulty", faulty}, {"bytes", bytes}});
  } catch (const Error& error) {
    info["fault"] = error.what();
  }
  return info;
}

Json packs_info(const JitOptions& options) {
  Json packs = Json::array();
  for (const std::string& dir : *options.packs) {
    try {
      const jit::Pack pack(dir);
      packs.push_back({{"dir", dir},
                       {"kernels", pack.items().size()},
                       {"nvrtc", pack.nvrtc_version()},
                       {"usable", pack.bundle() == jit::bundle_hash()}});
    } catch (const Error& error) {
      packs.push_back({{"dir", dir}, {"kernels", 0}, {"usable", false}, {"fault", error.what()}});
    }
  }
  return packs;
}

/// Everything that CUDA kernels are found, compiled and kept by.
void add_cuda_info(Json& info) {
  const JitOptions options = jit::fill_from_environment({}, read_env());
  info["driver"] = driver_info();
  info["nvrtc"] = nvrtc_info(options);
  info["kernels"] = {{"policy", name(*options.policy)}, {"bundle", jit::bundle_hash()}, {"texts", jit::embedded_sources().size()}};
  info["cache"] = cache_info(options);
  info["packs"] = packs_info(options);
}

Json collect_info() {
  const CpuInfo cpu = cpu_info();
  const Context context;
  Json info;
  info["version"] = kVersion;
  info["cpu"] = {{"model", cpu.model}, {"cpus", cpu.num_cpus}, {"features", cpu.features}};
  Json targets = Json::array();
  for (CpuTarget target : available_cpu_targets()) targets.push_back(name(target));
  info["targets"] = targets;
  info["target"] = name(context.cpu_target());
  info["workers"] = context.num_workers();
  Json attention = Json::array();
  for (const AttentionCapability& row : attention_capabilities()) {
    Json types = Json::array();
    for (DType type : row.kv_dtypes) types.push_back(name(type));
    attention.push_back({{"family", row.family}, {"max_head_dim", row.max_head_dim}, {"kv_dtypes", types}, {"features", row.features}});
  }
  info["attention"] = attention;
  Json operators = Json::array();
  for (const OperatorCapability& row : operator_capabilities())
    operators.push_back({{"op", row.op}, {"cpu", row.cpu}, {"cuda", row.cuda}, {"reads", row.reads}, {"writes", row.writes}});
  info["operators"] = operators;
  add_cuda_info(info);
  Json environment = Json::array();
  for (const EnvVariable& variable : env_variables()) {
    Json value = variable.value ? Json(*variable.value) : Json(nullptr);
    environment.push_back({{"name", variable.name}, {"value", value}, {"meaning", variable.meaning}});
  }
  info["environment"] = environment;
  return info;
}

std::string join(const Json& list) {
  std::string text;
  for (const Json& item : list) text += (text.empty() ? "" : " ") + item.get<std::string>();
  return text;
}

void row(std::string_view label, const std::string& value) { fmt::print("{:<10}{}\n", label, value); }

void print_cuda_info(const Json& info) {
  const auto text = [](const Json& value) { return value.get<std::string>(); };
  const auto number = [](const Json& value) { return value.get<std::int64_t>(); };
  const Json& driver = info["driver"];
  row("driver", driver.contains("missing") ? text(driver["missing"]) : "for CUDA " + text(driver["cuda"]));
  for (const Json& gpu : driver["gpus"]) {
    row("gpu",
        fmt::format("{}, compute capability {}.{}, {} SMs, {} KiB shared memory a block ({} an SM), L2 {} MiB, {} MiB", text(gpu["name"]),
                    number(gpu["arch"]) / 10, number(gpu["arch"]) % 10, number(gpu["sms"]), number(gpu["shared_per_block"]) >> 10,
                    number(gpu["shared_per_sm"]) >> 10, number(gpu["l2_bytes"]) >> 20, number(gpu["memory_bytes"]) >> 20));
  }
  const Json& nvrtc = info["nvrtc"];
  row("nvrtc", nvrtc.contains("missing") ? text(nvrtc["missing"]) : fmt::format("{} ({})", text(nvrtc["version"]), text(nvrtc["path"])));
  row("kernels", fmt::format("policy {}; {} texts, bundle {}", text(info["kernels"]["policy"]), number(info["kernels"]["texts"]),
                             text(info["kernels"]["bundle"])));
  const Json& cache = info["cache"];
  const std::string dir = text(cache["dir"]);
  row("cache", dir.empty() ? "off"
               : cache.contains("fault")
                   ? text(cache["fault"])
                   : fmt::format("{}: {} kernels, {} bytes{}", dir, number(cache["kernels"]), number(cache["bytes"]),
                                 number(cache["faulty"]) > 0 ? fmt::format(", {} faulty files", number(cache["faulty"])) : ""));
  for (const Json& pack : info["packs"]) {
    row("pack", pack.contains("fault") ? text(pack["fault"])
                                       : fmt::format("{}: {} kernels{}", text(pack["dir"]), number(pack["kernels"]),
                                                     pack["usable"].get<bool>() ? "" : ", of other kernel texts: not usable"));
  }
}

void print_info(const Json& info) {
  row("girih", info["version"].get<std::string>());
  row("cpu", info["cpu"]["model"].get<std::string>());
  row("features", join(info["cpu"]["features"]));
  row("target", fmt::format("{} (available: {})", info["target"].get<std::string>(), join(info["targets"])));
  row("workers", fmt::format("{} of {} CPUs", info["workers"].get<int>(), info["cpu"]["cpus"].get<int>()));
  for (const Json& family : info["attention"]) {
    row("attention", fmt::format("{}: KV types {}; head_dim up to {}", family["family"].get<std::string>(), join(family["kv_dtypes"]),
                                 family["max_head_dim"].get<int>()));
  }
  std::string everywhere, cpu_only, cuda_only;
  for (const Json& op : info["operators"]) {
    const bool cpu = op["cpu"].get<bool>(), cuda = op["cuda"].get<bool>();
    std::string& list = cpu && cuda ? everywhere : (cpu ? cpu_only : cuda_only);
    list += (list.empty() ? "" : ", ") + op["op"].get<std::string>();
  }
  row("operators", "CPU and CUDA: " + everywhere);
  if (!cpu_only.empty()) row("", "CPU: " + cpu_only);
  if (!cuda_only.empty()) row("", "CUDA: " + cuda_only);
  print_cuda_info(info);
  for (const Json& variable : info["environment"]) {
    const Json& value = variable["value"];
    fmt::print("{} {}: {}\n", variable["name"].get<std::string>(), value.is_null() ? "(not set)" : "= " + value.get<std::string>(),
               variable["meaning"].get<std::string>());
  }
}

}  // namespace

void add_info_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("info", "CPU, GPUs, driver, NVRTC, kernel cache, capabilities, environment");
  const auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "Print JSON");
  command->callback([as_json, &exit_code] {
    const Json info = collect_info();
    if (*as_json) {
      fmt::print("{}\n", info.dump(2));
    } else {
      print_info(info);
    }
    exit_code = kOk;
  });
}

}  // namespace girih::tools
