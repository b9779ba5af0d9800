"""The custom ops of girih.torch_ops that work on rows: norms, activations, RoPE, sampling, quantisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import girih

from ._torch_op import op

# ----------------------------------------------------------------------------------------------------------------- rows


@op(
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
    """girih.rms_norm as an op, over the last dimension of x [..., dim]. weight: [dim], or [heads, dim] for x [rows,
    heads, dim].
    """
    result: Tensor = torch.ops.girih.rms_norm(x, weight, eps, weight_offset)
    return result


@op(
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


@op(
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


@op(
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
    """girih.activate as an op: act(gate) * up of x [..., 2 * dim] (gates, then ups), or of gates x and up."""
    result: Tensor = torch.ops.girih.activate(x, activation, up, interleaved, alpha, limit)
    return result


@op(
    "rope(Tensor q, Tensor k, Tensor cos_sin, Tensor positions, SymInt rotary_begin, bool interleaved,"
    " Tensor? q_weight, Tensor? k_weight, float eps, float weight_offset) -> (Tensor, Tensor)",
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


@op(
    "sample(Tensor logits, Tensor temperature, Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor seed, Tensor offset)"
    " -> Tensor",
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
    """girih.sample as an op: one token a row, i32 [rows]. The same seed and offset draw the same: let the offset grow
    from step to step.

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


@op(
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


@op(
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
    """girih.top_k as an op: the first k of each row of [rows, n], as (values, i32 indices); by index ascending unless
    sorted.
    """
    result: tuple[Tensor, Tensor] = torch.ops.girih.top_k(input, k, sorted)
    return result


# --------------------------------------------------------------------------------------------------------- quantisation

_CODES = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "nvfp4": torch.uint8,
    "mxfp4": torch.uint8,
}


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


@op("quantize(Tensor x, str dtype, str scale, float global_scale) -> (Tensor, Tensor)", _quantize_fake)
def _quantize(x: Tensor, dtype: str, scale: Any, global_scale: float) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = girih.quantize(x, dtype, scale, global_scale=global_scale)
    return result


def quantize(
    x: Tensor, dtype: str = "e4m3", scale: str = "token", *, global_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """girih.quantize as an op, with computed scales (all but scale="tensor"): (codes, scales) of x [rows, dim] or
    [rows, heads, dim].
    """
    if scale == "tensor":
        raise ValueError(
            'quantize: scale="tensor" takes a scale that is given; girih.quantize(x, ..., scales=) does it'
        )
    result: tuple[Tensor, Tensor] = torch.ops.girih.quantize(x, dtype, scale, global_scale)
    return result


@op(
    "dequantize(Tensor x, Tensor scales, str scale, str codes, float global_scale, SymInt dim, ScalarType dtype)"
    " -> Tensor",
    lambda x, scales, scale, codes, global_scale, dim, dtype: x.new_empty((*x.shape[:-1], dim), dtype=dtype),
)
def _dequantize(
    x: Tensor, scales: Tensor, scale: Any, codes: str, global_scale: float, dim: int, dtype: torch.dtype
) -> Tensor:
    result: Tensor = girih.dequantize(
        x,
        scales,
        scale,
        codes=codes or None,
        global_scale=global_scale,
        dim=dim if "fp4" in codes else None,
        dtype=dtype,
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
    """girih.dequantize as an op. codes: "nvfp4" or "mxfp4" for 4-bit codes, whose rows have `dim` elements (None: two a
    byte).
    """
    if dim is None:
        dim = x.shape[-1] * 2 if codes in ("nvfp4", "mxfp4") else x.shape[-1]
    result: Tensor = torch.ops.girih.dequantize(x, scales, scale, codes or "", global_scale, dim, dtype)
    return result
