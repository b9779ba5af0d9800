"""What the wrapper classes share: buffers that callers hand over, the arguments that are hints, and one run() over a planner.

Hints change how other kernels are chosen and nothing of the result, so they have no meaning here; docs/flashinfer.md lists them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ._kv import NO_SCALES, NO_STORE_SCALES, Scales, paged_store, run_form
from ._planner import Batch, IndexArray, Limits, Planner, host_array
from ._problem import _FP8, Form, Hooks, Problem, compute_query, refuse, torch_dtype

__all__ = ["AttentionWrapper", "older_names"]

#: Backends of FlashInfer that compute what its own default computes.
BACKENDS = tuple(
    """auto autotune fa2 fa3 trtllm-gen cudnn cutlass cute-dsl cute-dsl-prims cute-dsl-monolithic cute-dsl-modular cute-dsl-rubin-mtp
    cutile xqa fmha_v2 cake cake_cute vsa_sm100_blk128 vsa_sm100_blk64 vsa_sm120_blk64""".split()
)

_F = TypeVar("_F", bound=Callable[..., Any])


def older_names(**names: str) -> Callable[[_F], _F]:
    """Lets a function take arguments by the names of older releases: older_names(workspace_buffer="float_workspace_buffer")."""

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old, new in names.items():
                if old in kwargs:
                    if new in kwargs:
                        raise TypeError(f"{function.__qualname__}() got {old}, the older name of {new}, beside it")
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def check_layout(kv_layout: str) -> str:
    if kv_layout not in ("NHD", "HND"):
        raise KeyError(f"Invalid kv_layout {kv_layout}; must be NHD or HND")
    return kv_layout


def check_backend(backend: str) -> str:
    if backend not in BACKENDS:
        raise ValueError(
            f"backend={backend!r}; must be one of {', '.join(BACKENDS)} (a hint: Girih has its own kernels)"
        )
    return backend


class AttentionWrapper:
    """Base of the wrappers: workspace buffers and a planner."""

    #: FlashInfer's names of this wrapper, for messages.
    _name = "wrapper"

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        backend: str = "auto",
    ) -> None:
        check_backend(backend)
        self._kv_layout = check_layout(kv_layout)
        self._float_workspace_buffer = float_workspace_buffer
        self._int_workspace_buffer: torch.Tensor | None = None
        self.device = float_workspace_buffer.device
        self._use_cuda_graph = bool(use_cuda_graph)
        self._backend = backend
        self._planner = Planner(self.device, frozen=self._use_cuda_graph)
        self._hooks: Hooks | None = None
        self._kv_indices: torch.Tensor | None = None
        self._use_token_head_sf = False
        self._plan_params: dict[str, Any] = {}  #: run-time parameters that came with the plan, such as masks
        self._run_params: dict[str, Any] = {}  #: those of the last run's extra arguments

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether plans keep their addresses, so that a captured run() may be replayed after a new plan()."""
        return self._use_cuda_graph

    @property
    def _plan_info(self) -> Any:
        return self._planner.plan_info

    def reset_workspace_buffer(self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor) -> None:
        """Takes other buffers. They must be on the wrapper's device; Girih's schedules hold their own workspace and leave these unused."""
        for name, buffer in (
            ("float_workspace_buffer", float_workspace_buffer),
            ("int_workspace_buffer", int_workspace_buffer),
        ):
            if buffer.device != self.device:
                raise ValueError(f"{name} is on {buffer.device}; must be on {self.device} as the wrapper")
        self._float_workspace_buffer = float_workspace_buffer
        self._int_workspace_buffer = int_workspace_buffer

    def end_forward(self) -> None:
        """Does nothing: a plan is replaced by the next one (kept from older releases)."""

    # ------------------------------------------------------------------------------------------------ for subclasses

    def _on_device(self, indices: torch.Tensor, non_blocking: bool = True) -> torch.Tensor:
        if indices.dtype != torch.int32 or indices.device != self.device:
            indices = indices.to(self.device, torch.int32, non_blocking=non_blocking)
        return indices if indices.is_contiguous() else indices.contiguous()

    def _final_problem(self, problem: Problem) -> Problem:
        """The problem that plan() plans: subclasses check it against what they were made for, and change it."""
        return problem

    def _adopted(self, problem: Problem) -> Problem:
        """Makes `problem` the planned one, with the batch as it was planned."""
        planner = self._planner
        if problem != planner.problem and planner.batch is not None:
            planner.plan(problem, planner.batch)
        return problem

    def _take_jit_arguments(self, args: tuple[Any, ...], sinks: torch.Tensor | None) -> torch.Tensor | None:
        """Keeps the arguments of a variant given as text for the run; returns its sinks."""
        from ._jit_variant import run_arguments

        assert self._hooks is not None
        self._run_params, own_sinks = run_arguments(self._hooks, args, self._name)
        if own_sinks is not None and sinks is not None:
            raise TypeError(f"{self._name}.run(): sinks are given both as an argument of the variant and as sinks=")
        return sinks if own_sinks is None else own_sinks

    def _query(self, q: torch.Tensor, problem: Problem) -> torch.Tensor:
        """A query in the dtype that was planned: one-byte queries become 16-bit numbers of equal value."""
        if q.dtype != problem.q_dtype:
            raise ValueError(
                f"The dtype of q {q.dtype} does not match the q_data_type {problem.q_dtype} specified in plan function."
            )
        return compute_query(q, problem.o_dtype)

    def _compute(
        self,
        q: torch.Tensor,
        kv: Any,
        form: Form,
        params: dict[str, Any] | None,
        *,
        kv_indices: torch.Tensor | None = None,
        problem: Problem | None = None,
        q_rope: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
    ) -> Any:
        """Runs the planned batch: out, or (out, lse) where the form has an LSE."""
        attention = self._planner.ready(form, problem)
        if self._plan_params or self._run_params:
            params = {**self._plan_params, **self._run_params, **(params or {})}
        return attention.run(q, kv, kv_indices=kv_indices, q_rope=q_rope, out=out, lse=lse, params=params)


def check_cache_dtype(cache: Any, problem: Problem) -> None:
    k = cache[0] if isinstance(cache, (tuple, list)) else cache
    if k.dtype != problem.kv_dtype:
        raise ValueError(
            f"The dtype of k {k.dtype} does not match the kv_data_type {problem.kv_dtype} specified in plan function."
        )


def lse_of(kind: str) -> str:
    """A form's LSE for lse_base."""
    if kind == "log2":
        return "base2"
    if kind == "ln":
        return "natural"
    raise ValueError(f"lse_base={kind!r}; must be 'log2' or 'ln'")


def fp8_scales(args: tuple[Any, ...], q: torch.Tensor, name: str) -> Scales:
    """The three positional scales that FP8 queries bring."""
    if not args:
        return NO_SCALES
    if len(args) == 3 and q.dtype in _FP8:
        return Scales(*args)
    raise TypeError(
        f"{name}.run() got {len(args)} positional arguments after the cache; these are the tensors and scalars of jit_args, or "
        "scale_q, scale_k, scale_v with an FP8 query"
    )


def with_scales(scales: Scales, q_scale: Any, k_scale: Any, v_scale: Any, stored: Any) -> Scales:
    """Scales from keyword arguments, beside positional ones (which FlashInfer would multiply: here one of the two)."""
    if q_scale is None and k_scale is None and v_scale is None and stored is None:
        return scales
    if scales is not NO_SCALES:
        raise TypeError(
            "run(): scales are given both as positional tensors and as q_scale, k_scale, v_scale or kv_cache_sf; give one form"
        )
    return Scales(q_scale, k_scale, v_scale, stored)


__all__ += [
    "BACKENDS",
    "NO_SCALES",
    "NO_STORE_SCALES",
    "Batch",
    "Form",
    "IndexArray",
    "Limits",
    "Problem",
    "check_backend",
    "check_cache_dtype",
    "check_layout",
    "fp8_scales",
    "host_array",
    "lse_of",
    "paged_store",
    "refuse",
    "run_form",
    "torch_dtype",
    "with_scales",
]
