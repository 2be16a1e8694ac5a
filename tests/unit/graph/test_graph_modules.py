"""Handles of a graph for its modules, pipeline stages, and how long deep models take."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import OneFlowError
from oneflow.nn.graph import GraphModule, GraphTensor, Proxy, ProxyTensor

HERE = flow.placement("cpu", [0])
B = flow.sbp.broadcast


class Predict(nn.Graph):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Any) -> Any:
        return self.model(x)


def make_model() -> nn.Sequential:
    parts = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), parts)


def test_modules_come_out_as_proxies_by_every_way() -> None:
    model = make_model()
    proxy: Any = Predict(model).model
    names = [name for name, _ in model.named_modules()]
    assert [name for name, _ in proxy.named_modules()] == names
    found = [*proxy.modules(), *proxy.children(), *proxy, proxy[1][0], proxy[-1]["a"]]
    found += [*proxy[2].values(), *(v for _, v in proxy[2].items()), *proxy[0:2]]
    assert all(isinstance(p, Proxy) for p in found)
    assert repr(proxy[1][0].to(GraphModule)) == "(GraphModule:model.1.0(stage_id=0))"
    view = proxy[-1]["b"].to(nn.graph.GraphModule)
    assert (view.name_prefix, view.name) == ("model.2.", "b")
    assert proxy[2].to(GraphModule).name_prefix == "model."
    assert list(proxy[2]) == ["a", "b"] and "a" in proxy[2] and len(proxy) == 3
    assert proxy and proxy[0]  # the latter has no length
    assert proxy[1][0].to(nn.Module) is model[1][0]
    assert isinstance(proxy.to(nn.Sequential), nn.Sequential)
    with pytest.raises(OneFlowError, match=r"to\(\) takes GraphModule, GraphTensor or nn\.Module"):
        proxy.to(nn.Linear)


def test_attributes_go_to_the_module() -> None:
    model = make_model()
    proxy: Any = Predict(model).model
    assert proxy[0].in_features == 4 and proxy[0].weight.origin is model[0].weight
    proxy[0].note = "kept"
    assert model[0].note == "kept"
    proxy.eval()
    assert not model.training and not proxy.training
    assert not hasattr(proxy, "nothing")
    assert "MODULE:model" in repr(proxy)


def test_stages_are_set_on_nested_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    model.to_global(HERE, B)
    graph = Predict(model)
    for i, module in enumerate(graph.model[1]):
        module.to(GraphModule).set_stage(i + 1, HERE)
    assert [m.to(GraphModule).stage_id for m in graph.model[1]] == [1, 2]
    assert graph.model[1][1].to(GraphModule).stage_placement == HERE
    x = flow.randn(2, 4, placement=HERE, sbp=B)
    np.testing.assert_array_equal(graph(x).numpy(), model(x).numpy())
    with pytest.raises(OneFlowError, match="compiled already"):
        graph.model[0].to(GraphModule).set_stage(0)
    with pytest.raises(OneFlowError, match="must be an integer >= 0"):
        Predict(model).model[0].to(GraphModule).set_stage(-1)


def test_stages_are_set_on_tensors_and_by_assignment() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to_global(HERE, B)
    graph: Any = Predict(model)
    weight = graph.model[0].weight
    assert isinstance(weight, ProxyTensor)
    assert weight.to(flow.Tensor) is weight.origin is model[0].weight
    view = weight.to(GraphTensor)
    assert (view.name, view.name_prefix, view.type) == ("weight", "model.0.", "PARAMETER")
    assert graph.model[1].running_mean.to(GraphTensor).type == "BUFFER"
    assert view.stage_id == 0 and view.stage_placement is None
    view.set_stage(2, HERE)
    with pytest.raises(OneFlowError, match=r"set_stage: model.0.weight lies on .*to_global\(\)"):
        view.set_stage(2, flow.placement("cpu", [1]))
    assert view.stage_placement == HERE
    module = graph.model[1].to(GraphModule)
    module.stage_id = 3
    module.stage_placement = HERE
    assert (module.stage_id, module.stage_placement) == (3, HERE)
    assert weight.to(GraphTensor).stage_id == 2 and "stage_id=2" in repr(view)
    x = flow.randn(2, 4, placement=HERE, sbp=B)
    graph(x)
    nodes = graph._spec.plans.now.job.bound.plan.graph.of_kind("variable")
    stages = {n.attrs["name"]: n.stage for n in nodes}
    assert stages["model.0.weight"] == 2 and stages["model.1.weight"] == 3
    with pytest.raises(OneFlowError, match="compiled already"):
        view.stage_id = 1
    with pytest.raises(TypeError, match="a tensor is no GraphTensor"):
        flow.ones(2).to(GraphTensor)
    with pytest.raises(TypeError, match="a tensor is no Linear"):
        weight.to(nn.Linear)


def test_all_tensors_of_a_module_are_staged_at_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to_global(HERE, B)
    graph: Any = Predict(model)
    view = graph.model.to(GraphTensor)
    view.set_stage(2, HERE)
    assert (view.stage_id, view.stage_placement, view.type) == (2, HERE, "PARAMETER")
    tensors = [*graph.model[0]._module.parameters(), *graph.model[1]._module.buffers()]
    assert {graph._spec.stages[id(x)].id for x in tensors} == {2}
    graph.model[0].bias.to(GraphTensor).stage_id = 1
    with pytest.raises(OneFlowError, match="the tensors of model have different stages"):
        _ = view.stage_id
    assert graph.model[1].to(GraphTensor).stage_id == 2


def test_tensors_of_a_graph_are_proxies_outside_of_build_only() -> None:
    model = nn.Linear(4, 4)
    seen = []

    class Graph(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.model.weight.config.stage_id = 1  # as LiBai does to those of ViT

        def build(self, x: Any) -> Any:
            seen.append(self.model.weight is model.weight)
            return x @ self.model.weight

    graph = Graph()
    weight: Any = graph.model.weight
    assert weight.config.stage_id == 1 and "PARAMETER:model.weight" in repr(weight)
    np.testing.assert_array_equal(weight.numpy(), model.weight.numpy())
    weight.requires_grad = False
    assert not model.weight.requires_grad
    assert weight.to(flow.float32) is model.weight is copy.copy(weight).origin
    x = flow.randn(2, 4)
    np.testing.assert_allclose(graph(x).numpy(), (x @ model.weight).numpy(), rtol=1e-6)
    assert seen == [True]
    graph.model.bias = graph.model.bias
    assert type(model.bias) is nn.Parameter


def test_a_module_alone_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    graph: Any = Predict(nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 2), nn.Tanh())))
    graph.model[0].to(GraphModule).debug(0)
    graph.model[0].to(GraphModule).debug(-1)
    graph.model[1].to(GraphModule).debug(2, max_py_stack_depth=1)
    graph.model[1][1].to(GraphModule).debug(0, ranks=[5])
    with pytest.raises(AssertionError, match="the max is 3, got 4"):
        graph.model[1].to(GraphModule).debug(4)
    graph(flow.ones(2, 4))
    printed = capsys.readouterr().out
    assert printed.count("[GRAPH:") == 1 and "(MODULE:model.1:Sequential" in printed
    assert "(PARAMETER:model.1.0.weight:" in printed and "MODULE:model.0" not in printed
    assert "(OPERATOR: model.1.1-tanh-0(" in printed and f"{__file__}" in printed
    with pytest.raises(OneFlowError, match="compiled already"):
        graph.model[1].to(GraphModule).debug(0)


def test_hooks_of_modules_are_traced() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model[0].register_forward_pre_hook(lambda module, args: args[0] * 2)
    model[1].register_forward_hook(lambda module, args, out: out + args[0])
    x = flow.randn(2, 4)
    graph = Predict(model)
    for _ in range(2):
        np.testing.assert_allclose(graph(x).numpy(), model(x).detach().numpy(), rtol=1e-6)


def test_backward_hooks_are_traced() -> None:
    def scaled(module: nn.Module, grads: Any, outer: Any) -> Any:
        return tuple(None if g is None else g * 3 for g in grads)

    check_training(lambda model: model[1].register_full_backward_hook(scaled))


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("kind", ["weight_norm", "prune", "parametrization"])
def test_weights_made_by_hooks_are_trained(kind: str, recomputed: bool) -> None:
    def changed(model: nn.Module) -> None:
        if kind == "weight_norm":
            nn.utils.weight_norm(model[0])
        elif kind == "prune":
            flow.manual_seed(3)
            nn.utils.prune.random_unstructured(model[0], "weight", 0.4)
        else:
            nn.utils.parametrizations.weight_norm(model[0])

    check_training(changed, recomputed)


def check_training(change: Callable[[nn.Module], object], recomputed: bool = False) -> None:
    """Three steps of a graph leave the parameters that eager steps leave."""
    models = []
    for is_graph in (False, True):
        flow.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        change(model)
        optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        class Train(nn.Graph):
            def __init__(self, model: nn.Module, optimizer: flow.optim.Optimizer) -> None:
                super().__init__()
                self.model = model
                self.add_optimizer(optimizer)
                if recomputed:
                    self.model[0].to(GraphModule).activation_checkpointing = True

            def build(self, x: flow.Tensor) -> flow.Tensor:
                loss = self.model(x).square().sum()
                loss.backward()
                return loss

        x = flow.linspace(-1, 1, 12).reshape(3, 4)
        graph = Train(model, optimizer) if is_graph else None
        for _ in range(3):
            if graph is not None:
                graph(x)
            else:
                optimizer.zero_grad()
                model(x).square().sum().backward()
                optimizer.step()
        models.append(model)
        weight = model[0].weight  # a weight that a hook computes is no value of the graph
        assert weight.numpy().shape == (5, 4)
    for (name, a), (_, b) in zip(*[m.state_dict().items() for m in models], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_module_of_a_graph_lists_its_tensors_and_ops() -> None:
    graph: Any = Predict(nn.Sequential(nn.Linear(4, 3)))
    assert "(PARAMETER:model.0.weight:tensor(..., size=(3, 4)" in repr(graph.model[0])
    graph(flow.ones(2, 4))
    assert "(OPERATOR: model.0-linear-0(" in repr(graph.model)


def test_gradients_and_updates_are_their_module_s() -> None:
    """So that reports of memory name them; only the loss is of no module."""

    class Trains(nn.Graph):
        def __init__(self, recomputed: bool) -> None:
            super().__init__()
            self.model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
            self.add_optimizer(flow.optim.SGD(self.model.origin.parameters(), lr=0.1))
            self.model[1].to(GraphModule).activation_checkpointing = recomputed

        def build(self, x: Any) -> Any:
            loss = self.model(x).sum()
            loss.backward()
            return loss

    for recomputed in (False, True):
        graph = Trains(recomputed)
        graph(flow.ones(2, 4))
        found = {(n.op, n.module) for n in graph._spec.plans.now.trace.graph if not n.is_structural}
        assert {("sgd_update", "model.0"), ("sgd_update", "model.2"), ("tanh_grad", "model.1")} <= {
            *found
        }
        assert ("matmul_weight_grad", "model.0") in found
        assert {op for op, module in found if not module} <= {"reduce_sum", "full_like", "expand"}


def test_nodes_know_their_module_and_line() -> None:
    graph = Predict(make_model()[1])
    graph(flow.ones(2, 4))
    modules = {n.op: n.module for n in graph._spec.plans.now.job.bound.plan.graph}
    assert modules["linear"] == "model.0" and modules["relu"] == "model.1"


def test_deep_models_take_nodes_in_proportion() -> None:
    """Twice the layers, twice the nodes and actors' ops; nothing is looked up by walking."""
    counts = []
    for depth in (100, 200, 400):
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(depth)])

        class Train(nn.Graph):
            def __init__(self, model: Any) -> None:
                super().__init__()
                self.model = model
                self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

            def build(self, x: Any) -> Any:
                loss = self.model(x).sum()
                loss.backward()
                return loss

        graph = Train(model)
        graph(flow.ones(2, 4))
        plan = graph._spec.plans.now.job.bound.plan
        counts.append((len(plan.graph), len(plan.actors)))
    (first, actors), (second, _), (third, last_actors) = counts
    assert third - second == 2 * (second - first)
    assert last_actors == actors
