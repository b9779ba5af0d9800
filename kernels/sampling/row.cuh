// A block's part of a row, passed over again and again: tiles come by asynchronous copies into slots of shared memory and stay there if
// there is one for each; else they go through a ring, forward and backward in turn, so that part of them is still in L2. A thread reads
// only what it copied itself, so that a pass needs no barrier. Bias and penalties are patched into a tile of f32 as it passes.
// What of a tile lies outside the row is -inf in shared memory: no pass asks where the row ends.
#pragma once

#include "sampling/list.cuh"

namespace girih::sampling {

/// A chunk at a position of a row of n entries; outside there is -inf. A function of its own, and none of RowReader, whose members are to
/// stay in registers.
template <typename T>
__device__ __attribute__((noinline)) Vec16 load_some(const u8* row, i64 stride, int n, int position) {
  Vec16 v;
  T* items = reinterpret_cast<T*>(&v);
#pragma unroll 1
  for (int e = 0; e < kChunkBytes / static_cast<int>(sizeof(T)); ++e) {
    const int at = position + e;
    items[e] = at >= 0 && at < n ? *reinterpret_cast<const T*>(row + at * stride) : from_f32<T>(-kInfinity);
  }
  return v;
}

/// Shared memory of a block: Shared, then a tile of f32 (edits), then slots.
template <Config kConfig, typename T, bool kEdits>
struct Layout {
  static constexpr int kWork = static_cast<int>((sizeof(Shared<kConfig>) + 127) / 128 * 128);
  static constexpr int kSlots = kWork + (kEdits ? kConfig.tile_bytes / static_cast<int>(sizeof(T)) * 4 : 0);
};

/// T: float, f16, bf16. kProbs: what is not > 0 has no mass. kEdits: bias or penalties. kMasked: a bit mask. kMinus: another row, of
/// probabilities as well, is subtracted.
template <Config kConfig, typename T, bool kProbs, bool kEdits, bool kMasked, bool kMinus = false>
class RowReader {
 public:
  static constexpr int kTileBytes = kConfig.tile_bytes;
  static constexpr int kRing = kConfig.ring;
  static constexpr int kChunks = kTileBytes / kChunkBytes / kThreads;       // of a tile that a thread has
  static constexpr int kItems = kChunkBytes / static_cast<int>(sizeof(T));  // of a chunk
  static constexpr int kTile = kTileBytes / static_cast<int>(sizeof(T));    // entries of a tile
  static constexpr float kNothing = kProbs ? 0.0F : -kInfinity;             // an entry without mass

  /// num_slots: tiles from kSlots on.
  __device__ RowReader(const u8* row, i64 stride, int n, int num_slots) : row_(row), stride_(stride), n_(n) {
    dense_ = stride == static_cast<i64>(sizeof(T));
    lead_ = dense_ ? static_cast<int>(reinterpret_cast<u64>(row) % kChunkBytes / sizeof(T)) : 0;
    num_tiles_ = ceil_div(n + lead_, kTile);
    begin_ = num_tiles_ * ptx::cluster_rank() / ptx::cluster_size();
    end_ = num_tiles_ * (ptx::cluster_rank() + 1) / ptx::cluster_size();
    stays_ = end_ - begin_ <= num_slots;
  }
  __device__ void edit(const abi::SampleParams& p, i64 r) {
    if constexpr (kEdits) {
      if (ptx::thread_idx() == 0) edits().open(p, r);  // seen by others after the next barrier
    }
    if constexpr (kMasked) allowed_ = p.allowed + r * p.allowed_stride;
  }

  /// From now on the row is what is left of it over `row` (null: as it is), without entry `removed`. kMinus only.
  __device__ void subtract(const u8* row, i64 stride, int removed) {
    minus_ = row;
    minus_stride_ = stride;
    removed_ = removed;
  }

  /// A pass has been made with a copy.
  __device__ __forceinline__ void passed(const RowReader& copy) {
    passes_ = copy.passes_;
    saw_nan_ = copy.saw_nan_;
  }

  /// What lay in the slots has been written over.
  __device__ __forceinline__ void forget() { passes_ = 0; }

  __device__ int size() const { return n_; }
  __device__ int num_tiles() const { return num_tiles_; }
  __device__ int first_tile() const { return begin_; }
  __device__ int last_tile() const { return end_; }
  /// Number of the first entry of a tile; may be negative in tile 0.
  __device__ int first_entry(int tile) const { return tile * kTile - lead_; }
  __device__ bool saw_nan() const { return saw_nan_; }
  __device__ int num_chunks() const { return ceil_div(n_ + lead_, kItems); }
  __device__ int tile_at(int position) const { return (position + lead_) / kTile; }
  __device__ const u8* address(int position) const { return row_ + position * stride_; }

  /// Calls f(position of x[0], x) for all chunks of this thread in this block's tiles, and end(tile) after each tile. Entries without mass,
  /// and what is not in the row, are kNothing. All threads of the block make the same calls together.
  template <bool kUnrolled = !kConfig.compact, typename F, typename End>
  __device__ __forceinline__ void pass(F f, End end) {
    const int count = end_ - begin_;
    const bool backward = (passes_ & 1) != 0;
    const bool there = stays_ && passes_ != 0;
    const int step = backward ? -1 : 1;
    int tile = backward ? end_ - 1 : begin_;
    int ahead = tile;
#pragma unroll 1
    for (int i = 1 - kRing; i < count; ++i) {
      if (i + kRing - 1 < count && !there) load_tile(ahead, slot(ahead, i + kRing - 1));
      ahead += step;
      ptx::cp_async_commit();
      if (i < 0) continue;
      ptx::cp_async_wait<kRing - 1>();
      process<kUnrolled>(tile, slot(tile, i), f);
      end(tile);
      tile += step;
    }
    ++passes_;
  }

  /// Asks for the tiles of the next pass ahead of it, in L2: what fits there while others do the same.
  __device__ __forceinline__ void prefetch() const {
    constexpr int kLine = 128;
    if (!dense_) return;
    const u64 begin = reinterpret_cast<u64>(row_) + static_cast<u64>(max(first_entry(begin_), 0)) * sizeof(T);
    const u64 end = min(reinterpret_cast<u64>(row_) + static_cast<u64>(min(first_entry(end_), n_)) * sizeof(T), begin + (u64{192} << 10));
#pragma unroll 1
    for (u64 at = begin + static_cast<u64>(ptx::thread_idx() * kLine); at < end; at += u64{kThreads * kLine})
      ptx::prefetch_l2(reinterpret_cast<const void*>(at));
  }

  /// Calls f(number, x) for `count` chunks of the row, which lie in evenly spread groups of four; blocks and threads share them. `count`: a
  /// multiple of 4 that the row has, and the slots for tiles. Edits are left out.
  template <typename F>
  __device__ __forceinline__ void sample(int count, F f) {
    constexpr int kGroup = 4;
    const int groups = num_chunks() / kGroup;
    const float step = static_cast<float>(groups) / static_cast<float>(count / kGroup);
    const int begin = ptx::cluster_rank() * kThreads + ptx::thread_idx();
    const auto position_of = [&](int i) {
      return (min(static_cast<int>(static_cast<float>(i / kGroup) * step), groups - 1) * kGroup + i % kGroup) * kItems - lead_;
    };
#pragma unroll 1
    for (int i = begin; i < count; i += ptx::cluster_size() * kThreads) {
      const int position = position_of(i);
      Vec16* s_to = reinterpret_cast<Vec16*>(slots()) + i;
      if (dense_ && position >= 0 && position + kItems <= n_) {
        ptx::cp_async_16(s_to, row_ + static_cast<i64>(position) * static_cast<i64>(sizeof(T)), true);
      } else {
        *s_to = load_some<T>(row_, stride_, n_, position);
      }
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
#pragma unroll 1
    for (int i = begin; i < count; i += ptx::cluster_size() * kThreads) {
      float x[kItems];
      widen(x, reinterpret_cast<const Vec16*>(slots())[i]);
      if constexpr (kMasked) mask(x, position_of(i));
      f(i, x);
    }
  }
  /// How many chunks the slots hold.
  static __device__ __forceinline__ int most_sampled(int num_slots) { return num_slots * (kTileBytes / kChunkBytes); }

  /// Calls f(position of x[0], x) for this thread's chunks of one tile of the row, whichever block has it in passes.
  template <typename F>
  __device__ __forceinline__ void visit_tile(int tile, F f) {
    u8* s_slot = slots();  // passes that follow load anew what this was of
    load_tile(tile, s_slot);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    process<false>(tile, s_slot, f);
    if (stays_) passes_ = 0;
  }

 private:
  static __device__ __forceinline__ Edits& edits() { return reinterpret_cast<Shared<kConfig>*>(ptx::shared_memory())->edits; }
  static __device__ __forceinline__ u8* slots() { return ptx::shared_memory() + Layout<kConfig, T, kEdits>::kSlots; }
  static __device__ __forceinline__ float* work() {
    return reinterpret_cast<float*>(ptx::shared_memory() + Layout<kConfig, T, kEdits>::kWork);
  }
  /// Of a tile that is the i-th of a pass.
  __device__ __forceinline__ u8* slot(int tile, int i) const { return slots() + (stays_ ? tile - begin_ : i % kRing) * kTileBytes; }

  __device__ __forceinline__ void load_tile(int tile, u8* s_slot) {
    const int first = first_entry(tile);
    u8* s_to = s_slot + ptx::thread_idx() * kChunkBytes;
    if (dense_ && first >= 0 && first + kTile <= n_) {
      const u8* g_from = row_ + static_cast<i64>(first) * static_cast<i64>(sizeof(T)) + ptx::thread_idx() * kChunkBytes;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) ptx::cp_async_16(s_to + c * kThreads * kChunkBytes, g_from + c * kThreads * kChunkBytes, true);
      return;
    }
#pragma unroll 1
    for (int c = 0; c < kChunks; ++c)
      *reinterpret_cast<Vec16*>(s_to + c * kThreads * kChunkBytes) =
          load_some<T>(row_, stride_, n_, first + (ptx::thread_idx() + c * kThreads) * kItems);
  }

  __device__ __forceinline__ float clean(float x) const { return ptx::max_number(x, kNothing); }

  /// Entries of a chunk in f32.
  __device__ __forceinline__ void widen(float (&x)[kItems], const Vec16& v) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float part[kPerWord<T>];
      unpack<T>(part, v.x[w]);
#pragma unroll
      for (int e = 0; e < kPerWord<T>; ++e) {
        saw_nan_ |= part[e] != part[e];
        x[w * kPerWord<T> + e] = clean(part[e]);
      }
    }
  }

  __device__ __forceinline__ void mask(float (&x)[kItems], int position) const {
    const u32 bits = allowed_bits(position);
#pragma unroll
    for (int e = 0; e < kItems; ++e) x[e] = (bits >> e & 1U) != 0 ? x[e] : kNothing;
  }

  /// Bits of the mask for the entries of a chunk.
  __device__ __forceinline__ u32 allowed_bits(int position) const {
    const int word = (position + 32) / 32 - 1;  // towards minus infinity
    const int words = (n_ + 31) / 32;
    const u32 low = word >= 0 && word < words ? allowed_[word] : 0U;
    const u32 high = word + 1 >= 0 && word + 1 < words ? allowed_[word + 1] : 0U;
    return static_cast<u32>((static_cast<u64>(high) << 32 | low) >> (position - word * 32));
  }

  template <bool kUnrolled, typename F>
  __device__ __forceinline__ void process(int tile, const u8* s_slot, F f) {
    [[maybe_unused]] constexpr int kUnroll = kUnrolled ? kChunks : 1;
    const Vec16* s_chunks = reinterpret_cast<const Vec16*>(s_slot) + ptx::thread_idx();
    float* s_work = work();
    if constexpr (kEdits) {
#pragma unroll kUnroll
      for (int c = 0; c < kChunks; ++c) {
        float x[kItems];
        widen(x, s_chunks[c * kThreads]);
#pragma unroll
        for (int e = 0; e < kItems; ++e) s_work[(ptx::thread_idx() + c * kThreads) * kItems + e] = x[e];
      }
      ptx::sync_block();
      patch(edits(), s_work, first_entry(tile), kTile, kNothing);
      ptx::sync_block();
    }
#pragma unroll kUnroll
    for (int c = 0; c < kChunks; ++c) {
      const int chunk = ptx::thread_idx() + c * kThreads;
      const int position = first_entry(tile) + chunk * kItems;
      float x[kItems];
      if constexpr (kEdits) {
#pragma unroll
        for (int e = 0; e < kItems; ++e) x[e] = s_work[chunk * kItems + e];
      } else {
        widen(x, s_chunks[c * kThreads]);
      }
      if constexpr (kMasked) mask(x, position);
      if constexpr (kMinus) {
#pragma unroll
        for (int e = 0; e < kItems; ++e) {
          const int at = position + e;
          if (at < 0 || at >= n_) continue;
          if (minus_ != nullptr) {
            const float q = to_f32(*reinterpret_cast<const T*>(minus_ + at * minus_stride_));
            if (q > 0.0F) x[e] -= q;
            if (!(x[e] > 0.0F)) x[e] = kNothing;
          }
          if (at == removed_) x[e] = kNothing;
        }
      }
      f(position, x);
    }
  }

  const u8* row_;
  i64 stride_;
  int n_, lead_, num_tiles_, begin_, end_;
  int passes_ = 0;
  bool dense_;
  bool stays_;  // every tile has a slot of its own
  bool saw_nan_ = false;
  const u32* allowed_ = nullptr;
  const u8* minus_ = nullptr;
  i64 minus_stride_ = 0;
  int removed_ = -1;
};

}  // namespace girih::sampling
