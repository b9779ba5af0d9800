"""POD attention by FlashInfer's names: one prefill and a batch of decodes, or two batches, by one object.

The two halves are planned apart and run one after the other on the caller's stream. Options of the decode half, which FlashInfer accepts
and ignores, are honoured or refused, and the log-sum-exps that it computes and drops are returned where asked for.
"""

from __future__ import annotations

from typing import Any

import torch

from ._functional import single_attention
from ._kv import NO_SCALES
from ._problem import FLOAT16, data_types, refuse
from ._wrapper import AttentionWrapper, older_names, with_scales
from .decode import BatchDecodeWithPagedKVCacheWrapper
from .prefill import BatchPrefillWithPagedKVCacheWrapper

__all__ = ["BatchPODWithPagedKVCacheWrapper", "PODWithPagedKVCacheWrapper"]


class PODWithPagedKVCacheWrapper(AttentionWrapper):
    """One request's prefill over contiguous keys (given to run()) beside a batch of decodes over a paged cache (planned)."""

    _name = "PODWithPagedKVCacheWrapper"

    @older_names(workspace_buffer="float_workspace_buffer")
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        jit_args: list[Any] | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph)
        if jit_args is not None:
            refuse(self._name, "jit_args", "use a decode and a prefill wrapper, whose variants may differ")
        # The prefill half has a planner of the wrapper's own, so that graphs keep what they point to.
        self._decode = BatchDecodeWithPagedKVCacheWrapper(
            float_workspace_buffer,
            kv_layout,
            use_cuda_graph,
            False,
            paged_kv_indptr_buffer,
            paged_kv_indices_buffer,
            paged_kv_last_page_len_buffer,
        )

    def reset_workspace_buffer(self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor) -> None:
        """As of the decode wrapper."""
        super().reset_workspace_buffer(float_workspace_buffer, int_workspace_buffer)
        self._decode.reset_workspace_buffer(float_workspace_buffer, int_workspace_buffer)

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
        q_data_type: str | torch.dtype | None = FLOAT16,
        kv_data_type: str | torch.dtype | None = None,
        data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
    ) -> None:
        """Plans the decode half, as BatchDecodeWithPagedKVCacheWrapper.plan()."""
        self._decode.plan(
            indptr,
            indices,
            last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim,
            page_size,
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
            data_type=data_type,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
            non_blocking=non_blocking,
        )

    begin_forward = plan

    def run(
        self,
        q_p: torch.Tensor,
        k_p: torch.Tensor,
        v_p: torch.Tensor,
        q_d: torch.Tensor,
        paged_kv_cache_d: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        custom_mask_p: torch.Tensor | None = None,
        packed_custom_mask_p: torch.Tensor | None = None,
        causal_p: bool = False,
        kv_layout_p: str = "NHD",
        pos_encoding_mode_p: str = "NONE",
        sm_scale_p: float | None = None,
        window_left_p: int = -1,
        rope_scale_p: float | None = None,
        rope_theta_p: float | None = None,
        return_lse_p: bool = False,
        custom_mask_d: torch.Tensor | None = None,
        packed_custom_mask_d: torch.Tensor | None = None,
        causal_d: bool = False,
        kv_layout_d: str = "NHD",
        pos_encoding_mode_d: str = "NONE",
        sm_scale_d: float | None = None,
        window_left_d: int = -1,
        rope_scale_d: float | None = None,
        rope_theta_d: float | None = None,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        return_lse_d: bool = False,
        use_fp16_qk_reduction: bool = False,
        enable_pdl: bool | None = None,
        *args: Any,
    ) -> Any:
        """The prefill (q_p, k_p, v_p as for single_prefill_with_kv_cache) and the decodes (q_d, paged_kv_cache_d).

        Options of the decode half that differ from their defaults replace those of plan(); kv_layout_d may only repeat the wrapper's.
        causal_d has no effect on one query row per request. Scales apply to both halves. Returns (out_p, out_d), where a half whose LSE is
        asked for is a pair (out, lse).
        """
        if args:
            refuse(
                "PODWithPagedKVCacheWrapper.run",
                "arguments of a jit_args variant",
                "use a decode and a prefill wrapper",
            )
        if custom_mask_d is not None or packed_custom_mask_d is not None:
            refuse(
                "PODWithPagedKVCacheWrapper.run",
                "custom_mask_d",
                "use BatchPODWithPagedKVCacheWrapper, or a prefill wrapper",
            )
        if kv_layout_d != "NHD" and kv_layout_d != self._kv_layout:
            raise ValueError(f"kv_layout_d={kv_layout_d}; the wrapper was made for {self._kv_layout}")
        decode = self._decode
        if decode._problem is None:
            raise RuntimeError("PODWithPagedKVCacheWrapper.run() before plan()")
        given = {
            "pos_encoding_mode": None if pos_encoding_mode_d == "NONE" else pos_encoding_mode_d,
            "sm_scale": sm_scale_d,
            "window_left": None if window_left_d < 0 else window_left_d,
            "rope_scale": rope_scale_d,
            "rope_theta": rope_theta_d,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if changes:
            decode._problem = decode._adopted(decode._problem._replace(**changes))
        scales = with_scales(NO_SCALES, q_scale, k_scale, v_scale, None)
        prefill = single_attention(
            "PODWithPagedKVCacheWrapper.run",
            q_p,
            k_p,
            v_p,
            kv_layout=kv_layout_p,
            window_left=window_left_p,
            causal=causal_p,
            custom_mask=custom_mask_p,
            packed_custom_mask=packed_custom_mask_p,
            pos_encoding_mode=pos_encoding_mode_p,
            sm_scale=sm_scale_p,
            rope_scale=rope_scale_p,
            rope_theta=rope_theta_p,
            scales=(scales.q, scales.k, scales.v, scales.stored),
            return_lse=return_lse_p,
            planner=self._planner,
        )
        return prefill, decode.run(
            q_d, paged_kv_cache_d, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse_d
        )


class BatchPODWithPagedKVCacheWrapper(AttentionWrapper):
    """A batch of prefills and a batch of decodes over paged caches, both planned."""

    _name = "BatchPODWithPagedKVCacheWrapper"

    @older_names(workspace_buffer="float_workspace_buffer")
    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self._prefill = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)
        self._decode = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)
        self._prefill_plan: dict[str, Any] | None = None

    def plan(
        self,
        qo_indptr_p: torch.Tensor,
        kv_indptr_p: torch.Tensor,
        kv_indices_p: torch.Tensor,
        last_page_len_p: torch.Tensor,
        qo_indptr_d: torch.Tensor,
        kv_indptr_d: torch.Tensor,
        kv_indices_d: torch.Tensor,
        last_page_len_d: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        q_data_type: str | torch.dtype | None = FLOAT16,
        kv_data_type: str | torch.dtype | None = None,
        data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
    ) -> None:
        """Plans both halves; the decode half attends to all of its keys."""
        q_type, kv_type, _ = data_types(q_data_type, kv_data_type, None, data_type)
        shared: dict[str, Any] = {
            "pos_encoding_mode": pos_encoding_mode,
            "window_left": window_left,
            "q_data_type": q_type,
            "kv_data_type": kv_type,
            "sm_scale": sm_scale,
            "rope_scale": rope_scale,
            "rope_theta": rope_theta,
            "non_blocking": non_blocking,
        }
        dims = (num_qo_heads, num_kv_heads, head_dim, page_size)
        self._decode.plan(qo_indptr_d, kv_indptr_d, kv_indices_d, last_page_len_d, *dims, **shared)
        self._prefill.plan(qo_indptr_p, kv_indptr_p, kv_indices_p, last_page_len_p, *dims, **shared)
        self._prefill_plan = {
            "args": (qo_indptr_p, kv_indptr_p, kv_indices_p, last_page_len_p, *dims),
            "shared": shared,
        }

    begin_forward = plan

    def run(
        self,
        q_p: torch.Tensor,
        paged_kv_cache_p: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        q_d: torch.Tensor,
        paged_kv_cache_d: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        custom_mask_p: torch.Tensor | None = None,
        packed_custom_mask_p: torch.Tensor | None = None,
        causal_p: bool = False,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        return_lse: bool = False,
        use_fp16_qk_reduction: bool = False,
        enable_pdl: bool | None = None,
    ) -> Any:
        """Both halves. causal_p or a mask of the prefill half are planned here where they differ from the last run's.

        Returns (out_p, out_d), or ((out_p, out_d), (lse_p, lse_d)).
        """
        if self._prefill_plan is None or self._prefill._problem is None:
            raise RuntimeError("BatchPODWithPagedKVCacheWrapper.run() before plan()")
        if custom_mask_p is not None or packed_custom_mask_p is not None:
            masks = {"custom_mask": custom_mask_p, "packed_custom_mask": packed_custom_mask_p}
            options: dict[str, Any] = {**self._prefill_plan["shared"], **masks}
            self._prefill.plan(*self._prefill_plan["args"], **options)
        else:
            problem = self._prefill._problem._replace(mask="band", window_right=0 if causal_p else -1)
            self._prefill._problem = self._prefill._adopted(problem)
            self._prefill._plan_params = {}
        options = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "return_lse": return_lse}
        prefill = self._prefill.run(q_p, paged_kv_cache_p, **options)
        decode = self._decode.run(q_d, paged_kv_cache_d, **options)
        if return_lse:
            return (prefill[0], decode[0]), (prefill[1], decode[1])
        return prefill, decode
