// Where the order of a row that stays is cut (Resident, resident.cuh): a sample gives a bracket of keys, a tally counts what lies above and
// inside, and the cut is among the few entries of one bin of its histogram. What lies elsewhere than guessed, or in too long a bin, takes
// another tally; entries of one value are told apart by position.
#pragma once

#include "sampling/resident.cuh"

namespace girih::sampling {

template <typename T, bool kProbs>
template <bool kMass>
__device__ __forceinline__ MergedBins Resident<T, kProbs>::sampled(u32 low, u32 high, int shift) {
  S& s = own<S>();
  clear_histogram(s);
  ptx::sync_block();
  const Weighting weighting = w;
#pragma unroll 1
  for (int group = begin + (kSampledGroups - begin % kSampledGroups) % kSampledGroups; group < end; group += kSampledGroups) {
    const float x = ptx::max_number(to_f32(*reinterpret_cast<const T*>(slot(group))), kNothing);
    const float weight = kMass ? scaled_weight<kProbs>(x, weighting) : 0.0F;
    const u32 value = kMass ? bits_of(weight) : key_of(x);
    if (value < low || value > high) continue;
    const SplitMass mass = split_mass(weight);
    add_shared(s.histogram + 2 * ((value - low) >> shift), kMass ? joined(mass.high, mass.low, 1) : 1);
  }
  sync_row();
  const MergedBins b = merged_bins<S>();
  sync_row();  // before it is cleared
  return b;
}

template <typename T, bool kProbs>
__device__ __forceinline__ void Resident<T, kProbs>::bracket_by_count(u64 count, u32& low, u32& high) {
  const float expected = static_cast<float>(count) / static_cast<float>(kSampledGroups * kItems);
  const float margin = 4.0F * sqrt(expected) + 8.0F;
  u64 need_low = static_cast<u64>(expected + margin);
  u64 need_high = expected > margin + 1.0F ? static_cast<u64>(expected - margin) : 0;
  u32 from = low, to = largest;
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    const int shift = max(shift_for<S>(to - from), kKeyBits);
    const MergedBins b = sampled<false>(from, to, shift);
    const FoundBin first = need_high > 0 ? search_bins<S>(b, need_high) : FoundBin{S::kBins, 0, 0};
    const FoundBin second = search_bins<S>(b, need_low);
    if (need_high > 0 && first.bin >= 0) to = high = min(to, from + (static_cast<u32>(first.bin) << shift) + ((1U << shift) - 1U));
    if (second.bin >= 0) low = from = from + (static_cast<u32>(second.bin) << shift);
    const u64 inside = second.above + second.amount - first.above;
    if (shift == kKeyBits || inside * static_cast<u64>(kSampledGroups * kItems * 16) < static_cast<u64>(n)) return;
    need_low -= first.above;
    need_high -= min(need_high, first.above);
  }
}

template <typename T, bool kProbs>
__device__ __forceinline__ void Resident<T, kProbs>::bracket_by_mass(float p, u32& low, u32& high) {
  constexpr int kShift = 18;  // 32 bins for a factor of 2
  if (w.max == kInfinity) return;
  const u32 top = bits_of(scaled_weight<kProbs>(w.max, w));
  const u32 bottom = max(top, static_cast<u32>(S::kBins) << kShift) - (static_cast<u32>(S::kBins) << kShift) + 1U;
  const MergedBins b = sampled<true>(bottom, top, kShift);
  const u64 need = static_cast<u64>(static_cast<float>(b.total) * p);
  float squares = 0;
  u64 before = b.before;
  if (before <= need && need <= before + b.here) before += inclusive(b.bins[0] + b.bins[1]) - b.bins[0] - b.bins[1];
#pragma unroll
  for (int i = 0; i < S::kBinsEach; ++i) {
    const float weight = float_of(bottom + (static_cast<u32>(S::kBins - 1 - ptx::thread_idx() * S::kBinsEach - i) << kShift));
    before += b.bins[i];
    if (b.bins[i] != 0) squares += static_cast<float>(b.bins[i]) * weight * (before <= need ? (1.0F - p) * (1.0F - p) : p * p);
  }
  squares = static_cast<float>(block_sum(static_cast<u64>(squares)));
  const u64 spread = static_cast<u64>(4.0F * sqrt(squares) * sqrt(0x1p43F) + static_cast<float>(b.total) * 2e-4F);
  const FoundBin first = need > spread ? search_bins<S>(b, need - spread) : FoundBin{-1, 0, 0};
  const FoundBin second = search_bins<S>(b, need + spread + 1);
  const u32 least = low;
  if (first.bin >= 0) high = key_of_weight(bottom + (static_cast<u32>(first.bin) << kShift) + ((1U << kShift) - 1U), 4e-7F);
  if (second.bin > 0) low = max(least, key_of_weight(bottom + (static_cast<u32>(second.bin) << kShift), -4e-7F));
  if (low > high) low = least;
}

template <typename T, bool kProbs>
template <bool kMass>
__device__ __forceinline__ void Resident<T, kProbs>::tally(u32 low, u32 high, u32 end_key, int shift) {
  S& s = own<S>();
  clear_histogram(s);
  ptx::sync_block();
  const Weighting weighting = w;
  const bool all = plain();
  const ValueCut kept(floor);
  const float from = value_of(low);
  const float beyond = value_of(high + 1);
  const u32 width = end_key - low;
  SplitMass total{}, above{};
  u32 num_above = 0;
  u32 found = 0, bit = 1;
  each([&](int place, auto& x, Vec16*) {
    if (!all) {
#pragma unroll
      for (int e = 0; e < kItems; ++e) x[e] = kept.keeps(x[e], place + e) ? x[e] : kNothing;
    }
    bool inside = false;
    float weight[kItems];
    if constexpr (kMass) weigh(weight, x, weighting);
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      const bool is_above = x[e] >= beyond;
      if constexpr (kMass) {
        const SplitMass mass = split_mass(weight[e]);
        total.high += mass.high;
        total.low += mass.low;
        if (is_above) {
          above.high += mass.high - kHighZero;
          above.low += mass.low - kLowZero;
        }
      } else if (is_above) {
        ++num_above;
      }
      inside |= x[e] >= from && !(kMass && is_above);
    }
    found |= inside ? bit : 0U;
    bit += bit;
  });
  marks = found;
  each_marked([&](bool active, int place, auto& x) {
    u32 inside = 0;
#pragma unroll
    for (int e = 0; e < kItems; ++e) inside |= active && x[e] >= from && !(x[e] >= beyond) ? 1U << e : 0U;
    if (!all) {
#pragma unroll
      for (int e = 0; e < kItems; ++e) inside &= kept.keeps(x[e], place + e) ? ~0U : ~(1U << e);
    }
    if (all && ptx::all(inside == (1U << kItems) - 1U)) {  // rows of one value: additions to one place would wait for each other
      const u32 offset = key_of(x[0]) - low;
      bool same = (ptx::shuffle(offset, 0) == offset) & (offset <= width);
#pragma unroll
      for (int e = 1; e < kItems; ++e) same &= x[e] == x[0];
      if (ptx::all(same)) {
        const u64 amount = kMass ? mass_of<kProbs>(x[0], weighting) : 1;
        if (ptx::lane_idx() == 0) add_shared(own<S>().histogram + 2 * (offset >> shift), amount * static_cast<u64>(kItems * ptx::kWarp));
        inside = 0;
      }
    }
#pragma unroll 1
    for (; inside != 0; inside &= inside - 1) {
      const float value = pick(x, inside);
      const u32 offset = key_of(value) - low;
      if (offset > width) continue;
      u32* bin = own<S>().histogram + 2 * (offset >> shift);
      if constexpr (kMass) {
        add_shared(bin, mass_of<kProbs>(value, weighting));
      } else {
        ptx::atomic_add_shared(bin, 1);
      }
    }
  });
  if constexpr (kMass) {
    const u64 mass = warp_sum(joined(total.high, total.low, static_cast<u32>((end - begin) * kItems)));
    above_high = high;
    above_mass = warp_sum(joined(above.high, above.low, 0));
    exchange(mass, above_mass);
  } else {
    above_high = abi::kKeyOfInf;
    above_mass = 0;
    exchange(0, ptx::sum_warp(num_above));
  }
}

template <typename T, bool kProbs>
template <bool kMass>
__device__ __forceinline__ bool Resident<T, kProbs>::cut_few(u32 low, u32 high, u64 need, bool adds, Cut& cut) {
  S& s = own<S>();
  if (ptx::thread_idx() == 0) s.num_few = 0;
  ptx::sync_block();
  const float from = value_of(low);
  const float beyond = value_of((adds ? above_high : high) + 1);
  const Cut kept = floor;
  const Weighting weighting = w;
  u64 mass = 0;
  each_marked([&](bool active, int place, auto& x) {
    u32 inside = 0;
#pragma unroll
    for (int e = 0; e < kItems; ++e) inside |= active && x[e] >= from && !(x[e] >= beyond) ? 1U << e : 0U;
#pragma unroll 1
    for (; inside != 0; inside &= inside - 1) {
      const float value = pick(x, inside);
      const u32 key = key_of(value);
      const int at_place = place + first_bit(inside);
      if (key < low || !kept.keeps(key, at_place)) continue;
      if (key > high) {
        mass += mass_of<kProbs>(value, weighting);
        continue;
      }
      S& to = own<S>();
      const u32 at = ptx::atomic_add_shared(&to.num_few, 1);
      if (at >= static_cast<u32>(S::kFew)) continue;
      to.few_key[at] = key;
      to.few_position[at] = at_place;
    }
  });
  exchange(warp_sum(mass) + above_mass, 0);
  // Each lane asks one block for its number; a thread then takes the entry that is its own of all.
  const int thread = ptx::thread_idx();
  const int lane = ptx::lane_idx();
  const u32 num = lane < size ? (size == 1 ? s : *ptx::in_block(&s, lane)).num_few : 0;
  const int count = static_cast<int>(ptx::sum_warp(num));
  int block = 0;
  int i = thread;
#pragma unroll 1
  for (int before = 0; before < size - 1; ++before) {
    const int few = static_cast<int>(ptx::shuffle(num, before));
    if (block != before || i < few) continue;
    i -= few;
    ++block;
  }
  if (count <= S::kFew && thread < count) {
    const S& from_block = size == 1 ? s : *ptx::in_block(&s, block);
    const u32 key = from_block.few_key[i];
    s.all_key[thread] = key;
    s.all_position[thread] = from_block.few_position[i];
    s.all_amount[thread] = amount_of<kProbs>(key, kMass, w);
  }
  ptx::sync_block();
  if (count > S::kFew) return false;
  num_all = adds ? count : -1;
  if (thread < count) {
    const u32 key = s.all_key[thread];
    const i32 place = s.all_position[thread];
    u64 before = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const bool first = (s.all_key[i] > key) | ((s.all_key[i] == key) & (s.all_position[i] < place));
      before += first ? s.all_amount[i] : 0;
    }
    if (before < need && before + s.all_amount[thread] >= need) s.cut = {key, place + 1};
  }
  ptx::sync_block();
  cut = s.cut;
  return true;
}

template <typename T, bool kProbs>
template <bool kMass>
__device__ __forceinline__ Cut Resident<T, kProbs>::cut_ties(u32 low, u32 high, u64 need) {
  S& s = own<S>();
  const Cut kept = floor;
  u32 count = 0, key = 0;
  const auto matches = [&](float x, int place) {
    const u32 k = key_of(x);
    return k >= low && k <= high && kept.keeps(k, place);
  };
  each([&](int place, auto& x, Vec16*) {
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      if (!matches(x[e], place + e)) continue;
      key = key_of(x[e]);
      ++count;
    }
  });
  const u64 own_count = ptx::sum_warp(count);
  exchange(own_count, ptx::max_warp(key));
  key = most(1, 0);
  const u64 amount = amount_of<kProbs>(key, kMass, w);
  const u64 ties = (need + amount - 1) / amount;
  u64 before = sum_before(0);
  if (before < ties && ties <= before + own_count) {
#pragma unroll 1
    for (int group = begin; group < end; ++group) {
      float x[kItems];
      widen(x, *slot(group));
      u32 here = 0;
#pragma unroll
      for (int e = 0; e < kItems; ++e) here += matches(ptx::max_number(x[e], kNothing), position(group) + e) ? 1U : 0U;
      const u64 all = ptx::sum_warp(here);
      if (before + all >= ties) {
        u64 seen = before + inclusive(here) - here;
#pragma unroll
        for (int e = 0; e < kItems; ++e) {
          if (!matches(ptx::max_number(x[e], kNothing), position(group) + e)) continue;
          if (++seen != ties) continue;
#pragma unroll 1
          for (int block = 0; block < size; ++block) (size == 1 ? s : *ptx::in_block(&s, block)).cut = {key, position(group) + e + 1};
        }
        break;
      }
      before += all;
    }
  }
  sync_row();
  return s.cut;
}

template <typename T, bool kProbs>
template <bool kMass>
__device__ __forceinline__ Cut Resident<T, kProbs>::find(u64 count, float p, u64 whole, bool few) {
  num_all = -1;
  u32 low = floor.least();
  u32 high = abi::kKeyOfInf;
  if (low > largest) return floor;
  if (plain() && n >= kLeastSampled) {
    if constexpr (kMass) {
      bracket_by_mass(p, low, high);
    } else {
      bracket_by_count(count, low, high);
    }
  }
  u64 need = count;
  bool first = true;
  for (;;) {
    const u32 end_key = max(min(high, largest), low);
    const int shift = max(shift_for<S>(end_key - low), kKeyBits);
    tally<kMass>(low, high, end_key, shift);
    const u64 above = sum(1);
    if (kMass && first) need = mass_needed(whole != 0 ? whole : sum(0), p);
    first = false;
    if (need <= above) {
      low = high + 1;
      high = abi::kKeyOfInf;
      sync_row();
      continue;
    }
    const MergedBins b = merged_bins<S>();
    if (need > above + b.total) {
      sync_row();
      if (low <= floor.least()) return floor;
      high = low - 1;
      low = floor.least();
      continue;
    }
    const FoundBin found = search_bins<S>(b, need - above);
    low += static_cast<u32>(found.bin) << shift;
    high = min(low + ((1U << shift) - 1U), end_key);
    const u64 left = need - above - found.above;
    Cut cut{};
    if (cut_few<kMass>(low, high, left, few || (kMass && above >= need / 2), cut)) return cut;
    if (high - low < 1U << kKeyBits) return cut_ties<kMass>(low, high, left);
  }
}

template <typename T, bool kProbs>
__device__ __forceinline__ int Resident<T, kProbs>::collect() {
  const ValueCut kept(floor);
  const auto bits_of_kept = [&](const float(&x)[kItems], int place) {
    u32 bits = 0;
#pragma unroll
    for (int e = 0; e < kItems; ++e) bits |= kept.keeps(x[e], place + e) ? 1U << e : 0U;
    return bits;
  };
  u32 count = 0;
  each_marked([&](bool active, int place, auto& x) { count += active ? static_cast<u32>(ptx::popcount(bits_of_kept(x, place))) : 0; });
  exchange(ptx::sum_warp(count), 0);
  int before = static_cast<int>(sum_before(0));
  u32* list = (size == 1 ? own<S>() : *ptx::in_block(&own<S>(), 0)).histogram;
#pragma unroll
  for (int mask = 1; mask < ptx::kWarp; mask *= 2) marks |= ptx::shuffle_xor(marks, mask);  // in step: by position
  each_marked([&](bool, int place, auto& x) {
    u32 bits = bits_of_kept(x, place);
    const u32 here = static_cast<u32>(ptx::popcount(bits));
    const int all = static_cast<int>(ptx::sum_warp(here));
    int at = before + static_cast<int>(inclusive(here) - here);
#pragma unroll 1
    for (; bits != 0; bits &= bits - 1, ++at) {
      list[at] = key_of(pick(x, bits));
      list[S::kBins + at] = static_cast<u32>(place + first_bit(bits));
    }
    before += all;
  });
  const int total = static_cast<int>(sum(0));
  sync_row();
  return total;
}
}  // namespace girih::sampling
