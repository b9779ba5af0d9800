"""Attention in float64 from its formula, and batches to run through it: what the tests of the drop-in compare with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor


def rotated(x: Tensor, pos: Tensor, theta: float = 1e4, scale: float = 1.0) -> Tensor:
    """RoPE over halves (Llama): x [n, heads, dim] at positions [n]."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half) / scale
    angle = pos.double()[:, None, None] * frequency
    a, b = x.double()[..., :half], x.double()[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window_left: int = -1,
    sm_scale: float | None = None,
    cap: float = 0.0,
    slopes: Tensor | None = None,
    rope: bool = False,
    sinks: Tensor | None = None,
    base2: bool = True,
) -> tuple[Tensor, Tensor]:
    """q [rows, heads, dim], k and v [keys, kv_heads, dim] -> out and lse [rows, heads] in float64; an empty row is (0, -inf)."""
    rows, heads, dim = q.shape
    keys, kv_heads = k.shape[:2]
    q_pos = torch.arange(rows) + keys - rows
    kv_pos = torch.arange(keys)
    q, k, v = q.double(), k.double(), v.double()
    if rope:
        q, k = rotated(q, q_pos), rotated(k, kv_pos)
    k, v = k.repeat_interleave(heads // kv_heads, 1), v.repeat_interleave(heads // kv_heads, 1)
    score = torch.einsum("qhd,khd->hqk", q, k) * (1 / math.sqrt(dim) if sm_scale is None else sm_scale)
    if slopes is not None:
        score = score + slopes.double()[:, None, None] * (kv_pos[None, :] - q_pos[:, None])
    if cap > 0:
        score = cap * torch.tanh(score / cap)
    visible = torch.ones(rows, keys, dtype=torch.bool)
    if causal:
        visible &= kv_pos[None, :] <= q_pos[:, None]
    if window_left >= 0:
        visible &= kv_pos[None, :] >= q_pos[:, None] - window_left
    if mask is not None:
        visible &= mask.reshape(rows, keys)
    score = score.masked_fill(~visible, -math.inf)
    joined = score if sinks is None else torch.cat([score, sinks.double()[:, None, None].expand(heads, rows, 1)], -1)
    lse = torch.logsumexp(joined, -1) if joined.shape[-1] else torch.full((heads, rows), -math.inf, dtype=torch.float64)
    weight = torch.nan_to_num(torch.exp(score - lse[..., None]))
    return torch.einsum("hqk,khd->qhd", weight, v), (lse / math.log(2) if base2 else lse).t()


@dataclass
class PagedBatch:
    """Requests over one paged cache whose unused slots hold NaN."""

    qo_indptr: Tensor
    indptr: Tensor
    indices: Tensor
    last: Tensor
    kv_lens: list[int]
    k: Tensor
    v: Tensor
    layout: str
    page_size: int

    @property
    def cache(self) -> tuple[Tensor, Tensor]:
        return self.k, self.v

    def keys(self, request: int) -> tuple[Tensor, Tensor]:
        pages = self.indices[self.indptr[request] : self.indptr[request + 1]].long()
        parts: list[Tensor] = []
        for cache in (self.k, self.v):
            page = cache[pages] if self.layout == "NHD" else cache[pages].transpose(1, 2)
            parts.append(page.reshape(-1, page.shape[2], page.shape[3])[: self.kv_lens[request]])
        return parts[0], parts[1]

    def rows(self, request: int) -> slice:
        return slice(int(self.qo_indptr[request]), int(self.qo_indptr[request + 1]))


def paged_batch(
    q_lens: list[int],
    kv_lens: list[int],
    *,
    heads: int = 2,
    dim: int = 64,
    dim_vo: int | None = None,
    page_size: int = 16,
    layout: str = "NHD",
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
) -> PagedBatch:
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    pages = [-(-n // page_size) for n in kv_lens]
    indptr = torch.tensor([0, *torch.tensor(pages).cumsum(0).tolist()], dtype=torch.int32)
    last = torch.tensor([(n - 1) % page_size + 1 if n else 0 for n in kv_lens], dtype=torch.int32)
    num_pages = int(indptr[-1]) + 2
    indices = torch.randperm(num_pages, generator=generator)[: int(indptr[-1])].to(torch.int32)

    def cache(d: int) -> Tensor:
        nhd = torch.full((num_pages, page_size, heads, d), math.nan)
        for request, n in enumerate(kv_lens):
            own = indices[indptr[request] : indptr[request + 1]].long()
            for at, page in enumerate(own.tolist()):
                used = min(page_size, n - at * page_size)
                nhd[page, :used] = torch.randn(used, heads, d, generator=generator)
        nhd = nhd.to(dtype)
        return nhd if layout == "NHD" else nhd.transpose(1, 2).contiguous()

    qo_indptr = torch.tensor([0, *torch.tensor(q_lens).cumsum(0).tolist()], dtype=torch.int32)
    return PagedBatch(qo_indptr, indptr, indices, last, kv_lens, cache(dim), cache(dim_vo or dim), layout, page_size)


def queries(batch: PagedBatch, heads: int, dim: int = 64, dtype: torch.dtype = torch.float16, seed: int = 1) -> Tensor:
    rows = int(batch.qo_indptr[-1])
    return torch.randn(rows, heads, dim, generator=torch.Generator(torch.get_default_device()).manual_seed(seed)).to(dtype)


def workspace() -> Tensor:
    return torch.zeros(1024, dtype=torch.uint8)


def check(actual: Any, expected: Any, tolerance: float = 2e-3) -> None:
    """Output and LSE, or one of them, against float64; where the reference is -inf the result must be too."""
    pairs = zip(actual, expected, strict=True) if isinstance(actual, tuple) else [(actual, expected)]
    for a, e in pairs:
        torch.testing.assert_close(a.double(), e, rtol=tolerance, atol=tolerance)
