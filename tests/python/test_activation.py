"""activate() and its short names against their formulas in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import Make, to_numpy

import girih

RNG = np.random.default_rng(12)
ERF = np.vectorize(math.erf)


def formula(name: str, gate: np.ndarray, up: np.ndarray, alpha: float = 1.702, limit: float = 7.0) -> np.ndarray:
    gate, up = gate.astype(np.float64), up.astype(np.float64)
    if name == "silu":
        return gate / (1 + np.exp(-gate)) * up
    if name == "gelu":
        return gate * (1 + ERF(gate / math.sqrt(2))) / 2 * up
    if name == "gelu_tanh":
        return gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2 * up
    if name == "swigluoai":
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return gate / (1 + np.exp(-alpha * gate)) * (up + 1)
    return gate * up


NAMES = ["silu", "gelu", "gelu_tanh", "swigluoai", "multiply"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["halves", "interleaved", "two"])
def test_formula(make: Make, name: str, form: str) -> None:
    gate, up = (RNG.standard_normal((5, 33)).astype(np.float32) * 4 for _ in range(2))
    expected = formula(name, gate, up)
    if form == "halves":
        out = girih.activate(make(np.concatenate([gate, up], 1)), name)
    elif form == "interleaved":
        out = girih.activate(make(np.stack([gate, up], -1).reshape(5, 66)), name, interleaved=True)
    else:
        out = girih.activate(make(gate), name, up=make(up))
    assert out.shape == (5, 33)
    np.testing.assert_allclose(to_numpy(out), expected, rtol=2e-5, atol=1e-5)


def test_short_names(make: Make) -> None:
    x = make(RNG.standard_normal((3, 24)).astype(np.float32))
    pairs = [
        (girih.silu_and_mul, girih.activate(x, "silu")),
        (girih.gelu_and_mul, girih.activate(x, "gelu")),
        (girih.gelu_tanh_and_mul, girih.activate(x, "gelu_tanh")),
        (girih.swigluoai_and_mul, girih.activate(x, "swigluoai", interleaved=True)),
    ]
    for function, expected in pairs:
        np.testing.assert_array_equal(to_numpy(function(x)), to_numpy(expected))


def test_swigluoai_parameters(make: Make) -> None:
    x = RNG.standard_normal((4, 20)).astype(np.float32) * 3
    out = girih.activate(make(x), "swigluoai", alpha=1.0, limit=2.5)
    np.testing.assert_allclose(
        to_numpy(out), formula("swigluoai", x[:, :10], x[:, 10:], 1.0, 2.5), rtol=2e-5, atol=1e-6
    )


def test_in_place_and_strides(make: Make) -> None:
    x = RNG.standard_normal((4, 20)).astype(np.float32)
    array = make(x.copy())
    gates = array[:, :10]
    out = girih.silu_and_mul(array, out=gates)
    assert out is gates
    np.testing.assert_allclose(to_numpy(array)[:, :10], formula("silu", x[:, :10], x[:, 10:]), rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(to_numpy(array)[:, 10:], x[:, 10:])


def test_quantised(make: Make) -> None:
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    codes, scales = girih.silu_and_mul(make(x), quantization=girih.Quantization("i8", "token"))
    expected = formula("silu", x[:, :32], x[:, 32:])
    np.testing.assert_allclose(to_numpy(scales), np.abs(expected).max(-1) / 127, rtol=1e-5)
    assert (np.abs(to_numpy(codes) * to_numpy(scales)[:, None] - expected) <= to_numpy(scales)[:, None] * 0.51).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"activation": "relu"}, 'activation: "relu" is unknown; known are silu'),
        ({"activation": "swigluoai", "limit": 0.0}, "limit=0"),
        ({"activation": "swigluoai", "alpha": float("inf")}, "alpha=inf"),
        ({"up": np.ones((2, 8), np.float16)}, "up is f16"),
        ({"up": np.ones((2, 7), np.float32)}, r"up\.shape\[1\]=7"),
        ({"up": np.ones((2, 8), np.float32), "interleaved": True}, "up is given and interleaved is set"),
    ],
)
def test_bad_arguments_write_nothing(options: dict, text: str) -> None:
    x = np.ones((2, 8), np.float32)
    out = np.full((2, 8 if "up" in options else 4), 3, np.float32)
    with pytest.raises(ValueError, match=text):
        girih.activate(x, out=out, **options)
    assert (out == 3).all()


def test_odd_extent() -> None:
    with pytest.raises(ValueError, match=r"x\.shape\[1\]=7; must be even"):
        girih.silu_and_mul(np.ones((2, 7), np.float32))
