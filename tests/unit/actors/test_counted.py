"""Counts of actors and buses besides acts: how long messages take, which embeddings are read."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn as nn
from oneflow.actors import mailbox, running_jobs
from oneflow.actors.mailbox import SharedMemoryBus, areas_nbytes
from oneflow.actors.tcp import Connection, TcpBus
from oneflow.boxing.transport.rank_pages import RankPages, new_page
from oneflow.core.errors import NonFiniteError
from oneflow.core.metrics import METRICS, Metrics
from oneflow.core.metrics_samples import Exporter
from tests.support.waiting import WAIT_S, wait_until


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    METRICS.reset()


def test_a_message_that_wakes_its_receiver_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {rank: new_page(2, areas_nbytes(2, 0)) for rank in (0, 1)}
    buses = [SharedMemoryBus(RankPages(rank, [0, 1], pages)) for rank in (0, 1)]
    latency = METRICS.message_latency_seconds["shm"]
    try:
        buses[0].post(1, 4)
        assert buses[1].poll() == [(0, 4)]
        assert sum(latency.counts) == 0  # it did not sleep
        asleep = mailbox.futex_wait

        def post_and_sleep(*where: Any) -> None:
            buses[0].post(1, 6)  # it has said that it sleeps: who posts now has to wake it
            asleep(*where)

        monkeypatch.setattr(mailbox, "futex_wait", post_and_sleep)
        buses[1].wait(WAIT_S)
        monkeypatch.undo()
        assert buses[1].poll() == [(0, 6)]
        assert sum(latency.counts) == 1
        assert 0 < latency.total_s < WAIT_S
        buses[1].wait(0.001)  # nobody wakes it
        assert sum(latency.counts) == 1
    finally:
        for bus in buses:
            bus.close()
        for page in pages.values():
            page.close()


class _NoPlan:
    registers: tuple[Any, ...] = ()


def test_the_round_trip_of_a_connection_is_looked_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    plan: Any = _NoPlan()
    mirrors: Any = None
    buses = [
        TcpBus([Connection(plan, rank, 1 - rank, sock, mirrors, mirrors)], 1.0)
        for rank, sock in enumerate((near, far))
    ]
    for code in range(1, 41, 2):  # Freed carries nothing
        buses[0].post(1, code)
        wait_until(buses[1].poll)
        buses[1].post(0, code)
        wait_until(buses[0].poll)
    buses[0].sample_latency()
    latency = METRICS.message_latency_seconds["tcp"]
    assert sum(latency.counts) == 1
    assert 0 < latency.total_s < 1
    for bus in buses:
        bus.close()
    buses[0].sample_latency()  # closed: nothing to see, and no error


class Words(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def build(self, x: Any) -> Any:
        return self.table(x).sum()


def test_rows_of_embeddings_are_counted_with_and_without_a_graph() -> None:
    table, index = nn.Embedding(50, 4), flow.tensor(np.arange(6).reshape(2, 3))
    table(index)
    assert METRICS.lookups["device", "hit"] == 6
    graph = Words()
    for _ in range(5):
        graph(index)
    running_jobs.progress()
    assert METRICS.lookups["device", "hit"] == 6 + 5 * 6
    rows = {t.labels: t.value for t in Exporter(METRICS).news() if t.name == "lookups"}
    assert rows["device", "hit"] == sum(rows.values()) == 36


def test_a_gradient_that_is_not_finite_is_counted_where_it_stops_the_program() -> None:
    x = flow.nn.Parameter(flow.tensor(np.ones(3, np.float32)))
    x.grad = flow.tensor(np.array([1.0, np.inf, 0.0], np.float32))
    nn.utils.clip_grad_norm_([x], 1.0)
    assert METRICS.train == {}
    with pytest.raises(NonFiniteError):
        nn.utils.clip_grad_norm_([x], 1.0, error_if_nonfinite=True)
    (counters,) = METRICS.train.values()
    assert counters.nonfinite == {"loss": 0, "grad": 1, "param": 0}


def test_pinned_memory_is_counted_until_it_is_given_back() -> None:
    metrics = Metrics()
    metrics.pinned(4096)
    metrics.pinned(100)
    metrics.pinned(-4096)
    assert metrics.host_memory["pinned"] == 100
