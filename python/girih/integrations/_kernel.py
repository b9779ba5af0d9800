"""What a layer of a framework asks for, and the variant that says it: a traced mask (_mask.py), padding, a mask or bias
by its values, a soft cap, sinks. Equal kernels are one schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import girih

from ._mask import TRUE, Node

__all__ = ["DenseMask", "Features", "Kernel"]


@dataclass(frozen=True)
class Features:
    """What a layer asks for beside its tensors."""

    sm_scale: float | None = None  # None: 1 / sqrt(head_dim)
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None  # [num_qo_heads]
    bias: torch.Tensor | None = None  # [1 | batch, 1 | heads, q_length, kv_length], added to the (capped) scores


@dataclass(frozen=True)
class DenseMask:
    """A mask by its values: boolean [1 | batch, 1 | heads, q_length, kv_length], True = visible."""

    visible: torch.Tensor


@dataclass(frozen=True)
class Kernel:
    """What selects a schedule beside the limits."""

    device: str
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype]
    heads: tuple[int, int]
    head_dims: tuple[int, int]
    sm_scale: float
    soft_cap: float | None
    sinks: bool
    rule: Node
    arrays: tuple[str, ...] = ()
    begins: bool = False
    holes: bool = False
    bits: tuple[bool, bool] | None = None  # of a dense mask: differs by request, by head
    bias: tuple[bool, bool] | None = None

    def variant(self) -> girih.Variant:
        mask: Any = None if self.rule == TRUE else _expr(self.rule, self.arrays)
        if self.begins:
            mask = _and(mask, girih.kv_pos() >= girih.array("kv_begin", "i64", "plan")[girih.request()])
        if self.holes:
            pitch = girih.scalar("keys_pitch", "integer", "plan")
            mask = _and(mask, girih.bits("keys", "plan")[girih.request() * pitch + girih.kv_pos()])
        if self.bits is not None:
            mask = _and(mask, girih.bits("visible")[_element(*self.bits)])
        logits: Any = None if self.soft_cap is None else girih.variants.soft_cap(self.soft_cap)
        if self.bias is not None:
            logits = (girih.score() if logits is None else logits) + girih.array("bias", "f32")[_element(*self.bias)]
        sink: Any = girih.variants.sinks() if self.sinks else None
        return girih.Variant(mask=mask, logits=logits, sink=sink)


def _and(a: Any, b: Any) -> Any:
    return b if a is None else a & b


def _element(by_request: bool, by_head: bool) -> Any:
    """Index into a row-major [1 | batch, 1 | heads, q_length, kv_length] array; all requests have these lengths."""
    row: Any = girih.q_idx()
    num_heads = girih.scalar("num_heads", "integer", "plan")
    if by_request and by_head:
        row = (girih.request() * num_heads + girih.q_head()) * girih.q_len() + row
    elif by_request:
        row = girih.request() * girih.q_len() + row
    elif by_head:
        row = girih.q_head() * girih.q_len() + row
    return row * girih.kv_len() + (girih.kv_pos() - girih.scalar("kv_offset", "integer", "plan"))


def _expr(node: Node, arrays: Sequence[str]) -> Any:
    """A traced mask as Girih's expression; `arrays` has the element type of each slot."""
    operator, *operands = node
    if operator in ("array", "bits"):
        slot, axes = operands
        index = _expr((axes[0],), arrays)
        if len(axes) == 2:
            pitch = girih.scalar(f"mask_{slot}_pitch", "integer", "plan")
            index = index * pitch + _expr((axes[1],), arrays)
        if operator == "bits":
            return girih.bits(f"mask_{slot}", "plan")[index]
        return girih.array(f"mask_{slot}", arrays[slot], "plan")[index]
    if operator == "int":
        return girih.Expr(operands[0])
    leaf = _LEAVES.get(operator)
    if leaf is not None:
        return leaf()
    return _OPERATORS[operator](*(_expr(operand, arrays) for operand in operands))


_LEAVES: dict[str, Any] = {
    "q": lambda: girih.q_pos(),
    "kv": lambda: girih.kv_pos(),
    "batch": lambda: girih.request(),
    "true": lambda: girih.Expr(True),
    "false": lambda: girih.Expr(False),
}
_OPERATORS: dict[str, Any] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "~": lambda a: ~a,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "abs": abs,
}
