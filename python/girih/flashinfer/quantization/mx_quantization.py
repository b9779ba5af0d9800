"""MXFP8 and MXFP4 as FlashInfer writes them: power-of-two scales of 32 elements, rounded up so that no code saturates.

girih.quantize rounds these scales down, as OCP MX says, so they are made here by PyTorch; MXFP8 codes are girih.quantize's of the scaled
values. A few passes over memory, on any device.
"""

from __future__ import annotations

import math

import torch

import girih

from .._arguments import one_of, refuse
from ..tllm_enums import SfLayout
from ._scale_layout import tiled, untiled

__all__ = ["mxfp4_quantize", "mxfp8_dequantize_host", "mxfp8_quantize"]

_BLOCK = 32
_BACKENDS = ("auto", "cuda", "cute-dsl")
#: Between neighbouring magnitudes of e2m1; a tie goes to the even code, which is the upper one at every second border.
_BORDERS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))


def _checked(function: str, x: torch.Tensor, backend: str, batch_invariant: bool) -> None:
    one_of(function, "backend", backend, _BACKENDS)
    if batch_invariant:
        raise refuse(function, "batch_invariant", True, "it asks for another recipe; rows are independent of each other anyway")
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise refuse(function, "input.dtype", x.dtype, "dequantise it to 16 bits first")
    if x.shape[-1] % _BLOCK != 0:
        raise ValueError(f"{function}: input.shape[-1]={x.shape[-1]}; must be a multiple of {_BLOCK}")


def _scaled(rows: torch.Tensor, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of [rows, dim] over their scales, f32 of the same shape, and the scales as e8m0 bytes [rows, dim / 32].

    The scale is the least power of two by which the block's largest magnitude is at most `largest`, 2^127 where that is infinite; a block
    for which it is the least scale of all, 2^-127, is taken as zeros, with a scale of 0.
    """
    blocks = rows.float().view(rows.shape[0], -1, _BLOCK)
    peak = blocks.abs().nan_to_num(nan=0.0, posinf=math.inf).amax(dim=-1)
    mantissa, exponent = torch.frexp(peak / largest)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    scales = torch.where(peak > 0, (exponent + 127).clamp(0, 254), 0).masked_fill(peak.isinf(), 254)
    factor = torch.where(scales > 0, torch.ldexp(torch.ones_like(peak), 127 - scales), 0.0)
    return (blocks * factor.unsqueeze(-1)).reshape(rows.shape), scales.to(torch.uint8)


def _laid_out(scales: torch.Tensor, layout: SfLayout) -> torch.Tensor:
    return scales.reshape(-1) if layout == SfLayout.layout_linear else tiled(scales, layout)


def mxfp8_quantize(
    input: torch.Tensor,
    is_sf_swizzled_layout: bool = True,
    alignment: int = 32,
    enable_pdl: bool | None = None,
    backend: str = "auto",
    sf_swizzle_layout: SfLayout | None = None,
    *,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes e4m3 of input [..., dim], padded with zeros to a multiple of alignment, and e8m0 scales uint8, flat.

    sf_swizzle_layout replaces is_sf_swizzled_layout, which means tiles of 128 x 4.
    """
    function = "mxfp8_quantize"
    _checked(function, input, backend, batch_invariant)
    if alignment < _BLOCK or alignment % _BLOCK != 0:
        raise ValueError(f"{function}: alignment={alignment}; must be a multiple of {_BLOCK}")
    layout = SfLayout.layout_128x4 if is_sf_swizzled_layout else SfLayout.layout_linear
    if sf_swizzle_layout is not None:
        layout = SfLayout(sf_swizzle_layout)
    padded = torch.nn.functional.pad(input.reshape(-1, input.shape[-1]), (0, -input.shape[-1] % alignment))
    values, scales = _scaled(padded, 448.0)
    codes = torch.empty(values.shape, dtype=torch.float8_e4m3fn, device=input.device)
    one = torch.ones(1, dtype=torch.float32, device=input.device)
    girih.quantize(values, "e4m3", "tensor", scales=one, out=codes)
    return codes.view(*input.shape[:-1], values.shape[1]), _laid_out(scales, layout)


def mxfp8_dequantize_host(
    input: torch.Tensor,
    scale_tensor: torch.Tensor,
    is_sf_swizzled_layout: bool = True,
    sf_swizzle_layout: SfLayout | None = None,
) -> torch.Tensor:
    """Values f32 [rows, dim], on the CPU, of codes e4m3 (or their bytes) and their e8m0 scales."""
    layout = SfLayout.layout_128x4 if is_sf_swizzled_layout else SfLayout.layout_linear
    if sf_swizzle_layout is not None:
        layout = SfLayout(sf_swizzle_layout)
    if input.dim() != 2 or input.dtype.itemsize != 1 or input.shape[1] % _BLOCK != 0:
        raise ValueError(f"input is {input.dtype} {tuple(input.shape)}; must be e4m3 [rows, dim], dim a multiple of {_BLOCK}")
    rows, blocks = input.shape[0], input.shape[1] // _BLOCK
    scales = untiled(scale_tensor.cpu().view(torch.uint8).reshape(-1), rows, blocks, layout)
    result: torch.Tensor = girih.dequantize(
        input.cpu().view(torch.float8_e4m3fn), scales.view(torch.float8_e8m0fnu), "mx", dtype="f32"
    )
    return result


def mxfp4_quantize(
    a: torch.Tensor,
    backend: str = "auto",
    enable_pdl: bool | None = None,
    sfLayout: SfLayout = SfLayout.layout_128x4,
    *,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [..., dim / 2] of a [..., dim] and e8m0 scales uint8: [rows, dim / 32], or of whole tiles where they are laid out so."""
    _checked("mxfp4_quantize", a, backend, batch_invariant)
    layout = SfLayout(sfLayout)
    rows = a.reshape(-1, a.shape[-1])
    values, scales = _scaled(rows, 6.0)
    magnitude = values.abs()
    codes = torch.signbit(values).to(torch.uint8) * 8
    for border, tie_is_upper in _BORDERS:
        codes += (magnitude >= border) if tie_is_upper else (magnitude > border)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    if layout != SfLayout.layout_linear:
        columns = -(-scales.shape[1] // 4) * 4
        scales = tiled(scales, layout).view(-1, columns)
    return packed.view(*a.shape[:-1], a.shape[-1] // 2), scales
