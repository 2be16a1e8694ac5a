"""A second backward pass, and hooks of saved tensors: where gradients read values."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

Case = Callable[[Any, Any, Any], Any]

READ_NOTHING: dict[str, Case] = {
    "add": lambda f, x, y: x + y,
    "sub": lambda f, x, y: x - y,
    "rsub": lambda f, x, y: 1 - x,
    "neg": lambda f, x, y: -x,
    "sum": lambda f, x, y: x.sum(),
    "sum of a dim": lambda f, x, y: x.sum(1, keepdim=True),
    "mean": lambda f, x, y: x.mean(0),
    "view": lambda f, x, y: x.view(4),
    "transpose": lambda f, x, y: x.t(),
    "permute": lambda f, x, y: x.permute(1, 0),
    "expand": lambda f, x, y: x.unsqueeze(0).expand(3, 2, 2),
    "cat": lambda f, x, y: f.cat([x, y]),
    "stack": lambda f, x, y: f.stack([x, y]),
    "chunk": lambda f, x, y: x.chunk(2)[0],
    "row": lambda f, x, y: x[0],
    "column": lambda f, x, y: x[:, 1:],
    "cast": lambda f, x, y: x.double(),
    "clone": lambda f, x, y: x.clone(),
    "roll": lambda f, x, y: x.roll(1, 0),
    "flip": lambda f, x, y: x.flip(0),
    "pad": lambda f, x, y: f.nn.functional.pad(x, (1, 1)),
    "tril": lambda f, x, y: f.tril(x),
    "cumsum": lambda f, x, y: x.cumsum(0),
    "diagonal": lambda f, x, y: f.diagonal(x),
    "repeat": lambda f, x, y: x.repeat(2, 1),
    "chain": lambda f, x, y: (x + y).sum(0).view(2, 1).expand(2, 2) - y,
}
READ_VALUES: dict[str, Case] = {
    "mul": lambda f, x, y: x * y,
    "square": lambda f, x, y: x * x,
    "exp": lambda f, x, y: x.exp(),
    "relu": lambda f, x, y: f.relu(x),
    "tanh": lambda f, x, y: x.tanh(),
    "matmul": lambda f, x, y: x @ y,
    "pow": lambda f, x, y: x**3,
    "softmax": lambda f, x, y: x.softmax(0),
    "log": lambda f, x, y: (x + 2).log(),
}


def _operands(f: Any, dtype: str = "float32") -> list[Any]:
    return [
        f.tensor(v, dtype=getattr(f, dtype)).requires_grad_()
        for v in ([[1.0, -2.0], [3.0, 0.5]], [[2.0, 1.0], [-1.0, 4.0]])
    ]


def _two_passes(f: Any, case: Case, warm: int = 0) -> Any:
    for _ in range(warm):  # replayed passes read the same
        x, y = _operands(f)
        case(f, x, y).sum().backward()
    x, y = _operands(f)
    z = case(f, x, y)
    for _ in range(3):
        z.backward(f.ones_like(z))
    return [None if t.grad is None else t.grad.tolist() for t in (x, y)]


@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("name", READ_NOTHING)
def test_pass_that_reads_nothing_can_be_made_again(name: str, warm: int) -> None:
    assert _two_passes(flow, READ_NOTHING[name], warm) == _two_passes(torch, READ_NOTHING[name])


@pytest.mark.parametrize("case", [lambda f, x, y: x * 2.0, lambda f, x, y: x / 2.0])
def test_factors_that_are_numbers_are_not_saved(case: Case) -> None:
    """PyTorch refuses these, because it keeps the number as a tensor."""
    assert _two_passes(flow, case)[0] == [[3 * case(flow, 1.0, 0)] * 2] * 2


@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("name", READ_VALUES)
def test_pass_that_reads_values_is_refused(name: str, warm: int) -> None:
    for f in (flow, torch):
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            _two_passes(f, READ_VALUES[name], warm)


@pytest.mark.parametrize("name", {**READ_NOTHING, **READ_VALUES})
def test_hooks_see_what_the_gradient_reads(name: str) -> None:
    case = {**READ_NOTHING, **READ_VALUES}[name]
    counts, grads = [], []
    for f in (flow, torch):
        seen: list[Any] = []
        x, y = _operands(f)
        with f.autograd.graph.saved_tensors_hooks(
            lambda t, seen=seen: (seen.append(t), len(seen) - 1)[1], lambda i, seen=seen: seen[i]
        ):
            z = case(f, x, y)
        z.sum().backward()
        counts.append(len(seen))
        grads.append([None if t.grad is None else t.grad.tolist() for t in (x, y)])
    assert [g is None for g in grads[0]] == [g is None for g in grads[1]]
    for ours, theirs in zip(*grads, strict=True):
        assert ours is None or np.allclose(ours, theirs, rtol=1e-6)
    assert (counts[0] > 0) == (counts[1] > 0)
    if name in ("mul", "square", "exp", "relu", "matmul", *READ_NOTHING):
        assert counts[0] == counts[1]


@pytest.mark.parametrize("sbp", [flow.sbp.broadcast, flow.sbp.split(0)])
@pytest.mark.parametrize("name", ["add", "sum", "view", "cat", "row", "cast", "expand"])
def test_global_tensors_go_back_again(name: str, sbp: Any) -> None:
    x, y = (
        t.detach().to_global(flow.placement("cpu", [0]), sbp).requires_grad_()
        for t in _operands(flow)
    )
    z = READ_NOTHING[name](flow, x, y)
    for _ in range(2):
        z.backward(flow.ones_like(z))
    a, b = _operands(torch)
    w = READ_NOTHING[name](torch, a, b)
    for _ in range(2):
        w.backward(torch.ones_like(w))
    assert x.grad.numpy().tolist() == a.grad.tolist()


def test_moves_between_kinds_of_tensors_go_back_again() -> None:
    place = flow.placement("cpu", [0])
    x = flow.ones(2, requires_grad=True)
    z = x.to_global(place, flow.sbp.broadcast).to_global(sbp=flow.sbp.split(0)).to_local() + 1
    for _ in range(2):
        z.backward(flow.ones(2))
    assert x.grad.tolist() == [2, 2]


@pytest.mark.parametrize("f", [flow, torch], ids=["oneflow", "torch"])
def test_functions_of_a_users_own_go_back_again_without_saved_tensors(f: Any) -> None:
    class Double(f.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, saves: bool) -> Any:
            ctx.saves = saves
            if saves:
                ctx.save_for_backward(x)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            assert not ctx.saves or ctx.saved_tensors
            return g * 2 + h * 3, None

    x = f.ones(2, requires_grad=True)
    z, _ = Double.apply(x, False)
    for _ in range(2):
        z.backward(f.ones(2))
    assert x.grad.tolist() == [4, 4]
    z, _ = Double.apply(x, True)
    z.backward(f.ones(2))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        z.backward(f.ones(2))


def test_values_go_when_the_pass_is_over() -> None:
    x = flow.ones(2, requires_grad=True)
    middle = x + 1
    gone = weakref.ref(middle)
    z = middle + 1
    del middle
    z.backward(flow.ones(2))
    gc.collect()
    assert gone() is None
    z.backward(flow.ones(2))
    assert x.grad.tolist() == [2, 2]
