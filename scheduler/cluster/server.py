"""The scheduler's process: all parts of it put together, started, and ended in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from typing import Any

from oneflow import __version__
from oneflow.core.control_channel import channel_options
from oneflow.core.dumps import forbid_core_dumps
from oneflow.core.errors import OneFlowError
from oneflow.core.log import get_logger
from oneflow.core.rpc import Server
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.attempts_log import AttemptsLog
from oneflow.scheduler.cluster.audit import AUDIT_FILE, Audit, Detail, Retired
from oneflow.scheduler.cluster.blobs import Blobs
from oneflow.scheduler.cluster.compiler import Compilers
from oneflow.scheduler.cluster.driver import Driver, tick
from oneflow.scheduler.cluster.http_page import HttpPage, Route
from oneflow.scheduler.cluster.lines import Lines
from oneflow.scheduler.cluster.lock import StateLock
from oneflow.scheduler.cluster.metrics import ClusterMetrics
from oneflow.scheduler.cluster.performing import Performer
from oneflow.scheduler.cluster.places import (
    ADMIN_TOKEN_FILE,
    DAEMON_TOKEN_FILE,
    bind,
    publish,
    unpublish,
)
from oneflow.scheduler.cluster.plans import Plans
from oneflow.scheduler.cluster.points import Paces, Points
from oneflow.scheduler.cluster.refusals import UnavailableError
from oneflow.scheduler.cluster.settings import SchedulerSettings
from oneflow.scheduler.cluster.tls import ServerTls
from oneflow.scheduler.jobs import tokens as token_rules
from oneflow.scheduler.jobs.events import DrainAsked, TellPrepare
from oneflow.scheduler.jobs.records import JobRecord, JobState, TokenRecord
from oneflow.scheduler.jobs.store import SqliteStore
from oneflow.scheduler.jobs.table import Table
from oneflow.services import failpoints
from oneflow.services.notify import notify

DATABASE = "cluster.db"
SERVICES = ("", "oneflow.Scheduler")
SWEEP_S = 60.0
SHUTDOWN_POLL_S = 0.1
MAX_STREAMS = 1024  # calls at once over one connection, whoever has opened it

log = get_logger(__name__)


def run_scheduler(
    settings: SchedulerSettings,
    compiler: Sequence[str] = (),
    on_ready: Callable[[Scheduler], None] = lambda scheduler: None,
) -> int:
    """Runs a scheduler in this thread, which must be the main one, until SIGTERM or SIGINT.

    compiler: command of the process that judges and compiles graph jobs (Compilers); none leaves
    that to their rank 0. on_ready: called once it serves. Returns the exit code.
    Raises ConfigError (exit 78) for what it cannot start with, and
    StoreError (70) for a state directory that is damaged.
    """
    settings.check()
    forbid_core_dumps()
    failpoints.arm(settings.env)
    return asyncio.run(_run(settings, compiler, on_ready))


async def _run(
    settings: SchedulerSettings,
    compiler: Sequence[str],
    on_ready: Callable[[Scheduler], None],
) -> int:
    scheduler = Scheduler(settings, compiler)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, scheduler.ask_to_stop, number.name)
    await scheduler.start()
    try:
        on_ready(scheduler)
        return await scheduler.wait()
    finally:
        await scheduler.stop()


class Scheduler:
    """One scheduler on the running loop: `start`, then `wait`, then `stop`."""

    def __init__(self, settings: SchedulerSettings, compiler: Sequence[str] = ()) -> None:
        self.settings = settings
        self.address = ""
        self.metrics_address = ""
        self._compilers: Compilers | None = None
        if compiler:
            self._compilers = Compilers(compiler, settings.compiler, settings.env)
        self._lock = StateLock(settings.state_dir)
        self._lines = Lines()
        self._tls = ServerTls(settings.tls) if settings.tls is not None else None
        self._server: Server | None = None
        self._guard: Any = None
        self._health: Any = None
        self._page: Any = None
        self._driver_task: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stop_asked = asyncio.Event()
        self._stop_why = ""
        self._stop_s = settings.stop_s
        self._is_ready = False
        self._started_at = time.time()
        self._swept_at = 0.0

    # -- starting ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when it serves. Raises ConfigError or StoreError; nothing is left then."""
        self._lock.take()
        try:
            self._open_state()
            await self._serve()
            self._start_tasks()
            await self._open_page()
            publish(self.settings, self.address, self.metrics_address)
        except BaseException:
            await self.stop()
            raise
        await self._set_serving(True)
        self._is_ready = True
        settings = self.settings
        facts: dict[str, Detail] = {
            "address": self.address,
            "allow_scripts": settings.allow_scripts,
        }
        facts |= {"user": os.getuid()}
        self._audit.note("start", "", "", **facts, ui=settings.ui, tls=settings.tls is not None)
        notify(self.settings.notify_socket, "READY=1")
        log.info("the scheduler serves at %s, metrics at %s", self.address, self.metrics_address)

    def _open_state(self) -> None:
        settings, state = self.settings, self.settings.state_dir
        self._database = SqliteStore(state / DATABASE)
        loaded = self._database.load()
        self._was_here = loaded.epoch > 0  # daemons may come back to us
        table = Table(loaded.jobs, loaded.epoch, settings.table, loaded.removed, loaded.undrained)
        attempts = AttemptsLog(state / "jobs", loaded.jobs)
        self.metrics = ClusterMetrics(state / DATABASE)
        self.metrics.recovering(loaded.jobs)
        self._audit = Audit(
            state / AUDIT_FILE, max_nbytes=settings.audit_nbytes, max_files=settings.audit_files
        )
        self._performer = Performer(self._lines, self.metrics, settings)
        self.driver = Driver(table, self._database, attempts, self._performer.perform)
        self.driver.write_seconds = self.metrics.journal.observe
        self._blobs = Blobs(state / "blobs", settings.limits, self._wanted_blobs)
        compilers = self._compilers
        self.plans = Plans(
            state,
            self._blobs,
            compilers.compile_plan if compilers is not None else None,
            self.driver.tell,
            self._performer.send_prepare,
            self._is_wanted,
            compilers.check_fit if compilers is not None else None,
            self._is_live,
        )
        self._performer.plans = self.plans
        self._points = Points(self.driver)
        releaser, retired = _Releaser(self._blobs, self.plans), Retired(self._audit)
        self._paces = Paces()
        self.driver.listeners = [self.metrics, self._points, self._paces, releaser, retired]
        self._load_tokens()

    def _is_wanted(self, action: TellPrepare) -> bool:
        attempt = self.driver.table.attempts.live.get(action.record.id)
        is_current = attempt is not None and attempt.number == action.record.attempt
        return is_current and attempt is not None and not attempt.is_stopping

    def _is_live(self, job_id: str) -> bool:
        job = self.driver.table.jobs.get(job_id)
        return job is not None and not job.state.is_final and job.state is not JobState.CANCELLING

    def _wanted_blobs(self) -> set[str]:
        """Digests that jobs name, plans of their graphs included."""
        specs = [job.spec for job in self.driver.table.jobs.values()]
        graphs = {spec.graph for spec in specs if spec.graph}
        archives = {spec.archive for spec in specs if spec.archive}
        return graphs | archives | self.plans.of_graphs(graphs)

    def _files_of(self, daemons: Set[str]) -> set[str]:
        """Digests of what ranks on these daemons need for the attempts that go on."""
        jobs = self.driver.table.jobs
        going_on = [jobs[job_id] for job_id in self.driver.table.attempts.live if job_id in jobs]
        specs = [j.spec for j in going_on if any(a.daemon in daemons for a in j.assignments)]
        graphs = {spec.graph for spec in specs if spec.graph}
        archives = {spec.archive for spec in specs if spec.archive}
        return graphs | archives | self.plans.of_graphs(graphs)

    def _load_tokens(self) -> None:
        """Makes the first two at the first start: the operator's, and one for daemons."""
        from oneflow.scheduler.cluster.auth import Tokens

        records = self._database.tokens()
        if not records:
            records = [self._first_token("admin", "admin", ADMIN_TOKEN_FILE)]
            records.append(self._first_token("daemons", "daemon", DAEMON_TOKEN_FILE))
            self._database.put_tokens(records)
        self.tokens = Tokens(records)

    def _first_token(self, name: str, role: str, file: str) -> TokenRecord:
        record, secret = token_rules.create(name, role, time.time())
        token_rules.write_token_file(self.settings.state_dir / file, secret)
        if role == "admin" and self.settings.token_file is not None:
            token_rules.write_token_file(self.settings.token_file, secret)
        self._audit.note("token_create", "", "", name=name, role=role, why="the first start")
        return record

    # -- serving -----------------------------------------------------------------------------------

    async def _serve(self) -> None:
        from grpc import aio
        from grpc_health.v1 import health, health_pb2_grpc

        from oneflow.protos import cluster_pb2_grpc
        from oneflow.scheduler.cluster.auth import Guard
        from oneflow.scheduler.cluster.cluster_service import ClusterService
        from oneflow.scheduler.cluster.daemons_service import DaemonsService
        from oneflow.scheduler.cluster.jobs_service import JobsService

        settings = self.settings
        self._guard = guard = Guard(
            self.tokens, settings.limits, self._audit, self.metrics, address=lambda: self.address
        )
        options = [*channel_options(), ("grpc.max_concurrent_streams", MAX_STREAMS)]
        self._server = server = aio.server(options=options, interceptors=[guard])
        jobs = JobsService(
            self.driver,
            self._lines,
            self._blobs,
            self.plans,
            self._points,
            self._paces,
            self._audit,
            self.metrics,
            settings.state_dir / "spool",
            settings.allow_scripts,
            self._stop_asked.is_set,
            guard.check_still,
        )
        cluster = ClusterService(
            self.driver,
            self._lines,
            self.tokens,
            self._audit,
            self.about,
            self._shut_down,
            settings.table.act_s if self._was_here else 0.0,
        )
        daemons = DaemonsService(
            self.driver, self._lines, self._blobs, self.metrics, self._files_of
        )
        self._health = health.aio.HealthServicer()
        added: Any = cluster_pb2_grpc
        added.add_JobsServicer_to_server(jobs, server)
        added.add_ClusterServicer_to_server(cluster, server)
        added.add_DaemonsServicer_to_server(daemons, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        server.add_generic_rpc_handlers((guard.door.handler(),))
        await self._set_serving(False)
        credentials = self._tls.credentials() if self._tls is not None else None
        self.address = bind(server, settings, credentials)
        await server.start()

    def _start_tasks(self) -> None:
        works = [
            tick(self.driver, self.settings.tick_s, self._each_tick),
            self._points.run(),
            self.metrics.measure_lag(),
        ]
        if self.settings.notify_every_s:
            works.append(self._keep_alive(self.settings.notify_every_s))
        self._driver_task = asyncio.ensure_future(self.driver.run())
        self._tasks = [asyncio.ensure_future(work) for work in works]

    async def _each_tick(self) -> None:
        self.metrics.refresh(self.driver.table, time.monotonic())
        self._guard.end_invalid()
        for job_id in self.plans.waiting():
            self.driver.notify(job_id)  # who watches sees how far the compiler is
        if self._compilers is not None:
            self._compilers.look()
        if self._audit.is_new:
            await asyncio.to_thread(self._audit.sync)
        if time.monotonic() - self._swept_at > SWEEP_S:
            self._swept_at = time.monotonic()
            self._blobs.sweep()
            expiry = self._tls.expiry() if self._tls is not None else None
            if expiry is not None:
                self.metrics.certificates["scheduler"] = expiry

    async def _keep_alive(self, every_s: float) -> None:
        while True:
            notify(self.settings.notify_socket, "WATCHDOG=1")
            await asyncio.sleep(every_s)

    async def _open_page(self) -> None:
        settings = self.settings
        if not settings.metrics_addr:
            return
        self._page = HttpPage(
            settings.metrics_addr,
            self.metrics,
            lambda: self._is_ready and not self.driver.is_store_down,
            settings.hosts,
            self._page_routes(),
        )
        self.metrics_address = self._page.address

    def _page_routes(self) -> Route:
        if not self.settings.ui:
            return lambda path, headers, peer: None
        from oneflow.scheduler.cluster.page import Page

        loop = asyncio.get_running_loop()
        return Page(loop, self._guard, self.driver, self._points, self.plans).route

    def about(self) -> pb.ClusterStatus:
        """Return what `Status` says besides daemons and jobs."""
        return pb.ClusterStatus(
            version=__version__,
            started_at=self._started_at,
            address=self.address,
            metrics_address=self.metrics_address,
            allows_scripts=self.settings.allow_scripts,
            pid=os.getpid(),
            has_page=bool(self.settings.ui and self.metrics_address),
        )

    async def _set_serving(self, is_serving: bool) -> None:
        from grpc_health.v1 import health_pb2

        status = health_pb2.HealthCheckResponse
        for name in SERVICES:
            await self._health.set(name, status.SERVING if is_serving else status.NOT_SERVING)

    # -- ending ------------------------------------------------------------------------------------

    def ask_to_stop(self, why: str) -> None:
        """Stop the scheduler: running jobs go on without it, and are found again by the next one.
        Asked twice, it does not wait for calls under way.
        """
        self._stop_s = 0.0 if self._stop_asked.is_set() else self._stop_s
        self._stop_why = self._stop_why or why
        self._stop_asked.set()

    def _shut_down(self, grace_s: float) -> None:
        """Ends when no attempt goes on any more, at the latest after the grace."""
        self._is_ready = False
        self._tasks.append(asyncio.ensure_future(self._stop_when_idle(grace_s)))

    async def _stop_when_idle(self, grace_s: float) -> None:
        await self.driver.ask(DrainAsked("", grace_s))
        patience_s = grace_s + self.settings.table.grace_s + self.settings.table.unkillable_s
        deadline = time.monotonic() + patience_s
        while self.driver.table.attempts.live and time.monotonic() < deadline:
            await asyncio.sleep(SHUTDOWN_POLL_S)
        self.ask_to_stop("shutdown")

    async def wait(self) -> int:
        """Until it is asked to stop. Returns the exit code: 70 if a part of it failed."""
        asked = asyncio.ensure_future(self._stop_asked.wait())
        parts = [task for task in (self._driver_task, *self._tasks[:3]) if task is not None]
        try:
            await asyncio.wait([asked, *parts], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        for part in parts:
            if part.done() and not part.cancelled() and (error := part.exception()) is not None:
                log.critical("the scheduler failed", exc_info=error)
                print(f"oneflow: the scheduler failed: {error!r}", file=sys.stderr, flush=True)
                return 70
        return 0

    async def stop(self) -> None:
        """Refuses new work, lets calls end, makes durable what is known. Safe to call twice."""
        self._stop_asked.set()
        self._is_ready = False
        if self._health is not None:
            await self._set_serving(False)
        notify(self.settings.notify_socket, "STOPPING=1")
        if self._server is not None:
            server, self._server = self._server, None
            for line in self._lines.all():
                line.close("the scheduler stops")
            self._guard.end_streams(UnavailableError("the scheduler stops"))
            await server.stop(self._stop_s)
        await self._stop_tasks()
        if self._page is not None:
            page, self._page = self._page, None
            await asyncio.to_thread(page.stop)
        unpublish(self.settings)
        self._lock.release()

    async def _stop_tasks(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        driver, self._driver_task = self._driver_task, None
        if driver is not None:
            driver.cancel()
            tasks.append(driver)
        await asyncio.gather(*tasks, return_exceptions=True)
        if driver is not None:
            with suppress(OneFlowError):
                await self._points.flush()
                await self.driver.close()
            self.plans.close()
            if self._compilers is not None:
                await asyncio.to_thread(self._compilers.close)
            self._blobs.close()
            # Who sent a signal the kernel does not say; only this user and root can.
            self._audit.note("stop", "", "", why=self._stop_why or "failure", user=os.getuid())
            self._audit.close()
        elif hasattr(self, "_database"):
            self._database.close()


class _Releaser:
    """Removes the files of jobs that are removed; a `Listener` of the driver."""

    def __init__(self, blobs: Blobs, plans: Plans) -> None:
        self._blobs, self._plans = blobs, plans

    def stepped(self, event: object, actions: object) -> None:
        """Nothing is durable yet."""

    def changed(self, before: JobRecord | None, now: JobRecord | None) -> None:
        if now is None and before is not None:
            spec = before.spec
            plans = self._plans.of_graphs({spec.graph}) if spec.graph else set()
            self._blobs.release({spec.graph, spec.archive, *plans} - {""})
