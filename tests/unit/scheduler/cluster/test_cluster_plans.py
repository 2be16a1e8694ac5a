"""What the scheduler asks of a job file before it takes a job: once for each way to run it."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from oneflow.core.errors import JobSpecError, PlacementError
from oneflow.scheduler.cluster.blobs import Blobs
from oneflow.scheduler.cluster.plans import Plans
from oneflow.scheduler.cluster.settings import Limits
from oneflow.scheduler.jobs.records import JobKind, JobSpec


def test_a_file_is_judged_once_for_each_way_to_run_it(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", Limits(), list)
    spec = JobSpec(kind=JobKind.GRAPH, graph=blobs.put(b"a job"), devices=2)
    asked: list[Any] = []

    def check_fit(path: Path, *rest: Any) -> int:
        asked.append(rest)
        if rest[1] == 3:
            raise PlacementError(f"{path}: 64 rows cannot be split over 3 devices")
        return 10

    plans = Plans(tmp_path, blobs, None, print, print, bool, check_fit)
    for _ in range(3):
        asyncio.run(plans.check(spec, "me"))
    asyncio.run(
        plans.check(dataclasses.replace(spec, steps=10), "me")
    )  # as many as the file was said to
    assert [(devices, steps) for _, devices, _, steps in asked] == [(2, 0)]
    asyncio.run(plans.check(dataclasses.replace(spec, steps=11), "me"))
    assert [(devices, steps) for _, devices, _, steps in asked] == [(2, 0), (2, 11)]
    for _ in range(2):  # what does not fit is asked again: its words are not kept
        with pytest.raises(JobSpecError, match="cannot run: the job file: 64 rows"):
            asyncio.run(plans.check(dataclasses.replace(spec, devices=3), "me"))
    assert len(asked) == 4
    asyncio.run(plans.check(JobSpec(kind=JobKind.SCRIPT, argv=("x",)), "me"))
    assert len(asked) == 4
    plans.close()
    blobs.close()
