"""Contexts that operators use where the caller gives none: one per device and thread, since a context serves one thread at a time."""

from __future__ import annotations

import threading

from ._girih import Context
from ._typing import DeviceLike

_of_thread = threading.local()


def default_context(device: DeviceLike = "cpu") -> Context:
    """The calling thread's context for `device` ("cpu", "cuda:0", a torch.device), made on first use and kept as long as the thread."""
    contexts: dict[str, Context] | None = getattr(_of_thread, "contexts", None)
    if contexts is None:
        contexts = _of_thread.contexts = {}
    name = str(device)
    if name == "cuda":
        name = "cuda:0"
    context = contexts.get(name)
    if context is None:
        context = contexts[name] = Context(name)
    return context
