// Evaluates an expression graph node by node in double and int64, straight from the operators' definitions in girih/variant.h.
// Shares nothing with the library but the graph itself. Also notes the largest number met, from which tolerances are made.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "girih/variant.h"
#include "variant/node.h"

namespace girih::ref {

/// A parameter that owns its value. Bits are bytes, little-endian.
struct Param {
  std::string name;
  ParamTime time = ParamTime::run;
  std::variant<double, std::int64_t, std::vector<float>, std::vector<std::int32_t>, std::vector<std::int64_t>, std::vector<std::uint8_t>>
      value;

  ParamValue view() const {
    ParamValue out;
    out.name = name;
    if (const auto* number = std::get_if<double>(&value)) out.number = *number;
    if (const auto* integer = std::get_if<std::int64_t>(&value)) out.integer = *integer;
    array_view<float>(DType::f32, out);
    array_view<std::int32_t>(DType::i32, out);
    array_view<std::int64_t>(DType::i64, out);
    array_view<std::uint8_t>(DType::u8, out);
    return out;
  }

 private:
  template <typename T>
  void array_view(DType t, ParamValue& out) const {
    if (const auto* a = std::get_if<std::vector<T>>(&value)) {
      out.array = TensorView(const_cast<T*>(a->data()), t, {static_cast<std::int64_t>(a->size())});
    }
  }
};

/// The variables of one evaluation, indexed by variant::Var.
struct Vars {
  std::array<double, variant::kNumVars> number{};
  std::array<std::int64_t, variant::kNumVars> integer{};
  double& f(variant::Var v) { return number[static_cast<std::size_t>(v)]; }
  std::int64_t& i(variant::Var v) { return integer[static_cast<std::size_t>(v)]; }
  std::int64_t i(variant::Var v) const { return integer[static_cast<std::size_t>(v)]; }
};

/// A value of any of the three types; booleans are 0 or 1 in `i`.
struct Value {
  double f = 0;
  std::int64_t i = 0;
};

class Evaluator {
 public:
  explicit Evaluator(std::span<const Param> params) : params_(params) {}

  double number(const Expr& e, const Vars& vars) { return as_number(*e.node(), vars); }
  bool boolean(const Expr& e, const Vars& vars) { return evaluate(*e.node(), vars).i != 0; }

  /// Largest |number| met since construction or `reset`.
  double magnitude() const { return magnitude_; }
  void reset() { magnitude_ = 0; }

 private:
  using Node = variant::Node;
  using Op = variant::Op;

  static std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    if (b == 0) return 0;
    const std::int64_t q = a / b;
    return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
  }

  const Param& param(const std::string& name) const {
    for (const Param& p : params_) {
      if (p.name == name) return p;
    }
    throw std::logic_error("case without parameter " + name);
  }

  double as_number(const Node& n, const Vars& vars) {
    const Value v = evaluate(n, vars);
    return n.type == ExprType::number ? v.f : static_cast<double>(v.i);
  }

  Value element(const Node& n, const Vars& vars) {
    const std::int64_t index = evaluate(*n.args[0], vars).i;
    const Param& p = param(n.param);
    return std::visit(
        [&](const auto& a) -> Value {
          using A = std::decay_t<decltype(a)>;
          if constexpr (std::is_arithmetic_v<A>) {
            throw std::logic_error("not an array: " + n.param);
          } else {
            const std::int64_t size = static_cast<std::int64_t>(a.size());
            if (n.op == Op::bits_param) {
              if (index < 0 || index / 8 >= size) return {};
              return {0, (static_cast<std::int64_t>(a[static_cast<std::size_t>(index / 8)]) >> (index % 8)) & 1};
            }
            if (index < 0 || index >= size) return {};
            const auto x = a[static_cast<std::size_t>(index)];
            return {static_cast<double>(x), static_cast<std::int64_t>(x)};
          }
        },
        p.value);
  }

  Value scalar(const Node& n) const {
    const Param& p = param(n.param);
    if (const auto* integer = std::get_if<std::int64_t>(&p.value)) return {0, *integer};
    return {static_cast<double>(static_cast<float>(std::get<double>(p.value))), 0};
  }

  Value evaluate(const Node& n, const Vars& vars) {
    const Value v = apply(n, vars);
    if (n.type == ExprType::number && std::isfinite(v.f)) magnitude_ = std::max(magnitude_, std::fabs(v.f));
    return v;
  }

  Value apply(const Node& n, const Vars& vars) {
    switch (n.op) {
      case Op::const_boolean:
      case Op::const_integer: return {0, n.integer};
      case Op::const_number: return {static_cast<double>(n.number), 0};
      case Op::var: return {vars.number[static_cast<std::size_t>(n.var)], vars.integer[static_cast<std::size_t>(n.var)]};
      case Op::scalar_param: return scalar(n);
      case Op::array_param:
      case Op::bits_param: return element(n, vars);
      case Op::to_number: return {as_number(*n.args[0], vars), 0};
      case Op::and_: return {0, evaluate(*n.args[0], vars).i & evaluate(*n.args[1], vars).i};
      case Op::or_: return {0, evaluate(*n.args[0], vars).i | evaluate(*n.args[1], vars).i};
      case Op::not_: return {0, evaluate(*n.args[0], vars).i ? 0 : 1};
      case Op::select: {
        const Node& chosen = *n.args[evaluate(*n.args[0], vars).i ? 1 : 2];
        return n.type == ExprType::number ? Value{as_number(chosen, vars), 0} : evaluate(chosen, vars);
      }
      case Op::lt:
      case Op::le:
      case Op::eq:
      case Op::ne: return compare(n, vars);
      default: return n.type == ExprType::number ? Value{arithmetic_number(n, vars), 0} : Value{0, arithmetic_integer(n, vars)};
    }
  }

  Value compare(const Node& n, const Vars& vars) {
    const auto holds = [&](auto a, auto b) -> std::int64_t {
      switch (n.op) {
        case Op::lt: return a < b;
        case Op::le: return a <= b;
        case Op::eq: return a == b;
        default: return a != b;
      }
    };
    const bool numbers = n.args[0]->type == ExprType::number || n.args[1]->type == ExprType::number;
    if (numbers) return {0, holds(as_number(*n.args[0], vars), as_number(*n.args[1], vars))};
    return {0, holds(evaluate(*n.args[0], vars).i, evaluate(*n.args[1], vars).i)};
  }

  double arithmetic_number(const Node& n, const Vars& vars) {
    const double a = as_number(*n.args[0], vars);
    const double b = n.args.size() > 1 ? as_number(*n.args[1], vars) : 0;
    switch (n.op) {
      case Op::add: return a + b;
      case Op::sub: return a - b;
      case Op::mul: return a * b;
      case Op::div: return a / b;
      case Op::neg: return -a;
      case Op::abs: return std::fabs(a);
      case Op::min: return std::min(a, b);
      case Op::max: return std::max(a, b);
      case Op::exp: return std::exp(a);
      case Op::log: return std::log(a);
      case Op::tanh: return std::tanh(a);
      case Op::sqrt: return std::sqrt(a);
      case Op::rsqrt: return 1.0 / std::sqrt(a);
      case Op::sigmoid: return 1.0 / (1.0 + std::exp(-a));
      default: throw std::logic_error("operator without a meaning on numbers");
    }
  }

  std::int64_t arithmetic_integer(const Node& n, const Vars& vars) {
    const std::int64_t a = evaluate(*n.args[0], vars).i;
    const std::int64_t b = n.args.size() > 1 ? evaluate(*n.args[1], vars).i : 0;
    switch (n.op) {
      case Op::add: return a + b;
      case Op::sub: return a - b;
      case Op::mul: return a * b;
      case Op::div: return floor_div(a, b);
      case Op::mod: return b == 0 ? 0 : a - b * floor_div(a, b);
      case Op::neg: return -a;
      case Op::abs: return a < 0 ? -a : a;
      case Op::min: return std::min(a, b);
      case Op::max: return std::max(a, b);
      default: throw std::logic_error("operator without a meaning on integers");
    }
  }

  std::span<const Param> params_;
  double magnitude_ = 0;
};

}  // namespace girih::ref
