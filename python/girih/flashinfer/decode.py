"""Decode attention by FlashInfer's names: one query token per request (or a few), over a contiguous or a paged KV cache.

Long because FlashInfer's signatures are.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, Literal

import numpy as np
import torch

import girih

from ._functional import single_attention
from ._kv import run_form
from ._paged_call import PagedCall, paged_attention, refuse_all, rows_of, scale_of_log2
from ._planner import Batch, IndexArray, Limits, host_array, on_host
from ._problem import FLOAT16, Problem, data_types, is_batch_invariant, refuse
from ._wrapper import (
    AttentionWrapper,
    check_backend,
    check_cache_dtype,
    fp8_scales,
    older_names,
    paged_store,
    with_scales,
)

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper",
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
    "fast_decode_plan",
    "single_decode_with_kv_cache",
    "single_decode_with_kv_cache_with_jit_module",
    "trtllm_batch_decode_with_kv_cache",
    "xqa_batch_decode_with_kv_cache",
]


def single_decode_with_kv_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_tensor_cores: bool = False,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention of one query token over one contiguous cache.

    q: [num_qo_heads, head_dim]; k, v: [kv_len, num_kv_heads, head_dim] (NHD) or [num_kv_heads, kv_len, head_dim] (HND).
    window_left: keys visible before the last one, -1 = all. Scales multiply q, k and v. use_tensor_cores is a hint.
    Returns out [num_qo_heads, head_dim], or (out, lse f32 [num_qo_heads], base 2).
    """
    result = single_attention(
        "single_decode_with_kv_cache",
        q.unsqueeze(0),
        k,
        v,
        kv_layout=kv_layout,
        window_left=window_left,
        pos_encoding_mode=pos_encoding_mode,
        soft_cap=logits_soft_cap,
        sm_scale=sm_scale,
        rope_scale=rope_scale,
        rope_theta=rope_theta,
        scales=(q_scale, k_scale, v_scale, None),
        return_lse=return_lse,
    )
    if return_lse:
        return result[0].squeeze(0), result[1].squeeze(0)
    return result.squeeze(0)


def single_decode_with_kv_cache_with_jit_module(
    jit_module: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *args: Any,
    kv_layout: str = "NHD",
    window_left: int = -1,
    return_lse: bool = False,
) -> Any:
    """single_decode_with_kv_cache() with the variant of a customised module; `args` are its tensors, then its scalars.

    Differs from FlashInfer: return_lse=True returns (out, lse).
    """
    result = single_attention(
        "single_decode_with_kv_cache_with_jit_module",
        q.unsqueeze(0),
        k,
        v,
        kv_layout=kv_layout,
        window_left=window_left,
        return_lse=return_lse,
        jit=(jit_module, args),
    )
    if return_lse:
        return result[0].squeeze(0), result[1].squeeze(0)
    return result.squeeze(0)


@functools.lru_cache(maxsize=256)
def _uniform_indptr(num_requests: int, q_len: int) -> IndexArray:
    """[0, q_len, 2 q_len, ...]; shared, so never written."""
    indptr = np.arange(0, (num_requests + 1) * q_len, q_len, dtype=np.int32)
    indptr.flags.writeable = False
    return indptr


class BatchDecodeWithPagedKVCacheWrapper(AttentionWrapper):
    """Decode of a batch over a paged KV cache: plan() each step, run() each layer.

    float_workspace_buffer sets the device and is otherwise unused (schedules hold their own workspace). use_tensor_cores, backend and
    jit_kwargs are hints. With use_cuda_graph the three buffers set the largest batch and hold the page table at fixed addresses: a
    captured run() may be replayed after each plan(). jit_args: see girih.flashinfer.jit.
    """

    _name = "BatchDecodeWithPagedKVCacheWrapper"

    @older_names(workspace_buffer="float_workspace_buffer")
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, backend)
        self._use_tensor_cores = bool(use_tensor_cores)
        self._fixed_batch_size = 0
        self._q_len_per_req: int | None = None
        self._num_rows = 0
        self._problem: Problem | None = None
        self._paged_kv_indptr_buf = paged_kv_indptr_buffer
        self._paged_kv_indices_buf = paged_kv_indices_buffer
        self._paged_kv_last_page_len_buf = paged_kv_last_page_len_buffer
        if use_cuda_graph:
            for name, buffer in (
                ("paged_kv_indptr_buffer", paged_kv_indptr_buffer),
                ("paged_kv_indices_buffer", paged_kv_indices_buffer),
                ("paged_kv_last_page_len_buffer", paged_kv_last_page_len_buffer),
            ):
                if not torch.is_tensor(buffer):
                    raise ValueError(f"{name} should be a torch.Tensor in cudagraph mode")
            assert paged_kv_indptr_buffer is not None and paged_kv_last_page_len_buffer is not None
            self._fixed_batch_size = len(paged_kv_last_page_len_buffer)
            if len(paged_kv_indptr_buffer) != self._fixed_batch_size + 1:
                raise ValueError("The size of paged_kv_indptr_buffer should be batch_size + 1")
        if jit_args is not None:
            from ._jit_variant import hooks_of_jit_args

            self._hooks = hooks_of_jit_args(jit_args, jit_kwargs, self._name)

    @property
    def use_tensor_cores(self) -> bool:
        """The hint that was given."""
        return self._use_tensor_cores

    @property
    def resolved_backend(self) -> str:
        """Always "girih": whatever backend was hinted at."""
        return "girih"

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype | None = FLOAT16,
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        block_tables: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        q_len_per_req: int = 1,
        *,
        window_right: int = 0,
        is_causal: bool | None = None,
        use_token_head_sf: bool = False,
    ) -> None:
        """Plans a batch.

        indptr [batch + 1], indices [indptr[-1]] and last_page_len [batch] (1..page_size) are the page table, on any device; seq_lens
        [batch] replaces the lengths that last_page_len gives. data_type is the dtype of q and KV where these are left out.
        q_len_per_req > 1: as many query rows per request, causal among themselves (is_causal, window_right >= 0 or -1 change that).
        fixed_split_size and disable_split_kv ask for bits that do not depend on the rest of the batch: a batch-invariant schedule, whose
        split length is its own. block_tables repeats the page table and is not read.
        """
        q_type, kv_type, o_type = data_types(q_data_type, kv_data_type, o_data_type, data_type)
        if use_token_head_sf and kv_type not in (torch.float8_e4m3fn, torch.float8_e5m2):
            raise ValueError(f"use_token_head_sf requires fp8 KV dtype, got {kv_type}")
        if q_len_per_req < 1:
            raise ValueError(f"q_len_per_req must be >= 1, got {q_len_per_req}")
        right = -1
        if is_causal or (is_causal is None and q_len_per_req > 1):
            right = window_right
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
            right,
            0.0 if logits_soft_cap is None else logits_soft_cap,
            sm_scale,
            pos_encoding_mode,
            rope_scale,
            rope_theta,
            is_batch_invariant(fixed_split_size, disable_split_kv),
            hooks=self._hooks,
        )
        self._use_token_head_sf = use_token_head_sf
        self._plan(
            problem,
            on_host(indptr),
            indptr,
            indices,
            last_page_len,
            page_size,
            seq_lens,
            q_len_per_req,
            non_blocking,
        )

    begin_forward = plan

    def _plan(
        self,
        problem: Problem,
        indptr_host: torch.Tensor,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        page_size: int,
        seq_lens: torch.Tensor | None,
        q_len: int,
        non_blocking: bool,
    ) -> None:
        problem = self._final_problem(problem)
        num_requests = len(last_page_len)
        if seq_lens is None:
            segment = girih.Segment.from_last_page(indptr_host, on_host(last_page_len), page_size)
        else:
            kv_len = host_array(seq_lens.reshape(-1))
            segment = girih.Segment(kv_indptr=host_array(indptr_host), kv_len=kv_len, page_size=page_size)
        need = Limits(num_requests * q_len, num_requests, segment.longest, q_len)
        if self._use_cuda_graph:
            self._check_frozen(num_requests, indices, q_len, page_size)
        batch = Batch(
            _uniform_indptr(num_requests, q_len),
            (segment,),
            need,
        )
        self._planner.plan(problem, batch)
        self._problem = problem
        self._q_len_per_req = q_len
        self._num_rows = need.tokens
        if self._use_cuda_graph:
            assert self._paged_kv_indices_buf is not None
            assert self._paged_kv_indptr_buf is not None and self._paged_kv_last_page_len_buf is not None
            self._kv_indices = self._paged_kv_indices_buf
            if indices.data_ptr() != self._kv_indices.data_ptr():
                self._kv_indices[: len(indices)].copy_(indices, non_blocking=non_blocking)
            self._paged_kv_indptr_buf.copy_(indptr, non_blocking=non_blocking)
            self._paged_kv_last_page_len_buf.copy_(last_page_len, non_blocking=non_blocking)
        else:
            self._kv_indices = self._on_device(indices, non_blocking)

    def _check_frozen(self, num_requests: int, indices: torch.Tensor, q_len: int, page_size: int) -> None:
        assert self._paged_kv_indices_buf is not None
        if self._q_len_per_req is not None and self._q_len_per_req != q_len:
            raise ValueError(
                f"q_len_per_req is part of the frozen cudagraph shape: this wrapper was planned with {self._q_len_per_req}, got {q_len}"
            )
        if num_requests != self._fixed_batch_size:
            raise ValueError(
                f"The batch size should be fixed in cudagraph mode, the runtime batch size {num_requests} "
                f" mismatches the batch size set during initialization {self._fixed_batch_size}"
            )
        capacity = len(self._paged_kv_indices_buf)
        if len(indices) > capacity:
            raise ValueError("The size of indices should be less than or equal to the allocated buffer")
        if self._planner.limits is None:
            self._planner.limits = Limits(num_requests * q_len, num_requests, capacity * page_size, q_len)

    def workspace_size(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype | None = FLOAT16,
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        block_tables: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        q_len_per_req: int = 1,
    ) -> tuple[int, int]:
        """(bytes of workspace, bytes of plan) that the wrapper holds for this batch, in memory of its own (at least 1 each); plans it to know."""
        self.plan(
            indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, pos_encoding_mode, window_left,
            logits_soft_cap, q_data_type, kv_data_type, o_data_type, data_type, sm_scale, rope_scale, rope_theta, True, block_tables,
            seq_lens, fixed_split_size, disable_split_kv, q_len_per_req,
        )  # fmt: skip
        workspace, plan = self._planner.sizes()
        return max(workspace, 1), max(plan, 1)

    def prewarm_paged_kv_stride_variant(self, variant: str = "independent") -> None:
        """Does nothing: strides of K and V are data, not part of a kernel."""
        if variant != "independent":
            raise ValueError(f"variant must be 'independent', got {variant!r}")

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        *args: Any,
        q_scale: float | torch.Tensor | None = None,
        k_scale: float | torch.Tensor | None = None,
        v_scale: float | torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
        q_len_per_req: int | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        kv_cache_sf: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> Any:
        """Attention of the planned batch over one layer's cache.

        q: [batch * q_len_per_req, num_qo_heads, head_dim]; paged_kv_cache: one tensor [pages, 2, page_size, heads, dim] (NHD) or
        [pages, 2, heads, page_size, dim] (HND), or a tuple of K and V without the second extent. Scales multiply q, k and v; kv_cache_sf
        are those stored beside a quantised cache. sinks: f32 [num_qo_heads], logits that join the denominators.
        Returns out, or (out, lse f32 [rows, num_qo_heads], base 2). enable_pdl is a hint.
        """
        problem = self._problem
        if problem is None:
            raise RuntimeError(f"{self._name}.run() before plan()")
        if skip_softmax_threshold_scale_factor is not None:
            refuse("run", "skip_softmax_threshold_scale_factor", "leave it out: every key is computed")
        if q_len_per_req is not None:
            self._warn_q_len(q, q_len_per_req)
        if q.shape[0] != self._num_rows and self._backend in ("trtllm-gen", "cute-dsl"):
            problem = self._take_q_len(q.shape[0], problem)
        rows = self._num_rows
        if q.shape[0] != rows:
            raise ValueError(
                f"q has {q.shape[0]} rows; the plan has {rows}: batch_size x q_len_per_req={self._q_len_per_req}"
            )
        changed = None
        if window_left is not None and window_left != problem.window_left:
            changed = problem = problem._replace(window_left=window_left)
        check_cache_dtype(paged_kv_cache, problem)
        if self._hooks is not None:
            sinks = self._take_jit_arguments(args, sinks)
            args = ()
        if self._use_token_head_sf and kv_cache_sf is None:
            raise ValueError("kv_cache_sf: plan(use_token_head_sf=True) needs a pair (k_sf, v_sf), one scale per token and head")
        scales = with_scales(fp8_scales(args, q, self._name), q_scale, k_scale, v_scale, kv_cache_sf)
        kind = "base2" if return_lse or lse is not None else "none"
        form, stored, params = run_form(problem, kind, scales, sinks, self.device, self._kv_layout)
        store = paged_store(paged_kv_cache, self._kv_layout, problem, stored)
        result = self._compute(
            self._query(q, problem), store, form, params, kv_indices=self._kv_indices, problem=changed, out=out, lse=lse
        )
        return result if return_lse or lse is None else result[0]

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def _warn_q_len(self, q: torch.Tensor, q_len_per_req: int) -> None:
        warnings.warn("run(q_len_per_req=...) is deprecated; pass it to plan()", DeprecationWarning, stacklevel=3)
        requests = self._num_rows // (self._q_len_per_req or 1)
        if self._backend in ("trtllm-gen", "cute-dsl") and q.shape[0] == requests * q_len_per_req:
            return
        if q_len_per_req != self._q_len_per_req:
            raise ValueError(
                f"q implies q_len_per_req={q_len_per_req} but plan() used {self._q_len_per_req}; re-plan with the matching q_len_per_req."
            )

    def _take_q_len(self, rows: int, problem: Problem) -> Problem:
        """With these two backends FlashInfer takes as many rows a request as run() is given: planned anew where they change."""
        batch = self._planner.batch
        assert batch is not None
        requests = len(batch.qo_indptr) - 1
        if self._use_cuda_graph or requests == 0 or rows % requests != 0 or rows == 0:
            return problem
        q_len = rows // requests
        if self._q_len_per_req == 1:  # what plan() says of one row holds for none beside it
            problem = problem._replace(window_right=0)
        need = batch.need._replace(tokens=rows, qo_len=q_len)
        self._planner.plan(problem, batch._replace(qo_indptr=_uniform_indptr(requests, q_len), need=need))
        self._problem, self._q_len_per_req, self._num_rows = problem, q_len, rows
        return problem

    def forward(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        pos_encoding_mode: str = "NONE",
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        """run() as older releases call it: these arguments replace those of plan(), for this call and those that follow."""
        self._change(pos_encoding_mode, window_left, logits_soft_cap, sm_scale, rope_scale, rope_theta)
        return self.run(q, paged_kv_cache, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)

    def forward_return_lse(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        pos_encoding_mode: str = "NONE",
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        """forward() with its LSE."""
        self._change(pos_encoding_mode, window_left, logits_soft_cap, sm_scale, rope_scale, rope_theta)
        return self.run(q, paged_kv_cache, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, return_lse=True)

    def _change(
        self,
        pos_encoding_mode: str,
        window_left: int,
        cap: float | None,
        sm_scale: float | None,
        rope_scale: Any,
        rope_theta: Any,
    ) -> None:
        if self._problem is None:
            raise RuntimeError(f"{self._name}.forward() before plan()")
        problem = self._problem._replace(
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            soft_cap=cap or 0.0,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )
        self._problem = self._adopted(problem)


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """BatchDecodeWithPagedKVCacheWrapper for CUDA graphs, with its buffers in the order of older releases."""

    _name = "CUDAGraphBatchDecodeWithPagedKVCacheWrapper"

    def __init__(
        self,
        workspace_buffer: torch.Tensor,
        indptr_buffer: torch.Tensor,
        indices_buffer: torch.Tensor,
        last_page_len_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_tensor_cores: bool = False,
    ) -> None:
        super().__init__(
            workspace_buffer,
            kv_layout,
            use_cuda_graph=True,
            use_tensor_cores=use_tensor_cores,
            paged_kv_indptr_buffer=indptr_buffer,
            paged_kv_indices_buffer=indices_buffer,
            paged_kv_last_page_len_buffer=last_page_len_buffer,
        )


def fast_decode_plan(
    self: BatchDecodeWithPagedKVCacheWrapper,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    pos_encoding_mode: str = "NONE",
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    q_data_type: str | torch.dtype | None = None,
    kv_data_type: str | torch.dtype | None = None,
    data_type: str | torch.dtype | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    non_blocking: bool = True,
    fixed_split_size: int | None = None,
    disable_split_kv: bool = False,
    q_len_per_req: int = 1,
    global_override_indptr_cpu: torch.Tensor | None = None,
) -> None:
    """plan() of a decode wrapper, bound to it by its caller; global_override_indptr_cpu spares the copy of indptr to the host.

    plan() itself is as fast here; this exists for callers that bind it.
    """
    q_type, kv_type, o_type = data_types(q_data_type, kv_data_type, None, data_type)
    if self._problem is not None and self._problem.q_dtype == q_type:
        o_type = self._problem.o_dtype
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
        0 if q_len_per_req > 1 else -1,
        0.0 if logits_soft_cap is None else logits_soft_cap,
        sm_scale,
        pos_encoding_mode,
        rope_scale,
        rope_theta,
        is_batch_invariant(fixed_split_size, disable_split_kv),
        hooks=self._hooks,
    )
    host = on_host(indptr if global_override_indptr_cpu is None else global_override_indptr_cpu)
    self._plan(problem, host, indptr, indices, last_page_len, page_size, None, q_len_per_req, non_blocking)


def trtllm_batch_decode_with_kv_cache(
    query: torch.Tensor,
    kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    workspace_buffer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    bmm1_scale: float | torch.Tensor = 1.0,
    bmm2_scale: float | torch.Tensor = 1.0,
    window_left: int = -1,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | str | None = None,
    o_sf_scale: float | None = None,
    o_sf_vec_size: int | None = None,
    sinks: Any = None,
    kv_layout: str = "HND",
    enable_pdl: bool | None = None,
    backend: str = "auto",
    q_len_per_req: int | None = 1,
    o_scale: float | None = 1.0,
    mask: torch.Tensor | None = None,
    max_q_len: int | None = None,
    cum_seq_lens_q: torch.Tensor | None = None,
    skip_softmax_threshold_scale_factor: float | None = None,
    kv_cache_sf: Any = None,
    uses_shared_paged_kv_idx: bool = True,
    lse: torch.Tensor | None = None,
    return_lse: bool = False,
    bmm1_scale_log2: torch.Tensor | None = None,
    multi_ctas_kv_counter_buffer: torch.Tensor | None = None,
    enable_block_sparse_attention: bool = False,
    cp_world: int = 1,
    cp_rank: int = 0,
    causal_seqlens_kv_global: torch.Tensor | None = None,
    bf16q_fp8kv_transform_mode: Literal["k_only", "separate_kv"] | None = None,
    request_order: torch.Tensor | None = None,
    request_order_plan: Any = None,
    sparse_top_k: int = 0,
    length_aware_schedule: bool = False,
) -> Any:
    """Decode over a paged cache in one call, which plans (and on a GPU waits for seq_lens): wrappers plan once a step.

    query [rows, num_qo_heads, head_dim]; kv_cache [pages, 1 or 2, heads, page_size, dim] (HND) or a pair; block_tables [batch, pages of the
    longest], seq_lens [batch]. bmm1_scale is the softmax scale with all scales of q and k, bmm2_scale all of v and the output (so
    that o_scale, which FlashInfer's kernel takes out of it and puts back, changes nothing). Rows of one
    request are causal among themselves, or see of each other what mask says: words of bits [batch, q_len_per_req, words], little-endian. Returns out, or (out, lse base 2). Hints: workspace_buffer, max_seq_len, max_q_len, enable_pdl,
    backend, multi_ctas_kv_counter_buffer, bf16q_fp8kv_transform_mode, request_order, length_aware_schedule.
    """
    name = "trtllm_batch_decode_with_kv_cache"
    refuse_all(
        name,
        "use BatchDecodeWithPagedKVCacheWrapper or BatchPrefillWithPagedKVCacheWrapper",
        o_sf_scale=o_sf_scale,
        o_sf_vec_size=o_sf_vec_size,
        skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor,
        kv_cache_sf=kv_cache_sf,
        enable_block_sparse_attention=enable_block_sparse_attention,
        cp_world=None if cp_world == 1 else cp_world,
        causal_seqlens_kv_global=causal_seqlens_kv_global,
        request_order_plan=request_order_plan,
        sparse_top_k=sparse_top_k or None,
    )
    check_backend(backend)
    if bf16q_fp8kv_transform_mode not in (None, "k_only", "separate_kv"):
        raise ValueError(
            f"bf16q_fp8kv_transform_mode={bf16q_fp8kv_transform_mode!r}; must be 'k_only' or 'separate_kv'"
        )
    if not uses_shared_paged_kv_idx:
        refuse(name, "uses_shared_paged_kv_idx=False", "give K and V the same page ids")
    if bmm1_scale_log2 is not None:
        bmm1_scale = scale_of_log2(bmm1_scale_log2)
    rows = rows_of(name, query, len(seq_lens), q_len_per_req, cum_seq_lens_q)
    return paged_attention(
        PagedCall(
            name, query, kv_cache, block_tables, seq_lens, rows, bmm1_scale, bmm2_scale, window_left, 0, kv_layout,
            out, out_dtype, sinks, lse, return_lse, mask,
        )
    )  # fmt: skip


def xqa_batch_decode_with_kv_cache(
    query: torch.Tensor,
    kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    workspace_buffer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    bmm1_scale: float | torch.Tensor = 1.0,
    bmm2_scale: float | torch.Tensor = 1.0,
    window_left: int = -1,
    out: torch.Tensor | None = None,
    sinks: Any = None,
    kv_layout: str = "NHD",
    enable_pdl: bool | None = None,
    q_len_per_req: int | None = 1,
    o_scale: float | None = 1.0,
    mask: torch.Tensor | None = None,
    kv_cache_sf: Any = None,
    q_cu_seq_lens: torch.Tensor | None = None,
) -> torch.Tensor:
    """trtllm_batch_decode_with_kv_cache() with NHD as its layout."""
    result: torch.Tensor = trtllm_batch_decode_with_kv_cache(
        query,
        kv_cache,
        workspace_buffer,
        block_tables,
        seq_lens,
        max_seq_len,
        bmm1_scale,
        bmm2_scale,
        window_left,
        out,
        sinks=sinks,
        kv_layout=kv_layout,
        q_len_per_req=q_len_per_req,
        o_scale=o_scale,
        mask=mask,
        kv_cache_sf=kv_cache_sf,
        cum_seq_lens_q=q_cu_seq_lens,
    )
    return result
