"""Wishes that a job may have, and its form as a message."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from oneflow.core.errors import JobSpecError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.limits import check_job_id, check_spec
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobSpec, JobState
from oneflow.scheduler.jobs.specs import (
    record_from_proto,
    record_to_proto,
    spec_from_proto,
    spec_to_proto,
)

DIGEST = "0123456789abcdef" * 4
SCRIPT = JobSpec(argv=("python", "train.py"))
GRAPH = JobSpec(kind=JobKind.GRAPH, graph=DIGEST)


@pytest.mark.parametrize(
    "spec",
    [
        SCRIPT,
        GRAPH,
        replace(GRAPH, kind=JobKind.INFERENCE, env={"OMP_NUM_THREADS": "2"}),
        replace(SCRIPT, devices=8, nodes=4, priority=-3, env={"A_1": "x\ny"}, archive=DIGEST),
        replace(SCRIPT, max_restarts=3, restart_on=("NODE_LOST", "17"), time_limit_s=0.5),
        replace(GRAPH, checkpoint_dir="/data/c", resume_from="job-1/step-3", steps=10**12),
        replace(GRAPH, auto_parallel=True, zero=3, amp="bfloat16"),
        replace(GRAPH, kind=JobKind.INFERENCE, amp="float16"),
    ],
)
def test_good_specs_pass(spec: JobSpec) -> None:
    check_spec(spec)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"argv": ()}, "needs a program"),
        ({"argv": ("",)}, "needs a program"),
        ({"argv": ("x",) * 5000}, "5000 words, at most 4096"),
        ({"argv": ("x", "y" * 70000)}, r"argv\[1\]: longer than 65536 bytes"),
        ({"argv": ("x", "a\0b")}, r"argv\[1\] 'a\\x00b': must be text without NUL"),
        ({"argv": ("x", "\ud800")}, "must be text"),
        ({"argv": ("x" * 60000,) * 10}, "at most 524288 allowed"),
        ({"devices": 0}, "devices=0: must be 1 to 65536"),
        ({"devices": 10**6}, "devices=1000000"),
        ({"device_type": "tpu"}, "device_type 'tpu': must be cpu or cuda"),
        ({"devices": 4, "nodes": 3}, "cannot be shared out evenly"),
        ({"devices": 2, "nodes": 3}, "nodes=3: must be 0 to 2"),
        ({"priority": 5000}, "priority=5000"),
        ({"max_restarts": -1}, "max_restarts=-1"),
        ({"restart_on": ("BAD_LUCK",)}, "restart_on 'BAD_LUCK'"),
        ({"restart_on": ("256",)}, "restart_on '256'"),
        ({"restart_on": ("3",) * 100}, "100 rules"),
        ({"time_limit_s": float("nan")}, "time_limit_s=nan"),
        ({"cpus": float("nan")}, "cpus=nan"),
        ({"cpus": -1.0}, "cpus=-1"),
        ({"memory_nbytes": 1 << 20}, "at least 16 MiB"),
        ({"time_limit_s": float("inf")}, "time_limit_s=inf"),
        ({"time_limit_s": -1.0}, "time_limit_s=-1"),
        ({"steps": 2**63}, "steps="),
        ({"checkpoint_keep": 10**4}, "checkpoint_keep=10000"),
        ({"name": "n" * 200}, "at most 128 printable"),
        ({"name": "a\x1b[31m"}, "at most 128 printable"),
        ({"env": {"1A": "x"}}, "env '1A'"),
        ({"env": {"A=B": "x"}}, "env 'A=B'"),
        ({"env": {"": "x"}}, "env ''"),
        ({"env": {"RANK": "0"}}, "env RANK: is set by the launcher"),
        ({"env": {"A": "x\0"}}, "env A"),
        ({"env": {f"A{i}": "" for i in range(2000)}}, "2000 variables"),
        ({"archive": "../../etc/passwd"}, "archive"),
        ({"archive": DIGEST.upper()}, "64 hex digits"),
        ({"graph": DIGEST}, "a script job has none"),
        ({"checkpoint_dir": "relative"}, "must begin with /"),
        ({"checkpoint_dir": "/a/../b"}, "must not contain `..`"),
        ({"resume_from": "x" * 5000}, "resume_from"),
        ({"auto_parallel": True}, "a program sets these itself"),
        ({"zero": 1}, "a program sets these itself"),
        ({"amp": "float16"}, "a program sets these itself"),
    ],
)
def test_bad_specs_are_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(JobSpecError, match=said) as caught:
        check_spec(replace(SCRIPT, **changes))
    assert caught.value.exit_code == 64 and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"graph": ""}, "digest of an uploaded file"),
        ({"argv": ("sh",)}, "no code to run"),
        ({"archive": DIGEST}, "no code to run"),
        ({"env": {"LD_PRELOAD": "/x.so"}}, "env LD_PRELOAD: a graph job may set"),
        ({"env": {"PYTHONPATH": "/x"}}, "env PYTHONPATH"),
        ({"zero": 4}, "zero=4: must be 0 to 3"),
        ({"amp": "int8"}, "amp 'int8': must be float16 or bfloat16"),
        ({"kind": JobKind.INFERENCE, "auto_parallel": True}, "for training jobs only"),
    ],
)
def test_job_without_code_can_bring_none(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(JobSpecError, match=said):
        check_spec(replace(GRAPH, **changes))


@pytest.mark.parametrize("job_id", ["", "-a", "a/b", "..", "a.b", "a" * 64, "a\n", "ä"])
def test_bad_job_ids_are_refused(job_id: str) -> None:
    with pytest.raises(JobSpecError, match="job id"):
        check_job_id(job_id)
    check_job_id("J7_f-3")


def test_spec_survives_the_wire() -> None:
    spec = JobSpec(
        JobKind.SCRIPT, "n", 4, "cuda", 2, -1, ("a", "b c"), {"A": "ü"}, DIGEST, "", 7, 3,
        ("OOM_HOST",), 1.5, 10, 4, "/c", "r", True, 2, "float16",
    )  # fmt: skip
    assert spec_from_proto(spec_to_proto(spec)) == spec
    assert len(fields(JobSpec)) == len(pb.JobSpec.DESCRIPTOR.fields)


def test_empty_message_asks_for_one_cpu() -> None:
    spec = spec_from_proto(pb.JobSpec())
    assert (spec.devices, spec.device_type) == (1, "cpu")


def test_kind_of_a_newer_client_is_refused() -> None:
    with pytest.raises(JobSpecError, match="newer than the cluster"):
        spec_from_proto(pb.JobSpec.FromString(b"\x08\x09"))


def test_record_survives_the_wire_without_its_secret() -> None:
    record = JobRecord(
        "j1", SCRIPT, JobState.RESTARTING, "NODE_LOST", "why", 137, 1, "n1", 812, 2, 1, 0, 1841,
        2000, "c", 1800, "p", "me", "", (Assignment(0, "n0/cpu:0", "n0", "cpu:0"),),
        {"loss": 0.5}, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0,
    )  # fmt: skip
    assert record_from_proto(record_to_proto(record)) == record
    secret = record_to_proto(replace(record, job_key="top secret"))
    assert b"top secret" not in secret.SerializeToString()


def test_unknown_state_counts_as_failed() -> None:
    message = record_to_proto(JobRecord("j1", SCRIPT))
    message.state = "TRIUMPHANT"
    assert record_from_proto(message).state is JobState.FAILED
