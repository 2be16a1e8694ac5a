"""Global tensors, collectives and data parallelism in real processes that share memory."""

from __future__ import annotations

import pytest

from tests.support.launching import check_done, launch_once
from tests.support.memory import check_no_memory_is_left, names_of_memory

SCENES = [
    *("draws", "layouts", "boxing", "conversions", "communication"),
    *("data_parallel", "no_sync", "one_cpu", "compiled_replicas", "desync", "modules"),
]


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str, num_ranks: int) -> None:
    before = names_of_memory()
    check_done(launch_once(num_ranks, "eager_program", *SCENES), num_ranks, scene)
    check_no_memory_is_left(before)
