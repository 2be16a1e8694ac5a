"""A rank that waits names the cause: when asked, in its log, and when it gives up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from oneflow.scheduler.compiler.passes import PASSES
from oneflow.scheduler.ports import free_port
from tests.support.waiting import WAIT_S

PROGRAM = Path(__file__).with_name("hang_program.py")
WORLD = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
TIMEOUT_S = 10  # which a busy machine needs for a step
ASKED = "oneflow: job Sum_0, step 1:"


def test_a_hang_explains_itself(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k not in WORLD}
    env |= {"ONEFLOW_TIMEOUT_SECONDS": str(TIMEOUT_S), "ONEFLOW_LOG_FORMAT": "text"}
    env |= {"ONEFLOW_NNGRAPH_ENABLE_PROGRESS_BAR": "1", "ONEFLOW_DUMP": str(tmp_path / "dump")}
    command = [sys.executable, "-m", "oneflow.distributed.launch", "--nproc_per_node", "2"]
    command += ["--master_port", str(free_port())]
    command += ["--redirect_stdout_and_stderr", "--logdir", str(tmp_path / "log")]
    command += [str(PROGRAM), str(tmp_path)]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as job:
        ask(wait_for_pid(tmp_path / "pid", job), tmp_path / "log" / "local_rank_0" / "stderr")
        _, err = job.communicate(timeout=WAIT_S)
    said = (tmp_path / "log" / "local_rank_0" / "stderr").read_text()

    assert job.returncode == 80
    assert "reason=HANG rank=0" in err.splitlines()[-1]

    stacks, _, report = said.partition(ASKED)
    assert "most recent call first" in stacks and "hang_program.py" in stacks
    waited = r"(input r\d+ from rank 1|a free slot of r\d+, which rank 1 reads)"  # as it goes
    waits = re.compile(rf"waits for {waited}; last messages: (Ready|Freed|KernelDone)")
    assert waits.search(report.splitlines()[1])

    assert "W rank " in said and "this rank waits for rank 1" in said
    error = said[said.index("HangError: rank 0: nothing moved for") :]
    assert waits.search(error)

    # Rank 0 compiles for both: it alone tells how far it is and dumps, and no bar fills a file.
    other = (tmp_path / "log" / "local_rank_1" / "stderr").read_text()
    assert f"compiling: {len(PASSES)}/{len(PASSES)} passes" in said and "compiling:" not in other
    dumped = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert dumped == [f"Sum_0.{i:02d}_{name}.txt" for i, name in enumerate(PASSES, 1)]
    assert "\r" not in said and "\x1b" not in said


def ask(pid: int, stderr: Path) -> None:
    """Asks the rank until it is found in the step."""
    end = time.monotonic() + TIMEOUT_S - 1
    while ASKED not in stderr.read_text() and time.monotonic() < end:
        os.kill(pid, signal.SIGUSR2)
        time.sleep(0.2)


def wait_for_pid(path: Path, job: subprocess.Popen[str]) -> int:
    end = time.monotonic() + WAIT_S
    while not (path.exists() and path.read_text()):
        assert job.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    return int(path.read_text())
