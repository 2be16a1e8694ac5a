"""Jobs whose graphs were traced with placements, resumed in other layouts; inference that spans
ranks; numbers that are none; full disks."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn as nn
from oneflow.scheduler.ports import free_port
from tests.support.simulated.worker_peer import INFERENCE, Attempt
from tests.support.waiting import WAIT_S

from .test_job_workers import answer, ask, check_traced

PROGRAM = Path(__file__).parent / "job_export_program.py"


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    return runpy.run_path(str(PROGRAM))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Job files that two ranks exported."""
    folder = tmp_path_factory.mktemp("files")
    flags = ["--nproc_per_node", "2", "--master_port", str(free_port())]
    command = [sys.executable, "-m", "oneflow.distributed.launch", *flags, str(PROGRAM), folder]
    result = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert result.returncode == 0, result.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def expected(program: dict[str, Any]) -> list[float]:
    """Losses of the graph in this process."""
    graph = program["Train"](program["make_model"]())
    x, y = program["rows"]()
    batches = program["data"]().batches
    from oneflow.jobs.order import Cursor

    cursor, found = Cursor(), []
    for _ in range(program["STEPS"]):
        rows = batches.rows(cursor, 0, 8)
        found.append(float(graph(flow.tensor(x[rows]), flow.tensor(y[rows])).numpy()))
        cursor = batches.after(cursor)
    return found


def values(attempt: Attempt) -> list[float]:
    return [float.fromhex(loss) for _, loss in attempt.curve]


@pytest.mark.parametrize(
    ("name", "num_ranks"),
    [
        ("split", 2),
        ("stages", 2),
        ("local", 2),
        pytest.param("split", 1, marks=pytest.mark.slow),
        pytest.param("split", 4, marks=pytest.mark.slow),
    ],
)
def test_every_layout_gives_the_same_losses(
    files: Path, tmp_path: Path, expected: list[float], name: str, num_ranks: int
) -> None:
    found = Attempt(files / f"{name}.job", tmp_path, num_ranks).succeeds()
    np.testing.assert_allclose(values(found), expected, rtol=1e-4)


@pytest.mark.parametrize(("before", "after"), [("split", "local"), ("local", "stages")])
def test_a_checkpoint_of_another_layout_goes_on(
    files: Path, tmp_path: Path, expected: list[float], before: str, after: str
) -> None:
    Attempt(files / f"{before}.job", tmp_path, 2, steps=4).succeeds()
    path = str(tmp_path / "checkpoints" / "step-4")
    found = Attempt(files / f"{after}.job", tmp_path, 2, number=2, resume_from=path).succeeds()
    np.testing.assert_allclose(values(found), expected, rtol=1e-4)


def test_stages_need_their_ranks(files: Path, tmp_path: Path) -> None:
    found = Attempt(files / "stages.job", tmp_path, 1)
    assert found.wait() == [1]
    assert "runs on exactly 2 devices numbered from 0, not on 1" in found.workers[0].failed.cause


def test_inference_of_a_graph_that_spans_ranks(
    files: Path, tmp_path: Path, program: dict[str, Any]
) -> None:
    job = Attempt(files / "split_infer.job", tmp_path, 2, kind=INFERENCE)
    x = program["rows"]()[0]
    for number in range(10):
        ask(job, number, x[number : number + 3])
    ask(job, 50, x[:1], rank=1)
    model = program["make_model"]()
    for number in range(10):
        (scores,) = answer(job, number).outputs
        found = np.frombuffer(scores.data, np.float32).reshape(3, 3)
        np.testing.assert_allclose(
            found, model(flow.tensor(x[number : number + 3])).numpy(), atol=1e-5
        )
    assert answer(job, 50, rank=1).error == "rank 0 answers for this job"
    check_traced(job, lambda number: ask(job, number, x[:3]))
    job.workers[0].send(stop=True)
    job.workers[1].send(stop=True)
    assert job.wait() == [143, 143]


# ---- numbers that are none -----------------------------------------------------------------------


class Logs(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(2, 2, bias=False)
        nn.init.ones_(self.model.weight)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=1e-6))

    def build(self, x: Any) -> Any:
        loss = flow.sqrt(self.model(x)).mean()
        loss.backward()
        return loss


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_number_that_is_none_ends_the_job_and_names_its_op(
    tmp_path: Path, num_ranks: int
) -> None:
    x = np.ones((40, 2), np.float32)
    x[29] = -1  # in batch 7 of 4 rows
    data = flow.jobs.data.arrays(x=x).batch(4)
    Logs().export(tmp_path / "a.job", data=data, stop_on_nonfinite=True)
    found = Attempt(tmp_path / "a.job", tmp_path / "job", num_ranks)
    assert found.wait() == [82] * num_ranks
    failed = found.workers[0].failed
    assert failed.reason == "NONFINITE" and failed.last_step == 7
    assert "step 8: loss is nan; it comes from sqrt (" in failed.cause
    told = [c for m in found.workers[0].messages if m for c in m.counts.counts]
    assert [c.value for c in told if list(c.labels) == ["loss"]][-1] == 1
    assert max(c.value for c in told if c.name == "steps") == 7
    assert "test_job_layouts.py:" in failed.cause
    assert len(found.curve) == 7


# ---- files of the hosts --------------------------------------------------------------------------


def test_rows_come_from_files_that_the_daemons_owner_allows(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    x = np.arange(80, dtype=np.float32).reshape(40, 2)
    np.savez(folder / "x.npz", rows=x)
    data = flow.jobs.data.npz(folder / "x.npz", x="rows", embed=False).batch(4)
    Logs().export(tmp_path / "a.job", data=data)
    refused = Attempt(tmp_path / "a.job", tmp_path / "no", 1)
    assert refused.wait() == [65]
    assert "ONEFLOW_DATA_ROOTS: none" in refused.workers[0].failed.cause
    env = {"ONEFLOW_DATA_ROOTS": str(folder)}
    found = Attempt(tmp_path / "a.job", tmp_path / "yes", 2, env=env).succeeds()
    expected = np.sqrt(x.sum(axis=1)).reshape(10, 4).mean(axis=1)  # weights of one, lr of 1e-6
    np.testing.assert_allclose(values(found), expected, rtol=1e-4)


# ---- full disks ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for one checkpoint and a half."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=72k", "tmpfs", folder], capture_output=True
        ).returncode
    ):
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_does_not_stop_training(tmp_path: Path, small_disk: Path) -> None:
    class Wide(Logs):
        def __init__(self) -> None:
            nn.Graph.__init__(self)
            self.model = nn.Linear(2, 4096, bias=False)
            nn.init.ones_(self.model.weight)
            self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=1e-6))

    x = np.ones((40, 2), np.float32)
    data = flow.jobs.data.arrays(x=x).batch(4).repeat()
    Wide().export(tmp_path / "a.job", data=data, steps=3000, checkpoint_every=1000)
    found = Attempt(tmp_path / "a.job", tmp_path, 2)
    found.succeeds()
    assert len(found.curve) == 3000
    assert found.workers[0].progress[-1].metrics["checkpoint_failures"] >= 1
    assert "DISK_FULL" in found.workers[0].text()
    assert "was not written: DISK_FULL" in found.workers[0].progress[-1].warning
    (only,) = [n for n in os.listdir(small_disk) if n != "last_checkpoint"]
    assert only == "step-1000"
    state = flow.load(small_disk / only)
    assert state["step"] == 1000
