"""The processors: what each takes and gives, its parameters, and what it does alone.

A parameter is given to the processor or, which comes first, to the call of the pipe.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from .. import sampling
from .types import TensorType


class LegalizationError(Exception):
    """Processors that do not fit together."""


class LogitsProcessor:
    """One step of a pipe."""

    #: Types of input, and the type of output that each gives.
    gives: dict[TensorType, TensorType] = {}

    def __init__(self, **params: Any) -> None:
        self.params = params

    def legalize(self, input_type: TensorType) -> list[LogitsProcessor]:
        """The steps for an input of that type: this one. ValueError where it takes none such."""
        if input_type not in self.gives:
            wanted = " or ".join(t.name for t in self.gives)
            raise ValueError(f"{type(self).__name__} can only be applied to {wanted}, got {input_type.name}")
        return [self]

    def run(self, x: torch.Tensor, input_type: TensorType, given: dict[str, Any]) -> torch.Tensor:
        """The step by itself."""
        raise NotImplementedError(f"{type(self).__name__}: only the processors of this module run in a pipe of Girih's")

    def parameter(self, name: str, given: dict[str, Any]) -> Any:
        value = given.get(name, self.params.get(name))
        if value is None:
            raise ValueError(f"Required parameter '{name}' not provided for {type(self).__name__}")
        return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self.params.items())})"


class Temperature(LogitsProcessor):
    """logits / temperature."""

    gives = {TensorType.LOGITS: TensorType.LOGITS}

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)

    def temperature(self, given: dict[str, Any]) -> Any:
        value = self.parameter("temperature", given)
        if not isinstance(value, torch.Tensor) and not (isinstance(value, float) and value > 0):
            raise ValueError("Temperature must be positive float or a tensor array")
        return value

    def run(self, x: torch.Tensor, input_type: TensorType, given: dict[str, Any]) -> torch.Tensor:
        value = self.temperature(given)
        return x / (value.unsqueeze(-1) if isinstance(value, torch.Tensor) and value.ndim == 1 else value)


class Softmax(LogitsProcessor):
    """Logits to probabilities."""

    gives = {TensorType.LOGITS: TensorType.PROBS}

    def __init__(self, enable_pdl: bool | None = None, **params: Any) -> None:
        super().__init__(enable_pdl=enable_pdl, **params)

    def run(self, x: torch.Tensor, input_type: TensorType, given: dict[str, Any]) -> torch.Tensor:
        return sampling.softmax(x)


class TopK(LogitsProcessor):
    """Keeps the top_k largest; joint_topk_topp: together with the TopP that follows, over the unfiltered probabilities."""

    gives = {TensorType.LOGITS: TensorType.LOGITS, TensorType.PROBS: TensorType.PROBS}

    def __init__(self, joint_topk_topp: bool = False, **params: Any) -> None:
        super().__init__(joint_topk_topp=joint_topk_topp, **params)

    def threshold(self, given: dict[str, Any]) -> dict[str, Any]:
        value = self.parameter("top_k", given)
        if not isinstance(value, torch.Tensor) and not (isinstance(value, int) and value > 0):
            raise ValueError("top_k must be a positive integer or a tensor array")
        return {"top_k": value}

    def run(self, x: torch.Tensor, input_type: TensorType, given: dict[str, Any]) -> torch.Tensor:
        if input_type is TensorType.LOGITS:
            return sampling.top_k_mask_logits(x, **self.threshold(given))
        return sampling.top_k_renorm_probs(x, **self.threshold(given))


class _Share(LogitsProcessor):
    """A filter by a number in (0, 1]."""

    gives = {TensorType.PROBS: TensorType.PROBS}
    name = ""

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)

    def threshold(self, given: dict[str, Any]) -> dict[str, Any]:
        value = self.parameter(self.name, given)
        if not isinstance(value, torch.Tensor) and not 0 < value <= 1:
            raise ValueError(f"{self.name} must be float in (0, 1] or a tensor array")
        return {self.name: value}


class TopP(_Share):
    """Keeps the shortest list of likeliest tokens with mass >= top_p."""

    name = "top_p"

    def run(self, x: torch.Tensor, input_type: TensorType, given: dict[str, Any]) -> torch.Tensor:
        return sampling.top_p_renorm_probs(x, **self.threshold(given))


class MinP(_Share):
    """Keeps what is at least min_p times as likely as the likeliest token."""

    name = "min_p"

    def run(self, x: torch.Tensor, input_type: TensorType, given: dict[str, Any]) -> torch.Tensor:
        value = self.threshold(given)["min_p"]
        least = x.amax(dim=-1, keepdim=True) * (value.unsqueeze(-1) if isinstance(value, torch.Tensor) else value)
        kept = torch.where(x >= least, x, 0)
        return kept / kept.sum(dim=-1, keepdim=True)


class Sample(LogitsProcessor):
    """Draws a token; the call of the pipe may give `indices` and `generator`."""

    gives = {TensorType.LOGITS: TensorType.INDICES, TensorType.PROBS: TensorType.INDICES}

    def __init__(self, deterministic: bool = True, **params: Any) -> None:
        super().__init__(deterministic=deterministic, **params)

    def draw(
        self,
        x: torch.Tensor,
        kind: Literal["logits", "probs"],
        given: dict[str, Any],
        order: str = "top_k_first",
        **thresholds: Any,
    ) -> torch.Tensor:
        indices, generator = (given.get(name, self.params.get(name)) for name in ("indices", "generator"))
        tokens: torch.Tensor = sampling._draw(kind, x, indices, generator, None, None, False, order, **thresholds)
        return tokens

    def run(self, x: torch.Tensor, input_type: TensorType, given: dict[str, Any]) -> torch.Tensor:
        return self.draw(x, "logits" if input_type is TensorType.LOGITS else "probs", given)
