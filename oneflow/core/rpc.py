"""The types of gRPC's objects, as far as they are used: the library itself declares none."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

M = TypeVar("M")
Up = TypeVar("Up", contravariant=True)
Down = TypeVar("Down", covariant=True)
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
Behaviour: TypeAlias = "Callable[[Any, CallContext], Any]"
"""An answer to one call: a coroutine function, or an asynchronous generator function."""


class Message(Protocol):
    """A message of a `.proto` file."""

    @classmethod
    def FromString(cls: type[M], data: bytes, /) -> M: ...
    def ByteSize(self) -> int: ...
    def SerializeToString(self) -> bytes: ...


class Stream(Protocol[Up, Down]):
    """The client's end of a call with streams both ways. A message of None could not be read."""

    async def write(self, request: Up) -> None: ...
    async def read(self) -> Down | None: ...
    def __aiter__(self) -> AsyncIterator[Down | None]: ...
    async def done_writing(self) -> None: ...
    def cancel(self) -> bool: ...


class RpcFailure(Protocol):
    """The side of a failed call that `grpc.RpcError` does not declare."""

    def code(self) -> Enum: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Metadata | None: ...


class CallContext(Protocol):
    """The server's end of a call (`grpc.aio.ServicerContext`)."""

    def peer(self) -> str: ...
    def invocation_metadata(self) -> Metadata | None: ...
    def auth_context(self) -> Mapping[str, Sequence[bytes]]: ...
    def send_initial_metadata(self, initial_metadata: Metadata) -> Awaitable[None]: ...
    def write(self, message: Any) -> Awaitable[None]: ...
    def abort(
        self, code: Enum, details: str = "", trailing_metadata: Metadata = ()
    ) -> Awaitable[NoReturn]: ...


class CallDetails(Protocol):
    """The address of a call that a server's interceptor sees."""

    @property
    def method(self) -> str: ...
    @property
    def invocation_metadata(self) -> Metadata | None: ...


class Handler(Protocol):
    """A server's method (`grpc.RpcMethodHandler`); one of the four behaviours is not None."""

    request_streaming: bool
    response_streaming: bool
    request_deserializer: Callable[[bytes], Any]
    response_serializer: Callable[[Any], bytes]
    unary_unary: Behaviour
    unary_stream: Behaviour
    stream_unary: Behaviour
    stream_stream: Behaviour

    def _replace(self, **fields: Callable[..., object]) -> Handler: ...


class Channel(Protocol):
    """A client's connection."""

    def stream_stream(
        self,
        method: str,
        *,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
    ) -> Callable[..., Any]: ...


class Credentials(Protocol):
    """The TLS keys of a server; gRPC alone looks into them."""


class Server(Protocol):
    """A server of methods."""

    def add_insecure_port(self, address: str) -> int: ...
    def add_secure_port(self, address: str, server_credentials: Credentials) -> int: ...
    async def start(self) -> None: ...
    async def stop(self, grace: float | None) -> None: ...


Find: TypeAlias = Callable[[CallDetails], Awaitable[Handler | None]]
"""The way of an interceptor to what comes behind it."""


_BROKEN = (
    (r"errors resolving|Domain name not found|lookup error", "its name has no address here"),
    (r"[Hh]andshake failed", "one end speaks no TLS, or refuses the other's certificate"),
    (r"Connection refused", "nobody listens there"),
    (r"No route to host|[Nn]etwork is unreachable", "there is no way to it"),
    (r"ping timeout|keepalive|[Tt]imed? ?out|Deadline Exceeded", "it does not answer"),
    (r"Socket closed|reset by peer|Broken pipe|GOAWAY|Cancelling all calls|EOF", "it was closed"),
    (r"failed to connect to all addresses", "it cannot be reached"),
)
"""Sentences for what gRPC says of lines, by its words; the first that fits."""


def why_broken(error: RpcFailure) -> str:
    """Say why a call could not be made or broke off; words of the other end stay as they are."""
    text = " ".join((error.details() or "").split())
    found = (words for pattern, words in _BROKEN if re.search(pattern, text))
    return next(found, text[:400] or f"no reason was given ({error.code().name})")
