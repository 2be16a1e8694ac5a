"""Jobs that cannot be run as asked are refused before they get devices."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import oneflow as flow
from oneflow.core.errors import JobSpecError, OneFlowError
from oneflow.jobs.running import check_fit
from oneflow.scheduler.cluster.plans import Plans
from oneflow.scheduler.jobs.records import JobKind, JobSpec

from .job_samples import Predict, data, export

GRAPH = "a" * 64


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps, 8 rows a batch."""
    return export(tmp_path_factory.mktemp("jobs") / "train.job")


@pytest.mark.parametrize("asked", [("graph", 1, 0), ("graph", 4, 6), ("graph", 8, 3)])
def test_what_fits_is_taken(training: Path, asked: tuple[str, int, int]) -> None:
    kind, devices, steps = asked
    check_fit(training, kind, devices, "cpu", steps)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("graph", 1, 7), "7 steps were asked for, but the file has learning rates lr.0.0 for 6"),
        (("graph", 3, 0), "a batch of 8 rows cannot be divided evenly between 3 devices"),
        (("inference", 1, 0), "was exported for training, the job is of kind inference"),
    ],
)
def test_what_does_not_fit_is_said(
    training: Path, asked: tuple[str, int, int], message: str
) -> None:
    kind, devices, steps = asked
    with pytest.raises(OneFlowError, match=message):
        check_fit(training, kind, devices, "cpu", steps)


def test_data_that_ends_too_soon_is_said(tmp_path: Path) -> None:
    found = export(tmp_path / "x.job", data=data(epochs=1), steps=5)
    check_fit(found, "graph", 1, "cpu", 5)
    with pytest.raises(OneFlowError, match="6 steps were asked for"):
        check_fit(found, "graph", 1, "cpu", 6)


def test_inference_runs_on_any_number(tmp_path: Path) -> None:
    Predict().export(tmp_path / "p.job", inputs={"x": flow.zeros(5, 6)})
    check_fit(tmp_path / "p.job", "inference", 3, "cpu", 0)


def test_the_scheduler_refuses_the_submission(training: Path, tmp_path: Path) -> None:
    blobs: Any = SimpleNamespace(path=lambda digest: training)
    tell: Any = None
    judge: Any = SimpleNamespace(check_fit=check_fit)
    plans = Plans(tmp_path, blobs, judge, tell, tell, tell, tell)
    spec = JobSpec(kind=JobKind.GRAPH, graph=GRAPH, devices=2, device_type="cpu")
    asyncio.run(plans.check(spec, "me"))
    with pytest.raises(JobSpecError, match="this job cannot run: 90 steps were asked for"):
        asyncio.run(plans.check(replace(spec, steps=90), "me"))
    script = JobSpec(kind=JobKind.SCRIPT, argv=("true",), devices=3, device_type="cpu")
    asyncio.run(plans.check(script, "me"))
    plans.close()
