"""flashinfer.quantization.nvfp4_quantization_utils: the global scale of a tensor that becomes NVFP4."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

from .._arguments import refuse

FLOAT4_E2M1_MAX = 6.0
FLOAT8_E4M3_MAX = 448.0


class NVFP44Over6ErrMode(IntEnum):
    """How a search among block scales measures its error."""

    MAE = 0
    MSE = 1


@dataclass(frozen=True)
class NVFP44Over6Config:
    """A search among two scales for each block, which Girih does not do: functions that are given one refuse it."""

    e4m3_max: int = 448
    err_mode: NVFP44Over6ErrMode | str = NVFP44Over6ErrMode.MAE
    err_use_fast_math: bool = False

    def __post_init__(self) -> None:
        if self.e4m3_max not in (256, 448):
            raise ValueError(f"e4m3_max={self.e4m3_max}; must be 256 or 448")
        modes = NVFP44Over6ErrMode.__members__
        name = self.err_mode.upper() if isinstance(self.err_mode, str) else NVFP44Over6ErrMode(self.err_mode).name
        if name not in modes:
            raise ValueError(f"err_mode={self.err_mode!r}; must be one of {tuple(modes)}")
        object.__setattr__(self, "err_mode", modes[name])

    @property
    def err_mode_name(self) -> str:
        """ "MAE" or "MSE"."""
        return self.err_mode.upper() if isinstance(self.err_mode, str) else self.err_mode.name


def nvfp4_e4m3_max(nvfp4_4over6_config: NVFP44Over6Config | None = None) -> float:
    """The largest block scale: that of e4m3, or the recipe's."""
    return FLOAT8_E4M3_MAX if nvfp4_4over6_config is None else float(nvfp4_4over6_config.e4m3_max)


def make_nvfp4_global_scale(
    input_tensor: torch.Tensor,
    per_token_activation: bool,
    global_scale: float | None = None,
    nvfp4_4over6_config: NVFP44Over6Config | None = None,
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
