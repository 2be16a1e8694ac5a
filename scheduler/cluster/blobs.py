"""Files that came from clients or were compiled here, by the digest of their bytes.

A file is there whole or not at all: it is written under another name, its digest compared, synced
and renamed. It stays for as long as a job names it; one that no job names (yet) for a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

from oneflow.core.control_channel import CHUNK_NBYTES
from oneflow.core.errors import ProtocolError, StoreError
from oneflow.core.folders import sync_folder
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.refusals import ExhaustedError, NotFoundError
from oneflow.scheduler.cluster.settings import Limits

DIGEST = re.compile(r"[0-9a-f]{64}")
PART_SUFFIX = ".part"
MIN_FREE_NBYTES = 64 << 20  # the store shares the disk, and must be able to write


class Blobs:
    """The blobs in `folder`. wanted: digests that jobs name now; wall: seconds since the epoch."""

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        wanted: Callable[[], Iterable[str]],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._limits = folder, limits
        self._wanted, self._wall = wanted, wall
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sizes = {p.name: p.stat().st_size for p in _blobs_in(folder)}
        self._open_nbytes = 0  # of uploads under way
        self._rubbish = ThreadPoolExecutor(1, "oneflow-rubbish")
        for path in folder.glob(
            f"*{PART_SUFFIX}"
        ):  # of a process that is no more: we have the lock
            path.unlink(missing_ok=True)

    def __contains__(self, digest: object) -> bool:
        return digest in self._sizes

    @property
    def nbytes(self) -> int:
        """Return the size of all blobs together."""
        return sum(self._sizes.values())

    def path(self, digest: str) -> Path:
        """Raises NotFoundError, ProtocolError."""
        check_digest(digest)
        if digest not in self._sizes:
            raise NotFoundError(f"there is no blob {digest}: upload it first")
        return self._folder / digest

    # -- reading -----------------------------------------------------------------------------------

    async def read(self, digest: str) -> AsyncIterator[pb.BlobChunk]:
        """Read a blob in chunks of at most 1 MiB; one that is removed meanwhile is still read to
        its end.
        """
        path = self.path(digest)
        try:
            file = open(path, "rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise StoreError(f"cannot read blob {digest}: {error.strerror}") from None
        with file:
            nbytes = os.fstat(file.fileno()).st_size
            chunk = pb.BlobChunk(digest=digest, nbytes=nbytes)
            while data := await asyncio.to_thread(file.read, CHUNK_NBYTES):
                chunk.data = data
                yield chunk
                chunk = pb.BlobChunk()
            if not nbytes:
                yield chunk

    # -- writing -----------------------------------------------------------------------------------

    async def upload(self, chunks: AsyncIterator[pb.BlobChunk]) -> pb.BlobInfo:
        """One that is here already is not read again. Raises ProtocolError, ExhaustedError or
        StoreError.
        """
        first = await self._next(chunks)
        if first is None:
            raise ProtocolError("an upload needs at least one chunk")
        if (found := await self.find(first.digest)).digest:
            return found
        self._check_room(first.nbytes)
        self._open_nbytes += first.nbytes
        try:
            await self._receive(first, chunks)
        except OSError as error:
            raise StoreError(f"cannot keep blob {first.digest}: {error.strerror}") from None
        finally:
            self._open_nbytes -= first.nbytes
        return pb.BlobInfo(digest=first.digest, nbytes=first.nbytes)

    async def find(self, digest: str) -> pb.BlobInfo:
        """Empty if it is not here; one that is here stays for a while. Raises ProtocolError."""
        check_digest(digest)
        if digest not in self._sizes:
            return pb.BlobInfo()
        await asyncio.to_thread(os.utime, self._folder / digest)
        return pb.BlobInfo(digest=digest, nbytes=self._sizes[digest])

    async def _receive(self, first: pb.BlobChunk, chunks: AsyncIterator[pb.BlobChunk]) -> None:
        partial = self._folder / f"{first.digest}.{secrets.token_hex(8)}{PART_SUFFIX}"
        found, total = hashlib.blake2b(digest_size=32), 0
        chunk: pb.BlobChunk | None = first
        file = await asyncio.to_thread(_create, partial)
        try:
            while chunk is not None:
                total += len(chunk.data)
                if len(chunk.data) > CHUNK_NBYTES or total > first.nbytes:
                    raise ProtocolError("an upload is larger than it said, or a chunk than 1 MiB")
                await asyncio.to_thread(_add, file, found, chunk.data)
                chunk = await self._next(chunks) if total < first.nbytes else None
            if found.hexdigest() != first.digest or total != first.nbytes:
                raise ProtocolError(
                    f"blob {first.digest} came with other content ({total} of {first.nbytes} "
                    "bytes); send it again"
                )
            await asyncio.to_thread(_commit, file, partial, self._folder / first.digest)
            self._sizes[first.digest] = total
        finally:
            file.close()
            partial.unlink(missing_ok=True)

    async def _next(self, chunks: AsyncIterator[pb.BlobChunk]) -> pb.BlobChunk | None:
        try:
            return await asyncio.wait_for(chunks.__anext__(), self._limits.upload_idle_s)
        except StopAsyncIteration:
            return None
        except asyncio.TimeoutError:
            limit = self._limits.upload_idle_s
            raise ProtocolError(f"an upload said nothing for {limit:g} s") from None

    def _check_room(self, nbytes: int) -> None:
        limits = self._limits
        if nbytes > limits.blob_nbytes:
            raise ExhaustedError(
                f"a file of {nbytes} bytes is too large: at most {limits.blob_nbytes} are taken"
            )
        if self.nbytes + self._open_nbytes + nbytes > limits.blobs_nbytes:
            raise ExhaustedError(
                f"all files together would be larger than {limits.blobs_nbytes} bytes; "
                "remove jobs that are over"
            )
        free = os.statvfs(self._folder)
        if free.f_bavail * free.f_frsize < nbytes + self._open_nbytes + MIN_FREE_NBYTES:
            raise StoreError(
                f"no room for {nbytes} bytes on the disk of {self._folder}, of which "
                f"{MIN_FREE_NBYTES >> 20} MiB are kept free"
            )

    def put(self, data: bytes) -> str:
        """Keeps bytes that were made here; returns their digest. Slow: not for the loop."""
        digest = hashlib.blake2b(data, digest_size=32).hexdigest()
        if digest in self._sizes:
            return digest
        partial = self._folder / f"{digest}.{secrets.token_hex(8)}{PART_SUFFIX}"
        try:
            with _create(partial) as file:
                file.write(data)
                _commit(file, partial, self._folder / digest)
        except OSError as error:
            raise StoreError(f"cannot keep blob {digest}: {error.strerror}") from None
        finally:
            partial.unlink(missing_ok=True)
        self._sizes[digest] = len(data)
        return digest

    # -- removing ----------------------------------------------------------------------------------

    def release(self, digests: Iterable[str]) -> None:
        """A job that named these is gone: so are they, unless another one names them."""
        wanted = set(self._wanted())
        for digest in digests:
            if digest in self._sizes and digest not in wanted:
                self._remove(digest)

    def sweep(self) -> None:
        """Remove files that no job has named for a while."""
        wanted, before = set(self._wanted()), self._wall() - self._limits.orphan_s
        for digest in [d for d in list(self._sizes) if d not in wanted]:
            try:
                if (self._folder / digest).stat().st_mtime < before:
                    self._remove(digest)
            except OSError:
                self._sizes.pop(digest, None)

    def _remove(self, digest: str) -> None:
        """Out of sight at once; the disk may need a while to free a large file."""
        self._sizes.pop(digest, None)
        rubbish = self._folder / f"{digest}.{secrets.token_hex(8)}{PART_SUFFIX}"
        with suppress(FileNotFoundError):
            (self._folder / digest).rename(rubbish)
            self._rubbish.submit(rubbish.unlink, True)

    def close(self) -> None:
        """Wait for removals under way."""
        self._rubbish.shutdown()


def check_digest(digest: str) -> None:
    """It becomes a file name. Raises ProtocolError."""
    if not DIGEST.fullmatch(digest):
        raise ProtocolError(f"{digest[:80]!r} is not a digest: 64 hexadecimal digits")


def _blobs_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if DIGEST.fullmatch(path.name)]


def _create(path: Path) -> IO[bytes]:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0)


def _add(file: IO[bytes], found: hashlib.blake2b, data: bytes) -> None:
    found.update(data)
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _commit(file: IO[bytes], partial: Path, path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    partial.rename(path)
    sync_folder(path.parent)
