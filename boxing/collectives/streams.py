"""Bytes between two ranks as streams: all that a connection still has to send and to receive.

A stream is a generator. An outgoing one gives views of memory to send, an incoming one views to
fill; it is resumed when all of a view has been sent or filled, so the next piece of work (adding up
a block, packing the next one) follows at once, while the block is in cache. Either gives None while
it has to wait for another stream, and is asked again after something has moved.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from oneflow.boxing.collectives.exchange import Slices, view_of
from oneflow.kernels.array import Array

BLOCK_NBYTES = 512 << 10
"""Data that are packed or added up are handled in blocks that stay in a core's own cache; as large
as what a socket holds back, for with half of it sums take a quarter longer, and with an eighth
twice as long: every block costs a wake-up."""

TURN_NBYTES = 1 << 20
"""Bytes in one direction after which the others have their turn."""

MAX_VIEWS = 64

Outgoing = Iterator["list[memoryview] | None"]
Incoming = Iterator["memoryview | None"]


class PeerStreams:
    """One connection. received_nbytes: all bytes ever read from it."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank = rank
        self.socket = connection
        self.received_nbytes = 0
        self._outgoing: Outgoing | None = None
        self._incoming: Incoming | None = None
        self._views: list[memoryview] | None = None
        self._into: memoryview | None = None

    def start(self, outgoing: Outgoing, incoming: Incoming) -> None:
        """The streams of a new call."""
        self._outgoing, self._incoming = outgoing, incoming
        self._views = self._into = None
        self.resume()

    def stop(self) -> None:
        """Forgets the streams of a call that failed, and the memory that they hold."""
        self._outgoing = self._incoming = self._views = self._into = None

    @property
    def is_done(self) -> bool:
        return self._outgoing is None and self._incoming is None

    @property
    def wants_to_send(self) -> bool:
        return self._views is not None

    @property
    def wants_to_receive(self) -> bool:
        return self._into is not None

    def resume(self) -> None:
        """Asks the streams that had to wait again."""
        if self._views is None and self._outgoing is not None:
            self._next_views()
        if self._into is None and self._incoming is not None:
            self._next_into()

    def send(self) -> None:
        """Sends as much as there is room for. Raises OSError if the connection is broken."""
        left = TURN_NBYTES
        while self._views is not None and left > 0:
            try:
                count = self.socket.sendmsg(self._views)
            except BlockingIOError:
                return
            left -= count
            while self._views and count >= len(self._views[0]):
                count -= len(self._views.pop(0))
            if self._views:
                self._views[0] = self._views[0][count:]
            else:
                self._next_views()

    def receive(self) -> None:
        """Take the bytes that came. Raises OSError if the connection is broken or at its end."""
        left = TURN_NBYTES
        while self._into is not None and left > 0:
            try:
                count = self.socket.recv_into(self._into)
            except BlockingIOError:
                return
            if count == 0:
                raise ConnectionError("it was closed at the other end")
            self.received_nbytes += count
            left -= count
            if count < len(self._into):
                self._into = self._into[count:]
            else:
                self._next_into()

    def _next_views(self) -> None:
        assert self._outgoing is not None
        self._views = None
        try:
            self._views = next(self._outgoing)
        except StopIteration:
            self._outgoing = None

    def _next_into(self) -> None:
        assert self._incoming is not None
        self._into = None
        try:
            self._into = next(self._incoming)
        except StopIteration:
            self._incoming = None


# ---- pieces of memory ----------------------------------------------------------------------------


def raw(array: Array) -> memoryview:
    """The bytes of a C-contiguous array, in place."""
    data: memoryview = array.reshape(-1).view(np.uint8).data
    return data


@lru_cache(maxsize=1024)
def blocks_of(shape: tuple[int, ...], max_numel: int) -> tuple[Slices, ...]:
    """Cuts an array into boxes of at most `max_numel` elements, in C order, each of which is a run
    of elements in that order."""
    dim = next((d for d in range(len(shape)) if math.prod(shape[d + 1 :]) <= max_numel), None)
    if dim is None:
        return ((),)
    rows = max(1, max_numel // max(1, math.prod(shape[dim + 1 :])))
    cuts = [slice(a, min(a + rows, shape[dim])) for a in range(0, shape[dim], rows)]
    inner = tuple(slice(0, n) for n in shape[dim + 1 :])
    outer = np.ndindex(*shape[:dim])
    return tuple((*(slice(i, i + 1) for i in at), cut, *inner) for at in outer for cut in cuts)


def block_numel(itemsize: int) -> int:
    return max(1, BLOCK_NBYTES // itemsize)


def outgoing_parts(parts: Sequence[Array], scratch: Array) -> Iterator[list[memoryview]]:
    """Views of `parts` where they are contiguous; others are packed into `scratch` block by block.

    scratch: uint8, a block.
    """
    batch: list[memoryview] = []
    for part in parts:
        if part.flags.c_contiguous:
            batch.append(raw(part))
            if len(batch) == MAX_VIEWS:
                yield batch
                batch = []
            continue
        if batch:
            yield batch
            batch = []
        yield from _packed(part, scratch)
    if batch:
        yield batch


def _packed(part: Array, scratch: Array) -> Iterator[list[memoryview]]:
    for index in blocks_of(part.shape, block_numel(part.itemsize)):
        piece = view_of(part, index)
        if piece.flags.c_contiguous:
            yield [raw(piece)]
            continue
        packed = scratch[: piece.nbytes].view(part.dtype).reshape(piece.shape)
        np.copyto(packed, piece)
        yield [raw(packed)]


def incoming_part(target: Array, scratch: Array) -> Iterator[memoryview]:
    """Yield the memory in which to receive the bytes of `target`: itself, or `scratch` for blocks
    that are strided.
    """
    if target.flags.c_contiguous:
        yield raw(target)
        return
    for index in blocks_of(target.shape, block_numel(target.itemsize)):
        piece = view_of(target, index)
        if piece.flags.c_contiguous:
            yield raw(piece)
            continue
        packed = scratch[: piece.nbytes].view(target.dtype).reshape(piece.shape)
        yield raw(packed)
        np.copyto(piece, packed)


def local_copies(pairs: Sequence[tuple[Array, Array]]) -> Iterator[None]:
    """Copies (target, source) pairs, a few blocks at a time: work for when no socket is ready."""
    for target, source in pairs:
        for index in blocks_of(target.shape, 4 * block_numel(target.itemsize)):
            np.copyto(view_of(target, index), view_of(source, index))
            yield
