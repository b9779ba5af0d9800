"""flashinfer.fp4_quantization: the older place of flashinfer.quantization's 4-bit functions."""

from .quantization.fp4_quantization import (
    block_scale_interleave as block_scale_interleave,
)
from .quantization.fp4_quantization import (
    e2m1_and_ufp8sf_scale_to_float as e2m1_and_ufp8sf_scale_to_float,
)
from .quantization.fp4_quantization import (
    fp4_quantize as fp4_quantize,
)
from .quantization.fp4_quantization import (
    mxfp4_dequantize as mxfp4_dequantize,
)
from .quantization.fp4_quantization import (
    mxfp4_quantize as mxfp4_quantize,
)
from .quantization.fp4_quantization import (
    nvfp4_batched_quantize as nvfp4_batched_quantize,
)
from .quantization.fp4_quantization import (
    nvfp4_block_scale_interleave as nvfp4_block_scale_interleave,
)
from .quantization.fp4_quantization import (
    nvfp4_kv_dequantize as nvfp4_kv_dequantize,
)
from .quantization.fp4_quantization import (
    nvfp4_kv_dequantize_paged as nvfp4_kv_dequantize_paged,
)
from .quantization.fp4_quantization import (
    nvfp4_kv_quantize as nvfp4_kv_quantize,
)
from .quantization.fp4_quantization import (
    nvfp4_quantize as nvfp4_quantize,
)
from .quantization.fp4_quantization import (
    silu_and_mul_nvfp4_quantize as silu_and_mul_nvfp4_quantize,
)
