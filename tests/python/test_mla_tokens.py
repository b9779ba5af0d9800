"""MLA's fp8 tokens of 656 bytes: from append through an indexer's table to attention, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from reference import decode_e4m3

import girih

PAGES, PAGE, LATENT, ROPE, HEADS, TOP_K = 3, 64, 512, 64, 4, 12
TOKENS = PAGES * PAGE

SPEC = girih.AttentionSpec(
    num_qo_heads=HEADS,
    num_kv_heads=1,
    head_dim_qk=LATENT + ROPE,
    head_dim_vo=LATENT,
    head_dim_rope=ROPE,
    q_dtype="f32",
    k_dtype="e4m3",
    k_rope_dtype="bf16",
    k_scale="token_group",
    v_is_k=True,
    sm_scale=0.05,
    lse="natural",
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def decoded(pool: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Latent and RoPE part of all tokens."""
    rows = pool.reshape(TOKENS, 656)
    scales = rows[:, 512:528].copy().view(np.float32).astype(np.float64)
    latent = decode_e4m3(rows[:, :512]).astype(np.float64).reshape(TOKENS, 4, 128) * scales[:, :, None]
    rope = (rows[:, 528:].copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return latent.reshape(TOKENS, LATENT), rope


def test_from_append_to_attention(rng: np.random.Generator) -> None:
    pool = np.full((PAGES, PAGE, 656), 0xFF, np.uint8)
    store = girih.KvStore.mla_tokens(pool)
    assert (store.page_size, store.num_pages, store.head_dim_k, store.head_dim_rope) == (PAGE, PAGES, LATENT, ROPE)
    assert (store.k_dtype, store.k_scale, store.k_rope_dtype) == ("e4m3", "token_group", "bf16")
    new, new_rope = (rng.standard_normal((TOKENS - 9, 1, dim), np.float32) for dim in (LATENT, ROPE))
    slots = rng.permutation(TOKENS)[: TOKENS - 9].astype(np.int32)
    girih.append_at(store, new, k_rope=new_rope, slots=slots)
    latent, rope = decoded(pool)
    groups = np.abs(new.reshape(-1, 4, 128)).max(-1) / 448
    assert np.abs(latent[slots] - new[:, 0]).max() <= groups.max() * 16
    assert np.abs(rope[slots] - new_rope[:, 0]).max() <= 2**-8 * np.abs(new_rope).max()
    unused = np.setdiff1d(np.arange(TOKENS), slots)
    assert (pool.reshape(TOKENS, 656)[unused] == 0xFF).all()

    table = np.full((3, TOP_K), -1, np.int32)
    table[0], table[2, ::2] = slots[:TOP_K], slots[20 : 20 + TOP_K // 2]  # row 1 has no token
    lists = girih.key_lists(table)
    assert lists.kv_len.tolist() == [TOP_K, 0, TOP_K // 2]
    q, q_rope = (rng.standard_normal((3, HEADS, dim), np.float32) for dim in (LATENT, ROPE))
    attention = girih.Attention(SPEC, girih.AttentionLimits(max_tokens=3, max_requests=1, max_groups=3, max_kv_len=TOP_K))
    attention.plan([0, 3], lists.segment(), kv_len=[TOKENS])
    data = lists.data(store.single_token_pages())
    o, lse = attention.run(q, data, q_rope=q_rope)
    assert (o[1] == 0).all() and (lse[1] == -np.inf).all()
    for row in (0, 2):
        chosen = table[row][table[row] >= 0]
        scores = (q[row] @ latent[chosen].T + q_rope[row] @ rope[chosen].T) * 0.05
        weights = np.exp(scores)
        np.testing.assert_allclose(lse[row], np.log(weights.sum(-1)), atol=1e-4)
        np.testing.assert_allclose(o[row], weights @ latent[chosen] / weights.sum(-1, keepdims=True), atol=1e-4)

    # The table itself, where used entries come first.
    front = np.sort(table, axis=1)[:, ::-1].copy()
    counts = (front >= 0).sum(1)
    segment = girih.Segment(qo_indptr=[0, 1, 2, 3], page_size=1, table_stride=TOP_K, kv_len=counts, masked=False)
    attention.plan([0, 3], segment, kv_len=[TOKENS])
    again, _ = attention.run(q, girih.SegmentData(store.single_token_pages(), front), q_rope=q_rope)
    np.testing.assert_allclose(again, o, atol=1e-5)


def test_scales_of_groups_beside_any_cache(rng: np.random.Generator) -> None:
    k = rng.integers(0, 120, (5, 2, 256)).astype(np.uint8)
    rope = rng.standard_normal((5, 2, 32)).astype(np.float16)
    scales = rng.uniform(0.01, 0.1, (5, 2, 2)).astype(np.float32)
    store = girih.KvStore.ragged(k, k, k_rope=rope, k_dtype="e4m3", k_scale=scales, v_scale=scales)
    assert (store.k_scale, store.v_scale, store.k_rope_dtype) == ("token_group", "token_group", "f16")
    spec = girih.AttentionSpec(
        num_qo_heads=2,
        num_kv_heads=2,
        head_dim_qk=288,
        head_dim_vo=256,
        head_dim_rope=32,
        q_dtype="f32",
        k_dtype="e4m3",
        k_rope_dtype="f16",
        k_scale="token_group",
        v_scale="token_group",
    )
    assert spec.k_rope_dtype == "f16" and 'k_rope_dtype="f16"' in repr(spec)
    attention = girih.Attention(spec, girih.AttentionLimits(max_tokens=1, max_requests=1, max_kv_len=5))
    attention.plan([0, 1], girih.Segment(kv_indptr=[0, 5], page_size=0))
    q, q_rope = (rng.standard_normal((1, 2, dim), np.float32) for dim in (256, 32))
    o = attention.run(q, store, q_rope=q_rope)
    value = decode_e4m3(k) * np.repeat(scales, 128, axis=2).astype(np.float64)
    for head in range(2):
        scores = (value[:, head] @ q[0, head] + rope[:, head].astype(np.float64) @ q_rope[0, head]) / np.sqrt(288)
        weights = np.exp(scores - scores.max())
        np.testing.assert_allclose(o[0, head], weights @ value[:, head] / weights.sum(), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="k_rope_scale: is given but f16 data has no scales"):
        girih.KvStore.ragged(k, k, k_rope=rope, k_dtype="e4m3", k_scale=scales, v_scale=scales, k_rope_scale=0.5)
    with pytest.raises(ValueError, match="one for each 128 dims"):
        girih.KvStore.ragged(k, k, k_dtype="e4m3", k_scale=np.ones((5, 2, 3), np.float32), v_scale=scales)


def test_refusals() -> None:
    pool = np.zeros((PAGES, PAGE, 656), np.uint8)
    store = girih.KvStore.mla_tokens(pool)
    with pytest.raises(ValueError, match="tokens has 640 bytes a token"):
        girih.KvStore.mla_tokens(pool[:, :, :640])
    with pytest.raises(ValueError, match="latent_dim=100"):
        girih.KvStore.mla_tokens(pool, latent_dim=100)
    with pytest.raises(ValueError, match="pages must adjoin"):
        girih.KvStore.mla_tokens(np.zeros((2, 2 * PAGE, 656), np.uint8)[:, :PAGE]).single_token_pages()
    for table, text in (
        (np.zeros((2, 3), np.int64), "indices: is i64; must be int32"),
        (np.zeros(3, np.int32), "indices: has 1 dimensions"),
        (np.zeros((2, 6), np.int32)[:, ::2], "indices: must be dense"),
    ):
        with pytest.raises(ValueError, match=text):
            girih.key_lists(table)
    with pytest.raises(ValueError, match="lists are of single tokens"):
        girih.key_lists(np.zeros((1, 1), np.int32)).data(store)
    with pytest.raises(ValueError, match="k_rope_dtype"):
        girih.AttentionSpec(num_qo_heads=1, num_kv_heads=1, head_dim_qk=64, k_rope_dtype="f99")
