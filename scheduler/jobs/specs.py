"""Job records and specs as messages, and back; `check_spec` (of limits.py) judges them."""

from __future__ import annotations

from dataclasses import fields

from google.protobuf.message import Message

from oneflow.core.errors import JobSpecError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobSpec, JobState


def _plain_fields(record: type[JobSpec | JobRecord], message: type[Message]) -> tuple[str, ...]:
    """Names of the texts and numbers that both forms have; the rest is translated by hand."""
    known, plain = message.DESCRIPTOR.fields_by_name, ("str", "int", "float", "bool")
    return tuple(f.name for f in fields(record) if f.type in plain and f.name in known)


_SPEC_FIELDS = _plain_fields(JobSpec, pb.JobSpec)
_RECORD_FIELDS = _plain_fields(JobRecord, pb.JobRecord)


def spec_to_proto(spec: JobSpec) -> pb.JobSpec:
    """Inverse of `spec_from_proto`."""
    return pb.JobSpec(**vars(spec) | {"kind": spec.kind.name})


def spec_from_proto(message: pb.JobSpec) -> JobSpec:
    """Decode a spec as it came, for `check_spec` to judge; defaults for devices and their type.

    Raises JobSpecError for a kind of job that this version does not know.
    """
    if message.kind not in pb.JobSpec.Kind.values():
        raise JobSpecError(
            f"kind={message.kind}: this scheduler knows script, graph and inference jobs; "
            "is the client newer than the cluster?"
        )
    plain = {name: getattr(message, name) for name in _SPEC_FIELDS}
    plain["devices"] = plain["devices"] or 1
    plain["device_type"] = plain["device_type"] or "cpu"
    return JobSpec(
        kind=JobKind[pb.JobSpec.Kind.Name(message.kind)],
        argv=tuple(message.argv),
        restart_on=tuple(message.restart_on),
        only_nodes=tuple(message.only_nodes),
        exclude_nodes=tuple(message.exclude_nodes),
        require_labels=tuple(message.require_labels),
        env=dict(message.env),
        **plain,
    )


def record_to_proto(record: JobRecord) -> pb.JobRecord:
    """Encode a record as anybody who may see the job may see it: without the secret of
    its ranks.
    """
    return pb.JobRecord(
        spec=spec_to_proto(record.spec),
        state=record.state.value,
        metrics=record.metrics,
        assignments=[pb.Assignment(**vars(place)) for place in record.assignments],
        **{name: getattr(record, name) for name in _RECORD_FIELDS},
    )


def record_from_proto(message: pb.JobRecord) -> JobRecord:
    """Inverse of `record_to_proto`.

    A state that is not known counts as FAILED, never as success.
    """
    is_known = message.state in JobState.__members__
    return JobRecord(
        spec=spec_from_proto(message.spec),
        state=JobState[message.state] if is_known else JobState.FAILED,
        metrics=dict(message.metrics),
        assignments=tuple(
            Assignment(a.rank, a.daemon, a.node, a.device, a.folder) for a in message.assignments
        ),
        **{name: getattr(message, name) for name in _RECORD_FIELDS},
    )
