"""FlashInfer's customised variants (`jit_args`: a C++ struct as text) as Girih's.

A struct of the FA2 protocol has fields, a constructor that sets them from `params`, and bodies given to macros. Both ways from there begin
with its parts. Where the bodies stay within the subset of _c_subset they become expressions, which every backend computes and a planner can
prove things of. Where they do not, a GPU gets them as CUDA text through girih.cuda_code. What a body does to the softmax itself (its sums, its
output) is found out by running it on numbers: a plain softmax, no softmax, and one with a sink are what Girih has; others are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

import girih

from ._c_subset import Unsupported, Values, evaluate, parse, without_comments
from ._jit_expressions import CONSTANTS, expressions_of, hook_expressions
from ._problem import Hooks, refuse, torch_dtype

__all__ = [
    "CustomModule",
    "hook_expressions",
    "hooks_of_declaration",
    "hooks_of_jit_args",
    "hooks_of_module",
    "declared_types",
    "run_arguments",
]

_TENSOR_TYPES = {
    "float": "f32",
    "double": "f32",
    "half": "f32",
    "nv_half": "f32",
    "nv_bfloat16": "f32",
    "__nv_bfloat16": "f32",
    "int": "i32",
    "int32_t": "i32",
    "uint32_t": "i32",
    "uint16_t": "i32",
    "int64_t": "i64",
    "uint8_t": "bits",
}
_INTEGER_SCALARS = ("int", "int32_t", "int64_t", "uint32_t", "uint64_t", "int8_t", "uint8_t", "bool")
_HOOK_MACROS = ("LOGITS_TRANSFORM", "LOGITS_MASK", "M_D_UPDATE", "OUTPUT_TRANSFORM", "QUERY_TRANSFORM", "KEY_TRANSFORM")


class Parts(NamedTuple):
    """A struct's parts as text."""

    use_softmax: bool
    constructor: str
    names: Mapping[str, str]  #: of the constructor's own, to what they mean
    bodies: Mapping[str, str]
    updater: str


class CustomModule:
    """What gen_customize_*_module() return: a variant with dtypes and dims, for the *_with_jit_module() functions."""

    def __init__(self, name: str, hooks: Hooks) -> None:
        self.name = name
        self.hooks = hooks

    def build_and_load(self, *args: Any, **kwargs: Any) -> CustomModule:
        """Itself: Girih compiles when it first schedules (and girih.warmup() ahead of that)."""
        return self


# ---------------------------------------------------------------------------------------------------------------- text


def _matching(text: str, at: int) -> int:
    """Past the bracket that closes the one at `at`."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    stack: list[str] = []
    for i in range(at, len(text)):
        if text[i] in pairs:
            stack.append(pairs[text[i]])
        elif stack and text[i] == stack[-1]:
            stack.pop()
            if not stack:
                return i + 1
    raise Unsupported("brackets that do not close")


def parts_of(declaration: str, name: str) -> Parts:
    """Takes a struct apart."""
    text = without_comments(declaration)
    head = re.search(rf"\bstruct\s+{re.escape(name)}\b[^{{;]*{{", text)
    if head is None:
        raise Unsupported(f"no struct {name}")
    body = text[head.end() : _matching(text, head.end() - 1) - 1]
    softmax = re.search(r"\buse_softmax\s*=\s*(true|false)", body)
    bodies = {}
    for found in re.finditer(r"REGISTER_(\w+)\s*\(", body):
        macro = found.group(1)
        inside = body[found.end() - 1 : _matching(body, found.end() - 1)]
        if macro not in _HOOK_MACROS:
            raise Unsupported(f"REGISTER_{macro}")
        brace = inside.find("{")
        if brace < 0:
            raise Unsupported(f"REGISTER_{macro} without a body")
        bodies[macro] = inside[brace + 1 : _matching(inside, brace) - 1]
    constructor, names = _constructor(body, name)
    updater = re.search(
        r"\bGetAttentionUpdater\s*\(\s*\)\s*(?:const\s*)?{\s*return\s+(\w+)\s*<[^>]*>\s*\(([^)]*)\)\s*;\s*}", body
    )
    if "GetAttentionUpdater" in body and updater is None:
        raise Unsupported("GetAttentionUpdater other than one return")
    return Parts(
        softmax is None or softmax.group(1) == "true",
        constructor,
        names,
        bodies,
        "" if updater is None else updater.group(0),
    )


_BLOCK_COORD = ("", "qo_head_idx", "kv_head_idx", "", "", "qo_len", "kv_len", "batch_idx")


def _constructor(body: str, name: str) -> tuple[str, dict[str, str]]:
    found = re.search(rf"\b{re.escape(name)}\s*\(([^)]*)\)\s*(:[^{{]*)?{{", body)
    if found is None:
        return "", {}
    if found.group(2):
        raise Unsupported("a constructor's initialiser list")
    text = body[found.end() : _matching(body, found.end() - 1) - 1]
    names: dict[str, str] = {}
    binding = re.search(r"auto\s*\[([^\]]*)\]\s*=\s*block_coord\s*;", text)
    if binding is not None:
        listed = [n.strip() for n in binding.group(1).split(",")]
        names = {own: known for own, known in zip(listed, _BLOCK_COORD, strict=False) if known}
        text = text[: binding.start()] + text[binding.end() :]
    return text, names


# ---------------------------------------------------------------------------------------------------------------- declarations


def hooks_of_declaration(
    tensor_names: Any,
    tensor_dtypes: Any,
    scalar_names: Any,
    scalar_dtypes: Any,
    name: str,
    declaration: str,
    where: str,
) -> Hooks:
    """The hooks of a variant declaration with its extra tensors and scalars; refuses what cannot be mapped."""
    tensors: list[tuple[str, str]] = []
    for tensor, dtype in zip(tensor_names, tensor_dtypes, strict=True):
        kind = _TENSOR_TYPES.get(str(dtype))
        if kind is None:
            refuse(where, f"jit_args: a tensor of {dtype}", f"declare one of {', '.join(_TENSOR_TYPES)}")
        if str(tensor) in ("maybe_custom_mask", "maybe_mask_indptr"):
            continue  # the mask of plan(), see _jit_expressions
        if str(tensor).startswith("maybe_"):
            refuse(
                where,
                f"jit_args: {tensor}, filled in by the wrapper",
                "leave it out: a mask, slopes or positions of plan() need no variant",
            )
        tensors.append((str(tensor), kind))
    scalars = tuple(
        (str(scalar), "integer" if str(dtype) in _INTEGER_SCALARS else "number")
        for scalar, dtype in zip(scalar_names, scalar_dtypes, strict=True)
    )
    try:
        parts = parts_of(declaration, name)
        sink = _softmax_of(parts, tensors)
    except Unsupported as error:
        refuse(where, f"jit_args: {name} has {error}", "write the variant with @girih.variant")
    softmax = parts.use_softmax and "DefaultUpdater" not in parts.updater
    for macro in ("QUERY_TRANSFORM", "KEY_TRANSFORM"):
        if macro in parts.bodies:
            refuse(where, f"jit_args: {name} with REGISTER_{macro}", "use girih.Variant(query=..., key=...)")
    return Hooks(name, tuple(tensors), scalars, parts, softmax, sink, declaration)


def hooks_of_jit_args(jit_args: Any, jit_kwargs: Mapping[str, Any] | None, where: str) -> Hooks:
    """Of a wrapper's thirteen jit_args."""
    if len(jit_args) != 13:
        raise ValueError(f"{where}: jit_args has {len(jit_args)} entries; must have 13: uri, dtypes of q, kv, o and ids, two head dims, "
                         "names and dtypes of tensors, names and dtypes of scalars, the variant's name and text")  # fmt: skip
    for name, value in (jit_kwargs or {}).items():
        if name == "pos_encoding_mode" and value:
            refuse(where, f"jit_kwargs: pos_encoding_mode={value}", "give pos_encoding_mode to plan()")
        if name in ("use_token_head_sf", "v_sf_swizzled") and value:
            refuse(where, f"jit_kwargs: {name}", "use the wrapper without jit_args")
    tensors, tensor_types, scalars, scalar_types, name, declaration = jit_args[7:13]
    hooks = hooks_of_declaration(tensors, tensor_types, scalars, scalar_types, name, declaration, where)
    return hooks._replace(declared=declared_types(*jit_args[1:4], *jit_args[5:7]))


def declared_types(
    q: Any, kv: Any, o: Any, head_dim_qk: int, head_dim_vo: int
) -> tuple[torch.dtype, torch.dtype, torch.dtype, int, int]:
    """What a variant was declared for; the calls are checked against it."""
    return torch_dtype(q), torch_dtype(kv), torch_dtype(o), int(head_dim_qk), int(head_dim_vo)


def hooks_of_module(module: Any, where: str) -> Hooks:
    if not isinstance(module, CustomModule):
        raise TypeError(
            f"{where}: jit_module is a {type(module).__name__}; must come from a gen_customize_*_module() of girih.flashinfer.jit"
        )
    return module.hooks


def run_arguments(hooks: Hooks, args: tuple[Any, ...], where: str) -> tuple[dict[str, Any], torch.Tensor | None]:
    """Run-time parameters of the variant's tensors and scalars, in the order of their declaration, and its sinks."""
    expected = len(hooks.tensors) + len(hooks.scalars)
    if len(args) != expected:
        raise TypeError(f"{where}.run() got {len(args)} arguments for variant {hooks.name}; must have {expected}: "
                        + ", ".join([n for n, _ in hooks.tensors] + [n for n, _ in hooks.scalars]))  # fmt: skip
    params: dict[str, Any] = {}
    sinks: torch.Tensor | None = None
    for (name, kind), value in zip(hooks.tensors, args, strict=False):
        flat = value.reshape(-1)
        wanted = {"f32": torch.float32, "i32": torch.int32, "i64": torch.int64, "bits": torch.uint8}[kind]
        flat = flat if flat.dtype == wanted else flat.to(wanted)
        if name == hooks.sink:
            sinks = flat
        else:
            params[name] = flat
    for (name, kind), value in zip(hooks.scalars, args[len(hooks.tensors) :], strict=True):
        params[name] = int(value) if kind == "integer" else float(value)
    return {name: params[name] for name in _used_names(hooks) if name in params}, sinks


def _used_names(hooks: Hooks) -> tuple[str, ...]:
    """Parameters that the hooks mention: the library refuses values that no expression asks for."""
    parts = hooks.parts
    text = " ".join([parts.constructor, parts.bodies.get("LOGITS_TRANSFORM", ""), parts.bodies.get("LOGITS_MASK", "")])
    names = [n for n, _ in (*hooks.tensors, *hooks.scalars) if n != hooks.sink]
    return tuple(n for n in names if re.search(rf"\b{re.escape(n)}\b", text) and n in _reached(hooks))


def _reached(hooks: Hooks) -> frozenset[str]:
    found = _REACHED.get(hooks)
    if found is None:
        try:
            built = girih.Variant(**expressions_of(hooks, -1, None))
            found = frozenset(built.params)
        except Unsupported:
            found = frozenset(n for n, _ in (*hooks.tensors, *hooks.scalars))
        _REACHED[hooks] = found
    return found


_REACHED: dict[Hooks, frozenset[str]] = {}


# ---------------------------------------------------------------------------------------------------------------- on numbers

_NUMBERS = Values(
    is_integer=lambda v: isinstance(v, int) and not isinstance(v, bool),
    is_bool=lambda v: isinstance(v, bool),
    logical_and=lambda a, b: a and b,
    logical_or=lambda a, b: a or b,
    logical_not=lambda a: not a,
    select=lambda test, a, b: a if test else b,
    to_number=float,
    to_integer=int,
    to_bool=bool,
)


def _safe_exp2(x: float) -> float:
    return 0.0 if x == -math.inf else 2.0**x


def _quiet_max(a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else max(a, b)


_NUMBER_FUNCTIONS = {
    "math::ptx_exp2": _safe_exp2,
    "exp2f": _safe_exp2,
    "math::ptx_rcp": lambda x: 1.0 / x,
    "math::ptx_log2": math.log2,
    "max": _quiet_max,
    "fmaxf": _quiet_max,
    "min": min,
    "get_v_scale": lambda params: 1.0,
}


def _softmax_of(parts: Parts, tensors: list[tuple[str, str]]) -> str | None:
    """The tensor of sinks, or None for a plain softmax (or none at all): by what the bodies do to sample states."""
    update, output = parts.bodies.get("M_D_UPDATE"), parts.bodies.get("OUTPUT_TRANSFORM")
    softmax = parts.use_softmax and "DefaultUpdater" not in parts.updater
    if "OnlineSoftmax" not in parts.updater and parts.updater and "DefaultUpdater" not in parts.updater:
        raise Unsupported("an updater of its own in GetAttentionUpdater")
    if update is None:
        if output is not None:
            _check_output(output, softmax)
        return None
    if not softmax or output is None:
        raise Unsupported("REGISTER_M_D_UPDATE that is no attention sink")
    used = [name for name, kind in tensors if kind == "f32" and re.search(rf"\bparams\.{re.escape(name)}\b", update)]
    if len(used) != 1:
        raise Unsupported("REGISTER_M_D_UPDATE that is no attention sink")
    _check_sink(update, output, used[0])
    return used[0]


def _check_output(body: str, softmax: bool) -> None:
    for m, d, value in ((1.5, 3.0, 0.7), (-2.0, 0.25, -4.0)):
        names = {**CONSTANTS, "output": value, "m": m, "d": d, "scale": 1.0, "params": {"v_scale": 1.0}}
        result, _ = evaluate(parse(body), _NUMBERS, names, _NUMBER_FUNCTIONS)
        expected = value / d if softmax else value
        if not isinstance(result, (int, float)) or not math.isclose(result, expected, rel_tol=1e-6):
            raise Unsupported("REGISTER_OUTPUT_TRANSFORM other than the division by the sum" if softmax
                              else "REGISTER_OUTPUT_TRANSFORM other than the sum itself")  # fmt: skip


def _check_sink(update: str, output: str, name: str) -> None:
    """Once, the sum gains e^sink and the maximum covers it; never otherwise."""
    log2e = CONSTANTS["math::log2e"]
    for tile, m, d, sink in ((0, 1.5, 3.0, 0.4), (0, -2.0, 0.5, 2.0), (3, 1.0, 2.0, 5.0), (0, -math.inf, 0.0, 1.0)):
        params = {name: [sink], "num_qo_heads": 1}
        names = {**CONSTANTS, "kv_tile_idx": tile, "qo_head_idx": 0, "m": m, "d": d, "scale": 1.0, "params": params}
        _, after = evaluate(parse(update), _NUMBERS, names, _NUMBER_FUNCTIONS)
        total = d * _safe_exp2(m) + (2.0 ** (sink * log2e) if tile == 0 else 0.0)
        new = after["d"] * _safe_exp2(after["m"])
        out_names = {**after, "output": 0.9, "params": {"v_scale": 1.0}}
        result, _ = evaluate(parse(output), _NUMBERS, out_names, _NUMBER_FUNCTIONS)
        expected = 0.9 * _safe_exp2(m) / total if total > 0 else 0.0
        if not (math.isclose(new, total, rel_tol=1e-6) and math.isclose(result, expected, rel_tol=1e-6, abs_tol=1e-12)):
            raise Unsupported("REGISTER_M_D_UPDATE that is no attention sink")
