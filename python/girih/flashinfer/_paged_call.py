"""Paged attention in one call, by block tables and lengths: the functions that FlashInfer names after its backends.

They plan at every call, and a plan reads the lengths on the host: on a GPU each call waits for seq_lens, and none can be captured in a CUDA
graph. The wrappers, which plan once a step, are the form for both.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

import girih

from ._kv import Scales, is_quantised, paged_store, run_form
from ._planner import Batch, IndexArray, Limits, host_array, planner_of_thread
from ._problem import _FP8, Form, Problem, compute_query, refuse, torch_dtype
from ._wrapper import check_layout

__all__ = ["PagedCall", "form_of_call", "output_dtype", "paged_attention", "refuse_all"]


class PagedCall(NamedTuple):
    """One call's arguments, by the names they have in both functions."""

    function: str
    query: torch.Tensor
    kv_cache: Any
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    qo_indptr: IndexArray
    bmm1_scale: Any  #: all factors of the scores
    bmm2_scale: Any  #: all factors of the output
    window_left: int
    window_right: int
    kv_layout: str
    out: torch.Tensor | None = None
    out_dtype: Any = None
    sinks: Any = None
    lse: torch.Tensor | None = None
    return_lse: bool = False
    mask: torch.Tensor | None = None  #: of draft tokens: words of bits [rows, words], or [batch, q_len, words]


def refuse_all(function: str, instead: str, **values: Any) -> None:
    """Refuses the first argument that is given."""
    for name, value in values.items():
        if value is not None and value is not False:
            refuse(function, name, instead)


def _sinks(sinks: Any) -> torch.Tensor | None:
    if isinstance(sinks, (list, tuple)):
        if len(sinks) != 1:
            raise ValueError(f"sinks is a list of {len(sinks)} tensors; must be one tensor [num_qo_heads]")
        sinks = sinks[0]
    if sinks is None:
        return None
    tensor: torch.Tensor = sinks
    return tensor.reshape(-1)


def output_dtype(function: str, query: torch.Tensor, out: Any, dtype: Any) -> torch.dtype:
    """Of a call's output: `out`'s, `dtype`, or the query's."""
    if out is not None:
        if not isinstance(out, torch.Tensor):
            refuse(function, "out of a 4-bit type", "quantise the output afterwards")
        return out.dtype
    if dtype is not None:
        if dtype == "nvfp4":
            refuse(function, "out_dtype='nvfp4'", "quantise the output afterwards")
        return torch_dtype(dtype)
    return torch.bfloat16 if query.dtype in _FP8 else query.dtype


def paged_attention(call: PagedCall) -> Any:
    """out [rows, num_qo_heads, head_dim], or (out, lse f32 [rows, num_qo_heads], base 2)."""
    check_layout(call.kv_layout)
    q, cache = call.query, call.kv_cache
    if isinstance(cache, torch.Tensor):
        if cache.dim() != 5 or cache.shape[1] not in (1, 2):
            raise ValueError(
                f"{call.function}: kv_cache has shape {tuple(cache.shape)}; must be 5-D with 1 or 2 in its second extent"
            )
        cache = (cache[:, 0], cache[:, cache.shape[1] - 1])
    k, v = cache
    if k.dtype == torch.uint8:
        refuse(call.function, "a 4-bit KV cache", "use a decode or prefill wrapper with kv_cache_sf")
    token = 1 if call.kv_layout == "NHD" else 2
    tensor_scale = isinstance(call.bmm1_scale, torch.Tensor)
    problem = Problem(
        q.shape[1],
        k.shape[3 - token],
        q.shape[2],
        v.shape[3],
        q.dtype,
        k.dtype,
        output_dtype(call.function, q, call.out, call.out_dtype),
        mask="band" if call.mask is None else "draft",
        window_left=call.window_left,
        window_right=call.window_right if call.mask is None else -1,
        sm_scale=1.0 if tensor_scale else float(call.bmm1_scale),
    )
    kv_len = host_array(call.seq_lens.reshape(-1))
    rows = call.qo_indptr
    need = Limits(
        int(rows[-1]),
        len(kv_len),
        int(kv_len.max()) if len(kv_len) else 0,
        int((rows[1:] - rows[:-1]).max()) if len(kv_len) else 0,
    )
    tables = call.block_tables
    if tables.dim() != 2 or tables.shape[0] != len(kv_len):
        raise ValueError(
            f"{call.function}: block_tables has shape {tuple(tables.shape)}; must be [batch={len(kv_len)}, max_num_pages]"
        )
    planner = planner_of_thread(q.device, call.function)
    segment = girih.Segment(table_stride=tables.shape[1], kv_len=kv_len, page_size=k.shape[token])
    planner.plan(problem, Batch(rows, (segment,), need))
    kind = "base2" if call.return_lse or call.lse is not None else "none"
    form, stored, params = form_of_call(
        problem, kind, call.bmm1_scale, call.bmm2_scale, call.sinks, q.device, call.kv_layout
    )
    if call.mask is not None:
        params = {**(params or {}), **_draft_params(call.function, call.mask, need.tokens, need.qo_len)}
    store = paged_store((k, v), call.kv_layout, problem, stored)
    query = compute_query(q, problem.o_dtype)
    indices = tables.reshape(-1)
    if indices.dtype != torch.int32:
        indices = indices.to(torch.int32)
    wants_lse = form.lse != "none"
    lse = call.lse if wants_lse else None
    result = planner.ready(form).run(
        query, store, kv_indices=indices.contiguous(), out=call.out, lse=lse, params=params
    )
    return result if call.return_lse or not wants_lse else result[0]


def _draft_params(function: str, mask: torch.Tensor, rows: int, q_len: int) -> dict[str, Any]:
    row_bits = mask.shape[-1] * mask.element_size() * 8
    if (
        mask.dtype.is_floating_point
        or mask.dtype == torch.bool
        or mask.numel() // mask.shape[-1] != rows
        or row_bits < q_len
    ):
        raise ValueError(
            f"{function}: mask is {mask.dtype} {tuple(mask.shape)}; must be words of bits, at least {q_len} for each of {rows} rows"
        )
    return {"draft_mask": mask.contiguous().view(torch.uint8).reshape(-1), "draft_row_bits": row_bits}


def form_of_call(
    problem: Problem, lse: str, bmm1_scale: Any, bmm2_scale: Any, sinks: Any, device: torch.device, layout: str
) -> tuple[Form, Any, dict[str, Any] | None]:
    """run_form() of the two factors; a number for the scores is the problem's sm_scale."""
    q_factor = bmm1_scale if isinstance(bmm1_scale, torch.Tensor) else None
    v_factor = bmm2_scale
    if isinstance(v_factor, (int, float)) and v_factor == 1.0:
        v_factor = None
    if isinstance(v_factor, torch.Tensor) and is_quantised(problem.kv_dtype):
        v_factor = v_factor.float()
    return run_form(problem, lse, Scales(q_factor, None, v_factor, None), _sinks(sinks), device, layout)


def rows_of(
    function: str, query: torch.Tensor, num_requests: int, q_len: int | None, cum_seq_lens_q: torch.Tensor | None
) -> IndexArray:
    """Query rows of each request: uniform, or as given."""
    if cum_seq_lens_q is not None:
        return host_array(cum_seq_lens_q)
    length = q_len if q_len is not None else query.shape[0] // max(1, num_requests)
    if length * num_requests != query.shape[0]:
        raise ValueError(
            f"{function}: query has {query.shape[0]} rows; must have {num_requests} requests x q_len_per_req={length}"
        )
    return np.arange(num_requests + 1, dtype=np.int64) * length


def scale_of_log2(scale: torch.Tensor) -> torch.Tensor:
    """A scale of scores in base 2 as one in natural units."""
    return scale.reshape(1).float() * math.log(2)


__all__ += ["rows_of", "scale_of_log2"]
