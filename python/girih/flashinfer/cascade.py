"""Cascade attention and merges by FlashInfer's names: a shared prefix is attended once for all requests that share it.

Each level is a segment of one plan, so levels meet inside the kernel. Positions run through the levels: a window and RoPE see the key where
it stands in the request, not where it stands in its level (FlashInfer restarts at every level).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import girih

from ._kv import NO_SCALES, ragged_store, run_form
from ._planner import Batch, IndexArray, Limits, host_array, kv_len_of_pages
from ._problem import FLOAT16, NO_LSE, Problem, data_types
from ._wrapper import AttentionWrapper, check_cache_dtype, older_names, paged_store

__all__ = [
    "BatchDecodeWithSharedPrefixPagedKVCacheWrapper",
    "BatchPrefillWithSharedPrefixPagedKVCacheWrapper",
    "MultiLevelCascadeAttentionWrapper",
    "merge_state",
    "merge_state_in_place",
    "merge_states",
]


def _f32(s: torch.Tensor) -> torch.Tensor:
    return s if s.dtype == torch.float32 else s.float()


def merge_state(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges two attention states: v [n, heads, dim], s f32 [n, heads], base 2. An empty state (0, -inf) changes nothing."""
    v, s = girih.merge_state(v_a, _f32(s_a), v_b, _f32(s_b), base2=True)
    return v, s


def merge_state_in_place(
    v: torch.Tensor, s: torch.Tensor, v_other: torch.Tensor, s_other: torch.Tensor, mask: torch.Tensor | None = None
) -> None:
    """Merges (v_other, s_other) into (v, s); mask: bool [n], rows that are merged. s is updated whatever its dtype."""
    merged_v, merged_s = girih.merge_state(v, _f32(s), v_other, _f32(s_other), base2=True)
    if mask is None:
        v.copy_(merged_v)
        s.copy_(merged_s)
        return
    rows = mask.reshape(-1).to(torch.bool)
    if rows.numel() != v.shape[0]:
        raise ValueError(f"mask has {rows.numel()} entries; must have {v.shape[0]} (rows of v)")
    v.copy_(torch.where(rows[:, None, None], merged_v, v))
    s.copy_(torch.where(rows[:, None], merged_s, _f32(s)))


def merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges num_states states of each row: v [n, num_states, heads, dim], s f32 [n, num_states, heads], base 2."""
    merged, merged_s = girih.merge_states(v, _f32(s), base2=True)
    return merged, merged_s


class MultiLevelCascadeAttentionWrapper(AttentionWrapper):
    """Attention over any number of levels of shared prefixes in one paged cache.

    Level 0 is the most shared, the last level each request's own suffix, to which `causal` applies. With use_cuda_graph the lists of
    buffers, one per level, hold the page tables at fixed addresses.
    """

    _name = "MultiLevelCascadeAttentionWrapper"

    @older_names(workspace_buffer="float_workspace_buffer")
    def __init__(
        self,
        num_levels: int,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf_arr: list[torch.Tensor] | None = None,
        paged_kv_indptr_buf_arr: list[torch.Tensor] | None = None,
        paged_kv_indices_buf_arr: list[torch.Tensor] | None = None,
        paged_kv_last_page_len_buf_arr: list[torch.Tensor] | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph)
        self._num_levels = int(num_levels)
        if self._num_levels < 1:
            raise ValueError(f"num_levels={num_levels}; must be >= 1")
        self._problem: Problem | None = None
        self._buffers = (
            qo_indptr_buf_arr,
            paged_kv_indptr_buf_arr,
            paged_kv_indices_buf_arr,
            paged_kv_last_page_len_buf_arr,
        )
        self._level_indices: list[torch.Tensor] = []
        if use_cuda_graph:
            names = (
                "qo_indptr_buf_arr",
                "paged_kv_indptr_buf_arr",
                "paged_kv_indices_buf_arr",
                "paged_kv_last_page_len_buf_arr",
            )
            for name, buffers in zip(names, self._buffers, strict=True):
                if buffers is None or len(buffers) != self._num_levels:
                    raise ValueError(f"{name} must be a list of num_levels={num_levels} buffers in CUDA graph mode")

    def reset_workspace_buffer(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffers: Any
    ) -> None:
        """Takes other buffers (one integer buffer per level); as for the other wrappers they stay unused."""
        buffers = (
            list(int_workspace_buffers) if isinstance(int_workspace_buffers, (list, tuple)) else [int_workspace_buffers]
        )
        for buffer in buffers:
            super().reset_workspace_buffer(float_workspace_buffer, buffer)

    @older_names(allow_fp16_qk_reduction="use_fp16_qk_reduction")
    def plan(
        self,
        qo_indptr_arr: list[torch.Tensor],
        paged_kv_indptr_arr: list[torch.Tensor],
        paged_kv_indices_arr: list[torch.Tensor],
        paged_kv_last_page_len: list[torch.Tensor],
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
    ) -> None:
        """Plans a batch: per level the query groups (qo_indptr, whose last level are the requests) and their page tables."""
        arrays = (qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len)
        if any(len(array) != self._num_levels for array in arrays):
            raise ValueError(
                f"plan() needs lists of num_levels={self._num_levels} tensors, got {[len(array) for array in arrays]}"
            )
        q_type, kv_type, o_type = data_types(q_data_type, kv_data_type, None)
        problem = Problem(
            num_qo_heads,
            num_kv_heads,
            head_dim,
            head_dim,
            q_type,
            kv_type,
            o_type,
            "band",
            window_left,
            0 if causal else -1,
            0.0 if logits_soft_cap is None else logits_soft_cap,
            sm_scale,
            pos_encoding_mode,
            rope_scale,
            rope_theta,
        )
        rows = [host_array(indptr) for indptr in qo_indptr_arr]
        segments: list[Any] = []
        longest = groups = 0
        for level in range(self._num_levels):
            indptr = host_array(paged_kv_indptr_arr[level])
            kv_len = kv_len_of_pages(indptr, host_array(paged_kv_last_page_len[level]), page_size)
            last = level == self._num_levels - 1
            segments.append(
                girih.Segment(
                    kv_indptr=indptr,
                    kv_len=kv_len,
                    page_size=page_size,
                    qo_indptr=None if last else rows[level],
                    masked=last or window_left >= 0,
                )
            )
            longest = max(longest, int(kv_len.max()) if len(kv_len) else 0)
            groups += len(kv_len)
        need = _need(rows[-1], longest, groups, self._num_levels)
        if self._use_cuda_graph and self._planner.limits is None:
            assert self._buffers[2] is not None and self._buffers[0] is not None
            capacity = max(len(buffer) for buffer in self._buffers[2]) * page_size
            total_groups = sum(len(buffer) - 1 for buffer in self._buffers[0])
            self._planner.limits = need._replace(kv_len=capacity, qo_len=need.tokens, groups=total_groups)
        self._planner.plan(problem, Batch(rows[-1], tuple(segments), need))
        self._problem = problem
        self._take_tables(arrays)

    begin_forward = plan

    def _take_tables(self, arrays: tuple[list[torch.Tensor], ...]) -> None:
        if not self._use_cuda_graph:
            self._level_indices = [self._on_device(indices) for indices in arrays[2]]
            return
        for buffers, given in zip(self._buffers, arrays, strict=True):
            assert buffers is not None
            for buffer, tensor in zip(buffers, given, strict=True):
                buffer[: len(tensor)].copy_(tensor, non_blocking=True)
        assert self._buffers[2] is not None
        self._level_indices = self._buffers[2]

    def prewarm_paged_kv_stride_variant(self, variant: str = "independent") -> None:
        """Does nothing: strides of K and V are data, not part of a kernel."""
        if variant != "independent":
            raise ValueError(f"variant must be 'independent', got {variant!r}")

    def run(self, q: torch.Tensor, paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Attention over all levels of the planned batch: q [rows, num_qo_heads, head_dim] -> out."""
        problem = self._problem
        if problem is None:
            raise RuntimeError(f"{self._name}.run() before plan()")
        check_cache_dtype(paged_kv_cache, problem)
        form, stored, params = run_form(problem, "none", NO_SCALES, None, self.device, self._kv_layout)
        store = paged_store(paged_kv_cache, self._kv_layout, problem, stored)
        segments = [girih.SegmentData(store, indices) for indices in self._level_indices]
        out: torch.Tensor = self._compute(self._query(q, problem), segments, form, params)
        return out

    forward = run


def _need(rows: IndexArray, kv_len: int, groups: int, segments: int) -> Limits:
    num_requests = len(rows) - 1
    longest = int((rows[1:] - rows[:-1]).max()) if num_requests else 0
    # Groups of the upper levels hold the rows of many requests, so a group may have every row.
    return Limits(int(rows[-1]), num_requests, kv_len, int(rows[-1]) if segments > 1 else longest, groups, segments)


class _SharedPrefixWrapper(AttentionWrapper):
    """One prefix in tensors of its own before every request's pages. Its length is known at forward(), which plans where it changed."""

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self._problem: Problem | None = None
        self._rows: IndexArray = np.zeros(1, np.int64)
        self._unique: Any = None
        self._unique_len = 0
        self._planned: tuple[Any, ...] = ()

    def _begin(
        self,
        rows: IndexArray,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last: torch.Tensor,
        page_size: int,
        problem: Problem,
    ) -> None:
        table = host_array(indptr)
        kv_len = kv_len_of_pages(table, host_array(last), page_size)
        self._rows = rows
        self._unique = girih.Segment(kv_indptr=table, kv_len=kv_len, page_size=page_size)
        self._unique_len = int(kv_len.max()) if len(kv_len) else 0
        self._kv_indices = self._on_device(indices)
        self._problem = problem
        self._planned = ()

    def _attend(
        self, q: torch.Tensor, k_shared: torch.Tensor, v_shared: torch.Tensor, unique: Any, problem: Problem
    ) -> torch.Tensor:
        prefix = k_shared.shape[0 if self._kv_layout == "NHD" else 1]
        if self._planned != (problem, prefix):
            total, num_requests = int(self._rows[-1]), len(self._rows) - 1
            shared = girih.Segment(kv_indptr=[0, prefix], page_size=0, qo_indptr=[0, total], masked=False)
            need = _need(self._rows, max(prefix, self._unique_len), num_requests + 1, 2)
            self._planner.plan(problem, Batch(self._rows, (shared, self._unique), need))
            self._planned = (problem, prefix)
        stores = [
            girih.SegmentData(ragged_store(k_shared, v_shared, self._kv_layout, problem)),
            girih.SegmentData(paged_store(unique, self._kv_layout, problem), self._kv_indices),
        ]
        out: torch.Tensor = self._compute(self._query(q, problem), stores, NO_LSE, None)
        return out


class BatchDecodeWithSharedPrefixPagedKVCacheWrapper(_SharedPrefixWrapper):
    """Decode of a batch whose requests share one prefix. MultiLevelCascadeAttentionWrapper is the newer form."""

    _name = "BatchDecodeWithSharedPrefixPagedKVCacheWrapper"

    @older_names(workspace_buffer="float_workspace_buffer")
    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        super().__init__(float_workspace_buffer, kv_layout)

    def begin_forward(
        self,
        unique_kv_indptr: torch.Tensor,
        unique_kv_indices: torch.Tensor,
        unique_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        data_type: str | torch.dtype = "float16",
    ) -> None:
        """Takes the page table of the requests' own keys; data_type is that of q and of the cache."""
        q_type, kv_type, o_type = data_types(FLOAT16, None, None, data_type)
        problem = Problem(num_qo_heads, num_kv_heads, head_dim, head_dim, q_type, kv_type, o_type)
        rows = np.arange(len(unique_kv_last_page_len) + 1, dtype=np.int64)
        self._begin(rows, unique_kv_indptr, unique_kv_indices, unique_kv_last_page_len, page_size, problem)

    plan = begin_forward

    def forward(
        self, q: torch.Tensor, k_shared: torch.Tensor, v_shared: torch.Tensor, unique_kv_cache: Any
    ) -> torch.Tensor:
        """q [batch, num_qo_heads, head_dim]; k_shared, v_shared [prefix_len, num_kv_heads, head_dim] (NHD) or heads first (HND)."""
        if self._problem is None:
            raise RuntimeError(f"{self._name}.forward() before begin_forward()")
        return self._attend(q, k_shared, v_shared, unique_kv_cache, self._problem)

    run = forward


class BatchPrefillWithSharedPrefixPagedKVCacheWrapper(_SharedPrefixWrapper):
    """Prefill of a batch whose requests share one prefix. The dtypes are those of the tensors given to forward()."""

    _name = "BatchPrefillWithSharedPrefixPagedKVCacheWrapper"

    @older_names(workspace_buffer="float_workspace_buffer")
    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        super().__init__(float_workspace_buffer, kv_layout)

    def begin_forward(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
    ) -> None:
        """Takes the query rows and the page table of the requests' own keys."""
        half = torch.float16
        problem = Problem(num_qo_heads, num_kv_heads, head_dim, head_dim, half, half, half)
        self._begin(
            host_array(qo_indptr), paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size, problem
        )

    plan = begin_forward

    def prewarm_paged_kv_stride_variant(self, variant: str = "independent") -> None:
        """Does nothing: strides of K and V are data, not part of a kernel."""
        if variant != "independent":
            raise ValueError(f"variant must be 'independent', got {variant!r}")

    @older_names(allow_fp16_qk_reduction="use_fp16_qk_reduction")
    def forward(
        self,
        q: torch.Tensor,
        k_shared: torch.Tensor,
        v_shared: torch.Tensor,
        unique_kv_cache: Any,
        causal: bool = False,
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> torch.Tensor:
        """Attention over prefix and own keys; causal applies to the latter. No position encoding is applied, so that rope_scale and
        rope_theta have nothing to scale (as in FlashInfer)."""
        if self._problem is None:
            raise RuntimeError(f"{self._name}.forward() before begin_forward()")
        o_type = q.dtype
        problem = self._problem._replace(
            q_dtype=q.dtype,
            kv_dtype=k_shared.dtype,
            o_dtype=o_type,
            window_right=0 if causal else -1,
            sm_scale=sm_scale,
        )
        return self._attend(q, k_shared, v_shared, unique_kv_cache, problem)

    run = forward
