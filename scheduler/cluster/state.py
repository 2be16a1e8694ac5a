"""The state of a scheduler: all that it knows and keeps, opened from its state directory.

One scheduler holds the directory, by a locked file that names its holder. The lock is the kernel's,
so it goes with its process: a file that a dead one left is no obstacle.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from oneflow.core.errors import ConfigError, OneFlowError
from oneflow.core.folders import make_state_dir
from oneflow.core.log import get_logger
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.audit import AUDIT_FILE, Audit, Retired
from oneflow.scheduler.cluster.auth import Tokens
from oneflow.scheduler.cluster.blobs import Blobs
from oneflow.scheduler.cluster.compiler import Compilers
from oneflow.scheduler.cluster.driver import Driver, Listener
from oneflow.scheduler.cluster.end_hook import EndHook
from oneflow.scheduler.cluster.lines import Lines
from oneflow.scheduler.cluster.metrics import ClusterMetrics
from oneflow.scheduler.cluster.places import ADMIN_TOKEN_FILE, DAEMON_TOKEN_FILE
from oneflow.scheduler.cluster.plans import Plans
from oneflow.scheduler.cluster.points import Paces, Points
from oneflow.scheduler.cluster.settings import SchedulerSettings
from oneflow.scheduler.jobs import tokens as token_rules
from oneflow.scheduler.jobs.events import (
    Action,
    DaemonJoined,
    Rejected,
    Tell,
    TellFenced,
    TellPace,
    TellPrepare,
    TellWelcome,
    Told,
)
from oneflow.scheduler.jobs.ledger import FORGOTTEN
from oneflow.scheduler.jobs.messages import prepare_message
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, JobState, TokenRecord
from oneflow.scheduler.jobs.specs import spec_to_proto
from oneflow.scheduler.jobs.store import SqliteStore
from oneflow.scheduler.jobs.table import Table
from oneflow.services.failpoints import failpoint

DATABASE = "cluster.db"
LOCK_FILE = "scheduler.lock"

log = get_logger(__name__)


class State:
    """The parts that a scheduler's services share; `close` makes all of it durable.

    address, metrics_address: where it is served, once it is. was_here: daemons may come back to us.
    """

    def __init__(self, settings: SchedulerSettings, compiler: Sequence[str] = ()) -> None:
        """Raises ConfigError or StoreError; nothing is left then."""
        self.settings = settings
        self.address = self.metrics_address = ""
        self.started_at = time.time()
        self.is_stopping = False
        self._lock = StateLock(settings.state_dir)
        self._lock.take()
        try:
            self._open(settings.state_dir, compiler)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, folder: Path, compiler: Sequence[str]) -> None:
        settings = self.settings
        warn_of_loss(folder)
        database = SqliteStore(folder / DATABASE)
        try:
            loaded, tokens = database.load(), database.tokens()
            counted_s = FORGOTTEN * settings.table.usage_half_life_s
            uses = database.uses(time.time() - counted_s) if counted_s else []
            self.audit = Audit(
                folder / AUDIT_FILE,
                max_nbytes=settings.audit_nbytes,
                max_files=settings.audit_files,
            )
            if not tokens:
                tokens = self._first_tokens()
                database.put_tokens(tokens)
        except BaseException:
            database.close()
            raise
        self.was_here = loaded.epoch > 0
        self.tokens = Tokens(tokens)
        self.metrics = ClusterMetrics(folder / DATABASE)
        self.metrics.recovering(loaded.jobs)
        self.lines = Lines()
        performer = Performer(self.lines, settings)
        table = Table(
            loaded.jobs,
            loaded.epoch,
            settings.table,
            loaded.removed,
            loaded.drained,
            loaded.wall,
            loaded.journal,
            uses,
        )
        wrote = self.metrics.writes[()].observe
        self.driver = Driver(table, database, performer.perform, wrote)
        self.blobs = Blobs(folder / "blobs", settings.limits, self._wanted_files)
        self.compilers = Compilers(compiler, settings.compiler, settings.env) if compiler else None
        self.plans = performer.plans = Plans(
            folder,
            self.blobs,
            self.compilers,
            self.driver.tell,
            performer.send_prepare,
            self._is_wanted,
            self._is_live,
        )
        self.points, self.paces = Points(self.driver), Paces()
        releaser, retired = _Releaser(self.blobs, self.plans), Retired(self.audit)
        self.driver.listeners = [self.metrics, self.points, self.paces, releaser, retired]
        self._hook: EndHook | None = None
        if settings.on_end:
            self._hook = EndHook(settings.on_end, settings.env, self.metrics.end_hooks)
            self.driver.listeners.append(self._hook)

    def _first_tokens(self) -> list[TokenRecord]:
        """The operator's, and one for daemons."""
        admin = self._first_token("admin", "admin", ADMIN_TOKEN_FILE)
        return [admin, self._first_token("daemons", "daemon", DAEMON_TOKEN_FILE)]

    def _first_token(self, name: str, role: str, file: str) -> TokenRecord:
        record, secret = token_rules.create(name, role, time.time())
        token_rules.write_token_file(self.settings.state_dir / file, secret)
        if role == "admin" and self.settings.token_file is not None:
            token_rules.write_token_file(self.settings.token_file, secret)
        self.audit.note("token_create", "", "", name=name, role=role, why="the first start")
        return record

    # -- jobs and their files ----------------------------------------------------------------------

    def _is_wanted(self, action: TellPrepare) -> bool:
        attempt = self.driver.table.attempts.live.get(action.record.id)
        is_current = attempt is not None and attempt.number == action.record.attempt
        return is_current and attempt is not None and not attempt.is_stopping

    def _is_live(self, job_id: str) -> bool:
        job = self.driver.table.jobs.get(job_id)
        return job is not None and not job.state.is_final and job.state is not JobState.CANCELLING

    def _wanted_files(self) -> set[str]:
        """Digests that jobs name."""
        return self._files(job.spec for job in self.driver.table.jobs.values())

    def is_needed(self, digest: str, token: str) -> bool:
        """Whether a rank on a daemon of this token needs the file for the attempt that goes on.
        Each rank of thousands asks, so the first that is found has to do.
        """
        table, files = self.driver.table, {digest} | self.plans.graphs_of(digest)
        going_on = [table.jobs[job_id] for job_id in table.attempts.live if job_id in table.jobs]
        named = [job for job in going_on if job.spec.files & files]
        lines = (self.lines.current(place.daemon) for job in named for place in job.assignments)
        return any(line is not None and line.token == token for line in lines)

    def _files(self, specs: Iterable[JobSpec]) -> set[str]:
        """Digests of the files of jobs, plans of their graphs included."""
        named = {digest for spec in specs for digest in spec.files}
        return named | self.plans.of_graphs(named)

    # -- ending ------------------------------------------------------------------------------------

    async def close(self, why: str) -> None:
        """Once nothing drives the table any more. why: for the audit log."""
        with suppress(OneFlowError):
            await self.points.flush()
            await self.driver.close()
        self.plans.close()
        if self._hook is not None:
            await asyncio.to_thread(self._hook.close)
        if self.compilers is not None:
            await asyncio.to_thread(self.compilers.close)
        self.blobs.close()
        # Who sent a signal the kernel does not say; only this user and root can.
        self.audit.note("stop", "", "", why=why, user=os.getuid())
        self.audit.close()
        self._lock.release()


def warn_of_loss(folder: Path) -> None:
    """Log that there is no journal where an earlier scheduler has left other files."""
    journal = folder / DATABASE
    if journal.exists() and journal.stat().st_size:
        return
    num_files = sum(1 for _ in (folder / "blobs").glob("*"))
    is_used = (folder / ADMIN_TOKEN_FILE).exists() or (folder / AUDIT_FILE).exists()
    if num_files or is_used:
        log.warning(
            "%s is empty or missing, beside %d files of jobs and what an earlier scheduler "
            "wrote: its jobs and tokens are not known any more; to go on with them, stop the "
            "scheduler and restore a copy of %s",
            journal,
            num_files,
            DATABASE,
        )


class Performer:
    """Does the actions of the table: tells daemons, over the line that they have now.

    plans: set once, before the first action; they tell daemons to prepare when a plan is there.
    """

    plans: Plans

    def __init__(self, lines: Lines, settings: SchedulerSettings) -> None:
        self._lines, self._settings = lines, settings
        self._last_spec: tuple[JobRecord | None, pb.JobSpec] = None, pb.JobSpec()

    def perform(self, action: Action) -> None:
        """Any action that is not the store's."""
        match action:
            case TellWelcome():
                self._welcome(action)
            case TellFenced():
                for line in self._lines.of_incarnation(action.daemon, action.incarnation):
                    line.send(pb.SchedulerMessage(fenced=action.why))
                    line.close(action.why)
            case Rejected(event=event, message=message, reason=reason):
                level = log.warning if isinstance(event, DaemonJoined) else log.info
                level("refused (%s): %s", reason or "asked in vain", message)
            case TellPrepare():
                self.plans.tell_prepare(action)
            case TellPace():
                pace = pb.Pace(**self._pace(action.slow_s))
                self._send(action, pb.SchedulerMessage(pace=pace), is_for_all=True)
            case Tell():
                self._send(action, action.message)

    def send_prepare(self, action: TellPrepare, plan: str) -> None:
        """plan: its digest, or ""."""
        failpoint("scheduler.plan")
        record = action.record
        if self._last_spec[0] is not record:
            self._last_spec = record, spec_to_proto(record.spec)
        self._send(action, prepare_message(action, plan, self._last_spec[1]))

    def _send(self, action: Told, message: pb.SchedulerMessage, is_for_all: bool = False) -> None:
        """Send to the daemon that is meant, if it is still the same one."""
        line = self._lines.current(action.daemon)
        if line is not None and line.epoch == action.epoch:
            line.send(message, is_for_all)

    def _welcome(self, action: TellWelcome) -> None:
        line = self._lines.welcome(action.daemon, action.incarnation, action.epoch)
        if line is None:
            return
        welcome = pb.Welcome(epoch=action.epoch, **self._pace(action.slow_s))
        line.send(pb.SchedulerMessage(welcome=welcome))

    def _pace(self, slow_s: float) -> dict[str, float]:
        """Return the times of a daemon that beats so much later, as messages have them."""
        suspect_s, act_s = self._settings.table.silence(slow_s)
        heartbeat_s = self._settings.heartbeat_s + slow_s
        return {"heartbeat_s": heartbeat_s, "suspect_s": suspect_s, "act_s": act_s}


class _Releaser(Listener):
    """Removes the files of jobs that are removed."""

    def __init__(self, blobs: Blobs, plans: Plans) -> None:
        self._blobs, self._plans = blobs, plans

    def changed(self, before: JobRecord | None, now: JobRecord | None) -> None:
        if now is None and before is not None:
            spec = before.spec
            plans = self._plans.of_graphs(spec.files)
            self._blobs.release(spec.files | plans)


class StateLock:
    """The lock of a state directory, held from `take` to `release`."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / LOCK_FILE
        self._fd = -1

    def take(self) -> None:
        """Raises ConfigError that names the holder."""
        try:
            make_state_dir(self._path.parent, "blobs")
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 100, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise ConfigError(
                f"the state directory {self._path.parent} is in use by another scheduler"
                f"{_describe(holder)}; stop that one or name another state directory"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """The file stays: to remove it would let two in."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def _describe(holder: str) -> str:
    if not holder.isdecimal():
        return ""
    try:
        words = Path(f"/proc/{holder}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return f", process {holder}"
    return f", process {holder} ({' '.join(word for word in words if word)[:80]})"
