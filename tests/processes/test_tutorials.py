"""The tutorials of docs/tutorials run from their first cell to their last, as in a notebook."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
CELL = re.compile(r"^```\{code-cell\} ipython3\n(?::[^\n]*\n)*(.*?)^```$", re.M | re.S)


def program(page: str) -> str:
    """The cells of a page as one program; a line that begins with ! is for the shell."""
    lines = ["import pathlib, subprocess"]
    for cell in CELL.findall(page):
        if cell.startswith("%%writefile "):
            name, _, text = cell.removeprefix("%%writefile ").partition("\n")
            lines.append(f"pathlib.Path({name!r}).write_text({text!r})")
            continue
        for line in cell.splitlines():
            shell = f"subprocess.run({line[1:]!r}, shell=True, check=True)"
            lines.append(shell if line.startswith("!") else line)
    return "\n".join(lines)


def test_there_are_tutorials_with_cells() -> None:
    assert len(TUTORIALS) >= 9
    assert all(CELL.search(path.read_text()) for path in TUTORIALS)


@pytest.mark.parametrize("path", TUTORIALS, ids=[path.stem for path in TUTORIALS])
def test_a_tutorial_runs(path: Path, tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text(program(path.read_text()))
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": folders, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "cells.py"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    if ran.returncode and (tmp_path / "state").exists():
        env["ONEFLOW_STATE_DIR"] = str(tmp_path / "state")
        subprocess.run(["oneflow", "cluster", "down"], env=env, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
