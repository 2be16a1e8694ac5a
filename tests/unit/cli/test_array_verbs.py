"""Verbs that are given the id of an array."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from oneflow.cli.main import cli
from oneflow.cluster.connection import GoneError
from oneflow.core.errors import ClusterRequestError
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, JobState


def member(index: int, state: JobState) -> JobRecord:
    spec = JobSpec(name="scan", array="a", array_index=index, array_limit=2)
    return JobRecord(f"a_{index}", spec, state, owner="ada")


class Scheduler:
    """A cluster with an array, the newest member first; it writes down the changes."""

    def __init__(self) -> None:
        states = (JobState.QUEUED, JobState.RESTARTING, JobState.RUNNING, JobState.SUCCEEDED)
        self.records = [member(3 - n, state) for n, state in enumerate(states)]
        self.asked: list[tuple[Any, ...]] = []

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def job(self, job_id: str) -> Member:
        return Member(self, job_id)

    def jobs(self, limit: int = 0, **filters: str) -> Iterator[JobRecord]:
        assert set(filters) <= {"array", "state", "name"}
        states = filters.get("state", "").split(",")
        for record in self.records:
            if filters.get("array") == "a" and (states == [""] or str(record.state) in states):
                yield record

    def array(self, array_id: str, state: str = "") -> list[Member]:
        found = list(self.jobs(array=array_id, state=state))
        return [Member(self, record.id) for record in reversed(found)]

    def page(self, filters: dict[str, str], limit: int, cursor: str) -> tuple[list[Any], str]:
        return list(self.jobs(**filters)), ""


class Member:
    def __init__(self, scheduler: Scheduler, job_id: str) -> None:
        self.id, self._scheduler = job_id, scheduler

    def status(self) -> JobRecord:
        for record in self._scheduler.records:
            if record.id == self.id:
                return record
        raise GoneError(f"there is no job {self.id!r}")

    def _change(self, *what: Any) -> JobRecord:
        self._scheduler.asked.append((self.id, *what))
        record = self.status()
        if record.state is JobState.RUNNING and what[0] != "cancel":
            raise ClusterRequestError("only one that waits")
        return replace(record, priority_shift=what[1] if what[1:] else 0)

    def hold(self) -> JobRecord:
        return self._change("hold")

    def release(self) -> JobRecord:
        return self._change("release")

    def cancel(self) -> JobRecord:
        return self._change("cancel")

    def set_priority(self, priority: int) -> JobRecord:
        return self._change("priority", priority)


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    found = Scheduler()
    monkeypatch.setattr("oneflow.cluster.client.connect", lambda address: found)
    return found


def run(*words: str) -> str:
    done = CliRunner().invoke(cli, ["job", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_get_shows_the_members_by_their_indices_and_how_many_are_how_far(
    scheduler: Scheduler,
) -> None:
    lines = run("get", "a").splitlines()
    facts = {name.rstrip(":"): value for name, value in (x.split(maxsplit=1) for x in lines[:4])}
    assert facts["array"] == "a" and facts["name"] == "scan" and facts["owner"] == "ada"
    assert facts["jobs"] == "1 QUEUED, 1 RESTARTING, 1 RUNNING, 1 SUCCEEDED"
    assert [line.split()[0] for line in lines[-4:]] == ["a_0", "a_1", "a_2", "a_3"]
    found = json.loads(run("get", "a", "-o", "json"))
    assert [job["id"] for job in found["jobs"]] == ["a_0", "a_1", "a_2", "a_3"]
    assert found["array"] == "a"


@pytest.mark.parametrize("verb", ["hold", "release"])
def test_verbs_of_jobs_that_wait_mean_the_members_that_do(scheduler: Scheduler, verb: str) -> None:
    run(verb, "a")
    assert scheduler.asked == [("a_2", verb), ("a_3", verb)]


def test_the_priority_of_an_array_is_that_of_its_members_that_wait(scheduler: Scheduler) -> None:
    assert run("priority", "a", "7").splitlines() == ["a_2 7", "a_3 7"]
    assert scheduler.asked == [("a_2", "priority", 7), ("a_3", "priority", 7)]
    assert run("priority", "a_2", "--", "-3") == "a_2 -3\n"


def test_stop_means_all_members_and_list_only_those_of_the_array(scheduler: Scheduler) -> None:
    run("stop", "a")
    assert [job_id for job_id, _ in scheduler.asked] == ["a_0", "a_1", "a_2", "a_3"]
    assert len(run("list", "a").splitlines()) == 5
    assert len(run("list", "b").splitlines()) == 1
