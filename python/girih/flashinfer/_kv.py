"""Caches and scales of FlashInfer's calls as Girih's stores, run-time parameters and forms.

FlashInfer has three ways to give scales: floats and tensors k_scale, v_scale, q_scale; three positional tensors with FP8 queries; and
kv_cache_sf, scales stored beside the cache. Quantised caches take theirs in the store, where dequantising costs nothing more; on 16-bit
caches they become factors of the scores and of the output.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

import girih

from ._problem import _FP8, BASE2_LSE, NO_LSE, Form, Problem, alibi_slopes, refuse

__all__ = ["Scales", "check_sinks", "expand_paged", "paged_store", "ragged_store", "run_form"]

Scale = float | torch.Tensor | None


class Scales(NamedTuple):
    """What run() got as scales."""

    q: Scale = None
    k: Scale = None
    v: Scale = None
    stored: Any = None  #: kv_cache_sf


NO_SCALES = Scales()


class StoreScales(NamedTuple):
    """What goes into a store."""

    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    k_global: float = 1.0
    v_global: float = 1.0


NO_STORE_SCALES = StoreScales()


@functools.lru_cache(maxsize=16)
def _one(device: torch.device) -> torch.Tensor:
    return torch.ones(1, dtype=torch.float32, device=device)


def expand_paged(cache: torch.Tensor, layout: str, full: int) -> torch.Tensor:
    """A cache with pages of one token may leave that extent out."""
    if cache.dim() == full:
        return cache
    if cache.dim() == full - 1:
        return cache.unsqueeze(-3 if layout == "NHD" else -2)
    raise ValueError(f"paged_kv_cache has {cache.dim()} dims; must have {full}, or {full - 1} with one token a page")


def paged_store(cache: Any, layout: str, problem: Problem, scales: StoreScales = NO_STORE_SCALES) -> Any:
    """The store of a 5-D tensor or a pair of 4-D tensors."""
    if isinstance(cache, (tuple, list)):
        k, v = cache
        k, v = expand_paged(k, layout, 4), expand_paged(v, layout, 4)
    else:
        cache = expand_paged(cache, layout, 5)
        if scales is NO_STORE_SCALES and problem.kv_dtype != torch.uint8:
            return girih.KvStore.paged_combined(cache, layout=layout)
        k, v = cache.unbind(1)
    if scales is NO_STORE_SCALES:
        return girih.KvStore.paged(k, v, layout=layout)
    return girih.KvStore.paged(k, v, layout=layout, **_scale_arguments(problem, scales))


def ragged_store(
    k: torch.Tensor, v: torch.Tensor, layout: str, problem: Problem, scales: StoreScales = NO_STORE_SCALES
) -> Any:
    """The store of K and V [tokens, heads, dim] (NHD) or [heads, tokens, dim] (HND)."""
    if scales is NO_STORE_SCALES:
        return girih.KvStore.ragged(k, v, layout=layout)
    return girih.KvStore.ragged(k, v, layout=layout, **_scale_arguments(problem, scales))


def _scale_arguments(problem: Problem, scales: StoreScales) -> dict[str, Any]:
    dtype = "nvfp4" if problem.kv_dtype == torch.uint8 else None
    return {
        "k_dtype": dtype,
        "v_dtype": dtype,
        "k_scale": scales.k_scale,
        "v_scale": scales.v_scale,
        "k_global_scale": scales.k_global,
        "v_global_scale": scales.v_global,
    }


def is_quantised(dtype: torch.dtype) -> bool:
    return dtype in _FP8 or dtype == torch.uint8 or dtype == torch.int8


def _array_factor(
    name: str, value: torch.Tensor, heads: int, head_kind: str, params: dict[str, Any]
) -> tuple[str, str]:
    value = value.reshape(-1)
    if value.dtype != torch.float32:
        value = value.float()
    if value.numel() not in (1, heads):
        raise ValueError(f"{name} has {value.numel()} entries; must have 1 or {heads} (heads)")
    params[name] = value
    return name, "one" if value.numel() == 1 else head_kind


def _stored_scale(value: Scale, heads: int, device: torch.device, name: str) -> tuple[str, torch.Tensor, float]:
    """Granularity, array and number of a one-byte cache's scale."""
    if not isinstance(value, torch.Tensor):
        return "tensor", _one(device), 1.0 if value is None else float(value)
    array = value.reshape(-1)
    if array.dtype != torch.float32:
        array = array.float()
    if array.numel() == 1:
        return "tensor", array.to(device), 1.0
    if array.numel() != heads:
        raise ValueError(f"{name} has {array.numel()} entries; must have 1 or {heads} (KV heads)")
    return "head", array, 1.0


def _granularity_beside(
    problem: Problem, stored: Any, layout: str, paged: bool
) -> tuple[str, torch.Tensor, torch.Tensor]:
    """kv_cache_sf: blocks of a 4-bit cache, or one scale per token and head of a one-byte cache."""
    if problem.kv_dtype == torch.uint8:
        if stored is None:
            raise ValueError("kv_cache_sf must be provided for a 4-bit KV cache")
        if not paged:
            return "block", stored[0], stored[1]
        if isinstance(stored, (tuple, list)):
            k, v = stored
            return "block", expand_paged(k, layout, 4), expand_paged(v, layout, 4)
        k, v = expand_paged(stored, layout, 5).unbind(1)
        return "block", k, v
    if not isinstance(stored, (tuple, list)) or len(stored) != 2:
        raise ValueError(
            "kv_cache_sf of an FP8 cache must be a pair (k_sf, v_sf) of float32 tensors, one scale per token and head"
        )
    return "token_head", stored[0], stored[1]


def check_sinks(sinks: torch.Tensor, num_qo_heads: int) -> None:
    """A head beyond the array would have a sink of 0."""
    if tuple(sinks.shape) != (num_qo_heads,):
        raise ValueError(f"sinks has shape {tuple(sinks.shape)}; must be [num_qo_heads={num_qo_heads}]")


def run_form(
    problem: Problem,
    lse: str,
    scales: Scales,
    sinks: torch.Tensor | None,
    device: torch.device,
    layout: str = "NHD",
    paged: bool = True,
) -> tuple[Form, StoreScales, dict[str, Any] | None]:
    """The form of a run, the scales of its store and its run-time parameters."""
    if (
        scales is NO_SCALES
        and sinks is None
        and not is_quantised(problem.kv_dtype)
        and problem.pos_encoding_mode != "ALIBI"
    ):
        return (NO_LSE if lse == "none" else BASE2_LSE if lse == "base2" else Form("natural")), NO_STORE_SCALES, None
    params: dict[str, Any] = {}
    score: list[tuple[str, str]] = []
    output: list[tuple[str, str]] = []
    stored = NO_STORE_SCALES
    k_gran = v_gran = "none"
    q_number = 1.0
    if isinstance(scales.q, torch.Tensor):
        score.append(_array_factor("q_scale", scales.q, problem.num_qo_heads, "q_head", params))
    elif scales.q is not None:
        q_number = float(scales.q)
    if not is_quantised(problem.kv_dtype):
        if scales.stored is not None:
            refuse(
                "run", f"kv_cache_sf with a cache of {problem.kv_dtype}", "plan() with the dtype of the quantised cache"
            )
        if isinstance(scales.k, torch.Tensor):
            score.append(_array_factor("k_scale", scales.k, problem.num_kv_heads, "kv_head", params))
        elif scales.k is not None:
            q_number *= float(scales.k)
        if isinstance(scales.v, torch.Tensor):
            output.append(_array_factor("v_scale", scales.v, problem.num_kv_heads, "kv_head", params))
        elif scales.v is not None and float(scales.v) != 1.0:
            output.append(("v_scale", "number"))
            params["v_scale"] = float(scales.v)
    elif problem.kv_dtype == torch.uint8 or scales.stored is not None:
        k_gran, k_array, v_array = _granularity_beside(problem, scales.stored, layout, paged)
        v_gran = k_gran
        k_number = v_number = 1.0
        if isinstance(scales.k, torch.Tensor):
            score.append(_array_factor("k_scale", scales.k, problem.num_kv_heads, "kv_head", params))
        elif scales.k is not None:
            k_number = float(scales.k)
        if isinstance(scales.v, torch.Tensor):
            output.append(_array_factor("v_scale", scales.v, problem.num_kv_heads, "kv_head", params))
        elif scales.v is not None:
            v_number = float(scales.v)
        stored = StoreScales(k_array, v_array, k_number, v_number)
    else:
        k_gran, k_array, k_number = _stored_scale(scales.k, problem.num_kv_heads, device, "k_scale")
        v_gran, v_array, v_number = _stored_scale(scales.v, problem.num_kv_heads, device, "v_scale")
        stored = StoreScales(k_array, v_array, k_number * q_number, v_number)
        q_number = 1.0
    if q_number != 1.0:
        score.append(("score_scale", "number"))
        params["score_scale"] = q_number
    if sinks is not None:
        check_sinks(sinks, problem.num_qo_heads)
        params["sinks"] = sinks if sinks.dtype == torch.float32 else sinks.float()
    if problem.pos_encoding_mode == "ALIBI":
        params["alibi_slopes"] = alibi_slopes(problem.num_qo_heads, device)
    form = Form(lse, sinks is not None, k_gran, v_gran, tuple(score), tuple(output))  # type: ignore[arg-type]
    return form, stored, params or None
