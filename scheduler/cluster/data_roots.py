"""Whether a job may keep its checkpoints where it wants to, said before it waits for devices.

Daemons tell in which folders jobs may write. Whether links lead there only they can see, so they
judge again when the job begins; a job that is submitted before any daemon is there waits for that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

from oneflow.core.errors import JobSpecError
from oneflow.scheduler.cluster.lines import Line
from oneflow.scheduler.jobs.records import JobKind, JobSpec

MAX_NAMED = 4


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
        real = await asyncio.to_thread(os.path.realpath, folder)
        if _is_below(real, roots):
            return
    folders = sorted({line.folder for line in able})
    named = sorted(roots.difference(folders))
    there_are = f"jobs may use {', '.join(named[:MAX_NAMED])}" if named else "there are none"
    raise JobSpecError(
        f"checkpoint_dir {spec.checkpoint_dir}: it is in no folder that jobs may use on a daemon "
        f"of this cluster ({there_are}); whoever runs `daemon run` or `cluster up` can allow it "
        "by --data-root"
    )


def _is_below(folder: str, roots: Iterable[str]) -> bool:
    return any(f"{folder}/".startswith(root.rstrip("/") + "/") for root in roots)
