// sample(), the functions that write a row for a row and top_k(), for rows that a cluster's shared memory holds.
#pragma once

#include "sampling/resident_cut.cuh"
#include "sampling/top_k.cuh"

namespace girih::sampling {

template <typename T, Traits kTraits>
__device__ __forceinline__ void run_resident_sample(const abi::SampleParams& p) {
  static_assert(!kTraits.first, "the first tokens are returned by run_sample");
  constexpr bool kProbs = kTraits.probs;
  constexpr bool kCuts = kTraits.top_k || kTraits.top_p;
  const i64 r = ptx::block_idx() / ptx::cluster_size();
  const i64 source = p.indices.rows == nullptr ? r : p.indices.at(r);
  if (source < 0 || source >= p.input.num_rows) {
    if (ptx::cluster_rank() == 0) write_empty(p, r);
    return;
  }
  Resident<T, kProbs> row(p.input.data + source * p.input.row_stride, p.input.stride, p.vocab);
  row.load();
  sync_row();  // before any block writes to another's memory, that one must have begun
  float temperature = p.temperature.at(r);
  const bool greedy = !(temperature > abi::kArgmaxTemperature);
  if (greedy) temperature = 1.0F;
  const i64 top_k = p.top_k.at(r);
  const float top_p = p.top_p.at(r) < 0.0F ? 0.0F : p.top_p.at(r);
  const float min_p = p.min_p.at(r);
  const bool by_count = kTraits.top_k && !greedy && top_k > 0 && top_k < p.vocab;
  const bool by_mass = kTraits.top_p && !greedy && top_p < 1.0F;
  const bool filtered = p.filtered_logprobs != 0;
  const u64 random = greedy ? 0 : p.random.bits(r, static_cast<u32>(abi::Purpose::token));

  bool saw_nan = false;
  if constexpr (kTraits.edits || kTraits.masked) saw_nan = row.template prepare<kTraits.edits, kTraits.masked>(p, r);
  constexpr bool kGuessed = kProbs && !kCuts;  // masses of probabilities need not wait for the largest
  const bool guessed = row.template survey<kGuessed>(temperature, saw_nan);
  const bool leads = ptx::cluster_rank() == 0;
  if (!row.any()) {
    if (leads) write_empty(p, r);
    return;
  }
  u64 total = 0;
  int which = 1;                     // of the latest exchange: masses of what is kept,
  bool known = kGuessed && guessed;  // if they are
  if ((p.logprobs.data != nullptr && (!filtered || greedy)) || (p.joint != 0 && by_count && by_mass)) {
    row.masses();
    total = row.sum(0);
    which = 0;
    known = true;
  }
  if (greedy) {
    const int token = row.argmax();
    if (!leads || ptx::thread_idx() != 0) return;
    p.tokens.set(r, 0, token);
    if (p.valid != nullptr) p.valid[r * p.valid_stride] = row.nan ? 0 : 1;
    if (p.logprobs.data != nullptr) p.logprobs.set(r, 0, filtered ? 0.0F : logprob_of<kProbs>(row.w.max, total, temperature, row.w));
    return;
  }
  [[maybe_unused]] const bool few = by_count && top_k <= row.n / 16;
  if constexpr (kTraits.top_k) {
    if (by_count) row.floor = row.template find<false>(static_cast<u64>(top_k), 0.0F, 0, few);
  }
  if constexpr (kTraits.top_p) {
    if (by_mass) row.floor = row.template find<true>(0, top_p, p.joint != 0 && by_count ? total : 0, few);
  }
  if (min_p > 0.0F) {
    const u32 least = row.least_key(min_p);
    if (least > row.floor.key) {
      row.floor = {least - 1, Cut::kNone};
      row.num_all = -1;
    }
  }
  typename Resident<T, kProbs>::Kept kept;
  if (kCuts && row.num_all >= 0) {
    kept = row.after_cut();
  } else {
    if (!known || !row.plain()) {
      row.masses();
      which = 0;
    }
    kept = row.shared_out(which);
  }
  const u64 left = abi::multiply_high(random, kept.total) - kept.before;
  if (left < kept.here) {
    const auto drawn = row.draw(left);
    if (drawn.here) {
      p.tokens.set(r, 0, drawn.position);
      if (p.valid != nullptr) p.valid[r * p.valid_stride] = row.nan ? 0 : 1;
      if (p.logprobs.data != nullptr)
        p.logprobs.set(r, 0, logprob_of<kProbs>(drawn.value, filtered ? kept.total : total, temperature, row.w));
    }
  }
  if (kCuts) sync_row();  // others may be reading this block's memory still
}

template <typename T, RowKind kKind>
__device__ __forceinline__ void run_resident_rows(const abi::SampleParams& p) {
  constexpr bool kProbs = kKind == RowKind::top_p_renorm || kKind == RowKind::top_k_renorm;
  constexpr bool kMask = kKind == RowKind::top_k_mask;
  constexpr bool kSoftmax = kKind == RowKind::softmax;
  constexpr bool kStores = kSoftmax && kSame<T, float>;
  using Row = Resident<T, kProbs>;
  const i64 r = ptx::block_idx() / ptx::cluster_size();
  Row row(p.input.data + r * p.input.row_stride, p.input.stride, p.vocab);
  u8* out = p.out.data + r * p.out.row_stride;
  const i64 top_k = p.top_k.at(r);
  const float top_p = p.top_p.at(r) < 0.0F ? 0.0F : p.top_p.at(r);
  float temperature = p.temperature.at(r);
  const bool greedy = kSoftmax && !(temperature > abi::kArgmaxTemperature);
  if (greedy || !kSoftmax) temperature = 1.0F;
  const auto raw = [&](int position) { return *reinterpret_cast<const T*>(row.row + position * row.stride); };

  const bool copies = kKind == RowKind::top_p_renorm ? !(top_p < 1.0F) : !kSoftmax && (top_k <= 0 || top_k >= p.vocab);
  if (copies) {
    const int end = min(row.end_position(), p.vocab);
    for (int i = max(row.first_position(), 0) + ptx::thread_idx(); i < end; i += kThreads) {
      if constexpr (kMask) {
        *reinterpret_cast<T*>(out + i * p.out.stride) = raw(i);
      } else {
        *reinterpret_cast<float*>(out + i * p.out.stride) = to_f32(raw(i));
      }
    }
    return;
  }
  row.load();
  sync_row();
  row.template survey<false>(temperature, false);
  const bool any = row.any();
  int argmax = -1;
  float divisor = 1.0F;
  if (any && greedy) {
    argmax = row.argmax();
  } else if (any) {
    if constexpr (kKind == RowKind::top_p_renorm) {
      row.floor = row.template find<true>(0, top_p, 0, false);
    } else if constexpr (!kSoftmax) {
      row.floor = row.template find<false>(static_cast<u64>(top_k), 0.0F, 0, !kMask && top_k <= p.vocab / 16);
    }
    if constexpr (kMask) {
      sync_row();  // others may be reading this block's memory still
    } else {
      u64 mass = 0;
      if (!kSoftmax && row.num_all >= 0) {
        mass = row.after_cut().total;
        sync_row();
      } else {
        row.template masses<kStores>();
        mass = row.sum(0);
      }
      divisor = abi::weight_of_mass(mass, kProbs && row.w.max == kInfinity ? abi::kOneExponent : row.w.reference);
    }
  }
  const ValueCut floor(row.floor);
  const Weighting w = row.w;
  const Divider divider(divisor);
  [[maybe_unused]] const bool infinite = kProbs && w.max == kInfinity;
  row.each([&](int position, const auto& x, Vec16*) {
    float y[Row::kItems];
#pragma unroll
    for (int e = 0; e < Row::kItems; ++e) {
      if constexpr (kSoftmax) {
        y[e] = !any ? 0.0F : kStores ? max(x[e], 0.0F) : weight_of<false>(x[e], w);
      } else {
        const bool keeps = any && floor.keeps(x[e], position + e);
        if constexpr (kMask) {
          y[e] = keeps ? 1.0F : 0.0F;
        } else {
          const float weight = infinite ? (x[e] == kInfinity ? 1.0F : 0.0F) : weight_of<kProbs>(x[e], w);
          y[e] = keeps ? weight : 0.0F;
        }
      }
    }
    if constexpr (!kMask) divider.divide(y);
    if (kSoftmax && greedy) {
#pragma unroll
      for (int e = 0; e < Row::kItems; ++e) y[e] = position + e == argmax ? 1.0F : 0.0F;
    }
    write_chunk<T, kMask>(p, out, position, y, raw);
  });
}

/// k: at most ResidentShared::kBins.
template <typename T>
__device__ __forceinline__ void run_resident_top_k(const abi::TopKParams& p) {
  constexpr int kRanked = 128;  // entries that are put in order by comparing each with each
  const i64 r = ptx::block_idx() / ptx::cluster_size();
  const int start = p.starts == nullptr ? 0 : min(max(p.starts[r * p.starts_stride], 0), p.vocab);
  const int length = p.lengths == nullptr ? p.vocab - start : min(max(p.lengths[r * p.lengths_stride], 0), p.vocab - start);
  Resident<T, false> row(p.input.data + r * p.input.row_stride + start * p.input.stride, p.input.stride, length);
  row.load();
  sync_row();
  row.template survey<false>(1.0F, false);
  if (row.any()) row.floor = row.template find<false>(static_cast<u64>(p.k), 0.0F, 0, false);
  int count = row.collect();
  if (ptx::cluster_rank() != 0) return;
  const int wanted = min(p.k, length);
  u32* s_keys = own<ResidentShared>().histogram;
  i32* s_positions = reinterpret_cast<i32*>(s_keys + ResidentShared::kBins);
  const bool lacks = count < wanted;
  if (lacks) {
    count = add_last<T>(row.row, row.stride, length, s_keys, s_positions, count, wanted);
    ptx::sync_block();
  }
  const bool ranked = p.sorted != 0 && count <= kRanked;
  if (!ranked && (p.sorted != 0 || lacks)) sort_entries(s_keys, s_positions, count, p.sorted == 0);
  for (int i = ptx::thread_idx(); i < p.k; i += kThreads) {
    const bool there = i < count;
    const int index = there ? s_positions[i] : -1;
    int place = i;
    if (there && ranked) {
      const u32 key = s_keys[i];
      place = 0;
#pragma unroll 1
      for (int j = 0; j < count; ++j) place += (s_keys[j] > key) | ((s_keys[j] == key) & (s_positions[j] < index)) ? 1 : 0;
    }
    p.indices.set(r, place, there ? p.returned(r, index) : -1);
    if (p.values.data == nullptr) continue;
    u8* to = p.values.data + r * p.values.row_stride + place * p.values.stride;
    *reinterpret_cast<T*>(to) = there ? *reinterpret_cast<const T*>(row.row + index * row.stride) : from_f32<T>(-kInfinity);
  }
}

}  // namespace girih::sampling
