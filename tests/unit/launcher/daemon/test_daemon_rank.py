"""The end of a rank whose processes cannot be killed: reported, not waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from oneflow.launcher.daemon import rank as rank_module
from oneflow.launcher.daemon.events import AttemptKey, Event, TreeEnded
from oneflow.launcher.daemon.rank import Place, Rank
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.protos import cluster_pb2 as pb


class Undying:
    """A process in the middle of a system call that does not end."""

    sock = None
    pid = 4242
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


def test_what_cannot_be_killed_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_module, "KILL_WAIT_S", 0.2)
    told: list[Event] = []
    anything: Any = None
    settings = DaemonSettings("cpu:0", "h:1", tmp_path, env={})
    place = Place(
        settings,
        "127.0.0.1",
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

    async def live() -> list[str]:
        rank = Rank(AttemptKey("j1", 1, 0), pb.Prepare(), place)
        worker: Any = Undying()
        rank.worker = worker
        rank.end(60.0)
        rank.end(0.05)  # a shorter grace counts
        await asyncio.sleep(0.02)
        rank.end(30.0)
        while not told:
            await asyncio.sleep(0.01)
        said: list[str] = worker.said
        return said

    said = asyncio.run(asyncio.wait_for(live(), 5))
    assert told == [TreeEnded(AttemptKey("j1", 1, 0), 2)]
    assert said[0] == "signal 15"
    assert said.count("kill") >= 2
    assert said[-1] == "close"
