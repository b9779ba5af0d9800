"""Attention, merging and number formats in float64 from their formulas, and caches whose unused places hold NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Mask = Callable[[np.ndarray, np.ndarray], np.ndarray]


def attention(
    q: np.ndarray,
    keys: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    qo_indptr: Sequence[int],
    *,
    mask: Mask | None = None,
    logits: Callable[[np.ndarray], np.ndarray] | None = None,
    sink: np.ndarray | None = None,
    sm_scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """q [tokens, heads, dim]; per request keys [n, kv_heads, dim] and values; mask(q_pos, kv_pos) -> visible. Returns (o, lse)."""
    tokens, heads, dim = q.shape
    dim_vo = values[0].shape[2]
    o = np.zeros((tokens, heads, dim_vo))
    lse = np.full((tokens, heads), -np.inf)
    scale = dim**-0.5 if sm_scale is None else sm_scale
    for r, (k, v) in enumerate(zip(keys, values, strict=True)):
        begin, end = qo_indptr[r], qo_indptr[r + 1]
        kv_len, group = k.shape[0], heads // k.shape[1]
        for row in range(begin, end):
            q_pos = kv_len - (end - begin) + row - begin
            seen = np.ones(kv_len, bool) if mask is None else mask(np.array(q_pos), np.arange(kv_len))
            for h in range(heads):
                s = k[:, h // group].astype(np.float64) @ q[row, h].astype(np.float64) * scale
                if logits is not None:
                    s = logits(s)
                s = s[seen]
                all_s = s if sink is None else np.append(s, sink[h])
                if all_s.size == 0:
                    continue
                top = all_s.max()
                total = np.exp(all_s - top).sum()
                lse[row, h] = top + np.log(total)
                o[row, h] = np.exp(s - top) / total @ v[seen, h // group].astype(np.float64)
    return o, lse


def merge(v: np.ndarray, s: np.ndarray, base2: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """v [states, ..., dim], s [states, ...]: merged over the first axis."""
    v, s = v.astype(np.float64), s.astype(np.float64)
    if base2:
        s = s * np.log(2)
    top = s.max(axis=0, initial=-np.inf)
    weight = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = weight.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.where(total[..., None] > 0, (weight[..., None] * v).sum(axis=0) / total[..., None], 0)
        lse = top + np.log(total)
    lse = np.where(total > 0, lse, -np.inf)
    return out, lse / np.log(2) if base2 else lse


def close(actual: Any, expected: np.ndarray, dtype: str = "float32", scale: float = 1.0) -> None:
    """Within a few roundings of `dtype`; infinities must agree."""
    eps = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    np.testing.assert_allclose(to_float64(actual), expected, rtol=4 * eps, atol=8 * eps * scale)


def to_float64(array: Any) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array.astype(np.float64)
    return array.double().cpu().numpy()


class PagedCache:
    """Requests' keys and values, [n, heads, dim] each, in scattered pages; every place without a key holds NaN."""

    def __init__(
        self,
        keys: Sequence[np.ndarray],
        values: Sequence[np.ndarray],
        page_size: int,
        rng: np.random.Generator,
        spare_pages: int = 3,
    ) -> None:
        counts = [-(-len(k) // page_size) for k in keys]
        heads, dim = keys[0].shape[1:]
        num_pages = sum(counts) + spare_pages
        self.page_size = page_size
        self.k = np.full((num_pages, page_size, heads, dim), np.nan, np.float32)
        self.v = np.full((num_pages, page_size, heads, values[0].shape[2]), np.nan, np.float32)
        order = rng.permutation(num_pages).astype(np.int32)
        self.kv_indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        self.kv_indices = order[: sum(counts)]
        self.kv_len = np.array([len(k) for k in keys], np.int32)
        for r, (k, v) in enumerate(zip(keys, values, strict=True)):
            for t in range(len(k)):
                page = self.kv_indices[self.kv_indptr[r] + t // page_size]
                self.k[page, t % page_size] = k[t]
                self.v[page, t % page_size] = v[t]

    def block_table(self, columns: int) -> np.ndarray:
        """[requests, columns]; entries past a request's pages are wild."""
        table = np.full((len(self.kv_len), columns), 1 << 30, np.int32)
        for r in range(len(self.kv_len)):
            pages = self.kv_indices[self.kv_indptr[r] : self.kv_indptr[r + 1]]
            table[r, : len(pages)] = pages
        return table


def decode_e2m1(packed: np.ndarray) -> np.ndarray:
    """[..., n] bytes -> [..., 2n] values, the even element in the low nibble."""
    magnitude = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
    return np.where(codes & 8, -1.0, 1.0) * magnitude[codes & 7]


def decode_e4m3(codes: np.ndarray) -> np.ndarray:
    codes = codes.view(np.uint8).astype(np.int64)
    exponent, fraction = codes >> 3 & 15, codes & 7
    value = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    value = np.where((codes & 127) == 127, np.nan, value)
    return np.where(codes & 128, -value, value)
