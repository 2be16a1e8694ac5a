"""The checker finds its faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oneflow.scheduler.jobs.records import JobState
from tests.support.job_invariants import History, invariants

from .table_rig import Rig


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": JobState.QUEUED}, "an attempt of it goes on"),
        ({"state": JobState.SUCCEEDED, "exit_code": 3}, "SUCCEEDED with NONE and exit 3"),
        ({"state": JobState.FAILED, "exit_code": 3, "reason": "HANG"}, "without a cause"),
        ({"reason": "BAD_LUCK"}, "unknown reason BAD_LUCK"),
        ({"attempt": 7}, "it is at 7"),
        ({"exit_code": 300}, "exit code 300"),
        ({"finished_at": 5.0}, "has finished"),
    ],
)
def test_wrong_record_is_found(changes: dict[str, Any], said: str) -> None:
    rig = Rig(2)
    rig.run(devices=2)
    assert invariants(rig.table) == []
    rig.table._desk.jobs["j1"] = replace(rig.job(), **changes)
    assert said in "; ".join(invariants(rig.table))


def test_device_with_two_attempts_is_found() -> None:
    rig = Rig(2)
    rig.run("j1")
    rig.run("j2")
    attempts = rig.table.attempts.live
    attempts["j2"].ranks[0].assignment = attempts["j1"].ranks[0].assignment
    assert "2 attempts hold n0/cpu:0" in "; ".join(invariants(rig.table))


def test_history_finds_what_goes_back() -> None:
    rig = Rig(1)
    rig.run()
    rig.exit(0, 0)
    history = History()
    history.look(rig.table)
    rig.table._desk.jobs["j1"] = replace(rig.job(), state=JobState.RUNNING, attempt=0)
    rig.table._fleet.epoch = 0
    said = "; ".join(history.look(rig.table))
    assert "j1 went back from attempt 1 to 0" in said and "the epoch went back" in said
    assert "j1 was SUCCEEDED for good, and is RUNNING" in said
