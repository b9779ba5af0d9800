// `girih bench`: what its subcommands share. Each measures rows; bench_report.h writes them in one form.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "girih/context.h"
#include "tools/cli.h"
#include "tools/machine.h"

namespace girih::tools {

struct BenchOptions {
  std::string filter;  ///< a case's name, or a pattern with * and ?; empty = all
  std::string json, report, target = "best";
  int repeats = 0;  ///< 0 = the subcommand's own choice
  int workers = 0;
  std::vector<int> cpus{};
  std::string backend = "cpu", family;  ///< family: of attention
  bool list = false;
  std::FILE* table = stdout;  ///< where the table goes: stderr while stdout carries the JSON
};

struct BenchRow {
  std::string op, name, backend;
  double seconds = 0;  ///< median
  double bytes = 0;    ///< useful: what the case must read and write once
  double flops = 0;    ///< useful: of visible (row, key) pairs
  double roofline_fraction = 0;
  double plan_seconds = 0;
  double host_seconds = 0;       ///< run() of one row that sees one key
  nlohmann::ordered_json extra;  ///< further fields of the row
};

struct BenchResult {
  MachineFacts machine;
  MachineCeilings ceilings;  ///< zeros where a subcommand measures none
  std::vector<BenchRow> rows;
  int exit_code = kOk;
};

/// Whether `name` is chosen by `filter`.
bool matches(const std::string& filter, const std::string& name);
/// The names chosen by the filter; throws invalid_argument, with the names there are, when none is.
std::vector<std::string> choose_cases(const BenchOptions& options, const std::vector<std::string>& names);

Context bench_context(const BenchOptions& options);

BenchResult bench_machine(const BenchOptions& options);
BenchResult bench_plan(const BenchOptions& options, AllocationCount allocation_count);
BenchResult bench_attention(const BenchOptions& options);
BenchResult bench_attention_cuda(const BenchOptions& options);
BenchResult bench_sampling(const BenchOptions& options);
BenchResult bench_norm(const BenchOptions& options);
BenchResult bench_rope(const BenchOptions& options);
BenchResult bench_quant(const BenchOptions& options);
BenchResult bench_page(const BenchOptions& options);
BenchResult bench_activation(const BenchOptions& options);

/// Names for --list and filters.
std::vector<std::string> machine_case_names();
std::vector<std::string> plan_case_names();
std::vector<std::string> attention_case_names();
std::vector<std::string> gpu_attention_case_names();
std::vector<std::string> sampling_case_names();
std::vector<std::string> norm_case_names();
std::vector<std::string> rope_case_names();
std::vector<std::string> quant_case_names();
std::vector<std::string> page_case_names();
std::vector<std::string> activation_case_names();

/// The cases of those names with all that a program of another library needs to time the same problem.
nlohmann::ordered_json describe_attention_cases(const std::vector<std::string>& names);

using BenchClock = std::chrono::steady_clock;
inline double seconds_since(BenchClock::time_point start) { return std::chrono::duration<double>(BenchClock::now() - start).count(); }

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace girih::tools
