// A row of f32 that streams by, once or twice: a warp has a piece of each tile to itself, which asynchronous copies bring into a ring of
// shared memory, so that a pass needs no barrier; and an evenly spread sample of the row. The ways of few passes (nucleus.cuh,
// shortlist.cuh) are built on it; row.cuh is for rows of any type and stride, and for many passes.
#pragma once

#include "sampling/block.cuh"
#include "sampling/weight.cuh"

namespace girih::sampling {

/// kProbs: what lies outside the row is 0, else -inf. kRingAt: of the block's shared memory.
template <bool kProbs, int kRingAt>
class Stream {
 public:
  static constexpr int kItems = 4;                              // of a chunk
  static constexpr int kChunks = 4;                             // of a tile that a lane has, one in each step of its warp
  static constexpr int kPiece = kChunks * ptx::kWarp * kItems;  // entries of a tile that a warp has, all in a row
  static constexpr int kTile = kPiece * kWarps;
  static constexpr int kTileBytes = kTile * 4;
  static constexpr int kRing = 3;
  static constexpr int kRingBytes = kRing * kTileBytes;
  static constexpr int kEach = kChunks * kItems;  // of a tile
  static constexpr int kSampled = 5;              // chunks that a thread has of the sample
  static constexpr int kSample = kSampled * kThreads * kItems;
  static constexpr int kLeast = 2 * kSample;  // entries of a row; shorter ones are not for this way
  static constexpr int kGroupChunks = 4;      // of the sample, side by side
  static constexpr int kAhead = 192 << 10;    // bytes that stay in L2 while others do the same
  static constexpr float kNothing = kProbs ? 0.0F : -kInfinity;

  __device__ __forceinline__ Stream(const u8* row, int n) : n_(n) {
    lead_ = static_cast<int>(reinterpret_cast<u64>(row) % kChunkBytes / 4);
    from_ = row - lead_ * 4;
    size_ = ptx::cluster_size();
    num_tiles_ = ceil_div(n + lead_, kTile);
    first_ = num_tiles_ * ptx::cluster_rank() / size_;
    count_ = num_tiles_ * (ptx::cluster_rank() + 1) / size_ - first_;
    warp_ = ptx::thread_idx() / ptx::kWarp;
  }

 protected:
  static __device__ __forceinline__ u8* ring() { return ptx::shared_memory() + kRingAt; }
  __device__ __forceinline__ int position_of_chunk(int chunk) const { return chunk * kItems - lead_; }
  /// Of this block's tile `tile`, this lane's first.
  __device__ __forceinline__ int chunk_of(int tile) const {
    return ((first_ + tile) * kWarps + warp_) * kChunks * ptx::kWarp + ptx::lane_idx();
  }
  __device__ __forceinline__ bool whole(int chunk) const {
    const int position = position_of_chunk(chunk);
    return position >= 0 && position + kItems <= n_;
  }
  /// Whose tile this block's entry `at` from its first on is, and which of that thread's: tile, step, entry.
  struct Owner {
    int thread, index;
  };
  static __device__ __forceinline__ Owner owner_of(int at) {
    const int chunk = at / kItems;
    const int lane = chunk % ptx::kWarp, step = chunk / ptx::kWarp;
    return {step / kChunks % kWarps * ptx::kWarp + lane, (step / kChunks / kWarps * kChunks + step % kChunks) * kItems + at % kItems};
  }

  /// A chunk of which part lies outside the row: there is nothing.
  static __device__ __attribute__((noinline)) Vec16 load_edge(const u8* from, int lead, int n, int chunk) {
    Vec16 v;
#pragma unroll 1
    for (int e = 0; e < kItems; ++e) {
      const int at = chunk * kItems + e;
      v.x[e] = bits_of(kNothing);
      if (at >= lead && at < n + lead) v.x[e] = *reinterpret_cast<const u32*>(from + static_cast<i64>(at) * 4);
    }
    return v;
  }
  __device__ __forceinline__ Vec16 load_chunk(int chunk) const {
    if (whole(chunk)) return ptx::load_stream(from_ + static_cast<i64>(chunk) * kChunkBytes);
    return load_edge(from_, lead_, n_, chunk);
  }

  __device__ __forceinline__ Vec16* slot(int number) const {
    return reinterpret_cast<Vec16*>(ring() + number * kTileBytes) + warp_ * kChunks * ptx::kWarp;
  }
  /// Asks for the tile that is the pass's `number`-th, into a slot; backward: so that L2 has part of them still.
  __device__ __forceinline__ void load_tile(int number, Vec16* s_slot, bool backward) const {
    const int tile = backward ? count_ - 1 - number : number;
    const int chunk = chunk_of(tile);
    Vec16* s_to = s_slot + ptx::lane_idx();
    const int begin = (first_ + tile) * kTile - lead_;
    if (begin >= 0 && begin + kTile <= n_) {
      const u8* g_from = from_ + static_cast<i64>(chunk) * kChunkBytes;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) ptx::cp_async_16(s_to + c * ptx::kWarp, g_from + c * ptx::kWarp * kChunkBytes, true);
      return;
    }
#pragma unroll 1
    for (int c = 0; c < kChunks; ++c) s_to[c * ptx::kWarp] = load_chunk(chunk + c * ptx::kWarp);
  }
  __device__ __forceinline__ void start_pass(bool backward) const {
#pragma unroll
    for (int i = 0; i < kRing - 1; ++i) {
      if (i < count_) load_tile(i, slot(i), backward);
      ptx::cp_async_commit();
    }
  }
  /// Slots of a pass: of the tile whose turn it is, and of the one that is asked for.
  struct Turn {
    int now = 0, next = kRing - 1;
    __device__ __forceinline__ void advance() {
      now = now == kRing - 1 ? 0 : now + 1;
      next = next == kRing - 1 ? 0 : next + 1;
    }
  };
  /// The tile that is the pass's `number`-th is there, as far as this lane has copied it.
  __device__ __forceinline__ void await_tile(int number, const Turn& turn, bool backward) const {
    if (number + kRing - 1 < count_) load_tile(number + kRing - 1, slot(turn.next), backward);
    ptx::cp_async_commit();
    ptx::cp_async_wait<kRing - 1>();
  }
  /// Calls f(tile, the warp's piece of it).
  template <typename F>
  __device__ __forceinline__ void each_piece(bool backward, F f) const {
    Turn turn;
#pragma unroll 1
    for (int i = 0; i < count_; ++i, turn.advance()) {
      await_tile(i, turn, backward);
      f(backward ? count_ - 1 - i : i, slot(turn.now));
    }
  }

  /// Chunks in groups of four, evenly spread; edits are left out.
  __device__ __forceinline__ void sample(Vec16 (&x)[kSampled]) const {
    const int first = lead_ == 0 ? 0 : 1;
    const int groups = ((n_ + lead_) / kItems - first) / kGroupChunks;
    const float step = static_cast<float>(groups) / static_cast<float>(kSampled * kThreads / kGroupChunks);
#pragma unroll
    for (int i = 0; i < kSampled; ++i) {
      const int number = i * kThreads + ptx::thread_idx();
      const int group = min(static_cast<int>(static_cast<float>(number / kGroupChunks) * step), groups - 1);
      x[i] = ptx::load_stream(from_ + static_cast<i64>(first + group * kGroupChunks + number % kGroupChunks) * kChunkBytes);
    }
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

  int n_, lead_, size_, num_tiles_, first_, count_, warp_;
  const u8* from_;  // 16-byte aligned, up to 3 entries ahead of the row
};

}  // namespace girih::sampling
