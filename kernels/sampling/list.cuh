// The shared memory of a block that works on a row, and what is done in it between passes: the sums of all warps, the list of entries
// inside a bracket, histograms, and the cut among what is listed.
#pragma once

#include "sampling/block.cuh"
#include "sampling/edits.cuh"
#include "sampling/weight.cuh"

namespace girih::sampling {

constexpr int kMaxCluster = 16;
constexpr int kFew = 128;  // entries that are put in order by comparing each with each

/// Sizes by the shared memory that there is.
struct Config {
  int list_capacity;     // entries of Shared's list; a multiple of kThreads
  int tile_bytes;        // 8192 or 16384
  int ring;              // tiles on their way
  int bins;              // of histograms
  bool compact = false;  // short code for passes over the row and the list, of kernels that make few
};

/// Keys in [low, high]; `histogram`: by parts of 2^shift keys instead of a list.
struct Bracket {
  u32 low;
  u32 high;
  int histogram;
  int shift;
};

/// What a pass has added up: of a thread, a warp, a block, and in the end of all.
struct Sums {
  u64 total;   // mass of all that the floor keeps
  u64 inside;  // amount, with a histogram
  u32 above_count;
  u32 inside_count;
  u32 largest;  // key
  u32 nan;
};

/// Fixed part of a block's shared memory.
template <Config kConfig>
struct Shared {
  static constexpr int kListCapacity = kConfig.list_capacity;
  static constexpr bool kCompact = kConfig.compact;
  static constexpr int kOwn =
      kListCapacity * 5 / 6 / kThreads;  // of the list: entries of each thread; the rest is for what they do not hold
  static constexpr int kSpill = kListCapacity - kOwn * kThreads;
  static constexpr int kMaxTiles = static_cast<int>(abi::kMaxVocab) * 4 / kConfig.tile_bytes + 2;
  static constexpr int kBins = kConfig.bins;
  static constexpr int kBinsEach = kBins / kThreads;
  static constexpr int kBinBits = kBins == 2048 ? 11 : 10;
  static_assert(kBins == 1 << kBinBits);
  u64 scratch[kWarps];
  Edits edits;
  u32 histogram[kBins * 2];
  u32 tile_mass[kMaxTiles * 2];  // above the bracket, later: of what is kept
  u32 tile_inside[kMaxTiles];
  Sums warp_sums[kWarps];
  Sums sums[kMaxCluster];  // of all blocks, in each
  u64 best[kMaxCluster];   // key and position of the largest entry
  u64 few_amount[kFew];
  u32 few_key[kFew];
  i32 few_position[kFew];
  u32 num_few;
  u32 peak;  // key of the largest entry that a pass has seen so far
  Bracket bracket;
  Cut cut;
  int found;
  int listed;  // the list holds all keys in [listed_low, listed_high],
  int summed;  // and tile_mass what is above
  u32 listed_low;
  u32 listed_high;
  u64 above;
  int bin;
  int tile;
  u64 left;
  int position;
  float value;
  // The list: entry i of thread t at i kThreads + t, and what does not fit there behind all of them.
  i32 num_listed[kThreads];
  u32 num_spilled;
  u32 list_key[kListCapacity];
  i32 list_position[kListCapacity];
};

/// This block's.
template <typename S>
__device__ __forceinline__ S& own() {
  return *reinterpret_cast<S*>(ptx::shared_memory());
}

/// Calls f(index in the list, key) for this thread's entries.
template <typename S, typename F>
__device__ __forceinline__ void for_listed(F f) {
  constexpr int kBatch = 4;
  S& s = own<S>();
  const int listed = s.num_listed[ptx::thread_idx()];
  if constexpr (S::kCompact) {
    const int all = listed + max(static_cast<int>(s.num_spilled) - ptx::thread_idx() + kThreads - 1, 0) / kThreads;
#pragma unroll 1
    for (int i = 0; i < all; ++i) {
      const int at = (i < listed ? i : S::kOwn + i - listed) * kThreads + ptx::thread_idx();
      f(at, s.list_key[at]);
    }
    return;
  }
#pragma unroll 1
  for (int first = 0; first < listed; first += kBatch) {
    u32 key[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) key[i] = s.list_key[min(first + i, S::kOwn - 1) * kThreads + ptx::thread_idx()];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i < listed) f((first + i) * kThreads + ptx::thread_idx(), key[i]);
    }
  }
#pragma unroll 1
  for (int i = ptx::thread_idx(); i < static_cast<int>(s.num_spilled); i += kThreads)
    f(S::kOwn * kThreads + i, s.list_key[S::kOwn * kThreads + i]);
}

/// A bitonic sort of `count` entries, by the order or by position. There is room for a power of two of them.
__device__ __forceinline__ void sort_entries(u32* s_keys, i32* s_positions, int count, bool by_position) {
  int size = 2;
#pragma unroll 1
  while (size < count) size *= 2;
#pragma unroll 1
  for (int i = count + ptx::thread_idx(); i < size; i += kThreads) {
    s_keys[i] = 0;
    s_positions[i] = 0x7fffffff;
  }
  for (int width = 2; width <= size; width *= 2) {
    for (int distance = width / 2; distance > 0; distance /= 2) {
      ptx::sync_block();
#pragma unroll 1
      for (int i = ptx::thread_idx(); i < size / 2; i += kThreads) {
        const int low = 2 * i - (i & (distance - 1));
        const int high = low + distance;
        const bool ascending = (low & width) == 0;
        const u32 a = s_keys[low], b = s_keys[high];
        const i32 x = s_positions[low], y = s_positions[high];
        const bool before = by_position || a == b ? x < y : a > b;
        if (before != ascending) {
          s_keys[low] = b;
          s_keys[high] = a;
          s_positions[low] = y;
          s_positions[high] = x;
        }
      }
    }
  }
  ptx::sync_block();
}

/// To the list of block 0 (`to`), whose threads have had `before` entries.
template <typename S>
__device__ __forceinline__ void append(S& to, int before, u32 key, i32 position) {
  int at = before * kThreads + ptx::thread_idx();
  if (before >= S::kOwn) {
    const u32 place = ptx::atomic_add_shared(&to.num_spilled, 1);
    if (place >= static_cast<u32>(S::kSpill)) return;
    at = S::kOwn * kThreads + static_cast<int>(place);
  }
  to.list_key[at] = key;
  to.list_position[at] = position;
}

template <typename S>
__device__ __forceinline__ void clear_histogram(S& s) {
#pragma unroll 1
  for (int i = ptx::thread_idx(); i < S::kBins * 2; i += kThreads) s.histogram[i] = 0;
}
/// So many keys go into a bin that all of them have width + 1.
template <typename S>
__device__ __forceinline__ int shift_for(u32 width) {
  return max(32 - ptx::leading_zeros(width) - S::kBinBits, 0);
}

/// A thread's bins, from the top, and the sum of those before them.
template <typename S>
__device__ __forceinline__ Scan scan_bins(u64 (&own)[S::kBinsEach]) {
  const S& s = sampling::own<S>();
  u64 sum = 0;
  const int top = S::kBins - 1 - ptx::thread_idx() * S::kBinsEach;
#pragma unroll
  for (int i = 0; i < S::kBinsEach; ++i) sum += own[i] = read_pair(s.histogram + 2 * (top - i));
  return block_scan(sum);
}

/// The bin where the running sum from the top reaches `need` >= 1, and what those before it amount to; to all threads. -1: all amount to
/// less.
struct Bin {
  int bin;
  u64 above;
};
template <typename S>
__device__ __attribute__((noinline)) Bin find_bin(u64 need) {
  S& s = own<S>();
  u64 bins[S::kBinsEach];
  const Scan scan = scan_bins<S>(bins);
  if (scan.total < need) return {-1, 0};
  u64 before = scan.before;
#pragma unroll
  for (int i = 0; i < S::kBinsEach; ++i) {
    if (before < need && before + bins[i] >= need) {
      s.bin = S::kBins - 1 - ptx::thread_idx() * S::kBinsEach - i;
      s.above = before;
    }
    before += bins[i];
  }
  ptx::sync_block();
  const Bin found{s.bin, s.above};
  ptx::sync_block();
  return found;
}

/// Over the lanes up to this one.
__device__ __forceinline__ u64 inclusive(u64 value) {
#pragma unroll
  for (int distance = 1; distance < ptx::kWarp; distance *= 2) {
    const u64 other = shuffle(value, max(ptx::lane_idx() - distance, 0));
    if (ptx::lane_idx() >= distance) value += other;
  }
  return value;
}

/// The histograms of all blocks of a cluster, a thread's two bins from the top, with what the warps before this one, it and all have.
struct MergedBins {
  u64 bins[2];
  u64 before;
  u64 here;
  u64 total;
};
template <typename S>
__device__ __attribute__((noinline)) MergedBins merged_bins() {
  static_assert(S::kBinsEach == 2);  // one access has both
  S& s = own<S>();
  const int size = ptx::cluster_size();
  MergedBins b{};
#pragma unroll 4
  for (int i = 0; i < size; ++i) {
    const S& from = size == 1 ? s : *ptx::in_block(&s, ptx::cluster_rank() ^ i);  // not all of the same at once
    const Vec16 two = *reinterpret_cast<const Vec16*>(from.histogram + 2 * (S::kBins - 2 - ptx::thread_idx() * S::kBinsEach));
    b.bins[0] += static_cast<u64>(two.x[3]) << 32 | two.x[2];
    b.bins[1] += static_cast<u64>(two.x[1]) << 32 | two.x[0];
  }
  b.here = warp_sum(b.bins[0] + b.bins[1]);
  const int warp = ptx::thread_idx() / ptx::kWarp;
  const int lane = ptx::lane_idx();
  if (lane == 0) s.scratch[warp] = b.here;
  ptx::sync_block();
  const u64 other = lane < kWarps ? s.scratch[lane] : 0;
  b.before = warp_sum(lane < warp ? other : 0);
  b.total = warp_sum(other);
  return b;
}

/// Where the running sum from the top reaches `need` >= 1.
struct FoundBin {
  int bin;  // -1: all amount to less
  u64 above;
  u64 amount;
};
template <typename S>
__device__ __attribute__((noinline)) FoundBin search_bins(MergedBins b, u64 need) {
  S& s = own<S>();
  if (b.total < need) return {-1, b.total, 0};
  if (b.before < need && need <= b.before + b.here) {
    u64 before = b.before + inclusive(b.bins[0] + b.bins[1]) - b.bins[0] - b.bins[1];
#pragma unroll
    for (int i = 0; i < S::kBinsEach; ++i) {
      if (before < need && before + b.bins[i] >= need) {
        s.bin = S::kBins - 1 - ptx::thread_idx() * S::kBinsEach - i;
        s.above = before;
        s.amount = b.bins[i];
      }
      before += b.bins[i];
    }
  }
  ptx::sync_block();
  const FoundBin found{s.bin, s.above, s.amount};
  ptx::sync_block();
  return found;
}

/// Amount of a list entry: its mass, or 1. Entries with key 0 count for nothing.
template <bool kProbs>
__device__ __forceinline__ u64 amount_of(u32 key, bool by_mass, const Weighting& w) {
  if (key == 0) return 0;
  return by_mass ? mass_of<kProbs>(value_of(key), w) : 1;
}

/// The position that ends the first `ties` entries of the list with this key, by position: bisection, as positions are distinct.
template <typename S>
__device__ __attribute__((noinline)) int limit_of_ties(u32 key, u64 ties) {
  int low = 0;
  int high = static_cast<int>(abi::kMaxVocab);
  while (low < high) {
    const int middle = low + (high - low) / 2;
    int before = 0;
    for_listed<S>([&](int i, u32 k) { before += k == key && own<S>().list_position[i] < middle ? 1 : 0; });
    if (block_sum(static_cast<u64>(before)) >= ties) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

/// The entries of the list with keys in [low, low + width] as the few, if they are; returns how many there are.
template <bool kProbs, typename S>
__device__ __attribute__((noinline)) int take_few(u32 low, u32 width, bool by_mass, const Weighting& w) {
  S& s = own<S>();
  ptx::sync_block();
  if (ptx::thread_idx() == 0) s.num_few = 0;
  ptx::sync_block();
  for_listed<S>([&](int i, u32 key) {
    if (key - low > width || key == 0) return;
    const u32 place = ptx::atomic_add_shared(&s.num_few, 1);
    if (place >= static_cast<u32>(kFew)) return;
    s.few_key[place] = key;
    s.few_position[place] = s.list_position[i];
  });
  ptx::sync_block();
  const int few = static_cast<int>(s.num_few);
  if (few <= kFew && ptx::thread_idx() < few) s.few_amount[ptx::thread_idx()] = amount_of<kProbs>(s.few_key[ptx::thread_idx()], by_mass, w);
  ptx::sync_block();
  return few;
}

/// Block 0: the cut behind the first listed entries with keys in [low, high] that amount to `need` >= 1. False: all of them amount to less.
template <bool kProbs, typename S>
__device__ __attribute__((noinline)) bool cut_listed(u32 low, u32 high, bool by_mass, u64 need, const Weighting& weighting, Cut& cut) {
  S& s = own<S>();
  const Weighting w = weighting;
  u32 width = high - low;
  for (;;) {
    const int shift = shift_for<S>(width);
    ptx::sync_block();
    clear_histogram(s);
    ptx::sync_block();
    for_listed<S>([&](int, u32 key) {
      if (key - low <= width && key != 0) add_shared(s.histogram + 2 * ((key - low) >> shift), amount_of<kProbs>(key, by_mass, w));
    });
    ptx::sync_block();
    const Bin found = find_bin<S>(need);
    if (found.bin < 0) return false;
    need -= found.above;
    low += static_cast<u32>(found.bin) << shift;
    width = (1U << shift) - 1U;
    const int few = take_few<kProbs, S>(low, width, by_mass, w);
    if (few <= kFew) {
      const int t = ptx::thread_idx();
      if (t < few) {
        const u32 key = s.few_key[t];
        const i32 position = s.few_position[t];
        u64 before = 0;
#pragma unroll 1
        for (int i = 0; i < few; ++i) {
          const bool first = (s.few_key[i] > key) | ((s.few_key[i] == key) & (s.few_position[i] < position));
          before += first ? s.few_amount[i] : 0;
        }
        if (before < need && before + s.few_amount[t] >= need) s.cut = {key, position + 1};
      }
      ptx::sync_block();
      cut = s.cut;
      ptx::sync_block();
      return true;
    }
    if (width == 0) {
      const u64 each = amount_of<kProbs>(low, by_mass, w);
      cut = {low, limit_of_ties<S>(low, (need + each - 1) / each)};
      return true;
    }
  }
}

__device__ __forceinline__ Sums warp_sums(Sums sums) {
  sums.total = warp_sum(sums.total);
  sums.inside = warp_sum(sums.inside);
  sums.above_count = ptx::sum_warp(sums.above_count);
  sums.inside_count = ptx::sum_warp(sums.inside_count);
  sums.largest = ptx::max_warp(sums.largest);
  sums.nan = ptx::max_warp(sums.nan);
  return sums;
}
/// The sums of all threads of all blocks, to all. A block's go to each other, so that only writes cross; a barrier of the cluster is in it.
template <typename S>
__device__ __attribute__((noinline)) Sums all_sums(const Sums& thread) {
  S& s = own<S>();
  const int warp = ptx::thread_idx() / ptx::kWarp;
  const int lane = ptx::lane_idx();
  const int size = ptx::cluster_size();
  Sums sums = warp_sums(thread);
  if (lane == 0) s.warp_sums[warp] = sums;
  ptx::sync_block();
  if (warp < size) {
    sums = warp_sums(lane < kWarps ? s.warp_sums[lane] : Sums{});
    S& to = size == 1 ? s : *ptx::in_block(&s, warp);
    if (lane == 0) to.sums[ptx::cluster_rank()] = sums;
  }
  sync_row();
  return size == 1 ? s.sums[0] : warp_sums(lane < size ? s.sums[lane] : Sums{});
}

/// What other blocks have listed joins the list of block 0.
template <typename S>
__device__ __attribute__((noinline)) void gather(S& leader) {
  if (ptx::cluster_size() == 1) return;
  const S& s = own<S>();
  const int count = s.num_listed[ptx::thread_idx()];
  if (ptx::cluster_rank() != 0 && count > 0) {
    const int before =
        static_cast<int>(ptx::atomic_add_shared(reinterpret_cast<u32*>(&leader.num_listed[ptx::thread_idx()]), static_cast<u32>(count)));
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const int at = i * kThreads + ptx::thread_idx();
      append(leader, before + i, s.list_key[at], s.list_position[at]);
    }
  }
  sync_row();
  if (ptx::cluster_rank() == 0) leader.num_listed[ptx::thread_idx()] = min(leader.num_listed[ptx::thread_idx()], S::kOwn);
  sync_row();
}

}  // namespace girih::sampling
