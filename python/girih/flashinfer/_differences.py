"""What differs from FlashInfer in the functions and classes that Girih implements, for docs/flashinfer.md; keyed by module and name."""

from __future__ import annotations

from ._attention_differences import ATTENTION_DIFFERENCES

_RANDOM = "other tokens for the same seed, of the same distribution"
_TIES = "exactly k entries: of equal values at the border those of the lowest index (FlashInfer keeps all, or some)"
_PLACES = "on a GPU what lies outside of a request's pages is not written, on the CPU it is refused"
_ROUNDED = (
    "f32 from the norm to the code (FlashInfer rounds to input's type between, and where it multiplies by 1/scale)"
)
_ANGLES = "angles in double (FlashInfer: f32), so that far positions are right to the last place"
_NVFP4 = (
    "exact division where FlashInfer multiplies by approximate reciprocals: codes at the middle between two may differ"
)

DIFFERENCES: dict[str, str] = {
    **ATTENTION_DIFFERENCES,
    "activation.silu_and_mul": "any width (FlashInfer: a multiple of 16 bytes)",
    "activation.gelu_and_mul": "any width (FlashInfer: a multiple of 16 bytes)",
    "activation.gelu_tanh_and_mul": "any width (FlashInfer: a multiple of 16 bytes)",
    "autotuner.autotune": "a context without effect: kernels are chosen from the spec, nothing is measured; `cache` is refused",
    "concat_ops.concat_mla_k": "any numbers of heads and widths; copies by PyTorch",
    "logits_processor.LogitsPipe": "one call for all filters before a Sample; arguments that no processor takes are refused; no rules or "
    "checks of one's own",
    "logits_processor.LogitsProcessor": "not to be derived from",
    "norm.layernorm": "any of f32, f16, bf16 (FlashInfer: bf16 with f32 parameters)",
    "norm.rmsnorm_quant": _ROUNDED,
    "norm.fused_add_rmsnorm_quant": _ROUNDED,
    "norm.layernorm_quant": _ROUNDED,
    "norm.fused_rmsnorm_silu": "any type and shape, two passes; no NVFP4 output",
    "page.append_paged_kv_cache": _PLACES
    + "; batch_indices of -1 are skipped (FlashInfer writes out of bounds); a cache of 16 or 32 bits may be of another type than the tokens",
    "page.append_paged_mla_kv_cache": _PLACES + "; any widths (FlashInfer: 512 and 64)",
    "page.nvfp4_quantize_append_paged_kv_cache": _PLACES + "; " + _NVFP4,
    "page.nvfp4_quantize_append_paged_kv_cache_with_slot_mapping": "reads the scales on the host; " + _NVFP4,
    "page.nvfp4_quantize_append_paged_mla_kv_cache": _PLACES + "; any widths (FlashInfer: 512 and 64); " + _NVFP4,
    "page.get_batch_indices_positions": "seq_lens may be on another device; no Triton",
    "mla.supported_mla_head_dimensions": "as FlashInfer's; Girih takes any widths",
    "mla.supported_mla_layer_dimensions": "as FlashInfer's; Girih takes any widths and heads",
    "quantization.fp4_quantize": _NVFP4
    + "; reads global_scale on the host; only 16-element e4m3 scales; also f32 input; no f8 input",
    "quantization.mxfp8_quantize": "by PyTorch but for the codes; no batch_invariant",
    "quantization.mxfp4_quantize": "by PyTorch; any device; no batch_invariant",
    "quantization.mxfp8_dequantize_host": "needs no GPU; any layout of scales",
    "quantization.nvfp4_quantize": _NVFP4 + "; reads a_global_sf on the host; no do_shuffle, no per_token_activation",
    "quantization.nvfp4_batched_quantize": _NVFP4 + "; one call for each matrix",
    "quantization.silu_and_mul_nvfp4_quantize": _NVFP4 + "; two passes",
    "quantization.nvfp4_kv_dequantize_paged": "gathers by PyTorch; waits for the lengths and scales on a GPU",
    "quantization.nvfp4_kv_quantize": _NVFP4 + "; any device",
    "quantization.per_token_group_quant_8bit": "groups of 128 or of a whole row; f32 scales; groups below eps keep their own scale",
    "quantization.e2m1_and_ufp8sf_scale_to_float": "needs no GPU",
    "rope.apply_rope": _ANGLES,
    "rope.apply_rope_inplace": _ANGLES,
    "rope.apply_rope_pos_ids": _ANGLES,
    "rope.apply_rope_pos_ids_inplace": _ANGLES,
    "rope.apply_llama31_rope": _ANGLES,
    "rope.apply_llama31_rope_inplace": _ANGLES,
    "rope.apply_llama31_rope_pos_ids": _ANGLES,
    "rope.apply_llama31_rope_pos_ids_inplace": _ANGLES,
    "rope.rope_quantize_fp8": "any widths; a call for the rotated parts and one for each of the others",
    "rope.mla_rope_quantize_fp8": "any widths; a call for the rotated parts and one for each of the others",
    "rope.rope_quantize_fp8_append_paged_kv_cache": _PLACES + "; any widths; several calls",
    "sampling.get_seed_and_offset": "CPU generators too: a drawn seed and offset 0",
    "sampling.softmax": "a temperature of up to 1e-5 gives the argmax; rows without mass are zeros, not NaN",
    "sampling.sampling_from_probs": _RANDOM + "; rows with NaN give token 0 (and valid False)",
    "sampling.sampling_from_logits": _RANDOM,
    "sampling.top_p_sampling_from_probs": _RANDOM,
    "sampling.top_k_sampling_from_probs": _RANDOM + "; " + _TIES + "; top_k <= 0: no filter",
    "sampling.min_p_sampling_from_probs": _RANDOM,
    "sampling.top_k_top_p_sampling_from_probs": _RANDOM + "; " + _TIES + "; one pass in both orders",
    "sampling.top_k_top_p_sampling_from_logits": _RANDOM + "; " + _TIES + "; one pass in both orders",
    "sampling.top_k_renorm_probs": _TIES + "; top_k <= 0: a copy",
    "sampling.top_k_renorm_prob": _TIES + "; top_k <= 0: a copy",
    "sampling.top_k_mask_logits": _TIES + "; top_k <= 0: a copy",
    "sampling.top_p_renorm_probs": "top_p >= 1: a copy, bit for bit",
    "sampling.top_p_renorm_prob": "top_p >= 1: a copy, bit for bit",
    "sampling.chain_speculative_sampling": _RANDOM + "; tokens are of draft_token_ids' type",
    "topk.top_k": "k up to 4096; unsorted results are by index; NONE breaks ties as SMALL; NaN comes last",
    "topk.topk": "as top_k",
    "topk.top_k_page_table_transform": "k up to 4096; results are by index; NONE breaks ties as SMALL",
    "topk.top_k_ragged_transform": "k up to 4096; results are by index; NONE breaks ties as SMALL",
    "utils.get_compute_capability": "not cached",
    "utils.has_flashinfer_jit_cache": "always True: nothing is compiled ahead",
    "utils.canonicalize_torch_dtype": "TypeError for names that are no dtype",
}
