"""A reshape keeps shards where they are, in every layout over a grid that can say so."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from oneflow.boxing.boxes import shard_box
from oneflow.boxing.signatures import choose
from oneflow.core.dtype import float32
from oneflow.core.op import find_op
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Split, parse_sbp
from oneflow.core.tensor_type import TensorType

GRIDS = [(2, 2), (2, 3), (4, 2), (1, 2), (2, 1), (2, 2, 2)]
SHAPES = [
    ((8, 4), (2, 4, 4)),
    ((2, 4, 4), (8, 4)),
    ((8, 6), (48,)),
    ((48,), (4, 2, 6)),
    ((4, 1, 6), (4, 6)),
    ((5, 4), (1, 5, 2, 2)),
    ((4, 6, 2), (2, 2, 12)),
    ((12, 6), (4, 3, 3, 2)),
]
Shape = tuple[int, ...]


def layouts(ndim: int, axes: int) -> list[NdSbp]:
    one = [*(Split(i) for i in range(ndim)), BROADCAST, PARTIAL]
    return list(itertools.product(one, repeat=axes))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("old", "new"), SHAPES)
def test_shards_hold_the_same_elements_before_and_after(
    old: Shape, new: Shape, grid: Shape
) -> None:
    op, x = find_op("reshape"), TensorType(old, float32)
    where = Placement("cpu", np.arange(np.prod(grid)).reshape(grid))
    values, num_kept = np.arange(x.numel).reshape(old), 0
    for nd_sbp in layouts(len(old), len(grid)):
        made = op.kept(nd_sbp, grid, x, shape=new)
        if made is None:
            continue
        num_kept += 1
        for rank in where.rank_ids:
            before = values[shard_box(old, nd_sbp, where, rank).slices]
            after = values.reshape(new)[shard_box(new, made, where, rank).slices]
            np.testing.assert_array_equal(before.reshape(after.shape), after)
        chosen = choose(op, (x,), (x.with_shape(new),), (nd_sbp,), {"shape": new}, where)
        assert (chosen.inputs, chosen.outputs, chosen.by_parts) == ((nd_sbp,), (made,), False)
    assert num_kept >= 2 ** len(grid)  # of copies and partial sums, at least


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        ((8, 4), (2, 4, 4), "S(0) S(0)", "S(0) S(1)"),
        ((2, 4, 4), (8, 4), "S(0) S(1)", "S(0) S(0)"),
        ((8, 4), (32,), "S(0) S(0)", "S(0) S(0)"),
        ((4, 1, 6), (4, 6), "S(2) S(0)", "S(1) S(0)"),
    ],
)
def test_layouts_on_a_grid(old: Shape, new: Shape, before: str, after: str) -> None:
    kept = find_op("reshape").kept
    wanted = tuple(map(parse_sbp, after.split()))
    assert (
        kept(tuple(map(parse_sbp, before.split())), (2, 2), TensorType(old, float32), shape=new)
        == wanted
    )
