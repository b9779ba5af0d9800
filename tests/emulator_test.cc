// The emulator itself: what each twin does (products: emulator_products_test.cc), that kernels which a GPU would hang on are reported by
// thread and line, and that races show under a seed.
#include "emulator/emulator.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/convert.cuh"
#include "core/types.cuh"
#include "emulator/error_of.h"
#include "ptx/launch.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/thread.cuh"
#include "ptx/tma.cuh"

namespace girih {
namespace {

using emulator::contains;
using emulator::error_of;
using emulator::launch;
using emulator::LaunchOptions;

// ---------------------------------------------------------------------------------------------------------------- threads

struct IndexParams {
  int* out;  // [blocks, threads]
};
__global__ void write_index(const __grid_constant__ IndexParams p) {
  const int i = ptx::block_idx() * ptx::num_threads() + ptx::thread_idx();
  p.out[i] = 10000 * ptx::block_idx() + 100 * ptx::warp_idx() + ptx::lane_idx() + 1000000 * ptx::num_blocks();
}

TEST(Emulator, EveryThreadOfEveryBlockRunsOnce) {
  for (const std::uint64_t seed : {0, 1, 2}) {
    for (const int workers : {1, 3}) {
      std::vector<int> out(7 * 96, 0);
      launch(write_index, {out.data()}, {.num_blocks = 7, .num_threads = 96, .seed = seed, .num_workers = workers});
      for (int i = 0; i < 7 * 96; ++i) ASSERT_EQ(out[static_cast<std::size_t>(i)], 7000000 + i / 96 * 10000 + i % 96 / 32 * 100 + i % 32);
    }
  }
}

/// One warp fills a ring of two words, the other reads it, with no barrier of the block between them.
TEST(Emulator, MbarriersOrderARing) {
  alignas(4) std::array<int, 8> source{3, 1, 4, 1, 5, 9, 2, 6};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<int> seen;
    launch(
        [&] {
          auto* s_ring = reinterpret_cast<int*>(ptx::shared_memory());
          u64* s_barriers = reinterpret_cast<u64*>(ptx::shared_memory() + 16);  // full, empty; full, empty
          if (ptx::thread_idx() == 0) {
            for (int i = 0; i < 4; ++i) ptx::mbarrier_init(s_barriers + i, i % 2 == 0 ? 64 : 1);
          }
          ptx::sync_block();
          for (int step = 0; step < 8; ++step) {
            u64* s_full = s_barriers + step % 2 * 2;
            const u32 parity = static_cast<u32>(step / 2 % 2);
            if (ptx::warp_idx() == 0) {
              ptx::mbarrier_wait(s_full + 1, parity ^ 1U);
              if (ptx::lane_idx() == 0) ptx::cp_async_4(s_ring + step % 2, source.data() + step, true);
              ptx::mbarrier_arrive_after_copies(s_full);
              ptx::mbarrier_arrive(s_full);
            } else {
              ptx::mbarrier_wait(s_full, parity);
              if (ptx::lane_idx() == 0) seen.push_back(s_ring[step % 2]);
              ptx::sync_warp();
              if (ptx::lane_idx() == 0) ptx::mbarrier_arrive(s_full + 1);
            }
          }
        },
        {.num_threads = 64, .shared_bytes = 48, .seed = seed});
    EXPECT_EQ(seen, std::vector<int>(source.begin(), source.end())) << "seed " << seed;
  }
}

TEST(Emulator, CopiesOfAnMbarrierLandWhereItIsWaitedFor) {
  alignas(4) int source = 7;
  int before = 0;
  int after = 0;
  launch(
      [&] {
        auto* s_word = reinterpret_cast<int*>(ptx::shared_memory());
        u64* s_barrier = reinterpret_cast<u64*>(ptx::shared_memory() + 8);
        if (ptx::thread_idx() == 0) ptx::mbarrier_init(s_barrier, 32);
        ptx::sync_block();
        if (ptx::thread_idx() == 0) ptx::cp_async_4(s_word, &source, true);
        ptx::mbarrier_arrive_after_copies(s_barrier);
        ptx::sync_block();
        if (ptx::thread_idx() == 0) before = *s_word;
        ptx::mbarrier_wait(s_barrier, 0);
        if (ptx::thread_idx() == 0) after = *s_word;
      },
      {.num_threads = 32, .shared_bytes = 16});
  EXPECT_EQ(before, -1);
  EXPECT_EQ(after, 7);
}

TEST(Emulator, MisusedMbarriersAreErrors) {
  const auto with = [](u32 arrivals, const auto& body) {
    return error_of(
        [&] {
          u64* s_barrier = reinterpret_cast<u64*>(ptx::shared_memory());
          if (ptx::thread_idx() == 0 && arrivals > 0) ptx::mbarrier_init(s_barrier, arrivals);
          ptx::sync_block();
          body(s_barrier);
        },
        {.num_threads = 32, .shared_bytes = 16});
  };
  const std::string never = with(33, [](u64* s) {
    ptx::mbarrier_arrive(s);
    ptx::mbarrier_wait(s, 0);
  });
  EXPECT_TRUE(contains(never, "deadlock") && contains(never, "mbarrier_wait")) << never;
  EXPECT_TRUE(contains(with(0, [](u64* s) { ptx::mbarrier_arrive(s); }), "no barrier has been made here"));
  EXPECT_TRUE(contains(with(1, [](u64* s) { ptx::mbarrier_init(s, 1); }), "made here already"));
}

TEST(Emulator, BarriersOrderSharedMemory) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    int wrong = 0;
    launch(
        [&wrong] {
          auto* s = reinterpret_cast<int*>(ptx::shared_memory());
          const int t = ptx::thread_idx();
          for (int round = 0; round < 5; ++round) {
            s[t] = round * 1000 + t;
            ptx::sync_block();
            if (s[(t * 7 + 13) % 128] != round * 1000 + (t * 7 + 13) % 128) ++wrong;
            ptx::sync_block();
          }
        },
        {.num_blocks = 3, .num_threads = 128, .shared_bytes = 512, .seed = seed});
    ASSERT_EQ(wrong, 0);
  }
}

TEST(Emulator, NamedBarriersJoinTheirThreadsOnly) {
  int wrong = 0;
  std::vector<int> order;
  launch(
      [&] {
        auto* s = reinterpret_cast<int*>(ptx::shared_memory());
        const int t = ptx::thread_idx();
        const int half = t / 64;
        // The second half passes twice as many barriers as the first.
        for (int round = 0; round < 4 * (half + 1); ++round) {
          s[t] = round;
          ptx::sync_named(1 + half, 64);
          if (s[half * 64 + (t + 33) % 64] != round) ++wrong;
          ptx::sync_named(1 + half, 64);
        }
        if (t % 64 == 0) order.push_back(half);
      },
      {.num_threads = 128, .shared_bytes = 512});
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(order, (std::vector<int>{0, 1}));
}

TEST(Emulator, ShufflesAndVotes) {
  for (const std::uint64_t seed : {0, 5}) {
    int wrong = 0;
    launch(
        [&wrong] {
          const int lane = ptx::lane_idx();
          if (ptx::shuffle(lane * 2, (lane + 5) % 32) != (lane + 5) % 32 * 2) ++wrong;
          if (ptx::shuffle(static_cast<float>(lane), 7) != 7.0F) ++wrong;
          if (ptx::shuffle(static_cast<u32>(lane), 32 + 3) != 3U) ++wrong;  // lanes count modulo 32
          for (int mask = 1; mask < 32; mask *= 2) {
            if (ptx::shuffle_xor(static_cast<float>(lane), mask) != static_cast<float>(lane ^ mask)) ++wrong;
          }
          if (ptx::any(lane == 9) != true || ptx::any(false) != false) ++wrong;
          if (ptx::all(lane < 32) != true || ptx::all(lane != 31) != false) ++wrong;
          if (ptx::ballot(lane % 3 == 0) != 0x49249249U) ++wrong;
          ptx::sync_warp();
        },
        {.num_threads = 64, .seed = seed});
    ASSERT_EQ(wrong, 0);
  }
}

// ---------------------------------------------------------------------------------------------------------------- memory

TEST(Emulator, AtomicsCountOverBlocksAndWorkers) {
  int counter = 0;
  std::vector<int> seen(64 * 32, 0);
  launch(
      [&] {
        const int old = ptx::atomic_add(&counter, 1);
        ++seen[static_cast<std::size_t>(old)];
      },
      {.num_blocks = 64, .num_threads = 32, .num_workers = 4});
  EXPECT_EQ(counter, 64 * 32);
  for (const int n : seen) ASSERT_EQ(n, 1);
}

TEST(Emulator, SharedMemoryStartsAsNan) {
  int wrong = 0;
  launch(
      [&wrong] {
        auto* s = reinterpret_cast<u32*>(ptx::shared_memory());
        if (s[ptx::thread_idx()] != 0xffffffffU) ++wrong;
        if (reinterpret_cast<std::uintptr_t>(s) % 128 != 0 || ptx::shared_address(s + 3) != 12) ++wrong;
        s[ptx::thread_idx()] = 0;  // the next block must not see it
      },
      {.num_blocks = 5, .num_threads = 32, .shared_bytes = 128});
  EXPECT_EQ(wrong, 0);
}

TEST(Emulator, WritesOutsideSharedMemoryAreFound) {
  for (const int place : {-4, 128}) {
    const auto kernel = [place] {
      if (ptx::thread_idx() == 3) *reinterpret_cast<volatile u32*>(ptx::shared_memory() + place) = 1;
    };
    const LaunchOptions options{.num_threads = 32, .shared_bytes = 128};
#ifdef __SANITIZE_ADDRESS__
    EXPECT_DEATH(launch(kernel, options), "AddressSanitizer");
#else
    EXPECT_TRUE(contains(error_of(kernel, options), "block 0: wrote outside its 128 bytes of shared memory"));
#endif
  }
}

TEST(Emulator, AsynchronousCopiesLandInTheWait) {
  alignas(16) float source[64];
  std::iota(source, source + 64, 1.0F);
  int wrong = 0;
  launch(
      [&] {
        auto* s = reinterpret_cast<float*>(ptx::shared_memory());
        const int t = ptx::thread_idx();
        const auto is_poison = [&](int slot) { return std::isnan(s[(slot * 32 + t) * 4]) && std::isnan(s[(slot * 32 + t) * 4 + 3]); };
        for (int slot = 0; slot < 3; ++slot) {
          for (int i = 0; i < 4; ++i) s[(slot * 32 + t) * 4 + i] = 7.0F;
        }
        for (int slot = 0; slot < 3; ++slot) {
          ptx::cp_async_16(s + (slot * 32 + t) * 4, slot == 1 ? nullptr : source + 4 * (t % 16), slot != 1);
          ptx::cp_async_commit();
          if (!is_poison(slot)) ++wrong;
        }
        ptx::cp_async_wait<3>();
        if (!is_poison(0)) ++wrong;
        ptx::cp_async_wait<2>();
        if (s[t * 4 + 1] != source[4 * (t % 16) + 1] || !is_poison(1) || !is_poison(2)) ++wrong;
        ptx::cp_async_wait<1>();
        for (int i = 0; i < 4; ++i) wrong += s[(32 + t) * 4 + i] != 0.0F ? 1 : 0;  // not valid: zeros, and nothing is read
        if (!is_poison(2)) ++wrong;
        ptx::cp_async_wait<0>();
        for (int i = 0; i < 4; ++i) wrong += s[(64 + t) * 4 + i] != source[4 * (t % 16) + i] ? 1 : 0;
        // A copy that is in no group is not waited for.
        ptx::cp_async_16(s + t * 4, source, true);
        ptx::cp_async_wait<0>();
        if (!is_poison(0)) ++wrong;
        const Vec16 v = ptx::load_stream(source + 8);
        if (float_of(v.x[2]) != source[10]) ++wrong;
      },
      {.num_threads = 32, .shared_bytes = 3 * 512});
  EXPECT_EQ(wrong, 0);
}

// ---------------------------------------------------------------------------------------------------------------- what is reported

TEST(Emulator, LanesInDifferentCollectivesAreAnError) {
  const std::string error = error_of(
      [] {
        if (ptx::lane_idx() < 16) {
          ptx::shuffle(1, 0);
        } else {
          ptx::any(true);
        }
      },
      {.num_blocks = 2, .num_threads = 64});
  EXPECT_TRUE(contains(error, "block 0, thread 16, any (emulator_test.cc:")) << error;
  EXPECT_TRUE(contains(error, "diverged: other lanes are in shuffle (emulator_test.cc:")) << error;
  EXPECT_TRUE(contains(error, "threads 0-15 wait in shuffle")) << error;
}

TEST(Emulator, ACollectiveWithoutSomeLanesIsADeadlock) {
  const std::string error = error_of(
      [] {
        if (ptx::thread_idx() == 5 || ptx::thread_idx() == 40) return;
        ptx::ballot(true);
      },
      {.num_threads = 96});
  EXPECT_TRUE(contains(error, "block 0: deadlock")) << error;
  EXPECT_TRUE(contains(error, "threads 0-4, 6-31, 32-39, 41-63 wait in ballot (emulator_test.cc:") ||
              contains(error, "threads 0-4, 6-39, 41-63 wait in ballot (emulator_test.cc:"))
      << error;
}

TEST(Emulator, EndedThreadsDoNotCountAtABarrier) {
  for (const std::uint64_t seed : {0, 3}) {
    const std::string error = error_of(
        [] {
          if (ptx::thread_idx() >= 64) return;
          ptx::sync_block();
        },
        {.num_threads = 96, .seed = seed});
    EXPECT_TRUE(contains(error, "deadlock")) << error;
    EXPECT_TRUE(contains(error, "threads 64-95 have ended")) << error;
    EXPECT_TRUE(contains(error, "threads 0-63 wait in sync_block (emulator_test.cc:")) << error;
  }
}

TEST(Emulator, LanesAtABarrierAndInACollectiveAreADeadlock) {
  const std::string error = error_of(
      [] {
        if (ptx::lane_idx() == 0) {
          ptx::sync_block();
        } else {
          ptx::sync_warp();
        }
      },
      {.num_threads = 64});
  EXPECT_TRUE(contains(error, "threads 0, 32 wait in sync_block")) << error;
  EXPECT_TRUE(contains(error, "threads 1-31, 33-63 wait in sync_warp")) << error;
}

TEST(Emulator, AWarpThatReachesABarrierByTwoWaysHasDiverged) {
  const std::string error = error_of(
      [] {
        if (ptx::lane_idx() % 2 == 0) {
          ptx::sync_block();
        } else {
          ptx::sync_block();
        }
      },
      {.num_threads = 64});
  EXPECT_TRUE(contains(error, "diverged: other lanes are in sync_block")) << error;
  // Whole warps may.
  EXPECT_EQ(error_of(
                [] {
                  if (ptx::warp_idx() == 0) {
                    ptx::sync_block();
                  } else {
                    ptx::sync_block();
                  }
                },
                {.num_threads = 64}),
            "none");
}

TEST(Emulator, PartsOfWarpsDoNotMakeABarrier) {
  const std::string error = error_of(
      [] {
        if (ptx::lane_idx() < 16) ptx::sync_named(3, 32);
      },
      {.num_threads = 64});
  EXPECT_TRUE(contains(error, "only some lanes of warp 0 are at this barrier")) << error;
}

TEST(Emulator, MisuseIsNamed) {
  alignas(16) static float source[8];
  const LaunchOptions options{.num_threads = 64, .shared_bytes = 1024};
  const auto expect = [&options](const std::function<void()>& kernel, const std::string& text) {
    const std::string error = error_of(kernel, options);
    EXPECT_TRUE(contains(error, text)) << error;
  };
  expect([] { ptx::sync_named(0, 64); }, "barrier 0 is sync_block's");
  expect([] { ptx::sync_named(16, 64); }, "barrier 16; there are 0..15");
  expect([] { ptx::sync_named(1, 40); }, "a barrier for 40 threads of 64; must be a multiple of 32");
  expect([] { ptx::sync_named(1, 128); }, "a barrier for 128 threads of 64");
  expect([] { ptx::sync_named(1, ptx::thread_idx() < 32 ? 64 : 32); }, "barrier 1 for 32 threads, but others wait at it for 64");
  expect([] { ptx::shuffle_xor(1, 32); }, "mask 32 leaves the warp");
  expect([] { ptx::load_stream(source + 1); }, "load_stream (emulator_test.cc:");
  expect([] { ptx::load_stream(source + 1); }, "not a multiple of 16");
  expect([] { ptx::cp_async_16(ptx::shared_memory() + 8, source, true); }, "not a multiple of 16");
  expect([] { ptx::cp_async_16(ptx::shared_memory(), source + 1, true); }, "not a multiple of 16");
  expect([] { ptx::cp_async_16(ptx::shared_memory() + 1024, source, true); }, "offset 1024 is outside the 1024 bytes of shared memory");
  expect(
      [] {
        u32 r[4];
        ptx::ldmatrix_x4(r, ptx::shared_memory() + 1016);
      },
      "offset 1016 is outside");
  expect([] { launch([] {}, {}); }, "a kernel cannot launch kernels");
  EXPECT_TRUE(contains(error_of([] {}, {.num_threads = 48}), "num_threads = 48; must be a multiple of 32"));
}

TEST(Emulator, ExceptionsOfAKernelReachTheCaller) {
  for (const int workers : {1, 2}) {
    EXPECT_THROW(launch(
                     [] {
                       ptx::sync_block();
                       if (ptx::block_idx() == 3 && ptx::thread_idx() == 20) throw std::out_of_range("thrown");
                       ptx::sync_block();
                     },
                     {.num_blocks = 8, .num_threads = 64, .num_workers = workers}),
                 std::out_of_range);
  }
  int after = 0;  // nothing of it is left behind
  launch([&after] { ++after; }, {.num_threads = 32});
  EXPECT_EQ(after, 32);
}

// ---------------------------------------------------------------------------------------------------------------- races

/// How many of 40 seeds give another result than the run in order.
template <typename Kernel>
int num_deviating(const Kernel& kernel, const LaunchOptions& options) {
  LaunchOptions o = options;
  const auto in_order = kernel(o);
  int count = 0;
  for (o.seed = 1; o.seed <= 40; ++o.seed) count += kernel(o) != in_order ? 1 : 0;
  return count;
}

TEST(Emulator, AMissingBarrierShows) {
  const auto reverse = [](bool with_barrier) {
    return [with_barrier](const LaunchOptions& o) {
      std::vector<int> out(128);
      launch(
          [&] {
            auto* s = reinterpret_cast<int*>(ptx::shared_memory());
            const int t = ptx::thread_idx();
            s[t] = t;
            if (with_barrier) ptx::sync_block();
            ptx::sync_warp();
            out[static_cast<std::size_t>(t)] = s[t % 32];  // warp 0's, which runs first in order
          },
          o);
      return out;
    };
  };
  const LaunchOptions options{.num_threads = 128, .shared_bytes = 512};
  EXPECT_GT(num_deviating(reverse(false), options), 20);
  EXPECT_EQ(num_deviating(reverse(true), options), 0);
}

TEST(Emulator, AMissingWarpBarrierShows) {
  const auto read_below = [](bool with_barrier) {
    return [with_barrier](const LaunchOptions& o) {
      std::vector<int> out(32);
      launch(
          [&] {
            auto* s = reinterpret_cast<int*>(ptx::shared_memory());
            const int t = ptx::lane_idx();
            s[t] = t;
            if (with_barrier) ptx::sync_warp();
            out[static_cast<std::size_t>(t)] = s[t / 2];
          },
          o);
      return out;
    };
  };
  const LaunchOptions options{.num_threads = 32, .shared_bytes = 128};
  EXPECT_GT(num_deviating(read_below(false), options), 35);
  EXPECT_EQ(num_deviating(read_below(true), options), 0);
}

TEST(Emulator, ACounterRaisedBeforeTheBlocksWritesShows) {
  // Two blocks write halves of `parts`; who raises the counter second sums both.
  const auto last_block_sums = [](bool with_barrier) {
    return [with_barrier](const LaunchOptions& o) {
      std::vector<int> parts(128, -1000);
      int counter = 0;
      int sum = 0;
      int order = 0;
      launch(
          [&] {
            const int t = ptx::thread_idx();
            auto* s_last = reinterpret_cast<int*>(ptx::shared_memory());
            if (t == 0 && !with_barrier) *s_last = ptx::atomic_add(&counter, 1);
            ptx::atomic_add_ordered(&order, 0);
            parts[static_cast<std::size_t>(ptx::block_idx() * 64 + t)] = t;
            ptx::atomic_add_ordered(&order, 0);
            ptx::sync_block();
            if (t == 0 && with_barrier) *s_last = ptx::atomic_add(&counter, 1);
            ptx::sync_block();
            if (t == 0 && *s_last == 1) sum = std::accumulate(parts.begin(), parts.end(), 0);
          },
          o);
      return sum;
    };
  };
  const LaunchOptions options{.num_blocks = 2, .num_threads = 64, .shared_bytes = 16};
  EXPECT_GT(num_deviating(last_block_sums(false), options), 5);
  EXPECT_EQ(num_deviating(last_block_sums(true), options), 0);
}

TEST(Emulator, ACopyIntoASlotThatOthersStillReadShows) {
  alignas(16) static float source[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto ring = [](bool with_barrier) {
    return [with_barrier](const LaunchOptions& o) {
      std::vector<float> out(64);
      launch(
          [&] {
            auto* s = reinterpret_cast<float*>(ptx::shared_memory());
            const int t = ptx::thread_idx();
            for (int step = 0; step < 2; ++step) {
              if (t == 0) ptx::cp_async_16(s, source + 4 * step, true);
              ptx::cp_async_commit();
              ptx::cp_async_wait<0>();
              ptx::sync_block();
              out[static_cast<std::size_t>(t)] += s[t % 4];
              if (with_barrier) ptx::sync_block();
            }
          },
          o);
      for (float& x : out) {
        if (std::isnan(x)) x = -1;
      }
      return out;
    };
  };
  const LaunchOptions options{.num_threads = 64, .shared_bytes = 16};
  EXPECT_GT(num_deviating(ring(false), options), 5);
  EXPECT_EQ(num_deviating(ring(true), options), 0);
}

TEST(Emulator, ASeedAlwaysGivesTheSameOrder) {
  const auto trace = [](std::uint64_t seed) {
    std::vector<int> order;
    launch(
        [&order] {
          order.push_back(ptx::block_idx() * 1000 + ptx::thread_idx());
          ptx::sync_warp();
          order.push_back(ptx::block_idx() * 1000 + ptx::thread_idx());
        },
        {.num_blocks = 4, .num_threads = 64, .seed = seed});
    return order;
  };
  EXPECT_EQ(trace(7), trace(7));
  EXPECT_NE(trace(7), trace(8));
}

// ---------------------------------------------------------------------------------------------------------------- Hopper

abi::TensorMap map_of(const abi::TensorBox& box) {
  abi::TensorMap map{};
  std::memcpy(&map, &box, sizeof(box));
  return map;
}
/// Element `dim` of row `row` of a swizzled tile.
u16 in_tile(const u8* s_rows, int row, int dim) {
  return reinterpret_cast<const u16*>(s_rows)[row * 64 + ((dim / 8 ^ row % 8) * 8 + dim % 8)];
}

struct BoxParams {
  abi::TensorMap map;
  std::vector<int>* wrong;  // by kind
  bool waits;
};
/// A tensor [3 pages, 20 tokens, 2 heads, 80 dims] whose element is its index; boxes of 16 tokens.
__global__ void bring_boxes(const __grid_constant__ BoxParams p) {
  u8* s_rows = ptx::shared_memory();
  u64* s_full = reinterpret_cast<u64*>(s_rows + 2 * 2048);
  if (ptx::thread_idx() == 0) {
    ptx::mbarrier_init(s_full, 1);
    ptx::mbarrier_fence_init();
    ptx::mbarrier_arrive_expect(s_full, 2 * 2048);
    ptx::tma_load(s_rows, &p.map, 0, 1, 2, 2, s_full);
    ptx::tma_load(s_rows + 2048, &p.map, 64, 0, 10, 1, s_full);
  }
  ptx::sync_block();
  if (p.waits) ptx::mbarrier_wait(s_full, 0);
  if (ptx::thread_idx() != 0) return;
  for (int row = 0; row < 16; ++row) {
    for (int dim = 0; dim < 64; ++dim) {
      const auto index = [](int page, int token, int head, int d) { return static_cast<u16>(((page * 20 + token) * 2 + head) * 80 + d); };
      if (in_tile(s_rows, row, dim) != index(2, 2 + row, 1, dim)) ++(*p.wrong)[0];
      const bool exists = 10 + row < 20 && 64 + dim < 80;
      if (in_tile(s_rows + 2048, row, dim) != (exists ? index(1, 10 + row, 0, 64 + dim) : 0)) ++(*p.wrong)[1];
    }
  }
}

TEST(Emulator, BoxesLandSwizzledWhereTheyAreWaitedFor) {
  std::vector<u16> tensor(3 * 20 * 2 * 80);
  std::iota(tensor.begin(), tensor.end(), u16{0});
  const abi::TensorMap map = map_of({tensor.data(), {80, 2, 20, 3}, {2, 160, 320, 6400}, {64, 1, 16, 1}});
  for (const std::uint64_t seed : {0, 1, 2}) {
    std::vector<int> wrong{0, 0};
    launch(bring_boxes, {map, &wrong, true}, {.num_threads = 64, .shared_bytes = 2 * 2048 + 8, .seed = seed});
    EXPECT_EQ(wrong, (std::vector<int>{0, 0})) << seed;
  }
  std::vector<int> wrong{0, 0};
  launch(bring_boxes, {map, &wrong, false}, {.num_threads = 64, .shared_bytes = 2 * 2048 + 8});
  EXPECT_GT(wrong[0], 1000) << "boxes are there before anyone has waited";
}

TEST(Emulator, ABarrierThatLacksBytesIsNamed) {
  const std::string error = error_of(
      [] {
        u64* s_full = reinterpret_cast<u64*>(ptx::shared_memory());
        if (ptx::thread_idx() == 0) ptx::mbarrier_init(s_full, 1);
        ptx::sync_block();
        if (ptx::thread_idx() == 0) ptx::mbarrier_arrive_expect(s_full, 640);
        ptx::mbarrier_wait(s_full, 0);
      },
      {.num_threads = 32, .shared_bytes = 8});
  EXPECT_TRUE(contains(error, "deadlock") && contains(error, "mbarrier_wait")) << error;
  EXPECT_TRUE(contains(error, "mbarrier_init (emulator_test.cc") && contains(error, "lacks 640 bytes")) << error;
}

/// Half of the threads come and go on; the others wait for them.
TEST(Emulator, WhoArrivesAtANamedBarrierDoesNotWait) {
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    int wrong = 0;
    launch(
        [&wrong] {
          auto* s = reinterpret_cast<int*>(ptx::shared_memory());
          const int t = ptx::thread_idx();
          for (int turn = 0; turn < 6; ++turn) {
            const bool gives = t / 32 == turn % 2;
            if (gives) s[t % 32] = 100 * turn + t % 32;
            if (gives) ptx::arrive_named(1 + turn % 2, 64);
            if (!gives) ptx::sync_named(1 + turn % 2, 64);
            if (!gives && s[t % 32] != 100 * turn + t % 32) ++wrong;
          }
        },
        {.num_threads = 64, .shared_bytes = 128, .seed = seed});
    EXPECT_EQ(wrong, 0) << seed;
  }
  const std::string error = error_of([] { ptx::arrive_named(1, 64); }, {.num_threads = 32, .shared_bytes = 8});
  EXPECT_TRUE(contains(error, "a barrier for 64 threads of 32")) << error;
  const std::string alone = error_of(
      [] {
        if (ptx::thread_idx() < 32) ptx::arrive_named(1, 64);
      },
      {.num_threads = 64, .shared_bytes = 8});
  EXPECT_TRUE(contains(alone, "no one waits at")) << alone;
}

// ---------------------------------------------------------------------------------------------------------------- clusters

TEST(Emulator, BlocksOfAClusterSeeEachOthersSharedMemory) {
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    std::vector<u32> sums(6);
    launch(
        [&sums] {
          auto* s = reinterpret_cast<u32*>(ptx::shared_memory());
          if (ptx::thread_idx() == 0) s[0] = 0;
          ptx::sync_cluster();
          for (int rank = 0; rank < ptx::cluster_size(); ++rank)
            ptx::atomic_add_shared(ptx::in_block(s, rank), static_cast<u32>(100 * ptx::cluster_rank() + 1));
          ptx::sync_cluster();
          if (ptx::thread_idx() == 0) sums[static_cast<std::size_t>(ptx::block_idx())] = s[0];
        },
        {.num_blocks = 6, .num_threads = 64, .shared_bytes = 16, .seed = seed, .cluster_size = 3});
    EXPECT_EQ(sums, std::vector<u32>(6, 64 * (1 + 101 + 201)));
  }
}

TEST(Emulator, MisusedClustersAreReported) {
  const LaunchOptions pair{.num_blocks = 2, .num_threads = 32, .shared_bytes = 16, .cluster_size = 2};
  const std::string gone = error_of(
      [] {
        auto* s = reinterpret_cast<u32*>(ptx::shared_memory());
        if (ptx::cluster_rank() == 1) *ptx::in_block(s, 0) = 1;
      },
      pair);
  EXPECT_TRUE(contains(gone, "has ended: its shared memory is gone")) << gone;
  const std::string alone = error_of(
      [] {
        if (ptx::cluster_rank() == 0) ptx::sync_cluster();
      },
      pair);
  EXPECT_TRUE(contains(alone, "deadlock") && contains(alone, "sync_cluster")) << alone;
  EXPECT_TRUE(contains(error_of([] {}, {.num_blocks = 3, .cluster_size = 2}), "cluster_size = 2"));
  EXPECT_TRUE(contains(error_of([] { ptx::in_block(ptx::shared_memory(), 2); }, pair), "rank 2 of a cluster of 2"));
}

}  // namespace
}  // namespace girih
