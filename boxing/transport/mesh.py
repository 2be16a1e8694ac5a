"""One TCP connection between each two ranks of a set: the mesh below eager collectives and graphs.

Every rank listens, says where under a key of the job, connects to the lower ranks and is connected
to by the higher ones. Lower ranks need not wait for higher ones, so the meeting cannot go in a
circle. Both ends prove that they know the key of the mesh (see `handshake`); each connection does
so in a thread of its own, so a stranger that connects and says nothing holds nobody up. With TLS
the connections are relayed (see `tls_relay`).
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oneflow.boxing.transport.handshake import prove_as_acceptor, prove_as_dialler
from oneflow.boxing.transport.rendezvous import SLICE_S, Check, KeyValueStore
from oneflow.core.errors import TransportError
from oneflow.core.log import get_logger
from oneflow.services.tls_relay import relayed

if TYPE_CHECKING:
    from oneflow.core.job_tls import JobTls

log = get_logger(__name__)

STRANGER_S = 15.0
"""Seconds that each message of a handshake may take at the acceptor, to whom anybody may connect;
then the connection is closed. A peer without a core may take seconds."""

MAX_STRANGERS = 64
"""Connections besides those of the peers that may be in a handshake at once; others wait."""

KEY_NBYTES = 32

SEND_BUFFER_NBYTES = 256 << 10
"""Bytes that a socket holds back of what was sent on a short link. The kernel would let it grow to
megabytes, and data that wait for so long have left the cache when they are copied again: between
two hosts on one machine 32 MiB took twice as long in four runs of four. 64 KiB to 512 KiB are
within noise of each other, 1 MiB is no better than none; a small receive buffer loses the gain."""

SHORT_LINK_S = 300e-6
"""Up to this round trip twice the buffer (the kernel doubles it) feeds 10 Gbit/s and more; beyond
it the kernel finds the size."""

_RTT = struct.Struct("=I")
_RTT_AT = 68  # tcpi_rtt in struct tcp_info: smoothed round trip, microseconds


class Mesh:
    """One rank's connections to `peers`, some of the `ranks` of a set, all of which open the mesh.

    name: of the mesh, never used before in this job.  check: raises if the job is over or one of
    the given ranks has left.  timeout_s: a longer wait for a peer is an error.  host: the address
    under which peers reach this rank.  tls: None: in the clear.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        ranks: Sequence[int],
        peers: Sequence[int],
        kv: KeyValueStore,
        check: Check | None = None,
        timeout_s: float = 60.0,
        host: str = "127.0.0.1",
        tls: JobTls | None = None,
    ) -> None:
        self.name = name
        self._rank, self._is_first, self._peers = rank, rank == min(ranks), tuple(peers)
        self._kv, self._check, self._timeout_s = kv, check, timeout_s
        self._host, self._tls = host, tls
        self._lock = threading.Lock()
        self._found: dict[int, socket.socket] = {}
        self._is_open = True
        self._handshakes = threading.Semaphore(len(self._peers) + MAX_STRANGERS)

    def open(self) -> dict[int, socket.socket]:
        """Connect to all peers. Returns a non-blocking socket for each.

        Raises TransportError, or the error of `check`.
        """
        try:
            self._open()
        except BaseException as error:
            with self._lock:
                self._is_open = False
            for sock in self._found.values():
                sock.close()
            if isinstance(error, OSError):
                raise TransportError(
                    f"rank {self._rank} cannot connect to its peers: {error}"
                ) from error
            raise
        for sock in self._found.values():
            _tune(sock)
        return self._found

    def _open(self) -> None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.create_server((self._host, 0), family=family, backlog=128) as listener:
            key = self._shared_key()
            address = f"{self._host} {listener.getsockname()[1]}"
            self._kv.put(f"mesh/{self.name}/{self._rank}", address.encode())
            for peer in (p for p in self._peers if p < self._rank):
                self._found[peer] = self._dial(key, peer)
            deadline = time.monotonic() + self._timeout_s
            listener.settimeout(SLICE_S)
            while missing := [p for p in self._peers if p not in self._found]:
                self._accept(listener, key)
                self._ask(missing)
                if time.monotonic() > deadline:
                    raise TransportError(
                        f"ranks {missing} did not connect within {self._timeout_s:g} s"
                    )

    def _shared_key(self) -> bytes:
        """The key of this mesh, made by the first rank: only ranks can read the keys of a job."""
        place = f"mesh-key/{self.name}"
        if self._is_first:
            self._kv.put(place, secrets.token_bytes(KEY_NBYTES))
        key = bytes(self._kv.get(place, self._timeout_s))
        if len(key) != KEY_NBYTES:
            raise TransportError(f"the key of mesh {self.name} has {len(key)} bytes")
        return key

    def _dial(self, key: bytes, peer: int) -> socket.socket:
        address = self._kv.get(f"mesh/{self.name}/{peer}", self._timeout_s).decode()
        host, _, port = address.partition(" ")
        sock: socket.socket | None = None
        try:
            sock = socket.create_connection((host, int(port)), self._timeout_s)
            sock = relayed(self._tls, sock, is_server=False)
            prove_as_dialler(
                sock, key, self._rank, peer, self._timeout_s, lambda: self._ask([peer])
            )
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, (OSError, TransportError)):
                raise TransportError(
                    f"rank {self._rank} cannot reach rank {peer} at {host}:{port}: {error}"
                ) from error
            raise
        return sock

    def _accept(self, listener: socket.socket, key: bytes) -> None:
        """Take one connection, if there is one, and let it prove itself."""
        if not self._handshakes.acquire(timeout=SLICE_S):
            return
        try:
            sock, _ = listener.accept()
            threading.Thread(target=self._admit, args=(sock, key), daemon=True).start()
        except TimeoutError:
            self._handshakes.release()

    def _admit(self, sock: socket.socket, key: bytes) -> None:
        """Keep the connection of a peer; close that of a stranger."""
        try:
            sock = relayed(self._tls, sock, is_server=True)
            peer = prove_as_acceptor(sock, key, self._rank, self._expects, STRANGER_S)
            with self._lock:
                if not self._expects(peer):
                    raise TransportError(f"rank {self._rank}: rank {peer} connected twice")
                self._found[peer] = sock
        except (OSError, TransportError) as error:
            log.warning("refused a connection: %s", error)
            sock.close()
        finally:
            self._handshakes.release()

    def _expects(self, peer: int) -> bool:
        awaited = peer in self._peers and peer > self._rank and peer not in self._found
        return self._is_open and awaited

    def _ask(self, missing: Sequence[int]) -> None:
        if self._check is not None:
            self._check(missing)


def _tune(sock: socket.socket) -> None:
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return  # of a relay, which has its own buffers
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if round_trip_s(sock) <= SHORT_LINK_S:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_NBYTES)


def round_trip_s(sock: socket.socket) -> float:
    """Round trip that the kernel has measured on recent data; 0.0 if it has none."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + _RTT.size)
    except OSError:  # closed meanwhile, or no TCP
        return 0.0
    if len(info) < _RTT_AT + _RTT.size:
        return 0.0
    return float(_RTT.unpack_from(info, _RTT_AT)[0]) * 1e-6
