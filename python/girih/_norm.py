"""Normalisation of rows: RMSNorm and LayerNorm, with a residual added before and a quantised output after, in one pass
over memory.

Weights, sums and everything between load and store are float32.
"""

from __future__ import annotations

from typing import Any

from . import _girih
from ._girih import Context, Quantization
from ._typing import ArrayLike, DTypeLike, StreamLike

__all__ = ["layer_norm", "rms_norm"]


def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    residual: ArrayLike | None = None,
    residual_out: ArrayLike | None = None,
    out: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    quantization: Quantization | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """RMSNorm of every row (Zhang and Sennrich 2019, eq. 4), of ``x`` or of ``h = x + residual``.

    ``out = h / sqrt(mean(h**2) + eps) * (weight + weight_offset)``

    x: [rows, dim], or [rows, heads, dim] to normalise every head by itself (QK-norm); float32, float16 or bfloat16, any
        strides; dim <= 131072.
    weight: [dim], or [heads, dim]; float32 or x's dtype. None: 1 everywhere.
    residual: of x's shape and dtype; added to x before anything else.
    residual_out: takes ``x + residual`` rounded to x's dtype; may be residual or x itself. (What is normalised is not
        rounded.)
    out: of x's shape; may be x or residual itself. None: made in x's library.
    dtype: of an output that is made; None: x's.
    quantization: how the output is quantised; its dtype is the output's.
    weight_offset: added to every weight: 1 for Gemma's ``1 + w``.

    Returns the output, or the pair (codes, scales) where a quantisation computes scales.
    Raises ValueError for shapes, dtypes, devices, strides or overlaps that do not fit, before anything is written.
    """
    return _girih.rms_norm(
        x, weight, None, residual, residual_out, out, dtype, quantization, eps, weight_offset, context, stream
    )


def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    residual: ArrayLike | None = None,
    residual_out: ArrayLike | None = None,
    out: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    quantization: Quantization | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """LayerNorm of every row (Ba et al. 2016, eq. 4), of ``x`` or of ``h = x + residual``.

    ``out = (h - mean(h)) / sqrt(variance(h) + eps) * (weight + weight_offset) + bias``, the variance being that of the
    row itself,
    computed in two passes: rows with a large mean lose nothing.

    bias: as weight, of the same dtype. None: 0. All other arguments, the result and errors are those of
    :func:`rms_norm`.
    """
    return _girih.layer_norm(
        x, weight, bias, residual, residual_out, out, dtype, quantization, eps, weight_offset, context, stream
    )
