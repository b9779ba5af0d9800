// Top-p of a row of f32 probabilities by one pass over it: what run_sample() does first where it can. A sample of the row says between
// which values the cut should lie. The pass adds up exact masses, of all and, for each piece of the row, of what lies above that bracket,
// and lists what is inside; cut and token follow from these, and of the row one piece is read again. Rows that are not plain
// probabilities, and cuts that lie elsewhere or among many equal entries, are left to select.cuh.
#pragma once

#include "sampling/list.cuh"

namespace girih::sampling {

/// Start of a block's shared memory; the ring of tiles and the list follow.
struct NucleusShared {
  static constexpr int kBins = 1024;
  static constexpr int kBinsEach = kBins / kThreads;
  static constexpr int kSampleBins = 2 * kBins;
  static constexpr int kFewest = 64;
  static constexpr int kMaxTiles = 64;  // of a block
  u64 scratch[kWarps];
  alignas(16) u32 histogram[2 * kBins];    // masses of what is listed, before that counts of the sample
  u32 piece_mass[2 * kMaxTiles * kWarps];  // of what is above the bracket, later of what is kept
  float sample_sum[kWarps], sample_squares[kWarps];
  u32 sample_count[kWarps], sample_top[kWarps];
  u64 warp_total[kWarps], warp_above[kWarps];
  u32 odd;  // the row is not for this way
  u32 low_bin, high_bin, low_count, high_count;
  float low_sum, low_squares;
  u32 num_few;
  u32 few_bits[kFewest];
  i32 few_position[kFewest];
  u32 all_bits[kFewest];
  i32 all_position[kFewest];
  u64 all_mass[kFewest];
  u32 cut_bits;
  i32 cut_limit;
  u64 kept, block_kept;
  int bin;
  u64 above, amount, left;
  int piece;
};

class Nucleus {
 public:
  using S = NucleusShared;
  static constexpr int kItems = 4;                              // of a chunk
  static constexpr int kChunks = 4;                             // of a tile that a lane has, one in each step of its warp
  static constexpr int kPiece = kChunks * ptx::kWarp * kItems;  // entries of a tile that a warp has, all in a row
  static constexpr int kTile = kPiece * kWarps;
  static constexpr int kTileBytes = kTile * 4;
  static constexpr int kRing = 3;
  static constexpr int kOwn = 48;                 // entries of the list that a thread has
  static constexpr int kEach = kChunks * kItems;  // of a tile
  static constexpr int kSampled = 5;              // chunks that a thread has of the sample
  static constexpr int kSample = kSampled * kThreads * kItems;
  static constexpr int kLeast = 2 * kSample;   // entries of a row; shorter ones are not for this way
  static constexpr int kLong = 14 * kThreads;  // more in the bracket, and threads' lists might not hold them
  static constexpr u32 kEnd = 0x40000000U;     // bits of 2.0F
  static constexpr int kFixed = static_cast<int>((sizeof(S) + 127) / 128 * 128);
  static constexpr int kBytes = kFixed + kRing * kTileBytes + kOwn * kThreads * 4;

  __device__ __forceinline__ Nucleus(const u8* row, int n) : n_(n) {
    lead_ = static_cast<int>(reinterpret_cast<u64>(row) % kChunkBytes / 4);
    from_ = row - lead_ * 4;
    size_ = ptx::cluster_size();
    num_tiles_ = ceil_div(n + lead_, kTile);
    first_ = num_tiles_ * ptx::cluster_rank() / size_;
    count_ = num_tiles_ * (ptx::cluster_rank() + 1) / size_ - first_;
    warp_ = ptx::thread_idx() / ptx::kWarp;
  }

  /// False: nothing has been written, and the row must be done the other way. All blocks of the cluster come to the same.
  __device__ __forceinline__ bool run(const abi::SampleParams& p, i64 r, float top_p) {
    if (n_ < kLeast || ceil_div(num_tiles_, size_) > S::kMaxTiles) return false;
    S& s = own<S>();
    if (ptx::thread_idx() == 0) s.odd = s.num_few = 0;
#pragma unroll
    for (int i = 0; i < kRing - 1; ++i) {
      if (i < count_) load_tile(i);
      ptx::cp_async_commit();
    }
    const bool guessed = guess(top_p);
    if (guessed) pass();
    ptx::cp_async_wait<0>();
    if (size_ > 1) {
      sync_row();
    } else {
      ptx::sync_block();
    }
    if (guessed && decide(p, r, top_p)) return true;
    sync_row();  // others may be reading this block's memory still
    return false;
  }

 private:
  __device__ __forceinline__ u8* ring() const { return ptx::shared_memory() + kFixed; }
  __device__ __forceinline__ u32* list() const {
    return reinterpret_cast<u32*>(ptx::shared_memory() + kFixed + kRing * kTileBytes) + ptx::thread_idx();
  }
  __device__ __forceinline__ S& block(int rank) const { return size_ == 1 ? own<S>() : *ptx::in_block(&own<S>(), rank); }
  __device__ __forceinline__ int position_of_chunk(int chunk) const { return chunk * kItems - lead_; }
  /// Of this block's tile `tile`, this lane's first.
  __device__ __forceinline__ int chunk_of(int tile) const {
    return ((first_ + tile) * kWarps + warp_) * kChunks * ptx::kWarp + ptx::lane_idx();
  }
  __device__ __forceinline__ bool whole(int chunk) const {
    const int position = position_of_chunk(chunk);
    return position >= 0 && position + kItems <= n_;
  }

  /// A chunk of which part lies outside the row: there it is 0.
  static __device__ __attribute__((noinline)) Vec16 load_edge(const u8* from, int lead, int n, int chunk) {
    Vec16 v{};
#pragma unroll 1
    for (int e = 0; e < kItems; ++e) {
      const int at = chunk * kItems + e;
      if (at >= lead && at < n + lead) v.x[e] = *reinterpret_cast<const u32*>(from + static_cast<i64>(at) * 4);
    }
    return v;
  }
  __device__ __forceinline__ Vec16 load_chunk(int chunk) const {
    if (whole(chunk)) return ptx::load_stream(from_ + static_cast<i64>(chunk) * kChunkBytes);
    return load_edge(from_, lead_, n_, chunk);
  }

  __device__ __forceinline__ void load_tile(int tile) const {
    const int chunk = chunk_of(tile);
    u8* s_to = ring() + tile % kRing * kTileBytes + (warp_ * kChunks * ptx::kWarp + ptx::lane_idx()) * kChunkBytes;
    const int begin = (first_ + tile) * kTile - lead_;
    if (begin >= 0 && begin + kTile <= n_) {
      const u8* g_from = from_ + static_cast<i64>(chunk) * kChunkBytes;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) ptx::cp_async_16(s_to + c * kGroup, g_from + c * kGroup, true);
      return;
    }
#pragma unroll 1
    for (int c = 0; c < kChunks; ++c) *reinterpret_cast<Vec16*>(s_to + c * kGroup) = load_chunk(chunk + c * ptx::kWarp);
  }

  // ---- the bracket

  /// [low_, high_) becomes the bits of values between which the cut should lie; false: they are too many. Only what lies below the cut is
  /// asked, as far as it goes: probabilities add up to one, and it varies little where a few large ones, which a sample may miss, have
  /// most.
  __device__ __forceinline__ bool guess(float top_p) {
    S& s = own<S>();
    const int thread = ptx::thread_idx();
    const int lane = ptx::lane_idx();
    Vec16 x[kSampled];
    const int first = lead_ == 0 ? 0 : 1;
    const int groups = ((n_ + lead_) / kItems - first) / kGroupChunks;
    const float step = static_cast<float>(groups) / static_cast<float>(kSampled * kThreads / kGroupChunks);
#pragma unroll
    for (int i = 0; i < kSampled; ++i) {
      const int number = i * kThreads + thread;
      const int group = min(static_cast<int>(static_cast<float>(number / kGroupChunks) * step), groups - 1);
      x[i] = ptx::load_stream(from_ + static_cast<i64>(first + group * kGroupChunks + number % kGroupChunks) * kChunkBytes);
    }
    prefetch();
    const float scale = static_cast<float>(n_) / static_cast<float>(kSample);
    u32 origin = kEnd - (static_cast<u32>(S::kSampleBins) << kCoarse), end = kEnd;
    int shift = kCoarse;
    float sum_before = 0, squares_before = 0, need = 0;
    u32 count_before = 0;
    for (int round = 0;; ++round) {
      reinterpret_cast<Vec16*>(s.histogram)[thread] = Vec16{};
      if (thread == 0) s.low_bin = s.high_bin = S::kSampleBins;
      ptx::sync_block();
#pragma unroll
      for (int i = 0; i < kSampled; ++i) {
#pragma unroll
        for (int e = 0; e < kItems; ++e) {
          const u32 offset = x[i].x[e] - origin;
          if (offset < end - origin) ptx::atomic_add_shared(s.histogram + (offset >> shift), 1);
        }
      }
      ptx::sync_block();
      const Vec16 bins = reinterpret_cast<const Vec16*>(s.histogram)[thread];
      const u32 bin = static_cast<u32>(thread) * 4;
      float weight[4];
      float sum = 0, squares = 0;
      u32 count = 0;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        weight[i] = float_of(origin + ((bin + i) << shift) + (1U << shift) / 2);
        const float mass = static_cast<float>(bins.x[i]) * weight[i];
        sum += mass;
        squares += mass * weight[i];
        count += bins.x[i];
      }
      float sums = sum, all_squares = squares;
      u32 counts = count;
#pragma unroll
      for (int distance = 1; distance < ptx::kWarp; distance *= 2) {
        const int from = max(lane - distance, 0);
        const float a = ptx::shuffle(sums, from), b = ptx::shuffle(all_squares, from);
        const u32 c = ptx::shuffle(counts, from);
        if (lane >= distance) {
          sums += a;
          all_squares += b;
          counts += c;
        }
      }
      if (lane == ptx::kWarp - 1) {
        s.sample_sum[warp_] = sums;
        s.sample_squares[warp_] = all_squares;
        s.sample_count[warp_] = counts;
      }
      const u32 filled = ptx::max_warp(bins.x[3] != 0   ? bin + 3
                                       : bins.x[2] != 0 ? bin + 2
                                       : bins.x[1] != 0 ? bin + 1
                                       : bins.x[0] != 0 ? bin
                                                        : 0);
      if (lane == 0) s.sample_top[warp_] = filled;
      ptx::sync_block();
      // A thread ends with the very number that the next begins with.
      float base = sum_before, base_squares = squares_before, whole_sum = 0;
      u32 before_count = count_before + counts - count, whole_count = count_before;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w < warp_) {
          base += s.sample_sum[w];
          base_squares += s.sample_squares[w];
          before_count += s.sample_count[w];
        }
        whole_sum += s.sample_sum[w];
        whole_count += s.sample_count[w];
      }
      const float previous = ptx::shuffle(sums, max(lane - 1, 0)), previous_squares = ptx::shuffle(all_squares, max(lane - 1, 0));
      float before = lane == 0 ? base : base + previous, before_squares = lane == 0 ? base_squares : base_squares + previous_squares;
      if (round == 0) {
        const float one = 1.0F / scale;
        need = (1.0F - top_p) * (whole_sum > 1.1F * one ? whole_sum : one);
      }
      // Where the sum reaches what is needed by four standard deviations more, and less, than it is.
      const float slack = 0.004F * need;
      float margin = 4.0F * sqrt(before_squares) + slack;
      bool may = before + margin >= need, must = before - margin >= need;
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const float mass = static_cast<float>(bins.x[i]) * weight[i];
        const float after = i == 3 ? base + sums : before + mass;
        const float after_squares = i == 3 ? base_squares + all_squares : before_squares + mass * weight[i];
        margin = 4.0F * sqrt(after_squares) + slack;
        const bool may_after = after + margin >= need, must_after = after - margin >= need;
        if (may_after && (!may || bin + i == 0)) {
          s.low_sum = before;
          s.low_squares = before_squares;
          s.low_count = before_count;
          s.low_bin = bin + i;
        }
        before_count += bins.x[i];
        if (must_after && !must) {
          s.high_count = before_count;
          s.high_bin = bin + i;
        }
        before = after;
        before_squares = after_squares;
        may = may_after;
        must = must_after;
      }
      ptx::sync_block();
      u32 low_bin = s.low_bin;
      const u32 high_bin = s.high_bin;
      const bool none = low_bin == static_cast<u32>(S::kSampleBins);  // a few that the sample has missed have all that is needed
      if (none) low_bin = ptx::max_warp(lane < kWarps ? s.sample_top[lane] : 0);
      low_ = origin + (low_bin << shift);
      high_ = high_bin == static_cast<u32>(S::kSampleBins) ? end : origin + ((high_bin + 1) << shift);
      if (low_bin == 0 && round == 0) low_ = 1;
      const float expected =
          none ? 0.0F
               : scale * static_cast<float>((high_bin == static_cast<u32>(S::kSampleBins) ? whole_count : s.high_count) - s.low_count);
      if (expected <= static_cast<float>(kLong)) {
        clear_for_pass();
        return true;
      }
      if (shift == 0 || round == 2) return false;
      sum_before = s.low_sum;
      squares_before = s.low_squares;
      count_before = s.low_count;
      origin = low_;
      end = high_;
      shift = max(32 - ptx::leading_zeros(end - origin - 1) - 11, 0);
      ptx::sync_block();
    }
  }
  __device__ __forceinline__ void clear_for_pass() const {
    S& s = own<S>();
    reinterpret_cast<Vec16*>(s.histogram)[ptx::thread_idx()] = Vec16{};
    ptx::sync_block();
  }
  /// What follows the first tiles, to L2.
  __device__ __forceinline__ void prefetch() const {
    constexpr int kLine = 128;
    const int begin = max(position_of_chunk((first_ + kRing - 1) * kTile / kItems), 0);
    const int end = min(min(position_of_chunk((first_ + count_) * kTile / kItems), n_), begin + kAhead / 4);
    const u8* row = from_ + lead_ * 4;
#pragma unroll 1
    for (int at = begin + ptx::thread_idx() * (kLine / 4); at < end; at += kThreads * (kLine / 4))
      ptx::prefetch_l2(row + static_cast<i64>(at) * 4);
  }

  // ---- the pass

  __device__ __forceinline__ void pass() {
    S& s = own<S>();
    const float from = float_of(low_), beyond = float_of(high_);
    index_bits_ = 32 - ptx::leading_zeros(static_cast<u32>(count_ * kEach - 1));
    exact_ = (high_ - low_ - 1) >> (32 - index_bits_) == 0;
    const u32 factor = exact_ ? 1U << index_bits_ : 0U;
    u32 entry = 0U - low_ * factor;
    u32 odd = 0, high = 0, low = 0;
    u64 above = 0;
    u8* const s_own = reinterpret_cast<u8*>(list());
    int place = 0;  // bytes from the start of this thread's list: as pointers there would be two of 64 bits
#pragma unroll 1
    for (int tile = 0; tile < count_; ++tile) {
      if (tile + kRing - 1 < count_) load_tile(tile + kRing - 1);
      ptx::cp_async_commit();
      ptx::cp_async_wait<kRing - 1>();
      const Vec16* s_chunks =
          reinterpret_cast<const Vec16*>(ring() + tile % kRing * kTileBytes) + warp_ * kChunks * ptx::kWarp + ptx::lane_idx();
      float above_high = 0;
      u32 above_low = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const Vec16 v = s_chunks[c * ptx::kWarp];
        odd |= v.x[0] | v.x[1];
        odd |= v.x[2] | v.x[3];
#pragma unroll
        for (int e = 0; e < kItems; ++e) {
          const float x = float_of(v.x[e]);
          const float sum = ptx::add_toward_zero(x, 4.0F);
          const float upper = sum - 4.0F;
          const u32 lower = bits_of(ptx::multiply_toward_zero(x - upper, 0x1p-106F));
          high += bits_of(sum);
          low += lower;
          const bool is_above = x >= beyond;
          if (is_above) {
            above_high += upper;
            above_low += lower;
          }
          if (!is_above && x >= from) {
            *reinterpret_cast<u32*>(s_own + place) = v.x[e] * factor + entry + static_cast<u32>(c * kItems + e);
            place += kThreads * 4;
          }
        }
      }
      entry += kEach;
      const u64 mass = (static_cast<u64>(ptx::sum_warp(static_cast<u32>(above_high * 0x1p21F))) << 22) + ptx::sum_warp(above_low);
      above += mass;
      if (ptx::lane_idx() == 0) *reinterpret_cast<u64*>(s.piece_mass + 2 * (tile * kWarps + warp_)) = mass;
      if (place > (kOwn - kEach) * kThreads * 4) {
        odd = kEnd;
        place = 0;
      }
    }
    num_listed_ = place / (kThreads * 4);
    const u64 total = (static_cast<u64>(high - static_cast<u32>(count_ * kEach) * kHighZero) << 22) + low;
    const bool is_odd = odd >= kEnd || total >= u64{8} << abi::kMassBits;  // negative, NaN, 2 or more; or too much for above_high
    const u64 warp_total = warp_sum(total);
    if (ptx::lane_idx() == 0) {
      s.warp_total[warp_] = warp_total;
      s.warp_above[warp_] = above;
    }
    if (is_odd) s.odd = 1;
    const int shift = bin_shift();
    for_list([&](u32 bits, int) { add_shared(s.histogram + 2 * ((bits - low_) >> shift), mass_of_plain(bits)); });
  }
  __device__ __forceinline__ int bin_shift() const { return max(32 - ptx::leading_zeros(high_ - low_ - 1) - 10, 0); }
  static __device__ __forceinline__ u64 mass_of_plain(u32 bits) {
    const SplitMass m = split_mass(float_of(bits));
    return joined(m.high, m.low, 1);
  }
  /// Calls f(bits, index) for what this thread has listed; index: tile, step, entry.
  template <typename F>
  __device__ __forceinline__ void for_list(F f) const {
    const u32* s_list = list();
#pragma unroll 1
    for (int i = 0; i < num_listed_; ++i) {
      const u32 entry = s_list[i * kThreads];
      const int index = static_cast<int>(entry & ((1U << index_bits_) - 1U));
      const u32 bits =
          exact_ ? low_ + (entry >> index_bits_) : *reinterpret_cast<const u32*>(from_ + static_cast<i64>(position_of(index) + lead_) * 4);
      f(bits, index);
    }
  }
  __device__ __forceinline__ int position_of(int index) const {
    return position_of_chunk(chunk_of(index / kEach) + index / kItems % kChunks * ptx::kWarp) + index % kItems;
  }

  // ---- the cut and the draw

  __device__ __forceinline__ bool decide(const abi::SampleParams& p, i64 r, float top_p) {
    S& s = own<S>();
    const int thread = ptx::thread_idx();
    const int lane = ptx::lane_idx();
    u64 total = 0, above = 0;
    u32 odd = 0;
#pragma unroll 1
    for (int b = 0; b < size_; ++b) {
      const S& other = block(b);
      total += lane < kWarps ? other.warp_total[lane] : 0;
      above += lane < kWarps ? other.warp_above[lane] : 0;
      odd |= other.odd;
    }
    total = warp_sum(total);
    above = warp_sum(above);
    if (odd != 0 || total < static_cast<u64>(n_) << 23) return false;  // the largest has 2^-20
    const u64 need = mass_needed(total, top_p);
    const auto bins = merged_bins<S>();
    if (need <= above || need > above + bins.total) return false;
    const FoundBin found = search_bins<S>(bins, need - above);
    const u64 left = need - above - found.above;
    const int shift = bin_shift();
    const u32 first = low_ + (static_cast<u32>(found.bin) << shift);
    for_list([&](u32 bits, int index) {
      if (bits - first >= 1U << shift) return;
      const u32 at = ptx::atomic_add_shared(&s.num_few, 1);
      if (at >= static_cast<u32>(S::kFewest)) return;
      s.few_bits[at] = bits;
      s.few_position[at] = position_of(index);
    });
    sync_row();
    int few = 0, from = 0, place = thread;
#pragma unroll 1
    for (int b = 0; b < size_; ++b) {
      const int num = static_cast<int>(block(b).num_few);
      if (thread >= few && thread < few + num) {
        from = b;
        place = thread - few;
      }
      few += num;
    }
    if (few > S::kFewest) return false;
    if (thread < few) {
      const S& other = block(from);
      s.all_bits[thread] = other.few_bits[place];
      s.all_position[thread] = other.few_position[place];
      s.all_mass[thread] = mass_of_plain(s.all_bits[thread]);
    }
    ptx::sync_block();
    if (thread < few) {
      const u32 bits = s.all_bits[thread];
      const i32 position = s.all_position[thread];
      u64 before = 0;
#pragma unroll 1
      for (int i = 0; i < few; ++i)
        before += (s.all_bits[i] > bits) | ((s.all_bits[i] == bits) & (s.all_position[i] < position)) ? s.all_mass[i] : 0;
      const u64 after = before + s.all_mass[thread];
      if (before < left && after >= left) {
        s.cut_bits = bits;
        s.cut_limit = position + 1;
        s.kept = need - left + after;
      }
    }
    ptx::sync_block();
    const u32 cut_bits = s.cut_bits;
    const int limit = s.cut_limit;
    const u64 kept = s.kept;
    for_list([&](u32 bits, int index) {
      if (bits > cut_bits || (bits == cut_bits && position_of(index) < limit))
        add_shared(s.piece_mass + 2 * (index / kEach * kWarps + warp_), mass_of_plain(bits));
    });
    ptx::sync_block();
    constexpr int kPieces = S::kMaxTiles * kWarps / kThreads;  // of a thread
    u64 pieces[kPieces];
    u64 sum = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int piece = thread * kPieces + i;
      sum += pieces[i] = piece < count_ * kWarps ? read_pair(s.piece_mass + 2 * piece) : 0;
    }
    const Scan scan = block_scan(sum);
    u64 chosen = abi::multiply_high(p.random.bits(r, static_cast<u32>(abi::Purpose::token)), kept);
    if (size_ > 1) {
      if (thread == 0) s.block_kept = scan.total;
      sync_row();
#pragma unroll 1
      for (int b = 0; b < ptx::cluster_rank(); ++b) chosen -= block(b).block_kept;
      sync_row();  // and nobody reads another's memory any more
      if (chosen >= scan.total) return true;
    }
    u64 before = scan.before;
    if (before <= chosen && chosen < before + sum) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if (before <= chosen && chosen < before + pieces[i]) {
          s.piece = thread * kPieces + i;
          s.left = chosen - before;
        }
        before += pieces[i];
      }
    }
    ptx::sync_block();
    if (warp_ != 0) return true;
    const int chunk = (first_ * kWarps + s.piece) * kChunks * ptx::kWarp + lane;
    u64 rest = s.left;
    Vec16 v[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) v[c] = load_chunk(chunk + c * ptx::kWarp);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int position = position_of_chunk(chunk + c * ptx::kWarp);
      u64 mass[kItems];
      u64 sum_here = 0;
#pragma unroll
      for (int e = 0; e < kItems; ++e) {
        const u32 bits = v[c].x[e];
        const bool keeps = (bits > cut_bits) | ((bits == cut_bits) & (position + e < limit));
        sum_here += mass[e] = keeps ? mass_of_plain(bits) : 0;
      }
      u64 upto = sum_here;
#pragma unroll
      for (int distance = 1; distance < ptx::kWarp; distance *= 2) {
        const u64 other = shuffle(upto, max(lane - distance, 0));
        if (lane >= distance) upto += other;
      }
      u64 at = upto - sum_here;
#pragma unroll
      for (int e = 0; e < kItems; ++e) {
        if (at <= rest && rest < at + mass[e]) write(p, r, position + e, float_of(v[c].x[e]), p.filtered_logprobs != 0 ? kept : total);
        at += mass[e];
      }
      const u64 all = shuffle(upto, ptx::kWarp - 1);
      if (rest < all) break;
      rest -= all;
    }
    return true;
  }
  static __device__ __forceinline__ void write(const abi::SampleParams& p, i64 r, int token, float x, u64 whole) {
    p.tokens.set(r, 0, token);
    if (p.valid != nullptr) p.valid[r * p.valid_stride] = 1;
    if (p.logprobs.data != nullptr) p.logprobs.set(r, 0, log(x) - log(abi::weight_of_mass(whole, abi::kOneExponent)));
  }

  static constexpr int kGroup = ptx::kWarp * kChunkBytes;  // bytes of a warp's step
  static constexpr int kGroupChunks = 4;                   // of the sample, side by side
  static constexpr int kCoarse = 17;                       // 64 bins for a factor of 2
  static constexpr int kAhead = 192 << 10;                 // bytes that stay in L2 while others do the same

  int n_, lead_, size_, num_tiles_, first_, count_, warp_;
  const u8* from_;
  u32 low_ = 0, high_ = 0;
  int index_bits_ = 0;
  bool exact_ = false;
  int num_listed_ = 0;
};

}  // namespace girih::sampling
