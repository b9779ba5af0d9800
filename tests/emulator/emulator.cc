// Scheduling of the emulator: fibers, warps, barriers, blocks. A waiting thread jumps straight to the next one that can run; the worker's
// own context runs only between blocks and when nothing else can, which is the end of a block or a deadlock.
#include "emulator/emulator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <boost/context/detail/fcontext.hpp>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "abi/tensor_map.h"

#if defined(__SANITIZE_ADDRESS__)
#define GIRIH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GIRIH_ASAN 1
#endif
#endif
#ifdef GIRIH_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace girih::emulator {
namespace {

constexpr std::size_t kPage = 4096;
#ifdef GIRIH_ASAN
constexpr std::size_t kStackBytes = 512 * 1024;
#else
constexpr std::size_t kStackBytes = 128 * 1024;
#endif
constexpr std::size_t kGuardBytes = 256;  // before and behind shared memory
constexpr std::uint32_t kAllLanes = 0xffffffffU;

void poison(const void* begin, std::size_t size) {
#ifdef GIRIH_ASAN
  ASAN_POISON_MEMORY_REGION(begin, size);
#else
  (void)begin, (void)size;
#endif
}
void unpoison(const void* begin, std::size_t size) {
#ifdef GIRIH_ASAN
  ASAN_UNPOISON_MEMORY_REGION(begin, size);
#else
  (void)begin, (void)size;
#endif
}

/// Tells AddressSanitizer which stack comes next; `leaves_for_good`: the present one will not be returned to.
void announce_switch(Fiber& from, const Fiber& to, bool leaves_for_good) {
#ifdef GIRIH_ASAN
  __sanitizer_start_switch_fiber(leaves_for_good ? nullptr : &from.fake_stack, to.stack_bottom, to.stack_bytes);
#else
  (void)from, (void)to, (void)leaves_for_good;
#endif
}
/// On arrival at `self` from `from`, whose stack becomes known (the worker's own is not before).
void note_arrival(Fiber& self, Fiber& from) {
#ifdef GIRIH_ASAN
  __sanitizer_finish_switch_fiber(self.fake_stack, &from.stack_bottom, &from.stack_bytes);
#else
  (void)self, (void)from;
#endif
}

/// Stacks of a block's fibers: one mapping, a page without access below each. Tops are staggered, lest all fibers' frames meet in the same
/// sets of the cache.
class Stacks {
 public:
  explicit Stacks(int count) : bytes_(static_cast<std::size_t>(count) * kStride) {
    base_ = static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    for (int i = 0; i < count; ++i) mprotect(base_ + static_cast<std::size_t>(i) * kStride, kPage, PROT_NONE);
  }
  ~Stacks() {
    unpoison(base_, bytes_);
    munmap(base_, bytes_);
  }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  std::byte* bottom(int i) const { return base_ + static_cast<std::size_t>(i) * kStride + kPage; }
  static std::size_t size(int i) { return kStackBytes - static_cast<std::size_t>(i % 61) * 64; }

 private:
  static constexpr std::size_t kStride = kStackBytes + kPage;
  std::size_t bytes_;
  std::byte* base_;
};

/// What all workers of a launch share.
struct Grid {
  const std::function<void()>& kernel;
  const LaunchOptions& options;
  std::vector<int> order;  // of blocks, or clusters
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;  // the first

  void keep_error(std::exception_ptr e) {
    const std::lock_guard lock(mutex);
    if (!error) error = std::move(e);
    next = order.size();
  }
};

std::string text_of(const Site& site) {
  const char* slash = std::strrchr(site.file, '/');
  return std::string(site.what) + " (" + (slash != nullptr ? slash + 1 : site.file) + ":" + std::to_string(site.line) + ")";
}

/// "0-15, 20": ascending numbers as ranges.
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += std::to_string(numbers[i]);
    if (end - i > 1) text += "-" + std::to_string(numbers[end - 1]);
    i = end;
  }
  return text;
}

/// Who waits where, e.g. "threads 0-31 wait in sync_block (mma.cuh:12); threads 32-63 have ended".
std::string whereabouts(const Block& block) {
  std::map<std::string, std::vector<int>> groups;
  for (const Thread& t : block.threads) {
    const bool ready = t.state == Thread::State::running || (t.warp->ready >> t.lane & 1U) != 0;
    const std::string what = t.state == Thread::State::ended ? "have ended" : (ready ? "can run" : "wait in " + text_of(t.site));
    groups[what].push_back(t.thread_idx);
  }
  std::string text;
  for (const auto& [what, threads] : groups) text += (text.empty() ? "threads " : "; threads ") + ranges(threads) + " " + what;
  return text;
}

}  // namespace

/// One std::thread's part of a launch: its blocks, one after another, or two taking turns where a seed is given; or its clusters, one after
/// another.
class Worker {
 public:
  Worker(Grid& grid, int worker_idx)
      : grid_(grid),
        random_(grid.options.seed != 0),
        draw_(static_cast<std::minstd_rand::result_type>(grid.options.seed * 2654435761U + static_cast<unsigned>(worker_idx) + 1)),
        stacks_(grid.options.num_threads * num_blocks_at_once(grid.options)),
        blocks_(static_cast<std::size_t>(num_blocks_at_once(grid.options))) {
    const LaunchOptions& o = grid.options;
    shared_stride_ = (static_cast<std::size_t>(o.shared_bytes) + 127) / 128 * 128 + 2 * kGuardBytes;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      // An allocation each, so that even a stray access far outside is not another block's.
      shared_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(128, shared_stride_)));
      Block& block = blocks_[i];
      block.worker = this;
      block.num_threads = o.num_threads;
      block.num_blocks = o.num_blocks;
      block.num_ended = o.num_threads;  // idle
      block.cluster_size = o.cluster_size;
      block.cluster_rank = o.cluster_size > 1 ? static_cast<int>(i) : 0;
      block.shared = shared_.back().get() + kGuardBytes;
      block.shared_bytes = o.shared_bytes;
      block.random = random_;
      block.warps.resize(static_cast<std::size_t>(o.num_threads / kWarp));
      block.threads.resize(static_cast<std::size_t>(o.num_threads));
      for (int t = 0; t < o.num_threads; ++t) {
        Thread& thread = block.threads[static_cast<std::size_t>(t)];
        const int stack = static_cast<int>(i) * o.num_threads + t;
        thread.block = &block;
        thread.warp = &block.warps[static_cast<std::size_t>(t / kWarp)];
        thread.thread_idx = t;
        thread.lane = t % kWarp;
        thread.stack_bottom = stacks_.bottom(stack);
        thread.stack_bytes = Stacks::size(stack);
      }
    }
  }
  ~Worker() {
    for (const auto& memory : shared_) unpoison(memory.get(), shared_stride_);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run() {
    while (true) {
      if (!start_blocks()) return;
      Thread* next = choose_next();
      if (next == nullptr) throw Error(deadlock());
      jump(main_, *next);
      if (error_) std::rethrow_exception(error_);
      for (Block& block : blocks_) {
        if (block.num_ended == block.num_threads && block.block_idx >= 0) finish(block);
      }
    }
  }

  /// The running thread has been marked as waiting, or ready to go on later.
  void leave(Thread& self) {
    Thread* next = choose_next();
    if (next == &self) {
      take_turn(self);
      return;
    }
    jump(self, next != nullptr ? static_cast<Fiber&>(*next) : main_);
  }

  void make_ready(Thread& thread) { make_ready(*thread.block, *thread.warp, 1U << thread.lane); }
  static void make_ready(Block& block, Warp& warp, std::uint32_t lanes) {
    warp.ready |= lanes;
    block.ready_warps |= 1U << (&warp - block.warps.data());
  }

  [[noreturn]] void abandon(std::exception_ptr error) {
    error_ = std::move(error);
    while (true) jump(*running_thread, main_);
  }

  std::uint32_t draw(std::uint32_t below) { return static_cast<std::uint32_t>(draw_() >> 8) % below; }

  /// The running thread has come to the cluster's barrier.
  void arrive_at_cluster() {
    if (++cluster_arrived_ < static_cast<int>(blocks_.size()) * grid_.options.num_threads) return;
    cluster_arrived_ = 0;
    for (Block& block : blocks_) {
      for (Warp& warp : block.warps) make_ready(block, warp, kAllLanes);
    }
  }
  Block& block_of_rank(int rank) { return blocks_[static_cast<std::size_t>(rank)]; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };

  static int num_blocks_at_once(const LaunchOptions& o) { return o.cluster_size > 1 ? o.cluster_size : o.seed != 0 ? 2 : 1; }

  /// Fills idle places; false when nothing is left to run.
  bool start_blocks() {
    const auto idle = [](const Block& block) { return block.num_ended == block.num_threads; };
    const int cluster = grid_.options.cluster_size;
    if (cluster > 1) {
      if (!std::all_of(blocks_.begin(), blocks_.end(), idle)) return true;
      const std::size_t i = grid_.next.fetch_add(1);
      if (i >= grid_.order.size()) return false;
      cluster_arrived_ = 0;
      for (int rank = 0; rank < cluster; ++rank) start(blocks_[static_cast<std::size_t>(rank)], grid_.order[i] * cluster + rank);
      return true;
    }
    bool active = false;
    for (Block& block : blocks_) {
      if (idle(block)) {
        const std::size_t i = grid_.next.fetch_add(1);
        if (i >= grid_.order.size()) continue;
        start(block, grid_.order[i]);
      }
      active = true;
    }
    return active;
  }

  void start(Block& block, int block_idx) {
    block.block_idx = block_idx;
    block.num_ended = 0;
    block.barriers = {};
    block.mbarriers.clear();
    std::byte* memory = block.shared - kGuardBytes;
    unpoison(memory, shared_stride_);
    std::memset(memory, 0xff, shared_stride_);
    poison(memory, kGuardBytes);
    poison(block.shared + block.shared_bytes, shared_stride_ - kGuardBytes - static_cast<std::size_t>(block.shared_bytes));
    for (Warp& warp : block.warps) {
      warp = Warp{};
      if (random_) warp.priority = draw(1U << 16);
      make_ready(block, warp, kAllLanes);
    }
    for (Thread& thread : block.threads) {
      unpoison(thread.stack_bottom, thread.stack_bytes);
      auto* top = static_cast<std::byte*>(const_cast<void*>(thread.stack_bottom)) + thread.stack_bytes;
      thread.context = boost::context::detail::make_fcontext(top, thread.stack_bytes, enter);
      thread.fake_stack = nullptr;
      thread.state = Thread::State::running;
      thread.copies.clear();
      thread.group_ends.clear();
    }
  }

  void finish(Block& block) {
    std::byte* memory = block.shared - kGuardBytes;
    unpoison(memory, shared_stride_);
    const auto untouched = [](std::byte b) { return b == std::byte{0xff}; };
    if (!std::all_of(memory, block.shared, untouched) ||
        !std::all_of(block.shared + block.shared_bytes, memory + shared_stride_, untouched)) {
      throw Error("block " + std::to_string(block.block_idx) + ": wrote outside its " + std::to_string(block.shared_bytes) +
                  " bytes of shared memory");
    }
    for (const Barrier& b : block.barriers) {
      if (b.arrived != 0) throw Error("block " + std::to_string(block.block_idx) + ": threads came to a barrier that no one waits at");
    }
    block.block_idx = -1;
  }

  static void enter(boost::context::detail::transfer_t transfer) {
    auto& from = *static_cast<Fiber*>(transfer.data);
    from.context = transfer.fctx;
    Thread& self = *running_thread;
    note_arrival(self, from);
    Worker& worker = *self.block->worker;
    std::exception_ptr error;
    try {
      worker.grid_.kernel();
    } catch (...) {
      error = std::current_exception();
    }
    if (error) worker.abandon(std::move(error));  // not inside the handler: a fiber must not be left in one
    self.state = Thread::State::ended;
    const bool last = ++self.block->num_ended == self.block->num_threads;
    Thread* next = last ? nullptr : worker.choose_next();
    worker.jump(self, next != nullptr ? static_cast<Fiber&>(*next) : worker.main_, true);
  }

  void take_turn(Thread& thread) {
    thread.warp->ready &= ~(1U << thread.lane);
    if (thread.warp->ready == 0) thread.block->ready_warps &= ~(1U << (thread.warp - thread.block->warps.data()));
    thread.state = Thread::State::running;
    last_ = &thread;
  }

  void jump(Fiber& from, Fiber& to, bool leaves_for_good = false) {
    if (&to == &main_) {
      running_thread = nullptr;
    } else {
      running_thread = &static_cast<Thread&>(to);
      take_turn(*running_thread);
    }
    announce_switch(from, to, leaves_for_good);
    const auto transfer = boost::context::detail::jump_fcontext(to.context, &from);
    auto& came_from = *static_cast<Fiber*>(transfer.data);
    came_from.context = transfer.fctx;
    note_arrival(from, came_from);
  }

  /// In order: the next lane of the same warp, then the next warp. Null: none can run.
  Thread* choose_next() {
    if (random_) return choose_at_random();
    const std::size_t first = last_ != nullptr ? static_cast<std::size_t>(last_->block - blocks_.data()) : 0;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      Block& block = blocks_[(first + i) % blocks_.size()];
      if (block.ready_warps == 0) continue;
      const int at = last_ != nullptr ? last_->thread_idx / kWarp : 0;
      const int warp = (std::countr_zero(std::rotr(block.ready_warps, at)) + at) % 32;
      return lane_of(block, warp, std::countr_zero(block.warps[static_cast<std::size_t>(warp)].ready));
    }
    return nullptr;
  }

  /// Warps have drawn priorities, redrawn now and then: so some fall far behind others, which uniform choices would seldom give. Lanes of
  /// a warp come in any order.
  Thread* choose_at_random() {
    if (last_ != nullptr && draw(16) == 0) last_->warp->priority = draw(1U << 16);
    Block* block = nullptr;
    int warp = 0;
    std::uint32_t highest = 0;
    for (Block& b : blocks_) {
      for (std::uint32_t ready = b.ready_warps; ready != 0; ready &= ready - 1) {
        const int w = std::countr_zero(ready);
        const std::uint32_t priority = b.warps[static_cast<std::size_t>(w)].priority;
        if (block != nullptr && priority <= highest) continue;
        block = &b;
        warp = w;
        highest = priority;
      }
    }
    return block != nullptr ? lane_of(*block, warp, draw_bit(block->warps[static_cast<std::size_t>(warp)].ready)) : nullptr;
  }

  int draw_bit(std::uint32_t mask) {
    for (std::uint32_t skip = draw(static_cast<std::uint32_t>(std::popcount(mask))); skip > 0; --skip) mask &= mask - 1;
    return std::countr_zero(mask);
  }

  static Thread* lane_of(Block& block, int warp, int lane) { return &block.threads[static_cast<std::size_t>(warp * kWarp + lane)]; }

  std::string deadlock() const {
    std::string text;
    for (const Block& block : blocks_) {
      if (block.num_ended == block.num_threads) continue;
      text += (text.empty() ? "block " : "\nblock ") + std::to_string(block.block_idx) + ": deadlock: " + whereabouts(block);
      for (const Mbarrier& b : block.mbarriers) {
        if (b.waiting.empty()) continue;
        text += "; barrier " + std::to_string(&b - block.mbarriers.data()) + ", of " + text_of(b.made) + ", has " +
                std::to_string(b.arrived) + " of " + std::to_string(b.expected) + " arrivals and lacks " + std::to_string(b.bytes) +
                " bytes";
      }
    }
    return text;
  }

  Grid& grid_;
  bool random_;
  std::minstd_rand draw_;
  Stacks stacks_;
  std::vector<Block> blocks_;
  std::vector<std::unique_ptr<std::byte, Free>> shared_;
  std::size_t shared_stride_ = 0;
  Fiber main_;
  Thread* last_ = nullptr;
  int cluster_arrived_ = 0;
  std::exception_ptr error_;
};

void launch(const std::function<void()>& kernel, const LaunchOptions& options) {
  if (options.num_threads < kWarp || options.num_threads > kWarp * kMaxWarps || options.num_threads % kWarp != 0) {
    throw Error("num_threads = " + std::to_string(options.num_threads) + "; must be a multiple of 32 from 32 to 1024");
  }
  if (options.cluster_size < 1 || options.num_blocks % options.cluster_size != 0) {
    throw Error("cluster_size = " + std::to_string(options.cluster_size) + "; must divide num_blocks");
  }
  if (running_thread != nullptr) throw Error("a kernel cannot launch kernels");
  Grid grid{kernel, options, std::vector<int>(static_cast<std::size_t>(options.num_blocks / options.cluster_size)), {}, {}, {}};
  std::iota(grid.order.begin(), grid.order.end(), 0);
  if (options.seed != 0) std::shuffle(grid.order.begin(), grid.order.end(), std::minstd_rand(static_cast<unsigned>(options.seed)));
  const auto work = [&grid](int worker_idx) {
    try {
      Worker(grid, worker_idx).run();
    } catch (...) {
      running_thread = nullptr;
      grid.keep_error(std::current_exception());
    }
  };
  std::vector<std::thread> workers;
  for (int i = 1; i < options.num_workers; ++i) workers.emplace_back(work, i);
  work(0);
  for (std::thread& worker : workers) worker.join();
  if (grid.error) std::rethrow_exception(grid.error);
}

void misuse(const std::string& what, const Site& site) {
  const Thread& self = current();
  throw Error("block " + std::to_string(self.block->block_idx) + ", thread " + std::to_string(self.thread_idx) + ", " + text_of(site) +
              ": " + what);
}

bool join_warp(void* operand, const Site& site) {
  Thread& self = current();
  Warp& warp = *self.warp;
  if (warp.arrived == 0) {
    warp.site = site;
  } else if (!(warp.site == site)) {
    misuse("the warp has diverged: other lanes are in " + text_of(warp.site) + ". " + whereabouts(*self.block), site);
  }
  warp.operands[static_cast<std::size_t>(self.lane)] = operand;
  warp.arrived |= 1U << self.lane;
  if (warp.arrived == kAllLanes) return true;
  self.state = Thread::State::waiting;
  self.site = site;
  self.block->worker->leave(self);
  return false;
}

void release_warp() {
  Thread& self = current();
  self.warp->arrived = 0;
  Worker::make_ready(*self.block, *self.warp, kAllLanes & ~(1U << self.lane));
  if (self.block->random) {
    self.block->worker->make_ready(self);
    self.block->worker->leave(self);
  }
}

namespace {

/// Counts the running thread; the last one lets those who wait go on.
void come_to_barrier(int barrier, int num_threads, bool waits, const Site& site) {
  Thread& self = current();
  Block& block = *self.block;
  if (barrier < 0 || barrier >= kNumBarriers) misuse("barrier " + std::to_string(barrier) + "; there are 0..15", site);
  if (num_threads <= 0 || num_threads > block.num_threads || num_threads % kWarp != 0) {
    misuse(
        "a barrier for " + std::to_string(num_threads) + " threads of " + std::to_string(block.num_threads) + "; must be a multiple of 32",
        site);
  }
  Barrier& b = block.barriers[static_cast<std::size_t>(barrier)];
  const auto warp = static_cast<std::size_t>(self.thread_idx / kWarp);
  if (b.arrived == 0) b.expected = num_threads;
  if (b.expected != num_threads) {
    misuse("barrier " + std::to_string(barrier) + " for " + std::to_string(num_threads) + " threads, but others wait at it for " +
               std::to_string(b.expected),
           site);
  }
  if ((b.lanes[warp] | b.passing[warp]) == 0) b.sites[warp] = site;
  if (!(b.sites[warp] == site)) {
    misuse("the warp has diverged: other lanes are in " + text_of(b.sites[warp]) + ". " + whereabouts(block), site);
  }
  (waits ? b.lanes : b.passing)[warp] |= 1U << self.lane;
  if (waits) {
    self.state = Thread::State::waiting;
    self.site = site;
  }
  if (++b.arrived < b.expected) return;
  for (std::size_t w = 0; w < block.warps.size(); ++w) {
    const std::uint32_t lanes = b.lanes[w] | b.passing[w];
    if (lanes != 0 && lanes != kAllLanes)
      misuse("only some lanes of warp " + std::to_string(w) + " are at this barrier. " + whereabouts(block), site);
    if (b.lanes[w] != 0) Worker::make_ready(block, block.warps[w], b.lanes[w]);
  }
  b = Barrier{};
}

}  // namespace

void join_barrier(int barrier, int num_threads, const Site& site) {
  come_to_barrier(barrier, num_threads, true, site);
  current().block->worker->leave(current());
}

void pass_barrier(int barrier, int num_threads, const Site& site) {
  may_give_way();
  come_to_barrier(barrier, num_threads, false, site);
  may_give_way();
}

void join_cluster(const Site& site) {
  Thread& self = current();
  if (self.block->cluster_size == 1) return join_barrier(0, self.block->num_threads, site);
  self.state = Thread::State::waiting;
  self.site = site;
  self.block->worker->arrive_at_cluster();
  self.block->worker->leave(self);
}

void* in_block(void* pointer, int rank, const Site& site) {
  Block& own = *current().block;
  if (rank < 0 || rank >= own.cluster_size)
    misuse("rank " + std::to_string(rank) + " of a cluster of " + std::to_string(own.cluster_size), site);
  if (own.cluster_size == 1) return pointer;
  const Block& other = own.worker->block_of_rank(rank);
  if (other.num_ended > 0)
    misuse("block " + std::to_string(other.block_idx) + " of the cluster has ended: its shared memory is gone", site);
  may_give_way();
  return other.shared + (static_cast<std::byte*>(pointer) - own.shared);
}

void give_way_at_random() {
  Thread& self = current();
  if (self.block->worker->draw(4) != 0) return;
  self.warp->priority = self.block->worker->draw(1U << 16);
  self.block->worker->make_ready(self);
  self.block->worker->leave(self);
}

void check_aligned(const void* pointer, std::size_t alignment, const Site& site) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    misuse("an address that is not a multiple of " + std::to_string(alignment), site);
  }
}

void check_shared(const void* pointer, std::int64_t size, std::size_t alignment, const Site& site) {
  const Block& block = *current().block;
  const std::int64_t offset = static_cast<const std::byte*>(pointer) - block.shared;
  if (offset < 0 || offset + size > block.shared_bytes) {
    misuse("offset " + std::to_string(offset) + " is outside the " + std::to_string(block.shared_bytes) + " bytes of shared memory", site);
  }
  check_aligned(pointer, alignment, site);
}

namespace {
PendingCopy read_copy(void* destination, const void* source, std::size_t size, bool valid, const Site& site) {
  check_shared(destination, static_cast<std::int64_t>(size), size, site);
  PendingCopy copy{destination, size, {}};
  if (valid) {
    check_aligned(source, size, site);
    std::memcpy(copy.data.data(), source, size);
  }
  return copy;
}
}  // namespace

void issue_copy(void* destination, const void* source, std::size_t size, bool valid, const Site& site) {
  current().copies.push_back(read_copy(destination, source, size, valid, site));
  std::memset(destination, 0xff, size);
  may_give_way();
}

void copy_at_once(void* destination, const void* source, std::size_t size, bool valid, const Site& site) {
  const PendingCopy copy = read_copy(destination, source, size, valid, site);
  std::memcpy(destination, copy.data.data(), size);
  may_give_way();
}

void commit_copies() { current().group_ends.push_back(current().copies.size()); }

namespace {

void land(const std::vector<PendingCopy>& copies) {
  for (const PendingCopy& copy : copies) std::memcpy(copy.destination, copy.data.data(), copy.size);
}

Mbarrier& find_mbarrier(const void* place, const Site& site) {
  check_shared(place, 8, 8, site);
  for (Mbarrier& b : current().block->mbarriers) {
    if (b.place == place) return b;
  }
  misuse("no barrier has been made here", site);
}

void arrive_at(Mbarrier& b, int count, const Site& site) {
  b.arrived += count;
  if (b.arrived > b.expected) misuse("more than " + std::to_string(b.expected) + " arrivals in one phase", site);
  if (b.arrived < b.expected || b.bytes != 0) return;
  b.arrived = 0;
  ++b.phases;
  for (Thread* thread : b.waiting) thread->block->worker->make_ready(*thread);
  b.waiting.clear();
}

/// Lets late arrivals of `from` (null: of all) come, one phase's at most at a time.
void land_late(Mbarrier& b, const Thread* from, const Site& site) {
  std::vector<LateArrival> rest;
  std::vector<LateArrival> late = std::move(b.late);
  b.late.clear();
  for (LateArrival& arrival : late) {
    if (from != nullptr && arrival.from != from) {
      rest.push_back(std::move(arrival));
      continue;
    }
    land(arrival.copies);
    b.bytes -= arrival.bytes;
    arrive_at(b, arrival.bytes == 0 ? 1 : 0, site);
  }
  for (LateArrival& arrival : rest) b.late.push_back(std::move(arrival));
}

}  // namespace

void wait_copies(int num_pending) {
  Thread& self = current();
  may_give_way();
  if (num_pending == 0) {
    for (Mbarrier& b : self.block->mbarriers) land_late(b, &self, {"cp_async_wait", __FILE__, __LINE__});
  }
  const auto landing = static_cast<std::ptrdiff_t>(self.group_ends.size()) - num_pending;
  if (landing <= 0) return;
  const std::size_t count = self.group_ends[static_cast<std::size_t>(landing) - 1];
  for (std::size_t i = 0; i < count; ++i) std::memcpy(self.copies[i].destination, self.copies[i].data.data(), self.copies[i].size);
  self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(count));
  self.group_ends.erase(self.group_ends.begin(), self.group_ends.begin() + landing);
  for (std::size_t& end : self.group_ends) end -= count;
}

void init_mbarrier(void* place, int arrivals, const Site& site) {
  check_shared(place, 8, 8, site);
  if (arrivals <= 0) misuse("a barrier for " + std::to_string(arrivals) + " arrivals", site);
  for (const Mbarrier& b : current().block->mbarriers) {
    if (b.place == place) misuse("a barrier has been made here already", site);
  }
  current().block->mbarriers.push_back({.place = place, .expected = arrivals, .made = site, .waiting = {}, .late = {}});
}

void arrive_at_mbarrier(void* place, const Site& site) {
  may_give_way();
  arrive_at(find_mbarrier(place, site), 1, site);
  may_give_way();
}

void arrive_and_expect(void* place, std::int64_t bytes, const Site& site) {
  may_give_way();
  Mbarrier& b = find_mbarrier(place, site);
  b.bytes += bytes;
  arrive_at(b, 1, site);
  may_give_way();
}

void issue_box(void* destination, const void* map, const std::array<std::int32_t, 4>& at, void* barrier, const Site& site) {
  abi::TensorBox tensor;
  std::memcpy(&tensor, map, sizeof(tensor));
  if (tensor.box[0] != 64) misuse("a box of rows that are not 128 bytes", site);
  const std::int64_t rows = std::int64_t{tensor.box[1]} * tensor.box[2] * tensor.box[3];
  check_shared(destination, rows * 128, 128, site);
  Mbarrier& b = find_mbarrier(barrier, site);
  std::byte* shared = current().block->shared;
  const std::int64_t first = static_cast<std::byte*>(destination) - shared;
  LateArrival late{nullptr, {}, rows * 128};
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::array<std::int64_t, 3> x = {at[1] + row % tensor.box[1], at[2] + row / tensor.box[1] % tensor.box[2],
                                           at[3] + row / tensor.box[1] / tensor.box[2]};
    bool inside = true;
    const auto* source = static_cast<const std::byte*>(tensor.data);
    for (std::size_t i = 0; i < x.size(); ++i) {
      inside = inside && x[i] >= 0 && x[i] < tensor.extent[i + 1];
      source += x[i] * tensor.stride[i + 1];
    }
    for (std::int64_t chunk = 0; chunk < 8; ++chunk) {
      const std::int64_t offset = first + row * 128 + chunk * 16;
      PendingCopy copy{shared + (offset ^ ((offset >> 7 & 7) << 4)), 16, {}};
      for (std::int64_t i = 0; i < 8; ++i) {
        const std::int64_t x0 = at[0] + chunk * 8 + i;
        if (inside && x0 >= 0 && x0 < tensor.extent[0]) std::memcpy(&copy.data[static_cast<std::size_t>(2 * i)], source + 2 * x0, 2);
      }
      std::memset(copy.destination, 0xff, copy.size);
      late.copies.push_back(copy);
    }
  }
  b.late.push_back(std::move(late));
  if (!b.waiting.empty()) land_late(b, nullptr, site);  // whoever waits already will not ask again
  may_give_way();
}

void arrive_after_copies(void* place, const Site& site) {
  Thread& self = current();
  Mbarrier& b = find_mbarrier(place, site);
  b.late.push_back({&self, std::move(self.copies), 0});
  self.copies.clear();
  self.group_ends.clear();
  if (!b.waiting.empty()) land_late(b, nullptr, site);  // whoever waits already will not ask again
  may_give_way();
}

void wait_at_mbarrier(void* place, std::uint32_t parity, const Site& site) {
  Thread& self = current();
  may_give_way();
  while (true) {
    Mbarrier& b = find_mbarrier(place, site);
    if ((b.phases & 1U) != parity) return;
    land_late(b, nullptr, site);
    if ((b.phases & 1U) != parity) return;
    b.waiting.push_back(&self);
    self.state = Thread::State::waiting;
    self.site = site;
    self.block->worker->leave(self);
  }
}

}  // namespace girih::emulator
