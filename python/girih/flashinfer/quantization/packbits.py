"""flashinfer.quantization.packbits: eight truth values a byte. Attention's masks want bitorder="little", which is not the default."""

from __future__ import annotations

from typing import Literal, cast

import torch

import girih

from .._arguments import one_of


def _order(bitorder: str) -> Literal["big", "little"]:
    one_of("packbits", "bitorder", bitorder, ("big", "little"))
    return cast('Literal["big", "little"]', bitorder)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return (x if x.dtype in (torch.bool, torch.uint8) else x != 0).contiguous()


def packbits(x: torch.Tensor, bitorder: str = "big") -> torch.Tensor:
    """uint8 [ceil(n / 8)]: bit i % 8 of byte i / 8, from the highest ("big") or the lowest ("little"), is x[i] != 0."""
    return cast("torch.Tensor", girih.packbits(_bytes(x), order=_order(bitorder)))


def segment_packbits(x: torch.Tensor, indptr: torch.Tensor, bitorder: str = "big") -> tuple[torch.Tensor, torch.Tensor]:
    """packbits() of every segment [indptr[i], indptr[i + 1]), which begins at a byte: (bytes, their indptr, of indptr's type)."""
    host = indptr.cpu()
    if host.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"indptr.dtype={indptr.dtype}; must be int32 or int64")
    packed, packed_indptr = girih.segment_packbits(_bytes(x), host, order=_order(bitorder))
    return packed, torch.tensor(packed_indptr, dtype=indptr.dtype, device=indptr.device)
