"""`flow.onnx.export`: names, dynamic dims, operator sets, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import oneflow as flow
from oneflow import nn

from .running import assert_same, run


class Small(nn.Module):
    """A convolution with batch norm, attention, and a dict among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 5)

    def forward(self, image: flow.Tensor) -> Any:
        x = flow.relu(self.norm(self.conv(image))).mean((2, 3))
        x = nn.functional.max_pool2d(x[:, :, None, None].expand(-1, -1, 4, 4), 2)
        x = x.flatten(2).transpose(1, 2)
        x = self.attention(x, x, x)[0]
        y = nn.functional.gelu(self.last(x) * flow.arange(5))
        return y, {"sum": y.sum()}


class Step(nn.Graph):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.m = module

    def build(self, x: flow.Tensor) -> Any:
        return self.m(x)


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_small_model_has_names_of_parameters_and_of_arguments() -> None:
    made = assert_same(Small(), flow.randn(2, 3, 8, 8))
    names = {t.name for t in made.graph.initializer}
    assert {"conv.weight", "norm.running_var", "attention.in_proj_weight", "last.bias"} <= names
    assert [i.name for i in made.graph.input] == ["image"]
    assert [o.name for o in made.graph.output] == ["output.0", "1.sum"]
    assert kinds(made)[:3] == ["Conv", "BatchNormalization", "Relu"]
    assert len(made.graph.node[0].input) == 3  # with its bias


def test_names_are_given() -> None:
    made = flow.onnx.export(
        nn.Linear(4, 2), flow.zeros(3, 4), input_names=["rows"], output_names=["scores"]
    )
    assert [made.graph.input[0].name, made.graph.output[0].name] == ["rows", "scores"]
    with pytest.raises(flow.onnx.OnnxExportError, match="2 input_names, but there are 1: input"):
        flow.onnx.export(nn.Linear(4, 2), flow.zeros(3, 4), input_names=["a", "b"])


def test_dynamic_dims_take_any_size() -> None:
    made = assert_same(
        Small(),
        flow.randn(2, 3, 8, 8),
        others=[flow.randn(1, 3, 8, 8), flow.randn(5, 3, 13, 9)],
        dynamic_axes={"image": {0: "n", 2: "height", 3: "width"}},
    )
    dims = made.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == ["n", 3, "height", "width"]
    assert made.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "n"


class Shaped(nn.Module):
    """Numbers that follow from the sizes of the argument."""

    def forward(self, x: flow.Tensor) -> Any:
        n, m = x.shape
        grid = flow.arange(n)[:, None] * flow.arange(m)
        joined = flow.cat([x, flow.ones(2 * n, m)]).reshape(-1, 3 * n)
        return x * grid, joined, x.new_zeros(n + 1, m * n), x.flip(0)[:, : m - 1], x.mean()


def test_sizes_are_computed_where_programs_use_them() -> None:
    assert_same(
        Shaped(), flow.randn(3, 4), others=[flow.randn(5, 2), flow.randn(1, 7)],
        dynamic_axes={"x": {0: "n", 1: "m"}},
    )  # fmt: skip


class Fixed(nn.Module):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x + flow.ones(3, 2)


def test_dim_that_cannot_change_is_refused() -> None:
    with pytest.raises(flow.onnx.OnnxExportError, match="'rows' cannot be dynamic"):
        flow.onnx.export(Fixed(), flow.zeros(3, 2), dynamic_axes={"x": {0: "rows"}})


def test_training_writes_state_and_is_refused_at_the_users_line() -> None:
    model = nn.BatchNorm1d(3).train()
    with pytest.raises(flow.onnx.OnnxExportError, match=r"running_mean|batches.*eval\(\)"):
        flow.onnx.export(model, flow.randn(4, 3), training=True)
    assert model.training
    assert kinds(flow.onnx.export(model, flow.randn(4, 3)))[0] == "BatchNormalization"
    assert model.training


def test_words_of_pytorch_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    model, mode = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)), flow.onnx.TrainingMode
    made = flow.onnx.export(
        model, (flow.ones(1, 3),), training=mode.EVAL, do_constant_folding=True, verbose=True
    )
    assert kinds(made) == ["Gemm", "Identity"]
    assert "Gemm" in capsys.readouterr().out
    with pytest.raises(flow.onnx.OnnxExportError, match="dropout"):
        flow.onnx.export(model.eval(), flow.ones(1, 3), training=mode.TRAINING)
    assert not model.training
    with pytest.raises(flow.onnx.OnnxExportError, match="without its weights"):
        flow.onnx.export(model, flow.ones(1, 3), export_params=False)


class Unwritten(nn.Module):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return flow.linalg.inv(x) + 1  # this line


def test_op_without_a_form_is_refused_at_the_users_line() -> None:
    with pytest.raises(flow.onnx.OnnxExportError) as caught:
        flow.onnx.export(Unwritten(), flow.eye(3))
    line = next(
        i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.endswith("# this line")
    )  # fmt: skip
    assert f"{__file__}:{line}" in str(caught.value)
    assert "inv is a factorization" in str(caught.value)


def test_old_operator_set_says_which_is_needed() -> None:
    x = flow.tensor([1, 2])
    module = _Function(lambda x: x & 3)
    with pytest.raises(flow.onnx.OnnxExportError, match=r"BitwiseAnd.* needs opset 18"):
        flow.onnx.export(module, x)
    assert "BitwiseAnd" in kinds(flow.onnx.export(module, x, opset_version=18))


class _Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: flow.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize("opset", [11, 13, 14, 17, 18, 20, 22])
def test_operator_sets_agree(opset: int) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3),
        nn.Softmax(-1), nn.Unflatten(1, (3, 1)),
    )  # fmt: skip
    made = assert_same(model, flow.randn(2, 3, 7, 8), opset_version=opset)
    assert ("Gelu" in kinds(made)) == (opset >= 20)
    assert made.opset_import[0].version == opset


@pytest.mark.parametrize("compiled", [False, True])
def test_graphs_are_written_as_they_were_traced(compiled: bool) -> None:
    module = Small().eval()
    graph, x = Step(module), flow.randn(2, 3, 8, 8)
    graph._compile(x) if compiled else graph.build_graph(x)
    made = flow.onnx.export(graph)
    assert "m.conv.weight" in {t.name for t in made.graph.initializer}
    for got, want in zip(run(made, [x.numpy()]), (module(x)[0], module(x)[1]["sum"]), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)


def test_graph_that_was_never_called_needs_arguments() -> None:
    with pytest.raises(flow.onnx.OnnxExportError, match="never called"):
        flow.onnx.export(Step(Small()))


def test_training_graph_is_refused() -> None:
    model = nn.Linear(3, 1)

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.m = model
            self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))

        def build(self, x: flow.Tensor) -> flow.Tensor:
            loss = self.m(x).sum()
            loss.backward()
            return loss

    graph = Train()
    graph._compile(flow.randn(2, 3))
    with pytest.raises(flow.onnx.OnnxExportError, match=r"overwrites m\.(weight|bias)"):
        flow.onnx.export(graph)


def test_gradients_are_written() -> None:
    """A graph may return gradients: results of their ops have a form, too."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.GELU(), nn.Flatten(), nn.LayerNorm(36))

    class Gradient(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.m = model

        def build(self, x: flow.Tensor) -> Any:
            return flow.autograd.grad(self.m(x).square().sum() + (x**3).sum(), x)[0]

    x = flow.randn(2, 2, 7, 8, requires_grad=True)
    graph = Gradient()
    want = graph(x).numpy()
    (got,) = run(flow.onnx.export(graph), [x.numpy()])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [flow.float16, flow.bfloat16, flow.float64])
def test_weights_keep_their_dtype(dtype: flow.dtype) -> None:
    model = nn.Linear(3, 2).to(dtype)
    made = flow.onnx.export(model, flow.ones(2, 3, dtype=dtype))
    weight = next(t for t in made.graph.initializer if t.name == "weight")
    array = onnx.numpy_helper.to_array(weight)
    np.testing.assert_array_equal(array.astype(np.float64), model.weight.to(flow.float64).numpy())


def test_weights_lie_beside_the_file_if_asked(tmp_path: Path) -> None:
    model, x = nn.Linear(64, 64), flow.randn(2, 64)
    flow.onnx.export(model, x, tmp_path / "m.onnx", external_data=True)
    assert (tmp_path / "m.onnx").stat().st_size < 4096 < (tmp_path / "m.onnx.data").stat().st_size
    (got,) = run(onnx.load(tmp_path / "m.onnx"), [x.numpy()])
    np.testing.assert_allclose(got, model(x).numpy(), rtol=1e-5, atol=1e-6)


def test_other_weights_are_taken() -> None:
    made = flow.onnx.export(
        nn.Linear(3, 2), flow.ones(1, 3), weights={"model.weight": flow.ones(2, 3)}
    )
    weight = next(t for t in made.graph.initializer if t.name == "weight")
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(weight), np.ones((2, 3)))


class Asks(nn.Module):
    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return x + 1 if flow.onnx.is_in_onnx_export() else x * 2


def test_models_may_ask_whether_they_are_exported() -> None:
    x = flow.ones(1)
    assert run(flow.onnx.export(Asks(), x), [x.numpy()]) == [2]
    assert not flow.onnx.is_in_onnx_export()


def test_random_numbers_are_the_runtimes() -> None:
    made = flow.onnx.export(_Function(lambda x: x * 0 + flow.randn(1000)), flow.zeros(1000))
    (got,) = run(made, [np.zeros(1000, np.float32)])
    assert abs(got.mean()) < 0.2 and 0.8 < got.std() < 1.2
    dropout = nn.Dropout(0.5).train()
    with pytest.raises(flow.onnx.OnnxExportError, match=r"dropout.*model\.eval\(\)"):
        flow.onnx.export(dropout, flow.ones(4), training=True)
    assert run(flow.onnx.export(dropout, flow.ones(1)), [np.ones(1, np.float32)]) == [1]


class Quantized(nn.Module):
    """A convolution as quantization-aware training has it."""

    def __init__(self, scheme: str, per_layer: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.observe = nn.MinMaxObserver(
            quantization_scheme=scheme, per_layer_quantization=per_layer
        )
        self.watch = nn.MovingAverageMinMaxObserver(
            stop_update_after_iters=10, quantization_scheme=scheme
        )
        self.fake = nn.FakeQuantization(quantization_scheme=scheme)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        weight = self.fake(self.conv.weight, *self.observe(self.conv.weight))
        x = self.fake(x, *self.watch(x, flow.tensor([0], dtype=flow.int64)))
        return nn.functional.conv2d(x, weight, self.conv.bias)


@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
@pytest.mark.parametrize("per_layer", [True, False])
def test_fake_quantization_becomes_integers_of_8_bits(scheme: str, per_layer: bool) -> None:
    model, x = Quantized(scheme, per_layer), flow.randn(2, 3, 6, 6)
    model.train()
    model(x)  # the observer has seen it
    made = assert_same(model, x, tolerance=1e-4)
    written = kinds(made)
    assert written.count("QuantizeLinear") == written.count("DequantizeLinear") == 2
    assert "Round" not in written or scheme == "affine"


class Trained(nn.Module):
    """Quantization-aware layers that have seen inputs."""

    def __init__(self, **kind: Any) -> None:
        super().__init__()
        self.conv = nn.QatConv2d(16, 8, 3, padding=1, **kind)
        self.wide = nn.QatConv2d(8, 16, (3, 2), stride=(2, 1), dilation=(1, 2), groups=2, **kind)
        self.head = nn.QatLinear(16, 5, **kind)
        for _ in range(2):
            self(flow.randn(2, 16, 9, 8))
        self.eval()

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        x = self.wide(nn.functional.relu(self.conv(x)))
        out: flow.Tensor = self.head(x.mean((2, 3)))
        return out


@pytest.mark.parametrize(
    ("kind", "pairs"),
    [({}, 6), ({"quantization_scheme": "affine"}, 6), ({"quantization_bit": 6}, 0)],
)
def test_quantization_aware_layers_are_written_as_they_are_and_as_integers(
    kind: dict[str, Any], pairs: int
) -> None:
    flow.manual_seed(1)
    model = Trained(weight_quant_per_layer=False, **kind)
    x, converted = flow.randn(2, 16, 9, 8), flow.nn.qat.convert(model)
    # A sum of floats in another order may round to the next integer of the layer behind it.
    made = assert_same(model, x, tolerance=0.03)
    assert kinds(made).count("DequantizeLinear") == pairs
    whole = assert_same(converted, x, tolerance=0.03)
    held = [i for i in whole.graph.initializer if i.data_type == onnx.TensorProto.INT8]
    assert len(held) >= 2


def test_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(flow.onnx.OnnxExportError, match=r"oneflow-actors\[onnx\]"):
        flow.onnx.export(nn.Linear(1, 1), flow.ones(1, 1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dynamic_axes": {"nosuch": {0: "rows"}}}, "names 'nosuch'; inputs are input"),
        ({"opset_version": 99}, "opset_version is 99; it must be 7 to"),
        ({"opset_version": 1}, "opset_version is 1; it must be 7 to"),
    ],
)
def test_options_that_no_model_can_have_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(flow.onnx.OnnxExportError, match=said):
        flow.onnx.export(nn.Linear(4, 2), flow.zeros(3, 4), **options)


def test_dynamic_dims_of_outputs_follow_from_those_of_inputs() -> None:
    axes = {"input": {0: "rows"}, "output": {0: "rows"}}
    made = flow.onnx.export(nn.Linear(4, 2), flow.zeros(3, 4), dynamic_axes=axes)
    assert made.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "rows"
