// CPU evaluation of hooks, a row of keys (or a head vector) or a tile of rows and keys at a time. evaluate.cc compiles them for every SIMD
// target and variant/evaluate-inl.h declares them for the current one; this header holds what those and the kernels share.
#pragma once

#include <cstdint>

#include "variant/program.h"

namespace girih::variant {

/// Values of the variables that are fixed for a query row.
struct RowVars {
  std::int64_t q_pos = 0, q_idx = 0, q_len = 0, kv_len = 0, request = 0, q_head = 0, kv_head = 0, q_row = 0;
};

inline constexpr int kMaxLanes = 1024;  // keys of a tile or elements of a head vector per call

/// Bytes of scratch that evaluating any hook of `program` over up to `lanes` lanes needs (64-byte aligned memory).
std::int64_t evaluate_scratch_bytes(const Program& program, int lanes);

inline constexpr int kTileBatch = 2048;  // pairs of rows and keys at a time, which keeps intermediate values in the first-level cache
constexpr int tile_batch_keys(int lanes) { return lanes < kTileBatch ? kTileBatch / lanes : 1; }
inline constexpr std::int64_t kTileFrameBytes = 8448;

/// Bytes of memory that a tile's evaluation of a hook takes, for up to `lanes` rows and steps of up to `keys` keys.
std::int64_t evaluate_tile_bytes(const Code& code, int lanes, int keys);

// The evaluators are in variant/evaluate-inl.h, inside HWY_NAMESPACE.

}  // namespace girih::variant
