"""Profiles of a graph: the file, its sums, and pictures of the plan."""

from __future__ import annotations

import gzip
import json
import re
import xml.etree.ElementTree as xml
from pathlib import Path

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import GraphError


class Net(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

    def build(self, x: flow.Tensor) -> flow.Tensor:
        loss = self.model(x).sum()
        loss.backward()
        return loss


X = flow.tensor(np.arange(12, dtype=np.float32).reshape(3, 4))


def events_of(path: Path) -> list[dict]:
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def test_a_profile_from_the_first_call_has_the_asked_steps(tmp_path: Path) -> None:
    graph = Net()
    profile = graph.profile(3, tmp_path / "new")
    for _ in range(5):
        graph(X)
    assert not profile.is_open
    acts = [
        e
        for e in events_of(profile.close())
        if e["ph"] == "X" and e["cat"] not in ("kernel", "wait")
    ]
    assert {a["args"]["step"] for a in acts} == {0, 1, 2}
    sums = profile.sums()
    assert sums.steps == 3 and sum(a.acts for a in sums.actors) == len(acts)
    in_file = sum(a["dur"] for a in acts) * 1e-6
    assert sum(a.seconds for a in sums.actors) == pytest.approx(in_file)
    assert sums.actors == sorted(sums.actors, key=lambda a: -a.seconds)
    assert all(actor.name in str(profile) for actor in sums.actors)


def test_a_profile_of_a_running_graph_begins_at_its_next_step(tmp_path: Path) -> None:
    graph = Net()
    graph(X)
    graph(X)
    profile = graph.profile(10, tmp_path)
    graph(X)
    assert profile.is_open
    with pytest.raises(GraphError, match="recorded already"):
        graph.profile(1, tmp_path)
    acts = [
        e
        for e in events_of(profile.close())
        if e["ph"] == "X" and e["cat"] not in ("kernel", "wait")
    ]
    assert {a["args"]["step"] for a in acts} == {2}
    again = graph.profile(1, tmp_path / "again")
    graph(X)
    assert again.sums().steps == 1


def test_rests_between_calls_are_waits_for_the_next_call(tmp_path: Path) -> None:
    graph = Net()
    profile = graph.profile(2, tmp_path)
    graph(X)
    resting = flow.ones(400, 400)
    for _ in range(20):  # far more than the least rest that is told
        resting = resting @ resting / 400
    graph(X)
    waits = [e for e in events_of(profile.close()) if e["ph"] == "X" and e["cat"] == "wait"]
    between = [w for w in waits if w["name"] == "the next call"]
    assert [w["args"]["step"] for w in between] == [1]
    assert profile.sums().waits["the next call"] == pytest.approx(between[0]["dur"] * 1e-6)
    assert "waiting for the next call" in str(profile)


def test_what_cannot_be_profiled_is_said(tmp_path: Path) -> None:
    graph = Net()
    for steps in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="steps must be an int of at least 1"):
            graph.profile(steps, tmp_path)
    with pytest.raises(GraphError, match="it was not called"):
        graph.profile(1, tmp_path).close()


def test_pictures_need_a_plan() -> None:
    graph = Net()
    for asked in ("to_dot", "to_svg"):
        with pytest.raises(GraphError, match=f"{asked}: graph {graph.name} is not compiled yet"):
            getattr(graph, asked)()


def test_dot_has_every_actor_and_register_once_for_each_reader() -> None:
    graph = Net()
    graph(X)
    plan = graph._spec.plans.now.job.bound.plan
    text = graph.to_dot()
    nodes = re.findall(r"^    actor(\d+) \[", text, re.MULTILINE)
    edges = re.findall(r"^  actor(\d+) -> actor(\d+) \[", text, re.MULTILINE)
    assert sorted(map(int, nodes)) == [a.id for a in plan.actors]
    wanted = [(r.producer.id, a.id) for r in plan.registers for a in r.consumers]
    assert sorted((int(a), int(b)) for a, b in edges) == sorted(wanted)
    assert text.count("{") == text.count("}")


def test_dot_of_ops_names_modules_and_values() -> None:
    graph = Net()
    graph(X)
    plan = graph._spec.plans.now.job.bound.plan
    text = graph.to_dot(ops=True)
    assert len(re.findall(r"^  op\d+ \[label", text, re.MULTILINE)) == len(list(plan.graph))
    edges = re.findall(r"^  op(\d+) -> op(\d+) ", text, re.MULTILINE)
    assert len(edges) == sum(len(node.inputs) for node in plan.graph)
    assert all(int(a) < int(b) for a, b in edges)
    assert '"model.0"' in text and "(3, 4) float32" in text


def test_svg_has_a_box_for_each_actor_and_a_curve_for_each_reader() -> None:
    graph = Net()
    graph(X)
    plan = graph._spec.plans.now.job.bound.plan
    root = xml.fromstring(graph.to_svg())
    ns = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{ns}g")) == len(plan.actors)
    assert len(root.findall(f"{ns}path")) == sum(len(r.consumers) for r in plan.registers)
    corners = [(r.get("x"), r.get("y")) for r in root.findall(f"{ns}g/{ns}rect")]
    assert len(set(corners)) == len(corners)
