"""`python -m oneflow.autoprof`: a table of ops on both libraries, each in a process of its own."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oneflow.autoprof import table
from oneflow.autoprof.__main__ import main
from oneflow.autoprof.measuring import Row, Times, _sum_of_kernels, cpu_counts
from oneflow.core.errors import ConfigError

PROGRAM = """
import sys, unittest
import oneflow as flow
import oneflow.unittest
from oneflow.test_utils.automated_test_util import *

class TestTwo(flow.unittest.TestCase):
    @profile(torch.matmul)
    def profile_matmul(test_case):
        x = torch.ones(32, 32)
        torch.matmul(x, x.t())
        torch.matmul(x, torch.ones(32), profile_description="a vector")

    @profile(torch.nn.functional.relu)
    def profile_relu(test_case):
        torch.nn.functional.relu(torch.ones(4, 4), inplace=True)
        torch.ones(2).relu()
        print("other library:", sys.modules.get("torch") is not None)

    @profile(torch.Tensor.tanh)
    def profile_relu_after(test_case):
        torch.ones(2).tanh()

    @profile(torch.add)
    def profile_raising(test_case):
        torch.add(torch.ones(2), torch.ones(3))

    def test_nothing(test_case):
        raise AssertionError("tests are not run")
"""
FEW = {"ONEFLOW_PROFILE_WARMUP_NUM": "1", "ONEFLOW_PROFILE_RUN_NUM": "3"}
MEASURED = ["matmul", "matmul", "nn.functional.relu", "Tensor.tanh"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "two_ops.py"
    path.write_text(PROGRAM)
    return path


def profiled(
    arguments: list[str],
    folder: Path,
    command: tuple[str, ...] = ("-m", "oneflow.autoprof"),
    **env: str,
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, str]]]:
    """Run the module in a process; return its outcome, and the rows of its file."""
    done = subprocess.run(
        [sys.executable, *command, *arguments],
        cwd=folder,
        env={**os.environ, **FEW, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    with (folder / f"{env.get('ONEFLOW_PROFILE_CSV', 'op_prof')}.csv").open(newline="") as file:
        return done, list(csv.DictReader(file))


def test_a_table_of_both_libraries(program: Path, tmp_path: Path) -> None:
    done, rows = profiled([str(program)], tmp_path)
    assert list(rows[0]) == table.columns()
    assert [row["OP"] for row in rows] == [op for op in MEASURED for _ in range(2)]
    assert [row["Library"] for row in rows] == ["OneFlow", "PyTorch"] * 4
    assert rows[0]["Args"] == rows[1]["Args"] == "ones(32, 32), ones(32, 32).t()"
    assert [row["Description"] for row in rows] == ["", "", "a vector", "a vector", *[""] * 4]
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        for count in cpu_counts():
            title = f"(us, {count} CPU{'s' * (count > 1)})"
            times = [float(row[f"End-to-end Time {title}"]) for row in (ours, theirs)]
            assert all(float(row[f"Kernel Time {title}"]) > 0 for row in (ours, theirs))
            relative = float(ours[f"Relative ({title.removeprefix('(us, ')}"])
            assert relative == pytest.approx(times[1] / times[0], abs=0.01)
    assert done.returncode == 1 and done.stderr.count("ERROR: profile_raising") == 2
    assert "tests are not run" not in done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("matmul ") for line in lines) == 4


@pytest.mark.parametrize("library", ["OneFlow", "PyTorch"])
def test_one_library_alone(library: str, program: Path, tmp_path: Path) -> None:
    """OneFlow alone needs no PyTorch, and PyTorch's ops do not run on it."""
    without = "import sys, runpy; sys.modules['torch'] = None; "
    run = "runpy.run_module('oneflow.autoprof', run_name='__main__', alter_sys=True)"
    command = ("-c", without + run) if library == "OneFlow" else ("-m", "oneflow.autoprof")
    only = {f"ONEFLOW_PROFILE_ONLY_{library.upper()}": "1", "ONEFLOW_PROFILE_CSV": "alone"}
    arguments = [str(program), "-k", "matmul", "-k", "relu"]
    quiet = {"ONEFLOW_PROFILE_PRINT_SUMMARY": "0", "ONEFLOW_PROFILE_VERBOSE": "1"}
    done, rows = profiled(arguments, tmp_path, command, **only, **quiet)
    assert done.returncode == 0, done.stderr
    assert [row["OP"] for row in rows] == MEASURED
    assert {row["Library"] for row in rows} == {library}
    assert all(row["Relative (1 CPU)"] == "" for row in rows)
    assert f"other library: {library == 'PyTorch'}" in done.stdout
    assert "KT: kernel time" not in done.stdout
    assert ("aten::mm" if library == "PyTorch" else "cpu total us") in done.stdout


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        (["nowhere.py"], {}, "there is no file nowhere.py"),
        ([], {}, "usage: python -m oneflow.autoprof FILE_OR_MODULE"),
        (["."], {"ONLY_ONEFLOW": "1", "ONLY_PYTORCH": "1"}, "leave no library"),
        (["."], {"RUN_NUM": "0"}, "RUN_NUM is a whole number from 1 on, got '0'"),
        (["."], {"VERBOSE": "perhaps"}, "VERBOSE is 0 or 1, got 'perhaps'"),
    ],
    ids=["no file", "no argument", "no library", "no runs", "no switch"],
)
def test_a_wrong_call_is_refused(
    arguments: list[str], env: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(f"ONEFLOW_PROFILE_{name}", value)
    with pytest.raises(ConfigError) as found:
        main(arguments)
    assert said in str(found.value)


def test_a_comparison_without_pytorch_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match="pip install torch, or set ONEFLOW_PROFILE_ONLY_ONEFLOW"):
        main(["some_module"])


def test_each_op_of_a_call_counts_with_its_shortest_time() -> None:
    """Two products a call, one relu, an op in some calls, and one event of the profiler."""
    names = ["mm", "mm", "relu", "grow", "mm", "mm", "relu", "grow", "grow", "once"]
    times = [5.0, 1.0, 3.0, 1.0, 4.0, 2.0, 7.0, 1.0, 1.0, 100.0]
    events = list(zip(names, times, strict=True))
    assert _sum_of_kernels(events, 2) == (4.0 + 1.0) + 3.0 + 3.0 / 2
    assert _sum_of_kernels([("once", 1.0)], 2) is None


def recorded(op: str, library: str, microseconds: float) -> dict[str, str]:
    times = Times({count: (None, microseconds) for count in cpu_counts()}, 20.0, 1.5)
    return table.record(Row(op, "x", library, times))


def test_calls_of_both_libraries_are_matched_in_their_order() -> None:
    ours = [recorded("add", "oneflow", 10.0), recorded("add", "oneflow", 4.0)]
    theirs = [recorded("add", "pytorch", 5.0), recorded("mul", "pytorch", 1.0)]
    rows = table.side_by_side(ours, [*theirs, recorded("add", "pytorch", 8.0)])
    assert [row.get("Relative (1 CPU)") for row in rows] == ["0.50", None, "2.00", None, None]
    assert [row["Library"] for row in rows] == ["OneFlow", "PyTorch"] * 2 + ["PyTorch"]
    assert rows[0]["Kernel Time (us, GPU)"] == "20.0" and rows[0]["Kernel Time (us, 1 CPU)"] == ""
    assert "1.5" in table.summary(rows).splitlines()[2]


def test_a_file_that_is_no_python_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "prof.py").write_text("def profile_relu(:\n")
    with pytest.raises(ConfigError, match=r"prof\.py is no Python: invalid syntax .*line 1"):
        main([str(tmp_path / "prof.py")])
