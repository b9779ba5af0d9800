// A small fixed pool: parallel(f) runs f(worker) once on each worker, the caller being worker 0, and returns when all are done.
// std::thread, not OpenMP: it links statically into a wheel and does not quarrel with TSan or the host application's runtime. A pool
// survives fork(): the child, where the workers do not exist, starts its own at its first region.
#pragma once

#include <memory>
#include <span>
#include <type_traits>

namespace girih::cpu {

class ThreadPool {
 public:
  /// Worker w >= 1 is bound to CPU cpus[w % size] if any are given (each one that this process may use); worker 0, the caller, never is.
  explicit ThreadPool(int num_workers, std::span<const int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_workers() const;

  /// Calls f(worker) for worker in [0, num_workers()). Allocates nothing. An exception thrown by f is rethrown here (the first by
  /// worker index) after all workers have stopped. Not reentrant.
  template <typename F>
  void parallel(F&& f) {
    run([](void* context, int worker) { (*static_cast<std::remove_reference_t<F>*>(context))(worker); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  void run(void (*function)(void*, int), void* context);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace girih::cpu
