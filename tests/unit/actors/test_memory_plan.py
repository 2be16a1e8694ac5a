"""Offsets of temporaries: never two live ones in one place, and close to the least possible."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oneflow.actors.memory import (
    ALIGNMENT,
    Lifetime,
    aligned,
    lower_bound,
    plan_offsets,
)
from oneflow.actors.offset_fit import FOUND, NONE, fit
from oneflow.actors.offset_search import search_offsets
from oneflow.actors.offsets import ORDERS, TOGETHER, Blocks, least_offsets, place
from oneflow.kernels.array import aligned_buffer
from tests.support.properties import STEADY


def lifetimes(max_size: int) -> st.SearchStrategy[list[Lifetime]]:
    item = st.tuples(st.integers(0, 1000), st.integers(0, 12), st.integers(0, 6))
    return st.lists(item, max_size=max_size).map(
        lambda items: [Lifetime(k, n, a, a + length) for k, (n, a, length) in enumerate(items)]
    )


def assert_disjoint(items: list[Lifetime], offsets: dict[int, int], total: int) -> None:
    assert offsets.keys() == {t.key for t in items}
    by_start = sorted(items, key=lambda t: t.first)
    for i, a in enumerate(by_start):
        end = offsets[a.key] + a.nbytes
        assert offsets[a.key] % ALIGNMENT == 0 and offsets[a.key] >= 0 and end <= total
        for b in by_start[i + 1 :]:
            if b.first > a.last:
                break
            begin = offsets[b.key]
            assert end <= begin or begin + b.nbytes <= offsets[a.key] or not (a.nbytes and b.nbytes)


def peak(items: list[Lifetime]) -> int:
    """Live bytes at the worst moment, counted moment by moment."""
    last = max((t.last for t in items), default=-1)
    return max(
        (
            sum(aligned(t.nbytes) for t in items if t.first <= now <= t.last)
            for now in range(last + 1)
        ),
        default=0,
    )


def best(items: list[Lifetime]) -> int:
    """The least arena over all orders of putting each item as low as it can lie."""
    least = sum(aligned(t.nbytes) for t in items)
    for order in permutations(items):
        placed: list[tuple[int, int, Lifetime]] = []
        for item in order:
            offset, size = 0, aligned(item.nbytes)
            for start, stop, other in sorted(placed, key=lambda p: p[0]):
                meets = other.first <= item.last and item.first <= other.last
                if meets and start < offset + size and offset < stop:
                    offset = stop
            placed.append((offset, offset + size, item))
        least = min(least, max((stop for _, stop, _ in placed), default=0))
    return least


def test_several_orders_may_need_less_than_the_first() -> None:
    rng = np.random.default_rng(1)
    items = []
    for k in range(12):
        first = int(rng.integers(0, 10))
        size, life = (int(rng.integers(*bounds)) for bounds in ((1, 9), (0, 6)))
        items.append(Lifetime(k, size * 4096, first, first + life))
    offsets, total = plan_offsets(items, best=False)
    assert_disjoint(items, offsets, total)
    assert plan_offsets(items)[1] < total


@settings(STEADY, max_examples=200)
@given(lifetimes(40))
def test_live_temporaries_never_overlap(items: list[Lifetime]) -> None:
    offsets, total = plan_offsets(items)
    assert_disjoint(items, offsets, total)
    assert peak(items) <= total <= sum(aligned(t.nbytes) for t in items)


@settings(STEADY, max_examples=200)
@given(lifetimes(40))
def test_the_lower_bound_is_the_peak_of_live_bytes(items: list[Lifetime]) -> None:
    assert lower_bound(items) == peak(items)


@settings(STEADY, max_examples=60)
@given(lifetimes(5))
def test_small_plans_are_near_the_best_there_is(items: list[Lifetime]) -> None:
    _, total = plan_offsets(items)
    least = best(items)
    assert peak(items) <= least <= total <= 2 * least


def test_what_never_meets_shares_one_place() -> None:
    items = [Lifetime(k, 100 + k, 2 * k, 2 * k + 1) for k in range(50)]
    offsets, total = plan_offsets(items)
    assert set(offsets.values()) == {0} and total == aligned(149) == lower_bound(items)


def test_a_chain_needs_two_neighbours_at_a_time() -> None:
    items = [Lifetime(k, 640, k, k + 1) for k in range(100)]
    assert plan_offsets(items)[1] == lower_bound(items) == 1280


@pytest.mark.parametrize("count", [TOGETHER, TOGETHER + 1, 2 * TOGETHER])
def test_large_plans_hold_too(count: int) -> None:
    rng = np.random.default_rng(count)
    sizes, lengths = rng.integers(1, 5000, count), rng.integers(0, 5, count)
    items = [
        Lifetime(k, int(n), k, k + int(d))
        for k, (n, d) in enumerate(zip(sizes, lengths, strict=True))
    ]
    offsets, total = plan_offsets(items)
    assert_disjoint(items, offsets, total)
    assert total <= 1.25 * lower_bound(items)


def test_nested_lives_of_a_training_step_need_no_more_than_their_peak() -> None:
    """Half of the forward pass's results wait for the backward pass; the rest goes at once."""
    rng, n = np.random.default_rng(0), 600
    items = []
    for k in range(n):
        nbytes = int(rng.choice([64, 256, 1024, 8192]))
        last = 2 * n - k if k % 2 else k + int(rng.integers(1, 6))
        items.append(Lifetime(2 * k, nbytes, k, last))
        items.append(Lifetime(2 * k + 1, nbytes, 2 * n - k, 2 * n - k + int(rng.integers(1, 6))))
    offsets, total = plan_offsets(items)
    assert_disjoint(items, offsets, total)
    assert total <= 1.01 * lower_bound(items)


def crossing(count: int, seed: int) -> Blocks:
    """Blocks whose lives cross each other as they like."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 40, count)
    last = first + rng.integers(0, 30, count)
    sizes = rng.integers(1, 64, count)
    return Blocks.of(list(zip(sizes.tolist(), first.tolist(), last.tolist(), strict=True)))


def placed_simply(blocks: Blocks, order: np.ndarray) -> list[int]:
    """The rule step by step: of blocks that rest so low that none fits below, the first goes."""
    rest = dict.fromkeys(order.tolist(), 0)
    offsets = [0] * len(order)
    sizes, first, last = (x.tolist() for x in (blocks.sizes, blocks.first, blocks.last))
    while rest:
        least = min(edge + sizes[i] for i, edge in rest.items())
        i = next(i for i, edge in rest.items() if edge < least)
        offsets[i] = rest.pop(i)
        for k in rest:
            if first[k] <= last[i] and first[i] <= last[k]:
                rest[k] = max(rest[k], offsets[i] + sizes[i])
    return offsets


@pytest.mark.parametrize("unit", [1, 1 << 40])
@pytest.mark.parametrize("count", [1, 5, 16, 17, 90])
def test_machine_code_places_by_the_rule(count: int, unit: int) -> None:
    small = crossing(count, count)
    blocks = Blocks(small.sizes * unit, small.first, small.last)
    for by in ORDERS:
        order = by(blocks)
        placed = place(blocks, order)
        assert placed.offsets.tolist() == placed_simply(blocks, order)
        assert placed.max_end == int((placed.offsets + blocks.sizes).max())


def test_the_best_of_several_orders_is_taken() -> None:
    blocks = crossing(60, 1)
    ends = [place(blocks, order(blocks)).max_end for order in ORDERS]
    assert len(set(ends)) > 1 and least_offsets(blocks).max_end == min(ends)


def test_a_search_finds_smaller_arenas_and_the_same_again() -> None:
    blocks = crossing(40, 3)
    start, found = least_offsets(blocks), search_offsets(blocks, 200_000)
    assert blocks.peak <= found.max_end < start.max_end
    assert_apart(blocks, found.offsets)
    assert np.array_equal(found.offsets, search_offsets(blocks, 200_000).offsets)


@pytest.mark.parametrize("seed", range(6))
def test_a_height_is_refused_only_if_no_placement_fits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 5, 6)
    lives = zip(rng.integers(1, 9, 6), first, first + rng.integers(0, 4, 6), strict=True)
    blocks = Blocks.of([(int(a), int(b), int(c)) for a, b, c in lives])
    best = min(place(blocks, np.array(order)).max_end for order in permutations(range(6)))
    order = rng.permutation(6)
    assert fit(blocks, order, best - 1, 10_000)[0] == NONE
    answer, offsets, work = fit(blocks, order, best, 10_000)
    assert answer == FOUND and work <= 10_000 and (offsets + blocks.sizes).max() == best
    assert_apart(blocks, offsets)


def assert_apart(blocks: Blocks, offsets: np.ndarray) -> None:
    ends = offsets + blocks.sizes
    meet = (blocks.first[:, None] <= blocks.last) & (blocks.first <= blocks.last[:, None])
    overlap = meet & (offsets[:, None] < ends) & (offsets < ends[:, None])
    assert overlap.sum() == len(offsets)  # each block with itself


def test_buffers_begin_at_a_cache_line() -> None:
    for nbytes in (0, 1, 63, 64, 1000):
        buffer = aligned_buffer(nbytes)
        assert buffer.nbytes == nbytes and not buffer.any()
        assert nbytes == 0 or buffer.ctypes.data % ALIGNMENT == 0
