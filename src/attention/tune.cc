// The CPU row of the tuning table.
#include "attention/tune.h"

#include <algorithm>

namespace girih::attention {

Tune tune_cpu(const AttentionSpec& spec) {
  Tune tune;
  // Up to 8 rows the small kernel reads K and V once from memory and stays near the bandwidth limit; from 9 on the large one wins
  // because its inner loop has no horizontal sums.
  tune.small_rows = 8;
  const int dims = spec.head_dim_qk + spec.head_dim_vo;
  // Large: Q, O and the score tile (f32) together stay within half of a 1 MiB L2. 192 rows share one conversion of K and V.
  const int large_rows = dims <= 256 ? 192 : dims <= 512 ? 144 : 96;
  tune.classes[kSmall] = {.tile_rows = tune.small_rows,
                          .kv_block = 64,
                          .cost_piece = 24 + dims / 32,
                          .cost_block = dims / 16,
                          .cost_block_row = std::max(1, dims / 64)};
  tune.classes[kLarge] = {.tile_rows = large_rows,
                          .kv_block = 64,
                          .cost_piece = 24 + dims / 8,
                          .cost_block = dims / 4,
                          .cost_block_row = std::max(1, dims / 32)};
  tune.invariant_chunk = kInvariantChunk;
  return tune;
}

}  // namespace girih::attention
