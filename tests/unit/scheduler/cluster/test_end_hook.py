"""The operator's command at a job's end: run once, with the record as data, and never for long."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oneflow.core.errors import ConfigError
from oneflow.core.metrics_families import Counts
from oneflow.scheduler.cluster import end_hook
from oneflow.scheduler.cluster.end_hook import EndHook, parse_command
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, JobState
from tests.support.waiting import wait_until

SPEC = JobSpec(
    name="$(touch here)", argv=("train", "--token", "abcdef"), env={"KEY": "hunter2", "A": "b"}
)
RUNNING = JobRecord("j1", SPEC, JobState.RUNNING, job_key="secret", metrics={"loss": float("nan")})
ENDED = replace(RUNNING, state=JobState.FAILED, reason="OOM_HOST", exit_code=137)


def hook_of(text: str, **options: Any) -> tuple[EndHook, Counts]:
    counts = Counts("runs", "", "result", start=end_hook.RESULTS)
    env = {"PATH": "/usr/bin:/bin", "ONEFLOW_AUTH_TOKEN": "oft_1"}
    return EndHook([sys.executable, "-c", text], env, counts, **options), counts


def test_it_gets_the_record_once_and_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "records"
    hook, counts = hook_of(
        f"import os, sys; text = sys.stdin.read(); "
        f"print(text, sorted(os.environ), len(sys.argv), sep='|', file=open({str(file)!r}, 'a'))"
    )
    hook.changed(None, RUNNING)
    hook.changed(RUNNING, ENDED)
    hook.changed(ENDED, replace(ENDED, priority_shift=1))
    hook.changed(ENDED, None)
    wait_until(lambda: counts["ok"] == 1)
    hook.close()
    (line,) = file.read_text().splitlines()
    text, env, num_words = line.split("|")
    record = json.loads(text)
    assert (record["id"], record["state"], record["exit_code"]) == ("j1", "FAILED", 137)
    assert record["spec"]["name"] == "$(touch here)" and record["metrics"] == {"loss": None}
    assert record["spec"]["argv"] == ["train", "--token", "***"]
    assert record["spec"]["env"] == {"KEY": "***", "A": "***"} and "job_key" not in record
    assert "PATH" in env and "ONEFLOW_AUTH_TOKEN" not in env and num_words == "1"


def test_a_failure_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    hook, counts = hook_of("import sys; sys.exit('no mail today')")
    hook.changed(RUNNING, ENDED)
    wait_until(lambda: counts["failed"] == 1)
    hook.close()
    assert "ended with 1: no mail today" in caplog.text
    missing, counts = EndHook(["/nothing/there"], {}, counts), counts
    missing.changed(RUNNING, ENDED)
    wait_until(lambda: counts["failed"] == 2)
    missing.close()


def test_one_that_stands_still_is_ended_with_all_that_it_started() -> None:
    text = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], stdin=0)"
    hook, counts = hook_of(f"{text}; import time; time.sleep(600)", limit_s=0.3)
    begun = time.monotonic()
    hook.changed(RUNNING, ENDED)
    wait_until(lambda: counts["late"] == 1)
    assert time.monotonic() - begun < 60
    hook.close()


def test_too_many_ends_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_hook, "MAX_WAITING", 1)
    hook, counts = hook_of("import time; time.sleep(600)")
    hook.changed(RUNNING, ENDED)
    hook.changed(RUNNING, replace(ENDED, id="j2"))
    assert counts["dropped"] == 1
    hook.close()  # ends the first


def test_its_words_are_split_as_a_shell_does() -> None:
    assert parse_command("/bin/mail -s 'a job'") == ("/bin/mail", "-s", "a job")
    assert parse_command("") == ()
    with pytest.raises(ConfigError, match="--on-end"):
        parse_command("mail 'x")
