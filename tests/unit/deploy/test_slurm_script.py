"""Words of deploy/slurm/oneflow.sbatch to its daemons, with programs in the place of ours and
Slurm's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "slurm" / "oneflow.sbatch"
OTHERS = ("oneflow", "scancel", "squeue", "scontrol")
SRUN = '#!/bin/sh\nprintf %s "$ONEFLOW_DATA_ROOTS" > "$SAID"\n'


def said_roots(folder: Path, **more: str) -> list[str]:
    """ONEFLOW_DATA_ROOTS as the tasks get it."""
    programs = folder / "bin"
    programs.mkdir()
    for name in OTHERS:
        (programs / name).write_text("#!/bin/sh\nexit 0\n")
    (programs / "srun").write_text(SRUN)
    for program in programs.iterdir():
        program.chmod(0o755)
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SAID": str(folder / "said"),
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "1",
        **more,
    }
    done = subprocess.run(
        ["bash", str(SCRIPT), "x.job"], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return (folder / "said").read_text().split(":")


def test_jobs_may_use_the_checkpoints_and_nothing_where_keys_are(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    base = tmp_path / ".oneflow" / "7"
    assert said_roots(tmp_path / "a", SLURM_SUBMIT_DIR=str(tmp_path)) == [f"{base}/checkpoints"]


def test_folders_of_the_user_stay(tmp_path: Path) -> None:
    found = said_roots(tmp_path, ONEFLOW_DATA_ROOTS="/data:/more")
    assert found == ["/data", "/more", f"{tmp_path}/.oneflow/7/checkpoints"]


SIGNALLED = """#!/bin/sh
# A program of ours: TERM reaches the script while it runs.
case "$*" in
"$STAGE"*) kill -TERM "$(cat "$SAID.pid")" ;;
esac
case "$*" in
"scheduler run"*|"job logs"*) exec sleep 2 ;;
esac
"""
STAGES = ("cluster init-tls", "scheduler run", "scheduler health", "job submit", "job logs")


@pytest.mark.parametrize(
    ("stage", "state"), [*((stage, "RUNNING") for stage in STAGES), ("job submit", "CANCELLED")]
)
def test_the_nodes_may_be_asked_for_at_any_moment(tmp_path: Path, stage: str, state: str) -> None:
    """The job is queued again, unless it was cancelled."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "oneflow").write_text(SIGNALLED)
    (programs / "squeue").write_text(f"#!/bin/sh\necho {state}\n")
    (programs / "scancel").write_text("#!/bin/sh\nexit 0\n")
    (programs / "srun").write_text("#!/bin/sh\nexec sleep 0.2\n")
    (programs / "scontrol").write_text('#!/bin/sh\necho "$@" > "$SAID"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SAID": str(tmp_path / "said"),
        "STAGE": stage,
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "1",
    }
    command = 'echo $$ > "$SAID.pid"; exec bash "$0" x.job'
    done = subprocess.run(
        ["bash", "-c", command, str(SCRIPT)], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 143, done.stderr
    assert "unbound" not in done.stderr
    said = (tmp_path / "said").read_text() if (tmp_path / "said").exists() else ""
    assert said == ("requeue 7\n" if state == "RUNNING" else "")
