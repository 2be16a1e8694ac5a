"""The scheduler's process: its state opened, served, and closed in order."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from oneflow.core.config import split_address
from oneflow.core.control_channel import channel_options
from oneflow.core.core_dumps import forbid_core_dumps
from oneflow.core.log import get_logger
from oneflow.core.rpc import Server
from oneflow.scheduler.cluster.auth import Guard
from oneflow.scheduler.cluster.driver import tick
from oneflow.scheduler.cluster.metrics import make_registry
from oneflow.scheduler.cluster.page import Page
from oneflow.scheduler.cluster.places import bind, publish, unpublish
from oneflow.scheduler.cluster.refusals import UnavailableError
from oneflow.scheduler.cluster.settings import SchedulerSettings
from oneflow.scheduler.cluster.state import State
from oneflow.scheduler.cluster.tls import ServerTls
from oneflow.scheduler.jobs.events import DrainAsked
from oneflow.services import failpoints
from oneflow.services.metrics_http import MetricsPage, Route
from oneflow.services.notify import notify

SERVICES = ("", "oneflow.Scheduler")
SWEEP_S = 60.0
SHUTDOWN_POLL_S = 0.1
MANY_JOINED = 500
COLLECT_AFTER = 10_000  # objects more than before: a large cluster makes as many in a moment
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
    Raises ConfigError (exit 78) for settings that it cannot start with, and
    StoreError (70) for a state directory that is damaged.
    """
    settings.check()
    forbid_core_dumps()
    gc.set_threshold(COLLECT_AFTER)
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
        """Raises ConfigError or StoreError for a state directory that cannot be used."""
        self.settings = settings
        self.state = State(settings, compiler)
        self._serving = Serving(self.state, self._shut_down)
        self._page: MetricsPage | None = None
        self._works: list[asyncio.Task[None]] = []  # the driver's first; none of them may end
        self._ending: asyncio.Task[None] | None = None
        self._stop_asked = asyncio.Event()
        self._stop_why = "failure"
        self._stop_s = settings.stop_s
        self._is_ready = self._is_stopped = False
        self._swept_at = 0.0
        self._epoch = self._kept_epoch = self.state.driver.table.epoch

    @property
    def address(self) -> str:
        return self.state.address

    @property
    def metrics_address(self) -> str:
        return self.state.metrics_address

    async def start(self) -> None:
        """Returns when it serves. Raises ConfigError; nothing is left then."""
        settings, state = self.settings, self.state
        try:
            state.address = await self._serving.start()
            self._start_works()
            self._open_page()
            publish(settings, state.address, state.metrics_address)
        except BaseException:
            await self.stop()
            raise
        await self._serving.say(True)
        self._is_ready = True
        state.audit.note(
            "start", "", "",
            address=state.address,
            allow_scripts=settings.allow_scripts,
            user=os.getuid(),
            ui=settings.ui,
            tls=settings.tls is not None,
        )  # fmt: skip
        notify(settings.notify_socket, "READY=1")
        log.info("the scheduler serves at %s, metrics at %s", state.address, state.metrics_address)

    def _start_works(self) -> None:
        state = self.state
        works = [
            state.driver.run(),
            tick(
                state.driver,
                self.settings.tick_s,
                self._each_tick,
                lambda: self._serving.guard.joins.is_crowded,
            ),
            state.points.run(),
            state.metrics.measure_lag(),
        ]
        if self.settings.notify_every_s:
            works.append(self._keep_alive(self.settings.notify_every_s))
        self._works = [asyncio.ensure_future(work) for work in works]

    async def _each_tick(self) -> None:
        state, now = self.state, time.monotonic()
        state.metrics.refresh(state.driver.table, now)
        self._keep_fleet()
        self._serving.guard.end_invalid()
        for job_id in state.plans.waiting():
            state.driver.news.tell(job_id)  # who watches sees how far the compiler is
        if state.compilers is not None:
            state.compilers.look()
        if state.audit.is_new:
            await asyncio.to_thread(state.audit.sync)
        if now - self._swept_at > SWEEP_S:
            self._swept_at = now
            state.blobs.sweep()
            self._serving.look_at_certificate()

    def _keep_fleet(self) -> None:
        """Once many daemons have joined, and no more come: have the garbage collector pass over
        them from now on. To look at thousands takes it a fifth of a second, in which no call is
        answered.
        """
        before, self._epoch = self._epoch, self.state.driver.table.epoch
        if self._epoch == before and before - self._kept_epoch >= MANY_JOINED:
            self._kept_epoch = before
            gc.unfreeze()
            gc.collect()
            gc.freeze()

    async def _keep_alive(self, every_s: float) -> None:
        while True:
            notify(self.settings.notify_socket, "WATCHDOG=1")
            await asyncio.sleep(every_s)

    def _open_page(self) -> None:
        settings, driver = self.settings, self.state.driver
        if not settings.metrics_addr:
            return
        host, port = split_address(settings.metrics_addr)
        own = ("localhost", host.lower(), socket.gethostname().lower())
        self._page = MetricsPage(
            (host, port),
            make_registry(self.state.metrics),
            lambda: self._is_ready and not driver.is_store_down,
            frozenset((*own, *settings.hosts)),
            setting="--metrics-addr",
            **self._page_routes(),
        )
        self.state.metrics_address = self._page.address

    def _page_routes(self) -> dict[str, Route]:
        """Return the routes of the web page, if it is asked for, by parameter of MetricsPage."""
        if not self.settings.ui:
            return {}
        page = Page(asyncio.get_running_loop(), self._serving.guard, self.state)
        return {"more": page.route, "post": page.change}

    # -- ending ------------------------------------------------------------------------------------

    def ask_to_stop(self, why: str) -> None:
        """Stop the scheduler: running jobs go on without it, and are found again by the next one.
        Asked twice, it does not wait for calls under way.
        """
        if self.state.is_stopping:
            self._stop_s = 0.0
        else:
            self._stop_why = why
        self.state.is_stopping = True
        self._stop_asked.set()

    def _shut_down(self, grace_s: float) -> None:
        """Ends when no attempt goes on any more, at the latest after the grace."""
        self._is_ready = False
        if self._ending is not None:
            self._ending.cancel()  # the last grace counts
        self._ending = asyncio.ensure_future(self._stop_when_idle(grace_s))

    async def _stop_when_idle(self, grace_s: float) -> None:
        driver, limits = self.state.driver, self.settings.table
        await driver.ask(DrainAsked("", grace_s))
        deadline = time.monotonic() + grace_s + limits.grace_s + limits.unkillable_s
        while driver.table.attempts.live and time.monotonic() < deadline:
            await asyncio.sleep(SHUTDOWN_POLL_S)
        await driver.settle()  # the daemons are to hear that the ends they told are durable
        self.ask_to_stop("shutdown")

    async def wait(self) -> int:
        """Until it is asked to stop. Returns the exit code: 70 if a part of it failed."""
        asked = asyncio.ensure_future(self._stop_asked.wait())
        try:
            await asyncio.wait([asked, *self._works], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        for work in self._works:
            if work.done() and not work.cancelled() and (error := work.exception()) is not None:
                log.critical("the scheduler failed", exc_info=error)
                print(f"oneflow: the scheduler failed: {error!r}", file=sys.stderr, flush=True)
                return 70
        return 0

    async def stop(self) -> None:
        """Refuse new work, let calls end, make the state durable. Safe to call twice."""
        self._stop_asked.set()
        self._is_ready, self.state.is_stopping = False, True
        if self._is_stopped:
            return
        self._is_stopped = True
        notify(self.settings.notify_socket, "STOPPING=1")
        await self._serving.stop(self._stop_s)
        tasks = [*self._works, *([self._ending] if self._ending is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._page is not None:
            await asyncio.to_thread(self._page.stop)
        unpublish(self.settings)
        await self.state.close(self._stop_why)


class Serving:
    """The gRPC server: the services of a state, the guard before them, and the answer to probes."""

    def __init__(self, state: State, shut_down: Callable[[float], None]) -> None:
        from grpc_health.v1 import health

        settings = state.settings
        self._state, self._shut_down = state, shut_down
        self._tls = ServerTls(settings.tls) if settings.tls is not None else None
        self._health: Any = health.aio.HealthServicer()
        self._server: Server | None = None
        self.guard = Guard(
            state.tokens,
            settings.limits,
            state.audit,
            state.metrics,
            address=lambda: state.address,
        )

    async def start(self) -> str:
        """Return the address at which it listens. Raises ConfigError."""
        from grpc import aio
        from grpc_health.v1 import health_pb2_grpc

        from oneflow.protos import cluster_pb2_grpc
        from oneflow.scheduler.cluster.cluster_service import ClusterService
        from oneflow.scheduler.cluster.daemons_service import DaemonsService
        from oneflow.scheduler.cluster.jobs_service import JobsService

        state = self._state
        added: Any = cluster_pb2_grpc
        options = [*channel_options(), ("grpc.max_concurrent_streams", MAX_STREAMS)]
        self._server = server = aio.server(options=options, interceptors=[self.guard])
        added.add_JobsServicer_to_server(JobsService(state, self.guard), server)
        added.add_ClusterServicer_to_server(ClusterService(state, self._shut_down), server)
        added.add_DaemonsServicer_to_server(DaemonsService(state), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        server.add_generic_rpc_handlers((self.guard.door.handler(),))
        await self.say(False)
        credentials = self._tls.credentials() if self._tls is not None else None
        address = bind(server, state.settings, credentials)
        await server.start()
        return address

    async def say(self, is_serving: bool) -> None:
        """Set the answer of the health service."""
        from grpc_health.v1 import health_pb2

        status = health_pb2.HealthCheckResponse
        for name in SERVICES:
            await self._health.set(name, status.SERVING if is_serving else status.NOT_SERVING)

    def look_at_certificate(self) -> None:
        expiry = self._tls.expiry() if self._tls is not None else None
        if expiry is not None:
            self._state.metrics.certificates["scheduler"] = expiry

    async def stop(self, patience_s: float) -> None:
        """Lets calls under way end for so long; streams are told at once."""
        await self.say(False)
        if self._server is None:
            return
        for line in self._state.lines.all():
            line.close("the scheduler stops")
        self.guard.end_streams(UnavailableError("the scheduler stops"))
        await self._server.stop(patience_s)
