// The pool behind every parallel region of the CPU backend. A region is a new generation number: workers that see it run the function
// and count down; the caller runs its share and waits for zero. Both sides spin for some microseconds (layers follow one another
// closely), then block in std::atomic::wait, which is a futex: an idle pool costs nothing.
#include "cpu/thread_pool.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__unix__)
#include <csignal>
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
  std::vector<std::exception_ptr> errors;  // one slot per worker
  std::vector<std::thread> threads;        // workers 1, 2, ...

  ~State() { stop_workers(); }

  void call(int worker) noexcept {
    try {
      function(context, worker);
    } catch (...) {
      errors[worker] = std::current_exception();
    }
  }

  void work(int worker) noexcept {
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

  void stop_workers() {
    stop = true;
    publish();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
};

ThreadPool::ThreadPool(int num_workers) : state_(std::make_unique<State>()) {
  if (num_workers < 1) fail(Code::invalid_argument, "thread_pool", "num_workers={}; must be >= 1", num_workers);
  // With more workers than CPUs a spinning worker would keep a working one off its CPU.
  state_->spins = num_workers <= num_usable_cpus() ? kSpins : 0;
  state_->errors.resize(num_workers);
  state_->threads.reserve(num_workers - 1);
  const SignalsBlocked signals_blocked;
  try {
    for (int worker = 1; worker < num_workers; ++worker) {
      state_->threads.emplace_back([state = state_.get(), worker] { state->work(worker); });
    }
  } catch (const std::system_error& error) {
    const std::size_t started = state_->threads.size() + 1;
    fail(Code::out_of_memory, "thread_pool", "num_workers={}: the system gave {} threads ({}); use fewer workers", num_workers, started,
         error.what());
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::num_workers() const { return static_cast<int>(state_->errors.size()); }

void ThreadPool::run(void (*function)(void*, int), void* context) {
  State& state = *state_;
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
