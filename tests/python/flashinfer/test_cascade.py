"""girih.flashinfer.cascade against float64: merges with empty states, levels of shared prefixes, the older shared-prefix wrappers."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attention_reference import attend, check, workspace
from girih.flashinfer import cascade


def state(n: int, *shape: int, seed: int) -> tuple[Any, Any]:
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    return torch.randn(n, *shape, 64, generator=generator).half(), torch.randn(n, *shape, generator=generator) * 4


def merged(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    s = torch.stack([s.double() for _, s in parts])
    largest = s.amax(0)
    weight = torch.nan_to_num(torch.exp2(s - largest))
    total = weight.sum(0)
    out = (
        sum(w[..., None] * v.double() for w, (v, _) in zip(weight, parts, strict=True))
        / total.clamp(min=1e-300)[..., None]
    )
    return out, largest + torch.log2(total)


def test_merges() -> None:
    a, b = state(5, 3, seed=0), state(5, 3, seed=1)
    b[1][1] = -math.inf
    b[0][1] = 0
    a[1][2], b[1][2] = -math.inf, -math.inf
    a[0][2], b[0][2] = 0, 0
    a[1][3], b[1][3] = -1e30, -1e30
    v, s = cascade.merge_state(*a, *b)
    check((v, s), merged([a, b]))
    assert torch.equal(v[1], a[0][1]) and torch.equal(s[1], a[1][1])
    assert not v[2].any() and bool((s[2] == -math.inf).all())
    stacked = torch.stack([a[0], b[0]], 1), torch.stack([a[1], b[1]], 1)
    many = cascade.merge_states(*stacked)
    torch.testing.assert_close(many[0], v, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(many[1], s)


@pytest.mark.parametrize("s_dtype", [torch.float32, torch.float64])
def test_merge_in_place(s_dtype: Any) -> None:
    a, b = state(6, 3, seed=0), state(6, 3, seed=1)
    expected = merged([a, b])
    mask = torch.tensor([True, False, True, True, False, True])
    v, s = a[0].clone(), a[1].to(s_dtype)
    cascade.merge_state_in_place(v, s, *b, mask=mask)
    check((v[mask], s[mask]), (expected[0][mask], expected[1][mask]))
    assert torch.equal(v[~mask], a[0][~mask]) and torch.equal(s[~mask], a[1][~mask].to(s_dtype))
    cascade.merge_state_in_place(v, s, *b)
    assert not torch.equal(v[~mask], a[0][~mask])
    with pytest.raises(ValueError, match="mask"):
        cascade.merge_state_in_place(v, s, *b, mask=mask[:2])


class Tree:
    """Two levels above the requests: one prefix of all, one per pair, then the requests' own keys, in one cache."""

    def __init__(self, q_len: int, own: list[int], page_size: int = 16, seed: int = 0) -> None:
        generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
        self.lens = [[37], [20, 5], own]
        self.page_size, self.q_len = page_size, q_len
        self.levels: list[tuple[Any, Any, Any]] = []
        at = 0
        for lens in self.lens:
            pages = [-(-n // page_size) for n in lens]
            indptr = torch.tensor([0, *torch.tensor(pages).cumsum(0).tolist()], dtype=torch.int32)
            last = torch.tensor([(n - 1) % page_size + 1 for n in lens], dtype=torch.int32)
            self.levels.append((indptr, torch.arange(at, at + int(indptr[-1]), dtype=torch.int32), last))
            at += int(indptr[-1])
        self.cache = torch.randn(at, 2, page_size, 2, 64, generator=generator).half()
        self.q = torch.randn(4 * q_len, 4, 64, generator=generator).half()
        groups = [[0, 4], [0, 2, 4], [0, 1, 2, 3, 4]]
        self.qo = [torch.tensor(g, dtype=torch.int32) * q_len for g in groups]

    def plan(self, wrapper: Any, **options: Any) -> None:
        tables = [list(t) for t in zip(*self.levels, strict=True)]
        wrapper.plan(self.qo, *tables, 4, 2, 64, self.page_size, **options)

    def keys(self, level: int, group: int) -> tuple[Any, Any]:
        indptr, indices, _ = self.levels[level]
        pages = self.cache[indices[indptr[group] : indptr[group + 1]].long()]
        n = self.lens[level][group]
        return pages[:, 0].reshape(-1, 2, 64)[:n], pages[:, 1].reshape(-1, 2, 64)[:n]

    def all_keys(self, request: int) -> tuple[Any, Any]:
        parts = [self.keys(0, 0), self.keys(1, request // 2), self.keys(2, request)]
        return torch.cat([k for k, _ in parts]), torch.cat([v for _, v in parts])


@pytest.mark.parametrize("q_len", [1, 3])
@pytest.mark.parametrize(
    "options", [{}, {"window_left": 25}, {"pos_encoding_mode": "ROPE_LLAMA"}, {"logits_soft_cap": 6.0, "sm_scale": 0.2}]
)
def test_multi_level_cascade(q_len: int, options: dict[str, Any]) -> None:
    tree = Tree(q_len, [4, 17, 33, 3])
    wrapper = cascade.MultiLevelCascadeAttentionWrapper(3, workspace())
    tree.plan(wrapper, causal=True, **options)
    out = wrapper.run(tree.q, tree.cache)
    for request in range(4):
        rows = slice(request * q_len, (request + 1) * q_len)
        expected, _ = attend(
            tree.q[rows], *tree.all_keys(request),
            causal=True,
            window_left=options.get("window_left", -1),
            rope="pos_encoding_mode" in options,
            cap=options.get("logits_soft_cap", 0.0),
            sm_scale=options.get("sm_scale"),
        )  # fmt: skip
        check(out[rows], expected)


def test_cascade_replans_and_keeps_graph_buffers() -> None:
    first, second = Tree(2, [40, 17, 33, 3]), Tree(2, [4, 6, 2, 50], seed=1)
    buffers: list[list[Any]] = [[], [], [], []]
    for level in range(3):
        buffers[0].append(torch.zeros_like(first.qo[level]))
        buffers[1].append(torch.zeros_like(first.levels[level][0]))
        buffers[2].append(torch.zeros(16, dtype=torch.int32))
        buffers[3].append(torch.zeros_like(first.levels[level][2]))
    wrapper = cascade.MultiLevelCascadeAttentionWrapper(3, workspace(), "NHD", True, *buffers)
    assert wrapper.is_cuda_graph_enabled
    for tree in (first, second, first):
        tree.plan(wrapper, causal=True)
        out = wrapper.run(tree.q, tree.cache)
        check(out[2:4], attend(tree.q[2:4], *tree.all_keys(1), causal=True)[0])
        assert torch.equal(buffers[1][2], tree.levels[2][0])
    with pytest.raises(ValueError, match="num_levels"):
        wrapper.plan(first.qo[:2], *[[]] * 3, 4, 2, 64, 16)
    with pytest.raises(ValueError, match="num_levels"):
        cascade.MultiLevelCascadeAttentionWrapper(2, workspace(), "NHD", True)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_shared_prefix_wrappers(layout: str) -> None:
    tree = Tree(3, [4, 17, 33, 5])
    indptr, indices, last = tree.levels[2]
    cache = tree.cache if layout == "NHD" else tree.cache.transpose(2, 3).contiguous()
    prefill = cascade.BatchPrefillWithSharedPrefixPagedKVCacheWrapper(workspace(), layout)
    prefill.begin_forward(tree.qo[2], indptr, indices, last, 4, 2, 64, 16)
    decode = cascade.BatchDecodeWithSharedPrefixPagedKVCacheWrapper(workspace(), layout)
    decode.begin_forward(indptr, indices, last, 4, 2, 64, 16, data_type="float16")
    for prefix in (37, 12):
        k, v = (t[:prefix] for t in tree.keys(0, 0))
        shared = (k, v) if layout == "NHD" else (k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous())
        out = prefill.forward(tree.q, *shared, cache, causal=True, sm_scale=0.1)
        one = decode.forward(tree.q[:4], *shared, cache)
        for request in range(4):
            own = tree.keys(2, request)
            keys = torch.cat([k, own[0]]), torch.cat([v, own[1]])
            rows = slice(request * 3, request * 3 + 3)
            check(out[rows], attend(tree.q[rows], *keys, causal=True, sm_scale=0.1)[0])
            check(one[request : request + 1], attend(tree.q[request : request + 1], *keys)[0])
