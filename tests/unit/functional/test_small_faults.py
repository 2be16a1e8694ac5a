"""Orders of arguments, operators and errors of functions that others' programs met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

import oneflow as flow
import oneflow.nn.functional as F
from oneflow.nn.utils import prune


def test_positional_factors_of_addmm_are_upstreams() -> None:
    one = flow.ones(1, 1)
    for call in (flow.addmm, flow.Tensor.addmm):
        assert call(one, one, one * 5, 2, 30).item() == 40  # alpha, beta
        assert call(one, one, one * 5, beta=2, alpha=30).item() == 152
    assert one.clone().addmm_(one, one * 5, 2, 30).item() == 40


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("baddbmm", [(1, 1, 1)] * 3),
        ("addbmm", [(1, 1), (1, 1, 1), (1, 1, 1)]),
        ("addmv", [(1,), (1, 1), (1,)]),
        ("addr", [(1, 1), (1,), (1,)]),
        ("addcmul", [(1,)] * 3),
        ("addcdiv", [(1,)] * 3),
    ],
)
def test_factors_that_both_libraries_want_by_name(name: str, shapes: Any) -> None:
    for f in (flow, torch):
        with pytest.raises(TypeError):
            getattr(f, name)(*[f.ones(s) for s in shapes], 2.0, 3.0)


def test_gumbel_softmax_takes_either_order() -> None:
    x = flow.ones(2, 3)
    for args in ((1.0, True), (1.0, 0, True)):
        found = F.gumbel_softmax(x, *args)
        assert set(found.numpy().ravel()) <= {0.0, 1.0}
        assert (found.sum(0 if len(args) == 3 else 1).numpy() == 1).all()


SHIFTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "x << 1": lambda f, x, y: x << 1,
    "x >> 1": lambda f, x, y: x >> 1,
    "x << y": lambda f, x, y: x << y,
    "x >> y": lambda f, x, y: x >> y,
    "1 << y": lambda f, x, y: 1 << y,
    "64 >> y": lambda f, x, y: 64 >> y,
    "x <<= y": lambda f, x, y: x.__ilshift__(y),
    "x >>= y": lambda f, x, y: x.__irshift__(y),
    "broadcast": lambda f, x, y: x.reshape(2, 1) << y,
}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
@pytest.mark.parametrize("name", SHIFTS)
def test_shifts_are_operators(name: str, dtype: str) -> None:
    ours, theirs = (
        SHIFTS[name](f, *(f.tensor(v, dtype=getattr(f, dtype)) for v in ([5, 8], [0, 2])))
        for f in (flow, torch)
    )
    assert ours.tolist() == theirs.tolist()
    assert str(ours.dtype).split(".")[-1] == str(theirs.dtype).split(".")[-1]


def test_type_of_the_tensor_class_is_the_default_dtype() -> None:
    assert flow.tensor([1]).type(flow.Tensor).dtype is flow.float32


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_weights_of_recurrent_layers_by_layer(kind: str, bias: bool, bidirectional: bool) -> None:
    keywords: dict[str, Any] = {"bias": bias, "bidirectional": bidirectional}
    if kind == "LSTM":
        keywords["proj_size"] = 2
    ours, theirs = (getattr(f.nn, kind)(3, 4, 2, **keywords) for f in (flow, torch))
    shapes = [[[tuple(w.shape) for w in part] for part in m.all_weights] for m in (ours, theirs)]
    assert shapes[0] == shapes[1]
    assert ours.all_weights[0][0] is ours.weight_ih_l0
    assert ours.flatten_parameters() is None


def test_integer_mask_in_a_container() -> None:
    box, one = prune.PruningContainer(), prune.L1Unstructured(amount=1)
    box._tensor_name = one._tensor_name = "w"
    box.add_pruning_method(one)
    found = box.compute_mask(flow.tensor([1.0, 2.0, 3.0]), flow.tensor([1, 1, 0]))
    assert found.dtype is flow.float32 and found.tolist() == [0, 1, 0]


@pytest.mark.parametrize("pruned_before", [False, True])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_failed_pruning_changes_nothing(name: str, pruned_before: bool) -> None:
    layer = flow.nn.Linear(3, 2)
    if pruned_before:
        prune.l1_unstructured(layer, name=name, amount=0.5)
    before = sorted(layer.state_dict()), len(layer._forward_pre_hooks), repr(layer)
    failing = mock.patch.object(prune.L1Unstructured, "compute_mask", side_effect=ValueError("no"))
    with failing, pytest.raises(ValueError, match="no"):
        prune.l1_unstructured(layer, name=name, amount=0.5)
    assert (sorted(layer.state_dict()), len(layer._forward_pre_hooks), repr(layer)) == before
    assert layer(flow.ones(1, 3)).shape == (1, 2)


class _Twice(flow.nn.Graph):
    def build(self, x: Any) -> Any:
        return x * 2


class _Outer(flow.nn.Graph):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = (inner,)

    def build(self, x: Any) -> Any:
        return self._inner[0](x) + 1


def _read_only() -> Any:
    import numpy as np

    array = np.ones(3, np.float32)
    array.flags.writeable = False
    return flow.from_numpy(array)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "expanded": (lambda: flow.zeros(1, 2).expand(3, 2).add_(1), "Please clone.. the tensor"),
    "expanded, filled": (lambda: flow.zeros(1, 2).expand(3, 2).fill_(1), "Please clone.. the"),
    "expanded, copied": (lambda: flow.zeros(1).expand(3).copy_(flow.ones(3)), "Please clone"),
    "read-only": (lambda: _read_only().add_(1), "memory of an array that is read-only"),
    "state of an LSTM": (
        lambda: flow.nn.LSTM(3, 2)(flow.ones(4, 1, 3), flow.zeros(1, 1, 2)),
        "LSTM: the state must be a tuple of two Tensors",
    ),
    "state of a GRU": (
        lambda: flow.nn.GRU(3, 2)(flow.ones(4, 1, 3), (flow.zeros(1, 1, 2),) * 2),
        "GRU: the state must be one Tensor",
    ),
    "no sequences": (lambda: flow.nn.utils.rnn.pad_sequence([]), "received an empty list of seq"),
    "graph in a graph": (
        lambda: _Outer(_Twice())(flow.ones(1)),
        r"in(side)? the build.. of another graph",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_error_says_what_was_wrong(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises(flow._oneflow_internal.exception.Exception, match=words):
        call()
    if name == "graph in a graph":
        inner = _Twice()
        inner(flow.ones(1))  # compiled before
        with pytest.raises(RuntimeError, match=words):
            _Outer(inner)(flow.ones(1))
