"""Appending to the paged cache under FlashInfer's names: layouts, forms of the cache, padding, types, and what is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import girih.flashinfer as flashinfer
from torch import Tensor

HEADS, DIM, PAGES = 2, 32, 12


class Table:
    """Three requests of 5, 1 and 9 tokens after an append of 2, 1 and 4, and a request that appends nothing."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.seq_lens = torch.tensor([5, 1, 9, 4], dtype=torch.int32)
        self.append_indptr = torch.tensor([0, 2, 3, 7, 7], dtype=torch.int32)
        pages = (self.seq_lens + page_size - 1) // page_size
        self.indptr = torch.cat((torch.zeros(1), pages.cumsum(0))).int()
        total = int(self.indptr[-1])
        self.num_pages = max(PAGES, total)
        self.indices = torch.randperm(self.num_pages, generator=torch.Generator(torch.get_default_device()).manual_seed(0))[:total].int()
        self.last_page_len = ((self.seq_lens - 1) % page_size + 1).int()
        self.batch, self.positions = flashinfer.get_batch_indices_positions(self.append_indptr, self.seq_lens, 7)

    def args(self) -> tuple[Tensor, ...]:
        return self.indices, self.indptr, self.last_page_len

    def place(self, i: int) -> tuple[int, int]:
        position = int(self.positions[i])
        first = int(self.indptr[int(self.batch[i])])
        return int(self.indices[first + position // self.page_size]), position % self.page_size


def test_batch_indices_and_positions() -> None:
    table = Table(4)
    assert table.batch.tolist() == [0, 0, 1, 2, 2, 2, 2] and table.batch.dtype == torch.int32
    assert table.positions.tolist() == [3, 4, 0, 5, 6, 7, 8]
    batch, positions = torch.zeros(10, dtype=torch.int32), torch.ones(10, dtype=torch.int32)
    result = flashinfer.get_batch_indices_positions(table.append_indptr, table.seq_lens, 10, batch, positions)
    assert result[0] is batch and result[1] is positions
    assert batch.tolist() == [0, 0, 1, 2, 2, 2, 2, -1, -1, -1] and positions.tolist()[-3:] == [0, 0, 0]
    with pytest.raises(ValueError, match="positions"):
        flashinfer.get_batch_indices_positions(table.append_indptr, table.seq_lens, 10, batch, positions[:3])
    assert torch.equal(flashinfer.get_seq_lens(table.indptr, table.last_page_len, 4), table.seq_lens)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("form", ["one", "pair", "squeezed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_append(layout: str, form: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    page_size = 1 if form == "squeezed" else 4
    table = Table(page_size)
    tail = (page_size, HEADS, DIM) if layout == "NHD" else (HEADS, page_size, DIM)
    cache = torch.zeros(table.num_pages, 2, *tail).to(dtype)
    k, v = torch.randn(7, HEADS, DIM).to(dtype), torch.randn(7, HEADS, DIM).to(dtype)
    given: Tensor | tuple[Tensor, Tensor] = cache
    if form == "pair":
        given = (cache[:, 0], cache[:, 1])
    elif form == "squeezed":
        given = cache.squeeze(2 if layout == "NHD" else 3)
    flashinfer.append_paged_kv_cache(k, v, table.batch, table.positions, given, *table.args(), layout)
    expected = torch.zeros_like(cache, dtype=torch.float32)
    for i in range(7):
        page, entry = table.place(i)
        for j, x in enumerate((k, v)):
            target = expected[page, j] if layout == "NHD" else expected[page, j].transpose(0, 1)
            target[entry] = x[i].float()
    assert torch.equal(cache.float(), expected)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("named", [False, True])
def test_the_form_with_append_indptr(layout: str, named: bool) -> None:
    torch.manual_seed(1)
    table = Table(4)
    tail = (4, HEADS, DIM) if layout == "NHD" else (HEADS, 4, DIM)
    caches = torch.zeros(2, table.num_pages, 2, *tail)
    k, v = torch.randn(7, HEADS, DIM), torch.randn(7, HEADS, DIM)
    flashinfer.append_paged_kv_cache(k, v, table.batch, table.positions, caches[0], *table.args(), layout)
    append: Any = flashinfer.append_paged_kv_cache
    if named:
        append(k, v, append_indptr=table.append_indptr, paged_kv_cache=caches[1], kv_indices=table.indices, kv_indptr=table.indptr,
               kv_last_page_len=table.last_page_len, kv_layout=layout)  # fmt: skip
    else:
        append(k, v, table.append_indptr, caches[1], *table.args(), layout)
    assert torch.equal(caches[0], caches[1]) and caches[0].any()
    with pytest.raises(TypeError, match="positional"):
        append(k, v, table.append_indptr, caches[1], *table.args(), layout, "one too many")


def test_padding_is_skipped_and_wild_places_are_refused() -> None:
    table = Table(4)
    cache = torch.zeros(table.num_pages, 2, 4, HEADS, DIM)
    k = torch.randn(9, HEADS, DIM)
    batch, positions = flashinfer.get_batch_indices_positions(table.append_indptr, table.seq_lens, 9)
    flashinfer.append_paged_kv_cache(k, k, batch, positions, cache, *table.args())
    assert int(cache.count_nonzero()) == 7 * 2 * HEADS * DIM
    shuffled = torch.randperm(9)
    again = torch.zeros_like(cache)
    flashinfer.append_paged_kv_cache(
        k[shuffled], k[shuffled], batch[shuffled], positions[shuffled], again, *table.args()
    )
    assert torch.equal(cache, again)
    before = cache.clone()
    on_gpu = cache.is_cuda  # where they are written nowhere
    for bad_batch, bad_position, match in (
        (0, 8 if on_gpu else 5, "positions: 5 of request 0"),  # past the pages; on the CPU past the last token too
        (4, 0, "batch_indices"),
        (1, -2, "positions"),
    ):
        with contextlib.nullcontext() if on_gpu else pytest.raises(ValueError, match=match):
            flashinfer.append_paged_kv_cache(
                k[:1], k[:1], torch.tensor([bad_batch]), torch.tensor([bad_position]), cache, *table.args()
            )
    assert torch.equal(cache, before)
    with pytest.raises(KeyError, match="kv_layout"):
        flashinfer.append_paged_kv_cache(k, k, batch, positions, cache, *table.args(), "DNH")
    with pytest.raises(NotImplementedError, match="append_key.dtype"):
        flashinfer.append_paged_kv_cache(k, k, batch, positions, cache.to(torch.float8_e4m3fn), *table.args())


def test_append_mla() -> None:
    torch.manual_seed(2)
    table = Table(4)
    ckv, kpe = torch.zeros(table.num_pages, 4, 48), torch.zeros(table.num_pages, 4, 16)
    new_ckv, new_kpe = torch.randn(7, 48), torch.randn(7, 16)
    flashinfer.append_paged_mla_kv_cache(new_ckv, new_kpe, table.batch, table.positions, ckv, kpe, *table.args())
    for i in range(7):
        assert torch.equal(ckv[table.place(i)], new_ckv[i]) and torch.equal(kpe[table.place(i)], new_kpe[i])
    assert int(ckv.count_nonzero()) == 7 * 48


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("slots", [False, True])
def test_append_nvfp4(layout: str, slots: bool) -> None:
    torch.manual_seed(3)
    table = Table(4)
    tail = (4, HEADS) if layout == "NHD" else (HEADS, 4)
    cache = torch.zeros(table.num_pages, 2, *tail, DIM // 2, dtype=torch.uint8)
    scales = torch.zeros(table.num_pages, 2, *tail, DIM // 16).to(torch.float8_e4m3fn)
    k, v = torch.randn(7, HEADS, DIM).bfloat16(), torch.randn(7, HEADS, DIM).bfloat16()
    if slots:
        mapping = torch.tensor([page * 4 + entry for page, entry in map(table.place, range(7))])
        mapping[1] = -1
        k, v = torch.cat((k, k[:1])), torch.cat((v, v[:1]))
        mapping = torch.cat((mapping, torch.tensor([table.num_pages * 4])))
        flashinfer.nvfp4_quantize_append_paged_kv_cache_with_slot_mapping(
            k, v, mapping, cache, scales, torch.tensor([0.01]), 0.02, layout
        )
    else:
        flashinfer.nvfp4_quantize_append_paged_kv_cache(
            k, v, table.batch, table.positions, cache, scales, *table.args(), 0.01, 0.02, layout
        )
    for i in range(7):
        page, entry = table.place(i)
        for j, (x, scale) in enumerate(((k, 0.01), (v, 0.02))):
            codes, steps = (t[page, j] if layout == "NHD" else t[page, j].transpose(0, 1) for t in (cache, scales))
            if slots and i == 1:
                assert not codes[entry].any()
                continue
            want = flashinfer.nvfp4_kv_quantize(x[i], torch.tensor([scale]))
            assert torch.equal(codes[entry], want[0]) and torch.equal(steps[entry].view(torch.uint8), want[1])
    with pytest.raises(ValueError, match="positive"):
        flashinfer.nvfp4_quantize_append_paged_kv_cache(
            k, v, table.batch, table.positions, cache, scales, *table.args(), 0.0, 1.0, layout
        )


def test_append_nvfp4_mla() -> None:
    torch.manual_seed(4)
    table = Table(4)
    ckv = torch.zeros(table.num_pages, 4, 32, dtype=torch.uint8)
    ckv_scales = torch.zeros(table.num_pages, 4, 4).to(torch.float8_e4m3fn)
    kpe = torch.zeros(table.num_pages, 4, 16).to(torch.float8_e4m3fn)
    new_ckv, new_kpe = torch.randn(7, 64).half(), torch.randn(7, 16).half()
    flashinfer.nvfp4_quantize_append_paged_mla_kv_cache(
        new_ckv, new_kpe, table.batch, table.positions, ckv, ckv_scales, kpe, *table.args(), 0.01, 0.5
    )
    codes, steps = flashinfer.nvfp4_kv_quantize(new_ckv, torch.tensor([0.01]))
    for i in range(7):
        at = table.place(i)
        assert torch.equal(ckv[at], codes[i]) and torch.equal(ckv_scales[at].view(torch.uint8), steps[i])
        assert torch.equal(kpe[at], (new_kpe[i] / 0.5).to(torch.float8_e4m3fn))


@pytest.mark.parametrize("mla", [False, True])
def test_rope_quantize_append(mla: bool) -> None:
    torch.manual_seed(5)
    table = Table(4)
    heads = () if mla else (HEADS,)
    q, k = torch.randn(7, 4, 16).bfloat16(), torch.randn(7, *heads, 16).bfloat16()
    q_nope, k_nope = torch.randn(7, 4, 16).bfloat16(), torch.randn(7, *heads, 16).bfloat16()
    v = None if mla else torch.randn(7, HEADS, 32).bfloat16()
    cos_sin = torch.randn(40, 16)
    positions = torch.arange(7) * 4
    fp8 = torch.float8_e4m3fn
    if mla:
        caches = torch.zeros(table.num_pages, 4, 16).to(fp8), torch.zeros(table.num_pages, 4, 16).to(fp8)
    else:
        caches = (
            torch.zeros(table.num_pages, 4, HEADS, 32).to(fp8),
            torch.zeros(table.num_pages, 4, HEADS, 32).to(fp8),
        )
    table.batch[3] = -1
    result = flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(
        q, k, q_nope, k_nope, v, cos_sin, positions, caches, table.indices, table.indptr, table.batch, table.positions,
        page_size=4, quant_scale_kv=0.5,
    )  # fmt: skip
    want = flashinfer.rope.rope_quantize_fp8(q, k, q_nope, k_nope, cos_sin, positions, quant_scale_kv=0.5)
    same = [torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(result, (want[0], want[2]))]
    assert same == [True, True]
    for i in range(7):
        if i == 3:
            continue
        at = table.place(i)
        if mla:
            assert torch.equal(caches[0][at].view(torch.uint8), want[3][i].view(torch.uint8))
            assert torch.equal(caches[1][at].view(torch.uint8), want[1][i].view(torch.uint8))
        else:
            key = torch.cat((want[1][i].view(torch.uint8), want[3][i].view(torch.uint8)), -1)
            assert torch.equal(caches[0][at].view(torch.uint8), key)
            assert v is not None
            torch.testing.assert_close(caches[1][at].float(), v[i].float() * 0.5, rtol=0.07, atol=0.01)
    with pytest.raises(ValueError, match="page_size=8"):
        flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(
            q, k, q_nope, k_nope, v, cos_sin, positions, caches, table.indices, table.indptr, table.batch,
            table.positions, page_size=8,
        )  # fmt: skip
