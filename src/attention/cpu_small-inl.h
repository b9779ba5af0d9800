// The small tile class (decode): a few query rows, K and V streamed past them once. Scores are dot products straight from the cache
// (four keys by up to four rows of accumulators, summed across lanes together), the output is accumulated in registers over a block of
// keys.
#if defined(GIRIH_ATTENTION_CPU_SMALL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_ATTENTION_CPU_SMALL_INL_H_
#undef GIRIH_ATTENTION_CPU_SMALL_INL_H_
#else
#define GIRIH_ATTENTION_CPU_SMALL_INL_H_
#endif

#include "attention/cpu_state-inl.h"
#include "base/math.h"

HWY_BEFORE_NAMESPACE();
namespace girih::attention {
namespace HWY_NAMESPACE {

inline constexpr int kSmallRowBlock = kLanes == 16 ? 4 : 2;  // 16 of 32 registers hold sums with AVX-512, 8 of 16 with AVX2
inline constexpr int kSmallColumnBlock = kLanes == 16 ? 4 : 2;

/// scores[r][0..n) = q[r] . k[key], for kRows rows. `k_at` has a multiple of 4 entries. dim: a multiple of kLanes.
/// Row i of `next` [num_next] is prefetched as key i is read.
template <class Load, int kRows>
HWY_INLINE void dot_rows(const float* q, int ldq, const KeyBlock& keys, const KeyBlock& next, int dim, float* scores, int lds) {
  const std::byte* const* k_at = keys.k_at;
  for (int key = 0; key < keys.n; key += 4) {
    for (int i = key; i < key + 4 && i < next.n; ++i) prefetch_row(next.k_at[i], dim * Load::kBytes);
    const std::byte* k0 = k_at[key];
    const std::byte* k1 = k_at[key + 1];
    const std::byte* k2 = k_at[key + 2];
    const std::byte* k3 = k_at[key + 3];
    VF sum[kRows][4];
    for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = hn::Zero(df);
    for (int d = 0; d < dim; d += kLanes) {
      const VF a0 = Load::load(k0 + d * Load::kBytes);
      const VF a1 = Load::load(k1 + d * Load::kBytes);
      const VF a2 = Load::load(k2 + d * Load::kBytes);
      const VF a3 = Load::load(k3 + d * Load::kBytes);
      for (int r = 0; r < kRows; ++r) {
        const VF b = hn::LoadU(df, q + r * ldq + d);
        sum[r][0] = hn::MulAdd(a0, b, sum[r][0]);
        sum[r][1] = hn::MulAdd(a1, b, sum[r][1]);
        sum[r][2] = hn::MulAdd(a2, b, sum[r][2]);
        sum[r][3] = hn::MulAdd(a3, b, sum[r][3]);
      }
    }
    for (int r = 0; r < kRows; ++r) store_four_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3], scores + r * lds + key);
  }
}

/// o[r] = o[r] * corr[r] + sum over keys of p[r][key] * v[key], columns [begin, begin + kColumns vectors), kRows rows.
template <class Load, int kRows, int kColumns>
HWY_INLINE void weigh_columns(const float* p, int ldp, const KeyBlock& keys, const KeyBlock& next, int begin, const float* corr, float* o,
                              int ldv) {
  VF sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    const VF c = hn::Set(df, corr[r]);
    for (int j = 0; j < kColumns; ++j) sum[r][j] = hn::Mul(hn::LoadU(df, o + r * ldv + begin + j * kLanes), c);
  }
  for (int key = 0; key < keys.n; ++key) {
    if (key < next.n) prefetch_row(next.v_at[key] + begin * Load::kBytes, kColumns * kLanes * Load::kBytes);
    const std::byte* v = keys.v_at[key] + begin * Load::kBytes;
    VF a[kColumns];
    for (int j = 0; j < kColumns; ++j) a[j] = Load::load(v + j * kLanes * Load::kBytes);
    for (int r = 0; r < kRows; ++r) {
      const VF w = hn::Set(df, p[r * ldp + key]);
      for (int j = 0; j < kColumns; ++j) sum[r][j] = hn::MulAdd(a[j], w, sum[r][j]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) hn::StoreU(sum[r][j], df, o + r * ldv + begin + j * kLanes);
  }
}

template <class Load, int kRows>
HWY_INLINE void weigh_rows(const float* p, int ldp, const KeyBlock& keys, const KeyBlock& next, int dim, const float* corr, float* o,
                           int ldv) {
  int d = 0;
  for (; d + kSmallColumnBlock * kLanes <= dim; d += kSmallColumnBlock * kLanes) {
    weigh_columns<Load, kRows, kSmallColumnBlock>(p, ldp, keys, next, d, corr, o, ldv);
  }
  for (; d < dim; d += kLanes) weigh_columns<Load, kRows, 1>(p, ldp, keys, next, d, corr, o, ldv);
}

/// Calls f<kRows>(first row) over all rows of the tile in blocks.
template <class F>
HWY_INLINE void for_row_blocks(int num_rows, const F& f) {
  int r = 0;
  for (; r + kSmallRowBlock <= num_rows; r += kSmallRowBlock) f.template operator()<kSmallRowBlock>(r);
  if constexpr (kSmallRowBlock == 4) {
    if (num_rows - r >= 2) {
      f.template operator()<2>(r);
      r += 2;
    }
  }
  if (r < num_rows) f.template operator()<1>(r);
}

/// The block to prefetch while rows from `r` on are served: the next one, for the first rows only and if it is read where it lies.
HWY_INLINE const KeyBlock& ahead(const Tile& t, const Source& source, int r, const KeyBlock& none) {
  return r == 0 && source.direct ? t.next : none;
}

template <class Load>
void small_scores(Tile& t, int dim) {
  const int lds = t.shape.kv_block;
  const KeyBlock none;
  for_row_blocks(t.num_rows, [&]<int kRows>(int r) HWY_ATTR {
    dot_rows<Load, kRows>(t.q + r * t.shape.ldk, t.shape.ldk, t.keys, ahead(t, t.k_source, r, none), dim, t.scores + r * lds, lds);
  });
}

template <class Load>
void small_outputs(Tile& t, int dim, float* o) {
  const int ldp = t.shape.kv_block;
  const KeyBlock none;
  for_row_blocks(t.num_rows, [&]<int kRows>(int r) HWY_ATTR {
    weigh_rows<Load, kRows>(t.scores + r * ldp, ldp, t.keys, ahead(t, t.v_source, r, none), dim, t.corr + r, o + r * t.shape.ldv,
                            t.shape.ldv);
  });
}

/// Softmax step of one row over n keys in place: scores become weights. Lanes past n are written 0.
HWY_INLINE void small_softmax_row(float* s, int n, float units, const std::uint8_t* visible, float& m, float& l, float& corr) {
  const VF neg_inf = hn::Set(df, kNegInf);
  const VF mult = hn::Set(df, units);
  VF top = neg_inf;
  for (int i = 0; i < n; i += kLanes) {
    VF x = hn::Mul(hn::LoadU(df, s + i), mult);
    if (visible != nullptr) x = hn::IfThenElse(load_byte_mask(visible + i), x, neg_inf);
    if (i + kLanes > n) x = hn::IfThenElse(hn::FirstN(df, static_cast<std::size_t>(n - i)), x, neg_inf);
    hn::StoreU(x, df, s + i);
    top = hn::Max(top, x);
  }
  const float row_top = max_lanes(top);
  const float new_m = row_top > m ? row_top : m;
  const float base = new_m == kNegInf ? 0.0F : new_m;
  VF sum = hn::Zero(df);
  for (int i = 0; i < n; i += kLanes) {
    const VF p = exp2(hn::Sub(hn::LoadU(df, s + i), hn::Set(df, base)));
    sum = hn::Add(sum, p);
    hn::StoreU(p, df, s + i);
  }
  corr = exp2_scalar(m - base);  // m = -inf: 0
  l = l * corr + sum_lanes(sum);
  m = new_m;
}

/// Weights without softmax: the logits themselves, 0 where hidden.
HWY_INLINE void small_plain_row(float* s, int n, const std::uint8_t* visible) {
  for (int i = 0; i < n; i += kLanes) {
    VF x = hn::LoadU(df, s + i);
    if (visible != nullptr) x = hn::IfThenElseZero(load_byte_mask(visible + i), x);
    if (i + kLanes > n) x = hn::IfThenElseZero(hn::FirstN(df, static_cast<std::size_t>(n - i)), x);
    hn::StoreU(x, df, s + i);
  }
}

/// Scores of the current block, f32 products.
void small_products_k(Tile& t) {
  if (!t.k_source.direct) stage_k(t);
  for (int i = t.keys.n; i % 4 != 0; ++i) t.keys.k_at[i] = t.keys.k_at[t.keys.n - 1];
  switch (t.k_source.direct ? t.k_source.plane->dtype : DType::f32) {
    case DType::f32: small_scores<LoadF32>(t, t.k_source.direct ? t.shape.dqk : t.shape.ldk); break;
    case DType::f16: small_scores<LoadF16>(t, t.shape.dqk); break;
    case DType::bf16: small_scores<LoadBf16>(t, t.shape.dqk); break;
    case DType::e4m3: small_scores<LoadE4m3>(t, t.shape.dqk); break;
    case DType::e5m2: small_scores<LoadE5m2>(t, t.shape.dqk); break;
    default: small_scores<LoadI8>(t, t.shape.dqk); break;
  }
}

/// Outputs of the current block from its weights, f32 products.
void small_products_v(Tile& t, float* o) {
  if (t.v_in_k) {
    for (int i = 0; i < t.keys.n; ++i) t.keys.v_at[i] = t.keys.k_at[i];
  } else if (!t.v_source.direct) {
    stage_v(t);
  }
  switch (t.v_source.direct ? t.v_source.plane->dtype : DType::f32) {
    case DType::f32: small_outputs<LoadF32>(t, t.v_source.direct ? t.shape.dvo : t.shape.ldv, o); break;
    case DType::f16: small_outputs<LoadF16>(t, t.shape.dvo, o); break;
    case DType::bf16: small_outputs<LoadBf16>(t, t.shape.dvo, o); break;
    case DType::e4m3: small_outputs<LoadE4m3>(t, t.shape.dvo, o); break;
    case DType::e5m2: small_outputs<LoadE5m2>(t, t.shape.dvo, o); break;
    default: small_outputs<LoadI8>(t, t.shape.dvo, o); break;
  }
}

/// The current block of keys into the state (m, l, o).
void small_block(Tile& t, bool masked, float* m, float* l, float* o) {
  const ScheduleState& s = *t.schedule;
  const variant::Program& program = s.program;
  const int lds = t.shape.kv_block;
  const KeyBlock& keys = t.keys;
  const int n = keys.n;
  if (t.bf16) {
    for (int i = n; i % 4 != 0; ++i) keys.k_at[i] = keys.k_at[n - 1];
    bf16::small_scores(reinterpret_cast<const std::uint16_t*>(t.q), t.shape.ldk, t.num_rows, keys.k_at, n, t.next.k_at, t.next.n,
                       t.shape.dqk, t.scores, lds);
  } else {
    small_products_k(t);
  }
  const bool hooked = !program.logits.empty();
  const bool scale_keys = !t.k_source.scale_rows && s.spec.k_scale == ScaleGranularity::token_head;
  const bool scale_values = !t.v_source.scale_rows && s.spec.v_scale == ScaleGranularity::token_head;
  const float units = hooked ? kLog2e : t.score_factor;
  for (int r = 0; r < t.num_rows; ++r) {
    float* row = t.scores + r * lds;
    if (scale_keys) {
      for (int i = 0; i < n; ++i) row[i] *= keys.k_scale[i];
    }
    if (hooked) {
      if (t.score_factor != 1.0F) scale_row(t.score_factor, n, row);
      hv::evaluate_logits(program, t.run->params, t.rows[r], keys.pos, n, row, t.eval);
    }
    if (masked) hv::evaluate_mask(program, t.run->params, t.rows[r], keys.pos, n, t.visible, t.eval);
    const std::uint8_t* visible = masked ? t.visible : nullptr;
    if (program.softmax) {
      small_softmax_row(row, n, units, visible, m[r], l[r], t.corr[r]);
    } else {
      small_plain_row(row, n, visible);
      t.corr[r] = 1;
    }
    if (scale_values) {
      for (int i = 0; i < n; ++i) row[i] *= keys.v_scale[i];
    }
  }
  if (t.bf16) {
    auto* weights = reinterpret_cast<std::uint16_t*>(t.probs);
    for (int r = 0; r < t.num_rows; ++r) bf16::narrow(t.scores + r * lds, static_cast<int>(round_up(n, 16)), weights + r * lds);
    if (n % 2 != 0) keys.v_at[n] = keys.v_at[n - 1];
    bf16::small_outputs(weights, lds, t.num_rows, keys.v_at, n, t.next.v_at, t.next.n, t.shape.dvo, t.corr, o, t.shape.ldv);
  } else {
    small_products_v(t, o);
  }
}

void small_load_queries(Tile& t) {
  if (t.bf16) {
    for (int i = 0; i < t.num_rows; ++i)
      copy_query_row(t, i, reinterpret_cast<std::uint16_t*>(t.q) + static_cast<std::int64_t>(i) * t.shape.ldk);
    return;
  }
  for (int i = 0; i < t.num_rows; ++i) load_query_row(t, i, t.q + static_cast<std::int64_t>(i) * t.shape.ldk);
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::attention
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ATTENTION_CPU_SMALL_INL_H_
