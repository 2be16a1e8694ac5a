"""Refusals of declarations, in which words, and which signatures they list where the registry test
cannot tell."""

from __future__ import annotations

from typing import Any

import pytest

from oneflow.core import dtype as dtypes
from oneflow.core.errors import DTypeError, PositionError, ShapeError
from oneflow.core.op import find_op, infer_types, num_outputs, signatures
from oneflow.core.tensor_type import TensorType, parse_type
from oneflow.ops.shape import reshape_groups


def _infer(name: str, *types: str, **attrs: Any) -> tuple[TensorType, ...]:
    return infer_types(find_op(name), tuple(map(parse_type, types)), attrs)


def _signatures(name: str, *types: str, num_ranks: int | None = None, **attrs: Any) -> set[str]:
    listed = signatures(find_op(name), tuple(map(parse_type, types)), attrs, num_ranks)
    return {str(s) for s in listed}


F32, I64 = "float32[2, 3]", "int64[2, 3]"
PART: dict[str, Any] = {"starts": (0, 0), "stops": (2, 4), "steps": (1, 1)}
INT = dtypes.int64
UNSHAPED: dict[str, Any] = {"shape": (), "dtype": INT}
SCALAR: dict[str, Any] = {**UNSHAPED, "seed": 0}
REFUSED: list[tuple[type[Exception], str, str, tuple[str, ...], dict[str, Any]]] = [
    (DTypeError, "exp needs floating-point elements", "exp", (I64,), {}),
    (DTypeError, "neg needs numbers", "neg", ("bool[2]",), {}),
    (DTypeError, "one dtype, got float32", "add", (F32, I64), {}),
    (ShapeError, "dim 1 of the result would be both 3 and 4", "add", (F32, "float32[2, 4]"), {}),
    (DTypeError, "bitwise_and needs integers or bool", "bitwise_and", (F32, F32), {}),
    (DTypeError, "cannot take the float 0.5", "scalar_add", (I64,), {"value": 0.5}),
    (DTypeError, "negative power", "scalar_pow", (I64,), {"value": -1}),
    (DTypeError, "divided by zero", "scalar_fmod", (I64,), {"value": 0}),
    (DTypeError, "knows eq, ne", "scalar_compare", (F32,), {"value": 0, "kind": "is"}),
    (DTypeError, "At least one of 'min' or 'max'", "clamp", (F32,), {"min": None, "max": None}),
    (DTypeError, "condition must be bool", "where", (F32, F32, F32), {}),
    (DTypeError, "the mask must be bool", "masked_fill", (F32, I64), {"value": 0}),
    (PositionError, "Dimension out of range: dim 2", "reduce_sum", (F32,), {"dims": (2,)}),
    (ShapeError, "appears twice", "reduce_sum", (F32,), {"dims": (1, 1)}),
    (ShapeError, "of no elements has no value", "reduce_max", ("float32[0]",), {"dims": (0,)}),
    (DTypeError, "reduce_sum needs numbers", "reduce_sum", ("bool[2]",), {"dims": (0,)}),
    (PositionError, "is empty", "argmax", ("float32[0]",), {"dim": 0}),
    (ShapeError, "has 6 elements, but shape [4] needs 4", "reshape", (F32,), {"shape": (4,)}),
    (ShapeError, "each of its 2 dims once", "transpose", (F32,), {"dims": (0, 0)}),
    (ShapeError, "cannot become [2, 4]", "expand", (F32,), {"shape": (2, 4)}),
    (ShapeError, "needs 4 pads", "pad", (F32,), {"pads": (1, 1)}),
    (ShapeError, "at least 2 dims", "tril", ("float32[2]",), {}),
    (ShapeError, "one shift per dim", "roll", (F32,), {"shifts": (1,), "dims": (0, 1)}),
    (ShapeError, "0:4:1 does not lie in a dim of size 3", "slice", (F32,), PART),
    (ShapeError, "needs at least one tensor", "concat", (), {"dim": 0}),
    (ShapeError, "does not fit", "concat", (F32, "float32[2, 4]"), {"dim": 0}),
    (ShapeError, "must sum to 3", "split", (F32,), {"sizes": (1, 1), "dim": 1}),
    (DTypeError, "index must be int32 or int64", "gather", (F32, F32), {"dim": 0}),
    (ShapeError, "differ in other dims", "dim_gather", (F32, "int64[1, 3]"), {"dim": 1}),
    (ShapeError, "shape of the index", "dim_scatter", (F32, I64, "float32[2, 1]"), {"dim": 1}),
    (ShapeError, "k must be 0 to 3", "topk", (F32,), {"k": 4, "dim": 1}),
    (ShapeError, "low < high", "randint", (), {"low": 2, "high": 2, **SCALAR}),
    (DTypeError, "floating-point", "uniform", (), {"low": 0.0, "high": 1.0, **SCALAR}),
    (ShapeError, "negative sizes", "constant", (), {"shape": (-1,), "dtype": INT, "value": 0}),
    (DTypeError, "cannot hold the float", "constant", (), {**UNSHAPED, "value": 0.5}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "words", "name", "types", "attrs"),
    REFUSED,
    ids=[f"{name}: {words}" for _, words, name, *_ in REFUSED],
)
def test_a_mistake_is_refused_in_words(
    error: type[Exception], words: str, name: str, types: tuple[str, ...], attrs: dict[str, Any]
) -> None:
    with pytest.raises(error) as caught:
        _infer(name, *types, **attrs)
    assert words in str(caught.value)
    assert name in str(caught.value)


def test_reshape_groups_are_the_finest() -> None:
    assert reshape_groups((2, 3, 4), (6, 2, 2)) == [((0, 1), (0,)), ((2,), (1, 2))]
    assert reshape_groups((5, 1, 4), (1, 5, 4)) == [((0,), (1,)), ((2,), (2,))]
    assert reshape_groups((), (1, 1)) == []


def test_a_merged_dim_is_split_only_if_all_ranks_get_whole_rows() -> None:
    merge: dict[str, Any] = {"shape": (24,)}
    assert "S(0) -> S(0)" not in _signatures("reshape", "float32[6, 4]", **merge)
    assert "S(0) -> S(0)" in _signatures("reshape", "float32[6, 4]", num_ranks=3, **merge)
    assert "S(0) -> S(0)" not in _signatures("reshape", "float32[6, 4]", num_ranks=4, **merge)
    split: dict[str, Any] = {"shape": (6, 4)}
    assert "S(0) -> S(0)" in _signatures("reshape", "float32[24]", num_ranks=2, **split)
    assert "S(0) -> S(0)" not in _signatures("reshape", "float32[24]", num_ranks=4, **split)


def test_an_unchanged_dim_is_split_for_any_number_of_ranks() -> None:
    got = _signatures("reshape", "float32[5, 3, 4]", shape=(5, 12))
    assert got == {"S(0) -> S(0)", "P -> P", "B -> B"}


def test_a_table_of_vocabulary_shards_gives_partial_sums() -> None:
    got = _signatures("gather", "float32[8, 4]", "int64[2, 3]", dim=0)
    assert got == {
        "B S(0) -> S(0)", "B S(1) -> S(1)", "S(1) B -> S(2)", "S(0) B -> P", "P B -> P", "B B -> B",
    }  # fmt: skip


def test_partial_sums_pass_through_linear_ops_only() -> None:
    assert "P P -> P" in _signatures("add", F32, F32)
    assert "P P -> P" not in _signatures("mul", F32, F32)
    assert {"P B -> P", "B P -> P"} <= _signatures("mul", F32, F32)
    assert "P -> P" in _signatures("cast", I64, dtype=dtypes.float32)
    assert "P -> P" not in _signatures("cast", F32, dtype=dtypes.int32)
    assert "P -> P" not in _signatures("relu", F32)
    assert "P -> P" not in _signatures("pad", F32, pads=(0, 0, 1, 1), value=1)


def test_split_has_as_many_outputs_as_sizes() -> None:
    attrs = {"sizes": (1, 2), "dim": 1}
    assert num_outputs(find_op("split"), (parse_type(F32),), attrs) == 2


def test_the_gradient_of_a_cross_entropy_needs_numbers_of_its_rows() -> None:
    name, rows = "sparse_softmax_cross_entropy_grad", ("float32[8]", "float32[8, 3]")
    target = {"ignore_index": -100, "label_smoothing": 0.0}
    with pytest.raises(ShapeError, match=r"labels \(N,\)"):
        _infer(name, *rows, "int64[8, 6]", "float32[8]", **target)
    with pytest.raises(ShapeError, match="the shape of labels"):
        _infer(name, *rows, "int64[8]", "float32[4]", **target)
