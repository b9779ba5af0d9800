// `girih bench sampling`: the operators of sampling.h on either backend. On a CUDA device by graph replays with a cold L2 cache, on the CPU
// as the median of calls; `bytes` are those that a case must read and write once.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <random>

#include "base/error.h"
#include "girih/sampling.h"
#include "tools/bench.h"
#include "tools/gpu_ceilings.h"
#include "tools/gpu_timer.h"
#include "tools/sampling_cases.h"

namespace girih::tools {
namespace {

constexpr std::int64_t kDrawn = 8;      // rows that are drawn; the others repeat them
constexpr std::int64_t kHistory = 200;  // tokens of a row with penalties

/// Entries of a distribution, as logits or as probabilities.
std::vector<float> make_rows(const SamplingCase& c, bool probs) {
  std::vector<float> x(static_cast<std::size_t>(c.rows * c.vocab));
  std::mt19937_64 random(static_cast<std::uint64_t>(c.vocab));
  std::normal_distribution<float> normal;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    float* row = x.data() + r * c.vocab;
    if (r >= kDrawn) {
      std::copy_n(row - kDrawn * c.vocab, c.vocab, row);
      continue;
    }
    double sum = 0;
    for (std::int64_t i = 0; i < c.vocab; ++i) {
      const float n = normal(random);
      float v = n;
      if (c.distribution == "uniform") v = 0.1F * static_cast<float>(random() % 4096) / 4096;
      if (c.distribution == "equal") v = 0.5F;
      if (c.distribution == "peak") v = i == c.vocab / 3 ? 30.0F : n;
      if (c.distribution == "two-peaks") v = (i % 2 == 0 ? 4.0F : -4.0F) + 0.001F * n;
      if (c.distribution == "heavy-tail") v = std::fabs(n) < 0.2F ? 5 * n : std::copysign(1 / (0.3F + std::fabs(n)), n) * 4;
      if (c.distribution == "mostly-inf") v = random() % 100 == 0 ? n : -INFINITY;
      row[i] = v;
      sum += std::exp(static_cast<double>(v));
    }
    for (std::int64_t i = 0; i < c.vocab && probs; ++i) row[i] = static_cast<float>(std::exp(static_cast<double>(row[i])) / sum);
  }
  return x;
}

/// A case's tensors, in host memory or copied to the device.
class SamplingData {
 public:
  SamplingData(const Context& context, const SamplingCase& c) : context_(context), case_(c) {
    const bool probs = c.op == SamplingOp::top_p_renorm || (c.op == SamplingOp::sample && !c.logits);
    const std::vector<float> x = make_rows(c, probs);
    input_ = add(x.data(), DType::f32, {c.rows, c.vocab});
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(c.rows * std::max<std::int64_t>(c.top_k, 1)));
    tokens_ = add(zeros.data(), DType::i32, {c.rows});
    if (c.op == SamplingOp::softmax || c.op == SamplingOp::top_p_renorm) out_ = add(x.data(), DType::f32, {c.rows, c.vocab});
    if (c.op == SamplingOp::top_k) {
      values_ = add(zeros.data(), DType::f32, {c.rows, c.top_k});
      indices_ = add(zeros.data(), DType::i32, {c.rows, c.top_k});
    }
    if (!c.logits) return;
    std::vector<std::int32_t> indptr, list;
    for (std::int64_t r = 0; r <= c.rows; ++r) indptr.push_back(static_cast<std::int32_t>(r * kHistory));
    for (std::int64_t i = 0; i < c.rows * kHistory; ++i) list.push_back(static_cast<std::int32_t>(i % kHistory * 397 % c.vocab));
    history_ = {add(indptr.data(), DType::i32, {c.rows + 1}), add(list.data(), DType::i32, {c.rows * kHistory})};
  }

  void run(void* stream) const {
    const SamplingCase& c = case_;
    if (c.op == SamplingOp::softmax) return softmax(context_, input_, 0.8F, out_, stream);
    if (c.op == SamplingOp::top_p_renorm) return top_p_renorm_probs(context_, input_, c.top_p, out_, stream);
    if (c.op == SamplingOp::top_k) {
      TopKArgs args;
      args.input = input_;
      args.k = c.top_k;
      args.values = values_;
      args.indices = indices_;
      args.stream = stream;
      return top_k(context_, args);
    }
    SampleArgs args;
    args.kind = c.logits ? SampleInput::logits : SampleInput::probs;
    args.input = input_;
    args.history = history_;
    args.repetition_penalty = 1.1F;
    args.frequency_penalty = 0.1F;
    args.temperature = c.logits ? 0.8F : 1.0F;
    args.top_k = c.top_k;
    args.top_p = c.top_p;
    args.min_p = c.min_p;
    args.tokens = tokens_;
    args.stream = stream;
    sample(context_, args);
  }

  double bytes_moved() const {
    const double once = 4.0 * static_cast<double>(case_.rows * case_.vocab);
    return case_.op == SamplingOp::softmax || case_.op == SamplingOp::top_p_renorm ? 2 * once : once;
  }

 private:
  TensorView add(const void* data, DType type, std::initializer_list<std::int64_t> shape) {
    TensorView view(nullptr, type, shape, context_.device());
    const std::int64_t size = bytes(type, view.numel());
    if (context_.device().kind == DeviceKind::cpu) {
      host_.emplace_back(static_cast<const char*>(data), static_cast<const char*>(data) + size);
      view.data = host_.back().data();
      return view;
    }
    cuda::Runtime& runtime = context_.cuda();
    const cuda::CurrentDevice current(*runtime.device);
    device_.emplace_back(runtime.device, std::max<std::int64_t>(size, 16));
    runtime.device->driver().copy_to_device(device_.back().pointer(), data, size, nullptr);
    runtime.device->driver().synchronize(nullptr);
    view.data = device_.back().data();
    return view;
  }

  const Context& context_;
  const SamplingCase& case_;
  std::vector<std::vector<char>> host_;
  std::vector<cuda::DeviceBuffer> device_;
  TensorView input_, tokens_, out_, values_, indices_;
  TokenLists history_;
};

BenchRow measure(const SamplingCase& c, const Context& context, GpuTimer* timer, int repeats) {
  const SamplingData data(context, c);
  BenchRow row{.op = "sampling", .name = c.name, .backend = timer != nullptr ? "cuda" : "cpu", .bytes = data.bytes_moved(), .extra = {}};
  std::vector<double> times;
  if (timer != nullptr) {
    const auto call = [&] { data.run(timer->stream()); };
    call();
    context.cuda().device->driver().synchronize(timer->stream());
    times = timer->replays(call, repeats > 0 ? repeats : 25);
    row.host_seconds = timer->host(call);
  } else {
    data.run(nullptr);
    for (int i = 0; i < (repeats > 0 ? repeats : 9); ++i) {
      const BenchClock::time_point start = BenchClock::now();
      data.run(nullptr);
      times.push_back(seconds_since(start));
    }
  }
  row.seconds = median(times);
  row.extra["seconds_low"] = *std::min_element(times.begin(), times.end());
  row.extra["repeats"] = times.size();
  return row;
}

}  // namespace

std::vector<std::string> sampling_case_names() {
  std::vector<std::string> names;
  for (const SamplingCase& c : sampling_cases()) names.push_back(c.name);
  return names;
}

BenchResult bench_sampling(const BenchOptions& options) {
  const std::vector<std::string> chosen = choose_cases(options, sampling_case_names());
  const bool on_gpu = options.backend == "cuda";
  if (on_gpu && (options.workers != 0 || !options.cpus.empty() || options.target != "best"))
    fail(Code::invalid_argument, "--backend", "cuda takes no --workers, --cpus or --target");
  const Context context = on_gpu ? Context({.device = {DeviceKind::cuda, 0}}) : bench_context(options);
  std::unique_ptr<GpuTimer> timer;
  BenchResult result;
  if (on_gpu) {
    const cuda::DeviceInfo& info = context.cuda().device->info();
    timer = std::make_unique<GpuTimer>(context);
    result.machine = machine_facts(info.name, info.num_sms);
    result.ceilings = measure_gpu_ceilings(context);
    fmt::print(options.table, "{}, read {:.0f} GB/s\n\n", info.name, result.ceilings.read_bytes_per_second / 1e9);
  } else {
    result.machine = machine_facts(std::string(name(context.cpu_target())), context.num_workers());
  }
  fmt::print(options.table, "{:<42} {:>11} {:>9} {:>9}\n", "case", "us", "GB/s", "host us");
  for (const SamplingCase& c : sampling_cases()) {
    if (std::find(chosen.begin(), chosen.end(), c.name) == chosen.end()) continue;
    try {
      BenchRow row = measure(c, context, timer.get(), options.repeats);
      if (result.ceilings.read_bytes_per_second > 0)
        row.roofline_fraction = row.bytes / result.ceilings.read_bytes_per_second / row.seconds;
      fmt::print(options.table, "{:<42} {:>11.2f} {:>9.0f} {:>9.1f}\n", row.name, row.seconds * 1e6, row.bytes / row.seconds / 1e9,
                 row.host_seconds * 1e6);
      std::fflush(options.table);
      result.rows.push_back(row);
    } catch (const Error& error) {  // one case that cannot run does not lose the others
      fmt::print(options.table, "{:<42} failed: {}\n", c.name, error.what());
      result.exit_code = kRuntimeError;
    }
  }
  return result;
}

}  // namespace girih::tools
