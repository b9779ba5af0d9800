"""flashinfer.autotuner: engines run their first steps under autotune(). Girih chooses kernels from the spec and measures nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

from ._arguments import refuse


@contextmanager
def autotune(
    tune_mode: bool = True,
    cache: str | None = None,
    tuning_buckets: tuple[int, ...] | None = None,
    round_up: bool | None = None,
    skip_ops: str | set[str] | None = None,
    cuda_graph_profile_replays: int | None = None,
    tie_tolerance: float | None = None,
) -> Iterator[None]:
    """A context in which nothing differs: there are no measurements that the arguments could direct. `cache` is refused."""
    if cache is not None:
        raise refuse(
            "autotune", "cache", cache, "nothing is measured that could be saved; girih.warmup() compiles ahead"
        )
    yield
