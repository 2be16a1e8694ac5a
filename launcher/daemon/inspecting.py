"""Inspection of a rank that is stuck: its stacks, and a dump of all that is known of it. Bounded in
time and size, and without secrets.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow.core.errors import OneFlowError
from oneflow.core.log import MASK, get_logger, mask
from oneflow.core.processes import stat_fields
from oneflow.launcher.daemon.attach import Attachment
from oneflow.launcher.daemon.logs import STREAMS, read_piece, size_of
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.launcher.processes import descendants
from oneflow.launcher.report import read_error
from oneflow.launcher.supervision import DUMP_SIGNAL
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import AttemptKey, key_of

if TYPE_CHECKING:
    from oneflow.launcher.daemon.rank import Rank

MAX_DUMP_CHARS = 960 << 10  # a message holds a little more than 1 MiB
MAX_STACK_NBYTES = 64 << 10
TAIL_NBYTES = 24 << 10
MAX_WORDS, MAX_WORD_CHARS = 256, 256  # of the command and the environment
MAX_PROCESSES, MAX_THREADS = 64, 256
QUIET_S = 0.3  # stacks are whole when nothing was added for so long
LOOK_S = 0.02
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|KEY|CREDENTIAL", re.IGNORECASE)
_STATUS = ("Name", "State", "Threads", "VmRSS", "VmHWM", "SigBlk", "SigCgt")

log = get_logger(__name__)


class InspectError(OneFlowError):
    """The request cannot be met for this rank."""


class Inspector:
    """rank: of an attempt that goes on here; None for any other."""

    def __init__(
        self,
        settings: DaemonSettings,
        rank: Callable[[AttemptKey], Rank | None],
        attachment: Attachment,
    ) -> None:
        self._settings, self._rank, self._attachment = settings, rank, attachment

    async def inspect(self, request: pb.Inspect) -> None:
        """Answers with one Inspected."""
        answer = pb.Inspected(request=request.request)
        try:
            key = key_of(request.id)
            limit_s = min(max(request.timeout_s, 0.1), 60.0)
            if request.what == "trace":
                await self._trace(key, request, answer, limit_s)
                return
            work = self._dump(key, limit_s) if request.what == "dump" else self._stack(key, limit_s)
            answer.text = await asyncio.wait_for(work, 2 * limit_s)
        except (OneFlowError, OSError) as error:
            answer.error = str(error)
        except asyncio.TimeoutError:
            answer.error = "no answer of the rank came in time"
        finally:
            self._attachment.send(pb.DaemonMessage(inspected=answer), is_bulk=True)

    # -- traces ------------------------------------------------------------------------------------

    async def _trace(
        self, key: AttemptKey, request: pb.Inspect, answer: pb.Inspected, limit_s: float
    ) -> None:
        """Return the worker's answer."""
        rank = self._rank(key)
        if rank is None or rank.worker is None or rank.worker.is_over:
            raise InspectError(f"{key} does not run here now")
        found = await asyncio.wait_for(rank.program.inspect(request), limit_s)
        answer.trace.CopyFrom(found.trace)
        answer.error = found.error

    # -- stacks ------------------------------------------------------------------------------------

    async def _stack(self, key: AttemptKey, limit_s: float) -> str:
        """Return the stacks as the rank itself writes them; with py-spy, if it is there, of any
        other program.
        """
        rank = self._rank(key)
        worker = rank.worker if rank is not None else None
        if rank is None or worker is None or worker.is_over:
            raise InspectError(f"{key} does not run here now")
        if catches(worker.pid, DUMP_SIGNAL):
            folder, before = self._folder(key), rank.writers["stderr"].size
            signal.pidfd_send_signal(worker.pidfd, DUMP_SIGNAL)
            text = await self._answer(folder, before, limit_s)
            if text:
                return mask(text, _secrets(rank))
        if shutil.which("py-spy"):
            return await asyncio.to_thread(_py_spy, worker.pid, limit_s)
        state = _status(worker.pid).get("State", "gone")
        raise InspectError(
            f"process {worker.pid} ({state}) does not answer SIGUSR2 with its stacks: it is no "
            "Python program of the launcher, or has set a handler of its own; py-spy, if it is "
            "installed beside the daemon, is asked then"
        )

    async def _answer(self, folder: Path, before: int, limit_s: float) -> str:
        """Return the output on standard error from now on, until it is quiet."""
        deadline = time.monotonic() + limit_s
        size, changed_at = before, time.monotonic()
        while time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
            now = size_of(folder, "stderr")
            if now != size:
                size, changed_at = now, time.monotonic()
            elif size > before and time.monotonic() - changed_at >= QUIET_S:
                break
        return read_piece(folder, "stderr", before, MAX_STACK_NBYTES).data.decode(errors="replace")

    # -- dumps -------------------------------------------------------------------------------------

    async def _dump(self, key: AttemptKey, limit_s: float) -> str:
        """Return as JSON the facts that could be had."""
        rank = self._rank(key)
        found: dict[str, Any] = {"daemon": self._settings.id, "daemon_pid": os.getpid()}
        found |= {"at": time.time(), "rank": key.rank, "attempt": key.attempt}
        found["runs"] = rank is not None and rank.worker is not None and not rank.worker.is_over
        if rank is not None and rank.worker is not None:
            found |= await asyncio.to_thread(self._process, rank)
            try:
                found["stacks"] = await self._stack(key, limit_s)
            except (OneFlowError, OSError) as error:
                found["stacks_error"] = str(error)
        found |= await asyncio.to_thread(self._files, key, _secrets(rank))
        text = json.dumps(found)
        if len(text) > MAX_DUMP_CHARS:
            found |= {"stacks": None, "stacks_error": "too long for a dump"}
            text = json.dumps(found)
        return text

    def _process(self, rank: Rank) -> dict[str, Any]:
        worker = rank.worker
        assert worker is not None  # asked for before
        pids = [worker.pid, *(p for p in descendants(worker.pid) if p != worker.pid)]
        spec = rank.prepare.spec
        return {
            "pid": worker.pid,
            "status": _status(worker.pid),
            "threads": _threads(worker.pid),
            "processes": [{"pid": pid} | _brief(pid) for pid in pids[:MAX_PROCESSES]],
            "argv": [mask(word)[:MAX_WORD_CHARS] for word in spec.argv[:MAX_WORDS]],
            "env": without_secrets(spec.env),
            "world_size": rank.prepare.world_size,
            "resume_from": rank.prepare.resume_from,
        }

    def _files(self, key: AttemptKey, secrets: Iterable[str]) -> dict[str, Any]:
        folder = self._folder(key)
        found: dict[str, Any] = {}
        for stream in STREAMS:
            size = size_of(folder, stream)
            piece = read_piece(folder, stream, max(size - TAIL_NBYTES, 0), TAIL_NBYTES)
            found[f"{stream}_nbytes"] = size
            found[f"{stream}_tail"] = mask(piece.data.decode(errors="replace"), secrets)
        error = read_error(folder.parent / "errors" / f"rank{key.rank}.json")
        if error is not None:
            found["error"] = {"summary": error.summary, "reason": error.reason}
        return found

    def _folder(self, key: AttemptKey) -> Path:
        return self._settings.jobs_dir / key.folder / str(key.attempt) / f"rank{key.rank}"


def without_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """The variables, but not the values of those that are named like secrets."""
    found = {}
    for name in sorted(env)[:MAX_WORDS]:
        found[name] = MASK if _SECRET.search(name) else mask(env[name])[:MAX_WORD_CHARS]
    return found


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal: another one would end it."""
    try:
        return bool(int(_status(pid).get("SigCgt", "0"), 16) >> (signum - 1) & 1)
    except ValueError:
        return False


def _secrets(rank: Rank | None) -> tuple[str, ...]:
    if rank is None:
        return ()
    hidden = [value for name, value in rank.prepare.spec.env.items() if _SECRET.search(name)]
    return tuple(s for s in (rank.prepare.job_key, *hidden) if len(s) >= 4)


def _status(pid: int) -> dict[str, str]:
    """Lines of /proc/<pid>/status that say how a process is; {} if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs if name in _STATUS}


def _threads(pid: int) -> list[dict[str, Any]]:
    try:
        tids = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))[:MAX_THREADS]
    except OSError:
        return []
    return [{"tid": tid} | _brief(pid, tid) for tid in tids]


def _brief(pid: int, tid: int = 0) -> dict[str, str]:
    """Name, state and the kernel's function in which it waits."""
    folder = Path(f"/proc/{pid}/task/{tid}" if tid else f"/proc/{pid}")
    found = {}
    for name, file in (("name", "comm"), ("waits_in", "wchan")):
        try:
            found[name] = (folder / file).read_text(errors="replace").strip()
        except OSError:  # gone, or not for us to know
            continue
    if fields := stat_fields(pid, tid):
        found["state"] = fields[0]
    return found


def _py_spy(pid: int, limit_s: float) -> str:
    command = ["py-spy", "dump", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise InspectError(f"py-spy did not come to an end within {limit_s:g} s") from None
    text = done.stdout.decode(errors="replace")[:MAX_STACK_NBYTES]
    if not text:
        said = done.stderr.decode(errors="replace").partition("\n\nStack backtrace:")[0].strip()
        why = said.removeprefix("Error: ")[:500] or f"it exited with {done.returncode}"
        name = _status(pid).get("Name", "gone")
        raise InspectError(
            f"no stacks of process {pid} ({name}): py-spy shows those of Python "
            f"programs only, and says of this one: {why}"
        )
    return text
