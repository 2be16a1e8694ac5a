"""`oneflow trace ...`: the acts and kernels of a job, with their times."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oneflow.cli.asking import on_job
from oneflow.cli.debug import RANK
from oneflow.cli.group import choose_group
from oneflow.cli.output import output_option, say, show_json, table
from oneflow.cli.types import DURATION, SIZE
from oneflow.services.kernel_sums import GROUPS

if TYPE_CHECKING:
    from oneflow.cluster.job import Job
    from oneflow.cluster.tracing import RankTrace

STOP_S = 60.0
MIN_SIZE = 1 << 16
FAILED = 75  # some rank wrote nothing; the job goes on
TITLES = ("rank", "host", "state", "steps", "acts", "dropped", "bytes", "file")


def _one_end(context: click.Context, option: click.Parameter, value: object) -> object:
    """Refuses a second of --steps and --seconds, before anybody is asked."""
    if value and any(context.params.get(name) for name in ("steps", "seconds")):
        raise click.UsageError("name --steps or --seconds, not both")
    return value


@choose_group("Acts and kernels of a job of a graph: Chrome traces, and tables of them.")
def trace() -> None:
    pass


@trace.command("start")
@on_job
@RANK
@click.option("--steps", type=click.IntRange(min=1), callback=_one_end, help="Ends after so many.")
@click.option("--seconds", type=DURATION, callback=_one_end, help="Ends after this time.")
@output_option
def start(
    job: Job,
    ranks: tuple[int, ...],
    steps: int | None,
    seconds: float | None,
    how: str,
) -> None:
    """The ranks of a graph or inference job that runs record every act and kernel, from the same
    step on: until --steps or --seconds are over, until `trace stop`, or until a rank's file has 200
    MB. Replicas of an inference job each begin with their next step.

    The files are outputs of the job, on the nodes of its ranks; `trace stop --to` fetches them.
    """
    _show(job.start_trace(steps or 0, seconds or 0.0, ranks), how)
    if how != "json":
        flag = " --when-done" if steps or seconds else ""
        say(f"then: oneflow trace stop {job.id}{flag} --to FOLDER")


@trace.command("stop")
@on_job
@RANK
@click.option(
    "--to", "folder", type=click.Path(file_okay=False, path_type=Path), help="Fetched into it."
)
@click.option("--when-done", is_flag=True, help="Not before its steps or seconds are over.")
@click.option("--timeout", type=DURATION, default=STOP_S, help="Gives up with 75 after this time.")
@output_option
def stop(
    job: Job,
    ranks: tuple[int, ...],
    folder: Path | None,
    when_done: bool,
    timeout: float,
    how: str,
) -> None:
    """Ends a trace of all ranks, if it has not ended, and waits until the files are written.

    --to: fetches them, of --rank or of all; also when the trace, or the job, has ended by itself.
    The exit code is 75 if a rank could not write its file.
    """
    is_over = folder is not None and job.status().state.is_final
    if is_over:
        states = []
    else:
        states = job.wait_trace(timeout) if when_done else job.stop_trace(timeout)
    paths = [] if folder is None else job.save_traces(folder, ranks)
    all_ranks = [] if folder is None else [a.rank for a in job.status().assignments]
    if how == "json":
        show_json({"ranks": [asdict(s) for s in states], "files": [str(p) for p in paths]})
    elif folder is None:
        _show(states, how)
    else:
        for path in paths:
            click.echo(path)
    names = {path.name for path in paths}
    wanted = [rank for rank in all_ranks if not ranks or rank in ranks]
    missing = [str(rank) for rank in wanted if f"trace-rank{rank}.json.gz" not in names]
    if missing:
        say(f"there is no file of rank {', '.join(missing)}: not traced, or killed meanwhile")
    _say_what_does_not_fit(paths)
    for state in states:
        if state.error or state.state == "failed":
            say(f"rank {state.rank} on {state.host}: {state.error}")
    raise SystemExit(FAILED if any(s.error for s in states) else 0)


def _say_what_does_not_fit(paths: list[Path]) -> None:
    from oneflow.services.traces import TraceFileError, of_earlier_traces

    try:
        for path in of_earlier_traces(paths) if paths else ():
            say(f"{path} is of an earlier trace: `trace merge` does not take it with the others")
    except TraceFileError as error:
        say(str(error))


def _show(states: list[RankTrace], how: str) -> None:
    if how == "json":
        show_json({"ranks": [asdict(state) for state in states]})
        return
    rows: list[list[Any]] = [
        [s.rank, s.host, s.state, s.steps, s.acts, s.dropped, s.nbytes, s.file] for s in states
    ]
    click.echo(table(TITLES, rows))


@trace.command("merge")
@click.option(
    "-o", "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Written."
)
@click.option("--max-size", type=SIZE, default=None, help="Of its JSON; else 200 MB.")
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
def merge_files(out: Path, max_size: int | None, files: tuple[Path, ...]) -> None:
    """One file of the files of several ranks, in order of time, on the clock of the first rank;
    with gzip if its name ends in .gz.

    It has at most so many bytes as viewers open; later events are left out, and a last
    event says so. A file that is broken or of another trace is refused with 65.
    """
    from oneflow.services.traces import MAX_NBYTES, merge

    if max_size is not None and max_size < MIN_SIZE:
        raise click.BadParameter(f"a file has at least {MIN_SIZE} bytes", param_hint="--max-size")
    found = merge(files, out, max_size or MAX_NBYTES)
    for rank, how in found.clocks.items():
        if how != "the same clock":
            say(f"rank {rank} has another clock, compared {how}")
    if found.is_truncated:
        say(f"{out} does not hold all: {found.events} events are what fits; trace fewer steps")
    click.echo(out)


@trace.command("kernels")
@click.option("--by", type=click.Choice(GROUPS), default="op", help="One row for each (op).")
@click.option("--most", type=click.IntRange(min=1), default=None, help="Rows; else all.")
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@output_option
def kernels(by: str, most: int | None, files: tuple[Path, ...], how: str) -> None:
    """Calls, time, bytes and arithmetic of the kernels in the files of one or more ranks, by op, by
    module, by source line or by kernel; the time of all ranks together, per step.

    A fused kernel shares its time among its ops by the bytes that each would move alone. A file
    that is broken is refused with 65.
    """
    from oneflow.services.kernel_sums import read_kernels

    sums, steps = read_kernels(files)
    if how == "json":
        rows = [asdict(row) for row in sums.of(by)[:most]]
        show_json({"by": by, "steps": steps, "seconds": sums.seconds, "rows": rows})
    else:
        click.echo(sums.table(by, steps, most=most))
