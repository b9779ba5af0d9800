"""docs/integration.md does what it shows: its Python blocks run, those for engines with stand-ins for the engines."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "integration.md"
BLOCK = re.compile(r"(?:<!-- stand-ins: (\w+) -->\n)?```python\n(.*?)```\n", re.S)
HEADS, KV_HEADS, DIM = 4, 2, 16


def blocks(engine: str) -> str:
    found = [text for name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if name == engine]
    assert found
    return "\n".join(found)


def module(name: str, **members: Any) -> dict[str, types.ModuleType]:
    """A stand-in module and the packages above it."""
    parts = name.split(".")
    made = {".".join(parts[: i + 1]): types.ModuleType(parts[i]) for i in range(len(parts))}
    for key, value in members.items():
        setattr(made[name], key, value)
    return made


def reference(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of one request: q [q_len, heads, dim], k and v [kv_len, kv_heads, dim]."""
    mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out[0].transpose(0, 1)


def requests(lengths: list[tuple[int, int]]) -> list[tuple[Any, Any, Any]]:
    torch.manual_seed(4)
    return [
        (torch.randn(q, HEADS, DIM), torch.randn(kv, KV_HEADS, DIM), torch.randn(kv, KV_HEADS, DIM))
        for q, kv in lengths
    ]


def test_transformers_and_ops() -> None:
    pytest.importorskip("transformers", minversion="5.0")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small
    try:
        exec(compile(blocks(""), str(PAGE), "exec"), {"__name__": "page"})
    finally:
        torch.set_num_threads(threads)


def test_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Builder:
        def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
            self.kv_cache_spec = kv_cache_spec

    classes = {name: type(name, (), {}) for name in ("AttentionBackend", "AttentionImpl", "AttentionMetadata")}
    stand_ins = module("vllm.v1.attention.backend", AttentionMetadataBuilder=Builder, **classes)
    for name, made in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, made)
    page = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)
    exec(compile(blocks("vllm"), str(PAGE), "exec"), page.__dict__)

    backend: Any = page.__dict__["GirihBackend"]
    block_size, num_blocks = 4, 12
    cache = torch.zeros(backend.get_kv_cache_shape(num_blocks, block_size, KV_HEADS, DIM))
    space = types.SimpleNamespace
    config = space(
        model_config=space(get_num_attention_heads=lambda _: HEADS, dtype=torch.float32, max_model_len=64),
        parallel_config=None,
        scheduler_config=space(max_num_batched_tokens=32, max_num_seqs=4),
    )
    spec = space(num_kv_heads=KV_HEADS, head_size=DIM, block_size=block_size)
    builder = backend.get_builder_cls()(spec, ["layer"], config, torch.device("cpu"))
    layer = backend.get_impl_cls()(HEADS, DIM, DIM**-0.5, KV_HEADS, attn_type="decoder", sliding_window=None)
    with pytest.raises(NotImplementedError, match="sliding_window"):
        backend.get_impl_cls()(HEADS, DIM, DIM**-0.5, KV_HEADS, sliding_window=8)

    lengths = [(3, 3), (5, 11), (1, 6)]
    batch = requests(lengths)
    table = torch.randperm(num_blocks)[: 3 * 4].view(3, 4).to(torch.int32)
    for row, (q_len, kv_len) in enumerate(lengths):  # what earlier steps left in the cache
        for position in range(kv_len - q_len):
            place = (table[row, position // block_size], position % block_size)
            cache[0][place], cache[1][place] = batch[row][1][position], batch[row][2][position]
    rows = sum(q for q, _ in lengths)
    common = space(
        block_table_tensor=table,
        seq_lens=torch.tensor([kv for _, kv in lengths], dtype=torch.int32),
        query_start_loc_cpu=torch.tensor([0, *(q for q, _ in lengths)], dtype=torch.int32).cumsum(0),
        num_actual_tokens=rows,
    )

    def padded(tensors: list[Any]) -> Any:
        return torch.cat([*tensors, torch.full_like(tensors[0][:1], float("nan"))])

    output = torch.zeros(rows + 1, HEADS * DIM)
    new = [padded([part[i][-len(part[0]) :] for part in batch]) for i in range(3)]
    layer.forward(None, *new, cache, builder.build(0, common), output)
    expected = torch.cat([reference(*part) for part in batch])
    torch.testing.assert_close(output[:rows].view(rows, HEADS, DIM), expected, rtol=1e-5, atol=1e-5)
    assert not output[rows:].any()
    assert layer.forward(None, *new, cache, None, output.fill_(1)).sum() == 0


@pytest.mark.parametrize("lengths", [[(1, 9), (1, 4)], [(5, 5), (2, 11), (1, 6)]])
def test_sglang(monkeypatch: pytest.MonkeyPatch, lengths: list[tuple[int, int]]) -> None:
    made: dict[str, Any] = {}

    def register(name: str) -> Any:
        return lambda function: made.setdefault(name, function)

    stand_ins = module("sglang.srt.layers.attention.base_attn_backend", AttentionBackend=type("Base", (), {}))
    registry = module("sglang.srt.layers.attention.attention_registry", register_attention_backend=register)
    for name, stand_in in {**registry, **stand_ins}.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    exec(compile(blocks("sglang"), str(PAGE), "exec"), {"__name__": "page"})

    space = types.SimpleNamespace
    batch = requests(lengths)
    buffers = [torch.full((64, KV_HEADS, DIM), float("nan")) for _ in range(2)]
    places = torch.randperm(64)
    req_to_token = torch.zeros((5, 16), dtype=torch.int32)
    slots = torch.tensor([3, 0, 4])[: len(lengths)]
    new_places, used = [], 0
    for slot, (q, k, v) in zip(slots, batch, strict=True):
        mine = places[used : used + len(k)]
        used += len(k)
        req_to_token[slot, : len(k)] = mine.to(torch.int32)
        old = len(k) - len(q)
        buffers[0][mine[:old]], buffers[1][mine[:old]] = k[:old], v[:old]
        new_places.append(mine[old:])

    def set_kv_buffer(layer: Any, where: Any, k: Any, v: Any) -> None:
        buffers[0][where], buffers[1][where] = k.view(-1, KV_HEADS, DIM), v.view(-1, KV_HEADS, DIM)

    config = space(num_attention_heads=HEADS, get_num_kv_heads=lambda _: KV_HEADS, head_dim=DIM, context_len=64)
    runner = space(model_config=config, tp_size=1, dtype=torch.float32, max_total_num_tokens=64, device="cpu")
    runner.req_to_token_pool = space(req_to_token=req_to_token, size=5)
    backend = made["girih"](runner)
    pool = space(
        set_kv_buffer=set_kv_buffer, get_key_buffer=lambda _: buffers[0], get_value_buffer=lambda _: buffers[1]
    )
    decode = all(q == 1 for q, _ in lengths)
    forward = space(
        seq_lens_cpu=torch.tensor([kv for _, kv in lengths]),
        forward_mode=space(is_decode=lambda: decode),
        extend_seq_lens_cpu=[q for q, _ in lengths],
        req_pool_indices=slots,
        out_cache_loc=torch.cat(new_places),
        token_to_kv_pool=pool,
    )
    backend.init_forward_metadata(forward)
    q, k, v = (torch.cat([part[i][-len(part[0]) :] for part in batch]).flatten(1) for i in range(3))
    layer = space(layer_id=0, tp_q_head_num=HEADS, qk_head_dim=DIM, scaling=DIM**-0.5, logit_cap=0.0)
    layer.is_cross_attention, layer.sliding_window_size = False, -1
    out = (backend.forward_decode if decode else backend.forward_extend)(q, k, v, layer, forward)
    expected = torch.cat([reference(*part) for part in batch])
    torch.testing.assert_close(out, expected.flatten(1), rtol=1e-5, atol=1e-5)
