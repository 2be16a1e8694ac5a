"""The HTTP application: models, completions, health and metrics."""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from oneflow.core.errors import ArgumentError
from oneflow.core.log import get_logger
from oneflow.serving.language.chat import ChatTemplate
from oneflow.serving.language.messages import Opened
from oneflow.serving.language.replicas import Replicas
from oneflow.serving.language.tokenizer import Tokenizer
from oneflow.serving.limits import Limits
from oneflow.serving.openai.answers import ChatAnswer, TextAnswer, Usage
from oneflow.serving.openai.failures import Failure, wrong
from oneflow.serving.openai.metrics import Metrics
from oneflow.serving.openai.requests import ChatRequest, Common, CompletionRequest, parse
from oneflow.serving.openai.waiting import FirstTokens
from oneflow.serving.openai.work import Work

log = get_logger(__name__)
T = TypeVar("T")

CLIENT_LEFT = 499
"""The status that is counted where there is nobody to answer."""
_MANY_LETTERS = 4096
"""Texts from this length on are made to tokens beside the event loop."""


@dataclass
class Service:
    """A model that is served. key: the API key of its clients; "": they need none."""

    name: str
    replicas: Replicas
    tokenizer: Tokenizer
    template: ChatTemplate
    limits: Limits
    key: str = ""
    opened: Opened | None = None
    is_draining: bool = False
    sequences: int = 0
    """Number of those that run or wait."""
    firsts: FirstTokens = field(default_factory=FirstTokens)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.replicas)

    def app(self) -> Starlette:
        completions, chat = self._measured(self.completions), self._measured(self.chat)
        routes = [
            Route("/v1/models", self._guarded(self.models)),
            Route("/v1/models/{name:path}", self._guarded(self.model)),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.page),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _http_failure})

    # ---- what every route goes through -----------------------------------------------------------

    def _guarded(self, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            try:
                self._check_key(request)
                return await handler(request)
            except Failure as failure:
                return failure.response()

        return handle

    def _measured(self, handler: Handler) -> Handler:
        guarded = self._guarded(handler)

        async def handle(request: Request) -> Response:
            response = await guarded(request)
            if not isinstance(response, EventStream):
                self._count(request.url.path, response.status_code)
            return response

        return handle

    def _count(self, path: str, status: int) -> None:
        self.metrics.requests.labels(path.removeprefix("/v1/"), str(status)).inc()

    def _check_key(self, request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if self.key and not hmac.compare_digest(given.encode(), self.key.encode()):
            raise Failure(401, "Incorrect API key provided", "invalid_api_key")

    @contextmanager
    def admitted(self, count: int) -> Iterator[None]:
        """Count a request's sequences while it lasts. Raises Failure if there is no room."""
        if self.is_draining:
            raise Failure(503, "the server is shutting down", "draining", retry_after_s=5)
        if not self.replicas.ready or self.opened is None:
            raise Failure(503, "no worker is ready yet", "not_ready", retry_after_s=1)
        if self.sequences + count > self.limits.requests:
            text = f"{self.sequences} sequences run or wait; the limit is {self.limits.requests}"
            raise Failure(429, text, "queue_full", retry_after_s=1)
        excess = self.firsts.expected_s - self.limits.first_token_s
        if excess > 0:
            text = (
                f"a first token would take about {self.firsts.expected_s:.0f} s; the limit is "
                f"{self.limits.first_token_s:g} s"
            )
            raise Failure(429, text, "queue_full", retry_after_s=math.ceil(excess))
        self.sequences += count
        try:
            yield
        finally:
            self.sequences -= count

    # ---- routes ----------------------------------------------------------------------------------

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._card())

    def _card(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "oneflow"}

    async def health(self, request: Request) -> Response:
        if self.is_draining:
            return JSONResponse({"status": "draining"}, 503)
        ready = len(self.replicas.ready)
        body = {"status": "ok" if ready else "starting", "replicas": ready}
        return JSONResponse(body, 200 if ready else 503)

    async def page(self, request: Request) -> Response:
        return Response(self.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def completions(self, http: Request) -> Response:
        request = parse(CompletionRequest, await self._body(http))
        self._check_model(request.model)
        prompts = [await self._encode(prompt) for prompt in request.prompts()]
        limit = 16 if request.max_tokens is None else request.max_tokens
        logprobs = -1 if request.logprobs is None else request.logprobs
        scores = bool(request.echo) and logprobs >= 0
        echoes = []
        if request.echo:
            texts = [
                x if isinstance(x, str) else self.tokenizer.decode(x) for x in request.prompts()
            ]
            echoes = [text for text in texts for _ in range(request.num_choices)]
        usage = Usage(sum(map(len, prompts)))
        answer = TextAnswer(self.name, self.tokenizer, usage, logprobs >= 0)
        return await self._answer(http, request, answer, prompts, limit, logprobs, echoes, scores)

    async def chat(self, http: Request) -> Response:
        request = parse(ChatRequest, await self._body(http))
        self._check_model(request.model)
        try:
            text = self.template.render(request.plain_messages())
        except ArgumentError as error:
            raise wrong(str(error), "messages") from None
        prompts = [await self._encode(text, is_whole=False)]
        limit = request.max_completion_tokens or request.max_tokens
        logprobs = (request.top_logprobs or 0) if request.logprobs else -1
        usage = Usage(len(prompts[0]))
        answer = ChatAnswer(self.name, self.tokenizer, usage, logprobs >= 0)
        return await self._answer(http, request, answer, prompts, limit, logprobs, [], False)

    # ---- steps of both kinds of completions ------------------------------------------------------

    async def _body(self, request: Request) -> bytes:
        most, parts = self.limits.body_nbytes, bytearray()
        async for part in request.stream():
            parts += part
            if len(parts) > most:
                raise Failure(413, f"the body is longer than {most} bytes", "body_too_large")
        return bytes(parts)

    def _check_model(self, name: str) -> None:
        if name != self.name:
            text = f"The model {name!r} does not exist; this server has {self.name!r}"
            raise Failure(404, text, "model_not_found", "model")

    async def _encode(self, prompt: str | list[int], *, is_whole: bool = True) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        if len(prompt) < _MANY_LETTERS:
            return self.tokenizer.encode(prompt, is_whole=is_whole)
        return await asyncio.to_thread(self.tokenizer.encode, prompt, is_whole=is_whole)

    async def _answer(
        self,
        http: Request,
        request: Common,
        answer: ChatAnswer | TextAnswer,
        prompts: list[list[int]],
        limit: int | None,
        logprobs: int,
        echoes: list[str],
        scores: bool,
    ) -> Response:
        room = self.admitted(len(prompts) * request.num_choices)
        room.__enter__()
        is_passed_on = False
        try:
            limit = self._limit(prompts, limit)
            ends = self._ends()
            submits = request.submits(prompts, limit, ends, logprobs, scores)
            work = Work(
                self.replicas,
                self.tokenizer,
                self.metrics,
                answer,
                submits,
                request.stops,
                echoes,
                self.limits,
                self.firsts,
                request.includes_usage,
            )
            self.metrics.tokens.labels("prompt").inc(answer.usage.prompt)
            if request.stream:
                is_passed_on = True

                def leave(status: int) -> None:
                    room.__exit__(None, None, None)
                    self._count(http.url.path, status)
                    self.metrics.duration.observe(time.monotonic() - work.begin)

                return EventStream(work, leave)
            body = await unless_left(http, work.whole())
            self.metrics.duration.observe(time.monotonic() - work.begin)
            return JSONResponse(body)
        finally:
            if not is_passed_on:
                room.__exit__(None, None, None)

    def _ends(self) -> list[int]:
        return [] if self.opened is None else self.opened.stops

    def _limit(self, prompts: list[list[int]], limit: int | None) -> int:
        """Return the limit of new tokens. Raises Failure for prompts that do not fit."""
        opened = self.opened
        assert opened is not None  # it was admitted
        longest = max(map(len, prompts))
        if not all(prompts):
            raise wrong("the prompt has no tokens", "prompt")
        if any(token >= opened.words for prompt in prompts for token in prompt):
            raise wrong(f"the prompt has tokens beyond the model's {opened.words}", "prompt")
        if limit is None:
            limit = opened.context - longest
        if longest + max(limit, 1) > opened.context:
            raise wrong(
                f"This model's maximum context length is {opened.context} tokens; the prompt has "
                f"{longest}, and {limit} are to be made",
                "messages",
                "context_length_exceeded",
            )
        return limit


Handler = Callable[[Request], Awaitable[Response]]


class EventStream(StreamingResponse):
    """A streamed answer. leave: called at the end, with the status."""

    def __init__(self, work: Work, leave: Callable[[int], None]) -> None:
        self._leave, self._status = leave, CLIENT_LEFT
        self._source = self._watched(work)
        super().__init__(self._source, media_type="text/event-stream")
        self.headers["Cache-Control"] = "no-cache"

    async def _watched(self, work: Work) -> AsyncGenerator[bytes, None]:
        async with aclosing(work.events()) as events:
            async for event in events:
                yield event
        self._status = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._source.aclose()
            self._leave(self._status)


async def unless_left(request: Request, work: Awaitable[T]) -> T:
    """Await an answer, which is cancelled when the client leaves. Raises Failure."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait([doing, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Failure(CLIENT_LEFT, "the client left", "client_left")
        return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, Failure):
                await task


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _http_failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}"
    return Failure(error.status_code, text).response()
