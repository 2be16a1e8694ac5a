"""The calls that need no token: the standard health service, and no more than a little of it. Calls
are answered only once their message is there, which a stranger may never send: so it is waited for
a moment only, by few.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TypeAlias

import grpc
from grpc import aio

from oneflow.core.rpc import CallContext, CallDetails, Find, Handler, Message
from oneflow.scheduler.interceptor import Interceptor, behaviour_of, called_at_once

PREFIX = "/grpc.health.v1.Health/"
MAX_ASKING = 256
MAX_WATCHING = 64
MESSAGE_S = 5.0

Messages: TypeAlias = "AsyncIterator[Message | None]"


class Strangers:
    """Stands before the health service."""

    def __init__(self) -> None:
        self._under_way: Counter[bool] = Counter()  # by whether they watch

    def guarded(self, handler: Handler) -> Handler:
        """The same method, for as many at once as may be."""
        behaviour, watches = behaviour_of(handler), handler.response_streaming

        async def answer(messages: Messages, context: CallContext) -> Message | None:
            if self._under_way[watches] >= (MAX_WATCHING if watches else MAX_ASKING):
                text = "too many health checks at once"
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            self._under_way[watches] += 1
            try:
                request = await _only(messages, context)
                if not watches:
                    reply: Message = await behaviour(request, context)
                    return reply
                async with aclosing(behaviour(request, context)) as statuses:
                    async for status in statuses:
                        await context.write(status)
                return None
            finally:
                self._under_way[watches] -= 1

        return called_at_once(handler, answer)


class HealthOnly(Interceptor):
    """The guard of a server that has nothing but the health service."""

    def __init__(self) -> None:
        self._strangers = Strangers()

    async def intercept_service(self, continuation: Find, details: CallDetails) -> Handler | None:
        handler = await continuation(details)
        if handler is None or not str(details.method).startswith(PREFIX):
            return None
        return self._strangers.guarded(handler)


async def _only(messages: Messages, context: CallContext) -> Message:
    """The one message of a call."""
    try:
        message = await asyncio.wait_for(anext(messages, None), MESSAGE_S)
    except asyncio.TimeoutError:
        message = None
    if message is None:
        text = "a health check needs a message"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        raise aio.AbortError(text)
    return message
