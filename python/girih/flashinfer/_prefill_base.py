"""What the paged and the ragged prefill wrapper share: masks, the form of a run, results in the asked layout."""

from __future__ import annotations

from typing import Any

import torch

from ._masks import MaskBuffers
from ._planner import Batch, IndexArray
from ._problem import Problem
from ._wrapper import AttentionWrapper

__all__ = ["BatchPrefillWrapper", "check_lse_layout"]


class BatchPrefillWrapper(AttentionWrapper):
    """Base of both wrappers."""

    def _init_masks(
        self,
        custom_mask_buf: torch.Tensor | None,
        mask_indptr_buf: torch.Tensor | None,
        jit_args: Any,
        jit_kwargs: Any,
        variant_owns_mask: bool = False,
    ) -> None:
        if variant_owns_mask and jit_args is None:
            raise ValueError("variant_owns_mask needs the variant: give jit_args")
        self._variant_owns_mask = variant_owns_mask
        self._problem: Problem | None = None
        self._masks = (
            MaskBuffers(self.device, custom_mask_buf, mask_indptr_buf)
            if self._use_cuda_graph
            else MaskBuffers(self.device)
        )
        self._custom_mask_buf = custom_mask_buf
        self._max_total_num_rows: int | None = None
        if jit_args is not None:
            from ._jit_variant import hooks_of_jit_args

            self._hooks = hooks_of_jit_args(jit_args, jit_kwargs, self._name)

    def _mask_of_plan(
        self,
        causal: bool,
        custom_mask: torch.Tensor | None,
        packed_custom_mask: torch.Tensor | None,
        prefix_len_ptr: torch.Tensor | None,
        qo_indptr: IndexArray,
        kv_len: IndexArray | None,
    ) -> tuple[Any, int]:
        """Kind of mask and right bound of a plan; takes the bits over, for which it needs the lengths."""
        if prefix_len_ptr is not None:
            if self._variant_owns_mask:
                raise ValueError("prefix_len_ptr is given beside variant_owns_mask=True, which says the whole mask")
            return "multi_item", -1
        if custom_mask is None and packed_custom_mask is None:
            return "band", 0 if causal and not self._variant_owns_mask else -1
        assert kv_len is not None
        self._masks.take(custom_mask, packed_custom_mask, qo_indptr, kv_len)
        return "custom", -1

    def _adopt_plan(self, problem: Problem, batch: Batch, rows: int) -> None:
        planner = self._planner
        problem = self._final_problem(problem)
        if self._use_cuda_graph:
            if self._max_total_num_rows is None:
                self._max_total_num_rows = rows
            elif rows > self._max_total_num_rows:
                raise ValueError(
                    f"The total number of rows in qo_indptr {rows} in cuda graph mode cannot exceed the number of rows set during "
                    f"initialization {self._max_total_num_rows}."
                )
        planner.plan(problem, batch)
        self._problem = problem
        self._plan_params = self._masks.params if problem.mask == "custom" else {}

    def _check_rows(self, q: torch.Tensor) -> None:
        batch = self._planner.batch
        if batch is not None and q.shape[0] != batch.need.tokens and not self._use_cuda_graph:
            raise ValueError(f"q.shape[0] ({q.shape[0]}) does not match qo_indptr[-1] ({batch.need.tokens})")

    def _finish(self, result: Any, has_lse: bool, return_lse: bool, lse: torch.Tensor | None, lse_layout: str) -> Any:
        """A run's result as its caller wants it; a given lse is written whether it is returned or not."""
        if not has_lse:
            return result
        out, own = result
        if lse_layout == "HN":
            own = own.t().contiguous() if lse is None else lse.copy_(own.t())
        return (out, own) if return_lse else out

    def _changed(
        self,
        causal: bool,
        pos_encoding_mode: str,
        window_left: int,
        cap: float | None,
        sm: float | None,
        scale: Any,
        theta: Any,
    ) -> None:
        """Adopts the arguments of the older forward()."""
        if self._problem is None:
            raise RuntimeError(f"{self._name}.forward() before plan()")
        right = (0 if causal else -1) if self._problem.mask == "band" else self._problem.window_right
        self._problem = self._adopted(
            self._problem._replace(
                window_left=window_left,
                window_right=right,
                pos_encoding_mode=pos_encoding_mode,
                soft_cap=cap or 0.0,
                sm_scale=sm,
                rope_scale=scale,
                rope_theta=theta,
            )
        )


def check_lse_layout(lse_layout: str) -> None:
    if lse_layout not in ("NH", "HN"):
        raise ValueError(f"lse_layout={lse_layout!r}; must be 'NH' or 'HN'")
