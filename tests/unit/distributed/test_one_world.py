"""Threads that ask for the world first, at the same moment, get one."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from oneflow.distributed import world as worlds


def test_threads_that_ask_at_the_same_time_get_one_world(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    first_is_in, may_go_on = threading.Event(), threading.Event()

    class World:
        def __init__(self, config: object) -> None:
            made.append(self)
            first_is_in.set()
            may_go_on.wait(60)

    monkeypatch.setattr(worlds, "World", World)
    monkeypatch.setattr(worlds, "_world", None)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(worlds.world())) for _ in range(3)]
    threads[0].start()
    assert first_is_in.wait(60)
    for thread in threads[1:]:
        thread.start()
    threading.Timer(0.05, may_go_on.set).start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and all(one is made[0] for one in found)
