"""TCP connections between all ranks of a set, of which each knows the secret of the job."""

from __future__ import annotations

import hmac
import socket
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oneflow.boxing.collectives.base import SLICE_S, Check
from oneflow.boxing.shared import KeyValueStore
from oneflow.core.errors import TransportError
from oneflow.core.tls_relay import relayed

if TYPE_CHECKING:
    from oneflow.core.job_tls import JobTls

SEND_BUFFER_NBYTES = 256 << 10
"""What a socket holds back of what was sent on a short link. The kernel would let it grow to
megabytes, and data that wait for so long have left the cache when they are copied again: between
two hosts on one machine 32 MiB took twice as long in four runs of four. 64 KiB to 512 KiB are
within noise of each other, 1 MiB is no better than none; a small receive buffer loses the gain."""

SHORT_LINK_S = 300e-6
"""Up to this round trip twice the buffer (the kernel doubles it) feeds 10 Gbit/s and more; beyond
it the kernel finds the size."""

_RTT_AT = 68  # tcpi_rtt in struct tcp_info: smoothed round trip, microseconds

_HELLO = struct.Struct("<i64s")


class Mesh:
    """Opens one connection to each peer. For the arguments see `TcpCollectives`."""

    def __init__(
        self,
        name: str,
        rank: int,
        ranks: Sequence[int],
        kv: KeyValueStore,
        check: Check | None,
        timeout_s: float,
        host: str,
        token: str,
        tls: JobTls | None,
    ) -> None:
        self._name, self._rank, self._kv, self._host = name, rank, kv, host
        self._peers = tuple(r for r in ranks if r != rank)
        self._check, self._timeout_s = check, timeout_s
        self._proof, self._tls = _proof(token, name), tls

    def open(self) -> dict[int, socket.socket]:
        """Connects to lower ranks and is connected to by higher ones. Raises TransportError."""
        name, kv, host = self._name, self._kv, self._host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family, backlog=128) as listener:
            port = listener.getsockname()[1]
            kv.put(f"tcp/{name}/{self._rank}", f"{host} {port}".encode())
            found: dict[int, socket.socket] = {}
            for peer in (r for r in self._peers if r < self._rank):
                found[peer] = self._dial(kv.get(f"tcp/{name}/{peer}", self._timeout_s), peer)
            deadline = time.monotonic() + self._timeout_s
            while len(found) < len(self._peers):
                self._accept(listener, found, deadline)
        for connection in found.values():
            _tune(connection)
        return found

    def _dial(self, address: bytes, peer: int) -> socket.socket:
        host, port = address.decode().split()
        try:
            link = socket.create_connection((host, int(port)), self._timeout_s)
            link = relayed(self._tls, link, is_server=False)
            link.sendall(_HELLO.pack(self._rank, self._proof))
        except (OSError, TransportError) as error:
            raise TransportError(
                f"rank {self._rank} cannot reach rank {peer} at {host}:{port}: {error}"
            ) from error
        return link

    def _accept(
        self, listener: socket.socket, found: dict[int, socket.socket], deadline: float
    ) -> None:
        listener.settimeout(SLICE_S)
        try:
            link, _ = listener.accept()
        except TimeoutError:
            missing = [r for r in self._peers if r not in found]
            if self._check is not None:
                self._check(missing)
            if time.monotonic() > deadline:
                raise TransportError(f"ranks {missing} did not connect in time") from None
            return
        link.settimeout(5.0)
        try:
            link = relayed(self._tls, link, is_server=True)
            link.settimeout(5.0)
            peer, proof = _HELLO.unpack(_receive(link, _HELLO.size))
        except (OSError, TransportError):
            link.close()
            return
        known = peer in self._peers and peer not in found and peer > self._rank
        if known and hmac.compare_digest(proof, self._proof):
            found[peer] = link
        else:
            link.close()


def _tune(connection: socket.socket) -> None:
    connection.setblocking(False)
    if connection.family == socket.AF_UNIX:
        return  # of a relay, which has its own buffers
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + 4)
    if struct.unpack_from("I", info, _RTT_AT)[0] * 1e-6 <= SHORT_LINK_S:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_NBYTES)


def _proof(token: str, group_name: str) -> bytes:
    digest = hmac.new(token.encode(), group_name.encode(), "sha256").hexdigest()
    return digest.encode()


def _receive(link: socket.socket, nbytes: int) -> bytes:
    data = bytearray()
    while len(data) < nbytes:
        part = link.recv(nbytes - len(data))
        if not part:
            raise TransportError("a connection closed before it said who it is")
        data += part
    return bytes(data)
