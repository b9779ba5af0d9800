// `girih bench machine`: the ceilings that rooflines are built from, each a row.
#include <fmt/format.h>

#include "tools/bench.h"

namespace girih::tools {

std::vector<std::string> machine_case_names() { return {"read_stream", "f32_fma", "bf16_dot"}; }

BenchResult bench_machine(const BenchOptions& options) {
  const std::vector<std::string> chosen = choose_cases(options, machine_case_names());
  const Context context = bench_context(options);
  cpu::ThreadPool& pool = context.pool();
  const int repeats = options.repeats > 0 ? options.repeats : 9;
  BenchResult result;
  result.machine = machine_facts(std::string(name(context.cpu_target())), context.num_workers());
  for (const std::string& name : chosen) {
    BenchRow row{.op = "machine", .name = name, .backend = "cpu", .roofline_fraction = 1, .extra = {}};
    std::vector<double> rates;
    if (name == "read_stream") {
      ReadStream stream(pool);
      for (int i = 0; i < repeats; ++i) rates.push_back(stream.bytes_per_second());
      row.bytes = static_cast<double>(stream.bytes());
    } else {
      for (int i = 0; i < repeats; ++i) rates.push_back(name == "f32_fma" ? measure_f32_flops(pool) : measure_bf16_flops(pool));
    }
    const double rate = median(rates);
    row.extra["rate"] = rate;
    row.extra["rate_low"] = *std::min_element(rates.begin(), rates.end());
    row.extra["rate_high"] = *std::max_element(rates.begin(), rates.end());
    if (row.bytes > 0) {
      row.seconds = row.bytes / rate;
    } else if (rate > 0) {
      row.seconds = 1;  // a row states what was done in `seconds`
      row.flops = rate;
    }
    if (rate == 0) {
      fmt::print(options.table, "{:<12} not on this CPU\n", name);
    } else {
      fmt::print(options.table, "{:<12} {:8.1f} {} (median of {}; {:.1f} to {:.1f})\n", name, rate / 1e9,
                 row.bytes > 0 ? "GB/s" : "GFLOP/s", repeats, row.extra["rate_low"].get<double>() / 1e9,
                 row.extra["rate_high"].get<double>() / 1e9);
    }
    result.rows.push_back(row);
  }
  return result;
}

}  // namespace girih::tools
