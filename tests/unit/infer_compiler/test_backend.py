"""`torch.compile(backend="oneflow")` beside PyTorch without a compiler."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from oneflow.core.errors import GraphError
from oneflow.infer_compiler import backend as backends
from oneflow.infer_compiler import calls, oneflow_backend
from oneflow.infer_compiler.running import is_ours


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's compiler warns of itself
        yield
    torch._dynamo.reset()


class Encoder(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(self.embedding(tokens))
        return found


def dense() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.3), nn.Linear(16, 4)]
    return nn.Sequential(*layers), torch.randn(5, 8)


def convolutional() -> tuple[nn.Module, torch.Tensor]:
    layers = [
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.GroupNorm(2, 8), nn.SiLU()),
        *(nn.ConvTranspose2d(8, 8, 2), nn.Hardswish(), nn.AvgPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4), nn.LogSoftmax(-1)),
    ]
    return nn.Sequential(*layers), torch.randn(4, 3, 16, 16)


def encoder() -> tuple[nn.Module, torch.Tensor]:
    return Encoder(), torch.randint(0, 20, (3, 7))


MODELS = (dense, convolutional, encoder)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    scale = float(wanted.detach().abs().max())
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * max(scale, 1e-3))


@pytest.mark.parametrize("made", MODELS)
def test_outputs_gradients_and_statistics_are_those_of_pytorch(
    made: Callable[[], tuple[nn.Module, torch.Tensor]],
) -> None:
    model, x = made()
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, backend=oneflow_backend)
    for _ in range(2):  # the second with what the first one's statistics were
        results = []
        for run in (model, compiled):
            torch.manual_seed(1)  # the same dropout
            results.append(run(x))
            results[-1].square().sum().backward()
        close(results[1], results[0])
        largest = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
        for one, other in zip(twin.parameters(), model.parameters(), strict=True):
            assert one.grad is not None and other.grad is not None
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5 * largest)
        for one, other in zip(twin.buffers(), model.buffers(), strict=True):
            close(one, other)
    model.eval(), twin.eval()
    with torch.no_grad():
        close(compiled(x), model(x))


def test_an_optimizer_of_pytorchs_trains_a_compiled_module() -> None:
    model, x = dense()
    losses = []
    for run in (model, torch.compile(copy.deepcopy(model), backend=oneflow_backend)):
        optimizer = torch.optim.Adam(run.parameters(), lr=0.01)
        for step in range(6):
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss = run(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[6:] == pytest.approx(losses[:6], rel=1e-4)
    assert losses[5] < losses[0] / 1.1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[calls.Compiled]:
    """The graphs that are compiled from now on."""
    found: list[calls.Compiled] = []
    init = calls.Compiled.__init__

    def remembered(self: Any, *args: Any) -> None:
        found.append(self)
        init(self, *args)

    monkeypatch.setattr(calls.Compiled, "__init__", remembered)
    return found


def test_graphs_are_ours_whole_and_read_parameters_where_they_lie(
    made: list[calls.Compiled],
) -> None:
    model, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(3, 8)
    compiled = torch.compile(model, backend=oneflow_backend)
    with torch.no_grad():
        compiled(x)
        (run,) = made
        ((key, plan),) = run.plans.items()
        assert set(plan._places.values()) == {p.data_ptr() for p in model.parameters()}
        model[0].weight.mul_(2)
        close(compiled(x), model(x))
        assert run.plans == {key: plan}
        model[0].weight = nn.Parameter(torch.randn(4, 8))
        close(compiled(x), model(x))
        for rows in (4, 5, 6):
            close(compiled(torch.ones(rows, 8)), model(torch.ones(rows, 8)))


def test_the_number_of_plans_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PLANS", 2)
    graph = torch.fx.symbolic_trace(lambda a, b: (torch.ops.aten.mm.default(a, b),))
    run = backends.compiled(graph)
    assert isinstance(run, calls.Compiled)
    weight = torch.randn(3, 2)
    for rows in (1, 2, 3, 4, 1):
        close(run(torch.ones(rows, 3), weight)[0], torch.ones(rows, 3) @ weight)
        assert len(run.plans) <= 2


def test_saved_values_lie_in_registers_and_outlive_another_forward_pass(
    made: list[calls.Compiled],
) -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.randn(5, 8)
    compiled = torch.compile(copy.deepcopy(model), backend=oneflow_backend)
    for _ in range(3):
        compiled(x).sum().backward()
        compiled.zero_grad()
    assert [len(run.plans) for run in made] == [1, 1]
    assert all(plan._borrowed for run in made for plan in run.plans.values())
    for run in (model, compiled):  # the first values are overwritten if both share registers
        first, second = run(x), run(2 * x)
        (first.square().sum() + second.sum()).backward()
        run(3 * x).sum().backward()  # adds to gradients that may lie in a register
    wanted, found = (list(run.parameters()) for run in (model, compiled))
    for one, other in zip(found, wanted, strict=True):
        assert one.grad is not None and other.grad is not None
        close(one.grad, other.grad)


def test_an_operator_that_is_not_ours_stays_pytorchs() -> None:
    @torch.library.custom_op("oneflow_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(torch.empty_like)

    def program(x: torch.Tensor) -> torch.Tensor:
        return (doubled(x.exp() + 1) * 3).sum(-1)

    x = torch.randn(4, 3)
    with torch.no_grad():
        close(torch.compile(program, backend=oneflow_backend)(x), program(x))


def test_an_operator_that_fails_is_named_with_its_line() -> None:
    graph = torch.fx.symbolic_trace(lambda a, b: (torch.ops.aten.mm.default(a, b),))
    node = next(n for n in graph.graph.nodes if n.op == "call_function")
    assert is_ours(node)
    node.meta["stack_trace"] = '  File "model.py", line 12, in forward\n'
    run = backends.compiled(graph)
    with pytest.raises(GraphError, match=r"aten\.mm\.default cannot be compiled at model\.py:12"):
        run(torch.ones(2, 3), torch.ones(4, 5))


def test_dtypes_and_strides_come_back_as_they_were() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.t(), x[1:], i * 2, x > 0, x.double(), x

    x, i = torch.randn(4, 3), torch.arange(5)
    with torch.no_grad():
        found = torch.compile(program, backend=oneflow_backend)(x, i)
    for one, wanted in zip(found, program(x, i), strict=True):
        assert one.dtype == wanted.dtype and one.stride() == wanted.stride()
        assert torch.equal(one, wanted)


def test_shapes_may_be_dynamic_and_programs_broken() -> None:
    def program(x: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
        y = (x * factor).softmax(-1).cumsum(0)
        torch._dynamo.graph_break()
        return y.reshape(-1, y.shape[0]) @ y

    compiled = torch.compile(program, backend=oneflow_backend, dynamic=True)
    with torch.no_grad():
        for rows in (3, 4, 7):
            x = torch.randn(rows, 5 * rows)
            close(compiled(x, factor=0.5), program(x, factor=0.5))


def test_writes_to_inputs_and_views_of_them_are_seen() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.mul_(2)
        x[0] = y.sum()
        return x[1:], y.t()

    compiled = torch.compile(program, backend=oneflow_backend)
    x, y = torch.randn(3, 2), torch.randn(2, 4)
    ours = x.clone()
    wanted, found = program(x, y), compiled(ours, y)
    close(ours, x)
    close(found[0], wanted[0])
    assert found[0].data_ptr() == ours[1:].data_ptr() and found[1].data_ptr() == y.data_ptr()
    found[0].zero_()
    assert not ours[1:].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_dtypes_are_those_of_pytorch(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y + x).sum(0) - y

    x, y = torch.randn(4, 3).to(dtype), torch.randn(3).to(dtype)
    with torch.no_grad():
        found, wanted = torch.compile(program, backend=oneflow_backend)(x, y), program(x, y)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted)


def test_the_package_is_imported_without_pytorch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from oneflow.framework.infer_compiler import compile_from_torch, oneflow_backend, register"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("masked", ["", "causal", "added", "chosen"])
def test_gradients_of_attention_are_those_of_pytorch(masked: str) -> None:
    chosen = torch.rand(8, 8) > 0.3
    chosen[2] = False  # a row without a column has no gradient
    mask = {"added": torch.randn(8, 8), "chosen": chosen}.get(masked)

    def program(*inputs: torch.Tensor) -> torch.Tensor:
        attention = nn.functional.scaled_dot_product_attention
        return attention(*inputs, attn_mask=mask, is_causal=masked == "causal").square().sum()

    inputs = [torch.randn(2, 3, 8, 16, requires_grad=True) for _ in range(3)]
    wanted = torch.autograd.grad(program(*inputs), inputs)
    compiled = torch.compile(program, backend=oneflow_backend)
    for one, other in zip(torch.autograd.grad(compiled(*inputs), inputs), wanted, strict=True):
        close(one, other)


def test_threads_may_call_one_module_at_once() -> None:
    """Each gets the outputs and gradients of its own input."""
    module, x = dense()
    module.eval()
    compiled = torch.compile(module, backend="oneflow")
    inputs = [x * (n + 1) for n in range(4)]
    wanted = []
    for given in inputs:
        leaf = given.clone().requires_grad_()
        module(leaf).square().sum().backward()
        wanted.append(leaf.grad)
    compiled(inputs[0].clone().requires_grad_()).sum().backward()  # compiled once, by one thread
    wrong: list[int] = []

    def work(n: int) -> None:
        for _ in range(20):
            leaf = inputs[n].clone().requires_grad_()
            out = compiled(leaf)
            (found,) = torch.autograd.grad(out.square().sum(), leaf)
            if not torch.allclose(found, wanted[n], rtol=1e-4, atol=1e-5):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
