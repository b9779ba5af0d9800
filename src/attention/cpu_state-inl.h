// Attention states: folding one into another, and a row's final write. A state is (m, l, o): the running maximum in base-2 units, the sum
// of exp2(s - m), and the unnormalised output. The empty state is (-inf, 0, 0). The fold is the only way two states meet, inside a tile
// (batch-invariant chunks) and in the merge of parts alike, so both give the same bits.
#if defined(GIRIH_ATTENTION_CPU_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_ATTENTION_CPU_STATE_INL_H_
#undef GIRIH_ATTENTION_CPU_STATE_INL_H_
#else
#define GIRIH_ATTENTION_CPU_STATE_INL_H_
#endif

#include "attention/cpu_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace girih::attention {
namespace HWY_NAMESPACE {

HWY_INLINE void clear_row(float* o, int ldv) {
  for (int i = 0; i < ldv; i += kLanes) hn::StoreU(hn::Zero(df), df, o + i);
}

HWY_INLINE void scale_output_row(float factor, int ldv, float* o) {
  const VF f = hn::Set(df, factor);
  for (int i = 0; i < ldv; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(df, o + i), f), df, o + i);
}

/// (m, l, o) := (m, l, o) + (m2, l2, o2). An empty side leaves the other one as it is, bit for bit.
HWY_INLINE void fold_row(float& m, float& l, float* o, float m2, float l2, const float* o2, int ldv) {
  if (m2 == kNegInf && l2 == 0) return;
  if (m == kNegInf && l == 0) {
    m = m2;
    l = l2;
    for (int i = 0; i < ldv; i += kLanes) hn::StoreU(hn::LoadU(df, o2 + i), df, o + i);
    return;
  }
  const float top = m2 > m ? m2 : m;
  const float c1 = exp2_scalar(m - top);
  const float c2 = exp2_scalar(m2 - top);
  const VF v1 = hn::Set(df, c1);
  const VF v2 = hn::Set(df, c2);
  for (int i = 0; i < ldv; i += kLanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(df, o2 + i), v2, hn::Mul(hn::LoadU(df, o + i), v1)), df, o + i);
  }
  l = l * c1 + l2 * c2;
  m = top;
}

/// The same for attention without softmax: a plain sum.
HWY_INLINE void add_row(float* o, const float* o2, int ldv) {
  for (int i = 0; i < ldv; i += kLanes) hn::StoreU(hn::Add(hn::LoadU(df, o + i), hn::LoadU(df, o2 + i)), df, o + i);
}

/// `factor`: of codes.
HWY_INLINE void store_output_row(const RowsView& view, const RowVars& r, int dim, const float* x, float factor) {
  std::byte* p = view.at(r.q_row, r.q_head);
  switch (view.dtype) {
    case DType::f32: std::memcpy(p, x, static_cast<std::size_t>(dim) * 4); return;
    case DType::f16: {
      auto* out = reinterpret_cast<std::uint8_t*>(p);
      for (int i = 0; i < dim; ++i) {
        const std::uint16_t code = encode_f16(x[i]);
        std::memcpy(out + 2 * i, &code, 2);
      }
      return;
    }
    case DType::e4m3: {
      for (int i = 0; i < dim; ++i) p[i] = static_cast<std::byte>(encode_e4m3(x[i] * factor));
      return;
    }
    case DType::e5m2: {
      for (int i = 0; i < dim; ++i) p[i] = static_cast<std::byte>(encode_e5m2(x[i] * factor));
      return;
    }
    default: {
      auto* out = reinterpret_cast<std::uint8_t*>(p);
      for (int i = 0; i < dim; ++i) {
        const std::uint16_t code = encode_bf16(x[i]);
        std::memcpy(out + 2 * i, &code, 2);
      }
      return;
    }
  }
}

/// Normalises row state (m, l, o), lets the sink join, applies the output transform and writes O and LSE. Destroys o.
HWY_INLINE void finish_row(Tile& t, const RowVars& r, float m, float l, float* o) {
  const ScheduleState& s = *t.schedule;
  const AttentionSpec& spec = s.spec;
  const int dvo = t.shape.dvo;
  if (s.program.softmax) {
    const bool empty = m == kNegInf && l == 0;  // not where every score was NaN: that l is NaN
    const bool sinks = !s.program.sink.empty() && !spec.partial_state;
    float lse = kNegInf;
    if (!empty && (sinks || spec.lse != LseKind::none)) lse = m + __builtin_log2f(l);
    if (empty) {
      clear_row(o, t.shape.ldv);
    } else {
      scale_output_row(1.0F / l, t.shape.ldv, o);
    }
    if (sinks) {
      const float sink = hv::evaluate_sink(s.program, t.run->params, r.q_head, t.eval) * kLog2e;
      if (lse == kNegInf) {
        lse = sink;
      } else if (sink != kNegInf) {
        const float top = sink > lse ? sink : lse;
        const float mine = __builtin_exp2f(lse - top);
        const float sum = mine + __builtin_exp2f(sink - top);
        scale_output_row(mine / sum, t.shape.ldv, o);
        lse = top + __builtin_log2f(sum);
      }
    }
    if (spec.lse != LseKind::none) {
      const float out = spec.lse == LseKind::natural ? lse * kLn2 : lse;
      std::memcpy(t.run->lse.at(r.q_row, r.q_head), &out, sizeof(out));
    }
  }
  if (!s.program.output.empty() && !spec.partial_state) {
    hv::evaluate_transform(s.program.output, t.run->params, r, 0, dvo, o, t.eval);
  }
  store_output_row(t.run->o, r, dvo, o, t.run->o_factor);
}

/// Writes row i of the tile's state to the workspace.
HWY_INLINE void store_part_row(Tile& t, std::int64_t part_row, float m, float l, const float* o) {
  float* out = t.run->part_o + part_row * t.schedule->part_stride;
  for (int i = 0; i < t.shape.ldv; i += kLanes) hn::StoreU(hn::LoadU(df, o + i), df, out + i);
  t.run->part_ml[2 * part_row] = m;
  t.run->part_ml[2 * part_row + 1] = l;
}

}  // namespace HWY_NAMESPACE
}  // namespace girih::attention
HWY_AFTER_NAMESPACE();

#endif  // GIRIH_ATTENTION_CPU_STATE_INL_H_
