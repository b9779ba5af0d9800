"""The custom ops of girih.torch_ops over a vocabulary beside the draw itself: filters by themselves, and the
verification of drafts.
"""

from __future__ import annotations

import torch
from torch import Tensor

import girih

from ._torch_op import op

__all__ = ["chain_speculative_sample", "top_k_mask_logits", "top_k_renorm_probs", "top_p_renorm_probs"]


def _rows(value: Tensor | float, like: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter of rows as a tensor."""
    if isinstance(value, Tensor):
        return value
    return torch.full((like.shape[0],), value, dtype=dtype, device=like.device)


def _like_f32(x: Tensor, _: Tensor) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.float32)


@op("top_p_renorm_probs(Tensor probs, Tensor top_p) -> Tensor", _like_f32)
def _top_p_renorm_probs(probs: Tensor, top_p: Tensor) -> Tensor:
    result: Tensor = girih.top_p_renorm_probs(probs, top_p)
    return result


def top_p_renorm_probs(probs: Tensor, top_p: Tensor | float) -> Tensor:
    """girih.top_p_renorm_probs as an op: f32 [rows, vocab]; top_p is a number or f32 [rows]."""
    result: Tensor = torch.ops.girih.top_p_renorm_probs(probs, _rows(top_p, probs, torch.float32))
    return result


@op("top_k_renorm_probs(Tensor probs, Tensor top_k) -> Tensor", _like_f32)
def _top_k_renorm_probs(probs: Tensor, top_k: Tensor) -> Tensor:
    result: Tensor = girih.top_k_renorm_probs(probs, top_k)
    return result


def top_k_renorm_probs(probs: Tensor, top_k: Tensor | int) -> Tensor:
    """girih.top_k_renorm_probs as an op: f32 [rows, vocab]; top_k is a number, or i32 or i64 [rows]."""
    result: Tensor = torch.ops.girih.top_k_renorm_probs(probs, _rows(top_k, probs, torch.int32))
    return result


@op("top_k_mask_logits(Tensor logits, Tensor top_k) -> Tensor", lambda logits, _: logits.new_empty(logits.shape))
def _top_k_mask_logits(logits: Tensor, top_k: Tensor) -> Tensor:
    result: Tensor = girih.top_k_mask_logits(logits, top_k)
    return result


def top_k_mask_logits(logits: Tensor, top_k: Tensor | int) -> Tensor:
    """girih.top_k_mask_logits as an op: as logits, -inf outside of the first k of each row."""
    result: Tensor = torch.ops.girih.top_k_mask_logits(logits, _rows(top_k, logits, torch.int32))
    return result


@op(
    "chain_speculative_sample(Tensor target_probs, Tensor draft_tokens, Tensor? draft_probs, Tensor? draft_lengths,"
    " bool greedy, Tensor seed, Tensor offset) -> (Tensor, Tensor)",
    lambda target, drafts, *_: (
        drafts.new_empty((drafts.shape[0], drafts.shape[1] + 1), dtype=torch.int32),
        drafts.new_empty((drafts.shape[0],), dtype=torch.int32),
    ),
)
def _chain_speculative_sample(
    target_probs: Tensor,
    draft_tokens: Tensor,
    draft_probs: Tensor | None,
    draft_lengths: Tensor | None,
    greedy: bool,
    seed: Tensor,
    offset: Tensor,
) -> tuple[Tensor, Tensor]:
    result = girih.chain_speculative_sample(
        target_probs,
        draft_tokens,
        draft_probs,
        draft_lengths=draft_lengths,
        greedy=greedy,
        seed=seed,
        offset=offset,
    )
    return result.tokens, result.accepted


def chain_speculative_sample(
    target_probs: Tensor,
    draft_tokens: Tensor,
    draft_probs: Tensor | None = None,
    *,
    seed: Tensor | int,
    offset: Tensor | int,
    draft_lengths: Tensor | None = None,
    greedy: bool = False,
) -> tuple[Tensor, Tensor]:
    """girih.chain_speculative_sample as an op: (tokens i32 [batch, n + 1], accepted i32 [batch]).

    target_probs [batch, n + 1, vocab], draft_tokens i32 [batch, n], draft_probs [batch, n, vocab] or None, draft_lengths
    i32 [batch] or None; seed and offset as for sample.
    """

    def number(value: Tensor | int) -> Tensor:
        if isinstance(value, Tensor):
            return value
        return torch.full((1,), value, dtype=torch.int64, device=target_probs.device)

    result: tuple[Tensor, Tensor] = torch.ops.girih.chain_speculative_sample(
        target_probs, draft_tokens, draft_probs, draft_lengths, greedy, number(seed), number(offset)
    )
    return result
