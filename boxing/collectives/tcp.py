"""Collectives of ranks on different hosts: one TCP connection for each pair, used by all calls.

A call sends every peer one frame: a header (call number, signature, length, text) and the packed
data it needs. All sends and
receives of a call make progress together, so no order of peers can block. Large sums go in two
phases of pairwise
exchanges, which move as much as a ring does and wait for each other less often.
"""

from __future__ import annotations

import hmac
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow.boxing.collectives.base import (
    SLICE_S,
    TEXT_NBYTES,
    CallInfo,
    Check,
    Collectives,
    pack,
    unpack,
)
from oneflow.boxing.collectives.exchange import Array, Exchange
from oneflow.boxing.shared import KeyValueStore
from oneflow.core.errors import DesyncError, PeerLostError, TransportError

_HEADER = struct.Struct(f"<qqq{TEXT_NBYTES}s")
_HELLO = struct.Struct("<i64s")


class TcpCollectives(Collectives):
    """group_name: never used before in this job; host: the address under which peers reach this
    rank.

    token: the job's secret; a connection that does not know it is dropped.
    """

    def __init__(
        self,
        group_name: str,
        rank: int,
        ranks: Sequence[int],
        kv: KeyValueStore,
        check: Check | None = None,
        timeout_s: float = 300.0,
        host: str = "127.0.0.1",
        token: str = "",
    ) -> None:
        super().__init__(rank, ranks, check, timeout_s)
        self._proof = _proof(token, group_name)
        self._call = 0
        self._sockets = self._connect(group_name, kv, host)
        for peer in self._sockets.values():
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # ---- connecting ------------------------------------------------------------------------------

    def _connect(self, name: str, kv: KeyValueStore, host: str) -> dict[int, socket.socket]:
        """Connects to lower ranks and is connected to by higher ones."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family, backlog=128) as listener:
            port = listener.getsockname()[1]
            kv.put(f"tcp/{name}/{self.rank}", f"{host} {port}".encode())
            found: dict[int, socket.socket] = {}
            for peer in (r for r in self.ranks if r < self.rank):
                found[peer] = self._dial(kv.get(f"tcp/{name}/{peer}", self.timeout_s), peer)
            deadline = time.monotonic() + self.timeout_s
            while len(found) < self.size - 1:
                self._accept(listener, found, deadline)
        return found

    def _dial(self, address: bytes, peer: int) -> socket.socket:
        host, port = address.decode().split()
        try:
            link = socket.create_connection((host, int(port)), self.timeout_s)
            link.sendall(_HELLO.pack(self.rank, self._proof))
        except OSError as error:
            raise TransportError(
                f"rank {self.rank} cannot reach rank {peer} at {host}:{port}: {error}"
            ) from error
        return link

    def _accept(
        self, listener: socket.socket, found: dict[int, socket.socket], deadline: float
    ) -> None:
        listener.settimeout(SLICE_S)
        try:
            link, _ = listener.accept()
        except TimeoutError:
            missing = [r for r in self.peers if r not in found]
            if self._peer_check is not None:
                self._peer_check(missing)
            if time.monotonic() > deadline:
                raise TransportError(f"ranks {missing} did not connect in time") from None
            return
        link.settimeout(5.0)
        try:
            peer, proof = _HELLO.unpack(_receive(link, _HELLO.size))
        except (OSError, TransportError):
            link.close()
            return
        known = peer in self.peers and peer not in found and peer > self.rank
        if known and hmac.compare_digest(proof, self._proof):
            found[peer] = link
        else:
            link.close()

    # ---- one call --------------------------------------------------------------------------------

    def _exchange(
        self, info: CallInfo, source: Array | None, target: Array, exchange: Exchange, reduce: Any
    ) -> None:
        self._call += 1
        packed: Array = np.empty(exchange.packed_numel(self.rank), target.dtype)
        pack(source, exchange.packed(self.rank), packed)
        raw = packed.view(np.uint8).data if packed.size else memoryview(b"")
        outgoing: dict[int, list[memoryview]] = {}
        for peer in self.peers:
            needs = self.rank in exchange.senders[peer]
            header = _HEADER.pack(
                self._call, info.signature, len(raw) if needs else 0, info.encoded
            )
            outgoing[peer] = [memoryview(header), *([raw] if needs and len(raw) else [])]
        received = self._swap(info, outgoing)
        if any(call.signature != info.signature for call, _ in received.values()):
            texts = {rank: call.text for rank, (call, _) in received.items()}
            self._raise_desync({**texts, self.rank: info.text})

        def packed_of(rank: int) -> Array:
            data: Array = np.frombuffer(received[rank][1], np.uint8).view(target.dtype)
            return data

        unpack(self.rank, source, target, exchange, packed_of, reduce)
        self.received_nbytes += exchange.received_numel(self.rank) * target.dtype.itemsize

    def _swap(
        self, info: CallInfo, outgoing: dict[int, list[memoryview]]
    ) -> dict[int, tuple[CallInfo, bytearray]]:
        """Sends and receives one frame per peer, whichever socket is ready first."""
        frames = {peer: _Frame(self._call) for peer in self.peers}
        waited = 0.0

        def behind() -> list[int]:
            return sorted(key.data for key in selector.get_map().values())

        with selectors.DefaultSelector() as selector:
            for peer in self.peers:
                events = selectors.EVENT_READ | selectors.EVENT_WRITE
                selector.register(self._sockets[peer], events, peer)
            while selector.get_map():
                ready = selector.select(SLICE_S)
                for key, events in ready:
                    self._move(selector, key.data, events, outgoing[key.data], frames[key.data])
                waited = 0.0 if ready else waited + SLICE_S
                if not ready:
                    self._still_waiting(info, behind, waited)
        return {peer: (frame.call, frame.data) for peer, frame in frames.items()}

    def _move(
        self,
        selector: selectors.BaseSelector,
        peer: int,
        events: int,
        queue: list[memoryview],
        frame: _Frame,
    ) -> None:
        link = self._sockets[peer]
        try:
            if events & selectors.EVENT_WRITE and queue:
                queue[0] = queue[0][link.send(queue[0]) :]
                if not queue[0]:
                    del queue[0]
            if events & selectors.EVENT_READ:
                frame.receive(link)
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerLostError(f"the connection to rank {peer} broke: {error}") from error
        wanted = (selectors.EVENT_WRITE if queue else 0) | (
            0 if frame.is_complete else selectors.EVENT_READ
        )
        if wanted:
            selector.modify(link, wanted, peer)
        else:
            selector.unregister(link)

    def close(self) -> None:
        for link in self._sockets.values():
            link.close()


class _Frame:
    """One frame as it comes in."""

    def __init__(self, call: int) -> None:
        self._expected_call = call
        self._buffer = bytearray(_HEADER.size)
        self._filled = 0
        self._has_header = False
        self.call = CallInfo(0, "", b"")
        self.data = bytearray()

    @property
    def is_complete(self) -> bool:
        return self._has_header and self._filled == len(self._buffer)

    def receive(self, link: socket.socket) -> None:
        """Takes what has come, but nothing of the next frame. Raises ConnectionError at the end of
        the stream."""
        if self.is_complete:
            return
        count = link.recv_into(memoryview(self._buffer)[self._filled :])
        if count == 0:
            raise ConnectionError("it was closed by that rank")
        self._filled += count
        if not self._has_header and self._filled == len(self._buffer):
            self._read_header()

    def _read_header(self) -> None:
        call, signature, nbytes, text = _HEADER.unpack(self._buffer)
        self.call = CallInfo(signature, text.rstrip(b"\0").decode(errors="replace"), text)
        if call != self._expected_call:
            raise DesyncError(
                f"a peer is at call {call} ({self.call.text}), this rank at {self._expected_call}"
            )
        self._has_header = True
        self._buffer = self.data = bytearray(nbytes)
        self._filled = 0


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
