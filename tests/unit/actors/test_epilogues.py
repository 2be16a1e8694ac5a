"""Products with epilogues: which ops join one, and that values stay. A library that can compute
every product stands in for cuBLASLt; the kernel computes step by step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

import oneflow as flow
from oneflow.actors import rank_memory, segment
from oneflow.actors.epilogues import join_products
from oneflow.actors.fusing import Fact, table
from oneflow.core.config import current_config, set_config
from oneflow.nn.module import Module

F = flow.nn.functional
WIDTH, ROWS = 16, 24
Array = np.ndarray[Any, Any]
Words = list[tuple[str, ...]]


@pytest.fixture(autouse=True)
def _own_config() -> Iterator[None]:
    before = current_config()
    yield
    set_config(before)


def _joined_by(
    monkeypatch: pytest.MonkeyPatch, finds: Callable[..., object]
) -> list[tuple[str, ...]]:
    """Lets segments join products where `finds` says so; returns the epilogues of those made."""
    made: list[tuple[str, ...]] = []

    def noted(*args: Any) -> Any:
        nodes, facts = join_products(*args)
        made.extend(b.node.attrs["epilogue"] for b in nodes if b.node.op == "product")
        return nodes, facts

    monkeypatch.setattr(segment, "product_finder", lambda device: finds)
    monkeypatch.setattr(segment, "join_products", noted)
    monkeypatch.setattr(rank_memory, "_segments", WeakKeyDictionary())  # none made before
    return made


class Block(Module):
    """x + down(gelu(up(x))), a ReLU between, and a product with a scale."""

    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate
        self.up, self.down = flow.nn.Linear(WIDTH, 32), flow.nn.Linear(32, WIDTH)
        self.mid = flow.nn.Linear(WIDTH, WIDTH)
        self.last = flow.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        x = x + self.down(F.gelu(self.up(x), approximate=self.approximate))
        return self.last(F.relu(self.mid(x))) * 0.5


def _train(approximate: str, fuses: bool) -> tuple[list[Array], list[Fact]]:
    """Losses and weights of three steps, and the joined actors."""
    set_config(replace(current_config(), fuses_kernels=fuses))
    flow.manual_seed(5)
    model = Block(approximate)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)

    class Step(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x: Any) -> Any:
            loss = self.model(x).square().sum()
            loss.backward()
            return loss

    step, rng = Step(), np.random.default_rng(2)
    losses = [
        step(flow.tensor(rng.standard_normal((2, ROWS // 2, WIDTH)), dtype=flow.float32)).numpy()
        for _ in range(3)
    ]
    assert step._spec.plans.now is not None
    segments = step._spec.plans.now.job.bound.memory.segments.values()
    weights = [p.numpy() for p in model.parameters()]
    return losses + weights, [f for s in segments for f in s.facts]


ALWAYS: Words = [
    ("bias", "added"),
    ("bias", "relu"),
    ("sum_a",),  # of the gradients of weights and of biases
]


@pytest.mark.parametrize(
    ("approximate", "own"),
    [("tanh", [("bias", "gelu", "saved"), ("gelu_grad", "sum_out")]), ("none", [("bias",)])],
)
def test_training_joins_products_and_keeps_its_values(
    approximate: str, own: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = _train(approximate, False)
    made = _joined_by(monkeypatch, lambda *asked: True)
    joined, facts = _train(approximate, True)
    assert set(made) == {*ALWAYS, (), *own}  # (): the product with a scale alone
    for one, other in zip(joined, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
    text = table(facts, Counter())
    assert "linear + gelu, by cuBLASLt" in text or approximate == "none"
    assert "linear + add, by cuBLASLt" in text


def test_what_the_library_refuses_stays_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = _train("tanh", False)
    made = _joined_by(monkeypatch, lambda types, turned, scale, words: words == ("bias",))
    joined, facts = _train("tanh", True)
    assert set(made) == {("bias",)}
    assert any(f.reason == "cuBLASLt has no product with it" and f.ops == ("gelu",) for f in facts)
    for one, other in zip(joined, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def _graph(build: Callable[..., Any], *arrays: Array) -> list[Array]:
    class Chain(flow.nn.Graph):
        def build(self, *xs: Any) -> Any:
            return build(*xs)

    made = Chain()(*(flow.tensor(x, dtype=flow.float32) for x in arrays))
    return [x.numpy() for x in (made if isinstance(made, tuple) else (made,))]


def _gelu(x: Array) -> Array:
    out: Array = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return out


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Words]] = {
    "the input of gelu is an output": (
        lambda x, w, r: (lambda z: (z, F.gelu(z, approximate="tanh")))(x @ w),
        lambda x, w, r: (x @ w, _gelu(x @ w)),
        [],
    ),
    "two that read the product": (
        lambda x, w, r: (lambda z: (z + r) * (z - r))(x @ w),
        lambda x, w, r: (x @ w + r) * (x @ w - r),
        [],
    ),
    "a residual made later": (
        lambda x, w, r: (lambda z: z + flow.tanh(r))(x @ w),
        lambda x, w, r: x @ w + np.tanh(r),
        [("added",)],
    ),
    "bias and residual apart": (
        lambda x, w, r: F.relu(x @ w * 3.0 + r[0] + r),
        lambda x, w, r: np.maximum(x @ w * 3.0 + r[0] + r, 0),
        [("bias", "added", "relu")],
    ),
    "the product with itself": (
        lambda x, w, r: (lambda z: z + z)(x @ w),
        lambda x, w, r: 2 * (x @ w),
        [],
    ),
    "what stretches the product": (
        lambda x, w, r: (x[:1] @ w) + r,
        lambda x, w, r: (x[:1] @ w) + r,
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_chain_runs_only_where_its_values_are_right(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, reference, words = CASES[name]
    made = _joined_by(monkeypatch, lambda *asked: True)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s) for s in ((ROWS, WIDTH), (WIDTH, WIDTH), (ROWS, WIDTH))]
    wanted = reference(*(x.astype(np.float32).astype(np.float64) for x in inputs))
    got = _graph(build, *inputs)
    assert made == words
    for one, exact in zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        np.testing.assert_allclose(one, exact, rtol=1e-5, atol=1e-5)
