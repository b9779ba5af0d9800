// `girih info`: what the library found and chose on this machine.
#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "girih/attention.h"
#include "girih/context.h"
#include "girih/version.h"
#include "tools/cli.h"

namespace girih::tools {
namespace {

using Json = nlohmann::ordered_json;

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

void print_info(const Json& info) {
  const auto row = [](std::string_view label, const std::string& value) { fmt::print("{:<10}{}\n", label, value); };
  row("girih", info["version"].get<std::string>());
  row("cpu", info["cpu"]["model"].get<std::string>());
  row("features", join(info["cpu"]["features"]));
  row("target", fmt::format("{} (available: {})", info["target"].get<std::string>(), join(info["targets"])));
  row("workers", fmt::format("{} of {} CPUs", info["workers"].get<int>(), info["cpu"]["cpus"].get<int>()));
  for (const Json& family : info["attention"]) {
    row("attention", fmt::format("{}: KV types {}; head_dim up to {}", family["family"].get<std::string>(), join(family["kv_dtypes"]),
                                 family["max_head_dim"].get<int>()));
  }
  for (const Json& variable : info["environment"]) {
    const Json& value = variable["value"];
    fmt::print("{} {}: {}\n", variable["name"].get<std::string>(), value.is_null() ? "(not set)" : "= " + value.get<std::string>(),
               variable["meaning"].get<std::string>());
  }
}

}  // namespace

void add_info_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("info", "CPU features, chosen SIMD target, workers and capabilities");
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
