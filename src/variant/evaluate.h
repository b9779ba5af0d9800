// CPU evaluation of hooks, a row of keys (or a head vector) at a time. The loops are compiled once per SIMD target from
// variant/evaluate-inl.h; this header holds what those and the kernels share.
#pragma once

#include <cstdint>

#include "variant/program.h"

namespace girih::variant {

/// Values of the variables that are fixed for a query row.
struct RowVars {
  std::int64_t q_pos = 0, q_idx = 0, q_len = 0, kv_len = 0, request = 0, q_head = 0, kv_head = 0, q_row = 0;
};

inline constexpr int kMaxLanes = 1024;   // keys of a tile or elements of a head vector per call

/// Bytes of scratch that evaluating any hook of `program` over up to `lanes` lanes needs (64-byte aligned memory).
std::int64_t evaluate_scratch_bytes(const Program& program, int lanes);

// In variant/evaluate-inl.h, inside HWY_NAMESPACE (all: n <= kMaxLanes, scratch as above):
//   void evaluate_logits(const Program&, const ParamTable&, const RowVars&, const int64_t* kv_pos, int n, float* score /*in: natural units, out: logits*/, std::byte* scratch);
//   void evaluate_mask(const Program&, const ParamTable&, const RowVars&, const int64_t* kv_pos, int n, std::uint8_t* visible /*0 or 1*/, std::byte* scratch);
//   void evaluate_transform(const Code&, const ParamTable&, const RowVars&, int64_t kv_pos, int n, float* x /*in and out*/, std::byte* scratch);   // query, key, value, output
//   float evaluate_sink(const Program&, const ParamTable&, int64_t q_head, std::byte* scratch);

}  // namespace girih::variant
