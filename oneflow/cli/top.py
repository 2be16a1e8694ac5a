"""`oneflow top`: what a cluster does, again and again."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import click

from oneflow.cli.types import DURATION

MAX_JOBS = 30
MAX_WATCHED = 8  # running jobs whose actors are shown
CLEAR = "\x1b[H\x1b[2J"


@click.command()
@click.option("--address", metavar="HOST:PORT", help="The scheduler; else as configured.")
@click.option("--every", type=DURATION, default=2.0, help="Between looks.")
@click.option("--once", is_flag=True, help="One look, then end.")
def top(address: str | None, every: float, once: bool) -> None:
    """Daemons and jobs, the newest first; on a terminal it is renewed until Ctrl-C."""
    from oneflow.cluster.client import connect

    with connect(address) as cluster:
        if once or not sys.stdout.isatty():
            click.echo(page(cluster))
            return
        try:
            _renew(cluster, max(every, 0.5))
        except KeyboardInterrupt:
            return


def page(cluster: Any) -> str:
    """One look, as text."""
    from oneflow.cli.records import daemon_table, job_table, status_lines, waits_table
    from oneflow.scheduler.jobs.records import JobState

    status = cluster.status()
    jobs = list(itertools.islice(cluster.jobs(limit=MAX_JOBS), MAX_JOBS))
    parts = [status_lines(status), daemon_table(status.daemons, False), job_table(jobs, False)]
    running = [job for job in jobs if job.state is JobState.RUNNING]
    waits = [(r.id, w) for r in running[:MAX_WATCHED] for w in cluster.job(r.id).waits()]
    return "\n\n".join([*parts, waits_table(waits)] if waits else parts)


def _renew(cluster: Any, every_s: float) -> None:
    """With rich if it is installed: it redraws without flicker."""
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        while True:
            sys.stdout.write(CLEAR + page(cluster) + "\n")
            sys.stdout.flush()
            time.sleep(every_s)

    def shown() -> Text:
        return Text(page(cluster), no_wrap=True, overflow="ellipsis")

    with Live(shown(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(shown(), refresh=True)
