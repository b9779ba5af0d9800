"""Declarations of variants that FlashInfer ships as text, written here in its FA2 protocol, which both of its backends may be given."""

_ATTENTION_SINK = r"""
struct AttentionSink : AttentionVariantBase {
  static constexpr bool use_softmax = true;
  uint32_t qo_len, kv_len, window_left;
  float sm_scale_log2;

  template <typename Params>
  __device__ __host__ AttentionSink(const Params& params, uint32_t batch_idx, uint8_t* smem_ptr) {
    sm_scale_log2 = params.sm_scale * math::log2e;
    qo_len = params.get_qo_len(batch_idx);
    kv_len = params.get_kv_len(batch_idx);
    window_left = params.window_left < 0 ? kv_len : params.window_left;
  }

  // A window counts back from the query's own position, kv_len - qo_len + qo_idx.
  REGISTER_LOGITS_MASK(params, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    return kv_len + qo_idx <= kv_idx + qo_len + window_left;
  })

  // The sink joins maximum and sum once, with the first tile.
  REGISTER_M_D_UPDATE(params, kv_tile_idx, qo_head_idx, m, d, scale, {
    float sink_log2 = kv_tile_idx == 0 ? params.sink[qo_head_idx] * math::log2e : -math::inf;
    float m_joined = max(m, sink_log2);
    scale = m == -math::inf ? 0.f : math::ptx_exp2(m - m_joined);
    d = d * scale + (sink_log2 == -math::inf ? 0.f : math::ptx_exp2(sink_log2 - m_joined));
    m = m_joined;
  })

  REGISTER_OUTPUT_TRANSFORM(params, output, batch_idx, qo_idx, qo_head_idx, m, d, scale, {
    return m == -math::inf ? 0.f : output * scale * math::ptx_rcp(d);
  })
};
"""

attention_sink_fa2_decl = _ATTENTION_SINK
attention_sink_fa3_decl = _ATTENTION_SINK
attention_sink_decl = {"fa2": attention_sink_fa2_decl, "fa3": attention_sink_fa3_decl}

__all__ = ["attention_sink_decl", "attention_sink_fa2_decl", "attention_sink_fa3_decl"]
