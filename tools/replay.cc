// The replay command (replay.h).
#include "tools/replay.h"

#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>

#include <fmt/format.h>

#include "cuda/runtime.h"
#include "girih/error.h"
#include "tools/cli.h"
#include "tools/gpu_ceilings.h"
#include "tools/machine.h"
#include "tools/output.h"
#include "tools/replay_engine.h"
#include "tools/replay_kv.h"
#include "tools/replay_summary.h"
#include "tools/report.h"
#include "tools/trace.h"

namespace girih::tools {
namespace {

constexpr const char* kDescription =
    "Replay a serving trace: continuous batching over a paged KV pool, attention of random data at each step.\n"
    "Traces are the Azure LLM inference CSV or Mooncake JSON lines; without one, a built-in workload drawn from the quantiles of the\n"
    "Azure conversation trace 2023 (Azure Public Dataset, CC-BY 4.0; Patel et al., ISCA 2024).";
constexpr const char* kFooter =
    "Times are of attention only (append, plan and run), or with --full-step of everything in a step but the GEMMs. Ctrl-C ends after the "
    "current step and prints what was\n"
    "measured so far.\n"
    "Exit codes: 0 ok, 1 --verify or --compare found a difference, 2 usage, 3 bad input file, 4 runtime error, 130 interrupted.";

// What the built-in workload does without other options: a few seconds on two cores.
constexpr std::int64_t kBuiltInRequests = 48;
constexpr std::int64_t kBuiltInMaxInput = 1024;
constexpr std::int64_t kBuiltInMaxOutput = 128;

// A signal handler can reach nothing but an object with static storage.
std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

/// Ctrl-C sets g_interrupted; a second one, while the step still runs, ends the process as usual.
class InterruptGuard {
 public:
  InterruptGuard() {
    g_interrupted = false;
    struct sigaction action {};
    action.sa_handler = [](int) { g_interrupted = true; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &previous_);
  }
  ~InterruptGuard() { sigaction(SIGINT, &previous_, nullptr); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction previous_ {};
};

/// One line on stderr that redraws itself, if that is a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(bool quiet) : shown_(!quiet && isatty(STDERR_FILENO) != 0), start_(Clock::now()) {}
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(const ReplayProgress& progress) {
    if (!shown_) return;
    const Clock::time_point now = Clock::now();
    if (now - drawn_ < std::chrono::milliseconds(100) && progress.fraction < 1) return;
    drawn_ = now;
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const double left = progress.fraction > 0 ? elapsed * (1 / progress.fraction - 1) : 0;
    const int filled = static_cast<int>(progress.fraction * kWidth);
    fmt::print(stderr, "\r\x1b[K[{}{}] {:3.0f} %  step {}  {}/{} requests, {} running  {:.0f} tokens/s  {:.0f} s left",
               std::string(filled, '#'), std::string(kWidth - filled, '.'), 100 * progress.fraction, progress.step, progress.finished,
               progress.total, progress.running, elapsed > 0 ? static_cast<double>(progress.tokens) / elapsed : 0, left);
    std::fflush(stderr);
  }
  void clear() {
    if (!shown_) return;
    fmt::print(stderr, "\r\x1b[K");
    std::fflush(stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kWidth = 24;
  bool shown_;
  Clock::time_point start_, drawn_{};
};

struct Command {
  std::string trace;
  std::string model = "llama3-8b";
  std::string dtype = "bf16";
  std::string target = "best";
  std::string pool;
  std::string json_file, report_file, results_file, compare_file;
  std::int64_t max_input = -1, max_output = -1, limit = -1;  // -1: not given
  int workers = 0;
  std::vector<int> cpus{};
  std::string backend = "cpu";
  bool no_sharing = false;
  bool quiet = false;
  int num_layers = 0;  // 0: not given
  ReplayOptions options;

  int run();
};

CpuTarget target_from_name(const std::string& text) {
  std::string names;
  for (CpuTarget target : kCpuTargets) {
    if (name(target) == text) return target;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name(target));
  }
  throw Error(Code::invalid_argument, fmt::format("replay: --target {} is not known; one of {}", text, names));
}

std::int64_t pool_tokens(const std::string& text, const ReplayOptions& options) {
  if (text.empty()) return 0;
  const PoolSize size = parse_pool_size(text);
  if (!size.in_bytes) return size.value;
  const std::int64_t token_bytes = kv_bytes_per_token(model_spec(options.model, 0, options.kv_dtype)) * options.num_layers;
  const std::int64_t tokens = size.value / token_bytes / options.page_size * options.page_size;
  if (tokens > 0) return tokens;
  throw Error(Code::invalid_argument, fmt::format("replay: --kv-pool {} is less than one page of {} tokens ({} bytes each over {} layers)",
                                                  text, options.page_size, token_bytes, options.num_layers));
}

int Command::run() {
  options.model = model_preset(model);
  options.kv_dtype = dtype_from_name(dtype);
  options.sharing = !no_sharing;
  if (bits(options.kv_dtype) == 64 || options.kv_dtype == DType::i32 || options.kv_dtype == DType::u8) {
    throw Error(Code::invalid_argument,
                fmt::format("replay: --dtype {} is no KV type; one of f32, f16, bf16, e4m3, e5m2, i8, nvfp4, mxfp4", dtype));
  }
  if (options.page_size < 1)
    throw Error(Code::invalid_argument, fmt::format("replay: --page-size {} must be at least 1", options.page_size));
  const bool on_gpu = backend == "cuda";
  options.num_layers = num_layers > 0 ? num_layers : on_gpu ? options.model.num_layers : 1;
  options.pool_tokens = pool_tokens(pool, options);
  options.digests = !results_file.empty() || !compare_file.empty();
  const bool built_in = trace.empty();
  options.limit = limit >= 0 ? limit : built_in ? kBuiltInRequests : 0;
  options.max_input = max_input >= 0 ? max_input : built_in ? kBuiltInMaxInput : 0;
  options.max_output = max_output >= 0 ? max_output : built_in ? kBuiltInMaxOutput : 0;
  const Trace requests = built_in ? built_in_trace(options.limit > 0 ? options.limit : kBuiltInRequests, options.seed) : read_trace(trace);

  if (on_gpu && (workers != 0 || !cpus.empty() || target != "best"))
    throw Error(Code::invalid_argument, "replay: --backend cuda takes no --workers, --cpus or --target");
  const Context context = on_gpu ? Context({.device = {DeviceKind::cuda, 0}})
                                 : Context({.num_workers = workers, .cpus = cpus, .target = target_from_name(target)});
  ReplayResult result;
  {
    const InterruptGuard guard;
    ProgressBar bar(quiet);
    result = replay(context, requests, options,
                    {.on_step = [&bar](const ReplayProgress& progress) { bar.update(progress); }, .stop = &g_interrupted});
  }
  const MachineCeilings ceilings = on_gpu ? measure_gpu_ceilings(context) : measure_ceilings(context.num_workers());
  const MachineFacts machine = on_gpu ? machine_facts(context.cuda().device->info().name, context.cuda().device->info().num_sms)
                                      : machine_facts(std::string(name(context.cpu_target())), context.num_workers());
  const ReplaySummary summary = summarise(result, ceilings);
  if (!quiet) fmt::print("{}", summary_text(result, summary, ceilings));
  if (!json_file.empty()) write_file(json_file, summary_json(result, summary, ceilings, machine).dump(1) + "\n");
  if (!results_file.empty()) write_results(results_file, result.settings, result.digests);
  bool agreed = true;
  if (!compare_file.empty()) {
    const CompareResult compare =
        compare_results(compare_file, result.settings, result.digests, model_spec(options.model, 0, options.kv_dtype).o_dtype);
    agreed = compare.passed();
    fmt::print("  compare         {}: {} requests, {} differ, {} missing; largest relative difference {:.2e} of {:.2e} allowed\n",
               agreed ? "agrees" : "DIFFERS", compare.compared, compare.different, compare.missing, compare.max_relative,
               compare.tolerance);
  }
  if (!report_file.empty()) {
    write_file(report_file, report_html(result, summary, ceilings, machine));
    if (!quiet && report_file != "-") fmt::print("  report          {}\n", report_file);
  }
  if (!result.verify.passed()) {
    if (quiet) fmt::print(stderr, "girih: replay: {} of {} samples are beyond tolerance\n", result.verify.failed, result.verify.checked);
    return kCheckFailed;
  }
  if (!agreed) return kCheckFailed;
  return result.interrupted ? kInterrupted : kOk;
}

void add_workload_options(CLI::App& app, Command& command) {
  ReplayOptions& options = command.options;
  app.add_option("trace", command.trace, "Azure CSV or Mooncake JSON lines; not given: the built-in workload")->type_name("FILE");
  app.add_option("--limit", command.limit, fmt::format("Only the first N requests [built-in: {}]", kBuiltInRequests))
      ->check(CLI::PositiveNumber);
  app.add_option("--max-input", command.max_input, fmt::format("Clip prompts to N tokens; 0 = do not [built-in: {}]", kBuiltInMaxInput))
      ->check(CLI::NonNegativeNumber);
  app.add_option("--max-output", command.max_output, fmt::format("Clip outputs to N tokens; 0 = do not [built-in: {}]", kBuiltInMaxOutput))
      ->check(CLI::NonNegativeNumber);
  app.add_option("--max-steps", options.max_steps, "Stop after N steps")->check(CLI::PositiveNumber);
  app.add_flag("--real-time", options.real_time, "Requests arrive at their timestamps instead of as fast as they can be taken");
  app.add_option("--seed", options.seed, "Of the random data, the samples and the built-in workload")->capture_default_str();
}

void add_engine_options(CLI::App& app, Command& command) {
  ReplayOptions& options = command.options;
  std::string presets = "Attention shapes of:";
  for (const ModelPreset& preset : model_presets()) presets += fmt::format("\n  {} ({})", preset.name, preset.note);
  app.add_option("--model", command.model, presets)->capture_default_str();
  app.add_option("--dtype", command.dtype, "KV type: f32, f16, bf16, e4m3, e5m2, i8, nvfp4, mxfp4")->capture_default_str();
  app.add_option("--layers", command.num_layers,
                 "Attention layers, each with its own pool, one plan for all [on the CPU 1, on a GPU as many as the model has]")
      ->check(CLI::PositiveNumber);
  app.add_option("--token-budget", options.token_budget, "Query tokens a step")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--max-batch", options.max_batch, "Running requests")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--kv-pool", command.pool,
                 fmt::format("Pool size in tokens a layer (65536, 64k) or bytes over all layers (512MiB, 2GB); not given: what the\n"
                             "requests need, at most {} tokens",
                             kDefaultPoolTokens));
  app.add_option("--page-size", options.page_size, "Tokens a page; prefix sharing needs a divisor of 512")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--no-sharing", command.no_sharing, "Every request computes and holds its own prefix, one segment");
  app.add_flag("--batch-invariant", options.batch_invariant,
               "A row's bits depend on its own request only; shared prefixes are then not read as a cascade");
  app.add_flag("--full-step", options.full_step,
               "Also the norms, RoPE, activation and sampling of a step, on data of their own; still no GEMMs");
  app.add_option("--backend", command.backend, "cpu, or cuda: CUDA device 0")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  app.add_option("--workers", command.workers, "CPU workers; 0 = all CPUs")->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--cpus", command.cpus, "Bind worker W to the W-th of these CPUs, e.g. 0,2,4,6 (the calling thread is not bound)")
      ->delimiter(',');
  app.add_option("--target", command.target, "SIMD target: best, scalar, avx2, avx3, avx3_bf16, neon")->capture_default_str();
}

void add_output_options(CLI::App& app, Command& command) {
  ReplayOptions& options = command.options;
  app.add_option("--verify", options.verify, "Recompute N random rows in double precision; exit code 1 beyond tolerance")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--results", command.results_file, "Write a digest of each finished request's outputs");
  app.add_option("--compare", command.compare_file, "Compare with digests of --results; exit code 1 beyond tolerance");
  app.add_option("--json", command.json_file, "Write all figures and steps as JSON");
  app.add_option("--report", command.report_file, "Write a self-contained HTML page");
  app.add_option("--report-step", options.picture_step, "The step whose work the page shows [the longest]")->check(CLI::NonNegativeNumber);
  app.add_flag("--quiet", command.quiet, "No progress bar and no summary");
}

}  // namespace

PoolSize parse_pool_size(const std::string& text) {
  struct Suffix {
    const char* text;
    std::int64_t factor;
    bool in_bytes;
  };
  static constexpr Suffix kSuffixes[] = {
      {"", 1, false},         {"k", 1024, false},     {"K", 1024, false},     {"M", 1 << 20, false},
      {"B", 1, true},         {"kB", 1000, true},     {"MB", 1000000, true},  {"GB", 1000000000, true},
      {"KiB", 1 << 10, true}, {"MiB", 1 << 20, true}, {"GiB", 1 << 30, true},
  };
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  for (const Suffix& suffix : kSuffixes) {
    std::int64_t product = 0;
    if (error != std::errc() || value <= 0 || suffix.text != std::string(end)) continue;
    if (__builtin_mul_overflow(value, suffix.factor, &product) || product > (std::int64_t{1} << 50)) break;
    return {.value = product, .in_bytes = suffix.in_bytes};
  }
  throw Error(Code::invalid_argument,
              fmt::format("replay: --kv-pool \"{}\" is no size; tokens (65536, 64k, 1M) or bytes (512MiB, 2GB, 4096B)", text));
}

void add_replay_command(CLI::App& app, int& exit_code) {
  CLI::App* replay = app.add_subcommand("replay", kDescription);
  replay->footer(kFooter);
  const auto command = std::make_shared<Command>();
  add_workload_options(*replay, *command);
  add_engine_options(*replay, *command);
  add_output_options(*replay, *command);
  replay->callback([command, &exit_code] { exit_code = command->run(); });
}

}  // namespace girih::tools
