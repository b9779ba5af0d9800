// C ABI: rotary position embedding (girih/rope.h): tables, rotation of Q and K with QK-norm and quantisation, and both fused with append.
#pragma once

#include "girih/c/page.h"
#include "girih/c/rows.h"
#include "girih/c/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

/// YaRN (Peng et al. 2023). Start from girih_yarn_init.
typedef struct girih_yarn {
  uint64_t struct_size;
  double factor;
  double original_context_len;
  double beta_fast;
  double beta_slow;
  double attention_factor;  ///< cosines and sines are multiplied by it; 0: 0.1 ln(factor) + 1
  int32_t whole_pairs;      ///< the blend begins and ends at whole indices (gpt-oss: 0)
  int32_t reserved;
} girih_yarn;
GIRIH_API girih_status girih_yarn_init(girih_yarn* out, uint64_t struct_size);

/// Angles of a model: pair i of rotary_dim / 2 turns by theta^(-2i / rotary_dim) a position, after the scaling that is given (one at most).
typedef struct girih_rope_table {
  uint64_t struct_size;
  double theta;
  double linear;                 ///< > 0: frequencies are divided by it
  double ntk;                    ///< theta becomes theta * ntk^(rotary_dim / (rotary_dim - 2))
  const girih_llama31* llama31;  ///< or NULL
  const girih_yarn* yarn;        ///< or NULL
  int32_t rotary_dim;            ///< even
  int32_t reserved;
} girih_rope_table;
GIRIH_API girih_status girih_rope_table_init(girih_rope_table* out, uint64_t struct_size);
/// Radians a position of each pair, [rotary_dim / 2], into `out` with room for `capacity`.
GIRIH_API girih_status girih_rope_frequencies(const girih_rope_table* table, double* out, int64_t capacity);
/// [num_positions, rotary_dim]: of each position the cosines of all pairs, then the sines.
GIRIH_API girih_status girih_rope_cos_sin(const girih_rope_table* table, int64_t num_positions, float* out, int64_t capacity);

/// Tensors are [rows, heads, dim], f32, f16 or bf16, any strides. Elements [rotary_begin, rotary_begin + rotary_dim) of a head rotate.
typedef struct girih_rope_args {
  uint64_t struct_size;
  girih_tensor q;  ///< either may be not given
  girih_tensor k;
  girih_tensor q_out;  ///< the same shapes; may be q and k themselves where type and strides are theirs
  girih_tensor k_out;
  girih_tensor cos_sin;    ///< f32 [num_positions, rotary_dim], as girih_rope_cos_sin makes it
  girih_tensor positions;  ///< i32 or i64 [rows]; or by requests: row r of request i is at offsets[i] + r - indptr[i]
  girih_tensor indptr;     ///< [num_requests + 1]
  girih_tensor offsets;    ///< [num_requests]; both i32 or both i64
  girih_tensor q_weight;   ///< QK-norm before the rotation: [dim] or [heads, dim]; not given: no norm
  girih_tensor k_weight;
  girih_quantization q_quantization;
  girih_quantization k_quantization;
  int32_t rotary_begin;
  int32_t interleaved;  ///< pairs (2i, 2i + 1) if 1, (i, i + rotary_dim / 2) if 0
  float eps;
  float weight_offset;  ///< added to every weight
} girih_rope_args;
GIRIH_API girih_status girih_rope_args_init(girih_rope_args* out, uint64_t struct_size);
/// Errors: invalid_argument, before anything is written.
GIRIH_API girih_status girih_apply_rope(const girih_context* context, const girih_rope_args* args, void* stream);

typedef struct girih_rope_append_args {
  uint64_t struct_size;
  const girih_rope_args* rope;  ///< k_out and k_quantization stay empty; positions not given are the keys' own; q may be not given
  girih_tensor v;               ///< [rows, kv heads, dim_v] for store.v; not given = the store has no V plane (MLA)
  girih_tensor k_nope;          ///< MLA: what is not rotated, for store.k; the rotated rope.k goes to store.k_rope
  girih_tensor q_nope;
  girih_tensor q_nope_out;
} girih_rope_append_args;
GIRIH_API girih_status girih_rope_append_args_init(girih_rope_append_args* out, uint64_t struct_size);
/// Rotation fused with girih_append: K goes, normalised, rotated and quantised, to the places of the batch, as does V.
GIRIH_API girih_status girih_rope_append(const girih_context* context, const girih_kv_store* store, const girih_append_batch* batch,
                                         const girih_rope_append_args* args, void* stream);
/// The same by a plan, as girih_append_planned. CUDA only.
GIRIH_API girih_status girih_rope_append_planned(const girih_context* context, const girih_device_plan* device_plan,
                                                 const girih_kv_store* store, const int32_t* kv_indices, int64_t num_kv_indices,
                                                 const girih_rope_append_args* args, int64_t segment, void* stream);

#ifdef __cplusplus
}
#endif
