"""Words of daemons are checked where they come in; records for the store are put together
rightly.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from oneflow.core.control_channel import PROTOCOL
from oneflow.core.errors import ConfigError, ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.driver import _compacted
from oneflow.scheduler.cluster.logs import Wanted
from oneflow.scheduler.jobs.events import (
    DaemonGone,
    Heard,
    LineBeat,
    Remove,
    Save,
    SaveEpoch,
    TellPrepare,
)
from oneflow.scheduler.jobs.messages import (
    MAX_PARTS,
    MAX_PARTS_NBYTES,
    event_of,
    joined,
    packed,
    parts_of,
    prepare_message,
)
from oneflow.scheduler.jobs.records import JobRecord, JobSpec

from .table_rig import Rig

KEY = pb.AttemptId(job_id="j1", attempt=1, rank=0)


def hello(**fields: Any) -> pb.Hello:
    whole = {
        "daemon": "n1/cpu:0",
        "node": "n1",
        "device_type": "cpu",
        "incarnation": 5,
        "protocol": PROTOCOL,
        "address": "10.0.0.1",
    }
    return pb.Hello(**{**whole, **fields})


def test_a_hello_becomes_a_joining() -> None:
    running = pb.RunningAttempt(id=KEY, phase="running", last_step=3)
    event = joined(hello(running=[running], epoch=4))
    assert event.hello == hello(running=[running], epoch=4)


def test_messages_that_wait_together_become_few_of_bounded_size_in_their_order() -> None:
    small = [pb.SchedulerMessage(slot=slot, drain=True) for slot in range(1, 2 * MAX_PARTS)]
    large = [pb.SchedulerMessage(slot=1, fenced="x" * (MAX_PARTS_NBYTES // 2 + n)) for n in (1, 2)]
    waiting, found = deque([*small, *large, small[0]]), []
    while waiting:
        found.append(packed(waiting))
    assert [len(parts_of(message)) for message in found] == [MAX_PARTS, MAX_PARTS, 2]
    assert [part for message in found for part in parts_of(message)] == [*small, *large, small[0]]
    alone = deque(large[:1])
    assert packed(alone) is large[0]


def test_each_rank_is_told_how_many_share_its_node() -> None:
    rig = Rig(0)
    for name in ("n0/cpu:0", "n0/cpu:1", "n0/cpu:2", "n1/cpu:0", "n2/cpu:0", "n2/cpu:1"):
        rig.join(name)
    rig.submit(devices=6)
    spec = pb.JobSpec(name="told")
    told = [prepare_message(action, "", spec).prepare for action in rig.told(TellPrepare)]
    told.sort(key=lambda prepare: rig.job().assignments[prepare.id.rank].node)
    assert [prepare.local_world_size for prepare in told] == [3, 3, 3, 1, 2, 2]
    assert {(prepare.world_size, prepare.spec.name) for prepare in told} == {(6, "told")}


@pytest.mark.parametrize(
    "fields",
    [
        {"daemon": "n1"},
        {"daemon": "n1/tpu:0"},
        {"daemon": "../../n1/cpu:0"},
        {"node": "a b"},
        {"node": "n2"},  # not that of its name
        {"device_index": 3},
        {"device_type": "tpu"},
        {"address": "10.0.0.1; rm"},
        {"incarnation": 0},
        {"folder": "/x" * 1000},
        {"folder": "/a\nb"},
        {"kept": ["j"] * 10_001},
        {"running": [pb.RunningAttempt(id=KEY, phase="dancing")]},
        {"running": [pb.RunningAttempt(id=pb.AttemptId(job_id="../x"), phase="running")]},
    ],
)
def test_a_hello_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        joined(hello(**fields))


def test_a_daemon_of_another_protocol_is_told_both() -> None:
    with pytest.raises(ConfigError, match=f"protocol {PROTOCOL + 1}, this scheduler {PROTOCOL}"):
        joined(hello(protocol=PROTOCOL + 1))


def test_messages_become_events() -> None:
    beat = pb.DaemonMessage(epoch=3, beat=pb.DaemonBeat(number=1))
    assert event_of(beat, "d", lambda: 9.0) == LineBeat((("d", 3),))
    exited = pb.Exited(id=KEY, exit_code=-9, reason="SIGNAL", cause="k" * 20_000, seen_s=-1.0)
    event = event_of(pb.DaemonMessage(epoch=3, exited=exited), "d")
    assert isinstance(event, Heard) and (event.kind, event.epoch) == ("exited", 3)
    end = event.message.exited
    assert (end.exit_code, len(end.cause), end.seen_s) == (137, 16384, 0.0)  # as a shell shows it
    assert event_of(pb.DaemonMessage(epoch=3, leaving={}), "d") == DaemonGone("d", 3, "left")
    assert event_of(pb.DaemonMessage(), "d") is None
    assert event_of(pb.DaemonMessage(log=pb.LogData()), "d") is None


@pytest.mark.parametrize(
    "message",
    [
        pb.DaemonMessage(progress=pb.Progress(id=KEY, step=2**63)),
        pb.DaemonMessage(progress=pb.Progress(id=pb.AttemptId(job_id="a/b"))),
        pb.DaemonMessage(exited=pb.Exited(id=KEY, last_step=2**64 - 1)),
        pb.DaemonMessage(prepared=pb.Prepared(id=KEY, master_port=70_000)),
    ],
)
def test_messages_that_cannot_be_are_refused(message: pb.DaemonMessage) -> None:
    with pytest.raises(ProtocolError):
        event_of(message, "d")


def test_what_a_job_makes_too_long_is_left_out_and_ends_no_stream() -> None:
    metrics = {str(n): 0.0 for n in range(2000)} | {"x" * 500: 0.0, "loss": 1.0}
    progress = pb.Progress(id=KEY, step=7, metrics=metrics, checkpoint="x" * 5000)
    progress.checkpoint_step = 7
    event = event_of(pb.DaemonMessage(epoch=3, progress=progress), "d")
    assert isinstance(event, Heard)
    found = event.message.progress
    assert found.step == 7
    assert len(found.metrics) == 1000
    assert (found.checkpoint, found.checkpoint_step) == ("", 0)
    progress = pb.Progress(id=KEY, metrics={"x" * 257: 0.0, "loss": 1.0})
    event = event_of(pb.DaemonMessage(epoch=3, progress=progress), "d")
    assert isinstance(event, Heard)
    assert dict(event.message.progress.metrics) == {"loss": 1.0}


def test_offsets_of_logs_are_checked() -> None:
    request = pb.LogsRequest(ranks=[2, 0, 2], offsets={"1/0/stdout": 7, "2/0/stderr": 1})
    request.follow = True
    wanted = Wanted.parse(request)
    assert wanted.ranks == (0, 2)
    assert wanted.offsets == {(1, 0, "stdout"): 7, (2, 0, "stderr"): 1}
    assert wanted.first_attempt(JobRecord("j", JobSpec(), attempt=3)) == 1
    for bad in ("1/0", "1/0/stdin", "x/0/stdout", "1/-1/stdout", "../0/stdout"):
        with pytest.raises(ProtocolError):
            Wanted.parse(pb.LogsRequest(offsets={bad: 1}))


def test_changes_that_wait_for_the_store_are_put_together() -> None:
    def save(job: str, step: int) -> Save:
        return Save(JobRecord(job, JobSpec(), last_step=step))

    changes = [save("a", 1), SaveEpoch(1), save("b", 1), save("a", 2), Remove("b"), SaveEpoch(2)]
    assert _compacted(changes) == [save("a", 2), Remove("b"), SaveEpoch(2)]
    again = [save("a", 1), Remove("a"), save("a", 2), save("a", 3)]
    assert _compacted(again) == [Remove("a"), save("a", 3)]
