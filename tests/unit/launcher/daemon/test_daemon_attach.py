"""The line of a daemon: pauses, settings, tokens."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.errors import ConfigError, ProtocolError
from oneflow.launcher.daemon import attach
from oneflow.launcher.daemon.attach import Attachment, Backoff
from oneflow.launcher.daemon.daemon import Daemon
from oneflow.launcher.daemon.events import Gathered, Progressed
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.events import Heard
from oneflow.scheduler.jobs.messages import cut_progress, event_of, key_of
from tests.support.waiting import WAIT_S


def test_pauses_grow_at_random_between_their_limits() -> None:
    backoff = Backoff(random.Random(1))
    pauses = [backoff.next_s(60.0) for _ in range(200)]
    assert all(0.2 <= pause <= 5.0 for pause in pauses)
    assert max(pauses[:3]) <= 0.8
    assert len(set(pauses)) == len(pauses) - pauses.count(0.2) + (0.2 in pauses)
    assert max(pauses) > 4.0
    backoff.reset()
    assert backoff.next_s(60.0) == 0.2


def test_who_is_awaited_comes_back_in_time() -> None:
    """A new scheduler gives up whom it has not heard for act_s."""
    for act_s in (0.3, 2.5, 10.0):
        backoff = Backoff(random.Random(2))
        pauses = [backoff.next_s(act_s) for _ in range(100)]
        assert max(pauses) <= max(act_s / 3, 0.2)


def test_the_pace_of_beats_is_the_schedulers() -> None:
    """A writer that sleeps until the next beat is woken: that one is due at another time now."""

    class Stream:
        def __init__(self) -> None:
            self.told = [pb.SchedulerMessage(pace=pb.Pace(heartbeat_s=0.01, act_s=7.0))]
            self.beats = asyncio.Event()

        async def write(self, message: pb.DaemonMessage) -> None:
            if message.WhichOneof("kind") == "beat":
                self.beats.set()

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> pb.SchedulerMessage:
            if not self.told:
                await asyncio.Event().wait()
            return self.told.pop()

    async def scene() -> Attachment:
        attachment = Attachment(settings(), pb.Hello, lambda message: None, lambda: None)
        attachment._welcomed(pb.Welcome(epoch=1, heartbeat_s=3600.0, act_s=9999.0))
        stream: Any = Stream()
        writer = asyncio.ensure_future(attachment._write(stream))
        await asyncio.sleep(0)
        reader = asyncio.ensure_future(attachment._read(stream))
        await asyncio.wait_for(stream.beats.wait(), WAIT_S)
        for task in (writer, reader):
            task.cancel()
        return attachment

    attachment = asyncio.run(scene())
    assert (attachment._heartbeat_s, attachment._act_s) == (0.01, 7.0)


def test_what_waits_together_is_written_and_read_at_once() -> None:
    heard: list[pb.SchedulerMessage] = []
    attachment = Attachment(settings(), pb.Hello, heard.append, lambda: None)
    written: list[pb.DaemonMessage] = []
    told = [pb.SchedulerMessage(drain=True), pb.SchedulerMessage(forget="j1")]

    class Stream:
        async def write(self, message: pb.DaemonMessage) -> None:
            written.append(message)

        async def __aiter__(self) -> Any:
            yield pb.SchedulerMessage(parts=told)

    async def scene() -> None:
        attachment._welcomed(pb.Welcome(epoch=3, heartbeat_s=3600.0))
        for port in (1, 2, 3):
            attachment.send(pb.DaemonMessage(prepared=pb.Prepared(master_port=port)))
        stream: Any = Stream()
        writer = asyncio.ensure_future(attachment._write(stream))
        await attachment._read(stream)
        await asyncio.sleep(0)
        writer.cancel()

    asyncio.run(scene())
    assert heard == told
    hello, message = written
    said = [(part.epoch, part.prepared.master_port) for part in message.parts]
    assert (hello.WhichOneof("kind"), said) == ("hello", [(3, 1), (3, 2), (3, 3)])


class Refusal:
    """The error that gRPC raises for a message that the scheduler does not take."""

    def code(self) -> Any:
        return SimpleNamespace(name="INVALID_ARGUMENT")

    def details(self) -> str:
        return "no such thing"

    def trailing_metadata(self) -> Any:
        return ()


def test_what_was_refused_once_is_not_said_again_for_ever() -> None:
    """Kept messages are told anew after each welcome: one that is refused would end each stream."""

    async def scene() -> None:
        attachment = Attachment(settings(), pb.Hello, lambda message: None, lambda: None)
        attachment._welcomed(pb.Welcome(epoch=1))
        attachment._backoff._limit_s = 4.0
        attachment._welcomed(pb.Welcome(epoch=2))
        assert attachment._backoff._limit_s == 4.0  # a welcome alone is no sign that all is well
        attachment._acked(0)
        assert attachment._backoff._limit_s == 0.2
        attachment.send(pb.DaemonMessage(progress=pb.Progress(step=1)), is_kept=True)
        assert isinstance(attachment._judge(Refusal()), ConfigError)
        attachment._urgent.clear()
        attachment._welcomed(pb.Welcome(epoch=3))
        assert not attachment._urgent

    asyncio.run(scene())


def test_a_daemon_that_finds_no_scheduler_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr(attach, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(attach, "log", logging.getLogger(__name__))

    async def scene() -> None:
        attachment = Attachment(settings(), pb.Hello, lambda message: None, lambda: None)
        for clock[0] in (101.0, 103.5, 104.0):  # the first may be of one that still starts
            attachment._tell_absence("Connection refused")

    asyncio.run(scene())
    said = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert said == [f"no line to the scheduler at {settings().scheduler}: Connection refused"]


def test_what_is_kept_is_bounded_and_the_curve_counts_what_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def progress(step: int) -> pb.DaemonMessage:
        points = [pb.ProgressPoint(step=step + i, metrics={"loss": 1.0}) for i in range(10)]
        return pb.DaemonMessage(progress=pb.Progress(step=step, points=points))

    async def scene(**limits: int) -> list[Any]:
        for name, limit in limits.items():
            monkeypatch.setattr(attach, name, limit)
        attachment = Attachment(settings(), pb.Hello, lambda message: None, lambda: None)
        for step in range(0, 1000, 10):  # while the scheduler is away
            attachment.send(progress(step), is_kept=True)
        attachment._welcomed(pb.Welcome(epoch=1))
        return [point for message in attachment._urgent for point in message.progress.points]

    for limits in ({"MAX_KEPT": 5}, {"MAX_KEPT": 10_000, "MAX_KEPT_NBYTES": 10_000}):
        points = asyncio.run(scene(**limits))
        assert 10 <= len(points) <= 100
        assert points[-1].step == 1009 - 10
        assert len(points) + sum(point.left_out for point in points) == 1000


def settings(**changes: Any) -> DaemonSettings:
    given: dict[str, Any] = {"device": "cpu:0", "scheduler": "127.0.0.1:1", "env": {}}
    return DaemonSettings(**(given | {"state_dir": Path("/tmp/x")} | changes))


@pytest.mark.parametrize("device", ["cpu", "gpu:0", "cpu:-1", "cpu:0x", "", "cuda:99999"])
def test_a_device_is_checked(device: str) -> None:
    with pytest.raises(ConfigError, match="is not like cpu:0 or cuda:3"):
        settings(device=device).check()


def test_names_and_times_are_checked() -> None:
    settings(node="n1").check()
    assert settings(node="n1", device="cpu:3").id == "n1/cpu:3"
    with pytest.raises(ConfigError, match="use letters"):
        settings(node="a/b").check()
    with pytest.raises(ConfigError, match="times must grow"):
        settings(suspect_s=20.0).check()


def test_a_token_does_not_leave_this_machine_in_the_clear() -> None:
    for scheduler in ("127.0.0.1:1", "localhost:1", "[::1]:1"):
        settings(scheduler=scheduler).check()
    for scheduler in ("192.0.2.1:9400", "[2001:db8::1]:9400", "0.0.0.0:9400"):
        with pytest.raises(ConfigError, match="--tls-dir"):
            settings(scheduler=scheduler).check()
    settings(scheduler="192.0.2.1:9400", credentials=object()).check()


def test_a_token_file_is_read_anew_and_must_be_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    path.chmod(0o600)
    found = settings(token_file=path)
    assert found.current_token() == "one"
    path.write_text("two\n")
    assert found.current_token() == "two"
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        found.current_token()
    with pytest.raises(ConfigError, match="No such file"):
        settings(token_file=tmp_path / "none").check()


def test_a_rank_does_not_get_what_is_the_daemons() -> None:
    env = {
        "ONEFLOW_AUTH_TOKEN": "s",
        "NOTIFY_SOCKET": "/x",
        "PATH": "/bin",
        "ONEFLOW_JOB_TOKEN": "j",
    }
    assert settings(env=env).rank_base_env() == {"PATH": "/bin", "ONEFLOW_JOB_TLS": "0"}
    ours, theirs = {"GRPC_VERBOSITY": "NONE"}, {"GRPC_VERBOSITY": "DEBUG"}
    assert "GRPC_VERBOSITY" not in settings(env=env | ours).rank_base_env()
    assert settings(env=env | theirs).rank_base_env()["GRPC_VERBOSITY"] == "DEBUG"


def test_ranks_speak_tls_where_daemons_do_unless_told_otherwise() -> None:
    assert settings(credentials=object()).rank_base_env()["ONEFLOW_JOB_TLS"] == "1"
    plain = settings(credentials=object(), env={"ONEFLOW_JOB_TLS": "0"})
    assert plain.rank_base_env()["ONEFLOW_JOB_TLS"] == "0"


@pytest.mark.parametrize("job_id", ["", "..", "a/b", "../x", "a\0b", "x" * 1000])
def test_a_job_id_is_no_path(job_id: str) -> None:
    with pytest.raises(ProtocolError):
        key_of(pb.AttemptId(job_id=job_id))


def test_a_relative_state_folder_means_the_one_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks and warm workers start elsewhere."""
    monkeypatch.chdir(tmp_path)
    found = DaemonSettings(device="cpu:0", scheduler="127.0.0.1:1", state_dir=Path("d0"))
    assert found.state_dir == tmp_path / "d0" and found.jobs_dir == tmp_path / "d0" / "jobs"


def test_a_rank_hears_which_folders_it_may_use() -> None:
    env = {"ONEFLOW_DATA_ROOTS": "/env"}
    plain = DaemonSettings(device="cpu:0", scheduler="127.0.0.1:1", state_dir=Path("/x"), env=env)
    assert plain.rank_base_env()["ONEFLOW_DATA_ROOTS"] == "/env"
    found = replace(plain, data_roots=(Path("/a"), Path("/b")))
    assert found.rank_base_env()["ONEFLOW_DATA_ROOTS"] == "/a:/b"
    with pytest.raises(ConfigError, match="'b' is not an absolute path"):
        replace(plain, data_roots=(Path("b"),)).check()


def test_a_report_of_a_rank_reaches_the_scheduler_as_it_is() -> None:
    report = pb.Progress(id=pb.AttemptId(job_id="j1", attempt=1), step=3, warning="no checkpoint")
    daemon = Daemon()
    start = pb.Start(id=report.id)
    daemon.step(pb.SchedulerMessage(prepare=pb.Prepare(id=report.id)), 1.0)
    daemon.step(Gathered(key_of(report.id), 700), 1.0)
    daemon.step(pb.SchedulerMessage(start=start), 1.0)
    wanted = pb.Progress()
    wanted.CopyFrom(report)
    cut_progress(report)
    (said,) = daemon.step(Progressed(key_of(report.id), report), 2.0)
    assert isinstance(said, pb.DaemonMessage)
    event = event_of(said, "n/cpu:0")
    assert isinstance(event, Heard) and event.message.progress == wanted
    (again,) = daemon.step(pb.SchedulerMessage(welcome=pb.Welcome(epoch=2)), 3.0)
    assert again == pb.DaemonMessage(progress=wanted)
