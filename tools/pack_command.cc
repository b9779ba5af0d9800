// `girih pack`: directories of prebuilt CUDA kernels, for machines without NVRTC or where nothing may be compiled.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "jit/jit.h"
#include "jit/pack.h"
#include "jit/sources.h"
#include "tools/cli.h"
#include "tools/kernel_options.h"

namespace girih::tools {
namespace {

using Json = nlohmann::ordered_json;

struct BuildOptions {
  KernelOptions kernels;
  std::string dir;
  bool quiet = false;
};

void print_warning(LogLevel level, std::string_view text) {
  if (level == LogLevel::warning) fmt::print(stderr, "girih: {}\n", text);
}

void build(const BuildOptions& o) {
  JitOptions options;
  options.packs.emplace();  // a pack is made from what this library compiles
  jit::Jit jit(jit::fill_from_environment(std::move(options), read_env()), "", print_warning);
  const std::vector<WantedKernel> wanted = wanted_kernels(o.kernels);
  std::vector<jit::KernelSource> sources;
  sources.reserve(wanted.size());
  for (const WantedKernel& kernel : wanted) sources.push_back(kernel.source);
  jit.warmup(sources, [&](const WarmupProgress& progress) {
    if (!o.quiet) fmt::print(stderr, "{}/{} {} {}\n", progress.done, progress.total, progress.target, progress.name);
  });
  std::vector<jit::PackEntry> entries;
  entries.reserve(sources.size());
  for (const jit::KernelSource& source : sources) entries.push_back({jit.recipe(source), *jit.compile(source)});
  jit::build_pack(o.dir, entries);
  std::int64_t bytes = 0;
  const jit::Pack pack(o.dir);
  for (const jit::PackItem& item : pack.items()) bytes += item.bytes;
  fmt::print("{} kernels, {} bytes in {}\n", pack.items().size(), bytes, o.dir);
}

/// Empty where the file is what the manifest says.
std::string fault_of(const jit::Pack& pack, const jit::PackItem& item) {
  try {
    const std::string bytes = read_file(fmt::format("{}/{}", pack.dir(), item.file));
    return hash_text(bytes) == item.hash ? "" : "differs from the manifest";
  } catch (const Error& error) {
    return error.what();
  }
}

/// True where no file is faulty, or none was checked.
bool list(const std::string& dir, bool check, bool as_json) {
  const jit::Pack pack(dir);
  const bool usable = pack.bundle() == jit::bundle_hash();
  Json rows = Json::array();
  std::int64_t bytes = 0;
  int faults = 0;
  for (const jit::PackItem& item : pack.items()) {
    const std::string fault = check ? fault_of(pack, item) : std::string();
    faults += fault.empty() ? 0 : 1;
    bytes += item.bytes;
    rows.push_back({{"kernel", item.name}, {"target", item.target}, {"bytes", item.bytes}, {"recipe", item.recipe}});
    if (!fault.empty()) rows.back()["fault"] = fault;
    if (!as_json) fmt::print("{:>9}  {:<9} {}{}{}\n", item.bytes, item.target, item.name, fault.empty() ? "" : "  faulty: ", fault);
  }
  if (as_json) {
    const Json report = {{"dir", dir},     {"nvrtc", pack.nvrtc_version()}, {"bundle", pack.bundle()}, {"usable", usable}, {"bytes", bytes},
                         {"kernels", rows}};
    fmt::print("{}\n", report.dump(1));
  } else {
    fmt::print("{} kernels, {} bytes in {}, by NVRTC {}{}\n", pack.items().size(), bytes, dir, pack.nvrtc_version(),
               usable ? "" : "; of other kernel texts than this library's, so nothing in it can be used");
  }
  return faults == 0;
}

}  // namespace

void add_pack_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("pack", "Directories of prebuilt CUDA kernels: build, list");
  command->require_subcommand(1);
  const auto o = std::make_shared<BuildOptions>();
  CLI::App* build_command = command->add_subcommand("build", "Compile kernels into a new pack");
  build_command->add_option("--output", o->dir, "The pack's directory; must not hold a pack")->required();
  add_kernel_options(*build_command, o->kernels);
  build_command->add_flag("--quiet", o->quiet, "No progress");
  build_command->callback([o, &exit_code] {
    build(*o);
    exit_code = kOk;
  });
  const auto dir = std::make_shared<std::string>();
  const auto check = std::make_shared<bool>(false);
  const auto as_json = std::make_shared<bool>(false);
  CLI::App* list_command = command->add_subcommand("list", "What a pack holds");
  list_command->add_option("DIR", *dir, "The pack's directory")->required();
  list_command->add_flag("--verify", *check, "Check every file; exit code 1 if one is faulty");
  list_command->add_flag("--json", *as_json, "Print JSON");
  list_command->callback([=, &exit_code] { exit_code = list(*dir, *check, *as_json) ? kOk : kCheckFailed; });
}

}  // namespace girih::tools
