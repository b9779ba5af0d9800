"""flashinfer.sampling: drawing tokens from logits or probabilities, and the filters by themselves.

Random numbers. FlashInfer keys Philox with the state of a CUDA generator; so is Girih's (seed and offset of the generator, which moves on
by 4). A CPU generator gives a fresh 64-bit seed a call. `seed` and `offset` given replace both. The numbers drawn are Girih's own: the same
seed gives other tokens than FlashInfer's, of the same distribution.

Forms of releases before 0.2 are honoured: with `uniform_samples` (second argument, or by keyword) the numbers given seed the draw of their
row, and the filtered functions return (samples, success), success being whether a token could be drawn.
"""

from __future__ import annotations

import math
from functools import wraps
from numbers import Real
from typing import Any, Callable, Literal, NamedTuple, TypeAlias, TypeVar, cast

import torch

import girih

Threshold: TypeAlias = "torch.Tensor | float | int"
_F = TypeVar("_F", bound=Callable[..., Any])

#: Multipliers of splitmix64 (Steele et al. 2014), as signed numbers.
_GAMMA, _MIX = -0x61C8864680B583EB, (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)


# ---- random numbers


def get_seed_and_offset(
    increment: int,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> tuple[int, int]:
    """Seed and offset for a call that takes up to `increment` numbers a row; the generator moves on, so that the next call draws others."""
    if generator is None:
        on_cuda = device is not None and torch.device(device).type == "cuda"
        index = torch.device(device).index if on_cuda and device is not None else None
        generator = (
            torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
            if on_cuda
            else torch.default_generator
        )
    if generator.device.type == "cuda":
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + (increment + 3) // 4 * 4)
        return seed, offset
    return int(torch.randint(-(2**63), 2**63 - 1, (1,), generator=generator, device="cpu")), 0


class _Random(NamedTuple):
    seed: int | torch.Tensor
    offset: int | torch.Tensor


def _signed(x: int | torch.Tensor) -> int | torch.Tensor:
    """64 bits as int64."""
    if isinstance(x, torch.Tensor):
        return x.view(torch.int64) if x.dtype == torch.uint64 else x
    return (x + 2**63) % 2**64 - 2**63


def _random(
    rows: int,
    device: torch.device,
    generator: torch.Generator | None,
    seed: int | torch.Tensor | None,
    offset: int | torch.Tensor | None,
) -> _Random:
    if seed is None or offset is None:
        drawn = get_seed_and_offset(4, generator, device)
        if isinstance(seed, torch.Tensor) or isinstance(offset, torch.Tensor):
            raise ValueError("seed and offset must both be tensors or both be scalars")
        seed = drawn[0] if seed is None else seed
        offset = drawn[1] if offset is None else offset
    if isinstance(seed, torch.Tensor) != isinstance(offset, torch.Tensor):
        raise ValueError("seed and offset must both be tensors or both be scalars")
    for name, x in (("seed", seed), ("offset", offset)):
        if not isinstance(x, torch.Tensor):
            continue
        if x.device != device:
            raise ValueError(f"{name} tensor must be on {device}")
        if x.dtype not in (torch.int64, torch.uint64):
            raise ValueError(f"{name} tensor must be int64/uint64")
        if x.ndim != 1:
            raise ValueError(f"{name} tensor must be 1D")
        if x.shape[0] not in (1, rows):
            raise ValueError(f"{name} tensor length must be 1 or {rows}")
    return _Random(_signed(seed), _signed(offset))


def _seed_of_uniform(uniform_samples: torch.Tensor) -> _Random:
    """A seed for each row out of the bits of its numbers, [rows] or [rounds, rows]."""
    bits = uniform_samples.float().reshape(-1, uniform_samples.shape[-1]).view(torch.int32).to(torch.int64)
    seed = (bits[0] if bits.shape[0] == 1 else bits[0] ^ (bits[1] << 32)).contiguous()
    return _Random(seed, torch.zeros_like(seed))


def _is_uniform(x: Any, ndim: int) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim == ndim


def _older_form(threshold_names: tuple[str, ...]) -> Callable[[_F], _F]:
    """Lets a function be called as (probs, uniform_samples, *thresholds, deterministic, check_nan) too."""

    def decorate(function: _F) -> _F:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            uniform = kwargs.pop("uniform_samples", None)
            if uniform is None and len(args) > 1:
                given = len(args) > 2 or any(name in kwargs for name in threshold_names)
                if _is_uniform(args[1], 2 if threshold_names else 1) and (given or not threshold_names):
                    uniform, args = args[1], (args[0], *args[2:])
            if uniform is None:
                return function(*args, **kwargs)
            what = "logits" if function.__name__.endswith("_from_logits") else "probs"
            named = (*threshold_names, *(("filter_apply_order",) if len(threshold_names) > 1 else ()))
            names = (what, *named, "deterministic", "check_nan")
            if len(args) > len(names) or kwargs.keys() & {*names[: len(args)]}:
                raise TypeError(f"{function.__name__}() takes ({', '.join(names)}) beside uniform_samples, each once")
            kwargs.update(zip(names, args))
            if any(kwargs.get(name) is not None for name in ("generator", "seed", "offset")):
                raise ValueError("uniform_samples: give it or generator, seed and offset, not both")
            drawn = _seed_of_uniform(uniform)
            kwargs.update(seed=drawn.seed, offset=drawn.offset)
            if not threshold_names:
                return function(**kwargs)
            if what == "probs":
                return function(**kwargs, return_valid=True)
            tokens = function(**kwargs)
            return tokens, _drawable(kwargs["logits"], kwargs.get("indices"))

        return call  # type: ignore[return-value]

    return decorate


# ---- arguments


def _check_nan(x: torch.Tensor, what: str, wanted: bool) -> None:
    if wanted and bool(torch.isnan(x).any()):
        raise ValueError(f"Input {what} contains NaN.")


def _threshold(name: str, value: Threshold, rows: int, indices: torch.Tensor | None = None) -> Any:
    """A number, or a tensor of one for each row of the input, brought into the order of `indices`."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.ndim == 0:
        raise ValueError(
            f"Expected a 1D tensor of shape (batch_size,) or scalar for {name}, got a 0-dimensional tensor"
        )
    if value.ndim != 1:
        raise ValueError(f"Expected a 1D tensor or scalar for {name}, got a {value.ndim}D tensor")
    if value.shape[0] != rows:
        raise ValueError(
            f"Sampling parameter tensor batch size mismatch: {name} has {value.shape[0]} values for {rows} rows"
        )
    value = value.to(torch.int64 if name == "top_k" else torch.float32)
    return value if indices is None else value[indices.long()]


def _draw(
    kind: Literal["logits", "probs"],
    x: torch.Tensor,
    indices: torch.Tensor | None,
    generator: torch.Generator | None,
    seed: int | torch.Tensor | None,
    offset: int | torch.Tensor | None,
    return_valid: bool,
    order: str = "top_k_first",
    **thresholds: Threshold,
) -> Any:
    if order not in ("top_k_first", "joint"):
        raise ValueError(f"Invalid filter_apply_order: {order}")
    if x.ndim != 2:
        raise ValueError(f"{kind}.shape={tuple(x.shape)}; must be [batch_size, vocab_size]")
    if indices is not None and indices.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"indices.dtype={indices.dtype}; must be int32 or int64")
    rows = x.shape[0] if indices is None else indices.shape[0]
    random = _random(rows, x.device, generator, seed, offset)
    filters = {name: _threshold(name, value, x.shape[0], indices) for name, value in thresholds.items()}
    tokens = torch.empty(rows, dtype=torch.int32 if indices is None else indices.dtype, device=x.device)
    valid = torch.empty(rows, dtype=torch.bool, device=x.device) if return_valid else None
    girih.sample(
        x,
        kind=kind,
        indices=indices,
        order=cast('Literal["top_k_first", "joint"]', order),
        seed=random.seed,
        offset=random.offset,
        tokens=tokens,
        valid=False if valid is None else valid,
        **filters,
    )
    return (tokens, valid) if return_valid else tokens


# ---- functions


def softmax(
    logits: torch.Tensor, temperature: torch.Tensor | float | None = None, enable_pdl: bool | None = None
) -> torch.Tensor:
    """softmax(logits / temperature), f32 [batch_size, vocab_size]; a temperature of up to 1e-5 gives 1 to the largest."""
    if isinstance(temperature, torch.Tensor):
        if temperature.ndim != 1:
            raise ValueError(f"temperature tensor must be 1D, got shape {tuple(temperature.shape)}")
        if temperature.shape[0] != logits.shape[0]:
            raise ValueError(
                f"temperature tensor length must equal logits.size(0) ({logits.shape[0]}), got {temperature.shape[0]}"
            )
        if temperature.device != logits.device:
            raise ValueError(f"temperature tensor must be on {logits.device}, got {temperature.device}")
        if not temperature.is_floating_point():
            raise ValueError(f"temperature tensor must be of a floating-point dtype, got {temperature.dtype}")
        temperature = temperature.float()
    elif temperature is not None and (isinstance(temperature, bool) or not isinstance(temperature, Real)):
        raise TypeError("temperature must be None, a real scalar, or a 1D floating-point tensor")
    return cast("torch.Tensor", girih.softmax(logits, temperature=1.0 if temperature is None else temperature))


@_older_form(())
def sampling_from_probs(
    probs: torch.Tensor,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """A token of each row of probs [batch_size, vocab_size], or of the rows that `indices` lists; int32, or indices' type."""
    _check_nan(probs, "probs", check_nan)
    return cast(
        "torch.Tensor | tuple[torch.Tensor, torch.Tensor]",
        _draw("probs", probs, indices, generator, seed, offset, return_valid),
    )


def _drawable(logits: torch.Tensor, indices: torch.Tensor | None) -> torch.Tensor:
    """Of each row, whether a token can be drawn from it."""
    valid = ~torch.isnan(logits).any(dim=-1) & (logits > -math.inf).any(dim=-1)
    return valid if indices is None else valid[indices.long()]


def sampling_from_logits(
    logits: torch.Tensor,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """sampling_from_probs(softmax(logits)) in one pass."""
    _check_nan(logits, "logits", check_nan)
    return cast("torch.Tensor", _draw("logits", logits, indices, generator, seed, offset, False))


@_older_form(("top_p",))
def top_p_sampling_from_probs(
    probs: torch.Tensor,
    top_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """A token out of the shortest list of likeliest ones with mass >= top_p (a number, or one for each row of probs)."""
    _check_nan(probs, "probs", check_nan)
    return cast(
        "torch.Tensor | tuple[torch.Tensor, torch.Tensor]",
        _draw("probs", probs, indices, generator, seed, offset, return_valid, top_p=top_p),
    )


@_older_form(("top_k",))
def top_k_sampling_from_probs(
    probs: torch.Tensor,
    top_k: torch.Tensor | int,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """A token out of the top_k likeliest: exactly k, the lowest of equals."""
    _check_nan(probs, "probs", check_nan)
    return cast(
        "torch.Tensor | tuple[torch.Tensor, torch.Tensor]",
        _draw("probs", probs, indices, generator, seed, offset, return_valid, top_k=top_k),
    )


@_older_form(("min_p",))
def min_p_sampling_from_probs(
    probs: torch.Tensor,
    min_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """A token whose probability is at least min_p times the largest."""
    _check_nan(probs, "probs", check_nan)
    return cast(
        "torch.Tensor | tuple[torch.Tensor, torch.Tensor]",
        _draw("probs", probs, indices, generator, seed, offset, return_valid, min_p=min_p),
    )


@_older_form(("top_k", "top_p"))
def top_k_top_p_sampling_from_logits(
    logits: torch.Tensor,
    top_k: torch.Tensor | int,
    top_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    filter_apply_order: str = "top_k_first",
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    top_k_max: int | None = None,
) -> torch.Tensor:
    """A token that passes both filters: top-p over what top-k leaves ("top_k_first"), or both over the whole row ("joint")."""
    _check_nan(logits, "logits", check_nan)
    return cast(
        "torch.Tensor",
        _draw("logits", logits, indices, generator, seed, offset, False, filter_apply_order, top_k=top_k, top_p=top_p),
    )


@_older_form(("top_k", "top_p"))
def top_k_top_p_sampling_from_probs(
    probs: torch.Tensor,
    top_k: torch.Tensor | int,
    top_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    filter_apply_order: str = "top_k_first",
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
    top_k_max: int | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """top_k_top_p_sampling_from_logits() of probabilities."""
    _check_nan(probs, "probs", check_nan)
    return cast(
        "torch.Tensor | tuple[torch.Tensor, torch.Tensor]",
        _draw(
            "probs", probs, indices, generator, seed, offset, return_valid, filter_apply_order, top_k=top_k, top_p=top_p
        ),
    )


def top_p_renorm_probs(
    probs: torch.Tensor, top_p: torch.Tensor | float, is_deterministic: bool = False
) -> torch.Tensor:
    """f32: 0 outside of the top-p list of each row, inside it divided by its mass."""
    return cast("torch.Tensor", girih.top_p_renorm_probs(probs, _threshold("top_p", top_p, probs.shape[0])))


def top_k_renorm_probs(probs: torch.Tensor, top_k: torch.Tensor | int, is_deterministic: bool = False) -> torch.Tensor:
    """The same of the top_k likeliest, of probs' type."""
    return cast(
        "torch.Tensor", girih.top_k_renorm_probs(probs, _threshold("top_k", top_k, probs.shape[0])).to(probs.dtype)
    )


def top_k_mask_logits(logits: torch.Tensor, top_k: torch.Tensor | int) -> torch.Tensor:
    """-inf outside of the top_k largest of each row: exactly k stay, the lowest of equals; of logits' type."""
    return cast("torch.Tensor", girih.top_k_mask_logits(logits, _threshold("top_k", top_k, logits.shape[0])))


top_p_renorm_prob = top_p_renorm_probs
top_k_renorm_prob = top_k_renorm_probs


# ---- speculative decoding


def _uniform(random: _Random, rows: int, count: int, device: torch.device) -> torch.Tensor:
    """f32 [rows, count] in [0, 1), a hash of seed, offset and place; for counts that go along, not for tokens."""
    place = torch.arange(rows * count, device=device).reshape(rows, count)
    seed, offset = (
        x.reshape(-1, 1) if isinstance(x, torch.Tensor) else torch.full((1, 1), x, device=device) for x in random
    )
    x = (place + 1) * _GAMMA + seed + offset * _MIX[0]
    for shift, factor in ((30, _MIX[0]), (27, _MIX[1])):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    x = x ^ ((x >> 31) & ((1 << 33) - 1))
    return ((x >> 40) & ((1 << 24) - 1)).to(torch.float32) * 2.0**-24


def _speculative_older_form(function: _F) -> _F:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        uniform = kwargs.pop("uniform_samples", None)
        if uniform is None and len(args) > 3 and _is_uniform(args[2], 2):
            uniform, args = args[2], (*args[:2], *args[3:])
        if uniform is None:
            return function(*args, **kwargs)
        drawn = _seed_of_uniform(uniform.transpose(0, 1))
        return function(*args, **kwargs, seed=drawn.seed, offset=drawn.offset)

    return call  # type: ignore[return-value]


@_speculative_older_form
def chain_speculative_sampling(
    draft_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_probs: torch.Tensor,
    maybe_output_accepted_token_num: torch.Tensor | None = None,
    maybe_output_emitted_draft_token_num: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Accepts a prefix of draft_token_ids [batch_size, n] and draws one token more: ([batch_size, n + 1], accepted, emitted).

    `emitted` is how many drafts the chain accepts; `accepted` counts besides those after the first rejection that would be accepted each by
    itself. Both are added to the counters given (int32 [batch_size]), which are then returned.
    """
    rows, count = draft_token_ids.shape
    device = target_probs.device
    random = _random(rows, device, generator, seed, offset)
    # The library's tokens are int32, which FlashInfer's callers do not always hold.
    drafts = draft_token_ids.to(torch.int32)
    tokens = torch.empty(rows, count + 1, dtype=draft_token_ids.dtype, device=device)
    chain = torch.empty(rows, dtype=torch.int32, device=device)
    girih.chain_speculative_sample(
        target_probs, drafts, draft_probs, seed=random.seed, offset=random.offset, tokens=tokens, accepted=chain
    )
    at = draft_token_ids.long().unsqueeze(-1)
    target = target_probs[:, :count].gather(-1, at).squeeze(-1)
    draft = draft_probs.gather(-1, at).squeeze(-1)
    alone = _uniform(random, rows, count, device) * draft < target
    after = torch.arange(count, device=device) > chain.unsqueeze(-1)
    accepted = chain + (alone & after).sum(dim=-1, dtype=torch.int32)
    results = []
    for counter, new in (
        (maybe_output_accepted_token_num, accepted),
        (maybe_output_emitted_draft_token_num, chain),
    ):
        results.append(new if counter is None else counter.add_(new))
    return tokens, results[0], results[1]
