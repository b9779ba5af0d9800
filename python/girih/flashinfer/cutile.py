"""flashinfer.cutile: of its parts the question whether they are there."""

from __future__ import annotations


def is_cuda_tile_available() -> bool:
    """False: Girih has one kernel set, embedded as CUDA C++."""
    return False
