// `girih bench norm | activation | rope | quant | page`: each case beside the machine's rates. On the CPU a case's fraction is of the
// read-only stream measured right before and after it; on a GPU of the fastest copy of 1 GiB, each case being a graph that is replayed with
// a cold L2 (what may not be captured: calls behind other work).
#include "tools/bench_rows.h"

#include <fmt/format.h>

#include "base/error.h"
#include "cuda/runtime.h"
#include "tools/bench.h"
#include "tools/gpu_timer.h"

namespace girih::tools {
namespace {

constexpr std::int64_t kCopyBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMostCpuBytes = std::int64_t{600} << 20;  // larger cases only repeat what the smaller ones show

std::vector<std::string> names_of(const std::string& op) {
  std::vector<std::string> names;
  for (const RowsBenchCase& c : rows_bench_cases(op)) names.push_back(c.name);
  return names;
}

BenchRow make_row(const RowsBenchCase& c, std::string_view backend, const std::vector<double>& times) {
  BenchRow row{.op = c.op, .name = c.name, .backend = std::string(backend), .seconds = median(times), .bytes = c.bytes, .extra = {}};
  row.extra["seconds_low"] = *std::min_element(times.begin(), times.end());
  row.extra["repeats"] = times.size();
  return row;
}

void print_head(const BenchOptions& options) {
  fmt::print(options.table, "{:<36} {:>10} {:>8} {:>9} {:>8}\n", "case", "us", "GB/s", "of rate", "host us");
}
void print_row(const BenchOptions& options, const BenchRow& row) {
  fmt::print(options.table, "{:<36} {:>10.2f} {:>8.1f} {:>7.1f} % {:>8.2f}\n", row.name, row.seconds * 1e6, row.bytes / row.seconds / 1e9,
             row.roofline_fraction * 100, row.host_seconds * 1e6);
  std::fflush(options.table);
}

BenchResult bench_on_cpu(const BenchOptions& options, const std::string& op) {
  const std::vector<std::string> chosen = choose_cases(options, names_of(op));
  const Context context = bench_context(options);
  ReadStream stream(context.pool());
  BenchResult result;
  result.machine = machine_facts(std::string(name(context.cpu_target())), context.num_workers());
  result.ceilings.read_bytes_per_second = stream.bytes_per_second();
  fmt::print(options.table, "{}, {} workers, target {}\n", result.machine.cpu, context.num_workers(), name(context.cpu_target()));
  print_head(options);
  const int repeats = options.repeats > 0 ? options.repeats : 9;
  for (const RowsBenchCase& c : rows_bench_cases(op)) {
    if (std::find(chosen.begin(), chosen.end(), c.name) == chosen.end()) continue;
    if (c.bytes > static_cast<double>(kMostCpuBytes) && options.filter.empty()) continue;
    BenchMemory memory(context);
    const BenchCall call = c.prepare(memory);
    call(nullptr);
    std::vector<double> times, fractions;
    double before = stream.bytes_per_second();
    for (int i = 0; i < repeats; ++i) {
      const BenchClock::time_point start = BenchClock::now();
      call(nullptr);
      times.push_back(seconds_since(start));
      const double after = stream.bytes_per_second();
      fractions.push_back(c.bytes / times.back() / ((before + after) / 2));
      before = after;
    }
    BenchRow row = make_row(c, "cpu", times);
    row.roofline_fraction = median(fractions);
    print_row(options, row);
    result.rows.push_back(row);
  }
  return result;
}

class GpuRows {
 public:
  GpuRows(const BenchOptions& options, const Context& context)
      : context_(context),
        driver_(context.cuda().device->driver()),
        repeats_(options.repeats > 0 ? options.repeats : 25),
        timer_(context) {}

  /// Bytes read and written by the faster of two copies: the driver's, and that of a kernel which only moves rows.
  double copy_rate() {
    const cuda::DeviceBuffer from(context_.cuda().device, kCopyBytes), to(context_.cuda().device, kCopyBytes);
    driver_.fill(from.pointer(), 0x5a, kCopyBytes, timer_.stream());
    const auto copy = [&] { driver_.copy_on_device(to.pointer(), from.pointer(), kCopyBytes, timer_.stream()); };
    const auto rows = [&](const cuda::DeviceBuffer& b) {
      return TensorView(b.data(), DType::bf16, {kCopyBytes / 8192, 4096}, context_.device());
    };
    const auto move = [&] { quantize(context_, rows(from), rows(to), {}, timer_.stream()); };
    move();
    driver_.synchronize(timer_.stream());
    constexpr double kMoved = 2.0 * static_cast<double>(kCopyBytes);
    return kMoved / std::min(median(timer_.replays(copy, repeats_)), median(timer_.replays(move, repeats_)));
  }

  BenchRow measure(const RowsBenchCase& c, double rate) {
    BenchMemory memory(context_);
    const BenchCall call = c.prepare(memory);
    const auto body = [&] { call(timer_.stream()); };
    body();
    driver_.synchronize(timer_.stream());
    BenchRow row = make_row(c, "cuda", c.captures ? timer_.replays(body, repeats_) : timer_.calls(body, repeats_));
    row.roofline_fraction = c.bytes / row.seconds / rate;
    row.host_seconds = timer_.host(body);
    return row;
  }

 private:
  const Context& context_;
  const cuda::Driver& driver_;
  int repeats_;
  GpuTimer timer_;
};

BenchResult bench_on_gpu(const BenchOptions& options, const std::string& op) {
  if (options.workers != 0 || !options.cpus.empty() || options.target != "best")
    fail(Code::invalid_argument, "--backend", "cuda takes no --workers, --cpus or --target");
  const std::vector<std::string> chosen = choose_cases(options, names_of(op));
  ContextOptions context_options;
  context_options.device = {DeviceKind::cuda, 0};
  const Context context(context_options);
  GpuRows bench(options, context);
  BenchResult result;
  const cuda::DeviceInfo& info = context.cuda().device->info();
  result.machine = machine_facts(info.name, info.num_sms);
  const double rate = bench.copy_rate();
  result.ceilings.read_bytes_per_second = rate;
  fmt::print(options.table, "{}, sm_{}, {} SMs; a copy moves {:.0f} GB/s\n", info.name, info.arch, info.num_sms, rate / 1e9);
  print_head(options);
  for (const RowsBenchCase& c : rows_bench_cases(op)) {
    if (std::find(chosen.begin(), chosen.end(), c.name) == chosen.end()) continue;
    try {
      result.rows.push_back(bench.measure(c, rate));
      print_row(options, result.rows.back());
    } catch (const Error& error) {  // one case that cannot run does not lose the others
      fmt::print(options.table, "{:<36} failed: {}\n", c.name, error.what());
      result.exit_code = kRuntimeError;
    }
  }
  return result;
}

BenchResult bench_rows(const BenchOptions& options, const std::string& op) {
  return options.backend == "cuda" ? bench_on_gpu(options, op) : bench_on_cpu(options, op);
}

}  // namespace

std::vector<std::string> norm_case_names() { return names_of("norm"); }
std::vector<std::string> activation_case_names() { return names_of("activation"); }
std::vector<std::string> quant_case_names() { return names_of("quant"); }
std::vector<std::string> page_case_names() { return names_of("page"); }
BenchResult bench_page(const BenchOptions& options) { return bench_rows(options, "page"); }
BenchResult bench_quant(const BenchOptions& options) { return bench_rows(options, "quant"); }
std::vector<std::string> rope_case_names() { return names_of("rope"); }
BenchResult bench_rope(const BenchOptions& options) { return bench_rows(options, "rope"); }
BenchResult bench_norm(const BenchOptions& options) { return bench_rows(options, "norm"); }
BenchResult bench_activation(const BenchOptions& options) { return bench_rows(options, "activation"); }

}  // namespace girih::tools
