"""LogitsPipe: processors one after the other, or joined where one call does the same."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .. import sampling
from .._arguments import refuse
from .processors import LegalizationError, LogitsProcessor, MinP, Sample, Softmax, Temperature, TopK, TopP
from .types import TaggedTensor, TensorType

_Step = Callable[[torch.Tensor, dict[str, Any]], torch.Tensor]
#: What a call of a pipe may give besides thresholds.
_RUNTIME = {"temperature", "top_k", "top_p", "min_p", "indices", "generator", "is_deterministic"}


def _input_type(processors: list[LogitsProcessor]) -> TensorType:
    taken = list(processors[0].gives)
    if len(taken) > 1:
        raise LegalizationError(
            f"Cannot infer input type: {type(processors[0]).__name__} takes LOGITS and PROBS; give input_type"
        )
    if not taken:
        raise LegalizationError(f"{type(processors[0]).__name__} takes neither LOGITS nor PROBS")
    return taken[0]


class LogitsPipe:
    """A call takes logits (or probabilities) and the processors' parameters, and returns what the last processor gives."""

    def __init__(
        self,
        processors: list[LogitsProcessor],
        compile: bool = True,
        input_type: TensorType | None = None,
        custom_fusion_rules: list[Any] | None = None,
        custom_validity_checks: list[Any] | None = None,
    ) -> None:
        if not processors:
            raise ValueError("Pipeline cannot be empty")
        self.processors = list(processors)
        try:
            self._initial_type = _input_type(self.processors) if input_type is None else input_type
            self._types = self._check_types()
        except LegalizationError as error:
            raise ValueError(f"Pipeline creation failed: {error}") from error
        self._steps: list[_Step] | None = None
        if compile:
            self.compile(custom_fusion_rules, custom_validity_checks)

    def _check_types(self) -> list[TensorType]:
        types = [self._initial_type]
        for i, processor in enumerate(self.processors):
            if types[-1] is TensorType.INDICES:
                raise LegalizationError(f"{type(processor).__name__} follows Sample, which is the last step")
            try:
                processor.legalize(types[-1])
            except ValueError as error:
                raise LegalizationError(f"processor {i}: {error}") from error
            types.append(processor.gives[types[-1]])
        return types

    @property
    def initial_type(self) -> TensorType:
        """What the pipe takes."""
        return self._initial_type

    def compile(
        self, custom_fusion_rules: list[Any] | None = None, custom_validity_checks: list[Any] | None = None
    ) -> None:
        """Joins steps, for calls from now on."""
        for name, given in (
            ("custom_fusion_rules", custom_fusion_rules),
            ("custom_validity_checks", custom_validity_checks),
        ):
            if given:
                raise refuse(
                    "LogitsPipe", name, given, "its steps are Girih's; compose the functions of flashinfer.sampling"
                )
        self._steps = []
        i = 0
        while i < len(self.processors):
            step, count = self._joined(i)
            self._steps.append(step)
            i += count

    def _alone(self, i: int) -> _Step:
        processor, input_type = self.processors[i], self._types[i]
        return lambda x, given: processor.run(x, input_type, given)

    def _joined(self, i: int) -> tuple[_Step, int]:
        """The step from processor i on, and how many processors it does."""
        first, rest = self.processors[i], self.processors[i + 1 :]
        if isinstance(first, Temperature) and rest and isinstance(rest[0], Softmax):
            return (lambda x, given: sampling.softmax(x, first.temperature(given))), 2
        filters: list[TopK | TopP | MinP] = []
        for kind in (TopK, TopP, MinP):
            if i + len(filters) < len(self.processors):
                processor = self.processors[i + len(filters)]
                if isinstance(processor, kind):
                    filters.append(processor)
        end = i + len(filters)
        last = self.processors[end] if end < len(self.processors) else None
        if not filters or not isinstance(last, Sample) or self._types[i] is not TensorType.PROBS:
            return self._alone(i), 1
        joint = isinstance(filters[0], TopK) and bool(filters[0].params["joint_topk_topp"])

        def step(x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
            thresholds = {name: value for f in filters for name, value in f.threshold(given).items()}
            return last.draw(x, "probs", given, "joint" if joint else "top_k_first", **thresholds)

        return step, len(filters) + 1

    def __call__(self, x: torch.Tensor | TaggedTensor, **kwargs: Any) -> torch.Tensor:
        if isinstance(x, TaggedTensor):
            if x.type is not self._initial_type:
                raise ValueError(f"the pipe takes {self._initial_type.name}, got {x.type.name}")
            x = x.data
        unknown = kwargs.keys() - _RUNTIME
        if unknown:
            raise ValueError(f"LogitsPipe: no processor takes {', '.join(sorted(unknown))}")
        steps = [self._alone(i) for i in range(len(self.processors))] if self._steps is None else self._steps
        for step in steps:
            x = step(x, kwargs)
        return x

    def __repr__(self) -> str:
        names = " -> ".join(type(p).__name__ for p in self.processors)
        return f"LogitsPipe([{names}], calls={len(self.processors if self._steps is None else self._steps)})"
