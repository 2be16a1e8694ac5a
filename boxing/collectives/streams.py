"""Bytes between two ranks as streams: what a connection still has to send and to receive.

A stream is a generator. An outgoing one gives views of memory to send, an incoming one views to
fill; it is resumed when all of a view has been sent or filled, so whatever has to follow (adding
up a block, packing the next one) follows at once, while the block is in cache. Either gives None
while it has to wait for another stream, and is asked again after something has moved.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from oneflow.boxing.collectives.exchange import Array, Exchange
from oneflow.core.errors import DesyncError

BLOCK_NBYTES = 512 << 10
"""Data that are packed or added up are handled in blocks that stay in a core's own cache; as large
as what a socket holds back, for with half of it sums take a quarter longer, and with an eighth
twice as long: every block costs a wake-up."""

SLOTS = 4
"""Blocks of a sum that one peer may be ahead of the slowest."""

TURN_NBYTES = 1 << 20
"""After so many bytes in one direction the others have their turn."""

MAX_VIEWS = 64

Slices = tuple[slice, ...]
Outgoing = Iterator["list[memoryview] | None"]
Incoming = Iterator["memoryview | None"]


class Link:
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
        """Takes what has come. Raises OSError if the connection is broken or at its end."""
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


# ---- what an exchange means for one rank -------------------------------------------------------


@dataclass(frozen=True)
class Sum:
    """target = operands, added up in order. operands: (rank, slices of its source).

    onto: what is in the target comes first.
    """

    target: Slices
    operands: tuple[tuple[int, Slices], ...]
    onto: bool


@dataclass(frozen=True)
class Wire:
    """One rank's part in an exchange, sorted by peer.

    outgoing: reader -> parts of the own source.  incoming: sender -> (target slices, index of the
    sum that it is an operand of, or None to fill the target).  local: from the own source.
    repeated: parts that this rank wants twice: from where in the target to where.
    """

    outgoing: dict[int, list[Slices]] = field(default_factory=dict)
    incoming: dict[int, list[tuple[Slices, int | None]]] = field(default_factory=dict)
    incoming_numel: dict[int, int] = field(default_factory=dict)
    sums: list[Sum] = field(default_factory=list)
    local: list[tuple[Slices, Slices]] = field(default_factory=list)
    repeated: list[tuple[Slices, Slices]] = field(default_factory=list)
    fills_zero: bool = False


@lru_cache(maxsize=256)
def wire_of(exchange: Exchange, rank: int) -> Wire:
    """What `rank` sends, receives and copies, each part once for a reader."""
    wire = Wire(fills_zero=rank in exchange.zero_filled)
    for reader in exchange.ranks:
        if reader != rank and rank in exchange.senders[reader]:
            wire.outgoing[reader] = [s for r, s, _, _ in _parts(exchange, reader) if r == rank]
    for source, slices, target, number in _parts(exchange, rank):
        if source != rank:
            numel = math.prod(s.stop - s.start for s in target)
            wire.incoming.setdefault(source, []).append((target, number))
            wire.incoming_numel[source] = wire.incoming_numel.get(source, 0) + numel
        elif number is None:
            wire.local.append((slices, target))
    wire.sums.extend(_sums(exchange, rank))
    wire.repeated.extend(_repeated(exchange, rank))
    return wire


@lru_cache(maxsize=256)
def _sums(exchange: Exchange, rank: int) -> tuple[Sum, ...]:
    chains: dict[Any, list[Any]] = {}
    for read in exchange.reads(rank):
        if read.numel:
            chains.setdefault(_key(read.target_slices), []).append(read)
    return tuple(
        Sum(
            reads[0].target_slices,
            tuple((r.source_rank, r.source_slices) for r in reads),
            reads[0].add,
        )
        for reads in chains.values()
        if len(reads) > 1 or reads[0].add
    )


@lru_cache(maxsize=256)
def _parts(exchange: Exchange, rank: int) -> tuple[tuple[int, Slices, Slices, int | None], ...]:
    """(source rank, its slices, target slices, number of the sum) of all that `rank` takes in, in
    order; a part that only fills memory comes once."""
    numbers = {_key(s.target): i for i, s in enumerate(_sums(exchange, rank))}
    seen: set[Any] = set()
    found = []
    for read in exchange.reads(rank):
        number = numbers.get(_key(read.target_slices))
        part = read.source_rank, _key(read.source_slices)
        if read.numel == 0 or (number is None and part in seen and read.source_rank != rank):
            continue
        if number is None:
            seen.add(part)
        found.append((read.source_rank, read.source_slices, read.target_slices, number))
    return tuple(found)


def _repeated(exchange: Exchange, rank: int) -> Iterator[tuple[Slices, Slices]]:
    numbers = {_key(s.target) for s in _sums(exchange, rank)}
    first: dict[Any, Slices] = {}
    for read in exchange.reads(rank):
        if read.numel == 0 or read.source_rank == rank or _key(read.target_slices) in numbers:
            continue
        part = read.source_rank, _key(read.source_slices)
        if part in first:
            yield first[part], read.target_slices
        first.setdefault(part, read.target_slices)


def _key(slices: Slices) -> tuple[tuple[int, int], ...]:
    return tuple((s.start, s.stop) for s in slices)


# ---- pieces of memory ----------------------------------------------------------------------------


def view_of(array: Array, slices: Slices) -> Array:
    """The Ellipsis makes it a view of a 0-d array too, where indexing alone would copy."""
    index: Any = (..., *slices)
    view: Array = array[index]
    return view


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
    """Where to receive what fills `target`: itself, or `scratch` for blocks that are strided."""
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


# ---- sums ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """target = operands, first to last; one is an array of this rank's, or the rank of a peer."""

    target: Array
    operands: tuple[Array | int, ...]


class Sums:
    """All sums of a call, block by block, in rank order whoever's data come first.

    A peer fills one of its slots for every block that it has a part in, and at most `SLOTS` blocks
    ahead. When all parts of a block are there, it is added up and its slots are free; the one that
    was used last, which is in the cache, is used first. All streams bring blocks in one order, so a
    stream that waits never waits for one that waits for it.
    """

    def __init__(self, scratch_of: Any) -> None:
        self._scratch_of = scratch_of  # rank of a peer -> uint8, SLOTS blocks
        self._blocks: list[_Block] = []
        self._missing: list[int] = []
        self._reduce: list[Any] = []
        self._free: dict[int, list[int]] = {}
        self._slot_of: dict[tuple[int, int], int] = {}  # (rank, number of the block) -> slot
        self.done = 0
        """Blocks from the first on that are added up."""

    def add(self, target: Array, operands: Sequence[Array | int], reduce: Any) -> range:
        """One sum; operands: arrays like `target`, or ranks. Returns the numbers of its blocks."""
        first = len(self._blocks)
        remote = sum(isinstance(o, int) for o in operands)
        for index in blocks_of(target.shape, block_numel(target.itemsize)):
            own = tuple(o if isinstance(o, int) else view_of(o, index) for o in operands)
            self._blocks.append(_Block(view_of(target, index), own))
            self._missing.append(remote)
            self._reduce.append(reduce)
        return range(first, len(self._blocks))

    def receive(self, rank: int, blocks: range) -> Incoming:
        """The stream of what `rank` has to add to these blocks."""
        for number in blocks:
            while number >= self.done + SLOTS:
                yield None
            self._slot_of[rank, number] = self._free.setdefault(rank, list(range(SLOTS))).pop()
            yield raw(self._slot(rank, number))
            self._missing[number] -= 1
            self.advance()

    def advance(self) -> None:
        """Adds up what is complete."""
        while self.done < len(self._blocks) and self._missing[self.done] == 0:
            self._add_up(self.done)
            self.done += 1

    def _slot(self, rank: int, number: int) -> Array:
        target = self._blocks[number].target
        start = self._slot_of[rank, number] * BLOCK_NBYTES
        memory: Array = self._scratch_of(rank)[start : start + target.nbytes]
        slot: Array = memory.view(target.dtype).reshape(target.shape)
        return slot

    def _add_up(self, number: int) -> None:
        """The target is written last: it may be an operand itself."""
        block, reduce = self._blocks[number], self._reduce[number]
        operands = [self._slot(o, number) if isinstance(o, int) else o for o in block.operands]
        slot = next((i for i, o in enumerate(block.operands) if isinstance(o, int)), 0)
        total = operands[0]
        for i, operand in enumerate(operands[1:], 1):
            is_last = i == len(operands) - 1
            into = block.target if is_last else self._partial(operands, slot, i, total)
            reduce(total, operand, out=into)
            total = into
        for rank in block.operands:
            if isinstance(rank, int):
                self._free[rank].append(self._slot_of.pop((rank, number)))

    @staticmethod
    def _partial(operands: list[Array], slot: int, i: int, total: Array) -> Array:
        """Where the sum of operands 0..i goes: a slot that has been read, never a source."""
        return operands[slot] if slot <= i else np.empty_like(total)


def need_source(rank: int, source: Array | None) -> Array:
    if source is None:
        raise DesyncError(f"rank {rank} has no shard of a tensor that it should hold")
    return source
