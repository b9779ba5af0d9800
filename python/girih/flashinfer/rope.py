"""flashinfer.rope: rotary embedding of Q and K, also fused with 8-bit quantisation and the write to the paged cache.

FlashInfer's kernels work angles out from theta; Girih's read a table of cosines and sines. Here the table has one row for each token of the
call, worked out in double on the tensor's device: nothing has to be known of the largest position, and nothing is waited for.
"""

from __future__ import annotations

from functools import lru_cache

import torch

import girih

from ._arguments import one_of, scale_tensor
from .page import _places, _unpacked


@lru_cache(maxsize=64)
def _frequencies(
    rotary_dim: int, theta: float, scale: float, llama31: tuple[float, float, float] | None, device: torch.device
) -> torch.Tensor:
    """Radians a position of each pair, f64 [rotary_dim / 2]."""
    if llama31 is None:
        radians = girih.rope_frequencies(rotary_dim, theta=theta, linear=scale)
    else:
        low, high, length = llama31
        rule = girih.Rope.Llama31(factor=scale, low_freq_factor=low, high_freq_factor=high, old_context_len=length)
        radians = girih.rope_frequencies(rotary_dim, theta=theta, llama31=rule)
    return torch.as_tensor(radians, dtype=torch.float64).to(device)


def _token_positions(q: torch.Tensor, indptr: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Position of each token: row r of request i is at offsets[i] + r - indptr[i]."""
    rows = torch.arange(q.shape[0], device=q.device)
    begins = indptr.to(device=q.device, dtype=torch.int64)
    request = torch.searchsorted(begins[1:], rows, right=True).clamp_(max=max(offsets.shape[0] - 1, 0))
    return offsets.to(device=q.device, dtype=torch.int64)[request] + rows - begins[request]


def _rotate(
    q: torch.Tensor,
    k: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    positions: torch.Tensor,
    rotary_dim: int | None,
    interleave: bool,
    scale: float,
    theta: float,
    llama31: tuple[float, float, float] | None = None,
) -> None:
    if rotary_dim is None:
        rotary_dim = q.shape[-1]
    frequencies = _frequencies(rotary_dim, float(theta), float(scale), llama31, q.device)
    angles = positions.to(torch.float64)[:, None] * frequencies
    table = torch.cat((angles.cos(), angles.sin()), dim=-1).to(torch.float32)
    rows = torch.arange(q.shape[0], device=q.device)
    girih.rope(q, k, q_out=q_out, k_out=k_out, cos_sin=table, positions=rows, interleaved=interleave)


def apply_rope_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    indptr: torch.Tensor,
    offsets: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> None:
    """apply_rope() in place."""
    _rotate(q, k, q, k, _token_positions(q, indptr, offsets), rotary_dim, interleave, rope_scale, rope_theta)


def apply_rope_pos_ids_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    pos_ids: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> None:
    """apply_rope_pos_ids() in place."""
    _rotate(q, k, q, k, pos_ids, rotary_dim, interleave, rope_scale, rope_theta)


def apply_llama31_rope_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    indptr: torch.Tensor,
    offsets: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 8,
    rope_theta: float = 5e5,
    low_freq_factor: float = 1,
    high_freq_factor: float = 4,
    old_context_len: int = 8192,
) -> None:
    """apply_llama31_rope() in place."""
    llama31 = (float(low_freq_factor), float(high_freq_factor), float(old_context_len))
    positions = _token_positions(q, indptr, offsets)
    _rotate(q, k, q, k, positions, rotary_dim, interleave, rope_scale, rope_theta, llama31)


def apply_llama31_rope_pos_ids_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    pos_ids: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 8,
    rope_theta: float = 5e5,
    low_freq_factor: float = 1,
    high_freq_factor: float = 4,
    old_context_len: int = 8192,
) -> None:
    """apply_llama31_rope_pos_ids() in place."""
    llama31 = (float(low_freq_factor), float(high_freq_factor), float(old_context_len))
    _rotate(q, k, q, k, pos_ids, rotary_dim, interleave, rope_scale, rope_theta, llama31)


def apply_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    indptr: torch.Tensor,
    offsets: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [tokens, heads, dim] and k [tokens, kv heads, dim], rotated; token r of request i is at offsets[i] + r - indptr[i].

    Pairs are (2i, 2i + 1) with `interleave`, else (i, i + rotary_dim / 2); elements from rotary_dim on are copied.
    """
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    positions = _token_positions(q, indptr, offsets)
    _rotate(q, k, q_out, k_out, positions, rotary_dim, interleave, rope_scale, rope_theta)
    return q_out, k_out


def apply_rope_pos_ids(
    q: torch.Tensor,
    k: torch.Tensor,
    pos_ids: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 1,
    rope_theta: float = 1e4,
) -> tuple[torch.Tensor, torch.Tensor]:
    """apply_rope() with the position of each token, [tokens]."""
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    _rotate(q, k, q_out, k_out, pos_ids, rotary_dim, interleave, rope_scale, rope_theta)
    return q_out, k_out


def apply_llama31_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    indptr: torch.Tensor,
    offsets: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 8,
    rope_theta: float = 5e5,
    low_freq_factor: float = 1,
    high_freq_factor: float = 4,
    old_context_len: int = 8192,
) -> tuple[torch.Tensor, torch.Tensor]:
    """apply_rope() with the frequencies of Llama 3.1: long wavelengths are divided by rope_scale, short ones kept."""
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    llama31 = (float(low_freq_factor), float(high_freq_factor), float(old_context_len))
    positions = _token_positions(q, indptr, offsets)
    _rotate(q, k, q_out, k_out, positions, rotary_dim, interleave, rope_scale, rope_theta, llama31)
    return q_out, k_out


def apply_llama31_rope_pos_ids(
    q: torch.Tensor,
    k: torch.Tensor,
    pos_ids: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 8,
    rope_theta: float = 5e5,
    low_freq_factor: float = 1,
    high_freq_factor: float = 4,
    old_context_len: int = 8192,
) -> tuple[torch.Tensor, torch.Tensor]:
    """apply_llama31_rope() with the position of each token, [tokens]."""
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    llama31 = (float(low_freq_factor), float(high_freq_factor), float(old_context_len))
    _rotate(q, k, q_out, k_out, pos_ids, rotary_dim, interleave, rope_scale, rope_theta, llama31)
    return q_out, k_out


def _checked_table(cos_sin_cache: torch.Tensor) -> torch.Tensor:
    if cos_sin_cache.dtype != torch.float32:
        raise ValueError(f"cos_sin_cache.dtype={cos_sin_cache.dtype}; cos_sin_cache should be float32")
    return cos_sin_cache


def _heads(x: torch.Tensor, head_size: int) -> torch.Tensor:
    return x.view(x.shape[0], -1, head_size)


def apply_rope_with_cos_sin_cache(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """query and key [tokens, heads * head_size], rotated by a table f32 [positions, rotary_dim] of cosines, then sines.

    `is_neox` pairs (i, i + rotary_dim / 2), else (2i, 2i + 1).
    """
    query_out, key_out = torch.empty_like(query), torch.empty_like(key)
    girih.rope(
        _heads(query, head_size),
        _heads(key, head_size),
        q_out=_heads(query_out, head_size),
        k_out=_heads(key_out, head_size),
        cos_sin=_checked_table(cos_sin_cache),
        positions=positions,
        interleaved=not is_neox,
    )
    return query_out, key_out


def apply_rope_with_cos_sin_cache_inplace(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> None:
    """apply_rope_with_cos_sin_cache() in place."""
    q, k = _heads(query, head_size), _heads(key, head_size)
    girih.rope(
        q, k, q_out=q, k_out=k, cos_sin=_checked_table(cos_sin_cache), positions=positions, interleaved=not is_neox
    )


def _code_type(quantize_dtype: torch.dtype | None, *outputs: torch.Tensor | None) -> torch.dtype:
    given = [out.dtype for out in outputs if out is not None]
    return quantize_dtype or (given[0] if given else torch.float8_e4m3fn)


def _codes(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor) -> None:
    """Of 0-wide parts nothing is written."""
    if x.numel() > 0:
        girih.quantize(x, out.dtype, "tensor", scales=scale, out=out)


def _with_heads(x: torch.Tensor) -> torch.Tensor:
    """MLA's keys have no dimension of heads."""
    return x.unsqueeze(1) if x.ndim == 2 else x


def rope_quantize_fp8(
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    q_nope: torch.Tensor | None,
    k_nope: torch.Tensor | None,
    cos_sin_cache: torch.Tensor,
    pos_ids: torch.Tensor,
    is_neox: bool = True,
    quantize_dtype: torch.dtype | None = None,
    quant_scale_q: float = 1.0,
    quant_scale_kv: float = 1.0,
    q_rope_out: torch.Tensor | None = None,
    k_rope_out: torch.Tensor | None = None,
    q_nope_out: torch.Tensor | None = None,
    k_nope_out: torch.Tensor | None = None,
    enable_pdl: bool = False,
    backend: str = "cuda",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rotates q_rope and k_rope, multiplies all four by their scale and rounds to 8 bits: (q_rope, k_rope, q_nope, k_nope).

    q_* [tokens, heads, dim]; k_* [tokens, dim] (MLA) or [tokens, kv heads, dim].
    """
    one_of("rope.rope_quantize_fp8", "backend", backend, ("cuda", "cutile"))
    dtype = _code_type(quantize_dtype, q_rope_out, k_rope_out, q_nope_out, k_nope_out)
    q_nope = q_rope[..., :0] if q_nope is None else q_nope
    k_nope = k_rope[..., :0] if k_nope is None else k_nope
    q_rope_out = torch.empty_like(q_rope, dtype=dtype) if q_rope_out is None else q_rope_out
    k_rope_out = torch.empty_like(k_rope, dtype=dtype) if k_rope_out is None else k_rope_out
    q_nope_out = torch.empty_like(q_nope, dtype=dtype) if q_nope_out is None else q_nope_out
    k_nope_out = torch.empty_like(k_nope, dtype=dtype) if k_nope_out is None else k_nope_out
    q_scale = scale_tensor(1.0 / quant_scale_q, q_rope.device)
    k_scale = scale_tensor(1.0 / quant_scale_kv, q_rope.device)
    girih.rope(
        q_rope,
        _with_heads(k_rope),
        q_out=q_rope_out,
        k_out=_with_heads(k_rope_out),
        cos_sin=_checked_table(cos_sin_cache),
        positions=pos_ids,
        interleaved=not is_neox,
        q_quantization=girih.Quantization(dtype, "tensor", scales=q_scale),
        k_quantization=girih.Quantization(dtype, "tensor", scales=k_scale),
    )
    _codes(q_nope, q_nope_out, q_scale)
    _codes(k_nope, k_nope_out, k_scale)
    return q_rope_out, k_rope_out, q_nope_out, k_nope_out


def mla_rope_quantize_fp8(
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    q_nope: torch.Tensor,
    k_nope: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    pos_ids: torch.Tensor,
    is_neox: bool = True,
    quantize_dtype: torch.dtype | None = None,
    quant_scale_q: float = 1.0,
    quant_scale_kv: float = 1.0,
    q_rope_out: torch.Tensor | None = None,
    k_rope_out: torch.Tensor | None = None,
    q_nope_out: torch.Tensor | None = None,
    k_nope_out: torch.Tensor | None = None,
    enable_pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """rope_quantize_fp8() by its name for MLA."""
    return rope_quantize_fp8(
        q_rope,
        k_rope,
        q_nope,
        k_nope,
        cos_sin_cache,
        pos_ids,
        is_neox,
        quantize_dtype,
        quant_scale_q,
        quant_scale_kv,
        q_rope_out,
        k_rope_out,
        q_nope_out,
        k_nope_out,
        enable_pdl,
    )


def rope_quantize_fp8_append_paged_kv_cache(
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    q_nope: torch.Tensor | None,
    k_nope: torch.Tensor | None,
    v: torch.Tensor | None,
    cos_sin_cache: torch.Tensor,
    pos_ids: torch.Tensor,
    paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    is_neox: bool = True,
    quantize_dtype: torch.dtype | None = None,
    quant_scale_q: float = 1.0,
    quant_scale_kv: float = 1.0,
    page_size: int = 16,
    kv_layout: str = "NHD",
    q_rope_out: torch.Tensor | None = None,
    q_nope_out: torch.Tensor | None = None,
    enable_pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """rope_quantize_fp8() whose keys (and v) go to the pages of token i: batch_indices[i] (-1: nowhere), positions[i].

    paged_kv_cache is (k, v), k holding the rotated part and then the other; for MLA (k_rope [tokens, dim], v None) it is (k_nope's cache,
    k_rope's cache), both [pages, page_size, dim].
    """
    dtype = _code_type(quantize_dtype, q_rope_out, q_nope_out)
    is_mla = k_rope.ndim == 2
    if is_mla != (v is None):
        raise ValueError("v: must be None for MLA (k_rope [tokens, dim]) and given otherwise")
    if not isinstance(paged_kv_cache, tuple) or len(paged_kv_cache) != 2:
        raise ValueError("paged_kv_cache must be a tuple of 2 tensors")
    for cache in paged_kv_cache:
        if cache.dtype != dtype or cache.ndim != (3 if is_mla else 4):
            raise ValueError(
                f"paged_kv_cache: {cache.ndim}-D of {cache.dtype}; must be {3 if is_mla else 4}-D of {dtype}"
            )
    k_cache, v_cache = (c.unsqueeze(2) for c in paged_kv_cache) if is_mla else _unpacked(paged_kv_cache, kv_layout)
    layout = "NHD" if is_mla else kv_layout
    held = k_cache.shape[1 if layout == "NHD" else 2]
    if held != page_size:
        raise ValueError(f"page_size={page_size}; the pages of paged_kv_cache hold {held}")
    if k_nope is not None:
        k_nope = _with_heads(k_nope)
    k_rope = _with_heads(k_rope)
    q_rope_out, k_rotated, q_nope_out, k_plain = rope_quantize_fp8(
        q_rope,
        k_rope,
        q_nope,
        k_nope,
        cos_sin_cache,
        pos_ids,
        is_neox,
        dtype,
        quant_scale_q,
        quant_scale_kv,
        q_rope_out,
        None,
        q_nope_out,
    )
    places = _places(batch_indices, positions, kv_indices, kv_indptr, page_size)
    if is_mla:
        places.write(k_plain, k_cache, "NHD")
        places.write(k_rotated, v_cache, "NHD")
    else:
        assert v is not None
        codes = torch.empty_like(v, dtype=dtype)
        _codes(v, codes, scale_tensor(1.0 / quant_scale_kv, v.device))
        places.write(torch.cat((k_rotated, k_plain), dim=-1), k_cache, layout)
        places.write(codes, v_cache, layout)
    return q_rope_out, q_nope_out
