"""Rotary position embedding: tables of cosines and sines, rotation of Q and K, with an RMSNorm of each head before it
where wanted."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _girih
from ._girih import Context, Quantization, Rope
from ._typing import ArrayLike, StreamLike

__all__ = ["Yarn", "rope", "rope_cos_sin", "rope_frequencies"]


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
    like: the table is a tensor on the device of this torch.Tensor. None: a numpy.ndarray.

    Raises ValueError for numbers that make no table.
    """
    four, five, whole = _scalings(llama31, yarn)
    table = _girih.rope_cos_sin(rotary_dim, num_positions, theta, linear, ntk, four, five, whole)
    if like is not None and hasattr(like, "new_empty"):
        import torch

        return torch.frombuffer(table, dtype=torch.float32).view(num_positions, rotary_dim).to(like.device)
    import numpy

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
