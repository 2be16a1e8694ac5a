"""Runs on 2 or 4 ranks: graphs that choose stages, grids, micro-batches, ZeRO and recomputation
train as eager code on one rank does, with any choice; see test_auto_parallel_ranks.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.graph import choosing
from oneflow.graph.choosing import Candidate

SIZE = flow.env.get_world_size()
EVERYONE = flow.placement("cpu", list(range(SIZE)))
S0, B, P = flow.sbp.split(0), flow.sbp.broadcast, flow.sbp.partial_sum
STEPS, ROWS, WIDTH, CLASSES = 3, 64, 64, 16
RNG = np.random.default_rng(0)
X = RNG.normal(size=(STEPS, ROWS, 32)).astype(np.float32)
Y = RNG.integers(0, CLASSES, (STEPS, ROWS))
SMALL, LARGE = (X, Y), (np.tile(X, (1, 16, 1)), np.tile(Y, (1, 16)))
"""Batches of three steps; with the large ones results take more memory than gradients."""
CANDIDATES = {
    2: [
        Candidate(stages=2, pieces=4),
        Candidate(stages=2, pieces=2, depth=1),
        Candidate(zero=2),
        Candidate(pieces=2, zero=3, depth=1),
    ],
    4: [Candidate(stages=2, pieces=4), Candidate(stages=4, pieces=4), Candidate(grid=(2, 2))],
}


def make_model() -> nn.Sequential:
    flow.manual_seed(1)
    hidden = [m for _ in range(2) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(nn.Linear(32, WIDTH), nn.Tanh(), *hidden, nn.Linear(WIDTH, CLASSES))


class Train(nn.Graph):
    def __init__(self, level: str) -> None:
        super().__init__()
        self.model = make_model().to_global(EVERYONE, B)
        parameters = self.model.to(nn.Module).parameters()
        self.add_optimizer(flow.optim.AdamW(parameters, lr=1e-2))
        self.config.enable_auto_parallel(level=level)
        self.builds = 0

    def build(self, x: Any, y: Any) -> Any:
        self.builds += 1
        predicted = self.model(x)
        loss = F.cross_entropy(predicted, y)
        loss.backward()
        return loss, predicted


def fed(array: Any) -> Any:
    return flow.tensor(array, placement=EVERYONE, sbp=B).to_global(sbp=S0)


def eager(batches: tuple[Any, Any]) -> tuple[list[float], list[Any], list[Any]]:
    """Losses, predictions and the parameters at the end, of one rank without a graph."""
    model = make_model()
    optimizer = flow.optim.AdamW(model.parameters(), lr=1e-2)
    losses, outputs = [], []
    for x, y in zip(*batches, strict=True):
        predicted = model(flow.tensor(x))
        loss = F.cross_entropy(predicted, flow.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.numpy()))
        outputs.append(predicted.numpy())
    return losses, outputs, [p.numpy() for p in model.parameters()]


def trains_as_eagerly(graph: Train, batches: tuple[Any, Any] = SMALL) -> None:
    """Also with results that lie as without auto-parallel: a mean of parts, and rows."""
    losses, outputs, parameters = eager(batches)
    for step, (x, y) in enumerate(zip(*batches, strict=True)):
        loss, predicted = graph(fed(x), fed(y))
        assert (loss.sbp, predicted.sbp) == ((P,), (S0,)), (loss.sbp, predicted.sbp)
        assert loss.placement == predicted.placement == EVERYONE
        np.testing.assert_allclose(float(loss.numpy()), losses[step], 1e-5)
        np.testing.assert_allclose(predicted.numpy(), outputs[step], 1e-4, 1e-5)
    for ours, theirs in zip(graph.model.to(nn.Module).parameters(), parameters, strict=True):
        np.testing.assert_allclose(ours.to_global(EVERYONE, B).numpy(), theirs, 1e-4, 1e-5)


def every_choice_trains_as_eager_code() -> None:
    for wanted in CANDIDATES[SIZE]:
        with preferring(wanted):
            graph = Train("full")
            trains_as_eagerly(graph)
        assert graph._spec.choice is not None and graph._spec.choice.candidate == wanted
        shows_in_the_plan(graph, wanted)
        told = graph.explain()
        assert told.chosen.name == str(wanted), str(told)
        assert len(told.others) == 3 and str(told).count("ms a step") == 4


def shows_in_the_plan(graph: Train, wanted: Candidate) -> None:
    plan = graph._spec.plans.now.job.bound.plan
    assert plan.graph.num_pieces == wanted.pieces
    updates = plan.graph.of_kind("adam_update")
    places = {n.placement for n in plan.graph if not n.is_structural}
    assert len(places) == wanted.stages, (str(wanted), places)
    assert {p.hierarchy for p in places} == {wanted.grid or (SIZE // wanted.stages,)}
    if wanted.zero:
        large = [n for n in updates if n.inputs[0].type.numel >= 1024]
        assert large and all(n.inputs[0].sbp != (B,) for n in large)
    assert bool(graph._spec.recomputed) == bool(wanted.depth)


def stages_and_grids_need_no_trace_of_their_own() -> None:
    """`build` runs once as it is, once to see if the batch may be cut, for each number of
    micro-batches, with ZeRO, and to be compiled."""
    graph = Train("full")
    graph(fed(X[0]), fed(Y[0]))
    counts = [n for n in choosing.PIECES if ROWS % (n * SIZE) == 0]
    assert graph.builds <= 1 + 1 + len(counts) + 1 + 1, graph.builds


@contextmanager
def preferring(wanted: Candidate) -> Iterator[None]:
    """Within, this candidate is tried and taken, at any cost."""
    ranked = choosing.ranked

    def first(estimates: Any) -> Any:
        return sorted(ranked(estimates), key=lambda e: e.candidate != wanted)

    tried = patch.object(choosing._Choosing, "_quick", lambda _: iter([wanted]))
    with tried, patch.object(choosing, "ranked", first):
        yield


def what_does_not_fit_is_cut_or_computed_again() -> None:
    """Layouts alone need the whole; with three quarters of it something else is chosen."""
    plain = Train("layouts")
    trains_as_eagerly(plain, LARGE)
    limit = plain.memory_report().arena_nbytes * 3 // 4
    graph = Train("full")
    graph.config.set_memory_limit(limit)
    trains_as_eagerly(graph, LARGE)
    assert graph.memory_report().arena_nbytes <= limit
    assert graph._spec.choice is not None and graph._spec.choice.candidate != Candidate()
    assert graph.explain().chosen.name == str(graph._spec.choice.candidate)


def other_batches_are_cut_as_far_as_they_can_be() -> None:
    """A plan for each shape: 4 micro-batches of 64 rows, then 2 of 36."""
    with preferring(Candidate(pieces=4)):
        graph = Shapes()
        graph(fed(X[0]), fed(Y[0]))
        loss = graph(fed(X[0][:36]), fed(Y[0][:36]))
    model = make_model()
    expected = F.cross_entropy(model(flow.tensor(X[0][:36])), flow.tensor(Y[0][:36]))
    np.testing.assert_allclose(float(loss.numpy()), float(expected.numpy()), 1e-5)


class Shapes(nn.Graph):
    @nn.Graph.with_dynamic_input_shape()
    def __init__(self) -> None:
        super().__init__()
        self.model = make_model().to_global(EVERYONE, B)
        self.config.enable_auto_parallel(level="full")

    def build(self, x: Any, y: Any) -> Any:
        return F.cross_entropy(self.model(x), y)


if __name__ == "__main__":
    every_choice_trains_as_eager_code()
    stages_and_grids_need_no_trace_of_their_own()
    if SIZE == 2:
        what_does_not_fit_is_cut_or_computed_again()
        other_batches_are_cut_as_far_as_they_can_be()
    print(f"rank {flow.env.get_rank()} done", flush=True)
