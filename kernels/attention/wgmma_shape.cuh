// The wgmma family's block and its shared memory. Warps 0..7 are two warpgroups that consume, 64 query rows each; the four warps after them
// produce: one brings K, one V, two bring Q. Tiles are stacks of rows of 128 bytes (64 dims of 16 bits, 128 of 8), swizzled as wgmma and
// the copy engine have them; a head of more dims is several stacks side by side.
// Products of 8-bit floats take V only with its keys along the rows, so V is brought to a place of its own, from where one of the two warps
// that would bring Q lays it out anew (wgmma_transpose.cuh): a row of 128 bytes for each dim.
#pragma once

#include "attention/config.cuh"
#include "attention/problem.cuh"
#include "attention/query_fragments.cuh"
#include "core/types.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

inline constexpr int kStackRow = 128;   // bytes
inline constexpr int kProductRow = 32;  // bytes of K that a product takes of each row
inline constexpr int kGroupWarps = 4;   // of a warpgroup
inline constexpr int kGroupRows = 64;   // of Q, to a warpgroup
/// At a stage that fills: one when all has been asked for, and one a lane when its own copies have landed (boxes count by their bytes).
inline constexpr int kFullArrivals = 1 + ptx::kWarp;

/// The kernel keeps what hooks ask of query rows.
template <class Variant>
constexpr bool kKeepsHookRows = Variant::kHasMask || kLogitsRead<Variant>;

/// Bytes from a stack's beginning to 16-byte chunk `chunk` of row `row`.
__device__ __forceinline__ int stack_offset(int row, int chunk) { return row * kStackRow + ((chunk ^ row) & 7) * 16; }

template <Config c, class Variant>
struct WgmmaShape {
  static constexpr int kWarps = c.workers() / ptx::kWarp;  // that consume
  static constexpr int kStepKeys = c.kv_block;
  static constexpr int kElement = bits(c.q_type) / 8;      // bytes, of Q, K and V
  static constexpr bool kTransposes = kElement == 1;       // V
  static constexpr int kQueryWarps = kTransposes ? 1 : 2;  // that bring Q
  // Of 168 a thread: what producers give up, consumers take.
  static constexpr int kProducerRegisters = kTransposes ? 40 : 24;
  static constexpr int kConsumerRegisters = kTransposes ? 232 : 240;
  static constexpr int kStages = c.stages;                        // of K, and of V as it is brought
  static constexpr int kValueStages = kTransposes ? 2 : kStages;  // of V as it is consumed
  static constexpr int kKeyStacks = (c.head_dim_qk * kElement + kStackRow - 1) / kStackRow;
  static constexpr int kValueStacks = (c.head_dim_vo * kElement + kStackRow - 1) / kStackRow;
  static constexpr int kStack = kStepKeys * kStackRow;         // of K, or V as it is brought
  static constexpr int kQueryStack = c.tile_rows * kStackRow;  // of Q
  static constexpr int kKeyStage = kKeyStacks * kStack;
  static constexpr int kBroughtStage = kValueStacks * kStack;
  static constexpr int kValueStage = kTransposes ? c.head_dim_vo * kStackRow : kBroughtStage;
  static constexpr int kRowBytes = kKeepsHookRows<Variant> ? c.tile_rows * static_cast<int>(sizeof(RowVars)) : 0;

  static constexpr int kKeysAt = 0;
  static constexpr int kValuesAt = kKeysAt + kStages * kKeyStage;
  static constexpr int kBroughtAt = kTransposes ? kValuesAt + kValueStages * kValueStage : kValuesAt;
  static constexpr int kQueryAt = kBroughtAt + kStages * kBroughtStage;
  static constexpr int kRowsAt = kQueryAt + kKeyStacks * kQueryStack;
  static constexpr int kBarriersAt = kRowsAt + kRowBytes;
  static constexpr int kLastAt = kBarriersAt + (2 * (kStages + kValueStages + (kTransposes ? kStages : 0)) + 2) * 8;
  static constexpr int kSharedBytes = kLastAt + 16;

  static_assert((kStages & (kStages - 1)) == 0);
  static_assert(kStepKeys % 16 == 0 && kStepKeys <= 256);
  static_assert(!kTransposes || (kStepKeys % 32 == 0 && kStepKeys <= kStackRow && c.head_dim_qk % 32 == 0));
  static_assert(c.tile_rows == kWarps / kGroupWarps * kGroupRows);
  static_assert(c.producers == kGroupWarps * ptx::kWarp);
  static_assert(c.head_dim_qk % 16 == 0 && c.head_dim_vo % 32 == 0);
};

/// Who waits for whom. A stage of K (of V) is `full` once its bytes are there and `empty` once every consuming warp is through with it;
/// Q likewise, and V as it is brought, which one warp consumes.
template <class Shape>
struct WgmmaBarriers {
  u64* s_first;

  __device__ __forceinline__ explicit WgmmaBarriers(u8* s_memory) : s_first(reinterpret_cast<u64*>(s_memory + Shape::kBarriersAt)) {}
  __device__ __forceinline__ u64* key_full(int stage) const { return s_first + stage; }
  __device__ __forceinline__ u64* key_empty(int stage) const { return s_first + Shape::kStages + stage; }
  __device__ __forceinline__ u64* value_full(int stage) const { return s_first + 2 * Shape::kStages + stage; }
  __device__ __forceinline__ u64* value_empty(int stage) const { return value_full(Shape::kValueStages) + stage; }
  __device__ __forceinline__ u64* query_full() const { return value_empty(Shape::kValueStages); }
  __device__ __forceinline__ u64* query_empty() const { return query_full() + 1; }
  // With kTransposes.
  __device__ __forceinline__ u64* brought_full(int stage) const { return query_full() + 2 + stage; }
  __device__ __forceinline__ u64* brought_empty(int stage) const { return query_full() + 2 + Shape::kStages + stage; }

  /// By one thread.
  __device__ __forceinline__ void init() const {
#pragma unroll 1
    for (int i = 0; i < Shape::kStages; ++i) {
      ptx::mbarrier_init(key_full(i), kFullArrivals);
      if constexpr (Shape::kTransposes) {
        ptx::mbarrier_init(brought_full(i), kFullArrivals);
        ptx::mbarrier_init(brought_empty(i), 1);
      } else {
        ptx::mbarrier_init(value_full(i), kFullArrivals);
      }
      ptx::mbarrier_init(key_empty(i), Shape::kWarps);
      if constexpr (!Shape::kTransposes) ptx::mbarrier_init(value_empty(i), Shape::kWarps);
    }
    if constexpr (Shape::kTransposes) {
#pragma unroll 1
      for (int i = 0; i < Shape::kValueStages; ++i) {
        ptx::mbarrier_init(value_full(i), 1);
        ptx::mbarrier_init(value_empty(i), Shape::kWarps);
      }
    }
    ptx::mbarrier_init(query_full(), Shape::kQueryWarps);
    ptx::mbarrier_init(query_empty(), Shape::kWarps);
    ptx::mbarrier_fence_init();
  }
};

/// The stage of step `step` of the block's, and the parity of its turn for those who consume; producers, for whom all stages are empty to
/// begin with, have the other.
template <int kStages>
__device__ __forceinline__ int stage_of(u32 step) {
  return static_cast<int>(step % kStages);
}
template <int kStages>
__device__ __forceinline__ u32 parity_of(u32 step) {
  return step / kStages & 1U;
}

}  // namespace girih::attention
