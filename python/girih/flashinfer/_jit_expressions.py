"""The bodies of a customised variant as girih.Expr, or as CUDA text where they go beyond what _c_subset reads."""

from __future__ import annotations

import math
import re
from typing import Any

import girih

from ._c_subset import Bytes, Unsupported, Values, evaluate, parse
from ._problem import Form, Hooks, Problem, refuse

__all__ = ["CONSTANTS", "expressions_of", "hook_expressions"]

#: Names that FlashInfer's headers give to numbers.
CONSTANTS = {"math::log2e": math.log2(math.e), "math::inf": math.inf, "math::loge2": math.log(2), "use_softmax": True}


def _is_expression(value: Any) -> bool:
    return isinstance(value, girih.Expr)


def _type_of(value: Any) -> str:
    if _is_expression(value):
        return str(value.type)
    return "boolean" if isinstance(value, bool) else "integer" if isinstance(value, int) else "number"


def _to_bool(value: Any) -> Any:
    if not _is_expression(value):
        return bool(value)
    return value if _type_of(value) == "boolean" else value != 0


def _to_integer(value: Any) -> Any:
    if not _is_expression(value):
        return int(value)
    if _type_of(value) == "integer":
        return value
    if _type_of(value) == "boolean":
        return girih.select(value, 1, 0)
    raise Unsupported("a number cast to an integer")


def _to_number(value: Any) -> Any:
    if not _is_expression(value):
        return float(value)
    return (
        value * 1.0
        if _type_of(value) == "integer"
        else girih.select(value, 1.0, 0.0)
        if _type_of(value) == "boolean"
        else value
    )


_EXPRESSIONS = Values(
    is_integer=lambda v: _type_of(v) == "integer",
    is_bool=lambda v: _type_of(v) == "boolean",
    logical_and=lambda a, b: (
        (a and b) if isinstance(a, bool) else (a if b else False) if isinstance(b, bool) else a & b
    ),
    logical_or=lambda a, b: (a or b) if isinstance(a, bool) else (True if b else a) if isinstance(b, bool) else a | b,
    logical_not=lambda a: not a if isinstance(a, bool) else ~a,
    select=lambda test, a, b: girih.select(test, a, b),
    to_number=_to_number,
    to_integer=_to_integer,
    to_bool=_to_bool,
)


def _exp2(x: Any) -> Any:
    return girih.exp(x * math.log(2)) if _is_expression(x) else 2.0**x


def _applied(name: str) -> Any:
    function = getattr(girih, name)
    return lambda x: function(x) if _is_expression(x) else float(getattr(math, name)(x))


_EXPRESSION_FUNCTIONS: dict[str, Any] = {
    "math::ptx_exp2": _exp2,
    "exp2f": _exp2,
    "exp2": _exp2,
    "math::ptx_rcp": lambda x: 1.0 / x,
    "math::ptx_log2": lambda x: girih.log(x) * math.log2(math.e) if _is_expression(x) else math.log2(x),
    "math::tanh": _applied("tanh"),
    **{
        name: _applied(name.removesuffix("f"))
        for name in ("tanh", "tanhf", "exp", "expf", "log", "logf", "sqrt", "sqrtf")
    },
    "max": lambda a, b: girih.max(a, b),
    "min": lambda a, b: girih.min(a, b),
    "fmaxf": lambda a, b: girih.max(a, b),
    "fminf": lambda a, b: girih.min(a, b),
    "abs": lambda x: girih.abs(x),
    "fabsf": lambda x: girih.abs(x),
}


class _Request:
    """An array with one entry per request, of which the row's own is asked for."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, index: Any) -> Any:
        return self.value


def _params(hooks: Hooks, window_left: int, problem: Problem | None) -> dict[str, Any]:
    params: dict[str, Any] = {
        "get_qo_len": lambda request: girih.q_len(),
        "get_kv_len": lambda request: girih.kv_len(),
        "window_left": window_left,
        "q_indptr": _Request(girih.q_row() - girih.q_idx()),
        "maybe_custom_mask": Bytes(girih.bits("custom_mask")),
        "maybe_mask_indptr": _Request(girih.array("custom_mask_start", "i64")[girih.request()] // 8),
    }
    if problem is not None:
        params["num_qo_heads"], params["num_kv_heads"] = problem.num_qo_heads, problem.num_kv_heads
    for name, kind in hooks.tensors:
        params[name] = Bytes(girih.bits(name)) if kind == "bits" else girih.array(name, kind)
    for name, kind in hooks.scalars:
        params[name] = girih.scalar(name, kind)
    params["additional_params"] = params
    return params


def _names(hooks: Hooks, window_left: int, problem: Problem | None) -> dict[str, Any]:
    heads = {"qo_head_idx": girih.q_head(), "kv_head_idx": girih.kv_head(), "batch_idx": girih.request()}
    names: dict[str, Any] = {**CONSTANTS, **heads, "qo_len": girih.q_len(), "kv_len": girih.kv_len()}
    names.update({own: names[known] for own, known in hooks.parts.names.items()})
    names.update(
        qo_idx=girih.q_idx(), kv_idx=girih.kv_pos(), logits=girih.score(), params=_params(hooks, window_left, problem)
    )
    return names


def expressions_of(hooks: Hooks, window_left: int, problem: Problem | None) -> dict[str, Any]:
    parts = hooks.parts
    names = _names(hooks, window_left, problem)
    _, names = evaluate(parse(parts.constructor), _EXPRESSIONS, names, _EXPRESSION_FUNCTIONS)
    out: dict[str, Any] = {}
    logits = girih.score()
    if "LOGITS_TRANSFORM" in parts.bodies:
        logits, _ = evaluate(parse(parts.bodies["LOGITS_TRANSFORM"]), _EXPRESSIONS, names, _EXPRESSION_FUNCTIONS)
        if logits is None:
            raise Unsupported("REGISTER_LOGITS_TRANSFORM that returns nothing")
    if hooks.softmax:
        scale = names.get("sm_scale_log2")
        if scale is None:
            raise Unsupported("no sm_scale_log2, which the softmax multiplies by")
        logits = logits * (scale * math.log(2))
    else:
        out["softmax"] = False
    out["logits"] = logits
    if "LOGITS_MASK" in parts.bodies:
        mask, _ = evaluate(parse(parts.bodies["LOGITS_MASK"]), _EXPRESSIONS, names, _EXPRESSION_FUNCTIONS)
        mask = _to_bool(mask)
        if mask is not True:
            out["mask"] = mask if _is_expression(mask) else girih.kv_pos() < 0
    return out


def hook_expressions(problem: Problem, form: Form) -> dict[str, Any]:
    """Hooks of problem.hooks for a girih.Variant. Scores come unscaled: the spec's sm_scale is 1."""
    hooks = problem.hooks
    assert hooks is not None
    for name, value in (("logits_soft_cap", problem.soft_cap), ("ALIBI", problem.pos_encoding_mode == "ALIBI")):
        if value:
            refuse("plan", f"{name} beside jit_args", "let the variant apply it")
    if form.score_factors:
        refuse("run", "q_scale/k_scale beside jit_args", "fold them into the variant's scale")
    try:
        return expressions_of(hooks, problem.window_left, problem)
    except Unsupported as error:
        try:
            return _cuda_texts(hooks, problem)
        except Unsupported:
            refuse("plan", f"jit_args: {hooks.name} has {error}", "write the variant with @girih.variant")


# ---------------------------------------------------------------------------------------------------------------- as CUDA text

_TEXT_REPLACEMENTS = (
    (r"\bmath::log2e\b", "1.44269504F"),
    (r"\bmath::loge2\b", "0.693147181F"),
    (r"\bmath::inf\b", "kInfinity"),
    (r"\bmath::ptx_exp2\b", "exp2_approx"),
    (r"\bmath::ptx_rcp\b", "rcp_approx"),
    (r"\bmath::ptx_log2\b", "log2_approx"),
    (r"\bmath::tanh\b", "tanh"),
    (r"\b(?:float|double)\s*\(", "static_cast<float>("),
    (r"\buint32_t\b", "u32"),
    (r"\bint32_t\b", "i32"),
    (r"\buint64_t\b", "u64"),
    (r"\bint64_t\b", "i64"),
    (r"\buint8_t\b", "u8"),
)


def _cuda_texts(hooks: Hooks, problem: Problem) -> dict[str, Any]:
    parts = hooks.parts
    out: dict[str, Any] = {"softmax": False} if not hooks.softmax else {}
    fields = re.findall(r"^\s*(\w+)\s*=", parts.constructor, re.MULTILINE)
    setup = "".join(f"auto {line.strip()};\n" for line in parts.constructor.split(";") if line.strip())
    if len(fields) != setup.count("\n"):
        raise Unsupported("a constructor that does more than set fields")
    logits = parts.bodies.get("LOGITS_TRANSFORM")
    scale = "sm_scale_log2 * 0.693147181F" if hooks.softmax else "1.0F"
    if hooks.softmax and "sm_scale_log2" not in fields:
        raise Unsupported("no sm_scale_log2, which the softmax multiplies by")
    text = "return logits;" if logits is None else logits
    inner = f"{setup}const auto transform = [&](float logits) {{ {text} }};\nreturn static_cast<float>(transform(logits)) * ({scale});"
    out["logits"] = _cuda_code(hooks, problem, "number", inner, f"{hooks.name} logits")
    if "LOGITS_MASK" in parts.bodies:
        out["mask"] = _cuda_code(hooks, problem, "boolean", setup + parts.bodies["LOGITS_MASK"], f"{hooks.name} mask")
    return out


def _cuda_code(hooks: Hooks, problem: Problem, kind: str, text: str, name: str) -> Any:
    if re.search(r"\bparams\.\w+\s*\[[^\]]*\]\s*=[^=]", text):
        raise Unsupported("a write to memory")
    text = re.sub(r"\bparams\.(additional_params\.)?window_left\b", f"({problem.window_left})", text)
    text = re.sub(r"\bparams\.(additional_params\.)?(?=get_)", "", text)
    scalars = {n: k for n, k in hooks.scalars if re.search(rf"\bparams\.(additional_params\.)?{re.escape(n)}\b", text)}
    for scalar in scalars:
        text = re.sub(rf"\bparams\.(additional_params\.)?{re.escape(scalar)}\b", f"param_{scalar}", text)
    text = re.sub(r"\bparams\.(additional_params\.)?", "", text)
    text = re.sub(r"\bget_qo_len\s*\([^)]*\)", "q_len", re.sub(r"\bget_kv_len\s*\([^)]*\)", "kv_length", text))
    for pattern, replacement in _TEXT_REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    known: dict[str, Any] = {
        "logits": girih.score(),
        "batch_idx": girih.request(),
        "qo_idx": girih.q_idx(),
        "kv_idx": girih.kv_pos(),
        "qo_head_idx": girih.q_head(),
        "kv_head_idx": girih.kv_head(),
        "q_len": girih.q_len(),
        "kv_length": girih.kv_len(),
    }
    args: list[Any] = [(n, v) for n, v in known.items() if re.search(rf"\b{n}\b", text)]
    for tensor, dtype in hooks.tensors:
        if re.search(rf"\b{re.escape(tensor)}\b", text):
            if dtype == "bits":
                raise Unsupported("an array of bytes in CUDA text")
            args.append(girih.array(tensor, dtype))
    args += [(f"param_{n}", girih.scalar(n, k)) for n, k in scalars.items()]
    if len(args) > 8:
        raise Unsupported(f"{len(args)} values in one body (at most 8)")
    return girih.cuda_code(kind, text, args, name=name)
