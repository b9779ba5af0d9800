"""Schedules behind a wrapper: made once per problem, grown with the batches, planned once per step.

A wrapper owns one `Planner`. plan() gives it a problem and a batch; run() asks for the attention that computes them in the form it needs.
The form of the last run is planned by plan() itself; another form (an LSE wanted for the first time, sinks, other scales) is planned from
the kept batch when it first appears, and from then on with the rest where a CUDA graph may replay it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

import girih

from ._problem import NO_LSE, Form, Problem, spec_of, usual_form

__all__ = ["Batch", "Limits", "Planner", "host_array", "kv_len_of_pages", "on_host", "planner_of_thread"]

IndexArray = npt.NDArray[Any]

#: Schedules that one planner keeps; the least recently used goes first. A planner with frozen limits drops none: graphs point to them.
_MAX_SCHEDULES = 16


def host_array(values: torch.Tensor | Sequence[int] | IndexArray) -> IndexArray:
    """An index tensor of any device as a host array of the caller's own, which later writes to the tensor do not reach."""
    if isinstance(values, torch.Tensor):
        if values.is_cuda:
            return values.cpu().numpy()
        array = values.numpy()
        return array.copy() if array.dtype == np.int32 or array.dtype == np.int64 else array.astype(np.int64)
    return np.array(values, dtype=np.int64)


def kv_len_of_pages(kv_indptr: IndexArray, last_page_len: IndexArray, page_size: int) -> IndexArray:
    """Keys of each request: (pages - 1) * page_size + last_page_len, 0 for a request without pages."""
    pages = kv_indptr[1:] - kv_indptr[:-1]
    if pages.shape != last_page_len.shape:
        raise ValueError(
            f"last_page_len has {last_page_len.size} entries; must have {pages.size} as the page table has requests"
        )
    length = (pages - 1) * page_size
    length += last_page_len
    if page_size == 1 or not pages.all():
        length *= pages > 0
    return length


def on_host(values: torch.Tensor) -> torch.Tensor:
    """An index tensor where girih reads it."""
    return values.cpu() if values.is_cuda else values


class Limits(NamedTuple):
    """Of what a schedule serves: see girih.AttentionLimits."""

    tokens: int
    requests: int
    kv_len: int
    qo_len: int
    groups: int = 0
    segments: int = 1
    param_bytes: int = 0

    def grown(self, need: Limits) -> Limits:
        """At least `need`, doubling what has to grow."""
        return Limits(
            *(have if have >= n else max(2 * have, _power_of_two(n)) for have, n in zip(self, need, strict=True))
        )

    def holds(self, need: Limits) -> bool:
        # Asked at every plan(): without a loop it takes a third of the time.
        return (
            self.tokens >= need.tokens
            and self.requests >= need.requests
            and self.kv_len >= need.kv_len
            and self.qo_len >= need.qo_len
            and self.groups >= need.groups
            and self.segments >= need.segments
            and self.param_bytes >= need.param_bytes
        )


def _power_of_two(n: int) -> int:
    return 1 << max(0, int(n) - 1).bit_length() if n > 0 else 0


class Batch(NamedTuple):
    """One step's work on the host."""

    qo_indptr: IndexArray
    segments: tuple[Any, ...]
    need: Limits
    kv_len: IndexArray | None = None
    params: Mapping[str, Any] | None = None
    q_pos: IndexArray | None = None


class _Entry:
    """A schedule with its plan."""

    __slots__ = ("attention", "generation", "limits", "used")

    def __init__(self, attention: Any, limits: Limits) -> None:
        self.attention = attention
        self.limits = limits
        self.generation = -1
        self.used = False


class Planner:
    """Schedules of one wrapper by problem and form."""

    def __init__(self, device: torch.device, frozen: bool = False) -> None:
        self.device = device
        self.frozen = frozen
        self.limits: Limits | None = None  #: of a frozen planner, set before its first plan()
        self.problem: Problem | None = None
        self.batch: Batch | None = None
        self._entries: dict[tuple[Problem, Form], _Entry] = {}
        self._form = NO_LSE
        self._current: _Entry | None = None
        self._generation = 0

    def plan(self, problem: Problem, batch: Batch) -> None:
        """Plans `batch`. Where that fails, the plan before stays."""
        before = (self.problem, self.batch, self._current, self._form)
        self._generation += 1
        last = self.problem
        if last is None or last.kv_dtype != problem.kv_dtype or last.hooks is not problem.hooks:
            self._form = usual_form(problem)
        self.problem, self.batch = problem, batch
        try:
            if self.frozen:
                for (of, form), entry in self._entries.items():
                    if entry.used and of == problem and form != self._form:
                        self._plan_entry(entry, batch)
            self._current = self._planned(problem, self._form)
        except BaseException:
            self.problem, self.batch, self._current, self._form = before
            raise

    def ready(self, form: Form, problem: Problem | None = None) -> Any:
        """The attention of the planned batch in `form`; `problem`: where run() changes what plan() said."""
        if problem is None:
            if form is self._form or form == self._form:
                current = self._current
                if current is not None:
                    current.used = True
                    return current.attention
            problem = self.problem
        if problem is None:
            raise RuntimeError("run() before plan()")
        entry = self._planned(problem, form)
        entry.used = True
        if problem == self.problem:
            self._form, self._current = form, entry
        return entry.attention

    def forget(self) -> None:
        """Drops all schedules and plans."""
        self._entries.clear()
        self.problem = self.batch = self._current = None

    def _planned(self, problem: Problem, form: Form) -> _Entry:
        batch = self.batch
        assert batch is not None
        key = (problem, form)
        entry = self._entries.get(key)
        if entry is not None and len(self._entries) > _MAX_SCHEDULES // 2:
            self._entries[key] = self._entries.pop(key)  # used last
        if entry is None or not (self.frozen or entry.limits.holds(batch.need)):
            entry = self._entries[key] = self._made(problem, form, batch, entry)
        if entry.generation != self._generation:
            self._plan_entry(entry, batch)
        return entry

    def _plan_entry(self, entry: _Entry, batch: Batch) -> None:
        entry.attention.plan(
            batch.qo_indptr, batch.segments, kv_len=batch.kv_len, q_pos=batch.q_pos, params=batch.params
        )
        entry.generation = self._generation

    def _made(self, problem: Problem, form: Form, batch: Batch, old: _Entry | None) -> _Entry:
        if self.frozen:
            limits = self.limits if self.limits is not None else batch.need
        else:
            limits = (old.limits if old is not None else Limits(0, 0, 0, 0, 0, 1, 0)).grown(batch.need)
            while old is None and len(self._entries) >= _MAX_SCHEDULES:
                del self._entries[next(iter(self._entries))]
        attention = girih.Attention(
            spec_of(problem, form),
            girih.AttentionLimits(
                max_tokens=max(1, limits.tokens),
                max_requests=max(1, limits.requests),
                max_kv_len=max(1, limits.kv_len),
                max_qo_len=max(1, limits.qo_len),
                max_groups=limits.groups,
                max_segments=limits.segments,
                max_param_bytes=max(1 << 20, limits.param_bytes),
            ),
            device=str(self.device),
        )
        return _Entry(attention, limits)

    def sizes(self) -> tuple[int, int]:
        """Bytes of workspace and of plan that the current schedule holds for its device."""
        assert self._current is not None
        attention = self._current.attention
        return int(attention.schedule.workspace_bytes), int(attention.plan_info.blob_bytes)

    @property
    def plan_info(self) -> Any:
        return None if self._current is None else self._current.attention.plan_info


_threads = threading.local()


def planner_of_thread(device: torch.device, name: str) -> Planner:
    """The planner of the calling thread for functions that plan at every call."""
    planners: dict[tuple[str, str], Planner] | None = getattr(_threads, "planners", None)
    if planners is None:
        planners = _threads.planners = {}
    key = (str(device), name)
    planner = planners.get(key)
    if planner is None:
        planner = planners[key] = Planner(device)
    return planner
