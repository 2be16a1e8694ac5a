"""flow.comm and flow.distributed on real ranks: every function, dtype and odd shape, and misuse."""

from __future__ import annotations

import pytest

from tests.support.launching import check_done, launch_once

SCENES = ["reductions", "moves", "pairs", "objects", "mistakes", "unequal"]
FAR = ["far"]


@pytest.mark.parametrize(
    ("num_ranks", "where"),
    [(2, []), pytest.param(3, [], marks=pytest.mark.slow), (3, FAR)],
    ids=["2-near", "3-near", "3-far"],
)
@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str, num_ranks: int, where: list[str]) -> None:
    check_done(launch_once(num_ranks, "comm_program", *SCENES, *where), num_ranks, scene)


@pytest.mark.parametrize("scene", ["reductions", "moves"])
def test_four_ranks(scene: str) -> None:
    check_done(launch_once(4, "comm_program", "reductions", "moves"), 4, scene)


@pytest.mark.parametrize("scene", ["reductions", "moves", "objects"])
def test_one_rank_alone(scene: str) -> None:
    check_done(launch_once(1, "comm_program", "reductions", "moves", "objects"), 1, scene)
