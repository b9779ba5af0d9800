"""FlashInfer's Python interface over Girih: `import girih.flashinfer as flashinfer`.

Names, argument order, defaults and results are those of FlashInfer 0.7.4, on CUDA and on CPU tensors. What Girih cannot do raises
NotImplementedError that names the argument or the nearest alternative; docs/flashinfer.md lists every public name and all differences.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("girih.flashinfer needs PyTorch, whose tensors FlashInfer's functions take and return") from error

from . import activation as activation
from . import attention as attention
from . import autotuner as autotuner
from . import cascade as cascade
from . import concat_ops as concat_ops
from . import cute_dsl as cute_dsl
from . import cutile as cutile
from . import decode as decode
from . import fp4_quantization as fp4_quantization
from . import jit as jit
from . import logits_processor as logits_processor
from . import mla as mla
from . import norm as norm
from . import page as page
from . import pod as pod
from . import prefill as prefill
from . import quantization as quantization
from . import rope as rope
from . import sampling as sampling
from . import sparse as sparse
from . import tllm_enums as tllm_enums
from . import topk as topk
from . import utils as utils
from ._attention_names import BatchAttention as BatchAttention
from ._attention_names import BatchAttentionWithAttentionSinkWrapper as BatchAttentionWithAttentionSinkWrapper
from ._attention_names import BatchDecodeMlaWithPagedKVCacheWrapper as BatchDecodeMlaWithPagedKVCacheWrapper
from ._attention_names import BatchDecodeWithAttentionSinkWrapper as BatchDecodeWithAttentionSinkWrapper
from ._attention_names import BatchDecodeWithPagedKVCacheWrapper as BatchDecodeWithPagedKVCacheWrapper
from ._attention_names import (
    BatchDecodeWithSharedPrefixPagedKVCacheWrapper as BatchDecodeWithSharedPrefixPagedKVCacheWrapper,
)
from ._attention_names import BatchMLAPagedAttentionWrapper as BatchMLAPagedAttentionWrapper
from ._attention_names import BatchPODWithPagedKVCacheWrapper as BatchPODWithPagedKVCacheWrapper
from ._attention_names import (
    BatchPrefillWithCausalBidirectionalRangesWrapper as BatchPrefillWithCausalBidirectionalRangesWrapper,
)
from ._attention_names import BatchPrefillWithPagedKVCacheWrapper as BatchPrefillWithPagedKVCacheWrapper
from ._attention_names import BatchPrefillWithRaggedKVCacheWrapper as BatchPrefillWithRaggedKVCacheWrapper
from ._attention_names import (
    BatchPrefillWithSharedPrefixPagedKVCacheWrapper as BatchPrefillWithSharedPrefixPagedKVCacheWrapper,
)
from ._attention_names import BlockSparseAttentionWrapper as BlockSparseAttentionWrapper
from ._attention_names import CUDAGraphBatchDecodeWithPagedKVCacheWrapper as CUDAGraphBatchDecodeWithPagedKVCacheWrapper
from ._attention_names import MultiLevelCascadeAttentionWrapper as MultiLevelCascadeAttentionWrapper
from ._attention_names import PODWithPagedKVCacheWrapper as PODWithPagedKVCacheWrapper
from ._attention_names import VariableBlockSparseAttentionWrapper as VariableBlockSparseAttentionWrapper
from ._attention_names import fast_decode_plan as fast_decode_plan
from ._attention_names import merge_state as merge_state
from ._attention_names import merge_state_in_place as merge_state_in_place
from ._attention_names import merge_states as merge_states
from ._attention_names import single_decode_with_kv_cache as single_decode_with_kv_cache
from ._attention_names import single_prefill_with_kv_cache as single_prefill_with_kv_cache
from ._attention_names import single_prefill_with_kv_cache_return_lse as single_prefill_with_kv_cache_return_lse
from ._refused import complete as _complete
from ._refused import public_names as _public_names
from ._refused import refusals as _refusals
from .activation import gelu_and_mul as gelu_and_mul
from .activation import gelu_tanh_and_mul as gelu_tanh_and_mul
from .activation import silu_and_mul as silu_and_mul
from .autotuner import autotune as autotune
from .norm import fused_add_rmsnorm as fused_add_rmsnorm
from .norm import fused_add_rmsnorm_fp8_block_quant as fused_add_rmsnorm_fp8_block_quant
from .norm import fused_add_rmsnorm_quant as fused_add_rmsnorm_quant
from .norm import fused_rmsnorm_silu as fused_rmsnorm_silu
from .norm import gemma_fused_add_rmsnorm as gemma_fused_add_rmsnorm
from .norm import gemma_rmsnorm as gemma_rmsnorm
from .norm import layernorm as layernorm
from .norm import layernorm_quant as layernorm_quant
from .norm import rmsnorm as rmsnorm
from .norm import rmsnorm_quant as rmsnorm_quant
from .page import append_paged_kv_cache as append_paged_kv_cache
from .page import append_paged_mla_kv_cache as append_paged_mla_kv_cache
from .page import get_batch_indices_positions as get_batch_indices_positions
from .page import get_seq_lens as get_seq_lens
from .page import nvfp4_quantize_append_paged_kv_cache as nvfp4_quantize_append_paged_kv_cache
from .page import (
    nvfp4_quantize_append_paged_kv_cache_with_slot_mapping as nvfp4_quantize_append_paged_kv_cache_with_slot_mapping,
)
from .page import nvfp4_quantize_append_paged_mla_kv_cache as nvfp4_quantize_append_paged_mla_kv_cache
from .quantization import NVFP44Over6Config as NVFP44Over6Config
from .quantization import NVFP44Over6ErrMode as NVFP44Over6ErrMode
from .quantization import block_scale_interleave as block_scale_interleave
from .quantization import e2m1_and_ufp8sf_scale_to_float as e2m1_and_ufp8sf_scale_to_float
from .quantization import fp4_quantize as fp4_quantize
from .quantization import make_nvfp4_global_scale as make_nvfp4_global_scale
from .quantization import mxfp4_dequantize as mxfp4_dequantize
from .quantization import mxfp4_quantize as mxfp4_quantize
from .quantization import mxfp8_dequantize_host as mxfp8_dequantize_host
from .quantization import mxfp8_quantize as mxfp8_quantize
from .quantization import nvfp4_batched_quantize as nvfp4_batched_quantize
from .quantization import nvfp4_block_scale_interleave as nvfp4_block_scale_interleave
from .quantization import nvfp4_kv_dequantize as nvfp4_kv_dequantize
from .quantization import nvfp4_kv_dequantize_paged as nvfp4_kv_dequantize_paged
from .quantization import nvfp4_kv_quantize as nvfp4_kv_quantize
from .quantization import nvfp4_quantize as nvfp4_quantize
from .quantization import packbits as packbits
from .quantization import segment_packbits as segment_packbits
from .quantization import silu_and_mul_nvfp4_quantize as silu_and_mul_nvfp4_quantize
from .rope import apply_llama31_rope as apply_llama31_rope
from .rope import apply_llama31_rope_inplace as apply_llama31_rope_inplace
from .rope import apply_llama31_rope_pos_ids as apply_llama31_rope_pos_ids
from .rope import apply_llama31_rope_pos_ids_inplace as apply_llama31_rope_pos_ids_inplace
from .rope import apply_rope as apply_rope
from .rope import apply_rope_inplace as apply_rope_inplace
from .rope import apply_rope_pos_ids as apply_rope_pos_ids
from .rope import apply_rope_pos_ids_inplace as apply_rope_pos_ids_inplace
from .rope import apply_rope_with_cos_sin_cache as apply_rope_with_cos_sin_cache
from .rope import apply_rope_with_cos_sin_cache_inplace as apply_rope_with_cos_sin_cache_inplace
from .sampling import chain_speculative_sampling as chain_speculative_sampling
from .sampling import min_p_sampling_from_probs as min_p_sampling_from_probs
from .sampling import sampling_from_logits as sampling_from_logits
from .sampling import sampling_from_probs as sampling_from_probs
from .sampling import softmax as softmax
from .sampling import top_k_mask_logits as top_k_mask_logits
from .sampling import top_k_renorm_probs as top_k_renorm_probs
from .sampling import top_k_sampling_from_probs as top_k_sampling_from_probs
from .sampling import top_k_top_p_sampling_from_logits as top_k_top_p_sampling_from_logits
from .sampling import top_k_top_p_sampling_from_probs as top_k_top_p_sampling_from_probs
from .sampling import top_p_renorm_probs as top_p_renorm_probs
from .sampling import top_p_sampling_from_probs as top_p_sampling_from_probs
from .tllm_enums import SfLayout as SfLayout
from .topk import TopKTieBreak as TopKTieBreak
from .topk import top_k as top_k
from .topk import top_k_page_table_transform as top_k_page_table_transform
from .topk import top_k_ragged_transform as top_k_ragged_transform
from .utils import next_positive_power_of_2 as next_positive_power_of_2

#: The release of FlashInfer whose interface this is.
__version__ = "0.7.4"

_complete(__name__)
#: Names that are not here are refused.
__getattr__ = _refusals("")


def __dir__() -> list[str]:
    return sorted({*globals(), *_public_names()[""]})
