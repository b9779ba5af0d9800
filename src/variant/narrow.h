// Decides whether integer lanes fit 32 bits (evaluate.cc), from the exact values of the instructions that are the same for all of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "variant/program.h"

namespace girih::variant {

inline constexpr std::size_t kScratchAlign = 64;

/// The one value of an instruction, by its type.
union Slot {
  std::int64_t integer;
  float number;
  std::uint8_t boolean;
};

struct IntegerLanes {
  bool narrow = false;     // no integer leaves 32 bits, given key positions within [-2^30, 2^30)
  bool positions = false;  // kv_pos is read lane by lane
};

/// What a variable of the query row spans over the rows of a tile.
struct LaneRange {
  std::int64_t lo, hi;
};

/// `slots`: values of uniform instructions. `rows` [kNumVars]: over a tile, where only those that do not differ by row have a slot; else
/// null.
IntegerLanes integer_lanes(const Instruction* instructions, int count, const Slot* slots, const LaneRange* rows);

}  // namespace girih::variant
