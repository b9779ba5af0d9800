"""The one-call functions by block tables against float64: scales, sinks, windows, LSE, rows of one request, outputs."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import girih.flashinfer.decode as decode  # noqa: E402
import girih.flashinfer.prefill as prefill  # noqa: E402
from attention_reference import PagedBatch, attend, check, paged_batch, queries, workspace  # noqa: E402


def tables(batch: PagedBatch) -> tuple[Any, Any]:
    """Block tables whose entries past the end are wild."""
    requests = len(batch.kv_lens)
    width = int((batch.indptr[1:] - batch.indptr[:-1]).max()) + 2
    table = torch.full((requests, width), 2**30, dtype=torch.int32)
    for request in range(requests):
        own = batch.indices[batch.indptr[request] : batch.indptr[request + 1]]
        table[request, : len(own)] = own
    return table, torch.tensor(batch.kv_lens, dtype=torch.int32)


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("q_len", [1, 3])
def test_decode(layout: str, q_len: int) -> None:
    batch = paged_batch([q_len] * 3, [20, 35, 3], layout=layout)
    q = queries(batch, 4)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    arguments = (q, batch.cache, workspace(), *tables(batch), 35)
    scales: list[tuple[Any, Any]] = [(0.2, 1.5), (torch.tensor([0.2]), torch.tensor([1.5]))]
    for bmm1, bmm2 in scales:
        out, lse = decode.trtllm_batch_decode_with_kv_cache(
            *arguments, bmm1, bmm2, window_left=9, sinks=[sinks], kv_layout=layout, q_len_per_req=q_len, return_lse=True
        )
        for request in range(3):
            rows = batch.rows(request)
            expected = attend(q[rows], *batch.keys(request), causal=True, window_left=9, sinks=sinks, sm_scale=0.2)
            check((out[rows], lse[rows]), (expected[0] * 1.5, expected[1]))
    other = decode.xqa_batch_decode_with_kv_cache(
        *arguments, 0.2, 1.5, 9, sinks=sinks, kv_layout=layout, q_len_per_req=q_len, o_scale=2.0
    )
    torch.testing.assert_close(other, out, rtol=2e-3, atol=2e-3)
    log2 = torch.tensor([0.2 * math.log2(math.e)])
    given = torch.empty_like(out)
    again = decode.trtllm_batch_decode_with_kv_cache(
        *arguments, 9.0, 1.5, 9, given, sinks=sinks, kv_layout=layout, q_len_per_req=q_len, bmm1_scale_log2=log2
    )
    assert again.data_ptr() == given.data_ptr()
    torch.testing.assert_close(again, out, rtol=2e-3, atol=2e-3)


def test_rows_by_offsets_and_one_tensor_cache() -> None:
    batch = paged_batch([2, 4, 1], [20, 35, 3], layout="HND")
    q = queries(batch, 4)
    out = decode.trtllm_batch_decode_with_kv_cache(
        q, torch.stack(batch.cache, 1), workspace(), *tables(batch), 35, 0.125, out_dtype=torch.float32,
        cum_seq_lens_q=batch.qo_indptr, max_q_len=4,
    )  # fmt: skip
    assert out.dtype == torch.float32
    for request in range(3):
        rows = batch.rows(request)
        check(out[rows], attend(q[rows], *batch.keys(request), causal=True)[0])


def test_fp8_cache_and_queries() -> None:
    batch = paged_batch([1, 1], [20, 35], layout="HND")
    k, v = batch.k.to(torch.float8_e4m3fn), batch.v.to(torch.float8_e4m3fn)
    q = queries(batch, 4).to(torch.float8_e4m3fn)
    out = decode.trtllm_batch_decode_with_kv_cache(
        q, (k, v), workspace(), *tables(batch), 35, 0.1, 0.5, out_dtype="float16"
    )
    batch.k, batch.v = k.float(), v.float()
    for request in range(2):
        rows = batch.rows(request)
        check(out[rows], attend(q[rows].float(), *batch.keys(request), sm_scale=0.1)[0] * 0.5, 4e-3)
    codes = torch.empty(2, 4, 64, dtype=torch.float8_e4m3fn)
    decode.trtllm_batch_decode_with_kv_cache(q, (k, v), workspace(), *tables(batch), 35, 0.1, 20.0, out=codes)
    torch.testing.assert_close(codes.float(), out.float() * 40, rtol=2**-4 * 1.05, atol=0.05)


@pytest.mark.parametrize("window_left", [-1, 6])
def test_masks_of_draft_tokens(window_left: int) -> None:
    """Trees: a draft token sees the committed keys and its own ancestors; requests may have different numbers of tokens."""
    batch = paged_batch([4, 6, 4], [20, 35, 4], layout="HND")
    q = queries(batch, 4)
    draft = torch.rand(14, 6) > 0.4
    words = torch.zeros(14, 2, dtype=torch.int32)
    for column in range(6):
        words[:, 0] |= draft[:, column].int() << column
    words[:, 1] = -1  # bits past the draft tokens are never read
    out = decode.trtllm_batch_decode_with_kv_cache(
        q, batch.cache, workspace(), *tables(batch), 35, 0.125, 1.0, window_left, mask=words.view(torch.int16),
        cum_seq_lens_q=batch.qo_indptr, max_q_len=6,
    )  # fmt: skip
    for request in range(3):
        rows = batch.rows(request)
        n, keys = rows.stop - rows.start, batch.kv_lens[request]
        mask = torch.ones(n, keys, dtype=torch.bool)
        mask[:, keys - n :] = draft[rows, :n]
        check(out[rows], attend(q[rows], *batch.keys(request), mask=mask, window_left=window_left)[0])
    with pytest.raises(ValueError, match="mask"):
        decode.trtllm_batch_decode_with_kv_cache(
            q, batch.cache, workspace(), *tables(batch), 35, mask=words[:5], cum_seq_lens_q=batch.qo_indptr
        )


@pytest.mark.parametrize(("causal", "right"), [(True, -1), (False, -1), (False, 2)])
def test_context(causal: bool, right: int) -> None:
    batch = paged_batch([5, 9], [20, 35], layout="HND")
    q = queries(batch, 4)
    table, lens = tables(batch)
    indptr = torch.tensor([0, 20, 55], dtype=torch.int32)
    out, lse = prefill.trtllm_batch_context_with_kv_cache(
        q, batch.cache, workspace(), table, lens, 9, 35, 0.125, 1.0, 2, batch.qo_indptr, indptr,
        causal=causal, window_left=6, window_right=right, return_lse=True,
    )  # fmt: skip
    for request in range(2):
        rows = batch.rows(request)
        keys = batch.kv_lens[request]
        q_pos = torch.arange(keys - (rows.stop - rows.start), keys)[:, None]
        ahead = torch.arange(keys)[None] - q_pos
        mask = ahead >= -6
        if causal or right >= 0:
            mask &= ahead <= (0 if causal else right)
        check((out[rows], lse[rows]), attend(q[rows], *batch.keys(request), mask=mask))


def test_refusals_name_the_argument() -> None:
    batch = paged_batch([1, 1], [20, 35], layout="HND")
    q = queries(batch, 4)
    table, lens = tables(batch)
    arguments = (q, batch.cache, workspace(), table, lens, 35)
    cases: list[dict[str, Any]] = [
        {"skip_softmax_threshold_scale_factor": 1.0}, {"kv_cache_sf": (q, q)}, {"cp_world": 2}, {"sparse_top_k": 4},
        {"enable_block_sparse_attention": True}, {"uses_shared_paged_kv_idx": False}, {"o_sf_scale": 1.0}, {"out_dtype": "nvfp4"},
    ]  # fmt: skip
    for case in cases:
        with pytest.raises(NotImplementedError, match=next(iter(case))):
            decode.trtllm_batch_decode_with_kv_cache(*arguments, **case)
    with pytest.raises(ValueError, match="block_tables"):
        decode.trtllm_batch_decode_with_kv_cache(q, batch.cache, workspace(), table[:1], lens, 35)
    with pytest.raises(ValueError, match="q_len_per_req"):
        decode.trtllm_batch_decode_with_kv_cache(*arguments, q_len_per_req=3)
    with pytest.raises(ValueError, match="sinks"):
        decode.trtllm_batch_decode_with_kv_cache(*arguments, sinks=torch.zeros(3))


@pytest.mark.parametrize("lengths_on_host", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_ragged(causal: bool, lengths_on_host: bool) -> None:
    """DeepSeek's dims; requests without keys and without rows; the forms of scales; given outputs."""
    torch.manual_seed(7)
    q_lens, kv_lens = [3, 2, 0, 5], [20, 0, 7, 33]
    q = torch.randn(10, 4, 192).half()
    k, v = torch.randn(60, 2, 192).half(), torch.randn(60, 2, 128).half()
    rows = torch.tensor([0, 3, 5, 5, 10], dtype=torch.int32)
    keys = torch.tensor([0, 20, 20, 27, 60], dtype=torch.int32)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    options: dict[str, Any] = {}
    if lengths_on_host:
        options = {
            "q_seq_lens_cpu": torch.tensor(q_lens, device="cpu"),
            "kv_seq_lens_cpu": torch.tensor(kv_lens, device="cpu"),
        }

    def call(bmm1: Any, bmm2: Any, *, window: int = -1, lse: bool = True, **more: Any) -> Any:
        lengths = torch.tensor(kv_lens, dtype=torch.int32)
        return prefill.trtllm_ragged_attention_deepseek(
            q, k, v, workspace(), lengths, 5, 33, bmm1, bmm2, -1.0, 4, window, rows, keys, None, causal, lse, **options, **more
        )  # fmt: skip

    out, lse = call(0.1, 1.5, window=9, attention_sinks=sinks)
    for request in (0, 3):
        own, of = slice(int(rows[request]), int(rows[request + 1])), slice(int(keys[request]), int(keys[request + 1]))
        expected = attend(q[own], k[of], v[of], causal=causal, window_left=9, sinks=sinks, sm_scale=0.1)
        check((out[own], lse[own]), (expected[0] * 1.5, expected[1]))
    bare, bare_lse = call(0.1, 1.5)
    assert not bare[3:5].any() and bool((bare_lse[3:5] == -math.inf).all())
    given = torch.empty_like(out)
    again = call(torch.tensor([0.1]), torch.tensor([1.5]), window=9, lse=False, attention_sinks=sinks, out=given)
    assert again.data_ptr() == given.data_ptr()
    torch.testing.assert_close(given, out, rtol=2e-3, atol=2e-3)
    with pytest.raises(NotImplementedError, match="skip_softmax"):
        call(0.1, 1.0, skip_softmax_threshold_scale_factor=1.0)
    with pytest.raises(NotImplementedError, match="sage"):
        call(0.1, 1.0, sage_attn_sfs=(sinks, None, None, None))
    with pytest.raises(ValueError, match="together" if lengths_on_host else "entries"):
        if lengths_on_host:
            options.pop("q_seq_lens_cpu")
        rows = rows[:-1]
        call(0.1, 1.0)
    if lengths_on_host:
        options["q_seq_lens_cpu"] = torch.tensor([3, 2, 0, 4], device="cpu")
        with pytest.raises(ValueError, match="sum to 9"):
            call(0.1, 1.0)
