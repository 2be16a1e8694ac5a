"""The examples, run as a user runs them: every layout learns, with the same losses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oneflow.scheduler.ports import free_port
from tests.support.launching import LAUNCH_S

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = [("dp", 2), ("tp", 2), ("pp", 2), ("2d", 4)]
MORE_GPT = [pytest.param(*found, marks=pytest.mark.slow) for found in LAYOUTS if found[0] != "pp"]
FOUR = [pytest.param(layout, 4, marks=pytest.mark.slow) for layout in ("dp", "tp", "pp")]
WORLD = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")


def start(num_ranks: int, script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs a script on so many ranks, through the launcher unless there is one only."""
    launcher = ["-m", "oneflow.distributed.launch", "--nproc_per_node", str(num_ranks)]
    launcher += ["--master_port", str(free_port())]
    command = [sys.executable, *(launcher if num_ranks > 1 else []), str(script), *options]
    env = {name: value for name, value in os.environ.items() if name not in WORLD}
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LAUNCH_S, check=False
    )


def train(num_ranks: int, example: str, report: Path, *options: str) -> dict[str, Any]:
    """The report of an example that must succeed."""
    done = start(num_ranks, ROOT / "examples" / example, "--json", str(report), *options)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    result: dict[str, Any] = json.loads(report.read_text())
    return result


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process, all epochs."""
    return train(1, "digits.py", tmp_path_factory.mktemp("digits") / "single.json")


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    report = tmp_path_factory.mktemp("gpt") / "single.json"
    return train(1, "gpt_stdlib.py", report, "--stop-after", "4", "--sample", "2")


def test_digits_are_learnt(digits: dict[str, Any]) -> None:
    assert digits["accuracy"] >= 0.97
    assert len(digits["losses"]) == 25 * 14
    assert digits["samples_per_s"] > 0


@pytest.mark.parametrize(("layout", "num_ranks"), [*LAYOUTS, *FOUR])
def test_digits_lose_the_same_in_every_layout(
    digits: dict[str, Any], layout: str, num_ranks: int, tmp_path: Path
) -> None:
    """Every step's loss of a fifth of the training."""
    options = ("--parallel", layout, "--stop-after", "5")
    losses = train(num_ranks, "digits.py", tmp_path / "report.json", *options)["losses"]
    np.testing.assert_allclose(losses, digits["losses"][: 5 * 14], rtol=1e-5)


def test_cnn_learns_in_two_layouts(tmp_path: Path) -> None:
    options = ("--model", "cnn", "--stop-after", "1")
    alone = train(1, "digits.py", tmp_path / "single.json", *options)
    split = train(2, "digits.py", tmp_path / "tp.json", "--parallel", "tp", *options)
    np.testing.assert_allclose(split["losses"], alone["losses"], rtol=1e-5)
    assert alone["accuracy"] > 0.5


def test_checkpoint_of_one_layout_goes_on_in_another(
    digits: dict[str, Any], tmp_path: Path
) -> None:
    saved = str(tmp_path / "saved")
    first = ("--parallel", "dp", "--stop-after", "1", "--save", saved)
    train(2, "digits.py", tmp_path / "dp.json", *first)
    second = ("--parallel", "tp", "--stop-after", "2", "--resume", saved)
    losses = train(2, "digits.py", tmp_path / "tp.json", *second)["losses"]
    np.testing.assert_allclose(losses, digits["losses"][14:28], rtol=1e-5)


@pytest.mark.parametrize(("layout", "num_ranks"), [("pp", 2), *MORE_GPT])
def test_gpt_loses_the_same_in_every_layout(
    gpt: dict[str, Any], layout: str, num_ranks: int, tmp_path: Path
) -> None:
    options = ("--parallel", layout, "--stop-after", "4", "--sample", "2")
    report = train(num_ranks, "gpt_stdlib.py", tmp_path / "report.json", *options)
    np.testing.assert_allclose(report["losses"], gpt["losses"], rtol=1e-5)
    assert report["losses"][-1] < report["losses"][0]
    assert len(report["text"]) == len("def ") + 2


@pytest.mark.parametrize(
    ("num_ranks", "options", "message"),
    [
        (1, ("--parallel", "pp"), "--parallel pp needs an even number of ranks"),
        (1, ("--parallel", "2d"), "--nproc_per_node 4"),
        (2, ("--parallel", "single"), "--parallel single needs exactly 1 rank"),
        (2, ("--batch-size", "95"), "use a multiple of 2"),
        (1, ("--epochs", "0"), "must be at least 1"),
    ],
)
def test_mistakes_are_explained(num_ranks: int, options: tuple[str, ...], message: str) -> None:
    done = start(num_ranks, ROOT / "examples" / "digits.py", *options)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_readme_runs_as_it_stands(tmp_path: Path) -> None:
    pages = ROOT / "README.md", ROOT / "docs" / "QUANTIZATION.md"
    text = "".join(page.read_text() for page in pages)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 4
    for num_ranks, block in zip((2, 1, 1, 1), blocks, strict=True):
        script = tmp_path / "readme.py"
        script.write_text(block)
        done = start(num_ranks, script)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


def test_a_profile_shows_ops_modules_and_lines_of_both_modes(tmp_path: Path) -> None:
    done = start(1, ROOT / "examples" / "profiling.py", "--steps", "2", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    graph, eager = done.stdout.split("---- eager ----")
    for text, module in ((graph, "model.blocks"), (eager, "Model.blocks")):
        parts = re.split(r"^by \w+ .*$", text, flags=re.MULTILINE)[1:4]
        ops, modules, lines = (dict(re.findall(r"(?m)^(\S+) +(\d+) ", part)) for part in parts)
        assert (ops["linear"], ops["matmul_weight_grad"]) == ("7", "7")
        assert modules[module] == "0"  # which has no ops but those inside of it
        assert all("examples/profiling.py:" in name for name in lines)
    assert (tmp_path / "trace-rank0.json.gz").exists()
    (file,) = tmp_path.glob("*.pt.trace.json")
    events = json.loads(file.read_text())["traceEvents"]
    assert {"ProfilerStep#2", "ProfilerStep#3"} <= {e["name"] for e in events}
