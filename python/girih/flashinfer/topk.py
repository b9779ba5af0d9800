"""flashinfer.topk: the k largest of each row, and their places as indices of pages or of a ragged tensor."""

from __future__ import annotations

from enum import IntEnum

import torch

import girih

from ._arguments import refuse
from .utils import check_shape_dtype_device


class TopKTieBreak(IntEnum):
    """Which of equal values at the border are taken. NONE is SMALL here."""

    NONE = 0
    SMALL = 1
    LARGE = 2


_MAX_K = 4096


def can_implement_filtered_topk() -> bool:
    """True: Girih's selection takes every k up to 4096 on every device."""
    return True


def _select(
    function: str,
    input: torch.Tensor,
    k: int,
    tie_break: int,
    index_dtype: torch.dtype,
    sorted: bool = False,
    starts: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    values: bool = False,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """(values, indices from the row's start), -1 where there are no more."""
    if k > _MAX_K:
        raise refuse(function, "k", k, f"k is at most {_MAX_K}; torch.topk has no limit")
    tie_break = TopKTieBreak(tie_break)
    taken = torch.empty(input.shape[0], k, dtype=input.dtype, device=input.device) if values else None
    indices = torch.empty(input.shape[0], k, dtype=index_dtype, device=input.device)
    width = input.shape[1]
    lengths = lengths if lengths is None else lengths.to(torch.int32)
    starts = starts if starts is None else starts.to(torch.int32)
    mirrored = tie_break == TopKTieBreak.LARGE
    if mirrored:
        # The last of equals is the first of the row read backwards.
        input = input.flip(-1)
        if lengths is not None:
            starts = width - lengths - (0 if starts is None else starts)
    girih.top_k(
        input,
        k,
        sorted=sorted,
        row_starts=starts,
        row_lengths=lengths,
        values=taken if values else False,
        indices=indices,
    )
    if mirrored:
        last = width - 1 if lengths is None else (lengths - 1).to(index_dtype).unsqueeze(-1)
        indices = torch.where(indices < 0, indices, last - indices)
        if not sorted:
            # By index again, with what is missing at the end.
            order = torch.where(indices < 0, torch.iinfo(index_dtype).max, indices).argsort(dim=-1)
            indices = indices.gather(1, order)
            taken = taken if taken is None else taken.gather(1, order)
    return taken, indices


def top_k(
    input: torch.Tensor,
    k: int,
    sorted: bool = False,
    deterministic: bool = False,
    tie_break: int = TopKTieBreak.NONE,
    dsa_graph_safe: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(values [rows, k] of input's type, indices int64 [rows, k]); by value descending if `sorted`, else by index."""
    if k > input.shape[1]:
        raise ValueError(f"k={k}; rows of input have {input.shape[1]} entries")
    values, indices = _select("top_k", input, k, tie_break, torch.int64, sorted=sorted, values=True)
    assert values is not None
    return values, indices


topk = top_k


def top_k_page_table_transform(
    input: torch.Tensor,
    src_page_table: torch.Tensor,
    lengths: torch.Tensor,
    k: int,
    row_to_batch: torch.Tensor | None = None,
    deterministic: bool = False,
    tie_break: int = TopKTieBreak.NONE,
    dsa_graph_safe: bool = False,
    row_starts: torch.Tensor | None = None,
    page_table_row_starts: torch.Tensor | None = None,
    *,
    page_size: int = 1,
    out: torch.Tensor | None = None,
    out_raw_indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """The k largest of input[r, row_starts[r]:][:lengths[r]] as places in the cache, int32 [rows, k], -1 where there are no more.

    Index i, counted from the row's start, becomes table[b, s + i // page_size] * page_size + i % page_size, with b = row_to_batch[r] (r) and
    s = page_table_row_starts[r] (row_starts[r] with pages of one). out_raw_indices takes the i.
    """
    rows = input.shape[0]
    if page_size <= 0 or page_size > 1 << 30 or page_size & (page_size - 1) != 0:
        raise ValueError(f"page_size must be a positive power of two no greater than 2**30, got {page_size}")
    if row_starts is not None and page_table_row_starts is None:
        if page_size > 1:
            raise ValueError("page_table_row_starts is required with page_size > 1 and row_starts")
        page_table_row_starts = row_starts
    for name, given in (("out", out), ("out_raw_indices", out_raw_indices)):
        if given is not None:
            check_shape_dtype_device(given, (rows, k), torch.int32, input.device, name)
            if not given.is_contiguous():
                raise ValueError(f"{name} must be contiguous")
    _, raw = _select("top_k_page_table_transform", input, k, tie_break, torch.int32, starts=row_starts, lengths=lengths)
    index = raw.clamp(min=0).long()
    request = torch.arange(rows, device=input.device) if row_to_batch is None else row_to_batch.long()
    entry = index // page_size
    if page_table_row_starts is not None:
        entry = entry + page_table_row_starts.long().unsqueeze(-1)
    pages = src_page_table[request.unsqueeze(-1), entry]
    places = torch.where(raw < 0, raw, (pages * page_size + index % page_size).to(torch.int32))
    if out_raw_indices is not None:
        out_raw_indices.copy_(raw)
    return places if out is None else out.copy_(places)


def top_k_ragged_transform(
    input: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor,
    k: int,
    deterministic: bool = False,
    tie_break: int = TopKTieBreak.NONE,
    dsa_graph_safe: bool = False,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same as indices plus offsets[r], int32 [rows, k]."""
    _, raw = _select("top_k_ragged_transform", input, k, tie_break, torch.int32, starts=row_starts, lengths=lengths)
    return torch.where(raw < 0, raw, raw + offsets.to(torch.int32).unsqueeze(-1))
