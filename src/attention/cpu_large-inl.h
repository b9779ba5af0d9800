// The large tile class (prefill, append, MLA): up to about two hundred query rows against blocks of keys as two small matrix products.
// Everything is laid out so that nothing needs a transpose: queries are stored transposed once per tile, so scores come out as
// S^T [keys, rows]; softmax then runs down columns (lanes are rows: no horizontal operation), and S^T is just the layout in which the
// second product O += P V reads P. K rows enter as broadcast scalars and V rows as vectors, both as they lie.
#if defined(GIRIH_ATTENTION_CPU_LARGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_ATTENTION_CPU_LARGE_INL_H_
#undef GIRIH_ATTENTION_CPU_LARGE_INL_H_
#else
#define GIRIH_ATTENTION_CPU_LARGE_INL_H_
#endif

#include "attention/cpu_state-inl.h"
#include "attention/cpu_visible-inl.h"

HWY_BEFORE_NAMESPACE();
namespace girih::attention {
namespace HWY_NAMESPACE {

/// C = A B (+ scale[row] * C). B and C are row-major; element (i, k) of A is a[i * a_row + k * a_k].
struct Product {
  const float* a;
  std::int64_t a_row, a_k;
  const float* b;
  std::int64_t ldb;
  float* c;
  std::int64_t ldc;
  const float* c_scale;      // [rows] if accumulating
  int rows, columns, depth;  // columns: a multiple of kLanes
};

/// kRows x kColumns vectors of C in registers, over the whole depth.
template <int kRows, int kColumns, bool kAccumulate>
HWY_INLINE void product_block(const Product& p, int row, int column) {
  VF sum[kRows][kColumns];
  float* c = p.c + row * p.ldc + column;
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) {
      if constexpr (kAccumulate) {
        sum[r][j] = hn::Mul(hn::LoadU(df, c + r * p.ldc + j * kLanes), hn::Set(df, p.c_scale[row + r]));
      } else {
        sum[r][j] = hn::Zero(df);
      }
    }
  }
  const float* a = p.a + row * p.a_row;
  const float* b = p.b + column;
  for (int k = 0; k < p.depth; ++k) {
    VF v[kColumns];
    for (int j = 0; j < kColumns; ++j) v[j] = hn::LoadU(df, b + j * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const VF s = hn::Set(df, a[r * p.a_row]);
      for (int j = 0; j < kColumns; ++j) sum[r][j] = hn::MulAdd(s, v[j], sum[r][j]);
    }
    a += p.a_k;
    b += p.ldb;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kColumns; ++j) hn::StoreU(sum[r][j], df, c + r * p.ldc + j * kLanes);
  }
}

inline constexpr int kProductRows = kLanes == 4 ? 4 : 6;
inline constexpr int kProductColumns = kLanes == 16 ? 4 : 2;  // 24 or 12 sums of 32 or 16 registers

template <int kColumns, bool kAccumulate>
HWY_INLINE void product_panel(const Product& p, int column) {
  int row = 0;
  for (; row + kProductRows <= p.rows; row += kProductRows) product_block<kProductRows, kColumns, kAccumulate>(p, row, column);
  switch (p.rows - row) {
    case 5:
      if constexpr (kProductRows > 5) product_block<5, kColumns, kAccumulate>(p, row, column);
      break;
    case 4:
      if constexpr (kProductRows > 4) product_block<4, kColumns, kAccumulate>(p, row, column);
      break;
    case 3: product_block<3, kColumns, kAccumulate>(p, row, column); break;
    case 2: product_block<2, kColumns, kAccumulate>(p, row, column); break;
    case 1: product_block<1, kColumns, kAccumulate>(p, row, column); break;
    default: break;
  }
}

/// The panel of columns is the outer loop: its part of B stays in L1 while the rows pass.
template <bool kAccumulate>
void product(const Product& p) {
  int column = 0;
  for (; column + kProductColumns * kLanes <= p.columns; column += kProductColumns * kLanes) {
    product_panel<kProductColumns, kAccumulate>(p, column);
  }
  if constexpr (kProductColumns > 2) {
    for (; column + 2 * kLanes <= p.columns; column += 2 * kLanes) product_panel<2, kAccumulate>(p, column);
  }
  for (; column < p.columns; column += kLanes) product_panel<1, kAccumulate>(p, column);
}

/// Weights of kKeys keys from row `key` of S^T on, for a vector of rows, in place.
template <bool kMasked, bool kUnits, int kKeys>
HWY_INLINE void weights_of(const Tile& t, const Reach& reach, int key, int r, VF base, VF& sum) {
  const std::int64_t at = static_cast<std::int64_t>(key) * t.ldr + r;
  float* s = t.scores + at;
  VF p[kKeys];
  for (int i = 0; i < kKeys; ++i) {
    const VF x = hn::LoadU(df, s + static_cast<std::int64_t>(i) * t.ldr);
    p[i] = kUnits ? hn::MulSub(x, hn::Set(df, kLog2e), base) : hn::Sub(x, base);
  }
  exp2_each(p);
  for (int i = 0; i < kKeys; ++i) {
    if constexpr (kMasked) p[i] = hn::IfThenElseZero(load_byte_mask(reach.visible + at + static_cast<std::int64_t>(i) * t.ldr), p[i]);
    sum = hn::Add(sum, p[i]);
    hn::StoreU(p[i], df, s + static_cast<std::int64_t>(i) * t.ldr);
  }
}

/// Softmax step of a vector of rows: their scores in S^T become weights. kUnits: the scores are logits in natural units, else in base 2.
/// Masked or not, a row that sees every key gets the same bits.
template <bool kMasked, bool kUnits>
HWY_INLINE void softmax_rows(Tile& t, const Reach& reach, int r, float* m, float* l) {
  const int n = t.keys.n;
  const VF neg_inf = hn::Set(df, kNegInf);
  const float* s = t.scores + r;
  VF top = neg_inf;
  for (int i = 0; i < n; ++i) {
    VF x = hn::LoadU(df, s + static_cast<std::int64_t>(i) * t.ldr);
    if constexpr (kUnits) x = hn::Mul(x, hn::Set(df, kLog2e));
    if constexpr (kMasked) x = hn::IfThenElse(load_byte_mask(reach.visible + static_cast<std::int64_t>(i) * t.ldr + r), x, neg_inf);
    top = hn::Max(top, x);
  }
  const VF old_m = hn::LoadU(df, m + r);
  const VF new_m = hn::IfThenElse(hn::Gt(top, old_m), top, old_m);
  const VF base = hn::IfThenElse(hn::Eq(new_m, neg_inf), hn::Zero(df), new_m);
  const VF corr = exp2(hn::Sub(old_m, base));
  VF sum = hn::Mul(hn::LoadU(df, l + r), corr);
  int key = 0;
  for (; key + 4 <= n; key += 4) weights_of<kMasked, kUnits, 4>(t, reach, key, r, base, sum);
  for (; key < n; ++key) weights_of<kMasked, kUnits, 1>(t, reach, key, r, base, sum);
  hn::StoreU(sum, df, l + r);
  hn::StoreU(new_m, df, m + r);
  hn::StoreU(corr, df, t.corr + r);
}

/// Softmax step over the block, a vector of rows at a time: S^T becomes P^T, m, l and corr are updated.
template <bool kUnits>
void large_softmax(Tile& t, const Reach& reach, float* m, float* l) {
  for (int r = reach.row_begin; r < reach.row_end; r += kLanes) {
    if (reach.visible != nullptr && t.sees_all[r / kReachRows] == 0) {
      softmax_rows<true, kUnits>(t, reach, r, m, l);
    } else {
      softmax_rows<false, kUnits>(t, reach, r, m, l);
    }
  }
}

/// Attention without softmax: hidden weights become 0, nothing is rescaled.
void large_plain(Tile& t, const Reach& reach) {
  for (int r = reach.row_begin; r < reach.row_end; r += kLanes) {
    hn::StoreU(hn::Set(df, 1.0F), df, t.corr + r);
    if (reach.visible == nullptr || t.sees_all[r / kReachRows] != 0) continue;
    for (int i = 0; i < t.keys.n; ++i) {
      float* s = t.scores + static_cast<std::int64_t>(i) * t.ldr + r;
      hn::StoreU(hn::IfThenElseZero(load_byte_mask(reach.visible + static_cast<std::int64_t>(i) * t.ldr + r), hn::LoadU(df, s)), df, s);
    }
  }
}

/// What a score of key i is multiplied by where Q and K were not scaled before the product.
HWY_INLINE float key_factor(const Tile& t, int i) {
  const bool by_key = !t.k_source.scale_rows && t.schedule->spec.k_scale == ScaleGranularity::token_head;
  return by_key ? t.score_factor * t.keys.k_scale[i] : t.score_factor;
}

void large_scores_f32(Tile& t, const Reach& reach) {
  stage_k(t);
  product<false>({.a = t.k,
                  .a_row = t.shape.ldk,
                  .a_k = 1,
                  .b = t.q + reach.row_begin,
                  .ldb = t.ldr,
                  .c = t.scores + reach.row_begin,
                  .ldc = t.ldr,
                  .c_scale = nullptr,
                  .rows = t.keys.n,
                  .columns = reach.row_end - reach.row_begin,
                  .depth = t.shape.dqk});
}

void large_outputs_f32(Tile& t, const Reach& reach, float* o) {
  if (!t.v_in_k) stage_v(t);
  product<true>({.a = t.scores + reach.row_begin,
                 .a_row = 1,
                 .a_k = t.ldr,
                 .b = t.v_in_k ? t.k : t.v,
                 .ldb = t.v_in_k ? t.shape.ldk : t.shape.ldv,
                 .c = o + static_cast<std::int64_t>(reach.row_begin) * t.shape.ldv,
                 .ldc = t.shape.ldv,
                 .c_scale = t.corr + reach.row_begin,
                 .rows = min_int(reach.row_end, t.num_rows) - reach.row_begin,
                 .columns = t.shape.ldv,
                 .depth = t.keys.n});
}

void large_scores_bf16(Tile& t, const Reach& reach) {
  if (t.k_source.direct) {
    for (int i = 0; i < t.next.n; ++i) prefetch_row(t.next.k_at[i], t.k_source.dim * 2);
  } else {
    stage_bf16(t, t.k_source, t.keys.k_at, t.next.k_at, t.k, t.shape.ldk);
  }
  for (int i = 0; i < t.keys.n; ++i) t.key_factors[i] = key_factor(t, i);
  bf16::large_scores(t.keys.k_at, t.key_factors, t.keys.n, reinterpret_cast<const std::uint32_t*>(t.q) + reach.row_begin, t.ldr,
                     reach.row_end - reach.row_begin, (t.shape.dqk + 1) / 2, t.scores + reach.row_begin);
}

void large_outputs_bf16(Tile& t, const Reach& reach, float* o) {
  const int n = t.keys.n;
  const int first = reach.row_begin;
  const int columns = reach.row_end - first;
  if (t.v_in_k) {
    for (int i = 0; i < n; ++i) t.keys.v_at[i] = t.keys.k_at[i];
  } else if (!t.v_source.direct) {
    stage_bf16(t, t.v_source, t.keys.v_at, t.next.v_at, t.v, t.shape.ldv);
  } else {
    for (int i = 0; i < t.next.n; ++i) prefetch_row(t.next.v_at[i], t.v_source.dim * 2);
  }
  if (!t.v_source.scale_rows && t.schedule->spec.v_scale == ScaleGranularity::token_head) {
    for (int i = 0; i < n; ++i) scale_row(t.keys.v_scale[i], columns, t.scores + static_cast<std::int64_t>(i) * t.ldr + first);
  }
  std::uint32_t* weights = reinterpret_cast<std::uint32_t*>(t.probs) + first;
  bf16::pack_weights(t.scores + first, n, t.ldr, columns, weights);
  bf16::pack_values(t.keys.v_at, n, t.shape.dvo, t.shape.ldv, t.v_pairs);
  bf16::large_outputs(weights, t.ldr, t.v_pairs, t.shape.ldv, min_int(reach.row_end, t.num_rows) - first, (n + 1) / 2, t.corr + first,
                      o + static_cast<std::int64_t>(first) * t.shape.ldv);
}

/// Asks for the rows of the first block, which no step before it could prefetch.
void large_prefetch_first(const Tile& t) {
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): bind_sources() has set it
  const int k_bytes = t.k_source.dim * bits(t.k_source.plane->dtype) / 8;
  const int v_bytes = t.v_source.dim * bits(t.v_source.plane->dtype) / 8;
  for (int i = 0; i < t.next.n; ++i) prefetch_row(t.next.k_at[i], k_bytes);
  if (t.v_source.plane == t.k_source.plane) return;
  for (int i = 0; i < t.next.n; ++i) prefetch_row(t.next.v_at[i], v_bytes);
}

/// Keys [begin, end) of a block.
HWY_INLINE KeyBlock part_of(const KeyBlock& keys, int begin, int end) {
  return {.n = end - begin,
          .page = keys.page + begin,
          .slot = keys.slot + begin,
          .k_at = keys.k_at + begin,
          .v_at = keys.v_at + begin,
          .pos = keys.pos + begin,
          .rope_pos = keys.rope_pos + begin,
          .k_scale = keys.k_scale + begin,
          .v_scale = keys.v_scale + begin};
}

/// The current block of keys into the state (m, l, o).
void large_block(Tile& t, bool masked, float* m, float* l, float* o) {
  const variant::Program& program = t.schedule->program;
  const KeyBlock block = t.keys;
  Reach reach{.row_end = t.ldr, .key_end = block.n};
  if (masked) {
    reach = masked_reach(t);
    if (reach.empty()) return;
    t.keys = part_of(block, reach.key_begin, reach.key_end);
  }
  t.bf16 ? large_scores_bf16(t, reach) : large_scores_f32(t, reach);
  if (!program.logits.empty()) large_logits(t, reach);
  if (!program.softmax) {
    large_plain(t, reach);
  } else if (program.logits.empty()) {
    large_softmax<false>(t, reach, m, l);
  } else {
    large_softmax<true>(t, reach, m, l);
  }
  t.bf16 ? large_outputs_bf16(t, reach, o) : large_outputs_f32(t, reach, o);
  t.keys = block;
}

/// Four vectors as 4 x 4 blocks (of 128 bits each), transposed.
HWY_INLINE void transpose_blocks(VF& a, VF& b, VF& c, VF& d) {
  const hn::RepartitionToWide<hn::RebindToUnsigned<DF>> dw;
  const auto ab_low = hn::BitCast(dw, hn::InterleaveLower(df, a, b));
  const auto ab_high = hn::BitCast(dw, hn::InterleaveUpper(df, a, b));
  const auto cd_low = hn::BitCast(dw, hn::InterleaveLower(df, c, d));
  const auto cd_high = hn::BitCast(dw, hn::InterleaveUpper(df, c, d));
  a = hn::BitCast(df, hn::InterleaveLower(dw, ab_low, cd_low));
  b = hn::BitCast(df, hn::InterleaveUpper(dw, ab_low, cd_low));
  c = hn::BitCast(df, hn::InterleaveLower(dw, ab_high, cd_high));
  d = hn::BitCast(df, hn::InterleaveUpper(dw, ab_high, cd_high));
}

/// Queries transposed, elements of 32 bits: t.q [depth, ldr] of f32 dims, or of pairs of bf16 ones. Four rows at a time.
void large_load_queries(Tile& t) {
  const hn::CappedTag<float, 4> d4;
  const int depth = t.bf16 ? (t.shape.dqk + 1) / 2 : t.shape.dqk;
  const int ld = t.shape.ldk;
  constexpr int kAhead = 12;  // rows of one head are far apart: hardware prefetchers do not follow
  const int row_bytes = t.shape.dqk * bits(t.run->q.dtype) / 8;
  float* rows = t.k;  // [4, ldk], free until the first block
  for (int i = 0; i < 4; ++i) clear_row(rows + static_cast<std::int64_t>(i) * ld, ld);
  for (int i = 0; i < t.ldr; i += 4) {
    for (int r = i; r < i + 4; ++r) {
      float* row = rows + static_cast<std::int64_t>(r - i) * ld;
      if (r + kAhead < t.num_rows) prefetch_row(t.run->q.at(t.rows[r + kAhead].q_row, t.rows[r + kAhead].q_head), row_bytes);
      if (r >= t.num_rows) {
        clear_row(row, ld);
      } else if (t.bf16) {
        copy_query_row(t, r, reinterpret_cast<std::uint16_t*>(row));
      } else {
        load_query_row(t, r, row);
      }
    }
    for (int d = 0; d < depth; d += kLanes) {  // past the depth: zeros, for which t.q has room
      VF a = hn::LoadU(df, rows + d);
      VF b = hn::LoadU(df, rows + ld + d);
      VF c = hn::LoadU(df, rows + 2 * ld + d);
      VF e = hn::LoadU(df, rows + 3 * ld + d);
      transpose_blocks(a, b, c, e);
      alignas(64) float blocks[4][kLanes];
      hn::Store(a, df, blocks[0]);
      hn::Store(b, df, blocks[1]);
      hn::Store(c, df, blocks[2]);
      hn::Store(e, df, blocks[3]);
      for (int j = 0; j < kLanes; ++j) {
        hn::StoreU(hn::Load(d4, &blocks[j % 4][j / 4 * 4]), d4, t.q + static_cast<std::int64_t>(d + j) * t.ldr + i);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::attention
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ATTENTION_CPU_LARGE_INL_H_
