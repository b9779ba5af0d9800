"""Girih's operators as PyTorch custom ops (namespace `girih::`), so that torch.compile(fullgraph=True) keeps them in its graphs.

    from girih import torch_ops
    planned = torch_ops.Planned(girih.Attention(spec, limits))
    planned.plan(qo_indptr, [segment])                          # each step, outside of compiled code
    out = planned(q, k_pages, v_pages, kv_indices=pages)        # each layer, inside

An op is a function of its tensors: it allocates its results, says which arguments it changes, and is for inference (a backward pass raises).
A plan crosses into a graph as an integer that names it; the registry holds it weakly, so a graph never keeps a plan alive, nor does a name
ever come to mean another plan.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

import girih

__all__ = [
    "Planned",
    "activate",
    "add_rms_norm",
    "append",
    "attention",
    "dequantize",
    "layer_norm",
    "merge_state",
    "quantize",
    "rms_norm",
    "rope",
    "sample",
    "softmax",
    "top_k",
]

_F = TypeVar("_F", bound=Callable[..., Any])


def _op(schema: str, fake: Callable[..., Any] | None, *tags: torch.Tag, mutates: Sequence[str] = ()) -> Callable[[_F], _F]:
    """Registers a function as girih::<its schema's name>, with a backward pass that refuses."""

    def register(function: _F) -> _F:
        name, arguments = schema.split("(", 1)
        op = torch.library.custom_op(
            f"girih::{name}", function, mutates_args=tuple(mutates), schema=f"({arguments}", tags=tags or None
        )
        if fake is not None:
            op.register_fake(fake)
        if not mutates:

            def backward(ctx: Any, *grads: Any) -> Any:
                raise RuntimeError(f"girih::{name} is for inference and has no backward pass; run it under torch.no_grad()")

            op.register_autograd(backward)
        return function

    return register


def _inference_only(name: str, *tensors: Tensor | None) -> None:
    """What an op writes into its arguments has no place in a gradient's history: said before it is written."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                raise RuntimeError(f"girih::{name} is for inference and has no backward pass; run it under torch.no_grad()")


# ------------------------------------------------------------------------------------------------------------- attention


def _attention_fake(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, causal: bool, window: Any, soft_cap: Any, sm_scale: Any
) -> tuple[Tensor, Tensor]:
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


# It makes its plan from the lengths it sees, on the host: nothing that a CUDA graph could replay with others.
@_op(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? sinks, bool causal, SymInt? window, float? soft_cap, float? sm_scale)"
    " -> (Tensor, Tensor)",
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

    plan() is for the host, outside of compiled code; what is compiled once runs with the plan that is there at the time. The object must
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
        """Attention of the planned batch: out [tokens, num_qo_heads, head_dim_vo], or (out, lse) where the spec asks for it.

        q: [tokens, num_qo_heads, head_dim].
        k, v: one tensor, or one per planned segment: 4-D paged (`layout` NHD: [pages, page_size, heads, dim], HND: [pages, heads,
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


_TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return [value] if isinstance(value, Tensor) else list(value)


def _of_handle(handle: int) -> Planned:
    planned = _planned.get(handle)
    if planned is None:
        raise RuntimeError(
            f"girih::run: the torch_ops.Planned that this graph was made with (handle {handle}) is gone; keep it alive as long as the graph"
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


@_op(
    "run(Tensor q, Tensor[] k, Tensor[] v, Tensor?[] kv_indices, Tensor[] k_scale, Tensor[] v_scale, Tensor[] k_rope, Tensor? q_rope,"
    " Tensor[] arrays, str array_names, float[] numbers, str number_names, str layout, SymInt handle, SymInt head_dim_vo,"
    " ScalarType out_dtype, bool lse) -> (Tensor, Tensor)",
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
    planned = _of_handle(handle)

    def of(values: Sequence[Any], segment: int, name: str) -> Any:
        if values and len(values) != len(k):
            raise ValueError(f"{name}: {len(values)} given for {len(k)} segments")
        return values[segment] if values else None

    data = []
    for i, keys in enumerate(k):
        make = girih.KvStore.paged if keys.dim() == 4 else girih.KvStore.ragged
        store = make(
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


@_op("merge_state(Tensor v_a, Tensor s_a, Tensor v_b, Tensor s_b, bool base2) -> (Tensor, Tensor)", _merge_fake)
def _merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, base2: bool) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = girih.merge_state(v_a, s_a, v_b, s_b, base2=base2)
    return result


def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor, *, base2: bool = False) -> tuple[Tensor, Tensor]:
    """girih.merge_state as an op: the state (v, s) of both."""
    result: tuple[Tensor, Tensor] = torch.ops.girih.merge_state(v_a, s_a, v_b, s_b, base2)
    return result


# ------------------------------------------------------------------------------------------------------------- KV cache


@_op(
    "append(Tensor k, Tensor? v, Tensor(a!) k_cache, Tensor(b!)? v_cache, Tensor(c!)? k_scale, Tensor(d!)? v_scale, Tensor append_indptr,"
    " Tensor kv_len, Tensor? kv_indices, Tensor? kv_indptr, SymInt table_stride, str layout) -> ()",
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
    make = girih.KvStore.paged if k_cache.dim() == 4 else girih.KvStore.ragged
    girih.append(
        make(k_cache, v_cache, layout=layout, k_scale=k_scale, v_scale=v_scale),
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
    """girih.append as an op, which changes k_cache and v_cache (and the scales that are computed). The index arrays lie on the host.

    k, v: [tokens, heads, dim]; caches: 4-D paged as `layout` says, or 3-D ragged.
    """
    _inference_only("append", k, v, k_cache, v_cache)
    torch.ops.girih.append(
        k, v, k_cache, v_cache, k_scale, v_scale, append_indptr, kv_len, kv_indices, kv_indptr, table_stride, layout
    )


# ------------------------------------------------------------------------------------------------------------- rows


@_op(
    "rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset) -> Tensor",
    lambda x, weight, eps, weight_offset: x.new_empty(x.shape),
)
def _rms_norm(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float) -> Tensor:
    rows = _rows(x)
    result: Tensor = girih.rms_norm(rows, weight, out=rows.new_empty(rows.shape), eps=eps, weight_offset=weight_offset)
    return result.view(x.shape)


def _rows(x: Tensor) -> Tensor:
    """[..., dim] as [rows, dim]; 2-D and 3-D tensors as they are, for those have a meaning of their own."""
    return x if x.dim() in (2, 3) else x.reshape(-1, x.shape[-1])


def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6, weight_offset: float = 0.0) -> Tensor:
    """girih.rms_norm as an op, over the last dimension of x [..., dim]. weight: [dim], or [heads, dim] for x [rows, heads, dim]."""
    result: Tensor = torch.ops.girih.rms_norm(x, weight, eps, weight_offset)
    return result


@_op(
    "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float weight_offset) -> (Tensor, Tensor)",
    lambda x, residual, weight, eps, weight_offset: (x.new_empty(x.shape), x.new_empty(x.shape)),
)
def _add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float
) -> tuple[Tensor, Tensor]:
    rows = _rows(x)
    out, total = rows.new_empty(rows.shape), rows.new_empty(rows.shape)
    girih.rms_norm(
        rows, weight, residual=_rows(residual), residual_out=total, out=out, eps=eps, weight_offset=weight_offset
    )
    return out.view(x.shape), total.view(x.shape)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6, weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual) in one pass over memory; the norm is that of the sum before rounding."""
    result: tuple[Tensor, Tensor] = torch.ops.girih.add_rms_norm(x, residual, weight, eps, weight_offset)
    return result


@_op(
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor",
    lambda x, weight, bias, eps: x.new_empty(x.shape),
)
def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    rows = _rows(x)
    result: Tensor = girih.layer_norm(rows, weight, bias, out=rows.new_empty(rows.shape), eps=eps)
    return result.view(x.shape)


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-6) -> Tensor:
    """girih.layer_norm as an op, over the last dimension of x [..., dim]."""
    result: Tensor = torch.ops.girih.layer_norm(x, weight, bias, eps)
    return result


@_op(
    "activate(Tensor x, str activation, Tensor? up, bool interleaved, float alpha, float limit) -> Tensor",
    lambda x, activation, up, interleaved, alpha, limit: x.new_empty(
        x.shape if up is not None else (*x.shape[:-1], x.shape[-1] // 2)
    ),
)
def _activate(x: Tensor, activation: Any, up: Tensor | None, interleaved: bool, alpha: float, limit: float) -> Tensor:
    shape = x.shape if up is not None else (*x.shape[:-1], x.shape[-1] // 2)
    result: Tensor = girih.activate(
        x.reshape(-1, x.shape[-1]),
        activation,
        up=None if up is None else up.reshape(-1, up.shape[-1]),
        interleaved=interleaved,
        alpha=alpha,
        limit=limit,
    )
    return result.view(shape)


def activate(
    x: Tensor,
    activation: str = "silu",
    *,
    up: Tensor | None = None,
    interleaved: bool = False,
    alpha: float = 1.702,
    limit: float = 7.0,
) -> Tensor:
    """girih.activate as an op: act(gate) * up of x [..., 2 * dim] (gates, then ups), or of gates x and `up` [..., dim]."""
    result: Tensor = torch.ops.girih.activate(x, activation, up, interleaved, alpha, limit)
    return result


@_op(
    "rope(Tensor q, Tensor k, Tensor cos_sin, Tensor positions, SymInt rotary_begin, bool interleaved, Tensor? q_weight, Tensor? k_weight,"
    " float eps, float weight_offset) -> (Tensor, Tensor)",
    lambda q, k, *_: (q.new_empty(q.shape), k.new_empty(k.shape)),
)
def _rope(
    q: Tensor,
    k: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    rotary_begin: int,
    interleaved: bool,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    weight_offset: float,
) -> tuple[Tensor, Tensor]:
    q_out, k_out = q.new_empty(q.shape), k.new_empty(k.shape)
    girih.rope(
        q,
        k,
        cos_sin,
        positions=positions,
        rotary_begin=rotary_begin,
        interleaved=interleaved,
        q_out=q_out,
        k_out=k_out,
        q_weight=q_weight,
        k_weight=k_weight,
        eps=eps,
        weight_offset=weight_offset,
    )
    return q_out, k_out


def rope(
    q: Tensor,
    k: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    *,
    rotary_begin: int = 0,
    interleaved: bool = False,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """girih.rope as an op: rotated copies of q and k [tokens, heads, dim], with QK-norm before where weights are given.

    cos_sin: f32 [positions, rotary_dim] as girih.rope_cos_sin makes it; positions: i32 or i64 [tokens].
    """
    result: tuple[Tensor, Tensor] = torch.ops.girih.rope(
        q, k, cos_sin, positions, rotary_begin, interleaved, q_weight, k_weight, eps, weight_offset
    )
    return result


# ------------------------------------------------------------------------------------------------------------- sampling


@_op(
    "sample(Tensor logits, Tensor temperature, Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor seed, Tensor offset) -> Tensor",
    lambda logits, *_: logits.new_empty((logits.shape[0],), dtype=torch.int32),
)
def _sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seed: Tensor,
    offset: Tensor,
) -> Tensor:
    result: Tensor = girih.sample(
        logits,
        temperature=temperature,
        top_k=0 if top_k is None else top_k,
        top_p=1.0 if top_p is None else top_p,
        min_p=0.0 if min_p is None else min_p,
        seed=seed,
        offset=offset,
    ).tokens
    return result


def sample(
    logits: Tensor,
    *,
    seed: Tensor | int,
    offset: Tensor | int,
    temperature: Tensor | float = 1.0,
    top_k: Tensor | int = 0,
    top_p: Tensor | float = 1.0,
    min_p: Tensor | float = 0.0,
) -> Tensor:
    """girih.sample as an op: one token a row, i32 [rows]. The same seed and offset draw the same: let the offset grow from step to step.

    Each parameter is a number, or a tensor [rows] (f32; top_k i32); seed i64 [1] or [rows], offset i64 [1].
    """
    rows, device = logits.shape[0], logits.device

    def row_values(value: Tensor | float, dtype: torch.dtype, off: float | None) -> Tensor | None:
        if isinstance(value, Tensor):
            return value
        return None if value == off else torch.full((rows,), value, dtype=dtype, device=device)

    def number(value: Tensor | int) -> Tensor:
        return value if isinstance(value, Tensor) else torch.full((1,), value, dtype=torch.int64, device=device)

    result: Tensor = torch.ops.girih.sample(
        logits,
        row_values(temperature, torch.float32, None),
        row_values(top_k, torch.int32, 0),
        row_values(top_p, torch.float32, 1.0),
        row_values(min_p, torch.float32, 0.0),
        number(seed),
        number(offset),
    )
    return result


@_op(
    "softmax(Tensor logits, float temperature) -> Tensor",
    lambda logits, temperature: logits.new_empty(logits.shape, dtype=torch.float32),
)
def _softmax(logits: Tensor, temperature: float) -> Tensor:
    result: Tensor = girih.softmax(logits, temperature)
    return result


def softmax(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """girih.softmax as an op: f32 [rows, vocab]."""
    result: Tensor = torch.ops.girih.softmax(logits, temperature)
    return result


@_op(
    "top_k(Tensor input, SymInt k, bool sorted) -> (Tensor, Tensor)",
    lambda input, k, sorted: (
        input.new_empty((input.shape[0], k)),
        input.new_empty((input.shape[0], k), dtype=torch.int32),
    ),
)
def _top_k(input: Tensor, k: int, sorted: bool) -> tuple[Tensor, Tensor]:
    result = girih.top_k(input, k, sorted=sorted)
    return result.values, result.indices


def top_k(input: Tensor, k: int, *, sorted: bool = False) -> tuple[Tensor, Tensor]:
    """girih.top_k as an op: the first k of each row of [rows, n], as (values, i32 indices); by index ascending unless sorted."""
    result: tuple[Tensor, Tensor] = torch.ops.girih.top_k(input, k, sorted)
    return result


# ------------------------------------------------------------------------------------------------------------- quantisation

_CODES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "i8": torch.int8, "nvfp4": torch.uint8, "mxfp4": torch.uint8}


def _quantize_fake(x: Tensor, dtype: str, scale: str, global_scale: float) -> tuple[Tensor, Tensor]:
    if dtype not in _CODES or scale not in ("token", "block", "mx", "tile"):
        raise ValueError(f"quantize: dtype {dtype!r} with scale {scale!r} has no computed scales")
    dim = x.shape[-1]
    codes = x.new_empty((*x.shape[:-1], (dim + 1) // 2 if "fp4" in dtype else dim), dtype=_CODES[dtype])
    if scale == "token":
        return codes, x.new_empty(x.shape[:-1], dtype=torch.float32)
    if scale == "tile":
        return codes, x.new_empty(((x.shape[0] + 127) // 128, (dim + 127) // 128), dtype=torch.float32)
    if scale == "block" and "fp4" not in dtype:
        return codes, x.new_empty((*x.shape[:-1], (dim + 127) // 128), dtype=torch.float32)
    size, scales = (16, torch.float8_e4m3fn) if dtype == "nvfp4" else (32, torch.float8_e8m0fnu)
    return codes, x.new_empty((*x.shape[:-1], (dim + size - 1) // size), dtype=scales)


@_op("quantize(Tensor x, str dtype, str scale, float global_scale) -> (Tensor, Tensor)", _quantize_fake)
def _quantize(x: Tensor, dtype: str, scale: Any, global_scale: float) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = girih.quantize(x, dtype, scale, global_scale=global_scale)
    return result


def quantize(x: Tensor, dtype: str = "e4m3", scale: str = "token", *, global_scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """girih.quantize as an op, with computed scales (all but scale="tensor"): (codes, scales) of x [rows, dim] or [rows, heads, dim]."""
    if scale == "tensor":
        raise ValueError('quantize: scale="tensor" takes a scale that is given; girih.quantize(x, ..., scales=) does it')
    result: tuple[Tensor, Tensor] = torch.ops.girih.quantize(x, dtype, scale, global_scale)
    return result


@_op(
    "dequantize(Tensor x, Tensor scales, str scale, str codes, float global_scale, SymInt dim, ScalarType dtype) -> Tensor",
    lambda x, scales, scale, codes, global_scale, dim, dtype: x.new_empty((*x.shape[:-1], dim), dtype=dtype),
)
def _dequantize(
    x: Tensor, scales: Tensor, scale: Any, codes: str, global_scale: float, dim: int, dtype: torch.dtype
) -> Tensor:
    result: Tensor = girih.dequantize(
        x, scales, scale, codes=codes or None, global_scale=global_scale, dim=dim if "fp4" in codes else None, dtype=dtype
    )
    return result


def dequantize(
    x: Tensor,
    scales: Tensor,
    scale: str = "token",
    *,
    codes: str | None = None,
    global_scale: float = 1.0,
    dim: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """girih.dequantize as an op. codes: "nvfp4" or "mxfp4" for 4-bit codes, whose rows have `dim` elements (None: two a byte)."""
    if dim is None:
        dim = x.shape[-1] * 2 if codes in ("nvfp4", "mxfp4") else x.shape[-1]
    result: Tensor = torch.ops.girih.dequantize(x, scales, scale, codes or "", global_scale, dim, dtype)
    return result
