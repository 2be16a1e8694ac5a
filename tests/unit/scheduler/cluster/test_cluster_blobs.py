"""Blobs: whole or not there, of the right content, and gone with the jobs that name them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.errors import ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.blobs import Blobs
from oneflow.scheduler.cluster.refusals import ExhaustedError, NotFoundError
from oneflow.scheduler.cluster.settings import Limits
from oneflow.scheduler.cluster.state import warn_of_loss


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


async def chunks(data: bytes, size: int = 1 << 20, **head: Any) -> AsyncIterator[pb.BlobChunk]:
    first = {"digest": digest_of(data), "nbytes": len(data), **head}
    for start in range(0, max(len(data), 1), size):
        yield pb.BlobChunk(data=data[start : start + size], **({} if start else first))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Any]:
    found = SimpleNamespace(wanted=set(), now=1e9, folder=tmp_path / "blobs")
    limits = Limits(blob_nbytes=5 << 20, blobs_nbytes=8 << 20, upload_idle_s=0.05, orphan_s=100.0)
    found.make = lambda: Blobs(found.folder, limits, lambda: found.wanted, lambda: found.now)
    found.blobs = found.make()
    yield found
    found.blobs.close()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_was_uploaded_is_read_again(scene: Any) -> None:
    data = bytes(range(256)) * 9000  # more than two chunks

    async def play() -> bytes:
        info = await scene.blobs.upload(chunks(data))
        assert (info.digest, info.nbytes) == (digest_of(data), len(data))
        found = [chunk async for chunk in scene.blobs.read(info.digest)]
        assert found[0].nbytes == len(data)
        assert max(len(chunk.data) for chunk in found) <= 1 << 20
        return b"".join(chunk.data for chunk in found)

    assert asyncio.run(play()) == data
    assert digest_of(data) in scene.make()  # after a restart too


def test_nothing_is_left_of_an_upload_that_is_not_what_it_says(scene: Any) -> None:
    async def silent() -> AsyncIterator[pb.BlobChunk]:
        yield pb.BlobChunk(digest=digest_of(b"abc"), nbytes=3, data=b"a")
        await asyncio.Event().wait()

    for lie in (
        chunks(b"abc", digest=digest_of(b"abd")),
        chunks(b"abc", digest="../abc"),
        chunks(b"abc", nbytes=2),
        chunks(b"abc", nbytes=4),
        chunks(b"x" * (2 << 20), size=2 << 20),
        silent(),
    ):
        with pytest.raises(ProtocolError):
            asyncio.run(scene.blobs.upload(lie))
        assert names(scene.folder) == set()


def test_files_are_bounded_alone_and_together(scene: Any) -> None:
    with pytest.raises(ExhaustedError, match="too large"):
        asyncio.run(scene.blobs.upload(chunks(b"", nbytes=6 << 20)))
    asyncio.run(scene.blobs.upload(chunks(b"x" * (5 << 20))))
    with pytest.raises(ExhaustedError, match="all files together"):
        asyncio.run(scene.blobs.upload(chunks(b"y" * (4 << 20))))


def test_a_blob_goes_with_the_last_job_that_names_it(scene: Any) -> None:
    digest = scene.blobs.put(b"abc")
    scene.wanted = {digest}
    scene.blobs.release([digest])
    assert digest in scene.blobs
    scene.wanted = set()
    scene.blobs.release([digest])
    assert digest not in scene.blobs
    with pytest.raises(NotFoundError, match="upload it first"):
        scene.blobs.path(digest)
    assert scene.blobs.put(b"abc") == digest  # it may come back at once


def test_a_blob_that_no_job_names_stays_for_a_while(scene: Any) -> None:
    digest = scene.blobs.put(b"abc")
    scene.now = (scene.folder / digest).stat().st_mtime + 99
    scene.blobs.sweep()
    assert digest in scene.blobs
    scene.now += 2
    scene.blobs.sweep()
    assert digest not in scene.blobs


def test_pieces_of_a_dead_scheduler_are_swept(scene: Any) -> None:
    (scene.folder / ("0" * 64 + ".abc.part")).write_bytes(b"half")
    scene.make()
    assert names(scene.folder) == set()


def test_an_empty_journal_beside_files_of_jobs_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = tmp_path / "cluster.db"
    (tmp_path / "blobs").mkdir()
    warn_of_loss(tmp_path)
    assert not caplog.records, "a first start"
    (tmp_path / "blobs" / digest_of(b"1")).write_bytes(b"1")
    journal.touch()
    warn_of_loss(tmp_path)
    (said,) = (record.getMessage() for record in caplog.records)
    assert f"{journal} is empty or missing, beside 1 files of jobs" in said
    journal.write_bytes(b"SQLite")
    warn_of_loss(tmp_path)
    assert len(caplog.records) == 1
