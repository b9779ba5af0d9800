"""girih.flashinfer.prefill against float64: single, ragged and paged prefill, masks, multi-item scoring, formats of the LSE."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attention_reference import PagedBatch, attend, check, paged_batch, queries, workspace
from girih.flashinfer import prefill

Q_LENS, KV_LENS = [2, 10, 17, 5, 1], [3, 16, 17, 100, 1]


def planned(batch: PagedBatch, heads: int, *, head_dim_vo: int | None = None, **options: Any) -> Any:
    wrapper = prefill.BatchPrefillWithPagedKVCacheWrapper(workspace(), batch.layout)
    kv_heads, dim = batch.k.shape[2 if batch.layout == "NHD" else 1], batch.k.shape[3]
    wrapper.plan(
        batch.qo_indptr,
        batch.indptr,
        batch.indices,
        batch.last,
        heads,
        kv_heads,
        dim,
        batch.page_size,
        head_dim_vo,
        **options,
    )
    return wrapper


def masks_of(batch: PagedBatch, seed: int = 5) -> list[Any]:
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    sizes = [(int(batch.qo_indptr[i + 1] - batch.qo_indptr[i]), n) for i, n in enumerate(batch.kv_lens)]
    masks = [torch.rand(rows, keys, generator=generator) > 0.4 for rows, keys in sizes]
    masks[0][0] = False  # a row that sees nothing
    return masks


def packed(masks: list[Any]) -> Any:
    return torch.as_tensor(np.concatenate([np.packbits(m.reshape(-1).cpu().numpy(), bitorder="little") for m in masks]))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("causal", [False, True])
def test_single_prefill(layout: str, causal: bool) -> None:
    torch.manual_seed(0)
    q = torch.randn(13, 8, 64).half()
    k, v = torch.randn(40, 2, 64).half(), torch.randn(40, 2, 32).half()
    given = (k, v) if layout == "NHD" else (k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous())
    result = prefill.single_prefill_with_kv_cache_return_lse(q, *given, kv_layout=layout, causal=causal)
    check(result, attend(q, k, v, causal=causal))


@pytest.mark.parametrize(
    "options",
    [
        {"pos_encoding_mode": "ROPE_LLAMA", "causal": True},
        {"logits_soft_cap": 8.0, "causal": True, "window_left": 9},
        {"window_left": 20},
        {"sm_scale": 0.3, "k_scale": 0.5, "v_scale": 3.0},
        {"o_dtype": torch.float32},
    ],
)
def test_single_prefill_options(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    q = torch.randn(13, 4, 64).half()
    k, v = torch.randn(2, 40, 2, 64).half()
    out = prefill.single_prefill_with_kv_cache(q, k, v, **options)
    assert out.dtype == options.get("o_dtype", torch.float16)
    expected, _ = attend(
        q, k, v,
        causal=options.get("causal", False),
        window_left=options.get("window_left", -1),
        cap=options.get("logits_soft_cap", 0.0),
        sm_scale=options.get("sm_scale", 1 / math.sqrt(64)) * options.get("k_scale", 1.0),
        rope="pos_encoding_mode" in options,
    )  # fmt: skip
    check(out, expected * options.get("v_scale", 1.0), 4e-3)


def test_single_prefill_masks() -> None:
    torch.manual_seed(2)
    q = torch.randn(7, 4, 64).half()
    k, v = torch.randn(2, 21, 2, 64).half()
    mask = torch.rand(7, 21) > 0.5
    mask[3] = False
    result = prefill.single_prefill_with_kv_cache(q, k, v, custom_mask=mask, causal=True, return_lse=True)
    check(result, attend(q, k, v, mask=mask))
    assert not result[0][3].any() and bool((result[1][3] == -math.inf).all())
    again = prefill.single_prefill_with_kv_cache(q, k, v, packed_custom_mask=packed([mask]), return_lse=True)
    assert torch.equal(again[0], result[0])
    with pytest.raises(ValueError, match="custom_mask"):
        prefill.single_prefill_with_kv_cache(q, k, v, custom_mask=mask[:, :-1])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_outputs(dtype: Any) -> None:
    """Rounded once, after the scales; saturated."""
    torch.manual_seed(4)
    q = torch.randn(7, 4, 64).half()
    k, v = torch.randn(2, 21, 2, 64).half()
    step = {torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3}[dtype]
    out = prefill.single_prefill_with_kv_cache(q, k, v, causal=True, v_scale=40.0, o_dtype=dtype)
    assert out.dtype == dtype
    expected, _ = attend(q, k, v, causal=True)
    torch.testing.assert_close(out.double(), expected * 40, rtol=step * 1.01, atol=0.05)
    ragged = prefill.BatchPrefillWithRaggedKVCacheWrapper(workspace())
    ragged.plan([0, 7], [0, 21], 4, 2, 64, causal=True, o_data_type=dtype)
    again = ragged.run(q, k, v, o_scale=1 / 40, out=torch.empty_like(out))
    torch.testing.assert_close(again.double(), out.double(), rtol=2 * step, atol=0.01)
    largest = torch.finfo(dtype).max
    past = prefill.single_prefill_with_kv_cache(q, k, v, causal=True, v_scale=1e6, o_dtype=dtype)
    assert float(past.float().abs().max()) == largest


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_single_prefill_fp8_with_scales_per_head(dtype: Any) -> None:
    torch.manual_seed(3)
    q = torch.randn(7, 4, 64).to(dtype)
    k, v = torch.randn(2, 21, 2, 64).to(dtype)
    q_s, k_s, v_s = torch.rand(4) + 0.5, torch.rand(2) + 0.5, torch.rand(2) + 0.5
    out = prefill.single_prefill_with_kv_cache(q, k, v, q_s, k_s, v_s, o_dtype=torch.float16, causal=True)
    expected, _ = attend(q.float() * q_s[:, None], k.float() * k_s[:, None], v.float() * v_s[:, None], causal=True)
    check(out, expected, 4e-3)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("page_size", [1, 16])
def test_paged(layout: str, causal: bool, page_size: int) -> None:
    batch = paged_batch(Q_LENS, KV_LENS, layout=layout, page_size=page_size)
    wrapper = planned(batch, 8, causal=causal)
    q = queries(batch, 8)
    out, lse = wrapper.run(q, batch.cache, return_lse=True)
    for request in range(5):
        rows = batch.rows(request)
        check((out[rows], lse[rows]), attend(q[rows], *batch.keys(request), causal=causal))


def test_paged_with_other_head_dim_of_values() -> None:
    batch = paged_batch([5, 9], [12, 30], dim=64, dim_vo=32)
    wrapper = planned(batch, 4, head_dim_vo=32, causal=True)
    q = queries(batch, 4)
    out = wrapper.run(q, batch.cache)
    assert out.shape == (14, 4, 32)
    for request in range(2):
        rows = batch.rows(request)
        check(out[rows], attend(q[rows], *batch.keys(request), causal=True)[0])


@pytest.mark.parametrize("as_bits", [False, True])
@pytest.mark.parametrize("window_left", [-1, 6])
def test_paged_masks(as_bits: bool, window_left: int) -> None:
    batch = paged_batch(Q_LENS, KV_LENS)
    masks = masks_of(batch)
    given = (
        {"packed_custom_mask": packed(masks)} if as_bits else {"custom_mask": torch.cat([m.reshape(-1) for m in masks])}
    )
    wrapper = planned(batch, 4, causal=True, window_left=window_left, **given)
    q = queries(batch, 4)
    out, lse = wrapper.run(q, batch.cache, return_lse=True)
    for request in range(5):
        rows = batch.rows(request)
        expected = attend(q[rows], *batch.keys(request), mask=masks[request], window_left=window_left)
        check((out[rows], lse[rows]), expected)
    # A plan without a mask does not inherit the one before.
    wrapper.plan(batch.qo_indptr, batch.indptr, batch.indices, batch.last, 4, 2, 64, 16, causal=True)
    check(wrapper.run(q, batch.cache)[batch.rows(2)], attend(q[batch.rows(2)], *batch.keys(2), causal=True)[0])
    with pytest.raises(ValueError, match="custom_mask"):
        planned(batch, 4, custom_mask=torch.ones(3, dtype=torch.bool))


def ragged_keys(batch: PagedBatch) -> tuple[Any, Any, Any]:
    keys = [batch.keys(request) for request in range(len(batch.kv_lens))]
    indptr = torch.tensor([0, *torch.tensor(batch.kv_lens).cumsum(0).tolist()], dtype=torch.int32)
    return torch.cat([k for k, _ in keys]), torch.cat([v for _, v in keys]), indptr


@pytest.mark.parametrize("mode", ["full", "causal", "mask"])
def test_ragged(mode: str) -> None:
    batch = paged_batch(Q_LENS, KV_LENS, dim=64, dim_vo=32)
    k, v, indptr = ragged_keys(batch)
    masks = masks_of(batch)
    options: dict[str, Any] = {"causal": mode == "causal"}
    if mode == "mask":
        options["custom_mask"] = torch.cat([m.reshape(-1) for m in masks])
    wrapper = prefill.BatchPrefillWithRaggedKVCacheWrapper(workspace())
    wrapper.plan(batch.qo_indptr, indptr, 4, 2, 64, 32, **options)
    q = queries(batch, 4)
    out, lse = wrapper.run(q, k, v, return_lse=True)
    for request in range(5):
        rows = batch.rows(request)
        mask = masks[request] if mode == "mask" else None
        expected = attend(q[rows], *batch.keys(request), causal=mode == "causal", mask=mask)
        check((out[rows], lse[rows]), expected)
    # The next plan has no mask: it is not kept (FlashInfer keeps it).
    wrapper.plan(batch.qo_indptr, indptr, 4, 2, 64, 32)
    check(wrapper.run(q, k, v)[batch.rows(3)], attend(q[batch.rows(3)], *batch.keys(3))[0])


def test_ragged_scales_and_host_copies() -> None:
    batch = paged_batch([4, 6], [9, 14])
    k, v, indptr = ragged_keys(batch)
    wrapper = prefill.BatchPrefillWithRaggedKVCacheWrapper(workspace())
    wrapper.plan(
        batch.qo_indptr, indptr, 4, 2, 64, qo_indptr_cpu=batch.qo_indptr, kv_indptr_cpu=indptr, v_indptr=indptr
    )
    q = queries(batch, 4)
    out = wrapper.run(q, k, v, q_scale=0.5, k_scale=0.25, v_scale=4.0, o_scale=2.0)
    rows = batch.rows(1)
    expected, _ = attend(q[rows], *batch.keys(1), sm_scale=0.125 / 8)
    check(out[rows], expected * 2, 4e-3)
    with pytest.raises(NotImplementedError, match="v_indptr"):
        wrapper.plan(batch.qo_indptr, indptr, 4, 2, 64, v_indptr=indptr + 1)


@pytest.mark.parametrize("wrapper_kind", ["paged", "ragged"])
def test_lse_formats(wrapper_kind: str) -> None:
    batch = paged_batch([4, 6], [9, 14])
    q = queries(batch, 4)
    if wrapper_kind == "paged":
        wrapper = planned(batch, 4, causal=True)
        tensors: tuple[Any, ...] = (batch.cache,)
    else:
        k, v, indptr = ragged_keys(batch)
        wrapper = prefill.BatchPrefillWithRaggedKVCacheWrapper(workspace())
        wrapper.plan(batch.qo_indptr, indptr, 4, 2, 64, causal=True)
        tensors = (k, v)
    _, base2 = wrapper.run(q, *tensors, return_lse=True)
    _, natural = wrapper.run_return_lse(q, *tensors, lse_base="ln")
    torch.testing.assert_close(natural, base2 * math.log(2), rtol=1e-5, atol=1e-5)
    given = torch.empty(4, 10)
    _, by_head = wrapper.run(q, *tensors, return_lse=True, lse_layout="HN", lse=given)
    assert by_head is given and torch.equal(given, base2.t())
    _, by_head = wrapper.run(q, *tensors, return_lse=True, lse_layout="HN")
    assert by_head.is_contiguous() and torch.equal(by_head, given)
    with pytest.raises(ValueError, match="lse_base"):
        wrapper.run(q, *tensors, return_lse=True, lse_base="log10")
    with pytest.raises(ValueError, match="lse_layout"):
        wrapper.run(q, *tensors, return_lse=True, lse_layout="N")


def test_multi_item_scoring() -> None:
    """A prefix, then items between delimiters: a token sees the prefix and its own item, a delimiter the prefix alone."""
    prefix_lens, items = [5, 3], [[3, 2, 4], [1, 2]]
    places = [[0, *[p for n in part for p in [*range(1, n + 1), 0]]] for part in items]
    kv_lens = [prefix + len(place) for prefix, place in zip(prefix_lens, places, strict=True)]
    batch = paged_batch(kv_lens, kv_lens)
    width = max(len(place) for place in places) + 3
    table = torch.zeros(2, width, dtype=torch.int32)
    for row, place in enumerate(places):
        table[row, : len(place)] = torch.tensor(place)
    wrapper = planned(
        batch, 4,
        causal=True,
        prefix_len_ptr=torch.tensor(prefix_lens, dtype=torch.int32),
        token_pos_in_items_ptr=table.reshape(-1)[:-3],  # the last padding may be left out
        token_pos_in_items_len=width,
        max_item_len_ptr=torch.tensor([4, 2], dtype=torch.int32),
    )  # fmt: skip
    q = queries(batch, 4)
    out = wrapper.run(q, batch.cache)
    for request in range(2):
        prefix, place, n = prefix_lens[request], places[request], kv_lens[request]
        mask = torch.tril(torch.ones(n, n, dtype=torch.bool))
        for row in range(prefix, n):
            for key in range(prefix, n):
                mask[row, key] &= row - key < place[row - prefix]
        rows = batch.rows(request)
        check(out[rows], attend(q[rows], *batch.keys(request), mask=mask)[0])


def test_graph_wrapper() -> None:
    first, second = paged_batch([4, 6], [9, 14]), paged_batch([1, 3], [50, 8], seed=4)
    buffers = [torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)]
    buffers.append(torch.zeros(2, dtype=torch.int32))
    bits, starts = torch.zeros(64, dtype=torch.uint8), torch.zeros(3, dtype=torch.int32)
    wrapper = prefill.BatchPrefillWithPagedKVCacheWrapper(
        workspace(), "NHD", True, *buffers, custom_mask_buf=bits, mask_indptr_buf=starts
    )
    for batch in (first, second, first):
        masks = masks_of(batch)
        flat = torch.cat([m.reshape(-1) for m in masks])
        wrapper.plan(batch.qo_indptr, batch.indptr, batch.indices, batch.last, 4, 2, 64, 16, custom_mask=flat)
        expected_bits = packed(masks)
        assert torch.equal(bits[: len(expected_bits)], expected_bits)
        q = queries(batch, 4)
        out = wrapper.run(q, batch.cache)
        for request in range(2):
            rows = batch.rows(request)
            check(out[rows], attend(q[rows], *batch.keys(request), mask=masks[request])[0])
    larger = paged_batch([40, 6], [40, 14])
    with pytest.raises(ValueError, match="cuda graph mode cannot exceed"):
        wrapper.plan(larger.qo_indptr, larger.indptr, larger.indices, larger.last, 4, 2, 64, 16)


def test_older_forward_and_names() -> None:
    batch = paged_batch([4, 6], [9, 14])
    wrapper = prefill.BatchPrefillWithPagedKVCacheWrapper(workspace_buffer=workspace())
    wrapper.begin_forward(batch.qo_indptr, batch.indptr, batch.indices, batch.last, 4, 2, 64, 16)
    q = queries(batch, 4)
    rows = batch.rows(1)
    check(wrapper.forward(q, batch.cache, causal=True)[rows], attend(q[rows], *batch.keys(1), causal=True)[0])
    out, lse = wrapper.forward_return_lse(q, batch.cache, causal=False, logits_soft_cap=5.0)
    check((out[rows], lse[rows]), attend(q[rows], *batch.keys(1), cap=5.0))
    wrapper.begin_forward(batch.qo_indptr, batch.indptr, batch.indices, batch.last, 4, 2, head_dim=64, page_size=16)
    again = wrapper.forward(q, batch.cache, causal=True, allow_fp16_qk_reduction=True)
    check(again[rows], attend(q[rows], *batch.keys(1), causal=True)[0])
    k, v = batch.keys(1)
    single = prefill.single_prefill_with_kv_cache(q[rows], k, v, causal=True, allow_fp16_qk_reduction=True)
    check(single, attend(q[rows], k, v, causal=True)[0])
    with pytest.raises(TypeError, match="older name"):
        prefill.BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer=workspace(), workspace_buffer=workspace())


def test_packed_queries_and_unequal_strides() -> None:
    """Queries sliced out of a fused projection, and K and V with strides of their own."""
    batch = paged_batch([4, 6], [9, 14])
    fused = torch.randn(10, 4 * 64 + 2 * 2 * 64).half()
    q = fused[:, : 4 * 64].view(10, 4, 64)
    wide = torch.full((*batch.v.shape[:3], 96), math.nan).half()
    wide[..., :64] = batch.v
    wrapper = planned(batch, 4, causal=True)
    out = wrapper.run(q, (batch.k, wide[..., :64]))
    assert torch.equal(out, wrapper.run(q.contiguous(), batch.cache))
    check(out[batch.rows(0)], attend(q[batch.rows(0)], *batch.keys(0), causal=True)[0])


def test_refusals_name_the_argument() -> None:
    batch = paged_batch([4, 6], [9, 14])
    q = queries(batch, 4)
    wrapper = planned(batch, 4)
    with pytest.raises(ValueError, match="qo_indptr"):
        wrapper.run(q[:-1], batch.cache)
    with pytest.raises(NotImplementedError, match="skip_softmax_threshold_scale_factor"):
        wrapper.run(q, batch.cache, skip_softmax_threshold_scale_factor=0.5)
    with pytest.raises(NotImplementedError, match="uses_spcompress"):
        wrapper.run(q, batch.cache, uses_spcompress=True)
    with pytest.raises(ValueError, match="kv_cache_sf"):
        planned(batch, 4, kv_data_type=torch.uint8).run(q, (batch.k.view(torch.uint8), batch.v.view(torch.uint8)))
    with pytest.raises(ValueError, match="token_pos_in_items_ptr"):
        planned(batch, 4, prefix_len_ptr=torch.tensor([1, 1]))
    for places, length in ((torch.zeros(3), 0), (torch.zeros(8 + 13), 8), (torch.zeros(13 + 12), 13)):
        with pytest.raises(ValueError, match="token_pos_in_items"):
            one = torch.ones(2, dtype=torch.int32)
            planned(batch, 4, prefix_len_ptr=one, token_pos_in_items_ptr=places.int(), token_pos_in_items_len=length)
    with pytest.raises(ValueError, match="last_page_len"):
        wrapper.plan(batch.qo_indptr, batch.indptr, batch.indices, batch.last[:1], 4, 2, 64, 16)
    with pytest.raises(ValueError, match="unknown data type"):
        planned(batch, 4, q_data_type="float17")
    with pytest.raises(ValueError, match=r"sinks has shape \(3,\); must be \[num_qo_heads=4\]"):
        wrapper.run(q, batch.cache, sinks=torch.zeros(3))
    with pytest.raises(ValueError, match="backend='fastest'"):
        prefill.single_prefill_with_kv_cache(q, *batch.keys(0), backend="fastest")
    with pytest.raises(ValueError, match="max_total_num_rows"):
        prefill.BatchPrefillWithPagedKVCacheWrapper(workspace(), max_total_num_rows=8)
    with pytest.raises(ValueError, match="jit_args"):
        prefill.BatchPrefillWithPagedKVCacheWrapper(workspace(), variant_owns_mask=True)
    with pytest.raises(ValueError, match="fixed_split_size=0"):
        planned(batch, 4, fixed_split_size=0)
    assert torch.equal(planned(batch, 4, fixed_split_size=-1).run(q, batch.cache), planned(batch, 4).run(q, batch.cache))
