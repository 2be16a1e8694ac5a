"""Between protobuf messages (protos/cluster.proto) and what the daemon's mind knows."""

from __future__ import annotations

import time
from collections.abc import Sequence

from oneflow.core.control_channel import MAX_TEXT_CHARS
from oneflow.core.errors import ProtocolError
from oneflow.core.metrics import ActorWaits
from oneflow.core.metrics_told import MAX_TOLD, Told
from oneflow.launcher.daemon.events import (
    AttemptKey,
    DrainTold,
    Event,
    Fenced,
    NotedTold,
    PrepareTold,
    Progressed,
    Running,
    SayExited,
    SayFailing,
    SayPrepared,
    SayProgress,
    StartTold,
    StopTold,
    Welcomed,
)
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.specs import check_job_id

MAX_METRICS = 1000
MAX_METRIC_CHARS = 256
MAX_POINTS, MAX_POINTS_NBYTES = 100, 256 << 10  # of a curve, in a message
MAX_KINDS = 32  # of actors; there are about ten
MAX_WAITING_CHARS = 500
MAX_WARNING_CHARS = 1000


def key_of(wire: pb.AttemptId) -> AttemptKey:
    """Raises ProtocolError for an id that cannot be one: it becomes part of paths."""
    try:
        check_job_id(wire.job_id)
    except ValueError as error:
        raise ProtocolError(f"the scheduler speaks of a job that cannot be: {error}") from None
    return AttemptKey(wire.job_id, wire.attempt, wire.rank, wire.life)


def wire_key(key: AttemptKey) -> pb.AttemptId:
    job_id, attempt, rank, life = key
    return pb.AttemptId(job_id=job_id, attempt=attempt, rank=rank, life=life)


def event_of(message: pb.SchedulerMessage) -> Event | None:
    """Translate a scheduler's message into an event, or None if the daemon does not handle it."""
    kind = message.WhichOneof("kind")
    match kind:
        case "welcome":
            return Welcomed(message.welcome.epoch)
        case "fenced":
            return Fenced(message.fenced)
        case "prepare":
            return PrepareTold(key_of(message.prepare.id), message.prepare)
        case "start":
            start = message.start
            return StartTold(key_of(start.id), start.master_addr, start.master_port)
        case "stop":
            stop = message.stop
            return StopTold(key_of(stop.id), max(stop.grace_s, 0.0), stop.why)
        case "noted":
            return NotedTold(key_of(message.noted))
        case "drain":
            return DrainTold(message.drain, message.drain_number)
    return None


def progressed(key: AttemptKey, wire: pb.Progress) -> Progressed:
    """Translate a worker's report of its progress."""
    if len(wire.metrics) > MAX_METRICS:
        raise ProtocolError(f"{key} reports {len(wire.metrics)} metrics at once")
    return Progressed(
        key,
        wire.step,
        wire.total_steps,
        {k: v for k, v in wire.metrics.items() if len(k) <= MAX_METRIC_CHARS},
        wire.checkpoint,
        wire.checkpoint_step,
        tuple(_waits(a) for a in wire.actors[:MAX_KINDS]),
        wire.waiting[:MAX_WAITING_CHARS],
        _points(wire.points),
        wire.warning[:MAX_WARNING_CHARS],
    )


def _points(wire: Sequence[pb.ProgressPoint]) -> tuple[pb.ProgressPoint, ...]:
    """Return as many points as a message may hold with all else that is in it."""
    found, nbytes = [], 0
    for point in wire[:MAX_POINTS]:
        nbytes += point.ByteSize()
        if nbytes > MAX_POINTS_NBYTES:
            break
        found.append(point)
    return tuple(found)


def told_by(wire: pb.WorkerCounts) -> list[Told]:
    """Return the counts that a worker reports. Raises ProtocolError for too much at once."""
    if len(wire.counts) > MAX_TOLD:
        raise ProtocolError(f"a worker tells {len(wire.counts)} numbers at once")
    return [Told(c.name, tuple(c.labels), c.value, tuple(c.buckets)) for c in wire.counts]


def _waits(wire: pb.ActorCounts) -> ActorWaits:
    return ActorWaits(wire.kind, wire.no_input_s, wire.no_free_register_s)


def _wire_waits(waits: ActorWaits) -> pb.ActorCounts:
    return pb.ActorCounts(
        kind=waits.kind,
        no_input_s=waits.no_input_s,
        no_free_register_s=waits.no_free_register_s,
    )


def say(action: SayPrepared | SayProgress | SayFailing | SayExited) -> pb.DaemonMessage:
    """Translate an action into the message for the scheduler; the epoch is filled in when it is
    sent.
    """
    if isinstance(action, SayFailing):
        return pb.DaemonMessage(failing=_exited(action.end))
    if isinstance(action, SayExited):
        return pb.DaemonMessage(exited=_exited(action))
    key = wire_key(action.key)
    match action:
        case SayPrepared():
            return pb.DaemonMessage(
                prepared=pb.Prepared(
                    id=key,
                    error=_text(action.error),
                    master_port=action.master_port,
                    reason=action.reason,
                    exit_code=action.exit_code,
                )
            )
        case SayProgress():
            return pb.DaemonMessage(
                progress=pb.Progress(
                    id=key,
                    step=action.step,
                    total_steps=action.total_steps,
                    metrics=action.metrics,
                    checkpoint=action.checkpoint,
                    checkpoint_step=action.checkpoint_step,
                    actors=map(_wire_waits, action.actors),
                    waiting=action.waiting,
                    points=action.points,
                    warning=action.warning,
                )
            )


def _exited(end: SayExited) -> pb.Exited:
    return pb.Exited(
        id=wire_key(end.key),
        exit_code=end.exit_code,
        reason=end.reason,
        cause=_text(end.cause),
        last_step=end.last_step,
        pid=end.pid,
        leaving=end.leaving,
        seen_s=time.monotonic() - end.failed_at if end.failed_at else 0.0,
    )


def wire_running(running: Running) -> pb.RunningAttempt:
    return pb.RunningAttempt(
        id=wire_key(running.key),
        phase=running.phase,
        pid=running.pid,
        last_step=running.last_step,
    )


def _text(text: str) -> str:
    return text[: MAX_TEXT_CHARS // 4]  # a character may take four bytes


def describe(message: pb.SchedulerMessage) -> str:
    """The kind of a message, for logs: its content is not ours to show."""
    return str(message.WhichOneof("kind") or "an empty message")
