"""The part of C++ that bodies of attention variants are written in: declarations, assignments, if, return, and expressions without effects.

Texts become small trees once and are evaluated over any values that know their operators: Python's numbers, to find out what a body does,
and girih.Expr, to say the same to every backend. What lies outside raises Unsupported with the words it met.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["Node", "Unsupported", "evaluate", "parse", "without_comments"]


class Unsupported(Exception):
    """Text beyond the subset."""


class Node(NamedTuple):
    kind: str
    value: Any
    args: tuple[Any, ...] = ()


_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?[fFuUlL]*)|(?P<name>[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)"
    r"|(?P<op>&&|\|\||<<|>>|<=|>=|==|!=|\+=|-=|\*=|/=|&=|\|=|->|[-+*/%<>=!&|^~?:;,.()\[\]{}]))"
)
_TYPES = {
    "float", "double", "int", "bool", "auto", "unsigned", "int32_t", "int64_t", "uint32_t", "uint64_t", "uint8_t", "int8_t", "size_t",
    "uint16_t", "long", "T", "DTypeQKAccum",
}  # fmt: skip
_INTEGERS = {
    "int",
    "unsigned",
    "int32_t",
    "int64_t",
    "uint32_t",
    "uint64_t",
    "uint8_t",
    "int8_t",
    "size_t",
    "uint16_t",
    "long",
}
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise Unsupported(f"'{text[at : at + 20].strip()}'")
            kind = found.lastgroup or ""
            self.tokens.append((kind, found.group(kind)))
            at = found.end()
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if expected is not None and token != expected:
            raise Unsupported(f"'{token or 'end of text'}' in place of '{expected}'")
        self.at += 1
        return token

    # ------------------------------------------------------------------------------------------------ statements

    def block(self) -> tuple[Node, ...]:
        out: list[Node] = []
        while self.peek() not in ("", "}"):
            out.extend(self.statement())
        return tuple(out)

    def body(self) -> tuple[Node, ...]:
        if self.peek() != "{":
            return tuple(self.statement())
        self.take("{")
        out = self.block()
        self.take("}")
        return out

    def statement(self) -> list[Node]:
        token = self.peek()
        if token == ";":
            self.take()
            return []
        if token == "{":
            return list(self.body())
        if token == "if":
            return [self.condition()]
        if token == "return":
            self.take()
            value = None if self.peek() == ";" else self.expression()
            self.take(";")
            return [Node("return", None, (value,))]
        if token in ("for", "while", "do", "switch", "goto", "asm", "__syncthreads"):
            raise Unsupported(f"'{token}'")
        if token in ("const", "constexpr", "static"):
            self.take()
            return self.statement()
        if token in _TYPES and self.peek(1) not in ("(", "{", ")"):
            return self.declaration()
        return self.assignment()

    def condition(self) -> Node:
        self.take("if")
        if self.peek() == "constexpr":
            raise Unsupported("'if constexpr'")
        self.take("(")
        test = self.expression()
        self.take(")")
        then = self.body()
        other: tuple[Node, ...] = ()
        if self.peek() == "else":
            self.take()
            other = self.body()
        return Node("if", None, (test, then, other))

    def declaration(self) -> list[Node]:
        type_name = self.take()
        while self.peek() in _TYPES or self.peek() in ("const", "*", "&"):
            if self.peek() == "*":
                type_name = "pointer"
            self.take()
        out: list[Node] = []
        while True:
            name = self.take()
            value = None
            if self.peek() == "=":
                self.take()
                value = self.expression()
            out.append(Node("set", name, (type_name, value)))
            if self.take() == ";":
                return out
            if self.tokens[self.at - 1][1] != ",":
                raise Unsupported(f"'{self.tokens[self.at - 1][1]}' in a declaration")

    def assignment(self) -> list[Node]:
        target = self.unary()
        op = self.take()
        if op not in ("=", "+=", "-=", "*=", "/=", "&=", "|="):
            raise Unsupported(f"a statement with '{op}'")
        value = self.expression()
        self.take(";")
        if target.kind != "name":
            raise Unsupported("a write to memory")
        if op != "=":
            value = Node("binary", op[0], (target, value))
        return [Node("set", target.value, ("", value))]

    # ------------------------------------------------------------------------------------------------ expressions

    def expression(self) -> Node:
        test = self.binary(0)
        if self.peek() != "?":
            return test
        self.take()
        then = self.expression()
        self.take(":")
        return Node("select", None, (test, then, self.expression()))

    def binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            op = self.take()
            left = Node("binary", op, (left, self.binary(level + 1)))
        return left

    def unary(self) -> Node:
        token = self.peek()
        if token in ("-", "+", "!", "~"):
            self.take()
            return Node("unary", token, (self.unary(),))
        if token == "(" and self.peek(1) in _TYPES and self.peek(2) == ")":
            self.take()
            kind = self.take()
            self.take(")")
            return Node("cast", kind, (self.unary(),))
        return self.postfix()

    def postfix(self) -> Node:
        node = self.primary()
        while True:
            token = self.peek()
            if token == "[":
                self.take()
                node = Node("index", None, (node, self.expression()))
                self.take("]")
            elif token == ".":
                self.take()
                node = Node("member", self.take(), (node,))
            elif token == "(":
                self.take()
                args: list[Node] = []
                while self.peek() != ")":
                    args.append(self.expression())
                    if self.peek() == ",":
                        self.take()
                self.take(")")
                node = Node("call", None, (node, tuple(args)))
            else:
                return node

    def primary(self) -> Node:
        if self.at >= len(self.tokens):
            raise Unsupported("end of text")
        kind, token = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return Node("number", _number(token))
        if token == "(":
            node = self.expression()
            self.take(")")
            return node
        if token == "static_cast":
            self.take("<")
            type_name = self.take()
            self.take(">")
            self.take("(")
            node = Node("cast", type_name, (self.expression(),))
            self.take(")")
            return node
        if kind != "name":
            raise Unsupported(f"'{token}'")
        if token in ("true", "false"):
            return Node("number", token == "true")
        if token in _TYPES and self.peek() in ("(", "{"):
            close = ")" if self.take() == "(" else "}"
            node = Node("cast", token, (self.expression(),))
            self.take(close)
            return node
        return Node("name", token)


def _number(text: str) -> int | float:
    digits = text.rstrip("uUlL")
    if re.fullmatch(r"\d+", digits):
        return int(digits)
    return float(digits.rstrip("fF"))


def parse(text: str) -> tuple[Node, ...]:
    """The statements of a body, without its outer braces."""
    parser = _Parser(without_comments(text))
    out = parser.block()
    if parser.peek():
        raise Unsupported(f"'{parser.peek()}'")
    return out


# ---------------------------------------------------------------------------------------------------------------- values


class Values(NamedTuple):
    """A domain: what differs between Python's numbers and expressions."""

    is_integer: Callable[[Any], bool]
    is_bool: Callable[[Any], bool]
    logical_and: Callable[[Any, Any], Any]
    logical_or: Callable[[Any, Any], Any]
    logical_not: Callable[[Any], Any]
    select: Callable[[Any, Any, Any], Any]
    to_number: Callable[[Any], Any]
    to_integer: Callable[[Any], Any]
    to_bool: Callable[[Any], Any]


class Evaluator:
    """Values of names, members and functions come from the caller."""

    def __init__(self, values: Values, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> None:
        self.values = values
        self.names: dict[str, Any] = dict(names)
        self.functions = functions

    def run(self, statements: tuple[Node, ...]) -> Any:
        """The returned value; where an `if` returns on one side only, the rest is its other side."""
        for at, node in enumerate(statements):
            if node.kind == "return":
                return None if node.args[0] is None else self.value(node.args[0])
            if node.kind == "set":
                type_name, value = node.args
                if value is None:
                    self.names.setdefault(node.value, None)
                    continue
                self.names[node.value] = (
                    self.converted(type_name, self.value(value)) if type_name else self.value(value)
                )
                continue
            test, then, other = node.args
            return self.branch(self.values.to_bool(self.value(test)), then, other, statements[at + 1 :])
        return None

    def branch(self, test: Any, then: tuple[Node, ...], other: tuple[Node, ...], rest: tuple[Node, ...]) -> Any:
        if isinstance(test, bool):
            return self.run((*(then if test else other), *rest))
        before = dict(self.names)
        one = self.run((*then, *rest))
        after_one, self.names = self.names, dict(before)
        two = self.run((*other, *rest))
        for name, value in after_one.items():
            if name in self.names and self.names[name] is not value:
                self.names[name] = self.values.select(test, value, self.names[name])
        if (one is None) != (two is None):
            raise Unsupported("an if of which one side returns nothing")
        return None if one is None else self.values.select(test, one, two)

    def converted(self, type_name: str, value: Any) -> Any:
        if type_name == "bool":
            return self.values.to_bool(value)
        if type_name in ("float", "double") and not isinstance(value, tuple):
            return self.values.to_number(value)
        if type_name in _INTEGERS:
            return self.values.to_integer(value)
        return value

    def value(self, node: Node) -> Any:
        return getattr(self, "_" + node.kind)(node)

    def _number(self, node: Node) -> Any:
        return node.value

    def _name(self, node: Node) -> Any:
        value = self.names.get(node.value)
        if value is None:
            raise Unsupported(f"'{node.value}'" + (" before it is set" if node.value in self.names else ""))
        return value

    def _member(self, node: Node) -> Any:
        base = self.value(node.args[0])
        if not isinstance(base, Mapping):
            raise Unsupported(f"'.{node.value}'")
        if node.value not in base:
            raise Unsupported(f"'params.{node.value}'")
        return base[node.value]

    def _index(self, node: Node) -> Any:
        base = self.value(node.args[0])
        if not hasattr(base, "__getitem__") or isinstance(base, Mapping):
            raise Unsupported("an index into what is no parameter")
        return base[self.value(node.args[1])]

    def _call(self, node: Node) -> Any:
        function, args = node.args
        if function.kind == "member":
            found = self._member(function)
        elif function.kind == "name" and function.value in self.functions:
            found = self.functions[function.value]
        else:
            raise Unsupported(f"a call of '{function.value}'")
        if not callable(found):
            raise Unsupported(f"a call of '{function.value}'")
        return found(*[self.value(a) for a in args])

    def _cast(self, node: Node) -> Any:
        return self.converted(node.value, self.value(node.args[0]))

    def _select(self, node: Node) -> Any:
        test = self.values.to_bool(self.value(node.args[0]))
        if isinstance(test, bool):
            return self.value(node.args[1] if test else node.args[2])
        return self.values.select(test, self.value(node.args[1]), self.value(node.args[2]))

    def _unary(self, node: Node) -> Any:
        value = self.value(node.args[0])
        if node.value == "!":
            return self.values.logical_not(self.values.to_bool(value))
        if node.value == "~":
            raise Unsupported("'~'")
        return -value if node.value == "-" else value

    def _binary(self, node: Node) -> Any:
        op = node.value
        a, b = self.value(node.args[0]), self.value(node.args[1])
        values = self.values
        if op in ("&&", "||"):
            a, b = values.to_bool(a), values.to_bool(b)
            return values.logical_and(a, b) if op == "&&" else values.logical_or(a, b)
        if isinstance(a, BitField):
            return a.combined(op, b)
        if op in ("&", "|"):
            if not (values.is_bool(a) and values.is_bool(b)):
                raise Unsupported(f"'{op}' of integers")
            return values.logical_and(a, b) if op == "&" else values.logical_or(a, b)
        if op == "/" and values.is_integer(a) and values.is_integer(b):
            return a // b
        if op in _ARITHMETIC:
            return _ARITHMETIC[op](a, b)
        raise Unsupported(f"'{op}' of integers")


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": lambda a, b: a % b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


class BitField:
    """bytes[i], perhaps shifted: of bytes only single bits are taken, as packed masks are read."""

    def __init__(self, bits: Any, byte: Any, shift: Any = 0) -> None:
        self.bits, self.byte, self.shift = bits, byte, shift

    def combined(self, op: str, other: Any) -> Any:
        if op == ">>":
            return BitField(self.bits, self.byte, self.shift + other)
        if op == "&" and isinstance(other, int) and other == 1:
            return self.bits[self.byte * 8 + self.shift]
        raise Unsupported(f"bytes with '{op}' other than >> and & 1")


class Bytes:
    """An array of bytes over an array of bits, which a pointer may be moved along."""

    def __init__(self, bits: Any, offset: Any = 0) -> None:
        self.bits, self.offset = bits, offset

    def __getitem__(self, index: Any) -> BitField:
        return BitField(self.bits, self.offset + index)

    def __add__(self, other: Any) -> Bytes:
        return Bytes(self.bits, self.offset + other)


def evaluate(
    statements: tuple[Node, ...], values: Values, names: Mapping[str, Any], functions: Mapping[str, Any]
) -> Any:
    """What a body returns, and the names as it leaves them."""
    evaluator = Evaluator(values, names, functions)
    return evaluator.run(statements), evaluator.names


__all__ += ["BitField", "Bytes", "Evaluator", "Values"]
