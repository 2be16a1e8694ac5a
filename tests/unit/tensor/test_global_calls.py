"""Choices of signatures by eager global ops, which are found again, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.dtype import bool_, float32, int64
from oneflow.core.errors import PlacementError
from oneflow.core.op import find_op
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Split, parse_sbp
from oneflow.core.tensor_type import TensorType, parse_type
from oneflow.tensor import eager_global
from oneflow.tensor.eager_global import choose_call

ALONE, ROW = flow.placement("cpu", [0]), flow.placement("cpu", [[0]])
FOUR = Placement("cpu", [0, 1, 2, 3])
GRID = Placement("cpu", [[0, 1], [2, 3]])
S0, S1, B, P = Split(0), Split(1), BROADCAST, PARTIAL


def chosen(
    name: str, types: list[str], sbps: list[NdSbp], placement: Placement = FOUR, **attrs: Any
) -> tuple[tuple[NdSbp, ...], tuple[NdSbp, ...]]:
    call = choose_call(find_op(name), tuple(map(parse_type, types)), tuple(sbps), attrs, placement)
    return call.in_sbps, call.out_sbps


MATRICES = ["float32[64, 32]", "float32[32, 16]"]
ACTIVATIONS = ["float32[64, 32]", "float32[64, 32]"]


@pytest.mark.parametrize(
    ("name", "types", "have", "taken", "made", "attrs"),
    [
        ("matmul", MATRICES, "S0 B", "S0 B", "S0", {}),
        ("matmul", MATRICES, "S1 S0", "S1 S0", "P", {}),
        ("matmul", MATRICES, "P B", "P B", "P", {}),
        ("reduce_sum", MATRICES[:1], "S0", "S0", "P", {"dims": (0, 1)}),
        ("reduce_sum", MATRICES[:1], "S1", "S1", "S0", {"dims": (0,)}),
        ("scalar_mul", MATRICES[:1], "P", "P", "P", {"value": 2.0}),
        ("add", ACTIVATIONS, "P P", "P P", "P", {}),
        ("add", ACTIVATIONS, "S0 B", "S0 S0", "S0", {}),
        ("add", ["float32[64, 32]", "float32[32]"], "B P", "B B", "B", {}),
        ("add", ["float32[64, 32]", "float32[32]"], "S0 P", "S0 B", "S0", {}),
        ("linear", [*MATRICES[:1], "float32[16, 32]", "float32[16]"], "S0 B B", "S0 B B", "S0", {}),
        ("gather", ["float32[64, 8]", "int64[6]"], "S0 B", "S0 B", "P", {"dim": 0}),
        ("transpose", MATRICES[:1], "S0", "S0", "S1", {"dims": (1, 0)}),
        ("softmax", MATRICES[:1], "S0", "S0", "S0", {}),
        ("concat", ACTIVATIONS, "S1 S1", "S1 S1", "S1", {"dim": 0}),
    ],
)
def test_inputs_stay_where_a_signature_allows(
    name: str, types: list[str], have: str, taken: str, made: str, attrs: dict[str, Any]
) -> None:
    sbps = [(parse_sbp(s),) for s in have.split()]
    ins, outs = chosen(name, types, sbps, **attrs)
    assert [str(s[0]) for s in ins] == [str(parse_sbp(s)) for s in taken.split()]
    assert str(outs[0][0]) == str(parse_sbp(made))


def test_a_dim_too_small_for_the_ranks_is_not_split() -> None:
    ins, _ = chosen("add", ["float32[2, 64]", "float32[2, 64]"], [(B,), (S1,)])
    assert ins == ((S1,), (S1,))


def test_booleans_are_never_sums() -> None:
    ins, outs = chosen("gather", ["bool[64, 8]", "int64[6]"], [(S0,), (B,)], dim=0)
    assert not any(s.is_partial for nd_sbp in (*ins, *outs) for s in nd_sbp)
    assert bool_.name == "bool"


def test_every_axis_of_a_grid_has_its_own_choice() -> None:
    ins, outs = chosen("matmul", MATRICES, [(S0, S1), (B, S0)], GRID)
    assert ins == ((S0, S1), (B, S0)) and outs == ((S0, P),)


def test_many_axes_are_weighed_at_a_glance_first() -> None:
    cube = Placement("cpu", np.arange(8).reshape(2, 2, 2))
    types = ["float32[8, 8, 64, 64]", "float32[8, 8, 64, 64]"]
    ins, outs = chosen("matmul", types, [(S0, S1, B), (S0, S1, Split(3))], cube)
    assert ins == ((S0, S1, B), (S0, S1, Split(3))) and outs == ((S0, S1, Split(3)),)
    ins, outs = chosen("matmul", types, [(S0, S1, P), (S0, B, B)], cube)
    assert ins == ((S0, S1, P), (S0, S1, B)) and outs == ((S0, S1, P),)


def test_an_axis_of_one_rank_changes_nothing() -> None:
    line = Placement("cpu", [[0, 1, 2, 3]])
    ins, outs = chosen("matmul", MATRICES, [(P, S1), (S0, S0)], line)
    assert [s[1] for s in ins] == [S1, S0] and outs[0][1] is P


def test_what_is_overwritten_is_moved_only_if_nothing_else_fits() -> None:
    types = ["float32[8, 4]", "float32[8, 4]", "float32[]"]
    attrs = {"weight_decay": 0.0, "maximize": False}
    ins, _ = chosen("sgd_update", types, [(S0,), (P,), (B,)], **attrs)
    assert ins == ((S0,), (S0,), (B,))
    ins, _ = chosen("sgd_update", types, [(P,), (B,), (B,)], **attrs)
    assert ins[0] != (P,)


# ---- finding calls again -------------------------------------------------------------------------


def test_equal_types_and_layouts_are_one_call() -> None:
    x = flow.ones(3, 5, placement=ALONE, sbp=flow.sbp.split(0))
    assert (x + x).numpy().sum() == 30
    count = len(eager_global._calls)
    y = flow.ones(3, 5, placement=flow.placement("cpu", [0]), sbp=[flow.sbp.split(0)])
    y.meta = TensorType((3, 5), float32)
    assert (y + y).numpy().sum() == 30
    assert len(eager_global._calls) == count


def test_numbers_of_another_kind_are_another_call() -> None:
    x = flow.ones(4, placement=ALONE, sbp=flow.sbp.broadcast, dtype=flow.int64)
    assert (x * 2).dtype is int64 and (x * 2.0).dtype is float32 and (x * True).dtype is int64


def test_forgotten_calls_are_found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_global, "MAX_CACHED_CALLS", 2)
    x = flow.ones(4, 3, placement=ALONE, sbp=flow.sbp.broadcast)
    for _ in range(3):
        for value in (1.0, 2.0, 3.0, 4.0):
            np.testing.assert_array_equal((x * value + x).numpy(), np.full((4, 3), value + 1))


# ---- places --------------------------------------------------------------------------------------


def test_inputs_in_two_places_are_an_error() -> None:
    x, y = (
        flow.ones(4, placement=p, sbp=[flow.sbp.broadcast] * p.ranks.ndim) for p in (ALONE, ROW)
    )
    with pytest.raises(PlacementError, match="Expected all tensors to be on the same placement"):
        x + y


def test_inputs_in_two_places_are_brought_together_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONEFLOW_ENABLE_GLOBAL_INPUTS_WITH_INCONSISTENT_PLACEMENT", "true")
    x = flow.ones(4, placement=ALONE, sbp=flow.sbp.split(0))
    y = flow.full((4,), 2.0, placement=ROW, sbp=[flow.sbp.broadcast, flow.sbp.split(0)])
    x.requires_grad = y.requires_grad = True
    z = x * y
    assert z.placement == ROW and (y * x).placement == ALONE
    z.sum().backward()
    assert y.grad.placement == ROW
    np.testing.assert_array_equal(y.grad.numpy(), np.ones(4))


def test_local_and_global_tensors_do_not_mix() -> None:
    x = flow.ones(4, placement=ALONE, sbp=flow.sbp.broadcast)
    for work in (lambda: x + flow.ones(4), lambda: flow.ones(4) + x):
        with pytest.raises(PlacementError, match="local and global tensors are mixed"):
            work()
    with pytest.raises(PlacementError, match="local tensor"):
        x[1:] = flow.ones(3)
    np.testing.assert_array_equal((2.0 * x + 1).numpy(), np.full(4, 3.0))


def test_a_global_tensor_on_a_device_is_its_local_part() -> None:
    x = flow.full((2,), 3.0, placement=ALONE, sbp=flow.sbp.split(0))
    for y in (flow.Tensor(x, device="cpu"), flow.tensor(x, device="cpu")):
        assert y.is_local and y.tolist() == [3.0, 3.0]
    assert flow.tensor(x).is_global
