"""Members of an array: how many run at once, and the waits of the others."""

from __future__ import annotations

import pytest

from oneflow.core.errors import JobSpecError
from oneflow.scheduler.jobs.events import ChangeAsked, Rejected, Submitted
from oneflow.scheduler.jobs.limits import check_spec
from oneflow.scheduler.jobs.records import JobSpec
from oneflow.scheduler.jobs.settings import Settings

from .table_rig import WALL, Rig


def states(rig: Rig) -> list[str]:
    return [str(job.state) for job in rig.table.jobs.values()]


def submit(rig: Rig, number: int, limit: int, array: str = "a", **more: str) -> None:
    for index in range(number):
        name = f"{more.get('owner', '')}{array}_{index}"
        rig.submit(name, array=array, array_index=index, array_limit=limit, **more)


def test_so_many_members_run_at_once_and_others_pass_those_that_wait() -> None:
    rig = Rig(4)
    submit(rig, 3, limit=2)
    rig.submit("other")
    assert states(rig) == ["STARTING", "STARTING", "QUEUED", "STARTING"]
    assert rig.job("a_2").pending == "array a runs at most 2 jobs at once"
    rig.prepare("a_0")
    rig.exit(0, 0, job_id="a_0")
    assert states(rig) == ["SUCCEEDED", "STARTING", "STARTING", "STARTING"]


def test_the_order_of_the_queue_decides_which_member_is_next() -> None:
    rig = Rig(2)
    submit(rig, 3, limit=1)
    rig.do(ChangeAsked("a_2", priority=1))
    rig.prepare("a_0")
    rig.exit(0, 0, job_id="a_0")
    assert states(rig) == ["SUCCEEDED", "QUEUED", "STARTING"]


def test_a_member_that_starts_again_waits_for_its_turn_as_well() -> None:
    rig = Rig(2)
    submit(rig, 2, limit=1, restart_on=("USER_ERROR",), max_restarts=1)  # type: ignore[arg-type]
    rig.prepare("a_0")
    rig.exit(0, 3, job_id="a_0")
    running = [job for job in rig.table.jobs.values() if str(job.state) == "STARTING"]
    assert len(running) == 1


def test_anothers_array_of_the_same_id_and_one_without_a_limit_count_for_themselves() -> None:
    rig = Rig(6)
    submit(rig, 1, limit=1)
    submit(rig, 1, limit=1, owner="you")
    submit(rig, 3, limit=0, array="b")
    assert states(rig) == ["STARTING"] * 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"array": "no id"},
        {"array_limit": 2},
        {"array_index": 1},
        {"array_size": 1},
        {"array": "a", "array_index": -1},
    ],
)
def test_what_no_member_can_be_is_refused(wrong: dict[str, object]) -> None:
    check_spec(JobSpec(argv=("x",), array="a", array_index=1, array_limit=2))
    with pytest.raises(JobSpecError, match=r"array|job id"):
        check_spec(JobSpec(argv=("x",), **wrong))  # type: ignore[arg-type]


def test_an_array_that_a_token_may_not_have_is_refused_whole() -> None:
    rig = Rig(0, settings=Settings(max_queued_per_owner=5))
    rig.submit("other")

    def tried(array: str, size: int) -> str:
        for index in range(size):
            spec = JobSpec(argv=("x",), array=array, array_index=index, array_size=size)
            rig.do(Submitted(f"{array}_{index}", spec, "me", "key", WALL))
            if refused := rig.told(Rejected):
                return refused[0].message
        return ""

    assert tried("a", 5) == (
        "5 jobs of array a: me has 1 queued jobs, and may have 5; none of them is submitted"
    )
    assert list(rig.table.jobs) == ["other"]
    assert tried("a", 4) == "" and len(rig.table.jobs) == 5
    assert tried("a", 4) == "", "what is there already is no new job"
    assert "5 queued jobs" in tried("b", 1)
