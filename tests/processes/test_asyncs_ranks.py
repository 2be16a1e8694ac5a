"""Workers of flow.asyncs on real ranks: global tensors, and exchanges in any order."""

from __future__ import annotations

import pytest

from tests.support.launching import check_done, launch_once

SCENES = [
    "programs",
    "exchanges_in_any_order",
    "gradients",
    "queued_at_the_end",
]


@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str) -> None:
    result = launch_once(2, "asyncs_program", *SCENES)
    check_done(result, 2, scene)
    assert result.returncode == 0, result.stderr[-3000:]
