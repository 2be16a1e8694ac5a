"""Rows that are read ahead of the step that looks them up: nothing is different for it."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.errors import PositionError
from oneflow.kernels.open_tables import OpenTable
from tests.support.waiting import WAIT_S

from .making import embedding, one

STEPS, ROWS, TABLES = 6, 40, 3
RNG = np.random.default_rng(0)
IDS = RNG.zipf(1.3, size=(STEPS + 1, ROWS, TABLES)) % 60
TARGETS = RNG.normal(size=(STEPS, ROWS)).astype(np.float32)


class Model(flow.nn.Module):
    """Rows, and a layer over them."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.rows = embedding(tables=TABLES, **given)
        self.top = flow.nn.Linear(TABLES * 4, 1)
        weight = np.random.default_rng(1).normal(size=(1, TABLES * 4)).astype(np.float32)
        self.top.weight.data, self.top.bias.data = flow.tensor(weight), flow.zeros(1)

    def forward(self, ids: Any) -> Any:
        return self.top(self.rows(ids).flatten(1)).squeeze(1)


class Training(flow.nn.Graph):
    """A step that reads the rows of the next one ahead, if it is told to."""

    def __init__(self, model: Any, optimizer: Any, ahead: bool) -> None:
        super().__init__()
        self.model, self.ahead = model, ahead
        self.add_optimizer(optimizer)

    def build(self, ids: Any, target: Any, following: Any) -> Any:
        if self.ahead:
            self.model.rows.prefetch(following)
        loss = ((self.model(ids) - target) ** 2).mean()
        loss.backward()
        return loss


def trained(is_graph: bool, ahead: bool, **given: Any) -> tuple[list[float], Any, Any]:
    """Losses, rows of all ids afterwards, and the model."""
    model = Model(**given)
    optimizer = flow.optim.Adam(model.parameters(), lr=0.05)
    graph = Training(model, optimizer, ahead) if is_graph else None
    losses = []
    for k, target in enumerate(TARGETS):
        ids, following, y = flow.tensor(IDS[k]), flow.tensor(IDS[k + 1]), flow.tensor(target)
        if graph is not None:
            losses.append(graph(ids, y, following).numpy().item())
            continue
        out = model(ids)
        if ahead:
            model.rows.prefetch(following)
        loss = ((out - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.numpy().item())
    with flow.no_grad():
        rows = model.rows(flow.arange(60).unsqueeze(1).expand(60, TABLES).contiguous()).numpy()
    return losses, rows, model


def on_disk(folder: Path) -> Any:
    return one.make_cached_ssd_store_options(1, str(folder), None, 3)


@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_training_is_the_same_to_the_last_bit(is_graph: bool, tier: str, tmp_path: Path) -> None:
    given = [
        {} if tier == "memory" else {"store_options": on_disk(tmp_path / name)}
        for name in ("alone", "ahead")
    ]
    losses, rows, _ = trained(is_graph, False, **given[0])
    got, got_rows, model = trained(is_graph, True, **given[1])
    assert got == losses
    np.testing.assert_array_equal(got_rows, rows)
    assert model.rows.statistics()["ahead"] > 0


def table_of(module: Any) -> OpenTable:
    return module.one_embedding.rows  # type: ignore[no-any-return]


def test_a_row_that_is_updated_after_it_was_read_is_read_again() -> None:
    module = embedding(tables=1, size_factor=1)
    optimizer = flow.optim.SGD(module.parameters(), lr=1.0)
    ids = flow.tensor(np.array([[3], [5], [9]]))
    module.prefetch(ids)
    assert table_of(module).ahead.numbered(ids.numpy(), None) is not None  # all three are read
    before = module(flow.tensor(np.array([[5], [7]])))
    before.sum().backward()
    optimizer.step()
    got = module(ids).detach().numpy()
    assert module.statistics()["ahead"] == 2
    np.testing.assert_array_equal(got[1], before.detach().numpy()[0] - 1)
    again = embedding(tables=1, size_factor=1)(ids).detach().numpy()
    np.testing.assert_array_equal(got[[0, 2]], again[[0, 2]])


def test_rows_of_a_snapshot_are_not_those_that_were_read_before(tmp_path: Path) -> None:
    options = one.make_device_mem_store_options(str(tmp_path), 100, size_factor=1)
    module = embedding(tables=1, store_options=options)
    optimizer = flow.optim.SGD(module.parameters(), lr=1.0)
    ids = flow.tensor(np.array([[1], [2]]))
    first = module(ids)
    module.save_snapshot("first")
    first.sum().backward()
    optimizer.step()
    module.prefetch(ids)
    module.load_snapshot("first")
    np.testing.assert_array_equal(module(ids).detach().numpy(), first.detach().numpy())


def test_ids_that_no_table_has_are_refused_by_the_look_up() -> None:
    module = embedding(tables=1)
    ids = flow.tensor(np.array([[4], [-2]]))
    module.prefetch(ids)
    with pytest.raises(PositionError, match="the id -2 is negative"):
        module(ids)


def test_the_oldest_of_many_batches_is_given_up() -> None:
    module = embedding(tables=1)
    batches = [flow.tensor(np.array([[k], [k + 1]])) for k in range(7)]
    for ids in batches:
        module.prefetch(ids)
    alone = embedding(tables=1)
    for ids in batches:
        np.testing.assert_array_equal(module(ids).numpy(), alone(ids).numpy())
    assert 0 < module.statistics()["ahead"] <= 8


def test_a_trace_shows_rows_read_beside_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is held until the backward pass of the step has come: it works beside that."""
    is_backward, keep, numbered = threading.Event(), OpenTable.keep, OpenTable._numbered

    def kept(self: OpenTable, *given: Any) -> Any:
        is_backward.set()
        return keep(self, *given)

    def held(self: OpenTable, *given: Any, **named: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            assert is_backward.wait(WAIT_S)
        return numbered(self, *given, **named)

    monkeypatch.setattr(OpenTable, "keep", kept)
    monkeypatch.setattr(OpenTable, "_numbered", held)
    model = Model()
    graph = Training(model, flow.optim.Adam(model.parameters()), ahead=True)
    profile = graph.profile(2, tmp_path)
    for k in (0, 1):  # the look-up of the second step waits for what the first has begun
        graph(*map(flow.tensor, (IDS[k], TARGETS[k], IDS[k + 1])))
    events = json.loads(gzip.decompress(profile.close().read_bytes()))["traceEvents"]
    name = f"rows ahead of {model.rows.one_embedding.name}"
    beside = [e for e in events if e.get("cat") == "beside" and e["name"] == name]
    acts = [e for e in events if e["ph"] == "X" and e["cat"] not in ("beside", "kernel", "wait")]
    assert any(_overlap(beside[0], act) for act in acts if act["args"]["step"] == 0)
    assert name in str(profile)
    rows = {e["tid"] for e in events if e["ph"] == "M" and e["args"]["name"] == name}
    assert rows == {beside[0]["tid"]}


def _overlap(a: Any, b: Any) -> bool:
    return bool(a["ts"] < b["ts"] + b["dur"] and b["ts"] < a["ts"] + a["dur"])
