"""Every change of layout gives the right values, one hop or many, and moves no byte too many."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from oneflow.boxing.bound import lower_bound_nbytes
from oneflow.boxing.boxes import pulls, shard_box, tree_edges
from oneflow.boxing.collectives.in_process import simulate_route
from oneflow.boxing.link import Network
from oneflow.boxing.route import boxing_bytes, boxing_seconds, choose_route
from oneflow.boxing.transitions import RouteStep, leaves_gaps, make_step, phases
from oneflow.core.dtype import bool_, float64
from oneflow.core.errors import SbpError
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Split
from oneflow.core.tensor_type import TensorType

from .boxing_layouts import all_sbp, gathered, scatter

S0, S1, B, P = Split(0), Split(1), BROADCAST, PARTIAL
LINES = [Placement("cpu", list(range(p))) for p in (2, 3, 4)]
GRID = Placement("cpu", [[0, 1], [2, 3]])
PAIRS = [
    (GRID, GRID),
    (LINES[2], GRID),
    (GRID, LINES[2]),
    (LINES[0], Placement("cpu", [2, 3])),
    (LINES[0], Placement("cpu", [1, 2, 3])),
    (Placement("cpu", [2, 3, 4]), Placement("cpu", [0])),
    (Placement("cpu", [7]), GRID),
    (Placement("cpu", [[0, 1, 2], [3, 4, 5]]), Placement("cpu", [[4, 5], [6, 7], [8, 9]])),
]
MATRIX = [
    *((line, line) for line in LINES),
    *PAIRS,
    *((a, b) for b, a in PAIRS),
    (LINES[0], Placement("cpu", [1, 2])),
    (LINES[1], Placement("cpu", [1, 2, 3])),
    (LINES[2], LINES[0]),
    (GRID, Placement("cpu", [[2, 3], [4, 5]])),
    (GRID, Placement("cpu", [[4, 5], [6, 7]])),
    (Placement("cpu", [[0, 1, 2], [3, 4, 5]]),) * 2,
]


def check(
    shape: tuple[int, ...], src_sbp: NdSbp, src: Placement, dst_sbp: NdSbp, dst: Placement
) -> None:
    type = TensorType(shape, float64)
    whole = np.random.default_rng(1).integers(-50, 50, shape).astype(np.float64)
    shards = scatter(whole, src_sbp, src)
    one_hop = (RouteStep("transfer", src_sbp, src, dst_sbp, dst),)
    two_hops = (RouteStep("sum_and_spread", src_sbp, src, dst_sbp, dst),)
    for route in (one_hop, two_hops, choose_route(type, src_sbp, src, dst_sbp, dst)):
        after, _ = simulate_route(type, route, shards)
        np.testing.assert_array_equal(gathered(after, shape, dst_sbp, dst), whole)


@pytest.mark.parametrize("shape", [(4, 6), (5, 7), (1, 3), (0, 4)])
@pytest.mark.parametrize("line", LINES, ids=str)
def test_every_pair_on_a_line(line: Placement, shape: tuple[int, ...]) -> None:
    for a, b in itertools.product(all_sbp(1), repeat=2):
        check(shape, a, line, b, line)


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=lambda p: str(p))
def test_every_pair_between_placements_and_hierarchies(src: Placement, dst: Placement) -> None:
    for a, b in itertools.product(all_sbp(src.ndim), all_sbp(dst.ndim)):
        check((5, 6), a, src, b, dst)


def test_a_scalar_can_be_broadcast_and_partial() -> None:
    for a, b in itertools.product([(B,), (P,)], repeat=2):
        for dst in (LINES[1], Placement("cpu", [5, 6])):
            check((), a, LINES[1], b, dst)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_bytes_are_the_lower_bound_on_a_line(p: int) -> None:
    line = Placement("cpu", list(range(p)))
    type = TensorType((120 * p, 20 * p), float64)
    total = type.nbytes
    bound = {
        "S0 S1": total * (p - 1) // p, "S0 B": total * (p - 1), "P S0": total * (p - 1),
        "P B": 2 * total * (p - 1),
        "B S0": 0, "B P": 0, "S0 P": 0, "P P": 0, "S0 S0": 0, "B B": 0,
    }  # fmt: skip
    letters = {"S0": S0, "S1": S1, "B": B, "P": P}
    for pair, expected in bound.items():
        a, b = pair.split()
        assert boxing_bytes(type, (letters[a],), line, (letters[b],), line) == expected, pair


@pytest.mark.parametrize(
    "shape", [pytest.param((2400, 1200), marks=pytest.mark.slow), (2401, 1203)]
)
@pytest.mark.parametrize(("src", "dst"), MATRIX, ids=lambda p: str(p))
def test_no_pair_moves_a_byte_more_than_the_bound(
    src: Placement, dst: Placement, shape: tuple[int, int]
) -> None:
    type = TensorType(shape, float64)
    for a, b in itertools.product(all_sbp(src.ndim), all_sbp(dst.ndim)):
        bound = lower_bound_nbytes(type, a, src, b, dst)
        assert boxing_bytes(type, a, src, b, dst) == bound, (a, b)


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_on_sums_is_what_a_search_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_addends = int(rng.integers(1, 4))
    owner = rng.integers(-1, num_addends, 4)  # which addend each of four ranks holds, if any
    owner[:num_addends] = np.arange(num_addends)
    readers = frozenset(np.flatnonzero(rng.integers(0, 2, 4)).tolist()) or frozenset({3})
    holders = [frozenset(np.flatnonzero(owner == a).tolist()) for a in range(num_addends)]
    assert tree_edges(holders, readers) == fewest_sends(holders, readers)


def fewest_sends(holders: list[frozenset[int]], readers: frozenset[int]) -> int:
    """Breadth first over all ways to send partial sums about. A rank that knows several disjoint
    sums may send each, or the sum of some."""
    whole = (1 << len(holders)) - 1
    start = tuple(
        _closed(frozenset(1 << a for a, ranks in enumerate(holders) if r in ranks))
        for r in range(4)
    )
    level, seen = {start}, {start}
    for sends in range(10):
        if any(all(whole in state[r] for r in readers) for state in level):
            return sends
        level = {
            after
            for state in level
            for a, b in itertools.permutations(range(4), 2)
            for what in state[a] - state[b]
            for after in [(*state[:b], _closed(state[b] | {what}), *state[b + 1 :])]
            if after not in seen
        }
        seen |= level
    raise AssertionError("no way found")


def _closed(known: frozenset[int]) -> frozenset[int]:
    """All sums that can be made of disjoint ones."""
    sums = set(known)
    while new := {x | y for x, y in itertools.combinations(sums, 2) if not x & y} - sums:
        sums |= new
    return frozenset(sums)


def test_copies_of_summed_pairs_are_equal_to_the_last_bit() -> None:
    type = TensorType((40, 30), float64)
    rng = np.random.default_rng(0)
    shards = {r: rng.standard_normal((40, 30)) for r in GRID.rank_ids}
    step = RouteStep("sum_and_spread", (P, P), GRID, (B, B), GRID)
    after, _ = simulate_route(type, (step,), shards)
    expected = ((shards[0] + shards[1]) + shards[2]) + shards[3]
    for rank in GRID.rank_ids:
        assert after[rank].tobytes() == expected.tobytes()


def test_bytes_are_the_lower_bound_between_disjoint_ranks() -> None:
    src, dst = Placement("cpu", [0, 1]), Placement("cpu", [2, 3, 4])
    type = TensorType((600, 60), float64)
    total = type.nbytes
    expected = {
        (S0, S0): total, (S0, S1): total, (B, B): 3 * total, (B, S0): total, (B, P): total,
        (S0, P): total,
        (S0, B): 3 * total, (P, S0): 2 * total, (P, B): total * (2 + 3 - 1),
    }  # fmt: skip
    for (a, b), nbytes in expected.items():
        assert boxing_bytes(type, (a,), src, (b,), dst) == nbytes, (a, b)


def test_a_diagonal_change_moves_only_what_a_rank_lacks() -> None:
    type = TensorType((8, 8), float64)
    moved = boxing_bytes(type, (S0, S1), GRID, (S1, S0), GRID)
    missing = 0
    for rank in GRID.rank_ids:
        have = np.zeros((8, 8), bool)
        want = np.zeros((8, 8), bool)
        have[shard_box((8, 8), (S0, S1), GRID, rank).slices] = True
        want[shard_box((8, 8), (S1, S0), GRID, rank).slices] = True
        missing += int((want & ~have).sum())
    assert moved == missing * 8


def test_the_simulated_bytes_are_the_announced_ones() -> None:
    type = TensorType((120, 80), float64)
    for a, b in itertools.product(all_sbp(2), repeat=2):
        shards = scatter(np.ones((120, 80)), a, GRID)
        _, moved = simulate_route(type, choose_route(type, a, GRID, b, GRID), shards)
        assert moved == boxing_bytes(type, a, GRID, b, GRID)


def test_readers_spread_over_the_holders_of_copies() -> None:
    src, dst = Placement("cpu", [0, 1]), Placement("cpu", [2, 3, 4, 5])
    sources = [pulls((8,), (B,), src, (B,), dst, r)[0].source_rank for r in dst.rank_ids]
    assert sorted(sources) == [0, 0, 1, 1]
    sources = [pulls((8,), (B,), src, (S0,), dst, r)[0].source_rank for r in dst.rank_ids]
    assert sorted(sources) == [0, 0, 1, 1]


def test_a_holder_reads_its_own_copy() -> None:
    (pull,) = pulls((8,), (B,), LINES[0], (B,), Placement("cpu", [1, 2]), 1)
    assert pull.source_rank == 1


def test_partial_sums_are_read_in_rank_order() -> None:
    mine = pulls((4, 4), (P,), LINES[2], (S0,), LINES[2], 3)
    assert [p.source_rank for p in mine] == [0, 1, 2, 3]
    assert [p.add for p in mine] == [False, True, True, True]


def test_only_the_first_rank_of_a_partial_group_gets_copies() -> None:
    step = make_step((B,), LINES[2], (P,), LINES[2])
    assert [leaves_gaps((4,), step, r) for r in range(4)] == [False, True, True, True]


def test_p_to_b_stays_one_step() -> None:
    type = TensorType((1000, 10), float64)
    (step,) = choose_route(type, (P,), LINES[2], (B,), LINES[2])
    assert step.kind == "all_reduce"


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    [(P, S0, "reduce_scatter"), (S0, B, "all_gather"), (S0, S1, "all_to_all"), (B, S0, "slice")],
)
def test_one_axis_changes_are_rows_of_the_table(a: Split, b: Split, kind: str) -> None:
    assert make_step((a, S1), GRID, (b, S1), GRID).kind == (kind if b is not S1 else "transfer")


def test_a_nested_split_cannot_change_inside_its_group() -> None:
    assert make_step((S0, S0), GRID, (B, S0), GRID).kind == "transfer"
    assert make_step((S0, S0), GRID, (S0, B), GRID).kind == "all_gather"


def test_sums_of_booleans_are_refused() -> None:
    with pytest.raises(SbpError, match="sum of booleans"):
        choose_route(TensorType((4,), bool_), (B,), LINES[0], (P,), LINES[0])


def test_layouts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SbpError, match="Split axis out of range"):
        boxing_seconds(TensorType((4,), float64), (S1,), LINES[0], (B,), LINES[0])
    with pytest.raises(SbpError, match="one per axis"):
        boxing_seconds(TensorType((4,), float64), (S0,), GRID, (B,), GRID)


@pytest.mark.parametrize(("a", "b", "far"), [(P, B, 2), (S0, B, 1), (P, S0, 1)])
def test_between_hosts_nothing_crosses_twice(a: Split, b: Split, far: int) -> None:
    """Two hosts of two ranks: far, in tensors, counts those that cross; sums are made inside a host
    first, copies inside the host that has them.
    """
    network, line = Network((0, 0, 1, 1)), LINES[2]
    type = TensorType((1024, 512), float64)
    whole = np.random.default_rng(0).integers(-9, 9, type.shape).astype(np.float64)
    route = choose_route(type, (a,), line, (b,), line, network)
    after, _ = simulate_route(type, route, scatter(whole, (a,), line))
    np.testing.assert_array_equal(gathered(after, type.shape, (b,), line), whole)
    crossing = sum(
        pull.numel * 8
        for step in route
        for pulls_of in phases(step)
        for rank in line.rank_ids
        for pull in pulls_of(type.shape, rank)
        if network.host(pull.source_rank) != network.host(rank)
    )
    assert crossing == far * type.nbytes


def test_seconds_grow_with_bytes_and_with_the_slower_link() -> None:
    small, large = TensorType((8,), float64), TensorType((1 << 20,), float64)
    line = LINES[0]
    assert boxing_seconds(large, (S0,), line, (S0,), line) == 0.0
    assert boxing_seconds(small, (S0,), line, (B,), line) < boxing_seconds(
        large, (S0,), line, (B,), line
    )
    assert boxing_seconds(large, (P,), line, (B,), line, Network(tuple(range(4)))) > boxing_seconds(
        large, (P,), line, (B,), line
    )
