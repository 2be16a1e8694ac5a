"""Rows that move between ranks of a graph by an all_to_all of uneven sizes, and their gradients.

The reference is NumPy, part by part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import PositionError
from oneflow.core.placement import Placement
from oneflow.core.sbp import Split
from oneflow.ops.exchange_rows import exchange_rows

from .ranks import Ranks, put

GRIDS = [[0, 1], [0, 1, 2], [[0, 1], [2, 3]]]
ROWS, WIDTH = 13, 3
Array = Any


def placement_of(grid: Any) -> Placement:
    return Placement("cpu", grid)


def sizes_of(parts: int, seed: int) -> Array:
    """int64[parts, parts]: some rows of each part for each part, none for some."""
    rng = np.random.default_rng([parts, seed])
    room = np.array([len(x) for x in np.array_split(np.arange(ROWS), parts)])
    shares = rng.multinomial(100, np.ones(parts) / parts, size=parts) / 100
    found = (shares * room[:, None]).astype(np.int64)
    found[0, -1] = 0
    return found


def exchanged(x: Array, sizes: Array, parts: int, rows: int) -> Array:
    """The result for tensors whose rows dim 0 lists; 0 where nothing came."""
    sources = np.array_split(x, parts)
    out = np.zeros((rows, *x.shape[1:]), x.dtype)
    for to, target in enumerate(np.array_split(out, parts)):
        came = [source[sizes[s, :to].sum() :][: sizes[s, to]] for s, source in enumerate(sources)]
        joined = np.concatenate(came)
        target[: len(joined)] = joined
    return out


class ThereAndBack(nn.Module):
    """Rows there and back."""

    def __init__(self, sizes: Any, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.register_buffer("sizes", sizes)

    def forward(self, x: Any) -> Any:
        came, there = exchange_rows(self.sizes, x, num_parts=self.parts)
        _, back = exchange_rows(came, there, num_parts=self.parts, rows=ROWS)
        return came, there, back


class Exchange(nn.Graph):
    def __init__(self, sizes: Any, parts: int) -> None:
        super().__init__()
        self.model = ThereAndBack(sizes, parts)

    def build(self, x: Any) -> Any:
        return self.model(x)


def moved_nbytes(ranks: Ranks) -> int:
    """Bytes that the boxing actors of all ranks have read of others in the last step."""
    actors = [actor for bound in ranks.cluster.bound for actor in bound.actors.values()]
    return sum(actor.boxing.remote_nbytes for actor in actors if actor.boxing is not None)


def wanted_of(x: Array, sizes: Array, parts: int) -> tuple[Array, Array, Array]:
    there = exchanged(x, sizes, parts, parts * ROWS)
    return sizes.T.reshape(-1), there, exchanged(there, sizes.T, parts, ROWS)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_rows_arrive_in_a_plan_and_nothing_else_is_read_of_others(grid: Any) -> None:
    placement = placement_of(grid)
    parts = placement.size
    split = (Split(0),) * placement.ndim
    sizes = sizes_of(parts, 1)
    x = np.random.default_rng(3).normal(size=(ROWS, WIDTH)).astype(np.float32)

    def make() -> Any:
        told = put(sizes.reshape(-1), placement, split)
        return Exchange(told, parts), put(x, placement, split)

    ranks = Ranks(make, parts, seed=0)
    kinds = [node.op for node in ranks.plan.graph]
    assert kinds.count("exchange") == 2 and "boxing" not in kinds
    for got, want in zip(ranks(x), wanted_of(x, sizes, parts), strict=True):
        np.testing.assert_array_equal(got, want)
    others = sizes.sum() - np.trace(sizes)
    of_row, of_sizes = WIDTH * 4, parts * (parts - 1) * 8
    assert moved_nbytes(ranks) == 2 * (others * of_row + of_sizes)


class Learning(nn.Graph):
    """One step on the rows that came, weighted; the rows are a parameter."""

    def __init__(self, sizes: Any, rows: Any) -> None:
        super().__init__()
        self.model = ThereAndBack(sizes, round(len(sizes) ** 0.5))
        self.model.rows = nn.Parameter(rows)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=1.0))

    def build(self, weight: Any) -> Any:
        _, there, _ = self.model(self.model.rows)
        (there * weight).sum().backward()
        return there


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_gradients_go_back(grid: Any) -> None:
    placement = placement_of(grid)
    parts = placement.size
    split = (Split(0),) * placement.ndim
    sizes = sizes_of(parts, 2)
    x = np.random.default_rng(4).normal(size=(ROWS, WIDTH)).astype(np.float32)
    weight = np.random.default_rng(5).normal(size=(parts * ROWS, WIDTH)).astype(np.float32)

    def make() -> Any:
        told = put(sizes.reshape(-1), placement, split)
        return Learning(told, put(x, placement, split)), put(weight, placement, split)

    ranks = Ranks(make, parts, seed=1)
    ranks(weight)
    got = ranks.variable("model.rows")
    np.testing.assert_array_equal(got, x - exchanged(weight, sizes.T, parts, ROWS))


def test_more_rows_than_there_is_room_for() -> None:
    sizes = flow.tensor(np.array([5]))
    with pytest.raises(PositionError, match="room for 4: the result must have more rows"):
        exchange_rows(sizes, flow.zeros(6, 2), num_parts=1, rows=4)
