"""Arrays as users write them, and the specs of their members."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.cli import asking
from oneflow.cli.submit import merged
from oneflow.cluster import client
from oneflow.cluster.arrays import read_array
from oneflow.cluster.client import Cluster
from oneflow.cluster.connection import GoneError
from oneflow.core.errors import ClusterRequestError, JobSpecError
from oneflow.scheduler.jobs.records import JobRecord, JobSpec


@pytest.mark.parametrize(
    ("words", "indices", "limit"),
    [
        ("0-3", [0, 1, 2, 3], 0),
        ("0-3%2", [0, 1, 2, 3], 2),
        ("7", [7], 0),
        ("1,3,5-7,3", [1, 3, 5, 6, 7], 0),
    ],
)
def test_numbers_and_how_many_at_once(words: str, indices: list[int], limit: int) -> None:
    found = read_array(words)
    assert (list(found.members), found.limit) == (indices, limit)


@pytest.mark.parametrize(
    "words", ["", "3-1", "a", "1-", "0-9%", "0-9%0", "0-9%x", "0-10000", "0-5000,6000-12000", "%2"]
)
def test_what_names_no_members_is_refused(words: str) -> None:
    with pytest.raises(JobSpecError, match="array"):
        read_array(words)


def test_names_in_braces_are_filled_in_and_other_braces_stay() -> None:
    spec = JobSpec(
        argv=("run", "--seed={index}", '{"a": {index}}', "{other}"), env={"A": "{index}"}
    )
    found = read_array("4-5%1").specs("a", spec)
    assert list(found) == ["a_4", "a_5"]
    member = found["a_5"]
    assert member.argv == ("run", "--seed=5", '{"a": 5}', "{other}")
    assert member.env == {"A": "5", "ONEFLOW_ARRAY_INDEX": "5"}
    assert (member.array, member.array_index, member.array_limit) == ("a", 5, 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.csv", "lr,layer\n0.1,a b\n0.2,c\n"),
        ("p.jsonl", '{"lr": 0.1, "layer": "a b"}\n\n{"lr": 0.2, "layer": "c"}\n'),
    ],
)
def test_a_file_has_a_row_for_each_member(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    spec = JobSpec(argv=("run", "{lr}", "{layer}", "{index}"))
    every = read_array("%1", path)
    argvs = [member.argv for member in every.specs("a", spec).values()]
    assert argvs == [("run", "0.1", "a b", "0"), ("run", "0.2", "c", "1")]
    assert every.limit == 1 and list(read_array("1", path).members) == [1]
    with pytest.raises(JobSpecError, match="has 2 rows"):
        read_array("0-2", path)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("p.csv", "a,b\n1\n", "row 0"),
        ("p.csv", "a\n1,2\n", "row 0"),
        ("p.csv", "a\n", "0 members"),
        ("p.jsonl", "[1]\n", "line 1: must be an object"),
        ("p.jsonl", "{}\n{\n", "line 2"),
        ("p.txt", "a", r"\.csv or a \.jsonl"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(
    name: str, text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(JobSpecError, match=says):
        read_array("", tmp_path / name)
    with pytest.raises(JobSpecError, match="cannot be read"):
        read_array("", tmp_path / "none.csv")


class _Scheduler:
    """Knows the jobs that it was given, and takes no more than `room`."""

    def __init__(self, room: int) -> None:
        self.room, self.records = room, dict[str, JobRecord]()

    def send(self, _: object, job_id: str, spec: JobSpec) -> JobRecord:
        if job_id not in self.records and len(self.records) >= self.room:
            raise ClusterRequestError("there is no room")
        return self.records.setdefault(job_id, JobRecord(job_id, spec))


def test_the_same_submission_goes_on_where_there_was_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = _Scheduler(room=2)
    monkeypatch.setattr(client, "send_job", scheduler.send)
    cluster = Cluster(SimpleNamespace(address="host:1"))  # type: ignore[arg-type]
    with pytest.raises(ClusterRequestError, match="2 of 3 members of array a are submitted"):
        cluster.submit_array(["x"], "0-2", job_id="a")
    scheduler.room = 9
    jobs = cluster.submit_array(["x"], "0-2", job_id="a")
    assert [job.id for job in jobs] == ["a_0", "a_1", "a_2"] == list(scheduler.records)
    with pytest.raises(JobSpecError, match="job id"):
        cluster.submit_array(["x"], "0-2", job_id="a" * 63)


def test_an_arrays_id_means_its_members_by_their_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(SimpleNamespace(address="host:1"))  # type: ignore[arg-type]
    newest_first = [
        JobRecord(f"a_{index}", JobSpec(array="a", array_index=index)) for index in (10, 9)
    ]

    def jobs(**filters: Any) -> list[JobRecord]:
        return newest_first if filters == {"array": "a"} else []

    def gone(_: object) -> None:
        raise GoneError("there is no such job")

    monkeypatch.setattr(cluster, "jobs", jobs)
    monkeypatch.setattr(client.Job, "status", gone)
    assert [job.id for job in asking.jobs_called(cluster, "a")] == ["a_9", "a_10"]
    with pytest.raises(GoneError):
        asking.jobs_called(cluster, "b")


def test_an_array_of_a_file_for_jobs(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('argv = ["run"]\narray = "0-3"\narray_file = "p.csv"\n')
    found = merged((), False, {"job_toml": path, "array": "0-1"})
    assert (found["array"], found["array_file"]) == ("0-1", str(tmp_path / "p.csv"))
