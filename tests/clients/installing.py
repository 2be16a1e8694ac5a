"""Clients installed without dependencies into folders of their own, and programs that use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("ONEFLOW_CLIENTS", ROOT / "build" / "clients"))

TOOLS = "setuptools<80 wheel pybind11"
"""The build tools of old source distributions."""


def _pip(folder: Path, packages: str, *options: str) -> None:
    if folder.exists():
        return
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    tools = {**os.environ, "PYTHONPATH": str(FOLDER / "tools")}
    subprocess.run([*command, *options, *packages.split()], env=tools, check=True, timeout=900)


def installed(client: str, needs: str, *, from_source: bool = False) -> str:
    """The PYTHONPATH of a client (`name==version`) and of the small packages that it imports."""
    name = client.partition("=")[0]
    _pip(FOLDER / "tools", TOOLS)
    _pip(FOLDER / name, client, *(["--no-build-isolation"] if from_source else []))
    if needs:
        _pip(FOLDER / f"{name}-needs", needs)
    return os.pathsep.join(str(FOLDER / part) for part in (name, f"{name}-needs"))


def reports(paths: Sequence[str], program: Sequence[str]) -> list[dict[str, Any]]:
    """The JSON lines that a program of this folder prints, one a model."""
    search = os.pathsep.join([str(ROOT), *paths, str(FOLDER / "tools")])
    environment = {**os.environ, "PYTHONPATH": search, "HF_HUB_OFFLINE": "1"}
    # Two libraries in one process: the idle threads of one would spin while the other computes.
    environment |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=5000,
        cwd=ROOT,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3000:]
    assert lines, done.stderr[-3000:]
    return [json.loads(line) for line in lines]
