"""rope_append(): what rope() and the places of a batch say, for plain, quantised and MLA stores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Make, to_numpy

import girih

RNG = np.random.default_rng(16)
INDPTR, LENGTHS, PAGES, PAGE_INDPTR = [0, 2, 2, 5], [6, 4, 3], [3, 0, 5, 2], [0, 2, 3, 4]
PAGE_SIZE = 4
#: (row, request, position) of every appended token.
TOKENS = [(0, 0, 4), (1, 0, 5), (2, 2, 0), (3, 2, 1), (4, 2, 2)]
BATCH: dict[str, Any] = {"append_indptr": INDPTR, "kv_len": LENGTHS, "kv_indices": PAGES, "kv_indptr": PAGE_INDPTR}


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def place(request: int, position: int) -> tuple[int, int]:
    return PAGES[PAGE_INDPTR[request] + position // PAGE_SIZE], position % PAGE_SIZE


def stored(plane: Any) -> np.ndarray:
    """The appended rows of a plane [pages, page_size, ...]."""
    return np.stack([to_numpy(plane)[place(request, position)] for _, request, position in TOKENS])


def untouched(plane: Any, value: float) -> bool:
    rest = np.ones(plane.shape[:2], bool)
    for _, request, position in TOKENS:
        rest[place(request, position)] = False
    return bool((to_numpy(plane)[rest] == value).all())


POSITIONS = np.array([position for _, _, position in TOKENS])


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("inplace", [False, True])
def test_plain_store(make: Make, padding: int, inplace: bool) -> None:
    q, k, v = normal(5 + padding, 4, 16), normal(5 + padding, 2, 16), normal(5 + padding, 2, 8)
    k_cache, v_cache = make(np.full((6, 4, 2, 16), 9, np.float32)), make(np.full((6, 4, 2, 8), 9, np.float32))
    table = make(girih.rope_cos_sin(8, 32))
    q_array, k_weight = make(q.copy()), make(normal(16))
    options: dict[str, Any] = {"rotary_begin": 4, "interleaved": True, "eps": 1e-5}
    store = girih.KvStore.paged(k_cache, v_cache)
    out = girih.rope_append(
        store, q_array, make(k), make(v), table, k_weight=k_weight, inplace=inplace, **BATCH, **options
    )
    new_q, new_k = girih.rope(make(q[:5]), make(k[:5]), table, positions=make(POSITIONS), k_weight=k_weight, **options)
    assert out is q_array if inplace else out.shape == (5, 4, 16)
    np.testing.assert_array_equal(to_numpy(out)[:5], to_numpy(new_q))
    if inplace:
        np.testing.assert_array_equal(to_numpy(out)[5:], q[5:])
    np.testing.assert_array_equal(stored(k_cache), to_numpy(new_k))
    np.testing.assert_array_equal(stored(v_cache), v[:5])
    assert untouched(k_cache, 9) and untouched(v_cache, 9)


def test_given_positions_and_no_queries(make: Make) -> None:
    k, v = normal(5, 2, 16), normal(5, 2, 16)
    k_cache, v_cache = make(np.zeros((6, 4, 2, 16), np.float32)), make(np.zeros((6, 4, 2, 16), np.float32))
    positions = np.array([7, 8, 1, 0, 30])
    table = make(girih.rope_cos_sin(16, 32))
    out = girih.rope_append(
        girih.KvStore.paged(k_cache, v_cache), None, make(k), make(v), table, positions=make(positions), **BATCH
    )
    assert out is None
    np.testing.assert_array_equal(
        stored(k_cache), to_numpy(girih.rope(None, make(k), table, positions=make(positions))[1])
    )


def test_quantised_store_and_queries(make: Make) -> None:
    q, k, v = normal(5, 4, 32), normal(5, 2, 32), normal(5, 2, 32)
    caches = [make(np.zeros((6, 4, 2, 32), np.int8)) for _ in range(2)]
    scales = [make(np.zeros((6, 4, 2), np.float32)) for _ in range(2)]
    store = girih.KvStore.paged(*caches, k_scale=scales[0], v_scale=scales[1])
    table = make(girih.rope_cos_sin(32, 16))
    codes, q_scales = girih.rope_append(
        store, make(q), make(k), make(v), table, q_quantization=girih.Quantization("i8", "token"), **BATCH
    )
    new_q, new_k = (to_numpy(a) for a in girih.rope(make(q), make(k), table, positions=make(POSITIONS)))
    np.testing.assert_allclose(to_numpy(codes) * to_numpy(q_scales)[..., None], new_q, atol=0.02)
    for cache, scale, wanted in ((caches[0], scales[0], new_k), (caches[1], scales[1], v)):
        expected, expected_scales = girih.quantize(np.ascontiguousarray(wanted), "i8", "token")
        np.testing.assert_array_equal(stored(cache), expected)
        np.testing.assert_array_equal(stored(scale), expected_scales)


def test_mla(make: Make) -> None:
    k_nope, k_rope = normal(5, 1, 32), normal(5, 1, 8)
    q_nope, q_rope = normal(5, 4, 32), normal(5, 4, 8)
    nope_cache, rope_cache = make(np.zeros((6, 4, 1, 32), np.float32)), make(np.zeros((6, 4, 1, 8), np.float32))
    store = girih.KvStore.paged(nope_cache, k_rope=rope_cache)
    table = make(girih.rope_cos_sin(8, 16))
    out_rope, out_nope = girih.rope_append(
        store, make(q_rope), make(k_rope), None, table, k_nope=make(k_nope), q_nope=make(q_nope), **BATCH
    )
    new_q, new_k = girih.rope(make(q_rope), make(k_rope), table, positions=make(POSITIONS))
    np.testing.assert_array_equal(to_numpy(out_rope), to_numpy(new_q))
    np.testing.assert_array_equal(to_numpy(out_nope), q_nope)
    np.testing.assert_array_equal(stored(nope_cache), k_nope)
    np.testing.assert_array_equal(stored(rope_cache), to_numpy(new_k))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kv_len": [6, 4, 2]}, "kv_len"),
        ({"kv_indices": [3, 0, 5, 6]}, r"kv_indices\[3\]=6"),
        ({"append_indptr": [0, 2, 1, 5]}, "append_indptr"),
        ({"append_indptr": [0, 2, 2, 9], "kv_len": [6, 4, 7]}, "k"),
        ({"kv_indptr": None}, "kv_indptr"),
        ({"cos_sin": np.ones((4, 16), np.float32)}, "cos_sin has positions 0..3"),
        ({"positions": np.array([0, 1, 2, 3, 99])}, r"positions\[4\]=99"),
        ({"v": None}, "v is not given"),
        ({"k": np.ones((5, 3, 16), np.float32)}, "k: has 3 heads of 16 dims; the store has 2 of 16"),
        ({"v": np.ones((5, 2, 12), np.float32)}, "v: has 2 heads of 12 dims"),
        ({"k_nope": np.ones((5, 2, 12), np.float32)}, "k_nope: has 2 heads of 12 dims; the store has 2 of 16"),
        ({"q": np.ones((4, 4, 16), np.float32)}, r"q(_out)?\.shape\[0\]=4"),
        ({"inplace": True}, "q_out: is given with inplace=True"),
    ],
)
def test_bad_arguments_write_nothing(options: dict[str, Any], text: str) -> None:
    caches = [np.full((6, 4, 2, 16), 9, np.float32) for _ in range(2)]
    out = np.full((5, 4, 16), 9, np.float32)
    given: dict[str, Any] = {
        "q": np.ones((5, 4, 16), np.float32),
        "k": np.ones((5, 2, 16), np.float32),
        "v": np.ones((5, 2, 16), np.float32),
        "cos_sin": girih.rope_cos_sin(16, 32),
        "q_out": out,
        **BATCH,
        **options,
    }
    with pytest.raises(ValueError, match=text):
        girih.rope_append(girih.KvStore.paged(*caches), **given)
    assert all((a == 9).all() for a in (*caches, out))


def test_read_only_store() -> None:
    cache = np.zeros((6, 4, 2, 16), np.float32)
    cache.flags.writeable = False
    x = np.ones((5, 2, 16), np.float32)
    with pytest.raises(ValueError, match="store: holds a read-only array"):
        girih.rope_append(girih.KvStore.paged(cache, cache), None, x, x, girih.rope_cos_sin(16, 32), **BATCH)


def test_planned_form_is_of_cuda() -> None:
    spec = girih.AttentionSpec(num_qo_heads=2, num_kv_heads=2, head_dim_qk=16, q_dtype="f32")
    attention = girih.Attention(spec, girih.AttentionLimits(max_tokens=8, max_requests=4, max_kv_len=64))
    x, cache = np.ones((5, 2, 16), np.float32), np.zeros((6, 4, 2, 16), np.float32)
    store = girih.KvStore.paged(cache, cache.copy())
    with pytest.raises(NotImplementedError, match="rope_append_planned: works on CUDA"):
        girih.rope_append_planned(attention, store, None, x, x, girih.rope_cos_sin(16, 32))
    with pytest.raises(TypeError, match="plan: must be a girih.Attention or a girih.DevicePlan"):
        girih.rope_append_planned(spec, store, None, x, x, girih.rope_cos_sin(16, 32))  # type: ignore[arg-type]
