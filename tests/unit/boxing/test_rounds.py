"""Exchanges cut into rounds: every piece moves once, fits its slot, and sums stay in rank order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from oneflow.boxing.boxes import local_type
from oneflow.boxing.collectives import rounds
from oneflow.boxing.collectives.base import pack, unpack
from oneflow.boxing.collectives.exchange import (
    Exchange,
    all_to_all_exchange,
    gather_exchange,
    scatter_exchange,
    step_exchanges,
    sum_exchange,
)
from oneflow.boxing.collectives.rounds import boxes, num_rounds, put, rounds_of, take
from oneflow.boxing.transitions import RouteStep
from oneflow.core.dtype import float32
from oneflow.core.errors import DesyncError, InternalError
from oneflow.core.placement import Placement
from oneflow.core.tensor_type import TensorType

from .boxing_layouts import all_sbp, scatter

Array = np.ndarray[Any, Any]


def in_rounds(
    exchange: Exchange, sources: dict[int, Array], targets: dict[int, Array], slot_numel: int
) -> int:
    """Runs all ranks, round after round; returns how many rounds there were."""
    plans = {r: rounds_of(exchange, r, slot_numel) for r in exchange.ranks}
    assert len({len(plan) for plan in plans.values()}) == 1
    for r in exchange.zero_filled:
        targets[r][...] = 0
    for turns in zip(*plans.values(), strict=True):
        slots = {r: np.full(slot_numel, np.nan, np.float32) for r in exchange.ranks}
        for r, turn in zip(exchange.ranks, turns, strict=True):
            if r in sources:
                put(sources[r], turn.puts, slots[r])
        for r, turn in zip(exchange.ranks, turns, strict=True):
            if r in targets:
                take(sources.get(r), targets[r], turn.own, slots, np.add)
                take(sources.get(r), targets[r], turn.takes, slots, np.add)
    return len(turns and plans[exchange.ranks[0]])


def in_one_go(exchange: Exchange, sources: dict[int, Array], targets: dict[int, Array]) -> None:
    packed: dict[int, Array] = {}
    for r, source in sources.items():
        packed[r] = np.empty(exchange.packed_numel(r), np.float32)
        pack(source, exchange.packed(r), packed[r])
    for r, target in targets.items():
        unpack(r, sources.get(r), target, exchange, packed.__getitem__, np.add)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (4, 1, 6), (2, 3, 4, 5), (1, 1, 9)])
def test_boxes_are_the_elements_of_a_range_in_order(shape: tuple[int, ...]) -> None:
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    for low, high in itertools.combinations_with_replacement(range(numbers.size + 1), 2):
        found = [numbers[box].ravel() for box in boxes(shape, low, high)]
        assert len(found) <= max(1, 2 * len(shape) - 1)
        got = np.concatenate(found) if found else np.empty(0)
        assert got.tolist() == list(range(low, high))


@pytest.mark.parametrize("slot_numel", [12, 40, 5000])
def test_flat_exchanges_give_the_same_in_any_number_of_rounds(slot_numel: int) -> None:
    ranks = (0, 2, 5)
    rng = np.random.default_rng(0)
    cases = [
        (gather_exchange(ranks, (700, 0, 123)), (700, 0, 123), (823,) * 3),
        (scatter_exchange(ranks, 301, 1), (301,) * 3, (101, 100, 100)),
        (scatter_exchange(ranks, 70 * 13, 13), (910,) * 3, (24 * 13, 23 * 13, 23 * 13)),
        (all_to_all_exchange(ranks, 333), (999,) * 3, (999,) * 3),
        (sum_exchange(ranks, 257), (257,) * 3, (257,) * 3),
    ]
    for exchange, given, made in cases:
        sources = {
            r: rng.standard_normal(n).astype(np.float32) for r, n in zip(ranks, given, strict=True)
        }
        got = {r: np.full(n, np.nan, np.float32) for r, n in zip(ranks, made, strict=True)}
        expected = {r: a.copy() for r, a in got.items()}
        count = in_rounds(exchange, sources, got, slot_numel)
        in_one_go(exchange, sources, expected)
        assert (count == 1) == (max(map(exchange.packed_numel, ranks)) <= slot_numel)
        for r in ranks:
            assert got[r].tobytes() == expected[r].tobytes(), (exchange, r)


def test_every_pair_of_layouts_gives_the_same_in_rounds() -> None:
    shape = (7, 10)
    line, other = Placement("cpu", [0, 1, 2]), Placement("cpu", [1, 3])
    grid = Placement("cpu", [[0, 1], [2, 3]])
    pairs = [
        *itertools.product(all_sbp(1), [line], all_sbp(1), [line, other]),
        *itertools.product(all_sbp(2)[::2], [grid], all_sbp(2)[::3], [grid]),
    ]
    whole = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    type_ = TensorType(shape, float32)
    for src, p, dst, q in pairs:
        for kind in ("transfer", "sum_and_spread"):
            step = RouteStep(kind, src, p, dst, q)
            sources = scatter(whole, src, p)
            shapes = {r: local_type(type_, dst, q, r).shape for r in q.rank_ids}
            got = {r: np.full(s, np.nan, np.float32) for r, s in shapes.items()}
            expected = {r: a.copy() for r, a in got.items()}
            before, after = sources, sources
            for exchange in step_exchanges(shape, step):
                in_rounds(exchange, before, got, 9)
                in_one_go(exchange, after, expected)
                before, after = got, expected
            for r in q.rank_ids:
                assert got[r].tobytes() == expected[r].tobytes(), (step, r)


def test_rounds_are_few_and_pieces_even() -> None:
    exchange = all_to_all_exchange((0, 1, 2, 3), 100_000)
    count = num_rounds(exchange, 10_000)
    assert count <= 34
    for turn in rounds_of(exchange, 1, 10_000):
        assert max(p.stop for p in turn.puts) <= 10_000
        assert len({t.addends[0].rank for t in turn.takes}) == 3, "all peers are read in all rounds"


def test_rows_are_kept_whole_where_they_are_short() -> None:
    shape = (4096, 6)
    step = RouteStep(
        "all_gather",
        all_sbp(1)[0],
        Placement("cpu", [0, 1]),
        all_sbp(1)[2],
        Placement("cpu", [0, 1]),
    )
    (exchange,) = step_exchanges(shape, step)
    for turn in rounds_of(exchange, 0, 1000):
        assert len(turn.puts) == 1
        assert turn.puts[0].shape[1] == 6


def test_a_rank_without_its_shard_is_an_error() -> None:
    (first, *_) = rounds_of(sum_exchange((0, 1), 4), 0, 16)
    with pytest.raises(DesyncError, match="no shard"):
        take(None, np.zeros(4, np.float32), first.takes, {1: np.zeros(16, np.float32)}, np.add)


def test_more_parts_than_a_slot_holds_are_an_error() -> None:
    with pytest.raises(InternalError, match="parts in a slot"):
        num_rounds(all_to_all_exchange((0, 1, 2, 3), 5), 3)


def test_what_was_worked_out_is_kept_but_not_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "_plans", {})
    monkeypatch.setattr(rounds, "MAX_ROUNDS_KEPT", 100)
    exchanges = [all_to_all_exchange((0, 1), 1000 + i) for i in range(20)]
    first = rounds_of(exchanges[0], 0, 100)
    assert rounds_of(exchanges[0], 0, 100) is first
    for exchange in exchanges:
        rounds_of(exchange, 0, 100)
    kept = rounds._plans.values()
    assert 0 < sum(map(len, kept)) <= 100
    assert first not in kept
