// See cuda_printer.h.
#include "variant/cuda_printer.h"

#include <cmath>

#include "base/error.h"

namespace girih::variant {
namespace {

bool is_comparison(Op op) { return op == Op::lt || op == Op::le || op == Op::eq || op == Op::ne; }

}  // namespace

std::string_view type_name(ExprType t) {
  switch (t) {
    case ExprType::number: return "float";
    case ExprType::integer: return "i64";
    default: return "bool";
  }
}

std::string number_literal(float x) {
  if (std::isnan(x)) return "float_of(0x7fc00000U)";
  if (std::isinf(x)) return x > 0 ? "kInfinity" : "(-kInfinity)";
  const std::string digits = fmt::format("{:a}F", x);
  return std::signbit(x) ? "(" + digits + ")" : digits;
}

std::string integer_literal(std::int64_t x) {
  return x == INT64_MIN ? "static_cast<i64>(0x8000000000000000U)" : fmt::format("i64{{{}}}", x);
}

HookPrinter::HookPrinter(const Code& code, const HookText& hook, CudaMath math)
    : code_(code), hook_(hook), math_(math), exact_(code.instructions.size()), kept_(code.instructions.size()) {
  find_exact();
  find_kept();
}

std::string HookPrinter::print() const {
  std::string members;
  std::string values;
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (!kept_[i]) continue;
    members += fmt::format(" {} v{};", type_name(at(i).type), i);
    values += (values.empty() ? "" : ", ") + operand(i, true);
  }
  std::string text = fmt::format("  static constexpr bool {} = true;\n  struct {} {{{} }};\n", hook_.flag, hook_.type, members);
  text += function(fmt::format("{} {}_row", hook_.type, hook_.name), hook_.fixed, body(true), fmt::format("{{{}}}", values));
  const std::size_t last = code_.instructions.size() - 1;
  text += function(fmt::format("{} {}", type_name(at(last).type), hook_.name), fmt::format("const {}& u, {}", hook_.type, hook_.lane),
                   body(false), operand(last, false));
  return text;
}

std::string HookPrinter::print_uniform(std::string_view signature, std::string_view parameters) const {
  return fmt::format("  static constexpr bool {} = true;\n", hook_.flag) +
         function(signature, parameters, body(true), operand(code_.instructions.size() - 1, true));
}

bool HookPrinter::is_leaf(const Instruction& x) {
  return x.op == Op::const_boolean || x.op == Op::const_integer || x.op == Op::const_number || x.op == Op::var ||
         x.op == Op::scalar_param || x.op == Op::param_handle;
}

/// Numbers that a comparison depends on.
void HookPrinter::find_exact() {
  for (std::size_t i = code_.instructions.size(); i-- > 0;) {
    if (!exact_[i] && !is_comparison(at(i).op) && at(i).op != Op::cuda_code) continue;
    for (const std::int16_t arg : at(i).args) {
      if (arg >= 0) exact_[static_cast<std::size_t>(arg)] = true;
    }
  }
}

/// Uniform values that the lanes' half reads.
void HookPrinter::find_kept() {
  const auto keep = [this](std::size_t i) {
    const Instruction& x = at(i);
    kept_[i] = kept_[i] || (x.uniform && (!is_leaf(x) || x.op == Op::var));
  };
  for (std::size_t i = 0; i < code_.instructions.size(); ++i) {
    if (at(i).uniform) continue;
    for (const std::int16_t arg : at(i).args) {
      if (arg >= 0) keep(static_cast<std::size_t>(arg));
    }
  }
  keep(code_.instructions.size() - 1);
}

std::string HookPrinter::function(std::string_view signature, std::string_view parameters, const std::string& statements,
                                  std::string_view result) {
  return fmt::format("  static __device__ __forceinline__ {}(const Params& params, {}) {{\n{}    return {};\n  }}\n", signature, parameters,
                     statements, result);
}

std::string HookPrinter::body(bool uniform) const {
  std::string text;
  for (std::size_t i = 0; i < code_.instructions.size(); ++i) {
    const Instruction& x = at(i);
    if (x.uniform != uniform || is_leaf(x)) continue;
    text += fmt::format("    const {} v{} = {};\n", type_name(x.type), i, expression(i));
  }
  return text;
}

std::optional<std::int64_t> HookPrinter::slope(std::size_t i) const {
  const Instruction& x = at(i);
  if (x.uniform) return 0;
  const auto limited = [](std::int64_t by) { return by >= -kMaxSlope && by <= kMaxSlope ? std::optional(by) : std::nullopt; };
  const auto arg_of = [&](int n) { return static_cast<std::size_t>(x.args[static_cast<std::size_t>(n)]); };
  switch (x.op) {
    case Op::var: return x.var == Var::kv_pos ? std::optional<std::int64_t>(1) : std::nullopt;
    case Op::neg:
      if (const auto a = slope(arg_of(0))) return -*a;
      return std::nullopt;
    case Op::add:
    case Op::sub: {
      const auto a = slope(arg_of(0));
      const auto b = slope(arg_of(1));
      if (!a || !b) return std::nullopt;
      return limited(x.op == Op::add ? *a + *b : *a - *b);
    }
    case Op::mul:
      for (const int n : {0, 1}) {
        const Instruction& by = at(arg_of(n));
        const auto a = slope(arg_of(1 - n));
        if (by.op == Op::const_integer && a && limited(by.integer)) return limited(*a * by.integer);
      }
      return std::nullopt;
    default: return std::nullopt;
  }
}

std::string HookPrinter::operand(std::size_t i, bool in_row) const {
  const Instruction& x = at(i);
  switch (x.op) {
    case Op::const_boolean: return x.integer != 0 ? "true" : "false";
    case Op::const_integer: return integer_literal(x.integer);
    case Op::const_number: return number_literal(x.number);
    case Op::scalar_param: return fmt::format("params.p{}", x.param);
    case Op::param_handle:
      if (x.dtype == DType::u8) return fmt::format("Bits{{{}}}", data_and_size(x));
      return fmt::format("Elements<{}>{{{}}}", x.dtype == DType::f32 ? "float" : x.dtype == DType::i32 ? "i32" : "i64", data_and_size(x));
    case Op::var:
      if (in_row || !x.uniform) return variable(x.var, in_row);
      break;
    default: break;
  }
  return fmt::format("{}v{}", x.uniform && !in_row ? "u." : "", i);
}

std::string HookPrinter::variable(Var v, bool in_row) const {
  if (v == Var::dim) return "i64{dim}";
  if (v == Var::score || v == Var::x || v == Var::mean_square) return std::string(name(v));
  const bool bare = !in_row || hook_.fixed.find("RowVars") == std::string_view::npos;
  return bare ? std::string(name(v)) : fmt::format("i64{{row.{}}}", name(v));
}

std::string HookPrinter::data_and_size(const Instruction& x) const { return fmt::format("params.p{0}, params.p{0}_size", x.param); }

std::string HookPrinter::arg(std::size_t i, int n) const {
  return operand(static_cast<std::size_t>(at(i).args[static_cast<std::size_t>(n)]), at(i).uniform);
}

std::string HookPrinter::call(std::string_view function, std::size_t i) const {
  return fmt::format("{}({}, {})", function, arg(i, 0), arg(i, 1));
}

std::string HookPrinter::expression(std::size_t i) const {
  const Instruction& x = at(i);
  const std::string a = x.args[0] >= 0 ? arg(i, 0) : std::string();
  switch (x.op) {
    case Op::array_param:
      return x.dtype == DType::f32   ? fmt::format("element<float>({}, {})", data_and_size(x), a)
             : x.dtype == DType::i32 ? fmt::format("i64{{element<i32>({}, {})}}", data_and_size(x), a)
                                     : fmt::format("element<i64>({}, {})", data_and_size(x), a);
    case Op::cuda_code: {
      std::string args;
      for (int n = 0; n < kMaxArgs && x.args[static_cast<std::size_t>(n)] >= 0; ++n) args += (n == 0 ? "" : ", ") + arg(i, n);
      return fmt::format("cuda_code_{}({})", x.integer, args);
    }
    case Op::bits_param: return fmt::format("bit_at({}, {})", data_and_size(x), a);
    case Op::to_number: return fmt::format("to_number({})", a);
    case Op::not_: return fmt::format("!{}", a);
    case Op::select: return fmt::format("{} ? {} : {}", a, arg(i, 1), arg(i, 2));
    case Op::and_: return fmt::format("{} && {}", a, arg(i, 1));
    case Op::or_: return fmt::format("{} || {}", a, arg(i, 1));
    case Op::lt: return fmt::format("{} < {}", a, arg(i, 1));
    case Op::le: return fmt::format("{} <= {}", a, arg(i, 1));
    case Op::eq: return fmt::format("{} == {}", a, arg(i, 1));
    case Op::ne: return fmt::format("{} != {}", a, arg(i, 1));
    default: return x.type == ExprType::integer ? integers(i, a) : numbers(i, a);
  }
}

std::string HookPrinter::integers(std::size_t i, const std::string& a) const {
  switch (at(i).op) {
    case Op::add: return call("wrap_add", i);
    case Op::sub: return call("wrap_sub", i);
    case Op::mul: return call("wrap_mul", i);
    case Op::div: return call("floor_div", i);
    case Op::mod: return call("floor_mod", i);
    case Op::neg: return fmt::format("wrap_sub(i64{{0}}, {})", a);
    case Op::abs: return fmt::format("wrap_abs({})", a);
    case Op::min: return call("min", i);
    case Op::max: return call("max", i);
    default: bug("operation {} on integers has no CUDA text", name(at(i).op));
  }
}

std::string HookPrinter::numbers(std::size_t i, const std::string& a) const {
  const bool exact = exact_[i];
  const bool approximate = math_ == CudaMath::approximate && !exact;
  switch (at(i).op) {
    case Op::add: return exact ? call("exact_add", i) : fmt::format("{} + {}", a, arg(i, 1));
    case Op::sub: return exact ? call("exact_sub", i) : fmt::format("{} - {}", a, arg(i, 1));
    case Op::mul: return exact ? call("exact_mul", i) : fmt::format("{} * {}", a, arg(i, 1));
    case Op::div: return fmt::format("{} / {}", a, arg(i, 1));
    case Op::neg: return fmt::format("-{}", a);
    case Op::abs: return fmt::format("abs({})", a);
    case Op::min: return call("number_min", i);
    case Op::max: return call("number_max", i);
    case Op::tanh: return fmt::format("{}({})", approximate ? "tanh_approx" : "tanh", a);
    case Op::sigmoid: return fmt::format("{}({})", approximate ? "sigmoid_approx" : "sigmoid", a);
    case Op::exp:
    case Op::log:
    case Op::sqrt:
    case Op::rsqrt: return fmt::format("{}({})", name(at(i).op), a);
    default: bug("operation {} on numbers has no CUDA text", name(at(i).op));
  }
}

}  // namespace girih::variant
