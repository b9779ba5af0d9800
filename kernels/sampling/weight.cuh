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
  float least;   // probabilities below it have no mass
  float factor;  // 2^(127 - reference): brings probabilities to weights below 2
  bool plain;    // least and factor change nothing
};

__device__ __forceinline__ Weighting make_weighting(bool probs, float max, float temperature) {
  Weighting w{max, kLog2E / temperature, abi::kOneExponent, float_of(1), 1.0F, true};
  if (probs && max == kInfinity) {
    w.reference = 255;  // of infinity, which has the mass 2^43 by it
    w.least = kInfinity;
  } else if (probs && max > 0.0F) {
    w.reference = abi::reference_of_largest(bits_of(max));
  }
  if (w.reference != abi::kOneExponent) {
    w.factor =
        w.reference < 254 ? float_of(static_cast<u32>(254 - w.reference) << 23) : float_of(w.reference == 254 ? 0x400000U : 0x200000U);
    w.plain = false;
  }
  return w;
}

/// 2^((x - max) scale) for x <= max: below 2^-125 0.
__device__ __forceinline__ float logit_weight(float x, const Weighting& w) {
  constexpr float kMagic = 0x1.8p23F;
  const float d = ptx::min_number(x - w.max, 0.0F);  // inf - inf = 0; of max = inf, -inf for all others
  const float shifted = ptx::fma(d, w.scale, kMagic);
  const float f = ptx::fma(d, w.scale, kMagic - shifted);
  const float f2 = f * f;
  float p = ptx::fma(1.54035122e-4F, f2, ptx::fma(1.33907353e-3F, f, 9.61823761e-3F));
  p = ptx::fma(p, f2, ptx::fma(5.55035733e-2F, f, 0.240226492F));
  p = ptx::fma(p, f2, ptx::fma(0.693147182F, f, 1.0F));
  const u32 bits = bits_of(p) + (bits_of(shifted) << 23);  // kMagic's bits are a multiple of 2^9
  return shifted < kMagic - 125.0F ? 0.0F : float_of(bits);
}

/// Of an entry as RowReader gives it: what its part of the row is in proportion to.
template <bool kProbs>
__device__ __forceinline__ float weight_of(float x, const Weighting& w) {
  if constexpr (kProbs) return x >= w.least ? x : 0.0F;
  return logit_weight(x, w);
}
/// The same in units of the reference, below 2.
template <bool kProbs>
__device__ __forceinline__ float scaled_weight(float x, const Weighting& w) {
  if constexpr (kProbs) return w.plain ? x : ptx::min_number((x >= w.least ? x : 0.0F) * w.factor, w.least == kInfinity ? 1.0F : 2.0F);
  return logit_weight(x, w);
}

/// A mass is 2^22 (high - kHighZero) + (low - kLowZero): a weight in units of 2^-21, and the rest in units of 2^-43. Both are the bits of
/// additions whose last bit is worth that. Sums of up to 1024 fit 32 bits; what each counts from is taken off at the end.
struct SplitMass {
  u32 high;
  u32 low;
};
constexpr u32 kHighZero = 0x40800000U;  // of 4.0F
constexpr u32 kLowZero = 0x35800000U;   // of 2^-20
__device__ __forceinline__ SplitMass split_mass(float scaled) {
  const float high = ptx::add_toward_zero(scaled, 4.0F);
  const float rest = scaled - (high - 4.0F);  // exact
  return {bits_of(high), bits_of(ptx::add_toward_zero(rest, 0x1p-20F))};
}
/// The mass of `count` of them added up, modulo 2^32 each.
__device__ __forceinline__ u64 joined(u32 high, u32 low, u32 count) {
  return (static_cast<u64>(high - count * kHighZero) << 22) + (low - count * kLowZero);
}

template <bool kProbs>
__device__ __forceinline__ u64 mass_of(float x, const Weighting& w) {
  const SplitMass m = split_mass(scaled_weight<kProbs>(x, w));
  return joined(m.high, m.low, 1);
}
__device__ __attribute__((noinline)) inline u64 mass_needed(u64 total, float p) { return abi::mass_needed(total, bits_of(p)); }
/// weight / the weight of a mass.
template <bool kProbs>
__device__ __forceinline__ float part_of(float x, u64 mass, const Weighting& w) {
  if (kProbs && w.max == kInfinity) return x == kInfinity ? 1.0F / abi::weight_of_mass(mass, abi::kOneExponent) : 0.0F;
  return weight_of<kProbs>(x, w) / abi::weight_of_mass(mass, w.reference);
}

/// ln of the probability of an entry of value x.
template <bool kProbs>
__device__ __attribute__((noinline)) float logprob_of(float x, u64 total, float temperature, const Weighting& w) {
  const float all = log(abi::weight_of_mass(total, w.max == kInfinity ? abi::kOneExponent : w.reference));
  if (w.max == kInfinity) return x == w.max ? -all : -kInfinity;
  if constexpr (kProbs) return log(max(x, 0.0F)) - all;
  return (x - w.max) / temperature - all;
}

/// Keys of entries without NaN; -0 has that of +0.
__device__ __forceinline__ u32 key_of(float x) {
  const u32 bits = bits_of(x + 0.0F);
  return bits ^ (static_cast<u32>(static_cast<i32>(bits) >> 31) | 0x80000000U);
}
__device__ __forceinline__ float value_of(u32 key) { return float_of(abi::bits_of_key(key)); }

/// What of a row is kept: larger keys, and those with this key at positions below the limit.
struct Cut {
  static constexpr int kNone = -1024;  // a limit below all positions, those of what lies before the row included
  u32 key;
  int limit;
  __device__ __forceinline__ bool keeps(u32 k, int position) const { return (k > key) | ((k == key) & (position < limit)); }
  /// The least key of which it may keep something.
  __device__ __forceinline__ u32 least() const { return key + (limit > 0 ? 0U : 1U); }
};

/// A cut as values of a row compare with it: entries have no NaN, and -0 is 0.
struct ValueCut {
  float from;  // kept from here on,
  float tie;   // and of this value those before the limit
  int limit;
  __device__ __forceinline__ explicit ValueCut(Cut cut) : from(value_of(cut.key + 1)), tie(value_of(cut.key)), limit(cut.limit) {}
  __device__ __forceinline__ bool keeps(float x, int position) const { return (x >= from) | ((x == tie) & (position < limit)); }
};

/// x / divisor of weights x, rounded once: by the rounded reciprocal and what products with it leave (Markstein), where nothing on the way
/// is too small or too large for that to be exact.
struct Divider {
  float divisor;
  float reciprocal;
  bool easy;
  __device__ __forceinline__ explicit Divider(float d) : divisor(d), reciprocal(1.0F / d), easy(d >= 0x1p-30F && d < 0x1p30F) {}
  template <int kItems>
  __device__ __forceinline__ void divide(float (&x)[kItems]) const {
    bool hard = !easy;
#pragma unroll
    for (int e = 0; e < kItems; ++e) hard |= (x[e] < 0x1p-60F) & (x[e] != 0.0F);
    if (hard) {
#pragma unroll 1
      for (int turn = 0; turn < kItems; ++turn) {
        const float quotient = x[0] / divisor;
#pragma unroll
        for (int e = 0; e + 1 < kItems; ++e) x[e] = x[e + 1];
        x[kItems - 1] = quotient;
      }
      return;
    }
#pragma unroll
    for (int e = 0; e < kItems; ++e) {
      float q = x[e] * reciprocal;
      q = ptx::fma(ptx::fma(-q, divisor, x[e]), reciprocal, q);  // within a unit of the last place
      x[e] = ptx::fma(ptx::fma(-q, divisor, x[e]), reciprocal, q);
    }
  }
};

}  // namespace girih::sampling
