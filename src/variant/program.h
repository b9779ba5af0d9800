// Program: a Variant flattened. Each hook is a list of instructions in evaluation order (shared subexpressions once), each writing the
// register of its own index; parameters are numbered in order of first use over all hooks. Made once, at schedule().
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "variant/node.h"

namespace girih::variant {

struct Instruction {
  Op op{};
  ExprType type{};
  Var var{};
  bool uniform = false;     // same for every key of a row (or every element of a head vector): computed once
  bool by_row = false;      // differs between the query rows of a tile
  std::int16_t param = -1;  // index into Program::params
  DType dtype{};            // array_param: of the elements
  std::array<std::int16_t, kMaxArgs> args{-1, -1, -1, -1, -1, -1, -1, -1};
  std::int64_t integer = 0;  // const_*; cuda_code: index into Program::texts
  float number = 0;
};

/// One hook; the last instruction is its value. Empty = absent.
struct Code {
  std::vector<Instruction> instructions;
  std::uint32_t vars = 0;  // bit i: uses Var(i)
  bool uses_run_param = false;
  bool empty() const { return instructions.empty(); }
  bool uses(Var v) const { return (vars >> static_cast<int>(v)) & 1U; }
};

struct ParamInfo {
  enum class Kind : std::uint8_t { scalar, array, bits };
  std::string name;
  Kind kind{};
  DType dtype{};  // scalar: f32 or i64; bits: u8
  ParamTime time{};
};

struct Program {
  static constexpr int kMaxParams = 32;
  static constexpr int kMaxInstructions = 256;  // per hook
  Code query, key, value, logits, mask, sink, output;
  std::vector<ParamInfo> params;
  std::vector<CudaText> texts;
  bool softmax = true;
  std::optional<Rope> rope;
  std::string key_text;  // canonical text of everything above: equal text, equal kernel
};

/// Checks types and which hook uses which variable (throws invalid_argument naming the hook), folds constants, shares subexpressions.
Program compile(const Variant& variant);

/// Where a parameter's value lies while a plan is made or run.
struct ParamData {
  const void* data = nullptr;  // array or bits
  std::int64_t size = 0;       // elements (bits: bits)
  std::int64_t integer = 0;    // scalars
  float number = 0;
};
/// One per Program::params, fixed size so that binding allocates nothing.
using ParamTable = std::array<ParamData, Program::kMaxParams>;

/// Finds the given values for all parameters of time `time` in `table`; throws invalid_argument for one that is missing, unknown, given
/// twice, of the wrong kind or type, or not on `place` (`op` opens the message).
void bind_params(const Program& program, ParamTime time, std::span<const ParamValue> values, std::string_view op, ParamTable& table,
                 Device place = {});

}  // namespace girih::variant
