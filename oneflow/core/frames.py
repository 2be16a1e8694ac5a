"""Messages between two processes of one host over a stream socket: 4 bytes length (little-endian),
then a protobuf message of so many bytes.

A daemon and its worker speak WorkerCommand and WorkerMessage so (protos/cluster.proto).
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Generic, TypeVar

from oneflow.core.errors import ProtocolError
from oneflow.core.rpc import Message

MAX_FRAME_NBYTES = 64 << 20
_HEAD = struct.Struct("<I")
M = TypeVar("M", bound=Message)


def encode_frame(message: Message) -> bytes:
    """A message as it goes over the line. Raises ProtocolError if it is too long."""
    data: bytes = message.SerializeToString()
    if len(data) > MAX_FRAME_NBYTES:
        raise ProtocolError(
            f"a {type(message).__name__} of {len(data)} bytes is longer than {MAX_FRAME_NBYTES}"
        )
    return _HEAD.pack(len(data)) + data


class FrameDecoder(Generic[M]):
    """Cuts a stream of bytes into messages of one type; for event loops, which read by pieces."""

    def __init__(self, kind: type[M]) -> None:
        self._kind = kind
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages that `data` completes. Raises ProtocolError for bytes that are none."""
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


class Frames(Generic[M]):
    """One end of a blocking socket. `send` may be called from any thread, `receive` from one.

    max_nbytes: of a message that is received; a longer one is refused before it is read.
    """

    def __init__(
        self, sock: socket.socket, kind: type[M], max_nbytes: int = MAX_FRAME_NBYTES
    ) -> None:
        self._socket, self._kind, self._max_nbytes = sock, kind, max_nbytes
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Raises OSError if the other end is gone."""
        data = encode_frame(message)
        with self._sending:
            self._socket.sendall(data)

    def receive(self, deadline: float | None = None) -> M | None:
        """The next message; None when the other end has closed. Raises ProtocolError.

        deadline: time.monotonic() at which it gives up with TimeoutError, however busy the other
        end is; then, and when it has raised anything else, nothing more can be received. It changes
        the socket's timeout, which counts for `send`, too.
        """
        head = self._exactly(_HEAD.size, deadline)
        if head is None:
            return None
        data = self._exactly(_size(head, self._max_nbytes), deadline)
        if data is None:
            raise ProtocolError("the other end closed in the middle of a message")
        return _parse(self._kind, data)

    def _exactly(self, count: int, deadline: float | None) -> bytes | None:
        """So many bytes; None if the stream ended before the first of them."""
        data = bytearray(count)
        view, done = memoryview(data), 0
        while done < count:
            if deadline is not None:
                self._socket.settimeout(_left_s(deadline))
            got = self._socket.recv_into(view[done:])
            if not got:
                if done:
                    raise ProtocolError("the other end closed in the middle of a message")
                return None
            done += got
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


def _left_s(deadline: float) -> float:
    """A socket's timeout counts anew for each piece: a peer that sends byte by byte never passes
    it.
    """
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the message did not come in time")
    return left_s


def _size(head: bytes | bytearray, max_nbytes: int = MAX_FRAME_NBYTES) -> int:
    (size,) = _HEAD.unpack(head)
    if size > max_nbytes:
        raise ProtocolError(f"a message of {size} bytes is longer than {max_nbytes}")
    return int(size)


def _parse(kind: type[M], data: bytes) -> M:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"{len(data)} bytes are no {kind.__name__}: {error}") from None
