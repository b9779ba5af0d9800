"""Girih: attention for LLM inference over any KV-cache layout, on CPUs and NVIDIA GPUs."""

from ._context import default_context
from ._girih import Context, CpuInfo, Quantization, __version__, available_cpu_targets, cpu_info
from .activation import activate, gelu_and_mul, gelu_tanh_and_mul, silu_and_mul, swigluoai_and_mul
from .norm import layer_norm, rms_norm
from .quantization import dequantize, packbits, quantize, segment_packbits
from .rope import Llama31, Yarn, rope, rope_cos_sin, rope_frequencies
from .sampling import (
    Sampled,
    Speculated,
    TopK,
    chain_speculative_sample,
    sample,
    softmax,
    top_k,
    top_k_mask_logits,
    top_k_renorm_probs,
    top_p_renorm_probs,
)

__all__ = [
    "Context",
    "CpuInfo",
    "Llama31",
    "Quantization",
    "Sampled",
    "Speculated",
    "TopK",
    "Yarn",
    "__version__",
    "activate",
    "available_cpu_targets",
    "chain_speculative_sample",
    "cpu_info",
    "default_context",
    "dequantize",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "layer_norm",
    "packbits",
    "quantize",
    "rms_norm",
    "rope",
    "rope_cos_sin",
    "rope_frequencies",
    "sample",
    "segment_packbits",
    "silu_and_mul",
    "softmax",
    "swigluoai_and_mul",
    "top_k",
    "top_k_mask_logits",
    "top_k_renorm_probs",
    "top_p_renorm_probs",
]
