// sample(), and the functions that write a row for a row. A cluster takes a row; the largest entry is found first, then the cuts
// (select.cuh), then the tile and in it the entry that the random number chooses, or each entry is written.
#pragma once

#include "sampling/nucleus_cut.cuh"
#include "sampling/select.cuh"
#include "sampling/shortlist.cuh"

namespace girih::sampling {

/// A row under way: what run_sample and the others share.
template <Config kConfig, typename T, bool kProbs, bool kEdits, bool kMasked, bool kMinus = false>
struct RowRun {
  using Reader = RowReader<kConfig, T, kProbs, kEdits, kMasked, kMinus>;
  using S = Shared<kConfig>;
  using Select = Selector<Reader, S, kProbs>;

  S& leader;
  Reader reader;
  Select select;
  int num_slots;
  int argmax = 0;

  __device__ RowRun(const u8* row, i64 stride, int n, int slots)
      : leader(ptx::cluster_rank() == 0 ? own<S>() : *ptx::in_block(&own<S>(), 0)),
        reader(row, stride, n, slots),
        select{reader, leader},
        num_slots(slots) {}

  __device__ __forceinline__ void start(float temperature) {
    S& s = own<S>();
    select.temperature = temperature;
    select.w = make_weighting(kProbs, 1.0F, temperature);
    select.weighted = false;
    if (ptx::thread_idx() == 0) {
      s.listed = 0;
      s.bracket.histogram = 0;
    }
    sync_row();  // before any block writes to another's memory, that one must have begun
  }

  /// In place of begin(): lists what the order begins with (shortlist.cuh), for rows of f32 without gaps. False: begin() must follow.
  template <bool kByCount>
  __device__ __forceinline__ bool shortlist(const u8* row, float temperature, u64 count, float min_p, const abi::SampleParams* p, i64 r) {
    using Few = Shortlist<kConfig, kProbs, kEdits, kByCount>;
    if (Few::kBytes > Layout<kConfig, T, kEdits>::kSlots + num_slots * kConfig.tile_bytes) return false;
    const typename Few::Wish wish{static_cast<int>(count), min_p, kLog2E / temperature};
    Few few(row, reader.size());
    if (!few.suits(wish, p, r)) return false;
    few.start();
    reader.forget();
    start(temperature);
    const typename Few::Found found = few.run(leader, wish, p, r);
    if (!found.ok) return false;
    select.weigh_by(found.largest);
    select.nan = found.nan;
    if constexpr (kByCount) select.num_first = count;
    return true;
  }

  /// First of all. `sampled`: cuts will be asked for.
  __device__ __attribute__((noinline)) void begin(float temperature, bool sampled) {
    S& s = own<S>();
    start(temperature);
    if (sampled && reader.size() > S::kListCapacity / 2) {
      constexpr int kTaken = min(Reader::kItems, S::kOwn);  // of a chunk
      constexpr int kOwnChunks = S::kOwn / kTaken;
      const int chunks = reader.num_chunks() / 4 * 4;
      const int count = min(min(kOwnChunks * kThreads, Reader::most_sampled(num_slots)), chunks) / 4 * 4;
      S& first = leader;
      reader.forget();
      // Chunk `number` comes from any block, and goes to the thread of the same number, modulo their number, of block 0.
      reader.sample(count, [&](int number, const float(&x)[Reader::kItems]) {
        const int before = number / kThreads * kTaken;
#pragma unroll
        for (int e = 0; e < kTaken; ++e) first.list_key[(before + e) * kThreads + ptx::thread_idx()] = key_of(x[e]);
      });
      const int thread = ptx::thread_idx();
      s.num_listed[thread] = (count / kThreads + (thread < count % kThreads ? 1 : 0)) * kTaken;
#pragma unroll 1
      for (int i = 0; i < s.num_listed[thread]; ++i) s.list_position[i * kThreads + thread] = i * kThreads + thread;
      if (thread == 0) s.num_spilled = 0;
      select.num_sampled = count * kTaken;
      select.sampled_part = static_cast<float>(count * kTaken) / static_cast<float>(chunks * Reader::kItems);
    }
    reader.prefetch();
    sync_row();
  }

  /// A pass for the largest entry alone, where it must be known before masses are. The first pass, if any.
  __device__ __attribute__((noinline)) void find_largest() {
    float best = Reader::kNothing;
    int at = 0;
    Reader rows = reader;  // in registers: see Selector::pass
    rows.pass(
        [&](int position, const auto& x) {
#pragma unroll
          for (int e = 0; e < Reader::kItems; ++e) {
            if (x[e] > best) {
              best = x[e];
              at = position + e;
            }
          }
        },
        [](int) {});
    reader.passed(rows);
    const u64 largest = block_max(static_cast<u64>(key_of(best)) << 32 | (0xffffffffU - static_cast<u32>(at)));
    S& s = own<S>();
    const int warp = ptx::thread_idx() / ptx::kWarp;
    if (warp < ptx::cluster_size() && ptx::lane_idx() == 0) ptx::in_block(&s, warp)->best[ptx::cluster_rank()] = largest;
    Sums sums{};
    sums.largest = key_of(best);
    sums.nan = reader.saw_nan() ? 1 : 0;
    const Sums all = all_sums<S>(sums);
    const u64 first = warp_max(ptx::lane_idx() < ptx::cluster_size() ? s.best[ptx::lane_idx()] : 0);
    argmax = static_cast<int>(0xffffffffU - static_cast<u32>(first));
    select.settle(all, false);
  }

  /// The least key whose mass is at least min_p of the largest, found on the masses themselves.
  __device__ __attribute__((noinline)) u32 least_key(float min_p) const {
    const u64 largest = mass_of<kProbs>(select.w.max, select.w);
    const u64 need = min_p >= 1.0F ? largest : mass_needed(largest, min_p);
    u32 low = Select::kNothingKey + 1;
    u32 high = key_of(select.w.max);
#pragma unroll 1
    while (low < high) {
      const u32 middle = low + (high - low) / 2;
      if (mass_of<kProbs>(value_of(middle), select.w) >= need) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return high;
  }

  /// Makes block 0's tile_mass that of what `floor` keeps, and returns its sum to block 0. `fresh`: no pass has been made for it. Few
  /// entries are listed as such instead.
  __device__ __attribute__((noinline)) u64 kept_by_tile(bool fresh) {
    S& s = own<S>();
    const Cut floor = select.floor;
    const Weighting w = select.w;
    const bool usable =
        !fresh && leader.listed != 0 && leader.summed != 0 && floor.key <= leader.listed_high && floor.least() >= leader.listed_low;
    sync_row();
    if (!usable) {
      Sums all{};
      do {
        select.prepare();
        all = select.template pass<true>(Select::kNoBracket);
      } while (select.settle(all, true));
      if (ptx::thread_idx() == 0) s.num_few = kFew + 1;
      ptx::sync_block();
      return all.total;
    }
    if (!select.leads()) return 0;
    if (leader.listed_high == abi::kKeyOfInf) {
      for_listed<S>([&](int i, u32 key) {
        if (!floor.keeps(key, s.list_position[i])) s.list_key[i] = 0;
      });
      const int few = take_few<kProbs, S>(floor.least(), 0xffffffffU, true, w);
      if (few <= kFew) return block_sum(ptx::thread_idx() < few ? s.few_amount[ptx::thread_idx()] : 0);
    } else if (ptx::thread_idx() == 0) {
      s.num_few = kFew + 1;
    }
    // Entries that lanes have at the same time are of few tiles: each lane adds to a sum of its own, in the histogram.
    int copies = ptx::kWarp;
#pragma unroll 1
    while (reader.num_tiles() * copies > S::kBins) copies /= 2;
    ptx::sync_block();
    clear_histogram(s);
    ptx::sync_block();
    for_listed<S>([&](int i, u32 key) {
      const int position = s.list_position[i];
      const int at = reader.tile_at(position) * copies + (ptx::lane_idx() & (copies - 1));
      if (floor.keeps(key, position)) add_shared(s.histogram + 2 * at, mass_of<kProbs>(value_of(key), w));
    });
    ptx::sync_block();
#pragma unroll 1
    for (int tile = ptx::thread_idx() / ptx::kWarp; tile < reader.num_tiles(); tile += kWarps) {
      const u64 mass = warp_sum(ptx::lane_idx() < copies ? read_pair(s.histogram + 2 * (tile * copies + ptx::lane_idx())) : 0);
      if (ptx::lane_idx() == 0) add_shared(s.tile_mass + 2 * tile, mass);
    }
    ptx::sync_block();
    return select.mass_above();
  }

  /// Block 0: what draw() does, among few entries.
  __device__ __forceinline__ void draw_few(u64 left) {
    S& s = own<S>();
    const int thread = ptx::thread_idx();
    const int few = static_cast<int>(s.num_few);
    if (thread < few) {
      const i32 position = s.few_position[thread];
      u64 before = 0;
#pragma unroll 1
      for (int i = 0; i < few; ++i) before += s.few_position[i] < position ? s.few_amount[i] : 0;
      if (before <= left && left < before + s.few_amount[thread]) {
        s.position = position;
        s.value = value_of(s.few_key[thread]);
      }
    }
    ptx::sync_block();
  }

  /// Block 0: the entry that `left` of the kept mass chooses.
  __device__ __attribute__((noinline)) void draw(u64 left) {
    S& s = own<S>();
    if (s.num_few <= static_cast<u32>(kFew)) return draw_few(left);
    constexpr int kEach = (S::kMaxTiles + kThreads - 1) / kThreads;
    const int first = ptx::thread_idx() * kEach;
    u64 sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum += first + i < reader.num_tiles() ? read_pair(s.tile_mass + 2 * (first + i)) : 0;
    u64 before = block_scan(sum).before;
    if (before <= left && left < before + sum) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const u64 mass = first + i < reader.num_tiles() ? read_pair(s.tile_mass + 2 * (first + i)) : 0;
        if (before <= left && left < before + mass) {
          s.tile = first + i;
          s.left = left - before;
        }
        before += mass;
      }
    }
    ptx::sync_block();
    select.find_in_tile(s.tile, s.left, 0);
  }

  /// Block 0's list becomes what `cut` keeps, in any order; returns how many (0 to other blocks).
  __device__ __attribute__((noinline)) int collect(Cut cut) {
    S& s = own<S>();
    const bool usable = select.lists_all(cut);
    sync_row();
    if (!usable) {
      if (select.leads() && ptx::thread_idx() == 0) s.num_few = 0;
      sync_row();
      reader.template pass<false>(
          [&](int position, const auto& x) {
#pragma unroll 1
            for (int e = 0; e < Reader::kItems; ++e) {
              const u32 key = key_of(x[e]);
              if (!cut.keeps(key, position + e)) continue;
              const u32 place = ptx::atomic_add_shared(&leader.num_few, 1);
              leader.list_key[place] = key;
              leader.list_position[place] = position + e;
            }
          },
          [](int) {});
      sync_row();
    }
    if (!select.leads()) return 0;
    if (usable) compact(cut);
    if (ptx::thread_idx() == 0) s.listed = 0;
    return static_cast<int>(s.num_few);
  }

  /// Block 0: what is kept of the list moves to its front. A place that is written has been read.
  __device__ __attribute__((noinline)) void compact(Cut cut) {
    constexpr int kEach = 4;
    S& s = own<S>();
    ptx::sync_block();
    if (ptx::thread_idx() == 0) s.num_few = 0;
    const int listed = s.num_listed[ptx::thread_idx()];
    const int spilled = static_cast<int>(s.num_spilled);
#pragma unroll 1
    for (int first = 0; first < ceil_div(S::kListCapacity, kThreads); first += kEach) {
      u32 key[kEach];
      i32 position[kEach];
      bool kept[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int at = (first + i) * kThreads + ptx::thread_idx();
        const bool there = first + i < S::kOwn ? first + i < listed : at - S::kOwn * kThreads < spilled;
        key[i] = there ? s.list_key[at] : 0;
        position[i] = there ? s.list_position[at] : 0;
        kept[i] = there && cut.keeps(key[i], position[i]);
      }
      ptx::sync_block();
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (!kept[i]) continue;
        const u32 place = ptx::atomic_add_shared(&s.num_few, 1);
        s.list_key[place] = key[i];
        s.list_position[place] = position[i];
      }
    }
    ptx::sync_block();
  }

  /// Block 0: a bitonic sort of the list's first `count` entries.
  __device__ __attribute__((noinline)) void sort(int count, bool by_position) {
    S& s = own<S>();
    sort_entries(s.list_key, s.list_position, count, by_position);
  }
};

__device__ __attribute__((noinline)) void write_empty(const abi::SampleParams& p, i64 r) {
  if (ptx::thread_idx() == 0) {
    p.tokens.set(r, 0, 0);
    if (p.valid != nullptr) p.valid[r * p.valid_stride] = 0;
    if (p.logprobs.data != nullptr) p.logprobs.set(r, 0, float_of(0x7fc00000U));
  }
#pragma unroll 1
  for (int i = ptx::thread_idx(); i < p.num_top; i += kThreads) {
    p.top_tokens.set(r, i, -1);
    p.top_logprobs.set(r, i, float_of(0x7fc00000U));
  }
}

/// What a sample() kernel is made for: what is off in all rows of a call is not in its kernel.
struct Traits {
  bool probs;
  bool edits;   // bias or penalties
  bool masked;  // a bit mask
  bool top_k;
  bool top_p;
  bool first;          // the first tokens of the order with log-probabilities
  bool few;            // in few passes where a row lends itself: by nucleus.cuh or shortlist.cuh
  bool min_p = false;  // of few alone: min-p is the only cut
};

template <Config kConfig, typename T, Traits kTraits>
__device__ __forceinline__ void run_sample(const abi::SampleParams& p, int num_slots) {
  constexpr bool kProbs = kTraits.probs;
  constexpr bool kCounts = kTraits.top_k || kTraits.first;
  [[maybe_unused]] constexpr CutBy kBy = kCounts && kTraits.top_p ? CutBy::either : kCounts ? CutBy::count : CutBy::mass;
  using Run = RowRun<kConfig, T, kProbs, kTraits.edits, kTraits.masked>;
  const i64 r = ptx::block_idx() / ptx::cluster_size();
  const i64 source = p.indices.rows == nullptr ? r : p.indices.at(r);
  if (source < 0 || source >= p.input.num_rows) {
    if (ptx::cluster_rank() == 0) write_empty(p, r);
    return;
  }
  float temperature = p.temperature.at(r);
  const bool greedy = !(temperature > abi::kArgmaxTemperature);
  if (greedy) temperature = 1.0F;
  const i64 top_k = p.top_k.at(r);
  const float top_p = p.top_p.at(r) < 0.0F ? 0.0F : p.top_p.at(r);
  const float min_p = p.min_p.at(r);
  const bool by_count = kTraits.top_k && !greedy && top_k > 0 && top_k < p.vocab;
  const bool by_mass = kTraits.top_p && !greedy && top_p < 1.0F;
  const bool logprobs = p.logprobs.data != nullptr || p.num_top > 0;
  const bool filtered = p.filtered_logprobs != 0;
  const bool needs_total = (logprobs && (!filtered || greedy)) || (p.joint != 0 && by_count && by_mass);
  const u8* row = p.input.data + source * p.input.row_stride;
  // In few passes, where that much shared memory is.
  constexpr bool kFewPasses = kTraits.few && kSame<T, float> && !kTraits.masked && !kTraits.first && !(kProbs && kTraits.edits);
  constexpr bool kLists = kFewPasses && (kTraits.top_k || kTraits.min_p);
  if constexpr (kFewPasses && !kLists) {
    using Few = Nucleus<kProbs, kTraits.edits>;
    const bool fits = Few::kBytes <= Layout<kConfig, T, kTraits.edits>::kSlots + num_slots * kConfig.tile_bytes;
    if (fits && by_mass == kTraits.top_p && !greedy && min_p <= 0.0F && p.input.stride == 4) {
      Few few(row, p.vocab, temperature);
      if constexpr (kTraits.top_p) {
        if (few.run(p, r, top_p)) return;
      } else {
        if (few.run_plain(p, r)) return;
      }
    }
  }
  Run run(row, p.input.stride, p.vocab, num_slots);
  run.reader.edit(p, r);
  auto& select = run.select;
  auto& s = own<typename Run::S>();

  const bool lists = kLists && (kTraits.top_k ? by_count : min_p > 0.0F) && !greedy && p.input.stride == 4;
  const bool sampled = by_count || by_mass || kTraits.first;
  // Cuts by count ask for no masses; masses of probabilities do without the largest until min_p asks for it.
  const bool by_largest = kProbs ? min_p > 0.0F && !by_count && !by_mass && !kTraits.first : !by_count && !kTraits.first;
  if (!lists || needs_total) {
    run.begin(temperature, sampled && !lists);
    if (greedy || (by_largest && !lists) || (!kProbs && needs_total)) run.find_largest();
  }
  // The mass of everything before the cuts, whose passes keep their sums for the draw.
  const u64 total = needs_total && (!select.weighted || select.any()) ? run.kept_by_tile(true) : 0;
  bool listed = false;
  if constexpr (kLists) {
    if (lists) {
      listed = run.template shortlist<kTraits.top_k>(row, temperature, static_cast<u64>(top_k), min_p, &p, r);
      if (!listed) run.begin(temperature, sampled);
      if (!listed && by_largest) run.find_largest();
    }
  }

  // The first tokens of the order, by a cut of their own.
  int num_top = 0;
  if constexpr (kTraits.first) {
    const Cut cut = select.template find<kBy>(false, static_cast<u64>(p.num_top), 0.0F, 0);
    num_top = run.collect(cut);
    if (select.leads()) {
      run.sort(num_top, false);
#pragma unroll 1
      for (int i = ptx::thread_idx(); i < p.num_top; i += kThreads) {
        const bool there = i < num_top;
        p.top_tokens.set(r, i, there ? s.list_position[i] : -1);
        float x = float_of(0x7fc00000U);
        if (there && !(filtered && !greedy)) x = logprob_of<kProbs>(value_of(s.list_key[i]), total, temperature, select.w);
        if (there && filtered && greedy) x = i == 0 ? 0.0F : -kInfinity;
        if (there && filtered && !greedy) x = value_of(s.list_key[i]);  // finished below
        p.top_logprobs.set(r, i, x);
      }
    }
    sync_row();
  }
  const bool known_empty = select.weighted && !select.any();
  if (greedy || known_empty) {
    if (known_empty) {
      if (select.leads()) write_empty(p, r);
    } else if (select.leads() && ptx::thread_idx() == 0) {
      p.tokens.set(r, 0, run.argmax);
      if (p.valid != nullptr) p.valid[r * p.valid_stride] = select.nan ? 0 : 1;
      if (p.logprobs.data != nullptr)
        p.logprobs.set(r, 0, filtered ? 0.0F : logprob_of<kProbs>(select.w.max, total, temperature, select.w));
    }
    sync_row();
    return;
  }

  bool fresh = !listed;
  if constexpr (kTraits.top_k) {
    if (by_count) {
      select.floor = select.template find<kBy>(false, static_cast<u64>(top_k), 0.0F, 0);
      fresh = false;
    }
  }
  if constexpr (kTraits.top_p) {
    if (by_mass) {
      select.floor = select.template find<kBy>(true, 0, top_p, p.joint != 0 && by_count ? total : 0);
      fresh = false;
    }
  }
  if (min_p > 0.0F) {
    const u32 least = run.least_key(min_p);
    if (least > select.floor.key) select.floor = {least - 1, Cut::kNone};
  }
  const u64 kept = run.kept_by_tile(fresh);
  if (select.leads() && !select.any()) {
    write_empty(p, r);
  } else if (select.leads()) {
    run.draw(abi::multiply_high(p.random.bits(r, static_cast<u32>(abi::Purpose::token)), kept));
    if (ptx::thread_idx() == 0) {
      p.tokens.set(r, 0, s.position);
      if (p.valid != nullptr) p.valid[r * p.valid_stride] = select.nan ? 0 : 1;
      if (p.logprobs.data != nullptr) p.logprobs.set(r, 0, logprob_of<kProbs>(s.value, filtered ? kept : total, temperature, select.w));
    }
    if (kTraits.first && filtered) {
#pragma unroll 1
      for (int i = ptx::thread_idx(); i < num_top; i += kThreads) {
        const float x = p.top_logprobs.data[r * p.top_logprobs.row_stride + i * p.top_logprobs.stride];
        const i64 at = p.top_tokens.at(r, i);
        p.top_logprobs.set(
            r, i, select.floor.keeps(key_of(x), static_cast<int>(at)) ? logprob_of<kProbs>(x, kept, temperature, select.w) : -kInfinity);
      }
    }
  }
  sync_row();
}

/// Entries of a chunk to the output row: as one or two 16-byte stores where they lie so. kMask: y tells which entries of the input stay.
template <typename T, bool kMask, int kItems, typename Raw>
__device__ __forceinline__ void write_chunk(const abi::SampleParams& p, u8* out, int position, const float (&y)[kItems], const Raw& raw) {
  if constexpr (!kMask) {
    const u64 address = reinterpret_cast<u64>(out + position * p.out.stride);
    if (p.out.stride == 4 && address % 16 == 0 && position >= 0 && position + kItems <= p.vocab) {
#pragma unroll
      for (int v = 0; v < kItems / 4; ++v) {
        const Vec16 four = {{bits_of(y[4 * v]), bits_of(y[4 * v + 1]), bits_of(y[4 * v + 2]), bits_of(y[4 * v + 3])}};
        *reinterpret_cast<Vec16*>(address + 16 * v) = four;
      }
      return;
    }
  }
#pragma unroll
  for (int e = 0; e < kItems; ++e) {
    if (position + e < 0 || position + e >= p.vocab) continue;
    u8* to = out + (position + e) * p.out.stride;
    if constexpr (kMask) {
      *reinterpret_cast<T*>(to) = y[e] != 0.0F ? raw(position + e) : from_f32<T>(-kInfinity);
    } else {
      *reinterpret_cast<float*>(to) = y[e];
    }
  }
}

enum class RowKind : u8 { softmax, top_p_renorm, top_k_renorm, top_k_mask };

/// Writes a row for a row. Out: float, or T for top_k_mask. kFew: rows of f32 by nucleus.cuh or shortlist.cuh, where
/// they lend themselves.
template <Config kConfig, typename T, RowKind kKind, bool kFew>
__device__ __forceinline__ void run_rows(const abi::SampleParams& p, int num_slots) {
  constexpr bool kProbs = kKind == RowKind::top_p_renorm || kKind == RowKind::top_k_renorm;
  constexpr bool kMask = kKind == RowKind::top_k_mask;
  using Run = RowRun<kConfig, T, kProbs, false, false>;
  const i64 r = ptx::block_idx() / ptx::cluster_size();
  Run run(p.input.data + r * p.input.row_stride, p.input.stride, p.vocab, num_slots);
  auto& select = run.select;
  u8* out = p.out.data + r * p.out.row_stride;
  const i64 top_k = p.top_k.at(r);
  const float top_p = p.top_p.at(r) < 0.0F ? 0.0F : p.top_p.at(r);
  float temperature = p.temperature.at(r);
  const bool greedy = !(temperature > abi::kArgmaxTemperature);
  if (greedy) temperature = 1.0F;
  const auto raw = [&](int position) { return *reinterpret_cast<const T*>(run.reader.address(position)); };
  const auto put = [&](int position, float x) { *reinterpret_cast<float*>(out + position * p.out.stride) = x; };

  const bool copies = kKind == RowKind::top_p_renorm ? !(top_p < 1.0F) : kKind != RowKind::softmax && (top_k <= 0 || top_k >= p.vocab);
  if (copies) {
    const int begin = max(run.reader.first_entry(run.reader.first_tile()), 0);
    const int end = min(run.reader.first_entry(run.reader.last_tile()), p.vocab);
    for (int i = begin + ptx::thread_idx(); i < end; i += kThreads) {
      if constexpr (kMask) {
        *reinterpret_cast<T*>(out + i * p.out.stride) = raw(i);
      } else {
        put(i, to_f32(raw(i)));
      }
    }
    return;
  }

  if constexpr (kFew && kSame<T, float> && kKind == RowKind::top_p_renorm) {
    using Few = Nucleus<true, false>;
    const auto write = [&](int position, const float(&y)[Few::kItems]) { write_chunk<T, false>(p, out, position, y, raw); };
    const bool fits = Few::kBytes <= Layout<kConfig, T, false>::kSlots + num_slots * kConfig.tile_bytes;
    if (fits && p.input.stride == 4 && Few(run.reader.address(0), p.vocab, 1.0F).renorm(top_p, write)) return;
  }
  bool listed = false;
  if constexpr (kFew && kSame<T, float> && (kMask || kKind == RowKind::top_k_renorm)) {
    if (p.input.stride == 4)
      listed = run.template shortlist<true>(run.reader.address(0), temperature, static_cast<u64>(top_k), 0.0F, nullptr, 0);
  }
  if (!listed) run.begin(temperature, kKind != RowKind::softmax);
  if constexpr (kKind == RowKind::softmax) {
    run.find_largest();
  } else if constexpr (kKind == RowKind::top_p_renorm) {
    select.floor = select.template find<CutBy::mass>(true, 0, top_p, 0);
  } else {
    select.floor = select.template find<CutBy::count>(false, static_cast<u64>(top_k), 0.0F, 0);
  }
  const bool any = select.any();
  u64 kept = 0;
  if (any && !kMask) {
    kept = run.kept_by_tile(kKind == RowKind::softmax);
    if (select.leads() && ptx::thread_idx() == 0) own<typename Run::S>().left = kept;
    sync_row();
    kept = run.leader.left;
  }
  const Cut floor = select.floor;
  const Weighting w = select.w;
  const int argmax = run.argmax;
  auto rows = run.reader;
  rows.pass(
      [&](int position, const auto& x) {
        float y[Run::Reader::kItems];
#pragma unroll
        for (int e = 0; e < Run::Reader::kItems; ++e) {
          const bool keeps = any && floor.keeps(key_of(x[e]), position + e);
          if constexpr (kKind == RowKind::softmax) {
            y[e] = any ? part_of<false>(x[e], kept, w) : 0.0F;
            if (greedy) y[e] = any && position + e == argmax ? 1.0F : 0.0F;
          } else if constexpr (kMask) {
            y[e] = keeps ? 1.0F : 0.0F;
          } else {
            y[e] = keeps ? part_of<kProbs>(x[e], kept, w) : 0.0F;
          }
        }
        write_chunk<T, kMask>(p, out, position, y, raw);
      },
      [](int) {});
  sync_row();
}

}  // namespace girih::sampling
