// Jit::warmup(): distinct kernels over a few threads, as many as the memory that is free allows, the heaviest first. The caller's thread
// works along.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/error.h"
#include "cpu/features.h"
#include "jit/jit.h"

namespace girih::jit {
namespace {

// NVRTC's peak over its resting size while it compiles an attention kernel; measured 50 to 150 MiB.
constexpr std::int64_t kBytesPerCompilation = std::int64_t{256} << 20;

/// The number in the first line of `file`; nothing for "max" or where there is no such file.
std::optional<std::int64_t> number_in(const std::string& file) {
  std::ifstream stream(file);
  std::int64_t value = 0;
  if (!(stream >> value)) return std::nullopt;
  return value;
}

/// What this process may still use, by the system and by its control group.
std::int64_t available_bytes() {
  std::int64_t available = std::int64_t{1} << 40;
  std::ifstream meminfo("/proc/meminfo");
  std::string label;
  std::int64_t kilobytes = 0;
  for (std::string unit; meminfo >> label >> kilobytes && std::getline(meminfo, unit);) {
    if (label == "MemAvailable:") available = kilobytes << 10;
  }
  const std::optional<std::int64_t> limit = number_in("/sys/fs/cgroup/memory.max");
  const std::optional<std::int64_t> used = number_in("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, *limit - *used);
  return available;
}

/// One pass over the kernels: what its threads share.
class Warmup {
 public:
  Warmup(Jit& jit, std::vector<Recipe> recipes, const WarmupFn& progress) : jit_(jit), recipes_(std::move(recipes)), progress_(progress) {}

  void run(int num_threads) {
    report({0, std::ssize(recipes_), {}, {}, {}, 0});
    std::vector<std::thread> threads;
    for (int t = 1; t < num_threads; ++t) {
      try {
        threads.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        break;  // fewer will do
      }
    }
    work();
    for (std::thread& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void work() {
    for (std::size_t i = next_.fetch_add(1); i < recipes_.size(); i = next_.fetch_add(1)) {
      const auto begin = std::chrono::steady_clock::now();
      try {
        const std::shared_ptr<const Cubin> cubin = jit_.compile_recipe(recipes_[i]);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        report({0, std::ssize(recipes_), cubin->name, cubin->target, cubin->origin, seconds});
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
    }
  }

  /// What `progress` throws ends the pass.
  void report(WarmupProgress event) {
    if (!progress_) return;
    const std::lock_guard lock(mutex_);
    event.done = event.name.empty() ? 0 : ++done_;
    try {
      progress_(event);
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
      next_ = recipes_.size();
    }
  }

  Jit& jit_;
  const std::vector<Recipe> recipes_;
  const WarmupFn& progress_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;  // of what follows, and of calls of progress_
  std::int64_t done_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

int warmup_threads(int max_threads, std::int64_t num_kernels, int num_cpus, std::int64_t free_bytes) {
  const std::int64_t by_memory = std::max<std::int64_t>(free_bytes / 2 / kBytesPerCompilation, 1);
  const std::int64_t wanted = max_threads > 0 ? max_threads : num_cpus;
  return static_cast<int>(std::max<std::int64_t>(std::min({wanted, by_memory, num_kernels}), 1));
}

void Jit::warmup(std::span<const KernelSource> kernels, const WarmupFn& progress) {
  std::vector<Recipe> recipes;
  std::set<std::string> seen;
  for (const KernelSource& kernel : kernels) {
    Recipe next = recipe(kernel);
    if (seen.insert(next.hash()).second) recipes.push_back(std::move(next));
  }
  // A long compilation that begins last would go on alone.
  std::stable_sort(recipes.begin(), recipes.end(), [](const Recipe& a, const Recipe& b) { return a.kernel.weight > b.kernel.weight; });
  const int num_threads =
      warmup_threads(options().max_threads, std::ssize(recipes), static_cast<int>(cpu::usable_cpus().size()), available_bytes());
  Warmup(*this, std::move(recipes), progress).run(num_threads);
}

}  // namespace girih::jit
