"""Sampling and top-k under FlashInfer's names: supports, distributions, seeds, older forms, messages."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import girih.flashinfer as flashinfer
from girih.flashinfer.topk import TopKTieBreak
from torch import Tensor

sampling = flashinfer.sampling


def probabilities(rows: int, vocab: int, seed: int = 0) -> Tensor:
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    return torch.softmax(torch.randn(rows, vocab, generator=generator) * 2, -1)


def frequencies(draw: Any, vocab: int, rows: int = 40_000) -> Tensor:
    tokens = draw(torch.zeros(rows, dtype=torch.int32))
    return torch.bincount(tokens.long(), minlength=vocab) / rows


def close(found: Tensor, expected: Tensor, rows: int = 40_000) -> bool:
    """Within five standard deviations in every entry, and 0 where nothing is expected."""
    deviation = (expected * (1 - expected) / rows).sqrt()
    return bool(((found - expected).abs() <= 5 * deviation + 1e-9).all())


def test_distributions_and_supports() -> None:
    p = probabilities(1, 50)
    order = p[0].argsort(descending=True)
    top3 = torch.zeros(50).index_fill_(0, order[:3], 1.0) * p[0]
    nucleus = p[0, order].cumsum(0)
    count = int((nucleus < 0.6).sum()) + 1
    top_p = torch.zeros(50).index_fill_(0, order[:count], 1.0) * p[0]
    min_p = torch.where(p[0] >= 0.2 * p.max(), p[0], 0.0)
    cases = {
        "sampling_from_probs": ((), p[0]),
        "top_k_sampling_from_probs": ((3,), top3 / top3.sum()),
        "top_p_sampling_from_probs": ((0.6,), top_p / top_p.sum()),
        "min_p_sampling_from_probs": ((0.2,), min_p / min_p.sum()),
        "top_k_top_p_sampling_from_probs": ((3, 1.0), top3 / top3.sum()),
    }
    torch.manual_seed(4)
    for name, (thresholds, expected) in cases.items():
        found = frequencies(lambda i: getattr(sampling, name)(p, *thresholds, indices=i), 50)
        assert close(found, expected), name
    found = frequencies(lambda i: sampling.sampling_from_logits(p.log(), indices=i), 50)
    assert close(found, p[0])
    found = frequencies(lambda i: sampling.top_k_top_p_sampling_from_logits(p.log(), 3, 0.9, indices=i), 50)
    assert (found[order[3:]] == 0).all() and found[order[0]] > 0


def test_both_orders_of_the_filters() -> None:
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    for order, support in (("top_k_first", [0]), ("joint", [0, 1])):
        # Of the first two tokens' mass the first has 4/7; of all mass 0.4.
        found = frequencies(
            lambda i: sampling.top_k_top_p_sampling_from_probs(p, 2, 0.55, indices=i, filter_apply_order=order), 4, 2000
        )
        assert found.nonzero().squeeze(1).tolist() == support
    with pytest.raises(ValueError, match="Invalid filter_apply_order"):
        sampling.top_k_top_p_sampling_from_probs(p, 2, 0.5, filter_apply_order="sideways")


def test_thresholds_by_row_follow_indices() -> None:
    p = probabilities(3, 40)
    top_k = torch.tensor([1, 40, 2])
    indices = torch.tensor([2, 0, 0, 2, 2, 0])
    tokens = sampling.top_k_sampling_from_probs(p, top_k, indices=indices)
    assert tokens.dtype == torch.int64
    best = p.argsort(descending=True)
    for token, row in zip(tokens.tolist(), indices.tolist()):
        assert token in best[row, : int(top_k[row])].tolist()


def test_seeds() -> None:
    p = torch.full((64, 1000), 1e-3)

    def draw(**kwargs: Any) -> list[int]:
        tokens: list[int] = sampling.sampling_from_probs(p, **kwargs).tolist()
        return tokens

    assert draw(seed=1, offset=2) == draw(seed=1, offset=2)
    assert draw(seed=1, offset=2) != draw(seed=2, offset=2) != draw(seed=1, offset=3)
    assert draw(seed=2**64 - 1, offset=0) == draw(seed=-1, offset=0)
    one = {"seed": torch.tensor([7]), "offset": torch.tensor([3])}
    assert draw(**one) == draw(seed=7, offset=3)
    rows = torch.arange(64)
    many = draw(seed=rows, offset=torch.zeros_like(rows))
    again = sampling.sampling_from_probs(p[:2], seed=rows[5:7], offset=torch.zeros(2, dtype=torch.int64))
    assert many[5:7] == again.tolist()
    unsigned = rows.view(torch.uint64)
    assert many == draw(seed=unsigned, offset=torch.zeros_like(rows).view(torch.uint64))
    for wrong in ((1, torch.tensor([1])), (torch.tensor([1]), 1)):
        with pytest.raises(ValueError, match="both be tensors"):
            draw(seed=wrong[0], offset=wrong[1])
    with pytest.raises(ValueError, match="seed tensor length"):
        draw(seed=rows[:3], offset=rows[:3])
    with pytest.raises(ValueError, match="seed tensor must be int64"):
        draw(seed=rows.int(), offset=rows.int())


def test_generators_move_on_and_repeat() -> None:
    p = torch.full((32, 1000), 1e-3)
    first, second = torch.Generator(torch.get_default_device()).manual_seed(5), torch.Generator(torch.get_default_device()).manual_seed(5)
    a = [sampling.sampling_from_probs(p, generator=first).tolist() for _ in range(3)]
    b = [sampling.sampling_from_probs(p, generator=second).tolist() for _ in range(3)]
    assert a == b and a[0] != a[1] != a[2]
    torch.manual_seed(6)
    c = sampling.sampling_from_probs(p).tolist()
    torch.manual_seed(6)
    assert c == sampling.sampling_from_probs(p).tolist() != sampling.sampling_from_probs(p).tolist()


def test_rows_with_nan() -> None:
    p = probabilities(4, 30)
    p[2] = float("nan")
    for name, thresholds in (
        ("sampling_from_probs", ()),
        ("top_k_sampling_from_probs", (5,)),
        ("top_p_sampling_from_probs", (0.5,)),
        ("min_p_sampling_from_probs", (0.1,)),
        ("top_k_top_p_sampling_from_probs", (5, 0.5)),
    ):
        function = getattr(sampling, name)
        tokens, valid = function(p, *thresholds, return_valid=True)
        assert valid.dtype == torch.bool and valid.tolist() == [True, True, False, True] and tokens[2] == 0
        with pytest.raises(ValueError, match="Input probs contains NaN"):
            function(p, *thresholds, check_nan=True)
    with pytest.raises(ValueError, match="Input logits contains NaN"):
        sampling.sampling_from_logits(p, check_nan=True)


def test_messages_about_thresholds() -> None:
    p = probabilities(3, 20)
    with pytest.raises(ValueError, match=r"Expected a 1D tensor or scalar.*got a 2D tensor"):
        sampling.min_p_sampling_from_probs(p, torch.zeros(3, 20))
    with pytest.raises(ValueError, match=r"1D tensor of shape \(batch_size,\) or scalar.*got a 0-dimensional tensor"):
        sampling.top_p_renorm_probs(p, torch.tensor(0.5))
    with pytest.raises(ValueError, match="Sampling parameter.*batch size mismatch"):
        sampling.top_k_renorm_probs(p, torch.tensor([3]))


def test_the_form_with_uniform_samples() -> None:
    p = probabilities(6, 100)
    uniform = torch.rand(32, 6)
    tokens, success = sampling.top_p_sampling_from_probs(p, uniform, 0.8)
    assert success.all() and tokens.dtype == torch.int32
    again, _ = sampling.top_p_sampling_from_probs(p, uniform_samples=uniform, top_p=0.8)
    assert torch.equal(tokens, again)
    other, _ = sampling.top_p_sampling_from_probs(p, torch.rand(32, 6), 0.8)
    assert not torch.equal(tokens, other)
    tokens, success = sampling.top_k_top_p_sampling_from_probs(p, uniform, 1, 0.9, "joint", True, False)
    assert torch.equal(tokens.long(), p.argmax(-1)) and success.all()
    tokens, success = sampling.top_k_sampling_from_probs(p, uniform, torch.ones(6, dtype=torch.int32))
    assert torch.equal(tokens.long(), p.argmax(-1))
    tokens, success = sampling.min_p_sampling_from_probs(p, uniform, 1.0)
    assert torch.equal(tokens.long(), p.argmax(-1))
    assert sampling.sampling_from_probs(p, torch.rand(6)).shape == (6,)
    logits = p.log()
    logits[2] = float("-inf")
    tokens, success = sampling.top_k_top_p_sampling_from_logits(logits, uniform, 1, 0.9)
    assert success.tolist() == [True, True, False, True, True, True]
    assert torch.equal(tokens[success].long(), p.argmax(-1)[success])
    again, _ = sampling.top_k_top_p_sampling_from_logits(logits, uniform_samples=uniform, top_k=1, top_p=0.9)
    assert torch.equal(again, tokens)
    with pytest.raises(ValueError, match="uniform_samples"):
        sampling.top_p_sampling_from_probs(p, uniform, 0.8, seed=1, offset=0)
    older: Any = sampling.top_p_sampling_from_probs
    with pytest.raises(TypeError, match="each once"):
        older(p, uniform, 0.8, True, False, "one too many")
    with pytest.raises(TypeError, match="each once"):
        older(p, uniform, 0.8, top_p=0.9)
    flat = torch.full((1, 64), 1 / 64).expand(20_000, 64)
    found = torch.bincount(sampling.sampling_from_probs(flat, torch.rand(20_000)).long(), minlength=64) / 20_000
    assert close(found, flat[0], 20_000)


def test_softmax() -> None:
    x = torch.randn(4, 33)
    torch.testing.assert_close(sampling.softmax(x), torch.softmax(x, -1))
    t = torch.tensor([0.5, 1.0, 2.0, 0.0], dtype=torch.float64)
    result = sampling.softmax(x, t)
    torch.testing.assert_close(result[:3], torch.softmax(x[:3] / t[:3, None].float(), -1))
    assert torch.equal(result[3], torch.nn.functional.one_hot(x[3].argmax(), 33).float())
    for wrong in (torch.ones(3), torch.ones(4, 1), torch.ones(4, dtype=torch.int32)):
        with pytest.raises(ValueError, match="temperature"):
            sampling.softmax(x, wrong)
    with pytest.raises(TypeError, match="temperature"):
        sampling.softmax(x, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_filters_by_themselves(dtype: torch.dtype) -> None:
    p = probabilities(3, 70).to(dtype)
    k = torch.tensor([1, 70, 4], dtype=torch.int32)
    kept = sampling.top_k_renorm_probs(p, k)
    assert kept.dtype == dtype and (kept > 0).sum(-1).tolist() == [1, int((p[1] > 0).sum()), 4]
    torch.testing.assert_close(kept[2].float().sum(), torch.tensor(1.0), rtol=1e-2, atol=1e-2)
    masked = sampling.top_k_mask_logits(p, 4)
    assert masked.dtype == dtype and masked.isfinite().sum(-1).tolist() == [4, 4, 4]
    renormed = sampling.top_p_renorm_probs(p.float(), 1.0)
    assert torch.equal(renormed, p.float())
    half = sampling.top_p_renorm_probs(p.float(), torch.tensor([0.1, 0.5, 0.9]))
    torch.testing.assert_close(half.sum(-1), torch.ones(3))
    assert sampling.top_p_renorm_prob is sampling.top_p_renorm_probs


def test_chain_speculative_sampling() -> None:
    torch.manual_seed(3)
    drafts = torch.randint(20, (5, 3), dtype=torch.int32)
    draft_probs = torch.rand(5, 3, 20)
    draft_probs /= draft_probs.sum(-1, keepdim=True)
    target = torch.zeros(5, 4, 20)
    wanted = torch.cat((drafts, torch.randint(20, (5, 1), dtype=torch.int32)), 1)
    target.scatter_(2, wanted.long().unsqueeze(-1), 1.0)
    tokens, accepted, emitted = sampling.chain_speculative_sampling(draft_probs, drafts, target)
    assert torch.equal(tokens, wanted) and accepted.tolist() == emitted.tolist() == [3] * 5
    counters = torch.full((5,), 10, dtype=torch.int32), torch.full((5,), 20, dtype=torch.int32)
    _, accepted, emitted = sampling.chain_speculative_sampling(draft_probs, drafts, target, *counters)
    assert accepted is counters[0] and accepted.tolist() == [13] * 5 and emitted.tolist() == [23] * 5
    # The first draft cannot be: the chain ends there, but the others count as accepted by themselves.
    target[:, 0] = 0
    target[:, 0].scatter_(1, ((drafts[:, :1] + 1) % 20).long(), 1.0)
    tokens, accepted, emitted = sampling.chain_speculative_sampling(draft_probs, drafts, target, seed=1, offset=2)
    assert torch.equal(tokens[:, 0], (drafts[:, 0] + 1) % 20) and (tokens[:, 1:] == -1).all()
    assert emitted.tolist() == [0] * 5 and accepted.tolist() == [2] * 5
    older = sampling.chain_speculative_sampling(draft_probs, drafts, torch.rand(5, 4), target)
    assert torch.equal(older[0], tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_top_k(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x = torch.randn(5, 300, dtype=dtype)
    values, indices = flashinfer.top_k(x, 17, sorted=True)
    assert values.dtype == dtype and indices.dtype == torch.int64
    assert torch.equal(values, x.gather(1, indices)) and torch.equal(values, x.topk(17).values)
    assert torch.equal(flashinfer.top_k(x, 17)[1].sort(-1).values, indices.sort(-1).values)
    assert flashinfer.topk.topk is flashinfer.top_k
    with pytest.raises(ValueError, match="k=301"):
        flashinfer.top_k(x, 301)
    with pytest.raises(NotImplementedError, match="k=4097"):
        flashinfer.top_k(torch.randn(1, 5000), 4097)


def test_ties() -> None:
    x = torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0, 1.0]])
    for tie_break, expected in (
        (TopKTieBreak.NONE, [0, 1, 2]),
        (TopKTieBreak.SMALL, [0, 1, 2]),
        (TopKTieBreak.LARGE, [1, 3, 5]),
    ):
        values, indices = flashinfer.top_k(x, 3, tie_break=tie_break)
        assert indices[0].tolist() == expected and torch.equal(values, x.gather(1, indices))
        assert sorted(flashinfer.top_k(x, 3, sorted=True, tie_break=tie_break)[1][0].tolist()) == expected


@pytest.mark.parametrize("tie_break", [TopKTieBreak.SMALL, TopKTieBreak.LARGE])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("starts", [False, True])
def test_transforms(tie_break: TopKTieBreak, page_size: int, starts: bool) -> None:
    torch.manual_seed(2)
    rows, width, k = 4, 64, 6
    x = torch.randint(5, (rows, width)).float()
    lengths = torch.tensor([3, 20, 0, 40], dtype=torch.int32)
    row_starts = torch.tensor([0, 8, 4, 16], dtype=torch.int32) if starts else None
    table_starts = torch.tensor([0, 2, 1, 0], dtype=torch.int32) if starts else None
    table = torch.randperm(200)[: 3 * width].reshape(3, width).int()
    requests = torch.tensor([2, 0, 1, 1], dtype=torch.int32)
    raw, out = torch.empty(rows, k, dtype=torch.int32), torch.empty(rows, k, dtype=torch.int32)
    result = flashinfer.top_k_page_table_transform(
        x,
        table,
        lengths,
        k,
        requests,
        tie_break=tie_break,
        row_starts=row_starts,
        page_table_row_starts=table_starts,
        page_size=page_size,
        out=out,
        out_raw_indices=raw,
    )
    assert result is out
    offsets = torch.tensor([100, 200, 300, 400])
    ragged = flashinfer.top_k_ragged_transform(x, offsets, lengths, k, tie_break=tie_break, row_starts=row_starts)
    for r in range(rows):
        start = int(row_starts[r]) if row_starts is not None else 0
        shift = int(table_starts[r]) if table_starts is not None else 0
        line = x[r, start : start + int(lengths[r])].tolist()
        sign = 1 if tie_break == TopKTieBreak.SMALL else -1
        best = sorted(range(len(line)), key=lambda i: (-line[i], sign * i))[:k]
        found = raw[r][raw[r] >= 0].tolist()
        assert found == sorted(best) and raw[r].tolist()[len(best) :] == [-1] * (k - len(best))
        for i, place in zip(raw[r].tolist(), out[r].tolist()):
            page = table[requests[r], shift + i // page_size] if i >= 0 else None
            assert place == (-1 if page is None else int(page) * page_size + i % page_size)
        assert sorted(i - int(offsets[r]) for i in ragged[r].tolist() if i >= 0) == sorted(best)
    plain = flashinfer.top_k_page_table_transform(x, table, lengths, k, requests, page_size=page_size)
    assert plain.shape == (rows, k) and (plain[2] == -1).all()


def test_logits_pipe() -> None:
    from girih.flashinfer.logits_processor import (
        LogitsPipe,
        MinP,
        Sample,
        Softmax,
        TaggedTensor,
        Temperature,
        TensorType,
        TopK,
        TopP,
    )

    torch.manual_seed(5)
    x = torch.randn(6, 90)
    steps = [Temperature(), Softmax(), TopK(), TopP(top_p=0.9), MinP(min_p=0.01), Sample()]

    def tokens(compile: bool, **kwargs: Any) -> list[int]:
        pipe = LogitsPipe(steps, compile=compile)
        assert pipe.initial_type is TensorType.LOGITS
        generator = torch.Generator(torch.get_default_device()).manual_seed(9)
        drawn: list[int] = pipe(x, temperature=0.7, top_k=20, generator=generator, **kwargs).tolist()
        return drawn

    assert tokens(True) == tokens(False)
    assert repr(LogitsPipe(steps)).endswith("calls=2)") and repr(LogitsPipe(steps, compile=False)).endswith("calls=6)")
    p = torch.softmax(x, -1)
    both = [
        LogitsPipe([TopP(), Sample()], compile=c)(p, top_p=0.5, generator=torch.Generator(torch.get_default_device()).manual_seed(1))
        for c in (True, False)
    ]
    assert torch.equal(*both)
    assert torch.equal(both[0], sampling.top_p_sampling_from_probs(p, 0.5, generator=torch.Generator(torch.get_default_device()).manual_seed(1)))
    joint = LogitsPipe([TopK(joint_topk_topp=True), TopP(), Sample()], input_type=TensorType.PROBS)
    q = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    found = frequencies(lambda i: joint(q, top_k=2, top_p=0.55, indices=i), 4, 2000)
    assert found.nonzero().squeeze(1).tolist() == [0, 1]
    temperatures = torch.rand(6) + 0.5
    want = sampling.softmax(x, temperatures)
    for compile in (True, False):
        pipe = LogitsPipe([Temperature(), Softmax()], compile=compile)
        torch.testing.assert_close(pipe(TaggedTensor.logits(x), temperature=temperatures), want)
    masked = LogitsPipe([TopK(top_k=3)], input_type=TensorType.LOGITS)(x)
    assert masked.isfinite().sum(-1).tolist() == [3] * 6
    for processors, match in (
        ([], "empty"),
        ([TopK()], "Cannot infer input type"),
        ([Sample(), Softmax()], "Cannot infer input type"),
        ([Softmax(), Softmax()], "Softmax can only be applied to LOGITS"),
        ([Softmax(), Sample(), TopP()], "follows Sample"),
    ):
        with pytest.raises(ValueError, match=match):
            LogitsPipe(processors)
    pipe = LogitsPipe([Softmax(), TopK(), Sample()])
    with pytest.raises(ValueError, match="'top_k' not provided for TopK"):
        pipe(x)
    with pytest.raises(ValueError, match="top_k must be a positive integer"):
        pipe(x, top_k=0)
    with pytest.raises(ValueError, match="no processor takes topk"):
        pipe(x, topk=3)
    with pytest.raises(ValueError, match="takes LOGITS, got PROBS"):
        pipe(TaggedTensor.probs(p), top_k=3)
    with pytest.raises(NotImplementedError, match="custom_fusion_rules"):
        pipe.compile([object()])
