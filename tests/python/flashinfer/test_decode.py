"""girih.flashinfer.decode against float64: single and batch decode, layouts, encodings, scales, graph wrappers, older call forms."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attention_reference import attend, check, paged_batch, queries, workspace
from girih.flashinfer import decode

KV_LENS = [3, 16, 17, 100, 1]


def planned(batch: Any, heads: int, dtype: Any = torch.float16, **options: Any) -> Any:
    wrapper = decode.BatchDecodeWithPagedKVCacheWrapper(workspace(), batch.layout)
    num_kv_heads = batch.k.shape[2 if batch.layout == "NHD" else 1]
    wrapper.plan(
        batch.indptr, batch.indices, batch.last, heads, num_kv_heads, batch.k.shape[3], batch.page_size,
        q_data_type=dtype, **options,
    )  # fmt: skip
    return wrapper


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
def test_single_decode(layout: str, heads: int, kv_heads: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(heads, 64).half()
    k, v = torch.randn(2, 77, kv_heads, 64).half()
    given = (k, v) if layout == "NHD" else (k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous())
    out, lse = decode.single_decode_with_kv_cache(q, *given, kv_layout=layout, return_lse=True)
    expected = attend(q[None], k, v)
    check((out, lse), (expected[0][0], expected[1][0]))
    assert torch.equal(decode.single_decode_with_kv_cache(q, *given, kv_layout=layout), out)


@pytest.mark.parametrize(
    "options",
    [
        {"pos_encoding_mode": "ROPE_LLAMA"},
        {"pos_encoding_mode": "ALIBI"},
        {"logits_soft_cap": 8.0},
        {"window_left": 10},
        {"sm_scale": 0.3},
        {"q_scale": 0.5, "k_scale": 2.5, "v_scale": 0.25},
    ],
)
def test_single_decode_options(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    q = torch.randn(6, 64).half()
    k, v = torch.randn(2, 60, 2, 64).half()
    out = decode.single_decode_with_kv_cache(q, k, v, **options)
    scale = options.get("q_scale", 1.0) * options.get("k_scale", 1.0)
    slopes = torch.tensor([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]) if "ALIBI" in options.values() else None
    expected, _ = attend(
        q[None], k, v,
        window_left=options.get("window_left", -1),
        cap=options.get("logits_soft_cap", 0.0),
        sm_scale=options.get("sm_scale", 1 / math.sqrt(64)) * scale,
        rope="ROPE_LLAMA" in options.values(),
        slopes=slopes,
    )  # fmt: skip
    check(out, expected[0] * options.get("v_scale", 1.0))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_size", [1, 5, 16])
@pytest.mark.parametrize("combined", [False, True])
def test_batch_decode(layout: str, page_size: int, combined: bool) -> None:
    batch = paged_batch([1] * 5, KV_LENS, page_size=page_size, layout=layout)
    wrapper = planned(batch, 8)
    q = queries(batch, 8)
    cache = torch.stack(batch.cache, 1) if combined else batch.cache
    out, lse = wrapper.run(q, cache, return_lse=True)
    for request in range(5):
        rows = batch.rows(request)
        check((out[rows], lse[rows]), attend(q[rows], *batch.keys(request)))
    assert torch.equal(wrapper.run(q, cache), out)
    given = torch.full_like(out, math.nan)
    given_lse = torch.full_like(lse, math.nan)
    assert wrapper.run(q, cache, lse=given_lse).shape == out.shape and torch.equal(
        given_lse, lse
    )  # written, not returned
    given_lse.fill_(math.nan)
    result = wrapper.run_return_lse(q, cache, out=given, lse=given_lse)
    assert result[0].data_ptr() == given.data_ptr() and torch.equal(given, out) and torch.equal(given_lse, lse)


def test_pages_of_one_token_without_their_extent() -> None:
    batch = paged_batch([1] * 3, [4, 9, 2], page_size=1)
    wrapper = planned(batch, 4)
    q = queries(batch, 4)
    full = wrapper.run(q, batch.cache)
    assert torch.equal(wrapper.run(q, (batch.k.squeeze(1), batch.v.squeeze(1))), full)
    assert torch.equal(wrapper.run(q, torch.stack(batch.cache, 1).squeeze(2)), full)


def test_request_without_keys_is_empty() -> None:
    batch = paged_batch([1] * 4, [0, 17, 0, 64])
    out, lse = planned(batch, 4).run(queries(batch, 4), batch.cache, return_lse=True)
    for request in (0, 2):
        assert not out[request].any() and bool((lse[request] == -math.inf).all())
    assert bool(torch.isfinite(lse[1]).all()) and bool(torch.isfinite(out).all())


@pytest.mark.parametrize(("q_len", "is_causal"), [(4, None), (4, True), (1, None)])
def test_several_rows_per_request(q_len: int, is_causal: bool | None) -> None:
    batch = paged_batch([q_len] * 3, [9, 33, 5])
    wrapper = planned(batch, 4, q_len_per_req=q_len, is_causal=is_causal)
    q = queries(batch, 4)
    out = wrapper.run(q, batch.cache)
    for request in range(3):
        rows = batch.rows(request)
        check(out[rows], attend(q[rows], *batch.keys(request), causal=True)[0])


def test_data_type_sets_q_and_kv() -> None:
    batch = paged_batch([1] * 2, [5, 20], dtype=torch.bfloat16)
    wrapper = decode.BatchDecodeWithPagedKVCacheWrapper(workspace())
    wrapper.plan(batch.indptr, batch.indices, batch.last, 4, 2, 64, 16, data_type=torch.bfloat16)
    q = queries(batch, 4, dtype=torch.bfloat16)
    check(wrapper.run(q, batch.cache)[0:1], attend(q[0:1], *batch.keys(0))[0], 2e-2)


def test_positional_plan_of_older_releases() -> None:
    batch = paged_batch([1] * 2, [5, 40])
    wrapper = decode.BatchDecodeWithPagedKVCacheWrapper(workspace_buffer=workspace(), kv_layout="NHD")
    wrapper.begin_forward(batch.indptr, batch.indices, batch.last, 4, 2, 64, 16, "NONE", 7, 5.0, torch.float16)
    q = queries(batch, 4)
    out = wrapper.run(q, batch.cache)
    check(out[1:2], attend(q[1:2], *batch.keys(1), window_left=7, cap=5.0)[0])
    # forward() has arguments of its own, which replace those of the plan.
    check(wrapper.forward(q, batch.cache)[1:2], attend(q[1:2], *batch.keys(1))[0])
    out, lse = wrapper.forward_return_lse(q, batch.cache, window_left=3)
    check((out[1:2], lse[1:2]), attend(q[1:2], *batch.keys(1), window_left=3))
    wrapper.end_forward()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_cache_scales(dtype: Any) -> None:
    batch = paged_batch([1] * 3, [7, 30, 64])
    k, v = batch.k.to(dtype), batch.v.to(dtype)
    wrapper = planned(batch, 8, kv_data_type=dtype)
    q = queries(batch, 8)
    batch.k, batch.v = k.half() * 0.5, v.half() * 2
    per_head = (torch.tensor([0.5, 0.5]), torch.tensor([2.0, 2.0]))
    for k_scale, v_scale in ((0.5, 2.0), (torch.tensor([0.5]), torch.tensor(2.0)), per_head):
        out, lse = wrapper.run(q, (k, v), k_scale=k_scale, v_scale=v_scale, q_scale=0.25, return_lse=True)
        for request in range(3):
            rows = batch.rows(request)
            expected = attend(q[rows] * 0.25, *batch.keys(request))
            check((out[rows], lse[rows]), expected, 4e-3)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_scales_per_token_and_head(layout: str) -> None:
    batch = paged_batch([1] * 2, [20, 35], layout=layout)
    k_sf, v_sf = torch.rand(2, *batch.k.shape[:3]) + 0.5
    k, v = batch.k.to(torch.float8_e4m3fn), batch.v.to(torch.float8_e4m3fn)
    wrapper = planned(batch, 4, kv_data_type=torch.float8_e4m3fn, use_token_head_sf=True)
    q = queries(batch, 4)
    out = wrapper.run(q, (k, v), kv_cache_sf=(k_sf, v_sf))
    batch.k, batch.v = k.float() * k_sf[..., None], v.float() * v_sf[..., None]
    for request in range(2):
        rows = batch.rows(request)
        check(out[rows], attend(q[rows], *batch.keys(request))[0])


def test_fp8_queries_with_their_positional_scales() -> None:
    batch = paged_batch([1] * 2, [20, 35])
    k, v = batch.k.to(torch.float8_e4m3fn), batch.v.to(torch.float8_e4m3fn)
    q = queries(batch, 4).to(torch.float8_e4m3fn)
    wrapper = planned(batch, 4, torch.float8_e4m3fn, o_data_type=torch.float16)
    q_s, k_s, v_s = torch.rand(4) + 0.5, torch.rand(2) + 0.5, torch.rand(2) + 0.5
    out = wrapper.run(q, (k, v), q_s, k_s, v_s)
    assert out.dtype == torch.float16
    batch.k, batch.v = k.float() * k_s[:, None], v.float() * v_s[:, None]
    for request in range(2):
        rows = batch.rows(request)
        check(out[rows], attend(q[rows].float() * q_s[:, None], *batch.keys(request))[0], 4e-3)


@pytest.mark.parametrize("with_tensors", [False, True])
def test_scales_of_an_unquantised_cache(with_tensors: bool) -> None:
    batch = paged_batch([1] * 2, [20, 35])
    q = queries(batch, 4)
    wrapper = planned(batch, 4)
    k_scale: Any = torch.tensor([0.5, 1.5]) if with_tensors else 0.5
    v_scale: Any = torch.tensor([2.0, 3.0]) if with_tensors else 2.0
    out = wrapper.run(q, batch.cache, k_scale=k_scale, v_scale=v_scale)
    k_of = k_scale[:, None] if with_tensors else k_scale
    v_of = v_scale[:, None] if with_tensors else v_scale
    for request in range(2):
        rows = batch.rows(request)
        k, v = batch.keys(request)
        check(out[rows], attend(q[rows], k * k_of, v * v_of)[0], 4e-3)


@pytest.mark.filterwarnings("ignore:run:DeprecationWarning")
def test_rows_that_run_brings() -> None:
    """Two backends of FlashInfer take as many rows a request as run() is given; the others those of plan()."""
    batch = paged_batch([3, 3], [20, 35])
    wrapper = decode.BatchDecodeWithPagedKVCacheWrapper(workspace(), batch.layout, backend="trtllm-gen")
    tables = (batch.indptr, batch.indices, batch.last, 4, batch.k.shape[2], batch.k.shape[3], batch.page_size)
    wrapper.plan(*tables)
    q = queries(batch, 4)
    for options in ({}, {"q_len_per_req": 3}):
        out = wrapper.run(q, batch.cache, **options)
        for request in range(2):
            rows = batch.rows(request)
            check(out[rows], attend(q[rows], *batch.keys(request), causal=True)[0])
    last = torch.tensor([2, 5])
    torch.testing.assert_close(wrapper.run(q[last], batch.cache), out[last], rtol=2e-3, atol=2e-3)
    with pytest.raises(ValueError, match="q has 5 rows"):
        wrapper.run(q[:5], batch.cache)
    other = decode.BatchDecodeWithPagedKVCacheWrapper(workspace(), batch.layout)
    other.plan(*tables)
    with pytest.raises(ValueError, match="q has 6 rows"):
        other.run(q, batch.cache)
    with pytest.raises(ValueError, match="re-plan with the matching"):
        other.run(q, batch.cache, q_len_per_req=3)


def test_scales_that_plan_announced() -> None:
    batch = paged_batch([1] * 2, [9, 14])
    wrapper = planned(batch, 4, kv_data_type=torch.float8_e4m3fn, use_token_head_sf=True)
    cache = tuple(x.to(torch.float8_e4m3fn) for x in (batch.k, batch.v))
    with pytest.raises(ValueError, match="kv_cache_sf"):
        wrapper.run(queries(batch, 4), cache)


def test_sinks() -> None:
    batch = paged_batch([1] * 2, [20, 35])
    q = queries(batch, 4)
    sinks = torch.tensor([0.0, 1.0, -2.0, 3.0])
    wrapper = planned(batch, 4, window_left=8)
    out, lse = wrapper.run(q, batch.cache, sinks=sinks, return_lse=True)
    for request in range(2):
        rows = batch.rows(request)
        check((out[rows], lse[rows]), attend(q[rows], *batch.keys(request), window_left=8, sinks=sinks))


def test_graph_wrapper_keeps_its_buffers() -> None:
    large = paged_batch([1] * 3, [40, 64, 7])
    small = paged_batch([1] * 3, [5, 1, 18], seed=3)
    buffers = (
        torch.zeros(4, dtype=torch.int32),
        torch.full((16,), -1, dtype=torch.int32),
        torch.zeros(3, dtype=torch.int32),
    )
    wrapper = decode.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(workspace(), *buffers)
    assert wrapper.is_cuda_graph_enabled
    for batch in (small, large, small):
        wrapper.plan(batch.indptr, batch.indices, batch.last, 4, 2, 64, 16)
        assert torch.equal(buffers[0], batch.indptr) and torch.equal(buffers[2], batch.last)
        assert torch.equal(buffers[1][: len(batch.indices)], batch.indices)
        q = queries(batch, 4)
        out = wrapper.run(q, batch.cache)
        for request in range(3):
            rows = batch.rows(request)
            check(out[rows], attend(q[rows], *batch.keys(request))[0])
    two = paged_batch([1] * 2, [5, 5])
    with pytest.raises(ValueError, match="batch size should be fixed"):
        wrapper.plan(two.indptr, two.indices, two.last, 4, 2, 64, 16)
    many = paged_batch([1] * 3, [100, 100, 100])
    with pytest.raises(ValueError, match="indices"):
        wrapper.plan(many.indptr, many.indices, many.last, 4, 2, 64, 16)
    # The plan before a failed one stays.
    check(wrapper.run(q, batch.cache)[0:1], attend(q[0:1], *batch.keys(0))[0])


def test_fast_decode_plan() -> None:
    batch = paged_batch([1] * 3, [40, 64, 7])
    wrapper = decode.BatchDecodeWithPagedKVCacheWrapper(workspace())
    decode.fast_decode_plan(
        wrapper,
        batch.indptr,
        batch.indices,
        batch.last,
        4,
        2,
        64,
        16,
        data_type="float16",
        global_override_indptr_cpu=batch.indptr,
    )
    q = queries(batch, 4)
    check(wrapper.run(q, batch.cache)[2:3], attend(q[2:3], *batch.keys(2))[0])


def test_plan_reads_its_arrays_once() -> None:
    batch = paged_batch([1] * 2, [20, 35])
    wrapper = planned(batch, 4)
    q = queries(batch, 4)
    out = wrapper.run(q, batch.cache)
    indptr, last = batch.indptr.clone(), batch.last.clone()
    batch.indptr.fill_(0)
    batch.last.fill_(1)
    assert torch.equal(wrapper.run(q, batch.cache), out)
    # Another form of the same plan is made from the plan's own copy.
    _, lse = wrapper.run(q, batch.cache, return_lse=True)
    batch.indptr, batch.last = indptr, last
    check(lse[1:2], attend(q[1:2], *batch.keys(1))[1])


def test_batches_may_grow_and_shrink() -> None:
    wrapper = decode.BatchDecodeWithPagedKVCacheWrapper(workspace())
    for kv_lens in ([3], [100, 5, 7], [2], [400] * 9, [1, 1]):
        batch = paged_batch([1] * len(kv_lens), kv_lens, dim=32)
        wrapper.plan(batch.indptr, batch.indices, batch.last, 2, 2, 32, 16)
        q = queries(batch, 2, 32)
        out = wrapper.run(q, batch.cache)
        for request in range(len(kv_lens)):
            rows = batch.rows(request)
            check(out[rows], attend(q[rows], *batch.keys(request))[0])


def test_workspace_size_and_reset() -> None:
    batch = paged_batch([1] * 2, [20, 35])
    wrapper = decode.BatchDecodeWithPagedKVCacheWrapper(workspace())
    sizes = wrapper.workspace_size(batch.indptr, batch.indices, batch.last, 4, 2, 64, 16, q_data_type=torch.float16)
    assert len(sizes) == 2 and min(sizes) > 0
    wrapper.reset_workspace_buffer(workspace(), workspace())
    with pytest.raises(ValueError, match="int_workspace_buffer"):
        wrapper.reset_workspace_buffer(workspace(), torch.empty(1, device="meta"))


def test_bits_do_not_depend_on_the_batch() -> None:
    alone, joined = paged_batch([1], [300]), paged_batch([1] * 4, [300, 900, 2, 77])
    joined_pages = joined.indices[: int(joined.indptr[1])].long()
    joined.k[joined_pages], joined.v[joined_pages] = alone.k[alone.indices.long()], alone.v[alone.indices.long()]
    q = queries(joined, 4)
    one = planned(alone, 4, disable_split_kv=True).run(q[:1], alone.cache)
    assert torch.equal(planned(joined, 4, disable_split_kv=True).run(q, joined.cache)[:1], one)


def test_refusals_name_the_argument() -> None:
    batch = paged_batch([1] * 2, [20, 35])
    q = queries(batch, 4)
    wrapper = planned(batch, 4)
    with pytest.raises(NotImplementedError, match="skip_softmax_threshold_scale_factor"):
        wrapper.run(q, batch.cache, skip_softmax_threshold_scale_factor=1.0)
    with pytest.raises(ValueError, match="q_data_type"):
        wrapper.run(q.bfloat16(), batch.cache)
    with pytest.raises(ValueError, match="kv_data_type"):
        wrapper.run(q, (batch.k.bfloat16(), batch.v.bfloat16()))
    with pytest.raises(TypeError, match="positional"):
        wrapper.run(q, batch.cache, 1.0)
    with pytest.raises(KeyError, match="kv_layout"):
        decode.BatchDecodeWithPagedKVCacheWrapper(workspace(), "DHN")
    with pytest.raises(ValueError, match="backend"):
        decode.BatchDecodeWithPagedKVCacheWrapper(workspace(), backend="fa9")
    with pytest.raises(KeyError, match="pos_encoding_mode"):
        planned(batch, 4, pos_encoding_mode="SINUSOID")
    with pytest.raises(RuntimeError, match="before plan"):
        decode.BatchDecodeWithPagedKVCacheWrapper(workspace()).run(q, batch.cache)
    with pytest.raises(ValueError, match="q_len_per_req"):
        planned(batch, 4, q_len_per_req=0)
    with pytest.warns(DeprecationWarning, match="q_len_per_req"):
        wrapper.run(q, batch.cache, q_len_per_req=1)
