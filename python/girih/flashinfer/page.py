"""flashinfer.page: the paged cache beside attention: where appended tokens go, and writing them.

FlashInfer gives each token its request and its position; Girih's append() takes tokens that are the last of their request. So every token is
made a request of its own here, with one page and the length that ends with its place.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, NamedTuple, TypeAlias, TypeVar

import torch

import girih

from ._arguments import refuse
from .utils import TensorLayout, check_shape_dtype_device

_F = TypeVar("_F", bound=Callable[..., Any])
_Cache: TypeAlias = "torch.Tensor | tuple[torch.Tensor, torch.Tensor]"


def _unpacked(cache: _Cache, kv_layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of a cache as 4-D views: of one tensor [pages, 2, ...] or of a pair; the dimension of one-token pages may be missing."""
    if kv_layout not in TensorLayout.__members__:
        raise KeyError(f"Invalid kv_layout {kv_layout}")
    slot = -3 if kv_layout == "NHD" else -2
    if isinstance(cache, torch.Tensor):
        if cache.ndim == 4:
            cache = cache.unsqueeze(slot)
        if cache.ndim != 5 or cache.shape[1] != 2:
            raise ValueError(
                f"paged_kv_cache.shape={tuple(cache.shape)}; must be [pages, 2, ...], 5-D (4-D for pages of one token)"
            )
        return cache[:, 0], cache[:, 1]
    if isinstance(cache, (tuple, list)) and len(cache) == 2:
        k, v = (c.unsqueeze(slot) if c.ndim == 3 else c for c in cache)
        return k, v
    raise KeyError(f"paged_kv_cache is a {type(cache).__name__}; must be one tensor or a pair of tensors")


class _Table(NamedTuple):
    """Where tokens go, as arrays on a GPU say it: what a request's list does not hold is written nowhere."""

    arrays: dict[str, Any]  # of append_at

    def append(self, store: girih.KvStore, k: torch.Tensor, v: torch.Tensor | None = None) -> None:
        girih.append_at(store, k, v, **self.arrays)

    def write(self, x: torch.Tensor, cache: torch.Tensor, kv_layout: str) -> None:
        """Codes as they are: pairs of them are 16-bit elements of any kind."""
        if x.shape[-1] % 2:
            raise refuse(
                "page",
                "head_dim",
                x.shape[-1],
                "on a GPU one-byte caches take even widths; append 16-bit keys with girih.append_at, which quantises",
            )
        store = girih.KvStore.paged(cache.view(torch.float16), layout=kv_layout)
        girih.append_at(store, x.contiguous().view(torch.float16), **self.arrays)


class _Places(NamedTuple):
    """Where tokens go, on the host: token rows[i] (all, in order, where rows is None) to entry kv_len[i] - 1 of page pages[i]."""

    rows: torch.Tensor | None
    pages: torch.Tensor
    kv_len: torch.Tensor

    def chosen(self, x: torch.Tensor) -> torch.Tensor:
        return x[: self.pages.shape[0]] if self.rows is None else x[self.rows.to(x.device)]

    def append(self, store: girih.KvStore, k: torch.Tensor, v: torch.Tensor | None = None) -> None:
        count = self.pages.shape[0]
        if count > 0:
            girih.append(
                store,
                self.chosen(k),
                None if v is None else self.chosen(v),
                append_indptr=torch.arange(count + 1, dtype=torch.int32),
                kv_len=self.kv_len,
                kv_indices=self.pages,
                table_stride=1,
            )

    def write(self, x: torch.Tensor, cache: torch.Tensor, kv_layout: str) -> None:
        """Codes as they are: x [tokens, heads, dim] of the cache's type, of any width."""
        entry = (self.kv_len - 1).to(cache.device)
        page = self.pages.to(cache.device)
        heads_first = cache if kv_layout == "NHD" else cache.transpose(1, 2)
        heads_first.view(_bits(cache))[page, entry] = self.chosen(x).view(_bits(cache))


def _bits(x: torch.Tensor) -> torch.dtype:
    """A type of the same width that indexing knows."""
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.dtype.itemsize]


def _index(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """An index array as append_at() takes it."""
    if x.device != device:
        x = x.to(device, non_blocking=True)
    if x.dtype != torch.int32 and x.dtype != torch.int64:
        x = x.to(torch.int32)
    return x if x.is_contiguous() else x.contiguous()


def _places(
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    page_size: int,
    kv_last_page_len: torch.Tensor | None = None,
) -> _Places | _Table:
    if kv_indices.is_cuda:
        device = kv_indices.device
        ids = kv_indices if kv_indices.dtype == torch.int32 else kv_indices.int()
        return _Table(
            {
                "batch_indices": _index(batch_indices, device),
                "positions": _index(positions, device),
                "kv_indices": _index(ids, device),
                "kv_indptr": _index(kv_indptr, device),
            }
        )
    batch, position = batch_indices.cpu().long(), positions.cpu().long()
    if batch.shape != position.shape or batch.ndim != 1:
        raise ValueError(
            f"positions.shape={tuple(position.shape)}; must be that of batch_indices, {tuple(batch.shape)}, 1-D"
        )
    rows = None
    if bool((batch < 0).any()):  # get_batch_indices_positions() pads with -1
        rows = (batch >= 0).nonzero().squeeze(1)
        batch, position = batch[rows], position[rows]
    indptr, indices = kv_indptr.cpu().long(), kv_indices.cpu()
    num_requests = indptr.shape[0] - 1
    if bool((batch >= num_requests).any()):
        raise ValueError(f"batch_indices: has {int(batch.max())}; kv_indptr is of {num_requests} requests")
    begins, ends = indptr[:-1][batch], indptr[1:][batch]
    where = begins + position.div(page_size, rounding_mode="floor")
    length = (ends - begins) * page_size
    if kv_last_page_len is not None:
        if kv_last_page_len.shape != (num_requests,):
            raise ValueError(f"kv_last_page_len.shape={tuple(kv_last_page_len.shape)}; must be ({num_requests},)")
        length = length - page_size + kv_last_page_len.cpu().long()[batch]
    outside = (position < 0) | (position >= length)
    if bool(outside.any()):
        i = int(outside.nonzero()[0])
        raise ValueError(
            f"positions: {int(position[i])} of request {int(batch[i])}, whose pages (kv_indptr, kv_last_page_len) hold "
            f"{int(length[i])} tokens; the page table must already include those that are appended"
        )
    return _Places(rows, indices[where].to(torch.int32), (position % page_size + 1).to(torch.int32))


def get_batch_indices_positions(
    append_indptr: torch.Tensor,
    seq_lens: torch.Tensor,
    nnz: int,
    batch_indices: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The request and the position of every appended token, int32 [nnz]; seq_lens are lengths after the append.

    Tokens past append_indptr[-1] are padding: request -1, position 0. On append_indptr's device, without waiting for it.
    """
    device = append_indptr.device
    for name, given in (("batch_indices", batch_indices), ("positions", positions)):
        if given is not None:
            check_shape_dtype_device(given, (nnz,), torch.int32, device, name)
    ends = append_indptr[1:].to(torch.int64)
    if ends.shape[0] == 0:
        ends = append_indptr.to(torch.int64)  # no requests: all tokens are padding
        seq_lens = ends
    token = torch.arange(nnz, device=device)
    request = torch.searchsorted(ends, token, right=True)
    real = request < ends.shape[0]
    request = torch.where(real, request, -1)
    # Negative indices take the last request's, which where() then drops.
    position = torch.where(real, token - ends[request] + seq_lens.to(device=device, dtype=torch.int64)[request], 0)
    if batch_indices is None:
        batch_indices = torch.empty(nnz, dtype=torch.int32, device=device)
    if positions is None:
        positions = torch.empty(nnz, dtype=torch.int32, device=device)
    batch_indices.copy_(request)
    positions.copy_(position)
    return batch_indices, positions


def get_seq_lens(kv_indptr: torch.Tensor, kv_last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """Tokens of each request: its full pages' and those of its last page."""
    pages = kv_indptr[1:] - kv_indptr[:-1]
    return (pages - 1).clamp(min=0) * page_size + kv_last_page_len


def _with_append_indptr(function: _F) -> _F:
    """Takes the form of releases before 0.2, too, by which request i appends its rows [append_indptr[i], append_indptr[i + 1]) at its
    end."""

    def older(
        append_key: torch.Tensor,
        append_value: torch.Tensor,
        append_indptr: torch.Tensor,
        paged_kv_cache: _Cache,
        kv_indices: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_last_page_len: torch.Tensor,
        kv_layout: str = "NHD",
    ) -> Any:
        k_cache, _ = _unpacked(paged_kv_cache, kv_layout)
        lengths = get_seq_lens(kv_indptr, kv_last_page_len, k_cache.shape[1 if kv_layout == "NHD" else 2])
        places = get_batch_indices_positions(append_indptr, lengths, append_key.shape[0])
        return function(append_key, append_value, *places, paged_kv_cache, kv_indices, kv_indptr, kv_last_page_len, kv_layout)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_older = "append_indptr" in kwargs or (len(args) > 3 and _is_cache(args[3]))
        return older(*args, **kwargs) if is_older else function(*args, **kwargs)

    return call  # type: ignore[return-value]


def _is_cache(x: Any) -> bool:
    return isinstance(x, (tuple, list)) or (isinstance(x, torch.Tensor) and x.ndim > 1)


@_with_append_indptr
def append_paged_kv_cache(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_kv_cache: _Cache,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    kv_layout: str = "NHD",
) -> None:
    """Writes append_key and append_value [tokens, kv heads, dim]: token i is positions[i] of request batch_indices[i] (-1: of none).

    The page table (kv_indices, kv_indptr, kv_last_page_len) already includes the new tokens.
    """
    k_cache, v_cache = _unpacked(paged_kv_cache, kv_layout)
    page_size = k_cache.shape[1 if kv_layout == "NHD" else 2]
    places = _places(batch_indices, positions, kv_indices, kv_indptr, page_size, kv_last_page_len)
    if append_key.dtype == k_cache.dtype and k_cache.dtype.itemsize == 1:
        places.write(append_key, k_cache, kv_layout)
        places.write(append_value, v_cache, kv_layout)
        return
    if k_cache.dtype.itemsize == 1:
        raise refuse(
            "page.append_paged_kv_cache",
            "append_key.dtype",
            append_key.dtype,
            f"the cache is of {k_cache.dtype} and no scale is given; girih.append quantises as it writes",
        )
    places.append(girih.KvStore.paged(k_cache, v_cache, layout=kv_layout), append_key, append_value)


def append_paged_mla_kv_cache(
    append_ckv: torch.Tensor,
    append_kpe: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    ckv_cache: torch.Tensor | None,
    kpe_cache: torch.Tensor | None,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
) -> None:
    """Writes append_ckv [tokens, dim] to ckv_cache [pages, page_size, dim] and append_kpe likewise, of any widths."""
    if ckv_cache is None or kpe_cache is None:
        raise ValueError("ckv_cache and kpe_cache must both be given")
    places = _places(batch_indices, positions, kv_indices, kv_indptr, ckv_cache.shape[1], kv_last_page_len)
    for new, cache in ((append_ckv, ckv_cache), (append_kpe, kpe_cache)):
        if new.dtype != cache.dtype:
            raise ValueError(f"append_ckv and append_kpe are to be of their caches' types: {new.dtype}, {cache.dtype}")
        if cache.dtype.itemsize == 1:
            places.write(new.unsqueeze(1), cache.unsqueeze(2), "NHD")
        else:
            places.append(girih.KvStore.paged(cache.unsqueeze(2)), new.unsqueeze(1))


def _decode_scale(name: str, scale: float | torch.Tensor) -> float:
    value = float(scale)
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{name}={value}; must be a positive finite global decode scale")
    return value


def _check_nvfp4(append_key: torch.Tensor, append_value: torch.Tensor, caches: list[torch.Tensor]) -> None:
    if append_key.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"append_key must be float16 or bfloat16, got {append_key.dtype}")
    if append_value.dtype != append_key.dtype:
        raise ValueError(
            f"append_key and append_value must have the same dtype, got {append_key.dtype} and {append_value.dtype}"
        )
    if any(c.dtype != torch.uint8 for c in caches[:2]):
        raise ValueError("NVFP4 paged K/V cache tensors must have dtype torch.uint8")
    if any(c.dtype != torch.float8_e4m3fn for c in caches[2:]):
        raise ValueError("NVFP4 scale cache tensors must have dtype torch.float8_e4m3fn")


def _append_nvfp4(
    places: _Places | _Table,
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    caches: list[torch.Tensor],
    k_scale: float,
    v_scale: float,
    kv_layout: str,
) -> None:
    k, v, k_scales, v_scales = caches
    store = girih.KvStore.paged(
        k,
        v,
        layout=kv_layout,
        k_dtype="nvfp4",
        v_dtype="nvfp4",
        k_scale=k_scales,
        v_scale=v_scales,
        k_global_scale=k_scale,
        v_global_scale=v_scale,
    )
    places.append(store, append_key, append_value)


def nvfp4_quantize_append_paged_kv_cache(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_kv_cache: _Cache,
    kv_cache_sf: _Cache,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str = "NHD",
) -> None:
    """append_paged_kv_cache() to 4-bit pages (uint8, half the width) and their block scales (e4m3, a sixteenth of it)."""
    caches = [*_unpacked(paged_kv_cache, kv_layout), *_unpacked(kv_cache_sf, kv_layout)]
    _check_nvfp4(append_key, append_value, caches)
    k_scale, v_scale = _decode_scale("k_scale", k_scale), _decode_scale("v_scale", v_scale)
    page_size = caches[0].shape[1 if kv_layout == "NHD" else 2]
    places = _places(batch_indices, positions, kv_indices, kv_indptr, page_size, kv_last_page_len)
    _append_nvfp4(places, append_key, append_value, caches, k_scale, v_scale, kv_layout)


def nvfp4_quantize_append_paged_kv_cache_with_slot_mapping(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    slot_mapping: torch.Tensor,
    paged_kv_cache: _Cache,
    kv_cache_sf: _Cache,
    k_scale: float | torch.Tensor,
    v_scale: float | torch.Tensor,
    kv_layout: str = "NHD",
    nvfp4_4over6: object | None = None,
) -> None:
    """The same for token i at entry slot_mapping[i] % page_size of page slot_mapping[i] / page_size; nowhere if outside."""
    if nvfp4_4over6 is not None:
        raise refuse(
            "page.nvfp4_quantize_append_paged_kv_cache_with_slot_mapping",
            "nvfp4_4over6",
            nvfp4_4over6,
            "Girih quantises NVFP4 with one scale candidate a block",
        )
    caches = [*_unpacked(paged_kv_cache, kv_layout), *_unpacked(kv_cache_sf, kv_layout)]
    _check_nvfp4(append_key, append_value, caches)
    if slot_mapping.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"slot_mapping must be int32 or int64, got {slot_mapping.dtype}")
    if min(append_key.shape[0], append_value.shape[0]) < slot_mapping.shape[0]:
        raise ValueError("append_key and append_value must have at least slot_mapping.shape[0] rows")
    k_scale, v_scale = _decode_scale("k_scale", k_scale), _decode_scale("v_scale", v_scale)
    page_size = caches[0].shape[1 if kv_layout == "NHD" else 2]
    if slot_mapping.is_cuda:
        _append_nvfp4(_Table({"slots": slot_mapping.contiguous()}), append_key, append_value, caches, k_scale, v_scale, kv_layout)
        return
    slots = slot_mapping.cpu().long()
    outside = (slots < 0) | (slots >= caches[0].shape[0] * page_size)
    rows = (~outside).nonzero().squeeze(1) if bool(outside.any()) else None
    slots = slots if rows is None else slots[rows]
    places = _Places(rows, (slots // page_size).to(torch.int32), (slots % page_size + 1).to(torch.int32))
    _append_nvfp4(places, append_key, append_value, caches, k_scale, v_scale, kv_layout)


def nvfp4_quantize_append_paged_mla_kv_cache(
    append_ckv: torch.Tensor,
    append_kpe: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    ckv_cache: torch.Tensor,
    ckv_sf_cache: torch.Tensor,
    kpe_cache: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    ckv_scale: float,
    kpe_scale: float,
) -> None:
    """append_paged_mla_kv_cache() to a 4-bit ckv cache (with block scales) and an e4m3 kpe cache, of global scales ckv_scale, kpe_scale."""
    if append_ckv.dtype not in (torch.float16, torch.bfloat16) or append_kpe.dtype != append_ckv.dtype:
        raise ValueError(
            f"append_ckv and append_kpe must both be float16 or bfloat16, got {append_ckv.dtype} and {append_kpe.dtype}"
        )
    for name, cache, dtype in (
        ("ckv_cache", ckv_cache, torch.uint8),
        ("ckv_sf_cache", ckv_sf_cache, torch.float8_e4m3fn),
        ("kpe_cache", kpe_cache, torch.float8_e4m3fn),
    ):
        if cache.dtype != dtype:
            raise ValueError(f"{name} must have dtype {dtype}, got {cache.dtype}")
    ckv_scale, kpe_scale = _decode_scale("ckv_scale", ckv_scale), _decode_scale("kpe_scale", kpe_scale)
    places = _places(batch_indices, positions, kv_indices, kv_indptr, ckv_cache.shape[1], kv_last_page_len)
    ckv = girih.KvStore.paged(
        ckv_cache.unsqueeze(2), k_dtype="nvfp4", k_scale=ckv_sf_cache.unsqueeze(2), k_global_scale=ckv_scale
    )
    kpe = girih.KvStore.paged(
        kpe_cache.unsqueeze(2), k_scale=torch.ones(1, device=kpe_cache.device), k_global_scale=kpe_scale
    )
    places.append(ckv, append_ckv.unsqueeze(1))
    places.append(kpe, append_kpe.unsqueeze(1))
