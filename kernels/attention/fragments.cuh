// Operands of the two products as one warp holds them, for every storage type of K and V. mma sums over its inner index in any order and
// does not care what its columns are called; so narrow types are taken as ldmatrix brings them, and instead of moving bytes about, the dims
// of Q (for K) and of O (for V) are renamed:
//   16 bit: a lane's pairs of Q are dims (2p, 2p+1), (2p+8, 2p+9) of 16; its values of O dims 2p, 2p+1 of each 8      (p = lane % 4)
//    8 bit: a lane's four codes of K are dims 4p .. 4p+3 of 16, and so are Q's; its values of O are dims 4p .. 4p+3 of each 16
//           Q of 8 bits as well, in products of bytes: as they are, 32 dims at a time; four codes are what a pair of 16-bit elements is
//    4 bit: eight codes, dims 8p .. 8p+7 of 32, as two inner steps of 16; its values of O are dims 8p .. 8p+7 of each 32
#pragma once

#include "attention/config.cuh"
#include "attention/output.cuh"
#include "core/convert.cuh"
#include "core/types.cuh"
#include "ptx/mma.cuh"
#include "ptx/thread.cuh"
#include "tile/shared_rows.cuh"

namespace girih::attention {

/// The type of the operands in Q K^T: of e4m3 where the chip multiplies it. Else codes of 8 bits are exact in f16, which they reach by
/// fewer instructions than bf16; Q of bf16 follows with a power of two of its own for each row (query_fragments.cuh).
template <Config c>
constexpr Type kKeyOperand = bits(c.k_type) == 8 && !c.byte_products ? Type::f16 : c.q_type;
template <Config c>
constexpr bool kScalesQuery = kKeyOperand<c> == Type::f16&& c.q_type == Type::bf16;

/// Likewise in P V. Weights of a softmax are at most 1 (and see ValueScale); they are taken times 2^kWeightShift, so that those of 2^-29
/// and more keep all their bits in f16. Sums carry the factor along.
template <Config c, class Variant>
constexpr bool kShiftsWeights = bits(c.v_type) == 8 && Variant::kSoftmax;
template <Config c, class Variant>
constexpr Type kValueOperand = kShiftsWeights<c, Variant> ? Type::f16 : c.q_type;
template <Config c, class Variant>
constexpr int kWeightShift = kShiftsWeights<c, Variant> ? 15 : 0;

/// Dims that one 16-byte chunk of a row holds.
__device__ constexpr int chunk_dims(Type t) { return 128 / bits(t); }

/// Bytes of one key's block scales in shared memory, for rows of kRowBytes.
template <Type kType, int kRowBytes>
constexpr int kBlockScaleBytes = is_four_bit(kType) ? (2 * kRowBytes / scale_block(kType) + 3) / 4 * 4 : 0;

/// Two block scales (bytes: low, high) as a pair of T.
template <Type kType, typename T>
__device__ __forceinline__ u32 block_scale_pair(u32 low, u32 high) {
  if constexpr (kType == Type::nvfp4) {
    u32 pairs[2];
    widen<T, e4m3>(pairs, low | high << 8);
    return pairs[0];
  } else {
    return (e8m0_to_bf16_pair(low) & 0xffffU) | e8m0_to_bf16_pair(high) << 16;
  }
}

/// K of 16 keys as B operands: inner step s covers 16 dims, 32 in products of bytes.
template <Type kType, Type kOperand, int kRowBytes>
struct KeyFragments {
  static constexpr bool kAsStored = bits(kType) == bits(kOperand);
  static constexpr int kWordDims = 32 / bits(kOperand);  // dims of Q in a register
  static constexpr int kSteps = kRowBytes / tile::kChunkBytes * chunk_dims(kType) / (8 * kWordDims);
  static constexpr int kStepsPerLoad = kSteps / (kRowBytes / (2 * tile::kChunkBytes));
  using T = Storage<kOperand>;

  /// The dims of Q that this lane holds in inner step s: kWordDims from dim on in a[0], a[1] and from dim + second_dim(s) on in a[2], a[3].
  static __device__ __forceinline__ int first_dim(int s, int pair) {
    if constexpr (kAsStored) return kWordDims * (8 * s + pair);
    if constexpr (bits(kType) == 8) return 16 * s + 4 * pair;
    return 32 * (s / 2) + 8 * pair + 4 * (s % 2);
  }
  static __device__ __forceinline__ int second_dim(int) { return kAsStored ? 4 * kWordDims : 2; }

  /// c += A B of one inner step.
  static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (bits(kOperand) == 8) {
      ptx::mma_16x8x32_e4m3(c, a, b);
    } else {
      ptx::mma_16x8x16<T>(c, a, b);
    }
  }

  static __device__ __forceinline__ tile::LaneRows<kRowBytes> lane_rows() {
    const int lane = ptx::lane_idx();
    return {(lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1};
  }
  /// Fragments of the inner steps [load * kStepsPerLoad, ...) of keys [8 row8, 8 row8 + 16): b[step][key half]. `s_scales`: block scales of
  /// the rows.
  static __device__ __forceinline__ void load(const typename tile::LaneRows<kRowBytes>::Tile& rows, const u8* s_scales, int row8, int load,
                                              u32 (&b)[kStepsPerLoad][2][2]) {
    u32 r[4];
    ptx::ldmatrix_x4(r, rows.at(row8, load));
    if constexpr (kAsStored) {
      b[0][0][0] = r[0];
      b[0][0][1] = r[1];
      b[0][1][0] = r[2];
      b[0][1][1] = r[3];
    } else if constexpr (bits(kType) == 8) {
      widen<T, Storage<kType>>(b[0][0], r[0]);
      widen<T, Storage<kType>>(b[1][0], r[1]);
      widen<T, Storage<kType>>(b[0][1], r[2]);
      widen<T, Storage<kType>>(b[1][1], r[3]);
    } else {
      const int lane = ptx::lane_idx();
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // chunk i % 2 of 32 dims, keys 8 (i / 2)
        const u8* s_key = s_scales + (8 * row8 + 8 * (i / 2) + lane / 4) * kBlockScaleBytes<kType, kRowBytes>;
        const int chunk = 2 * load + i % 2;
        const u32 code = s_key[kType == Type::nvfp4 ? 2 * chunk + lane % 4 / 2 : chunk];
        const u32 scale = block_scale_pair<kType, T>(code, code);
        u32 pairs[4];
        widen_e2m1<T>(pairs, r[i]);
#pragma unroll
        for (int j = 0; j < 4; ++j) b[2 * (i % 2) + j / 2][i / 2][j % 2] = mul_pair<T>(pairs[j], scale);
      }
    }
  }
};

/// K of 16 keys whose rows are codes of 8 bits, with a scale for each kScaleGroup of them, and then a RoPE part of Q's type: inner steps of
/// 16 dims throughout. Loads of codes bring two, those of the RoPE part one.
template <Config c, int kRowBytes>
struct GroupedKeyFragments {
  using Codes = KeyFragments<c.k_type, c.q_type, kRowBytes>;
  using RopePart = KeyFragments<c.q_type, c.q_type, kRowBytes>;
  static constexpr int kStepsPerLoad = 2;  // of codes
  static constexpr int kCodeSteps = c.head_dim_first() / 16;
  static constexpr int kCodeLoads = kCodeSteps / kStepsPerLoad;
  static constexpr int kRopeLoads = c.head_dim_rope / 16;
  static constexpr int kSteps = kCodeSteps + kRopeLoads;
  static constexpr int kLoadsPerGroup = kScaleGroup / (16 * kStepsPerLoad);
  static_assert(bits(c.k_type) == 8 && bits(c.q_type) == 16 && c.head_dim_first() % kScaleGroup == 0 && c.head_dim_rope % 16 == 0);
  static_assert(c.head_dim_rope == 0 || c.k_rope_type() == c.q_type);

  static __device__ __forceinline__ int first_dim(int s, int pair) {
    return s < kCodeSteps ? Codes::first_dim(s, pair) : c.head_dim_first() + RopePart::first_dim(s - kCodeSteps, pair);
  }
  static __device__ __forceinline__ int second_dim(int s) { return s < kCodeSteps ? Codes::second_dim(s) : RopePart::second_dim(s); }
  static __device__ __forceinline__ tile::LaneRows<kRowBytes> lane_rows() { return Codes::lane_rows(); }
};

/// V of 16 keys as B operands: column tile n is 8 dims.
template <Type kType, Type kOperand, int kRowBytes>
struct ValueFragments {
  static constexpr int kRun = 128 / bits(kType) / 4;  // neighbouring dims of O that a lane holds: 2, 4, 8
  static constexpr int kTiles = kRowBytes / tile::kChunkBytes * chunk_dims(kType) / 8;
  static constexpr int kTilesPerLoad = kTiles / (kRowBytes / (2 * tile::kChunkBytes));
  static constexpr int kTilesPerRun = kRun / 2;  // column tiles that make up a run
  using T = Storage<kOperand>;

  static __device__ __forceinline__ tile::LaneRows<kRowBytes> lane_rows(int lane = ptx::lane_idx()) { return {lane & 15, lane >> 4}; }
  /// Fragments of the column tiles [load * kTilesPerLoad, ...), keys [8 row8, 8 row8 + 16). `rows`: LaneRows' Tile or Place.
  template <class Rows>
  static __device__ __forceinline__ void load(const Rows& rows, const u8* s_scales, int row8, int load, u32 (&b)[kTilesPerLoad][2]) {
    u32 r[4];
    ptx::ldmatrix_x4_trans(r, rows.at(row8, load));
    if constexpr (bits(kType) == 16) {
      b[0][0] = r[0];
      b[0][1] = r[1];
      b[1][0] = r[2];
      b[1][1] = r[3];
    } else if constexpr (bits(kType) == 8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Two keys by two dims: even dims go to one tile, odd ones to the next.
        u32 pairs[2];
        widen<T, Storage<kType>>(pairs, ptx::permute_bytes(r[i], 0U, 0x3120U));
        b[i / 2 * 2][i % 2] = pairs[0];
        b[i / 2 * 2 + 1][i % 2] = pairs[1];
      }
    } else {
      const int lane = ptx::lane_idx();
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // two keys by four dims of chunk i / 2; keys 8 (i % 2)
        constexpr int kStride = kBlockScaleBytes<kType, kRowBytes>;
        const int chunk = 2 * load + i / 2;
        const u8* s_key =
            s_scales + (8 * row8 + 8 * (i % 2) + 2 * (lane % 4)) * kStride + (kType == Type::nvfp4 ? 2 * chunk + lane / 16 : chunk);
        const u32 scale = block_scale_pair<kType, T>(s_key[0], s_key[kStride]);
#pragma unroll
        for (int j = 0; j < 4; ++j) b[i / 2 * 4 + j][i % 2] = mul_pair<T>(widen_e2m1_pair<T>(r[i] >> (4 * j)), scale);
      }
    }
  }

  /// First of the kTilesPerRun neighbouring dims that column `column` of the tiles of run `run` holds.
  static __device__ __forceinline__ int column_dim(int run, int column) { return (8 * run + column) * kTilesPerRun; }
  static constexpr int kRuns = kTiles / kTilesPerRun;
  /// First dim of this lane's run `run`.
  static __device__ __forceinline__ int run_dim(int run, int pair) { return run * 4 * kRun + pair * kRun; }
  /// Run `run` of one row (half 0: row group, 1: row group + 8) out of the sums of all column tiles.
  template <int kCount>
  static __device__ __forceinline__ void take_run(const float (&o)[kCount][4], int run, int half, float (&x)[kRun]) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) x[i] = o[run * kTilesPerRun + i % kTilesPerRun][2 * half + i / kTilesPerRun];
  }
};

}  // namespace girih::attention
