"""A line to a scheduler that cannot lead to somebody else unnoticed.

A channel of gRPC connects again by itself, to any process that listens there by then. Over TLS that
one must show its certificate. Any other connection is made here, once, and gRPC gets a socket of
this process instead, which is handed on to that connection and to no other: when it has ended, all
calls of the channel fail, and its owner makes another line, which is checked and proven like the
first.
"""

from __future__ import annotations

import errno
import os
import queue
import secrets
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from oneflow.core.config import join_address
from oneflow.core.control_channel import channel_options
from oneflow.core.errors import ConfigError
from oneflow.core.folders import check_private
from oneflow.services.proof import PROVE, Claim, Session

PIECE_NBYTES = 256 << 10
ACCEPT_S = 30.0  # gRPC connects at once; a channel that was given up never does
USER_TIMEOUT_MS = 2_000  # of bytes that nobody confirms, as gRPC has it with its keepalive
_CREDENTIALS = struct.Struct("3i")


def line_options() -> list[tuple[str, int]]:
    """Options of a channel over a line. The line is connected already and is never connected
    again, so gRPC's first try may last: a busy machine takes a while to answer it.
    """
    return patient_options(ACCEPT_S)


def patient_options(connect_s: float) -> list[tuple[str, int]]:
    """Options of a channel whose tries to connect, handshakes included, may last so long. gRPC
    names that limit after the pause between two tries, which is another option.
    """
    patient = {"grpc.min_reconnect_backoff_ms": int(1000 * connect_s)}
    return list((dict(channel_options()) | patient).items())


class PinnedChannel:
    """One connection for one channel of gRPC. target: for the channel.  near, far: its ends as
    this process sees them, host:port; "" for those of a Unix socket, which no other user reaches.
    """

    def __init__(self, connection: socket.socket, near: str = "", far: str = "") -> None:
        self._outer, self.near, self.far = connection, near, far
        self._inner: socket.socket | None = None
        self._lock = threading.Lock()
        self._has_ended = False
        name = f"oneflow-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{name}")
        self._listener.listen(1)
        self._listener.settimeout(ACCEPT_S)
        self.target = f"unix-abstract:{name}"
        threading.Thread(target=self._run, name="oneflow-line", daemon=True).start()

    @property
    def is_open(self) -> bool:
        """Tell whether a message sent now can arrive."""
        return not self._has_ended

    def close(self) -> None:
        """Ends the connection; once more is no harm."""
        with self._lock:
            self._has_ended = True
            for end in (self._listener, self._outer, self._inner):
                if end is not None:
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)  # wakes who waits for it, as close does not

    def _run(self) -> None:
        try:
            inner = self._accept()
        except OSError:
            self.close()
            self._outer.close()
            return
        finally:
            self._listener.close()
        with self._lock:
            self._inner = inner
        if self._has_ended:
            self.close()
        back = threading.Thread(
            target=self._hand_on, args=(self._outer, inner), name="oneflow-line", daemon=True
        )
        back.start()
        self._hand_on(inner, self._outer)
        back.join()
        inner.close()
        self._outer.close()

    def _accept(self) -> socket.socket:
        """gRPC's connection: any process may connect to an abstract name, so it must be ours."""
        while True:
            found, _ = self._listener.accept()
            if _process_and_user(found)[0] == os.getpid():
                found.setblocking(True)
                return found
            found.close()

    def _hand_on(self, source: socket.socket, target: socket.socket) -> None:
        """All of one direction; an end is handed on, too, after the last byte."""
        piece = memoryview(bytearray(PIECE_NBYTES))
        try:
            while count := source.recv_into(piece):
                target.sendall(piece[:count])
        except OSError:
            self.close()
        self._has_ended = True
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def dial(host: str, port: int, timeout_s: float) -> PinnedChannel:
    """Dial over TCP. Raises OSError if nobody listens there."""
    found = socket.create_connection((host, port), timeout_s)
    near, far = (join_address(*end[:2]) for end in (found.getsockname(), found.getpeername()))
    if near == far:  # a port of the kernel's met itself
        found.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    found.settimeout(None)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    return PinnedChannel(found, near, far)


def dial_socket(path: Path, timeout_s: float) -> PinnedChannel:
    """Dial over a Unix socket in a folder of this user's. Raises OSError if nobody listens there,
    and ConfigError if it is another user, or could be.
    """
    check_private(path.parent)
    found = socket.socket(socket.AF_UNIX)
    try:
        found.settimeout(timeout_s)
        found.connect(str(path))
        _, user = _process_and_user(found)
        if user not in (os.geteuid(), 0):
            raise ConfigError(f"user {user} listens at unix:{path}: nothing is sent there")
        found.settimeout(None)
    except BaseException:
        found.close()
        raise
    return PinnedChannel(found)


def _process_and_user(found: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end of a Unix socket, as the kernel
    knows them.
    """
    asked = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(asked)
    return pid, uid


def prove(channel: Any, claim: Claim, timeout_s: float) -> Session:
    """Prove the token over a channel of grpc, both ways. Raises ImpostorError, or grpc.RpcError
    for the server's refusal.
    """
    steps: queue.SimpleQueue[Any] = queue.SimpleQueue()
    steps.put(claim.knock())
    call = _prove_call(channel)(iter(steps.get, None), timeout=timeout_s)
    try:
        steps.put(claim.answer(next(call, None)))
        return claim.session(next(call, None))
    finally:
        steps.put(None)
        call.cancel()


async def prove_async(channel: Any, claim: Claim, timeout_s: float) -> Session:
    """The same over a channel of grpc.aio."""
    call = _prove_call(channel)(timeout=timeout_s)
    try:
        await call.write(claim.knock())
        step = await call.read()
        await call.write(claim.answer(step or None))
        step = await call.read()
        return claim.session(step or None)
    finally:
        call.cancel()


def _prove_call(channel: Any) -> Any:
    from oneflow.protos import proof_pb2 as pb

    return channel.stream_stream(
        PROVE,
        request_serializer=pb.ProofStep.SerializeToString,
        response_deserializer=pb.DoorStep.FromString,
    )
