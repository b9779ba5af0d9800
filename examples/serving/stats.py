"""Counters and recent times of the engine, for its web page."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

WINDOW_SECONDS = 3.0


@dataclass(frozen=True)
class Step:
    at: float
    seconds: float
    plan_seconds: float  # scheduling and planning, of `seconds`
    prompt_tokens: int
    output_tokens: int
    num_requests: int
    num_items: int  # work items of the attention plan
    num_segments: int


def quantile(values: Sequence[float], q: float) -> float | None:
    return sorted(values)[min(int(q * len(values)), len(values) - 1)] if values else None


@dataclass
class Stats:
    finished: int = 0
    cancelled: int = 0
    preempted: int = 0
    steps: int = 0
    prompt_tokens: int = 0  # of admitted requests
    hit_tokens: int = 0  # of these found in the cache
    first_token: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    between_tokens: deque[float] = field(default_factory=lambda: deque(maxlen=500))
    recent: deque[Step] = field(default_factory=lambda: deque(maxlen=2000))

    def add_step(self, **values: Any) -> None:
        self.steps += 1
        self.recent.append(Step(**values))

    def add_prompt(self, num_tokens: int, num_cached: int) -> None:
        self.prompt_tokens += num_tokens
        self.hit_tokens += num_cached

    def snapshot(self, now: float) -> dict[str, Any]:
        within = [step for step in self.recent if now - step.at < WINDOW_SECONDS]
        return {
            "finished": self.finished,
            "cancelled": self.cancelled,
            "preempted": self.preempted,
            "steps": self.steps,
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "prompt_rate": sum(step.prompt_tokens for step in within) / WINDOW_SECONDS,
            "output_rate": sum(step.output_tokens for step in within) / WINDOW_SECONDS,
            "first_token": quantile(self.first_token, 0.5),
            "between_tokens": quantile(self.between_tokens, 0.5),
            "between_tokens_p95": quantile(self.between_tokens, 0.95),
            "step": asdict(self.recent[-1]) if self.recent else None,
        }
