// Building expressions: every operator checks its operands' types as the graph is made, so that an error names the line that is wrong.
// Operators fold nothing; program.cc does. Comparisons `>` and `>=` are `<` and `<=` with swapped operands, integer operands of an f32
// operator get an explicit to_number node, hence everything later deals with few and uniformly typed nodes.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "variant/node.h"

namespace girih {

namespace variant {

std::string_view name(Op op) {
  static constexpr std::array<std::string_view, 33> kNames = {
      "boolean", "integer", "number", "var", "scalar", "array", "bits", "to_number", "add",     "sub",   "mul",
      "div",     "mod",     "neg",    "abs", "min",    "max",   "lt",   "le",        "eq",      "ne",    "and",
      "or",      "not",     "select", "exp", "log",    "tanh",  "sqrt", "rsqrt",     "sigmoid", "param", "cuda"};
  return kNames[static_cast<std::size_t>(op)];
}

std::string_view name(Var var) {
  static constexpr std::array<std::string_view, kNumVars> kNames = {
      "score", "q_pos", "kv_pos", "q_idx", "q_len", "kv_len", "request", "q_head", "kv_head", "q_row", "x", "dim", "mean_square"};
  return kNames[static_cast<std::size_t>(var)];
}

std::string_view name(ExprType type) {
  static constexpr std::array<std::string_view, 3> kNames = {"boolean", "integer", "number"};
  return kNames[static_cast<std::size_t>(type)];
}

namespace {

using NodePtr = std::shared_ptr<const Node>;

/// A node of `args`; refuses absent operands and graphs that are too deep.
Expr make(std::string_view what, Node node, std::initializer_list<Expr> args) {
  for (const Expr& arg : args) {
    if (arg.node() == nullptr)
      fail(Code::invalid_argument, "variant", "an operand of {} is absent (a default-constructed Expr); give it a value", what);
    node.args.push_back(arg.node());
    node.depth = std::max(node.depth, arg.node()->depth + 1);
  }
  if (node.depth > kMaxDepth) {
    fail(Code::invalid_argument, "variant", "{} nests expressions {} deep; at most {} are supported: combine operands as a balanced tree",
         what, node.depth, kMaxDepth);
  }
  return Expr(std::make_shared<const Node>(std::move(node)));
}

Expr make_var(Var var, ExprType type) {
  Node node;
  node.op = Op::var;
  node.type = type;
  node.var = var;
  return make(name(var), std::move(node), {});
}

Expr make_op(std::string_view what, Op op, ExprType type, std::initializer_list<Expr> args) {
  Node node;
  node.op = op;
  node.type = type;
  return make(what, std::move(node), args);
}

void check_present(std::string_view what, std::initializer_list<const Expr*> args) {
  for (const Expr* arg : args) {
    if (arg->node() == nullptr)
      fail(Code::invalid_argument, "variant", "an operand of {} is absent (a default-constructed Expr); give it a value", what);
  }
}

Expr to_number(std::string_view what, Expr a) {
  return a.type() == ExprType::number ? a : make_op(what, Op::to_number, ExprType::number, {std::move(a)});
}

[[noreturn]] void fail_types(std::string_view what, const Expr& a, const Expr& b, std::string_view rule) {
  fail(Code::invalid_argument, "variant", "{} of {} and {}; {}", what, name(a.type()), name(b.type()), rule);
}

/// Arithmetic or a comparison: both integers, or both numbers after conversion.
Expr binary(std::string_view what, Op op, Expr a, Expr b, bool comparison) {
  check_present(what, {&a, &b});
  if (a.type() == ExprType::boolean || b.type() == ExprType::boolean) {
    fail_types(what, a, b,
               comparison ? "operands must be integers or numbers: combine booleans by & | !"
                          : "operands must be integers or numbers: turn a boolean into one by select(condition, 1, 0)");
  }
  const bool integers = a.type() == ExprType::integer && b.type() == ExprType::integer;
  const ExprType operands = integers ? ExprType::integer : ExprType::number;
  if (!integers) {
    a = to_number(what, std::move(a));
    b = to_number(what, std::move(b));
  }
  return make_op(what, op, comparison ? ExprType::boolean : operands, {std::move(a), std::move(b)});
}

Expr logical(std::string_view what, Op op, Expr a, Expr b) {
  check_present(what, {&a, &b});
  if (a.type() != ExprType::boolean || b.type() != ExprType::boolean) fail_types(what, a, b, "operands must be booleans");
  return make_op(what, op, ExprType::boolean, {std::move(a), std::move(b)});
}

/// neg and abs keep their operand's type.
Expr unary(std::string_view what, Op op, Expr a) {
  check_present(what, {&a});
  const ExprType type = a.type();
  if (type == ExprType::boolean) fail(Code::invalid_argument, "variant", "{} of boolean; the operand must be an integer or a number", what);
  return make_op(what, op, type, {std::move(a)});
}

Expr function(std::string_view what, Op op, Expr a) {
  check_present(what, {&a});
  if (a.type() == ExprType::boolean)
    fail(Code::invalid_argument, "variant", "{} of boolean; the operand must be a number or an integer", what);
  return make_op(what, op, ExprType::number, {to_number(what, std::move(a))});
}

void check_param_name(const std::string& name) {
  constexpr std::size_t kMaxLength = 64;
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  bool good = !name.empty() && name.size() <= kMaxLength && is_letter(name[0]);
  for (const char c : name) good = good && (is_letter(c) || (c >= '0' && c <= '9'));
  if (!good) {
    fail(Code::invalid_argument, "variant",
         "parameter name '{}'; must be a letter or _ followed by letters, digits or _, at most {} in all", name, kMaxLength);
  }
}

Expr make_param(Op op, ExprType type, const std::string& param, DType dtype, ParamTime time, std::initializer_list<Expr> index) {
  Node node;
  node.op = op;
  node.type = type;
  node.param = param;
  node.param_dtype = dtype;
  node.param_time = time;
  for (const Expr& i : index) {
    if (i && i.type() != ExprType::integer) {
      fail(Code::invalid_argument, "variant", "index of parameter '{}' is a {}; it must be an integer", param, name(i.type()));
    }
  }
  return make(param, std::move(node), index);
}

}  // namespace
}  // namespace variant

using variant::Op;
using variant::Var;

Expr::Expr(int value) : Expr(static_cast<std::int64_t>(value)) {}

Expr::Expr(std::int64_t value) {
  variant::Node node;
  node.op = Op::const_integer;
  node.type = ExprType::integer;
  node.integer = value;
  node_ = std::make_shared<const variant::Node>(std::move(node));
}

Expr::Expr(float value) {
  variant::Node node;
  node.op = Op::const_number;
  node.type = ExprType::number;
  node.number = value;
  node_ = std::make_shared<const variant::Node>(std::move(node));
}

Expr::Expr(double value) : Expr(static_cast<float>(value)) {}

Expr Expr::boolean(bool value) {
  variant::Node node;
  node.op = Op::const_boolean;
  node.type = ExprType::boolean;
  node.integer = value ? 1 : 0;
  return Expr(std::make_shared<const variant::Node>(std::move(node)));
}

ExprType Expr::type() const {
  if (!node_) fail(Code::invalid_argument, "variant", "type() of an absent expression (a default-constructed Expr)");
  return node_->type;
}

Expr score() { return variant::make_var(Var::score, ExprType::number); }
Expr q_pos() { return variant::make_var(Var::q_pos, ExprType::integer); }
Expr kv_pos() { return variant::make_var(Var::kv_pos, ExprType::integer); }
Expr q_idx() { return variant::make_var(Var::q_idx, ExprType::integer); }
Expr q_len() { return variant::make_var(Var::q_len, ExprType::integer); }
Expr kv_len() { return variant::make_var(Var::kv_len, ExprType::integer); }
Expr request() { return variant::make_var(Var::request, ExprType::integer); }
Expr q_head() { return variant::make_var(Var::q_head, ExprType::integer); }
Expr kv_head() { return variant::make_var(Var::kv_head, ExprType::integer); }
Expr q_row() { return variant::make_var(Var::q_row, ExprType::integer); }
Expr x() { return variant::make_var(Var::x, ExprType::number); }
Expr dim() { return variant::make_var(Var::dim, ExprType::integer); }
Expr mean_square() { return variant::make_var(Var::mean_square, ExprType::number); }

Expr scalar(std::string name, ExprType type, ParamTime time) {
  variant::check_param_name(name);
  if (type == ExprType::boolean) {
    fail(Code::invalid_argument, "variant", "scalar parameter '{}' is boolean; must be integer or number: compare an integer with 0", name);
  }
  return variant::make_param(Op::scalar_param, type, name, type == ExprType::number ? DType::f32 : DType::i64, time, {});
}

ArrayParam::ArrayParam(std::string name, DType dtype, ParamTime time) : name_(std::move(name)), dtype_(dtype), time_(time) {
  variant::check_param_name(name_);
  if (dtype != DType::f32 && dtype != DType::i32 && dtype != DType::i64) {
    fail(Code::invalid_argument, "variant", "array parameter '{}' is {}; must be f32, i32 or i64", name_, girih::name(dtype));
  }
}

Expr ArrayParam::operator[](Expr index) const {
  return variant::make_param(Op::array_param, dtype_ == DType::f32 ? ExprType::number : ExprType::integer, name_, dtype_, time_,
                             {std::move(index)});
}

BitsParam::BitsParam(std::string name, ParamTime time) : name_(std::move(name)), time_(time) { variant::check_param_name(name_); }

Expr BitsParam::operator[](Expr bit_index) const {
  return variant::make_param(Op::bits_param, ExprType::boolean, name_, DType::u8, time_, {std::move(bit_index)});
}

Expr operator+(Expr a, Expr b) { return variant::binary("operator+", Op::add, std::move(a), std::move(b), false); }
Expr operator-(Expr a, Expr b) { return variant::binary("operator-", Op::sub, std::move(a), std::move(b), false); }
Expr operator*(Expr a, Expr b) { return variant::binary("operator*", Op::mul, std::move(a), std::move(b), false); }
Expr operator/(Expr a, Expr b) { return variant::binary("operator/", Op::div, std::move(a), std::move(b), false); }

Expr operator%(Expr a, Expr b) {
  variant::check_present("operator%", {&a, &b});
  if (a.type() != ExprType::integer || b.type() != ExprType::integer) variant::fail_types("operator%", a, b, "operands must be integers");
  return variant::binary("operator%", Op::mod, std::move(a), std::move(b), false);
}

Expr operator-(Expr a) { return variant::unary("operator-", Op::neg, std::move(a)); }
Expr operator<(Expr a, Expr b) { return variant::binary("operator<", Op::lt, std::move(a), std::move(b), true); }
Expr operator<=(Expr a, Expr b) { return variant::binary("operator<=", Op::le, std::move(a), std::move(b), true); }
Expr operator>(Expr a, Expr b) { return variant::binary("operator>", Op::lt, std::move(b), std::move(a), true); }
Expr operator>=(Expr a, Expr b) { return variant::binary("operator>=", Op::le, std::move(b), std::move(a), true); }
Expr operator==(Expr a, Expr b) { return variant::binary("operator==", Op::eq, std::move(a), std::move(b), true); }
Expr operator!=(Expr a, Expr b) { return variant::binary("operator!=", Op::ne, std::move(a), std::move(b), true); }
Expr operator&(Expr a, Expr b) { return variant::logical("operator&", Op::and_, std::move(a), std::move(b)); }
Expr operator|(Expr a, Expr b) { return variant::logical("operator|", Op::or_, std::move(a), std::move(b)); }

Expr operator!(Expr a) {
  variant::check_present("operator!", {&a});
  if (a.type() != ExprType::boolean) {
    fail(Code::invalid_argument, "variant", "operator! of {}; the operand must be a boolean", variant::name(a.type()));
  }
  return variant::make_op("operator!", Op::not_, ExprType::boolean, {std::move(a)});
}

Expr select(Expr condition, Expr if_true, Expr if_false) {
  variant::check_present("select", {&condition, &if_true, &if_false});
  if (condition.type() != ExprType::boolean) {
    fail(Code::invalid_argument, "variant", "condition of select is {}; it must be a boolean", variant::name(condition.type()));
  }
  if (if_true.type() != if_false.type()) {
    if (if_true.type() == ExprType::boolean || if_false.type() == ExprType::boolean) {
      variant::fail_types("select", if_true, if_false, "both values must be booleans, or neither");
    }
    if_true = variant::to_number("select", std::move(if_true));
    if_false = variant::to_number("select", std::move(if_false));
  }
  const ExprType type = if_true.type();
  return variant::make_op("select", Op::select, type, {std::move(condition), std::move(if_true), std::move(if_false)});
}

Expr min(Expr a, Expr b) { return variant::binary("min", Op::min, std::move(a), std::move(b), false); }
Expr max(Expr a, Expr b) { return variant::binary("max", Op::max, std::move(a), std::move(b), false); }
Expr abs(Expr a) { return variant::unary("abs", Op::abs, std::move(a)); }
Expr exp(Expr a) { return variant::function("exp", Op::exp, std::move(a)); }
Expr log(Expr a) { return variant::function("log", Op::log, std::move(a)); }
Expr tanh(Expr a) { return variant::function("tanh", Op::tanh, std::move(a)); }
Expr sqrt(Expr a) { return variant::function("sqrt", Op::sqrt, std::move(a)); }
Expr rsqrt(Expr a) { return variant::function("rsqrt", Op::rsqrt, std::move(a)); }
Expr sigmoid(Expr a) { return variant::function("sigmoid", Op::sigmoid, std::move(a)); }

}  // namespace girih
