"""Changes the layout of a tensor for real: runs the steps of a route on one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from oneflow.boxing.boxes import local_type
from oneflow.boxing.collectives.base import Collectives, unpack
from oneflow.boxing.collectives.exchange import Exchange, step_exchanges
from oneflow.boxing.transitions import LOCAL_KINDS, RouteStep, group_of
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array

CollectivesOf = Callable[[tuple[int, ...]], Collectives]
Empty = Callable[..., Array]
"""(shape, dtype) -> a new array where the collectives want it: NumPy's or CuPy's `empty`."""


def run_route(
    type: TensorType,
    route: Sequence[RouteStep],
    rank: int,
    shard: Array | None,
    collectives_of: CollectivesOf,
    empty: Empty = np.empty,
) -> Array | None:
    """This rank's part after the route; None if it has none. All ranks of every step must call it.

    shard: this rank's part before, None outside the source. collectives_of: ranks (ascending) ->
    the collectives of that set.
    """
    return _bound(type, tuple(route), rank, empty).run(shard, collectives_of)


class BoundRoute:
    """The steps of a route as one rank does them: worked out once, run many times."""

    def __init__(
        self,
        type: TensorType,
        route: Sequence[RouteStep],
        rank: int,
        empty: Empty = np.empty,
    ) -> None:
        self._steps = [_BoundStep(type, step, rank, empty) for step in route]

    def run(self, shard: Array | None, collectives_of: CollectivesOf) -> Array | None:
        """Run the route, as `run_route`."""
        for step in self._steps:
            shard = step.run(shard, collectives_of)
        return shard


class _BoundStep:
    def __init__(self, type: TensorType, step: RouteStep, rank: int, empty: Empty) -> None:
        self._rank = rank
        self._empty = empty
        self._exchanges = step_exchanges(type.shape, step)
        self._takes_part = rank in self._exchanges[0].ranks
        self._is_target = rank in step.dst_placement
        self._is_local = step.kind in LOCAL_KINDS or all(map(_moves_nothing, self._exchanges))
        self._what = f"boxing {type} {step}"
        self._dtype = type.dtype.np
        self._shape: tuple[int, ...] = (0,) * type.ndim
        if self._is_target:
            self._shape = local_type(type, step.dst_sbp, step.dst_placement, rank).shape
        self._sum_group: tuple[int, ...] | None = None
        if step.kind == "all_reduce" and self._takes_part:
            self._sum_group = group_of(step, rank)

    def run(self, shard: Array | None, collectives_of: CollectivesOf) -> Array | None:
        """One step; None for a rank that is not in the result's placement."""
        if not self._takes_part:
            return None
        if self._sum_group is not None and shard is not None:
            return collectives_of(self._sum_group).all_reduce(shard, what=self._what)
        target = self._empty(self._shape, self._dtype)
        source = shard
        for exchange in self._exchanges:
            if self._is_local:
                unpack(self._rank, source, target, exchange, _no_peer, np.add)
            else:
                collectives_of(exchange.ranks).transfer(self._what, source, target, exchange)
            source = target
        return target if self._is_target else None


@lru_cache(maxsize=4096)
def _bound(type: TensorType, route: tuple[RouteStep, ...], rank: int, empty: Empty) -> BoundRoute:
    """Kept: to work it out takes as long as to move a small tensor."""
    return BoundRoute(type, route, rank, empty)


@lru_cache(maxsize=1024)
def _moves_nothing(exchange: Exchange) -> bool:
    """Whether every rank has all it needs, as often between grids of the same ranks: nobody waits
    for anybody then."""
    return not any(exchange.received_numel(rank) for rank in exchange.ranks)


def _no_peer(rank: int) -> Any:
    raise LookupError(f"a local step that reads from rank {rank}")
