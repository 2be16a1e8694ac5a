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


def chosen_inputs(name: str, *sbps: NdSbp, placement: Placement = PAIR, shape=(64, 64), **attrs):
    types = (TensorType(shape, float32),) * len(sbps)
    out_types = infer_types(find_op(name), types, attrs)
    return choose(find_op(name), types, out_types, sbps, attrs, placement).inputs


MATMUL = {"transpose_a": False, "transpose_b": False}


def test_partial_sums_become_copies_where_nothing_is_split():
    assert chosen_inputs("relu", (P,)) == ((B,),)
    assert result("add", (P,), (B,)) == (B,)


def test_partial_sums_are_divided_where_another_input_is_split():
    assert chosen_inputs("add", (P,), (S0,)) == ((S0,), (S0,))


def test_sums_are_added_up_for_a_column_split_weight_which_stays():
    assert chosen_inputs("matmul", (P,), (S1,), **MATMUL) == ((B,), (S1,))


def test_a_weight_that_is_split_where_the_batch_is_is_gathered():
    assert chosen_inputs("matmul", (S0,), (S0,), **MATMUL) == ((S0,), (B,))


def test_axes_of_a_grid_decide_apart():
    sums = ((S0, P), (B, S1))
    assert chosen_inputs("matmul", *sums, placement=GRID, **MATMUL) == ((S0, B), (B, S1))


def test_copies_are_computed_whole():
    assert result("expand", (B,), types=(TensorType((1,), float32),), shape=(8,)) == (B,)


def test_types_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError):
        result("matmul", (B,), (B,))


def _types(name: str, attrs: dict) -> tuple[TensorType, ...]:
    return infer_types(find_op(name), (X,), attrs)
