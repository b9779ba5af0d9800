"""What only a GPU shows of the Python package: streams, CUDA graphs, memory that is reused, threads, arrays of other libraries. Results that
do not depend on these are tested on the GPU by the files that test them on the CPU."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from devices import DEVICES

torch = pytest.importorskip("torch")
if "cuda" not in DEVICES:
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

import girih  # noqa: E402
from girih import torch_ops  # noqa: E402

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 64, 16
#: Of the GPU's clock: far longer than a launch takes.
LONG = 600_000_000


@pytest.fixture(autouse=True)
def seeded() -> Any:
    torch.manual_seed(3)
    yield
    torch.cuda.synchronize()


def rand(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype)


class Cache:
    """A paged cache with a page table for requests of up to `longest` keys."""

    def __init__(self, requests: int, longest: int, fill: bool = True) -> None:
        self.columns = -(-longest // PAGE)
        pages = requests * self.columns
        make = rand if fill else lambda *shape: torch.zeros(*shape, device="cuda", dtype=torch.float16)
        self.k, self.v = make(pages, PAGE, KV_HEADS, DIM), make(pages, PAGE, KV_HEADS, DIM)
        self.ids = torch.randperm(pages, device="cuda").int()
        self.table = self.ids.view(requests, self.columns)
        self.store = girih.KvStore.paged(self.k, self.v)

    def keys(self, request: int, count: int) -> Any:
        ids = self.table[request].long()
        return tuple(x[ids].flatten(0, 1)[:count].double() for x in (self.k, self.v))

    def segment(self, lengths: list[int]) -> Any:
        return girih.Segment(kv_len=lengths, table_stride=self.columns, page_size=PAGE)


def attention(requests: int, longest: int, tokens: int = 0, **spec: Any) -> Any:
    spec = {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim_qk": DIM, "q_dtype": "f16"} | spec
    return girih.Attention(
        girih.AttentionSpec(variant=girih.Variant(mask=girih.variants.causal()), **spec),
        girih.AttentionLimits(max_tokens=tokens or requests, max_requests=requests, max_kv_len=longest),
        device="cuda",
    )


def expected(q: Any, cache: Cache, lengths: list[int]) -> Any:
    """Decode of one row per request, in float64."""
    rows = []
    for r, count in enumerate(lengths):
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in cache.keys(r, count))
        weight = torch.softmax(torch.einsum("hd,khd->hk", q[r].double(), k) * DIM**-0.5, -1)
        rows.append(torch.einsum("hk,khd->hd", weight, v))
    return torch.stack(rows)


def check(out: Any, want: Any) -> None:
    torch.testing.assert_close(out.double(), want, rtol=4e-3, atol=4e-3)


def test_what_is_known_of_the_machine() -> None:
    info = girih.info()
    assert "missing" not in info["driver"] and "missing" not in info["nvrtc"], info
    context = girih.default_context("cuda")
    assert context.device == "cuda:0" and girih.default_context("cuda:0") is context


def test_work_goes_to_the_current_stream_and_nothing_waits() -> None:
    cache, lengths = Cache(3, 200), [200, 1, 77]
    planned = attention(3, 200)
    planned.plan([0, 1, 2, 3], cache.segment(lengths))
    real = rand(3, HEADS, DIM)

    def work(q: Any) -> tuple[Any, Any, Any]:
        planned.plan([0, 1, 2, 3], cache.segment(lengths))
        out = planned.run(q, cache.store, kv_indices=cache.ids)
        merged, _ = girih.merge_state(out, out[..., 0].float(), out, out[..., 0].float())
        return out, merged, girih.rms_norm(q.flatten(1))

    work(real)  # kernels are loaded, the workspace is made
    torch.cuda.synchronize()
    q = torch.full_like(real, torch.nan)
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
        q.copy_(real)
        out, merged, norm = work(q)
        done.record()
    assert not done.query()
    side.synchronize()
    check(out, expected(real, cache, lengths))
    check(merged, out.double())
    check(norm, torch.nn.functional.rms_norm(real.flatten(1).double(), (HEADS * DIM,), eps=1e-6))


def test_a_stream_may_be_given() -> None:
    cache, lengths = Cache(2, 64), [64, 5]
    planned = attention(2, 64)
    side = torch.cuda.Stream()
    real = rand(2, HEADS, DIM)
    q = torch.zeros_like(real)
    torch.cuda.synchronize()
    planned.plan([0, 1, 2], cache.segment(lengths), stream=side)
    planned.run(q, cache.store, kv_indices=cache.ids, stream=side.cuda_stream)
    side.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG // 4)
        q.copy_(real)
    out = planned.run(q, cache.store, kv_indices=cache.ids, stream=side)
    side.synchronize()
    check(out, expected(real, cache, lengths))


def test_a_graph_replays_what_is_planned_since() -> None:
    """Append, rotation and attention of a decode step in one graph, with other lengths in each replay."""
    longest, requests = 300, 4
    cache = Cache(requests, longest, fill=False)
    planned = attention(requests, longest, lse="natural")
    table = torch.as_tensor(girih.rope_cos_sin(DIM, longest)).cuda()
    q, k, v = rand(requests, HEADS, DIM), rand(requests, KV_HEADS, DIM), rand(requests, KV_HEADS, DIM)
    rows = list(range(requests + 1))

    def step() -> Any:
        rotated = girih.rope_append_planned(planned, cache.store, q, k, v, table, kv_indices=cache.ids)
        return planned.run(rotated, cache.store, kv_indices=cache.ids)

    planned.plan(rows, cache.segment([1, 2, 3, 4]))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = step()
    for lengths in ([1, 2, 3, 4], [300, 17, 16, 1], [5, 299, 128, 64]):
        for x in (cache.k, cache.v):
            x.normal_()
        for x in (q, k, v):
            x.normal_()
        before = cache.k.clone()
        planned.plan(rows, cache.segment(lengths))
        graph.replay()
        positions = torch.tensor([n - 1 for n in lengths], device="cuda")
        turned_q, turned_k = girih.rope(q, k, table, positions=positions)
        for r, count in enumerate(lengths):
            keys, values = cache.keys(r, count)
            assert torch.equal(keys[-1], turned_k[r].double()) and torch.equal(values[-1], v[r].double())
        assert (cache.k != before).flatten(1).any(1).sum() == requests  # one page each
        check(out, expected(turned_q, cache, lengths))
        assert torch.isfinite(lse).all()


def test_planned_appends_write_what_appends_write() -> None:
    lengths, q_lens = [40, 9], [5, 9]
    caches = [Cache(2, 64, fill=False) for _ in range(2)]
    caches[1].ids.copy_(caches[0].ids)
    planned = attention(2, 64, tokens=32)
    planned.plan([0, 5, 14], caches[0].segment(lengths))
    k, v = rand(14, KV_HEADS, DIM), rand(14, KV_HEADS, DIM)
    girih.append_planned(planned, caches[0].store, k, v, kv_indices=caches[0].ids)
    girih.append(
        caches[1].store,
        k,
        v,
        append_indptr=[0, 5, 14],
        kv_len=lengths,
        kv_indices=caches[1].ids.tolist(),
        table_stride=caches[1].columns,
    )
    for a, b in ((caches[0].k, caches[1].k), (caches[0].v, caches[1].v)):
        assert torch.equal(a, b) and int(a.flatten(2).any(2).sum()) == sum(q_lens)


def test_appends_by_arrays_in_graphs() -> None:
    """append_at() and the drop-in's append read nothing on the host: captured once, they follow the arrays."""
    from girih import flashinfer

    cache = Cache(2, 64, fill=False)
    k, v = rand(3, KV_HEADS, DIM), rand(3, KV_HEADS, DIM)
    slots = torch.zeros(3, dtype=torch.int64, device="cuda")
    requests, positions = (torch.zeros(3, dtype=torch.int32, device="cuda") for _ in range(2))
    indptr = torch.tensor([0, cache.columns, 2 * cache.columns], dtype=torch.int32, device="cuda")
    last = torch.full((2,), PAGE, dtype=torch.int32, device="cuda")

    def by_slots() -> None:
        girih.append_at(cache.store, k, v, slots=slots)

    def by_positions() -> None:
        flashinfer.append_paged_kv_cache(k, v, requests, positions, (cache.k, cache.v), cache.ids, indptr, last)

    for step, (first, second) in ((by_slots, (slots, slots)), (by_positions, (requests, positions))):
        first.copy_(torch.tensor([-1, -1, -1]))
        step()
        assert not cache.k.any()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for places in ([(0, 0), (1, 63), (1, 17)], [(1, 5), (-1, 0), (0, 40)]):
            cache.k.zero_()
            k.normal_()
            ids = [-1 if r < 0 else int(cache.table[r, p // PAGE]) * PAGE + p % PAGE for r, p in places]
            if step is by_slots:
                slots.copy_(torch.tensor(ids))
            else:
                requests.copy_(torch.tensor([r for r, _ in places]))
                positions.copy_(torch.tensor([p for _, p in places]))
            graph.replay()
            flat = cache.k.view(-1, KV_HEADS, DIM)
            for row, place in enumerate(ids):
                if place >= 0:
                    assert torch.equal(flat[place], k[row])
            assert int(flat.flatten(1).any(1).sum()) == sum(i >= 0 for i in ids)
        cache.k.zero_()
    # What lies outside is not written: past a list, in no list, past the store.
    requests.copy_(torch.tensor([0, 7, 1]))
    positions.copy_(torch.tensor([64, 0, -2]))
    by_positions()
    slots.fill_(cache.k.shape[0] * PAGE)
    by_slots()
    assert not cache.k.any()


def test_memory_is_not_reused_under_a_run_on_another_stream() -> None:
    """The workspace is one stream's; work of another stream on it holds it after its Attention is gone."""
    lengths = [3000, 2500]
    cache = Cache(2, 3000)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    q = rand(2, HEADS, DIM)
    planned = attention(2, 3000)
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        planned.plan([0, 1, 2], cache.segment(lengths))
        planned.run(q, cache.store, kv_indices=cache.ids)
    torch.cuda.synchronize()
    size = planned.schedule.workspace_bytes
    with torch.cuda.stream(second):
        torch.cuda._sleep(LONG // 4)
        out = planned.run(q, cache.store, kv_indices=cache.ids)
    kept = planned  # its plan's memory is freed in order by the driver; the workspace is torch's
    with torch.cuda.stream(first):
        others = [torch.full((max(size, 64),), 255, dtype=torch.uint8, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    check(out, expected(q, cache, lengths))
    del kept, planned, others
    gc.collect()
    # The same where the object goes while the work is queued.
    planned = attention(2, 3000)
    with torch.cuda.stream(first):
        planned.plan([0, 1, 2], cache.segment(lengths))
        planned.run(q, cache.store, kv_indices=cache.ids)
    torch.cuda.synchronize()
    with torch.cuda.stream(second):
        torch.cuda._sleep(LONG // 4)
        out = planned.run(q, cache.store, kv_indices=cache.ids)
    del planned
    gc.collect()
    with torch.cuda.stream(first):
        others = [torch.full((max(size, 64),), 255, dtype=torch.uint8, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    check(out, expected(q, cache, lengths))
    del others


def test_threads_with_streams_of_their_own() -> None:
    lengths = [100, 3, 256]
    cache = Cache(3, 256)
    q = [rand(3, HEADS, DIM) for _ in range(4)]
    torch.cuda.synchronize()
    results: list[Any] = [None] * 4
    faults: list[BaseException] = []

    def work(i: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()) as _:
                planned = attention(3, 256)
                for _step in range(20):
                    planned.plan([0, 1, 2, 3], cache.segment(lengths))
                    results[i] = planned.run(q[i], cache.store, kv_indices=cache.ids)
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    for out, queries in zip(results, q, strict=True):
        check(out, expected(queries, cache, lengths))


def test_arrays_of_the_wrong_device() -> None:
    cache = Cache(1, 16)
    planned = attention(1, 16)
    planned.plan([0, 1], cache.segment([7]))
    q = rand(1, HEADS, DIM)
    with pytest.raises(ValueError, match="q: is on cpu; this attention is for cuda:0"):
        planned.run(q.cpu(), cache.store, kv_indices=cache.ids)
    with pytest.raises(ValueError, match="kv: the store is on cpu"):
        planned.run(q, girih.KvStore.paged(cache.k.cpu(), cache.v.cpu()), kv_indices=cache.ids)
    with pytest.raises(ValueError, match="kv_indices: is on cpu; must be on cuda:0"):
        planned.run(q, cache.store, kv_indices=cache.ids.cpu())
    with pytest.raises(ValueError, match="kv_len: is on cuda:0"):
        planned.plan([0, 1], girih.Segment(kv_len=torch.tensor([7], device="cuda"), table_stride=1, page_size=PAGE))
    with pytest.raises(ValueError, match=r"weight.device=cpu"):
        girih.rms_norm(q[0], torch.ones(DIM))
    with pytest.raises(ValueError, match="k: .*cuda|cuda:0.*cpu|cpu.*cuda:0"):
        girih.KvStore.paged(cache.k, cache.v.cpu())
    with pytest.raises((ValueError, RuntimeError, NotImplementedError, OSError), match="cuda:99|device"):
        girih.Context("cuda:99")
    check(planned.run(q, cache.store, kv_indices=cache.ids), expected(q, cache, [7]))


class Exported:
    """A tensor that shows nothing but DLPack."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def test_arrays_by_dlpack() -> None:
    cache = Cache(2, 64)
    planned = attention(2, 64)
    planned.plan([0, 1, 2], cache.segment([64, 9]))
    q, out = rand(2, HEADS, DIM), torch.empty(2, HEADS, DIM, device="cuda", dtype=torch.float16)
    store = girih.KvStore.paged(Exported(cache.k), Exported(cache.v))
    planned.run(q, store, kv_indices=Exported(cache.ids))
    planned.run(Exported(q), store, kv_indices=Exported(cache.ids), out=Exported(out))
    torch.cuda.synchronize()
    check(out, expected(q, cache, [64, 9]))


def test_arrays_of_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    cache = Cache(2, 64)
    planned = attention(2, 64)
    planned.plan([0, 1, 2], cache.segment([64, 9]))
    real = rand(2, HEADS, DIM)
    planned.run(real, cache.store, kv_indices=cache.ids)
    torch.cuda.synchronize()
    k, v, ids, source = (cupy.asarray(x) for x in (cache.k, cache.v, cache.ids, real))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        q, out = cupy.zeros_like(source), cupy.full(source.shape, cupy.nan, cupy.float16)
        q[...] = source
        assert planned.run(q, girih.KvStore.paged(k, v), kv_indices=ids, out=out) is out
        normed = cupy.empty_like(source)
        girih.rms_norm(q, out=normed)
        stream.synchronize()
    check(torch.as_tensor(out, device="cuda"), expected(real, cache, [64, 9]))
    check(torch.as_tensor(normed, device="cuda"), torch.nn.functional.rms_norm(real.double(), (DIM,), eps=1e-6))


def test_wrappers_in_graphs() -> None:
    """The drop-in's wrappers for CUDA graphs: one capture, a plan before each replay."""
    from girih import flashinfer

    cache = Cache(3, 128)
    workspace = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    buffers = (
        torch.zeros(4, dtype=torch.int32, device="cuda"),
        torch.zeros(3 * cache.columns, dtype=torch.int32, device="cuda"),
        torch.zeros(3, dtype=torch.int32, device="cuda"),
    )
    wrapper = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(workspace, *buffers)

    def plan(lengths: list[int]) -> None:
        pages = [-(-n // PAGE) for n in lengths]
        indptr = torch.tensor([0, *torch.tensor(pages).cumsum(0).tolist()], dtype=torch.int32)
        ids = torch.cat([cache.table[r, :n] for r, n in enumerate(pages)])
        last = torch.tensor([(n - 1) % PAGE + 1 for n in lengths], dtype=torch.int32)
        wrapper.plan(indptr, ids, last, HEADS, KV_HEADS, DIM, PAGE, q_data_type=torch.float16)

    q = rand(3, HEADS, DIM)
    plan([128, 128, 128])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        wrapper.run(q, (cache.k, cache.v))
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = wrapper.run(q, (cache.k, cache.v))
    for lengths in ([128, 128, 128], [1, 100, 33], [17, 16, 15]):
        q.normal_()
        plan(lengths)
        graph.replay()
        check(out, expected(q, cache, lengths))


def test_the_serving_example_on_a_gpu() -> None:
    """Its tokens are those of the CPU: prompts in chunks, a shared prefix, more requests than pages, sampling by the GPU."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    from serving.engine import Engine, Sampling
    from serving.model import Llama, random_model
    from serving.text import ByteTokenizer

    config, weights = random_model(ByteTokenizer().vocab_size)
    prefix = list(range(40, 75))
    prompts = [[*prefix, 7], [*prefix, 9, 11, 13], [5], list(range(200, 60, -1))]
    results: dict[str, list[Any]] = {}
    for device in DEVICES:
        model = Llama(config, weights, num_pages=40, page_size=16, max_len=256, device=device, num_threads=1)
        engine = Engine(
            model, ByteTokenizer(), num_pages=40, page_size=16, max_len=256, token_budget=64, min_shared_tokens=16
        )
        requests = []
        for i, prompt in enumerate(prompts * 2):
            sampling = Sampling(max_tokens=24, temperature=0.0 if i < len(prompts) else 0.8, seed=i, num_logprobs=2)
            requests.append(engine.make_request(prompt, sampling, lambda _: None))
            engine.submit(requests[-1])
        for _ in range(2000):
            if not engine.busy:
                break
            engine.step()
        assert not engine.busy and engine.pool.num_available == 40
        results[device] = [r.tokens for r in requests]
    assert results["cuda"] == results["cpu"]


def test_a_run_allocates_nothing_of_its_own() -> None:
    cache = Cache(2, 64)
    planned = attention(2, 64)
    planned.plan([0, 1, 2], cache.segment([64, 9]))
    q, out = rand(2, HEADS, DIM), torch.empty(2, HEADS, DIM, device="cuda", dtype=torch.float16)
    planned.run(q, cache.store, kv_indices=cache.ids, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(10):
        planned.run(q, cache.store, kv_indices=cache.ids, out=out)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_compiled_code_in_graphs_of_torch() -> None:
    """torch.compile(mode="reduce-overhead"): planned appends and runs are captured, and follow later plans."""
    cache = Cache(2, 64, fill=False)
    planned = torch_ops.Planned(attention(2, 64))
    weight = torch.ones(DIM, device="cuda", dtype=torch.float16)

    def layer(x: Any, k: Any, v: Any) -> Any:
        planned.append(k, v, cache.k, cache.v, kv_indices=cache.ids)
        q = torch_ops.rms_norm(x, weight)
        return planned(q, cache.k, cache.v, kv_indices=cache.ids) * 2

    compiled = torch.compile(layer, mode="reduce-overhead", fullgraph=True)
    for step in range(6):
        lengths = [step + 1, 2 * step + 1]
        planned.plan([0, 1, 2], cache.segment(lengths))
        x, k, v = rand(2, HEADS, DIM), rand(2, KV_HEADS, DIM), rand(2, KV_HEADS, DIM)
        with torch.no_grad():
            out = compiled(x, k, v).clone()
            want = layer(x, k, v)
        assert torch.equal(out, want)
