"""BatchAttention, sinks, bidirectional ranges and POD of girih.flashinfer against float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attention_reference import attend, check, paged_batch, queries, workspace
from girih.flashinfer import (
    attention,
    pod,
)


@pytest.mark.parametrize("causal", [False, True])
def test_batch_attention(causal: bool) -> None:
    batch = paged_batch([1, 20, 1, 7], [50, 20, 3, 9])
    wrapper = attention.BatchAttention("NHD", str(torch.get_default_device()))
    lens = torch.tensor(batch.kv_lens, dtype=torch.int32)
    tables = (batch.qo_indptr, batch.indptr, batch.indices, lens)
    wrapper.plan(
        *tables,
        4,
        2,
        64,
        64,
        16,
        causal=causal,
        logits_soft_cap=7.0,
        q_data_type=torch.float16,
        kv_data_type=torch.float16,
    )
    q = queries(batch, 4)
    out, lse = wrapper.run(q, batch.cache)
    for request in range(4):
        rows = batch.rows(request)
        check((out[rows], lse[rows]), attend(q[rows], *batch.keys(request), causal=causal, cap=7.0))
    # The cap of run() replaces that of plan(); 0 keeps it.
    out, _ = wrapper.run(q, batch.cache, logits_soft_cap=3.0)
    check(out[batch.rows(1)], attend(q[batch.rows(1)], *batch.keys(1), causal=causal, cap=3.0)[0])
    out, _ = wrapper.run(q, batch.cache, k_scale=0.5, v_scale=torch.tensor([3.0]))
    k, v = batch.keys(1)
    check(out[batch.rows(1)], attend(q[batch.rows(1)], k * 0.5, v * 3, causal=causal, cap=7.0)[0], 4e-3)
    with pytest.raises(NotImplementedError, match="profiler"):
        wrapper.run(q, batch.cache, profiler_buffer=q)
    wrapper.plan(*tables, 4, 2, 64, 64, 16, q_data_type=torch.float16, kv_data_type=torch.float16)
    with pytest.raises(ValueError, match="logits_soft_cap"):
        wrapper.run(q, batch.cache, logits_soft_cap=3.0)


@pytest.mark.parametrize("window_left", [-1, 6])
def test_sinks_of_prefill_and_decode(window_left: int) -> None:
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    half: dict[str, Any] = {
        "q_data_type": torch.float16,
        "kv_data_type": torch.float16,
        "head_dim_qk": 64,
        "head_dim_vo": 64,
    }
    batch = paged_batch([3, 9], [20, 35])
    q = queries(batch, 4)
    wrapper = attention.BatchAttentionWithAttentionSinkWrapper(workspace(), window_left=window_left, **half)
    wrapper.plan(
        batch.qo_indptr, batch.indptr, batch.indices, batch.last, 4, 2, 64, 16, causal=True, window_left=window_left,
        q_data_type=torch.float16, kv_data_type=torch.float16,
    )  # fmt: skip
    out, lse = wrapper.run(q, batch.cache, sinks, 0.2, return_lse=True)
    for request in range(2):
        rows = batch.rows(request)
        expected = attend(
            q[rows], *batch.keys(request), causal=True, sinks=sinks, sm_scale=0.2, window_left=window_left
        )
        check((out[rows], lse[rows]), expected)
    single = paged_batch([1, 1], [20, 35])
    q = queries(single, 4)
    decode = attention.BatchDecodeWithAttentionSinkWrapper(workspace(), window_left=window_left, **half)
    decode.plan(
        single.indptr, single.indices, single.last, 4, 2, 64, 16, q_data_type=torch.float16, window_left=window_left
    )
    out = decode.run(q, single.cache, sinks, 0.2, k_scale=0.5)
    expected = attend(q[1:], *single.keys(1), sinks=sinks, sm_scale=0.1, window_left=window_left)
    check(out[1:], expected[0])
    with pytest.raises(TypeError, match="sink"):
        decode.run(q, single.cache, sinks)
    with pytest.raises(ValueError, match="head_dim_qk"):
        decode.plan(single.indptr, single.indices, single.last, 4, 2, 32, 16, q_data_type=torch.float16)


def test_bidirectional_ranges() -> None:
    batch = paged_batch([12, 6], [12, 20])
    q = queries(batch, 4)
    ranges = torch.full((18, 2), -1, dtype=torch.int32)
    ranges[2:7] = torch.tensor([2, 8])
    ranges[13:16] = torch.tensor([14, 18])
    wrapper = attention.BatchPrefillWithCausalBidirectionalRangesWrapper(
        workspace(), q_data_type=torch.float16, kv_data_type=torch.float16, head_dim_qk=64, head_dim_vo=64
    )
    wrapper.plan(batch.qo_indptr, batch.indptr, batch.indices, batch.last, 4, 2, 64, 16)
    for causal_left, range_left in ((-1, -1), (3, -1), (2, 2), (0, 0)):
        out = wrapper.run(q, batch.cache, ranges, causal_left, range_left)
        for request in range(2):
            rows = batch.rows(request)
            keys = batch.kv_lens[request]
            q_pos = torch.arange(keys - (rows.stop - rows.start), keys)[:, None]
            kv_pos = torch.arange(keys)[None]
            causal = (kv_pos <= q_pos) & ((q_pos - kv_pos <= causal_left) if causal_left >= 0 else torch.tensor(True))
            span = ranges[rows]
            inside = (kv_pos >= span[:, :1]) & (kv_pos <= span[:, 1:])
            if range_left > 0:
                inside &= q_pos - kv_pos < range_left
            check(out[rows], attend(q[rows], *batch.keys(request), mask=causal | inside)[0])
    with pytest.raises(ValueError, match="bidirectional_ranges"):
        wrapper.run(q, batch.cache, ranges[:-1])
    with pytest.raises(ValueError, match="custom_mask"):
        wrapper.plan(batch.qo_indptr, batch.indptr, batch.indices, batch.last, 4, 2, 64, 16, custom_mask=[True])


def test_pod() -> None:
    torch.manual_seed(0)
    q_p = torch.randn(9, 4, 64).half()
    k_p, v_p = torch.randn(2, 25, 2, 64).half()
    batch = paged_batch([1] * 3, [20, 35, 3], layout="HND")
    q_d = queries(batch, 4)
    wrapper = pod.PODWithPagedKVCacheWrapper(workspace(), "HND")
    wrapper.plan(batch.indptr, batch.indices, batch.last, 4, 2, 64, 16, data_type=torch.float16)
    prefill, decode = wrapper.run(q_p, k_p, v_p, q_d, batch.cache, causal_p=True)
    check(prefill, attend(q_p, k_p, v_p, causal=True)[0])
    check(decode[1:2], attend(q_d[1:2], *batch.keys(1))[0])
    (prefill, lse_p), (decode, lse_d) = wrapper.run(
        q_p,
        k_p,
        v_p,
        q_d,
        batch.cache,
        return_lse_p=True,
        return_lse_d=True,
        window_left_d=4,
        sm_scale_d=0.3,
        window_left_p=5,
    )
    check((prefill, lse_p), attend(q_p, k_p, v_p, window_left=5))
    check((decode[1:2], lse_d[1:2]), attend(q_d[1:2], *batch.keys(1), window_left=4, sm_scale=0.3))
    with pytest.raises(NotImplementedError, match="custom_mask_d"):
        wrapper.run(q_p, k_p, v_p, q_d, batch.cache, custom_mask_d=q_p)


def test_batch_pod() -> None:
    first, second = paged_batch([4, 9], [20, 9]), paged_batch([1, 1, 1], [20, 35, 3], seed=3)
    wrapper = pod.BatchPODWithPagedKVCacheWrapper(workspace())
    tables = [t for b in (first, second) for t in (b.qo_indptr, b.indptr, b.indices, b.last)]
    wrapper.plan(*tables, 4, 2, 64, 16, q_data_type=torch.float16)
    q_p, q_d = queries(first, 4), queries(second, 4)
    mask = torch.rand(4 * 20 + 9 * 9) > 0.4
    for options, expected in (
        ({"causal_p": True}, {"causal": True}),
        ({"custom_mask_p": mask}, {"mask": mask[80:]}),
        ({}, {}),
    ):
        outs, lses = wrapper.run(q_p, first.cache, q_d, second.cache, return_lse=True, **options)
        rows = first.rows(1)
        check((outs[0][rows], lses[0][rows]), attend(q_p[rows], *first.keys(1), **expected))
        check((outs[1][1:2], lses[1][1:2]), attend(q_d[1:2], *second.keys(1)))
    out_p, out_d = wrapper.run(q_p, first.cache, q_d, second.cache)
    assert torch.equal(out_p, outs[0]) and torch.equal(out_d, outs[1])
