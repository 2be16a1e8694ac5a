"""The cheapest way from one layout to another: one hop, or a route through the table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from oneflow.boxing.boxes import check_layout
from oneflow.boxing.link import ONE_HOST, Network
from oneflow.boxing.transitions import (
    RouteStep,
    dims_to_split,
    make_step,
    received_bytes,
    refuse_bool_sums,
    step_cost,
)
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Sbp, Split
from oneflow.core.tensor_type import TensorType

__all__ = [
    "Route",
    "RouteStep",
    "all_routes",
    "boxing_bytes",
    "boxing_seconds",
    "choose_route",
]

_State = tuple[NdSbp, Placement]
_WORTH_MORE_STEPS = 0.999
"""A longer route must be faster than a shorter one by so much: estimates are not exact."""


@dataclass(frozen=True)
class Route:
    """A way from one layout to another. seconds: estimated.  busiest: bytes into the busiest rank
    of each step, summed up."""

    steps: tuple[RouteStep, ...]
    seconds: float
    busiest: float


def choose_route(
    type: TensorType,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
    network: Network = ONE_HOST,
) -> tuple[RouteStep, ...]:
    """The steps from one layout of a global tensor of `type` to another; () if they are the same.

    Deterministic: all ranks choose alike. Raises SbpError if a layout does not fit the tensor, or
    for partial sums of booleans.
    """
    return _best(type, src_sbp, src_placement, dst_sbp, dst_placement, network).steps


def boxing_seconds(
    type: TensorType,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
    network: Network = ONE_HOST,
) -> float:
    """Estimated seconds of the best route."""
    return _best(type, src_sbp, src_placement, dst_sbp, dst_placement, network).seconds


def boxing_bytes(
    type: TensorType,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
    network: Network = ONE_HOST,
) -> int:
    """Exact bytes that the chosen route moves between ranks, over all of them."""
    route = choose_route(type, src_sbp, src_placement, dst_sbp, dst_placement, network)
    return sum(
        received_bytes(type, step, rank) for step in route for rank in step.dst_placement.rank_ids
    )


def all_routes(
    type: TensorType,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
    network: Network = ONE_HOST,
) -> list[Route]:
    """Every route that was considered, the chosen one first, the others from fast to slow."""
    best = _best(type, src_sbp, src_placement, dst_sbp, dst_placement, network)
    src, dst = (src_sbp, src_placement), (dst_sbp, dst_placement)
    others = [r for r in _candidates(type, src, dst, network) if r.steps != best.steps]
    return [best, *sorted(others, key=lambda r: (r.seconds, r.busiest, len(r.steps)))]


@lru_cache(maxsize=65536)
def _best(
    type: TensorType,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
    network: Network,
) -> Route:
    check_layout(type.shape, src_sbp, src_placement)
    check_layout(type.shape, dst_sbp, dst_placement)
    refuse_bool_sums(type, src_sbp, dst_sbp)
    src, dst = (src_sbp, src_placement), (dst_sbp, dst_placement)
    if src == dst:
        return Route((), 0.0, 0.0)
    candidates = _candidates(type, src, dst, network)
    best = next(candidates)
    for route in candidates:
        if _is_better(route, best):
            best = route
    return best


def _is_better(route: Route, best: Route) -> bool:
    """Faster; or, if it makes no difference in all, with less on the busiest rank."""
    if route.seconds < best.seconds * _WORTH_MORE_STEPS:
        return True
    same = route.seconds * _WORTH_MORE_STEPS <= best.seconds
    return same and route.busiest < best.busiest * _WORTH_MORE_STEPS


def _candidates(type: TensorType, src: _State, dst: _State, network: Network) -> Iterator[Route]:
    """The direct step, sums made once and spread, and routes through layouts between."""
    direct = make_step(*src, *dst)
    yield _route(type, (direct,), network)
    if not any(s.is_partial for s in src[0]) and not any(s.is_broadcast for s in dst[0]):
        return  # every byte has one owner and one reader: nothing beats one hop
    if any(s.is_partial for s in src[0]):
        yield _route(type, (replace(direct, kind="sum_and_spread"),), network)
    for states in _chains(type, src, dst, network):
        yield _route(type, tuple(make_step(*a, *b) for a, b in pairwise(states)), network)


def _route(type: TensorType, steps: tuple[RouteStep, ...], network: Network) -> Route:
    costs = [step_cost(type, step, network) for step in steps]
    return Route(steps, sum(s for s, _ in costs), sum(b for _, b in costs))


def _chains(
    type: TensorType, src: _State, dst: _State, network: Network
) -> Iterator[tuple[_State, ...]]:
    """Routes of two or three steps, the shortest first."""
    after = [*_after(type, src, dst), *_inside_hosts(type, src, PARTIAL, network)]
    before = [*_before(type, src, dst), *_inside_hosts(type, dst, BROADCAST, network)]
    first = list(dict.fromkeys(s for s in after if s not in (src, dst)))
    last = list(dict.fromkeys(s for s in before if s not in (src, dst)))
    for middle in dict.fromkeys(first + last):
        yield src, middle, dst
    for a in first:
        for b in last:
            if a != b:
                yield src, a, b, dst


def _after(type: TensorType, src: _State, dst: _State) -> Iterator[_State]:
    """Layouts on the source's ranks with sums done: on every rank, or each on a part."""
    nd_sbp, placement = src
    axes = tuple(i for i, s in enumerate(nd_sbp) if s.is_partial and not _stays(i, src, dst))
    if not axes:
        return
    yield tuple(BROADCAST if i in axes else s for i, s in enumerate(nd_sbp)), placement
    p = math.prod(placement.hierarchy[i] for i in axes)
    dims = dims_to_split(type.shape, nd_sbp, p)
    wanted = [s.dim for s in dst[0] if s.is_split]
    for dim in dict.fromkeys([*dims[:1], *wanted]):
        yield tuple(Split(dim) if i in axes else s for i, s in enumerate(nd_sbp)), placement


def _before(type: TensorType, src: _State, dst: _State) -> Iterator[_State]:
    """Layouts on the destination's ranks that only need to be gathered or summed up there."""
    nd_sbp, placement = dst
    axes = tuple(i for i, s in enumerate(nd_sbp) if s.is_broadcast)
    if src[1] == placement:
        yield tuple(PARTIAL if src[0][i].is_partial else s for i, s in enumerate(nd_sbp)), placement
        yield tuple(src[0][i] if i in axes else s for i, s in enumerate(nd_sbp)), placement
    if not axes:
        return
    p = math.prod(placement.hierarchy[i] for i in axes)
    for dim in dims_to_split(type.shape, nd_sbp, p)[:1]:
        yield tuple(Split(dim) if i in axes else s for i, s in enumerate(nd_sbp)), placement


def _inside_hosts(type: TensorType, state: _State, kind: Sbp, network: Network) -> Iterator[_State]:
    """Let the ranks of each host, in sums or copies over several hosts, divide their data, so that
    they are added up or copied there and cross between hosts once.
    """
    nd_sbp, placement = state
    if len(nd_sbp) != 1 or nd_sbp[0] is not kind or not network.spans(placement.rank_ids):
        return
    grid = host_grid(placement, network)
    if grid is not None:
        for dim in dims_to_split(type.shape, nd_sbp, grid.hierarchy[1])[:1]:
            yield (kind, Split(dim)), grid


@lru_cache(maxsize=256)
def host_grid(placement: Placement, network: Network) -> Placement | None:
    """The ranks of a line as a grid of hosts and ranks in a host; None if hosts hold different
    numbers of ranks or the line goes back and forth between them, or if no host holds two."""
    hosts = [network.host(r) for r in placement.rank_ids]
    num_hosts = len(set(hosts))
    per_host = len(hosts) // num_hosts
    rows = [hosts[i : i + per_host] for i in range(0, len(hosts), per_host)]
    if per_host < 2 or len(rows) != num_hosts or any(len(set(row)) > 1 for row in rows):
        return None
    return Placement(placement.type, placement.ranks.reshape(num_hosts, per_host))


def _stays(axis: int, src: _State, dst: _State) -> bool:
    return src[1] == dst[1] and dst[0][axis].is_partial
