// Small tiles over 8-bit keys and values: codes become bf16 in registers and meet the dot instruction of cpu_bf16.cc. A code's magnitude
// has 128 values, so two byte lookups (AVX512-VBMI) give the two halves of its bf16, 64 codes an instruction, subnormals and NaN
// included; interleaving the halves leaves the dims of each 64 in another order, which Q and O take on for the length of a tile.
#include "attention/cpu_bf16.h"
#include "base/error.h"

#if defined(__x86_64__)

#include <array>
#include <bit>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12's own "undefined" vectors (GCC bug 105593)
#endif
#include "attention/cpu_bf16-inl.h"
#include "base/numeric.h"

namespace girih::attention::bf16 {
namespace {

/// The bytes of the bf16 of each magnitude.
struct Halves {
  alignas(64) std::array<std::uint8_t, 128> low{};
  alignas(64) std::array<std::uint8_t, 128> high{};
};

template <class Decode>
constexpr Halves halves_of(const Decode& decode) {
  Halves halves;
  for (std::size_t code = 0; code < 128; ++code) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(decode(static_cast<std::uint8_t>(code))) >> 16;
    halves.low[code] = static_cast<std::uint8_t>(bits & 0xffU);
    halves.high[code] = static_cast<std::uint8_t>(bits >> 8);
  }
  return halves;
}

constexpr Halves kE4m3 = halves_of([](std::uint8_t code) { return decode_e4m3(code); });
constexpr Halves kE5m2 = halves_of([](std::uint8_t code) { return decode_e5m2(code); });
constexpr Halves kI8 = halves_of([](std::uint8_t code) { return static_cast<float>(code); });

}  // namespace
}  // namespace girih::attention::bf16

HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")

namespace girih::attention::bf16 {
namespace {

/// Widens codes; kSigned: two's complement (i8), else sign and magnitude.
template <bool kSigned>
class Widener {
 public:
  HWY_INLINE explicit Widener(const Halves& t)
      : low0_(load(t.low.data())), low1_(load(t.low.data() + 64)), high0_(load(t.high.data())), high1_(load(t.high.data() + 64)) {}

  /// 64 codes: block b (of 16 dims) of `first` holds its dims 0..7, of `second` 8..15.
  HWY_INLINE void widen(__m512i codes, __m512i& first, __m512i& second) const {
    const __m512i magnitude = kSigned ? _mm512_abs_epi8(codes) : codes;
    const __m512i low = _mm512_permutex2var_epi8(low0_, magnitude, low1_);
    __m512i high = _mm512_permutex2var_epi8(high0_, magnitude, high1_);
    if constexpr (kSigned) high = _mm512_mask_mov_epi8(high, _mm512_movepi8_mask(magnitude), _mm512_set1_epi8(0x43));  // -128
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);                    // | sign
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
  }

 private:
  __m512i low0_, low1_, high0_, high1_;
};

/// Four keys of kRows rows.
template <int kRows, bool kSigned>
HWY_INLINE void score_rows(const Widener<kSigned>& w, const std::uint16_t* q, int ldq, const std::byte* const* k_at, std::int64_t offset,
                           int dim, float* scores, int lds) {
  __m512 sum[kRows][4];
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = _mm512_setzero_ps();
  for (int d = 0; d < dim; d += 64) {
    __m512i first[4], second[4];
    for (int i = 0; i < 4; ++i) w.widen(load(k_at[i] + offset + d), first[i], second[i]);
    for (int r = 0; r < kRows; ++r) {
      const std::uint16_t* q_row = q + static_cast<std::int64_t>(r) * ldq + d;
      const __m512i q0 = load(q_row);
      const __m512i q1 = load(q_row + 32);
      for (int i = 0; i < 4; ++i) sum[r][i] = dot(sum[r][i], first[i], q0);
      for (int i = 0; i < 4; ++i) sum[r][i] = dot(sum[r][i], second[i], q1);
    }
  }
  store_scores<kRows>(sum, scores, lds);
}

/// One key of four heads of one row each.
template <bool kSigned>
HWY_INLINE void score_heads(const Widener<kSigned>& w, const std::uint16_t* q, int ldq, const std::byte* k, std::int64_t stride, int dim,
                            float* scores, int lds) {
  __m512 sum[4];
  sum[0] = sum[1] = sum[2] = sum[3] = _mm512_setzero_ps();
  for (int d = 0; d < dim; d += 64) {
    for (int h = 0; h < 4; ++h) {
      const std::uint16_t* q_row = q + static_cast<std::int64_t>(h) * ldq + d;
      __m512i first, second;
      w.widen(load(k + h * stride + d), first, second);
      sum[h] = dot(dot(sum[h], first, load(q_row)), second, load(q_row + 32));
    }
  }
  store_scores(sum, scores, lds);
}

template <bool kSigned>
void scores_of(const Halves& halves, const SmallHeads& heads, const std::uint16_t* q, int ldq, const std::byte* const* k_at, Ahead ahead,
               float* scores, int lds) {
  const Widener<kSigned> w(halves);
  const int dim = heads.dim;
  for (int key = 0; key < heads.num_keys; key += 4) {
    ahead.touch_pages(key, key + 4);
    if (heads.score_keys == 1) {
      const int end = key + 4 < heads.num_keys ? key + 4 : heads.num_keys;
      for (int i = key; i < end; ++i) {
        for (int h = 0; h < heads.num_heads; h += 4) {
          ahead.step(4 * dim);
          score_heads(w, q + static_cast<std::int64_t>(h) * ldq, ldq, k_at[i] + h * heads.stride, heads.stride, dim,
                      scores + static_cast<std::int64_t>(h) * lds + i, lds);
        }
      }
      continue;
    }
    for (int h = 0; h < heads.num_heads; ++h) {
      ahead.step(4 * dim);
      const std::int64_t offset = h * heads.stride;
      const std::uint16_t* q_row = q + static_cast<std::int64_t>(h) * heads.rows * ldq;
      float* out = scores + static_cast<std::int64_t>(h) * heads.rows * lds + key;
      int r = 0;
      for (; r + 4 <= heads.rows; r += 4) score_rows<4>(w, q_row + r * ldq, ldq, k_at + key, offset, dim, out + r * lds, lds);
      for (; r < heads.rows; ++r) score_rows<1>(w, q_row + r * ldq, ldq, k_at + key, offset, dim, out + r * lds, lds);
    }
  }
}

/// n keys of 64 columns of kRows rows.
template <int kRows, bool kSigned>
HWY_INLINE void output_columns(const Widener<kSigned>& w, const std::uint16_t* p, int ldp, const std::byte* const* v_at,
                               std::int64_t offset, int n, float* o, int ldv) {
  __m512 sum[kRows][4];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < 4; ++j) sum[r][j] = _mm512_loadu_ps(o + static_cast<std::int64_t>(r) * ldv + 16 * j);
  }
  for (int key = 0; key < n; key += 2) {
    __m512i even[2], odd[2];
    w.widen(load(v_at[key] + offset), even[0], even[1]);
    odd[0] = odd[1] = _mm512_setzero_si512();  // a missing last key: its weight of 0 would make NaN of an infinity
    if (key + 1 < n) w.widen(load(v_at[key + 1] + offset), odd[0], odd[1]);
    const __m512i b[4] = {_mm512_unpacklo_epi16(even[0], odd[0]), _mm512_unpackhi_epi16(even[0], odd[0]),
                          _mm512_unpacklo_epi16(even[1], odd[1]), _mm512_unpackhi_epi16(even[1], odd[1])};
    for (int r = 0; r < kRows; ++r) {
      const __m512i weights = broadcast_pair(p + static_cast<std::int64_t>(r) * ldp + key);
      for (int j = 0; j < 4; ++j) sum[r][j] = dot(sum[r][j], b[j], weights);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < 4; ++j) _mm512_storeu_ps(o + static_cast<std::int64_t>(r) * ldv + 16 * j, sum[r][j]);
  }
}

template <bool kSigned>
void outputs_of(const Halves& halves, const SmallHeads& heads, const std::uint16_t* p, int ldp, const std::byte* const* v_at, Ahead ahead,
                float* o, int ldv) {
  const Widener<kSigned> w(halves);
  const int step = heads.output_keys;
  for (int key = 0; key < heads.num_keys; key += step) {
    const int n = heads.num_keys - key < step ? heads.num_keys - key : step;
    ahead.touch_pages(key, key + n);
    for (int h = 0; h < heads.num_heads; ++h) {
      ahead.step(step * heads.dim);
      const std::uint16_t* weights = p + static_cast<std::int64_t>(h) * heads.rows * ldp + key;
      float* out = o + static_cast<std::int64_t>(h) * heads.rows * ldv;
      int r = 0;
      for (; r + 4 <= heads.rows; r += 4) {
        for (int d = 0; d < heads.dim; d += 64)
          output_columns<4>(w, weights + r * ldp, ldp, v_at + key, h * heads.stride + d, n, out + r * ldv + d, ldv);
      }
      for (; r < heads.rows; ++r) {
        for (int d = 0; d < heads.dim; d += 64)
          output_columns<1>(w, weights + r * ldp, ldp, v_at + key, h * heads.stride + d, n, out + r * ldv + d, ldv);
      }
    }
  }
}

}  // namespace

void small_scores(const SmallHeads& heads, DType dtype, const std::uint16_t* q, int ldq, const std::byte* const* k_at, Ahead ahead,
                  float* scores, int lds) {
  if (dtype == DType::i8) return scores_of<true>(kI8, heads, q, ldq, k_at, ahead, scores, lds);
  scores_of<false>(dtype == DType::e4m3 ? kE4m3 : kE5m2, heads, q, ldq, k_at, ahead, scores, lds);
}

void small_outputs(const SmallHeads& heads, DType dtype, const std::uint16_t* p, int ldp, const std::byte* const* v_at, Ahead ahead,
                   float* o, int ldv) {
  if (dtype == DType::i8) return outputs_of<true>(kI8, heads, p, ldp, v_at, ahead, o, ldv);
  outputs_of<false>(dtype == DType::e4m3 ? kE4m3 : kE5m2, heads, p, ldp, v_at, ahead, o, ldv);
}

void permute_query(std::uint16_t* q, int dim) {
  for (int d = 0; d < dim; d += 64) {
    std::uint16_t from[64];
    std::memcpy(from, q + d, sizeof(from));
    for (int b = 0; b < 4; ++b) {
      std::memcpy(q + d + 8 * b, from + 16 * b, 16);
      std::memcpy(q + d + 32 + 8 * b, from + 16 * b + 8, 16);
    }
  }
}

void restore_output(float* o, int dim) {
  for (int d = 0; d < dim; d += 64) {
    float from[64];
    std::memcpy(from, o + d, sizeof(from));
    for (int b = 0; b < 4; ++b) {
      for (int j = 0; j < 4; ++j) std::memcpy(o + d + 16 * b + 4 * j, from + 16 * j + 4 * b, 16);
    }
  }
}

}  // namespace girih::attention::bf16

HWY_POP_ATTRIBUTES

#else

namespace girih::attention::bf16 {

[[noreturn]] static void no_bytes() { bug("the AVX512-VBMI kernels were called on another architecture"); }
void small_scores(const SmallHeads&, DType, const std::uint16_t*, int, const std::byte* const*, Ahead, float*, int) { no_bytes(); }
void small_outputs(const SmallHeads&, DType, const std::uint16_t*, int, const std::byte* const*, Ahead, float*, int) { no_bytes(); }
void permute_query(std::uint16_t*, int) { no_bytes(); }
void restore_output(float*, int) { no_bytes(); }

}  // namespace girih::attention::bf16

#endif
