// Top-p of a row of f32 in few passes, and draws without cuts: what run_sample() and top_p_renorm do first where they can. A sample of the
// row says between which values the cut should lie. One pass adds up exact masses, of all and, for each piece of the row, of what lies
// above that bracket, and lists what is inside; cut and token follow from these, and of the row one piece is read again. Logits take a pass
// ahead of it, for the largest, and with it what all weigh, about. Rows that are odd, and cuts that lie elsewhere, are left to select.cuh.
// Bracket, cut and token: nucleus_cut.cuh.
#pragma once

#include "sampling/list.cuh"
#include "sampling/stream.cuh"

namespace girih::sampling {

/// Start of a block's shared memory; the ring of tiles and the list follow.
struct NucleusShared {
  static constexpr int kBins = 1024;
  static constexpr int kBinsEach = kBins / kThreads;
  static constexpr int kSampleBins = 2 * kBins;
  static constexpr int kMaxTiles = 64;  // of a block
  static constexpr int kMaxEdits = 512;
  u64 scratch[kWarps];
  alignas(16) u32 histogram[2 * kBins];    // masses of what is listed, before that counts of the sample
  u32 piece_mass[2 * kMaxTiles * kWarps];  // of what is above the bracket, later of what is kept
  float sample_sum[kWarps], sample_squares[kWarps];
  float warp_weight[kWarps];
  u32 warp_largest[kWarps];
  u32 sample_count[kWarps], sample_low[kWarps], sample_high[kWarps];
  u64 warp_total[kWarps], warp_above[kWarps];
  u32 warp_ties[kWarps];
  u32 odd;  // the row is not for this way
  float low_sum, low_squares;
  u32 num_few;
  Cut cut;
  u64 kept, block_kept;
  int bin;
  u64 above, amount, left;
  int piece;
  u8 num_listed[kThreads];
  i32 edit_token[kMaxEdits];  // of the bias, then of the history
  u32 edit_value[kMaxEdits];  // f32 and counts
};

template <bool kProbs, bool kEdits>
class Nucleus : Stream<kProbs, (static_cast<int>(sizeof(NucleusShared)) + 127) / 128 * 128> {
 public:
  using S = NucleusShared;
  static constexpr int kFixed = static_cast<int>((sizeof(S) + 127) / 128 * 128);
  using Base = Stream<kProbs, kFixed>;
  using Base::kItems, Base::kChunks, Base::kPiece, Base::kTile, Base::kEach, Base::kSampled, Base::kSample, Base::kLeast, Base::kNothing;
  /// Listed entries of one bin of the histogram, this block's and all; where the ring has been.
  struct Few {
    static constexpr int kMost = 256;
    u32 key[kMost];
    i32 position[kMost];
    u32 all_key[kMost];
    i32 all_position[kMost];
    u64 all_mass[kMost];
  };
  static constexpr int kOwn = 48;                                   // entries of the list that a thread has
  static constexpr int kMost = kOwn - kEach;                        // that it has after a tile
  static constexpr int kLong = 14 * kThreads;                       // more in the bracket, and threads' lists might not hold them
  static constexpr int kCoarse = 17;                                // of bits of weights, so many make a bin: 64 for a factor of 2
  static constexpr u32 kEnd = 0x40000000U;                          // bits of 2.0F
  static constexpr int kPieces = S::kMaxTiles * kWarps / kThreads;  // of a thread, when it looks for the token's
  static constexpr int kBytes = kFixed + Base::kRingBytes + kOwn * kThreads * 4;

  __device__ __forceinline__ Nucleus(const u8* row, int n, float temperature) : Base(row, n), temperature_(temperature) {
    w_ = make_weighting(kProbs, 1.0F, temperature);
  }

  /// Draws. False: nothing has been written, and the row must be done the other way. All blocks of the cluster come to the same.
  __device__ __forceinline__ bool run(const abi::SampleParams& p, i64 r, float top_p) {
    if (!fits()) return false;
    if constexpr (kEdits) {
      if (!open_edits(p, r)) return false;
    }
    u64 total = 0;
    if (!find(top_p, total)) return false;
    draw(p, r, total);
    return true;
  }

  /// Draws from all. False: as above.
  __device__ __forceinline__ bool run_plain(const abi::SampleParams& p, i64 r) {
    if (!fits()) return false;
    if constexpr (kEdits) {
      if (!open_edits(p, r)) return false;
    }
    u64 total = 0;
    if (!add_up(total)) return false;
    draw(p, r, total);
    return true;
  }

  /// Of a row of probabilities what is kept, over its sum, and else 0: write(position of y[0], y). False: as above.
  template <typename F>
  __device__ __forceinline__ bool renorm(float top_p, F write) {
    u64 total = 0;
    if (!fits() || !find(top_p, total)) return false;
    sync_row();  // others may be reading what lies where the ring does
    start_pass(true);
    write_kept(write);
    return true;
  }

 private:
  using Base::chunk_of, Base::load_chunk, Base::position_of_chunk, Base::prefetch, Base::ring, Base::sample, Base::slot, Base::start_pass;
  using Base::n_, Base::lead_, Base::size_, Base::num_tiles_, Base::first_, Base::count_, Base::warp_, Base::from_;

  __device__ __forceinline__ u32* list() const { return reinterpret_cast<u32*>(ring() + Base::kRingBytes) + ptx::thread_idx(); }
  __device__ __forceinline__ bool fits() const { return n_ >= kLeast && ceil_div(num_tiles_, size_) < S::kMaxTiles; }
  /// The cut at top_p, what it keeps and, to `total`, the mass of all.
  __device__ __forceinline__ bool find(float top_p, u64& total) {
    S& s = own<S>();
    if (ptx::thread_idx() == 0) s.odd = s.num_few = 0;
    Vec16 x[kSampled];
    sample(x);
    start_pass(false);
    prefetch();
    bool fits = true;
    float whole = 1.0F;
    if constexpr (!kProbs) {
      fits = survey(x, whole);
      start_pass(true);
    }
    fits = fits && guess(x, whole, top_p);
    if (fits && !ties_) pass<Inside::listed>();
    if (fits && ties_) pass<Inside::counted>();
    ptx::cp_async_wait<0>();
    sync_row();
    if (fits && decide(top_p, total)) return true;
    sync_row();  // others may be reading this block's memory still
    return false;
  }
  /// The masses of all pieces and, to `total`, their sum.
  __device__ __forceinline__ bool add_up(u64& total) {
    S& s = own<S>();
    if (ptx::thread_idx() == 0) {
      s.odd = 0;
      s.cut = {kProbs ? 0x80000000U : abi::kKeyOfMinusInf, Cut::kNone};
    }
    bool fits = true;
    if constexpr (kProbs) {
      start_pass(false);
      prefetch();
    } else {
      float whole = 1.0F;
      Vec16 x[kSampled];
      sample(x);
      start_pass(false);
      prefetch();
      fits = survey(x, whole);
      start_pass(true);
    }
    ptx::sync_block();  // s.odd is written before others are
    if (fits) pass<Inside::none>();
    ptx::cp_async_wait<0>();
    sync_row();
    u64 above = 0;
    fits = fits && sums(total, above);
    if (ptx::thread_idx() == 0) s.kept = total;
    sync_row();  // else others may be reading this block's memory still
    return fits;
  }
  static __device__ __forceinline__ u32* piece_ties() { return own<S>().histogram; }
  __device__ __forceinline__ Few& few(int rank) const {
    Few* s_few = reinterpret_cast<Few*>(ring());
    return size_ == 1 ? *s_few : *ptx::in_block(s_few, rank);
  }
  __device__ __forceinline__ S& block(int rank) const { return size_ == 1 ? own<S>() : *ptx::in_block(&own<S>(), rank); }
  /// Calls f(tile, this lane's first chunk of it); true: an edited entry was NaN.
  template <typename F>
  __device__ __forceinline__ bool each_tile(bool backward, F f) const {
    bool odd = false;
    typename Base::Turn turn;
#pragma unroll 1
    for (int i = 0; i < count_; ++i, turn.advance()) {
      Base::await_tile(i, turn, backward);
      const int tile = backward ? count_ - 1 - i : i;
      if constexpr (kEdits) odd |= edit(reinterpret_cast<float*>(slot(turn.now)), (first_ + tile) * kWarps + warp_);
      f(tile, slot(turn.now) + ptx::lane_idx());
    }
    return odd;
  }

  // ---- bias and penalties

  /// They come to shared memory; false: too many. Seen by other threads after the next barrier.
  __device__ __forceinline__ bool open_edits(const abi::SampleParams& p, i64 r) {
    List bias, history;
    bias.open(p.bias, r);
    history.open(p.history, r);
    if (bias.count + history.count > S::kMaxEdits) return false;
    S& s = own<S>();
    num_bias_ = bias.count;
    num_edits_ = bias.count + history.count;
    repetition_ = p.repetition.at(r);
    frequency_ = p.frequency.at(r);
    presence_ = p.presence.at(r);
#pragma unroll 1
    for (int i = ptx::thread_idx(); i < num_edits_; i += kThreads) {
      const bool is_bias = i < num_bias_;
      const List& list = is_bias ? bias : history;
      const int at = is_bias ? i : i - num_bias_;
      const i32 token = list.tokens[at];
      s.edit_token[i] = token >= 0 && token < n_ ? token : -0x40000000;
      s.edit_value[i] = list.values == nullptr ? 1U : static_cast<const u32*>(list.values)[at];
    }
    return true;
  }
  __device__ __forceinline__ float edited(float x, int i) const {
    const u32 value = own<S>().edit_value[i];
    return i < num_bias_ ? ptx::max_number(x + float_of(value), kNothing)
                         : penalised(x, static_cast<i32>(value), repetition_, frequency_, presence_);
  }
  static __device__ __attribute__((noinline)) float penalised(float x, i32 count, float repetition, float frequency, float presence) {
    return sampling::penalised(x, count, repetition, frequency, presence, kNothing);
  }
  /// This warp's piece, where it lies; all lanes together.
  __device__ __forceinline__ bool edit(float* s_piece, int piece) const {
    const S& s = own<S>();
    const int first = piece * kPiece - lead_;
    bool odd = false;
    ptx::sync_warp();  // the lanes' copies are there
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      const int end = part == 0 ? num_bias_ : num_edits_;
#pragma unroll 1
      for (int i = (part == 0 ? 0 : num_bias_) + ptx::lane_idx(); i < end; i += ptx::kWarp) {
        const int at = s.edit_token[i] - first;
        if (static_cast<u32>(at) >= static_cast<u32>(kPiece)) continue;
        const float x = s_piece[at];
        odd |= x != x;
        s_piece[at] = edited(x, i);
      }
      ptx::sync_warp();
    }
    return odd;
  }
  // ---- the largest

  /// The largest entry, to w_, and the sum of all weights, about: `whole`. `x`: the sample. False: the row is odd.
  __device__ __forceinline__ bool survey(const Vec16 (&x)[kSampled], float& whole) {
    S& s = own<S>();
    const int lane = ptx::lane_idx();
    float about = kNothing;
#pragma unroll
    for (int i = 0; i < kSampled; ++i) {
#pragma unroll
      for (int e = 0; e < kItems; ++e) about = ptx::max_number(about, float_of(x[i].x[e]));
    }
    about = value_of(ptx::max_warp(key_of(about)));  // of this warp's sample
    if (!(abs(about) < kInfinity)) about = 0.0F;
    if (lane == 0) s.warp_weight[warp_] = about;
    ptx::sync_block();  // what is edited is known to all
    float most = s.warp_weight[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) most = max(most, s.warp_weight[w]);
    const float scale = w_.scale;
    float best = kNothing, sum = 0;
    bool odd = each_tile(false, [&](int, const Vec16* s_chunks) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const Vec16 v = s_chunks[c * ptx::kWarp];
#pragma unroll
        for (int e = 0; e < kItems; ++e) {
          best = ptx::max_or_nan(best, float_of(v.x[e]));
          sum += ptx::ex2((float_of(v.x[e]) - most) * scale);
        }
      }
    });
    odd |= !(best < kInfinity);
#pragma unroll
    for (int mask = ptx::kWarp / 2; mask > 0; mask /= 2) sum += ptx::shuffle_xor(sum, mask);
    const u32 largest = ptx::any(odd) ? abi::kKeyOfInf : ptx::max_warp(key_of(best));
    ptx::sync_block();  // warp_weight has been read
    if (lane == 0) {
      s.warp_largest[warp_] = largest;
      s.warp_weight[warp_] = sum;
    }
    sync_row();
    u32 all_largest = 0;
    sum = 0;
#pragma unroll 1
    for (int b = 0; b < size_; ++b) {
      const S& other = block(b);
      all_largest = max(all_largest, lane < kWarps ? other.warp_largest[lane] : 0);
      sum += lane < kWarps ? other.warp_weight[lane] : 0.0F;
    }
    all_largest = ptx::max_warp(all_largest);
#pragma unroll
    for (int mask = ptx::kWarp / 2; mask > 0; mask /= 2) sum += ptx::shuffle_xor(sum, mask);
    if (all_largest >= abi::kKeyOfInf || all_largest <= abi::kKeyOfMinusInf) return false;
    const float largest_value = value_of(all_largest);
    w_ = make_weighting(false, largest_value, temperature_);
    whole = sum * ptx::ex2((most - largest_value) * scale);
    return whole >= 0.5F && whole < kInfinity;
  }

  // ---- the bracket

  /// [low_, high_) becomes the keys between which the cut should lie, by the sample `x`, of `whole` that all weigh; false: they
  /// are too many. Every block of the cluster comes to the same. Only what lies below the cut is asked, as far as it goes: it varies little
  /// where a few large entries, which a sample may miss, have most.
  __device__ __forceinline__ bool guess(const Vec16 (&x)[kSampled], float whole, float top_p);
  /// Bits of the weight of a sampled entry; of logits near it.
  __device__ __forceinline__ u32 sampled_weight(u32 bits) const {
    return kProbs ? bits : bits_of(ptx::ex2((float_of(bits) - w_.max) * w_.scale));
  }
  /// Whether all sampled entries with weights in [low, high) are of one value: then the bracket is that.
  __device__ __forceinline__ bool one_value(const Vec16 (&x)[kSampled], u32 low, u32 high);
  /// The key of a weight given by its bits; of logits near it.
  __device__ __forceinline__ u32 key_of_weight(u32 bits, float slack) const {
    if constexpr (kProbs) return bits | 0x80000000U;
    const float d = ptx::lg2(max(float_of(bits), 0x1p-125F)) / w_.scale;
    return max(key_of(w_.max + d + slack * (abs(w_.max) - d)), abi::kKeyOfMinusInf + 1U);
  }
  __device__ __forceinline__ void clear_for_pass() const {
    S& s = own<S>();
    reinterpret_cast<Vec16*>(s.histogram)[ptx::thread_idx()] = Vec16{};
    ptx::sync_block();
  }

  // ---- the pass

  /// What is done with entries inside the bracket. counted: they are of one value, and are counted, by pieces, where the histogram would
  /// be. none: there is no bracket; all is above.
  enum class Inside : u8 { listed, counted, none };
  template <Inside kInside>
  __device__ __forceinline__ void pass() {
    constexpr bool kTies = kInside == Inside::counted;
    constexpr bool kAll = kInside == Inside::none;
    S& s = own<S>();
    const float from = value_of(low_), beyond = value_of(high_);
    const bool negative = !kProbs && low_ < 0x80000000U;  // then bits go down where values go up
    index_bits_ = 32 - ptx::leading_zeros(static_cast<u32>(max(count_, 1) * kEach - 1));
    exact_ = (high_ - low_ - 1) >> (32 - index_bits_) == 0 && (kProbs || low_ > 0x80000000U || high_ <= 0x80000000U);
    const u32 step = 1U << index_bits_;
    const u32 factor = !exact_ ? 0U : negative ? 0U - step : step;
    u32 entry = 0U - abi::bits_of_key(low_) * factor;
    if (!kProbs) entry += static_cast<u32>((count_ - 1) * kEach);
    const Weighting w = w_;
    u32 odd = 0, high = 0, low = 0, all_ties = 0;
    u64 above = 0;
    u8* const s_own = reinterpret_cast<u8*>(list());
    int place = 0;  // bytes from the start of this thread's list: as pointers there would be two of 64 bits
    const bool nan = each_tile(!kProbs, [&](int tile, const Vec16* s_chunks) {
      float above_high[2] = {0.0F, 0.0F};  // exact up to 8: of half a tile's entries each
      u32 above_low = 0, num_inside = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const Vec16 v = s_chunks[c * ptx::kWarp];
        if constexpr (kProbs) {
          odd |= v.x[0] | v.x[1];
          odd |= v.x[2] | v.x[3];
        }
#pragma unroll
        for (int e = 0; e < kItems; ++e) {
          const float x = float_of(v.x[e]);
          const float weight = kProbs ? x : logit_weight(x, w);
          const float sum = ptx::add_toward_zero(weight, 4.0F);
          const float upper = ptx::fma(sum, -0x1p-106F, 0x1p-104F);  // what counts 2^-21, negative and as small as subnormal numbers:
          const u32 lower = bits_of(ptx::fma_toward_zero(weight, 0x1p-106F, upper));  // so the bits of the rest count 2^-43
          if constexpr (kAll) {
            above_high[c / 2] += upper;
            above_low += lower;
            continue;
          }
          high += bits_of(sum);
          low += lower;
          const bool is_above = x >= beyond;
          if (is_above) {
            above_high[c / 2] += upper;
            above_low += lower;
          }
          if constexpr (kTies) {
            num_inside += !is_above && x >= from ? 1U : 0U;
          } else if (!is_above && x >= from) {
            *reinterpret_cast<u32*>(s_own + place) = v.x[e] * factor + entry + static_cast<u32>(c * kItems + e);
            place += kThreads * 4;
          }
        }
      }
      entry += kProbs ? static_cast<u32>(kEach) : 0U - static_cast<u32>(kEach);
      const u32 mass_high = static_cast<u32>(above_high[0] * -0x1p127F) + static_cast<u32>(above_high[1] * -0x1p127F);
      const u64 mass = (static_cast<u64>(ptx::sum_warp(mass_high)) << 22) + ptx::sum_warp(above_low);
      above += mass;
      if constexpr (kTies) {
        const u32 ties = ptx::sum_warp(num_inside);
        all_ties += ties;
        if (ptx::lane_idx() == 0) piece_ties()[tile * kWarps + warp_] = ties;
      }
      if (ptx::lane_idx() == 0) *reinterpret_cast<u64*>(s.piece_mass + 2 * (tile * kWarps + warp_)) = mass;
      if (place > kMost * kThreads * 4 || min(above_high[0], above_high[1]) < -0x1p-103F) {  // the list is full, or a sum rounded
        odd = kEnd;
        place = 0;
      }
    });
    num_listed_ = place / (kThreads * 4);
    if (kInside == Inside::listed && !exact_) fetch_listed();
    const u64 total = (static_cast<u64>(high - static_cast<u32>(count_ * kEach) * kHighZero) << 22) + low;
    const u64 warp_total = kAll ? above : warp_sum(total);
    if (ptx::lane_idx() == 0) {
      s.warp_total[warp_] = warp_total;
      s.warp_above[warp_] = above;
      s.warp_ties[warp_] = all_ties;
    }
    if (nan || odd >= kEnd) s.odd = 1;  // of probabilities also one that is negative, NaN, 2 or more
    if constexpr (kInside != Inside::listed) return;
    for_list([&](const auto& key, const auto&, const auto& there) {
      int bin[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) bin[i] = there[i] ? bin_of(key[i]) : 0;
      add(s.histogram, bin, key, there);
    });
  }
  /// Of what is listed: up where keys go up.
  __device__ __forceinline__ int bin_of(u32 key) const {
    if constexpr (kProbs) return static_cast<int>((key - low_) >> max(32 - ptx::leading_zeros(high_ - low_ - 1) - 10, 0));
    const float from = value_of(low_);
    const float width = ptx::min_number(value_of(high_), w_.max) - from;
    return static_cast<int>(
        ptx::min_number((value_of(key) - from) * (static_cast<float>(S::kBins) / width), static_cast<float>(S::kBins - 1)));
  }
  /// Lists of indices alone: the first 32 places get values, the others the indices, of 16 bits.
  __device__ __forceinline__ u16* listed_index(int thread, int i) const {
    return reinterpret_cast<u16*>(list() + (kMost + i / 2) * kThreads + thread - ptx::thread_idx()) + i % 2;
  }
  __device__ __forceinline__ void fetch_listed() const {
    u32* const s_list = list();
#pragma unroll 1
    for (int i = 0; i < num_listed_; ++i) {
      const int index = static_cast<int>(s_list[i * kThreads]);
      *listed_index(ptx::thread_idx(), i) = static_cast<u16>(index);
      s_list[i * kThreads] = *reinterpret_cast<const u32*>(from_ + static_cast<i64>(position_of(index) + lead_) * 4);
    }
    if constexpr (kEdits) {
      S& s = own<S>();
      s.num_listed[ptx::thread_idx()] = static_cast<u8>(num_listed_);
      edit_listed(0, num_bias_);
      edit_listed(num_bias_, num_edits_);
      ptx::sync_block();
    }
  }
  /// Each thread takes an edit, and looks for its token where it would be listed.
  __device__ __forceinline__ void edit_listed(int begin, int end) const {
    S& s = own<S>();
    ptx::sync_block();
#pragma unroll 1
    for (int i = begin + ptx::thread_idx(); i < end; i += kThreads) {
      const int at = s.edit_token[i] + lead_ - first_ * kTile;
      if (at < 0 || at >= count_ * kTile) continue;
      const auto [thread, index] = Base::owner_of(at);
#pragma unroll 1
      for (int k = 0; k < s.num_listed[thread]; ++k) {
        if (*listed_index(thread, k) != index) continue;
        float* s_value = reinterpret_cast<float*>(list() + k * kThreads + thread - ptx::thread_idx());
        *s_value = edited(*s_value, i);
      }
    }
  }
  __device__ __forceinline__ u64 mass_of_key(u32 key) const {
    const SplitMass m = split_mass(kProbs ? value_of(key) : logit_weight(value_of(key), w_));
    return joined(m.high, m.low, 1);
  }
  static constexpr int kBatch = 4;
  /// Calls f(keys, indices, which there are) for what this thread has listed, by fours, which are on their way through memory together.
  /// Index: tile, step, entry.
  template <typename F>
  __device__ __forceinline__ void for_list(F f) const {
    const u32* s_list = list();
#pragma unroll 1
    for (int first = 0; first < num_listed_; first += kBatch) {
      u32 key[kBatch];
      int index[kBatch];
      bool there[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const u32 entry = s_list[(first + i) * kThreads];
        key[i] = low_ + (entry >> index_bits_);
        index[i] = static_cast<int>(entry & ((1U << index_bits_) - 1U));
        there[i] = first + i < num_listed_;
        if (!exact_) {
          key[i] = key_of(float_of(entry));
          index[i] = *listed_index(ptx::thread_idx(), min(first + i, kMost - 1));
        }
      }
      f(key, index, there);
    }
  }
  /// Masses are added to sums, which are pairs.
  __device__ __forceinline__ void add(u32* s_pairs, const int (&to)[kBatch], const u32 (&key)[kBatch], const bool (&there)[kBatch]) const {
    u64 mass[kBatch];
    u32 old[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      mass[i] = mass_of_key(key[i]);
      if (there[i]) old[i] = ptx::atomic_add_shared(s_pairs + 2 * to[i], static_cast<u32>(mass[i]));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (!there[i]) continue;
      const u32 high = static_cast<u32>(mass[i] >> 32) + (old[i] + static_cast<u32>(mass[i]) < old[i] ? 1U : 0U);
      if (high != 0) ptx::atomic_add_shared(s_pairs + 2 * to[i] + 1, high);
    }
  }
  __device__ __forceinline__ int position_of(int index) const {
    return position_of_chunk(chunk_of(index / kEach) + index / kItems % kChunks * ptx::kWarp) + index % kItems;
  }

  // ---- the cut and the draw

  /// After the pass, where all blocks' sums are there. False: the row is not for this way.
  __device__ __forceinline__ bool decide(float top_p, u64& total);
  /// What all blocks have added up. False: the row is odd.
  __device__ __forceinline__ bool sums(u64& total, u64& above) const;

  /// The masses of pieces become those of what the cut keeps, whose sum goes to s.kept. False: the cut is not in the bracket, or among too
  /// many.
  __device__ __forceinline__ bool cut_ties(u64 need, u64 above) const;

  __device__ __forceinline__ bool cut_listed(u64 need, u64 above);
  /// Whether all that is listed in a bin is of one key: then it is counted by pieces.
  __device__ __forceinline__ bool one_key(int bin);

  template <typename F>
  __device__ __forceinline__ void write_kept(F write) const;
  /// The token, by the masses of pieces of what is kept.
  __device__ __forceinline__ void draw(const abi::SampleParams& p, i64 r, u64 total) const;

  float temperature_;
  Weighting w_;
  int num_bias_ = 0, num_edits_ = 0;
  float repetition_ = 1.0F, frequency_ = 0.0F, presence_ = 0.0F;
  u32 low_ = 0, high_ = 0;
  int index_bits_ = 0;
  bool exact_ = false;
  bool ties_ = false;  // the cut is among entries of one value, whose key is
  u32 tie_key_ = 0;
  int num_listed_ = 0;
};

}  // namespace girih::sampling
