"""Orders of traces at the meetings of ranks: the same step everywhere, and clocks compared."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.jobs import tracing
from oneflow.jobs.tracing import Tracing
from oneflow.protos import cluster_pb2 as pb


class Recording:
    """Stands for Trace: keeps its orders."""

    def __init__(self, folder: Path, rank: int, **options: Any) -> None:
        self.path, self.rank, self.options = folder / f"trace-rank{rank}.json.gz", rank, options
        self.state, self.error = "recording", ""
        self.steps = self.acts = self.dropped = self.nbytes = 0
        self.is_truncated = False

    @property
    def is_open(self) -> bool:
        return self.state == "recording"

    def record(self, executor: Any) -> None:
        return

    def stop(self) -> None:
        self.state = "done"

    def close(self, timeout_s: float) -> None:
        self.stop()


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Tracing]:
    monkeypatch.setattr("oneflow.jobs.tracing.Trace", Recording)
    found = [Tracing() for _ in range(3)]
    for rank, one in enumerate(found):
        one.begin(SimpleNamespace(), tmp_path, rank, {"job": "j1"})  # type: ignore[arg-type]
    return found


def tell(one: Tracing, what: str, **order: Any) -> Any:
    request = pb.Inspect(request=5, what="trace", trace=pb.TraceOrder(what=what, **order))
    answer = one.answer(request)
    assert answer.request == 5
    return answer


def meet(ranks: list[Tracing]) -> None:
    heard = [one.said() for one in ranks]

    def exchange(said: dict[str, Any]) -> list[dict[str, Any]]:
        return [said] * len(ranks)  # of one host

    for one in ranks:
        one.hear(heard, exchange)


def states(ranks: list[Tracing]) -> list[str]:
    return [tell(one, "look").trace.state for one in ranks]


def test_all_begin_when_the_last_has_heard(ranks: list[Tracing]) -> None:
    order = {"trace": "t1", "ranks": [0, 2], "steps": 7}
    tell(ranks[0], "start", **order)
    meet(ranks)
    assert states(ranks) == ["asked", "none", "none"]
    tell(ranks[2], "start", **order)
    meet(ranks)
    assert states(ranks) == ["recording", "none", "recording"]
    options = ranks[2]._trace.options  # type: ignore[union-attr]
    assert options["steps"] == 7 and options["ranks"] == {0, 2}
    assert options["header"] == {
        "job": "j1", "trace": "t1", "ranks": [0, 2], "world_size": 3, "offset_ns": 0,
        "offset_error_ns": 0,
    }  # fmt: skip


def test_one_that_is_told_to_stop_stops_all_at_a_meeting(ranks: list[Tracing]) -> None:
    for one in ranks:
        tell(one, "start", trace="t1", ranks=[0, 1, 2])
    meet(ranks)
    tell(ranks[1], "stop")
    assert states(ranks) == ["recording"] * 3
    meet(ranks)
    assert states(ranks) == ["done"] * 3
    meet(ranks)
    for one in ranks:  # another one
        assert not tell(one, "start", trace="t2", ranks=[0, 1, 2], seconds=1e-9).error
    meet(ranks)
    assert states(ranks) == ["recording"] * 3
    meet(ranks)  # its time is over
    assert states(ranks) == ["done"] * 3


def test_a_second_trace_waits_for_the_first(ranks: list[Tracing]) -> None:
    first = ranks[0]
    assert not tell(first, "start", trace="t1", ranks=[0]).error
    assert not tell(first, "start", trace="t1", ranks=[0]).error  # told twice, done once
    assert "already" in tell(first, "start", trace="t2", ranks=[0]).error
    meet(ranks)
    assert not tell(first, "start", trace="t1", ranks=[0]).error
    assert "already" in tell(first, "start", trace="t2", ranks=[0]).error
    assert "not known" in tell(first, "dance").error


def test_an_order_is_taken_back_or_forgotten(
    ranks: list[Tracing], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(ranks[0], "start", trace="t1", ranks=[0, 1])
    tell(ranks[0], "stop", trace="another")
    assert states(ranks)[0] == "asked"
    tell(ranks[0], "stop", trace="t1")
    assert states(ranks)[0] == "none"
    tell(ranks[0], "start", trace="t2", ranks=[0, 1])
    monkeypatch.setattr(tracing, "PATIENCE_S", -1.0)
    meet(ranks)
    found = tell(ranks[0], "look").trace
    assert found.state == "failed" and "did not hear" in found.error
    ranks[1].close()
    assert states(ranks)[1] == "none"


@pytest.mark.parametrize("late", [0, 1])
def test_an_order_taken_back_in_the_middle_of_a_meeting_is_begun_by_all_or_none(
    ranks: list[Tracing], late: int
) -> None:
    """late: rank 0 is told to stop after it has said `begin`, rank 1 before or after it has."""
    for one in ranks[:2]:
        tell(one, "start", trace="t1", ranks=[0, 1], seconds=300)
    heard = [ranks[0].said()]
    if not late:
        tell(ranks[1], "stop")
    heard += [one.said() for one in ranks[1:]]
    tell(ranks[0], "stop")
    for one in ranks:
        one.hear(heard, lambda said: [said] * 3)
    assert states(ranks) == (["recording", "recording", "none"] if late else ["none"] * 3)
    meet(ranks)
    assert states(ranks) == (["done", "done", "none"] if late else ["none"] * 3)
    for one in ranks[:2]:  # the next one is not ended by that
        tell(one, "start", trace="t2", ranks=[0, 1], seconds=300)
    meet(ranks)
    meet(ranks)
    assert states(ranks) == ["recording", "recording", "none"]


@pytest.mark.parametrize("seed", range(20))
def test_clocks_are_compared_within_what_is_said(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hosts with clocks of their own; messages take their time."""
    rng = random.Random(seed)
    ahead = [0, rng.randrange(-(10**15), 10**15), rng.randrange(-(10**6), 10**6)]
    now = 10**16
    where = threading.local()
    monkeypatch.setattr(tracing, "boot_id", lambda: f"host {where.rank}")
    clock = threading.Lock()

    def read() -> int:
        nonlocal now
        with clock:
            now += rng.randrange(200_000)
            return now + ahead[where.rank]

    monkeypatch.setattr(tracing.time, "perf_counter_ns", read)
    barrier, said = threading.Barrier(3), [None] * 3

    def exchange(mine: Any) -> list[Any]:
        said[where.rank] = mine
        barrier.wait()
        found = list(said)
        barrier.wait()
        return found

    found: list[Any] = [None] * 3

    def run(rank: int) -> None:
        where.rank = rank
        found[rank] = tracing.clock_offset(rank, 3, exchange)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == (0, 0)
    for rank in (1, 2):
        offset, error = found[rank]
        assert abs(offset - ahead[rank]) <= error < 3_000_000


def test_one_rank_has_nobody_to_ask() -> None:
    assert tracing.clock_offset(0, 1, lambda said: []) == (0, 0)
    assert tracing.bounded(5, 4) is None


def test_a_rank_that_runs_its_graph_alone_is_traced_under_its_own_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A replica of an inference job, of two of which both are asked."""
    monkeypatch.setattr("oneflow.jobs.tracing.Trace", Recording)
    one = Tracing()
    one.begin(SimpleNamespace(), tmp_path, 1, {"job": "j1"})  # type: ignore[arg-type]
    tell(one, "start", trace="t1", ranks=[0, 1], steps=3)
    one.hear([one.said()], lambda said: [said])
    state = tell(one, "look").trace
    assert (state.state, state.rank) == ("recording", 1)
    one.begin(SimpleNamespace(), tmp_path, 1, {"job": "j1"})  # type: ignore[arg-type]
    assert tell(one, "look").trace.state == "done"  # its steps ended with the executor
