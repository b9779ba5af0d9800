// Where a row's order is cut, exactly and in a bounded number of passes. A sample of the row (or what an earlier pass has learnt) gives a
// bracket of keys in which the cut should lie. A pass adds up what is above the bracket and lists what is inside; then the cut is found in
// the list. Should the cut lie elsewhere, or the list not hold all, the next pass takes the other side, or cuts the bracket into 2048
// parts by a histogram. So at most eight passes, and one where the sample was right.
// The blocks of a cluster share a row: block 0 has the list, the sums of tiles and decides; the others add to its shared memory.
#pragma once

#include "sampling/row.cuh"

namespace girih::sampling {

constexpr int kBins = 2048;
constexpr int kMaxCluster = 16;

/// Keys in [low, high]; `histogram`: by parts of 2^shift keys instead of a list.
struct Bracket {
  u32 low;
  u32 high;
  int histogram;
  int shift;
};

/// What one block's pass has added up.
struct PassSums {
  u64 total;  // mass of all that the floor keeps
  u64 inside_mass;
  u64 above_count;
  u64 inside_count;
};

/// Fixed part of a block's shared memory.
template <Config kConfig>
struct Shared {
  static constexpr int kListCapacity = kConfig.list_capacity;
  static constexpr int kMaxTiles = static_cast<int>(abi::kMaxVocab) * 4 / kConfig.tile_bytes + 2;
  u64 scratch[kWarps];
  u32 histogram[kBins * 2];
  u32 tile_mass[kMaxTiles * 2];  // above the bracket, later: of what is kept
  u32 tile_inside[kMaxTiles];
  PassSums sums[kMaxCluster];
  u64 best[kMaxCluster];  // key and position of the largest entry
  u32 nan[kMaxCluster];
  Bracket bracket;
  Cut cut;
  int found;
  int listed;  // the list holds all keys in [listed_low, listed_high],
  int summed;  // and tile_mass what is above
  u32 listed_low;
  u32 listed_high;
  u32 num_listed;
  u32 num_kept;
  u64 above;
  u32 bin;
  int tile;
  u64 left;
  int position;
  float value;
  u32 list_key[kListCapacity];
  i32 list_position[kListCapacity];
};

/// Finds in the histogram, from the top, the bin where the running sum reaches `need`; to all threads. Sums before it come back in `above`.
/// The bins amount to at least that much.
template <typename S>
__device__ __attribute__((noinline)) int find_bin(S& s, u64 need, u64& above) {
  constexpr int kPerThread = kBins / kThreads;
  u64 own[kPerThread];
  u64 sum = 0;
  const int top = kBins - 1 - ptx::thread_idx() * kPerThread;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) sum += own[i] = read_pair(s.histogram + 2 * (top - i));
  u64 total = 0;
  u64 before = block_scan(sum, s.scratch, total);
  if (before < need && before + sum >= need) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (before < need && before + own[i] >= need) {
        s.bin = static_cast<u32>(top - i);
        s.above = before;
      }
      before += own[i];
    }
  }
  ptx::sync_block();
  above = s.above;
  return static_cast<int>(s.bin);
}

template <typename S>
__device__ __forceinline__ void clear_histogram(S& s) {
  for (int i = ptx::thread_idx(); i < kBins * 2; i += kThreads) s.histogram[i] = 0;
}

/// Amount of a list entry: its mass, or 1. Entries with key 0 count for nothing.
template <bool kProbs>
__device__ __forceinline__ u64 amount_of(u32 key, bool by_mass, const Weighting& w) {
  if (key == 0) return 0;
  return by_mass ? mass_of<kProbs>(value_of(key), w) : 1;
}

/// The key at which the first `count` entries of the list, taken in the order, amount to `need` or more; they do so together. `above`
/// receives what larger keys amount to.
template <bool kProbs, typename S>
__device__ __attribute__((noinline)) u32 select_listed(S& s, int count, bool by_mass, u64 need, const Weighting& w, u64& above) {
  constexpr int kShifts[3] = {21, 10, 0};
  u32 prefix = 0;
  above = 0;
#pragma unroll 1
  for (int level = 0; level < 3; ++level) {
    const int shift = kShifts[level];
    ptx::sync_block();
    clear_histogram(s);
    ptx::sync_block();
    for (int i = ptx::thread_idx(); i < count; i += kThreads) {
      const u32 key = s.list_key[i];
      if (level > 0 && key >> kShifts[level - 1] != prefix) continue;
      const u32 bin = level == 0 ? key >> shift : (key >> shift) & ((1U << (kShifts[level - 1] - shift)) - 1U);
      const u64 amount = amount_of<kProbs>(key, by_mass, w);
      if (amount != 0) add_shared(s.histogram + 2 * bin, amount);
    }
    ptx::sync_block();
    u64 before = 0;
    const int bin = find_bin(s, need - above, before);
    above += before;
    prefix = level == 0 ? static_cast<u32>(bin) : prefix << (kShifts[level - 1] - shift) | static_cast<u32>(bin);
  }
  return prefix;
}

/// The position that ends the first `ties` entries of the list with this key, by position.
template <typename S>
__device__ __attribute__((noinline)) int limit_of_ties(S& s, int count, u32 key, u64 ties) {
  int own = 0;
  for (int i = ptx::thread_idx(); i < count; i += kThreads) own += s.list_key[i] == key ? 1 : 0;
  if (static_cast<u64>(block_sum(static_cast<u64>(own), s.scratch)) <= ties) return 0x7fffffff;
  // Bisection: positions are distinct, so some limit has exactly that many before it.
  int low = 0;
  int high = static_cast<int>(abi::kMaxVocab);
  while (low < high) {
    const int middle = low + (high - low) / 2;
    own = 0;
    for (int i = ptx::thread_idx(); i < count; i += kThreads) own += s.list_key[i] == key && s.list_position[i] < middle ? 1 : 0;
    if (block_sum(static_cast<u64>(own), s.scratch) >= ties) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

/// The cut in the list: its first entries that amount to `need`, `above` them already. Block 0 only.
template <bool kProbs, typename S>
__device__ __forceinline__ Cut cut_listed(S& s, int count, bool by_mass, u64 need, u64 above, const Weighting& w) {
  u64 listed_above = 0;
  const u32 key = select_listed<kProbs>(s, count, by_mass, need - above, w, listed_above);
  const u64 each = amount_of<kProbs>(key, by_mass, w);
  const u64 ties = (need - above - listed_above + each - 1) / each;
  return {key, limit_of_ties(s, count, key, ties)};
}

/// The larger part of the work: a row's cuts. Reader: RowReader.
template <typename Reader, typename S, bool kProbs>
struct Selector {
  static constexpr int kListCapacity = S::kListCapacity;
  static constexpr int kMaxTiles = S::kMaxTiles;

  Reader& reader;
  S& s;       // this block's
  S& leader;  // block 0's
  Weighting w;
  Cut floor;        // what earlier cuts keep
  int num_sampled;  // entries of the sample in block 0's list; 0: none
  float sampled_part;

  __device__ __forceinline__ bool leads() const { return ptx::cluster_rank() == 0; }

  /// Before every pass: sums are cleared before any block can add to another's.
  __device__ __forceinline__ void prepare() {
    for (int i = ptx::thread_idx(); i < reader.num_tiles() * 2; i += kThreads) s.tile_mass[i] = 0;
    for (int i = ptx::thread_idx(); i < reader.num_tiles(); i += kThreads) s.tile_inside[i] = 0;
    clear_histogram(s);
    ptx::sync_cluster();
  }

  /// One pass under a bracket. kMass: masses are added up, else entries are only counted.
  template <bool kMass>
  __device__ __attribute__((noinline)) void pass(const Bracket& b) {
    // Copies that no store to shared memory can change: they stay in registers.
    Reader rows = reader;
    S& own = *reinterpret_cast<S*>(ptx::shared_memory());
    S& first = leader;
    const Weighting weighting = w;
    const Cut kept = floor;
    const bool plain = kept.key == abi::kKeyOfMinusInf && kept.limit == 0;  // what it leaves out has no mass and is in no bracket
    const u32 low = b.low;
    const u32 high = b.high;
    const u32 width = high - low;
    const int shift = b.shift;
    const bool histogram = b.histogram != 0;
    u64 total = 0;
    u64 inside_mass = 0;
    u64 tile_above = 0;
    u32 above_count = 0;
    u32 inside_count = 0;
    u32 tile_inside = 0;
    rows.pass(
        [&](int, int position, auto& x) {
          constexpr int kItems = Reader::kItems;
          if (!plain) {
#pragma unroll
            for (int e = 0; e < kItems; ++e) {
              if (!kept.keeps(key_of(x[e]), position + e)) x[e] = -kInfinity;
            }
          }
#pragma unroll
          for (int e = 0; e < kItems; ++e) {
            const u32 key = key_of(x[e]);
            const bool above = key > high;
            u64 mass = 0;
            if constexpr (kMass) {
              mass = mass_of<kProbs>(x[e], weighting);
              total += mass;
              tile_above += above ? mass : 0;
            }
            above_count += above ? 1 : 0;
            if (key - low <= width && high != 0) {
              ++tile_inside;
              inside_mass += mass;
              if (histogram) {
                add_shared(own.histogram + 2 * ((key - low) >> shift), kMass ? mass : 1);
              } else if (width != 0) {
                const u32 at = ptx::atomic_add_shared(&first.num_listed, 1);
                if (at < static_cast<u32>(kListCapacity)) {
                  first.list_key[at] = key;
                  first.list_position[at] = position + e;
                }
              }
            }
          }
        },
        [&](int tile) {
          if (ptx::any(tile_above != 0)) {
            const u64 mass = warp_sum(tile_above);
            if (ptx::lane_idx() == 0) add_shared(own.tile_mass + 2 * tile, mass);
          }
          if (ptx::any(tile_inside != 0)) {
            const u64 inside = warp_sum(tile_inside);
            if (ptx::lane_idx() == 0) ptx::atomic_add_shared(own.tile_inside + tile, static_cast<u32>(inside));
          }
          inside_count += tile_inside;
          tile_above = 0;
          tile_inside = 0;
        });
    reader.passed(rows);
    const PassSums sums{total, inside_mass, above_count, inside_count};
    report(sums, b);
  }

  /// A block's sums, tiles and bins to block 0.
  __device__ __forceinline__ void report(PassSums sums, const Bracket& b) {
    sums.total = block_sum(sums.total, s.scratch);
    sums.inside_mass = block_sum(sums.inside_mass, s.scratch);
    sums.above_count = block_sum(sums.above_count, s.scratch);
    sums.inside_count = block_sum(sums.inside_count, s.scratch);
    if (ptx::thread_idx() == 0) leader.sums[ptx::cluster_rank()] = sums;
    if (!leads()) {
      for (int i = reader.first_tile() + ptx::thread_idx(); i < reader.last_tile(); i += kThreads) {
        leader.tile_mass[2 * i] = s.tile_mass[2 * i];
        leader.tile_mass[2 * i + 1] = s.tile_mass[2 * i + 1];
        leader.tile_inside[i] = s.tile_inside[i];
      }
      if (b.histogram != 0) {
        for (int i = ptx::thread_idx(); i < kBins; i += kThreads) {
          const u64 sum = read_pair(s.histogram + 2 * i);
          if (sum != 0) add_shared(leader.histogram + 2 * i, sum);
        }
      }
    }
    ptx::sync_cluster();
  }

  /// Block 0, after a pass: sums over blocks.
  __device__ __forceinline__ PassSums all_sums() const {
    PassSums all{};
    for (int r = 0; r < ptx::cluster_size(); ++r) {
      all.total += s.sums[r].total;
      all.inside_mass += s.sums[r].inside_mass;
      all.above_count += s.sums[r].above_count;
      all.inside_count += s.sums[r].inside_count;
    }
    return all;
  }
  __device__ __forceinline__ u64 mass_above() {
    u64 sum = 0;
    for (int i = ptx::thread_idx(); i < reader.num_tiles(); i += kThreads) sum += read_pair(s.tile_mass + 2 * i);
    return block_sum(sum, s.scratch);
  }

  /// Whether a pass under the bracket would fill the list too far for a list to be of use; from the sample.
  __device__ __attribute__((noinline)) bool is_long(u32 low, u32 high) {
    u64 inside = 0;
    for (int i = ptx::thread_idx(); i < num_sampled; i += kThreads) inside += s.list_key[i] >= low && s.list_key[i] <= high ? 1 : 0;
    inside = block_sum(inside, s.scratch);
    return static_cast<float>(inside) > static_cast<float>(kListCapacity) * 0.8F * sampled_part;
  }

  static __device__ __attribute__((noinline)) Bracket with_histogram(u32 low, u32 high) {
    const u32 width = high - low;  // 2048 parts of 2^shift keys cover width + 1
    int shift = 0;
    while (width >> shift >= static_cast<u32>(kBins)) ++shift;
    return {low, high, 1, shift};
  }

  /// Block 0: the first bracket for the first `count` of the order, from the sample.
  __device__ __attribute__((noinline)) Bracket bracket_by_count(u64 count) {
    const u32 least = floor.key + (floor.limit > 0 ? 0U : 1U);
    if (num_sampled == 0) return {least, abi::kKeyOfInf, 0, 0};
    const float expected = static_cast<float>(count) * sampled_part;
    const float margin = 4.0F * sqrt(expected) + 8.0F;
    u64 valid = 0;
    for (int i = ptx::thread_idx(); i < num_sampled; i += kThreads) valid += s.list_key[i] >= least ? 1 : 0;
    valid = block_sum(valid, s.scratch);
    u32 low = least;
    u32 high = abi::kKeyOfInf;
    u64 above = 0;
    const u64 low_rank = static_cast<u64>(expected + margin);
    if (low_rank < valid) low = max(least, select_listed<kProbs>(s, num_sampled, false, low_rank, w, above));
    if (is_long(low, high) && expected > margin + 1.0F) {
      const u64 high_rank = static_cast<u64>(expected - margin);
      if (high_rank <= valid) high = select_listed<kProbs>(s, num_sampled, false, high_rank, w, above);
    }
    if (high < low) high = low;
    return low != high && is_long(low, high) ? with_histogram(low, high) : Bracket{low, high, 0, 0};
  }

  /// Block 0: the first bracket for the part p of the mass, from the sample.
  __device__ __attribute__((noinline)) Bracket bracket_by_mass(float p) {
    const u32 least = floor.key + (floor.limit > 0 ? 0U : 1U);
    if (num_sampled == 0) return {least, abi::kKeyOfInf, 0, 0};
    u64 total = 0;
    u64 squares = 0;  // of masses in units of 2^-24: only their size matters
    for (int i = ptx::thread_idx(); i < num_sampled; i += kThreads) {
      if (s.list_key[i] < least) continue;
      const u64 mass = mass_of<kProbs>(value_of(s.list_key[i]), w);
      total += mass;
      squares += (mass >> 19) * (mass >> 19);
    }
    total = block_sum(total, s.scratch);
    squares = block_sum(squares, s.scratch);
    u32 low = least;
    u32 high = abi::kKeyOfInf;
    if (total > 0 && squares > 0) {
      const float whole = static_cast<float>(total >> 19);
      const float spread = 4.0F * sqrt(p * (1.0F - p) * static_cast<float>(squares)) / whole + 1e-3F;
      u64 above = 0;
      if (p + spread < 1.0F)
        low = max(least, select_listed<kProbs>(s, num_sampled, true, abi::mass_needed(total, bits_of(p + spread)), w, above));
      if (p - spread > 0.0F) high = select_listed<kProbs>(s, num_sampled, true, abi::mass_needed(total, bits_of(p - spread)), w, above);
    }
    if (high < low) high = low;
    return low != high && is_long(low, high) ? with_histogram(low, high) : Bracket{low, high, 0, 0};
  }

  /// Block 0, after a pass: the cut, or the next bracket.
  template <bool kByMass>
  __device__ __attribute__((noinline)) void decide(const Bracket& b, u64 need, u64 above, u64 inside, const PassSums& all) {
    const u32 least = floor.key + (floor.limit > 0 ? 0U : 1U);
    int found = 0;
    Cut cut{};
    Bracket next = b;
    if (need > above + inside && b.low <= least) {  // everything is kept
      found = 1;
      cut = floor;
    } else if (need <= above) {
      next = with_histogram(b.high + 1, abi::kKeyOfInf);
    } else if (need > above + inside) {
      next = with_histogram(least, b.low - 1);
    } else if (b.low == b.high) {
      found = 1;
      const u64 each = amount_of<kProbs>(b.low, kByMass, w);
      const u64 ties = (need - above + each - 1) / each;
      cut = {b.low, limit_by_tiles(b.low, ties)};
    } else if (b.histogram != 0) {
      u64 before = 0;
      const u32 bin = static_cast<u32>(find_bin(s, need - above, before));
      const u32 low = b.low + (bin << b.shift);
      const u32 high = min(low + ((1U << b.shift) - 1U), b.high);
      const u64 part = kByMass ? ~u64{0} : read_pair(s.histogram + 2 * bin);
      next = b.shift > 0 && !kByMass && part > static_cast<u64>(kListCapacity) ? with_histogram(low, high) : Bracket{low, high, 0, 0};
    } else if (all.inside_count > static_cast<u64>(kListCapacity)) {
      next = with_histogram(b.low, b.high);
    } else {
      found = 1;
      cut = cut_listed<kProbs>(s, static_cast<int>(all.inside_count), kByMass, need, above, w);
    }
    ptx::sync_block();
    if (ptx::thread_idx() == 0) {
      s.found = found;
      s.cut = cut;
      s.bracket = next;
      if (found == 0) s.num_listed = 0;
    }
  }

  /// Block 0, where a bracket is one key: the position that ends its first `ties` entries.
  __device__ __attribute__((noinline)) int limit_by_tiles(u32 key, u64 ties) {
    if (ptx::thread_idx() == 0) {
      u64 left = ties;
      int tile = 0;
      while (tile < reader.num_tiles() && left > s.tile_inside[tile]) left -= s.tile_inside[tile++];
      s.tile = tile;
      s.left = left;
    }
    ptx::sync_block();
    const int tile = s.tile;
    if (tile >= reader.num_tiles()) return 0x7fffffff;
    find_in_tile(tile, s.left - 1, [&](float x, int position) { return key_of(x) == key && floor.keeps(key, position) ? u64{1} : u64{0}; });
    return s.position + 1;
  }

  /// Block 0: of a tile's entries in order, the first whose amount brings the sum above `left`; into s.position and s.value.
  template <typename Amount>
  __device__ __forceinline__ void find_in_tile(int tile, u64 left, Amount amount) {
    float own[Reader::kChunks][Reader::kItems];
    reader.read_tile(tile, own);
    u64 before_round = 0;
#pragma unroll 1
    for (int c = 0; c < Reader::kChunks; ++c) {
      const int first = reader.first_entry(tile) + (ptx::thread_idx() + c * kThreads) * Reader::kItems;
      u64 sum = 0;
#pragma unroll
      for (int e = 0; e < Reader::kItems; ++e) sum += amount(own[c][e], first + e);
      u64 total = 0;
      u64 before = before_round + block_scan(sum, s.scratch, total);
      if (before <= left && left < before + sum) {
#pragma unroll
        for (int e = 0; e < Reader::kItems; ++e) {
          const u64 each = amount(own[c][e], first + e);
          if (before <= left && left < before + each) {
            s.position = first + e;
            s.value = own[c][e];
          }
          before += each;
        }
      }
      before_round += total;
    }
    ptx::sync_block();
  }

  /// Block 0: the cut where the list of the last pass has all that `floor` keeps.
  __device__ __attribute__((noinline)) Cut find_listed(bool by_mass, u64 count, float p, u64 whole) {
    const int listed = static_cast<int>(s.num_listed);
    u64 all = 0;
    for (int i = ptx::thread_idx(); i < listed; i += kThreads) {
      if (!floor.keeps(s.list_key[i], s.list_position[i])) s.list_key[i] = 0;
      all += amount_of<kProbs>(s.list_key[i], by_mass, w);
    }
    all = block_sum(all, s.scratch);
    const u64 need = by_mass ? abi::mass_needed(whole != 0 ? whole : all, bits_of(p)) : count;
    return need > all ? floor : cut_listed<kProbs>(s, listed, by_mass, need, 0, w);
  }

  /// Whether that is so: known to all blocks, between barriers of the cluster.
  __device__ __forceinline__ bool lists_all(Cut cut) const {
    return leader.listed != 0 && leader.listed_high == abi::kKeyOfInf && (cut.limit > 0 ? cut.key : cut.key + 1) >= leader.listed_low;
  }

  /// What keeps the first entries of those that `floor` keeps: `count` of them, or the part p of their mass (of `whole`, where that is not
  /// 0).
  template <bool kByMass>
  __device__ __attribute__((noinline)) Cut find(u64 count, float p, u64 whole) {
    const bool listed = lists_all(floor);
    ptx::sync_cluster();
    if (leads()) {
      if (listed) {
        const Cut cut = find_listed(kByMass, count, p, whole);
        if (ptx::thread_idx() == 0) s.cut = cut;
      } else {
        const Bracket first = kByMass ? bracket_by_mass(p) : bracket_by_count(count);
        ptx::sync_block();
        if (ptx::thread_idx() == 0) {
          s.bracket = first;
          s.num_listed = 0;
        }
      }
    }
    while (!listed) {
      prepare();
      const Bracket b = leader.bracket;
      pass<kByMass>(b);
      if (leads()) {
        const PassSums all = all_sums();
        const u64 above = kByMass ? mass_above() : all.above_count;
        const u64 inside = kByMass ? all.inside_mass : all.inside_count;
        const u64 need = kByMass ? abi::mass_needed(whole != 0 ? whole : all.total, bits_of(p)) : count;
        decide<kByMass>(b, need, above, inside, all);
        if (ptx::thread_idx() == 0) {
          s.listed = b.histogram == 0 && b.low != b.high && all.inside_count <= static_cast<u64>(kListCapacity) ? 1 : 0;
          s.summed = kByMass || b.high == abi::kKeyOfInf ? 1 : 0;
          s.listed_low = b.low;
          s.listed_high = b.high;
        }
      }
      ptx::sync_cluster();
      if (leader.found != 0) break;
    }
    if (listed) ptx::sync_cluster();
    num_sampled = 0;  // the list has other entries now
    return leader.cut;
  }
};

}  // namespace girih::sampling
