"""Masks of transformers as what they say, not as what they look like.

transformers describes a mask by a function of (batch, head, query position, key position), built from causal order,
windows, chunks, spans and whatever a model adds, and by a 2-D padding mask. Here that function is called once with
symbols instead of tensors, which yields the expression that Girih's planner proves key ranges from; padding becomes
ranges of keys. What cannot be traced is left to a dense mask. A StructuredMask travels through a model as the 4-D
boolean tensor it stands for: its values are made only where somebody looks at them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

__all__ = ["MaskStructure", "Node", "StructuredMask", "Untraceable", "structure_of", "trace"]

#: An expression as nested tuples, hashable: ("q",) ("kv",) ("batch",) ("int", n) ("true",) ("false",) ("array", slot,
#: axes)
#: or (operator, operand, ...).
Node: TypeAlias = tuple[Any, ...]
#: mask_function(batch_idx, head_idx, q_idx, kv_idx)
MaskFunction: TypeAlias = Callable[[Any, Any, Any, Any], Any]

TRUE: Node = ("true",)
FALSE: Node = ("false",)
_COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!="))
_BOOLEAN = frozenset(("true", "false", "bits", "&", "|", "~")) | _COMPARISONS


class Untraceable(Exception):
    """A mask function does what has no expression here; its dense mask is right all the same."""


def is_boolean(node: Node) -> bool:
    return node[0] in _BOOLEAN


def _conjunction(a: Node, b: Node) -> Node:
    if a == FALSE or b == FALSE:
        return FALSE
    if a == TRUE:
        return b
    return a if b == TRUE else ("&", a, b)


def _disjunction(a: Node, b: Node) -> Node:
    if a == TRUE or b == TRUE:
        return TRUE
    if a == FALSE:
        return b
    return a if b == FALSE else ("|", a, b)


class _Tracer:
    """What one trace collects: the tensors that the mask function indexes."""

    def __init__(self, device: torch.device, extents: dict[str, int]) -> None:
        self.device = device
        self.extents = extents  # of "batch", "q" and "kv": indices are below these
        self.arrays: list[torch.Tensor] = []

    def index(self, tensor: torch.Tensor, index: Any) -> Symbol:
        """`tensor[index]` where the index holds symbols: an array node. Only bare positions, so that no index wraps or
        is outside.
        """
        if tensor.dtype not in (torch.bool, torch.int64, torch.int32):
            raise Untraceable(f"a tensor of {tensor.dtype} is indexed")
        axes: list[str] = []
        for dim, part in enumerate(index if isinstance(index, tuple) else (index,)):
            if not isinstance(part, Symbol) or part.node[0] not in ("batch", "q", "kv", "int"):
                raise Untraceable("a tensor is indexed by more than plain positions")
            if part.node[0] == "int":  # the head, of which masks have one
                if dim != len(axes) or part.node[1] >= tensor.shape[dim]:
                    raise Untraceable("a tensor is indexed by a constant that it does not have")
                tensor = tensor.select(dim, part.node[1])
                continue
            if len(axes) >= tensor.dim() or self.extents[part.node[0]] > tensor.shape[len(axes)]:
                raise Untraceable("a tensor is indexed beyond its extents")
            axes.append(part.node[0])
        if not axes or len(axes) != tensor.dim() or len(axes) > 2:
            raise Untraceable("a tensor is indexed partly")
        slot = next((slot for slot, known in enumerate(self.arrays) if known is tensor), len(self.arrays))
        if slot == len(self.arrays):
            self.arrays.append(tensor)
        kind = "bits" if tensor.dtype == torch.bool else "array"
        return Symbol(self, (kind, slot, tuple(axes)))


class _Indexing(TorchFunctionMode):
    """Catches `tensor[symbol]`, which a tensor would otherwise try to read as an index by itself."""

    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.__getitem__:
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, Symbol) for part in parts):
                return self.tracer.index(args[0], args[1])
        return func(*args, **(kwargs or {}))


class Symbol:
    """Stands for a tensor in a mask function; records what is done with it."""

    __slots__ = ("node", "tracer")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tracer: _Tracer, node: Node) -> None:
        self.tracer = tracer
        self.node = node

    # What combinators of masks ask of a tensor besides arithmetic.
    @property
    def device(self) -> torch.device:
        return self.tracer.device

    def to(self, *args: Any, **kwargs: Any) -> Symbol:
        for given in (*args, *kwargs.values()):
            if given == torch.bool and is_boolean(self.node):
                continue
            if not isinstance(given, (torch.device, str)):
                raise Untraceable(f"converted to {given}")
        return self

    def new_ones(self, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Symbol:
        return self._constant(size, dtype, TRUE)

    def new_zeros(self, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Symbol:
        return self._constant(size, dtype, FALSE)

    def _constant(self, size: Sequence[int], dtype: torch.dtype | None, node: Node) -> Symbol:
        if tuple(size) != () or dtype != torch.bool:
            raise Untraceable("a tensor is made that is no single condition")
        return Symbol(self.tracer, node)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # `tensor <= symbol`: Python's own reflection does it.
        name = getattr(func, "__name__", "").strip("_")
        if not kwargs and len(args) == 2 and name in _REFLECTED:
            other, self = args
            if isinstance(self, Symbol) and isinstance(other, torch.Tensor):
                return getattr(self, f"__{_REFLECTED[name]}__")(other)
        raise Untraceable(f"{name or func} is called")

    def _operand(self, value: Any) -> Node:
        if isinstance(value, Symbol):
            return value.node
        if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_floating_point():
            value = value.item()
        if isinstance(value, bool):
            return TRUE if value else FALSE
        if isinstance(value, int):
            return ("int", value)
        raise Untraceable(f"combined with a {type(value).__name__}")

    def _integers(self, operator: str, a: Node, b: Node) -> Symbol:
        if is_boolean(a) or is_boolean(b):
            if operator not in ("==", "!=") or not (is_boolean(a) and is_boolean(b)):
                raise Untraceable(f"{operator} on conditions")
            same: Node = ("|", ("&", a, b), ("&", ("~", a), ("~", b)))
            return Symbol(self.tracer, same if operator == "==" else ("~", same))
        # Positions are not negative, which says all of "everything is visible" as it is commonly written.
        if operator == ">=" and a[0] in ("q", "kv", "batch") and b == ("int", 0):
            return Symbol(self.tracer, TRUE)
        return Symbol(self.tracer, (operator, a, b))

    def _conditions(self, operator: str, a: Node, b: Node) -> Symbol:
        if not (is_boolean(a) and is_boolean(b)):
            raise Untraceable(f"{operator} on integers")
        return Symbol(self.tracer, _conjunction(a, b) if operator == "&" else _disjunction(a, b))

    def __add__(self, other: Any) -> Symbol:
        return self._integers("+", self.node, self._operand(other))

    def __radd__(self, other: Any) -> Symbol:
        return self._integers("+", self._operand(other), self.node)

    def __sub__(self, other: Any) -> Symbol:
        return self._integers("-", self.node, self._operand(other))

    def __rsub__(self, other: Any) -> Symbol:
        return self._integers("-", self._operand(other), self.node)

    def __mul__(self, other: Any) -> Symbol:
        return self._integers("*", self.node, self._operand(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Symbol:
        return self._divide("//", other)

    def __mod__(self, other: Any) -> Symbol:
        return self._divide("%", other)

    def _divide(self, operator: str, other: Any) -> Symbol:
        divisor = self._operand(other)
        if divisor[0] != "int" or divisor[1] <= 0:
            raise Untraceable("divided by what may be 0")
        return self._integers(operator, self.node, divisor)

    def __abs__(self) -> Symbol:
        if is_boolean(self.node):
            raise Untraceable("abs of a condition")
        return Symbol(self.tracer, ("abs", self.node))

    abs = __abs__

    def __lt__(self, other: Any) -> Symbol:
        return self._integers("<", self.node, self._operand(other))

    def __le__(self, other: Any) -> Symbol:
        return self._integers("<=", self.node, self._operand(other))

    def __gt__(self, other: Any) -> Symbol:
        return self._integers(">", self.node, self._operand(other))

    def __ge__(self, other: Any) -> Symbol:
        return self._integers(">=", self.node, self._operand(other))

    def __eq__(self, other: Any) -> Symbol:  # type: ignore[override]
        return self._integers("==", self.node, self._operand(other))

    def __ne__(self, other: Any) -> Symbol:  # type: ignore[override]
        return self._integers("!=", self.node, self._operand(other))

    def __and__(self, other: Any) -> Symbol:
        return self._conditions("&", self.node, self._operand(other))

    __rand__ = __and__

    def __or__(self, other: Any) -> Symbol:
        return self._conditions("|", self.node, self._operand(other))

    __ror__ = __or__

    def __invert__(self) -> Symbol:
        if not is_boolean(self.node):
            raise Untraceable("~ of an integer")
        return Symbol(self.tracer, ("~", self.node))

    def __bool__(self) -> bool:
        raise Untraceable("its control flow depends on positions")

    def __getattr__(self, name: str) -> Any:
        raise Untraceable(f"uses Tensor.{name}")


_REFLECTED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne", "and": "and", "or": "or"}
_REFLECTED |= {"bitwise_and": "and", "bitwise_or": "or", "add": "add", "mul": "mul", "sub": "rsub", "rsub": "sub"}


def trace(
    mask_function: MaskFunction, *, batch: int, q_end: int, kv_end: int, device: torch.device
) -> tuple[Node, list[torch.Tensor]]:
    """The expression of a mask function and the tensors that its array nodes name by slot. Positions are below q_end
    and kv_end.

    Raises Untraceable.
    """
    tracer = _Tracer(device, {"batch": batch, "q": q_end, "kv": kv_end})
    symbols = [Symbol(tracer, node) for node in (("batch",), ("int", 0), ("q",), ("kv",))]
    try:
        with _Indexing(tracer):
            result = mask_function(*symbols)
    except Untraceable:
        raise
    except (TypeError, AttributeError, IndexError, RuntimeError, ValueError) as error:
        raise Untraceable(str(error)) from error
    if isinstance(result, bool):
        return (TRUE if result else FALSE), tracer.arrays
    if not isinstance(result, Symbol) or not is_boolean(result.node):
        raise Untraceable("it returns no condition")
    return result.node, tracer.arrays


_serials = itertools.count(1)


@dataclass(frozen=True)
class MaskStructure:
    """A mask of [batch, 1, q_length, kv_length]: which keys each request has, and the rule by which its queries see
    them.
    """

    batch_size: int
    q_length: int
    kv_length: int
    q_offset: int  # position of the first query
    kv_offset: int  # position of the first key
    rule: Node
    arrays: tuple[np.ndarray[Any, Any], ...] = ()  # by slot, as the rule indexes them
    kv_begin: np.ndarray[Any, Any] | None = (
        None  # i64 [batch]: keys before are padding, counted from the first key; None: 0
    )
    kv_end: np.ndarray[Any, Any] | None = None  # i64 [batch]: keys from here on are padding; None: kv_length
    holes: np.ndarray[Any, Any] | None = (
        None  # bool [batch, kv_length]: False where padding lies between a request's keys
    )
    serial: int = field(default_factory=lambda: next(_serials))  # tells this mask from all others: plans are kept by it


def _padding_ranges(padding: torch.Tensor, kv_offset: int, kv_length: int) -> dict[str, Any]:
    """Ranges of keys of a 2-D padding mask, whose columns are positions; columns that are missing at its end are
    padding.
    """
    keys = padding[:, kv_offset : kv_offset + kv_length].cpu().numpy().astype(bool, copy=False)
    if keys.shape[1] < kv_length:
        keys = np.pad(keys, ((0, 0), (0, kv_length - keys.shape[1])))
    if keys.all():
        return {}
    count = keys.sum(axis=1)
    begin = np.where(count > 0, keys.argmax(axis=1), 0).astype(np.int64)
    end = np.where(count > 0, kv_length - keys[:, ::-1].argmax(axis=1), 0).astype(np.int64)
    return {
        "kv_begin": begin if begin.any() else None,
        "kv_end": end,
        "holes": None if (count == end - begin).all() else keys,
    }


def structure_of(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int,
    kv_offset: int,
    mask_function: MaskFunction,
    attention_mask: torch.Tensor | None,
    device: torch.device,
) -> MaskStructure:
    """The structure of a mask, from the arguments that transformers makes masks with. Raises Untraceable."""
    rule, tensors = trace(
        mask_function, batch=batch_size, q_end=q_offset + q_length, kv_end=kv_offset + kv_length, device=device
    )
    ranges: dict[str, Any] = {}
    if attention_mask is not None:
        if attention_mask.dim() != 2 or attention_mask.shape[0] != batch_size:
            raise Untraceable(f"the padding mask has shape {tuple(attention_mask.shape)}")
        ranges = _padding_ranges(attention_mask, kv_offset, kv_length)
    return MaskStructure(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        rule=rule,
        arrays=tuple(np.ascontiguousarray(tensor.cpu().numpy()) for tensor in tensors),
        **ranges,
    )


class StructuredMask(torch.Tensor):
    """A [batch, 1, q_length, kv_length] boolean mask (True = visible) by its structure; any operation on it makes the
    values first.
    """

    structure: MaskStructure
    _make_dense: Callable[[], torch.Tensor]
    _dense: torch.Tensor | None
    is_exposed: bool
    """Whether somebody has written into the values, or has a view to write into: they then count, not the structure."""

    @staticmethod
    def __new__(
        cls, structure: MaskStructure, device: torch.device, make_dense: Callable[[], torch.Tensor]
    ) -> StructuredMask:
        shape = (structure.batch_size, 1, structure.q_length, structure.kv_length)
        self: StructuredMask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        self.structure = structure
        self._make_dense = make_dense
        self._dense = None
        self.is_exposed = False
        return self

    def dense(self) -> torch.Tensor:
        """The values, made once."""
        if self._dense is None:
            self._dense = self._make_dense().contiguous()
        return self._dense

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.dense().clone()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"StructuredMask({self.structure!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        aliases = any(argument.alias_info is not None for argument in func._schema.arguments)

        def plain(value: Any) -> Any:
            if not isinstance(value, StructuredMask):
                return value
            value.is_exposed = value.is_exposed or aliases
            return value.dense()

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))
