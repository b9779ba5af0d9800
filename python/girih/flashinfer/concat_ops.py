"""flashinfer.concat_ops: the key of multi-head latent attention from its two parts."""

from __future__ import annotations

import torch

from ._arguments import one_of


def concat_mla_k(k: torch.Tensor, k_nope: torch.Tensor, k_rope: torch.Tensor, *, backend: str = "default") -> None:
    """k[:, :, :n] = k_nope [tokens, heads, n], k[:, :, n:] = k_rope [tokens, 1, r] for every head. Copies by PyTorch."""
    one_of("concat_ops.concat_mla_k", "backend", backend, ("default", "cake"))
    nope = k_nope.shape[-1]
    if k.shape != (*k_nope.shape[:-1], nope + k_rope.shape[-1]):
        raise ValueError(f"k.shape={tuple(k.shape)}; must be that of k_nope and k_rope side by side")
    k[..., :nope].copy_(k_nope)
    k[..., nope:].copy_(k_rope.expand(*k.shape[:-1], -1))
