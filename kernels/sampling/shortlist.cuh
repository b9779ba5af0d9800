// What a row's order begins with, by one pass of few instructions: all entries from some value on come to the list of block 0 (list.cuh),
// where select.cuh finds cuts as in a list of its own. The value is one that a sample of the row says is small enough for the first
// `count` of the order (where equal entries are too many to be listed, the first of them); or, for min-p, what weighs enough beside the
// largest entry seen so far. Edited entries are listed as what they become after the pass, which knows nothing of edits. Rows whose list
// would be too long are left to select.cuh's passes.
#pragma once

#include "sampling/row.cuh"
#include "sampling/stream.cuh"

namespace girih::sampling {

/// kByCount: the first `count` of the order are asked for, else what weighs at least min_p of the largest.
template <Config kConfig, bool kProbs, bool kEdits, bool kByCount>
class Shortlist : Stream<kProbs, Layout<kConfig, float, kEdits>::kWork> {
 public:
  using S = Shared<kConfig>;
  using Base = Stream<kProbs, Layout<kConfig, float, kEdits>::kWork>;
  static constexpr int kBytes = Layout<kConfig, float, kEdits>::kWork + Base::kRingBytes;
  static constexpr u32 kLeastKey = (kProbs ? 0x80000000U : abi::kKeyOfMinusInf) + 1U;  // of an entry with mass

  struct Wish {
    int count;
    float min_p;
    float scale;  // of the logits' weights
  };
  /// What has come of it. ok: block 0 lists every entry from `low` on.
  struct Found {
    bool ok, nan;
    u32 low, largest;  // keys
  };

  __device__ __forceinline__ Shortlist(const u8* row, int n) : Base(row, n) {}

  /// Whether it may be worth while; the same in all blocks. Ahead of run().
  __device__ __forceinline__ bool suits(const Wish& wish, const abi::SampleParams* edits, i64 r) const {
    if (n_ < Base::kLeast) return false;
    if constexpr (kEdits) {
      List bias{}, history{};
      bias.open(edits->bias, r);
      history.open(edits->history, r);
      if (static_cast<i64>(bias.count) * history.count > kMostPairs) return false;
    }
    return !kByCount || rank_of(wish.count) <= kMostRank;
  }

  /// The first tiles and the sample are asked for.
  __device__ __forceinline__ void start() {
    Base::sample(x_);
    Base::start_pass(false);
    Base::prefetch();
    if (ptx::thread_idx() == 0) own<S>().num_spilled = own<S>().peak = 0;
  }

  /// Behind a barrier of the cluster after start().
  __device__ __forceinline__ Found run(S& leader, const Wish& wish, const abi::SampleParams* edits, i64 r) {
    S& s = own<S>();
#pragma unroll 1
    for (int i = ptx::thread_idx(); i < 2 * S::kMaxTiles; i += kThreads) s.tile_mass[i] = 0;
    const Threshold from = threshold(wish);
    Found found{false, false, from.key, 0};
    if (found.low == 0) {
      ptx::cp_async_wait<0>();
      return found;
    }
    Sums sums{};
    pass(leader, wish, from, sums);
    if constexpr (kEdits) edit(leader, found.low, *edits, r, sums);
    const Sums all = all_sums<S>(sums);
    found.nan = all.nan != 0;
    found.largest = max(all.largest, kLeastKey - 1U);
    i64 listed = all.inside_count;
    if (kRises) found.low = max(found.low, key_beside(value_of(found.largest), wish, kSlack / 2));
    if constexpr (kTies) {
      const i64 need = wish.count - listed;
      if (from.ties && need > 0 && static_cast<u64>(need) <= all.inside) {
        --found.low;
        found.largest = max(found.largest, found.low);
        list_ties(leader, value_of(found.low), need, static_cast<int>(sums.inside_count));
        listed = wish.count;
        sync_row();
      }
    }
    if (ptx::thread_idx() == 0) {
      s.listed = s.summed = 1;
      s.listed_low = found.low;
      s.listed_high = abi::kKeyOfInf;
    }
    gather(leader);
    if (ptx::cluster_size() == 1) ptx::sync_block();
    const u32 spilled = leader.num_spilled;
    const bool enough =
        kByCount ? listed >= wish.count
                 : !kEdits || key_beside(value_of(found.largest), wish, kSlack) >= found.low;  // edits may have lowered the largest
    found.ok = spilled <= static_cast<u32>(S::kSpill) && !(kEdits && spilled != 0) && (enough || found.low == kLeastKey);
    return found;
  }

 private:
  using Base::chunk_of, Base::load_chunk, Base::position_of_chunk;
  using Base::n_, Base::lead_, Base::first_, Base::count_, Base::warp_, Base::from_;
  static constexpr int kMostRank = kThreads * 3 / 4;
  static constexpr i64 kMostPairs = 1 << 16;  // of a biased and a counted token, which are compared

  static constexpr bool kTies = kByCount && !kEdits;
  static constexpr bool kRises = !kByCount && !kEdits;  // from what value on entries are listed, as larger ones are seen
  /// The key from which on entries are listed; 0: too many would be. ties: entries of the key before it are counted, by pieces, as they are
  /// too many to be listed, of which the first are wanted.
  struct Threshold {
    u32 key;
    bool ties;
  };
  static __device__ __forceinline__ u32* piece_ties() { return own<S>().histogram; }
  static_assert((abi::kMaxVocab / Base::kTile + 2) * kWarps <= 2 * S::kBins || !kTies);

  /// Of a sample of the row: where the order has as many before as `count` of the row should be, and four standard deviations more.
  __device__ __forceinline__ int rank_of(int count) const {
    const float expected = static_cast<float>(count) * static_cast<float>(Base::kSample) / static_cast<float>(n_);
    return static_cast<int>(min(expected + 4.0F * sqrt(expected) + 9.0F, 1e6F));
  }
  /// From which key on entries may weigh min_p of one of value x, or more. The slack covers what rounding does; with half of it the key is
  /// above all that smaller x have with all of it.
  static constexpr float kSlack = 1e-4F;
  static __device__ __forceinline__ u32 key_beside(float x, const Wish& wish, float slack) {
    if (x == kInfinity) return abi::kKeyOfInf;  // beside which nothing else weighs anything
    const float part = min(wish.min_p, 1.0F) * (1.0F - slack);
    const float least = kProbs ? x * part : x + ptx::lg2(part) / wish.scale - slack * (abs(x) + 1.0F / wish.scale);
    return least > -kInfinity ? max(key_of(least), kLeastKey) : kLeastKey;
  }

  /// The key that is reached by the largest sampled entries of `rank` threads, or little below it: so the sample has at least as many from
  /// it on. Two bits at a time, down to bit `last`.
  static __device__ __forceinline__ u32 key_of_rank(u32 largest, int rank, int last) {
    u32* s_counts = reinterpret_cast<u32*>(block_scratch());  // of warps, in turns
    constexpr u32 kCountMask = 1023;
    static_assert(kThreads <= static_cast<int>(kCountMask));
    u32 low = 0;
#pragma unroll 1
    for (int shift = 30; shift >= last; shift -= 2) {
      u32* s_now = s_counts + (shift & 2) / 2 * kWarps;
      u32 reached = 0;
#pragma unroll
      for (u32 i = 1; i <= 3; ++i) reached += largest >= low + (i << shift) ? 1U << (10 * (i - 1)) : 0U;
      reached = ptx::sum_warp(reached);
      if (ptx::lane_idx() == 0) s_now[ptx::thread_idx() / ptx::kWarp] = reached;
      ptx::sync_block();
      reached = ptx::sum_warp(ptx::lane_idx() < kWarps ? s_now[ptx::lane_idx()] : 0);
      u32 digit = 0;
#pragma unroll
      for (u32 i = 0; i < 3; ++i) digit += (reached >> (10 * i) & kCountMask) >= static_cast<u32>(rank) ? 1U : 0U;
      low += digit << shift;
    }
    return low;
  }

  /// Whether so many would be listed from a key on that the list might not hold them.
  __device__ __forceinline__ bool is_long(u32 low) const {
    const float from = value_of(low);
    u32 inside = 0;
#pragma unroll
    for (int i = 0; i < Base::kSampled; ++i) {
#pragma unroll
      for (int e = 0; e < Base::kItems; ++e) inside += float_of(x_[i].x[e]) >= from ? 1U : 0U;
    }
    const float expected = static_cast<float>(block_sum(inside)) * static_cast<float>(n_) / static_cast<float>(Base::kSample);
    // What weighs enough beside the sample's largest is a few times what does beside the row's.
    return expected > static_cast<float>(S::kListCapacity) * (kRises ? 2.0F : 0.7F);
  }
  /// The same in all blocks.
  __device__ __forceinline__ Threshold threshold(const Wish& wish) const {
    constexpr int kEnough = 10;  // bits that are not asked for
    float most = Base::kNothing;
#pragma unroll
    for (int i = 0; i < Base::kSampled; ++i) {
#pragma unroll
      for (int e = 0; e < Base::kItems; ++e) most = ptx::max_number(most, float_of(x_[i].x[e]));
    }
    const u32 largest = key_of(most);
    const int rank = kByCount ? rank_of(wish.count) : 1;
    u32 low = 0;
#pragma unroll 1
    for (int last = kEnough; last >= 0; last -= kEnough) {
      low = key_of_rank(largest, rank, last);
      const bool is_value = last == 0;  // it is a sampled entry's
      low = kByCount ? max(low, kLeastKey) + (is_value ? 1U : 0U) : key_beside(value_of(low), wish, kSlack);
      if (!is_long(low)) return {low, is_value};
      if (!kTies) break;
      ptx::sync_block();
    }
    return {0, false};
  }

  /// Lists, and finds out about what it has listed.
  __device__ __forceinline__ void pass(S& leader, const Wish& wish, const Threshold& threshold, Sums& sums) const {
    S& s = own<S>();
    const float tie = value_of(threshold.key - 1U);
    float from = value_of(threshold.key);
    float kept = from;  // of what is listed
    float largest = Base::kNothing;
    u32 ties = 0;
    u32 peak = 0;
    int listed = 0;
    u32 nan = 0;
    Base::each_piece(false, [&](int tile, const Vec16* s_piece) {
      const int position = position_of_chunk(chunk_of(tile));
#pragma unroll
      for (int c = 0; c < Base::kChunks; ++c) {
        const Vec16* s_chunk = s_piece + c * ptx::kWarp + ptx::lane_idx();
        const Vec16 v = *s_chunk;
        const float most =
            ptx::max_or_nan(ptx::max_or_nan(float_of(v.x[0]), float_of(v.x[1])), ptx::max_or_nan(float_of(v.x[2]), float_of(v.x[3])));
        if (!(most < from)) {
          nan |= most != most ? 1U : 0U;
          largest = ptx::max_number(largest, most);
          u32 inside = 0;
#pragma unroll
          for (int e = 0; e < Base::kItems; ++e) inside |= float_of(v.x[e]) >= from ? 1U << e : 0U;
#pragma unroll 1
          for (; inside != 0; inside &= inside - 1, ++listed) {  // few lanes have one, fewer have two
            const int e = ptx::popcount((inside & (0U - inside)) - 1U);
            list_one(leader, listed, reinterpret_cast<const float*>(s_chunk)[e], position + c * ptx::kWarp * Base::kItems + e);
          }
        }
      }
      if constexpr (kTies) {
        if (threshold.ties) {
          u32 here = 0;
#pragma unroll
          for (int c = 0; c < Base::kChunks; ++c) {
            const Vec16 v = s_piece[c * ptx::kWarp + ptx::lane_idx()];
#pragma unroll
            for (int e = 0; e < Base::kItems; ++e) here += float_of(v.x[e]) == tie ? 1U : 0U;
          }
          ties += here;
          here = ptx::sum_warp(here);
          if (ptx::lane_idx() == 0) piece_ties()[tile * kWarps + warp_] = here;
        }
      }
      if constexpr (kRises) {
        if (ptx::any(key_of(largest) > peak)) {
          const u32 key = ptx::max_warp(key_of(largest));
          if (ptx::lane_idx() == 0) ptx::atomic_max_shared(&s.peak, key);
        }
        const u32 now = s.peak;
        if (now > peak) from = max(from, value_of(key_beside(value_of(now), wish, kSlack)));
        peak = max(peak, now);
        if (listed > S::kOwn / 2 && from > kept) {
          listed = keep(min(listed, S::kOwn), key_of(from));
          kept = from;
        }
      }
    });
    sums.largest = key_of(largest);
    sums.inside_count = static_cast<u32>(listed);
    sums.inside = ties;
    sums.nan = nan;
    s.num_listed[ptx::thread_idx()] = min(listed, S::kOwn);
  }
  /// Of this thread's first `listed` only keys from `low` on stay; returns how many do.
  static __device__ __forceinline__ int keep(int listed, u32 low) {
    S& s = own<S>();
    int stay = 0;
#pragma unroll 1
    for (int i = 0; i < listed; ++i) {
      const u32 key = s.list_key[i * kThreads + ptx::thread_idx()];
      if (key < low) continue;
      s.list_key[stay * kThreads + ptx::thread_idx()] = key;
      s.list_position[stay * kThreads + ptx::thread_idx()] = s.list_position[i * kThreads + ptx::thread_idx()];
      ++stay;
    }
    return stay;
  }
  static __device__ __forceinline__ void list_one(S& leader, int before, float x, int position) {
    S& s = own<S>();
    if (before < S::kOwn) {
      s.list_key[before * kThreads + ptx::thread_idx()] = key_of(x);
      s.list_position[before * kThreads + ptx::thread_idx()] = position;
    } else {
      append(leader, before, key_of(x), position);
    }
  }

  /// Of the entries of value `tie` the row's first `need` join the list: each piece's number becomes how many of it do.
  __device__ __forceinline__ void list_ties(S& leader, float tie, i64 need, int listed) const {
    S& s = own<S>();
    const int pieces = count_ * kWarps;
    u64 before = 0;
#pragma unroll 1
    for (int b = 0; b < ptx::cluster_rank(); ++b) before += s.sums[b].inside;
#pragma unroll 1
    for (int first = 0; first < pieces; first += kThreads) {
      const int piece = first + ptx::thread_idx();
      const u64 here = piece < pieces ? piece_ties()[piece] : 0;
      const Scan scan = block_scan(here);
      const u64 left = static_cast<u64>(need) - min(static_cast<u64>(need), before + scan.before);
      if (piece < pieces) piece_ties()[piece] = static_cast<u32>(min(here, left));
      before += scan.total;
    }
    ptx::sync_block();
#pragma unroll 1
    for (int piece = warp_; piece < pieces; piece += kWarps) {
      const u64 wanted = piece_ties()[piece];
      if (wanted == 0) continue;
      const int chunk = (first_ * kWarps + piece) * Base::kChunks * ptx::kWarp + ptx::lane_idx();
      u64 ties = 0;
#pragma unroll 1
      for (int c = 0; c < Base::kChunks; ++c) {
        const Vec16 v = load_chunk(chunk + c * ptx::kWarp);
        u64 here = 0;
#pragma unroll
        for (int e = 0; e < Base::kItems; ++e) here += float_of(v.x[e]) == tie ? 1 : 0;
        const u64 upto = inclusive(here);
        u64 number = ties + upto - here;
        ties += shuffle(upto, ptx::kWarp - 1);
#pragma unroll
        for (int e = 0; e < Base::kItems; ++e) {
          if (float_of(v.x[e]) == tie && number++ < wanted) list_one(leader, listed++, tie, position_of_chunk(chunk + c * ptx::kWarp) + e);
        }
      }
    }
    s.num_listed[ptx::thread_idx()] = min(listed, S::kOwn);
  }

  /// What is edited leaves the list, and comes to it as what it becomes. A thread takes a token, and looks where it would be listed.
  __device__ __forceinline__ void edit(S& leader, u32 low, const abi::SampleParams& p, i64 r, Sums& sums) const {
    S& s = own<S>();
    List bias{}, history{};
    bias.open(p.bias, r);
    history.open(p.history, r);
    const float from = value_of(low);
    const float repetition = p.repetition.at(r), frequency = p.frequency.at(r), presence = p.presence.at(r);
    ptx::sync_block();
    int listed = s.num_listed[ptx::thread_idx()];
#pragma unroll 1
    for (int i = ptx::thread_idx(); i < bias.count + history.count; i += kThreads) {
      const bool counted = i >= bias.count;
      const i32 token = counted ? history.tokens[i - bias.count] : bias.tokens[i];
      const int at = token + lead_ - first_ * Base::kTile;
      if (token < 0 || token >= n_ || at < 0 || at >= count_ * Base::kTile) continue;
      const int owner = Base::owner_of(at).thread;
#pragma unroll 1
      for (int k = 0; k < s.num_listed[owner]; ++k) {
        if (s.list_position[k * kThreads + owner] == token) s.list_key[k * kThreads + owner] = 0;
      }
      if (!counted && place_in(history, token) >= 0) continue;
      float x = ptx::max_number(*reinterpret_cast<const float*>(from_ + static_cast<i64>(token + lead_) * 4), Base::kNothing);
      const int place = counted ? place_in(bias, token) : i;
      if (place >= 0) x = ptx::max_number(x + static_cast<const float*>(bias.values)[place], Base::kNothing);
      if (counted)
        x = penalised(x, history.values == nullptr ? 1 : static_cast<const i32*>(history.values)[i - bias.count], repetition, frequency,
                      presence, Base::kNothing);
      if (x >= from) list_one(leader, listed++, x, token);
    }
    ptx::sync_block();
    s.num_listed[ptx::thread_idx()] = min(listed, S::kOwn);
    sums.largest = sums.inside_count = 0;
#pragma unroll 1
    for (int i = 0; i < min(listed, S::kOwn); ++i) {
      const u32 key = s.list_key[i * kThreads + ptx::thread_idx()];
      sums.largest = max(sums.largest, key);
      sums.inside_count += key != 0 ? 1U : 0U;
    }
  }
  static __device__ __forceinline__ int place_in(const List& list, i32 token) {
    int place = -1;
#pragma unroll 4
    for (int i = 0; i < list.count; ++i) place = list.tokens[i] == token ? i : place;
    return place;
  }

  Vec16 x_[Base::kSampled];  // the sample
};

}  // namespace girih::sampling
