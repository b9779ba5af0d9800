// The worker pool: every worker once per region, exceptions, refusals, destruction. Run under TSan as well (label `threads`).
// ctest: threads
#include "cpu/thread_pool.h"

#include <gtest/gtest.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpu/features.h"
#include "girih/error.h"

namespace {
std::atomic<long> num_allocations{0};
}

// Counts allocations, to show that parallel() makes none. Not inlined: GCC would see new paired with free and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(size != 0 ? size : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace girih::cpu {
namespace {

TEST(ThreadPoolTest, EachWorkerRunsOncePerRegion) {
  for (const int num_workers : {1, 2, 3, 8}) {
    ThreadPool pool(num_workers);
    ASSERT_EQ(pool.num_workers(), num_workers);
    std::vector<int> calls(num_workers);  // plain ints: a race would be a finding of TSan
    for (int round = 1; round <= 200; ++round) {
      pool.parallel([&](int worker) { ++calls[worker]; });
      for (int worker = 0; worker < num_workers; ++worker) ASSERT_EQ(calls[worker], round) << "worker " << worker << " of " << num_workers;
    }
  }
}

TEST(ThreadPoolTest, CallerIsWorkerZero) {
  ThreadPool pool(3);
  std::vector<std::thread::id> ids(3);
  pool.parallel([&](int worker) { ids[worker] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_NE(ids[1], ids[0]);
  EXPECT_NE(ids[2], ids[0]);
  EXPECT_NE(ids[1], ids[2]);
}

#if defined(__linux__)
TEST(ThreadPoolTest, WorkersRunOnTheirCpus) {
  const std::vector<int> usable = usable_cpus();
  const std::vector<int> cpus = {usable.back(), usable.front()};
  ThreadPool pool(4, cpus);
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  std::vector<int> found(4, -1);
  std::vector<int> counts(4);
  pool.parallel([&](int worker) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    counts[worker] = CPU_COUNT(&set);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) found[worker] = cpu;
    }
  });
  for (int worker = 1; worker < 4; ++worker) {
    EXPECT_EQ(counts[worker], 1) << worker;
    EXPECT_EQ(found[worker], cpus[worker % 2]) << worker;
  }
  EXPECT_EQ(counts[0], CPU_COUNT(&before)) << "the calling thread stays as it is";
}
#endif

TEST(ThreadPoolTest, CpusThatAreNotUsableAreRefused) {
  for (const int cpu : {-1, 1 << 20}) {
    const std::vector<int> cpus = {usable_cpus().front(), cpu};
    try {
      const ThreadPool pool(2, cpus);
      FAIL() << "cpu " << cpu << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("cpus[1]=" + std::to_string(cpu)), std::string::npos) << error.what();
    }
  }
}

TEST(ThreadPoolTest, WorkersSeeEachOthersWritesInTheNextRegion) {
  ThreadPool pool(4);
  std::vector<long> values(4, 1);
  std::vector<long> sums(4);
  for (int round = 0; round < 20; ++round) {
    pool.parallel([&](int worker) {
      sums[worker] = 0;
      for (const long value : values) sums[worker] += value;
    });
    pool.parallel([&](int worker) { values[worker] = sums[(worker + 1) % 4] % 1000; });
  }
  EXPECT_EQ(values[0], values[3]);
}

TEST(ThreadPoolTest, IdleWorkersWakeUp) {
  ThreadPool pool(4);
  std::atomic<int> calls{0};
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // long enough to block
    pool.parallel([&](int) { calls.fetch_add(1); });
  }
  EXPECT_EQ(calls.load(), 12);
}

TEST(ThreadPoolTest, CallerWaitsForSlowWorkers) {
  ThreadPool pool(3);
  std::vector<int> done(3);
  pool.parallel([&](int worker) {
    if (worker > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10 * worker));
    done[worker] = 1;
  });
  EXPECT_EQ(done, (std::vector<int>{1, 1, 1}));
}

TEST(ThreadPoolTest, FirstExceptionByWorkerIndexArrivesAfterAllStopped) {
  ThreadPool pool(4);
  std::vector<int> done(4);
  for (int round = 0; round < 10; ++round) {
    done.assign(4, 0);
    try {
      pool.parallel([&](int worker) {
        done[worker] = 1;
        if (worker == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // throws after worker 3 did
        if (worker == 1 || worker == 3) throw std::runtime_error(std::to_string(worker));
      });
      FAIL() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "1");
    }
    EXPECT_EQ(done, (std::vector<int>{1, 1, 1, 1}));
  }
  pool.parallel([&](int worker) { done[worker] = 2; });  // and the pool still works
  EXPECT_EQ(done, (std::vector<int>{2, 2, 2, 2}));
}

TEST(ThreadPoolTest, CallersExceptionWaitsToo) {
  ThreadPool pool(2);
  bool other_done = false;
  const auto region = [&](int worker) {
    if (worker == 0) throw std::runtime_error("caller");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    other_done = true;
  };
  EXPECT_THROW(pool.parallel(region), std::runtime_error);
  EXPECT_TRUE(other_done);
}

TEST(ThreadPoolTest, NestedCallIsRefusedInsteadOfHanging) {
  for (const int num_workers : {1, 2}) {
    ThreadPool pool(num_workers);
    try {
      pool.parallel([&](int worker) {
        if (worker == 0) pool.parallel([](int) {});
      });
      FAIL() << "no exception";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
    }
    std::atomic<int> calls{0};
    pool.parallel([&](int) { calls.fetch_add(1); });
    EXPECT_EQ(calls.load(), num_workers);
  }
}

TEST(ThreadPoolTest, AllocatesNothing) {
  ThreadPool pool(3);
  std::vector<long> sums(3);
  const auto region = [&](int worker) { sums[worker] += worker; };
  pool.parallel(region);
  const long before = num_allocations.load();
  for (int round = 0; round < 50; ++round) pool.parallel(region);
  EXPECT_EQ(num_allocations.load(), before);
}

TEST(ThreadPoolTest, ComesAndGoesWithoutWork) {
  for (int round = 0; round < 20; ++round) {
    ThreadPool unused(3);
    ThreadPool used(3);
    used.parallel([](int) {});
  }
}

TEST(ThreadPoolTest, PoolsOfSeveralThreadsAreIndependent) {
  std::vector<std::thread> callers;
  std::vector<long> totals(3);
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&totals, caller] {
      ThreadPool pool(2);
      std::vector<long> sums(2);
      for (int round = 0; round < 50; ++round) pool.parallel([&](int worker) { sums[worker] += caller + 1; });
      totals[caller] = sums[0] + sums[1];
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(totals, (std::vector<long>{100, 200, 300}));
}

TEST(ThreadPoolTest, RefusesFewerThanOneWorker) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(-3), Error);
}

}  // namespace
}  // namespace girih::cpu
