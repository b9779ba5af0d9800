"""`@girih.variant`: a Python function becomes a Variant. The function is called once, with expressions for what its parameters name; what
it returns is the graph. Nothing of Python is left in it, so what Python decides by itself (`if`, `and`, an index) cannot depend on an
expression: such a line raises an error that shows it and says what to write, worked out in _trace_errors.py.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, overload

from . import _girih
from ._girih import ArrayParam, BitsParam, Expr, Rope, Variant
from ._trace_errors import definition_error, function_of, traced_error

if TYPE_CHECKING:
    from ._typing import ExprLike

__all__ = ["Array", "Bits", "Scalar", "variant"]

#: Parameter names of a traced function that are variables of attention.
VARIABLES: dict[str, Callable[[], Expr]] = {
    "score": _girih.score,
    "q_pos": _girih.q_pos,
    "kv_pos": _girih.kv_pos,
    "q_idx": _girih.q_idx,
    "q_len": _girih.q_len,
    "kv_len": _girih.kv_len,
    "request": _girih.request,
    "q_head": _girih.q_head,
    "kv_head": _girih.kv_head,
    "q_row": _girih.q_row,
    "x": _girih.x,
    "dim": _girih.dim,
    "mean_square": _girih.mean_square,
}
HOOKS = ("query", "key", "value", "logits", "mask", "sink", "output")

# To a type checker a parameter is what the function's body sees; at run time it only says what to make.
if TYPE_CHECKING:
    from ._girih import ArrayParam as _AsArray
    from ._girih import BitsParam as _AsBits
    from ._girih import Expr as _AsExpr
else:
    _AsExpr = _AsArray = _AsBits = object


class Scalar(_AsExpr):
    """A parameter of a traced function that is a scalar given with params={name: value}.

    As annotation or default: `cap: girih.Scalar`, `window: girih.Scalar(int, time="plan")`, `window=girih.Scalar(int)`.
    type: float ("number", f32) or int ("integer", 64-bit). time: "run" (comes with run(), may differ between runs of one plan) or "plan"
    (comes with plan(), and the planner can prove masks with it).
    """

    def __init__(self, type: type[float | int] | str = float, time: str = "run") -> None:
        self._arguments = (type, time)

    def _make(self, name: str) -> Expr:
        return _girih.scalar(name, *self._arguments)


class Array(_AsArray):
    """A parameter of a traced function that is a one-dimensional array, indexed by an expression: `slopes[q_head]`.

    As annotation or default: `slopes: girih.Array("f32")`, `ids=girih.Array("i32", time="plan")`. dtype: "f32", "i32", "i64". time: as for
    Scalar. An index outside the array reads 0.
    """

    def __init__(self, dtype: Any = "f32", time: str = "run") -> None:
        self._arguments = (dtype, time)

    def _make(self, name: str) -> ArrayParam:
        return _girih.array(name, *self._arguments)


class Bits(_AsBits):
    """A parameter of a traced function that is an array of bits, packed little-endian into uint8: `allowed[q_idx * kv_len + kv_pos]`.

    As annotation or default: `allowed: girih.Bits`, `allowed=girih.Bits(time="plan")`. A bit outside the array reads false.
    """

    def __init__(self, time: str = "run") -> None:
        self._arguments = (time,)

    def _make(self, name: str) -> BitsParam:
        return _girih.bits(name, *self._arguments)


_MARKERS = (Scalar, Array, Bits)
#: What readers of other engines write, and what it is here.
_ELSEWHERE = {
    "b": "request",
    "batch": "request",
    "batch_idx": "request",
    "h": "q_head",
    "head": "q_head",
    "head_idx": "q_head",
    "q_index": "q_pos",
    "kv_idx": "kv_pos",
    "k_idx": "kv_pos",
    "k_pos": "kv_pos",
    "key_pos": "kv_pos",
    "query_pos": "q_pos",
    "qo_head_idx": "q_head",
    "kv_head_idx": "kv_head",
    "qo_idx": "q_idx",
    "qo_len": "q_len",
    "logits": "score",
    "s": "score",
}


def _marker(value: Any) -> Any:
    """The Scalar, Array or Bits that an annotation or default says, or None."""
    if isinstance(value, _MARKERS):
        return value
    if isinstance(value, type) and issubclass(value, _MARKERS):
        return value()
    if typing.get_origin(value) is Annotated:
        for extra in value.__metadata__:
            found = _marker(extra)
            if found is not None:
                return found
    return None


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of parameters as objects, those kept as text (`from __future__ import annotations`) included."""
    owner = function_of(function)
    found = dict(getattr(owner, "__annotations__", {}))
    names = dict(getattr(owner, "__globals__", {}))
    code, cells = getattr(owner, "__code__", None), getattr(owner, "__closure__", None) or ()
    if code is not None:
        for name, cell in zip(code.co_freevars, cells):
            try:
                names[name] = cell.cell_contents
            except ValueError:  # not bound yet
                pass
    for name, annotation in found.items():
        if name != "return" and name not in VARIABLES and isinstance(annotation, str):
            try:
                found[name] = eval(annotation, names)
            except Exception as error:
                raise definition_error(
                    TypeError,
                    function,
                    f"the annotation of parameter `{name}` is text that cannot be evaluated here ({error}): give it as a default, "
                    f'{name}=girih.Scalar() or {name}=girih.Array("f32")',
                ) from error
    return found


def _argument(function: Callable[..., Any], parameter: inspect.Parameter, annotation: Any) -> Any:
    """What the function is called with for one parameter; inspect.Parameter.empty: its own default."""
    name, default = parameter.name, parameter.default
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise definition_error(
            TypeError, function, f"`*{name}`: name each variable and parameter that the function takes"
        )
    has_default = default is not inspect.Parameter.empty
    marker = _marker(default) or _marker(annotation)
    if name in VARIABLES:
        if marker is not None or has_default:
            raise definition_error(
                ValueError,
                function,
                f"`{name}` is a variable of attention, so it can be neither a parameter nor have a default: rename it",
            )
        return VARIABLES[name]()
    if marker is None and has_default:
        return inspect.Parameter.empty
    if marker is None and annotation in (float, int):
        marker = Scalar(annotation)
    if marker is None:
        raise definition_error(ValueError, function, _unknown_name(name))
    try:
        return marker._make(name)
    except (TypeError, ValueError) as error:
        raise definition_error(type(error), function, f"parameter `{name}`: {error}") from error


def _unknown_name(name: str) -> str:
    text = f"parameter `{name}` is neither a variable nor declared. "
    if name in _ELSEWHERE:
        text += f"Did you mean `{_ELSEWHERE[name]}`? "
        # Elsewhere q_idx is a position; here it counts the request's query rows, which differs where there are keys before them.
        text += "What FlexAttention calls q_idx is `q_pos` here. " if name == "kv_idx" else ""
    else:
        import difflib

        close = difflib.get_close_matches(name, VARIABLES, 1, 0.75)
        text += f"Did you mean `{close[0]}`? " if close else ""
    return (
        text
        + f"Variables are {', '.join(VARIABLES)}. Declare a value of your own: {name}: girih.Scalar, {name}: girih.Scalar(int), "
        + f'{name}: girih.Array("f32"), {name}: girih.Bits, or a constant: {name}=1.0'
    )


def _parts_of(function: Callable[..., Any], result: Any, hook: str | None) -> dict[str, Any]:
    """The hooks that a traced function's result fills."""
    if isinstance(result, Variant):
        return {"variant": result}
    if isinstance(result, Mapping):
        for key in result:
            if key not in HOOKS:
                raise definition_error(
                    ValueError, function, f"returns a dict with {key!r}; hooks are {', '.join(HOOKS)}"
                )
        return dict(result)
    try:
        value = Expr(result)
    except TypeError as error:
        what = "returns nothing; is a `return` missing?" if result is None else f"returns a {type(result).__name__}."
        raise definition_error(
            TypeError,
            function,
            f"{what} Return a condition (the mask), a number (the logits), a dict of hooks such as "
            '{"mask": ..., "logits": ...}, or a girih.Variant',
        ) from error
    if hook is not None:
        return {hook: value}
    return {"mask" if value.type == "boolean" else "logits": value}


def _trace(function: Callable[..., Any], hook: str | None, parts: dict[str, Any]) -> Variant:
    if not callable(function):
        raise TypeError(f"girih.variant: takes a function, not a {type(function).__name__}")
    if hook is not None and hook not in HOOKS:
        raise ValueError(f"girih.variant: hook={hook!r}; must be one of {', '.join(HOOKS)}")
    annotations = _annotations(function)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        value = _argument(function, parameter, annotations.get(parameter.name))
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(parameter.default if value is inspect.Parameter.empty else value)
        elif value is not inspect.Parameter.empty:
            named[parameter.name] = value
    try:
        result = function(*positional, **named)
    except Exception as error:
        explained = traced_error(function, error, sys.exc_info()[2])
        if explained is None:
            raise
        raise explained from error
    hooks = _parts_of(function, result, hook)
    name = getattr(function, "__name__", "")
    named_parts: dict[str, Any] = {} if name == "<lambda>" else {"name": name}
    base = hooks.pop("variant", None)
    if base is not None and base.name:
        named_parts = {}
    try:
        return (base or Variant()).replace(**{**named_parts, **hooks, **parts})
    except (TypeError, ValueError) as error:
        text = str(error)
        if hook is None and any(f"logits uses {v}" in text for v in ("x", "dim", "mean_square")):
            text += ': say which hook it is, as in @girih.variant(hook="query")'
        raise definition_error(type(error), function, text) from error


@overload
def variant(function: Callable[..., Any], /) -> Variant: ...
@overload
def variant(
    *,
    hook: str | None = None,
    name: str = ...,
    query: ExprLike | None = ...,
    key: ExprLike | None = ...,
    value: ExprLike | None = ...,
    logits: ExprLike | None = ...,
    mask: ExprLike | None = ...,
    sink: ExprLike | None = ...,
    output: ExprLike | None = ...,
    softmax: bool = ...,
    rope: Rope | None = ...,
) -> Callable[[Callable[..., Any]], Variant]: ...
def variant(function: Callable[..., Any] | None = None, /, *, hook: str | None = None, **parts: Any) -> Any:
    """Makes a Variant of a function of variables and parameters::

        @girih.variant
        def local(q_pos, kv_pos, window: girih.Scalar(int, time="plan")):
            return (kv_pos <= q_pos) & (q_pos - kv_pos < window)

        @girih.variant(sink=girih.variants.sinks())
        def capped(score, q_pos, kv_pos, cap: girih.Scalar):
            return {"logits": cap * girih.tanh(score / cap), "mask": kv_pos <= q_pos}

    The names of the function's parameters say what they are: score, q_pos, kv_pos, q_idx, q_len, kv_len, request, q_head, kv_head, q_row
    (x, dim, mean_square in transforms) are variables of attention; q_pos and kv_pos are positions in the sequence, q_idx counts a
    request's query rows from 0. Others are declared by annotation or default as girih.Scalar, girih.Array or girih.Bits and get their
    values with params={name: value}; `float` and `int` mean Scalar. A parameter with a number as default, and numbers of the surrounding
    code, are constants.

    It returns a condition (the mask), a number (the logits), a dict of hooks, or a Variant. The function runs once, now.

    hook: which hook a plain result fills: query, key, value, logits, mask, sink, output; None: mask or logits, by its type.
    Further keywords are parts of the Variant: sink=..., softmax=False, rope=..., name=....

    Raises TypeError or ValueError with file, line and text of what cannot be traced, and what to write instead.
    """
    if function is None:
        return functools.partial(_trace, hook=hook, parts=parts)
    return _trace(function, hook, parts)
