"""Sampling and selection over a vocabulary: one call for the whole chain from logits (or probabilities) to a token, and
its parts.

Rules that all functions share:

- A row has 1 to 2**20 entries of float32, float16 or bfloat16, any strides.
- The order of a row: value descending, then index ascending. The first k of a row are exactly k, whatever the ties.
- NaN counts as -inf. An entry of -inf (of probabilities: one that is not > 0) has no mass and is never drawn. Entries
  of +inf share all mass equally.
- Rows are independent, and a row's result is the same bits on every device, SIMD target and number of threads: masses
  are summed as integers.
- A parameter of rows is a number, an array [rows], or an array of one entry for all rows.
- Outputs that are not given are made in the library of the first array; nothing is written before all arguments are
  checked. The values of arrays on a GPU are not: there, what is out of range counts as documented, and nothing faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from . import _girih
from ._girih import Context
from ._typing import ArrayLike, DTypeLike, StreamLike

__all__ = [
    "Sampled",
    "Speculated",
    "TopK",
    "chain_speculative_sample",
    "sample",
    "softmax",
    "top_k",
    "top_k_mask_logits",
    "top_k_renorm_probs",
    "top_p_renorm_probs",
]

#: A number for all rows, or an array with one a row.
RowFloat: TypeAlias = float | ArrayLike
RowInt: TypeAlias = int | ArrayLike
#: Tokens of each row as CSR (indptr, tokens): int32 or int64 [rows + 1] and int32 [n]; distinct within a row.
TokenLists: TypeAlias = tuple[ArrayLike, ArrayLike] | Sequence[ArrayLike]


class Sampled(NamedTuple):
    """What :func:`sample` returns; None for what was not asked for."""

    tokens: Any
    """int32 or int64 [rows]"""
    valid: Any = None
    """bool [rows]. False: the row had a NaN, or no token that could be drawn (then its token is 0, log-probabilities
    are NaN)."""
    logprobs: Any = None
    """float32 [rows], of the tokens"""
    top_tokens: Any = None
    """[rows, num_top]: the first of the order, -1 where no more tokens are above -inf"""
    top_logprobs: Any = None
    """float32 [rows, num_top]; NaN where there are no more, -inf for a token that filters drop (of "filtered")"""


class TopK(NamedTuple):
    """What :func:`top_k` returns."""

    values: Any
    """of the input's dtype [rows, k], or None"""
    indices: Any
    """int32 or int64 [rows, k]"""


class Speculated(NamedTuple):
    """What :func:`chain_speculative_sample` returns."""

    tokens: Any
    """int32 or int64 [batch, n + 1]: accepted drafts, then one more token, then -1"""
    accepted: Any
    """int32 or int64 [batch]: how many drafts were accepted; None where it was not wanted"""


def sample(
    input: ArrayLike,
    *,
    kind: Literal["logits", "probs"] = "logits",
    indices: ArrayLike | None = None,
    bias_tokens: TokenLists | None = None,
    bias: ArrayLike | None = None,
    history: TokenLists | None = None,
    history_counts: ArrayLike | None = None,
    repetition_penalty: RowFloat = 1.0,
    frequency_penalty: RowFloat = 0.0,
    presence_penalty: RowFloat = 0.0,
    allowed: ArrayLike | None = None,
    temperature: RowFloat = 1.0,
    top_k: RowInt = 0,
    top_p: RowFloat = 1.0,
    min_p: RowFloat = 0.0,
    order: Literal["top_k_first", "joint"] = "top_k_first",
    seed: RowInt = 0,
    offset: RowInt = 0,
    tokens: ArrayLike | None = None,
    token_dtype: DTypeLike | None = None,
    valid: bool | ArrayLike = False,
    logprobs: bool | ArrayLike = False,
    num_top: int = 0,
    top_tokens: ArrayLike | None = None,
    top_logprobs: ArrayLike | None = None,
    logprob_kind: Literal["processed", "filtered"] = "processed",
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Sampled:
    """Draws one token a row: penalties, bias, mask, temperature, filters, the draw and log-probabilities in one call.

    The chain, for row r with logits x::

        x_t += bias_t                                               for listed tokens
        x_t  = x_t > 0 ? x_t / repetition : x_t * repetition        for tokens of the history
        x_t  = x_t - frequency * count_t - presence                 where count_t > 0
        x_t  = -inf                                                 where the bit mask does not allow t
        w_t  = exp((x_t - max(x)) / temperature)                    temperature <= 1e-5: the argmax, and the chain ends
        keep the first k of the order                               top_k
        keep the shortest prefix with mass >= top_p                 of the first k ("top_k_first") or of all ("joint")
        keep w_t >= min_p * max(w)                                  min_p
        draw t with probability w_t / sum(w), over what is kept

    input: logits (or probabilities, which need not sum to 1) [n, vocab].
    kind: what input holds. Bias and penalties are for logits only; probabilities take temperature 1, or 0 for the
        argmax.
    indices: int32 or int64 [rows]: row r reads input row indices[r]. None: row r.
    bias_tokens, bias: a pair (indptr, tokens) and, beside the tokens, float32 [n] that is added. -inf forbids a token.
    history, history_counts: the distinct tokens of prompt and output as (indptr, tokens), and beside them int32 [n],
        how often each is in the output (0: in the prompt only). None: all 1.
    repetition_penalty: > 0. frequency_penalty, presence_penalty: finite.
    allowed: int32 [rows, ceil(vocab / 32)]: token t may be drawn where bit t % 32 of word t // 32 is set. None: all.
    temperature: >= 0.
    top_k: <= 0 or >= vocab: off. top_p: >= 1: off. min_p: <= 0: off. At least the first token passes.
    seed, offset: ints or int64 arrays of one entry: row r draws from (seed, offset, r), by Philox 4x32-10. An array
        [rows] of seeds: row r draws from (seed[r], offset, 0), so that a request draws the same wherever it stands.
        ``offset`` must grow by 1 a step.
    tokens: int32 or int64 [rows]; None: made, of token_dtype (None: int32).
    valid, logprobs: True to have them made and returned, or the arrays to write: uint8 or bool [rows], and float32
        [rows].
    num_top: up to 128: return the first tokens of each row and their log-probabilities, or write top_tokens (of tokens'
        dtype [rows, num_top]) and top_logprobs (float32 [rows, num_top]).
    logprob_kind: log-probabilities are of the distribution after penalties, bias, mask and temperature ("processed"),
        or of that and after filters, as drawn from ("filtered").

    Raises ValueError for shapes, dtypes, devices, values (those of arrays on the CPU) or overlaps that do not fit,
    before anything is written, and NotImplementedError for what probabilities cannot have.
    """
    return Sampled(
        *_girih.sample(
            input,
            kind,
            indices,
            bias_tokens,
            bias,
            history,
            history_counts,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            allowed,
            temperature,
            top_k,
            top_p,
            min_p,
            order,
            seed,
            offset,
            tokens,
            token_dtype,
            valid,
            logprobs,
            num_top,
            top_tokens,
            top_logprobs,
            logprob_kind,
            context,
            stream,
        )
    )


def softmax(
    logits: ArrayLike,
    temperature: RowFloat = 1.0,
    *,
    out: ArrayLike | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """``exp((logits - max) / temperature) / sum`` of every row, float32 [rows, vocab].

    Temperature 0 to 1e-5: 1 at the argmax, else 0. A row without mass becomes zeros. ``out`` may be ``logits`` where
    that is float32.
    """
    return _girih.softmax(logits, temperature, out, context, stream)


def top_p_renorm_probs(
    probs: ArrayLike,
    top_p: RowFloat,
    *,
    out: ArrayLike | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """``probs / (mass of the top-p prefix)`` inside the shortest prefix of the order with mass >= top_p, 0 outside;
    float32 [rows, vocab].

    top_p >= 1: a copy, bit for bit. ``out`` may be ``probs`` where that is float32.
    """
    return _girih.top_p_renorm_probs(probs, top_p, out, context, stream)


def top_k_renorm_probs(
    probs: ArrayLike,
    top_k: RowInt,
    *,
    out: ArrayLike | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """``probs / (mass of the first k)`` for the first k of the order, 0 elsewhere; float32 [rows, vocab].

    top_k <= 0 or >= vocab: a copy. ``out`` may be ``probs`` where that is float32.
    """
    return _girih.top_k_renorm_probs(probs, top_k, out, context, stream)


def top_k_mask_logits(
    logits: ArrayLike,
    top_k: RowInt,
    *,
    out: ArrayLike | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Any:
    """The logits of the first k of each row, -inf elsewhere; of the logits' dtype [rows, vocab]. ``out`` may be
    ``logits``.

    top_k <= 0 or >= vocab: a copy.
    """
    return _girih.top_k_mask_logits(logits, top_k, out, context, stream)


def top_k(
    input: ArrayLike,
    k: int,
    *,
    sorted: bool = False,
    row_starts: ArrayLike | None = None,
    row_lengths: ArrayLike | None = None,
    page_table: ArrayLike | None = None,
    row_requests: ArrayLike | None = None,
    page_size: int = 1,
    index_offsets: ArrayLike | None = None,
    values: bool | ArrayLike = True,
    indices: ArrayLike | None = None,
    index_dtype: DTypeLike | None = None,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> TopK:
    """The first k entries of each row; NaN comes last, after -inf. A row of fewer entries is filled up with index -1,
    value -inf.

    input: [rows, vocab].
    k: 1 to 4096.
    sorted: in the order; else by index ascending.
    row_starts, row_lengths: int32 [rows]: a row's first place in input, from which indices count (None: 0), and how
        many entries it has (None: all).
    page_table, row_requests, page_size: int32 [requests, pages] and int32 [rows] (None: row r is request r): index i is
        returned as
        ``page_table[request, i // page_size] * page_size + i % page_size``.
    index_offsets: int32 [rows], added to a row's indices; not with page_table.
    values: False: not wanted; or the array to write, of input's dtype [rows, k].
    indices: int32 or int64 [rows, k]; None: made, of index_dtype (None: int32).

    Raises ValueError for shapes, dtypes, devices, values or overlaps that do not fit, before anything is written.
    """
    return TopK(
        *_girih.top_k(
            input,
            k,
            sorted,
            row_starts,
            row_lengths,
            page_table,
            row_requests,
            page_size,
            index_offsets,
            values,
            indices,
            index_dtype,
            context,
            stream,
        )
    )


def chain_speculative_sample(
    target_probs: ArrayLike,
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | None = None,
    *,
    draft_lengths: ArrayLike | None = None,
    greedy: bool = False,
    seed: RowInt = 0,
    offset: RowInt = 0,
    tokens: ArrayLike | None = None,
    token_dtype: DTypeLike | None = None,
    accepted: bool | ArrayLike = True,
    context: Context | None = None,
    stream: StreamLike | None = None,
) -> Speculated:
    """Chain speculative sampling (Leviathan et al., arXiv 2211.17192): emitted tokens are distributed exactly as the
    target.

    Draft x at place i is accepted with probability ``min(1, target[x] / draft[x])``; the first that is not is replaced
    by a draw from
    ``max(target - draft, 0)``, renormalised; after the last accepted one a token is drawn from the target itself. Where
    the residual has no mass, the target is drawn from; where that has none, the token is 0.

    target_probs: [batch, n + 1, vocab].
    draft_tokens: int32 [batch, n].
    draft_probs: [batch, n, vocab]; None: the draft is certain of its tokens (greedy drafts, n-gram look-up).
    draft_lengths: int32 [batch], 0 to n; None: n.
    greedy: accept while the draft is the target's argmax, and emit that; no random numbers, no draft_probs.
    seed, offset: as :func:`sample`; rows are requests.
    tokens: int32 or int64 [batch, n + 1]; None: made, of token_dtype (None: int32).
    accepted: False: not wanted; or the array to write, int32 or int64 [batch].

    Raises ValueError for shapes, dtypes, devices, values or overlaps that do not fit, before anything is written.
    """
    return Speculated(
        *_girih.chain_speculative_sample(
            target_probs,
            draft_tokens,
            draft_probs,
            draft_lengths,
            greedy,
            seed,
            offset,
            tokens,
            token_dtype,
            accepted,
            context,
            stream,
        )
    )
