"""Upstream's tests of ops: 69 files with methods to profile, by AutoTest and AutoProf."""

PACKAGES = "oneflow"
SUITE = "test_upstream"
TIME_LIMIT_S = 7200
