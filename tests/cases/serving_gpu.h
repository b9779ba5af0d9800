// The attention cases that `girih bench attention --backend cuda` times: what a GPU serves, at sizes that fill one. Data alone, as
// serving.h. Lengths: all equal, uniform in [mean / 2, 3 mean / 2), or by Zipf's law (request r has 1/r of the first's keys).
#pragma once

#include <algorithm>
#include <random>
#include <string_view>

#include "serving.h"

namespace girih::cases {

class GpuServingTable {
 public:
  GpuServingTable() {
    add_decode();
    add_prefill();
    add_mla();
    add_shared_prefix();
    add_variants();
    add_mma();
  }
  std::vector<ServingCase> cases() && { return std::move(cases_); }

 private:
  using Lens = std::vector<std::int64_t>;

  static Lens uniform(std::size_t batch, std::int64_t mean) {
    std::mt19937_64 random(1);
    Lens lens;
    for (std::size_t r = 0; r < batch; ++r)
      lens.push_back(mean / 2 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(mean)));
    return lens;
  }
  static Lens zipf(std::size_t batch, std::int64_t mean) {
    double total = 0;
    for (std::size_t r = 1; r <= batch; ++r) total += 1.0 / static_cast<double>(r);
    Lens lens;
    for (std::size_t r = 1; r <= batch; ++r) {
      const double share = static_cast<double>(mean) * static_cast<double>(batch) / static_cast<double>(r) / total;
      lens.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(share)));
    }
    return lens;
  }
  static AttentionSpec spec_of(int qo_heads, int kv_heads, int head_dim, DType kv = DType::bf16) {
    AttentionSpec spec;
    spec.num_qo_heads = qo_heads;
    spec.num_kv_heads = kv_heads;
    spec.head_dim_qk = spec.head_dim_vo = head_dim;
    spec.k_dtype = spec.v_dtype = kv;
    if (bits(kv) == 8) spec.k_scale = spec.v_scale = ScaleGranularity::tensor;
    return spec;
  }
  ServingCase& add(std::string name, const AttentionSpec& spec, Lens qo_lens, Lens kv_lens, std::int64_t page_size = kServingPageSize) {
    cases_.push_back({.name = std::move(name), .spec = spec, .qo_lens = std::move(qo_lens), .kv_lens = std::move(kv_lens)});
    cases_.back().page_size = page_size;
    return cases_.back();
  }
  ServingCase& add_decode(std::string name, const AttentionSpec& spec, Lens kv_lens, std::int64_t page_size = kServingPageSize) {
    Lens ones(kv_lens.size(), 1);
    return add(std::move(name), spec, std::move(ones), std::move(kv_lens), page_size);
  }

  void add_lists(std::string name, const AttentionSpec& spec, Lens counts, std::int64_t pool) {
    ServingCase& c = add_decode(std::move(name), spec, std::move(counts), 1);
    c.pool = pool;
    c.mask = "full";
  }
  /// A case from above by a family that the table does not choose.
  void add_again(std::string_view name, std::string family) {
    ServingCase c = *std::find_if(cases_.begin(), cases_.end(), [&](const ServingCase& other) { return other.name == name; });
    c.name += "-" + family;
    c.family = std::move(family);
    cases_.push_back(std::move(c));
  }

  void add_decode() {
    const AttentionSpec gqa = spec_of(32, 8, 128);
    add_decode("decode-b64-kv8192", gqa, Lens(64, 8192));
    add_decode("decode-b32-kv4096", gqa, Lens(32, 4096));
    add_decode("decode-b16-kv8192", gqa, Lens(16, 8192));
    add_decode("decode-b64-kv1024", gqa, Lens(64, 1024));
    add_decode("decode-b256-uniform1024", gqa, uniform(256, 1024));
    add_decode("decode-b64-uniform4096", gqa, uniform(64, 4096));
    add_decode("decode-b64-zipf4096", gqa, zipf(64, 4096));
    add_decode("decode-b16-zipf1024", gqa, zipf(16, 1024));
    add_decode("decode-b1-kv131072", gqa, Lens(1, 131072));
    add_decode("decode-b1-kv8192", gqa, Lens(1, 8192));
    add_decode("decode-64x8-b1-kv8192", spec_of(64, 8, 128), Lens(1, 8192));
    add_decode("decode-b32-kv4096-page1", gqa, Lens(32, 4096), 1);
    add_decode("decode-b64-kv8192-e4m3", spec_of(32, 8, 128, DType::e4m3), Lens(64, 8192));
    add_decode("decode-b64-kv8192-i8", spec_of(32, 8, 128, DType::i8), Lens(64, 8192));
    AttentionSpec own_scales = spec_of(32, 8, 128, DType::i8);
    own_scales.k_scale = own_scales.v_scale = ScaleGranularity::token_head;
    add_decode("decode-b64-kv8192-i8-token-head", own_scales, Lens(64, 8192));
    AttentionSpec fp8 = spec_of(32, 8, 128, DType::e4m3);
    fp8.q_dtype = DType::e4m3;
    add_decode("decode-b64-kv8192-fp8", fp8, Lens(64, 8192));
    add_decode("decode-d64-b64-kv8192", spec_of(32, 8, 64), Lens(64, 8192));
    AttentionSpec invariant = gqa;
    invariant.batch_invariant = true;
    add_decode("decode-b64-kv8192-invariant", invariant, Lens(64, 8192));
    add_decode("decode-b64-zipf4096-invariant", invariant, zipf(64, 4096));
  }

  void add_prefill() {
    const AttentionSpec gqa = spec_of(32, 8, 128);
    add("prefill-causal-8192", gqa, {8192}, {8192}, kEndlessPage);
    add("prefill-causal-16384", gqa, {16384}, {16384}, kEndlessPage);
    add("prefill-full-8192", gqa, {8192}, {8192}, kEndlessPage).mask = "full";
    add("prefill-full-16384", gqa, {16384}, {16384}, kEndlessPage).mask = "full";
    add("prefill-causal-b8-2048", gqa, Lens(8, 2048), Lens(8, 2048), kEndlessPage);
    add("prefill-causal-8192-page16", gqa, {8192}, {8192});
    add("prefill-causal-8192-page1", gqa, {8192}, {8192}, 1);
    add("prefill-window1024-b4-8192", gqa, Lens(4, 8192), Lens(4, 8192), kEndlessPage).mask = "sliding_window:size=1024";
    add("append256-b16-kv4096", gqa, Lens(16, 256), Lens(16, 4096));
    add("append16-b16-kv4096", gqa, Lens(16, 16), Lens(16, 4096));
    add("prefill-causal-8192-e4m3", spec_of(32, 8, 128, DType::e4m3), {8192}, {8192}, kEndlessPage);
    add("append16-b16-kv4096-e4m3", spec_of(32, 8, 128, DType::e4m3), Lens(16, 16), Lens(16, 4096));
    AttentionSpec fp8 = spec_of(32, 8, 128, DType::e4m3);
    fp8.q_dtype = DType::e4m3;
    for (const std::int64_t page_size : {kEndlessPage, kServingPageSize}) {
      for (const std::int64_t len : {8192, 16384}) {
        const std::string name = fmt::format("prefill-causal-{}-fp8{}", len, page_size == kEndlessPage ? "" : "-page16");
        add(name, fp8, {len}, {len}, page_size);
      }
    }
    for (const AttentionSpec& spec : {spec_of(32, 8, 64), spec_of(16, 8, 256)}) {
      for (const std::string_view mask : {"causal", "full"}) {
        add(fmt::format("prefill-d{}-{}-16384", spec.head_dim_qk, mask), spec, {16384}, {16384}, kEndlessPage).mask = mask;
      }
    }
    Lens qo_lens(31, 1);
    Lens kv_lens(31, 4096);
    qo_lens.push_back(2048);
    kv_lens.push_back(2048);
    add("mixed-b32", gqa, std::move(qo_lens), std::move(kv_lens));
  }

  void add_mla() {
    for (const int heads : {128, 16}) {
      AttentionSpec mla = spec_of(heads, 1, 576);
      mla.head_dim_vo = 512;
      mla.v_is_k = true;
      mla.sm_scale = 1 / std::sqrt(192.0);
      add_decode(fmt::format("mla{}-b64-kv5120", heads), mla, Lens(64, 5120), 64);
      if (heads == 128) add_decode("mla128-b128-kv4096", mla, Lens(128, 4096), 64);
      if (heads == 128) add_decode("mla128-b64-kv5120-page1", mla, Lens(64, 5120), 1);
      // Every query token has a list of 2,048 tokens of its own, as an indexer selects them out of a longer context.
      if (heads == 128) add_lists("mla128-sparse2048-b128", mla, Lens(128, 2048), 8192);
      AttentionSpec tokens = mla;
      tokens.k_dtype = tokens.v_dtype = DType::e4m3;
      tokens.k_scale = tokens.v_scale = ScaleGranularity::tensor;
      add_decode(fmt::format("mla{}-b64-kv5120-e4m3", heads), tokens, Lens(64, 5120), 64);
      tokens.k_scale = tokens.v_scale = ScaleGranularity::token_group;
      tokens.head_dim_rope = 64;
      tokens.k_rope_dtype = DType::bf16;
      add_decode(fmt::format("mla{}-b64-kv5120-tokens656", heads), tokens, Lens(64, 5120), 64);
      if (heads == 128) add_lists("mla128-sparse2048-b128-tokens656", tokens, Lens(128, 2048), 8192);
    }
    for (const std::string_view name : {"mla128-b64-kv5120-e4m3", "mla16-b64-kv5120-e4m3", "mla128-b64-kv5120-tokens656",
                                        "mla16-b64-kv5120-tokens656", "mla128-sparse2048-b128-tokens656"}) {
      add_again(name, "wgmma");
    }
  }

  void add_shared_prefix() {
    struct Size {
      std::size_t batch;
      std::int64_t prefix;
    };
    for (const Size& size : {Size{64, 8192}, Size{16, 32768}}) {
      for (const bool cascade : {false, true}) {
        ServingCase& c = add_decode(fmt::format("prefix{}-b{}-{}", size.prefix, size.batch, cascade ? "cascade" : "flat"),
                                    spec_of(32, 8, 128), Lens(size.batch, size.prefix + 256));
        c.shared_prefix = size.prefix;
        c.cascade = cascade;
      }
    }
  }

  void add_variants() {
    const AttentionSpec gqa = spec_of(32, 8, 128);
    add("prefill-causal-8192-softcap", gqa, {8192}, {8192}, kEndlessPage).logits = "soft_cap:cap=50";
    add("prefill-causal-8192-alibi", gqa, {8192}, {8192}, kEndlessPage).logits = "alibi";
    add("prefill-causal-8192-document", gqa, {8192}, {8192}, kEndlessPage).mask = "document:size=1024";
    add("prefill-full-b8-1024", gqa, Lens(8, 1024), Lens(8, 1024), kEndlessPage).mask = "full";  // the documents as requests
    ServingCase& packed = add("prefill-packed-causal-8192", gqa, {8192}, {8192}, kEndlessPage);  // all keys are visited: see full-8192
    packed.packed_mask = true;
    ServingCase& capped = add("prefill-window1024-b4-8192-softcap", gqa, Lens(4, 8192), Lens(4, 8192), kEndlessPage);
    capped.mask = "sliding_window:size=1024";
    capped.logits = "soft_cap:cap=50";
    add("prefill-causal-8192-sink", gqa, {8192}, {8192}, kEndlessPage).sinks = true;
    add_decode("decode-b64-kv8192-softcap", gqa, Lens(64, 8192)).logits = "soft_cap:cap=50";
    add_decode("decode-b64-kv8192-sink", gqa, Lens(64, 8192)).sinks = true;
  }

  /// What chips without Hopper's instructions run: problems from above by the mma family.
  void add_mma() {
    constexpr std::string_view kNames[] = {"prefill-causal-8192",          "prefill-full-8192",           "prefill-causal-8192-page16",
                                           "prefill-window1024-b4-8192",   "prefill-causal-8192-softcap", "prefill-causal-8192-alibi",
                                           "prefill-causal-8192-document", "prefill-full-b8-1024",        "prefill-packed-causal-8192",
                                           "prefill-causal-8192-sink",     "mla128-b64-kv5120",           "mla16-b64-kv5120"};
    for (const std::string_view name : kNames) add_again(name, "mma");
  }

  std::vector<ServingCase> cases_;
};

inline std::vector<ServingCase> gpu_serving_cases() { return GpuServingTable().cases(); }

}  // namespace girih::cases
