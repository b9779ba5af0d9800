// Interval arithmetic on the values of expressions: what one instruction can yield when its operands lie in given hulls. Sound for wrapping
// integers (a hull that could overflow becomes everything) and for the rounding and approximation of the evaluators.
#pragma once

#include <cstdint>

#include "variant/interval.h"

namespace girih::variant {

inline constexpr Range kAllIntegers{INT64_MIN, INT64_MAX};

struct NumberRange {
  float lo = 0, hi = 0;  // inclusive, may be infinite; if every value is NaN, anything
  bool nan = false;      // NaN is possible
};

/// The hull of an instruction; the member that its type selects counts.
struct Hull {
  Range integer;
  NumberRange number;
  Tri boolean = Tri::depends;
  bool refinable = false;  // depends, and a smaller range of key positions may decide it
};

/// Operations other than leaves and parameters, select included: fills the member of `hull` that the instruction's type selects. In place,
/// since a copy of what has just been written piecemeal waits for the pieces.
void apply(const Instruction& instruction, ExprType operand_type, const Hull& a, const Hull& b, const Hull& c, Hull& hull);

Tri tri_not(Tri a);
Tri tri_and(Tri a, Tri b);
Tri tri_or(Tri a, Tri b);

}  // namespace girih::variant
