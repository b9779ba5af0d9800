"""Girih: attention for LLM inference over any KV-cache layout, on CPUs and NVIDIA GPUs."""

from ._context import default_context
from ._girih import Context, CpuInfo, __version__, available_cpu_targets, cpu_info

__all__ = [
    "Context",
    "CpuInfo",
    "__version__",
    "available_cpu_targets",
    "cpu_info",
    "default_context",
]
