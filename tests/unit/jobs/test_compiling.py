"""The process that compiles for a scheduler says what the compiler says when it is called here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import oneflow as flow
from oneflow.cli.services import COMPILER
from oneflow.core.metrics import METRICS
from oneflow.jobs.running import compile_plan
from oneflow.scheduler.cluster.compiler import CompilerLimits, Compilers, FileRefusedError

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
    compilers: Compilers, tmp_path: Path
) -> None:
    training = export(tmp_path / "train.job")
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
    assert told[0] == ("dedupe", 1, 7)
    assert told[6] == ("emit", 7, 7)
    assert METRICS.scheduler.passes["all"].total_s > before
    assert METRICS.scheduler.passes["infer_sbp"].total_s > 0
    assert len(compilers.pids()) == 1  # it stayed warm


def test_what_is_wrong_with_a_file_keeps_its_name_and_code(
    compilers: Compilers, tmp_path: Path
) -> None:
    training = export(tmp_path / "train.job")
    broken = tmp_path / "broken.job"
    broken.write_bytes(training.read_bytes()[:-100])
    for asked, kind, code, said in (
        ((training, "graph", 3, "cpu", 0), "PlacementError", 1, "8 rows cannot be divided evenly"),
        ((training, "graph", 1, "cpu", 7), "JobFileError", 65, "learning rates lr.0.0 for 6"),
        ((broken, "graph", 1, "cpu", 0), "JobFileError", 65, "broken.job"),
    ):
        with pytest.raises(FileRefusedError, match=said) as caught:
            compilers.check_fit(*asked)
        assert (caught.value.kind, caught.value.exit_code) == (kind, code)
    with pytest.raises(FileRefusedError, match=r"broken\.job"):
        compilers.compile_plan(broken, 1, "cpu", (), print)


def test_how_many_steps_fit_is_told(compilers: Compilers, tmp_path: Path) -> None:
    training = export(tmp_path / "train.job")
    endless = export(tmp_path / "endless.job", data=data(epochs=1), steps=5)
    assert compilers.check_fit(training, "graph", 1, "cpu", 0) == 6
    assert compilers.check_fit(endless, "graph", 1, "cpu", 3) == 5
