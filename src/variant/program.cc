// compile(): graph to Program. Nodes are visited operands first; each becomes an instruction, folded and shared by value (two nodes that
// compute the same are one), then what the result does not need is dropped and the rest renumbered from the result, so that the text of a
// program depends on what is computed only, not on how the graph was put together.

#include "variant/program.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "variant/fold.h"

namespace girih::variant {
namespace {

constexpr std::uint32_t bit(Var v) { return 1U << static_cast<int>(v); }

constexpr std::uint32_t kQueryVars =
    bit(Var::q_head) | bit(Var::q_pos) | bit(Var::q_idx) | bit(Var::q_len) | bit(Var::kv_len) | bit(Var::request) | bit(Var::q_row);
/// What differs between the rows of a tile, which are of one KV head.
constexpr std::uint32_t kRowVars = kQueryVars | bit(Var::score);
constexpr std::uint32_t kPairVars = kQueryVars | bit(Var::kv_pos) | bit(Var::kv_head);

/// A hook's rules: variables it may use, those that differ from lane to lane, its result.
struct HookRule {
  std::string_view name;
  Expr Variant::*expr;
  Code Program::*code;
  std::uint32_t allowed;
  std::uint32_t varying;
  ExprType result;
};

constexpr std::uint32_t kElement = bit(Var::x) | bit(Var::dim);

const std::array<HookRule, 7> kHooks = {{
    {"query", &Variant::query, &Program::query, kElement | bit(Var::mean_square) | kQueryVars, kElement, ExprType::number},
    {"key", &Variant::key, &Program::key, kElement | bit(Var::mean_square) | bit(Var::kv_head) | bit(Var::kv_pos), kElement,
     ExprType::number},
    {"value", &Variant::value, &Program::value, kElement | bit(Var::mean_square) | bit(Var::kv_head) | bit(Var::kv_pos), kElement,
     ExprType::number},
    {"logits", &Variant::logits, &Program::logits, bit(Var::score) | kPairVars, bit(Var::score) | bit(Var::kv_pos), ExprType::number},
    {"mask", &Variant::mask, &Program::mask, kPairVars, bit(Var::kv_pos), ExprType::boolean},
    {"sink", &Variant::sink, &Program::sink, bit(Var::q_head), 0, ExprType::number},
    {"output", &Variant::output, &Program::output, kElement | kQueryVars, kElement, ExprType::number},
}};

std::string list_vars(std::uint32_t vars) {
  std::string text;
  for (int i = 0; i < kNumVars; ++i) {
    if ((vars >> i) & 1U) text += (text.empty() ? "" : " ") + std::string(name(static_cast<Var>(i)));
  }
  return text;
}

std::string_view time_name(ParamTime time) { return time == ParamTime::plan ? "plan" : "run"; }

std::string_view kind_name(ParamInfo::Kind kind) {
  switch (kind) {
    case ParamInfo::Kind::scalar: return "scalar";
    case ParamInfo::Kind::array: return "array";
    default: return "bits";
  }
}

int num_args(const Instruction& instruction) {
  int n = 0;
  while (n < kMaxArgs && instruction.args[static_cast<std::size_t>(n)] >= 0) ++n;
  return n;
}

/// Turns one hook after another into Code; parameters are collected over all.
class Compiler {
 public:
  explicit Compiler(Program& program) : program_(program) {}

  void compile_hook(const HookRule& rule, const Expr& expr) {
    rule_ = &rule;
    instructions_.clear();
    by_node_.clear();
    by_value_.clear();
    int root = lower(*expr.node());
    const ExprType type = at(root).type;
    if (type == ExprType::integer && rule.result == ExprType::number) {
      Instruction convert;
      convert.op = Op::to_number;
      convert.type = ExprType::number;
      convert.args[0] = static_cast<std::int16_t>(root);
      root = emit(convert);
    } else if (type != rule.result) {
      fail(girih::Code::invalid_argument, "variant", "{} is a {} expression; it must be {}", rule.name, name(type), name(rule.result));
    }
    program_.*rule.code = flatten(root);
  }

 private:
  // What is collected before dead code is dropped: far above kMaxInstructions, within the 16 bits of an operand.
  static constexpr std::size_t kMaxLowered = 32000;

  using Key = std::tuple<Op, ExprType, Var, std::int16_t, std::array<std::int16_t, kMaxArgs>, std::int64_t, std::uint32_t>;

  const Instruction& at(int index) const { return instructions_[static_cast<std::size_t>(index)]; }

  /// Instruction of `root`, its operands before it. Iterative: a node waits on the stack until its operands are done.
  int lower(const Node& root) {
    std::vector<const Node*> stack{&root};
    while (!stack.empty()) {
      const Node& node = *stack.back();
      if (by_node_.count(&node) != 0) {
        stack.pop_back();
        continue;
      }
      const std::size_t before = stack.size();
      for (std::size_t i = node.args.size(); i-- > 0;) {
        if (by_node_.count(node.args[i].get()) == 0) stack.push_back(node.args[i].get());
      }
      if (stack.size() != before) continue;
      by_node_[&node] = emit(instruction_of(node));
      stack.pop_back();
    }
    return by_node_.at(&root);
  }

  Instruction instruction_of(const Node& node) {
    Instruction instruction;
    instruction.op = node.op;
    instruction.type = node.type;
    instruction.integer = node.integer;
    instruction.number = node.number;
    if (node.op == Op::var) {
      instruction.var = node.var;
      if ((rule_->allowed & bit(node.var)) == 0) {
        fail(girih::Code::invalid_argument, "variant", "{} uses {}; it may use parameters, constants and: {}", rule_->name, name(node.var),
             list_vars(rule_->allowed));
      }
    }
    if (!node.param.empty()) instruction.param = static_cast<std::int16_t>(param_of(node));
    if (node.op == Op::cuda_code) instruction.integer = text_of(*node.cuda);
    if (node.op == Op::array_param || node.op == Op::param_handle) instruction.dtype = node.param_dtype;
    for (std::size_t i = 0; i < node.args.size(); ++i) instruction.args[i] = static_cast<std::int16_t>(by_node_.at(node.args[i].get()));
    return instruction;
  }

  int text_of(const CudaText& text) {
    const auto same = [&](const CudaText& other) {
      return other.name == text.name && other.body == text.body && other.result == text.result && other.parameters == text.parameters;
    };
    const auto found = std::find_if(seen_texts_.begin(), seen_texts_.end(), same);
    if (found != seen_texts_.end()) return static_cast<int>(found - seen_texts_.begin());
    seen_texts_.push_back(text);
    return static_cast<int>(seen_texts_.size()) - 1;
  }

  int param_of(const Node& node) {
    ParamInfo info{node.param, ParamInfo::Kind::scalar, node.param_dtype, node.param_time};
    const bool is_handle = node.op == Op::param_handle;
    if (node.op == Op::array_param || (is_handle && node.param_dtype != DType::u8)) info.kind = ParamInfo::Kind::array;
    if (node.op == Op::bits_param || (is_handle && node.param_dtype == DType::u8)) info.kind = ParamInfo::Kind::bits;
    for (std::size_t i = 0; i < seen_params_.size(); ++i) {
      const ParamInfo& other = seen_params_[i];
      if (other.name != info.name) continue;
      if (other.kind != info.kind || other.dtype != info.dtype || other.time != info.time) {
        fail(girih::Code::invalid_argument, "variant",
             "parameter '{}' is used as {} {} of {} time and as {} {} of {} time; one name must be one parameter", info.name,
             kind_name(other.kind), girih::name(other.dtype), time_name(other.time), kind_name(info.kind), girih::name(info.dtype),
             time_name(info.time));
      }
      return static_cast<int>(i);
    }
    if (seen_params_.size() >= kMaxLowered) fail(girih::Code::invalid_argument, "variant", "more than {} parameters", Program::kMaxParams);
    seen_params_.push_back(std::move(info));
    return static_cast<int>(seen_params_.size()) - 1;
  }

  /// Folds `instruction`, or finds an equal one, or appends it.
  int emit(const Instruction& instruction) {
    const int n = num_args(instruction);
    std::array<const Instruction*, kMaxArgs> args{};
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) args[i] = &at(instruction.args[i]);
    if (const auto folded = fold(instruction, std::span(args.data(), static_cast<std::size_t>(n)))) {
      return folded->constant ? emit(*folded->constant) : instruction.args[static_cast<std::size_t>(folded->arg)];
    }
    if (instruction.op == Op::not_ && args[0]->op == Op::not_) return args[0]->args[0];
    const Key key{instruction.op,
                  instruction.type,
                  instruction.var,
                  instruction.param,
                  instruction.args,
                  instruction.integer,
                  std::bit_cast<std::uint32_t>(instruction.number)};
    const auto [where, inserted] = by_value_.try_emplace(key, static_cast<int>(instructions_.size()));
    if (inserted) {
      if (instructions_.size() >= kMaxLowered) fail_long(instructions_.size());
      instructions_.push_back(instruction);
    }
    return where->second;
  }

  [[noreturn]] void fail_long(std::size_t count) const {
    fail(girih::Code::invalid_argument, "variant", "{} takes {}{} instructions; at most {} are supported: put tables into array parameters",
         rule_->name, count >= kMaxLowered ? "over " : "", count, Program::kMaxInstructions);
  }

  /// The instructions that `root` needs, operands first in operand order, renumbered.
  Code flatten(int root) {
    Code code;
    std::vector<int> number(instructions_.size(), -1);
    std::vector<int> stack{root};
    while (!stack.empty()) {
      const int index = stack.back();
      if (number[static_cast<std::size_t>(index)] >= 0) {
        stack.pop_back();
        continue;
      }
      const std::size_t before = stack.size();
      const Instruction& source = at(index);
      const auto n = static_cast<std::size_t>(num_args(source));
      for (std::size_t i = n; i-- > 0;) {
        if (number[static_cast<std::size_t>(source.args[i])] < 0) stack.push_back(source.args[i]);
      }
      if (stack.size() != before) continue;
      number[static_cast<std::size_t>(index)] = static_cast<int>(code.instructions.size());
      stack.pop_back();
      append(code, source, number);
    }
    if (code.instructions.size() > Program::kMaxInstructions) fail_long(code.instructions.size());
    return code;
  }

  void append(Code& code, Instruction instruction, const std::vector<int>& number) {
    instruction.uniform = instruction.op != Op::var || (rule_->varying & bit(instruction.var)) == 0;
    instruction.by_row = instruction.op == Op::var && (kRowVars & bit(instruction.var)) != 0;
    if (instruction.op == Op::var) code.vars |= bit(instruction.var);
    for (std::int16_t& arg : instruction.args) {
      if (arg < 0) continue;
      arg = static_cast<std::int16_t>(number[static_cast<std::size_t>(arg)]);
      instruction.uniform = instruction.uniform && code.instructions[static_cast<std::size_t>(arg)].uniform;
      instruction.by_row = instruction.by_row || code.instructions[static_cast<std::size_t>(arg)].by_row;
    }
    if (instruction.param >= 0) {
      instruction.param = final_param(static_cast<std::size_t>(instruction.param));
      code.uses_run_param = code.uses_run_param || program_.params[static_cast<std::size_t>(instruction.param)].time == ParamTime::run;
    }
    if (instruction.op == Op::cuda_code) instruction.integer = final_text(static_cast<std::size_t>(instruction.integer));
    code.instructions.push_back(instruction);
  }

  std::int64_t final_text(std::size_t seen) {
    const auto [where, inserted] = final_texts_.try_emplace(seen, std::ssize(program_.texts));
    if (inserted) program_.texts.push_back(seen_texts_[seen]);
    return where->second;
  }

  std::int16_t final_param(std::size_t seen) {
    const ParamInfo& info = seen_params_[seen];
    for (std::size_t i = 0; i < program_.params.size(); ++i) {
      if (program_.params[i].name == info.name) return static_cast<std::int16_t>(i);
    }
    if (program_.params.size() == Program::kMaxParams) {
      fail(girih::Code::invalid_argument, "variant", "{} uses parameter '{}' beyond the {} supported; join arrays into one", rule_->name,
           info.name, Program::kMaxParams);
    }
    program_.params.push_back(info);
    return static_cast<std::int16_t>(program_.params.size() - 1);
  }

  Program& program_;
  const HookRule* rule_ = nullptr;
  std::vector<Instruction> instructions_;
  std::unordered_map<const Node*, int> by_node_;
  std::map<Key, int> by_value_;
  std::vector<ParamInfo> seen_params_;
  std::vector<CudaText> seen_texts_;
  std::map<std::size_t, std::int64_t> final_texts_;
};

void check_rope(const Rope& rope) {
  constexpr int kMaxHeadDim = 1024;
  const auto check_positive = [](std::string_view field, double value) {
    if (!(value > 0) || !std::isfinite(value)) {
      fail(girih::Code::invalid_argument, "variant", "rope.{}={}; must be finite and positive", field, value);
    }
  };
  check_positive("theta", rope.theta);
  check_positive("scale", rope.scale);
  if (rope.rotary_dim < 0 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > kMaxHeadDim) {
    fail(girih::Code::invalid_argument, "variant", "rope.rotary_dim={}; must be even and in [0, {}] (0 = all of head_dim_qk)",
         rope.rotary_dim, kMaxHeadDim);
  }
  if (rope.rotary_begin < 0 || rope.rotary_begin > kMaxHeadDim) {
    fail(girih::Code::invalid_argument, "variant", "rope.rotary_begin={}; must be in [0, {}]", rope.rotary_begin, kMaxHeadDim);
  }
  if (!rope.llama31) return;
  check_positive("llama31.factor", rope.llama31->factor);
  check_positive("llama31.low_freq_factor", rope.llama31->low_freq_factor);
  check_positive("llama31.high_freq_factor", rope.llama31->high_freq_factor);
  check_positive("llama31.old_context_len", rope.llama31->old_context_len);
  if (rope.llama31->high_freq_factor <= rope.llama31->low_freq_factor) {
    fail(girih::Code::invalid_argument, "variant", "rope.llama31.high_freq_factor={}; must be above low_freq_factor={}",
         rope.llama31->high_freq_factor, rope.llama31->low_freq_factor);
  }
}

void append_text(std::string& text, const Instruction& instruction, std::size_t index) {
  fmt::format_to(std::back_inserter(text), "{}{}=", index == 0 ? "" : " ", index);
  switch (instruction.op) {
    case Op::const_boolean: text += instruction.integer != 0 ? "true" : "false"; return;
    case Op::const_integer: fmt::format_to(std::back_inserter(text), "{}", instruction.integer); return;
    case Op::const_number: fmt::format_to(std::back_inserter(text), "{}f", instruction.number); return;
    case Op::var: text += name(instruction.var); return;
    default: break;
  }
  text += name(instruction.op);
  if (instruction.op != Op::to_number && instruction.type == ExprType::integer) text += ".i";
  if (instruction.op == Op::cuda_code) fmt::format_to(std::back_inserter(text), ".t{}", instruction.integer);
  if (instruction.param >= 0) fmt::format_to(std::back_inserter(text), ".p{}", instruction.param);
  text += '(';
  for (int i = 0; i < num_args(instruction); ++i) {
    fmt::format_to(std::back_inserter(text), "{}{}", i == 0 ? "" : ",", instruction.args[static_cast<std::size_t>(i)]);
  }
  text += ')';
}

std::string make_key_text(const Program& program) {
  std::string text = program.softmax ? "softmax" : "sum";
  const auto out = std::back_inserter(text);
  if (const auto& rope = program.rope) {
    fmt::format_to(out, ";rope(theta={},scale={},dim={},begin={},interleave={}", rope->theta, rope->scale, rope->rotary_dim,
                   rope->rotary_begin, rope->interleave ? 1 : 0);
    if (const auto& llama = rope->llama31) {
      fmt::format_to(out, ",llama31={}/{}/{}/{}", llama->factor, llama->low_freq_factor, llama->high_freq_factor, llama->old_context_len);
    }
    text += ')';
  }
  for (std::size_t i = 0; i < program.params.size(); ++i) {
    const ParamInfo& param = program.params[i];
    fmt::format_to(out, ";p{}={}:{}:{}:{}", i, param.name, kind_name(param.kind), girih::name(param.dtype), time_name(param.time));
  }
  for (std::size_t i = 0; i < program.texts.size(); ++i) {
    const CudaText& t = program.texts[i];
    fmt::format_to(out, ";t{}={} {}({}){}:{}", i, t.result, t.name, t.parameters, t.body.size(), t.body);
  }
  for (const HookRule& rule : kHooks) {
    const Code& code = program.*rule.code;
    if (code.empty()) continue;
    fmt::format_to(out, ";{}{{", rule.name);
    for (std::size_t i = 0; i < code.instructions.size(); ++i) append_text(text, code.instructions[i], i);
    text += '}';
  }
  return text;
}

}  // namespace

Program compile(const Variant& variant) {
  Program program;
  program.softmax = variant.softmax;
  program.rope = variant.rope;
  if (!variant.softmax && variant.logits.node() == nullptr) {
    fail(girih::Code::invalid_argument, "variant",
         "softmax=false without logits; logits must give the weight of a key, e.g. sigmoid(score())");
  }
  if (!variant.softmax && variant.sink) {
    fail(girih::Code::invalid_argument, "variant", "sink with softmax=false; a sink joins the softmax denominator: leave it absent");
  }
  if (variant.rope) check_rope(*variant.rope);
  Compiler compiler(program);
  for (const HookRule& rule : kHooks) {
    if (const Expr& expr = variant.*rule.expr) compiler.compile_hook(rule, expr);
  }
  program.key_text = make_key_text(program);
  return program;
}

}  // namespace girih::variant
