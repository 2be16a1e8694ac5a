"""The end of a rank whose processes cannot be killed: reported, not waited for."""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.errors import StoreError
from oneflow.launcher.daemon import rank as rank_module
from oneflow.launcher.daemon.archive import ArchiveError
from oneflow.launcher.daemon.events import Event, NotGathered, TreeEnded
from oneflow.launcher.daemon.host import Host
from oneflow.launcher.daemon.programs import Place
from oneflow.launcher.daemon.rank import Rank
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import AttemptKey
from tests.support.waiting import until


class Undying:
    """A process in the middle of a system call that does not end."""

    sock = None
    pid = pidfd = 4242
    is_over = False

    def __init__(self) -> None:
        self.said: list[str] = []
        self.pulse = self

    def still(self) -> None:
        return None

    def alive(self) -> list[int]:
        return [4242, 4243]

    def signal(self, signum: int) -> None:
        self.said.append(f"signal {int(signum)}")

    def kill(self) -> None:
        self.said.append("kill")

    def close(self) -> None:
        self.said.append("close")


KEY = AttemptKey("j1", 1, 0)


def place_in(folder: Path, told: list[Event]) -> Place:
    """A daemon that has nothing and hears the events."""
    anything: Any = None
    return Place(
        DaemonSettings("cpu:0", "h:1", folder, env={}),
        "127.0.0.1",
        anything,
        anything,
        anything,
        anything,
        anything,
        anything,
        anything,
        told.append,
        anything,
        anything,
    )


async def _fails() -> None:
    raise ZeroDivisionError("of the daemon's own")


def test_a_task_that_dies_ends_its_rank(tmp_path: Path) -> None:
    """A rank that nobody looks after would go on for ever, so any cause will do."""

    async def live() -> tuple[list[str], Any]:
        rank, worker = Rank(KEY, pb.Prepare(), place_in(tmp_path, [])), Undying()
        rank.worker = worker  # type: ignore[assignment]
        await asyncio.wait({rank._keep(_fails())})
        await asyncio.sleep(0)
        return worker.said, rank.program.failed

    said, failed = asyncio.run(live())
    assert said == ["kill"]
    assert (failed.exit_code, failed.reason) == (70, "INTERNAL")
    assert "ZeroDivisionError: of the daemon's own" in failed.cause


@pytest.mark.parametrize("how", ["fails", "is cancelled", "was told to end"])
def test_gathering_that_dies_ends_its_attempt(how: str) -> None:
    async def live() -> list[Event]:
        told: list[Event] = []
        task = asyncio.ensure_future(_fails() if how == "fails" else asyncio.Event().wait())
        host: Any = SimpleNamespace(
            _exit=asyncio.get_running_loop().create_future(),
            _gathering={} if how == "was told to end" else {KEY: task},
            post=told.append,
        )
        task.add_done_callback(partial(Host._look_how_gathered, host, KEY))
        if how != "fails":
            task.cancel()
        await asyncio.wait({task})
        await asyncio.sleep(0)
        return told

    told = asyncio.run(live())
    if how == "was told to end":
        assert told == []
        return
    (found,) = told
    assert isinstance(found, NotGathered)
    assert (found.key, found.reason) == (KEY, "INTERNAL")
    assert ("ZeroDivisionError" if how == "fails" else "CancelledError") in found.error


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (ArchiveError("'../x' leads out of the folder"), ("USER_ERROR", 64)),
        (StoreError("damaged"), ("INTERNAL", 0)),
        (OSError(errno.ENOSPC, "full"), ("DISK_FULL", 0)),
    ],
)
def test_refused_archive_ends_with_the_code_of_a_user_mistake(
    error: Exception,
    wanted: tuple[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(_: Rank) -> None:
        raise error

    told: list[Event] = []
    monkeypatch.setattr(Rank, "_gather", refuse)
    asyncio.run(Rank(KEY, pb.Prepare(), place_in(tmp_path, told)).gather())
    (found,) = told
    assert isinstance(found, NotGathered)
    assert (found.reason, found.exit_code) == wanted


def test_what_cannot_be_killed_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_module, "KILL_WAIT_S", 0.2)
    told: list[Event] = []
    place = place_in(tmp_path, told)

    async def live() -> list[str]:
        rank = Rank(KEY, pb.Prepare(), place)
        worker: Any = Undying()
        rank.worker = worker
        rank.end(60.0)
        rank.end(0.05)  # a shorter grace counts
        await asyncio.sleep(0)
        rank.end(30.0)
        await until(lambda: told)
        said: list[str] = worker.said
        return said

    said = asyncio.run(asyncio.wait_for(live(), 5))
    assert told == [TreeEnded(KEY, 2)]
    assert said[0] == "signal 15"
    assert said.count("kill") >= 2
    assert said[-1] == "close"
