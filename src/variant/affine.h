// Comparisons that are affine in kv_pos, found once per program: `lhs < rhs` becomes D < 0 and `lhs == rhs` becomes 0 <= D <= width, with
// D = kv * kv_pos + constant + sum of coefficient * (something that does not depend on kv_pos). Terms cancel (`q_pos - (q_pos - kv_pos)`),
// and a floor division of kv_pos by a constant is taken to the other side, so that chunked masks are affine too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "variant/program.h"

namespace girih::variant {

struct AffineTerm {
  std::int16_t instruction = 0;  // independent of kv_pos
  std::int64_t coefficient = 0;
};

struct AffineLeaf {
  enum class Kind : std::uint8_t { below, band };  // D < 0; 0 <= D <= width
  Kind kind{};
  bool negate = false;
  std::int64_t width = 0;
  std::int64_t kv = 0;
  std::int64_t constant = 0;
  std::vector<AffineTerm> terms;
};

/// What no term, position or constant of a leaf may exceed for 64 bits to suffice: checked by the prover for terms and positions.
inline constexpr std::int64_t kAffineLimit = std::int64_t{1} << 40;

/// One entry an instruction: index into `leaves`, or -1 where it is no comparison of this kind.
struct AffineForms {
  std::vector<AffineLeaf> leaves;
  std::vector<std::int16_t> leaf_of;
};

/// `moving[i]`: instruction i depends on kv_pos.
AffineForms find_affine(const Code& code, const std::vector<bool>& moving);

}  // namespace girih::variant
