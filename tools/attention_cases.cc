// The table of attention_cases.h. Sizes are those of serving: decode of few and of many requests, long and short prompts.
#include "tools/attention_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "girih/tensor.h"

namespace girih::tools {
namespace {

using Lens = std::vector<std::int64_t>;

AttentionSpec make_spec(int num_qo_heads, int num_kv_heads, DType q_dtype, DType kv_dtype) {
  AttentionSpec spec;
  spec.num_qo_heads = num_qo_heads;
  spec.num_kv_heads = num_kv_heads;
  spec.head_dim_qk = 128;
  spec.head_dim_vo = 128;
  spec.q_dtype = spec.o_dtype = q_dtype;
  spec.k_dtype = spec.v_dtype = kv_dtype;
  if (bits(kv_dtype) == 8) spec.k_scale = spec.v_scale = ScaleGranularity::tensor;
  return spec;
}

AttentionSpec make_mla_spec() {
  AttentionSpec spec = make_spec(128, 1, DType::bf16, DType::bf16);
  spec.head_dim_qk = 576;
  spec.head_dim_vo = 512;
  spec.v_is_k = true;
  return spec;
}

/// `n` lengths at even quantiles of a distribution given by points (quantile, length), linear between them.
Lens lengths_from_quantiles(const std::vector<std::pair<double, double>>& points, int n) {
  Lens lens;
  for (int i = 0; i < n; ++i) {
    const double q = (i + 0.5) / n;
    std::size_t upper = 1;
    while (upper + 1 < points.size() && points[upper].first < q) ++upper;
    const auto& [q0, l0] = points[upper - 1];
    const auto& [q1, l1] = points[upper];
    lens.push_back(std::llround(l0 + (l1 - l0) * (q - q0) / (q1 - q0)));
  }
  return lens;
}

/// Prompt lengths of the Azure LLM inference trace 2023 (conversation): p50 1,020, p90 2,734, p99 4,142 tokens.
Lens azure_conversation_lengths(int n) { return lengths_from_quantiles({{0, 16}, {0.5, 1020}, {0.9, 2734}, {0.99, 4142}, {1, 4298}}, n); }

void add_decode(std::vector<AttentionCase>& cases) {
  struct Heads {
    const char* name;
    int qo, kv;
  };
  struct Types {
    const char* name;
    DType q, kv;
  };
  struct Size {
    int batch;
    std::int64_t kv_len;
  };
  for (const Heads heads : {Heads{"mha", 32, 32}, Heads{"gqa", 32, 8}}) {
    for (const Types types : {Types{"bf16", DType::bf16, DType::bf16}, Types{"f32", DType::f32, DType::f32},
                              Types{"e4m3", DType::bf16, DType::e4m3}, Types{"i8", DType::bf16, DType::i8}}) {
      for (const Size size : {Size{1, 8192}, Size{2, 4096}, Size{16, 2048}}) {
        cases.push_back({.name = fmt::format("decode-{}-{}-b{}-kv{}", heads.name, types.name, size.batch, size.kv_len),
                         .spec = make_spec(heads.qo, heads.kv, types.q, types.kv),
                         .qo_lens = Lens(static_cast<std::size_t>(size.batch), 1),
                         .kv_lens = Lens(static_cast<std::size_t>(size.batch), size.kv_len)});
      }
    }
  }
  const Lens skewed = azure_conversation_lengths(32);
  std::int64_t total = 0;
  for (std::int64_t n : skewed) total += n;
  for (const Heads heads : {Heads{"mha", 32, 32}, Heads{"gqa", 32, 8}}) {
    const AttentionSpec spec = make_spec(heads.qo, heads.kv, DType::bf16, DType::bf16);
    cases.push_back(
        {.name = fmt::format("decode-{}-bf16-skewed-b32", heads.name), .spec = spec, .qo_lens = Lens(32, 1), .kv_lens = skewed});
    cases.push_back({.name = fmt::format("decode-{}-bf16-uniform-b32", heads.name),
                     .spec = spec,
                     .qo_lens = Lens(32, 1),
                     .kv_lens = Lens(32, total / 32)});
  }
  cases.push_back({.name = "decode-mla-bf16-b2-kv2048", .spec = make_mla_spec(), .qo_lens = Lens(2, 1), .kv_lens = Lens(2, 2048)});
}

void add_prefill(std::vector<AttentionCase>& cases) {
  struct Row {
    const char* name;
    DType dtype;
    std::int64_t len;
    const char* mask;
    const char* logits;
  };
  constexpr Row kRows[] = {
      {"prefill-bf16-causal-2048", DType::bf16, 2048, "causal", "none"},
      {"prefill-bf16-causal-8192", DType::bf16, 8192, "causal", "none"},
      {"prefill-bf16-full-2048", DType::bf16, 2048, "full", "none"},
      {"prefill-bf16-full-8192", DType::bf16, 8192, "full", "none"},
      {"prefill-f32-causal-2048", DType::f32, 2048, "causal", "none"},
      {"prefill-f32-causal-8192", DType::f32, 8192, "causal", "none"},
      {"prefill-f32-full-2048", DType::f32, 2048, "full", "none"},
      {"prefill-bf16-window1024-16384", DType::bf16, 16384, "sliding_window:size=1024", "none"},
      {"prefill-bf16-document8-2048", DType::bf16, 2048, "document:size=256", "none"},
      {"prefill-bf16-document8-8192", DType::bf16, 8192, "document:size=1024", "none"},
      {"prefill-bf16-softcap-2048", DType::bf16, 2048, "causal", "soft_cap:cap=50"},
      {"prefill-bf16-alibi-2048", DType::bf16, 2048, "causal", "alibi"},
  };
  for (const Row& row : kRows) {
    cases.push_back({.name = row.name,
                     .spec = make_spec(8, 8, row.dtype, row.dtype),
                     .qo_lens = {row.len},
                     .kv_lens = {row.len},
                     .mask = row.mask,
                     .logits = row.logits});
  }
  cases.push_back(
      {.name = "append-gqa-bf16-64-kv4096", .spec = make_spec(32, 8, DType::bf16, DType::bf16), .qo_lens = {64}, .kv_lens = {4096}});
}

void add_shared_prefix(std::vector<AttentionCase>& cases) {
  AttentionCase c{.name = "prefix4096-gqa-bf16-b16-flat",
                  .spec = make_spec(32, 8, DType::bf16, DType::bf16),
                  .qo_lens = Lens(16, 1),
                  .kv_lens = Lens(16, 4096 + 128),
                  .shared_prefix = 4096};
  cases.push_back(c);
  c.name = "prefix4096-gqa-bf16-b16-cascade";
  c.cascade = true;
  cases.push_back(c);
}

}  // namespace

std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases;
  add_decode(cases);
  add_prefill(cases);
  add_shared_prefix(cases);
  return cases;
}

double useful_flops(const AttentionCase& c) {
  const NamedCall mask = parse_call(c.mask, c.name);
  double pairs = 0;
  for (std::size_t r = 0; r < c.qo_lens.size(); ++r) pairs += visible_pairs(mask, c.qo_lens[r], c.kv_lens[r]);
  return pairs * c.spec.num_qo_heads * 2.0 * (c.spec.head_dim_qk + c.spec.head_dim_vo);
}

double useful_bytes(const AttentionCase& c) {
  double keys = static_cast<double>(c.shared_prefix);
  double rows = 0;
  for (std::size_t r = 0; r < c.qo_lens.size(); ++r) {
    keys += static_cast<double>(c.kv_lens[r] - c.shared_prefix);
    rows += static_cast<double>(c.qo_lens[r]);
  }
  const double key_bytes = static_cast<double>(bytes(c.spec.k_dtype, c.spec.head_dim_qk)) +
                           (c.spec.v_is_k ? 0.0 : static_cast<double>(bytes(c.spec.v_dtype, c.spec.head_dim_vo)));
  const double row_bytes = static_cast<double>(bytes(c.spec.q_dtype, c.spec.head_dim_qk) + bytes(c.spec.o_dtype, c.spec.head_dim_vo));
  return keys * c.spec.num_kv_heads * key_bytes + rows * c.spec.num_qo_heads * row_bytes;
}

}  // namespace girih::tools
