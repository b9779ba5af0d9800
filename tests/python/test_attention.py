"""Attention objects against float64 references, for arrays of NumPy and PyTorch: layouts, levels, masks, quantised data, refusals."""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from typing import Any

import numpy as np
import pytest
from conftest import to_numpy
from devices import DEVICES
from reference import PagedCache, attention, close, decode_e2m1, decode_e4m3, to_float64

import girih

HEADS, KV_HEADS, DIM = 6, 2, 32
LENGTHS = [37, 1, 0, 64, 5]


@pytest.fixture(params=["numpy", "torch"])
def lib(request: pytest.FixtureRequest) -> Any:
    """lib(array): the array in a library under test, sharing its memory."""
    return Library(request.param)


@pytest.fixture(params=["numpy", "torch", *DEVICES[1:]])
def put(request: pytest.FixtureRequest) -> Any:
    """put(array): where attention with device=put.device reads it: the host, or a GPU where there is one."""
    return Library(request.param)


class Library:
    def __init__(self, name: str) -> None:
        self.name = name
        self.device = "cuda" if name == "cuda" else "cpu"

    def __call__(self, array: np.ndarray) -> Any:
        return self.host(array).cuda() if self.name == "cuda" else self.host(array)

    def host(self, array: np.ndarray) -> Any:
        """What plans are made of."""
        return array if self.name == "numpy" else pytest.importorskip("torch").from_numpy(array)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def requests(rng: np.random.Generator, lengths: list[int] = LENGTHS) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [normal(rng, n, KV_HEADS, DIM) for n in lengths], [normal(rng, n, KV_HEADS, DIM) for n in lengths]


def spec(**more: Any) -> girih.AttentionSpec:
    return girih.AttentionSpec(
        **{"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim_qk": DIM, "q_dtype": "f32", "lse": "natural"}
        | more
    )


def limits(**more: int) -> girih.AttentionLimits:
    return girih.AttentionLimits(**{"max_tokens": 64, "max_requests": 8, "max_kv_len": 128} | more)


def causal() -> girih.Variant:
    return girih.Variant(mask=girih.variants.causal())


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page_size", [1, 5, 16])
def test_decode_over_pages(put: Any, rng: np.random.Generator, layout: str, page_size: int) -> None:
    keys, values = requests(rng)
    cache = PagedCache(keys, values, page_size, rng)
    q = normal(rng, len(LENGTHS), HEADS, DIM)
    planned = girih.Attention(spec(), limits(), device=put.device)
    rows = np.arange(len(LENGTHS) + 1, dtype=np.int32)
    planned.plan(
        put.host(rows), girih.Segment(kv_indptr=put.host(cache.kv_indptr), kv_len=put.host(cache.kv_len), page_size=page_size)
    )
    order = (0, 1, 2, 3) if layout == "NHD" else (0, 2, 1, 3)
    store = girih.KvStore.paged(
        put(np.ascontiguousarray(cache.k.transpose(order))), put(cache.v.transpose(order)), layout=layout
    )
    assert (store.page_size, store.num_kv_heads, store.head_dim_k, store.k_dtype) == (page_size, KV_HEADS, DIM, "f32")
    o, lse = planned.run(put(q), girih.SegmentData(store, put(cache.kv_indices)))
    expected, expected_lse = attention(q, keys, values, rows)
    close(o, expected)
    close(lse, expected_lse)
    assert (to_float64(o)[2] == 0).all() and (to_float64(lse)[2] == -np.inf).all()


def test_block_table_and_combined_store(put: Any, rng: np.random.Generator) -> None:
    keys, values = requests(rng)
    cache = PagedCache(keys, values, 16, rng)
    table = cache.block_table(6)
    q = normal(rng, len(LENGTHS), HEADS, DIM)
    planned = girih.Attention(spec(lse="base2"), limits(), device=put.device)
    rows = list(range(len(LENGTHS) + 1))
    planned.plan(rows, girih.Segment(kv_len=cache.kv_len.tolist(), table_stride=6))
    expected, expected_lse = attention(q, keys, values, rows)
    combined = np.stack([cache.k, cache.v], axis=1)
    for layout, kv in (("NHD", combined), ("HND", np.ascontiguousarray(combined.transpose(0, 1, 3, 2, 4)))):
        store = girih.KvStore.paged_combined(put(kv), layout=layout)
        o, lse = planned.run(put(q), store, kv_indices=put(table))
        close(o, expected)
        close(lse, expected_lse / np.log(2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_ragged_prefill_of_16_bits(rng: np.random.Generator, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    q_lens, kv_lens = [7, 1, 3], [20, 9, 3]
    rows, offsets = np.cumsum([0, *q_lens]), np.cumsum([0, *kv_lens])
    q = torch.from_numpy(normal(rng, rows[-1], HEADS, DIM)).to(kind)
    k = torch.from_numpy(normal(rng, offsets[-1], KV_HEADS, DIM)).to(kind)
    v = torch.from_numpy(normal(rng, offsets[-1], KV_HEADS, DIM)).to(kind)
    planned = girih.Attention(spec(q_dtype=kind, variant=causal()), limits())
    planned.plan(rows, girih.Segment(kv_indptr=torch.from_numpy(offsets), page_size=0))
    o, lse = planned.run(q, girih.KvStore.ragged(k, v))
    assert o.dtype == kind and lse.dtype == torch.float32
    split = [to_float64(x.double())[a:b] for x in (k, v) for a, b in itertools.pairwise(offsets)]
    expected, expected_lse = attention(
        to_float64(q), split[:3], split[3:], rows, mask=lambda q_pos, kv_pos: kv_pos <= q_pos
    )
    close(o, expected, dtype)
    close(lse, expected_lse, "float16")


def test_numpy_bfloat16_outputs(rng: np.random.Generator) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q = normal(rng, 3, HEADS, DIM)
    k, v = normal(rng, 9, KV_HEADS, DIM), normal(rng, 9, KV_HEADS, DIM)
    for q_dtype, o_dtype in ((ml_dtypes.bfloat16, None), (np.float32, ml_dtypes.bfloat16)):
        planned = girih.Attention(spec(q_dtype=q_dtype, k_dtype="f32", o_dtype=o_dtype, lse="none"), limits())
        planned.plan([0, 3], girih.Segment(kv_indptr=[0, 9], page_size=0))
        given = q.astype(q_dtype)
        o = planned.run(given, girih.KvStore.ragged(k, v))
        assert o.dtype == ml_dtypes.bfloat16
        close(o, attention(given.astype(np.float32), [k], [v], [0, 3])[0], "bfloat16")


def test_outputs_of_codes(rng: np.random.Generator) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q = normal(rng, 3, HEADS, DIM)
    k, v = normal(rng, 9, KV_HEADS, DIM), normal(rng, 9, KV_HEADS, DIM)
    planned = girih.Attention(spec(q_dtype="f32", k_dtype="f32", o_dtype="e4m3", lse="none"), limits())
    planned.plan([0, 3], girih.Segment(kv_indptr=[0, 9], page_size=0))
    want = attention(q, [k], [v], [0, 3])[0]
    store = girih.KvStore.ragged(k, v)
    for scale in (None, 0.01, 1e-4):
        o = planned.run(q, store, o_scale=None if scale is None else np.array([scale], np.float32))
        assert o.dtype == ml_dtypes.float8_e4m3fn
        largest = 448 * (scale or 1)
        np.testing.assert_allclose(
            to_float64(o) * (scale or 1), np.clip(want, -largest, largest), rtol=2**-4 * 1.001, atol=2**-9 * (scale or 1)
        )
    with pytest.raises(ValueError, match="o_scale=0"):
        planned.run(q, store, o_scale=np.zeros(1, np.float32))
    plain = girih.Attention(spec(q_dtype="f32", k_dtype="f32", lse="none"), limits())
    plain.plan([0, 3], girih.Segment(kv_indptr=[0, 9], page_size=0))
    with pytest.raises(ValueError, match="o_scale"):
        plain.run(q, store, o_scale=np.ones(1, np.float32))


def test_shared_prefix_as_a_level(put: Any, rng: np.random.Generator) -> None:
    """Two requests share 32 keys: a group over both, then each its own. The same as flat lists of pages."""
    prefix_k, prefix_v = normal(rng, 32, KV_HEADS, DIM), normal(rng, 32, KV_HEADS, DIM)
    own_k, own_v = requests(rng, [11, 3])
    q = normal(rng, 5, HEADS, DIM)
    rows = [0, 3, 5]
    shared = PagedCache([prefix_k], [prefix_v], 16, rng)
    own = PagedCache(own_k, own_v, 16, rng)
    planned = girih.Attention(spec(variant=causal()), limits(max_segments=2), device=put.device)
    planned.plan(
        rows,
        [
            girih.Segment(kv_indptr=shared.kv_indptr, kv_len=shared.kv_len, qo_indptr=[0, 5]),
            girih.Segment(kv_indptr=own.kv_indptr, kv_len=own.kv_len),
        ],
    )
    o, lse = planned.run(
        put(q),
        [girih.SegmentData(girih.KvStore.paged(put(c.k), put(c.v)), put(c.kv_indices)) for c in (shared, own)],
    )
    keys = [np.concatenate([prefix_k, k]) for k in own_k]
    values = [np.concatenate([prefix_v, v]) for v in own_v]
    expected, expected_lse = attention(q, keys, values, rows, mask=lambda q_pos, kv_pos: kv_pos <= q_pos)
    close(o, expected)
    close(lse, expected_lse)


def test_latent_attention(put: Any, rng: np.random.Generator) -> None:
    """MLA: one KV head, V is a view of K, Q and K in two arrays each, the caches without a head dimension."""
    latent, rope, heads = 48, 16, 4
    lengths = [21, 6]
    ckv = [normal(rng, n, 1, latent) for n in lengths]
    kpe = [normal(rng, n, 1, rope) for n in lengths]
    cache = PagedCache(ckv, kpe, 8, rng)
    q, q_rope = normal(rng, 2, heads, latent), normal(rng, 2, heads, rope)
    planned = girih.Attention(
        girih.AttentionSpec(
            num_qo_heads=heads,
            num_kv_heads=1,
            head_dim_qk=latent + rope,
            head_dim_vo=latent,
            head_dim_rope=rope,
            q_dtype="f32",
            v_is_k=True,
            sm_scale=0.125,
            lse="natural",
        ),
        limits(),
        device=put.device,
    )
    planned.plan([0, 1, 2], girih.Segment(kv_indptr=cache.kv_indptr, kv_len=cache.kv_len, page_size=8))
    store = girih.KvStore.paged(put(cache.k[:, :, 0]), k_rope=put(cache.v[:, :, 0]))
    assert (store.head_dim_k, store.head_dim_rope, store.head_dim_v, store.num_kv_heads) == (latent, rope, 0, 1)
    o, lse = planned.run(put(q), store, kv_indices=put(cache.kv_indices), q_rope=put(q_rope))
    keys = [np.concatenate(pair, axis=2) for pair in zip(ckv, kpe, strict=True)]
    expected, expected_lse = attention(np.concatenate([q, q_rope], axis=2), keys, ckv, [0, 1, 2], sm_scale=0.125)
    close(o, expected)
    close(lse, expected_lse)


@pytest.mark.parametrize("granularity", ["tensor", "head", "token_head"])
@pytest.mark.parametrize("kind", ["e4m3", "i8"])
def test_8_bit_cache(rng: np.random.Generator, granularity: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    pages, page_size = 4, 8
    shape = (pages, page_size, KV_HEADS, DIM)
    scale_shape = {"tensor": (1,), "head": (KV_HEADS,), "token_head": shape[:3]}[granularity]
    k_scale, v_scale = (torch.from_numpy(rng.uniform(0.01, 0.1, scale_shape).astype(np.float32)) for _ in range(2))
    if kind == "i8":
        k, v = (torch.from_numpy(rng.integers(-127, 128, shape).astype(np.int8)) for _ in range(2))
    else:
        k, v = (torch.from_numpy(4 * normal(rng, *shape)).to(torch.float8_e4m3fn) for _ in range(2))
    store = girih.KvStore.paged(k, v, k_scale=k_scale, v_scale=v_scale, k_global_scale=2.0)
    assert (store.k_dtype, store.k_scale, store.v_scale) == (kind, granularity, granularity)
    planned = girih.Attention(spec(k_dtype=kind, k_scale=granularity, v_scale=granularity), limits())
    order = np.array([2, 0, 3], np.int32)
    planned.plan([0, 2], girih.Segment(kv_indptr=[0, 3], kv_len=[19], page_size=page_size))
    q = normal(rng, 2, HEADS, DIM)
    o, lse = planned.run(torch.from_numpy(q), store, kv_indices=torch.from_numpy(order))
    spread = {"tensor": (), "head": (None,), "token_head": (..., None)}[granularity]

    def decoded(x: Any, s: Any) -> np.ndarray:
        scale = s.numpy()[:, None] if granularity == "head" else s.numpy()[spread]
        return (x.double().numpy() * scale)[order].reshape(-1, KV_HEADS, DIM)[:19]

    expected, expected_lse = attention(q, [decoded(k, 2 * k_scale)], [decoded(v, v_scale)], [0, 2])
    close(o, expected, scale=4)
    close(lse, expected_lse)
    # The same bytes as uint8, their type said by name; HND scales follow the data.
    hnd = girih.KvStore.paged(
        k.view(torch.uint8).transpose(1, 2),
        v.view(torch.uint8).transpose(1, 2),
        layout="HND",
        k_dtype=kind,
        k_scale=k_scale.transpose(1, 2) if granularity == "token_head" else k_scale,
        v_scale=v_scale.transpose(1, 2) if granularity == "token_head" else v_scale,
        k_global_scale=2.0,
    )
    again, _ = planned.run(torch.from_numpy(q), hnd, kv_indices=torch.from_numpy(order))
    assert torch.equal(again, o)


def test_one_scale_of_one_head_is_either_granularity(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    k = torch.from_numpy(normal(rng, 5, 1, DIM)).to(torch.float8_e4m3fn)
    q = torch.from_numpy(normal(rng, 1, 2, DIM))
    results = []
    for granularity in ("tensor", "head"):
        planned = girih.Attention(
            spec(num_qo_heads=2, num_kv_heads=1, k_dtype="e4m3", k_scale=granularity, v_scale=granularity), limits()
        )
        planned.plan([0, 1], girih.Segment(kv_indptr=[0, 5], page_size=0))
        results.append(planned.run(q, girih.KvStore.ragged(k, k, k_scale=0.5, v_scale=0.5))[0])
    assert torch.equal(*results)
    expected = attention(q.numpy(), [k.double().numpy() / 2], [k.double().numpy() / 2], [0, 1])[0]
    close(results[0], expected)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_4_bit_cache_by_append(put: Any, rng: np.random.Generator, kind: str) -> None:
    pages, page_size, length = 3, 8, 19
    block = 16 if kind == "nvfp4" else 32
    k, v = (put(np.full((pages, page_size, KV_HEADS, DIM // 2), 0xFF, np.uint8)) for _ in range(2))
    ks, vs = (put(np.full((pages, page_size, KV_HEADS, DIM // block), 0x7F, np.uint8)) for _ in range(2))
    store = girih.KvStore.paged(k, v, k_dtype=kind, k_scale=ks, v_scale=vs, v_global_scale=0.5)
    new_k, new_v = normal(rng, length, KV_HEADS, DIM), normal(rng, length, KV_HEADS, DIM)
    order = np.array([2, 0, 1], np.int32)
    girih.append(
        store, put(new_k), put(new_v), append_indptr=[0, length], kv_len=[length], kv_indices=order, kv_indptr=[0, 3]
    )

    def decoded(codes: Any, scales: Any, factor: float) -> np.ndarray:
        codes, scales = to_numpy(codes), to_numpy(scales)
        scale = decode_e4m3(scales) if kind == "nvfp4" else 2.0 ** (scales.astype(np.float64) - 127)
        values = decode_e2m1(codes) * np.repeat(scale, block, axis=-1) * factor
        return values[order].reshape(-1, KV_HEADS, DIM)[:length]

    keys, values = decoded(k, ks, 1.0), decoded(v, vs, 0.5)
    # Half a step of e2m1 between 4 and 6, of the block's largest element.
    assert np.abs(keys - new_k).max() < np.abs(new_k).max() / (4 if kind == "nvfp4" else 2)
    planned = girih.Attention(spec(k_dtype=kind, k_scale="block", v_scale="block"), limits(), device=put.device)
    planned.plan([0, 1], girih.Segment(kv_indptr=[0, 3], kv_len=[length], page_size=page_size))
    q = normal(rng, 1, HEADS, DIM)
    o, lse = planned.run(put(q), store, kv_indices=put(order))
    expected, expected_lse = attention(q, [keys], [values], [0, 1])
    close(o, expected)
    close(lse, expected_lse)


def test_parameters_of_plan_and_run(put: Any, rng: np.random.Generator) -> None:
    g = girih
    variant = g.Variant(
        mask=(g.kv_pos() <= g.q_pos()) & (g.q_pos() - g.kv_pos() < g.scalar("size", "integer", "plan")),
        logits=g.score() * g.scalar("gain"),
        sink=g.variants.sinks(),
    )
    keys, values = requests(rng, [30])
    q = normal(rng, 4, HEADS, DIM)
    sinks = normal(rng, HEADS)
    planned = girih.Attention(spec(variant=variant), limits(), device=put.device)
    segment = girih.Segment(kv_indptr=[0, 30], page_size=0)
    store = girih.KvStore.ragged(put(keys[0]), put(values[0]))
    for size, gain in ((5, 0.5), (17, 2)):
        planned.plan([0, 4], segment, params={"size": size})
        o, lse = planned.run(put(q), store, params={"gain": gain, "sinks": put(sinks)})
        expected, expected_lse = attention(
            q,
            keys,
            values,
            [0, 4],
            mask=lambda q_pos, kv_pos, size=size: (kv_pos <= q_pos) & (q_pos - kv_pos < size),
            logits=lambda s, gain=gain: s * gain,
            sink=sinks,
        )
        close(o, expected)
        close(lse, expected_lse)
    with pytest.raises(ValueError, match=r"params\['size'\]"):
        planned.plan([0, 4], segment)
    with pytest.raises(ValueError, match=r"params\['gain'\]"):
        planned.run(put(q), store, params={"sinks": put(sinks)})
    with pytest.raises(ValueError, match=r"params\['other'\]"):
        planned.run(put(q), store, params={"sinks": put(sinks), "gain": 1, "other": 2})
    with pytest.raises(TypeError, match="params"):
        planned.run(put(q), store, params=[1])


def test_outputs_may_be_given_and_strided(lib: Any, rng: np.random.Generator) -> None:
    keys, values = requests(rng, [9])
    q = normal(rng, 2, HEADS, 2 * DIM)[:, :, :DIM]
    wide = np.full((2, HEADS + 1, DIM + 3), 7, np.float32)
    out, lse = lib(wide[:, :HEADS, :DIM]), lib(np.zeros((2, 2 * HEADS), np.float32)[:, ::2])
    planned = girih.Attention(spec(), limits())
    planned.plan([0, 2], girih.Segment(kv_indptr=[0, 9], page_size=0))
    result = planned.run(lib(q), girih.KvStore.ragged(lib(keys[0]), lib(values[0])), out=out, lse=lse)
    assert result[0] is out and result[1] is lse
    expected, expected_lse = attention(q, keys, values, [0, 2])
    close(out, expected)
    close(lse, expected_lse)
    assert (wide[:, HEADS] == 7).all() and (wide[:, :, DIM:] == 7).all()


def test_refusals_write_nothing(lib: Any, rng: np.random.Generator) -> None:
    keys, values = requests(rng, [9])
    q = normal(rng, 2, HEADS, DIM)
    out, lse = np.full((2, HEADS, DIM), 7, np.float32), np.full((2, HEADS), 7, np.float32)
    planned = girih.Attention(spec(), limits())
    store = girih.KvStore.ragged(lib(keys[0]), lib(values[0]))
    run = planned.run
    with pytest.raises(ValueError, match="plan"):
        run(lib(q), store, out=lib(out), lse=lib(lse))
    planned.plan([0, 2], girih.Segment(kv_indptr=[0, 9], page_size=0))
    thin = girih.KvStore.ragged(lib(keys[0][:, :1]), lib(values[0][:, :1]))
    narrow = girih.KvStore.ragged(lib(keys[0]), lib(values[0][:, :, :8]))
    bad: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (ValueError, r"q has rank 3 and shape \[1,", (lib(q[:1]), store), {}),
        (ValueError, "q: has 2 dimensions", (lib(q[0]), store), {}),
        (ValueError, "q is f16", (lib(q.astype(np.float16)), store), {}),
        (ValueError, "out is f16", (lib(q), store), {"out": lib(out.astype(np.float16))}),
        (ValueError, "out has rank", (lib(q), store), {"out": lib(out[:, :3])}),
        (ValueError, "lse is f16", (lib(q), store), {"lse": lib(lse.astype(np.float16))}),
        (ValueError, r"kv: k has 1 heads; spec.num_kv_heads=2", (lib(q), thin), {}),
        (ValueError, r"kv: v has 8 dims; must be 32", (lib(q), narrow), {}),
        (ValueError, "kv has 2 entries", (lib(q), [store, store]), {}),
        (
            ValueError,
            r"kv\[0\].store.page_size",
            (lib(q), girih.KvStore.paged(*[lib(x[None]) for x in (keys[0], values[0])])),
            {},
        ),
        (ValueError, "q_rope is given", (lib(q), store), {"q_rope": lib(q)}),
        (TypeError, r"kv\[1\]", (lib(q), [store, 3]), {}),
        (TypeError, "kv: must be", (lib(q), 3), {}),
        (TypeError, "q: .*is no array", (3, store), {}),
        (ValueError, "stream is given", (lib(q), store), {"stream": 5}),
    ]
    for error, text, args, named in bad:
        with pytest.raises(error, match=text):
            run(*args, **{"out": lib(out), "lse": lib(lse)} | named)
    assert (out == 7).all() and (lse == 7).all()
    with pytest.raises(ValueError, match="lse: is given"):
        without = girih.Attention(spec(lse="none"), limits())
        without.plan([0, 2], girih.Segment(kv_indptr=[0, 9], page_size=0))
        without.run(lib(q), store, out=lib(out), lse=lib(lse))


def test_page_ids_are_checked_on_the_cpu(lib: Any, rng: np.random.Generator) -> None:
    k = normal(rng, 3, 4, KV_HEADS, DIM)
    planned = girih.Attention(spec(), limits())
    planned.plan([0, 1], girih.Segment(kv_indptr=[0, 2], kv_len=[7], page_size=4))
    q, store = lib(normal(rng, 1, HEADS, DIM)), girih.KvStore.paged(lib(k), lib(k))
    with pytest.raises(ValueError, match=r"kv\[0\].kv_indices\[1\]=3"):
        planned.run(q, store, kv_indices=lib(np.array([0, 3], np.int32)))
    with pytest.raises(ValueError, match=r"kv_indices has 1 entries"):
        planned.run(q, store, kv_indices=[0])
    with pytest.raises(ValueError, match="kv_indices: is i64; must be int32"):
        planned.run(q, store, kv_indices=lib(np.array([0, 1])))
    with pytest.raises(TypeError, match=r"kv_indices\[1\] is no integer"):
        planned.run(q, store, kv_indices=[0, 1.5])
    with pytest.raises(ValueError, match="kv_indices: entry 1 does not fit"):
        planned.run(q, store, kv_indices=[0, 1 << 31])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"qo_indptr": [0, 2, 1]}, r"qo_indptr\[2\]=1"),
        ({"qo_indptr": [0, 65]}, "limits.max_tokens|max_tokens"),
        ({"kv_indptr": [0, 2, 1]}, r"segments\[0\].kv_indptr\[2\]"),
        ({"kv_len": [5]}, r"segments\[0\].kv_len has 1"),
        ({"kv_len": np.array([5.0, 1.0])}, "kv_len: has dtype float64"),
        ({"kv_len": np.array([[[5]]])}, "kv_len: has 3 dimensions"),
    ],
)
def test_a_bad_batch_keeps_the_former_plan(rng: np.random.Generator, arguments: dict[str, Any], text: str) -> None:
    keys, values = requests(rng, [9])
    planned = girih.Attention(spec(), limits())
    planned.plan([0, 1], girih.Segment(kv_indptr=[0, 9], page_size=0))
    q, store = normal(rng, 1, HEADS, DIM), girih.KvStore.ragged(keys[0], values[0])
    before, _ = planned.run(q, store)
    with pytest.raises(ValueError, match=text):
        batch = {"qo_indptr": [0, 1, 2], "kv_indptr": [0, 1, 2], "kv_len": [5, 6]} | arguments
        planned.plan(batch.pop("qo_indptr"), girih.Segment(**batch))
    after, _ = planned.run(q, store)
    assert (before == after).all()


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"num_qo_heads": 5}, ValueError, "num_qo_heads=5"),
        ({"head_dim_qk": 4096}, ValueError, "head_dim_qk=4096"),
        ({"k_dtype": "e4m3"}, ValueError, "k_scale=none"),
        ({"k_dtype": "i32"}, NotImplementedError, "k_dtype=i32"),
        ({"k_scale": "row"}, ValueError, 'k_scale: "row"'),
        ({"lse": "yes"}, ValueError, 'lse: "yes"'),
        ({"q_dtype": "float3"}, ValueError, "q_dtype"),
        ({"partial_state": True, "lse": "none"}, ValueError, "partial_state"),
    ],
)
def test_bad_specs_are_refused(more: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        girih.Attention(spec(**more), limits())


def test_a_store_keeps_its_arrays_alive_and_lets_them_go(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    keys, values = requests(rng, [9])
    k, v = torch.from_numpy(keys[0]).clone(), torch.from_numpy(values[0]).clone()
    gone = [weakref.ref(k), weakref.ref(v)]
    indices = torch.arange(9, dtype=torch.int32)
    gone.append(weakref.ref(indices))
    data = girih.SegmentData(girih.KvStore.paged(k[:, None], v[:, None]), indices)
    del k, v, indices
    gc.collect()
    assert gone[2]() is not None
    planned = girih.Attention(spec(), limits())
    planned.plan([0, 1], girih.Segment(kv_indptr=[0, 9], kv_len=[9], page_size=1))
    q = normal(rng, 1, HEADS, DIM)
    o, _ = planned.run(torch.from_numpy(q), data)
    close(o, attention(q, keys, values, [0, 1])[0])
    del data
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3


def test_a_plan_travels_as_bytes(rng: np.random.Generator) -> None:
    keys, values = requests(rng, [9])
    one, other = (girih.Attention(spec(), limits()) for _ in range(2))
    info = one.plan([0, 2], girih.Segment(kv_indptr=[0, 9], page_size=0))
    assert info.num_items > 0 and info.visible_pairs == 18 and one.plan_info.blob_bytes == info.blob_bytes
    other.load(one.blob())
    q, store = normal(rng, 2, HEADS, DIM), girih.KvStore.ragged(keys[0], values[0])
    assert (one.run(q, store)[0] == other.run(q, store)[0]).all()
    with pytest.raises(ValueError):
        other.load(one.blob()[:-8])
    with pytest.raises(ValueError, match="schedule"):
        girih.Attention(spec(), limits(max_tokens=9)).load(one.blob())
    plan = girih.Plan(one.schedule)
    plan.update([0, 2], girih.Segment(kv_indptr=[0, 9], page_size=0))
    assert plan.blob() == one.blob() and plan.schedule.key == one.schedule.key


def test_a_second_user_is_refused(rng: np.random.Generator) -> None:
    planned = girih.Attention(spec(), limits())

    class Reenters:
        def __index__(self) -> int:
            planned.plan([0, 1], girih.Segment(kv_indptr=[0, 9], page_size=0))
            return 0

    with pytest.raises(RuntimeError, match="in use by another thread"):
        planned.plan([Reenters(), 1], girih.Segment(kv_indptr=[0, 9], page_size=0))
    planned.plan([0, 1], girih.Segment(kv_indptr=[0, 9], page_size=0))


def test_a_workspace_of_the_callers(rng: np.random.Generator) -> None:
    keys, values = requests(rng, [100])
    schedule = girih.schedule(spec(), limits())
    assert schedule.workspace_bytes > 0 and schedule.workspace_layout[0][1] == 0
    memory = np.full(schedule.workspace_bytes + 64, 0xFF, np.uint8)
    planned = girih.Attention(spec(), limits(), workspace=memory)
    planned.plan([0, 1], girih.Segment(kv_indptr=[0, 100], page_size=0))
    q = normal(rng, 1, HEADS, DIM)
    o, _ = planned.run(q, girih.KvStore.ragged(keys[0], values[0]))
    close(o, attention(q, keys, values, [0, 1])[0])
    with pytest.raises(ValueError, match="workspace: has"):
        girih.Attention(spec(), limits(), workspace=memory[:100])
    memory.flags.writeable = False
    with pytest.raises(ValueError, match="workspace: is a read-only"):
        girih.Attention(spec(), limits(), workspace=memory)


@pytest.mark.parametrize("heads", [1, KV_HEADS])
def test_block_sparse(put: Any, rng: np.random.Generator, heads: int) -> None:
    num_rows, num_cols, rows_of_block, cols_of_block = 20, 30, 8, 8
    mask = rng.random((heads, 3, 4)) < 0.6
    mask[:, 1] = False
    indptr = np.zeros((heads, 4), np.int64)
    indices: list[int] = []
    for h in range(heads):
        indptr[h, 0] = len(indices)
        for r in range(3):
            indices += np.flatnonzero(mask[h, r]).tolist()
            indptr[h, r + 1] = len(indices)
    patterns = [
        girih.block_sparse(num_rows, num_cols, rows_of_block, cols_of_block, indptr, indices, num_heads=heads),
        girih.variable_block_sparse([8, 8, 4], [8, 8, 8, 6], put.host(mask), num_heads=heads),
    ]
    q = normal(rng, num_rows, HEADS, DIM)
    k, v = normal(rng, num_cols, KV_HEADS, DIM), normal(rng, num_cols, KV_HEADS, DIM)
    full = np.repeat(np.repeat(mask, 8, axis=1), 8, axis=2)[:, :num_rows, :num_cols]
    for pattern in patterns:
        planned = girih.Attention(spec(), limits(max_groups=8), device=put.device)
        planned.plan([0, num_rows], pattern.segment(), kv_len=[num_cols])
        store = girih.KvStore.blocks(put(k), put(v), page_size=pattern.page_size)
        o, lse = planned.run(put(q), pattern.data(store))
        for h in range(HEADS):
            seen = full[h // (HEADS // KV_HEADS) if heads > 1 else 0]
            for row in range(num_rows):
                kv = h // (HEADS // KV_HEADS)
                expected, expected_lse = attention(
                    q[row : row + 1, h : h + 1], [k[seen[row], kv : kv + 1]], [v[seen[row], kv : kv + 1]], [0, 1]
                )
                close(o[row, h], expected[0, 0])
                close(lse[row, h : h + 1], expected_lse[0])
    with pytest.raises(ValueError, match="page_size"):
        pattern.data(girih.KvStore.blocks(put(k), put(v), page_size=5))


def test_one_call(put: Any, rng: np.random.Generator) -> None:
    batch, tokens, kv_tokens = 2, 5, 9
    q = normal(rng, batch, tokens, HEADS, DIM)
    k, v = normal(rng, batch, kv_tokens, KV_HEADS, DIM), normal(rng, batch, kv_tokens, KV_HEADS, 16)
    sinks = normal(rng, HEADS)
    rows = np.arange(0, batch * tokens + 1, tokens)
    flat = q.reshape(-1, HEADS, DIM)
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"causal": True}, {"mask": lambda q_pos, kv_pos: kv_pos <= q_pos}),
        ({"window": 3}, {"mask": lambda q_pos, kv_pos: q_pos - kv_pos < 3}),
        (
            {"causal": True, "window": 3},
            {"mask": lambda q_pos, kv_pos: (kv_pos <= q_pos) & (q_pos - kv_pos < 3)},
        ),
        (
            {"window": (2, 1)},
            {"mask": lambda q_pos, kv_pos: (q_pos - kv_pos <= 2) & (kv_pos - q_pos <= 1)},
        ),
        ({"soft_cap": 0.5}, {"logits": lambda s: 0.5 * np.tanh(s / 0.5)}),
        ({"sinks": put(sinks), "sm_scale": 0.3}, {"sink": sinks, "sm_scale": 0.3}),
        ({"variant": causal()}, {"mask": lambda q_pos, kv_pos: kv_pos <= q_pos}),
    ]
    for given, rule in cases:
        o, lse = girih.attention(put(q), put(k), put(v), return_lse=True, **given)
        expected, expected_lse = attention(flat, list(k), list(v), rows, **rule)
        assert tuple(o.shape) == (batch, tokens, HEADS, 16)
        close(o, expected.reshape(batch, tokens, HEADS, 16))
        close(lse, expected_lse.reshape(batch, tokens, HEADS))
        single = girih.attention(put(q[1]), put(k[1]), put(v[1]), **given)
        close(single, expected.reshape(batch, tokens, HEADS, 16)[1])
    out = put(np.zeros((batch, tokens, HEADS, 16), np.float32))
    assert girih.attention(put(q), put(k), put(v), out=out) is out
    close(out, attention(flat, list(k), list(v), rows)[0].reshape(batch, tokens, HEADS, 16))
    # Caches of another order, seen in place; no keys at all.
    heads_first = put(np.ascontiguousarray(k.transpose(0, 2, 1, 3)))
    again = girih.attention(put(q), heads_first.swapaxes(1, 2), put(v))
    close(again, attention(flat, list(k), list(v), rows)[0].reshape(batch, tokens, HEADS, 16))
    o, lse = girih.attention(put(q), put(k[:, :0]), put(v[:, :0]), return_lse=True)
    assert (to_float64(o) == 0).all() and (to_float64(lse) == -np.inf).all()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"variant": causal(), "causal": True}, "variant: is given beside causal"),
        ({"window": 0}, "window: 0"),
        ({"soft_cap": 0.0}, "soft_cap: 0.0"),
        ({"params": {"x": 1}}, r"params\['x'\]"),
        ({"out": np.zeros((5, HEADS, 3), np.float32)}, "out: has shape"),
        ({"sinks": np.zeros(HEADS - 1, np.float32)}, r"sinks: has shape \[\d+\] of f32; must be f32 \[num_qo_heads=\d+\]"),
        ({"sinks": np.zeros(HEADS, np.float16)}, "sinks: has shape .* of f16"),
        ({"sm_scale": 0.0}, "sm_scale: is 0"),
    ],
)
def test_one_call_refuses(rng: np.random.Generator, given: dict[str, Any], text: str) -> None:
    q, k = normal(rng, 5, HEADS, DIM), normal(rng, 9, KV_HEADS, DIM)
    with pytest.raises(ValueError, match=text):
        girih.attention(q, k, k, **given)


def test_one_call_names_its_arguments(rng: np.random.Generator) -> None:
    q, k = normal(rng, 5, HEADS, DIM), normal(rng, 9, KV_HEADS, DIM)
    for given, text in (
        ((q[:, : HEADS - 1], k, k), f"q: has {HEADS - 1} heads; must be a positive multiple of k's {KV_HEADS}"),
        ((q[:, :0], k, k), "q: has 0 heads"),
        ((q[..., :-1], k, k), f"k: has {DIM} dims; must have q's {DIM - 1}"),
        ((q, k, k[:8]), "v: has shape"),
        ((q.astype(np.int32), k, k), "q: is of i32; must be f32, f16 or bf16"),
    ):
        with pytest.raises(ValueError, match=text):
            girih.attention(*given)
    with pytest.raises(TypeError, match="k: None is no array"):
        girih.attention(q, None, k)  # type: ignore[arg-type]


def test_batch_invariance_and_repeats(rng: np.random.Generator) -> None:
    keys, values = requests(rng, [70, 33])
    q = normal(rng, 2, HEADS, DIM)
    context = girih.Context(num_workers=2)
    planned = girih.Attention(spec(batch_invariant=True), limits(), context=context)

    def run(which: list[int]) -> np.ndarray:
        offsets = np.cumsum([0, *(len(keys[r]) for r in which)])
        planned.plan(range(len(which) + 1), girih.Segment(kv_indptr=offsets, page_size=0))
        store = girih.KvStore.ragged(
            np.concatenate([keys[r] for r in which]), np.concatenate([values[r] for r in which])
        )
        return planned.run(q[which], store)[0]

    both = run([0, 1])
    assert (run([0])[0] == both[0]).all() and (run([1])[0] == both[1]).all() and (run([1, 0])[::-1] == both).all()


def test_capabilities_and_info() -> None:
    families = {row.family: row for row in girih.attention_capabilities()}
    assert families["cpu"].device == "cpu" and "paged" in families["cpu"].features
    assert "nvfp4" in families["cpu"].kv_dtypes and families["cpu"].max_head_dim == 1024
    info = girih.info()
    operators = {row["op"]: row for row in info["operators"]}
    assert operators["rms_norm"]["cuda"] and operators["sample"]["cuda"]
    assert json.loads(json.dumps(info)) == info
    assert list(info) == [
        *("version", "cpu", "targets", "target", "workers", "attention", "operators"),
        *("driver", "nvrtc", "kernels", "cache", "packs", "environment"),
    ]
    assert info["version"] == girih.__version__
    assert {row["name"] for row in info["environment"]} >= {"GIRIH_NUM_THREADS", "GIRIH_CACHE"}


def test_warmup_reports_progress(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[tuple[Any, ...]] = []
    girih.warmup(spec(), context=girih.Context(), progress=lambda *call: calls.append(call))
    assert calls == [(0, 0, "", "", "", 0.0)]
    girih.warmup([spec()], context=girih.Context(), progress=True)
    assert capsys.readouterr().err == ""

    def stop(*_: Any) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        girih.warmup(spec(), context=girih.Context(), progress=stop)


def test_the_bar_is_one_line() -> None:
    import io

    from girih._warmup import _Bar

    stream = io.StringIO()
    bar = _Bar(stream)
    bar(0, 2, "", "", "", 0.0)
    bar(1, 2, "attention_a", "sm_90a", "compiled", 1.5)
    bar(2, 2, "attention_b", "sm_90a", "cache", 0.0)
    text = stream.getvalue()
    assert (
        text.count("\n") == 1
        and text.endswith("\n")
        and "2/2 kernels" in text
        and "attention_a sm_90a (compiled, 1.5 s)" in text
    )
