// The pool behind every parallel region of the CPU backend. A region is a new generation number: workers that see it run the function
// and count down; the caller runs its share and waits for zero. Both sides spin for some microseconds (layers follow one another
// closely), then block in std::atomic::wait, which is a futex: an idle pool costs nothing.
#include "cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__unix__)
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

#include "base/error.h"
#include "cpu/features.h"

namespace girih::cpu {
namespace {

// 5 to 60 us of pauses, by CPU (measured: 145 ns each on a virtual Zen 4). Two workers on CPUs of their own meet in 0.2 us; where they
// must share one, the spins of both are lost, and 2000 of them cost 0.3 ms a region.
constexpr int kSpins = 400;
constexpr std::size_t kCacheLine = 64;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Blocks until `value` differs from `old` and returns what it became.
std::uint32_t wait_while_equal(const std::atomic<std::uint32_t>& value, std::uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    const std::uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    pause();
  }
  for (;;) {
    const std::uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    value.wait(old, std::memory_order_acquire);
  }
}

std::int64_t process_id() {
#if defined(__unix__)
  return getpid();
#else
  return 0;
#endif
}

// The calling thread runs on `cpu` alone. It was checked to be usable, so that a failure means a mask that has changed since: the thread
// then stays where the system puts it, which affects speed only.
void bind_to_cpu([[maybe_unused]] int cpu) {
#if defined(__linux__)
  cpu_set_t* set = CPU_ALLOC(cpu + 1);
  if (set == nullptr) return;
  const std::size_t size = CPU_ALLOC_SIZE(cpu + 1);
  CPU_ZERO_S(size, set);
  CPU_SET_S(cpu, size, set);
  sched_setaffinity(0, size, set);
  CPU_FREE(set);
#endif
}

// Workers take no signals: those belong to the host application's threads.
class SignalsBlocked {
 public:
#if defined(__unix__)
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
#else
  SignalsBlocked() = default;
  ~SignalsBlocked() = default;

 public:
#endif
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
};

}  // namespace

struct ThreadPool::State {
  alignas(kCacheLine) std::atomic<std::uint32_t> generation{0};
  alignas(kCacheLine) std::atomic<std::uint32_t> num_running{0};
  alignas(kCacheLine) std::atomic<bool> busy{false};
  // Written by the caller before it publishes a generation, read by workers after they see it.
  void (*function)(void*, int) = nullptr;
  void* context = nullptr;
  bool stop = false;
  int spins = 0;
  std::int64_t owner = 0;                  // the process that the threads belong to
  std::vector<int> cpus;                   // where workers are bound; empty = nowhere
  std::vector<std::exception_ptr> errors;  // one slot per worker
  std::vector<std::thread> threads;        // workers 1, 2, ...

  ~State() {
    if (!threads.empty() && owner != process_id())
      forget_workers();
    else
      stop_workers();
  }

  void call(int worker) noexcept {
    try {
      function(context, worker);
    } catch (...) {
      errors[worker] = std::current_exception();
    }
  }

  void work(int worker) noexcept {
    if (!cpus.empty()) bind_to_cpu(cpus[worker % cpus.size()]);
    std::uint32_t seen = 0;
    for (;;) {
      seen = wait_while_equal(generation, seen, spins);
      if (stop) return;
      call(worker);
      if (num_running.fetch_sub(1, std::memory_order_acq_rel) == 1) num_running.notify_one();
    }
  }

  void publish() {
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
  }

  void wait_for_workers() {
    for (std::uint32_t left = num_running.load(std::memory_order_acquire); left != 0;) {
      left = wait_while_equal(num_running, left, spins);
    }
  }

  void start_workers() {
    const int num_workers = static_cast<int>(errors.size());
    owner = process_id();
    threads.reserve(num_workers - 1);
    const SignalsBlocked signals_blocked;
    try {
      for (int worker = 1; worker < num_workers; ++worker) {
        threads.emplace_back([this, worker] { work(worker); });
      }
    } catch (const std::system_error& error) {
      const std::size_t started = threads.size() + 1;
      stop_workers();
      fail(Code::out_of_memory, "thread_pool", "num_workers={}: the system gave {} threads ({}); use fewer workers", num_workers, started,
           error.what());
    }
  }

  // In a forked child: the threads exist only as handles that can be neither joined nor destroyed, so their few bytes are given up. A
  // call that another thread of the parent had under way does not go on here either.
  void forget_workers() {
    new std::vector<std::thread>(std::move(threads));  // NOLINT(cppcoreguidelines-owning-memory): see above
    generation.store(0, std::memory_order_relaxed);
    num_running.store(0, std::memory_order_relaxed);
    busy.store(false, std::memory_order_relaxed);
    for (std::exception_ptr& error : errors) error = nullptr;
  }

  void stop_workers() {
    stop = true;
    publish();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
};

ThreadPool::ThreadPool(int num_workers, std::span<const int> cpus) : state_(std::make_unique<State>()) {
  if (num_workers < 1) fail(Code::invalid_argument, "thread_pool", "num_workers={}; must be >= 1", num_workers);
  const std::vector<int> usable = usable_cpus();
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    if (std::find(usable.begin(), usable.end(), cpus[i]) == usable.end()) {
      fail(Code::invalid_argument, "context", "cpus[{}]={}; this process may use CPUs {}", i, cpus[i], fmt::join(usable, ", "));
    }
  }
  // With more workers than CPUs a spinning worker would keep a working one off its CPU.
  state_->spins = num_workers <= static_cast<int>(usable.size()) ? kSpins : 0;
  state_->cpus.assign(cpus.begin(), cpus.end());
  state_->errors.resize(num_workers);
  state_->start_workers();
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::num_workers() const { return static_cast<int>(state_->errors.size()); }

void ThreadPool::run(void (*function)(void*, int), void* context) {
  State& state = *state_;
  if (state.owner != process_id()) {
    state.forget_workers();
    state.start_workers();
  }
  if (state.busy.exchange(true, std::memory_order_acquire)) {
    fail(Code::invalid_argument, "thread_pool", "a call on this context is still running; make one Context per calling thread");
  }
  state.function = function;
  state.context = context;
  state.num_running.store(static_cast<std::uint32_t>(state.threads.size()), std::memory_order_relaxed);
  if (!state.threads.empty()) state.publish();
  state.call(0);
  state.wait_for_workers();

  std::exception_ptr first;
  for (std::exception_ptr& error : state.errors) {
    if (error && !first) first = error;
    error = nullptr;
  }
  state.busy.store(false, std::memory_order_release);
  if (first) std::rethrow_exception(first);
}

}  // namespace girih::cpu
