// CUDA on the CPU: runs a kernel over a grid, one fiber per CUDA thread, so that the kernel's text is tested (and sanitized) without a GPU.
// The twins of kernels/ptx under tests/emulator/ptx, which are found first by include path, call the second half of this file.
//
// A fiber runs until it must wait: at a warp collective for the other lanes (the last to come computes for all), at a barrier for the other
// threads. Nothing else ends its turn, so a run is deterministic; with a seed, the order of blocks, warps and lanes is drawn, two blocks
// take turns, and accesses through kernels/ptx may end a turn as well: what depends on an order that no barrier enforces then shows.
// Stricter than a GPU where a GPU would let it pass or hang: lanes of a warp at different collectives, a barrier that some lanes of a warp
// do not reach, threads that end while others wait for them are errors that name the threads and lines.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace girih::emulator {

/// The compute capability that the twins behave as, e.g. 800 or 750: one for all files of an executable.
#ifndef GIRIH_EMULATED_ARCH
#define GIRIH_EMULATED_ARCH 900
#endif
inline constexpr int kArch = GIRIH_EMULATED_ARCH;

/// The kernel did what a GPU would hang on or leave undefined; what() names the block, the threads and the lines.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct LaunchOptions {
  int num_blocks = 1;
  int num_threads = 32;           // of a block, a multiple of 32 up to 1024
  std::int64_t shared_bytes = 0;  // starts as bytes 0xff, NaN in every floating-point type
  std::uint64_t seed = 0;         // 0: everything in order
  int num_workers = 1;            // std::threads that share the blocks
  int cluster_size = 1;           // blocks of a cluster, which run together
};

/// Calls `kernel` once for each thread of the grid. Throws Error, or what the kernel threw.
void launch(const std::function<void()>& kernel, const LaunchOptions& options);

/// A kernel of one parameter.
template <typename P>
void launch(void (*kernel)(P), const std::type_identity_t<P>& params, const LaunchOptions& options) {
  launch([kernel, &params] { kernel(params); }, options);
}

// ---------------------------------------------------------------------------------------------------------------- for the twins

inline constexpr int kWarp = 32;
inline constexpr int kMaxWarps = 32;
inline constexpr int kNumBarriers = 16;

class Worker;
struct Block;

/// Where in the kernel a thread is: the line that called a twin, and the twin's name.
struct Site {
  const char* what = nullptr;
  const char* file = nullptr;
  int line = 0;
  friend bool operator==(const Site&, const Site&) = default;
};

/// A context that can be switched to.
struct Fiber {
  void* context = nullptr;
  const void* stack_bottom = nullptr;  // lowest address
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
};

/// A copy into shared memory that has been issued and has not landed.
struct PendingCopy {
  void* destination;
  std::size_t size;
  std::array<std::byte, 16> data;
};

/// A product of a warp's part of a warpgroup, issued and not yet computed: what it reads and writes lies where the lanes have it.
enum class MmaType : std::uint8_t { f16, bf16, e4m3 };
struct GroupProduct {
  std::array<float*, kWarp> c;
  std::array<const std::uint32_t*, kWarp> a;  // null: in shared memory
  std::uint64_t a_tile;
  std::uint64_t b_tile;
  int num_tiles;  // of 8 columns
  bool accumulate;
  bool other_way;  // B's rows lie along N where A is in registers, along K where it is not
  MmaType type;
};

struct Warp {
  std::uint32_t priority = 0;  // with a seed: the highest runs
  std::uint32_t ready = 0;     // lanes that can run
  std::uint32_t arrived = 0;   // lanes that wait in the collective at `site`
  Site site;
  std::array<void*, kWarp> operands{};
  std::vector<GroupProduct> products;
  std::vector<std::size_t> product_ends;  // of committed groups, as counts of products
};

struct Thread : Fiber {
  enum class State : std::uint8_t { running, waiting, ended };
  Block* block = nullptr;
  Warp* warp = nullptr;
  int thread_idx = 0;
  int lane = 0;
  State state = State::running;
  Site site;  // while it waits
  std::vector<PendingCopy> copies;
  std::vector<std::size_t> group_ends;  // of committed groups, as counts of copies
};

struct Barrier {
  int arrived = 0;
  int expected = 0;
  std::array<std::uint32_t, kMaxWarps> lanes{};
  std::array<std::uint32_t, kMaxWarps> passing{};  // lanes that have come and do not wait
  std::array<Site, kMaxWarps> sites{};
};

/// One thread's copies that arrive at a barrier once they have landed, or a box that counts by its bytes.
struct LateArrival {
  const Thread* from;
  std::vector<PendingCopy> copies;
  std::int64_t bytes = 0;  // 0: an arrival
};
/// A barrier in shared memory.
struct Mbarrier {
  const void* place = nullptr;
  int expected = 0;
  int arrived = 0;
  std::int64_t bytes = 0;    // that are expected and have not landed
  std::uint32_t phases = 0;  // that have ended
  Site made;
  std::vector<Thread*> waiting;
  std::vector<LateArrival> late;
};

/// What the running thread sees of its block and launch.
struct Block {
  Worker* worker = nullptr;
  int block_idx = -1;  // -1: idle
  int num_threads = 0;
  int num_blocks = 0;
  int cluster_size = 1;
  int cluster_rank = 0;
  std::byte* shared = nullptr;
  std::int64_t shared_bytes = 0;
  int num_ended = 0;
  std::uint32_t ready_warps = 0;
  std::vector<Warp> warps;
  std::vector<Thread> threads;
  std::array<Barrier, kNumBarriers> barriers{};
  std::vector<Mbarrier> mbarriers;
  bool random = false;
};

inline constinit thread_local Thread* running_thread = nullptr;

/// The thread whose fiber runs; only inside launch.
inline Thread& current() { return *running_thread; }

/// Throws an Error about the running thread, which ends the launch.
[[noreturn]] void misuse(const std::string& what, const Site& site);

/// The running thread waits for the other lanes of its warp. True for the one that came last: it finds every lane's operand in
/// warp->operands, computes for all, and calls release_warp(). For the others the wait is over when this returns.
bool join_warp(void* operand, const Site& site);
void release_warp();

/// Waits until `num_threads` threads have come to barrier `barrier`.
void join_barrier(int barrier, int num_threads, const Site& site);
/// Counts as having come, and does not wait.
void pass_barrier(int barrier, int num_threads, const Site& site);

/// Waits until all threads of the cluster have come.
void join_cluster(const Site& site);
/// Where block `rank` of the cluster has what the running thread's block has at `pointer`; an error once that block has ended.
void* in_block(void* pointer, int rank, const Site& site);

/// With a seed: now and then lets others run first.
void give_way_at_random();
inline void may_give_way() {
  if (running_thread != nullptr && running_thread->block->random) give_way_at_random();
}

/// Checks [pointer, pointer + size) against the block's shared memory and `alignment`.
void check_shared(const void* pointer, std::int64_t size, std::size_t alignment, const Site& site);
void check_aligned(const void* pointer, std::size_t alignment, const Site& site);

/// Lanes' operands of a collective: `complete` is called once, by the last lane to come, with all 32 in lane order.
template <typename Operand, typename Complete>
void warp_collective(Operand& operand, const Site& site, const Complete& complete) {
  if (!join_warp(&operand, site)) return;
  std::array<Operand*, kWarp> lanes;
  for (int lane = 0; lane < kWarp; ++lane) {
    lanes[static_cast<std::size_t>(lane)] = static_cast<Operand*>(current().warp->operands[static_cast<std::size_t>(lane)]);
  }
  complete(lanes);
  release_warp();
}

// Asynchronous copies land as late as they may: in the wait. Until then the destination holds bytes 0xff, since on a GPU it may hold
// either the old data or the new.
// `size` (4, 8 or 16) is also the alignment of both ends.
void issue_copy(void* destination, const void* source, std::size_t size, bool valid, const Site& site);
/// As chips without such copies do it.
void copy_at_once(void* destination, const void* source, std::size_t size, bool valid, const Site& site);
void commit_copies();
void wait_copies(int num_pending);

// Barriers in shared memory.
void init_mbarrier(void* place, int arrivals, const Site& site);
void arrive_at_mbarrier(void* place, const Site& site);
/// Arrives, and the phase waits for so many bytes of boxes more.
void arrive_and_expect(void* place, std::int64_t bytes, const Site& site);
/// All copies of this thread that have not landed, committed or not, land when some thread waits at the barrier, and then arrive.
void arrive_after_copies(void* place, const Site& site);
/// Waits while the phase at work has this parity.
void wait_at_mbarrier(void* place, std::uint32_t parity, const Site& site);

/// The box at `at` of the tensor that `map` (abi::TensorBox) describes, swizzled; lands when some thread waits at the barrier.
void issue_box(void* destination, const void* map, const std::array<std::int32_t, 4>& at, void* barrier, const Site& site);

// Tensor-core work of one warp.
struct MatrixOperand {
  std::uint32_t* r;
  const void* row;
};
void load_matrices(MatrixOperand operand, bool transposed, const Site& site);
struct StoredMatrixOperand {
  const std::uint32_t* r;
  void* row;
};
void store_matrices(StoredMatrixOperand operand, const Site& site);
/// The 8x8 matrix of 16-bit elements whose row lane / 4, columns 2 (lane % 4) and the next each lane has in `pair`.
void transpose_matrix(std::uint32_t& pair, const Site& site);
struct MmaOperand {
  float* c;
  const std::uint32_t* a;
  const std::uint32_t* b;
};
/// m16n8k16: c += A B.
void multiply_matrices(MmaOperand operand, MmaType type, const Site& site);
/// This warp's 16 rows of a warpgroup's product: computed when its group is waited for and not before, from what registers and shared
/// memory hold then. `a` null: A lies in a tile. Tiles are descriptors as kernels/ptx/wgmma.cuh makes them; of e4m3 all rows lie along M or
/// N.
struct GroupOperand {
  float* c;
  const std::uint32_t* a;
  std::uint64_t a_tile;
  std::uint64_t b_tile;
  bool accumulate;
  bool other_way = false;  // as in GroupProduct
};
void issue_product(GroupOperand operand, int num_tiles, MmaType type, const Site& site);
void commit_products(const Site& site);
void wait_products(int num_pending, const Site& site);

// Number formats, by src/base/numeric.h (whose names meet those of the kernels, so it is not included here).
float f16_value(std::uint32_t code);
std::uint16_t f16_code(float x);
std::uint16_t bf16_code(float x);
float e4m3_value(std::uint32_t code);
std::uint8_t e4m3_code(float x);
std::uint8_t e5m2_code(float x);

}  // namespace girih::emulator
