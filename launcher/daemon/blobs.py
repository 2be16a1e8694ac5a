"""Files of jobs by the digest of their bytes: fetched once from the scheduler, shared by the
daemons of a node.

A file is in the cache whole or not at all: it is written under another name, its digest is compared
and it is renamed. One lock file a digest lets one daemon fetch while the others wait; one for the
whole cache guards making room. The one used last goes last.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from oneflow.core.errors import OneFlowError, TransportError
from oneflow.core.log import get_logger
from oneflow.protos import cluster_pb2 as pb

MAX_BLOB_NBYTES = 16 << 30
LOCK_PAUSE_S = 0.05
FETCH_PAUSES_S = (0.1, 0.5, 2.0, 5.0)  # the line may break; a job does not fail for that
NEVER = ("NOT_FOUND", "UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "UNIMPLEMENTED")
_DIGEST = re.compile(r"[0-9a-f]{64}")

log = get_logger(__name__)

Fetch = Callable[[str], AsyncIterator[tuple[int, bytes]]]
"""digest -> (bytes of the whole, or 0; bytes of this piece), piece by piece."""


class BlobError(OneFlowError):
    """A file of a job that cannot be had, or is not that of its digest."""

    exit_code = 65
    reason = "INTERNAL"


class OtherContentError(BlobError):
    """The content that came is not the one asked for."""


class NotToBeHadError(TransportError):
    """The scheduler says that it will not give it."""


def check_digest(digest: str) -> None:
    """It becomes a file name. Raises BlobError."""
    if not _DIGEST.fullmatch(digest):
        raise BlobError(f"{digest[:80]!r} is not a digest: 64 hexadecimal digits")


class BlobCache:
    """The cache in `folder`, at most `limit_nbytes` besides files being fetched."""

    def __init__(self, folder: Path, limit_nbytes: int) -> None:
        self._folder, self._limit_nbytes = folder, limit_nbytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for partial in folder.glob("*.part"):
            if not Path(
                "/proc", partial.name.split(".")[1]
            ).exists():  # of a daemon that was killed
                partial.unlink(missing_ok=True)

    async def get(self, digest: str, fetch: Fetch) -> Path:
        """The file of that digest. Raises BlobError, TransportError, or OSError for a full disk.

        Asked for again if it could not be had, or came with other content.
        """
        check_digest(digest)
        path = self._folder / digest
        with await self._locked(digest):
            if path.exists():
                os.utime(path)
                return path
            partial = self._folder / f"{digest}.{os.getpid()}.part"
            try:
                nbytes = await self._fetched(digest, partial, fetch)
                self._make_room(nbytes)
                partial.rename(path)
            finally:
                partial.unlink(missing_ok=True)
        return path

    async def _fetched(self, digest: str, partial: Path, fetch: Fetch) -> int:
        for pause_s in FETCH_PAUSES_S:
            try:
                return await self._write(digest, partial, fetch)
            except (TransportError, OtherContentError) as error:
                if isinstance(error, NotToBeHadError):
                    raise
                log.warning("%s; it is asked for again", error)
                await asyncio.sleep(pause_s)
        return await self._write(digest, partial, fetch)

    async def _write(self, digest: str, partial: Path, fetch: Fetch) -> int:
        found = hashlib.blake2b(digest_size=32)
        total = 0
        with open(partial, "wb") as file:
            async for announced, data in fetch(digest):
                total += len(data)
                if max(total, announced) > MAX_BLOB_NBYTES:
                    raise BlobError(f"blob {digest} is larger than {MAX_BLOB_NBYTES >> 30} GiB")
                found.update(data)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if found.hexdigest() != digest:
            came = f"{total} bytes of digest {found.hexdigest()[:16]}..."
            raise OtherContentError(f"blob {digest} came with other content: {came}")
        return total

    @contextmanager
    def _cache_lock(self) -> Iterator[None]:
        with open(self._folder / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    async def _locked(self, digest: str) -> IO[bytes]:
        """A file whose lock is ours until it is closed. Waits without holding up the loop."""
        path = self._folder / f"{digest}.lock"
        while True:
            file = open(path, "wb")  # noqa: SIM115
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                file.close()
                await asyncio.sleep(LOCK_PAUSE_S)

    def _make_room(self, nbytes: int) -> None:
        """Remove the files not used for longest. A file that is open stays readable; one that is
        about to be opened is fetched again.
        """
        with self._cache_lock():
            files = [path for path in self._folder.iterdir() if _DIGEST.fullmatch(path.name)]
            sizes = {path: _stat(path) for path in files}
            total = sum(size for size, _ in sizes.values()) + nbytes
            for path in sorted(files, key=lambda p: sizes[p][1]):
                if total <= self._limit_nbytes:
                    return
                total -= sizes[path][0]
                path.unlink(missing_ok=True)
                path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


def _stat(path: Path) -> tuple[int, float]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0.0
    return found.st_size, found.st_mtime


def fetch_with(
    stub: Callable[[], Any], metadata: Callable[[], tuple[tuple[str, str], ...]]
) -> Fetch:
    """Fetches through a Daemons stub; `stub()` is asked for each blob, for the line may change."""

    async def fetch(digest: str) -> AsyncIterator[tuple[int, bytes]]:
        import grpc

        try:
            call = stub().Fetch(pb.BlobInfo(digest=digest), metadata=metadata())
            async for chunk in call:
                if chunk is None:  # gRPC's word for bytes that are no message
                    raise TransportError(f"blob {digest}: a part of it came as no message")
                yield chunk.nbytes, chunk.data
        except grpc.RpcError as error:
            code = error.code().name
            kind = NotToBeHadError if code in NEVER else TransportError
            raise kind(f"blob {digest}: {code}: {error.details()}") from None

    return fetch
