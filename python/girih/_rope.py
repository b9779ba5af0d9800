"""Rotary position embedding: tables of cosines and sines, rotation of Q and K, with an RMSNorm of each head before it
where wanted."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _girih
from ._girih import Attention, Context, DevicePlan, KvStore, Quantization, Rope
from ._typing import ArrayLike, IndicesLike, StreamLike

__all__ = ["Yarn", "rope", "rope_append", "rope_append_planned", "rope_cos_sin", "rope_frequencies"]


class Yarn(NamedTuple):
    """YaRN (Peng et al. 2023, eq. 17-24): pairs that turn more than ``beta_fast`` times within the original context
    keep their frequency, those that turn less than ``beta_slow`` times are divided by ``factor``, those between are
    blended over their index.

    whole_pairs: the blend begins and ends at whole indices (gpt-oss: False).
    attention_factor: multiplies cosines and sines. 0: ``0.1 * ln(factor) + 1``. (DeepSeek, whose scores carry the
    factor: 1.)
    """

    factor: float = 1.0
    original_context_len: float = 4096.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole_pairs: bool = True
    attention_factor: float = 0.0


def rope_frequencies(
    rotary_dim: int,
    *,
    theta: float = 10000.0,
    linear: float = 1.0,
    llama31: Rope.Llama31 | None = None,
    yarn: Yarn | None = None,
    ntk: float = 1.0,
) -> list[float]:
    """Radians a position of each of the rotary_dim / 2 pairs; arguments as :func:`rope_cos_sin`."""
    four, five, whole = _scalings(llama31, yarn)
    return _girih.rope_frequencies(rotary_dim, theta, linear, ntk, four, five, whole)


def rope_cos_sin(
    rotary_dim: int,
    num_positions: int,
    *,
    theta: float = 10000.0,
    linear: float = 1.0,
    llama31: Rope.Llama31 | None = None,
    yarn: Yarn | None = None,
    ntk: float = 1.0,
    like: ArrayLike | None = None,
) -> Any:
    """The table that :func:`rope` turns by: float32 [num_positions, rotary_dim], of each position the cosines of all
    pairs, then the sines; worked out in double precision and rounded once.

    Pair i turns by ``theta ** (-2 * i / rotary_dim)`` a position (Su et al. 2021, eq. 15), after the scaling that is
    given; one at most.

    rotary_dim: even.
    linear: > 0; frequencies are divided by it.
    llama31, yarn: rules of these models, see :class:`girih.Rope.Llama31` and :class:`Yarn`.
    ntk: theta becomes ``theta * ntk ** (rotary_dim / (rotary_dim - 2))``. Dynamic NTK for a length L beyond the
        original context C with factor s is ``ntk = s * L / C - (s - 1)``.
    like: a torch.Tensor, on whose device the table then is a tensor. None, or a numpy.ndarray: a numpy.ndarray.

    Raises ValueError for numbers that make no table.
    """
    four, five, whole = _scalings(llama31, yarn)
    table = _girih.rope_cos_sin(rotary_dim, num_positions, theta, linear, ntk, four, five, whole)
    if like is not None and hasattr(like, "new_empty"):
        import torch

        return torch.frombuffer(table, dtype=torch.float32).view(num_positions, rotary_dim).to(like.device)
    import numpy

    if like is not None and not isinstance(like, numpy.ndarray):
        raise TypeError(f"like: {type(like)} is neither a torch.Tensor nor a numpy.ndarray")
    return numpy.frombuffer(table, dtype=numpy.float32).reshape(num_positions, rotary_dim)


def _scalings(
    llama31: Rope.Llama31 | None, yarn: Yarn | None
) -> tuple[tuple[float, float, float, float] | None, tuple[float, float, float, float, float] | None, bool]:
    """The form in which they cross into C++."""
    four = five = None
    if llama31 is not None:
        four = (llama31.factor, llama31.low_freq_factor, llama31.high_freq_factor, llama31.old_context_len)
    if yarn is not None:
        five = (yarn.factor, yarn.original_context_len, yarn.beta_fast, yarn.beta_slow, yarn.attention_factor)
    return four, five, yarn is None or yarn.whole_pairs


def rope(
    q: ArrayLike | None,
    k: ArrayLike | None,
    cos_sin: ArrayLike,
    *,
    positions: ArrayLike | None = None,
    indptr: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    rotary_begin: int = 0,
    interleaved: bool = False,
    inplace: bool = False,
    q_out: ArrayLike | None = None,
    k_out: ArrayLike | None = None,
    q_weight: ArrayLike | None = None,
    k_weight: ArrayLike | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    q_quantization: Quantization | None = None,
    k_quantization: Quantization | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> tuple[Any, Any]:
    """Rotates elements [rotary_begin, rotary_begin + rotary_dim) of every head; the others are copied.

    q, k: [rows, heads, dim], a row a token; float32, float16 or bfloat16, any strides. Either may be None.
    cos_sin: float32 [num_positions, rotary_dim], as :func:`rope_cos_sin` makes it. 16-bit tables, wrong by more than
        bfloat16's last place from position 2048 on, are refused.
    positions: int32 or int64 [rows]; or by requests:
    indptr, offsets: [requests + 1] and [requests], of one dtype: row r of request i, ``indptr[i] <= r < indptr[i +
        1]``, is at
        ``offsets[i] + r - indptr[i]``. On the CPU a position outside of the table is refused; a GPU takes its first or
        last instead.
    interleaved: pairs are (2i, 2i + 1); else (i, i + rotary_dim / 2).
    inplace: q and k themselves take the results.
    q_out, k_out: of the same shapes; None: made.
    q_weight, k_weight: QK-norm: an RMSNorm of every head before it is rotated; [dim] or [heads, dim], float32 or the
        tensor's dtype.
    eps, weight_offset: of that norm.
    q_quantization, k_quantization: how results are quantised.

    Returns (q, k): each an array, the pair (codes, scales) where a quantisation computes scales, or None.
    Raises ValueError for shapes, dtypes, devices, strides or overlaps that do not fit, before anything is written.
    """
    result: tuple[Any, Any] = _girih.rope(
        q,
        k,
        cos_sin,
        positions,
        indptr,
        offsets,
        rotary_begin,
        interleaved,
        inplace,
        q_out,
        k_out,
        q_weight,
        k_weight,
        eps,
        weight_offset,
        q_quantization,
        k_quantization,
        context,
        stream,
    )
    return result


def rope_append(
    store: KvStore,
    q: ArrayLike | None,
    k: ArrayLike,
    v: ArrayLike | None,
    cos_sin: ArrayLike,
    *,
    append_indptr: IndicesLike,
    kv_len: IndicesLike,
    kv_indices: IndicesLike | None = None,
    kv_indptr: IndicesLike | None = None,
    table_stride: int = 0,
    positions: ArrayLike | None = None,
    indptr: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    rotary_begin: int = 0,
    interleaved: bool = False,
    inplace: bool = False,
    q_out: ArrayLike | None = None,
    q_weight: ArrayLike | None = None,
    k_weight: ArrayLike | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    q_quantization: Quantization | None = None,
    k_nope: ArrayLike | None = None,
    q_nope: ArrayLike | None = None,
    q_nope_out: ArrayLike | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """:func:`rope` fused with :func:`girih.append`: K goes, normalised, rotated and quantised as the store's planes
    say, to the places of the batch, as does V, unchanged but for its type; Q is rotated and, if asked, quantised. One
    pass over memory.

    store: takes K and V; its arrays must be writable.
    q: [rows, heads, dim] or None. k: [rows, kv heads, dim]. v: [rows, kv heads, dim_v], None where the store has no V
        (MLA).
    append_indptr, kv_len, kv_indices, kv_indptr, table_stride: which rows go where, as :func:`girih.append` has them:
        host arrays. Rows past append_indptr's last are padding; results for q are of the rows before.
    positions, indptr, offsets: as :func:`rope`. None: each key's own, its index in its request's list.
    k_nope, q_nope, q_nope_out: MLA's parts that do not rotate: k_nope [rows, kv heads, dim] goes to the store's K, the
        rotated k to its k_rope plane; q_nope to q_nope_out, with q's quantisation, whose scales must then be a
        tensor's.
    inplace: q and q_nope themselves take the results.

    All else as :func:`rope`. Returns q's result, or with q_nope the pair (q, q_nope); None without q.
    Raises ValueError for what does not fit, before anything is written. Cannot be captured in a CUDA graph; see
    :func:`rope_append_planned`.
    """
    return _girih.rope_append(
        store,
        q,
        k,
        v,
        cos_sin,
        append_indptr,
        kv_len,
        kv_indices,
        kv_indptr,
        table_stride,
        positions,
        indptr,
        offsets,
        rotary_begin,
        interleaved,
        inplace,
        q_out,
        q_weight,
        k_weight,
        eps,
        weight_offset,
        q_quantization,
        k_nope,
        q_nope,
        q_nope_out,
        context,
        stream,
    )


def rope_append_planned(
    plan: Attention | DevicePlan,
    store: KvStore,
    q: ArrayLike | None,
    k: ArrayLike,
    v: ArrayLike | None,
    cos_sin: ArrayLike,
    *,
    kv_indices: ArrayLike | None = None,
    segment: int = 0,
    positions: ArrayLike | None = None,
    indptr: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    rotary_begin: int = 0,
    interleaved: bool = False,
    inplace: bool = False,
    q_out: ArrayLike | None = None,
    q_weight: ArrayLike | None = None,
    k_weight: ArrayLike | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    q_quantization: Quantization | None = None,
    k_nope: ArrayLike | None = None,
    q_nope: ArrayLike | None = None,
    q_nope_out: ArrayLike | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """:func:`rope_append` for the batch that ``plan`` holds, on CUDA: row i belongs to query token i, and the query
    tokens of a group are the last keys of its list in ``segment`` (not written where a list is shorter). Reads nothing
    but device memory, so a captured graph appends whatever is planned before a replay. Two tokens may not go to the
    same place, which is not checked.

    kv_indices: the segment's int32 page ids, on the device.
    positions, indptr, offsets: None: as the segment's kv_rope_pos has them.

    All else as :func:`rope_append`. Raises NotImplementedError on the CPU.
    """
    return _girih.rope_append_planned(
        plan,
        store,
        q,
        k,
        v,
        cos_sin,
        kv_indices,
        segment,
        positions,
        indptr,
        offsets,
        rotary_begin,
        interleaved,
        inplace,
        q_out,
        q_weight,
        k_weight,
        eps,
        weight_offset,
        q_quantization,
        k_nope,
        q_nope,
        q_nope_out,
        context,
        stream,
    )
