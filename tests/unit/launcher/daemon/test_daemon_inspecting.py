"""Reports of a daemon about a rank that seems stuck."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.launcher.daemon.inspecting import Inspector, catches, without_secrets
from oneflow.launcher.daemon.logs import Limits, LogWriter
from oneflow.protos import cluster_pb2 as pb
from tests.support.waiting import CALL_S

HANDLER = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR2, file=sys.stderr)
def stuck():
    print("ready", flush=True)
    time.sleep(600)
stuck()
"""


class Scene:
    """A rank's process whose standard error is its log."""

    def __init__(self, folder: Path, program: str) -> None:
        self.logs = folder / "jobs" / "j1" / "1" / "rank0"
        self.writer = LogWriter(self.logs, "stderr", folder / "jobs" / "j1", Limits())
        self.writer.write(b"KEEP_SECRET=hunter2\n")
        with open(self.logs / "stderr", "ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=stderr
            )
        assert self.process.stdout is not None
        self.process.stdout.readline()
        spec = pb.JobSpec(argv=["train"], env={"API_KEY": "hunter2", "A": "b"})
        worker = SimpleNamespace(
            pid=self.process.pid, pidfd=os.pidfd_open(self.process.pid), is_over=False
        )
        self.rank = SimpleNamespace(
            worker=worker,
            writers={"stderr": self.writer},
            prepare=pb.Prepare(spec=spec, world_size=1, job_key="the-key-of-the-job"),
        )
        self.sent: list[Any] = []
        attachment = SimpleNamespace(
            send=lambda message, is_bulk: self.sent.append(message.inspected)
        )
        settings = SimpleNamespace(id="n0/cpu:0", jobs_dir=folder / "jobs")
        self.is_here = True
        self.inspector = Inspector(
            settings,  # type: ignore[arg-type]
            lambda key: self.rank if self.is_here else None,  # type: ignore[arg-type,return-value]
            attachment,  # type: ignore[arg-type]
        )

    def ask(self, what: str, timeout_s: float = CALL_S) -> Any:
        id_ = pb.AttemptId(job_id="j1", attempt=1)
        asyncio.run(
            self.inspector.inspect(pb.Inspect(request=7, id=id_, what=what, timeout_s=timeout_s))
        )
        return self.sent[-1]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.rank.worker.pidfd)


def test_a_rank_tells_its_stacks(tmp_path: Path) -> None:
    scene = Scene(tmp_path, HANDLER)
    try:
        found = scene.ask("stack")
        assert found.request == 7 and not found.error
        assert "stuck" in found.text and "hunter2" not in found.text
        dump = json.loads(scene.ask("dump").text)
    finally:
        scene.end()
    assert dump["pid"] == scene.process.pid and dump["runs"]
    assert "stuck" in dump["stacks"]
    assert dump["env"] == {"A": "b", "API_KEY": "***"}
    assert "hunter2" not in json.dumps(dump) and "the-key" not in json.dumps(dump)
    assert dump["status"]["State"] and dump["threads"][0]["tid"] == scene.process.pid


def test_a_program_without_a_handler_is_left_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no py-spy
    scene = Scene(tmp_path, "import time; print('ready', flush=True); time.sleep(600)")
    try:
        assert not catches(scene.process.pid, signal.SIGUSR2)
        found = scene.ask("stack")
        assert "does not answer SIGUSR2" in found.error and not found.text
        assert scene.process.poll() is None
        dump = json.loads(scene.ask("dump").text)
        assert "SIGUSR2" in dump["stacks_error"] and "stderr_tail" in dump
    finally:
        scene.end()


def test_a_program_that_is_not_python_is_told_of_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """py-spy says so with a backtrace of its own."""
    py_spy = tmp_path / "py-spy"
    said = "Error: Failed to find python version\\n\\nStack backtrace:\\n   0: anyhow::error"
    py_spy.write_text(f"#!/bin/sh\nprintf '{said}\\n' >&2\nexit 1\n")
    py_spy.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    scene = Scene(tmp_path, "import time; print('ready', flush=True); time.sleep(600)")
    try:
        found = scene.ask("stack")
    finally:
        scene.end()
    assert found.error.endswith("says of this one: Failed to find python version")
    assert f"process {scene.process.pid} (python" in found.error and "\n" not in found.error


def test_of_an_attempt_that_ended_there_are_its_files(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "print('ready')")
    scene.end()
    scene.is_here = False
    assert "does not run here" in scene.ask("stack").error
    dump = json.loads(scene.ask("dump").text)
    assert not dump["runs"] and dump["stderr_tail"] == "KEEP_SECRET=***\n"


def test_values_named_like_secrets_are_hidden() -> None:
    env = {"HF_TOKEN": "x", "aws_secret": "y", "PASSWORD": "z", "A": "TOKEN=q r"}
    found = without_secrets(env | {f"V{n}": "w" * 1000 for n in range(500)})
    assert found["A"] == "TOKEN=*** r"
    assert "x" not in (found.get("HF_TOKEN"), found.get("aws_secret"))
    assert len(found) <= 256 and max(map(len, found.values())) <= 256
