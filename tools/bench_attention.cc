// `girih bench attention`: each case in rounds of (ceilings, run, ceilings). Shared machines drift, in memory bandwidth most, so a run's
// roofline takes the ceilings measured right before and after it (the mean of the two); a case's fraction is the median over its runs.
// The read stream also evicts the caches: KV comes from memory, as in a model with other layers between.
// The compute ceiling is the bf16 dot peak where Q is 16-bit and the CPU has it, the f32 multiply-add peak otherwise.
// What a case is compared with (its twins, itself on one worker) runs in turns with it, and a ratio is the median of the rounds' ratios.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "base/error.h"
#include "tests/cases/serving_gpu.h"
#include "tools/attention_data.h"
#include "tools/bench.h"
#include "tools/plan_report.h"

namespace girih::tools {
namespace {

using cases::ServingCase;
using Json = nlohmann::ordered_json;

constexpr int kLeastRepeats = 3;
constexpr double kCaseSeconds = 2.0;  // of each lane's runs, after which a case ends though repeats are left

/// One way of running a case, with what it measured.
class Lane {
 public:
  Lane(const Context& context, const ServingCase& c, const AttentionData& data)
      : name(c.name),
        bytes(useful_bytes(c)),
        flops(useful_flops(c)),
        context_(context),
        data_(data),
        schedule_(girih::schedule(context, data.batch().spec, data.batch().limits())),
        plan_(schedule_),
        args_(data.args()) {
    plan();
    workspace_.resize(static_cast<std::size_t>(schedule_.workspace_bytes()) + 64);
    const auto misalignment = reinterpret_cast<std::uintptr_t>(workspace_.data()) % 64;
    args_.workspace = std::span(workspace_).subspan((64 - misalignment) % 64);
    run();  // touches outputs and workspace
  }

  /// Seconds of plan() for this batch.
  double plan() {
    const BatchView view = data_.batch().view();
    const BenchClock::time_point start = BenchClock::now();
    plan_.update(view.batch);
    return seconds_since(start);
  }
  double run() {
    const BenchClock::time_point start = BenchClock::now();
    girih::run(context_, schedule_, plan_, args_);
    return seconds_since(start);
  }
  const Schedule& schedule() const { return schedule_; }
  const PlanInfo& plan_info() const { return plan_.info(); }
  const AttentionArgs& args() const { return args_; }

  std::string name;
  double bytes, flops;
  std::vector<double> seconds, fractions, bandwidths, peaks;  // per round

 private:
  const Context& context_;
  const AttentionData& data_;
  Schedule schedule_;
  Plan plan_;
  AttentionArgs args_;
  std::vector<std::byte> workspace_;
};

/// Median over the rounds of `other`'s seconds over `own`'s.
double paired_ratio(const Lane& other, const Lane& own) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < own.seconds.size(); ++i) ratios.push_back(other.seconds[i] / own.seconds[i]);
  return median(ratios);
}

class AttentionBench {
 public:
  AttentionBench(const BenchOptions& options, const Context& context)
      : context_(context), repeats_(options.repeats > 0 ? options.repeats : 9), stream_(context.pool()) {
    if (context.num_workers() > 1) {
      BenchOptions one = options;
      one.workers = 1;
      one_worker_.emplace(bench_context(one));
    }
    ceilings_.f32_flops = measure_f32_flops(context.pool());
    ceilings_.bf16_flops = measure_bf16_flops(context.pool());
    for (int i = 0; i < 3; ++i) ceilings_.read_bytes_per_second = std::max(ceilings_.read_bytes_per_second, stream_.bytes_per_second());
  }
  const MachineCeilings& ceilings() const { return ceilings_; }

  BenchRow measure(const ServingCase& c, const std::vector<ServingCase>& table) {
    std::vector<std::unique_ptr<AttentionData>> data;
    std::vector<std::unique_ptr<Lane>> lanes;  // the case itself, its twins, itself on one worker
    const auto add = [&](const ServingCase& lane_case) {
      data.push_back(std::make_unique<AttentionData>(lane_case));
      lanes.push_back(std::make_unique<Lane>(context_, lane_case, *data.back()));
    };
    add(c);
    for (const ServingCase& twin : table) {
      if (std::find(c.twins.begin(), c.twins.end(), twin.name) != c.twins.end()) add(twin);
    }
    const std::size_t num_twins = lanes.size() - 1;
    const bool scaling = c.scaling && one_worker_;
    if (scaling) lanes.push_back(std::make_unique<Lane>(*one_worker_, c, *data.front()));
    time_rounds(lanes, uses_bf16_peak(c.spec));

    Lane& own = *lanes.front();
    BenchRow row{.op = "attention", .name = c.name, .backend = "cpu", .bytes = own.bytes, .flops = own.flops, .extra = {}};
    row.seconds = median(own.seconds);
    row.roofline_fraction = median(own.fractions);
    std::vector<double> plan_times(7);
    for (double& seconds : plan_times) seconds = own.plan();
    row.plan_seconds = median(plan_times);
    row.extra["seconds_low"] = *std::min_element(own.seconds.begin(), own.seconds.end());
    row.extra["repeats"] = own.seconds.size();
    row.extra["read_bytes_per_second"] = median(own.bandwidths);
    row.extra["peak_flops"] = median(own.peaks);
    row.extra["num_items"] = own.plan_info().num_items;
    row.extra["balance"] = balance(own.plan_info(), own.schedule().num_units());
    row.extra["kernel"] = own.schedule().key();
    for (std::size_t i = 1; i <= num_twins; ++i) {
      row.extra["twins"].push_back({{"case", lanes[i]->name},
                                    {"seconds", median(lanes[i]->seconds)},
                                    {"flops", lanes[i]->flops},
                                    {"roofline_fraction", median(lanes[i]->fractions)},
                                    {"ratio", paired_ratio(*lanes[i], own)}});
    }
    if (scaling) row.extra["one_worker"] = {{"seconds", median(lanes.back()->seconds)}, {"ratio", paired_ratio(*lanes.back(), own)}};
    row.host_seconds = time_least_run(own.schedule(), data.front()->batch(), own.args());
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

  void time_rounds(const std::vector<std::unique_ptr<Lane>>& lanes, bool bf16) {
    Ceiling before = measure_ceiling(bf16);
    double spent = 0;
    const double most = kCaseSeconds * static_cast<double>(lanes.size());
    for (int round = 0; round < repeats_ && (spent < most || round < kLeastRepeats); ++round) {
      for (const std::unique_ptr<Lane>& lane : lanes) {
        const double seconds = lane->run();
        const Ceiling after = measure_ceiling(bf16);
        const double bandwidth = (before.bandwidth + after.bandwidth) / 2;
        const double peak = (before.peak + after.peak) / 2;
        lane->seconds.push_back(seconds);
        lane->bandwidths.push_back(bandwidth);
        lane->peaks.push_back(peak);
        lane->fractions.push_back(std::max(lane->flops / peak, lane->bytes / bandwidth) / seconds);
        before = after;
        spent += seconds;
      }
    }
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
  std::optional<Context> one_worker_;
  int repeats_;
  ReadStream stream_;
  MachineCeilings ceilings_;
};

}  // namespace

std::vector<std::string> attention_case_names() {
  std::vector<std::string> names;
  for (const ServingCase& c : cases::serving_cases()) names.push_back(c.name);
  return names;
}

Json describe_attention_cases(const std::vector<std::string>& names) {
  Json described = Json::array();
  std::vector<ServingCase> table = cases::serving_cases();
  for (ServingCase& c : cases::gpu_serving_cases()) table.push_back(std::move(c));
  for (const ServingCase& c : table) {
    if (std::find(names.begin(), names.end(), c.name) == names.end()) continue;
    described.push_back({{"case", c.name},
                         {"num_qo_heads", c.spec.num_qo_heads},
                         {"num_kv_heads", c.spec.num_kv_heads},
                         {"head_dim_qk", c.spec.head_dim_qk},
                         {"head_dim_vo", c.spec.head_dim_vo},
                         {"sm_scale", c.spec.sm_scale},
                         {"q_dtype", name(c.spec.q_dtype)},
                         {"kv_dtype", name(c.spec.k_dtype)},
                         {"v_is_k", c.spec.v_is_k},
                         {"qo_lens", c.qo_lens},
                         {"kv_lens", c.kv_lens},
                         {"page_size", c.page_size},
                         {"mask", c.mask},
                         {"logits", c.logits},
                         {"sinks", c.sinks},
                         {"packed_mask", c.packed_mask},
                         {"shared_prefix", c.shared_prefix},
                         {"pool", c.pool},
                         {"cascade", c.cascade}});
  }
  return described;
}

BenchResult bench_attention(const BenchOptions& options) {
  if (options.backend == "cuda") return bench_attention_cuda(options);
  if (!options.family.empty()) fail(Code::invalid_argument, "--family", "'{}' is for --backend cuda", options.family);
  const std::vector<std::string> chosen = choose_cases(options, attention_case_names());
  const Context context = bench_context(options);
  const std::vector<ServingCase> table = cases::serving_cases();
  AttentionBench bench(options, context);
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
  for (const ServingCase& c : table) {
    if (std::find(chosen.begin(), chosen.end(), c.name) == chosen.end()) continue;
    try {
      const BenchRow row = bench.measure(c, table);
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
