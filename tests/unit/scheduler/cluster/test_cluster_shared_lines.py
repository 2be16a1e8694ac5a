"""One stream of several daemons at the scheduler: slots, one beat, ends of one and of all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

from oneflow.core.control_channel import PROTOCOL
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.auth import Caller, act_as
from oneflow.scheduler.cluster.daemons_service import DaemonsService
from oneflow.scheduler.cluster.lines import Lines
from oneflow.scheduler.jobs.events import DaemonGone, DaemonJoined, LineBeat
from oneflow.scheduler.jobs.messages import packed, parts_of


def hello(slot: int) -> pb.DaemonMessage:
    said = pb.Hello(
        daemon=f"n/cpu:{slot}",
        node="n",
        device_type="cpu",
        device_index=slot,
        address="n.local",
        incarnation=slot,
        protocol=PROTOCOL,
    )
    return pb.DaemonMessage(slot=slot, hello=said)


def beat(*heard: tuple[int, int]) -> pb.DaemonMessage:
    others = [pb.Present(slot=slot, epoch=epoch) for slot, epoch in heard]
    return pb.DaemonMessage(beat=pb.DaemonBeat(number=5, others=others))


class Rig:
    """The service without a table: `events` are those that it would hear."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.lines = Lines()
        driver = SimpleNamespace(tell=self.events.append, room=lambda: asyncio.sleep(0))
        self.detected: list[tuple[str, float]] = []
        metrics = SimpleNamespace(failure_detected=lambda *found: self.detected.append(found))
        state: Any = SimpleNamespace(driver=driver, lines=self.lines, metrics=metrics)
        self.service = DaemonsService(state)

    def welcome(self, slot: int) -> None:
        line = self.lines.welcome(f"n/cpu:{slot}", slot, 10 + slot)
        assert line is not None
        line.send(pb.SchedulerMessage(welcome=pb.Welcome(epoch=10 + slot)))

    def refuse(self, slot: int) -> None:
        for line in self.lines.of_incarnation(f"n/cpu:{slot}", slot):
            line.send(pb.SchedulerMessage(fenced="another is here"))
            line.close("another is here")

    def attach(self, *said: pb.DaemonMessage | Callable[[], None]) -> list[pb.SchedulerMessage]:
        """Return the messages to the stream, when this was said and done over it, until it ends."""

        async def words() -> AsyncIterator[pb.DaemonMessage]:
            for one in said:
                if isinstance(one, pb.DaemonMessage):
                    yield one
                else:
                    one()

        async def scene() -> list[pb.SchedulerMessage]:
            act_as(Caller("daemon", "daemon", ""))
            context: Any = SimpleNamespace(peer=lambda: "ipv4:10.0.0.1:4000")
            return [message async for message in self.service.Attach(words(), context)]

        return asyncio.run(scene())


def told(messages: list[pb.SchedulerMessage]) -> list[tuple[int, str | None]]:
    parts = [part for message in messages for part in parts_of(message)]
    return [(part.slot, part.WhichOneof("kind")) for part in parts]


def test_daemons_of_one_stream_join_each_for_itself_and_are_lost_together() -> None:
    rig = Rig()
    said = rig.attach(
        hello(1), hello(2), lambda: rig.welcome(1), lambda: rig.welcome(2), beat((1, 11), (2, 12))
    )
    joined = [event for event in rig.events if isinstance(event, DaemonJoined)]
    assert [(e.hello.daemon, e.line) for e in joined] == [("n/cpu:1", "n"), ("n/cpu:2", "n")]
    assert rig.events[2:] == [
        LineBeat((("n/cpu:1", 11), ("n/cpu:2", 12))),
        DaemonGone("n/cpu:1", 11, "lost"),
        DaemonGone("n/cpu:2", 12, "lost"),
    ]
    both = [(1, "welcome"), (2, "welcome"), (0, "ack"), (1, "closed"), (2, "closed")]
    assert told(said) == both


def test_what_waits_together_is_said_at_once_in_both_directions() -> None:
    rig, all_slots = Rig(), range(1, 9)

    def welcome_all() -> None:
        for slot in all_slots:
            rig.welcome(slot)

    beats = beat(*((slot, 10 + slot) for slot in all_slots))
    said = rig.attach(packed(deque(map(hello, all_slots))), welcome_all, beats)
    joined = [event for event in rig.events if isinstance(event, DaemonJoined)]
    assert [event.hello.daemon for event in joined] == [f"n/cpu:{slot}" for slot in all_slots]
    welcomes = [(slot, "welcome") for slot in all_slots]
    assert told(said)[:9] == [*welcomes, (0, "ack")]
    assert len(said) <= 2


def test_a_daemon_that_cannot_be_ends_its_own_slot_and_not_the_line() -> None:
    rig, wrong = Rig(), hello(2)
    wrong.hello.device_type = "abacus"
    said = rig.attach(wrong, hello(1), lambda: rig.welcome(1), beat((1, 11)))
    assert told(said)[:3] == [(2, "closed"), (1, "welcome"), (0, "ack")]
    assert "no device 'abacus'" in said[0].parts[0].closed if said[0].parts else said[0].closed
    assert rig.events[1] == LineBeat((("n/cpu:1", 11),))


def test_who_is_refused_ends_its_own_slot_and_not_the_line() -> None:
    rig = Rig()
    said = rig.attach(
        hello(1), hello(2), lambda: rig.welcome(1), lambda: rig.refuse(2), beat((1, 11), (2, 12))
    )
    assert told(said)[:4] == [(1, "welcome"), (2, "fenced"), (2, "closed"), (0, "ack")]
    assert rig.events[2:] == [LineBeat((("n/cpu:1", 11),)), DaemonGone("n/cpu:1", 11, "lost")]


def test_a_daemon_that_died_leaves_the_line_to_the_others() -> None:
    rig = Rig()
    died = pb.DaemonMessage(slot=2, closed=True, seen_s=0.25)
    rig.attach(
        hello(1), hello(2), lambda: rig.welcome(1), lambda: rig.welcome(2), died, beat((1, 11))
    )
    assert rig.events[2:] == [
        DaemonGone("n/cpu:2", 12, "died"),
        LineBeat((("n/cpu:1", 11),)),
        DaemonGone("n/cpu:1", 11, "lost"),
    ]
    assert rig.detected == [("process", 0.25)]
