"""A job that is kept no longer does not go without a word."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from oneflow.scheduler.cluster.audit import AUDIT_FILE, Audit, Retired
from oneflow.scheduler.jobs.events import Remove, Ticked
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, JobState


def job(name: str, state: JobState, checkpoint: str = "") -> JobRecord:
    return JobRecord(
        name,
        JobSpec(),
        state,
        last_checkpoint=checkpoint,
        last_checkpoint_step=9 if checkpoint else 0,
    )


def test_it_is_audited_with_the_checkpoint_that_goes_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("oneflow"), "propagate", True)
    audit = Audit(tmp_path / AUDIT_FILE)
    retired = Retired(audit)
    removes = [Remove("old", "it ended long ago"), Remove("lost", "too many"), Remove("asked")]
    retired.stepped(Ticked(0.0), removes)
    retired.changed(job("old", JobState.SUCCEEDED, "step-9"), None)
    retired.changed(job("lost", JobState.FAILED, "/ckpt/step-9"), None)
    retired.changed(job("asked", JobState.FAILED, "step-9"), None)  # who asked is audited elsewhere
    audit.close()
    lines = [json.loads(line) for line in (tmp_path / AUDIT_FILE).read_text().splitlines()]
    assert [(line["job"], line["why"], line["checkpoint"]) for line in lines] == [
        ("old", "it ended long ago", ""),
        ("lost", "too many", "/ckpt/step-9"),
    ]
    warned = {r.getMessage() for r in caplog.records if r.levelno == logging.WARNING}
    assert len(warned) == 1 and "step 9 (/ckpt/step-9) goes with it" in warned.pop()
