// The shared memory of a block that works on a row, and what is done in it between passes: the sums of all warps, the list of entries
// inside a bracket, histograms, and the cut among what is listed.
#pragma once

#include "sampling/block.cuh"
#include "sampling/edits.cuh"
#include "sampling/weight.cuh"

namespace girih::sampling {

constexpr int kBins = 2048;
constexpr int kBinsEach = kBins / kThreads;
constexpr int kMaxCluster = 16;
constexpr int kFew = 128;  // entries that are put in order by comparing each with each

/// Sizes by the shared memory that there is.
struct Config {
  int list_capacity;  // entries of Shared's list; a multiple of kThreads
  int tile_bytes;     // 8192 or 16384
  int ring;           // tiles on their way
};

/// Keys in [low, high]; `histogram`: by parts of 2^shift keys instead of a list.
struct Bracket {
  u32 low;
  u32 high;
  int histogram;
  int shift;
};

/// What one warp's pass has added up.
struct WarpSums {
  u64 total;   // mass of all that the floor keeps
  u64 inside;  // amount, with a histogram
  u32 above_count;
  u32 inside_count;
  u32 listed;
  u32 largest;  // key
  u32 nan;
};
/// The same of all blocks and warps.
struct AllSums {
  u64 total;
  u32 above_count;
  u32 inside_count;
  u32 listed;
  u32 largest;
  u32 nan;
  int fits;  // all that is inside is in the list
};

/// Fixed part of a block's shared memory.
template <Config kConfig>
struct Shared {
  static constexpr int kListCapacity = kConfig.list_capacity;
  static constexpr int kSegment = kListCapacity / kWarps;
  static constexpr int kMaxTiles = static_cast<int>(abi::kMaxVocab) * 4 / kConfig.tile_bytes + 2;
  u64 scratch[kWarps];
  Edits edits;
  u32 histogram[kBins * 2];
  u32 tile_mass[kMaxTiles * 2];  // above the bracket, later: of what is kept
  u32 tile_inside[kMaxTiles];
  WarpSums sums[kMaxCluster * kWarps];
  u64 best[kMaxCluster];  // key and position of the largest entry
  u64 few_amount[kFew];
  u32 few_key[kFew];
  i32 few_position[kFew];
  u32 num_few;
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
  // The list: warp w fills, and works on, entries [w kSegment, w kSegment + num_listed[w]).
  i32 num_listed[kWarps];
  u32 list_key[kListCapacity];
  i32 list_position[kListCapacity];
};

/// Calls f(index in the list) for this thread's entries.
template <typename S, typename F>
__device__ __forceinline__ void for_listed(S& s, F f) {
  const int warp = ptx::thread_idx() / ptx::kWarp;
  const int end = warp * S::kSegment + s.num_listed[warp];
#pragma unroll 1
  for (int i = warp * S::kSegment + ptx::lane_idx(); i < end; i += ptx::kWarp) f(i);
}

template <typename S>
__device__ __forceinline__ void clear_histogram(S& s) {
#pragma unroll 1
  for (int i = ptx::thread_idx(); i < kBins * 2; i += kThreads) s.histogram[i] = 0;
}
/// So many keys go into a bin that all kBins of them have width + 1.
__device__ __forceinline__ int shift_for(u32 width) {
  int shift = 0;
  while (width >> shift >= static_cast<u32>(kBins)) ++shift;
  return shift;
}

/// A thread's bins, from the top; returns the sum of those before them.
template <typename S>
__device__ __forceinline__ u64 scan_bins(S& s, u64 (&own)[kBinsEach], u64& total) {
  u64 sum = 0;
  const int top = kBins - 1 - ptx::thread_idx() * kBinsEach;
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) sum += own[i] = read_pair(s.histogram + 2 * (top - i));
  return block_scan(sum, s.scratch, total);
}

/// Finds in the histogram, from the top, the bin where the running sum reaches `need` >= 1; to all threads. Sums before it come back in
/// `above`. -1: all bins amount to less.
template <typename S>
__device__ __attribute__((noinline)) int find_bin(S& s, u64 need, u64& above) {
  u64 own[kBinsEach];
  u64 total = 0;
  u64 before = scan_bins(s, own, total);
  if (total < need) return -1;
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) {
    if (before < need && before + own[i] >= need) {
      s.bin = kBins - 1 - ptx::thread_idx() * kBinsEach - i;
      s.above = before;
    }
    before += own[i];
  }
  ptx::sync_block();
  above = s.above;
  const int bin = s.bin;
  ptx::sync_block();
  return bin;
}

/// Amount of a list entry: its mass, or 1. Entries with key 0 count for nothing.
template <bool kProbs>
__device__ __forceinline__ u64 amount_of(u32 key, bool by_mass, const Weighting& w) {
  if (key == 0) return 0;
  return by_mass ? mass_of<kProbs>(value_of(key), w) : 1;
}

/// The position that ends the first `ties` entries of the list with this key, by position: bisection, as positions are distinct.
template <typename S>
__device__ __attribute__((noinline)) int limit_of_ties(S& s, u32 key, u64 ties) {
  int low = 0;
  int high = static_cast<int>(abi::kMaxVocab);
  while (low < high) {
    const int middle = low + (high - low) / 2;
    int own = 0;
    for_listed(s, [&](int i) { own += s.list_key[i] == key && s.list_position[i] < middle ? 1 : 0; });
    if (block_sum(static_cast<u64>(own), s.scratch) >= ties) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

/// The entries of the list with keys in [low, low + width] as the few, if they are; returns how many there are.
template <bool kProbs, typename S>
__device__ __attribute__((noinline)) int take_few(S& s, u32 low, u32 width, bool by_mass, const Weighting& w) {
  ptx::sync_block();
  if (ptx::thread_idx() == 0) s.num_few = 0;
  ptx::sync_block();
  for_listed(s, [&](int i) {
    const u32 key = s.list_key[i];
    if (key - low > width || key == 0) return;
    const u32 place = ptx::atomic_add_shared(&s.num_few, 1);
    if (place >= static_cast<u32>(kFew)) return;
    s.few_key[place] = key;
    s.few_position[place] = s.list_position[i];
    s.few_amount[place] = amount_of<kProbs>(key, by_mass, w);
  });
  ptx::sync_block();
  return static_cast<int>(s.num_few);
}

/// Block 0: the cut behind the first listed entries with keys in [low, high] that amount to `need` >= 1. False: all of them amount to less.
template <bool kProbs, typename S>
__device__ __attribute__((noinline)) bool cut_listed(S& s, u32 low, u32 high, bool by_mass, u64 need, const Weighting& w, Cut& cut) {
  u32 width = high - low;
  for (;;) {
    const int shift = shift_for(width);
    ptx::sync_block();
    clear_histogram(s);
    ptx::sync_block();
    for_listed(s, [&](int i) {
      const u32 key = s.list_key[i];
      if (key - low <= width && key != 0) add_shared(s.histogram + 2 * ((key - low) >> shift), amount_of<kProbs>(key, by_mass, w));
    });
    ptx::sync_block();
    u64 above = 0;
    const int bin = find_bin(s, need, above);
    if (bin < 0) return false;
    need -= above;
    low += static_cast<u32>(bin) << shift;
    width = (1U << shift) - 1U;
    const int few = take_few<kProbs>(s, low, width, by_mass, w);
    if (few <= kFew) {
      const int own = ptx::thread_idx();
      if (own < few) {
        const u32 key = s.few_key[own];
        const i32 position = s.few_position[own];
        u64 before = 0;
#pragma unroll 1
        for (int i = 0; i < few; ++i) {
          if (s.few_key[i] > key || (s.few_key[i] == key && s.few_position[i] < position)) before += s.few_amount[i];
        }
        if (before < need && before + s.few_amount[own] >= need) s.cut = {key, position + 1};
      }
      ptx::sync_block();
      cut = s.cut;
      ptx::sync_block();
      return true;
    }
    if (width == 0) {
      const u64 each = amount_of<kProbs>(low, by_mass, w);
      cut = {low, limit_of_ties(s, low, (need + each - 1) / each)};
      return true;
    }
  }
}

/// This thread's and its warp's sums to block 0.
template <typename S>
__device__ __attribute__((noinline)) void report_sums(S& leader, WarpSums sums) {
  sums.total = warp_sum(sums.total);
  sums.inside = warp_sum(sums.inside);
  sums.above_count = ptx::sum_warp(sums.above_count);
  sums.inside_count = ptx::sum_warp(sums.inside_count);
  sums.largest = ptx::max_warp(sums.largest);
  if (ptx::lane_idx() == 0) leader.sums[ptx::cluster_rank() * kWarps + ptx::thread_idx() / ptx::kWarp] = sums;
}
/// All of them, to every thread. Between barriers of the cluster.
template <typename S>
__device__ __attribute__((noinline)) AllSums read_sums(const S& leader) {
  static_assert(kWarps == 16);
  AllSums all{};
#pragma unroll 1
  for (int i = ptx::lane_idx(); i < ptx::cluster_size() * kWarps; i += ptx::kWarp) {
    const WarpSums& sums = leader.sums[i];
    all.total += sums.total;
    all.above_count += sums.above_count;
    all.inside_count += sums.inside_count;
    all.listed += sums.listed;
    all.largest = max(all.largest, sums.largest);
    all.nan |= sums.nan;
  }
  // Lanes that are 16 apart have had the same warp of all blocks.
  all.fits = ptx::all(all.listed + ptx::shuffle_xor(all.listed, kWarps) <= static_cast<u32>(S::kSegment)) ? 1 : 0;
  all.total = warp_sum(all.total);
  all.above_count = ptx::sum_warp(all.above_count);
  all.inside_count = ptx::sum_warp(all.inside_count);
  all.listed = ptx::sum_warp(all.listed);
  all.largest = ptx::max_warp(all.largest);
  all.nan = ptx::any(all.nan != 0) ? 1 : 0;
  return all;
}

/// What the warps of other blocks have listed joins the list of the same warp of block 0. It fits.
template <typename S>
__device__ __attribute__((noinline)) void gather(const S& s, S& leader) {
  const int warp = ptx::thread_idx() / ptx::kWarp;
  int before = 0;
  int all = 0;
#pragma unroll 1
  for (int r = 0; r < ptx::cluster_size(); ++r) {
    if (r == ptx::cluster_rank()) before = all;
    all += static_cast<int>(leader.sums[r * kWarps + warp].listed);
  }
  if (ptx::cluster_rank() == 0) {
    if (ptx::lane_idx() == 0) leader.num_listed[warp] = all;
  } else {
    const int count = static_cast<int>(leader.sums[ptx::cluster_rank() * kWarps + warp].listed);
#pragma unroll 1
    for (int i = ptx::lane_idx(); i < count; i += ptx::kWarp) {
      leader.list_key[warp * S::kSegment + before + i] = s.list_key[warp * S::kSegment + i];
      leader.list_position[warp * S::kSegment + before + i] = s.list_position[warp * S::kSegment + i];
    }
  }
  sync_row();
}

}  // namespace girih::sampling
