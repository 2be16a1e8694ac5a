"""Facts for the web page: jobs in their order, and the rights of a caller."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster import auth
from oneflow.scheduler.cluster.auth import Caller
from oneflow.scheduler.cluster.lines import Line, Lines
from oneflow.scheduler.cluster.page.facts import MAX_JOBS, MAX_POINTS, MAX_RANKS, Facts
from oneflow.scheduler.cluster.points import ActorWaits, Paces
from oneflow.scheduler.jobs.records import Assignment, DaemonRecord, JobRecord, JobSpec, JobState

ADMIN, ADA, EVE = (
    Caller("root", "admin", ""),
    Caller("ada", "submit", ""),
    Caller("eve", "view", ""),
)


class Rig:
    """Facts about some jobs, for a caller."""

    def __init__(self, *records: JobRecord, who: Caller = ADMIN) -> None:
        self.jobs = {record.id: record for record in records}
        self.daemons: dict[str, DaemonRecord] = {}
        self.points: list[Any] = []
        table = SimpleNamespace(daemons=self.daemons, attempts=SimpleNamespace(live={}))
        driver = SimpleNamespace(jobs=self.jobs, job=self.jobs.get, table=table, trouble="")
        points = SimpleNamespace(waits=ActorWaits(), read=self._read)
        plans = SimpleNamespace(progress=lambda record: "")
        self.lines = Lines()
        shared = {"paces": Paces(), "plans": plans, "lines": self.lines}
        self.state: Any = SimpleNamespace(driver=driver, points=points, **shared)
        self.facts = Facts(self.state)
        auth.act_as(who)

    async def _read(self, job_id: str, start: int, follow: bool) -> Any:
        for point in self.points[start:]:
            yield point

    def ids(self, **query: str) -> list[str]:
        return [job["id"] for job in self.facts.jobs(query)["jobs"]]


def job(id_: str, state: JobState = JobState.QUEUED, at: float = 1.0, **more: Any) -> JobRecord:
    spec = {name: more.pop(name) for name in ("name", "argv", "devices") if name in more}
    return JobRecord(id_, JobSpec(**spec), state, submitted_at=at, **more)


def test_jobs_that_go_on_come_before_those_that_ended() -> None:
    rig = Rig(
        job("a", JobState.RUNNING, 1.0),
        job("b", JobState.FAILED, 2.0),
        job("c", JobState.QUEUED, 3.0),
        job("d", JobState.SUCCEEDED, 4.0),
    )
    assert rig.ids() == ["c", "a", "d", "b"]
    assert rig.ids(state="active") == ["c", "a"]
    assert rig.ids(state="ended") == ["d", "b"]
    assert rig.ids(state="FAILED") == ["b"]
    assert rig.ids(state="nonsense") == []
    assert rig.facts.jobs({})["counts"]["FAILED"] == 1


def test_words_are_found_in_id_name_owner_and_kind() -> None:
    rig = Rig(
        job("j1", name="GPT small", owner="ada"),
        job("j2", name="gpt large", owner="bob"),
        job("j3"),
    )
    assert rig.ids(q="gpt") == ["j2", "j1"]
    assert rig.ids(q="gpt ADA") == ["j1"]
    assert rig.ids(q="script j3") == ["j3"]
    assert rig.ids(q="none") == []


def test_a_list_is_bounded_and_says_how_many_there_are() -> None:
    rig = Rig(*(job(f"j{n:04}", at=float(n)) for n in range(MAX_JOBS + 7)))
    found = rig.facts.jobs({})
    assert (len(found["jobs"]), found["total"]) == (MAX_JOBS, MAX_JOBS + 7)
    assert found["jobs"][0]["id"] == f"j{MAX_JOBS + 6:04}"
    assert rig.facts.jobs({"q": "j0003"})["total"] == 1


@pytest.mark.parametrize("who, may", [(ADMIN, True), (ADA, True), (EVE, False)])
def test_only_its_owner_and_admins_may_change_a_job(who: Caller, may: bool) -> None:
    record = job("j1", owner="ada")
    assert Rig(record, who=who).facts.whole_job(record)["may_change"] is may
    other = job("j2", owner="bob")
    assert Rig(other, who=ADA).facts.whole_job(other)["may_change"] is False


def test_secrets_of_others_are_hidden() -> None:
    record = job("j1", owner="ada", argv=("train", "--token", "s3cret"))
    assert "s3cret" in Rig(record, who=ADA).facts.whole_job(record)["command"]
    assert "s3cret" not in json.dumps(Rig(record, who=EVE).facts.whole_job(record))


def test_ranks_are_bounded_and_numbers_are_json() -> None:
    places = tuple(Assignment(r, f"n/cpu:{r}", "n", f"cpu:{r}") for r in range(MAX_RANKS + 1))
    metrics = {"loss": float("nan"), "lr": 0.5}
    record = job("j1", devices=len(places), assignments=places, metrics=metrics)
    found = Rig(record).facts.whole_job(record)
    assert (len(found["ranks"]), found["num_ranks"]) == (MAX_RANKS, MAX_RANKS + 1)
    assert found["metrics"] == {"loss": None, "lr": 0.5}


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    rig = Rig(job("j1"))
    rig.points = [
        SimpleNamespace(index=n, step=n + 1, at=float(n), attempt=1, values={"loss": 1.0})
        for n in range(3 * MAX_POINTS)
    ]
    found = asyncio.run(rig.facts.curve("j1", 0))
    steps = [point["step"] for point in found["points"]]
    assert len(steps) == MAX_POINTS + 1 and steps[:2] == [1, 4] and steps[-1] == 3 * MAX_POINTS
    assert found["next"] == 3 * MAX_POINTS
    assert asyncio.run(rig.facts.curve("j1", found["next"])) == {
        "points": [],
        "next": 3 * MAX_POINTS,
    }


def test_daemons_are_told_with_their_silence() -> None:
    rig = Rig()
    rig.daemons["n/cpu:0"] = DaemonRecord("n/cpu:0", "n", "cpu", 0, "", 1, 1, heard_at=-1e9)
    found = rig.facts.cluster()
    assert found["me"] == {"name": "root", "role": "admin"}
    assert found["daemons"][0]["device"] == "cpu:0" and found["daemons"][0]["silent_s"] >= 1e9


def test_a_node_is_told_once_whatever_the_number_of_its_devices() -> None:
    rig = Rig()
    for number, node in enumerate(("n1", "n1", "n2")):
        line = Line(pb.Hello(daemon=f"{node}/cpu:{number}", node=node, incarnation=1), "", None)
        rig.lines.add(line)
        rig.lines.welcome(line.daemon, 1, epoch=5)
        line.use = pb.NodeUse(processors=8, load=1.5) if node == "n1" else None
    uses = rig.facts.cluster()["uses"]
    assert list(uses) == ["n1"]
    assert (uses["n1"]["processors"], uses["n1"]["load"]) == (8, 1.5)
    assert uses["n1"]["disk_free_nbytes"] == 0
