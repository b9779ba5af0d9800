"""Expressions, variants and traced functions. What a variant means is tested through attention itself, against NumPy in float64."""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest

import girih
from girih import variants

HEADS, KV_HEADS, DIM = 4, 2, 16
Q_LENS, KV_LENS = (5, 1, 9), (37, 20, 9)


class Problem:
    """A ragged batch of a few requests, and its positions as arrays [row, key] for the reference."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.q = rng.standard_normal((sum(Q_LENS), HEADS, DIM)).astype(np.float32)
        self.k = rng.standard_normal((sum(KV_LENS), KV_HEADS, DIM)).astype(np.float32)
        self.v = rng.standard_normal((sum(KV_LENS), KV_HEADS, DIM)).astype(np.float32)
        self.qo_indptr = np.cumsum([0, *Q_LENS])
        self.kv_indptr = np.cumsum([0, *KV_LENS])

    def run(self, variant: girih.Variant, params: dict[str, Any] | None = None) -> np.ndarray:
        spec = girih.AttentionSpec(
            num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim_qk=DIM, q_dtype="f32", sm_scale=0.3, variant=variant
        )
        limits = girih.AttentionLimits(max_tokens=32, max_requests=4, max_kv_len=64)
        attention = girih.Attention(spec, limits)
        params = params or {}
        given = {
            time: {name: value for name, value in params.items() if variant.params[name][2] == time}
            for time in ("plan", "run")
        }
        segment = girih.Segment(kv_indptr=self.kv_indptr, page_size=0)
        attention.plan(self.qo_indptr, segment, params=given["plan"])
        out = attention.run(self.q, girih.KvStore.ragged(self.k, self.v), params=given["run"])
        return np.asarray(out, np.float64)

    def reference(
        self,
        mask: Callable[..., Any] | None = None,
        logits: Callable[..., Any] | None = None,
        sink: np.ndarray | None = None,
        softmax: bool = True,
    ) -> np.ndarray:
        """Hooks as functions of one Place (arrays [heads, rows, keys] that broadcast)."""
        out = np.zeros((sum(Q_LENS), HEADS, DIM))
        for r, (q_len, kv_len) in enumerate(zip(Q_LENS, KV_LENS)):
            rows = slice(self.qo_indptr[r], self.qo_indptr[r + 1])
            keys = slice(self.kv_indptr[r], self.kv_indptr[r + 1])
            q = self.q[rows].astype(np.float64).transpose(1, 0, 2)
            k, v = (
                np.repeat(a[keys].astype(np.float64), HEADS // KV_HEADS, 1).transpose(1, 0, 2) for a in (self.k, self.v)
            )
            place = {
                "score": q @ k.transpose(0, 2, 1) * 0.3,
                "q_idx": np.arange(q_len)[None, :, None],
                "q_pos": np.arange(kv_len - q_len, kv_len)[None, :, None],
                "kv_pos": np.arange(kv_len)[None, None, :],
                "q_head": np.arange(HEADS)[:, None, None],
                "kv_head": np.arange(HEADS)[:, None, None] // (HEADS // KV_HEADS),
                "q_row": np.arange(q_len)[None, :, None] + self.qo_indptr[r],
                "q_len": q_len,
                "kv_len": kv_len,
                "request": r,
            }
            s = np.broadcast_to(logits(**place) if logits else place["score"], place["score"].shape)
            seen = np.broadcast_to(mask(**place) if mask else True, s.shape)
            if softmax:
                s = np.where(seen, s, -np.inf)
                top = np.maximum(s.max(-1, keepdims=True), -1e30)
                p = np.exp(s - top)
                total = p.sum(-1, keepdims=True)
                if sink is not None:
                    total = total + np.exp(sink[:, None, None] - top)
                p = p / np.where(total > 0, total, 1)
            else:
                p = np.where(seen, s, 0)
            out[rows] = (p @ v).transpose(1, 0, 2)
        return out


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem()


def check(problem: Problem, variant: girih.Variant, params: dict[str, Any] | None = None, **reference: Any) -> None:
    np.testing.assert_allclose(problem.run(variant, params), problem.reference(**reference), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------- expressions


def test_operators_print_as_python() -> None:
    q, k, s = girih.q_pos(), girih.kv_pos(), girih.score()
    texts = {
        "(kv_pos <= q_pos) & (q_pos - kv_pos < 1024)": (k <= q) & (q - k < 1024),
        "kv_pos // 16 == q_pos // 16": k // 16 == q // 16,
        "3 - q_pos": 3 - q,
        "q_pos - (kv_pos - 1)": q - (k - 1),
        "(q_pos + 1) * 2 % 7": (q + 1) * 2 % 7,
        "-score / 2.0": -s / 2.0,
        "q_pos / 4": q / 4,
        "~(q_pos < 2) | (q_pos != kv_pos)": ~(q < 2) | (q != k),
        "select(q_pos < kv_pos, score, 0.5)": girih.select(q > 0, s, 0.5) if False else girih.select(q < k, s, 0.5),
        "max(min(q_pos, 3), 1)": girih.max(girih.min(q, 3), 1),
        "exp(log(tanh(sqrt(rsqrt(sigmoid(abs(score)))))))": girih.exp(
            girih.log(girih.tanh(girih.sqrt(girih.rsqrt(girih.sigmoid(abs(s))))))
        ),
        "slopes[q_head] * 2.0": girih.array("slopes")[girih.q_head()] * 2.0,
        "True & allowed[kv_pos + 1]": True & girih.bits("allowed")[k + 1],
        "(-3) * q_pos": -3 * q,
    }
    for text, e in texts.items():
        assert repr(e) == text


def test_types_of_results() -> None:
    q, s = girih.q_pos(), girih.score()
    assert (q + 1).type == (q // 2).type == girih.array("a", "i64")[q].type == "integer"
    assert (q / 2).type == (q + 1.0).type == (q * s).type == girih.exp(q).type == girih.array("a")[q].type == "number"
    assert (q < 1).type == (s == 1).type == girih.bits("b")[q].type == (~(q < 1)).type == "boolean"


def test_scalars_of_numpy_and_torch_are_constants() -> None:
    q = girih.q_pos()
    assert repr(np.int64(3) - q) == "3 - q_pos"
    assert repr(np.float32(0.5) * girih.score()) == "0.5 * score"
    assert repr(q < np.array(4)) == "q_pos < 4"
    torch = pytest.importorskip("torch")
    assert repr(torch.tensor(3) - q) == "3 - q_pos"
    assert repr(girih.score() * torch.tensor(0.25)) == "score * 0.25"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda q: bool(q < 3), TypeError, r"no truth value.*&.*girih\.select.*\(a <= b\) & \(b <= c\)"),
        (lambda q: math.exp(q), TypeError, r"girih\.exp"),
        (lambda q: [1, 2][q], TypeError, "parameter.*girih.Array"),
        (lambda q: q + (q < 1), ValueError, r"operator\+ of integer and boolean"),
        (lambda q: ~q, ValueError, "operator~ of integer"),
        (lambda q: q & 1, ValueError, "must be booleans"),
        (lambda q: girih.score() % 2, ValueError, "must be integers"),
        (lambda q: girih.score() // 2, TypeError, "no floor of numbers"),
        (lambda q: q == None, TypeError, "NoneType"),  # noqa: E711
        (lambda q: q + "1", TypeError, "a str cannot be part"),
        (lambda q: q * np.zeros(3), TypeError, "numpy.ndarray.*girih.array"),
        (lambda q: np.zeros(3) * q, TypeError, "numpy.ndarray"),
        (lambda q: girih.array("a")[girih.score()], ValueError, "index of parameter 'a' is a number"),
        (lambda q: girih.array("a") + 1, TypeError, "unsupported operand"),
        (lambda q: q + girih.array("a"), TypeError, "parameter a is an array: index it"),
        (lambda q: hash(q), TypeError, "unhashable"),
        (lambda q: q < 1 << 64, ValueError, "64-bit"),
        (lambda q: girih.score() * 1e60, ValueError, "f32"),
        (lambda q: girih.scalar("2x"), ValueError, "parameter name '2x'"),
        (lambda q: girih.scalar("x", bool), ValueError, "boolean"),
        (lambda q: girih.scalar("x", time="never"), ValueError, 'time: "never"'),
        (lambda q: girih.array("x", "f16"), ValueError, "f32, i32 or i64"),
        (lambda q: girih.Variant(mask=girih.score() > 0), ValueError, "mask uses score"),
        (lambda q: girih.Variant(mask=q), ValueError, "mask"),
        (lambda q: girih.Variant(softmax=False), ValueError, "logits"),
        (lambda q: girih.Variant(maskk=q < 1), TypeError, "maskk.*query, key"),
        (lambda q: girih.Variant(rope=3), TypeError, "girih.Rope"),
        (lambda q: girih.cuda_code("number", "return }", [q]), ValueError, "without its"),
        (lambda q: girih.cuda_code("number", "return 1;", [q + 1]), ValueError, "without a name"),
    ],
)
def test_what_has_no_meaning_is_refused(make: Callable[[girih.Expr], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make(girih.q_pos())


# ---------------------------------------------------------------------------------------------------------------- variants


def test_variant_is_immutable_and_replaced() -> None:
    rope = girih.Rope(theta=5e5, rotary_dim=8, llama31=girih.Rope.Llama31(factor=32.0))
    v = girih.Variant(mask=variants.causal(), logits=variants.soft_cap(30.0), rope=rope, name="capped")
    assert v.name == "capped" and v.softmax and v.sink is None and repr(v.mask) == "kv_pos <= q_pos"
    assert v.rope is not None and v.rope.theta == 5e5 and v.rope.llama31 is not None and v.rope.llama31.factor == 32.0
    with pytest.raises(AttributeError):
        v.mask = None  # type: ignore[misc]
    w = v.replace(mask=variants.sliding_window(8), rope=None, name="other")
    assert (
        repr(w.mask) == "(kv_pos <= q_pos) & (q_pos - kv_pos < 8)"
        and w.rope is None
        and repr(w.logits) == repr(v.logits)
    )
    assert v.replace(name="x").key_text == v.key_text != w.key_text
    assert v.replace(mask=None).mask is None


def test_params_are_listed() -> None:
    v = girih.Variant(mask=variants.prefix_lm(), logits=girih.score() * girih.scalar("a") + girih.scalar("n", int))
    assert v.params == {
        "a": ("number", "f32", "run"),
        "n": ("integer", "i64", "run"),
        "prefix_len": ("array", "i32", "plan"),
    }


IDS = np.repeat(np.arange(6, dtype=np.int32), 7)[:37]
SPANS = np.where(np.arange(37) % 9 < 5, np.arange(37) // 9 + 1, 0).astype(np.int32)
BITS = np.random.default_rng(3).integers(0, 2, sum(q * k for q, k in zip(Q_LENS, KV_LENS))).astype(bool)
BIT_STARTS = np.cumsum([0] + [q * k for q, k in zip(Q_LENS, KV_LENS)])[:-1]
TREE = np.random.default_rng(4).integers(0, 2, sum(q * q for q in Q_LENS)).astype(bool)
TREE_STARTS = np.cumsum([0] + [q * q for q in Q_LENS])[:-1]
PREFIX = np.array([9, 3, 5], np.int32)


def tree_mask(request: int, q_idx: Any, q_len: int, kv_pos: Any, kv_len: int, **_: Any) -> Any:
    committed = kv_len - q_len
    bit = TREE_STARTS[request] + q_idx * q_len + np.clip(kv_pos - committed, 0, q_len - 1)
    return (kv_pos < committed) | TREE[bit]


MASKS: dict[str, tuple[girih.Expr, dict[str, Any], Callable[..., Any]]] = {
    "causal": (variants.causal(), {}, lambda q_pos, kv_pos, **_: kv_pos <= q_pos),
    "window": (variants.window(5, 2), {}, lambda q_pos, kv_pos, **_: (q_pos - kv_pos <= 5) & (kv_pos - q_pos <= 2)),
    "open_window": (variants.window(-1, 3), {}, lambda q_pos, kv_pos, **_: kv_pos - q_pos <= 3),
    "sliding_window": (
        variants.sliding_window(6),
        {},
        lambda q_pos, kv_pos, **_: (kv_pos <= q_pos) & (q_pos - kv_pos < 6),
    ),
    "chunked_local": (
        variants.chunked_local(8),
        {},
        lambda q_pos, kv_pos, **_: (kv_pos <= q_pos) & (kv_pos // 8 == q_pos // 8),
    ),
    "streaming": (
        variants.causal() & (variants.window(4) | variants.first_tokens(3)),
        {},
        lambda q_pos, kv_pos, **_: (kv_pos <= q_pos) & ((q_pos - kv_pos <= 4) | (kv_pos < 3)),
    ),
    "prefix_lm": (
        variants.prefix_lm(),
        {"prefix_len": PREFIX},
        lambda q_pos, kv_pos, request, **_: (kv_pos <= q_pos) | (kv_pos < PREFIX[request]),
    ),
    "prefix_lm_run": (
        variants.prefix_lm("run"),
        {"prefix_len": PREFIX.tolist()},
        lambda q_pos, kv_pos, request, **_: (kv_pos <= q_pos) | (kv_pos < PREFIX[request]),
    ),
    "document": (variants.document(), {"document_id": IDS}, lambda q_pos, kv_pos, **_: IDS[kv_pos] == IDS[q_pos]),
    "custom_mask": (
        variants.custom_mask(),
        {"custom_mask": np.packbits(BITS, bitorder="little"), "custom_mask_start": BIT_STARTS},
        lambda request, q_idx, kv_len, kv_pos, **_: BITS[BIT_STARTS[request] + q_idx * kv_len + kv_pos],
    ),
    "speculative_tree": (
        variants.speculative_tree(),
        {"tree_mask": np.packbits(TREE, bitorder="little"), "tree_mask_start": TREE_STARTS},
        tree_mask,
    ),
    "multi_item": (
        variants.multi_item(),
        {"prefix_len": PREFIX, "item_id": IDS},
        lambda q_pos, kv_pos, request, **_: (
            (kv_pos <= q_pos) & ((kv_pos < PREFIX[request]) | (IDS[kv_pos] == IDS[q_pos]))
        ),
    ),
    "bidirectional_spans": (
        variants.causal_with_bidirectional_spans(),
        {"span_id": SPANS},
        lambda q_pos, kv_pos, **_: (kv_pos <= q_pos) | ((SPANS[q_pos] != 0) & (SPANS[kv_pos] == SPANS[q_pos])),
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_mean_what_they_say(problem: Problem, name: str) -> None:
    mask, params, reference = MASKS[name]
    check(problem, girih.Variant(mask=mask), params, mask=reference)


def test_logits_and_sinks_mean_what_they_say(problem: Problem) -> None:
    check(problem, girih.Variant(logits=variants.soft_cap(2.0)), logits=lambda score, **_: 2 * np.tanh(score / 2))
    slopes = np.array(variants.alibi_slopes(HEADS), np.float32)
    np.testing.assert_allclose(slopes, [2.0 ** (-2 * (i + 1)) for i in range(HEADS)])
    check(
        problem,
        girih.Variant(logits=variants.alibi()),
        {"alibi_slopes": slopes},
        logits=lambda score, q_head, q_pos, kv_pos, **_: score + slopes[q_head] * (kv_pos - q_pos),
    )
    check(
        problem,
        girih.Variant(logits=variants.sigmoid_logits(-1.5), softmax=False),
        logits=lambda score, **_: 1 / (1 + np.exp(1.5 - score)),
        softmax=False,
    )
    sinks = np.array([0.5, -1.0, 2.0, 0.0], np.float32)
    check(
        problem,
        girih.Variant(mask=variants.causal(), sink=variants.sinks()),
        {"sinks": sinks},
        mask=lambda q_pos, kv_pos, **_: kv_pos <= q_pos,
        sink=sinks,
    )


def test_rms_norm_of_queries(problem: Problem) -> None:
    weight = np.linspace(0.5, 1.5, DIM).astype(np.float32)
    got = problem.run(girih.Variant(query=variants.rms_norm("w", 1e-6)), {"w": weight})
    other = Problem()
    q = other.q.astype(np.float64)
    other.q = (q / np.sqrt((q * q).mean(-1, keepdims=True) + 1e-6) * weight).astype(np.float32)
    np.testing.assert_allclose(got, other.reference(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"cap": [1.0]}, TypeError, r"params\['cap'\] is a list"),
        ({"cap": True}, TypeError, r"params\['cap'\] is a bool"),
        ({"cap": 1.0, "shift": 1.5}, TypeError, r"params\['shift'\] is 1.5.*integer"),
        ({"cap": 1.0, "shift": 1, "keep": np.zeros(8, bool)}, ValueError, r"params\['keep'\].*packbits"),
        ({"cap": 1.0, "shift": 1, "keep": np.zeros((2, 2), np.uint8)}, ValueError, r"params\['keep'\].*rank 2"),
        ({"cap": 1.0, "shift": 1}, ValueError, r"params\['keep'\] is missing"),
        ({"cap": 1.0, "shift": 1, "keep": [255], "more": 1}, ValueError, r"params\['more'\] is not a parameter"),
        ({1: 2}, TypeError, "names"),
        ([1], TypeError, "dict"),
    ],
)
def test_bad_parameter_values_are_refused(problem: Problem, given: Any, error: type[Exception], text: str) -> None:
    @girih.variant
    def v(score, kv_pos, cap: girih.Scalar, shift: int, keep: girih.Bits):
        return {"logits": score * cap, "mask": keep[kv_pos + shift]}

    spec = girih.AttentionSpec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim_qk=DIM, q_dtype="f32", variant=v)
    attention = girih.Attention(spec, girih.AttentionLimits(max_tokens=32, max_requests=4, max_kv_len=64))
    attention.plan(problem.qo_indptr, girih.Segment(kv_indptr=problem.kv_indptr, page_size=0))
    with pytest.raises(error, match=text):
        attention.run(problem.q, girih.KvStore.ragged(problem.k, problem.v), params=given)


# ---------------------------------------------------------------------------------------------------------------- traced functions

WINDOW = np.int32(6)


@girih.variant
def local(q_pos, kv_pos):
    """A constant of the module."""
    return (kv_pos <= q_pos) & (q_pos - kv_pos < WINDOW)


@girih.variant(sink=variants.sinks(), name="everything")
def everything(
    score,
    q_pos,
    kv_pos,
    q_head,
    cap: girih.Scalar,
    window: girih.Scalar(int, time="plan"),
    slopes: Annotated[girih.ArrayParam, girih.Array("f32")],
    allowed=girih.Bits,
    scale=2.0,
):
    capped = cap * girih.tanh(score * scale / cap)
    return {
        "logits": capped + slopes[q_head] * (kv_pos - q_pos),
        "mask": (kv_pos <= q_pos) & (q_pos - kv_pos < window) & allowed[kv_pos],
    }


def test_traced_functions(problem: Problem) -> None:
    assert local.name == "local" and repr(local.mask) == "(kv_pos <= q_pos) & (q_pos - kv_pos < 6)"
    check(problem, local, mask=MASKS["sliding_window"][2])
    assert everything.params == {
        "cap": ("number", "f32", "run"),
        "slopes": ("array", "f32", "run"),
        "window": ("integer", "i64", "plan"),
        "allowed": ("bits", "u8", "run"),
        "sinks": ("array", "f32", "run"),
    }
    allowed = np.arange(40) % 3 != 1
    slopes, sinks = np.array([0.1, 0.2, -0.1, 0], np.float32), np.zeros(HEADS, np.float32)
    check(
        problem,
        everything,
        {
            "cap": 3,
            "window": np.int64(11),
            "slopes": slopes,
            "sinks": sinks,
            "allowed": np.packbits(allowed, bitorder="little"),
        },
        logits=lambda score, q_head, q_pos, kv_pos, **_: 3 * np.tanh(score * 2 / 3) + slopes[q_head] * (kv_pos - q_pos),
        mask=lambda q_pos, kv_pos, **_: (kv_pos <= q_pos) & (q_pos - kv_pos < 11) & allowed[kv_pos],
        sink=sinks,
    )


def test_random_traced_masks_against_brute_force(problem: Problem) -> None:
    """The same function evaluated on expressions and on NumPy's arrays."""
    rng = np.random.default_rng(11)
    for _ in range(40):
        a, b, c, d = (int(x) for x in rng.integers(1, 12, 4))

        def mask(q_pos, kv_pos, q_idx, q_len, kv_len, q_head, request, a=a, b=b, c=c, d=d):
            near = (kv_pos <= q_pos + a % 3) & (q_pos - kv_pos < a + b * q_head)
            far = ((kv_pos + q_idx) // b % 3 == request) | (kv_pos % c == q_pos % c)
            return near | (far & ~(kv_len - kv_pos <= d - q_len))

        variant = girih.variant(mask)
        names = ("q_pos", "kv_pos", "q_idx", "q_len", "kv_len", "q_head", "request")
        check(problem, variant, mask=lambda mask=mask, names=names, **p: mask(**{n: p[n] for n in names}))


def test_ways_to_say_it() -> None:
    assert repr(girih.variant(lambda q_pos, kv_pos: kv_pos <= q_pos)) == "Variant(mask=kv_pos <= q_pos)"
    assert girih.variant(lambda: True).mask is not None
    assert repr(girih.variant(hook="query")(lambda x, q_head: x * q_head).query) == "x * q_head"
    assert repr(girih.variant(hook="sink")(lambda q_head: q_head).sink) == "q_head"
    assert repr(girih.variant(lambda q_pos: q_pos).logits) == "q_pos"

    def windowed(q_pos, kv_pos, size):
        return q_pos - kv_pos < size

    assert repr(girih.variant(functools.partial(windowed, size=3)).mask) == "q_pos - kv_pos < 3"

    class Window:
        def __init__(self, size: int) -> None:
            self.size = size

        def __call__(self, q_pos, kv_pos):
            return q_pos - kv_pos < self.size

        def method(self, q_pos, kv_pos):
            return q_pos - kv_pos <= self.size

    assert repr(girih.variant(Window(4)).mask) == "q_pos - kv_pos < 4"
    assert repr(girih.variant(Window(4).method).mask) == "q_pos - kv_pos <= 4"

    @girih.variant(softmax=False)
    def from_variant(score):
        return girih.Variant(logits=girih.sigmoid(score), name="inner")

    assert from_variant.name == "inner" and not from_variant.softmax


def chained(q_pos, kv_pos):
    return 0 <= kv_pos <= q_pos


def word_and(q_pos, kv_pos):
    near = q_pos - kv_pos < 4
    return (
        kv_pos <= q_pos  # both
        and near
    )


def word_not(q_pos, kv_pos):
    return not (kv_pos <= q_pos)


def if_statement(q_pos, kv_pos):
    if kv_pos <= q_pos:
        return True
    return False


def if_expression(score, q_pos):
    return score if q_pos > 3 else score * 2


def word_in(kv_pos):
    return kv_pos in (1, 2)


def of_math(score):
    return 2 * math.exp(score)


def of_torch(score, q_pos):
    torch = pytest.importorskip("torch")
    return torch.where(q_pos > 3, score, 0)


def of_builtins(score, q_pos):
    return score * min(q_pos, 3)


def of_nobody(score):
    return math.sin(score)


def method(score):
    return score.tanh()


TABLE = np.zeros(4, np.float32)


def index(score, q_head):
    return score + TABLE[q_head]


def power(score):
    return score**2


def loop(q_pos, kv_pos):
    seen = False
    for i in range(q_pos):
        seen = seen | (kv_pos == i)
    return seen


def bad_types(score, q_pos):
    return score + (q_pos > 1)


def helped(q_pos, kv_pos):
    return smaller(q_pos, kv_pos) > 3


def smaller(a, b):
    return a if a < b else b


def whole_array(score, slopes: girih.Array("f32")):
    return score + slopes


@pytest.mark.parametrize(
    ("function", "error", "line", "remedy"),
    [
        (chained, TypeError, "return 0 <= kv_pos <= q_pos", r"Write (0 <= kv_pos) & (kv_pos <= q_pos)"),
        (word_and, TypeError, "", "Write (kv_pos <= q_pos) & (near)"),
        (word_not, TypeError, "return not (kv_pos <= q_pos)", "Write ~(kv_pos <= q_pos)"),
        (if_statement, TypeError, "if kv_pos <= q_pos:", "Write girih.select(kv_pos <= q_pos, a, b)"),
        (
            if_expression,
            TypeError,
            "return score if q_pos > 3 else score * 2",
            "Write girih.select(q_pos > 3, score, score * 2)",
        ),
        (word_in, TypeError, "return kv_pos in (1, 2)", "(a == 1) | (a == 2)"),
        (of_math, TypeError, "return 2 * math.exp(score)", "Write girih.exp(score)"),
        (of_torch, TypeError, "return torch.where(q_pos > 3, score, 0)", "Write girih.select(q_pos > 3, score, 0)"),
        (of_builtins, TypeError, "return score * min(q_pos, 3)", "Write girih.min(q_pos, 3)"),
        (of_nobody, TypeError, "return math.sin(score)", "girih.cuda_code"),
        (method, TypeError, "return score.tanh()", "Write girih.tanh(score)"),
        (index, TypeError, "return score + TABLE[q_head]", 'TABLE: girih.Array("f32")'),
        (power, TypeError, "return score**2", "Write (score) * (score)"),
        (loop, TypeError, "for i in range(q_pos):", "`range` needs a Python number"),
        (bad_types, ValueError, "return score + (q_pos > 1)", "operator+ of number and boolean"),
        (helped, TypeError, "return a if a < b else b", "Write girih.select(a < b, a, b)"),
        (whole_array, TypeError, "return score + slopes", "slopes[q_head]"),
    ],
)
def test_what_cannot_be_traced_names_the_line(
    function: Callable[..., Any], error: type[Exception], line: str, remedy: str
) -> None:
    with pytest.raises(error) as caught:
        girih.variant(function)
    text = str(caught.value)
    assert text.startswith(f"girih.variant: {function.__name__} cannot be traced\n")
    assert f'File "{__file__}", line ' in text
    assert line in text and remedy in text, text
    number = int(text.split("line ")[1].split(",")[0])
    with open(__file__, encoding="utf-8") as file:
        assert line in file.read().splitlines()[number - 1]


def test_definitions_that_say_nothing() -> None:
    cases: list[tuple[Callable[..., Any], type[Exception], str]] = [
        (lambda score, h: score, ValueError, "`h` is neither.*Did you mean `q_head`"),
        (lambda kv_idx: kv_idx > 1, ValueError, "Did you mean `kv_pos`"),
        (lambda scores: scores, ValueError, "Did you mean `score`"),
        (lambda score, bias: score, ValueError, "`bias` is neither.*girih.Scalar.*girih.Array"),
        (lambda *args: True, TypeError, r"`\*args`"),
        (lambda score, q_pos=3: score, ValueError, "`q_pos` is a variable"),
        (lambda score: None, TypeError, "returns nothing"),
        (lambda score: "x", TypeError, "returns a str"),
        (lambda q_pos: {"masks": q_pos > 1}, ValueError, "'masks'.*hooks are query"),
        (lambda x: x * 2, ValueError, r'logits uses x.*hook="query"'),
        (lambda score: {"mask": score > 0}, ValueError, "mask uses score"),
        (lambda score, a=girih.Array("f16"): score, ValueError, "`a`.*f32, i32 or i64"),
    ]
    for function, error, text in cases:
        with pytest.raises(error, match=f"(?s)test_variant.py.*{text}"):
            girih.variant(function)
    with pytest.raises(TypeError, match="takes a function"):
        girih.variant(3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="hook='masks'"):
        girih.variant(hook="masks")(lambda q_pos: q_pos > 1)


def test_errors_of_the_function_itself_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        girih.variant(lambda q_pos: q_pos > 1 / 0)
    with pytest.raises(NameError):
        girih.variant(lambda q_pos: q_pos > nothing)  # type: ignore[name-defined]  # noqa: F821


def test_cuda_text_and_source() -> None:
    slope = girih.scalar("slope")
    text = girih.cuda_code(
        float, "return score - slope * (float)(q_pos - kv_pos);", [girih.score(), girih.q_pos(), girih.kv_pos(), slope]
    )
    variant = girih.Variant(logits=text, mask=variants.causal())
    spec = girih.AttentionSpec(num_qo_heads=32, num_kv_heads=8, head_dim_qk=128, variant=variant)
    source = girih.source(spec, 90)
    assert "slope * (float)(q_pos - kv_pos)" in source and "sm_90a" in source and 'extern "C"' in source
    assert "(floor)" in girih.source(spec, 75, family="floor")
    with pytest.raises(ValueError, match="75, 80"):
        girih.source(spec, 17)
    with pytest.raises(NotImplementedError):
        girih.Attention(spec, girih.AttentionLimits(max_tokens=1, max_requests=1, max_kv_len=1))


def test_without_columns_the_line_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.11 a traceback tells the line alone."""
    from girih import _trace_errors

    place_in = _trace_errors._place_in
    monkeypatch.setattr(
        _trace_errors,
        "_place_in",
        lambda code, trace: place_in(code, trace)._replace(
            line=trace.tb_lineno, column=None, end_line=None, end_column=None
        ),
    )
    for function, remedy in (
        (chained, "Write (0 <= kv_pos) & (kv_pos <= q_pos)"),
        (if_expression, "Write girih.select(q_pos > 3, score, score * 2)"),
        (of_math, "Write girih.exp(score)"),
        (index, 'TABLE: girih.Array("f32")'),
    ):
        with pytest.raises(TypeError) as caught:
            girih.variant(function)
        assert remedy in str(caught.value)


def test_source_that_is_not_there() -> None:
    names: dict[str, Any] = {}
    exec("def gone(q_pos, kv_pos):\n    return 0 <= kv_pos <= q_pos\n", names)
    with pytest.raises(TypeError, match=r'(?s)File "<string>", line 2, in gone.*\(a <= b\) & \(b <= c\)'):
        girih.variant(names["gone"])


def test_copies_are_the_same() -> None:
    v = girih.Variant(mask=variants.causal(), name="v")
    for other in (copy.copy(v), copy.deepcopy(v), copy.deepcopy({"a": v})["a"]):
        assert repr(other) == repr(v)
    assert repr(copy.deepcopy(v.mask)) == repr(v.mask)


def random_expression(rng: np.random.Generator, kind: str, depth: int) -> girih.Expr:
    """Any expression of a type, by all operators and functions."""

    def of(which: str) -> girih.Expr:
        return random_expression(rng, which, depth - 1)

    def arithmetic(which: str) -> girih.Expr:
        a, b = of(which), of(which)
        made = [a + b, a - b, a * b, -a, abs(a), girih.min(a, b), girih.max(a, b), girih.select(of("boolean"), a, b)]
        made += [a // b, a % b] if which == "integer" else [a / b, girih.exp(a), girih.sigmoid(a), a / of("integer")]
        return made[rng.integers(len(made))]

    if kind == "boolean":
        if depth == 0:
            return girih.bits("keep")[girih.kv_pos()]
        which = ("integer", "number")[rng.integers(2)]
        a, b, c, d = of(which), of(which), of("boolean"), of("boolean")
        made = [a < b, a <= b, a > b, a >= b, a == b, a != b, c & d, c | d, ~c]
        return made[rng.integers(len(made))]
    if depth > 0:
        return arithmetic(kind)
    if kind == "integer":
        leaves = [girih.q_pos(), girih.kv_pos(), girih.scalar("n", int), girih.array("ids", "i32")[girih.q_head()]]
        leaves.append(girih.Expr(int(rng.integers(-9, 9))))
    else:
        leaves = [girih.score(), girih.scalar("a"), girih.array("w")[girih.q_head()], girih.Expr(float(rng.normal()))]
    return leaves[rng.integers(len(leaves))]


def test_texts_are_the_expressions() -> None:
    """What an expression prints, Python reads as the same expression."""
    names = {name: getattr(girih, name) for name in ("select", "min", "max", "abs", "exp", "sigmoid")}
    names |= {name: getattr(girih, name)() for name in ("q_pos", "kv_pos", "score", "q_head")}
    names |= {"n": girih.scalar("n", int), "a": girih.scalar("a"), "w": girih.array("w")}
    names |= {"ids": girih.array("ids", "i32"), "keep": girih.bits("keep")}
    rng = np.random.default_rng(13)
    for _ in range(300):
        e = random_expression(rng, ("boolean", "integer", "number")[rng.integers(3)], int(rng.integers(1, 4)))
        # Numbers as expressions: Python would add two of them in double.
        again = eval(re.sub(r"(?<![\w.])\d+(\.\d+)?(e-\d+)?", r"Expr(\g<0>)", repr(e)), {**names, "Expr": girih.Expr})

        def key(e: girih.Expr) -> str:
            return girih.Variant(logits=girih.select(e, 1.0, 0.0) if e.type == "boolean" else e).key_text

        assert key(again) == key(e), repr(e)


def test_rope_of_a_variant(problem: Problem) -> None:
    rotated = Problem()
    for r in range(len(Q_LENS)):
        rows = slice(problem.qo_indptr[r], problem.qo_indptr[r + 1])
        keys = slice(problem.kv_indptr[r], problem.kv_indptr[r + 1])
        for x, part, positions in (
            (rotated.q, rows, np.arange(KV_LENS[r] - Q_LENS[r], KV_LENS[r])),
            (rotated.k, keys, np.arange(KV_LENS[r])),
        ):
            angle = positions[:, None, None] * 500.0 ** (-2 * np.arange(4) / 8)
            a, b = x[part, :, :4].astype(np.float64), x[part, :, 4:8].astype(np.float64)
            x[part, :, :4] = a * np.cos(angle) - b * np.sin(angle)
            x[part, :, 4:8] = b * np.cos(angle) + a * np.sin(angle)
    got = problem.run(girih.Variant(rope=girih.Rope(theta=500.0, rotary_dim=8)))
    np.testing.assert_allclose(got, rotated.reference(), rtol=1e-5, atol=1e-5)
