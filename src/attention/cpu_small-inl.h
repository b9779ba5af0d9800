// The small tile class (decode): a few query rows, K and V streamed past them once. Scores are dot products straight from the cache
// (four sums across lanes together: keys, rows or heads), the output is accumulated in registers over a few keys and rests in L1 between.
// Neighbouring heads are served together, so that the order of work is that of addresses.
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

/// scores[r][0..4) = q[r] . K[key], for kRows rows and four keys; K[key] = k_at[key] + offset. dim: a multiple of kLanes.
template <class Load, int kRows>
HWY_INLINE void dot_rows(const float* q, int ldq, const std::byte* const* k_at, std::int64_t offset, int dim, float* scores, int lds) {
  const std::byte* k0 = k_at[0] + offset;
  const std::byte* k1 = k_at[1] + offset;
  const std::byte* k2 = k_at[2] + offset;
  const std::byte* k3 = k_at[3] + offset;
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
  for (int r = 0; r < kRows; ++r) store_four_sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3], scores + r * lds);
}

/// Scores of one key with four rows; kOneHead: of one head, else of four, whose keys lie `stride` apart.
template <class Load, bool kOneHead>
HWY_INLINE void dot_key(const float* q, int ldq, const std::byte* k, std::int64_t stride, int dim, float* scores, int lds) {
  VF sum[4];
  sum[0] = sum[1] = sum[2] = sum[3] = hn::Zero(df);
  for (int d = 0; d < dim; d += kLanes) {
    VF a = Load::load(k + d * Load::kBytes);
    for (int r = 0; r < 4; ++r) {
      if (!kOneHead && r > 0) a = Load::load(k + r * stride + d * Load::kBytes);
      sum[r] = hn::MulAdd(a, hn::LoadU(df, q + r * ldq + d), sum[r]);
    }
  }
  float sums[4];
  store_four_sums(sum[0], sum[1], sum[2], sum[3], sums);
  for (int r = 0; r < 4; ++r) scores[r * lds] = sums[r];
}

/// o[r] += sum over n keys of p[r][key] * v[key], kColumns vectors of columns, kRows rows; v[key] = v_at[key] + offset.
template <class Load, int kRows, int kColumns>
HWY_INLINE void weigh_columns(const float* p, int ldp, const std::byte* const* v_at, std::int64_t offset, int n, float* o, int ldv) {
  VF sum[kRows][kColumns];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) sum[r][j] = hn::LoadU(df, o + r * ldv + j * kLanes);
  }
  for (int key = 0; key < n; ++key) {
    const std::byte* v = v_at[key] + offset;
    VF a[kColumns];
    for (int j = 0; j < kColumns; ++j) a[j] = Load::load(v + j * kLanes * Load::kBytes);
    for (int r = 0; r < kRows; ++r) {
      const VF w = hn::Set(df, p[r * ldp + key]);
      for (int j = 0; j < kColumns; ++j) sum[r][j] = hn::MulAdd(a[j], w, sum[r][j]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) hn::StoreU(sum[r][j], df, o + r * ldv + j * kLanes);
  }
}

template <class Load, int kRows>
HWY_INLINE void weigh_rows(const float* p, int ldp, const std::byte* const* v_at, std::int64_t offset, int n, int dim, float* o, int ldv) {
  int d = 0;
  for (; d + kSmallColumnBlock * kLanes <= dim; d += kSmallColumnBlock * kLanes) {
    weigh_columns<Load, kRows, kSmallColumnBlock>(p, ldp, v_at, offset + d * Load::kBytes, n, o + d, ldv);
  }
  for (; d < dim; d += kLanes) weigh_columns<Load, kRows, 1>(p, ldp, v_at, offset + d * Load::kBytes, n, o + d, ldv);
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

// Both products walk the keys in address order, a few keys of all heads at a time (prefetch.h).

template <class Load>
void small_scores(Tile& t, const bf16::SmallHeads& heads, int dim, Ahead ahead) {
  const int lds = t.shape.kv_block;
  const int ldq = t.shape.ldk;
  const std::int64_t head_stride = heads.stride;
  for (int key = 0; key < t.keys.n; key += 4) {
    ahead.touch_pages(key, key + 4);
    if (heads.score_keys == 1) {
      for (int i = key; i < min_int(key + 4, t.keys.n); ++i) {
        for (int row = 0; row < t.num_heads * t.num_rows; row += 4) {
          const std::byte* k = t.keys.k_at[i] + row / t.num_rows * head_stride;
          const float* q = t.q + static_cast<std::int64_t>(row) * ldq;
          float* out = t.scores + static_cast<std::int64_t>(row) * lds + i;
          if (t.num_rows == 1) {
            ahead.step(4 * dim * Load::kBytes);
            dot_key<Load, false>(q, ldq, k, head_stride, dim, out, lds);
          } else {
            if (row % t.num_rows == 0) ahead.step(dim * Load::kBytes);
            dot_key<Load, true>(q, ldq, k, 0, dim, out, lds);
          }
        }
      }
      continue;
    }
    for (int h = 0; h < t.num_heads; ++h) {
      ahead.step(4 * dim * Load::kBytes);
      for_row_blocks(t.num_rows, [&]<int kRows>(int r) HWY_ATTR {
        const std::int64_t row = static_cast<std::int64_t>(h) * t.num_rows + r;
        dot_rows<Load, kRows>(t.q + row * ldq, ldq, t.keys.k_at + key, h * head_stride, dim, t.scores + row * lds + key, lds);
      });
    }
  }
}

template <class Load>
void small_outputs(Tile& t, const bf16::SmallHeads& heads, int dim, Ahead ahead, float* o) {
  const int ldp = t.shape.kv_block;
  const int ldv = t.shape.ldv;
  const int step = heads.output_keys;
  for (int key = 0; key < t.keys.n; key += step) {
    const int n = min_int(step, t.keys.n - key);
    ahead.touch_pages(key, key + n);
    for (int h = 0; h < t.num_heads; ++h) {
      ahead.step(step * dim * Load::kBytes);
      for_row_blocks(t.num_rows, [&]<int kRows>(int r) HWY_ATTR {
        const std::int64_t row = static_cast<std::int64_t>(h) * t.num_rows + r;
        weigh_rows<Load, kRows>(t.scores + row * ldp + key, ldp, t.keys.v_at + key, h * heads.stride, n, dim, o + row * ldv, ldv);
      });
    }
  }
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
void small_products_k(Tile& t, const bf16::SmallHeads& heads, const Ahead& ahead) {
  switch (t.k_source.direct ? t.k_source.plane->dtype : DType::f32) {
    case DType::f32: small_scores<LoadF32>(t, heads, t.k_source.direct ? t.shape.dqk : t.shape.ldk, ahead); break;
    case DType::f16: small_scores<LoadF16>(t, heads, t.shape.dqk, ahead); break;
    case DType::bf16: small_scores<LoadBf16>(t, heads, t.shape.dqk, ahead); break;
    case DType::e4m3: small_scores<LoadE4m3>(t, heads, t.shape.dqk, ahead); break;
    case DType::e5m2: small_scores<LoadE5m2>(t, heads, t.shape.dqk, ahead); break;
    default: small_scores<LoadI8>(t, heads, t.shape.dqk, ahead); break;
  }
}

/// Outputs of the current block from its weights, f32 products.
void small_products_v(Tile& t, const bf16::SmallHeads& heads, const Ahead& ahead, float* o) {
  switch (t.v_source.direct ? t.v_source.plane->dtype : DType::f32) {
    case DType::f32: small_outputs<LoadF32>(t, heads, t.v_source.direct ? t.shape.dvo : t.shape.ldv, ahead, o); break;
    case DType::f16: small_outputs<LoadF16>(t, heads, t.shape.dvo, ahead, o); break;
    case DType::bf16: small_outputs<LoadBf16>(t, heads, t.shape.dvo, ahead, o); break;
    case DType::e4m3: small_outputs<LoadE4m3>(t, heads, t.shape.dvo, ahead, o); break;
    case DType::e5m2: small_outputs<LoadE5m2>(t, heads, t.shape.dvo, ahead, o); break;
    default: small_outputs<LoadI8>(t, heads, t.shape.dvo, ahead, o); break;
  }
}

/// Scores of row r over the current block become weights.
HWY_INLINE void small_weights(Tile& t, int r, bool masked, float score_factor, float* m, float* l) {
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
  if (masked) hv::evaluate_mask(program, t.run->params, t.rows[r], keys.pos, n, t.visible, t.eval);
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

/// What all heads of the tile hold of one token, in bytes.
HWY_INLINE int run_bytes(const Tile& t, const Source& source) { return t.num_heads * source.dim * bits(source.plane->dtype) / 8; }

// How many keys are worked on at once. Few: the nearer the work keeps to the order of addresses, the more the hardware prefetchers help
// (part of a sequential read's bandwidth, four keys against one or two: f32, 8 heads of 4 rows, 77 to 85 %; bf16 75 to 82 %). More make
// up for the way of the sums to and from the cache, which counts where there is much to compute on each byte.
HWY_INLINE int step_bytes(const Tile& t) {
  if (bits(t.v_source.plane->dtype) == 8) return t.bytes ? 8 << 10 : 16 << 10;
  return t.num_rows > 4 ? 8 << 10 : 4 << 10;
}

HWY_INLINE int score_keys(const Tile& t, int bytes_per_key) {
  const bool fours = t.num_rows == 1 ? t.num_heads % 4 == 0 : !t.bytes && t.num_rows % 4 == 0;
  return fours && t.num_heads > 1 && 4 * bytes_per_key > step_bytes(t) ? 1 : 4;
}

HWY_INLINE int output_keys(const Tile& t, int bytes_per_key) {
  if (t.num_heads == 1) return 16;
  int keys = t.bf16 ? 2 : 1;
  while (2 * keys * bytes_per_key <= step_bytes(t) && keys < 16) keys *= 2;
  return keys;
}

/// Scores of the current block become weights, and the outputs so far are brought to the new maximum.
void small_softmax(Tile& t, bool masked, float* m, float* l, float* o) {
  for (int h = 0; h < t.num_heads; ++h) {
    for (int r = h * t.num_rows; r < (h + 1) * t.num_rows; ++r) {
      small_weights(t, r, masked, t.head_score_factor[h], m, l);
      if (t.corr[r] != 1.0F) scale_output_row(t.corr[r], t.shape.ldv, o + static_cast<std::int64_t>(r) * t.shape.ldv);
    }
  }
}

/// The current block of keys into the states (m, l, o) of all heads of the tile.
void small_block(Tile& t, bool masked, float* m, float* l, float* o) {
  const int lds = t.shape.kv_block;
  const KeyBlock& keys = t.keys;
  const int n = keys.n;
  const int rows = t.num_heads * t.num_rows;
  const bool k_direct = t.k_source.direct;
  const bool v_direct = t.v_source.direct;
  if (!k_direct) stage_k(t);
  for (int i = n; i % 4 != 0; ++i) keys.k_at[i] = keys.k_at[n - 1];
  const int k_bytes = run_bytes(t, t.k_source);
  const int v_bytes = run_bytes(t, t.v_source);
  Ahead ahead{.runs = keys.k_at,
              .num_runs = k_direct ? n : 0,
              .then = keys.v_at,
              .num_then = v_direct ? n : 0,
              .run_bytes = k_bytes,
              .then_bytes = v_bytes};
  bf16::SmallHeads heads{.num_heads = t.num_heads,
                         .rows = t.num_rows,
                         .num_keys = n,
                         .score_keys = score_keys(t, k_bytes),
                         .output_keys = output_keys(t, v_bytes)};
  ahead.start(heads.score_keys);
  const auto* q = reinterpret_cast<const std::uint16_t*>(t.q);
  heads.stride = t.k_source.plane->head_byte_stride;
  if (t.bf16) {
    heads.dim = t.shape.dqk;
    if (t.bytes) {
      bf16::small_scores(heads, t.k_source.plane->dtype, q, t.shape.ldk, keys.k_at, ahead, t.scores, lds);
    } else {
      bf16::small_scores(heads, q, t.shape.ldk, keys.k_at, ahead, t.scores, lds);
    }
  } else {
    small_products_k(t, heads, ahead);
  }
  small_softmax(t, masked, m, l, o);
  if (t.v_in_k && !t.bf16) {
    for (int i = 0; i < n; ++i) keys.v_at[i] = keys.k_at[i];
  } else if (!v_direct) {
    stage_v(t);
  }
  ahead = {.runs = keys.v_at,
           .num_runs = v_direct ? n : 0,
           .then = t.next.k_at,
           .num_then = k_direct ? t.next.n : 0,
           .run_bytes = v_bytes,
           .then_bytes = k_bytes};
  ahead.start(heads.output_keys);
  heads.stride = t.v_source.plane->head_byte_stride;
  if (t.bf16) {
    auto* weights = reinterpret_cast<std::uint16_t*>(t.probs);
    bf16::narrow(t.scores, rows * lds, weights);
    heads.dim = t.shape.dvo;
    if (t.bytes) {
      bf16::small_outputs(heads, t.v_source.plane->dtype, weights, lds, keys.v_at, ahead, o, t.shape.ldv);
    } else {
      bf16::small_outputs(heads, weights, lds, keys.v_at, ahead, o, t.shape.ldv);
    }
  } else {
    small_products_v(t, heads, ahead, o);
  }
}

/// Queries of the rows [first, first + num_rows).
void small_load_queries(Tile& t, int first) {
  for (int i = first; i < first + t.num_rows; ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * t.shape.ldk;
    if (t.bf16) {
      auto* row = reinterpret_cast<std::uint16_t*>(t.q) + at;
      copy_query_row(t, i, row);
      if (t.bytes) bf16::permute_query(row, t.shape.dqk);
    } else {
      load_query_row(t, i, t.q + at);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::attention
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ATTENTION_CPU_SMALL_INL_H_
