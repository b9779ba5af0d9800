"""BatchPrefillWithRaggedKVCacheWrapper; girih.flashinfer.prefill exports it. Most of its lines are FlashInfer's signatures."""

from __future__ import annotations

import functools
from typing import Any

import torch

import girih

from ._kv import Scales, ragged_store, run_form
from ._masks import multi_item_params
from ._planner import Batch, IndexArray, Limits, host_array
from ._prefill_base import BatchPrefillWrapper, check_lse_layout
from ._problem import Problem, data_types, is_batch_invariant, refuse
from ._wrapper import check_cache_dtype, fp8_scales, lse_of, older_names, with_scales

__all__ = ["BatchPrefillWithRaggedKVCacheWrapper"]


class BatchPrefillWithRaggedKVCacheWrapper(BatchPrefillWrapper):
    """Prefill of a batch over ragged (concatenated) keys and values: plan() each step, run() each layer."""

    _name = "BatchPrefillWithRaggedKVCacheWrapper"

    @older_names(workspace_buffer="float_workspace_buffer")
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        kv_indptr_buf: torch.Tensor | None = None,
        custom_mask_buf: torch.Tensor | None = None,
        mask_indptr_buf: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
        variant_owns_mask: bool = False,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, backend)
        self._init_masks(custom_mask_buf, mask_indptr_buf, jit_args, jit_kwargs, variant_owns_mask)
        self._qo_indptr_buf = qo_indptr_buf
        self._kv_indptr_buf = kv_indptr_buf
        if use_cuda_graph:
            for name, buffer in (("qo_indptr_buf", qo_indptr_buf), ("kv_indptr_buf", kv_indptr_buf)):
                if not torch.is_tensor(buffer):
                    raise ValueError(f"{name} should be a torch.Tensor in cuda graph mode")

    @older_names(head_dim="head_dim_qk", allow_fp16_qk_reduction="use_fp16_qk_reduction")
    def plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        non_blocking: bool = True,
        prefix_len_ptr: torch.Tensor | None = None,
        token_pos_in_items_ptr: torch.Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: torch.Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        seq_lens: torch.Tensor | None = None,
        seq_lens_q: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        v_indptr: torch.Tensor | None = None,
        o_indptr: torch.Tensor | None = None,
        qo_indptr_cpu: torch.Tensor | None = None,
        kv_indptr_cpu: torch.Tensor | None = None,
        uniform_q_len: int | None = None,
        use_token_head_sf: bool = False,
    ) -> None:
        """Plans a batch: qo_indptr and kv_indptr [batch + 1] on any device (qo_indptr_cpu, kv_indptr_cpu: host copies that are read instead).

        seq_lens [batch] shortens requests to their first keys. v_indptr and o_indptr must equal kv_indptr and qo_indptr. Masks,
        multi-item scoring and hints as for the paged wrapper.
        """
        q_type, kv_type, o_type = data_types(q_data_type, kv_data_type, o_data_type)
        if use_token_head_sf:
            refuse("BatchPrefillWithRaggedKVCacheWrapper.plan", "use_token_head_sf", "put the cache into pages")
        rows = host_array(qo_indptr if qo_indptr_cpu is None else qo_indptr_cpu)
        indptr = host_array(kv_indptr if kv_indptr_cpu is None else kv_indptr_cpu)
        _same_indptr("v_indptr", v_indptr, indptr)
        _same_indptr("o_indptr", o_indptr, rows)
        kv_len = indptr[1:] - indptr[:-1] if seq_lens is None else host_array(seq_lens.reshape(-1))
        kind, right = self._mask_of_plan(causal, custom_mask, packed_custom_mask, prefix_len_ptr, rows, kv_len)
        problem = Problem(
            num_qo_heads,
            num_kv_heads,
            head_dim_qk,
            head_dim_qk if head_dim_vo is None else head_dim_vo,
            q_type,
            kv_type,
            o_type,
            kind,
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
        params = None
        if kind == "multi_item":
            params = multi_item_params(prefix_len_ptr, token_pos_in_items_ptr, token_pos_in_items_len, kv_len)
        num_requests = len(rows) - 1
        need = Limits(
            int(rows[-1]),
            num_requests,
            int(kv_len.max()) if num_requests else 0,
            int((rows[1:] - rows[:-1]).max()) if num_requests else 0,
            param_bytes=0
            if params is None
            else 64 + 4 * sum(len(v) for v in params.values() if not isinstance(v, int)),
        )
        if self._use_cuda_graph:
            self._check_frozen(num_requests, need, int(indptr[-1]))
        segment = girih.Segment(kv_indptr=indptr, kv_len=kv_len, page_size=0)
        self._adopt_plan(problem, Batch(rows, (segment,), need, params=params), need.tokens)
        if self._use_cuda_graph:
            assert self._qo_indptr_buf is not None and self._kv_indptr_buf is not None
            self._qo_indptr_buf.copy_(qo_indptr, non_blocking=non_blocking)
            self._kv_indptr_buf.copy_(kv_indptr, non_blocking=non_blocking)

    begin_forward = plan

    def _check_frozen(self, num_requests: int, need: Limits, num_keys: int) -> None:
        assert self._qo_indptr_buf is not None
        fixed = len(self._qo_indptr_buf) - 1
        if num_requests != fixed:
            raise ValueError(
                f"The batch size should be fixed in cudagraph mode, the runtime batch size {num_requests} "
                f" mismatches the batch size set during initialization {fixed}."
            )
        if self._planner.limits is None:
            self._planner.limits = need._replace(qo_len=need.tokens, kv_len=max(num_keys, need.kv_len))

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *args: Any,
        q_scale: float | torch.Tensor | None = None,
        k_scale: float | torch.Tensor | None = None,
        v_scale: float | torch.Tensor | None = None,
        o_scale: float | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: bool | None = None,
        kv_cache_sf: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> Any:
        """Attention of the planned batch: q [qo_indptr[-1], num_qo_heads, head_dim_qk], k [kv_indptr[-1], num_kv_heads, head_dim_qk],
        v [kv_indptr[-1], num_kv_heads, head_dim_vo]. Returns as the paged wrapper. o_scale divides the output."""
        problem = self._problem
        if problem is None:
            raise RuntimeError(f"{self._name}.run() before plan()")
        check_lse_layout(lse_layout)
        check_cache_dtype(k, problem)
        self._check_rows(q)
        sinks = None
        if self._hooks is not None:
            sinks = self._take_jit_arguments(args, None)
            args = ()
        if o_scale is not None:
            v_scale = 1.0 / o_scale if v_scale is None else v_scale / o_scale
        scales: Scales = with_scales(fp8_scales(args, q, self._name), q_scale, k_scale, v_scale, kv_cache_sf)
        wants_lse = return_lse or lse is not None
        kind = lse_of(lse_base) if wants_lse else "none"
        form, stored, params = run_form(problem, kind, scales, sinks, self.device, self._kv_layout, False)
        store = ragged_store(k, v, self._kv_layout, problem, stored)
        given_lse = lse if lse_layout == "NH" else None
        result = self._compute(self._query(q, problem), store, form, params, out=out, lse=given_lse)
        return self._finish(result, wants_lse, return_lse, lse, lse_layout)

    run_return_lse = functools.partialmethod(run, return_lse=True)

    @older_names(allow_fp16_qk_reduction="use_fp16_qk_reduction")
    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        """run() as older releases call it: these arguments replace those of plan(), for this call and those that follow."""
        self._changed(causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale, rope_scale, rope_theta)
        return self.run(q, k, v)

    @older_names(allow_fp16_qk_reduction="use_fp16_qk_reduction")
    def forward_return_lse(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        """forward() with its LSE."""
        self._changed(causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale, rope_scale, rope_theta)
        return self.run(q, k, v, return_lse=True)


def _same_indptr(name: str, given: torch.Tensor | None, expected: IndexArray) -> None:
    if given is not None and not (host_array(given) == expected).all():
        refuse("BatchPrefillWithRaggedKVCacheWrapper.plan", f"{name} of its own", "lay V out as K and the output as Q")
