// The CPU backend's passes over a row, one table per SIMD target. A row is f32, padded with -inf to a multiple of kRowPadding; entries
// that have no mass are -inf. All passes give the same bits on every target: sums are of integers, and 2^y is computed with fused
// multiply-adds in a fixed order (abi/sampling_math.h).
#pragma once

#include <cstdint>

#include "abi/sampling_math.h"
#include "girih/context.h"
#include "girih/tensor.h"

namespace girih::sampling {

inline constexpr std::int64_t kRowPadding = 16;
inline constexpr std::int64_t kChunk = 1024;  // entries whose masses are summed together

/// How an entry becomes a weight: a logit 2^((x - max) * scale), a probability itself.
struct Weighting {
  bool probs = false;
  float max = 0;    ///< of the row, +inf allowed: then such entries weigh 1 and all others 0
  float scale = 0;  ///< log2(e) / temperature
  int reference = abi::kOneExponent;
};

struct CpuKernels {
  /// Dense entries to f32; -0 becomes +0, NaN -inf, with `probs` also what is not > 0. Returns whether there was a NaN. Pads.
  bool (*load)(const void* source, DType type, std::int64_t n, bool probs, float* x);
  /// Entries whose bit is not set become -inf.
  void (*mask)(const std::uint32_t* words, std::int64_t n, float* x);
  float (*max)(const float* x, std::int64_t n);
  /// Sums of masses over chunks; returns the total. `chunks` may be null.
  std::uint64_t (*sum)(const float* x, std::int64_t n, const Weighting& w, std::uint64_t* chunks);
  /// masses[i] for i < n; x and masses padded.
  void (*masses)(const float* x, std::int64_t n, const Weighting& w, std::uint64_t* masses);
  /// out[i] = weight / divisor for i < n; out padded, may be x.
  void (*divide)(const float* x, std::int64_t n, const Weighting& w, float divisor, float* out);
  /// Indices of x >= pivot, ascending; returns how many. `indices` has room for all and kRowPadding more.
  std::int64_t (*gather)(const float* x, std::int64_t n, float pivot, std::int32_t* indices);
};
const CpuKernels& cpu_kernels(CpuTarget target);

}  // namespace girih::sampling
