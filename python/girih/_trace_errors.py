"""Errors of traced functions, with the line at fault and what to write instead. The exception's traceback gives the position; the
syntax tree there tells what was asked of an expression (a chained comparison, `and`, a function of math), hence the remedy can be spelled
with the user's own operands.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

__all__ = ["definition_error", "function_of", "traced_error"]

_FUNCTIONS = ("exp", "log", "tanh", "sqrt", "rsqrt", "sigmoid", "abs", "min", "max", "select")
#: Functions of math, numpy, torch and builtins, by their last name, and how the same is written here.
_ELSEWHERE = {
    "where": "girih.select({})",
    "minimum": "girih.min({})",
    "maximum": "girih.max({})",
    "fmin": "girih.min({})",
    "fmax": "girih.max({})",
    "fabs": "girih.abs({})",
    "logical_and": "({}) & ({})",
    "logical_or": "({}) | ({})",
    "logical_not": "~({})",
    "expit": "girih.sigmoid({})",
    **{name: f"girih.{name}({{}})" for name in _FUNCTIONS},
}


class _Place(NamedTuple):
    file: str
    function: str
    line: int
    column: int | None  # in characters, from 0
    end_line: int | None
    end_column: int | None

    def text(self) -> str:
        return linecache.getline(self.file, self.line).rstrip()

    def shown(self) -> str:
        source = self.text()
        shown = f'  File "{self.file}", line {self.line}, in {self.function}'
        if not source.strip():
            return shown
        indent = len(source) - len(source.lstrip())
        shown += f"\n    {source.strip()}"
        if self.column is not None and self.end_column is not None:
            end = self.end_column if self.end_line == self.line else len(source)
            if not (self.column <= indent and end >= len(source)):
                shown += "\n    " + " " * (self.column - indent) + "^" * max(end - self.column, 1)
        return shown


def function_of(function: Any) -> Any:
    """The Python function behind partial objects, wrappers, methods and objects that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    return function if hasattr(function, "__code__") else vars(type(function)).get("__call__", function)


def _code_of(function: Any) -> types.CodeType | None:
    code: types.CodeType | None = getattr(function_of(function), "__code__", None)
    return code


def _title(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def definition_error(kind: type[Exception], function: Callable[..., Any], text: str) -> Exception:
    """An error about the function as a whole, at its first line."""
    code = _code_of(function)
    if code is None:
        return kind(f"girih.variant: {_title(function)}: {text}")
    line = code.co_firstlineno
    # A decorated function begins at its decorator.
    for offset in range(20):
        if linecache.getline(code.co_filename, line + offset).lstrip().startswith(("def ", "async def ", "class ")):
            line += offset
            break
    place = _Place(code.co_filename, _title(function), line, None, None, None)
    return kind(f"girih.variant: {_title(function)} cannot be traced\n{place.shown()}\n  {text}")


def traced_error(function: Callable[..., Any], error: Exception, trace: types.TracebackType | None) -> Exception | None:
    """The error to raise in place of one that the call of a traced function raised; None: it is the function's own affair."""
    if not isinstance(error, (TypeError, ValueError, IndexError, AttributeError, RuntimeError)):
        return None
    if isinstance(error, AttributeError) and "Expr" not in str(error):
        return None
    place = _place_of(function, trace)
    if place is None:
        return None
    kind = ValueError if isinstance(error, ValueError) else TypeError
    remedy = _remedy(place, str(error)) or str(error)
    return kind(f"girih.variant: {_title(function)} cannot be traced\n{place.shown()}\n  {remedy}")


def _place_of(function: Callable[..., Any], trace: types.TracebackType | None) -> _Place | None:
    """Where in the function's file the call failed, helper functions there included."""
    code = _code_of(function)
    found = None
    while trace is not None and code is not None:
        frame_code = trace.tb_frame.f_code
        if frame_code.co_filename == code.co_filename:
            found = _place_in(frame_code, trace)
        trace = trace.tb_next
    return found


def _place_in(code: types.CodeType, trace: types.TracebackType) -> _Place:
    line, end_line, column, end_column = trace.tb_lineno, None, None, None
    if sys.version_info >= (3, 11):
        for i, position in enumerate(code.co_positions()):
            if i == trace.tb_lasti // 2:
                line, end_line, column, end_column = position[0] or line, position[1], position[2], position[3]
                break
    if column is not None and end_column is not None:
        # Positions count UTF-8 bytes.
        column = _characters(code.co_filename, line, column)
        end_column = _characters(code.co_filename, end_line or line, end_column)
    return _Place(code.co_filename, code.co_name, line, column, end_line, end_column)


def _characters(file: str, line: int, count: int) -> int:
    return len(linecache.getline(file, line).encode()[:count].decode(errors="replace"))


# ---------------------------------------------------------------------------------------------------------------- remedies


def _remedy(place: _Place, error: str) -> str | None:
    """What to write in place of the construct at fault; None where the error itself says all."""
    try:
        tree = ast.parse("".join(linecache.getlines(place.file)))
    except SyntaxError:  # a notebook cell with magic commands, or no file
        return None
    about_truth = "no truth value" in error
    best: tuple[int, str] | None = None
    for node in ast.walk(tree):
        if not hasattr(node, "lineno") or not _covers(node, place):
            continue
        for text in _truth_remedies(node, place) if about_truth else _other_remedies(node, place, error):
            size = _size(node)
            if best is None or size < best[0]:
                best = (size, text)
    return best[1] if best is not None else None


def _covers(node: Any, place: _Place) -> bool:
    if not node.lineno <= place.line <= node.end_lineno:
        return False
    if place.column is None:
        return True
    return (node.lineno, node.col_offset) <= (place.line, place.column) and (
        place.end_line or place.line,
        place.end_column or 0,
    ) <= (node.end_lineno, node.end_col_offset)


def _size(node: Any) -> int:
    return int((node.end_lineno - node.lineno) * 10_000 + node.end_col_offset - node.col_offset)


def _joined(values: list[ast.expr], sign: str) -> str:
    return f" {sign} ".join(f"({ast.unparse(value)})" for value in values)


def _truth_remedies(node: ast.AST, place: _Place) -> Iterator[str]:
    asks = "asks for one truth value, and an expression has one for every query and key"
    if isinstance(node, ast.BoolOp):
        word, sign = ("and", "&") if isinstance(node.op, ast.And) else ("or", "|")
        yield f"`{word}` {asks}. Write {_joined(node.values, sign)}"
    elif isinstance(node, ast.Compare) and len(node.ops) > 1:
        sides = [node.left, *node.comparators]
        pairs: list[ast.expr] = [
            ast.Compare(left=sides[i], ops=[node.ops[i]], comparators=[sides[i + 1]]) for i in range(len(node.ops))
        ]
        yield f"a chained comparison means `and`, which {asks}. Write {_joined(pairs, '&')}"
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        yield f"`in` {asks}. Write the comparisons out, as in (a == 1) | (a == 2), or look a girih.Array or girih.Bits up"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"`not` {asks}. Write ~({ast.unparse(node.operand)})"
    elif isinstance(node, ast.IfExp) and _covers(node.test, place):
        parts = ", ".join(ast.unparse(part) for part in (node.test, node.body, node.orelse))
        yield f"`if` {asks}. Write girih.select({parts})"
    elif isinstance(node, (ast.If, ast.While, ast.Assert)) and _covers(node.test, place):
        word = {ast.If: "if", ast.While: "while", ast.Assert: "assert"}[type(node)]
        yield (
            f"`{word}` {asks}: the function runs once, when it is traced. Write girih.select({ast.unparse(node.test)}, a, b) for the "
            "values of both branches"
        )
    elif isinstance(node, ast.Call):
        yield from _call_remedies(node, f"{asks}")


def _call_remedies(node: ast.Call, asks: str) -> Iterator[str]:
    function = ast.unparse(node.func)
    name = function.rpartition(".")[2]
    if function.startswith("girih."):
        return
    if name not in _ELSEWHERE:
        if name in ("any", "all", "sum", "sorted", "bool"):
            yield f"`{function}` {asks}. Combine the conditions by & and |"
        return
    form = _ELSEWHERE[name]
    arguments = [ast.unparse(argument) for argument in node.args]
    if name in ("min", "max") and len(arguments) > 2:
        text = functools.reduce(lambda a, b: form.format(f"{a}, {b}"), arguments)
    elif form.count("{}") > 1:
        text = form.format(*(arguments + ["...", "..."])[:2])
    else:
        text = form.format(", ".join(arguments))
    yield f"`{function}` knows no expressions. Write {text}"


def _other_remedies(node: ast.AST, place: _Place, error: str) -> Iterator[str]:
    if isinstance(node, ast.Subscript):
        if "must be an integer" in error or "parameter '" in error:
            return
        table = ast.unparse(node.value)
        name = table if table.isidentifier() else "table"
        yield (
            f"an expression cannot index `{table}`, whose elements are not known to the traced function. Make it a parameter of the function, "
            f'{name}: girih.Array("f32") (or "i32", "i64"; girih.Bits for packed bits), and give its values with params={{"{name}": ...}}'
        )
    elif isinstance(node, ast.Call):
        function = ast.unparse(node.func)
        name = function.rpartition(".")[2]
        if isinstance(node.func, ast.Attribute) and "has no attribute" in error:
            target = ast.unparse(node.func.value)
            form = _ELSEWHERE.get(name)
            arguments = ", ".join([target, *(ast.unparse(a) for a in node.args)])
            if form is not None and form.count("{}") == 1:
                yield f"expressions have no methods. Write {form.format(arguments)}"
            else:
                yield f"expressions have no methods; functions of them are girih.{', '.join(_FUNCTIONS)}"
        elif name in _ELSEWHERE:
            yield from _call_remedies(node, "")
        elif "no Python number" in error or function.partition(".")[0] in ("math", "np", "numpy", "torch"):
            yield (
                f"`{function}` knows no expressions, and there is no such function of them; there are girih.{', '.join(_FUNCTIONS)}, and "
                "girih.cuda_code for CUDA text"
            )
        elif function == "range":
            yield "`range` needs a Python number: a loop runs when the function is traced. Say the condition on q_pos, kv_pos, ... itself"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base = ast.unparse(node.left)
        yield f"there is no power of expressions. Write ({base}) * ({base}), girih.sqrt(a) or girih.exp(b * girih.log(a))"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
        a, b = ast.unparse(node.left), ast.unparse(node.right)
        yield f"there is no ^ of expressions. Write ({a}) & ~({b}) | ~({a}) & ({b})"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.LShift, ast.RShift)):
        sign = "*" if isinstance(node.op, ast.LShift) else "//"
        yield f"there are no shifts of expressions. Write ({ast.unparse(node.left)}) {sign} (a power of two)"
    elif isinstance(node, ast.For) and _covers(node.iter, place) and "iterable" in error:
        yield "an expression cannot be iterated over: a loop runs when the function is traced. Index it by an expression"
