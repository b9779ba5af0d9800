// C ABI: sampling and selection over a vocabulary (girih/sampling.h has the rules that all functions share: order, ties, NaN, infinities).
// Tensors are [rows, vocab] of f32, f16 or bf16 unless said otherwise, any strides, on the context's device.
#pragma once

#include "girih/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/// A parameter of every row: one number for all, or f32 [rows].
typedef struct girih_row_float {
  girih_tensor rows;  ///< not given: `value`
  float value;
  int32_t reserved;
} girih_row_float;
/// The same for integers: i32 or i64 [rows].
typedef struct girih_row_int {
  girih_tensor rows;
  int64_t value;
} girih_row_int;

/// Row r draws from (seed, offset, r); with seeds [rows] (i64) from (seed[r], offset, 0). `offset` must grow by 1 from step to step.
typedef struct girih_random {
  girih_row_int seed;
  girih_row_int offset;
} girih_random;

/// Tokens of each row, as CSR; distinct within a row.
typedef struct girih_token_lists {
  girih_tensor indptr;  ///< i32 or i64 [rows + 1]; not given: no lists
  girih_tensor tokens;  ///< i32 [n]
} girih_token_lists;

enum { GIRIH_LOGITS = 0, GIRIH_PROBS = 1 };  ///< girih_sample_args.kind
enum {
  GIRIH_TOP_K_FIRST = 0,
  GIRIH_JOINT = 1
};  ///< girih_sample_args.order: top-k, then top-p of what is left, then min-p; or all at once
enum { GIRIH_PROCESSED = 0, GIRIH_FILTERED = 1 };  ///< girih_sample_args.logprob_kind: before or after the filters

typedef struct girih_sample_args {
  uint64_t struct_size;
  girih_tensor input;    ///< [n, vocab]; probabilities need not sum to 1
  girih_tensor indices;  ///< i32 or i64 [rows]: row r reads input row indices[r]; not given: row r
  // Logits only; applied in this order.
  girih_token_lists bias_tokens;
  girih_tensor bias;                   ///< f32 [n], beside bias_tokens.tokens: added. -inf forbids a token
  girih_token_lists history;           ///< the distinct tokens of prompt and output
  girih_tensor history_counts;         ///< i32 [n]: how often each is in the output; not given: all 1
  girih_row_float repetition_penalty;  ///< > 0. A listed token's logit: x > 0 ? x / penalty : x * penalty
  girih_row_float frequency_penalty;   ///< subtracted, times the count
  girih_row_float presence_penalty;    ///< subtracted where the count is > 0
  girih_tensor allowed;                ///< i32 [rows, ceil(vocab / 32)]: bit t % 32 of word t / 32 allows token t; not given: all
  girih_row_float temperature;         ///< 0 to 1e-5: argmax
  // Filters. At least the first token of the order passes.
  girih_row_int top_k;    ///< <= 0 or >= vocab: off
  girih_row_float top_p;  ///< the shortest prefix of the order with mass >= top_p; >= 1: off
  girih_row_float min_p;  ///< probability >= min_p times the largest; <= 0: off
  girih_random random;
  // Results.
  girih_tensor tokens;        ///< i32 or i64 [rows]
  girih_tensor valid;         ///< u8 [rows] or not given. 0: the row had a NaN, or no token that could be drawn
  girih_tensor logprobs;      ///< f32 [rows] or not given
  girih_tensor top_tokens;    ///< `tokens`' type [rows, n], n <= 128, or not given: the first n of the order
  girih_tensor top_logprobs;  ///< f32 [rows, n], with top_tokens
  int32_t kind;
  int32_t order;
  int32_t logprob_kind;
  int32_t reserved;
  void* stream;
} girih_sample_args;
GIRIH_API girih_status girih_sample_args_init(girih_sample_args* out, uint64_t struct_size);
/// One token a row. Errors: invalid_argument, unsupported, before anything is written.
GIRIH_API girih_status girih_sample(const girih_context* context, const girih_sample_args* args);

/// out = exp((logits - max) / temperature) / sum, f32 [rows, vocab]. `out` may be `logits` where that is f32.
GIRIH_API girih_status girih_softmax(const girih_context* context, const girih_tensor* logits, const girih_row_float* temperature,
                                     const girih_tensor* out, void* stream);
/// out = probs / (mass of the top-p prefix) inside the prefix, 0 outside; f32.
GIRIH_API girih_status girih_top_p_renorm_probs(const girih_context* context, const girih_tensor* probs, const girih_row_float* top_p,
                                                const girih_tensor* out, void* stream);
/// The same for the first k.
GIRIH_API girih_status girih_top_k_renorm_probs(const girih_context* context, const girih_tensor* probs, const girih_row_int* top_k,
                                                const girih_tensor* out, void* stream);
/// out = logits for the first k, -inf elsewhere; of the logits' type.
GIRIH_API girih_status girih_top_k_mask_logits(const girih_context* context, const girih_tensor* logits, const girih_row_int* top_k,
                                               const girih_tensor* out, void* stream);

typedef struct girih_top_k_args {
  uint64_t struct_size;
  girih_tensor input;          ///< [rows, vocab]
  int64_t k;                   ///< 1..4096
  girih_tensor row_starts;     ///< i32 [rows]: the row's first place in `input`, from which indices count; not given: 0
  girih_tensor row_lengths;    ///< i32 [rows]; not given: all
  girih_tensor page_table;     ///< i32 [requests, pages]: a returned index is table[request, i / page_size] * page_size + i % page_size
  girih_tensor row_requests;   ///< i32 [rows], with page_table; not given: row r is request r
  int64_t page_size;           ///< with page_table
  girih_tensor index_offsets;  ///< i32 [rows], added to the indices of a row; not with page_table
  girih_tensor values;         ///< of `input`'s type [rows, k] or not given
  girih_tensor indices;        ///< i32 or i64 [rows, k]
  int32_t sorted;              ///< 1: in the order; 0: by index ascending
  int32_t reserved;
  void* stream;
} girih_top_k_args;
GIRIH_API girih_status girih_top_k_args_init(girih_top_k_args* out, uint64_t struct_size);
/// The first k entries of each row. A row of fewer is filled up with index -1 and value -inf.
GIRIH_API girih_status girih_top_k(const girih_context* context, const girih_top_k_args* args);

typedef struct girih_speculative_args {
  uint64_t struct_size;
  girih_tensor draft_probs;    ///< [batch, n, vocab]; not given: the draft is certain of its tokens
  girih_tensor draft_tokens;   ///< i32 [batch, n]
  girih_tensor target_probs;   ///< [batch, n + 1, vocab]
  girih_tensor draft_lengths;  ///< i32 [batch], 0..n, or not given: n
  girih_random random;         ///< rows are requests
  girih_tensor tokens;         ///< i32 or i64 [batch, n + 1]: accepted drafts, then one more token, then -1
  girih_tensor accepted;       ///< i32 or i64 [batch] or not given: how many drafts the chain accepts
  int32_t greedy;              ///< accept while the draft is the target's argmax, and emit that
  int32_t reserved;
  void* stream;
} girih_speculative_args;
GIRIH_API girih_status girih_speculative_args_init(girih_speculative_args* out, uint64_t struct_size);
/// Chain speculative sampling (Leviathan et al., arXiv 2211.17192): emitted tokens are distributed exactly as the target.
GIRIH_API girih_status girih_chain_speculative_sample(const girih_context* context, const girih_speculative_args* args);

#ifdef __cplusplus
}
#endif
