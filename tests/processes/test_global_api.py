"""Global tensors as users meet them (conversion, creation, gradients, printing, modules, data
parallelism): one program of many scenes, in worlds of 1, 2 and 4 ranks."""

from __future__ import annotations

import pytest

from tests.support.launching import check_done, launch


@pytest.mark.parametrize(
    ("num_ranks", "settings"),
    [
        (1, {}),
        (2, {"ONEFLOW_DEBUG_MODE": "1"}),  # compares what the ranks ask for at every change
        (4, {"RANKS_PER_HOST": "2"}),  # shared memory inside a host, sockets between the two
    ],
    ids=["one process", "debug mode", "two hosts"],
)
def test_every_scene(num_ranks: int, settings: dict[str, str]) -> None:
    check_done(launch(num_ranks, "global_api_program", **settings), num_ranks)
