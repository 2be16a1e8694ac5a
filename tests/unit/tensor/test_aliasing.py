"""Results that are their input, views of it, or memory of their own: as in PyTorch, in every
mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import nn
from oneflow.core.op import REGISTRY, find_op
from tests.unit.ops.sample import Sample, named
from tests.unit.ops.samples import SAMPLES

from .alias_calls import CALLS

ONE = flow.placement("cpu", [0])
SEVERAL = "more than one element of the written-to tensor refers to a single memory location"
PROMISED_STRIDES = tuple(t for t in CALLS if not t.startswith("f.fft."))

REFUSED_IN_GRAPHS = {"x.unfold(2, 2, 2)", "x.unfold(2, 4, 1)", "x.view(f.int32)", "x.view(f.uint8)"}
"""Views that a graph does not write through: an error says so."""
LOCAL_ONLY = {"x.view(f.int32)", "x.view(f.uint8)", "x.cpu()", "x.to('cpu')"}
"""Calls that need a local tensor."""


@pytest.fixture
def data(rng: np.random.Generator) -> Any:
    return rng.normal(size=(2, 3, 4)).astype(np.float32)


def _write(f: Any, y: Any) -> None:
    if y.dtype is f.bool:
        y.logical_not_()
    elif y.dtype is f.uint8:
        y.fill_(7)
    else:
        y.add_(1)


def _seen(f: Any, call: Callable[[Any, Any], Any], data: Any) -> tuple[Any, ...]:
    """(is it the input, its strides, the input after a write to it, the words of an error)."""
    x = f.tensor(data)
    y = call(f, x)
    is_input, strides, words = y is x, tuple(y.stride()), ""
    try:
        _write(f, y)
    except RuntimeError as error:
        words = str(error)
    return is_input, strides, x.numpy(), words


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_results_are_inputs_views_or_copies_as_in_torch(name: str, data: Any) -> None:
    ours, theirs = _seen(flow, CALLS[name], data), _seen(torch, CALLS[name], data)
    assert ours[0] == theirs[0], "is it the input?"
    if name in PROMISED_STRIDES:
        assert ours[1] == theirs[1], "strides"
    np.testing.assert_array_equal(ours[2], theirs[2], "the input after a write to the result")
    assert (SEVERAL in ours[3]) == (SEVERAL in theirs[3])
    assert bool(ours[3]) == bool(theirs[3])


def _both(f: Any, x: Any, call: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """A computed tensor and a call's result of it, after a write to the second."""
    h = x * 1
    y = call(f, h)
    _write(f, y)
    return h, y.clone()


class Run(nn.Graph):
    def __init__(self, call: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.call = call

    def build(self, x: Any) -> Any:
        return _both(flow, x, self.call)


def _in_graph(call: Any, data: Any) -> tuple[Any, Any]:
    return Run(call)(flow.tensor(data))


def _global(call: Any, data: Any) -> tuple[Any, Any]:
    return _both(flow, flow.tensor(data).to_global(ONE, flow.sbp.split(0)), call)


def _global_in_graph(call: Any, data: Any) -> tuple[Any, Any]:
    return Run(call)(flow.tensor(data).to_global(ONE, flow.sbp.split(0)))


MODES = {"graph": _in_graph, "global": _global, "global graph": _global_in_graph}


def _fits(name: str, mode: str) -> bool:
    """Calls that make local tensors of their own cannot be mixed with global ones."""
    makes = any(f"f.{maker}(" in name for maker in ("tensor", "zeros", "ones", "eye", "arange"))
    return not mode.startswith("global") or not (makes or name in LOCAL_ONLY)


def _same(ours: Any, theirs: Any) -> None:
    got, want = (np.asarray(v.detach().numpy()) for v in (ours, theirs))
    np.testing.assert_allclose(got.astype(complex), want.astype(complex), rtol=1e-4, atol=1e-4)


def _in_turn() -> list[Any]:
    """Each call in a graph and in one mode of global tensors; in the other one in `make slow`."""
    return [
        pytest.param(name, mode, marks=pytest.mark.slow if place == number % 2 + 1 else ())
        for number, name in enumerate(CALLS)
        for place, mode in enumerate(MODES)
        if _fits(name, mode)
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "mode"), _in_turn())
def test_writes_reach_whom_they_reach_in_torch(name: str, mode: str, data: Any) -> None:
    call = CALLS[name]
    if name in REFUSED_IN_GRAPHS and "graph" in mode:
        with pytest.raises(RuntimeError):
            MODES[mode](call, data)
        return
    try:
        theirs = _both(torch, torch.tensor(data), call)
    except RuntimeError:
        with pytest.raises(RuntimeError, match=SEVERAL):
            MODES[mode](call, data)
        return
    for one, other in zip(MODES[mode](call, data), theirs, strict=True):
        _same(one, other)


# ---- ops -----------------------------------------------------------------------------------------


def _is_own(sample: Sample) -> bool:
    op = REGISTRY[sample.op]
    return not (op.is_view or op.is_alias or op.mutates or op.moves_rows or op.has_effect)


@pytest.mark.parametrize("sample", named([s for s in SAMPLES if s.inputs and _is_own(s)]))
def test_ops_without_a_view_give_memory_of_their_own(sample: Sample) -> None:
    inputs = [flow.tensor(x) for x in sample.inputs]
    outs: Any = find_op(sample.op)(*inputs, **sample.attrs)
    for out in outs if isinstance(outs, tuple) else (outs,):
        assert out._array.flags.writeable
        assert not any(np.may_share_memory(out._array, x._array) for x in inputs)
