"""quantize, dequantize and packed bits: every kind of scale, against the rules in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Make, to_numpy

import girih

RNG = np.random.default_rng(14)
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "i8": 127.0}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)


def values_of(dtype: str) -> np.ndarray:
    """All finite values of codes 0 to 255."""
    codes = np.arange(256)
    if dtype == "i8":
        return codes.astype(np.int8).astype(np.float64)
    exponent_bits, bias = (4, 7) if dtype == "e4m3" else (5, 15)
    mantissa_bits = 7 - exponent_bits
    exponent, mantissa = (codes >> mantissa_bits) & (2**exponent_bits - 1), codes & (2**mantissa_bits - 1)
    magnitude = np.where(
        exponent == 0,
        mantissa * 2.0 ** (1 - bias - mantissa_bits),
        (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias),
    )
    bad = (codes & 127) == 127 if dtype == "e4m3" else exponent == 31
    return np.where(bad, np.nan, np.where(codes >= 128, -magnitude, magnitude))


def bytes_of(codes: Any) -> np.ndarray:
    if isinstance(codes, np.ndarray):
        return codes.view(np.uint8)
    import torch

    return codes.view(torch.uint8).cpu().numpy()


def is_nearest(code_values: np.ndarray, wanted: np.ndarray, table: np.ndarray) -> None:
    """Every code is as near to what is wanted as any other could be, but for the rounding of the quotient itself."""
    table = table[np.isfinite(table)]
    best = np.abs(wanted[..., None] - table).min(-1)
    assert (np.abs(code_values - wanted) <= best + np.abs(wanted) * 2**-22).all()


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2", "i8"])
@pytest.mark.parametrize("scale", ["token", "block", "tile", "tensor"])
def test_float_scales(make: Make, dtype: str, scale: str) -> None:
    x = RNG.standard_normal((130, 200)).astype(np.float32) * np.exp(RNG.standard_normal((130, 1))).astype(np.float32)
    if scale == "tensor":
        given = np.array([0.05], np.float32)
        codes = girih.quantize(make(x), dtype, "tensor", scales=make(given))
        scales, spread = make(given), np.full(x.shape, 0.05, np.float32)
        expected = given
    else:
        codes, scales = girih.quantize(make(x), dtype, scale)
        rows, columns = {"token": (1, 200), "block": (1, 128), "tile": (128, 128)}[scale]
        padded = np.zeros((-(-130 // rows) * rows, -(-200 // columns) * columns), np.float32)
        padded[:130, :200] = np.abs(x)
        largest = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns).max((1, 3))
        expected = largest.astype(np.float64) / LARGEST[dtype]
        if scale == "token":
            expected = expected[:, 0]
        grid = to_numpy(scales).reshape(largest.shape)
        spread = np.repeat(np.repeat(grid, rows, 0), columns, 1)[:130, :200]
    np.testing.assert_allclose(to_numpy(scales), expected, rtol=2**-22)
    table = values_of(dtype)
    code_values = table[bytes_of(codes)]
    is_nearest(
        code_values[:40], np.clip(x[:40] / spread[:40].astype(np.float64), -LARGEST[dtype], LARGEST[dtype]), table
    )
    back = girih.dequantize(codes, scales, scale, codes=dtype)
    np.testing.assert_array_equal(to_numpy(back), (code_values * spread).astype(np.float32))


@pytest.mark.parametrize("heads", [False, True])
def test_heads_and_strides(make: Make, heads: bool) -> None:
    x = RNG.standard_normal((3, 4, 40)).astype(np.float32)
    view = make(x)[:, ::2, 4:36] if heads else make(x)[:, 1, ::2]
    codes, scales = girih.quantize(view, "i8", "token")
    dense = x[:, ::2, 4:36] if heads else x[:, 1, ::2]
    assert codes.shape == dense.shape and scales.shape == dense.shape[:-1]
    np.testing.assert_allclose(
        to_numpy(codes) * to_numpy(scales)[..., None], dense, atol=float(to_numpy(scales).max()) * 0.51
    )


@pytest.mark.parametrize("dtype", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("dim", [64, 50, 33])
def test_fp4(make: Make, dtype: str, dim: int) -> None:
    x = RNG.standard_normal((5, dim)).astype(np.float32)
    global_scale = 0.25 if dtype == "nvfp4" else 1.0
    codes, scales = girih.quantize(make(x), dtype, "block", global_scale=global_scale)
    block = 16 if dtype == "nvfp4" else 32
    blocks = -(-dim // block)
    assert codes.shape == (5, -(-dim // 2)) and scales.shape == (5, blocks)
    raw = bytes_of(scales)
    factors = values_of("e4m3")[raw] if dtype == "nvfp4" else 2.0 ** (raw.astype(np.float64) - 127)
    padded = np.zeros((5, blocks * block), np.float32)
    padded[:, :dim] = np.abs(x)
    largest = padded.reshape(5, blocks, block).max(-1).astype(np.float64)
    if dtype == "nvfp4":
        is_nearest(factors, np.clip(largest / 6 / global_scale, 0, 448), values_of("e4m3"))
    else:
        np.testing.assert_array_equal(factors, 2.0 ** (np.floor(np.log2(largest)) - 2))
    packed = to_numpy(codes)
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(5, -1)
    if dim % 2 == 1:
        assert (nibbles[:, dim] == 0).all()
    nibbles = nibbles[:, :dim]
    code_values = np.where(nibbles >= 8, -1.0, 1.0) * E2M1[nibbles & 7]
    spread = np.repeat(factors * global_scale, block, 1)[:, :dim]
    is_nearest(code_values, np.clip(x / spread, -6, 6), np.concatenate([E2M1, -E2M1]))
    back = girih.dequantize(codes, scales, "block", codes=dtype, global_scale=global_scale, dim=dim)
    np.testing.assert_allclose(to_numpy(back), code_values * spread, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_mx(make: Make, dtype: str) -> None:
    x = RNG.standard_normal((4, 96)).astype(np.float32)
    codes, scales = girih.quantize(make(x), dtype, "mx")
    factors = 2.0 ** (bytes_of(scales).astype(np.float64) - 127)
    largest = np.abs(x).reshape(4, 3, 32).max(-1).astype(np.float64)
    np.testing.assert_array_equal(factors, 2.0 ** (np.floor(np.log2(largest)) - (8 if dtype == "e4m3" else 15)))
    spread = np.repeat(factors, 32, 1)
    is_nearest(
        values_of(dtype)[bytes_of(codes)], np.clip(x / spread, -LARGEST[dtype], LARGEST[dtype]), values_of(dtype)
    )
    back = girih.dequantize(codes, scales, "mx", codes=dtype, dtype="f16")
    np.testing.assert_allclose(to_numpy(back), values_of(dtype)[bytes_of(codes)] * spread, rtol=2**-11, atol=2**-25)


def test_swizzled_scales(make: Make) -> None:
    x = RNG.standard_normal((130, 96)).astype(np.float32)
    codes, linear = girih.quantize(make(x), "nvfp4", "block")
    same, swizzled = girih.quantize(make(x), "nvfp4", "block", swizzled=True)
    np.testing.assert_array_equal(to_numpy(codes), to_numpy(same))
    assert swizzled.shape == (256, 8)
    row, column = np.meshgrid(np.arange(130), np.arange(6), indexing="ij")
    place = (row // 128 * 2 + column // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
    flat = bytes_of(swizzled).reshape(-1)
    np.testing.assert_array_equal(flat[place], bytes_of(linear))
    rest = np.ones(flat.size, bool)
    rest[place] = False
    assert (flat[rest] == 0).all()
    back = girih.dequantize(same, swizzled, "block", codes="nvfp4", swizzled=True)
    np.testing.assert_array_equal(to_numpy(back), to_numpy(girih.dequantize(codes, linear, "block", codes="nvfp4")))


def test_special_values(make: Make) -> None:
    x = np.array([[np.inf, -np.inf, np.nan, 1.0, -2.0, 0.0]], np.float32)
    codes, scales = girih.quantize(make(x), "e4m3", "token")
    values = values_of("e4m3")[bytes_of(codes)][0]
    np.testing.assert_allclose(to_numpy(scales), [2 / 448], rtol=1e-6)
    np.testing.assert_array_equal(values, [448, -448, np.nan, 224, -448, 0])
    zero_codes, zero_scales = girih.quantize(make(np.zeros((2, 8), np.float32)), "i8", "token")
    assert (to_numpy(zero_codes) == 0).all() and (to_numpy(zero_scales) == 1).all()


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2"), ("i8", "int8")])
def test_torch_types(dtype: str, torch_dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    kind = getattr(torch, torch_dtype)
    for given in (dtype, kind, torch_dtype):
        codes, scales = girih.quantize(x, given, "token")
        assert codes.dtype == kind and scales.dtype == torch.float32
    back = girih.dequantize(codes, scales, dtype=torch.bfloat16)
    assert back.dtype == torch.bfloat16
    torch.testing.assert_close(back, (codes.float() * scales[:, None]).to(torch.bfloat16))
    mx = girih.quantize(x, "mxfp4", "block")[1]
    assert mx.dtype == getattr(torch, "float8_e8m0fnu", torch.uint8)


def test_numpy_codes_in_bytes() -> None:
    x = RNG.standard_normal((3, 64)).astype(np.float32)
    codes, scales = girih.quantize(x, "e4m3", "token")
    out, out_scales = np.zeros((3, 64), np.uint8), np.zeros(3, np.float32)
    result = girih.quantize(x, "e4m3", "token", out=out, scales=out_scales)
    assert result[0] is out and result[1] is out_scales
    np.testing.assert_array_equal(out, codes.view(np.uint8))
    back = girih.dequantize(codes, scales, codes="e4m3")
    np.testing.assert_array_equal(girih.dequantize(out, out_scales, codes="e4m3"), back)
    with pytest.raises(ValueError, match="codes: must say what x holds"):
        girih.dequantize(out, out_scales)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dtype": "f16"}, "scale=token with out of f16"),
        ({"dtype": "nvfp4"}, "scale=token with out of nvfp4"),
        ({"scale": "line"}, 'scale: "line" is unknown'),
        ({"scale": "tensor"}, "scales"),
        ({"scale": "tensor", "scales": np.array([-1.0], np.float32)}, "scales"),
        ({"scales": np.ones(3, np.float32)}, r"scales\.shape\[0\]=3; must be 2"),
        ({"scales": np.ones(2, np.float16)}, "scales is f16"),
        ({"global_scale": 0.0}, "global_scale=0"),
        ({"swizzled": True}, "swizzled"),
    ],
)
def test_bad_arguments_write_nothing(options: dict[str, Any], text: str) -> None:
    out = np.full((2, 64), 3, np.uint8)
    given = {"dtype": "e4m3", "out": out, **options}
    if options.get("dtype") == "f16":
        given["out"] = None
    if options.get("dtype") == "nvfp4":
        given["out"] = out[:, :32]
    with pytest.raises(ValueError, match=text) as caught:
        girih.quantize(np.ones((2, 64), np.float32), **given)
    assert "quantization." not in str(caught.value)
    assert (out == 3).all()


def test_bad_codes() -> None:
    with pytest.raises(ValueError, match="x: is f32; 4-bit codes are uint8"):
        girih.dequantize(np.ones((2, 8), np.float32), np.ones(2, np.float32), "block", codes="nvfp4")
    with pytest.raises(ValueError, match="dim: is 9, but rows of x hold 16"):
        girih.dequantize(np.ones((2, 8), np.uint8), np.ones((2, 1), np.uint8), "block", codes="nvfp4", dim=9)
    with pytest.raises(ValueError, match="codes: is e5m2, but x is i8"):
        girih.dequantize(np.ones((2, 8), np.int8), np.ones(2, np.float32), codes="e5m2")
    with pytest.raises(ValueError, match="dtype: is f32, but out is f16"):
        girih.dequantize(
            np.ones((2, 8), np.int8), np.ones(2, np.float32), dtype="f32", out=np.zeros((2, 8), np.float16)
        )
    with pytest.raises(ValueError, match="out is i32"):
        girih.dequantize(np.ones((2, 8), np.int8), np.ones(2, np.float32), dtype="i32")


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("n", [0, 1, 8, 77])
def test_packbits(make: Make, order: str, n: int) -> None:
    bits = RNG.random(n) < 0.5
    np.testing.assert_array_equal(to_numpy(girih.packbits(make(bits), order=order)), np.packbits(bits, bitorder=order))


@pytest.mark.parametrize("indptr_of", [list, lambda x: np.array(x, np.int32), lambda x: np.array(x, np.int64)])
def test_segment_packbits(make: Make, indptr_of: Any) -> None:
    bits, indptr = RNG.random(40) < 0.5, [0, 3, 3, 20, 40]
    packed, places = girih.segment_packbits(make(bits), indptr_of(indptr))
    assert places == [0, 1, 1, 4, 7]
    pieces = [np.packbits(bits[a:b], bitorder="little") for a, b in zip(indptr, indptr[1:])]
    np.testing.assert_array_equal(to_numpy(packed), np.concatenate(pieces))


def test_bad_bits_write_nothing() -> None:
    out = np.full(4, 3, np.uint8)
    for x, text in [
        (np.ones(8, np.float32), "x is f32"),
        (np.ones((2, 4), bool), "x has rank 2"),
        (np.ones(64, bool), "out.shape"),
    ]:
        with pytest.raises(ValueError, match=text):
            girih.packbits(x, out=out)
    with pytest.raises(ValueError, match='order: "middle" is unknown'):
        girih.packbits(np.ones(8, bool), order="middle", out=out)  # type: ignore[arg-type]
    for indptr, text in [
        ([0, 5, 3], r"indptr\[2\]=3 < indptr\[1\]=5"),
        ([1, 2], r"indptr\[0\]=1"),
        ([], "indptr is empty"),
    ]:
        with pytest.raises(ValueError, match=text):
            girih.segment_packbits(np.ones(8, bool), indptr, out=out)
    with pytest.raises(ValueError, match="indptr: is f32; must be int32 or int64"):
        girih.segment_packbits(np.ones(8, bool), np.ones(2, np.float32), out=out)
    with pytest.raises(TypeError, match=r"indptr\[1\] is no integer"):
        girih.segment_packbits(np.ones(8, bool), [0, 1.5], out=out)  # type: ignore[list-item]
    assert (out == 3).all()
