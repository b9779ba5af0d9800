"""flashinfer.quantization.fp4_quantization: NVFP4, that is e2m1 codes with an e4m3 scale for 16 and one f32 scale a tensor.

FlashInfer takes the global scale as what values are multiplied by (448 * 6 / largest magnitude); Girih as what codes are. MXFP4 is
mx_quantization's; here it is decoded.
"""

from __future__ import annotations

from typing import cast

import torch

import girih

from .._arguments import one_of, refuse
from ..tllm_enums import SfLayout
from ..utils import round_up
from ._scale_layout import tiled, untiled
from .mx_quantization import mxfp4_quantize as mxfp4_quantize


class _Unset:
    """An argument left out, which differs from None."""

    def __repr__(self) -> str:
        return "_UNSET"


_UNSET = _Unset()
#: Environment variables that change codes: none.
NVFP4_QUANT_ENV_VARS: tuple[str, ...] = ()
_BLOCK = 16
_BACKENDS = ("auto", "cuda", "cute-dsl", "cake")


def _check_recipe(function: str, nvfp4_4over6: object) -> None:
    if nvfp4_4over6 is not None and nvfp4_4over6 is not _UNSET:
        raise refuse(function, "nvfp4_4over6", nvfp4_4over6, "Girih quantises NVFP4 with one scale candidate a block")


def _encode(x: torch.Tensor, decode_scale: float, layout: SfLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [rows, dim / 2] and scales uint8 of x [rows, dim], laid out."""
    rows, dim = x.shape
    codes = torch.empty(rows, dim // 2, dtype=torch.uint8, device=x.device)
    swizzled = layout == SfLayout.layout_128x4
    blocks = dim // _BLOCK
    if swizzled:
        scales = torch.zeros(round_up(rows, 128), round_up(blocks, 4), dtype=torch.uint8, device=x.device)
    else:
        scales = torch.empty(rows, blocks, dtype=torch.uint8, device=x.device)
    girih.quantize(x, "nvfp4", "block", scales=scales, global_scale=decode_scale, swizzled=swizzled, out=codes)
    if layout == SfLayout.layout_8x4:
        scales = tiled(scales, layout).view(-1, round_up(blocks, 4))
    return codes, scales


def _layout(swizzled: bool, small: bool) -> SfLayout:
    if not swizzled:
        return SfLayout.layout_linear
    return SfLayout.layout_8x4 if small else SfLayout.layout_128x4


def fp4_quantize(
    input: torch.Tensor,
    global_scale: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    is_global_scale_inversed: bool = False,
    enable_pdl: bool | None = None,
    backend: str = "auto",
    nvfp4_4over6: object | None = _UNSET,
    *,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [..., dim / 2] of input [..., dim] and scales uint8: [rows, dim / 16], or of whole tiles where swizzled.

    global_scale f32 [1] multiplies values before they are coded; with is_global_scale_inversed it divides them.
    """
    function = "fp4_quantize"
    one_of(function, "backend", backend, _BACKENDS)
    _check_recipe(function, nvfp4_4over6)
    if batch_invariant:
        raise refuse(
            function, "batch_invariant", True, "it asks for another recipe; rows are independent of each other anyway"
        )
    if sf_vec_size == 32 and sf_use_ue8m0 and (global_scale is None or float(global_scale) == 1.0):
        return mxfp4_quantize(input, "auto", enable_pdl, _layout(is_sf_swizzled_layout, is_sf_8x4_layout))
    if sf_vec_size != _BLOCK or sf_use_ue8m0:
        wrong = ("sf_vec_size", sf_vec_size) if sf_vec_size != _BLOCK else ("sf_use_ue8m0", True)
        raise refuse(
            function, *wrong, "scales are of 16, in e4m3, or of 32, powers of two without a global scale"
        )
    if input.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise refuse(function, "input.dtype", input.dtype, "dequantise it to 16 bits first")
    dim = input.shape[-1]
    if dim % _BLOCK != 0:
        raise ValueError(f"input.shape[-1]={dim}; must be a multiple of {_BLOCK}")
    scale = 1.0 if global_scale is None else float(global_scale)
    decode = scale if is_global_scale_inversed else 1.0 / scale
    codes, scales = _encode(input.reshape(-1, dim), decode, _layout(is_sf_swizzled_layout, is_sf_8x4_layout))
    return codes.view(*input.shape[:-1], dim // 2), scales


def nvfp4_quantize(
    a: torch.Tensor,
    a_global_sf: torch.Tensor,
    sfLayout: SfLayout = SfLayout.layout_128x4,
    do_shuffle: bool = False,
    sf_vec_size: int = 16,
    enable_pdl: bool | None = None,
    backend: str = "auto",
    per_token_activation: bool = False,
    expanded_idx_to_permuted_idx: torch.Tensor | None = None,
    out_scale: torch.Tensor | None = None,
    nvfp4_4over6: object | None = _UNSET,
    *,
    batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """fp4_quantize() of a [rows, dim] with the scales' layout by name."""
    function = "nvfp4_quantize"
    if do_shuffle:
        raise refuse(function, "do_shuffle", True, "it lays weights out for kernels that Girih does not have")
    if per_token_activation:
        raise refuse(function, "per_token_activation", True, "Girih's global scale is one number a tensor")
    for name, given in (("expanded_idx_to_permuted_idx", expanded_idx_to_permuted_idx), ("out_scale", out_scale)):
        if given is not None:
            raise refuse(function, name, "...", "it goes with per_token_activation")
    layout = SfLayout(sfLayout)
    return fp4_quantize(
        a,
        a_global_sf,
        sf_vec_size,
        is_sf_swizzled_layout=layout != SfLayout.layout_linear,
        is_sf_8x4_layout=layout == SfLayout.layout_8x4,
        backend=backend,
        nvfp4_4over6=nvfp4_4over6,
        batch_invariant=batch_invariant,
    )


def nvfp4_batched_quantize(
    a: torch.Tensor,
    a_global_sf: torch.Tensor,
    sf_vec_size: int = 16,
    nvfp4_4over6: object | None = _UNSET,
) -> tuple[torch.Tensor, torch.Tensor]:
    """nvfp4_quantize() of every a[i] of a [batch, rows, dim]; scales [batch, bytes of whole tiles]."""
    parts = [fp4_quantize(x, a_global_sf, sf_vec_size, nvfp4_4over6=nvfp4_4over6) for x in a]
    return torch.stack([codes for codes, _ in parts]), torch.stack([scales.reshape(-1) for _, scales in parts])


def silu_and_mul_nvfp4_quantize(
    input: torch.Tensor,
    global_scale: torch.Tensor,
    sf_vec_size: int = 16,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
    enable_pdl: bool | None = None,
    nvfp4_4over6: object | None = _UNSET,
) -> tuple[torch.Tensor, torch.Tensor]:
    """fp4_quantize(silu_and_mul(input)), the product rounded to input's type between."""
    product = girih.activate(input.reshape(-1, input.shape[-1]), "silu")
    return fp4_quantize(
        product,
        global_scale,
        sf_vec_size,
        is_sf_swizzled_layout=is_sf_swizzled_layout,
        is_sf_8x4_layout=is_sf_8x4_layout,
        nvfp4_4over6=nvfp4_4over6,
    )


def block_scale_interleave(unswizzled_sf: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Scales [rows, blocks], or [experts, rows, blocks], in tiles of 128 x 4 padded with zeros; flat."""
    if unswizzled_sf.dtype not in (torch.uint8, torch.bfloat16):
        raise ValueError(f"unswizzled_sf.dtype={unswizzled_sf.dtype}; must be uint8 or bfloat16")
    experts = unswizzled_sf.unsqueeze(0) if unswizzled_sf.ndim == 2 else unswizzled_sf
    flat = torch.cat([tiled(scales, SfLayout.layout_128x4) for scales in experts])
    if out is None:
        return flat
    if out.device != flat.device or out.dtype != flat.dtype or out.shape != flat.shape or not out.is_contiguous():
        raise ValueError(f"out must be a contiguous flat tensor of {flat.shape[0]} {flat.dtype} on {flat.device}")
    return out.copy_(flat)


nvfp4_block_scale_interleave = block_scale_interleave


def e2m1_and_ufp8sf_scale_to_float(
    e2m1_tensor: torch.Tensor,
    ufp8_scale_tensor: torch.Tensor,
    global_scale_tensor: torch.Tensor | None = None,
    sf_vec_size: int = 16,
    ufp8_type: int = 1,
    is_sf_swizzled_layout: bool = True,
    is_sf_8x4_layout: bool = False,
) -> torch.Tensor:
    """Values f32 [rows, dim], on the CPU, of codes uint8 [rows, dim / 2]: code * scale * global_scale_tensor.

    ufp8_type 1: e4m3 scales of 16; 0: power-of-two scales of 32.
    """
    function = "e2m1_and_ufp8sf_scale_to_float"
    if (sf_vec_size, ufp8_type) not in ((16, 1), (32, 0)):
        raise refuse(
            function, "sf_vec_size", sf_vec_size, "e4m3 scales (ufp8_type 1) are of 16, power-of-two ones (0) of 32"
        )
    codes = e2m1_tensor.cpu().view(torch.uint8)
    rows, dim = codes.shape[0], codes.shape[1] * 2
    flat = ufp8_scale_tensor.cpu().view(torch.uint8).reshape(-1)
    scales = untiled(flat, rows, dim // sf_vec_size, _layout(is_sf_swizzled_layout, is_sf_8x4_layout))
    global_scale = 1.0 if global_scale_tensor is None else float(global_scale_tensor)
    return cast(
        "torch.Tensor",
        girih.dequantize(
            codes, scales, "block", codes="nvfp4" if ufp8_type == 1 else "mxfp4", global_scale=global_scale, dtype="f32"
        ),
    )


def mxfp4_dequantize(
    a_fp4: torch.Tensor, a_sf: torch.Tensor, sfLayout: SfLayout = SfLayout.layout_128x4
) -> torch.Tensor:
    """Values f32 [rows, dim], on the CPU, of MXFP4 codes uint8 [rows, dim / 2] and their power-of-two scales."""
    layout = SfLayout(sfLayout)
    return e2m1_and_ufp8sf_scale_to_float(
        a_fp4,
        a_sf,
        sf_vec_size=32,
        ufp8_type=0,
        is_sf_swizzled_layout=layout != SfLayout.layout_linear,
        is_sf_8x4_layout=layout == SfLayout.layout_8x4,
    )


def nvfp4_kv_quantize(input: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [rows, dim / 2] and e4m3 scales as uint8 [rows, dim / 16]; values are code * scale * global_scale."""
    if input.ndim != 2 or input.shape[1] % _BLOCK != 0:
        raise ValueError(f"input.shape={tuple(input.shape)}; must be [rows, dim], dim a multiple of {_BLOCK}")
    return _encode(input, float(global_scale), SfLayout.layout_linear)


def nvfp4_kv_dequantize_paged(
    paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    kv_cache_sf: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    output_k: torch.Tensor,
    output_v: torch.Tensor,
    kv_layout: str = "NHD",
) -> None:
    """Writes the values of a 4-bit paged cache to output_k and output_v [batch, max_seq_len, heads, dim], f16 or bf16.

    The cache (uint8, half the width) and kv_cache_sf (e4m3, a sixteenth of it) are one tensor with a second extent of 2, or a pair;
    block_tables [batch, pages of the longest], seq_lens [batch]. Rows beyond seq_lens stay as they are. Waits for the lengths on a GPU.
    """
    if k_scale.numel() != 1 or v_scale.numel() != 1:
        raise ValueError(f"k_scale and v_scale must be scalar tensors, got {k_scale.numel()} and {v_scale.numel()} entries")
    if kv_layout not in ("NHD", "HND"):
        raise KeyError(f"Invalid kv_layout {kv_layout}; must be NHD or HND")
    caches = tuple(paged_kv_cache.unbind(1)) if isinstance(paged_kv_cache, torch.Tensor) else paged_kv_cache
    scales = tuple(kv_cache_sf.unbind(1)) if isinstance(kv_cache_sf, torch.Tensor) else kv_cache_sf
    outputs = (output_k, output_v)
    batch, longest = output_k.shape[:2]
    if kv_layout == "HND":
        caches, scales = tuple(c.transpose(1, 2) for c in caches), tuple(s.transpose(1, 2) for s in scales)
    page_size, heads = caches[0].shape[1:3]
    if block_tables.shape[0] != batch or block_tables.shape[1] * page_size < longest:
        raise ValueError(
            f"block_tables column count insufficient: has shape {tuple(block_tables.shape)}; must be [batch={batch}, at least "
            f"{-(-longest // page_size)}] for {longest} tokens in pages of {page_size}"
        )
    if seq_lens.shape != (batch,):
        raise ValueError(f"seq_lens has shape {tuple(seq_lens.shape)}; must be [batch={batch}]")
    for name, cache, scale, out in zip(("k", "v"), caches, scales, outputs, strict=True):
        dim = cache.shape[3] * 2
        if cache.dtype != torch.uint8 or tuple(scale.shape) != (*cache.shape[:3], dim // _BLOCK):
            raise ValueError(f"{name}: the cache is {cache.dtype} {tuple(cache.shape)} with scales {tuple(scale.shape)}; must be uint8 "
                             "[pages, page_size, heads, dim / 2] with [pages, page_size, heads, dim / 16]")  # fmt: skip
        if tuple(out.shape) != (batch, longest, heads, dim) or out.dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"output_{name} is {out.dtype} {tuple(out.shape)}; must be f16 or bf16 {(batch, longest, heads, dim)}")
    token = torch.arange(longest, device=block_tables.device)
    requests, tokens = (token < seq_lens.to(token.device).unsqueeze(1)).nonzero(as_tuple=True)
    pages, places = block_tables[requests, tokens // page_size].long(), tokens % page_size
    for cache, scale, out, factor in zip(caches, scales, outputs, (k_scale, v_scale), strict=True):
        dim = cache.shape[3] * 2
        rows = cache[pages, places].flatten(0, 1)
        blocks = scale.view(torch.uint8)[pages, places].flatten(0, 1)
        out[requests, tokens] = nvfp4_kv_dequantize(rows, blocks, factor, out.dtype).view(len(tokens), heads, dim)


def nvfp4_kv_dequantize(
    fp4_data: torch.Tensor,
    block_scales: torch.Tensor,
    global_scale: torch.Tensor,
    output_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """code * scale * global_scale of what nvfp4_kv_quantize() returns, in output_dtype [rows, dim]."""
    return cast(
        "torch.Tensor",
        girih.dequantize(
            fp4_data,
            block_scales.view(torch.uint8),
            "block",
            codes="nvfp4",
            global_scale=float(global_scale),
            dtype=output_dtype,
        ),
    )
