// MaskProver against brute force: what it proves must hold at every point, and for the built-ins its runs must be as tight as the grain.

#include "variant/interval.h"

#include <gtest/gtest.h>

#include "girih/error.h"
#include "variant_interpreter.h"

namespace girih {
namespace {

using test::Interpreter;
using test::Point;
using test::TestParams;
using variant::Box;
using variant::MaskProver;
using variant::Range;
using variant::Tri;

/// The points of a box, a few of them where it is large.
std::vector<Point> points_of(const Box& box, std::mt19937& rng) {
  std::vector<Point> points;
  const auto in = [&](Range r) { return r.lo + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(r.hi - r.lo + 1)); };
  for (std::int64_t q = box.q_pos.lo; q <= box.q_pos.hi; ++q) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      Point p;
      p.q_pos = q;
      p.q_idx = in(box.q_idx);
      p.q_len = in(box.q_len);
      p.kv_len = in(box.kv_len);
      p.request = in(box.request);
      p.q_head = in(box.q_head);
      p.kv_head = in(box.kv_head);
      p.q_row = in(box.q_row);
      points.push_back(p);
    }
  }
  return points;
}

struct Truth {
  bool any = false, all = true;
};

Truth truth(const Expr& mask, const TestParams& params, std::vector<Point>& points, std::int64_t kv) {
  Truth t;
  for (Point& p : points) {
    p.kv_pos = kv;
    const bool visible = Interpreter(params, p)(mask).integer != 0;
    t.any = t.any || visible;
    t.all = t.all && visible;
  }
  return t;
}

/// Checks classify over [begin, end) and find_runs against every position. Returns the runs.
std::vector<MaskProver::Run> check(const Expr& mask, const TestParams& params, const Box& box, std::int64_t begin, std::int64_t end,
                                   std::int64_t grain, std::mt19937& rng) {
  Variant v;
  v.mask = mask;
  const variant::Program program = variant::compile(v);
  variant::ParamTable table{};
  test::fill_table(program, params, table);
  MaskProver prover(program);
  prover.bind(table);
  std::vector<MaskProver::Run> runs;
  prover.find_runs(box, begin, end, grain, runs);
  std::vector<Point> points = points_of(box, rng);

  std::int64_t at = begin;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_LT(runs[i].begin, runs[i].end);
    EXPECT_GE(runs[i].begin, at);
    EXPECT_LE(runs[i].end, end);
    EXPECT_FALSE(i > 0 && runs[i].begin == at && runs[i].always == runs[i - 1].always) << "adjacent runs of one kind";
    at = runs[i].end;
  }
  Truth whole;
  for (std::int64_t kv = begin; kv < end; ++kv) {
    const Truth t = truth(mask, params, points, kv);
    whole.any = whole.any || t.any;
    whole.all = whole.all && t.all;
    bool kept = false, always = false;
    for (const MaskProver::Run& run : runs) {
      if (kv < run.begin || kv >= run.end) continue;
      kept = true;
      always = run.always;
    }
    EXPECT_TRUE(kept || !t.any) << program.key_text << " drops visible key " << kv;
    EXPECT_TRUE(!always || t.all) << program.key_text << " marks key " << kv << " always";
    if ((t.any && !kept) || (!t.all && always)) return runs;
  }
  const Tri tri = prover.classify(box, {begin, end - 1});
  EXPECT_FALSE(whole.any && tri == Tri::never) << program.key_text;
  EXPECT_FALSE(!whole.all && tri == Tri::always) << program.key_text;
  return runs;
}

/// Every position of every run must be as the truth says, but for less than `slack` positions beside each border of the truth.
void check_tight(const Expr& mask, const TestParams& params, const Box& box, std::int64_t begin, std::int64_t end, std::int64_t grain,
                 std::int64_t slack, std::mt19937& rng) {
  const auto runs = check(mask, params, box, begin, end, grain, rng);
  std::vector<Point> points = points_of(box, rng);
  std::vector<int> kinds, proven;
  for (std::int64_t kv = begin; kv < end; ++kv) {
    const Truth t = truth(mask, params, points, kv);
    kinds.push_back(t.all ? 2 : (t.any ? 1 : 0));
    int kind = 0;
    for (const auto& run : runs) {
      if (kv >= run.begin && kv < run.end) kind = run.always ? 2 : 1;
    }
    proven.push_back(kind);
  }
  const auto n = std::ssize(kinds);
  for (std::int64_t i = 0; i < n; ++i) {
    if (kinds[static_cast<std::size_t>(i)] == proven[static_cast<std::size_t>(i)]) continue;
    bool near_border = false;
    for (std::int64_t j = std::max<std::int64_t>(1, i - slack + 1); j < std::min(n, i + slack); ++j) {
      near_border = near_border || kinds[static_cast<std::size_t>(j)] != kinds[static_cast<std::size_t>(j - 1)];
    }
    EXPECT_TRUE(near_border) << "key " << begin + i << " is of kind " << kinds[static_cast<std::size_t>(i)] << ", found as "
                             << proven[static_cast<std::size_t>(i)];
    if (!near_border) return;
  }
}

Box tile(std::int64_t q_begin, std::int64_t rows, std::int64_t kv_len) {
  Box box;
  box.q_pos = {q_begin, q_begin + rows - 1};
  box.q_idx = {0, 0};
  box.q_len = {rows, rows};
  box.kv_len = {kv_len, kv_len};
  return box;
}

TestParams sample_params(std::mt19937& rng) {
  TestParams p;
  for (int i = 0; i < 300; ++i) {
    p.f32["weights"].push_back(static_cast<float>(static_cast<int>(rng() % 64) - 32) / 4);
    p.i32["ids"].push_back(static_cast<std::int32_t>(rng() % 7));
    p.i64["starts"].push_back(static_cast<std::int64_t>(rng() % 90) - 20);
    p.bits["plan_bits"].push_back(static_cast<std::uint8_t>(i < 20 ? rng() : (i < 30 ? 255 : 0)));
    p.bits["run_bits"].push_back(static_cast<std::uint8_t>(rng()));
  }
  p.f32["weights"][17] = std::numeric_limits<float>::quiet_NaN();
  p.integers["shift"] = static_cast<std::int64_t>(rng() % 50) - 10;
  p.integers["run_shift"] = 5;
  p.numbers["level"] = 1.5F;
  return p;
}

TEST(Interval, RandomMasksAreSound) {
  std::mt19937 rng(1);
  const ArrayParam weights("weights", DType::f32, ParamTime::plan), ids("ids", DType::i32, ParamTime::plan);
  const ArrayParam starts("starts", DType::i64, ParamTime::plan);
  const BitsParam plan_bits("plan_bits", ParamTime::plan), run_bits("run_bits");
  for (int repeat = 0; repeat < 4000; ++repeat) {
    const TestParams params = sample_params(rng);
    const std::vector<Expr> integers = {kv_pos(),
                                        kv_pos(),
                                        q_pos(),
                                        q_idx(),
                                        q_len(),
                                        kv_len(),
                                        request(),
                                        q_head(),
                                        kv_head(),
                                        q_row(),
                                        ids[kv_pos()],
                                        ids[q_pos()],
                                        starts[request()],
                                        starts[kv_pos() - q_pos()],
                                        scalar("shift", ExprType::integer, ParamTime::plan),
                                        scalar("run_shift", ExprType::integer)};
    const std::vector<Expr> numbers = {weights[kv_pos()],
                                       weights[q_head()],
                                       scalar("level", ExprType::number, ParamTime::plan),
                                       tanh(weights[kv_pos() + q_idx()]),
                                       exp(Expr(0.1F) * kv_pos()),
                                       sqrt(weights[kv_pos()])};
    const std::vector<Expr> booleans = {plan_bits[kv_pos()], plan_bits[kv_pos() + q_pos()], run_bits[kv_pos()]};
    test::RandomExpr make(rng, integers, numbers, booleans);
    const Expr mask = make.boolean(3);
    Box box = tile(static_cast<std::int64_t>(rng() % 200), 1 + static_cast<std::int64_t>(rng() % 6), 200);
    box.q_idx = {0, static_cast<std::int64_t>(rng() % 4)};
    box.request = {1, 1 + static_cast<std::int64_t>(rng() % 2)};
    box.q_head = {0, static_cast<std::int64_t>(rng() % 3)};
    const std::int64_t begin = static_cast<std::int64_t>(rng() % 60);
    try {
      check(mask, params, box, begin, begin + 1 + static_cast<std::int64_t>(rng() % 150), 1 + static_cast<std::int64_t>(rng() % 40), rng);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("overflows"), std::string::npos) << e.what();  // constants may fold to too large a number
    }
    if (HasFailure()) return;
  }
}

TEST(Interval, RandomAffineMasksAreSound) {
  std::mt19937 rng(2);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const TestParams params = sample_params(rng);
    test::RandomExpr make(rng, {kv_pos(), kv_pos(), q_pos(), q_pos(), q_idx(), kv_len() - q_len()}, {}, {});
    const auto side = [&] {
      const Expr a = make.integer(0), b = make.integer(0);
      switch (make.pick(5)) {
        case 0: return a + b;
        case 1: return a - b;
        case 2: return a / (1 + make.pick(9));
        case 3: return a * (make.pick(5) - 2) + b;
        default: return a;
      }
    };
    const auto leaf = [&] {
      const Expr a = side(), b = side();
      switch (make.pick(4)) {
        case 0: return a < b;
        case 1: return a <= b;
        case 2: return a == b;
        default: return a != b;
      }
    };
    const Expr mask = make.pick(2) == 0 ? (leaf() & leaf()) : ((leaf() & leaf()) | !leaf());
    const Box box = tile(static_cast<std::int64_t>(rng() % 100), 1 + static_cast<std::int64_t>(rng() % 9), 120);
    check(mask, params, box, 0, 120, 1 + static_cast<std::int64_t>(rng() % 16), rng);
    if (HasFailure()) return;
  }
}

TEST(Interval, AffineBuiltinsAreExact) {
  std::mt19937 rng(3);
  const TestParams params;
  using namespace variants;
  const std::vector<Expr> masks = {causal(),
                                   window(7),
                                   window(7, 3),
                                   window(-1, 5),
                                   window(4, -1),
                                   sliding_window(10),
                                   chunked_local(16),
                                   causal() & (first_tokens(4) | sliding_window(9)),
                                   causal() & first_tokens(4),
                                   !causal()};
  for (const Expr& mask : masks) {
    for (int repeat = 0; repeat < 40; ++repeat) {
      const Box box = tile(static_cast<std::int64_t>(rng() % 100), 1 + static_cast<std::int64_t>(rng() % 20), 120);
      const auto begin = static_cast<std::int64_t>(rng() % 30);
      // Slack 1: no position may differ.
      check_tight(mask, params, box, begin, 125, 8, 1, rng);
      if (HasFailure()) return;
    }
  }
}

TEST(Interval, LookedUpBuiltinsAreTightToTheGrain) {
  std::mt19937 rng(4);
  using namespace variants;
  for (int repeat = 0; repeat < 60; ++repeat) {
    TestParams params;
    std::int32_t id = 1;
    for (int i = 0; i < 300; ++i) {
      if (rng() % 40 == 0) ++id;
      params.i32["document_id"].push_back(id);
      params.i32["item_id"].push_back(id);
      params.i32["span_id"].push_back(id == 2 ? 2 : 0);  // one span: the hull of a cell tells it from no span
    }
    params.i32["prefix_len"] = {40, 25, 60};
    const std::int64_t grain = 1 + static_cast<std::int64_t>(rng() % 16);
    // One row: the hull of a tile that straddles documents proves less than the rows one by one.
    Box box = tile(static_cast<std::int64_t>(rng() % 280), 1, 300);
    box.request = {1, 1};
    for (const Expr& mask : {prefix_lm(), document(), causal() & document(), multi_item(), causal_with_bidirectional_spans()}) {
      check_tight(mask, params, box, 0, 300, grain, grain, rng);
      if (HasFailure()) return;
    }
    box.q_pos.hi += 12;
    for (const Expr& mask : {prefix_lm(), document(), causal() & document(), multi_item(), causal_with_bidirectional_spans()}) {
      check(mask, params, box, 0, 300, grain, rng);
      if (HasFailure()) return;
    }
  }
}

TEST(Interval, RunTimeParametersAreNeverProven) {
  std::mt19937 rng(5);
  Variant v;
  v.mask = kv_pos() < scalar("limit", ExprType::integer);
  const variant::Program program = variant::compile(v);
  MaskProver prover(program);
  variant::ParamTable table{};
  table[0].integer = 10;
  prover.bind(table);
  std::vector<MaskProver::Run> runs;
  prover.find_runs(tile(0, 4, 100), 0, 100, 8, runs);
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_FALSE(runs[0].always);
  EXPECT_EQ(runs[0].end, 100);

  v.mask = variants::speculative_tree();
  const variant::Program tree = variant::compile(v);
  MaskProver tree_prover(tree);
  runs.clear();
  Box box = tile(96, 4, 100);
  tree_prover.find_runs(box, 0, 100, 16, runs);
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_TRUE(runs[0].always);
  EXPECT_EQ(runs[0].end, 96);
  EXPECT_FALSE(runs[1].always);
}

TEST(Interval, OverflowIsDepends) {
  std::mt19937 rng(6);
  const Expr huge(INT64_MAX);
  TestParams params;
  params.integers["huge"] = INT64_MAX;
  const Expr param = scalar("huge", ExprType::integer, ParamTime::plan);
  for (const Expr& mask : {kv_pos() + huge > q_pos(), kv_pos() * huge<q_pos(), kv_pos() + param> q_pos(), q_pos() - param - kv_pos() < 0,
                           abs(kv_pos() - param) > 3, -(kv_pos() * param) / 3 > 0}) {
    check(mask, params, tile(0, 5, 60), 0, 60, 4, rng);
  }
  // Positions beyond what the affine forms may hold.
  const std::int64_t far = INT64_MAX - 100;
  for (const Expr& mask : {kv_pos() <= q_pos(), kv_pos() + 60 <= q_pos(), kv_pos() / 7 == q_pos() / 7}) {
    check(mask, params, tile(far, 5, 60), far - 40, far + 90, 4, rng);
  }
}

TEST(Interval, NanProvesNothing) {
  std::mt19937 rng(7);
  TestParams params;
  params.f32["w"] = std::vector<float>(100, 1.0F);
  params.f32["w"][50] = std::numeric_limits<float>::quiet_NaN();
  const ArrayParam w("w", DType::f32, ParamTime::plan);
  for (const Expr& mask : {w[kv_pos()]<2.0, !(w[kv_pos()] < 2.0), w[kv_pos()] == 1.0, w[kv_pos()] != 1.0, min(w[kv_pos()], 3.0)> 2.0,
                           log(w[kv_pos()] - 2.0) < 1.0, w[kv_pos()] / (w[kv_pos()] - 1.0) > 0.0}) {
    check(mask, params, tile(0, 2, 100), 0, 100, 4, rng);
  }
}

TEST(Interval, AppendsAndJoins) {
  Variant v;
  v.mask = variants::causal();
  MaskProver prover(variant::compile(v));
  std::vector<MaskProver::Run> runs;
  prover.find_runs(tile(100, 1, 101), 0, 50, 8, runs);
  prover.find_runs(tile(100, 1, 101), 50, 101, 8, runs);
  ASSERT_EQ(runs.size(), 2U);  // calls append; runs of different calls are not joined
  EXPECT_EQ(runs[1].begin, 50);
  EXPECT_EQ(runs[1].end, 101);
  EXPECT_TRUE(runs[1].always);
  runs.clear();
  prover.find_runs(tile(100, 1, 101), 7, 7, 8, runs);
  EXPECT_TRUE(runs.empty());
}

TEST(Interval, UsesHeads) {
  Variant v;
  EXPECT_FALSE(MaskProver(variant::compile(v)).uses_q_head());
  v.mask = variants::causal();
  EXPECT_FALSE(MaskProver(variant::compile(v)).uses_q_head());
  v.mask = variants::causal() & (q_head() < 4);
  EXPECT_TRUE(MaskProver(variant::compile(v)).uses_q_head());
}

TEST(Interval, RebindingTakesTheNewArrays) {
  Variant v;
  v.mask = variants::document();
  const variant::Program program = variant::compile(v);
  MaskProver prover(program);
  for (const std::int32_t border : {40, 64, 70}) {
    std::vector<std::int32_t> ids(100, 1);
    std::fill(ids.begin() + border, ids.end(), 2);
    variant::ParamTable table{};
    table[0] = {ids.data(), 100, 0, 0};
    prover.bind(table);
    std::vector<MaskProver::Run> runs;
    prover.find_runs(tile(99, 1, 100), 0, 100, 1, runs);
    ASSERT_EQ(runs.size(), 1U);
    EXPECT_EQ(runs[0].begin, border);
    EXPECT_TRUE(runs[0].always);
  }
}

}  // namespace
}  // namespace girih
