"""girih.flashinfer.sparse against float64 over the dense mask of each pattern."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attention_reference import attend, check, workspace
from girih.flashinfer import sparse


def bsr(blocks: Any) -> tuple[Any, Any]:
    indptr = torch.tensor([0, *blocks.sum(1).cumsum(0).tolist()], dtype=torch.int32)
    return indptr, blocks.nonzero()[:, 1].to(torch.int32)


def problem(rows: int, cols: int, block_rows: int, block_cols: int, seed: int = 0) -> tuple[Any, ...]:
    torch.manual_seed(seed)
    blocks = torch.rand(-(-rows // block_rows), -(-cols // block_cols)) > 0.6
    blocks[1] = False
    q = torch.randn(rows, 4, 64).half()
    k, v = torch.randn(2, cols, 2, 64).half()
    return blocks, q, k, v


def dense(blocks: Any, rows: int, cols: int, block_rows: int, block_cols: int) -> Any:
    return blocks.repeat_interleave(block_rows, 0).repeat_interleave(block_cols, 1)[:rows, :cols]


@pytest.mark.parametrize("extents", [(32, 48, 4, 8), (30, 45, 4, 8), (16, 16, 1, 1), (40, 33, 16, 5)])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"logits_soft_cap": 4.0, "pos_encoding_mode": "ROPE_LLAMA"}])
def test_blocks_of_one_size(extents: tuple[int, int, int, int], options: dict[str, Any]) -> None:
    rows, cols, block_rows, block_cols = extents
    blocks, q, k, v = problem(*extents)
    wrapper = sparse.BlockSparseAttentionWrapper(workspace())
    wrapper.plan(*bsr(blocks), *extents, 4, 2, 64, **options)
    result = wrapper.run(q, k, v, return_lse=True)
    expected = attend(
        q, k, v,
        mask=dense(blocks, *extents),
        causal=options.get("causal", False),
        cap=options.get("logits_soft_cap", 0.0),
        rope="pos_encoding_mode" in options,
    )  # fmt: skip
    check(result, expected)
    out = torch.empty_like(q)
    assert wrapper.run(q, k, v, out=out).data_ptr() == out.data_ptr() and torch.equal(out, result[0])


@pytest.mark.parametrize("extents", [(32, 48, 4, 8), (30, 48, 4, 8)])
@pytest.mark.parametrize("as_bits", [False, True])
def test_masks_within_blocks(extents: tuple[int, int, int, int], as_bits: bool) -> None:
    rows, cols, block_rows, block_cols = extents
    blocks, q, k, v = problem(*extents)
    indptr, indices = bsr(blocks)
    inner = torch.rand(len(indices), block_rows, block_cols) > 0.5
    full = torch.zeros(blocks.shape[0] * block_rows, cols, dtype=torch.bool)
    for at, (row, col) in enumerate(blocks.nonzero().tolist()):
        full[row * block_rows : (row + 1) * block_rows, col * block_cols : (col + 1) * block_cols] = inner[at]
    wrapper = sparse.BlockSparseAttentionWrapper(workspace())
    if as_bits:
        if rows % block_rows:
            pytest.skip("bits of whole blocks only")
        flat = sparse.convert_bsr_mask_layout(inner, indptr)
        import numpy as np

        given = {"packed_mask": torch.as_tensor(np.packbits(flat.cpu().numpy(), bitorder="little"))}
    else:
        given = {"mask": inner}
    wrapper.plan(indptr, indices, *extents, 4, 2, 64, **given)
    check(wrapper.run(q, k, v, return_lse=True), attend(q, k, v, mask=full[:rows]))
    # The next plan without a mask forgets it.
    wrapper.plan(indptr, indices, *extents, 4, 2, 64)
    check(wrapper.run(q, k, v), attend(q, k, v, mask=dense(blocks, *extents))[0])


def test_columns_may_come_in_any_order() -> None:
    extents = (32, 48, 4, 8)
    blocks, q, k, v = problem(*extents)
    indptr, indices = bsr(blocks)
    wrapper = sparse.BlockSparseAttentionWrapper(workspace())
    wrapper.plan(indptr, indices, *extents, 4, 2, 64)
    expected = wrapper.run(q, k, v)
    mixed = torch.cat([indices[indptr[i] : indptr[i + 1]].flip(0) for i in range(len(indptr) - 1)])
    wrapper.plan(indptr, mixed, *extents, 4, 2, 64)
    assert torch.equal(wrapper.run(q, k, v), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_any_sizes(causal: bool) -> None:
    torch.manual_seed(2)
    row_sizes = torch.tensor([[5, 1, 10], [8, 6, 2]], dtype=torch.int32)
    col_sizes = torch.tensor([[3, 9, 4, 8], [12, 1, 1, 10]], dtype=torch.int32)
    blocks = torch.rand(2, 3, 4) > 0.4
    q = torch.randn(4, 16, 64).half()
    k, v = torch.randn(2, 2, 24, 64).half()
    wrapper = sparse.VariableBlockSparseAttentionWrapper(workspace())
    wrapper.plan(blocks, row_sizes, col_sizes, 4, 2, 64, causal=causal)
    out, lse = wrapper.run(q, k, v, return_lse=True)
    assert out.shape == q.shape and lse.shape == (4, 16)
    for head in range(4):
        kv_head = head // 2
        mask = (
            blocks[kv_head]
            .repeat_interleave(row_sizes[kv_head].long(), 0)
            .repeat_interleave(col_sizes[kv_head].long(), 1)
        )
        expected = attend(q[head, :, None], k[kv_head, :, None], v[kv_head, :, None], mask=mask, causal=causal)
        check((out[head], lse[head]), (expected[0][:, 0], expected[1][:, 0]))
    given, given_lse = torch.empty_like(out), torch.empty_like(lse)
    result = wrapper.run(q, k, v, out=given, lse=given_lse, return_lse=True)
    assert result[0] is given and result[1] is given_lse and torch.equal(given, out) and torch.equal(given_lse, lse)


def test_refusals_name_the_argument() -> None:
    extents = (32, 48, 4, 8)
    blocks, _, _, _ = problem(*extents)
    indptr, indices = bsr(blocks)
    wrapper = sparse.BlockSparseAttentionWrapper(workspace())
    with pytest.raises(NotImplementedError, match="block_mask"):
        wrapper.plan(indptr, indices, *extents, 4, 2, 64, block_mask=blocks)
    with pytest.raises(ValueError, match="out of bound"):
        wrapper.plan(indptr, indices + 6, *extents, 4, 2, 64)
    with pytest.raises(ValueError, match="indptr"):
        wrapper.plan(indptr[:-1], indices, *extents, 4, 2, 64)
    with pytest.raises(NotImplementedError, match="pos_encoding_mode"):
        mask = torch.ones(len(indices), 4, 8, dtype=torch.bool)
        wrapper.plan(indptr, indices, *extents, 4, 2, 64, mask=mask, pos_encoding_mode="ALIBI")
