"""Exchanges that are one call of a library that has such calls."""

from __future__ import annotations

import itertools

import pytest

from oneflow.boxing.collectives.exchange import (
    all_to_all_exchange,
    gather_exchange,
    scatter_exchange,
    step_exchanges,
    sum_exchange,
)
from oneflow.boxing.collectives.patterns import blocks_of, pattern
from oneflow.boxing.transitions import make_step
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Split

from .boxing_layouts import all_sbp

LINE = Placement("cpu", [2, 5, 7])
S0, S1, B, P = (Split(0),), (Split(1),), (BROADCAST,), (PARTIAL,)


def of(shape: tuple[int, ...], src: NdSbp, dst: NdSbp, line: Placement = LINE) -> str:
    first, *_ = step_exchanges(shape, make_step(src, line, dst, line))
    return pattern(first)


def test_rows_of_equal_parts_are_one_call() -> None:
    assert of((6, 4), S0, B) == "all_gather"
    assert of((6, 4), P, S0) == "reduce_scatter"
    assert of((6,), S0, B) == "all_gather"


def test_nothing_else_on_a_line_is() -> None:
    one_call = {(S0, B), (P, S0)}
    for a, b in itertools.product(all_sbp(1), repeat=2):
        if a != b and (a, b) not in one_call and (a, b) != (P, B):
            assert of((6, 6), a, b) == "", (a, b)


@pytest.mark.parametrize("shape", [(7, 4), (2, 4), (0, 4)])
def test_parts_of_different_sizes_are_not(shape: tuple[int, ...]) -> None:
    assert of(shape, S0, B) == "" and of(shape, P, S0) == ""


def test_flat_exchanges_are_found_too() -> None:
    ranks = (0, 1, 4)
    assert pattern(gather_exchange(ranks, (5, 5, 5))) == "all_gather"
    assert pattern(gather_exchange(ranks, (5, 5, 4))) == ""
    assert pattern(scatter_exchange(ranks, 12, 1)) == "reduce_scatter"
    assert pattern(scatter_exchange(ranks, 13, 1)) == ""
    assert pattern(all_to_all_exchange(ranks, 4)) == ""
    assert pattern(sum_exchange(ranks, 4)) == ""
    assert pattern(gather_exchange((0,), (5,))) == ""


def test_groups_of_a_grid_are_not_one_call_of_all() -> None:
    grid = Placement("cpu", [[0, 1], [2, 3]])
    step = make_step((*S0, *B), grid, (*B, *B), grid)
    assert pattern(step_exchanges((8, 8), step)[0]) == ""


def test_blocks_cover_all_rows() -> None:
    assert blocks_of((slice(4, 6), slice(0, 3)), 3) == (slice(0, 6), slice(0, 3))
