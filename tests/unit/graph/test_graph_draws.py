"""A graph draws the random numbers that its build would draw eagerly: same values, same calls of
the generators, for any number of ranks, layout and number of micro-batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.actors.in_process import InProcessCluster
from oneflow.actors.random_rows import RandomRows, random_rows
from oneflow.boxing.boxes import shard_box
from oneflow.boxing.collectives.in_process import InProcessGroup
from oneflow.core.draws import Draws, Randomness
from oneflow.core.errors import DesyncError, GraphError
from oneflow.core.graph import LogicalGraph, Node
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.core.plan import Plan
from oneflow.core.sbp import BROADCAST, Split
from oneflow.graph.draws import GraphRandomness
from oneflow.graph.tracing import trace_build
from oneflow.scheduler.compiler.pipeline import compile_graph

ROWS, WIDTH = 8, 6
RNG = np.random.default_rng(4)
X = [RNG.standard_normal((ROWS, WIDTH)).astype(np.float32) for _ in range(4)]


class Noisy(nn.Module):
    """Dropout twice, noise from two generators, a random choice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 10), nn.Linear(10, WIDTH)
        self.drop, self.own = nn.Dropout(0.4), flow.Generator()

    def forward(self, x: Any) -> Any:
        hidden = self.drop(F.relu(self.first(x)))
        hidden = hidden + 0.1 * flow.randn(*hidden.shape, generator=self.own)
        chosen = flow.bernoulli(flow.full(hidden.shape, 0.8))
        return self.drop(self.last(hidden * chosen)) * flow.rand(1)


def made() -> Noisy:
    flow.manual_seed(1)
    return Noisy()


class Step(nn.Graph):
    def __init__(self, model: nn.Module, pieces: int) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1))
        self.config.set_gradient_accumulation_steps(pieces)

    def build(self, x: Any) -> Any:
        out = self.model(x)
        (out * out).mean().backward()
        return out


def eager(model: nn.Module, pieces: int) -> Callable[[Any], Any]:
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        outs = [model(flow.tensor(part)) for part in np.split(x, pieces)]
        for out in outs:
            ((out * out).mean() / pieces).backward()
        optimizer.step()
        return np.concatenate([out.numpy() for out in outs])

    return step


def between(i: int, own: flow.Generator) -> list[Any]:
    """Draws of others between two calls of a graph."""
    return [flow.randn(2).numpy(), flow.rand(i, generator=own).numpy()]


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_calls_of_a_graph_and_of_its_build_draw_the_same(pieces: int) -> None:
    expected, model = made(), made()
    graph, step = Step(model, pieces), eager(expected, pieces)
    found: dict[str, list[Any]] = {}
    runs = {
        "graph": (model, lambda x: graph(flow.tensor(x)).numpy().copy()),
        "eager": (expected, step),
    }
    for name, (noisy, run) in runs.items():
        flow.manual_seed(7)
        noisy.own.manual_seed(8)
        found[name] = []
        for i, x in enumerate(X):
            found[name] += [run(x), *between(i, noisy.own)]
    for a, b in zip(found["graph"], found["eager"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(a == 0, b == 0)  # the very masks
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(
            value.numpy(), expected.state_dict()[name].numpy(), rtol=1e-5, atol=1e-7
        )


def test_without_micro_batches_the_bits_are_equal() -> None:
    layer = Noisy()
    flow.manual_seed(3)
    wanted = [layer(flow.tensor(x)).numpy() for x in X]
    flow.manual_seed(3)

    class Forward(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def build(self, x: Any) -> Any:
            return self.layer.drop(x)

    drop = Forward()
    flow.manual_seed(3)
    found = [drop(flow.tensor(x)).numpy().copy() for x in X]
    flow.manual_seed(3)
    np.testing.assert_array_equal(found, [layer.drop(flow.tensor(x)).numpy() for x in X])
    assert not np.array_equal(wanted[0], wanted[1])


FIRST_VALUES: dict[str, Callable[[Any], Any]] = {
    "normal": lambda w: nn.init.normal_(w, 1.0, 2.0),
    "uniform": nn.init.uniform_,
    "xavier": nn.init.xavier_uniform_,
    "kaiming": nn.init.kaiming_normal_,
    "truncated": lambda w: nn.init.trunc_normal_(w, 0.5, 2.0, -1.0, 1.0),
    "constant": lambda w: nn.init.constant_(w, 3.0),
    "eye": nn.init.eye_,
    "orthogonal": nn.init.orthogonal_,
}


@pytest.mark.parametrize("pieces", [1, 2])
def test_first_values_are_those_of_eager_calls(pieces: int) -> None:
    """New ones at every step, in tensors that build() makes and in buffers."""
    layer = nn.Module()
    layer.register_buffer("seen", flow.zeros(4, 5))

    def build(module: Any, x: Any) -> Any:
        made = [x @ fill(flow.empty(4, 5)) for fill in FIRST_VALUES.values()]
        return [*made, x @ nn.init.normal_(module.seen)]

    class Fills(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer
            self.config.set_gradient_accumulation_steps(pieces)

        def build(self, x: Any) -> Any:
            return build(self.layer, x)

    graph, x = Fills(), flow.ones(4, 4)
    flow.manual_seed(5)
    found = [[y.numpy() for y in graph(x)] for _ in range(2)]
    kept, after = layer.seen.numpy().copy(), flow.rand(2).numpy()
    flow.manual_seed(5)
    for values in found:
        parts = [build(layer, part) for part in x.chunk(pieces)]
        for value, *wanted in zip(values, *parts, strict=True):
            whole = np.concatenate([y.numpy() for y in wanted])
            np.testing.assert_allclose(value, whole, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(layer.seen.numpy(), kept)
    np.testing.assert_array_equal(flow.rand(2).numpy(), after)


def test_tracing_draws_nothing() -> None:
    model = Noisy()
    graph = Step(model, 2)
    before = flow.get_rng_state().numpy(), model.own.get_state().numpy()
    graph._compile(flow.tensor(X[0]))
    np.testing.assert_array_equal(flow.get_rng_state().numpy(), before[0])
    np.testing.assert_array_equal(model.own.get_state().numpy(), before[1])


def test_the_graph_is_the_same_under_every_seed() -> None:
    texts = []
    for seed in (1, 2):
        flow.manual_seed(seed)
        g = Step(made(), 2)
        trace = trace_build(g._spec, g.build, ((flow.tensor(X[0]),), {}))[0]
        texts.append(str(trace.graph))
    assert texts[0].split("\n", 1)[1] == texts[1].split("\n", 1)[1]  # but for the name


def test_a_generator_cannot_be_seeded_in_build() -> None:
    @nn.Graph.trace
    def seeded(x: Any) -> Any:
        flow.manual_seed(1)
        return F.dropout(x)

    with pytest.raises(GraphError, match="seed it before the graph is called"):
        seeded(flow.ones(3))

    own = flow.Generator()

    @nn.Graph.trace
    def moved(x: Any) -> Any:
        own.set_state(flow.Generator().get_state())
        return x + flow.randn(3, generator=own)

    own.manual_seed(99)
    with pytest.raises(GraphError, match="set it before the graph is called"):
        moved(flow.ones(3))
    assert own.initial_seed() == 99


RANDOM = "System-Train-RandomState"


class Own:
    """A generator that is not the default one."""

    generator = flow.Generator()


@pytest.mark.parametrize(
    ("draws", "holds"),
    [
        (lambda x: x * 2, False),
        (lambda x: x + flow.randn(3, generator=Own.generator), False),
        (lambda x: x + flow.randn(3), True),
        (lambda x: x + flow.randn(3, generator=Own.generator) + flow.rand(3), True),
        (lambda x: x[flow.randperm(3)], True),
    ],
)
def test_a_state_holds_the_default_generator_if_the_graph_calls_it(draws: Any, holds: bool) -> None:
    graph = nn.Graph.trace(draws)
    graph(flow.ones(3))
    state = graph.state_dict()
    assert (RANDOM in state) == holds
    flow.manual_seed(5)
    before = flow.get_rng_state().numpy()
    nn.Graph.trace(draws).load_state_dict(state)
    assert np.array_equal(flow.get_rng_state().numpy(), before) != holds


def test_a_random_state_that_lies_on_several_ranks_is_each_rank_s_own() -> None:
    """A state of 16 bytes on each of two ranks, put into one of 32 split over them."""
    flow.manual_seed(9)
    bits = flow.get_rng_state().numpy()
    both = np.concatenate([bits, np.zeros_like(bits)])
    here = {"placement": flow.placement("cpu", [0]), "sbp": flow.sbp.split(0)}
    graph = nn.Graph.trace(lambda x: x + flow.randn(3))
    for state in (flow.tensor(bits), flow.tensor(bits, **here), flow.tensor(both, **here)):
        flow.manual_seed(5)
        graph.load_state_dict({RANDOM: state})
        np.testing.assert_array_equal(flow.get_rng_state().numpy(), bits)


class Noise(flow.optim.SGD):
    """Draws in each update."""

    def update_param(self, group: Any, param: Any, states: Any, lr: Any, step: Any) -> None:
        param.grad = param.grad + flow.randn(*param.shape)
        super().update_param(group, param, states, lr, step)


@pytest.mark.parametrize("pieces", [1, 2])
def test_an_optimizer_draws_once_a_step_after_the_micro_batches(pieces: int) -> None:
    weights = []
    for kind in ("graph", "eager"):
        flow.manual_seed(2)
        layer, drop = nn.Linear(WIDTH, 3), nn.Dropout(0.5)
        optimizer = Noise(layer.parameters(), lr=0.1)

        class Update(nn.Graph):
            def __init__(self, layer: Any, drop: Any, optimizer: Any) -> None:
                super().__init__()
                self.layer, self.drop = layer, drop
                self.add_optimizer(optimizer)
                self.config.set_gradient_accumulation_steps(pieces)

            def build(self, x: Any) -> Any:
                loss = self.drop(self.layer(x)).sum()
                loss.backward()
                return loss

        graph = Update(layer, drop, optimizer)
        for x in X:
            if kind == "graph":
                graph(flow.tensor(x))
                continue
            optimizer.zero_grad()
            for part in np.split(x, pieces):
                (drop(layer(flow.tensor(part))).sum() / pieces).backward()
            optimizer.step()
        weights.append([p.numpy().copy() for p in layer.parameters()] + [flow.rand(2).numpy()])
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# ---- on several ranks ----------------------------------------------------------------------------


def batch_graph(ranks: int, pieces: int, layout: Any, dim: int = 0) -> LogicalGraph:
    """The input dropped once, and the gradient of that, which draws the same: rows along `dim`."""
    graph = LogicalGraph("rows", pieces)
    placement = Placement("cpu", range(ranks))
    from oneflow.core.dtype import float32
    from oneflow.core.tensor_type import TensorType

    whole = TensorType((12, 5), float32)
    piece = whole.with_shape((12 // pieces, 5))
    turned = TensorType((5, 12 // pieces), float32) if dim else piece

    def add(op: str, inputs: Any, type_: Any, **attrs: Any) -> Any:
        return graph.append(op, inputs, [type_], placement, attrs).outputs[0]

    x = add("input", [], whole, name="x")
    x.sbp = (layout,)
    part = add("unpack", [x], piece)
    if dim:
        part = add("transpose", [part], turned, dims=(1, 0))
    once = add("dropout", [part], turned, p=0.5, seed=1)
    gathered = add("to_global", [once], turned)
    gathered.sbp = (BROADCAST,)
    again = add("dropout", [gathered], turned, p=0.5, seed=1)
    if dim:
        again = add("transpose", [again], piece, dims=(1, 0))
    graph.append("output", [again], [], placement, {"index": 0})
    return graph


def masks(graph: LogicalGraph, ranks: int, steps: int) -> list[Any]:
    """Rows in the order of the batch, of each step."""
    plan: Plan = compile_graph(graph, JobConfig("rows", graph.num_pieces), Cluster(ranks))
    cluster = InProcessCluster(plan, [{} for _ in range(ranks)])
    cluster.draw(Randomness((Draws(11, 4, 1),)))
    out: Node = next(iter(plan.graph.of_kind("output")))
    value = out.inputs[0]
    given: Node = next(iter(plan.graph.of_kind("input")))
    found = []
    for _ in range(steps):
        feeds = []
        for rank in range(ranks):
            box = shard_box((12, 5), given.outputs[0].sbp, given.placement, rank)
            feeds.append({"x": np.ones((12, 5), np.float32)[box.slices]})
        whole = np.zeros((12, 5), np.float32)
        for rank, results in enumerate(cluster.step(feeds)):
            box = shard_box((12, 5), value.sbp, value.placement, rank)
            whole[box.slices] = results[0]
        found.append(whole)
    return found


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(("ranks", "pieces"), [(2, 1), (2, 2), (3, 2), (2, 3), (4, 3)])
@pytest.mark.parametrize("layout", [Split(0), Split(1), BROADCAST])
def test_ranks_and_layouts_do_not_change_the_mask(
    ranks: int, pieces: int, layout: Any, dim: int
) -> None:
    """Draws of a mask and of its gradient, which lie differently; eagerly: call 5, 6, ... of seed
    11.
    """
    found = masks(batch_graph(ranks, pieces, layout, dim), ranks, 2)
    flow.manual_seed(11)
    flow.rand(1), flow.rand(1), flow.rand(1), flow.rand(1)
    for mask in found:
        wanted = []
        for _ in range(pieces):
            shape = (5, 12 // pieces) if dim else (12 // pieces, 5)
            part = F.dropout(flow.ones(*shape), 0.5).numpy()
            wanted.append((part.T if dim else part) * 2)
        np.testing.assert_array_equal(mask, np.concatenate(wanted))


class CountedEnds:
    """The collectives of a rank, with the names of the calls that were made."""

    def __init__(self, ends: Any) -> None:
        self._ends = ends
        self.calls: list[str] = []

    def all_gather(self, array: Any, *, what: str) -> Any:
        self.calls.append(what)
        return self._ends.all_gather(array, what=what)


def on_two_ranks(
    monkeypatch: pytest.MonkeyPatch, rank: Callable[[int, CountedEnds], Any]
) -> list[Any]:
    """The results of `rank`, a thread for each, for its number and collectives."""
    group, here = InProcessGroup((0, 1)), threading.local()
    monkeypatch.setattr("oneflow.graph.draws.world", lambda: here.world)

    def run(number: int) -> Any:
        ends = CountedEnds(group.collectives(number))
        here.world = SimpleNamespace(rank=number, collectives=lambda ranks: ends)
        return rank(number, ends)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, range(2)))


def test_ranks_tell_each_other_of_generators_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank(number: int, ends: CountedEnds) -> Any:
        own = flow.Generator()
        own.manual_seed(5 + number)
        found = []

        def steps(graph: GraphRandomness) -> None:
            for _ in range(3):
                found.append(graph.now().by_rank)
                graph.skip_step()

        first = GraphRandomness("One_0", [(own, 2, 1)], 4, (0, 1))
        steps(first)
        steps(GraphRandomness("Other_0", [(own, 1, 0)], 1, (0, 1)))
        steps(first)
        told_once = len(ends.calls)
        own.next_seed()
        steps(first)
        return told_once, len(ends.calls), found

    def expected(calls: int, each: int, once: int) -> Any:
        return {r: (Draws(5 + r, calls, each, once),) for r in (0, 1)}

    wanted = [expected(calls, 2, 1) for calls in (0, 9, 18)]
    wanted += [expected(calls, 1, 0) for calls in (27, 28, 29)]
    wanted += [expected(calls, 2, 1) for calls in (30, 39, 48, 58, 67, 76)]
    assert on_two_ranks(monkeypatch, rank) == [(1, 2, wanted)] * 2


def test_ranks_that_call_different_graphs_do_not_share_their_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rank(number: int, ends: CountedEnds) -> Any:
        own = flow.Generator()
        graphs = [GraphRandomness(name, [(own, 2, 1)], 1, (0, 1)) for name in ("One_0", "Other_0")]
        own.manual_seed(number)
        try:
            graphs[number].now()
        except DesyncError as error:
            return str(error)
        return ""

    for said in on_two_ranks(monkeypatch, rank):
        assert "numbers of graph One_0" in said and "numbers of graph Other_0" in said
        assert "moved since its last step" in said


def test_every_row_of_every_piece_draws_once() -> None:
    for parts, pieces in ((1, 3), (2, 2), (3, 4), (4, 2)):
        rows, size = RandomRows(parts, {}), 12
        drawn = [
            (source, start + i)
            for piece in range(pieces)
            for first, end, source, start in rows.spans(0, size, size, piece, pieces)
            for i in range(end - first)
        ]
        assert sorted(drawn) == [(p, i) for p in range(pieces) for i in range(size)]


def test_a_graph_of_one_piece_has_no_rows_to_find() -> None:
    plan = compile_graph(batch_graph(2, 1, Split(0)), JobConfig("rows", 1), Cluster(2))
    assert random_rows(plan.graph) == RandomRows(1, {})
