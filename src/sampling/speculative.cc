// chain_speculative_sample(): a request's chain of drafts is walked until one is not accepted; then one row is drawn from.
#include <bit>

#include "base/capabilities.h"
#include "base/numeric.h"
#include "sampling/check.h"
#include "sampling/row.h"
#include "sampling/sampling_cuda.h"
#include "sampling/workers.h"

namespace girih {
namespace {

using sampling::Row;

/// One worker's requests.
class Chain {
 public:
  Chain(const abi::SpeculativeParams& p, DType type, const sampling::CpuKernels& kernels) : p_(p), type_(type), row_(kernels, p.vocab) {}

  void run(std::int64_t b) {
    const std::int64_t length = p_.lengths.at(b);
    std::int64_t i = 0;
    while (i < length && accepts(b, i)) ++i;
    for (std::int64_t j = 0; j < i; ++j) p_.tokens.set(b, j, draft_token(b, j));
    p_.tokens.set(b, i, p_.greedy != 0 ? argmax(b, i) : next_token(b, i, i < length));
    for (std::int64_t j = i + 1; j <= p_.n; ++j) p_.tokens.set(b, j, -1);
    if (p_.accepted.data != nullptr) p_.accepted.set(b, 0, i);
  }

 private:
  std::int32_t draft_token(std::int64_t b, std::int64_t i) const {
    return p_.draft_tokens[b * p_.draft_tokens_row_stride + i * p_.draft_tokens_stride];
  }
  const unsigned char* target(std::int64_t b, std::int64_t i) const {
    return p_.target.data + b * p_.target.row_stride + i * p_.target_place_stride;
  }
  const unsigned char* draft(std::int64_t b, std::int64_t i) const {
    return p_.draft.data + b * p_.draft.row_stride + i * p_.draft_place_stride;
  }

  bool accepts(std::int64_t b, std::int64_t i) {
    const std::int32_t x = draft_token(b, i);
    if (p_.greedy != 0) return argmax(b, i) == x;
    const float p = load_element(type_, target(b, i) + x * p_.target.stride, 0);
    const float q = p_.draft.data == nullptr ? 1.0F : load_element(type_, draft(b, i) + x * p_.draft.stride, 0);
    return abi::accepts(std::bit_cast<std::uint32_t>(p), std::bit_cast<std::uint32_t>(q),
                        p_.random.bits(b, static_cast<std::uint32_t>(abi::Purpose::accept) + static_cast<std::uint32_t>(i)));
  }

  /// The first of the order; 0 where nothing has mass.
  std::int64_t argmax(std::int64_t b, std::int64_t i) {
    load_target(b, i);
    return row_.has_mass() ? row_.argmax() : 0;
  }

  void load_target(std::int64_t b, std::int64_t i) {
    row_.load(target(b, i), type_, p_.target.stride, p_.vocab, true);
    row_.set_weighting(1);
  }

  /// A draw from the residual of a draft that was not accepted, or from the target after the last one that was.
  std::int64_t next_token(std::int64_t b, std::int64_t i, bool residual) {
    load_target(b, i);
    if (residual) {
      if (p_.draft.data == nullptr) {
        row_.remove(draft_token(b, i));
      } else {
        row_.subtract(draft(b, i), type_, p_.draft.stride);
      }
      row_.set_weighting(1);
      if (!row_.has_mass()) load_target(b, i);
    }
    if (!row_.has_mass()) return 0;
    row_.filter({});
    return row_.draw(p_.random.bits(b, static_cast<std::uint32_t>(residual ? abi::Purpose::residual : abi::Purpose::token)));
  }

  const abi::SpeculativeParams& p_;
  DType type_;
  Row row_;
};

}  // namespace

void chain_speculative_sample(const Context& context, const SpeculativeArgs& args) {
  const abi::SpeculativeParams p = sampling::check_speculative(context, args);
  if (p.batch == 0) return;
  require_backend(context, "chain_speculative_sample");
  if (context.device().kind == DeviceKind::cuda) return sampling::speculative_on_device(context, p, args.target_probs.dtype, args.stream);
  sampling::for_each_row(
      context, p.batch, [&] { return Chain(p, args.target_probs.dtype, sampling::cpu_kernels(context.cpu_target())); },
      [](Chain& chain, std::int64_t b) { chain.run(b); });
}

}  // namespace girih
