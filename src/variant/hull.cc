// Hulls of single operations. Integer operations check every corner for overflow; number operations use that f32 operations round
// monotonically, so the corners of the hull are rounded results themselves; functions get a margin for the evaluators' approximations.

#include "variant/hull.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace girih::variant {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr NumberRange kAllNumbers{-kInfinity, kInfinity, true};

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  const std::int64_t q = a / b;  // NOLINT(clang-analyzer-core.DivideZero): no caller has 0, which takes lo <= hi to see
  return q - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
}

Range add(Range a, Range b) {
  Range r;
  if (__builtin_add_overflow(a.lo, b.lo, &r.lo) || __builtin_add_overflow(a.hi, b.hi, &r.hi)) return kAllIntegers;
  return r;
}

Range sub(Range a, Range b) {
  Range r;
  if (__builtin_sub_overflow(a.lo, b.hi, &r.lo) || __builtin_sub_overflow(a.hi, b.lo, &r.hi)) return kAllIntegers;
  return r;
}

Range mul(Range a, Range b) {
  std::int64_t p[4];
  if (__builtin_mul_overflow(a.lo, b.lo, &p[0]) || __builtin_mul_overflow(a.lo, b.hi, &p[1]) || __builtin_mul_overflow(a.hi, b.lo, &p[2]) ||
      __builtin_mul_overflow(a.hi, b.hi, &p[3])) {
    return kAllIntegers;
  }
  return {std::min({p[0], p[1], p[2], p[3]}), std::max({p[0], p[1], p[2], p[3]})};
}

Range join(Range a, Range b) { return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)}; }

/// Floor division is monotone in the dividend, and in the divisor on either side of 0: corners of both sides, and 0 for x / 0.
Range div(Range a, Range b) {
  if (a.lo == INT64_MIN && b.lo <= -1 && b.hi >= -1) return kAllIntegers;
  const auto corners = [&](std::int64_t lo, std::int64_t hi) {
    const std::int64_t q[] = {floor_div(a.lo, lo), floor_div(a.lo, hi), floor_div(a.hi, lo), floor_div(a.hi, hi)};
    return Range{std::min({q[0], q[1], q[2], q[3]}), std::max({q[0], q[1], q[2], q[3]})};
  };
  if (b.lo > 0 || b.hi < 0) return corners(b.lo, b.hi);
  Range r{0, 0};
  if (b.lo < 0) r = join(r, corners(b.lo, -1));
  if (b.hi > 0) r = join(r, corners(1, b.hi));
  return r;
}

Range mod(Range a, Range b) {
  if (b.lo == b.hi && b.lo != 0 && b.lo != -1) {
    const std::int64_t q = floor_div(a.lo, b.lo);
    if (q == floor_div(a.hi, b.lo)) return {a.lo - b.lo * q, a.hi - b.lo * q};
  }
  // The remainder lies between 0 and the divisor, short of it.
  return {b.lo < 0 ? b.lo + 1 : 0, b.hi > 0 ? b.hi - 1 : 0};
}

Range neg(Range a) { return a.lo == INT64_MIN ? kAllIntegers : Range{-a.hi, -a.lo}; }

Range abs(Range a) {
  if (a.lo == INT64_MIN) return kAllIntegers;
  if (a.lo >= 0) return a;
  return a.hi <= 0 ? Range{-a.hi, -a.lo} : Range{0, std::max(-a.lo, a.hi)};
}

NumberRange from_corners(const float* corners, int count, bool nan) {
  NumberRange r{kInfinity, -kInfinity, nan};
  for (int i = 0; i < count; ++i) {
    if (std::isnan(corners[i])) return kAllNumbers;
    r.lo = std::min(r.lo, corners[i]);
    r.hi = std::max(r.hi, corners[i]);
  }
  return r;
}

bool has_infinity(NumberRange a) { return a.lo == -kInfinity || a.hi == kInfinity; }
bool has_zero(NumberRange a) { return a.lo <= 0 && a.hi >= 0; }

NumberRange mul(NumberRange a, NumberRange b) {
  // 0 * inf inside the hull need not show at its corners.
  if ((has_zero(a) && has_infinity(b)) || (has_zero(b) && has_infinity(a))) return kAllNumbers;
  const float corners[] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
  return from_corners(corners, 4, a.nan || b.nan);
}

NumberRange div(NumberRange a, NumberRange b) {
  if (has_zero(b) || (has_infinity(a) && has_infinity(b))) return kAllNumbers;
  const float corners[] = {a.lo / b.lo, a.lo / b.hi, a.hi / b.lo, a.hi / b.hi};
  return from_corners(corners, 4, a.nan || b.nan);
}

/// Room for the evaluators' error, a few units in the last place, and for subnormal steps.
NumberRange widen(float lo, float hi, bool nan) {
  constexpr float kRelative = 4e-6F;
  constexpr float kAbsolute = 1e-37F;
  if (std::isnan(lo) || std::isnan(hi)) return kAllNumbers;
  const auto slack = [&](float v) { return std::isinf(v) ? 0.0F : std::fabs(v) * kRelative + kAbsolute; };
  const float largest = std::numeric_limits<float>::max();
  return {lo == kInfinity ? largest : lo - slack(lo), hi == -kInfinity ? -largest : hi + slack(hi), nan};
}

NumberRange function(Op op, NumberRange a) {
  switch (op) {
    case Op::exp: return widen(std::exp(a.lo), std::exp(a.hi), a.nan);
    case Op::tanh: return widen(std::tanh(a.lo), std::tanh(a.hi), a.nan);
    case Op::sigmoid: return widen(1 / (1 + std::exp(-a.lo)), 1 / (1 + std::exp(-a.hi)), a.nan);
    case Op::log: return a.lo < 0 ? kAllNumbers : widen(std::log(a.lo), std::log(a.hi), a.nan);
    case Op::sqrt: return a.lo < 0 ? kAllNumbers : widen(std::sqrt(a.lo), std::sqrt(a.hi), a.nan);
    // A zero may be negative: 1 / sqrt(-0) is -inf.
    case Op::rsqrt: return a.lo <= 0 ? kAllNumbers : widen(1 / std::sqrt(a.hi), 1 / std::sqrt(a.lo), a.nan);
    default: return kAllNumbers;
  }
}

NumberRange extremum(Op op, NumberRange a, NumberRange b) {
  // A NaN operand yields the other one: both ranges are possible then.
  if (a.nan || b.nan) return {std::min(a.lo, b.lo), std::max(a.hi, b.hi), a.nan && b.nan};
  if (op == Op::min) return {std::min(a.lo, b.lo), std::min(a.hi, b.hi), false};
  return {std::max(a.lo, b.lo), std::max(a.hi, b.hi), false};
}

NumberRange apply_numbers(Op op, NumberRange a, NumberRange b) {
  switch (op) {
    case Op::add: {
      const float corners[] = {a.lo + b.lo, a.hi + b.hi};
      const bool cancels = (a.lo == -kInfinity && b.hi == kInfinity) || (a.hi == kInfinity && b.lo == -kInfinity);
      return cancels ? kAllNumbers : from_corners(corners, 2, a.nan || b.nan);
    }
    case Op::sub: return apply_numbers(Op::add, a, {-b.hi, -b.lo, b.nan});
    case Op::mul: return mul(a, b);
    case Op::div: return div(a, b);
    case Op::min:
    case Op::max: return extremum(op, a, b);
    case Op::neg: return {-a.hi, -a.lo, a.nan};
    case Op::abs:
      if (a.lo >= 0) return a;
      return a.hi <= 0 ? NumberRange{-a.hi, -a.lo, a.nan} : NumberRange{0, std::max(-a.lo, a.hi), a.nan};
    default: return function(op, a);
  }
}

Range apply_integers(Op op, Range a, Range b) {
  switch (op) {
    case Op::add: return add(a, b);
    case Op::sub: return sub(a, b);
    case Op::mul: return mul(a, b);
    case Op::div: return div(a, b);
    case Op::mod: return mod(a, b);
    case Op::neg: return neg(a);
    case Op::abs: return abs(a);
    case Op::min: return {std::min(a.lo, b.lo), std::min(a.hi, b.hi)};
    case Op::max: return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
    default: return kAllIntegers;
  }
}

template <typename T>
Tri compare(Op op, T a_lo, T a_hi, T b_lo, T b_hi) {
  switch (op) {
    case Op::lt: return a_hi < b_lo ? Tri::always : (a_lo >= b_hi ? Tri::never : Tri::depends);
    case Op::le: return a_hi <= b_lo ? Tri::always : (a_lo > b_hi ? Tri::never : Tri::depends);
    default: {
      Tri equal = Tri::depends;
      if (a_hi < b_lo || b_hi < a_lo) equal = Tri::never;
      if (a_lo == a_hi && b_lo == b_hi && a_lo == b_lo) equal = Tri::always;
      return op == Op::eq ? equal : tri_not(equal);
    }
  }
}

Tri apply_booleans(Op op, ExprType operand_type, const Hull& a, const Hull& b) {
  if (op == Op::and_) return tri_and(a.boolean, b.boolean);
  if (op == Op::or_) return tri_or(a.boolean, b.boolean);
  if (op == Op::not_) return tri_not(a.boolean);
  if (operand_type == ExprType::integer) return compare(op, a.integer.lo, a.integer.hi, b.integer.lo, b.integer.hi);
  if (a.number.nan || b.number.nan) return Tri::depends;
  return compare(op, a.number.lo, a.number.hi, b.number.lo, b.number.hi);
}

void apply_select(ExprType type, const Hull& condition, const Hull& a, const Hull& b, Hull& r) {
  const Hull& first = condition.boolean == Tri::never ? b : a;
  const Hull& second = condition.boolean == Tri::always ? a : b;
  switch (type) {
    case ExprType::integer: r.integer = join(first.integer, second.integer); break;
    case ExprType::boolean: r.boolean = first.boolean == second.boolean ? first.boolean : Tri::depends; break;
    case ExprType::number:
      r.number = {std::min(first.number.lo, second.number.lo), std::max(first.number.hi, second.number.hi),
                  first.number.nan || second.number.nan};
      break;
  }
}

}  // namespace

Tri tri_not(Tri a) { return a == Tri::depends ? a : (a == Tri::never ? Tri::always : Tri::never); }

Tri tri_and(Tri a, Tri b) {
  if (a == Tri::never || b == Tri::never) return Tri::never;
  return a == Tri::always && b == Tri::always ? Tri::always : Tri::depends;
}

Tri tri_or(Tri a, Tri b) { return tri_not(tri_and(tri_not(a), tri_not(b))); }

void apply(const Instruction& instruction, ExprType operand_type, const Hull& a, const Hull& b, const Hull& c, Hull& hull) {
  if (instruction.op == Op::select) return apply_select(instruction.type, a, b, c, hull);
  switch (instruction.type) {
    case ExprType::integer: hull.integer = apply_integers(instruction.op, a.integer, b.integer); break;
    case ExprType::boolean: hull.boolean = apply_booleans(instruction.op, operand_type, a, b); break;
    case ExprType::number:
      if (instruction.op == Op::to_number) {
        hull.number = {static_cast<float>(a.integer.lo), static_cast<float>(a.integer.hi), false};
      } else {
        hull.number = apply_numbers(instruction.op, a.number, b.number);
      }
      break;
  }
}

}  // namespace girih::variant
