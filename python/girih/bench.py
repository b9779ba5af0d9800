"""Timing of calls side by side: medians over repeats in turn, on a GPU by replays of a captured graph with cold caches.

    from girih import bench
    result = bench.compare({"girih": lambda: attention.run(q, store), "torch": lambda: sdpa(q, k, v)})
    print(result)                      # a table; ratios to the first
    result["girih"].seconds            # the median

Figures of one run on one machine compare; those of two runs do not. `girih bench` of the command-line tool measures the library's own cases.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ._typing import DeviceLike

__all__ = ["Comparison", "Timing", "compare", "measure"]

_CPU_SECONDS = 0.5  # that repeats of a call take in all, unless the caller says how many
_MAX_REPEATS = 200
_MIN_REPEATS = 5
_GPU_REPEATS = 25
_FLUSH_BYTES = 256 << 20  # more than any L2 holds


@dataclass(frozen=True)
class Timing:
    """Seconds of a call.

    seconds: the median. low, high: the quickest and slowest repeat. host_seconds: the median of what the call takes the host; on the CPU
    that is `seconds`. repeats: how many were timed.
    """

    seconds: float
    low: float
    high: float
    host_seconds: float
    repeats: int

    def __str__(self) -> str:
        return f"{_text(self.seconds)} ({_text(self.low)} to {_text(self.high)}, {self.repeats} repeats)"


class Comparison(Mapping[str, Timing]):
    """Timings by name, in the order given; as text a table with ratios to the first."""

    def __init__(self, timings: Mapping[str, Timing]) -> None:
        self._timings = dict(timings)

    def __getitem__(self, name: str) -> Timing:
        return self._timings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._timings)

    def __len__(self) -> int:
        return len(self._timings)

    def ratio(self, name: str) -> float:
        """Time of `name` over that of the first call: above 1, the first is quicker."""
        first = next(iter(self._timings.values()))
        return self._timings[name].seconds / first.seconds

    def __str__(self) -> str:
        width = max(len(name) for name in self._timings)
        lines = [f"{'':{width}}  {'median':>10}  {'low':>10}  {'high':>10}  {'host':>10}  ratio"]
        for name, t in self._timings.items():
            figures = "  ".join(f"{_text(s):>10}" for s in (t.seconds, t.low, t.high, t.host_seconds))
            lines.append(f"{name:{width}}  {figures}  {self.ratio(name):5.2f}")
        return "\n".join(lines)


def _text(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.2f} us"


def _timing(times: list[float], host: list[float]) -> Timing:
    return Timing(statistics.median(times), min(times), max(times), statistics.median(host), len(times))


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _compare_cpu(calls: Mapping[str, Callable[[], object]], repeats: int) -> Comparison:
    once = 0.0
    for call in calls.values():
        call()  # caches, pages and whatever is made on first use
        once += _timed(call)
    if repeats == 0:
        repeats = max(_MIN_REPEATS, min(_MAX_REPEATS, int(_CPU_SECONDS * len(calls) / max(once, 1e-9))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(_timed(call))
    return Comparison({name: _timing(t, t) for name, t in times.items()})


def _compare_cuda(
    calls: Mapping[str, Callable[[], object]], device: str, repeats: int, graph: bool, cold: bool
) -> Comparison:
    import torch

    repeats = repeats or _GPU_REPEATS
    with torch.cuda.device(device):
        flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device) if cold else None
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call, unused-ignore]
        runs: dict[str, Callable[[], Any]] = {}
        host: dict[str, list[float]] = {}
        for name, call in calls.items():
            for _ in range(3):  # compiles, loads, allocates: none of which a capture may do
                call()
            torch.cuda.synchronize()
            host[name] = [_timed(call) for _ in range(repeats)]
            torch.cuda.synchronize()
            runs[name] = call
            if graph:
                captured = torch.cuda.CUDAGraph()
                with torch.cuda.graph(captured):
                    call()
                runs[name] = captured.replay
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(repeats):
            for name, run in runs.items():
                if flush is not None:
                    flush.zero_()
                begin.record()
                run()
                end.record()
                end.synchronize()
                times[name].append(begin.elapsed_time(end) * 1e-3)
    return Comparison({name: _timing(times[name], host[name]) for name in calls})


def compare(
    calls: Mapping[str, Callable[[], object]],
    *,
    device: DeviceLike = "cpu",
    repeats: int = 0,
    graph: bool = True,
    cold: bool = True,
) -> Comparison:
    """Times calls in turn, so that whatever else the machine does reaches all of them alike.

    calls: name to a function without arguments; the first is what ratios are to.
    device: "cpu", or a CUDA device (needs torch): the work is then timed by events, on torch's current stream.
    repeats: of each call; 0 = about half a second of each on the CPU (5 to 200), 25 on a GPU.
    graph: CUDA: captures each call once and times replays, which leaves the host's part out (it is `host_seconds`).
    cold: CUDA: overwrites the L2 cache before each repeat.

    Raises ValueError without calls or for a negative number of repeats; what a call raises passes through.
    """
    if not calls:
        raise ValueError("calls: is empty; give at least one call")
    if repeats < 0:
        raise ValueError(f"repeats: {repeats}; must be >= 0 (0 = chosen here)")
    name = str(device)
    if name == "cpu":
        return _compare_cpu(calls, repeats)
    return _compare_cuda(calls, name, repeats, graph, cold)


def measure(
    call: Callable[[], object],
    *,
    device: DeviceLike = "cpu",
    repeats: int = 0,
    graph: bool = True,
    cold: bool = True,
) -> Timing:
    """The timing of one call; arguments as compare()'s."""
    return compare({"call": call}, device=device, repeats=repeats, graph=graph, cold=cold)["call"]
