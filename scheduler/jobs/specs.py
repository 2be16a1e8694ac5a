"""Job records and specs as messages, and back; `check_spec` (of limits.py) judges what came in."""

from __future__ import annotations

from dataclasses import fields

from google.protobuf.message import Message

from oneflow.core.errors import JobSpecError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobSpec, JobState

_KIND_TO_WIRE = {
    JobKind.SCRIPT: pb.JobSpec.SCRIPT,
    JobKind.GRAPH: pb.JobSpec.GRAPH,
    JobKind.INFERENCE: pb.JobSpec.INFERENCE,
}
_KIND_OF_WIRE = {value: kind for kind, value in _KIND_TO_WIRE.items()}


def _plain_fields(record: type[JobSpec | JobRecord], message: type[Message]) -> tuple[str, ...]:
    """Names of the texts and numbers that both forms have; the rest is translated by hand."""
    known, plain = message.DESCRIPTOR.fields_by_name, ("str", "int", "float")
    return tuple(f.name for f in fields(record) if f.type in plain and f.name in known)


_SPEC_FIELDS = _plain_fields(JobSpec, pb.JobSpec)
_RECORD_FIELDS = _plain_fields(JobRecord, pb.JobRecord)


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
    plain = {name: getattr(message, name) for name in _SPEC_FIELDS}
    plain["devices"] = plain["devices"] or 1
    plain["device_type"] = plain["device_type"] or "cpu"
    return JobSpec(
        kind=kind,
        argv=tuple(message.argv),
        restart_on=tuple(message.restart_on),
        env=dict(message.env),
        **plain,
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
    plain = {name: getattr(message, name) for name in _RECORD_FIELDS}
    return JobRecord(
        spec=spec_from_proto(message.spec),
        state=state,
        metrics=dict(message.metrics),
        assignments=tuple(
            Assignment(a.rank, a.daemon, a.node, a.device, a.folder) for a in message.assignments
        ),
        **plain,
    )
