"""Turns: actors of a rank that act one after another, in a fixed order, in each step.

Each of them has one more input, its turn. An actor that has had its turn says `Freed` here, as to
the maker of any input, and the next one in the order is sent `Ready`. Nothing else about an actor
changes: it acts when it has its turn, its other inputs and its free slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from oneflow.actors.actor import Input
from oneflow.actors.messages import Effect, Freed, Message, Ready, Send
from oneflow.core.errors import ProtocolError

TURNS = -1
"""The address of the one that gives turns, among those of actors."""

HAD_TURN = Input("its turn", (Send(TURNS, Freed(0, 0)),))
"""The input of an actor that takes turns."""


class StaticSchedule:
    """Gives turns.

    order: of a step, actors by id.  channels: the input that is its turn, of each of them.
    """

    def __init__(self, order: Sequence[int], channels: Mapping[int, int]) -> None:
        self._next = cycle([Send(actor, Ready(channels[actor], 0)) for actor in order])

    def first(self) -> Send:
        """The message with which the first step begins."""
        return next(self._next)

    def handle(self, message: Message) -> Sequence[Effect]:
        """Gives the next actor its turn. Raises ProtocolError for any message but `Freed`."""
        if type(message) is not Freed:
            raise ProtocolError(f"turns are given back, but this came: {message}")
        return (next(self._next),)
