"""Whether a job may keep its checkpoints where it wants to, said before it waits for devices.

Daemons tell in which folders jobs may write. Whether links lead there only they can see, so they
judge again when the job begins; a job that is submitted before any daemon is there waits for that.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Iterable
from concurrent.futures import Future

from oneflow.core.errors import JobSpecError
from oneflow.scheduler.cluster.lines import Line
from oneflow.scheduler.jobs.records import JobKind, JobSpec

MAX_NAMED = 4
LINKS_S = 2.0  # a folder of another machine may hang
MAX_ASKED = 1000


async def check_checkpoint_dir(spec: JobSpec, lines: Iterable[Line]) -> None:
    """Raises JobSpecError if no daemon of the kind that is wanted lets jobs write there."""
    if spec.kind is not JobKind.GRAPH or not spec.checkpoint_dir:
        return
    able = [line for line in lines if line.device_type == spec.device_type]
    known = [line.roots for line in able if line.roots is not None]
    if not able or len(known) < len(able):
        return
    roots = {root for each in known for root in each}
    folder = os.path.normpath(spec.checkpoint_dir)
    if _is_below(folder, roots):
        return
    if any(line.process is not None for line in able):  # it runs here: links are the same
        real = await _links.resolve(folder)
        if real is None or _is_below(real, roots):
            return
    folders = sorted({line.folder for line in able})
    named = sorted(roots.difference(folders))
    there_are = f"jobs may use {', '.join(named[:MAX_NAMED])}" if named else "there are none"
    raise JobSpecError(
        f"checkpoint_dir {spec.checkpoint_dir}: it is in no folder that jobs may use on a daemon "
        f"of this cluster ({there_are}); whoever runs `daemon run` or `cluster up` can allow it "
        "by --data-root"
    )


class _Links:
    """Finds where links lead in a thread of its own: one that hangs, for as long as a folder's
    server is away, holds up neither what else the scheduler does in threads nor its end.
    """

    def __init__(self) -> None:
        self._asked: queue.Queue[tuple[str, Future[str]]] = queue.Queue(MAX_ASKED)
        self._starting = threading.Lock()
        self._is_started = False

    async def resolve(self, folder: str) -> str | None:
        """None: that cannot be known now."""
        self._start()
        found: Future[str] = Future()
        try:
            self._asked.put_nowait((folder, found))
            return await asyncio.wait_for(asyncio.wrap_future(found), LINKS_S)
        except (queue.Full, asyncio.TimeoutError):
            return None

    def _start(self) -> None:
        with self._starting:
            if not self._is_started:
                self._is_started = True
                threading.Thread(target=self._run, name="oneflow-links", daemon=True).start()

    def _run(self) -> None:
        while True:
            folder, found = self._asked.get()
            if not found.set_running_or_notify_cancel():
                continue  # nobody waits for it any more
            try:
                found.set_result(os.path.realpath(folder))
            except (OSError, ValueError) as error:
                found.set_exception(error)


_links = _Links()


def _is_below(folder: str, roots: Iterable[str]) -> bool:
    return any(f"{folder}/".startswith(root.rstrip("/") + "/") for root in roots)
