"""Mistakes of a script, eager or traced: the right type, the fault, and its line."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.core.errors import (
    DeviceError,
    DTypeError,
    GraphError,
    PlacementError,
    PositionError,
    SbpError,
    ShapeError,
)

HERE = Path(__file__).name
ALONE = flow.placement("cpu", [0])
TABLE, LAYER = nn.Embedding(4, 2), nn.Linear(3, 2)
S0, B = flow.sbp.split(0), flow.sbp.broadcast


class Apply(nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: flow.Tensor) -> Any:
        return self.function(*inputs)


class Run(nn.Graph):
    """A graph of one function, called within a module if asked for."""

    def __init__(self, function: Callable[..., Any], is_module: bool = False) -> None:
        super().__init__()
        self.function = function
        if is_module:
            self.net = Apply(function)

    def build(self, *inputs: flow.Tensor) -> Any:
        return (self.net if "net" in self._spec.modules else self.function)(*inputs)


def as_global(*shape: int) -> flow.Tensor:
    return flow.ones(*shape, placement=ALONE, sbp=B)


def product(a: flow.Tensor, b: flow.Tensor) -> flow.Tensor:
    return flow.matmul(a, b)


PRODUCT_LINE = product.__code__.co_firstlineno + 1


def fails(kind: type[Exception], work: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        work()
    assert type(caught.value) is kind
    return str(caught.value)


# ---- shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    ["eager", "eager global", "graph", "graph of global tensors", "module of a graph"],
)
def test_wrong_shapes_name_op_types_and_line(where: str) -> None:
    make = as_global if "global" in where else flow.ones
    a, b = make(2, 3), make(5, 4)
    run: Any = product if "eager" in where else Run(product, "module" in where)
    text = fails(ShapeError, lambda: run(a, b))
    module = ", in module net" if "module" in where else ""
    assert text.startswith("matmul: a float32[2, 3] has 3 columns, but b float32[5, 4] needs 5")
    assert re.search(rf"{HERE}:{PRODUCT_LINE}{module}\)$", text), text
    assert text.count(HERE) == 1


def test_a_write_that_a_graph_refuses_names_its_line_once() -> None:
    outside, weight = flow.zeros(1, 3), flow.ones(1, 3, requires_grad=True)

    def write(x: flow.Tensor) -> flow.Tensor:
        outside.copy_(weight * x)
        return x

    text = fails(GraphError, lambda: Run(write)(flow.ones(1, 3)))
    assert "is overwritten by a tensor that requires a gradient" in text and text.count(HERE) == 1


def test_a_mistake_in_a_layer_names_the_layer_and_the_call() -> None:
    text = fails(ShapeError, lambda: Wrong()(flow.ones(2, 3)))
    assert "weight float32[2, 5]" in text and text.endswith("in module layers.1)")


class Wrong(nn.Graph):
    """Layers that do not fit each other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2))

    def build(self, x: flow.Tensor) -> flow.Tensor:
        return self.layers(x)


def test_an_index_out_of_range_in_a_kernel_names_the_line() -> None:
    def look_up(table: flow.Tensor, index: flow.Tensor) -> flow.Tensor:
        return flow.gather(table, 0, index)

    graph = Run(look_up)
    table = flow.ones(3, 2)
    assert graph(table, flow.zeros(1, 2, dtype=flow.int64)).shape == (1, 2)
    text = fails(PositionError, lambda: graph(table, flow.full((1, 2), 7, dtype=flow.int64)))
    assert f"{HERE}:{look_up.__code__.co_firstlineno + 1})" in text
    again = fails(GraphError, lambda: graph(table, flow.zeros(1, 2, dtype=flow.int64)))
    assert "failed in an earlier step" in again


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (lambda x: TABLE(x), "indices must be integers or bool, got float32[3]"),
        (lambda x: F.cross_entropy(flow.ones(3, 4), x), "labels must be integers, got float32[3]"),
        (lambda x: LAYER(x.double().reshape(1, 3)), "x float64[1, 3], w float32[2, 3]"),
        (lambda x: F.softmax(x.long(), 0), "softmax: needs a floating-point tensor, got int64[3]"),
    ],
)
@pytest.mark.parametrize("is_traced", [False, True])
def test_wrong_dtypes_name_the_types(work: Any, text: str, is_traced: bool) -> None:
    found = fails(DTypeError, lambda: (Run(work) if is_traced else work)(flow.ones(3)))
    assert text in found
    assert not is_traced or f"{HERE}:" in found


# ---- SBP and placement ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize(
    ("sbp", "text"),
    [
        (flow.sbp.split(2), "to_global: S(2) needs a tensor of at least 3 dims, got shape [2, 3]"),
        ([S0, B], "2 sbp given for a placement of 1 hierarchy axes: (S(0), B); give one per axis"),
    ],
)
def test_an_sbp_that_does_not_fit_names_the_line(is_traced: bool, sbp: Any, text: str) -> None:
    def lay_out(x: flow.Tensor) -> flow.Tensor:
        return flow.relu(x).to_global(sbp=sbp)

    run: Any = Run(lay_out) if is_traced else lay_out
    found = fails(SbpError, lambda: run(as_global(2, 3)))
    assert text in found
    assert found.endswith(f"{HERE}:{lay_out.__code__.co_firstlineno + 1})")


@pytest.mark.parametrize("is_traced", [False, True])
def test_a_rank_that_does_not_exist_is_refused_at_use(is_traced: bool) -> None:
    far = flow.placement("cpu", [3])  # is no mistake yet

    def move(x: flow.Tensor) -> flow.Tensor:
        return flow.relu(x).to_global(placement=far, sbp=B)

    run: Any = Run(move) if is_traced else move
    text = fails(PlacementError, lambda: run(as_global(2)))
    assert "Placement is invalid because rank must be less than world size!" in text
    assert f"{HERE}:" in text


def test_local_and_global_tensors_do_not_mix() -> None:
    text = fails(PlacementError, lambda: Run(lambda x, y: x + y)(as_global(2), flow.ones(2)))
    assert text.startswith("add: local and global tensors are mixed") and f"{HERE}:" in text


def test_local_tensors_do_not_become_global_in_a_graph() -> None:
    work = Run(lambda x: x.to_global(placement=ALONE, sbp=B))
    text = fails(GraphError, lambda: work(flow.ones(2)))
    assert "local_tensor.to_global() is not supported within nn.Graph" in text


# ---- calls ---------------------------------------------------------------------------------------


def test_inputs_must_stay_as_they_were() -> None:
    graph = Run(flow.relu)
    graph(flow.ones(2, 3))
    text = fails(GraphError, lambda: graph(flow.ones(4, 3)))
    assert "nn.Graph ONLY accepts static inputs tensor meta" in text
    assert "float32[2, 3]" in text and "float32[4, 3]" in text and "The input index is 0." in text
    text = fails(GraphError, lambda: graph(flow.ones(2, 3), flow.ones(2, 3)))
    assert "was built for 1 input tensors" in text
    assert graph(flow.ones(2, 3)).shape == (2, 3)  # no harm was done


@pytest.mark.parametrize(
    ("build", "name", "instead"),
    [
        (lambda x: flow.relu(x).numpy(), "numpy()", "read it outside"),
        (lambda x: np.asarray(x), "np.asarray(x)", "read it outside"),
        (lambda x: x.tolist(), "tolist()", "read it outside"),
        (lambda x: copy.deepcopy(x * 2), "deepcopy()", "read it outside"),
        (lambda x: x * x.sum().item(), "item()", "keep it a tensor"),
        (lambda x: x * float(x.sum()), "float(x)", "keep it a tensor"),
        (lambda x: x * math.sqrt(x.sum()), "float(x)", "keep it a tensor"),
        (lambda x: x if x.sum() > 0 else -x, "a condition (`if x`", "flow.where(condition, a, b)"),
        (lambda x: max(x[0], x[1]), "a condition (`if x`", "maximum and minimum choose"),
        (lambda x: 3 in x, "`y in x`", "flow.where(condition, a, b)"),
        (lambda x: flow.equal(x, x), "equal()", "flow.where(condition, a, b)"),
        (lambda x: x[: int(x[0])], "int(x)", "take sizes, bounds and places from shapes"),
        (lambda x: range(x[0].long()), "a tensor as an int", "take sizes, bounds and places"),
        (lambda x: x[: x[0].long()], "x[...] with a tensor in place of a number", "from shapes"),
        (lambda x: flow.zeros(x[0].long()), "zeros() with a tensor in place of a", "from shapes"),
        (lambda x: x.split(x.long()), "split() with a tensor in place of a number", "from shapes"),
        (lambda x: flow.nonzero(x), "nonzero()", "keep the shape"),
        (lambda x: x.masked_select(x > 0), "masked_select(): nonzero()", "keep the shape"),
        (lambda x: x[x > 0], "x[mask] has a shape that depends on values", "keep the shape"),
        (lambda x: x.unique(), "unique()", "keep the shape"),
        (lambda x: F.one_hot(x.long()), "one_hot() without num_classes", "give num_classes"),
        (lambda x: flow.bincount(x.long()), "bincount()", "one_hot(x, n).sum(0)"),
        (lambda x: x.repeat_interleave(x.long()), "repeat_interleave(): a tensor", "give an int"),
        (lambda x: flow.tensor([x[0], x[1]]), "tensor()", "flow.stack"),
    ],
)
def test_what_needs_values_names_the_line_and_what_to_write(
    build: Any, name: str, instead: str
) -> None:
    text = fails(GraphError, lambda: Run(build)(flow.ones(2)))
    assert text.startswith(name) and instead in text
    assert "nn.Graph.build" in text
    assert re.search(rf"/{re.escape(HERE)}:\d+\)$", text)


@pytest.mark.parametrize(
    "read",
    [
        lambda w: w.numpy(),
        lambda w: w.detach().numpy(),
        lambda w: w.data.tolist(),
        lambda w: np.asarray(w.detach()),
    ],
)
def test_values_of_a_parameter_that_is_trained_are_no_constants(read: Any) -> None:
    class Reads(nn.Graph):
        def __init__(self, trains: bool) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1, bias=False)
            if trains:
                self.add_optimizer(flow.optim.SGD(self.layer.parameters(), lr=0.5))

        def build(self, x: flow.Tensor) -> flow.Tensor:
            scale = float(np.asarray(read(self.layer.weight)).sum())
            loss = (self.layer(x) * scale).sum()
            if self._spec.optimizers:
                loss.backward()
            return loss

    text = fails(GraphError, lambda: Reads(True)(flow.ones(3, 2)))
    assert text.startswith("nn.Graph.build reads the values of layer.weight") and HERE in text
    graph = Reads(False)  # nothing of it changes
    weight = graph.layer.weight.numpy()
    wanted = 3 * weight.sum() ** 2
    np.testing.assert_allclose(graph(flow.ones(3, 2)).numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", [None, flow.float64, flow.int32])
def test_a_value_of_the_graph_fills_a_tensor(dtype: Any) -> None:
    x = flow.tensor([1.5, -2.0])

    def build(x: flow.Tensor) -> tuple[flow.Tensor, ...]:
        y = flow.full((2, 3), x[0], dtype=dtype)
        y[0] = 7  # which is not the value that filled it
        return y, flow.full_like(x, x[1], dtype=dtype), x[0]

    for eager, traced in zip(build(x), Run(build)(x), strict=True):
        assert traced.dtype is eager.dtype and traced.tolist() == eager.tolist()


class Train(nn.Graph):
    """Trains `model`, but optimizes the parameters of `other`."""

    def __init__(self, model: nn.Module, other: nn.Module, pieces: int = 1) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(other.parameters(), lr=0.1))
        if pieces > 1:
            self.config.set_gradient_accumulation_steps(pieces)

    def build(self, x: flow.Tensor) -> flow.Tensor:
        loss = self.model(x).sum()
        loss.backward()
        return loss


def test_an_optimizer_of_foreign_parameters_is_refused() -> None:
    text = fails(ValueError, lambda: Train(nn.Linear(3, 2), nn.Linear(3, 2))(flow.ones(2, 3)))
    assert "is not in the corresponding nn.Graph/nn.Module" in text


def test_a_batch_must_be_divisible_by_the_micro_batches() -> None:
    model = nn.Linear(3, 2)
    text = fails(ShapeError, lambda: Train(model, model, 3)(flow.ones(4, 3)))
    assert "input 0 float32[4, 3]: dim 0 must be divisible by the 3 gradient" in text


# ---- devices -------------------------------------------------------------------------------------


def test_an_unknown_device_is_refused() -> None:
    text = fails(DeviceError, lambda: flow.device("tpu"))
    assert "Expected one of cpu, cuda device type" in text and "tpu" in text


@pytest.mark.parametrize(
    "work",
    [
        lambda: flow.ones(2, device="cuda"),
        lambda: flow.ones(2).to("cuda"),
        lambda: flow.ones(2, placement=flow.placement("cuda", [0]), sbp=B),
        lambda: Run(lambda x: x.to_global(placement=flow.placement("cuda", [0]), sbp=B) + 1.0)(
            as_global(2)
        ),
    ],
)
def test_cuda_without_cupy_says_what_to_install(
    work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    assert "pip install 'oneflow-actors[cuda]'" in fails(DeviceError, work)


def test_a_training_graph_without_backward_is_a_mistake():
    model = nn.Linear(3, 1)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)

    class Forgetful(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x):
            return self.model(x).sum()

    with pytest.raises(GraphError, match=r"call backward\(\) on the loss"):
        Forgetful()(flow.ones(2, 3))


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("is_added", [True, False])
def test_a_step_in_build_is_a_mistake(is_before: bool, is_added: bool) -> None:
    """It would update with the learning rate of the trace, besides the graph's own updates."""
    model = nn.Linear(3, 1)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)

    class Steps(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            if is_added:
                self.add_optimizer(optimizer)

        def build(self, x: Any) -> Any:
            for calls_backward in (not is_before, is_before):
                if calls_backward:
                    loss = self.model(x).sum()
                    loss.backward()
                else:
                    optimizer.step()
            return loss

    before = model.weight.numpy().copy()
    text = fails(GraphError, lambda: Steps()(flow.ones(2, 3)))
    line = Steps.build.__code__.co_firstlineno + 6
    assert text.startswith("step() of SGD is called in build()") and f"{HERE}:{line})" in text
    assert optimizer.state["step"] == 0
    np.testing.assert_array_equal(model.weight.numpy(), before)
    model(flow.ones(2, 3)).sum().backward()
    optimizer.step()
    assert optimizer.state["step"] == 1


# ---- what is no tensor, no graph, or not here ----------------------------------------------------


@pytest.mark.parametrize("given", [{"x": np.ones((2, 3))}, {"x": [flow.ones(2, 3), np.ones(3)]}])
def test_inputs_of_a_graph_must_be_tensors(given: dict[str, Any]) -> None:
    class Takes(nn.Graph):
        def build(self, x: Any) -> Any:
            return x

    text = fails(GraphError, lambda: Takes()(**given))
    assert "inputs must be tensors, and argument " in text and "is a numpy.ndarray" in text


def test_a_graph_that_forgot_super_init() -> None:
    class Forgot(nn.Graph):
        def __init__(self, layer: nn.Module | None) -> None:
            if layer is not None:
                self.layer = layer

        def build(self, x: Any) -> Any:
            return x

    for work in (lambda: Forgot(LAYER), lambda: Forgot(None)(flow.ones(2, 3))):
        with pytest.raises(GraphError, match=r"Forgot\.__init__ must call super\(\)\.__init__\(\)"):
            work()
    assert not hasattr(Forgot(None), "layer")
