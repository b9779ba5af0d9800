"""Girih's operators as PyTorch custom ops (namespace `girih::`), so that torch.compile(fullgraph=True) keeps them in
its graphs.

    from girih import torch_ops
    planned = torch_ops.Planned(girih.Attention(spec, limits))
    planned.plan(qo_indptr, [segment])                          # each step, outside of compiled code
    out = planned(q, k_pages, v_pages, kv_indices=pages)        # each layer, inside

An op is a function of its tensors: it allocates its results, says which arguments it changes, and is for inference (a
backward pass raises). A plan crosses into a graph as an integer that names it; the registry holds it weakly, so a graph
never keeps a plan alive, nor does a name ever come to mean another plan.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import girih

from ._torch_filters import chain_speculative_sample, top_k_mask_logits, top_k_renorm_probs, top_p_renorm_probs
from ._torch_op import inference_only, op
from ._torch_rows import (
    activate,
    add_rms_norm,
    dequantize,
    layer_norm,
    quantize,
    rms_norm,
    rope,
    sample,
    softmax,
    top_k,
)

__all__ = [
    "Planned",
    "activate",
    "add_rms_norm",
    "append",
    "append_at",
    "attention",
    "chain_speculative_sample",
    "dequantize",
    "layer_norm",
    "merge_state",
    "merge_states",
    "quantize",
    "rms_norm",
    "rope",
    "sample",
    "softmax",
    "top_k",
    "top_k_mask_logits",
    "top_k_renorm_probs",
    "top_p_renorm_probs",
]

# ------------------------------------------------------------------------------------------------------------ attention


def _attention_fake(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, causal: bool, window: Any, soft_cap: Any, sm_scale: Any
) -> tuple[Tensor, Tensor]:
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


def _store(k: Tensor, v: Tensor | None, **options: Any) -> girih.KvStore:
    """The store of caches, paged where they are 4-D."""
    make = girih.KvStore.paged if k.dim() == 4 else girih.KvStore.ragged
    return make(k, v, **options)


# It makes its plan from the lengths it sees, on the host: nothing that a CUDA graph could replay with others.
@op(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? sinks, bool causal, SymInt? window, float? soft_cap,"
    " float? sm_scale) -> (Tensor, Tensor)",
    _attention_fake,
    torch.Tag.cudagraph_unsafe,
)
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
    sm_scale: float | None,
) -> tuple[Tensor, Tensor]:
    q = q if q.stride(-1) == 1 else q.contiguous()
    result: tuple[Tensor, Tensor] = girih.attention(
        q, k, v, causal=causal, window=window, soft_cap=soft_cap, sinks=sinks, sm_scale=sm_scale, return_lse=True
    )
    return result


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    sm_scale: float | None = None,
    return_lse: bool = False,
) -> Any:
    """girih.attention as an op: out, or (out, lse f32 [..., num_qo_heads]) with return_lse.

    q: [tokens, num_qo_heads, dim] or [batch, tokens, num_qo_heads, dim]; k, v likewise with num_kv_heads.
    """
    out, lse = torch.ops.girih.attention(q, k, v, sinks, causal, window, soft_cap, sm_scale)
    return (out, lse) if return_lse else out


_handles = itertools.count(1)
_planned: weakref.WeakValueDictionary[int, Planned] = weakref.WeakValueDictionary()


class Planned:
    """A girih.Attention whose runs are ops.

    plan() is for the host, outside of compiled code; what is compiled once runs with the plan that is there at the
    time.
    The object must
    live as long as compiled code uses it, on CUDA as long as graphs that captured its runs.
    """

    handle: int
    """Names this object in graphs; never used again."""

    def __init__(self, attention: girih.Attention) -> None:
        spec = attention.spec
        self.attention = attention
        self.handle = next(_handles)
        self.head_dim_vo: int = spec.head_dim_vo or spec.head_dim_qk
        self.out_dtype: torch.dtype = _TORCH_DTYPES[str(spec.o_dtype)]
        self.returns_lse: bool = spec.lse != "none"
        self.num_segments = 1
        _planned[self.handle] = self

    def plan(self, qo_indptr: Any, segments: Any, **kwargs: Any) -> girih.PlanInfo:
        """girih.Attention.plan."""
        return self.attention.plan(qo_indptr, segments, **kwargs)

    def __call__(
        self,
        q: Tensor,
        k: Tensor | Sequence[Tensor],
        v: Tensor | Sequence[Tensor] | None = None,
        *,
        kv_indices: Tensor | Sequence[Tensor | None] | None = None,
        k_scale: Tensor | Sequence[Tensor] | None = None,
        v_scale: Tensor | Sequence[Tensor] | None = None,
        k_rope: Tensor | Sequence[Tensor] | None = None,
        q_rope: Tensor | None = None,
        layout: str = "NHD",
        params: dict[str, Tensor | float] | None = None,
    ) -> Any:
        """Attention of the planned batch: out [tokens, num_qo_heads, head_dim_vo], or (out, lse) where the spec asks
        for it.

        q: [tokens, num_qo_heads, head_dim].
        k, v: one tensor, or one per planned segment: 4-D paged (`layout` NHD: [pages, page_size, heads, dim], HND:
            [pages, heads,
            page_size, dim]) with kv_indices, the page table (i32); or 3-D ragged. v is None where the spec has v_is_k.
        k_scale, v_scale, k_rope: as girih.KvStore.paged takes them.
        params: run-time parameters of the variant: tensors, or numbers.
        """
        arrays = {name: value for name, value in (params or {}).items() if isinstance(value, Tensor)}
        numbers = {name: float(value) for name, value in (params or {}).items() if not isinstance(value, Tensor)}
        out, lse = torch.ops.girih.run(
            q,
            _listed(k),
            _listed(v),
            _listed(kv_indices),
            _listed(k_scale),
            _listed(v_scale),
            _listed(k_rope),
            q_rope,
            list(arrays.values()),
            ",".join(arrays),
            list(numbers.values()),
            ",".join(numbers),
            layout,
            self.handle,
            self.head_dim_vo,
            self.out_dtype,
            self.returns_lse,
        )
        return (out, lse) if self.returns_lse else out

    def append(
        self,
        k: Tensor,
        v: Tensor | None,
        k_cache: Tensor,
        v_cache: Tensor | None,
        *,
        kv_indices: Tensor | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        layout: str = "NHD",
        segment: int = 0,
    ) -> None:
        """girih.append_planned as an op: the planned query tokens' keys and values go to the ends of their lists.

        On CUDA, where a captured graph appends whatever is planned before a replay; on the CPU use torch_ops.append.
        """
        inference_only("append_planned", k, v, k_cache, v_cache)
        torch.ops.girih.append_planned(
            k, v, k_cache, v_cache, k_scale, v_scale, kv_indices, segment, layout, self.handle
        )


_TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return [value] if isinstance(value, Tensor) else list(value)


def _of_handle(name: str, handle: int) -> Planned:
    planned = _planned.get(handle)
    if planned is None:
        raise RuntimeError(
            f"girih::{name}: the torch_ops.Planned that this graph was made with (handle {handle}) is gone; keep it"
            " alive as long as the graph"
        )
    return planned


def _run_fake(
    q: Tensor,
    k: Sequence[Tensor],
    v: Sequence[Tensor],
    kv_indices: Sequence[Tensor | None],
    k_scale: Sequence[Tensor],
    v_scale: Sequence[Tensor],
    k_rope: Sequence[Tensor],
    q_rope: Tensor | None,
    arrays: Sequence[Tensor],
    array_names: str,
    numbers: Sequence[float],
    number_names: str,
    layout: str,
    handle: int,
    head_dim_vo: int,
    out_dtype: torch.dtype,
    lse: bool,
) -> tuple[Tensor, Tensor]:
    out = q.new_empty((q.shape[0], q.shape[1], head_dim_vo), dtype=out_dtype)
    return out, q.new_empty((q.shape[0], q.shape[1]) if lse else (0,), dtype=torch.float32)


@op(
    "run(Tensor q, Tensor[] k, Tensor[] v, Tensor?[] kv_indices, Tensor[] k_scale, Tensor[] v_scale, Tensor[] k_rope,"
    " Tensor? q_rope, Tensor[] arrays, str array_names, float[] numbers, str number_names, str layout, SymInt handle,"
    " SymInt head_dim_vo, ScalarType out_dtype, bool lse) -> (Tensor, Tensor)",
    _run_fake,
)
def _run(
    q: Tensor,
    k: Sequence[Tensor],
    v: Sequence[Tensor],
    kv_indices: Sequence[Tensor | None],
    k_scale: Sequence[Tensor],
    v_scale: Sequence[Tensor],
    k_rope: Sequence[Tensor],
    q_rope: Tensor | None,
    arrays: Sequence[Tensor],
    array_names: str,
    numbers: Sequence[float],
    number_names: str,
    layout: str,
    handle: int,
    head_dim_vo: int,
    out_dtype: torch.dtype,
    lse: bool,
) -> tuple[Tensor, Tensor]:
    planned = _of_handle("run", handle)

    def of(values: Sequence[Any], segment: int, name: str) -> Any:
        if values and len(values) != len(k):
            raise ValueError(f"{name}: {len(values)} given for {len(k)} segments")
        return values[segment] if values else None

    data = []
    for i, keys in enumerate(k):
        store = _store(
            keys,
            of(v, i, "v"),
            layout=layout,
            k_scale=of(k_scale, i, "k_scale"),
            v_scale=of(v_scale, i, "v_scale"),
            k_rope=of(k_rope, i, "k_rope"),
        )
        data.append(girih.SegmentData(store, of(kv_indices, i, "kv_indices")))
    params: dict[str, Any] = dict(zip(array_names.split(",") if arrays else (), arrays, strict=True))
    params |= dict(zip(number_names.split(",") if numbers else (), numbers, strict=True))
    result = planned.attention.run(
        q if q.stride(-1) == 1 else q.contiguous(), data, q_rope=q_rope, params=params or None
    )
    return result if lse else (result, q.new_empty(0, dtype=torch.float32))


def _merge_fake(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, base2: bool) -> tuple[Tensor, Tensor]:
    return v_a.new_empty(v_a.shape), s_a.new_empty(s_a.shape)


@op("merge_state(Tensor v_a, Tensor s_a, Tensor v_b, Tensor s_b, bool base2) -> (Tensor, Tensor)", _merge_fake)
def _merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, base2: bool) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = girih.merge_state(v_a, s_a, v_b, s_b, base2=base2)
    return result


def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, *, base2: bool = False) -> tuple[Tensor, Tensor]:
    """girih.merge_state as an op: the state (v, s) of both."""
    result: tuple[Tensor, Tensor] = torch.ops.girih.merge_state(v_a, s_a, v_b, s_b, base2)
    return result


@op(
    "merge_states(Tensor v, Tensor s, bool base2) -> (Tensor, Tensor)",
    lambda v, s, base2: (v.new_empty((v.shape[0], *v.shape[2:])), s.new_empty((s.shape[0], s.shape[2]))),
)
def _merge_states(v: Tensor, s: Tensor, base2: bool) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = girih.merge_states(v, s, base2=base2)
    return result


def merge_states(v: Tensor, s: Tensor, *, base2: bool = False) -> tuple[Tensor, Tensor]:
    """girih.merge_states as an op: v [rows, num_states, heads, dim], s f32 [rows, num_states, heads] -> the state of
    each row.
    """
    result: tuple[Tensor, Tensor] = torch.ops.girih.merge_states(v, s, base2)
    return result


# ------------------------------------------------------------------------------------------------------------- KV cache


@op(
    "append(Tensor k, Tensor? v, Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor(c!)? k_scale, Tensor(d!)? v_scale,"
    " Tensor append_indptr, Tensor kv_len, Tensor? kv_indices, Tensor? kv_indptr, SymInt table_stride,"
    " str layout) -> ()",
    lambda *_: None,
    torch.Tag.cudagraph_unsafe,
    mutates=("k_cache", "v_cache", "k_scale", "v_scale"),
)
def _append(
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    append_indptr: Tensor,
    kv_len: Tensor,
    kv_indices: Tensor | None,
    kv_indptr: Tensor | None,
    table_stride: int,
    layout: str,
) -> None:
    girih.append(
        _store(k_cache, v_cache, layout=layout, k_scale=k_scale, v_scale=v_scale),
        k,
        v,
        append_indptr=append_indptr,
        kv_len=kv_len,
        kv_indices=kv_indices,
        kv_indptr=kv_indptr,
        table_stride=table_stride,
    )


def append(
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    *,
    append_indptr: Tensor,
    kv_len: Tensor,
    kv_indices: Tensor | None = None,
    kv_indptr: Tensor | None = None,
    table_stride: int = 0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    layout: str = "NHD",
) -> None:
    """girih.append as an op, which changes k_cache and v_cache (and the scales that are computed). The index arrays lie
    on the host.

    k, v: [tokens, heads, dim]; caches: 4-D paged as `layout` says, or 3-D ragged.
    """
    inference_only("append", k, v, k_cache, v_cache)
    torch.ops.girih.append(
        k, v, k_cache, v_cache, k_scale, v_scale, append_indptr, kv_len, kv_indices, kv_indptr, table_stride, layout
    )


@op(
    "append_at(Tensor k, Tensor? v, Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor(c!)? k_scale, Tensor(d!)? v_scale,"
    " Tensor? slots, Tensor? batch_indices, Tensor? positions, Tensor? kv_indices, Tensor? kv_indptr, str layout) -> ()",
    lambda *_: None,
    mutates=("k_cache", "v_cache", "k_scale", "v_scale"),
)
def _append_at(
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    slots: Tensor | None,
    batch_indices: Tensor | None,
    positions: Tensor | None,
    kv_indices: Tensor | None,
    kv_indptr: Tensor | None,
    layout: str,
) -> None:
    girih.append_at(
        _store(k_cache, v_cache, layout=layout, k_scale=k_scale, v_scale=v_scale),
        k,
        v,
        slots=slots,
        batch_indices=batch_indices,
        positions=positions,
        kv_indices=kv_indices,
        kv_indptr=kv_indptr,
    )


def append_at(
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    *,
    slots: Tensor | None = None,
    batch_indices: Tensor | None = None,
    positions: Tensor | None = None,
    kv_indices: Tensor | None = None,
    kv_indptr: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    layout: str = "NHD",
) -> None:
    """girih.append_at as an op, which changes k_cache and v_cache: rows go where arrays beside the cache say, so that on
    CUDA nothing is read on the host and a graph may hold it.

    slots: [n], page id * page_size + place in the page; or batch_indices and positions [n] with the page table.
    """
    inference_only("append_at", k, v, k_cache, v_cache)
    torch.ops.girih.append_at(
        k, v, k_cache, v_cache, k_scale, v_scale, slots, batch_indices, positions, kv_indices, kv_indptr, layout
    )


@op(
    "append_planned(Tensor k, Tensor? v, Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor(c!)? k_scale,"
    " Tensor(d!)? v_scale, Tensor? kv_indices, SymInt segment, str layout, SymInt handle) -> ()",
    lambda *_: None,
    mutates=("k_cache", "v_cache", "k_scale", "v_scale"),
)
def _append_planned(
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    kv_indices: Tensor | None,
    segment: int,
    layout: str,
    handle: int,
) -> None:
    store = _store(k_cache, v_cache, layout=layout, k_scale=k_scale, v_scale=v_scale)
    girih.append_planned(
        _of_handle("append_planned", handle).attention, store, k, v, kv_indices=kv_indices, segment=segment
    )
