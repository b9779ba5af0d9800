// `girih compile` and `girih source`: kernels of a spec as cubins with their cost on the device, and as the text that is compiled.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/error.h"
#include "base/file.h"
#include "jit/jit.h"
#include "jit/sources.h"
#include "tools/cli.h"
#include "tools/kernel_options.h"
#include "tools/output.h"

namespace girih::tools {
namespace {

using Json = nlohmann::ordered_json;

struct CompileOptions {
  KernelOptions kernels;
  std::string output, json;
  std::vector<std::string> nvrtc_options;
  bool no_cache = false, log = false;
};

struct SourceOptions {
  KernelOptions kernels;
  std::string embedded;
  bool list = false;
};

struct Compiled {
  WantedKernel wanted;
  std::shared_ptr<const jit::Cubin> cubin;
  KernelOrigin origin{};
  double seconds = 0;
};

void print_log(LogLevel level, std::string_view text) {
  if (level == LogLevel::warning) fmt::print(stderr, "girih: {}\n", text);
}

std::vector<Compiled> compile_all(const CompileOptions& o, const std::vector<WantedKernel>& wanted, jit::JitStats& stats) {
  JitOptions options;
  options.nvrtc_options = o.nvrtc_options;
  if (o.no_cache) {
    options.cache_dir = "";
    options.packs.emplace();
  }
  jit::Jit jit(jit::fill_from_environment(std::move(options), read_env()), "", print_log);
  std::map<std::string, double, std::less<>> seconds;
  std::vector<jit::KernelSource> sources;
  sources.reserve(wanted.size());
  for (const WantedKernel& kernel : wanted) sources.push_back(kernel.source);
  jit.warmup(sources, [&](const WarmupProgress& progress) {
    if (!progress.name.empty()) seconds.emplace(fmt::format("{} {}", progress.target, progress.name), progress.seconds);
  });
  std::vector<Compiled> compiled;
  for (const WantedKernel& kernel : wanted) {
    std::shared_ptr<const jit::Cubin> cubin = jit.compile(kernel.source);
    const double took = seconds[fmt::format("{} {}", cubin->target, cubin->name)];
    compiled.push_back({kernel, cubin, cubin->origin, took});
  }
  stats = jit.stats();
  return compiled;
}

Json json_of(const Compiled& c) {
  const jit::Resources& r = c.cubin->resources;
  return {{"kernel", c.cubin->name},
          {"family", c.wanted.family},
          {"target", c.cubin->target},
          {"key", c.cubin->key},
          {"nvrtc", c.cubin->nvrtc_version},
          {"origin", name(c.origin)},
          {"seconds", c.seconds},
          {"image_bytes", c.cubin->image.size()},
          {"registers", r.registers},
          {"spill_stores", r.spill_stores},
          {"spill_loads", r.spill_loads},
          {"stack_bytes", r.stack_bytes},
          {"static_shared_bytes", r.static_shared},
          {"dynamic_shared_bytes", c.wanted.shared_bytes},
          {"barriers", r.barriers},
          {"threads", c.wanted.num_threads},
          {"blocks_per_sm", c.wanted.blocks_per_sm}};
}

void write_images(const std::string& dir, const std::vector<Compiled>& compiled) {
  make_dir(dir, Readers::everyone);
  for (const Compiled& c : compiled) {
    const bool ptx = jit::is_ptx(c.cubin->target);
    const std::string_view image(c.cubin->image.data(), c.cubin->image.size() - (ptx ? 1 : 0));  // without its NUL
    publish_file(dir, fmt::format("{}.{}.{}", c.cubin->name, c.cubin->target, ptx ? "ptx" : "cubin"), image, Readers::everyone);
  }
}

void print_table(const std::vector<Compiled>& compiled, const jit::JitStats& stats, bool log) {
  fmt::print("{:<9} {:>5} {:>7} {:>6} {:>8} {:>8} {:>9} {:>8} {:<8} {}\n", "target", "regs", "spilled", "stack", "shared", "threads",
             "bytes", "seconds", "from", "kernel");
  for (const Compiled& c : compiled) {
    const jit::Resources& r = c.cubin->resources;
    fmt::print("{:<9} {:>5} {:>7} {:>6} {:>8} {:>8} {:>9} {:>8.3f} {:<8} {}\n", c.cubin->target, r.registers,
               r.spill_stores + r.spill_loads, r.stack_bytes, r.static_shared + c.wanted.shared_bytes, c.wanted.num_threads,
               c.cubin->image.size(), c.seconds, name(c.origin), c.cubin->name);
    if (log) fmt::print("{}", c.cubin->log);
  }
  fmt::print("{} compiled in {:.3f} s of compiler time, {} from the cache, {} from packs\n", stats.compiled, stats.compile_seconds,
             stats.from_cache, stats.from_packs);
}

void run_compile(const CompileOptions& o) {
  jit::JitStats stats;
  const std::vector<Compiled> compiled = compile_all(o, wanted_kernels(o.kernels), stats);
  if (!o.output.empty()) write_images(o.output, compiled);
  if (!o.json.empty()) {
    Json rows = Json::array();
    for (const Compiled& c : compiled) rows.push_back(json_of(c));
    write_file(o.json, Json{{"bundle", jit::bundle_hash()}, {"kernels", rows}}.dump(1) + "\n");
  }
  if (o.json != "-") print_table(compiled, stats, o.log);
}

void run_source(const SourceOptions& o) {
  if (o.list || !o.embedded.empty()) {
    for (const jit::EmbeddedSource& source : jit::embedded_sources()) {
      if (o.list) fmt::print("{:>7} {}\n", source.text.size(), source.name);
      if (source.name == o.embedded) {
        fmt::print("{}", source.text);
        return;
      }
    }
    if (!o.list) fail(Code::invalid_argument, "source", "--embedded {}: no such kernel text; --list names them", o.embedded);
    return;
  }
  for (const WantedKernel& kernel : wanted_kernels(o.kernels)) {
    const jit::Recipe recipe = jit::make_recipe(kernel.source);
    fmt::print("// kernel   {} ({})\n// target   {}\n// options  {}\n// bundle   {}\n// recipe   {}\n", kernel.source.name, kernel.family,
               kernel.source.target, fmt::join(recipe.options, " "), recipe.bundle, recipe.hash());
    if (kernel.num_threads > 0) {
      fmt::print("// launch   {} threads a block, {} blocks an SM, {} bytes of dynamic shared memory a block\n", kernel.num_threads,
                 kernel.blocks_per_sm, kernel.shared_bytes);
    }
    fmt::print("{}\n", kernel.source.source);
  }
}

}  // namespace

void add_compile_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("compile", "Compile CUDA kernels and report their cost on the device; no GPU needed");
  const auto o = std::make_shared<CompileOptions>();
  add_kernel_options(*command, o->kernels);
  command->add_option("--output", o->output, "Directory for the images, NAME.TARGET.cubin or .ptx");
  command->add_option("--json", o->json, "Report as JSON; - is stdout");
  command->add_option("--nvrtc-option", o->nvrtc_options, "One more option for NVRTC; may be repeated");
  command->add_flag("--no-cache", o->no_cache, "Compile, whatever cache and packs have, and keep nothing");
  command->add_flag("--log", o->log, "Print the compiler's messages");
  command->callback([o, &exit_code] {
    run_compile(*o);
    exit_code = kOk;
  });
}

void add_source_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("source", "Show the CUDA text of kernels: what is generated for a spec, or what is embedded");
  const auto o = std::make_shared<SourceOptions>();
  add_kernel_options(*command, o->kernels);
  CLI::Option* embedded = command->add_option("--embedded", o->embedded, "Print this embedded kernel text, e.g. ptx/mma.cuh");
  command->add_flag("--list", o->list, "List the embedded kernel texts")->excludes(embedded);
  command->callback([o, &exit_code] {
    run_source(*o);
    exit_code = kOk;
  });
}

}  // namespace girih::tools
