"""Block scales in the tiles that tensor cores read: 128 rows by 4 blocks, interleaved by 32 rows, or 8 by 4."""

from __future__ import annotations

import torch

from ..tllm_enums import SfLayout
from ..utils import round_up

__all__ = ["tiled", "untiled"]


def tiled(scales: torch.Tensor, layout: SfLayout) -> torch.Tensor:
    """Scales [rows, blocks] in tiles of 128 x 4 or 8 x 4, padded with zeros to whole ones; flat."""
    rows, blocks = scales.shape
    height = 128 if layout == SfLayout.layout_128x4 else 8
    padded = torch.nn.functional.pad(scales, (0, -blocks % 4, 0, -rows % height))
    if layout == SfLayout.layout_8x4:
        return padded.view(-1, 8, padded.shape[1] // 4, 4).permute(0, 2, 1, 3).reshape(-1)
    return padded.view(-1, 4, 32, padded.shape[1] // 4, 4).permute(0, 3, 2, 1, 4).reshape(-1)


def untiled(scales: torch.Tensor, rows: int, blocks: int, layout: SfLayout) -> torch.Tensor:
    """The inverse of tiled(): [rows, blocks]."""
    columns = round_up(blocks, 4) // 4
    if layout == SfLayout.layout_linear:
        return scales.reshape(rows, blocks)
    if layout == SfLayout.layout_8x4:
        plain = scales.reshape(-1, columns, 8, 4).permute(0, 2, 1, 3)
    else:
        plain = scales.reshape(-1, columns, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return plain.reshape(-1, columns * 4)[:rows, :blocks].contiguous()
