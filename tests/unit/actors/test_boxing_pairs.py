"""Every change of layout through a boxing node of a plan, against NumPy on the whole."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from oneflow.actors.boxing import node_step
from oneflow.actors.in_process import InProcessCluster
from oneflow.boxing.bound import lower_bound_nbytes
from oneflow.boxing.boxes import shard_box
from oneflow.boxing.transitions import phases
from oneflow.core.actor_kinds import READS_PEERS, SECOND_HALVES
from oneflow.core.dtype import float32, int64
from oneflow.core.graph import LogicalGraph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.core.plan import Plan
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Split
from oneflow.core.tensor_type import TensorType
from oneflow.scheduler.compiler.pipeline import compile_graph

Array = np.ndarray[Any, Any]
SBPS = (Split(0), Split(1), BROADCAST, PARTIAL)
PLACES = {
    "2": Placement("cpu", [0, 1]),
    "3": Placement("cpu", [0, 1, 2]),
    "2x2": Placement("cpu", [[0, 1], [2, 3]]),
}


LARGE_NBYTES = 1 << 22
"""Above this the way with the fewest bytes is taken; below, one with fewer messages may be."""


def parts(whole: Array, nd_sbp: NdSbp, placement: Placement) -> list[Array]:
    """Parts that the ranks hold; summands of partial axes are random but for the first."""
    rng = np.random.default_rng(5)
    axes = [i for i, s in enumerate(nd_sbp) if s.is_partial]
    copies: dict[tuple[int, ...], Array] = {}
    grid = list(np.ndindex(*placement.hierarchy))
    for at in grid:
        copies.setdefault(tuple(at[i] for i in axes), np.zeros_like(whole))
    keys = sorted(copies)
    for key in keys[1:]:
        copies[key] = rng.integers(-9, 9, whole.shape).astype(whole.dtype)
    copies[keys[0]] = whole - sum((copies[k] for k in keys[1:]), np.zeros_like(whole))
    return [
        copies[tuple(at[i] for i in axes)][
            shard_box(whole.shape, nd_sbp, placement, rank).slices
        ].copy()
        for at, rank in zip(grid, placement.rank_ids, strict=True)
    ]


def joined(shards: list[Array], shape: tuple[int, ...], nd_sbp: NdSbp, placement: Placement) -> Any:
    """The whole. Copies must be equal, so each is counted once and compared."""
    whole = np.zeros(shape, shards[0].dtype)
    grid = list(np.ndindex(*placement.hierarchy))
    axes = [i for i, s in enumerate(nd_sbp) if s.is_broadcast]
    first: dict[Any, Array] = {}
    for at, rank, shard in zip(grid, placement.rank_ids, shards, strict=True):
        key = tuple(0 if i in axes else c for i, c in enumerate(at))
        if key in first:
            np.testing.assert_array_equal(shard, first[key])
            continue
        first[key] = shard
        whole[shard_box(shape, nd_sbp, placement, rank).slices] += shard
    return whole


def check(
    whole: Array,
    before: tuple[Placement, NdSbp],
    after: tuple[Placement, NdSbp],
    seed: int,
    hosts: tuple[str, ...] = (),
) -> Plan:
    type_ = TensorType(whole.shape, float32 if whole.dtype == np.float32 else int64)
    graph = LogicalGraph("boxing")
    given = graph.append("input", [], [type_], before[0], {"name": "x"}, sbp=[before[1]])
    moved = graph.append("to_global", given.outputs, [type_], after[0], sbp=[after[1]])
    graph.append("output", moved.outputs, [], after[0], {"index": 0})
    size = 1 + max(*before[0].rank_ids, *after[0].rank_ids)
    plan = compile_graph(graph, JobConfig("boxing"), Cluster(size, hosts))
    cluster = InProcessCluster(plan, [{} for _ in range(size)], seed)
    feeds: list[dict[str, Array]] = [{} for _ in range(size)]
    for rank, part in zip(before[0].rank_ids, parts(whole, before[1], before[0]), strict=True):
        feeds[rank]["x"] = part
    for _ in range(2 if whole.nbytes < LARGE_NBYTES else 1):  # slots are used again
        outputs = cluster.step(feeds)
        shards = [outputs[rank][0] for rank in after[0].rank_ids]
        found = joined(shards, whole.shape, after[1], after[0])
        np.testing.assert_array_equal(found, whole)
    if whole.nbytes > LARGE_NBYTES:
        bound = lower_bound_nbytes(type_, before[1], before[0], after[1], after[0])
        assert moved_nbytes(cluster) == bound, (before, after)
    return plan


def moved_nbytes(cluster: InProcessCluster) -> int:
    """Bytes that the boxing actors of all ranks read of others in one step."""
    return sum(
        actor.boxing.remote_nbytes
        for bound in cluster.bound
        for actor in bound.actors.values()
        if actor.boxing is not None
    )


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    """Small integers, so that every order of adding gives the same."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype) % 23 - 7


@pytest.mark.parametrize("shape", [(12, 6), (7, 5)], ids=["even", "uneven"])
@pytest.mark.parametrize("place", ["2", "3"])
def test_pairs_on_one_axis(place: str, shape: tuple[int, int]) -> None:
    placement = PLACES[place]
    for seed, (a, b) in enumerate(product(SBPS, repeat=2)):
        check(numbers(*shape), (placement, (a,)), (placement, (b,)), seed)


@pytest.mark.parametrize("first", SBPS, ids=str)
def test_pairs_on_two_axes(first: Any) -> None:
    grid = PLACES["2x2"]
    for seed, (second, a, b) in enumerate(product(SBPS, repeat=3)):
        check(numbers(9, 6), (grid, (first, second)), (grid, (a, b)), seed)


@pytest.mark.parametrize(("source", "target"), [("2", "3"), ("3", "2"), ("2", "2x2"), ("2x2", "3")])
def test_pairs_between_placements(source: str, target: str) -> None:
    p, q = PLACES[source], PLACES[target]
    for seed, a in enumerate(product(SBPS, repeat=p.ndim)):
        for b in product(SBPS, repeat=q.ndim):
            check(numbers(7, 8), (p, a), (q, b), seed)


def test_ranks_that_share_nothing() -> None:
    p, q = Placement("cpu", [0, 1]), Placement("cpu", [2, 3, 4])
    for seed, (a, b) in enumerate(product(SBPS, repeat=2)):
        check(numbers(8, 7), (p, (a,)), (q, (b,)), seed)


LARGE = (1282, 821)  # of float32 a little above LARGE_NBYTES


@pytest.mark.parametrize("place", ["2", "3", "2x2"])
def test_large_tensors_move_no_byte_too_many(place: str) -> None:
    placement = PLACES[place]
    layouts = list(product(SBPS, repeat=placement.ndim))
    pairs = list(product(layouts, repeat=2))
    for seed, (a, b) in enumerate(pairs[:: 1 + len(pairs) // 24]):
        check(numbers(*LARGE), (placement, a), (placement, b), seed)


@pytest.mark.parametrize(
    ("source", "target"),
    [([0, 1], [[0, 1], [2, 3]]), ([[0, 1], [2, 3]], [0, 1, 2, 3]), ([0, 1], [1, 2, 3]),
     ([0, 1], [2, 3, 4]), ([0, 1, 2], [1])],
)  # fmt: skip
def test_large_tensors_between_placements(source: Any, target: Any) -> None:
    p, q = Placement("cpu", source), Placement("cpu", target)
    pairs = list(product(product(SBPS, repeat=p.ndim), product(SBPS, repeat=q.ndim)))
    for seed, (a, b) in enumerate(pairs[:: 1 + len(pairs) // 24]):
        check(numbers(*LARGE), (p, a), (q, b), seed)


@pytest.mark.parametrize(("a", "b", "far"), [(PARTIAL, BROADCAST, 2), (Split(0), BROADCAST, 1)])
def test_between_hosts_nothing_crosses_twice(a: Any, b: Any, far: int) -> None:
    line, hosts = Placement("cpu", [0, 1, 2, 3]), ("a", "a", "b", "b")
    whole = numbers(1280, 804)
    plan = check(whole, (line, (a,)), (line, (b,)), 3, hosts)
    crossing = 0
    for actor in plan.actors:
        for node in actor.nodes if actor.kind in READS_PEERS else ():
            step, shape = node_step(actor, node), node.inputs[0].type.shape
            read = phases(step)[actor.kind in SECOND_HALVES]
            crossing += sum(
                pull.numel
                for rank in line.rank_ids
                for pull in read(shape, rank)
                if hosts[pull.source_rank] != hosts[rank]
            )
    assert crossing == far * whole.size


def test_integers_and_large_tensors() -> None:
    """A large all_reduce runs in two phases."""
    for placement in (PLACES["2"], PLACES["3"]):
        for a, b in product(SBPS, repeat=2):
            check(numbers(5, 4, dtype=np.int64), (placement, (a,)), (placement, (b,)), 0)
        check(numbers(701, 103), (placement, (PARTIAL,)), (placement, (BROADCAST,)), 0)
