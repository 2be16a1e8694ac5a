"""Reports of a script's curve: numbered, thinned, and read once from the file of its counts."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.config import current_config, set_config
from oneflow.core.errors import ArgumentError, ProtocolError
from oneflow.core.metrics import Metrics
from oneflow.distributed import reporting
from oneflow.launcher.daemon.programs import Script, _progress
from oneflow.scheduler.jobs.messages import AttemptKey
from oneflow.services import curve
from oneflow.services.curve import Reports
from oneflow.services.metrics_file import CountsReader, CountsWriter


def test_each_report_is_read_once(tmp_path: Path) -> None:
    path, reports = tmp_path / "counts.json", Reports()
    writer, reader = CountsWriter(path, Metrics(), reports), CountsReader(path, os.getpid())
    found = []
    for first in (1, 3, 5):
        for step in (first, first + 1):
            reports.add(step, {"loss": 1 / step})
        writer.write()
        found += reader.news()[1]
    assert [r.step for r in found] == [1, 2, 3, 4, 5, 6]
    assert [r.metrics["loss"] for r in found] == [1 / step for step in range(1, 7)]
    assert reader.news() == ([], [])


def test_of_many_reports_some_are_kept_and_the_others_counted(tmp_path: Path) -> None:
    path, reports = tmp_path / "counts.json", Reports()
    writer, reader = CountsWriter(path, Metrics(), reports), CountsReader(path, os.getpid())
    found = []
    for turn in range(8):
        for step in range(1000):
            reports.add(turn * 1000 + step, {str(k): 0.5 for k in range(10)})
        writer.write()
        if turn % 4 == 3:  # a reader that comes late
            found += reader.news()[1]
    assert found[-1].step == 7999
    assert [r.step for r in found] == sorted({r.step for r in found})
    assert sum(len(r.metrics) for r in reports.last()) <= 1.5 * curve.MAX_VALUES
    assert path.stat().st_size < 200_000


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script's program at its daemon, and this process as its rank 0."""
    path, reports, before = tmp_path / "counts.json", Reports(), current_config()
    monkeypatch.setattr(reporting, "REPORTS", reports)
    monkeypatch.setattr(reporting, "world", lambda: None)
    monkeypatch.setattr(reporting, "_last_step", 0)
    set_config(replace(before, counts_file=path, rank=0))
    posted: list[Any] = []
    place: Any = SimpleNamespace(post=posted.append, count=lambda *_: None)
    script = Script(AttemptKey("j", 1, 0), None, None, place)  # type: ignore[arg-type]
    script._counts = CountsReader(path, os.getpid())
    writer = CountsWriter(path, Metrics(), reports)

    def told() -> list[Any]:
        writer.write()
        script._take_counts()
        return [event.report for event in posted]

    yield SimpleNamespace(told=told, path=path)
    set_config(before)


def test_reports_become_points_of_the_job(job: Any) -> None:
    flow.report(loss=flow.tensor(0.5, requires_grad=True), rate=np.float32(0.25))
    flow.report(10, loss=math.inf)
    flow.report(loss=3)
    (progress,) = job.told()
    assert [p.step for p in progress.points] == [1, 10, 11]
    assert dict(progress.points[0].metrics) == {"loss": 0.5, "rate": 0.25}
    assert math.isnan(progress.points[1].metrics["loss"])
    assert progress.step == 11 and dict(progress.metrics) == {"loss": 3.0}
    assert all(0 <= p.age_s < 60 for p in progress.points)
    assert len(job.told()) == 1


def test_wrong_reports_are_refused() -> None:
    for step, values, said in (
        (-1, {"loss": 1.0}, "from 0 on, got -1"),
        (True, {"loss": 1.0}, "whole number"),
        (1, {}, "needs 1 to 100 values by name, got 0"),
        (1, {str(k): 0.0 for k in range(101)}, "got 101"),
        (1, {"x" * 65: 0.0}, "more than 64 characters"),
        (1, {"loss": "low"}, "loss is no number"),
        (1, {"loss": flow.ones(2)}, "loss is no number"),
        (1, {"loss": 1j}, "loss is no number"),
    ):
        with pytest.raises(ArgumentError, match=said):
            flow.report(step, **values)  # type: ignore[arg-type]
    flow.report(1, loss=1.0)  # outside of a cluster nothing happens


def test_a_file_of_nonsense_is_refused(job: Any) -> None:
    for reports in ([{"number": 0}], [{"number": 0, "step": -1, "metrics": {}, "at": 0.0}], 3):
        job.path.write_text(json.dumps({"pid": os.getpid(), "counts": [], "reports": reports}))
        with pytest.raises(ProtocolError):
            _progress(CountsReader(job.path, os.getpid()).news()[1])
