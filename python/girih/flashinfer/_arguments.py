"""Checks that several modules of the drop-in make of their arguments."""

from __future__ import annotations

import torch

#: Accepted everywhere and without effect, since results do not depend on them: FlashInfer's programmatic dependent launch, its choice among
#: back ends where all compute the same, and its switches for determinism (Girih is deterministic).
HINTS = ("enable_pdl", "backend", "deterministic", "is_deterministic", "dsa_graph_safe", "top_k_max")


def refuse(function: str, argument: str, value: object, instead: str) -> NotImplementedError:
    """The error for an argument that Girih cannot honour."""
    return NotImplementedError(f"flashinfer.{function}: {argument}={value!r} is not implemented by Girih: {instead}")


def one_of(function: str, argument: str, value: str, values: tuple[str, ...]) -> None:
    """Raises ValueError unless `value` is one of FlashInfer's own values of a hint."""
    if value not in values:
        raise ValueError(f"flashinfer.{function}: {argument}={value!r}; must be one of {values}")


def scale_tensor(scale: float | torch.Tensor, device: torch.device) -> torch.Tensor:
    """A quantisation scale as f32 [1] on `device`."""
    if isinstance(scale, torch.Tensor):
        if scale.numel() != 1:
            raise ValueError(f"scale has {scale.numel()} elements; must be one number or a tensor of one")
        return scale.reshape(1).to(device=device, dtype=torch.float32)
    return torch.tensor([float(scale)], dtype=torch.float32, device=device)
