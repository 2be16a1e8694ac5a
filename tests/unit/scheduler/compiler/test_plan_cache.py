"""Plans are made once for equal graphs, and only for these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.disk_cache import DiskCache
from oneflow.core.graph import LogicalGraph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.core.plan import Plan
from oneflow.scheduler.compiler import plan_cache
from oneflow.scheduler.compiler.pipeline import compile_graph
from oneflow.scheduler.compiler.plan_cache import PlanCache

from .graph_builder import mlp

TWO = Placement("cpu", [0, 1])
CONFIG = JobConfig("first")


def graph() -> LogicalGraph:
    return mlp([TWO], "S(0)", "B", "B")


class Counted:
    """A cache, and how often it had to compile."""

    def __init__(self, folder: Path | None = None) -> None:
        disk = DiskCache(folder, ".plan", 1 << 20, "plans", "ONEFLOW_PLAN_CACHE")
        self.cache, self.made = PlanCache(disk), 0

    def plan(
        self, traced: LogicalGraph, config: JobConfig = CONFIG, cluster: Cluster | None = None
    ) -> Plan:
        cluster = cluster or Cluster(2)

        def make() -> Plan:
            self.made += 1
            return compile_graph(traced, config, cluster)

        return self.cache.plan(traced, config, cluster, make)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plan_cache, "LEAST_NODES", 1)
    return tmp_path


def test_an_equal_graph_of_another_name_has_the_same_plan_under_its_name() -> None:
    caches, second = Counted(), graph()
    second.name = "second"
    one = caches.plan(graph())
    two = caches.plan(second, replace(CONFIG, name="second"))
    assert caches.made == 1
    assert (one.graph.name, two.graph.name) == (graph().name, "second")
    assert str(two).splitlines()[1:] == str(one).splitlines()[1:]
    assert two.origin is one.origin


def other_line(traced: LogicalGraph) -> None:
    next(iter(traced)).location = "train.py:77"


def other_module(traced: LogicalGraph) -> None:
    next(iter(traced)).module = "model"


def other_attribute(traced: LogicalGraph) -> None:
    node = traced.of_kind("variable")[0]
    node.attrs = {**node.attrs, "name": "other"}


def other_stage(traced: LogicalGraph) -> None:
    next(iter(traced)).stage = 1


@pytest.mark.parametrize("edit", [other_line, other_module, other_attribute, other_stage])
def test_a_graph_that_differs_has_a_plan_of_its_own(edit: Callable[[LogicalGraph], None]) -> None:
    caches, changed = Counted(), graph()
    edit(changed)
    caches.plan(graph())
    caches.plan(changed)
    assert caches.made == 2


def test_other_options_and_other_ranks_have_plans_of_their_own() -> None:
    caches = Counted()
    caches.plan(graph())
    caches.plan(graph(), replace(CONFIG, order_mode="SpeedFirst"))
    caches.plan(graph(), cluster=Cluster(2, ("a", "b")))
    assert caches.made == 3


def test_another_process_reads_the_plan_from_disk(folder: Path) -> None:
    made = Counted(folder).plan(graph())
    other = Counted(folder)
    found = other.plan(graph())
    assert other.made == 0
    assert found.to_bytes() == made.to_bytes()


def test_small_graphs_are_not_written(tmp_path: Path) -> None:
    Counted(tmp_path).plan(graph())
    assert list(tmp_path.iterdir()) == []


def test_another_state_of_the_compiler_does_not_find_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Counted(folder).plan(graph())
    monkeypatch.setattr(plan_cache, "compiler_state", lambda: "changed")
    other = Counted(folder)
    other.plan(graph())
    assert other.made == 1
    assert len(list(folder.iterdir())) == 2


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def nonsense(path: Path) -> None:
    """Well kept bytes that are no plan."""
    disk = DiskCache(path.parent, ".plan", 1 << 20, "plans", "ONEFLOW_PLAN_CACHE")
    disk.put(path.stem, path.stem.encode() + b"\xff" * 50)


def contradiction(path: Path) -> None:
    """A message that can be read, without the graph that its actors run."""
    plan = compile_graph(graph(), CONFIG, Cluster(2))
    plan.graph = LogicalGraph("empty")
    for actor in plan.actors:
        actor.nodes = []
    disk = DiskCache(path.parent, ".plan", 1 << 20, "plans", "ONEFLOW_PLAN_CACHE")
    disk.put(path.stem, path.stem.encode() + plan.to_bytes())


def of_another(path: Path) -> None:
    """A whole entry under a name that is not its own."""
    DiskCache(path.parent, ".plan", 1 << 20, "plans", "ONEFLOW_PLAN_CACHE").put(
        path.stem, b"0" * len(path.stem) + compile_graph(graph(), CONFIG, Cluster(2)).to_bytes()
    )


@pytest.mark.parametrize("damage", [cut, emptied, nonsense, contradiction, of_another])
def test_a_bad_entry_is_made_anew_and_written_again(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    wanted = Counted(folder).plan(graph()).to_bytes()
    (path,) = folder.iterdir()
    damage(path)
    second = Counted(folder)
    assert second.plan(graph()).to_bytes() == wanted
    assert second.made == 1
    third = Counted(folder)
    assert third.plan(graph()).to_bytes() == wanted
    assert third.made == 0


def test_few_nodes_are_remembered_without_a_graph_that_uses_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_cache, "RECENT_NODES", len(graph()) * 2)
    caches, stages = Counted(), range(4)
    for stage in stages:
        traced = graph()
        next(iter(traced)).location = f"train.py:{stage}"
        caches.plan(traced)
    assert 1 <= len(caches.cache._recent) <= 2


# ---- graphs that share a plan --------------------------------------------------------------------


class Model(flow.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = flow.nn.Sequential(
            *(flow.nn.Sequential(flow.nn.Linear(6, 6), flow.nn.Dropout(0.5)) for _ in range(3))
        )

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return flow.tanh(self.blocks(x))


class Train(flow.nn.Graph):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    def build(self, x: flow.Tensor) -> flow.Tensor:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


def losses(graphs: list[Train], x: flow.Tensor) -> list[list[float]]:
    """Losses of three steps of each graph, the steps in turns, each graph with its own draws."""
    generators = [10 + i for i in range(len(graphs))]
    found: list[list[float]] = [[] for _ in graphs]
    for step in range(3):
        for i, train in enumerate(graphs):
            flow.manual_seed(generators[i] * 100 + step)
            found[i].append(train(x).item())
    return found


def made(seed: int) -> Train:
    flow.manual_seed(seed)
    return Train(Model())


def test_graphs_that_share_a_plan_compute_what_they_would_alone() -> None:
    x = flow.tensor(np.random.default_rng(3).standard_normal((5, 6)).astype(np.float32))
    plan_cache._plans.cache_clear()
    together = [made(1), made(2)]
    shared = losses(together, x)
    plans = [train._spec.plans.now.job.bound.plan for train in together if train._spec.plans.now]
    assert plans[0].origin is plans[1].origin
    alone = []
    for i in range(2):
        plan_cache._plans.cache_clear()
        train = made(i + 1)
        found = []
        for step in range(3):
            flow.manual_seed((10 + i) * 100 + step)
            found.append(train(x).item())
        alone.append(found)
    assert shared == alone
    assert shared[0] != shared[1]
