// Merging attention states against the formula: finite, empty and extreme states, two and many, in place, all types and shapes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "cases/check.h"
#include "ref/merge.h"

namespace girih {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Rows of states: v [rows, heads, dim] of `type`, s [rows, heads].
struct States {
  States(DType type, std::int64_t rows, std::int64_t heads, std::int64_t dim, std::uint64_t seed = 0)
      : type(type), rows(rows), heads(heads), dim(dim), v_bytes(static_cast<std::size_t>(std::max<std::int64_t>(1, rows * heads * dim) * bits(type) / 8), std::byte{0xff}),
        s(static_cast<std::size_t>(std::max<std::int64_t>(1, rows * heads)), std::numeric_limits<float>::quiet_NaN()) {
    if (seed == 0) return;
    std::mt19937_64 rng(seed);
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < rows * heads * dim; ++i) set_v(i, normal(rng));
    for (std::int64_t i = 0; i < rows * heads; ++i) s[static_cast<std::size_t>(i)] = static_cast<float>(5 * normal(rng));
  }
  void set_v(std::int64_t i, double x) { ref::store_code(v_bytes.data(), type, i, bits(type) / 8, ref::encode(type, x)); }
  double v(std::int64_t i) const { return ref::decode(type, ref::load_code(v_bytes.data(), type, i, bits(type) / 8)); }
  ref::State state(std::int64_t row, std::int64_t head) const {
    ref::State out;
    for (std::int64_t d = 0; d < dim; ++d) out.v.push_back(v((row * heads + head) * dim + d));
    out.lse = static_cast<double>(s[static_cast<std::size_t>(row * heads + head)]);
    return out;
  }
  TensorView v_view() { return {v_bytes.data(), type, {rows, heads, dim}}; }
  TensorView s_view() { return {s.data(), DType::f32, {rows, heads}}; }
  void make_empty(std::int64_t row) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t d = 0; d < dim; ++d) set_v((row * heads + h) * dim + d, 0);
      s[static_cast<std::size_t>(row * heads + h)] = -kInf;
    }
  }

  DType type;
  std::int64_t rows, heads, dim;
  std::vector<std::byte> v_bytes;
  std::vector<float> s;
};

void expect_state(const States& out, std::int64_t row, std::int64_t head, const ref::State& want) {
  const double eps = out.type == DType::bf16 ? 0x1p-8 : out.type == DType::f16 ? 0x1p-10 : 0x1p-20;
  const ref::State got = out.state(row, head);
  if (std::isinf(want.lse)) EXPECT_EQ(got.lse, want.lse);
  else EXPECT_NEAR(got.lse, want.lse, 0x1p-20 * (1 + std::fabs(want.lse)));
  for (std::size_t d = 0; d < want.v.size(); ++d) {
    ASSERT_NEAR(got.v[d], want.v[d], eps * (std::fabs(want.v[d]) + 0.01) + 0x1p-18) << "row " << row << " head " << head << " dim " << d;
  }
}

void check_two(DType type, std::int64_t rows, std::int64_t heads, std::int64_t dim, int workers = 1) {
  for (CpuTarget target : available_cpu_targets()) {
    Context& context = cases::context_for(target, workers);
    States a(type, rows, heads, dim, 1);
    States b(type, rows, heads, dim, 2);
    if (rows > 2) {
      a.make_empty(1);
      b.make_empty(2);
    }
    States out(type, rows, heads, dim);
    merge_state(context, a.v_view(), a.s_view(), b.v_view(), b.s_view(), out.v_view(), out.s_view());
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t h = 0; h < heads; ++h) expect_state(out, r, h, ref::merge(std::array{a.state(r, h), b.state(r, h)}, static_cast<std::size_t>(dim)));
    }
    States in_place = a;
    merge_state(context, in_place.v_view(), in_place.s_view(), b.v_view(), b.s_view(), in_place.v_view(), in_place.s_view());
    EXPECT_EQ(in_place.v_bytes, out.v_bytes);
    EXPECT_EQ(in_place.s, out.s);
  }
}

TEST(Merge, TwoStatesOfEveryTypeAndShape) {
  for (DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (std::int64_t dim : {1, 3, 64, 80, 128, 576}) check_two(type, 5, 3, dim);
    check_two(type, 40, 7, 128, 2);
    check_two(type, 0, 4, 64);
  }
}

TEST(Merge, Base2StatesMergeAsNaturalOnes) {
  Context& context = cases::context_for(CpuTarget::best, 1);
  States a(DType::f32, 4, 2, 16, 1);
  States b(DType::f32, 4, 2, 16, 2);
  States natural(DType::f32, 4, 2, 16);
  merge_state(context, a.v_view(), a.s_view(), b.v_view(), b.s_view(), natural.v_view(), natural.s_view());
  States out(DType::f32, 4, 2, 16);
  for (float& s : a.s) s *= static_cast<float>(std::numbers::log2e);
  for (float& s : b.s) s *= static_cast<float>(std::numbers::log2e);
  merge_state(context, a.v_view(), a.s_view(), b.v_view(), b.s_view(), out.v_view(), out.s_view(), true);
  for (std::int64_t r = 0; r < 4; ++r) {
    for (std::int64_t h = 0; h < 2; ++h) {
      ref::State want = natural.state(r, h);
      want.lse *= std::numbers::log2e;
      expect_state(out, r, h, want);
    }
  }
}

TEST(Merge, ManyStatesAndVariableLengths) {
  for (CpuTarget target : available_cpu_targets()) {
    Context& context = cases::context_for(target, 1);
    for (std::int64_t n : {1, 2, 5, 17}) {
      States in(DType::f32, 3 * n, 4, 72, 5);
      in.make_empty(0);
      States out(DType::f32, 3, 4, 72);
      merge_states(context, TensorView(in.v_bytes.data(), DType::f32, {3, n, 4, 72}), TensorView(in.s.data(), DType::f32, {3, n, 4}), out.v_view(), out.s_view());
      for (std::int64_t r = 0; r < 3; ++r) {
        for (std::int64_t h = 0; h < 4; ++h) {
          std::vector<ref::State> states;
          for (std::int64_t i = 0; i < n; ++i) states.push_back(in.state(r * n + i, h));
          expect_state(out, r, h, ref::merge(states, 72));
        }
      }
    }
    const std::vector<std::int32_t> indptr{0, 0, 3, 4, 4, 11};
    States in(DType::bf16, 11, 2, 40, 6);
    in.make_empty(3);
    States out(DType::bf16, 5, 2, 40);
    merge_states_varlen(context, in.v_view(), in.s_view(), indptr, out.v_view(), out.s_view());
    for (std::int64_t r = 0; r < 5; ++r) {
      for (std::int64_t h = 0; h < 2; ++h) {
        std::vector<ref::State> states;
        for (std::int64_t i = indptr[static_cast<std::size_t>(r)]; i < indptr[static_cast<std::size_t>(r) + 1]; ++i) states.push_back(in.state(i, h));
        expect_state(out, r, h, ref::merge(states, 40));
      }
    }
  }
}

TEST(Regression, A01_MergeOfTwoEmptyStatesIsEmpty) {
  for (CpuTarget target : available_cpu_targets()) {
    Context& context = cases::context_for(target, 1);
    States a(DType::f16, 1, 1, 64);
    a.make_empty(0);
    States b = a;
    States out(DType::f16, 1, 1, 64);
    merge_state(context, a.v_view(), a.s_view(), b.v_view(), b.s_view(), out.v_view(), out.s_view());
    expect_state(out, 0, 0, ref::merge({}, 64));
    merge_state(context, a.v_view(), a.s_view(), b.v_view(), b.s_view(), a.v_view(), a.s_view());
    expect_state(a, 0, 0, ref::merge({}, 64));
    States many(DType::f16, 3, 1, 64);
    for (int i = 0; i < 3; ++i) many.make_empty(i);
    States one(DType::f16, 1, 1, 64);
    merge_states(context, TensorView(many.v_bytes.data(), DType::f16, {1, 3, 1, 64}), TensorView(many.s.data(), DType::f32, {1, 3, 1}), one.v_view(), one.s_view());
    expect_state(one, 0, 0, ref::merge({}, 64));
    States varlen(DType::f16, 1, 1, 64);
    merge_states_varlen(context, many.v_view(), many.s_view(), std::vector<std::int32_t>{0, 3}, varlen.v_view(), varlen.s_view());
    expect_state(varlen, 0, 0, ref::merge({}, 64));
  }
}

TEST(Regression, A02_MergeKeepsFiniteStatesBitExactAndAveragesVeryNegativeOnes) {
  for (CpuTarget target : available_cpu_targets()) {
    Context& context = cases::context_for(target, 1);
    States finite(DType::f16, 1, 2, 64, 9);
    States empty(DType::f16, 1, 2, 64);
    empty.make_empty(0);
    for (bool swapped : {false, true}) {
      States out(DType::f16, 1, 2, 64);
      States& a = swapped ? empty : finite;
      States& b = swapped ? finite : empty;
      merge_state(context, a.v_view(), a.s_view(), b.v_view(), b.s_view(), out.v_view(), out.s_view());
      EXPECT_EQ(out.v_bytes, finite.v_bytes);
      EXPECT_EQ(out.s, finite.s);
    }
    States none(DType::f32, 1, 2, 64);
    States out(DType::f32, 1, 2, 64);
    merge_states(context, TensorView(none.v_bytes.data(), DType::f32, {1, 0, 2, 64}), TensorView(none.s.data(), DType::f32, {1, 0, 2}), out.v_view(), out.s_view());
    for (int h = 0; h < 2; ++h) expect_state(out, 0, h, ref::merge({}, 64));
    States a(DType::f32, 1, 1, 8, 3);
    States b(DType::f32, 1, 1, 8, 4);
    a.s[0] = b.s[0] = -1e30F;
    States averaged(DType::f32, 1, 1, 8);
    merge_state(context, a.v_view(), a.s_view(), b.v_view(), b.s_view(), averaged.v_view(), averaged.s_view());
    for (int d = 0; d < 8; ++d) EXPECT_NEAR(averaged.v(d), (a.v(d) + b.v(d)) / 2, 1e-6);
    EXPECT_EQ(averaged.s[0], -1e30F);
  }
}

TEST(Regression, B14_MergeWithAnyNumberOfHeads) {
  for (std::int64_t heads : {65, 96, 97, 128, 200}) {
    for (std::int64_t dim : {128, 256}) check_two(DType::bf16, 3, heads, dim);
  }
}

TEST(Regression, E08_SplitPrefixAndExtensionMergeToTheWhole) {
  // 4096 keys of prefix and 64 of extension, bf16: attention over each part, merged, against attention over all keys.
  AttentionSpec spec;
  spec.num_qo_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim_qk = 64;
  spec.head_dim_vo = 64;
  spec.lse = LseKind::natural;
  cases::AttentionCase whole;
  whole.name = "whole";
  whole.spec = spec;
  whole.q_len = {64};
  whole.segments.push_back({.qo_indptr = {}, .kv_len = {4160}});
  whole.spec.variant.mask = variants::causal();
  const cases::Problem p(whole);
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    cases::AttentionCase c = whole;
    c.spec.partial_state = true;
    c.segments[0].kv_len = {end - begin};
    c.segments[0].kv_pos = {begin};
    c.kv_len = {4160};
    c.edit = [&p, begin](const cases::Site& site, double drawn) {
      cases::Site at = site;
      at.index += begin;
      return site.plane == cases::Plane::q ? drawn : p.value(at);
    };
    return c;
  };
  const cases::Problem prefix(part(0, 4096));
  const cases::Problem extension(part(4096, 4160));
  Context& context = cases::context_for(CpuTarget::best, 2);
  const cases::Outputs a = cases::execute(prefix, context);
  const cases::Outputs b = cases::execute(extension, context);
  cases::Outputs merged(p);
  merge_state(context, a.o, a.lse, b.o, b.lse, merged.o, merged.lse);
  const std::vector<ref::RowResult> want = cases::reference(p);
  for (std::int64_t t = 0; t < 64; ++t) {
    for (std::int64_t h = 0; h < 4; ++h) {
      const ref::RowResult& row = want[static_cast<std::size_t>(t * 4 + h)];
      EXPECT_NEAR(merged.lse_at(t, h), row.lse, 1e-4);
      for (std::int64_t d = 0; d < 64; ++d) ASSERT_NEAR(merged.o_at(t, h, d), row.o[static_cast<std::size_t>(d)], 1e-3);
    }
  }
}

}  // namespace
}  // namespace girih
