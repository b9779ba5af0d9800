"""BatchAttention, the wrappers with attention sinks, and the one with bidirectional ranges, by FlashInfer's names."""

from __future__ import annotations

import functools
from typing import Any

import torch

import girih

from ._kv import NO_SCALES, run_form
from ._planner import Batch, Limits, host_array
from ._problem import Problem, data_types, refuse
from ._wrapper import AttentionWrapper, check_cache_dtype, paged_store, with_scales
from .decode import BatchDecodeWithPagedKVCacheWrapper
from .prefill import BatchPrefillWithPagedKVCacheWrapper

__all__ = [
    "BatchAttention",
    "BatchAttentionWithAttentionSinkWrapper",
    "BatchDecodeWithAttentionSinkWrapper",
    "BatchPrefillWithCausalBidirectionalRangesWrapper",
]


class BatchAttention(AttentionWrapper):
    """Prefill and decode in one batch over a paged cache. Always returns (out, lse). head_dim may exceed 256."""

    _name = "BatchAttention"

    def __init__(self, kv_layout: str = "NHD", device: str = "cuda") -> None:
        super().__init__(torch.empty(0, dtype=torch.uint8, device=device), kv_layout)
        self._problem: Problem | None = None

    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_len_arr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int,
        page_size: int,
        causal: bool = False,
        sm_scale: float | None = None,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype = torch.bfloat16,
        kv_data_type: str | torch.dtype = torch.bfloat16,
        use_profiler: bool = False,
    ) -> None:
        """Plans a batch: qo_indptr, kv_indptr [batch + 1], kv_indices [kv_indptr[-1]], kv_len_arr [batch] keys of each request."""
        if use_profiler:
            refuse("BatchAttention.plan", "use_profiler", "use a profiler of CUDA: kernels carry their key as name")
        q_type, kv_type, o_type = data_types(q_data_type, kv_data_type, None)
        problem = Problem(
            num_qo_heads,
            num_kv_heads,
            head_dim_qk,
            head_dim_vo,
            q_type,
            kv_type,
            o_type,
            "band",
            -1,
            0 if causal else -1,
            0.0 if logits_soft_cap is None else logits_soft_cap,
            sm_scale,
        )
        rows, table, kv_len = host_array(qo_indptr), host_array(kv_indptr), host_array(kv_len_arr)
        num_requests = len(kv_len)
        need = Limits(
            int(rows[-1]),
            num_requests,
            int(kv_len.max()) if num_requests else 0,
            int((rows[1:] - rows[:-1]).max()) if num_requests else 0,
        )
        segment = girih.Segment(kv_indptr=table, kv_len=kv_len, page_size=page_size)
        self._planner.plan(problem, Batch(rows, (segment,), need))
        self._problem = problem
        self._kv_indices = self._on_device(kv_indices)

    begin_forward = plan

    def prewarm_paged_kv_stride_variant(self, variant: str = "independent") -> None:
        """Does nothing: strides of K and V are data, not part of a kernel."""
        if variant != "independent":
            raise ValueError(f"variant must be 'independent', got {variant!r}")

    def run(
        self,
        q: torch.Tensor,
        kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        k_scale: float | torch.Tensor | None = None,
        v_scale: float | torch.Tensor | None = None,
        logits_soft_cap: float = 0.0,
        profiler_buffer: torch.Tensor | None = None,
        kv_cache_sf: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention of the planned batch: q [qo_indptr[-1], num_qo_heads, head_dim_qk] -> (out, lse f32 [rows, num_qo_heads], base 2).

        logits_soft_cap: 0 takes that of plan() (FlashInfer divides by it); another value replaces it.
        """
        problem = self._problem
        if problem is None:
            raise RuntimeError("BatchAttention.run() before plan()")
        if profiler_buffer is not None:
            refuse("BatchAttention.run", "profiler_buffer", "use a profiler of CUDA")
        changed = None
        if logits_soft_cap > 0.0 and logits_soft_cap != problem.soft_cap:
            if problem.soft_cap <= 0.0:
                raise ValueError("logits_soft_cap used in kernel run but not provided in plan().")
            changed = problem = problem._replace(soft_cap=logits_soft_cap)
        check_cache_dtype(kv_cache, problem)
        scales = with_scales(NO_SCALES, None, k_scale, v_scale, kv_cache_sf)
        form, stored, params = run_form(problem, "base2", scales, None, self.device, self._kv_layout)
        store = paged_store(kv_cache, self._kv_layout, problem, stored)
        result: tuple[torch.Tensor, torch.Tensor] = self._compute(
            self._query(q, problem), store, form, params, kv_indices=self._kv_indices, problem=changed, out=out, lse=lse
        )
        return result


def _sink_arguments(args: tuple[Any, ...], name: str) -> tuple[torch.Tensor, float]:
    if len(args) != 2:
        raise TypeError(
            f"{name}.run(q, paged_kv_cache, sink, sm_scale): got {len(args)} arguments after the cache; must have 2"
        )
    return args[0], float(args[1])


class BatchAttentionWithAttentionSinkWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """Paged prefill or decode with sinks: run(q, paged_kv_cache, sink, sm_scale); sink f32 [num_qo_heads], sm_scale a number.

    The dtypes, dims and position encoding given here are those that plan() must repeat. window_left is applied where plan() leaves it out.
    """

    _name = "BatchAttentionWithAttentionSinkWrapper"

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        paged_kv_indptr_buf: torch.Tensor | None = None,
        paged_kv_indices_buf: torch.Tensor | None = None,
        paged_kv_last_page_len_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        q_data_type: torch.dtype = torch.bfloat16,
        kv_data_type: torch.dtype = torch.bfloat16,
        head_dim_qk: int = 128,
        head_dim_vo: int = 128,
        window_left: int = -1,
    ) -> None:
        super().__init__(
            float_workspace_buffer,
            kv_layout,
            use_cuda_graph,
            qo_indptr_buf,
            paged_kv_indptr_buf,
            paged_kv_indices_buf,
            paged_kv_last_page_len_buf,
            custom_mask_buf,
            mask_indptr_buf,
            backend,
        )
        self._declared = (q_data_type, kv_data_type, head_dim_qk, head_dim_vo, pos_encoding_mode)
        self._declared_window = window_left
        self._sm_scale: float | None = None  #: of the last run(), which plan() foresees for the next

    def _final_problem(self, problem: Problem) -> Problem:
        return _checked_problem(problem, self._declared, self._declared_window, self._sm_scale)

    def run(
        self, q: torch.Tensor, paged_kv_cache: Any, *args: Any, q_scale: Any = None, k_scale: Any = None, **kwargs: Any
    ) -> Any:
        """See the class; the keyword arguments are those of the paged wrapper."""
        sinks, sm_scale = _sink_arguments(args, self._name)
        self._sm_scale = sm_scale
        if self._problem is not None and self._problem.sm_scale != sm_scale:
            self._problem = self._adopted(self._problem._replace(sm_scale=sm_scale))
        return super().run(q, paged_kv_cache, sinks=sinks, q_scale=q_scale, k_scale=k_scale, **kwargs)

    run_return_lse = functools.partialmethod(run, return_lse=True)


def _checked_problem(problem: Problem, declared: tuple[Any, ...], window_left: int, sm_scale: float | None) -> Problem:
    planned = (problem.q_dtype, problem.kv_dtype, problem.head_dim_qk, problem.head_dim_vo, problem.pos_encoding_mode)
    names = ("q_data_type", "kv_data_type", "head_dim_qk", "head_dim_vo", "pos_encoding_mode")
    for name, has, wants in zip(names, planned, declared, strict=True):
        if has != wants and wants is not None:
            raise ValueError(f"plan(): {name}={has} but this wrapper was made for {wants}; give the same to both")
    left = problem.window_left if problem.window_left >= 0 else window_left
    return problem._replace(window_left=left, sm_scale=problem.sm_scale if sm_scale is None else sm_scale)


class BatchDecodeWithAttentionSinkWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """Paged decode with sinks: run(q, paged_kv_cache, sink, sm_scale)."""

    _name = "BatchDecodeWithAttentionSinkWrapper"

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        backend: str = "auto",
        q_data_type: torch.dtype = torch.bfloat16,
        kv_data_type: torch.dtype = torch.bfloat16,
        head_dim_qk: int = 128,
        head_dim_vo: int = 128,
        window_left: int = -1,
        **kwargs: Any,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_tensor_cores=True, backend=backend, **kwargs)
        self._declared = (q_data_type, kv_data_type, head_dim_qk, head_dim_vo, "NONE")
        self._declared_window = window_left
        self._sm_scale: float | None = None  #: of the last run(), which plan() foresees for the next

    def plan(self, *args: Any, **kwargs: Any) -> None:
        """As the paged wrapper's."""
        super().plan(*args, **kwargs)

    begin_forward = plan

    def _final_problem(self, problem: Problem) -> Problem:
        if problem.pos_encoding_mode != "NONE":
            raise NotImplementedError(
                "Attention-sink decode applies no position encoding; pos_encoding_mode must be 'NONE'."
            )
        return _checked_problem(problem, self._declared, self._declared_window, self._sm_scale)

    def run(
        self, q: torch.Tensor, paged_kv_cache: Any, *args: Any, q_scale: Any = None, k_scale: Any = None, **kwargs: Any
    ) -> Any:
        """See the class; the keyword arguments are those of the paged wrapper."""
        sinks, sm_scale = _sink_arguments(args, self._name)
        self._sm_scale = sm_scale
        if self._problem is not None and self._problem.sm_scale != sm_scale:
            self._problem = self._adopted(self._problem._replace(sm_scale=sm_scale))
        return super().run(q, paged_kv_cache, sinks=sinks, q_scale=q_scale, k_scale=k_scale, **kwargs)

    run_return_lse = functools.partialmethod(run, return_lse=True)


class BatchPrefillWithCausalBidirectionalRangesWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """Paged prefill in which a query sees the keys before it, and all keys of a range of its own.

    run(q, paged_kv_cache, bidirectional_ranges, causal_window_left, range_window_left): bidirectional_ranges int32 [rows, 2], first and last
    key position of each query's range, (-1, -1) for none.
    """

    _name = "BatchPrefillWithCausalBidirectionalRangesWrapper"

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        paged_kv_indptr_buf: torch.Tensor | None = None,
        paged_kv_indices_buf: torch.Tensor | None = None,
        paged_kv_last_page_len_buf: torch.Tensor | None = None,
        pos_encoding_mode: str = "NONE",
        q_data_type: torch.dtype = torch.bfloat16,
        kv_data_type: torch.dtype = torch.bfloat16,
        o_data_type: torch.dtype | None = None,
        head_dim_qk: int = 128,
        head_dim_vo: int = 128,
        v_sf_swizzled: bool = False,
    ) -> None:
        if v_sf_swizzled:
            refuse(self._name, "v_sf_swizzled", "store the scales of V in the plain order")
        super().__init__(
            float_workspace_buffer,
            kv_layout,
            use_cuda_graph,
            qo_indptr_buf,
            paged_kv_indptr_buf,
            paged_kv_indices_buf,
            paged_kv_last_page_len_buf,
        )
        self._declared = (q_data_type, kv_data_type, head_dim_qk, head_dim_vo, pos_encoding_mode)
        self._declared_o = o_data_type

    def plan(  # type: ignore[override]
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype | None = None,
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        non_blocking: bool = True,
        prefix_len_ptr: torch.Tensor | None = None,
        token_pos_in_items_ptr: torch.Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        """As the paged wrapper's; dtypes and head_dim_vo left out are those of the constructor. What contradicts the mask is refused."""
        contradicting = {
            "custom_mask": custom_mask is not None,
            "packed_custom_mask": packed_custom_mask is not None,
            "causal": causal,
            "prefix_len_ptr": prefix_len_ptr is not None,
            "token_pos_in_items_ptr": token_pos_in_items_ptr is not None or token_pos_in_items_len != 0,
            "max_item_len_ptr": max_item_len_ptr is not None,
        }
        for name, given in contradicting.items():
            if given:
                raise ValueError(f"{self._name}.plan(): {name} contradicts the mask that this wrapper applies")
        if window_left >= 0:
            raise ValueError(
                f"{self._name}.plan(): give causal_window_left and range_window_left to run() in place of window_left"
            )
        super().plan(
            qo_indptr,
            paged_kv_indptr,
            paged_kv_indices,
            paged_kv_last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim_qk,
            page_size,
            self._declared[3] if head_dim_vo is None else head_dim_vo,
            pos_encoding_mode=pos_encoding_mode,
            sm_scale=sm_scale,
            logits_soft_cap=logits_soft_cap,
            q_data_type=self._declared[0] if q_data_type is None else q_data_type,
            kv_data_type=self._declared[1] if kv_data_type is None else kv_data_type,
            o_data_type=self._declared_o if o_data_type is None else o_data_type,
            non_blocking=non_blocking,
            fixed_split_size=fixed_split_size,
            disable_split_kv=disable_split_kv,
        )

    begin_forward = plan  # type: ignore[assignment]

    def workspace_size(  # type: ignore[override]
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype | None = None,
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        prefix_len_ptr: torch.Tensor | None = None,
        token_pos_in_items_ptr: torch.Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
    ) -> tuple[int, int]:
        """As the paged wrapper's."""
        self.plan(
            qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim_qk, page_size,
            head_dim_vo, custom_mask, packed_custom_mask, causal, pos_encoding_mode, use_fp16_qk_reduction, sm_scale, window_left,
            logits_soft_cap, q_data_type, kv_data_type, o_data_type, True, prefix_len_ptr, token_pos_in_items_ptr,
            token_pos_in_items_len, max_item_len_ptr, max_token_per_sequence, max_sequence_kv, fixed_split_size, disable_split_kv,
        )  # fmt: skip
        workspace, plan = self._planner.sizes()
        return max(workspace, 1), max(plan, 1)

    def _final_problem(self, problem: Problem) -> Problem:
        return _checked_problem(problem, self._declared, -1, None)._replace(mask="ranges")

    def run(  # type: ignore[override]
        self,
        q: torch.Tensor,
        paged_kv_cache: Any,
        bidirectional_ranges: torch.Tensor,
        causal_window_left: int = -1,
        range_window_left: int = -1,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        kv_cache_sf: Any = None,
    ) -> Any:
        """causal_window_left: keys before self that stay visible, -1 = all; range_window_left: of a range, keys less than this far behind
        the query, 0 or -1 = all."""
        ranges = bidirectional_ranges
        if ranges.dtype != torch.int32 or ranges.dim() != 2 or ranges.shape[1] != 2 or not ranges.is_contiguous():
            raise ValueError(
                f"bidirectional_ranges must be contiguous int32 of shape [total_q, 2], got {ranges.dtype} {tuple(ranges.shape)}"
            )
        if ranges.shape[0] != q.shape[0]:
            raise ValueError(
                f"bidirectional_ranges must have one row per query token: got {ranges.shape[0]} rows for {q.shape[0]} queries"
            )
        self._run_params = {
            "bidirectional_ranges": ranges.view(-1),
            "causal_window_left": int(causal_window_left),
            "range_window_left": int(range_window_left),
        }
        return super().run(
            q,
            paged_kv_cache,
            q_scale=q_scale,
            k_scale=k_scale,
            v_scale=v_scale,
            out=out,
            lse=lse,
            return_lse=return_lse,
            kv_cache_sf=kv_cache_sf,
        )

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward(  # type: ignore[override]
        self,
        q: torch.Tensor,
        paged_kv_cache: Any,
        bidirectional_ranges: torch.Tensor,
        causal_window_left: int = -1,
        range_window_left: int = -1,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        enable_pdl: bool | None = None,
        kv_cache_sf: Any = None,
    ) -> Any:
        """run() by its older name."""
        return self.run(
            q, paged_kv_cache, bidirectional_ranges, causal_window_left, range_window_left, q_scale, k_scale, v_scale,
            enable_pdl=enable_pdl, kv_cache_sf=kv_cache_sf,
        )  # fmt: skip

    def forward_return_lse(  # type: ignore[override]
        self,
        q: torch.Tensor,
        paged_kv_cache: Any,
        bidirectional_ranges: torch.Tensor,
        causal_window_left: int = -1,
        range_window_left: int = -1,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        enable_pdl: bool | None = None,
        kv_cache_sf: Any = None,
    ) -> Any:
        """run_return_lse() by its older name."""
        return self.run(
            q, paged_kv_cache, bidirectional_ranges, causal_window_left, range_window_left, q_scale, k_scale, v_scale,
            enable_pdl=enable_pdl, kv_cache_sf=kv_cache_sf, return_lse=True,
        )  # fmt: skip
