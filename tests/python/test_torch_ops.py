"""The custom ops: opcheck, whole graphs through torch.compile, declared mutation, refused gradients, and plans that
cross into graphs.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import girih  # noqa: E402
from girih import torch_ops  # noqa: E402

ops = torch.ops.girih


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(11)
    torch._dynamo.reset()


def device() -> str:
    return str(torch.get_default_device())


def host(values: Any) -> Any:
    """What plans are made of."""
    return torch.tensor(values, device="cpu")


def planned(lengths: list[tuple[int, int]], page_size: int, **spec: Any) -> Any:
    """A Planned over a paged batch of (qo_len, kv_len) requests with 4 heads on 2 of 16 dims, and its page table."""
    spec = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 16, "q_dtype": "f32", **spec}
    attention = girih.Attention(
        girih.AttentionSpec(variant=girih.Variant(mask=girih.variants.causal()), **spec),
        girih.AttentionLimits(max_tokens=64, max_requests=8, max_kv_len=256),
        device=device(),
    )
    result = torch_ops.Planned(attention)
    return result, plan(result, lengths, page_size)


def plan(planned: Any, lengths: list[tuple[int, int]], page_size: int) -> Any:
    pages = [-(-kv // page_size) for _, kv in lengths]
    planned.plan(
        host([0, *(q for q, _ in lengths)]).cumsum(0),
        [
            girih.Segment(
                kv_indptr=host([0, *pages]).cumsum(0),
                kv_len=host([kv for _, kv in lengths]),
                page_size=page_size,
            )
        ],
    )
    return torch.randperm(sum(pages), dtype=torch.int32)


def reference(q: Any, k: Any, v: Any, pages: Any, lengths: list[tuple[int, int]], page_size: int) -> Any:
    """Causal attention request by request, by torch."""
    rows, used, out = 0, 0, []
    for q_len, kv_len in lengths:
        count = -(-kv_len // page_size)
        ids = pages[used : used + count].long()
        keys, values = (x[ids].flatten(0, 1)[:kv_len].transpose(0, 1)[None] for x in (k, v))
        mask = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)
        queries = q[rows : rows + q_len].transpose(0, 1)[None]
        o = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        out.append(o[0].transpose(0, 1))
        rows, used = rows + q_len, used + count
    return torch.cat(out)


def cases() -> list[Any]:
    """(op, arguments) of every op that is a function of tensors alone."""
    g = torch.Generator(device()).manual_seed(2)

    def rand(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.randn(*shape, generator=g).to(dtype)

    positions = torch.tensor([0, 5, 9])
    table = torch.as_tensor(girih.rope_cos_sin(8, 16))
    row = torch.full((3,), 0.7)
    one = torch.ones(1, dtype=torch.int64)
    verified = (rand(2, 4, 50).softmax(-1), torch.tensor([[1, 2, 3], [4, 5, 6]]).int(), rand(2, 3, 50).softmax(-1))
    indptr = host([0, 2, 3])
    append = (
        rand(3, 2, 8),
        rand(3, 2, 8),
        rand(4, 4, 2, 8),
        rand(4, 4, 2, 8),
        None,
        None,
        indptr,
        host([2, 6]),
    )
    append += (host([1, 3, 0]).int(), host([0, 1, 3]), 0, "NHD")
    return [
        ("attention", (rand(5, 4, 16), rand(9, 2, 16), rand(9, 2, 16), None, True, None, None, None)),
        ("attention", (rand(2, 5, 4, 16), rand(2, 9, 2, 16), rand(2, 9, 2, 8), rand(4), True, 4, 3.0, 0.2)),
        ("merge_state", (rand(3, 2, 8), rand(3, 2), rand(3, 2, 8), rand(3, 2), False)),
        ("append", append),
        ("append_at", (*append[:4], None, None, torch.tensor([3, 0, 9]), None, None, None, None, "NHD")),
        ("merge_states", (rand(3, 4, 2, 8), rand(3, 4, 2), True)),
        ("rms_norm", (rand(3, 8, dtype=torch.bfloat16), rand(8), 1e-6, 1.0)),
        ("rms_norm", (rand(2, 3, 4, 8)[..., :6], None, 1e-6, 0.0)),
        ("add_rms_norm", (rand(3, 8), rand(3, 8), rand(8), 1e-6, 0.0)),
        ("layer_norm", (rand(3, 8), rand(8), rand(8), 1e-5)),
        ("activate", (rand(3, 16), "silu", None, False, 1.702, 7.0)),
        ("activate", (rand(3, 16), "gelu", rand(3, 16), False, 1.702, 7.0)),
        ("rope", (rand(3, 4, 8), rand(3, 2, 8), table, positions, 0, False, rand(8), None, 1e-6, 0.0)),
        ("sample", (rand(3, 50), row, torch.full((3,), 5, dtype=torch.int32), row, None, one, one)),
        ("softmax", (rand(3, 50), 0.5)),
        ("top_k", (rand(3, 50), 7, True)),
        ("top_p_renorm_probs", (rand(3, 50).softmax(-1), row)),
        ("top_k_renorm_probs", (rand(3, 50).softmax(-1), torch.full((3,), 5, dtype=torch.int32))),
        ("top_k_mask_logits", (rand(3, 50, dtype=torch.bfloat16), torch.full((3,), 5))),
        ("chain_speculative_sample", (*verified, None, False, one, one)),
        ("chain_speculative_sample", (*verified[:2], None, torch.tensor([0, 2]).int(), True, one, one)),
        ("quantize", (rand(3, 160), "e4m3", "token", 1.0)),
        ("quantize", (rand(3, 2, 160), "i8", "block", 1.0)),
        ("quantize", (rand(3, 80), "nvfp4", "block", 1.0)),
        ("quantize", (rand(3, 80), "mxfp4", "block", 1.0)),
        ("quantize", (rand(3, 80), "e5m2", "mx", 1.0)),
        ("quantize", (rand(130, 160), "e4m3", "tile", 1.0)),
        (
            "dequantize",
            (
                *(x.view(torch.uint8) for x in girih.quantize(rand(3, 31), "nvfp4", "block")),
                "block",
                "nvfp4",
                1.0,
                31,
                torch.bfloat16,
            ),
        ),
        ("dequantize", (*girih.quantize(rand(3, 31), "i8", "token"), "token", "", 1.0, 31, torch.float32)),
    ]


@pytest.mark.parametrize("number", range(len(cases())))
def test_opcheck(number: int) -> None:
    name, arguments = cases()[number]
    torch.library.opcheck(getattr(ops, name).default, arguments)


def test_opcheck_of_planned_runs() -> None:
    lengths = [(1, 9), (5, 12)]
    attention, pages = planned(lengths, 4, lse="natural")
    q, k, v = torch.randn(6, 4, 16), torch.randn(6, 4, 2, 16), torch.randn(6, 4, 2, 16)
    arguments = (
        q,
        [k],
        [v],
        [pages],
        [],
        [],
        [],
        None,
        [],
        "",
        [],
        "",
        "NHD",
        attention.handle,
        16,
        torch.float32,
        True,
    )
    torch.library.opcheck(ops.run.default, arguments)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_decoder_layer_in_one_graph(backend: str) -> None:
    """Norm, RoPE, append to the cache, planned attention, norm with residual and activation, compiled whole; steps
    differ in lengths.
    """
    page_size = 4
    weight = torch.randn(64)
    table = torch.as_tensor(girih.rope_cos_sin(16, 64))

    def layer(
        x: Any, cache: Any, plan: Any, pages: Any, host_pages: Any, indptr: Any, kv_len: Any, kv_indptr: Any, positions: Any
    ) -> Any:
        h = torch_ops.rms_norm(x, weight)
        q, k = torch_ops.rope(h.view(-1, 4, 16), h[:, :32].reshape(-1, 2, 16), table, positions)
        torch_ops.append(k, k * 0.5, *cache, append_indptr=indptr, kv_len=kv_len, kv_indices=host_pages, kv_indptr=kv_indptr)
        o = plan(q, *cache, kv_indices=pages)
        h, x = torch_ops.add_rms_norm(o.flatten(1), x, weight)
        return x.repeat(1, 1) + torch_ops.activate(torch.cat((h, h * 2), 1), "silu")

    compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=True)
    attention, _ = planned([(1, 1)], page_size)
    caches = [[torch.zeros(12, page_size, 2, 16) for _ in range(2)] for _ in range(2)]
    for lengths in ([(3, 3), (6, 6)], [(1, 4), (1, 7)], [(2, 6), (1, 8)]):
        pages = plan(attention, lengths, page_size)
        tokens = sum(q for q, _ in lengths)
        x = torch.randn(tokens, 64)
        indptr = host([0, *(q for q, _ in lengths)]).cumsum(0)
        kv_len = host([kv for _, kv in lengths])
        kv_indptr = host([0, *(-(-kv // page_size) for _, kv in lengths)]).cumsum(0)
        positions = torch.cat([torch.arange(kv - q, kv) for q, kv in lengths])
        with torch.no_grad():
            results = [
                run(x, cache, attention, pages, pages.cpu(), indptr, kv_len, kv_indptr, positions)
                for run, cache in zip((layer, compiled), caches, strict=True)
            ]
        torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
        assert all(torch.equal(a, b) for a, b in zip(*caches, strict=True))
        assert caches[0][0].any()


def test_planned_runs_are_right_and_follow_the_plan() -> None:
    page_size = 4
    attention, pages = planned([(1, 9), (5, 12)], page_size)
    compiled = torch.compile(
        lambda q, k, v, pages: attention(q, k, v, kv_indices=pages), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for lengths in ([(1, 9), (5, 12)], [(2, 3), (1, 30), (4, 4)]):
        pages = plan(attention, lengths, page_size)
        rows = sum(q for q, _ in lengths)
        q, k, v = torch.randn(rows, 4, 16), torch.randn(len(pages), 4, 2, 16), torch.randn(len(pages), 4, 2, 16)
        out = compiled(q, k, v, pages)
        torch.testing.assert_close(out, reference(q, k, v, pages, lengths, page_size), rtol=1e-5, atol=1e-5)


def test_a_second_plan_does_not_recompile_for_ever() -> None:
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda a, q, k: a(q, k, k), fullgraph=True, backend=counter)
    spec = girih.AttentionSpec(num_qo_heads=2, num_kv_heads=2, head_dim_qk=8, q_dtype="f32")
    q, k = torch.randn(1, 2, 8), torch.randn(5, 2, 8)
    kept = []
    for _ in range(5):
        one = torch_ops.Planned(
            girih.Attention(
                spec, girih.AttentionLimits(max_tokens=4, max_requests=2, max_kv_len=16), device=device()
            )
        )
        one.plan([0, 1], [girih.Segment(kv_indptr=[0, 5], page_size=0)])
        kept.append(one)
        torch.testing.assert_close(compiled(one, q, k), girih.attention(q, k, k), rtol=1e-5, atol=1e-5)
    assert counter.frame_count <= 2  # the handle becomes a number of the graph's


def test_plans_live_as_long_as_their_owner() -> None:
    attention, pages = planned([(1, 3)], 4)
    q, k = torch.randn(1, 4, 16), torch.randn(1, 4, 2, 16)
    call = (q, [k], [k], [pages], [], [], [], None, [], "", [], "", "NHD", attention.handle, 16, torch.float32, False)
    ops.run(*call)
    del attention
    gc.collect()
    with pytest.raises(RuntimeError, match="is gone"):
        ops.run(*call)


def test_planned_appends_are_for_cuda() -> None:
    if device() != "cpu":
        pytest.skip("they work there")
    attention, pages = planned([(1, 3)], 4)
    k = torch.randn(1, 2, 16)
    cache = torch.zeros(1, 4, 2, 16)
    with pytest.raises(NotImplementedError, match=r"append\(\)"):
        attention.append(k, k, cache, cache.clone(), kv_indices=pages)
    assert not cache.any()


def test_parameters_of_variants() -> None:
    variant = girih.Variant(
        logits=girih.score() * girih.scalar("factor") + girih.array("bias")[girih.q_head()] * girih.kv_pos()
    )
    spec = girih.AttentionSpec(num_qo_heads=2, num_kv_heads=2, head_dim_qk=8, q_dtype="f32", variant=variant)
    limits = girih.AttentionLimits(max_tokens=4, max_requests=2, max_kv_len=16)
    one = torch_ops.Planned(girih.Attention(spec, limits, device=device()))
    one.plan([0, 2], [girih.Segment(kv_indptr=[0, 5], page_size=0)])
    q, k, bias = torch.randn(2, 2, 8), torch.randn(5, 2, 8), torch.randn(2)
    out = torch.compile(
        lambda q, k, b: one(q, k, k, params={"bias": b, "factor": 2}), fullgraph=True, backend="aot_eager"
    )(q, k, bias)
    scores = torch.einsum("qhd,khd->hqk", q, k) / 8**0.5 * 2 + bias[:, None, None] * torch.arange(5)
    torch.testing.assert_close(out, torch.einsum("hqk,khd->qhd", scores.softmax(-1), k), rtol=1e-5, atol=1e-5)


def test_a_speculative_step_in_one_graph() -> None:
    """Verification, filters and an append by slots, compiled whole: what a step with drafts has beside attention."""

    def step(logits: Any, drafts: Any, k: Any, slots: Any, cache: Any, offset: Any) -> Any:
        probs = torch_ops.softmax(logits.flatten(0, 1), 0.7)
        target = torch_ops.top_p_renorm_probs(torch_ops.top_k_renorm_probs(probs, 20), 0.9).view_as(logits)
        torch_ops.append_at(k, k * 2, *cache, slots=slots)
        return torch_ops.chain_speculative_sample(target, drafts, seed=3, offset=offset)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    caches = [[torch.zeros(4, 4, 2, 8) for _ in range(2)] for _ in range(2)]
    for batch in (2, 3):
        logits, drafts = torch.randn(batch, 4, 60), torch.randint(60, (batch, 3)).int()
        k, slots = torch.randn(batch, 2, 8), torch.randperm(16)[:batch]
        with torch.no_grad():
            results = [
                run(logits, drafts, k, slots, cache, torch.tensor([batch]))
                for run, cache in zip((step, compiled), caches, strict=True)
            ]
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(*caches, strict=True)) and caches[0][1].any()


def test_gradients_are_refused() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="girih::rms_norm is for inference"):
        torch_ops.rms_norm(x).sum().backward()
    q = torch.randn(3, 2, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="girih::attention is for inference"):
        torch_ops.attention(q, q, q).sum().backward()
    cache = torch.zeros(4, 2, 8)
    places = {"append_indptr": host([0, 3]), "kv_len": host([3]), "kv_indptr": host([0, 4])}
    with pytest.raises(RuntimeError, match="girih::append is for inference"):
        torch_ops.append(q, q, cache, cache.clone(), **places)
    assert not cache.any()
    with torch.no_grad():
        torch_ops.append(q, q, cache, cache.clone(), **places)
    assert torch.equal(cache[:3], q)


def test_values() -> None:
    """What wrappers add to the ops: defaults, leading dimensions, numbers as tensors."""
    x = torch.randn(2, 3, 4, 8)
    torch.testing.assert_close(torch_ops.rms_norm(x), torch.nn.functional.rms_norm(x, (8,), eps=1e-6))
    torch.testing.assert_close(torch_ops.layer_norm(x, eps=1e-5), torch.nn.functional.layer_norm(x, (8,)))
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(torch_ops.activate(x), torch.nn.functional.silu(gate) * up)
    torch.testing.assert_close(torch_ops.activate(gate, "multiply", up=up), gate * up)
    logits = torch.randn(5, 100)
    torch.testing.assert_close(torch_ops.softmax(logits, 0.5), (logits / 0.5).softmax(-1))
    values, indices = torch_ops.top_k(logits, 4, sorted=True)
    expected = logits.topk(4)
    assert torch.equal(values, expected.values) and torch.equal(indices.long(), expected.indices)
    assert torch.equal(torch_ops.sample(logits, seed=1, offset=0, temperature=0.0).long(), logits.argmax(-1))
    drawn = [torch_ops.sample(logits, seed=1, offset=i, top_k=3, top_p=0.9) for i in (0, 0, 1, 2, 3)]
    assert torch.equal(drawn[0], drawn[1]) and not all(torch.equal(drawn[0], d) for d in drawn[2:])
    assert all((logits.topk(3).indices == d[:, None]).any(-1).all() for d in drawn)
    probs = logits.softmax(-1)
    top = torch_ops.top_k_renorm_probs(probs, 3)
    assert ((top > 0).sum(-1) == 3).all() and torch.allclose(top.sum(-1), torch.ones(5))
    assert torch.equal(torch_ops.top_p_renorm_probs(probs, 1.0), probs)
    assert (torch_ops.top_k_mask_logits(logits, 3).isfinite().sum(-1) == 3).all()
    drafts = probs.argmax(-1)[:4].view(2, 2).int()
    target = probs[:4].view(2, 2, 100)
    tokens, accepted = torch_ops.chain_speculative_sample(
        torch.cat((target, target[:, :1]), 1), drafts, seed=1, offset=0, greedy=True
    )
    assert torch.equal(tokens[:, :2], drafts) and accepted.tolist() == [2, 2]
    v, s = torch.randn(3, 4, 2, 8), torch.randn(3, 4, 2)
    merged, lse = torch_ops.merge_states(v, s)
    torch.testing.assert_close(merged, (v * s.softmax(1)[..., None]).sum(1))
    torch.testing.assert_close(lse, s.logsumexp(1))
    codes, scales = torch_ops.quantize(logits, "i8")
    torch.testing.assert_close(
        torch_ops.dequantize(codes, scales), logits, rtol=0, atol=float(logits.abs().max()) / 200
    )
    with pytest.raises(ValueError, match="tensor"):
        torch_ops.quantize(logits, scale="tensor")
