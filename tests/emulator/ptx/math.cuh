// Twin of kernels/ptx/math.cuh: the C library's functions, with subnormals flushed as the instructions do. tanh_fast is off by half its
// bound.
#pragma once

#include <cmath>

#include "core/types.cuh"

namespace girih::ptx {

inline float flush(float x) { return std::fabs(x) < 0x1p-126F ? std::copysign(0.0F, x) : x; }

inline float ex2(float x) { return flush(std::exp2(flush(x))); }
inline float lg2(float x) { return std::log2(flush(x)); }
inline float rcp(float x) { return flush(1.0F / flush(x)); }
inline float rsqrt(float x) { return 1.0F / std::sqrt(flush(x)); }
inline float sqrt_rn(float x) { return std::sqrt(x); }
inline float tanh_fast(float x) { return std::tanh(x) * (1.0F - 0x1p-12F); }
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float min_or_nan(float a, float b) { return a < b || a != a ? a : b; }
inline float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }
inline float max_number(float a, float b) { return std::fmax(a, b); }
inline float max_magnitude(float a, float b) { return std::isnan(a) ? a : (a > std::fabs(b) ? a : std::fabs(b)); }
inline float limit_magnitude(float x, float limit) { return std::fabs(x) > limit ? limit : std::fabs(x); }
inline float min_number(float a, float b) { return std::fmin(a, b); }
inline float add_toward_zero(float a, float b) {
  const float sum = a + b;
  const float large = a > b ? a : b, small = a > b ? b : a;
  return sum - large > small ? std::nextafter(sum, 0.0F) : sum;  // the difference is exact
}
/// Of numbers whose sum is exact in double precision.
inline float fma_toward_zero(float a, float b, float c) {
  const double exact = static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c);
  const float sum = static_cast<float>(exact);
  return static_cast<double>(sum) > exact ? std::nextafter(sum, 0.0F) : sum;
}

}  // namespace girih::ptx
