// One hook as device code: an instruction becomes one constant of the function that computes it; constants, variables and scalar parameters
// are written where they are used. The row's half of a hook returns only what the other half reads, so that a kernel keeps few registers:
// of a window mask, q_pos. Printers of other forms of a hook (cuda_logits.cc, cuda_mask.cc) build on its parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "variant/cuda.h"
#include "variant/program.h"

namespace girih::variant {

/// A hook's two signatures.
struct HookText {
  std::string_view name;   // "mask"
  std::string_view type;   // "MaskRow"
  std::string_view flag;   // "kHasMask"
  std::string_view fixed;  // parameters of NAME_row
  std::string_view lane;   // further parameters of NAME
};

std::string_view type_name(ExprType type);  // "float"
std::string number_literal(float x);
std::string integer_literal(std::int64_t x);

class HookPrinter {
 public:
  HookPrinter(const Code& code, const HookText& hook, CudaMath math);

  /// Both halves.
  std::string print() const;
  /// The hook as one function of uniform instructions only: the sink.
  std::string print_uniform(std::string_view signature, std::string_view parameters) const;

  const Code& code() const { return code_; }
  const Instruction& at(std::size_t i) const { return code_.instructions[i]; }
  std::size_t last() const { return code_.instructions.size() - 1; }
  static bool is_leaf(const Instruction& x);
  /// A condition depends on the number: computed with one rounding an operation.
  bool is_exact(std::size_t i) const { return exact_[i]; }
  /// What an integer grows by from key to key, if that is a constant of at most kMaxSlope.
  std::optional<std::int64_t> slope(std::size_t i) const;
  /// Times the columns of a step within 2^22: f32 then holds the sum with an integer below 2^23 exactly, and a larger one hides no small
  /// one.
  static constexpr std::int64_t kMaxSlope = std::int64_t{1} << 15;
  /// How a function names the value of instruction i; `in_row`: in the row's half. The other half has the row's values as `u`.
  std::string operand(std::size_t i, bool in_row) const;
  /// The operation of instruction i, on its operands' names.
  std::string expression(std::size_t i) const;
  std::string data_and_size(const Instruction& x) const;
  static std::string function(std::string_view signature, std::string_view parameters, const std::string& statements,
                              std::string_view result);

 private:
  void find_exact();
  void find_kept();
  std::string body(bool uniform) const;
  std::string variable(Var v, bool in_row) const;
  std::string arg(std::size_t i, int n) const;
  std::string call(std::string_view function, std::size_t i) const;
  std::string integers(std::size_t i, const std::string& a) const;
  std::string numbers(std::size_t i, const std::string& a) const;

  const Code& code_;
  const HookText& hook_;
  CudaMath math_;
  std::vector<bool> exact_, kept_;
};

}  // namespace girih::variant
