"""The interface of all backends: five primitives over one set of ranks, and their common parts.

Rules: all ranks of the set make the same calls in the same order; those of several threads of a
rank take turns, but their order must be the same on all ranks too. A call that differs from a
peer's (kind, reduction, source rank, dtype, shape, layouts) raises DesyncError on every rank before
any data is touched. Ranks that wait for each other in calls of different sets are found through
`Collectives.watch`. Sums are added in rank order by their owners, so every copy of a sum is equal
to the last bit, and equal from run to run.
"""

from __future__ import annotations

import functools
import hashlib
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

import numpy as np

from oneflow.boxing.boxes import balanced_part
from oneflow.boxing.collectives.exchange import (
    Exchange,
    Packed,
    all_to_all_exchange,
    chains,
    combine_all,
    gather_exchange,
    need_source,
    scatter_exchange,
    sum_exchange,
    view_of,
)
from oneflow.boxing.transitions import is_one_hop
from oneflow.boxing.transport.rendezvous import Check
from oneflow.core.errors import (
    DesyncError,
    HangError,
    OneFlowError,
    PeerLostError,
    ShapeError,
    TransportError,
)
from oneflow.core.location import user_location
from oneflow.core.metrics import METRICS
from oneflow.kernels.array import Array

REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}

TEXT_NBYTES = 192
"""Largest size of the text of a call, as peers see it."""

LONG_WAIT_S = 1.0
"""A rank that waits for longer lets others know."""

WAS_IN = "was in "
"""Between a rank that has lost another and its call."""

ADVICE = (
    "Maybe executing different code in different ranks, please check if the code is branched and "
    "operates on the global tensor"
)


@dataclass(frozen=True)
class CallInfo:
    """A call as peers see it. signature: of all that must agree. text: for messages, with line."""

    signature: int
    text: str
    encoded: bytes


_PLACEMENT = re.compile(r"@\w+\[[\d, \[\]]*\]")
_RUN = re.compile(r"\d+(?:, \d+){2,}")


@lru_cache(maxsize=8192)
def call_info(kind: str, dtype: str, shape: tuple[int, ...], location: str) -> CallInfo:
    """kind: the call with all else that must agree; shape: dims that must be equal on all ranks."""
    what = f"{kind} {dtype}{list(shape)}" if dtype else kind
    digest = hashlib.blake2b(what.encode(), digest_size=8).digest()
    text = call_text(what, location)
    encoded = text.encode().ljust(TEXT_NBYTES, b"\0")
    return CallInfo(int.from_bytes(digest, "little", signed=True), text, encoded)


def call_text(what: str, location: str, nbytes: int = TEXT_NBYTES) -> str:
    """`what at location` in at most `nbytes` of UTF-8.

    A text that is too long names ranks in short (`cpu[0..63]`), and then loses its middle: the op
    stands at the beginning, the file's name and the line at the end.
    """
    where = f" at {location}" if location else ""
    if len((what + where).encode()) > nbytes:
        what = _PLACEMENT.sub(lambda found: _RUN.sub(_in_short, found[0]), what)
    if len((what + where).encode()) <= nbytes:
        return what + where
    where = shortened(where, max(nbytes // 2, nbytes - len(what.encode())), 0.1)
    return shortened(what, nbytes - len(where.encode()), 0.5) + where


def _in_short(numbers: re.Match[str]) -> str:
    first, *_, last = found = [int(n) for n in numbers[0].split(", ")]
    return f"{first}..{last}" if found == list(range(first, last + 1)) else numbers[0]


def shortened(text: str, nbytes: int, head: float) -> str:
    """`text` with a part replaced by `...`, so that its UTF-8 has at most `nbytes`.

    head: share of the rest that comes from the beginning.
    """
    raw = text.encode()
    if len(raw) <= nbytes:
        return text
    first = int((nbytes - 3) * head)
    last = raw[len(raw) - (nbytes - 3 - first) :]
    return f"{raw[:first].decode(errors='ignore')}...{last.decode(errors='ignore')}"


@lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """`dtype.name`, which NumPy works out anew each time."""
    return str(dtype.name)


P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound="Collectives")
Method: TypeAlias = "Callable[Concatenate[C, P], R]"


def _counted(call: Method[C, P, R]) -> Method[C, P, R]:
    """Counts a call of a script, its time and the bytes that this rank read of others."""
    name = call.__name__

    @functools.wraps(call)
    def counted(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._turn:
            before, start = self.received_nbytes, time.perf_counter()
            result = call(self, *args, **kwargs)
            nbytes = self.received_nbytes - before
        METRICS.collective(name, nbytes, time.perf_counter() - start)
        return result

    return counted


_HEAD_NBYTES = 256
"""Payloads of a few bytes less are gathered in one exchange."""


class Watch(Protocol):
    """A listener that is told of waits of more than LONG_WAIT_S: `number` is that of the call on
    this set.
    """

    def still(self, number: int, text: str, missing: Sequence[int]) -> None:
        """Called once in SLICE_S while the wait goes on. Raises DesyncError if it can never end."""

    def last_word(self, number: int, text: str, missing: Sequence[int]) -> None:
        """The job is over: raises DesyncError if that is because of this wait."""


class Collectives(ABC):
    """One rank's end of a set of ranks.

    check: raises if one of the given ranks is known to be gone; called while waiting for them (a
    rank that has done its part may leave).  timeout_s: a longer wait is a HangError.
    """

    has_own_all_reduce: ClassVar[bool] = False
    """Whether the device has an all_reduce of its own, so that graphs leave theirs to it."""

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        check: Check | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        self.rank = rank
        self.ranks = tuple(ranks)
        self.index = self.ranks.index(rank)
        self.size = len(self.ranks)
        self.peers = tuple(r for r in self.ranks if r != rank)
        self.timeout_s = timeout_s
        self.received_nbytes = 0
        self.calls = 0
        """Number of the last call that this rank has begun."""
        self.watch: Watch | None = None
        self._broken = ""
        self._peer_check = check
        self._turn = threading.RLock()
        """Held by the thread whose call goes on: two at once would write into each other's."""

    # ---- the five primitives ---------------------------------------------------------------------

    @_counted
    def all_reduce(
        self, x: Array, op: str = "sum", out: Array | None = None, what: str = ""
    ) -> Array:
        """The elementwise reduction over all ranks. op: sum, max, min, prod.

        out: a C-contiguous array for the result, of its shape and dtype; None: a new one. Here it
        may be x itself; the other primitives take one too.
        what: the call this is part of, with everything that must agree.
        """
        flat = np.ascontiguousarray(x).reshape(-1)
        out = result_array(out, x.shape, x.dtype)
        info = (
            self._info(what) if what else self._info(f"all_reduce({op})", x.dtype, tuple(x.shape))
        )
        result: Array = out.reshape(-1)
        if self.size == 1:
            np.copyto(result, flat)
        elif is_one_hop(flat.nbytes, self.size):
            total = np.empty(flat.shape, flat.dtype)  # x is read after the first write
            self._exchange(info, flat, total, sum_exchange(self.ranks, flat.size), REDUCTIONS[op])
            np.copyto(result, total)
        else:
            self._all_reduce_large(info, flat, result, op)
        return out

    @_counted
    def reduce_scatter(
        self, x: Array, op: str = "sum", out: Array | None = None, what: str = "reduce_scatter"
    ) -> Array:
        """Dim 0 is divided balanced between the ranks; each gets its part of the reduction."""
        if x.ndim == 0:
            raise ShapeError("reduce_scatter: a 0-d array has no dim to divide between the ranks")
        flat = np.ascontiguousarray(x).reshape(-1)
        start, stop = balanced_part(x.shape[0], self.size, self.index)
        row = max(1, flat.size // max(1, x.shape[0]))
        out = result_array(out, (stop - start, *x.shape[1:]), x.dtype)
        exchange = scatter_exchange(self.ranks, flat.size, row)
        info = self._info(f"{what}({op})", x.dtype, x.shape)
        self._exchange(info, flat, out.reshape(-1), exchange, REDUCTIONS[op])
        return out

    @_counted
    def all_gather(
        self,
        x: Array,
        counts: Sequence[int] | None = None,
        what: str = "all_gather",
        out: Array | None = None,
    ) -> Array:
        """The flat elements of all ranks in order.

        counts: elements of each; None: x has one shape on all.  what: the call this is part of.
        """
        flat = np.ascontiguousarray(x).reshape(-1)
        sizes = (flat.size,) * self.size if counts is None else tuple(counts)
        out = result_array(out, (sum(sizes),), flat.dtype)
        info = self._gather_info(what, x, sizes, counts is None)
        self._exchange(info, flat, out, gather_exchange(self.ranks, sizes), np.add)
        return out

    @_counted
    def all_to_all(self, x: Array, out: Array | None = None) -> Array:
        """Exchange rows between all ranks.

        x: (size, ...); result[i] is x[own index] of rank i.
        """
        if x.ndim == 0 or x.shape[0] != self.size:
            raise ShapeError(f"all_to_all: dim 0 of {list(x.shape)} must be the {self.size} ranks")
        flat = np.ascontiguousarray(x).reshape(-1)
        out = result_array(out, x.shape, x.dtype)
        exchange = all_to_all_exchange(self.ranks, flat.size // self.size)
        info = self._info("all_to_all", x.dtype, x.shape)
        self._exchange(info, flat, out.reshape(-1), exchange, np.add)
        return out

    @_counted
    def transfer(
        self,
        what: str,
        source: Array | None,
        target: Array,
        exchange: Exchange,
        op: str = "sum",
    ) -> None:
        """Fills `target` by an exchange.

        what: everything that must agree, for the comparison and for messages.  source: None if this
        rank has none.  op: how the reads that add are combined.
        """
        self._exchange(self._info(what), source, target, exchange, REDUCTIONS[op])

    # ---- made of them ----------------------------------------------------------------------------

    def gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        """The payloads of all ranks, of any lengths. what: the call this is part of, unlike any
        other whose payloads mean something else.
        """
        with self._turn:
            return self._gather_bytes(payload, what)

    def _gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        head = len(payload).to_bytes(8, "little") + payload[: _HEAD_NBYTES - 8]
        block = np.frombuffer(head.ljust(_HEAD_NBYTES, b"\0"), np.uint8)
        heads: Array = np.empty((self.size, _HEAD_NBYTES), np.uint8)
        sizes = (_HEAD_NBYTES,) * self.size
        self.transfer(what, block, heads.reshape(-1), gather_exchange(self.ranks, sizes))
        lengths = [int.from_bytes(row[:8].tobytes(), "little") for row in heads]
        starts = [row[8 : 8 + n].tobytes() for row, n in zip(heads, lengths, strict=True)]
        rests = [max(0, n - _HEAD_NBYTES + 8) for n in lengths]
        if not any(rests):
            return starts
        mine = np.frombuffer(payload, np.uint8)[_HEAD_NBYTES - 8 :]
        rest: Array = np.empty(sum(rests), np.uint8)
        exchange = gather_exchange(self.ranks, tuple(rests))
        self.transfer(f"{what}, {rests} bytes more", mine, rest, exchange)
        data = rest.tobytes()
        ends = np.cumsum(rests).tolist()
        return [s + data[end - n : end] for s, end, n in zip(starts, ends, rests, strict=True)]

    @_counted
    def broadcast(self, x: Array, source_rank: int, what: str = "broadcast") -> Array:
        """A new array with the values of `source_rank`; x gives shape and dtype on the others."""
        flat = np.ascontiguousarray(x).reshape(-1)
        counts = tuple(flat.size if r == source_rank else 0 for r in self.ranks)
        mine = flat if self.rank == source_rank else flat[:0]
        out: Array = np.empty(flat.shape, flat.dtype)
        info = self._info(f"{what}(from rank {source_rank})", x.dtype, x.shape)
        self._exchange(info, mine, out, gather_exchange(self.ranks, counts), np.add)
        return _shaped(out, x.shape)

    def barrier(self, what: str = "barrier") -> None:
        """Returns when all ranks have come."""
        target: Array = np.empty(self.size, np.uint8)
        exchange = gather_exchange(self.ranks, (1,) * self.size)
        with self._turn:
            self._exchange(self._info(what), target[:1].copy(), target, exchange, np.add)

    def close(self) -> None:  # noqa: B027  (nothing to give back is a valid answer)
        """Gives memory and sockets back."""

    # ---- for backends ----------------------------------------------------------------------------

    @abstractmethod
    def _exchange(
        self,
        info: CallInfo,
        source: Array | None,
        target: Array,
        exchange: Exchange,
        reduce: np.ufunc,
    ) -> None:
        """Packs, swaps and reads; raises DesyncError if a peer's call differs."""

    def _all_reduce_large(self, info: CallInfo, flat: Array, out: Array, op: str) -> None:
        """Sum in two phases, of which each moves T (p-1)/p into every rank. out may be
        flat itself.
        """
        start, stop = balanced_part(flat.size, self.size, self.index)
        exchange = scatter_exchange(self.ranks, flat.size, 1)
        part: Array = np.empty(stop - start, flat.dtype)
        self._exchange(info, flat, part, exchange, REDUCTIONS[op])
        bounds = [balanced_part(flat.size, self.size, i) for i in range(self.size)]
        counts = tuple(b - a for a, b in bounds)
        self._exchange(info, part, out, gather_exchange(self.ranks, counts), np.add)

    def _info(
        self, kind: str, dtype: np.dtype[Any] | None = None, shape: tuple[int, ...] = ()
    ) -> CallInfo:
        """Every call begins with this, once."""
        if self._broken:
            raise TransportError(f"the ranks {list(self.ranks)} are cut off since {self._broken}")
        self.calls += 1
        name = "" if dtype is None else dtype_name(dtype)
        return call_info(kind, name, tuple(shape), user_location())

    def _gather_info(self, what: str, x: Array, sizes: tuple[int, ...], is_even: bool) -> CallInfo:
        if is_even:
            return self._info(what, x.dtype, x.shape)
        return self._info(f"{what} {dtype_name(x.dtype)} of {list(sizes)} elements")

    def _raise_desync(self, calls: dict[int, str]) -> None:
        raise DesyncError(
            f"the ranks {list(self.ranks)} make different collective calls: "
            f"{lines_of(calls, self.calls)}. {ADVICE}"
        )

    def _still_waiting(
        self, info: CallInfo, behind: Callable[[], list[int]], waited_s: float
    ) -> None:
        """Every backend calls this once in `SLICE_S` while it waits; raises to give up.

        behind: looks which peers are still awaited, in ascending order.  waited_s: since when. A
        rank that gives up in the middle of a call can make no other: its peers would take it for
        that one.
        """
        missing = behind()
        if not missing:
            return
        try:
            self._judge_wait(info, missing, behind, waited_s)
        except OneFlowError as error:
            self._broken = f"{info.text} ended with {type(error).__name__}: {error}"
            raise

    def _judge_wait(
        self,
        info: CallInfo,
        missing: Sequence[int],
        behind: Callable[[], list[int]],
        waited_s: float,
    ) -> None:
        if self.watch is not None and waited_s > LONG_WAIT_S:
            self.watch.still(self.calls, info.text, missing)
        if self._peer_check is not None:
            try:
                self._peer_check(missing)
            except PeerLostError as error:
                if behind() == missing:  # else somebody did the awaited step and left after it
                    self._raise_lost(info, missing, error)
        if waited_s > self.timeout_s:
            self._raise_hang(info, missing)

    def _raise_lost(self, info: CallInfo, missing: Sequence[int], error: PeerLostError) -> None:
        if self.watch is not None:
            self.watch.last_word(self.calls, info.text, missing)
        raise lost_in(error, self.rank, info.text) from None

    def _raise_hang(self, info: CallInfo, missing: Sequence[int]) -> None:
        names = ", ".join(map(str, missing))
        raise HangError(
            f"{info.text}: rank {self.rank} waited {self.timeout_s:g} s for rank {names}. {ADVICE}"
        )


def lines_of(calls: Mapping[int, str], number: int) -> str:
    """Print each rank's call in its own words. number: of the call, for those that look alike."""
    lines = "; ".join(f"rank {rank}: {text}" for rank, text in sorted(calls.items()))
    if len(set(calls.values())) > 1:
        return lines
    return (
        f"{lines}. These look alike, but they are not one call: they differ in what is not shown, "
        "or they come at another place in the order of the calls of these ranks (here it is call "
        f"{number}), as when several threads make them or one rank has made one call more"
    )


def lost_in(error: PeerLostError, rank: int, text: str) -> PeerLostError:
    """`error` with the call that this rank was in, if it does not say so yet."""
    said = str(error)
    return error if WAS_IN in said else PeerLostError(f"{said} (rank {rank} {WAS_IN}{text})")


def result_array(
    out: Array | None,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    empty: Callable[..., Array] = np.empty,
) -> Array:
    """`out`, or a new array if it is None. Raises ShapeError unless it is one for the result."""
    if out is None:
        return empty(shape, dtype)
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype or not out.flags.c_contiguous:
        order = "" if out.flags.c_contiguous else ", not C-contiguous"
        raise ShapeError(
            f"out must be a C-contiguous {dtype.name}{list(shape)}, got "
            f"{out.dtype.name}{list(out.shape)}{order}"
        )
    return out


def _shaped(flat: Array, shape: tuple[int, ...]) -> Array:
    result: Array = flat.reshape(shape)
    return result


def pack(source: Array | None, packed: Sequence[Packed], into: Array) -> None:
    """Copies the parts that others read into the flat array `into`."""
    if source is None:
        return
    for part in packed:
        piece = view_of(source, part.slices)
        np.copyto(into[part.offset : part.offset + part.numel].reshape(piece.shape), piece)


def unpack(
    rank: int,
    source: Array | None,
    target: Array,
    exchange: Exchange,
    packed_of: Callable[[int], Array],
    reduce: np.ufunc,
) -> None:
    """Does the reads of `rank`. packed_of: rank -> its packed flat array."""
    if rank in exchange.zero_filled:
        target[...] = 0
    for chain in chains(exchange.reads(rank)):
        into = view_of(target, chain[0].target_slices)
        pieces = [into] if chain[0].add else []
        for read in chain:
            if read.source_rank == rank:
                pieces.append(view_of(need_source(rank, source), read.source_slices))
            else:
                data = packed_of(read.source_rank)
                pieces.append(data[read.offset : read.offset + read.numel].reshape(into.shape))
        combine_all(reduce, pieces, into)
