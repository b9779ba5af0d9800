// The integer arithmetic of sampling, which the CPU backend and kernels share: random numbers, the order of values, probability masses.
// A mass is a weight in fixed point, so that sums are exact and their order does not matter: results are the same bits however a row is
// divided. Weights come from the f32 bits of probabilities, or of 2^y computed step by step alike on every backend.
#pragma once

#include <cstdint>

namespace girih::abi {

inline constexpr std::int64_t kMaxVocab = std::int64_t{1} << 20;  // masses are < 2^44: so many of them do not overflow 64 bits
inline constexpr int kMassBits = 43;                              // the mass of weight 2^0 under reference exponent 127 is 2^43
inline constexpr float kArgmaxTemperature = 1e-5F;
inline constexpr int kOneExponent = 127;  // biased exponent of 1
inline constexpr std::int32_t kMaxTopLogprobs = 128;
inline constexpr std::int32_t kMaxTopK = 4096;

/// What a random number is for: no two uses share one.
enum class Purpose : std::uint32_t { token = 0, residual = 1, accept = 2 };  // accept + i: draft i

inline std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t a0 = a & 0xffffffffU, a1 = a >> 32, b0 = b & 0xffffffffU, b1 = b >> 32;
  const std::uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  return a1 * b1 + (middle >> 32) + ((a0 * b1 + (middle & 0xffffffffU)) >> 32);
}

/// 64 bits of Philox 4x32-10 (Salmon et al., SC 2011) for key `seed` and counter (offset, row, purpose).
inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t offset, std::uint32_t row, std::uint32_t purpose) {
  std::uint32_t c0 = static_cast<std::uint32_t>(offset), c1 = static_cast<std::uint32_t>(offset >> 32), c2 = row, c3 = purpose;
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return static_cast<std::uint64_t>(c1) << 32 | c0;
}

/// Keys order as values do. Of -inf: kKeyOfMinusInf; only NaN (key 0) comes before it. -0 has the key of +0.
inline constexpr std::uint32_t kKeyOfMinusInf = 0x007fffffU;
inline constexpr std::uint32_t kKeyOfInf = 0xff800000U;
inline std::uint32_t key_of_bits(std::uint32_t bits) {
  if ((bits & 0x7fffffffU) > 0x7f800000U) return 0;
  if (bits == 0x80000000U) bits = 0;
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}
inline std::uint32_t bits_of_key(std::uint32_t key) { return (key >> 31) != 0 ? key & 0x7fffffffU : ~key; }

/// The mass of a weight >= 0 given by its f32 bits; `reference` is the biased exponent whose powers have mass 2^43. No weight may have a
/// larger one.
inline std::uint64_t mass_of_bits(std::uint32_t bits, int reference) {
  const int exponent = static_cast<int>(bits >> 23);
  const std::uint64_t mantissa = exponent == 0 ? bits & 0x7fffffU : (bits & 0x7fffffU) | 0x800000U;
  const int shift = reference - (exponent == 0 ? 1 : exponent);
  return shift > 63 ? 0 : (mantissa << (kMassBits - 23)) >> shift;
}

/// The reference of probabilities whose largest has these bits: 1, unless that would cost bits or overflow, as with weights that are not
/// normalised.
inline int reference_of_largest(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 23);
  return exponent > kOneExponent || exponent < kOneExponent - 20 ? (exponent == 0 ? 1 : exponent) : kOneExponent;
}

/// The weight whose mass is `total`, rounded to f32.
inline float weight_of_mass(std::uint64_t total, int reference) {
  const int exponent = reference - kOneExponent - kMassBits;  // may lie below the smallest exponent: in two steps
  const int half = exponent / 2;
  const auto power = [](int e) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(e + 127) << 23); };
  return static_cast<float>(total) * power(half) * power(exponent - half);
}

/// ceil(total * p), at least 1, for 0 <= p < 1 given by its f32 bits.
inline std::uint64_t mass_needed(std::uint64_t total, std::uint32_t p_bits) {
  const int exponent = static_cast<int>(p_bits >> 23);
  if (exponent == 0) return 1;  // below 2^-126
  const std::uint64_t mantissa = (p_bits & 0x7fffffU) | 0x800000U;
  const int shift = 150 - exponent;  // p = mantissa / 2^shift, shift >= 24
  const std::uint64_t low = (total & 0xffffffffU) * mantissa;
  const std::uint64_t high = (total >> 32) * mantissa + (low >> 32);  // the product is high 2^32 + (low mod 2^32)
  const std::uint64_t rest = low & 0xffffffffU;
  std::uint64_t quotient = 0;
  bool exact = true;
  if (shift < 32) {
    quotient = high << (32 - shift) | rest >> shift;
    exact = (rest & ((std::uint64_t{1} << shift) - 1)) == 0;
  } else if (shift - 32 < 64) {
    quotient = high >> (shift - 32);
    exact = rest == 0 && (high & ((std::uint64_t{1} << (shift - 32)) - 1)) == 0;
  } else {
    exact = rest == 0 && high == 0;
  }
  quotient += exact ? 0 : 1;
  return quotient == 0 ? 1 : quotient;
}

/// Whether a draft of probability q is accepted under target p: with probability min(1, p / q). What is not > 0 counts as 0.
inline bool accepts(std::uint32_t p_bits, std::uint32_t q_bits, std::uint64_t random) {
  constexpr std::uint32_t kInf = 0x7f800000U;
  if (p_bits == 0 || p_bits > kInf) return false;
  if (q_bits > kInf) q_bits = 0;
  const std::uint32_t larger = p_bits > q_bits ? p_bits : q_bits;
  const int exponent = static_cast<int>(larger >> 23);
  const int reference = exponent == 0 ? 1 : exponent;
  return multiply_high(random, mass_of_bits(q_bits, reference)) < mass_of_bits(p_bits, reference);
}

}  // namespace girih::abi
