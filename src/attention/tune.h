// Tile shapes and planner costs: data, one row per backend, each with what was measured to choose it.
#pragma once

#include <array>
#include <cstdint>

#include "girih/attention.h"

namespace girih::attention {

/// A tile class is a kernel: small tiles for decode (K and V stream past a few rows), large for prefill (K and V packed, then GEMM).
inline constexpr int kSmall = 0;
inline constexpr int kLarge = 1;
inline constexpr int kNumClasses = 2;

struct ClassTune {
  int tile_rows = 0;  // packed rows of a tile at most
  int kv_block = 0;   // keys a step, counted from where an item begins
  int kv_align = 0;   // items begin at multiples of it, a divisor of kv_block; 0: kv_block. batch_invariant: kv_block
  // Cost of an item in planner units: piece + blocks * (block + rows * block_row), blocks = ceil(keys / kv_block).
  std::int64_t cost_piece = 0;
  std::int64_t cost_block = 0;
  std::int64_t cost_block_row = 0;
  int gang = 1;                    // > 1: a group's tiles by so many go to units side by side, which so read its keys once
  std::int64_t cost_part_row = 0;  // of a row of one part of many in their merge, which one unit does

  /// What items begin at multiples of.
  int align(bool batch_invariant) const { return kv_align > 0 && !batch_invariant ? kv_align : kv_block; }
};

struct Tune {
  std::array<ClassTune, kNumClasses> classes{};
  int small_rows = 0;                // a request with q_len * group <= small_rows (groups of rows likewise) is of class kSmall
  std::int64_t invariant_chunk = 0;  // batch_invariant: KV is cut at multiples of it (itself a multiple of every kv_block)
};

/// Every backend's: a multiple of every kv_block that batch_invariant specs may get.
inline constexpr std::int64_t kInvariantChunk = 2048;

/// The CPU backend's row for a spec.
Tune tune_cpu(const AttentionSpec& spec);

}  // namespace girih::attention
