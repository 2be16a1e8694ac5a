"""A node's part in an elastic job: runs its ranks, round after round, in the size of each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from oneflow.core.reasons import reason_of_code
from oneflow.launcher.elastic.host import JobFace
from oneflow.launcher.elastic.membership import Limits
from oneflow.launcher.elastic.seat import Over, Round, Seat, take_seat
from oneflow.launcher.flags import Settings
from oneflow.launcher.forks import Forks
from oneflow.launcher.report import config_line
from oneflow.launcher.supervisor import Outcome, Supervisor, say
from oneflow.launcher.values import Nodes

INTERRUPTED = 130
STOP_S = 15.0  # beyond the grace: for the ranks of a node to be gone after KILL


def run_elastic(settings: Settings, env: Mapping[str, str], unnamed: str) -> int:
    """Run this node's ranks until the job is over; returns the job's exit code.

    unnamed: the name of a job without --rdzv-id in reports.
    """
    job = settings.rdzv_id or unnamed
    face = JobFace(job, settings.nproc_per_node, env.get("ONEFLOW_JOB_TOKEN", ""))
    limits = Limits(
        least=settings.nnodes.least,
        most=settings.nnodes.most,
        last_call_s=settings.last_call_s,
        join_s=settings.rdzv_timeout,
        stop_s=settings.grace_period + STOP_S,
        max_restarts=settings.max_restarts,
    )
    has_number = settings.origin["node_rank"] != "default"
    is_host = settings.node_rank == 0 if has_number else None
    endpoint = settings.master_addr, settings.master_port
    seat = None
    try:
        seat = take_seat(endpoint, face, limits, is_host)
        return _run_rounds(seat, settings, env, job)
    except KeyboardInterrupt:  # between two rounds: while ranks run, the supervisor heeds it
        print(config_line(job, INTERRUPTED, "CANCELLED", "Ctrl-C"), file=sys.stderr)
        return INTERRUPTED
    finally:
        if seat is not None:
            seat.close()


def _run_rounds(seat: Seat, settings: Settings, env: Mapping[str, str], job: str) -> int:
    last: Outcome | None = None
    forks: Forks | None = None
    attempt, restarts = 1, 0
    while True:
        found = seat.wait()
        if isinstance(found, Over):
            return _end(found, last, job, attempt)
        if last is not None:
            has_failed = last.verdict.cause is not None and found.restarts > restarts
            _say_again(found, last if has_failed else None, job, settings)
        attempt, restarts = found.number, found.restarts
        here = replace(settings, nnodes=Nodes(found.size, found.size), node_rank=found.index)
        supervisor = Supervisor(here, env, attempt, found.port, restarts, seat, forks)
        last, forks = supervisor.run(), supervisor.forks
        verdict = last.verdict
        if verdict.signum is not None:
            say(last, job, attempt)
            return verdict.exit_code
        is_own_end = verdict.cause is not None or not verdict.was_told
        seat.say_ended(attempt, verdict.exit_code if is_own_end else None, last.cause)


def _say_again(found: Round, failed: Outcome | None, job: str, settings: Settings) -> None:
    """Say why all ranks start again. failed: if ranks of this node did."""
    if failed is not None:
        say(failed, job, found.number - 1, "RESTARTING")
    size = f"{found.size} of {settings.nnodes!r} nodes"
    line = f"oneflow: job={job} attempt={found.number} begins on {size}: {found.why}"
    print(line, file=sys.stderr, flush=True)


def _end(over: Over, last: Outcome | None, job: str, attempt: int) -> int:
    """Say how the job ended, in the words of the node that is to blame for a failure."""
    if over.code == 0:
        return 0
    if last is not None and last.verdict.cause is not None:
        say(last, job, attempt)
    else:
        reason = "SIGNAL" if over.code > 128 else reason_of_code(over.code)
        print(config_line(job, over.code, reason, over.cause, attempt), file=sys.stderr)
    return over.code
