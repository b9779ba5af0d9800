// Kernels of cpu_bf16.h. Compiled for AVX512-BF16 by an attribute and called only where CPUID shows it; on other architectures the
// target does not exist and schedule() never asks for it. Register blocks: 6 rows x 4 vectors of sums (24 of 32 registers).
#include "attention/cpu_bf16.h"

#include "base/error.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12's own "undefined" vectors (GCC bug 105593)
#endif
#include "attention/cpu_bf16-inl.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace girih::attention::bf16 {
namespace {

constexpr int kSmallKeys = 64;  // keys a step of the small tiles

template <int kRows, int kColumns>
HWY_INLINE void score_block(const std::byte* const* k_at, const std::uint32_t* q, int ldr, int depth, float* scores) {
  __m512 sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) sum[r][j] = _mm512_setzero_ps();
  }
  for (int d = 0; d < depth; ++d) {
    __m512i b[kColumns];
    for (int j = 0; j < kColumns; ++j) b[j] = load(q + static_cast<std::int64_t>(d) * ldr + 16 * j);
    for (int r = 0; r < kRows; ++r) {
      const __m512i a = broadcast_pair(k_at[r] + 4 * d);
      for (int j = 0; j < kColumns; ++j) sum[r][j] = dot(sum[r][j], b[j], a);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) _mm512_storeu_ps(scores + static_cast<std::int64_t>(r) * ldr + 16 * j, sum[r][j]);
  }
}

template <int kColumns>
HWY_INLINE void score_panel(const std::byte* const* k_at, int n, const std::uint32_t* q, int ldr, int depth, float* scores) {
  int key = 0;
  for (; key + 6 <= n; key += 6) score_block<6, kColumns>(k_at + key, q, ldr, depth, scores + static_cast<std::int64_t>(key) * ldr);
  float* rest = scores + static_cast<std::int64_t>(key) * ldr;
  switch (n - key) {
    case 5: score_block<5, kColumns>(k_at + key, q, ldr, depth, rest); break;
    case 4: score_block<4, kColumns>(k_at + key, q, ldr, depth, rest); break;
    case 3: score_block<3, kColumns>(k_at + key, q, ldr, depth, rest); break;
    case 2: score_block<2, kColumns>(k_at + key, q, ldr, depth, rest); break;
    case 1: score_block<1, kColumns>(k_at + key, q, ldr, depth, rest); break;
    default: break;
  }
}

template <int kRows, int kColumns>
HWY_INLINE void output_block(const std::uint32_t* p, int ldr, const std::uint32_t* v, int ldv, int depth, const float* corr, float* o) {
  __m512 sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    const __m512 c = _mm512_set1_ps(corr[r]);
    for (int j = 0; j < kColumns; ++j) sum[r][j] = _mm512_mul_ps(_mm512_loadu_ps(o + static_cast<std::int64_t>(r) * ldv + 16 * j), c);
  }
  for (int d = 0; d < depth; ++d) {
    __m512i b[kColumns];
    for (int j = 0; j < kColumns; ++j) b[j] = load(v + static_cast<std::int64_t>(d) * ldv + 16 * j);
    for (int r = 0; r < kRows; ++r) {
      const __m512i a = broadcast_pair(p + static_cast<std::int64_t>(d) * ldr + r);
      for (int j = 0; j < kColumns; ++j) sum[r][j] = dot(sum[r][j], b[j], a);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) _mm512_storeu_ps(o + static_cast<std::int64_t>(r) * ldv + 16 * j, sum[r][j]);
  }
}

template <int kColumns>
HWY_INLINE void output_panel(const std::uint32_t* p, int ldr, const std::uint32_t* v, int ldv, int rows, int depth, const float* corr,
                             float* o) {
  int row = 0;
  for (; row + 6 <= rows; row += 6) {
    output_block<6, kColumns>(p + row, ldr, v, ldv, depth, corr + row, o + static_cast<std::int64_t>(row) * ldv);
  }
  float* rest = o + static_cast<std::int64_t>(row) * ldv;
  switch (rows - row) {
    case 5: output_block<5, kColumns>(p + row, ldr, v, ldv, depth, corr + row, rest); break;
    case 4: output_block<4, kColumns>(p + row, ldr, v, ldv, depth, corr + row, rest); break;
    case 3: output_block<3, kColumns>(p + row, ldr, v, ldv, depth, corr + row, rest); break;
    case 2: output_block<2, kColumns>(p + row, ldr, v, ldv, depth, corr + row, rest); break;
    case 1: output_block<1, kColumns>(p + row, ldr, v, ldv, depth, corr + row, rest); break;
    default: break;
  }
}

/// Interleaves the 32 elements of two rows into pairs: elements 0..15 and 16..31.
HWY_INLINE void interleave(__m512i even, __m512i odd, __m512i& low, __m512i& high) {
  alignas(64) static constexpr std::uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  alignas(64) static constexpr std::uint16_t kHigh[32] = {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                                          24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  low = _mm512_permutex2var_epi16(even, load(kLow), odd);
  high = _mm512_permutex2var_epi16(even, load(kHigh), odd);
}

/// Leading dimensions and the row's length, known to the compiler where kDim > 0.
template <int kDim>
struct SmallShape {
  int dim, ld, lds;
  HWY_INLINE SmallShape(int row_dim, int row_ld, int scores_ld)
      : dim(kDim > 0 ? kDim : row_dim), ld(kDim > 0 ? kDim : row_ld), lds(kDim > 0 ? kSmallKeys : scores_ld) {}
};

/// Four keys of kRows rows.
template <int kRows>
HWY_INLINE void small_score_rows(const std::uint16_t* q, int ldq, const std::byte* const* k_at, std::int64_t offset, int dim, float* scores,
                                 int lds) {
  const std::byte* k0 = k_at[0] + offset;
  const std::byte* k1 = k_at[1] + offset;
  const std::byte* k2 = k_at[2] + offset;
  const std::byte* k3 = k_at[3] + offset;
  __m512 sum[kRows][4];
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = _mm512_setzero_ps();
  for (int d = 0; d < dim; d += 32) {
    const __m512i a0 = load(k0 + 2 * d);
    const __m512i a1 = load(k1 + 2 * d);
    const __m512i a2 = load(k2 + 2 * d);
    const __m512i a3 = load(k3 + 2 * d);
    for (int r = 0; r < kRows; ++r) {
      const __m512i b = load(q + static_cast<std::int64_t>(r) * ldq + d);
      sum[r][0] = dot(sum[r][0], a0, b);
      sum[r][1] = dot(sum[r][1], a1, b);
      sum[r][2] = dot(sum[r][2], a2, b);
      sum[r][3] = dot(sum[r][3], a3, b);
    }
  }
  store_scores<kRows>(sum, scores, lds);
}

/// One key of four rows; kOneHead: of one head, else of four, whose keys lie `stride` apart.
template <bool kOneHead>
HWY_INLINE void small_score_key(const std::uint16_t* q, int ldq, const std::byte* k, std::int64_t stride, int dim, float* scores, int lds) {
  __m512 sum[4];
  sum[0] = sum[1] = sum[2] = sum[3] = _mm512_setzero_ps();
  for (int d = 0; d < dim; d += 32) {
    __m512i a = load(k + 2 * d);
    for (int r = 0; r < 4; ++r) {
      if (!kOneHead && r > 0) a = load(k + r * stride + 2 * d);
      sum[r] = dot(sum[r], a, load(q + static_cast<std::int64_t>(r) * ldq + d));
    }
  }
  store_scores(sum, scores, lds);
}

template <int kDim>
void small_scores_of(const SmallHeads& heads, const std::uint16_t* q, int ldq, const std::byte* const* k_at, Ahead ahead, float* scores,
                     int lds) {
  const SmallShape<kDim> shape(heads.dim, ldq, lds);
  for (int key = 0; key < heads.num_keys; key += 4) {
    ahead.touch_pages(key, key + 4);
    if (heads.score_keys == 1) {
      const int end = key + 4 < heads.num_keys ? key + 4 : heads.num_keys;
      for (int i = key; i < end; ++i) {
        for (int row = 0; row < heads.num_heads * heads.rows; row += 4) {
          const std::uint16_t* q_row = q + static_cast<std::int64_t>(row) * shape.ld;
          float* out = scores + static_cast<std::int64_t>(row) * shape.lds + i;
          if (heads.rows == 1) {
            ahead.step(8 * shape.dim);
            small_score_key<false>(q_row, shape.ld, k_at[i] + row * heads.stride, heads.stride, shape.dim, out, shape.lds);
          } else {
            if (row % heads.rows == 0) ahead.step(2 * shape.dim);
            small_score_key<true>(q_row, shape.ld, k_at[i] + row / heads.rows * heads.stride, 0, shape.dim, out, shape.lds);
          }
        }
      }
      continue;
    }
    for (int h = 0; h < heads.num_heads; ++h) {
      ahead.step(8 * shape.dim);
      const std::int64_t offset = h * heads.stride;
      for (int r = 0; r < heads.rows;) {
        const std::int64_t row = static_cast<std::int64_t>(h) * heads.rows + r;
        const std::uint16_t* q_row = q + row * shape.ld;
        float* out = scores + row * shape.lds + key;
        if (heads.rows - r >= 4) {
          small_score_rows<4>(q_row, shape.ld, k_at + key, offset, shape.dim, out, shape.lds);
          r += 4;
        } else if (heads.rows - r >= 2) {
          small_score_rows<2>(q_row, shape.ld, k_at + key, offset, shape.dim, out, shape.lds);
          r += 2;
        } else {
          small_score_rows<1>(q_row, shape.ld, k_at + key, offset, shape.dim, out, shape.lds);
          r += 1;
        }
      }
    }
  }
}

/// Adds kChunks x 32 columns of two keys to kRows rows of sums. v1 may be absent: a row of zeros, because a weight of 0 would make NaN of
/// an infinity.
template <int kRows, int kChunks>
HWY_INLINE void add_pair(const std::uint16_t* p, int ldp, const std::byte* v0, const std::byte* v1, __m512 (&sum)[kRows][2 * kChunks]) {
  __m512i b[2 * kChunks];
  for (int j = 0; j < kChunks; ++j) {
    interleave(load(v0 + 64 * j), v1 != nullptr ? load(v1 + 64 * j) : _mm512_setzero_si512(), b[2 * j], b[2 * j + 1]);
  }
  for (int r = 0; r < kRows; ++r) {
    const __m512i w = broadcast_pair(p + static_cast<std::int64_t>(r) * ldp);
    for (int j = 0; j < 2 * kChunks; ++j) sum[r][j] = dot(sum[r][j], b[j], w);
  }
}

/// n keys, kChunks x 32 columns of kRows rows; kKeys > 0: n is kKeys.
template <int kRows, int kChunks, int kKeys>
HWY_INLINE void small_output_columns(const std::uint16_t* p, int ldp, const std::byte* const* v_at, std::int64_t offset, int n, float* o,
                                     int ldv) {
  __m512 sum[kRows][2 * kChunks];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < 2 * kChunks; ++j) sum[r][j] = _mm512_loadu_ps(o + static_cast<std::int64_t>(r) * ldv + 16 * j);
  }
  if constexpr (kKeys > 0) {
#pragma GCC unroll 8
    for (int key = 0; key < kKeys; key += 2) {
      add_pair<kRows, kChunks>(p + key, ldp, v_at[key] + offset, v_at[key + 1] + offset, sum);
    }
  } else {
    for (int key = 0; key < n; key += 2) {
      add_pair<kRows, kChunks>(p + key, ldp, v_at[key] + offset, key + 1 < n ? v_at[key + 1] + offset : nullptr, sum);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < 2 * kChunks; ++j) _mm512_storeu_ps(o + static_cast<std::int64_t>(r) * ldv + 16 * j, sum[r][j]);
  }
}

template <int kRows, int kKeys>
HWY_INLINE void small_output_rows(const std::uint16_t* p, int ldp, const std::byte* const* v_at, std::int64_t offset, int n, int dim,
                                  float* o, int ldv) {
  constexpr int kChunks = kRows == 1 ? 4 : 2;  // 8 independent sums at least, 16 at most
  int d = 0;
  for (; d + 32 * kChunks <= dim; d += 32 * kChunks) {
    small_output_columns<kRows, kChunks, kKeys>(p, ldp, v_at, offset + 2 * d, n, o + d, ldv);
  }
  for (; d < dim; d += 32) small_output_columns<kRows, 1, 0>(p, ldp, v_at, offset + 2 * d, n, o + d, ldv);
}

/// One step of all rows of a head.
HWY_INLINE void small_output_head(const std::uint16_t* p, int ldp, const std::byte* const* v_at, std::int64_t offset, int n, int rows,
                                  int dim, float* o, int ldv) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) small_output_rows<4, 0>(p + r * ldp, ldp, v_at, offset, n, dim, o + r * ldv, ldv);
  if (rows - r >= 2) {
    small_output_rows<2, 0>(p + r * ldp, ldp, v_at, offset, n, dim, o + r * ldv, ldv);
    r += 2;
  }
  if (r < rows) small_output_rows<1, 0>(p + r * ldp, ldp, v_at, offset, n, dim, o + r * ldv, ldv);
}

/// All steps of kKeys keys from the first on, rows a multiple of kRows. Returns the key after them.
template <int kDim, int kRows, int kKeys>
HWY_INLINE int whole_output_steps(const SmallHeads& heads, const std::uint16_t* p, const std::byte* const* v_at, Ahead& ahead, float* o) {
  int key = 0;
  for (; key + kKeys <= heads.num_keys; key += kKeys) {
    ahead.touch_pages(key, key + kKeys);
    const std::uint16_t* weights = p + key;
    float* out = o;
    std::int64_t offset = 0;
    for (int h = 0; h < heads.num_heads; ++h) {
      ahead.step(2 * kKeys * kDim);
      for (int r = 0; r < heads.rows; r += kRows) {
        small_output_rows<kRows, kKeys>(weights, kSmallKeys, v_at + key, offset, kKeys, kDim, out, kDim);
        weights += kRows * kSmallKeys;
        out += kRows * kDim;
      }
      offset += heads.stride;
    }
  }
  return key;
}

}  // namespace

void large_scores(const std::byte* const* k_at, int n, const std::uint32_t* q, int ldr, int depth, float* scores) {
  int column = 0;
  for (; column + 64 <= ldr; column += 64) score_panel<4>(k_at, n, q + column, ldr, depth, scores + column);
  for (; column + 32 <= ldr; column += 32) score_panel<2>(k_at, n, q + column, ldr, depth, scores + column);
  for (; column < ldr; column += 16) score_panel<1>(k_at, n, q + column, ldr, depth, scores + column);
}

void large_outputs(const std::uint32_t* p, int ldr, const std::uint32_t* v, int ldv, int rows, int depth, const float* corr, float* o) {
  int column = 0;
  for (; column + 64 <= ldv; column += 64) output_panel<4>(p, ldr, v + column, ldv, rows, depth, corr, o + column);
  for (; column + 32 <= ldv; column += 32) output_panel<2>(p, ldr, v + column, ldv, rows, depth, corr, o + column);
  for (; column < ldv; column += 16) output_panel<1>(p, ldr, v + column, ldv, rows, depth, corr, o + column);
}

void narrow(const float* from, int n, std::uint16_t* to) {
  for (int i = 0; i < n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + i)));
  }
}

void pack_weights(const float* weights, int n, int ldr, std::uint32_t* pairs) {
  for (int key = 0; key < n; key += 2) {
    const float* even = weights + static_cast<std::int64_t>(key) * ldr;
    const float* odd = even + ldr;
    std::uint32_t* out = pairs + static_cast<std::int64_t>(key / 2) * ldr;
    for (int r = 0; r < ldr; r += 16) {
      const __m512i low = _mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(even + r)));
      __m512i high = _mm512_setzero_si512();
      if (key + 1 < n)
        high = _mm512_slli_epi32(_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(odd + r))), 16);
      _mm512_storeu_si512(out + r, _mm512_or_si512(low, high));
    }
  }
}

void pack_values(const std::byte* const* v_at, int n, int dim, int ldv, std::uint32_t* pairs) {
  for (int key = 0; key < n; key += 2) {
    std::uint32_t* out = pairs + static_cast<std::int64_t>(key / 2) * ldv;
    for (int d = 0; d < ldv; d += 32) {
      // Lanes past the row are neither read nor kept.
      const int left = dim - d < 32 ? dim - d : 32;
      const __mmask32 mask = left >= 32 ? ~__mmask32{0} : (left > 0 ? (__mmask32{1} << left) - 1 : __mmask32{0});
      const __m512i even = _mm512_maskz_loadu_epi16(mask, v_at[key] + 2 * d);
      const __m512i odd = key + 1 < n ? _mm512_maskz_loadu_epi16(mask, v_at[key + 1] + 2 * d) : _mm512_setzero_si512();
      __m512i low;
      __m512i high;
      interleave(even, odd, low, high);
      _mm512_storeu_si512(out + d, low);
      if (d + 16 < ldv) _mm512_storeu_si512(out + d + 16, high);
    }
  }
}

// Both products walk the keys in address order, a few keys of all heads at a time (prefetch.h). The common head_dim is a constant.

void small_scores(const SmallHeads& heads, const std::uint16_t* q, int ldq, const std::byte* const* k_at, Ahead ahead, float* scores,
                  int lds) {
  const bool common = heads.dim == 128 && ldq == 128 && lds == kSmallKeys;
  (common ? small_scores_of<128> : small_scores_of<0>)(heads, q, ldq, k_at, ahead, scores, lds);
}

void small_outputs(const SmallHeads& heads, const std::uint16_t* p, int ldp, const std::byte* const* v_at, Ahead ahead, float* o, int ldv) {
  const int step = heads.output_keys;
  int key = 0;
  if (heads.dim == 128 && ldv == 128 && ldp == kSmallKeys) {
    if (heads.rows % 4 == 0 && step == 2) key = whole_output_steps<128, 4, 2>(heads, p, v_at, ahead, o);
    if (heads.rows % 4 == 0 && step == 4) key = whole_output_steps<128, 4, 4>(heads, p, v_at, ahead, o);
    if (heads.rows == 1 && step == 2) key = whole_output_steps<128, 1, 2>(heads, p, v_at, ahead, o);
  }
  for (; key < heads.num_keys; key += step) {
    const int n = heads.num_keys - key < step ? heads.num_keys - key : step;
    ahead.touch_pages(key, key + n);
    for (int h = 0; h < heads.num_heads; ++h) {
      const std::int64_t row = static_cast<std::int64_t>(h) * heads.rows;
      ahead.step(2 * step * heads.dim);
      small_output_head(p + row * ldp + key, ldp, v_at + key, h * heads.stride, n, heads.rows, heads.dim, o + row * ldv, ldv);
    }
  }
}

}  // namespace girih::attention::bf16

HWY_POP_ATTRIBUTES

#else

namespace girih::attention::bf16 {

[[noreturn]] static void absent() { bug("the AVX512-BF16 kernels were called on another architecture"); }
void large_scores(const std::byte* const*, int, const std::uint32_t*, int, int, float*) { absent(); }
void pack_weights(const float*, int, int, std::uint32_t*) { absent(); }
void pack_values(const std::byte* const*, int, int, int, std::uint32_t*) { absent(); }
void large_outputs(const std::uint32_t*, int, const std::uint32_t*, int, int, int, const float*, float*) { absent(); }
void narrow(const float*, int, std::uint16_t*) { absent(); }
void small_scores(const SmallHeads&, const std::uint16_t*, int, const std::byte* const*, Ahead, float*, int) { absent(); }
void small_outputs(const SmallHeads&, const std::uint16_t*, int, const std::byte* const*, Ahead, float*, int) { absent(); }

}  // namespace girih::attention::bf16

#endif
