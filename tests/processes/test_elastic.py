"""Launchers of one job come and go: the training goes on, in every size, from its last step."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oneflow.scheduler.ports import free_port
from tests.support.waiting import WAIT_S, wait_until

from .test_launch import LAUNCH, clean_env

PROGRAM = "tests.processes.elastic_program"
STEPS, ROWS = 76, 1797
"""Two epochs of digits, in batches of 48."""


def said(moments: Path) -> list[dict[str, Any]]:
    """All that ranks have committed."""
    lines = [line for path in moments.iterdir() for line in path.read_text().splitlines(True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_for(moments: Path, step: int, size: int) -> None:
    """Return when all ranks of a size have committed a step."""

    def there() -> bool:
        found = [one for one in said(moments) if (one["step"], one["size"]) == (step, size)]
        return len(found) == size

    wait_until(there, f"{size} ranks at step {step}")


@contextmanager
def ended(processes: list[subprocess.Popen[str]]) -> Iterator[None]:
    """The processes are gone afterwards, in any case."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@dataclass(frozen=True)
class Scene:
    """Nodes that come and go. sizes: numbers of ranks of the three rounds."""

    nodes: str
    ranks_per_node: int
    sizes: tuple[int, int, int]

    def launch(self, folder: Path, number: int, port: int) -> subprocess.Popen[str]:
        """Start a launcher as on a node with a disk of its own. The most nodes begin at once, and
        so do those that are left.
        """
        meeting = [f"--nnodes={self.nodes}", f"--nproc-per-node={self.ranks_per_node}"]
        meeting += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
        meeting += [f"--node-rank={min(number, 1)}", "--rdzv-conf=last_call_timeout=600"]
        words = [str(folder / f"state{number}"), str(folder / "moments"), str(STEPS)]
        words += [f"{self.sizes[0]}:12", f"{self.sizes[1]}:24"]
        return subprocess.Popen(
            [*LAUNCH, *meeting, "--grace-period=60", "-m", PROGRAM, *words],
            env=clean_env(ONEFLOW_JOB_TOKEN="shared" * 8),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(Scene("1:2", 2, (4, 2, 4)), id="two ranks a node"),
        pytest.param(Scene("3:4", 1, (4, 3, 4)), id="one rank a node", marks=pytest.mark.slow),
    ],
)
def test_ranks_go_and_come_and_the_losses_are_those_of_one_run(
    scene: Scene, tmp_path: Path
) -> None:
    moments, alone, port = tmp_path / "moments", tmp_path / "alone", free_port()
    moments.mkdir()
    alone.mkdir()
    words = [str(tmp_path / "one"), str(alone), str(STEPS)]
    undisturbed = subprocess.Popen([LAUNCH[0], "-m", PROGRAM, *words], env=clean_env(), text=True)
    num_nodes = int(scene.nodes.partition(":")[2])
    nodes = [scene.launch(tmp_path, number, port) for number in range(num_nodes)]
    told: list[str] = []
    with ended([undisturbed, *nodes]):
        wait_for(moments, 12, scene.sizes[0])
        nodes.pop().kill()
        wait_for(moments, 24, scene.sizes[1])
        with ended([last := scene.launch(tmp_path, num_nodes, port)]):
            for process in (*nodes, last, undisturbed):
                told.append(process.communicate(timeout=WAIT_S)[1])
                assert process.returncode == 0, told[-1]
    begun = [line for line in told[0].splitlines() if "begins on" in line]
    assert [line.rpartition(" ")[2] for line in begun] == ["left", "came"]
    found = said(moments)
    check(scene, found, said(alone))
    forked_from = {one["imported_at"] for one in found if one["rank"] == 0}
    assert len(forked_from) == 1  # of all rounds: only one process has imported


def check(scene: Scene, found: list[dict[str, Any]], alone: list[dict[str, Any]]) -> None:
    sizes = {one["step"]: one["size"] for one in found}
    assert [sizes[step] for step in range(1, STEPS + 1)] == [
        *[scene.sizes[0]] * 12,
        *[scene.sizes[1]] * 12,
        *[scene.sizes[2]] * (STEPS - 24),
    ]
    for epoch in (0, 1):
        rows = sorted(row for one in found if one["epoch"] == epoch for row in one["rows"])
        assert rows == list(range(ROWS))
    losses = {one["step"]: one["loss"] for one in found}
    for one in alone:
        assert abs(losses[one["step"]] - one["loss"]) < 1e-5, one["step"]
