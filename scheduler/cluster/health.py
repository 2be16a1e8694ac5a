"""The calls that need no token: the standard health service, and no more than a little of it. Calls
are answered only once their message is there, which a stranger may never send: so it is waited for
a moment only, by few.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from grpc import aio

from oneflow.core.rpc import Behaviour, CallContext, CallDetails, Find, Handler, Message
from oneflow.scheduler.interceptor import Interceptor

PREFIX = "/grpc.health.v1.Health/"
MAX_ASKING = 256
MAX_WATCHING = 64
MESSAGE_S = 5.0

Messages: TypeAlias = "AsyncIterator[Message]"


class Strangers:
    """Stands before the health service."""

    def __init__(self) -> None:
        self._asking = self._watching = 0

    def guarded(self, handler: Handler) -> Handler:
        """The same method, for as many at once as may be."""
        make: Any
        if handler.response_streaming:
            make, answer = grpc.stream_stream_rpc_method_handler, self._watch(handler.unary_stream)
        else:
            make, answer = grpc.stream_unary_rpc_method_handler, self._check(handler.unary_unary)
        made: Handler = make(
            answer,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return made

    def _check(self, behaviour: Behaviour) -> Behaviour:
        async def answer(requests: Messages, context: CallContext) -> Message:
            if self._asking >= MAX_ASKING:
                await _too_many(context)
            self._asking += 1
            try:
                reply: Message = await behaviour(await _only(requests, context), context)
                return reply
            finally:
                self._asking -= 1

        return answer

    def _watch(self, behaviour: Behaviour) -> Behaviour:
        async def answer(requests: Messages, context: CallContext) -> Messages:
            if self._watching >= MAX_WATCHING:
                await _too_many(context)
            self._watching += 1
            try:
                async for status in behaviour(await _only(requests, context), context):
                    yield status
            finally:
                self._watching -= 1

        return answer


class HealthOnly(Interceptor):
    """The guard of a server that has nothing but the health service."""

    def __init__(self) -> None:
        self._strangers = Strangers()

    async def intercept_service(self, continuation: Find, details: CallDetails) -> Handler | None:
        handler = await continuation(details)
        if handler is None or not str(details.method).startswith(PREFIX):
            return None
        return self._strangers.guarded(handler)


async def _only(requests: Messages, context: CallContext) -> Message:
    """The one message of a call."""
    try:
        return await asyncio.wait_for(requests.__anext__(), MESSAGE_S)
    except (asyncio.TimeoutError, StopAsyncIteration):
        text = "a health check needs a message"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        raise aio.AbortError(text) from None


async def _too_many(context: CallContext) -> None:
    text = "too many health checks at once"
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
