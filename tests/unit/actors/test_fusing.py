"""Chains of ops in one kernel: the values of the ops one by one, and of float64 NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.actors.fusing import Fact, table
from oneflow.core.config import current_config, set_config

F = flow.nn.functional
ROWS, COLUMNS = 24, 130  # enough for compiled loops; no multiple of any vector's length
Array = np.ndarray[Any, Any]
Made = list[Array]


@pytest.fixture(autouse=True)
def _own_config() -> Iterator[None]:
    before = current_config()
    yield
    set_config(before)


def arrays(count: int, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((ROWS, COLUMNS)) for _ in range(count)]


def run(
    build: Callable[..., Any], inputs: list[Array], fuses: bool, dtype: Any = None, steps: int = 1
) -> tuple[Made, list[Fact]]:
    """The results of the last of some steps of a graph, and the fused ops."""
    set_config(replace(current_config(), fuses_kernels=fuses))
    flow.manual_seed(3)

    class Chain(flow.nn.Graph):  # type: ignore[misc,name-defined]
        def build(self, *xs: Any) -> Any:
            return build(*xs)

    graph = Chain()
    given = [flow.tensor(x, dtype=dtype or flow.float32) for x in inputs]
    for _ in range(steps):
        made = graph(*given)
    made = made if isinstance(made, tuple) else (made,)
    segments = graph._spec.plans.now.job.bound.memory.segments.values()
    return [x.float().numpy() for x in made], [f for s in segments for f in s.facts]


def groups(facts: list[Fact]) -> list[tuple[str, ...]]:
    return [f.ops for f in facts if not f.reason]


def normal(x: Array, gamma: Array, beta: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x: Array) -> Array:
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


CHAINS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "elementwise": (
        lambda a, b, c: F.relu(a * b + c) - b,
        lambda a, b, c: np.maximum(a * b + c, 0) - b,
        1,
    ),
    "broadcast": (
        lambda a, b, c: F.gelu(a + b[0]) * c[:, :1],
        lambda a, b, c: gelu(a + b[0]) * c[:, :1],
        1,
    ),
    "two results": (
        lambda a, b, c: ((a + b), flow.tanh(a + b) * c),
        lambda a, b, c: ((a + b), np.tanh(a + b) * c),
        1,
    ),
    "residual and norm": (
        lambda a, b, c: (a + b, F.layer_norm(a + b, (COLUMNS,), c[0], c[1])),
        lambda a, b, c: (a + b, normal(a + b, c[0], c[1])),
        1,
    ),
    "norm and activation": (
        lambda a, b, c: flow.tanh(F.layer_norm(a * b, (COLUMNS,), c[0], c[1]) + a),
        lambda a, b, c: np.tanh(normal(a * b, c[0], c[1]) + a),
        1,
    ),
    "masked softmax": (
        lambda a, b, c: flow.softmax(a * 0.25 + b, dim=-1) * c,
        lambda a, b, c: softmax(a * 0.25 + b) * c,
        1,
    ),
    "two norms": (
        lambda a, b, c: F.layer_norm(flow.softmax(a + b, dim=-1) + c, (COLUMNS,)),
        lambda a, b, c: normal(softmax(a + b) + c, np.ones(1), np.zeros(1)),
        1,
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_one_kernel_with_the_values_of_their_ops(name: str) -> None:
    build, reference, count = CHAINS[name]
    inputs = arrays(3)
    fused, facts = run(build, inputs, True)
    plain, none = run(build, inputs, False)
    assert len(groups(facts)) == count and not none
    wanted = reference(*(x.astype(np.float32).astype(np.float64) for x in inputs))
    for one, other, exact in zip(
        fused, plain, wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(one, exact, rtol=1e-5, atol=1e-5)


REDUCED: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[str, ...]]]] = {
    "all": (
        lambda a, b: ((a - b) * a).sum(),
        lambda a, b: ((a - b) * a).sum(),
        [("sub", "mul", "reduce_sum")],
    ),
    "rows": (
        lambda a, b: flow.tanh(a * b).sum(-1),
        lambda a, b: np.tanh(a * b).sum(-1),
        [("mul", "tanh", "reduce_sum")],
    ),
    "kept dim": (
        lambda a, b: (a + b).amax(-1, keepdim=True),
        lambda a, b: (a + b).max(-1, keepdims=True),
        [("add", "reduce_max")],
    ),
    "mean, and what it is of": (
        lambda a, b: (lambda y: (y, y.mean(), y.sum(1)))(F.relu(a) + b),
        lambda a, b: (lambda y: (y, y.mean(), y.sum(1)))(np.maximum(a, 0) + b),
        [("relu", "add", "reduce_sum")],
    ),
    "three dims": (
        lambda a, b: (a * b).reshape(4, 6, -1).square().sum((0, 2)),
        lambda a, b: np.square((a * b).reshape(4, 6, -1)).sum((0, 2)),
        [("square", "reduce_sum")],
    ),
    "a norm of a norm": (
        lambda a, b: F.layer_norm(a * b, (COLUMNS,)).square().sum(-1),
        lambda a, b: np.square(normal(a * b, np.ones(1), np.zeros(1))).sum(-1),
        [("mul", "layer_norm", "square", "reduce_sum")],
    ),
    "no dim": (lambda a, b: (a[0, 0] * b[0, 0]).sum(), lambda a, b: a[0, 0] * b[0, 0], []),
    "columns": (lambda a, b: (a * b).sum(0), lambda a, b: (a * b).sum(0), []),
    "nothing to join": (lambda a, b: a.sum() + b.amax(), lambda a, b: a.sum() + b.max(), []),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", REDUCED)
def test_a_reduction_ends_a_chain(name: str, dtype: str) -> None:
    build, reference, joined = REDUCED[name]
    inputs = arrays(2)
    kind = getattr(flow, dtype)
    fused, facts = run(build, inputs, True, kind)
    plain, _ = run(build, inputs, False, kind)
    assert groups(facts) == joined
    made = reference(*(x.astype(dtype).astype(np.float64) for x in inputs))
    wanted = made if isinstance(made, tuple) else (made,)
    for one, other, exact in zip(fused, plain, wanted, strict=True):
        assert one.shape == other.shape == np.shape(exact)
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(one, exact, rtol=2e-5, atol=2e-5)


def rms_norm(x: Any, weight: Any) -> Any:
    """A norm that users write, with its factors, which the backward pass reads."""
    factors = flow.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    return x * factors * weight, factors


def standardized(x: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred / flow.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


def exact_rms_norm(x: Array, weight: Array) -> tuple[Array, Array]:
    factors = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x * factors * weight, factors


def written_softmax(x: Any) -> Any:
    e = flow.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


WRITTEN: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "root mean square": (
        lambda a, b: rms_norm(a + b, b[0]),
        lambda a, b: exact_rms_norm(a + b, b[0]),
        1,
    ),
    "standardized": (
        lambda a, b: standardized(a * b),
        lambda a, b: normal(a * b, np.ones(1), np.zeros(1)),
        1,
    ),
    "softmax": (lambda a, b: written_softmax(a + b), lambda a, b: softmax(a + b), 1),
    "softmax of a softmax": (  # two, because each would compute the other's exp again
        lambda a, b: written_softmax(written_softmax(a + b)),
        lambda a, b: softmax(softmax(a + b)),
        2,
    ),
    "factors from outside": (
        lambda a, b: (a * b) * (b[:, :1] * 2.0 + (a * b).sum(-1, keepdim=True)),
        lambda a, b: (a * b) * (b[:, :1] * 2.0 + (a * b).sum(-1, keepdims=True)),
        1,
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", WRITTEN)
def test_norms_as_users_write_them_are_one_kernel(name: str, dtype: str) -> None:
    build, reference, count = WRITTEN[name]
    inputs = arrays(2)
    kind = getattr(flow, dtype)
    fused, facts = run(build, inputs, True, kind)
    plain, _ = run(build, inputs, False, kind)
    assert len(groups(facts)) == count
    made = reference(*(x.astype(dtype).astype(np.float64) for x in inputs))
    wanted = made if isinstance(made, tuple) else (made,)
    for one, other, exact in zip(fused, plain, wanted, strict=True):
        assert one.shape == other.shape == exact.shape
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(one, exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_half_precision_are_rounded_once(dtype: str) -> None:
    def build(a: Any, b: Any) -> Any:
        return (a * b).sum(-1), (a * b).sum()

    kind = getattr(flow, dtype)
    (rows, _), facts = run(build, arrays(2), True, kind)
    assert groups(facts) == [("mul", "reduce_sum")]
    exact = [flow.tensor(x, dtype=kind).double().numpy() for x in arrays(2)]
    unit = 2.0**-10 if dtype == "float16" else 2.0**-7
    np.testing.assert_allclose(rows, (exact[0] * exact[1]).sum(-1), rtol=unit, atol=COLUMNS * unit)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CHAINS)
def test_half_precision_is_rounded_at_the_end_only(name: str, dtype: str) -> None:
    build, reference, _ = CHAINS[name]
    kind = getattr(flow, dtype)
    inputs = [flow.tensor(x).to(kind).float().numpy() for x in arrays(3)]
    fused, facts = run(build, inputs, True, kind)
    plain, _ = run(build, inputs, False, kind)
    wanted = reference(*(x.astype(np.float64) for x in inputs))
    one_place = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    assert groups(facts) or dtype == "float16"
    for one, other, exact in zip(
        fused, plain, wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        worst = np.abs(one - exact).max()
        assert worst <= one_place * max(1.0, np.abs(exact).max())
        assert worst <= np.abs(other - exact).max() * 1.5 + 1e-6


def layers() -> Any:
    nn = flow.nn
    return nn.Sequential(
        nn.Linear(COLUMNS, 96), nn.LayerNorm(96), nn.GELU(), nn.Dropout(0.3),
        nn.Linear(96, 96), nn.Tanh(), nn.LayerNorm(96), nn.Linear(96, 10),
    )  # fmt: skip


class Train(flow.nn.Graph):  # type: ignore[misc,name-defined]
    def __init__(self, make: Callable[[], Any] = layers) -> None:
        super().__init__()
        flow.manual_seed(0)
        self.model = make()
        self.add_optimizer(flow.optim.AdamW(self.model.parameters(), lr=1e-2))

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


class Written(flow.nn.Module):  # type: ignore[misc,name-defined]
    """A block with norms and a softmax of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = flow.nn.Linear(COLUMNS, COLUMNS)
        self.last = flow.nn.Linear(COLUMNS, 10)
        self.weight = flow.nn.Parameter(flow.ones(COLUMNS))

    def forward(self, x: Any) -> Any:
        x = x + self.first(rms_norm(x, self.weight)[0])
        return self.last(F.silu(x) * written_softmax(standardized(x)))


@pytest.mark.parametrize("make", [layers, Written])
def test_a_step_of_training_is_that_of_the_ops_one_by_one(make: Callable[[], Any]) -> None:
    losses = []
    for fuses in (False, True):
        set_config(replace(current_config(), fuses_kernels=fuses))
        graph = Train(make)
        x = flow.tensor(arrays(1)[0], dtype=flow.float32)
        y = flow.tensor(np.arange(ROWS) % 10)
        losses.append([float(graph(x, y).numpy()) for _ in range(6)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[1][-1] < losses[1][0]


def test_dropout_in_a_chain_draws_what_it_draws_alone() -> None:
    def build(a: Any, b: Any, c: Any) -> Any:
        x = F.dropout(a * b, 0.4) + c
        return x, F.layer_norm(x, (COLUMNS,))

    inputs = arrays(3)
    fused, facts = run(build, inputs, True, steps=3)
    plain, _ = run(build, inputs, False, steps=3)
    assert groups(facts) == [("mul", "dropout", "add", "layer_norm")]
    for one, other in zip(fused, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    kept = np.abs(fused[0] - inputs[2]) > 1e-5
    assert 0.5 < kept.mean() < 0.7


def test_what_is_overwritten_meanwhile_is_read_before() -> None:
    def build(a: Any, b: Any, c: Any) -> Any:
        y = a * 1.0
        first = y + b  # reads y before it is overwritten
        y.add_(c)
        return flow.tanh(first) * y

    a, b, c = arrays(3)
    fused, _ = run(build, [a, b, c], True)
    np.testing.assert_allclose(fused[0], np.tanh(a + b) * (a + c), rtol=1e-4, atol=1e-5)


def test_a_value_that_a_product_needs_is_made_before_the_product() -> None:
    def build(a: Any, b: Any, c: Any) -> Any:
        x = a + b
        y = flow.matmul(x, c.T)  # stands between x and the second reader of x
        return F.relu(x) * 2.0, y

    a, b, c = arrays(3)
    fused, facts = run(build, [a, b, c], True)
    np.testing.assert_allclose(fused[0], np.maximum(a + b, 0) * 2, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(fused[1], (a + b) @ c.T, rtol=1e-4, atol=1e-4)
    assert all("add" not in ops for ops in groups(facts))
    assert "matmul reads its input before it" in {f.reason for f in facts}


def test_costly_functions_are_not_repeated_in_passes_over_a_row() -> None:
    def build(a: Any, b: Any, c: Any) -> Any:
        return flow.softmax(flow.tanh(a) * b, dim=-1)

    a, b, c = arrays(3)
    fused, facts = run(build, [a, b, c], True)
    np.testing.assert_allclose(fused[0], softmax(np.tanh(a) * b), rtol=1e-5, atol=1e-6)
    assert groups(facts) == [("tanh", "mul")]
    assert "tanh would be computed again in each pass over a row" in {f.reason for f in facts}


def test_bias_activation_and_residual_are_one_kernel_over_the_product() -> None:
    def build(a: Any, b: Any, c: Any) -> Any:
        return F.gelu(F.linear(a, b[:COLUMNS], c[0])) + a

    inputs = [np.concatenate([x] * 6)[:COLUMNS] / 8 for x in arrays(3)]
    fused, facts = run(build, inputs, True)
    a, b, c = inputs
    np.testing.assert_allclose(fused[0], gelu(a @ b.T + c[0]) + a, rtol=1e-5, atol=1e-5)
    assert groups(facts) == [("add", "gelu", "add")]


def test_a_layer_reads_what_it_needs_before_its_bias_joins_a_chain() -> None:
    def build(a: Any, b: Any, c: Any) -> Any:
        x = F.relu(a * 2.0)
        return x + F.linear(x, b, c[0])  # the product needs x, and so does the sum behind it

    inputs = [np.concatenate([x] * 6)[:COLUMNS] / 8 for x in arrays(3)]
    fused, facts = run(build, inputs, True)
    a, b, c = inputs
    x = np.maximum(a * 2, 0)
    np.testing.assert_allclose(fused[0], x + x @ b.T + c[0], rtol=1e-5, atol=1e-5)
    assert groups(facts) == [("scalar_mul", "relu"), ("add", "add")]


class Unrolled(flow.nn.Graph):  # type: ignore[misc,name-defined]
    """A recurrent network of 20 steps, each of which gives its weight a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = flow.nn.Linear(96, 96, bias=False)
        start = np.random.default_rng(1).standard_normal((96, 96)) / 12
        self.layer.weight.data.copy_(flow.tensor(start, dtype=flow.float32))
        self.add_optimizer(flow.optim.SGD(self.layer.parameters(), lr=1.0))

    def build(self, x: Any) -> Any:
        for _ in range(20):
            x = flow.tanh(self.layer(x))
        x.sum().backward()
        return x


def test_a_sum_over_steps_keeps_no_more_alive_than_the_ops_one_by_one() -> None:
    x = np.random.default_rng(2).standard_normal((4, 96))
    bounds, facts, weights = [], [], []
    for fuses in (False, True):
        set_config(replace(current_config(), fuses_kernels=fuses))
        graph = Unrolled()
        start = graph.layer.weight.to(flow.Tensor).numpy().astype(np.float64)
        graph(flow.tensor(x, dtype=flow.float32))
        (segment,) = graph._spec.plans.now.job.bound.memory.segments.values()
        bounds.append(segment.scratch_bound)
        facts = segment.facts
        weights.append(graph.layer.weight.to(flow.Tensor).numpy())
    states = [x]
    for _ in range(20):
        states.append(np.tanh(states[-1] @ start.T))
    slope, gradient = np.ones_like(x), np.zeros_like(start)
    for before, after in zip(states[-2::-1], states[:0:-1], strict=True):
        slope = slope * (1 - after**2)
        gradient += slope.T @ before
        slope = slope @ start
    for weight in weights:
        np.testing.assert_allclose(weight, start - gradient, rtol=1e-4, atol=1e-4)
    assert bounds[1] <= bounds[0]
    kept = [f.reason for f in facts if f.ops == ("add",) and "alive" in f.reason]
    assert kept and all(reason.startswith("a kernel of both keeps ") for reason in kept)


class Split(flow.nn.Graph):  # type: ignore[misc,name-defined]
    """Gradients of parts of a tensor. parts: (start, stop) of columns, each with its own factor."""

    def __init__(self, parts: list[tuple[int, int]]) -> None:
        super().__init__()
        self.parts = parts
        self.layer = flow.nn.Linear(COLUMNS, ROWS, bias=False)
        self.layer.weight.data.copy_(flow.tensor(arrays(1)[0], dtype=flow.float32))
        self.add_optimizer(flow.optim.SGD(self.layer.parameters(), lr=1.0))

    def build(self, x: Any) -> Any:
        y = self.layer.weight * 1.0
        loss = sum((y[:, a:b] * x[:, a:b]).sum() * (k + 1.0) for k, (a, b) in enumerate(self.parts))
        loss.backward()
        return loss


@pytest.mark.parametrize("joins", [True, False])
def test_gradients_of_all_parts_are_concatenated(joins: bool) -> None:
    parts = [(0, 50), (50, 60), (60, COLUMNS)] if joins else [(0, 50), (40, 60), (60, COLUMNS)]
    graph, x = Split(parts), arrays(2, seed=5)[1]
    graph(flow.tensor(x, dtype=flow.float32))
    wanted = arrays(1)[0].copy()
    for k, (a, b) in enumerate(parts):
        wanted[:, a:b] -= x[:, a:b] * (k + 1.0)
    np.testing.assert_allclose(
        graph.layer.weight.to(flow.Tensor).numpy(), wanted, rtol=1e-5, atol=1e-5
    )
    segments = graph._spec.plans.now.job.bound.memory.segments.values()
    made = [f.ops for s in segments for f in s.facts if "slice_scatter" in f.ops]
    assert made == ([("slice_scatter",) * 3 + ("add",) * 2] if joins else [])


@pytest.mark.parametrize("gap", [0, 1])
def test_arrays_padded_beside_each_other_are_concatenated(gap: int) -> None:
    a, b = arrays(2)

    def build(a: Any, b: Any) -> Any:
        return F.pad(a, (0, COLUMNS + gap)) + F.pad(b, (COLUMNS + gap, 0))

    (out,), facts = run(build, [a, b], True)
    between = np.zeros((len(a), gap))
    np.testing.assert_array_equal(out, np.hstack([a, between, b]).astype(np.float32))
    assert [f.ops for f in facts if "pad" in f.ops] == ([] if gap else [("pad", "pad", "add")])


def test_small_arrays_stay_in_numpy() -> None:
    def build(a: Any, b: Any) -> Any:
        return F.relu(a + b) * 2.0

    _, facts = run(build, [x[:2] for x in arrays(2)], True)
    assert facts == []


def test_table_says_what_was_fused_and_why_not() -> None:
    def build(a: Any, b: Any, c: Any) -> Any:
        return flow.softmax(flow.tanh(a) * b, dim=-1)

    _, facts = run(build, arrays(3), True)
    from collections import Counter

    lines = table(facts, Counter({"matmul": 2})).splitlines()
    assert lines[0] == "fusion: 2 ops in 1 kernels"
    assert (
        lines[1].startswith("  tanh + mul  float32[24, 130]  (") and "test_fusing.py:" in lines[1]
    )
    assert lines[3].startswith("  softmax: tanh would be computed again")
    assert lines[-1] == "no formula: matmul 2"
