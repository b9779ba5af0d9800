// `girih bench plan`: plan() alone, on one thread. Each case is planned again and again into the same Plan, as a serving loop does; the
// first rounds, which may allocate, are not counted.
#include <fmt/format.h>

#include "attention/cuda_state.h"
#include "tools/bench.h"
#include "tools/plan_report.h"

namespace girih::tools {
namespace {

struct PlanCase {
  const char* name;
  const char* qo_lens;
  const char* kv_lens;
  int num_units;  // 0 = the context's workers
  double bar_us;  // 0 = none
  int arch = 0;   // for the kernels of an example GPU in place of the CPU
  const char* mask = "causal";
};

// 132 units are a large GPU's. The lengths of "mixed" are a prefill chunk or two beside decoding requests. With the kernels of an H200 the
// last of long work goes in short units to whoever is free.
constexpr PlanCase kPlanCases[] = {
    {"decode-256", "1", "uniform:min=1024,max=8192,n=256", 0, 20},
    {"decode-256-132u", "1", "uniform:min=1024,max=8192,n=256", 132, 20},
    {"decode-4096", "1", "uniform:min=1024,max=8192,n=4096", 0, 500},
    {"decode-4096-132u", "1", "uniform:min=1024,max=8192,n=4096", 132, 500},
    {"prefill-128k-132u", "131072", "131072", 132, 200},
    {"zipf-64", "1", "zipf:mean=4096,n=64", 0, 0},
    {"zipf-64-132u", "1", "zipf:mean=4096,n=64", 132, 0},
    {"mixed-132u", "1x62,512,2048", "4096x62,4096,2048", 132, 0},
    {"decode-256-h200", "1", "uniform:min=512,max=1535,n=256", 0, 20, 90},
    {"decode-64x8192-h200", "1", "8192x64", 0, 0, 90},
    {"zipf-64-h200", "1", "zipf:mean=4096,n=64", 0, 0, 90},
    {"prefill-8k-h200", "8192", "8192", 0, 0, 90},
    {"mixed-h200", "1x31,2048", "4096x31,2048", 0, 0, 90},
    {"zipf-256-h200", "1", "zipf:mean=4096,n=256", 0, 20, 90},
    {"append16-256-h200", "16", "uniform:min=512,max=4095,n=256", 0, 0, 90},
    {"window-256-h200", "256", "uniform:min=256,max=4095,n=256", 0, 0, 90, "window:left=1023,right=0"},
    {"document-256-h200", "256", "uniform:min=256,max=1023,n=256", 0, 0, 90, "document:size=200"},
    {"window-4x8192-h200", "8192", "8192x4", 0, 0, 90, "window:left=1023,right=0"},
    {"document-8192-h200", "8192", "8192", 0, 0, 90, "document:size=1024"},
};
constexpr double kBalanceBar = 1.05;
constexpr double kListBalanceBar = 1.08;  // on a GPU tiles stay whole where cutting them costs as much

Schedule schedule_for(const PlanCase& c, const Context& context, const OwnedBatch& owned) {
  if (c.arch == 0) return girih::schedule(context, owned.spec, owned.limits(), {.num_units = c.num_units});
  return Schedule(attention::make_cuda_state(cuda::example_device(c.arch), 0, owned.spec, owned.limits()));
}

/// Of the list that is balanced worst.
double unit_balance_of(const Plan& plan) {
  if (plan.schedule().state().cuda == nullptr) return balance(plan.info(), plan.schedule().num_units());
  double worst = 1;
  for (const ListBalance& list : list_balances(plan.schedule().state(), plan.state().view)) worst = std::max(worst, list.largest);
  return worst;
}

BenchRow measure(const PlanCase& c, const Context& context, int repeats, AllocationCount allocation_count) {
  AttentionSpec spec;
  spec.num_qo_heads = 32;
  spec.num_kv_heads = 8;
  const OwnedBatch owned =
      make_batch(spec, parse_lengths(c.qo_lens, c.name), parse_lengths(c.kv_lens, c.name), 16, parse_call(c.mask, c.name), {"none", {}});
  const Schedule schedule = schedule_for(c, context, owned);
  Plan plan(schedule);
  const BatchView view = owned.view();
  for (int i = 0; i < 3; ++i) plan.update(view.batch);
  std::vector<double> times(static_cast<std::size_t>(repeats));
  const std::int64_t before = allocation_count();
  for (double& seconds : times) {
    const BenchClock::time_point start = BenchClock::now();
    plan.update(view.batch);
    seconds = seconds_since(start);
  }
  const std::int64_t allocations = allocation_count() - before;
  const double seconds = median(times);
  const double unit_balance = unit_balance_of(plan);
  BenchRow row{.op = "plan",
               .name = c.name,
               .backend = c.arch == 0 ? "cpu" : "cuda",
               .seconds = seconds,
               .bytes = static_cast<double>(plan.info().blob_bytes),
               .plan_seconds = seconds,
               .extra = {}};
  row.extra["num_units"] = schedule.num_units();
  row.extra["num_items"] = plan.info().num_items;
  row.extra["balance"] = unit_balance;
  const double balance_bar = c.arch == 0 ? kBalanceBar : kListBalanceBar;
  row.extra["balance_bar"] = balance_bar;
  row.extra["allocations_per_repeat"] = static_cast<double>(allocations) / repeats;
  if (c.bar_us > 0) row.extra["bar_seconds"] = c.bar_us * 1e-6;
  row.extra["ok"] = unit_balance <= balance_bar && allocations == 0 && (c.bar_us == 0 || seconds <= c.bar_us * 1e-6);
  return row;
}

}  // namespace

std::vector<std::string> plan_case_names() {
  std::vector<std::string> names;
  for (const PlanCase& c : kPlanCases) names.emplace_back(c.name);
  return names;
}

BenchResult bench_plan(const BenchOptions& options, AllocationCount allocation_count) {
  const std::vector<std::string> chosen = choose_cases(options, plan_case_names());
  const Context context = bench_context(options);
  const int repeats = options.repeats > 0 ? options.repeats : 101;
  BenchResult result;
  result.machine = machine_facts(std::string(name(context.cpu_target())), context.num_workers());
  fmt::print(options.table, "{:<20} {:>6} {:>9} {:>9} {:>8} {:>11} {:>8} {:>10} {:>6}\n", "case", "units", "plan us", "bar us", "items",
             "blob bytes", "balance", "allocs/rep", "");
  for (const PlanCase& c : kPlanCases) {
    if (std::find(chosen.begin(), chosen.end(), c.name) == chosen.end()) continue;
    const BenchRow row = measure(c, context, repeats, allocation_count);
    fmt::print(options.table, "{:<20} {:>6} {:>9.1f} {:>9} {:>8} {:>11.0f} {:>8.3f} {:>10.2f} {:>6}\n", row.name,
               row.extra["num_units"].get<int>(), row.seconds * 1e6, c.bar_us > 0 ? fmt::format("{:.0f}", c.bar_us) : "-",
               row.extra["num_items"].get<std::int64_t>(), row.bytes, row.extra["balance"].get<double>(),
               row.extra["allocations_per_repeat"].get<double>(), row.extra["ok"].get<bool>() ? "ok" : "MISS");
    result.rows.push_back(row);
  }
  return result;
}

}  // namespace girih::tools
