// Constant folding: one instruction whose operands may be constants becomes a constant or one of its operands where that is exact.
#pragma once

#include <optional>
#include <span>

#include "variant/program.h"

namespace girih::variant {

/// What an instruction folds to: a constant instruction, or operand number `arg` as it is.
struct Folded {
  std::optional<Instruction> constant;
  int arg = -1;
};

/// `args`: the instructions of `instruction`'s operands; their identity tells equal operands. Throws invalid_argument where constant
/// integers overflow. Nothing is folded that could change a result, NaN and signed zeros included.
std::optional<Folded> fold(const Instruction& instruction, std::span<const Instruction* const> args);

}  // namespace girih::variant
