"""Merging attention states against float64: two, many, ragged; natural and base-2; empty states; outputs given; refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference import close, merge, to_float64

import girih

ROWS, HEADS, DIM = 5, 3, 20


@pytest.fixture(params=["numpy", "torch"])
def lib(request: pytest.FixtureRequest) -> Any:
    if request.param == "numpy":
        return lambda array: array
    torch = pytest.importorskip("torch")
    return torch.from_numpy


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def states(rng: np.random.Generator, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and log-sum-exps; every fifth state is empty."""
    v, s = rng.standard_normal((*shape, HEADS, DIM), np.float32), 5 * rng.standard_normal((*shape, HEADS), np.float32)
    empty = rng.random(s.shape) < 0.2
    v[empty], s[empty] = 0, -np.inf
    return v, s


@pytest.mark.parametrize("base2", [False, True])
def test_two_states(lib: Any, rng: np.random.Generator, base2: bool) -> None:
    (va, sa), (vb, sb) = states(rng, ROWS), states(rng, ROWS)
    sa[0], sb[0], va[0], vb[0] = -np.inf, -np.inf, 0, 0
    v, s = girih.merge_state(lib(va), lib(sa), lib(vb), lib(sb), base2=base2)
    expected_v, expected_s = merge(np.stack([va, vb]), np.stack([sa, sb]), base2)
    close(v, expected_v)
    close(s, expected_s)
    assert (to_float64(v)[0] == 0).all() and (to_float64(s)[0] == -np.inf).all()
    # Into the first input.
    result = girih.merge_state(lib(va), lib(sa), lib(vb), lib(sb), base2=base2, v_out=lib(va), s_out=lib(sa))
    close(result[0], expected_v)
    close(va, expected_v)
    close(sa, expected_s)


@pytest.mark.parametrize("num_states", [0, 1, 4])
def test_many_states(lib: Any, rng: np.random.Generator, num_states: int) -> None:
    v, s = states(rng, ROWS, num_states)
    out_v, out_s = girih.merge_states(lib(v), lib(s))
    expected_v, expected_s = merge(v.swapaxes(0, 1), s.swapaxes(0, 1))
    assert tuple(out_v.shape) == (ROWS, HEADS, DIM)
    close(out_v, expected_v)
    close(out_s, expected_s)


def test_ragged_states(lib: Any, rng: np.random.Generator) -> None:
    indptr = np.array([0, 3, 3, 4, 9], np.int32)
    v, s = states(rng, 9)
    for offsets in (lib(indptr), indptr.tolist()):
        out_v, out_s = girih.merge_states_varlen(lib(v), lib(s), offsets)
        for row in range(4):
            expected_v, expected_s = merge(v[indptr[row] : indptr[row + 1]], s[indptr[row] : indptr[row + 1]])
            close(out_v[row], expected_v)
            close(out_s[row], expected_s)


def test_16_bit_states(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    (va, sa), (vb, sb) = states(rng, ROWS), states(rng, ROWS)
    a, b = torch.from_numpy(va).bfloat16(), torch.from_numpy(vb).bfloat16()
    v, s = girih.merge_state(a, torch.from_numpy(sa), b, torch.from_numpy(sb))
    assert v.dtype == torch.bfloat16
    expected_v, expected_s = merge(np.stack([to_float64(a), to_float64(b)]), np.stack([sa, sb]))
    close(v, expected_v, "bfloat16")
    close(s, expected_s)
    out = torch.zeros(ROWS, HEADS, DIM)
    girih.merge_state(a, torch.from_numpy(sa), b, torch.from_numpy(sb), v_out=out)
    close(out, expected_v)


def test_refusals_write_nothing(lib: Any, rng: np.random.Generator) -> None:
    (va, sa), (vb, sb) = states(rng, ROWS), states(rng, ROWS)
    v_out, s_out = np.full((ROWS, HEADS, DIM), 7, np.float32), np.full((ROWS, HEADS), 7, np.float32)
    given = {"v_out": lib(v_out), "s_out": lib(s_out)}
    a = [lib(va), lib(sa), lib(vb), lib(sb)]
    cases: list[tuple[Any, str]] = [
        (lambda: girih.merge_state(a[0], a[1], a[2][:3], a[3], **given), r"v_b.shape\[0\]=3"),
        (lambda: girih.merge_state(a[0], a[1], a[2], a[3][:, :1], **given), r"s_b.shape\[1\]=1"),
        (lambda: girih.merge_state(a[0][0], a[1], a[2], a[3], **given), "v_a: has 2 dimensions"),
        (lambda: girih.merge_state(a[0], a[1], a[2], lib(sb.astype(np.float16)), **given), "s_b is f16"),
        (lambda: girih.merge_states(a[0], a[1], **given), "v: has 3 dimensions"),
        (lambda: girih.merge_states_varlen(a[0], a[1], [0, 3, 2], v_out=given["v_out"][:2]), r"indptr\[2\]=2"),
        (lambda: girih.merge_states_varlen(a[0], a[1], [0, 6]), "indptr ends at 6"),
        (lambda: girih.merge_states_varlen(a[0], a[1], []), "indptr: has no entries"),
        (lambda: girih.merge_states_varlen(a[0], a[1], range(6), v_out=a[0]), "v_out overlaps"),
    ]
    before = va.copy()
    for call, text in cases:
        with pytest.raises(ValueError, match=text):
            call()
    assert (v_out == 7).all() and (s_out == 7).all() and (va == before).all()
    with pytest.raises(TypeError, match="v_b: .* is no array"):
        girih.merge_state(a[0], a[1], 3, a[3])
