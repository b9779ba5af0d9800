// The keys and values of a unit as one stream of tiles through a ring in shared memory: K of a step, V of the step, K of the next step, and
// so on over all items without a break, so that the copies of the next item are under way while the last one is worked on. Copies are
// cp.async groups, one a tile (empty ones too, at the end), so whoever consumes counts groups and needs no other bookkeeping.
// A warp brings its own kRows keys of every step. Lane i (mod kRows) knows where key i lies: lanes 0..15 in K, 16..31 in V; the page id of
// the next step is asked for when the current step's copies start, so the chain table -> page -> row never stalls the ring.
// Tiles hold elements as they are stored; rows past the end of the keys and dims past the head are zeros.
#pragma once

#include "attention/config.cuh"
#include "attention/problem.cuh"
#include "core/types.cuh"
#include "ptx/memory.cuh"
#include "ptx/thread.cuh"
#include "tile/shared_rows.cuh"

namespace girih::attention {

constexpr int kStepKeys = 64;

__device__ constexpr int round_up(int n, int to) { return (n + to - 1) / to * to; }

/// Sizes that follow from a config.
template <Config c>
struct StreamShape {
  static constexpr int kWarps = c.threads / ptx::kWarp;
  static constexpr int kRows = kStepKeys / kWarps;  // keys of a step that a warp brings
  // ldmatrix takes chunks by two: 16 dims of a 16-bit type, 32 of an 8-bit one, 64 of a 4-bit one.
  static constexpr int kKeyBytes = round_up(bytes(c.k_type, c.head_dim_qk), 2 * tile::kChunkBytes);
  static constexpr int kValueBytes = c.v_is_k ? kKeyBytes : round_up(bytes(c.v_type, c.head_dim_vo), 2 * tile::kChunkBytes);
  using KeyRows = tile::SharedRows<kKeyBytes>;
  using ValueRows = tile::SharedRows<kValueBytes>;
  static constexpr int kSlotBytes = max(KeyRows::bytes(kStepKeys), ValueRows::bytes(kStepKeys));
  static constexpr int kTilesPerStep = c.v_is_k ? 1 : 2;
  static constexpr int kSlots = c.stages;
  static constexpr int kRingBytes = kSlots * kSlotBytes;
  static_assert(kRows >= 8 && kRows <= 16 && c.kv_block % kStepKeys == 0);
  static_assert(kSlots % kTilesPerStep == 0);  // a slot holds K always or V always
};

/// Whether a plane's rows of `row_bytes` bytes can be copied 16 bytes at a time.
template <Type t>
__device__ __forceinline__ bool copies_whole_chunks(const abi::PlaneArg& plane, int row_bytes) {
  const u64 all = reinterpret_cast<u64>(plane.data) | static_cast<u64>(plane.page_stride) | static_cast<u64>(plane.token_stride) |
                  static_cast<u64>(plane.head_stride) | static_cast<u64>(row_bytes);
  return (all & 15U) == 0 && (is_four_bit(t) || plane.dim_stride * 8 == bits(t));
}

/// 16 bytes of a row whose elements lie `dim_stride` bytes apart or at any alignment; `count` elements (4-bit: bytes) exist.
template <Type t>
__device__ __forceinline__ Vec16 gather_chunk(const u8* g_first, i64 dim_stride, int count) {
  constexpr int kUnit = bits(t) == 16 ? 2 : 1;
  const i64 stride = is_four_bit(t) ? 1 : dim_stride;
  Vec16 v{};
#pragma unroll
  for (int i = 0; i < tile::kChunkBytes / kUnit; ++i) {
    u32 element = 0;
    if (i < count) element = kUnit == 2 ? *reinterpret_cast<const u16*>(g_first + i * stride) : g_first[i * stride];
    v.x[i * kUnit / 4] |= element << (8 * (i * kUnit % 4));
  }
  return v;
}

__device__ __forceinline__ const u8* shuffle_pointer(const u8* pointer, int lane) {
  const u64 bits = reinterpret_cast<u64>(pointer);
  const u32 low = ptx::shuffle(static_cast<u32>(bits), lane);
  const u32 high = ptx::shuffle(static_cast<u32>(bits >> 32), lane);
  return reinterpret_cast<const u8*>(static_cast<u64>(high) << 32 | low);
}

template <Config c>
class KeyStream {
 public:
  using Shape = StreamShape<c>;

  /// Starts at the unit's first item: nothing is copied yet.
  __device__ __forceinline__ KeyStream(const Args& p, UnitItems items, u8* s_ring)
      : p_(p), item_(items.begin), end_(items.end), s_ring_(s_ring), warp_(ptx::warp_idx()), lane_(ptx::lane_idx()) {
    skip_empty_items();
    open_item();
    request_page();
  }

  /// Starts the copies of the next step's keys, as one group. Their slot must be free for this warp's rows.
  __device__ __forceinline__ void issue_keys() {
    begin_step();
    if (has_step_) copy_keys(s_ring_ + slot_ * Shape::kSlotBytes + warp_ * Shape::kRows * Shape::KeyRows::kStride);
    end_tile();
  }
  /// And of that step's values.
  __device__ __forceinline__ void issue_values() {
    if (has_step_) {
      copy_rows<c.v_type, Shape::kValueBytes, Shape::ValueRows::kChunks>(
          s_ring_ + slot_ * Shape::kSlotBytes + warp_ * Shape::kRows * Shape::ValueRows::kStride, 0, row_, 16, row_segment_->v,
          bytes(c.v_type, c.head_dim_vo), values_fast_);
    }
    end_tile();
  }

 private:
  static constexpr bool kTwoParts = c.head_dim_rope > 0;

  __device__ __forceinline__ void end_tile() {
    slot_ = slot_ + 1 == Shape::kSlots ? 0 : slot_ + 1;
    ptx::cp_async_commit();
  }

  __device__ __forceinline__ void skip_empty_items() {
    while (item_ != end_ && (item_->row_count == 0 || item_->kv_begin >= item_->kv_end)) ++item_;
  }

  __device__ __forceinline__ void open_item() {
    if (item_ == end_) return;
    key_ = item_->kv_begin;
    kv_end_ = item_->kv_end;
    list_ = key_list(p_, *item_);
    const abi::SegmentArg& segment = *list_.segment;
    const abi::PlaneArg& plane = lane_ >= 16 ? value_plane<c>(segment) : segment.k;
    base_ = plane.data + list_.kv_head * plane.head_stride;
    page_stride_ = plane.page_stride;
    token_stride_ = plane.token_stride;
    keys_fast_next_ = copies_whole_chunks<c.k_type>(segment.k, bytes(c.k_type, c.head_dim_first()));
    if constexpr (kTwoParts) {
      keys_fast_next_ = keys_fast_next_ && copies_whole_chunks<c.k_type>(segment.k_rope, bytes(c.k_type, c.head_dim_rope));
    }
    values_fast_next_ = !c.v_is_k && copies_whole_chunks<c.v_type>(segment.v, bytes(c.v_type, c.head_dim_vo));
  }

  /// Asks for the page of this lane's key of the next step. Entries past the keys are not looked at.
  __device__ __forceinline__ void request_page() {
    const i32 key = key_ + warp_ * Shape::kRows + lane_ % Shape::kRows;
    has_key_ = item_ != end_ && key < kv_end_;
    if (!has_key_) return;
    const KeySlot at = list_.slot_of(key);
    slot_in_page_ = at.slot;
    page_ = list_.page_of(at.entry);
  }

  /// The step whose page has been asked for becomes the current one.
  __device__ __forceinline__ void begin_step() {
    has_step_ = item_ != end_;
    if (!has_step_) return;
    row_ = has_key_ ? base_ + page_ * page_stride_ + slot_in_page_ * token_stride_ : nullptr;
    row_segment_ = list_.segment;
    keys_fast_ = keys_fast_next_;
    values_fast_ = values_fast_next_;
    if constexpr (kTwoParts) rope_row_ = has_key_ ? key_address(row_segment_->k_rope, page_, slot_in_page_, list_.kv_head) : nullptr;
    key_ += kStepKeys;
    if (key_ >= kv_end_) {
      ++item_;
      skip_empty_items();
      open_item();
    }
    request_page();
  }

  __device__ __forceinline__ void copy_keys(u8* s_rows) {
    constexpr int kFirstBytes = bytes(c.k_type, c.head_dim_first());
    if constexpr (kTwoParts) {
      static_assert(kFirstBytes % tile::kChunkBytes == 0);
      constexpr int kFirstChunks = kFirstBytes / tile::kChunkBytes;
      copy_rows<c.k_type, Shape::kKeyBytes, kFirstChunks>(s_rows, 0, row_, 0, row_segment_->k, kFirstBytes, keys_fast_);
      copy_rows<c.k_type, Shape::kKeyBytes, Shape::KeyRows::kChunks - kFirstChunks>(
          s_rows, kFirstChunks, rope_row_, 0, row_segment_->k_rope, bytes(c.k_type, c.head_dim_rope), keys_fast_);
    } else {
      copy_rows<c.k_type, Shape::kKeyBytes, Shape::KeyRows::kChunks>(s_rows, 0, row_, 0, row_segment_->k, kFirstBytes, keys_fast_);
    }
  }

  /// kRows rows, kChunks chunks of each from chunk `first_chunk` of the shared rows on. Lane first_lane + i knows where row i begins (null:
  /// zeros), of whose bytes `row_bytes` exist.
  template <Type t, int kRowBytes, int kChunks>
  __device__ __forceinline__ void copy_rows(u8* s_rows, int first_chunk, const u8* row, int first_lane, const abi::PlaneArg& plane,
                                            int row_bytes, bool fast) {
    using Rows = tile::SharedRows<kRowBytes>;
    constexpr int kTotal = Shape::kRows * kChunks;
    if (fast) {
#pragma unroll
      for (int i = 0; i < kTotal; i += ptx::kWarp) {
        const int idx = i + lane_;
        const int r = idx / kChunks;
        const int chunk = idx % kChunks;
        const u8* source = shuffle_pointer(row, first_lane + r % Shape::kRows);
        if (kTotal % ptx::kWarp != 0 && idx >= kTotal) continue;
        const bool valid = source != nullptr && chunk * tile::kChunkBytes < row_bytes;
        ptx::cp_async_16(s_rows + Rows::offset(r, first_chunk + chunk), valid ? source + chunk * tile::kChunkBytes : plane.data, valid);
      }
      return;
    }
    constexpr int kUnit = bits(t) == 16 ? 2 : 1;
#pragma unroll 1
    for (int i = 0; i < kTotal; i += ptx::kWarp) {
      const int idx = i + lane_;
      const int r = idx / kChunks;
      const int chunk = idx % kChunks;
      const u8* source = shuffle_pointer(row, first_lane + r % Shape::kRows);
      if (idx >= kTotal) continue;
      const i64 stride = is_four_bit(t) ? 1 : plane.dim_stride;
      const int first = chunk * (tile::kChunkBytes / kUnit);
      const int count = source == nullptr ? 0 : row_bytes / kUnit - first;
      *reinterpret_cast<Vec16*>(s_rows + Rows::offset(r, first_chunk + chunk)) = gather_chunk<t>(source + first * stride, stride, count);
    }
  }

  const Args& p_;
  const abi::WorkItem* item_;  // of the next step
  const abi::WorkItem* end_;
  u8* s_ring_;
  int warp_, lane_;
  int slot_ = 0;

  // The next step: what its item says, and this lane's key of it.
  i32 key_ = 0, kv_end_ = 0;
  KeyList list_{};
  const u8* base_ = nullptr;
  i64 page_stride_ = 0, token_stride_ = 0;
  i64 page_ = 0, slot_in_page_ = 0;
  bool has_key_ = false, keys_fast_next_ = false, values_fast_next_ = false;

  // The step at copy.
  bool has_step_ = false, keys_fast_ = false, values_fast_ = false;
  const u8* row_ = nullptr;
  const u8* rope_row_ = nullptr;
  const abi::SegmentArg* row_segment_ = nullptr;
};

}  // namespace girih::attention
