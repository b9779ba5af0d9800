// The keys and values of a unit as one stream of tiles through a ring in shared memory: K of a step, V of the step, K of the next step, and
// so on over all items without a break, so that the copies of the next item are under way while the last one is worked on. Copies are
// cp.async groups, one a tile (empty ones too, at the end), so whoever consumes counts groups and needs no other bookkeeping.
// A warp brings its own kRows keys of every step of kv_block. Lane i (mod kRows) knows where key i lies: lanes 0..15 in K, 16..31 in V; the
// page id of the next step is asked for when the current step's copies start, so the chain table -> page -> row never stalls the ring.
// Tiles hold elements as they are stored; rows past the end of the keys and dims past the head are zeros.
#pragma once

#include "attention/config.cuh"
#include "attention/fragments.cuh"
#include "attention/problem.cuh"
#include "core/types.cuh"
#include "ptx/memory.cuh"
#include "ptx/thread.cuh"
#include "tile/shared_rows.cuh"

namespace girih::attention {

__device__ constexpr int round_up(int n, int to) { return (n + to - 1) / to * to; }

/// Sizes that follow from a config.
template <Config c>
struct StreamShape {
  static constexpr int kWarps = c.threads / ptx::kWarp;
  static constexpr int kStepKeys = c.kv_block;
  static constexpr int kRows = kStepKeys / kWarps;  // keys of a step that a warp brings
  // ldmatrix takes chunks by two: 16 dims of a 16-bit type, 32 of an 8-bit one, 64 of a 4-bit one.
  static constexpr int kKeyBytes = round_up(bytes(c.k_type, c.head_dim_qk), 2 * tile::kChunkBytes);
  static constexpr int kValueBytes = c.v_is_k ? kKeyBytes : round_up(bytes(c.v_type, c.head_dim_vo), 2 * tile::kChunkBytes);
  using KeyRows = tile::SharedRows<kKeyBytes>;
  using ValueRows = tile::SharedRows<kValueBytes>;
  static constexpr int kSlotBytes = max(KeyRows::bytes(kStepKeys), ValueRows::bytes(kStepKeys));
  static constexpr int kTilesPerStep = c.v_is_k ? 1 : 2;
  static constexpr int kSlots = c.stages;
  // Scales of single keys (token_head: f32; block: bytes) lie after the tiles, kv_block of them for each slot.
  static constexpr bool kKeyScales = c.k_scale == Scale::token_head;
  static constexpr bool kValueScales = c.v_scale == Scale::token_head;
  static constexpr int kKeyScaleBytes = kKeyScales ? 4 : kBlockScaleBytes<c.k_type, kKeyBytes>;
  static constexpr int kValueScaleBytes = kValueScales ? 4 : kBlockScaleBytes<c.v_type, kValueBytes>;
  static constexpr int kSlotScaleBytes = kStepKeys * max(kKeyScaleBytes, kValueScaleBytes);
  static constexpr int kScalesAt = kSlots * kSlotBytes;
  static constexpr int kRingBytes = kScalesAt + kSlots * kSlotScaleBytes;
  static_assert(kRows >= 8 && kRows <= 16);
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

__device__ __forceinline__ i64 shuffle_offset(i64 offset, int lane) {
  const u32 low = ptx::shuffle(static_cast<u32>(offset), lane);
  const u32 high = ptx::shuffle(static_cast<u32>(offset >> 32), lane);
  return static_cast<i64>(static_cast<u64>(high) << 32 | low);
}

/// Asks for the head of the plan and about where the unit's first item is, before the chain unit -> item -> row of keys -> page is followed
/// link by link: with a cold L2 each link is a trip to memory.
__device__ __forceinline__ void prefetch_plan(const Args& p) {
  constexpr int kLine = 128;
  constexpr int kHeaderLines = (static_cast<int>(sizeof(abi::PlanHeader)) + kLine - 1) / kLine;
  const int thread = ptx::thread_idx();
  if (thread < kHeaderLines) ptx::prefetch_l2(reinterpret_cast<const u8*>(p.plan) + thread * kLine);
  if (thread == kHeaderLines) ptx::prefetch_l2(all_items(p) + p.first_unit + ptx::block_idx());
}
/// Likewise the merges that the item's part may complete.
__device__ __forceinline__ void prefetch_merges(const Args& p, const abi::WorkItem& item) {
  if (item.part_row < 0 || ptx::thread_idx() != 0) return;
  ptx::prefetch_l2(blob_array<abi::MergeItem>(p, p.plan->merges) + item.merge_begin);
  ptx::prefetch_l2(p.counters + item.merge_begin);
}

template <Config c>
class KeyStream {
 public:
  using Shape = StreamShape<c>;

  /// Stands before the unit's first item.
  __device__ __forceinline__ KeyStream(const Args& p, UnitItems items, u8* s_ring)
      : p_(p), item_(items.begin), num_items_(static_cast<i32>(items.end - items.begin)), s_ring_(s_ring), warp_(ptx::warp_idx()) {}

  /// The scales of the keys in slot `slot`.
  static __device__ __forceinline__ const u8* scales(const u8* s_ring, int slot) {
    return s_ring + Shape::kScalesAt + slot * Shape::kSlotScaleBytes;
  }

  /// Starts the copies of the next step's keys, as one group, and looks up the step after it. The first call only looks up. The slot must
  /// be free for this warp's rows.
  __device__ __forceinline__ void issue_keys(bool first_call = false) {
    if (!first_call) {
      begin_step();
      if (row_segment_ >= 0) {
        copy_keys(s_ring_ + slot_ * Shape::kSlotBytes + warp_ * Shape::kRows * Shape::KeyRows::kStride);
        if constexpr (Shape::kKeyScaleBytes > 0) copy_scales<c.k_type, Shape::kKeyScaleBytes, c.head_dim_qk>(0);
      }
      end_tile();
    }
    if (num_items_ > 0 && key_ >= kv_end_) {
      if (!first_call) next_item();
      open_item();
    }
    request_page();
  }
  /// And of that step's values.
  __device__ __forceinline__ void issue_values() {
    if (row_segment_ >= 0) {
      copy_rows<c.v_type, Shape::kValueBytes, 0, Shape::ValueRows::kChunks>(
          s_ring_ + slot_ * Shape::kSlotBytes + warp_ * Shape::kRows * Shape::ValueRows::kStride, row_, 16, p_.segments[row_segment_].v,
          bytes(c.v_type, c.head_dim_vo), (row_fast_ & kValuesFast) != 0);
      if constexpr (Shape::kValueScaleBytes > 0) copy_scales<c.v_type, Shape::kValueScaleBytes, c.head_dim_vo>(16);
    }
    end_tile();
  }

 private:
  static constexpr bool kTwoParts = c.head_dim_rope > 0;
  static constexpr bool kScaled = Shape::kSlotScaleBytes > 0;
  static constexpr int kKeysFast = 1, kValuesFast = 2;  // copied in whole chunks
  static constexpr i32 kNoPage = -1;
  static constexpr i64 kNoRow = -1;
  static constexpr u32 kNoChunk = 0xffffffffU;

  /// Whether a row's chunks need more than 32 bits to be counted from the plane's first byte. Such rows (64 GiB away) take the slow way.
  static __device__ __forceinline__ bool is_far(i64 row) { return (static_cast<u64>(row) >> 35) != 0; }

  __device__ __forceinline__ bool of_values() const { return !c.v_is_k && ptx::lane_idx() >= 16; }

  __device__ __forceinline__ void end_tile() {
    slot_ = slot_ + 1 == Shape::kSlots ? 0 : slot_ + 1;
    ptx::cp_async_commit();
  }

  /// Finds the next item with keys, from item_ on; num_items_ = 0: there is none.
  __device__ __forceinline__ void open_item() {
    while (num_items_ > 0 && (item_->row_count == 0 || item_->kv_begin >= item_->kv_end)) next_item();
    if (num_items_ == 0) return;
    key_ = item_->kv_begin;
    kv_end_ = item_->kv_end;
    segment_ = item_->segment;
    const i32 kv_head = item_->kv_head;
    const i64 table_begin = blob_array<abi::KvRow>(p_, p_.plan->kv_rows)[item_->kv_row].table_begin;
    const abi::SegmentArg& segment = p_.segments[segment_];
    const abi::PlaneArg& values = value_plane<c>(segment);
    base_ = kv_head * (of_values() ? values.head_stride : segment.k.head_stride);
    if constexpr (kScaled) {
      const abi::PlaneArg& plane = of_values() ? values : segment.k;
      scale_base_ = plane.scales + kv_head * plane.scale_head_stride;
    }
    fast_ = copies_whole_chunks<c.k_type>(segment.k, bytes(c.k_type, c.head_dim_first())) ? kKeysFast : 0;
    if constexpr (!c.v_is_k) fast_ |= copies_whole_chunks<c.v_type>(values, bytes(c.v_type, c.head_dim_vo)) ? kValuesFast : 0;
    if constexpr (kTwoParts) {
      rope_base_ = kv_head * segment.k_rope.head_stride;
      if (!copies_whole_chunks<c.k_type>(segment.k_rope, bytes(c.k_type, c.head_dim_rope))) fast_ &= ~kKeysFast;
    }
    if (segment.page_size.divisor == 0) {  // one endless page: its slots are counted from the first key
      table_ = nullptr;
      base_ += table_begin * (of_values() ? values.token_stride : segment.k.token_stride);
      if constexpr (kTwoParts) rope_base_ += table_begin * segment.k_rope.token_stride;
      if constexpr (kScaled) scale_base_ += table_begin * (of_values() ? values.scale_token_stride : segment.k.scale_token_stride);
    } else {
      table_ = segment.kv_indices + table_begin;
    }
  }
  __device__ __forceinline__ void next_item() {
    ++item_;
    --num_items_;
  }

  /// Asks for the page of this lane's key of the next step. Entries past the keys are not looked at.
  __device__ __forceinline__ void request_page() {
    const i32 key = key_ + warp_ * Shape::kRows + ptx::lane_idx() % Shape::kRows;
    page_ = kNoPage;
    if (num_items_ == 0 || key >= kv_end_) return;
    page_ = 0;
    place_ = key;
    if (table_ == nullptr) return;
    const abi::FastDivider& page_size = p_.segments[segment_].page_size;
    const u32 entry = divide(static_cast<u32>(key), page_size);
    place_ = static_cast<i32>(static_cast<u32>(key) - entry * page_size.divisor);
    page_ = table_[entry];
  }

  /// The step whose page has been asked for becomes the current one.
  __device__ __forceinline__ void begin_step() {
    row_segment_ = num_items_ > 0 ? segment_ : -1;
    if (num_items_ == 0) return;
    const abi::SegmentArg& segment = p_.segments[segment_];
    const abi::PlaneArg& values = value_plane<c>(segment);
    const i64 page_stride = of_values() ? values.page_stride : segment.k.page_stride;
    const i64 token_stride = of_values() ? values.token_stride : segment.k.token_stride;
    const bool exists = page_ != kNoPage;
    row_ = exists ? base_ + page_ * page_stride + place_ * token_stride : kNoRow;
    row_fast_ = fast_;
    bool far = exists && is_far(row_);
    if constexpr (kTwoParts) {
      rope_row_ = exists ? rope_base_ + page_ * segment.k_rope.page_stride + place_ * segment.k_rope.token_stride : kNoRow;
      far = far || (exists && is_far(rope_row_));
    }
    if (ptx::any(far)) row_fast_ = 0;
    if constexpr (kScaled) {
      const abi::PlaneArg& plane = of_values() ? values : segment.k;
      scale_ = exists ? scale_base_ + page_ * plane.scale_page_stride + place_ * plane.scale_token_stride : nullptr;
    }
    key_ += Shape::kStepKeys;
  }

  /// Of this warp's keys; lane first_lane + i knows where those of key i are. Blocks past the head's dims get scales of 0.
  template <Type t, int kBytes, int kDims>
  __device__ __forceinline__ void copy_scales(int first_lane) {
    const int key = ptx::lane_idx() - first_lane;
    if (key < 0 || key >= Shape::kRows) return;
    u8* s_scales = s_ring_ + Shape::kScalesAt + slot_ * Shape::kSlotScaleBytes + (warp_ * Shape::kRows + key) * kBytes;
    constexpr int kStored = is_four_bit(t) ? (kDims + scale_block(t) - 1) / scale_block(t) : 4;
    if (!is_four_bit(t) || (kStored % 4 == 0 && (reinterpret_cast<u64>(scale_) & 3U) == 0)) {
#pragma unroll
      for (int i = 0; i < kBytes; i += 4) ptx::cp_async_4(s_scales + i, scale_ + i, scale_ != nullptr && i < kStored);
    } else {
#pragma unroll 1
      for (int i = 0; i < kBytes; ++i) s_scales[i] = scale_ != nullptr && i < kStored ? scale_[i] : u8{0};
    }
  }

  __device__ __forceinline__ void copy_keys(u8* s_rows) {
    constexpr int kFirstBytes = bytes(c.k_type, c.head_dim_first());
    const abi::SegmentArg& segment = p_.segments[row_segment_];
    const bool fast = (row_fast_ & kKeysFast) != 0;
    if constexpr (kTwoParts) {
      static_assert(kFirstBytes % tile::kChunkBytes == 0);
      constexpr int kFirstChunks = kFirstBytes / tile::kChunkBytes;
      copy_rows<c.k_type, Shape::kKeyBytes, 0, kFirstChunks>(s_rows, row_, 0, segment.k, kFirstBytes, fast);
      copy_rows<c.k_type, Shape::kKeyBytes, kFirstChunks, Shape::KeyRows::kChunks - kFirstChunks>(s_rows, rope_row_, 0, segment.k_rope,
                                                                                                  bytes(c.k_type, c.head_dim_rope), fast);
    } else {
      copy_rows<c.k_type, Shape::kKeyBytes, 0, Shape::KeyRows::kChunks>(s_rows, row_, 0, segment.k, kFirstBytes, fast);
    }
  }

  /// kRows rows, kChunks chunks of each from chunk kFirstChunk of the shared rows on. Lane first_lane + i knows where row i begins, in
  /// bytes from the plane's first (kNoRow: zeros), of whose bytes `row_bytes` exist. Up to eight neighbouring lanes bring one row, a line
  /// of it at a time.
  template <Type t, int kRowBytes, int kFirstChunk, int kChunks>
  __device__ __forceinline__ void copy_rows(u8* s_rows, i64 row, int first_lane, const abi::PlaneArg& plane, int row_bytes, bool fast) {
    using Rows = tile::SharedRows<kRowBytes>;
    constexpr int kSpan = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : kChunks % 2 == 0 ? 2 : 1;  // lanes to a row
    constexpr int kRowsAtOnce = min(ptx::kWarp / kSpan, Shape::kRows);
    const int lane = ptx::lane_idx();
    if (fast) {
      static_assert(!Rows::kSwizzled || (kSpan == 8 && kFirstChunk % 8 == 0));
      if (kSpan * kRowsAtOnce < ptx::kWarp && lane >= kSpan * kRowsAtOnce) first_lane = -1;
      const int at = Rows::offset(lane / kSpan % kRowsAtOnce, lane % kSpan);
      const u32 first_chunk = row == kNoRow ? kNoChunk : static_cast<u32>(row >> 4);
#pragma unroll
      for (int r = 0; r < Shape::kRows; r += kRowsAtOnce) {
        const u32 from = ptx::shuffle(first_chunk, max(first_lane, 0) + r + lane / kSpan % kRowsAtOnce);
        const u8* source = plane.data + static_cast<u64>(from + static_cast<u32>(lane % kSpan)) * tile::kChunkBytes;
        // Rows four further: the exclusive or of the chunk's number changes in its third bit.
        u8* s_row =
            s_rows + (Rows::kSwizzled ? at ^ (r & 4) * tile::kChunkBytes : at) + r * Rows::kStride + kFirstChunk * tile::kChunkBytes;
#pragma unroll
        for (int chunk = 0; chunk < kChunks; chunk += kSpan) {
          const bool valid = from != kNoChunk && (chunk + lane % kSpan) * tile::kChunkBytes < row_bytes;
          if (first_lane >= 0) ptx::cp_async_16(s_row + chunk * tile::kChunkBytes, source + chunk * tile::kChunkBytes, valid);
        }
      }
      return;
    }
    constexpr int kUnit = bits(t) == 16 ? 2 : 1;
#pragma unroll 1
    for (int i = 0; i < Shape::kRows * kChunks; i += ptx::kWarp) {
      const int idx = i + lane;
      const int r = idx / kChunks;
      const int chunk = idx % kChunks;
      const i64 from = shuffle_offset(row, first_lane + r % Shape::kRows);
      if (idx >= Shape::kRows * kChunks) continue;
      const i64 stride = is_four_bit(t) ? 1 : plane.dim_stride;
      const int first = chunk * (tile::kChunkBytes / kUnit);
      const int count = from == kNoRow ? 0 : row_bytes / kUnit - first;
      *reinterpret_cast<Vec16*>(s_rows + Rows::offset(r, kFirstChunk + chunk)) =
          gather_chunk<t>(plane.data + from + first * stride, stride, count);
    }
  }

  const Args& p_;
  const abi::WorkItem* item_;  // of the next step
  i32 num_items_;              // from item_ on
  u8* s_ring_;
  int warp_;
  int slot_ = 0;

  // The next step: what its item says, and this lane's key of it.
  i32 key_ = 0, kv_end_ = 0, segment_ = 0, fast_ = 0;
  const i32* table_ = nullptr;
  i64 base_ = 0;  // of the head's rows, from the plane's first byte
  i64 rope_base_ = 0;
  const u8* scale_base_ = nullptr;
  i32 page_ = kNoPage, place_ = 0;

  // The step at copy; row_segment_ < 0: there was none left.
  i32 row_segment_ = -1, row_fast_ = 0;
  i64 row_ = kNoRow;
  i64 rope_row_ = kNoRow;
  const u8* scale_ = nullptr;
};

}  // namespace girih::attention
