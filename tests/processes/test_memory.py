"""Views, copies and positions of global tensors on two ranks are those of PyTorch."""

from __future__ import annotations

import pytest

from tests.support.launching import check_done, launch_once


@pytest.mark.parametrize("scene", ["writes", "positions"])
def test_memory_of_global_tensors(scene: str) -> None:
    check_done(launch_once(2, "memory_program"), 2, scene)
