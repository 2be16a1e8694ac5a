"""The base class of a server's interceptors, with the types that gRPC does not declare, and the
form in which they hand on a method.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from oneflow.core.rpc import Behaviour, CallContext, CallDetails, Find, Handler, Message


class Interceptor(aio.ServerInterceptor):  # type: ignore[misc]  # gRPC declares no types
    """Stands before every method of a server."""

    async def intercept_service(self, continuation: Find, details: CallDetails) -> Handler | None:
        """The handler that answers a call. continuation: finds the one that stands behind."""
        return await continuation(details)


def called_at_once(
    handler: Handler, answer: Callable[[Any, CallContext], Awaitable[Message | None]]
) -> Handler:
    """Return `answer` as the handler of a method, called before any message of the call is there.

    gRPC itself waits for the message of a call that has one, which a stranger need never send. So
    `answer` always takes a stream, of messages and of None for bytes that are no message. It
    returns the one answer, or writes the many itself: a generator that is interrupted while gRPC
    sends its message is not told, and its caller would hear nothing until the server has gone.
    """
    streams = handler.response_streaming
    make = (
        grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
    )
    made: Handler = make(
        answer,
        request_deserializer=lenient(handler.request_deserializer),
        response_serializer=handler.response_serializer,
    )
    return made


def behaviour_of(handler: Handler) -> Behaviour:
    """The one of a handler's four behaviours that it has."""
    takes = "stream" if handler.request_streaming else "unary"
    gives = "stream" if handler.response_streaming else "unary"
    found: Behaviour = getattr(handler, f"{takes}_{gives}")
    return found


def lenient(read: Callable[[bytes], Message]) -> Callable[[bytes], Message | None]:
    """Return a reader that gives None for bytes that are no message, so that their sender can be
    told so.
    """

    def read_or_none(data: bytes) -> Message | None:
        try:
            return read(data)
        except DecodeError:
            return None

    return read_or_none
