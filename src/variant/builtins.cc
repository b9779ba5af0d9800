// The built-in variants. Each is an ordinary expression that a user could have written; kernels know none of them.
// Differences of positions are compared with the bounds (`q_pos - kv_pos <= left`), never sums, so that no bound can overflow.

#include <cmath>
#include <utility>

#include "base/error.h"
#include "girih/variant.h"

namespace girih::variants {
namespace {

void check_positive(const char* function, std::int64_t size) {
  if (size <= 0) fail(Code::invalid_argument, "variant", "{}: size={}; must be positive", function, size);
}

}  // namespace

// The autoregressive mask of Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.3.
Expr causal() { return kv_pos() <= q_pos(); }

// FlashInfer's and FlashAttention's (window_left, window_right).
Expr window(std::int64_t left, std::int64_t right) {
  Expr from_left = q_pos() - kv_pos() <= Expr(left);
  Expr from_right = right == 0 ? causal() : kv_pos() - q_pos() <= Expr(right);
  if (left < 0 && right < 0) return Expr::boolean(true);
  if (left < 0) return from_right;
  if (right < 0) return from_left;
  return from_left & from_right;
}

// Longformer (arXiv 2004.05150) and Mistral 7B (arXiv 2310.06825), counted as Hugging Face's config.sliding_window: self included.
Expr sliding_window(std::int64_t size) {
  check_positive("sliding_window", size);
  return causal() & (q_pos() - kv_pos() < Expr(size));
}

// Llama 4's attention_chunk_size.
Expr chunked_local(std::int64_t size) {
  check_positive("chunked_local", size);
  return causal() & (kv_pos() / Expr(size) == q_pos() / Expr(size));
}

// Prefix language model of T5 (arXiv 1910.10683), section 3.2.1.
Expr prefix_lm(ParamTime time) { return causal() | (kv_pos() < ArrayParam("prefix_len", DType::i32, time)[request()]); }

// Sequence packing: documents laid end to end do not see each other (Krell et al. 2021, arXiv 2107.02027).
Expr document(ParamTime time) {
  const ArrayParam document_id("document_id", DType::i32, time);
  return document_id[kv_pos()] == document_id[q_pos()];
}

// FlashInfer's packed custom mask (arXiv 2501.01005). The comparison keeps a key past kv_len from reading the next row's bits.
Expr custom_mask(ParamTime time) {
  const BitsParam mask("custom_mask", time);
  const ArrayParam start("custom_mask_start", DType::i64, time);
  return (kv_pos() < kv_len()) & mask[start[request()] + q_idx() * kv_len() + kv_pos()];
}

// Token tree verification of SpecInfer (arXiv 2305.09781) and Medusa (arXiv 2401.10774).
Expr speculative_tree(ParamTime time) {
  const BitsParam mask("tree_mask", time);
  const ArrayParam start("tree_mask_start", DType::i64, time);
  const Expr committed = kv_len() - q_len();
  return (kv_pos() < committed) | ((kv_pos() < kv_len()) & mask[(start[request()] + q_idx() * q_len() - committed) + kv_pos()]);
}

// The sink tokens of StreamingLLM (arXiv 2309.17453), section 3.2.
Expr first_tokens(std::int64_t size) { return kv_pos() < Expr(size); }

// Scoring several candidates after one prompt in one pass, as FlashInfer's multi-item scoring.
Expr multi_item(ParamTime time) {
  const ArrayParam item_id("item_id", DType::i32, time);
  const ArrayParam prefix_len("prefix_len", DType::i32, time);
  return causal() & ((kv_pos() < prefix_len[request()]) | (item_id[kv_pos()] == item_id[q_pos()]));
}

// Image tokens that see each other both ways within causal text, as in Gemma 3 (arXiv 2503.19786).
Expr causal_with_bidirectional_spans(ParamTime time) {
  const ArrayParam span_id("span_id", DType::i32, time);
  return causal() | ((span_id[q_pos()] != 0) & (span_id[kv_pos()] == span_id[q_pos()]));
}

// Gemma 2's logit soft-capping (arXiv 2408.00118), section 2; the division is a multiplication by the rounded reciprocal.
Expr soft_cap(float cap) {
  if (!(cap > 0) || !std::isfinite(cap) || !std::isfinite(1.0F / cap)) {
    fail(Code::invalid_argument, "variant", "soft_cap: cap={}; must be finite and positive (for no cap leave the hook absent)", cap);
  }
  return Expr(cap) * tanh(score() * Expr(1.0F / cap));
}

// Press et al. 2022 (arXiv 2108.12409), section 3.
Expr alibi() { return score() + ArrayParam("alibi_slopes", DType::f32)[q_head()] * (kv_pos() - q_pos()); }

// Ibid.: 2^(-8 i / n) for n a power of two; otherwise those of the power below, then every other one of twice that power, as the authors'
// code has it.
std::vector<float> alibi_slopes(int num_heads) {
  if (num_heads < 0) fail(Code::invalid_argument, "variant", "alibi_slopes: num_heads={}; must not be negative", num_heads);
  std::vector<float> slopes;
  slopes.reserve(static_cast<std::size_t>(num_heads));
  std::int64_t power = 1;
  while (power * 2 <= num_heads) power *= 2;
  for (std::int64_t i = 0; i < num_heads; ++i) {
    const double exponent = i < power ? -8.0 * static_cast<double>(i + 1) / static_cast<double>(power)
                                      : -8.0 * static_cast<double>(2 * (i - power) + 1) / static_cast<double>(2 * power);
    slopes.push_back(static_cast<float>(std::exp2(exponent)));
  }
  return slopes;
}

// Ramapuram et al. 2024 (arXiv 2409.04431), equation 3.
Expr sigmoid_logits(float bias) { return sigmoid(score() + Expr(bias)); }

// The learned sinks of gpt-oss (arXiv 2508.10925): an extra logit in the softmax denominator, without a value.
Expr sinks() { return ArrayParam("sinks", DType::f32)[q_head()]; }

// RMSNorm (arXiv 1910.07467) over the head, used as QK-norm by Qwen 3 and others.
Expr rms_norm(std::string weight_name, float eps) {
  return x() * rsqrt(mean_square() + Expr(eps)) * ArrayParam(std::move(weight_name), DType::f32)[dim()];
}

}  // namespace girih::variants
