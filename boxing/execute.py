"""Changes the layout of a tensor for real: runs the steps of a route on one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from oneflow.boxing.boxes import groups_of, local_type
from oneflow.boxing.collectives.base import Collectives, unpack
from oneflow.boxing.collectives.exchange import Array, step_exchange
from oneflow.boxing.transitions import LOCAL_KINDS, RouteStep, step_axes
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
    exchange = step_exchange(type.shape, step)
    if rank not in exchange.ranks:
        return None
    if step.kind == "all_reduce" and shard is not None:
        group = next(g for g in groups_of(step.src_placement, step_axes(step)) if rank in g)
        return collectives_of(group).all_reduce(shard)
    shape: tuple[int, ...] = (0,) * type.ndim
    if rank in step.dst_placement:
        shape = local_type(type, step.dst_sbp, step.dst_placement, rank).shape
    target: Array = np.empty(shape, type.dtype.np)
    if step.kind in LOCAL_KINDS:
        unpack(rank, shard, target, exchange, _no_peer, np.add)
    else:
        what = f"boxing {step.kind} {type}"
        collectives_of(exchange.ranks).transfer(what, shard, target, exchange)
    return target if rank in step.dst_placement else None


def _no_peer(rank: int) -> Any:
    raise LookupError(f"a local step that reads from rank {rank}")
