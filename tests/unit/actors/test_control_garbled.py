"""A line between ranks that changes bits: bytes that are no message end a call or a stream, no
more.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.actors.control import _raise_error
from oneflow.actors.heartbeat import Heartbeat
from oneflow.core.config import Config
from oneflow.core.errors import TransportError
from oneflow.protos import control_pb2 as pb


def test_an_answer_that_is_no_message_is_an_error_of_the_line() -> None:
    with pytest.raises(TransportError, match="changes bits"):
        _raise_error(None)
    _raise_error(pb.GetReply())


class Stream:
    """gRPC makes None of bytes that are no message."""

    def __init__(self, notices: list[Any]) -> None:
        self.left = notices

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop(0)


def test_a_notice_that_is_no_message_ends_the_stream_and_not_the_rank() -> None:
    heard: list[Any] = []
    owner: Any = SimpleNamespace(is_over=False, take=heard.append)
    heartbeat = Heartbeat(owner, None, Config())
    first, last = pb.Notice(), pb.Notice()
    stream = Stream([first, None, last])
    asyncio.run(heartbeat._read(stream))
    assert heard == [first] and stream.left == [last]
