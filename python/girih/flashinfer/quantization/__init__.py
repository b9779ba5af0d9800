"""flashinfer.quantization: packed bit masks, 8-bit and 4-bit codes with block scales."""

from ..tllm_enums import SfLayout as SfLayout
from .fp4_quantization import (
    block_scale_interleave as block_scale_interleave,
)
from .fp4_quantization import (
    e2m1_and_ufp8sf_scale_to_float as e2m1_and_ufp8sf_scale_to_float,
)
from .fp4_quantization import (
    fp4_quantize as fp4_quantize,
)
from .fp4_quantization import (
    mxfp4_dequantize as mxfp4_dequantize,
)
from .fp4_quantization import (
    nvfp4_batched_quantize as nvfp4_batched_quantize,
)
from .fp4_quantization import (
    nvfp4_block_scale_interleave as nvfp4_block_scale_interleave,
)
from .fp4_quantization import (
    nvfp4_kv_dequantize as nvfp4_kv_dequantize,
)
from .fp4_quantization import (
    nvfp4_kv_dequantize_paged as nvfp4_kv_dequantize_paged,
)
from .fp4_quantization import (
    nvfp4_kv_quantize as nvfp4_kv_quantize,
)
from .fp4_quantization import (
    nvfp4_quantize as nvfp4_quantize,
)
from .fp4_quantization import (
    silu_and_mul_nvfp4_quantize as silu_and_mul_nvfp4_quantize,
)
from .fp8_quantization import per_token_group_quant_8bit as per_token_group_quant_8bit
from .mx_quantization import mxfp4_quantize as mxfp4_quantize
from .mx_quantization import mxfp8_dequantize_host as mxfp8_dequantize_host
from .mx_quantization import mxfp8_quantize as mxfp8_quantize
from .nvfp4_quantization_utils import NVFP44Over6Config as NVFP44Over6Config
from .nvfp4_quantization_utils import NVFP44Over6ErrMode as NVFP44Over6ErrMode
from .nvfp4_quantization_utils import make_nvfp4_global_scale as make_nvfp4_global_scale
from .nvfp4_quantization_utils import nvfp4_e4m3_max as nvfp4_e4m3_max
from .packbits import packbits as packbits
from .packbits import segment_packbits as segment_packbits
