"""`oneflow job ...`: jobs of a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oneflow.cli.asking import ADDRESS, ID, jobs_called, on_cluster, on_job, on_jobs
from oneflow.cli.group import choose_group
from oneflow.cli.output import output_option, show_json
from oneflow.cli.types import DURATION, MOMENT, PAIR, RANKS

if TYPE_CHECKING:
    from oneflow.cluster.client import Cluster
    from oneflow.cluster.job import Job

NUM_AFTER = "oneflow.num_after"
IDS = click.argument("job_ids", metavar="ID...", nargs=-1, required=True)


@choose_group("Jobs of a cluster.")
def job() -> None:
    pass


class _Submit(click.Command):
    """Knows whether there was a --: the words behind it are a program, not a job file."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        after = args[args.index("--") + 1 :] if "--" in args else None
        context.meta[NUM_AFTER] = None if after is None else len(after)
        return super().parse_args(context, args)


@job.command("submit", cls=_Submit)
@ADDRESS
@click.option("--file", "job_toml", type=click.Path(path_type=Path), help="A job.toml.")
@click.option("--job-id", help="A job of this id is submitted once, however often this is run.")
@click.option("--name", help="For people.")
@click.option(
    "--devices",
    metavar="N|MIN:MAX",
    help="Ranks; each has a device of its own. MIN:MAX: as many as there are, at each moment.",
)
@click.option(
    "--device-type",
    type=click.Choice(["cpu", "cuda"]),
    help="Else cpu, or cuda where there is nothing else.",
)
@click.option("--nodes", type=int, help="On exactly so many nodes.")
@click.option("--node", "only_nodes", multiple=True, help="On this node only; repeatable.")
@click.option("--exclude", "exclude_nodes", multiple=True, help="Not on this node; repeatable.")
@click.option(
    "--require",
    "require_labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="On nodes with this label only; repeatable.",
)
@click.option("--queue", help="Of the operator's [scheduler.queues]; else `default`.")
@click.option("--priority", type=int, help="Higher first.")
@click.option(
    "--preemptible",
    is_flag=True,
    default=None,
    help="It may be stopped for jobs of higher priority, and goes on later.",
)
@click.option("--env", type=PAIR, multiple=True, help="A variable of the ranks; repeatable.")
@click.option(
    "--working-dir",
    help="A folder to send along; '': none. Else the current one, if the program is in it.",
)
@click.option(
    "--requirements",
    metavar="FILE",
    help="Packages as for `pip install -r`, in an environment that a node makes once a list.",
)
@click.option("--steps", type=int, help="Of a graph job; else as its file says.")
@click.option("--max-restarts", type=int, help="After failures that are the program's own.")
@click.option("--restart-on", multiple=True, help="Only after this reason or exit code.")
@click.option("--time-limit", type=DURATION, help="2h, 90m, ...")
@click.option("--checkpoint-every", type=int, help="Steps; of a graph job.")
@click.option("--checkpoint-keep", type=int, help="So many of the newest.")
@click.option("--checkpoint-dir", help="On the daemons' hosts.")
@click.option("--resume-from", help="A checkpoint to begin with.")
@click.option(
    "--after",
    metavar="ID[:ok|any]",
    multiple=True,
    help="Once that job has succeeded, else it is cancelled; any: has ended. Repeatable.",
)
@click.option("--cpus", type=float, help="Processors of each rank at most; of a program.")
@click.option("--memory", metavar="SIZE", help="Memory of each rank at most: 4GiB; of a program.")
@click.option("--hold", is_flag=True, default=None, help="It waits until `job release`.")
@click.option(
    "--array",
    metavar="0-9[%N]",
    help="Once for each number, which stands for {index} in words and --env; %N: N at once.",
)
@click.option(
    "--array-file",
    type=click.Path(),
    help="A .csv or .jsonl file: of the row of that number, {name} is filled in.",
)
@click.option(
    "--auto-parallel",
    is_flag=True,
    default=None,
    help="Of a graph job: search for layouts and stages with the least time of a step.",
)
@click.option("--zero", type=int, help="Stage of ZeRO, 1 to 3; of a graph job.")
@click.option(
    "--amp",
    type=click.Choice(["float16", "bfloat16"]),
    help="Mixed precision, of a job file; else as it says.",
)
@click.option("--wait", is_flag=True, help="Show its output; end with its exit code.")
@click.argument("what", nargs=-1, type=click.UNPROCESSED, metavar="JOBFILE | -- PROGRAM ARGS...")
@click.pass_context
def submit(context: click.Context, /, what: tuple[str, ...], wait: bool, **flags: object) -> None:
    """Submits a job file (a graph with its data), or, after --, a program.

    Prints the job's id, and nothing else, on standard output. No shell sees the program's words.
    """
    from oneflow.cli.submit import run_submit

    raise SystemExit(run_submit(what, context.meta[NUM_AFTER], wait, flags))


@job.command("list")
@on_cluster
@output_option
@click.option("-f", "--filter", "filters", type=PAIR, multiple=True, help="state=RUNNING, ...")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--cursor", default="", help="Where the page before ended.")
@click.argument("array", metavar="[ARRAY]", required=False)
def list_jobs(
    cluster: Cluster,
    how: str,
    array: str | None,
    filters: tuple[tuple[str, str], ...],
    limit: int,
    cursor: str,
) -> None:
    """Jobs, the newest first; of an array, if its id is given.

    Filters are applied by the scheduler, before it counts: state, reason, name, owner, kind,
    device_type, array and queue; several values of one, with commas between, mean any of them.
    """
    from oneflow.cli.records import job_table, record_as_dict

    wanted = dict(filters) | ({"array": array} if array else {})
    records, following = cluster.page(wanted, limit, cursor)
    if how == "json":
        jobs = [record_as_dict(record) for record in records]
        show_json({"jobs": jobs, "cursor": following})
        return
    click.echo(job_table(records, how == "wide"))
    if following:
        click.echo(f"oneflow: more with --cursor {following}", err=True)


@job.command("get")
@on_cluster
@output_option
@ID
def get(cluster: Cluster, how: str, job_id: str) -> None:
    """All that is known of a job; of an array, how far it is and a line for each member."""
    from oneflow.cli.records import job_details, record_as_dict, waits_table
    from oneflow.cli.results import show_array

    found, *others = jobs_called(cluster, job_id)
    if others:
        show_array(cluster, job_id, how)
        return
    record, waits = found.status(), found.waits()
    if how == "json":
        shown = [{"rank": w.rank, "waiting": w.waiting, "shares": w.shares} for w in waits]
        show_json(record_as_dict(record) | {"waits": shown})
        return
    click.echo(job_details(record, how == "wide"))
    if waits:
        click.echo("\n" + waits_table((found.id, w) for w in waits))


@job.command("logs")
@on_jobs
@click.option("-f", "--follow", is_flag=True, help="Until the job ends; with its exit code.")
@click.option("--rank", "ranks", type=RANKS, default=(), help="0, or 0,3, or 0-3.")
@click.option("--attempt", type=click.IntRange(0), default=0, help="Else the last.")
@click.option("--since", type=MOMENT, default=0.0, help="10m ago, or 2026-11-21T06:11:19Z.")
@click.option("--tail", type=click.IntRange(0), help="So many lines of each rank and stream.")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), default=None)
@click.option("--no-prefix", is_flag=True, help="Without `host:rank: ` before each line.")
@click.option(
    "--prefix",
    default="${hostname}:${rank}: ",
    show_default=True,
    help="Before each line; also ${attempt}, ${stream}, ${job}.",
)
def logs(
    found: list[Job],
    follow: bool,
    ranks: tuple[int, ...],
    attempt: int,
    since: float,
    tail: int | None,
    stream: str | None,
    no_prefix: bool,
    prefix: str,
) -> None:
    """Show the output of a job's ranks; of an array, of one member after another."""
    from oneflow.cli.follow import show_logs

    template = "" if no_prefix else prefix
    if len(found) > 1 and template:
        template = "${job} " + template
    what = (ranks, attempt, stream or "", since, tail)
    raise SystemExit(max(show_logs(job, template, follow, what) for job in found))


@job.command("metrics")
@on_job
@click.option("-f", "--follow", is_flag=True, help="Until the job ends; with its exit code.")
@output_option
def metrics(found: Job, follow: bool, how: str) -> None:
    """Show the points that a job reports: a line for each; -o json: an object a line."""
    from oneflow.cli.follow import end_of, goes_on
    from oneflow.cli.pending import WhyPending
    from oneflow.cli.results import show_metrics

    with ExitStack() as stack:
        if follow:
            stack.enter_context(goes_on(found.id))
            stack.enter_context(WhyPending(found, looks=True))
        show_metrics(found, follow, how)
        code = end_of(found.wait()) if follow else 0
    raise SystemExit(code)


@job.command("outputs")
@on_job
@click.option(
    "--to", "folder", type=click.Path(file_okay=False, path_type=Path), help="Written there."
)
@output_option
@click.argument("names", metavar="[NAME]...", nargs=-1)
def outputs(found: Job, folder: Path | None, how: str, names: tuple[str, ...]) -> None:
    """List the outputs of a job, or, with --to, write all or the named ones.

    Of a graph job variables.safetensors has the final variables, NAME.safetensors the last value
    of a recorded output, metrics.jsonl a line for each step. A script leaves the files that it
    writes into the folder of its variable ONEFLOW_OUTPUTS, on the node of rank 0.
    """
    from oneflow.cli.results import show_outputs

    show_outputs(found, names, folder, how)


@job.command("exec")
@on_job
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True)
@click.option("--timeout", type=DURATION, default=600.0, help="It is ended after this time: 10m.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
def execute(found: Job, rank: int, timeout: float, words: tuple[str, ...]) -> None:
    """Runs a command beside a rank of a script job that runs, with its folder and environment.

    Shows its output, and ends with its exit code. No shell sees its words.
    """
    from oneflow.cli.results import run_beside

    raise SystemExit(run_beside(found, words, rank, timeout))


@job.command("usage")
@on_cluster
@output_option
@click.option(
    "--by",
    type=click.Choice(["user", "day", "name", "queue"]),
    multiple=True,
    default=("user",),
    show_default=True,
    help="A row for each; repeatable. Days are of UTC.",
)
@click.option("--since", type=MOMENT, default=0.0, help="30d, or 2026-11-01T00:00:00Z.")
def usage(cluster: Cluster, how: str, by: tuple[str, ...], since: float) -> None:
    """Show the use of jobs: seconds of devices, of your jobs or, to an admin, of all.

    Jobs that were removed count, too, and running ones count up to now.
    """
    from oneflow.cli.results import show_usage

    show_usage(cluster.usage(by, since), by, how)


@job.command("wait")
@on_jobs
@click.option("--timeout", type=DURATION, help="Gives up with exit code 75 after this time.")
@output_option
def wait(found: list[Job], timeout: float | None, how: str) -> None:
    """Returns when the job has ended, with its exit code. -o json: and shows its record.

    Of an array: when all have, with the largest exit code; a record a line.
    """
    from oneflow.cli.follow import end_of, goes_on
    from oneflow.cli.pending import WhyPending
    from oneflow.cli.records import record_as_dict

    code, deadline = 0, None if timeout is None else time.monotonic() + timeout
    for job in found:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        with goes_on(job.id), WhyPending(job) as why:
            record = job.wait(left, why.take)
        if how == "json":
            show_json(record_as_dict(record))
        code = max(code, end_of(record))
    raise SystemExit(code)


@job.command("cancel")
@on_cluster
@output_option
@IDS
def cancel(cluster: Cluster, how: str, job_ids: tuple[str, ...]) -> None:
    """End jobs, in any state; again changes nothing."""
    _each(cluster, how, job_ids, "cancel")


job.add_command(cancel, "stop")


@job.command("restart")
@on_cluster
@output_option
@IDS
def restart(cluster: Cluster, how: str, job_ids: tuple[str, ...]) -> None:
    """Queues jobs that ended again, from their last checkpoints."""
    _each(cluster, how, job_ids, "restart")


@job.command("hold")
@on_cluster
@output_option
@IDS
def hold(cluster: Cluster, how: str, job_ids: tuple[str, ...]) -> None:
    """Keeps jobs that wait from being started, until they are released."""
    _each(cluster, how, job_ids, "hold")


@job.command("release")
@on_cluster
@output_option
@IDS
def release(cluster: Cluster, how: str, job_ids: tuple[str, ...]) -> None:
    """Lets jobs that are held be started."""
    _each(cluster, how, job_ids, "release")


@job.command("priority")
@on_cluster
@output_option
@ID
@click.argument("priority", type=int)
def priority(cluster: Cluster, how: str, job_id: str, priority: int) -> None:
    """Gives a job that waits another priority: higher first. A negative one goes after --."""
    _each(cluster, how, (job_id,), "set_priority", priority)


@job.command("rm")
@on_cluster
@output_option
@IDS
def remove(cluster: Cluster, how: str, job_ids: tuple[str, ...]) -> None:
    """Forgets jobs that ended, with their logs and files."""
    _each(cluster, how, job_ids, "remove")


def _each(cluster: Cluster, how: str, job_ids: tuple[str, ...], verb: str, *given: object) -> None:
    """Do it to all of them, even if one fails; the first error decides the exit code.

    Of an array, verbs of jobs that wait mean the members that do.
    """
    from oneflow.cli.output import error_line, say
    from oneflow.core.errors import ClusterUnreachableError, OneFlowError

    code, shown, waits = 0, [], verb in ("hold", "release", "set_priority")

    def asked(words: str) -> Iterator[Job]:
        try:
            yield from jobs_called(cluster, words, "QUEUED,RESTARTING" if waits else "")
        except ClusterUnreachableError:
            raise
        except OneFlowError as error:
            refused(error)

    def refused(error: OneFlowError) -> None:
        nonlocal code
        if how == "json":
            click.echo(error_line(error), err=True)
        else:
            say(str(error))
        code = code or error.exit_code

    for found in (job for words in job_ids for job in asked(words)):
        try:
            has_succeeded = verb == "restart" and found.status().exit_code == 0
            record = getattr(found, verb)(*given)
            if has_succeeded:
                say(f"job {found.id} had succeeded: it runs once more")
            shown.append({"id": found.id, "state": str(record.state) if record else "removed"})
            if how != "json":
                click.echo(f"{found.id} {record.priority if given else shown[-1]['state']}")
        except ClusterUnreachableError:
            raise
        except OneFlowError as error:
            refused(error)
    if how == "json":
        show_json({"jobs": shown})
    raise SystemExit(code)
