"""The layouts of an op's results, from types and layouts alone."""

from __future__ import annotations

import pytest

from oneflow.boxing.signatures import choose, output_sbps
from oneflow.core.dtype import float32
from oneflow.core.errors import ShapeError
from oneflow.core.op import find_op, infer_types
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Split
from oneflow.core.tensor_type import TensorType

S0, S1, B, P = Split(0), Split(1), BROADCAST, PARTIAL
PAIR = Placement("cpu", [0, 1])
GRID = Placement("cpu", [[0, 1], [2, 3]])
X = TensorType((8, 6), float32)


def result(name: str, *sbps: NdSbp, placement: Placement = PAIR, types=None, **attrs) -> NdSbp:
    (out,) = output_sbps(find_op(name), types or (X,) * len(sbps), sbps, attrs, placement)
    return out


def test_inputs_that_a_signature_takes_as_they_are_stay():
    assert result("relu", (S0,)) == (S0,)
    assert result("neg", (P,)) == (P,)
    assert result("add", (S1,), (S1,)) == (S1,)


def test_partial_sums_are_added_up_for_what_is_not_linear():
    assert result("relu", (P,)) != (P,)


@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        ("slice", {"starts": (2, 0), "stops": (6, 6), "steps": (1, 1)}),
        ("flip", {"dims": (0,)}),
        ("roll", {"shifts": (3,), "dims": (0,)}),
        ("pad", {"pads": (1, 2, 0, 0)}),
    ],
)
def test_ops_that_move_positions_along_a_split_dim_keep_it_split(name, attrs):
    assert result(name, (S0,), **attrs) == (S0,)
    assert result(name, (S0, S1), placement=GRID, **attrs) == (S0, S1)
    assert choose(find_op(name), (X,), _types(name, attrs), ((S0,),), attrs, PAIR).by_parts


def test_concat_takes_the_layout_of_its_largest_input():
    small = TensorType((2, 6), float32)
    assert result("concat", (S1,), (S0,), types=(small, X), dim=0) == (S0,)


def test_a_dim_too_small_to_stay_split_gives_way():
    row = {"starts": (2, 0), "stops": (3, 6), "steps": (1, 1)}
    assert result("slice", (S0,), **row) == (S1,)


def test_on_one_rank_the_kernel_serves_every_layout():
    alone = Placement("cpu", [0])
    attrs = {"starts": (2, 0), "stops": (6, 6), "steps": (1, 1)}
    choice = choose(find_op("slice"), (X,), _types("slice", attrs), ((S0,),), attrs, alone)
    assert choice.outputs == ((S0,),)
    assert not choice.by_parts


def test_types_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError):
        result("matmul", (B,), (B,))


def _types(name: str, attrs: dict) -> tuple[TensorType, ...]:
    return infer_types(find_op(name), (X,), attrs)
