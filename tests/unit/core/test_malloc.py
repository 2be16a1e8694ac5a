"""Freed memory is kept for the next arrays."""

from __future__ import annotations

import platform

import pytest

from oneflow.core.config import Config
from oneflow.core.malloc import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_glibc_takes_the_thresholds() -> None:
    assert keep_freed_memory()


def test_a_user_who_tunes_malloc_is_left_alone() -> None:
    assert Config.from_env({}).keep_freed_memory
    assert not Config.from_env({"MALLOC_TRIM_THRESHOLD_": "1000000"}).keep_freed_memory
