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

/// scores[r][0..n) = q[r] . K[key], for kRows rows; K[key] = k_at[key] + offset, k_at has a multiple of 4 entries. dim: a multiple of
/// kLanes. `ahead` steps by a row a key.
template <class Load, int kRows>
HWY_INLINE void dot_rows(const float* q, int ldq, const KeyBlock& keys, std::int64_t offset, Ahead& ahead, int dim, float* scores,
                         int lds) {
  for (int key = 0; key < keys.n; key += 4) {
    for (int i = key; i < key + 4 && i < keys.n; ++i) ahead.step(dim * Load::kBytes);
    const std::byte* k0 = keys.k_at[key] + offset;
    const std::byte* k1 = keys.k_at[key + 1] + offset;
    const std::byte* k2 = keys.k_at[key + 2] + offset;
    const std::byte* k3 = keys.k_at[key + 3] + offset;
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
HWY_INLINE void weigh_columns(const float* p, int ldp, const KeyBlock& keys, std::int64_t offset, Ahead& ahead, int begin,
                              const float* corr, float* o, int ldv) {
  VF sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    const VF c = hn::Set(df, corr[r]);
    for (int j = 0; j < kColumns; ++j) sum[r][j] = hn::Mul(hn::LoadU(df, o + r * ldv + begin + j * kLanes), c);
  }
  for (int key = 0; key < keys.n; ++key) {
    ahead.step(kColumns * kLanes * Load::kBytes);
    const std::byte* v = keys.v_at[key] + offset + begin * Load::kBytes;
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
HWY_INLINE void weigh_rows(const float* p, int ldp, const KeyBlock& keys, std::int64_t offset, Ahead& ahead, int dim, const float* corr,
                           float* o, int ldv) {
  int d = 0;
  for (; d + kSmallColumnBlock * kLanes <= dim; d += kSmallColumnBlock * kLanes) {
    weigh_columns<Load, kRows, kSmallColumnBlock>(p, ldp, keys, offset, ahead, d, corr, o, ldv);
  }
  for (; d < dim; d += kLanes) weigh_columns<Load, kRows, 1>(p, ldp, keys, offset, ahead, d, corr, o, ldv);
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

/// One head's rows of a tile: where its queries, scores, state and outputs begin, and where its keys lie relative to the first head's.
struct HeadRows {
  int first = 0;  // row
  std::int64_t k_offset = 0, v_offset = 0;
};

template <class Load>
void small_scores(Tile& t, const HeadRows& head, Ahead& ahead, int dim) {
  const int lds = t.shape.kv_block;
  Ahead none;
  for_row_blocks(t.num_rows, [&]<int kRows>(int r) HWY_ATTR {
    const std::int64_t row = head.first + r;
    dot_rows<Load, kRows>(t.q + row * t.shape.ldk, t.shape.ldk, t.keys, head.k_offset, r == 0 ? ahead : none, dim, t.scores + row * lds,
                          lds);
  });
}

template <class Load>
void small_outputs(Tile& t, const HeadRows& head, Ahead& ahead, int dim, float* o) {
  const int ldp = t.shape.kv_block;
  const int ldv = t.shape.ldv;
  Ahead none;
  for_row_blocks(t.num_rows, [&]<int kRows>(int r) HWY_ATTR {
    const std::int64_t row = head.first + r;
    weigh_rows<Load, kRows>(t.scores + row * ldp, ldp, t.keys, head.v_offset, r == 0 ? ahead : none, dim, t.corr + row, o + row * ldv, ldv);
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

/// Scores of the current block for one head, f32 products.
void small_products_k(Tile& t, const HeadRows& head, Ahead& ahead) {
  switch (t.k_source.direct ? t.k_source.plane->dtype : DType::f32) {
    case DType::f32: small_scores<LoadF32>(t, head, ahead, t.k_source.direct ? t.shape.dqk : t.shape.ldk); break;
    case DType::f16: small_scores<LoadF16>(t, head, ahead, t.shape.dqk); break;
    case DType::bf16: small_scores<LoadBf16>(t, head, ahead, t.shape.dqk); break;
    case DType::e4m3: small_scores<LoadE4m3>(t, head, ahead, t.shape.dqk); break;
    case DType::e5m2: small_scores<LoadE5m2>(t, head, ahead, t.shape.dqk); break;
    default: small_scores<LoadI8>(t, head, ahead, t.shape.dqk); break;
  }
}

/// Outputs of the current block for one head from its weights, f32 products.
void small_products_v(Tile& t, const HeadRows& head, Ahead& ahead, float* o) {
  switch (t.v_source.direct ? t.v_source.plane->dtype : DType::f32) {
    case DType::f32: small_outputs<LoadF32>(t, head, ahead, t.v_source.direct ? t.shape.dvo : t.shape.ldv, o); break;
    case DType::f16: small_outputs<LoadF16>(t, head, ahead, t.shape.dvo, o); break;
    case DType::bf16: small_outputs<LoadBf16>(t, head, ahead, t.shape.dvo, o); break;
    case DType::e4m3: small_outputs<LoadE4m3>(t, head, ahead, t.shape.dvo, o); break;
    case DType::e5m2: small_outputs<LoadE5m2>(t, head, ahead, t.shape.dvo, o); break;
    default: small_outputs<LoadI8>(t, head, ahead, t.shape.dvo, o); break;
  }
}

/// Scores of row r over the current block become weights; `first` is the first row of its head. Rows of one token share the mask unless it
/// reads the head.
HWY_INLINE void small_weights(Tile& t, int first, int r, bool masked, float score_factor, float* m, float* l) {
  const ScheduleState& s = *t.schedule;
  const variant::Program& program = s.program;
  const KeyBlock& keys = t.keys;
  const int n = keys.n;
  float* row = t.scores + static_cast<std::int64_t>(r) * t.shape.kv_block;
  if (!t.k_source.scale_rows && s.spec.k_scale == ScaleGranularity::token_head) {
    for (int i = 0; i < n; ++i) row[i] *= keys.k_scale[i];
  }
  const bool hooked = !program.logits.empty();
  if (hooked) {
    if (score_factor != 1.0F) scale_row(score_factor, n, row);
    hv::evaluate_logits(program, t.run->params, t.rows[r], keys.pos, n, row, t.eval);
  }
  if (masked && (r == first || t.rows[r].q_row != t.rows[r - 1].q_row || program.mask.uses(variant::Var::q_head))) {
    hv::evaluate_mask(program, t.run->params, t.rows[r], keys.pos, n, t.visible, t.eval);
  }
  const std::uint8_t* visible = masked ? t.visible : nullptr;
  if (program.softmax) {
    small_softmax_row(row, n, hooked ? kLog2e : score_factor, visible, m[r], l[r], t.corr[r]);
  } else {
    small_plain_row(row, n, visible);
    t.corr[r] = 1;
  }
  if (!t.v_source.scale_rows && s.spec.v_scale == ScaleGranularity::token_head) {
    for (int i = 0; i < n; ++i) row[i] *= keys.v_scale[i];
  }
}

/// What to prefetch while head h of `t` is served: a share of whole rows where the heads' rows adjoin, else the head's own rows.
HWY_INLINE void aim(const Tile& t, const Source& source, const std::byte* const* next_at, std::int64_t head_stride, int h, Ahead& ahead) {
  const int row_bytes = source.dim * bits(source.plane->dtype) / 8;
  if (!source.direct || (t.heads_adjoin && h > 0)) return;
  const int begin = t.heads_adjoin ? 0 : static_cast<int>(h * head_stride);
  ahead = {.rows = next_at,
           .num_rows = t.next.n,
           .begin = begin,
           .end = begin + (t.heads_adjoin ? t.num_heads : 1) * row_bytes,
           .row = 0,
           .at = begin};
}

/// The current block of keys into the states (m, l, o) of all heads of the tile.
void small_block(Tile& t, bool masked, float* m, float* l, float* o) {
  const int lds = t.shape.kv_block;
  const KeyBlock& keys = t.keys;
  const int n = keys.n;
  if (!t.k_source.direct) stage_k(t);
  for (int i = n; i % 4 != 0; ++i) keys.k_at[i] = keys.k_at[n - 1];
  Ahead ahead;
  for (int h = 0; h < t.num_heads; ++h) {
    const std::int64_t stride = t.k_source.plane->head_byte_stride;
    const HeadRows head{.first = h * t.num_rows, .k_offset = h * stride};
    aim(t, t.k_source, t.next.k_at, stride, h, ahead);
    if (t.bf16) {
      bf16::small_scores(reinterpret_cast<const std::uint16_t*>(t.q) + static_cast<std::int64_t>(head.first) * t.shape.ldk, t.shape.ldk,
                         t.num_rows, keys.k_at, head.k_offset, n, ahead, t.shape.dqk,
                         t.scores + static_cast<std::int64_t>(head.first) * lds, lds);
    } else {
      small_products_k(t, head, ahead);
    }
    for (int r = head.first; r < head.first + t.num_rows; ++r) small_weights(t, head.first, r, masked, t.head_score_factor[h], m, l);
  }
  if (t.v_in_k && !t.bf16) {
    for (int i = 0; i < n; ++i) keys.v_at[i] = keys.k_at[i];
  } else if (!t.v_source.direct) {
    stage_v(t);
  }
  ahead = {};
  for (int h = 0; h < t.num_heads; ++h) {
    const std::int64_t stride = t.v_source.plane->head_byte_stride;
    const HeadRows head{.first = h * t.num_rows, .v_offset = h * stride};
    aim(t, t.v_source, t.next.v_at, stride, h, ahead);
    if (t.bf16) {
      auto* weights = reinterpret_cast<std::uint16_t*>(t.probs);
      for (int r = 0; r < t.num_rows; ++r) {
        bf16::narrow(t.scores + (static_cast<std::int64_t>(head.first) + r) * lds, static_cast<int>(round_up(n, 16)), weights + r * lds);
      }
      bf16::small_outputs(weights, lds, t.num_rows, keys.v_at, head.v_offset, n, ahead, t.shape.dvo, t.corr + head.first,
                          o + static_cast<std::int64_t>(head.first) * t.shape.ldv, t.shape.ldv);
    } else {
      small_products_v(t, head, ahead, o);
    }
  }
}

/// Queries of the rows [first, first + num_rows).
void small_load_queries(Tile& t, int first) {
  for (int i = first; i < first + t.num_rows; ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * t.shape.ldk;
    if (t.bf16) {
      copy_query_row(t, i, reinterpret_cast<std::uint16_t*>(t.q) + at);
    } else {
      load_query_row(t, i, t.q + at);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::attention
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ATTENTION_CPU_SMALL_INL_H_
