// Context: options and environment become fixed choices (workers, SIMD target) and a running thread pool.
// What the program says wins over the environment; what neither says is taken from the machine.
#include "girih/context.h"

#include <algorithm>
#include <utility>

#include "base/env.h"
#include "base/error.h"
#include "cpu/features.h"
#include "cpu/thread_pool.h"
#include "cuda/runtime.h"

namespace girih {
namespace {

int choose_num_workers(const ContextOptions& options, const Env& env) {
  if (options.num_workers < 0 || options.num_workers > kMaxWorkers) {
    fail(Code::invalid_argument, "context", "num_workers={}; must be in [0, {}], 0 = one per usable CPU", options.num_workers, kMaxWorkers);
  }
  if (options.num_workers > 0) return options.num_workers;
  if (options.device.kind == DeviceKind::cuda) return 1;  // nothing runs on workers
  if (env.num_threads) return *env.num_threads;
  const std::size_t cpus = options.cpus.empty() ? cpu::usable_cpus().size() : options.cpus.size();
  return static_cast<int>(std::min<std::size_t>(cpus, kMaxWorkers));
}

CpuTarget choose_target(const ContextOptions& options, const Env& env) {
  const std::vector<CpuTarget> available = available_cpu_targets();
  const bool from_env = options.target == CpuTarget::best && env.cpu_target.has_value();
  const CpuTarget wanted = from_env ? *env.cpu_target : options.target;
  if (wanted == CpuTarget::best) return available.front();
  if (std::find(available.begin(), available.end(), wanted) != available.end()) return wanted;
  std::string names;
  for (const CpuTarget target : available) {
    names += names.empty() ? "" : ", ";
    names += name(target);
  }
  fail(Code::unsupported, "context", "{}={}; this CPU runs {}", from_env ? "GIRIH_CPU_TARGET" : "target", name(wanted), names);
}

void check_options(const ContextOptions& options) {
  const Device& device = options.device;
  if (device.kind == DeviceKind::cpu) {
    if (device.index != 0) fail(Code::invalid_argument, "context", "device.index={}; the CPU is device 0", device.index);
    return;
  }
  if (device.kind != DeviceKind::cuda) fail(Code::invalid_argument, "context", "device.kind={} is unknown", static_cast<int>(device.kind));
  if (options.num_workers != 0 || !options.cpus.empty() || options.target != CpuTarget::best)
    fail(Code::invalid_argument, "context", "num_workers, cpus and target are for CPU contexts; device={}", name(device));
}

}  // namespace

std::string_view name(CpuTarget t) {
  switch (t) {
    case CpuTarget::best: return "best";
    case CpuTarget::scalar: return "scalar";
    case CpuTarget::avx2: return "avx2";
    case CpuTarget::avx3: return "avx3";
    case CpuTarget::avx3_bf16: return "avx3_bf16";
    case CpuTarget::neon: return "neon";
  }
  return "invalid target";
}

struct Context::State {
  State(const ContextOptions& options, const Env& env)
      : device(options.device),
        target(choose_target(options, env)),
        log(options.log),
        pool(choose_num_workers(options, env), options.cpus) {}

  Device device;
  CpuTarget target;
  LogFn log;
  cpu::ThreadPool pool;
  std::unique_ptr<cuda::Runtime> cuda;
};

Context::Context(ContextOptions options) {
  check_options(options);
  const Env env = read_env();
  state_ = std::make_unique<State>(options, env);
  if (options.device.kind == DeviceKind::cuda) {
    state_->cuda =
        std::make_unique<cuda::Runtime>(options.device.index, jit::fill_from_environment(std::move(options.jit), env), options.log);
    state_->cuda->sampling = env.sampling;
  }
}

Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

Device Context::device() const { return state_->device; }
int Context::num_workers() const { return state_->pool.num_workers(); }
CpuTarget Context::cpu_target() const { return state_->target; }
void Context::log(LogLevel level, std::string_view text) const {
  if (state_->log) state_->log(level, text);
}
cpu::ThreadPool& Context::pool() const { return state_->pool; }
cuda::Runtime& Context::cuda() const {
  if (state_->cuda == nullptr) bug("a CPU context was asked for its CUDA device");
  return *state_->cuda;
}

}  // namespace girih
