"""The Slurm script, run for real with a srun and a scontrol that stand for Slurm's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "oneflow.sbatch"
WAIT_S = 120.0
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do
    [[ "$1" == --ntasks=* ]] && count="${1#--ntasks=}"
    shift
done
for (( i = 0; i < count; i++ )); do
    SLURM_LOCALID=$i "$@" &
    echo $! >> "$SLURM_SUBMIT_DIR/tasks"
done
wait
"""
SCANCEL = """#!/bin/bash
kill -TERM $(cat "$SLURM_SUBMIT_DIR/tasks")
"""


pytest.importorskip("cryptography")


class Fit(nn.Graph):
    """Fits y = 3 x, slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(1, 1)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=1e-4))

    def build(self, x: flow.Tensor, y: flow.Tensor) -> flow.Tensor:
        loss = ((self.model(x) - y) ** 2).mean()
        loss.backward()
        return loss


def start(folder: Path, job_file: Path) -> subprocess.Popen[str]:
    """The script as Slurm would start it on the one node of its job."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    python = f'#!/bin/bash\nexec {sys.executable} -m oneflow "$@"\n'
    scontrol = f'#!/bin/bash\necho "$@" >> {folder}/scontrol\n'
    (folder / "tasks").unlink(missing_ok=True)
    shown = {"srun": SRUN, "scancel": SCANCEL, "scontrol": scontrol, "oneflow": python}
    for name, text in shown.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (folder / "run").mkdir(mode=0o700, exist_ok=True)
    own = {k: v for k, v in os.environ.items() if not k.startswith(("ONEFLOW_", "SLURM_"))}
    env = own | {
        "PATH": f"{tools}:{own['PATH']}",
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NUM_NODES": "1",
        "ONEFLOW_DEVICES_PER_NODE": "2",
    }
    return subprocess.Popen(
        ["bash", str(SCRIPT), str(job_file)],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@pytest.mark.slow
def test_a_requeued_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(64, 1)
    data = flow.jobs.data.arrays(x=x, y=3 * x).shuffle(1).batch(16).repeat()
    job_file = tmp_path / "fit.job"
    flow.jobs.save(Fit(), job_file, data=data, steps=8000)

    first = start(tmp_path, job_file)
    metrics = tmp_path / ".oneflow" / str(os.getpid()) / "scheduler" / "jobs"
    deadline = time.monotonic() + WAIT_S
    while not list(metrics.glob("slurm-*/*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(2.0)
    first.send_signal(signal.SIGTERM)
    said, _ = first.communicate(timeout=WAIT_S)
    assert first.returncode == 143, said
    assert (tmp_path / "scontrol").read_text() == f"requeue {os.getpid()}\n"

    second = start(tmp_path, job_file)
    said, _ = second.communicate(timeout=WAIT_S)
    assert second.returncode == 0, said
    assert "attempt=2 state=SUCCEEDED" in said
    assert "step=8000" in said
