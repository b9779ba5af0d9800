// The attention cases of real serving, as data: decode of few and many requests, long and short prompts, shared prefixes, model shapes.
// `girih bench attention` times every one at scale 1; a test checks every one, scaled down, against the reference. Data alone: variants
// are named calls ("sliding_window:size=1024"), so that a program in another language can set up the same problem from a list of cases.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "girih/attention.h"
#include "girih/tensor.h"

namespace girih::cases {

inline constexpr std::int64_t kServingPageSize = 16;

struct ServingCase {
  std::string name;
  AttentionSpec spec;                              ///< without variant
  std::vector<std::int64_t> qo_lens{}, kv_lens{};  ///< per request
  std::string mask = "causal", logits = "none";    ///< calls of tools/named_variant.h
  bool sinks = false;                              ///< a learned logit per query head
  bool packed_mask = false;                        ///< the mask as packed bits of run time
  std::int64_t shared_prefix = 0;                  ///< the first keys of every request lie in the same pages (a multiple of the page size)
  std::int64_t pool = 0;                           ///< > 0: a request's keys are tokens drawn out of so many (page_size 1)
  bool cascade = false;                            ///< the shared prefix is a segment of its own, one group over all requests
  std::vector<std::string> twins{};                ///< cases to be timed in turns with this one: a ratio to them is of interest
  bool scaling = false;                            ///< to be timed with one worker, too
  std::int64_t page_size = kServingPageSize;       ///< or kEndlessPage: a ragged store
  std::string family{};                            ///< on CUDA: kernels that the table does not choose by itself
};

/// The logit of every sink.
inline constexpr float kServingSink = 0.5F;

/// Makes the table at one scale: lengths above 1, windows and documents are multiplied by it (at least 1).
class ServingTable {
 public:
  explicit ServingTable(double scale) : scale_(scale) {
    add_decode();
    add_prefill();
    add_shared_prefix();
    add_models();
  }
  std::vector<ServingCase> cases() && { return std::move(cases_); }

 private:
  using Lens = std::vector<std::int64_t>;
  struct Heads {
    const char* name;
    int qo, kv;
  };
  static constexpr std::array kHeads{Heads{"mha", 32, 32}, Heads{"gqa", 32, 8}};

  std::int64_t scaled(std::int64_t n) const { return n > 1 ? std::max<std::int64_t>(1, std::llround(static_cast<double>(n) * scale_)) : n; }

  static AttentionSpec make_spec(int num_qo_heads, int num_kv_heads, int head_dim, DType q_dtype = DType::bf16,
                                 DType kv_dtype = DType::bf16) {
    AttentionSpec spec;
    spec.num_qo_heads = num_qo_heads;
    spec.num_kv_heads = num_kv_heads;
    spec.head_dim_qk = spec.head_dim_vo = head_dim;
    spec.q_dtype = spec.o_dtype = q_dtype;
    spec.k_dtype = spec.v_dtype = kv_dtype;
    if (bits(kv_dtype) == 8) spec.k_scale = spec.v_scale = ScaleGranularity::tensor;
    return spec;
  }

  ServingCase& add(std::string name, const AttentionSpec& spec, Lens qo_lens, Lens kv_lens) {
    for (std::int64_t& n : qo_lens) n = scaled(n);
    for (std::int64_t& n : kv_lens) n = scaled(n);
    cases_.push_back({.name = std::move(name), .spec = spec, .qo_lens = std::move(qo_lens), .kv_lens = std::move(kv_lens)});
    return cases_.back();
  }
  ServingCase& add_decode(std::string name, const AttentionSpec& spec, Lens kv_lens) {
    Lens ones(kv_lens.size(), 1);
    return add(std::move(name), spec, std::move(ones), std::move(kv_lens));
  }

  /// Prompt lengths of the Azure LLM inference trace 2023 (conversation), p50 1,020, p90 2,734, p99 4,142 tokens: at even quantiles of
  /// the distribution that is linear between those.
  static Lens azure_conversation_lengths(int n) {
    constexpr std::array<std::pair<double, double>, 5> kPoints{{{0, 16}, {0.5, 1020}, {0.9, 2734}, {0.99, 4142}, {1, 4298}}};
    Lens lens;
    for (int i = 0; i < n; ++i) {
      const double q = (i + 0.5) / n;
      std::size_t upper = 1;
      while (upper + 1 < kPoints.size() && kPoints[upper].first < q) ++upper;
      const auto& [q0, l0] = kPoints[upper - 1];
      const auto& [q1, l1] = kPoints[upper];
      lens.push_back(std::llround(l0 + (l1 - l0) * (q - q0) / (q1 - q0)));
    }
    return lens;
  }

  void add_decode() {
    struct Types {
      const char* name;
      DType q, kv;
    };
    struct Size {
      std::size_t batch;
      std::int64_t kv_len;
    };
    for (const Heads& heads : kHeads) {
      for (const Types& types : {Types{"bf16", DType::bf16, DType::bf16}, Types{"f32", DType::f32, DType::f32},
                                 Types{"e4m3", DType::bf16, DType::e4m3}, Types{"i8", DType::bf16, DType::i8}}) {
        for (const Size& size : {Size{1, 8192}, Size{2, 4096}, Size{16, 2048}}) {
          ServingCase& c = add_decode(fmt::format("decode-{}-{}-b{}-kv{}", heads.name, types.name, size.batch, size.kv_len),
                                      make_spec(heads.qo, heads.kv, 128, types.q, types.kv), Lens(size.batch, size.kv_len));
          if (bits(types.kv) == 8) c.twins = {fmt::format("decode-{}-bf16-b{}-kv{}", heads.name, size.batch, size.kv_len)};
        }
      }
    }
    const Lens skewed = azure_conversation_lengths(32);
    std::int64_t total = 0;
    for (std::int64_t n : skewed) total += n;
    for (const Heads& heads : kHeads) {
      const AttentionSpec spec = make_spec(heads.qo, heads.kv, 128);
      const std::string uniform = fmt::format("decode-{}-bf16-uniform-b32", heads.name);
      add_decode(fmt::format("decode-{}-bf16-skewed-b32", heads.name), spec, skewed).twins = {uniform};
      add_decode(uniform, spec, Lens(32, total / 32));
    }
    AttentionSpec mla = make_spec(128, 1, 576);
    mla.head_dim_vo = 512;
    mla.v_is_k = true;
    mla.sm_scale = 1 / std::sqrt(192.0);
    add_decode("decode-mla-bf16-b2-kv2048", mla, Lens(2, 2048));
    add_decode("decode-mla-bf16-b16-kv2048", mla, Lens(16, 2048));
  }

  void add_prefill() {
    const std::string window = fmt::format("sliding_window:size={}", scaled(1024));
    const auto documents = [this](std::int64_t len) { return fmt::format("document:size={}", scaled(len) / 8); };
    struct Row {
      const char* name;
      DType dtype;
      std::int64_t len;
      std::string mask, logits;
      std::vector<std::string> twins;
      bool scaling;
    };
    const std::vector<Row> rows{
        {"prefill-bf16-causal-2048", DType::bf16, 2048, "causal", "none", {}, true},
        {"prefill-bf16-causal-8192", DType::bf16, 8192, "causal", "none", {"prefill-bf16-full-8192"}, false},
        {"prefill-bf16-causal-16384", DType::bf16, 16384, "causal", "none", {}, false},
        {"prefill-bf16-full-2048", DType::bf16, 2048, "full", "none", {}, true},
        {"prefill-bf16-full-8192", DType::bf16, 8192, "full", "none", {}, false},
        {"prefill-f32-causal-2048", DType::f32, 2048, "causal", "none", {}, true},
        {"prefill-f32-causal-8192", DType::f32, 8192, "causal", "none", {}, false},
        {"prefill-f32-full-2048", DType::f32, 2048, "full", "none", {}, true},
        {"prefill-bf16-window1024-16384", DType::bf16, 16384, window, "none", {"prefill-bf16-causal-16384"}, false},
        {"prefill-bf16-document8-2048",
         DType::bf16,
         2048,
         documents(2048),
         "none",
         {"prefill-bf16-full-2048", "prefill-bf16-causal-2048"},
         false},
        {"prefill-bf16-document8-8192",
         DType::bf16,
         8192,
         documents(8192),
         "none",
         {"prefill-bf16-full-8192", "prefill-bf16-causal-8192"},
         false},
        {"prefill-bf16-softcap-2048", DType::bf16, 2048, "causal", "soft_cap:cap=50", {"prefill-bf16-causal-2048"}, false},
        {"prefill-bf16-alibi-2048", DType::bf16, 2048, "causal", "alibi", {"prefill-bf16-causal-2048"}, false},
    };
    for (const Row& row : rows) {
      ServingCase& c = add(row.name, make_spec(8, 8, 128, row.dtype, row.dtype), {row.len}, {row.len});
      c.mask = row.mask;
      c.logits = row.logits;
      c.twins = row.twins;
      c.scaling = row.scaling;
    }
    add("append-gqa-bf16-64-kv4096", make_spec(32, 8, 128), {64}, {4096});
    add("mixed-gqa-bf16-b8", make_spec(32, 8, 128), {1, 1, 1, 1, 1, 1, 1, 512}, {1024, 2048, 4096, 700, 333, 1800, 900, 512});
  }

  void add_shared_prefix() {
    for (bool cascade : {false, true}) {
      ServingCase& c = add_decode(cascade ? "prefix4096-gqa-bf16-b16-cascade" : "prefix4096-gqa-bf16-b16-flat", make_spec(32, 8, 128),
                                  Lens(16, 4096 + 128));
      c.shared_prefix = scaled(4096) / kServingPageSize * kServingPageSize;
      c.cascade = cascade;
      if (cascade) c.twins = {"prefix4096-gqa-bf16-b16-flat"};
    }
  }

  /// What published models add to the above: more query heads per KV head, windows over long decodes, other head dims, caps, sinks.
  void add_models() {
    const Lens lens{512, 1024, 2048, 4096, 700, 1500, 3000, 8192, 100, 1100, 2600, 640, 900, 5000, 1800, 333};
    add_decode("decode-llama3-70b-b16", make_spec(64, 8, 128), lens);
    add_decode("decode-mistral-7b-b16", make_spec(32, 8, 128), lens).mask = fmt::format("sliding_window:size={}", scaled(4096));
    ServingCase& oss = add_decode("decode-gpt-oss-b16", make_spec(64, 8, 64), lens);
    oss.mask = fmt::format("sliding_window:size={}", scaled(128));
    oss.sinks = true;
    add("prefill-gemma2-9b-1024", make_spec(16, 8, 256), {1024}, {1024}).logits = "soft_cap:cap=50";
  }

  double scale_;
  std::vector<ServingCase> cases_;
};

inline void PrintTo(const ServingCase& c, std::ostream* out) { *out << c.name; }

inline std::vector<ServingCase> serving_cases(double scale = 1) { return ServingTable(scale).cases(); }

}  // namespace girih::cases
