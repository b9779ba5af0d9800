// The meaning of expressions, written once more and as plainly as possible: walks the graph for one point, integers as wrapping int64,
// numbers as double rounded to f32 after each operation. Also makes random expressions. Nothing here is shared with the library's
// evaluators.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "girih/variant.h"
#include "variant/node.h"

namespace girih::test {

struct TestParams {
  std::map<std::string, std::vector<float>> f32;
  std::map<std::string, std::vector<std::int32_t>> i32;
  std::map<std::string, std::vector<std::int64_t>> i64;
  std::map<std::string, std::vector<std::uint8_t>> bits;
  std::map<std::string, std::int64_t> integers;
  std::map<std::string, float> numbers;
};

struct Point {
  std::int64_t q_pos = 0, kv_pos = 0, q_idx = 0, q_len = 0, kv_len = 0, request = 0, q_head = 0, kv_head = 0, q_row = 0, dim = 0;
  float score = 0, x = 0, mean_square = 0;
};

struct Value {
  std::int64_t integer = 0;  // booleans too
  float number = 0;
};

inline std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return static_cast<std::int64_t>(-static_cast<std::uint64_t>(a));
  std::int64_t q = a / b;
  if (q * b > a && b > 0) --q;
  if (q * b < a && b < 0) --q;
  return q;
}

class Interpreter {
 public:
  Interpreter(const TestParams& params, const Point& point) : params_(params), point_(point) {}

  Value operator()(const Expr& e) const { return value(*e.node()); }

 private:
  using Op = variant::Op;
  using Var = variant::Var;

  Value value(const variant::Node& n) const {
    std::vector<Value> a;
    for (const auto& arg : n.args) a.push_back(value(*arg));
    switch (n.op) {
      case Op::const_boolean:
      case Op::const_integer: return {n.integer, 0};
      case Op::const_number: return {0, n.number};
      case Op::var: return variable(n.var);
      case Op::scalar_param:
        return n.type == ExprType::number ? Value{0, params_.numbers.at(n.param)} : Value{params_.integers.at(n.param), 0};
      case Op::array_param:
        if (n.param_dtype == DType::f32) return {0, element(params_.f32.at(n.param), a[0].integer)};
        return {
            n.param_dtype == DType::i32 ? element(params_.i32.at(n.param), a[0].integer) : element(params_.i64.at(n.param), a[0].integer),
            0};
      case Op::bits_param: {
        const std::int64_t i = a[0].integer;
        return {i < 0 ? 0 : (element(params_.bits.at(n.param), i / 8) >> (i % 8)) & 1, 0};
      }
      case Op::to_number: return {0, static_cast<float>(a[0].integer)};
      case Op::and_: return {a[0].integer & a[1].integer, 0};
      case Op::or_: return {a[0].integer | a[1].integer, 0};
      case Op::not_: return {1 - a[0].integer, 0};
      case Op::select: return a[0].integer != 0 ? a[1] : a[2];
      default: break;
    }
    const Value b = a.size() > 1 ? a[1] : Value{};
    if (n.args[0]->type == ExprType::number) return numbers(n.op, a[0].number, b.number);
    return {integers(n.op, a[0].integer, b.integer), 0};
  }

  template <typename T>
  static T element(const std::vector<T>& v, std::int64_t i) {
    return i >= 0 && i < std::ssize(v) ? v[static_cast<std::size_t>(i)] : T{};
  }

  Value variable(Var v) const {
    switch (v) {
      case Var::score: return {0, point_.score};
      case Var::x: return {0, point_.x};
      case Var::mean_square: return {0, point_.mean_square};
      case Var::q_pos: return {point_.q_pos, 0};
      case Var::kv_pos: return {point_.kv_pos, 0};
      case Var::q_idx: return {point_.q_idx, 0};
      case Var::q_len: return {point_.q_len, 0};
      case Var::kv_len: return {point_.kv_len, 0};
      case Var::request: return {point_.request, 0};
      case Var::q_head: return {point_.q_head, 0};
      case Var::kv_head: return {point_.kv_head, 0};
      case Var::q_row: return {point_.q_row, 0};
      case Var::dim: return {point_.dim, 0};
    }
    return {};
  }

  static std::int64_t integers(Op op, std::int64_t x, std::int64_t y) {
    const auto a = static_cast<std::uint64_t>(x), b = static_cast<std::uint64_t>(y);
    switch (op) {
      case Op::add: return static_cast<std::int64_t>(a + b);
      case Op::sub: return static_cast<std::int64_t>(a - b);
      case Op::mul: return static_cast<std::int64_t>(a * b);
      case Op::div: return floor_div(x, y);
      case Op::mod: return y == 0 ? 0 : static_cast<std::int64_t>(a - b * static_cast<std::uint64_t>(floor_div(x, y)));
      case Op::neg: return static_cast<std::int64_t>(-a);
      case Op::abs: return x < 0 ? static_cast<std::int64_t>(-a) : x;
      case Op::min: return x < y ? x : y;
      case Op::max: return x > y ? x : y;
      case Op::lt: return x < y;
      case Op::le: return x <= y;
      case Op::eq: return x == y;
      case Op::ne: return x != y;
      default: return 0;
    }
  }

  static Value numbers(Op op, float x, float y) {
    const double a = x, b = y;
    double r = 0;
    switch (op) {
      case Op::add: r = a + b; break;
      case Op::sub: r = a - b; break;
      case Op::mul: r = a * b; break;
      case Op::div: r = a / b; break;
      case Op::neg: r = -a; break;
      case Op::abs: r = std::fabs(a); break;
      case Op::min: r = std::fmin(a, b); break;
      case Op::max: r = std::fmax(a, b); break;
      case Op::exp: r = std::exp(a); break;
      case Op::log: r = std::log(a); break;
      case Op::tanh: r = std::tanh(a); break;
      case Op::sqrt: r = std::sqrt(a); break;
      case Op::rsqrt: r = 1 / std::sqrt(a); break;
      case Op::sigmoid: r = 1 / (1 + std::exp(-a)); break;
      case Op::lt: return {a < b, 0};
      case Op::le: return {a <= b, 0};
      case Op::eq: return {a == b, 0};
      case Op::ne: return {a != b, 0};
      default: break;
    }
    return {0, static_cast<float>(r)};
  }

  const TestParams& params_;
  const Point& point_;
};

/// Random expressions over given leaves. Numbers that feed comparisons are made of exactly rounded operations only, so that evaluators must
/// agree on booleans exactly.
class RandomExpr {
 public:
  RandomExpr(std::mt19937& rng, std::vector<Expr> integers, std::vector<Expr> numbers, std::vector<Expr> booleans)
      : rng_(rng), integers_(std::move(integers)), numbers_(std::move(numbers)), booleans_(std::move(booleans)) {}

  int pick(int n) { return static_cast<int>(rng_() % static_cast<unsigned>(n)); }

  Expr integer(int depth) {
    if (depth == 0 || pick(5) == 0) return pick(3) == 0 ? Expr(pick(41) - 20) : integers_[static_cast<std::size_t>(pick(size(integers_)))];
    const Expr a = integer(depth - 1);
    switch (pick(9)) {
      case 0: return a + integer(depth - 1);
      case 1: return a - integer(depth - 1);
      case 2: return a * integer(depth - 1);
      case 3: return a / integer(depth - 1);
      case 4: return a % integer(depth - 1);
      case 5: return pick(2) == 0 ? -a : abs(a);
      case 6: return min(a, integer(depth - 1));
      case 7: return max(a, integer(depth - 1));
      default: return select(boolean(depth - 1), a, integer(depth - 1));
    }
  }

  Expr exact(int depth) {
    if (depth == 0 || pick(5) == 0) {
      if (numbers_.empty() || pick(3) == 0) return Expr(0.25F * static_cast<float>(pick(41) - 20));
      return numbers_[static_cast<std::size_t>(pick(size(numbers_)))];
    }
    const Expr a = exact(depth - 1);
    switch (pick(9)) {
      case 0: return a + exact(depth - 1);
      case 1: return a - exact(depth - 1);
      case 2: return a * exact(depth - 1);
      case 3: return a / exact(depth - 1);
      case 4: return pick(2) == 0 ? -a : abs(a);
      case 5: return min(a, exact(depth - 1));
      case 6: return max(a, exact(depth - 1));
      case 7: return a + integer(depth - 1);
      default: return select(boolean(depth - 1), a, exact(depth - 1));
    }
  }

  Expr boolean(int depth) {
    if (depth == 0 || pick(6) == 0) {
      return booleans_.empty() || pick(2) == 0 ? kv_comparison(0) : booleans_[static_cast<std::size_t>(pick(size(booleans_)))];
    }
    switch (pick(7)) {
      case 0: return boolean(depth - 1) & boolean(depth - 1);
      case 1: return boolean(depth - 1) | boolean(depth - 1);
      case 2: return !boolean(depth - 1);
      case 3: return select(boolean(depth - 1), boolean(depth - 1), boolean(depth - 1));
      case 4: return comparison(exact(depth - 1), exact(depth - 1));
      default: return kv_comparison(depth - 1);
    }
  }

 private:
  static int size(const std::vector<Expr>& v) { return static_cast<int>(v.size()); }

  Expr kv_comparison(int depth) { return comparison(integer(depth), integer(depth)); }

  Expr comparison(const Expr& a, const Expr& b) {
    switch (pick(6)) {
      case 0: return a < b;
      case 1: return a <= b;
      case 2: return a > b;
      case 3: return a >= b;
      case 4: return a == b;
      default: return a != b;
    }
  }

  std::mt19937& rng_;
  std::vector<Expr> integers_, numbers_, booleans_;
};

/// The library's table for `params`; every name must exist there. Points into `params`.
template <typename Program, typename Table>
void fill_table(const Program& program, const TestParams& params, Table& table) {
  for (std::size_t i = 0; i < program.params.size(); ++i) {
    const auto& info = program.params[i];
    auto& data = table[i];
    const auto set = [&](const auto& v, std::int64_t scale) {
      data.data = v.data();
      data.size = std::ssize(v) * scale;
    };
    if (info.kind == std::decay_t<decltype(info)>::Kind::bits) {
      set(params.bits.at(info.name), 8);
    } else if (info.kind == std::decay_t<decltype(info)>::Kind::scalar) {
      if (info.dtype == DType::f32) data.number = params.numbers.at(info.name);
      if (info.dtype == DType::i64) data.integer = params.integers.at(info.name);
    } else if (info.dtype == DType::f32) {
      set(params.f32.at(info.name), 1);
    } else if (info.dtype == DType::i32) {
      set(params.i32.at(info.name), 1);
    } else {
      set(params.i64.at(info.name), 1);
    }
  }
}

}  // namespace girih::test
