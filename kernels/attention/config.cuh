// What a kernel is compiled for: the spec's types and shapes and the tile chosen for it, as one structural type given as a template
// argument by the generated source. All families share it; each reads the fields that it needs. What the variant decides (hooks, softmax,
// RoPE) is in the generated struct Variant beside it.
#pragma once

#include "core/types.cuh"

namespace girih::attention {

/// Element types, numbered as girih::DType.
enum class Type : u8 { f32, f16, bf16, e4m3, e5m2, i8, nvfp4, mxfp4 };
/// girih::ScaleGranularity.
enum class Scale : u8 { none, tensor, head, token_head, block, token_group };
enum class Lse : u8 { none, natural, base2 };

struct Config {
  int head_dim_qk = 128;
  int head_dim_vo = 128;
  int head_dim_rope = 0;  // > 0: the last dims of Q and K come in tensors of their own
  int group = 1;          // query heads of a KV head
  Type q_type = Type::bf16;
  Type k_type = Type::bf16;
  Type v_type = Type::bf16;
  Type o_type = Type::bf16;
  Scale k_scale = Scale::none;
  Scale v_scale = Scale::none;
  bool v_is_k = false;  // V is the first head_dim_vo dims of K
  Lse lse = Lse::none;
  bool partial_state = false;    // no sink, no output hook
  bool batch_invariant = false;  // items may be chunks (abi::WorkItem::kChunk)

  int tile_class = 0;          // whose units the kernel runs
  int tile_rows = 8;           // packed rows of a tile at most
  int kv_block = 64;           // keys a step; item borders are multiples of it
  int threads = 128;           // of a block
  int producers = 0;           // of these, the last ones: they bring data to the others
  int stages = 2;              // K and V blocks in flight; floor: 1 = V takes K's place in shared memory, 2 = it has its own
  int warps_rows = 1;          // mma: warps that share a tile's rows; the others share its keys
  int warps_values = 0;        // MLA: the block's last warps, which sum P V; those before take the scores
  int shared_bytes = 0;        // dynamic shared memory that the host gives the block
  bool byte_products = false;  // mma: Q and K of e4m3 meet as such; else they become f16
  bool rope_apart = false;     // K's second tensor is of rope_type, without scales; else it is as the first
  Type rope_type = Type::bf16;

  /// Threads that compute.
  __device__ constexpr int workers() const { return threads - producers; }
  /// Dims of Q and K in their first tensor.
  __device__ constexpr int head_dim_first() const { return head_dim_qk - head_dim_rope; }
  /// Of K's second tensor.
  __device__ constexpr Type k_rope_type() const { return rope_apart ? rope_type : k_type; }
  __device__ constexpr Scale k_rope_scale() const { return rope_apart ? Scale::none : k_scale; }
  /// mma: V of more dims than a warp can sum, a view of K (MLA).
  __device__ constexpr bool is_wide() const { return v_is_k && head_dim_vo > 256; }
  /// Warps that bring keys: all, or (MLA) the first ones, or where these have few rows, those with less to do.
  __device__ constexpr int warps_that_bring() const {
    return warps_values > 0 && warps_rows == 1 ? warps_values : threads / 32 - warps_values;
  }
  /// Floats of a row of part_o and chunk_o.
  __device__ constexpr int part_stride() const { return (head_dim_vo + 15) / 16 * 16; }
};

__device__ constexpr int bits(Type t) {
  switch (t) {
    case Type::f32: return 32;
    case Type::f16:
    case Type::bf16: return 16;
    case Type::nvfp4:
    case Type::mxfp4: return 4;
    default: return 8;
  }
}
__device__ constexpr bool is_four_bit(Type t) { return bits(t) == 4; }
/// Elements that share a block scale.
__device__ constexpr int scale_block(Type t) { return t == Type::nvfp4 ? 16 : 32; }
/// Dims that share a token_group scale (girih::kScaleGroup).
constexpr int kScaleGroup = 128;
/// Bytes of n dense elements.
__device__ constexpr int bytes(Type t, int n) { return (n * bits(t) + 7) / 8; }

}  // namespace girih::attention
