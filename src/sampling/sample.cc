// sample(): a worker takes whole rows. Also the functions that write a row for a row, which cut it alike.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/capabilities.h"
#include "base/error.h"
#include "base/numeric.h"
#include "cpu/thread_pool.h"
#include "sampling/check.h"
#include "sampling/row.h"
#include "sampling/sampling_cuda.h"
#include "sampling/workers.h"

namespace girih {
namespace {

using sampling::Row;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

/// One row of sample(), on the CPU.
class Sampler {
 public:
  Sampler(const abi::SampleParams& p, DType type, const sampling::CpuKernels& kernels) : p_(p), type_(type), row_(kernels, p.vocab) {}

  void run(std::int64_t r) {
    const std::int64_t source = p_.indices.rows == nullptr ? r : p_.indices.at(r);
    row_.load(p_.input.data + source * p_.input.row_stride, type_, p_.input.stride, p_.vocab, p_.probs != 0);
    row_.process(p_, r);
    const float temperature = p_.temperature.at(r);
    greedy_ = !(temperature > abi::kArgmaxTemperature);
    temperature_ = greedy_ ? 1 : temperature;
    row_.set_weighting(temperature_);
    const bool empty = !row_.has_mass();
    if (p_.valid != nullptr) p_.valid[r * p_.valid_stride] = empty || row_.has_nan() ? 0 : 1;
    if (empty) return write_empty(r);
    std::int64_t token = 0;
    if (greedy_) {
      token = row_.argmax();
    } else {
      row_.filter({.top_k = p_.top_k.at(r), .top_p = p_.top_p.at(r), .min_p = p_.min_p.at(r), .joint = p_.joint != 0});
      token = row_.draw(p_.random.bits(r, static_cast<std::uint32_t>(abi::Purpose::token)));
    }
    p_.tokens.set(r, 0, token);
    write_logprobs(r, token);
  }

 private:
  void write_empty(std::int64_t r) {
    p_.tokens.set(r, 0, 0);
    if (p_.logprobs.data != nullptr) p_.logprobs.set(r, 0, kNan);
    for (std::int64_t i = 0; i < p_.num_top; ++i) {
      p_.top_tokens.set(r, i, -1);
      p_.top_logprobs.set(r, i, kNan);
    }
  }

  void write_logprobs(std::int64_t r, std::int64_t token) {
    if (p_.logprobs.data == nullptr && p_.num_top == 0) return;
    const bool filtered = p_.filtered_logprobs != 0;
    const std::int64_t num_kept = greedy_ ? 1 : row_.everything() ? p_.vocab : std::ssize(row_.kept());
    const std::uint64_t total = filtered && !greedy_ ? row_.kept_mass() : row_.total();
    const auto logprob = [&](std::int64_t i) { return filtered && greedy_ ? 0.0F : row_.logprob(i, total, temperature_); };
    if (p_.logprobs.data != nullptr) p_.logprobs.set(r, 0, logprob(token));
    if (p_.num_top == 0) return;
    const std::span<const Row::Entry> first = row_.first(p_.num_top);
    for (std::int64_t i = 0; i < p_.num_top; ++i) {
      if (i >= std::ssize(first)) {
        p_.top_tokens.set(r, i, -1);
        p_.top_logprobs.set(r, i, kNan);
        continue;
      }
      const std::int32_t index = first[static_cast<std::size_t>(i)].index;
      p_.top_tokens.set(r, i, index);
      p_.top_logprobs.set(r, i, filtered && i >= num_kept ? kMinusInf : logprob(index));
    }
  }

  const abi::SampleParams& p_;
  DType type_;
  Row row_;
  bool greedy_ = false;
  float temperature_ = 1;
};

void write_float(const abi::RowsOut& out, std::int64_t r, std::int64_t i, float x) {
  std::memcpy(out.data + r * out.row_stride + i * out.stride, &x, sizeof x);
}

/// out = probabilities over the mass that `filters` keep; what is not kept 0.
void renorm_row(Row& row, const abi::SampleParams& p, DType type, std::int64_t r, const sampling::Filters& filters) {
  const unsigned char* source = p.input.data + r * p.input.row_stride;
  const bool off = filters.top_p >= 1 && (filters.top_k <= 0 || filters.top_k >= p.vocab);
  if (off) {
    for (std::int64_t i = 0; i < p.vocab; ++i) write_float(p.out, r, i, load_element(type, source + i * p.input.stride, 0));
    return;
  }
  row.load(source, type, p.input.stride, p.vocab, true);
  row.set_weighting(1);
  if (row.has_mass()) row.filter(filters);
  if (!row.has_mass()) {
    for (std::int64_t i = 0; i < p.vocab; ++i) write_float(p.out, r, i, 0);
    return;
  }
  const float* divided = row.divided(abi::weight_of_mass(row.kept_mass(), row.weighting().reference));
  std::int64_t next = 0;
  for (const std::int32_t i : row.kept()) {
    for (; next < i; ++next) write_float(p.out, r, next, 0);
    write_float(p.out, r, next++, divided[i]);
  }
  for (; next < p.vocab; ++next) write_float(p.out, r, next, 0);
}

void softmax_row(Row& row, const abi::SampleParams& p, DType type, std::int64_t r) {
  row.load(p.input.data + r * p.input.row_stride, type, p.input.stride, p.vocab, false);
  const float temperature = p.temperature.at(r);
  const bool greedy = !(temperature > abi::kArgmaxTemperature);
  row.set_weighting(greedy ? 1 : temperature);
  if (greedy || !row.has_mass()) {
    const std::int64_t top = row.has_mass() ? row.argmax() : -1;
    for (std::int64_t i = 0; i < p.vocab; ++i) write_float(p.out, r, i, i == top ? 1.0F : 0.0F);
    return;
  }
  const float* divided = row.divided(abi::weight_of_mass(row.total(), row.weighting().reference));
  unsigned char* out = p.out.data + r * p.out.row_stride;
  if (p.out.stride == sizeof(float)) {
    std::memcpy(out, divided, static_cast<std::size_t>(p.vocab) * sizeof(float));
  } else {
    for (std::int64_t i = 0; i < p.vocab; ++i) write_float(p.out, r, i, divided[i]);
  }
}

void mask_row(Row& row, const abi::SampleParams& p, DType type, std::int64_t r) {
  const unsigned char* source = p.input.data + r * p.input.row_stride;
  unsigned char* out = p.out.data + r * p.out.row_stride;
  const auto size = static_cast<std::size_t>(bits(type) / 8);
  const auto copy = [&](std::int64_t i) { std::memmove(out + i * p.out.stride, source + i * p.input.stride, size); };
  const auto hide = [&](std::int64_t i) { store_element(type, out + i * p.out.stride, 0, kMinusInf); };
  const std::int64_t k = p.top_k.at(r);
  std::int64_t next = 0;
  if (k <= 0 || k >= p.vocab) {
    for (; next < p.vocab; ++next) copy(next);
    return;
  }
  row.load(source, type, p.input.stride, p.vocab, false);
  row.set_weighting(1);
  if (row.has_mass()) {
    row.filter({.top_k = k});
    for (const std::int32_t i : row.kept()) {
      for (; next < i; ++next) hide(next);
      copy(next++);
    }
  }
  for (; next < p.vocab; ++next) hide(next);
}

}  // namespace

void sample(const Context& context, const SampleArgs& args) {
  const abi::SampleParams p = sampling::check_sample(context, args);
  if (p.rows == 0) return;
  require_backend(context, "sample");
  if (context.device().kind == DeviceKind::cuda) return sampling::sample_on_device(context, p, args.input.dtype, args.stream);
  sampling::for_each_row(
      context, p.rows, [&] { return Sampler(p, args.input.dtype, sampling::cpu_kernels(context.cpu_target())); },
      [](Sampler& sampler, std::int64_t r) { sampler.run(r); });
}

void softmax(const Context& context, const TensorView& logits, const RowFloat& temperature, const TensorView& out, void* stream) {
  abi::SampleParams p = sampling::check_rows(context, {"softmax", "logits", logits, out, false, false, stream});
  p.temperature = sampling::row_float("softmax", "temperature", context, temperature, p.rows, sampling::FloatRule::temperature);
  if (p.rows == 0) return;
  require_backend(context, "softmax");
  if (context.device().kind == DeviceKind::cuda)
    return sampling::rows_on_device(context, sampling::KernelKind::softmax, p, logits.dtype, stream);
  sampling::for_each_row(
      context, p.rows, [&] { return Row(sampling::cpu_kernels(context.cpu_target()), p.vocab); },
      [&](Row& row, std::int64_t r) { softmax_row(row, p, logits.dtype, r); });
}

void top_p_renorm_probs(const Context& context, const TensorView& probs, const RowFloat& top_p, const TensorView& out, void* stream) {
  abi::SampleParams p = sampling::check_rows(context, {"top_p_renorm_probs", "probs", probs, out, true, false, stream});
  p.top_p = sampling::row_float("top_p_renorm_probs", "top_p", context, top_p, p.rows, sampling::FloatRule::top_p);
  if (p.rows == 0) return;
  require_backend(context, "top_p_renorm_probs");
  if (context.device().kind == DeviceKind::cuda)
    return sampling::rows_on_device(context, sampling::KernelKind::top_p_renorm, p, probs.dtype, stream);
  sampling::for_each_row(
      context, p.rows, [&] { return Row(sampling::cpu_kernels(context.cpu_target()), p.vocab); },
      [&](Row& row, std::int64_t r) { renorm_row(row, p, probs.dtype, r, {.top_p = p.top_p.at(r)}); });
}

void top_k_renorm_probs(const Context& context, const TensorView& probs, const RowInt& top_k, const TensorView& out, void* stream) {
  abi::SampleParams p = sampling::check_rows(context, {"top_k_renorm_probs", "probs", probs, out, true, false, stream});
  p.top_k = sampling::row_int("top_k_renorm_probs", "top_k", context, top_k, p.rows);
  if (p.rows == 0) return;
  require_backend(context, "top_k_renorm_probs");
  if (context.device().kind == DeviceKind::cuda)
    return sampling::rows_on_device(context, sampling::KernelKind::top_k_renorm, p, probs.dtype, stream);
  sampling::for_each_row(
      context, p.rows, [&] { return Row(sampling::cpu_kernels(context.cpu_target()), p.vocab); },
      [&](Row& row, std::int64_t r) { renorm_row(row, p, probs.dtype, r, {.top_k = p.top_k.at(r)}); });
}

void top_k_mask_logits(const Context& context, const TensorView& logits, const RowInt& top_k, const TensorView& out, void* stream) {
  abi::SampleParams p = sampling::check_rows(context, {"top_k_mask_logits", "logits", logits, out, false, true, stream});
  p.top_k = sampling::row_int("top_k_mask_logits", "top_k", context, top_k, p.rows);
  if (p.rows == 0) return;
  require_backend(context, "top_k_mask_logits");
  if (context.device().kind == DeviceKind::cuda)
    return sampling::rows_on_device(context, sampling::KernelKind::top_k_mask, p, logits.dtype, stream);
  sampling::for_each_row(
      context, p.rows, [&] { return Row(sampling::cpu_kernels(context.cpu_target()), p.vocab); },
      [&](Row& row, std::int64_t r) { mask_row(row, p, logits.dtype, r); });
}

}  // namespace girih
