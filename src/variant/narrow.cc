// Interval arithmetic over the integer instructions that differ from lane to lane. As soon as a hull leaves 32 bits the lanes are wide, so
// that the hulls themselves never overflow 64. Also the size of the scratch that evaluation takes.

#include "variant/narrow.h"

#include <algorithm>

#include "variant/evaluate.h"

namespace girih::variant {
namespace {

using Hull = LaneRange;

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
    case Op::var: return instruction.var == Var::kv_pos ? kPositions : Hull{0, kMaxLanes - 1};  // dim
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

IntegerLanes integer_lanes(const Instruction* instructions, int count, const Slot* slots, const LaneRange* rows) {
  const auto has_slot = [rows](const Instruction& in) { return in.uniform && (rows == nullptr || !in.by_row); };
  Hull hulls[Program::kMaxInstructions];
  IntegerLanes result{true, false};
  for (int i = 0; i < count; ++i) {
    const Instruction& instruction = instructions[i];
    if (has_slot(instruction)) continue;
    if (instruction.op == Op::var && instruction.var == Var::kv_pos) result.positions = true;
    if (!result.narrow) continue;
    Hull args[3] = {};
    for (int k = 0; k < 3; ++k) {
      const int arg = instruction.args[static_cast<std::size_t>(k)];
      if (arg < 0) break;
      if (instructions[arg].type != ExprType::integer) continue;
      args[k] = has_slot(instructions[arg]) ? Hull{slots[arg].integer, slots[arg].integer} : hulls[arg];
      result.narrow = result.narrow && fits(args[k]);
    }
    if (!result.narrow || instruction.type != ExprType::integer) continue;
    const bool of_row = instruction.op == Op::var && instruction.uniform;
    hulls[i] = of_row ? rows[static_cast<int>(instruction.var)] : hull_of(instruction, args[0], args[1], args[2]);
    result.narrow = fits(hulls[i]);
  }
  return result;
}

namespace {

std::int64_t padded(std::int64_t bytes) {
  const auto align = static_cast<std::int64_t>(kScratchAlign);
  return (bytes + align - 1) / align * align;
}

std::int64_t element_bytes(const Instruction& instruction) {
  return instruction.type == ExprType::number ? 4 : instruction.type == ExprType::integer ? 8 : 1;
}

}  // namespace

std::int64_t evaluate_scratch_bytes(const Program& program, int lanes) {
  std::int64_t most = 0;
  for (const Code* code : {&program.query, &program.key, &program.value, &program.logits, &program.mask, &program.sink, &program.output}) {
    std::int64_t total = padded(4 * std::int64_t{lanes});  // 32-bit positions
    for (const Instruction& instruction : code->instructions) {
      if (!instruction.uniform) total += padded(element_bytes(instruction) * lanes);
    }
    if (!code->empty()) most = std::max(most, total);
  }
  return most;
}

std::int64_t evaluate_tile_bytes(const Code& code, int lanes, int keys) {
  if (code.empty()) return 0;
  std::int64_t total = kTileFrameBytes + padded(4 * std::int64_t{keys});  // 32-bit positions
  for (const Instruction& instruction : code.instructions) {
    if (instruction.uniform && !instruction.by_row) continue;
    const std::int64_t elements = instruction.uniform ? lanes : !instruction.by_row ? keys : std::max(lanes, kTileBatch);
    total += padded(element_bytes(instruction) * elements);
  }
  return total;
}

}  // namespace girih::variant
