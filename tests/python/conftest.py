"""Arrays of the libraries that operators are tested with: the same numbers as a NumPy array and as a PyTorch tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Make = Callable[..., Any]


def _torch_of(array: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(np.ascontiguousarray(array))


@pytest.fixture(params=["numpy", "torch"])
def make(request: pytest.FixtureRequest) -> Make:
    """make(array): the array in the library under test, sharing its memory."""
    if request.param == "numpy":
        return lambda array: np.ascontiguousarray(array)
    pytest.importorskip("torch")
    return _torch_of


def to_numpy(array: Any) -> np.ndarray:
    """What an operator returned, as NumPy has it: float32 for 16- and 8-bit floats of either library."""
    if isinstance(array, np.ndarray):
        return (
            array.astype(np.float32)
            if array.dtype.kind == "V" or array.dtype.itemsize == 1 and array.dtype.kind == "f"
            else array
        )
    import torch

    if array.dtype.is_floating_point and array.dtype != torch.float32:
        return array.to(torch.float32).numpy()
    return array.numpy()
