"""Job records and specs as messages, and back; `check_spec` (of limits.py) judges what came in."""

from __future__ import annotations

from oneflow.core.errors import JobSpecError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.limits import check_job_id, check_spec
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobSpec, JobState

__all__ = [
    "check_job_id",
    "check_spec",
    "record_from_proto",
    "record_to_proto",
    "spec_from_proto",
    "spec_to_proto",
]

_KIND_TO_WIRE = {
    JobKind.SCRIPT: pb.JobSpec.SCRIPT,
    JobKind.GRAPH: pb.JobSpec.GRAPH,
    JobKind.INFERENCE: pb.JobSpec.INFERENCE,
}
_KIND_OF_WIRE = {value: kind for kind, value in _KIND_TO_WIRE.items()}
_SPEC_FIELDS = (
    "name",
    "devices",
    "device_type",
    "nodes",
    "priority",
    "archive",
    "graph",
    "steps",
    "max_restarts",
    "time_limit_s",
    "checkpoint_every",
    "checkpoint_keep",
    "checkpoint_dir",
    "resume_from",
)
_RECORD_FIELDS = (
    "id",
    "reason",
    "cause",
    "exit_code",
    "first_failed_rank",
    "host",
    "attempt",
    "restarts_spent",
    "last_step",
    "total_steps",
    "last_checkpoint",
    "last_checkpoint_step",
    "pending",
    "warning",
    "owner",
    "submitted_at",
    "started_at",
    "first_step_at",
    "finished_at",
    "pid",
    "ran_s",
    "attempt_started_at",
    "eta_s",
    "life",
)


def spec_to_proto(spec: JobSpec) -> pb.JobSpec:
    """Inverse of `spec_from_proto`."""
    message = pb.JobSpec(kind=_KIND_TO_WIRE[spec.kind])
    for name in _SPEC_FIELDS:
        setattr(message, name, getattr(spec, name))
    message.argv.extend(spec.argv)
    message.restart_on.extend(spec.restart_on)
    message.env.update(spec.env)
    return message


def spec_from_proto(message: pb.JobSpec) -> JobSpec:
    """Decode a spec as it came, for `check_spec` to judge; defaults for devices and their type.

    Raises JobSpecError for a kind of job that this version does not know.
    """
    kind = _KIND_OF_WIRE.get(message.kind)
    if kind is None:
        raise JobSpecError(
            f"kind={message.kind}: this scheduler knows script, graph and inference jobs; "
            "is the client newer than the cluster?"
        )
    fields = {name: getattr(message, name) for name in _SPEC_FIELDS}
    fields["devices"] = fields["devices"] or 1
    fields["device_type"] = fields["device_type"] or "cpu"
    return JobSpec(
        kind=kind,
        argv=tuple(message.argv),
        restart_on=tuple(message.restart_on),
        env=dict(message.env),
        **fields,
    )


def record_to_proto(record: JobRecord) -> pb.JobRecord:
    """Encode a record as anybody who may see the job may see it: without the secret of
    its ranks.
    """
    message = pb.JobRecord(spec=spec_to_proto(record.spec), state=record.state.value)
    for name in _RECORD_FIELDS:
        setattr(message, name, getattr(record, name))
    message.metrics.update(record.metrics)
    for a in record.assignments:
        message.assignments.add(
            rank=a.rank, daemon=a.daemon, node=a.node, device=a.device, folder=a.folder
        )
    return message


def record_from_proto(message: pb.JobRecord) -> JobRecord:
    """Inverse of `record_to_proto`.

    A state that is not known counts as FAILED, never as success.
    """
    try:
        state = JobState(message.state)
    except ValueError:
        state = JobState.FAILED
    fields = {name: getattr(message, name) for name in _RECORD_FIELDS}
    return JobRecord(
        spec=spec_from_proto(message.spec),
        state=state,
        metrics=dict(message.metrics),
        assignments=tuple(
            Assignment(a.rank, a.daemon, a.node, a.device, a.folder) for a in message.assignments
        ),
        **fields,
    )
