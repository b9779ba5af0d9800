// A small fixed pool: parallel(f) runs f(worker) once on each worker, the caller being worker 0, and returns when all are done.
// std::thread, not OpenMP: it links statically into a wheel and does not quarrel with fork, TSan or the host application's runtime.
#pragma once

#include <memory>
#include <type_traits>

namespace girih::cpu {

class ThreadPool {
 public:
  explicit ThreadPool(int num_workers);
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
