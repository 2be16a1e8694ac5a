"""Fixtures of the tests of kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oneflow.kernels import threads


@pytest.fixture
def use_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`use_threads(3)`: large work is done by three threads, however many cores there are.

    least: elements of a loop from which work is large.
    """

    def use(count: int, least: int = threads.LEAST_SHARED) -> None:
        monkeypatch.setattr(threads, "num_threads", lambda: count)
        monkeypatch.setattr(threads, "LEAST_SHARED", least)
        monkeypatch.setattr(threads, "_helpers", threads.Helpers(least_asleep=least))
        monkeypatch.setattr(threads, "_LEAST_PIECE", max(1, least // 16))

    return use
