// The stages of the row operators on the CPU, one table for each SIMD target. Rows pass through f32 buffers that stay in the caches; only
// the first and the last stage know storage types. Buffers have room for kPad elements more than a row, and stages may write these.
#pragma once

#include <cstdint>

#include "abi/rows_params.h"
#include "girih/context.h"

namespace girih::rows {

inline constexpr std::int64_t kPad = 64;

/// Memory that will be needed next: a stage asks for it, a line at a time, while it computes.
struct Ahead {
  const char* data = nullptr;
  std::int64_t bytes = 0;
};

struct Kernels {
  /// Dense elements of f32, f16, bf16, e4m3, e5m2 or i8 as f32; returns the sum of their squares.
  float (*load)(abi::Elem type, const void* source, std::int64_t n, float* out);
  /// x + residual, also stored as `type` (which may be either source) where `sum` is not null; returns the sum of squares.
  float (*load_sum)(abi::Elem type, const void* x, const void* residual, std::int64_t n, float* out, void* sum);
  /// An activation of two rows; interleaved: of the even and odd elements of the first.
  void (*activate)(abi::Elem type, abi::Act act, bool interleaved, const void* gate, const void* up, std::int64_t n, float alpha,
                   float limit, float* out);
  /// Subtracts the mean; returns the sum of squares of what is left.
  float (*centre)(float* x, std::int64_t n);
  /// x * factor * weight + bias; null: 1, 0.
  void (*scale)(float* x, std::int64_t n, float factor, const float* weight, const float* bias);
  /// The same, stored as f32, f16 or bf16. `stream`: past the caches.
  void (*scale_store)(abi::Elem type, const float* x, std::int64_t n, float factor, const float* weight, const float* bias, void* out,
                      bool stream, Ahead ahead);
  /// Rotates the pairs of x [2 pairs].
  void (*rotate)(abi::Rotation rotation, float* x, std::int64_t pairs, const float* cos, const float* sin);
  /// The largest finite |x|, 0 where there is none.
  float (*largest)(const float* x, std::int64_t n);
  /// Codes of x / scale (not divided by 1), dense: any type; 4-bit rows begin at an even element and end with a high nibble of 0.
  void (*store)(abi::Elem type, const float* x, std::int64_t n, float scale, void* out, bool stream);
  /// What was written past the caches is seen by whoever synchronises with this thread after it.
  void (*flush)();
};

Kernels kernels(CpuTarget target);

}  // namespace girih::rows
