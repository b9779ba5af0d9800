"""girih.flashinfer.mla against float64: CSR and block tables, packed and split tensors, FP8 caches, sinks, the older wrapper."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attention_reference import attend, check, workspace
from girih.flashinfer import mla

CKV, KPE, HEADS, SCALE = 64, 16, 4, 1 / math.sqrt(48)


class Cache:
    def __init__(
        self, q_lens: list[int], kv_lens: list[int], page_size: int = 4, dtype: Any = torch.float16, seed: int = 0
    ) -> None:
        generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
        pages = [-(-n // page_size) for n in kv_lens]
        self.page_size, self.kv_lens = page_size, kv_lens
        self.indptr = torch.tensor([0, *torch.tensor(pages).cumsum(0).tolist()], dtype=torch.int32)
        total = int(self.indptr[-1]) + 1
        self.indices = torch.randperm(total, generator=generator)[:-1].to(torch.int32)
        self.ckv = torch.full((total, page_size, CKV), math.nan)
        self.kpe = torch.full((total, page_size, KPE), math.nan)
        for request, n in enumerate(kv_lens):
            for at, page in enumerate(self.pages(request).tolist()):
                used = min(page_size, n - at * page_size)
                self.ckv[page, :used] = torch.randn(used, CKV, generator=generator)
                self.kpe[page, :used] = torch.randn(used, KPE, generator=generator)
        self.ckv, self.kpe = self.ckv.to(dtype), self.kpe.to(dtype)
        self.qo = torch.tensor([0, *torch.tensor(q_lens).cumsum(0).tolist()], dtype=torch.int32)
        self.lens = torch.tensor(kv_lens, dtype=torch.int32)
        rows = int(self.qo[-1])
        self.q_nope = torch.randn(rows, HEADS, CKV, generator=generator).half()
        self.q_pe = torch.randn(rows, HEADS, KPE, generator=generator).half()

    def pages(self, request: int) -> Any:
        return self.indices[self.indptr[request] : self.indptr[request + 1]].long()

    def expected(self, request: int, ckv_scale: float = 1.0, kpe_scale: float = 1.0, **options: Any) -> tuple[Any, Any]:
        n = self.kv_lens[request]
        ckv = self.ckv[self.pages(request)].reshape(-1, CKV)[:n].double() * ckv_scale
        kpe = self.kpe[self.pages(request)].reshape(-1, KPE)[:n].double() * kpe_scale
        rows = self.rows(request)
        q = torch.cat([self.q_nope[rows], self.q_pe[rows]], -1)
        return attend(q, torch.cat([ckv, kpe], -1)[:, None], ckv[:, None], sm_scale=SCALE, **options)

    def rows(self, request: int) -> slice:
        return slice(int(self.qo[request]), int(self.qo[request + 1]))

    def plan(self, wrapper: Any, causal: bool, kv_dtype: Any = torch.float16, **options: Any) -> None:
        wrapper.plan(
            self.qo, self.indptr, self.indices, self.lens, HEADS, CKV, KPE, self.page_size, causal, SCALE,
            torch.float16, kv_dtype, **options,
        )  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("page_size", [1, 4])
def test_csr(causal: bool, page_size: int) -> None:
    cache = Cache([1, 5, 1, 2], [12, 30, 0, 13], page_size)
    wrapper = mla.BatchMLAPagedAttentionWrapper(workspace(), backend="fa2")
    cache.plan(wrapper, causal)
    out, lse = wrapper.run(cache.q_nope, cache.q_pe, cache.ckv, cache.kpe, return_lse=True)
    natural = wrapper.run(cache.q_nope, cache.q_pe, cache.ckv, cache.kpe, return_lse=True, return_lse_base_on_e=True)[1]
    for request in (0, 1, 3):
        rows = cache.rows(request)
        expected = cache.expected(request, causal=causal)
        check((out[rows], lse[rows]), expected)
        check(natural[rows], expected[1] * math.log(2))
    assert not out[cache.rows(2)].any() and bool((lse[cache.rows(2)] == -math.inf).all())
    given = torch.full_like(out, math.nan)
    assert wrapper.run(cache.q_nope, cache.q_pe, cache.ckv, cache.kpe, given).data_ptr() == given.data_ptr()
    assert torch.equal(given, out)


def test_packed_tensors_and_block_tables() -> None:
    cache = Cache([2, 3], [12, 30])
    wrapper = mla.BatchMLAPagedAttentionWrapper(workspace())
    table = torch.full((2, 9), 2**30, dtype=torch.int32)
    for request in range(2):
        table[request, : len(cache.pages(request))] = cache.pages(request).int()
    named: dict[str, Any] = {
        "num_heads": HEADS, "head_dim_ckv": CKV, "head_dim_kpe": KPE, "page_size": 4, "causal": True, "sm_scale": SCALE,
        "q_data_type": torch.float16, "kv_data_type": torch.float16,
    }  # fmt: skip
    wrapper.plan(metadata=mla.MLAPlanMetadata.dense(cache.qo, table, cache.lens), query_layout="packed", **named)
    query = torch.cat([cache.q_nope, cache.q_pe], -1)
    out = wrapper.run(query=query, kv_cache=torch.cat([cache.ckv, cache.kpe], -1))
    for request in range(2):
        check(out[cache.rows(request)], cache.expected(request, causal=True)[0])
    wrapper.plan(metadata=mla.MLAPlanMetadata.csr(cache.qo, cache.indptr, cache.indices, cache.lens), **named)
    assert torch.equal(wrapper.run(query=(cache.q_nope, cache.q_pe), kv_cache=(cache.ckv, cache.kpe)), out)
    both = mla.MLAPlanMetadata.dual(
        cache.qo, cache.indptr, cache.indices, cache.lens, cum_seq_lens_q=cache.qo, block_tables=table, seq_lens=cache.lens
    )
    wrapper.plan(metadata=both, **named)
    nested = (torch.cat([cache.ckv, cache.kpe], -1), (cache.ckv, cache.kpe))
    assert torch.equal(wrapper.run(query=((cache.q_nope, cache.q_pe), query), kv_cache=nested), out)
    with pytest.raises(TypeError, match="not both"):
        wrapper.run(cache.q_nope, cache.q_pe, query=query, kv_cache=(cache.ckv, cache.kpe))
    with pytest.raises(TypeError, match="sm_scale"):
        wrapper.plan(cache.qo, cache.indptr, cache.indices, cache.lens, HEADS, CKV, KPE, 4, True)


def test_metadata_that_does_not_fit() -> None:
    cache = Cache([2, 3], [12, 30])
    wrapper = mla.BatchMLAPagedAttentionWrapper(workspace(), backend="cute-dsl-modular")
    table = torch.zeros(2, 9, dtype=torch.int32)
    named: dict[str, Any] = {
        "num_heads": HEADS, "head_dim_ckv": CKV, "head_dim_kpe": KPE, "page_size": 4, "causal": True, "sm_scale": SCALE,
        "q_data_type": torch.float16, "kv_data_type": torch.float16,
    }  # fmt: skip
    csr = (cache.qo, cache.indptr, cache.indices, cache.lens)
    differ = mla.MLAPlanMetadata.dual(*csr, cum_seq_lens_q=cache.qo, block_tables=table, seq_lens=cache.lens)
    for metadata, text in (
        (differ, "differ; they must say the same"),
        (mla.MLAPlanMetadata(), "is empty"),
        (mla.MLAPlanMetadata(qo_indptr=cache.qo, kv_indptr=cache.indptr), "no kv_indices, kv_len_arr"),
        (mla.MLAPlanMetadata(*csr, max_q_len=3), "max_q_len without block_tables"),
    ):
        with pytest.raises(ValueError, match=text):
            wrapper.plan(metadata=metadata, **named)
    with pytest.raises(ValueError, match="give one form"):
        wrapper.plan(*csr, metadata=mla.MLAPlanMetadata.csr(*csr), **named)
    with pytest.raises(ValueError, match="both forms"):
        wrapper.plan(*csr, cum_seq_lens_q=cache.qo, block_tables=table, seq_lens=cache.lens, **named)
    with pytest.raises(TypeError, match="must be a flashinfer.mla.MLAPlanMetadata"):
        wrapper.plan(metadata=csr, **named)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="backend='sometimes'"):
        mla.BatchMLAPagedAttentionWrapper(workspace(), backend="sometimes")


@pytest.mark.parametrize("as_array", [False, True])
def test_fp8_cache(as_array: bool) -> None:
    cache = Cache([1, 3], [12, 30], dtype=torch.float8_e4m3fn)
    wrapper = mla.BatchMLAPagedAttentionWrapper(workspace())
    cache.plan(wrapper, True, torch.float8_e4m3fn, scale_mode="kv-per-tensor")
    ckv: dict[str, Any] = {"ckv_scale_arr": torch.tensor([0.5])} if as_array else {"ckv_scale": 0.5}
    out = wrapper.run(cache.q_nope, cache.q_pe, cache.ckv, cache.kpe, kpe_scale=1.5, **ckv)
    for request in range(2):
        check(out[cache.rows(request)], cache.expected(request, 0.5, 1.5, causal=True)[0], 4e-3)


def test_sinks() -> None:
    cache = Cache([1, 3], [12, 30])
    wrapper = mla.BatchMLAPagedAttentionWrapper(workspace())
    cache.plan(wrapper, False, use_sinks=True)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    out = wrapper.run(cache.q_nope, cache.q_pe, cache.ckv, cache.kpe, sinks=sinks)
    for request in range(2):
        check(out[cache.rows(request)], cache.expected(request, sinks=sinks)[0])
    with pytest.raises(ValueError, match="sinks"):
        wrapper.run(cache.q_nope, cache.q_pe, cache.ckv, cache.kpe)


def test_graph_buffers() -> None:
    caches = [Cache([1, 1], [12, 30]), Cache([1, 1], [3, 7], seed=2)]
    buffers = [torch.zeros(n, dtype=torch.int32) for n in (3, 3, 40, 2)]
    wrapper = mla.BatchMLAPagedAttentionWrapper(workspace(), True, *buffers)
    for cache in (caches[1], caches[0], caches[1]):
        cache.plan(wrapper, True)
        out = wrapper.run(cache.q_nope, cache.q_pe, cache.ckv, cache.kpe)
        check(out[1:2], cache.expected(1)[0])
        assert torch.equal(buffers[3], cache.lens) and torch.equal(buffers[2][: len(cache.indices)], cache.indices)


def test_older_decode_wrapper() -> None:
    cache = Cache([1, 1], [12, 30])
    kpe = CKV // 8
    cache.kpe, cache.q_pe = cache.kpe[..., :kpe].contiguous(), cache.q_pe[..., :kpe].contiguous()
    wrapper = mla.BatchDecodeMlaWithPagedKVCacheWrapper(workspace())
    last = (cache.lens - 1) % 4 + 1
    wrapper.plan(cache.indptr, cache.indices, last, HEADS, CKV, 4, SCALE, data_type="float16")
    out = wrapper.run(cache.q_nope, cache.q_pe, cache.ckv, cache.kpe)
    for request in range(2):
        n = cache.kv_lens[request]
        ckv = cache.ckv[cache.pages(request)].reshape(-1, CKV)[:n]
        rope = cache.kpe[cache.pages(request)].reshape(-1, kpe)[:n]
        q = torch.cat([cache.q_nope, cache.q_pe], -1)[request : request + 1]
        expected = attend(q, torch.cat([ckv, rope], -1)[:, None], ckv[:, None], sm_scale=SCALE)
        check(out[request : request + 1], expected[0])
    with pytest.raises(NotImplementedError, match="rope_scale"):
        wrapper.plan(cache.indptr, cache.indices, last, HEADS, CKV, 4, SCALE, rope_scale=2.0)


def test_refusals_name_the_argument() -> None:
    cache = Cache([1, 1], [12, 30])
    wrapper = mla.BatchMLAPagedAttentionWrapper(workspace())
    for options in (
        {"use_profiler": True},
        {"skip_softmax": True},
        {"output_scale": "per-tensor"},
        {"scale_mode": "bmm-scalar"},
    ):
        with pytest.raises(NotImplementedError, match=next(iter(options))):
            cache.plan(wrapper, True, **options)
    cache.plan(wrapper, True)
    tensors = (cache.q_nope, cache.q_pe, cache.ckv, cache.kpe)
    run_options: list[dict[str, Any]] = [
        {"o_scale": 1.0},
        {"bmm1_scale": 1.0},
        {"kv_len": cache.lens},
        {"profiler_buffer": cache.lens},
    ]
    for run_option in run_options:
        with pytest.raises(NotImplementedError, match=next(iter(run_option))):
            wrapper.run(*tensors, **run_option)
    with pytest.raises(ValueError, match="FP8"):
        wrapper.run(*tensors, ckv_scale=2.0)
    with pytest.raises(ValueError, match=r"q_pe\.dtype"):
        wrapper.run(cache.q_nope, cache.q_pe.bfloat16(), cache.ckv, cache.kpe)
    with pytest.raises(ValueError, match=r"kpe_cache\.dtype"):
        wrapper.run(cache.q_nope, cache.q_pe, cache.ckv, cache.kpe.float())
    cache.plan(wrapper, True, torch.float8_e4m3fn)
    small = (cache.ckv.to(torch.float8_e4m3fn), cache.kpe.to(torch.float8_e4m3fn))
    for scales in ({}, {"ckv_scale": 1.0, "ckv_scale_arr": torch.ones(1)}, {"ckv_scale": 1.0}):
        with pytest.raises(ValueError, match="ckv_scale|kpe_scale"):
            wrapper.run(cache.q_nope, cache.q_pe, *small, **scales)
    with pytest.raises(NotImplementedError, match="ckv_scale_arr"):
        wrapper.run(cache.q_nope, cache.q_pe, *small, ckv_scale_arr=torch.ones(4), kpe_scale=1.0)


def test_without_positional_part() -> None:
    cache = Cache([1, 3], [12, 30])
    wrapper = mla.BatchMLAPagedAttentionWrapper(workspace())
    tables = (cache.qo, cache.indptr, cache.indices, cache.lens)
    wrapper.plan(*tables, HEADS, CKV, 0, 4, True, SCALE, torch.float16, torch.float16)
    out = wrapper.run(cache.q_nope, cache.q_pe[..., :0], cache.ckv, cache.kpe[..., :0])
    for request in range(2):
        ckv = cache.ckv[cache.pages(request)].reshape(-1, 1, CKV)[: cache.kv_lens[request]]
        check(
            out[cache.rows(request)],
            attend(cache.q_nope[cache.rows(request)], ckv, ckv, causal=True, sm_scale=SCALE)[0],
        )
