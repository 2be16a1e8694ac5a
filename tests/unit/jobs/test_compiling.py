"""The process that compiles for a scheduler gives the compiler's answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oneflow as flow
from oneflow.cli.services import COMPILER
from oneflow.core.job_config import Overrides
from oneflow.core.metrics import METRICS
from oneflow.jobs.jobfile import MANY_STEPS
from oneflow.jobs.plans import compile_plan
from oneflow.scheduler.cluster.compiler import CompilerLimits, Compilers, FileRefusedError
from oneflow.scheduler.compiler.passes import PASSES

from .job_samples import Predict, data, export


@pytest.fixture(scope="module")
def compilers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compilers]:
    """Started where somebody has left a module with the name of one that it imports."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("strange")
    (folder / "queue.py").write_text("raise SystemExit('a stranger was imported')")
    os.chdir(folder)
    found = Compilers(COMPILER, CompilerLimits(), os.environ)
    yield found
    found.close()
    os.chdir(before)


def test_plans_progress_and_times_are_the_compilers_own(
    compilers: Compilers, training: Path, tmp_path: Path
) -> None:
    Predict().export(tmp_path / "predict.job", inputs={"x": flow.zeros(5, 6)})
    told: list[tuple[str, int, int]] = []
    before = METRICS.scheduler.passes["all"].total_s
    for path, devices, hosts in (
        (training, 1, ()),
        (training, 4, ("a", "a", "b", "b")),
        (tmp_path / "predict.job", 2, ()),
    ):
        plan = compilers.compile_plan(path, devices, "cpu", hosts, lambda *done: told.append(done))
        assert plan == compile_plan(path, devices, "cpu", hosts)
    asked = Overrides(auto_parallel=True, zero=1, amp="bfloat16")
    other = compilers.compile_plan(training, 2, "cpu", (), lambda *done: None, asked)
    assert other == compile_plan(training, 2, "cpu", overrides=asked)
    assert other != compile_plan(training, 2, "cpu")
    total = len(PASSES)
    assert told[:total] == [(name, i, total) for i, name in enumerate(PASSES, 1)]
    assert METRICS.scheduler.passes["all"].total_s > before
    assert METRICS.scheduler.passes["infer_sbp"].total_s > 0
    assert len(compilers.pids()) == 1  # it stayed warm


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps, 8 rows a batch."""
    return export(tmp_path_factory.mktemp("jobs") / "train.job")


@pytest.mark.parametrize(
    ("asked", "kind", "code", "said"),
    [
        (("graph", 3, "cpu", 0), "PlacementError", 1, "a batch of 8 rows cannot be divided evenly"),
        (("graph", 1, "cpu", 7), "JobFileError", 65, "has learning rates lr.0.0 for 6; export it"),
        (("inference", 1, "cpu", 0), "JobFileError", 65, "training, the job is of kind inference"),
    ],
)
def test_what_does_not_fit_keeps_its_name_and_code(
    compilers: Compilers, training: Path, asked: Any, kind: str, code: int, said: str
) -> None:
    with pytest.raises(FileRefusedError, match=said) as caught:
        compilers.check_fit(training, *asked)
    assert (caught.value.kind, caught.value.exit_code) == (kind, code)


def test_a_broken_file_is_named(compilers: Compilers, training: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.job"
    broken.write_bytes(training.read_bytes()[:-100])
    with pytest.raises(FileRefusedError, match=r"broken\.job") as caught:
        compilers.check_fit(broken, "graph", 1, "cpu", 0)
    assert (caught.value.kind, caught.value.exit_code) == ("JobFileError", 65)
    with pytest.raises(FileRefusedError, match=r"broken\.job"):
        compilers.compile_plan(broken, 1, "cpu", (), print)


def test_the_steps_that_fit_are_told(compilers: Compilers, training: Path, tmp_path: Path) -> None:
    short = export(tmp_path / "short.job", data=data(epochs=1), steps=5)
    Predict().export(tmp_path / "predict.job", inputs={"x": flow.zeros(5, 6)})
    for path, *asked, most in (
        (training, "graph", 1, "cpu", 0, 6),
        (training, "graph", 4, "cpu", 6, 6),
        (training, "graph", 8, "cpu", 3, 6),
        (short, "graph", 1, "cpu", 3, 5),
        (tmp_path / "predict.job", "inference", 3, "cpu", 0, MANY_STEPS),
    ):
        assert compilers.check_fit(path, *asked) == most  # type: ignore[arg-type]
    with pytest.raises(FileRefusedError, match="6 steps were asked for"):
        compilers.check_fit(short, "graph", 1, "cpu", 6)
