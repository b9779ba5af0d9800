"""flashinfer.norm: RMSNorm and LayerNorm, with the residual added before and quantisation after."""

from __future__ import annotations

import torch

import girih

from ._arguments import refuse, scale_tensor


def _as_rows(out: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like) if out is None else out


def _quantized(function: str, out: torch.Tensor, scale: float | torch.Tensor) -> girih.Quantization:
    if out.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise refuse(function, "out.dtype", out.dtype, "8-bit outputs are float8_e4m3fn or float8_e5m2")
    return girih.Quantization(out.dtype, "tensor", scales=scale_tensor(scale, out.device))


def rmsnorm(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    """input / sqrt(mean(input^2) + eps) * weight over the last dimension of [rows, dim] or [rows, heads, dim]."""
    out = _as_rows(out, input)
    girih.rms_norm(input, weight, out=out, eps=eps)
    return out


def rmsnorm_quant(
    out: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    scale: float | torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """rmsnorm() divided by `scale`, as 8-bit codes in `out`."""
    girih.rms_norm(input, weight, out=out, eps=eps, quantization=_quantized("norm.rmsnorm_quant", out, scale))


def fused_add_rmsnorm(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """residual += input, then input = rmsnorm(residual), both in place; the sum is normalised before it is rounded."""
    girih.rms_norm(input, weight, residual=residual, residual_out=residual, out=input, eps=eps)


def fused_add_rmsnorm_quant(
    out: torch.Tensor,
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: float | torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """residual += input in place, then rmsnorm(residual) divided by `scale`, as 8-bit codes in `out`."""
    girih.rms_norm(
        input,
        weight,
        residual=residual,
        residual_out=residual,
        out=out,
        eps=eps,
        quantization=_quantized("norm.fused_add_rmsnorm_quant", out, scale),
    )


def fused_add_rmsnorm_fp8_block_quant(
    out: torch.Tensor,
    block_scale: torch.Tensor,
    normed_out: torch.Tensor,
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """residual += input, normed_out = rmsnorm(residual), and `out` its e4m3 codes with a scale for 128 elements.

    block_scale is f32 [dim / 128, round_up(rows, 4)]: the scale of row r and block b is block_scale[b, r].
    """
    rows, dim = input.shape
    if out.dtype != torch.float8_e4m3fn:
        raise ValueError(f"out.dtype={out.dtype}; must be torch.float8_e4m3fn")
    if dim % 128 != 0 or block_scale.shape != (dim // 128, (rows + 3) // 4 * 4):
        raise ValueError(
            f"block_scale.shape={tuple(block_scale.shape)}; must be (dim / 128, rows rounded up to 4) for input {rows} x {dim}"
        )
    girih.rms_norm(input, weight, residual=residual, residual_out=residual, out=normed_out, eps=eps)
    scales = block_scale.transpose(0, 1)[:rows]
    girih.quantize(normed_out, "e4m3", "block", scales=scales, out=out)


def gemma_rmsnorm(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    """rmsnorm() with weight + 1."""
    out = _as_rows(out, input)
    girih.rms_norm(input, weight, out=out, eps=eps, weight_offset=1.0)
    return out


def gemma_fused_add_rmsnorm(
    input: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """fused_add_rmsnorm() with weight + 1."""
    girih.rms_norm(input, weight, residual=residual, residual_out=residual, out=input, eps=eps, weight_offset=1.0)


def layernorm(input: torch.Tensor, gemma: torch.Tensor, beta: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """(input - mean) / sqrt(variance + eps) * gemma + beta of each row; gemma and beta are f32 or of input's type."""
    out = torch.empty_like(input)
    girih.layer_norm(input, gemma, beta, out=out, eps=eps)
    return out


def layernorm_quant(
    out: torch.Tensor,
    input: torch.Tensor,
    gemma: torch.Tensor,
    beta: torch.Tensor,
    scale: float | torch.Tensor,
    eps: float = 1e-6,
    enable_pdl: bool | None = None,
) -> None:
    """layernorm() divided by `scale`, as 8-bit codes in `out`."""
    girih.layer_norm(input, gemma, beta, out=out, eps=eps, quantization=_quantized("norm.layernorm_quant", out, scale))


def fused_rmsnorm_silu(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    out: torch.Tensor | None = None,
    block_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """silu(rmsnorm(input)), of input's type or that of `out` (16 bits or e4m3). Two passes: the norm, then PyTorch's silu."""
    if block_scale is not None or (out is not None and out.dtype.itemsize < 2 and out.dtype != torch.float8_e4m3fn):
        what = ("block_scale", "...") if block_scale is not None else ("out.dtype", getattr(out, "dtype", None))
        raise refuse("norm.fused_rmsnorm_silu", what[0], what[1], "quantise the result with flashinfer.nvfp4_quantize")
    out = _as_rows(out, input)
    normed = torch.nn.functional.silu(girih.rms_norm(input, weight, dtype="f32", eps=eps))
    if out.dtype == torch.float8_e4m3fn:
        girih.quantize(normed, "e4m3", "tensor", scales=scale_tensor(1.0, out.device), out=out)
    else:
        out.copy_(normed)
    return out
