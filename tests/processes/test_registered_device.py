"""Ranks on a device that nothing in the project names: values of the CPU, by way of host memory."""

from __future__ import annotations

import pytest

from tests.support.launching import check_done, launch_once

SCENES = ["eager", "graph", "parallel", "layouts"]


@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str) -> None:
    check_done(launch_once(2, "device_program", *SCENES), 2, scene)
