// Expression -> device code. An instruction becomes one constant of the function that computes it; constants, variables and scalar
// parameters are written where they are used. The row's half of a hook returns only what the other half reads, so that a kernel keeps few
// registers: of a window mask, q_pos.
#include "variant/cuda.h"

#include <cmath>
#include <string_view>

#include "base/error.h"

namespace girih::variant {
namespace {

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

/// A hook's two signatures.
struct HookText {
  std::string_view name;   // "mask"
  std::string_view type;   // "MaskRow"
  std::string_view flag;   // "kHasMask"
  std::string_view fixed;  // parameters of NAME_row
  std::string_view lane;   // further parameters of NAME
};

constexpr HookText kQuery = {"query", "QueryRow", "kHasQuery", "const RowVars& row, float mean_square", "float x, i32 dim"};
constexpr HookText kKey = {"key", "KeyRow", "kHasKey", "i64 kv_head, i64 kv_pos, float mean_square", "float x, i32 dim"};
constexpr HookText kValue = {"value", "ValueRow", "kHasValue", "i64 kv_head, i64 kv_pos, float mean_square", "float x, i32 dim"};
constexpr HookText kLogits = {"logits", "LogitsRow", "kHasLogits", "const RowVars& row", "float score, i64 kv_pos"};
constexpr HookText kMask = {"mask", "MaskRow", "kHasMask", "const RowVars& row", "i64 kv_pos"};
constexpr HookText kOutput = {"output", "OutputRow", "kHasOutput", "const RowVars& row", "float x, i32 dim"};

class HookPrinter {
 public:
  HookPrinter(const Program& program, const Code& code, const HookText& hook, CudaMath math)
      : program_(program), code_(code), hook_(hook), math_(math), exact_(code.instructions.size()), kept_(code.instructions.size()) {
    find_exact();
    find_kept();
  }

  std::string print() const {
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

  /// The hook as one function of uniform instructions only: the sink.
  std::string print_uniform(std::string_view signature, std::string_view parameters) const {
    return fmt::format("  static constexpr bool {} = true;\n", hook_.flag) +
           function(signature, parameters, body(true), operand(code_.instructions.size() - 1, true));
  }

 private:
  const Instruction& at(std::size_t i) const { return code_.instructions[i]; }

  static bool is_leaf(const Instruction& x) {
    return x.op == Op::const_boolean || x.op == Op::const_integer || x.op == Op::const_number || x.op == Op::var ||
           x.op == Op::scalar_param;
  }
  static bool is_comparison(Op op) { return op == Op::lt || op == Op::le || op == Op::eq || op == Op::ne; }

  /// Numbers that a comparison depends on.
  void find_exact() {
    for (std::size_t i = code_.instructions.size(); i-- > 0;) {
      if (!exact_[i] && !is_comparison(at(i).op)) continue;
      for (const std::int16_t arg : at(i).args) {
        if (arg >= 0) exact_[static_cast<std::size_t>(arg)] = true;
      }
    }
  }

  /// Uniform values that the lanes' half reads.
  void find_kept() {
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

  static std::string function(std::string_view signature, std::string_view parameters, const std::string& statements,
                              std::string_view result) {
    return fmt::format("  static __device__ __forceinline__ {}(const Params& params, {}) {{\n{}    return {};\n  }}\n", signature,
                       parameters, statements, result);
  }

  std::string body(bool uniform) const {
    std::string text;
    for (std::size_t i = 0; i < code_.instructions.size(); ++i) {
      const Instruction& x = at(i);
      if (x.uniform != uniform || is_leaf(x)) continue;
      text += fmt::format("    const {} v{} = {};\n", type_name(x.type), i, expression(i));
    }
    return text;
  }

  /// How a function names the value of instruction i; `in_row`: in the row's half.
  std::string operand(std::size_t i, bool in_row) const {
    const Instruction& x = at(i);
    switch (x.op) {
      case Op::const_boolean: return x.integer != 0 ? "true" : "false";
      case Op::const_integer: return integer_literal(x.integer);
      case Op::const_number: return number_literal(x.number);
      case Op::scalar_param: return scalar(x);
      case Op::var:
        if (in_row || !x.uniform) return variable(x.var, in_row);
        break;
      default: break;
    }
    return fmt::format("{}v{}", x.uniform && !in_row ? "u." : "", i);
  }

  std::string variable(Var v, bool in_row) const {
    if (v == Var::dim) return "i64{dim}";
    if (v == Var::score || v == Var::x || v == Var::mean_square) return std::string(name(v));
    const bool bare = !in_row || hook_.fixed.find("RowVars") == std::string_view::npos;
    return bare ? std::string(name(v)) : fmt::format("i64{{row.{}}}", name(v));
  }

  bool is_run_time(const Instruction& x) const { return program_.params[static_cast<std::size_t>(x.param)].time == ParamTime::run; }

  std::string scalar(const Instruction& x) const {
    if (!is_run_time(x)) return fmt::format("params.p{}", x.param);
    return fmt::format("params.args.params[{}].{}", x.param, x.type == ExprType::number ? "number" : "integer");
  }

  std::string data_and_size(const Instruction& x) const {
    if (!is_run_time(x)) return fmt::format("params.p{0}, params.p{0}_size", x.param);
    return fmt::format("params.args.params[{0}].data, params.args.params[{0}].size", x.param);
  }

  std::string arg(std::size_t i, int n) const {
    return operand(static_cast<std::size_t>(at(i).args[static_cast<std::size_t>(n)]), at(i).uniform);
  }

  std::string call(std::string_view function, std::size_t i) const { return fmt::format("{}({}, {})", function, arg(i, 0), arg(i, 1)); }

  std::string expression(std::size_t i) const {
    const Instruction& x = at(i);
    const std::string a = arg(i, 0);
    switch (x.op) {
      case Op::array_param:
        return x.dtype == DType::f32   ? fmt::format("element<float>({}, {})", data_and_size(x), a)
               : x.dtype == DType::i32 ? fmt::format("i64{{element<i32>({}, {})}}", data_and_size(x), a)
                                       : fmt::format("element<i64>({}, {})", data_and_size(x), a);
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

  std::string integers(std::size_t i, const std::string& a) const {
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

  std::string numbers(std::size_t i, const std::string& a) const {
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

  const Program& program_;
  const Code& code_;
  const HookText& hook_;
  CudaMath math_;
  std::vector<bool> exact_, kept_;
};

/// Members for plan-time parameters and the function that finds them in the blob.
std::string print_params(const Program& program) {
  std::string members;
  std::string values;
  for (std::size_t i = 0; i < program.params.size(); ++i) {
    const ParamInfo& info = program.params[i];
    if (info.time != ParamTime::plan) continue;
    if (info.kind != ParamInfo::Kind::scalar) {
      members += fmt::format("    const u8* p{0};  // {1}\n    i64 p{0}_size;\n", i, info.name);
      values += fmt::format(", plan_array(p, {0}), plan_size(p, {0})", i);
    } else if (info.dtype == DType::i64) {
      members += fmt::format("    i64 p{};  // {}\n", i, info.name);
      values += fmt::format(", plan_integer(p, {})", i);
    } else {
      members += fmt::format("    float p{};  // {}\n", i, info.name);
      values += fmt::format(", plan_number(p, {})", i);
    }
  }
  if (members.empty()) return {};
  return fmt::format(
      "  struct Params {{\n    const Args& args;\n{}  }};\n"
      "  static __device__ __forceinline__ Params load_params(const Args& p) {{ return {{p{}}}; }}\n",
      members, values);
}

std::string print_rope(const CudaRope& rope) {
  if (rope.turns.empty()) return {};
  std::string text = fmt::format(
      "  static constexpr bool kHasRope = true, kRopeInterleave = {};\n"
      "  static constexpr int kRopeBegin = {}, kRopePairs = {};\n"
      "  static __device__ __forceinline__ u64 rope_turns(int pair) {{\n"
      "    static constexpr u64 kTurns[kRopePairs] = {{",
      rope.interleave, rope.begin, rope.turns.size());
  for (std::size_t i = 0; i < rope.turns.size(); ++i) {
    text += fmt::format("{}0x{:x}", i == 0 ? "" : i % 8 == 0 ? ",\n      " : ", ", rope.turns[i]);
  }
  return text + "};\n    return kTurns[pair];\n  }\n";
}

void print_flag(std::string& text, bool value, std::string_view flag) {
  if (value) text += fmt::format("  static constexpr bool {} = true;\n", flag);
}

}  // namespace

std::string print_cuda(const Program& program, const CudaRope& rope, CudaMath math) {
  std::string text = "struct Variant : PlainVariant {\n";
  if (!program.softmax) text += "  static constexpr bool kSoftmax = false;\n";
  text += print_params(program);
  text += print_rope(rope);
  print_flag(text, program.query.uses(Var::mean_square), "kQueryMeanSquare");
  print_flag(text, program.key.uses(Var::mean_square), "kKeyMeanSquare");
  print_flag(text, program.value.uses(Var::mean_square), "kValueMeanSquare");
  print_flag(text, program.key.uses(Var::kv_pos), "kKeyPos");
  print_flag(text, program.value.uses(Var::kv_pos), "kValuePos");
  print_flag(text, program.logits.uses(Var::kv_pos), "kLogitsPos");
  print_flag(text, program.mask.uses(Var::q_head), "kMaskByHead");
  const std::pair<const Code*, const HookText*> hooks[] = {{&program.query, &kQuery}, {&program.key, &kKey},
                                                           {&program.value, &kValue}, {&program.logits, &kLogits},
                                                           {&program.mask, &kMask},   {&program.output, &kOutput}};
  for (const auto& [code, hook] : hooks) {
    if (!code->empty()) text += HookPrinter(program, *code, *hook, math).print();
  }
  if (!program.sink.empty()) {
    constexpr HookText kSink = {"sink", "", "kHasSink", "i64 q_head", ""};
    text += HookPrinter(program, program.sink, kSink, math).print_uniform("float sink", kSink.fixed);
  }
  return text + "};\n";
}

}  // namespace girih::variant
