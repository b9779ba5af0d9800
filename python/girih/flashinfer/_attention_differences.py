"""What differs from FlashInfer in attention, for docs/flashinfer.md; keyed by module and name."""

from __future__ import annotations

_WORKSPACE = "workspace buffers set the device and stay unused: schedules hold their own memory"
_GRAPH = "with use_cuda_graph the largest batch is that of the buffers; plans keep their addresses"
_LAZY = "another form than the last run's (an LSE, sinks, scales of another kind) is planned at its first run()"
_FORWARD = "forward() plans again where its arguments differ from the plan's"
_SINKS = "sinks are applied always (FlashInfer: by some backends)"
_POSITIONS = (
    "ALiBi counts from the query's position, so that its LSE and a cap do not depend on the split into requests"
)
_ALIBI_CAP = "a soft cap scales ALiBi scores once (FlashInfer: twice)"
_SCALES = "scales multiply before the one rounding to the output's type, and a given out is what holds the result"
_FP8_Q = "FP8 queries become 16-bit numbers of equal value; FP8 outputs saturate"
_JIT = "jit_args: see girih.flashinfer._jit_variant: what is mapped, and what is refused by name"
_PAGED = f"{_WORKSPACE}; {_GRAPH}; {_LAZY}; {_FORWARD}; {_SINKS}; {_POSITIONS}; {_SCALES}; {_FP8_Q}; {_JIT}"
_HOST = "plans at every call and so reads the lengths on the host: not in a CUDA graph"

ATTENTION_DIFFERENCES: dict[str, str] = {
    "decode.single_decode_with_kv_cache": f"{_POSITIONS}; {_ALIBI_CAP}; any head dims, any ratio of heads",
    "decode.single_decode_with_kv_cache_with_jit_module": "return_lse=True returns (out, lse) (FlashInfer drops the LSE)",
    "decode.BatchDecodeWithPagedKVCacheWrapper": f"{_PAGED}; data_type sets q too where q_data_type is left out (FlashInfer: float16); "
    "q_len_per_req > 1 needs no use_tensor_cores; run(window_left=) may differ from the plan's; resolved_backend is 'girih'",
    "decode.CUDAGraphBatchDecodeWithPagedKVCacheWrapper": _PAGED,
    "decode.fast_decode_plan": "the same as plan(), which is as fast",
    "decode.trtllm_batch_decode_with_kv_cache": f"{_HOST}; the LSE is in base 2; an FP8 query without out_dtype gives bfloat16; no 4-bit cache or output, no sparsity, no DCP",
    "decode.xqa_batch_decode_with_kv_cache": f"{_HOST}; no 4-bit cache; mask may be left out with several rows per request (causal)",
    "prefill.single_prefill_with_kv_cache": f"{_POSITIONS}; {_ALIBI_CAP}; {_FP8_Q}; k_scale and v_scale apply to any cache",
    "prefill.single_prefill_with_kv_cache_with_jit_module": "mask_mode 1 is causal beside the variant's mask",
    "prefill.BatchPrefillWithPagedKVCacheWrapper": f"{_PAGED}; packed_custom_mask is read from byte borders for any batch (FlashInfer "
    "mistakes elements for bytes); lse_base and lse_layout everywhere; run(window_left=) may differ from the plan's",
    "prefill.BatchPrefillWithRaggedKVCacheWrapper": f"{_PAGED}; scales apply with any type (FlashInfer: with some backends); a mask does "
    "not outlive its plan; multi-item scoring works (FlashInfer ignores it); v_indptr and o_indptr must repeat kv_indptr and qo_indptr",
    "prefill.trtllm_ragged_attention_deepseek": f"{_HOST}; any dims, windows without causal, FP8 outputs; no skip-softmax, no sage "
    "scales; runs anywhere",
    "prefill.trtllm_batch_context_with_kv_cache": f"{_HOST}; no variable windows, no 4-bit cache or output; runs anywhere",
    "cascade.merge_state_in_place": "s is updated whatever its type (FlashInfer: only f32)",
    "cascade.MultiLevelCascadeAttentionWrapper": "one plan and one pass over all levels; positions run through the levels (FlashInfer "
    "restarts windows, RoPE and ALiBi at each); " + _WORKSPACE,
    "cascade.BatchDecodeWithSharedPrefixPagedKVCacheWrapper": "one pass over prefix and suffix; data_type is that of q too",
    "cascade.BatchPrefillWithSharedPrefixPagedKVCacheWrapper": "one pass over prefix and suffix; any types (FlashInfer: float16)",
    "sparse.BlockSparseAttentionWrapper": "causal and encodings count along the matrix (FlashInfer: along the attended blocks); the last "
    "block column may be cut by N; o_data_type left out follows q_data_type; no block_mask, q2k_indices and other forms of single engines; "
    "mask and position encoding exclude each other",
    "sparse.VariableBlockSparseAttentionWrapper": "causal and encodings count along the matrix; out and lse are written in place",
    "attention.BatchAttention": "logits_soft_cap of plan() holds where run() gives none; any head dims; no profiler; "
    + _WORKSPACE,
    "attention.BatchAttentionWithAttentionSinkWrapper": "plan() must repeat the dtypes and dims of the constructor; "
    + _PAGED,
    "attention.BatchDecodeWithAttentionSinkWrapper": "plan() must repeat the dtypes and dims of the constructor; "
    + _PAGED,
    "attention.BatchPrefillWithCausalBidirectionalRangesWrapper": "no v_sf_swizzled; " + _PAGED,
    "mla.BatchMLAPagedAttentionWrapper": "any widths; ckv_scale_arr of one entry; no scale_mode bmm-*, no FP8 output, no call without "
    f"plan(); {_WORKSPACE}; {_GRAPH}",
    "pod.PODWithPagedKVCacheWrapper": "the halves run one after the other; options of the decode half are honoured or refused (FlashInfer "
    "ignores them); an LSE that is asked for is returned beside its half's output; no jit_args",
    "pod.BatchPODWithPagedKVCacheWrapper": "the halves run one after the other; a mask is planned at run()",
}
