"""Conversions to 8- and 4-bit codes and back, and packed bit masks. :class:`Quantization` has the rules of codes and
scales."""

from __future__ import annotations

from typing import Any, Literal

from . import _girih
from ._girih import Context, Quantization
from ._typing import ArrayLike, DTypeLike, IndicesLike, StreamLike

__all__ = ["BitOrder", "Quantization", "Scale", "dequantize", "packbits", "quantize", "segment_packbits"]

Scale = Literal["tensor", "token", "block", "mx", "tile"]
BitOrder = Literal["little", "big"]


def quantize(
    x: ArrayLike,
    dtype: DTypeLike = "e4m3",
    scale: Scale = "token",
    *,
    scales: ArrayLike | None = None,
    global_scale: float = 1.0,
    swizzled: bool = False,
    out: ArrayLike | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """Codes and scales of x; ``x = code * scale * global_scale``, nearly.

    Codes are the nearest to ``x / (scale * global_scale)``, ties to even, saturated: infinities become the largest code
    of their sign; NaN stays NaN in e4m3 and e5m2 and becomes 0 in i8 and 4-bit types.

    x: [rows, dim] or [rows, heads, dim]; float32, float16 or bfloat16, any strides.
    dtype: e4m3, e5m2, i8, nvfp4 or mxfp4.
    scale: what shares a scale; :class:`Quantization` has the table of types, formulas and shapes.
    scales: of scale="tensor" an input, float32 [1]; otherwise where computed scales go. None: made in x's library.
    out: codes, of x's shape, or of ceil(dim / 2) bytes a row for 4-bit dtypes; uint8 is taken as codes. None: made in
        x's library (float8 of NumPy is that of ml_dtypes, or uint8 without it).

    Returns (codes, scales), or the codes alone for scale="tensor".
    Raises ValueError for shapes, dtypes, devices, strides or overlaps that do not fit, before anything is written.
    """
    quantization = Quantization(dtype, scale, scales=scales, global_scale=global_scale, swizzled=swizzled)
    return _girih.quantize(x, quantization, out, context, stream)


def dequantize(
    x: ArrayLike,
    scales: ArrayLike,
    scale: Scale = "token",
    *,
    codes: DTypeLike | None = None,
    global_scale: float = 1.0,
    swizzled: bool = False,
    dim: int | None = None,
    dtype: DTypeLike | None = None,
    out: ArrayLike | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """``code * (scale * global_scale)``, rounded once to the output's dtype.

    x: codes as :func:`quantize` writes them.
    scales: what :func:`quantize` returned, or any other values (a NaN scale makes NaN).
    codes: the type of codes where the array does not say it: nvfp4, mxfp4, or e4m3 and e5m2 in uint8 arrays.
    dim: 4-bit codes of a row, where that is odd.
    dtype: of an output that is made: float32 (None), float16 or bfloat16.
    out: of x's shape. None: made in x's library.

    Raises ValueError for shapes, dtypes, devices, strides or overlaps that do not fit, before anything is written.
    """
    return _girih.dequantize(x, codes, scale, scales, global_scale, swizzled, dim, dtype, out, context, stream)


def packbits(
    x: ArrayLike,
    *,
    order: BitOrder = "little",
    out: ArrayLike | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """Bit ``i % 8`` of ``out[i // 8]`` is ``x[i] != 0``; little: the lowest bit first, big: the highest. Spare bits are
    0.

    x: bool or uint8 [n], dense. out: uint8 [ceil(n / 8)], dense.
    """
    return _girih.packbits(x, order, out, context, stream)


def segment_packbits(
    x: ArrayLike,
    indptr: IndicesLike,
    *,
    order: BitOrder = "little",
    out: ArrayLike | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> tuple[Any, list[int]]:
    """:func:`packbits` of each segment ``x[indptr[i]:indptr[i + 1]]``, every one from a whole byte on, as custom masks
    of requests lie.

    x: bool or uint8 [n], dense.
    indptr: [segments + 1], a list or an int32 or int64 array on the CPU.

    Returns (bits, out_indptr): segment i's bytes are ``bits[out_indptr[i]:out_indptr[i + 1]]``.
    """
    result: tuple[Any, list[int]] = _girih.segment_packbits(x, indptr, order, out, context, stream)
    return result
