// The figures of a replay: what the text, the JSON and the page all show.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/machine.h"
#include "tools/replay_engine.h"

namespace girih::tools {

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0, max = 0;
};
/// Nearest rank; zeros for no values.
Percentiles percentiles(std::vector<double> values);

struct ReplaySummary {
  double attention_seconds = 0;  ///< append + plan + run of all steps
  double step_seconds_sum = 0;   ///< that and, of full steps, what is beside attention
  double append_seconds = 0, plan_seconds = 0, run_seconds = 0;
  LayerSeconds beside{};      ///< of full steps
  double kernel_seconds = 0;  ///< on a GPU: of append and run, by its events
  double queue_seconds = 0;   ///< on a GPU: of the host, queueing them
  std::int64_t prefill_tokens = 0, decode_tokens = 0;
  double prefill_rate = 0, decode_rate = 0;  ///< tokens per second of steps
  Percentiles step_seconds, decode_step_seconds, token_gap_seconds, plan_seconds_per_step;
  double bytes_per_second = 0, flops_per_second = 0;  ///< of run
  double peak_flops = 0;                              ///< the ceiling that applies to the types in use
  double roofline_fraction = 0;                       ///< sum over steps of max(bytes / ceiling, flops / ceiling), over run time
  /// Largest unit cost over the mean, by list: weighted by the run time of steps that have work in it, and of the worst step.
  std::array<double, attention::kNumClasses> mean_balance{1, 1}, worst_balance{1, 1};
  std::int64_t flat_keys = 0, read_keys = 0;
};
ReplaySummary summarise(const ReplayResult& result, const MachineCeilings& ceilings);

std::string summary_text(const ReplayResult& result, const ReplaySummary& summary, const MachineCeilings& ceilings);
nlohmann::ordered_json summary_json(const ReplayResult& result, const ReplaySummary& summary, const MachineCeilings& ceilings,
                                    const MachineFacts& machine);

/// "largest unit 1.012 of the mean, worst step 1.030, 264 units", with the tiles' class where there are two lists; empty: no such list.
std::string balance_text(const ReplayResult& result, const ReplaySummary& summary, int list);
/// One line: model, layers, types, pool.
std::string describe_model(const ReplayResult& result);
/// One line: source, requests, steps.
std::string describe_run(const ReplayResult& result);
/// "12.3 ms", "1.2 us".
std::string show_seconds(double seconds);
/// "1.2 GiB".
std::string show_bytes(double bytes);
/// "12,345".
std::string show_count(std::int64_t value);

}  // namespace girih::tools
