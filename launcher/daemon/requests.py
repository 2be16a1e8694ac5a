"""Answers the scheduler's questions for its clients: logs, outputs, inference."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from oneflow.core.control_channel import CHUNK_NBYTES
from oneflow.core.errors import ProtocolError
from oneflow.core.log import get_logger
from oneflow.launcher.daemon.attach import Attachment
from oneflow.launcher.daemon.logs import STREAMS, LogWriter, Piece, offset_at, read_piece, size_of
from oneflow.launcher.daemon.outputs import FOLDER, open_output, output_names
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import AttemptKey, key_of
from oneflow.services.failpoints import failpoint

if TYPE_CHECKING:
    from oneflow.launcher.daemon.rank import Rank

LOOK_S = 0.02
MAX_WAIT_S = 60.0
NAMES_AT_ONCE = 200

log = get_logger(__name__)


class Requests:
    """writers, rank: of an attempt that goes on here; {} and None for any other."""

    def __init__(
        self,
        settings: DaemonSettings,
        writers: Callable[[AttemptKey], dict[str, LogWriter]],
        rank: Callable[[AttemptKey], Rank | None],
        attachment: Attachment,
    ) -> None:
        self._jobs = settings.jobs_dir
        self._node = settings.node_name
        self._writers, self._rank, self._attachment = writers, rank, attachment

    # -- logs --------------------------------------------------------------------------------------

    async def read_log(self, request: pb.ReadLog) -> None:
        """Send one LogData: the bytes from the offset on, or those that come within wait_s."""
        try:
            key = key_of(request.id)
        except ProtocolError as error:
            log.warning("%s", error)
            return
        data = pb.LogData(request=request.request, is_closed=True)
        if request.stream in STREAMS:
            await self._fill(data, key, request)
        self._attachment.send(pb.DaemonMessage(log=data), is_bulk=True)

    async def _fill(self, data: pb.LogData, key: AttemptKey, request: pb.ReadLog) -> None:
        folder = self._jobs / key.folder / str(key.attempt) / f"rank{key.rank}"
        deadline = time.monotonic() + min(max(request.wait_s, 0.0), MAX_WAIT_S)
        while True:
            is_over = self._is_over(key, request.stream)  # before the look: nothing comes after it
            if is_over or time.monotonic() >= deadline or self._has_grown(key, request):
                break
            await asyncio.sleep(LOOK_S)
        failpoint("daemon.read_log")
        piece = _read(folder, request)
        data.size = piece.size
        data.is_closed = is_over and piece.offset + len(piece.data) >= piece.size
        data.piece.attempt, data.piece.rank = key.attempt, key.rank
        data.piece.stream, data.piece.host = request.stream, self._node
        data.piece.offset, data.piece.data = piece.offset, piece.data

    def _is_over(self, key: AttemptKey, stream: str) -> bool:
        if self._rank(key) is None:
            return True
        writer = self._writers(key).get(stream)
        return writer is not None and writer.is_closed

    def _has_grown(self, key: AttemptKey, request: pb.ReadLog) -> bool:
        """Beyond the offset; costs no look at the disk, for many may wait."""
        writer = self._writers(key).get(request.stream)
        return writer is not None and writer.size > request.offset

    # -- outputs -----------------------------------------------------------------------------------

    async def read_file(self, request: pb.ReadFile) -> None:
        """Send FileData until the last; a name leads to nothing but the job's outputs."""

        def say(data: bytes = b"", is_last: bool = False, error: str = "") -> None:
            found = pb.FileData(request=request.request, data=data, is_last=is_last, error=error)
            self._attachment.send(pb.DaemonMessage(file=found), is_bulk=True)

        try:
            key = key_of(pb.AttemptId(job_id=request.job_id, life=request.life))
            folder = self._jobs / key.folder / FOLDER
            if not request.name:
                names = await asyncio.to_thread(output_names, folder)
                for start in range(0, len(names), NAMES_AT_ONCE):
                    await self._attachment.wait_for_room()
                    say("".join(f"{n}\n" for n in names[start : start + NAMES_AT_ONCE]).encode())
                say(is_last=True)
                return
            with await asyncio.to_thread(open_output, folder, request.name) as file:
                while data := await asyncio.to_thread(file.read, CHUNK_NBYTES):
                    await self._attachment.wait_for_room()
                    say(data)
            say(is_last=True)
        except (ProtocolError, OSError) as error:
            said = getattr(error, "strerror", None) or str(error)
            say(is_last=True, error=f"output {request.name[:200]!r}: {said}")

    # -- inference ---------------------------------------------------------------------------------

    def infer(self, request: pb.Infer) -> None:
        """Hands it to the worker; says so if there is none that could answer."""
        error = ""
        try:
            key = key_of(request.id)
            rank = self._rank(key)
            if rank is None or not rank.program.infer(request):
                error = f"{key} does not run here"
        except ProtocolError as problem:
            error = str(problem)
        if error:
            self.say_infer(pb.InferData(request=request.request, error=error))

    def say_infer(self, data: pb.InferData) -> None:
        self._attachment.send(pb.DaemonMessage(infer=data), is_bulk=True)


def _read(folder: Path, request: pb.ReadLog) -> Piece:
    """Read from the offset on; without one, from the line written at the time that is asked for."""
    offset = request.offset
    if request.since > 0 and not offset:
        found = offset_at(folder, request.stream, request.since)
        if found is None:
            size = size_of(folder, request.stream)
            return Piece(size, b"", size)
        offset = found
    return read_piece(folder, request.stream, offset, request.limit)
