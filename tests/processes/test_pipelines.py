"""Schedules of pipelines, functional collectives and checkpoints of `torch.distributed`."""

from __future__ import annotations

import pytest

from tests.support.launching import check_done, launch_once

SCENES = ["schedules", "several_stages", "functional", "checkpoints", "whole_states"]


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str, num_ranks: int) -> None:
    check_done(launch_once(num_ranks, "pipelines_program", *SCENES), num_ranks, scene)
