"""Turns of actors that act in an order."""

from __future__ import annotations

import pytest

from oneflow.actors.messages import KERNEL_DONE, Freed, Ready, Send
from oneflow.actors.static_schedule import StaticSchedule
from oneflow.core.errors import ProtocolError

HAD = Freed(0, 0)


def test_turns_go_round_in_their_order() -> None:
    turns = StaticSchedule([4, 4, 7], {4: 2, 7: 1})
    given = [turns.first(), *(turns.handle(HAD)[0] for _ in range(3))]
    assert given == [Send(actor, Ready(2 if actor == 4 else 1, 0)) for actor in (4, 4, 7, 4)]


def test_only_who_had_a_turn_is_heard() -> None:
    with pytest.raises(ProtocolError, match="turns are given back, but this came: KernelDone"):
        StaticSchedule([1], {1: 0}).handle(KERNEL_DONE)
