"""Jobs are found by id and by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from oneflow.cli.asking import job_called
from oneflow.cluster.connection import GoneError
from oneflow.scheduler.jobs.records import JobKind, JobRecord, JobSpec, JobState


def record(job_id: str, name: str) -> JobRecord:
    return JobRecord(job_id, JobSpec(JobKind.SCRIPT, name=name), state=JobState.RUNNING)


class Known:
    """A cluster that knows some jobs, the newest first."""

    RECORDS = (
        record("j4", "digits"),
        record("j3", "gpt"),
        record("digits", "x"),
        record("j1", "gpt"),
    )

    def job(self, job_id: str) -> Any:
        return Found(job_id)

    def jobs(self, limit: int, name: str) -> Iterator[JobRecord]:
        return (r for r in self.RECORDS if r.spec.name == name)


class Found:
    def __init__(self, job_id: str) -> None:
        self.id = job_id

    def status(self) -> JobRecord:
        for found in Known.RECORDS:
            if found.id == self.id:
                return found
        raise GoneError(f"there is no job {self.id!r}")


@pytest.mark.parametrize(
    ("words", "wanted", "said"),
    [
        ("j4", "j4", ""),
        ("x", "digits", ""),
        ("digits", "digits", ""),  # an id wins over a name
        ("gpt", "j3", "oneflow: 2 jobs are called 'gpt'; this is the newest, j3 (RUNNING)\n"),
    ],
)
def test_a_job_is_found_by_id_then_by_name(
    words: str, wanted: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster: Any = Known()
    assert job_called(cluster, words).id == wanted
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("words", ["gpt2", "gpt,digits", ""])
def test_a_name_of_no_job_is_an_error(words: str) -> None:
    cluster: Any = Known()
    with pytest.raises(GoneError, match="there is no job"):
        job_called(cluster, words)
