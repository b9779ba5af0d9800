"""sample() and its parts against float64 references: exact filters, distributions by chi-square with fixed seeds, rows of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Make, to_numpy

import girih

RNG = np.random.default_rng(15)


def normal(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 2).astype(np.float32)


def order_of(x: np.ndarray) -> np.ndarray:
    """Value descending, then index ascending."""
    return np.argsort(-x, kind="stable")


def processed(x: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    w = np.exp((x.astype(np.float64) - x.max()) / temperature)
    return w / w.sum()


def filtered(p: np.ndarray, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, joint: bool = False) -> np.ndarray:
    """p with only the tokens that pass, renormalised."""
    order = order_of(p)
    keep = np.zeros(p.size, bool)
    k = top_k if 0 < top_k < p.size else p.size
    mass = p.sum() if joint else p[order[:k]].sum()
    ends = np.cumsum(p[order])
    n = p.size if top_p >= 1 else int(np.searchsorted(ends, top_p * mass)) + 1
    keep[order[: max(min(k, n), 1)]] = True
    if min_p > 0:
        keep &= p >= min_p * p.max()
    out = np.where(keep, p, 0)
    return out / out.sum()


def check_draws(tokens: np.ndarray, p: np.ndarray) -> None:
    """Pearson's chi-square, and no token outside the distribution."""
    counts = np.bincount(tokens, minlength=p.size)
    assert counts.size == p.size and (counts[p == 0] == 0).all()
    expected = p * tokens.size
    rare = expected < 5
    pairs = [(c, e) for c, e in zip(counts[~rare], expected[~rare])]
    if expected[rare].sum() > 0:
        pairs.append((counts[rare].sum(), expected[rare].sum()))
    statistic = sum((c - e) ** 2 / e for c, e in pairs)
    freedom = max(len(pairs) - 1, 1)
    assert statistic < freedom + 4 * np.sqrt(2 * freedom) + 4, (statistic, freedom)


def draws(make: Make, x: np.ndarray, n: int = 20000, **options: Any) -> np.ndarray:
    rows = np.zeros(n, np.int32)
    return to_numpy(girih.sample(make(x[None]), indices=make(rows), **options).tokens)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"top_k": 8, "top_p": 0.7},
        {"top_k": 8, "top_p": 0.7, "order": "joint"},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    ],
)
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_distribution(make: Make, options: dict[str, Any], kind: str) -> None:
    x = normal(40)
    filters = {k: v for k, v in options.items() if k not in ("temperature", "order")}
    p = processed(x, options.get("temperature", 1.0))
    if kind == "probs":
        options = {k: v for k, v in options.items() if k != "temperature"}
    expected = filtered(p, joint=options.get("order") == "joint", **filters)
    given = x if kind == "logits" else (p * 0.4).astype(np.float32)
    check_draws(draws(make, given, kind=kind, seed=7, offset=3, **options), expected)


def test_argmax_and_ties(make: Make) -> None:
    x = np.array([[1, 3, 3, 2], [5, 5, 5, 5], [-1, -2, -0.0, 0.0]], np.float32)
    for options in ({"temperature": 0.0}, {"top_k": 1}, {"temperature": 1e-6, "top_p": 0.1, "seed": 9}):
        np.testing.assert_array_equal(to_numpy(girih.sample(make(x), **options).tokens), [1, 0, 2])


def test_result_holds_what_was_asked_for(make: Make) -> None:
    result = girih.sample(make(normal(3, 16)))
    assert isinstance(result, girih.Sampled)
    assert (
        result.valid is None and result.logprobs is None and result.top_tokens is None and result.top_logprobs is None
    )
    assert to_numpy(result.tokens).dtype == np.int32 and result.tokens.shape == (3,)
    whole = girih.sample(make(normal(3, 16)), valid=True, logprobs=True, num_top=4, token_dtype="i64")
    assert to_numpy(whole.tokens).dtype == np.int64 and to_numpy(whole.valid).dtype == bool
    assert whole.top_tokens.shape == whole.top_logprobs.shape == (3, 4)
    assert to_numpy(whole.top_tokens).dtype == np.int64 and to_numpy(whole.logprobs).dtype == np.float32


def test_given_outputs(make: Make) -> None:
    x = make(normal(3, 16))
    tokens, valid = make(np.full(6, -7, np.int64)), make(np.full(3, 9, np.uint8))
    top_tokens, top_logprobs = make(np.zeros((3, 2), np.int64)), make(np.zeros((3, 2), np.float32))
    result = girih.sample(x, tokens=tokens[::2], valid=valid, top_tokens=top_tokens, top_logprobs=top_logprobs, seed=2)
    assert result.valid is valid and result.top_tokens is top_tokens and result.top_logprobs is top_logprobs
    again = girih.sample(x, seed=2, num_top=2)
    np.testing.assert_array_equal(to_numpy(tokens)[::2], to_numpy(again.tokens))
    np.testing.assert_array_equal(to_numpy(tokens)[1::2], -7)
    np.testing.assert_array_equal(to_numpy(valid), 1)
    np.testing.assert_array_equal(to_numpy(top_tokens), to_numpy(again.top_tokens))


def test_deterministic(make: Make) -> None:
    x = normal(64, 500)
    first = to_numpy(girih.sample(make(x), seed=5, offset=1, top_p=0.9).tokens)
    one = girih.Context(num_workers=1, target="scalar")  # of another device too
    np.testing.assert_array_equal(girih.sample(x, seed=5, offset=1, top_p=0.9, context=one).tokens, first)
    assert (to_numpy(girih.sample(make(x), seed=5, offset=2, top_p=0.9).tokens) != first).any()
    assert (to_numpy(girih.sample(make(x), seed=6, offset=1, top_p=0.9).tokens) != first).any()
    # A row's result depends on its number and its data alone.
    np.testing.assert_array_equal(to_numpy(girih.sample(make(x[:7]), seed=5, offset=1, top_p=0.9).tokens), first[:7])


def test_seeds(make: Make) -> None:
    x = normal(1, 300).repeat(5, 0)
    for seed in (2**63 - 1, -1, 2**64 - 1, np.int64(4)):
        assert to_numpy(girih.sample(make(x), seed=seed).tokens).shape == (5,)
    same = to_numpy(girih.sample(make(x), seed=2**64 - 1).tokens)
    np.testing.assert_array_equal(same, to_numpy(girih.sample(make(x), seed=-1).tokens))
    array = to_numpy(girih.sample(make(x), seed=make(np.array([-1])), offset=make(np.array([0]))).tokens)
    np.testing.assert_array_equal(array, same)
    # Seeds of rows: where a row stands does not matter.
    seeds = np.array([11, 12, 13, 14, 15])
    rows = to_numpy(girih.sample(make(x), seed=make(seeds)).tokens)
    turned = to_numpy(girih.sample(make(x), seed=make(seeds[::-1].copy())).tokens)
    np.testing.assert_array_equal(turned, rows[::-1])
    with pytest.raises(ValueError, match="seed: does not fit 64 bits"):
        girih.sample(make(x), seed=2**64)


def test_parameters_of_rows(make: Make) -> None:
    x = normal(6, 50)
    parameters = {
        "temperature": np.array([0.0, 0.5, 1.0, 2.0, 0.7, 1.0], np.float32),
        "top_k": np.array([0, 3, 1, 7, 50, 2], np.int32),
        "top_p": np.array([1.0, 0.9, 0.5, 0.3, 0.8, 0.0], np.float32),
        "min_p": np.array([0.0, 0.1, 0.0, 0.3, 0.0, 0.2], np.float32),
    }
    together = girih.sample(
        make(x), seed=4, logprobs=True, logprob_kind="filtered", **{k: make(v) for k, v in parameters.items()}
    )
    for row in range(6):
        own = {k: v[row].item() for k, v in parameters.items()}
        alone = girih.sample(make(x), seed=4, logprobs=True, logprob_kind="filtered", **own)
        assert to_numpy(alone.tokens)[row] == to_numpy(together.tokens)[row]
        assert to_numpy(alone.logprobs)[row] == to_numpy(together.logprobs)[row]
    # Arrays of one entry are every row's, whatever their rank.
    for form in (np.array([0.5], np.float32), np.array(0.5, np.float32)):
        same = girih.sample(make(x), seed=4, temperature=make(form) if form.ndim else form)
        np.testing.assert_array_equal(
            to_numpy(same.tokens), to_numpy(girih.sample(make(x), seed=4, temperature=0.5).tokens)
        )


def test_penalties_and_bias(make: Make) -> None:
    x = normal(2, 12)
    history = (np.array([0, 3, 5], np.int32), np.array([1, 4, 7, 0, 11], np.int32))
    counts = np.array([2, 0, 1, 3, 0], np.int32)
    bias_tokens, bias = (np.array([0, 1, 3]), np.array([4, 2, 3], np.int32)), np.array([1.5, -np.inf, 0.5], np.float32)
    repetition, frequency, presence = 1.3, 0.2, 0.4
    expected = x.astype(np.float64)
    for row in range(2):
        for i in range(bias_tokens[0][row], bias_tokens[0][row + 1]):
            expected[row, bias_tokens[1][i]] += bias[i]
        for i in range(history[0][row], history[0][row + 1]):
            t, count = history[1][i], counts[i]
            value = expected[row, t]
            value = value / repetition if value > 0 else value * repetition
            expected[row, t] = value - frequency * count - (presence if count > 0 else 0)
    result = girih.sample(
        make(x),
        bias_tokens=tuple(map(make, bias_tokens)),
        bias=make(bias),
        history=tuple(map(make, history)),
        history_counts=make(counts),
        repetition_penalty=repetition,
        frequency_penalty=make(np.array([frequency, frequency], np.float32)),
        presence_penalty=presence,
        num_top=12,
        logprobs=True,
    )
    top, logprobs = to_numpy(result.top_tokens), to_numpy(result.top_logprobs)
    for row in range(2):
        with np.errstate(divide="ignore"):
            wanted = np.log(processed(expected[row]))
        n = 12 - int(np.isinf(expected[row]).sum())
        np.testing.assert_array_equal(top[row], np.concatenate([order_of(expected[row])[:n], np.full(12 - n, -1)]))
        np.testing.assert_allclose(logprobs[row][:n], wanted[top[row][:n]], atol=2e-6)
        assert to_numpy(result.logprobs)[row] == logprobs[row][top[row] == to_numpy(result.tokens)[row]][0]


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_bit_masks(make: Make, kind: str) -> None:
    x = normal(3, 70) if kind == "logits" else np.abs(normal(3, 70))
    allowed = RNG.random((3, 70)) < 0.2
    allowed[2] = False
    words = np.zeros((3, 96), bool)
    words[:, :70] = allowed
    mask = np.packbits(words, axis=1, bitorder="little").view(np.int32)
    result = girih.sample(make(x), kind=kind, allowed=make(mask), valid=True, num_top=20, seed=3)
    tokens = to_numpy(result.tokens)
    assert allowed[0, tokens[0]] and allowed[1, tokens[1]] and tokens[2] == 0
    np.testing.assert_array_equal(to_numpy(result.valid), [True, True, False])
    assert to_numpy(girih.sample(make(x[:2]), kind=kind, allowed=make(mask[:2]), temperature=0.0).tokens).tolist() == [
        int(np.where(allowed[r], x[r], -np.inf).argmax()) for r in range(2)
    ]


def test_indices(make: Make) -> None:
    x, rows = normal(4, 30), np.array([3, 3, 0, 1], np.int64)
    result = girih.sample(make(x), indices=make(rows), seed=8)
    np.testing.assert_array_equal(to_numpy(result.tokens), to_numpy(girih.sample(make(x[rows]), seed=8).tokens))
    with pytest.raises(ValueError, match=r"indices\[1\]=4"):
        girih.sample(x, indices=np.array([0, 4]))


@pytest.mark.parametrize("kind", ["processed", "filtered"])
def test_logprobs(make: Make, kind: Any) -> None:
    x = normal(3, 40)
    result = girih.sample(
        make(x), temperature=0.8, top_k=6, top_p=0.9, seed=1, logprobs=True, num_top=10, logprob_kind=kind
    )
    for row in range(3):
        p = processed(x[row], 0.8)
        with np.errstate(divide="ignore"):
            wanted = np.log(p if kind == "processed" else filtered(p, 6, 0.9))
        top = to_numpy(result.top_tokens)[row]
        np.testing.assert_array_equal(top, order_of(x[row])[:10])
        np.testing.assert_allclose(to_numpy(result.top_logprobs)[row], wanted[top], atol=3e-6)
        np.testing.assert_allclose(to_numpy(result.logprobs)[row], wanted[to_numpy(result.tokens)[row]], atol=3e-6)


def test_more_top_tokens_than_the_row_has(make: Make) -> None:
    result = girih.sample(make(np.array([[0.0, 1.0, -np.inf]], np.float32)), num_top=5)
    assert to_numpy(result.top_tokens)[0].tolist() == [1, 0, -1, -1, -1]
    assert np.isnan(to_numpy(result.top_logprobs)[0, 2:]).all()
    dropped = girih.sample(make(np.array([[0.0, 1.0]], np.float32)), num_top=2, top_k=1, logprob_kind="filtered")
    assert to_numpy(dropped.top_tokens)[0].tolist() == [1, 0]
    assert to_numpy(dropped.top_logprobs)[0].tolist() == [0, -np.inf]


def test_strange_rows(make: Make) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[-inf] * 4, [nan] * 4, [nan, 1, nan, 0], [0, inf, 1, inf], [-inf, 2, -inf, -inf]], np.float32)
    result = girih.sample(make(x), seed=6, valid=True, logprobs=True)
    tokens, valid, logprobs = (to_numpy(a) for a in (result.tokens, result.valid, result.logprobs))
    assert valid.tolist() == [False, False, False, True, True]
    assert tokens[0] == tokens[1] == 0 and tokens[2] in (1, 3) and tokens[3] in (1, 3) and tokens[4] == 1
    assert np.isnan(logprobs[:2]).all() and logprobs[4] == 0
    np.testing.assert_allclose(logprobs[3], np.log(0.5), rtol=1e-6)
    check_draws(draws(make, x[3], seed=1), np.array([0, 0.5, 0, 0.5]))
    sums = to_numpy(girih.softmax(make(x)))
    np.testing.assert_allclose(
        sums, [[0] * 4, [0] * 4, [0, 1 / (1 + 1 / np.e), 0, 1 / (1 + np.e)], [0, 0.5, 0, 0.5], [0, 1, 0, 0]], atol=1e-6
    )


def test_strided_and_16_bit_rows() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(6, 80, generator=torch.Generator().manual_seed(3))
    rows = x[::2, 3:70:2]
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        strided, dense = rows.to(kind), rows.to(kind).contiguous()
        wide = torch.zeros(6, 80, dtype=kind)
        wide[::2, 3:70:2] = strided
        a = girih.sample(wide[::2, 3:70:2], seed=5, top_p=0.7, logprobs=True)
        b = girih.sample(dense, seed=5, top_p=0.7, logprobs=True)
        assert torch.equal(a.tokens, b.tokens) and torch.equal(a.logprobs, b.logprobs)


def test_softmax(make: Make) -> None:
    x = normal(4, 33)
    np.testing.assert_allclose(to_numpy(girih.softmax(make(x))), [processed(r) for r in x], rtol=1e-5, atol=1e-9)
    temperatures = np.array([0.5, 1.0, 2.0, 0.0], np.float32)
    out = make(x.copy())
    assert girih.softmax(out, make(temperatures), out=out) is out
    for row in range(3):
        np.testing.assert_allclose(to_numpy(out)[row], processed(x[row], temperatures[row]), rtol=1e-5, atol=1e-9)
    np.testing.assert_array_equal(to_numpy(out)[3], np.arange(33) == x[3].argmax())


def test_renormalisation(make: Make) -> None:
    p = np.array([processed(r) for r in normal(3, 40)], np.float32)
    for value in (0.6, make(np.array([0.6, 0.6, 0.6], np.float32))):
        out = to_numpy(girih.top_p_renorm_probs(make(p), value))
        np.testing.assert_allclose(out, [filtered(r.astype(np.float64), top_p=0.6) for r in p], rtol=1e-5)
    np.testing.assert_array_equal(to_numpy(girih.top_p_renorm_probs(make(p), 1.0)), p)
    out = to_numpy(girih.top_k_renorm_probs(make(p), make(np.array([1, 5, 0]))))
    np.testing.assert_allclose(
        out[:2], [filtered(p[i].astype(np.float64), top_k=k) for i, k in enumerate((1, 5))], rtol=1e-5
    )
    np.testing.assert_array_equal(out[2], p[2])


def test_top_k_mask_logits(make: Make) -> None:
    x = normal(3, 20)
    x[0, 4] = x[0, 9] = x[0].max() + 1  # a tie
    out = to_numpy(girih.top_k_mask_logits(make(x), make(np.array([1, 6, 20], np.int32))))
    for row, k in enumerate((1, 6, 20)):
        expected = np.full(20, -np.inf, np.float32)
        expected[order_of(x[row])[:k]] = x[row][order_of(x[row])[:k]]
        np.testing.assert_array_equal(out[row], expected)


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("k", [1, 5, 30])
def test_top_k(make: Make, is_sorted: bool, k: int) -> None:
    x = np.round(normal(4, 24))  # many ties
    result = girih.top_k(make(x), k, sorted=is_sorted)
    for row in range(4):
        wanted = order_of(x[row])[:k]
        wanted = wanted if is_sorted else np.sort(wanted)
        fill = k - wanted.size
        np.testing.assert_array_equal(to_numpy(result.indices)[row], np.concatenate([wanted, np.full(fill, -1)]))
        np.testing.assert_array_equal(
            to_numpy(result.values)[row], np.concatenate([x[row][wanted], np.full(fill, -np.inf)])
        )
    alone = girih.top_k(make(x), k, sorted=is_sorted, values=False, index_dtype="int64")
    assert alone.values is None and to_numpy(alone.indices).dtype == np.int64
    np.testing.assert_array_equal(to_numpy(alone.indices), to_numpy(result.indices))


def test_top_k_of_ragged_rows(make: Make) -> None:
    x = normal(3, 40)
    starts, lengths = np.array([0, 10, 35], np.int32), np.array([40, 8, 5], np.int32)
    requests, table = np.array([1, 0, 1], np.int32), RNG.permutation(40).astype(np.int32).reshape(2, 20)
    options = {"sorted": True, "row_starts": make(starts), "row_lengths": make(lengths)}
    plain = to_numpy(girih.top_k(make(x), 4, **options).indices)
    for row in range(3):
        part = x[row, starts[row] : starts[row] + lengths[row]]
        np.testing.assert_array_equal(plain[row], order_of(part)[:4])
    moved = to_numpy(girih.top_k(make(x), 4, index_offsets=make(starts), **options).indices)
    np.testing.assert_array_equal(moved, plain + starts[:, None])
    paged = girih.top_k(make(x), 4, page_table=make(table), row_requests=make(requests), page_size=2, **options).indices
    np.testing.assert_array_equal(to_numpy(paged), table[requests[:, None], plain // 2] * 2 + plain % 2)


def test_speculation_follows_the_target(make: Make) -> None:
    n, vocab, trials = 2, 6, 20000
    draft = np.array([processed(r) for r in normal(n, vocab)])
    target = np.array([processed(r) for r in normal(n + 1, vocab)])
    tokens = np.stack([RNG.choice(vocab, trials, p=d) for d in draft], 1).astype(np.int32)
    wide = [np.broadcast_to(p.astype(np.float32), (trials, *p.shape)).copy() for p in (target, draft)]
    result = girih.chain_speculative_sample(make(wide[0]), make(tokens), make(wide[1]), seed=3)
    out, accepted = to_numpy(result.tokens), to_numpy(result.accepted)
    check_draws(out[:, 0], target[0])
    for place in (1, 2):
        check_draws(out[accepted >= place, place], target[place])
        assert (out[accepted < place, place] == -1).all()
    for place in range(n):
        np.testing.assert_array_equal(out[accepted > place, place], tokens[accepted > place, place])
    expected = np.minimum(draft[0], target[0]).sum()
    assert abs((accepted >= 1).mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / trials)


def test_greedy_speculation(make: Make) -> None:
    target = np.zeros((2, 4, 8), np.float32)
    for row, best in enumerate([[3, 1, 4, 1], [5, 2, 6, 5]]):
        target[row, np.arange(4), best] = 1
    drafts = np.array([[3, 1, 7], [5, 2, 6]], np.int32)
    result = girih.chain_speculative_sample(make(target), make(drafts), greedy=True)
    assert to_numpy(result.accepted).tolist() == [2, 3]
    assert to_numpy(result.tokens).tolist() == [[3, 1, 4, -1], [5, 2, 6, 5]]
    shorter = girih.chain_speculative_sample(
        make(target),
        make(drafts),
        greedy=True,
        draft_lengths=make(np.array([0, 1], np.int32)),
        accepted=False,
        token_dtype="i64",
    )
    assert shorter.accepted is None and to_numpy(shorter.tokens).dtype == np.int64
    assert to_numpy(shorter.tokens).tolist() == [[3, -1, -1, -1], [5, 2, -1, -1]]


X = np.zeros((3, 8), np.float32)
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"kind": "odds"}, ValueError, 'kind: \'odds\' is unknown; known are "logits", "probs"'),
    ({"order": 3}, ValueError, "order: 3 is unknown"),
    ({"logprob_kind": "raw"}, ValueError, "logprob_kind: 'raw'"),
    ({"temperature": -1.0}, ValueError, "temperature=-1"),
    ({"temperature": float("nan")}, ValueError, "temperature=nan"),
    ({"temperature": "hot"}, TypeError, "temperature: "),
    ({"temperature": np.ones(2, np.float32)}, ValueError, r"temperature has shape \[2\]"),
    ({"temperature": np.ones(3, np.float64)}, ValueError, "temperature: has dtype float64"),
    ({"temperature": np.array([1, -2, 1], np.float32)}, ValueError, r"temperature\[1\]=-2"),
    ({"top_k": 2.5}, TypeError, "top_k: "),
    ({"top_k": np.ones(3, np.float32)}, ValueError, "top_k is f32"),
    ({"top_p": -0.5}, ValueError, "top_p=-0.5"),
    ({"min_p": 1.5}, ValueError, "min_p=1.5"),
    ({"repetition_penalty": 0.0}, ValueError, "repetition_penalty=0"),
    ({"seed": np.zeros(2, np.int64)}, ValueError, r"sample: seed has shape \[2\]"),
    ({"seed": np.zeros(3, np.int32)}, ValueError, "sample: seed is i32"),
    ({"seed": 1.5}, TypeError, "seed: "),
    ({"indices": np.zeros(3, np.float32)}, ValueError, "indices is f32"),
    ({"bias_tokens": np.zeros(4, np.int32)}, TypeError, r"bias_tokens: must be a pair \(indptr, tokens\)"),
    (
        {"bias_tokens": (np.zeros(3, np.int32), np.zeros(0, np.int32)), "bias": np.zeros(0, np.float32)},
        ValueError,
        r"bias_tokens\[0\] has shape \[3\]",
    ),
    (
        {"bias_tokens": (np.array([0, 1, 1, 1]), np.array([8], np.int32)), "bias": np.zeros(1, np.float32)},
        ValueError,
        r"bias_tokens\[1\]\[0\]=8",
    ),
    ({"history": (np.array([0, 1, 1, 1]), np.zeros(1, np.int64))}, ValueError, r"history\[1\] is i64"),
    (
        {"history": (np.array([0, 1, 1, 1]), np.zeros(1, np.int32)), "kind": "probs"},
        NotImplementedError,
        "history is given for probabilities",
    ),
    ({"kind": "probs", "temperature": 0.5}, NotImplementedError, "temperature=0.5; probabilities take 1"),
    ({"allowed": np.zeros((3, 2), np.int32)}, ValueError, r"allowed has shape \[3, 2\]"),
    ({"allowed": np.zeros((3, 1), np.uint8)}, ValueError, "allowed is u8"),
    ({"token_dtype": "f32"}, ValueError, "token_dtype: is f32; must be i32 or i64"),
    ({"token_dtype": "i64", "tokens": np.zeros(3, np.int32)}, ValueError, "token_dtype: is i64, but tokens is i32"),
    ({"num_top": 129}, ValueError, "num_top: is 129; must be 0 to 128"),
    ({"num_top": 2, "top_tokens": np.zeros((3, 4), np.int32)}, ValueError, "top_tokens: has 4 columns; num_top is 2"),
    ({"valid": np.zeros(3, np.float32)}, ValueError, "valid is f32"),
    ({"logprobs": np.zeros(2, np.float32)}, ValueError, r"logprobs has shape \[2\]"),
    ({"stream": 3}, ValueError, "stream"),
]


@pytest.mark.parametrize(("options", "error", "text"), BAD)
def test_bad_arguments_write_nothing(options: dict[str, Any], error: type[Exception], text: str) -> None:
    tokens, logprobs = np.full(3, -7, np.int32), np.full(3, -7, np.float32)
    given = {"tokens": tokens, "logprobs": logprobs, **options}
    if options == {"token_dtype": "f32"}:
        del given["tokens"]
    with pytest.raises(error, match=text):
        girih.sample(X, **given)
    assert (tokens == -7).all() and (logprobs == -7).all()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: girih.sample(np.zeros(8, np.float32)), r"input has shape \[8\]"),
        (lambda: girih.sample(np.zeros((2, 8), np.int32)), "input is i32"),
        (lambda: girih.sample(np.zeros((2, 0), np.float32)), "input has rows of 0 entries"),
        (lambda: girih.sample(X, tokens=np.zeros(2, np.int32)), r"tokens has shape \[2\]"),
        (lambda: girih.softmax(X, np.ones(2, np.float32)), r"temperature has shape \[2\]"),
        (lambda: girih.softmax(X, out=np.zeros((3, 8), np.float16)), "out is f16; must be f32"),
        (lambda: girih.top_p_renorm_probs(X, -1.0), "top_p=-1"),
        (lambda: girih.top_k_mask_logits(X[0], 3), r"logits has shape \[8\]"),
        (lambda: girih.top_k(X, 0), "k=0; must be 1 to 4096"),
        (lambda: girih.top_k(X, 4097), "k=4097"),
        (
            lambda: girih.top_k(X, 2, indices=np.zeros((3, 2), np.int32), index_dtype="i64"),
            "index_dtype: is i64, but indices",
        ),
        (lambda: girih.top_k(X, 2, row_starts=np.full(3, 9, np.int32)), r"row_starts\[0\]=9"),
        (lambda: girih.top_k(X, 2, page_size=4), "page_size: is given without page_table"),
        (lambda: girih.top_k(X, 2, row_requests=np.zeros(3, np.int32)), "row_requests is given without page_table"),
        (lambda: girih.top_k(X, 2, page_table=np.zeros((3, 2), np.int32), page_size=0), "page_size=0"),
        (lambda: girih.chain_speculative_sample(X, np.zeros((3, 2), np.int32)), r"target_probs has shape \[3, 8\]"),
        (
            lambda: girih.chain_speculative_sample(np.ones((1, 3, 4), np.float32), np.array([[0, 4]], np.int32)),
            r"draft_tokens\[0, 1\]=4",
        ),
    ],
)
def test_bad_calls(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


def test_table_and_offsets_together() -> None:
    with pytest.raises(NotImplementedError, match="index_offsets and page_table are given; one transform"):
        girih.top_k(X, 2, page_table=np.zeros((3, 8), np.int32), index_offsets=np.zeros(3, np.int32))


def test_no_rows(make: Make) -> None:
    result = girih.sample(make(np.zeros((0, 8), np.float32)), logprobs=True)
    assert result.tokens.shape == (0,) and result.logprobs.shape == (0,)
    assert girih.softmax(make(np.zeros((0, 8), np.float32))).shape == (0, 8)
