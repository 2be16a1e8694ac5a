"""Global AutoTests on several ranks, which draw the same numbers."""

from __future__ import annotations

import pytest

from tests.support.launching import launch


@pytest.mark.slow
def test_a_global_test_passes_on_two_ranks() -> None:
    done = launch(2, "autotest_program")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("Ran 1 test") == 2
