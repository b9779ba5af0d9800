// How Nucleus (nucleus.cuh) finds the bracket, the cut and the token.
#pragma once

#include "sampling/nucleus.cuh"

namespace girih::sampling {

template <bool kProbs, bool kEdits>
__device__ __forceinline__ bool Nucleus<kProbs, kEdits>::guess(const Vec16 (&x)[kSampled], float whole, float top_p) {
  S& s = own<S>();
  const int thread = ptx::thread_idx();
  const int lane = ptx::lane_idx();
  const float scale = static_cast<float>(n_) / static_cast<float>(kSample);
  u32 origin = kEnd - (static_cast<u32>(S::kSampleBins) << kCoarse), end = kEnd;
  int shift = kCoarse;
  float sum_before = 0, squares_before = 0, need = 0;
  u32 count_before = 0;
  for (int round = 0;; ++round) {
    reinterpret_cast<Vec16*>(s.histogram)[thread] = Vec16{};
    ptx::sync_block();
#pragma unroll
    for (int i = 0; i < kSampled; ++i) {
#pragma unroll
      for (int e = 0; e < kItems; ++e) {
        const u32 offset = sampled_weight(x[i].x[e]) - origin;
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
    ptx::sync_block();
    // A thread ends with the very number that the next begins with.
    float base = sum_before, base_squares = squares_before, whole_sum = 0, whole_squares = 0;
    u32 before_count = count_before + counts - count, whole_count = count_before;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp_) {
        base += s.sample_sum[w];
        base_squares += s.sample_squares[w];
        before_count += s.sample_count[w];
      }
      whole_sum += s.sample_sum[w];
      whole_squares += s.sample_squares[w];
      whole_count += s.sample_count[w];
    }
    const float previous = ptx::shuffle(sums, max(lane - 1, 0)), previous_squares = ptx::shuffle(all_squares, max(lane - 1, 0));
    float before = lane == 0 ? base : base + previous, before_squares = lane == 0 ? base_squares : base_squares + previous_squares;
    if (round == 0) {
      const float expected = whole / scale;  // probabilities add up to 1, unless the sample is sure of more
      need = (1.0F - top_p) * (kProbs && whole_sum - 4.0F * sqrt(whole_squares) > 1.1F * expected ? whole_sum : expected);
    }
    // Where the sum reaches what is needed, were it by four standard deviations more, and less, than it is; and by what eight entries
    // have, that the sample may have missed.
    const float slack = 0.004F * need;
    float margin = slack + 4.0F * sqrt(before_squares);
    bool may = before + (margin + 8.0F * float_of(origin + ((max(bin, 1U) - 1U) << shift) + (1U << shift) / 2)) >= need;
    bool must = before - margin >= need;
    // The first bin that may be, the last that must be, each with what is counted before or with it.
    u32 low_at = 0xffffffffU, high_at = 0;
    float low_sum = 0, low_squares = 0;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const float mass = static_cast<float>(bins.x[i]) * weight[i];
      const float after = i == 3 ? base + sums : before + mass;
      const float after_squares = i == 3 ? base_squares + all_squares : before_squares + mass * weight[i];
      margin = slack + 4.0F * sqrt(after_squares);
      const bool may_after = after + (margin + 8.0F * weight[i]) >= need, must_after = after - margin >= need;
      if (may_after && (!may || bin + i == 0) && low_at == 0xffffffffU) {
        low_at = (bin + i) << 16 | before_count;
        low_sum = before;
        low_squares = before_squares;
      }
      before_count += bins.x[i];
      if (must_after && !must) high_at = (bin + i + 1) << 16 | before_count;
      before = after;
      before_squares = after_squares;
      may = may_after;
      must = must_after;
    }
    const u32 warp_low = ~ptx::max_warp(~low_at), warp_high = ptx::max_warp(high_at);
    if (lane == 0) {
      s.sample_low[warp_] = warp_low;
      s.sample_high[warp_] = warp_high;
    }
    ptx::sync_block();
    const u32 first = ~ptx::max_warp(lane < kWarps ? ~s.sample_low[lane] : 0),
              last = ptx::max_warp(lane < kWarps ? s.sample_high[lane] : 0);
    if (first == 0xffffffffU) return false;
    if (first == low_at) {
      s.low_sum = low_sum;
      s.low_squares = low_squares;
    }
    const u32 low = first >> 16 == 0 && round == 0 ? 1U : origin + ((first >> 16) << shift);
    const u32 high = last == 0 ? end : origin + ((last >> 16) << shift);
    const float expected = scale * static_cast<float>((last == 0 ? whole_count : last & 0xffffU) - (first & 0xffffU));
    if (expected <= static_cast<float>(kLong)) {
      low_ = key_of_weight(low, -4e-7F);
      high_ = high >= kEnd ? (kProbs ? kEnd | 0x80000000U : abi::kKeyOfInf) : key_of_weight(high, 4e-7F);
      clear_for_pass();
      return low_ < high_;
    }
    if (one_value(x, low, high)) {
      clear_for_pass();
      return true;
    }
    if (shift == 0 || round == 2) return false;
    sum_before = s.low_sum;
    squares_before = s.low_squares;
    count_before = first & 0xffffU;
    origin = low;
    end = high;
    shift = max(32 - ptx::leading_zeros(end - origin - 1) - 11, 0);
    ptx::sync_block();
  }
}

template <bool kProbs, bool kEdits>
__device__ __forceinline__ bool Nucleus<kProbs, kEdits>::one_value(const Vec16 (&x)[kSampled], u32 low, u32 high) {
  S& s = own<S>();
  u32 least = 0xffffffffU, most = 0;
#pragma unroll
  for (int i = 0; i < kSampled; ++i) {
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      if (sampled_weight(x[i].x[e]) - low >= high - low) continue;
      const u32 key = key_of(float_of(x[i].x[e]));
      least = min(least, key);
      most = max(most, key);
    }
  }
  const u32 lowest = ~ptx::max_warp(~least), highest = ptx::max_warp(most);
  ptx::sync_block();
  if (ptx::lane_idx() == 0) {
    s.sample_low[warp_] = lowest;
    s.sample_high[warp_] = highest;
  }
  ptx::sync_block();
  least = ~ptx::max_warp(ptx::lane_idx() < kWarps ? ~s.sample_low[ptx::lane_idx()] : 0);
  most = ptx::max_warp(ptx::lane_idx() < kWarps ? s.sample_high[ptx::lane_idx()] : 0);
  ties_ = least == most;
  low_ = tie_key_ = least;
  high_ = least + 1;
  return ties_;
}

template <bool kProbs, bool kEdits>
__device__ __forceinline__ bool Nucleus<kProbs, kEdits>::sums(u64& total, u64& above) const {
  const int lane = ptx::lane_idx();
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
  return odd == 0 && (!kProbs || total >= static_cast<u64>(n_) << 23);  // so the largest has 2^-20
}

template <bool kProbs, bool kEdits>
__device__ __forceinline__ bool Nucleus<kProbs, kEdits>::decide(float top_p, u64& total) {
  u64 above = 0;
  if (!sums(total, above)) return false;
  const u64 need = mass_needed(total, top_p);
  return need > above && (ties_ ? cut_ties(need, above) : cut_listed(need, above));
}

template <bool kProbs, bool kEdits>
__device__ __forceinline__ bool Nucleus<kProbs, kEdits>::cut_ties(u64 need, u64 above) const {
  S& s = own<S>();
  const int thread = ptx::thread_idx();
  const u64 each = mass_of_key(tie_key_);
  const u64 wanted = each == 0 ? ~u64{0} : (need - above + each - 1) / each;
  u64 before = 0, all = 0;
#pragma unroll 1
  for (int b = 0; b < size_; ++b) {
    const u64 ties = ptx::sum_warp(ptx::lane_idx() < kWarps ? block(b).warp_ties[ptx::lane_idx()] : 0);
    before += b < ptx::cluster_rank() ? ties : 0;
    all += ties;
  }
  if (wanted > all) return false;
  u64 ties[kPieces];
  u64 here = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int piece = thread * kPieces + i;
    here += ties[i] = piece < count_ * kWarps ? piece_ties()[piece] : 0;
  }
  before += block_scan(here).before;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int piece = thread * kPieces + i;
    const u64 kept = min(ties[i], wanted - min(wanted, before));
    before += ties[i];
    if (piece >= count_ * kWarps) continue;
    piece_ties()[piece] = static_cast<u32>(kept);
    add_shared(s.piece_mass + 2 * piece, kept * each);
  }
  if (thread == 0) s.kept = above + wanted * each;
  ptx::sync_block();
  return true;
}

template <bool kProbs, bool kEdits>
__device__ __forceinline__ bool Nucleus<kProbs, kEdits>::one_key(int bin) {
  S& s = own<S>();
  const int lane = ptx::lane_idx();
  u32 least = 0xffffffffU, most = 0, ties = 0;
  for_list([&](const auto& key, const auto&, const auto& there) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (!there[i] || bin_of(key[i]) != bin) continue;
      least = min(least, key[i]);
      most = max(most, key[i]);
      ++ties;
    }
  });
  least = ~ptx::max_warp(~least);
  most = ptx::max_warp(most);
  ties = ptx::sum_warp(ties);
  if (lane == 0) {
    s.sample_low[warp_] = least;
    s.sample_high[warp_] = most;
    s.warp_ties[warp_] = ties;
  }
  sync_row();
#pragma unroll 1
  for (int b = 0; b < size_; ++b) {
    least = min(least, lane < kWarps ? block(b).sample_low[lane] : least);
    most = max(most, lane < kWarps ? block(b).sample_high[lane] : most);
  }
  least = ~ptx::max_warp(~least);
  most = ptx::max_warp(most);
  ties_ = least == most;
  tie_key_ = least;
  if (!ties_) return false;
  reinterpret_cast<Vec16*>(s.histogram)[ptx::thread_idx()] = Vec16{};
  ptx::sync_block();
  for_list([&](const auto& key, const auto& index, const auto& there) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (there[i] && key[i] == least) ptx::atomic_add_shared(piece_ties() + index[i] / kEach * kWarps + warp_, 1);
    }
  });
  ptx::sync_block();
  return true;
}

template <bool kProbs, bool kEdits>
__device__ __forceinline__ bool Nucleus<kProbs, kEdits>::cut_listed(u64 need, u64 above) {
  S& s = own<S>();
  const int thread = ptx::thread_idx();
  const auto bins = merged_bins<S>();
  if (need > above + bins.total) return false;
  const FoundBin found = search_bins<S>(bins, need - above);
  const u64 left = need - above - found.above;
  Few& own_few = *reinterpret_cast<Few*>(ring());
  for_list([&](const auto& key, const auto& index, const auto& there) {
    int piece[kBatch];
    bool kept[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int bin = there[i] ? bin_of(key[i]) : -1;
      kept[i] = bin > found.bin;
      piece[i] = kept[i] ? index[i] / kEach * kWarps + warp_ : 0;
      if (bin != found.bin) continue;
      const u32 at = ptx::atomic_add_shared(&s.num_few, 1);
      if (at >= static_cast<u32>(Few::kMost)) continue;
      own_few.key[at] = key[i];
      own_few.position[at] = position_of(index[i]);
    }
    add(s.piece_mass, piece, key, kept);
  });
  sync_row();
  int count = 0, from = 0, place = thread;
#pragma unroll 1
  for (int b = 0; b < size_; ++b) {
    const int num = static_cast<int>(block(b).num_few);
    if (thread >= count && thread < count + num) {
      from = b;
      place = thread - count;
    }
    count += num;
  }
  if (count > Few::kMost) return one_key(found.bin) && cut_ties(need, above + found.above);
  if (thread < count) {
    const Few& other = few(from);
    own_few.all_key[thread] = other.key[place];
    own_few.all_position[thread] = other.position[place];
    own_few.all_mass[thread] = mass_of_key(own_few.all_key[thread]);
  }
  ptx::sync_block();
  if (thread < count) {
    const u32 key = own_few.all_key[thread];
    const i32 position = own_few.all_position[thread];
    u64 before = 0;
#pragma unroll 1
    for (int i = 0; i < count; ++i)
      before += (own_few.all_key[i] > key) | ((own_few.all_key[i] == key) & (own_few.all_position[i] < position)) ? own_few.all_mass[i] : 0;
    const u64 after = before + own_few.all_mass[thread];
    if (before < left && after >= left) {
      s.cut = {key, position + 1};
      s.kept = need - left + after;
    }
    const int piece = (position + lead_) / kPiece - first_ * kWarps;
    if (before < left && piece >= 0 && piece < count_ * kWarps) add_shared(s.piece_mass + 2 * piece, own_few.all_mass[thread]);
  }
  ptx::sync_block();
  return true;
}

template <bool kProbs, bool kEdits>
template <typename F>
__device__ __forceinline__ void Nucleus<kProbs, kEdits>::write_kept(F write) const {
  static_assert(kProbs && !kEdits);
  const Divider divider(abi::weight_of_mass(own<S>().kept, w_.reference));
  const ValueCut cut(ties_ ? Cut{tie_key_, Cut::kNone} : own<S>().cut);
  Base::each_piece(true, [&](int tile, const Vec16* s_piece) {
    // Of the cut's value is kept what is numbered below `end`: positions, or the ties of the piece.
    const int end = ties_ ? static_cast<int>(piece_ties()[tile * kWarps + warp_]) : cut.limit;
    int ties = 0;
#pragma unroll 1
    for (int c = 0; c < kChunks; ++c) {
      const Vec16 v = s_piece[c * ptx::kWarp + ptx::lane_idx()];
      const int position = position_of_chunk(chunk_of(tile) + c * ptx::kWarp);
      int number = position;
      if (ties_) {
        int here = 0;
#pragma unroll
        for (int e = 0; e < kItems; ++e) here += float_of(v.x[e]) == cut.tie ? 1 : 0;
        int upto = here;
#pragma unroll
        for (int distance = 1; distance < ptx::kWarp; distance *= 2) {
          const int other = ptx::shuffle(upto, max(ptx::lane_idx() - distance, 0));
          upto += ptx::lane_idx() >= distance ? other : 0;
        }
        number = ties + upto - here;
        ties += ptx::shuffle(upto, ptx::kWarp - 1);
      }
      float y[kItems];
#pragma unroll
      for (int e = 0; e < kItems; ++e) {
        const float x = float_of(v.x[e]);
        const bool is_tie = x == cut.tie;
        y[e] = ((x >= cut.from) | (is_tie & (number < end))) ? x : 0.0F;
        number += (!ties_ | is_tie) ? 1 : 0;
      }
      divider.divide(y);
      write(position, y);
    }
  });
}

template <bool kProbs, bool kEdits>
__device__ __forceinline__ void Nucleus<kProbs, kEdits>::draw(const abi::SampleParams& p, i64 r, u64 total) const {
  S& s = own<S>();
  const int thread = ptx::thread_idx();
  const int lane = ptx::lane_idx();
  const u64 kept = s.kept;
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
    if (chosen >= scan.total) return;
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
  if (warp_ != 0) return;
  const int chunk = (first_ * kWarps + s.piece) * kChunks * ptx::kWarp + lane;
  u64 rest = s.left;
  Vec16* s_piece = slot(0);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) s_piece[c * ptx::kWarp + lane] = load_chunk(chunk + c * ptx::kWarp);
  if constexpr (kEdits) edit(reinterpret_cast<float*>(s_piece), first_ * kWarps + s.piece);
  const Cut cut = ties_ ? Cut{tie_key_, Cut::kNone} : s.cut;
  const u64 wanted = ties_ ? piece_ties()[s.piece] : 0;
  u64 ties = 0;
#pragma unroll 1
  for (int c = 0; c < kChunks; ++c) {
    const Vec16 v = s_piece[c * ptx::kWarp + lane];
    const int position = position_of_chunk(chunk + c * ptx::kWarp);
    u64 num_ties = 0;
    u32 key[kItems];
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      key[e] = key_of(float_of(v.x[e]));
      num_ties += key[e] == cut.key ? 1 : 0;
    }
    u64 tie = 0;  // number of the next
    if (ties_) {
      const u64 upto = inclusive(num_ties);
      tie = ties + upto - num_ties;
      ties += shuffle(upto, ptx::kWarp - 1);
    }
    u64 mass[kItems];
    u64 sum_here = 0;
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      const bool keeps = cut.keeps(key[e], position + e) || (key[e] == cut.key && tie++ < wanted);
      sum_here += mass[e] = keeps ? mass_of_key(key[e]) : 0;
    }
    const u64 upto = inclusive(sum_here);
    const u64 all = shuffle(upto, ptx::kWarp - 1);
    if (rest >= all) {
      rest -= all;
      continue;
    }
    u64 at = upto - sum_here;
    int drawn = -1;
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      if (at <= rest && rest < at + mass[e]) drawn = e;
      at += mass[e];
    }
    if (drawn < 0) break;
    p.tokens.set(r, 0, position + drawn);
    if (p.valid != nullptr) p.valid[r * p.valid_stride] = 1;
    const float x = *(reinterpret_cast<const float*>(s_piece + c * ptx::kWarp + lane) + drawn);
    if (p.logprobs.data != nullptr) p.logprobs.set(r, 0, logprob_of<kProbs>(x, p.filtered_logprobs != 0 ? kept : total, temperature_, w_));
    break;
  }
}

}  // namespace girih::sampling
