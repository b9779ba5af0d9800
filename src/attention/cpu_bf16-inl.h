// What the files of AVX512-BF16 kernels share: the dot product of pairs, and sums across lanes. x86-64 only.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "attention/cpu_bf16.h"
#include "hwy/base.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace girih::attention::bf16 {
namespace {

HWY_INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
HWY_INLINE __m512i load(const void* p) { return _mm512_loadu_si512(p); }
HWY_INLINE __m512i broadcast_pair(const void* p) {
  int pair = 0;
  std::memcpy(&pair, p, sizeof(pair));
  return _mm512_set1_epi32(pair);
}

/// Sums within each of the four 128-bit blocks of four vectors: block b of the result holds block b's sums of a, b, c and d.
HWY_INLINE __m512 sum_in_blocks(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
}

/// Block r of the result: the sum of the four blocks of row r. Every sum of lanes is taken in one order, whatever lies beside it.
HWY_INLINE __m512 sum_blocks(__m512 row0, __m512 row1, __m512 row2, __m512 row3) {
  const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(row0, row1, 0x44), _mm512_shuffle_f32x4(row0, row1, 0xee));
  const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(row2, row3, 0x44), _mm512_shuffle_f32x4(row2, row3, 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}
HWY_INLINE __m128 sum_blocks(__m512 row) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(row), _mm512_extractf32x8_ps(row, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/// Sums of four keys of kRows rows to scores[row * lds + key].
template <int kRows>
HWY_INLINE void store_scores(const __m512 (&sum)[kRows][4], float* scores, int lds) {
  __m512 part[kRows];
  for (int r = 0; r < kRows; ++r) part[r] = sum_in_blocks(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
  if constexpr (kRows == 4) {
    const __m512 all = sum_blocks(part[0], part[1], part[2], part[3]);
    _mm_storeu_ps(scores, _mm512_castps512_ps128(all));
    _mm_storeu_ps(scores + lds, _mm512_extractf32x4_ps(all, 1));
    _mm_storeu_ps(scores + 2 * static_cast<std::int64_t>(lds), _mm512_extractf32x4_ps(all, 2));
    _mm_storeu_ps(scores + 3 * static_cast<std::int64_t>(lds), _mm512_extractf32x4_ps(all, 3));
  } else {
    for (int r = 0; r < kRows; ++r) _mm_storeu_ps(scores + static_cast<std::int64_t>(r) * lds, sum_blocks(part[r]));
  }
}

/// Sums of one key of four heads of one row each.
HWY_INLINE void store_scores(const __m512 (&sum)[4], float* scores, int lds) {
  alignas(16) float sums[4];
  _mm_store_ps(sums, sum_blocks(sum_in_blocks(sum[0], sum[1], sum[2], sum[3])));
  for (int h = 0; h < 4; ++h) scores[static_cast<std::int64_t>(h) * lds] = sums[h];
}

}  // namespace
}  // namespace girih::attention::bf16

HWY_POP_ATTRIBUTES
