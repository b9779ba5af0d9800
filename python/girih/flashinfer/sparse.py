"""Block-sparse attention by FlashInfer's names: blocks of one size in BSR form, or of any sizes by a map per KV head.

A block of rows is a group of query rows, an attended block of columns a stretch of pages of the contiguous keys. Positions are those of the
matrix, so that causal and position encodings mean what they mean in a dense matrix (FlashInfer counts along the attended blocks instead).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import girih

from ._kv import NO_SCALES, is_quantised, run_form
from ._masks import MaskBuffers
from ._planner import Batch, IndexArray, Limits, host_array
from ._problem import FLOAT16, Problem, data_types, refuse
from ._wrapper import AttentionWrapper, older_names, with_scales

__all__ = ["BlockSparseAttentionWrapper", "VariableBlockSparseAttentionWrapper", "convert_bsr_mask_layout"]

_OTHER_ENGINES = (
    "block_mask",
    "kv_block_lens",
    "q2k_indices",
    "q2k_num",
    "kv_splits",
    "use_clc",
    "q_scale",
    "k_scale",
    "v_scale",
)


def convert_bsr_mask_layout(mask: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """A mask [nnz, R, C] of BSR blocks as flat conditions, block row after block row, each row-major [R, its blocks * C]."""
    nnz, rows, cols = mask.shape
    out = torch.empty(nnz * rows * cols, dtype=mask.dtype, device=mask.device)
    borders = host_array(indptr)
    for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        out[begin * rows * cols : end * rows * cols] = mask[begin:end].transpose(0, 1).reshape(-1)
    return out


class _SparseWrapper(AttentionWrapper):
    """One request whose segment is a pattern over contiguous keys."""

    @older_names(workspace_buffer="float_workspace_buffer")
    def __init__(self, float_workspace_buffer: torch.Tensor, backend: str = "auto") -> None:
        super().__init__(float_workspace_buffer, "NHD", backend=backend)
        self._problem: Problem | None = None
        self._page_size = 1
        self._page_pos: torch.Tensor | None = None

    def _plan_pattern(self, problem: Problem, pattern: Any, rows: int, cols: int, num_groups: int) -> None:
        need = Limits(rows, 1, cols, rows, max(1, num_groups))
        batch = Batch(np.array([0, rows], np.int64), (pattern.segment(),), need, kv_len=np.array([cols], np.int64))
        self._planner.plan(problem, batch)
        self._problem = problem
        self._page_size = int(pattern.page_size)
        self._kv_indices = torch.from_numpy(np.array(pattern.kv_indices)).to(self.device)
        self._page_pos = torch.from_numpy(np.array(pattern.page_pos)).to(self.device)

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layout: str,
        scales: Any,
        out: Any,
        lse: Any,
        return_lse: bool,
    ) -> Any:
        problem = self._problem
        if problem is None:
            raise RuntimeError(f"{self._name}.run() before plan()")
        kind = "base2" if return_lse or lse is not None else "none"
        form, stored, params = run_form(problem, kind, scales, None, self.device, layout)
        arguments: dict[str, Any] = {}
        if is_quantised(problem.kv_dtype):
            arguments = {
                "k_scale": stored.k_scale,
                "v_scale": stored.v_scale,
                "k_global_scale": stored.k_global,
                "v_global_scale": stored.v_global,
            }
        store = girih.KvStore.blocks(k, v, page_size=self._page_size, layout=layout, **arguments)
        segment = girih.SegmentData(store, self._kv_indices, self._page_pos)
        result = self._compute(self._query(q, problem), segment, form, params, out=out, lse=lse)
        return result if return_lse or lse is None else result[0]


class BlockSparseAttentionWrapper(_SparseWrapper):
    """Attention over a matrix [M, N] of which blocks of R x C are attended, by their BSR pattern. backend is a hint."""

    _name = "BlockSparseAttentionWrapper"

    @older_names(allow_fp16_qk_reduction="use_fp16_qk_reduction")
    def plan(
        self,
        indptr: torch.Tensor | None,
        indices: torch.Tensor | None,
        M: int,
        N: int,
        R: int,
        C: int,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        mask: torch.Tensor | None = None,
        packed_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        o_data_type: str | torch.dtype = FLOAT16,
        non_blocking: bool = True,
        block_mask: torch.Tensor | None = None,
        kv_block_lens: torch.Tensor | None = None,
        q2k_indices: torch.Tensor | None = None,
        q2k_num: torch.Tensor | None = None,
        kv_splits: int | str | None = None,
        use_clc: bool | None = None,
        q_scale: torch.Tensor | None = None,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
    ) -> None:
        """Plans a pattern: indptr [ceil(M / R) + 1], indices [nnz], the attended block columns of each block row.

        mask: bool [nnz, R, C] within the blocks; packed_mask: the bits of convert_bsr_mask_layout(mask), each block row from a byte border.
        causal: key column <= row + N - M, without a mask. The last blocks may be cut by M and N. o_data_type left out follows q_data_type.
        """
        values = (block_mask, kv_block_lens, q2k_indices, q2k_num, kv_splits, use_clc, q_scale, k_scale, v_scale)
        for name, value in zip(_OTHER_ENGINES, values, strict=True):
            if value is not None:
                refuse(
                    "BlockSparseAttentionWrapper.plan",
                    name,
                    "give indptr and indices, or use VariableBlockSparseAttentionWrapper",
                )
        if indptr is None or indices is None:
            raise ValueError("indptr and indices are required")
        q_type, kv_type, o_type = data_types(q_data_type, kv_data_type, o_data_type)
        borders, columns = _sorted_pattern(
            host_array(indptr), host_array(indices), mask is None and packed_mask is None
        )
        if len(borders) != -(-M // R) + 1:
            raise ValueError(f"indptr has {len(borders)} entries; must have {-(-M // R) + 1} (ceil(M / R) + 1)")
        if columns.size and int(columns.max()) * C >= N:
            raise ValueError("indices out of bound")
        masked = mask is not None or packed_mask is not None
        problem = Problem(
            num_qo_heads,
            num_kv_heads,
            head_dim,
            head_dim,
            q_type,
            kv_type,
            o_type,
            "custom" if masked else "band",
            -1,
            0 if causal and not masked else -1,
            0.0 if logits_soft_cap is None else logits_soft_cap,
            sm_scale,
            pos_encoding_mode,
            rope_scale,
            rope_theta,
        )
        if masked:
            self._plan_masked(problem, borders, columns, (M, N, R, C), mask, packed_mask, indptr)
            return
        pattern = girih.block_sparse(M, N, R, C, borders, columns)
        self._run_params = {}
        self._plan_pattern(problem, pattern, M, N, len(borders) - 1)

    begin_forward = plan

    def _plan_masked(
        self,
        problem: Problem,
        borders: IndexArray,
        columns: IndexArray,
        extents: tuple[int, int, int, int],
        mask: torch.Tensor | None,
        packed: torch.Tensor | None,
        indptr: torch.Tensor,
    ) -> None:
        """With bits inside the blocks each block row is a request over its own blocks, whose bits are one dense table."""
        rows, cols, block_rows, block_cols = extents
        if problem.pos_encoding_mode != "NONE":
            refuse(
                "BlockSparseAttentionWrapper.plan",
                "pos_encoding_mode with a mask",
                "use a custom_mask of a prefill wrapper",
            )
        if cols % block_cols != 0:
            raise ValueError(f"N={cols} must be a multiple of C={block_cols} where a mask is given")
        qo_indptr = np.minimum(np.arange(len(borders), dtype=np.int64) * block_rows, rows)
        kv_len = (borders[1:] - borders[:-1]).astype(np.int64) * block_cols
        flat = None
        if mask is not None and packed is None:
            flat = convert_bsr_mask_layout(mask, indptr)
            if rows % block_rows != 0:
                flat = flat[: int(((qo_indptr[1:] - qo_indptr[:-1]) * kv_len).sum())]
        bits = MaskBuffers(self.device)
        bits.take(flat, packed, qo_indptr, kv_len)
        segment = girih.Segment(kv_indptr=borders, kv_len=kv_len, page_size=block_cols)
        need = Limits(rows, len(kv_len), int(kv_len.max()) if len(kv_len) else 0, block_rows)
        self._planner.plan(problem, Batch(qo_indptr, (segment,), need))
        self._problem = problem
        self._run_params = bits.params
        self._page_size, self._page_pos = block_cols, None
        self._kv_indices = torch.from_numpy(columns.astype(np.int32)).to(self.device)

    @older_names(allow_fp16_qk_reduction="use_fp16_qk_reduction")
    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale_q: torch.Tensor | None = None,
        scale_k: torch.Tensor | None = None,
        scale_v: torch.Tensor | None = None,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        """run() as older releases call it: these arguments replace those of plan(), for this call and those that follow."""
        self._change(pos_encoding_mode, logits_soft_cap, sm_scale, rope_scale, rope_theta)
        return self.run(q, k, v, scale_q, scale_k, scale_v)

    def _change(
        self, pos_encoding_mode: str, cap: float | None, sm_scale: float | None, rope_scale: Any, rope_theta: Any
    ) -> None:
        if self._problem is None:
            raise RuntimeError(f"{self._name}.forward() before plan()")
        self._problem = self._adopted(
            self._problem._replace(
                pos_encoding_mode=pos_encoding_mode,
                soft_cap=cap or 0.0,
                sm_scale=sm_scale,
                rope_scale=rope_scale,
                rope_theta=rope_theta,
            )
        )

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale_q: torch.Tensor | None = None,
        scale_k: torch.Tensor | None = None,
        scale_v: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
    ) -> Any:
        """q [M, num_qo_heads, head_dim]; k, v [N, num_kv_heads, head_dim]; scales f32 per head. Returns out, or (out, lse base 2)."""
        scales = with_scales(NO_SCALES, scale_q, scale_k, scale_v, None)
        return self._attend(q, k, v, "NHD", scales, out, lse, return_lse)


def _sorted_pattern(borders: IndexArray, columns: IndexArray, may_sort: bool) -> tuple[IndexArray, IndexArray]:
    """Columns ascending within each block row, as the planner wants them."""
    if columns.size < 2:
        return borders, columns
    row_starts = np.zeros(columns.size, bool)
    row_starts[borders[:-1][borders[:-1] < columns.size]] = True
    if not ((columns[1:] <= columns[:-1]) & ~row_starts[1:]).any():
        return borders, columns
    if not may_sort:
        return borders, columns
    row_of = np.repeat(np.arange(len(borders) - 1), borders[1:] - borders[:-1])
    return borders, columns[np.lexsort((columns, row_of))]


class VariableBlockSparseAttentionWrapper(_SparseWrapper):
    """Attention over blocks of any sizes, by a map per KV head. Tensors have heads first. backend is a hint."""

    _name = "VariableBlockSparseAttentionWrapper"

    @older_names(allow_fp16_qk_reduction="use_fp16_qk_reduction")
    def plan(
        self,
        block_mask_map: torch.Tensor,
        block_row_sz: torch.Tensor,
        block_col_sz: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        q_scale: torch.Tensor | None = None,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
    ) -> None:
        """Plans a map bool [num_kv_heads, MB, NB] of blocks with row sizes [num_kv_heads, MB] and column sizes [num_kv_heads, NB]."""
        for name, value in (("q_scale", q_scale), ("k_scale", k_scale), ("v_scale", v_scale)):
            if value is not None:
                refuse("VariableBlockSparseAttentionWrapper.plan", name, "dequantise the tensors")
        if block_mask_map.dim() != 3 or block_mask_map.shape[0] != num_kv_heads:
            raise ValueError(
                f"block_mask_map has shape {tuple(block_mask_map.shape)}; must be [num_kv_heads={num_kv_heads}, MB, NB]"
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
            -1,
            0 if causal else -1,
            0.0 if logits_soft_cap is None else logits_soft_cap,
            sm_scale,
            pos_encoding_mode,
            rope_scale,
            rope_theta,
        )
        row_sizes, col_sizes = host_array(block_row_sz), host_array(block_col_sz)
        blocks = (block_mask_map != 0).to("cpu", torch.uint8).contiguous().numpy()
        pattern = girih.variable_block_sparse(
            row_sizes.reshape(-1), col_sizes.reshape(-1), blocks.reshape(-1), num_heads=num_kv_heads
        )
        rows, cols = int(row_sizes[0].sum()), int(col_sizes[0].sum())
        self._plan_pattern(problem, pattern, rows, cols, len(np.asarray(pattern.qo_indptr)) - 1)

    begin_forward = plan

    @older_names(allow_fp16_qk_reduction="use_fp16_qk_reduction")
    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> Any:
        """run() as older releases call it: these arguments replace those of plan(), for this call and those that follow."""
        BlockSparseAttentionWrapper._change(self, pos_encoding_mode, logits_soft_cap, sm_scale, rope_scale, rope_theta)  # type: ignore[arg-type]
        return self.run(q, k, v)

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
    ) -> Any:
        """q [num_qo_heads, qo_len, head_dim]; k, v [num_kv_heads, kv_len, head_dim]. Returns out [num_qo_heads, qo_len, head_dim], or
        (out, lse [num_qo_heads, qo_len]); given tensors have these shapes and are what is returned."""
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        wants_lse = return_lse or lse is not None
        result = self._attend(q.transpose(0, 1), k, v, "HND", NO_SCALES, out.transpose(0, 1), None, wants_lse)
        if not wants_lse:
            return out
        by_head = result[1].t()
        lse = by_head.contiguous() if lse is None else lse.copy_(by_head)
        return (out, lse) if return_lse else out
