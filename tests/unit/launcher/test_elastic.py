"""The membership of an elastic job on a fake clock, and launchers that meet in one process."""

from __future__ import annotations

import random
import socket
import time
from dataclasses import replace

import pytest

from oneflow.core.blame import SETTLE_S
from oneflow.core.errors import ConfigError
from oneflow.launcher.elastic.host import Host, JobFace
from oneflow.launcher.elastic.lines import MAX_LINE_NBYTES, Lines
from oneflow.launcher.elastic.membership import (
    Action,
    BeginRound,
    DropNode,
    EndJob,
    EndRound,
    Limits,
    Membership,
    NodeCame,
    NodeLeft,
    Phase,
    RanksEnded,
    Tick,
)
from oneflow.launcher.elastic.seat import Over, Round, Seat, _is_welcome, take_seat

LIMITS = Limits(least=2, most=4, last_call_s=30.0, join_s=300.0, stop_s=20.0, max_restarts=1)


def begun(actions: list[Action]) -> dict[int, tuple[int, int]]:
    """Index and size by node."""
    return {a.node: (a.index, a.size) for a in actions if isinstance(a, BeginRound)}


def running(num_nodes: int = 3, limits: Limits = LIMITS) -> Membership:
    """A job in its first round, which began at 30 s."""
    job = Membership(limits)
    for node in range(num_nodes):
        job.step(NodeCame(node, f"n{node}"), 0.0)
    assert len(begun(job.step(Tick(), 30.0))) == num_nodes or num_nodes == limits.most
    return job


def test_the_first_round_waits_for_a_last_call_after_the_least_have_come() -> None:
    job = Membership(LIMITS)
    assert job.step(NodeCame(0, "a"), 0.0) == []
    assert job.step(NodeCame(1, "b"), 100.0) == []
    assert job.step(NodeCame(2, "c"), 129.0) == []
    assert begun(job.step(Tick(), 130.0)) == {0: (0, 3), 1: (1, 3), 2: (2, 3)}


def test_the_most_nodes_begin_at_once_and_one_more_waits() -> None:
    job = Membership(LIMITS)
    for node in range(3):
        job.step(NodeCame(node, "a"), 0.0)
    assert len(begun(job.step(NodeCame(3, "d"), 0.0))) == 4
    assert job.step(NodeCame(4, "e"), 1.0) == job.step(Tick(), 99.0) == []
    job.step(NodeLeft(1), 100.0)
    for node in (0, 2):
        assert job.step(RanksEnded(node, 1, None), 101.0) == []
    assert begun(job.step(RanksEnded(3, 1, None), 102.0)) == {
        0: (0, 4),
        2: (1, 4),
        3: (2, 4),
        4: (3, 4),
    }


def test_too_few_nodes_end_the_job_after_the_time_to_join() -> None:
    job = Membership(LIMITS)
    job.step(NodeCame(0, "a"), 0.0)
    assert job.step(Tick(), 299.0) == []
    (over,) = job.step(Tick(), 300.0)
    assert over == EndJob(0, 84, "1 of at least 2 nodes came within 300 s")


def test_a_node_that_goes_costs_no_restart_and_the_others_begin_when_all_have_ended() -> None:
    job = running()
    assert job.step(NodeLeft(1), 50.0) == [EndRound(0), EndRound(2)]
    assert job.step(RanksEnded(2, 1, 85, "rank 1 is gone"), 51.0) == []
    actions = job.step(RanksEnded(0, 1, None), 52.0)
    assert begun(actions) == {0: (0, 2), 2: (1, 2)}
    first = actions[0]
    assert isinstance(first, BeginRound)
    assert (first.round, first.restarts, first.why) == (2, 0, "node n1 left")


def test_ranks_that_follow_a_node_that_went_are_no_failure() -> None:
    job = running()
    assert job.step(RanksEnded(2, 1, 85, "lost"), 50.0) == []
    assert job.step(RanksEnded(0, 1, 143, "stopped"), 50.1) == []
    assert begun(job.step(NodeLeft(1), 50.2)) == {0: (0, 2), 2: (1, 2)}
    assert job.restarts == 0


def test_nobody_is_let_in_before_the_last_call_is_over() -> None:
    job = running(3, replace(LIMITS, most=5))
    assert job.step(NodeCame(7, "new"), 100.0) == []
    assert job.step(Tick(), 129.9) == []
    assert job.step(Tick(), 130.0) == [EndRound(node) for node in (0, 1, 2)]
    job.step(RanksEnded(0, 1, None), 131.0)
    job.step(RanksEnded(1, 1, None), 131.0)
    actions = job.step(RanksEnded(2, 1, None), 131.0)
    assert begun(actions) == {0: (0, 4), 1: (1, 4), 2: (2, 4), 7: (3, 4)}


def test_newcomers_that_make_it_full_are_let_in_at_once_but_not_when_a_node_is_done() -> None:
    job = running(2)
    job.step(NodeCame(5, "e"), 100.0)
    assert job.step(NodeCame(6, "f"), 101.0) == [EndRound(0), EndRound(1)]
    late = running(3)
    late.step(RanksEnded(1, 1, 0), 99.0)
    late.step(NodeCame(7, "new"), 100.0)
    assert late.step(Tick(), 200.0) == []
    late.step(RanksEnded(0, 1, 0), 201.0)
    over = late.step(RanksEnded(2, 1, 0), 202.0)
    assert over == [EndJob(node, 0, "") for node in (0, 1, 2, 7)]


def test_a_failure_spends_a_restart_and_the_last_one_ends_the_job() -> None:
    job = running()
    assert job.step(RanksEnded(1, 1, 3, "exited with code 3"), 50.0) == [EndRound(0), EndRound(2)]
    job.step(RanksEnded(0, 1, None), 51.0)
    again = job.step(RanksEnded(2, 1, 85), 51.0)
    assert len(begun(again)) == 3 and job.restarts == 1
    job.step(RanksEnded(1, 2, 3, "exited with code 3"), 60.0)
    job.step(RanksEnded(0, 2, None), 61.0)
    over = job.step(RanksEnded(2, 2, None), 61.0)
    assert over == [EndJob(node, 3, "node n1: exited with code 3") for node in (0, 1, 2)]


@pytest.mark.parametrize(("code", "left"), [(85, 1), (143, 1), (78, 1)])
def test_which_ends_count_as_failures(code: int, left: int) -> None:
    job = running()
    for node in range(3):
        job.step(RanksEnded(node, 1, code, "x"), 50.0)
    job.step(Tick(), 50.0 + SETTLE_S)
    is_hopeless = code == 78
    assert (job.phase is Phase.OVER, job.restarts) == (is_hopeless, 0 if is_hopeless else left)


def test_a_node_that_cannot_end_its_ranks_is_dropped() -> None:
    job = running()
    job.step(NodeLeft(2), 50.0)
    job.step(RanksEnded(0, 1, None), 51.0)
    assert job.step(Tick(), 69.0) == []
    assert job.step(Tick(), 70.0) == [DropNode(1)]
    assert job.phase is Phase.GATHERING
    assert len(begun(job.step(NodeCame(9, "new"), 80.0) + job.step(Tick(), 110.0))) == 2


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_and_goes_the_job_ends_and_no_round_has_a_wrong_size(seed: int) -> None:
    rng, job, now = random.Random(seed), Membership(LIMITS), 0.0
    there: set[int] = set()
    busy: dict[int, int] = {}  # the round that a node's ranks run
    told: set[int] = set()
    over: set[int] = set()

    def hear(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, DropNode):
                there.discard(action.node)
                del busy[action.node]
        begins = begun(actions)
        if begins:
            assert not busy, "all ranks of the last round have ended"
            assert 2 <= len(begins) <= 4 and begins[0] == (0, len(begins))
            assert sorted(i for i, _ in begins.values()) == list(range(len(begins)))
        for action in actions:
            match action:
                case BeginRound(node=node, round=number):
                    busy[node] = number
                case EndRound(node=node):
                    told.add(node)
                case EndJob(node=node):
                    over.add(node)

    def end(node: int, code: int | None) -> None:
        told.discard(node)
        hear(job.step(RanksEnded(node, busy.pop(node), code, "x"), now))

    for number in range(200):
        now += rng.random() * 5
        choice = rng.random()
        if number < 2 or choice < 0.1:
            there.add(number)
            hear(job.step(NodeCame(number, f"n{number}"), now))
        elif choice < 0.2 and len(there) > 1:
            node = rng.choice(sorted(there - {0}))
            there.discard(node)
            busy.pop(node, None)
            told.discard(node)
            hear(job.step(NodeLeft(node), now))
        elif choice < 0.6 and told & busy.keys():
            end(rng.choice(sorted(told & busy.keys())), None)
        elif choice < 0.62 and busy:
            end(rng.choice(sorted(busy)), rng.choice((1, 85, 0)))
        hear(job.step(Tick(), now))
    for _ in range(40):
        now += 400.0
        for node in sorted(busy):
            if node in busy:
                end(node, None if node in told else 0)
        hear(job.step(Tick(), now))
    assert job.phase is Phase.OVER and over >= there


# ---- launchers that meet -------------------------------------------------------------------------

FACE = JobFace("j", 1, "secret")
QUICK = Limits(least=2, most=3, last_call_s=0.0, join_s=60.0, stop_s=20.0, max_restarts=0)


def make_host(face: JobFace = FACE, limits: Limits = QUICK) -> tuple[Host, Seat, tuple[str, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    address: tuple[str, int] = listener.getsockname()
    host = Host(listener, face, limits, pick_port=lambda: 7)
    return host, Seat(host.add_own("own"), host), address


def guest_of(address: tuple[str, int], host: Host, face: JobFace = FACE) -> Seat:
    """Join as another launcher would; the host is polled whenever it would wait."""
    lines = Lines(socket.create_connection(address))
    polled = PolledLines(lines, host)
    assert _is_welcome(polled, face, "guest", until=time.monotonic() + 60)  # type: ignore[arg-type]
    return Seat(lines, None)


class PolledLines:
    """Lines of which each look lets the host look first, as both are in one thread here."""

    def __init__(self, lines: Lines, host: Host) -> None:
        self._lines, self._host = lines, host

    def fileno(self) -> int:
        self._host.poll()
        return self._lines.fileno()

    def __getattr__(self, name: str) -> object:
        return getattr(self._lines, name)


def test_launchers_meet_run_a_round_and_end_together() -> None:
    host, own, address = make_host()
    guest = guest_of(address, host)
    first = own.wait()
    assert first == Round(1, 0, 2, 0, 7, "")
    assert guest.wait() == Round(1, 1, 2, 0, 7, "")
    assert not own.is_to_end() and not guest.is_to_end()
    guest.say_ended(1, 3, "exited with code 3")
    while not own.is_to_end():
        pass
    own.say_ended(1, None, "")
    assert own.wait() == Over(3, "node guest: exited with code 3")
    assert guest.wait() == Over(3, "node guest: exited with code 3")
    own.close()
    guest.close()


def test_a_guest_that_is_gone_leaves_and_a_host_that_is_gone_ends_the_job() -> None:
    host, own, address = make_host(limits=replace(QUICK, least=3))
    guests = [guest_of(address, host) for _ in range(2)]
    assert isinstance(own.wait(), Round)
    guests[0].close()
    while not own.is_to_end():
        pass
    assert isinstance(guests[1].wait(), Round)
    own.close()
    assert guests[1].wait() == Over(85, "node 0, at whose endpoint the nodes meet, is gone")
    guests[1].close()


@pytest.mark.parametrize(
    ("face", "said"),
    [
        (JobFace("j", 1, "guessed"), "it has another ONEFLOW_JOB_TOKEN"),
        (JobFace("k", 1, "secret"), "its --rdzv-id is 'k', and that of node 0 is 'j'"),
        (JobFace("j", 2, "secret"), "its --nproc_per_node is not 1, as on node 0"),
    ],
)
def test_nodes_of_other_jobs_are_refused(face: JobFace, said: str) -> None:
    host, own, address = make_host()
    with pytest.raises(ConfigError, match=said):
        guest_of(address, host, face)
    own.close()


def test_a_host_that_does_not_know_the_secret_is_not_believed() -> None:
    host, own, address = make_host(JobFace("j", 1, ""))
    host._face = Liar("j", 1, "")
    with pytest.raises(ConfigError, match="is no node 0 of this job"):
        guest_of(address, host)
    own.close()


class Liar(JobFace):
    """An endpoint that lets everybody in."""

    def problem(self, said: dict[str, object], nonce: str) -> str:
        return ""


def test_nonsense_and_lines_without_end_close_a_connection() -> None:
    for sent in (b"no json\n", b"[1]\n", b"x" * (MAX_LINE_NBYTES + 1)):
        ours, theirs = socket.socketpair()
        lines = Lines(ours)
        theirs.settimeout(60)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_LINE_NBYTES)
        theirs.sendall(sent)
        assert lines.receive() == [] and not lines.is_open
        theirs.close()


def test_the_second_launcher_at_an_endpoint_is_not_its_host() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = "127.0.0.1", listener.getsockname()[1]
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1"):
        take_seat(endpoint, FACE, QUICK, is_host=True)
    listener.close()
    seat = take_seat(endpoint, FACE, QUICK, is_host=None)
    assert seat._host is not None
    seat.close()
