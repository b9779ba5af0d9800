"""The OpenAI-compatible endpoint (/v1/models, /v1/completions, /v1/chat/completions) and the web page, on FastAPI.

What a client may say is in the two request classes; any other field is an error, since to ignore one would be to answer another
question. A client that goes away cancels its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from .engine import BadRequest, EngineThread, Output, Sampling, TokenLogprob
from .engine import Request as EngineRequest
from .text import Tokenizer


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class Common(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: str
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, description="0 or -1: all")
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    n: int = Field(1, ge=1, le=16)
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="only names the caller; has no effect in OpenAI's API either")

    def sampling(self, max_tokens: int | None, num_logprobs: int | None, choice: int) -> Sampling:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stop) > 4 or not all(stop):
            raise BadRequest("stop", "stop must be up to 4 strings that are not empty")
        if self.stream_options is not None and not self.stream:
            raise BadRequest("stream_options", "stream_options is for stream=true")
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            seed=None if self.seed is None else (self.seed + choice) % (1 << 63),
            max_tokens=max_tokens,
            stop=tuple(stop),
            num_logprobs=num_logprobs,
        )


class CompletionRequest(Common):
    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int | None = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=20)


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None


class ChatRequest(Common):
    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)


def error(status: int, message: str, param: str | None = None, code: str | None = None) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": param, "code": code}}, status)


class Choices:
    """The requests of one HTTP request, one for each choice, and their outputs as they come."""

    def __init__(self, engine: EngineThread, http: Request) -> None:
        self._engine, self._http = engine, http
        self._loop = asyncio.get_running_loop()
        self._outputs: asyncio.Queue[tuple[int, Output]] = asyncio.Queue()
        self.requests: list[EngineRequest] = []
        self.num_prompt_tokens = 0

    def add(self, prompt: list[int], sampling: Sampling) -> None:
        index = len(self.requests)

        def emit(output: Output) -> None:  # on the engine's thread
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server is shutting down
                self._loop.call_soon_threadsafe(self._outputs.put_nowait, (index, output))

        self.requests.append(self._engine.engine.make_request(prompt, sampling, emit))

    async def run(self) -> AsyncGenerator[tuple[int, Output], None]:
        """Ends with the last output, or early when the client is gone. However it ends, nothing is left running."""
        self._engine.submit(*self.requests)
        left = len(self.requests)
        try:
            while left > 0:
                try:
                    index, output = await asyncio.wait_for(self._outputs.get(), 0.1)
                except TimeoutError:
                    if await self._http.is_disconnected():
                        return
                    continue
                left -= output.finish_reason is not None or output.error is not None
                yield index, output
                if self._outputs.empty() and await self._http.is_disconnected():
                    return
        finally:
            for request in self.requests:
                self._engine.cancel(request)

    def usage(self) -> dict[str, Any]:
        prompt = self.num_prompt_tokens
        output = sum(len(r.tokens) - r.prompt_len for r in self.requests)
        cached = sum(r.cached or 0 for r in self.requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


class Format:
    """How an endpoint writes its choices: `whole` for all of a text, `piece` for a part of it in a stream."""

    def __init__(self, tokenizer: Tokenizer, prefix: str, kind: str, stream_kind: str, model: str) -> None:
        self._tokenizer = tokenizer
        self.head = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self.kind, self.stream_kind = kind, stream_kind

    def first(self, index: int) -> dict[str, Any] | None:
        return None

    def whole(self, index: int, text: str, logprobs: list[TokenLogprob] | None, reason: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": self.logprobs(logprobs), "finish_reason": reason}

    def piece(self, index: int, output: Output, asked: bool) -> dict[str, Any]:
        logprobs = self.logprobs(output.logprobs if asked else None)
        return {"index": index, "text": output.text, "logprobs": logprobs, "finish_reason": output.finish_reason}

    def token(self, token: int) -> str:
        return self._tokenizer.decode([token])

    def logprobs(self, logprobs: list[TokenLogprob] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None
        return {
            "tokens": [self.token(one.token) for one in logprobs],
            "token_logprobs": [one.logprob for one in logprobs],
            "top_logprobs": [{self.token(token): value for token, value in one.top} for one in logprobs],
        }


class ChatFormat(Format):
    def first(self, index: int) -> dict[str, Any] | None:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def whole(self, index: int, text: str, logprobs: list[TokenLogprob] | None, reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": self.logprobs(logprobs), "finish_reason": reason}

    def piece(self, index: int, output: Output, asked: bool) -> dict[str, Any]:
        logprobs = self.logprobs(output.logprobs if asked else None)
        delta = {"content": output.text} if output.text else {}
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": output.finish_reason}

    def logprobs(self, logprobs: list[TokenLogprob] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None

        def entry(token: int, value: float) -> dict[str, Any]:
            text = self.token(token)
            return {"token": text, "logprob": value, "bytes": list(text.encode())}

        return {
            "content": [
                entry(one.token, one.logprob) | {"top_logprobs": [entry(*pair) for pair in one.top]} for one in logprobs
            ],
            "refusal": None,
        }


async def answer(choices: Choices, form: Format, asked: Common) -> Response:
    if asked.stream:
        with_usage = asked.stream_options is not None and asked.stream_options.include_usage
        return StreamingResponse(events(choices, form, with_usage), media_type="text/event-stream")
    texts = [""] * len(choices.requests)
    logprobs: list[list[TokenLogprob]] = [[] for _ in choices.requests]
    reasons: list[str | None] = [None] * len(choices.requests)
    async with contextlib.aclosing(choices.run()) as outputs:
        async for index, output in outputs:
            if output.error is not None:
                return error(500, output.error)
            texts[index] += output.text
            logprobs[index] += output.logprobs
            reasons[index] = output.finish_reason
    if None in reasons:
        return Response(status_code=499)  # nobody reads it: the client is gone
    wholes = [
        form.whole(i, texts[i], None if r.sampling.num_logprobs is None else logprobs[i], str(reasons[i]))
        for i, r in enumerate(choices.requests)
    ]
    return JSONResponse({**form.head, "object": form.kind, "choices": wholes, "usage": choices.usage()})


async def events(choices: Choices, form: Format, with_usage: bool) -> AsyncIterator[str]:
    """Server-sent events, one for each piece of text."""

    def event(pieces: list[dict[str, Any]], **more: Any) -> str:
        body = {**form.head, "object": form.stream_kind, "choices": pieces, **more}
        return f"data: {json.dumps(body)}\n\n"

    more: dict[str, Any] = {"usage": None} if with_usage else {}
    async with contextlib.aclosing(choices.run()) as outputs:
        for index in range(len(choices.requests)):
            if (first := form.first(index)) is not None:
                yield event([first], **more)
        async for index, output in outputs:
            if output.error is not None:
                yield f"data: {bytes(error(500, output.error).body).decode()}\n\n"
                return
            asked = choices.requests[index].sampling.num_logprobs is not None
            if output.text or output.logprobs or output.finish_reason:
                yield event([form.piece(index, output, asked)], **more)
    if with_usage:
        yield event([], usage=choices.usage())
    yield "data: [DONE]\n\n"


def make_app(engine: EngineThread, model_name: str) -> FastAPI:
    """The engine's thread runs as long as the app."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.stop)

    app = FastAPI(title="Girih example server", lifespan=lifespan)
    tokenizer = engine.engine.tokenizer
    card = {"id": model_name, "object": "model", "created": int(time.time()), "owned_by": "local"}

    def check_model(name: str) -> None:
        if name != model_name:
            raise BadRequest(
                "model", f"the model {name!r} does not exist; this server has {model_name!r}", "model_not_found"
            )

    @app.exception_handler(BadRequest)
    async def on_bad_request(_: Request, e: BadRequest) -> Response:
        return error(404 if e.code == "model_not_found" else 400, str(e), e.param, e.code)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, e: RequestValidationError) -> Response:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        known = "is not a parameter that this server knows" if first["type"] == "extra_forbidden" else first["msg"]
        return error(400, f"{where or 'body'}: {known}", where or None)

    @app.exception_handler(HTTPException)
    async def on_http(_: Request, e: HTTPException) -> Response:
        return error(e.status_code, str(e.detail))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        check_model(name)
        return card

    def submit(http: Request, asked: Common, prompts: list[list[int]], sampling: Callable[[int], Sampling]) -> Choices:
        if len(prompts) * asked.n > 64:
            raise BadRequest("n", f"{len(prompts)} prompts of {asked.n} choices each; at most 64 together")
        choices = Choices(engine, http)
        for prompt in prompts:
            choices.num_prompt_tokens += len(prompt)
            for choice in range(asked.n):
                choices.add(prompt, sampling(choice))
        return choices

    @app.post("/v1/completions")
    async def completions(asked: CompletionRequest, http: Request) -> Response:
        check_model(asked.model)
        given: list[Any] = asked.prompt if isinstance(asked.prompt, list) else [asked.prompt]
        if given and isinstance(given[0], int):
            given = [given]
        if not given:
            raise BadRequest("prompt", "there is no prompt")
        prompts = [tokenizer.encode(one) if isinstance(one, str) else one for one in given]
        choices = submit(http, asked, prompts, lambda choice: asked.sampling(asked.max_tokens, asked.logprobs, choice))
        form = Format(tokenizer, "cmpl", "text_completion", "text_completion", model_name)
        return await answer(choices, form, asked)

    @app.post("/v1/chat/completions")
    async def chat(asked: ChatRequest, http: Request) -> Response:
        check_model(asked.model)
        if asked.top_logprobs is not None and not asked.logprobs:
            raise BadRequest("top_logprobs", "top_logprobs is for logprobs=true")
        if asked.max_tokens is not None and asked.max_completion_tokens is not None:
            raise BadRequest("max_tokens", "max_tokens is the older name of max_completion_tokens; give one of them")
        texts = [
            m.content if isinstance(m.content, str) else "".join(p.text for p in m.content) for m in asked.messages
        ]
        messages = [{"role": m.role, "content": text} for m, text in zip(asked.messages, texts, strict=True)]
        try:
            prompt = tokenizer.encode_chat(messages)
        except Exception as e:  # a chat template may refuse roles and their order
            raise BadRequest("messages", f"the model's chat template: {e}") from e
        limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        num_logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
        choices = submit(http, asked, [prompt], lambda choice: asked.sampling(limit, num_logprobs, choice))
        form = ChatFormat(tokenizer, "chatcmpl", "chat.completion", "chat.completion.chunk", model_name)
        return await answer(choices, form, asked)

    @app.get("/state")
    async def state() -> dict[str, Any]:
        return {"model": model_name, **engine.snapshot}

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(Path(__file__).with_name("page.html"), media_type="text/html")

    return app
