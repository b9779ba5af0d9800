"""Prefill and append attention by FlashInfer's names: any number of query tokens per request over ragged or paged keys and values.

Long because FlashInfer's signatures are: the ragged wrapper stands in _ragged, what both wrappers share in _prefill_base.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

import girih

from ._functional import single_attention
from ._kv import run_form
from ._masks import multi_item_params
from ._paged_call import PagedCall, paged_attention, refuse_all, rows_of
from ._planner import Batch, IndexArray, Limits, host_array, kv_len_of_pages, on_host
from ._prefill_base import BatchPrefillWrapper, check_lse_layout
from ._problem import Problem, data_types, is_batch_invariant, refuse
from ._ragged import BatchPrefillWithRaggedKVCacheWrapper
from ._ragged_call import trtllm_ragged_attention_deepseek
from ._wrapper import (
    check_backend,
    check_cache_dtype,
    fp8_scales,
    lse_of,
    older_names,
    paged_store,
    with_scales,
)

__all__ = [
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "single_prefill_with_kv_cache",
    "single_prefill_with_kv_cache_return_lse",
    "single_prefill_with_kv_cache_with_jit_module",
    "trtllm_batch_context_with_kv_cache",
    "trtllm_ragged_attention_deepseek",
]


@older_names(allow_fp16_qk_reduction="use_fp16_qk_reduction")
def single_prefill_with_kv_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale_q: torch.Tensor | None = None,
    scale_k: torch.Tensor | None = None,
    scale_v: torch.Tensor | None = None,
    o_dtype: torch.dtype | None = None,
    custom_mask: torch.Tensor | None = None,
    packed_custom_mask: torch.Tensor | None = None,
    causal: bool = False,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_fp16_qk_reduction: bool = False,
    sm_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
    kv_cache_sf: tuple[torch.Tensor, torch.Tensor] | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> Any:
    """Attention of one request over contiguous keys and values.

    q: [qo_len, num_qo_heads, head_dim_qk]; k: [kv_len, num_kv_heads, head_dim_qk], v: [kv_len, num_kv_heads, head_dim_vo] (NHD) or heads
    first (HND). custom_mask: bool [qo_len, kv_len], or its bits packed little-endian; replaces causal (bottom-right aligned).
    scale_q/k/v: f32 per head, k_scale and v_scale numbers. use_fp16_qk_reduction and backend are hints.
    Returns out [qo_len, num_qo_heads, head_dim_vo], or (out, lse f32 [qo_len, num_qo_heads], base 2).
    """
    check_backend(backend)
    return single_attention(
        "single_prefill_with_kv_cache",
        q,
        k,
        v,
        kv_layout=kv_layout,
        window_left=window_left,
        causal=causal,
        custom_mask=custom_mask,
        packed_custom_mask=packed_custom_mask,
        pos_encoding_mode=pos_encoding_mode,
        soft_cap=logits_soft_cap,
        sm_scale=sm_scale,
        rope_scale=rope_scale,
        rope_theta=rope_theta,
        o_dtype=o_dtype,
        scales=(scale_q, _product(scale_k, k_scale), _product(scale_v, v_scale), kv_cache_sf),
        return_lse=return_lse,
    )


def _product(tensor: torch.Tensor | None, number: float | None) -> Any:
    if tensor is None:
        return number
    return tensor if number is None else tensor * number


single_prefill_with_kv_cache_return_lse = functools.partial(single_prefill_with_kv_cache, return_lse=True)


def single_prefill_with_kv_cache_with_jit_module(
    jit_module: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *args: Any,
    kv_layout: str = "NHD",
    mask_mode: int = 0,
    window_left: int = -1,
    return_lse: bool = False,
) -> Any:
    """single_prefill_with_kv_cache() with the variant of a customised module; `args` are its tensors, then its scalars.

    mask_mode: 0 none, 1 causal, both beside the variant's own mask; 2 (custom) is the variant's own business.
    """
    if mask_mode not in (0, 1, 2):
        refuse(
            "single_prefill_with_kv_cache_with_jit_module",
            f"mask_mode={mask_mode}",
            "use prefix_len_ptr of a batch wrapper",
        )
    return single_attention(
        "single_prefill_with_kv_cache_with_jit_module",
        q,
        k,
        v,
        kv_layout=kv_layout,
        window_left=window_left,
        causal=mask_mode == 1,
        return_lse=return_lse,
        jit=(jit_module, args),
    )


class BatchPrefillWithPagedKVCacheWrapper(BatchPrefillWrapper):
    """Prefill and append of a batch over a paged KV cache: plan() each step, run() each layer.

    float_workspace_buffer sets the device and is otherwise unused. backend and jit_kwargs are hints. variant_owns_mask: jit_args
    say the whole mask, and `causal` of plan() nothing. With use_cuda_graph the buffers hold the page table at fixed addresses and set the largest batch; max_total_num_rows the most query rows
    (left out: those of the first plan). jit_args: see girih.flashinfer.jit.
    """

    _name = "BatchPrefillWithPagedKVCacheWrapper"

    @older_names(workspace_buffer="float_workspace_buffer")
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
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
        variant_owns_mask: bool = False,
        max_total_num_rows: int | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, backend)
        self._init_masks(custom_mask_buf, mask_indptr_buf, jit_args, jit_kwargs, variant_owns_mask)
        if max_total_num_rows is not None and not use_cuda_graph:
            raise ValueError("max_total_num_rows is for use_cuda_graph=True; leave it out")
        self._max_total_num_rows = max_total_num_rows
        self._qo_indptr_buf = qo_indptr_buf
        self._paged_kv_indptr_buf = paged_kv_indptr_buf
        self._paged_kv_indices_buf = paged_kv_indices_buf
        self._paged_kv_last_page_len_buf = paged_kv_last_page_len_buf
        if use_cuda_graph:
            for name, buffer in (
                ("qo_indptr_buf", qo_indptr_buf),
                ("paged_kv_indptr_buf", paged_kv_indptr_buf),
                ("paged_kv_indices_buf", paged_kv_indices_buf),
                ("paged_kv_last_page_len_buf", paged_kv_last_page_len_buf),
            ):
                if not torch.is_tensor(buffer):
                    raise ValueError(f"{name} should be a torch.Tensor in CUDA graph mode")

    @older_names(head_dim="head_dim_qk", allow_fp16_qk_reduction="use_fp16_qk_reduction")
    def plan(
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
        seq_lens: torch.Tensor | None = None,
        seq_lens_q: torch.Tensor | None = None,
        block_tables: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        uniform_q_len: int | None = None,
        use_token_head_sf: bool = False,
    ) -> None:
        """Plans a batch.

        qo_indptr [batch + 1] and the page table (paged_kv_indptr [batch + 1], paged_kv_indices, paged_kv_last_page_len [batch]) may be on
        any device; seq_lens [batch] replaces the lengths of last_page_len. custom_mask: flat bool [sum of qo_len * kv_len];
        packed_custom_mask: its bits, each request from a byte border (as segment_packbits makes it); both replace causal. prefix_len_ptr,
        token_pos_in_items_ptr and token_pos_in_items_len: multi-item scoring. fixed_split_size and disable_split_kv ask for
        batch-invariant bits. Hints: use_fp16_qk_reduction, non_blocking, max_item_len_ptr, seq_lens_q, block_tables,
        max_token_per_sequence, max_sequence_kv, uniform_q_len.
        """
        q_type, kv_type, o_type = data_types(q_data_type, kv_data_type, o_data_type)
        if use_token_head_sf and kv_type not in (torch.float8_e4m3fn, torch.float8_e5m2):
            raise ValueError(f"use_token_head_sf requires an fp8 (e4m3/e5m2) KV cache, got {kv_type}")
        rows = host_array(qo_indptr)
        kv_len: IndexArray | None = None
        if seq_lens is None and custom_mask is None and packed_custom_mask is None and prefix_len_ptr is None:
            # Nothing here reads the lengths: they are made where they are planned.
            segment = girih.Segment.from_last_page(on_host(paged_kv_indptr), on_host(paged_kv_last_page_len), page_size)
        else:
            indptr = host_array(paged_kv_indptr)
            if seq_lens is None:
                kv_len = kv_len_of_pages(indptr, host_array(paged_kv_last_page_len), page_size)
            else:
                kv_len = host_array(seq_lens.reshape(-1))
            segment = girih.Segment(kv_indptr=indptr, kv_len=kv_len, page_size=page_size)
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
            assert kv_len is not None
            params = multi_item_params(prefix_len_ptr, token_pos_in_items_ptr, token_pos_in_items_len, kv_len)
        num_requests = len(rows) - 1
        need = Limits(
            int(rows[-1]),
            num_requests,
            segment.longest,
            int((rows[1:] - rows[:-1]).max()) if num_requests else 0,
            param_bytes=0
            if params is None
            else 64 + 4 * sum(len(v) for v in params.values() if not isinstance(v, int)),
        )
        if self._use_cuda_graph:
            self._check_frozen(num_requests, paged_kv_indices, need, page_size)
        self._adopt_plan(problem, Batch(rows, (segment,), need, params=params), need.tokens)
        self._use_token_head_sf = use_token_head_sf
        self._take_tables(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, non_blocking)

    begin_forward = plan

    def _check_frozen(self, num_requests: int, indices: torch.Tensor, need: Limits, page_size: int) -> None:
        assert self._paged_kv_indices_buf is not None and self._qo_indptr_buf is not None
        fixed = len(self._qo_indptr_buf) - 1
        if num_requests != fixed:
            raise ValueError(
                f"The batch size should be fixed in cudagraph mode, the runtime batch size {num_requests} "
                f" mismatches the batch size set during initialization {fixed}."
            )
        capacity = len(self._paged_kv_indices_buf)
        if len(indices) > capacity:
            raise ValueError("The length of paged_kv_indices exceeds the allocated buffer size.")
        if self._planner.limits is None:
            rows = need.tokens if self._max_total_num_rows is None else self._max_total_num_rows
            self._planner.limits = need._replace(tokens=rows, qo_len=rows, kv_len=capacity * page_size)

    def _take_tables(
        self,
        qo_indptr: torch.Tensor,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last: torch.Tensor,
        non_blocking: bool,
    ) -> None:
        if not self._use_cuda_graph:
            self._kv_indices = self._on_device(indices, non_blocking)
            return
        assert self._qo_indptr_buf is not None and self._paged_kv_indptr_buf is not None
        assert self._paged_kv_indices_buf is not None and self._paged_kv_last_page_len_buf is not None
        self._qo_indptr_buf.copy_(qo_indptr, non_blocking=non_blocking)
        self._paged_kv_indptr_buf.copy_(indptr, non_blocking=non_blocking)
        self._paged_kv_last_page_len_buf.copy_(last, non_blocking=non_blocking)
        self._paged_kv_indices_buf[: len(indices)].copy_(indices, non_blocking=non_blocking)
        self._kv_indices = self._paged_kv_indices_buf

    def workspace_size(
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
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype | None = None,
        prefix_len_ptr: torch.Tensor | None = None,
        token_pos_in_items_ptr: torch.Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: torch.Tensor | None = None,
        seq_lens: torch.Tensor | None = None,
        seq_lens_q: torch.Tensor | None = None,
        block_tables: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        uniform_q_len: int | None = None,
    ) -> tuple[int, int]:
        """(bytes of workspace, bytes of plan) that the wrapper holds for this batch, in memory of its own (at least 1 each); plans it to know."""
        self.plan(
            qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim_qk, page_size,
            head_dim_vo, custom_mask, packed_custom_mask, causal, pos_encoding_mode, use_fp16_qk_reduction, sm_scale, window_left,
            logits_soft_cap, rope_scale, rope_theta, q_data_type, kv_data_type, o_data_type, True, prefix_len_ptr,
            token_pos_in_items_ptr, token_pos_in_items_len, max_item_len_ptr, seq_lens, seq_lens_q, block_tables,
            max_token_per_sequence, max_sequence_kv, fixed_split_size, disable_split_kv, uniform_q_len,
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
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: torch.Tensor | None = None,
        kv_cache_sf: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        use_fp16_softmax: bool | None = None,
        uses_spcompress: bool | None = None,
    ) -> Any:
        """Attention of the planned batch over one layer's cache.

        q: [qo_indptr[-1], num_qo_heads, head_dim_qk]; cache and scales as for decode. sinks: f32 [num_qo_heads].
        Returns out [rows, num_qo_heads, head_dim_vo], or (out, lse f32 [rows, num_qo_heads]; lse_layout="HN": [num_qo_heads, rows]).
        Hints: enable_pdl, use_fp16_softmax.
        """
        problem = self._problem
        if problem is None:
            raise RuntimeError(f"{self._name}.run() before plan()")
        if skip_softmax_threshold_scale_factor is not None:
            refuse("run", "skip_softmax_threshold_scale_factor", "leave it out: every key is computed")
        if uses_spcompress:
            refuse("run", "uses_spcompress", "leave it out: every key is computed")
        check_lse_layout(lse_layout)
        changed = None
        if window_left is not None and window_left != problem.window_left:
            changed = problem = problem._replace(window_left=window_left)
        check_cache_dtype(paged_kv_cache, problem)
        self._check_rows(q)
        if self._hooks is not None:
            sinks = self._take_jit_arguments(args, sinks)
            args = ()
        if self._use_token_head_sf and kv_cache_sf is None:
            raise ValueError("kv_cache_sf: plan(use_token_head_sf=True) needs a pair (k_sf, v_sf), one scale per token and head")
        scales = with_scales(fp8_scales(args, q, self._name), q_scale, k_scale, v_scale, kv_cache_sf)
        wants_lse = return_lse or lse is not None
        kind = lse_of(lse_base) if wants_lse else "none"
        form, stored, params = run_form(problem, kind, scales, sinks, self.device, self._kv_layout)
        store = paged_store(paged_kv_cache, self._kv_layout, problem, stored)
        given_lse = lse if lse_layout == "NH" else None
        result = self._compute(
            self._query(q, problem),
            store,
            form,
            params,
            kv_indices=self._kv_indices,
            problem=changed,
            out=out,
            lse=given_lse,
        )
        return self._finish(result, wants_lse, return_lse, lse, lse_layout)

    run_return_lse = functools.partialmethod(run, return_lse=True)

    @older_names(allow_fp16_qk_reduction="use_fp16_qk_reduction")
    def forward(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        k_scale: float | None = None,
        v_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        """run() as older releases call it: these arguments replace those of plan(), for this call and those that follow."""
        self._changed(causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale, rope_scale, rope_theta)
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale)

    @older_names(allow_fp16_qk_reduction="use_fp16_qk_reduction")
    def forward_return_lse(
        self,
        q: torch.Tensor,
        paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        k_scale: float | None = None,
        v_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        """forward() with its LSE."""
        self._changed(causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale, rope_scale, rope_theta)
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale, return_lse=True)


def trtllm_batch_context_with_kv_cache(
    query: torch.Tensor,
    kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    workspace_buffer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    max_q_len: int,
    max_kv_len: int,
    bmm1_scale: float | torch.Tensor,
    bmm2_scale: float | torch.Tensor,
    batch_size: int,
    cum_seq_lens_q: torch.Tensor,
    cum_seq_lens_kv: torch.Tensor,
    window_left: int = -1,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | str | None = None,
    o_sf_scale: float | None = None,
    o_sf_vec_size: int | None = None,
    kv_layout: str = "HND",
    enable_pdl: bool | None = None,
    sinks: Any = None,
    kv_cache_sf: Any = None,
    skip_softmax_threshold_scale_factor: float | None = None,
    uses_shared_paged_kv_idx: bool = True,
    causal: bool = True,
    lse: torch.Tensor | None = None,
    return_lse: bool = False,
    multi_ctas_kv_counter_buffer: torch.Tensor | None = None,
    use_fp16_softmax: bool | None = None,
    uses_spcompress: bool | None = None,
    backend: str = "trtllm-gen",
    window_right: int = -1,
    variable_window_token_starts: torch.Tensor | None = None,
    variable_window_token_ends: torch.Tensor | None = None,
) -> Any:
    """Prefill over a paged cache in one call, which plans (and on a GPU waits for the lengths): wrappers plan once a step.

    As trtllm_batch_decode_with_kv_cache(), with the rows of each request by cum_seq_lens_q [batch + 1]. causal bounds the window on the
    right at the row itself; without it window_right does, -1 = open. Hints: workspace_buffer, max_q_len, max_kv_len, cum_seq_lens_kv (the
    lengths are seq_lens), enable_pdl, backend, multi_ctas_kv_counter_buffer, use_fp16_softmax.
    """
    name = "trtllm_batch_context_with_kv_cache"
    refuse_all(
        name,
        "use BatchPrefillWithPagedKVCacheWrapper or BatchPrefillWithCausalBidirectionalRangesWrapper",
        o_sf_scale=o_sf_scale,
        o_sf_vec_size=o_sf_vec_size,
        kv_cache_sf=kv_cache_sf,
        skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor,
        uses_spcompress=uses_spcompress,
        variable_window_token_starts=variable_window_token_starts,
        variable_window_token_ends=variable_window_token_ends,
    )
    check_backend(backend)
    if not uses_shared_paged_kv_idx:
        refuse(name, "uses_shared_paged_kv_idx=False", "give K and V the same page ids")
    if len(seq_lens) != batch_size:
        raise ValueError(f"{name}: seq_lens has {len(seq_lens)} entries; must have batch_size={batch_size}")
    rows = rows_of(name, query, batch_size, None, cum_seq_lens_q)
    right = 0 if causal else window_right
    return paged_attention(
        PagedCall(
            name, query, kv_cache, block_tables, seq_lens, rows, bmm1_scale, bmm2_scale, window_left, right, kv_layout,
            out, out_dtype, sinks, lse, return_lse,
        )
    )  # fmt: skip
