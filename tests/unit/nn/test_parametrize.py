"""Parametrizations, and the two of weights that the library brings, against torch in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.parametrizations  # PyTorch does not bring it along

import oneflow as flow
from oneflow.nn.utils import parametrizations, parametrize
from tests.parity.values import compare, to_flow

LIBRARIES: list[Any] = [torch, flow]


def symmetric(lib: Any) -> Any:
    class Symmetric(lib.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).transpose(-1, -2)

        def right_inverse(self, a: Any) -> Any:
            return a.triu()

    return Symmetric()


def doubled(lib: Any) -> Any:
    class Doubled(lib.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return x * 2

    return Doubled()


def test_a_weight_is_computed_at_each_use() -> None:
    found: list[Any] = []
    for lib in LIBRARIES:
        tools = lib.nn.utils.parametrize
        layer = lib.nn.Linear(2, 2, bias=False)
        weight = layer.weight
        weight.data = lib.tensor([[1.0, 2.0], [3.0, 4.0]])
        optimizer = lib.optim.SGD(layer.parameters(), lr=0.5)
        tools.register_parametrization(layer, "weight", symmetric(lib))
        assert layer.parametrizations.weight.original is weight
        log = [layer.weight.tolist(), type(layer).__name__, list(layer.state_dict())]
        layer(lib.ones(1, 2)).sum().backward()
        optimizer.step()
        log.append(layer.weight.tolist())
        layer.weight = lib.tensor([[1.0, 5.0], [5.0, 2.0]])
        log.append(weight.tolist())
        tools.register_parametrization(layer, "weight", doubled(lib))
        log += [layer.weight.tolist(), tools.is_parametrized(layer, "bias")]
        assert isinstance(layer, lib.nn.Linear)
        assert tools.type_before_parametrizations(layer) is lib.nn.Linear
        with tools.cached():
            assert layer.weight is layer.weight
        assert layer.weight is not layer.weight
        again = copy.deepcopy(layer)
        again.load_state_dict(layer.state_dict())
        log.append(again.weight.tolist())
        tools.remove_parametrizations(layer, "weight")
        assert type(layer) is lib.nn.Linear and isinstance(layer.weight, lib.nn.Parameter)
        log += [layer.weight.tolist(), list(layer.state_dict())]
        other = lib.nn.Linear(2, 2, bias=False)
        other.weight.data = lib.tensor([[1.0, 2.0], [3.0, 4.0]])
        tools.register_parametrization(other, "weight", doubled(lib))
        tools.remove_parametrizations(other, "weight", leave_parametrized=False)
        found.append([*log, other.weight.tolist()])
    assert found[0] == found[1]


def test_a_copy_keeps_its_parametrizations() -> None:
    layer = flow.nn.Linear(2, 2)
    for name in ("weight", "bias"):
        parametrize.register_parametrization(layer, name, doubled(flow))
    again = copy.deepcopy(layer)
    parametrize.remove_parametrizations(layer, "weight")
    assert parametrize.is_parametrized(layer, "bias") and not parametrize.is_parametrized(
        layer, "weight"
    )
    assert again.weight.tolist() == layer.weight.tolist()
    assert (again.parametrizations.weight.original * 2).tolist() == again.weight.tolist()
    parametrize.remove_parametrizations(layer, "bias")
    assert type(layer) is flow.nn.Linear and type(again) is not flow.nn.Linear


def test_mistakes_are_refused() -> None:
    layer = flow.nn.Linear(2, 3)
    with pytest.raises(ValueError, match="does not have a parameter"):
        parametrize.register_parametrization(layer, "gain", doubled(flow))
    with pytest.raises(ValueError, match="does not have a parametrization on weight"):
        parametrize.remove_parametrizations(layer, "weight")

    class Turned(flow.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.t()

    with pytest.raises(ValueError, match="changes its shape"):
        parametrize.register_parametrization(layer, "weight", Turned())


@pytest.mark.parametrize("dim", [0, 1, -2, None])
def test_weight_norm(dim: int | None, rng: np.random.Generator) -> None:
    theirs, ours = (lib.nn.Linear(3, 4).double() for lib in LIBRARIES)
    ours.load_state_dict(to_flow(theirs.state_dict()))
    torch.nn.utils.parametrizations.weight_norm(theirs, dim=dim)
    parametrizations.weight_norm(ours, dim=dim)
    old = flow.nn.utils.weight_norm(flow.nn.Linear(3, 4).double(), dim=dim)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(to_flow(theirs.state_dict()))
    x = torch.tensor(rng.normal(size=(5, 3)))
    theirs(x).sin().sum().backward()
    ours(to_flow(x)).sin().sum().backward()
    for (name, a), b in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        compare(a.grad, b.grad, where=name)
    ours.load_state_dict(old.state_dict())
    np.testing.assert_allclose(ours.weight.detach().numpy(), old.weight.detach().numpy())


@pytest.mark.parametrize("kind", ["Linear", "Conv1d", "ConvTranspose1d"])
def test_spectral_norm(kind: str, rng: np.random.Generator) -> None:
    sizes = (3, 4) if kind == "Linear" else (3, 4, 2)
    theirs, ours = (getattr(lib.nn, kind)(*sizes).double() for lib in LIBRARIES)
    torch.nn.utils.parametrizations.spectral_norm(theirs)
    parametrizations.spectral_norm(ours)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(to_flow(theirs.state_dict()))
    x = torch.tensor(rng.normal(size=(5, 3) if kind == "Linear" else (2, 3, 6)))
    for _ in range(2):
        wanted, got = theirs(x), ours(to_flow(x))
        compare(wanted, got, where="value")
    wanted.sin().sum().backward()
    got.sin().sum().backward()
    for (name, a), b in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        compare(a.grad, b.grad, where=name)
    compare(dict(theirs.state_dict()), dict(ours.state_dict()), where="state")
    compare(theirs.eval()(x), ours.eval()(to_flow(x)), where="evaluation")


def test_a_graph_learns_what_is_stored() -> None:
    def made() -> Any:
        flow.manual_seed(0)
        return parametrizations.weight_norm(flow.nn.Linear(3, 2))

    class Train(flow.nn.Graph):
        def __init__(self, model: Any, optimizer: Any) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x: Any) -> Any:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    model, again = made(), made()
    graph = Train(model, flow.optim.SGD(model.parameters(), lr=0.1))
    optimizer = flow.optim.SGD(again.parameters(), lr=0.1)
    x = flow.tensor(np.arange(6.0).reshape(2, 3).astype(np.float32))
    for _ in range(3):
        found = graph(x)
        optimizer.zero_grad()
        loss = again(x).square().mean()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(found.numpy(), loss.detach().numpy(), rtol=1e-5)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
def test_norms_of_weights_in_narrow_dtypes(
    name: str, dtype: torch.dtype, rng: np.random.Generator
) -> None:
    """Beside PyTorch's in float64, of the same numbers."""
    torch.manual_seed(0)
    wide = torch.nn.Linear(3, 4).to(dtype).double()
    exact, ours = copy.deepcopy(wide), flow.nn.Linear(3, 4)
    getattr(torch.nn.utils.parametrizations, name)(exact)
    getattr(parametrizations, name)(ours)
    ours.load_state_dict(to_flow(exact.float().state_dict()))
    ours, exact = ours.to(to_flow(wide.weight.to(dtype)).dtype).eval(), exact.double().eval()
    x = torch.tensor(rng.normal(size=(5, 3))).to(dtype)
    exact(x.double()).sum().backward()
    ours(to_flow(x)).sum().backward()
    atol = 8 * torch.finfo(dtype).eps
    pairs: list[tuple[Any, Any]] = [(exact.weight, ours.weight)]
    pairs += [(a.grad, b.grad) for a, b in zip(exact.parameters(), ours.parameters(), strict=True)]
    for wanted, got in pairs:
        scale = 4 * float(wanted.detach().abs().max())
        np.testing.assert_allclose(
            got.detach().float().numpy(), wanted.detach().numpy(), rtol=0, atol=atol * scale
        )
