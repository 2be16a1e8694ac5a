"""Upstream's two functions, under upstream's path and as `flow.onnx` has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from oneflow_onnx.oneflow2onnx.util import convert_to_onnx_and_check, export_onnx_model

import oneflow as flow
from oneflow import nn

from .running import run


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(),
            nn.AvgPool2d(2), nn.Conv2d(16, 24, 5), nn.Tanh(),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 10))

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        out: flow.Tensor = self.classifier(flow.flatten(self.features(x), 1))
        return out


class LeNetGraph(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.m = LeNet().eval()

    def build(self, x: flow.Tensor) -> flow.Tensor:
        out: flow.Tensor = self.m(x)
        return out


def compiled() -> LeNetGraph:
    graph = LeNetGraph()
    graph._compile(flow.randn(1, 3, 32, 32))
    return graph


def test_paths_of_upstream_are_ours() -> None:
    assert export_onnx_model is flow.onnx.export_onnx_model
    assert convert_to_onnx_and_check is flow.onnx.convert_to_onnx_and_check


def test_folder_gets_model_onnx(tmp_path: Path) -> None:
    path, cleanup = export_onnx_model(compiled(), onnx_model_path=str(tmp_path))
    assert path == str(tmp_path / "model.onnx")
    cleanup()
    onnx.checker.check_model(path, full_check=True)


@pytest.mark.parametrize("device", ["cpu", "cpu_global"])
def test_graph_agrees_with_its_model(tmp_path: Path, device: str) -> None:
    graph = compiled()
    if device == "cpu_global":
        graph = LeNetGraph()
        where = {"placement": flow.placement("cpu", [0]), "sbp": flow.sbp.broadcast}
        graph.m.to(nn.Module).to_global(**where)
        graph._compile(flow.randn(1, 3, 32, 32, **where))
    convert_to_onnx_and_check(
        graph, onnx_model_path=str(tmp_path / "a.onnx"), device=device, input_tensor_range=[-2, 2]
    )


def test_batch_of_any_size(tmp_path: Path) -> None:
    graph = compiled()
    path, _ = export_onnx_model(graph, onnx_model_path=str(tmp_path), dynamic_batch_size=True)
    x = flow.randn(5, 3, 32, 32)
    (got,) = run(onnx.load(path), [x.numpy()])
    want = graph.m.to(nn.Module)(x).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_weights_come_from_a_saved_state(tmp_path: Path) -> None:
    graph, other = compiled(), compiled()
    flow.save(other.state_dict(), tmp_path / "weights")
    path, _ = export_onnx_model(graph, None, onnx_model_path=str(tmp_path / "m.onnx"),
                                flow_weight_dir=str(tmp_path / "weights"))  # fmt: skip
    x = flow.randn(1, 3, 32, 32)
    (got,) = run(onnx.load(path), [x.numpy()])
    np.testing.assert_allclose(got, other(x).numpy(), rtol=1e-5, atol=1e-6)


def test_results_that_differ_are_printed_and_raise(capsys: pytest.CaptureFixture[str]) -> None:
    from oneflow.onnx.converting import compare

    with pytest.raises(AssertionError, match="1 of 2 elements"):
        compare(np.array([1.0, 2.0]), np.array([1.0, 3.0]), print_outlier=True)
    assert capsys.readouterr().out == "onnx[1] = 2.0, oneflow[1] = 3.0\n"


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(flow.onnx.OnnxExportError, match="device is one of cpu, gpu"):
        convert_to_onnx_and_check(compiled(), device="tpu")
    with pytest.raises(flow.onnx.OnnxExportError, match="must rise"):
        convert_to_onnx_and_check(compiled(), input_tensor_range=[3, 1])
