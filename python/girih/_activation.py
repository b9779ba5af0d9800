"""Gated activations of feed-forward layers: act(gate) * up, with a quantised output where wanted, in one pass over
memory."""

from __future__ import annotations

from typing import Any, Literal

from . import _girih
from ._girih import Context, Quantization
from ._typing import ArrayLike, DTypeLike, StreamLike

__all__ = ["Activation", "activate", "gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul", "swigluoai_and_mul"]

Activation = Literal["silu", "gelu", "gelu_tanh", "swigluoai", "multiply"]


def activate(
    x: ArrayLike,
    activation: Activation = "silu",
    *,
    up: ArrayLike | None = None,
    interleaved: bool = False,
    out: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    quantization: Quantization | None = None,
    alpha: float = 1.702,
    limit: float = 7.0,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """``act(gate) * up`` of every row.

    activation:
        - ``silu``: ``gate / (1 + exp(-gate)) * up``
        - ``gelu``: ``gate * Phi(gate) * up``, Phi the normal distribution function (by erf, not its tanh form)
        - ``gelu_tanh``: ``gate * (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 * gate**3))) / 2 * up``
        - ``swigluoai``: ``g / (1 + exp(-alpha * g)) * (u + 1)``, ``g = min(gate, limit)``, ``u`` = up clamped to
          +-limit (gpt-oss)
        - ``multiply``: ``gate * up``
    x: [rows, 2 * dim], the gates and then the ups; float32, float16 or bfloat16, any strides. With ``up``: the gates,
        [rows, dim].
    up: [rows, dim] of x's dtype, where gates and ups are two arrays.
    interleaved: gate and up alternate in x (gpt-oss).
    out: [rows, dim]; may be the gates' own memory where dtype and strides are theirs. None: made in x's library.
    dtype: of an output that is made; None: x's.
    quantization: how the output is quantised; its dtype is the output's.
    alpha, limit: of swigluoai; limit > 0, infinity clamps nothing.

    Returns the output, or the pair (codes, scales) where a quantisation computes scales.
    Raises ValueError for shapes, dtypes, devices, strides or overlaps that do not fit, before anything is written.
    """
    return _girih.activate(x, activation, up, interleaved, out, dtype, quantization, alpha, limit, context, stream)


def silu_and_mul(
    x: ArrayLike,
    *,
    out: ArrayLike | None = None,
    quantization: Quantization | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """``silu(x[:, :dim]) * x[:, dim:]``, x [rows, 2 * dim]; see :func:`activate`."""
    return _girih.activate(x, "silu", None, False, out, None, quantization, 1.702, 7.0, context, stream)


def gelu_and_mul(
    x: ArrayLike,
    *,
    out: ArrayLike | None = None,
    quantization: Quantization | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """``gelu(x[:, :dim]) * x[:, dim:]`` by the error function, x [rows, 2 * dim]; see :func:`activate`."""
    return _girih.activate(x, "gelu", None, False, out, None, quantization, 1.702, 7.0, context, stream)


def gelu_tanh_and_mul(
    x: ArrayLike,
    *,
    out: ArrayLike | None = None,
    quantization: Quantization | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """``gelu(x[:, :dim]) * x[:, dim:]`` in its tanh form, x [rows, 2 * dim]; see :func:`activate`."""
    return _girih.activate(x, "gelu_tanh", None, False, out, None, quantization, 1.702, 7.0, context, stream)


def swigluoai_and_mul(
    x: ArrayLike,
    *,
    interleaved: bool = True,
    alpha: float = 1.702,
    limit: float = 7.0,
    out: ArrayLike | None = None,
    quantization: Quantization | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """gpt-oss's clamped SwiGLU, x [rows, 2 * dim] with gates and ups alternating as in its checkpoints; see
    :func:`activate`."""
    return _girih.activate(x, "swigluoai", None, interleaved, out, None, quantization, alpha, limit, context, stream)
