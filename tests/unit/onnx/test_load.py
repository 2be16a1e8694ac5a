"""`flow.onnx.load`: models of PyTorch's exporter, of our own, and of hand-made nodes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import oneflow as flow
from oneflow import nn
from oneflow.graph.tree import tensors_of
from tests.unit.ops.sample import Sample, named
from tests.unit.ops.samples import SAMPLES

from . import test_models
from .running import run, run_by_reference
from .test_samples import BY_REFERENCE, NEXT, REFUSED, model_of
from .torch_models import MODELS, SEQUENCE, TEXT


class Step(nn.Graph):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.m = module

    def build(self, *args: flow.Tensor) -> Any:
        return self.m(*args)


def arrays(results: Any) -> list[np.ndarray[Any, Any]]:
    return [x.numpy() for x in tensors_of(results)]


def assert_close(got: list[Any], want: list[Any], tolerance: float = 1e-5) -> None:
    for y, w in zip(got, want, strict=True):
        assert y.shape == w.shape
        scale = max(1.0, float(np.abs(w[np.isfinite(w)]).max(initial=0)))
        np.testing.assert_allclose(y, w, rtol=tolerance, atol=tolerance * scale)


def assert_agrees(
    model: Any, inputs: list[np.ndarray[Any, Any]], want: list[Any], tolerance: float = 1e-5
) -> nn.Module:
    """A loaded model agrees with right results, eagerly and in a graph."""
    module = flow.onnx.load(model)
    args = [flow.tensor(x) for x in inputs]
    assert_close(arrays(module(*args)), want, tolerance)
    assert_close(arrays(Step(module)(*args)), want, tolerance)
    return module


@pytest.mark.filterwarnings("ignore")  # of PyTorch's exporters
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_model_of_pytorch_runs_here(name: str, dynamo: bool, rng: np.random.Generator) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    is_text = shape == TEXT and name != "MLP"
    x = rng.integers(0, 50, shape) if is_text else rng.normal(size=shape).astype(np.float32)
    file = io.BytesIO()
    given = torch.from_numpy(x)
    torch.onnx.export(model, (given,), file, dynamo=dynamo, verbose=False)
    with torch.no_grad():
        made = model(given)
    want = [y.numpy() for y in (made if isinstance(made, (tuple, list)) else [made])]
    assert_agrees(file.getvalue(), [x], want, 2e-5)
    if shape == SEQUENCE:
        assert len(want) == 1


@pytest.mark.parametrize("name", test_models.MODELS)
def test_own_models_come_back(name: str) -> None:
    make, shape = test_models.MODELS[name]
    model, x = make().eval(), flow.randn(*shape)
    made = flow.onnx.export(model, x)
    module = assert_agrees(made, [x.numpy()], arrays(model(x)))
    again = flow.onnx.export(module, x)
    assert_close(run(again, [x.numpy()]), arrays(model(x)))
    own = {name for name, _ in model.named_parameters()}
    read = {t.name for t in made.graph.initializer}
    assert own & read <= {name for name, _ in module.named_parameters()}


def _read() -> list[Sample]:
    """One sample of each op that is written; a loaded model of every sample in `make slow`."""
    seen: set[str] = set()
    found = []
    for param in named([s for s in SAMPLES if s.op not in REFUSED and s.op not in NEXT]):
        (sample,) = param.values
        if sample.reference is None:
            continue
        marks = [pytest.mark.slow] if sample.op in seen else []
        seen.add(sample.op)
        found.append(pytest.param(sample, id=param.id, marks=marks))
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning:onnx.*")
@pytest.mark.parametrize("sample", _read())
def test_what_is_written_is_read(sample: Sample) -> None:
    model = model_of(sample)
    inputs = [np.asarray(x) for x in sample.inputs_as(np.float32)]
    run_it = run_by_reference if sample.op in BY_REFERENCE or not inputs else run
    want = run_it(model, inputs)
    got = arrays(flow.onnx.load(model)(*map(flow.tensor, inputs)))
    assert [y.dtype for y in got] == [w.dtype for w in want]
    assert_close([y.astype(np.float64) for y in got], [w.astype(np.float64) for w in want], 3e-5)


def test_weights_are_parameters_that_train(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 1))
    x = flow.randn(3, 2, 4, 4)
    flow.onnx.export(model, x, tmp_path / "m.onnx")
    module = flow.onnx.load(tmp_path / "m.onnx")
    names = {name for name, _ in module.named_parameters()}
    assert {"0.weight", "1.weight", "3.bias"} <= names
    assert "1.running_mean" in dict(module.named_buffers())
    module.load_state_dict(model.state_dict(), strict=False)
    module(x).sum().backward()
    model.eval()(x).sum().backward()
    got = dict(module.named_parameters())["0.weight"].grad
    np.testing.assert_allclose(got.numpy(), model[0].weight.grad.numpy(), rtol=1e-4, atol=1e-5)


def model_of_nodes(nodes: list[Any], inputs: dict[str, Any], outputs: list[str]) -> Any:
    """A model of hand-made nodes. inputs: shapes, of float32."""
    told = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph(nodes, "g", told, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_unknown_operator_names_its_node() -> None:
    node = helper.make_node("StringNormalizer", ["x"], ["y"], name="clean")
    with pytest.raises(flow.onnx.OnnxImportError, match="StringNormalizer of node 'clean'"):
        flow.onnx.load(model_of_nodes([node], {"x": [2]}, ["y"]))
    node = helper.make_node("FusedMatMul", ["x", "x"], ["y"], name="f", domain="com.microsoft")
    with pytest.raises(flow.onnx.OnnxImportError, match=r"com\.microsoft\.FusedMatMul of node 'f'"):
        flow.onnx.load(model_of_nodes([node], {"x": [2, 2]}, ["y"]))


def test_shape_that_is_computed_from_values_names_its_node() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["shape"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "shape"], ["y"], name="turn"),
    ]
    module = flow.onnx.load(model_of_nodes(nodes, {"x": [2]}, ["y"]))
    with pytest.raises(flow.onnx.OnnxImportError, match=r"Reshape \(node 'turn'\).*as a constant"):
        module(flow.ones(2))


def test_arguments_are_checked() -> None:
    node = helper.make_node("Add", ["a", "b"], ["y"])
    module = flow.onnx.load(model_of_nodes([node], {"a": [2], "b": [2]}, ["y"]))
    one = flow.ones(2)
    assert module(one, b=one).numpy().tolist() == [2, 2]
    with pytest.raises(flow.onnx.OnnxImportError, match="needs the inputs b"):
        module(one)
    with pytest.raises(flow.onnx.OnnxImportError, match="takes a, b"):
        module(one, c=one)


def _pads() -> list[Any]:
    """Windows that no layer of ours has as they are."""
    return [
        pytest.param(kind, options, id=f"{kind}-{word}")
        for kind in ("Conv", "MaxPool", "AveragePool")
        for word, options in {
            "uneven": {"pads": [1, 0, 0, 2]},
            "upper": {"auto_pad": "SAME_UPPER"},
            "lower": {"auto_pad": "SAME_LOWER"},
        }.items()
    ]


@pytest.mark.parametrize(("kind", "options"), _pads())
def test_uneven_windows(kind: str, options: dict[str, Any], rng: np.random.Generator) -> None:
    x, w = rng.normal(size=(1, 2, 7, 6)), rng.normal(size=(3, 2, 3, 3))
    inputs = {"x": x, "w": w} if kind == "Conv" else {"x": x}
    node = helper.make_node(kind, [*inputs], ["y"], kernel_shape=[3, 3], strides=[2, 2], **options)
    model = model_of_nodes([node], {n: list(v.shape) for n, v in inputs.items()}, ["y"])
    given = [v.astype(np.float32) for v in inputs.values()]
    assert_agrees(model, given, run(model, given))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("way", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
def test_resizing_by_the_specification(mode: str, way: str, rng: np.random.Generator) -> None:
    scales = helper.make_tensor("s", TensorProto.FLOAT, [4], [1.0, 1.0, 1.5, 0.6])
    nodes = [
        helper.make_node("Constant", [], ["scales"], value=scales),
        helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode,
                         coordinate_transformation_mode=way),
    ]  # fmt: skip
    model = model_of_nodes(nodes, {"x": [1, 2, 7, 10]}, ["y"])
    x = rng.normal(size=(1, 2, 7, 10)).astype(np.float32)
    assert_agrees(model, [x], run(model, [x]), 1e-4)


def test_branch_of_a_known_condition(rng: np.random.Generator) -> None:
    branches = {}
    for name, kind in (("then_branch", "Neg"), ("else_branch", "Abs")):
        out = helper.make_tensor_value_info(kind, TensorProto.FLOAT, None)
        branches[name] = helper.make_graph([helper.make_node(kind, ["x"], [kind])], name, [], [out])
    truth = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=truth),
        helper.make_node("If", ["c"], ["y"], **branches),
    ]
    x = rng.normal(size=4).astype(np.float32)
    assert_agrees(model_of_nodes(nodes, {"x": [4]}, ["y"]), [x], [-x])


def test_names_that_are_no_paths_become_names() -> None:
    weight = onnx.numpy_helper.from_array(np.ones(2, np.float32), "a/b:0.forward")
    node = helper.make_node("Add", ["x", "a/b:0.forward"], ["y"])
    model = model_of_nodes([node], {"x": [2]}, ["y"])
    model.graph.initializer.append(weight)
    module = flow.onnx.load(model)
    assert [name for name, _ in module.named_parameters()] == ["a_b_0.forward_"]
    assert module(flow.ones(2)).numpy().tolist() == [2, 2]


@pytest.mark.parametrize("data", [b"", b"no model at all", b"\x08\x07\x12"])
def test_a_file_that_is_no_model_is_refused_by_its_name(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    with pytest.raises(flow.onnx.OnnxImportError, match=r"broken\.onnx"):
        flow.onnx.load(path)
    with pytest.raises(flow.onnx.OnnxImportError, match="the bytes"):
        flow.onnx.load(data)


def test_weights_that_are_not_whole_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    flow.onnx.export(nn.Linear(64, 64), flow.zeros(1, 64), path, external_data=True)
    (weights,) = [p for p in tmp_path.iterdir() if p != path]
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(flow.onnx.OnnxImportError, match=r"model\.onnx cannot be read"):
        flow.onnx.load(path)


@pytest.mark.parametrize("source", [None, 3])
def test_what_is_no_path_is_refused(source: Any) -> None:
    with pytest.raises(flow.onnx.OnnxImportError, match="a file or its bytes"):
        flow.onnx.load(source)
