// The stages of the row operators on the CPU, one table for each SIMD target. Rows pass through f32 buffers that stay in the caches; only
// the first and the last stage know storage types. Buffers have room for kPad elements more than a row, and stages may write these.
#pragma once

#include <cstdint>

#include "abi/rows_params.h"
#include "girih/context.h"

namespace girih::rows {

inline constexpr std::int64_t kPad = 64;

/// The next row is read, added to its residual, and summed while the row before it is scaled and stored.
struct NormStep {
  const void* next = nullptr;
  const void* source = nullptr;    // the row before, where there is no residual
  const void* residual = nullptr;  // of the next row, or null
  void* sum = nullptr;             // next + residual goes here, or null
  float* next_row = nullptr;       // and here in f32, with a residual
  const float* row = nullptr;      // what next_row was a step before
  float factor = 0;
  const float* weight = nullptr;
  void* out = nullptr;
  bool stream = false;
};

/// x [heads, dim] becomes x * factors[head] * weight + bias (null: 0).
struct Scales {
  std::int64_t heads = 1;
  std::int64_t dim = 0;
  const float* factors = nullptr;
  const float* weight = nullptr;  // of the first head
  const float* bias = nullptr;
  std::int64_t weight_stride = 0;  // between heads
};

struct Kernels {
  /// Dense elements of any type as f32; returns the sum of their squares (of 4 bits: from an even element on, and no sum).
  float (*load)(abi::Elem type, const void* source, std::int64_t n, float* out);
  /// The sum of the squares of each head of [heads, dim]. Here and in what scales, `type` and `from` are f32 or bf16.
  void (*squares)(abi::Elem type, const void* x, std::int64_t heads, std::int64_t dim, float* sums);
  /// x + residual, also stored as `type` (which may be either source) where `sum` is not null; returns the sum of squares.
  float (*load_sum)(abi::Elem type, const void* x, const void* residual, std::int64_t n, float* out, void* sum);
  /// An activation of two rows, stored as `to`: `from` or f32. Interleaved: of the even and odd elements of the first. `stream`: past the
  /// caches.
  void (*activate)(abi::Elem from, abi::Elem to, abi::Act act, bool interleaved, const void* gate, const void* up, std::int64_t n,
                   float alpha, float limit, void* out, bool stream);
  /// Subtracts the mean; returns the sum of squares of what is left.
  float (*centre)(float* x, std::int64_t n);
  /// Scaled and stored as elements of 32 or 16 bits, which may take the place of `x` where they are of its type.
  void (*scale_store)(abi::Elem from, abi::Elem type, const void* x, const Scales& scales, void* out, bool stream, const void* ahead);
  /// Of one head, as f32; returns the largest finite magnitude.
  float (*scale_largest)(abi::Elem from, const void* x, const Scales& scales, float* out);
  /// A plain RMSNorm's step (NormStep), all of one type; returns the next row's sum of squares.
  float (*norm_step)(abi::Elem type, const NormStep& step, std::int64_t n);
  /// Rotates the pairs of x [heads, 2 pairs], whose heads are `stride` apart.
  void (*rotate)(abi::Rotation rotation, float* x, std::int64_t heads, std::int64_t stride, std::int64_t pairs, const float* cos,
                 const float* sin);
  /// The largest finite |x|, 0 where there is none. Here and below `from` is f32, f16 or bf16.
  float (*largest)(abi::Elem from, const void* x, std::int64_t n);
  /// Codes of x / scale (not divided by 1), dense: any type; 4-bit rows begin at an even element and end with a high nibble of 0.
  /// `ahead`, here and below: null, or n elements of 16 bits that are read next, brought near meanwhile.
  void (*store)(abi::Elem from, abi::Elem type, const void* x, std::int64_t n, float scale, void* out, bool stream, const void* ahead);
  /// Codes of blocks (rows.h: block_of) with scales computed for each; `scales`: dense e8m0 or e4m3 codes, or f32, one a block.
  /// `scratch` has room for 2 (n / 16 + kPad) numbers.
  void (*store_blocks)(abi::Elem from, abi::Elem type, abi::Scaling scaling, const void* x, std::int64_t n, float global, void* out,
                       void* scales, float* scratch, bool stream, const void* ahead);
  /// most[b] becomes the largest finite |x| of block b of 128, where that is above it.
  void (*raise_largest)(abi::Elem from, const void* x, std::int64_t n, float* most);
  /// Codes of 8 bits relative to a divisor for each 128 elements; `divisors` has room for 2 (n / 128 + kPad) numbers.
  void (*store_divided)(abi::Elem from, abi::Elem type, const void* x, std::int64_t n, float* divisors, void* out, bool stream,
                        const void* ahead);
  /// x times the scale of its block, as f32, f16 or bf16. `block`: a power of two, at least 16.
  void (*scale_blocks)(abi::Elem type, const float* x, std::int64_t n, const float* scales, std::int64_t block, void* out, bool stream);
  /// Bit i of `out` is bytes[i] != 0, the lowest (or highest) bit of a byte first; n bytes.
  void (*pack_bits)(const std::uint8_t* bytes, std::int64_t n, bool big, std::uint8_t* out);
  /// What was written past the caches is seen by whoever synchronises with this thread after it.
  void (*flush)();
};

Kernels kernels(CpuTarget target);

/// Each sets its part of the table.
void fill_rows(CpuTarget target, Kernels& k);
void fill_activations(CpuTarget target, Kernels& k);
void fill_codes(CpuTarget target, Kernels& k);

}  // namespace girih::rows
