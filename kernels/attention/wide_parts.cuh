// MLA by warps that have parts (mma_wide.cuh): sizes that follow from a config, and what the parts share in shared memory.
#pragma once

#include "attention/config.cuh"
#include "attention/fragments.cuh"
#include "attention/key_stream.cuh"
#include "core/types.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/thread.cuh"
#include "tile/shared_rows.cuh"

namespace girih::attention {

template <Config c, bool kGrouped>
struct WideKeys {
  using Type = KeyFragments<c.k_type, c.q_type, StreamShape<c>::kKeyBytes>;
};
template <Config c>
struct WideKeys<c, true> {
  using Type = GroupedKeyFragments<c, StreamShape<c>::kKeyBytes>;
};

template <Config c>
struct WideShape {
  using Stream = StreamShape<c>;
  using Keys = typename WideKeys<c, Stream::kGroupScales>::Type;
  using Values = ValueFragments<c.v_type, c.q_type, Stream::kValueBytes>;
  static constexpr int kScoreWarps = c.threads / ptx::kWarp - c.warps_values;
  static constexpr int kGroups = c.warps_rows;            // score warps of different rows, 16 each
  static constexpr int kSharers = kScoreWarps / kGroups;  // of the same rows: they share the keys
  static constexpr int kSplit = kGroups > 1 ? 2 : 1;      // groups whose products are of all their rows, each over its part of the dims
  static constexpr int kWarpKeys = Stream::kStepKeys / kSharers;
  static constexpr int kRowTiles = c.tile_rows / 16;
  static constexpr int kStepPairs = Stream::kStepKeys / 16;  // of key tiles: an operand's keys
  static constexpr int kWarpDims = c.head_dim_vo / c.warps_values;
  using QueryRows = tile::SharedRows<Keys::kSteps * 32>;
  static constexpr bool kValuesBring = kGroups == 1;
  static constexpr int kBuffers = 2;  // of weights and what belongs to them
  // Steps under way before the first is worked on.
  static constexpr int kLead = kValuesBring ? Stream::kSlots - 1 : Stream::kSlots - 2;
  // Of Q in registers; the others lie in shared memory. Sums of groups take room of their own.
  static constexpr int kHeldSteps = kGroups == 1 ? Keys::kSteps : Stream::kGroupScales ? 2 : 6;
  static constexpr int kWeightVectors = Stream::kGroupScales ? 2 : 1;  // of a lane: f32, which meet scales yet, or operands
  static constexpr int kWeightBytes = c.tile_rows * Stream::kStepKeys * 2 * kWeightVectors;
  // Shared memory: the ring, Q, a step's weights as operands, the factors that they bring to the sums so far and whether they do, maxima of
  // each sharer's keys, a tile's m and each sharer's l, the barriers, a word for arrive().
  static constexpr int kQueryAt = Stream::kRingBytes;
  static constexpr int kWeightsAt = kQueryAt + (kGroups == 1 ? 0 : QueryRows::bytes(c.tile_rows));
  static constexpr int kCorrectionsAt = kWeightsAt + kBuffers * kWeightBytes;
  static constexpr int kRaisedAt = kCorrectionsAt + kBuffers * c.tile_rows * 4;
  static constexpr int kTopsAt = kRaisedAt + kBuffers * 16;
  static constexpr int kBasesAt = kTopsAt + kBuffers * kSharers * c.tile_rows * 4;
  static constexpr int kSumsAt = kBasesAt + c.tile_rows * 4;
  static constexpr int kBarriersAt = kSumsAt + kSharers * c.tile_rows * 4;
  static constexpr int kLastAt = kBarriersAt + round_up(8 * (2 * kBuffers + Stream::kSlots), 16);
  static constexpr int kSharedBytes = kLastAt + 16;
  static constexpr int kStagedBytes = 8 * kWarpDims * 4;  // of a value warp: its dims of eight rows, where a tile ends
  static_assert(bits(c.k_type) >= 8 && c.v_is_k && c.tile_rows == 16 * kGroups && kWarpKeys % 16 == 0 && kGroups <= 4);
  static_assert(kGroups % kSplit == 0 && (kSplit == 1 || kSharers == 1));
  static_assert(kWarpDims * bits(c.v_type) / 8 % 64 == 0);
  static_assert(!Stream::kGroupScales || kScaleGroup % kWarpDims == 0);  // a value warp's dims share a scale
  static_assert(c.warps_values * kStagedBytes <= Stream::kSlotBytes && kLead > 0);
};

/// What the parts share.
template <Config c>
struct WideMemory {
  using Shape = WideShape<c>;
  u8* s_memory;

  __device__ __forceinline__ float* floats(int at) const { return reinterpret_cast<float*>(s_memory + at); }
  /// This lane's A operand of rows [16 tile, + 16) by keys [16 pair, + 16); as f32 (kWeightVectors) its keys [16 pair + 8 half, + 8).
  __device__ __forceinline__ Vec16* weights(u32 buffer, int tile, int pair, int half = 0) const {
    u8* s_weights = s_memory + Shape::kWeightsAt + buffer * Shape::kWeightBytes;
    const int vector = (tile * Shape::kStepPairs + pair) * Shape::kWeightVectors + half;
    return reinterpret_cast<Vec16*>(s_weights) + vector * ptx::kWarp + ptx::lane_idx();
  }
  /// Four products of each lane of row tile `tile`, key tile n, on their way to that tile's warp: in a slot, among the rows that this warp
  /// brings there next.
  __device__ __forceinline__ float* products(int slot, int tile, int n) const {
    using Stream = typename Shape::Stream;
    static_assert(Shape::kSplit == 1 || Stream::kRows * Stream::KeyRows::kStride >= Stream::kStepKeys * 64);
    u8* s_rows = s_memory + slot * Stream::kSlotBytes + tile * Stream::kRows * Stream::KeyRows::kStride;
    return reinterpret_cast<float*>(s_rows) + (n * ptx::kWarp + ptx::lane_idx()) * 4;
  }
  __device__ __forceinline__ float* corrections(u32 buffer) const { return floats(Shape::kCorrectionsAt) + buffer * c.tile_rows; }
  __device__ __forceinline__ u32* raised(u32 buffer) const { return reinterpret_cast<u32*>(s_memory + Shape::kRaisedAt) + buffer * 4; }
  __device__ __forceinline__ float* tops(u32 buffer) const { return floats(Shape::kTopsAt) + buffer * Shape::kSharers * c.tile_rows; }
  __device__ __forceinline__ float* bases() const { return floats(Shape::kBasesAt); }
  __device__ __forceinline__ float* sums() const { return floats(Shape::kSumsAt); }
  /// A turn (a step, or a tile's end) is there for the value warps; they are done with it; keys have landed in a slot (kValuesBring).
  __device__ __forceinline__ u64* full(u32 buffer) const { return reinterpret_cast<u64*>(s_memory + Shape::kBarriersAt) + buffer; }
  __device__ __forceinline__ u64* done(u32 buffer) const { return full(Shape::kBuffers) + buffer; }
  __device__ __forceinline__ u64* landed(int slot) const { return full(2 * Shape::kBuffers) + slot; }

  __device__ __forceinline__ void init() const {
    if (ptx::thread_idx() == 0) {
#pragma unroll
      for (int i = 0; i < Shape::kBuffers; ++i) {
        ptx::mbarrier_init(full(i), Shape::kScoreWarps);
        ptx::mbarrier_init(done(i), c.warps_values);
      }
#pragma unroll 1
      for (int i = 0; i < (Shape::kValuesBring ? Shape::Stream::kSlots : 0); ++i) {
        ptx::mbarrier_init(landed(i), c.warps_values * (ptx::kWarp + 1));
      }
    }
    ptx::sync_block();
  }
  static __device__ __forceinline__ void arrive(u64* s_barrier) {
    ptx::sync_warp();
    if (ptx::lane_idx() == 0) ptx::mbarrier_arrive(s_barrier);
  }
};

}  // namespace girih::attention
