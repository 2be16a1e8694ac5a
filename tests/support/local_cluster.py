"""A cluster as a user of this machine has it: `oneflow cluster up`, and other words of the command
line.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import oneflow as flow
from oneflow.cluster.local_record import LocalCluster, read_record
from oneflow.scheduler.jobs.tokens import read_token_file
from tests.support.waiting import WAIT_S

Done = subprocess.CompletedProcess[str]


class LocalTest:
    """A cluster of its own folders, and how to ask it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "run").mkdir(mode=0o700, parents=True)
        own = {k: v for k, v in os.environ.items() if not k.startswith(("ONEFLOW_", "MASTER_"))}
        self.env = own | {
            "ONEFLOW_STATE_DIR": str(folder / "state"),
            "ONEFLOW_CONFIG_DIR": str(folder / "config"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "TMPDIR": str(folder),
        }

    def run(self, *arguments: str, timeout_s: float = WAIT_S) -> Done:
        return subprocess.run(
            [sys.executable, "-m", "oneflow", *arguments],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "oneflow", *arguments]
        return subprocess.Popen(command, env=self.env, cwd=self.folder, text=True, **more)

    def script(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(f"import os, sys, time, signal\nrank = int(os.environ['RANK'])\n{text}\n")
        return str(path)

    @property
    def record(self) -> LocalCluster:
        found = read_record(self.folder / "state")
        assert found is not None
        return found

    def connect(self) -> Any:
        token = read_token_file(self.folder / "config" / "token")
        return flow.cluster.connect(self.record.address, token)


def submit(local: LocalTest, script: str, *options: str, devices: int = 2) -> Done:
    asked = ["--devices", str(devices), *options, "--", sys.executable, script]
    return local.run("job", "submit", *asked)


def last_line(done: Done) -> str:
    return done.stderr.strip().splitlines()[-1]
