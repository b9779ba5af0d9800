"""rms_norm and layer_norm against their formulas in float64; arguments of every kind; refusals that write nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Make, to_numpy

import girih

RNG = np.random.default_rng(11)


def rms(x: np.ndarray, weight: np.ndarray | float = 1.0, eps: float = 1e-6, offset: float = 0.0) -> np.ndarray:
    h = x.astype(np.float64)
    return h / np.sqrt((h**2).mean(-1, keepdims=True) + eps) * (np.asarray(weight, np.float64) + offset)


def layer(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    h = x.astype(np.float64)
    return (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + eps) * weight + bias


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(1, 8), (5, 33), (3, 4, 64), (0, 16)])
def test_rms_norm(make: Make, shape: tuple[int, ...]) -> None:
    x, weight = normal(*shape), normal(shape[-1])
    out = girih.rms_norm(make(x), make(weight), eps=1e-5, weight_offset=1.0)
    assert type(out) is type(make(x)) and out.shape == shape
    np.testing.assert_allclose(to_numpy(out), rms(x, weight, 1e-5, 1.0), rtol=1e-5, atol=1e-6)


def test_weight_of_every_head(make: Make) -> None:
    x, weight = normal(3, 4, 16), normal(4, 16)
    np.testing.assert_allclose(to_numpy(girih.rms_norm(make(x), make(weight))), rms(x, weight), rtol=1e-5, atol=1e-6)


def test_without_weight(make: Make) -> None:
    x = normal(2, 7)
    np.testing.assert_allclose(to_numpy(girih.rms_norm(make(x))), rms(x), rtol=1e-5, atol=1e-6)


def test_layer_norm_of_a_large_mean(make: Make) -> None:
    x, weight, bias = normal(4, 50) + 1000, normal(50), normal(50)
    out = girih.layer_norm(make(x), make(weight), make(bias), eps=1e-5)
    np.testing.assert_allclose(to_numpy(out), layer(x, weight, bias, 1e-5), rtol=1e-3, atol=1e-3)


def test_residual_in_place(make: Make) -> None:
    x, residual, weight = normal(3, 20), normal(3, 20), normal(20)
    total = x + residual
    x_array, residual_array = make(x.copy()), make(residual.copy())
    out = girih.rms_norm(x_array, make(weight), residual=residual_array, residual_out=residual_array, out=x_array)
    assert out is x_array
    np.testing.assert_array_equal(to_numpy(residual_array), total)
    np.testing.assert_allclose(to_numpy(out), rms(total, weight), rtol=1e-5, atol=1e-6)


def test_strided_rows(make: Make) -> None:
    whole, weight = normal(6, 40), normal(10)
    rows = make(whole)[::2, 5:25:2]
    out = girih.rms_norm(rows, make(weight))
    np.testing.assert_allclose(to_numpy(out), rms(whole[::2, 5:25:2], weight), rtol=1e-5, atol=1e-6)
    target = make(np.full((6, 40), 7, np.float32))
    girih.rms_norm(rows, make(weight), out=target[::2, 5:25:2])
    expected = np.full((6, 40), 7, np.float32)
    expected[::2, 5:25:2] = to_numpy(out)
    np.testing.assert_array_equal(to_numpy(target), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_output_dtype(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 16, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    expected = torch.from_numpy(rms(x.float().numpy())).to(getattr(torch, dtype))
    for given in (dtype, getattr(torch, dtype)):
        out = girih.rms_norm(x, dtype=given)
        assert out.dtype == expected.dtype
        torch.testing.assert_close(out, expected, rtol=2**-7 if dtype == "bfloat16" else 1e-3, atol=1e-6)
    assert girih.rms_norm(x).dtype == torch.bfloat16


def test_numpy_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = normal(2, 16).astype(ml_dtypes.bfloat16)
    out = girih.rms_norm(x)
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(out.astype(np.float64), rms(x), rtol=2**-7)


def test_quantised_by_token(make: Make) -> None:
    pytest.importorskip("ml_dtypes", reason="NumPy has codes as bytes without it")
    x, weight = normal(4, 64), normal(64)
    codes, scales = girih.rms_norm(make(x), make(weight), quantization=girih.Quantization("e4m3", "token"))
    expected = rms(x, weight)
    np.testing.assert_allclose(to_numpy(scales), np.abs(expected).max(-1) / 448, rtol=1e-5)
    error = np.abs(to_numpy(codes) * to_numpy(scales)[:, None] - expected)
    assert (error <= np.abs(expected) * 2**-4 + to_numpy(scales)[:, None] * 2**-10 * 1.01).all()


def test_quantised_by_a_given_scale(make: Make) -> None:
    x = normal(3, 32)
    scale = make(np.array([0.02], np.float32))
    out = girih.rms_norm(make(x), quantization=girih.Quantization("i8", "tensor", scales=scale))
    expected = np.clip(np.rint(rms(x) / np.float64(np.float32(0.02))), -127, 127)
    assert (np.abs(to_numpy(out).astype(int) - expected) <= 1).all()


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"weight": np.ones(9, np.float32)}, ValueError, r"weight\.shape\[0\]=9; must be 8"),
    ({"weight": np.ones(8, np.float16)}, ValueError, "weight is f16"),
    ({"weight": np.ones(8, np.float64)}, ValueError, "weight: has dtype float64"),
    ({"weight": [1.0] * 8}, TypeError, "weight: .*list.* is no array"),
    ({"residual": np.ones((3, 8), np.float32)}, ValueError, r"residual\.shape\[0\]=3"),
    ({"residual_out": np.ones((2, 8), np.float32)}, ValueError, "residual_out is given without residual"),
    ({"eps": float("nan")}, ValueError, "eps"),
    ({"weight_offset": 1.0}, ValueError, "weight_offset=1 without weight"),
    ({"dtype": "float12"}, ValueError, "dtype: .*float12"),
    ({"stream": 5}, ValueError, "stream is given"),
    ({"stream": "fast"}, TypeError, "stream"),
]


@pytest.mark.parametrize(("options", "error", "text"), BAD)
def test_bad_arguments_write_nothing(options: dict[str, Any], error: type[Exception], text: str) -> None:
    x, out = np.ones((2, 8), np.float32), np.full((2, 8), 3, np.float32)
    with pytest.raises(error, match=text):
        girih.rms_norm(x, **options) if "dtype" in options else girih.rms_norm(x, out=out, **options)
    assert (out == 3).all()


def test_bad_quantization_writes_nothing() -> None:
    x, out, scales = np.ones((2, 8), np.float32), np.full((2, 8), 3, np.uint8), np.full(5, 3, np.float32)
    with pytest.raises(ValueError, match=r"quantization\.scales\.shape\[0\]=5; must be 2"):
        girih.rms_norm(x, out=out, quantization=girih.Quantization("e4m3", "token", scales=scales))
    with pytest.raises(ValueError, match="quantization.scale=token"):
        girih.rms_norm(x, out=np.empty((2, 4), np.uint8), quantization=girih.Quantization("nvfp4", "token"))
    with pytest.raises(ValueError, match="dtype: is given beside a quantisation"):
        girih.rms_norm(x, dtype="f16", quantization=girih.Quantization("e4m3", "token"))
    with pytest.raises(ValueError, match='scale: "row" is unknown; known are none, tensor'):
        girih.Quantization("e4m3", "row")
    with pytest.raises(TypeError):
        girih.rms_norm(x, quantization="e4m3")  # type: ignore[arg-type]
    assert (out == 3).all() and (scales == 3).all()


def test_bad_arrays() -> None:
    out = np.full((2, 8), 3, np.float32)
    with pytest.raises(ValueError, match="x has rank 1"):
        girih.rms_norm(np.ones(8, np.float32), out=out)
    with pytest.raises(ValueError, match="x is i32"):
        girih.rms_norm(np.ones((2, 8), np.int32), out=out)
    with pytest.raises(TypeError, match="x: "):
        girih.rms_norm("x", out=out)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"out\.shape\[1\]=8; must be 9"):
        girih.rms_norm(np.ones((2, 9), np.float32), out=out)
    with pytest.raises(ValueError, match="dtype: is f16, but out is f32; leave one out"):
        girih.rms_norm(np.ones((2, 8), np.float32), dtype="f16", out=out)
    with pytest.raises(ValueError, match="out shares memory with x"):
        buffer = np.ones((2, 12), np.float32)
        girih.rms_norm(buffer[:, :8], out=buffer[:, 4:])
    with pytest.raises(ValueError, match="out: is a read-only array"):
        frozen = np.ones((2, 8), np.float32)
        frozen.flags.writeable = False
        girih.rms_norm(np.ones((2, 8), np.float32), out=frozen)
    assert (out == 3).all()


def test_device_that_is_not_there() -> None:
    class OnGpu:
        __cuda_array_interface__ = {"data": (4096, False), "typestr": "<f4", "shape": (2, 8), "version": 3}

    with pytest.raises(ValueError, match=r"x\.device=cuda:0; the context is for cpu"):
        girih.rms_norm(OnGpu(), out=OnGpu(), context=girih.default_context())


def test_context_is_used() -> None:
    x = normal(64, 128)
    one = girih.rms_norm(x, context=girih.Context(num_workers=1, target="scalar"))
    np.testing.assert_allclose(one, rms(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError):
        girih.rms_norm(x, context="cpu")  # type: ignore[arg-type]
