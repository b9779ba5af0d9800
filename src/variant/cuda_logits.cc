// The logits hook as sums: a number becomes a sum of coefficient * (raw product, column, value of a function), and what multiplies or is
// added, also outside and inside functions, moves into the coefficients. These do not depend on the score, so they are worked out once a
// step: of cap * tanh(score / cap) a score pays one product, 1 / (2^x + 1) and one multiply-add into base-2 units; of slope * (kv_pos -
// q_pos) two multiply-adds.
// An integer that grows by a constant from key to key is converted once, at column 0; f32 holds what a step adds exactly, so the sum has
// the error of two conversions in place of one. Numbers that conditions depend on are printed as ever.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "variant/cuda_forms.h"
#include "variant/hull.h"

namespace girih::variant {
namespace {

constexpr double kLog2E = std::numbers::log2e;
/// A value that is the same for a row's scores of a step: a constant, or a name of logits_step().
struct Coefficient {
  double value = 0;
  std::string name{};  // empty: a constant

  bool is(double x) const { return name.empty() && value == x; }
};

struct Sum {
  Coefficient raw, column, one;
  std::vector<std::pair<std::string, Coefficient>> values;  // names of logits_core()
};

class StepPrinter {
 public:
  StepPrinter(const Program& program, const HookPrinter& hook) : program_(program), hook_(hook) {}

  std::string print() {
    Sum result = sum_of(hook_.last());
    const bool is_additive = program_.softmax && result.raw.name == "factor" && result.values.empty();
    const std::string slope = in_step(result.column);
    const std::string base = in_step(result.one);
    if (program_.softmax) result = scaled(result, {kLog2E});
    const bool is_scaled = result.raw.is(0) && result.column.is(0) && result.values.size() == 1;
    const std::string core = is_scaled ? result.values[0].first : materialize(result);
    const bool is_logistic = is_scaled && core == logistic_name_ && core_ == logistic_line_;
    std::string text = fmt::format(
        "  static constexpr bool kLogitsScaled = {}, kLogitsLogistic = {}, kLogitsAdditive = {};\n"
        "  static constexpr float kLogitsBound = {};\n",
        is_scaled, is_logistic, is_additive, number_literal(bound()));
    std::string members;
    std::string values;
    const auto add = [&](std::string_view type, std::string_view name, const std::string& value) {
      members += fmt::format(" {} {};", type, name);
      values += (values.empty() ? "" : ", ") + value;
    };
    if (uses_row_) add("LogitsRow", "row", "u");
    if (uses_position_) add("i64", "first", "first");
    for (const std::string& name : kept_) add("float", name, name);
    if (is_scaled) {
      add("float", "scale", in_step(result.values[0].second));
      add("float", "offset", in_step(result.one));
    }
    if (is_additive) {
      add("float", "slope", slope);
      add("float", "base", base);
    }
    text += fmt::format("  struct LogitsStep {{{} }};\n", members);
    text += HookPrinter::function("LogitsStep logits_step", "const LogitsRow& u, float factor, i64 first", step_, "{" + values + "}");
    std::string before;
    if (uses_row_) before += "    const LogitsRow& u = step.row;\n";
    if (uses_position_) before += "    const i64 kv_pos = step.first + column;\n";
    if (uses_number_) before += "    const float number = static_cast<float>(column);\n";
    text += HookPrinter::function("float logits_core", "const LogitsStep& step, float raw, int column", before + core_, core);
    if (is_logistic) {
      text += HookPrinter::function("float logits_argument", "const LogitsStep& step, float raw, int column", before, logistic_argument_);
    }
    return text;
  }

 private:
  // ---------------------------------------------------------------------------------------------------------------- coefficients

  static std::string in_step(const Coefficient& c) { return c.name.empty() ? number_literal(static_cast<float>(c.value)) : c.name; }

  Coefficient named(const std::string& expression) {
    std::string name = fmt::format("c{}", num_names_++);
    step_ += fmt::format("    const float {} = {};\n", name, expression);
    return {0, std::move(name)};
  }
  Coefficient product(const Coefficient& a, const Coefficient& b) {
    if (a.is(0) || b.is(0)) return {};
    if (a.is(1)) return b;
    if (b.is(1)) return a;
    if (a.name.empty() && b.name.empty()) return {a.value * b.value};
    return named(in_step(a) + " * " + in_step(b));
  }
  Coefficient sum(const Coefficient& a, const Coefficient& b) {
    if (a.is(0)) return b;
    if (b.is(0)) return a;
    if (a.name.empty() && b.name.empty()) return {a.value + b.value};
    return named(in_step(a) + " + " + in_step(b));
  }
  Coefficient inverse(const Coefficient& a) { return a.name.empty() ? Coefficient{1 / a.value} : named("1.0F / " + a.name); }

  Sum scaled(Sum s, const Coefficient& by) {
    for (Coefficient* c : {&s.raw, &s.column, &s.one}) *c = product(*c, by);
    for (auto& [name, c] : s.values) c = product(c, by);
    return s;
  }
  Sum added(Sum a, const Sum& b) {
    a.raw = sum(a.raw, b.raw);
    a.column = sum(a.column, b.column);
    a.one = sum(a.one, b.one);
    for (const auto& [name, c] : b.values) {
      bool found = false;
      for (auto& [mine, own] : a.values) {
        if (mine != name) continue;
        own = sum(own, c);
        found = true;
      }
      if (!found) a.values.emplace_back(name, c);
    }
    return a;
  }

  // ---------------------------------------------------------------------------------------------------------------- numbers as sums

  std::size_t arg(std::size_t i, int n) const { return static_cast<std::size_t>(hook_.at(i).args[static_cast<std::size_t>(n)]); }
  bool is_uniform(std::size_t i) const { return hook_.at(i).uniform; }

  const Sum& sum_of(std::size_t i) {
    const auto found = sums_.find(i);
    if (found != sums_.end()) return found->second;
    Sum s = make_sum(i);
    return sums_.emplace(i, std::move(s)).first->second;
  }

  Coefficient uniform(std::size_t i) {
    const Instruction& x = hook_.at(i);
    return x.op == Op::const_number ? Coefficient{x.number} : named(hook_.operand(i, false));
  }

  Sum make_sum(std::size_t i) {
    const Instruction& x = hook_.at(i);
    Sum s;
    if (x.uniform) {
      s.one = uniform(i);
      return s;
    }
    if (!hook_.is_exact(i)) {
      switch (x.op) {
        case Op::var:
          if (x.var != Var::score) break;
          s.raw = {0, "factor"};
          return s;
        case Op::add: return added(sum_of(arg(i, 0)), sum_of(arg(i, 1)));
        case Op::sub: return added(sum_of(arg(i, 0)), scaled(sum_of(arg(i, 1)), {-1}));
        case Op::neg: return scaled(sum_of(arg(i, 0)), {-1});
        case Op::mul:
          if (is_uniform(arg(i, 0))) return scaled(sum_of(arg(i, 1)), uniform(arg(i, 0)));
          if (is_uniform(arg(i, 1))) return scaled(sum_of(arg(i, 0)), uniform(arg(i, 1)));
          break;
        case Op::div:
          if (is_uniform(arg(i, 1))) return scaled(sum_of(arg(i, 0)), inverse(uniform(arg(i, 1))));
          break;
        case Op::to_number:
          if (const std::optional<std::int64_t> slope = hook_.slope(arg(i, 0))) {
            s.one = named(fmt::format("to_number({})", at_first(arg(i, 0))));
            s.column = {static_cast<double>(*slope)};
            return s;
          }
          break;
        case Op::tanh: return function(i, 2 * kLog2E, {1}, {-2});
        case Op::sigmoid: return function(i, -kLog2E, {}, {1});
        default: break;
      }
    }
    s.values.emplace_back(value(i), Coefficient{1});
    return s;
  }

  /// one + by / (2^(factor * argument) + 1).
  Sum function(std::size_t i, double factor, const Coefficient& one, const Coefficient& by) {
    const std::string argument = materialize(scaled(sum_of(arg(i, 0)), {factor}));
    const std::string name = fmt::format("f{}", i);
    const std::string line = fmt::format("    const float {} = rcp_approx(exp2_approx({}) + 1.0F);\n", name, argument);
    if (core_.empty()) {
      logistic_name_ = name;
      logistic_line_ = line;
      logistic_argument_ = argument;
    }
    core_ += line;
    Sum s;
    s.one = one;
    s.values.emplace_back(name, by);
    return s;
  }

  /// The integer at column 0, as logits_step() names it.
  std::string at_first(std::size_t i) {
    const Instruction& x = hook_.at(i);
    if (HookPrinter::is_leaf(x) || x.uniform) {
      if (x.op != Op::var || x.var != Var::kv_pos) return hook_.operand(i, false);
      if (!std::exchange(step_has_position_, true)) step_ += "    const i64 kv_pos = first;\n";
      return "kv_pos";
    }
    for (const std::int16_t a : x.args) {
      if (a >= 0) at_first(static_cast<std::size_t>(a));
    }
    if (in_step_.insert(i).second) step_ += fmt::format("    const i64 v{} = {};\n", i, hook_.expression(i));
    return hook_.operand(i, false);
  }

  // ---------------------------------------------------------------------------------------------------------------- values of one score

  /// How logits_core() names the coefficient.
  std::string in_core(const Coefficient& c) {
    if (c.name.empty()) return in_step(c);
    for (const std::string& name : kept_) {
      if (name == c.name) return "step." + name;
    }
    kept_.push_back(c.name);
    return "step." + c.name;
  }

  std::string materialize(const Sum& s) {
    std::string text = s.one.is(0) ? "" : in_core(s.one);
    const auto add = [&](const Coefficient& c, const std::string& name) {
      if (c.is(0)) return;
      if (text.empty()) {
        text = c.is(1) ? name : fmt::format("{} * {}", name, in_core(c));
      } else if (c.is(1)) {
        text = fmt::format("{} + {}", name, text);
      } else {
        text = fmt::format("ptx::fma({}, {}, {})", name, in_core(c), text);
      }
    };
    uses_number_ = uses_number_ || !s.column.is(0);
    add(s.column, "number");
    for (const auto& [name, c] : s.values) add(c, name);
    add(s.raw, "raw");
    return text.empty() ? "0.0F" : text;
  }

  /// Sees to it that logits_core() has instruction i under the name that it is read by, which is returned.
  std::string value(std::size_t i) {
    const Instruction& x = hook_.at(i);
    std::string name = hook_.operand(i, false);
    if (x.uniform) {
      uses_row_ = uses_row_ || name.starts_with("u.");
      return name;
    }
    if (!in_core_.insert(i).second) return name;
    if (x.op == Op::var) {
      if (x.var == Var::score) core_ += fmt::format("    const float score = raw * {};\n", in_core({0, "factor"}));
      uses_position_ = uses_position_ || x.var == Var::kv_pos;
      return name;
    }
    if (is_sum(i)) {
      const std::string text = materialize(sum_of(i));
      core_ += fmt::format("    const float {} = {};\n", name, text);
      return name;
    }
    for (const std::int16_t a : x.args) {
      if (a >= 0) value(static_cast<std::size_t>(a));
    }
    core_ += fmt::format("    const {} {} = {};\n", type_name(x.type), name, hook_.expression(i));
    return name;
  }

  /// make_sum() takes the instruction apart.
  bool is_sum(std::size_t i) const {
    const Instruction& x = hook_.at(i);
    if (x.type != ExprType::number || hook_.is_exact(i)) return false;
    switch (x.op) {
      case Op::add:
      case Op::sub:
      case Op::neg:
      case Op::tanh:
      case Op::sigmoid: return true;
      case Op::mul: return is_uniform(arg(i, 0)) || is_uniform(arg(i, 1));
      case Op::div: return is_uniform(arg(i, 1));
      case Op::to_number: return hook_.slope(arg(i, 0)).has_value();
      default: return false;
    }
  }

  // ---------------------------------------------------------------------------------------------------------------- the bound

  /// Of the logit's magnitude, whatever variables and parameters are.
  float bound() const {
    std::vector<Hull> hulls;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i <= hook_.last(); ++i) {
      const Instruction& x = hook_.at(i);
      Hull hull;
      hull.integer = kAllIntegers;
      hull.number = {-kInfinity, kInfinity, true};
      const auto of = [&](std::size_t n) { return x.args[n] >= 0 ? hulls[static_cast<std::size_t>(x.args[n])] : Hull{}; };
      switch (x.op) {
        case Op::const_boolean: hull.boolean = x.integer != 0 ? Tri::always : Tri::never; break;
        case Op::const_integer: hull.integer = {x.integer, x.integer}; break;
        case Op::const_number: hull.number = {x.number, x.number, std::isnan(x.number)}; break;
        case Op::var:
        case Op::scalar_param:
        case Op::array_param:
        case Op::bits_param:
        case Op::param_handle:
        case Op::cuda_code: break;
        default: apply(x, hook_.at(arg(i, 0)).type, of(0), of(1), of(2), hull);
      }
      hulls.push_back(hull);
    }
    const NumberRange range = hulls.back().number;
    const double largest = std::max(std::fabs(double{range.lo}), std::fabs(double{range.hi}));
    return static_cast<float>(program_.softmax ? largest * kLog2E : largest);
  }

  const Program& program_;
  const HookPrinter& hook_;
  std::string step_, core_;                                        // statements
  std::string logistic_name_, logistic_line_, logistic_argument_;  // of a function that needs no statement before its own
  std::vector<std::string> kept_;                                  // names of logits_step() that logits_core() reads
  int num_names_ = 0;
  std::map<std::size_t, Sum> sums_;
  std::set<std::size_t> in_step_, in_core_;
  bool uses_row_ = false, uses_position_ = false, uses_number_ = false, step_has_position_ = false;
};

}  // namespace

std::string print_logits_steps(const Program& program, const HookPrinter& logits) { return StepPrinter(program, logits).print(); }

}  // namespace girih::variant
