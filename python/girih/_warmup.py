"""Kernels made ready before they are needed, with a progress bar where a person watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from . import _girih
from ._context import default_context
from ._girih import AttentionSpec, Context

__all__ = ["warmup"]

_WIDTH = 24

#: Called as progress(done, total, name, target, origin, seconds).
Progress = Callable[[int, int, str, str, str, float], object]


class _Bar:
    """One line on a terminal: how many kernels are ready, how long it took, which was the last."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._start = time.monotonic()

    def __call__(self, done: int, total: int, name: str, target: str, origin: str, seconds: float) -> None:
        if total == 0:
            return
        elapsed = time.monotonic() - self._start
        filled = _WIDTH * done // total
        last = f"  {name} {target} ({origin}, {seconds:.1f} s)" if name else ""
        line = f"girih: [{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{total} kernels, {elapsed:.0f} s{last}"
        end = "\n" if done == total else ""
        self._stream.write(f"\r{line[:118]:<118}{end}")
        self._stream.flush()


def warmup(
    specs: AttentionSpec | Sequence[AttentionSpec],
    *,
    context: Context | None = None,
    progress: Progress | bool | None = None,
) -> None:
    """Compiles the CUDA kernels that these specs need, in parallel, or finds them in packs and cache, so that Attention() only loads them.

    On the CPU there is nothing to do.

    Args:
        specs: One or more specs.
        context: A CUDA context; None: default_context("cuda").
        progress: Called as progress(done, total, name, target, origin, seconds) once before the first kernel (done=0, empty name) and
            once for each that is ready, from one thread at a time, not always the caller's. origin is "compiled", "cache" or "pack";
            seconds is what the kernel took. An exception ends the warm-up. True: a bar on stderr where that is a terminal.

    Raises:
        ValueError, NotImplementedError: A spec that the device does not take, naming the field.
        RuntimeError: A kernel that does not compile; all others are tried first.
    """
    if isinstance(specs, AttentionSpec):
        specs = [specs]
    if context is None:
        context = default_context("cuda")
    if progress is True:
        progress = _Bar(sys.stderr) if sys.stderr is not None and sys.stderr.isatty() else None
    elif progress is False:
        progress = None
    _girih.warmup(context, list(specs), progress)
