"""Reshapes over a grid, trees made global, flat collectives and places of global tensors."""

from __future__ import annotations

import pytest

from tests.support.launching import check_done, launch_once


@pytest.mark.parametrize("scene", ["reshapes", "trees", "collectives", "places", "templates"])
def test_scene(scene: str) -> None:
    check_done(launch_once(4, "global_forms_program"), 4, scene)
