"""Settings of tests that draw their inputs: the same ones each time, without a limit on time."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

STEADY = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
