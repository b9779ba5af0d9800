// Decides whether a row's integer lanes fit 32 bits (evaluate.cc), from the exact values of its uniform instructions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "variant/program.h"

namespace girih::variant {

inline constexpr std::size_t kScratchAlign = 64;

/// The value of a uniform instruction, by its type.
union Slot {
  std::int64_t integer;
  float number;
  std::uint8_t boolean;
};

struct IntegerLanes {
  bool narrow = false;     // no integer leaves 32 bits, given key positions within [-2^30, 2^30)
  bool positions = false;  // kv_pos is read lane by lane
};

IntegerLanes integer_lanes(const Instruction* instructions, int count, const Slot* uniform);

}  // namespace girih::variant
