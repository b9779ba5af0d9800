"""flashinfer.tllm_enums: of its enumerations the one that quantisation takes."""

from __future__ import annotations

from enum import IntEnum


class SfLayout(IntEnum):
    """How block scales lie: in tiles of 128 rows x 4 blocks, of 8 x 4, or row by row."""

    layout_128x4 = 0
    layout_8x4 = 1
    layout_linear = 2
