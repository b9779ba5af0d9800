"""Batched attention for frameworks whose keys and values are [batch, heads, tokens, dim] tensors of any strides.

Each request's keys are one page of a paged store, so nothing is copied or repeated. Schedules are kept by what selects
a kernel and by powers of two of the sizes; a plan is kept with its schedule and made anew only for another batch, so
that the layers of a forward pass, which all see the same mask object, share one. Everything kept belongs to the calling
thread, as contexts do.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import girih

from ._kernel import DenseMask, Features, Kernel
from ._mask import TRUE, MaskStructure, Node

__all__ = ["Batch", "DenseMask", "Features", "attend_paged", "attend_structured", "attend_varlen", "refuse_gradients"]

#: Schedules kept by each thread; the least recently used one goes first.
MAX_SCHEDULES = 64


# -------------------------------------------------------------------------------------------------- schedules and plans


@dataclass
class Batch:
    """What a plan is made from. `key` tells batches apart; a plan whose key is equal is used again."""

    key: Hashable
    qo_indptr: np.ndarray[Any, Any]
    kv_len: np.ndarray[Any, Any]
    page_size: int
    kv_indptr: np.ndarray[Any, Any] | None = None
    table_stride: int = 0
    kv_pos: np.ndarray[Any, Any] | None = None
    q_pos: np.ndarray[Any, Any] | None = None
    logical_kv_len: np.ndarray[Any, Any] | None = None
    params: dict[str, Any] = field(default_factory=dict)

    def plan(self, attention: girih.Attention) -> None:
        segment = girih.Segment(
            kv_indptr=self.kv_indptr,
            kv_len=self.kv_len,
            page_size=self.page_size,
            table_stride=self.table_stride,
            kv_pos=self.kv_pos,
        )
        attention.plan(
            self.qo_indptr, [segment], kv_len=self.logical_kv_len, q_pos=self.q_pos, params=self.params or None
        )


@dataclass
class _Entry:
    attention: girih.Attention
    planned: Hashable = None


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self.steps: dict[Hashable, _Step] = {}


_of_thread = _OfThread()


def _bucket(size: int, least: int) -> int:
    """The next power of two, so that growing sizes need few schedules."""
    return max(least, 1 << max(0, size - 1).bit_length())


def _planned(kernel: Kernel, batch: Batch) -> _Entry:
    """A schedule that holds a plan of the batch."""
    num_requests = len(batch.qo_indptr) - 1
    param_bytes = sum(value.nbytes for value in batch.params.values() if isinstance(value, np.ndarray))
    limits = (
        _bucket(int(batch.qo_indptr[-1]), 1),
        _bucket(num_requests, 1),
        _bucket(int(batch.kv_len.max(initial=1)), 256),
        _bucket(int(np.diff(batch.qo_indptr).max(initial=1)), 1),
        _bucket(param_bytes + 4096, 1 << 16),
    )
    entries = _of_thread.entries
    entry = entries.get((kernel, limits))
    if entry is None:
        spec = girih.AttentionSpec(
            num_qo_heads=kernel.heads[0],
            num_kv_heads=kernel.heads[1],
            head_dim_qk=kernel.head_dims[0],
            head_dim_vo=kernel.head_dims[1],
            q_dtype=kernel.dtypes[0],
            k_dtype=kernel.dtypes[1],
            v_dtype=kernel.dtypes[2],
            o_dtype=kernel.dtypes[0],
            sm_scale=kernel.sm_scale,
            variant=kernel.variant(),
        )
        tokens, requests, kv_len, qo_len, bytes_ = limits
        attention = girih.Attention(
            spec,
            girih.AttentionLimits(
                max_tokens=tokens,
                max_requests=requests,
                max_kv_len=kv_len,
                max_qo_len=qo_len,
                max_param_bytes=bytes_,
            ),
            device=kernel.device,
        )
        entry = entries[(kernel, limits)] = _Entry(attention)
        if len(entries) > MAX_SCHEDULES:
            entries.popitem(last=False)
    else:
        entries.move_to_end((kernel, limits))
    if entry.planned is None or entry.planned != batch.key:
        entry.planned = None  # should planning fail, no plan is there to be used again
        batch.plan(entry.attention)
        entry.planned = batch.key
    return entry


# ---------------------------------------------------------------------------------------------------------------- calls


def refuse_gradients(out: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    """`out`, made to refuse a backward pass where an input would need one."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        return _InferenceOnly.apply(out, *inputs)  # type: ignore[no-any-return]
    return out


class _InferenceOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "girih's attention is for inference and has no backward pass; run the model under torch.no_grad() or "
            'torch.inference_mode(), and train with attn_implementation="sdpa"'
        )


def _kernel_of(
    q_heads: tuple[int, int], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, features: Features, **more: Any
) -> Kernel:
    """q_heads: the number and the dim of q's heads; k, v [1 | batch, heads, tokens, dim]."""
    if features.sm_scale == 0:
        raise ValueError("scaling: 0 makes all scores equal and is not supported; give a number that is not 0, or None")
    return Kernel(
        device=str(q.device),
        dtypes=(q.dtype, k.dtype, v.dtype),
        heads=(q_heads[0], k.shape[1]),
        head_dims=(q_heads[1], v.shape[3]),
        sm_scale=features.sm_scale or 0.0,
        soft_cap=features.soft_cap,
        sinks=features.sinks is not None,
        **more,
    )


def _run_params(features: Features, **more: Any) -> dict[str, Any] | None:
    params = dict(more)
    if features.sinks is not None:
        params["sinks"] = features.sinks.detach().to(torch.float32).contiguous().view(-1)
    return params or None


def _rows(q: torch.Tensor) -> torch.Tensor:
    """[batch, heads, tokens, dim] as [batch * tokens, heads, dim], a view where the strides allow it."""
    batch, heads, tokens, dim = q.shape
    rows = q.detach().transpose(1, 2).reshape(batch * tokens, heads, dim)
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _broadcast(name: str, tensor: torch.Tensor, shape: tuple[int, int, int, int]) -> tuple[bool, bool]:
    """Whether a [1 | batch, 1 | heads, q, kv] tensor differs by request and by head."""
    if (
        tensor.dim() != 4
        or tensor.shape[2:] != shape[2:]
        or any(extent not in (1, full) for extent, full in zip(tensor.shape[:2], shape[:2], strict=True))
    ):
        raise ValueError(
            f"{name}: has shape {tuple(tensor.shape)}; must be [batch, heads, q, kv] = {list(shape)}, the first two of "
            "which may be 1"
        )
    return tensor.shape[0] != 1, tensor.shape[1] != 1


def attend_structured(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: MaskStructure | DenseMask, features: Features
) -> torch.Tensor:
    """Attention of [batch, heads, tokens, dim] tensors -> [batch, q_length, num_qo_heads, head_dim_vo]."""
    num_requests, num_heads, q_length, _ = q.shape
    kv_length, head_dim_vo = v.shape[2:]
    out = torch.empty((num_requests, q_length, num_heads, head_dim_vo), dtype=q.dtype, device=q.device)
    if out.numel() == 0 or kv_length == 0:
        return out.zero_()
    rows = _rows(q)
    run: dict[str, Any] = {}
    if isinstance(mask, DenseMask):
        run["visible"] = _packed(mask.visible)
    if features.bias is not None:
        run["bias"] = features.bias.detach().to(torch.float32).contiguous().view(-1)
    step = _step_of(q, k, v, mask, features)
    step.entry.attention.run(
        rows,
        girih.KvStore.paged(k.detach(), v.detach(), layout="HND"),
        kv_indices=step.pages,
        out=out.view(rows.shape[0], num_heads, head_dim_vo),
        params=_run_params(features, **run),
    )
    return out


@dataclass(frozen=True)
class _Step:
    """What the layers of one forward pass have in common; good as long as `entry` holds the plan of `key`."""

    entry: _Entry
    key: Hashable
    pages: torch.Tensor  # i32 [requests]: the page table, a page a request


def _step_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: MaskStructure | DenseMask, features: Features
) -> _Step:
    """The step of a layer: the layer's before, if it is the same, or one that is planned now."""
    sinks, bias = features.sinks is not None, features.bias
    same = (
        q.shape,
        k.shape,
        v.shape,
        q.dtype,
        k.dtype,
        v.dtype,
        q.device,
        features.sm_scale,
        features.soft_cap,
        sinks,
        None if bias is None else bias.shape,
        mask.visible.shape if isinstance(mask, DenseMask) else mask.serial,
        # The page table is made on a stream and read on it.
        torch.cuda.current_stream(q.device).cuda_stream if q.device.type == "cuda" else None,
    )
    steps = _of_thread.steps
    step = steps.get(same)
    if step is not None and step.entry.planned == step.key:
        return step
    kernel, batch = _problem(q, k, v, mask, features)
    pages = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    step = _Step(_planned(kernel, batch), batch.key, pages)
    if len(steps) >= MAX_SCHEDULES:
        steps.clear()
    steps[same] = step
    return step


def _problem(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: MaskStructure | DenseMask, features: Features
) -> tuple[Kernel, Batch]:
    num_requests, num_heads, q_length, head_dim = q.shape
    kv_length = k.shape[2]
    shape = (num_requests, num_heads, q_length, kv_length)
    parts: dict[str, Any]
    params: dict[str, Any] = {}
    if isinstance(mask, DenseMask):
        parts = {"rule": TRUE, "bits": _broadcast("attention_mask", mask.visible, shape)}
        q_offset, kv_offset, kv_end = 0, 0, None
        key: tuple[Hashable, ...] = ("dense",)
    else:
        if (mask.batch_size, mask.q_length, mask.kv_length) != (num_requests, q_length, kv_length):
            raise ValueError(
                f"attention_mask: is for [batch, q, kv] = {[mask.batch_size, mask.q_length, mask.kv_length]}, while "
                f"the queries and keys have {[num_requests, q_length, kv_length]}"
            )
        parts, params = _structure_parts(mask)
        q_offset, kv_offset, kv_end = mask.q_offset, mask.kv_offset, mask.kv_end
        key = ("mask", mask.serial)
    if features.bias is not None:
        parts["bias"] = _broadcast("position_bias", features.bias, shape)
    elements = [parts[name] for name in ("bits", "bias") if name in parts]
    if elements:
        params["kv_offset"] = kv_offset
    if (True, True) in elements:
        params["num_heads"] = num_heads
    batch = Batch(
        key=(*key, *shape),
        qo_indptr=np.arange(num_requests + 1, dtype=np.int64) * q_length,
        kv_len=np.full(num_requests, kv_length, np.int64) if kv_end is None else kv_end,
        page_size=kv_length,
        kv_indptr=np.arange(num_requests + 1, dtype=np.int64),
        kv_pos=np.full(num_requests, kv_offset, np.int64),
        q_pos=np.full(num_requests, q_offset, np.int64),
        logical_kv_len=np.full(num_requests, kv_length, np.int64),
        params=params,
    )
    return _kernel_of((num_heads, head_dim), q, k, v, features, **parts), batch


def attend_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qo_indptr: np.ndarray[Any, Any],
    kv_indptr: np.ndarray[Any, Any],
    rule: Node,
    features: Features,
) -> torch.Tensor:
    """Requests one after the other in tensors [1, heads, tokens, dim] -> [1, q_length, num_qo_heads, head_dim_vo].

    The queries of a request are at its last keys' positions. Rows past the last request (padding) become 0.
    """
    batch = Batch(
        key=("varlen", qo_indptr.tobytes(), kv_indptr.tobytes()),
        qo_indptr=qo_indptr,
        kv_len=np.diff(kv_indptr),
        page_size=0,
        kv_indptr=kv_indptr,
    )
    entry = _planned(_kernel_of((q.shape[1], q.shape[3]), q, k, v, features, rule=rule), batch)
    store = girih.KvStore.ragged(k[0].detach().transpose(0, 1), v[0].detach().transpose(0, 1))
    return _attend_rows(entry, q, v, store, None, int(qo_indptr[-1]), features)


def attend_paged(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    block_table: torch.Tensor,
    qo_indptr: np.ndarray[Any, Any],
    kv_indptr: np.ndarray[Any, Any],
    rule: Node,
    features: Features,
) -> torch.Tensor:
    """As attend_varlen, where k and v hold only the new keys: they are appended to the caches [pages, page_size, heads,
    dim] first.

    block_table: i32 [requests, pages]; kv_indptr counts the keys after the append.
    """
    stride, page_size, num_rows = block_table.shape[1], caches[0].shape[1], int(qo_indptr[-1])
    batch = Batch(
        key=("paged", stride, page_size, qo_indptr.tobytes(), kv_indptr.tobytes()),
        qo_indptr=qo_indptr,
        kv_len=np.diff(kv_indptr),
        page_size=page_size,
        table_stride=stride,
    )
    entry = _planned(_kernel_of((q.shape[1], q.shape[3]), q, k, v, features, rule=rule), batch)
    store = girih.KvStore.paged(*caches, layout="NHD")
    pages = block_table.contiguous().view(-1)
    new_k, new_v = (x[0, :, :num_rows].detach().transpose(0, 1) for x in (k, v))
    if q.device.type == "cpu":
        places: dict[str, Any] = {
            "append_indptr": qo_indptr,
            "kv_len": batch.kv_len,
            "kv_indices": pages,
            "table_stride": stride,
        }
        girih.append(store, new_k, new_v, **places)
    else:
        girih.append_planned(entry.attention, store, new_k, new_v, kv_indices=pages)
    return _attend_rows(entry, q, v, store, pages, num_rows, features)


def _attend_rows(
    entry: _Entry,
    q: torch.Tensor,
    v: torch.Tensor,
    store: girih.KvStore,
    pages: torch.Tensor | None,
    num_rows: int,
    features: Features,
) -> torch.Tensor:
    rows = _rows(q)
    out = torch.empty((rows.shape[0], rows.shape[1], v.shape[3]), dtype=q.dtype, device=q.device)
    out[num_rows:].zero_()
    if num_rows > 0:
        entry.attention.run(rows[:num_rows], store, kv_indices=pages, out=out[:num_rows], params=_run_params(features))
    return out.unsqueeze(0)


def _structure_parts(mask: MaskStructure) -> tuple[dict[str, Any], dict[str, Any]]:
    """A structured mask's part of the kernel, and the values of its plan-time parameters."""
    params: dict[str, Any] = {}
    types: list[str] = []
    for slot, array in enumerate(mask.arrays):
        types.append({"bool": "bits", "int32": "i32"}.get(array.dtype.name, "i64"))
        flat = array.reshape(-1)
        params[f"mask_{slot}"] = np.packbits(flat, bitorder="little") if types[-1] == "bits" else flat
        if array.ndim == 2:
            params[f"mask_{slot}_pitch"] = array.shape[1]
    if mask.kv_begin is not None:
        params["kv_begin"] = mask.kv_begin + mask.kv_offset
    if mask.holes is not None:
        # Bits are indexed by position: as many before the first key as there are positions before it.
        keys = np.pad(mask.holes, ((0, 0), (mask.kv_offset, 0)))
        params["keys"] = np.packbits(keys.reshape(-1), bitorder="little")
        params["keys_pitch"] = keys.shape[1]
    kernel = {
        "rule": mask.rule,
        "arrays": tuple(types),
        "begins": mask.kv_begin is not None,
        "holes": mask.holes is not None,
    }
    return kernel, params


def _packed(visible: torch.Tensor) -> torch.Tensor:
    """A boolean tensor's bits, row-major, the lowest first."""
    flat = visible.contiguous().view(-1)
    if visible.device.type == "cpu":
        return torch.from_numpy(np.packbits(flat.numpy(), bitorder="little"))
    out = torch.empty((flat.numel() + 7) // 8, dtype=torch.uint8, device=flat.device)
    girih.packbits(flat.view(torch.uint8), out=out)
    return out
