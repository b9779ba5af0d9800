"""What callers do wrong, or in an unlucky order: lifetimes, threads, foreign arrays, overlapping memory, fork, exit, leaks. A wrong argument
is refused in its own words before anything is written; nothing that Python can do reads memory that is gone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import girih
from girih._girih import array_info

HEADS, DIM, LENGTH = 2, 16, 6


def spec(**more: Any) -> girih.AttentionSpec:
    return girih.AttentionSpec(num_qo_heads=HEADS, num_kv_heads=HEADS, head_dim_qk=DIM, q_dtype="f32", **more)


def limits(**more: Any) -> girih.AttentionLimits:
    return girih.AttentionLimits(**{"max_tokens": 64, "max_requests": 8, "max_kv_len": 64, **more})


def numbers(*shape: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def planned(**more: Any) -> girih.Attention:
    attention = girih.Attention(spec(**more), limits())
    attention.plan([0, LENGTH], girih.Segment(kv_indptr=[0, LENGTH], page_size=0))
    return attention


@pytest.fixture
def qkv() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(numbers(LENGTH, HEADS, DIM, seed=i) for i in range(3))  # type: ignore[return-value]


class Interface:
    """An array by `__array_interface__` alone, which says what it is told to."""

    def __init__(self, **facts: Any) -> None:
        self.memory = np.zeros(64, np.float32)
        self.__array_interface__ = {
            "data": self.memory.__array_interface__["data"],
            "typestr": "<f4",
            "version": 3,
            **facts,
        }


class Made:
    """A sequence that makes its items as they are read, and forgets them."""

    def __init__(self, make: Callable[[], Any], size: int = 1) -> None:
        self.make, self.size = make, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> Any:
        if i >= self.size:
            raise IndexError(i)
        return self.make()


# ---- Foreign arrays


@pytest.mark.parametrize(
    ("facts", "error", "text"),
    [
        ({"shape": (-1,)}, ValueError, "x: has an extent of -1 in dimension 0"),
        ({"shape": (2**40, 2**40)}, ValueError, "x: .*beyond 64 bits"),
        ({"shape": (2,), "strides": (2**63 - 4,)}, ValueError, "x: .*beyond 64 bits"),
        ({"shape": (2, 2), "strides": (-(2**62), -(2**62))}, ValueError, "x: .*beyond 64 bits"),
        ({"shape": (3,), "data": (0, False)}, ValueError, "x: has elements but no memory"),
        ({"shape": (3,), "data": (4097, False)}, ValueError, "x: is not aligned to its elements of 4 bytes"),
        ({"shape": (3,), "data": (-5, False)}, TypeError, "x: its array protocol"),
        ({"shape": (3,), "data": b"bytes"}, TypeError, "x: its array protocol"),
        ({"shape": [3]}, TypeError, "x: its array protocol"),
        ({"shape": (3,), "typestr": ""}, TypeError, "x: its array protocol"),
        ({"shape": (3,), "strides": ()}, TypeError, "x: its array protocol"),
        ({"shape": (3,), "strides": (4, 4)}, TypeError, "x: its array protocol"),
        ({"shape": (1,) * 7}, ValueError, "x: has 7 dimensions; at most 6"),
    ],
)
def test_what_a_protocol_does_not_allow(facts: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        array_info(Interface(**facts), "x")


def test_an_exception_of_an_array_is_the_callers() -> None:
    class Interrupted:
        @property
        def __array_interface__(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        array_info(Interrupted())


def test_what_an_array_is_beside_its_memory() -> None:
    """A mask, a sign or a meaning of codes that reading the memory would lose."""
    masked = np.ma.masked_array(np.zeros((2, 4), np.float32), np.eye(2, 4))
    with pytest.raises(ValueError, match="x: is a masked array"):
        array_info(masked, "x")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with pytest.raises(ValueError, match="x: has dtype float8_e4m3;"):  # with infinities; e4m3 here is float8_e4m3fn
        array_info(np.zeros((2, 4), ml_dtypes.float8_e4m3), "x")
    torch = pytest.importorskip("torch")
    complex_ = torch.randn(3, 8, dtype=torch.complex64)
    for view in (complex_.conj().imag, complex_.conj().imag[:, :1], complex_.conj().imag[1, 2]):
        assert view.is_neg()
        with pytest.raises(ValueError, match=r"x: is a view that negates its memory .*resolve_neg"):
            array_info(view, "x")
    array_info(complex_.imag, "x")
    array_info(complex_.conj().imag.resolve_neg(), "x")


def test_tensors_that_have_no_memory_to_read() -> None:
    torch = pytest.importorskip("torch")
    for tensor in (torch.zeros(2, 4, device="meta"), torch.eye(4).to_sparse()):
        with pytest.raises(ValueError, match="x: cannot be read in place .*; give a dense tensor"):
            array_info(tensor, "x")


def test_unaligned_elements_are_refused() -> None:
    array = np.frombuffer(b"\0" * 33, np.float32, 8, 1).reshape(1, 8)
    with pytest.raises(ValueError, match="x: is not aligned to its elements of 4 bytes; give a copy"):
        girih.rms_norm(array)


def test_scalars_of_numpy_are_copied() -> None:
    """Their `__array_interface__` tells of memory that is freed before it is returned."""
    assert array_info(np.float32(2)) == ((), "f32", "cpu")
    k = np.ones((4, 1, DIM), np.int8)
    store = girih.KvStore.ragged(k, k, k_scale=np.float32(0.5), v_scale=np.float32(2))
    filler = [np.full(1, np.nan, np.float32) for _ in range(1000)]
    attention = girih.Attention(
        girih.AttentionSpec(
            num_qo_heads=1, num_kv_heads=1, head_dim_qk=DIM, q_dtype="f32", k_dtype="i8", k_scale="head", v_scale="head"
        ),
        limits(),
    )
    attention.plan([0, 1], girih.Segment(kv_indptr=[0, 4], page_size=0))
    assert attention.run(numbers(1, 1, DIM), store) == pytest.approx(2.0)
    assert len(filler) == 1000
    with pytest.raises(ValueError, match="out: is a scalar"):
        girih.rms_norm(numbers(1, 8), out=np.float32(1))


def test_computed_scales_are_not_written_to_a_read_only_array() -> None:
    scales = np.zeros(2, np.float32)
    scales.flags.writeable = False
    with pytest.raises(ValueError, match="scales: is a read-only array"):
        girih.quantize(numbers(2, 32), "i8", scales=scales)
    assert not scales.any()


@pytest.mark.parametrize("stream", [-1, 2**64, True, 1.5, "default"])
def test_streams_that_are_none(qkv: tuple[np.ndarray, ...], stream: Any) -> None:
    with pytest.raises(TypeError, match="stream: give a CUstream as an int"):
        planned().run(qkv[0], girih.KvStore.ragged(*qkv[1:]), stream=stream)


# ---- Numbers


def test_index_arrays_at_the_ends_of_64_bits() -> None:
    low, high = -(2**63), 2**63 - 1
    attention = girih.Attention(spec(), limits())
    segment = girih.Segment(kv_indptr=[0, 4], page_size=0)
    for indptr in ([0, high], [0, low], [low, high], [0, high, low]):
        with pytest.raises(ValueError, match="qo_indptr"):
            attention.plan(indptr, segment)
        with pytest.raises(ValueError, match="kv_indptr"):
            attention.plan([0, 4], girih.Segment(kv_indptr=indptr, page_size=0))
        with pytest.raises(ValueError, match="segment_packbits: "):
            girih.segment_packbits(np.zeros(9, bool), indptr)
        with pytest.raises((ValueError, MemoryError), match="append_indptr|kv_len"):
            girih.append_positions(indptr, [high] * (len(indptr) - 1))
    for more in ({"page_size": high, "table_stride": high}, {"page_size": 1, "table_stride": high}):
        with pytest.raises(ValueError, match=r"segments\[0\]"):
            attention.plan([0, 4], girih.Segment(kv_len=[high], **more))
    with pytest.raises(ValueError, match="kv_indices: entry 0 does not fit 32 bits"):
        girih.SegmentData(girih.KvStore.ragged(numbers(4, 1, 8), numbers(4, 1, 8)), [2**31])


@pytest.mark.parametrize(
    "name", ["max_tokens", "max_requests", "max_kv_len", "max_items", "max_param_bytes", "max_groups"]
)
def test_limits_at_the_ends_of_64_bits(name: str) -> None:
    for value in (-1, 2**63 - 1):
        try:
            girih.Attention(spec(), limits(**{name: value}))
        except (ValueError, NotImplementedError, MemoryError) as error:
            assert name in str(error) or "alloc" in str(error) or "workspace" in str(error), error
        else:
            assert value > 0 or name == "max_items", (name, value)


def test_integers_of_numpy_are_taken_and_floats_are_not() -> None:
    made = girih.AttentionSpec(num_qo_heads=np.int64(8), num_kv_heads=np.int32(2), head_dim_qk=np.uint8(64))
    assert (made.num_qo_heads, made.num_kv_heads, made.head_dim_qk) == (8, 2, 64)
    for value in (8.0, "8", None, 2**40, np.float32(8)):
        with pytest.raises(TypeError):
            girih.AttentionSpec(num_qo_heads=value, num_kv_heads=1, head_dim_qk=64)
    assert girih.attention(*(numbers(3, 1, 8),) * 3, window=np.int64(2)).shape == (3, 1, 8)
    with pytest.raises(ValueError, match="variant: is given beside sinks"):
        girih.attention(*(numbers(3, 2, 8),) * 3, variant=girih.Variant(), sinks=numbers(2))


def test_a_number_beyond_a_float() -> None:
    scaled = girih.Variant(logits=girih.score() * girih.scalar("c"))
    attention = planned(variant=scaled)
    q = numbers(LENGTH, HEADS, DIM)
    with pytest.raises(ValueError, match=r"params\['c'\] is an integer beyond the range of numbers"):
        attention.run(q, girih.KvStore.ragged(q, q), params={"c": 10**400})


# ---- Overlap


def test_outputs_of_attention_have_memory_of_their_own(qkv: tuple[np.ndarray, ...]) -> None:
    q, k, v = qkv
    attention, store = planned(lse="natural"), girih.KvStore.ragged(k, v)
    expected, expected_lse = attention.run(q, store)
    for array, name in ((q, "q"), (k, r"kv\[0\].store.k"), (v, r"kv\[0\].store.v"), (k[::-1], r"kv\[0\].store.k")):
        before = array.copy()
        with pytest.raises(ValueError, match=f"out shares memory with {name};"):
            attention.run(q, store, out=array)
        assert (array == before).all()
    with pytest.raises(ValueError, match="lse shares memory with q;"):
        attention.run(q, store, lse=q[:, :, 0])
    both = numbers(LENGTH, HEADS, DIM)
    with pytest.raises(ValueError, match="lse shares memory with out;"):
        attention.run(q, store, out=both, lse=both[:, :, 3])
    folded = np.lib.stride_tricks.as_strided(np.zeros(DIM, np.float32), q.shape, (0, 0, 4))
    with pytest.raises(ValueError, match="out has elements that share memory"):
        attention.run(q, store, out=folded)
    # Columns of one wider array are apart; so are negative strides of an array of its own.
    wide = np.zeros((LENGTH, 4 * HEADS, DIM), np.float32)
    wide[:, :HEADS], wide[:, HEADS : 2 * HEADS], wide[:, 2 * HEADS : 3 * HEADS] = q, k, v
    fused = girih.KvStore.ragged(wide[:, HEADS : 2 * HEADS], wide[:, 2 * HEADS : 3 * HEADS])
    attention.run(wide[:, :HEADS], fused, out=wide[:, 3 * HEADS :])
    assert (wide[:, 3 * HEADS :] == expected).all() and (wide[:, :HEADS] == q).all()
    backwards, lse = np.zeros_like(q), np.zeros((LENGTH, HEADS), np.float32)
    attention.run(q, store, out=backwards[::-1, ::-1], lse=lse[::-1])
    assert (backwards[::-1, ::-1] == expected).all() and (lse[::-1] == expected_lse).all()


def test_an_output_in_a_hole_of_a_paged_cache() -> None:
    pages = np.zeros((3, 3, 4, HEADS, DIM), np.float32)  # k, v and room per page
    store = girih.KvStore.paged(pages[:, 0], pages[:, 1])
    attention = girih.Attention(spec(), limits())
    attention.plan([0, 4], girih.Segment(kv_indptr=[0, 3], kv_len=[12], page_size=4))
    q = numbers(4, HEADS, DIM)
    pages[:, 2] = 1
    attention.run(q, girih.SegmentData(store, [0, 1, 2]), out=pages[1, 2])
    assert not pages[1, 2].any() and pages[::2, 2].all()
    with pytest.raises(ValueError, match=r"out shares memory with kv\[0\].store.v;"):
        attention.run(q, girih.SegmentData(store, [0, 1, 2]), out=pages[1, 1])


# ---- Lifetimes


def test_sequences_that_make_their_items(qkv: tuple[np.ndarray, ...]) -> None:
    q, k, v = qkv
    attention = girih.Attention(spec(), limits(max_segments=3))
    attention.plan([0, LENGTH], Made(lambda: girih.Segment(kv_indptr=[0, LENGTH], page_size=0), 3))
    found = attention.run(q, Made(lambda: girih.SegmentData(girih.KvStore.ragged(k.copy(), v.copy())), 3))
    assert found == pytest.approx(girih.attention(q, np.concatenate([k] * 3), np.concatenate([v] * 3)), abs=1e-5)


def test_what_keeps_what_alive() -> None:
    class Watched(np.ndarray):
        """An array that can be watched."""

    def watched(*shape: int) -> tuple[Any, weakref.ref[Any]]:
        array = numbers(*shape).view(Watched)
        return array, weakref.ref(array)

    k, k_gone = watched(LENGTH, HEADS, DIM)
    v, v_gone = watched(LENGTH, HEADS, DIM)
    expected = girih.attention(numbers(LENGTH, HEADS, DIM), np.array(k), np.array(v))
    data = girih.SegmentData(girih.KvStore.ragged(k, v))
    del k, v
    gc.collect()
    assert k_gone() is not None and v_gone() is not None
    assert (planned().run(numbers(LENGTH, HEADS, DIM), data) == expected).all()
    del data
    gc.collect()
    assert k_gone() is None and v_gone() is None

    context = girih.Context(num_workers=1)
    attention = girih.Attention(spec(), limits(), context=context)
    schedule = attention.schedule
    del context
    attention.plan(np.array([0, 3]), girih.Segment(kv_indptr=np.array([0, 3], np.int32), page_size=0))
    assert attention.run(numbers(3, HEADS, DIM), girih.KvStore.ragged(*(numbers(3, HEADS, DIM),) * 2)).shape[0] == 3
    del attention
    gc.collect()
    assert schedule.spec.head_dim_qk == DIM

    pattern = girih.block_sparse(4, 4, 2, 2, [0, 1, 2], [0, 1])
    segment, indices = pattern.segment(), pattern.kv_indices
    del pattern
    gc.collect()
    girih.Attention(spec(), limits()).plan([0, 4], segment, kv_len=[4])
    assert indices.tolist() == [0, 1]


def test_objects_that_were_not_made() -> None:
    with pytest.raises(TypeError), pytest.warns(RuntimeWarning):
        girih.Attention.__new__(girih.Attention).plan([0, 1], [])
    with pytest.raises(TypeError), pytest.warns(RuntimeWarning):
        planned().__init__(spec(), limits())  # type: ignore[misc]


# ---- Threads


class Blocking:
    """A sequence of one Segment that waits before it gives it."""

    def __init__(self, item: Any) -> None:
        self.item, self.reached, self.go = item, threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: int) -> Any:
        if i > 0:
            raise IndexError(i)
        self.reached.set()
        assert self.go.wait(60)
        return self.item


@pytest.mark.parametrize("kind", ["Attention", "Plan"])
def test_a_second_thread_is_refused(kind: str) -> None:
    attention = planned()
    plan = girih.Plan(attention.schedule)
    waiting = Blocking(girih.Segment(kv_indptr=[0, 4], page_size=0))
    start = attention.plan if kind == "Attention" else plan.update
    thread = threading.Thread(target=lambda: start([0, 4], waiting))
    thread.start()
    try:
        assert waiting.reached.wait(60)
        calls: list[Callable[[], Any]]
        if kind == "Attention":
            calls = [
                lambda: attention.plan([0, 4], waiting.item),
                attention.blob,
                lambda: attention.plan_info,
                lambda: attention.load(b""),
                lambda: attention.run(numbers(4, HEADS, DIM), []),
            ]
        else:
            calls = [lambda: plan.update([0, 4], waiting.item), plan.blob, lambda: plan.info, lambda: plan.load(b"")]
        for call in calls:
            with pytest.raises(RuntimeError, match=f"this {kind} is in use by another thread"):
                call()
    finally:
        waiting.go.set()
        thread.join()
    assert (attention.plan_info if kind == "Attention" else plan.info).num_items > 0


def test_threads_with_contexts_of_their_own() -> None:
    q = numbers(LENGTH, HEADS, DIM)
    expected = girih.attention(q, q, q)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            attention = planned()
            for _ in range(50):
                assert (attention.run(q, girih.KvStore.ragged(q, q)) == expected).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_threads_that_share_a_context_are_served_or_told() -> None:
    context = girih.Context(num_workers=2)
    x = numbers(512, 1024)
    expected = girih.rms_norm(x)
    failures: list[BaseException] = []

    def work() -> None:
        for _ in range(30):
            try:
                if not (girih.rms_norm(x, context=context) == expected).all():
                    failures.append(AssertionError("a wrong result"))
            except ValueError as error:
                if "make one Context per calling thread" not in str(error):
                    failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (girih.rms_norm(x, context=context) == expected).all()


# ---- Processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_with_a_planned_attention(qkv: tuple[np.ndarray, ...]) -> None:
    attention, store = (
        girih.Attention(spec(), limits(), context=girih.Context(num_workers=2)),
        girih.KvStore.ragged(*qkv[1:]),
    )
    attention.plan([0, LENGTH], girih.Segment(kv_indptr=[0, LENGTH], page_size=0))
    expected = attention.run(qkv[0], store)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            same = (attention.run(qkv[0], store) == expected).all() and (girih.attention(*qkv) == expected).all()
            status = 0 if same else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (attention.run(qkv[0], store) == expected).all()


def test_exit_with_live_objects() -> None:
    program = """
        import threading, numpy as np, girih
        x = np.ones((4, 2, 16), np.float32)
        context = girih.Context(num_workers=2, log=lambda level, text: None)
        spec = girih.AttentionSpec(num_qo_heads=2, num_kv_heads=2, head_dim_qk=16, q_dtype="f32")
        attention = girih.Attention(spec, girih.AttentionLimits(max_tokens=8, max_requests=1, max_kv_len=8), context=context)
        attention.plan([0, 4], girih.Segment(kv_indptr=[0, 4], page_size=0))
        store = girih.KvStore.ragged(x, x)
        store_cycle = [store]; store_cycle.append(store_cycle)
        thread_local = threading.local()
        thread_local.context = girih.default_context()
        class Late:
            def __del__(self):
                attention.run(x, store)
        late = Late()
        threading.Thread(target=lambda: girih.rms_norm(np.ones((2, 8), np.float32))).start()
        attention.run(x, store)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")


# ---- Leaks


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    q = numbers(LENGTH, HEADS, DIM)
    attention = planned(lse="natural")
    store = girih.KvStore.ragged(q, q)
    x, logits = numbers(4, 64), numbers(2, 32)

    def refused() -> None:
        for call in (
            lambda: attention.run(q[:2], store),
            lambda: attention.run(q, store, out=q),
            lambda: girih.rms_norm([1, 2]),
            lambda: array_info(Interface(shape=[3])),
        ):
            try:
                call()
            except (ValueError, TypeError):
                continue
            raise AssertionError("nothing was refused")

    def described() -> None:
        girih.Segment(kv_indptr=np.array([0, 4]), kv_len=[4])
        girih.SegmentData(girih.KvStore.ragged(q, q), [1, 2], [3, 4])
        spec(variant=girih.Variant(mask=girih.kv_pos() <= girih.q_pos(), logits=girih.score() * 2.0))

    yield "run", lambda: attention.run(q, store)
    yield "plan", lambda: attention.plan([0, LENGTH], girih.Segment(kv_indptr=[0, LENGTH], page_size=0))
    yield "blob", lambda: attention.load(attention.blob())
    yield "norm", lambda: girih.rms_norm(x)
    yield "quantize", lambda: girih.quantize(x, "i8")
    yield "sample", lambda: girih.sample(logits, seed=1)
    yield "merge", lambda: girih.merge_state(q, q[:, :, 0].copy(), q, q[:, :, 1].copy())
    yield "positions", lambda: girih.append_positions([0, 2, 3], [4, 5])
    yield "refused", refused
    yield "described", described


def test_bools_are_no_numbers() -> None:
    x = numbers(3, 20)
    for refused, name in (
        (lambda: girih.sample(x, top_k=True), "top_k: is a bool"),
        (lambda: girih.sample(x, temperature=False), "temperature: is a bool"),
        (lambda: girih.sample(x, seed=True), "seed: is a bool"),
        (lambda: girih.append_positions([0, True], [1]), r"append_indptr\[1\] is a bool"),
        (lambda: girih.Segment(kv_indptr=[False, 3], page_size=0), r"kv_indptr\[0\] is a bool"),
    ):
        with pytest.raises(TypeError, match=name):
            refused()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("name", [name for name, _ in calls()])
def test_nothing_is_leaked(name: str) -> None:
    call = dict(calls())[name]
    rounds = 500 if name in ("refused", "described") else 2000

    def growth() -> tuple[int, int]:
        gc.collect()
        references, memory = sys.getallocatedblocks(), resident_bytes()
        for _ in range(rounds):
            call()
        gc.collect()
        return sys.getallocatedblocks() - references, resident_bytes() - memory

    growth()  # caches of Python and of the allocator fill
    # What leaks does so every time; other allocations come and go.
    measured = [growth() for _ in range(4)]
    blocks, memory = (min(values) for values in zip(*measured, strict=True))
    assert blocks < rounds // 4, f"{blocks} Python blocks in {rounds} calls"
    assert memory < 64 * rounds + (1 << 20), f"{memory} bytes in {rounds} calls"
