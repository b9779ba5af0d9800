// Building and compiling expressions: types, errors, folding, sharing, keys, limits, binding; built-ins against their definitions.

#include <gtest/gtest.h>

#include <functional>

#include "girih/error.h"
#include "variant/program.h"
#include "variant_interpreter.h"

namespace girih {
namespace {

using test::Interpreter;
using test::Point;
using test::TestParams;
using variant::compile;
using variant::Program;

void expect_error(const std::function<void()>& f, std::initializer_list<const char*> parts) {
  try {
    f();
    FAIL() << "no error; expected one with '" << *parts.begin() << "'";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::invalid_argument);
    for (const char* part : parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what() << "\nlacks: " << part;
  }
}

Program compile_mask(const Expr& mask) {
  Variant v;
  v.mask = mask;
  return compile(v);
}

Program compile_logits(const Expr& logits) {
  Variant v;
  v.logits = logits;
  return compile(v);
}

TEST(VariantExpr, Types) {
  EXPECT_EQ((kv_pos() + 1).type(), ExprType::integer);
  EXPECT_EQ((kv_pos() + 1.0).type(), ExprType::number);
  EXPECT_EQ((kv_pos() < 1.0).type(), ExprType::boolean);
  EXPECT_EQ(tanh(kv_pos()).type(), ExprType::number);
  EXPECT_EQ(select(kv_pos() < 1, 1, 2.0).type(), ExprType::number);
  EXPECT_EQ(abs(kv_pos()).type(), ExprType::integer);
  EXPECT_EQ(ArrayParam("a", DType::i32)[q_head()].type(), ExprType::integer);
  EXPECT_EQ(BitsParam("a")[q_head()].type(), ExprType::boolean);
}

TEST(VariantExpr, TypeErrorsNameOperatorAndOperands) {
  const Expr condition = kv_pos() < 3;
  expect_error([&] { condition + 1; }, {"operator+", "boolean", "integer"});
  expect_error([&] { kv_pos() & condition; }, {"operator&", "integer", "boolean"});
  expect_error([&] { score() % 2; }, {"operator%", "number", "integer"});
  expect_error([&] { !kv_pos(); }, {"operator!", "integer"});
  expect_error([&] { static_cast<void>(condition == condition); }, {"operator==", "boolean"});
  expect_error([&] { select(kv_pos(), 1, 2); }, {"condition of select", "integer"});
  expect_error([&] { select(condition, condition, 2); }, {"select", "boolean", "integer"});
  expect_error([&] { exp(condition); }, {"exp", "boolean"});
  expect_error([&] { -condition; }, {"operator-", "boolean"});
  expect_error([&] { Expr() + 1; }, {"operator+", "absent"});
  expect_error([&] { Expr().type(); }, {"absent"});
  expect_error([&] { ArrayParam("a", DType::f16); }, {"'a'", "f16", "f32, i32 or i64"});
  expect_error([&] { ArrayParam("a", DType::f32)[score()]; }, {"'a'", "number", "integer"});
  expect_error([&] { scalar("2x"); }, {"'2x'"});
  expect_error([&] { scalar(""); }, {"''"});
  expect_error([&] { scalar("b", ExprType::boolean); }, {"'b'", "boolean"});
}

TEST(VariantExpr, HooksCheckVariablesAndResult) {
  expect_error([&] { compile_mask(score() < 1.0); }, {"mask", "score", "q_pos kv_pos"});
  expect_error([&] { compile_mask(kv_pos() + 1); }, {"mask", "integer", "boolean"});
  expect_error([&] { compile_logits(kv_pos() < 1); }, {"logits", "boolean", "number"});
  expect_error([&] { compile_logits(x()); }, {"logits uses x"});
  Variant v;
  v.key = x() * q_pos();
  expect_error([&] { compile(v); }, {"key uses q_pos", "kv_pos kv_head"});
  v = {};
  v.output = mean_square();
  expect_error([&] { compile(v); }, {"output uses mean_square"});
  v = {};
  v.sink = kv_pos() * 1.0;
  expect_error([&] { compile(v); }, {"sink uses kv_pos", "q_head"});
  v = {};
  v.sink = Expr(0);  // an integer result converts
  EXPECT_EQ(compile(v).sink.instructions.back().type, ExprType::number);
}

TEST(VariantExpr, SoftmaxOff) {
  Variant v;
  v.softmax = false;
  expect_error([&] { compile(v); }, {"softmax=false", "logits"});
  v.logits = variants::sigmoid_logits(0.5F);
  EXPECT_FALSE(compile(v).softmax);
  v.sink = variants::sinks();
  expect_error([&] { compile(v); }, {"sink", "softmax=false"});
}

TEST(VariantExpr, RopeIsValidated) {
  const auto with = [](const std::function<void(Rope&)>& change) {
    Variant v;
    v.rope = Rope{};
    v.rope->llama31 = Rope::Llama31{};
    change(*v.rope);
    return compile(v);
  };
  EXPECT_NO_THROW(with([](Rope&) {}));
  expect_error([&] { with([](Rope& r) { r.rotary_dim = 63; }); }, {"rotary_dim=63", "even"});
  expect_error([&] { with([](Rope& r) { r.theta = 0; }); }, {"theta=0"});
  expect_error([&] { with([](Rope& r) { r.scale = NAN; }); }, {"scale=nan"});
  expect_error([&] { with([](Rope& r) { r.rotary_begin = -2; }); }, {"rotary_begin=-2"});
  expect_error([&] { with([](Rope& r) { r.llama31->high_freq_factor = 1; }); }, {"high_freq_factor=1"});
}

TEST(VariantExpr, FoldsConstants) {
  EXPECT_EQ(compile_mask(Expr(3) + 4 < 8).key_text, "softmax;mask{0=true}");
  EXPECT_EQ(compile_mask((kv_pos() <= q_pos()) & Expr::boolean(true)).key_text, compile_mask(kv_pos() <= q_pos()).key_text);
  EXPECT_EQ(compile_mask((kv_pos() <= q_pos()) | Expr::boolean(true)).key_text, "softmax;mask{0=true}");
  EXPECT_EQ(compile_mask(!!(kv_pos() <= q_pos())).key_text, compile_mask(kv_pos() <= q_pos()).key_text);
  EXPECT_EQ(compile_mask(kv_pos() * 1 + 0 <= q_pos()).key_text, compile_mask(kv_pos() <= q_pos()).key_text);
  EXPECT_EQ(compile_mask(kv_pos() / 0 == 0).key_text, "softmax;mask{0=true}");
  EXPECT_EQ(compile_logits(select(Expr(1) < 2, score(), 1.0)).key_text, "softmax;logits{0=score}");
  EXPECT_EQ(compile_logits(score() + (Expr(7) / -2)).key_text, "softmax;logits{0=score 1=-4f 2=add(0,1)}");
  EXPECT_EQ(compile_logits(score() + 0.0).logits.instructions.size(), 3U);  // -0 + 0 is 0: kept
  EXPECT_EQ(compile_mask(Expr(-7) % 3 == 2).key_text, "softmax;mask{0=true}");
  expect_error([&] { compile_mask(Expr(INT64_MAX) + 1 > kv_pos()); }, {"overflows"});
  expect_error([&] { compile_mask(Expr(INT64_MIN) / -1 > kv_pos()); }, {"overflows"});
  expect_error([&] { compile_mask(-Expr(INT64_MIN) > kv_pos()); }, {"overflows"});
}

TEST(VariantExpr, SharesAndMarksUniform) {
  const Expr difference = q_pos() - kv_pos();
  const Program shared = compile_mask((difference < 5) & (difference != 2));
  const Program apart = compile_mask((q_pos() - kv_pos() < 5) & (q_pos() - kv_pos() != 2));
  EXPECT_EQ(shared.key_text, apart.key_text);
  EXPECT_EQ(shared.mask.instructions.size(), 8U);
  for (const auto& i : compile_logits(score() * (q_pos() + q_head())).logits.instructions) {
    EXPECT_EQ(i.uniform, i.type == ExprType::integer || i.op == variant::Op::to_number);
  }
  Variant v;
  v.mask = kv_pos() < 3;
  v.name = "one";
  const std::string key = compile(v).key_text;
  v.name = "two";
  EXPECT_EQ(compile(v).key_text, key);
  EXPECT_NE(compile_mask(kv_pos() < 4).key_text, key);
}

TEST(VariantExpr, Parameters) {
  const ArrayParam a("a", DType::i32);
  Variant v;
  v.logits = score() + scalar("c");
  v.mask = (a[kv_pos()] < 3) & (scalar("n", ExprType::integer, ParamTime::plan) < kv_pos());
  const Program p = compile(v);
  ASSERT_EQ(p.params.size(), 3U);
  EXPECT_EQ(p.params[0].name, "c");
  EXPECT_EQ(p.params[1].name, "a");
  EXPECT_EQ(p.params[2].name, "n");
  EXPECT_EQ(p.params[2].time, ParamTime::plan);
  EXPECT_TRUE(p.mask.uses_run_param);
  v.mask = scalar("c", ExprType::integer) < 3;
  expect_error([&] { compile(v); }, {"'c'", "scalar f32", "scalar i64"});
  v.mask = kv_pos() < kv_pos() + scalar("c", ExprType::number, ParamTime::plan);
  expect_error([&] { compile(v); }, {"'c'", "run time", "plan time"});
  Expr many = score();
  for (int i = 0; i < 32; ++i) many = many + scalar("p" + std::to_string(i));
  EXPECT_EQ(compile_logits(many).params.size(), 32U);
  expect_error([&] { compile_logits(many + scalar("p32")); }, {"logits", "'p32'", "32"});
}

TEST(VariantExpr, Limits) {
  Expr sum = kv_pos();
  for (int i = 0; i < 120; ++i) sum = sum + (i % 2 == 0 ? q_pos() : kv_pos());
  EXPECT_NO_THROW(compile_mask(sum < 3));
  for (int i = 0; i < 200; ++i) sum = sum * 2 + (i + 2);
  expect_error([&] { compile_mask(sum < 3); }, {"mask", "instructions", "256"});
  expect_error(
      [&] {
        Expr deep = score();
        for (int i = 0; i < 1000000; ++i) deep = deep + 1.0;
      },
      {"deep", "1024"});
  Expr doubled = kv_pos();  // 2^60 paths, 61 nodes
  for (int i = 0; i < 60; ++i) doubled = doubled + doubled;
  EXPECT_EQ(compile_mask(doubled < q_pos()).mask.instructions.size(), 63U);
}

TEST(VariantBind, BindsAndRefuses) {
  Variant v;
  v.logits = score() * scalar("c") + ArrayParam("a", DType::f32)[q_head()];
  v.mask = BitsParam("b")[kv_pos()] & (kv_pos() < scalar("n", ExprType::integer, ParamTime::plan));
  const Program p = compile(v);
  float a[3] = {1, 2, 3};
  std::uint8_t b[2] = {1, 2};
  const auto array = [](void* data, DType type, std::int64_t n) {
    TensorView t;
    t.data = data;
    t.dtype = type;
    t.rank = 1;
    t.shape[0] = n;
    t.strides[0] = 1;
    return t;
  };
  const ParamValue c{.name = "c", .number = 2.5}, va{.name = "a", .array = array(a, DType::f32, 3)},
      vb{.name = "b", .array = array(b, DType::u8, 2)};
  variant::ParamTable table{};
  const auto bind = [&](ParamTime time, std::vector<ParamValue> values) { variant::bind_params(p, time, values, "attention.run", table); };
  bind(ParamTime::run, {vb, c, va});
  EXPECT_EQ(table[0].number, 2.5F);
  EXPECT_EQ(table[1].size, 3);
  EXPECT_EQ(table[2].size, 16);
  bind(ParamTime::plan, {{.name = "n", .integer = 7}});
  EXPECT_EQ(table[3].integer, 7);
  EXPECT_EQ(table[0].number, 2.5F);
  expect_error([&] { bind(ParamTime::run, {c, va}); }, {"attention.run", "'b'", "missing"});
  expect_error([&] { bind(ParamTime::run, {c, va, vb, c}); }, {"'c'", "twice"});
  expect_error([&] { bind(ParamTime::run, {{.name = "z"}}); }, {"'z'", "not a parameter", "c, a, b"});
  expect_error([&] { bind(ParamTime::run, {{.name = "n", .integer = 1}}); }, {"'n'", "plan-time"});
  expect_error([&] { bind(ParamTime::run, {{.name = "c", .integer = 1}}); }, {"'c'", "integer=1", "number"});
  expect_error([&] { bind(ParamTime::plan, {{.name = "n", .number = 1}}); }, {"'n'", "number=1", "integer"});
  expect_error([&] { bind(ParamTime::run, {{.name = "c", .number = 1e300}}); }, {"'c'", "f32"});
  expect_error([&] { bind(ParamTime::run, {{.name = "c", .array = array(a, DType::f32, 3)}}); }, {"'c'", "scalar"});
  expect_error([&] { bind(ParamTime::run, {{.name = "a", .number = 1}}); }, {"'a'", "rank 0"});
  expect_error([&] { bind(ParamTime::run, {{.name = "a", .array = array(a, DType::i32, 3)}}); }, {"'a'", "i32", "f32"});
  expect_error([&] { bind(ParamTime::run, {{.name = "a", .array = array(nullptr, DType::f32, 3)}}); }, {"'a'", "null"});
  TensorView strided = array(a, DType::f32, 2);
  strided.strides[0] = 2;
  expect_error([&] { bind(ParamTime::run, {{.name = "a", .array = strided}}); }, {"'a'", "strides[0]=2"});
  TensorView elsewhere = array(a, DType::f32, 3);
  elsewhere.device = {DeviceKind::cuda, 0};
  const std::vector<ParamValue> on_device = {{.name = "a", .array = elsewhere}};
  expect_error([&] { variant::bind_params(p, ParamTime::run, on_device, "attention.run", table); },
               {"'a'", "device=cuda:0", "reads it on cpu"});
  expect_error(
      [&] {
        variant::bind_params(p, ParamTime::run, {&va, 1}, "attention.run", table, {DeviceKind::cuda, 0});
      },
      {"'a'", "device=cpu", "reads it on cuda:0"});
  EXPECT_EQ(table[1].size, 3);  // refusals left the table as it was
}

TEST(VariantBuiltins, MatchTheirDefinitions) {
  std::mt19937 rng(21);
  TestParams params;
  params.i32["prefix_len"] = {5, 12};
  for (int i = 0; i < 40; ++i) {
    params.i32["document_id"].push_back(i / 9);
    params.i32["item_id"].push_back(i / 7);
    params.i32["span_id"].push_back(i >= 10 && i < 16 ? 4 : (i >= 20 && i < 25 ? 5 : 0));
  }
  for (int i = 0; i < 200; ++i) {
    params.bits["custom_mask"].push_back(static_cast<std::uint8_t>(rng()));
    params.bits["tree_mask"].push_back(static_cast<std::uint8_t>(rng()));
  }
  params.i64["custom_mask_start"] = {3, 400};
  params.i64["tree_mask_start"] = {0, 77};
  const auto bit = [&](const char* name, std::int64_t i) {
    return ((params.bits.at(name)[static_cast<std::size_t>(i / 8)] >> (i % 8)) & 1) != 0;
  };
  const auto at = [&](const char* name, std::int64_t i) { return params.i32.at(name)[static_cast<std::size_t>(i)]; };
  using Predicate = std::function<bool(const Point&)>;
  const auto causal = [](const Point& p) { return p.kv_pos <= p.q_pos; };
  const std::vector<std::pair<Expr, Predicate>> cases = {
      {variants::causal(), causal},
      {variants::window(4, 2), [](const Point& p) { return p.q_pos - 4 <= p.kv_pos && p.kv_pos <= p.q_pos + 2; }},
      {variants::window(4), [](const Point& p) { return p.q_pos - 4 <= p.kv_pos && p.kv_pos <= p.q_pos; }},
      {variants::window(-1, 3), [](const Point& p) { return p.kv_pos <= p.q_pos + 3; }},
      {variants::window(3, -1), [](const Point& p) { return p.kv_pos >= p.q_pos - 3; }},
      {variants::window(-1, -1), [](const Point&) { return true; }},
      {variants::sliding_window(4), [](const Point& p) { return p.kv_pos <= p.q_pos && p.kv_pos > p.q_pos - 4; }},
      {variants::chunked_local(8), [](const Point& p) { return p.kv_pos <= p.q_pos && p.kv_pos / 8 == p.q_pos / 8; }},
      {variants::prefix_lm(), [&](const Point& p) { return p.kv_pos <= p.q_pos || p.kv_pos < at("prefix_len", p.request); }},
      {variants::document(), [&](const Point& p) { return at("document_id", p.kv_pos) == at("document_id", p.q_pos); }},
      {variants::custom_mask(), [&](const Point& p) { return bit("custom_mask", (p.request == 0 ? 3 : 400) + p.q_idx * 40 + p.kv_pos); }},
      {variants::speculative_tree(),
       [&](const Point& p) { return p.kv_pos < 32 || bit("tree_mask", (p.request == 0 ? 0 : 77) + p.q_idx * 8 + p.kv_pos - 32); }},
      {variants::first_tokens(4), [](const Point& p) { return p.kv_pos < 4; }},
      {variants::multi_item(),
       [&](const Point& p) {
         return p.kv_pos <= p.q_pos && (p.kv_pos < at("prefix_len", p.request) || at("item_id", p.kv_pos) == at("item_id", p.q_pos));
       }},
      {variants::causal_with_bidirectional_spans(),
       [&](const Point& p) {
         return p.kv_pos <= p.q_pos || (at("span_id", p.q_pos) != 0 && at("span_id", p.q_pos) == at("span_id", p.kv_pos));
       }},
  };
  for (std::size_t c = 0; c < cases.size(); ++c) {
    EXPECT_NO_THROW(compile_mask(cases[c].first));
    Point p;
    p.kv_len = 40;
    p.q_len = 8;
    for (p.request = 0; p.request < 2; ++p.request) {
      for (p.q_pos = 32; p.q_pos < 40; ++p.q_pos) {
        p.q_idx = p.q_pos - 32;
        for (p.kv_pos = 0; p.kv_pos < 40; ++p.kv_pos) {
          EXPECT_EQ(Interpreter(params, p)(cases[c].first).integer != 0, cases[c].second(p))
              << "case " << c << " q " << p.q_pos << " kv " << p.kv_pos;
        }
      }
    }
  }
  Point past;  // a key past kv_len is no bit of the next row
  past.kv_len = 40, past.q_len = 8, past.kv_pos = 40;
  EXPECT_EQ(Interpreter(params, past)(variants::custom_mask()).integer, 0);
  EXPECT_EQ(Interpreter(params, past)(variants::speculative_tree()).integer, 0);
  expect_error([] { variants::sliding_window(0); }, {"sliding_window", "size=0"});
  expect_error([] { variants::chunked_local(-1); }, {"chunked_local", "size=-1"});
}

TEST(VariantBuiltins, Logits) {
  TestParams params;
  params.f32["alibi_slopes"] = {0.5F, 0.25F};
  params.f32["sinks"] = {1.5F, -2.0F};
  Point p;
  p.score = 30;
  p.q_pos = 9;
  p.kv_pos = 4;
  p.q_head = 1;
  const Interpreter eval(params, p);
  EXPECT_NEAR(eval(variants::soft_cap(20)).number, 20 * std::tanh(1.5), 1e-5);
  EXPECT_EQ(eval(variants::alibi()).number, 30 + 0.25F * -5);
  EXPECT_NEAR(eval(variants::sigmoid_logits(-31)).number, 1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_EQ(eval(variants::sinks()).number, -2.0F);
  expect_error([] { variants::soft_cap(0); }, {"soft_cap", "cap=0"});
  expect_error([] { variants::soft_cap(NAN); }, {"soft_cap", "nan"});
  const std::vector<float> eight = variants::alibi_slopes(8);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(eight[static_cast<std::size_t>(i)], std::ldexp(1.0F, -(i + 1)));
  const std::vector<float> six = variants::alibi_slopes(6);  // those of 4, then the first, third ... of 8
  const std::vector<float> expected = {0.25F, 0.0625F, 0.015625F, 0.00390625F, 0.5F, 0.125F};
  EXPECT_EQ(six, expected);
  EXPECT_TRUE(variants::alibi_slopes(0).empty());
}

}  // namespace
}  // namespace girih
