// A row that stays: the blocks of a cluster read it once, into their shared memory, and pass over it there, two blocks a multiprocessor, so
// that one row is read or written while another is worked on. A warp has a run of the row to itself and reads only what it copied: a pass
// needs no barrier, and what warps find goes to all blocks at once, behind one barrier of the cluster. All blocks then come to the same
// decision by themselves. Cuts (resident_cut.cuh) are exact for every row: a sample guesses in which keys one lies, and a pass counts
// whether it does.
#pragma once

#include "sampling/sample.cuh"

namespace girih::sampling {

/// Fixed part of a block's shared memory; its part of the row follows.
struct ResidentShared {
  static constexpr int kBins = 1024;
  static constexpr int kBinsEach = kBins / kThreads;
  static constexpr int kBinBits = 10;
  static constexpr int kShares = 8 * kWarps;  // warps of the largest cluster
  static constexpr int kFew = 64;
  u64 scratch[kWarps];
  Edits edits;
  u64 shares[2][2][kShares];  // what each warp of the cluster found: of two exchanges in turn, two numbers each
  alignas(16) u32 histogram[2 * kBins];
  u32 num_few;  // this block's entries of the bin where the cut is
  u32 few_key[kFew];
  i32 few_position[kFew];
  u32 all_key[kFew];  // those of all blocks
  i32 all_position[kFew];
  u64 all_amount[kFew];
  Cut cut;
  int bin;
  u64 above;
  u64 amount;
};
constexpr int kResidentFixed = static_cast<int>((sizeof(ResidentShared) + 127) / 128 * 128);
constexpr int kGroupBytes = ptx::kWarp * kChunkBytes;  // a warp's step: a chunk for each lane

template <typename T, bool kProbs>
struct Resident {
  using S = ResidentShared;
  static constexpr int kItems = kChunkBytes / static_cast<int>(sizeof(T));
  static constexpr float kNothing = kProbs ? 0.0F : -kInfinity;
  static constexpr u32 kNothingKey = kProbs ? 0x80000000U : abi::kKeyOfMinusInf;
  static constexpr int kKeyBits = kSame<T, float> ? 0 : kSame<T, f16> ? 13 : 16;  // 2^kKeyBits keys in a row are of one value at most
  static constexpr bool kCleaned = kSame<T, float>;
  static constexpr int kSampledGroups = kSame<T, float> ? 4 : 2;  // of so many one, and of each chunk one entry
  static constexpr int kLeastSampled = 16384;                     // shorter rows are not sampled

  const u8* row;
  i64 stride;
  int n, lead;
  int size;                    // of the cluster
  int share;                   // this warp's number in it
  int base, begin, end, last;  // groups: the block's first, this warp's, the end of the block's
  int parity = 0;
  float temperature = 1.0F;
  Weighting w = make_weighting(kProbs, 1.0F, 1.0F);
  u32 largest = kNothingKey;
  bool nan = false;
  Cut floor{kNothingKey, Cut::kNone};  // what earlier cuts keep
  u32 marks;                           // of the latest tally: this lane's chunks with entries that are inside, or (of counts) above, too
  u32 above_high = abi::kKeyOfInf;     // and this warp's mass of what lies above
  u64 above_mass = 0;
  int num_all =
      -1;  // entries of the bin where the latest cut is, in each block's list; then sum(0) is of what lies above that bin. Else -1

  __device__ __forceinline__ Resident(const u8* row_, i64 stride_, int n_) : row(row_), stride(stride_), n(n_) {
    lead = stride == static_cast<i64>(sizeof(T)) ? static_cast<int>(reinterpret_cast<u64>(row) % kChunkBytes / sizeof(T)) : 0;
    size = ptx::cluster_size();
    const int groups = ceil_div(n + lead, kItems * ptx::kWarp);
    const int rank = ptx::cluster_rank();
    base = groups * rank / size;
    last = groups * (rank + 1) / size;
    const int warp = ptx::thread_idx() / ptx::kWarp;
    share = rank * kWarps + warp;
    begin = base + (last - base) * warp / kWarps;
    end = base + (last - base) * (warp + 1) / kWarps;
    marks = (1U << (end - begin)) - 1U;  // fewer than 32: so much shared memory no chip has
  }

  __device__ __forceinline__ bool any() const { return largest > kNothingKey; }
  __device__ __forceinline__ bool plain() const { return floor.key == kNothingKey && floor.limit <= 0; }
  __device__ __forceinline__ Vec16* slot(int group) const {
    return reinterpret_cast<Vec16*>(ptx::shared_memory() + kResidentFixed) + (group - base) * ptx::kWarp + ptx::lane_idx();
  }
  __device__ __forceinline__ int position(int group) const { return (group * ptx::kWarp + ptx::lane_idx()) * kItems - lead; }
  __device__ __forceinline__ int first_position() const { return base * ptx::kWarp * kItems - lead; }
  __device__ __forceinline__ int end_position() const { return last * ptx::kWarp * kItems - lead; }

  /// Asks for the row, in four parts.
  __device__ __forceinline__ void load() {
    const bool dense = stride == static_cast<i64>(sizeof(T));
    const bool whole = dense && begin * ptx::kWarp * kItems >= lead && end * ptx::kWarp * kItems - lead <= n;
    const u8* from = row + static_cast<i64>(position(begin)) * static_cast<i64>(sizeof(T));
    Vec16* to = slot(begin);
    int group = begin;
#pragma unroll 1
    for (int part = 1; part <= 4; ++part) {
      const int until = begin + (end - begin) * part / 4;
#pragma unroll 1
      for (; whole && group < until; ++group) {
        ptx::cp_async_16(to, from, true);
        from += kGroupBytes;
        to += ptx::kWarp;
      }
#pragma unroll 1
      for (; group < until; ++group) {
        const int at = position(group);
        if (dense && at >= 0 && at + kItems <= n) {
          ptx::cp_async_16(slot(group), row + static_cast<i64>(at) * static_cast<i64>(sizeof(T)), true);
        } else {
          *slot(group) = load_some<T>(row, stride, n, at);
        }
      }
      ptx::cp_async_commit();
    }
  }

  static __device__ __forceinline__ void widen(float (&x)[kItems], const Vec16& v) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float part[kPerWord<T>];
      unpack<T>(part, v.x[i]);
#pragma unroll
      for (int e = 0; e < kPerWord<T>; ++e) x[i * kPerWord<T> + e] = part[e];
    }
  }
  /// Calls f(position of x[0], x, where it lies) for each chunk of this thread, in order. What has no mass is kNothing, NaN included: of
  /// f32 since survey() has been by.
  template <typename F>
  __device__ __forceinline__ void each(F f) const {
    Vec16* at = slot(begin);
    int place = position(begin);
    const int count = end - begin;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      float x[kItems];
      widen(x, *at);
      if constexpr (!kCleaned) {
#pragma unroll
        for (int e = 0; e < kItems; ++e) x[e] = ptx::max_number(x[e], kNothing);
      }
      f(place, x, at);
      at += ptx::kWarp;
      place += ptx::kWarp * kItems;
    }
  }

  /// Calls f(whether there is one for this lane, position, x) until each lane's marked chunks have been seen; all lanes together.
  template <typename F>
  __device__ __forceinline__ void each_marked(F f) const {
    const Vec16* first = slot(begin);
    const int place = position(begin);
    u32 left = marks;
#pragma unroll 1
    while (ptx::any(left != 0)) {
      const int i = left != 0 ? first_bit(left) : 0;
      float x[kItems];
      widen(x, first[i * ptx::kWarp]);
      if constexpr (!kCleaned) {
#pragma unroll
        for (int e = 0; e < kItems; ++e) x[e] = ptx::max_number(x[e], kNothing);
      }
      f(left != 0, place + i * ptx::kWarp * kItems, x);
      left &= left - 1;
    }
  }

  static __device__ __forceinline__ int first_bit(u32 bits) { return ptx::popcount((bits & (0U - bits)) - 1U); }
  /// The entry of the lowest bit; x stays in registers.
  static __device__ __forceinline__ float pick(const float (&x)[kItems], u32 bits) {
    const int first = first_bit(bits);
    float value = x[0];
#pragma unroll
    for (int e = 1; e < kItems; ++e) value = e == first ? x[e] : value;
    return value;
  }

  /// Weights of a chunk; few rows are scaled.
  static __device__ __forceinline__ void weigh(float (&weight)[kItems], const float (&x)[kItems], const Weighting& weighting) {
#pragma unroll
    for (int e = 0; e < kItems; ++e) weight[e] = kProbs ? x[e] : logit_weight(x[e], weighting);
    if (kProbs && !weighting.plain) {
#pragma unroll
      for (int e = 0; e < kItems; ++e) weight[e] = scaled_weight<kProbs>(x[e], weighting);
    }
  }

  // Functions that are called often stay such, and take what they need by value: an object whose address is taken is in local memory, for
  // which there is next to no L1 beside so much shared memory.

  /// Two numbers of each warp to all warps.
  __device__ __forceinline__ void exchange(u64 first, u64 second) {
    parity ^= 1;
    send(parity, first, second);
  }
  static __device__ __attribute__((noinline)) void send(int parity, u64 first, u64 second) {
    S& s = own<S>();
    const int lane = ptx::lane_idx();
    const int size = ptx::cluster_size();
    const int share = ptx::cluster_rank() * kWarps + ptx::thread_idx() / ptx::kWarp;
    if (lane < size) {
      S& to = size == 1 ? s : *ptx::in_block(&s, lane);
      to.shares[parity][0][share] = first;
      to.shares[parity][1][share] = second;
    }
    sync_row();
  }
  /// Of the first `count` warps.
  static __device__ __attribute__((noinline)) u64 sum_of(int parity, int which, int count) {
    const S& s = own<S>();
    u64 sum = 0;
#pragma unroll
    for (int i = ptx::lane_idx(); i < S::kShares; i += ptx::kWarp) sum += i < count ? s.shares[parity][which][i] : 0;
    return warp_sum(sum);
  }
  __device__ __forceinline__ u64 sum(int which) const { return sum_of(parity, which, size * kWarps); }
  __device__ __forceinline__ u64 sum_before(int which) const { return sum_of(parity, which, share); }
  static __device__ __attribute__((noinline)) u32 most_of(int parity, int which, int shift) {
    const S& s = own<S>();
    const int count = ptx::cluster_size() * kWarps;
    u32 value = 0;
#pragma unroll
    for (int i = ptx::lane_idx(); i < S::kShares; i += ptx::kWarp)
      value = i < count ? max(value, static_cast<u32>(s.shares[parity][which][i] >> shift)) : value;
    return ptx::max_warp(value);
  }
  __device__ __forceinline__ u32 most(int which, int shift) const { return most_of(parity, which, shift); }

  /// NaN and masked entries lose their value where they lie, and others get their bias and penalties.
  template <bool kEdits, bool kMasked>
  __device__ __forceinline__ bool prepare(const abi::SampleParams& p, i64 r) {
    S& s = own<S>();
    bool saw_nan = false;
    ptx::cp_async_wait<0>();
    if constexpr (kEdits) {
      static_assert(kSame<T, float>, "edited values are f32");
      if (ptx::thread_idx() == 0) s.edits.open(p, r);
#pragma unroll 1
      for (int group = begin; group < end; ++group) {
        Vec16 v = *slot(group);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float x = float_of(v.x[e]);
          saw_nan |= x != x;
          v.x[e] = bits_of(ptx::max_number(x, kNothing));
        }
        *slot(group) = v;
      }
      ptx::sync_block();
      float* s_row = reinterpret_cast<float*>(ptx::shared_memory() + kResidentFixed);
      patch(s.edits, s_row, first_position(), end_position() - first_position(), kNothing);
      ptx::sync_block();
    }
    if constexpr (kMasked) {
      const u32* allowed = p.allowed + r * p.allowed_stride;
#pragma unroll 1
      for (int group = begin; group < end; ++group) {
        T* items = reinterpret_cast<T*>(slot(group));
        const int at = position(group);
#pragma unroll
        for (int e = 0; e < kItems; ++e) {
          const float x = to_f32(items[e]);
          saw_nan |= x != x;
          const bool in = at + e >= 0 && at + e < n;
          if (in && (allowed[(at + e) / 32] >> ((at + e) % 32) & 1U) == 0) items[e] = from_f32<T>(kNothing);
        }
      }
    }
    return saw_nan;
  }

  /// The first pass: the largest entry, and with kMass the mass of all by a guessed weighting; true: it is as guessed, and sum(1) is right.
  template <bool kMass>
  __device__ __forceinline__ bool survey(float at_temperature, bool saw_nan) {
    temperature = at_temperature;
    w = make_weighting(kProbs, 1.0F, temperature);
    float best = kNothing;
    SplitMass total{};
    int group = begin;
#pragma unroll 1
    for (int part = 1; part <= 4; ++part) {
      if (part == 1) ptx::cp_async_wait<3>();
      if (part == 2) ptx::cp_async_wait<2>();
      if (part == 3) ptx::cp_async_wait<1>();
      if (part == 4) ptx::cp_async_wait<0>();
      const int until = begin + (end - begin) * part / 4;
#pragma unroll 1
      for (; group < until; ++group) {
        float x[kItems];
        widen(x, *slot(group));
#pragma unroll
        for (int e = 0; e < kItems; ++e) {
          saw_nan |= x[e] != x[e];
          x[e] = ptx::max_number(x[e], kNothing);
          best = ptx::max_number(best, x[e]);
          if constexpr (kMass) {
            const SplitMass mass = split_mass(scaled_weight<kProbs>(x[e], make_weighting(kProbs, 1.0F, 1.0F)));
            total.high += mass.high;
            total.low += mass.low;
          }
        }
        if constexpr (kCleaned) *slot(group) = Vec16{{bits_of(x[0]), bits_of(x[1]), bits_of(x[2]), bits_of(x[3])}};
      }
    }
    const u64 mass = kMass ? warp_sum(joined(total.high, total.low, static_cast<u32>((end - begin) * kItems))) : 0;
    const u32 key = ptx::max_warp(key_of(best));
    exchange(static_cast<u64>(ptx::any(saw_nan) ? 1 : 0) << 32 | key, mass);
    largest = most(0, 0);
    nan = most(0, 32) != 0;
    w = make_weighting(kProbs, value_of(largest), temperature);
    return !kProbs || w.plain;
  }

  /// sum(0) becomes the mass of what the floor keeps. kStore: weights take the place of f32 entries. Returns this warp's.
  template <bool kStore = false>
  __device__ __forceinline__ u64 masses() {
    const Weighting weighting = w;
    const bool all = plain();
    const ValueCut kept(floor);
    SplitMass total{};
    each([&](int place, auto& x, Vec16* at) {
      if (!all) {
#pragma unroll
        for (int e = 0; e < kItems; ++e) x[e] = kept.keeps(x[e], place + e) ? x[e] : kNothing;
      }
      float weight[kItems];
      weigh(weight, x, weighting);
#pragma unroll
      for (int e = 0; e < kItems; ++e) {
        const SplitMass mass = split_mass(weight[e]);
        total.high += mass.high;
        total.low += mass.low;
      }
      if constexpr (kStore) *at = Vec16{{bits_of(weight[0]), bits_of(weight[1]), bits_of(weight[2]), bits_of(weight[3])}};
    });
    const u64 mass = warp_sum(joined(total.high, total.low, static_cast<u32>((end - begin) * kItems)));
    exchange(mass, 0);
    return mass;
  }

  /// Masses of what the floor keeps: of all, of the warps before this one, and of this one.
  struct Kept {
    u64 total;
    u64 before;
    u64 here;
  };
  __device__ __forceinline__ Kept shared_out(int which) const {
    return {sum(which), sum_before(which), own<S>().shares[parity][which][share]};
  }
  /// The same where the latest cut has left what is needed, and nothing else has been cut.
  __device__ __forceinline__ Kept after_cut() const {
    const S& s = own<S>();
    const int from = begin * ptx::kWarp * kItems - lead;
    const int to = end * ptx::kWarp * kItems - lead;
    Kept few{0, 0, 0};
    for (int i = ptx::lane_idx(); i < num_all; i += ptx::kWarp) {
      const i32 place = s.all_position[i];
      if (!floor.keeps(s.all_key[i], place)) continue;
      const u64 mass = mass_of<kProbs>(value_of(s.all_key[i]), w);
      few.total += mass;
      if (place < from) few.before += mass;
      if (place >= from && place < to) few.here += mass;
    }
    const Kept others = shared_out(0);
    return {others.total + warp_sum(few.total), others.before + warp_sum(few.before), others.here + warp_sum(few.here)};
  }

  /// The first position of the largest entry.
  __device__ __forceinline__ int argmax() {
    const float top = value_of(largest);
    u32 first = 0xffffffffU;
    each([&](int place, auto& x, Vec16*) {
#pragma unroll
      for (int e = kItems - 1; e >= 0; --e) {
        if (x[e] == top) first = min(first, static_cast<u32>(place + e));
      }
    });
    exchange(ptx::max_warp(~first), 0);
    return static_cast<int>(~most(0, 0));
  }

  /// The least key whose mass is at least min_p of the largest: a bisection by 32 at once, on the masses themselves.
  __device__ __forceinline__ u32 least_key(float min_p) const {
    const u64 whole = mass_of<kProbs>(value_of(largest), w);
    const u64 need = min_p >= 1.0F ? whole : mass_needed(whole, min_p);
    u32 low = kNothingKey + 1;
    u32 high = largest;
#pragma unroll 1
    while (low < high) {
      const u32 step = (high - low) / ptx::kWarp + 1;
      const u32 at = min(low + static_cast<u32>(ptx::lane_idx()) * step, high);
      const u32 enough = ptx::ballot(mass_of<kProbs>(value_of(at), w) >= need);
      const int below = ptx::kWarp - ptx::popcount(enough);  // lanes before the first that has enough
      if (below > 0) low = min(low + static_cast<u32>(below - 1) * step, high) + 1;
      if (below < ptx::kWarp && enough != 0) high = min(high, ptx::shuffle(at, below));
    }
    return high;
  }

  // ---- cuts

  /// Histogram of the sample: of keys in [low, high], or of the bits of weights with their masses.
  template <bool kMass>
  __device__ __forceinline__ MergedBins sampled(u32 low, u32 high, int shift);

  /// Keys between which the first `count` of the order should end.
  __device__ __forceinline__ void bracket_by_count(u64 count, u32& low, u32& high);

  /// The key of a weight, scaled, given by its bits; near it where w is of logits.
  __device__ __forceinline__ u32 key_of_weight(u32 bits, float slack) const {
    if constexpr (kProbs) return key_of(float_of(bits) / w.factor);
    const float d = log(float_of(bits)) * (kLog2E / w.scale);
    return key_of(w.max + d + slack * (abs(w.max) - d));
  }
  /// Keys between which the part p of the mass should end: where the sample's order reaches it, and four standard deviations to both sides.
  __device__ __forceinline__ void bracket_by_mass(float p, u32& low, u32& high);

  /// sum(0): mass of all that the floor keeps (kMass), sum(1): amount of what has keys above `high`; the histogram: of keys in [low, end].
  template <bool kMass>
  __device__ __forceinline__ void tally(u32 low, u32 high, u32 end_key, int shift);

  /// The cut behind the first entries with keys in [low, high] that amount to `need`, where these entries are few. Else false. `adds`: what
  /// lies above them, and the tally has not added up, is.
  template <bool kMass>
  __device__ __forceinline__ bool cut_few(u32 low, u32 high, u64 need, bool adds, Cut& cut);

  /// The same among entries of one value, many of them.
  template <bool kMass>
  __device__ __forceinline__ Cut cut_ties(u32 low, u32 high, u64 need);

  /// What keeps the first entries of those that the floor keeps: `count` of them, or (kMass) the part p of their mass (of `whole`, where
  /// that is not 0). `few`: the floor keeps few entries.
  template <bool kMass>
  __device__ __forceinline__ Cut find(u64 count, float p, u64 whole, bool few);

  /// What the floor keeps, at most kBins entries, to block 0 by position: keys in the first half of its histogram's place, positions in the
  /// second. Returns how many, to all.
  __device__ __forceinline__ int collect();

  /// One warp: of its entries that the floor keeps, the first with which their masses add up to more than `left`.
  struct Drawn {
    int position;
    float value;
    bool here;  // in this lane
  };
  __device__ __forceinline__ Drawn draw(u64 left) const {
    Drawn drawn{0, 0, false};
#pragma unroll 1
    for (int group = begin; group < end; ++group) {
      float x[kItems];
      u64 mass[kItems];
      u64 lane_mass = 0;
      widen(x, *slot(group));
#pragma unroll
      for (int e = 0; e < kItems; ++e) {
        x[e] = ptx::max_number(x[e], kNothing);
        mass[e] = floor.keeps(key_of(x[e]), position(group) + e) ? mass_of<kProbs>(x[e], w) : 0;
        lane_mass += mass[e];
      }
      const u64 all = warp_sum(lane_mass);
      if (left >= all) {
        left -= all;
        continue;
      }
      u64 before = inclusive(lane_mass) - lane_mass;
#pragma unroll
      for (int e = 0; e < kItems; ++e) {
        if (before <= left && left < before + mass[e]) drawn = {position(group) + e, x[e], true};
        before += mass[e];
      }
      break;
    }
    return drawn;
  }
};

}  // namespace girih::sampling
