"""Norms, activations, rotation and quantisation under FlashInfer's names, against PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import girih
import girih.flashinfer as flashinfer
from torch import Tensor


def rms(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
    h = x.double()
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * w.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 111), (2, 5, 64)])
def test_rmsnorm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    x, w = torch.randn(shape, dtype=dtype), torch.randn(shape[-1], dtype=dtype)
    torch.testing.assert_close(flashinfer.rmsnorm(x, w), rms(x, w).to(dtype))
    torch.testing.assert_close(flashinfer.gemma_rmsnorm(x, w, 1e-3), rms(x, w.double() + 1, 1e-3).to(dtype))
    out = torch.empty_like(x)
    assert flashinfer.rmsnorm(x, w, 1e-6, out) is out
    torch.testing.assert_close(out, rms(x, w).to(dtype))


@pytest.mark.parametrize("gemma", [False, True])
def test_fused_add_rmsnorm_works_in_place(gemma: bool) -> None:
    torch.manual_seed(2)
    x, r, w = torch.randn(4, 96), torch.randn(4, 96), torch.randn(96)
    total = x + r
    expected = rms(total, w + 1 if gemma else w).float()
    function = flashinfer.gemma_fused_add_rmsnorm if gemma else flashinfer.fused_add_rmsnorm
    assert function(x, r, w) is None
    torch.testing.assert_close(r, total, rtol=0, atol=0)
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("scale", [2.0, torch.tensor([0.5])])
def test_quantised_norms_divide_by_the_scale(scale: float | Tensor) -> None:
    torch.manual_seed(3)
    x, r, w = torch.randn(4, 64), torch.randn(4, 64), torch.randn(64)
    b = torch.randn(64)
    out = torch.empty(4, 64, dtype=torch.float8_e4m3fn)
    flashinfer.rmsnorm_quant(out, x, w, scale)
    scale = torch.as_tensor(scale, device=out.device)
    torch.testing.assert_close(out.float() * scale, rms(x, w).float(), rtol=0.07, atol=0.01)
    flashinfer.layernorm_quant(out, x, w, b, scale)
    torch.testing.assert_close(out.float() * scale, torch.layer_norm(x, (64,), w, b, 1e-6), rtol=0.07, atol=0.01)
    total = x + r
    flashinfer.fused_add_rmsnorm_quant(out, x, r, w, scale)
    torch.testing.assert_close(r, total, rtol=0, atol=0)
    torch.testing.assert_close(out.float() * scale, rms(total, w).float(), rtol=0.07, atol=0.01)
    with pytest.raises(NotImplementedError, match="out.dtype"):
        flashinfer.rmsnorm_quant(torch.empty(4, 64), x, w, scale)


def test_fused_add_rmsnorm_fp8_block_quant() -> None:
    torch.manual_seed(4)
    x, r, w = (torch.randn(s, dtype=torch.bfloat16) for s in ((5, 256), (5, 256), (256,)))
    total = x.float() + r.float()
    out, normed = torch.empty(5, 256, dtype=torch.float8_e4m3fn), torch.empty_like(x)
    scale = torch.zeros(2, 8)
    flashinfer.fused_add_rmsnorm_fp8_block_quant(out, scale, normed, x, r, w)
    torch.testing.assert_close(normed, rms(total, w).to(torch.bfloat16))
    blocks = normed.float().view(5, 2, 128)
    torch.testing.assert_close(scale.t()[:5], blocks.abs().amax(-1) / 448)
    assert (scale[:, 5:] == 0).all()
    torch.testing.assert_close(out.float().view(5, 2, 128) * scale.t()[:5, :, None], blocks, rtol=0.07, atol=0.01)


def test_layernorm_and_rmsnorm_silu() -> None:
    torch.manual_seed(5)
    x, w, b = torch.randn(3, 80, dtype=torch.bfloat16), torch.randn(80), torch.randn(80)
    expected = torch.layer_norm(x.float(), (80,), w, b, 1e-6).bfloat16()
    torch.testing.assert_close(flashinfer.layernorm(x, w, b), expected)
    y = flashinfer.fused_rmsnorm_silu(x, w.bfloat16())
    torch.testing.assert_close(y, torch.nn.functional.silu(rms(x, w.bfloat16())).bfloat16())


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
def test_gated_activations(name: str) -> None:
    torch.manual_seed(6)
    x = torch.randn(2, 3, 2 * 37)
    gate, up = x.double().chunk(2, dim=-1)
    act = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda g: torch.nn.functional.gelu(g, approximate="tanh"),
    }[name]
    function = getattr(flashinfer, f"{name}_and_mul")
    torch.testing.assert_close(function(x), (act(gate) * up).float())
    out = torch.empty(2, 3, 37)
    assert function(x, out=out) is out
    torch.testing.assert_close(out, (act(gate) * up).float())
    with pytest.raises(ValueError, match="out.shape"):
        function(x, out=torch.empty(2, 3, 36))


def rotated(x: Tensor, positions: Tensor, frequencies: Tensor, interleave: bool) -> Tensor:
    """x [tokens, heads, dim], the first 2 * len(frequencies) elements rotated; in double."""
    x = x.double().clone()
    dim = 2 * frequencies.shape[0]
    angle = positions.double()[:, None, None] * frequencies
    head = x[..., :dim]
    a, b = (head[..., 0::2], head[..., 1::2]) if interleave else (head[..., : dim // 2], head[..., dim // 2 :])
    new = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
    x[..., :dim] = torch.stack(new, -1).flatten(-2) if interleave else torch.cat(new, -1)
    return x


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("rotary_dim", [None, 16])
@pytest.mark.parametrize("inplace", [False, True])
def test_apply_rope(interleave: bool, rotary_dim: int | None, inplace: bool) -> None:
    torch.manual_seed(7)
    q, k = torch.randn(7, 4, 32), torch.randn(7, 2, 32)
    indptr, offsets = torch.tensor([0, 3, 3, 7]), torch.tensor([100_000, 9, 5])
    positions = torch.tensor([100_000, 100_001, 100_002, 5, 6, 7, 8])
    dim = rotary_dim or 32
    theta, scale = 1e6, 4.0
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim) / scale
    expected = [rotated(x, positions, frequencies, interleave).float() for x in (q, k)]
    for form, where in (("", (indptr, offsets)), ("_pos_ids", (positions,))):
        a, b = q.clone(), k.clone()
        function = getattr(flashinfer, f"apply_rope{form}{'_inplace' if inplace else ''}")
        result = function(a, b, *where, rotary_dim, interleave, scale, theta)
        assert (result is None) == inplace
        for x, y in zip((a, b) if inplace else result, expected):
            torch.testing.assert_close(x, y)


def test_llama31_frequencies() -> None:
    torch.manual_seed(8)
    q, k = torch.randn(3, 2, 64), torch.randn(3, 1, 64)
    positions = torch.tensor([0, 5000, 131_071])
    plain = 5e5 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    wavelength = 2 * math.pi / plain
    smooth = ((8192 / wavelength - 1) / 3).clamp(0, 1)
    frequencies = (1 - smooth) * plain / 8 + smooth * plain
    result = flashinfer.apply_llama31_rope_pos_ids(q, k, positions)
    for x, y in zip((q, k), result):
        torch.testing.assert_close(y, rotated(x, positions, frequencies, False).float())


def test_rope_by_a_table() -> None:
    torch.manual_seed(9)
    positions = torch.tensor([3, 0, 11])
    frequencies = 1e4 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    angle = torch.arange(12, dtype=torch.float64)[:, None] * frequencies
    table = torch.cat((angle.cos(), angle.sin()), -1).float()
    q, k = torch.randn(3, 4 * 24), torch.randn(3, 2 * 24)
    a, b = flashinfer.apply_rope_with_cos_sin_cache(positions, q, k, 24, table)
    torch.testing.assert_close(a.view(3, 4, 24), rotated(q.view(3, 4, 24), positions, frequencies, False).float())
    torch.testing.assert_close(b.view(3, 2, 24), rotated(k.view(3, 2, 24), positions, frequencies, False).float())
    flashinfer.apply_rope_with_cos_sin_cache_inplace(positions, q, k, 24, table)
    assert torch.equal(q, a) and torch.equal(k, b)
    with pytest.raises(ValueError, match="float32"):
        flashinfer.apply_rope_with_cos_sin_cache(positions, q, k, 24, table.half())


@pytest.mark.parametrize("mla", [False, True])
def test_rope_quantize_fp8_multiplies_by_the_scale(mla: bool) -> None:
    torch.manual_seed(10)
    heads = () if mla else (2,)
    q, k = torch.randn(5, 4, 32, dtype=torch.bfloat16), torch.randn(5, *heads, 32, dtype=torch.bfloat16)
    q_nope, k_nope = torch.randn(5, 4, 48, dtype=torch.bfloat16), torch.randn(5, *heads, 48, dtype=torch.bfloat16)
    positions = torch.arange(5) * 3
    frequencies = 1e4 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)
    angle = torch.arange(20, dtype=torch.float64)[:, None] * frequencies
    table = torch.cat((angle.cos(), angle.sin()), -1).float()
    result = flashinfer.rope.rope_quantize_fp8(
        q, k, q_nope, k_nope, table, positions, is_neox=False, quant_scale_q=4.0, quant_scale_kv=0.5
    )
    k3 = k.unsqueeze(1) if mla else k
    expected = (
        rotated(q, positions, frequencies, True) * 4,
        (rotated(k3, positions, frequencies, True) * 0.5).view(k.shape),
        q_nope.double() * 4,
        k_nope.double() * 0.5,
    )
    for got, want in zip(result, expected):
        assert got.dtype == torch.float8_e4m3fn
        torch.testing.assert_close(got.double(), want, rtol=0.07, atol=0.01)


@pytest.mark.parametrize("bitorder", ["big", "little"])
def test_packbits(bitorder: str) -> None:
    numpy = pytest.importorskip("numpy")
    torch.manual_seed(11)
    x = torch.rand(83) < 0.5
    want = torch.as_tensor(numpy.packbits(x.cpu().numpy(), bitorder=bitorder))
    assert torch.equal(flashinfer.packbits(x, bitorder), want)
    assert torch.equal(flashinfer.packbits(x.float() * 3, bitorder), want)
    indptr = torch.tensor([0, 5, 5, 21, 83], dtype=torch.int32)
    packed, places = flashinfer.segment_packbits(x, indptr, bitorder)
    assert places.dtype == torch.int32 and places.tolist() == [0, 1, 1, 3, 11]
    for i in range(4):
        part = flashinfer.packbits(x[indptr[i] : indptr[i + 1]], bitorder)
        assert torch.equal(packed[places[i] : places[i + 1]], part)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("columns", [False, True])
def test_per_token_group_quant(dtype: torch.dtype, columns: bool) -> None:
    torch.manual_seed(12)
    x = torch.randn(2, 3, 256)
    x[0, 1, :128] = 0
    codes, scales = flashinfer.quantization.per_token_group_quant_8bit(
        x, 128, dst_dtype=dtype, column_major_scales=columns, scale_tma_aligned=columns
    )
    assert codes.shape == x.shape and scales.shape == (2, 3, 2)
    largest = 127.0 if dtype == torch.int8 else 448.0
    want = x.view(2, 3, 2, 128).abs().amax(-1).clamp(min=1e-10) / largest
    torch.testing.assert_close(scales, want)
    values = codes.float().view(2, 3, 2, 128) * scales[..., None]
    torch.testing.assert_close(values.view(x.shape), x, rtol=0.07, atol=0.02)
    with pytest.raises(NotImplementedError, match="group_size=64"):
        flashinfer.quantization.per_token_group_quant_8bit(x, 64)


@pytest.mark.parametrize("layout", list(flashinfer.SfLayout))
@pytest.mark.parametrize("rows", [5, 130])
def test_nvfp4_round_trip_in_every_layout(layout: flashinfer.SfLayout, rows: int) -> None:
    torch.manual_seed(13)
    x = torch.randn(rows, 96, dtype=torch.bfloat16)
    encode = flashinfer.make_nvfp4_global_scale(x, False)
    codes, scales = flashinfer.nvfp4_quantize(x, encode, sfLayout=layout)
    assert codes.dtype == scales.dtype == torch.uint8 and codes.shape == (rows, 48)
    tile = {0: 128, 1: 8, 2: 1}[int(layout)]
    assert scales.shape == (-(-rows // tile) * tile, 6 if tile == 1 else 8)
    values = flashinfer.e2m1_and_ufp8sf_scale_to_float(
        codes, scales, 1 / encode, is_sf_swizzled_layout=tile > 1, is_sf_8x4_layout=tile == 8
    )
    # Steps of e2m1 are at most 2 of 6 of the block's largest value.
    bound = x.float().view(rows, 6, 16).abs().amax(-1, keepdim=True).expand(-1, -1, 16).reshape(rows, 96) / 6
    assert ((values.to(x.device) - x.float()).abs() <= bound * 1.1).all()  # on the CPU, as FlashInfer has it
    linear, plain = flashinfer.fp4_quantize(x, encode, is_sf_swizzled_layout=False)
    assert torch.equal(linear, codes)
    if tile == 128:
        assert torch.equal(flashinfer.block_scale_interleave(plain), scales.reshape(-1))
    refused = {"do_shuffle": True, "per_token_activation": True, "nvfp4_4over6": object(), "batch_invariant": True}
    for name, value in refused.items():
        with pytest.raises(NotImplementedError, match=name):
            flashinfer.nvfp4_quantize(x, encode, **{name: value})


def test_nvfp4_of_keys_and_values() -> None:
    torch.manual_seed(14)
    x = torch.randn(6, 64, dtype=torch.float16)
    scale = torch.tensor([0.01])
    codes, scales = flashinfer.nvfp4_kv_quantize(x, scale)
    values = flashinfer.nvfp4_kv_dequantize(codes, scales, scale, torch.float16)
    bound = x.view(6, 4, 16).abs().amax(-1, keepdim=True).expand(-1, -1, 16).reshape(6, 64) / 6
    assert ((values - x).abs() <= bound * 1.1).all()
    with pytest.raises(NotImplementedError, match="sf_vec_size"):
        flashinfer.fp4_quantize(x, scale, sf_vec_size=32, sf_use_ue8m0=True)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("stacked", [False, True])
def test_nvfp4_pages(layout: str, stacked: bool) -> None:
    torch.manual_seed(22)
    pages, page_size, heads, dim = 5, 4, 2, 32
    lengths = torch.tensor([6, 0, 3], dtype=torch.int32)
    tables = torch.tensor([[3, 1], [0, 0], [4, 0]], dtype=torch.int32)
    shape = (pages, 2, page_size, heads) if layout == "NHD" else (pages, 2, heads, page_size)
    codes = torch.randint(256, (*shape, dim // 2), dtype=torch.uint8)
    scales = torch.randint(0x30, 0x48, (*shape, dim // 16), dtype=torch.uint8).view(torch.float8_e4m3fn)
    cache: Any = codes if stacked else (codes[:, 0], codes[:, 1])
    factors: Any = scales if stacked else (scales[:, 0], scales[:, 1])
    outputs = [torch.full((3, 6, heads, dim), 7.0, dtype=torch.float16) for _ in range(2)]
    given = (tables, lengths, torch.tensor([0.5]), torch.tensor([2.0]))
    flashinfer.nvfp4_kv_dequantize_paged(cache, factors, *given, *outputs, kv_layout=layout)
    for half, (out, factor) in enumerate(zip(outputs, (0.5, 2.0), strict=True)):
        for request, length in enumerate(lengths.tolist()):
            assert (out[request, length:] == 7).all()
            for token in range(length):
                page, place = tables[request, token // page_size], token % page_size
                at = (page, half, place) if layout == "NHD" else (page, half, slice(None), place)
                wanted = girih.dequantize(codes[at], scales[at].view(torch.uint8), "block", codes="nvfp4", global_scale=factor, dtype="f16")
                assert torch.equal(out[request, token], wanted)
    before = [out.clone() for out in outputs]
    flashinfer.nvfp4_kv_dequantize_paged(cache, factors, tables, lengths * 0, *given[2:], *outputs, kv_layout=layout)
    assert all(torch.equal(a, b) for a, b in zip(before, outputs, strict=True))
    with pytest.raises(ValueError, match="block_tables column count"):
        flashinfer.nvfp4_kv_dequantize_paged(cache, factors, tables[:, :1], *given[1:], *outputs, kv_layout=layout)
    with pytest.raises(ValueError, match="must be scalar tensors"):
        flashinfer.nvfp4_kv_dequantize_paged(cache, factors, *given[:2], torch.ones(2), given[3], *outputs, kv_layout=layout)
    with pytest.raises(ValueError, match="output_v"):
        flashinfer.nvfp4_kv_dequantize_paged(cache, factors, *given, outputs[0], outputs[1].float(), kv_layout=layout)


def power_of_two_scales(x: Tensor, largest: float) -> list[list[float]]:
    """By blocks of 32, in double precision: the least power of two that brings the largest magnitude to `largest`."""
    rows = []
    for row in x.double().reshape(x.shape[0], -1, 32).abs().amax(-1).tolist():
        rows.append([2.0 ** math.ceil(math.log2(m / largest)) if m > 0 else 0.0 for m in row])
    return rows


def mx_rows() -> Tensor:
    """Random rows of every magnitude, with a block of zeros, one whose scale is exact, and one just above it."""
    torch.manual_seed(21)
    x = torch.randn(131, 192) * 2.0 ** torch.arange(-60, 71).view(-1, 1)
    x[3, 32:64] = 0
    x[4, :32] = 448.0 * 6
    x[5, :32] = 448.0 * 6
    x[5, 7] = 448.0 * 6 * (1 + 2**-20)
    return x


@pytest.mark.parametrize("layout", list(flashinfer.SfLayout))
def test_mxfp8(layout: flashinfer.SfLayout) -> None:
    x = mx_rows()
    codes, scales = flashinfer.mxfp8_quantize(x, sf_swizzle_layout=layout, alignment=128)
    assert codes.shape == (131, 256) and codes.dtype == torch.float8_e4m3fn and scales.dtype == torch.uint8 and scales.dim() == 1
    assert not codes[:, 192:].view(torch.uint8).any()
    values = flashinfer.mxfp8_dequantize_host(codes, scales, sf_swizzle_layout=layout)
    scale = torch.tensor(power_of_two_scales(x, 448.0), device="cpu").repeat_interleave(32, 1)
    nearest = (x.cpu().double() / scale).nan_to_num(0).float().to(torch.float8_e4m3fn).double() * scale
    assert torch.equal(values[:, :192].double(), nearest)


@pytest.mark.parametrize("layout", list(flashinfer.SfLayout))
def test_mxfp4(layout: flashinfer.SfLayout) -> None:
    x = mx_rows()
    codes, scales = flashinfer.mxfp4_quantize(x, sfLayout=layout)
    assert codes.shape == (131, 96) and scales.dtype == torch.uint8
    values = flashinfer.mxfp4_dequantize(codes, scales, layout)
    scale = torch.tensor(power_of_two_scales(x, 6.0), device="cpu").repeat_interleave(32, 1)
    exact = (x.cpu().double() / scale).nan_to_num(0)
    steps = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device="cpu").double()
    distance = (exact.abs().unsqueeze(-1) - steps).abs()
    assert torch.equal((values.double() / scale).nan_to_num(0).abs().sub(exact.abs()).abs(), distance.amin(-1))
    assert torch.equal(values.sign(), exact.sign() * (values != 0))


def test_mxfp4_codes() -> None:
    """Every border between two codes goes to the even one, and what is next to a border to its own side."""
    borders = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    expected = torch.tensor([0, 2, 2, 4, 4, 6, 6])
    for x, codes in (
        (borders, expected),
        (borders.nextafter(torch.tensor(9.0)), torch.arange(1, 8)),
        (borders.nextafter(torch.tensor(0.0)), torch.arange(7)),
    ):
        row = torch.zeros(1, 32)
        row[0, 0] = 6
        row[0, 1:8], row[0, 8:15] = x, -x
        packed, scales = flashinfer.fp4_quantize(row, sf_vec_size=32, sf_use_ue8m0=True, is_sf_swizzled_layout=False)
        found = torch.stack((packed & 15, packed >> 4), -1).reshape(32)
        assert scales.tolist() == [[127]]
        assert torch.equal(found[1:8].long(), codes) and torch.equal(found[8:15].long(), codes + 8)


def test_mx_arguments() -> None:
    x = torch.randn(4, 64)
    with pytest.raises(ValueError, match="multiple of 32"):
        flashinfer.mxfp8_quantize(x[:, :40])
    with pytest.raises(ValueError, match="alignment=48"):
        flashinfer.mxfp8_quantize(x, alignment=48)
    with pytest.raises(ValueError, match="backend"):
        flashinfer.mxfp4_quantize(x, "fast")
    with pytest.raises(NotImplementedError, match="batch_invariant"):
        flashinfer.mxfp8_quantize(x, batch_invariant=True)
    wild = torch.tensor([[float("inf"), 1.0, *[0.0] * 30, float("nan"), 1.0, *[0.0] * 30]])
    codes, scales = flashinfer.mxfp8_quantize(wild, is_sf_swizzled_layout=False)
    assert scales.tolist() == [254, 127 - 8]
    values = codes[0].float()
    assert values[0] == 448 and values[1] == 0 and values[32].isnan() and values[33] == 256


def test_mxfp4_dequantize() -> None:
    codes = torch.tensor([[0x21, 0x43] * 8], dtype=torch.uint8)
    scales = torch.tensor([[128]], dtype=torch.uint8)
    values = flashinfer.mxfp4_dequantize(codes, scales, flashinfer.SfLayout.layout_linear)
    assert values.shape == (1, 32) and values[0, :4].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_concat_mla_k() -> None:
    torch.manual_seed(15)
    k_nope, k_rope = torch.randn(3, 5, 12), torch.randn(3, 1, 4)
    k = torch.empty(3, 5, 16)
    flashinfer.concat_ops.concat_mla_k(k, k_nope, k_rope)
    assert torch.equal(k, torch.cat((k_nope, k_rope.expand(3, 5, 4)), -1))
    with pytest.raises(ValueError, match="k.shape"):
        flashinfer.concat_ops.concat_mla_k(k[..., :15], k_nope, k_rope)
