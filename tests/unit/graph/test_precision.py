"""Mixed precision of graphs: which ops run in half precision, and the casts between them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.core.dtype import bfloat16, float16, float32
from oneflow.core.graph import LogicalGraph, Node
from oneflow.nn.graph import GraphModule
from oneflow.optim import SGD, Adagrad, Adam, AdamW

from .spread import lowered
from .test_every_module import CASES

WIDTH, HEADS, WORDS = 8, 2, 11


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        rows, length, _ = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (y.view(rows, length, HEADS, -1).transpose(1, 2) for y in parts)
        later = flow.tril(flow.ones(length, length, device=x.device)) == 0
        scores = (q @ k.transpose(-1, -2) * 0.5).masked_fill(later, -1e4)
        y = (F.softmax(scores, -1) @ v).transpose(1, 2).reshape(rows, length, WIDTH)
        return x + self.drop(self.out(y))


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        flow.manual_seed(1)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(Attention(), Feed())
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.blocks(self.words(x))))


class Train(nn.Graph):
    def __init__(self, model: Any, dtype: Any = bfloat16, pieces: int = 1) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(SGD(model.parameters(), lr=0.1))
        self.config.set_gradient_accumulation_steps(pieces)
        if dtype is not None:
            self.config.enable_amp(True, dtype=dtype)

    def build(self, x: Any, y: Any) -> Any:
        out = self.model(x)
        loss = F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
        loss.backward()
        return loss


class Predict(nn.Graph):
    def __init__(self, model: Any, dtype: Any = bfloat16) -> None:
        super().__init__()
        self.model = model
        self.config.enable_amp(True, dtype=dtype)

    def build(self, x: Any) -> Any:
        return self.model(x)


def traced(graph: nn.Graph, *args: Any) -> LogicalGraph:
    return lowered(graph, (args, {}))


def words() -> Any:
    return flow.tensor(np.arange(8).reshape(2, 4) % WORDS)


def dtypes(graph: LogicalGraph) -> dict[str, set[str]]:
    """The dtypes of the first results of each kind of op, where they are floats."""
    found: dict[str, set[str]] = {}
    for node in graph:
        if node.outputs and node.outputs[0].type.dtype.is_floating_point:
            found.setdefault(node.op, set()).add(node.outputs[0].type.dtype.name)
    return found


def crossings(graph: LogicalGraph, dtype: Any) -> Counter[str]:
    """Count casts from float32 to half precision and back by the op that made it."""
    found: Counter[str] = Counter()
    for node in graph:
        if node.op == "cast" and node.inputs[0].type.dtype.is_floating_point:
            to_half = node.outputs[0].type.dtype is dtype
            found[f"{node.inputs[0].node.op} to {'half' if to_half else 'float32'}"] += 1
    return found


def test_the_ops_of_a_gpt() -> None:
    """All between the first product and the logits is half, in both passes; the embedding before
    and the loss behind are float32, and so are the updates of parameters."""
    graph = traced(Train(Gpt()), words(), words())
    found = dtypes(graph)
    half = {"bfloat16"}
    for op in (
        "linear",
        "matmul",
        "matmul_weight_grad",
        "softmax",
        "gelu",
        "dropout",
        "masked_fill",
    ):
        assert found[op] == half, op
    for op in ("softmax_grad", "gelu_grad", "slice", "slice_scatter", "transpose", "sum_rows"):
        assert found[op] == half, op
    assert found["layer_norm"] == {"float32", "bfloat16"}  # the first one is before any product
    norms = [n for n in graph if n.op == "layer_norm"]
    assert [n.outputs[0].type.dtype for n in norms] == [float32, bfloat16, bfloat16]
    assert all(n.outputs[1].type.dtype is float32 for n in norms)
    for op in ("gather", "gather_grad", "sparse_softmax_cross_entropy", "sgd_update", "reduce_sum"):
        assert found[op] == {"float32"}, op
    crossed = crossings(graph, bfloat16)
    parameters = 4 + 4 + 2 + 2 + 1  # of linear layers, and of norms but for the first
    assert crossed["variable to half"] == parameters
    assert crossed["layer_norm to half"] == 1
    assert crossed["gather to half"] == 1  # into the residual sum
    assert crossed["reshape to float32"] == 1  # the logits
    assert crossed["sparse_softmax_cross_entropy_grad to half"] == 1
    gradients = crossed["matmul_weight_grad to float32"] + crossed["sum_rows to float32"]
    assert gradients == 9 and crossed["layer_norm_grad to float32"] == 2 * 2
    rest = crossed.total() - parameters - 4 - gradients - 4
    assert rest <= 3  # the gradient enters and leaves the first norm, and goes to the embedding


class Residual(nn.Module):
    """The block of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        flow.manual_seed(1)
        self.conv1 = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.head = nn.Linear(3, WORDS)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)) + x)
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


def images() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 3, 6, 6)).astype(np.float32)
    return flow.tensor(x), flow.tensor(np.arange(4))


def test_the_ops_of_a_residual_block() -> None:
    """Norms read and make half floats; their statistics are float32 or wider."""
    graph = traced(Train(Residual()), *images())
    found = dtypes(graph)
    for op in ("conv", "conv_filter_grad", "batch_norm_apply", "batch_norm_grad_apply", "relu"):
        assert found[op] == {"bfloat16"}, op
    for op in ("adaptive_avg_pool", "add", "relu_grad", "linear"):
        assert found[op] == {"bfloat16"}, op
    for node in graph:
        if node.op == "batch_norm_apply":
            assert {v.type.dtype for v in node.inputs[1:]} == {float32}
        if node.op == "batch_sums":
            assert node.inputs[0].type.dtype is bfloat16
        if node.op == "batch_norm_track":
            assert all(v.type.dtype.bytes >= 4 for v in node.inputs)
    crossed = crossings(graph, bfloat16)
    assert crossed["variable to half"] == 2 + 2  # convolutions and head; norms take float32
    assert crossed["input to half"] == 1


@pytest.mark.parametrize("make", [Gpt, Residual])
@pytest.mark.parametrize("dtype", [bfloat16, float16])
def test_training_is_near_that_in_float32(make: Any, dtype: Any) -> None:
    given = (words(), words()) if make is Gpt else images()
    losses = []
    for kind in (dtype, None):
        graph = Train(make().eval() if make is Gpt else make(), kind)
        losses.append([graph(*given).item() for _ in range(4)])
    assert losses[0][-1] < losses[0][0]
    tolerance = 4e-2 if dtype is bfloat16 else 1e-2
    np.testing.assert_allclose(losses[0], losses[1], rtol=tolerance)


def test_casts_of_weights_stand_outside_of_micro_batches() -> None:
    graph = Train(Gpt(), pieces=2)
    graph(words(), words())
    assert graph._spec.plans.now is not None
    nodes = graph._spec.plans.now.job.bound.plan.graph
    casts = [n for n in nodes if n.op == "cast" and n.inputs[0].node.op == "variable"]
    assert len(casts) == 13 and {n.rate for n in casts} == {"step"}


def test_a_graph_that_predicts_gives_the_dtypes_of_build() -> None:
    """Outputs are float32; ops before an output may be half."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Softmax(-1))
    graph = Predict(model)
    assert dtypes(traced(graph, flow.ones(2, 4)))["softmax"] == {"bfloat16"}
    x = flow.tensor(np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32))
    out = graph(x)
    assert out.dtype is flow.float32
    np.testing.assert_allclose(out.numpy(), model(x).numpy(), atol=2e-2)
    assert set(np.unique(out.numpy().view(np.uint32) & 0xFFFF)) == {0}  # bfloat16, widened


def between(middle: Any) -> nn.Module:
    """Two products with something between them."""

    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.last(middle(self.first(x)))

    return Between()


def made_by(graph: LogicalGraph, op: str) -> list[Node]:
    return [node for node in graph if node.op == op]


@pytest.mark.parametrize(
    ("middle", "expected"),
    [
        (lambda y: y + 1.0, {"scalar_add": "bfloat16"}),
        (lambda y: F.relu(y), {"relu": "bfloat16"}),
        (lambda y: y / y.exp().sum(-1, keepdim=True), {"exp": "float32", "div": "float32"}),
        (lambda y: y.exp().reshape(2, 4) + 1.0, {"exp": "float32", "scalar_add": "float32"}),
        (lambda y: y.cos() + 1.0, {"cos": "bfloat16", "scalar_add": "bfloat16"}),
        (lambda y: y[flow.tensor([1, 0])].erf(), {"gather": "bfloat16", "erf": "bfloat16"}),
        (lambda y: flow._C.amp_black_identity(y) * 2.0, {"scalar_mul": "float32"}),
        (lambda y: y.double().float(), {"cast": "float32 float64"}),
        (lambda y: y.half().relu().float(), {"relu": "float16"}),
    ],
)
def test_what_stands_between_two_products(middle: Any, expected: dict[str, str]) -> None:
    graph = Predict(between(middle))
    found = dtypes(traced(graph, flow.ones(2, 4)))
    for op, names in expected.items():
        assert set(names.split()) <= found[op], found
    assert {"bfloat16"} == found["linear"]
    x = flow.tensor(np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32))
    wanted = graph.model.origin(x).numpy()
    np.testing.assert_allclose(graph(x).numpy(), wanted, atol=3e-2)


def test_a_pinned_value_runs_in_half_precision() -> None:
    @nn.Graph.trace
    def pinned(x: Any) -> Any:
        return flow._C.amp_white_identity(x) + 1.0

    pinned.config.enable_amp(True, dtype=bfloat16)
    found = pinned(flow.tensor([1.0 + 2.0**-12]))
    np.testing.assert_array_equal(found.numpy(), [2.0])
    np.testing.assert_array_equal(flow._C.amp_white_identity(flow.ones(2)).numpy(), [1.0, 1.0])
    np.testing.assert_array_equal(flow._C.amp_black_identity(flow.ones(2)).numpy(), [1.0, 1.0])


def test_a_fill_that_float16_lacks_stays_finite() -> None:
    """A row that is masked as a whole has equal shares, not nan."""
    masked = flow.tensor([[True, True, True, True], [False, False, True, True]])
    graph = Predict(between(lambda y: F.softmax(y.masked_fill(masked, -1e9), -1)), float16)
    x = flow.ones(2, 4)
    np.testing.assert_allclose(graph(x).numpy(), graph.model.origin(x).numpy(), atol=2e-3)


BESIDE_NUMBERS = {
    "a fill": lambda y: (y * 1e-5 * flow.full((1,), 1e6)) @ flow.eye(4),
    "a fill like it": lambda y: (y * 1e-5 * flow.full_like(y, 1e6)) @ flow.eye(4),
    "a product": lambda y: (y * 1e-5 * (flow.ones(1) * 1e6)) @ flow.eye(4),
    "a tensor": lambda y: (y * 1e-5 * flow.tensor([1e6])) @ flow.eye(4),
    "a small tensor": lambda y: (y / ((y - y) + flow.tensor([1e-12])) * 1e-12) @ flow.eye(4),
    "an epsilon": lambda y: (y / ((y - y) + 1e-12) * 1e-12) @ flow.eye(4),
}


@pytest.mark.parametrize("name", BESIDE_NUMBERS)
def test_elements_beside_numbers_that_float16_lacks(name: str) -> None:
    graph = Predict(between(BESIDE_NUMBERS[name]), float16)
    x = flow.ones(2, 4)
    np.testing.assert_allclose(graph(x).numpy(), graph.model.origin(x).numpy(), rtol=5e-3)


def test_what_is_computed_again_keeps_its_precision() -> None:
    def made(again: bool) -> list[float]:
        graph = Train(Gpt())
        for block in graph.model.blocks:
            block.to(GraphModule).activation_checkpointing = again
        flow.manual_seed(5)
        return [graph(words(), words()).item() for _ in range(3)]

    np.testing.assert_allclose(made(True), made(False), rtol=1e-6)


class Twice(flow.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, d: Any) -> Any:
        (x,) = ctx.saved_tensors
        return d * 2.0 + x * 0.0


def test_a_function_with_a_gradient_of_its_own() -> None:
    found = []
    for dtype in (bfloat16, None):
        flow.manual_seed(2)
        graph = Train(between(Twice.apply), dtype)
        found.append([graph(flow.ones(2, 4), flow.tensor([0, 1])).item() for _ in range(3)])
    np.testing.assert_allclose(found[0], found[1], rtol=3e-2)


class Fused(Train):
    def __init__(self, optimizer: Any, mode: bool, dtype: Any, model: Any) -> None:
        nn.Graph.__init__(self)
        self.model = model
        self.add_optimizer(optimizer(model.parameters()))
        self.config.enable_amp(True, dtype=dtype)
        self.config.enable_fused_model_update_cast(mode)
        if dtype is float16:
            self.set_grad_scaler(flow.amp.GradScaler(init_scale=1024.0))


@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize(
    ("optimizer", "op"),
    [
        (lambda p: SGD(p, lr=0.1), "sgd_update_and_cast"),
        (lambda p: SGD(p, lr=0.1, momentum=0.9), "momentum_update_and_cast"),
        (lambda p: AdamW(p, lr=0.01, weight_decay=0.1), "adam_update_and_cast"),
        (lambda p: Adam(p, lr=0.01, amsgrad=True), "amsgrad_update_and_cast"),
        (lambda p: Adagrad(p, lr=0.1), "assign"),
    ],
)
def test_updates_write_half_floats_in_the_same_pass(optimizer: Any, op: str, dtype: Any) -> None:
    """Losses are those with casts, of which none is left, to the bit; also when somebody else has
    written to a parameter."""
    losses = []
    for mode in (False, True):
        graph = Fused(optimizer, mode, dtype, Gpt().eval())
        found = [graph(words(), words()).item() for _ in range(3)]
        with flow.no_grad():
            graph.model.head.weight.origin.mul_(0.5)
        found += [graph(words(), words()).item() for _ in range(2)]
        graph.model.head.weight.origin.data[:4].mul_(0.5)
        losses.append([*found, graph(words(), words()).item()])
        assert graph._spec.plans.now is not None
        ops = Counter(n.op for n in graph._spec.plans.now.job.bound.plan.graph)
        casts = crossings(graph._spec.plans.now.job.bound.plan.graph, dtype)
        assert casts["variable to half"] == (0 if mode else 13)
        assert ops[op] >= 13 or not mode
    assert losses[0] == losses[1]


def test_a_loaded_plan_keeps_its_half_floats() -> None:
    def made(scale: float) -> Fused:
        graph = Fused(lambda p: SGD(p, lr=0.1), True, bfloat16, Gpt().eval())
        graph.model.head.weight.origin.data.mul_(scale)
        return graph

    graph, again = made(1.0), made(0.5)
    graph(words(), words())
    state = graph.runtime_state_dict(with_eager=True)
    wanted = Fused(lambda p: SGD(p, lr=0.1), True, bfloat16, graph.model.origin)
    again.load_runtime_state_dict(state)
    expected = [wanted(words(), words()).item() for _ in range(2)]
    assert [again(words(), words()).item() for _ in range(2)] == expected


class Surrounded(nn.Module):
    """A module between two products, if it takes floats."""

    def __init__(self, module: nn.Module, x: Any) -> None:
        super().__init__()
        self.module = module
        self.first = nn.Linear(x.shape[-1], x.shape[-1]) if x.dtype == np.float32 else None

    def forward(self, x: Any, *others: Any) -> Any:
        out = self.module(x if self.first is None else self.first(x).sigmoid(), *others)
        while isinstance(out, tuple):
            out = out[0]
        flat = out.reshape(1, -1)
        return out, (flat @ flat.t()).mean() / flat.numel()


class TrainAny(nn.Graph):
    def __init__(self, model: Any, dtype: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(SGD(model.parameters(), lr=0.1))
        if dtype is not None:
            self.config.enable_amp(True, dtype=dtype)

    def build(self, *inputs: Any) -> Any:
        out, loss = self.model(*inputs)
        loss.backward()
        return out


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [(bfloat16, 0.1), (float16, 0.02)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case[0]()).__name__)
def test_every_module_trains_in_mixed_precision(case: Any, dtype: Any, tolerance: float) -> None:
    make, arrays = case
    found = []
    for kind in (dtype, None):
        flow.manual_seed(1)
        graph = TrainAny(Surrounded(make(), arrays[0]).eval(), kind)
        for _ in range(2):
            out = graph(*map(flow.tensor, arrays))
        assert out.dtype is flow.float32
        found.append([out.numpy(), *(p.numpy() for p in graph.model.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * (np.abs(b).max() + 1e-2))


@pytest.mark.parametrize("dtype", [bfloat16, float16])
def test_complex_numbers_are_made_in_float32(dtype: Any) -> None:
    """Rotary embeddings stand between two products."""

    class Rotate(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
            self.config.enable_amp(True, dtype=dtype)

        def build(self, x: Any) -> Any:
            h = self.first(x)
            turned = flow.view_as_complex(h.reshape(2, 2, 2)) * flow.complex(h, h)[:, :2]
            return self.last(flow.view_as_real(turned).reshape(2, 4)), flow.fft.fft(h)

    graph, x = Rotate(), flow.ones(2, 4)
    first, last = graph.first.origin, graph.last.origin
    h = first(x)
    turned = flow.view_as_complex(h.reshape(2, 2, 2)) * flow.complex(h, h)[:, :2]
    wanted = last(flow.view_as_real(turned).reshape(2, 4)), flow.fft.fft(h)
    for ours, exact in zip(graph(x), wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), exact.detach().numpy(), atol=3e-2)
