"""Messages between two processes of one host over a stream socket: 4 bytes length (little-endian),
then a protobuf message of so many bytes.

A daemon and its worker speak WorkerCommand and WorkerMessage so (protos/cluster.proto).
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

from oneflow.core.errors import ProtocolError

MAX_FRAME_NBYTES = 64 << 20
_HEAD = struct.Struct("<I")


def encode_frame(message: Any) -> bytes:
    """A message as it goes over the line. Raises ProtocolError if it is too long."""
    data: bytes = message.SerializeToString()
    if len(data) > MAX_FRAME_NBYTES:
        raise ProtocolError(
            f"a {type(message).__name__} of {len(data)} bytes is longer than {MAX_FRAME_NBYTES}"
        )
    return _HEAD.pack(len(data)) + data


class FrameDecoder:
    """Cuts a stream of bytes into messages of one type; for event loops, which read by pieces."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that `data` completes. Raises ProtocolError for what is none."""
        self._bytes += data
        found, at = [], 0
        while len(self._bytes) - at >= _HEAD.size:
            size = _size(self._bytes[at : at + _HEAD.size])
            if len(self._bytes) - at - _HEAD.size < size:
                break
            at += _HEAD.size
            found.append(_parse(self._kind, bytes(self._bytes[at : at + size])))
            at += size
        del self._bytes[:at]
        return found


class Frames:
    """One end of a blocking socket. `send` may be called from any thread, `receive` from one."""

    def __init__(self, sock: socket.socket, kind: Any) -> None:
        self._socket, self._kind = sock, kind
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """Raises OSError if the other end is gone."""
        data = encode_frame(message)
        with self._sending:
            self._socket.sendall(data)

    def receive(self) -> Any:
        """The next message; None when the other end has closed. Raises ProtocolError."""
        head = self._exactly(_HEAD.size)
        if head is None:
            return None
        data = self._exactly(_size(head))
        if data is None:
            raise ProtocolError("the other end closed in the middle of a message")
        return _parse(self._kind, data)

    def _exactly(self, count: int) -> bytes | None:
        """So many bytes; None if the stream ended before the first of them."""
        data = bytearray(count)
        view, done = memoryview(data), 0
        while done < count:
            got = self._socket.recv_into(view[done:])
            if not got:
                if done:
                    raise ProtocolError("the other end closed in the middle of a message")
                return None
            done += got
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


def _size(head: bytes | bytearray) -> int:
    (size,) = _HEAD.unpack(head)
    if size > MAX_FRAME_NBYTES:
        raise ProtocolError(f"a message of {size} bytes is longer than {MAX_FRAME_NBYTES}")
    return int(size)


def _parse(kind: Any, data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"{len(data)} bytes are no {kind.__name__}: {error}") from None
