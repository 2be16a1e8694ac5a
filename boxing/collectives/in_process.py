"""Ranks that are threads of one process, and the same without threads, for trials and tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from oneflow.boxing.boxes import local_type
from oneflow.boxing.collectives.base import CallInfo, Collectives, pack, unpack
from oneflow.boxing.collectives.exchange import Exchange, step_exchanges
from oneflow.boxing.transitions import RouteStep
from oneflow.boxing.transport.rendezvous import SLICE_S, Check
from oneflow.core.errors import InternalError
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array


class InProcessGroup:
    """A meeting place for the threads of a set of ranks; `collectives(rank)` is the end of one."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self.changed = threading.Condition()
        self.calls: dict[int, dict[int, tuple[CallInfo, Array]]] = {}
        self.left: dict[int, int] = {}

    def collectives(
        self, rank: int, check: Check | None = None, timeout_s: float = 60.0
    ) -> InProcessCollectives:
        """The end of `rank`; used by one thread at a time."""
        return InProcessCollectives(self, rank, check, timeout_s)


class InProcessCollectives(Collectives):
    """One thread's end of an `InProcessGroup`."""

    def __init__(
        self,
        group: InProcessGroup,
        rank: int,
        check: Check | None,
        timeout_s: float,
    ) -> None:
        super().__init__(rank, group.ranks, check, timeout_s)
        self._group = group
        self._call = 0

    def _exchange(
        self,
        info: CallInfo,
        source: Array | None,
        target: Array,
        exchange: Exchange,
        reduce: np.ufunc,
    ) -> None:
        packed: Array = np.empty(exchange.packed_numel(self.rank), target.dtype)
        pack(source, exchange.packed(self.rank), packed)
        posted = self._meet(info, packed)
        unpack(self.rank, source, target, exchange, lambda rank: posted[rank][1], reduce)
        self.received_nbytes += exchange.received_numel(self.rank) * target.dtype.itemsize

    def _meet(self, info: CallInfo, packed: Array) -> dict[int, tuple[CallInfo, Array]]:
        self._call += 1
        group, number = self._group, self._call
        with group.changed:
            posted = group.calls.setdefault(number, {})
            posted[self.rank] = info, packed
            group.changed.notify_all()
            self._wait(info, posted)
            group.left[number] = group.left.get(number, 0) + 1
            if group.left[number] == self.size:
                del group.calls[number], group.left[number]
        if len({call.signature for call, _ in posted.values()}) > 1:
            self._raise_desync({rank: call.text for rank, (call, _) in posted.items()})
        return posted

    def _wait(self, info: CallInfo, posted: dict[int, tuple[CallInfo, Array]]) -> None:
        start = time.monotonic()

        def behind() -> list[int]:
            return [r for r in self.peers if r not in posted]

        while len(posted) < self.size:
            if not self._group.changed.wait(SLICE_S):
                self._still_waiting(info, behind, time.monotonic() - start)


def simulate_route(
    type: TensorType, route: Sequence[RouteStep], shards: Mapping[int, Array]
) -> tuple[dict[int, Array], int]:
    """Runs a route for all its ranks at once, without threads.

    shards: rank -> its part before. Returns rank -> its part after, and the bytes that would have
    moved between ranks.
    """
    moved, current = 0, dict(shards)
    for step in route:
        current, nbytes = _simulate_step(type, step, current)
        moved += nbytes
    return current, moved


def _simulate_step(
    type: TensorType, step: RouteStep, shards: Mapping[int, Array]
) -> tuple[dict[int, Array], int]:
    missing = [rank for rank in step.src_placement.rank_ids if rank not in shards]
    if missing:
        raise InternalError(f"rank {missing[0]} of {step} has no shard")
    sources: Mapping[int, Array] = {r: shards[r] for r in step.src_placement.rank_ids}
    targets: dict[int, Array] = {}
    for rank in step.dst_placement.rank_ids:
        shape = local_type(type, step.dst_sbp, step.dst_placement, rank).shape
        targets[rank] = np.empty(shape, type.dtype.np)
    moved = 0
    for exchange in step_exchanges(type.shape, step):
        packed: dict[int, Array] = {}
        for rank, source in sources.items():
            packed[rank] = np.empty(exchange.packed_numel(rank), type.dtype.np)
            pack(source, exchange.packed(rank), packed[rank])
        for rank, target in targets.items():
            own = sources.get(rank)
            unpack(rank, own, target, exchange, packed.__getitem__, np.add)
            moved += exchange.received_numel(rank)
        sources = targets
    return targets, moved * type.dtype.bytes
