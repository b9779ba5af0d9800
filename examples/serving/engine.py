"""Continuous batching: which tokens of which requests the next forward pass computes, on which pages, and what becomes of the results.

A step takes one token of every request that generates and fills up a budget of tokens with chunks of prompts, oldest requests first.
Where pages run out, the youngest request gives back its own and waits; it finds most of them again by their hashes. Requests that begin
with the same pages share them, and if the shared part is long, attention reads it once for all of them: a first segment.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import girih

from .model import Batch, Llama
from .pages import PagePool, page_hashes
from .stats import Stats
from .text import TextStream, Tokenizer


class BadRequest(ValueError):
    """What a client asked for cannot be done; says of which parameter and why."""

    def __init__(self, param: str, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.param, self.code = param, code


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    seed: int | None = None
    max_tokens: int | None = None  # None: as many as fit
    stop: tuple[str, ...] = ()
    num_logprobs: int | None = None  # None: no log-probabilities; n: also of the n likeliest tokens


@dataclass(frozen=True)
class TokenLogprob:
    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Output:
    """What one step brought a request."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None  # "stop" or "length"
    error: str | None = None


@dataclass(eq=False)
class Request:
    number: int
    prompt_len: int
    sampling: Sampling
    seed: int
    max_tokens: int
    tokens: list[int]  # prompt and output
    stream: TextStream
    emit: Callable[[Output], None]
    created: float
    pages: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # of the full pages of `tokens`
    computed: int = 0  # tokens whose keys and values are in the cache
    published: int = 0  # full pages that others may find
    cached: int | None = None  # tokens that were found there when it was first admitted
    last_token_at: float = 0.0
    finished: bool = False

    @property
    def generates(self) -> bool:
        return self.computed == len(self.tokens) - 1 and len(self.tokens) > self.prompt_len


class Engine:
    """One thread at a time, but for cancel(): the server gives it a thread of its own (`EngineThread`)."""

    def __init__(
        self,
        model: Llama,
        tokenizer: Tokenizer,
        *,
        num_pages: int,
        page_size: int,
        max_len: int,
        token_budget: int = 256,
        max_requests: int = 32,
        min_shared_tokens: int = 128,
    ) -> None:
        if token_budget < max_requests:
            raise ValueError(f"token_budget={token_budget}: must be at least max_requests={max_requests}")
        self.model, self.tokenizer = model, tokenizer
        self.page_size, self.max_len = page_size, min(max_len, num_pages * page_size)
        self.token_budget, self.max_requests, self.min_shared_tokens = token_budget, max_requests, min_shared_tokens
        self.pool = PagePool(num_pages, page_size)
        self.attention = girih.Attention(
            model.attention_spec(),
            girih.AttentionLimits(
                max_tokens=token_budget, max_requests=max_requests, max_kv_len=self.max_len, max_segments=2
            ),
            context=model.context,
        )
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # oldest first
        self.stats = Stats()
        self._cancelled: deque[Request] = deque()
        self._numbers = itertools.count(1)

    # ---- requests

    def make_request(self, prompt: Sequence[int], sampling: Sampling, emit: Callable[[Output], None]) -> Request:
        """A request for submit(). Raises BadRequest. May be called from any thread."""
        if not prompt:
            raise BadRequest("prompt", "the prompt has no tokens")
        vocab = self.model.config.vocab_size
        if wrong := [token for token in prompt if not 0 <= token < vocab]:
            raise BadRequest("prompt", f"token {wrong[0]} is not in [0, {vocab})")
        room = self.max_len - len(prompt)
        wanted = 1 if sampling.max_tokens is None else sampling.max_tokens
        if wanted > room:
            text = (
                f"the prompt has {len(prompt)} tokens and {wanted} more are asked for; the context has {self.max_len}"
            )
            raise BadRequest("max_tokens" if room > 0 else "prompt", text, "context_length_exceeded")
        return Request(
            number=next(self._numbers),
            prompt_len=len(prompt),
            sampling=sampling,
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            max_tokens=room if sampling.max_tokens is None else sampling.max_tokens,
            tokens=list(prompt),
            stream=TextStream(self.tokenizer, sampling.stop),
            emit=emit,
            created=time.monotonic(),
        )

    def submit(self, request: Request) -> None:
        if not request.finished:  # cancelled already
            self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Before the next step: no more outputs, pages given back. From any thread; of a finished request nothing."""
        self._cancelled.append(request)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running or self._cancelled)

    def fail_all(self, text: str) -> None:
        """After a step that raised. What the cache is known to hold is untouched: pages are published after their step."""
        for request in [*self.running, *self.waiting]:
            self._finish(request, Output(error=text))

    # ---- a step

    def step(self) -> None:
        self._drop_cancelled()
        begin = time.monotonic()
        chunks = self._schedule()
        if not chunks:
            return
        batch = self._batch(chunks)
        planned = time.monotonic()
        ends = [request for request, count in chunks if request.computed + count == len(request.tokens)]
        logits = self.model.forward(batch, self.attention)
        results = self._sample(logits, ends) if ends else []
        done = time.monotonic()
        for request, count in chunks:
            request.computed += count
            self._publish(request)
        for request, result in zip(ends, results, strict=True):
            self._take_token(request, result, done)
        self.stats.add_step(
            at=done,
            seconds=done - begin,
            plan_seconds=planned - begin,
            prompt_tokens=sum(count for _, count in chunks) - len(ends),
            output_tokens=len(ends),
            num_requests=len(chunks),
            num_items=self.attention.plan_info.num_items,
            num_segments=len(batch.segment_indices),
        )

    def _drop_cancelled(self) -> None:
        while self._cancelled:
            request = self._cancelled.popleft()
            if not request.finished:
                self.stats.cancelled += 1
                self._finish(request, None)

    def _schedule(self) -> list[tuple[Request, int]]:
        """Requests and how many of their tokens to compute, with pages for them."""
        chunks: list[tuple[Request, int]] = []
        prompt_budget = self.token_budget - sum(request.generates for request in self.running)
        for request in list(self.running):  # _reserve may take the last ones away
            if request not in self.running:
                break
            count = 1 if request.generates else min(len(request.tokens) - request.computed, prompt_budget)
            if count > 0 and self._reserve(request, request.computed + count):
                chunks.append((request, count))
                prompt_budget -= 0 if request.generates else count
        while self.waiting and prompt_budget > 0 and len(self.running) < self.max_requests:
            request = self.waiting[0]
            self._find_prefix(request)
            count = min(len(request.tokens) - request.computed, prompt_budget)
            missing = self._num_pages(request.computed + count) - len(request.pages)
            # A page for each running one stays free, so that the newcomer is not turned out by the next step.
            if missing + len(self.running) > self.pool.num_available and self.running:
                self._give_back(request)
                break
            self.running.append(self.waiting.popleft())
            if request.cached is None:
                request.cached = request.computed
                self.stats.add_prompt(request.prompt_len, request.cached)
            if self._reserve(request, request.computed + count):
                chunks.append((request, count))
                prompt_budget -= count
        return chunks

    def _num_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def _reserve(self, request: Request, num_tokens: int) -> bool:
        """Pages for the first `num_tokens`; younger requests, at last this one, are turned out for them."""
        while len(request.pages) < self._num_pages(num_tokens):
            page = self.pool.allocate()
            if page is not None:
                request.pages.append(page)
                continue
            victim = self.running.pop()
            self._give_back(victim)
            self.waiting.appendleft(victim)
            self.stats.preempted += 1
            if victim is request:
                return False
        return True

    def _give_back(self, request: Request) -> None:
        self.pool.release(request.pages)
        request.pages.clear()
        request.computed = request.published = 0

    def _find_prefix(self, request: Request) -> None:
        """Takes pages that are known to hold the request's first tokens; at least one token is left to compute."""
        request.hashes = page_hashes(request.tokens, self.page_size, request.hashes)
        for hash_ in request.hashes[: (len(request.tokens) - 1) // self.page_size]:
            page = self.pool.share(hash_)
            if page is None:
                break
            request.pages.append(page)
        request.computed = len(request.pages) * self.page_size

    def _publish(self, request: Request) -> None:
        full = request.computed // self.page_size
        if full > len(request.hashes):
            request.hashes = page_hashes(request.tokens, self.page_size, request.hashes)
        for i in range(request.published, full):
            self.pool.publish(request.pages[i], request.hashes[i])
        request.published = full

    # ---- the batch of a step

    def _shared_groups(self, chunks: list[tuple[Request, int]]) -> list[tuple[list[tuple[Request, int]], int]]:
        """The batch in groups that begin with the same full pages, and how many pages that are; 0: not worth a segment."""
        by_first: dict[int, list[tuple[Request, int]]] = {}
        for request, count in chunks:
            by_first.setdefault(request.pages[0], []).append((request, count))
        groups: list[tuple[list[tuple[Request, int]], int]] = []
        for group in by_first.values():
            lists = [request.pages[: request.computed // self.page_size] for request, _ in group]
            common = sum(1 for _ in itertools.takewhile(lambda pages: len(set(pages)) == 1, zip(*lists, strict=False)))
            if len(group) > 1 and common * self.page_size >= self.min_shared_tokens:
                groups.append((group, common))
            else:
                groups += [([one], 0) for one in group]
        return groups

    def _batch(self, chunks: list[tuple[Request, int]]) -> Batch:
        """Lays the step out and plans its attention. Reorders `chunks`: requests of a group stand together."""
        groups = self._shared_groups(chunks)
        chunks[:] = [one for group, _ in groups for one in group]
        shared = [common for group, common in groups for _ in group]
        page_lists = [r.pages[: self._num_pages(r.computed + count)] for r, count in chunks]
        counts = [count for _, count in chunks]
        kv_len = np.array([r.computed + count for r, count in chunks])
        qo_indptr = np.cumsum([0, *counts])
        own_lists = [pages[common:] for pages, common in zip(page_lists, shared, strict=True)]
        segments = [
            girih.Segment(
                kv_indptr=np.cumsum([0, *map(len, own_lists)]),
                kv_len=kv_len - np.array(shared) * self.page_size,
                page_size=self.page_size,
            )
        ]
        indices = [self._indices(own_lists)]
        if any(shared):
            shared_lists = [group[0][0].pages[:common] for group, common in groups]
            segment = girih.Segment(
                qo_indptr=np.cumsum([0, *(sum(count for _, count in group) for group, _ in groups)]),
                kv_indptr=np.cumsum([0, *map(len, shared_lists)]),
                kv_len=[common * self.page_size for _, common in groups],
                page_size=self.page_size,
            )
            segments.insert(0, segment)
            indices.insert(0, self._indices(shared_lists))
        self.attention.plan(qo_indptr, segments)
        rows = [
            (t, at) for r, count in chunks for at, t in enumerate(r.tokens[r.computed : r.computed + count], r.computed)
        ]
        tokens, positions = zip(*rows, strict=True)
        ends = [qo_indptr[i + 1] - 1 for i, (r, count) in enumerate(chunks) if r.computed + count == len(r.tokens)]
        device = self.model.device
        return Batch(
            tokens=torch.tensor(tokens, device=device),
            positions=torch.tensor(positions, dtype=torch.int32, device=device),
            qo_indptr=qo_indptr,
            kv_len=kv_len,
            kv_indptr=np.cumsum([0, *map(len, page_lists)]),
            kv_indices=np.array(list(itertools.chain(*page_lists)), np.int32),
            segment_indices=indices,
            last_rows=torch.tensor(ends, dtype=torch.int64, device=device),
        )

    def _indices(self, lists: list[list[int]]) -> torch.Tensor:
        return torch.tensor(list(itertools.chain(*lists)), dtype=torch.int32, device=self.model.device)

    # ---- results

    def _sample(self, logits: torch.Tensor, requests: list[Request]) -> list[TokenLogprob]:
        asked = [request.sampling for request in requests]
        rows = len(requests)
        # A draw is a function of its row's seed alone: the request's, moved on a token.
        seeds = [(r.seed + len(r.tokens) * 0x9E3779B97F4A7C15) & ((1 << 63) - 1) for r in requests]
        device = logits.device
        allowed = None
        if self.tokenizer.allowed is not None:
            allowed = torch.tensor(self.tokenizer.allowed, dtype=torch.int32, device=device).expand(rows, -1)
        wanted = [s.num_logprobs for s in asked if s.num_logprobs is not None]
        sampled = girih.sample(
            logits,
            allowed=allowed,
            temperature=torch.tensor([s.temperature for s in asked], dtype=torch.float32, device=device),
            top_k=torch.tensor([s.top_k for s in asked], dtype=torch.int32, device=device),
            top_p=torch.tensor([s.top_p for s in asked], dtype=torch.float32, device=device),
            seed=torch.tensor(seeds, dtype=torch.int64, device=device),
            logprobs=bool(wanted),
            num_top=max(wanted, default=0),
            context=self.model.context,
        )
        tokens: list[int] = sampled.tokens.tolist()
        logprobs: list[float] = sampled.logprobs.tolist() if wanted else [0.0] * rows
        tops: list[list[tuple[int, float]]] = [[] for _ in range(rows)]
        if max(wanted, default=0) > 0:
            pairs = zip(sampled.top_tokens.tolist(), sampled.top_logprobs.tolist(), strict=True)
            tops = [
                [(token, value) for token, value in zip(*pair, strict=True) if token >= 0][: s.num_logprobs or 0]
                for pair, s in zip(pairs, asked, strict=True)
            ]
        return list(map(TokenLogprob, tokens, logprobs, tops))

    def _take_token(self, request: Request, result: TokenLogprob, now: float) -> None:
        if request.last_token_at:
            self.stats.between_tokens.append(now - request.last_token_at)
        else:
            self.stats.first_token.append(now - request.created)
        request.last_token_at = now
        request.tokens.append(result.token)
        ended = result.token in self.tokenizer.eos_tokens
        text = "" if ended else request.stream.push(result.token)
        reason = None
        if ended or request.stream.stopped:
            reason = "stop"
        elif len(request.tokens) - request.prompt_len == request.max_tokens:
            reason = "length"
        if reason is not None:
            text += request.stream.finish()
        output = Output(text, [] if request.sampling.num_logprobs is None else [result], reason)
        if reason is None:
            request.emit(output)
        else:
            self._finish(request, output)

    def _finish(self, request: Request, output: Output | None) -> None:
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._give_back(request)
        request.finished = True
        self.stats.finished += output is not None
        if output is not None:
            request.emit(output)

    def _state(self, request: Request) -> str:
        if request in self.waiting:
            return "waiting" if request.cached is None else "preempted"
        return "decode" if request.generates else "prefill"

    def snapshot(self) -> dict[str, Any]:
        """All that the web page shows."""
        pool = self.pool
        owner = [-1 if pool.is_cached(page) else 0 for page in range(pool.num_pages)]
        for request in self.running:
            for page in request.pages:
                owner[page] = request.number
        now = time.monotonic()
        return {
            "pages": owner,  # 0 free, -1 cached, else a request that uses it
            "references": list(pool.references),
            "page_size": self.page_size,
            "cached": pool.num_cached,
            "used": pool.num_pages - pool.num_available,
            "token_budget": self.token_budget,
            "max_requests": self.max_requests,
            "requests": [
                {
                    "number": r.number,
                    "state": self._state(r),
                    "prompt": r.prompt_len,
                    "cached": r.cached or 0,
                    "computed": r.computed,
                    "output": len(r.tokens) - r.prompt_len,
                    "max_output": r.max_tokens,
                    "pages": len(r.pages),
                    "age": now - r.created,
                }
                for r in [*self.running, *self.waiting]
            ],
            **self.stats.snapshot(now),
        }


class EngineThread(threading.Thread):
    """Steps the engine while it is busy. submit() and cancel() are for other threads; outputs are emitted on this one."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(name="engine", daemon=True)
        self.engine = engine
        self.snapshot = engine.snapshot()
        self._inbox: deque[Request] = deque()
        self._wake = threading.Condition()
        self._stopping = False

    def submit(self, *requests: Request) -> None:
        with self._wake:
            self._inbox.extend(requests)
            self._wake.notify()

    def cancel(self, request: Request) -> None:
        with self._wake:
            self.engine.cancel(request)
            self._wake.notify()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self.join()

    def run(self) -> None:
        shown = 0.0
        while True:
            with self._wake:
                while not (self._stopping or self._inbox or self.engine.busy):
                    self.snapshot = self.engine.snapshot()
                    self._wake.wait(timeout=0.5)
                if self._stopping:
                    return
                while self._inbox:
                    self.engine.submit(self._inbox.popleft())
            try:
                self.engine.step()
            except Exception as error:
                traceback.print_exc()
                self.engine.fail_all(f"{type(error).__name__}: {error}")
            if time.monotonic() - shown > 0.1:
                shown = time.monotonic()
                self.snapshot = self.engine.snapshot()
