// Interval arithmetic over the integer instructions that differ from lane to lane. As soon as a hull leaves 32 bits the row is wide, so
// that the hulls themselves never overflow 64. Also the size of the scratch that evaluation takes.

#include "variant/narrow.h"

#include <algorithm>

#include "variant/evaluate.h"

namespace girih::variant {
namespace {

struct Hull {
  std::int64_t lo, hi;
};

constexpr Hull kPositions{-(std::int64_t{1} << 30), (std::int64_t{1} << 30) - 1};

bool fits(Hull h) { return h.lo >= INT32_MIN && h.hi <= INT32_MAX; }

std::int64_t magnitude(Hull h) { return std::max(-h.lo, h.hi); }

Hull hull_of_products(Hull a, Hull b) {
  const std::int64_t p[] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
  return {std::min({p[0], p[1], p[2], p[3]}), std::max({p[0], p[1], p[2], p[3]})};
}

/// Operands fit 32 bits. `c`: the third operand of select.
Hull hull_of(const Instruction& instruction, Hull a, Hull b, Hull c) {
  switch (instruction.op) {
    case Op::var: return instruction.var == Var::kv_pos ? kPositions : Hull{0, kMaxLanes - 1};
    case Op::add: return {a.lo + b.lo, a.hi + b.hi};
    case Op::sub: return {a.lo - b.hi, a.hi - b.lo};
    case Op::mul: return hull_of_products(a, b);
    case Op::div: return {-magnitude(a), magnitude(a)};
    case Op::mod: return {-magnitude(b), magnitude(b)};
    case Op::neg: return {-a.hi, -a.lo};
    case Op::abs: return {0, magnitude(a)};
    case Op::min:
    case Op::max: return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)};
    case Op::select: return {std::min(b.lo, c.lo), std::max(b.hi, c.hi)};
    case Op::array_param:
      if (instruction.dtype == DType::i32) return {INT32_MIN, INT32_MAX};
      return {INT64_MIN, INT64_MAX};
    default: return {INT64_MIN, INT64_MAX};
  }
}

}  // namespace

IntegerLanes integer_lanes(const Instruction* instructions, int count, const Slot* uniform) {
  Hull hulls[Program::kMaxInstructions];
  IntegerLanes result{true, false};
  for (int i = 0; i < count; ++i) {
    const Instruction& instruction = instructions[i];
    if (instruction.uniform) continue;
    if (instruction.op == Op::var && instruction.var == Var::kv_pos) result.positions = true;
    if (!result.narrow) continue;
    Hull args[3] = {};
    for (int k = 0; k < 3; ++k) {
      const int arg = instruction.args[static_cast<std::size_t>(k)];
      if (arg < 0) break;
      if (instructions[arg].type != ExprType::integer) continue;
      args[k] = instructions[arg].uniform ? Hull{uniform[arg].integer, uniform[arg].integer} : hulls[arg];
      result.narrow = result.narrow && fits(args[k]);
    }
    if (!result.narrow || instruction.type != ExprType::integer) continue;
    hulls[i] = hull_of(instruction, args[0], args[1], args[2]);
    result.narrow = fits(hulls[i]);
  }
  return result;
}

std::int64_t evaluate_scratch_bytes(const Program& program, int lanes) {
  const auto align = static_cast<std::int64_t>(kScratchAlign);
  const auto padded = [&](std::int64_t bytes) { return (bytes + align - 1) / align * align; };
  std::int64_t most = 0;
  for (const Code* code : {&program.query, &program.key, &program.value, &program.logits, &program.mask, &program.sink, &program.output}) {
    std::int64_t total = padded(4 * std::int64_t{lanes});  // 32-bit positions
    for (const Instruction& instruction : code->instructions) {
      if (instruction.uniform) continue;
      total += padded((instruction.type == ExprType::number ? 4 : instruction.type == ExprType::integer ? 8 : 1) * std::int64_t{lanes});
    }
    if (!code->empty()) most = std::max(most, total);
  }
  return most;
}

}  // namespace girih::variant
