"""Arrays of the libraries that operators are tested with: the same numbers as a NumPy array, as a PyTorch tensor, and, where there is a
GPU, as a tensor on it. Tests that make PyTorch's tensors only run whole on each device, as PyTorch's default device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import DEVICES

Make = Callable[..., Any]

_ON_EACH_DEVICE = ("test_torch_ops.py", "test_transformers.py")
#: Files of the drop-in that make no tensors, or start processes of their own; all others run on each device.
_ON_CPU_ONLY = ("test_flashinfer_names.py", "test_flashinfer_runner.py")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    path = Path(str(metafunc.module.__file__))
    if path.name in _ON_EACH_DEVICE or (path.parent.name == "flashinfer" and path.name not in _ON_CPU_ONLY):
        metafunc.parametrize("default_device", DEVICES, indirect=True)


@pytest.fixture(autouse=True)
def default_device(request: pytest.FixtureRequest) -> Iterator[str]:
    device = getattr(request, "param", "cpu")
    if device == "cpu":
        yield device
        return
    import torch

    torch.set_default_device(device)
    yield device
    torch.set_default_device(None)


def _torch_of(array: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(np.ascontiguousarray(array))


@pytest.fixture(params=["numpy", "torch", *DEVICES[1:]])
def make(request: pytest.FixtureRequest) -> Make:
    """make(array): the array in the library under test, on the CPU sharing its memory."""
    if request.param == "numpy":
        return lambda array: np.ascontiguousarray(array)
    pytest.importorskip("torch")
    return _torch_of if request.param == "torch" else lambda array: _torch_of(array).cuda()


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
        return array.to(torch.float32).cpu().numpy()
    return array.cpu().numpy()
