"""Between messages of daemons (protos/cluster.proto) and events and actions of the table."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from itertools import islice

from oneflow.core.control_channel import PROTOCOL
from oneflow.core.errors import ConfigError, ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.events import (
    CurvePoint,
    DaemonBeat,
    DaemonGone,
    DaemonJoined,
    Event,
    RankExited,
    RankFailing,
    RankPrepared,
    RankProgressed,
    Running,
    TellDrain,
    TellForget,
    TellNoted,
    TellPrepare,
    TellStart,
    TellStop,
    Told,
)
from oneflow.scheduler.jobs.limits import (
    DEVICE_TYPES,
    MAX_PATH_NBYTES,
    MAX_STEPS,
    check_job_id,
    folder_name,
)
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.scheduler.jobs.specs import spec_to_proto

MAX_BEAT_NBYTES = 16 << 10
MAX_MESSAGE_NBYTES = (1 << 20) + (64 << 10)  # 1 MiB of data and what is around it
MAX_RUNNING = 64
MAX_FOLDER_CHARS = 1024
MAX_ROOTS = 128  # each as it was given, and with links followed
MAX_KEPT = 10_000  # jobs that a daemon says it has files of
MAX_METRICS = 1000
MAX_METRIC_CHARS = 256
MAX_POINTS = 100  # of a curve, in a message
MAX_AGE_S = 1e6
MAX_CAUSE_CHARS = 16 << 10
MAX_WAITING_CHARS = 500
MAX_WARNING_CHARS = 1000
MAX_KINDS, MAX_KIND_CHARS = 32, 32  # of actors
MAX_DEVICE_INDEX = 4096
MAX_SEEN_S = 1e6
PHASES = frozenset(("preparing", "prepared", "running", "stopping"))
_NODE = re.compile(r"[A-Za-z0-9_.-]{1,253}")
_DAEMON = re.compile(r"[A-Za-z0-9_.-]{1,253}/(cpu|cuda):[0-9]{1,4}")
_ADDRESS = re.compile(r"[A-Za-z0-9_.:%\[\]-]{1,253}")


def joined(hello: pb.Hello) -> DaemonJoined:
    """Raises ProtocolError for what cannot be, ConfigError for a daemon of another protocol."""
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
        raise ProtocolError(f"daemon {hello.daemon} joins without sense")
    return DaemonJoined(
        daemon=hello.daemon,
        node=hello.node,
        device_type=hello.device_type,
        device_index=hello.device_index,
        address=hello.address,
        incarnation=hello.incarnation,
        version=hello.version[:80],
        pid=hello.pid,
        last_epoch=hello.epoch,
        running=tuple(_running(each) for each in hello.running),
        draining=hello.draining,
        folder=hello.folder,
        kept=tuple(hello.kept),
        drain_number=hello.drain_number,
    )


def _is_folder(text: str) -> bool:
    return len(text) <= MAX_FOLDER_CHARS and text.isprintable()


def _running(wire: pb.RunningAttempt) -> Running:
    job_id, attempt, rank = _key(wire.id)
    if wire.phase not in PHASES:
        raise ProtocolError(f"an attempt cannot be {wire.phase[:40]!r}")
    return Running(job_id, attempt, rank, wire.phase, _step(wire.last_step), wire.id.life)


def _key(wire: pb.AttemptId) -> tuple[str, int, int]:
    try:
        check_job_id(wire.job_id)
    except ValueError as error:
        raise ProtocolError(f"a daemon speaks of a job that cannot be: {error}") from None
    return wire.job_id, wire.attempt, wire.rank


def event_of(
    message: pb.DaemonMessage, daemon: str, wall: Callable[[], float] = time.time
) -> Event | None:
    """Translate a daemon's message into a table event, or None if the table does not handle it.
    Raises ProtocolError.
    """
    kind, epoch = message.WhichOneof("kind"), message.epoch
    match kind:
        case "beat":
            if message.ByteSize() > MAX_BEAT_NBYTES:
                raise ProtocolError(f"a heartbeat of {message.ByteSize()} bytes")
            return DaemonBeat(daemon, epoch)
        case "prepared":
            p = message.prepared
            reason = p.reason or "INTERNAL"
            if p.master_port > 65535:
                raise ProtocolError(f"there is no port {p.master_port}")
            error = p.error[:MAX_CAUSE_CHARS]
            who = daemon, epoch, *_key(p.id)
            code = p.exit_code if error else 0
            return RankPrepared(*who, p.master_port, error, reason, code, life=p.id.life)
        case "exited":
            return _exited(message.exited, daemon, epoch, wall())
        case "failing":
            return RankFailing(_exited(message.failing, daemon, epoch, wall()))
        case "progress":
            return _progressed(message.progress, daemon, epoch, wall())
        case "leaving":
            return DaemonGone(daemon, epoch, "left")
    return None


def _exited(e: pb.Exited, daemon: str, epoch: int, at: float) -> RankExited:
    return RankExited(
        daemon,
        epoch,
        *_key(e.id),
        e.exit_code,
        e.reason,
        e.cause[:MAX_CAUSE_CHARS],
        _step(e.last_step),
        at,
        e.pid,
        e.leaving,
        e.seen_s if 0 < e.seen_s < MAX_SEEN_S else 0.0,
        e.id.life,
    )


def _progressed(p: pb.Progress, daemon: str, epoch: int, at: float) -> RankProgressed:
    """Names and paths come from jobs, not from daemons: what is too long is left out, for who is
    refused ends its stream, comes back and says the same again.
    """
    has_path = len(p.checkpoint.encode(errors="replace")) <= MAX_PATH_NBYTES
    return RankProgressed(
        daemon,
        epoch,
        *_key(p.id),
        step=_step(p.step),
        total_steps=_step(p.total_steps),
        metrics=_metrics(p.metrics),
        checkpoint=p.checkpoint if has_path else "",
        checkpoint_step=_step(p.checkpoint_step) if has_path else 0,
        at=at,
        waiting=p.waiting[:MAX_WAITING_CHARS],
        actor_waits=tuple(
            (a.kind[:MAX_KIND_CHARS], a.no_input_s, a.no_free_register_s)
            for a in p.actors[:MAX_KINDS]
        ),
        points=tuple(
            CurvePoint(_step(q.step), at - _age(q.age_s), _metrics(q.metrics), _step(q.left_out))
            for q in p.points[:MAX_POINTS]
        ),
        warning=p.warning[:MAX_WARNING_CHARS],
        life=p.id.life,
    )


def _metrics(told: Mapping[str, float]) -> dict[str, float]:
    known = {k: v for k, v in told.items() if len(k) <= MAX_METRIC_CHARS}
    return dict(islice(known.items(), MAX_METRICS))


def _age(seconds: float) -> float:
    return seconds if 0 < seconds < MAX_AGE_S else 0.0


def _step(step: int) -> int:
    """The store's numbers have 63 bits."""
    if step > MAX_STEPS:
        raise ProtocolError(f"there is no step {step}")
    return step


def attempt_id(record: JobRecord, rank: int, attempt: int = 0) -> pb.AttemptId:
    """One rank of an attempt of a job; 0: of its last one."""
    number = attempt or record.attempt
    return pb.AttemptId(job_id=record.id, attempt=number, rank=rank, life=record.life)


def prepare_message(action: TellPrepare, plan: str) -> pb.SchedulerMessage:
    """plan: digest of the compiled plan, or ""."""
    record = action.record
    return pb.SchedulerMessage(
        prepare=pb.Prepare(
            id=attempt_id(record, action.rank),
            spec=spec_to_proto(record.spec),
            world_size=len(record.assignments),
            job_key=record.job_key,
            resume_from=action.resume_from,
            plan=plan,
            total_steps=record.total_steps,
            local_rank=action.local_rank,
        )
    )


def message_of(action: Told) -> pb.SchedulerMessage:
    """Translate an action into the message that a daemon is told; for TellPrepare see
    `prepare_message`.
    """
    match action:
        case TellStart():
            id_, addr, port = _id_of(action), action.master_addr, action.master_port
            return pb.SchedulerMessage(start=pb.Start(id=id_, master_addr=addr, master_port=port))
        case TellStop():
            stop = pb.Stop(id=_id_of(action), grace_s=action.grace_s, why=action.why)
            return pb.SchedulerMessage(stop=stop)
        case TellNoted():
            return pb.SchedulerMessage(noted=_id_of(action))
        case TellForget():
            return pb.SchedulerMessage(forget=folder_name(action.job_id, action.life))
        case TellDrain():
            return pb.SchedulerMessage(drain=action.is_on, drain_number=action.number)
        case TellPrepare():
            return prepare_message(action, "")


def _id_of(action: TellStart | TellStop | TellNoted) -> pb.AttemptId:
    number, rank, life = action.attempt, action.rank, action.life
    return pb.AttemptId(job_id=action.job_id, attempt=number, rank=rank, life=life)
