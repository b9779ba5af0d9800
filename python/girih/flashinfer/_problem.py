"""What a FlashInfer call asks for, and the Girih spec that computes it.

A `Problem` is what plan() fixes (heads, dtypes, mask, position encoding, cap), a `Form` what only run() shows (is an LSE wanted, are there
sinks, which scales come as what). Both are tuples, so that a wrapper finds its schedule in a dictionary. A spec is made of the two once.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, NamedTuple, NoReturn

import torch

import girih

__all__ = ["Form", "Problem", "alibi_slopes", "data_types", "is_batch_invariant", "refuse", "spec_of", "torch_dtype", "usual_form"]

#: Queries of one byte have no kernel: they become 16-bit numbers, which hold each of their values exactly.
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def refuse(function: str, argument: str, instead: str) -> NoReturn:
    """Ends a call whose argument Girih cannot honour."""
    raise NotImplementedError(f"girih.flashinfer: {function}: {argument} is not supported; {instead}")


class DefaultName(str):
    """A default dtype name that can be told from the same name given by the caller."""

    __slots__ = ()


FLOAT16 = DefaultName("float16")

_NAMED_DTYPES: dict[Any, torch.dtype] = {}


def torch_dtype(value: str | torch.dtype) -> torch.dtype:
    """A torch dtype of its name or itself."""
    if isinstance(value, torch.dtype):
        return value
    found = _NAMED_DTYPES.get(value)
    if found is None:
        found = getattr(torch, str(value).removeprefix("torch."), None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"unknown data type {value!r}; must be a torch.dtype or its name")
        _NAMED_DTYPES[value] = found
    return found


def data_types(
    q: str | torch.dtype | None,
    kv: str | torch.dtype | None,
    o: str | torch.dtype | None,
    both: str | torch.dtype | None = None,
) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
    """The three dtypes of plan(): `both` is the older data_type, which names q and KV where these are left at their defaults."""
    if both is not None:
        if q is None or q is FLOAT16:
            q = both
        if kv is None:
            kv = both
    q_type = torch_dtype("float16" if q is None else q)
    kv_type = q_type if kv is None else torch_dtype(kv)
    if o is not None and o is not FLOAT16:
        return q_type, kv_type, torch_dtype(o)
    return q_type, kv_type, torch.bfloat16 if q_type in _FP8 else q_type


def is_batch_invariant(fixed_split_size: int | None, disable_split_kv: bool) -> bool:
    """Whether plan() asks for bits that do not depend on the rest of the batch; a fixed_split_size of -1 is none."""
    if fixed_split_size is None or fixed_split_size == -1:
        return bool(disable_split_kv)
    if fixed_split_size < 1:
        raise ValueError(f"fixed_split_size={fixed_split_size}; must be at least 1, or -1 for none")
    return True


class Hooks(NamedTuple):
    """A variant given as C++ text (`jit_args`), as _jit_variant reads it."""

    name: str
    tensors: tuple[tuple[str, str], ...]  #: name and kind: f32, i32, i64 or bits
    scalars: tuple[tuple[str, str], ...]  #: name and kind: number or integer
    parts: Any
    softmax: bool
    sink: str | None  #: the tensor that holds sinks
    declaration: str
    declared: tuple[torch.dtype, torch.dtype, torch.dtype, int, int] | None = None  #: dtypes of q, KV and output, head dims

    def __hash__(self) -> int:
        return hash((self.name, self.tensors, self.scalars, self.declaration, self.declared))

    def __eq__(self, other: object) -> bool:
        mine = (self.name, self.tensors, self.scalars, self.declaration, self.declared)
        return isinstance(other, Hooks) and mine == (
            other.name, other.tensors, other.scalars, other.declaration, other.declared,
        )  # fmt: skip

    def check(self, problem: Problem) -> None:
        """Raises ValueError where a problem is not of the dtypes and dims that the variant was declared for."""
        if self.declared is None:
            return
        names = ("dtype_q", "dtype_kv", "dtype_o", "head_dim_qk", "head_dim_vo")
        given = (problem.q_dtype, problem.kv_dtype, problem.o_dtype, problem.head_dim_qk, problem.head_dim_vo)
        for name, mine, asked in zip(names, self.declared, given, strict=True):
            if mine != asked:
                raise ValueError(f"the variant {self.name} was declared with {name}={mine}; the call has {asked}")


class Problem(NamedTuple):
    """What plan() fixes."""

    num_qo_heads: int
    num_kv_heads: int
    head_dim_qk: int
    head_dim_vo: int
    q_dtype: torch.dtype
    kv_dtype: torch.dtype
    o_dtype: torch.dtype
    mask: Literal["band", "custom", "draft", "multi_item", "ranges"] = "band"
    window_left: int = -1  #: keys before self, -1 = all
    window_right: int = -1  #: keys after self, -1 = all; 0 = causal
    soft_cap: float = 0.0
    sm_scale: float | None = None
    pos_encoding_mode: str = "NONE"
    rope_scale: float | None = None
    rope_theta: float | None = None
    batch_invariant: bool = False
    head_dim_rope: int = 0
    v_is_k: bool = False
    hooks: Hooks | None = None


class Form(NamedTuple):
    """What only run() shows. Factors multiply scores and output: "number" is a run-time scalar, the others index a run-time array."""

    lse: Literal["none", "base2", "natural"] = "none"
    sinks: bool = False
    k_scale: str = "none"
    v_scale: str = "none"
    score_factors: tuple[tuple[str, str], ...] = ()  #: (parameter, "number" | "one" | "q_head" | "kv_head")
    output_factors: tuple[tuple[str, str], ...] = ()


NO_LSE = Form()
BASE2_LSE = Form("base2")


def usual_form(problem: Problem) -> Form:
    """The form of a run that gives nothing beyond the cache: what plan() expects before it has seen one."""
    if problem.kv_dtype == torch.uint8:
        return Form(k_scale="block", v_scale="block")
    if problem.kv_dtype in _FP8 or problem.kv_dtype == torch.int8:
        return Form(k_scale="tensor", v_scale="none" if problem.v_is_k else "tensor")
    return NO_LSE


def alibi_slopes(num_heads: int, device: torch.device) -> torch.Tensor:
    """The slopes of ALiBi on a device, f32 [num_heads]."""
    return _alibi_slopes(num_heads, str(device))


@functools.lru_cache(maxsize=64)
def _alibi_slopes(num_heads: int, device: str) -> torch.Tensor:
    return torch.tensor(list(girih.variants.alibi_slopes(num_heads)), dtype=torch.float32, device=device)


def compute_dtype(dtype: torch.dtype, o_dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a query is given to Girih."""
    if dtype in _FP8:
        return o_dtype if o_dtype in (torch.float16, torch.bfloat16) else torch.bfloat16
    return dtype


def compute_query(q: torch.Tensor, o_dtype: torch.dtype) -> torch.Tensor:
    """A query in that dtype: one-byte queries become 16-bit numbers of equal value."""
    return q.to(compute_dtype(q.dtype, o_dtype)) if q.dtype in _FP8 else q


def _mask(problem: Problem) -> Any:
    left, right = problem.window_left, problem.window_right
    if problem.hooks is not None:
        left = -1  # the variant's own business: it reads params.window_left
    if problem.mask == "multi_item":
        # A delimiter (position 0) sees the prefix alone; a token of an item sees the prefix and its own item.
        position = girih.array("token_pos_in_items", "i32", "plan")[
            girih.q_pos() - _prefix_len() + girih.request() * _items_len()
        ]
        own = (girih.q_pos() - girih.kv_pos()) < position
        mask = (girih.kv_pos() <= girih.q_pos()) & (
            (girih.kv_pos() < _prefix_len()) | (girih.q_pos() < _prefix_len()) | own
        )
        return mask & girih.variants.window(left, -1) if left >= 0 else mask
    if problem.mask == "ranges":
        return _ranges_mask()
    if problem.mask == "draft":
        mask = _draft_mask()
        return mask & girih.variants.window(left, -1) if left >= 0 else mask
    if problem.mask == "custom":
        mask = girih.variants.custom_mask()
        return mask & girih.variants.window(left, -1) if left >= 0 else mask
    if left < 0 and right < 0:
        return None
    if left < 0 and right == 0:
        return girih.variants.causal()
    return girih.variants.window(left, right)


def _draft_mask() -> Any:
    """The committed keys, and of the request's own last q_len keys those whose bit is set in the row's words."""
    committed = girih.kv_len() - girih.q_len()
    at = girih.q_row() * girih.scalar("draft_row_bits", "integer") + (girih.kv_pos() - committed)
    return (girih.kv_pos() < committed) | girih.bits("draft_mask")[at]


def _prefix_len() -> Any:
    return girih.array("prefix_len", "i32", "plan")[girih.request()]


def _items_len() -> Any:
    return girih.scalar("token_pos_in_items_len", "integer", "plan")


def _ranges_mask() -> Any:
    """Causal with a window, or inside the row's span [start, end], whose backward edge may be clamped too."""
    behind = girih.q_pos() - girih.kv_pos()
    causal_left = girih.scalar("causal_window_left", "integer")
    causal = (behind >= 0) & ((causal_left < 0) | (behind <= causal_left))
    ranges = girih.array("bidirectional_ranges", "i32")
    start, end = ranges[girih.q_row() * 2], ranges[girih.q_row() * 2 + 1]
    range_left = girih.scalar("range_window_left", "integer")
    inside = (girih.kv_pos() >= start) & (girih.kv_pos() <= end) & ((range_left <= 0) | (behind < range_left))
    return causal | inside


def _factors(value: Any, factors: tuple[tuple[str, str], ...], head_of: dict[str, Any]) -> Any:
    for name, kind in factors:
        value = value * (girih.scalar(name) if kind == "number" else girih.array(name, "f32")[head_of[kind]])
    return value


def _logits(problem: Problem, form: Form) -> Any:
    """None where the score is taken as it is."""
    heads = {"one": 0, "q_head": girih.q_head(), "kv_head": girih.kv_head()}
    logits = _factors(girih.score(), form.score_factors, heads)
    changed = bool(form.score_factors)
    if problem.pos_encoding_mode == "ALIBI":
        logits = logits + girih.array("alibi_slopes", "f32")[girih.q_head()] * (girih.kv_pos() - girih.q_pos())
        changed = True
    if problem.soft_cap > 0:
        cap = float(problem.soft_cap)
        logits = cap * girih.tanh(logits / cap)
        changed = True
    return logits if changed else None


def _variant(problem: Problem, form: Form) -> Any:
    hooks: dict[str, Any] = {}
    if problem.hooks is not None:
        from ._jit_expressions import hook_expressions

        hooks = hook_expressions(problem, form)
    else:
        logits = _logits(problem, form)
        if logits is not None:
            hooks["logits"] = logits
    mask = _mask(problem)
    if mask is not None:
        hooks["mask"] = mask if hooks.get("mask") is None else mask & hooks["mask"]
    if form.output_factors:
        group = problem.num_qo_heads // problem.num_kv_heads
        heads = {"one": 0, "kv_head": girih.q_head() // group}
        hooks["output"] = _factors(girih.x(), form.output_factors, heads)
    if form.sinks:
        hooks["sink"] = girih.variants.sinks()
    if problem.pos_encoding_mode == "ROPE_LLAMA":
        hooks["rope"] = girih.Rope(theta=float(problem.rope_theta or 1e4), scale=float(problem.rope_scale or 1.0))
    return girih.Variant(**hooks) if hooks else None


def spec_of(problem: Problem, form: Form) -> Any:
    """The AttentionSpec that computes `problem` in this form."""
    if problem.pos_encoding_mode not in ("NONE", "ROPE_LLAMA", "ALIBI"):
        raise KeyError(f"pos_encoding_mode={problem.pos_encoding_mode!r}; must be NONE, ROPE_LLAMA or ALIBI")
    kv_dtype: Any = "nvfp4" if problem.kv_dtype == torch.uint8 else problem.kv_dtype
    softmax = problem.hooks is None or problem.hooks.softmax
    if not softmax and form.lse != "none":
        raise ValueError("return_lse: attention without softmax has no log-sum-exp")
    sm_scale = problem.sm_scale
    if problem.hooks is not None:
        problem.hooks.check(problem)
        sm_scale = 1.0
    elif sm_scale is None:
        sm_scale = 1.0 / math.sqrt(problem.head_dim_qk)
    elif sm_scale == 0.0:
        raise ValueError("sm_scale=0.0; must not be zero")
    return girih.AttentionSpec(
        num_qo_heads=problem.num_qo_heads,
        num_kv_heads=problem.num_kv_heads,
        head_dim_qk=problem.head_dim_qk,
        head_dim_vo=problem.head_dim_vo,
        head_dim_rope=problem.head_dim_rope,
        q_dtype=compute_dtype(problem.q_dtype, problem.o_dtype),
        k_dtype=kv_dtype,
        v_dtype=kv_dtype,
        o_dtype=problem.o_dtype,
        k_scale=form.k_scale,
        v_scale=form.v_scale,
        v_is_k=problem.v_is_k,
        sm_scale=sm_scale,
        lse=form.lse,
        batch_invariant=problem.batch_invariant,
        variant=_variant(problem, form),
    )
