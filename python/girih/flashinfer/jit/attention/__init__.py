"""gen_customize_*_module(): a variant declaration with its tensors and scalars as a module for the *_with_jit_module() functions.

The declaration is read at once, so that what it has beyond Girih is named here. See girih.flashinfer._jit_variant for what is read.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..._jit_variant import CustomModule, declared_types, hooks_of_declaration
from ..._problem import refuse
from ..._refused import refusals
from . import variants as variants

__all__ = [
    "gen_customize_batch_attention_module",
    "gen_customize_batch_decode_module",
    "gen_customize_batch_pod_module",
    "gen_customize_batch_prefill_module",
    "gen_customize_pod_module",
    "gen_customize_single_decode_module",
    "gen_customize_single_prefill_module",
    "variants",
]


def _module(
    function: str,
    uri: str,
    tensor_names: list[str],
    tensor_dtypes: list[str],
    scalar_names: list[str],
    scalar_dtypes: list[str],
    variant_name: str,
    variant_decl: str,
    pos_encoding_mode: int,
    declared: tuple[torch.dtype, torch.dtype, torch.dtype, int, int],
) -> CustomModule:
    if pos_encoding_mode != 0:
        refuse(
            function,
            f"pos_encoding_mode={pos_encoding_mode}",
            "let the variant apply it, or use a wrapper without jit_args",
        )
    hooks = hooks_of_declaration(
        tensor_names, tensor_dtypes, scalar_names, scalar_dtypes, variant_name, variant_decl, function
    )
    return CustomModule(uri, hooks._replace(declared=declared_types(*declared)))


def gen_customize_single_decode_module(
    uri: str,
    dtype_q: torch.dtype,
    dtype_kv: torch.dtype,
    dtype_o: torch.dtype,
    head_dim_qk: int,
    head_dim_vo: int,
    additional_tensor_names: list[str],
    additional_tensor_dtypes: list[str],
    additional_scalar_names: list[str],
    additional_scalar_dtypes: list[str],
    variant_name: str,
    variant_decl: str,
    pos_encoding_mode: int = 0,
    use_sliding_window: bool = False,
    use_logits_soft_cap: bool = False,
) -> CustomModule:
    """For single_decode_with_kv_cache_with_jit_module(). Tensors there must be of these dtypes and dims; use_* are hints."""
    return _module(
        "gen_customize_single_decode_module", uri, additional_tensor_names, additional_tensor_dtypes,
        additional_scalar_names, additional_scalar_dtypes, variant_name, variant_decl, pos_encoding_mode,
        (dtype_q, dtype_kv, dtype_o, head_dim_qk, head_dim_vo),
    )  # fmt: skip


def gen_customize_single_prefill_module(
    backend: str,
    uri: str,
    dtype_q: torch.dtype,
    dtype_kv: torch.dtype,
    dtype_o: torch.dtype,
    head_dim_qk: int,
    head_dim_vo: int,
    additional_tensor_names: list[str],
    additional_tensor_dtypes: list[str],
    additional_scalar_names: list[str],
    additional_scalar_dtypes: list[str],
    variant_name: str,
    variant_decl: str,
    pos_encoding_mode: int = 0,
    use_sliding_window: bool = False,
    use_logits_soft_cap: bool = False,
    use_fp16_qk_reduction: bool = False,
    fp8_enabled: bool = False,
    use_token_head_sf: bool = False,
) -> CustomModule:
    """For single_prefill_with_kv_cache_with_jit_module(). backend "fa2" or "fa3" says by which protocol the text is written."""
    _check_backend("gen_customize_single_prefill_module", backend, use_token_head_sf)
    return _module(
        "gen_customize_single_prefill_module", uri, additional_tensor_names, additional_tensor_dtypes,
        additional_scalar_names, additional_scalar_dtypes, variant_name, variant_decl, pos_encoding_mode,
        (dtype_q, dtype_kv, dtype_o, head_dim_qk, head_dim_vo),
    )  # fmt: skip


def _check_backend(function: str, backend: str, use_token_head_sf: bool) -> None:
    if backend not in ("fa2", "fa3"):
        raise ValueError(f"{function}: backend={backend!r}; must be 'fa2' or 'fa3'")
    if use_token_head_sf:
        refuse(function, "use_token_head_sf", "use a wrapper without jit_args")


def gen_customize_batch_decode_module(
    uri: str,
    dtype_q: torch.dtype,
    dtype_kv: torch.dtype,
    dtype_o: torch.dtype,
    idtype: torch.dtype,
    head_dim_qk: int,
    head_dim_vo: int,
    additional_tensor_names: list[str],
    additional_tensor_dtypes: list[str],
    additional_scalar_names: list[str],
    additional_scalar_dtypes: list[str],
    variant_name: str,
    variant_decl: str,
    pos_encoding_mode: int = 0,
    use_sliding_window: bool = False,
    use_logits_soft_cap: bool = False,
) -> CustomModule:
    """The variant of a batch decode, read and checked. The wrappers take it as jit_args."""
    return _module(
        "gen_customize_batch_decode_module", uri, additional_tensor_names, additional_tensor_dtypes,
        additional_scalar_names, additional_scalar_dtypes, variant_name, variant_decl, pos_encoding_mode,
        (dtype_q, dtype_kv, dtype_o, head_dim_qk, head_dim_vo),
    )  # fmt: skip


def gen_customize_batch_prefill_module(
    backend: str,
    uri: str,
    dtype_q: torch.dtype,
    dtype_kv: torch.dtype,
    dtype_o: torch.dtype,
    idtype: torch.dtype,
    head_dim_qk: int,
    head_dim_vo: int,
    additional_tensor_names: list[str],
    additional_tensor_dtypes: list[str],
    additional_scalar_names: list[str],
    additional_scalar_dtypes: list[str],
    variant_name: str,
    variant_decl: str,
    pos_encoding_mode: int = 0,
    use_sliding_window: bool = False,
    use_logits_soft_cap: bool = False,
    use_fp16_qk_reduction: bool = False,
    fp8_enabled: bool = False,
    use_token_head_sf: bool = False,
    paged_kv_stride_mode: str = "runtime",
    module_surface: str = "full",
    v_sf_swizzled: bool = False,
) -> CustomModule:
    """The variant of a batch prefill, read and checked. The wrappers take it as jit_args."""
    _check_backend("gen_customize_batch_prefill_module", backend, use_token_head_sf)
    if v_sf_swizzled:
        refuse("gen_customize_batch_prefill_module", "v_sf_swizzled", "store the scales of V in the plain order")
    return _module(
        "gen_customize_batch_prefill_module", uri, additional_tensor_names, additional_tensor_dtypes,
        additional_scalar_names, additional_scalar_dtypes, variant_name, variant_decl, pos_encoding_mode,
        (dtype_q, dtype_kv, dtype_o, head_dim_qk, head_dim_vo),
    )  # fmt: skip


def gen_customize_batch_attention_module(
    uri: str,
    dtype_q: torch.dtype,
    dtype_kv: torch.dtype,
    dtype_o: torch.dtype,
    idtype: torch.dtype,
    head_dim_qk: int,
    head_dim_vo: int,
    additional_tensor_names: list[str],
    additional_tensor_dtypes: list[str],
    additional_scalar_names: list[str],
    additional_scalar_dtypes: list[str],
    variant_name: str,
    variant_decl: str,
    pos_encoding_mode: int = 0,
    use_logits_soft_cap: bool = False,
    use_profiler: bool = False,
) -> CustomModule:
    """The variant of BatchAttention, read and checked; BatchPrefillWithPagedKVCacheWrapper takes it as jit_args."""
    if use_profiler:
        refuse("gen_customize_batch_attention_module", "use_profiler", "use a profiler of CUDA")
    return _module(
        "gen_customize_batch_attention_module", uri, additional_tensor_names, additional_tensor_dtypes,
        additional_scalar_names, additional_scalar_dtypes, variant_name, variant_decl, pos_encoding_mode,
        (dtype_q, dtype_kv, dtype_o, head_dim_qk, head_dim_vo),
    )  # fmt: skip


def gen_customize_pod_module(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused: the two halves of POD have variants of their own in a decode and a prefill wrapper."""
    refuse("gen_customize_pod_module", "a variant of POD", "use a decode and a prefill wrapper with jit_args")


def gen_customize_batch_pod_module(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused: as gen_customize_pod_module()."""
    refuse("gen_customize_batch_pod_module", "a variant of POD", "use two prefill wrappers with jit_args")


__getattr__ = refusals("jit.attention")
