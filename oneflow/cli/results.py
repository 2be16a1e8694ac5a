"""The results of jobs: their curves, outputs and variables."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from oneflow.cli.output import say, show_json, table
from oneflow.cli.progress import shown_values
from oneflow.cluster.client import Cluster, UsageRow
from oneflow.cluster.job import Job, MetricPoint
from oneflow.core.json_values import Json
from oneflow.launcher.logs import escape
from oneflow.scheduler.jobs.records import JobKind
from oneflow.services.quantities import show_time


def show_metrics(job: Job, follow: bool, how: str) -> None:
    """A line for each point, as they come: of JSON, or of `step=1 loss=0.5`."""
    left_out, following, attempt, has_any = 0, 0, 1, False
    for point in job.metrics(follow):
        if point.attempt == attempt:  # else some of the earlier attempt were done again
            left_out += point.index - following
        following, attempt, has_any = point.index + 1, point.attempt, True
        click.echo(json.dumps(asdict(point)) if how == "json" else _line(point, how == "wide"))
    if not has_any:
        say(f"job {job.id} has reported no points{_why_none(job)}")
    if left_out:
        say(
            f"points of this curve are left out: {left_out}; the output metrics.jsonl has all of it"
        )


def _why_none(job: Job) -> str:
    if job.status().spec.kind is not JobKind.SCRIPT:
        return " yet"
    return (
        ": it is a script, and has not called flow.report(step, loss=...); "
        f"`oneflow job logs {job.id}` shows what it prints, `oneflow job list` its step"
    )


def _line(point: MetricPoint, is_wide: bool) -> str:
    words = [f"step={point.step}", *shown_values(point.values)]
    if is_wide:
        words += [f"attempt={point.attempt}", f"at={show_time(point.at)}"]
    return escape(" ".join(words))


def run_beside(job: Job, words: Sequence[str], rank: int, timeout_s: float) -> int:
    """Show the output of a command beside a rank. Returns its exit code."""
    outs = {"stdout": sys.stdout, "stderr": sys.stderr}

    def show(stream: str, data: bytes) -> None:
        out = outs["stderr" if stream == "stderr" else "stdout"]
        if out.isatty():  # what others wrote must not rule the terminal
            lines = data.decode(errors="replace").replace("\r", "").split("\n")
            data = "\n".join(map(escape, lines)).encode()
        out.buffer.write(data)
        out.buffer.flush()

    ended = job.execute(words, rank, timeout_s, show)
    if ended.note:
        say(f"the command beside rank {rank} of job {job.id}: {ended.note}")
    return ended.exit_code


def show_array(cluster: Cluster, array_id: str, how: str) -> None:
    """Show the members of an array by their indices, and how many are in each state."""
    from oneflow.cli.records import array_details, record_as_dict

    records = sorted(cluster.jobs(array=array_id), key=lambda record: record.spec.array_index)
    if how == "json":
        show_json({"array": array_id, "jobs": [record_as_dict(record) for record in records]})
    else:
        click.echo(array_details(array_id, records, how == "wide"))


def show_usage(rows: Sequence[UsageRow], by: Sequence[str], how: str) -> None:
    """A row for each, or an object with the list of them."""
    if how == "json":
        found: list[Json] = [
            dict(zip(by, row.keys, strict=True))
            | {"device_type": row.device_type, "jobs": row.jobs, "attempts": row.attempts}
            | {"device_s": round(row.device_s, 3)}
            for row in rows
        ]
        show_json({"usage": found})
        return
    titles = [*by, "device", "jobs", "attempts", "device hours", "device seconds"]
    numbers = ((r, f"{r.device_s / 3600:.2f}", f"{r.device_s:.1f}") for r in rows)
    cells = [[*r.keys, r.device_type, r.jobs, r.attempts, *times] for r, *times in numbers]
    click.echo(table(titles, cells))


def show_outputs(job: Job, names: tuple[str, ...], folder: Path | None, how: str) -> None:
    """Their names, or, with a folder, the paths to which they were written."""
    if folder is None:
        found = job.chosen_outputs(names)
    else:
        found = [str(path) for path in job.save_outputs(folder, names)]
    if how == "json":
        show_json({"outputs": found})
        return
    for name in found:
        click.echo(escape(name))
    if not found:
        say(f"job {job.id} has left no outputs")
