// Folds what is exact: operations on constants, and identities such as `x & true`, `x + 0` on integers, `select(true, a, b)`. Numbers are
// folded in f32 as they would be evaluated; functions by the C library, which is at least as accurate as the evaluators.

#include "variant/fold.h"

#include <cmath>

#include "base/error.h"

namespace girih::variant {
namespace {

bool is_constant(const Instruction& i) { return i.op == Op::const_boolean || i.op == Op::const_integer || i.op == Op::const_number; }
bool is_integer(const Instruction& i, std::int64_t value) { return i.op == Op::const_integer && i.integer == value; }
bool is_boolean(const Instruction& i, bool value) { return i.op == Op::const_boolean && (i.integer != 0) == value; }

Folded constant_boolean(bool value) {
  Instruction i;
  i.op = Op::const_boolean;
  i.type = ExprType::boolean;
  i.integer = value ? 1 : 0;
  return {i};
}

Folded constant_integer(std::int64_t value) {
  Instruction i;
  i.op = Op::const_integer;
  i.type = ExprType::integer;
  i.integer = value;
  return {i};
}

Folded constant_number(float value) {
  Instruction i;
  i.op = Op::const_number;
  i.type = ExprType::number;
  i.number = value;
  return {i};
}

[[noreturn]] void fail_overflow(Op op, std::int64_t a, std::int64_t b) {
  fail(girih::Code::invalid_argument, "variant", "{} of {} and {} overflows 64 bits; use smaller constants", name(op), a, b);
}

std::optional<Folded> fold_integers(Op op, std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kLowest = INT64_MIN;
  std::int64_t result = 0;
  switch (op) {
    case Op::add:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow(op, a, b);
      return constant_integer(result);
    case Op::sub:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow(op, a, b);
      return constant_integer(result);
    case Op::mul:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow(op, a, b);
      return constant_integer(result);
    case Op::div:
    case Op::mod: {
      if (b == 0) return constant_integer(0);
      if (b == -1) {
        if (op == Op::mod) return constant_integer(0);
        if (a == kLowest) fail_overflow(op, a, b);
        return constant_integer(-a);
      }
      const bool rounds_up = a % b != 0 && (a < 0) != (b < 0);
      return constant_integer(op == Op::div ? a / b - (rounds_up ? 1 : 0) : a % b + (rounds_up ? b : 0));
    }
    case Op::min: return constant_integer(a < b ? a : b);
    case Op::max: return constant_integer(a > b ? a : b);
    case Op::lt: return constant_boolean(a < b);
    case Op::le: return constant_boolean(a <= b);
    case Op::eq: return constant_boolean(a == b);
    case Op::ne: return constant_boolean(a != b);
    case Op::neg:
    case Op::abs:
      if (a == kLowest) fail_overflow(op, a, a);
      return constant_integer(op == Op::neg || a < 0 ? -a : a);
    case Op::to_number: return constant_number(static_cast<float>(a));
    default: return std::nullopt;
  }
}

std::optional<Folded> fold_numbers(Op op, float a, float b) {
  switch (op) {
    case Op::add: return constant_number(a + b);
    case Op::sub: return constant_number(a - b);
    case Op::mul: return constant_number(a * b);
    case Op::div: return constant_number(a / b);
    case Op::min: return constant_number(std::fmin(a, b));
    case Op::max: return constant_number(std::fmax(a, b));
    case Op::lt: return constant_boolean(a < b);
    case Op::le: return constant_boolean(a <= b);
    case Op::eq: return constant_boolean(a == b);
    case Op::ne: return constant_boolean(a != b);
    case Op::neg: return constant_number(-a);
    case Op::abs: return constant_number(std::fabs(a));
    case Op::exp: return constant_number(std::exp(a));
    case Op::log: return constant_number(std::log(a));
    case Op::tanh: return constant_number(std::tanh(a));
    case Op::sqrt: return constant_number(std::sqrt(a));
    case Op::rsqrt: return constant_number(1.0F / std::sqrt(a));
    case Op::sigmoid: return constant_number(1.0F / (1.0F + std::exp(-a)));
    default: return std::nullopt;
  }
}

/// Booleans and select, where one constant operand is enough.
std::optional<Folded> fold_logic(Op op, std::span<const Instruction* const> args) {
  const Instruction& a = *args[0];
  if (op == Op::not_) {
    if (a.op == Op::const_boolean) return constant_boolean(a.integer == 0);
    return std::nullopt;
  }
  if (op == Op::select) {
    if (a.op == Op::const_boolean) return Folded{{}, a.integer != 0 ? 1 : 2};
    if (args[1] == args[2]) return Folded{{}, 1};
    return std::nullopt;
  }
  const Instruction& b = *args[1];
  const bool absorbing = op == Op::or_;  // `x | true` is true, `x & false` is false
  if (is_boolean(a, absorbing) || is_boolean(b, absorbing)) return constant_boolean(absorbing);
  if (is_boolean(a, !absorbing)) return Folded{{}, 1};
  if (is_boolean(b, !absorbing) || args[0] == args[1]) return Folded{{}, 0};
  return std::nullopt;
}

/// Integer operations with one constant or twice the same operand.
std::optional<Folded> fold_integer_identities(Op op, std::span<const Instruction* const> args) {
  const Instruction& a = *args[0];
  const Instruction& b = *args[1];
  const bool same = args[0] == args[1];
  switch (op) {
    case Op::add:
      if (is_integer(a, 0)) return Folded{{}, 1};
      if (is_integer(b, 0)) return Folded{{}, 0};
      break;
    case Op::sub:
      if (is_integer(b, 0)) return Folded{{}, 0};
      if (same) return constant_integer(0);
      break;
    case Op::mul:
      if (is_integer(a, 0) || is_integer(b, 0)) return constant_integer(0);
      if (is_integer(a, 1)) return Folded{{}, 1};
      if (is_integer(b, 1)) return Folded{{}, 0};
      break;
    case Op::div:
      if (is_integer(b, 0)) return constant_integer(0);
      if (is_integer(b, 1)) return Folded{{}, 0};
      break;
    case Op::mod:
      if (is_integer(b, 0) || is_integer(b, 1)) return constant_integer(0);
      break;
    case Op::min:
    case Op::max:
      if (same) return Folded{{}, 0};
      break;
    case Op::le:
    case Op::eq:
      if (same) return constant_boolean(true);
      break;
    case Op::lt:
    case Op::ne:
      if (same) return constant_boolean(false);
      break;
    default: break;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Folded> fold(const Instruction& instruction, std::span<const Instruction* const> args) {
  const Op op = instruction.op;
  if (args.empty() || op == Op::array_param || op == Op::bits_param || op == Op::cuda_code) return std::nullopt;
  if (op == Op::and_ || op == Op::or_ || op == Op::not_ || op == Op::select) return fold_logic(op, args);
  bool constant = true;
  for (const Instruction* arg : args) constant = constant && is_constant(*arg);
  const Instruction& a = *args[0];
  const Instruction& b = *args[args.size() - 1];
  if (constant) return a.type == ExprType::integer ? fold_integers(op, a.integer, b.integer) : fold_numbers(op, a.number, b.number);
  if (args.size() == 2 && a.type == ExprType::integer) return fold_integer_identities(op, args);
  return std::nullopt;
}

}  // namespace girih::variant
