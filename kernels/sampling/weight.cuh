// How an entry of a row becomes a weight and a mass (abi/sampling_math.h). The steps of 2^y are those of src/sampling/cpu_kernels.cc,
// rounding for rounding: every product that is added to something is an explicit fused multiply-add.
#pragma once

#include "abi/sampling_params.h"
#include "core/convert.cuh"
#include "core/math.cuh"

namespace girih::sampling {

struct Weighting {
  float max;    // of the row; +inf allowed: then such entries weigh 1 and all others 0
  float scale;  // log2(e) / temperature
  int reference;
  float least;  // probabilities below it have no mass
};

__device__ __forceinline__ Weighting make_weighting(bool probs, float max, float temperature) {
  Weighting w{max, kLog2E / temperature, abi::kOneExponent, float_of(1)};
  if (probs && max == kInfinity) {
    w.reference = 255;  // of infinity, which has the mass 2^43 by it
    w.least = kInfinity;
  } else if (probs && max > 0.0F) {
    w.reference = abi::reference_of_largest(bits_of(max));
  }
  return w;
}

/// 2^((x - max) scale): below 2^-125 0.
__device__ __forceinline__ float logit_weight(float x, const Weighting& w) {
  constexpr float kMagic = 0x1.8p23F;
  const float d = x == w.max ? 0.0F : x - w.max;  // of max = inf, -inf for all others
  const float shifted = ptx::fma(d, w.scale, kMagic);
  const bool small = shifted < kMagic - 125.0F;
  const float f = ptx::fma(d, w.scale, kMagic - shifted);
  const float f2 = f * f;
  float p = ptx::fma(1.54035122e-4F, f2, ptx::fma(1.33907353e-3F, f, 9.61823761e-3F));
  p = ptx::fma(p, f2, ptx::fma(5.55035733e-2F, f, 0.240226492F));
  p = ptx::fma(p, f2, ptx::fma(0.693147182F, f, 1.0F));
  const u32 exponent = (bits_of(shifted) - bits_of(kMagic)) << 23;
  return small ? 0.0F : float_of(bits_of(p) + exponent);
}

template <bool kProbs>
__device__ __forceinline__ float weight_of(float x, const Weighting& w) {
  if constexpr (kProbs) return x >= w.least ? x : 0.0F;
  return logit_weight(x, w);
}
template <bool kProbs>
__device__ __forceinline__ u64 mass_of(float x, const Weighting& w) {
  const u32 bits = bits_of(weight_of<kProbs>(x, w));
  if constexpr (kProbs) return abi::mass_of_bits(bits, w.reference);
  const u32 shift = static_cast<u32>(abi::kOneExponent) - (bits >> 23);  // no weight is subnormal
  const u64 mass = static_cast<u64>((bits & 0x7fffffU) | 0x800000U) << (abi::kMassBits - 23) >> (shift & 63U);
  return shift > 63U ? 0 : mass;
}
/// weight / the weight of a mass.
template <bool kProbs>
__device__ __forceinline__ float part_of(float x, u64 mass, const Weighting& w) {
  if (kProbs && w.max == kInfinity) return x == kInfinity ? 1.0F / abi::weight_of_mass(mass, abi::kOneExponent) : 0.0F;
  return weight_of<kProbs>(x, w) / abi::weight_of_mass(mass, w.reference);
}

/// Of an entry as RowReader gives it: no NaN, no -0.
__device__ __forceinline__ u32 key_of(float x) {
  const u32 bits = bits_of(x);
  return bits ^ (static_cast<u32>(static_cast<i32>(bits) >> 31) | 0x80000000U);
}
__device__ __forceinline__ float value_of(u32 key) { return float_of(abi::bits_of_key(key)); }

/// What of a row is kept: larger keys, and those with this key at positions below the limit.
struct Cut {
  u32 key;
  int limit;
  __device__ __forceinline__ bool keeps(u32 k, int position) const { return k > key || (k == key && position < limit); }
};

}  // namespace girih::sampling
