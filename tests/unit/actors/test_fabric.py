"""Connecting the ranks of a graph: the scheduler is asked first about peers that cannot be
reached.
"""

from __future__ import annotations

from typing import Any

import pytest

from oneflow.actors.fabric import open_fabric
from oneflow.boxing.transport.pages import SharedPage, fetch_page
from oneflow.core.errors import PeerLostError, TransportError
from tests.unit.boxing.boxing_ranks import LocalStore


class Unreachable(LocalStore):
    """Ranks whose pages nobody hands out."""

    def page(self, rank: int, name: str, timeout_s: float) -> SharedPage:
        return fetch_page(b"\0nobody-listens-here", name, timeout_s)


def plan() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(registers=[], actors=[], device_type="cpu")


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_scheduler_gets_time_to_name_the_cause(is_lost: bool) -> None:
    store = Unreachable()
    if is_lost:
        store.lost = PeerLostError("rank 1 failed first")
    with pytest.raises(PeerLostError if is_lost else TransportError):
        open_fabric(plan(), 0, [0, 1], "job", store, places=("here",) * 2, patience_s=0.2)
