// A Program's hooks as the members of one struct. cuda_printer.h prints a hook; here is what surrounds them: parameters, RoPE, flags.
#include "variant/cuda.h"

#include <string_view>

#include "base/error.h"
#include "variant/cuda_forms.h"
#include "variant/cuda_printer.h"

namespace girih::variant {
namespace {

constexpr HookText kQuery = {"query", "QueryRow", "kHasQuery", "const RowVars& row, float mean_square", "float x, i32 dim"};
constexpr HookText kKey = {"key", "KeyRow", "kHasKey", "i64 kv_head, i64 kv_pos, float mean_square", "float x, i32 dim"};
constexpr HookText kValue = {"value", "ValueRow", "kHasValue", "i64 kv_head, i64 kv_pos, float mean_square", "float x, i32 dim"};
constexpr HookText kLogits = {"logits", "LogitsRow", "kHasLogits", "const RowVars& row", "float score, i64 kv_pos"};
constexpr HookText kMask = {"mask", "MaskRow", "kHasMask", "const RowVars& row", "i64 kv_pos"};
constexpr HookText kOutput = {"output", "OutputRow", "kHasOutput", "const RowVars& row", "float x, i32 dim"};

/// All parameters as members, and the function that finds them: run-time ones in the launch's arguments, where a kernel reads them as
/// constants, plan-time ones in the blob.
std::string print_params(const Program& program) {
  std::string members;
  std::string values;
  for (std::size_t i = 0; i < program.params.size(); ++i) {
    const ParamInfo& info = program.params[i];
    const bool at_plan = info.time == ParamTime::plan;
    const auto value = [&](std::string_view planned, std::string_view given) {
      values += (values.empty() ? "" : ", ") + (at_plan ? fmt::format("{}(p, {})", planned, i) : fmt::format("p.params[{}].{}", i, given));
    };
    if (info.kind != ParamInfo::Kind::scalar) {
      members += fmt::format("    const void* p{0};  // {1}\n    i64 p{0}_size;\n", i, info.name);
      value("plan_array", "data");
      value("plan_size", "size");
    } else if (info.dtype == DType::i64) {
      members += fmt::format("    i64 p{};  // {}\n", i, info.name);
      value("plan_integer", "integer");
    } else {
      members += fmt::format("    float p{};  // {}\n", i, info.name);
      value("plan_number", "number");
    }
  }
  if (members.empty()) return {};
  return fmt::format(
      "  struct Params {{\n{}  }};\n"
      "  static __device__ __forceinline__ Params load_params(const Args& p) {{ return {{{}}}; }}\n",
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

/// The texts as functions. They are lines of files of their own, so that the compiler's messages name them.
std::string print_texts(const Program& program) {
  std::string text;
  for (std::size_t i = 0; i < program.texts.size(); ++i) {
    const CudaText& t = program.texts[i];
    text += fmt::format("  static __device__ __forceinline__ {} cuda_code_{}({}) {{\n#line 1 \"{}\"\n{}\n#line 1000 \"generated\"\n  }}\n",
                        t.result, i, t.parameters, t.name, t.body);
  }
  return text;
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
  text += print_texts(program);
  print_flag(text, program.query.uses(Var::mean_square), "kQueryMeanSquare");
  print_flag(text, program.key.uses(Var::mean_square), "kKeyMeanSquare");
  print_flag(text, program.value.uses(Var::mean_square), "kValueMeanSquare");
  print_flag(text, program.key.uses(Var::kv_pos), "kKeyPos");
  print_flag(text, program.value.uses(Var::kv_pos), "kValuePos");
  print_flag(text, program.logits.uses(Var::kv_pos), "kLogitsPos");
  print_flag(text, program.mask.uses_run_param, "kMaskAtRun");
  print_flag(text, program.mask.uses(Var::q_head), "kMaskByHead");
  const std::pair<const Code*, const HookText*> hooks[] = {{&program.query, &kQuery}, {&program.key, &kKey},
                                                           {&program.value, &kValue}, {&program.logits, &kLogits},
                                                           {&program.mask, &kMask},   {&program.output, &kOutput}};
  for (const auto& [code, hook] : hooks) {
    if (code->empty()) continue;
    const HookPrinter printer(*code, *hook, math);
    text += printer.print();
    if (math == CudaMath::exact) continue;
    if (code == &program.logits) text += print_logits_steps(program, printer);
    if (code == &program.mask) text += print_mask_word(printer);
  }
  if (!program.sink.empty()) {
    constexpr HookText kSink = {"sink", "", "kHasSink", "i64 q_head", ""};
    text += HookPrinter(program.sink, kSink, math).print_uniform("float sink", kSink.fixed);
  }
  return text + "};\n";
}

}  // namespace girih::variant
