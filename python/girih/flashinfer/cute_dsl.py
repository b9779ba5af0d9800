"""flashinfer.cute_dsl: of its parts the question whether they are there."""

from __future__ import annotations


def is_cute_dsl_available() -> bool:
    """False: Girih has one kernel set, embedded as CUDA C++."""
    return False
