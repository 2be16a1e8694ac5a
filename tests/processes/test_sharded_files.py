"""Global tensors saved and loaded by real ranks: bits, layouts, bytes read, failures."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import numpy as np
import pytest

import oneflow as flow
from tests.support.launching import check_done, launch


def passes(scene: str, num_ranks: int, folder: Path) -> None:
    check_done(launch(num_ranks, "files_program", scene, folder), num_ranks)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders 2 and 4: of files that so many ranks saved, and loaded again in many ways."""
    import torch

    folder = tmp_path_factory.mktemp("saved")
    for num_ranks in (2, 4):
        (folder / str(num_ranks)).mkdir()
        tree = {"w": torch.arange(6.0).reshape(2, 3), "n": 3}
        torch.save(tree, folder / str(num_ranks) / "torch")
        passes("round_trips", num_ranks, folder / str(num_ranks))
    return folder


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_another_number_of_ranks_goes_on(saved: Path, num_ranks: int) -> None:
    passes("elsewhere", num_ranks, saved)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_one_process_sees_the_same(saved: Path, num_ranks: int) -> None:
    program = runpy.run_module(f"{__package__}.files_program")
    found = flow.load(saved / str(num_ranks) / "tree")
    program["check_tree"](found, num_ranks)
    x = found["tensors"]["matrix float32 0"]
    assert x.placement == flow.placement("cpu", [0]) and x.to_local().shape == (6, 8)
    model = flow.nn.Sequential(flow.nn.Linear(6, 10), flow.nn.Tanh(), flow.nn.Linear(10, 3))
    model.load_state_dict(flow.load(saved / str(num_ranks) / f"model{num_ranks}")["model"])
    expected = np.load(saved / str(num_ranks) / f"model{num_ranks}.npz")
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), expected[name])


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_failures_are_everyones(tmp_path: Path, num_ranks: int) -> None:
    passes("failures", num_ranks, tmp_path)


def test_a_killed_rank_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    result = launch(2, "files_program", "killed", tmp_path)
    assert result.returncode != 0 and "done" not in result.stdout
    assert flow.load(tmp_path / "good")["x"].numpy().tolist() == np.ones((64, 64)).tolist()
    flow.save(
        {"x": flow.zeros(2, placement=flow.placement("cpu", [0]), sbp=flow.sbp.broadcast)},
        tmp_path / "good",
    )
    assert len(os.listdir(tmp_path / "good")) == 2, "what the killed ranks left is taken away"
