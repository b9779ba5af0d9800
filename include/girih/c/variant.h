// C ABI: attention variants as expressions (girih/variant.h has their meaning and types). A builder owns the expressions made from it, so
// that they nest without a name for each, and remembers the first error, so that one check at the end is enough:
//
//   girih_expr_builder* b = NULL;
//   girih_expr_builder_create(&b);
//   const girih_expr* kv = girih_expr_variable(b, GIRIH_KV_POS);
//   const girih_expr* q = girih_expr_variable(b, GIRIH_Q_POS);
//   options.mask = girih_expr_binary(b, GIRIH_LE, kv, q);                  // after girih_variant_options_init
//   options.logits = girih_expr_soft_cap(b, 30.0F);
//   status = girih_variant_create(b, &options, &variant);                  // reports what failed above, too
//   girih_expr_builder_destroy(b);                                         // the variant stays valid
#pragma once

#include "girih/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct girih_expr_builder girih_expr_builder;  ///< one thread at a time
typedef struct girih_expr girih_expr;                  ///< immutable; lives as long as its builder
typedef struct girih_variant girih_variant;            ///< immutable; may be shared between threads

GIRIH_API girih_status girih_expr_builder_create(girih_expr_builder** out);
GIRIH_API void girih_expr_builder_destroy(girih_expr_builder* builder);
/// GIRIH_OK, or the status of the first function that failed; its text then becomes girih_last_error() again. It stays failed.
GIRIH_API girih_status girih_expr_builder_status(const girih_expr_builder* builder);

// All functions that return an expression return NULL on failure, also where an operand is NULL; girih_last_error() has the text.

/// Constants. A number is rounded to f32.
GIRIH_API const girih_expr* girih_expr_integer(girih_expr_builder* builder, int64_t value);
GIRIH_API const girih_expr* girih_expr_number(girih_expr_builder* builder, double value);
GIRIH_API const girih_expr* girih_expr_boolean(girih_expr_builder* builder, int32_t value);

typedef int32_t girih_variable;
enum {
  GIRIH_SCORE = 0,         ///< number: q . k * sm_scale (natural units, before any hook)
  GIRIH_Q_POS = 1,         ///< integer: logical position of the query row's token
  GIRIH_KV_POS = 2,        ///< integer: logical position of the key
  GIRIH_Q_IDX = 3,         ///< integer: index of the token within its request's query rows
  GIRIH_Q_LEN = 4,         ///< integer: query rows of the request
  GIRIH_KV_LEN = 5,        ///< integer: logical KV length of the request
  GIRIH_REQUEST = 6,       ///< integer: index of the request in the batch
  GIRIH_Q_HEAD = 7,        ///< integer
  GIRIH_KV_HEAD = 8,       ///< integer
  GIRIH_Q_ROW = 9,         ///< integer: row of the token in the query tensor
  GIRIH_X = 10,            ///< number: the element that a transform maps
  GIRIH_DIM = 11,          ///< integer: the element's index within the head
  GIRIH_MEAN_SQUARE = 12,  ///< number: mean of x*x over the head
};
GIRIH_API const girih_expr* girih_expr_variable(girih_expr_builder* builder, girih_variable variable);

typedef int32_t girih_expr_type;
enum { GIRIH_BOOLEAN = 0, GIRIH_INTEGER = 1, GIRIH_NUMBER = 2 };
/// When a parameter's value is given: with the batch (girih_plan_update; usable for proofs) or with girih_run.
typedef int32_t girih_param_time;
enum { GIRIH_PLAN_TIME = 0, GIRIH_RUN_TIME = 1 };

/// A named scalar parameter, GIRIH_NUMBER or GIRIH_INTEGER.
GIRIH_API const girih_expr* girih_expr_scalar(girih_expr_builder* builder, const char* name, girih_expr_type type, girih_param_time time);
/// Entry `index` of the named array of f32, i32 or i64; outside it 0.
GIRIH_API const girih_expr* girih_expr_array(girih_expr_builder* builder, const char* name, girih_dtype dtype, girih_param_time time,
                                             const girih_expr* index);
/// Bit `index` of the named array of bytes (u8), little-endian; outside it false.
GIRIH_API const girih_expr* girih_expr_bits(girih_expr_builder* builder, const char* name, girih_param_time time, const girih_expr* index);

typedef int32_t girih_unary_op;
enum {
  GIRIH_NEG = 0,
  GIRIH_ABS = 1,
  GIRIH_NOT = 2,  ///< booleans
  GIRIH_EXP = 3,
  GIRIH_LOG = 4,
  GIRIH_TANH = 5,
  GIRIH_SQRT = 6,
  GIRIH_RSQRT = 7,
  GIRIH_SIGMOID = 8,
};
GIRIH_API const girih_expr* girih_expr_unary(girih_expr_builder* builder, girih_unary_op op, const girih_expr* a);

typedef int32_t girih_binary_op;
enum {
  GIRIH_ADD = 0,
  GIRIH_SUB = 1,
  GIRIH_MUL = 2,
  GIRIH_DIV = 3,  ///< numbers; two integers: floor division (x / 0 = 0)
  GIRIH_MOD = 4,  ///< integers: a - b * floor(a / b) (x % 0 = 0)
  GIRIH_MIN = 5,
  GIRIH_MAX = 6,
  GIRIH_LT = 7,
  GIRIH_LE = 8,
  GIRIH_GT = 9,
  GIRIH_GE = 10,
  GIRIH_EQ = 11,
  GIRIH_NE = 12,
  GIRIH_AND = 13,  ///< booleans
  GIRIH_OR = 14,   ///< booleans
};
GIRIH_API const girih_expr* girih_expr_binary(girih_expr_builder* builder, girih_binary_op op, const girih_expr* a, const girih_expr* b);
GIRIH_API const girih_expr* girih_expr_select(girih_expr_builder* builder, const girih_expr* condition, const girih_expr* if_true,
                                              const girih_expr* if_false);
GIRIH_API girih_status girih_expr_get_type(const girih_expr* expr, girih_expr_type* out);

/// Something that CUDA text may name.
typedef int32_t girih_cuda_arg_kind;
enum {
  GIRIH_CUDA_ARG_VALUE = 0,  ///< `value` under `name`; name NULL: a variable or scalar parameter under its own name
  GIRIH_CUDA_ARG_ARRAY = 1,  ///< the whole array parameter `name` of `dtype` and `time`, which the text indexes
  GIRIH_CUDA_ARG_BITS = 2,   ///< likewise bits
};
typedef struct girih_cuda_arg {
  const char* name;
  const girih_expr* value;
  girih_cuda_arg_kind kind;
  girih_dtype dtype;
  girih_param_time time;
  int32_t reserved;
} girih_cuda_arg;
/// CUDA text in place of an expression (cuda_code() in girih/variant.h has the rules). CUDA only. `name` (in compile errors) may be NULL.
GIRIH_API const girih_expr* girih_expr_cuda_code(girih_expr_builder* builder, girih_expr_type type, const char* body,
                                                 const girih_cuda_arg* args, int64_t num_args, const char* name);

// ---------------------------------------------------------------------------------------------------------------- built-in variants

/// kv_pos <= q_pos.
GIRIH_API const girih_expr* girih_expr_causal(girih_expr_builder* builder);
/// q_pos - left <= kv_pos <= q_pos + right; a negative bound is open. `left` counts keys before self.
GIRIH_API const girih_expr* girih_expr_window(girih_expr_builder* builder, int64_t left, int64_t right);
/// At most `size` keys including self, causal.
GIRIH_API const girih_expr* girih_expr_sliding_window(girih_expr_builder* builder, int64_t size);
/// Keys of the same chunk of `size` positions, causal.
GIRIH_API const girih_expr* girih_expr_chunked_local(girih_expr_builder* builder, int64_t size);
/// Causal, and every key below prefix_len[request] (array "prefix_len", i32).
GIRIH_API const girih_expr* girih_expr_prefix_lm(girih_expr_builder* builder, girih_param_time time);
/// Keys whose document id equals the query's (array "document_id", i32, by position).
GIRIH_API const girih_expr* girih_expr_document(girih_expr_builder* builder, girih_param_time time);
/// Bits "custom_mask": for each request row-major [q_len, kv_len] from bit custom_mask_start[request] (i64 array).
GIRIH_API const girih_expr* girih_expr_custom_mask(girih_expr_builder* builder, girih_param_time time);
/// The committed prefix, and of the q_len draft tokens those whose bit is set in "tree_mask": [q_len, q_len] from bit
/// tree_mask_start[request].
GIRIH_API const girih_expr* girih_expr_speculative_tree(girih_expr_builder* builder, girih_param_time time);
/// The first `size` keys; combine with a window by GIRIH_OR and with causal by GIRIH_AND.
GIRIH_API const girih_expr* girih_expr_first_tokens(girih_expr_builder* builder, int64_t size);
/// Causal; a token of an item sees the prefix ("prefix_len", i32 by request) and its own item ("item_id", i32 by position).
GIRIH_API const girih_expr* girih_expr_multi_item(girih_expr_builder* builder, girih_param_time time);
/// Causal, plus both directions within a span ("span_id", i32 by position, 0 = none).
GIRIH_API const girih_expr* girih_expr_causal_with_bidirectional_spans(girih_expr_builder* builder, girih_param_time time);
/// cap * tanh(score / cap).
GIRIH_API const girih_expr* girih_expr_soft_cap(girih_expr_builder* builder, float cap);
/// score + slope[q_head] * (kv_pos - q_pos), array "alibi_slopes" (f32).
GIRIH_API const girih_expr* girih_expr_alibi(girih_expr_builder* builder);
/// sigmoid(score + bias); with softmax = 0.
GIRIH_API const girih_expr* girih_expr_sigmoid_logits(girih_expr_builder* builder, float bias);
/// Learned sink logits per query head: array "sinks" (f32).
GIRIH_API const girih_expr* girih_expr_sinks(girih_expr_builder* builder);
/// x * rsqrt(mean_square + eps) * weight[dim], array `weight_name` (f32).
GIRIH_API const girih_expr* girih_expr_rms_norm(girih_expr_builder* builder, const char* weight_name, float eps);
/// The standard slopes of ALiBi: f32 [num_heads] into `out`, which has room for `capacity`.
GIRIH_API girih_status girih_alibi_slopes(int32_t num_heads, float* out, int64_t capacity);

// ---------------------------------------------------------------------------------------------------------------- variant

/// Llama 3.1's scaling of RoPE by wavelength. Its numbers have no defaults here; those of the model are 8, 1, 4, 8192.
typedef struct girih_llama31 {
  double factor;
  double low_freq_factor;
  double high_freq_factor;
  double old_context_len;
} girih_llama31;

/// Rotary position encoding applied to Q and K as they are loaded (the cache holds unrotated keys).
typedef struct girih_rope {
  uint64_t struct_size;
  double theta;
  double scale;                  ///< positions are divided by it
  int32_t rotary_dim;            ///< leading elements that rotate, even; 0 = all of head_dim_qk
  int32_t rotary_begin;          ///< first element that rotates
  const girih_llama31* llama31;  ///< or NULL
  int32_t interleave;            ///< pairs (2i, 2i+1) if 1, (i, i + rotary_dim/2) if 0
  int32_t reserved;
} girih_rope;
GIRIH_API girih_status girih_rope_init(girih_rope* out, uint64_t struct_size);

/// Hooks: which variables each may use is stated at struct Variant in girih/variant.h. NULL = not used.
typedef struct girih_variant_options {
  uint64_t struct_size;
  const char* name;  ///< for logs; or NULL
  const girih_expr* query;
  const girih_expr* key;
  const girih_expr* value;
  const girih_expr* logits;
  const girih_expr* mask;
  const girih_expr* sink;
  const girih_expr* output;
  const girih_rope* rope;  ///< or NULL
  int32_t softmax;         ///< 0: the weight of a key is `logits` itself, and there is no LSE
  int32_t reserved;
} girih_variant_options;
GIRIH_API girih_status girih_variant_options_init(girih_variant_options* out, uint64_t struct_size);

/// A builder that failed gives its first error. Whether the hooks fit together is checked by girih_schedule_create.
GIRIH_API girih_status girih_variant_create(const girih_expr_builder* builder, const girih_variant_options* options, girih_variant** out);
GIRIH_API void girih_variant_destroy(girih_variant* variant);

/// A value for a named parameter.
typedef struct girih_param_value {
  const char* name;
  double number;       ///< a scalar number's value, or
  int64_t integer;     ///< a scalar integer's value, or
  girih_tensor array;  ///< rank 1, dense: an array's or bit array's data (rank 0 = scalar)
} girih_param_value;

#ifdef __cplusplus
}
#endif
