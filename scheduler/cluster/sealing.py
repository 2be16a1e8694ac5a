"""A checksum behind each message of a daemon's stream, so that a wrong bit is not believed.

TLS has better ones, but on the loopback device there may be none, and one bit makes another message
of a message: an `ack` became a `drain`. The checksum is a field of its own at the end of the bytes,
so whoever does not know it reads the message all the same. A message without it is taken, unless
its fifth last byte is the field's tag by chance: then it is refused, for it cannot be told from one
that a wrong bit has made. Only peers of another version send messages without it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import TypeAlias

from google.protobuf.message import DecodeError

from oneflow.core.rpc import Channel, Handler, Message, Stream
from oneflow.protos import cluster_pb2 as pb

ATTACH = "/oneflow.Daemons/Attach"
_TAG = b"\x7d"  # field 15, fixed32: `checksum` in cluster.proto
_CHECKSUM = struct.Struct("<I")
_NBYTES = len(_TAG) + _CHECKSUM.size

AttachStream: TypeAlias = "Stream[pb.DaemonMessage, pb.SchedulerMessage]"
Write = Callable[[Message], bytes]
Read = Callable[[bytes], Message]


def sealing(write: Write) -> Write:
    """Serializes as `write` does, with the CRC-32 of the bytes behind them."""

    def seal(message: Message) -> bytes:
        data = write(message)
        return data + _TAG + _CHECKSUM.pack(zlib.crc32(data))

    return seal


def opening(read: Read) -> Read:
    """The inverse of `sealing`. Raises DecodeError if the checksum is that of other bytes."""

    def unseal(data: bytes) -> Message:
        if data[-_NBYTES : -_CHECKSUM.size] != _TAG:
            return read(data)
        end = len(data) - _NBYTES
        if zlib.crc32(memoryview(data)[:end]) != _CHECKSUM.unpack_from(data, end + 1)[0]:
            raise DecodeError("the checksum is that of other bytes")
        return read(data[:end])

    return unseal


def attach_call(channel: Channel) -> Callable[..., AttachStream]:
    """A daemon's call of ATTACH, with checksums both ways."""
    call: Callable[..., AttachStream] = channel.stream_stream(
        ATTACH,
        request_serializer=sealing(pb.DaemonMessage.SerializeToString),
        response_deserializer=opening(pb.SchedulerMessage.FromString),
    )
    return call


def sealed(handler: Handler) -> Handler:
    """A server's handler of a method whose messages carry checksums both ways."""
    return handler._replace(
        request_deserializer=opening(handler.request_deserializer),
        response_serializer=sealing(handler.response_serializer),
    )
