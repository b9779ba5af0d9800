"""flashinfer.quantization.fp8_quantization: 8-bit codes with an f32 scale for a group of a row."""

from __future__ import annotations

import torch

import girih

from .._arguments import one_of, refuse
from .mx_quantization import mxfp8_dequantize_host as mxfp8_dequantize_host
from .mx_quantization import mxfp8_quantize as mxfp8_quantize

_GROUP = 128


def per_token_group_quant_8bit(
    x: torch.Tensor,
    group_size: int,
    eps: float = 1e-10,
    dst_dtype: torch.dtype | None = None,
    column_major_scales: bool = False,
    scale_tma_aligned: bool = False,
    scale_ue8m0: bool = False,
    backend: str = "cutile",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x [..., dim] (e4m3, e5m2 or int8) and the scale of each group, max(M, eps) / largest code, f32 [..., dim / group_size].

    column_major_scales: scales of neighbouring rows are adjacent; scale_tma_aligned: their columns begin at multiples of 16 bytes.
    """
    function = "per_token_group_quant_8bit"
    one_of(function, "backend", backend, ("cutile", "cuda"))
    dim = x.shape[-1]
    dtype = torch.float8_e4m3fn if dst_dtype is None else dst_dtype
    if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8):
        raise ValueError(f"dst_dtype={dtype}; must be float8_e4m3fn, float8_e5m2 or int8")
    if dim % group_size != 0:
        raise ValueError(f"group_size={group_size}; must divide x.shape[-1]={dim}")
    if group_size not in (_GROUP, dim):
        raise refuse(function, "group_size", group_size, f"groups are of {_GROUP} or of a whole row")
    if scale_ue8m0:
        raise refuse(
            function,
            "scale_ue8m0",
            True,
            "power-of-two scales are rounded up there and down (OCP MX) in girih.quantize",
        )
    if scale_tma_aligned and not column_major_scales:
        raise ValueError("scale_tma_aligned needs column_major_scales")
    flat = x.reshape(-1, dim)
    rows, groups = flat.shape[0], dim // group_size
    if column_major_scales:
        stride = (rows + 3) // 4 * 4 if scale_tma_aligned else rows
        scales = torch.empty(groups, stride, dtype=torch.float32, device=x.device).transpose(0, 1)[:rows]
    else:
        scales = torch.empty(rows, groups, dtype=torch.float32, device=x.device)
    codes = torch.empty(flat.shape, dtype=dtype, device=x.device)
    if group_size == _GROUP:
        girih.quantize(flat, dtype, "block", scales=scales, out=codes)
    else:
        girih.quantize(flat, dtype, "token", scales=scales[:, 0], out=codes)
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    # Girih gives groups of zeros the scale 1. Groups below eps keep codes of their own scale, which is the better one.
    zero = flat.view(rows, groups, group_size).abs().amax(dim=-1) == 0
    scales.masked_fill_(zero, eps / largest)
    leading = x.shape[:-1]
    return codes.view(x.shape), scales.view(*leading, groups)
