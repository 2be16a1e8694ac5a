"""Writes of a graph to its variables where these lie on several ranks: optimizers, statistics,
buffers. All ranks run in this process; the reference is eager code on local tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Split
from oneflow.core.tensor_type import TensorType
from oneflow.graph.tracing import trace_build
from oneflow.optim import LAMB, SGD, Adadelta, Adagrad, Adam, RMSprop
from oneflow.tensor.tensor import wrap_global

from .spread import Spread, placed

S0, S1, B, P = Split(0), Split(1), BROADCAST, PARTIAL
STEPS = 3
RNG = np.random.default_rng(3)
X = RNG.standard_normal((STEPS, 8, 5)).astype(np.float32)
Array = Any


# ---- optimizers ----------------------------------------------------------------------------------


class Product(nn.Module):
    """Parameters with less rows than there are ranks, and one of a single element."""

    def __init__(self, put: Callable[[Array], Any]) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        for name, shape in (("w", (3, 5)), ("v", (3, 1)), ("b", (1, 1))):
            array = rng.standard_normal(shape).astype(np.float32)
            setattr(self, name, nn.Parameter(put(array)))

    def forward(self, x: Any) -> Any:
        return ((x @ self.w.t()) @ self.v * self.b).sin()


class Step(nn.Graph):
    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)

    def build(self, x: Any) -> Any:
        out = self.model(x)
        out.sum().backward()
        return out


def clipped(params: Any, order: float) -> Any:
    return [{"params": list(params), "clip_grad_max_norm": 0.3, "clip_grad_norm_type": order}]


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "lamb": lambda p: LAMB(p, lr=0.1, weight_decay=0.1),
    "lamb2": lambda p: LAMB(clipped(p, 2.0), lr=0.1, weight_decay=0.1, adam_w_mode=False),
    "momentum": lambda p: SGD(clipped(p, np.inf), lr=0.1, momentum=0.9),
    "sgd": lambda p: SGD(clipped(p, 1.0), lr=0.1),
    "adam": lambda p: Adam(p, lr=0.05, amsgrad=True),
    "rmsprop": lambda p: RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adadelta": lambda p: Adadelta(p, lr=0.5),
    "adagrad": lambda p: Adagrad(p, lr=0.05),
}
LAYOUTS: list[tuple[tuple[int, ...], NdSbp]] = [
    ((2,), (S0,)),
    ((4,), (S0,)),
    ((4,), (S1,)),
    ((2, 2), (S0, S0)),
    ((2, 2), (S0, S1)),
    ((2, 2), (B, S0)),
    ((4,), (P,)),
    ((2, 2), (S0, P)),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_parameters_wherever_they_lie(
    name: str, layout: tuple[tuple[int, ...], NdSbp]
) -> None:
    """Shards without elements add nothing to norms; sums are added up and written back as sums."""
    hierarchy, nd_sbp = layout
    expected = Product(flow.tensor)
    optimizer = OPTIMIZERS[name](expected.parameters())
    model = Product(lambda array: placed(array, nd_sbp))
    whole = (B,) * len(hierarchy)
    graph = Step(model, OPTIMIZERS[name](model.parameters()))
    spread = Spread(graph, placed(X[0], whole), hierarchy)
    assert all(spread.nodes[f"model.{n}"].outputs[0].sbp == nd_sbp for n in "wvb")
    for x in X:
        optimizer.zero_grad()
        wanted = expected(flow.tensor(x))
        wanted.sum().backward()
        optimizer.clip_grad()
        optimizer.step()
        np.testing.assert_allclose(spread(x), wanted.numpy(), rtol=1e-4, atol=1e-5)
    for n, p in expected.named_parameters():
        found = spread.variable(f"model.{n}")
        np.testing.assert_allclose(found, p.numpy(), rtol=1e-4, atol=1e-5, err_msg=n)


@pytest.mark.parametrize("decoupled", [True, False])
def test_lamb_in_float64_numpy(decoupled: bool, rng: np.random.Generator) -> None:
    """One step of a graph whose parameter has no elements on two of four ranks."""
    w = np.array([[1.0, -2.0, 0.5], [0.3, 0.7, -1.1]])
    x = rng.standard_normal((4, 3))

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(placed(w.copy(), (S0,)))

        def forward(self, x: Any) -> Any:
            return x @ self.w.t()

    model = Linear()
    optimizer = LAMB(model.parameters(), lr=0.1, weight_decay=0.2, adam_w_mode=decoupled)
    spread = Spread(Step(model, optimizer), placed(x, (B,)), (4,))
    spread(x)
    grad = np.tile(x.sum(0), (2, 1)) + (0.0 if decoupled else 0.2) * w
    move = grad / (np.abs(grad) + 1e-8)
    trust = np.linalg.norm(w) / np.linalg.norm(move)
    move += (0.2 if decoupled else 0.0) * w
    np.testing.assert_allclose(spread.variable("model.w"), w - 0.1 * trust * move, rtol=1e-9)


# ---- statistics and buffers ----------------------------------------------------------------------


class Twice(nn.Module):
    """One batch norm that is used twice; its statistics lie as `put` puts them."""

    def __init__(
        self,
        put: Callable[[Array], Any] | None = None,
        whole: Any = None,
        momentum: float | None = 0.1,
    ) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5, momentum=momentum)
        if put is not None:
            self.norm.to_global(*whole)
            for name in ("running_mean", "running_var"):
                setattr(self.norm, name, put(getattr(self.norm, name).numpy()))

    def forward(self, x: Any) -> Any:
        return self.norm(self.norm(x) * 2.0 + 1.0)


class Forward(nn.Graph):
    def __init__(self, model: nn.Module, pieces: int = 1) -> None:
        super().__init__()
        self.model = model
        self.config.set_gradient_accumulation_steps(pieces)

    def build(self, x: Any) -> Any:
        return self.model(x)


@pytest.mark.parametrize("batch", [B, S0, P])
@pytest.mark.parametrize("statistics", [B, S0, P])
def test_statistics_wherever_they_lie(statistics: Any, batch: Any) -> None:
    """Also of a norm that is used twice: its second update goes on from the first."""
    expected = Twice()
    model = Twice(lambda array: placed(array, (statistics,)), (flow.placement("cpu", [0]), B))
    spread = Spread(Forward(model), placed(X[0], (batch,)), (4,))
    for x in X:
        np.testing.assert_allclose(
            spread(x), expected(flow.tensor(x)).numpy(), rtol=1e-4, atol=1e-5
        )
    for name, value in expected.named_buffers():
        found = spread.variable(f"model.{name}")
        np.testing.assert_allclose(found, value.numpy(), rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("pieces", [2, 4])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_micro_batches_write_one_after_the_other(
    momentum: float | None, pieces: int, ranks: int
) -> None:
    """Checks that of each piece both updates come before those of the next one."""
    expected = Twice(momentum=momentum)
    here = flow.placement("cpu", [0]), B
    model = Twice(lambda array: placed(array, (B,)), here, momentum)
    spread = Spread(Forward(model, pieces), placed(X[0], (S0,)), (ranks,), seed=pieces)
    for x in X:
        spread(x)
        held = x.reshape(ranks, pieces, -1, 5)  # a piece has rows of every rank
        for piece in range(pieces):
            expected(flow.tensor(np.concatenate(list(held[:, piece]))))
    for name, value in expected.named_buffers():
        found = spread.variable(f"model.{name}")
        np.testing.assert_allclose(found, value.numpy(), rtol=1e-5, err_msg=name)


class Counter(nn.Module):
    def __init__(self, put: Callable[[Array], Any], size: int) -> None:
        super().__init__()
        self.register_buffer("count", put(np.ones(size, np.float32)))

    def forward(self, x: Any) -> Any:
        self.count.add_(x.sum())
        self.count.mul_(2.0)
        self.count[:1] = 3.0
        self.count[-1:].add_(x.mean())
        return self.count * 1.0


@pytest.mark.parametrize("pieces", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("nd_sbp", [(B,), (S0,), (P,)], ids=str)
def test_buffers_that_are_written_several_times(nd_sbp: NdSbp, size: int, pieces: int) -> None:
    """Each micro-batch goes on from the values of the one before it, also where it has to be
    moved.
    """
    expected = Counter(flow.tensor, size)
    model = Counter(lambda array: placed(array, nd_sbp), size)
    spread = Spread(Forward(model, pieces), placed(X[0], (B,)), (4,), seed=size)
    np.testing.assert_array_equal(model.count.numpy(), np.ones(size))  # tracing writes nothing
    for x in X:
        parts = [expected(flow.tensor(part)).numpy().copy() for part in np.split(x, pieces)]
        np.testing.assert_allclose(spread(x), np.concatenate(parts), rtol=1e-5)
        np.testing.assert_allclose(spread.variable("model.count"), parts[-1], rtol=1e-5)


@pytest.mark.parametrize("pieces", [2, 4])
@pytest.mark.parametrize("size", [6, 33])
def test_pieces_take_turns_at_a_buffer_that_is_summed_in_two_halves(
    size: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half that waits for nobody must not read for the next piece too soon."""
    monkeypatch.setattr("oneflow.scheduler.compiler.lower.group_segments.FLAT_TWO_PHASE_NBYTES", 1)
    test_buffers_that_are_written_several_times((P,), size, pieces)


class Lagging(nn.Module):
    """Uses the values of a buffer before it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", flow.ones(1))
        self.register_buffer("calls", flow.zeros(1))

    def forward(self, x: Any) -> Any:
        before = self.scale * 2.0
        self.scale.mul_(0.5).add_(x.mean())
        self.calls.add_(1)
        return x * before


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_a_buffer_is_read_anew_by_each_micro_batch(pieces: int) -> None:
    expected, model = Lagging(), Lagging()
    graph = Forward(model, pieces)
    for x in X:
        wanted = [expected(flow.tensor(part)).numpy() for part in np.split(x, pieces)]
        np.testing.assert_array_equal(graph(flow.tensor(x)).numpy(), np.concatenate(wanted))
    np.testing.assert_array_equal(model.scale.numpy(), expected.scale.numpy())
    assert model.calls.item() == expected.calls.item() == pieces * STEPS


PARTS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda x: x[2:6],
    "steps": lambda x: x[1:7:2],
    "flip": lambda x: flow.flip(x, [0, 1]),
    "roll": lambda x: flow.roll(x, (3, -1), (0, 1)),
    "pad": lambda x: nn.functional.pad(x, (1, 0, 1, 2), value=3.0),
    "cat": lambda x: flow.cat([x[2:5], x], 0),
}


@pytest.mark.parametrize("nd_sbp", [(S0,), (S0, S1), (S0, S0)], ids=str)
@pytest.mark.parametrize("name", PARTS)
def test_ops_that_move_positions_run_on_parts_of_shards(name: str, nd_sbp: NdSbp) -> None:
    class Move(nn.Graph):
        def build(self, x: Any) -> Any:
            return PARTS[name](x)

    spread = Spread(Move(), placed(X[0], nd_sbp), (3,) if len(nd_sbp) == 1 else (2, 2))
    assert spread.plan.graph.of_kind("parts") and not spread.plan.graph.of_kind("boxing")
    np.testing.assert_array_equal(spread(X[0]), PARTS[name](flow.tensor(X[0])).numpy())


@pytest.mark.parametrize("kept", [16, 0], ids=["half", "nothing"])
def test_a_shard_is_reshaped_as_the_whole_that_it_is_part_of(kept: int) -> None:
    """Whether a reshape copies is asked of the whole; a rank has half of it, or nothing."""
    place = Placement("cpu", [0, 1])
    part = np.zeros(kept, np.float32)
    bias = wrap_global(part, TensorType((32,), flow.float32), place, (Split(0),))

    class Reshape(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Module()
            self.model.register_buffer("bias", bias)

        def build(self, x: Any) -> Any:
            return x, self.model.bias.reshape(1, 1, 32)

    g = Reshape()
    trace = trace_build(g._spec, g.build, ((flow.ones(2),), {}))[0]
    assert trace.graph.of_kind("reshape")[0].outputs[0].type.shape == (1, 1, 32)


# ---- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("hierarchy", [(2,), (3,)], ids=str)
def test_attention_trains_on_a_batch_that_is_spread(hierarchy: tuple[int, ...]) -> None:
    """Heads are cut from and put back into a dim beside the split one; 4 rows lie on 2 and 3
    ranks.
    """

    def made() -> nn.Module:
        flow.manual_seed(0)
        return nn.TransformerEncoderLayer(8, 2, 6, 0.0, batch_first=True, norm_first=True)

    batches = np.random.default_rng(1).standard_normal((STEPS, 4, 3, 8)).astype(np.float32)
    expected = made()
    optimizer = SGD(expected.parameters(), lr=0.01)
    placed_model = made()
    for x in [*placed_model.parameters()]:
        x.data = placed(x.numpy(), (B,))
    example = placed(batches[0], (S0,))
    spread = Spread(Step(placed_model, SGD(placed_model.parameters(), lr=0.01)), example, hierarchy)
    for batch in batches:
        optimizer.zero_grad()
        out = expected(flow.tensor(batch))
        out.sum().backward()
        optimizer.step()
        np.testing.assert_allclose(spread(batch), out.numpy(), rtol=1e-4, atol=1e-5)
    for name, parameter in expected.named_parameters():
        found = spread.variable(f"model.{name}")
        np.testing.assert_allclose(found, parameter.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
