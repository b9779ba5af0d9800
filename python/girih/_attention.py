"""girih.attention(): one call for people who only want attention. Everything else goes through Attention, which plans once for all layers."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

from . import variants
from ._context import default_context
from ._girih import (
    Attention,
    AttentionLimits,
    AttentionSpec,
    Context,
    KvStore,
    Segment,
    SegmentData,
    Variant,
)
from ._girih import array_info as _array_info
from ._typing import ArrayLike, Params

__all__ = ["attention"]


def _window(window: SupportsIndex | tuple[int, int]) -> Any:
    if isinstance(window, SupportsIndex):
        keys = operator.index(window)
        if keys < 1:
            raise ValueError(f"window: {keys} keys; must be at least 1 (self), or (left, right)")
        return variants.window(keys - 1, -1)
    left, right = window
    return variants.window(left, right)


def _variant(
    causal: bool,
    window: int | tuple[int, int] | None,
    soft_cap: float | None,
    sinks: ArrayLike | None,
    variant: Variant | None,
) -> Variant | None:
    if variant is not None:
        others = (("causal", causal or None), ("window", window), ("soft_cap", soft_cap), ("sinks", sinks))
        given = [name for name, value in others if value is not None]
        if given:
            raise ValueError(f"variant: is given beside {', '.join(given)}; say all of it in the variant")
        return variant
    mask = variants.causal() if causal else None
    if window is not None:
        mask = _window(window) if mask is None else mask & _window(window)
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap: {soft_cap}; must be > 0")
    if mask is None and soft_cap is None and sinks is None:
        return None
    return Variant(
        mask=mask,
        logits=None if soft_cap is None else variants.soft_cap(soft_cap),
        sink=None if sinks is None else variants.sinks(),
    )


def _info(array: Any, name: str) -> tuple[tuple[int, ...], str, str]:
    if array is None:
        raise TypeError(f"{name}: None is no array")
    return _array_info(array, name)


def _check(q: Any, k: Any, v: Any, sinks: ArrayLike | None, sm_scale: float | None) -> None:
    """What a spec would refuse by names of its own; q, k, v as _info() has them."""
    (q_shape, q_dtype, _), (k_shape, k_dtype, _), (v_shape, v_dtype, _) = q, k, v
    for name, dtype in (("q", q_dtype), ("k", k_dtype), ("v", v_dtype)):
        if dtype not in ("f32", "f16", "bf16"):
            raise ValueError(f"{name}: is of {dtype}; must be f32, f16 or bf16 (Attention takes quantised caches with their scales)")
    heads, kv_heads = q_shape[-2], k_shape[-2]
    if heads < 1 or kv_heads < 1 or heads % kv_heads != 0:
        raise ValueError(f"q: has {heads} heads; must be a positive multiple of k's {kv_heads}")
    if k_shape[-1] != q_shape[-1]:
        raise ValueError(f"k: has {k_shape[-1]} dims; must have q's {q_shape[-1]}")
    if tuple(v_shape[:-1]) != tuple(k_shape[:-1]):
        raise ValueError(f"v: has shape {list(v_shape)}; all but the last extent must be k's: {list(k_shape)}")
    if sinks is not None:
        shape, dtype, _ = _info(sinks, "sinks")
        if tuple(shape) != (heads,) or dtype != "f32":
            raise ValueError(f"sinks: has shape {list(shape)} of {dtype}; must be f32 [num_qo_heads={heads}]")
    if sm_scale is not None and sm_scale == 0.0:
        raise ValueError("sm_scale: is 0; must not be (None: 1 / sqrt(dim))")


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    causal: bool = False,
    window: int | tuple[int, int] | None = None,
    soft_cap: float | None = None,
    sinks: ArrayLike | None = None,
    variant: Variant | None = None,
    params: Params | None = None,
    sm_scale: float | None = None,
    return_lse: bool = False,
    out: ArrayLike | None = None,
    context: Context | None = None,
) -> Any:
    """Attention of one request, or of a batch of requests of equal lengths. Schedules and plans at each call: for serving use Attention.

    Args:
        q: [tokens, num_qo_heads, dim] or [batch, tokens, num_qo_heads, dim]; f32, f16 or bf16, last dimension dense.
        k: [kv_tokens, num_kv_heads, dim] or [batch, kv_tokens, num_kv_heads, dim]; num_qo_heads is a multiple of num_kv_heads.
        v: As k; its dim may differ.
        causal: Each row sees the keys up to its own position; the last row is at the last key (bottom-right).
        window: n: the last n keys up to and including the row's own position (and those after it, unless causal). (left, right): keys
            before and after it; negative = all.
        soft_cap: Scores become soft_cap * tanh(score / soft_cap).
        sinks: f32 [num_qo_heads]: a logit per head that joins the denominator.
        variant: In place of the four above: any mask, bias, cap, sink or transform.
        params: {name: number or array} for the variant's parameters.
        sm_scale: Factor of the scores, not 0. None: 1 / sqrt(dim).
        return_lse: Also return the natural log-sum-exp of each row.
        out: As q, with v's dim. None: made by q's library.
        context: None: the thread's default for q's device.

    Returns:
        out, or (out, lse) with lse f32 [(batch,) tokens, num_qo_heads]. A row that sees no key gets 0 and -inf.

    Raises:
        ValueError: Shapes, types or devices that do not fit, naming the argument.
    """
    infos = _info(q, "q"), _info(k, "k"), _info(v, "v")
    (q_shape, q_dtype, device), (k_shape, k_dtype, _), (v_shape, v_dtype, _) = infos
    batched = len(q_shape) == 4
    for name, shape in (("q", q_shape), ("k", k_shape), ("v", v_shape)):
        if len(shape) != (4 if batched else 3):
            expected = "[batch, tokens, heads, dim]" if batched else "[tokens, heads, dim]"
            raise ValueError(f"{name}: has shape {list(shape)}; must be {expected}, as q and the others")
    if batched and k_shape[0] != q_shape[0]:
        raise ValueError(f"k: has a batch of {k_shape[0]}; q has {q_shape[0]}")
    _check(*infos, sinks, sm_scale)
    batch = q_shape[0] if batched else 1
    tokens, num_qo_heads, dim = q_shape[-3:]
    kv_tokens, num_kv_heads = k_shape[-3:-1]
    asked = _variant(causal, window, soft_cap, sinks, variant)
    spec = AttentionSpec(
        num_qo_heads=num_qo_heads,
        num_kv_heads=num_kv_heads,
        head_dim_qk=dim,
        head_dim_vo=v_shape[-1],
        q_dtype=q_dtype,
        k_dtype=k_dtype,
        v_dtype=v_dtype,
        sm_scale=0.0 if sm_scale is None else sm_scale,
        lse="natural" if return_lse else "none",
        variant=asked,
    )
    limits = AttentionLimits(
        max_tokens=batch * tokens, max_requests=batch, max_kv_len=kv_tokens, max_qo_len=tokens, max_param_bytes=1 << 40
    )
    given = dict(params or {})
    if sinks is not None:
        given["sinks"] = sinks
    times = {} if asked is None else {name: time for name, (_, _, time) in asked.params.items()}
    plan_params = {name: value for name, value in given.items() if times.get(name) == "plan"}
    run_params = {name: value for name, value in given.items() if times.get(name) != "plan"}
    planned = Attention(spec, limits, context=default_context(device) if context is None else context)
    qo_indptr = range(0, batch * tokens + 1, tokens) if tokens > 0 else [0] * (batch + 1)
    if batched and kv_tokens > 0:
        # One page per request: any strides between the requests.
        segment = Segment(kv_len=[kv_tokens] * batch, page_size=kv_tokens, table_stride=1)
        kv: Any = SegmentData(KvStore.paged(k, v), _page_ids(k, batch))
    else:
        segment = Segment(kv_indptr=[0] * batch + [kv_tokens], page_size=0)
        kv = KvStore.ragged(_flat(k, k_shape), _flat(v, v_shape)) if batched else KvStore.ragged(k, v)
    planned.plan(qo_indptr, segment, params=plan_params)
    rows = _flat(q, q_shape) if batched else q
    flat_out = None if out is None else _flat_out(out, (*q_shape[:-1], v_shape[-1]), batched)
    result = planned.run(rows, kv, out=flat_out, params=run_params)
    computed, lse = result if return_lse else (result, None)
    if batched:
        computed = out if out is not None else computed.reshape((*q_shape[:-1], v_shape[-1]))
        lse = None if lse is None else lse.reshape(q_shape[:-1])
    return (computed, lse) if return_lse else computed


def _page_ids(like: Any, batch: int) -> Any:
    """0, 1, ... where `like` is."""
    if hasattr(like, "new_tensor"):
        import torch

        return torch.arange(batch, dtype=torch.int32, device=like.device)
    return list(range(batch))


def _flat(x: Any, shape: tuple[int, ...]) -> Any:
    """[batch, tokens, ...] as [batch * tokens, ...]; copies where strides do not allow it."""
    return x.reshape((shape[0] * shape[1], *shape[2:]))


def _flat_out(out: Any, shape: tuple[int, ...], batched: bool) -> Any:
    """The caller's output as rows, in place."""
    found, _, _ = _array_info(out, "out")
    if tuple(found) != shape:
        raise ValueError(f"out: has shape {list(found)}; must be {list(shape)}")
    if not batched:
        return out
    if hasattr(out, "view") and hasattr(out, "stride"):
        return out.view((shape[0] * shape[1], *shape[2:]))
    flat = out.reshape((shape[0] * shape[1], *shape[2:]))
    if flat.size > 0 and flat.__array_interface__["data"][0] != out.__array_interface__["data"][0]:
        raise ValueError("out: its batch and tokens are not adjacent; give a contiguous array")
    return flat
