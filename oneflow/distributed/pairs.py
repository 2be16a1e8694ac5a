"""Exchanges between two ranks, in which no other takes part."""

from __future__ import annotations

from oneflow.boxing.collectives.base import Collectives
from oneflow.core.errors import PlacementError
from oneflow.distributed.arguments import Ranks, among, check_rank
from oneflow.distributed.exchanges import to_one
from oneflow.distributed.world import world
from oneflow.kernels.array import Array


def pair_with(
    other: int, who: str, is_sender: bool, ranks: Ranks = None
) -> tuple[Collectives, str]:
    """The collectives of this rank and another, and `(rank 0 to rank 1)`: sender and receiver.

    Raises PlacementError for this rank itself, and for one that does not exist. who: the caller's
    name.
    ranks: the two, on a channel of their own.
    """
    check_rank(other, who)
    rank = world().rank
    if other == rank:
        raise PlacementError(f"{who}: rank {rank} cannot exchange with itself")
    src, dst = (rank, other) if is_sender else (other, rank)
    pair = (min(src, dst), max(src, dst)) if ranks is None else ranks
    return among(pair), f"(rank {src} to rank {dst})"


def pass_on(
    pair: Collectives, what: str, source: Array | None, target: Array | None, src: int
) -> None:
    """The flat array of rank `src` into the target of the other rank of a pair."""
    array = source if source is not None else target
    assert array is not None
    dst = next(r for r in pair.ranks if r != src)
    exchange = to_one(pair.ranks, tuple(array.size if r == src else 0 for r in pair.ranks), dst)
    pair.transfer(what, source, array[:0] if target is None else target, exchange)
