"""How functions become custom ops of the namespace `girih`: with a schema, a fake kernel, and a backward pass that
refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["inference_only", "op"]

F = TypeVar("F", bound=Callable[..., Any])


def op(schema: str, fake: Callable[..., Any] | None, *tags: torch.Tag, mutates: Sequence[str] = ()) -> Callable[[F], F]:
    """Registers a function as girih::<its schema's name>, with a backward pass that refuses."""

    def register(function: F) -> F:
        name, arguments = schema.split("(", 1)
        custom = torch.library.custom_op(
            f"girih::{name}", function, mutates_args=tuple(mutates), schema=f"({arguments}", tags=tags or None
        )
        if fake is not None:
            custom.register_fake(fake)
        if not mutates:

            def backward(ctx: Any, *grads: Any) -> Any:
                raise RuntimeError(
                    f"girih::{name} is for inference and has no backward pass; run it under torch.no_grad()"
                )

            custom.register_autograd(backward)
        return function

    return register


def inference_only(name: str, *tensors: Tensor | None) -> None:
    """What an op writes into its arguments has no place in a gradient's history: said before it is written."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                raise RuntimeError(
                    f"girih::{name} is for inference and has no backward pass; run it under torch.no_grad()"
                )
