"""Strangers without a token get health checks, a few at a time, and are not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc import aio

from oneflow.scheduler.cluster import health
from oneflow.scheduler.cluster.health import Strangers


class Context:
    """Remembers the answers, and how a call was refused."""

    def __init__(self) -> None:
        self.code: Any = None
        self.said: asyncio.Queue[str] = asyncio.Queue()

    async def write(self, message: str) -> None:
        self.said.put_nowait(message)

    async def abort(self, code: Any, text: str) -> None:
        self.code = code
        raise aio.AbortError(text)


async def one(message: str = "which") -> AsyncIterator[str]:
    yield message


async def silence() -> AsyncIterator[str]:
    await asyncio.Event().wait()
    yield "too late"


def handler(streams: bool) -> Any:
    async def check(request: str, context: Any) -> str:
        return f"{request}: serving"

    async def watch(request: str, context: Any) -> AsyncIterator[str]:
        yield f"{request}: serving"
        await asyncio.Event().wait()

    return SimpleNamespace(
        request_streaming=False,
        response_streaming=streams,
        unary_unary=None if streams else check,
        unary_stream=watch if streams else None,
        request_deserializer=None,
        response_serializer=None,
    )


def test_a_check_is_answered() -> None:
    answer: Any = Strangers().guarded(handler(False)).stream_unary
    assert asyncio.run(answer(one(), Context())) == "which: serving"


def test_a_message_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MESSAGE_S", 0.05)
    answer: Any = Strangers().guarded(handler(False)).stream_unary
    context = Context()
    with pytest.raises(aio.AbortError):
        asyncio.run(answer(silence(), context))
    assert context.code is grpc.StatusCode.INVALID_ARGUMENT


def test_few_may_watch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MAX_WATCHING", 2)
    answer: Any = Strangers().guarded(handler(True)).stream_stream

    async def scene() -> None:
        async def begin() -> asyncio.Future[Any]:
            context = Context()
            watch: asyncio.Future[Any] = asyncio.create_task(answer(one(), context))
            assert await context.said.get() == "which: serving"
            return watch

        watches = [await begin() for _ in range(2)]
        context = Context()
        with pytest.raises(aio.AbortError):
            await answer(one(), context)
        assert context.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        watches[0].cancel()
        await asyncio.wait(watches[:1])
        watches.append(await begin())
        for watch in watches:
            watch.cancel()

    asyncio.run(scene())
