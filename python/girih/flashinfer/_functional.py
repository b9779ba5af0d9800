"""Attention of one request without a wrapper: the single_* functions. Schedules and the last plan are kept per thread and device."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

import girih

from ._kv import NO_SCALES, Scales, is_quantised, ragged_store, run_form
from ._masks import packed_mask
from ._planner import Batch, Limits, Planner, planner_of_thread
from ._problem import _FP8, Hooks, Problem, compute_query, refuse
from ._wrapper import check_layout

__all__ = ["single_attention"]


def single_attention(
    function: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    kv_layout: str,
    window_left: int = -1,
    causal: bool = False,
    custom_mask: torch.Tensor | None = None,
    packed_custom_mask: torch.Tensor | None = None,
    pos_encoding_mode: str = "NONE",
    soft_cap: float | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    o_dtype: torch.dtype | None = None,
    scales: tuple[Any, Any, Any, Any] = (None, None, None, None),
    return_lse: bool = False,
    jit: tuple[Any, tuple[Any, ...]] | None = None,
    planner: Planner | None = None,
) -> Any:
    """q [qo_len, num_qo_heads, head_dim_qk] over one contiguous cache."""
    check_layout(kv_layout)
    if q.dim() != 3 or k.dim() != 3 or v.dim() != 3:
        raise ValueError(
            f"{function}: q, k and v have {q.dim()}, {k.dim()} and {v.dim()} dims; must have 3 (q of a decode 2)"
        )
    token = 0 if kv_layout == "NHD" else 1
    qo_len, kv_len = q.shape[0], k.shape[token]
    hooks: Hooks | None = None
    params: dict[str, Any] = {}
    sinks: torch.Tensor | None = None
    if jit is not None:
        from ._jit_variant import hooks_of_module, run_arguments

        hooks = hooks_of_module(jit[0], function)
        params, sinks = run_arguments(hooks, jit[1], function)
    if o_dtype is None:
        o_dtype = q.dtype if q.dtype not in _FP8 else torch.bfloat16
    mask: Literal["band", "custom"] = "band"
    if custom_mask is not None or packed_custom_mask is not None:
        mask = "custom"
        params["custom_mask"], params["custom_mask_start"] = _bits(
            custom_mask, packed_custom_mask, qo_len, kv_len, q.device
        )
    packed = 2 if k.dtype == torch.uint8 else 1
    problem = Problem(
        q.shape[1],
        k.shape[1 - token],
        q.shape[2],
        v.shape[2] * packed,
        q.dtype,
        k.dtype,
        o_dtype,
        mask,
        window_left,
        0 if causal and mask == "band" else -1,
        0.0 if soft_cap is None else soft_cap,
        sm_scale,
        pos_encoding_mode,
        rope_scale,
        rope_theta,
        hooks=hooks,
    )
    if planner is None:
        planner = planner_of_thread(q.device, "single")
    need = Limits(qo_len, 1, kv_len, qo_len)
    if planner.problem != problem or planner.batch is None or planner.batch.need != need:
        segment = girih.Segment(kv_indptr=np.array([0, kv_len], np.int64), page_size=0)
        planner.plan(problem, Batch(np.array([0, qo_len], np.int64), (segment,), need))
    if scales[3] is not None and not is_quantised(k.dtype):
        refuse(function, f"kv_cache_sf with a cache of {k.dtype}", "quantise the cache or leave it out")
    given = NO_SCALES if scales == (None, None, None, None) else Scales(*scales)
    form, stored, run_params = run_form(
        problem, "base2" if return_lse else "none", given, sinks, q.device, kv_layout, False
    )
    if run_params:
        params.update(run_params)
    query = compute_query(q, o_dtype)
    store = ragged_store(k, v, kv_layout, problem, stored)
    return planner.ready(form).run(query, store, params=params or None)


def _bits(
    mask: torch.Tensor | None, packed: torch.Tensor | None, qo_len: int, kv_len: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    if packed is None:
        assert mask is not None
        if mask.numel() != qo_len * kv_len:
            raise ValueError(f"custom_mask has {mask.numel()} entries; must have qo_len={qo_len} x kv_len={kv_len}")
        packed = packed_mask(mask)
    if packed.numel() * 8 < qo_len * kv_len:
        raise ValueError(
            f"packed_custom_mask has {packed.numel()} bytes; must have one bit for each of {qo_len} x {kv_len}"
        )
    return packed, torch.zeros(1, dtype=torch.int64, device=device)
