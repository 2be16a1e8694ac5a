"""Recurrent layers: one cell from its formula, layers from cells, and all of it against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oneflow import nn
from oneflow.autograd.api import grad
from oneflow.core.errors import ShapeError
from oneflow.tensor.tensor import Tensor, wrap

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 2, 3))  # length, n, features


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def numbers(module: Any) -> Any:
    return {k: v.numpy() for k, v in module.state_dict().items()}


def test_cells_follow_their_formulas(rng: np.random.Generator) -> None:
    x, h, c = rng.normal(size=(2, 3)), rng.normal(size=(2, 5)), rng.normal(size=(2, 5))
    for kind in (nn.RNNCell, nn.LSTMCell, nn.GRUCell):
        cell = kind(3, 5).double()
        w = numbers(cell)
        a = x @ w["weight_ih"].T + w["bias_ih"]
        b = h @ w["weight_hh"].T + w["bias_hh"]
        if kind is nn.RNNCell:
            np.testing.assert_allclose(cell(wrap(x), wrap(h)).detach().numpy(), np.tanh(a + b))
        elif kind is nn.LSTMCell:
            i, f, g, o = np.split(a + b, 4, 1)
            cell_state = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            out, new = cell(wrap(x), (wrap(h), wrap(c)))
            np.testing.assert_allclose(new.detach().numpy(), cell_state, rtol=1e-9)
            np.testing.assert_allclose(
                out.detach().numpy(), sigmoid(o) * np.tanh(cell_state), rtol=1e-9
            )
        else:
            (r, z, n), (hr, hz, hn) = np.split(a, 3, 1), np.split(b, 3, 1)
            update = sigmoid(z + hz)
            expected = (1 - update) * np.tanh(n + sigmoid(r + hr) * hn) + update * h
            np.testing.assert_allclose(cell(wrap(x), wrap(h)).detach().numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_a_layer_is_its_cell_over_time(kind: str) -> None:
    layer = getattr(nn, kind)(3, 5).double()
    cell = getattr(nn, f"{kind}Cell")(3, 5).double()
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in numbers(layer).items()})
    state, outputs = None, []
    for x in X:
        state = cell(wrap(x), state)
        outputs.append((state[0] if kind == "LSTM" else state).detach().numpy())
    out, last = layer(wrap(X))
    np.testing.assert_allclose(out.detach().numpy(), outputs, rtol=1e-9)
    h = last[0] if kind == "LSTM" else last
    np.testing.assert_allclose(h.detach().numpy()[0], outputs[-1], rtol=1e-9)
    rows_first, _ = getattr(nn, kind)(3, 5, batch_first=True).double()(wrap(X))
    assert rows_first.shape == (4, 2, 5)
    single, last = layer(wrap(X[:, 0]))
    np.testing.assert_allclose(single.detach().numpy(), np.stack(outputs)[:, 0], rtol=1e-9)


OPTIONS = [
    ("RNN", {"nonlinearity": "relu"}),
    ("RNN", {"num_layers": 2, "bidirectional": True}),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("LSTM", {"proj_size": 2, "num_layers": 2}),
    ("GRU", {"num_layers": 2, "bias": False, "bidirectional": True}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_outputs_states_and_gradients_are_those_of_torch(
    kind: str, options: Any, rng: np.random.Generator
) -> None:
    import torch

    theirs = getattr(torch.nn, kind)(3, 5, **options).double()
    ours = getattr(nn, kind)(3, 5, **options).double()
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    assert list(ours.state_dict()) == list(theirs.state_dict())
    _, shapes = theirs(torch.tensor(X))
    states = [rng.normal(size=s.shape) for s in (shapes if kind == "LSTM" else [shapes])]
    their_state: Any = tuple(map(torch.tensor, states))
    our_state: Any = tuple(map(wrap, states))
    if kind != "LSTM":
        their_state, our_state = their_state[0], our_state[0]
    their_out, their_last = theirs(torch.tensor(X), their_state)
    our_out, our_last = ours(wrap(X), our_state)
    np.testing.assert_allclose(our_out.detach().numpy(), their_out.detach().numpy(), rtol=1e-7)
    pairs = zip(our_last, their_last, strict=True) if kind == "LSTM" else [(our_last, their_last)]
    for a, b in pairs:
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-7)
    (their_out**2).sum().backward()
    (our_out * our_out).sum().backward()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(
            a.grad.numpy(), b.grad.numpy(), rtol=1e-6, atol=1e-9, err_msg=name
        )


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_float32_layers_of_many_steps_are_those_of_torch(
    kind: str, rng: np.random.Generator
) -> None:
    """Wide enough for the compiled loops; rows in two parts, a last block that is not full."""
    import torch

    x = rng.normal(size=(6, 17, 12)).astype(np.float32)
    theirs, ours = getattr(torch.nn, kind)(12, 33), getattr(nn, kind)(12, 33)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    their_x, our_x = torch.tensor(x, requires_grad=True), wrap(x)
    our_x.requires_grad = True
    their_out, our_out = theirs(their_x)[0], ours(our_x)[0]
    np.testing.assert_allclose(our_out.detach().numpy(), their_out.detach().numpy(), atol=2e-6)
    (their_out**2).sum().backward()
    (our_out * our_out).sum().backward()
    pairs = zip([our_x, *ours.parameters()], [their_x, *theirs.parameters()], strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_packed_float32_layers_are_those_of_torch(kind: str, rng: np.random.Generator) -> None:
    """Neighbouring steps with as many rows, one, two and four of them, are computed together."""
    import torch

    x, lengths = rng.normal(size=(8, 16, 3)).astype(np.float32), [8] * 9 + [4] * 5 + [2, 1]
    theirs, ours = getattr(torch.nn, kind)(3, 33), getattr(nn, kind)(3, 33)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    their_x, our_x = torch.tensor(x, requires_grad=True), wrap(x)
    our_x.requires_grad = True
    packed = torch.nn.utils.rnn.pack_padded_sequence(their_x, torch.tensor(lengths))
    their_out, their_last = theirs(packed)
    our_out, our_last = ours(nn.utils.rnn.pack_padded_sequence(our_x, wrap(np.array(lengths))))
    np.testing.assert_allclose(
        our_out.data.detach().numpy(), their_out.data.detach().numpy(), atol=2e-6
    )
    their_h, our_h = (a[0] if kind == "LSTM" else a for a in (their_last, our_last))
    np.testing.assert_allclose(our_h.detach().numpy(), their_h.detach().numpy(), atol=2e-6)
    ((their_out.data**2).sum() + their_h.sum()).backward()
    ((our_out.data * our_out.data).sum() + our_h.sum()).backward()
    pairs = zip([our_x, *ours.parameters()], [their_x, *theirs.parameters()], strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=2e-4, atol=2e-4)


def test_no_rows_give_no_gradient_and_no_steps_are_a_mistake() -> None:
    layer = nn.LSTM(3, 4)
    out, (h, c) = layer(wrap(np.zeros((5, 0, 3), np.float32)))
    out.sum().backward()
    assert (out.shape, h.shape, c.shape) == ((5, 0, 4), (1, 0, 4), (1, 0, 4))
    assert all(not p.grad.numpy().any() for p in layer.parameters())
    with pytest.raises(ShapeError, match="at least one step"):
        layer(wrap(np.zeros((0, 2, 3), np.float32)))


def test_a_graph_has_one_node_for_a_layer_whatever_its_length() -> None:
    class Read(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(3, 4)

        def build(self, x: Tensor) -> Any:
            return self.layer(x)[0]

    lines = []
    for length in (2, 40):
        graph = Read()
        graph(wrap(np.zeros((length, 2, 3), np.float32)))
        lines.append(str(graph).count("\n"))
    assert lines[0] == lines[1]


@pytest.mark.parametrize(("kind", "options"), [*OPTIONS, ("GRU", {}), ("LSTM", {})])
def test_second_derivatives_are_those_of_torch(kind: str, options: Any) -> None:
    import torch

    theirs = getattr(torch.nn, kind)(3, 5, **options).double()
    ours = getattr(nn, kind)(3, 5, **options).double()
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    x, their_x = wrap(X), torch.tensor(X, requires_grad=True)
    x.requires_grad = True
    (d,) = grad((ours(x)[0] ** 3).sum(), x, create_graph=True)
    (their_d,) = torch.autograd.grad((theirs(their_x)[0] ** 3).sum(), their_x, create_graph=True)
    np.testing.assert_allclose(d.detach().numpy(), their_d.detach().numpy(), atol=1e-9)
    (d * d).sum().backward()
    (their_d * their_d).sum().backward()
    pairs = zip([x, *ours.parameters()], [their_x, *theirs.parameters()], strict=True)
    for a, b in pairs:
        got = np.zeros(tuple(b.shape)) if a.grad is None else a.grad.numpy()
        want = np.zeros(tuple(b.shape)) if b.grad is None else b.grad.numpy()
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="Unrecognized RNN mode"):
        nn.RNN(3, 5, nonlinearity="sine")
    with pytest.raises(ValueError, match="proj_size"):
        nn.GRU(3, 5, proj_size=2)
    with pytest.raises(ShapeError, match="last of size 3"):
        nn.GRU(3, 5)(wrap(np.zeros((2, 2, 4), np.float32)))
    with pytest.raises(ShapeError, match="expected a state"):
        nn.GRU(3, 5)(wrap(np.zeros((2, 2, 3), np.float32)), wrap(np.zeros((1, 2, 4), np.float32)))
    assert isinstance(nn.GRU(3, 5, num_layers=2)(wrap(X.astype(np.float32)))[0], Tensor)
    assert repr(nn.LSTM(3, 5, 2)) == "LSTM(3, 5, num_layers=2)"


def test_layers_in_containers_run_in_a_graph() -> None:
    class Read(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.ModuleList([nn.Linear(3, 3), nn.LSTM(3, 4, bidirectional=True)])
            self.ends = nn.ModuleDict({"out": nn.Tanh()})

        def build(self, x: Tensor) -> Any:
            for module in self.steps:
                x = module(x)
            return self.ends["out"](x[0])

    graph = Read()
    x = wrap(X.astype(np.float32))
    linear, lstm = (m.to(nn.Module) for m in graph.steps)
    expected = lstm(linear(x))[0].tanh().detach().numpy()
    np.testing.assert_allclose(graph(x).numpy(), expected, rtol=1e-4, atol=1e-6)
