// Sampling and selection over a vocabulary: one call for the whole chain from logits (or probabilities) to a token, and its parts. Nothing
// is sorted. Rows are independent: a row's result depends on its own data and parameters and on nothing else of the batch, and is the same
// bits on every backend, SIMD target and number of threads, because probability masses are summed as integers (docs/operators.md,
// "Sampling", has the formulas).
//
// Rules that all functions share:
// - A row has 1 to 2^20 entries of type f32, f16 or bf16, any strides; [rows, vocab] unless said otherwise. Outputs may not overlap inputs
//   (except where said) and are written only after all arguments have been checked.
// - Order: value descending, then index ascending; +0 and -0 are equal. The first k of a row are its top k: exactly k, whatever the ties.
// - NaN counts as -inf. An entry of -inf (of probabilities: one that is not > 0) has no mass and is never drawn. Entries of +inf share all
//   mass equally.
// - Arrays of parameters, tokens and results live on the context's device. On the CPU their values are checked; a CUDA device's cannot be,
//   and kernels then read bad values as stated and never fault. On a CUDA device work is queued on `stream` and may be captured (once a
//   call outside of a capture has loaded the kernel): a replay reads whatever the memory holds then.
#pragma once

#include <cstdint>

#include "girih/context.h"
#include "girih/tensor.h"

namespace girih {

/// A parameter of every row: one number for all, or a tensor f32 [rows].
struct RowFloat {
  float value = 0;
  TensorView rows{};  ///< rank 0: `value`
  RowFloat(float v) : value(v) {}
  RowFloat(const TensorView& t) : rows(t) {}
};
/// The same for integers: i32 or i64.
struct RowInt {
  std::int64_t value = 0;
  TensorView rows{};
  RowInt(std::int64_t v) : value(v) {}
  RowInt(const TensorView& t) : rows(t) {}
};

/// Where random numbers come from: Philox 4x32-10 with key `seed` and counter (offset, row, purpose). One number or tensor of one entry
/// (i64): row r of the batch draws from (seed, offset, r). A tensor [rows] of seeds: row r draws from (seed[r], offset, 0), so that a
/// request with a seed of its own draws the same wherever it stands. `offset` must grow by 1 from step to step.
struct Random {
  RowInt seed = 0;
  RowInt offset = 0;
};

/// Tokens of each row, as CSR: row r's are [indptr[r], indptr[r + 1]). Distinct within a row, in any order. On a CUDA device tokens outside
/// the vocabulary are skipped and indptr is clamped to the list.
struct TokenLists {
  TensorView indptr{};  ///< i32 or i64 [rows + 1]; rank 0: no lists
  TensorView tokens{};  ///< i32 [n]
};

enum class SampleInput : std::uint8_t { logits, probs };

enum class FilterOrder : std::uint8_t {
  top_k_first,  ///< top-k; top-p over what is left, renormalised; min-p
  joint,        ///< each against the unfiltered distribution; a token must pass all
};

/// The distribution that log-probabilities are of: after penalties, bias, mask and temperature; or that and after filters, as drawn from.
enum class LogprobKind : std::uint8_t { processed, filtered };

struct SampleArgs {
  SampleInput kind = SampleInput::logits;
  TensorView input{};    ///< [n, vocab]; probabilities need not sum to 1
  TensorView indices{};  ///< i32 or i64 [rows]: row r reads input row indices[r]; rank 0: row r. CUDA: outside [0, n) = an empty row

  // ---- logits only; applied in this order
  TokenLists bias_tokens{};
  TensorView bias{};  ///< f32 [n], beside bias_tokens.tokens: added. -inf forbids a token
  /// The distinct tokens of prompt and output, and beside each how often it is in the output (0: in the prompt only).
  TokenLists history{};
  TensorView history_counts{};      ///< i32 [n]; rank 0: all 1
  RowFloat repetition_penalty = 1;  ///< > 0. A listed token's logit: x > 0 ? x / penalty : x * penalty
  RowFloat frequency_penalty = 0;   ///< subtracted, times the count
  RowFloat presence_penalty = 0;    ///< subtracted where the count is > 0
  /// i32 [rows, ceil(vocab / 32)]: token t is allowed where bit t % 32 of word t / 32 is set. rank 0: all. Also for probabilities.
  TensorView allowed{};
  /// Logits are divided by it. 0 to 1e-5: argmax, filters and random numbers have no part. Probabilities: only 1 or argmax.
  RowFloat temperature = 1;

  // ---- filters. At least the first token of the order passes.
  RowInt top_k = 0;    ///< the first k; <= 0 or >= vocab: off
  RowFloat top_p = 1;  ///< the shortest prefix of the order with mass >= top_p; >= 1 (or NaN, on CUDA): off
  RowFloat min_p = 0;  ///< probability >= min_p times the largest; <= 0: off
  FilterOrder order = FilterOrder::top_k_first;

  Random random{};

  // ---- results
  TensorView tokens{};  ///< i32 or i64 [rows]
  /// u8 [rows] or rank 0. 0: the row had a NaN, or no token that could be drawn (then `tokens` is 0, log-probabilities are NaN).
  TensorView valid{};
  TensorView logprobs{};      ///< f32 [rows] or rank 0: of the token
  TensorView top_tokens{};    ///< `tokens`' type [rows, n], n <= 128, or rank 0: the first n of the order, -1 where there are no more
  TensorView top_logprobs{};  ///< f32 [rows, n], with top_tokens; NaN where there are no more, -inf for a token without mass
  LogprobKind logprob_kind = LogprobKind::processed;

  void* stream = nullptr;
};

/// One token a row.
void sample(const Context& context, const SampleArgs& args);

/// out = exp((logits - max) / temperature) / sum, f32 [rows, vocab]. Temperature 0 to 1e-5: 1 at the argmax, else 0. A row without mass
/// becomes zeros. `out` may be `logits` where that is f32.
void softmax(const Context& context, const TensorView& logits, const RowFloat& temperature, const TensorView& out, void* stream = nullptr);

/// out = probs / (mass of the top-p prefix) inside the prefix, 0 outside; f32. top_p >= 1: a copy, bit for bit. `out` may be `probs`
/// where that is f32; the same holds for the next two.
void top_p_renorm_probs(const Context& context, const TensorView& probs, const RowFloat& top_p, const TensorView& out,
                        void* stream = nullptr);
/// The same for the first k. k <= 0 or >= vocab: a copy.
void top_k_renorm_probs(const Context& context, const TensorView& probs, const RowInt& top_k, const TensorView& out,
                        void* stream = nullptr);
/// out = logits for the first k, -inf elsewhere; of the logits' type, which it may overlay.
void top_k_mask_logits(const Context& context, const TensorView& logits, const RowInt& top_k, const TensorView& out,
                       void* stream = nullptr);

/// How top_k turns places of a row into what it returns.
struct PageTableTransform {
  TensorView table{};         ///< i32 [requests, pages]: a returned index is table[request, i / page_size] * page_size + i % page_size
  TensorView row_requests{};  ///< i32 [rows]; rank 0: row r is request r
  std::int64_t page_size = 1;
};

struct TopKArgs {
  TensorView input{};        ///< [rows, vocab]
  std::int64_t k = 0;        ///< 1..4096
  bool sorted = false;       ///< in the order; else by index ascending
  TensorView row_starts{};   ///< i32 [rows]: the row's first place in `input`, from which indices count; rank 0: 0
  TensorView row_lengths{};  ///< i32 [rows]: how many entries; rank 0: all. CUDA: start and length are clamped to the row
  PageTableTransform pages{};
  TensorView index_offsets{};  ///< i32 [rows], added to the indices of a row; not with `pages`
  TensorView values{};         ///< of `input`'s type [rows, k] or rank 0
  TensorView indices{};        ///< i32 or i64 [rows, k]
  void* stream = nullptr;
};
/// The first k entries of each row; NaN comes last, after -inf. A row of fewer entries is filled up with index -1 and value -inf.
void top_k(const Context& context, const TopKArgs& args);

struct SpeculativeArgs {
  TensorView draft_probs{};    ///< [batch, n, vocab]; rank 0: the draft is certain of its tokens (greedy drafts, n-gram look-up)
  TensorView draft_tokens{};   ///< i32 [batch, n]
  TensorView target_probs{};   ///< [batch, n + 1, vocab]
  TensorView draft_lengths{};  ///< i32 [batch], 0..n, or rank 0: n. CUDA: clamped
  bool greedy = false;         ///< accept while the draft is the target's argmax, and emit that; no random numbers, no draft_probs
  Random random{};             ///< rows are requests
  TensorView tokens{};         ///< i32 or i64 [batch, n + 1]: accepted drafts, then one more token, then -1
  TensorView accepted{};       ///< i32 or i64 [batch] or rank 0: how many drafts the chain accepts
  void* stream = nullptr;
};
/// Chain speculative sampling (Leviathan et al., arXiv 2211.17192): draft token x at place i is accepted with probability
/// min(1, target[x] / draft[x]); the first that is not is replaced by a draw from max(target - draft, 0), renormalised; after the last
/// accepted one a token is drawn from the target itself. Emitted tokens are distributed exactly as the target. Where the residual has no
/// mass, the target is drawn from; where that has none, the token is 0. A draft outside the vocabulary (CUDA) is not accepted.
void chain_speculative_sample(const Context& context, const SpeculativeArgs& args);

}  // namespace girih
