"""flashinfer.quantization.nvfp4_quantization_utils: the global scale of a tensor that becomes NVFP4."""

from __future__ import annotations

import torch

from .._arguments import refuse

FLOAT4_E2M1_MAX = 6.0
FLOAT8_E4M3_MAX = 448.0


def nvfp4_e4m3_max(nvfp4_4over6_config: object | None = None) -> float:
    """The largest block scale: that of e4m3."""
    if nvfp4_4over6_config is not None:
        raise refuse(
            "nvfp4_e4m3_max", "nvfp4_4over6_config", nvfp4_4over6_config, "Girih has one scale candidate a block"
        )
    return FLOAT8_E4M3_MAX


def make_nvfp4_global_scale(
    input_tensor: torch.Tensor,
    per_token_activation: bool,
    global_scale: float | None = None,
    nvfp4_4over6_config: object | None = None,
) -> torch.Tensor:
    """f32 [1], as nvfp4_quantize() takes it: 448 * 6 / (largest magnitude), so that the largest block scale is 448; or the one given."""
    if per_token_activation:
        raise refuse(
            "make_nvfp4_global_scale", "per_token_activation", True, "Girih's global scale is one number a tensor"
        )
    if global_scale is not None:
        return torch.tensor([global_scale], dtype=torch.float32, device=input_tensor.device)
    largest = input_tensor.abs().max().to(torch.float32).reshape(1)
    limit = torch.finfo(torch.float32).max
    return (nvfp4_e4m3_max(nvfp4_4over6_config) * FLOAT4_E2M1_MAX / largest).clamp(max=limit)
