"""All_reduces that a plan leaves to the backend of eager code: same bits, one order, no circle."""

from __future__ import annotations

import itertools
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from oneflow.actors.communication_stream import CommunicationStream, meetings
from oneflow.actors.fabric import open_fabric
from oneflow.actors.job import Job
from oneflow.boxing.collectives.base import Collectives
from oneflow.boxing.collectives.in_process import InProcessGroup
from oneflow.boxing.collectives.shared_memory import SharedMemoryCollectives
from oneflow.boxing.collectives.tcp import TcpCollectives
from oneflow.core.actor_kinds import ActorKind
from oneflow.core.errors import DesyncError, GraphError
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.metrics import METRICS
from oneflow.core.plan import Plan
from oneflow.kernels import streams
from oneflow.scheduler.compiler.pipeline import compile_graph
from tests.support.waiting import CALL_S, WAIT_S, be_late
from tests.unit.boxing.boxing_ranks import LocalStore

from .programs import RATE, initial, run, shards, two_layers

WIDTH = 9000  # of w1: 288 kB, which is reduced in two halves where it is not lowered
FLAT = {ActorKind.FLAT_REDUCE, ActorKind.FLAT_REDUCE_SCATTER, ActorKind.FLAT_ALL_GATHER}
LAYOUTS = {
    "data-2": (2, two_layers("cpu[0, 1]", "cpu[0, 1]", width=WIDTH), 1),
    "data-3": (3, two_layers("cpu[0, 1, 2]", "cpu[0, 1, 2]", rows=13), 1),
    "tensor-2": (2, two_layers("cpu[0, 1]", "cpu[0, 1]", "B", "S(0)", "S(1)"), 1),
    "two-groups": (4, two_layers("cpu[0, 1]", "cpu[2, 3]", "S(0)", pieces=3), 3),
}
CROSSED = """graph crossed pieces=1 {
  %0: float32[4, 6] (S(0), P) = input(; name='x') @cpu[[0, 1], [2, 3]]
  %1: float32[4, 6] (S(0), B) = to_global(%0) @cpu[[0, 1], [2, 3]]
  %2: float32[4, 6] (P, S(0)) = input(; name='y') @cpu[[0, 1], [2, 3]]
  %3: float32[4, 6] (B, S(0)) = to_global(%2) @cpu[[0, 1], [2, 3]]
  output(%1; index=0) @cpu[[0, 1], [2, 3]]
  output(%3; index=1) @cpu[[0, 1], [2, 3]]
}"""
MANY = "cpu[0, 1]"


def compiled(text: str, world_size: int, lowered: bool = True, **options: int) -> Plan:
    config = JobConfig("job", lower_all_reduce=lowered, **options)  # type: ignore[arg-type]
    plan = compile_graph(parse_graph(text), config, Cluster(world_size))
    return Plan.from_bytes(plan.to_bytes())


def kinds(plan: Plan) -> Counter[ActorKind]:
    return Counter(a.kind for a in plan.actors)


def backend(kind: str, keys: LocalStore) -> Callable[[int, tuple[int, ...]], Collectives]:
    groups: dict[tuple[int, ...], InProcessGroup] = {}
    lock = threading.Lock()

    def opened(rank: int, ranks: tuple[int, ...]) -> Collectives:
        if kind == "in_process":
            with lock:
                group = groups.setdefault(ranks, InProcessGroup(ranks))
            return group.collectives(rank, keys.check)
        name = f"eager/{ranks}"
        if kind == "shm":
            return SharedMemoryCollectives(name, rank, ranks, keys, keys.check, 30.0)
        return TcpCollectives(name, rank, ranks, keys, keys.check, 30.0)

    return opened


def run_ranks(
    plan: Plan,
    kind: str,
    variables: Sequence[dict[str, Any]],
    feeds: Sequence[dict[str, Any]],
    steps: int,
    places: Sequence[str] = (),
    pause: Callable[[int], None] = lambda rank: None,
) -> list[Any]:
    """Outputs of every rank in every step; the ranks are threads. An error is a result too."""
    keys, name, size = LocalStore(), uuid.uuid4().hex, plan.world_size
    opened, done = backend(kind, keys), [threading.Event() for _ in range(size)]
    results: list[Any] = [None] * size

    def rank_main(rank: int) -> None:
        cache: dict[tuple[int, ...], Collectives] = {}
        jobs: list[Job] = []

        def collectives(ranks: tuple[int, ...]) -> Collectives:
            if ranks not in cache:
                cache[ranks] = opened(rank, ranks)
            return cache[ranks]

        try:
            job = Job(
                plan,
                rank,
                variables[rank],
                open_fabric=lambda p, r: open_fabric(
                    p,
                    r,
                    list(range(size)),
                    name,
                    keys,
                    places=places or ("here",) * size,
                    patience_s=CALL_S,
                    collectives=collectives,
                ),
                check=keys.check,
                timeout_s=CALL_S,
            )
            jobs.append(job)
            found = []
            for _ in range(steps):
                pause(rank)
                found.append({k: v.copy() for k, v in job.run(feeds[rank]).items()})
            results[rank] = found
        except Exception as error:
            results[rank] = keys.lost = error
        done[rank].set()
        for event in done:
            event.wait(WAIT_S)
        for opened_one in (*cache.values(), *jobs):
            opened_one.close()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
    return results


@pytest.mark.parametrize("kind", ["in_process", "shm", "tcp"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_lowered_all_reduces_give_the_same_bits(name: str, kind: str) -> None:
    size, text, pieces = LAYOUTS[name]
    rows, width = (13 if name == "data-3" else 12), (WIDTH if name == "data-2" else 16)
    expected, wanted, _ = run(compiled(text, size, lowered=False), 3, width, rows)
    plan = compiled(text, size)
    assert kinds(plan)[ActorKind.ALL_REDUCE]
    assert all(a.acts == pieces > 1 for a in plan.actors if a.kind in FLAT)
    arrays = {**initial(width, rows), "lr": np.array(RATE / 10)}
    variables, feeds = shards(plan, "variable", arrays), shards(plan, "input", arrays)
    found = run_ranks(plan, kind, variables, feeds, 3)
    for rank in range(size):
        assert isinstance(found[rank], list), found[rank]
        for step, outputs in enumerate(found[rank]):
            for key, value in outputs.items():
                np.testing.assert_array_equal(value, expected[step][rank][key])
        for key, value in variables[rank].items():
            np.testing.assert_array_equal(value, wanted[rank][key])


def test_ranks_of_two_hosts_send_no_register_that_the_backend_sums() -> None:
    plan = compiled(LAYOUTS["data-2"][1], 2)
    arrays = {**initial(WIDTH), "lr": np.array(RATE / 10)}
    variables, feeds = shards(plan, "variable", arrays), shards(plan, "input", arrays)
    before = METRICS.message_bytes["tcp", "sent"]
    found = run_ranks(plan, "in_process", variables, feeds, 2, places=("a", "b"))
    assert all(isinstance(f, list) for f in found), found
    assert 0 < METRICS.message_bytes["tcp", "sent"] - before < 4096  # messages without contents


def test_a_call_is_counted_as_that_of_eager_code() -> None:
    plan = compiled(LAYOUTS["data-2"][1], 2)
    arrays = {**initial(WIDTH), "lr": np.array(RATE / 10)}
    variables, feeds = shards(plan, "variable", arrays), shards(plan, "input", arrays)
    before = METRICS.collective_bytes["all_reduce"]
    found = run_ranks(plan, "shm", variables, feeds, 1)
    assert all(isinstance(f, list) for f in found), found
    moved = METRICS.collective_bytes["all_reduce"] - before
    sums = sum(n.outputs[0].type.nbytes for a in plan.actors for n in a.nodes if n.op == "boxing")
    assert sums * 2 <= moved <= sums * 2 + 2 * 64 * len(plan.actors)  # padding between neighbours


# ---- two graphs in turn --------------------------------------------------------------------------


def test_a_step_ends_when_all_it_has_to_send_is_on_its_way() -> None:
    """A rank that goes on to another graph looks at the first one's sockets no more."""
    text = f"""graph sum pieces=1 {{
      %0: float32[{1 << 20}] P = input(; name='x') @{MANY}
      %1: float32[{1 << 20}] B = to_global(%0) @{MANY}
      output(%1; index=0) @{MANY}
    }}"""
    plan, keys = compiled(text, 2, lowered=False), LocalStore()
    results: list[Any] = [None, None]
    done = threading.Barrier(2)

    def rank_main(rank: int) -> None:
        def job(name: str) -> Job:
            def connect(p: Plan, r: int) -> Any:
                return open_fabric(p, r, [0, 1], name, keys, places=("a", "b"), patience_s=CALL_S)

            return Job(plan, rank, {}, open_fabric=connect, check=keys.check, timeout_s=CALL_S)

        jobs = [job("first"), job("second")]
        x = np.full(1 << 20, 1.0 + rank, np.float32)
        try:
            results[rank] = [float(j.run({"x": x})[0][-1]) for _ in range(12) for j in jobs]
        except Exception as error:
            results[rank] = error
        done.wait(WAIT_S)
        for one in jobs:
            one.close()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
    assert results == [[3.0] * 24] * 2


# ---- what is lowered, and in which order ---------------------------------------------------------


def test_without_the_setting_plans_stay_as_they_are() -> None:
    for size, text, _ in LAYOUTS.values():
        assert not kinds(compiled(text, size, lowered=False))[ActorKind.ALL_REDUCE]


def test_a_sum_of_each_piece_is_not_lowered() -> None:
    text = two_layers("cpu[0, 1]", "cpu[0, 1]", "B", "S(0)", "S(1)", pieces=3)
    plan = compiled(text, 2)
    assert all(a.acts == 1 for a in plan.actors if a.kind is ActorKind.ALL_REDUCE)
    assert any(a.acts == 3 for a in plan.actors if a.kind in FLAT)


def test_of_groups_that_cross_only_the_first_waits_in_calls() -> None:
    plan = compiled(CROSSED, 4)
    found = kinds(plan)
    assert found[ActorKind.ALL_REDUCE] == 1 and found[ActorKind.FLAT_REDUCE] == 1


def many_sums(count: int) -> str:
    """Sums that do not depend on each other, in actors of their own."""
    lines = ["graph many pieces=1 {"]
    for i in range(count):
        size = 3 + i
        lines.append(f"  %{2 * i}: float32[{size}] P = input(; name='x{i}') @{MANY}")
    for i in range(count):
        size = 3 + i
        lines.append(f"  %{2 * i + 1}: float32[{size}] B = to_global(%{2 * i}) @{MANY}")
    lines += [f"  output(%{2 * i + 1}; index={i}) @{MANY}" for i in range(count)]
    return "\n".join([*lines, "}"])


def compiled_apart(count: int) -> Plan:
    config = JobConfig("job", lower_all_reduce=True, fuse_boxing=False)
    plan = compile_graph(parse_graph(many_sums(count)), config, Cluster(2))
    return Plan.from_bytes(plan.to_bytes())


def test_calls_of_a_rank_have_one_order() -> None:
    plan = compiled_apart(5)
    calls = [a for a in plan.actors if a.kind is ActorKind.ALL_REDUCE]
    assert len(calls) == 5
    for first, second in itertools.pairwise(calls):
        assert any(not r.values and second in r.consumers for r in first.outputs)


@pytest.mark.parametrize("seed", range(5))
def test_ranks_that_come_at_odd_times_make_their_calls_in_that_order(seed: int) -> None:
    plan, rng, steps = compiled_apart(6), random.Random(seed), 8
    feeds = [
        {f"x{i}": np.full(3 + i, float(i + 10 * rank), np.float32) for i in range(6)}
        for rank in (0, 1)
    ]
    pause = lambda rank: be_late(rng.random() * 0.004)  # noqa: E731
    found = run_ranks(plan, "shm", [{}, {}], feeds, steps, pause=pause)
    for outputs in found:
        assert isinstance(outputs, list), outputs
        assert len(outputs) == steps
        for step in outputs:
            for i in range(6):
                np.testing.assert_array_equal(step[i], np.full(3 + i, 2.0 * i + 10, np.float32))


def test_a_rank_whose_call_differs_is_told_the_actor() -> None:
    """The actor is part of the call: a backend that was used elsewhere meanwhile is found out."""
    plan = compiled(LAYOUTS["data-2"][1], 2)
    keys = LocalStore()
    opened = backend("in_process", keys)
    other = opened(1, (0, 1))
    errors: list[Exception] = []

    def elsewhere() -> None:
        try:
            other.all_reduce(np.zeros(4, np.float32))
        except DesyncError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    actor = next(a for a in plan.actors if a.kind is ActorKind.ALL_REDUCE)
    with pytest.raises(DesyncError, match=f"rank 0: all_reduce of {actor.kind.name.lower()}"):
        what = f"all_reduce of {actor.name}"
        opened(0, (0, 1)).all_reduce(np.zeros(4, np.float32), what=what)
    thread.join(WAIT_S)
    assert len(errors) == 1


def test_one_thread_for_all_ranks_refuses_to_wait_in_calls() -> None:
    size, text, _ = LAYOUTS["data-2"]
    with pytest.raises(GraphError, match="compile without lower_all_reduce"):
        run(compiled(text, size), 1, WIDTH)


# ---- beside the kernels of a GPU -----------------------------------------------------------------


def test_an_actor_waits_for_the_exchanges_whose_memory_it_uses_and_no_others() -> None:
    plan = compiled(two_layers(MANY, MANY, width=WIDTH), 2, bucket_nbytes=1024)
    found = meetings(plan.actors)
    exchanges = {a.id: a for a in plan.actors if a.kind is ActorKind.ALL_REDUCE}
    assert exchanges
    for actor in plan.actors:
        if actor.id in exchanges:
            assert actor.id not in found
            continue
        met = set(found.get(actor.id, ()))
        neighbours = {
            e.id
            for e in exchanges.values()
            if any(r.producer is actor for r in e.inputs)
            or any(actor in r.consumers for r in (*e.inputs, *e.outputs))
        }
        assert neighbours <= met <= set(exchanges)
    first, *_, last = exchanges.values()
    makers = [r.producer for r in last.inputs if r.values]
    for maker in makers:  # computed while the first bucket is on its way
        assert first.id not in found[maker.id]


class Noted:
    """Events of a stream, as they are made and waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[Any] = []
        monkeypatch.setattr(streams, "beside", self._beside)
        monkeypatch.setattr(streams, "mark", self._mark)
        monkeypatch.setattr(streams, "wait", lambda event: self.done.append(("wait", event)))

    @contextmanager
    def _beside(self, name: str) -> Iterator[None]:
        self.done.append(("enter", name))
        yield
        self.done.append("leave")

    def _mark(self) -> int:
        self.done.append("mark")
        return len(self.done)


def test_an_exchange_runs_beside_and_its_readers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, noted = compiled(two_layers(MANY, MANY, width=WIDTH), 2), Noted(monkeypatch)
    beside = CommunicationStream(plan.actors)
    exchange = next(a for a in plan.actors if a.kind is ActorKind.ALL_REDUCE)
    reader = next(a for a in plan.actors if exchange.id in beside.meetings.get(a.id, ()))

    def act(name: str, *_: object) -> None:
        noted.done.append(name)

    sum_, read = (beside.ordered(a, partial(act, a.name)) for a in (exchange, reader))
    read((0,), (0,))
    assert noted.done == [reader.name]  # nothing is on its way yet
    sum_((0,), (0,))
    read((0,), (0,))
    expected = [("enter", streams.BOXING), exchange.name, "mark", "leave", ("wait", 4), reader.name]
    assert noted.done[1:] == expected
