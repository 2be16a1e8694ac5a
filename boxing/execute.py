"""Changes the layout of a tensor for real: runs the steps of a route on one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oneflow.boxing.boxes import local_type
from oneflow.boxing.collectives.base import Collectives, unpack
from oneflow.boxing.collectives.exchange import Array, step_exchanges
from oneflow.boxing.transitions import LOCAL_KINDS, RouteStep, group_of
from oneflow.core.tensor_type import TensorType

CollectivesOf = Callable[[tuple[int, ...]], Collectives]


def run_route(
    type: TensorType,
    route: Sequence[RouteStep],
    rank: int,
    shard: Array | None,
    collectives_of: CollectivesOf,
) -> Array | None:
    """This rank's part after the route; None if it has none. All ranks of every step must call it.

    shard: this rank's part before, None outside the source. collectives_of: ranks (ascending) ->
    the collectives of that set.
    """
    for step in route:
        shard = run_step(type, step, rank, shard, collectives_of)
    return shard


def run_step(
    type: TensorType,
    step: RouteStep,
    rank: int,
    shard: Array | None,
    collectives_of: CollectivesOf,
) -> Array | None:
    """One step of a route, on one rank; None for a rank that is not in the result's placement."""
    exchanges = step_exchanges(type.shape, step)
    if rank not in exchanges[0].ranks:
        return None
    if step.kind == "all_reduce" and shard is not None:
        return collectives_of(group_of(step, rank)).all_reduce(shard)
    shape: tuple[int, ...] = (0,) * type.ndim
    if rank in step.dst_placement:
        shape = local_type(type, step.dst_sbp, step.dst_placement, rank).shape
    target: Array = np.empty(shape, type.dtype.np)
    if step.kind in LOCAL_KINDS:
        unpack(rank, shard, target, exchanges[0], _no_peer, np.add)
        return target
    source = shard
    for exchange in exchanges:
        collectives_of(exchange.ranks).transfer(f"boxing {type} {step}", source, target, exchange)
        source = target
    return target if rank in step.dst_placement else None


def _no_peer(rank: int) -> Any:
    raise LookupError(f"a local step that reads from rank {rank}")
