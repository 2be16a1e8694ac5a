"""Collectives of ranks on several hosts, some of them on one: inside the host first.

Ranks of one host reach each other through shared memory, ranks of different hosts through a TCP
connection for each pair. Headers go to all ranks over TCP before any data is touched, so a call
that differs on any host is found on all; data between ranks of one host never touch a socket. Data
that several ranks of a host need come over the network once (see `by_host`), and a sum leaves a
host as one addend, so its bits may differ from those that one host alone would get, but not from
rank to rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from oneflow.boxing.collectives.base import REDUCTIONS, CallInfo, Collectives, unpack
from oneflow.boxing.collectives.by_host import phases_of, sum_phases
from oneflow.boxing.collectives.exchange import Exchange
from oneflow.boxing.collectives.shared_memory import SharedMemoryCollectives
from oneflow.boxing.collectives.tcp import Leg, TcpCollectives
from oneflow.boxing.transport.rendezvous import Check, Rendezvous
from oneflow.core.errors import InternalError
from oneflow.core.job_tls import JobTls
from oneflow.kernels.array import Array

BLOCK_NBYTES = 8 << 20
"""Large sums go through all phases in blocks of this size: what one phase writes is near when the
next reads it, and the addends of a host need no more memory than this."""

KEPT_NBYTES = 16 << 20
"""A stage of at most this size is kept for the next call."""


class SpanningCollectives(Collectives):
    """Collectives over hosts: shared memory inside one, TCP between them.

    hosts: where each of `ranks` runs; equal ones share memory. For the rest see the two backends
    that this one is made of.
    """

    def __init__(
        self,
        group_name: str,
        rank: int,
        ranks: Sequence[int],
        hosts: Sequence[str],
        kv: Rendezvous,
        check: Check | None = None,
        timeout_s: float = 300.0,
        host: str = "127.0.0.1",
        tls: JobTls | None = None,
    ) -> None:
        super().__init__(rank, ranks, check, timeout_s)
        numbers = {name: i for i, name in enumerate(dict.fromkeys(hosts))}
        self._hosts = tuple(numbers[name] for name in hosts)
        own = self._hosts[self.index]
        near = [r for r, h in zip(self.ranks, self._hosts, strict=True) if h == own]
        self._far = TcpCollectives(
            f"{group_name}/far", rank, ranks, kv, self._ask, timeout_s, host, tls
        )
        self._near: SharedMemoryCollectives | None = None
        if len(near) > 1:
            name = f"{group_name}/near{own}"
            self._near = SharedMemoryCollectives(name, rank, near, kv, self._ask, timeout_s)
        self._stage: Array = np.empty(0, np.uint8)

    @property
    def far_nbytes(self) -> int:
        """Bytes that this rank received from other hosts; the rest of `received_nbytes` came from
        ranks of its own."""
        return self._far.received_nbytes

    def _exchange(
        self,
        info: CallInfo,
        source: Array | None,
        target: Array,
        exchange: Exchange,
        reduce: np.ufunc,
    ) -> None:
        if target.ndim == 0:
            target = target.reshape(1)
            source = None if source is None else source.reshape(1)
        phases = phases_of(exchange, self._hosts, self.rank)
        salt = exchange.signature
        with self._call():
            self._far.run(info, [Leg(source, target, phases.far_copies, reduce)], salt)
            if phases.far_sums is not None:
                stage = self._staged(target.dtype, phases.stage_shapes.get(self.rank, (0,)))
                self._inside(info, source, stage, phases.addends, reduce)
                self._far.run(info, [Leg(stage, target, phases.far_sums, reduce)], salt)
            self._inside(info, source, target, phases.near, reduce)
            self._inside(info, target, target, phases.spread, reduce)

    def _all_reduce_large(self, info: CallInfo, flat: Array, out: Array, op: str) -> None:
        step = max(1, BLOCK_NBYTES // flat.itemsize)
        with self._call():
            self._far.run(info, [])  # agrees
            for start in range(0, flat.size, step):
                at = slice(start, start + step)
                self._all_reduce_block(info, flat[at], out[at], REDUCTIONS[op])

    def _all_reduce_block(self, info: CallInfo, flat: Array, out: Array, reduce: np.ufunc) -> None:
        phases = sum_phases(self.ranks, self._hosts, flat.size, self.rank)
        stage = self._staged(flat.dtype, (phases.stage_numel,))
        self._inside(info, flat, stage, phases.addends, reduce)
        sums = Leg(stage, out, phases.sums, reduce)
        self._far.run(info, [sums, Leg(out, out, phases.gather, waits=True)])
        self._inside(info, out, out, phases.spread, reduce)

    def _inside(
        self,
        info: CallInfo,
        source: Array | None,
        target: Array,
        exchange: Exchange | None,
        reduce: np.ufunc,
    ) -> None:
        if exchange is None:
            return
        try:
            if self._near is not None and any(exchange.senders.values()):
                self._near._exchange(info, source, target, exchange, reduce)
            else:
                unpack(self.rank, source, target, exchange, _no_peer, reduce)
        except BaseException as error:  # between two steps that the other ranks may have done
            self._far.cut_off(info, error)
            raise

    def _staged(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        nbytes = int(np.prod(shape)) * dtype.itemsize
        memory = self._stage
        if memory.nbytes < nbytes:
            memory = np.empty(nbytes, np.uint8)
            if nbytes <= KEPT_NBYTES:
                self._stage = memory
        stage: Array = memory[:nbytes].view(dtype).reshape(shape)
        return stage

    def _ask(self, ranks: Iterable[int]) -> None:
        if self._peer_check is not None:
            self._peer_check(ranks)

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Both parts wait in the name of this set, and both count."""
        near = self._near
        for part in (self._far, near):
            if part is not None:
                part.watch, part.calls = self.watch, self.calls
        yield
        self.received_nbytes = self._far.received_nbytes + (near.received_nbytes if near else 0)

    def close(self) -> None:
        self._far.close()
        if self._near is not None:
            self._near.close()


def _no_peer(rank: int) -> Array:
    raise InternalError(f"an exchange inside a rank reads from rank {rank}")
