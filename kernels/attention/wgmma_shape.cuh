// The wgmma family's block and its shared memory. Warps 0..7 are two warpgroups that consume, 64 query rows each (three where V has 64
// dims, one in cascades); the four warps after them produce: one brings K, one V, two bring Q. Tiles are stacks of rows of 128 bytes (64
// dims of 16 bits, 128 of 8), swizzled as wgmma and the copy engine have them; a head of more dims is several stacks side by side. Products
// of 8-bit floats take V only with its keys along the rows, so V is brought to a place of its own, from where one of the two warps that
// would bring Q lays it out anew (wgmma_transpose.cuh): a row of 128 bytes for each dim. Keys of 8 bits beside Q of 16 are brought
// likewise, K and V, and four warps more widen them to Q's type (wgmma_widen.cuh).
#pragma once

#include "attention/config.cuh"
#include "attention/key_stream.cuh"
#include "attention/problem.cuh"
#include "attention/query_fragments.cuh"
#include "attention/wgmma_rows.cuh"
#include "core/types.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/thread.cuh"

namespace girih::attention {

inline constexpr int kProductRow = 32;  // bytes of K that a product takes of each row
inline constexpr int kGroupWarps = 4;   // of a warpgroup
inline constexpr int kGroupRows = 64;   // of Q, to a warpgroup
inline constexpr int kWideners = 2;     // warps that widen K, and as many V
/// At a stage that fills: one when all has been asked for, and one a lane when its own copies have landed (boxes count by their bytes).
inline constexpr int kFullArrivals = 1 + ptx::kWarp;

/// The kernel keeps what hooks ask of query rows.
template <class Variant>
constexpr bool kKeepsHookRows = Variant::kHasMask || kLogitsRead<Variant>;

template <Config c, class Variant>
struct WgmmaShape {
  static constexpr int kWarps = c.workers() / ptx::kWarp;  // that consume
  static constexpr int kStepKeys = c.kv_block;
  static constexpr int kElement = bits(c.q_type) / 8;      // bytes, of the products' operands
  static constexpr int kStored = bits(c.k_type) / 8;       // bytes, of K and V as they are brought
  static constexpr bool kTransposes = kElement == 1;       // V
  static constexpr bool kWidens = kStored < kElement;      // K and V
  static constexpr int kQueryWarps = kTransposes ? 1 : 2;  // that bring Q
  /// That are full and empty on their own: each warpgroup's rows, if its own warp brings them.
  static constexpr int kQueryPlaces = kWarps == kQueryWarps * kGroupWarps ? kQueryWarps : 1;
  // Of 64 Ki a block: what producers give up, consumers take.
  static constexpr int kProducerRegisters = kTransposes || kWidens ? 40 : 24;
  static constexpr int kConsumerRegisters = kWidens                                ? 216
                                            : kWarps == 3 * kGroupWarps            ? 160
                                            : kTransposes || kWarps == kGroupWarps ? 232
                                                                                   : 240;
  static constexpr int kStages = c.stages;                    // of K and V as they are brought
  static constexpr int kKeyStages = kWidens ? 2 : kStages;    // of K as it is consumed
  static constexpr int kValueStages = kWidens ? 2 : kStages;  // of V as it is consumed
  static constexpr int kKeyStacks = (c.head_dim_qk * kElement + kStackRow - 1) / kStackRow;
  static constexpr int kValueStacks = (c.head_dim_vo * kElement + kStackRow - 1) / kStackRow;
  static constexpr int kBroughtKeyStacks = (c.head_dim_qk * kStored + kStackRow - 1) / kStackRow;
  static constexpr int kBroughtValueStacks = (c.head_dim_vo * kStored + kStackRow - 1) / kStackRow;
  static constexpr int kStack = kStepKeys * kStackRow;         // of K or V, but V that is transposed
  static constexpr int kQueryStack = c.tile_rows * kStackRow;  // of Q
  static constexpr int kKeyStage = kKeyStacks * kStack;
  static constexpr int kValueStage = kTransposes ? c.head_dim_vo * kStackRow : kValueStacks * kStack;
  static constexpr int kBroughtKeyStage = kBroughtKeyStacks * kStack;
  static constexpr int kBroughtValueStage = kBroughtValueStacks * kStack;
  static constexpr int kRowBytes = kKeepsHookRows<Variant> ? c.tile_rows * static_cast<int>(sizeof(RowVars)) : 0;

  static constexpr int kKeysAt = 0;
  static constexpr int kValuesAt = kKeysAt + kKeyStages * kKeyStage;
  static constexpr int kValuesEnd = kValuesAt + kValueStages * kValueStage;
  static constexpr int kBroughtKeysAt = kWidens ? kValuesEnd : kKeysAt;
  static constexpr int kBroughtKeysEnd = kWidens ? kBroughtKeysAt + kStages * kBroughtKeyStage : kValuesEnd;
  static constexpr int kBroughtValuesAt = kWidens || kTransposes ? kBroughtKeysEnd : kValuesAt;
  static constexpr int kQueryAt = kWidens || kTransposes ? kBroughtValuesAt + kStages * kBroughtValueStage : kValuesEnd;
  static constexpr int kRowsAt = kQueryAt + kKeyStacks * kQueryStack;
  static constexpr int kPlacesAt = kRowsAt + kRowBytes;
  static constexpr int kPlaces = round_up(kStepKeys, ptx::kWarp);  // of a step's rows of K where they are copied, as many of V
  static constexpr int kBarriersAt = kPlacesAt + 2 * kPlaces * static_cast<int>(sizeof(u8*));
  static constexpr int kBroughtRings = kWidens ? 2 : kTransposes ? 1 : 0;
  static constexpr int kLastAt = kBarriersAt + (2 * (kKeyStages + kValueStages + kBroughtRings * kStages + kQueryPlaces)) * 8;
  static constexpr int kSharedBytes = kLastAt + 16;

  static_assert((kStages & (kStages - 1)) == 0);
  static_assert(kStepKeys % 16 == 0 && kStepKeys <= 256);
  static_assert(!kTransposes || (kStepKeys % 32 == 0 && kStepKeys <= kStackRow && c.head_dim_qk % 32 == 0));
  static_assert(c.tile_rows == kWarps / kGroupWarps * kGroupRows);
  static_assert(c.producers == (kWidens ? 2 : 1) * kGroupWarps * ptx::kWarp);
  static_assert(bits(c.k_type) == bits(c.v_type) && kStored <= kElement);
  static_assert(c.head_dim_qk % 16 == 0 && c.head_dim_vo % 32 == 0);
};

/// Who waits for whom. A stage of K (of V) is `full` once its bytes are there and `empty` once every consuming warp is through with it;
/// Q likewise, and K and V as they are brought, which those consume who lay them out anew.
template <class Shape>
struct WgmmaBarriers {
  u64* s_first;

  __device__ __forceinline__ explicit WgmmaBarriers(u8* s_memory) : s_first(reinterpret_cast<u64*>(s_memory + Shape::kBarriersAt)) {}
  __device__ __forceinline__ u64* key_full(int stage) const { return s_first + stage; }
  __device__ __forceinline__ u64* key_empty(int stage) const { return s_first + Shape::kKeyStages + stage; }
  __device__ __forceinline__ u64* value_full(int stage) const { return s_first + 2 * Shape::kKeyStages + stage; }
  __device__ __forceinline__ u64* value_empty(int stage) const { return value_full(Shape::kValueStages) + stage; }
  __device__ __forceinline__ u64* query_full(int place) const { return value_empty(Shape::kValueStages) + place; }
  __device__ __forceinline__ u64* query_empty(int place) const { return query_full(Shape::kQueryPlaces) + place; }
  // Ring 0: V with kTransposes or kWidens. 1: K with kWidens.
  __device__ __forceinline__ u64* brought_full(int ring, int stage) const {
    return query_full(2 * Shape::kQueryPlaces) + 2 * ring * Shape::kStages + stage;
  }
  __device__ __forceinline__ u64* brought_empty(int ring, int stage) const { return brought_full(ring, Shape::kStages) + stage; }

  /// By one thread.
  __device__ __forceinline__ void init() const {
    constexpr int kReshapers = Shape::kWidens ? kWideners : 1;  // of a ring
    if constexpr (Shape::kBroughtRings == 0) {
      static_assert(Shape::kValueStages == Shape::kKeyStages);
#pragma unroll 1
      for (int i = 0; i < Shape::kKeyStages; ++i) {
        ptx::mbarrier_init(key_full(i), kFullArrivals);
        ptx::mbarrier_init(value_full(i), kFullArrivals);
        ptx::mbarrier_init(key_empty(i), Shape::kWarps);
        ptx::mbarrier_init(value_empty(i), Shape::kWarps);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < Shape::kKeyStages; ++i) {
        ptx::mbarrier_init(key_full(i), Shape::kWidens ? kReshapers : kFullArrivals);
        ptx::mbarrier_init(key_empty(i), Shape::kWarps);
      }
#pragma unroll 1
      for (int i = 0; i < Shape::kValueStages; ++i) {
        ptx::mbarrier_init(value_full(i), kReshapers);
        ptx::mbarrier_init(value_empty(i), Shape::kWarps);
      }
#pragma unroll 1
      for (int i = 0; i < Shape::kBroughtRings * Shape::kStages; ++i) {
        ptx::mbarrier_init(brought_full(i / Shape::kStages, i % Shape::kStages), kFullArrivals);
        ptx::mbarrier_init(brought_empty(i / Shape::kStages, i % Shape::kStages), kReshapers);
      }
    }
#pragma unroll
    for (int i = 0; i < Shape::kQueryPlaces; ++i) {
      ptx::mbarrier_init(query_full(i), Shape::kQueryWarps / Shape::kQueryPlaces);
      ptx::mbarrier_init(query_empty(i), Shape::kWarps / Shape::kQueryPlaces);
    }
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
