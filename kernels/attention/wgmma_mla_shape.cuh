// MLA on Hopper (wgmma_mla.cuh): the block's warps, its shared memory, and who waits for whom in it. Tiles are stacks of 64 rows of 128
// bytes (64 dims), swizzled as wgmma and the copy engine have them: a step's keys are nine, of which the first eight are V, too.
// Shared memory is short: two steps of keys (144 KiB), Q's first 512 dims (64) and the weights of two steps (16) leave 3 KiB. So the last
// 64 dims of Q lie in registers, in both warpgroups'.
#pragma once

#include "attention/config.cuh"
#include "attention/merge.cuh"
#include "attention/problem.cuh"
#include "attention/wgmma_rows.cuh"
#include "core/types.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

template <Config c>
struct MlaShape {
  static constexpr int kRows = 64;  // of a tile, and keys of a step: both are rows of a stack
  static constexpr int kStackDims = 64;
  static constexpr int kStack = kRows * kStackRow;
  static constexpr int kValueStacks = c.head_dim_vo / kStackDims;
  static constexpr int kKeyStacks = c.head_dim_qk / kStackDims;
  static constexpr int kFirstDims = kValueStacks * kStackDims;  // of Q in shared memory, and in rows of two tensors those of the first
  static constexpr u32 kSlots = c.stages;
  static constexpr int kSlot = kKeyStacks * kStack;

  // Warps 0..7 are two warpgroups that compute; 8 and 9 bring keys, 10 and 11 Q. Keys of 8 bits all four bring, and Q.
  static constexpr bool kWidens = bits(c.k_type) < bits(c.q_type);
  static constexpr int kGroupWarps = 4;
  static constexpr int kWarps = 2 * kGroupWarps;
  static constexpr int kKeyWarps = kWidens ? 4 : 2;
  static constexpr int kQueryWarps = kWidens ? 4 : 2;
  // Of 64 Ki a block, 168 a thread: what bringing warps give up, the others take.
  static constexpr int kBringingRegisters = kWidens ? 56 : 40;
  static constexpr int kComputingRegisters = kWidens ? 224 : 232;
  static constexpr int kGroupDims = c.head_dim_vo / 2;  // of V, whose sums a group has
  static constexpr int kGroupStacks = kValueStacks / 2;
  /// Of a half of a step's dims.
  static constexpr int stacks_of(int half) { return half == 0 ? kGroupStacks : kKeyStacks - kGroupStacks; }
  using Team = BlockWarps<0, kWarps, 1>;
  static constexpr int kGroupBarrier = 2;                                   // + group
  static constexpr int kGang = c.group % kRows == 0 ? c.group / kRows : 1;  // blocks that have a token's tiles, as the plan's tune has it

  static constexpr int kQueryAt = kSlots * kSlot;
  static constexpr int kWeightsAt = kQueryAt + kValueStacks * kStack;
  static constexpr int kBasesAt = kWeightsAt + kSlots * kStack;
  static constexpr int kCorrectionsAt = kBasesAt + kSlots * kRows * 4;
  static constexpr int kSumsAt = kCorrectionsAt + kSlots * kRows * 4;
  static constexpr int kPlacesAt = kSumsAt + 2 * 2 * kRows * 4;  // of a step's rows, where they are copied
  static constexpr int kRaisedAt = kPlacesAt + kRows * static_cast<int>(sizeof(u8*));
  static constexpr int kBarriersAt = kRaisedAt + kSlots * kGroupWarps * 4;
  static constexpr int kLastAt = kBarriersAt + (6 * kSlots + 2) * 8;
  static constexpr int kSharedBytes = kLastAt + 16;

  static_assert(kSlots == 2);  // a slot for each group's scores
  static_assert(c.tile_rows == kRows && c.kv_block == kRows && c.head_dim_vo == 512 && c.head_dim_qk == 576);
  static_assert(c.head_dim_rope == 0 || c.head_dim_rope == kStackDims);
  static_assert(c.workers() == kWarps * ptx::kWarp && c.producers == 4 * ptx::kWarp);
  static_assert(bits(c.q_type) == 16 && c.v_is_k && (c.k_type == c.q_type || bits(c.k_type) == 8));
  static_assert(c.k_rope_type() == (c.k_scale == Scale::token_group ? c.q_type : c.k_type));
};

/// What the block's warps share. Steps are counted over all of the block's tiles; step s has slot s % 2, and is group s % 2's to score.
template <Config c>
struct MlaMemory {
  using Shape = MlaShape<c>;
  u8* s_memory;

  static __device__ __forceinline__ u32 slot(u32 step) { return step % Shape::kSlots; }
  static __device__ __forceinline__ int slot_at(u32 step) { return static_cast<int>(slot(step)) * Shape::kSlot; }
  static __device__ __forceinline__ int weights_at(u32 step) { return Shape::kWeightsAt + static_cast<int>(slot(step)) * Shape::kStack; }
  /// Whether the rows of a warp have new bases from this step on; if so these, and what they make of all that has been summed before.
  __device__ __forceinline__ u32* raised(u32 step) const {
    return reinterpret_cast<u32*>(s_memory + Shape::kRaisedAt) + slot(step) * Shape::kGroupWarps;
  }
  __device__ __forceinline__ float* bases(u32 step) const { return floats(Shape::kBasesAt) + slot(step) * Shape::kRows; }
  __device__ __forceinline__ float* corrections(u32 step) const { return floats(Shape::kCorrectionsAt) + slot(step) * Shape::kRows; }
  /// A group's sums of weights at a tile's end; tiles take turns.
  __device__ __forceinline__ float* sums(u32 tile, int group) const {
    return floats(Shape::kSumsAt) + (tile % 2 * 2 + static_cast<u32>(group)) * Shape::kRows;
  }
  __device__ __forceinline__ const u8** places() const { return reinterpret_cast<const u8**>(s_memory + Shape::kPlacesAt); }
  __device__ __forceinline__ u32* last() const { return reinterpret_cast<u32*>(s_memory + Shape::kLastAt); }

  /// Half of a step's dims are there, group 0's of V or group 1's and the last; that group is through with them, and the scores with it;
  /// half of the step's weights are there, for the other group. Q is there; both are through with it.
  __device__ __forceinline__ u64* full(u32 step, int half) const { return barrier(2 * slot(step) + static_cast<u32>(half)); }
  __device__ __forceinline__ u64* empty(u32 step, int half) const {
    return barrier(2 * Shape::kSlots + 2 * slot(step) + static_cast<u32>(half));
  }
  __device__ __forceinline__ u64* passed(u32 step, int half) const {
    return barrier(4 * Shape::kSlots + 2 * slot(step) + static_cast<u32>(half));
  }
  __device__ __forceinline__ u64* query_full() const { return barrier(6 * Shape::kSlots); }
  __device__ __forceinline__ u64* query_empty() const { return barrier(6 * Shape::kSlots + 1); }
  /// Of the step's phase at all three; those who wait for what is empty to begin with take the other one.
  static __device__ __forceinline__ u32 parity(u32 step) { return step / Shape::kSlots & 1U; }

  /// All lanes of the warp are through with what the barrier guards.
  static __device__ __forceinline__ void arrive(u64* s_barrier) {
    ptx::sync_warp();
    if (ptx::lane_idx() == 0) ptx::mbarrier_arrive(s_barrier);
  }

  /// By one thread. At a step that fills: of each warp, one arrival when all has been asked for, and one a lane when its own copies have
  /// landed (boxes count by their bytes); of those who widen, one. These arrive at Q as its copies land, a lane each.
  __device__ __forceinline__ void init() const {
    constexpr int kOfKeys = Shape::kWidens ? 1 : 1 + ptx::kWarp;
    constexpr int kOfQuery = Shape::kWidens ? ptx::kWarp : 1;
#pragma unroll 1
    for (u32 i = 0; i < 2 * Shape::kSlots; ++i) {
      const int half = static_cast<int>(i % 2);
      ptx::mbarrier_init(full(i / 2, half), Shape::kKeyWarps * kOfKeys);
      ptx::mbarrier_init(empty(i / 2, half), Shape::kGroupWarps);
      ptx::mbarrier_init(passed(i / 2, half), Shape::kGroupWarps);
    }
    ptx::mbarrier_init(query_full(), Shape::kQueryWarps * kOfQuery);
    ptx::mbarrier_init(query_empty(), Shape::kWarps);
    ptx::mbarrier_fence_init();
  }

 private:
  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(s_memory + at); }
  __device__ __forceinline__ u64* barrier(u32 idx) const { return reinterpret_cast<u64*>(s_memory + Shape::kBarriersAt) + idx; }
};

}  // namespace girih::attention
