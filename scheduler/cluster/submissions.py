"""The way of a job into the cluster: its spec and files are judged, then it is in the table.

A job's folder of checkpoints is judged before it waits for devices: daemons tell in
which folders jobs may write. Whether links lead there only they can see, so they judge again when
the job begins; a job that is submitted before any daemon is there waits for that.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from oneflow.core.errors import JobSpecError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.auth import Caller, Guard, caller
from oneflow.scheduler.cluster.lines import Line
from oneflow.scheduler.cluster.refusals import (
    DeniedError,
    ExhaustedError,
    ExistsError,
    RefusedError,
    UnavailableError,
)
from oneflow.scheduler.jobs.events import Submitted
from oneflow.scheduler.jobs.limits import check_job_id, check_spec
from oneflow.scheduler.jobs.quotas import check_queue, find_queue
from oneflow.scheduler.jobs.records import DEFAULT_QUEUE, JobKind, JobRecord, JobSpec
from oneflow.scheduler.jobs.specs import spec_from_proto

if TYPE_CHECKING:
    from oneflow.scheduler.cluster.state import State

SUBMIT = "/oneflow.Jobs/Submit"
MAX_NAMED = 4
LINKS_S = 2.0  # a folder of another machine may hang
MAX_LOOKS = 16  # at folders that hang


class Submissions:
    """Takes jobs in, one submission of an id after another."""

    def __init__(self, state: State, guard: Guard) -> None:
        self._state, self._guard = state, guard
        self._under_way: dict[str, asyncio.Event] = {}  # by job id; set when it is done

    async def take(self, request: pb.SubmitRequest) -> JobRecord:
        """The job's record. Raises JobSpecError, RefusedError or AuthError."""
        who, state = caller(), self._state
        spec = spec_from_proto(request.spec)
        job_id = request.job_id or "j" + secrets.token_hex(4)
        async with self._alone(job_id):
            is_known = job_id in state.driver.jobs
            try:
                check_job_id(job_id)
                check_spec(spec)
                if not is_known:
                    await self._judge(spec, who)
            except (JobSpecError, RefusedError):
                state.metrics.rejected_jobs["spec"] += 1
                raise
            self._guard.check_still(SUBMIT, who)
            await self._enter(job_id, spec, who)
            if not is_known:
                details = {"job": job_id, "kind": spec.kind.value, "name": spec.name}
                state.audit.note("submit", who.name, who.peer, **details, devices=spec.devices)
        record = state.driver.job(job_id)
        state.plans.prepare(record)
        return record

    @asynccontextmanager
    async def _alone(self, job_id: str) -> AsyncIterator[None]:
        """Hold up others of that id: the second finds the first one's job."""
        while (other := self._under_way.get(job_id)) is not None:
            await other.wait()
        done = self._under_way[job_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._under_way[job_id]
            done.set()

    async def _judge(self, spec: JobSpec, who: Caller) -> None:
        self._check_takeable(spec, who)
        await check_checkpoint_dir(spec, self._state.lines.all())
        await self._state.plans.check(spec, who.name)
        self._check_takeable(spec, who)  # that may have taken a minute

    def _check_takeable(self, spec: JobSpec, who: Caller) -> None:
        state = self._state
        if state.is_stopping:
            raise UnavailableError("the scheduler is about to stop: submit again when it is back")
        if spec.kind is JobKind.SCRIPT and not state.settings.allow_scripts:
            raise DeniedError(
                "this cluster takes no script jobs; its operator may allow them with "
                "--allow-scripts"
            )
        queues = state.settings.table.queues
        check_queue(spec, queues)
        queue = find_queue(queues, spec.queue)
        if queue is not None and not (who.is_admin or queue.admits(who.name)):
            raise DeniedError(
                f"queue {spec.queue or DEFAULT_QUEUE}: the token {who.name!r} may not use it; "
                "its operator names in [scheduler.queues] who may"
            )
        longest_s = state.settings.table.max_time_limit_s
        if longest_s and spec.time_limit_s > longest_s:
            raise JobSpecError(
                f"time_limit_s={spec.time_limit_s:g}: this cluster allows {longest_s:g} seconds"
            )
        for digest in sorted(spec.files):
            if digest not in state.blobs:
                raise RefusedError(f"there is no file {digest}: upload it first")

    async def _enter(self, job_id: str, spec: JobSpec, who: Caller) -> None:
        driver, key = self._state.driver, secrets.token_hex(32)
        refusal = await driver.ask(Submitted(job_id, spec, who.name, key, time.time()))
        if refusal is None:
            return
        if job_id in driver.table.jobs:
            raise ExistsError(refusal.message)
        raise ExhaustedError(refusal.message)


# ---- folders of checkpoints ----------------------------------------------------------------------


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
        real = await _real(folder)
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


_looks = threading.BoundedSemaphore(MAX_LOOKS)


async def _real(folder: str) -> str | None:
    """The folder to which links lead; None: that cannot be known now. Looked up in a thread of its
    own: one that hangs, for as long as a folder's server is away, holds up neither the
    scheduler's other threads nor its end.
    """
    if not _looks.acquire(blocking=False):
        return None
    found: Future[str] = Future()

    def look() -> None:
        try:
            real = os.path.realpath(folder)
        except (OSError, ValueError):
            real = folder
        finally:
            _looks.release()
        if found.set_running_or_notify_cancel():
            found.set_result(real)

    threading.Thread(target=look, name="oneflow-links", daemon=True).start()
    try:
        return await asyncio.wait_for(asyncio.wrap_future(found), LINKS_S)
    except asyncio.TimeoutError:
        return None


def _is_below(folder: str, roots: Iterable[str]) -> bool:
    return any(f"{folder}/".startswith(root.rstrip("/") + "/") for root in roots)
