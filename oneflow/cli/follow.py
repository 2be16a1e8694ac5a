"""A job's output on the console, and how following it ends: one line, and its exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from string import Template

from oneflow.cli.output import say
from oneflow.cli.pending import WhyPending
from oneflow.cli.progress import Progress
from oneflow.cluster.job import Job
from oneflow.cluster.logs import LogBlock
from oneflow.core.errors import ConfigError
from oneflow.launcher.logs import escape
from oneflow.scheduler.jobs.causes import cause_line, exit_code
from oneflow.scheduler.jobs.records import JobKind, JobRecord

PREFIX = "${hostname}:${rank}: "


class Console:
    """Lines of ranks: on standard output or error as the rank wrote them, escaped on terminals."""

    def __init__(self, prefix: str = PREFIX, job_id: str = "") -> None:
        """prefix: a template of ${hostname}, ${rank}, ${attempt}, ${stream} and ${job}.

        Raises ConfigError for another name in it.
        """
        self._prefix, self._job_id = Template(prefix), job_id
        self._prefix_of(LogBlock(1, 0, "stdout", "", b""))
        self._outs = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
        self._is_terminal = {"stdout": sys.stdout.isatty(), "stderr": sys.stderr.isatty()}

    def show(self, block: LogBlock) -> None:
        """Raises BrokenPipeError if nobody reads any more."""
        name = "stderr" if block.stream == "stderr" else "stdout"
        prefix, data = self._prefix_of(block), block.data
        if self._is_terminal[name]:
            data = b"\n".join(escape(line.text.rstrip("\r")).encode() for line in block.lines())
        if prefix:  # each line gets it in one go: there may be millions
            data = data.replace(b"\n", b"\n" + prefix)
        self._outs[name].write(prefix + data + b"\n")
        self._outs[name].flush()

    def _prefix_of(self, line: LogBlock) -> bytes:
        facts = {"hostname": escape(line.host), "rank": line.rank, "attempt": line.attempt}
        facts |= {"stream": line.stream, "job": self._job_id}
        try:
            return self._prefix.substitute(facts).encode()
        except (KeyError, ValueError):
            names = ", ".join(f"${{{name}}}" for name in facts)
            raise ConfigError(f"--prefix {self._prefix.template!r}: there are {names}") from None


@contextmanager
def goes_on(job_id: str) -> Iterator[None]:
    """Ctrl-C ends the waiting, not the job, and says so."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"job {job_id} goes on: `oneflow job logs -f {job_id}`, `oneflow job cancel {job_id}`")
        raise SystemExit(130) from None


def follow_to_end(job: Job) -> int:
    """Show why it waits, and its output, until it has ended. Returns its exit code."""
    with WhyPending(job, looks=True) as why:
        record = _wait_begun(job, why)
        if record.attempt and record.spec.kind is JobKind.GRAPH:
            return _follow_graph(job)
        if record.attempt:
            console = Console()
            for block in job.log_blocks(follow=True):
                console.show(block)
        return end_of(job.wait())


LogChoice = tuple[tuple[int, ...], int, str, float, int | None]


def show_logs(job: Job, prefix: str, follow: bool, choice: LogChoice) -> int:
    """Print the output of a job's ranks; with `follow` until it ends. Returns its exit code then.

    choice: ranks, attempt, stream, since and tail of `Job.log_blocks`.
    """
    with ExitStack() as stack:
        record, console = job.status(), Console(prefix, job.id)
        if not record.attempt and not follow:
            say(f"job {job.id} is {record.state}, and wrote nothing yet: {record.pending}")
        if follow:
            stack.enter_context(goes_on(job.id))
            stack.enter_context(WhyPending(job, looks=True)).take(record)
        for block in job.log_blocks(follow, *choice):
            console.show(block)
        return end_of(job.wait()) if follow else 0


def _follow_graph(job: Job) -> int:
    """It writes little; how far it is shows that it goes on."""
    console = Console()
    with Progress(job) as progress:
        for block in job.log_blocks(follow=True):
            with progress.aside():
                console.show(block)
        record = job.wait()
        progress.show(record)
    return end_of(record)


def _wait_begun(job: Job, why: WhyPending) -> JobRecord:
    """Until it runs; says why it does not."""
    for record in job.watch():
        if record.state.is_final or record.attempt > 0:
            why.take(record)
            return record
        why.tell(record)
    return job.status()


def end_of(record: JobRecord) -> int:
    """Writes the last line on standard error. Returns the job's exit code."""
    sys.stdout.flush()
    sys.stderr.write(cause_line(record) + "\n")
    sys.stderr.flush()
    return exit_code(record)
