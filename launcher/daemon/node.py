"""`oneflow daemon run --device cpu:0-7`: the daemons of several devices, with one line for all.

This process has neither threads nor gRPC, so that it may fork: a daemon for each device, as it is
alone too, and one process with the line that they share (shared_line.py). A daemon that a signal
has killed is begun anew; one that gives up, as the line, ends the others with it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from oneflow.core.config import Config, join_address, split_address
from oneflow.core.core_dumps import forbid_core_dumps
from oneflow.core.errors import ConfigError, OneFlowError
from oneflow.core.folders import make_state_dir
from oneflow.core.log import get_logger, set_up
from oneflow.launcher.daemon import run
from oneflow.launcher.daemon.orphans import make_temp_dir
from oneflow.launcher.daemon.settings import DaemonSettings
from oneflow.launcher.processes import die_with_parent
from oneflow.services.notify import notify

SIGNALS = (*run.STOP_SIGNALS, signal.SIGCHLD)
PAUSE_S = 1.0  # before a daemon that was killed is begun anew
LOOK_S = 1.0
OWN_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

log = get_logger(__name__)


def main(settings: DaemonSettings, devices: Sequence[str]) -> int:
    """Run the node for the command line: an error of ours is one line and its exit code."""
    try:
        return run_node(settings, devices)
    except OneFlowError as error:
        print(f"oneflow: node {settings.node_name}: {error}", file=sys.stderr)
        return error.exit_code


def run_node(settings: DaemonSettings, devices: Sequence[str]) -> int:
    """Run a daemon for each device, in this process's children; the exit code, as one daemon's.

    Raises ConfigError for settings that several daemons cannot share.
    """
    if settings.health_addr:
        raise ConfigError("--health-addr is of a daemon with one device")
    make_state_dir(settings.state_dir, "jobs", "cache")
    address = settings.address or run.own_address(settings.scheduler)
    folder = make_temp_dir()
    try:
        path = folder / "line"
        settings = replace(settings, address=address)
        node = Node(partial(_share_line, settings, path))
        for number, device in enumerate(devices):
            own = settings_of(settings, device, number, path)
            node.add(device, partial(run.main, own))
        notify(settings.notify_socket, "READY=1\nSTATUS=started")
        return node.run(partial(notify, settings.notify_socket, "WATCHDOG=1"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def settings_of(settings: DaemonSettings, device: str, number: int, path: Path) -> DaemonSettings:
    """The settings of one of the daemons, which attaches to the line of the node."""
    env = {k: v for k, v in settings.env.items() if k not in OWN_VARIABLES}
    env["ONEFLOW_JOB_TLS"] = settings.rank_base_env()["ONEFLOW_JOB_TLS"]
    metrics_addr = settings.metrics_addr
    if metrics_addr:
        host, port = split_address(metrics_addr)
        metrics_addr = join_address(host, port + number if port else 0)
    return replace(
        settings,
        device=device,
        scheduler=f"unix:{path}",
        credentials=None,
        metrics_addr=metrics_addr,
        env=env,
    )


def _share_line(settings: DaemonSettings, path: Path) -> int:
    from oneflow.launcher.daemon.shared_line import serve_guests

    set_up(Config.from_env(), daemon=settings.node_name)
    forbid_core_dumps()
    try:
        asyncio.run(serve_guests(settings, path))
    except OneFlowError as error:
        print(f"oneflow: node {settings.node_name}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


class Node:
    """The processes of a node. share_line: runs in one of them, for as long as the others do."""

    def __init__(self, share_line: Callable[[], int]) -> None:
        self._works: dict[str, Callable[[], int]] = {}
        self._running: dict[int, str] = {}
        self._due: dict[str, float] = {}  # daemons that are begun anew, and when
        self._exit_code = 0
        self._is_stopping = False
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._line = _fork(share_line)

    def add(self, device: str, work: Callable[[], int]) -> None:
        self._works[device] = work
        self._running[_fork(work)] = device

    def run(self, each: Callable[[], object]) -> int:
        """Until no daemon is left. each: called about every second."""
        try:
            while self._running or self._due:
                each()
                found = signal.sigtimedwait(SIGNALS, LOOK_S)
                if found is not None and found.si_signo != signal.SIGCHLD:
                    self._stop()
                self._reap()
                self._begin_anew()
            return self._exit_code
        finally:
            for pid in (*self._running, self._line):
                _send(pid, signal.SIGKILL)

    def _stop(self) -> None:
        """Ask the daemons to leave in order; asked twice, they leave at once."""
        self._is_stopping = True
        self._due.clear()
        for pid in self._running:
            _send(pid, signal.SIGTERM)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._ended(ended[0], os.waitstatus_to_exitcode(ended[1]))

    def _ended(self, pid: int, code: int) -> None:
        device = self._running.pop(pid, "")
        if device and code < 0 and not self._is_stopping:
            log.error("the daemon of %s was killed by signal %d: it is begun anew", device, -code)
            self._due[device] = time.monotonic() + PAUSE_S
        elif device or pid == self._line:
            self._exit_code = self._exit_code or (128 - code if code < 0 else code)
            if code and not self._is_stopping:
                self._stop()

    def _begin_anew(self) -> None:
        now = time.monotonic()
        for device in [device for device, at in self._due.items() if now >= at]:
            del self._due[device]
            self.add(device, self._works[device])


def _fork(work: Callable[[], int]) -> int:
    """Run the work in a process of its own, which dies with this one; its pid."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        die_with_parent(parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _send(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)
