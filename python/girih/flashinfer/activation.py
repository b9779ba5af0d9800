"""flashinfer.activation: act(gate) * up, the gates being the first half of the last dimension."""

from __future__ import annotations

from typing import Literal

import torch

import girih


def _gated(
    activation: Literal["silu", "gelu", "gelu_tanh"], input: torch.Tensor, out: torch.Tensor | None
) -> torch.Tensor:
    shape = (*input.shape[:-1], input.shape[-1] // 2)
    if input.shape[-1] % 2 != 0:
        raise ValueError(f"input.shape[-1]={input.shape[-1]}; must be even: gates, then ups")
    if out is None:
        out = torch.empty(shape, dtype=input.dtype, device=input.device)
    elif out.shape != shape:
        raise ValueError(f"out.shape={tuple(out.shape)}; must be {shape}")
    # view() of `out` must not copy, or the result would be lost.
    girih.activate(input.reshape(-1, input.shape[-1]), activation, out=out.view(-1, shape[-1]))
    return out


def silu_and_mul(input: torch.Tensor, out: torch.Tensor | None = None, enable_pdl: bool | None = None) -> torch.Tensor:
    """silu(input[..., :h]) * input[..., h:]; input [..., 2 * h]."""
    return _gated("silu", input, out)


def gelu_tanh_and_mul(
    input: torch.Tensor, out: torch.Tensor | None = None, enable_pdl: bool | None = None
) -> torch.Tensor:
    """gelu(input[..., :h]) * input[..., h:], with the tanh form of gelu."""
    return _gated("gelu_tanh", input, out)


def gelu_and_mul(input: torch.Tensor, out: torch.Tensor | None = None, enable_pdl: bool | None = None) -> torch.Tensor:
    """gelu(input[..., :h]) * input[..., h:], with the error function."""
    return _gated("gelu", input, out)
