// The keys and values of a unit as one stream of tiles through a ring in shared memory: K of a step, V of the step, K of the next step, and
// so on over all items without a break, so that the copies of the next item are under way while the last one is worked on. Copies are
// cp.async groups, one a tile (empty ones too, at the end), so whoever consumes counts groups and needs no other bookkeeping.
// In decode a warp brings its own kRows keys of every step of kv_block; in prefill (kInTurns) warps take turns at whole steps, since what a
// step costs beside its copies would otherwise be paid by each of them. Where keys lie is looked up for a whole warp's worth of them at
// once, a lane each, and their page ids are asked for a look-up earlier; so the chain table -> page -> row never stalls the ring.
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
  static constexpr int kWarps = c.warps_that_bring();
  static constexpr int kStepKeys = c.kv_block;
  static constexpr bool kInTurns = c.tile_rows > 16 && !c.is_wide();
  static constexpr int kRows = kInTurns ? min(kStepKeys, ptx::kWarp) : kStepKeys / kWarps;  // keys of a step that a warp brings at once
  // ldmatrix takes chunks by two: 16 dims of a 16-bit type, 32 of an 8-bit one, 64 of a 4-bit one.
  static constexpr int kKeyBytes =
      round_up(bytes(c.k_type, c.head_dim_first()) + bytes(c.k_rope_type(), c.head_dim_rope), 2 * tile::kChunkBytes);
  static constexpr int kValueBytes = c.v_is_k ? kKeyBytes : round_up(bytes(c.v_type, c.head_dim_vo), 2 * tile::kChunkBytes);
  using KeyRows = tile::SharedRows<kKeyBytes>;
  using ValueRows = tile::SharedRows<kValueBytes>;
  static constexpr int kSlotBytes = max(KeyRows::bytes(kStepKeys), ValueRows::bytes(kStepKeys));
  static constexpr int kTilesPerStep = c.v_is_k ? 1 : 2;
  static constexpr int kSlots = c.stages;
  // Scales of single keys (token_head: f32; token_group: f32s; block: bytes) lie after the tiles, those of kv_block keys for each slot.
  static constexpr bool kKeyScales = c.k_scale == Scale::token_head;
  static constexpr bool kValueScales = c.v_scale == Scale::token_head;
  static constexpr bool kGroupScales = c.k_scale == Scale::token_group;  // MLA's: of K, and V with it
  static constexpr int kKeyScaleBytes = kGroupScales ? c.head_dim_first() / kScaleGroup * 4
                                        : kKeyScales ? 4
                                                     : kBlockScaleBytes<c.k_type, kKeyBytes>;
  static constexpr int kValueScaleBytes = kValueScales ? 4 : kBlockScaleBytes<c.v_type, kValueBytes>;
  static constexpr int kSlotScaleBytes = kStepKeys * max(kKeyScaleBytes, kValueScaleBytes);
  static constexpr int kScalesAt = kSlots * kSlotBytes;
  // Where keys lie, in every plane that they have: K, its second part, V, scales.
  static constexpr bool kTwoParts = c.head_dim_rope > 0;
  static constexpr int kPlanes = (kTwoParts ? 2 : 1) + (c.v_is_k ? 0 : 1) + (kKeyScaleBytes > 0 ? 1 : 0) + (kValueScaleBytes > 0 ? 1 : 0);
  static constexpr int kLookupSteps = ptx::kWarp / kRows;  // whose keys are looked up at once
  static constexpr bool kSharedPlaces = kInTurns;          // else in registers
  static constexpr int kPlacesAt = kScalesAt + kSlots * kSlotScaleBytes;
  static constexpr int kPlaceBytes = kSharedPlaces ? kPlanes * ptx::kWarp * 8 + 64 : 0;  // a warp's, and its KeyStream::Next
  static constexpr int kRingBytes = kPlacesAt + kWarps * kPlaceBytes;
  static_assert(kRows == 8 || kRows == 16 || kRows == 32);
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
  const u64 address = reinterpret_cast<u64>(pointer);
  const u32 low = ptx::shuffle(static_cast<u32>(address), lane);
  const u32 high = ptx::shuffle(static_cast<u32>(address >> 32), lane);
  return reinterpret_cast<const u8*>(static_cast<u64>(high) << 32 | low);
}

/// Asks for the plan and the page tables, before the chain unit -> item -> row of keys -> page -> key is followed link by link: with a cold
/// L2 each link would be a trip to memory. Every block asks for its share of all of it (the first MiB or so), as the blocks start together;
/// and for something of each of the other buffers, since its multiprocessor has to find out where their pages lie.
__device__ __forceinline__ void prefetch_plan(const Args& p) {
  constexpr int kLine = 128;
  const int thread = ptx::thread_idx();
  const int line = thread % ptx::kWarp * ptx::num_blocks() + ptx::block_idx();
  if (thread < ptx::kWarp) {
    if (line < (p.plan_bytes + kLine - 1) / kLine) ptx::prefetch_l2(reinterpret_cast<const u8*>(p.plan) + line * kLine);
  } else if (thread < 2 * ptx::kWarp) {
#pragma unroll 1
    for (int s = 0; s < p.num_segments; ++s) {
      const abi::SegmentArg& segment = p.segments[s];
      const int lines = (segment.num_entries + kLine / 4 - 1) / (kLine / 4);
      if (line < lines) ptx::prefetch_l2(segment.kv_indices + line * (kLine / 4));
      if (thread == ptx::kWarp && lines > 0) ptx::prefetch_l2(segment.kv_indices);
    }
  } else if (thread == 2 * ptx::kWarp) {
    ptx::prefetch_l2(p.counters);
    ptx::prefetch_l2(p.q.data);
    ptx::prefetch_l2(p.o.data);
  }
}

/// Likewise the counters of the merges that the item's part may complete, and where the part goes.
template <Config c>
__device__ __forceinline__ void prefetch_merges(const Args& p, const abi::WorkItem& item) {
  if (item.part_row < 0 || ptx::thread_idx() != 0) return;
  ptx::prefetch_l2(p.counters + item.merge_begin);
  ptx::prefetch_l2(p.part_o + static_cast<i64>(item.part_row) * c.part_stride());
  ptx::prefetch_l2(p.part_ml + 2 * static_cast<i64>(item.part_row));
}

template <Config c>
class KeyStream {
 public:
  using Shape = StreamShape<c>;

  /// Stands before the unit's first item. The first step to be issued is an empty one: it ends with the first look-up.
  __device__ __forceinline__ KeyStream(const Args& p, UnitItems items, u8* s_ring, int warp = ptx::warp_idx())
      : p_(p),
        kv_rows_(blob_array<abi::KvRow>(p, p.plan->kv_rows)),
        s_ring_(s_ring),
        warp_(warp),
        slot_(Shape::kSlots - Shape::kTilesPerStep) {
    Next next = {.item = items.begin, .num_items = static_cast<i32>(items.end - items.begin)};
    open_item(next);
    if constexpr (Shape::kInTurns) pass_steps(next, warp_);
    if constexpr (!kAsksApart) request_pages(next);
    keep(next);
  }

  /// With kInTurns: starts the copies of this warp's next step into the slots from `slot` on. `first`: of the empty one.
  __device__ __forceinline__ void issue_step(int slot, bool first) {
    static_assert(Shape::kInTurns);
    slot_ = slot;
#pragma unroll 1
    for (int row = first ? Shape::kStepKeys - Shape::kRows : 0; row < Shape::kStepKeys; row += Shape::kRows) {
      first_row_ = row;
      if (!first) copy_key_tile();
      if (!first && !c.v_is_k) {
        ++slot_;
        copy_value_tile();
        --slot_;
      }
      look_up();
    }
  }

  /// With kAsksApart: asks for the pages of the next look-up. Once a step, before it ends.
  __device__ __forceinline__ void ask_pages() {
    static_assert(kAsksApart);
    if (Shape::kLookupSteps == 1 || ptx::any(step_ == 0)) request_pages(next_[0]);
  }

  /// Whether there is a next step (once the empty one has been issued).
  __device__ __forceinline__ bool has_step() const { return fast_ != kNothing; }

  /// The scales of the keys in slot `slot`.
  static __device__ __forceinline__ const u8* scales(const u8* s_ring, int slot) {
    return s_ring + Shape::kScalesAt + slot * Shape::kSlotScaleBytes;
  }

  /// Starts the copies of the next step's keys, as one group. The slot must be free for this warp's rows.
  __device__ __forceinline__ void issue_keys() {
    if (fast_ != kNothing) copy_key_tile();
    end_tile();
    if constexpr (c.v_is_k) end_step();
  }
  /// And of that step's values.
  __device__ __forceinline__ void issue_values() {
    if (fast_ != kNothing) copy_value_tile();
    end_tile();
    end_step();
  }

 private:
  // Whether pages are asked for by ask_pages(). Where ways of a branch meet, the compiler waits for loads of either; so the page ids must
  // not be under way at the end of a step, where the next item may begin.
  static constexpr bool kAsksApart = !Shape::kSharedPlaces && !c.is_wide();
  // Whether keys may leave L2 first: where no other tile of the batch reads them.
  static constexpr bool kHasPolicy = c.tile_rows <= 16 && !c.is_wide();
  static constexpr int kKeyPlane = 0;
  static constexpr int kRopePlane = 1;
  static constexpr int kValuePlane = Shape::kTwoParts ? 2 : 1;
  static constexpr int kKeyScalePlane = kValuePlane + (c.v_is_k ? 0 : 1);
  static constexpr int kValueScalePlane = kKeyScalePlane + (Shape::kKeyScaleBytes > 0 ? 1 : 0);
  static constexpr i32 kNothing = -1, kKeysFast = 1, kValuesFast = 2;  // fast: copied in whole chunks
  static constexpr i32 kNoPage = -1;
  static constexpr i32 kLookupKeys = Shape::kLookupSteps * Shape::kStepKeys;
  static constexpr i32 kPrefetchedKeys = Shape::kInTurns ? 2 * Shape::kWarps * Shape::kStepKeys : 8 * kLookupKeys;

  /// Up to eight neighbouring lanes bring one row, a line of it at a time.
  template <int kChunks>
  struct Turns {
    static constexpr int kSpan = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : kChunks % 2 == 0 ? 2 : 1;  // lanes to a row
    static constexpr int kAtOnce = min(ptx::kWarp / kSpan, Shape::kRows);                                 // rows
    static constexpr int kCount = Shape::kRows / kAtOnce;
  };

  /// The first of the step's rows that are brought now.
  __device__ __forceinline__ int first_row() const { return Shape::kInTurns ? first_row_ : warp_ * Shape::kRows; }
  __device__ __forceinline__ void copy_key_tile() {
    copy_keys(s_ring_ + slot_ * Shape::kSlotBytes + first_row() * Shape::KeyRows::kStride);
    if constexpr (Shape::kKeyScaleBytes > 0) copy_scales<c.k_type, Shape::kKeyScaleBytes, c.head_dim_qk, kKeyScalePlane>();
  }
  __device__ __forceinline__ void copy_value_tile() {
    copy_rows<c.v_type, Shape::kValueBytes, 0, Shape::ValueRows::kChunks, kValuePlane>(
        s_ring_ + slot_ * Shape::kSlotBytes + first_row() * Shape::ValueRows::kStride, p_.segments[segment_].v,
        bytes(c.v_type, c.head_dim_vo), (fast_ & kValuesFast) != 0);
    if constexpr (Shape::kValueScaleBytes > 0) copy_scales<c.v_type, Shape::kValueScaleBytes, c.head_dim_vo, kValueScalePlane>();
  }
  __device__ __forceinline__ void end_tile() {
    slot_ = slot_ + 1 == Shape::kSlots ? 0 : slot_ + 1;
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ void end_step() {
    if (Shape::kLookupSteps == 1 || ptx::any(++step_ == steps_)) look_up();
  }

  /// The keys that are looked up next. Registers are dear where places are shared, and this is rarely looked at.
  struct Next {
    const abi::WorkItem* item;
    i32 num_items;  // from `item` on; 0: there are no more keys
    i32 key = 0, kv_end = 0;
    i32 segment = 0, kv_head = 0, fast = 0;
    i64 table_begin = 0;
  };
  static_assert(sizeof(Next) <= 64);
  __device__ __forceinline__ Next* shared_next() const {
    return reinterpret_cast<Next*>(s_ring_ + Shape::kPlacesAt + warp_ * Shape::kPlaceBytes + Shape::kPlanes * ptx::kWarp * 8);
  }
  __device__ __forceinline__ Next next() const {
    if constexpr (Shape::kSharedPlaces) return *shared_next();
    return next_[0];
  }
  __device__ __forceinline__ void keep(const Next& next) {
    if constexpr (Shape::kSharedPlaces) {
      if (ptx::lane_idx() == 0) *shared_next() = next;
      ptx::sync_warp();
    } else {
      next_[0] = next;
    }
  }

  /// Finds the next item with keys, from next.item on.
  __device__ __forceinline__ void open_item(Next& next) const {
    while (next.num_items > 0 && (next.item->row_count == 0 || next.item->kv_begin >= next.item->kv_end)) skip_item(next);
    if (next.num_items == 0) return;
    next.key = next.item->kv_begin;
    next.kv_end = next.item->kv_end;
    next.segment = next.item->segment;
    next.kv_head = next.item->kv_head;
    const abi::SegmentArg& segment = p_.segments[next.segment];
    next.table_begin = kv_rows_[next.item->kv_row].table_begin;
    next.fast = copies_whole_chunks<c.k_type>(segment.k, bytes(c.k_type, c.head_dim_first())) ? kKeysFast : 0;
    if constexpr (Shape::kTwoParts) {
      if (!copies_whole_chunks<c.k_rope_type()>(segment.k_rope, bytes(c.k_rope_type(), c.head_dim_rope))) next.fast = 0;
    }
    if constexpr (!c.v_is_k) next.fast |= copies_whole_chunks<c.v_type>(segment.v, bytes(c.v_type, c.head_dim_vo)) ? kValuesFast : 0;
  }
  static __device__ __forceinline__ void skip_item(Next& next) {
    ++next.item;
    --next.num_items;
  }

  /// With kInTurns: to the step that lies `steps` further than the one that next.key begins.
  __device__ __forceinline__ void pass_steps(Next& next, int steps) const {
    next.key += steps * Shape::kStepKeys;
#pragma unroll 1
    while (next.num_items > 0 && next.key >= next.kv_end) {
      const i32 over = (next.key - next.kv_end) / Shape::kStepKeys * Shape::kStepKeys;
      skip_item(next);
      open_item(next);
      next.key += over;
    }
  }

  /// This lane's key of the look-up.
  __device__ __forceinline__ i32 lane_key(const Next& next) const {
    const int lane = ptx::lane_idx();
    if constexpr (Shape::kInTurns) return next.key + lane;
    return next.key + lane / Shape::kRows * Shape::kStepKeys + warp_ * Shape::kRows + lane % Shape::kRows;
  }
  /// Asks for the page of this lane's key. Entries past the keys are not looked at.
  __device__ __forceinline__ void request_pages(const Next& next) {
    const i32 key = lane_key(next);
    page_ = kNoPage;
    if (next.num_items == 0 || key >= next.kv_end) return;
    const abi::SegmentArg& segment = p_.segments[next.segment];
    page_ = 0;
    if (segment.page_size.divisor == 0) return;
    const i32* table = segment.kv_indices + next.table_begin;
    page_ = table[divide(static_cast<u32>(key), segment.page_size)];
    // While keys stream, a load from memory takes thousands of cycles: what comes a few look-ups later is on its way to L2 by then.
    const i32 later = key + kPrefetchedKeys;
    if (ptx::lane_idx() == 0 && later < next.kv_end) ptx::prefetch_l2(table + divide(static_cast<u32>(later), segment.page_size));
  }

  /// The keys whose pages have been asked for are the next steps'; then the same for those after them. What branches depend on is the same
  /// in all lanes, and votes and a shuffle tell the compiler so: else it guards each shuffle against lanes that went another way.
  __device__ __forceinline__ void look_up() {
    Next next = this->next();
    step_ = 0;
    steps_ = 0;  // is never reached
    fast_ = kNothing;
    if (!ptx::any(next.num_items != 0)) return;
    fast_ = ptx::shuffle(next.fast, 0);
    segment_ = next.segment;
    steps_ = min(Shape::kLookupSteps, (next.kv_end - next.key + Shape::kStepKeys - 1) / Shape::kStepKeys);
    const abi::SegmentArg& segment = p_.segments[segment_];
    const i32 kv_head = next.kv_head;
    const i32 key = lane_key(next);
    i64 slot = next.table_begin + key;  // one endless page: its slots are counted from the first key
    if (segment.page_size.divisor != 0) {
      slot = static_cast<u32>(key) - divide(static_cast<u32>(key), segment.page_size) * segment.page_size.divisor;
    }
    if constexpr (Shape::kSharedPlaces) ptx::sync_warp();  // the last steps' places are no longer read
    put_place<kKeyPlane, Turns<Shape::kTwoParts ? bytes(c.k_type, c.head_dim_first()) / tile::kChunkBytes : Shape::KeyRows::kChunks>>(
        key_address(segment.k, page_, slot, kv_head));
    if constexpr (Shape::kTwoParts) {
      put_place<kRopePlane, Turns<Shape::KeyRows::kChunks - bytes(c.k_type, c.head_dim_first()) / tile::kChunkBytes>>(
          key_address(segment.k_rope, page_, slot, kv_head));
    }
    if constexpr (!c.v_is_k) put_place<kValuePlane, Turns<Shape::ValueRows::kChunks>>(key_address(segment.v, page_, slot, kv_head));
    if constexpr (Shape::kKeyScaleBytes > 0) put_place<kKeyScalePlane, Turns<1>>(scale_address(segment.k, page_, slot, kv_head));
    if constexpr (Shape::kValueScaleBytes > 0) {
      put_place<kValueScalePlane, Turns<1>>(scale_address(value_plane<c>(segment), page_, slot, kv_head));
    }
    if constexpr (Shape::kInTurns) {
      next.key += Shape::kRows;
      if (next.key % Shape::kStepKeys == 0) pass_steps(next, Shape::kWarps - 1);
    } else {
      next.key += kLookupKeys;
      if (next.key >= next.kv_end) {
        skip_item(next);
        open_item(next);
      }
    }
    if constexpr (!kAsksApart) request_pages(next);
    keep(next);
  }

  __device__ __forceinline__ const u8** places(int plane) const {
    return reinterpret_cast<const u8**>(s_ring_ + Shape::kPlacesAt + warp_ * Shape::kPlaceBytes) + plane * ptx::kWarp;
  }
  /// This lane's key's place in a plane; null where there is no such key. In shared memory those of a lane's turns are neighbours.
  template <int kPlane, class T>
  __device__ __forceinline__ void put_place(const u8* place) {
    if (page_ == kNoPage) place = nullptr;
    if constexpr (Shape::kSharedPlaces) {
      const int lane = ptx::lane_idx();
      const int row = lane % Shape::kRows;
      places(kPlane)[lane - row + row % T::kAtOnce * T::kCount + row / T::kAtOnce] = place;
    } else {
      places_[kPlane] = place;
    }
  }
  /// Where row `turn * T::kAtOnce + row` of the step's rows lies. `turn` must be the same in all lanes.
  template <int kPlane, class T>
  __device__ __forceinline__ const u8* get_place(int turn, int row) const {
    const int first = step_ * Shape::kRows;
    if constexpr (Shape::kSharedPlaces) {
      return places(kPlane)[first + row * T::kCount + turn];
    } else {
      return shuffle_pointer(places_[kPlane], first + turn * T::kAtOnce + row);
    }
  }

  /// Of this warp's keys. Blocks past the head's dims get scales of 0.
  template <Type t, int kBytes, int kDims, int kPlane>
  __device__ __forceinline__ void copy_scales() {
    const int key = ptx::lane_idx();
    const u8* g_scales = get_place<kPlane, Turns<1>>(0, key % Shape::kRows);
    if (key >= Shape::kRows) return;
    u8* s_scales = s_ring_ + Shape::kScalesAt + slot_ * Shape::kSlotScaleBytes + (first_row() + key) * kBytes;
    constexpr int kStored = is_four_bit(t) ? (kDims + scale_block(t) - 1) / scale_block(t) : kBytes;
    if (!is_four_bit(t) || (kStored % 4 == 0 && (reinterpret_cast<u64>(g_scales) & 3U) == 0)) {
#pragma unroll
      for (int i = 0; i < kBytes; i += 4) ptx::cp_async_4(s_scales + i, g_scales + i, g_scales != nullptr && i < kStored);
    } else {
#pragma unroll 1
      for (int i = 0; i < kBytes; ++i) s_scales[i] = g_scales != nullptr && i < kStored ? g_scales[i] : u8{0};
    }
  }

  __device__ __forceinline__ void copy_keys(u8* s_rows) {
    constexpr int kFirstBytes = bytes(c.k_type, c.head_dim_first());
    const abi::SegmentArg& segment = p_.segments[segment_];
    const bool fast = (fast_ & kKeysFast) != 0;
    if constexpr (Shape::kTwoParts) {
      static_assert(kFirstBytes % tile::kChunkBytes == 0);
      constexpr int kFirstChunks = kFirstBytes / tile::kChunkBytes;
      copy_rows<c.k_type, Shape::kKeyBytes, 0, kFirstChunks, kKeyPlane>(s_rows, segment.k, kFirstBytes, fast);
      copy_rows<c.k_rope_type(), Shape::kKeyBytes, kFirstChunks, Shape::KeyRows::kChunks - kFirstChunks, kRopePlane>(
          s_rows, segment.k_rope, bytes(c.k_rope_type(), c.head_dim_rope), fast);
    } else {
      copy_rows<c.k_type, Shape::kKeyBytes, 0, Shape::KeyRows::kChunks, kKeyPlane>(s_rows, segment.k, kFirstBytes, fast);
    }
  }

  /// kRows rows, kChunks chunks of each from chunk kFirstChunk of the shared rows on; `row_bytes` of a row's bytes exist.
  template <Type t, int kRowBytes, int kFirstChunk, int kChunks, int kPlane>
  __device__ __forceinline__ void copy_rows(u8* s_rows, const abi::PlaneArg& plane, int row_bytes, bool fast) {
    using Rows = tile::SharedRows<kRowBytes>;
    using T = Turns<kChunks>;
    const int lane = c.is_wide() ? ptx::opaque(ptx::lane_idx()) : ptx::lane_idx();  // else more than it stays in registers
    if (fast) {
      static_assert(!Rows::kSwizzled || (T::kSpan == 8 && kFirstChunk % 8 == 0));
      const int row = lane / T::kSpan % T::kAtOnce;
      const int at = Rows::offset(row, lane % T::kSpan);
      const u64 policy = kHasPolicy ? ptx::l2_policy(p_.leaves_l2 != 0) : 0;
      const u8* sources[T::kCount];
#pragma unroll
      for (int turn = 0; turn < T::kCount; ++turn) sources[turn] = get_place<kPlane, T>(turn, row);
      if (T::kSpan * T::kAtOnce < ptx::kWarp && lane >= T::kSpan * T::kAtOnce) return;
#pragma unroll
      for (int turn = 0; turn < T::kCount; ++turn) {
        const int r = turn * T::kAtOnce;
        const u8* source = sources[turn] + lane % T::kSpan * tile::kChunkBytes;
        // Rows four further: the exclusive or of the chunk's number changes in its third bit.
        u8* s_row =
            s_rows + (Rows::kSwizzled ? at ^ (r & 4) * tile::kChunkBytes : at) + r * Rows::kStride + kFirstChunk * tile::kChunkBytes;
#pragma unroll
        for (int chunk = 0; chunk < kChunks; chunk += T::kSpan) {
          const bool valid = sources[turn] != nullptr && (chunk + lane % T::kSpan) * tile::kChunkBytes < row_bytes;
          if constexpr (kHasPolicy) {
            ptx::cp_async_16(s_row + chunk * tile::kChunkBytes, source + chunk * tile::kChunkBytes, valid, policy);
          } else {
            ptx::cp_async_16(s_row + chunk * tile::kChunkBytes, source + chunk * tile::kChunkBytes, valid);
          }
        }
      }
      return;
    }
    constexpr int kUnit = bits(t) == 16 ? 2 : 1;
#pragma unroll 1
    for (int turn = 0; turn < T::kCount; ++turn) {
#pragma unroll 1
      for (int i = 0; i < T::kAtOnce * kChunks; i += ptx::kWarp) {
        const int row = (i + lane) / kChunks;
        const int chunk = (i + lane) % kChunks;
        const u8* source = get_place<kPlane, T>(turn, row % T::kAtOnce);
        if (row >= T::kAtOnce) continue;
        const i64 stride = is_four_bit(t) ? 1 : plane.dim_stride;
        const int first = chunk * (tile::kChunkBytes / kUnit);
        const int count = source == nullptr ? 0 : row_bytes / kUnit - first;
        *reinterpret_cast<Vec16*>(s_rows + Rows::offset(turn * T::kAtOnce + row, kFirstChunk + chunk)) =
            gather_chunk<t>(source + first * stride, stride, count);
      }
    }
  }

  const Args& p_;
  const abi::KvRow* kv_rows_;
  u8* s_ring_;
  int warp_;
  int slot_;
  int first_row_ = 0;  // with kInTurns
  Next next_[1];
  i32 page_ = kNoPage;  // of this lane's key of the next look-up

  // The steps at copy.
  i32 fast_ = kNothing, segment_ = 0;
  i32 step_ = 0, steps_ = 1;
  const u8* places_[Shape::kPlanes];
};

}  // namespace girih::attention
