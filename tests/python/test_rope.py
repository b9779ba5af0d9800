"""Tables of angles and rope() against formulas in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from conftest import Make, to_numpy

import girih

RNG = np.random.default_rng(13)


def frequencies(dim: int, theta: float = 10000.0) -> np.ndarray:
    return theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)


def rotated(
    x: np.ndarray, positions: np.ndarray, dim: int, begin: int = 0, interleaved: bool = False, theta: float = 1e4
) -> np.ndarray:
    out = x.astype(np.float64)
    angles = positions[:, None, None] * frequencies(dim, theta)
    cos, sin = np.cos(angles), np.sin(angles)
    part = out[..., begin : begin + dim].copy()
    first, second = (
        (part[..., 0::2], part[..., 1::2]) if interleaved else (part[..., : dim // 2], part[..., dim // 2 :])
    )
    turned = first * cos - second * sin, second * cos + first * sin
    if interleaved:
        out[..., begin : begin + dim : 2], out[..., begin + 1 : begin + dim : 2] = turned
    else:
        out[..., begin : begin + dim] = np.concatenate(turned, -1)
    return out


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def angles_of(table: np.ndarray, position: int) -> np.ndarray:
    half = table.shape[1] // 2
    return np.arctan2(table[position, half:].astype(np.float64), table[position, :half].astype(np.float64))


def test_table() -> None:
    table = girih.rope_cos_sin(64, 100, theta=5e5)
    assert table.shape == (100, 64) and table.dtype == np.float32
    angles = np.arange(100)[:, None] * frequencies(64, 5e5)
    np.testing.assert_array_equal(table, np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32))
    np.testing.assert_allclose(girih.rope_frequencies(64, theta=5e5), frequencies(64, 5e5), rtol=1e-14)


def test_table_as_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    table = girih.rope_cos_sin(16, 9, like=torch.empty(0))
    assert isinstance(table, torch.Tensor) and table.dtype == torch.float32
    np.testing.assert_array_equal(table.numpy(), girih.rope_cos_sin(16, 9, like=np.zeros(1)))
    with pytest.raises(TypeError, match="like: .*list.* is neither"):
        girih.rope_cos_sin(16, 9, like=[])  # type: ignore[arg-type]


def test_scalings() -> None:
    base = frequencies(128, 5e5)
    np.testing.assert_allclose(girih.rope_frequencies(128, theta=5e5, linear=4.0), base / 4)
    np.testing.assert_allclose(
        girih.rope_frequencies(128, theta=1e4, ntk=3.0), frequencies(128, 1e4 * 3 ** (128 / 126))
    )

    factor, low, high, old = 8.0, 1.0, 4.0, 8192.0
    llama = girih.rope_frequencies(
        128,
        theta=5e5,
        llama31=girih.Rope.Llama31(factor=factor, low_freq_factor=low, high_freq_factor=high, old_context_len=old),
    )
    wavelength = 2 * math.pi / base
    smooth = (old / wavelength - low) / (high - low)
    blended = (1 - smooth) * base / factor + smooth * base
    expected = np.where(wavelength < old / high, base, np.where(wavelength > old / low, base / factor, blended))
    np.testing.assert_allclose(llama, expected, rtol=1e-12)


@pytest.mark.parametrize("whole_pairs", [True, False])
def test_yarn(whole_pairs: bool) -> None:
    dim, theta, factor, context = 64, 1e4, 16.0, 4096.0
    yarn = girih.Yarn(factor, context, whole_pairs=whole_pairs)

    def pair(turns: float) -> float:
        return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(32.0), pair(1.0)
    if whole_pairs:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    keep = 1 - np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    base = frequencies(dim, theta)
    np.testing.assert_allclose(
        girih.rope_frequencies(dim, theta=theta, yarn=yarn), base / factor * (1 - keep) + base * keep, rtol=1e-12
    )
    magnitude = np.hypot(*np.split(girih.rope_cos_sin(dim, 3, theta=theta, yarn=yarn).astype(np.float64), 2, axis=1))
    np.testing.assert_allclose(magnitude, 0.1 * math.log(factor) + 1, rtol=1e-6)
    plain = girih.rope_cos_sin(dim, 3, theta=theta, yarn=yarn._replace(attention_factor=1.0))
    np.testing.assert_allclose(np.hypot(*np.split(plain.astype(np.float64), 2, axis=1)), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rotary_dim": 7}, "rotary_dim=7"),
        ({"theta": -1.0}, "theta=-1"),
        ({"linear": 0.0}, "linear=0"),
        ({"linear": 2.0, "ntk": 2.0}, "ntk"),
        ({"num_positions": -1}, "num_positions=-1"),
    ],
)
def test_bad_tables(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        girih.rope_cos_sin(**{"rotary_dim": 8, "num_positions": 4, **options})


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "begin"), [(64, 0), (32, 0), (16, 48)])
def test_rope(make: Make, interleaved: bool, dim: int, begin: int) -> None:
    q, k = normal(6, 4, 64), normal(6, 2, 64)
    positions = RNG.integers(0, 50, 6)
    table = make(girih.rope_cos_sin(dim, 50))
    new_q, new_k = girih.rope(
        make(q), make(k), table, positions=make(positions), rotary_begin=begin, interleaved=interleaved
    )
    np.testing.assert_allclose(to_numpy(new_q), rotated(q, positions, dim, begin, interleaved), atol=2e-6)
    np.testing.assert_allclose(to_numpy(new_k), rotated(k, positions, dim, begin, interleaved), atol=2e-6)


def test_by_requests_and_in_place(make: Make) -> None:
    q = normal(5, 2, 8)
    array = make(q.copy())
    indptr, offsets = np.array([0, 2, 2, 5], np.int32), np.array([7, 0, 3], np.int32)
    out, nothing = girih.rope(
        array, None, make(girih.rope_cos_sin(8, 16)), indptr=make(indptr), offsets=make(offsets), inplace=True
    )
    assert out is array and nothing is None
    np.testing.assert_allclose(to_numpy(array), rotated(q, np.array([7, 8, 3, 4, 5]), 8), atol=2e-6)


def test_keys_alone(make: Make) -> None:
    k = normal(3, 2, 8)
    nothing, out = girih.rope(None, make(k), make(girih.rope_cos_sin(8, 4)), positions=make(np.arange(3)))
    assert nothing is None
    np.testing.assert_allclose(to_numpy(out), rotated(k, np.arange(3), 8), atol=2e-6)


def test_norm_of_heads(make: Make) -> None:
    q, weight = normal(3, 2, 16), normal(16)
    out, _ = girih.rope(
        make(q), None, make(girih.rope_cos_sin(16, 4)), positions=make(np.arange(3)), q_weight=make(weight), eps=1e-5
    )
    normed = q / np.sqrt((q.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(to_numpy(out), rotated(normed, np.arange(3), 16), atol=5e-6)


def test_quantised_queries(make: Make) -> None:
    q, k = normal(4, 2, 32), normal(4, 1, 32)
    (codes, scales), new_k = girih.rope(
        make(q),
        make(k),
        make(girih.rope_cos_sin(32, 8)),
        positions=make(np.arange(4)),
        q_quantization=girih.Quantization("i8", "token"),
    )
    expected = rotated(q, np.arange(4), 32)
    assert scales.shape == (4, 2)
    assert (
        np.abs(to_numpy(codes) * to_numpy(scales)[..., None] - expected) <= to_numpy(scales)[..., None] * 0.51
    ).all()
    np.testing.assert_allclose(to_numpy(new_k), rotated(k, np.arange(4), 32), atol=2e-6)


def test_strided_heads(make: Make) -> None:
    fused = normal(5, 6, 16)  # q, k and v heads of a fused projection
    array = make(fused.copy())
    positions = np.array([3, 1, 4, 1, 5])
    girih.rope(array[:, :3], array[:, 3:4], make(girih.rope_cos_sin(16, 8)), positions=make(positions), inplace=True)
    expected = fused.astype(np.float64)
    expected[:, :4] = rotated(fused[:, :4], positions, 16)
    np.testing.assert_allclose(to_numpy(array), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"positions": None}, "neither positions nor indptr"),
        ({"positions": np.array([0, 1, 9])}, r"positions\[2\]=9"),
        ({"positions": np.zeros(3, np.float32)}, "positions is f32"),
        ({"positions": np.zeros(2, np.int64)}, r"positions\.shape\[0\]=2"),
        ({"indptr": np.array([0, 3])}, "positions and indptr are both given"),
        ({"cos_sin": np.ones((4, 8), np.float16)}, "cos_sin is f16"),
        ({"cos_sin": np.ones((4, 32), np.float32)}, r"cos_sin\.shape\[1\]=32"),
        ({"rotary_begin": 1}, "rotary_begin=1"),
        ({"k": np.ones((2, 1, 16), np.float32)}, r"k\.shape\[0\]=2"),
        ({"q_weight": np.ones(3, np.float32)}, r"q_weight\.shape\[0\]=3"),
        ({"inplace": True}, "q_out: is given with inplace=True"),
    ],
)
def test_bad_arguments_write_nothing(options: dict[str, Any], text: str) -> None:
    q, out = np.ones((3, 2, 16), np.float32), np.full((3, 2, 16), 3, np.float32)
    given = {"k": None, "cos_sin": np.ones((4, 16), np.float32), "positions": np.arange(3), "q_out": out, **options}
    with pytest.raises(ValueError, match=text):
        girih.rope(q, **given)
    assert (out == 3).all()
    with pytest.raises(ValueError, match="neither q nor k is given"):
        girih.rope(None, None, given["cos_sin"])
