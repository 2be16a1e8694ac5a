"""`oneflow top`: the work of a cluster, again and again."""

from __future__ import annotations

import itertools
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from oneflow.cli.asking import on_cluster
from oneflow.cli.output import output_option, show_json
from oneflow.cli.types import DURATION

if TYPE_CHECKING:
    from oneflow.cluster.client import Cluster
    from oneflow.cluster.job import RankWaits
    from oneflow.protos import cluster_pb2 as pb
    from oneflow.scheduler.jobs.records import JobRecord

MAX_JOBS = 30
MAX_WATCHED = 8  # running jobs whose actors are shown
CLEAR = "\x1b[H\x1b[2J"


@click.command()
@on_cluster
@click.option("--every", type=DURATION, default=2.0, help="Between looks.")
@click.option("--once", is_flag=True, help="One look, then end; so does -o json.")
@output_option
def top(cluster: Cluster, every: float, once: bool, how: str) -> None:
    """Daemons and jobs, the newest first; on a terminal it is renewed until Ctrl-C."""
    if how == "json":
        show_json(page_as_dict(cluster))
    elif once or not sys.stdout.isatty():
        click.echo(page(cluster, how == "wide"))
    else:
        try:
            _renew(cluster, max(every, 0.5), how == "wide")
        except KeyboardInterrupt:
            return


def _look(
    cluster: Cluster,
) -> tuple[pb.ClusterStatus, list[JobRecord], list[tuple[str, RankWaits]]]:
    """The status, the newest jobs, and of those that run (id, the waits of a rank)."""
    from oneflow.scheduler.jobs.records import JobState

    status = cluster.status()
    jobs = list(itertools.islice(cluster.jobs(limit=MAX_JOBS), MAX_JOBS))
    running = [job for job in jobs if job.state is JobState.RUNNING]
    waits = [(r.id, w) for r in running[:MAX_WATCHED] for w in cluster.job(r.id).waits()]
    return status, jobs, waits


def page(cluster: Cluster, is_wide: bool = False) -> str:
    """One look, as text."""
    from oneflow.cli.records import daemon_table, job_table, status_lines, waits_table

    status, jobs, waits = _look(cluster)
    daemons = daemon_table(status.daemons, is_wide)
    parts = [status_lines(status), daemons, job_table(jobs, is_wide)]
    return "\n\n".join([*parts, waits_table(waits)] if waits else parts)


def page_as_dict(cluster: Cluster) -> dict[str, Any]:
    """One look, for programs: `cluster` as of `cluster status`, `jobs` as of `job list`."""
    from oneflow.cli.records import record_as_dict, status_as_dict

    status, jobs, waits = _look(cluster)
    shown = [
        {"job": job_id, "rank": w.rank, "waiting": w.waiting, "shares": dict(w.shares)}
        for job_id, w in waits
    ]
    records = [record_as_dict(job) for job in jobs]
    return {"cluster": status_as_dict(status), "jobs": records, "waits": shown}


def _renew(cluster: Cluster, every_s: float, is_wide: bool) -> None:
    """Draw with rich if it is installed: it redraws without flicker."""
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        while True:
            sys.stdout.write(CLEAR + page(cluster, is_wide) + "\n")
            sys.stdout.flush()
            time.sleep(every_s)

    def shown() -> Text:
        return Text(page(cluster, is_wide), no_wrap=True, overflow="ellipsis")

    with Live(shown(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(shown(), refresh=True)
