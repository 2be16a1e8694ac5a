"""Connecting the ranks of a graph: who cannot be reached is first asked after at the scheduler."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from oneflow.actors.fabric import open_fabric
from oneflow.core.errors import PeerLostError, TransportError


class Store:
    """Keys of a job in one process. lost: raised as soon as somebody asks whether all is well."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.lost: Exception | None = None

    def put(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, timeout_s):
                raise TransportError(f"nobody put {key}")
            return self.values[key]

    def check(self, ranks: Iterable[int]) -> None:
        if self.lost is not None:
            raise self.lost


class Unreachable(Store):
    """A store whose page address leads nowhere."""

    def get(self, key: str, timeout_s: float) -> bytes:
        if key.startswith("pages/"):
            return b"\0nobody-listens-here"
        return self.values.get(key, b"here")


def plan() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(registers=[], actors=[])


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_scheduler_gets_time_to_name_the_cause(is_lost: bool) -> None:
    store = Unreachable()
    if is_lost:
        store.lost = PeerLostError("rank 1 failed first")
    with pytest.raises(PeerLostError if is_lost else TransportError):
        open_fabric(plan(), 0, [0, 1], "job", store, places=("here",) * 2, patience_s=0.2)
