"""`python -m oneflow.distributed.launch`: runs the ranks of a job on this node.

Quiet on success. A failure ends with one line on stderr that names the first failed rank and its
cause, and with that rank's exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from oneflow.core.control_channel import is_loopback, resolve
from oneflow.core.errors import ConfigError, OneFlowError
from oneflow.core.processors import share_of_processors
from oneflow.core.variables import unread
from oneflow.launcher.elastic.agent import run_elastic
from oneflow.launcher.elastic.membership import HOPELESS_CODES
from oneflow.launcher.flags import Settings, parse
from oneflow.launcher.processes import become_subreaper
from oneflow.launcher.report import config_line
from oneflow.launcher.supervisor import Supervisor, say
from oneflow.launcher.torchrun import with_node_rank
from oneflow.scheduler.ports import check_port_is_free, free_port

JOB = "local"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a whole job as the command line says; returns the process's exit code."""
    _open_streams()
    job = JOB
    try:
        settings = parse(sys.argv[1:] if argv is None else argv, os.environ)
        job = settings.rdzv_id or JOB
        for note in settings.notes:
            print(f"oneflow: {note}", file=sys.stderr)
        if not settings.is_elastic:
            settings = with_node_rank(settings)
        if settings.print_config:
            print("\n".join([settings.describe(), *unread(os.environ)]))
            return 0
        return run(settings)
    except OneFlowError as error:
        print(config_line(job, error.exit_code, error.reason, str(error)), file=sys.stderr)
        return error.exit_code


def run(settings: Settings) -> int:
    """Runs attempts until one succeeds, cannot be helped, or restarts are used up."""
    _check_script(settings)
    _say_threads(settings)
    become_subreaper()
    if settings.is_elastic:
        return run_elastic(settings, os.environ, JOB)
    attempt = 1
    while True:
        outcome = Supervisor(settings, os.environ, attempt, _port(settings)).run()
        verdict = outcome.verdict
        if verdict.exit_code == 0:
            return 0
        is_last = attempt > settings.max_restarts
        if is_last or verdict.signum is not None or verdict.exit_code in HOPELESS_CODES:
            say(outcome, settings.rdzv_id or JOB, attempt)
            return verdict.exit_code
        say(outcome, settings.rdzv_id or JOB, attempt, "RESTARTING")
        attempt += 1


def _port(settings: Settings) -> int:
    """The port of rank 0 for one attempt; if rank 0 runs here, it must be free now."""
    if settings.master_port == 0:
        return free_port()
    address = _own_address(settings.master_addr) if settings.node_rank == 0 else None
    if address is not None:
        check_port_is_free(address, settings.master_port)
    return settings.master_port


def _own_address(host: str) -> str | None:
    """The loopback address that `host` means, None for one that rank 0 itself must judge."""
    address = resolve(host, "--master_addr")
    return address if is_loopback(address) else None


def _open_streams() -> None:
    """Lead streams that are closed nowhere: files opened next would take their numbers, and the
    process that ranks are forked from would have none to give them.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def _check_script(settings: Settings) -> None:
    """A missing script is one line now instead of one traceback per rank later."""
    if settings.module or settings.no_python:
        return
    if not Path(settings.script).exists():
        raise ConfigError(f"script {settings.script!r} does not exist")


def _say_threads(settings: Settings) -> None:
    if settings.nproc_per_node > 1 and not os.environ.get("OMP_NUM_THREADS"):
        processes = settings.nproc_per_node
        print(
            f"oneflow: OMP_NUM_THREADS={share_of_processors(processes)} for each of {processes} "
            "processes, so that they do not crowd each other out; set it to choose",
            file=sys.stderr,
        )
