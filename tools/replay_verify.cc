// Double-precision check of replay samples (replay_verify.h).
#include "tools/replay_verify.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace girih::tools {
namespace {

/// Half a unit in the last place of the type, relative.
double half_ulp(DType dtype) {
  switch (dtype) {
    case DType::f32: return 0x1.0p-24;
    case DType::f16: return 0x1.0p-11;
    default: return 0x1.0p-8;  // bf16: 8 bits of precision, so 2^-9; doubled for the rounding of the reference's neighbour
  }
}

/// How far a stored element may be from the one appended, relative to itself and to the largest of its row.
struct StoredTolerance {
  double relative = 0;
  double of_largest = 0;
};
StoredTolerance stored_tolerance(DType dtype) {
  switch (dtype) {
    case DType::e4m3: return {0x1.0p-4, 0x1.0p-10};  // 3 + 1 bits; the second is for subnormals at the tensor's scale
    case DType::e5m2: return {0x1.0p-3, 0x1.0p-10};
    case DType::i8: return {0, 0.51 / 127};
    case DType::nvfp4: return {0, 0.27};  // half the gap from 4 to 6 over 6, and the rounding of the scale
    case DType::mxfp4: return {0, 0.34};  // a power-of-two scale: numbers up to 8 saturate at 6
    default: return {0, 0};
  }
}

struct Reference {
  std::vector<double> o;
  std::vector<double> magnitude;  // sum of weight * |v|: what the error of weights scales with
  double lse = 0;
};

}  // namespace

Verifier::Verifier(const ModelPreset& model, const RandomRows& rows, std::vector<float> sinks, std::int64_t page_size,
                   std::int64_t requested)
    : model_(model), rows_(rows), sinks_(std::move(sinks)), page_size_(page_size) {
  result_.requested = requested;
}

double Verifier::stored_ratio(const VerifySample& sample, const AttentionSpec& spec, const LayerPool& pool, std::int64_t position) const {
  const RunningRequest& running = *sample.entry->running;
  const int kv_head = sample.head / (spec.num_qo_heads / spec.num_kv_heads);
  const std::int64_t page = running.pages[position / page_size_];
  const std::int64_t token = position % page_size_;
  double worst = 0;
  const auto compare = [&](RowKind kind, DType dtype, int width) {
    const std::byte* appended = rows_.row(kind, running, position, kv_head);
    double largest = 0;
    for (int d = 0; d < width; ++d) largest = std::max(largest, std::abs(element(appended, rows_.dtype(), d)));
    const StoredTolerance tolerance = stored_tolerance(dtype);
    for (int d = 0; d < width; ++d) {
      const double expected = element(appended, rows_.dtype(), d);
      const double found = kind == RowKind::key ? pool.k(page, token, kv_head, d) : pool.v(page, token, kv_head, d);
      const double allowed = tolerance.relative * std::abs(expected) + tolerance.of_largest * largest;
      const double error = std::abs(found - expected);
      if (error > 0 || std::isnan(error)) worst = std::max(worst, error <= allowed ? error / allowed : std::max(2.0, error / allowed));
    }
  };
  compare(RowKind::key, spec.k_dtype, spec.head_dim_qk);
  if (!spec.v_is_k) compare(RowKind::value, spec.v_dtype, spec.head_dim_vo);
  return worst;
}

void Verifier::check(const VerifySample& sample, const AttentionSpec& spec, std::int64_t window, const LayerPool& pool) {
  const RunningRequest& running = *sample.entry->running;
  const int kv_head = sample.head / (spec.num_qo_heads / spec.num_kv_heads);
  const double sm_scale = spec.sm_scale > 0 ? spec.sm_scale : 1 / std::sqrt(static_cast<double>(spec.head_dim_qk));
  const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, sample.position - window + 1) : 0;
  const std::int64_t count = sample.position + 1 - first;

  std::vector<double> q(spec.head_dim_qk);
  for (int d = 0; d < spec.head_dim_qk; ++d) q[d] = element(sample.q, spec.q_dtype, d);
  std::vector<double> logits(count);
  double largest = sinks_.empty() ? -std::numeric_limits<double>::infinity() : sinks_[sample.head];
  double stored = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t page = running.pages[(first + i) / page_size_];
    const std::int64_t token = (first + i) % page_size_;
    double score = 0;
    for (int d = 0; d < spec.head_dim_qk; ++d) score += q[d] * pool.k(page, token, kv_head, d);
    score *= sm_scale;
    if (model_.soft_cap > 0) score = model_.soft_cap * std::tanh(score / model_.soft_cap);
    logits[i] = score;
    largest = std::max(largest, score);
    stored = std::max(stored, stored_ratio(sample, spec, pool, first + i));
  }
  Reference reference{.o = std::vector<double>(spec.head_dim_vo), .magnitude = std::vector<double>(spec.head_dim_vo)};
  double denominator = sinks_.empty() ? 0 : std::exp(sinks_[sample.head] - largest);
  for (double logit : logits) denominator += std::exp(logit - largest);
  for (std::int64_t i = 0; i < count; ++i) {
    const double weight = std::exp(logits[i] - largest) / denominator;
    const std::int64_t page = running.pages[(first + i) / page_size_];
    const std::int64_t token = (first + i) % page_size_;
    for (int d = 0; d < spec.head_dim_vo; ++d) {
      const double v = pool.v(page, token, kv_head, d);
      reference.o[d] += weight * v;
      reference.magnitude[d] += weight * std::abs(v);
    }
  }
  reference.lse = largest + std::log(denominator);

  // Weights and sums are f32: 2^-14 of the summed magnitudes covers them at these lengths. Half types may round weights to their type.
  const double of_magnitude = spec.o_dtype == DType::f32 ? 0x1.0p-14 : half_ulp(spec.o_dtype);
  const double lse_error = std::abs(sample.lse - reference.lse);
  double ratio = lse_error / (0x1.0p-13 * std::max(1.0, std::abs(reference.lse)));
  double error = 0;
  bool finite = std::isfinite(sample.lse);
  for (int d = 0; d < spec.head_dim_vo; ++d) {
    const double o = element(sample.o, spec.o_dtype, d);
    const double difference = std::abs(o - reference.o[d]);
    finite = finite && std::isfinite(o);
    error = std::max(error, difference);
    ratio = std::max(ratio, difference / (half_ulp(spec.o_dtype) * std::abs(reference.o[d]) + of_magnitude * reference.magnitude[d]));
  }
  if (!finite) ratio = std::numeric_limits<double>::infinity();
  ++result_.checked;
  if (!(ratio <= 1 && stored <= 1)) ++result_.failed;
  result_.max_error = std::max(result_.max_error, error);
  result_.max_lse_error = std::max(result_.max_lse_error, lse_error);
  result_.max_stored_ratio = std::max(result_.max_stored_ratio, stored);
  if (ratio >= result_.max_ratio) {
    result_.max_ratio = ratio;
    result_.worst = fmt::format("step {}, request {}, position {}, layer {}, head {}", sample.step, running.index, sample.position,
                                sample.layer, sample.head);
  }
}

}  // namespace girih::tools
