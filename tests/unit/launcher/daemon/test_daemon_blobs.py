"""The cache of jobs' files: each fetched once, whole or not at all, never more than it may hold."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from hashlib import blake2b
from pathlib import Path

import pytest

from oneflow.core.errors import TransportError
from oneflow.launcher.daemon import blobs
from oneflow.launcher.daemon.blobs import BlobCache, BlobError, NotToBeHadError


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "FETCH_PAUSES_S", (0.0, 0.0, 0.0))


def digest_of(data: bytes) -> str:
    return blake2b(data, digest_size=32).hexdigest()


class Store:
    """Gives pieces of blobs; counts how often it is asked."""

    def __init__(self, *datas: bytes) -> None:
        self.blobs = {digest_of(data): data for data in datas}
        self.asked: list[str] = []

    async def fetch(self, digest: str) -> AsyncIterator[tuple[int, bytes]]:
        self.asked.append(digest)
        data = self.blobs[digest]
        for start in range(0, len(data), 1000):
            await asyncio.sleep(0)
            yield len(data), data[start : start + 1000]


def test_a_blob_is_fetched_once(tmp_path: Path) -> None:
    store, cache = Store(b"x" * 5000), BlobCache(tmp_path, 1 << 20)
    digest = digest_of(b"x" * 5000)
    for _ in range(2):
        path = asyncio.run(cache.get(digest, store.fetch))
        assert path.read_bytes() == b"x" * 5000
    assert store.asked == [digest]


def test_daemons_of_a_node_share_what_they_fetch(tmp_path: Path) -> None:
    store = Store(b"y" * 5000)
    caches = [BlobCache(tmp_path, 1 << 20) for _ in range(4)]

    async def all_at_once() -> None:
        digest = digest_of(b"y" * 5000)
        await asyncio.gather(*(cache.get(digest, store.fetch) for cache in caches))

    asyncio.run(all_at_once())
    assert len(store.asked) == 1


def test_other_content_is_refused_and_not_kept(tmp_path: Path) -> None:
    store, cache = Store(), BlobCache(tmp_path, 1 << 20)
    digest = digest_of(b"what was asked for")
    store.blobs[digest] = b"something else"
    with pytest.raises(BlobError, match="came with other content"):
        asyncio.run(cache.get(digest, store.fetch))
    assert [p for p in tmp_path.iterdir() if p.stat().st_size] == []
    store.blobs[digest] = b"what was asked for"
    assert asyncio.run(cache.get(digest, store.fetch)).read_bytes() == b"what was asked for"


def test_a_broken_line_leaves_nothing_half(tmp_path: Path) -> None:
    async def fetch(digest: str) -> AsyncIterator[tuple[int, bytes]]:
        yield 100, b"part"
        raise TransportError("the line broke")

    cache = BlobCache(tmp_path, 1 << 20)
    with pytest.raises(TransportError):
        asyncio.run(cache.get("0" * 64, fetch))
    assert [p.name for p in tmp_path.iterdir()] == [f"{'0' * 64}.lock"]


@pytest.mark.parametrize("failures", [1, 3, 4])
def test_a_broken_line_is_tried_again(tmp_path: Path, failures: int) -> None:
    store, data = Store(b"x" * 5000), b"x" * 5000

    async def fetch(digest: str) -> AsyncIterator[tuple[int, bytes]]:
        async for piece in store.fetch(digest):
            yield piece
            if len(store.asked) <= failures:
                raise TransportError("the line broke")

    got = BlobCache(tmp_path, 1 << 20).get(digest_of(data), fetch)
    if failures > len(blobs.FETCH_PAUSES_S):
        with pytest.raises(TransportError):
            asyncio.run(got)
        return
    assert asyncio.run(got).read_bytes() == data
    assert len(store.asked) == failures + 1


def test_what_is_refused_is_not_asked_for_again(tmp_path: Path) -> None:
    asked = []

    async def fetch(digest: str) -> AsyncIterator[tuple[int, bytes]]:
        asked.append(digest)
        raise NotToBeHadError("NOT_FOUND")
        yield 0, b""

    with pytest.raises(NotToBeHadError):
        asyncio.run(BlobCache(tmp_path, 1 << 20).get("0" * 64, fetch))
    assert len(asked) == 1


@pytest.mark.parametrize(
    "digest", ["", "..", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 64 + "\n"]
)
def test_a_digest_is_no_path(tmp_path: Path, digest: str) -> None:
    with pytest.raises(BlobError, match="is not a digest"):
        asyncio.run(BlobCache(tmp_path, 1).get(digest, Store().fetch))


def test_what_was_used_last_goes_last(tmp_path: Path) -> None:
    datas = [bytes([n]) * 1000 for n in range(4)]
    store, cache = Store(*datas), BlobCache(tmp_path, 3000)
    paths = [asyncio.run(cache.get(digest_of(data), store.fetch)) for data in datas[:3]]
    for age, path in zip((30, 10, 20), paths, strict=True):
        os.utime(path, (1e9 - age, 1e9 - age))
    asyncio.run(cache.get(digest_of(datas[0]), store.fetch))  # used again
    asyncio.run(cache.get(digest_of(datas[3]), store.fetch))
    kept = [n for n, data in enumerate(datas) if (tmp_path / digest_of(data)).exists()]
    assert kept == [0, 1, 3]


def test_a_blob_without_end_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "MAX_BLOB_NBYTES", 3000)
    store = Store(b"z" * 3001)
    with pytest.raises(BlobError, match="is larger than"):
        asyncio.run(BlobCache(tmp_path, 1 << 20).get(digest_of(b"z" * 3001), store.fetch))


def test_parts_of_dead_daemons_go(tmp_path: Path) -> None:
    for pid in (os.getpid(), 2147480000):
        (tmp_path / f"{'0' * 64}.{pid}.part").touch()
    BlobCache(tmp_path, 1)
    assert [p.name for p in tmp_path.iterdir()] == [f"{'0' * 64}.{os.getpid()}.part"]
