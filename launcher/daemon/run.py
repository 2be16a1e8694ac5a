"""`oneflow daemon run`: one daemon in the foreground, until a signal or the scheduler ends it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from oneflow.core.config import Config, join_address, split_address
from oneflow.core.control_channel import resolve, socket_path
from oneflow.core.core_dumps import forbid_core_dumps
from oneflow.core.errors import ConfigError, OneFlowError
from oneflow.core.folders import make_state_dir
from oneflow.core.host_memory import host_capacity
from oneflow.core.log import get_logger, set_up
from oneflow.core.metrics import METRICS
from oneflow.launcher.daemon.health import Health
from oneflow.launcher.daemon.nvml import Gpu, show
from oneflow.launcher.daemon.orphans import sweep
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.launcher.daemon.workers import OOM_SCORE
from oneflow.launcher.processes import become_subreaper
from oneflow.scheduler.cluster.tls import expiry_of
from oneflow.services import failpoints
from oneflow.services.metrics_daemon import DAEMON
from oneflow.services.metrics_http import MetricsEndpoint
from oneflow.services.notify import notify

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
OOM_SCORE_ADJ = "-500"  # rather a rank than the daemon that would say why

log = get_logger(__name__)


def run_daemon(settings: DaemonSettings) -> int:
    """Runs the daemon in this process, on its main thread; returns the exit code.

    0: it left in order.  143: a second signal made it leave at once.
    Raises ConfigError or AuthError if the settings cannot work or the scheduler refuses them.
    """
    settings.check()
    failpoints.arm(settings.env)
    set_up(Config.from_env(), daemon=settings.id)
    make_state_dir(settings.state_dir, "jobs", "cache")
    become_subreaper()
    forbid_core_dumps()
    _protect()
    if any(found := sweep()):
        log.warning("swept %d processes, %d control groups, %d folders of dead daemons", *found)
    return asyncio.run(_run(settings))


async def _run(settings: DaemonSettings) -> int:
    from oneflow.launcher.daemon.host import Host

    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as at_end:
        gpu = _describe(settings)
        if gpu is not None:
            at_end.callback(gpu.stop)
        host = Host(settings, settings.address or own_address(settings.scheduler))
        host.on_ready = partial(notify, settings.notify_socket, "READY=1\nSTATUS=attached")
        METRICS.is_ready = lambda: host.attachment.is_welcome and not host.mind.refuses_work
        endpoint = _serve_metrics(settings)
        if endpoint is not None:
            at_end.push_async_callback(asyncio.to_thread, endpoint.stop)

        def stop() -> None:
            notify(settings.notify_socket, "STOPPING=1")
            host.shut_down()

        for signum in STOP_SIGNALS:
            loop.add_signal_handler(signum, stop)
        if settings.health_addr:
            health = Health(settings.health_addr)
            at_end.push_async_callback(health.stop)
            await health.start()
            at_end.callback(asyncio.ensure_future(health.follow(METRICS.is_ready)).cancel)
        at_end.callback(asyncio.ensure_future(_tell_systemd(settings)).cancel)
        return await host.run()


def _describe(settings: DaemonSettings) -> Gpu | None:
    """Describe the device and this daemon for the page of metrics."""
    DAEMON.node, DAEMON.device = settings.node_name, settings.device
    DAEMON.device_type = settings.device_type
    if settings.certificate is not None:
        path = settings.certificate
        DAEMON.certificate = lambda: expiry_of(path)
    if settings.device_type == "cuda":
        return show(METRICS, settings.device_index)
    METRICS.capacity = lambda: host_capacity(settings.limits.memory_nbytes)
    return None


async def _tell_systemd(settings: DaemonSettings) -> None:
    """Notify systemd from the loop, so that a loop that is stuck tells nothing."""
    every_s = settings.notify_every_s
    while every_s:
        notify(settings.notify_socket, "WATCHDOG=1")
        await asyncio.sleep(every_s)


def _serve_metrics(settings: DaemonSettings) -> MetricsEndpoint | None:
    if not settings.metrics_addr:
        return None
    host, port = split_address(settings.metrics_addr)
    runtime_dir = Config.from_env(settings.env).runtime_dir
    endpoint = MetricsEndpoint(host, port, runtime_dir, METRICS, component="daemon")
    print(
        f"oneflow: daemon {settings.id}: metrics on http://{endpoint.address}/metrics", flush=True
    )
    return endpoint


def own_address(scheduler: str) -> str:
    """Ours, as seen on the way to the scheduler: other nodes reach us there most likely."""
    if socket_path(scheduler) is not None:
        return "127.0.0.1"
    host, port = split_address(scheduler)
    address = resolve(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port or 1))
        except OSError as error:
            where = join_address(host, port)
            raise ConfigError(f"--scheduler {where}: no way there: {error.strerror}") from None
        return str(probe.getsockname()[0])


def _protect() -> None:
    """The kernel shall take a rank first when memory runs out; needs rights that many lack."""
    try:
        Path(OOM_SCORE).write_text(OOM_SCORE_ADJ)
    except OSError:
        return


def main(settings: DaemonSettings) -> int:
    """Run the daemon for the command line: an error of ours is one line and its exit code."""
    try:
        return run_daemon(settings)
    except OneFlowError as error:
        print(f"oneflow: daemon {settings.device}: {error}", file=sys.stderr)
        return error.exit_code
