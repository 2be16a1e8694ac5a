"""The line that the daemons of a node share: slots, one beat for all, losses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from oneflow.core.errors import ConfigError, ProtocolError
from oneflow.launcher.daemon.node import settings_of
from oneflow.launcher.daemon.settings import DaemonSettings, devices_in
from oneflow.launcher.daemon.shared_line import Guest, SharedLine
from oneflow.protos import cluster_pb2 as pb

SETTINGS = DaemonSettings("cpu:0", "head:9400", Path("/state"), node="n", token="t", env={})


def guests_of(line: SharedLine, count: int) -> list[Guest]:
    return [line.add(pb.Hello(daemon=f"n/cpu:{number}")) for number in range(count)]


def beat_of(line: SharedLine, guest: Guest, number: int) -> None:
    line.take(guest, pb.DaemonMessage(epoch=10 + guest.slot, beat=pb.DaemonBeat(number=number)))


def said_to(guest: Guest) -> list[pb.SchedulerMessage | None]:
    return [guest.mail.get_nowait() for _ in range(guest.mail.qsize())]


def test_each_says_hello_under_a_slot_of_its_own() -> None:
    line = SharedLine(SETTINGS)
    first, second = guests_of(line, 2)
    hellos = [(m.slot, m.hello.daemon) for m in line._first_words()]
    assert hellos == [(1, "n/cpu:0"), (2, "n/cpu:1")]
    line.take(second, pb.DaemonMessage(epoch=7, prepared=pb.Prepared(master_port=5)))
    line.remove(first, 0.25)
    line.add(pb.Hello(daemon="n/cpu:0"))
    said = [(m.slot, m.WhichOneof("kind"), m.epoch) for m in line._urgent]
    assert said == [(2, "prepared", 7), (1, "closed", 0), (3, "hello", 0)]
    assert line._urgent[1].closed
    with pytest.raises(ProtocolError, match="n/cpu:1 says hello"):
        line.take(second, pb.DaemonMessage(hello=pb.Hello()))


def test_one_beat_names_all_that_were_heard_and_its_answer_is_each_ones() -> None:
    line = SharedLine(SETTINGS)
    first, second, silent = guests_of(line, 3)
    line._first_words()
    beat_of(line, first, 4)
    beat_of(line, second, 9)
    beat = line._beat(1)
    assert [(o.slot, o.epoch) for o in beat.beat.others] == [(1, 11), (2, 12)]
    beat_of(line, first, 5)  # after the line's beat: not answered for yet
    line._heard(pb.SchedulerMessage(ack=1))
    assert said_to(first) == [pb.SchedulerMessage(ack=4)]
    assert said_to(second) == [pb.SchedulerMessage(ack=9)]
    assert said_to(silent) == []
    second.beaten_at -= 2 * SETTINGS.heartbeat_s  # frozen, while the line goes on
    assert [o.slot for o in line._beat(2).beat.others] == [1]


def test_a_lost_line_is_lost_for_all_who_had_it() -> None:
    line = SharedLine(SETTINGS)
    first, second = guests_of(line, 2)
    line._line_lost()  # before it was open: they wait for the next
    assert said_to(first) == said_to(second) == []
    line._first_words()
    line._heard(pb.SchedulerMessage(slot=1, closed="fenced"))
    assert (said_to(first), first.why_lost) == ([None], "")
    line._is_welcome = False
    late = line.add(pb.Hello(daemon="n/cpu:2"))
    line._line_lost()
    assert said_to(second) == [None]
    assert "line to the scheduler is lost" in second.why_lost
    assert said_to(late) == []
    assert [m.hello.daemon for m in line._first_words()] == ["n/cpu:2"]


def test_what_comes_for_a_slot_goes_to_its_daemon() -> None:
    line = SharedLine(SETTINGS)
    first, second = guests_of(line, 2)
    line._first_words()
    welcome = pb.Welcome(epoch=3, heartbeat_s=2.5, act_s=30.0)
    line._heard(pb.SchedulerMessage(slot=2, welcome=welcome))
    line._heard(pb.SchedulerMessage(slot=7, drain=True))
    assert (said_to(first), len(said_to(second))) == ([], 1)
    assert (line._heartbeat_s, line._act_s) == (2.5, 30.0)  # the pace of all
    pace = pb.SchedulerMessage(pace=pb.Pace(heartbeat_s=4.0, act_s=40.0))
    line._heard(pace)
    assert (said_to(first), said_to(second)) == ([pace], [pace])
    assert (line._heartbeat_s, line._act_s) == (4.0, 40.0)


def test_a_process_that_is_gone_has_died_but_for_one_that_left() -> None:
    nobody = pb.Hello(daemon="n/cpu:0", pid=2**22 + 1)
    assert asyncio.run(Guest(1, nobody).death_s()) == 0.0
    left = Guest(2, nobody)
    left.has_left = True
    assert asyncio.run(left.death_s()) is None


def test_devices_are_named_alone_or_as_a_range() -> None:
    assert devices_in("cuda:3") == ["cuda:3"]
    assert devices_in("cpu:6-8") == ["cpu:6", "cpu:7", "cpu:8"]
    for wrong in ("cpu:3-1", "cpu:", "gpu:0-1", "cpu:0,1"):
        with pytest.raises(ConfigError, match="--device"):
            devices_in(wrong)


def test_daemons_of_a_node_attach_to_its_line_and_have_pages_of_their_own() -> None:
    given = replace(
        SETTINGS, credentials=object(), metrics_addr="0.0.0.0:9410", env={"NOTIFY_SOCKET": "/x"}
    )
    own = settings_of(given, "cpu:2", 2, Path("/run/line"))
    assert (own.id, own.scheduler, own.credentials) == ("n/cpu:2", "unix:/run/line", None)
    assert own.metrics_addr == "0.0.0.0:9412"
    assert own.rank_base_env() == {"ONEFLOW_JOB_TLS": "1"}  # the scheduler's line has TLS
