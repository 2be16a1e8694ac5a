"""Meshes, DTensor, tensor parallelism and `fully_shard` on real ranks, beside PyTorch."""

from __future__ import annotations

import pytest

from tests.support.launching import check_done, launch_once

SCENES = [
    *("meshes", "tensors", "tensor_parallel", "sharded", "added_up", "halved", "wrapped", "grid"),
    *("tied", "run_again", "ahead", "without_values", "losses_in_parts"),
]


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str, num_ranks: int) -> None:
    check_done(launch_once(num_ranks, "meshes_program", *SCENES), num_ranks, scene)
