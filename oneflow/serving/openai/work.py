"""A request while it is answered: its sequences, merged, as one answer or as a stream of chunks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from oneflow.core.errors import OneFlowError
from oneflow.serving.language.messages import Choice, Submit
from oneflow.serving.language.replicas import NoFirstTokenError, ReplicaLostError, Replicas
from oneflow.serving.language.texts import Piece, pieces
from oneflow.serving.language.tokenizer import Tokenizer
from oneflow.serving.limits import Limits
from oneflow.serving.openai.answers import Answer
from oneflow.serving.openai.failures import Failure
from oneflow.serving.openai.metrics import Metrics
from oneflow.serving.openai.waiting import FirstTokens

T = TypeVar("T")


@dataclass
class Work:
    """A request under way. submits: a sequence for each choice. echoes: prompts to repeat, or none.

    limits: the seconds of the whole answer and of its first tokens count. firsts: of the whole
    server. includes_usage: of a stream, in a chunk of its own.
    """

    replicas: Replicas
    tokenizer: Tokenizer
    metrics: Metrics
    answer: Answer
    submits: list[Submit]
    stops: list[str]
    echoes: list[str]
    limits: Limits
    firsts: FirstTokens
    includes_usage: bool
    begin: float = field(default_factory=time.monotonic)

    async def whole(self) -> dict[str, Any]:
        """Return the body of the answer. Raises Failure."""
        texts = ["" for _ in self.submits]
        choices: list[list[Choice]] = [[] for _ in self.submits]
        ends = ["" for _ in self.submits]
        async with aclosing(self._pieces()) as found:
            async for index, piece in found:
                texts[index] += piece.text
                choices[index] += piece.choices
                ends[index] = piece.end
        parts = zip(texts, choices, ends, strict=True)
        return self.answer.whole([self.answer.choice(i, *part) for i, part in enumerate(parts)])

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield chunks as server-sent events; an error comes as the last one."""
        answer = self.answer
        try:
            firsts = [answer.first_delta(i) for i in range(len(self.submits))]
            for first in filter(None, firsts):
                yield _event(answer.chunk([first]))
            async with aclosing(self._pieces()) as found:
                async for index, piece in found:
                    if piece.text or piece.end or (piece.choices and answer.logprobs):
                        yield _event(answer.chunk([answer.delta(index, piece)]))
            if self.includes_usage:
                yield _event(answer.last_chunk())
            yield b"data: [DONE]\n\n"
        except Failure as failure:
            yield _event(failure.body())

    async def _pieces(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """Yield pieces of all sequences as they come. Raises Failure."""
        sources = [self._sequence(i) for i in range(len(self.submits))]
        try:
            async with aclosing(merged(sources)) as found:
                async for index, piece in found:
                    yield index, piece
        except NoFirstTokenError:
            text = f"no token came within {self.limits.first_token_s:g} s"
            raise Failure(429, text, "queue_full", retry_after_s=1) from None
        except TimeoutError:
            text = f"the answer took longer than {self.limits.timeout_s:g} s"
            raise Failure(504, text, "timeout") from None
        except ReplicaLostError as error:
            raise Failure(503, str(error), "worker_lost", retry_after_s=1) from None
        except OneFlowError as error:
            raise Failure(500, str(error), "internal_error") from None

    async def _sequence(self, index: int) -> AsyncGenerator[Piece, None]:
        """Yield pieces of one sequence, after its prompt if that is to be repeated."""
        submit, last = self.submits[index], 0.0
        if self.echoes:
            scored = [Choice(submit.tokens[0])] if submit.scores_prompt else []
            yield Piece(self.echoes[index], scored, of_prompt=True)
        until, first_until = (
            self.begin + seconds for seconds in (self.limits.timeout_s, self.limits.first_token_s)
        )
        made = self.replicas.generate(submit, until, first_until)
        self.firsts.arrive(time.monotonic())
        try:
            async with aclosing(pieces(made, self.tokenizer, self.stops)) as found:
                async for piece in found:
                    if not piece.of_prompt and piece.choices:
                        last = self._count(len(piece.choices), last)
                    yield piece
        finally:
            if not last:
                self.firsts.leave()

    def _count(self, tokens: int, last: float) -> float:
        """Count tokens of a sequence whose last one came at `last`; return the time."""
        now = time.monotonic()
        self.answer.usage.made += tokens
        self.metrics.tokens.labels("made").inc(tokens)
        if last:
            self.metrics.interval.observe(now - last)
        else:
            self.metrics.first_token.observe(now - self.begin)
            self.firsts.serve(now)
        return now


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield the items of all sources as they come, with the numbers of their sources."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for item in only:
                yield 0, item
        return
    inbox: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue()
    tasks = [asyncio.create_task(_forward(i, s, inbox)) for i, s in enumerate(sources)]
    try:
        left = len(tasks)
        while left:
            found = await inbox.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    number: int,
    source: AsyncGenerator[T, None],
    inbox: asyncio.Queue[tuple[int, T] | BaseException | None],
) -> None:
    try:
        async with aclosing(source):
            async for item in source:
                inbox.put_nowait((number, item))
        inbox.put_nowait(None)
    except Exception as error:
        inbox.put_nowait(error)
