"""Files that a client fetches slowly wait on the scheduler's disk, but never take the store's
room.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster import lines
from oneflow.scheduler.cluster.lines import Spool
from oneflow.scheduler.cluster.refusals import UnavailableError


def test_bytes_come_out_as_they_went_in(tmp_path: Path) -> None:
    async def scene() -> bytes:
        spool = Spool(tmp_path / "spool")
        for number in range(5):
            spool.add(pb.FileData(data=b"%d" % number * 1000, is_last=number == 4))
        found = b""
        while (data := await spool.read(1.0)) is not None:
            found += data
        spool.close()
        return found

    assert asyncio.run(scene()) == b"".join(b"%d" % n * 1000 for n in range(5))
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_disk_that_is_almost_full_is_left_to_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LOOK_NBYTES", 1000)
    free = SimpleNamespace(f_bavail=1 << 20, f_frsize=4096)
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: free)

    async def scene() -> None:
        spool = Spool(tmp_path)
        spool.add(pb.FileData(data=b"x" * 1000))
        assert await spool.read(1.0) == b"x" * 1000
        free.f_bavail = 100
        spool.add(pb.FileData(data=b"x" * 1000))
        with pytest.raises(UnavailableError, match="disk is full"):
            await spool.read(1.0)
        spool.close()

    asyncio.run(scene())
