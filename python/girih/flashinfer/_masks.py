"""Custom masks as bits, and the parameters of multi-item scoring.

FlashInfer packs each request's [qo_len, kv_len] conditions from a byte border. Girih reads a bit array with one start per request, so that
both that form and bits packed without borders could be read; the starts are made from the lengths of the plan and kept on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ._planner import IndexArray, host_array

__all__ = ["MaskBuffers", "multi_item_params", "packed_mask"]


def packed_mask(mask: torch.Tensor) -> torch.Tensor:
    """Conditions as bits, little-endian, u8 [ceil(n / 8)], on the mask's device."""
    flat = mask.reshape(-1)
    if flat.dtype != torch.bool:
        flat = flat != 0
    if not flat.is_cuda:
        return torch.from_numpy(np.packbits(flat.numpy(), bitorder="little"))
    padded = torch.nn.functional.pad(flat.to(torch.uint8), (0, -flat.numel() % 8)).reshape(-1, 8)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=flat.device)
    return (padded * weights).sum(1, dtype=torch.uint8)


class MaskBuffers:
    """The bits of a wrapper's current plan: tensors of its own, or the buffers that a CUDA graph reads."""

    def __init__(
        self, device: torch.device, bits: torch.Tensor | None = None, indptr: torch.Tensor | None = None
    ) -> None:
        self._device = device
        self._bits = bits
        self._indptr = indptr
        self._fixed = bits is not None
        self._start: torch.Tensor | None = None
        if bits is not None and indptr is None:
            raise ValueError("mask_indptr_buf must be given with custom_mask_buf")

    def take(
        self, mask: torch.Tensor | None, packed: torch.Tensor | None, qo_indptr: IndexArray, kv_len: IndexArray
    ) -> None:
        """Takes a flat bool mask, or its bits with each request from a byte border."""
        sizes = (qo_indptr[1:] - qo_indptr[:-1]).astype(np.int64) * kv_len
        start = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum((sizes + 7) // 8, out=start[1:])
        if packed is None:
            assert mask is not None
            if mask.numel() != int(sizes.sum()):
                raise ValueError(
                    f"custom_mask has {mask.numel()} entries; must have {int(sizes.sum())} (sum of qo_len * kv_len)"
                )
            packed = _pack_requests(mask.reshape(-1), sizes)
        if packed.dtype != torch.uint8 or packed.numel() < start[-1]:
            raise ValueError(
                f"packed_custom_mask has {packed.numel()} entries of {packed.dtype}; must be uint8 with {int(start[-1])} "
                "(each request's qo_len * kv_len bits from a byte border)"
            )
        bit_start = torch.from_numpy(start[:-1] * 8)
        if not self._fixed:
            self._bits = packed.reshape(-1).to(self._device)
            self._start = bit_start.to(self._device)
            return
        assert self._bits is not None and self._indptr is not None
        if packed.numel() > self._bits.numel():
            raise ValueError(f"custom_mask_buf has {self._bits.numel()} bytes; this mask needs {packed.numel()}")
        self._bits[: packed.numel()].copy_(packed.reshape(-1), non_blocking=True)
        self._indptr[: len(start)].copy_(torch.from_numpy(start), non_blocking=True)
        if self._start is None:
            self._start = torch.zeros(len(bit_start), dtype=torch.int64, device=self._device)
        self._start.copy_(bit_start, non_blocking=True)

    @property
    def params(self) -> dict[str, Any]:
        """The run-time parameters of girih.variants.custom_mask()."""
        return {"custom_mask": self._bits, "custom_mask_start": self._start}


def _pack_requests(mask: torch.Tensor, sizes: IndexArray) -> torch.Tensor:
    if len(sizes) <= 1 or not (sizes % 8).any():
        return packed_mask(mask)
    return torch.cat([packed_mask(part) for part in torch.split(mask, sizes.tolist())])


def multi_item_params(
    prefix_len: torch.Tensor | None, positions: torch.Tensor | None, items_len: int, kv_len: IndexArray
) -> dict[str, Any]:
    """Plan-time parameters of multi-item scoring: the prefix of each request, and the place of each later token in its item.

    Request r's places begin at entry r * items_len; the padding of the last request may be left out.
    """
    assert prefix_len is not None
    if positions is None:
        raise ValueError("token_pos_in_items_ptr must be given with prefix_len_ptr")
    prefix = _as_i32(prefix_len)
    place = _as_i32(positions)
    if len(prefix) != len(kv_len):
        raise ValueError(f"prefix_len_ptr has {len(prefix)} entries; must have {len(kv_len)} (requests)")
    used = np.maximum(kv_len - prefix, 0)
    if len(used) > 1 and int(used.max()) > items_len:
        raise ValueError(
            f"token_pos_in_items_len={items_len}; must be at least the {int(used.max())} tokens after a prefix"
        )
    needed = (len(used) - 1) * items_len + int(used[-1]) if len(used) else 0
    if len(place) < needed:
        raise ValueError(
            f"token_pos_in_items_ptr has {len(place)} entries; must have {needed}, those of the last request included"
        )
    return {"prefix_len": prefix, "token_pos_in_items": place, "token_pos_in_items_len": int(items_len)}


def _as_i32(values: torch.Tensor) -> IndexArray:
    if values.dtype in (torch.uint16, torch.uint32):
        values = values.to(torch.int64)
    return host_array(values.reshape(-1)).astype(np.int32)
