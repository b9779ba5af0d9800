// Attention from its formula in double precision, one query row at a time: o = sum_j w_j v_j / sum_j w_j, w_j = exp(logit_j), over the
// keys that the mask lets through, plus the sink in the denominator. Independent of the library's code; knows nothing of pages or plans.
//
// Tolerance. With f32 arithmetic, scores carry an absolute error of about C * eps32 * S, where S bounds the magnitudes that are summed
// into a score (sm_scale * sum |q_d k_d|, and every intermediate of the hooks), and the sum over n visible keys a relative one of
// C * eps32; C = 16 + sqrt(n) + sqrt(head_dim). A score error moves the softmax average by at most twice that times A_d = sum_j w_j
// |v_jd|. Output rounding adds one unit of the output type. So
//   |o_d - ref| <= eps_o |ref| + (eps_w + C eps32 (1 + 2 S)) A_d + tiny_o,     |lse - ref| <= C eps32 (1 + S + |ref|),
// eps_w = 2^-8 where the kernel rounds weights to bf16 (bf16 dot products), else 0. Products of 8-bit floats are summed with fewer bits:
// loss_of_bytes bounds what a score loses by that.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "ref/expr.h"

namespace girih::ref {

/// One key that a row may see: its positions and its prepared vectors (see prepare_key).
struct Key {
  std::int64_t pos = 0;
  bool masked = true;         // false: visible whatever the mask says
  const double* k = nullptr;  // [head_dim_qk]
  const double* v = nullptr;  // [head_dim_vo]
};

struct Row {
  std::int64_t q_pos = 0, q_rope_pos = 0, q_idx = 0, q_len = 0, kv_len = 0, request = 0, q_row = 0, q_head = 0, kv_head = 0;
  const double* q = nullptr;  // [head_dim_qk]
};

struct Rules {
  const Variant* variant = nullptr;
  std::span<const Param> params;
  int head_dim_qk = 0, head_dim_vo = 0;
  double sm_scale = 1;
  bool partial_state = false;
  bool bytes = false;  // Q and K are of 8 bits: RowResult::score_loss is wanted
  /// In place of evaluating variant->mask or variant->logits: a second, hand-written statement of the same rule.
  std::function<bool(const Vars&)> mask;
  std::function<double(double score, const Vars&)> logits;
};

struct RowResult {
  std::vector<double> o;
  std::vector<double> o_bound;  // A_d
  std::vector<double> v_bound;  // B_d: the visible keys' |v|, added
  double lse = -std::numeric_limits<double>::infinity();
  double score_bound = 0;  // S
  double score_loss = 0;   // T: of a score where Q and K meet in products of 8-bit floats
  std::int64_t num_visible = 0;
};

/// Rotates the elements [rotary_begin, rotary_begin + rotary_dim) of x by the angles of position `pos`.
inline void rotate(const Rope& rope, int head_dim, std::int64_t pos, double* x) {
  const int n = rope.rotary_dim ? rope.rotary_dim : head_dim - rope.rotary_begin;
  for (int i = 0; i < n / 2; ++i) {
    double freq = std::pow(rope.theta, -2.0 * i / n) / rope.scale;
    if (rope.llama31) {
      const Rope::Llama31& l = *rope.llama31;
      const double wavelength = 2 * M_PI / freq;
      if (wavelength > l.old_context_len / l.low_freq_factor) {
        freq /= l.factor;
      } else if (wavelength > l.old_context_len / l.high_freq_factor) {
        const double smooth = (l.old_context_len / wavelength - l.low_freq_factor) / (l.high_freq_factor - l.low_freq_factor);
        freq = (1 - smooth) * freq / l.factor + smooth * freq;
      }
    }
    const double angle = static_cast<double>(pos) * freq;
    double& a = x[rope.rotary_begin + (rope.interleave ? 2 * i : i)];
    double& b = x[rope.rotary_begin + (rope.interleave ? 2 * i + 1 : i + n / 2)];
    const double rotated = a * std::cos(angle) - b * std::sin(angle);
    b = b * std::cos(angle) + a * std::sin(angle);
    a = rotated;
  }
}

/// Maps each element of a head vector through `hook` (absent: nothing happens).
inline void transform(const Expr& hook, Evaluator& evaluator, Vars vars, int n, double* x) {
  if (hook.node() == nullptr) return;  // `!hook` would build an expression
  double sum = 0;
  for (int d = 0; d < n; ++d) sum += x[d] * x[d];
  vars.f(variant::Var::mean_square) = sum / n;
  for (int d = 0; d < n; ++d) {
    vars.f(variant::Var::x) = x[d];
    vars.i(variant::Var::dim) = d;
    x[d] = evaluator.number(hook, vars);
  }
}

/// Applies the key and value transforms and RoPE to the vectors of one key.
inline void prepare_key(const Rules& rules, std::int64_t kv_head, std::int64_t pos, std::int64_t rope_pos, double* k, double* v) {
  Evaluator evaluator(rules.params);
  Vars vars;
  vars.i(variant::Var::kv_head) = kv_head;
  vars.i(variant::Var::kv_pos) = pos;
  transform(rules.variant->key, evaluator, vars, rules.head_dim_qk, k);
  transform(rules.variant->value, evaluator, vars, rules.head_dim_vo, v);
  if (rules.variant->rope) rotate(*rules.variant->rope, rules.head_dim_qk, rope_pos, k);
}

inline Vars row_vars(const Row& row) {
  Vars vars;
  vars.i(variant::Var::q_pos) = row.q_pos;
  vars.i(variant::Var::q_idx) = row.q_idx;
  vars.i(variant::Var::q_len) = row.q_len;
  vars.i(variant::Var::kv_len) = row.kv_len;
  vars.i(variant::Var::request) = row.request;
  vars.i(variant::Var::q_head) = row.q_head;
  vars.i(variant::Var::kv_head) = row.kv_head;
  vars.i(variant::Var::q_row) = row.q_row;
  return vars;
}

/// What a sum of q k by Hopper's products of 8-bit floats may lose. Of 32 products and the sum so far all bits below 2^-13 of the largest
/// are dropped, then those of the new sum below 2^-13 of itself. A product has eight bits, so it loses none unless it is below 2^-6 of the
/// largest.
inline double loss_of_bytes(std::span<const double> q, const double* k) {
  constexpr std::size_t kDepth = 32;
  double loss = 0;
  double sum = 0;
  for (std::size_t begin = 0; begin < q.size(); begin += kDepth) {
    const std::size_t end = std::min(q.size(), begin + kDepth);
    double largest = std::fabs(sum);
    for (std::size_t d = begin; d < end; ++d) {
      sum += q[d] * k[d];
      largest = std::max(largest, std::fabs(q[d] * k[d]));
    }
    largest = std::max(largest, std::fabs(sum));
    int lossy = 2;  // the sum, before and after
    for (std::size_t d = begin; d < end; ++d) lossy += q[d] * k[d] != 0 && std::fabs(q[d] * k[d]) < 0x1p-6 * largest ? 1 : 0;
    loss += lossy * 0x1p-13 * largest;
  }
  return loss;
}

/// One row over its keys.
inline RowResult attend(const Rules& rules, const Row& row, std::span<const Key> keys) {
  const Variant& variant = *rules.variant;
  Evaluator evaluator(rules.params);
  Vars vars = row_vars(row);
  std::vector<double> q(row.q, row.q + rules.head_dim_qk);
  transform(variant.query, evaluator, vars, rules.head_dim_qk, q.data());
  if (variant.rope) rotate(*variant.rope, rules.head_dim_qk, row.q_rope_pos, q.data());

  RowResult result;
  const std::size_t dims = static_cast<std::size_t>(rules.head_dim_vo);
  std::vector<double> logits;
  std::vector<const double*> values;
  for (const Key& key : keys) {
    vars.i(variant::Var::kv_pos) = key.pos;
    if (key.masked && rules.mask && !rules.mask(vars)) continue;
    if (key.masked && !rules.mask && variant.mask && !evaluator.boolean(variant.mask, vars)) continue;
    double dot = 0;
    double dot_bound = 0;
    for (int d = 0; d < rules.head_dim_qk; ++d) {
      dot += q[static_cast<std::size_t>(d)] * key.k[d];
      dot_bound += std::fabs(q[static_cast<std::size_t>(d)] * key.k[d]);
    }
    double logit = dot * rules.sm_scale;
    vars.f(variant::Var::score) = logit;
    evaluator.reset();
    if (rules.logits)
      logit = rules.logits(logit, vars);
    else if (variant.logits)
      logit = evaluator.number(variant.logits, vars);
    logits.push_back(logit);
    values.push_back(key.v);
    const double scale = std::fabs(rules.sm_scale);
    result.score_bound = std::max({result.score_bound, dot_bound * scale, std::fabs(logit), evaluator.magnitude()});
    if (rules.bytes) result.score_loss = std::max(result.score_loss, loss_of_bytes(q, key.k) * scale);
  }
  result.num_visible = static_cast<std::int64_t>(logits.size());

  double sink = -std::numeric_limits<double>::infinity();
  if (variant.sink && !rules.partial_state) sink = evaluator.number(variant.sink, vars);
  double top = sink;
  for (double logit : logits) top = std::max(top, logit);
  double denominator = 1;
  if (variant.softmax) {
    denominator = std::isinf(sink) ? 0 : std::exp(sink - top);
    for (double& logit : logits) {
      logit = std::isinf(top) ? 0 : std::exp(logit - top);
      denominator += logit;
    }
    if (denominator > 0)
      result.lse = top + std::log(denominator);
    else
      denominator = 1;
  }
  result.o.assign(dims, 0);
  result.o_bound.assign(dims, 0);
  result.v_bound.assign(dims, 0);
  for (std::size_t j = 0; j < logits.size(); ++j) {
    for (std::size_t d = 0; d < dims; ++d) {
      result.o[d] += logits[j] * values[j][d] / denominator;
      result.o_bound[d] += std::fabs(logits[j] * values[j][d]) / denominator;
      result.v_bound[d] += std::fabs(values[j][d]);
    }
  }
  if (variant.output && !rules.partial_state) {
    transform(variant.output, evaluator, vars, rules.head_dim_vo, result.o.data());
    transform(variant.output, evaluator, vars, rules.head_dim_vo, result.o_bound.data());
    transform(variant.output, evaluator, vars, rules.head_dim_vo, result.v_bound.data());
    for (std::size_t d = 0; d < dims; ++d) result.o_bound[d] = std::max(std::fabs(result.o_bound[d]), std::fabs(result.o[d]));
  }
  return result;
}

struct Tolerance {
  double o_relative = 0;   // of |ref|
  double o_tiny = 0;       // absolute: the subnormal step of the type
  double growth = 0;       // C * eps32
  double weight = 0;       // relative error of a softmax weight: half a step where weights are rounded to bf16 for the second product
  double least = 0;        // of a weight that is too small for that, of the row's largest
  bool byte_sums = false;  // scores have lost RowResult::score_loss at most
};

/// Weights meet V as e4m3, times 2^6: half a step of normal numbers, and of the others.
inline void allow_weights_of_bytes(Tolerance& t) {
  t.weight = 0x1p-4;
  t.least = 0x1p-16;
}

inline Tolerance tolerance(DType o_dtype, int head_dim_qk, std::int64_t num_visible, bool bf16_weights) {
  constexpr double kEps32 = 0x1p-24;
  Tolerance t;
  t.growth = (16 + std::sqrt(static_cast<double>(num_visible)) + std::sqrt(static_cast<double>(head_dim_qk))) * kEps32;
  switch (o_dtype) {
    case DType::e5m2: t.o_relative = 0x1p-3; break;
    case DType::e4m3: t.o_relative = 0x1p-4; break;
    case DType::bf16: t.o_relative = 0x1p-8; break;
    case DType::f16: t.o_relative = 0x1p-10; break;
    default: t.o_relative = 0x1p-22;
  }
  t.weight = bf16_weights ? 0x1p-8 : 0;
  // Codes: of a scale of 1.
  t.o_tiny = o_dtype == DType::e5m2 ? 0x1p-17 : o_dtype == DType::e4m3 ? 0x1p-10 : o_dtype == DType::f16 ? 0x1p-24 : 1e-30;
  return t;
}

inline double o_tolerance(const Tolerance& t, const RowResult& ref, std::size_t d) {
  const double loss = t.byte_sums ? ref.score_loss : 0;
  return t.o_relative * std::fabs(ref.o[d]) + (t.weight + t.growth * (1 + 2 * ref.score_bound) + 2 * loss) * ref.o_bound[d] +
         t.least * std::fabs(ref.v_bound[d]) + t.o_tiny;
}

inline double lse_tolerance(const Tolerance& t, const RowResult& ref) {
  return t.growth * (1 + ref.score_bound + (std::isfinite(ref.lse) ? std::fabs(ref.lse) : 0)) + (t.byte_sums ? ref.score_loss : 0);
}

}  // namespace girih::ref
