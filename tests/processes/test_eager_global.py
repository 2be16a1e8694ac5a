"""Global tensors, collectives and data parallelism in real processes that share memory."""

from __future__ import annotations

import os

import pytest

from tests.support.launching import check_done, launch_once

SCENES = [
    *("draws", "layouts", "boxing", "conversions", "communication"),
    *("data_parallel", "desync", "modules"),
]


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str, num_ranks: int) -> None:
    before = set(os.listdir("/dev/shm"))
    check_done(launch_once(num_ranks, "eager_program", *SCENES), num_ranks, scene)
    assert {n for n in set(os.listdir("/dev/shm")) - before if "oneflow" in n} == set()
