// Where a row's order is cut, exactly and in a bounded number of passes. A sample of the row gives a bracket of keys in which the cut
// should lie. A pass adds up what is above the bracket and lists what is inside; then the cut is found in the list. Should the cut lie
// elsewhere, or the list not hold all, the next pass takes the other side, or cuts the bracket into a thousand or two parts by a histogram.
// So at most eight passes, and one where the sample was right. The blocks of a cluster share a row: block 0 has the list, the sums of tiles
// and decides; the others add to its shared memory.
#pragma once

#include "sampling/list.cuh"
#include "sampling/row.cuh"

namespace girih::sampling {

/// How a kernel's rows are cut.
enum class CutBy : u8 { count, mass, either };

/// The larger part of the work: a row's cuts. Reader: RowReader.
template <typename Reader, typename S, bool kProbs>
struct Selector {
  static constexpr int kListCapacity = S::kListCapacity;
  static constexpr int kBins = S::kBins;
  static constexpr int kBinsEach = S::kBinsEach;
  static constexpr u32 kNothingKey = kProbs ? 0x80000000U : abi::kKeyOfMinusInf;  // of Reader::kNothing
  static constexpr Cut kEverything{kNothingKey, Cut::kNone};
  static constexpr Bracket kNoBracket{abi::kKeyOfInf, kNothingKey, 0, 0};  // all is above, nothing inside

  Reader& reader;
  S& leader;  // block 0's shared memory
  float temperature = 1.0F;
  Weighting w = make_weighting(kProbs, 1.0F, 1.0F);
  bool weighted = false;  // the largest entry is known, and w by it: until then w is a guess (of probabilities: that it is plain)
  bool nan = false;
  Cut floor = kEverything;  // what earlier cuts keep
  int num_sampled = 0;      // entries of the sample in block 0's list; 0: none
  float sampled_part = 0;
  u64 num_first = 0;  // so many of the order's first are in the list that Shortlist has made

  __device__ __forceinline__ bool leads() const { return ptx::cluster_rank() == 0; }
  __device__ __forceinline__ bool any() const { return w.max > Reader::kNothing; }

  /// What a pass has seen becomes known. True: its masses are not those of the row, since the guess was wrong.
  __device__ __forceinline__ bool settle(const Sums& all, bool masses) {
    if (weighted) return false;
    const bool guessed = w.plain;
    weigh_by(all.largest);
    nan = all.nan != 0;
    return masses && (!kProbs || w.plain != guessed);
  }
  /// A function of its own, as there are four places.
  __device__ __attribute__((noinline)) void weigh_by(u32 largest) {
    weighted = true;
    w = make_weighting(kProbs, value_of(largest), temperature);
  }

  /// Before every pass: sums are cleared before any block can add to another's.
  __device__ __attribute__((noinline)) void prepare() {
    S& s = own<S>();
    if (ptx::thread_idx() == 0) s.num_spilled = 0;
#pragma unroll 1
    for (int i = ptx::thread_idx(); i < reader.num_tiles(); i += kThreads)
      s.tile_mass[2 * i] = s.tile_mass[2 * i + 1] = s.tile_inside[i] = 0;
    sync_row();
    if (leader.bracket.histogram == 0) return;
    clear_histogram(s);
    sync_row();
  }

  /// One pass under a bracket without a histogram. kMass: masses are added up, else entries are only counted.
  template <bool kMass>
  __device__ __attribute__((noinline)) Sums pass(const Bracket& b) {
    // Copies that no store to shared memory can change: they stay in registers.
    Reader rows = reader;
    S& s = own<S>();
    S& first = leader;
    const Weighting weighting = w;
    const Cut kept = floor;
    const bool plain = kept.key == kNothingKey && kept.limit <= 0;  // what it leaves out has no mass and is in no bracket
    const float low = value_of(b.low);
    const float high = value_of(b.high);
    const bool lists = b.low != b.high;
    Sums sums{};
    SplitMass total{}, above{};  // sums of the bits
    float largest = Reader::kNothing;
    u32 tile_inside = 0;
    int listed = 0;
    u32 summed = 0;  // masses in `total`
    rows.pass(
        [&](int position, auto& x) {
          constexpr int kItems = Reader::kItems;
          if (!plain) {
#pragma unroll
            for (int e = 0; e < kItems; ++e) {
              if (!kept.keeps(key_of(x[e]), position + e)) x[e] = Reader::kNothing;
            }
          }
          float weight[kItems];
          if constexpr (kMass) {
#pragma unroll
            for (int e = 0; e < kItems; ++e) weight[e] = kProbs ? x[e] : logit_weight(x[e], weighting);
            if (kProbs && !weighting.plain) {
#pragma unroll
              for (int e = 0; e < kItems; ++e) weight[e] = scaled_weight<kProbs>(x[e], weighting);
            }
          }
          u32 inside = 0;
#pragma unroll
          for (int e = 0; e < kItems; ++e) {
            largest = ptx::max_number(largest, x[e]);
            const bool is_above = x[e] > high;
            if constexpr (kMass) {
              const SplitMass mass = split_mass(weight[e]);
              total.high += mass.high;
              total.low += mass.low;
              above.high += is_above ? mass.high : kHighZero;
              above.low += is_above ? mass.low : kLowZero;
            } else {
              sums.above_count += is_above ? 1U : 0U;
            }
            inside |= x[e] >= low && !is_above ? 1U << e : 0U;
          }
          if (!kMass && inside == 0) return;
          if (!lists) {
            tile_inside += static_cast<u32>(ptx::popcount(inside));
            return;
          }
#pragma unroll 1
          for (; inside != 0; inside &= inside - 1, ++listed) {  // few lanes have one, fewer have two
            const int e = ptx::popcount((inside & (0U - inside)) - 1U);
            float value = x[0];
#pragma unroll
            for (int i = 1; i < kItems; ++i) value = e == i ? x[i] : value;
            if (listed < S::kOwn) {
              s.list_key[listed * kThreads + ptx::thread_idx()] = key_of(value);
              s.list_position[listed * kThreads + ptx::thread_idx()] = position + e;
            } else {
              append(first, listed, key_of(value), position + e);
            }
          }
          if constexpr (kMass) ptx::sync_warp();  // many have some: lanes would else go on each by itself, to the end of the tile
        },
        [&](int tile) {
          if constexpr (kMass) {
            constexpr u32 kEach = Reader::kChunks * Reader::kItems;
            const u32 mass_high = ptx::sum_warp(above.high - kEach * kHighZero), mass_low = ptx::sum_warp(above.low - kEach * kLowZero);
            if (ptx::lane_idx() == 0) add_shared(s.tile_mass + 2 * tile, joined(mass_high, mass_low, 0));
            above = {};
            summed += kEach;
            if (summed >= 512) {
              sums.total += joined(total.high, total.low, summed);
              total = {};
              summed = 0;
            }
          }
          if (!lists) {
            const u32 inside = ptx::sum_warp(tile_inside);
            if (ptx::lane_idx() == 0 && inside != 0) ptx::atomic_add_shared(s.tile_inside + tile, inside);
            sums.inside_count += tile_inside;
            tile_inside = 0;
          }
        });
    reader.passed(rows);
    sums.total += joined(total.high, total.low, summed);
    sums.largest = key_of(largest);
    sums.inside_count += static_cast<u32>(listed);
    if (lists) s.num_listed[ptx::thread_idx()] = min(listed, S::kOwn);
    const Sums all = report(sums);
    if (b.low < b.high) gather(first);
    return all;
  }

  /// One pass under a bracket with a histogram: for rows that a list does not do for.
  __device__ __attribute__((noinline)) Sums pass_histogram(const Bracket& b, bool by_mass) {
    Reader rows = reader;
    S& s = own<S>();
    const Weighting weighting = w;
    const Cut kept = floor;
    Sums sums{};
    float largest = Reader::kNothing;
    u64 tile_above = 0;
    rows.template pass<false>(
        [&](int position, auto& x) {
#pragma unroll 1
          for (int e = 0; e < Reader::kItems; ++e) {
            const u32 key = key_of(x[e]);
            largest = ptx::max_number(largest, x[e]);
            if (!kept.keeps(key, position + e)) continue;
            const u64 amount = by_mass ? mass_of<kProbs>(x[e], weighting) : 1;
            sums.total += amount;
            if (key > b.high) {
              tile_above += amount;
              ++sums.above_count;
            } else if (key >= b.low) {
              sums.inside += amount;
              ++sums.inside_count;
              add_shared(s.histogram + 2 * ((key - b.low) >> b.shift), amount);
            }
          }
        },
        [&](int tile) {
          if (ptx::any(tile_above != 0)) {
            const u64 mass = warp_sum(tile_above);
            if (ptx::lane_idx() == 0) add_shared(s.tile_mass + 2 * tile, mass);
          }
          tile_above = 0;
        });
    reader.passed(rows);
    sums.largest = key_of(largest);
    if (!leads()) {
      ptx::sync_block();
#pragma unroll 1
      for (int i = ptx::thread_idx(); i < kBins; i += kThreads) {
        const u64 sum = read_pair(s.histogram + 2 * i);
        if (sum != 0) add_shared(leader.histogram + 2 * i, sum);
      }
    }
    return report(sums);
  }

  /// A block's sums to all, and its tiles to block 0.
  __device__ __attribute__((noinline)) Sums report(Sums sums) {
    sums.nan = reader.saw_nan() ? 1 : 0;
    if (!leads()) {
      const S& s = own<S>();
      ptx::sync_block();
#pragma unroll 1
      for (int i = reader.first_tile() + ptx::thread_idx(); i < reader.last_tile(); i += kThreads) {
        leader.tile_mass[2 * i] = s.tile_mass[2 * i];
        leader.tile_mass[2 * i + 1] = s.tile_mass[2 * i + 1];
        leader.tile_inside[i] = s.tile_inside[i];
      }
    }
    return all_sums<S>(sums);
  }

  /// Block 0, after a pass.
  __device__ __attribute__((noinline)) u64 mass_above() {
    const S& s = own<S>();
    u64 sum = 0;
#pragma unroll 1
    for (int i = ptx::thread_idx(); i < reader.num_tiles(); i += kThreads) sum += read_pair(s.tile_mass + 2 * i);
    return block_sum(sum);
  }

  /// Block 0: a bracket with its ends moved to sampled keys, and how many of the row it should hold.
  __device__ __attribute__((noinline)) Bracket snapped(u32 low, u32 high, float& expected) {
    u64 inside = 0;
    u32 first = 0xffffffffU, last = 0;
    for_listed<S>([&](int, u32 key) {
      if (key < low || key > high) return;
      ++inside;
      first = min(first, key);
      last = max(last, key);
    });
    inside = block_sum(inside);
    expected = static_cast<float>(inside) / sampled_part;
    if (inside != 0) {
      if (low > floor.least() || high == abi::kKeyOfInf - 1) low = static_cast<u32>(~block_max(~static_cast<u64>(first)));
      if (high < abi::kKeyOfInf) high = static_cast<u32>(block_max(last));
    }
    return {low, high, 0, 0};
  }
  static __device__ __forceinline__ bool is_long(float expected) { return expected > static_cast<float>(kListCapacity) * 0.85F; }

  static __device__ __forceinline__ Bracket with_histogram(u32 low, u32 high) { return {low, high, 1, shift_for<S>(high - low)}; }

  /// Block 0: the first bracket for the first `count` of the order, from the sample.
  __device__ __attribute__((noinline)) Bracket bracket_by_count(u64 count) {
    const u32 least = floor.least();
    if (num_sampled == 0) return {least, abi::kKeyOfInf, 0, 0};
    const float expected = static_cast<float>(count) * sampled_part;
    const float margin = 4.0F * sqrt(expected) + 8.0F;
    float length = 0;
    const Bracket whole = snapped(least, abi::kKeyOfInf - 1, length);  // keys close together: bins that few share
    u32 first = whole.low;
    if (least > first || first > whole.high) first = least;
    u32 low = least;
    Cut cut{};
    if (cut_listed<kProbs, S>(first, whole.high, false, static_cast<u64>(expected + margin), w, cut)) low = cut.key;
    Bracket b = snapped(low, abi::kKeyOfInf, length);
    if (is_long(length)) {
      u32 high = whole.high;
      if (expected > margin + 1.0F && cut_listed<kProbs, S>(first, whole.high, false, static_cast<u64>(expected - margin), w, cut))
        high = max(cut.key, low);
      const Bracket shorter = snapped(low, high, length);
      if (!is_long(length) || shorter.low == shorter.high || expected > margin + 1.0F) b = shorter;
    }
    return b.low != b.high && is_long(length) ? with_histogram(b.low, b.high) : b;
  }

  /// The key of a weight, scaled, given by its bits; near it where w is of logits.
  __device__ __forceinline__ u32 key_of_weight(u32 bits, float slack) const {
    if constexpr (kProbs) return key_of(float_of(bits) / w.factor);
    const float d = log(float_of(bits)) * (kLog2E / w.scale);
    return key_of(w.max + d + slack * (abs(w.max) - d));
  }

  /// Block 0: the first bracket for the part p of the mass, from the sample: where its order reaches p, and as far to both sides as four
  /// standard deviations of that. By histograms of masses over the bits of weights; a bracket that is too long is looked into again.
  __device__ __attribute__((noinline)) Bracket bracket_by_mass(float p) {
    const u32 least = floor.least();
    if (w.max == kInfinity) return {abi::kKeyOfInf, abi::kKeyOfInf, 0, 0};
    constexpr int kCoarsest = 17;  // 64 bins of a factor of 2
    u32 top = 0, bottom = 0xffffffffU;
    S& s = own<S>();
    const Weighting weighting = w;
    const auto weight_bits = [=](u32 key) { return key < least ? 0U : bits_of(scaled_weight<kProbs>(value_of(key), weighting)); };
    for_listed<S>([&](int, u32 key) {
      const u32 bits = weight_bits(key);
      if (bits == 0) return;
      top = max(top, bits);
      bottom = min(bottom, bits);
    });
    top = static_cast<u32>(block_max(top));
    bottom = static_cast<u32>(~block_max(~static_cast<u64>(bottom)));
    if (top == 0 || top >= bits_of(2.0F)) return {least, abi::kKeyOfInf, 0, 0};
    u32 width = min(top - bottom, (static_cast<u32>(kBins) << kCoarsest) - 1U);
    u64 above = 0, need_high = 0, need_low = 0, whole = 0;
    for (int round = 0;; ++round) {
      const int shift = shift_for<S>(width);
      ptx::sync_block();
      clear_histogram(s);
      ptx::sync_block();
      for_listed<S>([&](int, u32 key) {
        const u32 bits = weight_bits(key);
        u32 below = top - bits;
        if (bits == 0 || bits > top || (below > width && round > 0)) return;
        below = min(below, width);
        const SplitMass mass = split_mass(float_of(bits));
        add_shared(s.histogram + 2 * (static_cast<u32>(kBins - 1) - (below >> shift)), joined(mass.high, mass.low, 1));
      });
      ptx::sync_block();
      if (round == 0) {
        u64 bins[kBinsEach];
        const Scan scan = scan_bins<S>(bins);
        whole = scan.total;
        u64 before = scan.before;
        const u64 need = static_cast<u64>(static_cast<float>(whole) * p);
        float squares = 0;
#pragma unroll
        for (int i = 0; i < kBinsEach; ++i) {
          const float weight = float_of(top - (static_cast<u32>(ptx::thread_idx() * kBinsEach + i) << shift));
          before += bins[i];
          if (bins[i] != 0) squares += static_cast<float>(bins[i]) * weight * (before <= need ? (1.0F - p) * (1.0F - p) : p * p);
        }
        squares = static_cast<float>(block_sum(static_cast<u64>(squares)));
        const u64 spread = static_cast<u64>(4.0F * sqrt(squares) * sqrt(0x1p43F) + static_cast<float>(whole) * 2e-4F);
        need_high = need > spread ? need - spread : 0;
        need_low = max(need + spread, u64{1});
      }
      const Bin high = need_high > above ? find_bin<S>(need_high - above) : Bin{kBins - 1, 0};
      const int high_bin = high.bin;
      const int low_bin = find_bin<S>(need_low - above).bin;
      const u32 from = top - (static_cast<u32>(kBins - 1 - high_bin) << shift);
      const bool no_low = low_bin < 0 || (low_bin == 0 && round == 0);
      const u32 to = no_low ? top - width : max(top - (static_cast<u32>(kBins - low_bin) << shift) + 1U, top - width);
      float expected = 0;
      const Bracket b = snapped(no_low ? least : max(least, key_of_weight(to, -4e-7F)),
                                need_high > 0 ? key_of_weight(from, 4e-7F) : abi::kKeyOfInf, expected);
      if (b.low >= b.high || !is_long(expected)) return b;
      if (shift == 0 || from - to >= width) return with_histogram(b.low, b.high);
      above += high.above;
      top = from;
      width = from - to;
    }
  }

  /// Block 0, after a pass: the cut, or the next bracket.
  __device__ __attribute__((noinline)) void decide(const Bracket& b, bool by_mass, u64 need, const Sums& all) {
    S& s = own<S>();
    const u64 above = by_mass ? mass_above() : all.above_count;
    const u32 largest = key_of(w.max);
    const bool fits = s.num_spilled <= static_cast<u32>(S::kSpill);
    bool found = false;
    bool below = false;  // the cut is
    Cut cut{};
    Bracket next = b;
    if (need <= above) {
      next = with_histogram(b.high + 1, largest);
    } else if (b.histogram != 0) {
      const int bin = find_bin<S>(need - above).bin;
      below = bin < 0;
      if (!below) {
        const u32 low = b.low + (static_cast<u32>(bin) << b.shift);
        const u32 high = min(low + ((1U << b.shift) - 1U), b.high);
        const u64 part = by_mass ? ~u64{0} : read_pair(s.histogram + 2 * bin);
        next = b.shift > 0 && !by_mass && part > static_cast<u64>(kListCapacity) ? with_histogram(low, high) : Bracket{low, high, 0, 0};
      }
    } else if (b.low == b.high) {
      const u64 each = amount_of<kProbs>(b.low, by_mass, w);
      below = need - above > each * all.inside_count;
      if (!below) {
        found = true;
        cut = {b.low, limit_by_tiles(b.low, (need - above + each - 1) / each)};
      }
    } else if (!fits) {
      next = with_histogram(b.low, min(b.high, largest));
    } else {
      found = cut_listed<kProbs, S>(b.low, min(b.high, largest), by_mass, need - above, w, cut);
      below = !found;
    }
    if (below) {
      found = b.low <= floor.least();  // then everything is kept
      cut = floor;
      next = with_histogram(floor.least(), b.low - 1);
    }
    ptx::sync_block();
    if (ptx::thread_idx() == 0) {
      s.found = found ? 1 : 0;
      s.cut = cut;
      s.bracket = next;
      s.listed = b.histogram == 0 && b.low < b.high && fits ? 1 : 0;
      s.summed = by_mass || b.high == abi::kKeyOfInf ? 1 : 0;
      s.listed_low = b.low;
      s.listed_high = b.high;
    }
  }

  /// Block 0, where a bracket is one key: the position that ends its first `ties` entries.
  __device__ __attribute__((noinline)) int limit_by_tiles(u32 key, u64 ties) {
    S& s = own<S>();
    if (ptx::thread_idx() == 0) {
      u64 left = ties;
      int tile = 0;
#pragma unroll 1
      while (tile < reader.num_tiles() && left > s.tile_inside[tile]) left -= s.tile_inside[tile++];
      s.tile = tile;
      s.left = left;
    }
    ptx::sync_block();
    const int tile = s.tile;
    if (tile >= reader.num_tiles()) return 0x7fffffff;
    find_in_tile(tile, s.left - 1, key);
    return s.position + 1;
  }

  /// Block 0: of a tile's entries that the floor keeps, in order, the first with which their masses add up to more than `left`; into
  /// s.position and s.value. only != 0: entries of this key are counted instead.
  __device__ __attribute__((noinline)) void find_in_tile(int tile, u64 left, u32 only) {
    S& s = own<S>();
    const Cut kept = floor;
    const Weighting weighting = w;
    u64 before_chunk = 0;
    reader.visit_tile(tile, [&](int position, const auto& x) {
      u64 each[Reader::kItems];
      u64 sum = 0;
#pragma unroll
      for (int e = 0; e < Reader::kItems; ++e) {
        const u32 key = key_of(x[e]);
        each[e] = only == 0 ? mass_of<kProbs>(x[e], weighting) : key == only ? 1 : 0;
        each[e] = kept.keeps(key, position + e) ? each[e] : 0;
        sum += each[e];
      }
      const Scan scan = block_scan(sum);
      u64 before = before_chunk + scan.before;
#pragma unroll
      for (int e = 0; e < Reader::kItems; ++e) {
        if (before <= left && left < before + each[e]) {
          s.position = position + e;
          s.value = x[e];
        }
        before += each[e];
      }
      before_chunk += scan.total;
    });
    ptx::sync_block();
  }

  /// Block 0: the cut where the list of the last pass has all that `floor` keeps.
  __device__ __attribute__((noinline)) Cut find_listed(bool by_mass, u64 count, float p, u64 whole) {
    S& s = own<S>();
    const Cut kept = floor;
    const Weighting weighting = w;
    u64 all = 0;
    for_listed<S>([&](int i, u32 key) {
      if (kept.keeps(key, s.list_position[i])) {
        all += amount_of<kProbs>(key, by_mass, weighting);
      } else {
        s.list_key[i] = 0;
      }
    });
    all = block_sum(all);
    const u64 need = by_mass ? mass_needed(whole != 0 ? whole : all, p) : count;
    Cut cut{};
    return cut_listed<kProbs, S>(s.listed_low, key_of(w.max), by_mass, need, w, cut) ? cut : floor;
  }

  /// Whether that is so: known to all blocks, between barriers of the cluster.
  __device__ __forceinline__ bool lists_all(Cut cut) const {
    return leader.listed != 0 && leader.listed_high == abi::kKeyOfInf && cut.least() >= leader.listed_low;
  }

  /// One pass under any bracket.
  template <CutBy kBy>
  __device__ __forceinline__ Sums pass_under(const Bracket& b, bool by_mass) {
    if (b.histogram != 0) return pass_histogram(b, by_mass);
    if constexpr (kBy == CutBy::count) return pass<false>(b);
    if constexpr (kBy == CutBy::mass) return pass<true>(b);
    if constexpr (kBy == CutBy::either) return by_mass ? pass<true>(b) : pass<false>(b);
  }
  /// Block 0: the first bracket.
  template <CutBy kBy>
  __device__ __forceinline__ Bracket first_bracket(bool by_mass, u64 count, float p) {
    if (num_sampled == 0) return {floor.least(), abi::kKeyOfInf, 0, 0};
    if constexpr (kBy == CutBy::count) return bracket_by_count(count);
    if constexpr (kBy == CutBy::mass) return bracket_by_mass(p);
    if constexpr (kBy == CutBy::either) return by_mass ? bracket_by_mass(p) : bracket_by_count(count);
  }

  /// What keeps the first entries of those that `floor` keeps: by_mass: the part p of their mass (of `whole`, where that is not 0), else
  /// `count` of them. kBy: what the kernel asks for at all; one function does for both, as its code is not what rows wait for.
  template <CutBy kBy>
  __device__ __attribute__((noinline)) Cut find(bool wants_mass, u64 count, float p, u64 whole) {
    S& s = own<S>();
    const bool by_mass = kBy == CutBy::either ? wants_mass : kBy == CutBy::mass;
    const bool listed = lists_all(floor) || (!by_mass && count <= num_first);
    sync_row();
    if (leads()) {
      if (listed) {
        const Cut cut = find_listed(by_mass, count, p, whole);
        if (ptx::thread_idx() == 0) s.cut = cut;
      } else {
        const Bracket first = first_bracket<kBy>(by_mass, count, p);
        ptx::sync_block();
        if (ptx::thread_idx() == 0) s.bracket = first;
      }
    }
    while (!listed) {
      prepare();
      const Bracket b = leader.bracket;
      const Sums all = pass_under<kBy>(b, by_mass);
      if (settle(all, by_mass)) continue;
      if (leads()) decide(b, by_mass, by_mass ? mass_needed(whole != 0 ? whole : all.total, p) : count, all);
      sync_row();
      if (leader.found != 0) break;
    }
    if (listed) sync_row();
    num_sampled = 0;  // the list has other entries now
    return leader.cut;
  }
};

}  // namespace girih::sampling
