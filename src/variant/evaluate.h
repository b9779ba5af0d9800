// CPU evaluation of hooks, a row of keys (or a head vector) at a time. evaluate.cc compiles them for every SIMD target and
// variant/evaluate-inl.h declares them for the current one; this header holds what those and the kernels share.
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

// evaluate_logits, evaluate_mask, evaluate_transform and evaluate_sink are in variant/evaluate-inl.h, inside HWY_NAMESPACE.

}  // namespace girih::variant
