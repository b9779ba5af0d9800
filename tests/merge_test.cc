// The merge of attention states against the double-precision formula, and the rules at its edges: empty states, states alone, very
// negative, infinite and NaN LSEs, aliasing, strides, zero states.
#include "ref/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "girih/attention.h"

namespace girih {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

Context& context() {
  static Context instance{ContextOptions{.num_workers = 3}};
  return instance;
}

/// A dense tensor that owns its bytes; NaN-poisoned (all bits set) at first.
struct Tensor {
  std::vector<unsigned char> memory;
  TensorView view;

  Tensor(DType t, std::initializer_list<std::int64_t> shape) : view(nullptr, t, shape) {
    memory.assign(static_cast<std::size_t>(bytes(t, view.numel())) + 1, 0xff);
    view.data = memory.data();
  }
  void set(std::int64_t i, float x) { store_element(view.dtype, view.data, i, x); }
  float get(std::int64_t i) const { return load_element(view.dtype, view.data, i); }
  void randomise(std::mt19937& random, float spread) {
    std::normal_distribution<float> normal(0, spread);
    for (std::int64_t i = 0; i < view.numel(); ++i) set(i, normal(random));
  }
  bool same_bytes(const Tensor& other) const { return memory == other.memory; }
};

double tolerance(DType t) { return t == DType::f32 ? 2e-6 : (t == DType::f16 ? 6e-4 : 5e-3); }

/// Compares row `cell` (of dim values) of an output with a reference state.
void expect_state(const Tensor& v, const Tensor& s, std::int64_t cell, const ref::State& expected, const std::string& what) {
  const auto dim = static_cast<std::int64_t>(expected.v.size());
  const double got_s = static_cast<double>(s.get(cell));
  if (std::isfinite(expected.s)) {
    ASSERT_NEAR(got_s, expected.s, 2e-6 * std::max(1.0, std::fabs(expected.s))) << what;
  } else {
    ASSERT_EQ(got_s, expected.s) << what;
  }
  for (std::int64_t d = 0; d < dim; ++d) {
    const double e = expected.v[static_cast<std::size_t>(d)];
    ASSERT_NEAR(static_cast<double>(v.get(cell * dim + d)), e, tolerance(v.view.dtype) * std::max(1.0, std::fabs(e)))
        << what << " dim " << d;
  }
}

/// State `cell` of dense v and s.
ref::State state_of(const Tensor& v, const Tensor& s, std::int64_t cell, std::int64_t dim) {
  ref::State state;
  state.s = static_cast<double>(s.get(cell));
  for (std::int64_t d = 0; d < dim; ++d) state.v.push_back(static_cast<double>(v.get(cell * dim + d)));
  return state;
}

void check_pair(DType t, std::int64_t n, std::int64_t heads, std::int64_t dim, bool base2, unsigned seed) {
  std::mt19937 random(seed);
  Tensor v_a(t, {n, heads, dim}), v_b(t, {n, heads, dim}), v_out(t, {n, heads, dim});
  Tensor s_a(DType::f32, {n, heads}), s_b(DType::f32, {n, heads}), s_out(DType::f32, {n, heads});
  v_a.randomise(random, 1);
  v_b.randomise(random, 1);
  s_a.randomise(random, 4);
  s_b.randomise(random, 4);
  merge_state(context(), v_a.view, s_a.view, v_b.view, s_b.view, v_out.view, s_out.view, base2);
  for (std::int64_t cell = 0; cell < n * heads; ++cell) {
    const ref::State expected =
        ref::merge({state_of(v_a, s_a, cell, dim), state_of(v_b, s_b, cell, dim)}, static_cast<std::size_t>(dim), base2);
    expect_state(v_out, s_out, cell, expected, std::string(name(t)) + " cell " + std::to_string(cell));
  }
}

TEST(Merge, RandomPairsMatchTheFormula) {
  for (const DType t : {DType::f32, DType::f16, DType::bf16}) {
    check_pair(t, 5, 3, 64, false, 1);
    check_pair(t, 2, 2, 1, false, 2);
    check_pair(t, 1, 1, 1100, false, 3);
    check_pair(t, 4, 2, 40, true, 4);
  }
}

TEST(Merge, B14_ManyHeadsAndWideDims) {
  for (const std::int64_t heads : {65, 96, 97, 128, 200}) {
    for (const std::int64_t dim : {128, 256}) {
      check_pair(DType::bf16, 3, heads, dim, false, static_cast<unsigned>(heads + dim));
      check_pair(DType::f32, 1, heads, dim, false, static_cast<unsigned>(heads + dim));
    }
  }
}

TEST(Merge, A01_EmptyStatesMergeToEmpty) {
  for (const DType t : {DType::f16, DType::bf16, DType::f32}) {
    Tensor v(t, {1, 1, 64}), s(DType::f32, {1, 1}), v_out(t, {1, 1, 64}), s_out(DType::f32, {1, 1});
    for (int i = 0; i < 64; ++i) v.set(i, 0);
    s.set(0, -kInf);
    const ref::State empty{std::vector<double>(64, 0.0), -std::numeric_limits<double>::infinity()};
    merge_state(context(), v.view, s.view, v.view, s.view, v_out.view, s_out.view);
    expect_state(v_out, s_out, 0, empty, "pair");

    Tensor v_n(t, {1, 3, 1, 64}), s_n(DType::f32, {1, 3, 1}), v_o(t, {1, 1, 64}), s_o(DType::f32, {1, 1});
    for (int i = 0; i < 3; ++i) s_n.set(i, -kInf);  // their values stay NaN: an empty state's values are never used
    merge_states(context(), v_n.view, s_n.view, v_o.view, s_o.view);
    expect_state(v_o, s_o, 0, empty, "many");

    Tensor v_l(t, {3, 1, 64}), s_l(DType::f32, {3, 1}), v_p(t, {2, 1, 64}), s_p(DType::f32, {2, 1});
    for (int i = 0; i < 3; ++i) s_l.set(i, -kInf);
    merge_states_varlen(context(), v_l.view, s_l.view, std::vector<std::int32_t>{0, 3, 3}, v_p.view, s_p.view);
    expect_state(v_p, s_p, 0, empty, "varlen");
    expect_state(v_p, s_p, 1, empty, "varlen of zero states");

    merge_state(context(), v.view, s.view, v.view, s.view, v.view, s.view);
    expect_state(v, s, 0, empty, "in place");
  }
}

TEST(Merge, A02_FiniteWithEmptyIsBitExact) {
  std::mt19937 random(7);
  for (const DType t : {DType::f16, DType::bf16, DType::f32}) {
    const std::int64_t n = 3, heads = 2, dim = 72;
    Tensor v(t, {n, heads, dim}), s(DType::f32, {n, heads}), v_none(t, {n, heads, dim}), s_none(DType::f32, {n, heads});
    v.randomise(random, 3);
    v.set(0, -0.0F);
    v.set(1, kNan);
    v.set(2, kInf);
    s.randomise(random, 50);
    s.set(0, -1e30F);
    for (std::int64_t i = 0; i < n * heads; ++i) s_none.set(i, -kInf);
    for (const bool finite_first : {true, false}) {
      Tensor v_out(t, {n, heads, dim}), s_out(DType::f32, {n, heads});
      if (finite_first) {
        merge_state(context(), v.view, s.view, v_none.view, s_none.view, v_out.view, s_out.view);
      } else {
        merge_state(context(), v_none.view, s_none.view, v.view, s.view, v_out.view, s_out.view);
      }
      EXPECT_TRUE(v_out.same_bytes(v)) << name(t);
      EXPECT_TRUE(s_out.same_bytes(s)) << name(t);
    }
    // In place, both ways.
    Tensor v_copy = v, s_copy = s;
    v_copy.view.data = v_copy.memory.data();
    s_copy.view.data = s_copy.memory.data();
    merge_state(context(), v_copy.view, s_copy.view, v_none.view, s_none.view, v_copy.view, s_copy.view);
    EXPECT_TRUE(v_copy.same_bytes(v) && s_copy.same_bytes(s)) << name(t);
    merge_state(context(), v_copy.view, s_copy.view, v_none.view, s_none.view, v_none.view, s_none.view);
    EXPECT_TRUE(v_none.same_bytes(v) && s_none.same_bytes(s)) << name(t);
  }
}

TEST(Merge, A02_ZeroStatesAreEmpty) {
  Tensor v_out(DType::bf16, {4, 3, 20}), s_out(DType::f32, {4, 3});
  const ref::State empty{std::vector<double>(20, 0.0), -std::numeric_limits<double>::infinity()};
  merge_states(context(), TensorView(nullptr, DType::bf16, {4, 0, 3, 20}), TensorView(nullptr, DType::f32, {4, 0, 3}), v_out.view,
               s_out.view);
  for (int cell = 0; cell < 12; ++cell) expect_state(v_out, s_out, cell, empty, "merge_states");
  Tensor v_two(DType::bf16, {4, 3, 20}), s_two(DType::f32, {4, 3});
  merge_states_varlen(context(), TensorView(nullptr, DType::bf16, {0, 3, 20}), TensorView(nullptr, DType::f32, {0, 3}),
                      std::vector<std::int64_t>{0, 0, 0, 0, 0}, v_two.view, s_two.view);
  for (int cell = 0; cell < 12; ++cell) expect_state(v_two, s_two, cell, empty, "varlen");
}

TEST(Merge, A02_VeryNegativeFiniteLsesAreAveraged) {
  for (const float lse : {-1e30F, -3.4e38F, 1e30F}) {
    Tensor v_a(DType::f32, {1, 1, 8}), v_b(DType::f32, {1, 1, 8}), s(DType::f32, {1, 1}), v_out(DType::f32, {1, 1, 8}),
        s_out(DType::f32, {1, 1});
    for (int i = 0; i < 8; ++i) v_a.set(i, static_cast<float>(i)), v_b.set(i, static_cast<float>(3 * i));
    s.set(0, lse);
    merge_state(context(), v_a.view, s.view, v_b.view, s.view, v_out.view, s_out.view);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(v_out.get(i), static_cast<float>(2 * i)) << lse;
    EXPECT_EQ(s_out.get(0), lse);
  }
}

TEST(Merge, InfiniteAndNanLses) {
  Tensor v(DType::f32, {1, 4, 1, 1}), s(DType::f32, {1, 4, 1}), v_out(DType::f32, {1, 1, 1}), s_out(DType::f32, {1, 1});
  const float values[] = {1, 2, 4, kNan};
  const float with_inf[] = {5, kInf, kInf, -kInf};
  for (int i = 0; i < 4; ++i) v.set(i, values[i]), s.set(i, with_inf[i]);
  merge_states(context(), v.view, s.view, v_out.view, s_out.view);
  EXPECT_EQ(v_out.get(0), 3.0F);
  EXPECT_EQ(s_out.get(0), kInf);
  s.set(0, kNan);
  merge_states(context(), v.view, s.view, v_out.view, s_out.view);
  EXPECT_TRUE(std::isnan(v_out.get(0)) && std::isnan(s_out.get(0)));
}

TEST(Merge, LargeValuesDoNotOverflow) {
  Tensor v(DType::f32, {1, 5, 1, 2}), s(DType::f32, {1, 5, 1}), v_out(DType::f32, {1, 1, 2}), s_out(DType::f32, {1, 1});
  for (int i = 0; i < 5; ++i) v.set(2 * i, 3e38F), v.set(2 * i + 1, -3e38F), s.set(i, 700.0F);
  merge_states(context(), v.view, s.view, v_out.view, s_out.view);
  EXPECT_NEAR(v_out.get(0), 3e38F, 1e32F);
  EXPECT_NEAR(v_out.get(1), -3e38F, 1e32F);
  EXPECT_NEAR(s_out.get(0), 700.0F + std::log(5.0F), 1e-4F);
}

TEST(Merge, ManyStatesMatchTheFormulaWithSomeEmpty) {
  std::mt19937 random(11);
  for (const DType t : {DType::f32, DType::f16, DType::bf16}) {
    const std::int64_t n = 4, states = 9, heads = 5, dim = 33;
    Tensor v(t, {n, states, heads, dim}), s(DType::f32, {n, states, heads}), v_out(t, {n, heads, dim}), s_out(DType::f32, {n, heads});
    v.randomise(random, 1);
    s.randomise(random, 5);
    for (std::int64_t i = 0; i < n * states * heads; i += 4) s.set(i, -kInf);
    for (const bool base2 : {false, true}) {
      merge_states(context(), v.view, s.view, v_out.view, s_out.view, base2);
      for (std::int64_t row = 0; row < n; ++row) {
        for (std::int64_t head = 0; head < heads; ++head) {
          std::vector<ref::State> list;
          for (std::int64_t i = 0; i < states; ++i) list.push_back(state_of(v, s, (row * states + i) * heads + head, dim));
          expect_state(v_out, s_out, row * heads + head, ref::merge(list, static_cast<std::size_t>(dim), base2), std::string(name(t)));
        }
      }
    }
  }
}

TEST(Merge, VariableLengthsMatchTheFormula) {
  std::mt19937 random(13);
  const std::int64_t heads = 3, dim = 24;
  const std::vector<std::int32_t> indptr{2, 3, 3, 8, 10};  // starts past 0: the first two states belong to no row
  Tensor v(DType::f16, {12, heads, dim}), s(DType::f32, {12, heads}), v_out(DType::f16, {4, heads, dim}), s_out(DType::f32, {4, heads});
  v.randomise(random, 1);
  s.randomise(random, 3);
  merge_states_varlen(context(), v.view, s.view, indptr, v_out.view, s_out.view);
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      std::vector<ref::State> list;
      for (std::int64_t i = indptr[row]; i < indptr[row + 1]; ++i) list.push_back(state_of(v, s, i * heads + head, dim));
      expect_state(v_out, s_out, static_cast<std::int64_t>(row) * heads + head, ref::merge(list, static_cast<std::size_t>(dim)), "varlen");
    }
  }
}

TEST(Merge, E08_SplitPrefixMergesToTheWhole) {
  // One query row over 4,096 keys plus an extension of 40: both parts by direct softmax in double, rounded to bf16, then merged.
  std::mt19937 random(17);
  std::normal_distribution<double> normal;
  const std::size_t dim = 128, prefix = 4096, total = prefix + 40;
  std::vector<double> scores(total), values(total * dim);
  for (double& x : scores) x = normal(random);
  for (double& x : values) x = normal(random);
  const auto attend = [&](std::size_t begin, std::size_t end) {
    ref::State state{std::vector<double>(dim, 0.0), 0.0};
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += std::exp(scores[i]);
    for (std::size_t i = begin; i < end; ++i) {
      for (std::size_t d = 0; d < dim; ++d) state.v[d] += std::exp(scores[i]) / sum * values[i * dim + d];
    }
    state.s = std::log(sum);
    return state;
  };
  const ref::State whole = attend(0, total);
  Tensor v_a(DType::bf16, {1, 1, 128}), v_b(DType::bf16, {1, 1, 128}), s_a(DType::f32, {1, 1}), s_b(DType::f32, {1, 1});
  Tensor v_out(DType::bf16, {1, 1, 128}), s_out(DType::f32, {1, 1});
  const ref::State a = attend(0, prefix), b = attend(prefix, total);
  for (std::size_t d = 0; d < dim; ++d) {
    v_a.set(static_cast<std::int64_t>(d), static_cast<float>(a.v[d]));
    v_b.set(static_cast<std::int64_t>(d), static_cast<float>(b.v[d]));
  }
  s_a.set(0, static_cast<float>(a.s));
  s_b.set(0, static_cast<float>(b.s));
  merge_state(context(), v_a.view, s_a.view, v_b.view, s_b.view, v_out.view, s_out.view);
  for (std::size_t d = 0; d < dim; ++d) EXPECT_NEAR(static_cast<double>(v_out.get(static_cast<std::int64_t>(d))), whole.v[d], 1e-3);
  EXPECT_NEAR(static_cast<double>(s_out.get(0)), whole.s, 1e-5) << "natural logarithm";
}

TEST(Merge, StridesOfEveryKindAndMixedTypes) {
  std::mt19937 random(19);
  const std::int64_t n = 3, heads = 4, dim = 10;
  // v_a: heads outermost; v_b: dims strided and rows reversed; the output interleaved in a wider tensor.
  Tensor base_a(DType::f16, {heads, n, dim}), base_b(DType::f32, {n, heads, 2 * dim}), base_out(DType::bf16, {n, heads + 1, dim + 3});
  Tensor base_sa(DType::f32, {heads, n}), base_sb(DType::f32, {n, heads}), base_so(DType::f32, {n, 2 * heads});
  base_a.randomise(random, 1);
  base_b.randomise(random, 1);
  base_sa.randomise(random, 2);
  base_sb.randomise(random, 2);
  const TensorView v_a(base_a.view.data, DType::f16, {n, heads, dim}, {dim, n * dim, 1});
  const TensorView s_a(base_sa.view.data, DType::f32, {n, heads}, {1, n});
  const std::int64_t row_b = heads * 2 * dim;
  const TensorView v_b(static_cast<float*>(base_b.view.data) + (n - 1) * row_b, DType::f32, {n, heads, dim}, {-row_b, 2 * dim, 2});
  const TensorView s_b(static_cast<float*>(base_sb.view.data) + (n - 1) * heads, DType::f32, {n, heads}, {-heads, 1});
  const TensorView v_out(base_out.view.data, DType::bf16, {n, heads, dim}, {(heads + 1) * (dim + 3), dim + 3, 1});
  const TensorView s_out(base_so.view.data, DType::f32, {n, heads}, {2 * heads, 2});
  merge_state(context(), v_a, s_a, v_b, s_b, v_out, s_out);
  for (std::int64_t row = 0; row < n; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      ref::State a, b;
      a.s = static_cast<double>(base_sa.get(head * n + row));
      b.s = static_cast<double>(base_sb.get((n - 1 - row) * heads + head));
      for (std::int64_t d = 0; d < dim; ++d) {
        a.v.push_back(static_cast<double>(base_a.get((head * n + row) * dim + d)));
        b.v.push_back(static_cast<double>(base_b.get((n - 1 - row) * row_b + head * 2 * dim + 2 * d)));
      }
      const ref::State expected = ref::merge({a, b}, static_cast<std::size_t>(dim));
      EXPECT_NEAR(static_cast<double>(base_so.get(row * 2 * heads + 2 * head)), expected.s, 1e-5);
      for (std::int64_t d = 0; d < dim + 3; ++d) {
        const float got = base_out.get((row * (heads + 1) + head) * (dim + 3) + d);
        if (d < dim) {
          EXPECT_NEAR(static_cast<double>(got), expected.v[static_cast<std::size_t>(d)], 2e-2);
        } else {
          EXPECT_TRUE(std::isnan(got)) << "written past the row";
        }
      }
      EXPECT_TRUE(std::isnan(base_so.get(row * 2 * heads + 2 * head + 1)));
    }
  }
}

TEST(Merge, OutputMayBeTheFirstStateOfItsRow) {
  std::mt19937 random(23);
  const std::int64_t n = 6, states = 3, heads = 2, dim = 16;
  Tensor v(DType::f32, {n, states, heads, dim}), s(DType::f32, {n, states, heads}), v_out(DType::f32, {n, heads, dim}),
      s_out(DType::f32, {n, heads});
  v.randomise(random, 1);
  s.randomise(random, 1);
  merge_states(context(), v.view, s.view, v_out.view, s_out.view);
  const TensorView v_first(v.view.data, DType::f32, {n, heads, dim}, {states * heads * dim, dim, 1});
  const TensorView s_first(s.view.data, DType::f32, {n, heads}, {states * heads, 1});
  merge_states(context(), v.view, s.view, v_first, s_first);
  for (std::int64_t row = 0; row < n; ++row) {
    for (std::int64_t i = 0; i < heads * dim; ++i) ASSERT_EQ(v.get(row * states * heads * dim + i), v_out.get(row * heads * dim + i));
    for (std::int64_t i = 0; i < heads; ++i) ASSERT_EQ(s.get(row * states * heads + i), s_out.get(row * heads + i));
  }
}

TEST(Merge, ResultsDoNotDependOnTheNumberOfWorkers) {
  std::mt19937 random(29);
  Tensor v(DType::bf16, {7, 5, 3, 80}), s(DType::f32, {7, 5, 3});
  v.randomise(random, 1);
  s.randomise(random, 6);
  Tensor v_one(DType::bf16, {7, 3, 80}), s_one(DType::f32, {7, 3});
  merge_states(Context{ContextOptions{.num_workers = 1}}, v.view, s.view, v_one.view, s_one.view);
  Tensor v_many(DType::bf16, {7, 3, 80}), s_many(DType::f32, {7, 3});
  merge_states(context(), v.view, s.view, v_many.view, s_many.view);
  EXPECT_TRUE(v_one.same_bytes(v_many) && s_one.same_bytes(s_many));
}

/// Runs f, expects Error(code) whose text begins with the operator and contains `part`.
template <typename F>
void expect_error(Code code, const std::string& op, const std::string& part, F&& f) {
  try {
    f();
    ADD_FAILURE() << "no error; expected one about " << part;
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), code) << text;
    EXPECT_EQ(text.rfind(op + ": ", 0), 0U) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(Merge, BadArgumentsAreNamedAndNothingIsWritten) {
  Tensor v(DType::f32, {2, 3, 4}), s(DType::f32, {2, 3}), v_out(DType::f32, {2, 3, 4}), s_out(DType::f32, {2, 3});
  for (int i = 0; i < 24; ++i) v.set(i, 1);
  for (int i = 0; i < 6; ++i) s.set(i, 0);
  Tensor i8(DType::i8, {2, 3, 4}), half_lse(DType::f16, {2, 3}), wide(DType::f32, {2, 3, 5}), many(DType::f32, {2, 2, 3, 4}),
      s_many(DType::f32, {2, 2, 3});
  const Code bad = Code::invalid_argument;
  expect_error(bad, "merge_state", "v_a is i8", [&] { merge_state(context(), i8.view, s.view, v.view, s.view, v_out.view, s_out.view); });
  expect_error(bad, "merge_state", "s_b is f16",
               [&] { merge_state(context(), v.view, s.view, v.view, half_lse.view, v_out.view, s_out.view); });
  expect_error(bad, "merge_state", "v_b.shape[2]=5",
               [&] { merge_state(context(), v.view, s.view, wide.view, s.view, v_out.view, s_out.view); });
  expect_error(bad, "merge_state", "v_a has rank 0", [&] { merge_state(context(), {}, s.view, v.view, s.view, v_out.view, s_out.view); });
  TensorView no_data = v.view;
  no_data.data = nullptr;
  expect_error(bad, "merge_state", "v_a.data is null",
               [&] { merge_state(context(), no_data, s.view, v.view, s.view, v_out.view, s_out.view); });
  TensorView device = v.view;
  device.device.kind = DeviceKind::cuda;
  expect_error(bad, "merge_state", "v_a.device=cuda:0; the context is for cpu",
               [&] { merge_state(context(), device, s.view, v.view, s.view, v_out.view, s_out.view); });
  TensorView folded = v_out.view;
  folded.strides[1] = 0;
  expect_error(bad, "merge_state", "v_out.strides[1]=0",
               [&] { merge_state(context(), v.view, s.view, v.view, s.view, folded, s_out.view); });
  expect_error(bad, "merge_states", "s.shape[1]", [&] {
    merge_states(context(), many.view, TensorView(s_many.view.data, DType::f32, {2, 1, 3}), v_out.view, s_out.view);
  });
  const auto varlen = [&](std::vector<std::int32_t> indptr) {
    merge_states_varlen(context(), v.view, s.view, indptr, v_out.view, s_out.view);
  };
  expect_error(bad, "merge_states_varlen", "indptr has 2 entries", [&] { varlen({0, 2}); });
  expect_error(bad, "merge_states_varlen", "indptr[2]=0 < 1", [&] { varlen({0, 1, 0}); });
  expect_error(bad, "merge_states_varlen", "indptr[0]=-1", [&] { varlen({-1, 1, 2}); });
  expect_error(bad, "merge_states_varlen", "indptr ends at 3", [&] { varlen({0, 1, 3}); });
  expect_error(bad, "merge_states_varlen", "overlaps", [&] {
    merge_states_varlen(context(), v.view, s.view, std::vector<std::int32_t>{0, 1, 2}, v.view, s_out.view);
  });
  for (int i = 0; i < 24; ++i) ASSERT_TRUE(std::isnan(v_out.get(i)));
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(std::isnan(s_out.get(i)));
}

}  // namespace
}  // namespace girih
