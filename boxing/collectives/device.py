"""Collectives of arrays on devices: the primitives over such arrays, and the way through host
memory.

Not run on a GPU yet (docs/GPU.md): checked with a stand-in for CuPy whose memory is the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from oneflow.boxing.boxes import balanced_part
from oneflow.boxing.collectives.base import (
    REDUCTIONS,
    CallInfo,
    Collectives,
    _counted,
    result_array,
    unpack,
)
from oneflow.boxing.collectives.exchange import (
    Exchange,
    all_to_all_exchange,
    gather_exchange,
    scatter_exchange,
    sum_exchange,
)
from oneflow.boxing.transitions import is_one_hop
from oneflow.core.errors import ShapeError
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import Hardware


class DeviceCollectives(Collectives):
    """Collectives of arrays on devices; every primitive comes down to exchanges."""

    _xp: ArrayModule

    @_counted
    def all_reduce(
        self, x: Array, op: str = "sum", out: Array | None = None, what: str = ""
    ) -> Array:
        """Sum over all ranks, as on the host."""
        info = self._reduce_info("all_reduce", x, op, what)
        source = self._xp.ascontiguousarray(x)
        result = result_array(out, x.shape, x.dtype, self._xp.empty)
        self._all_reduce(info, source, result, op)
        return result

    @_counted
    def reduce_scatter(
        self, x: Array, op: str = "sum", out: Array | None = None, what: str = "reduce_scatter"
    ) -> Array:
        """Sum and split, as on the host."""
        if x.ndim == 0:
            raise ShapeError("reduce_scatter: a 0-d array has no dim to divide between the ranks")
        info = self._reduce_info(what, x, op)
        start, stop = balanced_part(x.shape[0], self.size, self.index)
        out = result_array(out, (stop - start, *x.shape[1:]), x.dtype, self._xp.empty)
        self._reduce_scatter(info, self._xp.ascontiguousarray(x), out, op)
        return out

    @_counted
    def all_gather(
        self,
        x: Array,
        counts: Sequence[int] | None = None,
        what: str = "all_gather",
        out: Array | None = None,
    ) -> Array:
        """Gather from all ranks, as on the host."""
        flat = self._xp.ascontiguousarray(x).reshape(-1)
        sizes = (flat.size,) * self.size if counts is None else tuple(counts)
        info = self._gather_info(what, x, sizes, counts is None)
        out = result_array(out, (sum(sizes),), flat.dtype, self._xp.empty)
        self._all_gather(info, flat, out, sizes)
        return out

    @_counted
    def all_to_all(self, x: Array, out: Array | None = None) -> Array:
        """Exchange rows, as on the host."""
        if x.ndim == 0 or x.shape[0] != self.size:
            raise ShapeError(f"all_to_all: dim 0 of {list(x.shape)} must be the {self.size} ranks")
        flat = self._xp.ascontiguousarray(x).reshape(-1)
        out = result_array(out, x.shape, x.dtype, self._xp.empty)
        exchange = all_to_all_exchange(self.ranks, flat.size // self.size)
        info = self._info("all_to_all", x.dtype, tuple(x.shape))
        self._exchange(info, flat, out.reshape(-1), exchange, np.add)
        return out

    @_counted
    def broadcast(self, x: Array, source_rank: int, what: str = "broadcast") -> Array:
        """Copy from one rank to all, as on the host."""
        flat = self._xp.ascontiguousarray(x).reshape(-1)
        out = self._xp.empty_like(flat)
        info = self._info(f"{what}(from rank {source_rank})", x.dtype, tuple(x.shape))
        self._broadcast(info, flat, out, source_rank)
        result: Array = out.reshape(x.shape)
        return result

    # ---- by exchanges, unless a backend knows better ---------------------------------------------

    def _all_reduce(self, info: CallInfo, source: Array, out: Array, op: str) -> None:
        """Sum in two phases. out may be source."""
        flat = source.reshape(-1)
        start, stop = balanced_part(flat.size, self.size, self.index)
        part = self._xp.empty(stop - start, flat.dtype)
        exchange = scatter_exchange(self.ranks, flat.size, 1)
        self._exchange(info, flat, part, exchange, REDUCTIONS[op])
        bounds = [balanced_part(flat.size, self.size, i) for i in range(self.size)]
        spread = gather_exchange(self.ranks, tuple(b - a for a, b in bounds))
        self._exchange(info, part, out.reshape(-1), spread, np.add)

    def _reduce_scatter(self, info: CallInfo, source: Array, out: Array, op: str) -> None:
        flat = source.reshape(-1)
        row = max(1, flat.size // max(1, source.shape[0]))
        exchange = scatter_exchange(self.ranks, flat.size, row)
        self._exchange(info, flat, out.reshape(-1), exchange, REDUCTIONS[op])

    def _all_gather(self, info: CallInfo, flat: Array, out: Array, sizes: tuple[int, ...]) -> None:
        self._exchange(info, flat, out, gather_exchange(self.ranks, sizes), np.add)

    def _broadcast(self, info: CallInfo, flat: Array, out: Array, source_rank: int) -> None:
        counts = tuple(flat.size if r == source_rank else 0 for r in self.ranks)
        mine = flat if self.rank == source_rank else flat[:0]
        self._exchange(info, mine, out, gather_exchange(self.ranks, counts), np.add)

    def _reduce_info(self, kind: str, x: Array, op: str, what: str = "") -> CallInfo:
        return self._info(what) if what else self._info(f"{kind}({op})", x.dtype, tuple(x.shape))


class StagedCollectives(DeviceCollectives):
    """Arrays on a device through host memory. host: the collectives of the same ranks."""

    def __init__(self, host: Collectives, hardware: Hardware) -> None:
        super().__init__(host.rank, host.ranks, None, host.timeout_s)
        self._hardware, self._xp = hardware, hardware.xp
        self._host = host
        self._turn = host._turn

    def gather_bytes(self, payload: bytes, what: str) -> list[bytes]:
        """Gather bytes, which is done on the host."""
        return self._host.gather_bytes(payload, what)

    def barrier(self, what: str = "barrier") -> None:
        """Returns when all ranks have come and the kernels of this one have finished."""
        self._hardware.synchronize()
        self._host.barrier(what)

    def _all_reduce(self, info: CallInfo, source: Array, out: Array, op: str) -> None:
        if self.size == 1:
            out[...] = source
            return
        flat, before = self._hardware.to_host(source).reshape(-1), self._host.received_nbytes
        total: Array = np.empty_like(flat)
        self._host.calls += 1
        if is_one_hop(flat.nbytes, self.size):
            exchange = sum_exchange(self.ranks, flat.size)
            self._host._exchange(info, flat, total, exchange, REDUCTIONS[op])
        else:
            self._host._all_reduce_large(info, flat, total, op)
        self._landed(out, total.reshape(out.shape), before)

    def _exchange(
        self,
        info: CallInfo,
        source: Array | None,
        target: Array,
        exchange: Exchange,
        reduce: np.ufunc,
    ) -> None:
        if self.size == 1:
            unpack(self.rank, source, target, exchange, _no_peer, reduce)
            return
        mine = None if source is None else self._hardware.to_host(source)
        written = sum(read.numel for read in exchange.reads(self.rank) if not read.add)
        keeps = written < target.size and self.rank not in exchange.zero_filled
        filled = self._hardware.to_host(target) if keeps else np.empty(target.shape, target.dtype)
        before = self._host.received_nbytes
        self._host.calls += 1
        self._host._exchange(info, mine, filled, exchange, reduce)
        self._landed(target, filled, before)

    def _landed(self, target: Array, filled: Array, before: int) -> None:
        self.received_nbytes += self._host.received_nbytes - before
        target[...] = self._hardware.from_host(filled)


def _no_peer(rank: int) -> NoReturn:
    raise LookupError(f"a set of one rank reads from rank {rank}")
