// Inputs under which other libraries of this job have been reported to fail: attention cases, named after their rows' ids. What a case
// alone cannot say (equal bits, exact values, memory as another call left it) is in attention_regression_test.cc and
// emulated_memory_test.cc. Unused memory is NaN and table entries past the end are wild in all of them (problem.h).
#pragma once

#include <limits>
#include <numeric>

#include "cases/attention.h"

namespace girih::cases {

namespace regressions {

inline AttentionSpec typed(AttentionSpec spec, DType t) {
  spec.q_dtype = spec.k_dtype = spec.v_dtype = spec.o_dtype = t;
  return spec;
}

inline AttentionSpec mla(int heads, int dim_qk, int dim_vo, int dim_rope) {
  AttentionSpec spec = make_spec(heads, 1, dim_qk, dim_vo);
  spec.v_is_k = true;
  spec.head_dim_rope = dim_rope;
  return spec;
}

inline AttentionCase simple(std::string name, const AttentionSpec& spec, std::vector<std::int64_t> q, std::vector<std::int64_t> kv,
                            Layout layout = Layout::nhd, std::int64_t page_size = 16) {
  return make_case(std::move(name), spec, {"", std::move(q), std::move(kv)}, layout, page_size);
}

inline AttentionCase with_kv(AttentionCase c, DType type, ScaleGranularity scale) {
  set_kv(c.spec, type, scale, type, scale);
  return c;
}

/// A: rows and requests that see nothing, extreme scores, memory full of NaN.
inline void add_empty_and_extreme(std::vector<AttentionCase>& all) {
  const AttentionSpec one_head = typed(make_spec(1, 1, 32), DType::f16);
  all.push_back(simple("A04_rows_before_the_first_key", one_head, {76, 34, 146}, {1, 1, 1}, Layout::ragged));
  all.push_back(simple("A04_rows_before_the_first_key_paged", one_head, {76, 34, 146}, {1, 1, 1}, Layout::nhd, 1));
  all.push_back(simple("A05_request_without_keys", typed(make_spec(4, 2, 64), DType::f16), {5, 3, 4}, {9, 0, 40}, Layout::ragged));
  all.push_back(simple("A07_mla_empty_requests", mla(16, 576, 512, 64), {1, 1, 1, 1}, {0, 17, 0, 64}, Layout::nhd, 64));
  all.push_back(simple("A08_prefill_tiles_without_keys_beside_decode", make_spec(8, 2, 128), {200, 1, 1, 30, 1}, {20, 500, 90, 0, 3}));

  // q . k = -524288: q = 64, k = -64 in all of 128 dims.
  all.push_back(simple("A10_one_key_with_a_huge_negative_score", make_spec(32, 32, 128), {1, 1, 1}, {1, 1, 1}, Layout::ragged));
  all.back().spec.q_dtype = DType::f16;
  set_kv(all.back().spec, DType::f16, ScaleGranularity::none, DType::f16, ScaleGranularity::none);
  all.back().edit = [](const Site& s, double drawn) { return s.plane == Plane::q ? 64.0 : s.plane == Plane::k ? -64.0 : drawn; };
  for (const DType t : {DType::f32, DType::f16}) {
    all.push_back(
        simple(fmt::format("A11_all_logits_far_below_zero_{}", girih::name(t)), typed(make_spec(4, 4, 128), t), {1, 1}, {37, 300}));
    all.back().edit = [](const Site& s, double drawn) {
      return s.plane == Plane::q ? 100.0 : s.plane == Plane::k ? -64.0 + 0.01 * drawn : drawn;
    };
  }
  all.push_back(simple("A13_leading_key_tiles_fully_masked", typed(make_spec(1, 1, 2), DType::f32), {600}, {600}, Layout::ragged));
  all.back().spec.variant.mask = variants::window(9, 0);
  for (const auto& [first, last] : {std::pair{0, 14}, {20, 34}}) {  // at the head of the batch, and in the middle
    all.push_back(simple(fmt::format("A14_sinks_with_masked_rows_from_{}", first), make_spec(8, 8, 512), {50}, {64}));
    AttentionCase& c = all.back();
    c.spec.variant.sink = variants::sinks();
    c.spec.variant.mask = variants::causal() & ((q_idx() < first) | (q_idx() >= last));
    std::vector<float> sinks(8);
    std::iota(sinks.begin(), sinks.end(), -3.5F);
    c.params = {{"sinks", ParamTime::run, sinks}};
  }
  for (const DType t : {DType::f32, DType::bf16}) {
    all.push_back(simple(fmt::format("A16_nan_in_a_masked_key_{}", girih::name(t)), typed(make_spec(4, 2, 64), t), {3, 20}, {30, 20}));
    all.back().spec.variant.mask = kv_pos() != 1;
    all.back().edit = [](const Site& s, double drawn) {
      return s.plane == Plane::k && s.index == 1 ? std::numeric_limits<double>::quiet_NaN() : drawn;
    };
  }
  all.push_back(simple("A17_mla_unused_slots_of_the_last_page", mla(16, 576, 512, 0), {1, 1}, {12, 13}, Layout::nhd, 4));
  for (const DType t : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    all.push_back(with_kv(simple(fmt::format("A19_pool_of_nan_{}", girih::name(t)), make_spec(4, 2, 64), {1, 1, 2}, {12, 26, 52}), t,
                          bits(t) == 8 ? ScaleGranularity::tensor : ScaleGranularity::none));
  }
  // Blocks of 32 rows and 32 keys; the last block of keys has 6.
  all.push_back(simple("A20_block_sparse_cut_by_the_end", make_spec(4, 4, 64), {96}, {}, Layout::nhd, 32));
  all.back().spec.variant.mask = Expr();
  all.back().segments[0].qo_indptr = {0, 32, 64, 96};
  all.back().segments[0].kv_len = {38, 6, 70};
  all.back().segments[0].page_pos = {0, 96, 96, 32, 64, 96};
  all.back().kv_len = {102};
  for (const bool strided : {false, true}) {  // the builder ends rows with 0x7fffffff and -1
    for (const std::int64_t page_size : {1, 16}) {
      all.push_back(simple(fmt::format("A23_wild_entries_page{}{}", page_size, strided ? "_strided" : ""), make_spec(4, 2, 32), {1, 3, 1},
                           {5, 40, 33}, Layout::nhd, page_size));
      all.back().segments[0].strided_table = strided;
    }
  }
  all.push_back(simple("A26_two_requests_of_one_partial_page", typed(make_spec(32, 8, 64), DType::f16), {1, 1}, {1, 1}, Layout::nhd, 2));
  all.back().data_id = {0, 0};
}

/// B: heads, dims, types and page sizes; C: many requests.
inline void add_shapes(std::vector<AttentionCase>& all) {
  for (const auto& [qo, kv] : {std::pair{24, 4}, {48, 8}, {28, 4}, {56, 8}, {40, 8}}) {
    all.push_back(simple(fmt::format("B01_decode_{}x{}", qo, kv), make_spec(qo, kv, 128), {1, 1, 1}, {33, 128, 7}));
  }
  all.push_back(simple("B02_decode_with_group_16", typed(make_spec(64, 4, 128), DType::bf16), {1}, {512}));
  for (const std::int64_t n : {1, 5, 11, 43, 65})
    all.push_back(simple(fmt::format("B04_prefill_of_{}_with_group_6", n), make_spec(12, 2, 64), {n, 3}, {n, 70}));
  for (const int d : {40, 72, 80, 88, 96, 112}) {
    all.push_back(simple(fmt::format("B05_single_prefill_dim{}", d), typed(make_spec(8, 8, d), DType::f16), {128}, {256}, Layout::ragged));
  }
  for (const int d : {224, 512})
    all.push_back(simple(fmt::format("B07_gqa_dim{}", d), typed(make_spec(8, 2, d), DType::f16), {1, 1, 40}, {90, 7, 61}));
  for (const DType t : {DType::nvfp4, DType::mxfp4}) {
    for (const int d : {64, 128, 256, 512}) {
      all.push_back(with_kv(simple(fmt::format("B10_{}_dim{}", girih::name(t), d), make_spec(4, 2, d), {1, 9}, {50, 20}), t,
                            ScaleGranularity::block));
    }
  }
  all.push_back(simple("B11_mla_latent_512_rope_128", mla(16, 640, 512, 128), {1, 1, 5}, {70, 33, 90}, Layout::nhd, 64));
  for (const std::int64_t page_size : {1, 5, 256, 480, 544}) {
    all.push_back(simple(fmt::format("B13_page{}", page_size), make_spec(4, 2, 64), {1, 7, 20}, {300, 1100, 20}, Layout::nhd, page_size));
  }
  const AttentionSpec heads32 = typed(make_spec(32, 32, 128), DType::f16);
  all.push_back(simple("B16_hnd_pages_one_token", heads32, {1}, {130}, Layout::hnd, 64));
  all.push_back(simple("B16_hnd_pages_a_token_each", heads32, {1, 1, 1}, {2, 66, 130}, Layout::hnd, 64));
  for (const auto& [qk, vo] : {std::pair{192, 128}, {128, 64}, {576, 512}}) {
    for (const Layout layout : {Layout::ragged, Layout::nhd, Layout::hnd}) {
      const std::string stem = fmt::format("B19_dims_{}_{}_{}", qk, vo, name(layout));
      all.push_back(simple(stem + "_decode", make_spec(4, 2, qk, vo), {1, 1}, {40, 3}, layout));
      all.push_back(simple(stem + "_prefill", make_spec(4, 2, qk, vo), {20}, {31}, layout));
    }
  }
  std::vector<std::int64_t> q;
  std::vector<std::int64_t> kv;
  for (std::int64_t r = 0; r < 12000; ++r) {
    q.push_back(1 + r % 2);
    kv.push_back(r % 7);
  }
  all.push_back(simple("C07_twelve_thousand_requests", make_spec(2, 1, 16), std::move(q), std::move(kv), Layout::ragged));
}

/// D: batches as engines plan them; K: where tensors lie.
inline void add_batches(std::vector<AttentionCase>& all) {
  std::vector<std::int64_t> kv;
  for (std::int64_t r = 0; r < 112; ++r) kv.push_back(r < 100 ? 1 + r * 37 % 200 : 0);
  all.push_back(simple("D02_padding_rows_without_keys", make_spec(6, 2, 64), std::vector<std::int64_t>(112, 1), std::move(kv)));
  all.push_back(simple("D05_several_tokens_each_dim512", make_spec(16, 2, 512), {4, 5, 6, 7}, {70, 5, 200, 31}, Layout::nhd, 64));
  all.push_back(simple("D05_several_tokens_each_window", make_spec(16, 8, 256), {7, 4, 6}, {1100, 1500, 64}, Layout::nhd, 64));
  all.back().spec.variant.mask = variants::window(1023);
  for (const double scale : {0.0, 0.03}) {
    all.push_back(simple(scale == 0 ? "D10_own_scale" : "D10_given_scale", make_spec(4, 2, 64), {1, 20}, {90, 40}));
    all.back().spec.sm_scale = scale;
  }
  all.push_back(
      with_kv(simple("D17_verify_over_fp8", make_spec(32, 8, 128), {4, 4, 4}, {300, 4, 77}), DType::e4m3, ScaleGranularity::tensor));
  const Lengths padded{"padded", {3, 2, 1, 1}, {40, 17, 0, 0}};  // two requests, and two that fill up a graph's batch
  for (const VariantCase& v : mask_variants(padded)) {
    if (v.name != "custom_mask_run") continue;
    all.push_back(make_case("D16_custom_mask_beside_padding", make_spec(4, 2, 32), padded));
    all.back().spec.variant = v.variant;
    all.back().params = v.params;
    all.back().mask = v.mask;
  }
  for (const Layout layout : {Layout::nhd, Layout::hnd}) {
    all.push_back(simple(fmt::format("K02_packed_qkv_{}", name(layout)), typed(make_spec(32, 4, 128), DType::bf16), {1, 1, 1, 1},
                         {128, 5, 77, 16}, layout));
    all.back().packed_q = true;
  }
  for (const std::string_view l : {"decode", "mixed"})
    all.push_back(make_case(fmt::format("K04_all_layers_in_a_page_{}", l), make_spec(8, 2, 64), lengths(l), Layout::interleaved));
}

/// E05: draft token 0 has children 1 and 2 (siblings of one depth), token 3 follows 2. Logical position = prefix + depth.
inline AttentionCase tree_with_window(std::string name, const std::vector<std::int64_t>& kv) {
  constexpr std::array<std::int64_t, 4> kDepth{0, 1, 1, 2};
  constexpr std::array<std::uint8_t, 4> kSees{0b0001, 0b0011, 0b0101, 0b1101};
  AttentionCase c = simple(std::move(name), make_spec(4, 2, 64), {4, 4}, kv);
  const ArrayParam depth("depth", DType::i32, ParamTime::plan);
  const Expr base = kv_len() - q_len();
  const Expr row = base + depth[q_idx()];
  const Expr key = select(kv_pos() < base, kv_pos(), base + depth[kv_pos() - base]);
  c.spec.variant.mask = variants::speculative_tree() & (row - key < 128);
  c.params = {{"depth", ParamTime::plan, std::vector<std::int32_t>(kDepth.begin(), kDepth.end())},
              {"tree_mask", ParamTime::run, std::vector<std::uint8_t>{0b00110001, 0b11010101, 0b00110001, 0b11010101}},
              {"tree_mask_start", ParamTime::run, std::vector<std::int64_t>{0, 16}}};
  c.mask = [kDepth, kSees](const ref::Vars& v) {
    const std::int64_t start = v.i(Var::kv_len) - v.i(Var::q_len);
    const auto i = static_cast<std::size_t>(v.i(Var::q_idx));
    const std::int64_t row_pos = start + kDepth[i];
    const std::int64_t draft = v.i(Var::kv_pos) - start;
    if (draft < 0) return row_pos - v.i(Var::kv_pos) < 128;
    const auto j = static_cast<std::size_t>(draft);
    return ((kSees[i] >> j) & 1) != 0 && row_pos - (start + kDepth[j]) < 128;
  };
  return c;
}

/// E: masks, windows, caps, sinks, positions, sparsity.
inline void add_masks(std::vector<AttentionCase>& all) {
  all.push_back(simple("E01_causal_is_bottom_right", typed(make_spec(1, 1, 16), DType::f32), {2}, {3}, Layout::ragged));
  all.back().mask = [](const ref::Vars& v) { return v.i(Var::kv_pos) <= v.i(Var::q_idx) + 1; };  // row 0: keys 0, 1; row 1: keys 0, 1, 2
  all.push_back(simple("E02_window_without_causal_mask", typed(make_spec(8, 2, 128), DType::f16), {300}, {4096}));
  all.back().spec.variant.mask = variants::window(333, -1);
  all.back().spec.o_dtype = DType::f32;
  all.push_back(simple("E04_rows_of_a_verify_block_with_windows", make_spec(8, 2, 64), {4, 0, 3, 1, 4}, {400, 10, 131, 128, 129}));
  all.back().spec.variant.mask = variants::sliding_window(128);
  all.back().mask = [](const ref::Vars& v) { return v.i(Var::kv_pos) <= v.i(Var::q_pos) && v.i(Var::kv_pos) > v.i(Var::q_pos) - 128; };
  all.push_back(tree_with_window("E05_tree_with_a_window_long_first", {300, 40}));
  all.push_back(tree_with_window("E05_tree_with_a_window_short_first", {40, 300}));
  for (const float cap : {30.0F, 50.0F}) {
    for (const bool window : {false, true}) {
      all.push_back(simple(fmt::format("E07_cap_{}_{}", static_cast<int>(cap), window ? "window" : "causal"), make_spec(4, 2, 128), {1, 40},
                           {200, 90}));
      AttentionCase& c = all.back();
      c.spec.variant.mask = window ? variants::sliding_window(33) : variants::causal();
      c.spec.variant.logits = variants::soft_cap(cap);
      c.edit = [](const Site& s, double drawn) { return s.plane == Plane::q ? 16 * drawn : drawn; };  // large logits
      c.logits = [cap](double s, const ref::Vars&) { return cap * std::tanh(s / cap); };
    }
  }
  all.push_back(simple("E10_sinks_with_a_window", make_spec(8, 2, 64), {1, 200, 1}, {500, 200, 60}));
  all.back().spec.variant.mask = variants::sliding_window(128);
  all.back().spec.variant.sink = variants::sinks();
  all.back().params = {{"sinks", ParamTime::run, std::vector<float>{0, 1, 2, 3, -1, -2, 5, 4}}};
  // Four query blocks of 128 rows that all attend the first block of 64 keys.
  all.push_back(simple("E11_every_query_block_attends_the_first", typed(make_spec(2, 2, 64), DType::f16), {512}, {}, Layout::nhd, 64));
  all.back().spec.variant.mask = Expr();
  all.back().segments[0].qo_indptr = {0, 128, 256, 384, 512};
  all.back().segments[0].kv_len = {64, 64, 64, 64};
  all.back().segments[0].page_pos = {0, 0, 0, 0};
  all.back().kv_len = {512};
  all.push_back(simple("E13_draft_tokens_are_causal", make_spec(8, 2, 64), {4, 2, 3}, {40, 2, 17}));
  all.back().mask = [](const ref::Vars& v) { return v.i(Var::kv_pos) <= v.i(Var::kv_len) - v.i(Var::q_len) + v.i(Var::q_idx); };
  for (const std::int64_t rows : {64, 65, 200}) {
    all.push_back(simple(fmt::format("E14_index_lanes_past_the_count_{}", rows), mla(4, 96, 64, 0), {rows}, {}, Layout::nhd, 1));
    AttentionCase& c = all.back();
    c.kv_len = {500};
    c.segments[0].strided_table = true;
    for (std::int64_t row = 0; row <= rows; ++row) c.segments[0].qo_indptr.push_back(row);
    for (std::int64_t row = 0; row < rows; ++row) {
      c.segments[0].kv_len.push_back(1 + row % 16);
      for (std::int64_t j = 0; j <= row % 16; ++j) c.segments[0].page_pos.push_back(j * 17);
    }
  }
  for (const DType t : {DType::f16, DType::f32}) {
    for (const bool interleave : {false, true}) {
      all.push_back(simple(fmt::format("E16_rope_at_100k_{}{}", girih::name(t), interleave ? "_interleave" : ""),
                           typed(make_spec(4, 2, 128), t), {1, 5}, {60, 40}));
      AttentionCase& c = all.back();
      c.spec.o_dtype = DType::f32;
      c.spec.variant.rope = Rope{.theta = 10000, .scale = 1, .rotary_dim = 0, .rotary_begin = 0, .interleave = interleave, .llama31 = {}};
      c.segments[0].kv_pos = {100000, 131000};
      c.kv_len = {100060, 131040};
    }
  }
  all.push_back(simple("E17_mla_of_many_keys", mla(8, 576, 512, 0), {2, 1}, {16000, 3}, Layout::nhd, 64));
}

/// F: scales of quantised keys and values.
inline void add_scales(std::vector<AttentionCase>& all) {
  all.push_back(with_kv(simple("F01_paged_prefill_with_tensor_scales", make_spec(64, 16, 128), {100}, {128}, Layout::nhd, 1), DType::e4m3,
                        ScaleGranularity::tensor));
  all.push_back(with_kv(simple("F02_ragged_prefill_with_tensor_scales", make_spec(8, 2, 64), {40, 9}, {40, 30}, Layout::ragged),
                        DType::e4m3, ScaleGranularity::tensor));
  for (const DType t : {DType::e4m3, DType::i8}) {
    for (const Layout layout : {Layout::padded, Layout::nhd, Layout::hnd, Layout::ragged, Layout::interleaved}) {
      for (const std::string_view l : {"single_decode", "single_prefill", "single_append", "decode", "mixed"}) {
        all.push_back(
            with_kv(make_case(fmt::format("F04_{}_{}_{}", girih::name(t), name(layout), l), make_spec(4, 2, 64), lengths(l), layout), t,
                    ScaleGranularity::token_head));
      }
    }
  }
  for (const DType t : {DType::e4m3, DType::e5m2})
    all.push_back(
        with_kv(simple(fmt::format("F05_{}", girih::name(t)), make_spec(32, 2, 128), {1, 30}, {70, 40}), t, ScaleGranularity::head));
  all.push_back(with_kv(simple("F07_bf16_queries_over_fp8", typed(make_spec(32, 8, 128), DType::bf16), {1, 30}, {300, 40}), DType::e4m3,
                        ScaleGranularity::tensor));
}

}  // namespace regressions

inline std::vector<AttentionCase> regression_cases() {
  std::vector<AttentionCase> all;
  regressions::add_empty_and_extreme(all);
  regressions::add_shapes(all);
  regressions::add_batches(all);
  regressions::add_masks(all);
  regressions::add_scales(all);
  return all;
}

inline AttentionCase regression_case(std::string_view name) {
  for (AttentionCase& c : regression_cases()) {
    if (c.name == name) return std::move(c);
  }
  throw std::logic_error(fmt::format("no regression case {}", name));
}

}  // namespace girih::cases
