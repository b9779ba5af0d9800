"""flashinfer.fp4_quantization: the older place of flashinfer.quantization's 4-bit functions."""

from .quantization.fp4_quantization import (
    block_scale_interleave as block_scale_interleave,
    e2m1_and_ufp8sf_scale_to_float as e2m1_and_ufp8sf_scale_to_float,
    fp4_quantize as fp4_quantize,
    mxfp4_dequantize as mxfp4_dequantize,
    nvfp4_batched_quantize as nvfp4_batched_quantize,
    nvfp4_block_scale_interleave as nvfp4_block_scale_interleave,
    nvfp4_kv_dequantize as nvfp4_kv_dequantize,
    nvfp4_kv_quantize as nvfp4_kv_quantize,
    nvfp4_quantize as nvfp4_quantize,
    silu_and_mul_nvfp4_quantize as silu_and_mul_nvfp4_quantize,
)
