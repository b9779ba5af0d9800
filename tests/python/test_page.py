"""The paged cache beside attention: append of every format and layout, page copies, positions; refusals before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import to_numpy

import girih

HEADS, DIM, PAGES, PAGE = 2, 32, 5, 4


@pytest.fixture(params=["numpy", "torch"])
def lib(request: pytest.FixtureRequest) -> Any:
    if request.param == "numpy":
        return lambda array: array
    torch = pytest.importorskip("torch")
    return torch.from_numpy


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(13)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


# Request 0 holds 5 tokens of which 2 are new, request 1 gets none, request 2 its first 3.
BATCH: dict[str, Any] = {"append_indptr": [0, 2, 2, 5], "kv_len": [5, 2, 3]}
PAGE_TABLE = np.array([[3, 0], [1, 9], [4, 9]], np.int32)
PLACES = [(3, 3), (0, 0), (4, 0), (4, 1), (4, 2)]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("table", ["indptr", "stride"])
def test_append_plain(lib: Any, rng: np.random.Generator, layout: str, table: str) -> None:
    order = (0, 1, 2, 3) if layout == "NHD" else (0, 2, 1, 3)
    shape = tuple(np.array((PAGES, PAGE, HEADS, DIM))[list(order)])
    k, v = np.full(shape, 7, np.float32), np.full(shape, 7, np.float32)
    new_k, new_v = normal(rng, 6, HEADS, DIM), normal(rng, 6, HEADS, DIM)  # the last row is padding
    where: dict[str, Any] = (
        {"kv_indices": PAGE_TABLE, "table_stride": 2}
        if table == "stride"
        else {"kv_indices": [3, 0, 1, 4], "kv_indptr": [0, 2, 3, 4]}
    )
    girih.append(girih.KvStore.paged(lib(k), lib(v), layout=layout), lib(new_k), lib(new_v), **BATCH, **where)
    for cache, new in ((k, new_k), (v, new_v)):
        seen = cache.transpose(np.argsort(order))
        for row, place in enumerate(PLACES):
            assert (seen[place] == new[row]).all()
            seen[place] = 7
        assert (seen == 7).all()


@pytest.mark.parametrize("by", ["slots", "positions"])
def test_append_at(make: Any, rng: np.random.Generator, by: str) -> None:
    k, v = (make(np.full((PAGES, PAGE, HEADS, DIM), 7, np.float32)) for _ in range(2))
    new_k, new_v = normal(rng, 6, HEADS, DIM), normal(rng, 6, HEADS, DIM)
    where: dict[str, np.ndarray] = {"slots": np.array([page * PAGE + token for page, token in PLACES] + [-1])}
    if by == "positions":
        where = {
            "batch_indices": np.array([0, 0, 2, 2, 2, -1], np.int32),
            "positions": np.array([3, 4, 0, 1, 2, 0]),
            "kv_indices": np.array([3, 0, 1, 4], np.int32),
            "kv_indptr": np.array([0, 2, 3, 4], np.int32),
        }
    girih.append_at(girih.KvStore.paged(k, v), make(new_k), make(new_v), **{n: make(a) for n, a in where.items()})
    for cache, new in ((k, new_k), (v, new_v)):
        seen = to_numpy(cache)
        for row, place in enumerate(PLACES):
            assert (seen[place] == new[row]).all()
            seen[place] = 7
        assert (seen == 7).all()


def test_append_at_refuses(rng: np.random.Generator) -> None:
    k = np.full((PAGES, PAGE, HEADS, DIM), 7, np.float32)
    store, new = girih.KvStore.paged(k), normal(rng, 2, HEADS, DIM)
    listed = {"batch_indices": np.array([0, 0]), "positions": np.array([0, 1]), "kv_indptr": np.array([0, 1])}
    for where, error, text in (
        ({}, TypeError, "slots or batch_indices"),
        ({"slots": np.array([0, PAGES * PAGE])}, ValueError, r"slots\[1\]=20"),
        ({"slots": np.array([5, 5])}, ValueError, "same place"),
        ({"slots": np.array([5.0, 6.0], np.float32)}, ValueError, "slots is f32"),
        ({"slots": np.array([5, 6]), "positions": np.array([0, 1])}, ValueError, "positions is given beside slots"),
        (listed, ValueError, "kv_indices has rank 0"),
        (listed | {"kv_indices": np.array([9], np.int32)}, ValueError, r"kv_indices\[0\]=9"),
        ({"slots": np.array([1, 2, 3])}, ValueError, r"k.shape\[0\]=2 < 3"),
    ):
        with pytest.raises(error, match=text):
            girih.append_at(store, new, **where)
    assert (k == 7).all()


def test_append_to_a_ragged_store_and_of_two_parts(lib: Any, rng: np.random.Generator) -> None:
    k, rope = np.zeros((10, DIM), np.float16), np.zeros((10, 8), np.float16)
    new_k, new_rope = normal(rng, 5, 1, DIM), normal(rng, 5, 1, 8)
    store = girih.KvStore.ragged(lib(k), k_rope=lib(rope))
    girih.append(store, lib(new_k), k_rope=lib(new_rope), **BATCH, kv_indptr=[0, 5, 7, 10])
    rows = [3, 4, 7, 8, 9]
    assert (k[rows] == new_k[:, 0].astype(np.float16)).all() and (rope[rows] == new_rope[:, 0].astype(np.float16)).all()
    assert (k[[0, 1, 2, 5, 6]] == 0).all()


@pytest.mark.parametrize("granularity", ["tensor", "head", "token_head"])
def test_append_quantised(rng: np.random.Generator, granularity: str) -> None:
    torch = pytest.importorskip("torch")
    shape = (PAGES, PAGE, HEADS, DIM)
    k, v = (torch.zeros(shape, dtype=torch.float8_e4m3fn) for _ in range(2))
    given = {"tensor": torch.tensor([0.25]), "head": torch.tensor([0.25, 0.5])}
    scales = [given.get(granularity, torch.zeros(shape[:3])).clone() for _ in range(2)]
    store = girih.KvStore.paged(k, v, k_scale=scales[0], v_scale=scales[1])
    new = torch.from_numpy(normal(rng, 5, HEADS, DIM)).bfloat16()
    girih.append(store, new, -new, **BATCH, kv_indices=PAGE_TABLE, table_stride=2)
    for cache, scale, sign in ((k, scales[0], 1), (v, scales[1], -1)):
        for row, (page, token) in enumerate(PLACES):
            if granularity == "token_head":
                used = scale[page, token]
                assert torch.allclose(used, new[row].float().abs().amax(-1) / 448, rtol=1e-6)
            else:
                used = scale.expand(HEADS)
            expected = (sign * new[row].float() / used[:, None]).to(torch.float8_e4m3fn)
            # A code may differ where the quotient is rounded the other way.
            difference = (cache[page, token].float() - expected.float()).abs()
            assert (difference <= expected.float().abs() / 8 + 2**-9).all() and (difference > 0).float().mean() < 0.02


def test_append_refuses_before_writing(lib: Any, rng: np.random.Generator) -> None:
    k, v = np.full((PAGES, PAGE, HEADS, DIM), 7, np.float32), np.full((PAGES, PAGE, HEADS, DIM), 7, np.float32)
    store = girih.KvStore.paged(lib(k), lib(v))
    new = lib(normal(rng, 5, HEADS, DIM))
    table: dict[str, Any] = {"kv_indices": PAGE_TABLE, "table_stride": 2}
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((new, new), {"append_indptr": [0, 2, 1, 5]}, r"append_indptr\[2\]=1"),
        ((new, new), {"kv_len": [1, 2, 3]}, r"kv_len\[0\]=1"),
        ((new, new), {"kv_indices": PAGE_TABLE + 5}, r"kv_indices"),
        ((new, new), {"kv_indices": PAGE_TABLE.astype(np.int64)}, "kv_indices: is i64; must be int32"),
        ((new,), {}, "v is not given"),
        ((new[:, :1], new), {}, "k: has 1 heads of 32 dims; the store has 2 of 32"),
        ((new, new[:, :, :8]), {}, "v: has 2 heads of 8 dims"),
        ((new[:3], new), {}, r"k.shape\[0\]=3"),
        ((new, new), {"k_rope": new}, "k_rope: is given, but the store has no such plane"),
        ((lib(np.zeros((5, HEADS, DIM), np.int32)), new), {}, "k is i32"),
    ]
    for arrays, more, text in cases:
        with pytest.raises(ValueError, match=text):
            girih.append(store, *arrays, **(BATCH | table | more))
    assert (k == 7).all() and (v == 7).all()


def test_a_read_only_store_is_not_written(rng: np.random.Generator) -> None:
    k, v = np.full((PAGES, PAGE, HEADS, DIM), 7, np.float32), np.full((PAGES, PAGE, HEADS, DIM), 7, np.float32)
    v.flags.writeable = False
    store = girih.KvStore.paged(k, v)
    new = normal(rng, 5, HEADS, DIM)
    with pytest.raises(ValueError, match="store: holds a read-only array"):
        girih.append(store, new, new, **BATCH, kv_indices=PAGE_TABLE, table_stride=2)
    with pytest.raises(ValueError, match="store: holds a read-only array"):
        girih.copy_pages(store, [(0, 1)])
    assert (k == 7).all()


def test_copy_pages(lib: Any, rng: np.random.Generator) -> None:
    k, v = normal(rng, PAGES, PAGE, HEADS, DIM), normal(rng, PAGES, PAGE, HEADS, DIM)
    before = k.copy(), v.copy()
    store = girih.KvStore.paged(lib(k), lib(v))
    girih.copy_pages(store, [(0, 2), (0, 3)])
    girih.copy_pages(store, np.array([[4, 1]]))
    for cache, old in zip((k, v), before, strict=True):
        assert (cache == old[[0, 4, 0, 0, 4]]).all()
    with pytest.raises(ValueError, match="copies"):
        girih.copy_pages(store, [(0, PAGES)])
    for bad in ([(1,)], [1], [(0, 1.5)]):
        with pytest.raises(TypeError, match=r"copies\[0\]"):
            girih.copy_pages(store, bad)


def test_copy_pages_takes_scales_along(lib: Any, rng: np.random.Generator) -> None:
    codes = rng.integers(0, 256, (PAGES, PAGE, HEADS, DIM // 2)).astype(np.uint8)
    scales = rng.integers(0, 256, (PAGES, PAGE, HEADS, DIM // 16)).astype(np.uint8)
    store = girih.KvStore.paged(lib(codes), k_dtype="nvfp4", k_scale=lib(scales))
    girih.copy_pages(store, [(3, 1)])
    assert (codes[1] == codes[3]).all() and (scales[1] == scales[3]).all()


def test_positions_and_lengths(lib: Any) -> None:
    indptr, lengths = np.array([0, 2, 2, 5], np.int32), np.array([5, 2, 3], np.int32)
    requests, positions = girih.append_positions(lib(indptr), lib(lengths))
    assert requests.tolist() == [0, 0, 2, 2, 2] and positions.tolist() == [3, 4, 0, 1, 2]
    assert type(requests) is type(lib(indptr))
    requests, positions = girih.append_positions([0, 0], [4])
    assert isinstance(requests, np.ndarray) and requests.shape == positions.shape == (0,)
    found = girih.kv_len_from_last_page(lib(np.array([0, 2, 2, 3])), lib(np.array([3, 0, 16])), 16)
    assert found.tolist() == [19, 0, 16] and type(found) is type(lib(indptr))
    with pytest.raises(ValueError, match=r"last_page_len\[0\]=17"):
        girih.kv_len_from_last_page([0, 1], [17], 16)
    with pytest.raises(ValueError, match=r"kv_len\[0\]=1"):
        girih.append_positions([0, 2], [1])


def test_append_planned_needs_a_gpu(rng: np.random.Generator) -> None:
    planned = girih.Attention(
        girih.AttentionSpec(num_qo_heads=HEADS, num_kv_heads=HEADS, head_dim_qk=DIM, q_dtype="f32"),
        girih.AttentionLimits(max_tokens=1, max_requests=1, max_kv_len=8),
    )
    new = normal(rng, 1, HEADS, DIM)
    store = girih.KvStore.paged(new[None], new[None])
    with pytest.raises(NotImplementedError, match="append\\(\\)"):
        girih.append_planned(planned, store, new, new, kv_indices=[0])
