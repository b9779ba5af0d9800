// The table of attention cases that aim at a property: each theme is a few loops over data. The cases of real serving, which the
// benchmark times and a test checks scaled down, are in serving.h.
// Output is f32 and KV bf16 where a case does not say otherwise: f32 output leaves no rounding to hide behind.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cases/problem.h"

namespace girih::cases {

inline constexpr std::array kLayouts{Layout::ragged, Layout::ragged_gaps,       Layout::ragged_hnd,     Layout::nhd,
                                     Layout::hnd,    Layout::one_tensor,        Layout::one_tensor_hnd, Layout::interleaved,
                                     Layout::padded, Layout::token_contiguous_v};

inline std::string_view name(Layout l) {
  constexpr std::array<std::string_view, 11> kNames{"ragged", "ragged_gaps",        "ragged_hnd",     "nhd",
                                                    "hnd",    "one_tensor",         "one_tensor_hnd", "interleaved",
                                                    "padded", "token_contiguous_v", "tokens"};
  return kNames[static_cast<std::size_t>(l)];
}

/// Query and key lengths of a batch's requests.
struct Lengths {
  std::string_view name;
  std::vector<std::int64_t> q, kv;
};

inline const std::vector<Lengths>& all_lengths() {
  static const std::vector<Lengths> kAll{
      {"single_decode", {1}, {1300}},
      {"single_prefill", {77}, {77}},
      {"single_append", {9}, {150}},
      {"decode", {1, 1, 1, 1, 1, 1}, {1, 17, 0, 64, 333, 16}},
      {"append", {3, 7, 1, 2}, {30, 7, 100, 1}},
      {"prefill", {33, 0, 70}, {33, 5, 70}},
      {"mixed", {1, 40, 1, 0, 5, 1, 3}, {200, 90, 0, 10, 37, 16, 3}},
  };
  return kAll;
}

inline const Lengths& lengths(std::string_view name) {
  for (const Lengths& l : all_lengths()) {
    if (l.name == name) return l;
  }
  throw std::logic_error("no such lengths");
}

inline AttentionSpec make_spec(int qo_heads, int kv_heads, int dim_qk, int dim_vo = 0) {
  AttentionSpec spec;
  spec.num_qo_heads = qo_heads;
  spec.num_kv_heads = kv_heads;
  spec.head_dim_qk = dim_qk;
  spec.head_dim_vo = dim_vo;
  spec.o_dtype = DType::f32;
  spec.lse = LseKind::natural;
  spec.variant.mask = variants::causal();
  return spec;
}

/// One segment over the requests.
inline AttentionCase make_case(std::string name, const AttentionSpec& spec, const Lengths& l, Layout layout = Layout::nhd,
                               std::int64_t page_size = 16) {
  AttentionCase c;
  c.name = std::move(name);
  c.spec = spec;
  c.q_len = l.q;
  c.segments.push_back({.qo_indptr = {}, .kv_len = l.kv, .layout = layout, .page_size = page_size});
  return c;
}

inline void set_kv(AttentionSpec& spec, DType k, ScaleGranularity k_scale, DType v, ScaleGranularity v_scale) {
  spec.k_dtype = k;
  spec.v_dtype = v;
  spec.k_scale = k_scale;
  spec.v_scale = v_scale;
}

// ------------------------------------------------------------------------------------------------ layouts and shapes

inline std::vector<AttentionCase> layout_cases() {
  std::vector<AttentionCase> cases;
  for (Layout layout : kLayouts) {
    for (const Lengths& l : all_lengths()) {
      AttentionCase c = make_case(fmt::format("{}_{}", name(layout), l.name), make_spec(6, 2, 64), l, layout);
      c.segments[0].strided_table = cases.size() % 2 == 1 && !is_ragged(layout);
      c.packed_q = cases.size() % 3 == 0;
      cases.push_back(std::move(c));
    }
  }
  for (std::int64_t page_size : {1, 5, 16, 64, 256, 480, 544}) {
    for (std::string_view l : {"single_decode", "mixed"}) {
      for (bool strided : {false, true}) {
        cases.push_back(make_case(fmt::format("page{}_{}{}", page_size, l, strided ? "_strided" : ""), make_spec(4, 2, 32), lengths(l),
                                  strided ? Layout::hnd : Layout::nhd, page_size));
        cases.back().segments[0].strided_table = strided;
      }
    }
  }
  cases.push_back(make_case("no_requests", make_spec(4, 2, 32), {"", {}, {}}));
  cases.push_back(make_case("no_requests_ragged", make_spec(4, 2, 32), {"", {}, {}}, Layout::ragged));
  cases.push_back(make_case("no_queries", make_spec(4, 2, 32), {"", {0, 0}, {5, 0}}));
  cases.push_back(make_case("no_keys", make_spec(4, 2, 32), {"", {3, 1}, {0, 0}}));
  cases.push_back(make_case("more_queries_than_keys", make_spec(4, 2, 32), {"", {60, 3, 1}, {7, 1, 2}}));
  cases.push_back(
      make_case("many_requests", make_spec(2, 1, 16), {"", std::vector<std::int64_t>(300, 1), std::vector<std::int64_t>(300, 9)}));
  for (int dim : {1, 3, 40, 64, 72, 80, 88, 96, 112, 128, 192, 224, 256, 512, 576, 1024}) {
    for (std::string_view l : {"append", "mixed"})
      cases.push_back(make_case(fmt::format("dim{}_{}", dim, l), make_spec(2, 1, dim), lengths(l)));
  }
  for (const auto& [qk, vo] : {std::pair{192, 128}, {128, 64}, {576, 512}, {24, 40}}) {
    for (Layout layout : {Layout::nhd, Layout::ragged, Layout::hnd}) {
      cases.push_back(make_case(fmt::format("dim{}x{}_{}", qk, vo, name(layout)), make_spec(4, 2, qk, vo), lengths("mixed"), layout));
    }
  }
  for (int group : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    for (std::string_view l : {"single_decode", "mixed"}) {
      cases.push_back(make_case(fmt::format("group{}_{}", group, l), make_spec(2 * group, 2, 48), lengths(l)));
    }
  }
  return cases;
}

// ------------------------------------------------------------------------------------------------ several segments

/// Levels from the longest shared prefix (groups of all requests) down to each request's own keys.
inline AttentionCase cascade(std::string name, int levels, const Lengths& own, Layout layout, Expr mask) {
  AttentionCase c = make_case(std::move(name), make_spec(6, 2, 64), own, layout);
  c.spec.variant.mask = std::move(mask);
  std::vector<std::int64_t> starts{0};
  for (std::int64_t n : own.q) starts.push_back(starts.back() + n);
  const std::size_t half = own.q.size() / 2;
  SegmentCase all = c.segments[0];
  all.qo_indptr = {0, starts.back()};
  all.kv_len = {192};
  SegmentCase halves = all;
  halves.qo_indptr = {0, starts[half], starts.back()};
  halves.kv_len = {64, 100};
  if (levels == 3) c.segments.insert(c.segments.begin(), halves);
  c.segments.insert(c.segments.begin(), all);
  return c;
}

inline std::vector<AttentionCase> segment_cases() {
  std::vector<AttentionCase> cases;
  const Lengths decode{"", {1, 1, 1, 1, 1}, {30, 1, 64, 7, 200}};
  const Lengths mixed{"", {1, 12, 1, 30, 2}, {30, 12, 64, 40, 2}};
  for (Layout layout : {Layout::nhd, Layout::hnd, Layout::ragged, Layout::interleaved}) {
    for (int levels : {2, 3}) {
      const std::string base = fmt::format("cascade{}_{}", levels, name(layout));
      cases.push_back(cascade(base + "_decode", levels, decode, layout, variants::causal()));
      cases.push_back(cascade(base + "_mixed", levels, mixed, layout, variants::causal()));
      cases.push_back(cascade(base + "_window", levels, mixed, layout, variants::sliding_window(100)));
      cases.push_back(cascade(base + "_dense", levels, decode, layout, Expr()));
      cases.back().segments[0].masked = false;
    }
  }
  // Keys that the mask would hide from all or some rows, in segments that are not masked: whole steps of them, and the last ones.
  for (const std::int64_t shared : {190, 40, 333}) {
    cases.push_back(cascade(fmt::format("cascade_unmasked_{}", shared), 2, mixed, Layout::nhd, variants::causal()));
    cases.back().segments[0].masked = false;
    cases.back().segments[0].kv_len = {shared};
    cases.back().q_pos = {3, 0, -4, 100, 300};
  }
  // Segments of different kinds side by side: a ragged part after a paged one.
  cases.push_back(cascade("cascade_paged_then_ragged", 2, mixed, Layout::nhd, variants::causal()));
  cases.back().segments[1].layout = Layout::ragged;
  // Positions given instead of inferred, with a hole between two segments, and query positions that are not bottom-right.
  cases.push_back(make_case("positions_given", make_spec(4, 2, 32), {"", {4, 6}, {40, 20}}));
  cases.back().segments[0].kv_pos = {3, 100};
  cases.back().q_pos = {30, 105};
  cases.back().kv_len = {64, 150};

  // Pages chosen per KV head, with their positions; one head has no page at all.
  for (std::int64_t page_size : {1, 8, 16}) {
    AttentionCase c =
        make_case(fmt::format("pages_per_head_ps{}", page_size), make_spec(4, 2, 64), {"", {1, 3, 1}, {}}, Layout::nhd, page_size);
    SegmentCase& s = c.segments[0];
    s.num_table_heads = 2;
    s.kv_len = {5 * page_size, 2 * page_size, 3 * page_size, 4 * page_size - page_size / 2, 0, page_size};
    for (std::int64_t len : s.kv_len) {
      for (std::int64_t i = 0; i < (len + page_size - 1) / page_size; ++i) s.page_pos.push_back(i * 3 * page_size);
    }
    c.kv_len = {20 * page_size, 10 * page_size, 8 * page_size};
    cases.push_back(c);
    c.name += "_strided";
    c.segments[0].strided_table = true;
    cases.push_back(std::move(c));
  }
  // A token list per query row: page_size 1, each row its own group (sparse MLA).
  for (bool two_tensors : {false, true}) {
    AttentionCase c =
        make_case(two_tensors ? "sparse_mla_two_tensors" : "sparse_mla", make_spec(8, 1, 96, 64), {"", {5, 1, 9}, {}}, Layout::nhd, 1);
    c.spec.v_is_k = true;
    c.spec.head_dim_rope = two_tensors ? 32 : 0;
    c.kv_len = {200, 50, 300};
    SegmentCase& s = c.segments[0];
    for (std::int64_t row = 0; row <= 15; ++row) s.qo_indptr.push_back(row);
    for (std::int64_t row = 0; row < 15; ++row) {
      s.kv_len.push_back(row * 5 % 23);
      for (std::int64_t j = 0; j < s.kv_len.back(); ++j) s.page_pos.push_back(j * 11 + row);
    }
    cases.push_back(std::move(c));
  }
  // MLA: one KV head, V a view of K; the latent and RoPE parts in one tensor or two.
  for (bool two_tensors : {false, true}) {
    for (std::string_view l : {"decode", "append", "prefill"}) {
      for (std::int64_t page_size : {1, 64}) {
        AttentionCase c = make_case(fmt::format("mla_{}_{}_ps{}", two_tensors ? "two" : "one", l, page_size), make_spec(4, 1, 576, 512),
                                    lengths(l), Layout::nhd, page_size);
        c.spec.head_dim_rope = two_tensors ? 64 : 0;
        c.spec.v_is_k = true;
        c.spec.sm_scale = 1 / std::sqrt(192.0);
        cases.push_back(std::move(c));
      }
    }
  }
  cases.push_back(make_case("two_tensor_k_with_own_v", make_spec(4, 2, 96, 64), lengths("mixed"), Layout::hnd));
  cases.back().spec.head_dim_rope = 32;
  return cases;
}

// ------------------------------------------------------------------------------------------------ types

inline std::vector<AttentionCase> dtype_cases() {
  using G = ScaleGranularity;
  std::vector<AttentionCase> cases;
  constexpr std::array kFloats{DType::f32, DType::f16, DType::bf16};
  for (DType q : kFloats) {
    for (DType o : kFloats) {
      for (DType kv : kFloats) {
        AttentionCase c = make_case(fmt::format("q_{}_o_{}_kv_{}", girih::name(q), girih::name(o), girih::name(kv)), make_spec(4, 2, 64),
                                    lengths("mixed"));
        c.spec.q_dtype = q;
        c.spec.o_dtype = o;
        set_kv(c.spec, kv, G::none, kv, G::none);
        cases.push_back(std::move(c));
      }
    }
  }
  struct Kv {
    DType type;
    G scale;
  };
  std::vector<Kv> quantised;
  for (DType t : {DType::e4m3, DType::e5m2, DType::i8}) {
    for (G g : {G::tensor, G::head, G::token_head}) quantised.push_back({t, g});
  }
  quantised.push_back({DType::nvfp4, G::block});
  quantised.push_back({DType::mxfp4, G::block});
  constexpr std::array<std::string_view, 5> kGranularity{"none", "tensor", "head", "token_head", "block"};
  for (const Kv& kv : quantised) {
    for (Layout layout : {Layout::nhd, Layout::hnd, Layout::padded, Layout::ragged, Layout::one_tensor}) {
      AttentionCase c =
          make_case(fmt::format("kv_{}_{}_{}", girih::name(kv.type), kGranularity[static_cast<std::size_t>(kv.scale)], name(layout)),
                    make_spec(6, 2, 64), lengths("mixed"), layout);
      set_kv(c.spec, kv.type, kv.scale, kv.type, kv.scale);
      c.spec.q_dtype = kFloats[cases.size() % 3];
      cases.push_back(std::move(c));
    }
    for (int dim : {32, 40, 128, 256}) {
      AttentionCase c =
          make_case(fmt::format("kv_{}_{}_dim{}", girih::name(kv.type), kGranularity[static_cast<std::size_t>(kv.scale)], dim),
                    make_spec(2, 1, dim), lengths("append"));
      set_kv(c.spec, kv.type, kv.scale, kv.type, kv.scale);
      cases.push_back(std::move(c));
    }
    // Two tensors of K share a kind of scales; V is a view of K.
    AttentionCase c = make_case(fmt::format("mla_{}_{}", girih::name(kv.type), kGranularity[static_cast<std::size_t>(kv.scale)]),
                                make_spec(4, 1, 96, 64), lengths("mixed"));
    set_kv(c.spec, kv.type, kv.scale, kv.type, kv.scale);
    c.spec.v_is_k = true;
    c.spec.head_dim_rope = 32;
    cases.push_back(std::move(c));
  }
  // Rows of Q of every magnitude, zero among them, and rows whose elements are far apart.
  for (DType t : {DType::e4m3, DType::e5m2, DType::i8}) {
    AttentionCase c = make_case(fmt::format("kv_{}_query_magnitudes", girih::name(t)), make_spec(6, 2, 64),
                                {"", {16, 1, 40, 12, 2}, {33, 150, 64, 35, 33}});
    const G scale = t == DType::i8 ? G::token_head : G::head;
    set_kv(c.spec, t, scale, t, scale);
    if (t == DType::e5m2) c.spec.variant.logits = variants::soft_cap(30.0F);
    c.edit = [](const Site& site, double x) {
      if (site.plane != Plane::q) return x;
      constexpr std::array<double, 6> kMagnitudes{1, 0x1p-100, 0x1p-126, 0, 4, 0x1p-9};
      const auto kind = static_cast<std::size_t>((site.index + 3 * site.head + site.group) % 8);
      if (kind < kMagnitudes.size()) return x * kMagnitudes[kind];
      return std::ldexp(x, -static_cast<int>(kind == 6 ? site.dim / 2 : site.dim * 7 % 64));
    };
    cases.push_back(std::move(c));
  }
  // K of 8 bits whose V has 512 dims: rows of each kind that shared memory knows.
  int dim = 576;
  for (const Kv& kv : {Kv{DType::e4m3, G::tensor}, Kv{DType::i8, G::token_head}, Kv{DType::e5m2, G::head}}) {
    AttentionCase c = make_case(fmt::format("mla{}_{}_{}", dim, girih::name(kv.type), kGranularity[static_cast<std::size_t>(kv.scale)]),
                                make_spec(8, 1, dim, 512), lengths("mixed"));
    dim -= 32;
    set_kv(c.spec, kv.type, kv.scale, kv.type, kv.scale);
    c.spec.v_is_k = true;
    cases.push_back(std::move(c));
  }
  const std::vector<std::pair<Kv, Kv>> mixed{
      {{DType::i8, G::token_head}, {DType::nvfp4, G::block}}, {{DType::bf16, G::none}, {DType::e4m3, G::tensor}},
      {{DType::e5m2, G::head}, {DType::f16, G::none}},        {{DType::f32, G::none}, {DType::bf16, G::none}},
      {{DType::mxfp4, G::block}, {DType::i8, G::head}},       {{DType::f16, G::none}, {DType::f32, G::none}}};
  for (const auto& [k, v] : mixed) {
    for (Layout layout : {Layout::nhd, Layout::one_tensor_hnd}) {
      AttentionCase c = make_case(fmt::format("k_{}_v_{}_{}", girih::name(k.type), girih::name(v.type), name(layout)), make_spec(4, 2, 64),
                                  lengths("mixed"), layout);
      set_kv(c.spec, k.type, k.scale, v.type, v.scale);
      cases.push_back(std::move(c));
    }
  }
  for (const Kv& v : std::vector<Kv>{
           {DType::f32, G::none}, {DType::f16, G::none}, {DType::bf16, G::none}, {DType::e4m3, G::token_head}, {DType::i8, G::head}}) {
    AttentionCase c = make_case(fmt::format("token_contiguous_v_{}", girih::name(v.type)), make_spec(4, 2, 64), lengths("mixed"),
                                Layout::token_contiguous_v);
    set_kv(c.spec, v.type, v.scale, v.type, v.scale);
    cases.push_back(std::move(c));
  }
  return cases;
}

/// O of codes: every width of rows and alignment, split keys, hooks, sinks, levels, MLA, 8-bit inputs, and numbers past the largest code.
inline std::vector<AttentionCase> code_output_cases() {
  using G = ScaleGranularity;
  std::vector<AttentionCase> cases;
  const auto add = [&cases](std::string name, AttentionSpec spec, DType o, const Lengths& l,
                            Layout layout = Layout::nhd) -> AttentionCase& {
    spec.o_dtype = o;
    cases.push_back(make_case(fmt::format("out_{}_{}", girih::name(o), name), spec, l, layout));
    return cases.back();
  };
  const Lengths mixed = lengths("mixed");
  const Lengths prefill{"", {150, 0, 70}, {333, 5, 70}};
  for (const DType o : {DType::e4m3, DType::e5m2}) {
    for (const int dim : {3, 40, 64, 128}) add(fmt::format("dim{}", dim), make_spec(6, 2, dim), o, mixed);
    add("prefill", make_spec(6, 2, 128), o, prefill);
    add("dim256", make_spec(4, 2, 256), o, prefill, Layout::ragged);
    add("dim192x128", make_spec(4, 2, 192, 128), o, mixed);
    add("split_keys", make_spec(8, 1, 64), o, {"", {1, 3}, {4000, 900}});
    AttentionCase& f32 = add("f32", make_spec(4, 2, 64), o, mixed);
    f32.spec.q_dtype = DType::f32;
    set_kv(f32.spec, DType::f32, G::none, DType::f32, G::none);
  }
  AttentionCase& mla = add("mla", make_spec(16, 1, 576, 512), DType::e4m3, mixed);
  mla.spec.head_dim_rope = 64;
  mla.spec.v_is_k = true;
  set_kv(add("of_codes", make_spec(4, 2, 128), DType::e4m3, mixed).spec, DType::e4m3, G::head, DType::e4m3, G::token_head);
  add("saturated", make_spec(4, 2, 64), DType::e4m3, prefill).o_scale = 0.0005F;
  add("invariant", make_spec(4, 2, 64), DType::e4m3, {"", {60, 3}, {4200, 2100}}).spec.batch_invariant = true;
  AttentionCase& sinks = add("sinks", make_spec(6, 2, 128), DType::e4m3, mixed);
  sinks.spec.variant.sink = variants::sinks();
  sinks.params = {{"sinks", ParamTime::run, std::vector<float>{0.5F, -1.0F, 2.0F, 0.0F, 1.0F, -3.0F}}};
  AttentionCase& hook = add("output_hook", make_spec(4, 2, 64), DType::e4m3, mixed);
  hook.spec.variant.output = x() * ArrayParam("gate", DType::f32)[q_head()];
  hook.params = {{"gate", ParamTime::run, std::vector<float>{0.5F, -1.0F, 2.0F, 0.25F}}};
  AttentionCase& levels = add("cascade", make_spec(6, 2, 128), DType::e4m3, {"", {1, 12, 30}, {30, 12, 40}});
  SegmentCase shared = levels.segments[0];
  shared.qo_indptr = {0, 43};
  shared.kv_len = {192};
  levels.segments.insert(levels.segments.begin(), shared);
  return cases;
}

/// Scales of parts of a row, and a second tensor of K of a type of its own; above all MLA's tokens of 656 bytes (DeepSeek-V3.2).
inline std::vector<AttentionCase> token_group_cases() {
  using G = ScaleGranularity;
  std::vector<AttentionCase> cases;
  const auto add = [&](std::string name, const AttentionSpec& spec, const Lengths& l, Layout layout, std::int64_t page_size = 16) {
    cases.push_back(make_case(std::move(name), spec, l, layout, page_size));
    cases.back().spec.q_dtype = std::array{DType::bf16, DType::f32, DType::f16}[cases.size() % 3];
    return &cases.back();
  };
  for (const DType t : {DType::e4m3, DType::e5m2, DType::i8}) {
    for (Layout layout : {Layout::nhd, Layout::hnd, Layout::padded, Layout::ragged, Layout::one_tensor}) {
      AttentionSpec spec = make_spec(6, 2, 128);
      set_kv(spec, t, G::token_group, t, G::token_group);
      add(fmt::format("kv_{}_token_group_{}", girih::name(t), name(layout)), spec, lengths("mixed"), layout);
    }
  }
  for (const auto& [qk, vo] : {std::pair{256, 384}, {384, 128}, {1024, 1024}}) {
    AttentionSpec spec = make_spec(2, 1, qk, vo);
    set_kv(spec, DType::e4m3, G::token_group, DType::i8, G::token_group);
    add(fmt::format("kv_token_group_dim{}x{}", qk, vo), spec, lengths("append"), Layout::nhd);
  }
  {
    AttentionSpec spec = make_spec(4, 2, 128, 40);
    set_kv(spec, DType::e5m2, G::token_group, DType::bf16, G::none);
    add("k_token_group_v_bf16", spec, lengths("mixed"), Layout::hnd);
    spec = make_spec(4, 2, 40, 128);
    set_kv(spec, DType::e4m3, G::token_head, DType::e4m3, G::token_group);
    add("k_token_head_v_token_group", spec, lengths("mixed"), Layout::padded);
    add("v_token_group_token_contiguous", spec, lengths("mixed"), Layout::token_contiguous_v);
    spec = make_spec(4, 2, 128);
    set_kv(spec, DType::e4m3, G::token_group, DType::e4m3, G::token_group);
    spec.variant.rope = Rope{};
    add("token_group_with_rope", spec, lengths("mixed"), Layout::nhd);
    spec.variant.rope.reset();
    spec.variant.value = x() * 0.5F;
    add("token_group_with_a_value_hook", spec, lengths("mixed"), Layout::nhd);
  }
  // K's second tensor beside any first.
  struct Parts {
    DType k;
    G scale;
    DType rope;
  };
  for (const Parts& p : {Parts{DType::bf16, G::none, DType::f32},
                         {DType::e4m3, G::tensor, DType::bf16},
                         {DType::i8, G::token_head, DType::f16},
                         {DType::nvfp4, G::block, DType::bf16},
                         {DType::f32, G::none, DType::bf16}}) {
    AttentionSpec spec = make_spec(4, 2, 96, 64);
    set_kv(spec, p.k, p.scale, DType::bf16, G::none);
    spec.head_dim_rope = 32;
    spec.k_rope_dtype = p.rope;
    add(fmt::format("rope_{}_beside_{}", girih::name(p.rope), girih::name(p.k)), spec, lengths("mixed"), Layout::nhd);
  }
  // A second tensor with groups of its own.
  {
    AttentionSpec spec = make_spec(4, 2, 384, 64);
    set_kv(spec, DType::e4m3, G::token_group, DType::bf16, G::none);
    spec.head_dim_rope = 128;
    add("token_group_in_both_parts", spec, lengths("append"), Layout::padded);
  }
  const auto mla = [](int heads, int latent, int rope, int vo) {
    AttentionSpec spec = make_spec(heads, 1, latent + rope, vo);
    set_kv(spec, DType::e4m3, G::token_group, DType::e4m3, G::token_group);
    spec.head_dim_rope = rope;
    spec.k_rope_dtype = DType::bf16;
    spec.v_is_k = true;
    spec.sm_scale = 1 / std::sqrt(192.0);
    return spec;
  };
  for (std::string_view l : {"decode", "append", "prefill"}) {
    for (std::int64_t page_size : {1, 64})
      add(fmt::format("mla_tokens_{}_ps{}", l, page_size), mla(16, 512, 64, 512), lengths(l), Layout::tokens, page_size)->spec.q_dtype =
          DType::bf16;
  }
  add("mla_tokens_small", mla(4, 128, 32, 64), lengths("mixed"), Layout::tokens);
  add("mla_tokens_many_heads", mla(128, 512, 64, 512), {"", {1, 2}, {70, 33}}, Layout::tokens, 64)->spec.q_dtype = DType::bf16;
  // Lists of tokens as an indexer makes them: some rows have none, unused entries are wild, unused slots NaN.
  for (const bool strided : {false, true}) {
    AttentionCase& c =
        *add(strided ? "mla_tokens_lists_strided" : "mla_tokens_lists", mla(16, 512, 64, 512), {"", {5, 1, 9}, {}}, Layout::tokens, 1);
    c.spec.q_dtype = DType::bf16;
    c.spec.variant.mask = {};
    c.kv_len = {200, 50, 300};
    SegmentCase& s = c.segments[0];
    s.masked = false;
    s.strided_table = strided;
    for (std::int64_t row = 0; row <= 15; ++row) s.qo_indptr.push_back(row);
    for (std::int64_t row = 0; row < 15; ++row) s.kv_len.push_back(row % 4 == 2 ? 0 : row * 29 % 131);
  }
  // Scales of 0: such parts of keys and values are zeros, whatever the codes.
  AttentionCase& zeros = *add("mla_tokens_zero_scales", mla(16, 512, 64, 512), {"", {1, 4}, {40, 77}}, Layout::tokens, 64);
  zeros.spec.q_dtype = DType::bf16;
  zeros.edit_scale = [](const Site& s, double drawn) { return (s.index + s.dim / kScaleGroup) % 3 == 0 || s.index % 5 == 1 ? 0.0 : drawn; };
  return cases;
}

// ------------------------------------------------------------------------------------------------ variants

using Var = variant::Var;

struct VariantCase {
  std::string name;
  Variant variant;
  std::vector<ref::Param> params;
  std::function<bool(const ref::Vars&)> mask;
  std::function<double(double, const ref::Vars&)> logits;
  std::vector<DType> output_dtypes{};
};

/// Pseudo-random bits for `n` bits, little-endian, plus the starts of each request's part.
inline std::vector<std::uint8_t> random_bits(std::int64_t n, std::uint64_t seed) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>((n + 7) / 8));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(mix(seed + i));
  return out;
}

inline bool bit_at(const std::vector<std::uint8_t>& bits, std::int64_t i) { return (bits[static_cast<std::size_t>(i / 8)] >> (i % 8)) & 1; }

/// The built-in masks with hand-written twins, for the batch of `l` (parameters have its lengths).
inline std::vector<VariantCase> mask_variants(const Lengths& l) {
  std::vector<VariantCase> out;
  const auto add = [&](std::string name, Expr mask, std::vector<ref::Param> params, std::function<bool(const ref::Vars&)> twin) {
    VariantCase v;
    v.name = std::move(name);
    v.variant.mask = std::move(mask);
    v.params = std::move(params);
    v.mask = std::move(twin);
    out.push_back(std::move(v));
  };
  const auto causal = [](const ref::Vars& v) { return v.i(Var::kv_pos) <= v.i(Var::q_pos); };
  const auto distance = [](const ref::Vars& v) { return v.i(Var::q_pos) - v.i(Var::kv_pos); };
  add("none", Expr(), {}, [](const ref::Vars&) { return true; });
  add("causal", variants::causal(), {}, causal);
  add("window_9_4", variants::window(9, 4), {}, [=](const ref::Vars& v) { return distance(v) <= 9 && distance(v) >= -4; });
  add("window_left_open", variants::window(-1, 3), {}, [=](const ref::Vars& v) { return distance(v) >= -3; });
  add("window_right_open", variants::window(5, -1), {}, [=](const ref::Vars& v) { return distance(v) <= 5; });
  add("window_0_0", variants::window(0, 0), {}, [=](const ref::Vars& v) { return distance(v) == 0; });
  add("sliding_window_20", variants::sliding_window(20), {}, [=](const ref::Vars& v) { return distance(v) >= 0 && distance(v) < 20; });
  add("sliding_window_1", variants::sliding_window(1), {}, [=](const ref::Vars& v) { return distance(v) == 0; });
  add("chunked_local_16", variants::chunked_local(16), {}, [=](const ref::Vars& v) {
    const auto chunk = [](std::int64_t p) { return p >= 0 ? p / 16 : (p - 15) / 16; };
    return distance(v) >= 0 && chunk(v.i(Var::q_pos)) == chunk(v.i(Var::kv_pos));
  });
  add("first_4_or_window_8", variants::causal() & (variants::first_tokens(4) | variants::window(8)), {},
      [=](const ref::Vars& v) { return causal(v) && (v.i(Var::kv_pos) < 4 || distance(v) <= 8); });
  std::vector<std::int64_t> mask_start, tree_start;
  std::int64_t mask_bits = 3;
  std::int64_t tree_bits = 5;
  std::int64_t longest = 0;
  std::vector<std::int32_t> prefix;
  for (std::size_t r = 0; r < l.q.size(); ++r) {
    mask_start.push_back(mask_bits);
    tree_start.push_back(tree_bits);
    mask_bits += l.q[r] * l.kv[r];
    tree_bits += l.q[r] * l.q[r];
    longest = std::max(longest, l.kv[r]);
    prefix.push_back(static_cast<std::int32_t>(l.kv[r] / 3));
  }
  const std::vector<std::uint8_t> mask_data = random_bits(mask_bits, 7);
  const std::vector<std::uint8_t> tree_data = random_bits(tree_bits, 8);
  std::vector<std::int32_t> runs;  // 0 0 0 1 1 1 1 0 0 2 2 ... : ids in runs of uneven length
  for (std::int64_t p = 0; p < longest; ++p) runs.push_back(static_cast<std::int32_t>((p / 7 % 3 == 2) ? 0 : 1 + p / 21));
  std::vector<std::int32_t> documents;
  for (std::int64_t p = 0; p < longest; ++p) documents.push_back(static_cast<std::int32_t>(p / 13));
  const auto at = [](const auto& a, std::int64_t i) {
    return i < 0 || i >= static_cast<std::int64_t>(a.size()) ? 0 : static_cast<std::int64_t>(a[static_cast<std::size_t>(i)]);
  };
  for (ParamTime time : {ParamTime::plan, ParamTime::run}) {
    const std::string suffix = time == ParamTime::plan ? "_plan" : "_run";
    add("prefix_lm" + suffix, variants::prefix_lm(time), {{"prefix_len", time, prefix}},
        [=](const ref::Vars& v) { return causal(v) || v.i(Var::kv_pos) < at(prefix, v.i(Var::request)); });
    add("document" + suffix, variants::document(time) & variants::causal(), {{"document_id", time, documents}},
        [=](const ref::Vars& v) { return causal(v) && at(documents, v.i(Var::q_pos)) == at(documents, v.i(Var::kv_pos)); });
    add("custom_mask" + suffix, variants::custom_mask(time), {{"custom_mask", time, mask_data}, {"custom_mask_start", time, mask_start}},
        [=](const ref::Vars& v) {
          return bit_at(mask_data, at(mask_start, v.i(Var::request)) + v.i(Var::q_idx) * v.i(Var::kv_len) + v.i(Var::kv_pos));
        });
    add("tree" + suffix, variants::speculative_tree(time), {{"tree_mask", time, tree_data}, {"tree_mask_start", time, tree_start}},
        [=](const ref::Vars& v) {
          const std::int64_t draft = v.i(Var::kv_pos) - (v.i(Var::kv_len) - v.i(Var::q_len));
          return draft < 0 || bit_at(tree_data, at(tree_start, v.i(Var::request)) + v.i(Var::q_idx) * v.i(Var::q_len) + draft);
        });
    add("multi_item" + suffix, variants::multi_item(time), {{"prefix_len", time, prefix}, {"item_id", time, documents}},
        [=](const ref::Vars& v) {
          return causal(v) &&
                 (v.i(Var::kv_pos) < at(prefix, v.i(Var::request)) || at(documents, v.i(Var::q_pos)) == at(documents, v.i(Var::kv_pos)));
        });
    add("spans" + suffix, variants::causal_with_bidirectional_spans(time), {{"span_id", time, runs}}, [=](const ref::Vars& v) {
      const std::int64_t own = at(runs, v.i(Var::q_pos));
      return causal(v) || (own != 0 && own == at(runs, v.i(Var::kv_pos)));
    });
  }
  // Every variable and head-dependent masks, without a twin: the graph itself is evaluated.
  add("by_head", (kv_pos() + q_head()) % 3 != 0, {}, {});
  add("by_everything", ((kv_pos() * 5 + q_idx() + q_row() + request() * 2 + kv_head()) % 7 < 4) | (kv_len() - q_len() > kv_pos() + 30), {},
      {});
  return out;
}

inline std::vector<VariantCase> logit_variants(int num_qo_heads, int dim_qk, int dim_vo) {
  std::vector<VariantCase> out;
  const auto heads = [&](double from, double step) {
    std::vector<float> a;
    for (int h = 0; h < num_qo_heads; ++h) a.push_back(static_cast<float>(from + step * h));
    return a;
  };
  const auto add = [&](std::string name, std::vector<ref::Param> params = {}) -> VariantCase& {
    VariantCase v;
    v.name = std::move(name);
    v.variant.mask = variants::causal();
    v.params = std::move(params);
    out.push_back(std::move(v));
    return out.back();
  };
  for (float cap : {1.5F, 30.0F}) {
    VariantCase& v = add(fmt::format("soft_cap_{}", static_cast<int>(cap)));
    v.variant.logits = variants::soft_cap(cap);
    v.logits = [cap](double s, const ref::Vars&) { return cap * std::tanh(s / cap); };
  }
  add("soft_cap_scalar", {{"cap", ParamTime::run, 2.5}}).variant.logits = scalar("cap") * tanh(score() / scalar("cap"));
  {
    const std::vector<float> slopes = variants::alibi_slopes(num_qo_heads);
    VariantCase& v = add("alibi", {{"alibi_slopes", ParamTime::run, slopes}});
    v.variant.logits = variants::alibi();
    v.logits = [slopes](double s, const ref::Vars& vars) {
      return s + static_cast<double>(slopes[static_cast<std::size_t>(vars.i(Var::q_head))]) *
                     static_cast<double>(vars.i(Var::kv_pos) - vars.i(Var::q_pos));
    };
  }
  add("sinks", {{"sinks", ParamTime::run, heads(-1, 0.7)}}).variant.sink = variants::sinks();
  {
    VariantCase& v = add("sinks_window_cap", {{"sinks", ParamTime::run, heads(0.5, -0.3)}});
    v.variant.sink = variants::sinks();
    v.variant.mask = variants::sliding_window(12);
    v.variant.logits = variants::soft_cap(20);
  }
  add("bias_by_positions").variant.logits = score() - log(Expr(1.0) + abs(q_pos() - kv_pos())) * sigmoid(sqrt(abs(score())));
  add("select_min_max_exp").variant.logits = select(kv_pos() % 2 == 0, min(score(), Expr(1.0)), max(score() * 0.5, -exp(score() * 0.1)));
  {
    VariantCase& v = add("sigmoid");
    v.variant.softmax = false;
    v.variant.logits = variants::sigmoid_logits(-2.0F);
    v.logits = [](double s, const ref::Vars&) { return 1 / (1 + std::exp(2.0 - s)); };
  }
  {
    VariantCase& v = add("linear_sum");
    v.variant.softmax = false;
    v.variant.logits = score();
  }
  std::vector<float> weights;
  for (int d = 0; d < std::max(dim_qk, dim_vo); ++d)
    weights.push_back(static_cast<float>(0.5 + uniform(mix(static_cast<std::uint64_t>(d)))));
  {
    VariantCase& v = add("qk_norm", {{"q_weight", ParamTime::run, weights}, {"k_weight", ParamTime::run, weights}});
    v.variant.query = variants::rms_norm("q_weight", 1e-6F);
    v.variant.key = variants::rms_norm("k_weight", 1e-6F);
  }
  {
    VariantCase& v =
        add("value_scale_output_gate", {{"gate", ParamTime::run, heads(0.25, 0.5)}, {"value_scale", ParamTime::plan, weights}});
    v.variant.value = x() * ArrayParam("value_scale", DType::f32, ParamTime::plan)[dim()];
    v.variant.output = x() * sigmoid(ArrayParam("gate", DType::f32)[q_head()]);
  }
  {
    VariantCase& v = add("key_by_position");
    v.variant.key = x() * (Expr(1.0) + Expr(0.01) * (kv_pos() % 10)) + Expr(0.001) * dim();
    v.variant.query = x() * (Expr(1.0) + Expr(0.02) * (q_idx() + q_head()));
    v.variant.value = x() + Expr(0.1) * kv_head() + Expr(0.001) * kv_pos();
  }
  {
    VariantCase& v = add("rope");
    v.variant.rope = Rope{};
  }
  add("rope_interleave").variant.rope =
      Rope{.theta = 500000, .scale = 1, .rotary_dim = 0, .rotary_begin = 0, .interleave = true, .llama31 = {}};
  add("rope_partial_scaled").variant.rope =
      Rope{.theta = 10000, .scale = 4, .rotary_dim = 24, .rotary_begin = 0, .interleave = false, .llama31 = {}};
  add("rope_begin").variant.rope =
      Rope{.theta = 10000, .scale = 1, .rotary_dim = 16, .rotary_begin = dim_qk - 16, .interleave = true, .llama31 = {}};
  add("rope_llama31").variant.rope =
      Rope{.theta = 500000, .scale = 1, .rotary_dim = 0, .rotary_begin = 0, .interleave = false, .llama31 = Rope::Llama31{}};
  {
    VariantCase& v = add("rope_norm", {{"q_weight", ParamTime::run, weights}, {"k_weight", ParamTime::run, weights}});
    v.variant.query = variants::rms_norm("q_weight", 1e-5F);
    v.variant.key = variants::rms_norm("k_weight", 1e-5F);
    v.variant.rope = Rope{};
  }
  return out;
}

inline std::vector<AttentionCase> variant_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](const VariantCase& v, const Lengths& l, AttentionSpec spec, Layout layout) {
    spec.variant = v.variant;
    spec.variant.name = v.name;
    if (!v.variant.softmax) spec.lse = LseKind::none;
    cases.push_back(make_case(fmt::format("{}_{}", v.name, l.name), spec, l, layout));
    cases.back().params = v.params;
    cases.back().mask = v.mask;
    cases.back().logits = v.logits;
  };
  for (std::string_view l : {"single_prefill", "append", "mixed"}) {
    for (const VariantCase& v : mask_variants(lengths(l))) add(v, lengths(l), make_spec(4, 2, 32), Layout::nhd);
    for (const VariantCase& v : logit_variants(6, 64, 64))
      add(v, lengths(l), make_spec(6, 2, 64), cases.size() % 2 ? Layout::hnd : Layout::ragged);
  }
  // Several tiles of many rows, some with a part of a token's heads; heads in numbers that are no power of two; O in bf16, so that the
  // products in bf16 are used where there are any.
  struct Heads {
    int qo, kv;
    Lengths lengths;
  };
  for (const Heads& heads : {Heads{2, 2, {"tiles_of_2", {100, 1, 267}, {230, 40, 267}}},
                             {6, 2, {"tiles_of_6", {100, 1, 67}, {230, 40, 67}}},
                             {12, 1, {"tiles_of_12", {40, 1, 67}, {130, 40, 67}}},
                             {100, 1, {"tiles_of_100", {9, 2}, {70, 131}}}}) {
    const Lengths& l = heads.lengths;
    for (const VariantCase& v : mask_variants(l)) {
      add(v, l, make_spec(heads.qo, heads.kv, 32), Layout::nhd);
      cases.back().spec.o_dtype = cases.size() % 4 == 0 ? DType::f32 : DType::bf16;
    }
    for (const VariantCase& v : logit_variants(heads.qo, 32, 32)) {
      if (v.variant.logits.node() == nullptr) continue;
      add(v, l, make_spec(heads.qo, heads.kv, 32), Layout::nhd);
      cases.back().spec.o_dtype = cases.size() % 4 == 0 ? DType::f32 : DType::bf16;
    }
  }
  // Tiles of one, two and three warpgroups on Hopper, whose kernels for 64 and 128 dims differ.
  const Lengths tall{"tall", {70, 45, 1, 64, 20}, {150, 45, 30, 64, 400}};
  for (const int dim : {64, 128}) {
    std::vector<VariantCase> variants = mask_variants(tall);
    for (VariantCase& v : logit_variants(6, dim, dim)) variants.push_back(std::move(v));
    for (VariantCase& v : variants) {
      constexpr std::array<std::string_view, 6> kNames = {"window_9_4", "custom_mask_run", "soft_cap_30",
                                                          "alibi",      "sigmoid",         "sinks_window_cap"};
      if (std::find(kNames.begin(), kNames.end(), v.name) == kNames.end()) continue;
      v.name = fmt::format("dims{}_{}", dim, v.name);
      add(v, tall, make_spec(6, 2, dim), Layout::nhd);
    }
  }
  // RoPE positions apart from mask positions, and RoPE over a cascade.
  for (bool interleave : {false, true}) {
    AttentionCase c = make_case(fmt::format("rope_positions_given_{}", interleave), make_spec(4, 2, 64), {"", {5, 1}, {40, 70}});
    c.spec.variant.rope = Rope{.theta = 10000, .scale = 1, .rotary_dim = 0, .rotary_begin = 0, .interleave = interleave, .llama31 = {}};
    c.q_rope_pos = {1000, 7};
    c.segments[0].kv_rope_pos = {500, 90};
    cases.push_back(std::move(c));
    c = cascade(fmt::format("rope_cascade_{}", interleave), 2, {"", {1, 3, 1}, {20, 3, 33}}, Layout::nhd, variants::causal());
    c.spec.variant.rope = cases.back().spec.variant.rope;
    cases.push_back(std::move(c));
  }
  {
    AttentionCase c = make_case("rope_mla", make_spec(4, 1, 96, 64), lengths("append"));
    c.spec.v_is_k = true;
    c.spec.head_dim_rope = 32;
    c.spec.variant.rope = Rope{.theta = 10000, .scale = 1, .rotary_dim = 32, .rotary_begin = 64, .interleave = true, .llama31 = {}};
    cases.push_back(std::move(c));
  }
  for (VariantCase v : logit_variants(6, 576, 512)) {
    if (v.name != "sinks_window_cap" && v.name != "sigmoid") continue;
    AttentionSpec spec = make_spec(6, 1, 576, 512);
    spec.v_is_k = true;
    v.name = "mla576_" + v.name;
    add(v, lengths("mixed"), spec, Layout::nhd);
  }
  for (LseKind lse : {LseKind::none, LseKind::base2}) {
    for (std::string_view l : {"decode", "mixed"}) {
      AttentionCase c = make_case(fmt::format("lse_{}_{}", lse == LseKind::none ? "none" : "base2", l), make_spec(4, 2, 32), lengths(l));
      c.spec.lse = lse;
      cases.push_back(std::move(c));
    }
  }
  for (const VariantCase& v : logit_variants(4, 64, 64)) {
    if (v.name != "sinks" && v.name != "value_scale_output_gate") continue;
    AttentionSpec spec = make_spec(4, 2, 64);
    spec.partial_state = true;
    VariantCase partial = v;
    partial.name = "partial_" + v.name;
    add(partial, lengths("mixed"), spec, Layout::nhd);
  }
  return cases;
}

}  // namespace girih::cases
