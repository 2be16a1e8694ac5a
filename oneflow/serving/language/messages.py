"""Messages between the HTTP server and its workers: their length (4 bytes), then msgpack."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import msgspec

from oneflow.core.errors import ProtocolError

MOST_NBYTES = 64 << 20
_HEAD = struct.Struct("<I")


class Submit(msgspec.Struct, tag=True, frozen=True):
    """A sequence to continue. limit: new tokens at most. stops: tokens that end the text.

    temperature: 0 takes the likeliest. seed: of the draws. logprobs: how many of the likeliest
    words each new token tells, -1: none. scores_prompt: tell them of the prompt's tokens, too.
    """

    id: int
    tokens: list[int]
    limit: int
    stops: list[int]
    temperature: float
    top_p: float
    seed: int
    logprobs: int = -1
    scores_prompt: bool = False


class Cancel(msgspec.Struct, tag=True, frozen=True):
    id: int


class Opened(msgspec.Struct, tag=True, frozen=True):
    """A worker's first message: it takes work. context: tokens of a sequence at most."""

    context: int
    words: int
    stops: list[int]
    blocks: int


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token, its log-probability, and the likeliest ones with theirs."""

    token: int
    logprob: float | None = None
    best: list[tuple[int, float]] = []


class Made(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of a sequence, in order. of_prompt: scores of the prompt's own, but for the first.

    end: "" while it goes on, "stop" behind a token that ends the text (not in `choices`), "length"
    at its limit.
    """

    id: int
    choices: list[Choice]
    end: str = ""
    of_prompt: bool = False


class Steps(msgspec.Struct, tag=True, frozen=True):
    """Results of a step, and the state behind it."""

    made: list[Made]
    blocks_used: int
    running: int
    waiting: int
    preempted: int
    """Sequences that lost their blocks to older ones, since the worker began."""


Request = Submit | Cancel
Report = Opened | Steps


class Encoded:
    """Messages of one union as bytes, and back."""

    def __init__(self, kind: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(kind)

    def encode(self, message: msgspec.Struct) -> bytes:
        data = self._encoder.encode(message)
        return _HEAD.pack(len(data)) + data

    def receive(self, line: socket.socket) -> Any:
        """Wait for the next message; None at the end of the stream."""
        head = _read(line, _HEAD.size)
        return None if head is None else self._decode(_read(line, _size(head)))

    async def receive_async(self, reader: asyncio.StreamReader) -> Any:
        """Wait for the next message; None at the end of the stream."""
        try:
            head = await reader.readexactly(_HEAD.size)
            return self._decode(await reader.readexactly(_size(head)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def _decode(self, data: bytes | None) -> Any:
        if data is None:
            return None
        try:
            return self._decoder.decode(data)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"a message of a serving worker: {error}") from None


def _size(head: bytes) -> int:
    (size,) = _HEAD.unpack(head)
    if size > MOST_NBYTES:
        raise ProtocolError(f"a message of {size} bytes is longer than {MOST_NBYTES}")
    return int(size)


def _read(line: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        found = line.recv(count - len(parts))
        if not found:
            return None
        parts += found
    return bytes(parts)


REQUESTS, REPORTS = Encoded(Request), Encoded(Report)
