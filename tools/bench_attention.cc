// `girih bench attention`: each case in rounds of (ceilings, run, ceilings). Shared machines drift, in memory bandwidth most, so a run's
// roofline takes the ceilings measured right before and after it (the mean of the two); a case's fraction is the median over its runs.
// The read stream also evicts the caches: KV comes from memory, as in a model with other layers between.
// The compute ceiling is the bf16 dot peak where Q is 16-bit and the CPU has it, the f32 multiply-add peak otherwise.
#include <fmt/format.h>

#include "tools/attention_cases.h"
#include "tools/bench.h"
#include "tools/plan_report.h"

namespace girih::tools {
namespace {

constexpr int kLeastRepeats = 3;
constexpr double kCaseSeconds = 2.0;  // of runs, after which a case ends though repeats are left

struct Timing {
  std::vector<double> seconds, fractions, bandwidths, peaks;
};

class AttentionBench {
 public:
  AttentionBench(const Context& context, int repeats) : context_(context), repeats_(repeats), stream_(context.pool()) {
    ceilings_.f32_flops = measure_f32_flops(context.pool());
    ceilings_.bf16_flops = measure_bf16_flops(context.pool());
    for (int i = 0; i < 3; ++i) ceilings_.read_bytes_per_second = std::max(ceilings_.read_bytes_per_second, stream_.bytes_per_second());
  }
  const MachineCeilings& ceilings() const { return ceilings_; }

  BenchRow measure(const AttentionCase& c) {
    AttentionData data(c);
    const OwnedBatch& owned = data.batch();
    const Schedule schedule = girih::schedule(context_, owned.spec, owned.limits());
    Plan plan(schedule);
    const BatchView view = owned.view();
    std::vector<double> plan_times;
    for (int i = 0; i < 7; ++i) {
      const BenchClock::time_point start = BenchClock::now();
      plan.update(view.batch);
      plan_times.push_back(seconds_since(start));
    }
    AttentionArgs args = data.args();
    std::vector<std::byte> workspace(static_cast<std::size_t>(schedule.workspace_bytes()) + 64);
    const auto misalignment = reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
    args.workspace = std::span(workspace).subspan((64 - misalignment) % 64);

    BenchRow row{.op = "attention", .name = c.name, .backend = "cpu", .bytes = useful_bytes(c), .flops = useful_flops(c), .extra = {}};
    const Timing timing = time_runs(schedule, plan, args, row, uses_bf16_peak(c.spec));
    row.seconds = median(timing.seconds);
    row.roofline_fraction = median(timing.fractions);
    row.plan_seconds = median(plan_times);
    row.extra["seconds_low"] = *std::min_element(timing.seconds.begin(), timing.seconds.end());
    row.extra["repeats"] = timing.seconds.size();
    row.extra["read_bytes_per_second"] = median(timing.bandwidths);
    row.extra["peak_flops"] = median(timing.peaks);
    row.extra["num_items"] = plan.info().num_items;
    row.extra["balance"] = balance(plan.info(), schedule.num_units());
    row.extra["kernel"] = schedule.key();
    row.host_seconds = time_least_run(schedule, owned, args);
    return row;
  }

 private:
  struct Ceiling {
    double bandwidth = 0, peak = 0;
  };

  bool uses_bf16_peak(const AttentionSpec& spec) const { return bits(spec.q_dtype) == 16 && ceilings_.bf16_flops > 0; }

  /// The compute peak first: the stream's eviction of the caches is to hold for the run that follows.
  Ceiling measure_ceiling(bool bf16) {
    Ceiling ceiling;
    ceiling.peak = bf16 ? measure_bf16_flops(context_.pool(), 2) : measure_f32_flops(context_.pool(), 2);
    ceiling.bandwidth = stream_.bytes_per_second();
    return ceiling;
  }

  Timing time_runs(const Schedule& schedule, const Plan& plan, const AttentionArgs& args, const BenchRow& row, bool bf16) {
    Timing timing;
    girih::run(context_, schedule, plan, args);  // touches outputs and workspace
    Ceiling before = measure_ceiling(bf16);
    double spent = 0;
    while (std::ssize(timing.seconds) < repeats_ && (spent < kCaseSeconds || std::ssize(timing.seconds) < kLeastRepeats)) {
      const BenchClock::time_point start = BenchClock::now();
      girih::run(context_, schedule, plan, args);
      const double seconds = seconds_since(start);
      const Ceiling after = measure_ceiling(bf16);
      const double bandwidth = (before.bandwidth + after.bandwidth) / 2;
      const double peak = (before.peak + after.peak) / 2;
      timing.seconds.push_back(seconds);
      timing.bandwidths.push_back(bandwidth);
      timing.peaks.push_back(peak);
      timing.fractions.push_back(std::max(row.flops / peak, row.bytes / bandwidth) / seconds);
      before = after;
      spent += seconds;
    }
    return timing;
  }

  /// run() of one row that sees one key: validation, waking the workers and waiting for them.
  double time_least_run(const Schedule& schedule, const OwnedBatch& owned, AttentionArgs args) {
    const std::vector<std::int64_t> one_indptr{0, 1}, no_indptr{0, 0}, one{1}, none{0};
    BatchView view;
    for (const OwnedSegment& segment : owned.segments) {
      const bool first = view.segments.empty();
      KvSegment s;
      if (!segment.qo_indptr.empty()) s.qo_indptr = one_indptr;
      s.page_size = segment.page_size;
      s.kv_indptr = first ? one_indptr : no_indptr;
      s.kv_len = first ? one : none;
      view.segments.push_back(s);
    }
    view.batch.qo_indptr = one_indptr;
    view.batch.segments = view.segments;
    view.batch.params = owned.variant.plan_params;
    Plan plan(schedule);
    plan.update(view.batch);
    args.q.shape[0] = 1;
    args.o.shape[0] = 1;
    std::vector<double> times;
    for (int i = 0; i < 21; ++i) {
      const BenchClock::time_point start = BenchClock::now();
      girih::run(context_, schedule, plan, args);
      times.push_back(seconds_since(start));
    }
    return median(times);
  }

  const Context& context_;
  int repeats_;
  ReadStream stream_;
  MachineCeilings ceilings_;
};

}  // namespace

std::vector<std::string> attention_case_names() {
  std::vector<std::string> names;
  for (const AttentionCase& c : attention_cases()) names.push_back(c.name);
  return names;
}

BenchResult bench_attention(const BenchOptions& options) {
  const std::vector<std::string> chosen = choose_cases(options, attention_case_names());
  const Context context = bench_context(options);
  AttentionBench bench(context, options.repeats > 0 ? options.repeats : 9);
  BenchResult result;
  result.machine = machine_facts(std::string(name(context.cpu_target())), context.num_workers());
  result.ceilings = bench.ceilings();
  fmt::print(options.table,
             "{}, {} workers, target {}\nceilings: read {:.1f} GB/s (measured again beside each run), f32 {:.0f} GFLOP/s, bf16 dot {:.0f} "
             "GFLOP/s\n\n",
             result.machine.cpu, result.machine.workers, result.machine.target, result.ceilings.read_bytes_per_second / 1e9,
             result.ceilings.f32_flops / 1e9, result.ceilings.bf16_flops / 1e9);
  fmt::print(options.table, "{:<34} {:>10} {:>8} {:>9} {:>9} {:>9} {:>8}\n", "case", "ms", "GB/s", "GFLOP/s", "roofline", "plan us",
             "host us");
  for (const AttentionCase& c : attention_cases()) {
    if (std::find(chosen.begin(), chosen.end(), c.name) == chosen.end()) continue;
    try {
      const BenchRow row = bench.measure(c);
      fmt::print(options.table, "{:<34} {:>10.3f} {:>8.1f} {:>9.1f} {:>7.1f} % {:>9.1f} {:>8.1f}\n", row.name, row.seconds * 1e3,
                 row.bytes / row.seconds / 1e9, row.flops / row.seconds / 1e9, row.roofline_fraction * 100, row.plan_seconds * 1e6,
                 row.host_seconds * 1e6);
      std::fflush(options.table);
      result.rows.push_back(row);
    } catch (const Error& error) {  // one case that cannot run does not lose the others
      fmt::print(options.table, "{:<34} failed: {}\n", c.name, error.what());
      result.exit_code = kRuntimeError;
    }
  }
  return result;
}

}  // namespace girih::tools
