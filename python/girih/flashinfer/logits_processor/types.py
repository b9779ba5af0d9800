"""What a tensor in a pipe holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch


class TensorType(Enum):
    """Scores, probabilities, or token ids (at the end of a pipe)."""

    LOGITS = auto()
    PROBS = auto()
    INDICES = auto()


@dataclass(frozen=True)
class TaggedTensor:
    """A tensor that says what it holds; PyTorch's functions take it as the tensor."""

    data: torch.Tensor
    type: TensorType

    @staticmethod
    def logits(t: torch.Tensor) -> TaggedTensor:
        return TaggedTensor(t, TensorType.LOGITS)

    @staticmethod
    def probs(t: torch.Tensor) -> TaggedTensor:
        return TaggedTensor(t, TensorType.PROBS)

    @staticmethod
    def indices(t: torch.Tensor) -> TaggedTensor:
        return TaggedTensor(t, TensorType.INDICES)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*(a.data if isinstance(a, TaggedTensor) else a for a in args), **(kwargs or {}))

    @property
    def shape(self) -> torch.Size:
        return self.data.shape

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.data.size() if dim is None else self.data.size(dim)
