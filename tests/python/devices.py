"""Where the tests of this machine put tensors: on the CPU, and on a GPU where PyTorch is installed and sees one."""

from __future__ import annotations

import importlib.util


def has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


DEVICES = ["cpu", "cuda"] if has_gpu() else ["cpu"]
