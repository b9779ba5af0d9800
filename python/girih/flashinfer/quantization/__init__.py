"""flashinfer.quantization: packed bit masks, 8-bit and 4-bit codes with block scales."""

from .fp4_quantization import (
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
from .fp8_quantization import per_token_group_quant_8bit as per_token_group_quant_8bit
from .nvfp4_quantization_utils import make_nvfp4_global_scale as make_nvfp4_global_scale
from .packbits import packbits as packbits
from .packbits import segment_packbits as segment_packbits
from ..tllm_enums import SfLayout as SfLayout
