// Variants by name, for the command line, batch files and benchmark cases: a mask and a logits rule, each a NamedCall, become the
// library's expressions together with the values of their parameters.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "girih/variant.h"
#include "tools/lengths.h"

namespace girih::tools {

/// A Variant and what its parameters point to. Movable, not copyable: `plan_params` and `run_params` view the arrays.
struct NamedVariant {
  Variant variant;
  std::vector<std::int32_t> i32;     ///< "document_id" or "prefix_len"
  std::vector<float> f32;            ///< "alibi_slopes"
  std::vector<float> sinks;          ///< "sinks"
  std::vector<std::uint8_t> bits;    ///< "custom_mask"
  std::vector<std::int64_t> starts;  ///< "custom_mask_start"
  std::vector<ParamValue> plan_params;
  std::vector<ParamValue> run_params;

  NamedVariant() = default;
  NamedVariant(NamedVariant&&) = default;
  NamedVariant& operator=(NamedVariant&&) = default;
};

/// What parameter arrays are sized by.
struct VariantShape {
  int num_qo_heads = 1;
  std::int64_t num_requests = 0;
  std::int64_t max_kv_len = 0;  ///< positions are below it
};

/// Masks: full, causal, window (left, right), sliding_window (size), chunked_local (size), streaming (first, left), prefix_lm (prefix_len:
/// one or one per request), document (size, or lens). Logits: none, soft_cap (cap), alibi, sigmoid (bias; no softmax).
/// Throws invalid_argument for an unknown name or argument; `mask_what` and `logits_what` open the messages.
NamedVariant make_variant(const NamedCall& mask, const NamedCall& logits, const VariantShape& shape, std::string_view mask_what = "--mask",
                          std::string_view logits_what = "--logits");

/// Gives the variant a learned logit per query head that joins the softmax's denominator.
void add_sinks(NamedVariant& named, std::vector<float> sinks);

/// Gives the mask as packed bits of run time, which prove nothing, in place of its expression.
void pack_mask(NamedVariant& named, const NamedCall& mask, std::span<const std::int64_t> qo_lens, std::span<const std::int64_t> kv_lens);

/// Keys that the mask lets a request's rows see, summed over its rows (positions bottom-right aligned).
double visible_pairs(const NamedCall& mask, std::int64_t qo_len, std::int64_t kv_len);
/// Keys that at least one of its rows sees.
double visible_keys(const NamedCall& mask, std::int64_t qo_len, std::int64_t kv_len);

}  // namespace girih::tools
