"""Messages between the scheduler and its daemons, checked once, where they come in.

The messages of protos/cluster.proto are themselves the words of both state machines, the job table
and the daemon's mind, and of the simulation: the words of one are those that the other hears, and a
new field is named in the code that fills it and in the code that reads it. Their limits stand here.
A wrong message is refused; text of a user's job that is too long is cut instead: a daemon that is
refused ends its stream, comes back and says the same again.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from typing import NamedTuple, TypeVar

from oneflow.core.control_channel import MAX_TEXT_CHARS, PROTOCOL, is_label
from oneflow.core.errors import ConfigError, ProtocolError
from oneflow.core.metrics_samples import MAX_TOLD, Sample
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.causes import shell_code
from oneflow.scheduler.jobs.events import (
    DaemonGone,
    DaemonJoined,
    Event,
    Heard,
    LineBeat,
    TellPrepare,
)
from oneflow.scheduler.jobs.journal import MAX_MARK_CHARS
from oneflow.scheduler.jobs.limits import (
    DEVICE_TYPES,
    MAX_PATH_NBYTES,
    MAX_STEPS,
    MAX_WHERE,
    check_job_id,
    folder_name,
)
from oneflow.scheduler.jobs.records import JobRecord

MAX_BEAT_NBYTES = 16 << 10
MAX_USE_NBYTES, MAX_USE = 128, 1e15  # of a node: as a message, and each of its means
MAX_MESSAGE_NBYTES = (1 << 20) + (64 << 10)  # 1 MiB of data and what is around it
MAX_RUNNING = 64
MAX_FOLDER_CHARS = 1024
MAX_ROOTS = 128  # each as it was given, and with links followed
MAX_KEPT = 10_000  # jobs that a daemon says it has files of
MAX_METRICS, MAX_METRIC_CHARS = 1000, 256
MAX_POINTS, MAX_POINTS_NBYTES = 100, 256 << 10  # of a curve, in a message
MAX_PARTS, MAX_PARTS_NBYTES = 64, 256 << 10  # of a message that stands for several
MAX_SECONDS = 1e6  # that an event may lie back
MAX_CAUSE_CHARS = MAX_TEXT_CHARS // 4  # a character may take four bytes
MAX_WAITING_CHARS, MAX_WARNING_CHARS = 500, 1000
MAX_KINDS, MAX_KIND_CHARS = 32, 32  # of actors
MAX_DEVICE_INDEX = 4096
PHASES = frozenset(("preparing", "prepared", "running", "stopping"))
_NODE = re.compile(r"[A-Za-z0-9_.-]{1,253}")
_DAEMON = re.compile(r"[A-Za-z0-9_.-]{1,253}/(cpu|cuda):[0-9]{1,4}")
_ADDRESS = re.compile(r"[A-Za-z0-9_.:%\[\]-]{1,253}")
M = TypeVar("M", pb.DaemonMessage, pb.SchedulerMessage)


# ---- ranks ---------------------------------------------------------------------------------------


class AttemptKey(NamedTuple):
    """One rank of one attempt of a job. life: of the job (see JobRecord)."""

    job_id: str
    attempt: int
    rank: int
    life: int = 0

    @property
    def folder(self) -> str:
        """Name of the job's folder."""
        return folder_name(self.job_id, self.life)

    @property
    def wire(self) -> pb.AttemptId:
        return pb.AttemptId(**self._asdict())

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.job_id}.{self.attempt}"


def key_of(wire: pb.AttemptId) -> AttemptKey:
    """Raises ProtocolError for an id that cannot be one: it becomes part of paths."""
    try:
        check_job_id(wire.job_id)
    except ValueError as error:
        raise ProtocolError(f"a message speaks of a job that cannot be: {error}") from None
    return AttemptKey(wire.job_id, wire.attempt, wire.rank, wire.life)


def id_in(message: pb.DaemonMessage | pb.SchedulerMessage) -> pb.AttemptId | None:
    """The rank that a message is about; None for one that is about no rank."""
    kind = message.WhichOneof("kind")
    content = getattr(message, kind) if kind else None
    return content if kind == "noted" else getattr(content, "id", None)


def attempt_id(record: JobRecord, rank: int, attempt: int = 0) -> pb.AttemptId:
    """One rank of an attempt of a job; 0: of its last one."""
    return AttemptKey(record.id, attempt or record.attempt, rank, record.life).wire


# ---- several at once -----------------------------------------------------------------------------


def packed(waiting: deque[M]) -> M:
    """Take the first of the messages that wait, and as many of the next ones as go with it: one
    message that stands for them.
    """
    first = waiting.popleft()
    if not waiting:
        return first
    parts, nbytes = [first], first.ByteSize()
    while waiting and len(parts) < MAX_PARTS:
        nbytes += waiting[0].ByteSize()
        if nbytes > MAX_PARTS_NBYTES:
            break
        parts.append(waiting.popleft())
    return first if len(parts) == 1 else type(first)(parts=parts)


def parts_of(message: M) -> Sequence[M]:
    """Return the messages that one stands for, in order."""
    return message.parts or (message,)


# ---- from daemons --------------------------------------------------------------------------------


def joined(hello: pb.Hello) -> DaemonJoined:
    """Make the event of a Hello. Raises ProtocolError for impossible values, ConfigError for a
    daemon of another protocol.
    """
    if hello.protocol != PROTOCOL:
        raise ConfigError(
            f"daemon {hello.daemon[:80]!r} of version {hello.version[:40]!r} speaks protocol "
            f"{hello.protocol}, this scheduler {PROTOCOL}: install the same version on both"
        )
    if not _DAEMON.fullmatch(hello.daemon) or not _NODE.fullmatch(hello.node):
        raise ProtocolError(f"a daemon cannot have the name {hello.daemon[:300]!r}")
    if hello.device_type not in DEVICE_TYPES or hello.device_index > MAX_DEVICE_INDEX:
        raise ProtocolError(f"daemon {hello.daemon}: no device {hello.device_type[:20]!r}")
    if hello.daemon != f"{hello.node}/{hello.device_type}:{hello.device_index}":
        raise ProtocolError(f"daemon {hello.daemon} says that it is another node's or device's")
    if hello.address and not _ADDRESS.fullmatch(hello.address):
        raise ProtocolError(f"daemon {hello.daemon}: no address {hello.address[:80]!r}")
    if not _is_folder(hello.folder):
        raise ProtocolError(f"daemon {hello.daemon}: no folder {hello.folder[:80]!r}")
    roots = hello.data_roots.folders
    if len(roots) > MAX_ROOTS or not all(map(_is_folder, roots)):
        raise ProtocolError(f"daemon {hello.daemon} tells too much of its folders")
    if len(hello.running) > MAX_RUNNING or len(hello.kept) > MAX_KEPT or not hello.incarnation:
        raise ProtocolError(
            f"daemon {hello.daemon}: invalid Hello (more than {MAX_RUNNING} ranks that run, more "
            f"than {MAX_KEPT} jobs kept, or no incarnation)"
        )
    if len(hello.labels) > MAX_WHERE or not all(map(is_label, hello.labels)):
        raise ProtocolError(f"daemon {hello.daemon}: no labels {str(hello.labels)[:80]}")
    if max(len(hello.mark.journal), len(hello.mark.start)) > MAX_MARK_CHARS:
        raise ProtocolError(f"daemon {hello.daemon}: no mark {hello.mark.start[:80]!r}")
    _check_step(hello.mark.attempts)
    for running in hello.running:
        key_of(running.id)
        _check_step(running.last_step)
        if running.phase not in PHASES:
            raise ProtocolError(f"an attempt cannot be {running.phase[:40]!r}")
    hello.version = hello.version[:80]
    return DaemonJoined(hello)


def _is_folder(text: str) -> bool:
    return len(text) <= MAX_FOLDER_CHARS and text.isprintable()


def event_of(
    message: pb.DaemonMessage, daemon: str, wall: Callable[[], float] = time.time
) -> Event | None:
    """The table's event, or None if a message is not the table's business. Cuts it to its limits.

    Raises ProtocolError for impossible values.
    """
    match message.WhichOneof("kind"):
        case "beat":
            if message.ByteSize() > MAX_BEAT_NBYTES:
                raise ProtocolError(f"a heartbeat of {message.ByteSize()} bytes")
            return LineBeat(((daemon, message.epoch),))
        case "prepared":
            _check_prepared(message.prepared)
        case "exited":
            _check_exited(message.exited)
        case "failing":
            _check_exited(message.failing)
        case "progress":
            key_of(message.progress.id)
            cut_progress(message.progress)
        case "leaving":
            return DaemonGone(daemon, message.epoch, "left")
        case _:
            return None
    return Heard(daemon, message, wall())


def use_in(beat: pb.DaemonBeat) -> pb.NodeUse | None:
    """Return a beat's numbers of its node, if they are possible ones, and nothing else."""
    use = beat.use
    numbers = (use.load, use.received_nbytes_per_s, use.sent_nbytes_per_s)
    is_usual = use.ByteSize() <= MAX_USE_NBYTES and all(0 <= n < MAX_USE for n in numbers)
    return use if beat.HasField("use") and is_usual else None


def _check_prepared(prepared: pb.Prepared) -> None:
    key_of(prepared.id)
    if prepared.master_port > 65535:
        raise ProtocolError(f"there is no port {prepared.master_port}")
    prepared.error = prepared.error[:MAX_CAUSE_CHARS]
    prepared.exit_code = shell_code(prepared.exit_code) if prepared.error else 0


def _check_exited(exited: pb.Exited) -> None:
    key_of(exited.id)
    _check_step(exited.last_step)
    exited.cause = exited.cause[:MAX_CAUSE_CHARS]
    exited.exit_code = shell_code(exited.exit_code)
    exited.seen_s = _seconds(exited.seen_s)


def cut_progress(progress: pb.Progress) -> None:
    """Leave out or cut texts that are too long in a report, whose names and paths come from a job.

    Raises ProtocolError for a step that no store could keep.
    """
    for step in (progress.step, progress.total_steps, progress.checkpoint_step):
        _check_step(step)
    _cut_metrics(progress.metrics)
    if len(progress.checkpoint.encode(errors="replace")) > MAX_PATH_NBYTES:
        progress.checkpoint, progress.checkpoint_step = "", 0
    del progress.actors[MAX_KINDS:]
    for actor in progress.actors:
        actor.kind = actor.kind[:MAX_KIND_CHARS]
    progress.waiting = progress.waiting[:MAX_WAITING_CHARS]
    progress.warning = progress.warning[:MAX_WARNING_CHARS]
    del progress.points[_num_points(progress.points) :]
    for point in progress.points:
        _check_step(point.step)
        _check_step(point.left_out)
        _cut_metrics(point.metrics)
        point.age_s = _seconds(point.age_s)


def _num_points(points: Sequence[pb.ProgressPoint]) -> int:
    """Number of points that a message may hold with all else that is in it."""
    nbytes = 0
    for number, point in enumerate(points[:MAX_POINTS]):
        nbytes += point.ByteSize()
        if nbytes > MAX_POINTS_NBYTES:
            return number
    return min(len(points), MAX_POINTS)


def _cut_metrics(metrics: MutableMapping[str, float]) -> None:
    """Leave out names that are too long, and those beyond the most that there may be."""
    kept = set([name for name in metrics if len(name) <= MAX_METRIC_CHARS][:MAX_METRICS])
    if len(kept) != len(metrics):
        for name in [name for name in metrics if name not in kept]:
            del metrics[name]


def _seconds(seconds: float) -> float:
    return seconds if 0 < seconds < MAX_SECONDS else 0.0


def _check_step(step: int) -> None:
    """The store's numbers have 63 bits."""
    if step > MAX_STEPS:
        raise ProtocolError(f"there is no step {step}")


def told_by(wire: pb.WorkerCounts) -> list[Sample]:
    """Return the counts that a worker reports. Raises ProtocolError for too much at once."""
    if len(wire.counts) > MAX_TOLD:
        raise ProtocolError(f"a worker tells {len(wire.counts)} numbers at once")
    return [Sample(c.name, tuple(c.labels), c.value, tuple(c.buckets)) for c in wire.counts]


# ---- to daemons ----------------------------------------------------------------------------------


def prepare_message(action: TellPrepare, plan: str, spec: pb.JobSpec) -> pb.SchedulerMessage:
    """Return the message by which a rank is prepared.

    plan: digest of the compiled plan, or "". spec: of the job, the same for all ranks.
    """
    record = action.record
    return pb.SchedulerMessage(
        prepare=pb.Prepare(
            id=attempt_id(record, action.rank),
            spec=spec,
            world_size=len(record.assignments),
            job_key=record.job_key,
            resume_from=action.resume_from,
            plan=plan,
            total_steps=record.total_steps,
            local_rank=action.local_rank,
            local_world_size=action.local_world_size,
            mark=action.mark,
        )
    )


def describe(message: pb.SchedulerMessage | pb.DaemonMessage) -> str:
    """The kind of a message, for logs: its content is not ours to show."""
    return str(message.WhichOneof("kind") or "an empty message")
