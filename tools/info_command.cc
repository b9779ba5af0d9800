// `girih info`: what the library found and chose on this machine. What is missing is reported with its reason, and is no failure.
#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "girih/capabilities.h"
#include "girih/context.h"
#include "info/info.h"
#include "tools/cli.h"

namespace girih::tools {
namespace {

using Json = nlohmann::ordered_json;

Json driver_info(const DriverFacts& driver) {
  Json gpus = Json::array();
  for (const cuda::DeviceInfo& gpu : driver.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"arch", gpu.arch},
                    {"sms", gpu.num_sms},
                    {"shared_per_block", gpu.shared_per_block},
                    {"shared_per_sm", gpu.shared_per_sm},
                    {"l2_bytes", gpu.l2_bytes},
                    {"memory_bytes", gpu.memory_bytes}});
  }
  if (!driver.missing.empty()) return {{"missing", driver.missing}, {"gpus", gpus}};
  return {{"cuda", driver.cuda}, {"gpus", gpus}};
}

Json nvrtc_info(const NvrtcFacts& nvrtc) {
  if (!nvrtc.missing.empty()) return {{"missing", nvrtc.missing}};
  return {{"version", nvrtc.version}, {"path", nvrtc.path}, {"archs", nvrtc.archs}};
}

Json cache_info(const CacheFacts& cache) {
  Json info = {{"dir", cache.dir}, {"kernels", cache.kernels}, {"faulty", cache.faulty}, {"bytes", cache.bytes}};
  if (!cache.fault.empty()) info["fault"] = cache.fault;
  return info;
}

Json packs_info(const std::vector<PackFacts>& facts) {
  Json packs = Json::array();
  for (const PackFacts& pack : facts) {
    if (pack.fault.empty()) {
      packs.push_back({{"dir", pack.dir}, {"kernels", pack.kernels}, {"nvrtc", pack.nvrtc}, {"usable", pack.usable}});
    } else {
      packs.push_back({{"dir", pack.dir}, {"kernels", 0}, {"usable", false}, {"fault", pack.fault}});
    }
  }
  return packs;
}

/// Everything that CUDA kernels are found, compiled and kept by.
void add_cuda_info(Json& info, const Facts& facts) {
  info["driver"] = driver_info(facts.driver);
  info["nvrtc"] = nvrtc_info(facts.nvrtc);
  info["kernels"] = {{"policy", name(facts.policy)}, {"bundle", facts.bundle}, {"texts", facts.num_texts}};
  info["cache"] = cache_info(facts.cache);
  info["packs"] = packs_info(facts.packs);
}

Json collect_info() {
  const Facts facts = collect_facts();
  Json info;
  info["version"] = facts.version;
  info["cpu"] = {{"model", facts.cpu.model}, {"cpus", facts.cpu.num_cpus}, {"features", facts.cpu.features}};
  Json targets = Json::array();
  for (CpuTarget target : facts.targets) targets.push_back(name(target));
  info["targets"] = targets;
  info["target"] = name(facts.target);
  info["workers"] = facts.workers;
  Json attention = Json::array();
  for (const AttentionCapability& row : facts.attention) {
    Json types = Json::array();
    for (DType type : row.kv_dtypes) types.push_back(name(type));
    attention.push_back({{"family", row.family}, {"max_head_dim", row.max_head_dim}, {"kv_dtypes", types}, {"features", row.features}});
  }
  info["attention"] = attention;
  Json operators = Json::array();
  for (const OperatorCapability& row : operator_capabilities())
    operators.push_back({{"op", row.op}, {"cpu", row.cpu}, {"cuda", row.cuda}, {"reads", row.reads}, {"writes", row.writes}});
  info["operators"] = operators;
  add_cuda_info(info, facts);
  Json environment = Json::array();
  for (const EnvVariable& variable : facts.environment) {
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
