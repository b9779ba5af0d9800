// MLA's bringing warps where K is of 8 bits beside Q of 16 (wgmma_mla.cuh): there is no room in shared memory for codes beside the tiles
// that products take, so each of four warps has the codes of 16 of a step's rows in registers, half of the dims at a time, asks for the
// next half's while it widens one, and so has them before their slot is free. They bring Q, too. Scales of groups (token_group) are
// multiplied in, and K is what the product rounds to; those of a head stay out, and every code is exact. A RoPE part of 16 bits is copied
// as it is. Rows past the end become zeros, so V need not be cleared.
#pragma once

#include "attention/key_stream.cuh"
#include "attention/output.cuh"
#include "attention/wgmma_mla_shape.cuh"
#include "core/convert.cuh"
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"

namespace girih::attention {

/// 16 codes as T = f16 or bf16, with kScaled times `scale`, rounded once from f32. By way of f16, which has all codes and where the chip
/// makes two of e4m3 at once.
template <typename T, typename Code, bool kScaled>
__device__ __forceinline__ void widen_codes(const Vec16& codes, float scale, Vec16 (&wide)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 pairs[2];
    widen<f16, Code>(pairs, codes.x[i]);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      u32 pair = pairs[j];
      if constexpr (kScaled) {
        pair = pack<T>(low_of<f16>(pair) * scale, high_of<f16>(pair) * scale);
      } else if constexpr (!kSame<T, f16>) {
        pair = pack<T>(low_of<f16>(pair), high_of<f16>(pair));
      }
      wide[i / 2].x[i % 2 * 2 + j] = pair;
    }
  }
}

template <Config c>
class MlaWidener {
 public:
  using Shape = MlaShape<c>;
  using T = Storage<c.q_type>;
  using Code = Storage<c.k_type>;
  static constexpr bool kTwo = c.head_dim_rope > 0;                 // tensors
  static constexpr bool kScaled = c.k_scale == Scale::token_group;  // codes; the RoPE part is of T then
  static constexpr int kRows = Shape::kRows / Shape::kKeyWarps;     // of a step, to a warp
  static constexpr int kHalfChunks = Shape::kGroupDims / 16;        // of 16 codes, of a row
  static constexpr int kTurns = kRows * kHalfChunks / ptx::kWarp;   // to a half: a lane has one chunk of each
  static constexpr int kLateTurns = kRows / 8;                      // of the last 64 dims, as codes
  static constexpr int kAhead = kTurns / 2;                         // turns whose codes are asked for before

  __device__ __forceinline__ MlaWidener(const Args& p, u8* s_memory)
      : p_(p), s_{s_memory}, lane_(ptx::lane_idx()), first_row_((ptx::warp_idx() - Shape::kWarps) * kRows) {}

  __device__ __forceinline__ void run(UnitItems items) {
#pragma unroll 1
    for (const abi::WorkItem* item = items.begin; item != items.end; ++item) {
      if (item->row_count == 0) continue;
      const abi::SegmentArg& segment = p_.segments[item->segment];
      const bool whole = copies_whole_chunks<c.k_type>(segment.k, c.head_dim_first()) &&
                         (!kTwo || copies_whole_chunks<c.k_rope_type()>(segment.k_rope, bytes(c.k_rope_type(), c.head_dim_rope)));
      if (whole) {
        bring<true>(*item, segment);
      } else {
        bring<false>(*item, segment);
      }
    }
  }

 private:
  /// The first keys are asked for before Q is brought. kWhole: rows can be taken 16 bytes at a time.
  template <bool kWhole>
  __device__ __forceinline__ void bring(const abi::WorkItem& item, const abi::SegmentArg& segment) {
    const bool has_keys = item.kv_begin < item.kv_end;
    if (has_keys) {
      table_begin_ = blob_array<abi::KvRow>(p_, p_.plan->kv_rows)[item.kv_row].table_begin;
      page_ = page_of(segment, table_begin_, own_key(item, item.kv_begin));
      look_up(item, segment, item.kv_begin);
#pragma unroll
      for (int turn = 0; turn < (kWhole ? kAhead : 0); ++turn) codes_[turn] = load(0, turn);
    }
    if (is_first(item)) bring_query(item);
    if (has_keys) bring_keys<kWhole>(item, segment);
  }

  /// Of lane i: key i % kRows of this warp's of a step. Past the end it is the last one.
  __device__ __forceinline__ int own_key(const abi::WorkItem& item, int begin) const {
    return min(begin + first_row_ + lane_ % kRows, item.kv_end - 1);
  }
  /// Where the keys of the step at `begin` lie, whose pages have been asked for a step earlier. Scales of group lane / 16 of each half come
  /// along.
  __device__ __forceinline__ void look_up(const abi::WorkItem& item, const abi::SegmentArg& segment, int begin) {
    const i64 at = slot_of(segment, table_begin_, own_key(item, begin));
    const u8* g_row = key_address(segment.k, page_, at, item.kv_head);
    if constexpr (kTwo) g_late_ = key_address(segment.k_rope, page_, at, item.kv_head);
    ptx::sync_warp();
    if (lane_ < kRows) places()[lane_] = g_row;
    ptx::sync_warp();
    if constexpr (kScaled) {
      const auto* g_scales = reinterpret_cast<const float*>(scale_address(segment.k, page_, at, item.kv_head));
#pragma unroll
      for (int half = 0; half < 2; ++half) next_scales_[half] = g_scales[2 * half + lane_ / 16];
    }
    page_ = page_of(segment, table_begin_, own_key(item, begin + Shape::kRows));
  }

  /// The keys of the step at `begin`, which is to be looked up next, are asked to come to L2.
  __device__ __forceinline__ void prefetch(const abi::WorkItem& item, const abi::SegmentArg& segment, int begin) const {
    const i64 at = slot_of(segment, table_begin_, own_key(item, begin));
    const u8* g_row = key_address(segment.k, page_, at, item.kv_head);
    ptx::prefetch_l2(g_row + lane_ / 16 * 256);
    ptx::prefetch_l2(g_row + lane_ / 16 * 256 + 128);
    ptx::prefetch_l2(kTwo ? key_address(segment.k_rope, page_, at, item.kv_head) : g_row + Shape::kFirstDims);
  }

  // A turn is two rows: four lanes next to each other have chunks of one, the next four of the other, so that eight lanes write to eight
  // banks.
  static __device__ __forceinline__ int row_of(int lane, int turn) { return 2 * turn + lane / 4 % 2; }
  static __device__ __forceinline__ int chunk_of(int lane) { return lane % 4 + lane / 8 * 4; }

  /// This lane's chunk of a turn, of half of the dims.
  __device__ __forceinline__ Vec16 load(int half, int turn) const {
    return ptx::load_stream(places()[row_of(lane_, turn)] + half * Shape::kGroupDims + chunk_of(lane_) * 16);
  }
  /// Widens it. `lane`: this one, unknown to the compiler, which would keep what follows from it for all turns in registers.
  __device__ __forceinline__ void store(int lane, int half, int turn, const Vec16& codes) const {
    float scale = 1.0F;
    if constexpr (kScaled) scale = ptx::shuffle(scales_[half], lane / 16 * 16 + row_of(lane, turn));
    Vec16 wide[2];
    widen_codes<T, Code, kScaled>(codes, scale, wide);
    put(half * Shape::kGroupStacks + chunk_of(lane) / 4, row_of(lane, 0), turn, chunk_of(lane) % 4, wide);
  }
  /// 16 dims of row `row` + 2 `turn` of this warp's: chunks 2 `at` and the next of a stack's row.
  __device__ __forceinline__ void put(int stack, int row, int turn, int at, const Vec16 (&wide)[2]) const {
    const int first = stack * Shape::kStack + stack_offset(first_row_ + row, 2 * at);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int chunk = 2 * turn % 8 ^ i;  // what rows further on, and the other chunk, have otherwise in a chunk's number
      *reinterpret_cast<Vec16*>(slot() + (first ^ chunk * 16) + 2 * turn * kStackRow) = wide[i];
    }
  }

  __device__ __forceinline__ const u8** places() const { return s_.places() + first_row_; }
  __device__ __forceinline__ u8* slot() const { return s_.s_memory + s_.slot_at(step_); }
  __device__ __forceinline__ void wait_for_slot(int half) const { ptx::mbarrier_wait(s_.empty(step_, half), s_.parity(step_) ^ 1U); }
  /// All of this warp's rows are there for the products.
  __device__ __forceinline__ void pass_on(int half, int rows) const {
    if (rows < kRows) clear(half, rows);
    ptx::fence_async_proxy();
    s_.arrive(s_.full(step_, half));
  }

  template <bool kWhole>
  __device__ __forceinline__ void bring_keys(const abi::WorkItem& item, const abi::SegmentArg& segment) {
#pragma unroll 1
    for (int begin = item.kv_begin; begin < item.kv_end; begin += Shape::kRows) {
      const int rows = item.kv_end - begin - first_row_;
      const bool more = begin + Shape::kRows < item.kv_end;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (kScaled) scales_[half] = next_scales_[half] * segment.k.global_scale;
      }
      if (kWhole && more) prefetch(item, segment, begin + Shape::kRows);
      wait_for_slot(0);
      if constexpr (kWhole) {
        take_turns<0, 0, kTurns>(true);
      } else {
        gather(segment, 0);
      }
      pass_on(0, rows);

      Vec16 late[kScaled ? 1 : kLateTurns];
      if constexpr (!kScaled) load_late<kWhole>(segment, late);
      wait_for_slot(1);
      if constexpr (kScaled) {
        copy_late<kWhole>(segment);
      } else {
        store_late(late);
      }
      if constexpr (kWhole) {
        take_turns<1, 0, kTurns - kAhead>(true);
      } else {
        gather(segment, 1);
      }
      if (more) look_up(item, segment, begin + Shape::kRows);
      if constexpr (kWhole) take_turns<1, kTurns - kAhead, kTurns>(more);
      if constexpr (kScaled) ptx::cp_async_wait<0>();
      pass_on(1, rows);
      ++step_;
    }
  }

  /// Widens what has been asked for, and asks for as much, of the half that follows where this one has no more.
  template <int kHalf, int kFirst, int kEnd>
  __device__ __forceinline__ void take_turns(bool asks) {
    const int lane = ptx::opaque(lane_);
#pragma unroll
    for (int turn = kFirst; turn < kEnd; ++turn) {
      Vec16& codes = codes_[turn % kAhead];
      store(lane, kHalf, turn, codes);
      const int next = turn + kAhead;
      if (asks) codes = load(next < kTurns ? kHalf : 1 - kHalf, next % kTurns);
    }
  }

  /// The last 64 dims, of 16 bits.
  template <bool kWhole>
  __device__ __forceinline__ void copy_late(const abi::SegmentArg& segment) const {
    u8* s_late = slot() + Shape::kValueStacks * Shape::kStack + first_row_ * kStackRow;
    if constexpr (kWhole) {
      copy_own_rows<1, Shape::kStack, kRows>(s_late, g_late_);
    } else if (lane_ < kRows) {
      gather_own_row<Shape::kStack>(s_late, g_late_, segment.k_rope.dim_stride, 0, Shape::kStackDims);
    }
    ptx::cp_async_commit();
  }
  /// The same as codes: four chunks a row, eight rows a turn.
  template <bool kWhole>
  __device__ __forceinline__ void load_late(const abi::SegmentArg& segment, Vec16 (&late)[kLateTurns]) const {
    const i64 stride = kTwo ? segment.k_rope.dim_stride : segment.k.dim_stride;
    const int lane = ptx::opaque(lane_);
#pragma unroll
    for (int turn = 0; turn < kLateTurns; ++turn) {
      const int row = 8 * turn + lane / 4;
      const u8* g_row = kTwo ? shuffle_pointer(g_late_, row) : places()[row] + Shape::kFirstDims * stride;
      late[turn] = take<kWhole>(g_row, stride, lane % 4);
    }
  }
  __device__ __forceinline__ void store_late(const Vec16 (&late)[kLateTurns]) const {
    const int lane = ptx::opaque(lane_);
#pragma unroll
    for (int turn = 0; turn < kLateTurns; ++turn) {
      Vec16 wide[2];
      widen_codes<T, Code, false>(late[turn], 1.0F, wide);
      put(Shape::kValueStacks, lane / 4, 4 * turn, lane % 4, wide);
    }
  }
  /// 16 codes of a row whose elements lie `dim_stride` bytes apart.
  template <bool kWhole>
  __device__ __forceinline__ Vec16 take(const u8* g_row, i64 dim_stride, int at) const {
    if constexpr (kWhole) return ptx::load_stream(g_row + 16 * at);
    return gather_chunk<c.k_type>(g_row + 16 * at * dim_stride, dim_stride, 16);
  }

  /// Half of the step's dims where rows cannot be taken 16 bytes at a time.
  __device__ __forceinline__ void gather(const abi::SegmentArg& segment, int half) const {
#pragma unroll 1
    for (int turn = 0; turn < kTurns; ++turn) {
      const u8* g_row = places()[row_of(lane_, turn)];
      store(lane_, half, turn, take<false>(g_row, segment.k.dim_stride, half * kHalfChunks + chunk_of(lane_)));
    }
  }
  /// Rows from `rows` on, of half of V's dims.
  __device__ __forceinline__ void clear(int half, int rows) const {
    ptx::sync_warp();
#pragma unroll 1
    for (int i = max(rows, 0) * 8 + lane_; i < kRows * 8; i += ptx::kWarp) {
#pragma unroll
      for (int stack = 0; stack < Shape::kGroupStacks; ++stack) {
        u8* s_stack = slot() + (half * Shape::kGroupStacks + stack) * Shape::kStack;
        *reinterpret_cast<Vec16*>(s_stack + first_row_ * kStackRow + i * 16) = Vec16{};
      }
    }
  }

  /// This warp's rows of a tile's Q, of which those past the tile's last one are that one. The copies land while keys are brought.
  __device__ __forceinline__ void bring_query(const abi::WorkItem& item) {
    const int row = min(first_row_ + lane_ % kRows, item.row_count - 1);
    const RowPlace place = place_row<c>(item.row_begin + row, item.kv_head);
    const u8* g_row = row_address(p_.q, place.token, place.q_head);
    u8* s_rows = s_.s_memory + Shape::kQueryAt + first_row_ * kStackRow;
    ptx::mbarrier_wait(s_.query_empty(), (tile_ & 1U) ^ 1U);
    ++tile_;
    if (rows_aligned(p_.q, 16)) {
      copy_own_rows<Shape::kValueStacks, Shape::kStack, kRows>(s_rows, g_row);
      ptx::cp_async_commit();
      ptx::mbarrier_arrive_after_copies(s_.query_full());
    } else {
      if (lane_ < kRows) gather_own_row<Shape::kStack>(s_rows, g_row, 2, 0, Shape::kFirstDims);
      ptx::mbarrier_arrive(s_.query_full());
    }
  }

  const Args& p_;
  MlaMemory<c> s_;
  int lane_;
  int first_row_;            // of this warp's rows, of a step and of a tile
  u32 step_ = 0, tile_ = 0;  // of the block's: the next

  // Of the item.
  i64 table_begin_ = 0;
  i32 page_ = 0;  // of this lane's key of the step after the next

  // Of the next step.
  const u8* g_late_ = nullptr;  // with kTwo
  float next_scales_[2] = {};
  float scales_[2] = {};  // of the step
  Vec16 codes_[kAhead];
};

}  // namespace girih::attention
