// `girih bench machine | plan | attention | sampling | norm | activation | rope | quant | page`: options, filters and result files. The
// measuring is in bench_*.cc.
#include <fmt/format.h>
#include <fnmatch.h>

#include "base/error.h"
#include "tools/bench_report.h"
#include "tools/output.h"

namespace girih::tools {
namespace {

CpuTarget target_from_name(const std::string& text) {
  std::string names;
  for (CpuTarget target : kCpuTargets) {
    if (text == name(target)) return target;
    names += (names.empty() ? "" : ", ") + std::string(name(target));
  }
  fail(Code::invalid_argument, "--target", "'{}' is none of {}", text, names);
}

nlohmann::ordered_json describe_names(const std::vector<std::string>& names) {
  nlohmann::ordered_json described = nlohmann::ordered_json::array();
  for (const std::string& name : names) described.push_back({{"case", name}});
  return described;
}

struct Subcommand {
  const char* name;
  const char* about;
  std::vector<std::string> (*case_names)();
  std::function<BenchResult(const BenchOptions&)> measure;
  nlohmann::ordered_json (*describe)(const std::vector<std::string>& names) = describe_names;
  std::vector<std::string> (*gpu_case_names)() = nullptr;  ///< where they are others
};

void run_bench(BenchOptions options, const Subcommand& subcommand, int& exit_code) {
  if (options.list) {
    const auto all = options.backend == "cuda" && subcommand.gpu_case_names != nullptr ? subcommand.gpu_case_names : subcommand.case_names;
    const std::vector<std::string> names = choose_cases(options, all());
    if (options.json.empty()) {
      for (const std::string& name : names) fmt::print("{}\n", name);
    } else {
      write_file(options.json, nlohmann::ordered_json{{"cases", subcommand.describe(names)}}.dump(1) + "\n");
    }
    exit_code = kOk;
    return;
  }
  if (options.json == "-") options.table = stderr;
  const BenchResult result = subcommand.measure(options);
  if (!options.json.empty()) write_file(options.json, bench_json(result).dump(1) + "\n");
  if (!options.report.empty()) write_file(options.report, bench_html(result));
  exit_code = result.exit_code;
}

}  // namespace

bool matches(const std::string& filter, const std::string& name) { return filter.empty() || fnmatch(filter.c_str(), name.c_str(), 0) == 0; }

std::vector<std::string> choose_cases(const BenchOptions& options, const std::vector<std::string>& names) {
  std::vector<std::string> chosen;
  std::string all;
  for (const std::string& name : names) {
    if (matches(options.filter, name)) chosen.push_back(name);
    all += " " + name;
  }
  if (chosen.empty()) fail(Code::invalid_argument, "--case", "'{}' matches none of:{}", options.filter, all);
  return chosen;
}

Context bench_context(const BenchOptions& options) {
  ContextOptions context;
  context.num_workers = options.workers;
  context.cpus = options.cpus;
  context.target = target_from_name(options.target);
  return Context(context);
}

void add_bench_command(CLI::App& app, int& exit_code, AllocationCount allocation_count) {
  CLI::App* bench = app.add_subcommand("bench", "Measure: the machine, planning, operators");
  bench->require_subcommand(1);
  const std::vector<Subcommand> subcommands = {
      {"machine", "Ceilings: reading memory, f32 multiply-add, bf16 dot product", machine_case_names, bench_machine},
      {"plan", "Time, size and balance of plan()", plan_case_names,
       [allocation_count](const BenchOptions& options) { return bench_plan(options, allocation_count); }},
      {"attention", "Attention beside the machine's ceilings", attention_case_names, bench_attention, describe_attention_cases,
       gpu_attention_case_names},
      {"sampling", "Sampling and top-k on either backend", sampling_case_names, bench_sampling},
      {"norm", "RMSNorm and LayerNorm beside the rate of memory", norm_case_names, bench_norm},
      {"rope", "Rotation, alone and fused with appends, beside the rate of memory", rope_case_names, bench_rope},
      {"quant", "Quantisation and back beside the rate of memory", quant_case_names, bench_quant},
      {"page", "Writes to the paged cache and copies of pages beside the rate of memory", page_case_names, bench_page},
      {"activation", "Gated activations beside the rate of memory", activation_case_names, bench_activation}};
  for (const Subcommand& subcommand : subcommands) {
    CLI::App* command = bench->add_subcommand(subcommand.name, subcommand.about);
    const auto o = std::make_shared<BenchOptions>();
    command->add_option("--case", o->filter, "Only this case, or those that match a pattern with * and ?");
    command->add_option("--json", o->json, "Write the results, or with --list the cases, as JSON; - = stdout");
    command->add_option("--report", o->report, "Write the results as a page with a table");
    command->add_option("--repeats", o->repeats, "Repeats a median is taken over")->check(CLI::Range(1, 100000));
    command->add_option("--workers", o->workers, "CPU workers; 0 = all CPUs")->check(CLI::Range(0, 4096));
    command
        ->add_option("--cpus", o->cpus,
                     "Bind worker W to the W-th of these CPUs, e.g. 0,2,4,6 (the first is for the calling thread, not bound)")
        ->delimiter(',');
    if (std::string_view(subcommand.name) != "machine") {
      command->add_option("--target", o->target, "SIMD target: best, scalar, avx2, avx3, avx3_bf16, neon")->capture_default_str();
    }
    const bool attention = std::string_view(subcommand.name) == "attention";
    if (std::string_view(subcommand.name) != "machine" && std::string_view(subcommand.name) != "plan") {
      command->add_option("--backend", o->backend, "cpu, or cuda: CUDA device 0")
          ->check(CLI::IsMember({"cpu", "cuda"}))
          ->capture_default_str();
    }
    if (attention) {
      command->add_option("--family", o->family, "CUDA: one family's kernels (floor, mma) in place of the table's choice");
    }
    command->add_flag("--list", o->list, "List the cases");
    command->callback([o, subcommand, &exit_code] { run_bench(*o, subcommand, exit_code); });
  }
}

}  // namespace girih::tools
